"""`--help` is one screen; `fsqueue help` has everything; both say the same of an option."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from fsqueue_cli import short_help
from fsqueue_cli.main import COMMANDS, GROUPS, cli
from fsqueue_cli.options import OneScreen

from tests.cli.conftest import Run
from tests.cli.terminal import Terminal
from tests.cli.test_options import commands
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.once

NAMES = [name for name, _ in commands()]


@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_a_command_is_one_screen(fsqueue_cli: Run, name: str) -> None:
    lines = fsqueue_cli(*name.split(), "--help").stdout.splitlines()
    assert len(lines) <= short_help.LINES_MAX, f"--help of {name} is too long: give it an entry in cli/short_help.py"


@pytest.mark.parametrize("name", NAMES)
def test_only_what_would_be_longer_than_a_screen_is_shortened(fsqueue_cli: Run, name: str) -> None:
    whole = fsqueue_cli("help", *name.split()).stdout
    is_long = len(whole.splitlines()) > short_help.LINES_MAX
    assert is_long == isinstance(dict(commands())[name], OneScreen)
    assert is_long == (name in short_help.SHORT)
    assert is_long == (whole != fsqueue_cli(*name.split(), "--help").stdout)


@pytest.mark.parametrize("name", short_help.SHORT)
def test_a_short_help_has_each_option_in_one_line_by_theme(fsqueue_cli: Run, name: str) -> None:
    short = short_help.SHORT[name]
    text = fsqueue_cli(name, "--help").stdout
    before, _, rest = text.partition("\nExamples:\n")
    typed, _, more = rest.partition("\n\n")
    options = {max(one.opts, key=len): one for one in dict(commands())[name].params if isinstance(one, click.Option)}
    assert re.findall(r"^(\S.*):$", before, re.MULTILINE) == list(short.themes)
    assert max(map(len, before.splitlines())) <= short_help.COLUMNS_MAX
    assert 1 <= len(typed.splitlines()) <= short_help.EXAMPLES_MAX
    assert max(map(len, typed.splitlines())) <= 100
    shown = [option for theme in short.themes.values() for option in theme]
    assert len(shown) == len(set(shown))
    for option in shown:
        assert len(re.findall(rf"^  (?:-\w, )?{option}[ ,].*\S\.?$", before, re.MULTILINE)) == 1, option
    assert {*shown, *re.findall(r"--[\w-]+", more)} == options.keys()
    assert more.split()[-4:] == ["'fsqueue", "help", f"{name}'."] or more.rstrip().endswith(f"'fsqueue help {name}'.")


def test_a_default_is_the_same_in_both() -> None:
    """`[10]` in the one and `[20]` in the other would be a lie."""
    for name, short in short_help.SHORT.items():
        options = {max(one.opts, key=len): one for one in dict(commands())[name].params}
        for theme in short.themes.values():
            for option, text in theme.items():
                assert all(default in (options[option].help or "") for default in re.findall(r"\[[\d][^]]*\]", text)), (
                    f"{name} {option}"
                )


def test_a_line_that_is_the_option_s_own_help_is_not_written_twice() -> None:
    for name, short in short_help.SHORT.items():
        options = {max(one.opts, key=len): one for one in dict(commands())[name].params}
        twice = [
            f"{name} {option}"
            for theme in short.themes.values()
            for option, text in theme.items()
            if text == short_help.first_sentence(options[option])
        ]
        assert twice == []


def test_commands_fit_into_a_line_each(fsqueue_cli: Run) -> None:
    lines = fsqueue_cli("--help").stdout.splitlines()
    assert max(map(len, lines)) < short_help.COLUMNS_MAX
    assert len(lines) <= len(COMMANDS) + 2 * len(GROUPS) + 16


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nosuch"], "No such command 'nosuch'"),
        (["rnu"], "Did you mean 'run'?"),
        (["dead", "lst"], "Did you mean 'list'?"),
        (["kill"], "send it SIGTERM"),
        (["run", "more"], "'fsqueue run' has no commands below it, so 'more' is none."),
    ],
)
def test_help_for_what_does_not_exist(fsqueue_cli: Run, words: list[str], said: str) -> None:
    assert said in " ".join(fsqueue_cli("help", *words, code=2).stderr.split())


def test_help_for_commands_below_a_command(fsqueue_cli: Run) -> None:
    assert fsqueue_cli("help", "dead", "list").stdout.startswith("Usage: fsqueue dead list [OPTIONS] Q...\n")
    assert "  purge" in fsqueue_cli("help", "dead").stdout
    assert fsqueue_cli("help", "help").stdout == fsqueue_cli("help", "--help").stdout


def test_a_terminal_gets_a_pager_and_a_pipe_gets_text(tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text(f"#!/bin/sh\necho paged >{tmp_path}/paged\ncat\n")
    pager.chmod(0o755)
    environment = {"PAGER": str(pager)}
    screen = Terminal("help", "wait", env=environment, rows=60)
    try:
        code, text = screen.end()
    finally:
        screen.close()
    assert code == 0
    assert "Usage: fsqueue wait" in text
    assert (tmp_path / "paged").read_text() == "paged\n"
    (tmp_path / "paged").unlink()
    done = subprocess.run(
        [sys.executable, "-m", "fsqueue_cli", "help", "wait"],
        capture_output=True, text=True, env=os.environ | environment, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.stdout.startswith("Usage: fsqueue wait")
    assert (done.stderr, (tmp_path / "paged").exists()) == ("", False)


def test_no_pager_is_no_error(tmp_path: Path) -> None:
    screen = Terminal("help", "wait", env={"PAGER": str(tmp_path / "nosuch"), "PATH": str(tmp_path)}, rows=60)
    try:
        code, text = screen.end()
    finally:
        screen.close()
    assert code == 0
    assert "Usage: fsqueue wait" in text


def test_a_pager_that_is_quit_early_is_no_error(tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\nhead -n 1\n")
    pager.chmod(0o755)
    screen = Terminal("help", "run", env={"PAGER": str(pager)}, rows=60)
    try:
        code, text = screen.end()
    finally:
        screen.close()
    assert code == 0
    assert "Traceback" not in text


def test_the_whole_help_of_fsqueue_names_what_the_short_one_leaves_out(fsqueue_cli: Run) -> None:
    short, whole = (fsqueue_cli(typed).stdout for typed in ("--help", "help"))
    assert "Exit codes:" in whole
    assert "Exit codes:" not in short
    assert "'fsqueue help' has the exit codes" in " ".join(short.split())
    assert isinstance(cli, click.Group)
