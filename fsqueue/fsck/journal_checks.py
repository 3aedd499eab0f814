"""Check journals by the table of their kinds (`journal_kinds`), and mend them in place, each under its lock."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial

from fsqueue.filesystem import NOT_FILES, Filesystem
from fsqueue.format import sparse
from fsqueue.format.layout import settings_file
from fsqueue.format.wording import counted
from fsqueue.fsck.findings import Suspect, found, guarded
from fsqueue.fsck.journal_kinds import JOURNALS, JournalKind, JournalPlace
from fsqueue.fsck.repair import GRACE_S, LOOK_ONLY, WAIT_S, Quarantine
from fsqueue.interruptions import let_out
from fsqueue.storage import journals
from fsqueue.storage.journals import Journal
from fsqueue.storage.queue_file import FRESH_S


def check_all(
    place: JournalPlace, quarantine: Quarantine, paths: Callable[[JournalKind], Iterable[str]]
) -> Iterator[Suspect]:
    """Yield what may be wrong with the journals at some paths of each kind. One that cannot be read is told."""
    for kind in JOURNALS:
        yield from guarded(place, place.path, _of_kind(place, quarantine, kind, paths))


def _of_kind(
    place: JournalPlace, quarantine: Quarantine, kind: JournalKind, paths: Callable[[JournalKind], Iterable[str]]
) -> Iterator[Suspect]:
    for path in paths(kind):
        yield from guarded(place, path, check(place, quarantine, kind, path))


def check(place: JournalPlace, quarantine: Quarantine, kind: JournalKind, path: str) -> Iterator[Suspect]:
    """Yield what may be wrong with a journal: unsound records, a torn one at the end, and NUL bytes behind it."""
    try:
        with journals.opened(place.fs, path) as file:
            first = _look(place, kind, file)
    except OSError as error:
        let_out(error)
        if error.errno in (errno.ENOENT, *NOT_FILES):
            return  # what it is instead of a file was told by its name
        raise
    units = {kind.unsound: kind.records.unit, kind.zeros: "byte"}
    mends = {
        kind.zeros: partial(cut_zeros, place, kind, path),
        kind.unsound: partial(void, place, quarantine, kind, path),
        kind.torn: partial(close_off, place, kind, path),
    }
    for told, count in first.items():
        yield Suspect(
            found(place, told, path, note=counted(count, units[told]) if told in units else ""),
            partial(_again, place, kind, path, told),
            mends[told],
        )


def _look(place: JournalPlace, kind: JournalKind, file: Journal) -> dict[str, int]:
    """Return how many records or bytes each finding concerns."""
    zeros = file.zeros_at_end() if kind.zeros is not None else 0
    bad, torn = kind.records.unsound(place, file)
    counts = ((kind.zeros, zeros), (kind.unsound, len(bad)), (kind.torn, torn - zeros))
    return {told: count for told, count in counts if told is not None and count > 0}


def _again(place: JournalPlace, kind: JournalKind, path: str, told: str) -> bool:
    """Return whether a finding holds under the file's lock, or for a user who may only look after a while."""
    try:
        with _locked(place, path, one_name=False) as file:
            return told in _look(place, kind, file)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno not in LOOK_ONLY:
            raise
        place.clock.sleep(GRACE_S)
        with journals.opened(place.fs, path) as file:
            return told in _look(place, kind, file)


def _locked(place: JournalPlace, path: str, one_name: bool) -> AbstractContextManager[Journal]:
    flags = journals.IN_PLACE
    return journals.locked(Journal, place.fs, place.clock, place.entropy, path, WAIT_S, flags, one_name=one_name)


def _locked_to_write(place: JournalPlace, kind: JournalKind, path: str) -> AbstractContextManager[Journal]:
    """Hold a journal to change its bytes; SecondName if it has a second name."""
    return _locked(place, path, not kind.may_have_two_names)


def close_off(place: JournalPlace, kind: JournalKind, path: str) -> None:
    """Void a torn last line, as the next append would."""
    assert kind.torn is not None, "the next append closes it off"
    with _locked_to_write(place, kind, path) as file:
        size = file.length()
        if end := file.end_of_torn(size):
            place.fs.pwrite(file.fd, end, size)
            place.fs.fsync(file.fd)


def cut_zeros(place: JournalPlace, kind: JournalKind, path: str) -> None:
    """Cut off the NUL bytes that a file ends in (decision 24)."""
    assert kind.zeros is not None, "processes hold offsets in the file from before the power loss"
    with _locked_to_write(place, kind, path) as file:
        zeros = file.zeros_at_end()
        if zeros:
            place.fs.cut_to(file.fd, file.length() - zeros)
            if path == settings_file(place.path):
                # Some process may take this file for unchanged for FRESH_S, by the size with the zeros. A purge
                # that were as long as these could go unnoticed: keep it out until that time is over.
                place.clock.sleep(2 * FRESH_S)


def void(place: JournalPlace, quarantine: Quarantine, kind: JournalKind, path: str) -> None:
    """Mark records that make no sense as void, in place; a copy of each is kept."""
    fs = place.fs
    with _locked_to_write(place, kind, path) as file:
        while bad := kind.records.unsound(place, file)[0]:
            copy = b"".join(b"%s\n" % _record_at(fs, file.fd, offset, length) for offset, length in bad)
            quarantine.keep(f"{path}.{kind.records.unit}s-from-{bad[0][0]}", copy)
            for offset, length in bad:
                kind.records.void(file, offset, length)
            fs.fsync(file.fd)


def _record_at(fs: Filesystem, fd: int, offset: int, length: int) -> bytes:
    """Return a record; one NUL byte stands for a long run of zeros."""
    end = offset + length
    within = itertools.takewhile(lambda piece: piece[0] < end, fs.pieces(fd, offset))
    return sparse.content_of(((at, data[: end - at]) for at, data in within), offset)
