"""Sleep until a doorbell is rung on this host (docs/design.md, section 4.6, and decision 0028).

A hint, as the doorbell itself is: other hosts' rings are not heard, and any failure here means that the worker just
sleeps. So its caller looks again after each sleep, and never sleeps for longer than without it.
"""

from __future__ import annotations

import logging
import math
import select
from collections.abc import Sequence

from fsqueue import forks
from fsqueue.clock import Clock
from fsqueue.filesystem.changes import Changes
from fsqueue.storage.doorbell import Doorbell

logger = logging.getLogger("fsqueue")

RETRY_S = 60.0
"""After so long a worker that could not listen tries again: other programs may have given inotify instances back."""
NONE = -1


class _Watched:
    """What the kernel watches of one doorbell: the file, or as long as that is missing, the directory it will be in."""

    __slots__ = ("doorbell", "file", "place")

    def __init__(self, doorbell: Doorbell) -> None:
        self.doorbell = doorbell
        self.forget()

    def forget(self) -> None:
        """Begin anew: nothing is watched any more."""
        self.file = self.place = NONE

    def extend(self, changes: Changes) -> bool:
        """Watch the doorbell's file. Return False if all that was possible is done already. OSError."""
        try:
            self.file = self.doorbell.watch(changes)
        except FileNotFoundError:
            if self.place != NONE:
                return False
            self.place = self.doorbell.watch_place(changes)
            return True
        if self.place != NONE:
            changes.forget(self.place)
            self.place = NONE
        return True

    def end(self, number: int) -> None:
        """Note that a watch has ended."""
        self.file = NONE if self.file == number else self.file
        self.place = NONE if self.place == number else self.place


class Listener:
    """Sleep until one of the doorbells is rung on this host, or the time is over. Use it in one thread at a time.

    `end`: a descriptor that ends each sleep once it can be read; the caller's. A forked child shares nothing with its
    parent: it listens anew.
    """

    def __init__(self, doorbells: Sequence[Doorbell], clock: Clock, end: int = NONE) -> None:
        self._watched = [_Watched(doorbell) for doorbell in doorbells]
        self.clock, self.end = clock, end
        self._changes: Changes | None = None
        self._retry_at = -math.inf
        forks.register(self, Listener.close)  # what a child read of the same descriptor, its parent would not hear

    @property
    def fd(self) -> int:
        """Return the descriptor that can be read when a doorbell was rung; -1 if this listens to nothing."""
        return NONE if self._changes is None else self._changes.fd

    @property
    def is_complete(self) -> bool:
        """Return whether `listen` has nothing to do."""
        return all(one.file != NONE for one in self._watched) or self.clock.monotonic() < self._retry_at

    def listen(self) -> bool:
        """Listen to all doorbells, as far as that is possible. It asks the file server only for what is not watched.

        Return whether it listens to more than before. Then look at the queue before you sleep: what was rung for
        before that is not told.
        """
        if self.is_complete:
            return False
        is_more = False
        try:
            if self._changes is None:
                self._changes = Changes()
            for one in self._watched:
                if one.file == NONE:
                    is_more |= one.extend(self._changes)
        except OSError as error:
            logger.debug("no wake-up by inotify (%s); the worker looks every few seconds all the same", error)
            self._retry_at = self.clock.monotonic() + RETRY_S
        return is_more

    def sleep(self, seconds: float, deaf: bool = False) -> None:
        """Wait for so long, or until a doorbell is rung: perhaps not at all. `deaf`: whether it is rung or not."""
        sleep([self], seconds, deaf)

    def take_in(self) -> None:
        """Take in what the kernel has told, so that the next sleep does not end by it."""
        try:
            told = [] if self._changes is None else self._changes.read()
        except OSError:
            self.close()  # and begin anew
            return
        for number, is_over in told:
            if is_over:
                for one in self._watched:
                    one.end(number)

    def close(self) -> None:
        """Listen to nothing any more. It may be used again."""
        changes, self._changes = self._changes, None
        for one in self._watched:
            one.forget()
        if changes is not None:
            changes.close()


def sleep(listeners: Sequence[Listener], seconds: float, deaf: bool = False) -> None:
    """Wait for so long, or until one of several listeners is told of a ring: see `Listener.sleep`.

    If time passes only as a test says, nothing is listened to.
    """
    clock = listeners[0].clock
    if not clock.is_real:
        clock.sleep(seconds)
        return
    news = [] if deaf else [one.listen() for one in listeners]
    if any(news):
        return
    told = {} if deaf else {one.fd: one for one in listeners if one.fd != NONE}
    fds = told.keys() | {one.end for one in listeners if one.end != NONE}
    if not fds:
        clock.sleep(seconds)
        return
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    for fd, _ in poller.poll(seconds * 1000):
        if fd in told:
            told[fd].take_in()
