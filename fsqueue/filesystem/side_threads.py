"""Start a thread beside the caller's, and wait for it, so that neither a fork nor an interruption meanwhile does harm.

`Thread.start` waits until its thread runs, and `Thread.join` until that ends. A child that a signal handler forks
meanwhile has no such thread, and would wait for ever. What a signal handler raises there, `Thread.start` turns into a
KeyError. Signal handlers run in the main thread alone. So a short-lived thread calls `Thread.start`, and the caller
looks from time to time whether it is such a child.
"""

from __future__ import annotations

import _thread
import errno
import math
import os
import threading
from collections.abc import Callable

from fsqueue.clock import Clock
from fsqueue.filesystem import resources

FORK_LOOK_S = 0.2
"""How long a child that a signal handler has forked waits at most for the threads of its parent."""


class SideThread(threading.Thread):
    """Run `act` in a thread that does not keep the process alive."""

    def __init__(self, name: str, act: Callable[[], object] | None = None) -> None:
        super().__init__(target=act, name=name, daemon=True)

    def start(self) -> None:
        """Start it. OSError (EAGAIN) if the system allows no further thread; ForkedInCall in a forked child."""
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
        """Wait until it has ended, or `timeout` seconds are over. ForkedInCall in a child that was forked meanwhile."""
        now = Clock().monotonic
        until = math.inf if timeout is None else now() + timeout
        while self.is_alive() and (left_s := until - now()) > 0:
            super().join(min(left_s, FORK_LOOK_S))
            resources.refuse_the_parents()
