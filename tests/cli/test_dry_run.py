"""run --dry-run: what would be done with the first tasks is printed, and nothing is done."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group, Queue
from tests.cli.conftest import Run

pytestmark = pytest.mark.once


def files_of(queue: Queue) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(queue.path.rglob("*")) if path.is_file()}


def test_the_commands_are_those_that_would_run(fsqueue_cli: Run, queue: Queue, tmp_path: Path) -> None:
    """As a shell takes them: each command, typed, has the arguments that `run` gives it."""
    queue.insert_many([{"tile": 7, "name": "a b.tif"}, {"tile": 12, "name": "$(x)'\".tif"}], batch_tasks=2)
    command = ["printf", "%s,", "{tile:04d}", "{name.}", "{{tile}}", "{#}"]
    before = files_of(queue)
    shown = fsqueue_cli("run", queue.path, "--dry-run", "--", *command)
    assert files_of(queue) == before
    first, second = (shlex.split(line) for line in shown.stdout.splitlines())
    ids = [info.id for info in queue.peek(2)]
    assert first == ["printf", "%s,", "0007", "a b", "{tile}", ids[0]]
    assert second == ["printf", "%s,", "0012", "$(x)'\"", "{tile}", ids[1]]
    assert shown.stderr == ""
    assert queue.status().waiting == 2


def test_what_is_on_standard_input_is_shown(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert({"a": "it's"})
    assert fsqueue_cli("run", queue.path, "--dry-run", "--", "cat").stdout == """cat <<<'{"a":"it'"'"'s"}'\n"""
    assert fsqueue_cli("run", queue.path, "--dry-run", "--stdin", "--", "cat", "{a}").stdout.startswith("cat ")


def test_ten_are_shown_or_as_many_as_asked_for(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many(range(25))
    shown = fsqueue_cli("run", queue.path, "--dry-run", "--", "echo", "{}")
    assert len(shown.stdout.splitlines()) == 10
    assert "15 more tasks not shown: --max-tasks says how many are" in shown.stderr
    shown = fsqueue_cli("run", queue.path, "--dry-run", "--max-tasks", 25, "--", "echo", "{}")
    assert sorted(shown.stdout.splitlines()) == sorted(f"echo {number}" for number in range(25))
    assert shown.stderr == ""


def test_a_command_for_many_tasks_is_shown_with_their_lines(fsqueue_cli: Run, queue: Queue) -> None:
    """As a shell takes it: typed, the command gets these lines on standard input."""
    queue.insert_many(["it's", None, b"\xff\n"])
    before, ids = files_of(queue), [info.id for info in queue.peek(3)]
    options = ("run", queue.path, "--dry-run", "--tasks-per-command", 2, "--")
    shown = fsqueue_cli(*options, "cat", "a b", "{{x}}").stdout.splitlines()
    assert [line for line in shown if not line.startswith('{"id"')] == ["cat 'a b' '{x}' <<'END'", "END"] * 2
    lines = [json.loads(line) for line in shown if line.startswith('{"id"')]
    common = {"attempt": 1, "queue": str(queue.path)}
    payloads: list[dict[str, Any]] = [{"payload": "it's"}, {"payload": None}, {"b64": "/wo="}]
    assert lines == [{"id": id_} | common | payload for id_, payload in zip(ids, payloads, strict=True)]
    shown = fsqueue_cli("run", queue.path, "--dry-run", "--json", "--max-tasks", 3, *options[3:], "cat").stdout
    programs = [json.loads(line) for line in shown.splitlines()]
    assert programs == [{"command": ["cat"], "tasks": lines[:2]}, {"command": ["cat"], "tasks": lines[2:]}]
    assert files_of(queue) == before


@pytest.mark.parametrize("payload", [{"n": 1}, b"\xff\n"], ids=["an object", "bytes"])
def test_programs_get_each_task(fsqueue_cli: Run, queue: Queue, payload: Any) -> None:
    ref = queue.insert(payload)
    [line] = fsqueue_cli("run", queue.path, "--dry-run", "--json", "--", "cat", "{#}").stdout.splitlines()
    found = json.loads(line)
    assert found.pop("b64" if isinstance(payload, bytes) else "payload") == (
        "/wo=" if payload == b"\xff\n" else payload
    )
    assert found == {"queue": str(queue.path), "id": ref.id, "command": ["cat", ref.id], "call": None, "stdin": True}


def test_a_payload_that_does_not_suit_is_named(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many([{"tile": 1}, {"tile": "x"}, 5])
    shown = fsqueue_cli("run", queue.path, "--dry-run", "--", "echo", "{tile:d}", code=1)
    assert shown.stdout == "echo 1\n"
    assert shown.stderr.count("would fail: ") == 2
    assert queue.status().waiting == 3


@pytest.mark.parametrize(
    ("payload", "code"), [("a\0b", 1), (131_072 * "x", 1), (131_071 * "x", 0)], ids=["NUL", "large", "not large"]
)
def test_a_payload_that_can_be_no_argument_is_named(fsqueue_cli: Run, queue: Queue, payload: str, code: int) -> None:
    queue.insert(payload)
    shown = fsqueue_cli("run", queue.path, "--dry-run", "--", "true", "{}", code=code)
    fsqueue_cli("run", queue.path, "--max-attempts", "1", "--", "true", "{}", code=9 if code else 0)
    reasons = [letter.reason for letter in queue.dead()]
    assert [reason in shown.stderr for reason in reasons] == [True] * code
    assert len(shown.stdout.splitlines()) == 1 - code


def test_functions_are_named_with_the_payload(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert({"x": 4})
    assert fsqueue_cli("run", queue.path, "--dry-run", "--call", "math:sqrt").stdout == 'math:sqrt {"x":4}\n'


def test_of_a_group_and_at_an_address(fsqueue_cli: Run, tmp_path: Path, place_of: Callable[[Path], str]) -> None:
    group = Group.create(tmp_path / "group")
    group["a"].insert(1)
    group["b"].insert(2)
    place = place_of(group.path)
    shown = fsqueue_cli("run", place, "--dry-run", "--", "echo", "{}").stdout
    assert shown == "echo 1\necho 2\n"
    assert fsqueue_cli("run", place, "--match", "b", "--dry-run", "--", "echo", "{}").stdout == "echo 2\n"
    assert group.status().status.waiting == 2


@pytest.mark.parametrize("away", ["missing", "no queue", "upstream"])
def test_a_queue_that_is_not_there_is_named(fsqueue_cli: Run, queue: Queue, tmp_path: Path, away: str) -> None:
    """As `run` names it, which ends with the same code when all else is drained."""
    queue.insert(1)
    lost = tmp_path / "lost"
    if away == "no queue":
        lost.mkdir()
    more = ("--upstream", lost) if away == "upstream" else (lost,)
    shown = fsqueue_cli("run", queue.path, *more, "--dry-run", "--", "true", code=5)
    assert shown.stdout == "true <<<1\n"
    ran = fsqueue_cli("run", queue.path, *more, "--", "true", code=5)
    [named] = shown.stderr.splitlines()
    assert named.removesuffix(": its tasks are not shown") in ran.stderr
    assert str(lost) in named


@pytest.mark.parametrize(
    "options",
    [("--then-to", "big", "--on", "foo"), ("--then-to", "big", "--on", "oom"), ("--tag", "--output", "ungrouped")],
    ids=" ".join,
)
def test_what_run_refuses_is_refused(fsqueue_cli: Run, queue: Queue, options: tuple[str, ...]) -> None:
    """`--then-to`: the queue is in no group."""
    queue.insert(1)
    shown = fsqueue_cli("run", queue.path, *options, "--dry-run", "--", "true", code=2)
    assert shown.stdout == ""
    assert shown.stderr == fsqueue_cli("run", queue.path, *options, "--", "true", code=2).stderr


def test_a_payload_that_does_not_suit_counts_before_a_queue_that_is_not_there(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path
) -> None:
    queue.insert("x")
    said = fsqueue_cli("run", tmp_path / "lost", queue.path, "--dry-run", "--", "echo", "{:d}", code=1).stderr
    assert "would fail: " in said
    assert f"{tmp_path}/lost is not there" in said


def test_a_gateway_shows_so_many_and_says_so(fsqueue_cli: Run, queue: Queue, place: str) -> None:
    queue.insert_many(range(1_100))
    shown = fsqueue_cli("run", place, "--dry-run", "--max-tasks", 1_050, "--", "echo", "{}")
    is_remote = place != str(queue.path)
    assert len(shown.stdout.splitlines()) == (1_000 if is_remote else 1_050)
    why = "100 more tasks not shown: a gateway shows" if is_remote else "50 more tasks not shown: --max-tasks says"
    assert why in shown.stderr


def test_nothing_waits(fsqueue_cli: Run, queue: Queue) -> None:
    assert "no task is waiting" in fsqueue_cli("run", queue.path, "--dry-run", "--", "true").stderr


def test_a_job_does_not_run_dry(fsqueue_cli: Run, queue: Queue) -> None:
    said = fsqueue_cli("slurm", queue.path, "--dry-run", "--", "true", code=2).stderr
    assert "--dry-run cannot be used here" in said
