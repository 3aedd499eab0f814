"""Split a file into lines, without holding in memory the long runs of zeros that a power loss may leave.

A *piece* is an offset and the bytes that stand there. Between the end of a piece and the offset of the next one the
file has NUL bytes only: a *gap*. fsqueue writes no NUL byte in a line (JSON has an escape for it), so a line with a gap
is damaged, or void.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

Piece = tuple[int, bytes]
GAP = b"\0"
"""Stands in a line for a gap. No JSON parser accepts it."""


def lines(pieces: Iterable[Piece], begin: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield offset, content and length in the file of each whole line from `begin` on. A torn last line is left out.

    In the content, one NUL byte stands for a gap, so a content with a gap is shorter than the length. The parts of a
    long line are joined once, at its end. To join them at each piece would take time that grows with the square.
    """
    start = at = begin
    begun: list[bytes] = []
    for offset, data in pieces:
        if offset > at:
            begun.append(GAP)
        at = offset + len(data)
        first, *others = data.split(b"\n")
        begun.append(first)
        if others:
            end = offset + len(first)
            whole, begun = b"".join(begun), [others.pop()]  # the parts of a long line are not held beside it
            del data, first
            yield start, whole, end - start
            del whole
            start = end + 1
            for line in others:
                yield start, line, len(line)
                start += len(line) + 1


def content_of(pieces: Iterable[Piece], begin: int = 0) -> bytes:
    """Return the bytes of all pieces, with one NUL byte for each run of zeros that was left out."""
    parts, at = [], begin
    for offset, data in pieces:
        parts += [GAP, data] if offset > at else [data]
        at = offset + len(data)
    return b"".join(parts)


def end_of(pieces: Sequence[Piece], begin: int = 0) -> int:
    """Return where the last piece ends, which is the end of the file that was read."""
    return pieces[-1][0] + len(pieces[-1][1]) if pieces else begin
