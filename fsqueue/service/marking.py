"""What each answer of a gateway says to a browser, whichever part of the gateway has made the answer."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
}
"""What each answer says to a browser, unless its route says otherwise."""


class Marking:
    """Give each answer of `app` the headers that it lacks. Nothing that answers may stand outside of this."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on the request, and mark its answer."""

        async def marking(message: Message) -> None:
            if message["type"] == "http.response.start":
                _mark(MutableHeaders(raw=message.setdefault("headers", [])))
            await send(message)

        await self._app(scope, receive, marking)


def marked(answer: Response) -> Response:
    """Return an answer that the server gives without the application, with the headers that it lacks."""
    _mark(answer.headers)
    return answer


def _mark(headers: MutableHeaders) -> None:
    for name, value in HEADERS.items():
        headers.setdefault(name, value)
