"""Bodies are read no further than their bounds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from fsqueue.service import bodies

pytestmark = pytest.mark.once


def request_of(parts: list[bytes], *headers: tuple[bytes, bytes]) -> Request:
    """Return a request whose body comes in these parts. What was read is taken from the list."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)


def test_a_body_that_says_that_it_is_too_large_is_not_read() -> None:
    parts = [b"x"] * 5
    with pytest.raises(HTTPException, match="413"):
        asyncio.run(bodies.whole(request_of(parts, (b"content-length", b"11")), 10))
    assert len(parts) == 5


def test_a_body_is_left_at_its_bound() -> None:
    parts = [b"x" * 6] * 5
    with pytest.raises(HTTPException, match="413"):
        asyncio.run(bodies.whole(request_of(parts), 10))
    assert len(parts) == 3


@pytest.mark.parametrize("body", [b"a\n" + b"x" * 11 + b"\nb\n", b"x" * 11])
def test_a_line_is_bounded_wherever_it_stands(body: bytes) -> None:
    async def read() -> list[bytes]:
        return [line async for some in bodies.lines(request_of([body]), 10) for line in some]

    with pytest.raises(HTTPException, match="413"):
        asyncio.run(read())
