"""Named commits on disk: attempts, proposals, records, and how processes finish them (docs/format.md, "Commits").

Order (docs/design.md, section 4.3, invariant 4):

1. Sync what is staged.
2. Write a ballot in `commits/`, then a proposal in `commits/pending/`, each complete and synced.
3. Prove that the attempts are there.
4. Link the ballot to `commits/NAME.json`. This decides. Sync it.
5. Publish the files, and sync that.
6. Remove the ballot, then the proposal.

So a proposal leads to each decision until that is applied, and to each attempt that a process may still decide for. The
ballot is removed before the proposal: without a ballot nothing can be decided.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import orjson

from fsqueue.errors import CommitLost, FsqueueError, HiddenTasks, InvalidArgument, LockTimeout, StorageError
from fsqueue.filesystem import either_of_two, is_gone
from fsqueue.format import names, sparse
from fsqueue.format.layout import Layout
from fsqueue.format.models import CommitPart
from fsqueue.format.names import Batch, CommitName, TaskFileName, Uuid
from fsqueue.interruptions import let_out, suppress
from fsqueue.storage import nested, staging
from fsqueue.storage.store import Store

logger = logging.getLogger("fsqueue")

LOCK = "lock"
"""A file in an attempt's directory. The process that has it locked proves or reaps the attempt."""
LOCK_S = 30.0
"""Seconds to wait for that lock: its holder lists the directory, or renames it."""
REAP_S = 2.0
"""Seconds to wait for that lock only to remove the attempt."""
LOOKS = 3
"""Number of listings that miss a staged file until it counts as gone."""
ROUNDS = 20
"""Maximum number of tries without success to publish what a listing shows; then something is wrong."""
FILES_MAX = 1 << 32


class Part(NamedTuple):
    """Files staged in a row by one writer: `files` batches, from `first` on."""

    attempt: Uuid
    first: Batch
    files: int
    tasks: int
    bytes: int

    def has(self, batch: str) -> bool:
        """Return whether a batch is one of the part's."""
        distance = names.distance(self.first, batch)
        return distance is not None and distance < self.files

    @classmethod
    def of(cls, part: CommitPart) -> Part:
        """Return a `Part` for a `CommitPart` of the user. InvalidArgument unless its names may become paths."""
        found = _part({name: getattr(part, name) for name in cls._fields})
        if found is None:
            raise InvalidArgument(f"{part!r} is no part as `stage` returns them. Nothing was done.")
        return found


class Record(NamedTuple):
    """The tasks that a commit inserts. A record is proposed, or decided: then `commits/NAME.json` has it."""

    id: Uuid
    name: CommitName
    at: int
    parts: tuple[Part, ...]
    of: str = ""
    """A digest of what the tasks were made of, where their order counts; "" if it does not."""

    def attempts(self) -> dict[Uuid, list[Part]]:
        """Return the parts of each attempt, in the order of their names."""
        found: dict[Uuid, list[Part]] = {}
        for part in sorted(self.parts, key=lambda one: one.attempt):
            found.setdefault(part.attempt, []).append(part)
        return found

    def total(self, what: str) -> int:
        """Return the sum of the parts' files, tasks or bytes."""
        assert what in ("files", "tasks", "bytes"), "only numbers have a sum"
        return sum(getattr(part, what) for part in self.parts)

    def encode(self) -> bytes:
        """Return the content of the record's file."""
        assert all(0 <= part.files <= FILES_MAX for part in self.parts), "the names of batches in a row would repeat"
        parts = [{field: getattr(part, field) for field in Part._fields} for part in self.parts]
        line = {"op": "commit", "id": self.id, "name": self.name, "at": self.at, "parts": parts}
        line |= {"of": self.of} if self.of else {}
        return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def parse(content: bytes) -> Record | None:
    """Return a record; None for anything that is none, since any user may have written it: names in it become paths."""
    try:
        line = orjson.loads(content) if content.endswith(b"\n") else None
    except orjson.JSONDecodeError:
        return None
    match line:
        case {"op": "commit", "id": identity, "name": name, "at": int(at), "parts": list(given)}:
            known, commit = names.parse_uuid(identity), names.parse_commit(name)
            parts = [part for part in map(_part, given) if part is not None]
            if known is not None and commit is not None and len(parts) == len(given):
                of = line["of"] if isinstance(line, dict) and isinstance(line.get("of"), str) else ""
                return Record(known, commit, at, tuple(parts), of)
    return None


def _part(line: Any) -> Part | None:
    match line:
        case {"attempt": attempt, "first": first, "files": files, "tasks": tasks, "bytes": size}:
            numbers = files, tasks, size
            sound = all(type(number) is int and 0 <= number < 2**63 for number in numbers) and files <= FILES_MAX
            known, batch = names.parse_uuid(attempt), names.parse_batch(first)
            if sound and known is not None and batch is not None:
                return Part(known, batch, files, tasks, size)
    return None


# -- looking -----------------------------------------------------------------------------------------


def find(store: Store, layout: Layout, commit: CommitName) -> Record | None:
    """Return the record that was decided for a name, by a revalidating open; None if there is none.

    StorageError: it is damaged. HiddenTasks: something else stands in its place.
    """
    path = layout.record(commit)
    content = _content(store, path)
    if content is None:
        return None
    record = parse(content)
    if record is None or record.name != commit:
        raise StorageError(
            f"The record of the commit {commit} ({path}) is damaged, so what it inserted cannot be told. "
            "Nothing was done. 'fsqueue fsck' tells more."
        )
    return record


def proposals(store: Store, layout: Layout, strict: bool = False) -> Iterator[Uuid]:
    """Yield the ids of the proposed commits, and of those that were decided and may not be applied. `strict`: see
    `Filesystem.names`.
    """
    for text in store.fs.names(layout.pending, strict):
        identity = names.parse_proposal_file(text)
        if identity is not None:
            yield identity


def proposed(store: Store, layout: Layout, identity: Uuid) -> Record | None:
    """Return the record in a proposal; None if the proposal is gone, or neither the proposal nor its ballot holds a
    record.

    The ballot holds the same record, and is there until the commit is applied or given up. So a proposal that is
    damaged after its commit was decided hides nothing. HiddenTasks: something else stands in the place of one of the
    two.
    """
    for path in (layout.proposal(identity), layout.ballot(identity)):
        content = _content(store, path)
        if content is None:
            return None
        record = parse(content)
        if record is not None and record.id == identity:
            return record
    return None


def _content(store: Store, path: str) -> bytes | None:
    """Return the content of a file, by a revalidating open; None if there is none. HiddenTasks."""
    return store.fs.unless_absent(path, lambda: sparse.content_of(store.fs.read_pieces(path)))


def is_decided(store: Store, layout: Layout, record: Record) -> bool:
    """Return whether a record is the one that was decided for its name. HiddenTasks: see `find`."""
    try:
        found = find(store, layout, record.name)
    except StorageError:
        return False
    return found is not None and found.id == record.id


def pending(store: Store, layout: Layout, strict: bool = False) -> list[Record]:
    """Return the records that are decided and perhaps not applied.

    `strict`: HiddenTasks if something else stands where one of them may be, StorageError for a damaged record. Else
    these are passed over.
    """
    found = []
    for identity in proposals(store, layout, strict):
        try:
            record = proposed(store, layout, identity)
            counts = None if record is None else find(store, layout, record.name)
        except (HiddenTasks, StorageError):
            if strict:
                raise
            continue
        if record is not None and counts is not None and counts.id == identity:
            found.append(record)
    return found


def decided(store: Store) -> set[str]:
    """Return the file names of all records: when they are the same as before, nothing was decided meanwhile."""
    return {text for text in store.fs.names(store.layout.commits) if names.parse_record_file(text) is not None}


def waiting(store: Store, strict: bool = False) -> dict[Batch, TaskFileName]:
    """Return the batches of decided commits that are still staged: as good as published. `strict`: see `pending`."""
    layout = store.layout
    return {
        name.batch: name
        for record in pending(store, layout, strict)
        for attempt, parts in record.attempts().items()
        for name in staged(store, layout, attempt, record.name, parts)
    }


def staged(
    store: Store, layout: Layout, attempt: Uuid, commit: CommitName, parts: Iterable[Part]
) -> list[TaskFileName]:
    """Return the files of some parts that a listing of their attempt shows.

    HiddenTasks if something else has the place of its directory: else what it holds would count as published.
    """
    known = {part.first[:24]: part for part in parts}
    found = []
    for text in store.fs.names(layout.attempt(attempt, commit), True):
        name = names.parse_task_file(text)
        part = known.get(name.batch[:24]) if name is not None else None
        if name is not None and part is not None and part.has(name.batch):
            found.append(name)
    return found


# -- deciding ----------------------------------------------------------------------------------------


def cast_ballot(store: Store, layout: Layout, identity: Uuid, content: bytes) -> None:
    """Write the ballot of a proposal, complete and synced, before the proposal."""
    fs = store.fs
    with fs.closing(store.making_generation(lambda: fs.create(layout.ballot(identity)))) as fd:
        fs.write_all(fd, content)
        if store.sync_inserts:
            fs.fsync(fd)


def withdraw(store: Store, layout: Layout, identity: Uuid) -> None:
    """Remove a proposal and its ballot. Remove the ballot first: a late link then finds nothing to link.

    In the other order, a crash could leave the ballot alone. A client that was cut off could still link it, and no
    proposal would lead others to that decision.
    """
    store.fs.unlink(layout.ballot(identity))
    store.fs.unlink(layout.proposal(identity))


def decide(store: Store, layout: Layout, record: Record) -> Record:
    """Decide for a record, unless another record was decided for its name. Return the one that counts.

    Whatever went wrong, the content of `commits/NAME.json` decides. If there is none, the ballot and then the proposal
    are unlinked before the last look: a link that arrives late would otherwise decide after it.
    """
    try:
        cast_ballot(store, layout, record.id, record.encode())
        with _proposed(store, layout, record):
            _prove(store, layout, record)
            store.fs.link(layout.ballot(record.id), layout.record(record.name))
        return record
    except (OSError, FsqueueError) as error:
        let_out(error)
        try:
            found = find(store, layout, record.name)
            if found is None or found.id != record.id:
                withdraw(store, layout, record.id)
                found = find(store, layout, record.name)
        except (OSError, FsqueueError) as other:
            let_out(other)
            if is_gone(other) and _is_overtaken(store, layout):
                raise _given_up(store, record) from error
            raise undecided(store, other) from error
        if found is not None:
            return found
        if is_gone(error) and (_is_overtaken(store, layout) or isinstance(error, FileNotFoundError)):
            raise _given_up(store, record) from error
        raise


def _is_overtaken(store: Store, layout: Layout) -> bool:
    """Read `queue.jsonl` again. Return whether the generation of `layout` has ended. QueueNotFound."""
    store.refresh(now=True)
    return store.layout is not layout


def _given_up(store: Store, record: Record) -> CommitLost:
    return CommitLost(
        f"The commit {record.name} of {store.path} was given up meanwhile: the queue was purged, or this "
        "process was taken for dead. Nothing of it is visible; publish it again, or else stage it again."
    )


DOING = "publishing a commit"
NOTHING = "Nothing of it is visible; the call may be repeated."
DECIDED = (
    "It is decided: all of its tasks are in the queue, or will be when the filesystem works again. Repeat the call "
    "until it reports: it inserts nothing twice."
)


def undecided(store: Store, error: OSError | FsqueueError) -> FsqueueError:
    """Return the error for a commit that may be decided or not: no process can tell."""
    then = "It is unknown whether the commit is decided. Repeat the call until it reports: it inserts nothing twice."
    failure = store.explain(error, DOING, then)
    failure.is_exact = False
    return failure


@contextmanager
def _proposed(store: Store, layout: Layout, record: Record) -> Iterator[None]:
    """Propose a record: durable, and locked while this lasts, so that no process takes it for a dead one's."""
    fs, path = store.fs, layout.proposal(record.id)
    with fs.unlocking(store.making_generation(lambda: fs.create(path))) as fd:
        if not fs.lock(fd, store.clock, store.entropy, staging.LOCK_S):  # another may just test whose it is
            raise LockTimeout(f"{path} is locked by a process that is stopped. Repeat.")
        fs.write_all(fd, record.encode())
        if store.sync_inserts:
            fs.fsync(fd)
            store.names.sync(layout.pending)
        yield


def prove(store: Store, layout: Layout, commit: CommitName, attempt: Uuid, parts: list[Part], locks: ExitStack) -> None:
    """Prove that all files are there that a record names of an attempt. CommitLost if not; QueueNotFound.

    Under the attempt's lock, which `locks` gives back.
    """
    try:
        locks.enter_context(store.locked_existing(f"{layout.attempt(attempt, commit)}/{LOCK}", LOCK_S))
        whole = _is_whole(store, layout, attempt, commit, parts)
    except FileNotFoundError:
        whole = False
    if not whole:
        store.refresh(now=True)  # it may have gone with the whole queue
        raise lost(store, commit)


def _prove(store: Store, layout: Layout, record: Record) -> None:
    """Prove that all files are there that a proposed record names. CommitLost if not.

    A process that reaps an attempt has its lock, and looks for proposals under it. So what was there then stays, as
    long as the proposal does.
    """
    for attempt, parts in record.attempts().items():
        with ExitStack() as locks:
            prove(store, layout, record.name, attempt, parts, locks)


def lost(store: Store, commit: str) -> CommitLost:
    """Return the CommitLost that says that some of the staged files are gone."""
    return CommitLost(
        f"What was staged for the commit {commit} of {store.path} is not all there any more: it was "
        "discarded, purged, or reaped after a week. Nothing of it is visible; stage it again, and publish that."
    )


def _is_whole(store: Store, layout: Layout, attempt: Uuid, commit: CommitName, parts: list[Part]) -> bool:
    """Return whether listings show each file of these parts, with as many tasks as there should be."""
    missing = {part.first[:24]: (part, bytearray(b"\1") * part.files) for part in parts}
    files, tasks = sum(part.files for part in parts), sum(part.tasks for part in parts)
    for _ in range(LOOKS if files else 0):
        for name in staged(store, layout, attempt, commit, parts):
            part, absent = missing[name.batch[:24]]
            at = names.distance(part.first, name.batch) or 0
            if absent[at]:
                absent[at] = 0
                files, tasks = files - 1, tasks - name.count
        if not files:
            break
    return not files and not tasks


# -- applying ----------------------------------------------------------------------------------------


def apply_pending(store: Store, strict: bool = False) -> int:
    """Apply the commits that are decided and perhaps not applied. Return how many there were. `strict`: see `pending`.

    A commit whose staged files are hidden is passed over, too, without `strict`.
    """
    layout = store.layout
    met = pending(store, layout, strict)
    for record in met:
        try:
            apply(store, layout, record)
        except HiddenTasks:
            if strict:
                raise
    return len(met)


def apply(store: Store, layout: Layout, record: Record) -> None:
    """Publish the files of a decided record that are still staged, clear up after it, and notify workers. Harmless to
    repeat.

    Any number of processes may be at it at once: each file is renamed from and to names that no other ever has.
    Nothing happens if the queue was purged meanwhile.
    """
    try:
        if store.sync_inserts:
            store.secure_generation()
            store.names.sync(layout.commits)  # a decision must not be lost when something of what it decided is not
        with _attending(store, layout.proposal(record.id)):
            for attempt, parts in record.attempts().items():
                _publish(store, layout, attempt, record.name, parts)
            if store.sync_inserts:
                for shard in _shards(layout, record):
                    with suppress(FileNotFoundError):  # nothing was published into it, or the queue was purged
                        store.fs.sync_directory(f"{layout.tasks}/{shard}")
    except OSError as error:
        let_out(error)
        if not is_gone(error) or not _is_overtaken(store, layout):
            raise
        return
    for attempt in record.attempts():
        drop(store, layout.attempt(attempt, record.name))
    try:
        withdraw(store, layout, record.id)  # it has served
    except OSError as error:
        let_out(error)
        logger.warning("the ballot of the commit %s is still there (%s); 'fsqueue gc' removes it", record.name, error)
    store.doorbell.ring()


def _publish(store: Store, layout: Layout, attempt: Uuid, commit: CommitName, parts: list[Part]) -> None:
    """Rename into their shards whatever listings show, until two of them in a row show nothing."""
    fs, directory, empty_looks = store.fs, layout.attempt(attempt, commit), 0
    for _ in range(ROUNDS):
        found = staged(store, layout, attempt, commit, parts)
        empty_looks = 0 if found else empty_looks + 1
        if empty_looks == 2:
            return
        staging.prepare(store, layout, sorted({staging.shard_directory(layout, name) for name in found}))
        for name in sorted(found):
            if not fs.rename(f"{directory}/{name}", layout.task_file(name)):
                store.names.shards.clear()  # another process was faster, or the shard's directory has gone
    raise StorageError(
        f"What is left of the commit {commit} cannot be published from {directory}. It is decided, and counts; "
        "repeat the call when the filesystem works again."
    )


def _shards(layout: Layout, record: Record) -> list[str]:
    """Return the shards in which a record's batches belong."""
    return sorted(
        {
            layout.shard(names.successor(part.first, index))
            for part in record.parts
            for index in range(min(part.files, 2 * layout.shards))  # then all are, wherever the numbers begin anew
        }
    )


@contextmanager
def _attending(store: Store, path: str) -> Iterator[None]:
    """Lock a proposal if it is free. Others then see that a process works on it; that keeps none from applying it."""
    fs = store.fs
    with ExitStack() as stack:
        with suppress(OSError):
            fs.try_lock(stack.enter_context(fs.unlocking(fs.look(path, os.O_RDWR))))
        yield


# -- clearing up -------------------------------------------------------------------------------------


def end_proposal(store: Store, layout: Layout, identity: Uuid, wait_s: float = 0.0) -> bool:
    """Bring a proposal to its end: applied if it was decided, withdrawn if its proposer is dead. False: it lives.

    `wait_s`: maximum number of seconds to wait for a proposer that lives.
    """
    path = layout.proposal(identity)
    try:
        with store.locked_existing(path, wait_s):
            record = proposed(store, layout, identity)
            if record is None or not is_decided(store, layout, record):
                withdraw(store, layout, identity)
    except FileNotFoundError:
        return True
    except LockTimeout:
        return False
    if record is not None and is_decided(store, layout, record):  # or a link was on its way; now none can be
        apply(store, layout, record)
    return True


def end_proposals(store: Store, layout: Layout, attempts: Collection[Uuid], wait_s: float = 0.0) -> bool:
    """Bring each proposal that names one of these attempts to its end. False: one of them lives. See `end_proposal`.

    A process that renames an attempt's directory calls this under the attempt's lock, and then looks for the record of
    the commit: a proposal that comes later finds the directory gone.
    """
    for identity in either_of_two(lambda: proposals(store, layout)):
        record = proposed(store, layout, identity)
        names_one = record is not None and any(attempt in attempts for attempt in record.attempts())
        if names_one and not end_proposal(store, layout, identity, wait_s):
            return False
    return True


def reap(store: Store, layout: Layout, attempt: Uuid, commit: CommitName) -> bool:
    """Remove what an attempt has staged; if it was decided, publish it instead. False if it is being decided on.

    It is renamed first, under its lock: a process that then proves what it proposed finds nothing, and what is
    staged under its name from then on is safe.
    """
    fs, directory = store.fs, layout.attempt(attempt, commit)
    if nested.spared(fs, directory):
        return False
    gone = f"{layout.staging}/{names.gone(store.entropy.hex16())}"
    with ExitStack() as stack:
        is_there = _lock_to_reap(store, directory, stack)
        record = find(store, layout, commit)
        if record is None:
            if not end_proposals(store, layout, (attempt,)):
                return False
            record = find(store, layout, commit)
        if record is None or attempt not in record.attempts():
            if is_there:
                fs.rename(directory, gone)
            record = None
    if record is not None:
        apply(store, layout, record)
    return drop(store, gone) or record is not None


def _lock_to_reap(store: Store, directory: str, stack: ExitStack) -> bool:
    """Lock an attempt's directory, for as long as `stack` lasts. False: there is none, or others are at it.

    A missing lock is made. The directory may have been reaped since it was listed, and made anew by a process that
    stages under the same name: reaped without the new lock, it could be gone after what is in it was proven.
    """
    path = f"{directory}/{LOCK}"
    for _ in range(LOOKS):
        try:
            store.fs.close(store.fs.look(path, os.O_RDWR | os.O_APPEND | os.O_CREAT))
        except FileNotFoundError:
            return False
        with suppress(FileNotFoundError):  # another process has just reaped it
            stack.enter_context(store.locked_existing(path, REAP_S))
            return True
    return False


def drop(store: Store, directory: str) -> bool:
    """Remove the directory of an attempt that is applied, or of which no process can need anything."""
    try:
        return not nested.spared(store.fs, directory) and store.fs.remove_tree(directory) > 0
    except OSError as error:
        let_out(error)
        logger.warning("%s is still there (%s); 'fsqueue gc' removes it", directory, error)
        return False
