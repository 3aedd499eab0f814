"""Bodies are read no further than their bounds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

import fsqueue
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


# -- what an error says was done ---------------------------------------------------------------------------------

LINES = {"content-type": "application/x-ndjson"}


@pytest.mark.parametrize(
    "wrong", ["{", '{"payload": 1, "x": 2}', '{"payload": 1, "delay_s": -1}', '{"payload": {"a": 1e999}}']
)
def test_a_wrong_line_is_told_with_what_is_in_the_queue_before_it(
    client: Any, group: fsqueue.Group, wrong: str
) -> None:
    """Of lines without a commit's name those before it are inserted; with one, nothing is."""
    body = '{"payload": 1}\n{"payload": 2}\n' + wrong + "\n"
    for query, new in (("", 2), ("?commit=one", 0)):
        answer = client.post(f"/v1/queues/q/tasks{query}", content=body, headers=LINES)
        error = answer.json()["error"]
        assert (answer.status_code, error["new"]) == (400, new)
        assert ("Nothing was done" in error["message"]) == (not new)
        assert ("Of the tasks in the lines before it, 2 are new in the queue." in error["message"]) == bool(new)
    assert group["q"].status().waiting == 2


@pytest.mark.parametrize(
    ("query", "told"), [("", "The lines before that may be inserted."), ("?commit=x", "Nothing was inserted.")]
)
def test_a_line_that_is_too_long_is_told_with_what_was_done(
    open_gateway: Any, group: fsqueue.Group, query: str, told: str
) -> None:
    gateway = open_gateway(group.path, line_bytes_max=100)
    body = '{"payload": 1}\n' + '{"payload": "' + "x" * 200 + '"}\n'
    answer = gateway.post(f"/v1/queues/q/tasks{query}", content=body, headers=LINES)
    assert (answer.status_code, answer.json()["error"]["message"]) == (413, f"A line has more than 100 bytes. {told}")


def test_a_body_that_ends_too_soon_or_stops_has_done_nothing() -> None:
    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def stopped() -> dict[str, Any]:
        raise HTTPException(408, "The body of the request stopped for 30 s.")

    for receive, status in ((gone, 400), (stopped, 408)):
        request = Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)
        with pytest.raises(HTTPException, match=r"(too soon|for 30 s)\. Nothing was done\.$") as raised:
            asyncio.run(bodies.whole(request, 10))
        assert raised.value.status_code == status


def test_what_cannot_be_undone_is_confirmed_and_what_was_done_before_is_told(client: Any, group: fsqueue.Group) -> None:
    """What docs/serve.md says of `confirm`, of tokens, and of a second bury and cancel."""
    ids = [group["q"].insert(n).id for n in range(2)]
    [task] = client.post("/v1/queues/q/lease", json={}).json()["tasks"]
    assert task["token"].partition("@")[0] == task["id"]
    bury = {"token": task["token"], "reason": "no"}
    assert [client.post("/v1/queues/q/bury", json=bury).status_code for _ in range(2)] == [200, 409]
    [other] = {*ids} - {task["id"]}
    cancelled = [client.post("/v1/queues/q/cancel", json={"ids": [other]}) for _ in range(2)]
    assert [(one.status_code, one.json()["cancelled"]) for one in cancelled] == [(200, 1), (200, 0)]
    assert client.post("/v1/queues/q/purge", json={}).status_code == 400
    assert client.delete("/v1/queues/q?confirm=x").status_code == 400
    assert client.post("/v1/queues/q/purge", json={"confirm": "q"}).status_code == 200
    assert client.delete("/v1/queues/q?confirm=q").status_code == 200
