"""Commands on a group whose filesystem is not mounted: each says so, and makes nothing in the bare mount point."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from fsqueue_cli.insert_source import Source
from fsqueue_cli.main import cli

from fsqueue import Group
from fsqueue.format.groups import GROUP_FILE
from fsqueue.storage import queue_file
from tests.groups.absent import Used, nothing_was_done, removed, unmounted

COMMANDS = (
    "insert {group}/open --task 1", "insert {group}/never --task 1", "run {group} -- true", "run {group}/never -- true",
    "wait {group} --timeout 60", "wait {group}/never --timeout 60",
    "status {group}", "status {group}/never", "ls {group}", "ls {group}/never",
    "lease {group}/open", "update {group} --insert open=1", "update {group}/open --insert never=1", "gc {group}",
    "fsck {group}", "delete {group} --queue open --yes", "delete {group}/open --yes", "purge {group}/open --yes",
    "pause {group}/open", "set {group}", "set {group}/open", "workers {group}/open", "results {group}/open",
    "dead list {group}/open", "serve {group} --listen 127.0.0.1:0", "ls {group} --min 0", "workers {group}",
    "results {group}", "dead list {group}", "dead retry {group}/open", "resume {group}/open", "delete {group} --yes",
    "show {group}/open 00000000000000000000000000000000.0",
)  # fmt: skip
BY_ITS_PATH = "{group}/open"
"""A queue that is there is used by its path, also if the file of its group is gone."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("away", [unmounted, removed])
def test_each_command_says_that_it_may_not_be_mounted(tmp_path: Path, away: Callable[[Used], None]) -> None:
    (tmp_path / "disk").mkdir()
    used = Used(tmp_path / "disk")
    away(used)
    for command in COMMANDS:
        done = CliRunner().invoke(cli, command.format(group=used.group.path).split())
        said = done.stderr
        assert done.exit_code == 5, (command, done.exit_code, said)
        assert "If it lies on another filesystem, check that this is mounted" in said, (command, said)
        assert ("is empty, as a mount point is without its filesystem" in said) == (away is unmounted), (command, said)
        assert ("fsqueue create /" in said or "create --group /" in said) == (away is removed), (command, said)
        assert done.stdout == "", command
    nothing_was_done(used, away)


def test_each_command_names_the_file_of_the_group_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    used = Used(tmp_path / "disk")
    (tmp_path / "disk" / "other").touch()  # no bare mount point
    (used.group.path / GROUP_FILE).unlink()
    before = sorted(used.group.path.rglob("*"))
    for command in COMMANDS:
        if command.startswith("fsck") or (BY_ITS_PATH in command and not command.startswith("update")):
            continue
        done = CliRunner().invoke(cli, command.format(group=used.group.path).split())
        said = done.stderr
        assert done.exit_code == 5, (command, done.exit_code, said)
        assert f"no {GROUP_FILE}: it is gone" in said, (command, said)
        assert f"fsqueue fsck --repair {used.group.path}" in said, (command, said)
        assert "fsqueue create" not in said, (command, said)
        assert done.stdout == "", command
    assert sorted(used.group.path.rglob("*")) == before
    assert CliRunner().invoke(cli, ["fsck", "--repair", str(used.group.path)]).exit_code == 0
    assert used.inserted() == {"open": 10, "other": 1}


@pytest.mark.parametrize("rest", [("--task", "1"), ("--lines",), ("--csv",)], ids=" ".join)
def test_an_insert_prints_no_count_if_the_group_goes_before_the_first_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: tuple[str, ...]
) -> None:
    (tmp_path / "disk").mkdir()
    used = Used(tmp_path / "disk")
    monkeypatch.setattr(queue_file, "FRESH_S", -1.0)
    before = Source.check_files
    monkeypatch.setattr(Source, "check_files", lambda source: (before(source), unmounted(used)))
    done = CliRunner().invoke(
        cli, ["insert", f"{used.group.path}/open", *rest], input=None if len(rest) > 1 else "a\n1\n"
    )
    assert done.exit_code == 5, done.output
    assert "Nothing was inserted" in done.stderr
    assert done.stdout == ""


def test_commands_over_a_group_go_on_without_a_queue_that_lost_its_file_and_end_with_5(tmp_path: Path) -> None:
    group = Group.create(tmp_path / "group", shards=2, durability="none")
    for name in ("a", "b", "c"):
        group[name].insert_many(range(3), commit="seed")
    for name in ("a", "c"):
        (group.path / name / "queue.jsonl").unlink()
    for command, shown in (("gc", ""), ("gc --touch", "touched"), ("gc --json", '"touched":0'), ("ls", "3  b")):
        verb, *options = command.split()
        done = CliRunner().invoke(cli, [verb, str(group.path), *options])
        assert done.exit_code == 5, (command, done.output)
        for name in ("a", "c"):
            assert f"fsqueue fsck --repair {group.path / name}\n" in done.stderr, (command, done.stderr)
        assert shown in done.stdout, command
        assert "nothing was to be cleaned up" not in done.stdout, command


def two_roots(tmp_path: Path) -> tuple[Group, Group]:
    """Two groups on two roots, with a queue of the same name, of which the second is not mounted."""
    one, two = (Group.create(tmp_path / root / "crawl", shards=2, durability="none") for root in ("r1", "r2"))
    one["fetch"].insert_many(range(3))
    two["fetch"].insert(1)
    return one, two


OF_TWO = (
    ("status", "fetch"), ("status --json", '"waiting":3'), ("status --fast", "fetch"), ("status --usage", "settings"),
    ("wait --timeout 0", "waiting 3"), ("wait --timeout 0 --json", '"waiting":3'), ("ls", "fetch"),
    ("ls --json", 'r1/crawl/fetch"'), ("ls --min 0", "fetch"), ("ls --state waiting", "fetch"),
    ("ls --state waiting --json", '"waiting"'), ("resume --json", '"changed"'), ("gc", ""),
    ("workers --json", '"workers"'),
)  # fmt: skip


@pytest.mark.parametrize(("command", "shown"), OF_TWO)
@pytest.mark.parametrize("member", ["", "/fetch"])
def test_of_two_roots_one_is_told_if_the_other_is_not_mounted(
    tmp_path: Path, command: str, shown: str, member: str
) -> None:
    one, two = two_roots(tmp_path)
    (tmp_path / "r2").rename(tmp_path / "away")
    (tmp_path / "r2").mkdir()
    verb, *options = command.split()
    options = [] if member and "--min" in options else options
    for order in ([one, two], [two, one]):
        done = CliRunner().invoke(cli, [verb, *(f"{group.path}{member}" for group in order), *options])
        assert done.exit_code == 5, done.output
        assert f"{two.path}" in done.stderr
        assert "check that this is mounted" in done.stderr
        assert shown in done.stdout
        if "--json" in options:
            lines = [json.loads(line) for line in done.stdout.splitlines()]
            assert [line["queue"] for line in lines if line.get("error")] == [f"{two.path}{member}"]
    assert not any((tmp_path / "r2").iterdir())


def test_a_file_for_prometheus_has_what_is_mounted_and_counts_the_rest(tmp_path: Path) -> None:
    one, two = two_roots(tmp_path)
    (tmp_path / "r2").rename(tmp_path / "away")
    file = tmp_path / "crawl.prom"
    done = CliRunner().invoke(cli, ["status", str(one.path), str(two.path), "--prometheus", str(file)])
    assert done.exit_code == 5, done.output
    assert "fetch" in file.read_text()
    assert "unreadable_queues 1" in file.read_text()


def test_a_watch_of_two_roots_ends_with_5_once_the_one_that_is_mounted_is_drained(tmp_path: Path) -> None:
    one, two = two_roots(tmp_path)
    (tmp_path / "r2").rename(tmp_path / "away")
    for task in one["fetch"].lease(3):
        task.complete()
    done = CliRunner().invoke(cli, ["status", str(one.path), str(two.path), "--watch", "--interval", "0"])
    assert done.exit_code == 5, done.output
    assert "completed 3 of 3" in done.stdout


def test_if_no_root_is_mounted_each_is_named(tmp_path: Path) -> None:
    one, two = two_roots(tmp_path)
    for root in ("r1", "r2"):
        (tmp_path / root).rename(tmp_path / f"{root}.away")
    for command in ("status", "status --watch", "status --usage", "wait", "ls"):
        verb, *options = command.split()
        done = CliRunner().invoke(cli, [verb, str(one.path), str(two.path), *options])
        assert done.exit_code == 5, (command, done.output)
        assert str(one.path) in done.stderr, command
        assert str(two.path) in done.stderr, command
        assert "completed" not in done.stdout.lower(), (command, done.stdout)


def test_queues_of_one_name_on_two_roots_are_told_apart(tmp_path: Path) -> None:
    groups = two_roots(tmp_path)
    groups[0]["parse"].insert(1)
    for command in ("ls", "ls --min 0", "ls --state waiting", "status"):
        verb, *options = command.split()
        done = CliRunner().invoke(cli, [verb, *(str(group.path) for group in groups), *options])
        assert done.exit_code == 0, (command, done.output)
        for group in groups:
            assert f"{group.path}/fetch" in done.stdout, (command, done.stdout)
        assert "parse" in done.stdout
