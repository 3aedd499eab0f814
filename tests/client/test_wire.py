"""What a client does while a gateway is away, and where it looks for one."""

from __future__ import annotations

import http.client
import http.server
import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from multiprocessing import reduction
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import fsqueue
from fsqueue import FsqueueError, Group, InvalidArgument, RemoteGroup, RemoteQueue, Status, StorageError
from fsqueue.client import wire
from fsqueue.client.addresses import address_of, reached
from tests.client.test_remote_queue import answering
from tests.gateways import Serve, gateways
from tests.house.source import TOP
from tests.proxies import prefixed
from tests.test_fork_and_threads import forked
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once


class Away:
    """A gateway whose socket can be moved away: whoever connects is refused, as by a host without a gateway."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._at = Path(unquote(address.removeprefix("http+unix://")))
        self._elsewhere = self._at.with_suffix(".away")

    def begin(self, *queues: Any) -> None:
        """Move the socket away, and end the connections that these queues have."""
        self._at.rename(self._elsewhere)
        for queue in queues:
            queue.close()

    def end(self) -> None:
        """Move the socket back."""
        self._elsewhere.rename(self._at)


@pytest.fixture
def away(group: Group, serve: Serve) -> Away:
    return Away(serve(group.path))


def test_who_is_refused_is_told_that_nothing_was_done(group: Group, away: Away) -> None:
    queue = fsqueue.connect(f"{away.address}/q", patience_s=0)
    assert isinstance(queue, RemoteQueue)
    queue.insert(1)
    [task] = queue.lease()
    away.begin(queue)
    acts: list[Callable[[], object]] = [
        lambda: queue.insert(2), lambda: queue.insert(2, key="k"), lambda: queue.insert_many([2]), queue.lease,
        task.complete, task.release, lambda: task.fail("x"), queue.status, lambda: list(queue.tasks()), queue.purge,
    ]  # fmt: skip
    for act in acts:
        with pytest.raises(StorageError, match=r"cannot be reached .* Nothing was done") as refused:
            act()
        assert refused.value.is_exact
        assert "unknown" not in str(refused.value)
    with pytest.raises(StorageError) as insert:
        queue.insert(2)
    assert (insert.value.inserted, insert.value.new) == (0, 0)
    assert group["q"].status() == Status(leased=1)


def test_every_verb_waits_for_a_gateway_that_refuses_and_happens_once(group: Group, away: Away) -> None:
    gateway = fsqueue.connect(away.address)
    assert isinstance(gateway, RemoteGroup)
    queue = gateway["q"]
    read = []

    def payloads() -> Any:
        for number in range(3):
            read.append(number)
            yield number

    def update() -> None:
        with gateway.update() as made:
            made.insert("q", "in an update")

    acts: list[Callable[[], object]] = [
        lambda: queue.insert("alone"), lambda: queue.insert_many(payloads()), update, lambda: queue.lease(5),
        lambda: list(queue.tasks()), queue.release_all,
    ]  # fmt: skip
    for act in acts:
        away.begin(queue)
        timer = threading.Timer(0.1, away.end)
        timer.start()
        act()
        timer.join()
    assert read == [0, 1, 2], "no line was read before there was somebody to send it to"
    assert group["q"].status() == Status(waiting=5)


def test_a_loop_goes_on_after_an_answer_was_lost(group: Group, away: Away) -> None:
    """What an answer brought that was lost comes back when its lease runs out."""
    lost = [0]

    def answer(path: str) -> tuple[int, bytes]:
        if path == "/v1":
            return 200, b'{"service": "fsqueue", "queue": "q"}'
        if path.endswith("/drained"):
            return 200, b'{"drained": true}'
        lost[0] += 1
        return (502, b"<html>") if lost[0] < 3 else (200, b'{"tasks": []}')

    with answering(answer) as url:
        queue = fsqueue.connect(url)
        assert isinstance(queue, RemoteQueue)
        assert list(queue.poll()) == []
        assert lost == [3]
        lost[0] = 0
        with pytest.raises(StorageError, match=r"502.*is unknown"):  # a caller of its own decides itself
            queue.lease()


def test_an_insert_is_not_repeated_if_it_may_have_been_done() -> None:
    asked = []

    def answer(path: str) -> tuple[int, bytes]:
        asked.append(path)
        return (200, b'{"service": "fsqueue", "queue": "q"}') if path == "/v1" else (502, b"<html>Bad Gateway")

    with answering(answer) as url:
        queue = fsqueue.connect(url)
        assert isinstance(queue, RemoteQueue)
        for act in (lambda: queue.insert(1), lambda: queue.insert_many([1])):
            with pytest.raises(StorageError) as unknown:
                act()
            assert not unknown.value.is_exact
    assert len(asked) == 3


def test_a_connection_that_the_gateway_has_closed_is_made_anew_before_anything_is_sent() -> None:
    """A gateway ends, and closes connections that are idle. The next insert would have an unknown outcome."""
    said = json.dumps({"service": "fsqueue", "queue": "q", "id": "0", "inserted": True}).encode()
    requests = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for _ in range(3):
                connection, _ = listener.accept()
                with connection, connection.makefile("rb") as request:
                    requests.append(request.readline().split()[1])
                    headers = http.client.parse_headers(request)
                    request.read(int(headers.get("Content-Length", 0)))  # what is not read makes close a reset
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said))

        thread = threading.Thread(target=answer)
        thread.start()
        queue = fsqueue.connect(f"http://127.0.0.1:{listener.getsockname()[1]}")
        assert isinstance(queue, RemoteQueue)
        for _ in range(2):
            kept = queue._wire._kept.connection
            assert kept is not None
            assert kept.sock.recv(1, socket.MSG_PEEK) == b"", "the gateway's end has come"
            assert queue.insert(1).inserted
        thread.join()
    assert requests == [b"/v1", b"/v1/queues/q/tasks", b"/v1/queues/q/tasks"]


def conflict(**named: Any) -> bytes:
    return json.dumps({"error": {"type": "UpdateConflict", "message": "...", **named}}).encode()


def test_an_update_is_asked_again_only_while_others_are_in_its_way() -> None:
    busy = [["insert", "q", "", "busy"]]
    answers = [
        (409, conflict(busy=busy)),
        (409, conflict(busy=busy)),
        (200, b'{"inserted": [{"id": "a", "inserted": true, "version": 7}], "renewed": [], "replaced": []}'),
        (409, conflict(busy=busy, owned=[["complete", "q", "a", "taken over"]])),
        (409, conflict(busy=busy)),
    ]

    def answer(path: str) -> tuple[int, bytes]:
        return (200, b'{"service": "fsqueue", "queue": null}') if path == "/v1" else answers.pop(0)

    with answering(answer) as url:
        group = fsqueue.connect(url)
        assert isinstance(group, RemoteGroup)
        with group.update() as update:
            update.insert("q", 1)
        assert (update.versions, len(answers)) == ({"a": 7}, 2)
        for timeout_s in (60, 0):
            again = group.update()
            again.insert("q", 1)
            with pytest.raises(fsqueue.UpdateConflict):
                again.apply(timeout_s)
    assert answers == []


def test_an_update_whose_answer_lacks_something_is_a_sentence() -> None:
    def answer(path: str) -> tuple[int, bytes]:
        about = b'{"service": "fsqueue", "queue": null}'
        return 200, about if path == "/v1" else b'{"inserted": [], "renewed": [], "replaced": []}'

    with answering(answer) as url:
        group = fsqueue.connect(url)
        assert isinstance(group, RemoteGroup)
        update = group.update()
        update.insert("q", 1)
        with pytest.raises(StorageError, match="lacks some of 'inserted'"):
            update.apply()


# -- where a gateway is ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix", "queue"),
    [
        ("http://a", "a", 80, "", None), ("https://a/", "a", 443, "", None), ("http://a:8750/q", "a", 8750, "", "q"),
        ("http://a/x/", "a", 80, "/x", None), ("http://a/x/y/q%2F1", "a", 80, "/x/y", "q/1"),
        ("https://[::1]:5/x%20y/", "::1", 5, "/x%20y", None),
    ],
)  # fmt: skip
def test_an_address_says_what_is_meant(url: str, host: str, port: int, prefix: str, queue: str | None) -> None:
    found = address_of(url)
    assert (found.host, found.port, found.prefix, found.queue) == (host, port, prefix, queue)
    assert address_of(f"{found.url}/{'' if queue is None else queue.replace('/', '%2F')}") == found


@pytest.mark.parametrize("url", ["http+unix://run/fsqueue.sock", "http+unix://fsqueue.sock", "http+unix://run%2Fs/q"])
def test_a_socket_is_named_by_its_whole_path(url: str) -> None:
    with pytest.raises(
        InvalidArgument, match=r"is no absolute path of a socket. Is each slash of it percent-encoded\?"
    ):
        fsqueue.connect(url, patience_s=0)


@pytest.mark.parametrize("prefix", ["/crawl", "/portal/crawl"])
def test_the_prefix_of_a_gateway_is_no_queue(group: Group, tmp_path: Path, prefix: str) -> None:
    """Asked without a proxy before it, the gateway also answers above its prefix."""
    with gateways(tmp_path) as start:
        address = start(group.path, root_path=prefix)
        for url in (f"{address}{prefix}", f"{address}{prefix}/"):
            gateway = fsqueue.connect(url)
            assert isinstance(gateway, RemoteGroup)
            assert gateway.url == f"{address}{prefix}/"
        queue = fsqueue.connect(f"{address}{prefix}/crawl")
        assert isinstance(queue, RemoteQueue)
        queue.insert(1)
        assert queue.status() == group["crawl"].status() == Status(waiting=1)


LOGIN = b"\n<html>\x1b]0;log in\x07<title>Log in</title>"


@pytest.mark.parametrize(("status", "body"), [(200, LOGIN), (200, LOGIN[1:]), (302, b"")])
def test_a_login_page_is_no_gateway_whatever_is_asked(status: int, body: bytes) -> None:
    """It may come after the first answer: a session has ended. A list is no gateway's, and has not broken off."""

    def answer(path: str) -> tuple[int, bytes]:
        return (200, b'{"service": "fsqueue", "queue": "q"}') if path == "/v1" else (status, body)

    with answering(answer) as url:
        queue = fsqueue.connect(url, patience_s=0)
        assert isinstance(queue, RemoteQueue)
        asks: list[Callable[[], object]] = [queue.status, lambda: list(queue.tasks()), lambda: list(queue.dead())]
        for ask in asks:
            with pytest.raises(StorageError, match=r"is no gateway of fsqueue|may want you to log in") as raised:
                ask()
            assert str(raised.value).isprintable()


def test_an_answer_with_none_of_the_fields_is_no_status() -> None:
    """All fields of a status have defaults: it would say that the queue is empty."""
    with answering(lambda path: (200, b'{"service": "fsqueue", "queue": "q"}' if path == "/v1" else b"{}")) as url:
        queue = fsqueue.connect(url, patience_s=0)
        assert isinstance(queue, RemoteQueue)
        asks: list[Callable[[], object]] = [queue.status, queue.gc, queue.timeline, queue.wait, queue.activity]
        for ask in asks:
            with pytest.raises(StorageError, match=r"lacks .* is no gateway of fsqueue: look at the address"):
                ask()


def test_an_error_spells_out_what_would_move_a_cursor() -> None:
    """Another server has sent it, and it is shown on a terminal."""
    colour = json.dumps({"error": {"type": "InvalidArgument", "message": "\x1b[31mred\nline \x9b0m"}}).encode()

    def answer(path: str) -> tuple[int, bytes]:
        return 400, colour

    with answering(answer) as url, pytest.raises(InvalidArgument) as told:
        fsqueue.connect(url, patience_s=0)
    assert str(told.value) == "\\x1b[31mred\nline \\x9b0m"
    with socket.create_server(("localhost", 0)) as server:
        serving = threading.Thread(target=say, args=(server, b"\x1b[31m\x07 200\r\n\r\n"))
        serving.start()
        with pytest.raises(StorageError, match="broken off") as raised:
            fsqueue.connect(f"http://localhost:{server.getsockname()[1]}", patience_s=0)
        serving.join()
    assert r"\x1b[31m\x07" in str(raised.value)
    assert str(raised.value).isprintable()


def say(server: socket.socket, answer: bytes) -> None:
    """Answer one request with these bytes."""
    connection, _ = server.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(answer)


def test_a_gateway_below_a_path_is_used_as_any_other(group: Group, serve: Serve) -> None:
    with prefixed(serve(group.path), "/portal/my%20crawl") as at:
        queue = fsqueue.connect(f"{at}/a%2Fb")
        assert isinstance(queue, RemoteQueue)
        assert (queue.name, queue.url) == ("a/b", f"{at}/a%2Fb")
        queue.insert_many(range(3))
        assert sorted(info.payload for info in queue.tasks()) == [0, 1, 2]
        for task in reduction.ForkingPickler.loads(reduction.ForkingPickler.dumps(queue)).poll():
            with task:
                pass
        for address in (f"{at}/", at):  # the last segment is no queue's name if there is no gateway above it
            found = fsqueue.connect(address)
            assert isinstance(found, RemoteGroup)
            assert found.url == f"{at}/"
            with found.update() as update:
                update.insert(found["next"], 1)
        assert [one.url for one in found.queues()] == [f"{at}/next"]
        assert fsqueue.connect(found["a/b"].url) == queue
        assert group["a/b"].status() == Status(completed=3)
        with pytest.raises(StorageError, match="answered 404"):
            fsqueue.connect(f"{at.removesuffix('/portal/my%20crawl')}/elsewhere/q")


@pytest.mark.parametrize("more", ["/a/b/c", "/a/b", "/a/"])
def test_an_address_with_too_many_parts_is_told_what_one_looks_like(group: Group, serve: Serve, more: str) -> None:
    with pytest.raises(StorageError, match=r"another path\. The address of a gateway looks like http://") as refused:
        fsqueue.connect(f"{serve(group.path)}{more}")
    assert "a/b is a%2Fb" in str(refused.value)


def test_a_gateway_above_is_asked_first(group: Group, serve: Serve) -> None:
    found = fsqueue.connect(f"{serve(group.path)}/crawl")
    assert isinstance(found, RemoteQueue)
    assert found.name == "crawl"


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_localhost_is_either_loopback_address(family: socket.AddressFamily, host: str) -> None:
    """Many hosts know one of the two by that name, and the gateway listens on the other one."""

    class Gateway(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hosts.append(self.headers["Host"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"service": "fsqueue", "queue": "q"}')

        def log_message(self, *told: object) -> None:
            pass

    class Server(http.server.HTTPServer):
        address_family = family

    hosts: list[str] = []
    with Server((host, 0), Gateway) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert isinstance(fsqueue.connect(f"http://localhost:{server.server_port}/q"), RemoteQueue)
        thread.join()
    assert hosts == [f"localhost:{server.server_port}"]


@pytest.mark.parametrize("known", ["127.0.0.1", "::1"])
def test_localhost_is_both_addresses_whichever_a_host_knows(known: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listening = "::1" if known == "127.0.0.1" else "127.0.0.1"
    family = socket.AF_INET6 if ":" in listening else socket.AF_INET
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *more, **named: resolve(known if host == "localhost" else host, *more, **named),
    )
    with socket.create_server((listening, 0), family=family) as server:
        port = server.getsockname()[1]
        with closing(reached("localhost", port, 5)) as made:
            assert made.getpeername()[:2] == (listening, port)
        with pytest.raises(OSError, match="refused"):
            reached(known, port, 5)


def test_a_child_that_was_forked_within_a_request_leaves_the_answer_to_its_parent(
    group: Group, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler may fork while a request is under way."""
    queue = fsqueue.connect(f"{serve(group.path)}/q")
    assert isinstance(queue, RemoteQueue)
    pids: list[int] = []
    respond = wire.http.client.HTTPConnection.getresponse

    def forking(connection: Any) -> Any:
        if not pids:
            pids.append(os.fork())
        return respond(connection)

    monkeypatch.setattr(wire.http.client.HTTPConnection, "getresponse", forking)
    code = 9
    try:
        assert queue.insert(1).inserted
        code = 1
    except fsqueue.ForkedChild:
        code = 7
    finally:
        if pids == [0]:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]) == 7
    assert queue.status() == group["q"].status() == Status(waiting=1)


def test_a_child_that_was_forked_while_its_parent_waits_for_an_answer_takes_nothing_of_it(
    group: Group, serve: Serve
) -> None:
    """It neither reads the answer nor waits for one."""
    queue, me = fsqueue.connect(f"{serve(group.path)}/q"), threading.get_ident()
    assert isinstance(queue, RemoteQueue)
    queue.insert("first")
    queue.lease()
    statuses: list[int] = []
    is_child = False

    def forks(*_: object) -> None:
        nonlocal is_child
        status = forked()
        if status < 0:
            is_child = True
        statuses.append(status)

    def signal_and_insert() -> None:
        until(lambda: sys._current_frames()[me].f_code.co_name == "readinto", "a thread that waits for an answer")
        signal.pthread_kill(me, signal.SIGUSR1)
        until(lambda: statuses, "the end of the child")
        group["q"].insert("second")

    before, code = signal.signal(signal.SIGUSR1, forks), 1
    helper = threading.Thread(target=signal_and_insert)
    helper.start()
    try:
        [task] = queue.lease(wait_s=PATIENCE_S)
    except fsqueue.ForkedChild:
        code = 7
    finally:
        if is_child:
            os._exit(code)
        signal.signal(signal.SIGUSR1, before)
    helper.join()
    assert statuses == [7]
    assert task.payload == "second"


def test_a_type_that_is_no_class_becomes_the_one_that_the_page_says() -> None:
    page = (TOP / "docs" / "http.md").read_text(encoding="utf-8")
    found = re.search(r"Some types are no\sclasses: (.*?)\. The\sclient", page, re.DOTALL)
    assert found is not None
    told = set(re.findall(r"`(\w+)`", found[1]))
    source = "".join(path.read_text() for path in (TOP / "fsqueue" / "service").glob("*.py"))
    said = set(re.findall(r'refusal\(\s*[\w.]+,\s*"(\w+)"', source))
    assert said == told
    for kind in told:
        for status in (400, 401, 403, 404, 405, 408, 413, 415, 421, 500):
            error = wire.error_of(status, {"error": {"type": kind, "message": "why"}}, "POST")
            assert isinstance(error, FsqueueError)
            assert isinstance(error, InvalidArgument) == (status in (400, 413, 415))
            assert str(error) == "why"
