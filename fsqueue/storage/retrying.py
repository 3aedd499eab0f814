"""Insert tasks again that have ended, dead letters and completed ones alike (docs/design.md, section 4.10).

What decides is one line in a shard's file of dead letters: `retried`. It names the ended tasks, and the staged file
that holds the new ones. A file in `staging/` that such a line names is as good as published.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import orjson

from fsqueue.errors import FsqueueError
from fsqueue.format import names, priority
from fsqueue.format.layout import Layout
from fsqueue.format.names import TaskFileName
from fsqueue.format.priority import Priority
from fsqueue.storage import jsonl, queue_changes, staging
from fsqueue.storage.store import Store

logger = logging.getLogger("fsqueue")


class EndedTask(NamedTuple):
    """A task to insert again: its id, and the line and the priority of the new task."""

    id: str
    line: bytes
    priority: Priority | None


def insert_again(store: Store, layout: Layout, fd: int, tasks: Sequence[EndedTask]) -> None:
    """Insert tasks again, as one batch, under the lock of their shard's file of dead letters, which is `fd`.

    Stage the new tasks; append one `retried` line that names the staged file, and sync; publish. A crash before the
    line leaves a staged file that upkeep reaps; one after it leaves a staged file that `publish_pending` publishes:
    never lost, never twice. An error while the line is written leaves open whether it stands, so the staged file stays,
    too: the line, or its absence, decides.

    The batch is of the same shard: so `deadletters.repeats` finds by a new task the one that it repeats.
    """
    tasks = sorted(tasks, key=lambda task: priority.rank_of(task.priority))
    rank = priority.rank_of(tasks[0].priority)
    queue_changes.mark_ordered(store, rank)
    shard = layout.shard(names.parse_task_id(tasks[0].id)[0])
    batch = names.new_batch_in(store.entropy, store.clock.now_ms(), int(shard, 16), layout.shards)
    staged = staging.stage_as(
        store, layout, [task.line for task in tasks], TaskFileName(0, batch, len(tasks)).ranked(rank)
    )
    named = False
    try:
        staging.sync(store, [staged])
        if store.sync_inserts:
            store.names.sync(layout.staging)  # the line must not outlive what it names
        ids = (task.id for task in tasks)
        line = settling(store, "retried", ids, staged=str(staged.name), **{"as": staged.name.batch})
        named = True
        jsonl.append(store.fs, fd, line, store.sync_inserts)
        _publish(store, layout, staged)
    finally:
        if named:
            staged.close(store)
        else:
            staging.discard(store, staged)


def settling(store: Store, op: str, ids: Iterable[str], **fields: str) -> bytes:
    """Return the line that says what was done about ended tasks: `retried` or `purged`."""
    line = {"op": op, "at": store.clock.now_ms(), "ids": list(ids), **fields}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def _publish(store: Store, layout: Layout, staged: staging.Staged) -> None:
    """Publish what a `retried` line names. The line decides: an error is told, and other processes publish the file."""
    try:
        list(staging.publish(store, layout, [staged]))
    except (OSError, FsqueueError) as error:
        logger.warning(
            "the tasks that were retried in %s are not published yet (%s); the next process that looks for work does "
            "it, or 'fsqueue gc'",
            staged.path,
            error,
        )
