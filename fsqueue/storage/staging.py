"""Task files on their way in: staged invisibly under a lock, then published by one rename.

Order (docs/design.md, section 4.2, invariants 1 and 4): write, sync, rename into the shard, sync the shard.
A crash before the rename leaves a staged file that upkeep reaps after a day; the lock keeps it
from reaping one whose writer lives.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fsqueue import checks, forks
from fsqueue.checks import CHECK
from fsqueue.errors import FULL, ForkedChild, StorageError
from fsqueue.filesystem import stale_is_missing
from fsqueue.format import names
from fsqueue.format.layout import Layout
from fsqueue.format.names import Batch, TaskFileName
from fsqueue.format.priority import LAST, Rank
from fsqueue.interruptions import let_out, suppress
from fsqueue.storage.store import Store

LOCK_S = 1.0
"""Seconds to wait for the lock of a file that was just made: only a process that takes it for an orphan has it."""
LATE_S = 60.0
"""A process that gets the lock later than that was stopped after making the file. Is the file still there?"""
REFUSALS = (*FULL, errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EXDEV)
"""After one of these errors of a renaming a file was not moved. After any other one it may have been."""
AWAY_S = 43_200.0
"""Half the age at which `gc` reaps staged files. An inserter that was away for longer may have lost its lock."""


@dataclass(slots=True)
class Staged:
    """A task file in staging: open, locked, written and synced."""

    fd: int
    path: str
    name: TaskFileName
    layout: Layout
    began: float
    """Time at which the file was staged, on the clock that never jumps."""
    is_published: bool | None = False
    """Noted where it happens. None: a renaming has begun, and it is not known whether it was done."""
    is_synced: bool = False
    """True if the file is on disk, as far as the queue's durability asks for that."""
    process: int = field(default_factory=lambda: forks.depth)
    """The process that has made it: no other publishes or removes it."""

    def close(self, store: Store) -> None:
        """Unlock the staged file and close it, whether it was published or not."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with store.fs.closing(fd):
                store.fs.end_lock(fd)


def stage(
    store: Store,
    layout: Layout,
    pieces: Sequence[bytes | memoryview],
    tasks: int,
    at: int,
    rank: Rank = LAST,
    beside: Batch | None = None,
) -> Staged:
    """Write a new batch of `tasks` tasks, available `at`, into a generation's staging, as `stage_as` does.

    `rank`: of the most urgent of them. `queue_changes.mark_ordered` comes before. `beside`: another batch, in whose
    shard the new one goes.
    """
    assert 0 < tasks <= names.BATCH_TASKS_MAX, "a task file has tasks, and no more than a batch may have"
    now_ms = store.clock.now_ms()
    if beside is None:
        batch = names.new_batch(store.entropy, now_ms)
    else:
        batch = names.new_batch_in(store.entropy, now_ms, int(layout.shard(beside), 16), layout.shards)
    return stage_as(store, layout, pieces, TaskFileName(at, batch, tasks).ranked(rank))


def stage_as(store: Store, layout: Layout, pieces: Sequence[bytes | memoryview], name: TaskFileName) -> Staged:
    """Write the file of a new batch into a generation's staging, locked, and not synced yet.

    FileNotFoundError if another process took it for an orphan before it was locked, or if it went with its generation:
    repeat.
    """
    fs = store.fs
    path = layout.staged(name)
    began = store.clock.monotonic()
    with stale_is_missing(path):
        fd = fs.create(path, store.sync_inserts)
    staged = Staged(fd, path, name, layout, began)
    try:
        with stale_is_missing(path):
            locked = fs.lock(fd, store.clock, store.entropy, LOCK_S)
            late = store.clock.monotonic() - began > LATE_S
            if not locked or (late and not fs.same_file(fd, path)):
                why = "the staged file was taken for an orphan before it was locked"
                raise FileNotFoundError(errno.ENOENT, why, path)
            fs.write_all(fd, b"".join(pieces))
        if store.sync_inserts:
            fs.drop_cached(fd)  # write now: else the sync of each of many waits for a commit of the journal
    except BaseException:
        discard(store, staged)
        raise
    return staged


def discard(store: Store, staged: Staged) -> None:
    """After an error, remove a staged file that is not published, and close it. `is_published` says what was found.

    A process that was forked since it was made only closes it: its parent goes on with it.

    This raises no error of the system: that would hide the one that it comes after. `gc` reaps what cannot be removed
    now.
    """
    try:
        if not staged.is_published and staged.process == forks.depth:
            with suppress(OSError):
                staged.is_published = _remove(store, staged)
    finally:
        staged.close(store)


def _remove(store: Store, staged: Staged) -> bool | None:
    """Remove a staged file. Return whether it is published; None if that cannot be told."""
    fs, in_doubt = store.fs, staged.is_published is None
    try:
        if fs.unlink(staged.path) or not in_doubt:
            return False  # a renaming that comes late finds nothing to rename
    except OSError as error:
        let_out(error)
        if not in_doubt or (not fs.shared and fs.same_file(staged.fd, staged.path)):
            return False
    return True if fs.same_file(staged.fd, staged.layout.task_file(staged.name)) else None


def is_held(store: Store, path: str) -> bool:
    """Return whether a live process has a staged file locked. False for a file that this process may not write."""
    try:
        fd = store.fs.look(path, os.O_RDWR)
    except OSError as error:
        let_out(error)
        return False
    with store.fs.closing(fd):
        return not store.fs.try_lock(fd)


def publish(store: Store, layout: Layout, batches: list[Staged]) -> Iterator[Staged]:
    """Publish staged batches, and yield each one once it is visible. Sync their shards at the end.

    FileNotFoundError if the generation has gone meanwhile.
    """
    assert all(staged.layout is layout for staged in batches), "files of another generation would be published"
    directories = sorted({shard_directory(layout, staged.name) for staged in batches})
    with stale_is_missing(layout.tasks):
        prepare(store, layout, directories)
    for staged in batches:
        publish_staged(store, staged)
        yield staged
    if store.sync_inserts:
        sync_shards(store, layout, [staged.name for staged in batches])


def publish_one(store: Store, staged: Staged) -> None:
    """Sync a staged file, publish it, durably, and close it. An error before its renaming removes it."""
    try:
        sync(store, [staged])
        list(publish(store, staged.layout, [staged]))
    finally:
        discard(store, staged)


def sync_shards(store: Store, layout: Layout, published: Sequence[TaskFileName]) -> None:
    """Make the names of published files durable."""
    for directory in sorted({shard_directory(layout, name) for name in published}):
        with suppress(FileNotFoundError):  # all its files have finished, or the purge that took it is found out next
            store.fs.sync_directory(directory)


def sync(store: Store, batches: list[Staged]) -> None:
    """Sync the content of staged files. Do it before a record names them, and before they are published.

    FileNotFoundError if the generation has gone meanwhile.
    """
    for staged in batches:
        if store.sync_inserts:
            with stale_is_missing(staged.path):
                store.fs.fsync(staged.fd)
        staged.is_synced = True


def prepare(store: Store, layout: Layout, directories: list[str]) -> None:
    """Make the shards' directories that are missing, and sync their names together."""
    new = [directory for directory in directories if directory not in store.names.shards]
    for directory in new:
        store.fs.make_directory(directory)
    if new:
        if store.sync_inserts:
            store.names.sync(layout.tasks)
        store.names.shards.update(new)


def shard_directory(layout: Layout, name: TaskFileName) -> str:
    """Return the directory that a task file is published into."""
    return f"{layout.tasks}/{layout.shard(name.batch)}"


def publish_staged(store: Store, staged: Staged) -> None:
    """Rename a staged batch into its shard. Do not sync the shard. Its name is fresh: nothing is overwritten.

    A reply that says "not there" may be a lost one's repeat, and by then others may have leased the batch, and
    given its file another name, or finished it. But no other process touches a staged file that is locked and younger
    than a day: if it is gone from there although no purge has begun, it was published. An inserter that was away for
    longer has no such proof. Its lock may be lost, and `gc` may have removed the file. StorageError then, unless the
    batch shows in its shard. FileNotFoundError: it was not published, and the caller repeats it. ForkedChild: it is the
    parent's.
    """
    if staged.process != forks.depth:
        raise ForkedChild("an insert")
    if CHECK:  # invariant 4: what appears by a renaming is complete, and stays so when the power goes
        checks.hold(4, staged.is_synced, f"{staged.path} is about to be published, and was not synced")
    staged.is_published = None
    try:
        is_done = store.fs.rename(staged.path, staged.layout.task_file(staged.name))
    except OSError as error:
        let_out(error)
        if store.fs.shared and error.errno in REFUSALS:  # on a local disk it may be one of the look behind the renaming
            staged.is_published = False
        if error.errno != errno.ESTALE:
            raise
        is_done = False  # perhaps: what became of it is looked for, as where the file is missing
    if not is_done:
        try:
            _settle_renaming(store, staged)
        except FileNotFoundError:
            staged.is_published = False
            raise
    staged.is_published = True


def _settle_renaming(store: Store, staged: Staged) -> None:
    """Finish a renaming that found no staged file, or no shard: rename it now, or prove that it was renamed.

    Errors as of `publish_staged`.
    """
    fs, target = store.fs, staged.layout.task_file(staged.name)
    if _rename_into_shard(store, staged.layout, staged.name) or fs.same_file(staged.fd, target):
        return
    if not fs.exists(staged.path):
        store.refresh(now=True)
        if store.layout is staged.layout:
            away_s = store.clock.monotonic() - staged.began
            if away_s < AWAY_S or _shows(store, staged):
                return
            if staged.name.inserted is None:
                raise StorageError(
                    f"This process was stopped or cut off for {away_s / 3600:.0f} hours while it inserted "
                    f"{staged.name.count} tasks into {store.path}. Their staged file is gone, and they do not show in "
                    "the queue: most likely 'gc' removed it. Check whether they were executed; if not, insert them "
                    "again."
                )
    store.names.shards.clear()  # and the file of an open batch had no tasks: another takes its place
    raise FileNotFoundError(2, "the staged file has gone: the queue was purged or deleted meanwhile", staged.path)


def _rename_into_shard(store: Store, layout: Layout, name: TaskFileName) -> bool:
    """Rename a staged file into its shard. Return False if there is no such staged file.

    Cleaners of scratch space remove empty directories. So make the shard's directory anew if it is missing.
    """
    source, target = layout.staged(name), layout.task_file(name)
    if store.fs.rename(source, target):
        return True
    directory = shard_directory(layout, name)
    if not store.fs.exists(source):
        return False
    store.names.shards.discard(directory)
    prepare(store, layout, [directory])
    return store.fs.rename(source, target)


def _shows(store: Store, staged: Staged) -> bool:
    """Return whether the shard has a task file or a log of a staged batch, which proves that the batch was
    published.
    """
    layout, batch = staged.layout, staged.name.batch
    listed = map(names.parse_task_file, store.fs.names(shard_directory(layout, staged.name)))
    return any(name is not None and name.batch == batch for name in listed) or store.fs.exists(layout.log(batch))


def files(store: Store, layout: Layout, strict: bool = False) -> list[TaskFileName]:
    """Return the staged task files, as a listing shows them. `strict`: see `Filesystem.names`."""
    found = map(names.parse_task_file, store.fs.names(layout.staging, strict))
    return [name for name in found if name is not None]


def has(store: Store, layout: Layout, batch: str) -> bool:
    """Return whether a listing shows a staged task file of this batch. HiddenTasks: see `files`."""
    return any(name.batch == batch for name in files(store, layout, strict=True))


def publish_named(store: Store, layout: Layout, staged: str) -> bool:
    """Publish the staged file named `staged`, which a record names. Return whether this process has renamed it.

    Its author may live, and do the same: of two processes that rename it, one does, and the other finds it published.
    """
    name = names.parse_task_file(staged)
    if name is None:
        return False
    try:
        store.fs.close(store.fs.look(layout.staged(name), os.O_RDWR))
    except OSError as error:  # it is published, or this user may only look
        let_out(error)
        return False
    directory = shard_directory(layout, name)
    prepare(store, layout, [directory])
    done = _rename_into_shard(store, layout, name)
    if done and store.sync_inserts:
        store.fs.sync_directory(directory)
    return done
