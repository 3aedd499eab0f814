"""Clocks that a test moves while real processes go by them: no lease runs out because the machine is busy."""

from __future__ import annotations

import mmap
import struct

from fsqueue.clock import Clock


class SharedClock(Clock):
    """Real time, and what the test has let pass: a jump is seen by all processes that were forked since, and at once.

    With leases of an hour, a lease ends when the test says so. For local disks: on a mount, the server's clock counts.
    """

    def __init__(self) -> None:
        super().__init__()
        self._passed = mmap.mmap(-1, 8)

    def _passed_s(self) -> float:
        return float(struct.unpack("d", self._passed[:8])[0])

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass, in this process and in all that share the clock."""
        self._passed[:8] = struct.pack("d", self._passed_s() + seconds)

    def local_s(self) -> float:
        return Clock.local_s() + self._passed_s()

    def monotonic(self) -> float:
        return Clock.monotonic() + self._passed_s()
