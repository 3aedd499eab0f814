"""What a gateway takes for a request, and how much of one it holds, whatever a client sends."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from fsqueue_cli.serving_protocol import HEAD_BYTES_MAX, BoundedProtocol

from fsqueue.service.gate import Gate, Tokens

pytestmark = pytest.mark.once

HEAD = b"POST /%b HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


class Echo:
    """An application that answers with the body of each request. It answers `/slow` when `go` says so."""

    def __init__(self) -> None:
        self.seen: list[tuple[bytes, bytes]] = []
        """Path and query as they were sent, and the body, of each request that was whole."""
        self.headers: list[tuple[bytes, bytes]] = []
        self.go = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        self.headers = list(scope["headers"])
        self.seen.append((scope["raw_path"] + b"?" + scope["query_string"], body))
        if scope["path"] == "/slow":
            await self.go.wait()
        length = str(len(body)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": body})


async def turns() -> None:
    """Let the server read what was sent."""
    for _ in range(20):
        await asyncio.sleep(0)


def told(
    talk: Callable[[Echo, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]],
    guarded: Callable[[Echo], Any] = lambda echo: echo,
) -> tuple[Echo, bytes]:
    """Let a client talk to a server of its own. Return the application, and what the client returns.

    `guarded`: puts something before the application.
    """

    async def story() -> tuple[Echo, bytes]:
        echo = Echo()
        config = uvicorn.Config(guarded(echo), http=BoundedProtocol, ws="none", log_level="critical", lifespan="off")
        server = uvicorn.Server(config)
        listener = socket.create_server(("localhost", 0))
        running = asyncio.create_task(server.serve(sockets=[listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            found = await talk(echo, reader, writer)
        finally:
            writer.close()
            server.should_exit = True
            await running
        return echo, found

    return asyncio.run(story())


def sent(*parts: bytes) -> tuple[Echo, bytes]:
    """Send parts, each after the one before was read. Return all that comes until the server ends the connection."""

    async def talk(echo: Echo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await turns()
        try:
            return await reader.read()
        except ConnectionError:
            return b""  # the server has ended the connection while more was under way

    return told(talk)


@pytest.mark.parametrize(
    ("address", "path"),
    [
        (b"http://localhost:8750/a%2Fb?c=1", b"/a%2Fb?c=1"), (b"HTTPS://localhost/", b"/?"),
        (b"http://localhost", b"/?"), (b"http://localhost?c", b"/?c"), (b"http://[::1]:8750/a?b=http://x/", b"/a?b=http://x/"),
    ],
)  # fmt: skip
def test_a_request_may_have_a_whole_address_in_place_of_a_path(address: bytes, path: bytes) -> None:
    """A client that takes the gateway for a proxy sends it. The host in it counts, and the header does not."""
    told_host = address.lower().partition(b"://")[2].partition(b"/")[0].partition(b"?")[0]
    for version, offer in ((b"1.1", b""), (b"1.1", H2C), (b"1.0", b"")):
        echo, found = sent(
            b"POST %b HTTP/%b\r\nHost: other\r\nConnection: close\r\nContent-Length: 2\r\n%b\r\nab"
            % (address, version, offer)
        )
        assert found.startswith(b"HTTP/1.1 200")
        assert echo.seen == [(path, b"ab")]
        assert [value for name, value in echo.headers if name == b"host"] == [told_host]


@pytest.mark.parametrize(
    ("address", "refusal"),
    [
        (b"http://evil/", b"WrongHost"),
        (b"http://evil?@localhost/", b"WrongHost"),
        (b"http://localhost@evil/", b"BadReq"),
    ],
)
def test_the_host_of_a_whole_address_is_judged_as_the_header_is(address: bytes, refusal: bytes) -> None:
    async def talk(echo: Echo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % address)
        return await reader.read()

    echo, found = told(talk, lambda echo: Gate(echo, None))
    assert refusal in found
    assert echo.seen == []


@pytest.mark.parametrize(
    "begin",
    [
        b"GET /", b"GET / HTTP/1.1\r\nA", b"GET / HTTP/1.1\r\nA: ", HEAD % b"" + CHUNKED + b"1;",
        HEAD % b"" + CHUNKED + b"1\r\na\r\n0\r\nA: ", HEAD % b"" + CHUNKED + b"0000",
    ],
)  # fmt: skip
def test_a_head_and_what_surrounds_a_body_are_bounded(begin: bytes) -> None:
    """A client that never ends them could have the gateway hold all that it sends."""

    async def talk(echo: Echo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(begin)
        total, ended = 0, asyncio.create_task(reader.read())
        try:
            while not ended.done() and total < 64 * HEAD_BYTES_MAX:
                writer.write(b"0" * 4096)
                total += 4096
                await writer.drain()
                await asyncio.sleep(0)
            found = await ended if total < 64 * HEAD_BYTES_MAX else b"it takes all"
        except ConnectionError:
            found = b""  # the server has ended the connection while this sent more
        return found

    echo, found = told(talk)
    assert found == b"" or found.startswith(b"HTTP/1.1 400")
    assert echo.seen == []


def test_a_head_that_comes_at_once_is_bounded() -> None:
    echo, found = sent(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * (HEAD_BYTES_MAX // 2) + b"\r\n")
    assert found == b"" or found.startswith(b"HTTP/1.1 400")
    assert echo.seen == []


def test_a_request_behind_one_that_is_under_way_is_not_begun() -> None:
    """A client could send any number of them in one go, each with memory of its own, while the first one waits."""

    async def talk(echo: Echo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(HEAD % b"slow" + b"Content-Length: 1\r\n\r\na" + (HEAD % b"b" + b"\r\n") * 1000)
        while not echo.seen:
            await asyncio.sleep(0)
        await turns()
        echo.go.set()
        return await reader.read()

    echo, found = told(talk)
    assert echo.seen == [(b"/slow?", b"a")]
    assert found.startswith(b"HTTP/1.1 200")
    assert found.endswith(b"\r\n\r\na")
    assert found.count(b"HTTP/1.1") == 1


def test_what_is_no_request_behind_one_takes_its_answer_from_nobody() -> None:
    async def talk(echo: Echo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(HEAD % b"slow" + b"Content-Length: 1\r\n\r\na")
        while not echo.seen:
            await asyncio.sleep(0)
        writer.write(b"\0nonsense\r\n\r\n")
        await writer.drain()
        await turns()
        echo.go.set()
        return await reader.read()

    _, found = told(talk)
    assert found.startswith(b"HTTP/1.1 200")
    assert b" 400 " not in found


def test_requests_one_after_the_other_share_a_connection() -> None:
    async def talk(echo: Echo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        found = b""
        for body in (b"a", b"b", b"c"):
            writer.write(HEAD % b"x?y" + b"Content-Length: 1\r\n\r\n" + body)
            found += (await reader.readuntil(b"\r\n\r\n"))[:12] + await reader.readexactly(1)
        return found

    echo, found = told(talk)
    assert found == b"HTTP/1.1 200aHTTP/1.1 200bHTTP/1.1 200c"
    assert [path for path, _ in echo.seen] == [b"/x?y"] * 3


def test_what_follows_a_body_is_no_header() -> None:
    """A proxy passes it on as it is. So it must not tell who has sent the request, nor from where."""
    late = b"Authorization: Bearer stolen\r\nOrigin: http://localhost\r\n"
    echo, found = sent(HEAD % b"" + b"Connection: close\r\n" + CHUNKED + b"1\r\na\r\n0\r\n" + late + b"\r\n")
    assert found.startswith(b"HTTP/1.1 200")
    assert echo.seen == [(b"/?", b"a")]
    assert [name for name, _ in echo.headers] == [b"host", b"connection", b"transfer-encoding"]


@pytest.mark.parametrize(
    "parts",
    [
        [H2C + b"Content-Length: 3\r\n\r\nabc"], [H2C + b"Content-Length: 3\r\n\r\n", b"a", b"bc"],
        [H2C + CHUNKED + b"3\r\nabc\r\n0\r\n\r\n"], [H2C[:30], H2C[30:] + CHUNKED + b"3\r\na", b"bc\r\n0\r\n\r\n"],
    ],
)  # fmt: skip
def test_an_offer_to_change_the_protocol_is_ignored_and_its_body_is_not(parts: list[bytes]) -> None:
    """Java's client makes the offer. Its body was lost, and taken for the next request, without a word."""

    async def talk(echo: Echo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(HEAD % b"one?two")
        found = b""
        for part in parts:
            writer.write(part)
            await writer.drain()
            await turns()
        found += (await reader.readuntil(b"\r\n\r\n"))[:12] + await reader.readexactly(3)
        writer.write(HEAD % b"next" + b"Content-Length: 1\r\n\r\nd")
        return found + (await reader.readuntil(b"\r\n\r\n"))[:12] + await reader.readexactly(1)

    echo, found = told(talk)
    assert found == b"HTTP/1.1 200abcHTTP/1.1 200d"
    assert echo.seen == [(b"/one?two", b"abc"), (b"/next?", b"d")]


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n", b"GET /\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT evil.example:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET / HTTP/1.1\r\nA: b\0c\r\n\r\n",
        HEAD % b"" + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", b"GET / HTTP/1.1\r\n : x\r\n\r\n",
        HEAD % b"" + b"Transfer-Encoding: identity\r\n\r\n", HEAD % b"" + b"Content-Length: 1, 1\r\n\r\na",
        HEAD % b"" + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\na", HEAD % b"" + b"Content-Length: +1\r\n\r\na",
        HEAD % b"" + b"Content-Length: 5\r\n" + CHUNKED + b"0\r\n\r\n", HEAD % b"" + CHUNKED + b"z\r\n",
        HEAD % b"" + CHUNKED + b"1\r\nab\r\n0\r\n\r\n", "GET /ä HTTP/1.1\r\n\r\n".encode(),
    ],
)  # fmt: skip
def test_what_is_no_request_is_answered_by_400_and_begins_nothing(request_: bytes) -> None:
    echo, found = sent(request_ + b"GET /b HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 400")
    assert found.count(b"HTTP/1.1") == 1
    assert echo.seen == []


@pytest.mark.parametrize("path", [b"http://a@evil.example/x", b"ftp://localhost/x", b"/x#y", b"*"])
def test_the_gate_sees_the_path_as_it_was_sent(path: bytes) -> None:
    echo, _ = sent(b"GET " + path + b"?z HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert [seen for seen, _ in echo.seen] in ([path + b"?z"], [])


TOKEN = b"Authorization: Bearer " + b"w" * 20 + b"\r\n"
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def gated(echo: Echo) -> Gate:
    """Let only requests with the token reach an application."""
    return Gate(echo, Tokens({"write": "w" * 20}))


async def answer_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: bytes = TOKEN, path: bytes = b"/a"
) -> bytes:
    """Ask for nothing in particular. Return the answer, head and body."""
    writer.write(b"GET %b HTTP/1.1\r\nHost: localhost\r\n%b\r\n" % (path, headers))
    return await next_answer(reader)


async def next_answer(reader: asyncio.StreamReader) -> bytes:
    """Return the next answer, head and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length: "))
    return head + await reader.readexactly(int(length.partition(b": ")[2]))


def is_told_to_come_again(answer: bytes) -> bool:
    """Return whether an answer says that there is no place, and that nothing was done."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 503 ") or b"\r\nretry-after: 1\r\n" not in head:
        return False
    error = json.loads(body)["error"]
    return (error["type"], error["nothing_done"]) == ("StorageError", True)


def test_connections_beyond_the_bound_are_told_to_come_again_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(BoundedProtocol, "connections_max", 2)
    monkeypatch.setattr(BoundedProtocol, "refused_max", 1)

    async def talk(echo: Echo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        where = writer.get_extra_info("peername")
        second = await asyncio.open_connection(*where)
        for one in ((reader, writer), second):
            assert (await answer_on(*one)).startswith(b"HTTP/1.1 200 ")
        refused = await asyncio.open_connection(*where)
        assert is_told_to_come_again(await answer_on(*refused))
        assert await refused[0].read() == b"", "its connection ends"
        assert (await answer_on(reader, writer)).startswith(b"HTTP/1.1 200 "), "who was there before is not refused"
        waiting = await asyncio.open_connection(*where)  # it takes the last place, and asks for nothing
        await turns()
        last = await asyncio.open_connection(*where)
        assert is_told_to_come_again(await waiting[0].read()), "at once"
        assert is_told_to_come_again(await answer_on(*last))
        second[1].close()
        await second[1].wait_closed()
        await turns()
        again = await asyncio.open_connection(*where)
        found = await answer_on(*again)
        for one in (refused, waiting, last, again):
            one[1].close()
        return found

    assert told(talk, gated)[1].startswith(b"HTTP/1.1 200 ")


FORM = b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 9\r\n\r\ntok"


@pytest.mark.parametrize(
    ("begin", "answered"),
    [
        (b"", b""), (b"GET / HT", b""), (HEAD % b"" + TOKEN, b""),
        (HEAD % b"" + b"Authorization: Bearer x\r\n\r\n", b"401"), (HEAD % b"" + CHUNKED + b"1\r\n", b"401"),
        (HEAD % b"login" + FORM, b""), (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n" + TOKEN + b"\r\n", b"421"),
    ],
)  # fmt: skip
def test_the_oldest_connection_without_a_token_ends_for_a_new_one(
    monkeypatch: pytest.MonkeyPatch, begin: bytes, answered: bytes
) -> None:
    """A client without a token could otherwise hold all places, for 20 s each, and keep out those that have one."""
    monkeypatch.setattr(BoundedProtocol, "connections_max", 4)
    monkeypatch.setattr(BoundedProtocol, "refused_max", 1)

    async def talk(echo: Echo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        where = writer.get_extra_info("peername")
        assert (await answer_on(reader, writer)).startswith(b"HTTP/1.1 200 ")
        strangers: list[Connection] = []
        for _ in range(3):
            strangers.append(await asyncio.open_connection(*where))
            strangers[-1][1].write(begin)
            if answered:
                assert (await next_answer(strangers[-1][0])).startswith(b"HTTP/1.1 " + answered)
            await turns()
        opened = [(reader, writer)]
        for oldest in strangers:
            opened.append(await asyncio.open_connection(*where))
            assert is_told_to_come_again(await oldest[0].read())
            for one in opened:
                assert (await answer_on(*one)).startswith(b"HTTP/1.1 200 ")
        refused = await asyncio.open_connection(*where)
        found = await answer_on(*refused)
        for connection in (*strangers, *opened, refused):
            connection[1].close()
        return found

    assert is_told_to_come_again(told(talk, gated)[1]), "all places are of connections that have shown a token"


class Judging:
    """Asks the gate about each request when `go` says so."""

    def __init__(self, app: Any) -> None:
        self._app, self.has_begun, self.go = app, asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.has_begun.set()
        await self.go.wait()
        await self._app(scope, receive, send)


def test_a_connection_whose_first_request_is_not_judged_yet_does_not_end_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its client would be told that nothing was done, and the request would be done."""
    monkeypatch.setattr(BoundedProtocol, "connections_max", 1)
    made: list[Judging] = []

    def judged_late(echo: Echo) -> Judging:
        made.append(Judging(gated(echo)))
        return made[0]

    async def talk(echo: Echo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(HEAD % b"" + TOKEN + b"Content-Length: 1\r\n\r\na")
        await made[0].has_begun.wait()
        other = await asyncio.open_connection(*writer.get_extra_info("peername"))
        assert is_told_to_come_again(await answer_on(*other))
        other[1].close()
        made[0].go.set()
        return await next_answer(reader)

    echo, found = told(talk, judged_late)
    assert found.startswith(b"HTTP/1.1 200 ")
    assert echo.seen == [(b"/?", b"a")]


def test_a_connection_that_has_shown_a_token_once_is_not_ended_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedProtocol, "connections_max", 1)

    async def talk(echo: Echo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        assert (await answer_on(reader, writer)).startswith(b"HTTP/1.1 200 ")
        assert (await answer_on(reader, writer, b"")).startswith(b"HTTP/1.1 401 ")
        writer.write(b"GET / HT")
        await turns()
        other = await asyncio.open_connection(*writer.get_extra_info("peername"))
        assert is_told_to_come_again(await answer_on(*other))
        other[1].close()
        writer.write(b"TP/1.1\r\nHost: localhost\r\n" + TOKEN + b"\r\n")
        return await next_answer(reader)

    assert told(talk, gated)[1].startswith(b"HTTP/1.1 200 ")
