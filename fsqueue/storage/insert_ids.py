"""Find an `insert` record in a batch's log by its id (docs/design.md, section 4.17)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fsqueue.filesystem import Filesystem
from fsqueue.format import movements, sparse
from fsqueue.format.replay import AVAILABLE, LEASED, ReplayState

LIVING = (AVAILABLE, LEASED)
"""The states of tasks that live."""
_HEAD = re.compile(rb'\{"op":"insert","at":\d+,"id":"(\w+)","first":(\d+),')
"""First bytes of an `insert` record that this package has written."""


def find(state: ReplayState, pieces: Iterable[sparse.Piece], identity: str) -> tuple[int | None, bool]:
    """Return the index of the task that the `insert` record of an id has made, None if the task has an outcome; and
    whether there is such a record.

    `state` is what the whole log comes to, and `pieces` are all of it. An insert whose append was uncertain may have
    left two such records: only one of them counts.
    """
    wanted, is_known = f'"id":"{identity}"'.encode(), False
    for begin, line, _ in sparse.lines(pieces, 0):
        if wanted not in line:
            continue
        record = movements.parse(line)
        if record is not None and record["op"] == "insert" and record.get("id") == identity:
            is_known = True
            first = record.get("first")
            if type(first) is int and state.places.get(first) == begin and state.state[first] in LIVING:
                return first, True
    return None, is_known


class InsertIds:
    """Know which task each `insert` record of a log has made. Each byte of the log is read once.

    Use it under the log's lock, caught up.
    """

    __slots__ = ("_end", "_records")

    def __init__(self) -> None:
        self._end = 0
        """Up to here the log was read."""
        self._records: dict[bytes, tuple[tuple[int, int], ...]] = {}
        """The index and the offset that each id was read with. An insert whose append was uncertain may have left two
        records. Which one counts is judged when it is asked for: one that is prepared counts after its `commit` only.
        """

    def find(self, fs: Filesystem, fd: int, end: int, state: ReplayState, identity: str) -> int | None:
        """Return the index of the task that the `insert` record of an id has made; None unless the task has no outcome.
        `state` is what the log comes to up to `end`.
        """
        if end > self._end:
            self._read_on(fs, fd, end)
        found = self._records.get(identity.encode())
        if found is None:  # it is not there, or another program has written it in another form
            return find(state, fs.pieces(fd, 0), identity)[0]
        for index, offset in found:
            if state.places.get(index) == offset and state.state[index] in LIVING:
                return index
        return None

    def _read_on(self, fs: Filesystem, fd: int, end: int) -> None:
        """Take in the records between the last look and `end`."""
        head, records = _HEAD.match, self._records
        for offset, line, length in sparse.lines(fs.all_pieces(fd, self._end), self._end):
            if offset + length >= end:
                break
            if (found := head(line)) is not None:
                records[found[1]] = (*records.get(found[1], ()), (int(found[2]), offset))
        self._end = end
