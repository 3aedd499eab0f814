"""Time and randomness, injected everywhere and never called for directly (docs/design.md, section 9).

Protocol times are integer milliseconds since the Unix epoch on the file server's clock; what
users see are Unix seconds as floats. Durations inside a process come from a clock that does not
jump and that runs on while the machine is suspended. Where the file server's clock was measured,
its time is taken from that clock, too: setting this host's clock changes nothing (decision 0017).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from random import Random
from typing import TypeVar

from fsqueue import forks
from fsqueue.errors import InvalidArgument, shown

T = TypeVar("T")

MS_MAX = 9_999_999_999_999
"""The latest time a file name can say: 13 digits of milliseconds, in the year 2286."""

MARGIN_MS = (50, 500)
"""Least and greatest safety margin kept around a lease's end."""

DRIFT_MS = 0.1
"""Assumed drift in ms per second; added to the error bound since the last probe."""

REMEASURE_S = 60.0
"""How often, at most, the file server's clock is compared anew."""

STEP_MS = 100.0
"""If this host's clock and its ticks move apart by more, one of them was set: the server's clock is compared anew."""


class Clock:
    """The clock of the file server, as this host sees it.

    `offset_ms` is what to add to the local clock, as last measured; `error_ms` how far that may be wrong. Both are
    zero where the files are stamped by this host's kernel (local disks): there the local clock is the server's.
    """

    local_s: Callable[[], float] = staticmethod(time.time)
    """Seconds since the epoch on this host's own clock. C code, as the next: both are asked on the hot path."""
    monotonic: Callable[[], float] = staticmethod(partial(time.clock_gettime, time.CLOCK_BOOTTIME))
    """Seconds that never jump; they count the time a machine is suspended, too."""

    is_real = True
    """Tell whether time passes by itself. Otherwise a test moves it: wait by `sleep` alone."""

    def __init__(self) -> None:
        self.offset_ms = 0
        self.error_ms = 0
        self.margin_ms = margin_ms(0)
        """How long after a lease's end it may be taken."""
        self.measured = -math.inf
        self._base_ms: int | None = None
        """What to add to the ticks of this host for the server's time; None: it was not measured."""
        self._apart_ms = 0.0
        """How far the local clock was ahead of the ticks when that was measured."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch on the file server's clock (an estimate)."""
        base = self._base_ms
        return int(self.local_s() * 1000) + self.offset_ms if base is None else int(self.monotonic() * 1000) + base

    def local_ms(self) -> float:
        """Return milliseconds since the epoch on this host's own clock, which may be set at any time."""
        return self.local_s() * 1000

    def ticks_ms(self) -> float:
        """Return the milliseconds of `monotonic`, which no user can set. The server's clock is measured by it."""
        return self.monotonic() * 1000

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def learn(self, server_ms: float, before_ms: float, after_ms: float) -> None:
        """Take in the result of one probe: the server's stamp, between two readings of `ticks_ms`.

        A probe may take longer than earlier ones, since the server was away for half a minute. If it is less precise
        than the current bound, it only clamps the estimate to the probe's interval.
        """
        base_ms = round(server_ms - (before_ms + after_ms) / 2)
        error_ms = math.ceil((after_ms - before_ms) / 2) + 1
        now, known_ms = self.monotonic(), self._base_ms
        if known_ms is not None:
            self.error_ms += math.ceil((now - self.measured) * DRIFT_MS)
        if known_ms is None or error_ms <= self.error_ms:
            self._base_ms, self.error_ms = base_ms, error_ms
        elif (apart := abs(known_ms - base_ms)) > error_ms:
            self._base_ms = base_ms + (error_ms if known_ms > base_ms else -error_ms)
            if apart > self.error_ms + error_ms:  # the server's clock was set, or this machine stood still, unnoticed
                self.error_ms = 2 * error_ms
        self.margin_ms = margin_ms(self.error_ms)
        self.measured, self._apart_ms = now, self.local_ms() - self.ticks_ms()
        self.offset_ms = round((self._base_ms or 0) - self._apart_ms)

    def take_over(self, other: Clock) -> None:
        """Take over what another clock has measured of the same server."""
        for name in _MEASURED:
            setattr(self, name, getattr(other, name))

    def is_vague(self) -> bool:
        """Return whether the offset may be wrong by more than the margin makes up for."""
        return 2 * self.error_ms > MARGIN_MS[1]

    def is_stale(self) -> bool:
        """Tell whether the offset was measured too long ago (or never), or a clock of this host was set since.

        Of a virtual machine that was paused, the ticks have missed the pause: that its clock is set afterwards is the
        first sign of it. So it is when a forked child enters another time namespace.
        """
        if self.monotonic() - self.measured > REMEASURE_S:
            return True
        return abs(self.local_ms() - self.ticks_ms() - self._apart_ms) > STEP_MS


_MEASURED = ("offset_ms", "error_ms", "margin_ms", "measured", "_base_ms", "_apart_ms")
"""What a clock knows of its server."""


class LatestMeasurement:
    """What was measured last of a file server's clock, for all who work on one device of it. Threads may share it."""

    def __init__(self) -> None:
        self._latest = Clock()
        """Nothing changes it: what is measured later takes its place."""

    def tell(self, clock: Clock) -> bool:
        """Let a clock take it over, if the clock's own is older. Return whether the clock need not measure now."""
        latest = self._latest
        if latest.measured <= clock.measured:
            return False
        clock.take_over(latest)
        return not clock.is_stale()

    def note(self, clock: Clock) -> None:
        """Take note of what a clock has measured just now."""
        latest = Clock()
        latest.take_over(clock)
        self._latest = latest


class ManualClock(Clock):
    """A clock that stands still until a test moves it; sleeping moves it."""

    is_real = False

    def __init__(self, now_s: float = 1_800_000_000.0) -> None:
        super().__init__()
        self.now_s = now_s

    def now_ms(self) -> int:
        return round(self.now_s * 1000) + self.offset_ms

    def local_s(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self.now_s += seconds


class Entropy:
    """Random identifiers from the operating system, read in pools. A forked child reads its own."""

    POOL_BYTES = 4096
    _PIECES = tuple(slice(at, at + 16) for at in range(0, 2 * POOL_BYTES, 16))
    _latest = (-1, 0)
    """The time and the counter of the latest UUID. Two threads may use a counter twice; the random digits differ."""

    def __init__(self) -> None:
        self._pool: Iterator[str] = iter(())
        forks.register(self, type(self).forget)

    def hex16(self) -> str:
        """Return sixteen random hexadecimal digits (64 bits)."""
        while True:
            digits = next(self._pool, None)  # one step, for threads and signals: nothing is handed out twice
            if digits is not None:
                return digits
            self._pool = map(os.urandom(self.POOL_BYTES).hex().__getitem__, self._PIECES)

    def random(self) -> float:
        """Return a number in [0, 1)."""
        return int(self.hex16()[:13], 16) / (1 << 52)

    def shuffled(self, items: Iterable[T]) -> list[T]:
        """Return the items in a random order. (Cheaper than a random number of the system's for each.)"""
        lots = iter(Random(int(self.hex16(), 16)).random, None)
        return [item for _, item in sorted(zip(lots, items, strict=False))]

    def bytes16(self) -> bytes:
        """Return sixteen random bytes."""
        return bytes.fromhex(self.hex16() + self.hex16())

    def uuid7(self, now_ms: int) -> str:
        """Return a UUID of version 7 (RFC 9562, section 5.7) as 32 hexadecimal digits.

        Those of one millisecond sort as they were made (section 6.2, method 1), up to 2,048 in each. Insertion order
        would otherwise be lost within a millisecond.
        """
        tail = int(self.hex16(), 16)
        variant = (tail & ((1 << 62) - 1)) | (0b10 << 62)
        made_ms, counter = self._latest
        fresh = int(self.hex16()[:3], 16) >> 1
        counter = counter + 1 if made_ms == now_ms and counter < 0xFFF else fresh
        self._latest = now_ms, counter
        return f"{now_ms & ((1 << 48) - 1):012x}7{counter:03x}{variant:016x}"

    def forget(self) -> None:
        """Drop the pool, in a forked child: it and its parent would hand out equal identifiers."""
        self._pool = iter(())


def margin_ms(error_ms: int) -> int:
    """Return how long after a lease's end it may be taken, in milliseconds: twice the clock's error, within bounds."""
    least, most = MARGIN_MS
    return min(max(least, 2 * error_ms), most)


LONGEST_S = MS_MAX / 1000
"""The longest duration that an argument may have (seconds)."""


def duration_ms(seconds: float, name: str, least_s: float = 0.0) -> int:
    """Return `seconds` as whole milliseconds, rounded up. InvalidArgument, naming the argument."""
    if type(seconds) is int and least_s <= seconds <= LONGEST_S:  # as in most cases
        return seconds * 1000
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise InvalidArgument(f"{name} must be a number of seconds, not {shown(seconds)}.")
    if not least_s <= seconds <= LONGEST_S:  # a NaN is not, either
        raise InvalidArgument(f"{name} must be between {least_s:g} and {MS_MAX // 1000} seconds, not {shown(seconds)}.")
    return math.ceil(seconds * 1000 - 1e-6)


PAUSE_S = (1.0, 60.0)
"""The first and the longest pause of a task that asks to be put back without saying for how long."""


def pause_s(in_a_row: int, random: float) -> float:
    """Return how long to put a task back that asks for it, after so many in a row. `random` is in [0, 1)."""
    least, most = PAUSE_S
    return min(most, least * 2.0 ** min(in_a_row - 1, 30)) * (0.75 + random / 2)


class Backoff:
    """Pauses in seconds that grow from the first to the longest, each a little different from the others' pauses.

    Hosts that wait for the same thing would otherwise all look at the same moment. `jitter`: by which part of it a
    pause is longer or shorter at most.
    """

    def __init__(
        self, bounds_s: tuple[float, float], random: Callable[[], float], growth: float = 1.3, jitter: float = 0.25
    ) -> None:
        self._pause_s, self._longest_s = bounds_s
        self._random = random
        self._growth = growth
        self._jitter = jitter

    @property
    def is_longest(self) -> bool:
        """Return whether the pauses do not grow any more."""
        return self._pause_s >= self._longest_s

    def next_s(self) -> float:
        """Return the next pause."""
        pause_s = self._pause_s
        self._pause_s = min(pause_s * self._growth, self._longest_s)
        return pause_s * (1 - self._jitter + 2 * self._jitter * self._random())
