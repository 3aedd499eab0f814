"""What code and pages cite is there: each page, and each chapter of it."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from tests.house.source import TOP

PLACES = ("fsqueue", "cli", "scripts", "tests", "examples", "docs", "README.md", "CONTRIBUTING.md")
PAGE = re.compile(r"\bdocs/[\w/-]+\.md")
CHAPTER = re.compile(r'\b(docs/[\w/-]+\.md), "([^"\n]+)"')
SECTION = re.compile(r"\bdocs/design\.md, section (\d+(?:\.\d+)?)")
ELSEWHERE = re.compile(r"\b(?:DESIGN section|INTERFACE,|shared/[A-Z]|FileQueue design)")
"""Documents that are not part of this repository."""
PAPERS = {"TaskMaster": "TaskMaster: A Scalable, Reliable Queuing Infrastructure for Building Distributed Systems"}
"""Published papers that are named by a word, and their titles."""
PAPERS_PAGE = "docs/benchmarks-order.md"


def texts() -> Iterator[tuple[str, str]]:
    """Each file's path and text, line breaks within a sentence taken out."""
    for place in PLACES:
        found = TOP / place
        for path in [found] if found.is_file() else sorted(found.rglob("*")):
            if path.is_file() and path.suffix in (".py", ".md", ".sh", "") and path != Path(__file__):
                yield str(path.relative_to(TOP)), re.sub(r"\s*\n[\s#*|]*", " ", path.read_text(errors="replace"))


def chapters(page: str) -> set[str]:
    """The titles of a page: of its headings, without numbers and modules, and of paragraphs that begin in bold."""
    text = (TOP / page).read_text()
    headings = re.findall(r"^#+ (?:\d+(?:\.\d+)*\.? )?(.+?)(?: \[.*\])?$", text, re.MULTILINE)
    return {*headings, *(title.rstrip(".:") for title in re.findall(r"^(?:- )?\*\*(.+?)\*\*", text, re.MULTILINE))}


def test_every_page_that_is_cited_is_there() -> None:
    missing = [(where, page) for where, text in texts() for page in PAGE.findall(text) if not (TOP / page).exists()]
    assert missing == []


def test_every_chapter_that_is_cited_is_there() -> None:
    cited = [(where, *found) for where, text in texts() for found in CHAPTER.findall(text)]
    assert len(cited) > 20
    assert [one for one in cited if one[2] not in chapters(one[1])] == []


def test_every_section_of_the_design_that_is_cited_is_there() -> None:
    sections = set(re.findall(r"^#+ (\d+(?:\.\d+)?)\.? ", (TOP / "docs/design.md").read_text(), re.MULTILINE))
    cited = [(where, number) for where, text in texts() for number in SECTION.findall(text)]
    assert len(cited) > 20
    assert [one for one in cited if one[1] not in sections] == []


def test_nothing_cites_what_readers_do_not_have() -> None:
    assert [(where, found) for where, text in texts() for found in ELSEWHERE.findall(text)] == []


def test_papers_that_are_named_are_cited_in_full() -> None:
    cited = dict(texts())[PAPERS_PAGE]
    for word, title in PAPERS.items():
        assert any(re.search(rf"\b{word}\b", text) for _, text in texts()), f"nothing names {word} any more"
        assert title in cited


def test_the_sections_of_the_design_are_numbered_in_a_row() -> None:
    headings = re.findall(r"^#{2,3} (.*)$", (TOP / "docs/design.md").read_text(), re.MULTILINE)
    numbers = [re.match(r"(\d+)(?:\.(\d+))?\.? ", heading) for heading in headings]
    assert None not in numbers
    found = [(int(number[1]), int(number[2] or 0)) for number in numbers if number is not None]
    assert found == sorted(set(found))
    for (chapter, section), (following, below) in pairwise(found):
        assert (following, below) in ((chapter, section + 1), (chapter + 1, 0))


def test_the_map_of_the_pages_names_every_page() -> None:
    text = (TOP / "docs/README.md").read_text()
    linked = {(TOP / "docs" / target).resolve() for target in re.findall(r"\]\(([^)#]+)\)", text)}
    assert [path for path in linked if not path.exists()] == []
    assert set((TOP / "docs").rglob("*.md")) - linked == {TOP / "docs/README.md"}


def test_the_functions_that_the_design_names_are_there() -> None:
    text = (TOP / "docs/design.md").read_text()
    named = re.findall(r"`(fsqueue(?:\.\w+)+)`", text)
    assert len(named) >= 10
    missing = [name for name in named if found_by_name(name) is None]
    assert missing == []


def found_by_name(name: str) -> object | None:
    """Return the module, class or function of a dotted name; None if there is none."""
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return None


def test_the_modules_that_the_format_names_are_there() -> None:
    """The pages of the format name in brackets the modules that read and write each part."""
    text = "".join((TOP / "docs" / page).read_text() for page in ("format.md", "format-groups.md"))
    named = {name for group in re.findall(r"(?<= )\[(`[^\]]+`)[\],]", text) for name in re.findall(r"`(\w+)`", group)}
    assert len(named) >= 10
    assert named - {path.stem for path in (TOP / "fsqueue").rglob("*.py")} == set()


def test_the_source_files_that_pages_name_are_there() -> None:
    """As `fsqueue/storage/logs.py`, or from the package on: `storage/logs.py`."""
    pages = [TOP / "README.md", TOP / "CONTRIBUTING.md", *(TOP / "docs").rglob("*.md")]
    named = {(page.name, path) for page in pages for path in re.findall(r"`((?:\w+/)+\w+\.py)`", page.read_text())}
    assert len(named) > 20
    assert {one for one in named if not any((top / one[1]).exists() for top in (TOP, TOP / "fsqueue"))} == set()
