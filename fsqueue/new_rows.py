"""Insert only what is new or changed: rows of a table that comes again (docs/tables.md).

A row is a payload that has a value in one field. Rows with the same value are versions of each other. A row is inserted
with the key VALUE#DIGEST, where DIGEST is that of its content, unless the newest version of its value has this content.
Steps and what a crash leaves are those of an insert with a key (docs/design.md, section 4.17).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import orjson

from fsqueue.errors import FsqueueError, InvalidTask, from_os_error
from fsqueue.format import task_file, versions
from fsqueue.format.models import Task, TaskRef
from fsqueue.format.versions import RowVersion
from fsqueue.interruptions import let_out
from fsqueue.protocol.encoding import EncodedTask, task_at
from fsqueue.protocol.keyed_inserts import REPEAT, KeyedInserter, TaskEnded
from fsqueue.storage.store import Store
from fsqueue.views import newest_versions

POSTPONED_MAX = 10_000
"""Maximum number of rows that wait until the queue's tasks are read again."""
READ_AGAIN_S = 3600.0
"""The queue's tasks are read again after this time: `gc` removes the file of a free key after a day, and then it does
not tell any more that a task with the key was inserted and completed meanwhile."""


class NewRows:
    """Insert those rows of one call that are new, or whose content is not that of the newest version. One thread's."""

    def __init__(self, store: Store, keyed: KeyedInserter, field: str) -> None:
        newest_versions.check(store, "new_by")
        self._store, self._keyed, self._field = store, keyed, field
        self._kept_max = store.settings.keep_payloads
        self._newest: dict[str, RowVersion] | None = None
        """The newest version of each value, as the queue's tasks were read."""
        self._read_at = 0.0
        self._given: dict[str, str] = {}
        """The content of each value in this call."""
        self._postponed: deque[tuple[EncodedTask, str]] = deque()
        """Rows whose key had a task that has ended, each with the id of that task's insert."""
        self._later = 0
        """How many of the postponed rows were inserted."""

    def with_keys(self, payloads: Iterable[Any]) -> Iterator[Task]:
        """Yield the rows as tasks with keys. InvalidTask for one that has no value, or a value with another content in
        the same call.
        """
        for index, item in enumerate(payloads):
            task = item if isinstance(item, Task) else Task(item)
            key = self._key_of(task, index)
            yield Task(task.payload, key, task.priority, task.delay_s, task.available_at)

    def _key_of(self, task: Task, index: int) -> str:
        where = task_at(index)
        if task.key is not None:
            raise InvalidTask(
                f"{where} has a key, and new_by gives each task its key. Leave one of the two out.", index
            )
        line = task_file.encode_task(task.payload, self._store.settings.task_bytes_max, index)
        payload = task_file.decode_task(line)["payload"]  # as it comes back: tuples are lists, and so on
        value = versions.value_of(payload, self._field)
        if value is None:
            raise InvalidTask(
                f"{where} has no value in the field {self._field!r}, by which its versions are told apart: a text, a "
                "number, true or false.",
                index,
            )
        if len(value.encode()) > versions.VALUE_BYTES_MAX:
            raise InvalidTask(
                f"{where}: the value of the field {self._field!r} takes more than {versions.VALUE_BYTES_MAX:,} bytes.",
                index,
            )
        size = len(orjson.dumps(payload))
        if self._kept_max is not None and size > self._kept_max:
            raise InvalidTask(
                f"{where} takes {size:,} bytes, and the queue keeps payloads of up to {self._kept_max:,} bytes of "
                "completed tasks: it could not tell later that this one was completed. Keep longer ones first: "
                f"fsqueue set Q keep_payloads={size}.",
                index,
            )
        content = versions.digest(payload)
        if self._given.setdefault(value, content) != content:
            raise InvalidTask(
                f"{where} has the value {value!r:.100} in the field {self._field!r}, as an earlier one of this call "
                "with other content. Name a field that has a value of its own in each.",
                index,
            )
        return versions.key_of(value, content)

    def take(self, rows: Sequence[EncodedTask], count: Callable[[bool], None]) -> None:
        """Insert those of some rows that are new or changed. Tell `count` of each row, in their order, whether it is in
        the queue now as a new task.

        A row whose key had a task that has ended is postponed: whether the task was completed is read first.
        """
        if self._newest is None or self._store.clock.monotonic() > self._read_at + READ_AGAIN_S:
            self._read()
        told = 0  # of how many rows `count` was told

        def note(task: EncodedTask, found: TaskRef | TaskEnded) -> None:
            nonlocal told
            while rows[told] is not task:  # known ones, which were left out
                count(False)
                told += 1
            if isinstance(found, TaskEnded):
                self._postponed.append((task, found.insert))
            count(isinstance(found, TaskRef) and found.inserted)
            told += 1

        self._keyed.insert_all([row for row in rows if not self._is_known(row)], note, ended=())
        for _ in rows[told:]:
            count(False)
        if len(self._postponed) >= POSTPONED_MAX:
            self._insert_postponed()

    def finish(self, new: int) -> int:
        """Insert the rows that were postponed. Return how many of this call are new; `new`: those that were not
        postponed. An FsqueueError has that number, too.
        """
        try:
            self._insert_postponed()
        except (FsqueueError, OSError) as error:
            let_out(error)
            failure = error
            if isinstance(error, OSError):
                failure = from_os_error(error, f"inserting into {self._store.path}", REPEAT)
            failure.inserted, failure.new = None, new  # type: ignore[union-attr]
            self.count_in(failure)  # type: ignore[arg-type]
            raise failure from error
        return new + self._later

    def count_in(self, error: FsqueueError) -> None:
        """Take the postponed rows into the numbers of an error: those inserted are new, the others not in the queue."""
        error.new = (error.new or 0) + self._later
        places = [task.place for task, _ in self._postponed if task.place is not None]
        if places:
            error.inserted = min(places) if error.inserted is None else min(error.inserted, *places)

    def _insert_postponed(self) -> None:
        while self._postponed:
            self._read()
            for _ in range(len(self._postponed)):
                task, ended = self._postponed[0]
                again: str | None = None
                if not self._is_known(task):
                    try:
                        self._later += self._keyed.insert(task, ended=(ended,)).inserted
                    except TaskEnded as found:  # another process has inserted one, which has ended, since
                        again = found.insert
                self._postponed.popleft()  # after an error it is there still
                if again is not None:
                    self._postponed.append((task, again))

    def _read(self) -> None:
        self._read_at = self._store.clock.monotonic()
        self._newest = newest_versions.newest(self._store, self._field)

    def _is_known(self, task: EncodedTask) -> bool:
        assert task.key is not None
        assert self._newest is not None
        value, content = versions.parts_of(task.key)
        version = self._newest.get(value)
        return version is not None and version.content == content
