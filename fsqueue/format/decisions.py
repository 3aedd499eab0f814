"""Decision files: the lines that decide about updates, built and replayed (docs/format-groups.md, "Decision files").

Pure: no clock, no input or output. Of the lines about an update the first one counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import orjson

from fsqueue.format import names, sparse
from fsqueue.format.names import Batch, DecisionFileName, Generation, QueueDirectory, QueueId, UpdateId

DIRECTORY = ".updates"
FILE_BYTES_MAX = 1 << 20
"""The owner of a longer decision file begins another."""
OPERATIONS_MAX = 10_000
"""Maximum number of operations of one update."""

MARKS_MAX = 8
"""Maximum number of marks in a file up to which looking for them in a line is faster than to parse each line."""

Outcome = Literal["commit", "abort"]


class LogName(NamedTuple):
    """A log that an update changes."""

    directory: QueueDirectory
    """The directory of the log's queue in the group."""
    generation: Generation
    """The directory of the queue's generation, which has the queue's id in its name."""
    batch: Batch


class Decision(NamedTuple):
    """The decision about an update."""

    outcome: Outcome
    logs: tuple[LogName, ...] = ()
    """Each log of a `commit`: one that has prepared records of the update."""


ABORTED = Decision("abort")


def directory(group: str) -> str:
    """Return the path of the directory of a group's decision files."""
    return f"{group}/{DIRECTORY}"


def path_of(group: str, name: DecisionFileName) -> str:
    """Return the path of a decision file."""
    return f"{group}/{DIRECTORY}/{names.decision_file(name)}"


def opening(at: int, group: QueueId, worker: dict[str, Any]) -> bytes:
    """Return the first line of a decision file: it tells people whose file it is."""
    return _line({"op": "decisions", "at": at, "group": group, "worker": worker})


def commit(at: int, update: UpdateId, logs: Iterable[LogName]) -> bytes:
    """Return the line that decides for an update."""
    named = [list(log) for log in logs]
    assert named, "a decision leads to no log that has records of its update"
    return _line({"op": "commit", "at": at, "update": update, "logs": named})


def abort(at: int, update: UpdateId) -> bytes:
    """Return the line that decides against an update."""
    return _line({"op": "abort", "at": at, "update": update})


def gone(at: int) -> bytes:
    """Return the line that retires a decision file: no line behind it counts."""
    return _line({"op": "gone", "at": at})


def _line(record: dict[str, Any]) -> bytes:
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


class DecisionState:
    """Hold what the lines of a decision file say that were replayed so far.

    `only`: hold it of these updates, and perhaps of others. That takes a small part of the time, since few lines are
    parsed. `at` is not known then.
    """

    __slots__ = ("_only", "at", "end", "first", "is_gone")

    def __init__(self, only: Collection[UpdateId] = ()) -> None:
        self._only = [update.encode() for update in only]
        self.first: dict[UpdateId, Decision] = {}
        """The decision about each update: its first line."""
        self.is_gone = False
        """True if the decision file is retired."""
        self.at = 0
        """The latest time that a line says (ms)."""
        self.end = 0
        """Up to here the file was replayed: the end of the last whole line."""

    def replay(self, pieces: Sequence[sparse.Piece]) -> int:
        """Replay the pieces of the file from `end` on. Return how many bytes of a torn line follow the last whole one.

        Lines that are torn or not understood are void.
        """
        if not pieces:
            return 0  # as in most cases
        begin, marks = self.end, self._marks(pieces)
        assert pieces[0][0] >= begin, "a line would be replayed twice"
        for offset, line, length in sparse.lines(pieces, begin):
            self.end = offset + length + 1
            if marks is None or (marks and any(mark in line for mark in marks)):
                self._apply(line)
        return max(0, sparse.end_of(pieces, begin) - self.end)

    def about(self, update: UpdateId) -> Decision | None:
        """Return the decision about an update; None if there is none yet. If the file is gone, undecided updates are
        aborted.
        """
        return self.first.get(update, ABORTED if self.is_gone else None)

    @property
    def commits(self) -> dict[UpdateId, tuple[LogName, ...]]:
        """Return the logs of each update that this file commits."""
        return {update: found.logs for update, found in self.first.items() if found.outcome == "commit"}

    def _marks(self, pieces: Sequence[sparse.Piece]) -> list[bytes] | None:
        """Return byte strings of which each line that counts has one; None if any line may count.

        JSON without a backslash holds each text as it is.
        """
        if not self._only:
            return None
        content = sparse.content_of(pieces, self.end)
        marks = [mark for mark in (b"gone", b"\\", *self._only) if mark in content]
        return marks if len(marks) <= MARKS_MAX else None

    def _apply(self, line: bytes) -> None:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            return
        match record:
            case {"op": str(op), "at": int(at)} if not self.is_gone and type(at) is int and at >= 0:
                update = names.parse_update(record.get("update"))
                if op == "gone":
                    self.is_gone = True
                elif op == "abort" and update is not None:
                    self.first.setdefault(update, ABORTED)
                elif op == "commit" and update is not None:
                    logs = _logs(record.get("logs"))
                    if logs is None:
                        return
                    self.first.setdefault(update, Decision("commit", logs))
                self.at = max(self.at, at)


def is_sound_line(line: bytes) -> bool:
    """Return whether a line of a decision file can be read: one with an `op` that is not known, too."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    match record:
        case {"op": "commit" | "abort" as op, "at": int(), "update": update}:
            return names.parse_update(update) is not None and (op == "abort" or _logs(record.get("logs")) is not None)
        case {"op": str(op), "at": int()}:
            return op not in ("commit", "abort")
    return False


def _logs(found: object) -> tuple[LogName, ...] | None:
    """Return the logs that a `commit` line names; None if it names none, or one that cannot be a log of a
    group's queue.
    """
    if type(found) is not list or not found:
        return None
    logs = [log for one in found if (log := parse_log(one)) is not None]
    return tuple(logs) if len(logs) == len(found) else None


def parse_log(found: object) -> LogName | None:
    """Return the log of a group's queue that a record names; None if it cannot be one."""
    match found:
        case [str(text), str(generation), str(batch)]:
            holder, log = names.listed_queue_directory(text), names.parse_batch(batch)
            parsed = names.parse_generation(generation)
            if holder is not None and log is not None and parsed is not None:
                return LogName(holder, names.generation(*parsed), log)
    return None
