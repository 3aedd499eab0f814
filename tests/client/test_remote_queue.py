"""The client, against a gateway on a Unix socket: each verb as on the queue itself."""

from __future__ import annotations

import http.server
import inspect
import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import (
    Activity,
    Group,
    GroupQueue,
    InvalidArgument,
    LeaseLost,
    Queue,
    RemoteGroup,
    RemoteQueue,
    Status,
    TaskTooLarge,
    Update,
)
from fsqueue.client import wire
from fsqueue.client.addresses import address_of
from fsqueue.client.remote_group import ABOUT_BYTES_MAX, RemoteUpdate
from fsqueue.client.wire import ERROR_BYTES_MAX
from fsqueue.protocol.losses import ALREADY
from fsqueue.service.gate import Tokens
from fsqueue.storage.nodes import NodeFailures
from fsqueue.verbs.fields import BODY_BYTES_MAX
from tests import copied
from tests.gateways import Serve
from tests.waiting import until

pytestmark = pytest.mark.once


@pytest.fixture
def remote(group: Group, serve: Serve) -> RemoteQueue:
    """A queue of a gateway, whose name needs to be encoded."""
    found = fsqueue.connect(f"{serve(group.path)}/a%2Fb%20%C3%A9", worker="me")
    assert isinstance(found, RemoteQueue)
    return found


@pytest.fixture
def local(group: Group) -> Queue:
    """The same queue, opened directly."""
    return group["a/b é"]


def test_what_is_inserted_there_is_leased_here_and_the_other_way(remote: RemoteQueue, local: Queue) -> None:
    assert not remote.exists()
    ref = remote.insert({"tile": 7}, key="s7", priority=3)
    assert (ref.inserted, remote.insert({"tile": 7}, key="s7").inserted) == (True, False)
    [task] = local.lease()
    assert (task.id, task.payload, task.key, task.priority) == (ref.id, {"tile": 7}, "s7", 3)
    local.release(task)
    [held] = remote.lease(lease_s=60)
    until_then = held.lease_until
    held.renew(600)
    assert held.lease_until > until_then + 300
    assert (held.id, held.payload, held.key, held.priority, held.attempt) == (ref.id, {"tile": 7}, "s7", 3, 1)
    held.complete({"pixels": 9})
    with suppress(LeaseLost):  # as on a queue, once its batch has ended
        held.complete({"pixels": 9})  # the same once more
    assert local.status() == remote.status() == fsqueue.Status(completed=1)
    [result] = remote.results()
    assert (result.payload, result.result, result.worker) == ({"tile": 7}, {"pixels": 9}, "me")
    [moves] = [remote.history(ref.id)]
    assert [move.op for move in moves] == [move.op for move in local.history(ref.id)]


def test_errors_are_those_of_the_queue(remote: RemoteQueue, local: Queue) -> None:
    remote.insert(1)
    [held] = remote.lease()
    local.release_all()
    [again] = local.lease()
    for act in (held.complete, held.renew, held.release, lambda: held.fail("x"), lambda: held.bury("x")):
        with pytest.raises(LeaseLost) as lost:
            act()
        assert lost.value.tokens == [held.token]
        assert lost.value.reason
    again.complete()
    with pytest.raises(fsqueue.TaskNotFound):
        remote.task("01a217e8f08f70e69f2d729f927415aa.0")
    with pytest.raises(fsqueue.InvalidArgument, match="lease_s"):
        remote.lease(lease_s=-1)
    with pytest.raises(fsqueue.InvalidArgument):
        remote.insert(1, priority=[1])  # type: ignore[arg-type]


def of_line(size: int) -> str:
    """Return a payload whose line has so many bytes."""
    return "x" * (size - len('{"payload":""}'))


@pytest.mark.parametrize("delay_s", [0, 5])
def test_a_task_may_fill_a_request_and_one_that_is_larger_is_too_large(
    remote: RemoteQueue, local: Queue, delay_s: float
) -> None:
    """As of a local queue, whose own limit is another one."""
    delay = f',"delay_s":{delay_s:.1f}' if delay_s else ""
    most = BODY_BYTES_MAX - len(delay)
    remote.insert(of_line(most), delay_s=delay_s)
    assert remote.insert_many([1, of_line(most)], delay_s=delay_s) == 2
    with pytest.raises(TaskTooLarge, match=r"The task takes 8,388,609 bytes; .* file and queue its path") as alone:
        remote.insert(of_line(most + 1), delay_s=delay_s)
    assert (alone.value.inserted, alone.value.new, alone.value.is_exact) == (0, 0, True)
    with pytest.raises(TaskTooLarge, match=r"Task number 3 takes 8,388,609 bytes") as one:
        remote.insert_many([1, 2, of_line(most + 1), 4], delay_s=delay_s)
    assert (one.value.index, one.value.inserted, one.value.new, one.value.is_exact) == (2, 2, 2, True)
    with pytest.raises(TaskTooLarge) as named:
        remote.insert_many([1, 2, of_line(most + 1), 4], delay_s=delay_s, commit="all")
    assert (named.value.index, named.value.new) == (2, 0)
    assert remote.insert_many([1, 2], commit="all") == 2
    assert local.status().inserted == 1 + 2 + 2 + 2


def test_an_update_that_no_request_can_hold_says_what_to_do(group: Group, serve: Serve) -> None:
    gateway = fsqueue.connect(serve(group.path))
    assert isinstance(gateway, RemoteGroup)
    update = gateway.update()
    update.insert_many("q", ["x" * 60_000] * 150)
    with pytest.raises(InvalidArgument, match=r"9,0\d\d,\d{3} bytes .* Nothing of the update .* Make several updates"):
        update.apply()
    assert group["q"].status().inserted == 0


def test_a_copy_is_one_there_too(remote: RemoteQueue, local: Queue) -> None:
    assert not remote.is_copy()
    local.insert(1)
    local.close()
    copied.restored(local.path)
    assert remote.is_copy()
    assert local.accept_copy()
    assert not remote.is_copy()


def alike(found: Activity) -> tuple[object, ...]:
    """Return what does not depend on when one looks."""
    return found.failures, found.holders, found.oldest, found.measured, found.most_used, found.whole_reasons


def test_upkeep(remote: RemoteQueue, local: Queue) -> None:
    remote.insert_many(range(3))
    assert remote.pause("disk") is True
    assert remote.pause() is False
    paused = remote.paused
    assert paused is not None
    assert paused.reason == "disk"
    assert remote.lease() == []
    assert remote.resume() is True
    assert remote.change_settings(max_attempts=7).max_attempts == 7
    assert local.settings.lease_s == remote.settings.lease_s
    [first] = remote.peek()
    assert remote.cancel(first.id) == 1
    remote.lease(2)
    assert remote.release_all(worker="other") == 0
    [worker] = remote.workers()
    assert (worker.worker["name"], len(worker.tasks)) == ("me", 2)
    assert remote.release_all(worker="me") == 2
    remote.complete(remote.lease(1))
    assert remote.retry_completed().retried == 1
    assert alike(remote.activity(60)) == alike(local.activity(60))
    remote.lease(1)[0].fail("no luck", 60)
    remote.lease(1)
    found = remote.activity()
    assert [one.reason for one in found.failures] == ["no luck"]
    assert (found.workers, alike(found)) == (1, alike(local.activity()))
    assert remote.release_all() == 1
    assert sum(remote.timeline(60, pieces=3)["inserted"]) >= 3
    assert remote.usage()["all"].files >= 2
    assert remote.waiting_by_priority()[-1].waiting == 1
    assert remote.stuck() == []
    assert remote.gc().trash_reaped == 0


def test_a_group(group: Group, serve: Serve) -> None:
    remote = fsqueue.connect(serve(group.path))
    assert isinstance(remote, RemoteGroup)
    for name in ("fetch", "parse", "a/b"):
        remote[name].insert(name)
    assert [queue.name for queue in remote.queues()] == ["a/b", "fetch", "parse"]
    assert [queue.name for queue in remote.queues(".*h")] == ["fetch"]
    assert remote.status("p.*") == {"parse": fsqueue.Status(waiting=1)}
    assert remote.matching("a") == remote.matching("a") != remote.matching("b")
    assert len({remote, remote.matching("a"), remote.matching("a")}) == 2
    tasks = remote.matching("fetch|parse").lease(3)
    assert sorted(task.payload for task in tasks) == ["fetch", "parse"]
    for task in tasks:
        assert task.payload == task.queue.name  # type: ignore[attr-defined]
        task.complete()
    remote.delete("a/b")
    assert list(remote.queues()) == []


def test_a_single_queue_is_known_by_its_directory(tmp_path: Path, serve: Serve) -> None:
    queue = Queue.create(tmp_path / "tiles", shards=1)
    address = serve(queue.path)
    remote = fsqueue.connect(address)
    assert isinstance(remote, RemoteQueue)
    assert remote.name == "tiles"
    remote.insert(1)
    assert queue.status().waiting == 1
    other = fsqueue.connect(f"{address}/other")
    with pytest.raises(fsqueue.QueueNotFound, match="tiles"):
        other.status()


def test_it_pickles_and_each_thread_has_a_connection(remote: RemoteQueue) -> None:
    copy = reduction.ForkingPickler.loads(reduction.ForkingPickler.dumps(remote))
    assert copy == remote
    ids: list[str] = []
    threads = [threading.Thread(target=lambda: ids.append(copy.insert(1).id)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 8
    assert remote.status().waiting == 8


def test_the_token_is_that_of_the_environment(group: Group, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    address = serve(group.path, Tokens({"write": "w" * 20}))
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    with pytest.raises(fsqueue.FsqueueError, match=r"^A token is needed"):
        fsqueue.connect(address)
    with pytest.raises(fsqueue.FsqueueError, match="The token that came is none of this gateway's"):
        fsqueue.connect(address, token="x" * 20)
    monkeypatch.setenv("FSQUEUE_SERVE_TOKEN", "w" * 20)
    remote = fsqueue.connect(f"{address}/q")
    assert isinstance(remote, RemoteQueue)
    remote.insert(1)
    [task] = remote.lease()
    worker = group["q"].history(task.id)[-1].worker
    assert worker is not None
    assert worker["slurm_job"] == "4711"
    for other in ("secret\u20ac", "secret\n"):
        monkeypatch.setenv("FSQUEUE_SERVE_TOKEN", other)
        with pytest.raises(fsqueue.InvalidArgument, match=r"^FSQUEUE_SERVE_TOKEN must be text") as no:
            fsqueue.connect(address)
        assert "secret" not in str(no.value)


def test_a_gateway_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(fsqueue.StorageError, match="cannot be reached"):
        fsqueue.connect(f"http+unix://{str(tmp_path / 'none').replace('/', '%2F')}", patience_s=0)


def test_a_request_that_is_repeated_for_long_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who has typed a wrong port would otherwise wait for ten minutes, and not know for what."""
    monkeypatch.setattr(wire, "RETRY_S", (0.0, 0.0))
    later = json.dumps({"error": {"type": "StorageError", "message": "Come again."}}).encode()
    answers = [(503, later)] * (2 * wire.FAILURES_TO_TELL)

    def answer(path: str) -> tuple[int, bytes]:
        return answers.pop() if answers else (200, b'{"service": "fsqueue", "queue": "q"}')

    with answering(answer) as url:
        fsqueue.connect(url)
    assert [record.getMessage() for record in caplog.records] == [
        "Come again. The request is repeated for up to 10 min."
    ]


@pytest.mark.parametrize(
    "url",
    [
        "", "localhost:8750", "ftp://x", "http://", "http://a//c", "http://a/../c", "http://a/b%2/c", "http://a?x=1",
        "http://u:p@a", 5, "http://a:x", "http://a:0", "https://a:0/b", "http://[::1]:0",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(fsqueue.InvalidArgument, match="no address"):
        address_of(url)


@pytest.mark.parametrize("name", ["timeout_s", "patience_s"])
@pytest.mark.parametrize("seconds", [None, "1", True, -1, math.nan, math.inf, -math.inf, 10**4_000])
def test_what_is_no_time_to_wait_is_refused(name: str, seconds: Any) -> None:
    with pytest.raises(fsqueue.InvalidArgument, match=rf"^{name} must be .* seconds, not .*\.$"):
        fsqueue.connect("http://localhost:1", **{name: seconds})


def test_an_answer_may_take_some_time_and_as_long_as_it_likes(group: Group, serve: Serve) -> None:
    url = serve(group.path)
    with pytest.raises(fsqueue.InvalidArgument, match=r"timeout_s must be between 0\.001 and .* seconds, not 0\."):
        fsqueue.connect(url, timeout_s=0)
    for long_s in (4_294_967.4, 10**9, 9_999_999_999):  # in milliseconds they exceed what a socket counts
        with fsqueue.connect(url, timeout_s=long_s) as remote:
            assert remote["fetch"].status() == Status()


def test_more_clients_than_tasks_and_each_task_once(group: Group, serve: Serve) -> None:
    """Requests that wait share one lessee: what it leases is handed out, each task once."""
    address = serve(group.path)
    got: list[int] = []

    def work() -> None:
        queue = fsqueue.connect(f"{address}/q")
        assert isinstance(queue, RemoteQueue)
        payloads: list[int | None] = []
        while None not in payloads:
            tasks = queue.lease(2, wait_s=60)
            queue.complete(tasks)
            payloads = [task.payload for task in tasks]
            got.extend(payload for payload in payloads if payload is not None)

    workers = [threading.Thread(target=work) for _ in range(6)]
    for worker in workers:
        worker.start()
    queue = group["q"]
    queue.insert_many(range(40))
    until(lambda: queue.status().completed == 40, "all tasks to be completed")

    def are_over() -> bool:
        return not any(worker.is_alive() for worker in workers)

    while not are_over():
        queue.insert(None)  # the last worker may have ended meanwhile: then nobody takes it
        until(lambda: queue.is_drained() or are_over(), "a worker to take it, or all to end")
    assert sorted(got) == list(range(40))


@contextmanager
def answering(answer: Callable[[str], tuple[int, bytes]]) -> Iterator[str]:
    """Answer each request by a status and a body, by its path. Yield the address."""

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))  # what is not read makes close a reset
            status, body = answer(self.path)
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(OSError):  # the client reads no more than it needs
                self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *told: object) -> None:
            pass

    with http.server.HTTPServer(("localhost", 0), Other) as other:
        thread = threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://localhost:{other.server_port}"
        finally:
            other.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>"), (200, b""), (200, b"[]"), (200, b"{}"), (200, b"\xff"), (200, b"[" * 9999), (204, b""),
        (302, b""), (409, b'{"error": {"type": "LeaseLost", "message": "m", "tokens": 5}}'),
        (409, b'{"error": {"type": "UpdateConflict", "message": "m", "missing": [5]}}'),
        (507, b'{"error": {"type": "StorageFull", "message": "m", "is_exact": 5}}'),
        (200, b'{"more": "%b", "service": "fsqueue", "queue": null}' % (b"x" * ABOUT_BYTES_MAX)),
        (507, b'{"error": {"type": "StorageFull", "message": "%b"}}' % (b"x" * ERROR_BYTES_MAX)),
    ],
)  # fmt: skip
def test_what_is_no_gateway_is_said_at_once_and_nothing_is_asked_elsewhere(status: int, body: bytes) -> None:
    """A wrong port, or a portal before it. The token is sent to no other place."""
    asked: list[str] = []

    def answer(path: str) -> tuple[int, bytes]:
        asked.append(path)
        return status, body

    with answering(answer) as url, pytest.raises(fsqueue.FsqueueError, match=r"no gateway|answered") as raised:
        fsqueue.connect(url, token="s" * 20)
    assert "ssss" not in str(raised.value)
    assert asked == ["/v1"]


@pytest.mark.parametrize(
    "ask",
    [
        lambda queue: queue.insert(1), lambda queue: queue.lease(), lambda queue: queue.paused,
        lambda queue: queue.peek(), lambda queue: queue.cancel(f"{'0' * 32}.0"),
    ],
)  # fmt: skip
def test_an_answer_of_another_version_that_lacks_fields_is_a_sentence(ask: Callable[[RemoteQueue], object]) -> None:
    def answer(path: str) -> tuple[int, bytes]:
        about = b'{"service": "fsqueue", "queue": "q"}'
        return 200, about if path == "/v1" else b'{"tasks": [{"new": 1}], "settings": {"backoff_s": [1, 2], "new": 1}}'

    with answering(answer) as url:
        queue = fsqueue.connect(url)
        assert isinstance(queue, RemoteQueue)
        with pytest.raises(fsqueue.StorageError, match="lacks"):
            ask(queue)
        assert queue.settings.backoff_s == (1, 2), "a setting that this version does not know is passed over"


def test_a_completion_whose_answer_was_lost_is_repeated_and_counts_as_done() -> None:
    answers = [(503, {"type": "StorageError", "message": "..."})]
    lost = {"type": "LeaseLost", "message": "...", "tokens": ["a.0@b"], "reason": ALREADY}

    def answer(path: str) -> tuple[int, bytes]:
        if path == "/v1":
            return 200, b'{"service": "fsqueue", "queue": "q"}'
        if path.endswith("/lease"):
            task = {"token": f"{'0' * 32}.0@{'b' * 16}", "lease_until": 1.0, "payload": 1, "attempt": 1, "version": 1}
            return 200, json.dumps({"tasks": [task]}).encode()
        status, error = answers.pop() if answers else (409, lost)
        return status, json.dumps({"error": error}).encode()

    with answering(answer) as url:
        queue = fsqueue.connect(url)
        assert isinstance(queue, RemoteQueue)
        [task] = queue.lease()
        task.complete()
        assert task.done
        with pytest.raises(LeaseLost):  # the user's own repetition
            queue.complete([task])


@pytest.mark.parametrize(
    ("remote_kind", "kind", "others"),
    [
        # Over a network all tasks must be meant by a word, and settings and workers are passed on by name.
        (RemoteQueue, Queue, {"purge_dead", "retry_dead", "retry_completed", "change_settings", "release_all"}),
        (RemoteGroup, Group, set()),
        (RemoteUpdate, Update, set()),
    ],
)
def test_its_verbs_take_what_those_of_a_queue_take(remote_kind: type, kind: type, others: set[str]) -> None:
    verbs = {name for name in dir(remote_kind) if not name.startswith("_") and callable(getattr(kind, name, None))}
    assert len(verbs - others) > 3
    for name in verbs - others:
        here = inspect.signature(getattr(remote_kind, name)).parameters
        there = dict(inspect.signature(getattr(kind, name)).parameters)
        if (kind, name) == (Queue, "lease"):  # a queue of a group takes one more
            there["depends"] = inspect.signature(GroupQueue.lease).parameters["depends"]
        assert here.keys() <= there.keys(), name
        for one in here:
            assert (here[one].kind, here[one].default) == (there[one].kind, there[one].default), (name, one)


def test_an_update_has_what_a_local_one_has() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(RemoteUpdate) == public(Update)


def test_failing_nodes_are_told_and_take_tasks_again(remote: RemoteQueue, local: Queue) -> None:
    assert remote.failing_nodes() == local.failing_nodes() == []
    assert not remote.admit_node("node17")
    local.insert(1)
    NodeFailures(local.store, 3).failed("no GPU was found")
    [failing] = remote.failing_nodes()
    assert [failing] == local.failing_nodes()
    assert (failing.failures, failing.reason) == (1, "no GPU was found")
    with pytest.raises(fsqueue.InvalidArgument):
        remote.admit_node("")
    with pytest.raises(fsqueue.InvalidArgument):
        local.admit_node("")
    assert remote.admit_node(failing.node)
    assert local.failing_nodes() == []
