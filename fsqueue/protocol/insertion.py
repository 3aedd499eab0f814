"""Insert a stream of tasks as published batches, in bounded memory (docs/design.md, section 4.2).

Batches are staged and published in groups. Before a group is reported inserted, its files and directories are synced.
Then `queue.jsonl` is read again. If the queue was purged meanwhile, the group went with the old generation, and is
inserted again into the new one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from fsqueue.clock import MS_MAX
from fsqueue.errors import FULL, FsqueueError, InvalidTask, QueueNotFound, StorageError, from_os_error
from fsqueue.format.layout import Layout
from fsqueue.format.names import TaskFileName
from fsqueue.format.priority import Rank
from fsqueue.protocol.encoding import GROUP_BYTES_MAX, Encoded, InsertKeyed, When, batches_of, default_when, groups_of
from fsqueue.storage import ordering, staging
from fsqueue.storage.store import Store
from fsqueue.user_code import UserCodeError

logger = logging.getLogger("fsqueue")

TRIES = 20
"""Publish a group at most this often: each purge that overtakes it takes a try."""
KEYS_ADVISED = 100_000
"""Warn of a call that inserts more tasks with keys than this: each of them makes a file for its key."""

InsertOne = Callable[[bytes, When, Rank], str | None]
"""Insert one task, given as the line of a task file, durably, and return its id; None if it needs a file of its own.
An FsqueueError says whether the task is in the queue. After an OSError it is not.
"""


def insert_many(
    store: Store,
    tasks: Iterable[Any],
    delay_s: float = 0,
    batch_tasks: int | None = None,
    total: int | None = None,
    insert_one: InsertOne | None = None,
    insert_keyed: InsertKeyed | None = None,
) -> int:
    """Insert a stream of payloads or Tasks. Return how many are new.

    The only task of a stream goes to `insert_one`, where that is given. Tasks with keys go to `insert_keyed` one at a
    time, as they come.

    After an error, the tasks inserted before it stay. An FsqueueError tells how many, in its text and in `inserted`. It
    warns that a repeat of the whole call would insert them again.
    """
    count, default = 0, default_when(delay_s)
    times: set[When] = set()
    is_one = False
    keyed = _Keyed(insert_keyed)
    with_key = keyed.insert if insert_keyed is not None else None
    try:
        for group in groups_of(batches_of(tasks, store, default, batch_tasks, total, times, with_key)):
            is_in = False
            if insert_one is not None and not count and _is_one_task(group):
                is_one = True
                is_in = insert_one(bytes(group[0].content()), group[0].when, group[0].rank) is not None
                is_one = False
            if not is_in:
                publish(store, group)
            count += sum(encoded.tasks for encoded in group)
    except InvalidTask as error:  # all tasks before the invalid one are inserted
        error.inserted, error.new = count + keyed.handled, count + keyed.new
        raise
    except UserCodeError as foreign:  # likewise: the stream itself has failed
        foreign.count(count + keyed.handled)
        raise
    except (FsqueueError, OSError) as error:
        if is_one and isinstance(error, FsqueueError):
            raise  # the error itself says whether the task is in the queue
        if error is keyed.error:
            inserted: int | None = count + keyed.handled  # the tasks before this one were published first
        elif keyed.handled or len(times) > 1:
            inserted = None  # unknown: tasks with keys, or for different times, are not inserted in the stream's order
        else:
            inserted = count + (getattr(error, "inserted", None) or 0)
        cause = error if isinstance(error, OSError) else error.__cause__
        failure = _explained(store, error, cause, advice(inserted, cause))
        failure.inserted = inserted
        failure.new = None if inserted is None else inserted - keyed.handled + keyed.new
        raise failure from cause
    return count + keyed.new


class _Keyed:
    """Insert the tasks of a stream that have keys, and count them. `insert` is what `batches_of` calls for each."""

    def __init__(self, insert_keyed: InsertKeyed | None) -> None:
        self._insert = insert_keyed
        self.handled = 0
        """How many tasks with keys were inserted, or were in the queue already."""
        self.new = 0
        self.error: Exception | None = None
        """The error that ended the stream, if it came from the insert of a task with a key."""

    def insert(self, line: bytes, when: When, rank: Rank, key: str, index: int) -> bool:
        """Insert a task with a key. Return whether it is new."""
        assert self._insert is not None
        try:
            is_new = self._insert(line, when, rank, key, index)
        except Exception as error:
            self.error = error
            raise
        self.new += is_new
        self.handled += 1
        if self.handled == KEYS_ADVISED + 1:
            advise_commit()
        return is_new


def advise_commit() -> None:
    """Warn of a call that inserts more than KEYS_ADVISED tasks with keys."""
    logger.warning(
        "more than %s tasks with keys in one call: each has a file for its key. To insert a whole set once, "
        "use a name instead (commit=NAME, --commit NAME): it makes no file for each task",
        f"{KEYS_ADVISED:,}",
    )


def _is_one_task(group: list[Encoded]) -> bool:
    """Return whether a stream's first group is one task, and the whole stream: a longer one would have filled it."""
    return len(group) == 1 and group[0].tasks == 1 and group[0].size < GROUP_BYTES_MAX


def advice(inserted: int | None, cause: BaseException | None) -> str:
    """Return sentences about a stream after an error: how much of it is in the queue, and how to go on.

    `inserted` is the number of tasks that are in the queue for certain; None if no number can be told.
    """
    sure = isinstance(cause, OSError) and cause.errno in FULL
    again = "Under a name (commit=NAME, --commit NAME) a whole insert may be repeated."
    if inserted == 0 and sure:
        return "None of the tasks is in the queue: repeat the call."
    if not inserted:
        return f"Some of the tasks may be in the queue; repeating the call would insert those again. {again}"
    first = f"first {inserted:,} tasks of this call are" if inserted != 1 else "first task of this call is"
    maybe = "" if sure else ", and some of those that came next may be"
    return (
        f"The {first} in the queue{maybe}. Repeating the whole call would insert them again: insert the rest only. "
        f"{again}"
    )


def _explained(store: Store, error: Exception, cause: BaseException | None, then: str) -> FsqueueError:
    """Return the error for the user, which ends with `then`: how to go on."""
    if isinstance(error, QueueNotFound):
        return error
    if isinstance(cause, OSError):
        if isinstance(error, OSError) and isinstance(gone := store.explain(error, "inserting"), QueueNotFound):
            return gone
        return from_os_error(cause, f"inserting into {store.path}", then)
    assert isinstance(error, FsqueueError)
    error.args = (f"{error} {then}", *error.args[1:])
    return error


def moment(store: Store, when: When) -> int:
    """Return the time or delay in `when` as milliseconds since 1970 on the file server's clock."""
    absolute, ms = when
    return ms if absolute else min(store.clock.now_ms() + ms, MS_MAX)


def publish(store: Store, group: list[Encoded]) -> list[str]:
    """Publish a group durably, and notify workers. Return the batches' ids. After an error some batches may be visible.

    A second try publishes only the batches that the first did not: the others would be inserted twice.
    """
    missed: Layout | None = None
    published: list[TaskFileName] = []
    store.refresh()
    ordering.mark(store, min(encoded.rank for encoded in group))
    for _ in range(TRIES):
        layout, before = store.layout, len(published)
        try:
            _publish(store, layout, group, published)
        except FileNotFoundError as error:
            store.refresh(now=True)
            store.make_generation()
            if store.layout is not layout:
                published.clear()  # the purge has dropped them
            elif layout is missed and len(published) == before:
                raise _failure(store, error, published) from error
            missed = layout
            continue
        store.refresh(now=True)
        if store.layout is layout:
            store.secure_generation()
            store.doorbell.ring()
            return [name.batch for name in published]
        published.clear()
    raise StorageError(
        f"The queue {store.path} was purged again and again while tasks were being inserted: they went with it."
    )


def _publish(store: Store, layout: Layout, group: list[Encoded], published: list[TaskFileName]) -> None:
    """Publish the batches of a group that are not among the `published` yet, and add their names to that list.

    Batches are published in order, so those in the list are the group's first ones.
    """
    earlier, staged = list(published), list[staging.Staged]()
    try:
        for encoded in group[len(earlier) :]:
            when = moment(store, encoded.when)
            staged.append(staging.stage(store, layout, encoded.pieces, encoded.tasks, when, encoded.rank))
        staging.sync(store, staged)
        for file in staging.publish(store, layout, staged):
            published.append(file.name)
        if earlier and store.sync_inserts:  # an earlier try published them, and failed before its sync
            staging.sync_shards(store, layout, earlier)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            raise _failure(store, error, published) from error
        raise
    except FsqueueError as error:
        error.inserted = sum(name.count for name in published)
        raise
    finally:
        for number, file in enumerate(staged, len(earlier)):
            if number >= len(published):
                store.fs.unlink(file.path)
            file.close(store)


def _failure(store: Store, error: OSError, published: list[TaskFileName]) -> FsqueueError:
    """Return the error for a group that was published in part: `inserted` says how many tasks."""
    failure = store.explain(error, f"inserting into {store.path}")
    failure.inserted = sum(name.count for name in published)
    return failure
