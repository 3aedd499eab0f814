"""Sync several files at the same time.

A journaling filesystem writes together what it is asked for together: two syncs at once take about as long as one.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from fsqueue.filesystem import resources
from fsqueue.filesystem.side_threads import FORK_LOOK_S
from fsqueue.interruptions import is_interruption

AT_ONCE_MAX = 16
"""Maximum number of syncs that run at the same time."""


class _Calls:
    """Calls that several threads make, and what these have raised."""

    def __init__(self) -> None:
        self.raised: list[BaseException] = []
        self.ended: SimpleQueue[None] = SimpleQueue()
        """Has an item for each thread that has ended."""

    def make(self, calls: Sequence[Callable[[], object]]) -> None:
        """Make calls, one after the other. Note what they raise."""
        for call in calls:
            try:
                call()
            except BaseException as error:
                self.raised.append(error)
        self.ended.put(None)


def at_once(calls: Sequence[Callable[[], object]]) -> None:
    """Make all calls, each in a thread of its own, the first one in this thread. Wait for all, and then raise the error
    of one: an interruption of this thread, if there was one.

    The threads end with their calls: an idle one would be in the way of a fork. If this thread is interrupted, the
    others end their calls by themselves, so each call must hold what it uses. Without threads (EAGAIN) the calls are
    made here. They are no `SideThread`s: those cost two threads each.
    """
    all_calls, threads = _Calls(), 0
    own: list[Callable[[], object]] = []
    for place in range(min(AT_ONCE_MAX, len(calls))):
        mine = calls[place::AT_ONCE_MAX]
        if not place:
            own += mine
            continue
        try:
            _thread.start_new_thread(all_calls.make, (mine,))
        except RuntimeError:
            own += mine
        else:
            threads += 1
    all_calls.make(own)
    ended = 0
    while ended <= threads:
        try:
            all_calls.ended.get(timeout=FORK_LOOK_S)
        except Empty:
            pass
        else:
            ended += 1
        resources.refuse_the_parents()  # these threads are theirs
    if all_calls.raised:
        raise min(all_calls.raised, key=lambda error: not is_interruption(error))
