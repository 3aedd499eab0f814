"""ls, show."""

from __future__ import annotations

import json

import pytest
from fsqueue_cli.options import PRIORITY

from fsqueue import Queue, Task
from tests.cli.conftest import Run


def test_ls(fsqueue_cli: Run, mixed: Queue) -> None:
    lines = fsqueue_cli("ls", mixed.path).stdout.splitlines()
    assert lines[0].split() == ["TASK", "STATE", "ATTEMPT", "SINCE", "PAYLOAD"]
    assert len(lines) == 9
    for state, count in {"waiting": 5, "delayed": 1, "leased": 2, "completed": 3, "dead": 1, "cancelled": 0}.items():
        assert len(fsqueue_cli("ls", mixed.path, "--state", state, "--json").stdout.splitlines()) == count
    assert len(fsqueue_cli("ls", mixed.path, "--limit", "3", "--json").stdout.splitlines()) == 3
    assert fsqueue_cli("ls", mixed.path, "--limit", "0").output == ""
    fsqueue_cli("ls", mixed.path, "--state", "lost", code=2)
    fsqueue_cli("ls", mixed.path, "--limit", "-1", code=2)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (None, "no unfinished tasks; --state lists finished ones"),
        ("leased", "no leased tasks"),
        ("completed", "no completed tasks on record"),
        ("retrying", "no retrying tasks"),
    ],
)
def test_ls_without_tasks_says_so_on_standard_error(
    fsqueue_cli: Run, queue: Queue, state: str | None, said: str
) -> None:
    more = () if state is None else ("--state", state)
    done = fsqueue_cli("ls", queue.path, *more)
    assert (done.stdout, done.stderr) == ("", f"{queue.path} has {said}\n")
    assert fsqueue_cli("ls", queue.path, *more, "--json").output == ""


def test_a_payload_cannot_drive_the_terminal(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert("one\ntwo\x1b]0;title\x07\x9b" + "x" * 500)
    [_, line] = fsqueue_cli("ls", queue.path).stdout.splitlines()
    assert r"one\ntwo\x1b]0;title\x07\x9b" in line
    assert line.endswith("…")
    assert len(line) < 200


def test_show(fsqueue_cli: Run, mixed: Queue) -> None:
    for state in ("waiting", "delayed", "leased", "completed", "dead"):
        task = next(mixed.tasks(state))
        text = fsqueue_cli("show", mixed.path, task.id).stdout
        assert f"state         {state}\n" in text
        assert "\x1b" not in text
        shown = json.loads(fsqueue_cli("show", mixed.path, task.id, "--json").stdout)
        assert shown["state"] == state
        assert [move["op"] for move in shown["history"]] == [move.op for move in mixed.history(task.id)]


def test_show_takes_a_token_and_tells_the_whole_story(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert({"a": 1})
    [task] = queue.lease()
    task.fail("first line\nsecond line", delay_s=0)
    text = fsqueue_cli("show", queue.path, task.token).stdout
    story = text.partition("history\n")[2]
    assert [line.split()[2] for line in story.splitlines() if line.startswith("  20")] == ["insert", "lease", "fail"]
    assert "first line" in story
    assert "second line" in story


@pytest.mark.parametrize(("task", "code"), [("0" * 32 + ".0", 13), ("nonsense", 2), ("", 2), ("../../etc/passwd", 2)])
def test_show_of_no_task(fsqueue_cli: Run, queue: Queue, task: str, code: int) -> None:
    fsqueue_cli("show", queue.path, task, code=code)


def test_status_shows_what_the_files_take(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many(range(3), batch_tasks=1)
    lines = fsqueue_cli("status", queue.path, "--usage").stdout.splitlines()
    table = lines[lines.index(next(line for line in lines if "DIRECTORIES" in line)) :]
    assert table[0].split() == ["q", "FILES", "DIRECTORIES", "BYTES"]
    assert [line.split()[:2] for line in table[1:]][:2] == [["settings", "2"], ["tasks", "3"]]
    found = json.loads(fsqueue_cli("status", queue.path, "--usage", "--json").stdout)
    assert found["usage"]["tasks"]["files"] == 3
    assert found["usage"]["all"]["bytes"] == queue.usage()["all"].bytes
    assert "--watch" in fsqueue_cli("status", queue.path, "--usage", "--watch", code=2).stderr


def test_status_shows_waiting_tasks_by_priority(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many(Task(number, priority=number) for number in range(10))
    queue.insert_many([Task(1, priority="5"), Task(1, priority='"x'), Task(1, priority="\x1b[2J\n"), 7])
    lines = fsqueue_cli("status", queue.path, "--priorities").stdout.splitlines()
    table = lines[lines.index(next(line for line in lines if "FIRST PRIORITY" in line)) :]
    assert table[0].split() == ["q", "FIRST", "PRIORITY", "LAST", "PRIORITY", "WAITING"]
    assert table[-1].split() == ["no", "priority", "1"]
    assert len(table) == 10
    assert "\x1b" not in "".join(lines)
    found = json.loads(fsqueue_cli("status", queue.path, "--priorities", "--fast", "--json").stdout)
    assert found["priorities"] == [each.as_dict() for each in queue.waiting_by_priority()]
    assert found["priorities"][-1] == {"first": None, "last": None, "waiting": 1}
    assert "--watch" in fsqueue_cli("status", queue.path, "--priorities", "--watch", code=2).stderr


@pytest.mark.parametrize("given", [5, -5, "5", "-5", "a", "", '"', '"5"', "1.5", "ü"])
def test_a_priority_is_shown_as_up_to_takes_it(fsqueue_cli: Run, queue: Queue, given: str | int) -> None:
    task = queue.insert("x", priority=given)
    shown = next(
        line for line in fsqueue_cli("show", queue.path, task.id).stdout.splitlines() if line.startswith("priority")
    )
    assert PRIORITY.convert(shown[14:], None, None) == given


def test_retrying_are_those_that_come_back_after_a_failed_attempt(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many(range(4))
    first, second, third, fourth = queue.lease(4)
    first.fail("later", delay_s=1000)
    second.bury("never")
    third.complete()
    fourth.fail("once", delay_s=0)
    assert [task.id for task in queue.lease()] == [fourth.id], "which is being tried again"
    found = [
        json.loads(line) for line in fsqueue_cli("ls", queue.path, "--state", "retrying", "--json").stdout.splitlines()
    ]
    assert {(task["id"], task["state"]) for task in found} == {(first.id, "delayed")}
    assert len(fsqueue_cli("ls", queue.path, "--state", "retrying", "--limit", "1").stdout.splitlines()) == 2
