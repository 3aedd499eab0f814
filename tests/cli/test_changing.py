"""`change` as it is typed: which tasks are meant, what they get, and what is said of the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fsqueue import Group, Queue
from tests.cli.conftest import Run

pytestmark = pytest.mark.once
NOBODY = f"{'0' * 32}.0"


def test_tasks_are_named_by_ids_keys_and_conditions(
    fsqueue_cli: Run, tmp_path: Path, place_of: Callable[[Path], str]
) -> None:
    """At a path, and at an address."""
    queue = Group.create(tmp_path / "group")["q"]
    first = queue.insert({"site": "north"}, key="report 7")
    second, third = queue.insert({"site": "south"}), queue.insert({"site": "north"})
    place = f"{place_of(tmp_path / 'group')}/q"
    assert fsqueue_cli("change", place, "report 7", second.id, "--priority", 3).stdout == "2\n"
    assert fsqueue_cli("change", place, "-", "--priority", '"3"', input=f"{third.id}\n").stdout == "1\n"
    assert {task.id: task.priority for task in queue.tasks()} == {first.id: 3, second.id: 3, third.id: "3"}
    assert fsqueue_cli("change", place, "--where", "payload.site=north", "--no-priority").stdout == "2\n"
    assert {task.id: task.priority for task in queue.tasks()} == {first.id: None, second.id: 3, third.id: None}
    fsqueue_cli("change", place, first.id, second.id, "--where", "payload.site=south", "--delay", "1h")
    assert {task.id for task in queue.tasks("delayed")} == {second.id}


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2040-01-01T00:00Z", 2_208_988_800), ("2208988800", 2_208_988_800),
        ("2040-01-01T01:00:00.5+01:00", 2_208_988_800.5),
    ],
)  # fmt: skip
def test_times_are_read_as_iso_8601_and_as_unix_seconds(fsqueue_cli: Run, queue: Queue, text: str, at: float) -> None:
    ref = queue.insert(1)
    fsqueue_cli("change", queue.path, ref.id, "--at", text)
    assert queue.task(ref.id).available_at == at


def test_what_is_not_changed_is_named_with_the_reason(fsqueue_cli: Run, queue: Queue) -> None:
    refs = [queue.insert(number, key=str(number)) for number in range(3)]
    held, done = queue.lease(2)
    done.complete()
    words = [ref.id for ref in refs]
    found = fsqueue_cli("change", queue.path, *words, NOBODY, "no such key", "--delay", "5", "--json")
    assert json.loads(found.stdout) == {
        "changed": [refs[2].id], "leased": [held.id], "ended": [done.id], "unknown": [NOBODY, "no such key"],
    }  # fmt: skip
    for sentence in (
        f"{held.id} is leased, and stays as it is: a worker holds it. 'fsqueue workers' tells which",
        f"{done.id} (completed) stays as it is: it has ended",
        "no unfinished task has the key 'no such key'",
        f"{NOBODY}: neither the queue nor its history has this task",
    ):
        assert sentence in found.stderr
    assert fsqueue_cli("change", queue.path, held.id, done.id, "--delay", "5", code=3).stdout == "0\n"
    assert fsqueue_cli("change", queue.path, NOBODY, "--delay", "5", code=13).stdout == "0\n"
    assert fsqueue_cli("change", queue.path, "no such key", "--delay", "5", code=13).stdout == "0\n"
    assert fsqueue_cli("change", queue.path, "--where", "payload=77", "--delay", "5", code=3).stdout == "0\n"


@pytest.mark.parametrize(
    "words",
    [
        (NOBODY,), ("--priority", 1), (NOBODY, "--priority", 1, "--no-priority"),
        (NOBODY, "--delay", 1, "--at", "2040-01-01"), (NOBODY, "--at", "tomorrow"), (NOBODY, "--at", "-5"),
        (NOBODY, "--at", "1969-01-01"), (NOBODY, "--at", "9" * 400), (NOBODY, "--delay", "-1"),
        (NOBODY, "--priority", '"'), (NOBODY, "--priority", ""),
    ],
)  # fmt: skip
def test_wrong_use_changes_nothing(fsqueue_cli: Run, queue: Queue, words: tuple[object, ...]) -> None:
    ref = queue.insert(1)
    found = fsqueue_cli("change", queue.path, *words, code=2)
    assert "Traceback" not in found.stderr
    assert queue.task(ref.id).version == next(queue.tasks()).version
    assert queue.history(ref.id)[-1].op == "insert"


def test_show_says_what_was_changed(fsqueue_cli: Run, queue: Queue) -> None:
    task = queue.insert("x")
    fsqueue_cli("change", queue.path, task.id, "--priority", "5")
    fsqueue_cli("change", queue.path, task.id, "--no-priority")
    fsqueue_cli("change", queue.path, task.id, "--delay", "1h")
    history = fsqueue_cli("show", queue.path, task.id).stdout.partition("history\n")[2].splitlines()
    assert [line.split()[2:] for line in history][:3] == [
        ["insert"],
        ["change", "priority", "5"],
        ["change", "its", "priority"],
    ]
    assert history[3].split()[2:4] == ["change", "available_at"]
    assert [move.priority for move in queue.history(task.id)] == [None, 5, None, None]
