"""The routes of taskstore's HTTP format, at the paths that its client asks for. docs/taskstore.md.

`taskstore_wire` reads requests and writes answers. `taskstore` has the meaning.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

import fsqueue
from fsqueue.format import user_json
from fsqueue.service import answers, api, bodies, taskstore_wire
from fsqueue.service.faults import BadField
from fsqueue.service.served import Served
from fsqueue.service.taskstore import Refused, Taskstore
from fsqueue.service.taskstore_wire import DurationUnit

T = TypeVar("T")

FORM = "application/x-www-form-urlencoded"


class TaskstoreCalls:
    """What these routes share. The store is opened by the first request that asks for it: others cost nothing."""

    def __init__(self, served: Served, unit: DurationUnit) -> None:
        self._served, self.unit = served, unit
        self._store: Taskstore | None = None
        self._lock = threading.Lock()

    def has_clients(self) -> bool:
        """Return whether clients have asked this gateway."""
        return self._store is not None

    def store(self) -> Taskstore:
        """Return the store. QueueNotFound if a single queue is served; StorageError. Blocks."""
        if self._served.group is None:
            raise fsqueue.QueueNotFound(
                f"taskstore's calls are for a group of queues. Here is one queue, {self._served.only!r:.300}: "
                "see /v1/openapi.json."
            )
        with self._lock:
            if self._store is None:
                self._store = Taskstore(self._served.group)
            return self._store


def routes() -> list[BaseRoute]:
    """Return the routes."""
    return [
        Route("/group", _groups),
        Route("/groups", _groups),
        Route("/group/{name:path}", _group),
        Route("/task/{ids:path}", _task),
        Route("/tasks/{ids:path}", _tasks),
        Route("/update", _update, methods=["POST"]),
        Route("/claim", _claim, methods=["POST"]),
    ]


async def _groups(request: Request) -> Response:
    return await _answer(request, lambda store: answers.encoded(store.groups()))


async def _group(request: Request) -> Response:
    name = api.name_in("group", request.path_params["name"])
    if not name:
        raise BadField("group", "is missing: /group/NAME. Nothing was done.")
    limit, owned = taskstore_wire.listing_in(request.query_params)
    return await _answer(request, lambda store: taskstore_wire.tasks_body(store.listing(name, limit, owned)))


async def _task(request: Request) -> Response:
    ids = taskstore_wire.ids_in(api.name_in("id", request.path_params["ids"]))
    if len(ids) != 1:
        raise BadField("id", "names several tasks: ask for /tasks/. Nothing was done.")
    return await _answer(request, lambda store: answers.encoded(taskstore_wire.task_as_json(store.tasks(ids)[0])))


async def _tasks(request: Request) -> Response:
    ids = taskstore_wire.ids_in(api.name_in("id", request.path_params["ids"]))
    return await _answer(request, lambda store: taskstore_wire.tasks_body(store.tasks(ids)))


async def _update(request: Request) -> Response:
    asked = await _sent(request, "update", taskstore_wire.update_in)

    def applied(store: Taskstore) -> bytes:
        return taskstore_wire.done_body(
            store.update(asked.client, asked.adds, asked.changes, asked.deletes, asked.depends)
        )

    return await _answer(request, applied)


async def _claim(request: Request) -> Response:
    unit = request.app.state.taskstore.unit
    asked = await _sent(request, "claim", lambda value: taskstore_wire.claim_in(value, unit))

    def claimed(store: Taskstore) -> bytes:
        task = store.claim(asked.client, asked.group, asked.duration_ms, asked.depends)
        return taskstore_wire.done_body([] if task is None else [task])

    return await _answer(request, claimed)


async def _answer(request: Request, act: Callable[[Taskstore], bytes]) -> Response:
    """Do it in a thread, the writing of the answer, too: a list may be long.

    The answer is whole, with its length. Upstream's client closes no answer: it would leave a connection behind each
    one that comes in chunks.
    """
    calls: TaskstoreCalls = request.app.state.taskstore

    def acting() -> bytes:
        try:
            return act(calls.store())
        except Refused as refused:
            return taskstore_wire.refused_body(refused)

    body = await request.app.state.gateway.threads.run(acting)
    return Response(body, media_type="application/json")


async def _sent(request: Request, field: str, read: Callable[[Any], T]) -> T:
    """Return what `read` makes of the JSON value that was sent: as the body, or in a field of a form. BadField,
    HTTPException 413, 415.

    Upstream's client posts JSON and names no type; its server reads a form. curl calls whatever it posts a form. So
    the first character tells: a form with this field begins with no brace.
    """
    body = (await bodies.whole(request, request.app.state.gateway.limits.body_bytes_max)).strip()
    kind = bodies.kind_of(request)
    if kind.startswith("multipart/"):
        raise HTTPException(415, bodies.refused_kind(request, f"JSON, of any type, or {FORM}"))

    def reading() -> T:
        where, text = "body", body
        if kind == FORM and not body.startswith(b"{"):
            where, text = field, _form_field(body, field)
        if not text:
            raise BadField(where, "is empty: it must be a JSON object. Nothing was done.")
        try:
            return read(user_json.decode_fields(text))
        except user_json.NotExact as error:
            raise BadField(where, f"{error}. Nothing was done.") from None

    return await bodies.aside(request, len(body), reading)


def _form_field(body: bytes, field: str) -> bytes:
    """Return the first value of a field of a form; BadField for what is no form."""
    try:
        found = parse_qs(body.decode(), max_num_fields=bodies.FORM_FIELDS_MAX, errors="strict")
    except ValueError:  # no UTF-8, or too many fields
        raise BadField("body", f"is no form with a field {field}, and no JSON object. Nothing was done.") from None
    if field not in found:
        raise BadField(field, "is missing: send JSON as the body, or in this field of a form. Nothing was done.")
    return found[field][0].encode()
