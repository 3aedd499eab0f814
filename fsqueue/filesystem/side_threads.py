"""Start threads beside the caller's, and wait for them, so that neither a fork nor an interruption meanwhile does harm.

`Thread.start` waits until its thread runs, and `Thread.join` until that ends. A child that a signal handler forks
meanwhile has no such thread, and would wait for ever. What a signal handler raises there, `Thread.start` turns into a
KeyError. Signal handlers run in the main thread alone. So a short-lived thread calls `Thread.start`, and the caller
looks from time to time whether it is such a child.

`at_once` is for syncs of several files. A journaling filesystem writes together what it is asked for together: two
syncs at once take about as long as one.
"""

from __future__ import annotations

import _thread
import errno
import math
import os
import threading
from collections.abc import Callable, Sequence

from fsqueue.clock import Clock
from fsqueue.filesystem import resources
from fsqueue.interruptions import is_interruption

FORK_LOOK_S = 0.2
"""How long a child that a signal handler has forked waits at most for the threads of its parent."""


class SideThread(threading.Thread):
    """Run `act` in a thread that does not keep the process alive."""

    def __init__(self, name: str, act: Callable[[], object] | None = None) -> None:
        super().__init__(target=act, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. OSError (EAGAIN) if the system allows no further thread; ForkedInCall in a forked child."""
        resources.refuse_the_parents()
        failed: list[BaseException] = []
        is_over = _thread.allocate_lock()
        is_over.acquire()

        def begin() -> None:
            try:
                super(SideThread, self).start()
            except BaseException as error:
                failed.append(error)
            finally:
                is_over.release()

        try:
            _thread.start_new_thread(begin, ())
        except RuntimeError as error:
            failed.append(error)
        else:
            while not is_over.acquire(timeout=FORK_LOOK_S):
                resources.refuse_the_parents()
        if failed:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from failed[0]

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, or `timeout` seconds are over. ForkedInCall in a child that was
        forked meanwhile.
        """
        now = Clock().monotonic
        until = math.inf if timeout is None else now() + timeout
        while self.is_alive() and (left_s := until - now()) > 0:
            super().join(min(left_s, FORK_LOOK_S))
            resources.refuse_the_parents()


AT_ONCE_MAX = 16
"""Maximum number of syncs that run at the same time."""


class _Calls:
    """Make calls in several threads, and note what these raise."""

    def __init__(self) -> None:
        self.raised: list[BaseException] = []

    def make(self, calls: Sequence[Callable[[], object]]) -> None:
        """Make calls, one after the other. Note what they raise."""
        for call in calls:
            try:
                call()
            except BaseException as error:
                self.raised.append(error)

    def make_and_release(self, calls: Sequence[Callable[[], object]], is_over: _thread.LockType) -> None:
        """Make calls, and release a lock afterwards."""
        try:
            self.make(calls)
        finally:
            is_over.release()

    def make_in_thread(self, calls: Sequence[Callable[[], object]]) -> _thread.LockType:
        """Make calls in a thread of their own. Return a lock that is free once they are made. RuntimeError."""
        # `SimpleQueue.get` would not do: CPython 3.11's waits for ever if a signal handler outlasts its time limit.
        is_over = _thread.allocate_lock()
        is_over.acquire()
        _thread.start_new_thread(self.make_and_release, (calls, is_over))
        return is_over


def at_once(calls: Sequence[Callable[[], object]]) -> None:
    """Make all calls, each in a thread of its own, the first one in this thread. Wait for all, and then raise the error
    of one: an interruption of this thread, if there was one.

    The threads end with their calls: an idle one would be in the way of a fork. If this thread is interrupted, the
    others end their calls by themselves, so each call must hold what it uses. Without threads (EAGAIN) the calls are
    made here. They are no `SideThread`s: those cost two threads each.
    """
    all_calls, threads = _Calls(), list[_thread.LockType]()
    own: list[Callable[[], object]] = []
    for place in range(min(AT_ONCE_MAX, len(calls))):
        mine = calls[place::AT_ONCE_MAX]
        try:
            if place:
                threads.append(all_calls.make_in_thread(mine))
                continue
        except RuntimeError:
            pass
        own += mine
    all_calls.make(own)
    for is_over in threads:
        while not is_over.acquire(timeout=FORK_LOOK_S):
            resources.refuse_the_parents()
    resources.refuse_the_parents()  # these threads are theirs
    if all_calls.raised:
        raise min(all_calls.raised, key=lambda error: not is_interruption(error))
