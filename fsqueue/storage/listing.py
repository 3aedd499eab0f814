"""Look at the queue by its listings: shards, task files, logs and their states. No lock is taken.

A listing may be old, or miss a name that is being renamed: only two of them prove absence. What a state says of updates
includes what is decided about them: see `decided`.

HiddenTasks if a link, or anything else, stands in the place of a log, of a shard or of a directory above it: what it
hides must not be called drained. Those that say so pass over it instead.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import TypeVar

from fsqueue.filesystem import Filesystem, PassingOverStrays, retried_after_stale
from fsqueue.format import movements, names, sparse
from fsqueue.format.names import Batch, Shard, TaskFileName
from fsqueue.format.replay import ReplayState
from fsqueue.storage import decided, journals
from fsqueue.storage.logs import read_present, read_recent, read_seal
from fsqueue.storage.store import Store

T = TypeVar("T")

RECORD_BYTES = 1 << 14
"""A record of a lease is no longer than this."""


def published(store: Store) -> Iterator[tuple[Batch, TaskFileName]]:
    """Yield the batches that have a task file, each with its name, shard by shard and in order within a shard."""
    yield from published_in(store, shards(store))


def published_in(store: Store, among: Iterable[Shard]) -> Iterator[tuple[Batch, TaskFileName]]:
    """Yield those of some shards."""
    for shard in among:
        yield from sorted(task_files(store, shard).items())


def with_logs(store: Store, every_shard: bool = False) -> Iterator[Batch]:
    """Yield the batches that have a log, shard by shard: those of which a task was ever leased, until they finish.

    An NFS client may overlook a new shard in a listing for a minute. `every_shard`: look into each, listed or not. A
    shard whose directory is hidden is passed over.
    """
    yield from with_logs_in(store, names.all_shards(store.layout.shards) if every_shard else shards(store))


def with_logs_in(store: Store, among: Iterable[Shard]) -> Iterator[Batch]:
    """Yield those of some shards."""
    for shard in among:
        with PassingOverStrays():
            yield from logs(store, shard)


def shards_with_logs(store: Store) -> frozenset[Shard]:
    """Return the shards that may have logs.

    On a local disk, one listing in place of many. An NFS client may overlook a new directory in a listing for a
    minute, so there every shard is looked into.
    """
    every = names.all_shards(store.layout.shards)
    if store.fs.shared:
        return frozenset(every)
    found = set(store.fs.names(store.layout.logs, True))
    return frozenset(shard for shard in every if shard in found)


def read_replay_state(store: Store, batch: Batch) -> ReplayState | None:
    """Return the replay state of a batch, by a revalidating open, without a lock. None if no task was ever leased.

    (A log may be there all the same: empty, or created anew and retired by a process that came too late.)
    """

    def read() -> ReplayState | None:
        replay_state = ReplayState()
        replay_state.replay_pieces(_of_log(store, batch, Filesystem.read_pieces) or [], 0)
        return replay_state if replay_state.opened else None

    found = read()
    return decided.seen(store, found, read) if found is not None and found.prepared else found


def read_present_state(store: Store, batch: Batch) -> ReplayState | None:
    """Return a batch's state, replayed from the log's last checkpoint on. The cost grows with the unfinished tasks.

    Of tasks that had been completed or cancelled by then it says nothing else.
    """

    def read() -> ReplayState | None:
        return read_own_state(store, batch)

    found = read()
    return decided.seen(store, found, read) if found is not None and found.prepared else found


def read_own_state(store: Store, batch: Batch) -> ReplayState | None:
    """Return the state of a batch by its log alone: an update whose outcome it lacks counts as not decided."""
    found = _of_log(store, batch, read_present)
    return found if found is not None and found.opened else None


def read_recent_state(
    store: Store, batch: Batch, before_ms: int, kind: type[ReplayState] = ReplayState
) -> tuple[ReplayState, int, int]:
    """Return the state of a log as `logs.read_recent` reads it; an empty state if there is no log."""

    def read(fs: Filesystem, path: str) -> tuple[ReplayState, int, int]:
        return read_recent(fs, path, before_ms, kind)

    found = state, begun, size = _of_log(store, batch, read) or (kind(), 0, 0)
    if not state.prepared:
        return found

    def again() -> ReplayState:
        nonlocal state, begun, size
        state, begun, size = _of_log(store, batch, read) or (kind(), 0, 0)
        return state

    decided.seen(store, state, again)
    return state, begun, size


def waiting_if_sealed(store: Store, batch: Batch) -> int | None:
    """Return the number of waiting tasks as `logs.read_seal` reads it; None if there is no log."""
    return _of_log(store, batch, read_seal)


def lines_in_log(store: Store, batch: Batch, replay_state: ReplayState) -> list[bytes] | None:
    """Return the lines of the tasks that are in a batch's log; of one that the state does not know, b"".

    None if that log has gone since the state was read: the batch has finished.
    """

    def read(fs: Filesystem, path: str) -> list[bytes] | None:
        content = sparse.content_of(fs.read_pieces(path))
        if len(content) <= max(replay_state.places.values(), default=-1):
            return None  # created anew by a process that came too late
        lines = [b""] * replay_state.count
        for index, place in replay_state.places.items():
            lines[index] = content[place : max(place, content.find(b"\n", place))]
        return lines

    return _of_log(store, batch, read)


def times_of_records(store: Store, batch: Batch, offsets: Iterable[int]) -> dict[int, int]:
    """Return the times (ms) of the records at some offsets of a batch's log. Offsets without a record are left out."""

    def read(fs: Filesystem, path: str) -> dict[int, int]:
        with fs.closing(fs.look_anew(path)) as fd:
            lines = {offset: fs.pread(fd, RECORD_BYTES, offset).partition(b"\n")[0] for offset in offsets}
        records = {offset: movements.parse(line) for offset, line in lines.items()}
        return {offset: record["at"] for offset, record in records.items() if record is not None}

    return _of_log(store, batch, read) or {}


def end_of_log(store: Store, batch: Batch) -> tuple[int, int | None]:
    """Return how long a batch's log is, and when its last record was written (ms); None if its last page does not tell.

    A log that is missing has no bytes.
    """

    def read(fs: Filesystem, path: str) -> tuple[int, int | None]:
        with journals.opened(fs, path) as file:
            size = file.length()
            begin = max(0, size - journals.PAGE_BYTES)
            *lines, _ = fs.pread(file.fd, size - begin, begin).split(b"\n")
        if begin:
            del lines[:1]  # it begins before the page
        record = movements.parse(lines[-1]) if lines else None
        return size, record["at"] if record is not None else None

    return _of_log(store, batch, read) or (0, None)


def log_bytes(store: Store, batch: Batch) -> int:
    """Return how long a batch's log is, as a file server knows it; 0 if there is none."""

    return _of_log(store, batch, lambda fs, path: fs.size_on_server(path)) or 0


def _of_log(store: Store, batch: Batch, read: Callable[[Filesystem, str], T]) -> T | None:
    """Call `read` with the path of a batch's log, and return the result; None if there is no log. HiddenTasks if
    something else has the log's name.
    """
    path = store.layout.log(batch)
    return store.fs.unless_absent(path, lambda: retried_after_stale(lambda: read(store.fs, path)))


def at_work(
    store: Store, every_shard: bool = False, read: Callable[[Store, Batch], ReplayState | None] = read_replay_state
) -> Iterator[tuple[Batch, ReplayState]]:
    """Yield the batches of which a task was ever leased, each with the replay of its log; see `with_logs`.

    A log whose place something else has is passed over.
    """
    for batch in with_logs(store, every_shard):
        replay_state = None
        with PassingOverStrays():
            replay_state = read(store, batch)
        if replay_state is not None:
            yield batch, replay_state


def task_files(store: Store, shard: Shard) -> dict[Batch, TaskFileName]:
    """Return the task files of a shard by batch (of two names of one batch, seen during a renaming, one)."""
    found = map(names.parse_task_file, store.fs.names(f"{store.layout.tasks}/{shard}", True))
    return {name.batch: name for name in found if name is not None}


def logs(store: Store, shard: Shard) -> list[Batch]:
    """Return the batches of a shard that have a log."""
    found = map(names.parse_log_file, store.fs.names(f"{store.layout.logs}/{shard}", True))
    return [uuid for uuid in found if uuid is not None]


class _Any:
    """Contain whatever is asked for."""

    def __contains__(self, path: object) -> bool:
        return True


def parts(store: Store) -> Container[str]:
    """Return the paths of the entries of the generation's directory, by one listing.

    On a shared mount to ask for a directory that is missing costs more than this listing. On a local disk it costs
    less: there the answer is that all may be there.
    """
    if not store.fs.shared:
        return _Any()
    base = store.layout.base
    return frozenset(f"{base}/{name}" for name in store.fs.names(base, True))


def shards(store: Store) -> list[Shard]:
    """Return the shards that have task files or logs, or had."""
    fs, layout = store.fs, store.layout
    found = {*fs.names(layout.tasks, True), *fs.names(layout.logs, True)}
    return [shard for shard in names.all_shards(store.layout.shards) if shard in found]
