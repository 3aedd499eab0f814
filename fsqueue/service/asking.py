"""The routes of /v1: each operation with its checks, its thread and its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

import fsqueue
from fsqueue.service import answers, bodies, fields, joined, operations, schema, streaming, updates
from fsqueue.service.answers import Json
from fsqueue.service.faults import BadField
from fsqueue.service.operations import Operation

OFTEN = ("lease", "complete", "update", "insert", "renew", "lease_any")
"""Operations that workers ask for, time and again. Routes are tried one after the other: these come first."""

Handler = Callable[[Request, dict[str, Any]], Awaitable[Response]]


def routes() -> list[BaseRoute]:
    """Return the routes."""
    handlers: Mapping[Operation, Handler] = {
        operations.ABOUT: _about,
        operations.QUEUES: _queues,
        operations.GROUP_STATUS: _group_status,
        operations.UPDATE: _update,
        operations.COMPLETE: _complete,
        operations.INSERT: streaming.insert,
        operations.LEASE_ONE: streaming.lease,
        operations.LEASE_ANY: streaming.lease_any,
        operations.WAIT: streaming.wait,
        operations.FOLLOW: streaming.follow,
        operations.FOLLOW_TASK: streaming.follow_task,
    }
    made = [
        Route(f"/v1{one.path}", partial(_answer, one, handlers.get(one)), methods=[one.method], name=one.name)
        for one in sorted(operations.OPERATIONS, key=lambda one: one.name not in OFTEN)
    ]
    return [*made, Route("/v1/openapi.json", _openapi)]


async def _answer(operation: Operation, handler: Handler | None, request: Request) -> Response:
    """Check what was sent, and do what the operation does."""
    given = fields.query_in(operation.query, request.query_params.multi_items())
    given |= {name: name_in(name, text) for name, text in request.path_params.items()}
    if operation.method != "GET" and operation is not operations.INSERT:
        limit = request.app.state.gateway.limits.body_bytes_max
        given |= await bodies.json_object(request, limit, partial(fields.given_in, operation.body))
    if handler is not None:
        return await handler(request, given)
    gateway = request.app.state.gateway
    if operation.each is not None:
        each = operation.each
        return await _stream(request, lambda queue: each(queue, given), given["queue"])
    assert operation.act is not None
    act = operation.act

    def acting() -> Any:
        with gateway.served.queue(given["queue"]) as queue:
            return act(queue, given)

    return Json(await gateway.threads.run(acting), operation.status)


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
        await gateway.together.run(
            ("complete", name),
            given,
            partial(joined.complete, gateway.served, name),
            partial(joined.complete_alone, gateway.served, name),
        )
    )


async def _update(request: Request, given: dict[str, Any]) -> Response:
    """Do all of it, or nothing; with other updates of the same queues that come meanwhile."""
    gateway = request.app.state.gateway
    timeout_s = min(given.pop("timeout_s"), operations.UPDATE_S)
    updates.check(gateway.served, given)
    queues = {one["queue"] for changes in given.values() for one in changes}
    return Json(
        await gateway.together.run(
            ("update", frozenset(queues)),
            updates.RequestedUpdate(given, timeout_s),
            partial(joined.update, gateway.served),
            lambda one, is_again: updates.apply(gateway.served, one),
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


async def _openapi(request: Request) -> Response:
    return Json(schema.openapi())
