"""Replace everything in a queue by a named commit, which begins a generation (docs/design.md, section 4.4).

Who has proposed one of its attempts is waited for before the lock is taken. Order, under the lock of `queue.jsonl`:

1. Make the next generation's directory, move the staged attempts into it unless another process publishes them, and
   write the commit's record there. Sync.
2. Append the line that begins the generation. This decides. The commit is then applied like any other.

A crash before 2 leaves a generation that never began. The next purge or overwrite clears it away, and the caller stages
its tasks again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from fsqueue.errors import CommitLost, LockTimeout
from fsqueue.format import names
from fsqueue.format.layout import Layout, generation_record
from fsqueue.format.names import Generation
from fsqueue.interruptions import is_interruption, let_out
from fsqueue.storage import commits
from fsqueue.storage.commits import Record
from fsqueue.storage.queue_changes import locked
from fsqueue.storage.store import Store


def begin(store: Store, record: Record) -> Record:
    """Begin a generation with the tasks of a record, unless a commit of its name was decided. Return the decided
    record.

    CommitLost: what was staged is gone, also because the queue was purged or overwritten by another meanwhile. After an
    OSError nothing has begun.
    """
    fs, layout, queue_state = store.fs, store.layout, store.queue_state
    commits.end_proposals(store, layout, record.attempts(), commits.LOCK_S)
    with locked(fs, store.clock, store.entropy, store.path) as queue_file, ExitStack() as undo:
        if queue_file.state != queue_state:
            store.refresh(now=True)
            found = commits.find(store, store.layout, record.name)
            if found is None:
                raise CommitLost(
                    f"The queue {store.path} was purged or overwritten while {record.name} was being published. "
                    "Nothing of it is visible; stage it again, and publish that."
                )
            return found
        found = commits.find(store, layout, record.name)
        if found is not None:
            return found
        begun = queue_state.generation + 1
        directory = names.generation(begun, queue_state.id)
        following = Layout(store.path, directory, layout.shards)
        clear(store, directory)
        fs.make_directory(following.base)
        undo.callback(_undoing, store, lambda: store.discard(store.path, directory))
        found = _move(store, layout, following, record, undo)
        if found is not None:
            return found
        _note(store, following, record)
        try:
            queue_file.append(generation_record(begun, store.clock.now_ms()))
        except BaseException as error:
            if queue_file.may_differ():
                undo.pop_all()  # perhaps it will last, and then it has begun
                if isinstance(error, OSError) and not is_interruption(error):
                    raise commits.undecided(store, error) from error
            raise
        undo.pop_all()
    return record


def _undoing(store: Store, undo: Callable[[], object]) -> None:
    """Undo a step after an error, which another error must not hide."""
    try:
        undo()
    except OSError as error:
        let_out(error)
        commits.logger.warning("what an overwriting of %s has begun could not be undone (%s)", store.path, error)


def clear(store: Store, directory: Generation) -> None:
    """Make room for a generation that is about to begin: an overwriting that died may have left something there."""
    if store.fs.exists(f"{store.path}/{directory}"):
        store.discard(store.path, directory)


def _move(store: Store, layout: Layout, following: Layout, record: Record, undo: ExitStack) -> Record | None:
    """Move the attempts that a record names into the next generation, proven; back again if that fails. Return None.

    Move nothing, and return the record that was decided for the name, if there is one by now: any process may still be
    renaming files out of these attempts then, by a name that an NFS client remembers, wherever their directories are.
    LockTimeout: another process is about to decide, and does not come to an end.
    """
    fs, attempts = store.fs, record.attempts()
    for _ in range(commits.LOOKS):
        if not commits.end_proposals(store, layout, attempts, commits.LOCK_S):  # a proposer waits for the locks below
            break
        with ExitStack() as locks:
            try:
                for attempt, parts in attempts.items():
                    commits.prove(store, layout, record.name, attempt, parts, locks)
            except CommitLost:
                found = commits.find(store, layout, record.name)
                if found is None:
                    raise
                return found
            are_free = commits.end_proposals(store, layout, attempts)
            found = commits.find(store, layout, record.name)
            if found is not None:
                return found
            if are_free:
                fs.make_directory(following.staging)
                for attempt in attempts:
                    here, there = layout.attempt(attempt, record.name), following.attempt(attempt, record.name)
                    if not fs.rename(here, there):
                        raise commits.lost(store, record.name)
                    undo.callback(_undoing, store, partial(fs.rename, there, here))
                return None
    raise LockTimeout(
        f"Another process is publishing what was staged for the commit {record.name} of {store.path}, and has not come "
        "to an end. Nothing was overwritten. Repeat the call once that process has ended."
    )


def _note(store: Store, following: Layout, record: Record) -> None:
    """Write the record, and what leads to it until it is applied, into the next generation; then all of it is durable.

    No process reads there before the generation begins.
    """
    fs = store.fs
    for path in (following.proposal(record.id), following.record(record.name)):
        with fs.closing(fs.create(path)) as fd:
            fs.write_all(fd, record.encode())
            if store.sync_inserts:
                fs.fsync(fd)
    if store.sync_inserts:
        for directory in (following.staging, following.pending, following.commits, following.base, store.path):
            fs.sync_directory(directory)
