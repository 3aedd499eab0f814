"""status, wait, ls, show."""

from __future__ import annotations

import json
import subprocess
import time

import pytest
from fsqueue_cli import looking

from fsqueue import Queue, Status
from tests.cli.conftest import Run, Spawn
from tests.conftest import QueueFactory


@pytest.fixture
def mixed(queue_factory: QueueFactory) -> Queue:
    """Five waiting, one delayed, two leased, three completed, one dead."""
    queue = queue_factory()
    queue.insert_many(range(11))
    queue.insert("later", delay_s=3600)
    tasks = queue.lease(6)
    queue.complete(tasks[:3])
    tasks[3].bury("broken\nin detail: \x1b[31mred")
    return queue


def test_status(fsqueue_cli: Run, mixed: Queue) -> None:
    lines = dict(line.split() for line in fsqueue_cli("status", mixed.path).stdout.splitlines())
    assert lines == {"waiting": "5", "delayed": "1", "leased": "2", "completed": "3", "dead": "1", "inserted": "12"}
    assert json.loads(fsqueue_cli("status", mixed.path, "--json").stdout) == mixed.status().as_dict() | {"stuck": []}
    fast = json.loads(fsqueue_cli("status", mixed.path, "--json", "--fast").stdout)
    assert fast == mixed.status(exact=False).as_dict() | {"stuck": []}


@pytest.mark.once
def test_watch_ends_when_drained(spawn: Spawn, queue: Queue) -> None:
    queue.insert_many(range(4))
    process = spawn("status", queue.path, "--watch", "--interval", "0.1", "--json")
    assert process.stdout is not None
    assert process.stderr is not None
    looks = []
    for task in queue.poll():
        with task:
            looks.append(json.loads(process.stdout.readline()))
    looks += map(json.loads, process.stdout)
    assert (process.wait(60), process.stderr.read()) == (0, "")
    assert looks[-1]["completed"] == 4
    assert any(look["rate"] and look["left_s"] for look in looks)


@pytest.mark.once
def test_watch_prints_lines_where_there_is_no_terminal(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert(1)
    queue.lease()[0].complete()
    assert fsqueue_cli("status", queue.path, "--watch").stdout == "completed 1 of 1 (100.0%), waiting 0, leased 0\n"


def test_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(looking.time, "monotonic", lambda: now[0])
    pace = looking.Pace()
    assert pace.add(Status(waiting=100)) == (None, None)
    now[0] += 10
    rate, left_s = pace.add(Status(waiting=80, completed=18, dead=2))
    assert (rate, left_s) == (2.0, 40.0)
    assert looking.progress_line(Status(waiting=80, completed=18, dead=2), rate, left_s) == (
        "completed 18 of 100 (18.0%), waiting 80, leased 0, dead 2, 2.0/s, 40 s left"
    )
    now[0] += 10
    assert pace.add(Status(waiting=5)) == (None, None)  # purged
    for _ in range(100):
        now[0] += 10
        rate, left_s = pace.add(Status(waiting=5))
    assert (rate, left_s) == (0.0, None)


def test_wait_says_whether_it_ended_well(fsqueue_cli: Run, queue: Queue) -> None:
    assert fsqueue_cli("wait", queue.path).stdout == "completed 0 of 0, waiting 0, leased 0\n"
    queue.insert_many(range(2))
    result = fsqueue_cli("wait", queue.path, "--timeout", "0.2", "--json", code=124)
    assert json.loads(result.stdout)["waiting"] == 2
    one, two = queue.lease(2)
    one.complete()
    two.bury("no")
    fsqueue_cli("wait", queue.path, code=9)
    queue.purge_dead()
    fsqueue_cli("wait", queue.path, code=0)


@pytest.mark.once
def test_wait_ends_soon_after_the_last_task(spawn: Spawn, queue: Queue) -> None:
    queue.insert(1)
    [task] = queue.lease()
    process = spawn("wait", queue.path)
    time.sleep(1)
    assert process.poll() is None
    task.complete()
    assert process.wait(timeout=20) == 0


def test_ls(fsqueue_cli: Run, mixed: Queue) -> None:
    lines = fsqueue_cli("ls", mixed.path).stdout.splitlines()
    assert lines[0].split() == ["TASK", "STATE", "ATTEMPT", "SINCE", "PAYLOAD"]
    assert len(lines) == 9
    for state, count in {"waiting": 5, "delayed": 1, "leased": 2, "completed": 3, "dead": 1, "cancelled": 0}.items():
        assert len(fsqueue_cli("ls", mixed.path, "--state", state, "--json").stdout.splitlines()) == count
    assert len(fsqueue_cli("ls", mixed.path, "--limit", "3", "--json").stdout.splitlines()) == 3
    fsqueue_cli("ls", mixed.path, "--state", "lost", code=2)
    fsqueue_cli("ls", mixed.path, "--limit", "-1", code=2)


def test_ls_of_an_empty_queue_prints_nothing(fsqueue_cli: Run, queue: Queue) -> None:
    assert fsqueue_cli("ls", queue.path).output == ""


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


@pytest.mark.parametrize(("task", "code"), [("0" * 32 + ".0", 3), ("nonsense", 2), ("", 2), ("../../etc/passwd", 2)])
def test_show_of_no_task(fsqueue_cli: Run, queue: Queue, task: str, code: int) -> None:
    fsqueue_cli("show", queue.path, task, code=code)


@pytest.mark.once
def test_progress_is_rewritten_on_a_terminal(queue: Queue) -> None:
    import os
    import pty
    import sys

    queue.insert(1)
    main, side = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "fsqueue_cli", "wait", queue.path, "--timeout", "0.5"],
        stderr=side,
        stdout=subprocess.PIPE,
    )
    os.close(side)
    process.communicate(timeout=60)
    written = os.read(main, 4096).decode()
    os.close(main)
    assert written.startswith("\r\x1b[Kcompleted 0 of 1 (0.0%), waiting 1")
