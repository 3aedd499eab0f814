"""The site of the documentation: each page of docs/ has its place, users' pages are short, links have their anchors.

Most of it needs no MkDocs. `scripts/site` itself is run by `scripts/test --all`.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import fsqueue
from fsqueue.format.layout import CHANGEABLE, LIMITS, Settings
from tests.house.source import TOP
from tests.pages import text_of
from tests.test_errors import EXIT_CODES

pytestmark = pytest.mark.once

LINES_MAX = 250
"""Of a tutorial or a how-to page: what a reader can look over for the answer to one question."""
PARTS = ("Tutorials", "How to", "Reference", "Explanation")


def hooks() -> ModuleType:
    specification = importlib.util.spec_from_file_location("site_pages", TOP / "scripts" / "site_pages.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


HOOKS = hooks()
CONFIG = yaml.safe_load((TOP / "mkdocs.yml").read_text(encoding="utf-8"))
DOCS = HOOKS.pages_of_docs()
GENERATED = dict(HOOKS.generated())
NAMES = [*DOCS, *(name for name in GENERATED if name not in HOOKS.MOVED.values())]
NAV: dict[str, Any] = {title: below for part in CONFIG["nav"] for title, below in part.items()}


def leaves(nav: Any) -> Iterator[str]:
    """Yield the pages of a part of the navigation."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for below in nav.values():
            yield from leaves(below)
    else:
        for below in nav:
            yield from leaves(below)


def of(part: str) -> list[str]:
    return list(leaves(HOOKS.expanded(NAV[part], NAMES)))


def test_each_page_is_in_one_part_of_the_navigation() -> None:
    assert tuple(NAV)[1:] == PARTS
    assert of("fsqueue") == ["index.md", "map.md"]
    placed = Counter(page for part in PARTS for page in of(part))
    assert [page for page, times in placed.items() if times > 1] == []
    assert sorted(placed.keys()) == sorted({*NAMES, *GENERATED} - {"index.md", "map.md"})


@pytest.mark.parametrize("page", [*of("Tutorials"), *of("How to")])
def test_a_page_for_users_is_short(page: str) -> None:
    lines = len(text_of(f"docs/{page}").splitlines())
    assert lines <= LINES_MAX, f"docs/{page} has {lines} lines: split it by question"


@pytest.mark.parametrize("page", [*of("Tutorials"), *of("How to")])
def test_a_page_for_users_names_no_test(page: str) -> None:
    named = re.findall(r"`tests/[^`]*`", text_of(f"docs/{page}"))
    assert named == [], "docs/guarantees.md is the place of the names of tests"


def test_the_reference_has_each_public_name_once() -> None:
    named = [name for names in HOOKS.PYTHON.values() for name in names]
    assert sorted(named) == sorted(set(fsqueue.__all__) - {"__version__"})


def test_the_reference_has_each_command_with_its_options_and_examples() -> None:
    page = GENERATED["reference/commands/run.md"]
    assert "<code>--stop-after-failures N</code>" in page
    assert "fsqueue run Q -- ./process {}" in page.partition("**Examples**")[2]
    assert "## fsqueue dead retry" in GENERATED["reference/commands/dead.md"]


def test_the_exit_codes_are_those_of_the_help_and_of_the_errors() -> None:
    from fsqueue_cli.main import EPILOG

    page = text_of("docs/exit-codes.md")
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", page.partition("In Python")[0], re.MULTILINE))
    told = dict(re.findall(r"^  (\d+)  +(\S.*)$", EPILOG.partition("Exit codes:")[2], re.MULTILINE))
    assert {code: text.replace("`", "") for code, text in rows.items()} == told
    errors = re.findall(r"^\| (\d+) \| (.*) \|$", page.partition("In Python")[2], re.MULTILINE)
    assert {name: int(code) for code, names in errors for name in re.findall(r"\w+", names)} == EXIT_CODES


def test_the_settings_are_those_of_a_queue() -> None:
    from fsqueue_cli.main import cli

    rows = re.findall(r"^\| `(\w+)` \| *(.*?) *\| (.*?) \| (yes|no) \|", text_of("docs/settings.md"), re.MULTILINE)
    defaults = {name: getattr(Settings(), name) for name in Settings.__dataclass_fields__}
    assert [name for name, *_ in rows] == list(defaults)
    assert {name for name, _, _, later in rows if later == "yes"} == {*CHANGEABLE, *LIMITS}
    assert {name.partition(".")[0] for name in LIMITS} == {"max_leased", "limit", "rate"}
    create = cli.get_command(None, "create")  # type: ignore[arg-type]
    options = {option for one in create.params for option in one.opts}  # type: ignore[union-attr]
    for name, option, default, _ in rows:
        assert option == "" or option.strip("`") in options, name
        is_default = defaults[name]
        shown = ", ".join(f"{one:g}" for one in is_default) if isinstance(is_default, tuple) else str(is_default)
        assert default == {"None": "none", "{}": "none", "True": "true"}.get(shown, shown), name


# -- links ------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {HOOKS.slug(heading) for heading in re.findall(r"^#{1,6} (.*)$", text, re.MULTILINE)}


def test_each_link_leads_to_a_page_and_a_heading() -> None:
    broken, seen = [], 0
    for page in [*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md")]:
        text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for target, anchor in re.findall(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]+))?\)", text):
            to = (page.parent / target).resolve() if target else page
            seen += bool(anchor)
            if not to.exists() or (anchor and anchor not in anchors(to)):
                broken.append(f"{page.relative_to(TOP)}: {target}#{anchor}")
    assert seen > 20
    assert broken == []


def test_links_that_lead_out_of_docs_are_turned() -> None:
    text, outside = HOOKS.linked("[a](../README.md#install) [b](order.md) [c](../examples/crawler.py)\n", "serve.md")
    assert text == "[a](index.md#install) [b](order.md) [c](source/examples/crawler.py)\n"
    assert outside == {TOP / "examples" / "crawler.py"}
    assert HOOKS.linked("[a](docs/order.md) [b](docs/decisions/)\n", "index.md")[0] == "[a](order.md) [b](map.md)\n"
    assert HOOKS.linked("[a](../tables.md)\n", "tutorials/sweep.md")[0] == "[a](../tables.md)\n"
    named, _ = HOOKS.linked("[order.md](order.md#keys) [b](order.md)\n", "serve.md", {"order.md": "Order"})
    assert named == "[Order](order.md#keys) [b](order.md)\n"
    assert HOOKS.linked("```\n[a](../README.md)\n```\n", "serve.md")[0] == "```\n[a](../README.md)\n```\n"


def test_words_lead_to_the_glossary_from_where_they_stand_first() -> None:
    text = HOOKS.explained(
        "# A lease\n\nTwo leases of `lease` [a lease](x.md).\n\n```sh\nbatch\n```\nBatches; a lease.\n"
    )
    assert text == (
        "# A lease\n\nTwo [leases](glossary.md#lease) of `lease` [a lease](x.md).\n\n```sh\nbatch\n```\n"
        "[Batches](glossary.md#batch); a lease.\n"
    )
    ids = set(re.findall(r'<a id="([\w-]+)"></a>', HOOKS.anchored(text_of("docs/glossary.md"))))
    assert {HOOKS.slug(word) for word in HOOKS.EXPLAINED} <= ids
    assert "hpc.md" in HOOKS.users_pages(CONFIG["nav"])
    assert "design.md" not in HOOKS.users_pages(CONFIG["nav"])


# -- the site itself --------------------------------------------------------------------------------------


class Fetched(HTMLParser):
    """Collects what a browser fetches with a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe") and given.get("src"):
            self.found.append(given["src"] or "")
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next", "alternate"):
            self.found.append(given.get("href") or "")


@pytest.mark.slow
@pytest.mark.thorough
def test_the_site_is_built_without_a_warning_and_fetches_nothing_from_elsewhere() -> None:
    done = subprocess.run([TOP / "scripts" / "site"], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    site = TOP / "build" / "site"
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(DOCS)
    for page in pages:
        parser = Fetched()
        parser.feed(page.read_text(encoding="utf-8"))
        assert [one for one in parser.found if "//" in one] == [], page
        for one in parser.found:
            if not one.startswith(("data:", "/")):
                assert (page.parent / one.partition("?")[0]).exists(), f"{page}: {one}"
    assert (site / "search" / "search_index.js").exists()
    queues = (site / "reference" / "python" / "queues.html").read_text(encoding="utf-8")
    assert 'id="fsqueue.Queue.insert_many"' in queues
