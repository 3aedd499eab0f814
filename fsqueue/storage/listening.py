"""Sleep until a doorbell is rung on this host (docs/design.md, section 4.6, and decision 0028).

A hint, as the doorbell itself is: other hosts' rings are not heard, and any failure here means that the worker just
sleeps. So its caller looks again after each sleep, and never sleeps for longer than without it.
"""

from __future__ import annotations

import _thread
import logging
import math
import select
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fsqueue import forks
from fsqueue.clock import Clock, Entropy
from fsqueue.filesystem import Filesystem
from fsqueue.filesystem.changes import DIRECTORY, FILE, Changes
from fsqueue.interruptions import let_out, suppress
from fsqueue.storage.queue_file import LONG_AGO_S

logger = logging.getLogger("fsqueue")

LINGER_S = 1.0
"""Longest time that a listener is kept for the next wait."""
RETRY_S = 60.0
"""Seconds until a worker that could not listen tries again: other programs may have given inotify instances back."""
NONE = -1


BYTES = 16
"""The content of the doorbell."""
QUIET_S = 0.05
"""A process that inserts singly notifies no more often. A worker that was notified looks once more after this time, for
what was inserted meanwhile.
"""


class Doorbell:
    """Notify idle workers, and learn whether another process did. A hint: a lost notification does no harm."""

    def __init__(self, fs: Filesystem, path: str, entropy: Entropy) -> None:
        self._fs = fs
        self._path = path
        self._entropy = entropy
        self._rung_at = LONG_AGO_S

    def ring_now_and_then(self, now: float) -> None:
        """Notify idle workers, unless this process has done so a moment ago. `now` is on the monotonic clock.

        No task is overlooked: a worker that sees a notification looks at once, and again QUIET_S later. All that was
        inserted without a notification of its own was there by then.
        """
        if now - self._rung_at >= QUIET_S:
            self.ring()
            self._rung_at = now  # after it: another thread must not rely on what is not written yet

    def ring_next_time(self) -> None:
        """Have the next insert notify, however soon it comes: its caller waits for what comes of the task."""
        self._rung_at = LONG_AGO_S

    def ring(self) -> None:
        """Notify idle workers that there may be tasks."""
        with suppress(OSError):
            self._fs.overwrite(self._path, self._entropy.bytes16())

    def read(self) -> bytes:
        """Return the doorbell's value: another than before if a process has notified; b"" if there is none.

        This takes three system calls, since idle workers do nothing else.
        """
        try:
            with self._fs.closing(self._fs.look(self._path)) as fd:
                return self._fs.pread(fd, BYTES, 0)
        except OSError as error:
            let_out(error)
            return b""

    def forget(self) -> None:
        """Read the doorbell the next time as if for the first time: see `GroupDoorbell`."""

    def watch(self, changes: Changes) -> int:
        """Have the kernel tell when a process of this host notifies. FileNotFoundError if no process ever has."""
        with self._fs.closing(self._fs.look(self._path)) as fd:
            return changes.watch(fd, FILE)

    def watch_place(self, changes: Changes) -> int:
        """Have the kernel tell when a process of this host makes a name in the directory of the doorbell."""
        with self._fs.closing(self._fs.hold_directory(self._fs.root)) as fd:
            return changes.watch(fd, DIRECTORY)


class _Watched:
    """What the kernel watches for one doorbell: the file, or as long as that is missing, the directory it will be in.

    It keeps no queue open: a listener lingers for the next wait, and the queue may have been let go of meanwhile.
    """

    __slots__ = ("_doorbell", "file", "place")

    def __init__(self, doorbell: Doorbell) -> None:
        self._doorbell = weakref.ref(doorbell)
        self.forget()

    @property
    def doorbell(self) -> Doorbell | None:
        """Return the doorbell; None if nothing uses its queue any more."""
        return self._doorbell()

    def forget(self) -> None:
        """Begin anew: nothing is watched any more."""
        self.file = self.place = NONE

    def extend(self, changes: Changes) -> bool:
        """Watch the doorbell's file. Return False if all that was possible is done already. OSError."""
        doorbell = self.doorbell
        if doorbell is None:
            return False
        doorbell.forget()  # what was rung for before is not told
        try:
            self.file = doorbell.watch(changes)
        except FileNotFoundError:
            if self.place != NONE:
                return False
            self.place = doorbell.watch_place(changes)
            return True
        if self.place != NONE:
            changes.forget(self.place)
            self.place = NONE
        return True

    def hear(self, number: int) -> None:
        """Make the doorbell be read anew, if an event of the kernel is about it."""
        doorbell = self.doorbell if number in (self.file, self.place) else None
        if doorbell is not None:
            doorbell.forget()

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
        self.idle_since = math.inf
        """Time at which the watch was given back, on the monotonic clock."""
        forks.register(self, Listener.close)  # what a child read of the same descriptor, its parent would not hear

    @property
    def fd(self) -> int:
        """Return the descriptor that can be read when a doorbell was rung; -1 if this listens to nothing."""
        return NONE if self._changes is None else self._changes.fd

    def is_over(self, doorbells: Sequence[Doorbell]) -> bool:
        """Return whether the listener listens to exactly some doorbells, in this order."""
        return [one.doorbell for one in self._watched] == list(doorbells)

    def turn_to(self, doorbells: Sequence[Doorbell]) -> None:
        """Listen to these doorbells from now on."""
        if not self.is_over(doorbells):
            self.close()
            self._watched = [_Watched(doorbell) for doorbell in doorbells]

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
            let_out(error)
            logger.debug("no wake-up by inotify (%s); the worker looks every few seconds all the same", error)
            self._retry_at = self.clock.monotonic() + RETRY_S
        return is_more

    def sleep(self, seconds: float, deaf: bool = False) -> None:
        """Wait for `seconds`, or until a doorbell is rung: perhaps not at all. `deaf`: whether it is rung or not.

        If time passes only as a test says, nothing is listened to.
        """
        if not self.clock.is_real:
            self.clock.sleep(seconds)
            return
        if not deaf and self.listen():
            return
        poller, is_deaf = select.poll(), True
        for fd in (NONE if deaf else self.fd, self.end):
            if fd != NONE:
                poller.register(fd, select.POLLIN)
                is_deaf = False
        if is_deaf:
            self.clock.sleep(seconds)
            return
        if any(fd != self.end for fd, _ in poller.poll(seconds * 1000)):
            self.take_in()

    def take_in(self) -> None:
        """Read the events that the kernel has ready, so that they do not end the next sleep."""
        try:
            told = [] if self._changes is None else self._changes.read()
        except OSError as error:
            let_out(error)
            self.close()  # and begin anew
            return
        for number, is_over in told:
            for one in self._watched:
                one.hear(number)
                if is_over:
                    one.end(number)

    def close(self) -> None:
        """Listen to nothing any more. It may be used again."""
        changes, self._changes = self._changes, None
        for one in self._watched:
            one.forget()
        if changes is not None:
            changes.close()


_idle: list[Listener] = []
"""The listener that was given back last, for the next wait: one at most, and for `LINGER_S` at most."""


class _Closer:
    """Close the listener that no wait has asked for. In a thread: it takes longer than a task may have to wait."""

    def __init__(self) -> None:
        self._is_running = False
        forks.register(self, _Closer.after_fork)

    def after_fork(self) -> None:
        """Begin anew in a forked child: the child has no listening thread, and the idle listener is its parent's."""
        self._is_running = False
        _idle.clear()

    def start(self) -> None:
        """Have idle listeners closed after a while."""
        if not self._is_running:
            self._is_running = True
            try:
                _thread.start_new_thread(self._close, ())
            except RuntimeError:  # the system allows no further thread
                self._is_running = False
                close_idle()

    def _close(self) -> None:
        clock, never = Clock(), threading.Event()
        while _idle:
            never.wait(LINGER_S)
            for listener in _idle[:]:
                if clock.monotonic() - listener.idle_since >= LINGER_S:
                    close_idle(listener)
        self._is_running = False
        if _idle:  # it was given back between the two lines above
            self.start()


_closer = _Closer()


def close_idle(one: Listener | None = None) -> None:
    """Close a listener, if it is the idle one."""
    if one is None or one in _idle:
        with suppress(IndexError):  # another thread was faster, or waits by it
            _idle.pop().close()


def idle_over(doorbell: Doorbell) -> list[Listener]:
    """Return the idle listener, if it listens to a doorbell."""
    return [one for one in _idle if any(watched.doorbell is doorbell for watched in one._watched)]


@contextmanager
def over(doorbells: Sequence[Doorbell], clock: Clock) -> Iterator[Listener]:
    """Lend a listener to some doorbells, for the length of a `with` block: one inotify instance for all.

    A user has 128 of those, for all programs. So a process holds one for each thread that waits, and afterwards one
    for a moment: waits follow each other, and to begin anew costs questions to the file server.
    """
    try:
        listener = _idle.pop()
        if listener.clock is not clock or not listener.is_over(doorbells):
            listener.close()
            raise IndexError
    except IndexError:
        listener = Listener(doorbells, clock)
    try:
        yield listener
    finally:
        if listener.fd != NONE:
            listener.idle_since = Clock().monotonic()
            if _idle:
                listener.close()
            else:
                _idle.append(listener)
                _closer.start()
