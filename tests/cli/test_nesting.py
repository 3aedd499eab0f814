"""JSON that nests deep, on the command line: refused by its line; where it is in a queue already, in nobody's way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsqueue import Queue
from fsqueue.format.nesting import NESTING_MAX
from tests.cli.conftest import Run, Spawn
from tests.support import QueueFactory, base_of
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.once

DEPTHS = [NESTING_MAX + 1, 252, 253, 254, 255, 300, 1100]


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize("levels", DEPTHS)
def test_a_line_that_nests_too_deep_is_named_and_nothing_else_is_lost(
    fsqueue_cli: Run, queue: Queue, levels: int
) -> None:
    lines = f"1\n{deep(levels)}\n2\n"
    refused = fsqueue_cli("insert", queue.path, input=lines, code=2)
    assert refused.stdout == "1\n"
    assert "standard input, line 2 " in refused.stderr
    assert "nests " in refused.stderr
    skipped = fsqueue_cli("insert", queue.path, "--skip-bad", input=lines, code=1)
    assert skipped.stdout == "2\n"
    assert "skipped: standard input, line 2 " in skipped.stderr
    fsqueue_cli("insert", queue.path, "--commit", "name", input=lines, code=2)
    assert queue.status().waiting == 3
    fsqueue_cli("insert", queue.path, "--lines", input=lines)  # as text it is as good as any
    assert deep(levels) in [info.payload for info in queue.tasks()]


def test_as_deep_as_allowed(fsqueue_cli: Run, queue: Queue) -> None:
    fsqueue_cli("insert", queue.path, input=deep(NESTING_MAX))
    leased = json.loads(fsqueue_cli("lease", queue.path).stdout)
    assert leased["payload"] == json.loads(deep(NESTING_MAX))
    fsqueue_cli("complete", queue.path, leased["token"], "--result", deep(NESTING_MAX + 1), code=2)
    fsqueue_cli("complete", queue.path, leased["token"], "--result", deep(NESTING_MAX))
    shown = json.loads(fsqueue_cli("show", queue.path, leased["id"], "--json").stdout)
    assert shown["result"] == shown["history"][-1]["result"] == leased["payload"]
    assert fsqueue_cli("fsck", queue.path).stdout.startswith("nothing was found")


def forge(queue: Queue, levels: int) -> Path:
    """A task file of a member's making, beside the one that is there."""
    [sound] = (base_of(queue) / "queue/00").glob("*")
    uuid = sound.name.split("-")[1]
    forged = sound.with_name(f"{sound.name.split('-')[0]}-{uuid[:-1]}{'8' if uuid[-1] == '0' else '0'}-1.jsonl")
    forged.write_text('{"payload":' + deep(levels) + "}\n")
    return forged


@pytest.mark.parametrize("levels", [253, 254, 300, 1100])
def test_a_task_file_that_nests_too_deep_keeps_nothing_from_working(
    fsqueue_cli: Run, spawn: Spawn, queue_factory: QueueFactory, levels: int
) -> None:
    queue = queue_factory(shards=1, max_attempts=1)
    queue.insert_many(range(20), batch_tasks=20)
    forge(queue, levels)
    for command in (["ls"], ["ls", "--json"], ["status"], ["workers"]):
        fsqueue_cli(command[0], queue.path, *command[1:])
    fsqueue_cli("dead", "list", queue.path)
    assert "unreadable-tasks" in fsqueue_cli("fsck", queue.path, code=10).stdout
    worker = spawn("run", queue.path, "-j", "2", "--stop-after-failures", "1000", "--", "false")
    _, said = worker.communicate(timeout=PATIENCE_S)
    assert (worker.returncode, "internal error" in said) == (9, False), said
    assert (queue.status().dead, queue.status().remaining) == (21, 0)
    for command in (["gc"], ["fsck"], ["fsck", "--repair"], ["gc", "--json"]):
        fsqueue_cli(command[0], queue.path, *command[1:])
    reasons = [
        json.loads(line)["reason"] for line in fsqueue_cli("dead", "list", queue.path, "--json").stdout.splitlines()
    ]
    assert [reason for reason in reasons if "unreadable" in reason] == [
        "unreadable: its line in the task file is damaged"
    ]
    fsqueue_cli("dead", "list", queue.path, "--each")
    fsqueue_cli("dead", "purge", queue.path, "--where", "error~unreadable", "--yes")
    fsqueue_cli("dead", "retry", queue.path)
    fsqueue_cli("bury", queue.path, json.loads(fsqueue_cli("lease", queue.path).stdout)["token"], "--reason", "x")
    assert queue.status().waiting == 19


@pytest.mark.parametrize("levels", [253, 254, 300, 1100])
def test_repairing_such_a_file_buries_its_task(fsqueue_cli: Run, queue_factory: QueueFactory, levels: int) -> None:
    queue = queue_factory(shards=1)
    queue.insert(1)
    forge(queue, levels)
    assert "[repaired]" in fsqueue_cli("fsck", queue.path, "--repair").stdout
    assert fsqueue_cli("fsck", queue.path).stdout.startswith("nothing was found")
    assert "unreadable" in fsqueue_cli("dead", "list", queue.path).stdout
    assert deep(levels) in "".join(path.read_text() for path in (queue.path / ".quarantine").rglob("*.jsonl"))
