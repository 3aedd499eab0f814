"""`fsqueue retry`: completed tasks, inserted again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group, Queue
from tests.cli.conftest import Run
from tests.gateways import gateways
from tests.support import QueueFactory


def fill(queue: Queue, *given: Any) -> list[str]:
    """Complete tasks with these payloads, each with how long it is as the result."""
    queue.insert_many(given, batch_tasks=1)
    ids = {}
    while tasks := queue.lease(100):
        for task in tasks:
            ids[str(task.payload)] = task.id
            task.complete({"loss": len(str(task.payload))})
    return [ids[str(payload)] for payload in given]


def test_a_condition_chooses_and_repeating_changes_nothing(fsqueue_cli: Run, queue: Queue) -> None:
    fill(queue, "a", "bb", "ccc")
    command = ("retry", queue.path, "--completed", "--where", "result.loss>1")
    assert fsqueue_cli(*command).stdout == "2\n"
    assert sorted(task.payload for task in queue.tasks()) == ["bb", "ccc"]
    again = fsqueue_cli(*command)
    assert again.stdout == "0\n"
    assert "2 tasks left out: retried before" in again.stderr
    assert json.loads(fsqueue_cli(*command, "--json").stdout) == {
        "queue": str(queue.path), "retried": 0, "repeated": 2, "unkept": 0, "unkept_ids": []
    }  # fmt: skip


def test_show_of_the_old_one_tells_the_new_one(fsqueue_cli: Run, queue: Queue) -> None:
    [old] = fill(queue, "a")
    assert "settled" not in json.loads(fsqueue_cli("show", queue.path, old, "--json").stdout)
    fsqueue_cli("retry", queue.path, old, "--completed")
    [new] = queue.tasks()
    shown = json.loads(fsqueue_cli("show", queue.path, old, "--json").stdout)
    assert (shown["state"], shown["settled"], shown["retried_as"]) == ("completed", "retried", new.id)
    assert f"retried as    {new.id}\n" in fsqueue_cli("show", queue.path, old).stdout
    assert f"retry of      {old}\n" in fsqueue_cli("show", queue.path, new.id).stdout
    assert json.loads(fsqueue_cli("show", queue.path, new.id, "--json").stdout)["retry_of"] == old
    assert "retry_of" not in shown


def test_show_of_the_new_one_tells_the_old_one(fsqueue_cli: Run, queue: Queue) -> None:
    [old] = fill(queue, "a")
    fsqueue_cli("retry", queue.path, old, "--completed")
    [new] = queue.tasks()
    shown = fsqueue_cli("show", queue.path, new.id).stdout
    assert f"  insert    repeats {old}\n" in shown
    [move] = json.loads(fsqueue_cli("show", queue.path, new.id, "--json").stdout)["history"]
    assert move["repeats"] == old
    assert "repeats" not in fsqueue_cli("show", queue.path, old).stdout


def test_tasks_without_a_payload_are_named_with_what_to_do(fsqueue_cli: Run, queue: Queue) -> None:
    [_, long] = fill(queue, "a", "x" * 2000)
    done = fsqueue_cli("retry", queue.path, "--completed", "--all", code=1)
    assert done.stdout == "1\n"
    assert f"{long}: its payload is not kept" in done.stderr
    assert "1 task cannot be retried: the payload is not kept. Insert them anew" in done.stderr
    assert "fsqueue set Q keep_payloads=BYTES" in done.stderr
    told = fsqueue_cli("retry", queue.path, "--completed", "--all", "--json", code=1)
    found = json.loads(told.stdout)
    assert found == {"queue": str(queue.path), "retried": 0, "repeated": 1, "unkept": 1, "unkept_ids": [long]}


def test_tasks_that_are_unknown_are_named(fsqueue_cli: Run, queue: Queue) -> None:
    [known] = fill(queue, "a")
    unknown = f"{'0' * 32}.0"
    done = fsqueue_cli("retry", queue.path, unknown, "-", "--completed", code=13, input=f"{known}\n")
    assert done.stdout == "1\n"
    assert f"{unknown}: neither the queue nor its history has this task" in done.stderr
    told = json.loads(fsqueue_cli("retry", queue.path, unknown, "--completed", "--json", code=13).stdout)
    assert (told["retried"], told["unkept"], told["unknown"]) == (0, 0, [unknown])


def test_a_queue_without_a_history_says_so(fsqueue_cli: Run, queue_factory: QueueFactory) -> None:
    queue = queue_factory(keep_history=False)
    fill(queue, "a")
    done = fsqueue_cli("retry", queue.path, "--completed", "--all")
    assert (done.stdout, "forgets completed tasks at once" in done.stderr) == ("0\n", True)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--all",), "--all is for --completed"),
        (("--state", "completed"), "No such option '--state'"),
        (("--completed",), "or else --all"),
        (("--completed", "--all", "--where", "result.loss>1"), "or else --all"),
        (("--completed", "--where", "loss~x"), "is not a condition"),
        (("--completed", "nonsense"), "not a task id"),
    ],
)
def test_wrong_use_changes_nothing(fsqueue_cli: Run, queue: Queue, more: tuple[str, ...], said: str) -> None:
    fill(queue, "a")
    assert said in fsqueue_cli("retry", queue.path, *more, code=2).stderr
    assert queue.status().inserted == 1


@pytest.mark.parametrize("more", [(), ("--where", "result.loss>0")])
def test_no_ids_on_standard_input_are_none_and_not_all(fsqueue_cli: Run, queue: Queue, more: tuple[str, ...]) -> None:
    """As from a search that has found nothing."""
    fill(queue, "a", "b")
    assert fsqueue_cli("retry", queue.path, "-", "--completed", *more, input="\n").stdout == "0\n"
    assert queue.status().inserted == 2


def test_ids_and_conditions_choose_what_meets_both(fsqueue_cli: Run, queue: Queue) -> None:
    ids = fill(queue, "a", "bb", "ccc")
    fsqueue_cli("retry", queue.path, *ids[:2], "--completed", "--where", "result.loss>1")
    assert [task.payload for task in queue.tasks()] == ["bb"]


def test_an_unknown_task_counts_for_more_than_payloads_that_are_not_kept(fsqueue_cli: Run, queue: Queue) -> None:
    ids, unknown = fill(queue, *(f"{number:2000}" for number in range(23))), f"{'0' * 32}.0"
    done = fsqueue_cli("retry", queue.path, *ids, unknown, "--completed", code=13)
    assert done.stdout == "0\n"
    assert done.stderr.count(": its payload is not kept\n") == 20
    assert "ids not shown: 3\n" in done.stderr
    assert "23 tasks cannot be retried" in done.stderr
    assert f"{unknown}: neither the queue nor its history" in done.stderr


def test_without_completed_it_retries_what_failed(fsqueue_cli: Run, queue: Queue) -> None:
    fill(queue, "a")
    queue.insert_many(["b", "cc", "ddd"], batch_tasks=1)
    ids = {}
    for task in queue.lease(3):
        ids[task.payload] = task.id
        task.bury(f"too long: {len(task.payload)}")
    assert fsqueue_cli("retry", queue.path, ids["b"]).stdout == "1\n"
    assert fsqueue_cli("retry", queue.path, "--where", "error~3").stdout == "1\n"
    assert json.loads(fsqueue_cli("retry", queue.path, "--json").stdout)["retried"] == 1
    assert sorted(task.payload for task in queue.tasks()) == ["b", "cc", "ddd"]
    assert queue.status().completed == 1


@pytest.mark.parametrize("place", ["queue", "group", "several", "address", "group's address"])
def test_completed_tasks_are_retried_only_if_that_is_said_and_which(
    fsqueue_cli: Run, tmp_path: Path, place: str
) -> None:
    group = Group.create(tmp_path / "g", shards=1, durability="none")
    queues = [group["a"], group["b"]] if place in ("group", "several", "group's address") else [group["a"]]
    for queue in queues:
        fill(queue, "x", "yy")
        queue.insert("failed")
        queue.lease()[0].bury("no")

    def waiting(*more: str, code: int = 0) -> list[list[Any]]:
        fsqueue_cli("retry", *given, *more, code=code)
        return [sorted(task.payload for task in queue.tasks()) for queue in queues]

    with gateways(tmp_path) as serve:
        url = serve(group.path)
        given = {
            "queue": [group["a"].path], "group": [group.path], "several": [queue.path for queue in queues],
            "address": [f"{url}/a"], "group's address": [url],
        }[place]  # fmt: skip
        for wrong in (["--completed"], ["--all"], ["--completed", "--all", "--where", "result.loss>1"]):
            assert waiting(*wrong, code=2) == [[] for _ in queues]
        assert waiting() == [["failed"] for _ in queues]
        assert waiting() == [["failed"] for _ in queues]
        assert waiting("--completed", "--where", "result.loss>1") == [["failed", "yy"] for _ in queues]
        assert waiting("--completed", "--all") == [["failed", "x", "yy"] for _ in queues]
