"""dead list, retry, purge."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from fsqueue import Bury, Queue
from fsqueue.functions import handler
from fsqueue.worker.causes import Memory
from tests.cli.conftest import Run
from tests.conftest import QueueFactory
from tests.pages import text_of


@pytest.fixture
def buried(queue_factory: QueueFactory) -> Queue:
    queue = queue_factory()
    queue.insert_many({"n": number} for number in range(5))
    for task in queue.lease(5):
        number = task.payload["n"]
        task.bury(
            f"timed out after {number} s\nmore"
            if number < 3
            else f"exit status 1: bad \x1b[1m{'even' if number % 2 else 'odd'}"
        )
    return queue


def test_list_groups_by_reason(fsqueue_cli: Run, buried: Queue) -> None:
    lines = fsqueue_cli("dead", "list", buried.path).stdout.splitlines()
    assert len(lines) == 8
    assert lines[0].split()[:4] == ["3", "timed", "out", "after"]
    for line in lines[1:4]:  # numbers tell the cases apart
        assert re.fullmatch(r' {11}[0-9a-f]+\.\d+  {"n":(\d)}  timed out after \1 s', line), line
    assert re.search(r'  {"n":[34]}$', lines[5]), lines[5]
    assert "\x1b" not in "".join(lines)


def test_all_that_ran_out_of_memory_is_one_group_whatever_the_sign(fsqueue_cli: Run, queue: Queue) -> None:
    ends = ["exit status 1): MemoryError: no", "MemoryError: )", "killed by SIGKILL; the memory was used up)"]
    reasons = [Memory.SHORT.reason(end.rstrip(")")) for end in ends]
    reasons += [Memory.PROBABLY_SHORT.reason("exit status 137"), "out of memory, says the program"]
    queue.insert_many(range(len(reasons)))
    for task, reason in zip(queue.lease(9), reasons, strict=True):
        task.bury(reason)
    lines = fsqueue_cli("dead", "list", queue.path).stdout.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" " * 11)] == ["3", "1", "1"]
    assert {failure.dead for failure in queue.activity().failures} == {3, 1}


@pytest.mark.parametrize("more", [(), ("--each",)])
def test_an_empty_list_says_so_on_standard_error(fsqueue_cli: Run, buried: Queue, more: tuple[str, ...]) -> None:
    done = fsqueue_cli("dead", "list", buried.path, "--where", "error~nothing", *more)
    assert (done.stdout, done.stderr) == ("", f"no dead letter of {buried.path} meets the conditions\n")
    buried.purge_dead()
    done = fsqueue_cli("dead", "list", buried.path, *more)
    assert (done.stdout, done.stderr) == ("", f"{buried.path} has no dead letters\n")
    assert fsqueue_cli("dead", "list", buried.path, *more, "--json").output == ""


def test_a_list_ends_with_what_to_type_next(fsqueue_cli: Run, buried: Queue) -> None:
    said = fsqueue_cli("dead", "list", buried.path).stderr
    for command in re.findall(r"fsqueue (show|dead list|dead retry) (\S+)((?: [0-9a-f]+\.\d+| --each)?)", said):
        verb, path, more = command
        fsqueue_cli(*verb.split(), path.rstrip("."), *more.split())
    assert (buried.status().waiting, buried.status().dead) == (5, 0)


def test_a_long_message_is_whole_and_many_tasks_are_counted(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many(range(5))
    long = f"the file is damaged: /scratch/{'x' * 500}.jpg"
    for task in queue.lease(5):
        task.bury(long)
    lines = fsqueue_cli("dead", "list", queue.path).stdout.splitlines()
    assert long in lines[0]
    assert (len(lines), lines[-1].strip()) == (5, "and 2 more")


def test_exit_statuses_are_no_mere_numbers(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many(range(4))
    for task, reason in zip(
        queue.lease(4), ("status 1: at 5", "status 1: at 66", "status 12: at 5", "status 2"), strict=True
    ):
        task.bury(f"exit {reason}")
    assert len(fsqueue_cli("dead", "list", queue.path).stdout.splitlines()) == 7


def test_list_each_and_as_json(fsqueue_cli: Run, buried: Queue) -> None:
    assert len(fsqueue_cli("dead", "list", buried.path, "--each").stdout.splitlines()) == 5
    letters = [json.loads(line) for line in fsqueue_cli("dead", "list", buried.path, "--json").stdout.splitlines()]
    assert {letter["payload"]["n"] for letter in letters} == {0, 1, 2, 3, 4}
    assert all(letter["worker"]["pid"] and letter["at"] for letter in letters)


def test_retry_some_then_all(fsqueue_cli: Run, buried: Queue) -> None:
    one = next(buried.dead()).id
    assert fsqueue_cli("dead", "retry", buried.path, one).stdout == "1\n"
    assert (
        fsqueue_cli("dead", "retry", buried.path, "--where", "payload.n>=3", "--where", "error~odd|even").stdout
        in "2\n1\n"
    )
    fsqueue_cli("dead", "retry", buried.path)
    assert (buried.status().waiting, buried.status().dead) == (5, 0)


def test_purge_some_then_all(fsqueue_cli: Run, buried: Queue) -> None:
    listed = fsqueue_cli("dead", "list", buried.path, "--json", "--where", "payload.n=4").stdout
    assert fsqueue_cli("dead", "purge", buried.path, "-", "--yes", input=listed).stdout == "1\n"
    assert json.loads(fsqueue_cli("dead", "purge", buried.path, "--yes", "--json").stdout) == {
        "queue": str(buried.path),
        "purged": 4,
    }
    assert buried.status().inserted == 0


@pytest.mark.parametrize("verb", [["purge", "--yes"], ["retry"]], ids=lambda verb: str(verb[0]))
def test_of_named_letters_those_that_meet_the_conditions(fsqueue_cli: Run, buried: Queue, verb: list[str]) -> None:
    ids = {letter.payload["n"]: letter.id for letter in buried.dead()}
    answer = fsqueue_cli("dead", *verb, buried.path, ids[1], ids[4], "--where", "payload.n>=3")
    assert answer.stdout == "1\n"
    assert {letter.payload["n"] for letter in buried.dead()} == {0, 1, 2, 3}


@pytest.mark.parametrize("verb", [["purge", "--yes"], ["retry"]], ids=lambda verb: str(verb[0]))
def test_no_ids_on_standard_input_are_none_and_not_all(fsqueue_cli: Run, buried: Queue, verb: list[str]) -> None:
    """As from a search that has found nothing."""
    assert fsqueue_cli("dead", *verb, buried.path, "-", input="\n").stdout == "0\n"
    assert buried.status().dead == 5


@pytest.mark.parametrize("bad", ["", "error", "size>3", "reason~x", "error~(", "payload.n>many", "=", "__class__=x"])
def test_a_condition_that_is_none_is_a_usage_error(fsqueue_cli: Run, buried: Queue, bad: str) -> None:
    fsqueue_cli("dead", "retry", buried.path, "--where", bad, code=2)
    assert buried.status().dead == 5


def test_after_a_wrong_deployment_the_page_s_command_brings_calls_back(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/functions.md: calls that no worker had are retried, other dead letters are not."""
    said = re.search(r"`fsqueue (dead retry Q --where '[^']*')`", " ".join(text_of("docs/functions.md").split()))
    assert said is not None
    (tmp_path / "wrong_deployment.py").write_text("import fsqueue\n@fsqueue.task\ndef g(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    handle = handler(["wrong_deployment"])
    queue.insert_many([{"call": "tiles:render"}, {"call": "wrong_deployment:g", "args": [1]}], batch_tasks=1)
    for task in queue.lease(2):
        with pytest.raises(Bury) as reason:
            handle(task.payload)
        task.bury(str(reason.value))
    words = [str(queue.path) if word == "Q" else word for word in shlex.split(said[1])]
    assert fsqueue_cli(*words).output == "1\n"
    assert [task.payload["call"] for task in queue.tasks("waiting")] == ["tiles:render"]
