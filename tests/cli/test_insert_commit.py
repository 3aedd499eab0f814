"""insert --commit: all of the input or nothing, once, however often the command is typed."""

from __future__ import annotations

import array
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

import pytest

from fsqueue import InvalidArgument, Queue
from tests.cli.conftest import Run, Spawn, catches
from tests.gateways import gateways
from tests.levels import how_many
from tests.support import base_of, files_below, task_file_names
from tests.waiting import until


def staged(queue: Queue) -> list[str]:
    base = base_of(queue)
    return files_below(base / "staging") + files_below(base / "commits" / "pending")


def payloads(queue: Queue) -> list[object]:
    return sorted(task.payload for task in queue.tasks())


def test_repeating_it_is_harmless(fsqueue_cli: Run, queue: Queue, place: str, tmp_path: Path) -> None:
    (tmp_path / "tasks").write_text("1\n2\n3\n")
    command = ("insert", place, tmp_path / "tasks", "--commit", "seed-2026-11")
    assert fsqueue_cli(*command).stdout == "3\n"
    again = fsqueue_cli(*command)
    assert again.stdout == "0\n"
    assert "seed-2026-11 was committed on" in again.stderr
    assert "with 3 tasks" in again.stderr
    assert payloads(queue) == [1, 2, 3]
    assert staged(queue) == []


def test_json_output(fsqueue_cli: Run, queue: Queue, place: str) -> None:
    command = ("insert", place, "--commit", "a", "--json")
    first = json.loads(fsqueue_cli(*command, input="1\n2\n").stdout)
    assert first == {"inserted": 2, "skipped": 0, "commit": "a", "committed": 2, "repeated": False, "refused": False}
    again = json.loads(fsqueue_cli(*command, input="1\n2\n3\n").stdout)
    assert again == {"inserted": 0, "skipped": 0, "commit": "a", "committed": 2, "repeated": True, "refused": False}


@pytest.mark.parametrize("as_json", [False, True])
def test_a_commit_of_no_tasks_uses_the_name_up(fsqueue_cli: Run, queue: Queue, place: str, as_json: bool) -> None:
    command = ("insert", place, "--commit", "none", *(["--json"] if as_json else []))
    outcome = {"inserted": 0, "skipped": 0, "commit": "none", "committed": 0, "repeated": False, "refused": False}
    for text, changed, code, said in (
        ("", {}, 0, "the name none is used up by a commit of no tasks"),
        ("\n", {"repeated": True}, 0, "with 0 tasks: nothing was added"),
        ("1\n2\n", {"repeated": True, "refused": True}, 2, "insert them under another name"),
        ("{\n1\n", {"repeated": True}, 2, "line 1 is not JSON"),
    ):
        result = fsqueue_cli(*command, input=text, code=code)
        assert json.loads(result.stdout) == (outcome | changed if as_json else 0)
        assert said in result.stderr
    assert payloads(queue) == []
    assert fsqueue_cli("insert", place, "--commit", "other", input="1\n2\n").stdout == "2\n"


def test_bad_lines_alone_use_the_name_up_and_are_an_error(fsqueue_cli: Run, queue: Queue, place: str) -> None:
    command = ("insert", place, "--commit", "none", "--skip-bad")
    for _ in range(2):
        result = fsqueue_cli(*command, input="{\n", code=1)
        assert "the name none is used up" in result.stderr
        assert "1 bad line skipped" in result.stderr
    assert "insert them under another name" in fsqueue_cli(*command, input="{\n1\n", code=2).stderr


def test_a_quicker_commit_of_no_tasks_refuses_the_tasks(queue: Queue, spawn: Spawn) -> None:
    """Another process publishes the name while this one reads its input."""
    child = spawn("insert", queue.path, "--commit", "once", stdin=subprocess.PIPE)
    assert child.stdin is not None
    child.stdin.write("1\n")
    child.stdin.flush()
    until(lambda: child.poll() is not None or (base_of(queue) / "staging").exists(), "the staging directory")
    assert Queue(queue.path).insert_many([], commit="once") == 0
    stdout, stderr = child.communicate()
    assert (child.returncode, stdout) == (2, "0\n")
    assert "insert them under another name" in stderr
    assert (payloads(queue), staged(queue)) == ([], [])


def test_a_bad_line_inserts_nothing(fsqueue_cli: Run, queue: Queue, place: str) -> None:
    result = fsqueue_cli("insert", place, "--commit", "a", input="1\n2\n{\n4\n", code=2)
    assert result.stdout == "0\n"
    assert "line 3 is not JSON" in result.stderr
    assert "nothing was inserted as a" in result.stderr
    assert payloads(queue) == []
    assert staged(queue) == []
    assert fsqueue_cli("insert", place, "--commit", "a", input="1\n2\n3\n4\n").stdout == "4\n"


def test_bad_lines_that_are_skipped(
    fsqueue_cli: Run, queue_factory: Callable[..., Queue], place_of: Callable[[Path], str]
) -> None:
    queue = queue_factory(task_bytes_max=100)
    lines = "1\n{\n2\n" + json.dumps("x" * 90) + "\n3\n"
    result = fsqueue_cli("insert", place_of(queue.path), "--commit", "a", "--skip-bad", input=lines, code=1)
    assert result.stdout == "3\n"
    assert "line 2 is not JSON" in result.stderr
    assert "line 4 is no task for this queue" in result.stderr
    assert payloads(queue) == [1, 2, 3]
    assert staged(queue) == []


def test_a_task_that_is_too_large_inserts_nothing(
    fsqueue_cli: Run, queue_factory: Callable[..., Queue], place_of: Callable[[Path], str]
) -> None:
    queue = queue_factory(task_bytes_max=100)
    result = fsqueue_cli(
        "insert", place_of(queue.path), "--commit", "a", input="1\n" + json.dumps("x" * 90) + "\n", code=14
    )
    assert "nothing was inserted as a" in result.stderr
    assert queue.status().inserted == 0
    assert staged(queue) == []


@pytest.mark.once
@pytest.mark.parametrize("commit", [[], ["--commit", "a"]])
def test_all_options_hold_for_a_commit_too(fsqueue_cli: Run, queue: Queue, commit: list[str]) -> None:
    options = ["--delay", "1h", "--batch-tasks", "2", "--priority", "p"]
    lines = "".join(f'{{"p":{number}}}\n' for number in (2, 1, 4, 3, 5))
    assert fsqueue_cli("insert", queue.path, *commit, *options, input=lines).stdout == "5\n"
    assert queue.status().delayed == 5
    assert sorted(name.count for name in task_file_names(queue)) == [1, 2, 2]
    assert {task.priority for task in queue.tasks()} == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("name", ["a/b", ""])
def test_a_name_that_cannot_be(fsqueue_cli: Run, queue: Queue, name: str) -> None:
    """Nor is an empty one left out: a variable of the shell may not be set."""
    result = fsqueue_cli("insert", queue.path, "--commit", name, input="1\n", code=2)
    assert "cannot be a commit's name" in result.stderr
    with pytest.raises(InvalidArgument, match="cannot be a commit's name"):
        queue.insert_many([1], commit=name)
    assert queue.status().inserted == 0


def test_a_missing_file_inserts_nothing(fsqueue_cli: Run, queue: Queue, place: str, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1\n")
    fsqueue_cli("insert", place, tmp_path / "one", tmp_path / "none", "--commit", "a", code=2)
    assert queue.status().inserted == 0
    assert staged(queue) == []


IMPATIENT = """
import sys
from fsqueue_cli import insert_input
from fsqueue_cli.entry import main
insert_input.PUBLISH_S = 0.0
sys.argv[:] = ["fsqueue", *sys.argv[1:]]
main()
"""
"""Publishes at once, at each pause of the input, what may be published."""


def is_read(pipe: IO[str]) -> bool:
    """Whether the reader has taken what was written."""
    left = array.array("i", [0])
    fcntl.ioctl(pipe.fileno(), termios.FIONREAD, left)
    return not left[0]


@pytest.mark.parametrize("commit", [True, False])
def test_slow_input_appears_together(queue: Queue, commit: bool) -> None:
    """A pause of the input publishes nothing; without --commit it does."""
    command = [sys.executable, "-c", IMPATIENT, "insert", str(queue.path), *["--commit", "a"][: 2 * commit]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        for number in range(30):
            child.stdin.write(f"{number}\n")
            child.stdin.flush()
            until(partial(is_read, child.stdin), "the line to be read")
        if commit:
            assert queue.status().inserted == 0
        else:
            until(lambda: queue.status().inserted == 30, "the tasks to be published")
        stdout, _ = child.communicate()
    assert (child.returncode, stdout) == (0, "30\n")
    assert payloads(queue) == [*range(30)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_inserts_nothing(spawn: Spawn, queue: Queue, number: signal.Signals) -> None:
    child = spawn("insert", queue.path, "--commit", "a", stdin=subprocess.PIPE)
    assert child.stdin is not None
    child.stdin.write("1\n2\n")
    child.stdin.flush()
    until(lambda: child.poll() is not None or (base_of(queue) / "staging").exists(), "the staging directory")
    child.send_signal(number)
    _, stderr = child.communicate()
    assert child.returncode == 128 + number
    assert "nothing was inserted as a" in stderr
    assert queue.status().inserted == 0
    assert staged(queue) == []


def test_an_interruption_at_an_address_inserts_nothing(
    fsqueue_cli: Run, spawn: Spawn, queue: Queue, tmp_path: Path
) -> None:
    with gateways(tmp_path) as serve:
        command = ("insert", serve(queue.path), "--commit", "a")
        child = spawn(*command, stdin=subprocess.PIPE)
        assert child.stdin is not None
        child.stdin.write("1\n2\n")
        child.stdin.flush()
        until(lambda: child.poll() is not None or catches(child.pid, signal.SIGTERM), "it to read")
        child.terminate()
        _, stderr = child.communicate()
        assert (child.returncode, queue.status().inserted) == (128 + signal.SIGTERM, 0)
        assert "nothing was inserted as a" in stderr
        assert fsqueue_cli(*command, input="1\n").stdout == "1\n", "the name is free"


KILLED = """
import os, signal, sys
from fsqueue.filesystem import Filesystem
left = int(sys.argv.pop(1))
def mortal(name, method):
    def step(*args, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*args, **options)
    return step
for name in ("create", "rename", "link", "unlink", "make_directory"):
    setattr(Filesystem, name, mortal(name, getattr(Filesystem, name)))
from fsqueue_cli.entry import main
main()
"""


@pytest.mark.slow
def test_a_command_that_is_killed_is_typed_again(fsqueue_cli: Run, queue_factory: Callable[..., Queue]) -> None:
    """Killed before any of its changes of names, and repeated: all is there, once."""
    seen = set()
    for steps in range(0, 100, how_many(6, 1)):
        queue = queue_factory(f"q{steps}", shards=2)
        command = ["insert", str(queue.path), "--commit", "seed", "--batch-tasks", "2"]
        child = subprocess.run(
            [sys.executable, "-c", KILLED, str(steps), *command],
            input=b"1\n2\n3\n",
            capture_output=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        there = queue.status().inserted
        assert there in (0, 3), steps
        seen.add(there)
        assert fsqueue_cli(*command, input="1\n2\n3\n").stdout == f"{3 - there}\n", steps
        assert payloads(queue) == [1, 2, 3], steps
        if child.returncode == 0:
            assert child.stdout == b"3\n"
            break
        assert child.returncode == -signal.SIGKILL, child.stderr
    assert seen == {0, 3}
    assert steps > 8
