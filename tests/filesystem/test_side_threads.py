"""Threads beside the caller's: a signal handler forks, or raises, while one is started or waited for."""

from __future__ import annotations

import _thread
import errno
import threading
from typing import Any
from unittest import mock

import pytest

from fsqueue.filesystem.side_threads import SideThread
from fsqueue.user_code import unwrapped
from tests.test_signal_forks import Forker
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.once


@unwrapped()
def _start_and_wait() -> list[bool]:
    """Start a thread, and wait for it before it ends, while it does, and afterwards. Return what it has made."""
    may_end, made = _thread.allocate_lock(), []

    def act() -> None:
        with may_end:
            made.append(threading.current_thread() is thread)

    thread = SideThread("fsqueue-test", act)
    with may_end:
        thread.start()
        thread.join(0.001)
    thread.join()
    thread.join()
    return made


def test_a_child_ends_wherever_it_was_forked_in_the_start_or_in_the_wait() -> None:
    """The handler forks in lines of the module `threading`, too."""
    forker = Forker(stride=1, also=threading.__file__)
    for _ in forker.rounds():
        assert forker.run(_start_and_wait) == [True]


def test_what_a_signal_handler_raises_behind_the_start_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ran, start = threading.Event(), _thread.start_new_thread

    def interrupted(*args: Any) -> None:
        start(*args)
        assert ran.wait(PATIENCE_S)
        raise ValueError("of a signal handler")

    monkeypatch.setattr(_thread, "start_new_thread", interrupted)
    with pytest.raises(ValueError, match="of a signal handler"):
        SideThread("fsqueue-test", ran.set).start()


@pytest.mark.parametrize("of", [(_thread, "start_new_thread"), (threading, "_start_new_thread")])
def test_without_a_further_thread_it_says_so(of: tuple[Any, str]) -> None:
    with mock.patch.object(*of, side_effect=RuntimeError("can't start new thread")), pytest.raises(OSError) as raised:
        SideThread("fsqueue-test", lambda: None).start()
    assert raised.value.errno == errno.EAGAIN
