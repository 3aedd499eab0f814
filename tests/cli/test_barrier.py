"""barrier: set, list, cancel; and what other commands do with the tasks of barriers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import fsqueue
from fsqueue import Group, Queue
from tests.cli.conftest import Run
from tests.gateways import gateways

pytestmark = pytest.mark.once


@pytest.fixture
def group(tmp_path: Path) -> Group:
    made = Group.create(tmp_path / "g", shards=1)
    made["fetch"].insert(1)
    return made


@pytest.fixture
def at(group: Group, place_of: Callable[[Path], str]) -> str:
    """The path of the group, or its address."""
    return place_of(group.path)


def test_set_list_and_cancel(group: Group, at: str, fsqueue_cli: Run) -> None:
    done = fsqueue_cli("barrier", at, "--of", "fetch", "--of", "parse", "--then", 'report={"a": [1]}')
    [one] = group.barriers()
    assert done.stdout == f"{one.id}\n"
    assert "parse names no queue that is there" in done.stderr
    assert [task.payload for task in group["report"].tasks()] == [{"a": [1]}]
    two = json.loads(
        fsqueue_cli(
            "barrier", at, "--match", "f.*", "--then", "x=1", "--then", "x=2", "--on-failure", "wait", "--json"
        ).stdout
    )
    assert (two["state"], two["match"], two["of"], two["then"]) == ("waiting", "f.*", [], ["x", "x"])
    assert two["on_failure"] == "wait"
    listed = fsqueue_cli("barrier", at).stdout.splitlines()
    assert listed == [
        f"{one.id}  waiting    fetch, parse -> report (1 task)",
        f"{two['id']}  waiting    --match f.* -> x (2 tasks)",
    ]
    assert fsqueue_cli("barrier", at, "--cancel", two["id"]).stdout == "1\n"
    assert group["x"].is_drained()
    refused = fsqueue_cli("barrier", at, "--cancel", "nix", "--json", code=3)
    assert json.loads(refused.stdout) == {"id": "nix", "cancelled": False}
    assert "is not known" in refused.stderr
    states = [json.loads(line)["state"] for line in fsqueue_cli("barrier", at, "--json").stdout.splitlines()]
    assert states == ["waiting", "cancelled"]


def test_a_join_of_commits_and_the_inputs_of_its_task(group: Group, at: str, fsqueue_cli: Run, tmp_path: Path) -> None:
    group["parse"].insert_many([1, 2], commit="monday")
    of = ("barrier", at, "--of-commit", "parse=monday", "--then", "report=1")
    [one] = [json.loads(fsqueue_cli(*of, "--json").stdout)]
    assert (one["join"], one["of"], one["on_failure"], one["state"]) == (True, ["parse"], "wait", "waiting")
    assert fsqueue_cli("barrier", at).stdout == f"{one['id']}  waiting    tasks of parse -> report (1 task)\n"
    dropped = json.loads(fsqueue_cli(*of, "--on-failure", "drop", "--json").stdout)
    assert dropped["on_failure"] == "drop"
    fsqueue_cli("barrier", at, "--cancel", dropped["id"])
    for task in group["parse"].lease(2):
        task.complete({"y": task.payload * 10})
    fsqueue_cli("barrier", at)
    [task] = group["report"].lease()
    inputs = fsqueue_cli("results", f"{at}/report", "--inputs-of", task.id, "--json").stdout.splitlines()
    assert [json.loads(line)["result"] for line in inputs] == [{"y": 10}, {"y": 20}]
    assert not any("queue" in json.loads(line) for line in inputs)
    fsqueue_cli("results", f"{at}/report", "--inputs-of", task.id, "--where", "result.y=20", tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_text().count("completed") == 1
    refused = fsqueue_cli("results", f"{at}/report", "--inputs-of", group["fetch"].lease()[0].id, code=2)
    assert "has no inputs" in refused.stderr


def test_what_no_join_can_be_is_refused(group: Group, at: str, fsqueue_cli: Run, tmp_path: Path) -> None:
    alone = Queue.create(tmp_path / "q")
    for more, code, text in [
        (("--of-commit", "fetch"), 2, "--of-commit is QUEUE=NAME"),
        (("--of-commit", "fetch=x", "--of", "fetch"), 2, "Give one of"),
        (("--of-commit", "fetch=x"), 2, "Nothing was published under the name x"),
        (("--of-commit", "fetc=x"), 2, "fetc names no queue that is there"),
    ]:
        refused = fsqueue_cli("barrier", at, *more, "--then", "report=1", code=code)
        assert text in refused.stderr
    assert group.barriers() == []
    assert not group["fetc"].exists()
    task = "0" * 32 + ".0"
    for queue, more, text in [
        (group.path, (), "--inputs-of is for one queue"),
        (alone.path, (), "no queue of a group"),
        (group.path / "fetch", ("--dead",), "neither with --dead"),
        (group.path / "fetch", ("--latest-by", "x"), "nor with --latest-by"),
    ]:
        assert text in fsqueue_cli("results", queue, "--inputs-of", task, *more, code=2).stderr


def test_a_pattern_that_no_queue_matches_is_hinted_at(group: Group, at: str, fsqueue_cli: Run) -> None:
    """It may be mistyped, and the barrier has passed already."""
    done = fsqueue_cli("barrier", at, "--match", "fecth", "--then", "report=1")
    assert f"{at} has no queue whose whole name matches fecth" in done.stderr
    assert [one.state for one in group.barriers()] == ["fired"]
    assert "whole name" not in fsqueue_cli("barrier", at, "--match", "f.*", "--then", "report=1").stderr


@pytest.mark.parametrize("by", [("status",), ("gc",), ("wait", "--match", "fetch"), ("barrier",)])
def test_commands_let_it_pass(group: Group, fsqueue_cli: Run, by: tuple[str, ...]) -> None:
    barrier = group.barrier("fetch", then=("report", 1))
    [task] = group["fetch"].lease()
    task.complete()
    fsqueue_cli(by[0], group.path, *by[1:])
    assert barrier.state == "fired"
    refused = fsqueue_cli("barrier", group.path, "--cancel", barrier.id, code=3)
    assert refused.stdout == "0\n"
    assert "has passed before" in refused.stderr


def test_queues_that_are_drained_let_it_pass_at_once(group: Group, at: str, fsqueue_cli: Run) -> None:
    done = fsqueue_cli("barrier", at, "--of", "nobody", "--then", "report=1", "--json")
    assert json.loads(done.stdout)["state"] == "fired"
    fsqueue_cli("run", f"{at}/report", "--", "true")
    assert group["report"].status().completed == 1


@pytest.mark.parametrize(
    "wrong",
    [
        ("--of", "fetch"),
        ("--then", "report=1"),
        ("--match", "f"),
        ("--of", "fetch", "--match", "f", "--then", "report=1"),
        ("--of", "fetch", "--then", "report"),
        ("--of", "fetch", "--then", "report={"),
        ("--of", "fetch", "--then", "report=1", "--cancel", "x"),
        ("--of", "fetch", "--then", "fetch=1"),
        ("--match", "(", "--then", "report=1"),
    ],
)
def test_wrong_use(group: Group, at: str, fsqueue_cli: Run, wrong: tuple[str, ...]) -> None:
    assert "Nothing was done" in fsqueue_cli("barrier", at, *wrong, code=2).stderr or wrong[1] == "("
    assert group.barriers() == []


def test_where_there_is_no_group(tmp_path: Path, fsqueue_cli: Run) -> None:
    fsqueue_cli("barrier", tmp_path / "nix", code=fsqueue.GroupNotFound.exit_code)
    queue = Queue.create(tmp_path / "q")
    fsqueue_cli("barrier", queue.path, code=fsqueue.NotAQueue.exit_code)
    with gateways(tmp_path) as serve:
        assert "one queue" in fsqueue_cli("barrier", serve(queue.path), code=fsqueue.NotAQueue.exit_code).stderr


def test_none(group: Group, at: str, fsqueue_cli: Run) -> None:
    done = fsqueue_cli("barrier", at)
    assert (done.stdout, done.stderr) == ("", f"{at} has no barriers\n")
    assert fsqueue_cli("barrier", at, "--json").stdout == ""


def test_mv_cp_and_export_leave_the_tasks_of_barriers(group: Group, tmp_path: Path, fsqueue_cli: Run) -> None:
    """A copy of one would be due in the year 2286, and no barrier would know of it."""
    barrier = group.barrier("fetch", then=("report", 1))
    group["report"].insert(2, delay_s=1000)
    other = Queue.create(tmp_path / "other")
    for target in (f"{group.path}/moved", other.path):
        group["report"].insert(3)
        moved = fsqueue_cli("mv", f"{group.path}/report", target, "--json")
        assert json.loads(moved.stdout)["held"] == 1
        assert "1 task of barriers stayed" in moved.stderr
    group["report"].insert(4)
    exported = fsqueue_cli("export", f"{group.path}/report")
    assert [json.loads(line)["payload"] for line in exported.stdout.splitlines()] == [4]
    assert "1 task of barriers left out" in exported.stderr
    assert "1 task of barriers left out" in fsqueue_cli("cp", f"{group.path}/report", other.path).stderr
    assert sorted(task.payload for task in group["moved"].tasks()) == [2, 3]
    assert sorted(task.payload for task in other.tasks()) == [3, 4]
    [task] = group["fetch"].lease()
    task.complete()
    group.pass_barriers(at_once=True)
    assert barrier.state == "fired"
    assert sorted(task.payload for task in group["report"].lease(9)) == [1, 4]


def test_gc_touches_files_of_barriers_that_wait(group: Group, fsqueue_cli: Run) -> None:
    barrier = group.barrier("fetch", then=("report", 1))
    path = group.path / ".barriers" / f"{barrier.id}.waiting"
    os.utime(path, (0, 0))
    fsqueue_cli("gc", group.path, "--touch")
    assert path.stat().st_mtime > 0
    assert group.usage()["barriers"].files == 1


def test_fsck_knows_the_files_of_barriers(group: Group, fsqueue_cli: Run) -> None:
    group.barrier("fetch", then=("report", 1))
    fsqueue_cli("fsck", group.path)
    (group.path / ".barriers" / "note").write_text("x")
    found = fsqueue_cli("fsck", group.path, "--json", code=10)
    assert [json.loads(line)["kind"] for line in found.stdout.splitlines() if "kind" in line] == ["stray"]
    fsqueue_cli("fsck", group.path, "--repair", code=None)
    assert not (group.path / ".barriers" / "note").exists()
    fsqueue_cli("fsck", group.path)
