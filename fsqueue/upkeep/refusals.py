"""Errors of single files that upkeep passes over: it says so, and goes on."""

from __future__ import annotations

import errno
import logging
from collections import Counter
from collections.abc import Callable

from fsqueue.filesystem import NOT_FILES

logger = logging.getLogger("fsqueue")

PASSED_OVER = (*NOT_FILES, errno.EACCES, errno.EPERM, errno.EIO)
"""Errors of a file that upkeep passes over: one of another user, a stray, or one that the disk cannot read."""


class Refusals:
    """Sum up the system's refusals, so that a user who may only read gets a line for each kind, not for each file."""

    def __init__(self) -> None:
        self.first: dict[int, OSError] = {}
        self.count: Counter[int] = Counter()

    def add(self, error: OSError) -> None:
        """Remember an error."""
        code = error.errno or 0
        self.first.setdefault(code, error)
        self.count[code] += 1

    def warn(self, what: Callable[[int], str]) -> None:
        """Log a warning for each kind. `what` makes a sentence of the number of refusals."""
        for code, error in self.first.items():
            logger.warning("%s; the first because of %s", what(self.count[code]), error)
