"""The routes of /v1: each verb with its checks, its thread and its answer; and their description in OpenAPI 3.1."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict
from functools import cache, partial
from typing import Any
from urllib.parse import unquote

from starlette import routing
from starlette.requests import Request
from starlette.responses import Response

import fsqueue
from fsqueue.service import (
    answers,
    barrier_requests,
    bodies,
    request_batches,
    request_fields,
    streaming,
    update_requests,
    verb_calls,
)
from fsqueue.service.answers import Json
from fsqueue.service.bodies import JSON_LINES
from fsqueue.service.faults import STATUS, BadField
from fsqueue.service.streaming import selected
from fsqueue.verbs.table import NDJSON, ROUTED, UPDATE_S, Route, Verb

OFTEN = ("lease", "complete", "update", "insert", "renew", "lease_any")
"""Verbs that workers ask for, time and again. Routes are tried one after the other: these come first."""

Handler = Callable[[Request, dict[str, Any]], Awaitable[Response]]


def routes() -> list[routing.BaseRoute]:
    """Return the routes."""
    handlers: Mapping[str, Handler] = {
        "about": _about,
        "queues": _queues,
        "group_status": _group_status,
        "group_is_drained": _of_group(lambda group, given: verb_calls.drained(selected(group, given))),
        "group_wait": streaming.wait_for_group,
        "group_usage": _of_group(lambda group, given: answers.plain(group.usage())),
        "group_settings": _of_group(lambda group, given: asdict(group.settings)),
        "group_barrier": _of_group(barrier_requests.set_barrier),
        "group_join": _of_group(barrier_requests.set_join),
        "group_barriers": _of_group(barrier_requests.listed),
        "group_barrier_state": _of_group(barrier_requests.state),
        "group_cancel_barrier": _of_group(barrier_requests.cancel),
        "group_flows": _of_group(lambda group, given: {"flows": [flow._asdict() for flow in group.flows()]}),
        "update": _update,
        "complete": _complete,
        "insert": streaming.insert,
        "lease": streaming.lease,
        "lease_any": streaming.lease_any,
        "wait": streaming.wait,
        "events": streaming.follow,
        "task_events": streaming.follow_task,
    }
    made = [
        routing.Route(
            f"/v1{route.path}",
            partial(_answer, route, handlers.get(verb.name) or _handler(verb.name, route)),
            methods=[route.method],
            name=verb.name,
        )
        for verb, route in sorted(ROUTED, key=lambda routed: routed[0].name not in OFTEN)
    ]
    return [*made, routing.Route("/v1/openapi.json", _openapi)]


async def _answer(route: Route, handler: Handler, request: Request) -> Response:
    """Check what was sent, and do what the verb does."""
    given = request_fields.query_in(route.query, request.query_params.multi_items())
    given |= {name: name_in(name, text) for name, text in request.path_params.items()}
    if route.method != "GET" and not route.takes_lines:
        limit = request.app.state.gateway.limits.body_bytes_max
        given |= await bodies.json_object(request, limit, partial(request_fields.given_in, route.body))
    return await handler(request, given)


def _handler(name: str, route: Route) -> Handler:
    """Return what answers a verb that a thread calls with its queue."""
    act = verb_calls.act_of(name, route)

    async def called(request: Request, given: dict[str, Any]) -> Response:
        gateway = request.app.state.gateway
        if route.gives == NDJSON:
            return await _stream(request, lambda queue: act(queue, given), given["queue"])

        def acting() -> Any:
            with gateway.served.queue(given["queue"]) as queue:
                return act(queue, given)

        return Json(await gateway.threads.run(acting), route.status)

    return called


def name_in(what: str, text: str) -> str:
    """Return the name that a segment of a path means; BadField for what is no UTF-8."""
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise BadField(what, "is no UTF-8. Nothing was done.") from None


async def _stream(request: Request, each: Callable[[fsqueue.Queue], Iterator[Any]], name: str) -> Response:
    gateway = request.app.state.gateway

    def made() -> Iterator[bytes]:
        with gateway.served.queue(name) as queue:
            yield from answers.chunks(each(queue))

    parts = gateway.threads.each(made)
    first = await anext(parts)  # an error before it has a status of its own
    return answers.lines(first, parts)


async def _complete(request: Request, given: dict[str, Any]) -> Response:
    """Report tasks as done, with those of other requests that come meanwhile."""
    gateway, name = request.app.state.gateway, given["queue"]
    return Json(
        await gateway.batches.run(
            ("complete", name),
            given,
            partial(request_batches.complete, gateway.served, name),
            partial(request_batches.complete_alone, gateway.served, name),
        )
    )


async def _update(request: Request, given: dict[str, Any]) -> Response:
    """Apply an update, all or nothing, together with updates of the same queues that arrive meanwhile."""
    gateway = request.app.state.gateway
    timeout_s = min(given.pop("timeout_s"), UPDATE_S)
    update_requests.check(gateway.served, given)
    queues = {one["queue"] for changes in given.values() for one in changes}
    return Json(
        await gateway.batches.run(
            ("update", frozenset(queues)),
            update_requests.RequestedUpdate(given, timeout_s),
            partial(request_batches.update, gateway.served),
            lambda one, is_again: update_requests.apply(gateway.served, one),
        )
    )


async def _about(request: Request, given: dict[str, Any]) -> Response:
    served = request.app.state.gateway.served
    return Json(
        {
            "service": "fsqueue",
            "version": fsqueue.__version__,
            "serves": "queue" if served.only is not None else "group",
            "queue": served.only,
            "root_path": request.app.state.root_path,
            "may_write": request.state.caller.may_write,
        }
    )


async def _queues(request: Request, given: dict[str, Any]) -> Response:
    gateway = request.app.state.gateway
    limit = given["limit"]
    names = await gateway.threads.run(
        lambda: gateway.served.names(given["match"], given["tasks_min"], given["after"], limit + 1)
    )
    page = names[:limit]
    return Json({"queues": page, "next": page[-1] if len(names) > limit else None})


async def _group_status(request: Request, given: dict[str, Any]) -> Response:
    gateway = request.app.state.gateway

    def counted() -> Any:
        if gateway.served.group is None:
            with gateway.served.queue(gateway.served.only) as queue:
                status = queue.status(given["exact"])
                return fsqueue.GroupStatus(status, queue.activity(), {gateway.served.only: status}).as_dict()
        return gateway.served.group.status(given["match"], exact=given["exact"]).as_dict()

    return Json(await gateway.threads.run(counted))


def _of_group(act: Callable[[fsqueue.Group, dict[str, Any]], Any]) -> Handler:
    """Return what answers a verb of the group that a thread calls."""

    async def called(request: Request, given: dict[str, Any]) -> Response:
        gateway = request.app.state.gateway
        group = streaming.group_of(gateway.served)
        return Json(await gateway.threads.run(lambda: act(group, given)))

    return called


async def _openapi(request: Request) -> Response:
    return Json(openapi())


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
    """Return `/v1/openapi.json`: the verbs, described by the fields that check requests."""
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
               "schema": request_fields.schema(field)} for field in one.query),
        ],
        "responses": {str(one.status): done, **{str(status): error for status in STATUSES}},
    }  # fmt: skip
    if one.method in ("POST", "PATCH", "PUT"):
        content: dict[str, Any] = {"application/json": {"schema": request_fields.objects_schema(one.body)}}
        if one.takes_lines:
            content |= {JSON_LINES[0]: {"schema": {"type": "string"}}}
        found["requestBody"] = {
            "required": any(field.needed for field in one.body) or one.takes_lines,
            "content": content,
        }
    return found
