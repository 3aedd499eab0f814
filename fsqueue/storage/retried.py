"""Staged files that `retried` lines name (docs/format.md, "Dead letters"), without reading all letters at each look.

A file of dead letters is only appended to until another replaces it, so a process reads each of its bytes once. It
remembers the names whose files are still in `staging/`: a published file never comes back there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import orjson

from fsqueue.storage import jsonl, letter_files
from fsqueue.storage.store import Store


class Seen(NamedTuple):
    """The part of a file that was read: which file, up to where, and the names in it that may still be in staging."""

    version: letter_files.Version
    state: letter_files.State
    """As of the last look."""
    end: int
    names: frozenset[str]


def read_on(store: Store, path: str, fd: int) -> frozenset[str]:
    """Read what was appended to an open file of letters since the last call. Return the staged files that it names.

    Names that `forget_published` has forgotten may be left out. A file that has replaced the one that was read is read
    from its beginning.
    """
    seen: Seen | None = store.retried.get(path)
    state = letter_files.state_of(store, fd)
    if seen is None or seen.state != state:
        version = letter_files.version(store, fd)
        if seen is None or seen.version != version:
            seen = Seen(version, state, 0, frozenset())
    end, names, is_sound = seen.end, set(seen.names), True
    for length, piece in jsonl.pieces_of(store.fs, fd, seen.end, shortened=letter_files.LETTER):
        if b"staged" in piece:
            names.update(_names_in(piece))
        # An NFS client may serve zeros for what it has not fetched yet: those are read again the next time.
        is_sound = is_sound and b"\0" not in piece
        end += length if is_sound else 0
    seen = store.retried[path] = Seen(seen.version, state, end, frozenset(names))
    return seen.names


def forget_published(store: Store) -> None:
    """Forget names whose files are not in staging any more. Call `read_on` of the files of letters before.

    A line is written after its file was staged. So a name that two listings do not show was published.
    """
    remembered = store.retried
    if any(seen.names for seen in remembered.values()):
        there = {text for _ in range(2) for text in store.fs.names(store.layout.staging)}
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
