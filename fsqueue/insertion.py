"""Insert: from a stream of tasks to published batches, in bounded memory (DESIGN section 4, "insert").

Batches are staged and published in groups. A group is reported inserted only after its files and
directories are synced and `queue.jsonl`, read again, shows that no purge overtook it; if one did,
the group is inserted again into the new generation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from fsqueue import batch, staging
from fsqueue.clock import MS_MAX, duration_ms
from fsqueue.errors import FsqueueError, InvalidArgument, InvalidTask, StorageError, from_os_error
from fsqueue.layout import BATCH_BYTES_MAX, Layout
from fsqueue.store import Store
from fsqueue.task import Task

GROUP_BYTES_MAX = 8 << 20
"""A group is published when it has this many bytes, ..."""
GROUP_BATCHES_MAX = 64
"""... or this many batches."""
SPREAD, SMALL_JOB = 32, 2_000
"""How many batches, about, a job of so many tasks or fewer is spread over (decision 0008)."""
HELD_MAX, HELD_S = 10_000, 1.0
"""So many tasks of a stream, GROUP_BYTES_MAX, or what comes in this time is held back, to see how large a job it is."""
OPEN_BATCHES_MAX = 64
"""How many batches with different availability times are filled side by side."""
TRIES = 20

When = tuple[bool, int]
"""(absolute or from now on, milliseconds)."""


class Sealed:
    """A batch being filled, or full, encoded, on its way to the disk."""

    __slots__ = ("lines", "size", "when")

    def __init__(self, when: When) -> None:
        self.when = when
        self.lines: list[bytes | memoryview] = []
        self.size = 0

    @property
    def tasks(self) -> int:
        """How many tasks are in it."""
        return len(self.lines)


class Encoded(Sealed):
    """A batch of lines that somebody else has encoded: `lines` are pieces of its file, each of several whole lines."""

    __slots__ = ("count",)

    def __init__(self, when: When) -> None:
        super().__init__(when)
        self.count = 0

    @property
    def tasks(self) -> int:
        """How many tasks are in it."""
        return self.count

    def take(self, piece: bytes | memoryview, tasks: int) -> None:
        """Append a piece that holds so many tasks."""
        self.lines.append(piece)
        self.size += len(piece)
        self.count += tasks


NOW: When = (True, 0)


def available_from(task: Task, index: int | None, default: When = NOW) -> When:
    """When a task becomes available; InvalidTask says what is wrong with its times."""
    for name, value in (("key", task.key), ("priority", task.priority)):
        if value is not None:
            raise InvalidTask(
                f"This version of fsqueue has no task {name} yet: insert the task without `{name}`.", index
            )
    try:
        if task.available_at is not None:
            if task.delay_s:
                raise InvalidArgument("give either delay_s or available_at, not both.")
            return True, duration_ms(task.available_at, "available_at")
        delay = duration_ms(task.delay_s, "delay_s")
        return (False, delay) if delay else default
    except InvalidArgument as error:
        where = "The task" if index is None else f"Task number {index + 1}"
        raise InvalidTask(f"{where}: {error}", index) from None


def _share(tasks: int) -> int:
    """How many tasks a batch of a job of so many should hold: of a small one a fraction, of a larger one more and more.

    A few workers shall share a small job fairly; what a larger one pays for is the end of every batch.
    """
    return max(1, max(tasks, tasks * tasks // SMALL_JOB) // SPREAD)


def _encoded(tasks: Iterable[Any], bytes_max: int, default: When) -> Iterator[tuple[When, bytes]]:
    """Each task's availability and its line; InvalidTask ends it."""
    encode = batch.encode_task
    for index, item in enumerate(tasks):
        if isinstance(item, Task):
            yield available_from(item, index, default), encode(item.payload, bytes_max, index)
        else:
            yield default, encode(item, bytes_max, index)


def _hold(stream: Iterator[tuple[When, bytes]], held: list[tuple[When, bytes]], monotonic: Callable[[], float]) -> None:
    """Move the beginning of a stream, of bounded size, into `held`."""
    size, until = 0, monotonic() + HELD_S
    for when, line in stream:
        held.append((when, line))
        size += len(line)
        if len(held) == HELD_MAX or size >= GROUP_BYTES_MAX or monotonic() > until:
            return


def batches_of(
    tasks: Iterable[Any], store: Store, default: When, batch_tasks: int | None, total: int | None, times: set[When]
) -> Iterator[Sealed]:
    """Encode tasks into batches of the size asked for, or of one that suits the job, noting their `times`.

    When the stream breaks off with an error, the tasks before it come out first, then the error.
    """
    settings = store.settings
    stream = _encoded(tasks, settings.task_bytes_max, default)
    most = min(batch_tasks or settings.batch_tasks_max, settings.batch_tasks_max)
    held: list[tuple[When, bytes]] = []
    filling: dict[When, Sealed] = {}
    broken: Exception | None = None
    try:
        if batch_tasks is None and total is None:
            _hold(stream, held, store.clock.monotonic)
    except Exception as error:
        broken = error
    size = most if batch_tasks is not None else min(most, _share(total or len(held)))
    try:
        for number, (when, line) in enumerate(chain(held, stream), 1):
            target = filling.get(when)
            if target is None:
                if len(filling) == OPEN_BATCHES_MAX:
                    yield filling.pop(max(filling, key=lambda key: len(filling[key].lines)))
                target = filling[when] = Sealed(when)
                times.add(when)
            elif target.size + len(line) > BATCH_BYTES_MAX:
                yield target
                target = filling[when] = Sealed(when)
            target.lines.append(line)
            target.size += len(line)
            if len(target.lines) >= size:
                yield filling.pop(when)
                if size < most:
                    size = max(size, min(most, _share(number)))
    except Exception as error:
        broken = error
    yield from filling.values()
    if broken is not None:
        raise broken


def insert_many(
    store: Store, tasks: Iterable[Any], delay_s: float = 0, batch_tasks: int | None = None, total: int | None = None
) -> int:
    """Insert a stream of payloads or Tasks; returns how many.

    What went before an invalid task stays inserted; an FsqueueError says in `inserted` how many.
    """
    count = 0
    times: set[When] = set()
    try:
        for group in groups_of(batches_of(tasks, store, default_when(delay_s), batch_tasks, total, times)):
            publish(store, group)
            count += sum(len(sealed.lines) for sealed in group)
    except InvalidTask as error:  # what came before it is all there
        error.inserted = count
        raise
    except (FsqueueError, OSError) as error:
        failure = error if isinstance(error, FsqueueError) else store.explain(error, f"inserting into {store.path}")
        failure.inserted = count + (failure.inserted or 0) if len(times) == 1 else None
        raise failure from error
    return count


def moment(store: Store, when: When) -> int:
    """When that is, in milliseconds on the file server's clock."""
    absolute, ms = when
    return ms if absolute else min(store.clock.now_ms() + ms, MS_MAX)


def default_when(delay_s: float) -> When:
    """The availability of tasks that say nothing themselves."""
    delay = duration_ms(delay_s, "delay_s")
    return (False, delay) if delay else NOW


def groups_of(batches: Iterable[Sealed]) -> Iterator[list[Sealed]]:
    """Batches in groups of bounded size; the last also when the stream breaks off with an error."""
    group: list[Sealed] = []
    size = 0
    broken: Exception | None = None
    try:
        for sealed in batches:
            group.append(sealed)
            size += sealed.size
            if size >= GROUP_BYTES_MAX or len(group) >= GROUP_BATCHES_MAX:
                yield group
                group, size = [], 0
    except Exception as error:
        broken = error
    if group:
        yield group
    if broken is not None:
        raise broken


def publish(store: Store, group: list[Sealed]) -> list[str]:
    """Publish a group durably and ring the bell; returns the batches' ids. After an error some may be visible."""
    missed: Layout | None = None
    store.refresh()
    for _ in range(TRIES):
        layout = store.layout
        try:
            published = _publish(store, layout, group)
        except FileNotFoundError:
            store.refresh(now=True)
            store.make_generation()
            if store.layout is layout is missed:
                raise
            missed = layout
            continue
        store.refresh(now=True)
        if store.layout is layout:
            store.secure_generation()
            store.ring()
            return published
    raise StorageError(
        f"The queue {store.path} was purged again and again while tasks were being inserted. Repeat the call."
    )


def _publish(store: Store, layout: Layout, group: list[Sealed]) -> list[str]:
    staged: list[staging.Staged] = []
    moved = 0
    try:
        for sealed in group:
            staged.append(staging.stage(store, layout, sealed.lines, moment(store, sealed.when)))
        staging.sync(store, staged)
        for _ in staging.publish(store, layout, staged):
            moved += 1
        return [file.name.batch for file in staged]
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            failure = from_os_error(error, f"inserting into {store.path}")
            failure.inserted = sum(file.name.count for file in staged[:moved])
            raise failure from error
        raise
    finally:
        for number, file in enumerate(staged):
            if number >= moved:
                store.fs.unlink(file.path)
            file.close(store)
