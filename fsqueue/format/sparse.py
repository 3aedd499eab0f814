"""Lines of a file that may have long runs of zeros, such as a power loss leaves: the runs are not held in memory.

A *piece* is an offset and the bytes that stand there. Where the next piece begins behind the end of the last, only NUL
bytes stand in between. No line of fsqueue's has a NUL byte (JSON writes it as an escape), so a line with such a gap is
damaged, or void.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

Piece = tuple[int, bytes]
GAP = b"\0"
"""What stands in a line for the zeros that were left out: no JSON parser takes it."""


def lines(pieces: Iterable[Piece], begin: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield offset, content and length of each whole line of a file that is read from `begin` on; not a torn last one.

    In a line with a gap, one NUL byte stands for it: then the content is shorter than the length. The parts of a long
    line are joined once, at its end. Joined at each piece, they would cost the square of its length.
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


def joined(pieces: Iterable[Piece], begin: int = 0) -> bytes:
    """Return the bytes of all pieces, with one NUL byte for each run of zeros that was left out."""
    parts, at = [], begin
    for offset, data in pieces:
        parts += [GAP, data] if offset > at else [data]
        at = offset + len(data)
    return b"".join(parts)


def end_of(pieces: Sequence[Piece], begin: int = 0) -> int:
    """Return where the last piece ends, which is the end of the file that was read."""
    return pieces[-1][0] + len(pieces[-1][1]) if pieces else begin
