"""The server: uvicorn, with bounds on what a client may send, and an end that leaves the process its last steps."""

from __future__ import annotations

import asyncio
import math
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import httptools
import uvicorn
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from fsqueue.service import faults, gate
from fsqueue.service.application import last_answer

from .serving_places import ConnectionPlaces, Handshakes

_NO_PLACE = last_answer(
    faults.answer_to(faults.Overloaded("The gateway has too many connections at once. Nothing was done: come again."))
)
_NO_REQUEST = last_answer(faults.refusal(400, "BadRequest", "The gateway cannot read this request. Nothing was done."))
_TOO_SLOW = last_answer(faults.refusal(408, "BadRequest", "The head of the request stopped. Nothing was done."))

HEAD_BYTES_MAX = 64 << 10
"""Maximum length of the head of a request. Also of the rest of a chunked body, and of a chunk's first line."""


_WHOLE_ADDRESS = re.compile(rb"(?i:https?)://([^/?#@]+)((?:[/?].*)?)")
"""What a request for a proxy has in place of a path: the host, and path and query."""
SHORTAGE_TOLD_EACH_S = 600.0
"""How often the log tells that connections cannot be accepted. Clients could fill the disk."""


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 as uvicorn speaks it by httptools, with bounds. Without them clients could hold memory and connections.

    - A head, or what follows the last chunk of a body, is at most HEAD_BYTES_MAX long, and one read (256 KiB) more.
    - A connection ends that has sent a part of a head, or nothing, for `head_s` seconds. A part of a head is answered
      by 408. The gateway answers a client without a token before the body is whole: then the connection ends if the
      rest does not come within that time. uvicorn bounds the pause between two requests, and no other, and forgets that
      pause once a byte has come.
    - One request is under way at a time. If another one comes before the answer, the connection ends after the answer,
      as HTTP lets a server do: uvicorn would keep all that have come.
    - What follows the last chunk of a body ("trailers") is no header of the request.
    - An offer to change to another protocol ("Upgrade") is ignored. uvicorn would lose the body of such a request, and
      take it for the next request. Java's client makes the offer in each first request.
    - For a connection beyond `connections_max`, the oldest one ends on which no valid token has come. If all have shown
      one, the new connection gets one answer, 503 with Retry-After, and ends. uvicorn would refuse the requests of all
      connections then, also of those that were there before. Beyond `refused_max` more, the oldest of these ends at
      once. Whatever ends so for another one is given the same answer, if it can take it.
    """

    head_s: ClassVar[float] = 20.0
    connections_max: ClassVar[int] = 8_192
    refused_max: ClassVar[int] = 1_024
    handshakes: ClassVar[Handshakes | None] = None
    """Those of this server's connections that have not come to `connection_made` yet."""
    _deadline: asyncio.TimerHandle | None = None
    _undecided_bytes = 0
    """Length of what has come since the last head, part of a body, or end of a request."""
    _is_in_head = _is_in_body = False
    _has_shown_token = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to count the time. Take a place, or be told that there is none."""
        super().connection_made(transport)
        if self.handshakes is not None:
            self.handshakes.end(transport.get_extra_info("socket").fileno())
        self._count()
        if not ConnectionPlaces.of(self.server_state).admit(
            self, len(self.connections), self.connections_max, self.refused_max
        ):
            self.app = _NO_PLACE

    def data_received(self, data: bytes) -> None:
        """Go on counting while a head is not whole, or the rest of a body that was answered."""
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        was_answered = self._is_answered()
        self._parse(data)
        if self._is_answered() or self.transport.is_closing():
            return
        if self._is_in_body or self._is_asked():
            self._stop()
        elif was_answered:  # the pause between two requests begins here
            self._stop()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        elif self._deadline is None:
            self._count()

    def on_response_complete(self) -> None:
        """Leave the pause between two requests to uvicorn. Count if the body is not whole."""
        super().on_response_complete()
        self._stop()
        if self._is_answered() and not self.transport.is_closing():
            self._count()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count no more. Give the place back."""
        self._stop()
        ConnectionPlaces.of(self.server_state).leave(self)
        super().connection_lost(exc)

    # -- places -----------------------------------------------------------------------------------------------

    def has_shown_token(self) -> bool | None:
        """Return whether a request with a valid token has come; None while the gate has not judged the first one."""
        if not self._has_shown_token and self.scope is not None:
            shown = gate.has_shown_token(self.scope.get("state", {}))
            if shown is None and self._is_asked():
                return None
            self._has_shown_token = shown is True
        return self._has_shown_token

    def end_for_another(self) -> None:
        """End at once. Tell the client that nothing was done, unless an answer to it has begun."""
        self.connections.discard(self)  # the next connection finds a place before the event loop has closed this one
        if not self.transport.is_closing() and not (self._is_asked() and self.cycle.response_started):
            self._write(_NO_PLACE)
        self.transport.abort()  # `close` waits for a client that reads nothing, or does not end TLS

    # -- the parser's calls -----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request, unless one is under way."""
        if self._is_asked():
            raise ValueError("a request has come before the answer to the one before")
        self.has_shown_token()  # uvicorn forgets the request before
        super().on_message_begin()
        self._is_in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header. What follows a body is none."""
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand the request on, with the path as it was sent: the gate judges it."""
        self._undecided_bytes, self._is_in_head, self._is_in_body = 0, False, True
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > HEAD_BYTES_MAX:
            raise ValueError("the head is too long")
        if self.parser.get_http_version() not in ("1.0", "1.1") or self.parser.get_method() == b"CONNECT":
            raise ValueError("this is not HTTP/1.1, or asks for a tunnel")
        if any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in self.headers):
            raise ValueError("the body is compressed on its way")
        if whole := _WHOLE_ADDRESS.fullmatch(self.url):
            # The host in the address counts then, and the header does not (RFC 9112, 3.2.2).
            self.headers[:] = [(b"host", whole[1]), *(one for one in self.headers if one[0] != b"host")]
            self.url = b"/" + whole[2].removeprefix(b"/")
        super().on_headers_complete()
        self.scope["raw_path"], _, self.scope["query_string"] = self.url.partition(b"?")

    def on_body(self, body: bytes) -> None:
        """Hand a part of a body on."""
        self._undecided_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._undecided_bytes, self._is_in_body = 0, False
        super().on_message_complete()

    def _should_upgrade(self) -> bool:
        """Have uvicorn begin nothing for an offer to change the protocol: the request is parsed again without it."""
        return True

    def _parse(self, data: bytes) -> None:
        self._undecided_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._parse_without_offer(data[offer.args[0] :])
        except httptools.HttpParserError:
            self._refuse()
        else:
            if self._undecided_bytes > HEAD_BYTES_MAX:
                self._refuse()

    def _parse_without_offer(self, rest: bytes) -> None:
        """Parse a request once more, as if it had not offered to change the protocol."""
        first = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        headers = [b"%b: %b\r\n" % (name, value) for name, value in self.headers if name != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self._undecided_bytes, self._is_in_body = 0, False
        self._parse(b"".join([first, *headers, b"\r\n", rest]))

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request in the gateway's words, with the headers that each of its answers has."""
        self._end_with(_NO_REQUEST)

    def _end_with(self, answer: Response) -> None:
        """Answer without the application, and end the connection."""
        self._write(answer)
        self.transport.close()

    def _write(self, answer: Response) -> None:
        headers = [b"%b: %b\r\n" % header for header in (*self.server_state.default_headers, *answer.raw_headers)]
        self.transport.write(b"".join([STATUS_LINE[answer.status_code], *headers, b"\r\n", bytes(answer.body)]))

    def _refuse(self) -> None:
        """Answer what is no request by 400, and end the connection. A request that is under way is answered first."""
        if not self._is_asked():
            self.send_400_response("Invalid HTTP request received.")
        elif not self.cycle.more_body:
            self.cycle.keep_alive = False
        elif self.cycle.response_started:
            self.transport.close()
        else:
            self.send_400_response("Invalid HTTP request received.")

    # -- time -------------------------------------------------------------------------------------------------

    def _is_asked(self) -> bool:
        """Return whether a request is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _is_answered(self) -> bool:
        """Return whether a body is under way whose request was answered."""
        return self._is_in_body and self.cycle is not None and self.cycle.response_complete

    def _count(self) -> None:
        self._deadline = self.loop.call_later(self.head_s, self._too_slow)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if self._is_asked() or self.transport.is_closing():
            return
        if self._is_in_head:
            self._end_with(_TOO_SLOW)
        else:
            self.transport.close()


class GatewayServer(uvicorn.Server):
    """A server that ends at SIGTERM and SIGINT. uvicorn raises the signal again, and the process would end within.

    `signal_number`: which signal ended it.
    """

    signal_number: int | None = None
    on_start: Callable[[], object] = staticmethod(lambda: None)
    """Called in the event loop when connections are accepted, and signals are this server's."""
    on_stop: Callable[[], object] = staticmethod(lambda: None)
    """Called in the event loop when the first signal has come."""
    _tells_shortage_from = -math.inf
    """The event loop's time from which on a shortage is logged again."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Note the first signal and end after what is under way; end at once after a second one."""
        before = {one: signal.signal(one, self._note) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and tell it."""
        asyncio.get_running_loop().set_exception_handler(self._on_loop_error)
        await super().startup(sockets)
        if self.started:
            self.on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what is under way. From now on uvicorn logs nothing: it would log what it cuts off with a traceback."""
        uvicorn.server.logger.setLevel("CRITICAL")
        await super().shutdown(sockets)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error of the event loop that no code of this server catches.

        asyncio would log a traceback for each connection that it cannot accept. It tries again after a second.
        """
        error = context.get("exception")
        if not isinstance(error, OSError) or not context["message"].startswith("socket.accept()"):
            loop.default_exception_handler(context)
            return
        ConnectionPlaces.of(self.server_state).end_oldest()  # its descriptor is for the next one
        if loop.time() >= self._tells_shortage_from:
            self._tells_shortage_from = loop.time() + SHORTAGE_TOLD_EACH_S
            faults.logger.warning(
                "The gateway can accept no connection for now: %s. Clients wait. It tries again each second. If it is "
                "open files that are missing, raise their limit (ulimit -n).",
                os.strerror(error.errno or 0),
            )

    def _note(self, number: int, frame: object) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        if self.signal_number is None:
            self.signal_number = number
            asyncio.get_running_loop().call_soon_threadsafe(self.on_stop)
