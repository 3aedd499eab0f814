"""Sync several files at the same time.

A journaling filesystem writes together what it is asked for together: two syncs at once take about as long as one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

AT_ONCE_MAX = 16
"""Maximum number of syncs that run at the same time."""


class _Failures:
    """What calls of several threads have raised."""

    def __init__(self) -> None:
        self.found: list[BaseException] = []

    def of(self, calls: Sequence[Callable[[], object]]) -> None:
        """Make calls, one after the other. Note what they raise."""
        for call in calls:
            try:
                call()
            except BaseException as error:
                self.found.append(error)


def at_once(calls: Sequence[Callable[[], object]]) -> None:
    """Make all calls, each in a thread of its own, the first one in this thread. Wait for all, and then raise the error
    of one: an interruption of this thread, if there was one.

    The threads end with their calls: an idle one would be in the way of a fork. If this thread is interrupted, the
    others end their calls by themselves, so each call must hold what it uses. Without threads (EAGAIN) the calls are
    made here.
    """
    failures, started = _Failures(), list[threading.Thread]()
    own: list[Callable[[], object]] = []
    for place in range(min(AT_ONCE_MAX, len(calls))):
        mine = calls[place::AT_ONCE_MAX]
        if not place:
            own += mine
            continue
        thread = threading.Thread(target=failures.of, args=(mine,), name="fsqueue-sync", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            own += mine
        else:
            started.append(thread)
    failures.of(own)
    for thread in started:
        thread.join()
    if failures.found:
        raise min(failures.found, key=lambda error: isinstance(error, Exception))
