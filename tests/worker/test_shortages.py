"""A call that the system refuses ends no worker: what could not be begun waits, or is put back, and that is said."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import pytest

from fsqueue import Queue, StorageError, Worker
from fsqueue.clock import ManualClock
from fsqueue.worker import child_processes, commands, shortages, supervision, supervisor
from fsqueue.worker.shortages import FORGOTTEN_S, OWN_S, PATIENCE_S, TRIES, Shortage
from tests.support import QueueFactory
from tests.worker import tasks
from tests.worker.support import drained

pytestmark = pytest.mark.once

CALLS = [
    (os, "posix_spawnp"), (socket, "socketpair"), (supervisor, "receive"), (os, "pipe"), (os, "memfd_create"),
    (os, "set_blocking"),
]  # fmt: skip
"""`receive`: as when a supervisor says that the system has refused the command."""
CODES = [errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM]


class Refused:
    """Refuse a call of the system, a number of times, once something that needs it has begun."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, code: int, beginner: Any, times: int = 1
    ) -> None:
        self.left, self.is_armed = times, False
        real, begin = getattr(module, name), beginner.__init__

        def call(*arguments: Any, **options: Any) -> Any:
            if self.is_armed and self.left > 0:
                self.left -= 1
                raise OSError(code, os.strerror(code))
            return real(*arguments, **options)

        def armed(*arguments: Any, **options: Any) -> None:
            self.is_armed = True
            try:
                begin(*arguments, **options)
            finally:
                self.is_armed = False

        monkeypatch.setattr(module, name, call)
        monkeypatch.setattr(beginner, "__init__", armed)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(("module", "name"), CALLS)
def test_a_command_that_cannot_be_begun_just_now_is_begun_later(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, code: int
) -> None:
    monkeypatch.setattr(shortages, "PAUSES_S", (0.001, 0.001))
    refused = Refused(monkeypatch, module, name, code, commands._Running)
    queue.insert_many(range(3))
    said: list[str] = []
    report = Worker(queue, command=["true"], tell=lambda event: said.append(event.text)).run()
    assert report == drained(completed=3)
    assert refused.left == 0
    assert any("-j" in text and ("ulimit" in text or "memory" in text) for text in said)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(("module", "name"), CALLS)
def test_a_process_that_cannot_be_started_just_now_is_started_later(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, code: int
) -> None:
    monkeypatch.setattr(shortages, "PAUSES_S", (0.001, 0.001))
    refused = Refused(monkeypatch, module, name, code, child_processes._Child)
    queue.insert_many([None] * 3)
    assert Worker(queue, tasks.nothing).run() == drained(completed=3)
    assert refused.left == 0


def test_a_child_that_died_is_replaced_when_the_system_allows_it(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shortages, "PAUSES_S", (0.001, 0.001))
    queue = queue_factory(max_attempts=1)
    real, calls = supervision.Supervisors.begin, 0

    def begin(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return real(*arguments)

    monkeypatch.setattr(supervision.Supervisors, "begin", begin)
    queue.insert({"do": "kill"})
    queue.insert_many([{"do": "return", "value": 1}] * 3)
    report = Worker(queue, tasks.obey, stop_after_failures=100).run()
    assert report.completed == 3
    assert report.ended == "drained"
    assert calls >= 3


@pytest.mark.parametrize(
    ("code", "advice"), [(errno.EAGAIN, "ulimit -u"), (errno.EMFILE, "ulimit -n"), (errno.ENOMEM, "memory")]
)
@pytest.mark.parametrize("how", ["command", "function"])
def test_a_worker_that_can_begin_nothing_ends_with_words_and_puts_all_back(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, how: str, code: int, advice: str
) -> None:
    monkeypatch.setattr(shortages, "PAUSES_S", (0.001, 0.001))
    monkeypatch.setattr(shortages, "OWN_S", 0.0)
    monkeypatch.setattr(shortages, "PATIENCE_S", 0.0)

    def spawn(*arguments: Any, **options: Any) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_spawnp", spawn)
    queue.insert_many([None] * 5)
    worker = Worker(queue, command=["true"]) if how == "command" else Worker(queue, tasks.nothing)
    with pytest.raises(StorageError, match=f"put back.*{advice}.*-j"):
        worker.run()
    status = queue.status()
    assert (status.waiting, status.leased, status.dead) == (5, 0, 0)
    assert all(task.attempt == 1 for task in queue.lease(5)), "no attempt was charged"


def test_no_thread_for_the_worker_ends_it_with_words(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", start)
    queue.insert(1)
    with pytest.raises(StorageError, match="ulimit -u"):
        Worker(queue, command=["true"]).run()
    assert queue.status().waiting == 1


@pytest.mark.parametrize(
    ("code", "longest_s"),
    [(errno.EMFILE, OWN_S), (errno.ENFILE, PATIENCE_S), (errno.EAGAIN, PATIENCE_S), (errno.ENOMEM, PATIENCE_S)],
)
def test_a_worker_with_nothing_at_work_tries_so_often_and_for_so_long(code: int, longest_s: float) -> None:
    """Others may give back what it lacks; of descriptors of its own it would have to give some back itself."""
    clock, error = ManualClock(), OSError(code, os.strerror(code))
    often = Shortage(clock.monotonic, lambda: 0.5)
    assert [often.met() for _ in range(2 * TRIES)] == [True] + [False] * (2 * TRIES - 1)
    for _ in range(round(longest_s) - 1):
        clock.advance(1)
        often.met()
    assert not often.is_hopeless(error), "a second is left"
    clock.advance(1)
    assert often.is_hopeless(error)
    seldom = Shortage(clock.monotonic, lambda: 0.5)
    for _ in range(TRIES - 1):
        assert not seldom.is_hopeless(error), "it has not tried so often"
        seldom.met()
        clock.advance(FORGOTTEN_S)
    assert not seldom.is_hopeless(error)
    assert not seldom.met(), "it is one shortage still"
    assert seldom.is_hopeless(error)


def test_a_shortage_long_ago_is_another_one() -> None:
    clock, error = ManualClock(), OSError(errno.EMFILE, "no")
    shortage = Shortage(clock.monotonic, lambda: 0.5)
    for _ in range(TRIES):
        shortage.met()
    assert shortage.is_on
    assert not shortage.pass_by(shortage.until - 0.01)
    assert (shortage.pass_by(shortage.until), shortage.is_on) == (True, False)
    clock.advance(FORGOTTEN_S + 1)
    assert shortage.met()
    assert not shortage.is_hopeless(error)


def test_tries_before_a_call_that_succeeded_do_not_count_for_a_later_shortage() -> None:
    """Else a worker would end at the first refusal that outlasts five seconds, without its tries."""
    now = 0.0
    shortage = shortages.Shortage(lambda: now, lambda: 0.5)
    refused = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    for _ in range(shortages.TRIES):
        shortage.met()
    shortage.over()
    assert shortage.met(), "it is the first of another one"
    now += shortages.OWN_S
    assert not shortage.is_hopeless(refused)
    for _ in range(shortages.TRIES - 1):
        assert not shortage.met()
    assert shortage.is_hopeless(refused)
