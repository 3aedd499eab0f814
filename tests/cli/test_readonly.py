"""A user who may only read: one sentence and an exit code, not a line for each batch."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from fsqueue_cli import dead, fsck, inserting, leases, looking, progress, queues, running, slurm, watching, workers
from fsqueue_cli.main import cli

import fsqueue.fsck
from fsqueue import Queue
from fsqueue.storage import letter_files, nodes
from tests.support import needs_root
from tests.test_group import MEMBER, OWNER, as_user, shared

__all__ = [
    "dead", "fsck", "fsqueue", "inserting", "leases", "looking", "progress", "queues", "running", "shared", "slurm",
    "watching", "workers",
]  # fmt: skip  # loaded before the change of users: a Python may lie in root's home


def said_by(*arguments: str) -> list[object]:
    """In a process of its own: the exit code, and the lines on standard error. Logs go there, as without pytest."""
    logging.getLogger().handlers.clear()
    result = CliRunner().invoke(cli, arguments, prog_name="fsqueue", input="1\n")
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


REFUSED = (
    ["insert"], ["insert", "--commit", "x"], ["lease"], ["run", "--", "true"], ["complete", "TOKEN"],
    ["complete", "TOKEN", "--result", "1"], ["renew", "TOKEN"], ["release", "TOKEN"],
    ["fail", "TOKEN", "--reason", "x"],
    ["bury", "TOKEN", "--reason", "x"], ["release-all", "--yes"], ["release-all", "--yes", "--offline"],
    ["cancel", "WAITING", "--yes"], ["dead retry"], ["dead retry", "DEAD"], ["dead purge", "--yes"], ["purge", "--yes"],
    ["delete", "--yes"], ["gc", "--touch"], ["workers", "--release-dead"], ["workers", "--admit", "NODE"],
)  # fmt: skip
ALLOWED = (
    ["status"], ["wait", "--timeout", "0"], ["ls"], ["show", "DEAD"], ["dead list", "--json"], ["workers"], ["fsck"],
    ["gc"], ["create", "--exist-ok"], ["slurm", "--print", "--", "true"],
)  # fmt: skip


@needs_root
def test_every_command_says_it_once(shared: Path) -> None:
    """One sentence and exit code 1, however many batches there are; what only looks works without a word."""
    path = shared / "q"

    def create() -> dict[str, list[str]]:
        queue = Queue.create(path, shards=4)
        queue.insert_many(range(20), batch_tasks=1)
        held, done, *buried = queue.lease(5)
        done.complete()
        for task in buried:
            task.bury("no")
        streak = nodes.NodeFailures(queue.store, 3)
        streak.failed()
        waiting = [task.id for task in queue.peek(12)]
        return {"NODE": [streak.node], "TOKEN": [held.token], "DEAD": [buried[0].id], "WAITING": waiting}

    def type_all() -> list[tuple[list[str], list[object]]]:
        typed = []
        for line in (*REFUSED, *ALLOWED):
            words = [word for given in line[1:] for word in known.get(given, [given])]
            typed.append((line, said_by(*line[0].split(), str(path), *words)))
        return typed

    known = as_user(OWNER, 0o022, create)
    for line, (code, *lines) in as_user(MEMBER, 0o022, type_all):
        if line in REFUSED:
            assert code == 1, (line, lines)
            assert len(lines) == 1, (line, lines)
            assert "Permission denied" in str(lines[0]), (line, lines)
        else:
            assert (code, lines) == (124 if line[0] == "wait" else 0, []), line


@needs_root
def test_gc_of_letters_that_one_may_not_write_passes_them_over(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settled letters that could be given back: it is said once that they were not, and the rest is done."""
    path = shared / "q"

    def create() -> None:
        queue = Queue.create(path, shards=1)
        queue.insert_many(["x" * 2000] * 4, batch_tasks=4)
        for task in queue.lease(4):
            task.bury("no")
        monkeypatch.setattr(letter_files, "give_back", lambda *_: 0)
        queue.purge_dead()

    as_user(OWNER, 0o022, create)
    code, *lines = as_user(MEMBER, 0o022, lambda: said_by("gc", str(path)))
    assert code == 0
    [line] = lines
    assert "passed over 1 file" in line
    assert "Permission denied" in line
    assert as_user(OWNER, 0o022, lambda: said_by("gc", str(path))) == [0]
    [letters] = path.glob("*/dead/00.jsonl")
    assert letters.stat().st_size == letter_files.HEADER_BYTES


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
    assert [(task.state, task.attempt) for task in Queue(path).tasks()] == [("waiting", 0)] * 3


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
