"""Finished batches, with the payloads that are kept of them (docs/format.md, "Payloads")."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from fsqueue.format import task_file
from fsqueue.format.names import Batch
from fsqueue.format.replay import CANCELLED, COMPLETED, ReplayState
from fsqueue.format.uniform import decode_payloads
from fsqueue.storage import history, payloads
from fsqueue.storage.history import NOT_KEPT, Records
from fsqueue.storage.store import Store


class FinishedBatch:
    """A batch of which every record is known: each finished one, and one at work whose log was read whole.

    It hides what the queue does not keep (`payload_bytes_max`: see `task_file.is_kept`). That may be on disk still:
    other tasks of the batch have not ended, or `gc` has not erased it. All views read here what finished tasks carry.
    """

    __slots__ = ("_inserts", "_payload_bytes_max", "_tasks", "batch", "lines", "replay_state")

    def __init__(self, batch: Batch, records: Records, lines: list[bytes], payload_bytes_max: int | None) -> None:
        self.batch = batch
        self.lines = lines
        """Those of the task file, as far as they are there."""
        self._payload_bytes_max = payload_bytes_max
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
            return self._replaced_by(index) is not NOT_KEPT
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
        if index in self.replay_state.payloads:
            replaced = self._replaced_by(index)
            payload = None if replaced is NOT_KEPT else replaced
        return payload, key, priority

    def _replaced_by(self, index: int) -> Any:
        """Return the last payload that a task was given; NOT_KEPT if it is not kept."""
        payload = self.replay_state.payloads[index]
        is_kept = payload is not NOT_KEPT and task_file.is_kept({"payload": payload}, self._payload_bytes_max)
        return payload if is_kept else NOT_KEPT

    def _record(self, index: int) -> Any:
        """Return what the task file's line or the `insert` record says of a task; None if it is not kept."""
        if self._payload_bytes_max == 0:
            return None
        if self._tasks is None:
            self._tasks = task_file.decode_tasks(self.lines)
        record = self._inserts.get(index) if self._inserts else None
        if record is None and index < len(self._tasks):
            record = self._tasks[index]
        return record if record is not None and task_file.is_kept(record, self._payload_bytes_max) else None

    def tasks(self, indices: Sequence[int]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Return the payloads, the keys and the priorities of tasks, as `task` does of each. `indices` are in order.

        Faster if all are in a sound task file, and still more if they are asked for all at once and are of one shape.
        """
        count = self.replay_state.count
        if self._payload_bytes_max == 0:
            return _nothing(indices), _nothing(indices), _nothing(indices)
        if not task_file.are_short(self.lines, self._payload_bytes_max):
            return self._each(indices)
        if len(indices) == count == len(self.lines) and not self.replay_state.payloads and not self._inserts:
            uniform = decode_payloads(self.lines)
            if uniform is not None:
                return uniform, _nothing(indices), _nothing(indices)
        if self._tasks is None:
            self._tasks = task_file.decode_tasks(self.lines)
        tasks: list[Any] = self._tasks
        if not self._inserts and not self.replay_state.payloads and len(tasks) == count:
            try:
                chosen = tasks if len(indices) == len(tasks) else [tasks[index] for index in indices]
                payloads = [record["payload"] for record in chosen]
                keys, priorities = ([record.get(name) for record in chosen] for name in ("key", "priority"))
                return payloads, keys, priorities
            except (KeyError, TypeError):
                pass  # bytes, or None for a line that is damaged
        return self._each(indices)

    def _each(self, indices: Sequence[int]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        each = [*map(self.task, indices)]
        return [one[0] for one in each], [one[1] for one in each], [one[2] for one in each]


def _nothing(indices: Sequence[int]) -> list[Any]:
    return [None] * len(indices)


def hidden(store: Store, replay_state: ReplayState) -> frozenset[int]:
    """Return the tasks of a batch of which no view tells: those that ended in a queue that forgets them at once.

    Its log may be there still, since other tasks of the batch have not ended. Dead letters are kept in any queue.
    """
    if store.settings.keep_history or not (replay_state.done[COMPLETED] or replay_state.done[CANCELLED]):
        return frozenset()
    return frozenset(index for index, state in enumerate(replay_state.state) if state in (COMPLETED, CANCELLED))


def batches(store: Store, offsets: bool = True, only: Collection[Batch] | None = None) -> Iterator[FinishedBatch]:
    """Yield the finished batches that the history keeps. Memory: that of one batch, and of the names of kept files.

    Without `offsets` the versions of tasks are numbers of records: faster. `only`: these batches. Then it reads the
    history of their shards alone, until all are found.
    """
    files: dict[Batch, str] | None = None
    found = history.finished_batches(store, offsets) if only is None else history.find_all(store, only, offsets)
    for batch, records, lines in found:
        if not lines:
            files = payloads.files(store) if files is None else files
            lines = payloads.lines_at(store, files[batch]) if batch in files else []
        yield FinishedBatch(batch, records, lines, store.settings.keep_payloads)


def find(store: Store, batch: Batch) -> FinishedBatch | None:
    """Return a finished batch; None if the history does not know it."""
    found = history.find_finished(store, batch)
    if found is None:
        return None
    lines = found.lines or payloads.of_batch(store, batch)
    return FinishedBatch(batch, found.records, lines, store.settings.keep_payloads)
