"""Insert tasks again that have ended, dead letters and completed ones alike (docs/design.md, section 4.10).

What decides is one line in a shard's file of dead letters: `retried`. It names the ended tasks, and the staged file
that holds the new ones. A file in `staging/` that such a line names is as good as published.

A process reads each byte of the files of letters once for that: they are only appended to until others replace them. It
remembers the names whose files are still in `staging/`. A published file never comes back there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import orjson

from fsqueue.errors import FsqueueError, LockTimeout, QueuePurged
from fsqueue.filesystem import either_of_two
from fsqueue.format import names, priority
from fsqueue.format.layout import BATCH_BYTES_MAX, Layout
from fsqueue.format.names import Shard, TaskFileName
from fsqueue.format.priority import Priority
from fsqueue.interruptions import let_out
from fsqueue.storage import journals, letter_files, queue_changes, staging
from fsqueue.storage.store import Store

logger = logging.getLogger("fsqueue")

LATER_WAIT_S = 2.0
"""Time that a call waits for a file of letters once another one has stayed locked for the whole time."""


class EndedTask(NamedTuple):
    """A task to settle: its id, and the line and the priority of the new task, if it is inserted again."""

    id: str
    line: bytes = b""
    priority: Priority | None = None


# -- settling ------------------------------------------------------------------------------------------


class Settlement:
    """A call that settles ended tasks: the generation in which it began, how many it has settled, and which files of
    letters were locked.
    """

    def __init__(self, store: Store, doing: str, done: str) -> None:
        self.store = store
        self.layout: Layout = store.layout
        self.count = 0
        self._doing = doing
        self._done = done
        self._busy: dict[Shard, LockTimeout] = {}

    @contextmanager
    def explaining_errors(self) -> Iterator[None]:
        """Tell what an error inside means. QueuePurged, QueueNotFound: a purge or a deletion overtook the call.

        The files may be there still, on their way into the trash: what is done to them would be reported done, and be
        lost. Any other error says how many tasks are settled. LockTimeout at the end, if a file stayed locked.
        """
        try:
            yield
        except FileNotFoundError:
            self.must_be_of_this_generation()
            raise
        except QueuePurged:
            raise
        except (OSError, FsqueueError) as error:
            let_out(error)
            raise self._explained(error) from (error if isinstance(error, OSError) else error.__cause__)
        self.must_be_of_this_generation()
        if self._busy:
            raise self._explained(next(iter(self._busy.values())))

    def _explained(self, error: OSError | FsqueueError) -> FsqueueError:
        then = f"{self._done}: {self.count}. Repeat the call for the rest: nothing is done twice."
        return self.store.explain(error, self._doing, then)

    @contextmanager
    def locked(self, shard: Shard) -> Iterator[letter_files.LetterFile | None]:
        """Lock a shard's file of letters, and look whether the queue was purged. None if the file stays locked.

        A stopped process must not keep the letters of other shards waiting: the caller goes on with these, and `told`
        raises in the end.
        """
        store, wait_s = self.store, LATER_WAIT_S if self._busy else journals.LOCK_TIMEOUT_S
        is_locked = False
        try:
            if shard not in self._busy:
                with letter_files.locked(store, self.layout, shard, wait_s, durable=store.sync_inserts) as file:
                    is_locked = True
                    self.must_be_of_this_generation()
                    yield file
        except LockTimeout as error:
            if is_locked:
                raise
            self._busy[shard] = error
        if not is_locked:
            yield None

    def must_be_of_this_generation(self) -> None:
        """Raise QueuePurged or QueueNotFound, unless the queue is still as this call has found it."""
        self.store.refresh(now=True)
        if self.store.layout is not self.layout:  # another thread may have found it out
            raise QueuePurged(
                f"The queue {self.store.path} was purged in the middle of {self._doing}: they are gone, and so is what "
                "was inserted of them. Nothing is left to do."
            )


def parts(store: Store, tasks: Iterable[EndedTask]) -> Iterator[list[EndedTask]]:
    """Yield tasks in parts as large as an insert's batches; a larger task by itself."""
    part: list[EndedTask] = []
    size = 0
    for task in tasks:
        if part and (len(part) >= store.settings.batch_tasks_max or size + len(task.line) > BATCH_BYTES_MAX):
            yield part
            part, size = [], 0
        part.append(task)
        size += len(task.line)
    if part:
        yield part


def insert_again(store: Store, layout: Layout, file: journals.Journal, tasks: Sequence[EndedTask]) -> None:
    """Insert tasks again, as one batch, under the lock of their shard's file of dead letters, which is `file`.

    Stage the new tasks; append one `retried` line that names the staged file, and sync; publish. A crash before the
    line leaves a staged file that upkeep reaps; one after it leaves a staged file that `publish_pending` publishes:
    never lost, never twice. An error while the line is written leaves open whether it stands, so the staged file stays,
    too: the line, or its absence, decides.

    The batch is of the same shard: so `deadletters.repeats` finds by a new task the one that it repeats.
    """
    assert tasks, "a batch has a task at least"
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
        line = settled_line(store, "retried", tasks, staged=str(staged.name), **{"as": staged.name.batch})
        named = True
        file.append(line, store.sync_inserts)
        _publish(store, layout, staged)
    finally:
        if named:
            staged.close(store)
        else:
            staging.discard(store, staged)


def settled_line(store: Store, op: str, tasks: Iterable[EndedTask], **fields: str) -> bytes:
    """Return the line that says what was done about ended tasks: `retried` or `purged`."""
    assert op in ("retried", "purged"), "no reader knows what was done"
    line = {"op": op, "at": store.clock.now_ms(), "ids": [task.id for task in tasks], **fields}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def _publish(store: Store, layout: Layout, staged: staging.Staged) -> None:
    """Publish what a `retried` line names. The line decides: an error is told, and other processes publish the file."""
    try:
        list(staging.publish(store, layout, [staged]))
    except (OSError, FsqueueError) as error:
        let_out(error)
        logger.warning(
            "the tasks that were retried in %s are not published yet (%s); the next process that looks for work does "
            "it, or 'fsqueue gc'",
            staged.path,
            error,
        )


# -- what retries have staged --------------------------------------------------------------------------


def publish_pending(store: Store) -> int:
    """Publish what retries recorded, but did not live to publish, and ring. Returns how many files."""
    published = 0
    for shard, named in _pending(store).items():
        if store.sync_inserts:  # the line must not be lost when what it publishes is not
            list(letter_files.each(store, store.layout, lambda _, file: store.fs.fsync(file.fd), [shard]))
        published += sum(staging.publish_named(store, store.layout, name) for name in sorted(named))
    if published:
        store.doorbell.ring()
    return published


def pending(store: Store, strict: bool = False) -> set[str]:
    """Return the staged files that `publish_pending` would publish. `strict`: see `staging.files`."""
    return set().union(*_pending(store, strict).values())


def _pending(store: Store, strict: bool = False) -> dict[Shard, frozenset[str]]:
    """Return the staged files that `publish_pending` would publish, by the shard whose letters were retried."""
    there = {str(name) for name in staging.files(store, store.layout, strict)}
    if not there:
        return {}
    return {shard: some for shard, named in _staged(store).items() if (some := named & there)}


def _staged(store: Store) -> dict[Shard, frozenset[str]]:
    """Return the staged files that `retried` lines name, by the shard whose letters were retried."""
    layout = store.layout

    def read(shard: Shard, file: journals.Journal) -> tuple[Shard, frozenset[str]]:
        return shard, read_on(store, file)

    named = dict(letter_files.each(store, layout, read))
    forget_published(store)
    return named


def staged_names(store: Store) -> set[str]:
    """Return the staged files that `retried` lines name: not to be reaped before they are published."""
    return set().union(*_staged(store).values())


class Seen(NamedTuple):
    """The part of a file that was read: which file, up to where, and the names in it that may still be in staging."""

    version: letter_files.Version
    state: letter_files.State
    """State of the file of letters, as of the last look."""
    end: int
    names: frozenset[str]


def read_on(store: Store, file: journals.Journal) -> frozenset[str]:
    """Read what was appended to an open file of letters since the last call. Return the staged files that it names.

    Names that `forget_published` has forgotten may be left out. A file that has replaced the one that was read is read
    from its beginning.
    """
    seen: Seen | None = store.retried.get(file.path)
    state = letter_files.state_of(file)
    if seen is None or seen.state != state:
        version = letter_files.version(file)
        if seen is None or seen.version != version:
            seen = Seen(version, state, 0, frozenset())
    end, names, is_sound = seen.end, set(seen.names), True
    for length, piece in file.pieces(seen.end, shortened=letter_files.LETTER):
        if b"staged" in piece:
            names.update(_names_in(piece))
        # An NFS client may serve zeros for what it has not fetched yet: those are read again the next time.
        is_sound = is_sound and b"\0" not in piece
        end += length if is_sound else 0
    seen = store.retried[file.path] = Seen(seen.version, state, end, frozenset(names))
    return seen.names


def forget_published(store: Store) -> None:
    """Forget names whose files are not in staging any more. Call `read_on` of the files of letters before.

    A line is written after its file was staged. So a name that two listings do not show was published.
    """
    remembered = store.retried
    if any(seen.names for seen in remembered.values()):
        there = either_of_two(lambda: store.fs.names(store.layout.staging))
        for path, seen in list(remembered.items()):
            if not seen.names <= there:
                remembered[path] = seen._replace(names=seen.names & there)


def _names_in(piece: bytes) -> Iterator[str]:
    for line in piece.split(b"\n"):
        if b"staged" in line:
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            match record:
                case {"op": "retried", "staged": str(name)}:
                    yield name
