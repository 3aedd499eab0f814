"""Insert a stream of tasks, in bounded memory: few go into an open batch, more become batches of their own
(docs/design.md, sections 4.2 and 4.16; decision 45).

Batches are staged and published in groups. Before a group is reported inserted, its files and directories are synced.
Then `queue.jsonl` is read again. If the queue was purged meanwhile, the group went with the old generation, and is
inserted again into the new one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from fsqueue.errors import FsqueueError, InvalidTask, QueueNotFound, StorageError, from_os_error
from fsqueue.format import names
from fsqueue.format.layout import Layout
from fsqueue.format.names import Batch, TaskFileName
from fsqueue.format.wording import counted
from fsqueue.interruptions import let_out
from fsqueue.protocol import insert_errors, keyed_inserts
from fsqueue.protocol.encoding import (
    FILE_TASKS_MIN,
    Encoded,
    EncodedTask,
    InsertKeyed,
    TaskStream,
    batches_of,
    default_when,
    groups_of,
    moment,
)
from fsqueue.protocol.insert_errors import AppendFailed
from fsqueue.protocol.insert_retries import TRIES, is_overtaken
from fsqueue.protocol.single_inserts import APPEND_BYTES_MAX, APPEND_TASKS_MAX, SingleInserter
from fsqueue.storage import queue_changes, staging
from fsqueue.storage.store import Store
from fsqueue.user_code import UserCodeError

logger = logging.getLogger("fsqueue")

KEYS_ADVISED = 100_000
"""Warn of a call that inserts more tasks with keys than this: each of them makes a file for its key."""
SHARD_FILES = 8
"""Maximum number of consecutive files of a group that go into one shard: its directory is synced once for all of them.

On a local disk alone. On a network mount each file goes into a shard of its own, since hosts would wait for each other
in one directory. So does a file of fewer than FILE_TASKS_MIN tasks: the caller has asked for small files."""
SOME_MAY_BE = "Some of the tasks may be in the queue"


def insert_many(
    store: Store,
    tasks: Iterable[Any],
    delay_s: float = 0,
    batch_tasks: int | None = None,
    total: int | None = None,
    inserter: SingleInserter | None = None,
    insert_keyed: InsertKeyed | None = None,
    ids: InsertedIds | None = None,
) -> int:
    """Insert a stream of payloads or Tasks. Return how many are new.

    Tasks that are too few for task files go to `inserter`, if that is given (see `_parts`). Tasks with keys go to
    `insert_keyed`, once all tasks that came before them in the stream are in the queue. `ids` gets the ids of all
    others.

    After an error, the tasks inserted before it stay. An FsqueueError tells how many, in its text, in `inserted` and in
    `new`, and how to go on.
    """
    done, default = _Done(), default_when(delay_s)

    def insert_held(tasks: Sequence[EncodedTask]) -> None:
        assert insert_keyed is not None
        done.begin_stretch()
        done.is_at_key = True
        insert_keyed(tasks, done.count_keyed)
        done.is_at_key = False

    def check(task: EncodedTask) -> None:
        keyed_inserts.check(task, store.path, store.settings, store.domain)

    keyed = None if insert_keyed is None else insert_held
    together_max = partial(keyed_inserts.together_max, store)
    stream = TaskStream(tasks, keyed, check, together_max, store.clock.monotonic)
    stream.keeps_places = ids is not None
    try:
        while True:
            for group in groups_of(batches_of(stream, store, default, batch_tasks, total)):
                for part, is_appended in _parts(group, inserter):
                    if is_appended and inserter is not None:
                        batch, indices = inserter.insert_all([task for encoded in part for task in encoded.each()])
                        if ids is not None:
                            ids.add(batch, indices, [place for encoded in part for place in encoded.places])
                    else:
                        published = publish(store, part, done.group)
                        if ids is not None:
                            for file, encoded in zip(published, part, strict=True):
                                ids.add(file, range(encoded.tasks), encoded.places)
                    done.end_group(sum(encoded.tasks for encoded in part))
            if stream.keyed is None:
                return done.new
            stream.hold(stream.keyed)
    except InvalidTask as error:  # all tasks before the invalid one are inserted
        error.inserted, error.new = done.handled, done.new
        raise
    except UserCodeError as foreign:  # likewise: the stream itself has failed
        foreign.count(done.handled, done.new)
        raise
    except (AppendFailed, FsqueueError, OSError) as error:
        let_out(error)
        done.take_in(error)
        done.group.secure(store)
        raise _broken_off(store, stream, done, error) from error if isinstance(error, OSError) else error.__cause__


class InsertedIds:
    """Collect the ids of the tasks of a call, in the order of the call."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.taken: set[int] = set()
        """The places in the call of tasks that were not inserted, since other tasks have their keys. These have the
        ids."""

    def add(self, batch: Batch, indices: Iterable[int], places: Sequence[int]) -> None:
        """Add the ids of tasks of a batch, whose places in the call are `places`."""
        for index, place in zip(indices, places, strict=True):
            self.put(names.task_id(batch, index), place)

    def put(self, task_id: str, place: int) -> None:
        """Add the id of the task at a place in the call."""
        if place == len(self.ids):
            self.ids.append(task_id)
            return
        missing = place + 1 - len(self.ids)
        if missing > 0:  # those between come later: tasks with priorities are sorted
            self.ids.extend([""] * missing)
        self.ids[place] = task_id


def _parts(group: list[Encoded], inserter: SingleInserter | None) -> Iterator[tuple[list[Encoded], bool]]:
    """Yield parts of a group, in its order, and whether each part goes into an open batch by one append. The other
    parts become task files.

    If one append takes the whole group, the group is appended. Otherwise only its batches of fewer than FILE_TASKS_MIN
    tasks are, as many at once as an append takes.
    """
    if inserter is None or not inserter.has_open_batches:
        yield group, False
        return
    takes_all, is_shared = inserter.takes_all, inserter.store.fs.shared
    tasks_max = inserter.store.settings.batch_tasks_max
    # On a network mount an append keeps the lock of its batch for some requests: more workers need more batches.
    append_max = min(FILE_TASKS_MIN if is_shared else APPEND_TASKS_MAX, tasks_max)
    less_than = append_max + 1 if _is_one_append(group, append_max) else min(FILE_TASKS_MIN, tasks_max)
    for is_appended, batches in groupby(group, lambda encoded: encoded.tasks < less_than and takes_all(encoded)):
        part: list[Encoded] = []
        for encoded in batches:
            if is_appended and part and not _is_one_append([*part, encoded], append_max):
                yield part, True
                part = []
            part.append(encoded)
        yield part, is_appended


def _is_one_append(batches: list[Encoded], append_max: int) -> bool:
    """Return whether one append takes all tasks of some batches."""
    tasks, size = sum(encoded.tasks for encoded in batches), sum(encoded.size for encoded in batches)
    return tasks <= append_max and size <= APPEND_BYTES_MAX


class Published:
    """Note which batches of a group are in the queue, as soon as each is: no later error hides that."""

    def __init__(self) -> None:
        self.names: list[TaskFileName] = []
        self.layout: Layout | None = None
        """The layout of the generation in which the published files are."""
        self.in_doubt = False
        """True if the batch that came next may be published, too."""
        self.is_whole = False
        """True if all of the group is published: an error that comes then is one of making it durable."""
        self.is_safe = True
        """True if neither a power loss nor a purge that has just begun can still take what is published."""

    @property
    def tasks(self) -> int:
        """Return how many tasks are published."""
        return sum(name.count for name in self.names)

    def forget(self) -> None:
        """Forget the published batches: a purge has dropped them."""
        self.names.clear()
        self.in_doubt = self.is_whole = False

    def secure(self, store: Store) -> None:
        """After an error, sync the published batches, as far as the filesystem lets us, and notify workers.

        A sync that has failed is not tried again: it might succeed although what was written is lost.
        """
        if not self.names:
            return
        try:
            self.is_safe = False
            if store.sync_inserts and not self.is_whole and self.layout is not None:
                staging.sync_shards(store, self.layout, self.names)
            store.refresh(now=True)
            if store.layout is not self.layout:
                self.forget()
            elif not self.is_whole:
                store.secure_generation()
                self.is_safe = True
        except (OSError, FsqueueError) as error:
            let_out(error)
        store.doorbell.ring()


class _Done:
    """Count the tasks of a stream that are in the queue."""

    def __init__(self) -> None:
        self.is_at_key = False
        """True while a task with a key is being inserted."""
        self.in_stretch = 0
        """Number of tasks of the present stretch that are in the queue. Those of earlier stretches all are."""
        self.group = Published()
        """The published part of the group that is being inserted. `in_stretch` does not count this yet."""
        self.failed: AppendFailed | None = None
        """The append that has failed. Its tasks are among `in_stretch`."""
        self._before = 0
        self.keyed = self.keyed_new = 0
        """Number of tasks with keys that were dealt with, and number of these that are new."""

    def begin_stretch(self) -> None:
        """Begin the next stretch: all tasks of the present one are in the queue."""
        self._before += self.in_stretch
        self.in_stretch = 0

    def end_group(self, tasks: int) -> None:
        """Count the tasks of a group that is in the queue, and begin the next group."""
        self.in_stretch += tasks
        self.group = Published()

    def take_in(self, error: AppendFailed | FsqueueError | OSError) -> None:
        """Count the tasks that are in the queue as an error says: those of a failed append, or the task with a key."""
        if isinstance(error, AppendFailed):
            self.in_stretch += 0 if self.is_at_key else error.new  # those with keys are counted
            self.failed = error
        elif self.is_at_key and isinstance(error, FsqueueError):
            self.keyed += error.inserted or 0
            self.keyed_new += error.new or 0

    def count_keyed(self, is_new: bool) -> None:
        """Count a task with a key."""
        self.keyed += 1
        self.keyed_new += is_new
        if self.keyed == KEYS_ADVISED + 1:
            advise_commit()

    @property
    def risk(self) -> str:
        """Return a sentence about tasks that are in the queue and may still be lost; "" if none may."""
        if self.failed is not None and self.failed.new and not self.failed.is_safe:
            return _risk_of(self.failed.new)
        return "" if self.group.is_safe or not self.group.names else _risk_of(self.group.tasks)

    @property
    def of_stretch(self) -> int:
        """Return how many tasks of the present stretch are in the queue."""
        return self.in_stretch + self.group.tasks

    @property
    def plain(self) -> int:
        """Return how many tasks without keys are in the queue."""
        return self._before + self.of_stretch

    @property
    def handled(self) -> int:
        """Return how many tasks are in the queue, or had a key that was taken."""
        return self.plain + self.keyed

    @property
    def new(self) -> int:
        """Return how many tasks are new in the queue."""
        return self.plain + self.keyed_new


def advise_commit() -> None:
    """Warn of a call that inserts more than KEYS_ADVISED tasks with keys."""
    logger.warning(
        "more than %s tasks with keys in one call: each has a file for its key. To insert a whole set once, "
        "use a name instead (commit=NAME, --commit NAME): it makes no file for each task",
        f"{KEYS_ADVISED:,}",
    )


def _risk_of(tasks: int) -> str:
    return insert_errors.MAY_GO.format(f"the {counted(tasks, 'task')} that came in last") + " "


def _broken_off(
    store: Store, stream: TaskStream, done: _Done, error: AppendFailed | FsqueueError | OSError
) -> FsqueueError:
    """Return the error for the user. It says which tasks of a stream are in the queue, and how to go on."""
    root = error.error if isinstance(error, AppendFailed) else error
    is_exact = not done.group.in_doubt and (isinstance(error, OSError) or error.is_exact)
    is_first = stream.is_in_order or not done.of_stretch
    then = advice(done, is_first, is_exact, bool(done.keyed) or stream.keyed is not None or done.is_at_key)
    failure = _explained(store, root, root if isinstance(root, OSError) else root.__cause__, f"{done.risk}{then}")
    failure.inserted, failure.new, failure.is_exact = done.handled if is_first else None, done.new, is_exact
    failure.advice = then if str(failure).endswith(then) else ""
    return failure


def advice(done: _Done, is_first: bool, is_exact: bool, has_keys: bool) -> str:
    """Return sentences about a stream after an error: how much of it is in the queue, and how to go on.

    `is_first`: what is in the queue is what came first. `is_exact`: no more than was counted is in the queue.
    """
    count = done.handled
    maybe = "" if is_exact else ", and some of those that came next may be"
    again = "" if has_keys else " Under a name (commit=NAME, --commit NAME) a whole insert may be repeated."
    first = f"The first {count:,} tasks of this call are" if count != 1 else "The first task of this call is"
    if done.keyed > done.keyed_new:
        maybe = f" (the keys of {done.keyed - done.keyed_new:,} were taken){maybe}"
    if has_keys and not done.plain and (is_exact or done.is_at_key):
        begun = f"{first} in the queue{maybe}. " if count else "" if is_exact else f"{SOME_MAY_BE}. "
        return f"{begun}The call may be repeated: it inserts no task whose key is taken."
    if not count and is_exact:
        return "None of the tasks is in the queue: repeat the call."
    if not count:
        return f"{SOME_MAY_BE}; repeating the call would insert those again.{again}"
    them = "those without a key" if has_keys else "them"
    if not is_first:
        return (
            f"{done.new:,} of the tasks of this call are new in the queue{maybe}. They need not be its first ones: "
            "tasks with priorities or different delays are not inserted in the order of the call. Repeating the whole "
            f"call would insert {them} again.{again}"
        )
    return (
        f"{first} in the queue{maybe}. Repeating the whole call would insert {them} again: insert the rest only.{again}"
    )


def _explained(store: Store, error: FsqueueError | OSError, cause: BaseException | None, then: str) -> FsqueueError:
    """Return the error for the user, which ends with `then`: how to go on."""
    if isinstance(error, QueueNotFound):
        return error
    if isinstance(cause, OSError):
        if isinstance(error, OSError) and isinstance(gone := store.explain(error, "inserting"), QueueNotFound):
            return gone
        return from_os_error(cause, f"inserting into {store.path}", then)
    assert isinstance(error, FsqueueError)
    error.args = (f"{str(error).removesuffix(error.advice).rstrip()} {then}", *error.args[1:])
    return error


def insert_in_file(store: Store, task: EncodedTask) -> str:
    """Insert one task as a task file of its own, durably, and return its id.

    An FsqueueError says whether the task is in the queue. After an OSError it is not.
    """
    encoded, published = Encoded(task.when, None if task.priority is None else [task.priority]), Published()
    encoded.take(task.line, 1)
    try:
        return names.task_id(publish(store, [encoded], published)[0], 0)
    except (OSError, FsqueueError) as error:
        let_out(error)
        published.secure(store)
        if published.names:
            raise insert_errors.inserted_error(store, error) from error
        if published.in_doubt:
            raise insert_errors.unknown_error(store, error) from error
        raise


def publish(store: Store, group: list[Encoded], published: Published | None = None) -> list[Batch]:
    """Publish a group durably, and notify workers. Return the batches' ids. After an error some batches may be visible:
    `published` says which.

    A second try publishes only the batches that the first did not: the others would be inserted twice.
    """
    assert group, "a group of no batches"
    missed: Layout | None = None
    published = Published() if published is None else published
    store.refresh()
    queue_changes.mark_ordered(store, min(encoded.rank for encoded in group))
    for _ in range(TRIES):
        layout, before = store.layout, len(published.names)
        try:
            _publish(store, layout, group, published)
        except OSError as error:
            let_out(error)
            if is_overtaken(store, error, layout):
                published.forget()
            elif layout is missed and len(published.names) == before:
                raise
            store.make_generation()
            missed = layout
            continue
        store.refresh(now=True)
        if store.layout is layout:
            store.secure_generation()
            store.doorbell.ring()
            return [name.batch for name in published.names]
        published.forget()
    raise StorageError(
        f"The queue {store.path} was purged again and again while tasks were being inserted: they went with it."
    )


def _publish(store: Store, layout: Layout, group: list[Encoded], published: Published) -> None:
    """Publish the batches of a group that are not `published` yet, and note them there.

    Batches are published in order, so those noted are the group's first ones.
    """
    earlier, staged = list(published.names), list[staging.Staged]()
    published.layout = layout
    try:
        for encoded in group[len(earlier) :]:
            when = moment(store, encoded.when)
            is_spread = store.fs.shared or encoded.tasks < FILE_TASKS_MIN or not len(staged) % SHARD_FILES
            beside = None if is_spread else staged[-1].name.batch
            staged.append(staging.stage(store, layout, encoded.pieces, encoded.tasks, when, encoded.rank, beside))
        staging.sync(store, staged)
        for file in staging.publish(store, layout, staged):
            published.names.append(file.name)
        if earlier and store.sync_inserts:  # an earlier try published them, and failed before its sync
            staging.sync_shards(store, layout, earlier)
    finally:
        noted = len(published.names) - len(earlier)
        for file in staged:
            staging.discard(store, file)
        published.names += [file.name for file in staged[noted:] if file.is_published]
        published.in_doubt = any(file.is_published is None for file in staged)
        published.is_whole = len(published.names) == len(group)
