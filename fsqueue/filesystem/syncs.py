"""Sync several files at the same time.

A journaling filesystem writes together what it is asked for together: two syncs at once take about as long as one.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable, Sequence

from fsqueue.filesystem import resources
from fsqueue.filesystem.side_threads import FORK_LOOK_S
from fsqueue.interruptions import is_interruption

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
