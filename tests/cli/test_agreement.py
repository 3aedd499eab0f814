"""One word has one meaning on the command line: these tests read click's commands and options, whichever there are."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import click
import pytest
from fsqueue_cli.common import DEAD_EXIT, FINDINGS_EXIT, NOTHING_EXIT, TIMEOUT_EXIT
from fsqueue_cli.conditions import FIELDS
from fsqueue_cli.running import EXCLUDED, FAILURES

from fsqueue import Group, Queue, errors
from tests.cli.conftest import Run
from tests.cli.terminal import Terminal
from tests.cli.test_options import OPTIONS, commands
from tests.filequeues import Files
from tests.house.source import TOP

pytestmark = pytest.mark.once

OF_COLUMNS = "spark seed"
"""Its options name columns of a table in place of values."""


def kind(option: click.Option) -> str:
    """Return what an option takes: nothing (a flag), or the name of its click type."""
    return "flag" if option.is_flag else type(option.type).__name__


def test_an_option_takes_the_same_kind_of_value_in_every_command() -> None:
    kinds: dict[str, dict[str, list[str]]] = {}
    for name, option in OPTIONS:
        if name != OF_COLUMNS:
            for flag in option.opts:
                kinds.setdefault(flag, {}).setdefault(kind(option), []).append(name)
    assert {flag: found for flag, found in kinds.items() if len(found) > 1} == {}


def test_timeout_says_how_long_the_command_waits() -> None:
    waits = {name: option.help or "" for name, option in OPTIONS if "--timeout" in option.opts}
    assert waits.keys() >= {"wait", "doctor"}
    assert [name for name, help in waits.items() if not help.startswith("How long to wait")] == []


def test_what_a_command_finds_and_an_error_have_different_exit_codes() -> None:
    """Nothing to lease, dead letters, findings, a run that stopped, a timeout: a script tells each from any error."""
    found = {NOTHING_EXIT, DEAD_EXIT, FINDINGS_EXIT, FAILURES, EXCLUDED, TIMEOUT_EXIT}
    assert len(found) == 6
    raised = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "exit_code")}
    assert raised & found == set()


def test_where_has_the_same_fields_in_all_commands(fsqueue_cli: Run, queue: Queue) -> None:
    conditional = {name: option.help for name, option in OPTIONS if "--where" in option.opts}
    assert conditional.keys() >= {"ls", "cancel", "dead list", "dead retry", "dead purge", "results", "retry"}
    assert len(set(conditional.values())) == 1
    said = {
        fsqueue_cli(*name.split(), queue.path, "--where", "nosuch=1", code=2).stderr.splitlines()[-1]
        for name in conditional
    }
    [text] = said
    assert ", ".join(FIELDS) in text


DESTROYS = {"cancel": ["--where", "payload>=0"], "dead purge": [], "delete": [], "purge": []}
REPEATS = {"retry", "dead retry", "release-all", "spark requeue"}
DOES_NOT_ASK = {
    **dict.fromkeys(
        ("status", "wait", "ls", "show", "results", "dead list", "completion", "help", "export"), "it reads"
    ),
    **dict.fromkeys(("spark audit", "spark report"), "it reads"),
    **dict.fromkeys(("doctor", "bench", "simulate"), "it works on files of its own"),
    **dict.fromkeys(("create", "insert", "import", "cp", "spark seed"), "it adds, and replaces nothing"),
    **dict.fromkeys(
        ("map", "run", "slurm", "pbs", "lsf", "sge", "spark drain", "serve"), "it does the work, or has others do it"
    ),
    **dict.fromkeys(("lease", "complete", "renew", "release", "fail", "bury"), "it acts on its own lease, by a token"),
    **dict.fromkeys(("pause", "resume", "set", "change", "mv"), "the same command takes it back"),
    "barrier": "a script sets it, and it can be cancelled",
    "update": "a script names each of its operations, and all happen or none",
    "workers": "--release-dead ends leases that nobody holds any more",
    "gc": "for cron: no task that is not done, and history by an age that is named",
    "fsck": "it reads; --repair keeps each task that can still be read",
}
"""Every other command, with the reason."""


def test_only_what_destroys_or_repeats_work_asks() -> None:
    assert {name for name, option in OPTIONS if "--yes" in option.opts} == {*DESTROYS, *REPEATS}
    assert sorted([*DESTROYS, *REPEATS, *DOES_NOT_ASK]) == sorted(name for name, _ in commands())
    assert {tuple(option.opts) for _, option in OPTIONS if option.name == "yes"} == {("--yes", "-y")}


@pytest.mark.parametrize("name", DESTROYS)
def test_what_destroys_work_refuses_where_no_user_can_answer(fsqueue_cli: Run, mixed: Queue, name: str) -> None:
    before = mixed.status()
    said = fsqueue_cli(*name.split(), mixed.path, *DESTROYS[name], code=2).stderr
    assert "Standard input is no terminal, so no user can answer: add --yes." in said
    assert mixed.status() == before
    fsqueue_cli(*name.split(), mixed.path, *DESTROYS[name], "-y")
    assert not mixed.path.exists() or mixed.status() != before


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [*DESTROYS, "release-all", "retry", "dead retry", "retry --completed --all"])
def test_on_a_terminal_all_of_them_ask(mixed: Queue, name: str) -> None:
    before = mixed.status()
    screen = Terminal(*name.split(), mixed.path, *DESTROYS.get(name, []), columns=300)
    try:
        screen.read(lambda text: "[y/N]:" in text)
        os.write(screen.main, b"n\n")
        code, text = screen.end()
    finally:
        screen.close()
    assert code == 1
    assert "nothing was changed" in text
    assert mixed.status() == before


@pytest.mark.parametrize(
    ("name", "waiting"), [("release-all", 2), ("retry", 1), ("dead retry", 1), ("retry --completed --all", 3)]
)
def test_what_repeats_work_goes_on_where_no_user_can_answer(
    fsqueue_cli: Run, mixed: Queue, name: str, waiting: int
) -> None:
    before = mixed.status().waiting
    fsqueue_cli(*name.split(), mixed.path)
    assert mixed.status().waiting == before + waiting


def test_attempts_fail_and_tasks_are_given_up_or_retried() -> None:
    """No option and no value calls a task failed: one that failed once may have been completed since."""
    words = {flag for _, option in OPTIONS for flag in option.opts}
    words |= {str(value) for _, option in OPTIONS for value in getattr(option.type, "choices", ())}
    assert {word for word in words if "failed" in word} == set()


FAILED_TASKS = re.compile(
    r"\b(failed|failing)\s+tasks?\b|\btasks?\s+((that|which)\s+)?((have|has|had)\s+)?(fail|fails|failed)\b"
    r"|\bfails?\s+(the|a)\s+tasks?\b"
)
PAGES = [TOP / "README.md", *sorted((TOP / "docs").glob("**/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_no_page_calls_a_task_failed(page: Path) -> None:
    assert [found[0] for found in FAILED_TASKS.finditer(page.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("name", sorted({name for name, _ in commands()}))
def test_help_calls_no_task_failed_and_has_one_meaning_for_exit_code_3(fsqueue_cli: Run, name: str) -> None:
    said = fsqueue_cli("help", *name.split()).stdout
    assert [found[0] for found in FAILED_TASKS.finditer(said)] == []
    assert all(line.split()[1:4] == ["nothing", "to", "do:"] for line in said.splitlines() if re.match(r" +3  ", line))


PRINTS_NO_DATA = {
    "completion": "a script for a shell",
    "help": "a text",
    "serve": "its address, for a script, and a log",
}
LISTS = {"ls": 8, "export": 5, "results": 4, "dead list": 1, "lease": 2, "fsck": 0}
"""Commands that print a line for each task or finding, and how many they have in the queue of the test."""
ARGUMENTS = {
    "bury": "Q TOKEN --reason x", "cancel": "Q ID -y", "complete": "Q TOKEN", "dead purge": "Q -y", "delete": "Q -y",
    "fail": "Q TOKEN --reason x", "insert": "Q --task 1", "purge": "Q -y", "release": "Q TOKEN", "lease": "Q -n 2",
    "release-all": "Q -y", "renew": "Q TOKEN", "retry": "Q --completed --all", "show": "Q ID", "wait": "Q --timeout 0",
    "map": "DIR/mapped -- true {} ::: 1",
    "run": "Q --max-tasks 1 --call json:dumps", "create": "DIR/new", "set": "Q max_attempts=3", "doctor": "DIR",
    "bench": "DIR --tasks 1 --duration 0.01", "simulate": "--lag 10 --pops 10", "update": "DIR/group --insert a=1",
    "barrier": "DIR/group --of a --then b=1",
    "pbs": "Q DIR/worker.pbs --print",
    "lsf": "Q DIR/worker.lsf --print",
    "sge": "Q DIR/worker.sge --print",
    "slurm": "Q --print -- true", "change": "Q ID --delay 0", "import": "Q --from-filequeue DIR/old",
    "cp": "Q DIR/group/cp", "mv": "Q DIR/group/mv",
}  # fmt: skip
"""What else than a queue a command is given."""
JSON = {name for name, option in OPTIONS if "--json" in option.opts or "--json" in option.secondary_opts}


def test_whatever_prints_data_prints_it_as_json_too() -> None:
    everything = {name for name, _ in commands()}
    assert everything - JSON == set(PRINTS_NO_DATA)
    said = {option.help for _, option in OPTIONS if "--json" in option.opts}
    assert said == {"Print JSON, an object a line."}


@pytest.mark.parametrize("name", sorted(name for name in JSON if not name.startswith("spark ")))
def test_json_is_an_object_a_line(fsqueue_cli: Run, mixed: Queue, tmp_path: Path, name: str) -> None:
    Group.create(tmp_path / "group")
    Files(tmp_path / "old").add()
    for name in ("pbs", "lsf", "sge"):
        (tmp_path / f"worker.{name}").write_text(f'#!/bin/sh\nfsqueue {name} "$Q" "$0" || exit 0\n')
    [token] = [task.token for task in mixed.lease()]
    values = {"Q": str(mixed.path), "ID": mixed.peek()[0].id, "TOKEN": token}
    words = [values.get(word, word.replace("DIR", str(tmp_path))) for word in ARGUMENTS.get(name, "Q").split()]
    at = words.index("--") if "--" in words else len(words)
    done = fsqueue_cli(*name.split(), *words[:at], "--json", *words[at:], code=None)
    assert done.exit_code in (0, 8, 9, 10, 124), done.output
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each for each in found if type(each) is not dict] == []
    assert len(found) == LISTS.get(name, 1)
