"""docs/purged-scratch.md says of each kind of file of the format what happens if a purge takes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
BRANCH = re.compile(r"^((?:│   |    )*)[├└]── (\S+)")
SAME = {"NAME/"}
"""In a group's directory: a queue, as the tree before shows it."""


def leaves(tree: str) -> set[str]:
    """Return the paths in a drawn tree below which nothing is drawn."""
    found, above = list[tuple[int, str]](), dict[int, str]()
    for line in tree.splitlines():
        match = BRANCH.match(line)
        if match is not None:
            depth, name = len(match[1]) // 4, match[2]
            above[depth] = name
            found.append((depth, "".join(above[level] for level in range(depth)) + name))
        elif line.startswith("PARENT/"):
            found.append((0, line.split()[0].removeprefix("PARENT/")))
    return {
        path for number, (depth, path) in enumerate(found) if number + 1 == len(found) or found[number + 1][0] <= depth
    }


def test_a_tree_is_read_as_it_is_drawn() -> None:
    tree = "Q/\n├── a   text\n└── b/\n    ├── c/D\n    └── e/\n        └── f   text\nPARENT/.g/    text\n"
    assert leaves(tree) == {"a", "b/c/D", "b/e/f", ".g/"}


def test_the_table_of_what_vanishes_has_a_row_for_each_kind_of_file() -> None:
    pages = "".join((TOP / "docs" / page).read_text() for page in ("format.md", "format-groups.md"))
    trees = re.findall(r"```(?:text)?\n((?:QUEUE|GROUP)/\n.*?)```", pages, re.DOTALL)
    assert len(trees) == 2
    kinds = {path for tree in trees for path in leaves(tree)} - SAME
    page = (TOP / "docs/purged-scratch.md").read_text()
    table = page[page.index("## Files that vanish") :]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert sorted(named) == sorted(kinds)


@pytest.mark.parametrize("word", ["noatime", 'gc "$Q" --touch', "fsck --repair"])
def test_the_section_says_what_to_do(word: str) -> None:
    page = (TOP / "docs/purged-scratch.md").read_text()
    assert word in page[page.index("## Files that vanish") :]
