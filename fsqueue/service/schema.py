"""`/v1/openapi.json`: the verbs as OpenAPI 3.1 describes them, made of the fields that check requests."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import fsqueue
from fsqueue.service import fields
from fsqueue.service.bodies import JSON_LINES
from fsqueue.service.faults import STATUS
from fsqueue.verbs.table import ROUTED, Route, Verb

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {
                "type": {"type": "string", "description": "The class of the error in Python."},
                "message": {"type": "string", "description": "What happened, what is still true, what to do."},
                "field": {"type": "string", "description": "The field that is wrong."},
            },
        }
    },
}
STATUSES = sorted({*STATUS.values(), 400, 401, 403, 404, 405, 408, 413, 415, 421} - {500})


@cache
def openapi() -> dict[str, Any]:
    """Return the whole description."""
    paths: dict[str, Any] = {}
    for verb, route in ROUTED:
        paths.setdefault(f"/v1{route.path}", {})[route.method.lower()] = _described(verb, route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fsqueue",
            "version": fsqueue.__version__,
            "description": "Queues of a gateway. The verbs are those of fsqueue.Queue and fsqueue.Group.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": ERROR},
        },
    }


def _described(verb: Verb, one: Route) -> dict[str, Any]:
    error = {
        "description": "An error.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    done: dict[str, Any] = {"description": "Done.", "content": {one.gives: {"schema": {}}}}
    found: dict[str, Any] = {
        "operationId": verb.name,
        "summary": verb.about,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
              for name in re.findall(r"\{(\w+)\}", one.path)),
            *({"name": field.name, "in": "query", "required": field.needed, "description": field.about,
               "schema": fields.schema(field)} for field in one.query),
        ],
        "responses": {str(one.status): done, **{str(status): error for status in STATUSES}},
    }  # fmt: skip
    if one.method in ("POST", "PATCH", "PUT"):
        content: dict[str, Any] = {"application/json": {"schema": fields.objects_schema(one.body)}}
        if one.takes_lines:
            content |= {JSON_LINES[0]: {"schema": {"type": "string"}}}
        found["requestBody"] = {
            "required": any(field.needed for field in one.body) or one.takes_lines,
            "content": content,
        }
    return found
