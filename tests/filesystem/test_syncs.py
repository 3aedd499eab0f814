"""Several files are synced at the same time; what one of the calls raises is told after all have ended."""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

from fsqueue.errors import ForkedInCall
from fsqueue.filesystem import side_threads
from fsqueue.filesystem.side_threads import FORK_LOOK_S
from tests.concurrency.processes import Child
from tests.waiting import PATIENCE_S


def test_all_are_under_way_at_the_same_time() -> None:
    together = threading.Barrier(5)
    threads: set[int] = set()

    def call() -> None:
        threads.add(threading.get_ident())
        together.wait(PATIENCE_S)

    side_threads.at_once([call] * 5)
    assert len(threads) == 5
    assert threading.get_ident() in threads


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("error", [OSError(5, "broken"), KeyboardInterrupt()], ids=lambda error: type(error).__name__)
def test_an_error_is_raised_when_all_have_ended(failing: int, error: BaseException) -> None:
    done: list[int] = []

    def call(number: int) -> None:
        if number == failing:
            raise error
        done.append(number)

    with pytest.raises(type(error)) as raised:
        side_threads.at_once([lambda number=number: call(number) for number in range(3)])  # type: ignore[misc]
    assert raised.value is error
    assert sorted(done) == [number for number in range(3) if number != failing]


def test_an_interruption_is_not_lost_behind_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_threads, "AT_ONCE_MAX", 1)  # one after the other, in this thread
    with pytest.raises(KeyboardInterrupt):
        side_threads.at_once([mock.Mock(side_effect=OSError(5, "broken")), mock.Mock(side_effect=KeyboardInterrupt)])


def test_many_are_made_by_a_few_threads() -> None:
    done: list[int] = []
    side_threads.at_once([lambda number=number: done.append(number) for number in range(50)])  # type: ignore[misc]
    assert sorted(done) == list(range(50))


def test_where_no_thread_can_be_started_all_are_made_here() -> None:
    threads: list[int] = []
    with mock.patch.object(_thread, "start_new_thread", side_effect=RuntimeError("can't start new thread")):
        side_threads.at_once([lambda: threads.append(threading.get_ident())] * 3)
    assert threads == [threading.get_ident()] * 3


@contextmanager
def handled(handler: Callable[..., object]) -> Iterator[Callable[[], None]]:
    """Yield what sends this thread a signal, to be handled so."""
    before, me = signal.signal(signal.SIGUSR1, handler), threading.get_ident()
    try:
        yield lambda: signal.pthread_kill(me, signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_a_signal_handler_raises_behind_the_start_of_a_thread_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, start = threading.Event(), _thread.start_new_thread

    def interrupted(*args: Any) -> None:
        start(*args)
        assert runs.wait(PATIENCE_S)
        raise ValueError("of a signal handler")

    monkeypatch.setattr(threading, "_start_new_thread", interrupted)  # where threading.Thread would have it
    monkeypatch.setattr(_thread, "start_new_thread", interrupted)
    with pytest.raises(ValueError, match="of a signal handler"):
        side_threads.at_once([runs.set, runs.set])


@pytest.mark.parametrize("handler_s", [0.0, 2 * FORK_LOOK_S])
def test_a_child_that_a_signal_handler_forks_does_not_wait_for_its_parents_threads(handler_s: float) -> None:
    """Also where the handler takes longer than a wait does that it interrupts."""

    def round_() -> int:
        children: list[int] = []
        forked = threading.Event()

        def forks(*_: object) -> None:
            pid = os.fork()
            if pid:
                children.append(pid)
                forked.set()
            time.sleep(handler_s)

        def call() -> None:
            send()
            forked.wait(PATIENCE_S)  # so it is under way when the child begins

        with handled(forks) as send:
            try:
                side_threads.at_once([lambda: None, call])
            except ForkedInCall:
                os._exit(7)
            [child] = children
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    for _ in range(3 if handler_s else 20):
        child = Child(round_)
        try:
            assert child.result() == 7
        finally:
            child.close()
