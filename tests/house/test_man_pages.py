"""The manual pages in docs/man/ are those that scripts/man-pages makes; they say all that `fsqueue help` says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from fsqueue_cli import short_help
from fsqueue_cli.main import COMMANDS, cli

from tests.house.source import TOP

pytestmark = pytest.mark.once

PAGES = TOP / "docs" / "man"
ESCAPES = {"\\-": "-", "\\(aq": "'", "\\(ga": "`", "\\(ha": "^", "\\(ti": "~", "\\&": "", "\\e": "\\"}
needs_groff = pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed (scripts/setup-groff)")


def read(page: Path) -> list[str]:
    """Return the words of a page, without its requests."""
    words = []
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith(('.\\"', ".TH", ".nh", ".ad", ".ss", ".PP", ".RS", ".RE", ".nf", ".fi", ".TP", ".br")):
            continue
        text = re.sub(r"^\.(SH|SS|B|BR) ", "", line)
        text = re.sub(r"\\\[u([0-9A-F]{4,5})\]", lambda found: chr(int(found[1], 16)), text)
        text = re.sub(r"\\(?:\(..|.)", lambda found: ESCAPES[found[0]], text)
        words += text.split()
    return words


def test_the_pages_are_those_of_the_commands(tmp_path: Path) -> None:
    subprocess.run([TOP / "scripts" / "man-pages", "--dir", tmp_path], check=True, capture_output=True)
    made = {page.name: page.read_text() for page in tmp_path.iterdir()}
    assert made.keys() == {"fsqueue.1", *(f"fsqueue-{name}.1" for name in COMMANDS)}
    there = {page.name: page.read_text() for page in PAGES.iterdir()}
    differ = sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))
    assert differ == [], "type scripts/man-pages, and commit what it writes"


def test_pages_of_commands_that_are_gone_are_removed(tmp_path: Path) -> None:
    (tmp_path / "fsqueue-nosuch.1").write_text("old")
    (tmp_path / "other.1").write_text("mine")
    subprocess.run([TOP / "scripts" / "man-pages", "--dir", tmp_path], check=True, capture_output=True)
    assert not (tmp_path / "fsqueue-nosuch.1").exists()
    assert (tmp_path / "other.1").read_text() == "mine"


def missing(said: str, page: Path) -> list[str]:
    """Return the words of a help that a page does not have, in this order."""
    rest = iter(read(page))
    return [word for word in said.split() if word not in rest]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_says_all_that_the_help_says(name: str) -> None:
    """Each of its words, in the same order, but for headings."""
    context = click.Context(cli, info_name="fsqueue", **cli.context_settings)
    command = cli.get_command(context, name)
    assert command is not None
    parts = [(name, command)]
    if isinstance(command, click.Group):
        parts = [(f"{name} {below}", one) for below, one in command.commands.items()]
    for path, one in parts:
        below = click.Context(one, context, info_name=path)
        # One line for each paragraph and option: a word that is broken at its hyphen is another word.
        below.terminal_width = below.max_content_width = 10_000
        text = short_help.whole(one, below)
        text = re.sub(r"^(Usage:|Options:|  Example:|  Exit codes:)", "", text, flags=re.MULTILINE)
        assert missing(text, PAGES / f"fsqueue-{name}.1") == []


def test_the_first_page_says_all_that_the_help_says() -> None:
    context = click.Context(cli, info_name="fsqueue", **cli.context_settings)
    text = short_help.whole(cli, context)
    exit_codes = text.partition("Exit codes:")[2]
    assert len(exit_codes.split()) > 100
    assert missing(exit_codes, PAGES / "fsqueue.1") == []
    for name, (_, short) in COMMANDS.items():
        assert missing(f"fsqueue-{name} {short}", PAGES / "fsqueue.1") == []


@needs_groff
@pytest.mark.parametrize("page", sorted(PAGES.iterdir()), ids=lambda page: page.name)
def test_troff_has_nothing_to_say_of_a_page(page: Path) -> None:
    done = subprocess.run(["groff", "-man", "-ww", "-z", "-Tutf8", page], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@needs_groff
def test_what_is_wrong_in_a_page_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.1"
    page.write_text(".TH A 1\n.SH NAME\na \\- b\n.NOSUCH macro\n")
    done = subprocess.run(["groff", "-man", "-ww", "-z", "-Tutf8", page], capture_output=True, text=True)
    assert "NOSUCH" in done.stderr
