"""Remember which line each of the last tasks came from, to say where to go on after an error."""

from __future__ import annotations

import bisect
import operator

PLACES_MAX = 100_000
"""Maximum number of gaps between lines with tasks to remember: more than stand in what is read ahead, but for odd
inputs."""


class Places:
    """Know the lines of the tasks that were read last, in bounded memory."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, int, int]] = []
        """(the number of a task, that of its file, its line), wherever not the next line has the next task."""

    def note(self, task: int, file: int, line: int) -> None:
        """Take in the place of a task. Of two with one number the later one counts."""
        if self._steps:
            first, known, begin = self._steps[-1]
            if known == file and line - begin == task - first:
                return
        if len(self._steps) >= PLACES_MAX:
            del self._steps[: PLACES_MAX // 2]
        self._steps.append((task, file, line))

    def find(self, task: int) -> tuple[int, int] | None:
        """Return the number of a task's file, and its line. None if they were forgotten."""
        after = bisect.bisect_right(self._steps, task, key=operator.itemgetter(0))
        if not after:
            return None
        first, file, begin = self._steps[after - 1]
        return file, begin + task - first
