"""Whose result is it? What a worker completes was executed, and has the result of its own execution.

The parent takes tasks back while its child receives them. Which of the two receives which message is the kernel's
choice, so the tests force the worst one: the child goes on between two messages that the parent takes back.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fsqueue import Queue, Worker
from fsqueue.worker import child_messages, child_processes, loop
from fsqueue.worker.jobs import Job
from tests.support import QueueFactory
from tests.waiting import PATIENCE_S, until
from tests.worker import tasks
from tests.worker.support import drained, in_background

pytestmark = pytest.mark.once

STORM_ROUNDS = int(os.environ.get("FSQUEUE_TEST_STORM_ROUNDS", "4"))
"""How many workers go through the storm, each until it is stopped."""


def begun(where: Path) -> list[int]:
    path = where / "began"
    return [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []


class Interleaved:
    """Lets the child finish its task, and begin the next, after the parent has taken back the first message."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, where: Path) -> None:
        self.where, self.times = where, 0
        self._at: int | None = None
        """What the child is at from which something is taken back."""
        self._receive, self._take_back = child_messages.receive, child_processes._Child.take_back
        monkeypatch.setattr(child_messages, "receive", self._received)
        monkeypatch.setattr(child_processes._Child, "take_back", lambda child: self._taken_back(child))

    def _taken_back(self, child: Any) -> Any:
        self._at = child.given[0].task.payload["n"] if child.given else None
        try:
            return self._take_back(child)
        finally:
            self._at = None

    def _received(self, end: Any, flags: int = 0) -> Any:
        message = self._receive(end, flags)
        if self._at is not None and message:
            before = begun(self.where)
            (self.where / f"go-{self._at}").touch()
            self._at = None
            until(lambda: len(begun(self.where)) > len(before), "the begin of another task")
            self.times += 1
        return message


def stall(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have tasks stolen that lie behind one which takes longer than this."""
    for module in ("child_processes", "loop", "jobs"):
        monkeypatch.setattr(f"fsqueue.worker.{module}.STALL_S", seconds)


@pytest.fixture
def interleaved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Interleaved]:
    stall(monkeypatch, 1e6)  # what is slow is stolen when the test says so
    yield Interleaved(monkeypatch, tmp_path)
    (tmp_path / "go").touch()


def gated(where: Path, n: int, **more: Any) -> list[dict[str, Any]]:
    return [{"where": str(where), "n": number, **more} for number in range(n)]


def judge(queue: Queue, payloads: dict[str, int], executed: list[int]) -> None:
    """Every result belongs to its task, and nothing was completed that no handler saw."""
    completed = {info.id: info.result for info in queue.tasks("completed")}
    assert {task: payloads[task] for task in completed} == completed
    assert set(completed.values()) <= set(executed)


def stop(worker: Worker, where: Path) -> None:
    worker.stop()


def cut_short(worker: Worker, where: Path) -> None:
    """As at the end of a job."""
    worker._loop.mailbox.post(lambda: (worker._loop._end("job-end", ""), worker._loop._wind_up()))


def steal(worker: Worker, where: Path) -> None:
    worker._loop.mailbox.post(lambda: worker._loop.returned(worker._loop._executor.take_back(), ""))


def lose(worker: Worker, where: Path) -> None:
    """As when renewing finds that a task which is not begun is somebody else's."""

    def lost() -> None:
        job = worker._loop._executor.held()[-1]
        worker._loop._renewed(loop.Renewed(settled={job.task.token: "released"}))
        job.task.release()

    worker._loop.mailbox.post(lost)


def test_a_task_that_a_child_takes_while_the_one_before_comes_back_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its time would never be over, and what it prints would belong to the other one."""
    receive, begun_for = child_messages.receive, []
    child: Any = object.__new__(child_processes._Child)
    child.end, child.theirs = child_messages.pair()
    child.streams, child.family = [], SimpleNamespace(now=lambda: 7.0, is_told_apart=True)
    child.family.begin_attempt = lambda streams, task: begun_for.append(task.id)
    first, second, third = (Job(cast("Any", SimpleNamespace(id=name))) for name in ("first", "second", "third"))
    first.began = 5.0
    child.given = deque([first, second, third])
    for number, job in enumerate(child.given, 1):
        job.number = number
        child_messages.send(child.end, number, job.task.id, b"{}")
    calls = 0

    def interleaving(end: Any, *flags: int) -> Any:
        """Between the parent's first look and its second the child receives the second task."""
        nonlocal calls
        calls += 1
        if calls == 2:
            received = receive(child.theirs)
            assert received is not None
            assert received.task == "second"
        return receive(end, *flags)

    monkeypatch.setattr(child_messages, "receive", interleaving)
    assert child.take_back() == [first, third]
    assert (list(child.given), second.began, begun_for) == ([second], 7.0, ["second"])
    child.end.close()
    child.theirs.close()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("cause", [stop, cut_short, steal, lose])
def test_what_a_child_begins_while_the_parent_takes_back_keeps_its_own_result(
    queue_factory: QueueFactory, tmp_path: Path, interleaved: Interleaved, cause: Callable[[Worker, Path], object]
) -> None:
    queue = queue_factory(lease_s=60)
    queue.insert_many(gated(tmp_path, 9), batch_tasks=9)
    payloads = {info.id: info.payload["n"] for info in queue.tasks()}
    worker = Worker(queue, tasks.gated, prefetch=8)
    thread, reports = in_background(worker)
    until(lambda: begun(tmp_path) and len(worker._loop._executor.held()) == 8, "a task at work and seven sent ahead")
    cause(worker, tmp_path)
    until(lambda: interleaved.times, "the interleaving")
    assert len(begun(tmp_path)) == 2  # the second began in the middle of it
    (tmp_path / "go").touch()
    thread.join(PATIENCE_S)
    Worker(queue, tasks.gated).run()
    judge(queue, payloads, begun(tmp_path))
    assert sorted(info.result for info in queue.tasks("completed")) == list(range(9))
    assert sorted(begun(tmp_path)) == list(range(9))  # each of them once
    assert (reports[0].lost, reports[0].failed) == (0, 0)


def test_a_task_that_ends_while_its_timeout_is_acted_upon_counts_and_the_next_is_not_killed_for_it(
    queue_factory: QueueFactory, tmp_path: Path, interleaved: Interleaved
) -> None:
    queue = queue_factory(lease_s=60, max_attempts=1)
    queue.insert_many(gated(tmp_path, 9), batch_tasks=9)
    payloads = {info.id: info.payload["n"] for info in queue.tasks()}
    worker = Worker(queue, tasks.gated, prefetch=8, task_timeout_s=1000)
    thread, reports = in_background(worker)
    until(lambda: begun(tmp_path) and len(worker._loop._executor.held()) == 8, "a task at work and seven sent ahead")
    [job] = worker._loop._executor.at_work()
    worker._loop.mailbox.post(lambda: setattr(job, "began", job.began - 2000))
    until(lambda: interleaved.times, "the interleaving")
    (tmp_path / "go").touch()
    thread.join(PATIENCE_S)
    assert reports == [drained(completed=9)]
    judge(queue, payloads, begun(tmp_path))
    assert sorted(begun(tmp_path)) == list(range(9))


def test_failures_in_a_row_take_back_by_name(
    queue_factory: QueueFactory, tmp_path: Path, interleaved: Interleaved
) -> None:
    """The failure of one child's task takes back what another has not received."""
    queue = queue_factory(lease_s=60, max_attempts=1)
    queue.insert_many([*gated(tmp_path, 1, fails=True), *gated(tmp_path, 9)[1:]], batch_tasks=9)
    payloads = {info.id: info.payload["n"] for info in queue.tasks()}
    worker = Worker(queue, tasks.gated, processes=2, prefetch=5, stop_after_failures=10)
    thread, reports = in_background(worker)
    until(
        lambda: len(begun(tmp_path)) == 2 and len(worker._loop._executor.held()) == 9,
        "two tasks at work and seven sent ahead",
    )
    worker._loop.mailbox.post(lambda: setattr(worker._loop, "_failures", 9))
    (tmp_path / "go-0").touch()
    until(lambda: interleaved.times == 2, "the interleaving in both children")
    (tmp_path / "go").touch()
    thread.join(PATIENCE_S)
    assert (reports[0].failed, reports[0].ended) == (1, "failures")
    Worker(queue, tasks.gated).run()
    judge(queue, payloads, begun(tmp_path))
    assert sorted(begun(tmp_path)) == list(range(9))


def test_a_task_that_no_child_has_received_when_its_time_is_over_is_not_charged(
    queue_factory: QueueFactory, tmp_path: Path
) -> None:
    """The child stands still, as on a busy machine: what was sent to it is given to it anew."""
    queue = queue_factory(lease_s=60, max_attempts=1)
    queue.insert_many(gated(tmp_path, 1))
    worker = Worker(queue, tasks.gated, task_timeout_s=1000)
    thread, reports = in_background(worker)
    until(lambda: begun(tmp_path), "the begin of a task")
    [child] = worker._loop._executor._children  # type: ignore[attr-defined]
    pid, real = child.process.pid, child.give

    def give(job: Any, now: float) -> bool:
        os.kill(pid, signal.SIGSTOP)
        until(
            lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T",
            "the child to stand still",
        )
        given = real(job, now)
        job.began -= 2000  # its time is over
        child.give = real
        worker._loop._keep_time()
        os.kill(pid, signal.SIGCONT)
        return bool(given)

    child.give = give
    queue.insert_many([{"where": str(tmp_path), "n": 7}])
    (tmp_path / "go").touch()
    thread.join(PATIENCE_S)
    assert reports == [drained(completed=2)]
    assert sorted(begun(tmp_path)) == [0, 7]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("off", "other", "garbage"), [(1, "", ""), (0, "0", ""), (0, "", '["x",1,0.5]')])
def test_a_child_that_answers_for_another_task_is_ended_and_its_task_fails(
    queue_factory: QueueFactory, off: int, other: str, garbage: str
) -> None:
    queue = queue_factory(lease_s=60, max_attempts=1)
    queue.insert_many([{"n": n, "off": off, "other": other, "garbage": garbage} for n in range(2)], batch_tasks=2)
    assert Worker(queue, tasks.misattributes, prefetch=2).run() == drained(failed=2)
    assert list(queue.tasks("completed")) == []
    for letter in queue.dead():
        assert letter.reason.startswith("the handler's process was ended, for it ")


def test_a_payload_that_a_child_has_no_descriptor_for_fails_with_the_reason(queue_factory: QueueFactory) -> None:
    queue = queue_factory(lease_s=60, max_attempts=1)
    queue.insert_many([{"do": "exhaust"}, {"do": "return", "value": "x" * 40_000}], batch_tasks=2)
    assert Worker(queue, tasks.obey, prefetch=1).run() == drained(completed=1, failed=1)
    [letter] = queue.dead()
    assert "too many files are open in this process" in letter.reason
    # What the parent takes back, or cannot receive, is still known by its name.
    ours, theirs = child_messages.pair()
    with ours, theirs:
        child_messages.send(ours, 5, "a.1", b"x" * 40_000)
        message = child_messages.receive(theirs)
        assert message == (5, "a.1", b"x" * 40_000)
        ours.send(b"6 a.2 beside")  # as when no descriptor was free
        assert child_messages.receive(theirs) == (6, "a.2", None)
        ours.send(b"nonsense")
        with pytest.raises(child_messages.Garbled):
            child_messages.receive(theirs)


# -- everything at once


class Weather:
    """Counts what the storm did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken_back = self.given = 0
        real_take, real_give = child_processes._Child.take_back, child_processes._Child.give

        def take_back(child: Any) -> Any:
            jobs = real_take(child)
            self.taken_back += len(jobs)
            return jobs

        def give(child: Any, job: Any, now: float) -> bool:
            self.given += 1
            return real_give(child, job, now)

        monkeypatch.setattr(child_processes._Child, "take_back", take_back)
        monkeypatch.setattr(child_processes._Child, "give", give)


def blow(worker: Worker, luck: random.Random, over: threading.Event) -> None:
    """Kill children, and have them stand still for a moment, until `over`."""
    while not over.wait(luck.uniform(0.01, 0.15)):
        children = [child.process.pid for child in worker._loop._executor._children if child.is_ready]  # type: ignore
        if not children:
            continue
        try:
            if luck.random() < 0.3:
                os.kill(luck.choice(children), signal.SIGKILL)
            else:
                pid = luck.choice(children)
                os.kill(pid, signal.SIGSTOP)
                over.wait(luck.uniform(0, 0.03))
                os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass


@pytest.mark.thorough
def test_a_storm_of_stops_steals_timeouts_and_kills_mixes_up_nothing(
    queue_factory: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kept result belongs to its payload, and nothing is completed that no handler saw."""
    stall(monkeypatch, 0.05)
    seed = int(os.environ.get("FSQUEUE_TEST_SEED", random.randrange(10**6)))
    luck, weather = random.Random(seed), Weather(monkeypatch)
    queue = queue_factory(lease_s=600, max_attempts=None, backoff_s=(0, 0), durability="none")
    payloads: dict[str, int] = {}
    for _ in range(STORM_ROUNDS):
        if queue.status().waiting < 3000:
            slow = [0.02, 0.06, 0.4]
            news = [luck.choice(slow) if luck.random() < 0.005 else luck.choice([0, 0.0005]) for _ in range(3000)]
            first = len(payloads)
            queue.insert_many({"n": first + n, "log": str(tmp_path / "log"), "s": s} for n, s in enumerate(news))
            payloads |= {info.id: info.payload["n"] for info in queue.tasks("waiting")}
        worker = Worker(
            queue, tasks.stormy, processes=luck.choice([1, 2, 2]), prefetch=luck.choice([None, 20, 100]),
            task_timeout_s=luck.choice([None, 0.1]), grace_s=luck.choice([0.05, 2]),
            stop_after_failures=10**6,  # else ten kills before the first success end it
        )  # fmt: skip
        thread, reports = in_background(worker)
        over, enough = threading.Event(), weather.given + luck.randrange(50, 1000)
        wind = threading.Thread(target=blow, args=(worker, luck, over), daemon=True)
        wind.start()
        try:
            until(
                lambda enough=enough, reports=reports: weather.given >= enough or reports,
                "enough tasks to be handed out",
            )
            assert not reports, f"seed {seed}: it ended by itself: {reports}"
        finally:
            for _ in range(luck.choice([1, 1, 2])):
                worker.stop()
            over.set()
            wind.join()
        thread.join(PATIENCE_S)
        assert reports, f"seed {seed}"
    executed = [int(line.split()[0]) for line in (tmp_path / "log").read_text().splitlines()]
    print(f"seed {seed}: {STORM_ROUNDS} rounds, {len(executed)} executions, {weather.taken_back} taken back")
    judge(queue, payloads, executed)
    assert weather.taken_back > STORM_ROUNDS, f"seed {seed}: a calm day"
