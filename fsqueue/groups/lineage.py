"""Follow a task over the queues of a group, by the updates that inserted and completed it (decision 52).

Each record of an update has the update's id. Where its other records are, the `commit` in the decision file says, as
long as that file is there: `gc` retires it a day after its last line, or an hour after it if it is full. No lock is
taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from fsqueue.errors import FsqueueError, QueueNotFound
from fsqueue.format import movements, names
from fsqueue.format.models import AsDict
from fsqueue.format.names import Batch, Generation, QueueDirectory
from fsqueue.format.replay import ReplayState
from fsqueue.groups.queue import GroupQueue
from fsqueue.interruptions import let_out, suppress
from fsqueue.storage import decisions, history
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.views import finished
from fsqueue.views.task_history import decided_records

TASKS_MAX = 100
"""Maximum number of tasks that are found in each direction."""
LOGS_MAX = 200
"""Maximum number of batches that are read for it, each of them whole."""
ENDED = ("complete", "fail", "bury", "release", "cancel")
"""Operations of an update that end a task, or hand it back. The update may insert other tasks beside."""


@dataclass(frozen=True, slots=True)
class Relative(AsDict):
    """A task that an update has changed together with another one."""

    queue: str
    id: str
    op: str
    """Operation of the update on the task: "insert", "complete", ..."""
    at: float
    """When, in Unix seconds."""
    steps: int
    """How many updates lie between: -1 is the task whose end has inserted this one, 1 a task that its end inserted."""
    update: str
    among: int
    """How many tasks the update has ended. If there are several, it inserted for one of them, and does not say which:
    a worker tells completions together that follow each other at once."""


@dataclass(frozen=True, slots=True)
class Lineage(AsDict):
    """Hold the tasks that a task came of, the nearest first, and those that came of it, as far as known. A hint."""

    ancestors: list[Relative]
    successors: list[Relative]
    is_whole: bool
    """False if there may be more: there are more tasks than are looked for, or what leads to some is gone, or could not
    be read."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, ready for JSON."""
        return {
            "ancestors": [one.as_dict() for one in self.ancestors],
            "successors": [one.as_dict() for one in self.successors],
            "is_whole": self.is_whole,
        }


class _At(NamedTuple):
    """A batch of a queue."""

    directory: QueueDirectory
    batch: Batch


class _Found(NamedTuple):
    """Tell what an update did to one task."""

    at: _At
    number: int
    """The task's index."""
    op: str
    ms: int


class Search:
    """Look for relatives. `queue_in` opens a queue of the group by its directory's name."""

    def __init__(self, group: GroupDirectory, queue_in: Callable[[QueueDirectory], GroupQueue]) -> None:
        self._group, self._queue_in = group, queue_in
        self._records: dict[_At, history.Records] = {}
        self._is_whole = True

    def lineage(self, directory: QueueDirectory, task_id: str) -> Lineage:
        """Return the relatives of a task. Of a task that is not known it has none."""
        batch, index = names.parse_task_id(task_id)
        start = _At(directory, batch)
        return Lineage(self._walk(start, index, -1), self._walk(start, index, 1), self._is_whole)

    def _walk(self, start: _At, index: int, step: int) -> list[Relative]:
        """Follow updates backwards, from inserted tasks to ended ones (-1), or forwards (1)."""
        found: list[Relative] = []
        seen = {(start, index)}
        waiting = deque([(start, index, 0)])
        while waiting:
            at, number, steps = waiting.popleft()
            for update, others in self._updates_of(at, number, backwards=step < 0):
                ended = sum(one.op in ENDED for one in others)
                for one in others:
                    is_next = one.op in ENDED if step < 0 else one.op == "insert"
                    if not is_next or (one.at, one.number) in seen:
                        continue
                    if len(found) >= TASKS_MAX:
                        self._is_whole = False
                        return found
                    seen.add((one.at, one.number))
                    waiting.append((one.at, one.number, steps + step))
                    queue = names.parse_queue_directory(one.at.directory) or one.at.directory
                    task_id = names.task_id(one.at.batch, one.number)
                    found.append(Relative(queue, task_id, one.op, one.ms / 1000, steps + step, update, ended))
        return found

    def _updates_of(self, at: _At, index: int, backwards: bool) -> Iterator[tuple[str, list[_Found]]]:
        """Yield the updates that inserted a task (`backwards`) or ended an attempt at it, with all that they did."""
        for record in self._of(at, None):
            update = record.get("update")
            if not isinstance(update, str) or index not in _indices(record):
                continue
            if (record["op"] == "insert") == backwards and record["op"] in ("insert", *ENDED):
                yield update, list(self._parts(at, update, record.get("file")))

    def _parts(self, at: _At, update: str, file: object) -> Iterator[_Found]:
        """Yield what an update did to each task, in all of its logs."""
        for place, generation in self._logs(at, update, file):
            for record in self._of(place, generation):
                if record.get("update") == update:
                    for index in _indices(record):
                        yield _Found(place, index, record["op"], record["at"])

    def _logs(self, at: _At, update: str, file: object) -> list[tuple[_At, Generation | None]]:
        """Return the logs that an update has changed. Of one that changed a single log, that."""
        if file is None:
            return [(at, None)]
        name, parsed = names.parse_decisions(file), names.parse_update(update)
        decided = None
        if name is not None and parsed is not None:
            with suppress(FsqueueError, OSError):
                state = decisions.read(self._group, name)
                decided = None if state is None else state.first.get(parsed)
        if decided is None or decided.outcome != "commit":  # the file is gone: only this log is known
            self._is_whole = False
            return [(at, None)]
        return [(_At(log.directory, log.batch), log.generation) for log in decided.logs]

    def _of(self, at: _At, generation: Generation | None) -> list[dict[str, Any]]:
        """Return the records of updates that have taken place in a batch, of its log or of the history."""
        if at not in self._records:
            self._records[at] = []
            if len(self._records) > LOGS_MAX:
                self._is_whole = False
            else:
                try:
                    self._records[at] = self._read(at, generation)
                except QueueNotFound:
                    pass  # it was deleted, with all that was known of its tasks
                except (FsqueueError, OSError) as error:
                    let_out(error)
                    self._is_whole = False
        return [record for _, record in self._records[at]]

    def _read(self, at: _At, generation: Generation | None) -> history.Records:
        queue = self._queue_in(at.directory)
        try:
            store = queue.store
            store.verify()
            if generation not in (None, store.queue_state.directory):
                return []  # it was purged, or deleted and made anew
            records = decided_records(store, at.batch) or history.find(store, at.batch) or []
            sound = [(offset, one) for offset, one in records if movements.is_record(one)]
            state = ReplayState()
            acted = [(offset, one) for offset, one in state.effective(sound) if "update" in one]
            hidden = finished.hidden(store, state)
            return [(offset, one) for offset, one in acted if not hidden or not hidden.issuperset(_indices(one))]
        finally:
            queue.close()


def _indices(record: dict[str, Any]) -> list[int]:
    """Return the tasks that a record is about, by their indices."""
    if record["op"] == "insert":
        return [record["first"]]
    ranges = record.get("tasks")
    return movements.from_ranges(ranges) if isinstance(ranges, list) else []
