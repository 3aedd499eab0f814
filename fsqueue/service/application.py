"""The application: the routes, what they share, and who may ask for them.

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
from starlette.exceptions import HTTPException
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

import fsqueue
from fsqueue.service import asking, faults, figures, login, page, taskstore_calls
from fsqueue.service.gate import Gate, Tokens
from fsqueue.service.lessees import Lessees
from fsqueue.service.limits import ServiceLimits
from fsqueue.service.marking import Marking, marked
from fsqueue.service.patience import Patience
from fsqueue.service.served import Served
from fsqueue.service.streaming import ClientHasGone
from fsqueue.service.taskstore_wire import DurationUnit
from fsqueue.service.threads import ServiceThreads
from fsqueue.service.together import Together


@dataclass(eq=False, slots=True)
class Gateway:
    """What the handlers of one process share: nothing that a restart would lose."""

    served: Served
    threads: ServiceThreads
    together: Together
    lessees: Lessees
    limits: ServiceLimits
    tokens: Tokens | None
    followers: int = 0
    """How many streams of events are under way."""
    is_closing: bool = False
    _pauses: set[asyncio.Future[None]] = field(default_factory=set)

    async def pause(self, seconds: float) -> None:
        """Wait for that many seconds, or until this gateway is told to end."""
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
    return Gateway(served, threads, Together(threads), Lessees(threads, limits), limits, tokens)


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
    app.state.gateway = made
    app.state.root_path = root_path
    calls = taskstore_calls.TaskstoreCalls(made.served, taskstore_duration)
    app.state.taskstore = calls
    app.state.pages = page.Pages(made.served, made.threads, calls.has_clients)
    guarded = Patience(Gate(app, made.tokens, hosts, read_only, root_path), made.limits)
    return Marking(ServerErrorMiddleware(guarded, faults.on_bug))  # it also answers for bugs of the two themselves


def last_answer(answer: Response) -> Response:
    """Return an answer that the server gives without the application, and after which it ends the connection."""
    answer.headers["connection"] = "close"
    return marked(answer)


def _routes() -> list[BaseRoute]:
    return [
        Route("/healthz", _healthy),
        *login.routes(),
        *asking.routes(),
        *page.routes(),
        *figures.routes(),
        *taskstore_calls.routes(),
    ]


async def _healthy(request: Request) -> Response:
    """Say that the process answers. It asks no filesystem: that one may be slow is no reason to restart this."""
    return PlainTextResponse("ok\n")
