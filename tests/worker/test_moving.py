"""Tasks that move to another queue of their group when an attempt at them fails in a way that was named (`then_to`)."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group, InvalidArgument, StorageError, Task, Worker, WorkerReport
from fsqueue.worker import completion_updates, settling, shortages
from fsqueue.worker.causes import UNKNOWN, Cause, Memory
from fsqueue.worker.limits import Moves
from tests.waiting import until
from tests.worker import tasks
from tests.worker.support import drained, in_background, python

pytestmark = pytest.mark.once

ENDS = {
    "exit": "exit 75",
    "another exit": "exit 7",
    "timeout": "sleep 60",
    "memory": "echo 'numpy: Cannot allocate memory block'; exit 1",
    "kill": "kill -9 $$",
}
"""By payloads: how an attempt at them ends."""


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group.create(tmp_path / "group", shards=2, durability="none", max_attempts=1)


def run(group: Group, *on: str, payloads: tuple[Any, ...] = tuple(ENDS), **options: Any) -> WorkerReport:
    """Run a command for each task of `small`, whose attempts end as `ENDS` says."""
    group["small"].insert_many(payloads)
    cases = "".join(f"'{name}') {how};; " for name, how in ENDS.items())
    command = ["sh", "-c", f'case "$1" in {cases} esac', "sh", "{}"]
    return Worker(group["small"], command=command, then_to="big", on=on, **options).run()


def moved(group: Group, name: str = "big") -> list[Any]:
    return sorted(info.payload for info in group[name].tasks("waiting"))


def given_up(group: Group) -> list[Any]:
    return sorted(letter.payload for letter in group["small"].dead())


@pytest.mark.parametrize(
    ("on", "names"),
    [
        (["oom"], ["memory"]),
        (["exit=75"], ["exit"]),
        (["exit=1", "exit=7"], ["another exit", "memory"]),
        (["oom", "timeout", "exit=75"], ["exit", "memory", "timeout"]),
    ],
    ids=str,
)
def test_only_what_failed_so_moves(group: Group, on: list[str], names: list[str]) -> None:
    report = run(group, *on, task_timeout_s=1.0, processes=5)
    assert moved(group) == names
    assert given_up(group) == sorted(set(ENDS) - set(names))
    assert (report.moved, report.buried, report.ended) == (len(names), len(ENDS) - len(names), "drained")
    assert [info.attempt for info in group["big"].tasks()] == [0] * len(names), "all attempts are ahead of it"


@pytest.mark.parametrize("how", [{}, {"threads": 1}])
def test_a_function_without_memory_moves_its_task(group: Group, how: dict[str, Any]) -> None:
    given = [Task(b"\xff", priority=3, key="k"), Task({"a": [1]}, priority="z")]
    group["small"].insert_many(given)
    assert Worker(group["small"], tasks.no_memory, then_to="big", on=["oom"], **how).run() == drained(moved=2)
    found = {info.key: (info.payload, info.priority) for info in group["big"].tasks()}
    assert found == {one.key: (one.payload, one.priority) for one in given}
    assert group["small"].status().drained


def test_it_is_shown_in_both_queues(group: Group) -> None:
    run(group, "exit=75", payloads=("exit",))
    [old], [new] = group["small"].tasks("cancelled"), group["big"].tasks()
    assert group["small"].history(old.id)[-1].update == group["big"].history(new.id)[0].update is not None
    assert [one.id for one in group.lineage("big", new.id).ancestors] == [old.id]


# -- with other options ------------------------------------------------------------------------------------------------


def test_before_sysexits_comes_what_is_named(group: Group) -> None:
    """75 and 65 mean what --sysexits says only if they are not named."""
    command = python("import sys; sys.exit(int(sys.argv[1]))")
    group["small"].insert_many([65, 75])
    how: dict[str, Any] = {"sysexits": True, "then_to": "big"}
    assert Worker(group["small"], command=[*command, "{}"], on=["exit=65", "exit=75"], **how).run().moved == 2
    group["small"].insert_many([65, 75])
    report = Worker(group["small"], command=[*command, "{}"], on=["oom"], max_tasks=2, **how).run()
    assert (report.moved, report.buried, report.released) == (0, 1, 1)


def test_where_it_is_already_it_fails_as_usual(group: Group) -> None:
    """Else a task that nobody has memory for would be tried for ever."""
    run(group, "exit=75", payloads=("exit",))
    report = Worker(group, command=["sh", "-c", "exit 75"], then_to="big", on=["exit=75"]).run()
    assert (report.moved, report.buried) == (0, 1)
    [letter] = group["big"].dead()
    assert letter.reason.startswith("exit status 75")


def test_what_moved_is_no_failure_in_a_row(group: Group) -> None:
    report = run(group, "exit=75", payloads=("exit",) * 12, stop_after_failures=2)
    assert report == drained(moved=12)


def test_a_task_that_is_too_large_to_move_fails(group: Group) -> None:
    group["small"].insert("x" * 70_000)
    report = Worker(group["small"], command=["sh", "-c", "exit 75"], then_to="big", on=["exit=75"]).run()
    assert (report.moved, report.buried) == (0, 1)
    [letter] = group["small"].dead()
    first, _, second = letter.reason.partition("\n")
    assert first == "exit status 75"
    assert second.startswith("The task could not be moved to big: the task takes 70,0")


def test_one_whose_key_is_taken_there_is_left_out(group: Group) -> None:
    group["big"].insert("there", key="k")
    group["small"].insert("here", key="k")
    assert Worker(group["small"], tasks.no_memory, then_to="big", on=["oom"]).run() == drained(moved=1)
    assert moved(group) == ["there"]


def test_the_end_of_a_job_moves_nothing(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill that the job's end explains is no want of anything."""
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "none")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    group["small"].insert(1)
    events: list[str] = []
    worker = Worker(group["small"], command=python("import sys; sys.exit(75)"), then_to="big", on=["exit=75"],
                    tell=lambda event: events.append(event.kind))  # fmt: skip
    thread, reports = in_background(worker)
    until(lambda: "moved" in events, "a failure")
    worker.stop()
    thread.join()
    assert reports[0].moved == 0
    assert (group["small"].status().waiting, group["big"].status().inserted) == (1, 0)


# -- when the filesystem fails, or the worker dies ---------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
def test_it_moves_once_though_the_filesystem_failed(group: Group, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    """Before the update, or after it: then nobody knows at first that it has moved."""
    real, tries = completion_updates.complete_and_insert, []

    def fails_once(mine: Any) -> Any:
        tries.append(1)
        if len(tries) > 1:
            return real(mine)
        if after:
            real(mine)
        raise StorageError("the file server")

    monkeypatch.setattr(settling.completion_updates, "complete_and_insert", fails_once)
    monkeypatch.setattr(settling, "RETRY_S", (0.01, 0.01))
    report = run(group, "exit=75", payloads=("exit",))
    assert len(tries) == 2
    assert report == drained(moved=1)
    assert moved(group) == ["exit"]


MOVES = """
import sys, fsqueue
from tests.worker import tasks
fsqueue.Worker(fsqueue.Group(sys.argv[1])["small"], tasks.no_memory, then_to="big", on=["oom"], threads=1).run()
"""


def moves_until(group: Group, is_killed: bool) -> None:
    """Run a worker until it ends, or kill it once it has moved a task."""
    before = group["big"].status().inserted
    with subprocess.Popen([*python(MOVES), str(group.path)]) as process:
        if is_killed:
            until(lambda: process.poll() is not None or group["big"].status().inserted > before, "a task that moves")
            process.kill()


def test_a_task_is_in_one_of_the_queues_whenever_the_worker_dies(tmp_path: Path) -> None:
    """Workers are killed while they move tasks. In the end each task is in `big`, once."""
    group = Group.create(tmp_path / "lasting", shards=2, lease_s=1.0, max_attempts=100)
    group["small"].insert_many(range(300), batch_tasks=30)
    rounds, kills = 0, 8
    while not group["small"].status().drained:
        moves_until(group, rounds < kills)
        rounds += 1
    assert rounds > 1
    assert moved(group) == list(range(300))
    assert group["small"].status().as_dict()["dead"] == 0


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"then_to": "big"}, "give both"),
        ({"on": ["oom"]}, "give both"),
        ({"then_to": "big", "on": "oom"}, "must name what moves a task to big"),
        ({"then_to": "big", "on": ["memory"]}, "not 'memory'"),
        ({"then_to": "big", "on": ["exit=0"]}, "from 1 to 255"),
        ({"then_to": "big", "on": ["exit=x"]}, "not 'exit=x'"),
        ({"then_to": "big", "on": ["exit=" + 5000 * "9"]}, "from 1 to 255"),
        ({"then_to": "", "on": ["oom"]}, "name"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(group: Group, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        Worker(group["small"], tasks.no_memory, **options)


def test_a_queue_of_no_group_has_no_other(queue: Any) -> None:
    with pytest.raises(InvalidArgument, match="no queue of a group"):
        Worker(queue, tasks.no_memory, then_to="big", on=["oom"])


@pytest.mark.parametrize(
    ("cause", "on"),
    [
        (Cause(Memory.SHORT), ["oom"]),
        (Cause(Memory.PROBABLY_SHORT, 137), ["oom", "exit=137"]),
        (Cause(exit_status=137), ["exit=137"]),
        (UNKNOWN, []),
    ],
)
def test_a_task_moves_for_its_cause(cause: Cause, on: list[str]) -> None:
    for asked in ("oom", "timeout", "exit=137", "exit=1"):
        assert Moves.of("big", [asked]).take(False, cause) is (asked in on)
        assert Moves.of("big", [asked]).take(True, cause) is (asked == "timeout")


@pytest.mark.parametrize("how", [{}, {"threads": 1}])
def test_what_a_function_says_is_no_cause(group: Group, how: dict[str, Any]) -> None:
    """The words with which a reason of the worker begins, in the reason of a function."""
    words = ["out of memory", "probably out of memory (exit status 75)", "exit status 75"]
    group["small"].insert_many({"do": "bury", "why": why} for why in words)
    report = Worker(group["small"], tasks.obey, then_to="big", on=["oom", "exit=75"], **how).run()
    assert (report.moved, report.buried) == (0, 3)


def test_a_function_whose_process_is_killed_for_memory_moves_its_task(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reason begins with the end of that process."""
    monkeypatch.setattr(shortages, "oom_kills", lambda: None)
    group["small"].insert({"do": "kill"})
    assert Worker(group["small"], tasks.obey, then_to="big", on=["oom"]).run() == drained(moved=1)
    group["small"].insert({"do": "vanish"})
    report = Worker(group["small"], tasks.obey, then_to="big", on=["oom", "exit=5"]).run()
    assert (report.moved, report.buried) == (0, 1), "exit statuses are those of commands"
