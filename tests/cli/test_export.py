"""export, import and cp: the same tasks, as they were, and once, whatever is killed."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsqueue_cli.exporting import Chosen, insert_set

import fsqueue
from fsqueue import Queue, Task
from fsqueue.clock import ManualClock
from tests.cli.conftest import Run, Spawn
from tests.support import Crash, CrashingFilesystem
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once
DUE = 4_000_000_000.5
TASKS = [
    Task({"n": 1, "ü": [None, 0.1]}), Task("text", priority="p"), Task(b"\0\xff", priority=-3), Task(None),
    Task(2, available_at=DUE), Task({"k": 1}, key="one", priority=4), Task("k", key="two", available_at=DUE),
]  # fmt: skip


def about(queue: Any, *states: str) -> Counter[str]:
    """Return what a queue has to do: payload, key, priority and time, each with how often it is there."""
    return Counter(
        repr((task.payload, task.key, task.priority, task.available_at if task.state == "delayed" else None))
        for task in queue.tasks()
        if not states or task.state in states
    )


@pytest.fixture
def src(tmp_path: Path) -> Queue:
    """A queue with tasks of all kinds, one of them leased, and one dead letter."""
    queue = Queue.create(tmp_path / "src", max_attempts=1)
    for payload in ("dead", "leased"):
        queue.insert(payload)
        [task] = queue.lease()
        if payload == "dead":
            task.fail("no")
    for task in TASKS:
        queue.insert_many([task])
    return queue


@pytest.fixture
def dst(tmp_path: Path) -> Queue:
    return Queue.create(tmp_path / "dst")


def test_a_file_brings_all_as_it_was(
    fsqueue_cli: Run, src: Queue, dst: Queue, tmp_path: Path, place_of: Callable[[Path], str]
) -> None:
    """At a path, and at an address."""
    done = fsqueue_cli("export", place_of(src.path))
    assert "1 leased task left out" in done.stderr
    assert len(done.stdout.splitlines()) == len(TASKS)
    file = tmp_path / "tasks.jsonl"
    file.write_text(done.stdout + "\n")
    place = place_of(dst.path)
    first = json.loads(fsqueue_cli("import", place, file, "--json").stdout)
    assert (first["inserted"], first["tasks"], first["keyed"], first["repeated"]) == (7, 7, 2, False)
    assert about(dst) == about(src, "waiting", "delayed")
    again = fsqueue_cli("import", place, file)
    assert again.stdout == "0\n"
    assert "nothing was added" in again.stderr
    assert fsqueue_cli("import", place, "-", input=file.read_text()).stdout == "0\n"
    named = fsqueue_cli("import", place, file, "--commit", "second")
    assert named.stdout == "5\n"
    assert "2 tasks of 7 left out" in named.stderr


def test_an_output_that_was_cut_is_refused(fsqueue_cli: Run, src: Queue, dst: Queue, tmp_path: Path) -> None:
    """A repetition has other bytes, and would bring the first tasks once more."""
    whole = fsqueue_cli("export", src.path).stdout
    lines = whole.splitlines(keepends=True)
    assert [json.loads(line)["last"] for line in lines] == [False] * 6 + [True]
    for cut in range(1, len(lines)):
        refused = fsqueue_cli("import", dst.path, "-", input="".join(lines[:cut]), code=2)
        assert "ends before the last line" in refused.stderr
    assert dst.status().inserted == 0
    assert fsqueue_cli("import", dst.path, "-", input=whole).stdout == "7\n"
    Queue.create(tmp_path / "other").insert(1)
    some = fsqueue_cli("export", tmp_path / "other", src.path, tmp_path / "missing", code=5).stdout
    assert [json.loads(line).get("last") for line in some.splitlines() if "error" not in line[:60]].count(True) == 0


def test_the_same_lines_are_the_same_file(fsqueue_cli: Run, src: Queue, dst: Queue) -> None:
    """Whatever an editor or a transfer has made of the ends of lines."""
    lines = fsqueue_cli("export", src.path).stdout
    assert fsqueue_cli("import", dst.path, "-", input=lines).stdout == "7\n"
    for changed in (lines[:-1], lines.replace("\n", "\r\n"), f"{lines}\n\n", f"\n{lines}", f"{lines} \n"):
        assert fsqueue_cli("import", dst.path, "-", input=changed).stdout == "0\n"
    assert dst.status().remaining == 7


def test_lines_behind_the_last_one_are_refused(fsqueue_cli: Run, src: Queue, dst: Queue) -> None:
    """As in 'cat tasks.jsonl tasks.jsonl'."""
    lines = fsqueue_cli("export", src.path).stdout
    for more in (lines, '{"payload":1}'):
        refused = fsqueue_cli("import", dst.path, "-", input=lines + more, code=2)
        assert "Line 8 of standard input is behind the last line" in refused.stderr
    assert dst.status().inserted == 0


@pytest.mark.parametrize("what", ["cut", "two"])
def test_the_advice_of_the_error_works_as_typed(
    fsqueue_cli: Run, src: Queue, dst: Queue, tmp_path: Path, what: str
) -> None:
    src.insert({"large": 2**64 - 1, "float": 1.0, "last": {"last": False}})
    lines = fsqueue_cli("export", src.path).stdout
    kept = "".join(lines.splitlines(keepends=True)[:-1]) if what == "cut" else lines * 2
    file = tmp_path / "tasks.jsonl"
    file.write_text(kept)
    said = fsqueue_cli("import", dst.path, file, code=2).stderr
    [advice] = re.findall(r"are meant: (.*)", said)
    begin, end = advice.replace("FILE", str(file)).split(" | ")
    printed = subprocess.run(["sh", "-c", begin], capture_output=True, text=True, check=True).stdout
    words = shlex.split(end.replace(" Q ", f" {dst.path} "))
    assert words[:2] == ["fsqueue", "import"]
    fsqueue_cli(*words[1:], input=printed)
    meant = Counter(
        {
            repr(json.loads(line)["payload"]): 1 + (what == "two")
            for line in kept.splitlines()
            if "payload" in json.loads(line) and json.loads(line)["key"] is None
        }
    )
    assert (
        Counter(repr(task.payload) for task in dst.tasks() if task.key is None and not isinstance(task.payload, bytes))
        == meant
    )


@pytest.mark.parametrize("nothing", ["", "\n \r\n"], ids=["empty", "blank"])
def test_nothing_to_import_is_exit_code_3(fsqueue_cli: Run, dst: Queue, nothing: str, tmp_path: Path) -> None:
    """As behind a pipe whose export failed."""
    (tmp_path / "file").write_text(nothing)
    for place in ("-", tmp_path / "file"):
        done = fsqueue_cli("import", dst.path, place, input=nothing, code=3)
        assert done.stdout == "0\n"
        assert "has no task, so nothing was inserted. Did the command" in done.stderr
    assert json.loads(fsqueue_cli("import", dst.path, "-", "--json", input="", code=3).stdout)["inserted"] == 0


def test_an_empty_name_is_none(fsqueue_cli: Run, src: Queue, dst: Queue, place_of: Callable[[Path], str]) -> None:
    """As of a variable of the shell that is not set."""
    place = place_of(dst.path)
    for command in (("import", place, "-"), ("cp", src.path, place)):
        refused = fsqueue_cli(*command, "--commit", "", input='{"payload":1}', code=2)
        assert "''" in refused.stderr
    assert dst.status().inserted == 0


def test_a_priority_stays_a_text_or_a_number(fsqueue_cli: Run, dst: Queue, place_of: Callable[[Path], str]) -> None:
    given = ["x", "5", 5, ""]
    lines = "".join(json.dumps({"payload": n, "priority": one}) + "\n" for n, one in enumerate(given))
    fsqueue_cli("import", place_of(dst.path), "-", input=lines)
    assert {task.payload: task.priority for task in dst.tasks()} == dict(enumerate(given))


def test_states_and_conditions(fsqueue_cli: Run, src: Queue, dst: Queue) -> None:
    dead = fsqueue_cli("export", src.path, "--state", "dead")
    assert fsqueue_cli("import", dst.path, "-", input=dead.stdout).stdout == "1\n"
    assert fsqueue_cli("dead", "purge", src.path, "-", "--yes", input=dead.stdout).stdout == "1\n"
    leased = fsqueue_cli("export", src.path, "--state", "leased")
    assert fsqueue_cli("import", dst.path, "-", input=leased.stdout).stdout == "1\n"
    some = fsqueue_cli("export", src.path, "--where", "payload.n=1", "--state", "waiting", "--state", "dead")
    assert fsqueue_cli("import", dst.path, "-", input=some.stdout).stdout == "1\n"
    there = [task.payload for task in dst.tasks()]
    assert sorted(map(str, there)) == sorted(["dead", "leased", str({"n": 1, "ü": [None, 0.1]})])
    assert fsqueue_cli("import", dst.path, "-", input=fsqueue_cli("ls", src.path, "--json").stdout).stdout == "8\n"


def test_a_dead_letter_without_a_payload_is_left_out(fsqueue_cli: Run, tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "q", shards=1)
    queue.insert_many(["x"], batch_tasks=1)
    [task] = queue.lease()
    [file] = queue.path.rglob("queue/*/*.jsonl")
    file.write_bytes(b"torn\n")
    task.bury("no")
    done = fsqueue_cli("export", queue.path, "--state", "dead")
    assert done.stdout == ""
    assert "1 dead letter left out" in done.stderr


BAD = {
    "not json": ("{", "1"), "a payload alone": ("7", "Line 2"), "no payload": ('{"id":"x"}', "either a payload or b64"),
    "both": ('{"payload":1,"b64":"AA=="}', "either a payload"), "no base64": ('{"b64":"?"}', "no base64"),
    "a completed task": ('{"payload":1,"state":"completed"}', "fsqueue retry"),
    "a key that is none": ('{"payload":1,"key":7}', "key"), "a priority": ('{"payload":1,"priority":1.5}', "priority"),
    "a list as priority": ('{"payload":1,"priority":[1]}', "priority"), "a last": ('{"payload":1,"last":1}', "last"),
    "a last as text": ('{"payload":1,"last":"false"}', "last"),
    "a time": ('{"payload":1,"available_at":"now"}', "available_at"),
    "a lost one": ('{"payload":null,"payload_lost":true}', "payload is lost"),
    "a key too long": (json.dumps({"payload": 1, "key": "k" * 2000}), "line 2"),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_at_a_bad_line_nothing_is_inserted(fsqueue_cli: Run, dst: Queue, bad: tuple[str, str]) -> None:
    line, said = bad
    refused = fsqueue_cli("import", dst.path, "-", input=f'{{"payload":1}}\n{line}\n', code=2)
    assert said in refused.stderr
    assert dst.status().inserted <= ("key" in line and len(line) > 1000)
    assert len(refused.stderr.splitlines()) == 1


def test_what_is_refused(fsqueue_cli: Run, dst: Queue, tmp_path: Path) -> None:
    assert "cannot be read" in fsqueue_cli("import", dst.path, tmp_path / "missing", code=1).stderr
    assert "one of both" in fsqueue_cli("import", dst.path, code=2).stderr
    assert "--take-leased" in fsqueue_cli("import", dst.path, "-", "--take-leased", code=2, input="").stderr
    large = json.dumps({"payload": "x" * (dst.settings.task_bytes_max + 1)})
    refused = fsqueue_cli("import", dst.path, "-", input=f'{{"payload":1}}\n{large}\n', code=14)
    assert "line 2" in refused.stderr
    assert dst.status().inserted == 0
    assert "are one queue" in fsqueue_cli("cp", dst.path, dst.path, code=2).stderr


def test_cp_once_and_again(
    fsqueue_cli: Run, src: Queue, dst: Queue, tmp_path: Path, place_of: Callable[[Path], str]
) -> None:
    empty = Queue.create(tmp_path / "empty")
    assert fsqueue_cli("cp", empty.path, dst.path).stdout == "0\n"
    empty.insert(1)
    assert fsqueue_cli("cp", empty.path, dst.path, "--where", "payload=1").stdout == "1\n"  # nothing was noted
    dst.purge()
    source, target = place_of(src.path), place_of(dst.path)
    first = fsqueue_cli("cp", source, target)
    assert first.stdout == "7\n"
    assert about(dst) == about(src, "waiting", "delayed")
    again = fsqueue_cli("cp", source, target)
    assert again.stdout == "0\n"
    assert "--commit NAME" in again.stderr
    some = fsqueue_cli("cp", source, target, "--state", "dead", "--json")
    assert json.loads(some.stdout)["inserted"] == 1
    named = fsqueue_cli("cp", source, target, "--commit", "again")
    assert named.stdout == "5\n"
    assert "2 tasks left out: keys" in named.stderr


@pytest.mark.parametrize("torn", [False, True])
def test_killed_at_each_change_of_the_disk(tmp_path: Path, clock: ManualClock, torn: bool) -> None:
    """What has no key appears at one instant. The same call brings the rest, and inserts nothing twice."""
    src = Queue(Queue.create(tmp_path / "src", shards=1).path, clock=clock)
    src.insert_many(TASKS)
    for at in range(1, 1000):
        place = Queue.create(tmp_path / f"{at}", shards=1, durability="none").path
        fs = CrashingFilesystem(str(place), at=at, torn=torn)

        def copy(queue: Queue) -> int:
            return insert_set(queue, "copy", Chosen(src, ("waiting", "delayed"), ()).read, True, None).new

        try:
            copy(Queue(place, filesystem=fs, clock=clock))
        except Crash:
            assert fs.dead
        fs.bury()
        assert sum(task.key is None for task in Queue(place, clock=clock).tasks()) in (0, 5)
        copy(Queue(place, clock=clock))
        assert about(Queue(place, clock=clock)) == about(src)
        assert copy(Queue(place, clock=clock)) == 0
        if not fs.dead:
            break
    assert at > 20


def test_a_command_that_is_killed(fsqueue_cli: Run, spawn: Spawn, tmp_path: Path, dst: Queue) -> None:
    lines = [json.dumps({"payload": n} | ({"key": str(n)} if n % 10 == 0 else {})) for n in range(3000)]
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join(lines))
    for moment in ("staging/*/*.jsonl", "commits/import-*", "keys/*"):
        going = spawn("import", dst.path, file)
        until(lambda going=going, moment=moment: going.poll() is not None or any(dst.path.rglob(moment)), moment)
        going.send_signal(signal.SIGKILL)
        going.wait(PATIENCE_S)
        assert sum(task.key is None for task in dst.tasks()) in (0, 2700)
    fsqueue_cli("import", dst.path, file)
    assert sorted(task.payload for task in dst.tasks()) == list(range(3000))
    [report] = [dst.commit(path.stem).committed() for path in dst.path.rglob("commits/import-*.keys.json")]
    assert report is not None
    for task in iter(lambda: dst.lease(100), []):
        fsqueue.Queue.complete(dst, task)
    assert fsqueue_cli("import", dst.path, file).stdout == "0\n"


def test_a_file_that_is_written_to_meanwhile(tmp_path: Path, dst: Queue) -> None:
    from fsqueue_cli.task_lines import TaskLines

    file = tmp_path / "tasks.jsonl"
    file.write_text('{"payload":1}\n')
    with TaskLines(str(file), 1000) as lines:
        lines.check()
        file.write_text('{"payload":1}\n{"payload":2}\n')
        with pytest.raises(fsqueue.FsqueueError, match="was written to"):
            insert_set(dst, "name", lines.read, False, None)
    assert dst.status().inserted == 0
