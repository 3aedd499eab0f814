"""Slow clients: how long one may take for a body, and for an answer."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fsqueue.service import faults
from fsqueue.service.limits import ServiceLimits


class ClientGone(Exception):
    """The client does not take its answer. It is left."""


class Patience:
    """Bound each wait for the client of a request. The server bounds the wait for the head.

    A body that stops coming is answered by 408. A client that takes no more of its answer is left.
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
