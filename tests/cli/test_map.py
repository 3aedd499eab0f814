"""fsqueue map: a queue is made, a task inserted for each argument, and all of them are run."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from fsqueue_cli import mapping
from fsqueue_cli.running import run

from fsqueue import Group, Queue
from tests.cli.conftest import Run, Spawn
from tests.cli.terminal import Terminal
from tests.house.source import TOP
from tests.pages import Typed
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once

FIRST = "fsqueue-map-1"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test has a working directory of its own."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def payloads(queue: str, state: str = "completed") -> list[object]:
    return sorted((task.payload for task in Queue(queue).tasks(state)), key=str)


def test_each_argument_is_a_task(fsqueue_cli: Run) -> None:
    done = fsqueue_cli("map", "-j", 2, "--", "cp", "/dev/null", "{}", ":::", "a", "b c", "$(d)")
    assert sorted(os.listdir()) == ["$(d)", "a", "b c", FIRST]
    assert payloads(FIRST) == ["$(d)", "a", "b c"]
    assert f"3 tasks in the queue {FIRST}" in done.stderr
    assert f"inputs beside results: fsqueue results {FIRST}" in done.stderr


@pytest.mark.parametrize("typed", [["::::", "list"], []], ids=["file", "stdin"])
def test_each_line_is_a_task(fsqueue_cli: Run, typed: list[str]) -> None:
    Path("list").write_text("a\n\nb c\n")
    fsqueue_cli("map", "q", "--", "touch", "{}.made", *typed, input="a\n\nb c\n")
    assert payloads("q") == ["a", "b c"]
    assert Path("b c.made").exists()


def test_items_that_end_with_nul(fsqueue_cli: Run) -> None:
    fsqueue_cli("map", "q", "-0", "--", "true", "{}", input="a\nb\0c\0")
    assert payloads("q") == ["a\nb", "c"]


def test_without_a_placeholder_the_argument_comes_last(fsqueue_cli: Run) -> None:
    fsqueue_cli("map", "--result-stdout", "--", "echo", "x", ":::", "a")
    assert [task.result for task in Queue(FIRST).tasks("completed")] == ["x a"]
    fsqueue_cli("map", "--result-stdout", "--", "echo", "{#}", ":::", "a")
    [task] = Queue("fsqueue-map-2").tasks("completed")
    assert task.result == f"{task.id} a"


def test_with_stdin_the_argument_is_there_alone(fsqueue_cli: Run) -> None:
    fsqueue_cli("map", "--stdin", "--result-stdout", "--", "cat", ":::", "a")
    assert [task.result for task in Queue(FIRST).tasks("completed")] == ["a"]


def test_a_name_that_is_no_text_stays_as_it_is(spawn: Spawn) -> None:
    process = spawn("map", "--", "touch", "{}", ":::", os.fsdecode(b"\xff"))
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert b"\xff" in os.listdir(b".")
    assert payloads(FIRST) == [b"\xff"]


def test_queues_are_numbered(fsqueue_cli: Run) -> None:
    Path("fsqueue-map-2").write_text("mine")
    for _ in range(2):
        fsqueue_cli("map", "--", "true", ":::", "a", code=None)
    assert Queue(FIRST).status().completed == 1
    assert Path("fsqueue-map-2").read_text() == "mine"


def test_two_at_once_have_queues_of_their_own(spawn: Spawn) -> None:
    processes = [spawn("map", "--", "true", "{}", ":::", str(n)) for n in range(3)]
    for process in processes:
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said
    found = [payloads(f"fsqueue-map-{n}") for n in (1, 2, 3)]
    assert sorted(found) == [["0"], ["1"], ["2"]]


def test_a_failure_is_a_dead_letter_and_the_lines_printed_try_it_again(fsqueue_cli: Run) -> None:
    done = fsqueue_cli("map", "-j", 1, "--", "test", "-e", "{}", ":::", ".", "missing", code=9)
    assert payloads(FIRST, "dead") == ["missing"]
    assert next(Queue(FIRST).tasks("dead")).attempt == 1
    [again] = re.findall(r"to try again what was given up: (.*)", done.stderr)
    Path("missing").touch()
    for line in again.split(" && "):
        fsqueue_cli(*shlex.split(line)[1:])
    assert payloads(FIRST) == [".", "missing"]


def test_more_attempts_are_allowed(fsqueue_cli: Run) -> None:
    script = 'test "$FSQUEUE_ATTEMPT" = 2'
    assert script  # the first attempt fails
    fsqueue_cli("map", "q", "--max-attempts", 2, "--", "sh", "-c", script, "sh", "{}", ":::", "a")
    assert Queue("q").settings.max_attempts == 2
    assert Queue("q").status().completed == 1
    fsqueue_cli("map", "r", "--max-attempts", "none", "--", "true", "{}", ":::", "a")
    assert Queue("r").settings.max_attempts is None


def test_a_queue_that_was_there_keeps_its_settings(fsqueue_cli: Run) -> None:
    Queue.create("q", max_attempts=7)
    fsqueue_cli("map", "q", "--", "true", ":::", "a")
    fsqueue_cli("map", "q", "--", "true", ":::", "a")  # the same argument once more is another task
    assert Queue("q").settings.max_attempts == 7
    assert payloads("q") == ["a", "a"]
    fsqueue_cli("map", "q", "--max-attempts", 1, "--", "false", ":::", "b", code=9)
    assert payloads("q", "dead") == ["b"]


def test_a_queue_of_a_group(fsqueue_cli: Run) -> None:
    Group.create("g")
    fsqueue_cli("map", "g/a", "--", "true", ":::", "1")
    assert Group("g")["a"].status().completed == 1


@pytest.mark.parametrize("state", ["waiting", "delayed", "leased"])
def test_tasks_of_others_are_not_given_to_the_command(fsqueue_cli: Run, state: str) -> None:
    queue = Queue.create("q")
    queue.insert("theirs", delay_s=3600 if state == "delayed" else 0)
    if state == "leased":
        queue.lease()
    said = fsqueue_cli("map", "q", "--", "true", ":::", "a", code=2).stderr
    assert "q has unfinished tasks (1)" in said
    assert queue.status().inserted == 1


def test_a_dry_run_prints_each_command_and_makes_nothing(fsqueue_cli: Run) -> None:
    done = fsqueue_cli("map", "--dry-run", "--", "cp", "{}", "{.}.old", ":::", "a b.log", "c.log")
    assert done.stdout == "cp 'a b.log' 'a b.old'\ncp c.log c.old\n"
    done = fsqueue_cli("map", "--dry-run", "--stdin", "--", "cat", ":::", "it's")
    assert done.stdout == """cat <<<'"it'"'"'s"'\n"""
    done = fsqueue_cli("map", "--dry-run", "--json", "--", "cat", input="a\n")
    assert json.loads(done.stdout) == {"command": ["cat", "a"]}
    assert os.listdir() == []


@pytest.mark.parametrize("typed", [[":::"], ["::::", "/dev/null"], []], ids=["list", "file", "stdin"])
def test_no_argument_is_nothing_to_do(fsqueue_cli: Run, typed: list[str]) -> None:
    done = fsqueue_cli("map", "--", "true", "{}", *typed, input="")
    assert "there is nothing to do" in done.stderr
    assert os.listdir() == []


REFUSED = {
    "gzip ::: a": "Write '--' before the command: fsqueue map -- gzip ::: a",
    "-j 2 Q gzip ::: a": "fsqueue map -j 2 -- Q gzip ::: a",
    "": "Write '--' before the command: fsqueue map -- COMMAND",
    "--": "There is no command after '--'",
    "-- ::: a": "There is no command after '--'",
    "Q R -- true ::: a": "unexpected extra argument",
    "-- echo ::: a ::: b": "':::' would combine two lists",
    "-- echo :::: a :::+ b": "':::+' would combine two lists",
    "-- echo :::+ a": "':::+' would combine two lists",
    "-- echo :::: a b": "'::::' takes one file, not 2",
    "-- echo ::::": "'::::' takes one file, not 0",
    "-- nosuchcommand ::: a": "The command 'nosuchcommand' was not found",
    "-- echo {1} ::: a": "{1}",
    "-- echo {x} ::: a": "COMMAND does not suit the first argument",
    "-- sh -c {} ::: a": "--allow-in-script",
    "-0 -- echo ::: a": "-0 is for the items of a file or of standard input",
    "--grace soon -- true ::: a": "'soon' is no duration",
    "-- echo :::: missing": "missing: no such file. Nothing was inserted.",
    "http://localhost:1/q -- true ::: a": "is an address",
}


@pytest.mark.parametrize("typed", REFUSED)
def test_what_is_refused_makes_no_queue(fsqueue_cli: Run, typed: str) -> None:
    said = fsqueue_cli("map", *typed.split(), code=2).stderr
    assert REFUSED[typed] in " ".join(said.split())
    assert os.listdir() == []


def test_a_terminal_is_not_waited_for() -> None:
    screen = Terminal("map", "--", "true", columns=300)
    try:
        code, text = screen.end()
    finally:
        screen.close()
    assert code == 2
    assert "There are no arguments." in text


def test_a_bad_line_inserts_nothing(fsqueue_cli: Run) -> None:
    lines = b"".join(b"%d\n" % n for n in range(3000))
    said = fsqueue_cli("map", "--", "true", "{}", input=lines + b"\xff\n", code=2).stderr
    assert "standard input, line 3,001 is not UTF-8" in said
    assert "Nothing was inserted" in said
    assert f"the queue {FIRST} was made, and stays" in said
    assert Queue(FIRST).status().inserted == 0
    Queue.create("q")
    fsqueue_cli("map", "q", "--", "true", "{}", input=lines + b"\xff\n", code=2)
    assert Queue("q").status().inserted == 0


def test_an_argument_that_is_too_large_inserts_nothing(fsqueue_cli: Run) -> None:
    Queue.create("q", task_bytes_max=100)
    said = fsqueue_cli("map", "q", "--", "true", "{}", ":::", "a", "b" * 200, code=14).stderr
    assert "Task number 2" in said
    assert Queue("q").status().inserted == 0


def test_a_queue_that_cannot_be_filled_stays_and_is_named(fsqueue_cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may insert into it at any time, and would lose its tasks if it was deleted."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fsqueue.commit.Commit.stage", full)
    said = fsqueue_cli("map", "q x", "--", "true", "{}", ":::", "a", code=7).stderr
    assert "the queue q x was made, and stays. To look: fsqueue status 'q x'" in said
    assert Queue("q x").status().inserted == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_input_is_read_inserts_nothing(spawn: Spawn, here: Path, number: int) -> None:
    process = spawn("map", "--", "true", "{}", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("a\n")
    process.stdin.flush()
    until(lambda: (here / FIRST).exists(), "the queue")
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number
    assert "nothing was inserted" in said
    assert f"the queue {FIRST} was made, and stays" in said
    assert Queue(FIRST).status().inserted == 0


def test_the_last_line_has_the_options_that_were_typed(fsqueue_cli: Run) -> None:
    typed = ["-j", "1", "--task-timeout", "7", "--tag", "--result-stdout", "--grace=1m", "--max-attempts", "1"]
    done = fsqueue_cli("map", "RR", *typed, "--", "false", ":::", "a", code=9)
    last = done.stderr.splitlines()[-1]
    options = " ".join(typed).replace("=", " ")
    assert last.endswith(f": fsqueue retry RR && fsqueue run RR {options} -- false '{{}}'")
    done = fsqueue_cli("map", "-0j2", "S", "--", "false", input="a\0", code=9)
    assert done.stderr.splitlines()[-1].endswith("fsqueue retry S && fsqueue run S -j 2 -- false '{}'")
    done = fsqueue_cli("map", "--", "false", ":::", "a", code=9)
    assert done.stderr.splitlines()[-1].endswith(f"fsqueue run {FIRST} -j auto -- false '{{}}'")


def test_what_an_earlier_command_gave_up_is_not_for_this_one(fsqueue_cli: Run) -> None:
    fsqueue_cli("map", "q", "--", "false", ":::", "a", code=9)
    done = fsqueue_cli("map", "q", "--", "true", ":::", "b")
    assert "to try again" not in done.stderr
    done = fsqueue_cli("map", "q", "--", "test", "-e", "{}", ":::", "c", code=9)
    [again] = re.findall(r"to try again what was given up: (.*)", done.stderr)
    Path("c").touch()
    for line in again.split(" && "):
        fsqueue_cli(*shlex.split(line)[1:])
    assert (payloads("q"), payloads("q", "dead")) == (["b", "c"], ["a"])


def test_what_was_at_work_when_the_machine_stopped_is_given_up_and_retried(spawn: Spawn, fsqueue_cli: Run) -> None:
    """docs/from-parallel.md says so: `run` goes on with the rest, and finds that an only attempt was used."""
    os.mkfifo("go")
    writer = os.open("go", os.O_RDWR)
    script = 'echo >"begun-$1"; cat go'
    process = spawn("map", "q", "-j", 1, "--lease", 2, "--", "sh", "-c", script, "sh", "{}", ":::", "a", "b")
    until(lambda: any(Path().glob("begun-*")), "the first task")
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE_S)
    fsqueue_cli("run", "q", "--", "true", "{}", code=9)
    assert (len(payloads("q")), len(payloads("q", "dead"))) == (1, 1)
    fsqueue_cli("retry", "q")
    fsqueue_cli("run", "q", "--", "true", "{}")
    assert payloads("q") == ["a", "b"]
    os.close(writer)  # what is left of the commands ends


@pytest.mark.parametrize(
    ("typed", "input", "found"),
    [(["--", "true", ":::", "", "a"], "", ["", "a"]), (["-0", "--", "true"], "\0a\0\0", ["a"]),
     (["--", "true"], "a\r\n\n \n", ["a"])],
    ids=["given", "items", "lines"],
)  # fmt: skip
def test_what_is_empty(fsqueue_cli: Run, typed: list[str], input: str, found: list[str]) -> None:
    """'fsqueue help map' says so."""
    fsqueue_cli("map", "q", *typed, input=input)
    assert payloads("q") == found


def test_after_a_signal_the_line_printed_goes_on(spawn: Spawn, fsqueue_cli: Run, here: Path) -> None:
    script = 'echo >"begun-$1"; while [ ! -e go ]; do read -t 1 line <fifo; done'
    os.mkfifo("fifo")
    process = spawn("map", "-j", 1, "--grace", 0, "--", "bash", "-c", script, "bash", "{}", ":::", "a", "b")
    until(lambda: (here / "begun-a").exists() or (here / "begun-b").exists(), "the first task")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143
    Path("go").touch()
    [again] = re.findall(r"to go on: (.*)", said)
    fsqueue_cli(*shlex.split(again)[1:])
    assert payloads(FIRST) == ["a", "b"]


def test_json_has_the_queue_on_standard_error(fsqueue_cli: Run) -> None:
    done = fsqueue_cli("map", "--json", "--", "true", ":::", "a")
    assert json.loads(done.stdout)["completed"] == 1
    [line] = [json.loads(line) for line in done.stderr.splitlines()]
    assert line == {"event": "inserted", "queue": FIRST, "inserted": 1}


def test_options_of_run_mean_the_same_here() -> None:
    ours = {option.name: option for option in mapping.map_.params}
    assert set(mapping.TAKEN_OVER) <= ours.keys()
    theirs = {option.name: option for option in run.params}
    for name in ours.keys() & theirs.keys():
        assert ours[name].opts == theirs[name].opts, name
    others = {"queue", "null"}
    assert ours.keys() - theirs.keys() == others
    assert isinstance(mapping.map_, click.Command)


DIES = """
import os, sys
import fsqueue.commit
from fsqueue_cli.entry import main

def dying(holder, name):
    real = getattr(holder, name)
    def then_dies(*arguments, **more):
        real(*arguments, **more)
        os._exit(9)
    setattr(holder, name, then_dies)

dying({holder}, {name!r})
sys.argv = ["fsqueue", "map", "--", "true", "{{}}", ":::", "a", "b"]
main()
"""


@pytest.mark.parametrize(
    ("holder", "name", "inserted"),
    [("fsqueue.Queue", "create", 0), ("fsqueue.commit.Commit", "stage", 0), ("fsqueue.commit.Commit", "publish", 2)],
)
def test_a_crash_leaves_all_arguments_or_none(fsqueue_cli: Run, holder: str, name: str, inserted: int) -> None:
    """docs/decisions/0072-help-and-map.md has the table."""
    code = DIES.format(holder=holder, name=name)
    died = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=PATIENCE_S)
    assert died.returncode == 9, died.stderr
    assert Queue(FIRST).status().inserted == inserted
    fsqueue_cli("map", "--", "true", "{}", ":::", "c")
    assert payloads("fsqueue-map-2") == ["c"]
    fsqueue_cli("run", FIRST, "--", "true", "{}")
    assert payloads(FIRST) == ["a", "b"][:inserted]
    fsqueue_cli("gc", FIRST)
    assert Queue(FIRST).status().inserted == inserted


# -- docs/from-parallel.md ----------------------------------------------------------------------------------------

PAGE = (TOP / "docs" / "from-parallel.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(parallel .*?|[^`]*\| parallel .*?)` \| `(.*?)` \|$", PAGE, re.MULTILINE)


def test_the_page_has_rows() -> None:
    table = PAGE.partition("## Their commands, and ours")[2].partition("\n\n`{}`")[0]
    assert len(ROWS) == table.count("\n|") - 2 >= 18


@pytest.mark.parametrize(("theirs", "ours"), ROWS)
def test_a_command_beside_gnu_parallel_s(tmp_path: Path, theirs: str, ours: str) -> None:
    """Each does what the other would: it comes to each file, and succeeds."""
    typed = Typed(tmp_path, "docs/from-parallel.md", {}, {})
    typed.file("a.log", "1\n")
    typed.file("b c.log", "2\n")
    typed.file("names.txt", "a.log\nb c.log\n")
    typed.file("tiles.csv", "tile,zoom\n7,2\n8,3\n")
    typed.file("load.sh", "cat >>loaded\n")
    printed = typed._shell(f"{ours.replace(chr(92) + '|', '|')}\n", ":", theirs)
    assert "2 completed" in printed or "--dry-run" in ours, printed
    expected = {"cp ": ["a.old", "b c.old"], "sort": ["a.sorted", "b c.sorted"], "-- gzip": ["a.log.gz", "b c.log.gz"]}
    for word, files in expected.items():
        if word in ours and "--dry-run" not in ours:
            assert [name for name in files if not (tmp_path / name).exists()] == []
    if "--dry-run" in ours:
        assert (printed.splitlines()[:2], (tmp_path / "a.log").exists()) == (["gzip a.log", "gzip 'b c.log'"], True)
    if "load.sh" in ours:
        assert [json.loads(line)["payload"] for line in (tmp_path / "loaded").read_text().splitlines()] == [
            "a.log", "b c.log",
        ]  # fmt: skip
