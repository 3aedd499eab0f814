"""Files of dead letters, one a shard: reading, locking, and replacing one by another without what was settled.

A file is appended to under its lock. Once letters that were retried or purged take up more than half of it, `give_back`
replaces it (docs/decisions/0022-letters-given-back.md):

1. what was settled goes to the history, as lines of `SHARD.settled.jsonl`, synced;
2. all that stays is written to a new file beside it, synced;
3. a `moved` line that names the new file is appended to the old one. From then on the old file is closed;
4. the new file is renamed into its place.

A crash before 3 leaves an unused new file, which `gc` removes after a day. After 3, the next process that locks the
file does 4. So a renaming that a file server executes late changes nothing: nothing is appended to a closed file.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

import orjson

from fsqueue.errors import SecondName
from fsqueue.filesystem import NOT_FILES, Filesystem, either_of_two, retried_after_stale
from fsqueue.format import names, nesting
from fsqueue.format.layout import Layout
from fsqueue.format.names import Shard, TaskFileName
from fsqueue.interruptions import suppress
from fsqueue.storage import history, journals, listing, staging
from fsqueue.storage.store import Store

T = TypeVar("T")
SETTLED = ("retried", "purged")
LETTER = b'{"op":"dead",'
"""First bytes of the line of each letter."""
BLOCK_BYTES = 4096
"""A file is replaced only if that gives back more than this: filesystems give room in blocks."""
MOVED_BYTES = 128
"""More than the length of a `moved` line."""
_MOVED = re.compile(
    rb'(?:^|\n)(\{"op":"moved","here":(0|[1-9][0-9]{0,15}),"to":"([0-9a-f]{16})","bytes":([1-9][0-9]{0,15})\}\n)\Z'
)
_HEADER = re.compile(rb'\{"op":"rewritten","id":"([0-9a-f]{16})"')
HEADER_BYTES = 64


# -- lines ---------------------------------------------------------------------------------------------


def records(file: journals.Journal) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file that make sense."""
    for line in file.lines():
        record = parse(line)
        del line  # letters may be long: none is held while the next one is read
        if record is not None:
            yield record
            del record


def parse(line: bytes) -> dict[str, Any] | None:
    """Return a line that makes sense, without the fields that nest too deep; None for any other."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if isinstance(record, dict) and len(line) > nesting.SHALLOW_BYTES and nesting.is_deeper(line):
        record = nesting.trimmed(record)
    if isinstance(record, dict) and (
        (record.get("op") == "dead" and isinstance(record.get("id"), str))
        or (record.get("op") in SETTLED and isinstance(record.get("ids"), list))
    ):
        return record
    return None


def is_sound_line(line: bytes) -> bool:
    """Return whether a line of a file of letters, or of settled ones, can be read: one with an `op` that is not known,
    too.
    """
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(record, dict) or not isinstance(op := record.get("op"), str):
        return False
    return op not in ("dead", *SETTLED) or parse(line) is not None


def dead_and_settled(file: journals.Journal) -> tuple[set[str], set[str]]:
    """Return the task ids that have a dead letter in a file, and those whose letters were dealt with."""
    dead: set[str] = set()
    settled: set[str] = set()
    if file.length() <= HEADER_BYTES:
        return dead, settled  # no line that counts is so short: all letters were settled and given back
    for line in records(file):
        if line["op"] == "dead":
            if line["id"] not in settled:
                dead.add(line["id"])
        else:
            for one in line["ids"]:
                if isinstance(one, str):
                    dead.discard(one)
                    settled.add(one)
        del line  # it may be long: it is not held while the next one is read
    return dead, settled


def settling(file: journals.Journal) -> Iterator[dict[str, Any]]:
    """Yield the lines that say which ids were dealt with. Letters are not parsed for that, and long ones not held."""
    for _, piece in file.pieces(0, shortened=LETTER):
        for line in piece.split(b"\n"):
            if line and not line.startswith(LETTER):
                record = parse(line)
                if record is not None and record["op"] in SETTLED:
                    yield record


def settled(file: journals.Journal) -> set[str]:
    """Return the ids that were dealt with."""
    return {one for line in settling(file) for one in line["ids"] if isinstance(one, str)}


# -- reading ---------------------------------------------------------------------------------------------


def shards(store: Store, layout: Layout, strict: bool = False) -> list[Shard]:
    """Return the shards that have a file. `strict`: HiddenTasks if something else stands in their directory's place."""
    listed = store.fs.names(layout.dead_letters, strict)
    found = (names.parse_shard_file(name, layout.shards) for name in listed)
    return sorted(shard for shard in found if shard is not None)


def shards_with_letters(store: Store, layout: Layout) -> list[Shard]:
    """Return the shards whose file has more than its header, or may have: on a shared mount all that have a file."""
    found = shards(store, layout)
    if store.fs.shared:  # there, asking for the size costs what reading does
        return found
    return [shard for shard in found if _has_more(store, layout.dead(shard))]


def _has_more(store: Store, path: str) -> bool:
    """Return whether a file on a local disk has more than its header."""
    try:
        return store.fs.stat(path).st_size > HEADER_BYTES
    except FileNotFoundError:
        return False


def each(
    store: Store, layout: Layout, read: Callable[[Shard, journals.Journal], T], only: Iterable[Shard] | None = None
) -> Iterator[T]:
    """Yield what `read` makes of the files that have letters (or of those of some shards), one after the other.

    A file that another host replaces while it is read is read again from the start: `read` must bear that.
    """
    for shard in shards_with_letters(store, layout) if only is None else only:
        path = layout.dead(shard)

        def opened(shard: Shard = shard, path: str = path) -> T:
            with journals.opened(store.fs, path) as file:
                return read(shard, file)

        with suppress(FileNotFoundError):
            yield retried_after_stale(opened)


class Version(NamedTuple):
    """Identity that tells a file of letters from the one that replaces it: the number of an inode may come again, its
    first bytes not."""

    inode: int
    begin: bytes


def version(file: journals.Journal) -> Version:
    """Return the version of an open file."""
    return Version(file.fs.fstat(file.fd).st_ino, file.fs.pread(file.fd, HEADER_BYTES, 0))


class State(NamedTuple):
    """State of a file of letters as the system tells it: it changes when anything is appended, or the file is replaced.

    Unless the number of an inode comes again within the resolution of the filesystem's clock: see `Version`.
    """

    inode: int
    size: int
    changed_ns: int


def state_of(file: journals.Journal) -> State:
    """Return the state of an open file."""
    found = file.fs.fstat(file.fd)
    return State(found.st_ino, found.st_size, found.st_mtime_ns)


def look(store: Store, layout: Layout, shard: Shard, strict: bool = False) -> tuple[Version, State] | None:
    """Return the version and the state of a shard's file of letters. If a later call returns the same, nothing was
    added to the file in between, nor taken out of it.

    A file of one version only grows. None if there is no file, or a stray in its place: with `strict` that is
    HiddenTasks. By a revalidating open.
    """
    path = layout.dead(shard)
    try:
        with store.fs.closing(store.fs.look(path)) as fd:
            file = journals.Journal(store.fs, path, fd)
            return version(file), state_of(file)
    except OSError as error:
        if error.errno not in (errno.ENOENT, *NOT_FILES):
            raise
        if strict and error.errno != errno.ENOENT:
            raise store.fs.hidden(path, error.errno or 0) from error
    return None


# -- locking ---------------------------------------------------------------------------------------------


class LetterFile(journals.Journal):
    """The locked file of a shard's letters."""

    __slots__ = ("_layout", "_shard", "_store")

    def __init__(self, store: Store, layout: Layout, shard: Shard, fs: Filesystem, path: str, fd: int) -> None:
        super().__init__(fs, path, fd)
        self._store, self._layout, self._shard = store, layout, shard

    def must_have_one_name(self, found: os.stat_result) -> None:
        """Refuse to write into a file that has a second name, unless that is the one that it had before its renaming.

        A power loss leaves some filesystems (btrfs) with both names: the former one is removed.
        """
        if found.st_nlink > 1:
            header = _HEADER.match(self.fs.pread(self.fd, HEADER_BYTES, 0))
            former = self._layout.dead_successor(self._shard, header[1].decode()) if header is not None else None
            is_former = former is not None and self.fs.same_file(self.fd, former) and self.fs.unlink(former)
            if not is_former or self.fs.fstat(self.fd).st_nlink > 1:
                raise SecondName(self.path)

    def is_in_place(self) -> bool:
        """Return whether the path names the locked file, and it is not closed in favour of a successor."""
        return super().is_in_place() and not self.is_replaced()

    def is_replaced(self) -> bool:
        """Return whether the file was closed and its successor is in its place now: open that.

        If the process that replaces the file was killed after it had closed this one, this process goes on in its
        place. If the successor is gone, because a cleaner removed it, the file goes on: the next line follows the
        `moved` one.
        """
        successor = successor_of(self)
        if successor is None:
            return False
        store, layout = self._store, self._layout
        fresh = layout.dead_successor(self._shard, successor.id)
        if _is_whole(store, fresh, successor) and store.fs.rename(fresh, self.path):
            if store.sync_inserts:
                store.fs.sync_directory(layout.dead_letters)
            return True
        return not super().is_in_place()

    def secure_name(self) -> None:
        """Sync the name of a file that has replaced another, once a process. What is synced to it must stay under it.

        The process that renamed it may not have come so far yet.
        """
        if not self.fs.shared:
            found, names = version(self), self._store.names
            if found not in names.replaced and _HEADER.match(found.begin):
                self.fs.sync_directory(self._layout.dead_letters)
                names.replaced.add(found)


@contextmanager
def locked(
    store: Store, layout: Layout, shard: Shard, wait_s: float = journals.LOCK_TIMEOUT_S, durable: bool = False
) -> Iterator[LetterFile]:
    """Open a shard's file for appending, and lock it; LockTimeout, HiddenTasks. It is made if it is missing.

    One that others replace is opened anew. Each replacement halves it.
    """
    path, kind, is_held = layout.dead(shard), partial(LetterFile, store, layout, shard), False
    try:
        with store.locked_as(kind, path, wait_s, durable, journals.ANEW) as file:
            is_held = True
            if durable:
                file.secure_name()
            yield file
    except OSError as error:
        if is_held or isinstance(error, SecondName) or error.errno not in NOT_FILES:
            raise
        raise store.fs.hidden(path, error.errno or 0) from error


class Successor(NamedTuple):
    """The file that replaces another one, as a `moved` line in that one says."""

    id: str
    size: int


def successor_of(file: journals.Journal) -> Successor | None:
    """Return the successor of a file that is closed: one whose last line says so and stands where it says.

    A `moved` line at another offset was appended by a process that had lost its lock: others have appended since.
    """
    size = file.length()
    end = file.fs.pread(file.fd, MOVED_BYTES, max(0, size - MOVED_BYTES))
    found = _MOVED.search(end)
    if found is None or int(found[2]) != size - len(found[1]):
        return None
    return Successor(found[3].decode(), int(found[4]))


def _is_whole(store: Store, path: str, successor: Successor) -> bool:
    """Return whether a file is the successor that was written, whole: not what took its name, or what power left.

    It may be longer: a power loss that undoes the renaming keeps what was appended since.
    """
    try:
        fd = store.fs.look(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, *NOT_FILES):
            raise
        return False
    with store.fs.closing(fd):
        found = store.fs.fstat(fd)
        header = _HEADER.match(store.fs.pread(fd, HEADER_BYTES, 0))
        return found.st_size >= successor.size and header is not None and header[1].decode() == successor.id


# -- giving back -----------------------------------------------------------------------------------------


def give_back(store: Store, layout: Layout, shard: Shard, file: LetterFile) -> int:
    """Replace a locked file by one without the letters that were settled, if they take up more than half of it.

    Returns how many bytes that gives back; 0 if it was not done. Nothing may be appended to `file` afterwards.

    The ids of settled letters stay as long as their batch has a log: a process that replays it must know that their
    letters are not missing. So do `retried` lines whose staged tasks are not published yet.
    """
    size = file.length()
    if size <= BLOCK_BYTES or file.end_of_torn(size):
        return 0  # the next append closes a torn end off
    sorted_out = _sort_out(store, layout, shard, file)
    if sorted_out is None or size - sorted_out.size <= max(sorted_out.size, BLOCK_BYTES):
        return 0
    _to_history(store, layout, shard, sorted_out)
    successor = store.entropy.hex16()
    path = layout.dead_successor(shard, successor)
    closing = b'{"op":"moved","here":%d,"to":"%s","bytes":%d}\n' % (size, successor.encode(), sorted_out.size)
    is_named = False
    try:
        _write_successor(store, path, successor, file, sorted_out.kept)
        is_named = True
        file.append(closing, store.sync_inserts)
        file.is_replaced()
        return size - sorted_out.size
    finally:
        if not is_named:
            store.fs.unlink(path)


class _SortedOut(NamedTuple):
    """The lines of a file that stay, and those that go. `kept`: the numbers of those that stay; `size`: their bytes."""

    kept: set[int]
    size: int
    gone: list[bytes]
    """The lines that say what was settled, without the letters."""


def _sort_out(store: Store, layout: Layout, shard: Shard, file: journals.Journal) -> _SortedOut | None:
    """Sort the lines of a file into those that stay and those that go; None if one is damaged, which fsck tells of."""
    dead: dict[str, tuple[int, int]] = {}
    settled: set[str] = set()
    settling: list[tuple[int, int, dict[str, Any]]] = []
    for number, line in enumerate(file.lines()):
        record = parse(line)
        if record is None:
            if journals.is_bad(line, is_sound_line):
                return None
        elif record["op"] == "dead":
            if record["id"] not in settled:
                dead.setdefault(record["id"], (number, len(line) + 1))
        else:
            ids = [one for one in record["ids"] if isinstance(one, str)]
            settled.update(ids)
            for one in ids:
                dead.pop(one, None)
            settling.append((number, len(line) + 1, record))
    at_work = _batches_at_work(store, layout, shard, settled)
    staged = _still_staged(store, layout, [record for _, _, record in settling])
    kept, gone = dict(dead.values()), list[bytes]()
    published: list[TaskFileName] = []
    for number, length, record in settling:
        batches = {_batch_of(one) for one in record["ids"] if isinstance(one, str)}
        name = _staged_by(record)
        if not at_work.isdisjoint(batches) or name in staged:
            kept[number] = length
        else:
            gone.append(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
            published += [name] if name is not None else []
    if store.sync_inserts:  # what a power loss would bring back must not find its letters, or its task file, forgotten
        for directory in (layout.tasks, layout.logs):
            with suppress(FileNotFoundError):
                store.fs.sync_directory(f"{directory}/{shard}")
        staging.sync_shards(store, layout, published)
    return _SortedOut(set(kept), HEADER_BYTES + sum(kept.values()), gone)


def _batch_of(task_id: str) -> str:
    """Return the name of the log of a task's batch; "" if this is no id."""
    return task_id.partition(".")[0]


def _batches_at_work(store: Store, layout: Layout, shard: Shard, task_ids: set[str]) -> set[str]:
    """Return the batches of some tasks that have a log, or may have one."""
    batches = {batch for batch in map(names.parse_batch, map(_batch_of, task_ids)) if batch is not None}
    found = batches & either_of_two(lambda: listing.logs(store, shard))
    if store.fs.shared:  # where a listing may be old, each name is asked for
        found |= {batch for batch in batches - found if store.fs.exists(layout.log(batch))}
    return set(map(str, found))


def _still_staged(store: Store, layout: Layout, settling: list[dict[str, Any]]) -> set[TaskFileName]:
    """Return the staged files that `retried` lines name, and that may not be published yet."""
    named = [name for record in settling if (name := _staged_by(record)) is not None]
    there = either_of_two(lambda: store.fs.names(layout.staging)) if named else set()
    return {name for name in named if str(name) in there or (store.fs.shared and store.fs.exists(layout.staged(name)))}


def _staged_by(record: dict[str, Any]) -> TaskFileName | None:
    """Return the staged file that a line names; None if it names none."""
    text = record.get("staged")
    return names.parse_task_file(text) if isinstance(text, str) else None


def _to_history(store: Store, layout: Layout, shard: Shard, sorted_out: _SortedOut) -> None:
    """Append the lines about settled letters to the history. A repeat after a crash says the same."""
    if store.settings.keep_history and sorted_out.gone:
        path = layout.settled(names.day_of(store.clock.now_ms()), shard)
        with store.locked(path, durable=store.sync_inserts) as file:
            file.append(b"".join(sorted_out.gone), store.sync_inserts)


def _write_successor(store: Store, path: str, successor: str, file: journals.Journal, kept: set[int]) -> None:
    header = b'{"op":"rewritten","id":"%s"}' % successor.encode()
    assert len(header) < HEADER_BYTES, "a file's identity is looked for in its first bytes alone"
    with store.fs.closing(store.fs.create(path, store.sync_inserts)) as made:
        store.fs.write_all(made, header.ljust(HEADER_BYTES - 1) + b"\n")
        for number, line in enumerate(file.lines()):
            if number in kept:
                store.fs.write_all(made, line + b"\n")
        if store.sync_inserts or store.fs.shared:
            store.fs.fsync(made)


def reap_successors(store: Store, is_abandoned: Callable[[str], bool]) -> int:
    """Remove files that were to replace others and whose authors died before any record named them; how many."""
    layout, reaped = store.layout, 0
    for text in store.fs.names(layout.dead_letters):
        named = names.parse_successor(text, layout.shards)
        path = f"{layout.dead_letters}/{text}"
        if named is not None and is_abandoned(path):
            with locked(store, layout, named):  # which renames it into its place, if it was named
                reaped += store.fs.unlink(path)
    return reaped


# -- what was given back ---------------------------------------------------------------------------------


def given_back(store: Store, shard: Shard, since_ms: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the lines of the history that say which letters of a shard were settled, from a day on."""
    for day in history.days(store):
        if day >= names.day_of(since_ms):
            with suppress(FileNotFoundError):
                yield from retried_after_stale(partial(_read_settled, store, store.layout.settled(day, shard)))


def _read_settled(store: Store, path: str) -> list[dict[str, Any]]:
    with journals.opened(store.fs, path) as file:
        return [line for line in records(file) if line["op"] in SETTLED]
