"""A connection that ends anywhere within an answer: what is asked again, and lists that are never called whole."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

import fsqueue
from fsqueue import Group, Queue, RemoteGroup, RemoteQueue, Status, StorageError
from fsqueue.client import wire
from fsqueue.client.addresses import address_of, connection_to
from fsqueue.protocol.update_traces import HOW_TO_FIND_OUT
from tests.gateways import Serve
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.once

CUTS = [*range(0, 60, 3), *range(60, 420, 24)]
"""After how many bytes of an answer its connection ends: in the first line, in the head, in the body, behind it."""


class Cutter:
    """A proxy that ends a connection after some bytes of the answers, if it is told to."""

    def __init__(self, gateway: str) -> None:
        self._where = address_of(gateway)
        self._listener = socket.create_server(("localhost", 0))
        self.url = f"http://localhost:{self._listener.getsockname()[1]}"
        self.left: int | None = None
        """How many bytes of the answers are passed on until the next cut; None: no cut comes."""
        self.left_to_send: int | None = None
        """The same for the requests."""
        self.cuts = 0
        self.before_cut: Callable[[], object] = lambda: None
        """Called before an answer is cut."""

    def accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            connection = connection_to(self._where, PATIENCE_S)
            connection.connect()
            threading.Thread(target=self._pass, args=(client, connection.sock), daemon=True).start()
            threading.Thread(target=self._pass_back, args=(connection.sock, client), daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _pass(self, client: socket.socket, gateway: socket.socket) -> None:
        with suppress(OSError):
            while part := client.recv(1 << 16):
                left = self.left_to_send
                if left is not None and len(part) >= left:
                    self.left_to_send, self.cuts = None, self.cuts + 1
                    gateway.sendall(part[:left])
                    client.shutdown(socket.SHUT_RDWR)
                    break
                gateway.sendall(part)
                if left is not None:
                    self.left_to_send = left - len(part)
        with suppress(OSError):  # the client has gone: no place is held for it
            gateway.shutdown(socket.SHUT_RDWR)

    def _pass_back(self, gateway: socket.socket, client: socket.socket) -> None:
        with gateway, client:
            with suppress(OSError):
                while part := gateway.recv(1 << 16):
                    left = self.left
                    if left is not None and len(part) >= left:
                        self.left, self.cuts = None, self.cuts + 1
                        self.before_cut()
                        client.sendall(part[:left])
                        break
                    client.sendall(part)
                    if left is not None:
                        self.left = left - len(part)
            for end in (client, gateway):  # a connection from which the other thread reads is not ended by closing it
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)


@contextmanager
def cutting(gateway: str) -> Iterator[Cutter]:
    cutter = Cutter(gateway)
    thread = threading.Thread(target=cutter.accept, daemon=True)
    thread.start()
    try:
        yield cutter
    finally:
        cutter.close()
        thread.join()


@pytest.fixture(autouse=True)
def repeats_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "RETRY_S", (0.001, 0.01))


@pytest.fixture
def local(group: Group) -> Queue:
    return group["q"]


@pytest.fixture
def cutter(group: Group, serve: Serve) -> Iterator[Cutter]:
    with cutting(serve(group.path)) as found:
        yield found


@pytest.fixture
def remote(cutter: Cutter) -> RemoteQueue:
    found = fsqueue.connect(f"{cutter.url}/q")
    assert isinstance(found, RemoteQueue)
    return found


def leased(remote: RemoteQueue) -> Any:
    (task,) = remote.lease()
    return task


VERBS: dict[str, tuple[Callable[[RemoteQueue], Any], Callable[[RemoteQueue, Any], object], object]] = {
    "status": (lambda remote: None, lambda remote, _: remote.status().waiting, 500),
    "peek": (lambda remote: None, lambda remote, _: len(remote.peek(3)), 3),
    "is_drained": (lambda remote: None, lambda remote, _: remote.is_drained(), False),
    "wait": (lambda remote: None, lambda remote, _: remote.wait(timeout_s=0).waiting, 500),
    "renew": (leased, lambda remote, task: task.renew(), None),
    "complete": (leased, lambda remote, task: task.complete({"y": 1}), None),
}


@pytest.mark.parametrize("verb", VERBS)
def test_what_may_be_repeated_is_repeated_wherever_its_answer_breaks_off(
    remote: RemoteQueue, local: Queue, cutter: Cutter, verb: str
) -> None:
    begin, act, expected = VERBS[verb]
    local.insert_many(range(500))
    for cut in CUTS:
        held = begin(remote)
        cutter.left = cut
        found = act(remote, held)
        cutter.left = None
        assert expected is None or found == expected, cut
        if verb == "complete":
            assert local.task(held.id).state == "completed"
    assert cutter.cuts > len(CUTS) / 3
    assert local.status().inserted == 500


def test_an_error_says_that_reading_has_changed_nothing(remote: RemoteQueue, local: Queue, cutter: Cutter) -> None:
    local.insert_many(range(500))
    hurried = RemoteQueue(remote._wire.hurried(), "q", remote._holder)
    reads: list[Callable[[], object]] = [hurried.status, hurried.exists, lambda: list(hurried.tasks())]
    for read_ in reads:
        cutter.left = 30
        with pytest.raises(StorageError, match=r"broken off .*\. Nothing was changed: .* may be repeated\.") as broken:
            read_()
        assert "unknown" not in str(broken.value)
        assert broken.value.is_exact
    task = next(local.tasks("waiting")).id
    acts: list[tuple[Callable[[], object], str]] = [
        (hurried.lease, "its lease runs out, and counts as an attempt"),
        (lambda: hurried.lease_by_id(task), "its lease runs out, and counts as an attempt"),
        (lambda: hurried.insert(1), "before you insert it again"),
        (lambda: hurried.insert(1, key="k"), "while it waits or is leased"),
        (lambda: hurried.insert_many([1]), "before you repeat the call"),
        (lambda: hurried.insert_many([1], commit="c"), "all its tasks and the same name"),
        (hurried.pause, "before you repeat the call"),
        (hurried.gc, "does no harm"),
    ]
    for act, advice in acts:
        cutter.left = 30
        with pytest.raises(StorageError, match=r"broken off .* is unknown\.") as doubtful:
            act()
        assert not doubtful.value.is_exact
        assert advice in doubtful.value.advice
        assert str(doubtful.value).endswith(doubtful.value.advice)
    assert cutter.cuts == 11


def test_an_insert_with_a_key_makes_one_task_although_its_answer_is_lost(
    remote: RemoteQueue, local: Queue, cutter: Cutter
) -> None:
    """A worker completes the task before a repetition could come: the key would keep nothing away then."""
    cutter.left, cutter.before_cut = 0, lambda: [task.complete() for task in local.lease()]
    with pytest.raises(StorageError, match="is unknown") as doubtful:
        remote.insert(1, key="k")
    assert not doubtful.value.is_exact
    assert local.status() == Status(completed=1)


def test_an_update_whose_answer_is_lost_says_how_to_find_out(group: Group, cutter: Cutter) -> None:
    remote = fsqueue.connect(cutter.url)
    assert isinstance(remote, RemoteGroup)
    update = remote.update()
    update.insert("q", 1)
    cutter.left = 0
    with pytest.raises(StorageError, match="is unknown") as doubtful:
        update.apply()
    assert doubtful.value.advice == HOW_TO_FIND_OUT
    assert group["q"].status() == Status(waiting=1)


@pytest.mark.parametrize("cut", CUTS)
def test_an_address_is_that_of_the_gateway_wherever_its_first_answer_breaks_off(
    group: Group, serve: Serve, cut: int
) -> None:
    with cutting(serve(group.path)) as cutter:
        cutter.left = cut
        remote = fsqueue.connect(f"{cutter.url}/q")
        assert isinstance(remote, RemoteQueue)
        assert remote.url == f"{cutter.url}/q"


SENT_AGAIN: dict[str, Callable[[], Any]] = {
    "a list": lambda: [{"n": n} for n in range(300)],
    "a tuple": lambda: tuple(range(300)),
    "a range": lambda: range(300),
    "a set": lambda: {*range(300)},
}


@pytest.mark.parametrize("kind", SENT_AGAIN)
@pytest.mark.parametrize("strict", [False, True])
def test_what_has_the_name_of_a_commit_is_sent_again_wherever_its_answer_breaks_off(
    remote: RemoteQueue, local: Queue, cutter: Cutter, kind: str, strict: bool
) -> None:
    for number, cut in enumerate(CUTS[::6], 1):
        cutter.left = cut
        new = remote.insert_many(SENT_AGAIN[kind](), commit=f"commit-{cut}", strict=strict)
        cutter.left = None
        assert new in (0, 300), "the answer may be whole before the cut"
        assert local.status().inserted == 300 * number
    assert cutter.cuts > 3


def test_what_has_the_name_of_a_commit_is_sent_again_wherever_its_request_breaks_off(
    remote: RemoteQueue, local: Queue, cutter: Cutter
) -> None:
    """What the gateway has got of a request that has broken off is no commit."""
    payloads = ["x" * 1000] * 300
    for number, cut in enumerate((1, 100, 5_000, 70_000, 200_000), 1):
        cutter.left_to_send = cut
        assert remote.insert_many(payloads, commit=f"commit-{cut}") == 300
        assert (cutter.cuts, cutter.left_to_send) == (number, None)
        assert local.status().inserted == 300 * number


class Shared:
    """Each iteration goes on where the one before has ended, though this is no iterator itself."""

    def __init__(self) -> None:
        self._items = iter(range(300))

    def __iter__(self) -> Iterator[int]:
        return self._items


@pytest.mark.parametrize("payloads", [lambda: (n for n in range(300)), lambda: iter([1] * 300), Shared])
@pytest.mark.parametrize("to_send", [None, 100])
def test_what_cannot_be_read_twice_is_not_sent_again_and_its_caller_may_do_so(
    remote: RemoteQueue, local: Queue, cutter: Cutter, payloads: Callable[[], Any], to_send: int | None
) -> None:
    """A part of it would be sent, and be the whole commit."""
    cutter.left, cutter.left_to_send = None if to_send else 20, to_send
    with pytest.raises(StorageError, match=r"broken off .* is unknown") as broken:
        remote.insert_many(payloads(), commit="once")
    assert not broken.value.is_exact
    assert cutter.cuts == 1
    assert remote.insert_many(payloads(), commit="once") == (300 if to_send else 0)
    assert local.status().inserted == 300


def test_a_loop_goes_on_over_answers_that_break_off(remote: RemoteQueue, local: Queue, cutter: Cutter) -> None:
    """What an answer that was cut has leased comes back when its lease ends."""
    local.insert_many(range(len(CUTS)))
    done, cuts = [], iter(CUTS)
    for task in remote.poll(lease_s=1):
        with task:
            cutter.left = next(cuts, None)
            done.append(task.payload)
    assert {*done} == {*range(len(CUTS))}
    assert cutter.cuts > len(CUTS) / 3
    assert local.status().completed == len(CUTS)


LISTS: dict[str, Callable[[RemoteQueue], Iterator[Any]]] = {
    "tasks": lambda remote: remote.tasks(),
    "results": lambda remote: remote.results(),
    "dead": lambda remote: remote.dead(),
}


@pytest.fixture
def full(local: Queue) -> Queue:
    """A queue with 700 tasks of each kind that is listed: some chunks of an answer."""
    local.insert_many(range(2_100))
    local.change_settings(max_attempts=1)
    for task in local.lease(700):
        task.complete(task.payload)
    for task in local.lease(700):
        task.fail("so be it")
    return local


def read(items: Iterator[Any]) -> tuple[int, StorageError | None]:
    """Return how many came, and what ended them."""
    found = 0
    try:
        for _ in items:
            found += 1
    except StorageError as error:
        return found, error
    return found, None


@pytest.mark.parametrize("kind", LISTS)
def test_no_part_of_a_list_counts_as_all_of_it(remote: RemoteQueue, full: Queue, cutter: Cutter, kind: str) -> None:
    whole = len(list(LISTS[kind](remote)))
    assert whole == (1_400 if kind == "results" else 700)
    cut, broken = 0, 0
    while True:
        cutter.left, cuts = cut, cutter.cuts
        found, error = read(LISTS[kind](remote))
        if error is not None:
            assert "broken off" in str(error)
            assert "Nothing was changed" in str(error)
            broken += 1
        else:
            assert found == whole
            if cutter.cuts == cuts:
                break  # the cut is behind the answer
        assert found <= whole
        cut = cut + 13 if cut < 450 else cut * 2
    assert broken > 20


@pytest.mark.parametrize("last", [b'{"id": "y"}\n', b'{"id": "y"'])
def test_a_list_that_ends_without_its_number_is_not_whole_though_the_answer_looks_so(
    remote: RemoteQueue, monkeypatch: pytest.MonkeyPatch, last: bytes
) -> None:
    """A proxy may end an answer well that its gateway has not ended."""
    monkeypatch.setattr(wire._Answer, "__enter__", lambda self: iter([b'{"id": "x"}\n', last]))
    found, error = read(remote._wire.lines("/queues/q/dead", {}))
    assert found == 1 + last.endswith(b"\n")
    assert error is not None
    assert "broken off" in str(error)


@pytest.mark.parametrize("verb", ["retry_dead", "purge_dead", "retry_completed"])
def test_whoever_acts_on_a_part_of_a_list_is_told(remote: RemoteQueue, full: Queue, cutter: Cutter, verb: str) -> None:
    cutter.left = 40_000
    with pytest.raises(StorageError, match="broken off"):
        getattr(remote, verb)(where=lambda one: True)
    assert cutter.cuts == 1
    getattr(remote, verb)(where=lambda one: True)
    assert full.status().dead == (700 if verb == "retry_completed" else 0)
