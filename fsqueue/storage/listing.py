"""What is in the queue by its listings: shards, task files, logs and their states. No lock is taken.

A listing may be old, or miss a name that is being renamed: only two of them prove absence.
"""

from __future__ import annotations

from collections.abc import Iterator

from fsqueue.filesystem import NOT_FILES
from fsqueue.format import names, sparse
from fsqueue.format.names import Batch, Shard, TaskFileName
from fsqueue.format.replay import ReplayState
from fsqueue.storage.store import Store


def published(store: Store) -> Iterator[tuple[Batch, TaskFileName]]:
    """Yield the batches that have a task file, each with its name, shard by shard and in order within a shard."""
    for shard in shards(store):
        yield from sorted(task_files(store, shard).items())


def with_logs(store: Store, every_shard: bool = False) -> Iterator[Batch]:
    """Yield the batches that have a log, shard by shard: those of which a task was ever leased, until they finish.

    An NFS client may overlook a new shard in a listing for a minute. `every_shard`: look into each, listed or not.
    """
    for shard in names.all_shards(store.layout.shards) if every_shard else shards(store):
        yield from logs(store, shard)


def at_work(store: Store, every_shard: bool = False) -> Iterator[tuple[Batch, ReplayState]]:
    """Yield the batches of which a task was ever leased, each with the replay of its log; see `with_logs`."""
    for batch in with_logs(store, every_shard):
        replay_state = read_replay_state(store, batch)
        if replay_state is not None:
            yield batch, replay_state


def shards_with_logs(store: Store) -> frozenset[Shard]:
    """Return the shards that may have logs.

    On a local disk, one listing in place of many. An NFS client may overlook a new directory in a listing for a
    minute, so there every shard is looked into.
    """
    every = names.all_shards(store.layout.shards)
    if store.fs.shared:
        return frozenset(every)
    found = set(store.fs.names(store.layout.logs))
    return frozenset(shard for shard in every if shard in found)


def read_replay_state(store: Store, batch: Batch) -> ReplayState | None:
    """Return the replay state of a batch, by a revalidating open, without a lock. None if no task was ever leased.

    (A log may be there all the same: empty, or created anew and retired by a process that came too late.)
    """
    replay_state = ReplayState()
    replay_state.replay_pieces(read_log(store, batch), 0)
    return replay_state if replay_state.count else None


def read_log(store: Store, batch: Batch) -> list[sparse.Piece]:
    """Return the pieces of a batch's log, by a revalidating open; none if it has none."""
    try:
        return store.fs.read_pieces(store.layout.log(batch))
    except FileNotFoundError:
        return []
    except OSError as error:
        if error.errno not in NOT_FILES:
            raise
        return []  # a directory, link or pipe of that name: a stray


def task_files(store: Store, shard: Shard) -> dict[Batch, TaskFileName]:
    """Return the task files of a shard by batch (of two names of one batch, seen during a renaming, one)."""
    found = map(names.parse_task_file, store.fs.names(f"{store.layout.tasks}/{shard}"))
    return {name.batch: name for name in found if name is not None}


def logs(store: Store, shard: Shard) -> list[Batch]:
    """Return the batches of a shard that have a log."""
    found = map(names.parse_log_file, store.fs.names(f"{store.layout.logs}/{shard}"))
    return [uuid for uuid in found if uuid is not None]


def shards(store: Store) -> list[Shard]:
    """Return the shards that have task files or logs, or had."""
    found = {*store.fs.names(store.layout.tasks), *store.fs.names(store.layout.logs)}
    return [shard for shard in names.all_shards(store.layout.shards) if shard in found]
