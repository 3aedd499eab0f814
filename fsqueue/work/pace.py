"""How long tasks take, as measured: what is likely to fit into a given time, and how many are worth leasing at once."""

from __future__ import annotations

import math

AIM_S = 0.25
"""How much work is leased ahead for each that does it: little enough that a few workers end together."""
AHEAD_MAX = 1000
"""So many tasks are leased ahead for each at most, however short they are."""
LEASE_SHARE = 20
"""Never more work than this part of a lease."""
GAIN = 1 / 8
"""The weight of a new measurement, as in the estimate of round-trip times of RFC 6298."""
SPREAD = 4
"""So many mean deviations above the mean a task is taken to last, as there."""


class Pace:
    """A moving mean of the seconds that tasks take, and of their deviation from it."""

    def __init__(self, lease_s: float, prefetch: int | None) -> None:
        self._aim_s = min(AIM_S, lease_s / LEASE_SHARE)
        self._prefetch = prefetch
        self.mean_s = math.nan
        self._deviation_s = 0.0
        self._most = 1

    def took(self, seconds: float) -> None:
        """A task has taken so long."""
        if math.isnan(self.mean_s):
            self.mean_s, self._deviation_s = seconds, seconds / 2
        else:
            error = seconds - self.mean_s
            self._deviation_s += GAIN * (abs(error) - self._deviation_s)
            self.mean_s += GAIN * error

    @property
    def likely_s(self) -> float | None:
        """How long a task may well take; None before any was measured."""
        return None if math.isnan(self.mean_s) else self.mean_s + SPREAD * self._deviation_s

    def each(self) -> int:
        """How many tasks each that does them may hold, the one at work included."""
        if self._prefetch is not None:
            return self._prefetch
        if math.isnan(self.mean_s):
            return 1
        return max(1, min(self._most, AHEAD_MAX, int(self._aim_s / max(self.mean_s, 1e-9))))

    def each_within(self, failures_left: float, left_s: float) -> int:
        """Return `each`, but no more than failures may follow, nor than are likely to end in `left_s` seconds."""
        each = self.each()
        if failures_left < math.inf:
            each = max(1, min(each, int(failures_left)))
        likely_s = self.likely_s
        if left_s < math.inf and likely_s:
            each = min(each, max(1, int(left_s / likely_s)))
        return each

    def grow(self) -> None:
        """What was asked for has come: twice as much may be asked for next."""
        self._most = min(2 * self._most, AHEAD_MAX)
