"""Lines of a file with long runs of zeros: as those of the whole content, but for the zeros."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fsqueue.format import sparse

LINES = st.lists(st.sampled_from([b"", b"a", b"{}", b"~", b"long" * 9]), max_size=8)


def of(content: bytes, cuts: list[int], gap: int) -> list[sparse.Piece]:
    """The pieces of a content with \x01 where `gap` zeros are, read in pieces that end at the cuts."""
    pieces, at = [], 0
    for number, part in enumerate(content.split(b"\x01")):
        at += gap if number else 0
        begin = 0
        for cut in [*sorted({cut for cut in cuts if cut < len(part)}), len(part)]:
            pieces.append((at + begin, part[begin:cut]))
            begin = cut
        at += len(part)
    return pieces


@given(LINES, st.sampled_from([b"", b"torn"]), st.lists(st.integers(0, 40)), st.integers(2, 99), st.data())
def test_lines_stand_where_they_stand_in_the_file(
    lines: list[bytes], torn: bytes, cuts: list[int], gap: int, data: st.DataObject
) -> None:
    content = b"\n".join([*lines, torn])
    for at in sorted(data.draw(st.sets(st.integers(0, len(content)), max_size=2)), reverse=True):
        content = content[:at] + b"\x01" + content[at:]
    whole = content.replace(b"\x01", b"\0" * gap)
    pieces = of(content, cuts, gap)
    wanted, offset = [], 0
    for line in whole.split(b"\n")[:-1]:
        wanted.append((offset, line.replace(b"\0" * gap, b"\0"), len(line)))
        offset += len(line) + 1
    assert list(sparse.lines(pieces, 0)) == wanted
    assert sparse.content_of(pieces) == content.replace(b"\x01", b"\0")
    assert sparse.end_of(pieces) == len(whole)
