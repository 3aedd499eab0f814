"""A user who may only read: one sentence and an exit code, not a line for each batch."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from fsqueue_cli import leases, progress, running
from fsqueue_cli.main import cli

from fsqueue import Queue
from tests.test_group import MEMBER, OWNER, as_user, needs_root, shared

# Loaded before the change of users: a Python may lie in root's home.
__all__ = ["leases", "progress", "running", "shared"]

pytestmark = pytest.mark.once


def said_by(*arguments: str) -> list[object]:
    """In a process of its own: the exit code, and the lines on standard error. Logs go there, as without pytest."""
    logging.getLogger().handlers.clear()
    result = CliRunner().invoke(cli, arguments, prog_name="fsqueue")
    return [result.exit_code, *result.stderr.splitlines()]


@needs_root
@pytest.mark.parametrize("tasks", [1, 60])
@pytest.mark.parametrize("command", [["lease"], ["lease", "-n", "5"], ["run"]])
def test_who_may_only_read_is_told_so_once(shared: Path, command: list[str], tasks: int) -> None:
    path = shared / "q"

    def create() -> None:
        Queue.create(path).insert_many(range(tasks), batch_tasks=1)

    as_user(OWNER, 0o022, create)
    rest = ["--", "true"] if command == ["run"] else []
    code, *lines = as_user(MEMBER, 0o022, lambda: said_by(*command, str(path), *rest))
    assert code == 1
    [line] = lines
    assert line.startswith("fsqueue: Permission denied while leasing")
    assert "Ask the queue's owner for read and write access" in line


@needs_root
@pytest.mark.parametrize("rest", [["--", "true"], ["--", "echo", "{x}"], ["--forever", "-j", "4", "--", "true"]])
def test_who_may_only_read_a_queue_in_use_is_told_so_once(shared: Path, rest: list[str]) -> None:
    path = shared / "q"

    def create_and_use() -> None:
        queue = Queue.create(path)
        queue.insert_many(({"x": n} for n in range(60)), batch_tasks=1)
        held = queue.lease(40)
        queue.release(held[:10])
        for task in held[10:20]:
            task.bury("broken")
        queue.complete(held[20:30])

    as_user(OWNER, 0o022, create_and_use)
    code, *lines = as_user(MEMBER, 0o022, lambda: said_by("run", str(path), *rest))
    assert code == 1
    [line] = lines
    assert line.startswith("fsqueue: Permission denied while leasing")


@needs_root
def test_a_directory_for_outputs_that_one_may_not_write_is_refused_before_anything_is_leased(shared: Path) -> None:
    path, kept = shared / "q", shared / "kept"

    def create() -> None:
        Queue.create(path).insert_many(range(3))
        kept.mkdir(mode=0o755)

    as_user(OWNER, 0o002, create)
    for where in (kept, kept / "below"):
        command = ["run", str(path), "--keep-output", str(where), "--", "true"]
        code, *lines = as_user(MEMBER, 0o002, partial(said_by, *command))
        assert code == 2
        [line] = lines
        assert line.startswith(f"fsqueue: No output can be kept in {where}: Permission denied. No task was begun.")
    assert [(task.state, task.version) for task in Queue(path).tasks()] == [("waiting", 0)] * 3


@needs_root
def test_batches_that_one_may_not_write_beside_others_are_spoken_of_once(shared: Path) -> None:
    """A member whose umask is wrong has made some: the others are leased."""
    path = shared / "q"

    def create() -> None:
        Queue.create(path, shards=1).insert_many(range(20), batch_tasks=1)

    def spoil() -> None:
        for log in path.glob("*/movements/*/*"):
            log.chmod(0o600)

    def touch() -> None:
        for task in Queue(path).lease(10):
            task.release()

    as_user(OWNER, 0o002, create)
    as_user(OWNER, 0o002, touch)
    as_user(OWNER, 0o002, spoil)
    code, *lines = as_user(MEMBER, 0o002, lambda: said_by("lease", "-n", "20", "--tokens", str(path)))
    assert code == 0
    [line] = lines
    assert "are passed over" in line
    assert "Permission denied" in line
