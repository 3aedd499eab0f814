"""A user who may only read: one sentence and an exit code, not a line for each batch."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from click.testing import CliRunner
from fsqueue_cli import leases, running
from fsqueue_cli.main import cli

from fsqueue import Queue
from tests.test_group import MEMBER, OWNER, as_user, needs_root, shared

__all__ = ["leases", "running", "shared"]  # loaded before the change of users: a Python may lie in root's home

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
