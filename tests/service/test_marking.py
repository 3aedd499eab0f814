"""Each answer of a gateway has the same headers for a browser, whichever part of the gateway has answered."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPResponse
from typing import Any

import pytest
from fsqueue_cli.serving_protocol import BoundedProtocol

import fsqueue
from fsqueue.client.addresses import address_of
from fsqueue.service import faults
from fsqueue.service.application import HEADERS
from fsqueue.service.gate import Gate, Tokens
from tests.gateways import Serve
from tests.service.conftest import READ, WRITE
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.once

MAY = f"Authorization: Bearer {WRITE}\r\n"
TOKENS = Tokens({"write": WRITE, "read": READ})
FORM = "Content-Type: application/x-www-form-urlencoded\r\n"
COOKIE = f"Cookie: fsqueue_0={TOKENS.cookie(WRITE)}\r\n"


class Asker:
    """Sends requests as they are written to a gateway that serves a group, each on a connection of its own."""

    def __init__(self, address: str, group: fsqueue.Group, patch: pytest.MonkeyPatch, opened: ExitStack) -> None:
        self.group, self.patch = group, patch
        self._path, self._opened = str(address_of(address).socket), opened

    def connect(self) -> socket.socket:
        """Return a connection that stays open until the test ends."""
        made = self._opened.enter_context(socket.socket(socket.AF_UNIX))
        made.settimeout(PATIENCE_S)
        made.connect(self._path)
        return made

    def raw(self, request: bytes) -> HTTPResponse:
        """Send bytes, and return the answer."""
        connection = self.connect()
        with suppress(BrokenPipeError):  # a server without a place for it may have answered and closed already
            connection.sendall(request)
        answer = HTTPResponse(connection)
        answer.begin()
        return answer

    def ask(self, what: str, headers: str = MAY, body: str | None = None, missing: int = 0) -> HTTPResponse:
        """Send a request, of whose body the last `missing` bytes never come."""
        length = "" if body is None else f"Content-Length: {len(body) + missing}\r\n"
        return self.raw(f"{what} HTTP/1.1\r\nHost: localhost\r\n{headers}{length}\r\n{body or ''}".encode())

    def complete(self, end: Callable[[fsqueue.LeasedTask], object]) -> HTTPResponse:
        """Complete a task whose lease has ended in some way."""
        self.group["q"].insert("task")
        [task] = self.group["q"].lease(1)
        end(task)
        return self.ask("POST /v1/queues/q/complete", MAY + JSON, f'{{"tasks":[{{"token":"{task.token}"}}]}}')

    def purged(self) -> HTTPResponse:
        """Complete a task of a queue that the gateway has open, and that was purged."""
        self.group["q"].insert("before")
        assert self.ask("GET /v1/queues/q/status").status == 200
        return self.complete(lambda task: self.group["q"].purge())

    def stopping(self, head: bytes) -> HTTPResponse:
        """Send a part of a head."""
        self.patch.setattr(BoundedProtocol, "head_s", 0.05)
        return self.raw(head)

    def fail(self, target: Any, name: str, error: Exception, what: str = "GET /v1/queues/q/status") -> HTTPResponse:
        """Ask while a method fails."""

        def fails(*_: Any, **__: Any) -> None:
            raise error

        self.patch.setattr(target, name, fails)
        return self.ask(what)

    def beyond(self, refused_max: int) -> HTTPResponse:
        """Return what a connection is told for which there is no place, though it may do everything."""
        self.patch.setattr(BoundedProtocol, "connections_max", 0)
        self.patch.setattr(BoundedProtocol, "refused_max", refused_max)
        return self.ask("GET /v1")


JSON = "Content-Type: application/json\r\n"
HTML = "Accept: text/html\r\n"
ANSWERS: dict[str, tuple[int, Callable[[Asker], HTTPResponse]]] = {
    "a word": (200, lambda asker: asker.ask("GET /healthz")),
    "JSON": (200, lambda asker: asker.ask("GET /v1")),
    "a page": (200, lambda asker: asker.ask("GET /")),
    "a script": (200, lambda asker: asker.ask("GET /page.js")),
    "lines": (200, lambda asker: asker.ask("GET /v1/queues/q/tasks")),
    "events": (200, lambda asker: asker.ask("GET /v1/queues/q/events")),
    "figures": (200, lambda asker: asker.ask("GET /metrics")),
    "a call of taskstore": (200, lambda asker: asker.ask("GET /groups")),
    "an insert": (201, lambda asker: asker.ask("POST /v1/queues/q/tasks", MAY + JSON, '{"payload":1}')),
    "the way to the token": (303, lambda asker: asker.ask("GET /", HTML)),
    "a character of no path": (400, lambda asker: asker.raw(b"GET /\"\x7f HTTP/1.1\r\nHost: localhost\r\n\r\n")),
    "no HTTP": (400, lambda asker: asker.raw(b"nothing\r\n\r\n")),
    "two lengths": (400, lambda asker: asker.ask("POST /v1", MAY + "Transfer-Encoding: chunked\r\n", "")),
    "a wrong field": (400, lambda asker: asker.ask("POST /v1/queues/q/tasks", MAY + JSON, '{"none":1}')),
    "no token": (401, lambda asker: asker.ask("GET /v1", "")),
    "a token that may read": (403, lambda asker: asker.ask("POST /v1", f"Authorization: Bearer {READ}\r\n")),
    "another site": (403, lambda asker: asker.ask("POST /v1", MAY + "Origin: http://evil.example\r\n")),
    "no route": (404, lambda asker: asker.ask("GET /nothing")),
    "no task": (404, lambda asker: asker.ask("GET /v1/queues/q/tasks/01900000000070008000000000000000.0")),
    "a page of no task": (404, lambda asker: asker.ask("GET /task?queue=q&id=01900000000070008000000000000000.0")),
    "another method": (405, lambda asker: asker.ask("DELETE /healthz")),
    "a head that stops": (408, lambda asker: asker.stopping(b"GET /v1 HTTP/1.1\r\nHost: loc")),
    "a body that stops": (408, lambda asker: asker.ask("POST /v1/queues/q/tasks", MAY + JSON, "{", 9)),
    "a form that stops at the gate": (408, lambda asker: asker.ask("POST /act", COOKIE + FORM, "csrf=", 9)),
    "a lost lease": (409, lambda asker: asker.complete(fsqueue.LeasedTask.release)),
    "a purged queue": (410, lambda asker: asker.purged()),
    "a body that is too long": (413, lambda asker: asker.ask("POST /v1/queues/q/tasks", MAY + JSON, "x" * 2_000)),
    "another type": (415, lambda asker: asker.ask("POST /v1/queues/q/tasks", MAY + "Content-Type: x/y\r\n", "{}")),
    "another host": (421, lambda asker: asker.raw(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")),
    "a bug": (500, lambda asker: asker.fail(fsqueue.GroupQueue, "status", RuntimeError())),
    "a bug of the gate": (500, lambda asker: asker.fail(Gate, "_refusal", RuntimeError())),
    "a disk that fails": (503, lambda asker: asker.fail(fsqueue.GroupQueue, "status", fsqueue.StorageError())),
    "too many requests": (503, lambda asker: asker.fail(fsqueue.GroupQueue, "status", faults.Overloaded())),
    "no place": (503, lambda asker: asker.beyond(9)),
    "no place to be told so": (503, lambda asker: asker.beyond(0)),
    "a full disk": (507, lambda asker: asker.fail(fsqueue.GroupQueue, "status", fsqueue.StorageFull())),
}  # fmt: skip


@pytest.fixture
def asker(serve: Serve, group: fsqueue.Group, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asker]:
    """A gateway with tokens and low limits."""
    with ExitStack() as opened:
        yield Asker(serve(group.path, TOKENS, body_s=0.05, body_bytes_max=1_000), group, monkeypatch, opened)


@pytest.mark.parametrize("answer", ANSWERS)
def test_each_answer_has_the_same_headers(asker: Asker, answer: str) -> None:
    status, ask = ANSWERS[answer]
    told = ask(asker)
    assert told.status == status
    headers = [name.lower() for name, _ in told.getheaders()]
    assert sorted(name for name in headers if name in (*HEADERS, "date")) == sorted((*HEADERS, "date"))
    allowed = {"cache-control": ("no-store", "no-cache") if answer == "a script" else ("no-store",)}
    for name, value in HEADERS.items():
        if name == "content-security-policy":
            assert "default-src 'none'" in str(told.getheader(name))
        else:
            assert told.getheader(name) in allowed.get(name, (value,)), name
    if status >= 400 and not answer.startswith("a page"):
        assert told.getheader("content-type") == "application/json"
        assert told.getheader("content-security-policy") == HEADERS["content-security-policy"]


def test_an_answer_of_each_status_is_among_them() -> None:
    """Each that an error of fsqueue is told by, and each in the table of statuses."""
    assert {status for status, _ in ANSWERS.values()} >= {
        200, 400, 401, 403, 404, 405, 408, 409, 410, 413, 500, 503, *faults.STATUS.values(),
    }  # fmt: skip
