"""Show how far an insert is."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from .printing import bar, is_screen

PROGRESS_AFTER_S = 1.0
LOOK_EVERY = 256
"""Tasks between two looks at the clock for the progress bar."""


class InsertBar:
    """Show a bar on standard error, if that is a terminal and the work takes more than a second."""

    def __init__(self, files: tuple[str, ...]) -> None:
        self.files = files
        self._wanted = is_screen(sys.stderr)
        self._due = time.monotonic() + PROGRESS_AFTER_S
        self._tasks = 0
        self._bytes = 0.0
        self._bar: Any = None

    def read(self, count: float) -> None:
        """Count bytes that were read, exactly or about."""
        self._bytes += count

    def count(self) -> None:
        """Count a task, and draw the bar now and then."""
        self._tasks += 1
        if not self._wanted or self._tasks % LOOK_EVERY:
            return
        if self._bar is None and time.monotonic() >= self._due:
            self._bar = self._start()
        if self._bar is not None:
            self._bar.set_postfix_str(f"{self._tasks:,} tasks", refresh=False)
            self._bar.update(int(self._bytes) - self._bar.n)

    def _start(self) -> Any:
        try:
            sizes = [os.path.getsize(name) for name in self.files]
        except OSError:  # standard input, or no longer there
            sizes = []
        return bar(total=sum(sizes) or None, unit="B", unit_scale=True, desc="insert", miniters=1, leave=False)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
