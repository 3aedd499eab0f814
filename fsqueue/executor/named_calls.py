"""Calls that are inserted once under a name, and found again by it: those of a driver that died (decision 69).

They are a named commit of one part. Its batches have the same number of calls each, but the last, in the order of the
calls. So the record of the commit tells the id of each call. Its `of` is a digest of the calls.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import orjson

from fsqueue.errors import CommitLost, FsqueueError, InvalidArgument, StorageError
from fsqueue.format import names
from fsqueue.format.layout import BATCH_BYTES_MAX
from fsqueue.format.models import Task, TaskRef
from fsqueue.format.wording import counted
from fsqueue.interruptions import suppress
from fsqueue.queue import Queue
from fsqueue.storage import commits
from fsqueue.storage.commits import Record

LINE_EXTRA_BYTES = 100
"""What the line of a task takes beside its payload, at most: whether it is delayed, and the like."""


def insert_once(queue: Queue, name: str, calls: Sequence[Any]) -> list[TaskRef]:
    """Insert calls under a name, all or none. If that was done before, insert nothing. Return references to the calls.

    `calls`: payloads, or Tasks without keys and priorities. InvalidArgument, with nothing inserted, if the name is that
    of other calls, or of tasks that no executor has inserted.
    """
    if not calls:
        return []
    lines = [_line(one) for one in calls]
    digest = hashlib.sha256(b"\n".join(lines)).hexdigest()
    commit = queue.commit(name)
    commit.of, is_new = digest, False
    if commit.committed() is None:
        per_batch = _per_batch(queue, lines)
        try:
            part = commit.stage(calls, batch_tasks=per_batch)
            if part.files != -(-len(calls) // per_batch):
                raise StorageError(
                    f"The calls of {name} were staged in {counted(part.files, 'file')} and not in those that were "
                    "meant. Nothing was inserted."
                )
            is_new = not commit.publish(part).repeated
        except Exception:
            with suppress(FsqueueError):  # otherwise `gc` does it, after a week
                commit.discard()
            raise
    record = commits.find(queue.store, queue.store.layout, commit.name)
    if record is None:
        raise CommitLost(f"The queue {queue.path} was purged while the calls of {name} were inserted. Repeat the call.")
    return [TaskRef(one, is_new, queue) for one in _ids(record, digest, len(calls))]


def _line(call: Any) -> bytes:
    """Return what tells a call from others."""
    payload, delay_s = (call.payload, call.delay_s) if isinstance(call, Task) else (call, 0)
    return orjson.dumps([payload, delay_s], option=orjson.OPT_SORT_KEYS)


def _per_batch(queue: Queue, lines: Sequence[bytes]) -> int:
    """Return how many calls a batch gets: as many as go into it if all are as long as the longest.

    All batches are about the same size. So the numbers of calls and of batches tell it, too.
    """
    most = max(1, BATCH_BYTES_MAX // (max(map(len, lines)) + LINE_EXTRA_BYTES))
    files = -(-len(lines) // min(most, queue.settings.batch_tasks_max))
    return -(-len(lines) // files)


def _ids(record: Record, digest: str, count: int) -> list[str]:
    """Return the ids of the calls of a record, in their order. InvalidArgument if it is of others."""
    if not record.of:
        raise InvalidArgument(
            f"The name {record.name} is that of tasks that were inserted under it as a commit, and not by submit_many. "
            "Nothing was inserted. Give the calls another name."
        )
    known = record.total("tasks")
    if known != count:
        raise _others(record, f"{counted(known, 'call')}, and here {'is' if count == 1 else 'are'} {count:,}")
    if record.of != digest or len(record.parts) != 1:
        raise _others(record, "of another function, with other arguments, or in another order")
    [part] = record.parts
    per_batch = -(-count // part.files)
    batches = [names.successor(part.first, place) for place in range(part.files)]
    return [names.task_id(batches[at // per_batch], at % per_batch) for at in range(count)]


def _others(record: Record, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"Other calls were inserted under the name {record.name}: {what}. Nothing was inserted. Give these calls "
        "another name."
    )
