"""FinishedBatch batches, with the payloads that are kept of them (docs/format.md, "Payloads")."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any

from fsqueue.format import task_file
from fsqueue.format.names import Batch
from fsqueue.format.replay import ReplayState
from fsqueue.format.uniform import decode_payloads
from fsqueue.storage import history, payloads
from fsqueue.storage.history import Records
from fsqueue.storage.store import Store


class FinishedBatch:
    """A batch of which every record is known: each finished one, and one at work whose log was read whole."""

    __slots__ = ("_inserts", "_tasks", "batch", "lines", "replay_state")

    def __init__(self, batch: Batch, records: Records, lines: list[bytes]) -> None:
        self.batch = batch
        self.lines = lines
        """Those of the task file, as far as they are kept."""
        self._tasks: list[Any] | None = None
        """The lines decoded, once they are asked for."""
        self._inserts: dict[int, dict[str, Any]] = {}
        self.replay_state = ReplayState()
        self.replay_state.apply_all(records, self._inserts)

    def inserted_at(self, index: int) -> int | None:
        """Return when the task was inserted into the log (ms); None if it was in the task file."""
        record = self._inserts.get(index)
        return record["at"] if record is not None else None

    def keeps_payload(self, index: int) -> bool:
        """Return whether the task's payload is kept: `task` has None for one that is not, and for null."""
        if index in self.replay_state.payloads:
            return True
        record = self._record(index)
        if record is None:
            return False
        try:
            task_file.decode_fields(record)
        except ValueError:
            return False
        return True

    def task(self, index: int) -> tuple[Any, Any, Any]:
        """Return the task's payload, key and priority, each None if it has none or it is not kept.

        The payload is the last one, if it was replaced.
        """
        record = self._record(index)
        payload = key = priority = None
        if record is not None:
            try:
                payload = task_file.decode_fields(record)
                key, priority = record.get("key"), record.get("priority")
            except ValueError:
                pass  # too long to be kept
        payloads_now = self.replay_state.payloads
        return payloads_now.get(index, payload) if payloads_now else payload, key, priority

    def _record(self, index: int) -> Any:
        """Return what the task file's line or the `insert` record says of a task; None if it is not kept."""
        if self._tasks is None:
            self._tasks = task_file.decode_tasks(self.lines)
        record = self._inserts.get(index) if self._inserts else None
        if record is None and index < len(self._tasks):
            record = self._tasks[index]
        return record

    def payloads_and_keys(self, indices: Sequence[int]) -> tuple[Sequence[Any], list[Any]]:
        """Return the payloads and the keys of tasks, as `task` does of each.

        Faster if all are in a sound task file, and still more if they are asked for all at once and are of one shape.
        """
        count = self.replay_state.count
        if len(indices) == count == len(self.lines) and not self.replay_state.payloads and not self._inserts:
            uniform = decode_payloads(self.lines)
            if uniform is not None:
                return uniform, [None] * count
        if self._tasks is None:
            self._tasks = task_file.decode_tasks(self.lines)
        tasks: list[Any] = self._tasks
        if not self._inserts and not self.replay_state.payloads and len(tasks) == count:
            try:
                chosen = tasks if len(indices) == len(tasks) else [tasks[index] for index in indices]
                return [record["payload"] for record in chosen], [record.get("key") for record in chosen]
            except (KeyError, TypeError):
                pass  # bytes, or None for a line that is damaged
        payloads: list[Any] = []
        keys: list[Any] = []
        for index in indices:
            payload, key, _ = self.task(index)
            payloads.append(payload)
            keys.append(key)
        return payloads, keys


def batches(store: Store, offsets: bool = True, only: Container[Batch] | None = None) -> Iterator[FinishedBatch]:
    """Yield the finished batches that the history keeps. Memory: that of one batch, and of the names of kept files.

    Without `offsets` the versions of tasks are numbers of records: faster. `only`: these batches.
    """
    files = payloads.files(store)
    for batch, records, lines in history.finished_batches(store, offsets):
        if only is not None and batch not in only:
            continue
        if not lines and batch in files:
            lines = payloads.lines_at(store, files[batch])
        yield FinishedBatch(batch, records, lines)


def find(store: Store, batch: Batch) -> FinishedBatch | None:
    """Return a finished batch; None if the history does not know it."""
    found = history.find_finished(store, batch)
    if found is None:
        return None
    return FinishedBatch(batch, found.records, found.lines or payloads.of_batch(store, batch))
