"""Python functions in child processes: named, found, called; what becomes of a task when its child dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import InvalidArgument, Queue, Worker
from fsqueue.worker import Event, child_processes, loop
from tests.levels import how_many
from tests.support import QueueFactory
from tests.waiting import PATIENCE_S, until
from tests.worker import tasks
from tests.worker.support import Renewals, drained, in_background, time_out


def results(queue: Queue) -> list[Any]:
    return [info.result for info in queue.tasks("completed")]


def reasons(queue: Queue) -> list[str]:
    return [letter.reason for letter in queue.dead()]


@pytest.fixture
def once(queue_factory: QueueFactory) -> Queue:
    """A queue whose tasks have one attempt."""
    return queue_factory(max_attempts=1, lease_s=60)


# -- what a handler is given, and what it may return


@pytest.mark.one_in(3)
@pytest.mark.parametrize("payload", [0, "text", None, [1, {"a": "ä"}], {"x": 1.5}, b"\xff\x00", "x" * 500_000])
def test_the_payload_gets_to_the_handler(queue: Queue, payload: Any) -> None:
    queue.insert(payload)
    handler = "builtins:len" if isinstance(payload, bytes | str) else "json:dumps"
    assert Worker(queue, handler).run() == drained(completed=1)
    [result] = results(queue)
    assert result == (len(payload) if handler == "builtins:len" else json.dumps(payload))


def test_results_are_kept_with_the_tasks(queue: Queue) -> None:
    queue.insert_many(range(5))
    assert Worker(queue, tasks.double, processes=2).run() == drained(completed=5)
    assert sorted(result["double"] for result in results(queue)) == [0, 2, 4, 6, 8]


def test_a_module_is_imported_once_and_its_function_called_without_a_new_process(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counted.py").write_text(
        f"import os\nopen({str(tmp_path / 'imports')!r}, 'a').write('x')\ndef pid(payload): return os.getpid()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    queue.insert_many(range(30))
    assert Worker(queue, "counted:pid").run() == drained(completed=30)
    assert len(set(results(queue))) == 1
    assert (tmp_path / "imports").read_text() == "x"


def test_a_handler_may_know_its_task(queue: Queue) -> None:
    task_id = queue.insert(1).id
    Worker(queue, tasks.about).run()
    [result] = results(queue)
    assert result.pop("pid") != os.getpid()
    assert result == {"id": task_id, "attempt": 1, "queue": str(queue.path), "stop": False}


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"do": "raise", "text": "bad value"}, "ValueError: bad value\n"),
        ({"do": "exit"}, "SystemExit: 3"),
        ({"do": "unprintable"}, "its result cannot be kept, and its work is not repeated: The result is of the type"),
        ({"do": "large"}, "its result cannot be kept, and its work is not repeated: The result takes 100,002 bytes"),
        ({"do": "bury", "why": "hopeless"}, "hopeless"),
        ({"do": "bury"}, "given up by its handler"),
        ({"do": "vanish"}, "the handler's process ended: exit status 5: going\ngoing"),
        ({"do": "segfault"}, "the handler's process ended: killed by SIGSEGV"),
        ({"do": "kill"}, "the handler's process ended: killed by SIGKILL"),
    ],
)
def test_what_goes_wrong_is_the_reason_of_one_failure(once: Queue, payload: Any, reason: str) -> None:
    once.insert_many([{"do": "return"}, {"do": "return"}, payload, {"do": "return"}, {"do": "return"}])
    assert Worker(once, tasks.obey, prefetch=5).run() == drained(completed=4, failed=1)
    [found] = reasons(once)
    assert found.startswith(reason)


def test_the_reason_holds_the_end_of_the_traceback_without_our_own_part(once: Queue) -> None:
    once.insert({"do": "raise", "text": "x" * 50_000})
    Worker(once, tasks.obey).run()
    [reason] = reasons(once)
    assert len(reason) < 6000
    assert "handlers.py" not in reason


def test_a_handler_that_forks_and_returns_twice_answers_once(queue: Queue) -> None:
    queue.insert_many([{"do": "fork"}, {"do": "return"}])
    assert Worker(queue, tasks.obey).run() == drained(completed=2)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("delay_s", [0, None])
def test_retry_puts_back_without_blame(queue: Queue, monkeypatch: pytest.MonkeyPatch, delay_s: float | None) -> None:
    monkeypatch.setattr(loop, "pause_s", lambda *_: 1000.0)  # it must not be over before the worker has ended
    queue.insert({"do": "retry", "delay_s": delay_s})
    assert Worker(queue, tasks.obey, max_tasks=1).run().released == 1
    [task] = queue.tasks()
    assert (task.state, task.attempt) == ("waiting" if delay_s == 0 else "delayed", 0)


def test_what_handlers_print_is_passed_on_and_kept(
    queue: Queue, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ids = [queue.insert({"do": "print", "text": f"line {n}"}).id for n in range(6)]
    Worker(queue, tasks.obey, keep_output=tmp_path / "kept").run()
    assert sorted(capfd.readouterr().out.splitlines()) == [f"line {n}" for n in range(6)]
    for number, task_id in enumerate(ids):
        assert (tmp_path / "kept" / f"{task_id}.1").read_text() == f"line {number}\n" * 2


# -- how a handler is found


def local_function() -> Any:
    def inner(payload: Any) -> None:
        pass

    return inner


@pytest.mark.parametrize(
    ("handler", "complaint"),
    [
        (lambda payload: None, "by its name in another process"),
        (local_function(), "by its name in another process"),
        (5, "a function or the name of one"),
        ("no_colon", "package.module:function"),
        (":f", "package.module:function"),
    ],
)
def test_what_no_child_could_find_is_refused_at_once(queue: Queue, handler: Any, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        Worker(queue, handler)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("handler", "complaint"),
    [
        ("no_such_module:f", "finds no module 'no_such_module'"),
        ("tests.worker.tasks:no_such", "has no function 'no_such'"),
        ("tests.worker.tasks:NUMBER", "is no function"),
        ("tests.worker.tasks:later", "not an 'async' one"),
        ("tests.worker.tasks:no_argument", "takes the payload"),
    ],
)
def test_what_a_child_does_not_find_is_refused_and_no_task_touched(queue: Queue, handler: str, complaint: str) -> None:
    queue.insert(1)
    with pytest.raises(InvalidArgument, match=complaint):
        Worker(queue, handler).run()
    [task] = queue.tasks()
    assert (task.state, task.attempt, len(queue.history(task.id))) == ("waiting", 0, 1)


def test_a_module_that_ends_its_process_is_given_up_after_three_and_no_task_touched(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "imports"
    (tmp_path / "fatal_module.py").write_text(f"import os\nopen({str(log)!r}, 'a').write('x')\nos._exit(4)\n")
    monkeypatch.syspath_prepend(tmp_path)
    queue.insert(1)
    with pytest.raises(InvalidArgument, match="the handler's process ended: exit status 4"):
        Worker(queue, "fatal_module:g").run()
    assert log.read_text() == "x" * child_processes.UNREADY_MAX == "xxx"
    [task] = queue.tasks()
    assert (task.state, task.attempt, len(queue.history(task.id))) == ("waiting", 0, 1)


def script(tmp_path: Path, queue: Queue, body: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(body).format(queue=str(queue.path)))
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=PATIENCE_S)


def test_a_function_of_the_script_that_runs(queue: Queue, tmp_path: Path) -> None:
    queue.insert_many(range(3))
    ended = script(tmp_path, queue, """
        import fsqueue
        def handler(payload):
            return payload + 100
        if __name__ == "__main__":
            print(fsqueue.Worker(fsqueue.Queue({queue!r}), handler).run().completed)
        """)  # fmt: skip
    assert (ended.stdout, ended.stderr) == ("3\n", "")
    assert sorted(results(queue)) == [100, 101, 102]


def test_a_script_that_forgot_its_guard_is_told(queue: Queue, tmp_path: Path) -> None:
    queue.insert(1)
    ended = script(tmp_path, queue, """
        import fsqueue
        def handler(payload):
            pass
        fsqueue.Worker(fsqueue.Queue({queue!r}), handler).run()
        """)  # fmt: skip
    assert ended.returncode != 0
    assert "if __name__ == '__main__':" in ended.stderr
    assert queue.status().waiting == 1


def test_functions_that_modules_register(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "registered.py").write_text("import fsqueue\n@fsqueue.task\ndef add(a, b):\n    return a + b\n")
    monkeypatch.syspath_prepend(tmp_path)
    queue.insert({"call": "registered:add", "args": [2, 3]})
    assert Worker(queue, load=["registered"]).run() == drained(completed=1)
    assert results(queue) == [5]


# -- the parent renews, whatever a child does


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    os.mkfifo(tmp_path / "fifo")
    return str(tmp_path / "fifo")


@pytest.mark.usefixtures("renews_often")
def test_a_handler_that_holds_the_interpreters_lock_keeps_its_lease(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, fifo: str
) -> None:
    renewals = Renewals(monkeypatch)
    queue = queue_factory()
    queue.insert({"do": "hold", "fifo": fifo})
    worker = Worker(queue, tasks.obey)
    thread, reports = in_background(worker)
    until(worker._loop._executor.at_work, "the begin of the task")
    [before] = queue.tasks()
    renewals.until_more(2)
    [after] = queue.tasks()
    assert (before.state, after.state, after.attempt) == ("leased", "leased", before.attempt)
    assert (after.lease_until or 0) > (before.lease_until or 0)
    open(fifo, "w").close()
    thread.join(PATIENCE_S)
    assert reports == [drained(completed=1)]


def test_a_timeout_ends_the_child_also_in_c(once: Queue, fifo: str) -> None:
    once.insert_many([{"do": "hold", "fifo": fifo}, {"do": "return"}, {"do": "return"}])
    worker = Worker(once, tasks.obey, task_timeout_s=1000, prefetch=3)
    thread, reports = in_background(worker)

    def is_over() -> bool:
        time_out(worker, lambda job: job.task.payload["do"] == "hold")
        return not thread.is_alive()

    until(is_over, "the end of the task that holds the lock")
    assert reports == [drained(completed=2, failed=1)]
    assert reasons(once) == ["timed out after 1000 s"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("prefetch", [1, 10])
def test_a_child_killed_from_outside_costs_one_attempt_at_most(
    queue_factory: QueueFactory, tmp_path: Path, prefetch: int
) -> None:
    queue = queue_factory(backoff_s=(0, 0))
    log, count = tmp_path / "log", how_many(400, 2000)
    queue.insert_many({"log": str(log), "n": n} for n in range(count))
    thread, reports = in_background(Worker(queue, tasks.note, processes=2, prefetch=prefetch))
    killed = set()
    for _ in range(5):
        until(
            lambda: (log.exists() and set(log.read_text().split()[1::2]) - killed) or not thread.is_alive(),
            "a child that lives",
        )
        for pid in set(log.read_text().split()[1::2]) - killed:
            killed.add(pid)
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
    thread.join(PATIENCE_S)
    [report] = reports
    assert report.completed == count
    assert report.failed + report.lost <= len(killed)
    numbers = [int(line.split()[0]) for line in log.read_text().splitlines()]
    assert set(numbers) == set(range(count))
    assert len(numbers) <= count + len(killed)


def test_of_a_killed_parent_the_children_die_and_the_tasks_come_back(
    queue_factory: QueueFactory, tmp_path: Path
) -> None:
    queue = queue_factory(lease_s=2)
    queue.insert_many([{"do": "touch", "path": str(tmp_path / "began"), "lasts": True}, {"do": "return"}])
    code = (
        "from fsqueue import Queue, Worker\n"
        f"Worker(Queue({str(queue.path)!r}), 'tests.worker.tasks:obey', prefetch=2).run()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    until(lambda: (tmp_path / "began").exists(), "the begin of a task")
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    parent.kill()
    parent.wait()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "the end of the children")
    got = []
    until(lambda: got.extend(queue.lease(5)) or len(got) == 2, "both tasks to be available again")


# -- told to stop


def test_should_stop_says_so(queue: Queue, tmp_path: Path) -> None:
    queue.insert({"began": str(tmp_path / "began")})
    worker = Worker(queue, tasks.until_told)
    thread, reports = in_background(worker)
    until(lambda: (tmp_path / "began").exists(), "the begin of a task")
    worker.stop()
    thread.join(PATIENCE_S)
    assert (reports[0].released, reports[0].ended) == (1, "signal")
    assert queue.status().waiting == 1


@pytest.mark.batched
def test_the_first_signal_lets_finish_and_puts_back_what_is_not_begun(queue: Queue, tmp_path: Path) -> None:
    first = {"do": "touch", "path": str(tmp_path / "began"), "go": str(tmp_path / "go")}
    queue.insert_many([first, *({"do": "return"} for _ in range(9))], batch_tasks=10)
    worker = Worker(queue, tasks.obey, prefetch=10)
    thread, reports = in_background(worker)
    until(lambda: (tmp_path / "began").exists(), "the begin of a task")
    worker.stop()
    until(lambda: queue.status().waiting == 9, "what is not begun to be put back")
    (tmp_path / "go").touch()
    thread.join(PATIENCE_S)
    assert (reports[0].completed, reports[0].released, reports[0].signal) == (1, 0, signal.SIGTERM)
    assert queue.status().waiting == 9


def test_the_second_signal_puts_back_at_once(queue: Queue, tmp_path: Path) -> None:
    queue.insert({"do": "touch", "path": str(tmp_path / "began"), "lasts": True})
    worker = Worker(queue, tasks.obey, grace_s=1000)
    thread, reports = in_background(worker)
    until(lambda: (tmp_path / "began").exists(), "the begin of a task")
    worker.stop()
    worker.stop()
    thread.join(PATIENCE_S)
    assert (reports[0].completed, reports[0].released) == (0, 1)
    [task] = queue.tasks()
    assert (task.state, task.attempt) == ("waiting", 0)


def test_what_is_known_to_take_longer_than_the_grace_is_ended_at_once(queue: Queue, tmp_path: Path) -> None:
    queue.insert({"do": "touch", "path": str(tmp_path / "began"), "lasts": True})
    worker = Worker(queue, tasks.obey, grace_s=1000)
    worker._loop._pace.took(5000)  # as long as another task took
    thread, reports = in_background(worker)
    until(lambda: (tmp_path / "began").exists(), "the begin of a task")
    worker.stop()
    thread.join(PATIENCE_S)
    assert (reports[0].completed, reports[0].released) == (0, 1)


# -- leases lost


@pytest.mark.usefixtures("renews_often")
@pytest.mark.parametrize("on_lease_lost", ["kill", "finish"])
def test_a_lost_lease(queue_factory: QueueFactory, tmp_path: Path, told: list[str], on_lease_lost: Any) -> None:
    queue = queue_factory()
    queue.insert({"do": "until", "path": str(tmp_path / "go")})
    worker = Worker(
        queue, tasks.obey, on_lease_lost=on_lease_lost, max_tasks=1, tell=lambda event: told.append(event.text)
    )
    thread, reports = in_background(worker)
    until(lambda: queue.status().leased, "a leased task")
    [other] = (queue.release_all(), Queue(queue.path).lease(lease_s=100))[1] or [None]
    if other is None:
        pytest.fail("the worker was faster")
    until(lambda: any("was lost" in line for line in told), "the word of a lost lease")
    if on_lease_lost == "finish":
        assert thread.is_alive()
        (tmp_path / "go").touch()
    thread.join(PATIENCE_S)
    assert (reports[0].lost, reports[0].completed) == (1, 0)
    other.complete()


# -- words


def test_what_happens_is_told_in_events(queue_factory: QueueFactory) -> None:
    queue = queue_factory(max_attempts=1)
    good, bad = (queue.insert({"do": what, "text": "no"}).id for what in ("return", "raise"))
    events: list[Event] = []
    Worker(queue, tasks.obey, tell=events.append).run()
    by_task = {event.fields["task"]: event for event in events if "task" in event.fields}
    assert (by_task[good].kind, by_task[good].fields["attempt"]) == ("completed", 1)
    assert by_task[bad].kind == "failed"
    assert by_task[bad].fields["reason"].startswith("ValueError: no")


def test_the_package_offers_it() -> None:
    assert fsqueue.Worker is Worker
    with pytest.raises(AttributeError):
        _ = fsqueue.no_such_name  # type: ignore[attr-defined]
