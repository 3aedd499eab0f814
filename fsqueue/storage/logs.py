"""Open, lock, read and append to a batch's movement log (docs/design.md, section 3).

Three rules hold here. Open a log through its directory, so that an NFS client asks its server (a revalidating open).
Append under the lock only: void a torn tail first, then write, sync on a shared mount, and read back what was written
(a verified append). Never append to a log that ends in the tombstone record `gone`.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Iterable, Sequence

from fsqueue import checks, forks
from fsqueue.checks import CHECK
from fsqueue.errors import StorageError
from fsqueue.filesystem import LOST, Filesystem, resources
from fsqueue.format import checkpoints, movements, sparse, state_checks
from fsqueue.format.layout import Layout
from fsqueue.format.movements import Record
from fsqueue.format.names import Batch, TaskFileName, UpdateId, task_files_of
from fsqueue.format.replay import ReplayState
from fsqueue.interruptions import let_out
from fsqueue.storage.insert_ids import InsertIds

TAIL_BYTES = 1 << 16
FAR_BYTES = 1 << 14
"""Number of bytes to replay before a checkpoint from which on a process begins at the checkpoint: that is faster."""
GONE_BYTES = 128
"""A `gone` is no longer than this."""
SEAL_BYTES = 512
"""A `seal` is no longer than this."""
RECENT_WINDOWS = (1 << 16, 1 << 19)
"""Numbers of bytes that a view of the latest movements reads from the end of a log with checkpoints: the second one if
the first has no checkpoint in it."""
_BEFORE_CHECKPOINT = b"\n" + checkpoints.MARK


def last_checkpoint(
    fs: Filesystem, fd: int, before_ms: int | None = None, windows: Sequence[int] = checkpoints.WINDOWS,
    kind: type[ReplayState] = ReplayState,
) -> tuple[ReplayState, int]:  # fmt: skip
    """Return the state that the last checkpoint of an open log restates, and where that ends.

    Without one that can be trusted: an empty state, and 0. See `checkpoints.last_trusted`. `kind`: the state's class.
    """
    size = fs.fstat(fd).st_size
    if size < checkpoints.LEAST_BYTES:
        return kind(), 0
    found = checkpoints.last_trusted(lambda length, offset: fs.pread(fd, length, offset), size, before_ms, windows)
    state = kind.from_checkpoint(found) if found is not None else None
    return (state, found.end) if found is not None and state is not None else (kind(), 0)


def read_present(fs: Filesystem, path: str) -> ReplayState:
    """Return the state that a log comes to, by a revalidating open: replayed from its last checkpoint on."""
    return _read_from(fs, path, None, checkpoints.WINDOWS)[0]


def read_recent(
    fs: Filesystem, path: str, before_ms: int, kind: type[ReplayState] = ReplayState
) -> tuple[ReplayState, int, int]:
    """Return the state of a log, replayed from a checkpoint on: the last one from before `before_ms`, or the oldest one
    that a few steps find.

    Return also the time of that checkpoint (0 without one), and how many bytes were replayed. `kind`: the state's
    class.
    """
    return _read_from(fs, path, before_ms, RECENT_WINDOWS, kind)


def _read_from(
    fs: Filesystem, path: str, before_ms: int | None, windows: Sequence[int], kind: type[ReplayState] = ReplayState
) -> tuple[ReplayState, int, int]:
    with fs.closing(fs.look_anew(path)) as fd:
        start = fs.pread(fd, checkpoints.LEAST_BYTES, 0)
        if len(start) < checkpoints.LEAST_BYTES:  # too short for a checkpoint: this is all of it
            state = kind()
            state.end = state.replay_pieces([(0, start)], 0)
            return state, 0, state.end
        state, begin = last_checkpoint(fs, fd, before_ms, windows, kind)
        at = state.at
        state.end = state.replay_pieces(fs.all_pieces(fd, begin), begin)
        return state, at, state.end - begin


def read_seal(fs: Filesystem, path: str) -> int | None:
    """Return how many tasks wait in a batch that was sealed and not touched since, as the `seal` at its log's end says.

    None if the log does not end in a `seal` that names its own offset and the number: replay the log then. All records
    before a `seal` were synced before it was written, so a power loss has not shortened them.
    """
    with fs.closing(fs.look_anew(path)) as fd:
        begin = max(0, fs.fstat(fd).st_size - SEAL_BYTES)
        data = fs.pread(fd, SEAL_BYTES, begin)
    start = data.rfind(b"\n", 0, -1) + 1
    if not data.startswith(movements.SEAL, start) or not data.endswith(b"\n"):
        return None
    record = movements.parse(data[start:-1])
    if record is None or record.get("here") != begin + start or type(record.get("waiting")) is not int:
        return None
    return int(record["waiting"])


def is_retired(fs: Filesystem, fd: int) -> bool:
    """Return whether the batch of an open log has finished: the log has no name any more, or ends in `gone`. A hint.
    True if the system does not tell.

    An NFS client renames a file that it unlinks while a process of its host has it open, so that file keeps a name.
    """
    try:
        found = fs.fstat(fd)
        if not found.st_nlink or not fs.shared:
            return not found.st_nlink
        data = fs.pread(fd, GONE_BYTES, max(0, found.st_size - GONE_BYTES))
    except OSError as error:
        let_out(error)
        return error.errno in LOST
    record = movements.parse(data[:-1].rpartition(b"\n")[2])
    return record is not None and record["op"] == "gone"


def _without_checkpoints(text: bytes) -> bytes:
    """Return the lines of a log with blanks in place of the checkpoints."""
    parts: list[bytes] = []
    done, before = 0, text.find(_BEFORE_CHECKPOINT)
    while before >= 0:
        end = text.index(b"\n", before + 1)
        parts += [text[done : before + 1], b" " * (end - before)]
        done, before = end + 1, text.find(_BEFORE_CHECKPOINT, end)
    return b"".join([*parts, text[done:]])


def _cut(line: bytes, payload_bytes_max: int | None) -> bytes:
    if line.startswith(movements.CHANGE):
        return movements.without_priority(line)
    return movements.cut(line, payload_bytes_max) if line.startswith(movements.WITH_PAYLOAD) else line


def _is_movement(line: bytes) -> bool:
    return not line.startswith(checkpoints.MARK) and movements.parse(line) is not None


class LinesInLog:
    """The lines of tasks that are in a batch's log: their `insert` records, which read like lines of a task file."""

    __slots__ = ("_begin", "_bytes", "_log")

    def __init__(self, log: Log) -> None:
        self._log = weakref.proxy(log)  # no cycle: a log that is let go of closes its descriptor at once
        self._begin, self._bytes = 0, b""

    def __getitem__(self, index: int) -> bytes:
        """Return a task's line, without its newline. IndexError if it is not in the log, or not known to be."""
        place = self._log.replay_state.places.get(index)
        if place is None:
            raise IndexError(index)
        offset = place - self._begin
        end = self._bytes.find(b"\n", offset) if offset >= 0 else -1
        if end < 0:
            self._begin, self._bytes, offset = place, _bytes_from(self._log, place), 0
            end = self._bytes.find(b"\n")
        return self._bytes[offset:end]


TaskLines = list[bytes] | LinesInLog
"""The lines of a batch's tasks by the tasks' indices: the lines of its task file, or those of its log."""


def _bytes_from(log: Log, offset: int) -> bytes:
    """Return bytes of a log from the line at `offset` on: that line whole, and some that follow."""
    data = b""
    while piece := log.fs.pread(log.fd, TAIL_BYTES, offset + len(data)):
        data += piece
        if b"\n" in piece:
            break
    return data


class Log:
    """An open movement log and the state replayed from it. Use it while you hold `mutex` and the file lock.

    After any error in a critical section the state cannot be trusted: `discard` the log, and open the batch anew.
    """

    __slots__ = (
        "__weakref__",
        "_added",
        "_insert_ids",
        "_kept",
        "added_bytes",
        "batch",
        "domain",
        "end",
        "fd",
        "fs",
        "is_named_so",
        "is_used",
        "layout",
        "lettered",
        "lines",
        "longest",
        "met",
        "mutex",
        "name",
        "path",
        "replay_state",
        "single",
        "sync",
        "torn",
    )

    def __init__(self, fs: Filesystem, layout: Layout, batch: Batch, fd: int, sync: bool) -> None:
        self.fd = -1
        self._kept: resources.Kept | None = None
        self.fs = fs
        self.layout = layout
        """The layout of the batch's generation. Another thread may have seen a later generation."""
        self.batch = batch
        self.path = layout.log(batch)
        self.sync = sync
        self.mutex = resources.OwnedLock()
        """Use `enter` and `leave`."""
        self.replay_state = ReplayState()
        self.end = 0
        """The offset behind the last whole line that was replayed."""
        self.torn = 0
        """Bytes of a torn line behind `end`."""
        self._added: list[bytes] = []
        """The lines of records that the state has, and the file has not."""
        self.added_bytes = 0
        """Length of the lines that are added and not appended yet (bytes)."""
        self.lines: TaskLines | None = None
        """The lines of the tasks, while they are needed."""
        self.longest: int | None = None
        """The length of the longest line of the task file, if this process has read them; see `let_go_of_lines`."""
        self.domain: str | None = None
        """Domain whose inserts the batch takes, as its task file says; None if it takes none, or that file was not
        read."""
        self.name: TaskFileName | None = None
        """The task file's name as last seen or made: a hint."""
        self.is_named_so = False
        """True if this process saw the file under `name`, or renamed it so, and no other name was recorded since."""
        self.is_used = True
        """True if the log was locked since `OpenLogs` last looked for one to close."""
        self.single = False
        """True if the task file was seen to have one name. Renaming it then leaves it with one."""
        self._insert_ids: InsertIds | None = None
        self.met: dict[UpdateId, float] = {}
        """Time at which this process first met the prepared records of updates that had no outcome (monotonic clock,
        s)."""
        self.lettered: set[int] = set()
        """Dead tasks whose letters this process has written."""
        self.fd = fd
        forks.register(self, Log.after_fork)
        self._kept = resources.Kept(fd, fs.drop)  # closes it if the queue is dropped without being closed

    @property
    def closed(self) -> bool:
        """Return whether this log was discarded."""
        return self.fd < 0

    def has_finished(self) -> bool:
        """Return whether the batch seems to have finished, or its generation to have gone; see `is_retired`.

        A hint, without the file lock. Without `mutex` it may even be about another file: the number may be used again.
        """
        fd = self.fd
        return fd >= 0 and is_retired(self.fs, fd)

    def discard(self, inherited: bool = False) -> None:
        """Unlock the file, close the descriptor, and forget the state.

        A forked child only closes what it `inherited`: the lock is its parent's. The parent unlocks before it closes,
        since a child may have the descriptor open, too.
        """
        fd = self.fd
        if fd >= 0:
            is_mine = self._kept is not None and self._kept.give_up(self.fs)
            self.fd, self.lines = -1, None
            if is_mine:  # else an interruption came right here before: this thread's record closes it
                try:
                    if not inherited:
                        self.fs.end_lock(fd)
                finally:
                    self.fs.close(fd)

    def enter(self, wait_s: float = -1) -> bool:
        """Take the mutex, waiting up to `wait_s` seconds for other threads (-1: no limit). Return False if it is busy.

        It is busy also for a signal handler that interrupts a section of its own thread. If an exception ends a section
        between two instructions, `resources.give_back` calls `abandon`.
        """
        held = resources.this_thread.owned.sections
        if self in held:
            return False
        held.append(self)
        if self.mutex.acquire(False) or (wait_s and self.mutex.acquire(True, wait_s)):
            return True
        held.remove(self)
        return False

    def leave(self) -> None:
        """Give the log's mutex back."""
        self.mutex.release()
        resources.this_thread.owned.sections.remove(self)

    def abandon(self) -> None:
        """Discard this log after a section that an exception broke off: its state cannot be trusted. Let others in."""
        if self.mutex.is_mine():
            self.discard()
            self.mutex.release()

    def after_fork(self) -> None:
        """Close the parent's descriptor without unlocking it. Call it in a forked child."""
        if self.fd < 0:
            return
        if self._kept is None:  # a signal handler has forked while this was made: what was opened is recorded so far
            resources.lead_nowhere([self.fd])
            self.fd = -1
        elif self.mutex.is_mine():  # this very thread has forked in a section, and may use the number still
            self._kept.give_up(self.fs)
            resources.lead_nowhere([self.fd])
            self.fd, self.lines = -1, None
        else:
            self.mutex = resources.OwnedLock()
            self.discard(inherited=True)

    def catch_up(self) -> None:
        """Read and replay what others appended. Call it under the lock."""
        pread = self.fs.pread
        data = pread(self.fd, TAIL_BYTES, self.end)
        self.replay_state.fresh_end = 0
        if not data:
            self.torn = 0
            return
        if not self.end and len(data) == TAIL_BYTES:
            self.replay_state, self.end = last_checkpoint(self.fs, self.fd)
            self.name = self.name or next(task_files_of(self.batch, reversed(self.replay_state.names)), None)
            data = pread(self.fd, TAIL_BYTES, self.end)
        named, is_renamed = self.replay_state.last_name(), False
        if self.end and data.rfind(_BEFORE_CHECKPOINT, FAR_BYTES) >= 0:
            self._skip_to_checkpoint()
            is_renamed = True  # perhaps: what was skipped is not looked through
            data = pread(self.fd, TAIL_BYTES, self.end)
        if len(data) < TAIL_BYTES:
            end = self.end + self.replay_state.replay(data, self.end)
            self.torn = self.end + len(data) - end
            is_renamed = is_renamed or b'"name"' in data
        else:  # much was appended; or a power loss has left zeros, maybe more than memory holds
            pieces = list(self.fs.pieces(self.fd, self.end))
            end = self.replay_state.replay_pieces(pieces, self.end)
            self.torn = sparse.end_of(pieces, self.end) - end
            is_renamed = is_renamed or any(b'"name"' in piece for _, piece in pieces)
        self.end = end
        renamed = self.replay_state.last_name()
        if renamed is not None and renamed != named:  # a process has renamed the task file
            self.name = next(task_files_of(self.batch, (renamed,)), None)
        if is_renamed:
            self.is_named_so = False
        # Records of an update that was to be one write, and was cut off: the lock is free, so no `commit` follows. The
        # verbs below append records without asking whether they end such a run.
        self.replay_state.run = []
        if CHECK:
            checks.refuse(state_checks.broken(self.replay_state), f"After a replay of {self.path}")

    def _skip_to_checkpoint(self) -> None:
        """Replace the state by that of the log's last checkpoint, which restates what others appended meanwhile."""
        state, end = last_checkpoint(self.fs, self.fd)
        if end <= self.end:
            return  # none of those can be trusted
        if state.inserts is None:  # a checkpoint leaves out what the task file tells
            state.take_over_ranks(self.replay_state)
        self.replay_state, self.end = state, end

    def let_go_of_lines(self) -> None:
        """Forget the lines of the tasks, once all are leased. Whether the batch's payloads are kept depends on the
        longest one: the end of the batch need not read the file again, which never changes.
        """
        if isinstance(self.lines, list):
            self.longest = max(map(len, self.lines), default=0)
        self.lines = None

    def next_offset(self) -> int:
        """Return the offset at which the next record will stand."""
        return self.end + (self.torn + len(movements.VOID) if self.torn else 0) + self.added_bytes

    def add(self, record: Record, line: bytes | None = None) -> bool:
        """Apply a record to the state, and add its line to those that `write` appends. Return whether the record
        applies.

        Call `write` before the critical section ends, or discard the log. `line`: the line of an `insert`, which is
        made together with its record.
        """
        applies = self.replay_state.apply(record, self.next_offset())
        if line is None:
            line = movements.encode(record)
        if CHECK:
            checks.refuse(state_checks.misread(record, line), f"In what is about to be appended to {self.path}")
        self.add_line(line)
        return applies

    def add_all(self, made: Iterable[tuple[Record, bytes]]) -> None:
        """Apply several records to the state, and add their lines to those that `write` appends. None inserts a
        task.
        """
        offset, records, lines = self.next_offset(), list[tuple[int, Record]](), self._added
        for record, line in made:
            if CHECK:
                checks.refuse(state_checks.misread(record, line), f"In what is about to be appended to {self.path}")
            records.append((offset, record))
            lines.append(line)
            size = len(line)
            offset += size
            self.added_bytes += size
        self.replay_state.apply_all(records, {})

    def add_line(self, line: bytes) -> None:
        """Add the line of a record that has acted in the state already. `write` appends it."""
        self._added.append(line)
        self.added_bytes += len(line)

    def write(self, *records: Record) -> None:
        """Add records, and append the lines of all that were added. If that fails, discard the log."""
        for record in records:
            self.add(record)
        data = b"".join(self._added)
        self._added, self.added_bytes = [], 0
        self.append(data)

    def append(self, data: bytes, restating: bool = False) -> None:
        """Append the lines of records to the file, and read them back.

        Call it under the lock, with the log caught up and the records applied already. A checkpoint is written behind
        them if one is due, or if `restating`. OSError or StorageError if the file does not hold what was written: then
        discard the log.
        """
        fs, fd, base = self.fs, self.fd, self.end
        stretch = self.replay_state.stretch
        pread, write, covers = fs.pread, fs.write, stretch.append  # C code, held by objects: see decision 26
        if self.torn:
            for _, torn in fs.pieces(fd, base):
                stretch.cover(torn)
            data = movements.VOID + data
            self.replay_state.damaged += 1
            base += self.torn
        covers(data)
        size = len(data)
        end = base + size
        if end >= stretch.due or restating:
            data += self.replay_state.checkpoint(end, restating)
        written = write(fd, data)
        if written < size:  # the disk is full; what was written is a torn tail now
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        if self.sync:
            fs.fsync(fd)
        if pread(fd, written + 1, base) != data[:written]:
            raise StorageError(
                f"What was appended to {self.path} is not what is there: the lock was lost. Repeat the call."
            )
        self.end, self.torn = end, written - size
        if written > size and written == len(data):  # else there was room for the records only
            self.end, self.torn = base + written, 0
            self.replay_state.begin_stretch(self.end, written - size)

    def append_checkpoint(self) -> None:
        """Append a checkpoint to the log, due or not."""
        self.append(b"", restating=True)

    def recall(self, again: bool = False) -> None:
        """Replay all records, if the state comes from a checkpoint, or `again`. Call it under the lock, caught up."""
        if again or not self.replay_state.is_whole:
            if self._added:
                self.write()
            state = ReplayState()
            state.replay_pieces(self.fs.pieces(self.fd, 0), 0)
            self.replay_state = state
            if CHECK:
                checks.refuse(state_checks.broken(state), f"After a replay of all of {self.path}")

    def find_insert(self, identity: str) -> int | None:
        """Return the index of the task that the `insert` record of this id has made; None if there is no such task
        without an outcome. Call it under the lock, with the log caught up.
        """
        if self._insert_ids is None:
            self._insert_ids = InsertIds()
        return self._insert_ids.find(self.fs, self.fd, self.end, self.replay_state, identity)

    def records(self, payload_bytes_max: int | None = 0) -> bytes:
        """Return all records as the elements of a JSON array, each at its offset.

        Void lines are blanks, and so are checkpoints, which say nothing new. Longer payloads than asked for are left
        out (None: none is). A long run of zeros in a void line is left out, too: then the records behind it stand
        nearer than in the log.
        """
        pieces = self.fs.all_pieces(self.fd)
        if not self.replay_state.damaged:
            text = _without_checkpoints(b"".join(piece for _, piece in pieces)[: self.end]).rstrip(b" ")
            if self.replay_state.inserts is not None or movements.REPLACE in text or movements.CHANGE in text:
                return b",".join(_cut(line, payload_bytes_max) for line in text[:-1].split(b"\n"))
            return text[:-1].replace(b"\n", b",")
        lines = [line for offset, line, _ in sparse.lines(pieces, 0) if offset < self.end]
        kept = [number for number, line in enumerate(lines) if _is_movement(line)]
        last = kept[-1] if kept else -1
        elements = [b" " * (len(line) + 1) for line in lines]
        for number in kept:
            elements[number] = _cut(lines[number], payload_bytes_max) + (b"," if number < last else b" ")
        return b"".join(elements)
