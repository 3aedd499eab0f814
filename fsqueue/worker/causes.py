"""Why an attempt at a task has failed, as the worker knows it: what `--on` tells apart."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Memory(Enum):
    """Whether an attempt has failed for want of memory. The values are how the reason of its failure begins then."""

    ENOUGH = ""
    """It has not, as far as is known."""
    PROBABLY_SHORT = "probably out of memory"
    SHORT = "out of memory"

    def reason(self, ended: str) -> str:
        """Return how the reason of a failure begins. `ended`: how the attempt has ended, in words."""
        return f"{self.value} ({ended})" if self.value else ended


class Cause(NamedTuple):
    """What has made an attempt fail."""

    memory: Memory = Memory.ENOUGH
    exit_status: int | None = None
    """Of its command; None if that has none: a signal has ended it, or the attempt is a call of a function."""


UNKNOWN = Cause()
"""Nothing that `--on` tells apart."""
