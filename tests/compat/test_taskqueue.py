"""fsqueue.compat.taskqueue: what programs for python-task-queue call, on queues at a path and behind a gateway."""

from __future__ import annotations

import enum
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy
import pytest

import fsqueue
from fsqueue.compat import taskqueue
from fsqueue.compat.taskqueue import FunctionTask, LocalTaskQueue, QueueEmptyError, RegisteredTask, TaskQueue
from tests.compat import tiles
from tests.gateways import RealGateway, gateways
from tests.house.source import TOP
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once

HERE = {"PYTHONPATH": str(TOP), "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
MODULE = """
from fsqueue.compat.taskqueue import queueable

@queueable
def cut(box, level=0, out="."):
    if box[1] == 7:
        raise KeyError("hole")
    with open(f"{out}/{box[0]}.{level}", "w") as file:
        file.write(str(box))
"""
SCRIPT = """
import sys
from functools import partial
from fsqueue.compat.taskqueue import LocalTaskQueue, TaskQueue
from boxes import cut

address, out = sys.argv[1:]
with TaskQueue(address, progress=False) as tq:
    jobs = (partial(cut, (i, i + 1), level=2, out=out) for i in range(40) if i != 6)
    print(tq.insert(jobs, parallel=2, total=39), tq.inserted, tq.enqueued, tq.leased, tq.completed)
    print(tq.poll(lease_seconds=60, verbose=False, tally=True, stop_fn=lambda executed: executed >= 15), tq.completed)
    print(tq.poll(60, False, tally=True, stop_fn=lambda tries, elapsed_time: tries >= 1 and elapsed_time > 0))
    print(tq.completed, tq.enqueued, tq.is_empty())
    tq.block_until_empty(interval_sec=1)
    tq.rezero()
    print(tq.inserted, tq.completed)
    LocalTaskQueue(parallel=1, progress=False).insert_all(partial(cut, [90, 0], out=out))
    tq.insert([partial(cut, [6, 7], out=out)], delay_seconds=0)
    try:
        tq.poll(lease_seconds=60, stop_fn=lambda: False)
    except KeyError as error:
        print("raised", error)
    task = None
    tq.release_all()
    print(tq.inserted, tq.enqueued)
    tq.purge()
    print(tq.inserted, tq.enqueued, tq.is_empty())
"""
PRINTED = """\
39 39 39 0 0
15 15
24
39 0 True
0 0
raised 'hole'
1 1
0 0 True
"""


@pytest.fixture
def tq(tmp_path: Path) -> Iterator[TaskQueue]:
    with TaskQueue(f"fq://{tmp_path}/q", progress=False) as made:
        made.queue.change_settings(backoff_s=(0, 0))
        yield made


@pytest.fixture(params=["path", "gateway"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TaskQueue]:
    """A queue at a path, and one behind a gateway."""
    if request.param == "path":
        with TaskQueue(f"fq://{tmp_path}/q", progress=False) as made:
            yield made
        return
    with gateways(tmp_path) as serve:
        fsqueue.Group.create(tmp_path / "group")["tiles"].insert_many([])
        with TaskQueue(f"{serve(tmp_path / 'group')}/tiles", progress=False) as made:
            yield made


def run(home: Path, name: str, *arguments: str) -> str:
    """Run a script, and return what it prints."""
    done = subprocess.run(
        [sys.executable, name, *arguments], cwd=home, env=HERE, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def is_drained(tries: int) -> bool:
    """End a loop at the first look that finds nothing."""
    return tries > 0


# -- a whole script ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["path", "gateway"])
def test_a_script_of_its_users(tmp_path: Path, place: str) -> None:
    (tmp_path / "boxes.py").write_text(MODULE)
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "out").mkdir()
    if place == "path":
        assert run(tmp_path, "script.py", f"fq://{tmp_path}/q", "out") == PRINTED
    else:
        gateway = RealGateway(fsqueue.Group.create(tmp_path / "group"), tmp_path / "socket")
        try:
            assert run(tmp_path, "script.py", f"{gateway.url}/boxes", "out") == PRINTED
        finally:
            gateway.kill()
    found = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert found == {f"{i}.2": f"[{i}, {i + 1}]" for i in range(40) if i != 6} | {"90.0": "[90, 0]"}


def test_a_script_queues_functions_and_classes_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("""
import sys
from functools import partial
from fsqueue.compat.taskqueue import LocalTaskQueue, RegisteredTask, TaskQueue, queueable

@queueable
def show(text):
    print("shown", text, flush=True)

class Show(RegisteredTask):
    def __init__(self, text):
        super().__init__(text)
    def execute(self):
        show(self.text)

if __name__ == "__main__":
    tq = TaskQueue("fq://q", progress=False)
    if sys.argv[1] == "insert":
        tq.insert([partial(show, 1), Show(2)])
        LocalTaskQueue(parallel=2, progress=False).insert_all([partial(show, 3), Show(4)])
    else:
        tq.poll(stop_fn=lambda executed: executed == 2)
""")
    assert sorted(run(tmp_path, "script.py", "insert").splitlines()) == ["shown 3", "shown 4"]
    assert sorted(run(tmp_path, "script.py", "poll").splitlines()) == ["shown 1", "shown 2"]


# -- workers ----------------------------------------------------------------------------------------------------

WORKER = """
import sys
from fsqueue.compat.taskqueue import TaskQueue
import tests.compat.tiles
tq = TaskQueue(sys.argv[1])
print(tq.poll(lease_seconds=float(sys.argv[2]), stop_fn=lambda tries: tries and tq.is_empty()), flush=True)
"""


def worker(address: str, lease_s: float = 300) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, address, str(lease_s)], env=HERE, stdout=subprocess.PIPE, text=True
    )


def test_three_workers_do_each_task_once(either: TaskQueue, tmp_path: Path) -> None:
    assert either.insert(partial(tiles.note, n, out=str(tmp_path / "did")) for n in range(120)) == 120
    workers = [worker(either.qurl) for _ in range(3)]
    counts = [int(one.communicate(timeout=PATIENCE_S)[0]) for one in workers]
    assert sum(counts) == 120
    assert sorted(map(int, (tmp_path / "did").read_text().split())) == list(range(120))
    assert (either.inserted, either.completed, either.enqueued) == (120, 120, 0)


def test_the_task_of_a_killed_worker_is_done_by_another(either: TaskQueue, tmp_path: Path) -> None:
    began = tmp_path / "began"
    either.insert(partial(tiles.hang, str(began)))
    killed = worker(either.qurl, lease_s=2)
    with killed:
        until(lambda: began.exists() and began.read_text().endswith("\n"), "the task has begun")
        assert (either.leased, either.enqueued) == (1, 1)
        killed.kill()
    assert either.poll(60, stop_fn=lambda executed: executed == 1, max_backoff_window=0.2) == 1
    assert len(began.read_text().splitlines()) == 2
    assert (either.inserted, either.completed, either.enqueued) == (1, 1, 0)


def test_a_worker_whose_lease_was_taken_over_counts_nothing(tq: TaskQueue, caplog: pytest.LogCaptureFixture) -> None:
    tq.insert(partial(tiles.note, 1, out=os.devnull))
    other = fsqueue.Queue(tq.queue.path)
    taken: list[fsqueue.LeasedTask] = []

    def lose(task: object) -> None:
        other.release_all()
        taken.extend(other.lease())

    assert tq.poll(60, before_fn=lose, stop_fn=lambda tries: True) == 0
    assert "is not counted" in caplog.text
    taken[0].complete()
    assert (tq.inserted, tq.completed) == (1, 1)


def test_the_command_run_executes_the_same_tasks(tq: TaskQueue, tmp_path: Path) -> None:
    out = str(tmp_path)
    tq.insert([partial(tiles.render, [3, 0], out=out), tiles.Copy("a", sizes=numpy.array([1, 2]), out=out)])
    command = [sys.executable, "-m", "fsqueue_cli", "run", str(tq.queue.path), "--load", "tests.compat.tiles"]
    subprocess.run(command, cwd=TOP, env=HERE, check=True, capture_output=True, timeout=PATIENCE_S)
    assert (tmp_path / "3-0").read_text() == "[3, 0]"
    assert (tmp_path / "A").read_text() == "[1, 2] () {}"
    assert (tq.completed, tq.queue.status().dead) == (2, 0)


# -- poll -------------------------------------------------------------------------------------------------------


def test_stop_fn_gets_what_it_asks_for(tq: TaskQueue, tmp_path: Path) -> None:
    tq.insert(partial(tiles.note, n, out=str(tmp_path / "did")) for n in range(3))
    seen = []

    def stop(executed: int, tries: int, elapsed_time: float, previous_execution_time: float) -> bool:
        seen.append((executed, tries, 0 <= previous_execution_time <= elapsed_time < PATIENCE_S))
        return tries == 2

    assert tq.poll(stop_fn=stop, max_backoff_window=0) == 3
    assert seen == [(1, 0, True), (2, 0, True), (3, 0, True), (3, 1, True), (3, 2, True)]
    with pytest.raises(ValueError, match="stop_fn must be a function"):
        tq.poll(stop_fn=3)  # type: ignore[arg-type]


def test_hooks_and_lines(tq: TaskQueue, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tq.insert(tiles.Copy("a\x1b[31m", out=str(tmp_path)))
    called: list[Any] = []
    tq.poll(
        verbose=True, execute_args=[1], execute_kwargs={"b": 2}, stop_fn=is_drained,
        before_fn=lambda task: called.append(("before", type(task).__name__, tq.leased)),
        after_fn=lambda task: called.append(("after", type(task).__name__, tq.completed)),
    )  # fmt: skip
    assert called == [("before", "Copy", 1), ("after", "Copy", 1)]
    [made] = tmp_path.glob("A*")
    assert made.read_text() == "[] (1,) {'b': 2}"
    printed = capsys.readouterr().out
    assert re.findall("^INFO (?:leased|done in .* s:|the loop)", printed, re.MULTILINE)[::2] == [
        "INFO leased",
        "INFO the loop",
    ]
    assert "\x1b" not in printed


def test_an_error_of_a_task_is_recorded_and_raised(either: TaskQueue) -> None:
    either.insert(partial(tiles.render, [13, 0]))
    with pytest.raises(ValueError, match="no such tile"):
        either.poll()
    [task] = either.queue.tasks()
    assert "no such tile" in either.queue.history(task.id)[-1].error
    assert either.enqueued == 1


def test_a_task_that_always_fails_is_given_up(tq: TaskQueue, caplog: pytest.LogCaptureFixture) -> None:
    tq.insert(partial(tiles.render, [13, 0]))
    for _ in range(5):
        with pytest.raises(ValueError, match="no such tile"):
            tq.poll(max_backoff_window=0)
    assert (tq.enqueued, tq.is_empty(), tq.inserted, tq.completed) == (0, True, 1, 0)
    tq.block_until_empty()
    assert "1 tasks were given up" in caplog.text
    assert [letter.attempt for letter in tq.queue.dead()] == [5]


def test_backoff_exceptions_put_the_task_back_and_cost_no_attempt(either: TaskQueue, tmp_path: Path) -> None:
    tried = tmp_path / "tried"
    either.insert(partial(tiles.refuse, str(tried), 7))  # the queue has five attempts
    executed = either.poll(
        backoff_exceptions=[tiles.Throttled], max_backoff_window=0.06, stop_fn=lambda executed: executed == 1
    )
    assert executed == 1
    assert len(tried.read_text().splitlines()) == 8
    assert (either.completed, either.queue.status().dead) == (1, 0)


def test_retry_in_a_task_does_as_in_a_worker(tq: TaskQueue, tmp_path: Path) -> None:
    tq.insert(partial(tiles.once_more, str(tmp_path / "tried")))
    assert tq.poll(stop_fn=lambda executed: executed == 1, max_backoff_window=0) == 1
    assert (tmp_path / "tried").read_text() == "tried\ntried\n"


def test_a_function_that_is_not_registered_ends_the_loop_and_costs_no_attempt(tq: TaskQueue) -> None:
    tq.queue.insert({"call": "os:system", "args": ["touch /tmp/never"]})
    for _ in range(6):
        with pytest.raises(taskqueue.UnregisteredFunctionError, match="Import that module"):
            tq.poll()
    assert tq.enqueued == 1
    tq.purge()
    tq.queue.insert_many([{"call": "NoSuchClass"}, {"call": "Copy", "kwargs": {"name": "a"}}])
    for _ in range(6):
        with pytest.raises(taskqueue.UnregisteredFunctionError, match="No class NoSuchClass"):
            tq.lease(num_tasks=2)
    assert (tq.enqueued, tq.leased, tq.queue.status().waiting) == (2, 0, 2)


def test_what_is_no_call_becomes_a_dead_letter(tq: TaskQueue) -> None:
    tq.queue.insert_many([{"tile": 7}, "line", {"call": "tests.compat.tiles:note", "args": [1, os.devnull]}])
    assert tq.poll(stop_fn=is_drained) == 1
    assert {letter.reason for letter in tq.queue.dead()} == {
        'the payload is no call: {"call": NAME, "args": [...], "kwargs": {...}}, and nothing else'
    }


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_waits_for_the_task_and_twice_does_not(tmp_path: Path, presses: int) -> None:
    (tmp_path / "script.py").write_text("""
from functools import partial
from pathlib import Path
from fsqueue.compat.taskqueue import TaskQueue, queueable

@queueable
def wait():
    Path("began").touch()
    open("go").close()

tq = TaskQueue("fq://q", progress=False)
tq.insert([partial(wait), partial(wait)])
print("executed", tq.poll())
""")
    os.mkfifo(tmp_path / "go")
    command = [sys.executable, "-u", "script.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=HERE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as going:
        assert going.stdout is not None
        until((tmp_path / "began").exists, "the task has begun")
        going.send_signal(signal.SIGINT)
        assert going.stdout.readline().startswith(b"Interrupted")
        if presses == 2:
            going.send_signal(signal.SIGINT)
        else:
            (tmp_path / "go").write_text("")
        rest = going.stdout.read().decode()
        going.wait(PATIENCE_S)
    status = fsqueue.Queue(tmp_path / "q").status()
    assert (status.completed, status.waiting) == ((1, 1) if presses == 1 else (0, 2))
    assert rest == ("executed 1\n" if presses == 1 else "")


def test_ctrl_c_ends_an_idle_worker_at_once(tmp_path: Path) -> None:
    program = "import sys; from fsqueue.compat.taskqueue import TaskQueue; tq = TaskQueue('fq://q')\n"
    program += "print(tq.poll(stop_fn=lambda tries: print('idle', flush=True), min_backoff_window=500,"
    program += " max_backoff_window=500))"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=tmp_path, env=HERE, stdout=subprocess.PIPE, text=True) as going:
        assert going.stdout is not None
        assert going.stdout.readline() == "idle\n"
        going.send_signal(signal.SIGINT)
        assert going.stdout.read().splitlines()[-1] == "0"
    assert going.returncode == 0


@pytest.mark.parametrize("tasks", [0, 1])
def test_ctrl_c_between_any_two_steps_of_the_loop_ends_it(
    tq: TaskQueue, tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taskqueue, "PAUSE_S", 0.001)
    steps, at, left = 0, 0, Counter[str]()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps
        if frame.f_code is not TaskQueue.poll.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and isinstance(signal.getsignal(signal.SIGINT), taskqueue._Interrupt):
            steps += 1
            if steps == at:
                signal.raise_signal(signal.SIGINT)
        return trace

    while at <= steps:
        if tasks:
            tq.purge()
            tq.insert(partial(tiles.note, 1, out=os.devnull))
        steps, at = 0, at + 1
        sys.settrace(trace)
        try:
            executed = tq.poll(stop_fn=lambda tries: tries == 3, min_backoff_window=0, max_backoff_window=0)
        finally:
            sys.settrace(None)
        assert executed == tq.completed <= tasks
        left[next(iter(tq.queue.tasks())).state if executed < tasks else "nothing"] += 1
    assert at > 100
    assert left["leased"] <= 1, left  # the lease that was being returned


def test_a_loop_in_a_thread_leaves_signals_alone(tq: TaskQueue) -> None:
    tq.insert(partial(tiles.note, 1, out=os.devnull))
    counts: list[int] = []
    thread = threading.Thread(target=lambda: counts.append(tq.poll(stop_fn=is_drained)))
    before = signal.getsignal(signal.SIGINT)
    thread.start()
    thread.join(PATIENCE_S)
    assert counts == [1]
    assert signal.getsignal(signal.SIGINT) is before


# -- leases -----------------------------------------------------------------------------------------------------


def test_lease_renew_cancel_delete(either: TaskQueue) -> None:
    either.insert(partial(tiles.note, n, out=os.devnull) for n in range(4))
    one = either.lease(seconds=30)
    assert isinstance(one, FunctionTask)
    two, three = either.lease(seconds=30, num_tasks=2)
    assert either.leased == 3
    before = either.queue.task(one.id).lease_until
    either.renew(one, 3600)
    assert either.queue.task(one.id).lease_until > before + 3000
    either.delete(one, tally=True)
    either.delete([two.id])
    either.cancel(three)
    assert (either.completed, either.enqueued, either.leased) == (2, 2, 0)
    with pytest.raises(fsqueue.InvalidArgument, match="holds no lease"):
        either.renew(one, 1)
    [first, second] = either.list()
    either.delete(either.tasks())
    assert {first.id, second.id} >= {three.id}
    either.delete([first.id, one])  # what has ended needs no deleting
    assert (either.enqueued, either.is_empty()) == (0, True)
    with pytest.raises(QueueEmptyError, match="No task of"):
        either.lease()
    with pytest.raises(LookupError):
        either.lease(wait_sec=0.1)


def test_a_task_that_another_holds_is_not_deleted(either: TaskQueue) -> None:
    either.insert(partial(tiles.note, 1, out=os.devnull))
    other = TaskQueue(either.qurl)
    held = other.lease()
    with pytest.raises(fsqueue.LeaseLost, match="leased by another worker"):
        either.delete(held)
    either.release_all()
    mine = either.lease()
    with pytest.raises(fsqueue.LeaseLost):
        other.delete(held)
    either.delete(mine)
    assert (either.inserted, either.completed) == (1, 1)


def test_rezero_counts_from_there_and_a_purge_from_zero(tq: TaskQueue) -> None:
    tq.insert([partial(tiles.note, n, out=os.devnull) for n in range(3)])
    tq.poll(stop_fn=lambda executed: executed == 2)
    tq.rezero()
    assert (tq.inserted, tq.completed, tq.enqueued) == (0, 0, 1)
    tq.poll(stop_fn=is_drained)
    assert (tq.inserted, tq.completed) == (0, 1)
    fsqueue.Queue(tq.queue.path).purge()
    tq.insert(partial(tiles.note, 1, out=os.devnull))
    assert (tq.inserted, tq.completed) == (1, 0)


# -- tasks ------------------------------------------------------------------------------------------------------


class Colour(enum.IntEnum):
    RED = 1


class Box:
    def serialize(self) -> list[int]:
        return [1, 2]


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        (numpy.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (numpy.int64(7), 7),
        (numpy.float32(0.5), 0.5),
        ({"a": numpy.arange(2), 3: None, True: (1,)}, {"a": [0, 1], "3": None, "true": [1]}),
        (b"bytes", "bytes"),
        (Box(), [1, 2]),
        ([Colour.RED, numpy.bool_(True)], [1, True]),
    ],
)
def test_arguments_come_as_json_has_them(tq: TaskQueue, tmp_path: Path, given: Any, got: Any) -> None:
    tq.insert([partial(tiles.note, given, out=str(tmp_path / "did")), tiles.Copy("x", sizes=given, out=str(tmp_path))])
    assert tq.poll(stop_fn=is_drained) == 2
    assert (tmp_path / "did").read_text() == f"{got!r}\n"
    assert (tmp_path / "X").read_text() == f"{got!r} () {{}}"


def test_what_json_has_no_form_for_is_refused(tq: TaskQueue) -> None:
    for value in ({1, 2}, object(), float("nan"), 2**70):
        with pytest.raises(fsqueue.InvalidTask):
            tq.insert(partial(tiles.note, value, out="x"))
    with pytest.raises(TypeError, match="does not take these arguments"):
        tq.insert(partial(tiles.note, 1, nowhere=2))
    with pytest.raises(taskqueue.UnregisteredFunctionError, match="@queueable"):
        tq.insert(partial(os.system, "true"))
    with pytest.raises(ValueError, match="no task"):
        tq.insert([3])
    assert tq.inserted == 0


def test_what_is_queued_are_names_and_arguments(tq: TaskQueue) -> None:
    tq.insert(partial(tiles.note, 1, out="x"), delay_seconds=3600)
    tq.insert(tiles.Copy("a", out="y"))
    payloads = [task.payload for task in tq.queue.tasks()]
    assert sorted(payloads, key=str) == [
        {"call": "Copy", "kwargs": {"name": "A", "sizes": [], "out": "y"}},
        {"call": "tests.compat.tiles:note", "args": [1], "kwargs": {"out": "x"}},
    ]
    assert tq.queue.status() == fsqueue.Status(waiting=1, delayed=1)
    assert tiles.Copy("a").payload() == {"name": "A", "sizes": [], "out": ".", "class": "Copy"}


def test_tasks_are_copied_from_queue_to_queue_without_their_modules(tq: TaskQueue, tmp_path: Path) -> None:
    tq.queue.insert_many([{"call": "elsewhere:f", "args": [1]}, {"call": "Unknown", "kwargs": {"a": 2}}])
    other = TaskQueue(f"fq://{tmp_path}/other", progress=False)
    assert other.insert(tq) == 2
    assert [task.payload for task in other.queue.tasks()] == [task.payload for task in tq.queue.tasks()]
    with pytest.raises(fsqueue.InvalidArgument, match="into itself"):
        tq.insert(tq)


def test_tasks_are_made_of_what_a_filequeue_stores() -> None:
    stored = {"payload": [["tests.compat.tiles", "note"], [1], {"out": "x"}, -1], "queueName": "/q", "id": "u"}
    task = taskqueue.totask(json.dumps(stored))
    assert isinstance(task, FunctionTask)
    assert (task.key, task.args, task.kwargs, task.id) == (("tests.compat.tiles", "note"), [1], {"out": "x"}, "u")
    copied = taskqueue.totask({"class": "Copy", "name": "b"})
    assert isinstance(copied, tiles.Copy)
    assert copied.name == "B"
    assert repr(copied) == "Copy(name='B', sizes=(), out='.')"
    assert isinstance(RegisteredTask.deserialize(copied.payload()), tiles.Copy)
    with pytest.raises(TypeError):
        taskqueue.PrintTask.deserialize(copied.payload())


def test_two_classes_of_one_name_are_refused() -> None:
    with pytest.raises(fsqueue.InvalidArgument, match="Two classes are called Copy"):

        class Copy(RegisteredTask):
            pass


def test_generators_are_not_queueable() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    with pytest.raises(fsqueue.InvalidArgument, match="generator"):
        taskqueue.queueable(numbers)


def test_tasks_to_try_a_queue_with(tq: TaskQueue, capsys: pytest.CaptureFixture[str]) -> None:
    tq.insert_all([taskqueue.PrintTask("hello"), taskqueue.MockTask(a=1)])
    assert tq.poll(stop_fn=is_drained) == 2
    assert capsys.readouterr().out == "PrintTask(txt='hello')\n"


# -- local queues -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_local_queue_executes_at_once(tmp_path: Path, parallel: int) -> None:
    out = str(tmp_path)
    jobs = [partial(tiles.render, [n, 0], out=out) for n in range(5)]
    local = LocalTaskQueue(parallel=parallel, progress=False)
    assert local.insert_all([*jobs, (tiles.Copy("a", out=out), [1], {"b": 2})]) == 6
    assert {path.name for path in tmp_path.iterdir()} == {"0-0", "1-0", "2-0", "3-0", "4-0", "A"}
    assert (tmp_path / "A").read_text() == "[] (1,) {'b': 2}"
    with pytest.raises(ValueError, match="no such tile"):
        local.insert_all(partial(tiles.render, [13, 0]))
    assert local.is_empty()
    with taskqueue.MockTaskQueue(progress=False) as later:
        later.insert(partial(tiles.render, [50, 0], out=out))
        assert not (tmp_path / "50-0").exists()
    assert (tmp_path / "50-0").exists()


# -- addresses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["tiles", "sqs://tiles", "fq://", "pubsub://a"])
def test_addresses_of_other_services_are_refused(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(taskqueue.UnsupportedProtocolError, match="Nothing was made"):
        TaskQueue(address)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_of_a_filequeue_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "old/queue").mkdir(parents=True)
    (tmp_path / "old/movement").mkdir()
    with pytest.raises(fsqueue.NotAQueue, match="import --from-filequeue"):
        TaskQueue(f"fq://{tmp_path}/old")
    assert sorted(path.name for path in (tmp_path / "old").iterdir()) == ["movement", "queue"]


def test_a_group_behind_a_gateway_is_no_queue(tmp_path: Path) -> None:
    with gateways(tmp_path) as serve:
        address = serve(fsqueue.Group.create(tmp_path / "group").path)
        with pytest.raises(fsqueue.NotAQueue, match="/QUEUE"):
            TaskQueue(address)
