"""Who may: tokens, the name of the host, forged requests, what a browser is told."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

import fsqueue
from fsqueue.service import application
from fsqueue.service.application import ClientTimeouts
from fsqueue.service.gate import Gate, Tokens
from fsqueue.service.limits import ServiceLimits
from tests.service.conftest import READ, WRITE, Open

pytestmark = pytest.mark.once

BASIC = "Basic " + base64.b64encode(f"x:{WRITE}".encode()).decode()
ANY = "/v1/nothing"
"""A path behind the gate. Without a route it is not found: who gets that far has passed."""


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (f"Bearer {WRITE}", 404), (f"bearer {WRITE}", 404), (f"Bearer {READ}", 404), (None, 401), ("", 401),
        ("Bearer", 401), (f"Bearer {WRITE}x", 401), (f"Basic {WRITE}", 401), (WRITE, 401), ("Bearer \xff", 401),
    ],
)  # fmt: skip
def test_a_token_is_needed(group: fsqueue.Group, open_gateway: Open, given: str | None, status: int) -> None:
    client = open_gateway(group.path, token=None)
    headers = {} if given is None else {"authorization": given.encode("latin-1")}
    answer = client.get(ANY, headers=headers)
    assert answer.status_code == status
    assert ("www-authenticate" in answer.headers) == (status == 401)


def test_without_a_token_there_is_the_way_in_and_the_word_that_it_lives(
    group: fsqueue.Group, open_gateway: Open
) -> None:
    client = open_gateway(group.path, token=None)
    assert client.get("/healthz").text == "ok\n"
    assert client.get("/login").status_code == 200
    assert client.get("/login/../v1").status_code == 401
    to_a_page = client.get(ANY, headers={"accept": "text/html,*/*"})
    assert (to_a_page.status_code, to_a_page.headers["location"]) == (303, "../login")


@pytest.mark.parametrize("how", ["a read-only token", "a read-only gateway"])
def test_who_may_only_read_changes_nothing(group: fsqueue.Group, open_gateway: Open, how: str) -> None:
    client = open_gateway(group.path, READ) if "token" in how else open_gateway(group.path, read_only=True)
    assert client.get(ANY).status_code == 404
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        answer = client.request(method, ANY)
        assert (answer.status_code, answer.json()["error"]["type"]) == (403, "ReadOnly")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 404), ("LOCALHOST:99", 404), ("127.0.0.1:8750", 404), ("[::1]:8750", 404), ("node7:1", 404),
        ("evil.example", 421), ("localhost.evil.example", 421), ("", 421), ("[evil]", 421), ("node70", 421),
    ],
)  # fmt: skip
def test_a_strangers_name_for_this_host_leads_nowhere(
    group: fsqueue.Group, open_gateway: Open, host: str, status: int
) -> None:
    client = open_gateway(group.path, hosts=("node7",))
    assert client.get(ANY, headers={"host": host}).status_code == status
    assert client.get("/healthz", headers={"host": host}).status_code == (200 if status == 404 else 421)


@pytest.mark.parametrize("tokens", [True, False])
def test_another_sites_page_changes_nothing(group: fsqueue.Group, open_gateway: Open, tokens: bool) -> None:
    client = open_gateway(group.path, tokens=tokens)
    own = {"origin": "http://localhost:8750", "sec-fetch-site": "same-origin"}
    assert client.post(ANY, headers=own).status_code == 404
    for forged in (
        {"origin": "http://localhost:9000"}, {"origin": "null"}, {"origin": "http://["}, {"origin": "https://evil.example"},
        {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"},
    ):  # fmt: skip
        answer = client.post(ANY, headers=forged)
        assert (answer.status_code, answer.json()["error"]["type"]) == (403, "Forged")


def logged_in(client: TestClient, token: str = WRITE) -> str:
    """Log a browser in. Return its token against forged requests."""
    assert client.post("/login", data={"token": token}).status_code == 303
    tokens = Tokens({"write": WRITE, "read": READ})
    caller = tokens.caller(client.cookies["fsqueue_8750"])
    assert caller is not None
    return caller.csrf


def test_a_browser_logs_in_by_the_token_and_shows_each_form_to_be_its_own(
    group: fsqueue.Group, open_gateway: Open
) -> None:
    client = open_gateway(group.path, token=None)
    csrf = logged_in(client)
    assert client.cookies["fsqueue_8750"] != WRITE
    assert client.get(ANY).status_code == 404
    assert client.post(ANY).status_code == 403
    assert client.post(ANY, headers={"x-csrf-token": "other"}).status_code == 403
    assert client.post(ANY, data={"csrf": "other"}).status_code == 403
    assert client.post(ANY, data={"csrf": csrf, "more": "x" * (64 << 10)}).status_code == 403
    assert client.post(ANY, data={"csrf": csrf}).status_code == 404
    assert client.post(ANY, headers={"x-csrf-token": csrf}).status_code == 404


def test_a_cookie_says_only_as_much_as_its_token(group: fsqueue.Group, open_gateway: Open) -> None:
    client = open_gateway(group.path, token=None)
    csrf = logged_in(client, READ)
    assert client.get(ANY).status_code == 404
    assert client.post(ANY, headers={"x-csrf-token": csrf}).status_code == 403
    # The cookie is no token, and a token no cookie.
    cookie = client.cookies["fsqueue_8750"]
    client.cookies.clear()
    assert client.get(ANY, headers={"authorization": f"Bearer {cookie}"}).status_code == 401
    assert client.get(ANY, headers={"cookie": f"fsqueue_8750={WRITE}"}).status_code == 401


def test_the_cookie_is_kept_from_scripts_and_other_sites(group: fsqueue.Group, open_gateway: Open) -> None:
    said = open_gateway(group.path, token=None).post("/login", data={"token": READ}).headers["set-cookie"].lower()
    assert "httponly" in said
    assert "samesite=strict" in said
    assert "path=" not in said, "below a proxy's prefix it is for that prefix"


@pytest.mark.parametrize(
    "body", [b"token=wrong", b"", b"\xff\xfe", b"&".join([b"a=1"] * 50), b"token=" + b"x" * 70_000]
)
def test_what_is_no_token_logs_nobody_in(group: fsqueue.Group, open_gateway: Open, body: bytes) -> None:
    answer = open_gateway(group.path, token=None).post("/login", content=body)
    assert answer.status_code in (403, 413)
    assert "set-cookie" not in answer.headers


def test_a_bug_tells_a_client_nothing(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("the secret insides")

    monkeypatch.setattr("fsqueue.service.login.html", fails)
    answer = client.get("/login")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.json()["error"]["type"] == "InternalError"


def asked(app: Any, messages: list[dict[str, Any]], scope: dict[str, Any]) -> list[dict[str, Any]]:
    """Ask an application directly. A client that has sent all of its messages sends nothing more."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop(0)
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent


@pytest.mark.parametrize("kind", [b"application/json", b"application/x-www-form-urlencoded"])
def test_a_body_that_stops_coming_is_not_waited_for(kind: bytes) -> None:
    tokens = Tokens({"write": WRITE})
    app = ClientTimeouts(Gate(Starlette(), tokens), ServiceLimits(body_s=0.01))
    headers = [(b"host", b"localhost"), (b"content-type", kind)]
    headers.append((b"cookie", b"fsqueue_8750=" + tokens.cookie(WRITE).encode()))
    scope = {"type": "http", "method": "POST", "path": ANY, "headers": headers, "server": ("localhost", 8750)}
    sent = asked(app, [{"type": "http.request", "body": b"csrf=", "more_body": True}], scope)
    assert sent[0]["status"] == (408 if b"form" in kind else 403)
    if b"form" in kind:
        message = json.loads(sent[1]["body"])["error"]["message"]
        assert message == "The body of the request stopped for 0.01 s. Nothing was done."


async def inside(scope: Any, receive: Any, send: Any) -> None:
    """Stand behind the gate, and answer each request that it lets through."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


def get(raw_path: bytes, *headers: tuple[bytes, bytes]) -> tuple[int, bytes]:
    """Ask a gate without tokens. Return the status and the body."""
    scope = {
        "type": "http", "method": "GET", "path": "/decoded", "raw_path": raw_path, "server": ("localhost", 8750),
        "headers": headers or [(b"host", b"localhost")],
    }  # fmt: skip
    start, *bodies = asked(Gate(inside, None), [], scope)
    return start["status"], b"".join(one.get("body", b"") for one in bodies)


@pytest.mark.parametrize(
    "path", [b"http://evil.example/v1", b"*", b"v1", b"/a b", b"/a\nb", b"/\x00", b"/\x7f", b"/\xe4"]
)
def test_a_path_has_no_other_characters_than_those_that_stand_in_one(path: bytes) -> None:
    assert get(path)[0] == 400


def test_routes_see_the_path_as_it_was_sent() -> None:
    """A name with a "/" in it would be two segments otherwise, and could lead to another route."""
    assert get(b"/v1/queues/a%2Fb%2e%2e") == (200, b"/v1/queues/a%2Fb%2e%2e")


@pytest.mark.parametrize("hosts", [[], [b"localhost", b"localhost"], [b"localhost", b"evil.example"]])
def test_a_request_names_one_host(hosts: list[bytes]) -> None:
    """A proxy may have gone by the other one."""
    headers = [(b"accept", b"*/*"), *((b"host", host) for host in hosts)]
    assert get(b"/", *headers)[0] == 421


def test_a_body_has_one_length() -> None:
    headers = [(b"host", b"localhost"), (b"content-length", b"5"), (b"transfer-encoding", b"chunked")]
    assert get(b"/", *headers)[0] == 400


def test_a_form_is_read_no_further_than_its_bound() -> None:
    tokens = Tokens({"write": WRITE})
    headers = [(b"host", b"localhost"), (b"content-type", b"application/x-www-form-urlencoded")]
    headers.append((b"cookie", b"fsqueue_8750=" + tokens.cookie(WRITE).encode()))
    scope = {"type": "http", "method": "POST", "path": ANY, "headers": headers, "server": ("localhost", 8750)}
    parts = [{"type": "http.request", "body": b"x" * (16 << 10), "more_body": n < 99} for n in range(100)]
    sent = asked(Gate(Starlette(), tokens), parts, scope)
    assert sent[0]["status"] == 403
    assert len(parts) == 100 - 5, "five parts are more than 64 KiB"


def test_a_form_that_breaks_off_is_no_bug(group: fsqueue.Group) -> None:
    """A client without a token could fill the log with tracebacks otherwise."""
    app = application.application(application.gateway(group.path, Tokens({"write": WRITE})))
    scope = {
        "type": "http", "method": "POST", "path": "/login", "headers": [(b"host", b"localhost")],
        "query_string": b"", "server": ("localhost", 8750), "scheme": "http",
    }  # fmt: skip
    sent = asked(
        app, [{"type": "http.request", "body": b"token=", "more_body": True}, {"type": "http.disconnect"}], scope
    )
    assert sent[0]["status"] == 400


def test_what_speaks_websocket_is_sent_away() -> None:
    scope = {"type": "websocket", "path": "/", "headers": []}
    assert asked(Gate(Starlette(), None), [], scope) == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize(
    ("path", "login"), [("/", "login"), ("/queue?name=q", "login"), ("/v1/queues/a", "../../login")]
)
def test_the_way_to_the_token_stays_below_a_proxys_prefix(
    group: fsqueue.Group, open_gateway: Open, path: str, login: str
) -> None:
    answer = open_gateway(group.path, token=None).get(path, headers={"accept": "text/html"})
    assert (answer.status_code, answer.headers["location"]) == (303, login)


def test_a_prefix_that_a_proxy_leaves_is_removed_and_what_only_begins_like_it_is_not(
    group: fsqueue.Group, open_gateway: Open
) -> None:
    client = open_gateway(group.path, root_path="/node/a.b")
    assert client.get("/node/a.b/v1").json()["serves"] == "group"
    assert client.get("/v1").json()["serves"] == "group", "a direct request has no prefix"
    assert client.get("/node/a.bc/v1").status_code == 404
    assert client.get("/node/aXb/v1").status_code == 404
    to_slash = client.get("/node/a.b")
    assert (to_slash.status_code, to_slash.headers["location"]) == (308, "a.b/")
    closed = open_gateway(group.path, token=None, root_path="/node/a.b")
    for path in ("/node/a.b/v1", "/node/a.b/v1/queues/q/tasks", "/node/a.b//v1"):
        assert closed.get(path).status_code == 401, path
    assert closed.get("/node/a.b/group", headers={"authorization": BASIC}).status_code == 200, "taskstore's paths"
