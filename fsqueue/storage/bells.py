"""The bells of a group: one small file that tells in which of its queues no process has rung (decision 57).

A lessee reads it in place of the doorbell of each queue. A hint, as a doorbell is: what is lost costs time alone. A
group without the file, or with a damaged one, works all the same. Its doorbells are read one by one then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from fsqueue.clock import Clock, Entropy
from fsqueue.filesystem import Filesystem
from fsqueue.format.groups import BELL_BYTES, BELLS_BYTES, bells_file
from fsqueue.interruptions import let_out, suppress
from fsqueue.storage.listening import Doorbell

QUIET_S = 1.0
"""Minimum number of seconds between two rings of a queue's bell by one process. In between it rings the doorbell alone.
"""
SETTLED_S = 1.2 * QUIET_S
"""Number of seconds after a bell was seen to ring. From then on the queue's doorbell holds all that was rung before."""
FRESH_S = 0.1
"""Minimum number of seconds between two reads of the file, and of a doorbell whose bell has rung. A notification that
the kernel reports has the doorbell read at once."""
ABSENT_S = 60.0
"""Minimum number of seconds between two looks for the file if it is missing."""


class _View(NamedTuple):
    """Hold what the file said when it was last read; times are on the monotonic clock."""

    content: bytes
    """Content of the file of bells; b"" if there is no file."""
    until: float
    """Time at which to read the file of bells again (monotonic clock)."""
    settled_at: float
    """Time from which on a doorbell whose bell has not rung meanwhile holds all that was rung (monotonic clock), ..."""
    rung: Mapping[int, float]
    """... and the same of each bell that was seen to ring just now."""


class Bells:
    """Read and ring the bells of an open group. Safe to use from many threads.

    A thread that is late may put an older view in the place of a newer one. Then what rang in between is seen at the
    next reading.
    """

    def __init__(self, fs: Filesystem, group: str, clock: Clock, entropy: Entropy) -> None:
        self._fs, self._path, self.clock, self._entropy = fs, bells_file(group), clock, entropy
        self._view = _View(b"", -math.inf, math.inf, {})

    def ring(self, bell: int) -> None:
        """Change the bell of a queue, whose doorbell was rung, if the bell's file is there."""
        assert 0 <= bell < BELLS_BYTES // BELL_BYTES, "the file would grow"
        with suppress(OSError):
            self._fs.overwrite_at(self._path, self._entropy.bytes16()[:BELL_BYTES], bell * BELL_BYTES)

    def mark(self, bell: int) -> bytes | None:
        """Return the content of a bell. As long as that stays the same, so does a doorbell that is read after this
        call.

        None if that is not known, or if the bell has rung just now.
        """
        now = self.clock.monotonic()
        view = self._view
        if now >= view.until:
            view = self._view = self._look(view)
        if now < view.rung.get(bell, view.settled_at):
            return None
        return view.content[bell * BELL_BYTES : (bell + 1) * BELL_BYTES]

    def _look(self, before: _View) -> _View:
        content = self._read()
        now = self.clock.monotonic()  # after it: each ring that it tells of had begun by then
        if not content:
            return _View(b"", now + ABSENT_S, math.inf, {})
        if not before.content:
            return _View(content, now + FRESH_S, now + SETTLED_S, {})
        rung = {bell: settled_at for bell, settled_at in before.rung.items() if settled_at > now}
        if content != before.content:
            each = zip(*(memoryview(one).cast("I") for one in (before.content, content)), strict=True)
            rung |= {bell: now + SETTLED_S for bell, (old, new) in enumerate(each) if old != new}
        return _View(content, now + FRESH_S, before.settled_at, rung)

    def _read(self) -> bytes:
        """Return the file's content; b"" if it is not there, or too short."""
        try:
            with self._fs.closing(self._fs.look_anew(self._path)) as fd:
                content = self._fs.pread(fd, BELLS_BYTES, 0)
                if self._fs.shared:  # a client that writes to a page that it has cached may write the whole page
                    self._fs.drop_cached(fd)
        except OSError as error:
            let_out(error)
            return b""
        return content if len(content) == BELLS_BYTES else b""


_UNKNOWN = None, b"", -math.inf


class RingingDoorbell(Doorbell):
    """The doorbell of a queue that was made in a group: who rings it rings the queue's bell, too."""

    def __init__(
        self, fs: Filesystem, path: str, entropy: Entropy, clock: Clock, ring_bell: Callable[[], object]
    ) -> None:
        super().__init__(fs, path, entropy)
        self._clock, self._ring_bell = clock, ring_bell
        self._rung_for_all_at = -math.inf

    def ring(self) -> None:
        """Notify idle workers: ring the doorbell, then the bell unless this process has done so a moment ago.

        In this order a worker that saw the bell ring, and reads the doorbell `SETTLED_S` later, overlooks nothing.
        """
        super().ring()
        now = self._clock.monotonic()
        if now - self._rung_for_all_at >= QUIET_S:
            self._ring_bell()
            self._rung_for_all_at = now  # after it, as in `ring_now_and_then`; and the time is that before it


class GroupDoorbell(RingingDoorbell):
    """The doorbell of a queue of a group. To read it again costs nothing as long as the queue's bell has not rung."""

    def __init__(self, fs: Filesystem, path: str, entropy: Entropy, bells: Bells, bell: int) -> None:
        super().__init__(fs, path, entropy, bells.clock, partial(bells.ring, bell))
        self._bells, self._bell = bells, bell
        self._known: tuple[bytes | None, bytes, float] = _UNKNOWN
        """The bell's mark before the doorbell was last read, what was read, and until when it is believed in any case.
        One object: threads share it."""

    def read(self) -> bytes:
        """Return the doorbell's value, as `Doorbell.read`; perhaps as it was a moment ago."""
        mark = self._bells.mark(self._bell)
        known, value, until = self._known
        if (mark is None or mark != known) and (now := self._bells.clock.monotonic()) >= until:
            value = super().read()
            self._known = mark, value, now + FRESH_S
        return value

    def forget(self) -> None:
        """Make the next `read` read the doorbell's file: the doorbell was heard, or its queue may be gone."""
        self._known = _UNKNOWN


def make(fs: Filesystem, group: str) -> None:
    """Make a group's file of bells if it is missing or too short. What cannot be made is done without."""
    path = bells_file(group)
    with suppress(OSError):
        if not fs.exists(path) or fs.size_on_server(path) < BELLS_BYTES:
            fs.overwrite(path, bytes(BELLS_BYTES))
