"""What each command takes in place of a queue: docs/groups.md has a table of it, and each line of it is tried here.

A new command must take its place in that table, or a test fails.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from fsqueue_cli.main import cli

import fsqueue
from fsqueue import Group, Queue
from tests.cli.conftest import Run
from tests.gateways import gateways
from tests.house.source import TOP

pytestmark = pytest.mark.once

NO_QUEUE = {"create", "completion", "serve", "simulate", "doctor", "bench", "slurm"}
"""What makes a queue, takes none, or takes one place and says itself which (docs/serve.md, doctor.md, hpc.md)."""


def commands() -> Iterator[str]:
    """Yield the name of each command but those on Spark, which take what docs/spark.md says."""
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        if isinstance(command, click.Group):
            yield from (f"{name} {below}" for below in command.commands if name != "spark")
        else:
            yield name


class Takes(NamedTuple):
    """A line of the page's table: whether a command takes these."""

    group: bool
    several: bool
    address: bool


def table() -> dict[str, Takes]:
    """Return what the page says of each command."""
    page = (TOP / "docs" / "groups.md").read_text(encoding="utf-8").partition("## What a command takes")[2]
    found: dict[str, Takes] = {}
    for line in page.partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0].startswith("`"):
            assert all(cell == "yes" or cell.startswith("no: ") for cell in cells[1:]), line
            for name in re.findall(r"`([^`]+)`", cells[0]):
                assert name not in found
                found[name] = Takes(*(cell == "yes" for cell in cells[1:]))
    return found


TABLE = table()


def test_every_command_says_what_it_takes() -> None:
    assert set(TABLE) == set(commands()) - NO_QUEUE


ARGUMENTS = {
    "bury": "{token} --reason x", "cancel": "{id} -y", "complete": "{token}", "dead purge": "-y", "delete": "-y",
    "fail": "{token} --reason x", "insert": "--task 1", "purge": "-y", "release": "{token}", "release-all": "-y",
    "renew": "{token}", "retry": "--completed --all", "run": "--max-tasks 1 --idle-timeout 0.01 -- true",
    "show": "{id}", "update": "--insert a=1", "wait": "--timeout 0",
}  # fmt: skip
"""What else each command is given."""
REFUSED = {2, fsqueue.QueueNotFound.exit_code}
NEEDS_MATCH = {"delete"}
"""These do nothing to a whole group: with `--match '.*'` they do."""
ONE_DOCUMENT = {"gc", "run", "lease", "update", "insert"}
"""Their output is no line for each queue."""


class Home(NamedTuple):
    """Two queues, a group with the queues a and b, and its gateway. Each queue has tasks in every state."""

    path: Path
    url: str
    given: dict[Path, dict[str, str]]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    group = Group.create(tmp_path / "g", shards=1, durability="none", max_attempts=1)
    queues = [Queue.create(tmp_path / name, shards=1, durability="none", max_attempts=1) for name in ("q", "q2")]
    given = {}
    for queue in (*queues, group["a"], group["b"]):
        queue.insert_many([1, 2, 3, 4])
        completed, dead, leased = queue.lease(3)
        completed.complete(1)
        dead.bury("x")
        given[queue.path] = {"id": queue.peek()[0].id, "token": leased.token}
    with gateways(tmp_path) as serve:
        yield Home(tmp_path, serve(group.path), given)


def call(run: Run, home: Home, command: str, *queues: Any, of: Path, more: str = "") -> Any:
    """Call a command with queues, and with arguments that suit the queue `of`."""
    rest = ARGUMENTS.get(command, "").format_map(home.given[of]).split()
    as_json = [] if command in ("run", "lease") else ["--json"]
    before, after = (rest, []) if "--" not in rest else (rest[: rest.index("--")], rest[rest.index("--") :])
    return run(*command.split(), *queues, *more.split(), *before, *as_json, *after, code=None)


def is_done(result: Any) -> bool:
    if result.exit_code in REFUSED:
        assert len(result.stderr.splitlines()) >= 1
        return False
    assert result.exit_code in (0, 9, 124), result.output
    return True


def named_in(result: Any) -> list[str]:
    return [json.loads(line)["queue"] for line in result.stdout.splitlines()]


@pytest.mark.parametrize("command", sorted(TABLE))
def test_a_command_takes_what_the_page_says(fsqueue_cli: Run, home: Home, command: str) -> None:
    q, q2, g, a, b = (home.path / name for name in ("q", "q2", "g", "g/a", "g/b"))
    if command != "update":  # it is for groups
        assert is_done(call(fsqueue_cli, home, command, q, of=q))
    takes = TABLE[command]
    result = call(fsqueue_cli, home, command, f"{home.url}/a", of=a)
    assert is_done(result) == takes.address, result.output
    if takes.address and command not in ONE_DOCUMENT and result.stdout:
        assert set(named_in(result)) == {f"{home.url}/a"}
    result = call(fsqueue_cli, home, command, g, "--match", "b", of=b)
    assert is_done(result) == takes.group, result.output
    if takes.group and command not in ONE_DOCUMENT and result.stdout and command != "wait":
        assert set(named_in(result)) == {str(b)}, "a alone is as it was"
    result = call(fsqueue_cli, home, command, g, of=a, more="--match .*" if command in NEEDS_MATCH else "")
    if command not in ("set", "update", "fsck"):  # what these do with a group, they do not do with its queues
        assert is_done(result) == takes.group, result.output
    if command == "delete":
        Queue.create(q, shards=1)
    result = call(fsqueue_cli, home, command, q, q2, of=q2)
    assert is_done(result) == takes.several, result.output
    if takes.several and command not in ONE_DOCUMENT:
        assert set(named_in(result)) <= {str(q), str(q2)}
        assert str(q2) in named_in(result)


SEVERAL = sorted(name for name, takes in TABLE.items() if takes.several)


@pytest.mark.parametrize("command", [name for name in SEVERAL if name not in ("run", "wait", "status")])
def test_where_one_of_several_queues_fails_the_others_are_done(fsqueue_cli: Run, home: Home, command: str) -> None:
    q, q2, none = home.path / "q", home.path / "q2", home.path / "none"
    result = call(fsqueue_cli, home, command, q, none, q2, of=q)
    assert result.exit_code == fsqueue.QueueNotFound.exit_code, result.output
    assert str(none) in result.stderr
    if command not in ONE_DOCUMENT:
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        assert [one["queue"] for one in lines if "error" in one and one["error"] is not None] == [str(none)]
        assert {str(q), str(q2)} <= {one["queue"] for one in lines}


# -- commands that change queues ------------------------------------------------------------------------------------


@pytest.fixture
def group(tmp_path: Path) -> Group:
    made = Group.create(tmp_path / "crawl", shards=1, durability="none")
    for name in ("a#fetch", "b#fetch", "c#parse"):
        made[name].insert_many([1, 2])
    return made


def test_pause_and_resume_name_each_queue(fsqueue_cli: Run, group: Group) -> None:
    said = fsqueue_cli("pause", group.path, "--match", ".*fetch", "--reason", "full").stdout.splitlines()
    assert [line.partition(" is paused")[0] for line in said] == [f"{group.path}/{name}#fetch" for name in "ab"]
    assert [group[name].paused is not None for name in ("a#fetch", "b#fetch", "c#parse")] == [True, True, False]
    told = [json.loads(line) for line in fsqueue_cli("resume", group.path, "--json").stdout.splitlines()]
    assert [(Path(one["queue"]).name, one["changed"]) for one in told] == [
        ("a#fetch", True), ("b#fetch", True), ("c#parse", False),
    ]  # fmt: skip
    again = fsqueue_cli("resume", group.path / "a#fetch")
    assert (again.stdout, again.stderr) == ("", f"fsqueue: {group.path}/a#fetch was not paused\n")


def test_a_pattern_that_nothing_matches_gets_a_hint_and_no_question(fsqueue_cli: Run, group: Group) -> None:
    for command in (["purge"], ["pause"], ["delete"], ["release-all"], ["gc"]):
        said = fsqueue_cli(*command, group.path, "--match", "fetch").stderr
        assert "has no queue whose whole name matches fetch. The group has a#fetch, b#fetch, c#parse." in said
    assert len([*group.queues()]) == 3


def test_purge_and_delete_of_a_group_say_it_for_each_queue(fsqueue_cli: Run, group: Group) -> None:
    said = fsqueue_cli("purge", group.path, "--match", ".*fetch", "--yes").stdout.splitlines()
    assert said == [
        f"{group.path}/{name}#fetch: dropped 2 unfinished tasks, 0 of them leased, and 0 dead letters" for name in "ab"
    ]
    assert [queue.name for queue in group.queues()] == ["c#parse"]
    assert "--match" in fsqueue_cli("delete", group.path, "--yes", code=2).stderr
    said = fsqueue_cli("delete", group.path, "--match", ".*fetch", "--yes", "--foreground").stdout.splitlines()
    assert [line.partition(": deleted, with 0 unf")[0] for line in said] == [
        f"{group.path}/{name}#fetch" for name in "ab"
    ]
    assert [queue.name for queue in group.queues(tasks_min=0)] == ["c#parse"]


def test_release_all_of_a_group_prints_a_sum(fsqueue_cli: Run, group: Group) -> None:
    for name in ("a#fetch", "c#parse"):
        group[name].lease(2)
    said = fsqueue_cli("release-all", group.path, "--yes").stdout.splitlines()
    assert said == [f"{group.path}/a#fetch: released 2", f"{group.path}/c#parse: released 2", "released 4 in 3 queues"]


def test_a_queue_named_twice_is_one(fsqueue_cli: Run, group: Group) -> None:
    group["a#fetch"].lease(2)
    told = fsqueue_cli("release-all", group.path / "a#fetch", group.path, "--match", ".*", "--yes", code=2)
    assert "--match is for the queues of a group" in told.stderr
    lines = fsqueue_cli("release-all", group.path / "a#fetch", group.path, "--yes", "--json").stdout.splitlines()
    assert [json.loads(line)["released"] for line in lines] == [2, 0, 0]


def test_what_needs_the_files_refuses_an_address(fsqueue_cli: Run, home: Home) -> None:
    for command in (
        ["release-all", "-y", "--offline"], ["gc", "--touch"], ["delete", "-y", "--foreground"],
        ["pause", "--match", "a"],
    ):  # fmt: skip
        said = fsqueue_cli(command[0], f"{home.url}/a", *command[1:], code=2).stderr
        assert home.url in said
    assert Group(home.path / "g")["a"].exists()


def test_a_queue_of_a_group_on_a_gateway_is_deleted_by_its_name(fsqueue_cli: Run, home: Home) -> None:
    fsqueue_cli("delete", f"{home.url}/", "--queue", "a", "-y")
    assert [queue.name for queue in Group(home.path / "g").queues(tasks_min=0)] == ["b"]
