"""The events that reach the loop: posts from threads and signal handlers, and descriptors that are ready."""

from __future__ import annotations

import os
import selectors
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec

from fsqueue import forks
from fsqueue.filesystem import resources

WAIT_S_MAX = 86_400.0
"""The system takes no more than 24 days at once; jobs may last longer."""

P = ParamSpec("P")
Ready = Callable[[], object]


class Mailbox:
    """The events that the loop waits for. Any thread and any signal handler may call `post`; the rest is the loop's."""

    def __init__(self) -> None:
        self._posts: deque[Callable[[], object]] = deque()
        self._listen()
        forks.register(self, Mailbox.after_fork)

    def _listen(self) -> None:
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._kept = resources.Kept(self._bell, os.close)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell, selectors.EVENT_READ)

    def after_fork(self) -> None:
        """Begin anew in a forked child: what it took in from the same descriptors, its parent would not get.

        A loop that goes on there does not wait: it is to see that it is its parent's.
        """
        self._posts.clear()
        self._selector.close()
        self._listen()
        os.eventfd_write(self._bell, 1)

    @contextmanager
    def woken_by_signals(self) -> Iterator[None]:
        """Have each signal end a wait, in the main thread, until this ends. `close` comes before.

        Python calls a signal's handler in the main thread only, and only when that goes on. A signal that comes just
        before the wait, or in another thread, would not end it: an idle worker would wait on, and never stop.
        """
        fd, end = os.pipe()
        os.set_blocking(end, False)  # as `set_wakeup_fd` asks for
        self.watch(fd, lambda: os.read(fd, 4096))  # the handlers themselves are called by Python
        before = signal.set_wakeup_fd(end, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            os.close(fd)
            os.close(end)

    def post(self, action: Callable[[], object]) -> None:
        """Have the loop call `action`."""
        self._posts.append(action)
        os.eventfd_write(self._bell, 1)

    def posted(self, action: Callable[P, object]) -> Callable[P, None]:
        """Return a function, for threads to call, that has the loop call `action` with the same arguments."""
        return lambda *args, **named: self.post(lambda: action(*args, **named))

    def watch(self, fd: int, ready: Ready) -> None:
        """Have the loop call `ready` whenever there is something to read from `fd`, or its other end is closed."""
        self._selector.register(fd, selectors.EVENT_READ, ready)

    def forget(self, fd: int) -> None:
        """Watch `fd` no longer. To be called before it is closed."""
        self._selector.unregister(fd)

    def wait(self, seconds: float | None) -> None:
        """Wait until something has come, at most so long, and act on all of it."""
        longest = None if seconds is None else min(seconds, WAIT_S_MAX)
        found = self._selector.select(0 if self._posts else longest)
        self._act()  # first of all: what a signal ended as well is judged knowing of the signal
        for key, _ in found:
            ready: Any = key.data
            if ready is None:
                os.eventfd_read(self._bell)
            elif self._selector.get_map().get(key.fd) is key:  # else one that was ready before it has ended its watch
                ready()
        self._act()

    def _act(self) -> None:
        for _ in range(len(self._posts)):
            self._posts.popleft()()

    def close(self) -> None:
        """Stop listening. The eventfd stays for threads that still post, and is closed with the last of them."""
        self._selector.close()
