"""The server: uvicorn, with a bound on slow heads, and an end that leaves the process its last steps."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol


class SlowHeadProtocol(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it. A connection ends that has sent a part of a head, or nothing, for too long.

    It also ends if its request was answered before its body was whole, and the rest takes too long: a client without
    a token is answered so. uvicorn bounds the pause between two requests, and no other, and forgets that pause once a
    byte has come. A client could hold connections for ever otherwise.
    """

    head_s: ClassVar[float] = 20.0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to count."""
        super().connection_made(transport)
        self._count()

    def data_received(self, data: bytes) -> None:
        """Go on counting while a head is not whole, or the rest of a body that was answered."""
        was_answered = self._is_answered()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            if not self._is_answered():
                self._stop()
        elif was_answered:  # the pause between two requests begins here: uvicorn has just forgotten it
            self._stop()
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        elif self._deadline is None and not self.transport.is_closing():
            self._count()

    def on_response_complete(self) -> None:
        """Leave the pause between two requests to uvicorn. Count if the body is not whole."""
        super().on_response_complete()
        self._stop()
        if self._is_answered() and not self.transport.is_closing():
            self._count()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count no more."""
        self._stop()
        super().connection_lost(exc)

    def _is_answered(self) -> bool:
        """Return whether a body is under way whose request was answered."""
        return self.conn.their_state is h11.SEND_BODY and self.cycle is not None and self.cycle.response_complete

    def _count(self) -> None:
        self._deadline = self.loop.call_later(self.head_s, self._too_slow)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if (self.conn.their_state is h11.IDLE or self._is_answered()) and not self.transport.is_closing():
            self.transport.close()


class GatewayServer(uvicorn.Server):
    """A server that ends at SIGTERM and SIGINT. uvicorn raises the signal again, and the process would end within.

    `signal_number`: which signal ended it.
    """

    signal_number: int | None = None
    on_stop: Callable[[], object] = staticmethod(lambda: None)
    """Called in the event loop when the first signal has come."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Note the first signal and end after what is under way; end at once after a second one."""
        before = {one: signal.signal(one, self._note) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def _note(self, number: int, frame: object) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        if self.signal_number is None:
            self.signal_number = number
            asyncio.get_running_loop().call_soon_threadsafe(self.on_stop)
