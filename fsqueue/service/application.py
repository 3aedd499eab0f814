"""The application: the routes, what they share, who may ask for them, and what is the same for each answer.

A module with routes has a function `routes()`, and stands in `_routes` below. In a handler:

- `request.app.state.gateway` is the `Gateway`: what is served, threads for blocking calls, limits;
- `request.state.caller` is the `Caller`: whether it may write, and the CSRF token for its forms. Whoever may not write
  gets no further than the gate with anything but GET and HEAD.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import fsqueue
from fsqueue.service import api, faults, figures, login, page, page_frame, taskstore_calls
from fsqueue.service.gate import Gate, Tokens
from fsqueue.service.lessees import Lessees
from fsqueue.service.limits import ServiceLimits
from fsqueue.service.queue_counters import QueueCounters
from fsqueue.service.request_batches import RequestBatches
from fsqueue.service.request_figures import RequestFigures
from fsqueue.service.served import Served
from fsqueue.service.streaming import ClientHasGone
from fsqueue.service.taskstore_wire import DurationUnit
from fsqueue.service.threads import ServiceThreads


@dataclass(eq=False, slots=True)
class Gateway:
    """What the handlers of one process share: nothing that a restart would lose."""

    served: Served
    threads: ServiceThreads
    batches: RequestBatches
    lessees: Lessees
    limits: ServiceLimits
    tokens: Tokens | None
    followers: int = 0
    """How many streams of events are under way."""
    is_closing: bool = False
    requests: RequestFigures = field(default_factory=RequestFigures)
    counters: QueueCounters = field(default_factory=QueueCounters)
    _pauses: set[asyncio.Future[None]] = field(default_factory=set)

    async def pause(self, seconds: float) -> None:
        """Wait for `seconds`, or until `stop` ends this gateway."""
        if self.is_closing:
            return
        ends = asyncio.get_running_loop().create_future()
        self._pauses.add(ends)
        try:
            await asyncio.wait([ends], timeout=seconds)
        finally:
            self._pauses.discard(ends)

    def stop(self) -> None:
        """Let everything that waits end at once. To be called in the event loop."""
        self.is_closing = True
        self.lessees.close()
        for one in self._pauses:
            if not one.done():
                one.set_result(None)


def gateway(path: str | os.PathLike[str], tokens: Tokens | None, limits: ServiceLimits | None = None) -> Gateway:
    """Open what is served. QueueNotFound, NotAQueue, StorageError."""
    limits = limits or ServiceLimits()
    threads = ServiceThreads(limits)
    served = Served(path, limits.open_queues_max)
    return Gateway(served, threads, RequestBatches(threads), Lessees(threads, limits), limits, tokens)


def application(
    made: Gateway, hosts: Iterable[str] = (), read_only: bool = False, taskstore_duration: DurationUnit = "auto",
    root_path: str = "",
) -> ASGIApp:  # fmt: skip
    """Return the ASGI application. `hosts`: names beside localhost by which clients call it. `root_path`: see `Gate`.

    `taskstore_duration`: what a claim's `duration` counts in taskstore's format (docs/taskstore.md).
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        made.stop()
        made.threads.close()
        made.served.close()

    app = Starlette(
        routes=_routes(),
        lifespan=lifespan,
        exception_handlers={
            fsqueue.FsqueueError: faults.on_error,
            HTTPException: faults.on_http,
            ClientHasGone: faults.on_gone,
            Exception: faults.on_bug,
        },
    )
    app.router.redirect_slashes = False
    made.requests.name(app.routes)
    app.state.gateway = made
    app.state.root_path = root_path
    calls = taskstore_calls.TaskstoreCalls(made.served, taskstore_duration)
    app.state.taskstore = calls
    app.state.pages = page_frame.Pages(made.served, made.threads, calls.has_clients)
    guarded = ClientTimeouts(Gate(app, made.tokens, hosts, read_only, root_path), made.limits)
    return BrowserHeaders(
        ServerErrorMiddleware(guarded, faults.on_bug), made.requests
    )  # it also answers for bugs of the two themselves


def last_answer(answer: Response) -> Response:
    """Return an answer that the server gives without the application, and after which it ends the connection."""
    answer.headers["connection"] = "close"
    _mark(answer.headers)
    return answer


def _routes() -> list[BaseRoute]:
    return [
        Route("/healthz", _healthy),
        *login.routes(),
        *api.routes(),
        *page.routes(),
        *figures.routes(),
        *taskstore_calls.routes(),
    ]


async def _healthy(request: Request) -> Response:
    """Say that the process answers. It asks no filesystem: that one may be slow is no reason to restart this."""
    return PlainTextResponse("ok\n")


class ClientGone(Exception):
    """The client does not take its answer. It is left."""


class ClientTimeouts:
    """Bound each wait for the client of a request: for its body, and for it to take its answer.

    The server bounds the wait for the head. A body that stops coming is answered by 408. A client that takes no more of
    its answer is left.
    """

    def __init__(self, app: ASGIApp, limits: ServiceLimits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on the request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_whole = has_begun = False

        async def receiving() -> Message:
            nonlocal is_whole
            if is_whole:  # what comes next is the client's end
                return await receive()
            try:
                async with asyncio.timeout(self._limits.body_s):  # unlike `wait_for`, it makes no task
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"The body of the request stopped for {self._limits.body_s:g} s.") from None
            is_whole = not message.get("more_body", False)
            return message

        async def sending(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            try:
                async with asyncio.timeout(self._limits.send_s):
                    await send(message)
            except TimeoutError:
                raise ClientGone from None

        try:
            await self._app(scope, receiving, sending)
        except ClientGone:
            return
        except HTTPException as error:  # while the gate read a form
            if not has_begun:
                error.detail += " Nothing was done."
                await faults.refused(error)(scope, receive, send)
        except asyncio.CancelledError:  # the gateway ends, and this has not come to its end in time
            if has_begun:
                raise
            await faults.cut_off()(scope, receive, send)


HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
}
"""What each answer says to a browser, unless its route says otherwise."""


class BrowserHeaders:
    """Give each answer of `app` the headers that it lacks. Nothing that answers may stand outside of this.

    It counts the requests, too: here each of them begins and ends.
    """

    def __init__(self, app: ASGIApp, requests: RequestFigures) -> None:
        self._app, self._requests = app, requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on the request, and mark its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status: int | None = None

        async def marking(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _mark(MutableHeaders(raw=message.setdefault("headers", [])))
            await send(message)

        began = self._requests.begin()
        try:
            await self._app(scope, receive, marking)
        finally:
            self._requests.end(scope, status, began)


def _mark(headers: MutableHeaders) -> None:
    for name, value in HEADERS.items():
        headers.setdefault(name, value)
