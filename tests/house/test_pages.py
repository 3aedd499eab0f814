"""Pages in Markdown: lines of prose break at 100 columns, so that a change of a sentence shows as one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent.parent
PAGES = [*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md")]
COLUMNS = 100


def too_long(text: str) -> Iterator[str]:
    """Yield the lines of prose that could have been broken earlier: not code, not tables, no single long word."""
    is_code = False
    for line in text.splitlines():
        if line.lstrip().startswith(("```", "~~~")):
            is_code = not is_code
        elif not is_code and len(line) > COLUMNS and not line.startswith(("|", "#", "    ", "[")):
            whole = re.sub(r"`[^`]+`", lambda span: span[0].replace(" ", "_"), line)
            start = re.match(r"\s*([-*+]|\d+\.)?\s*", whole)
            if " " in whole[start.end() if start else 0 : COLUMNS + 1]:
                yield line


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(TOP)) for page in PAGES])
def test_prose_breaks_at_100_columns(page: Path) -> None:
    assert list(too_long(page.read_text(encoding="utf-8"))) == []


def test_what_is_too_long() -> None:
    prose = "word " * 21 + "end"
    assert list(too_long(prose)) == [prose]
    assert list(too_long(f"- {prose}")) == [f"- {prose}"]
    assert list(too_long(f"```\n{prose}\n```\n| {prose} |\n`{prose}`\n" + "x" * 101)) == []
