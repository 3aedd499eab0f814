"""The kinds of journals: where the files of each are, how a record is checked, and what is told of an unsound one.

A journal is a file of records that processes append to under a lock (docs/decisions/0059-one-journal.md). fsck goes
over `JOURNALS`. `findings.KINDS` has what a user reads of each finding, and what a repair does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from fsqueue.clock import Clock, Entropy
from fsqueue.format import decisions, groups, movements, names, numbers
from fsqueue.format import keys as format_keys
from fsqueue.format.layout import is_sound_line
from fsqueue.format.names import Shard
from fsqueue.format.numbers import RECORD_BYTES, NumberCodec
from fsqueue.format.replay import is_well_formed
from fsqueue.fsck.findings import CheckedPlace
from fsqueue.storage import decisions as stored_decisions
from fsqueue.storage import history, journals, keys, letter_files, nodes, number_table
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.journals import Journal
from fsqueue.storage.store import Store

UNSOUND_MAX: Final = 1000
"""Maximum number of unsound records to look at in one go."""

Span = tuple[int, int]
"""Offset and length of a record."""


class JournalPlace(CheckedPlace, Protocol):
    """What has journals: an open queue or group."""

    clock: Clock
    entropy: Entropy


class RecordLayout(Protocol):
    """How the records of a kind lie in its files, and which of them are sound."""

    @property
    def unit(self) -> str:
        """Return the word for one record."""
        ...

    def unsound(self, place: JournalPlace, file: Journal) -> tuple[list[Span], int]:
        """Return (at most `UNSOUND_MAX`) records that make no sense, and how many bytes of a torn one follow."""
        ...

    def void(self, file: Journal, offset: int, length: int) -> None:
        """Mark a record of the locked file as void, in place."""
        ...


class LineRecords(NamedTuple):
    """Records that are lines. `is_sound`: whether one, without its newline, has what a record of its kind needs."""

    is_sound: Callable[[bytes], bool]
    unit: str = "line"

    def unsound(self, place: JournalPlace, file: Journal) -> tuple[list[Span], int]:
        """Return unsound lines, and the length of a torn one: see `RecordLayout`."""
        found, end = self.unsound_of(file.lines_at())
        return found, max(0, file.fs.fstat(file.fd).st_size - end)

    def unsound_of(self, lines: Iterable[tuple[int, bytes, int]]) -> tuple[list[Span], int]:
        """Return the unsound ones of whole lines, each with its offset and length; and where the last line ends."""
        found: list[Span] = []
        end = 0
        for offset, line, length in lines:
            assert offset >= end, "lines come in their order"
            if len(found) < UNSOUND_MAX and journals.is_bad(line, self.is_sound):
                found.append((offset, length))
            end = offset + length + 1
        return found, end

    def void(self, file: Journal, offset: int, length: int) -> None:
        """Write a `~` in place of a line's last byte. Nothing moves: readers go on, and versions (offsets) stay."""
        assert length > 0, "an empty line is not unsound"
        file.fs.pwrite(file.fd, b"~", offset + length - 1)


class NumberRecords(NamedTuple):
    """The records of numbers, which are equally long. A record of zeros is void: so is a torn one filled up."""

    unit: str = "record"

    def unsound(self, place: JournalPlace, file: Journal) -> tuple[list[Span], int]:
        """Return unsound records, and the length of a torn one: see `RecordLayout`."""
        assert isinstance(place, GroupDirectory), "only a group has numbers"
        number = names.parse_number_file(file.path.rpartition("/")[2])
        assert number is not None, "the table names only files of numbers"
        codec, first = NumberCodec(place.state.id), number * numbers.FILE_RECORDS + 1
        found: list[Span] = []
        offset, size = 0, file.fs.fstat(file.fd).st_size
        while records := file.fs.pread(file.fd, RECORD_BYTES * 1024, offset):
            for at in range(0, len(records) - RECORD_BYTES + 1, RECORD_BYTES):
                record, where = records[at : at + RECORD_BYTES], offset + at
                is_sound = not any(record) or codec.parse(first + where // RECORD_BYTES, record) is not None
                if not is_sound and len(found) < UNSOUND_MAX:
                    found.append((where, RECORD_BYTES))
            offset += len(records)
        return found, size % RECORD_BYTES

    def void(self, file: Journal, offset: int, length: int) -> None:
        """Write zeros over a record. Its number named nothing before, and names nothing after."""
        file.fs.pwrite(file.fd, bytes(length), offset)


class JournalKind(NamedTuple):
    """A kind of journal: its files, its records, and the findings about them.

    One of three columns yields its files: `in_queue`, `in_shard` or `in_group`. Logs have none: fsck reads each with
    all else that is there of its batch.
    """

    name: str
    drawn: str
    """A file of this kind, as the pages of the format draw it."""
    records: RecordLayout
    in_queue: Callable[[Store], Iterable[str]] | None = None
    in_shard: Callable[[Store, Shard], Iterable[str]] | None = None
    in_group: Callable[[GroupDirectory], Iterable[str]] | None = None
    unsound: str = "damaged-line"
    """The finding about records that make no sense."""
    torn: str | None = "torn-line"
    """The finding about a torn record at the end. None: it is not told, for the next append closes it off, and `gc`
    removes the file."""
    zeros: str | None = None
    """The finding about NUL bytes at the end, which may be cut off, since no process uses offsets in the file from
    before a power loss (decision 24). None: they count as torn."""
    may_have_two_names: bool = False
    """Whether a creator that died has perhaps left the file with a second name."""


def is_movement(line: bytes) -> bool:
    """Return whether a line of a movement log is a record that has what its kind needs.

    One that lacks a field is void, as one that does not parse: the task of an `insert` without payload is lost.
    """
    record = movements.parse(line)
    return record is not None and is_well_formed(record)


def _key_files(store: Store, shard: Shard) -> Iterator[str]:
    epochs = store.queue_state.key_epochs
    for epoch in sorted({epochs.earlier, epochs.present}):
        yield from keys.files_of(store, store.layout, epoch, shard)


def _decision_files(group: GroupDirectory) -> Iterator[str]:
    return (decisions.path_of(group.path, name) for name in stored_decisions.files(group))


def _number_files(group: GroupDirectory) -> Iterator[str]:
    return (numbers.path_of(group.path, names.number_file(place)) for place in number_table.files(group))


LOG_LINES: Final = LineRecords(is_movement)
LOG: Final = JournalKind("movement log", "N-ID/movements/SHARD/UUID.jsonl", LOG_LINES)
JOURNALS: Final = (
    JournalKind("queue.jsonl", "queue.jsonl", LineRecords(is_sound_line), zeros="zeros", may_have_two_names=True,
                in_queue=lambda store: [store.layout.settings_file]),
    LOG,
    JournalKind("dead letters", "N-ID/dead/SHARD.jsonl", LineRecords(letter_files.is_sound_line), zeros="zeros",
                in_shard=lambda store, shard: [store.layout.dead(shard)]),
    JournalKind("settled letters", "N-ID/history/YYYY-MM-DD/SHARD.settled.jsonl",
                LineRecords(letter_files.is_sound_line), zeros="zeros",
                in_shard=lambda store, shard: (store.layout.settled(day, shard) for day in history.days(store))),
    JournalKind("history", "N-ID/history/YYYY-MM-DD/SHARD.jsonl",
                LineRecords(lambda line: history.parse(line) is not None),
                in_shard=lambda store, shard: (store.layout.history(day, shard) for day in history.days(store))),
    JournalKind("keys", "N-ID/keys/SHARD/DIGEST.jsonl", LineRecords(lambda line: format_keys.parse(line) is not None),
                zeros="zeros", in_shard=_key_files),
    JournalKind("nodes", "N-ID/nodes/DIGEST.jsonl", LineRecords(lambda line: nodes.parse(line) is not None),
                in_queue=nodes.files),
    JournalKind("group.jsonl", ".group.jsonl", LineRecords(is_sound_line), may_have_two_names=True,
                in_group=lambda group: [groups.group_file(group.path)]),
    JournalKind("decisions", ".updates/FILE.jsonl", LineRecords(decisions.is_sound_line), torn=None,
                in_group=_decision_files),
    JournalKind("numbers", ".numbers/PLACE", NumberRecords(), torn=None, in_group=_number_files),
)  # fmt: skip
"""Each kind of journal of the format: see docs/format.md and docs/format-groups.md."""
