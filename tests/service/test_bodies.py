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


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    "body", [b"", b"a", b"a\n", b"\n\na\nbcd\n \nefghi", b"abcdefghij" * 30 + b"\n" + b"k" * 300 + b"\nl"]
)
def test_lines_are_whole_wherever_parts_end(body: bytes, size: int) -> None:
    async def read() -> list[bytes]:
        parts = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
        return [line async for some in bodies.lines(request_of(parts), 400) for line in some]

    assert asyncio.run(read()) == [line for line in body.split(b"\n") if line.strip()]


def test_a_line_of_very_many_parts_is_joined_once() -> None:
    """A million parts: joined to what has come before one by one, they would be copied half a million times each."""

    async def read() -> list[bytes]:
        parts = [b"x"] * 1_000_000
        parts.reverse()  # so that taking one from the list is cheap
        request = Request(
            {"type": "http", "method": "POST", "path": "/", "headers": ()},
            lambda: _received({"type": "http.request", "body": parts.pop(), "more_body": bool(parts)}),
        )
        return [line async for some in bodies.lines(request, 2_000_000) for line in some]

    assert asyncio.run(read()) == [b"x" * 1_000_000]


async def _received(message: dict[str, Any]) -> dict[str, Any]:
    return message
