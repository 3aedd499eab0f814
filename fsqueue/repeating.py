"""Insert completed tasks again, each once (docs/design.md, section 4.10).

The history and the logs tell which tasks were completed, and with which payloads. The `retried` lines of a shard say
which of them were inserted again before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

from fsqueue.errors import LockTimeout
from fsqueue.format import names, priority, task_file
from fsqueue.format.models import Result, RetryReport
from fsqueue.format.names import Batch, Shard
from fsqueue.format.priority import Priority
from fsqueue.storage import deadletters, letter_files, retrying
from fsqueue.storage.retrying import EndedTask
from fsqueue.storage.store import Store
from fsqueue.views import finished, inspection, results
from fsqueue.views.finished import FinishedBatch

GROUP_TASKS_MAX, GROUP_BYTES_MAX = 16_384, 8 << 20
"""Maximum number of tasks of a shard, and of bytes of their lines, to hold before the lock of its file is taken."""

Where = Callable[[Result], bool]


def retry_completed(store: Store, wanted: set[str] | None, where: Where | None) -> RetryReport:
    """Insert completed tasks again, with new ids and no attempts used: those with these ids, for which `where` holds.

    A task that was inserted again before is left out, and so is one whose payload is not kept. What an earlier call
    has recorded, and did not live to publish, is published first. No lock is held while `where` runs. Memory is bounded
    by a group, and by the ids of a shard that were retried or purged.

    QueuePurged, QueueNotFound: a purge or a deletion overtook it. Any other error says how many were inserted.
    """
    store.refresh(now=True)
    repeater = _Repeater(store)
    with repeater.settlement.told():
        retrying.publish_pending(store)
        repeater.retry(wanted, where)
    return repeater.report


class _Candidate(NamedTuple):
    """A completed task that is asked for. `line`: that of the new task; None if the payload is not kept."""

    id: str
    line: bytes | None
    priority: Priority | None


class _Repeater:
    """One call: what it has read of the queue, and what it has done."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.settlement = retrying.Settlement(store, "retrying completed tasks", "Tasks inserted again")
        self.layout = self.settlement.layout
        self.report = RetryReport()
        self._settled: set[str] = set()
        self._read: tuple[Shard, letter_files.State] | None = None
        """The shard whose retried and purged ids are in `_settled`, and the state of its file then."""

    def retry(self, wanted: set[str] | None, where: Where | None) -> None:
        """Go through all completed tasks, shard by shard as they are read, and insert those that are asked for."""
        shard: Shard | None = None
        group: list[_Candidate] = []
        size = 0
        for found in self._ended(wanted):
            at = self.layout.shard(found.batch)
            if at != shard:
                self._insert(shard, group)
                self._give_back(shard)
                shard, group, size = at, [], 0
            for result in results.completed(found):
                if (wanted is None or result.id in wanted) and (where is None or where(result)):
                    group.append(self._candidate(found, result.id))
                    size += len(group[-1].line or b"")
                    if len(group) >= GROUP_TASKS_MAX or size >= GROUP_BYTES_MAX:
                        self._insert(shard, group)
                        group, size = [], 0
        self._insert(shard, group)
        self._give_back(shard)

    def _ended(self, wanted: set[str] | None) -> Iterator[FinishedBatch]:
        """Yield batches with completed tasks: those at work, then those of the history, so that none is missed."""
        only: Collection[Batch] | None = None
        if wanted is not None:
            only = {names.parse_task_id(task_id)[0] for task_id in wanted}
        seen: set[Batch] = set()
        for at_work in inspection.partly_done(self.store, only):
            seen.add(at_work.batch)
            yield at_work
        for found in finished.batches(self.store, offsets=False, only=only):
            if found.batch not in seen:
                yield found

    def _candidate(self, found: FinishedBatch, task_id: str) -> _Candidate:
        index = names.parse_task_id(task_id)[1]
        if not found.keeps_payload(index):
            return _Candidate(task_id, None, None)
        payload, _, urgency = found.task(index)
        urgency = None if priority.fault(urgency) is not None else urgency
        line = task_file.encode_task(payload, 2 * self.store.settings.task_bytes_max, priority=urgency)
        return _Candidate(task_id, line, urgency)

    def _insert(self, shard: Shard | None, group: list[_Candidate]) -> None:
        """Insert those of a group that were not inserted again before, in parts as large as an insert's batches."""
        if shard is None or not group:
            return
        store, report = self.store, self.report
        with self.settlement.locked(shard) as fd:
            if fd is None:
                return
            self._read_settled(shard, fd)
            tasks: list[EndedTask] = []
            for task in group:
                if task.id in self._settled:
                    report.repeated += 1
                elif task.line is None:
                    report.note_unkept(task.id)
                else:
                    tasks.append(EndedTask(task.id, task.line, task.priority))
            for part in retrying.parts(store, tasks):
                retrying.insert_again(store, self.layout, fd, part)
                self._settled.update(task.id for task in part)
                self.settlement.count = report.retried = report.retried + len(part)
            self._read = shard, letter_files.state_of(store, fd)

    def _read_settled(self, shard: Shard, fd: int) -> None:
        """Read which tasks of a shard were retried or purged, unless its file is as this call has left it."""
        if self._read == (shard, letter_files.state_of(self.store, fd)):
            return
        self._read = None
        self._settled = letter_files.settled(self.store, fd)
        for line in letter_files.given_back(self.store, shard):
            self._settled.update(one for one in line["ids"] if isinstance(one, str))

    def _give_back(self, shard: Shard | None) -> None:
        """Move `retried` lines to the history, if they are most of the shard's file. If it is busy, `gc` does it."""
        if shard is not None and self._read is not None and self._read[0] == shard and self.report.retried:
            with suppress(LockTimeout):
                deadletters.give_back(self.store, shard)
