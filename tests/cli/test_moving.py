"""`run --then-to` as it is typed, for a group and at its address; and processes of functions that are replaced."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fsqueue import Group, Queue
from tests.cli.conftest import Run

pytestmark = pytest.mark.once
SCRIPT = ("--", "sh", "-c", '[ "$1" != 2 ] || exit 75', "sh", "{}")


def test_a_task_moves_to_the_queue_that_is_named(
    fsqueue_cli: Run, tmp_path: Path, place_of: Callable[[Path], str]
) -> None:
    group = Group.create(tmp_path / "group")
    group["small"].insert_many([1, 2, 3])
    place = place_of(group.path)
    done = fsqueue_cli("run", f"{place}/small", "--then-to", "big", "--on", "oom,exit=75", "--on", "timeout", *SCRIPT)
    assert done.stderr.count("hint: --on timeout moves no task: without --task-timeout, no attempt times out") == 1
    assert "failed: exit status 75; the task moved to big" in done.stderr
    assert "2 completed, 1 moved" in done.stderr
    [info] = group["big"].tasks()
    assert info.payload == 2
    [old] = group["small"].tasks("cancelled")
    shown = json.loads(fsqueue_cli("show", f"{group.path}/big", info.id, "--json").stdout)["lineage"]
    assert [(one["queue"], one["id"], one["op"]) for one in shown["ancestors"]] == [("small", old.id, "cancel")]


def test_programs_get_the_number_of_tasks_that_moved(fsqueue_cli: Run, tmp_path: Path) -> None:
    group = Group.create(tmp_path / "group")
    group["small"].insert(2)
    done = fsqueue_cli("run", f"{group.path}/small", "--then-to", "big", "--on", "exit=75", "--json", *SCRIPT)
    found = json.loads(done.stdout)
    assert (found["moved"], found["failed"], found["completed"]) == (1, 0, 0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--then-to", "big"], "give both"),
        (["--on", "oom"], "give both"),
        (["--then-to", "big", "--on", "memory"], "takes oom, timeout, exit=N"),
        (["--then-to", "big", "--on", "oom,"], "not ''"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(fsqueue_cli: Run, tmp_path: Path, options: list[str], says: str) -> None:
    group = Group.create(tmp_path / "group")
    group["small"].insert(2)
    assert says in fsqueue_cli("run", f"{group.path}/small", *options, *SCRIPT, code=2).stderr
    assert group["small"].status().waiting == 1


def test_a_path_is_no_name_of_the_queue_to_move_to(fsqueue_cli: Run, tmp_path: Path) -> None:
    group = Group.create(tmp_path / "group")
    group["small"].insert(2)
    path = f"{group.path}/big"
    fsqueue_cli("run", f"{group.path}/small", "--then-to", path, "--on", "oom", *SCRIPT, code=2)
    assert group["small"].status().waiting == 1


def test_processes_of_functions_are_replaced(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many(range(4))
    options = ("--recycle-after", 2, "--recycle-rss", "4G", "--log-json", "--call", "math:sqrt")
    events = [json.loads(line) for line in fsqueue_cli("run", queue.path, *options).stderr.splitlines()]
    assert [one["tasks"] for one in events if one["event"] == "recycled"][:1] == [2]
    assert queue.status().completed == 4
