"""Replay a movement log, and note when attempts began, failed and ran out (docs/format.md, "Movement logs").

Pure, as `ReplayState`: the same bytes give each reader the same times.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from fsqueue.format.movements import Record
from fsqueue.format.replay import LEASED, ReplayState


class CountingReplay(ReplayState):
    """Hold the state of a batch's tasks, and the times (ms) of what happened to them, with numbers of tasks.

    After a checkpoint it has what happened since. Outcomes are not noted: the state tells their times.
    """

    __slots__ = ("_run_out", "began", "expired", "failed", "retried")

    def __init__(self) -> None:
        self.began: Counter[int] = Counter()
        """Attempts that a worker began, by leasing the task."""
        self.retried: Counter[int] = Counter()
        """Those among them that are not the first: an attempt at the task was charged before."""
        self.failed: Counter[int] = Counter()
        """Attempts that a worker reported as failed, also those after which the task was given up."""
        self.expired: Counter[int] = Counter()
        """Leases that had run out when another record took the task, changed or buried it."""
        self._run_out = 0
        """How many leases the record has found run out that is being applied."""
        super().__init__()

    def apply(self, record: Record, offset: int) -> bool:
        """Apply a record as `ReplayState` does. Note the failures that it, or the update that it decides, tells of."""
        applied = super().apply(record, offset)
        if "update" in record:
            for place, one in self.acted if applied else ():
                self._note_failure(one, place, one["at"])
        elif applied:
            self._note_failure(record, offset, self.at)
        return applied

    def lease(
        self, at: int, lease: str, tasks: list[int], until: int, worker: dict[str, Any] | None, several: bool,
        offset: int,
    ) -> list[int]:  # fmt: skip
        """Lease tasks as `ReplayState` does. Note the attempts that begin, unless the tasks move to another queue."""
        given = super().lease(at, lease, tasks, until, worker, several, offset)
        self._note_expiries(at)
        if given and self.leases[lease].move is None:
            self.began[at] += len(given)
            if again := sum(self.attempts[index] > 0 for index in given):
                self.retried[at] += again
        return given

    def change(self, index: int, at: int, available_at: int | None, offset: int) -> None:
        """Change a task as `ReplayState` does, and note a lease on it that has run out."""
        super().change(index, at, available_at, offset)
        self._note_expiries(at)

    def decide(self, index: int, outcome: int, at: int, offset: int) -> None:
        """Give a task an outcome as `ReplayState` does, and note a lease on it that has run out."""
        super().decide(index, outcome, at, offset)
        self._note_expiries(at)

    def _expire(self, index: int) -> None:
        holder = self.holder[index]
        if self.state[index] == LEASED and holder is not None and holder.move is None:
            self._run_out += 1
        super()._expire(index)

    def _note_expiries(self, at: int) -> None:
        if self._run_out:
            self.expired[at] += self._run_out
            self._run_out = 0

    def _note_failure(self, record: Record, offset: int, at: int) -> None:
        """Note the attempts that a record that acted has ended as failures."""
        if record["op"] == "fail" or (record["op"] == "bury" and record.get("lease") is not None):
            failed = sum(
                self.version[index] == offset
                for start, end in record["tasks"]
                for index in range(start, min(end, self.count))
            )
            self.failed[at] += failed
