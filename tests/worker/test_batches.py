"""Commands that get several tasks: what they are given, how they answer, and what their ends mean for each task."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fsqueue import Group, InvalidArgument, LeaseLost, Queue, Worker
from fsqueue.errors import UNKEPT
from fsqueue.format.results import RESULT_BYTES_MAX
from fsqueue.worker import Event, batches, output, shortages
from fsqueue.worker.jobs import Job
from fsqueue.worker.limits import FAILURES_FIRST
from fsqueue.worker.settling import Renewed
from tests.support import QueueFactory
from tests.waiting import PATIENCE_S, until
from tests.worker import tasks
from tests.worker.support import Renewals, drained, in_background, python, time_out, until_there
from tests.worker.test_shortages import CALLS, Refused

pytestmark = pytest.mark.once

BEGIN = """
import json, os, sys, time
tasks = [json.loads(line) for line in sys.stdin]
with open("LOG", "a") as log:
    log.write(json.dumps([task["payload"] for task in tasks]) + "\\n")
def answer(task, **what):
    print(json.dumps({"id": task["id"]} | what), flush=True)
def until_there(name):
    os.system(UNTIL.replace("NAME", name))
"""


class Program:
    """A program for batches in Python, which notes the payloads that each of its processes gets."""

    def __init__(self, directory: Path, code: str = "") -> None:
        self.directory, self.log = directory, directory / "log"
        path = directory / f"program-{hash(code)}.py"
        path.write_text(
            BEGIN.replace("LOG", str(self.log)).replace("UNTIL", repr(until_there(directory / "NAME"))) + code
        )
        self.argv = [sys.executable, str(path)]

    def worker(self, queue: Queue, most: int = 100, **options: Any) -> Worker:
        return Worker(queue, command=self.argv, tasks_per_command=most, **options)

    @property
    def given(self) -> list[list[Any]]:
        """The payloads of each process, in the order in which these began."""
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def go(self, name: str = "go") -> None:
        (self.directory / name).touch()


def results(queue: Queue) -> dict[Any, Any]:
    return {one.payload: one.result for one in queue.results() if one.state == "completed"}


def reasons(queue: Queue) -> dict[Any, str]:
    return {letter.payload: letter.reason for letter in queue.dead()}


@pytest.fixture
def gathers_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command begins once it has as many tasks as it may have."""
    monkeypatch.setattr(batches, "GATHER_S", 10 * PATIENCE_S)


# -- what a command is given


def test_a_command_gets_its_tasks_on_standard_input(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in batches.OF_ONE_TASK:
        monkeypatch.setenv(name.decode(), "of a command around this one")
    queue.insert_many([{"x": "é\n"}, None, 7, b"\xff\x00"])
    code = f"import os, sys; open({str(tmp_path / 'in')!r}, 'w').write(sys.stdin.read() + repr(sorted(os.environ)))"
    assert Worker(queue, command=python(code), tasks_per_command=4).run() == drained(completed=4)
    *lines, environment = (tmp_path / "in").read_text().splitlines()
    assert "FSQUEUE_SLOT" in environment
    assert not any(f"'{name.decode()}'" in environment for name in batches.OF_ONE_TASK)
    found = [json.loads(line) for line in lines]
    assert [{key: one[key] for key in ("payload", "b64") if key in one} for one in found] == [
        {"payload": {"x": "é\n"}}, {"payload": None}, {"payload": 7}, {"b64": "/wA="}
    ]  # fmt: skip
    assert {(one["attempt"], one["queue"]) for one in found} == {(1, str(queue.path))}
    assert {one["id"] for one in found} == {one.id for one in queue.results()}
    assert all(one["token"].startswith(f"{one['id']}@") for one in found)


def test_braces_that_are_text_stay(queue: Queue, tmp_path: Path) -> None:
    queue.insert_many([{"tile no": 1}, {"print $1": 2}])
    code = f"import sys; open({str(tmp_path / 'words')!r}, 'w').write(repr(sys.argv[1:]))"
    command = [*python(code), "{{x}}", "${y}", "{print $1}", "{tile no}"]
    assert Worker(queue, command=command, tasks_per_command=2).run() == drained(completed=2)
    assert (tmp_path / "words").read_text() == "['{x}', '${y}', '{print $1}', '{tile no}']"


@pytest.mark.usefixtures("gathers_all")
def test_tasks_are_gathered_until_a_command_has_as_many_as_it_may_have(queue: Queue, tmp_path: Path) -> None:
    for first in range(0, 60, 10):
        queue.insert_many(range(first, first + 10))
    program = Program(tmp_path)
    assert program.worker(queue, 30, processes=2).run() == drained(completed=60)
    assert list(map(len, program.given)) == [30, 30]
    assert sorted(chain.from_iterable(program.given)) == list(range(60))


def test_a_command_does_not_wait_for_tasks_that_do_not_come(queue: Queue, tmp_path: Path) -> None:
    queue.insert_many(range(5))
    program = Program(tmp_path)
    assert program.worker(queue).run() == drained(completed=5)
    assert sorted(chain.from_iterable(program.given)) == list(range(5))


@pytest.mark.usefixtures("gathers_all")
def test_the_payloads_of_a_command_are_bounded(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "INPUT_BYTES_MAX", 250)
    queue.insert_many(["x" * 80] * 7 + ["y" * 1000])
    program = Program(tmp_path)
    worker = program.worker(queue, 8, max_tasks=8)
    thread, reports = in_background(worker)
    until(lambda: len(program.given) >= 2, "commands that are full")
    worker.stop()
    thread.join(PATIENCE_S)
    assert reports[0].completed == sum(map(len, program.given)) <= 8
    assert set(map(len, program.given)) <= {1, 2}
    assert max(map(len, program.given)) == 2


# -- the end of a command without answers


def test_exit_status_0_completes_all(queue: Queue, tmp_path: Path) -> None:
    queue.insert_many(range(25))
    program = Program(tmp_path)
    assert program.worker(queue, 10, processes=3).run() == drained(completed=25)
    assert max(map(len, program.given)) <= 10
    assert results(queue) == dict.fromkeys(range(25))
    found = {one.payload: one for one in queue.results()}
    for given in program.given:
        assert len({found[payload].took_s for payload in given}) == 1, "a share of the time of its command"
    for one in found.values():
        assert one.cpu_s is not None
        assert (one.peak_memory_bytes or 0) > 1 << 20


@pytest.mark.usefixtures("gathers_all")
def test_one_that_ends_its_command_takes_no_other_with_it(queue_factory: QueueFactory, tmp_path: Path) -> None:
    """All of a failed command are tried again, each alone: else they would all become dead letters with that one."""
    queue = queue_factory(max_attempts=2)
    queue.insert_many(range(12))
    program = Program(tmp_path, "if any(task['payload'] == 5 for task in tasks): os.kill(os.getpid(), 11)")
    said: list[str] = []
    report = program.worker(queue, 12, processes=3, tell=lambda event: event.text and said.append(event.text)).run()
    assert (report.completed, report.failed, report.buried, report.ended) == (11, 13, 1, "drained")
    assert Counter(map(len, program.given)) == {12: 1, 1: 12}
    assert list(reasons(queue)) == [5]
    assert reasons(queue)[5].startswith("killed by SIGSEGV")
    first = next(task for task in queue.results() if task.payload == 3)
    assert first.error is not None
    assert "of a command with 12 tasks without an answer" in first.error


@pytest.mark.parametrize("option", ["stop_after_failures", "exclude_after", None])
def test_a_failed_command_is_one_failure_in_a_row(queue: Queue, tmp_path: Path, option: str | None) -> None:
    """Not one for each task: these say that the node or the command is broken."""
    queue.insert_many(range(FAILURES_FIRST * 2))
    program = Program(tmp_path, "sys.exit(len(tasks) > 1)")
    options: dict[str, Any] = {} if option is None else {option: 3}
    assert program.worker(queue, processes=4, **options).run() == drained(completed=20, failed=20)


def test_a_command_that_fails_always_ends_the_worker(queue: Queue, tmp_path: Path) -> None:
    queue.insert_many(range(FAILURES_FIRST))
    report = Program(tmp_path, "sys.exit(1)").worker(queue).run()
    assert report.ended == "failures"


# -- answers


def test_each_task_is_answered_for(queue_factory: QueueFactory, tmp_path: Path) -> None:
    queue = queue_factory(max_attempts=1)
    queue.insert_many(range(5))
    code = """
for task in reversed(tasks):
    n = task["payload"]
    what = {"result": {"n": n}}, {"error": " odd\\nlines "}, {}, {"result": None, "more": 1}, {"error": ""}
    answer(task, **what[n])
"""
    report = Program(tmp_path, code).worker(queue, result_from_stdout=True).run()
    assert (report.completed, report.failed, report.buried, report.ended) == (3, 2, 2, "drained")
    assert results(queue) == {0: {"n": 0}, 2: None, 3: None}
    assert reasons(queue) == {1: "odd\nlines", 4: "the command answered with an error"}


@pytest.mark.usefixtures("gathers_all")
def test_a_crash_loses_what_was_not_answered_only(queue_factory: QueueFactory, tmp_path: Path) -> None:
    queue = queue_factory(max_attempts=2)
    queue.insert_many(range(20))
    code = """
for task in tasks:
    if task["payload"] == 7:
        print("boom", file=sys.stderr, flush=True)
        os.kill(os.getpid(), 9)
    answer(task, result=task["payload"])
"""
    program = Program(tmp_path, code)
    report = program.worker(queue, 20, processes=3, result_from_stdout=True).run()
    assert (report.completed, report.buried, report.ended) == (19, 1, "drained")
    given = Counter(chain.from_iterable(program.given))
    before = program.given[0][: program.given[0].index(7)]
    assert given == {n: 1 if n in before else 2 for n in range(20)}
    assert results(queue) == {n: n for n in range(20) if n != 7}
    assert "boom" in reasons(queue)[7]


@pytest.mark.usefixtures("gathers_all")
def test_an_answer_counts_as_it_comes_and_the_last_one_at_the_end(queue: Queue, tmp_path: Path) -> None:
    """A worker that is killed loses no more than that; and the command has its time to end."""
    queue.insert_many(range(4))
    code = """
for task in tasks[:-2]:
    answer(task)
until_there("more")
for task in tasks[-2:]:
    answer(task)
until_there("go")
open("%s", "w").close()
"""
    program = Program(tmp_path, code % (tmp_path / "ended"))
    worker = program.worker(queue, 4, result_from_stdout=True)
    thread, reports = in_background(worker)
    until(lambda: queue.status().completed == 2, "two answers")
    program.go("more")
    until(lambda: queue.status().completed == 3, "one more")
    until(lambda: worker._loop._executor._running[0].last is not None, "the last")  # type: ignore[attr-defined]
    assert (queue.status().completed, queue.status().leased) == (3, 1)
    assert not (tmp_path / "ended").exists()
    program.go()
    thread.join(PATIENCE_S)
    assert reports == [drained(completed=4)]
    assert (tmp_path / "ended").exists(), "it was not ended before"


@pytest.mark.parametrize("end", ["sys.exit(3)", "os.kill(os.getpid(), 9)"])
def test_all_answered_and_then_failed_is_answered(queue: Queue, tmp_path: Path, end: str) -> None:
    queue.insert_many(range(3))
    code = f"for task in tasks: answer(task, result=1)\n{end}"
    assert Program(tmp_path, code).worker(queue, result_from_stdout=True).run() == drained(completed=3)


def test_no_line_end_is_needed_behind_the_last_answer(queue: Queue) -> None:
    queue.insert(None)
    code = "import json, sys; sys.stdout.write(json.dumps({'id': json.loads(sys.stdin.read())['id'], 'result': 5}))"
    worker = Worker(queue, command=python(code), tasks_per_command=3, result_from_stdout=True)
    assert worker.run() == drained(completed=1)
    assert results(queue) == {None: 5}


NO_ANSWERS = {
    "'secret'": "is no object with the id of a task",
    "'secret": "is no JSON",
    "[]": "is no object with the id of a task",
    "{'id': 7}": "is no object with the id of a task",
    "{'id': 'secret'}": "has the id of no task that waits for an answer",
    "{'id': ID, 'error': 7}": "has an error that is no text, or a result beside it",
    "{'id': ID, 'error': 'secret', 'result': 5}": "has an error that is no text, or a result beside it",
    "{'id': ID, 'result': '" + "secret" * 200_000 + "'}": "takes more than 1,048,576 bytes",
}


@pytest.mark.parametrize(("line", "why"), NO_ANSWERS.items(), ids=[line[:20] for line in NO_ANSWERS])
def test_what_is_no_answer_is_named_and_not_quoted(
    queue_factory: QueueFactory, tmp_path: Path, line: str, why: str
) -> None:
    queue = queue_factory(max_attempts=1)
    queue.insert("payload")
    text = line.replace("'", '"')
    code = f"print()\nprint({text!r}.replace('ID', json.dumps(tasks[0]['id'])))\nprint()"
    report = Program(tmp_path, code).worker(queue, result_from_stdout=True).run()
    assert report.buried == 1
    [reason] = reasons(queue).values()
    assert reason == f"exit status 0, and no answer for this task (line 2 of its standard output {why})"


@pytest.mark.usefixtures("gathers_all")
def test_a_second_answer_for_a_task_is_none(queue: Queue, tmp_path: Path) -> None:
    queue.insert_many(range(2))
    code = "for task in tasks:\n    answer(task, result=1)\n    answer(task, result=2)\n    answer(task, error='late')"
    assert Program(tmp_path, code).worker(queue, 2, result_from_stdout=True).run() == drained(completed=2)
    assert results(queue) == {0: 1, 1: 1}


@pytest.mark.parametrize("result", [f"'{'x' * RESULT_BYTES_MAX}'", "10 ** 30"], ids=["large", "number"])
def test_a_result_that_cannot_be_kept_gives_its_task_up(queue: Queue, tmp_path: Path, result: str) -> None:
    queue.insert_many(range(3))
    code = f"for task in tasks: answer(task, result={result} if task['payload'] == 1 else 5)"
    report = Program(tmp_path, code).worker(queue, result_from_stdout=True).run()
    assert (report.completed, report.buried) == (2, 1)
    assert reasons(queue)[1].startswith(f"{UNKEPT} (its answer): The result ")
    assert [letter.attempt for letter in queue.dead()] == [1]


def test_many_answers_are_heard(queue: Queue, tmp_path: Path) -> None:
    """More than a pipe and the writer's backlog hold."""
    queue.insert_many(range(500))
    code = "for task in tasks: answer(task, result='x' * 3000)\n"
    worker = Program(tmp_path, code).worker(queue, 500, result_from_stdout=True)
    passed: list[int] = []
    worker._loop.output_writer.exits._pass_on = lambda ours, data: passed.append(len(data))
    assert worker.run() == drained(completed=500)


@pytest.mark.usefixtures("gathers_all")
def test_answers_are_heard_at_the_end_although_output_is_stuck(
    queue_factory: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing reads the pipe later."""
    monkeypatch.setattr(output, "BACKLOG_BYTES_MAX", 1)
    queue = queue_factory(max_attempts=1)
    queue.insert_many(range(3))
    code = "answer(tasks[0])\nuntil_there('go')\nfor task in tasks[1:]: answer(task)"
    program = Program(tmp_path, code)
    worker = program.worker(queue, 3, result_from_stdout=True)
    is_over = threading.Event()
    worker._loop.output_writer.exits._pass_on = lambda ours, data: is_over.wait(PATIENCE_S)
    thread, reports = in_background(worker)
    until(lambda: queue.status().completed == 1, "an answer")
    program.go()
    until(lambda: queue.status().remaining == 0, "the others")
    is_over.set()
    thread.join(PATIENCE_S)
    assert reports == [drained(completed=3)]


@pytest.mark.usefixtures("gathers_all")
def test_what_a_process_prints_that_a_command_has_left_behind_is_no_answer(
    queue_factory: QueueFactory, tmp_path: Path
) -> None:
    """Its tasks have been told of by then. A second word would be of tasks that others may have."""
    queue = queue_factory(max_attempts=1)
    queue.insert_many(range(2))
    code = "if os.fork() == 0:\n    until_there('go')\n    for task in tasks: answer(task)\n"
    program = Program(tmp_path, code)
    worker = program.worker(queue, 2, result_from_stdout=True, until="forever")
    passed: list[bytes] = []
    worker._loop.output_writer.exits._pass_on = lambda ours, data: passed.append(data)
    thread, reports = in_background(worker)
    until(lambda: queue.status().dead == 2, "no answer")
    program.go()
    until(lambda: b"".join(passed).count(b"\n") == 2, "the late lines")
    worker.stop()
    thread.join(PATIENCE_S)
    assert (reports[0].completed, reports[0].buried, reports[0].lost) == (0, 2, 0)


# -- what is gathered


def gathering(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[int]]:
    """An executor that begins nothing, and how many tasks each of its commands would have got."""
    executor: Any = Worker(queue, command=["true"], tasks_per_command=10, processes=3)._loop._executor
    begun: list[int] = []
    monkeypatch.setattr(executor, "_begin", lambda: begun.append(len(executor._take_gathered())))
    return executor, begun


def test_each_command_gets_as_many_bytes_as_the_first(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "INPUT_BYTES_MAX", 250)
    executor, begun = gathering(queue, monkeypatch)
    queue.insert_many(["x" * 80] * 6)
    assert all(executor.give(Job(task)) for task in queue.lease(6))
    assert (begun, len(executor.held())) == ([2, 2], 2)


def test_a_command_gets_no_two_tasks_of_one_id(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a queue and its copy have the same: an answer would be for either."""
    executor, begun = gathering(queue, monkeypatch)
    queue.insert_many(range(2))
    first, second = queue.lease(2)
    for task in (first, second, first):
        assert executor.give(Job(task))
    assert begun == [2]
    assert [job.task for job in executor.held()] == [first]


def test_no_more_are_leased_than_may_begin_after_a_task_that_must_be_alone(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, begun = gathering(queue, monkeypatch)
    queue.insert(1)
    [task] = queue.lease()
    assert executor.slots == 30
    task.attempt = 2
    assert executor.give(Job(task))
    assert (executor.slots, begun) == (3, [1])
    task.attempt = 1
    assert executor.give(Job(task))
    assert (executor.slots, begun) == (30, [1])


# -- with other options


@pytest.mark.usefixtures("renews_often", "gathers_all")
def test_the_leases_of_all_are_renewed(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renewals = Renewals(monkeypatch)
    queue.insert_many(range(50))
    program = Program(tmp_path, "until_there('go')")
    worker = program.worker(queue, 50)
    thread, reports = in_background(worker)
    until(lambda: len(worker._loop._executor.at_work()) == 50, "all at work")
    before = {task.id: task.lease_until or 0 for task in queue.tasks("leased")}
    renewals.until_more(2)
    after = {task.id: task.lease_until or 0 for task in queue.tasks("leased")}
    assert len(after) == 50
    assert all(after[task] > before[task] for task in after)
    program.go()
    thread.join(PATIENCE_S)
    assert reports == [drained(completed=50)]


def lose(worker: Worker, jobs: list[Job]) -> None:
    """As if a renewal had found that other workers have taken these over."""
    renewed = Renewed(lost={job.task.token: LeaseLost("Another worker has it.") for job in jobs})
    worker._loop.mailbox.post(lambda: worker._loop._renewed(renewed))


@pytest.mark.usefixtures("gathers_all")
@pytest.mark.parametrize("answers", [False, True])
def test_a_lost_task_does_not_count_and_its_command_goes_on_for_the_others(
    queue: Queue, tmp_path: Path, answers: bool
) -> None:
    queue.insert_many(range(3))
    code = "until_there('go')" + "\nfor task in tasks: answer(task, result=6)" * answers
    program, said = Program(tmp_path, code), list[str]()

    def tell(event: Event) -> None:
        if event.kind == "lost":
            said.append(event.text)

    worker = program.worker(queue, 3, result_from_stdout=answers, max_tasks=3, tell=tell)
    thread, reports = in_background(worker)
    until(lambda: program.given, "the begin of the command")
    lose(worker, [job for job in worker._loop._executor.at_work() if job.task.payload == 1])
    until(lambda: said, "a word of the loss")
    assert "what its command answers for it does not count" in said[0]
    program.go()
    thread.join(PATIENCE_S)
    assert (reports[0].completed, reports[0].lost) == (2, 1)
    assert results(queue) == dict.fromkeys((0, 2), 6 if answers else None)
    assert [task.payload for task in queue.tasks("leased")] == [1], "nothing was told of it"


@pytest.mark.usefixtures("gathers_all")
@pytest.mark.parametrize("answered", [0, 1])
def test_a_command_whose_tasks_are_all_lost_is_ended(queue: Queue, tmp_path: Path, answered: int) -> None:
    queue.insert_many(range(2))
    code = f"for task in tasks[:{answered}]:\n    until_there('answer')\n    answer(task)\nuntil_there('never')"
    program = Program(tmp_path, code)
    worker = program.worker(queue, 2, result_from_stdout=True, max_tasks=2, grace_s=60)
    thread, reports = in_background(worker)
    until(lambda: program.given, "the begin of the command")
    jobs = worker._loop._executor.at_work()
    lose(worker, jobs[answered:])
    until(lambda: all(job.doomed == "lost" for job in jobs[answered:]), "the losses")
    program.go("answer")
    thread.join(PATIENCE_S)
    assert (reports[0].completed, reports[0].lost) == (answered, 2 - answered)
    assert queue.status().leased == 2 - answered


@pytest.mark.usefixtures("gathers_all")
def test_a_task_beside_a_lost_one_is_not_to_blame(queue: Queue, tmp_path: Path) -> None:
    """The lost one had no answer, either: it may be why the command has ended so."""
    queue.insert_many(range(2))
    program = Program(tmp_path, "until_there('go')\nsys.exit(65)")
    worker = program.worker(queue, 2, result_from_stdout=True, max_tasks=2, sysexits=True)
    thread, reports = in_background(worker)
    until(lambda: program.given, "the begin of the command")
    [job] = [job for job in worker._loop._executor.at_work() if job.task.payload == 1]
    lose(worker, [job])
    until(lambda: job.doomed, "the loss")
    program.go()
    thread.join(PATIENCE_S)
    assert (reports[0].failed, reports[0].buried, reports[0].lost) == (1, 0, 1)


def test_it_is_soon_known_which_of_many_tasks_are_at_work(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is asked for at the end of the grace: if that took as long as there are tasks, nothing else would happen."""
    executor: Any = Worker(queue, command=["true"], tasks_per_command=2)._loop._executor
    queue.insert_many(range(4))
    jobs = [Job(task) for task in queue.lease(4)]
    executor._running += [SimpleNamespace(left={job.task.id: job for job in jobs[:2]})]
    monkeypatch.delattr(batches.Batches, "at_work")
    assert [executor.is_at_work(job) for job in jobs] == [True, True, False, False]
    assert not executor.is_at_work(Job(jobs[0].task)), "another lease of one that is"


@pytest.mark.usefixtures("gathers_all")
def test_a_stopped_worker_puts_back_what_has_no_answer(queue: Queue, tmp_path: Path) -> None:
    queue.insert_many(range(4))
    code = "answer(tasks[0])\nuntil_there('never')"
    program = Program(tmp_path, code)
    worker = program.worker(queue, 4, result_from_stdout=True, grace_s=0)
    thread, reports = in_background(worker)
    until(lambda: queue.status().completed == 1, "an answer")
    worker.stop()
    thread.join(PATIENCE_S)
    assert (reports[0].completed, reports[0].released, reports[0].failed) == (1, 3, 0)
    assert {(task.state, task.attempt) for task in queue.tasks()} == {("waiting", 0)}


@pytest.mark.usefixtures("gathers_all")
def test_an_answer_counts_that_comes_after_the_signal(queue: Queue, tmp_path: Path) -> None:
    queue.insert_many(range(3))
    code = """
import signal
signal.signal(signal.SIGTERM, lambda *_: answer(tasks[0]))
open(%r, "w").close()
while True: time.sleep(60)
"""
    ready = tmp_path / "ready"
    worker = Program(tmp_path, code % str(ready)).worker(queue, 3, result_from_stdout=True, grace_s=0.5)
    thread, reports = in_background(worker)
    until(ready.exists, "the handler")
    worker.stop()
    thread.join(PATIENCE_S)
    assert (reports[0].completed, reports[0].released) == (1, 2)


@pytest.mark.usefixtures("gathers_all")
def test_a_command_that_has_ended_before_the_signal_has_ended_by_itself(queue: Queue, tmp_path: Path) -> None:
    queue.insert_many(range(2))
    program = Program(tmp_path, "until_there('go')")
    worker = program.worker(queue, 2)
    thread, reports = in_background(worker)
    until(lambda: program.given, "the begin of the command")
    for job in worker._loop._executor.at_work():
        job.doomed = "timeout"  # and no signal has reached it
    program.go()
    thread.join(PATIENCE_S)
    assert reports == [drained(completed=2)]


@pytest.mark.usefixtures("gathers_all")
def test_a_command_may_end_within_the_grace(queue: Queue, tmp_path: Path) -> None:
    queue.insert_many(range(3))
    program = Program(tmp_path, "until_there('go')")
    worker = program.worker(queue, 3, grace_s=10 * PATIENCE_S)
    thread, reports = in_background(worker)
    until(lambda: program.given, "the begin of the command")
    worker.stop()
    until(lambda: worker._loop._report.signal is not None, "the signal")
    program.go()
    thread.join(PATIENCE_S)
    assert (reports[0].completed, reports[0].released) == (3, 0)


@pytest.mark.usefixtures("gathers_all")
def test_what_is_gathered_is_put_back_untouched_when_the_worker_stops(queue: Queue, tmp_path: Path) -> None:
    queue.insert_many(range(3))
    worker = Program(tmp_path).worker(queue, 100)
    thread, reports = in_background(worker)
    until(lambda: len(worker._loop._executor.held()) == 3, "three tasks gathered")
    assert worker._loop._executor.at_work() == []
    worker.stop()
    thread.join(PATIENCE_S)
    assert (reports[0].completed, reports[0].released) == (0, 0)
    assert {(task.state, task.attempt) for task in queue.tasks()} == {("waiting", 0)}


@pytest.mark.usefixtures("gathers_all")
def test_a_command_has_the_time_of_each_of_its_tasks(queue_factory: QueueFactory, tmp_path: Path) -> None:
    queue = queue_factory(max_attempts=1)
    queue.insert_many(range(3))
    program = Program(tmp_path, "answer(tasks[0])\nuntil_there('never')")
    worker = program.worker(queue, 3, result_from_stdout=True, task_timeout_s=1000)
    thread, reports = in_background(worker)
    until(lambda: queue.status().completed == 1, "an answer")
    [job, _] = worker._loop._executor.at_work()
    assert job.batch is not None
    assert worker._loop._times_out_at(job) == job.batch.since + 2 * 1000
    assert job.batch.since > job.began, "from the answer on"
    time_out(worker)
    thread.join(PATIENCE_S)
    assert (reports[0].completed, reports[0].buried) == (1, 2)
    assert set(reasons(queue).values()) == {
        "timed out after 2000 s (of a command with 2 tasks without an answer; each gets its own next)"
    }


@pytest.mark.usefixtures("gathers_all")
def test_exit_75_puts_all_back_and_65_gives_up_one_alone(queue: Queue, tmp_path: Path) -> None:
    queue.insert_many(range(4))
    code = f"""
first = not os.path.exists("{tmp_path}/second")
open("{tmp_path}/second", "w").close()
sys.exit(75 if first else 65 if any(task["payload"] == 2 for task in tasks) else 0)
"""
    program = Program(tmp_path, code)
    report = program.worker(queue, 4, sysexits=True).run()
    assert (report.completed, report.released, report.failed, report.buried) == (3, 4, 5, 1)
    assert list(map(len, program.given)) == [4, 4, 1, 1, 1, 1], "what was put back was not attempted"
    assert [(letter.payload, letter.attempt) for letter in queue.dead()] == [(2, 2)]


@pytest.mark.usefixtures("gathers_all")
@pytest.mark.parametrize(
    ("on", "end"),
    [("exit=7", "sys.exit(7)"), ("oom", "raise MemoryError")],
)
def test_only_a_task_that_was_alone_moves(tmp_path: Path, on: str, end: str) -> None:
    group = Group.create(tmp_path / "group", shards=2, durability="none")
    queue = group["small"]
    queue.insert_many(range(3))
    program = Program(tmp_path, f"if any(task['payload'] == 1 for task in tasks): {end}")
    report = program.worker(queue, 3, then_to="big", on=[on]).run()
    assert (report.completed, report.moved, report.failed, report.ended) == (2, 1, 3, "drained")
    assert [task.payload for task in group["big"].tasks()] == [1]


@pytest.mark.usefixtures("gathers_all")
def test_only_a_task_that_was_alone_moves_for_its_time(tmp_path: Path) -> None:
    group = Group.create(tmp_path / "group", shards=2, durability="none")
    queue = group["small"]
    queue.insert_many(range(2))
    program = Program(tmp_path, "if any(task['payload'] == 1 for task in tasks): until_there('never')")
    worker = program.worker(queue, 2, then_to="big", on=["timeout"], task_timeout_s=1000, grace_s=0.5)
    thread, reports = in_background(worker)
    until(lambda: len(program.given) == 1, "both at work")
    time_out(worker)
    until(lambda: [1] in program.given, "the one alone")
    time_out(worker, lambda job: job.task.payload == 1)
    thread.join(PATIENCE_S)
    assert (reports[0].completed, reports[0].moved, reports[0].failed) == (1, 1, 2)
    assert [task.payload for task in group["big"].tasks()] == [1]


# -- what cannot be


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EMFILE])
@pytest.mark.parametrize(("module", "name"), CALLS)
def test_a_command_that_cannot_be_begun_just_now_is_begun_later(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, code: int
) -> None:
    monkeypatch.setattr(shortages, "PAUSES_S", (0.001, 0.001))
    refused = Refused(monkeypatch, module, name, code, batches._Running)
    queue.insert_many(range(9))
    said: list[str] = []
    report = Worker(queue, command=["true"], tasks_per_command=3, tell=lambda event: said.append(event.text)).run()
    assert report == drained(completed=9)
    assert refused.left == 0
    assert any("ulimit" in text or "memory" in text for text in said)


def test_a_missing_command_is_refused_and_its_tasks_put_back(queue: Queue) -> None:
    queue.insert_many(range(3))
    with pytest.raises(InvalidArgument, match="no-such-command"):
        Worker(queue, command=["no-such-command"], tasks_per_command=3).run()
    assert {(task.state, task.attempt) for task in queue.tasks()} == {("waiting", 0)}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tasks_per_command": 0}, "tasks_per_command"),
        ({"tasks_per_command": 1_001}, "1,000 at most"),
        ({"command": [], "handler": tasks.nothing}, "is for commands"),
        ({"command": ["echo", "{#}"]}, "{#} stands for one task"),
        ({"then": "next"}, "then"),
        ({"prefetch": 5}, "leave it out"),
        ({"stdin": True}, "leave it out"),
        ({"result_dir": "/tmp"}, "leave it out"),
        ({"command": ["sh", "-c", "echo {}"]}, "{} stands for one task"),
    ],
    ids=lambda value: str(list(value)),
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    queue = Group.create(tmp_path / "group")["q"]
    given = {"command": ["true"], "tasks_per_command": 3} | options
    with pytest.raises(InvalidArgument, match=says):
        Worker(queue, given.pop("handler", None), **given)  # type: ignore[arg-type]


# -- the death of the worker


@pytest.mark.usefixtures("gathers_all")
def test_a_killed_worker_loses_what_was_not_answered_only(queue: Queue, tmp_path: Path) -> None:
    queue.insert_many(range(5))
    program = Program(tmp_path, "for task in tasks[:3]: answer(task, result=task['payload'])\nuntil_there('never')")
    script = f"""
from fsqueue import Queue, Worker
Worker(Queue({str(queue.path)!r}), command={program.argv!r}, tasks_per_command=5, result_from_stdout=True).run()
"""
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        try:
            until(lambda: queue.status().completed == 3, "three answers")
        finally:
            os.kill(process.pid, signal.SIGKILL)
    assert len(results(queue)) == 3
    again = Program(tmp_path, "for task in tasks: answer(task, result='again')")
    queue.release_all()
    assert again.worker(queue, 2, result_from_stdout=True).run() == drained(completed=2)
    assert Counter(results(queue).values())["again"] == 2
