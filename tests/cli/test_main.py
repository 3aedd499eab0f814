"""The group: help, laziness, errors as lines, pipes, signals, completion."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fsqueue_cli.main import COMMANDS, GROUPS

from fsqueue import Group, Queue
from tests.cli.conftest import Run, Spawn, waits
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once


@pytest.mark.parametrize("typed", ["help", "--help"])
def test_help_lists_every_command(fsqueue_cli: Run, typed: str) -> None:
    help_text = fsqueue_cli(typed).output
    for name, (_, short) in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(short[:20])}", help_text, re.MULTILINE)


def test_help_has_the_commands_by_theme(fsqueue_cli: Run) -> None:
    titles = re.findall(r"^(\S.*):$", fsqueue_cli("help").output, re.MULTILINE)
    assert titles == ["Options", *GROUPS]
    titles = re.findall(r"^(\S.*):$", fsqueue_cli("--help").output, re.MULTILINE)
    assert titles == [*GROUPS, "Example"]
    assert len(GROUPS) == 6
    assert sum(map(len, GROUPS.values())) == len(COMMANDS)


@pytest.mark.parametrize("name", [*COMMANDS, "dead list", "dead retry", "dead purge"])
def test_every_command_has_help_with_an_example(fsqueue_cli: Run, name: str) -> None:
    help_text = fsqueue_cli("help", *name.split()).output
    assert name == "dead" or f"Example:\n  " in help_text  # noqa: F541
    assert name == "dead" or f"fsqueue {name}" in help_text
    assert max(map(len, help_text.splitlines())) <= 130


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ["run", "dead list", "release-all", "spark seed"])
def test_the_help_is_whole_where_python_leaves_docstrings_out(fsqueue_cli: Run, name: str) -> None:
    code = "from fsqueue_cli.main import cli; cli(prog_name='fsqueue')"
    done = subprocess.run([sys.executable, "-OO", "-c", code, "help", *name.split()], capture_output=True, text=True)
    assert done.stdout.split() == fsqueue_cli("help", *name.split()).output.split()
    assert done.returncode == 0


def test_help_imports_neither_the_queue_nor_its_tools() -> None:
    code = (
        "import sys; from fsqueue_cli.main import cli\n"
        "try: cli(['--help'], prog_name='fsqueue')\n"
        "except SystemExit: pass\n"
        "print([name for name in ('fsqueue', 'orjson', 'tqdm', 'fsqueue_cli.looking') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


def used_by_children_s() -> float:
    """Return the processor time of all children that have ended. Other work on the machine does not add to it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_starts_quickly() -> None:
    """Below 2.5 times the start-up of click, in processor time: the best of several tries of each, in turn."""
    best = {"import click": 9.0, "from fsqueue_cli.entry import main; main()": 9.0}
    for _ in range(7):
        for code in best:
            begin = used_by_children_s()
            subprocess.run([sys.executable, "-c", code, "--help"], stdout=subprocess.DEVNULL, check=True)
            best[code] = min(best[code], used_by_children_s() - begin)
    click_s, help_s = best.values()
    assert help_s < 2.5 * click_s


def test_the_garbage_collector_waits_until_the_command_is_loaded_and_leaves_alone_what_was() -> None:
    """Looking through all modules again and again, and once more at the end, took a fifth of a short command."""
    code = (
        "import atexit, gc, sys\n"
        "sys.argv = ['fsqueue', 'status', '--help']\n"
        "collections = []\n"
        "early = lambda: 'fsqueue' in sys.modules and not gc.get_freeze_count()\n"
        "gc.callbacks.append(lambda phase, about: collections.append(early()))\n"
        "atexit.register(lambda: print(collections, gc.isenabled(), gc.get_freeze_count() > 10_000))\n"
        "from fsqueue_cli.entry import main\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    collections, *after = done.stdout.splitlines()[-1].rsplit(" ", 2)
    assert "True" not in collections
    assert after == ["True", "True"]


def test_version(fsqueue_cli: Run) -> None:
    import fsqueue

    assert fsqueue_cli("--version").output == f"fsqueue {fsqueue.__version__}\n"


def test_a_mistyped_command_is_a_usage_error_with_a_hint(fsqueue_cli: Run) -> None:
    assert "Did you mean 'status'?" in fsqueue_cli("statsu", "Q", code=2).output
    assert "lists the commands" in fsqueue_cli("xyzzy", code=2).output


@pytest.mark.parametrize(
    "arguments", [["status"], ["ls"], ["lease"], ["insert"], ["show", "x.0"], ["run", "--", "true"]]
)
def test_a_path_without_a_queue_exits_with_5_and_creates_nothing(
    fsqueue_cli: Run, tmp_path: Path, arguments: list[str]
) -> None:
    command, *rest = arguments
    result = fsqueue_cli(command, tmp_path / "absent", *rest, input="", code=5)
    assert result.stderr.startswith("fsqueue: ")
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_queue_can_be_named_by_url(fsqueue_cli: Run, queue: Queue) -> None:
    fsqueue_cli("insert", f"fq://{queue.path}", input="1\n")
    assert queue.status().waiting == 1


def test_an_unexpected_error_is_one_line(fsqueue_cli: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(self: Queue, exact: bool = True) -> None:
        raise RuntimeError("kaboom")

    monkeypatch.setattr(Queue, "status", explode)
    with pytest.raises(AssertionError, match="internal error, please report it: RuntimeError: kaboom"):
        fsqueue_cli("status", queue.path, code=1)  # the fixture finds fault with internal errors


def test_a_thread_that_the_system_refuses_is_said_with_the_limit(
    fsqueue_cli: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def status(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Queue, "status", status)
    assert "ulimit -u" in fsqueue_cli("status", queue.path, code=1).stderr


def test_a_reader_that_goes_away_ends_the_command_quietly(spawn: Spawn, queue: Queue) -> None:
    queue.insert_many({"text": "x" * 100, "number": number} for number in range(3000))
    process = spawn("ls", queue.path, "--json")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    assert process.communicate(timeout=PATIENCE_S)[1] == ""
    assert process.returncode == 141


def test_a_full_disk_behind_the_output_is_an_error(spawn: Spawn, queue: Queue) -> None:
    with open("/dev/full", "w") as full:
        process = spawn("status", queue.path, stdout=full)
        assert "no room left while writing: No space left on device" in process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 7


CHANGES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("insert", "Q", "--task", "1"): ("1",),
    ("insert", "Q", "--task", "1", "--json"): ('{"inserted":1,"skipped":0}',),
    ("insert", "Q", "--task", "1", "--commit", "a"): ("1",),
    ("set", "Q", "max_attempts=2"): ("max_attempts     2", "lease_s          600"),
    ("pause", "Q"): ("is paused since",),
    ("resume", "Q", "--json"): ('"changed":',),
    ("create", "Q2"): ("made the queue ",),
    ("purge", "Q", "--yes", "--json"): ('"purged":true',),
    ("delete", "Q", "--yes", "--json", "--foreground"): ('"deleted":true',),
    ("dead", "retry", "Q"): ("0",),
    ("dead", "purge", "Q", "--yes"): ("0",),
    ("retry", "Q", "--completed", "--all", "--json"): ('"retried":0',),
    ("release-all", "Q", "--yes"): ("0",),
    ("gc", "Q"): ("nothing was to be cleaned up",),
    ("complete", "Q", "TOKEN", "--json"): ('{"completed":["',),
    ("run", "Q", "--json", "--", "true"): ('"completed":1',),
}
"""Commands that change a queue, and what they were to print."""


@pytest.mark.one_in(5)
@pytest.mark.parametrize("arguments", CHANGES, ids=" ".join)
def test_where_its_output_cannot_be_written_a_command_says_that_its_work_is_done(
    spawn: Spawn, queue: Queue, arguments: tuple[str, ...]
) -> None:
    """An advice to repeat it would have it done twice."""
    queue.insert(0)
    values = {"Q": str(queue.path), "Q2": str(queue.path.parent / "q2")}
    if "TOKEN" in arguments:
        values["TOKEN"] = queue.lease()[0].token
    with open("/dev/full", "w") as full:
        process = spawn(*(values.get(word, word) for word in arguments), stdout=full)
        said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 7, said
    assert "standard output cannot be written (No space left on device). What was done is done" in said
    assert "and repeat" not in said
    for line in CHANGES[arguments]:
        assert line in said
    assert "Traceback" not in said
    if arguments[0] == "insert":
        assert queue.status().inserted == 2


def test_an_output_that_fails_otherwise_is_an_error_of_another_code(spawn: Spawn, queue: Queue) -> None:
    with open(os.devnull) as reading:
        process = spawn("insert", queue.path, "--task", "1", stdout=reading)
        said = process.communicate(timeout=PATIENCE_S)[1]
    assert "standard output cannot be written (Bad file descriptor). What was done is done" in said
    assert (process.returncode, queue.status().inserted) == (1, 1)


def test_where_its_output_cannot_be_written_a_bad_line_is_still_named(spawn: Spawn, queue: Queue) -> None:
    with open("/dev/full", "w") as full:
        process = spawn("insert", queue.path, stdin=subprocess.PIPE, stdout=full)
        said = process.communicate("1\nx\n", timeout=PATIENCE_S)[1]
    assert process.returncode == 2
    assert "standard input, line 2 is not JSON" in said
    assert "insert the rest" in said


def test_where_the_reader_of_a_count_has_gone_a_bad_line_is_still_named(spawn: Spawn, queue: Queue) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    for lines, code, says in (("1\n", 141, ""), ("1\nx\n", 2, "line 2 is not JSON")):
        process = spawn("insert", queue.path, stdin=subprocess.PIPE, stdout=writing)
        said = process.communicate(lines, timeout=PATIENCE_S)[1]
        assert process.returncode == code, said
        assert says in said
        assert bool(said) == bool(says)
    os.close(writing)


def test_with_its_standard_streams_closed_it_still_works(queue: Queue) -> None:
    """And no file of the queue gets the number of one of them."""
    command, closed = f"{sys.executable} -m fsqueue_cli", "<&- >&- 2>&-"
    queue.insert_many([1, 2])
    for verb in ("status", "ls"):
        assert subprocess.run(f"exec {command} {verb} {queue.path} {closed}", shell=True).returncode == 0
    done = subprocess.run(f"exec {command} insert {queue.path} <&-", shell=True, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"0\n", b"")
    for _ in range(2):  # an empty commit would use the name up
        commit = f"exec {command} insert {queue.path} --commit a"
        done = subprocess.run(f"{commit} <&-", shell=True, capture_output=True)
        assert (done.returncode, done.stdout) == (2, b"")
        assert b"Standard input is closed. Nothing was inserted, and the name is free" in done.stderr
    assert queue.commit("a").committed() is None
    assert subprocess.run(f"{commit} </dev/null", shell=True, capture_output=True).stdout == b"0\n"
    run = subprocess.run(
        f"exec {command} run {queue.path} {closed} -- sh -c 'echo x >&2'", shell=True, timeout=PATIENCE_S
    )
    assert run.returncode == 0
    assert queue.status().completed == 2


def test_ctrl_c_exits_with_130(spawn: Spawn, queue: Queue) -> None:
    queue.insert(1)
    process = spawn("status", queue.path, "--watch", "--interval", "60")
    assert process.stdout is not None
    process.stdout.readline()
    until(lambda: waits(process.pid), "its pause between two looks")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=PATIENCE_S)[1] == "fsqueue: interrupted\n"
    assert process.returncode == 130


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(fsqueue_cli: Run, shell: str) -> None:
    assert "_FSQUEUE_COMPLETE" in fsqueue_cli("completion", shell).output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fsqueue rel", {"plain,release", "plain,release-all"}),
        ("fsqueue ls --st", {"plain,--state"}),
        ("fsqueue ls /", {"dir,/"}),
    ],
)
def test_the_shell_completes_commands_options_and_paths(words: str, expected: set[str]) -> None:
    environment = os.environ | {
        "_FSQUEUE_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    done = subprocess.run(
        [sys.executable, "-m", "fsqueue_cli"], env=environment, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.splitlines()) == expected


def test_what_is_logged_has_our_name_before_it(spawn: Spawn, tmp_path: Path) -> None:
    group = Group.create(tmp_path / "group", durability="none")
    group["a"].insert_many([])
    Queue.create(tmp_path / "stray").path.rename(tmp_path / "group" / "stray")
    process = spawn("wait", group.path)
    said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 0, said
    assert "fsqueue: not waited for: " in said
    assert all(line.startswith("fsqueue: ") for line in said.splitlines()), said
