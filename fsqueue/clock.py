"""Time and randomness, injected everywhere and never called for directly (DESIGN section 7).

Protocol times are integer milliseconds since the Unix epoch on the file server's clock; what
users see are Unix seconds as floats. Durations inside a process come from a clock that does not
jump and that runs on while the machine is suspended.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator

from fsqueue.errors import InvalidArgument

MS_MAX = 9_999_999_999_999
"""The latest time a file name can say: 13 digits of milliseconds, in the year 2286."""

MARGIN_MS = (50, 500)
"""Least and greatest safety margin kept around a lease's end."""

DRIFT_MS = 0.1
"""How far two clocks may drift apart in a second: what is known of an offset gets worse by that with time."""

REMEASURE_S = 60.0
"""How often, at most, the file server's clock is compared anew."""


class Clock:
    """The clock of the file server, as this host sees it.

    `offset_ms` is what to add to the local clock; `error_ms` how far that may be wrong. Both are
    zero where the files are stamped by this host's kernel (local disks).
    """

    def __init__(self) -> None:
        self.offset_ms = 0
        self.error_ms = 0
        self.measured = -math.inf

    def now_ms(self) -> int:
        """Milliseconds since the epoch on the file server's clock (an estimate)."""
        return int(time.time() * 1000) + self.offset_ms

    def local_ms(self) -> float:
        """Milliseconds since the epoch on this host's own clock."""
        return time.time() * 1000

    def monotonic(self) -> float:
        """Seconds that never jump; they count the time a machine is suspended, too."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def margin_ms(self) -> int:
        """How long after a lease's end it may be taken: twice the clock's error, within bounds."""
        least, most = MARGIN_MS
        return min(max(2 * self.error_ms, least), most)

    def learn(self, server_ms: float, before_ms: float, after_ms: float) -> None:
        """Take over what one probe told: the server's stamp, between two readings of the local clock.

        A probe that took longer than those before, the server being away for half a minute perhaps, tells little:
        what is known already is changed only as far as it cannot be true any more.
        """
        offset_ms = round(server_ms - (before_ms + after_ms) / 2)
        error_ms = math.ceil((after_ms - before_ms) / 2) + 1
        now = self.monotonic()
        if self.measured > -math.inf:
            self.error_ms += math.ceil((now - self.measured) * DRIFT_MS)
        if self.measured == -math.inf or error_ms <= self.error_ms:
            self.offset_ms, self.error_ms = offset_ms, error_ms
        elif (apart := abs(self.offset_ms - offset_ms)) > error_ms:
            self.offset_ms = offset_ms + (error_ms if self.offset_ms > offset_ms else -error_ms)
            if apart > self.error_ms + error_ms:  # a clock was set meanwhile
                self.error_ms = 2 * error_ms
        self.measured = now

    def is_vague(self) -> bool:
        """Whether the offset may be wrong by more than the margin makes up for."""
        return 2 * self.error_ms > MARGIN_MS[1]

    def is_stale(self) -> bool:
        """Whether the offset was measured too long ago (or never)."""
        return self.monotonic() - self.measured > REMEASURE_S


class ManualClock(Clock):
    """A clock that stands still until a test moves it; sleeping moves it."""

    def __init__(self, now_s: float = 1_800_000_000.0) -> None:
        super().__init__()
        self.now_s = now_s

    def now_ms(self) -> int:
        return round(self.now_s * 1000) + self.offset_ms

    def local_ms(self) -> float:
        return self.now_s * 1000

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self.now_s += seconds


class Entropy:
    """Random identifiers from the operating system, read in pools. A forked child must `forget`."""

    POOL_BYTES = 4096

    def __init__(self) -> None:
        self._pool: Iterator[str] = iter(())

    def hex16(self) -> str:
        """Sixteen random hexadecimal digits (64 bits)."""
        while True:
            digits = next(self._pool, None)  # one step, for threads and signals: nothing is handed out twice
            if digits is not None:
                return digits
            pool = os.urandom(self.POOL_BYTES).hex()
            self._pool = iter([pool[at : at + 16] for at in range(0, len(pool), 16)])

    def random(self) -> float:
        """A number in [0, 1)."""
        return int(self.hex16()[:13], 16) / (1 << 52)

    def bytes16(self) -> bytes:
        """Sixteen random bytes."""
        return bytes.fromhex(self.hex16() + self.hex16())

    def uuid7(self, now_ms: int) -> str:
        """A UUID of version 7 (RFC 9562, section 5.7) as 32 hexadecimal digits."""
        tail = int(self.hex16(), 16)
        variant = (tail & ((1 << 62) - 1)) | (0b10 << 62)
        return f"{now_ms & ((1 << 48) - 1):012x}7{self.hex16()[:3]}{variant:016x}"

    def forget(self) -> None:
        """Drop the pool: after a fork, parent and child would hand out equal identifiers."""
        self._pool = iter(())


def duration_ms(seconds: float, name: str, least_s: float = 0.0) -> int:
    """`seconds` as whole milliseconds (rounded up), or InvalidArgument naming the argument."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise InvalidArgument(f"{name} must be a number of seconds, not {seconds!r}.")
    if not least_s <= seconds <= MS_MAX / 1000:  # a NaN is not, either
        raise InvalidArgument(f"{name} must be between {least_s:g} and {MS_MAX // 1000} seconds, not {seconds!r}.")
    return math.ceil(seconds * 1000 - 1e-6)
