"""Small parts of a write: their tasks travel to the driver in messages, which stages them together (docs/design.md,
section 4.3, "Small parts of a Spark write").

A DataFrame may have thousands of partitions with a few rows each. Each would otherwise cost files and syncs of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from fsqueue.commit import Commit
from fsqueue.errors import CommitLost
from fsqueue.format import task_file
from fsqueue.format.layout import BATCH_BYTES_MAX, Settings
from fsqueue.format.models import CommitPart
from fsqueue.format.priority import LAST
from fsqueue.protocol.encoding import OPEN_BATCHES_MAX, Encoded, SortWindow, When, share

PART_BYTES_MAX = 16 << 10
"""The most bytes of lines that a message carries. Spark puts a task result of up to 1 MiB directly into its answer."""
TOTAL_BYTES = 64 << 20
"""Bounds what all messages of a write carry: that of partition N carries at most TOTAL_BYTES / (N + 1) bytes.

So n partitions carry at most TOTAL_BYTES x (1 + ln(n / 4,096)) bytes: 64 MiB for 4,096 partitions, 416 MiB for a
million. Spark fails a job whose results are larger than `spark.driver.maxResultSize`, 1 GiB by default.
"""


class SmallBatch(NamedTuple):
    """Lines of tasks that become available at the same time. `is_urgent`: each of them has a priority."""

    when: When
    is_urgent: bool
    tasks: int
    content: bytes


@dataclass(frozen=True)
class SmallPart:
    """The tasks of a Spark task that had few of them, or none. Nothing of them is on disk.

    `queue` and `generation` tell where they belong: after a purge they are refused, as staged files are.
    """

    queue: str
    generation: int
    batches: tuple[SmallBatch, ...]


def bytes_max(partition: int) -> int:
    """Return how many bytes of lines the message of a partition may carry. Partitions count from 0."""
    return min(PART_BYTES_MAX, TOTAL_BYTES // (partition + 1))


def carry_or_stage(commit: Commit, batches: Iterable[Encoded], partition: int) -> CommitPart | SmallPart:
    """Take all batches of a partition: to carry them if they are small, else staged. In bounded memory.

    InvalidTask for a bad task: then the Spark task has failed.
    """
    store, most = commit.store, bytes_max(partition)
    store.refresh()
    state = store.queue_state
    held: list[Encoded] = []
    size, coming = 0, iter(batches)
    for batch in coming:
        held.append(batch)
        size += batch.size
        if size > most:
            return commit.stage_encoded(chain(held, coming))
    found = (SmallBatch(one.when, one.rank != LAST, one.tasks, bytes(one.content())) for one in held)
    return SmallPart(state.id, state.generation, tuple(found))


def stage_together(
    commit: Commit, small: Sequence[SmallPart], others: int, batch_tasks: int | None
) -> CommitPart | None:
    """Stage the tasks of small parts, on the driver. Return their part; None if there are none.

    `others`: how many tasks of the commit are staged already. `batch_tasks`: as the option. CommitLost: the queue was
    purged since a Spark task has read it.
    """
    batches = [batch for one in small for batch in one.batches]
    if not batches:
        return None
    store = commit.store
    store.refresh(now=True)
    state = store.queue_state
    if any((one.queue, one.generation) != (state.id, state.generation) for one in small):
        raise CommitLost(
            f"The queue {store.path} was purged while Spark was reading the rows of the commit {commit.name}. "
            "Nothing of them is visible. Write them again."
        )
    return commit.stage_encoded(merged(batches, tasks_per_file(batches, others, store.settings, batch_tasks)))


def tasks_per_file(batches: Sequence[SmallBatch], others: int, settings: Settings, batch_tasks: int | None) -> int:
    """Return how many tasks a file should hold: as for any bulk insert (decision 8), and no fewer than a batch has.

    So merging makes no more files than there are batches, but for those that hold priorities.
    """
    most = min(batch_tasks or settings.batch_tasks_max, settings.batch_tasks_max)
    if batch_tasks is not None:
        return most
    total = others + sum(batch.tasks for batch in batches)
    return min(most, max(share(total), *(batch.tasks for batch in batches)))


def merged(batches: Iterable[SmallBatch], tasks_max: int) -> Iterator[Encoded]:
    """Yield the tasks of small batches in files of at most `tasks_max` tasks, and of a batch's bytes.

    Tasks with priorities are sorted anew, within windows, as those of any bulk insert. Other batches stay whole.
    """
    filling: dict[When, Encoded] = {}
    window = SortWindow()
    for batch in batches:
        if batch.is_urgent:
            lines = task_file.split_lines(batch.content)
            if not window.has_room(len(lines), len(batch.content), tasks_max):
                yield from window.drain(tasks_max)
            priorities = [task_file.decode_task(line)["priority"] for line in lines]
            window.add(batch.when, priorities, [line + b"\n" for line in lines], len(batch.content))
            continue
        target = filling.get(batch.when)
        if target is not None and not _has_room(target, batch, tasks_max):
            yield filling.pop(batch.when)
            target = None
        if target is None:
            if len(filling) == OPEN_BATCHES_MAX:
                yield filling.pop(max(filling, key=lambda when: filling[when].tasks))
            target = filling[batch.when] = Encoded(batch.when)
        target.take(batch.content, batch.tasks)
    yield from window.drain(tasks_max)
    yield from filling.values()


def _has_room(target: Encoded, batch: SmallBatch, tasks_max: int) -> bool:
    return target.tasks + batch.tasks <= tasks_max and target.size + len(batch.content) <= BATCH_BYTES_MAX
