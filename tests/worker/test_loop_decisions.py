"""What the loop and its threads decide, one decision at a time: no task is executed."""

from __future__ import annotations

import errno
import itertools
import math
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fsqueue import Queue, StorageError, Worker
from fsqueue.clock import ManualClock
from fsqueue.protocol.leasing import UNREADABLE_LINE
from fsqueue.protocol.waiting import BELL_S
from fsqueue.worker import Event, feeding, loop, output, settling
from fsqueue.worker.child_processes import SENT_MAX
from fsqueue.worker.events import Mailbox
from fsqueue.worker.inserts import NONE, Inserts
from fsqueue.worker.jobs import Job
from fsqueue.worker.limits import STALL_S, UNTOLD_BYTES_MAX, UNTOLD_MAX
from fsqueue.worker.output import OutputWriter, Stream
from fsqueue.worker.settling import HOPELESS_S, RETRY_S, TOGETHER_MAX, Outcome, Renewed, Settled, patience_with
from tests.support import QueueFactory, base_of
from tests.waiting import PATIENCE_S
from tests.worker import tasks

pytestmark = pytest.mark.once


class Idle:
    """An executor with two slots in which nothing is at work but what a test says."""

    slots, due_at = 2, math.inf

    def __init__(self) -> None:
        self.jobs: list[Any] = []
        self.given: list[Any] = []

    def is_ready(self) -> bool:
        return True

    def at_work(self) -> list[Any]:
        return self.jobs

    def held(self) -> list[Any]:
        return [*self.jobs, *self.given]

    def take_back(self, slower_than_s: float = -1.0) -> list[Any]:
        return []


class Deciding:
    """A loop that does not run, by a clock that stands still."""

    def __init__(self, queue: Queue, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.clock, self.executor, self.asked, self.said = ManualClock(), Idle(), list[int](), list[str]()
        self.loop = Worker(queue, tasks.nothing, threads=1, **options)._loop
        monkeypatch.setattr(self.loop, "_now", self.clock.monotonic)
        monkeypatch.setattr(self.loop, "_executor", self.executor)
        monkeypatch.setattr(self.loop, "_say", lambda kind, text, **fields: self.said.append(text))
        monkeypatch.setattr(self.loop._feeder, "ask", self.asked.append)
        self.now = self.clock.monotonic()


@pytest.fixture
def it(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Deciding:
    return Deciding(queue, monkeypatch)


# -- the loop


def test_nothing_more_is_leased_while_too_many_outcomes_are_untold(it: Deciding) -> None:
    """A file server that takes no outcomes would else be followed by ever more of them, and their results."""
    outcome: Any = SimpleNamespace(inserts=NONE)
    untold: dict[int, Any] = dict.fromkeys(range(2 + UNTOLD_MAX), outcome)
    it.loop._untold = untold
    it.loop._ask()
    assert it.asked == [2], "both slots are free"
    failure: Any = SimpleNamespace()
    it.loop._pending._waiting.append((math.inf, failure))
    it.loop._ask()
    assert it.asked == [2], "a failure that waits to be told counts, too"
    it.loop._pending._waiting.clear()
    untold[-1] = outcome
    it.loop._ask()
    assert it.asked == [2]
    untold.clear()
    it.loop._ask()
    assert it.asked == [2, 2]


def test_nothing_more_is_leased_while_tasks_to_insert_take_too_much_memory(
    it: Deciding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an update refuses for good is let go of: otherwise this worker would never take a task again."""
    task: Any = SimpleNamespace(attempt=1)
    outcome = Outcome(task, "complete", inserts=Inserts((), UNTOLD_BYTES_MAX + 1))
    monkeypatch.setattr(it.loop._reporter, "tell", lambda outcomes: None)
    it.loop._outbox.append(outcome)
    it.loop._send()
    it.loop._ask()
    assert it.asked == []
    outcome.verb, outcome.inserts = "bury", NONE
    it.loop._settled(Settled([(outcome, "buried", "")]))
    it.loop._ask()
    assert it.asked == [2]


def test_after_failures_that_may_exclude_the_node_nothing_is_leased_before_they_are_told(it: Deciding) -> None:
    failure: Any = SimpleNamespace()
    it.loop._failures = int(it.loop._failures_noted)
    it.loop._pending._waiting.append((math.inf, failure))
    it.loop._ask()
    it.loop._pending._waiting.clear()
    it.loop._untold = {0: failure}
    it.loop._ask()
    assert it.asked == []
    it.loop._untold = {}
    it.loop._ask()
    assert it.asked == [2]


DUE: dict[str, Callable[[Deciding, float], object]] = {
    "renewal": lambda it, at: setattr(it.loop, "_renew_at", at),
    "end of the grace": lambda it, at: setattr(it.loop, "_grace_until", at),
    "look for what is stuck": lambda it, at: setattr(it.loop, "_look_at", at),
    "end of the time": lambda it, at: setattr(it.loop, "_stop_at", at),
    "leaving": lambda it, at: setattr(it.loop, "_leave_at", at),
    "executor": lambda it, at: setattr(it.executor, "due_at", at),
    "failure": lambda it, at: setattr(it.loop._pending, "_waiting", deque([(at, None)])),
    "SIGKILL": lambda it, at: it.executor.jobs.append(SimpleNamespace(doomed="stop", kill_at=at, began=0.0)),
    "timeout": lambda it, at: it.executor.jobs.append(
        SimpleNamespace(doomed="", kill_at=math.inf, began=at - 1000, batch=None)
    ),
    "SIGKILL after an answer": lambda it, at: it.executor.jobs.append(
        SimpleNamespace(doomed="", kill_at=at, began=math.inf, batch=None)
    ),
    "idle": lambda it, at: (setattr(it.loop._feeder, "is_busy", True), setattr(it.loop, "_idle_since", at - 5000)),
}


@pytest.mark.parametrize("what", DUE)
def test_the_loop_wakes_for_whatever_is_due_first(queue: Queue, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """What it does not wake for would be done when something else comes, which may be never."""
    it = Deciding(queue, monkeypatch, idle_timeout_s=5000)
    monkeypatch.setattr(it.loop, "_limits", replace(it.loop._limits, task_timeout_s=1000))
    assert it.loop._due_s() is None
    DUE[what](it, it.now + 7)
    assert it.loop._due_s() == 7
    DUE[what](it, it.now - 7)
    assert it.loop._due_s() == 0


def test_a_renewal_that_fails_is_tried_again_soon_and_said_once_in_a_row(it: Deciding) -> None:
    failed = Renewed(error=StorageError("The filesystem is away."))
    for renewed, said in ((failed, 1), (failed, 1), (Renewed(), 1), (failed, 2)):
        it.loop._renew_at = it.now + 200
        it.loop._renewed(renewed)
        assert it.loop._renew_at == it.now + (RETRY_S[0] if renewed is failed else 200)
        assert len(it.said) == said


def test_what_was_only_leased_ahead_took_no_time_and_counts_nowhere(it: Deciding, queue: Queue) -> None:
    queue.insert_many(range(3))
    leased = queue.lease(3)
    it.loop._ahead.extend(map(Job, leased))
    it.loop._taken = 3
    it.loop._put_back_untouched(1)
    assert [job.task for job in it.loop._ahead] == leased[:2], "the last one goes"
    it.loop._put_back_untouched()
    outcomes = it.loop._outbox
    assert [(one.verb, one.begun, one.task.took_s) for one in outcomes] == [("release", False, 0.0)] * 3
    assert it.loop._taken == 0


@pytest.mark.parametrize(("prefetch", "ahead"), [(None, 0), (5, 4)])
def test_what_a_user_has_asked_to_lease_ahead_stays_behind_slow_tasks(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, prefetch: int | None, ahead: int
) -> None:
    it = Deciding(queue, monkeypatch, prefetch=prefetch)
    queue.insert_many(range(4))
    it.loop._ahead.extend(map(Job, queue.lease(4)))
    it.executor.jobs = [SimpleNamespace(began=it.now - 2 * STALL_S)] * it.executor.slots
    it.loop._ahead_since = it.now - 2 * STALL_S
    it.loop._look_for_stuck(it.now)
    assert len(it.loop._ahead) == ahead
    assert it.loop._look_at == it.now + STALL_S


def test_the_pause_of_tasks_that_put_themselves_back_grows_until_one_is_completed(
    it: Deciding, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "pause_s", lambda times, draw: float(times))
    queue.insert("x")
    [task] = queue.lease()
    ends: list[tuple[str, float | None]] = [("release", None), ("release", 0.0), ("release", None)]
    for verb, value in (*ends, ("complete", None), *ends):
        it.loop.done(Job(task), verb, value, 1.0)
    pauses = [outcome.delay_s for outcome in it.loop._outbox if outcome.verb == "release"]
    assert pauses == [1, 0, 2, 1, 0, 2]


def test_what_a_worker_holds_and_has_done_is_told_while_it_works(it: Deciding) -> None:
    report = it.loop._report
    it.loop._taken = 10
    report.completed, report.failed, report.released, report.lost = 1, 2, 3, 1
    assert it.loop.held_about == 3
    it.loop._untold = dict.fromkeys(range(2))  # type: ignore[assignment]
    assert it.loop.completed_about == (1, 3), "for certain, and at most"
    report.failed = 9
    assert it.loop.held_about == 0, "a task that was lost and taken again counts twice"
    it.loop._feeder.due_at = it.now + 7
    assert it.loop.next_due_s == 7


# -- children


def child(now: float, *given: Any, is_ready: bool = True, distrusted: str = "", tasks_left: int = SENT_MAX) -> Any:
    jobs = [SimpleNamespace(began=now - age, doomed=doomed) for age, doomed in given]
    return SimpleNamespace(given=jobs, is_ready=is_ready, distrusted=distrusted, tasks_left=tasks_left)


@pytest.mark.parametrize(
    ("options", "is_told_apart"),
    [({}, False), ({"output": "group"}, True), ({"tag": True}, True), ({"keep_output": "kept"}, True)],
)
def test_a_child_is_given_tasks_ahead_unless_their_outputs_are_told_apart(
    queue: Queue, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], is_told_apart: bool
) -> None:
    """What the next task prints might be read before its begin is known, and be shown as that of the one before."""
    monkeypatch.chdir(tmp_path)
    children: Any = Worker(queue, tasks.nothing, **options)._loop._executor
    now = children.now()
    children._children = [child(now), child(now, (0.1, "")), child(now, (0.1, ""), (-math.inf, ""))]
    assert children.room(5) == (1 if is_told_apart else 5 + 4 + 3)
    assert children.room(10_000) == (1 if is_told_apart else 3 * SENT_MAX - 3)


def test_a_child_is_given_no_more_tasks_than_it_may_do(queue: Queue) -> None:
    children: Any = Worker(queue, tasks.nothing)._loop._executor
    children._children = [child(children.now(), tasks_left=3), child(children.now(), (0.1, ""), tasks_left=1)]
    assert children.room(2) == 2 + 1
    assert children.room(10_000) == 3 + 1


def test_a_child_that_may_not_go_on_is_given_nothing(queue: Queue) -> None:
    children: Any = Worker(queue, tasks.nothing)._loop._executor
    now = children.now()
    children._children = [
        child(now, is_ready=False),
        child(now, distrusted="it lies"),
        child(now, (2 * STALL_S, "")),
        child(now, (0.1, "timeout")),
        child(now, tasks_left=0),
    ]
    assert children.room(5) == 0
    assert not children.give(Job(leased_of(queue)))


def leased_of(queue: Queue) -> Any:
    queue.insert("x")
    return queue.lease()[0]


# -- the output writer


class File:
    """Kept output."""

    name, is_incomplete, writers = "kept", False, 0

    def __init__(self) -> None:
        self.data = b""
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()

    def append(self, data: bytes) -> None:
        self.data += data


def test_what_is_not_written_when_the_worker_ends_counts_once_for_each_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "CLOSE_S", 0.0)
    writer = OutputWriter(lambda name, error: None, lambda text: None)
    written, unwritten, is_stuck, may_go = File(), File(), threading.Event(), threading.Event()
    files: list[Any] = [written, unwritten]
    writer.start()
    writer.keep(files[0], b"a")
    writer.do(lambda: (is_stuck.set(), may_go.wait(PATIENCE_S)))
    assert is_stuck.wait(PATIENCE_S)
    writer.keep(files[1], b"a")
    writer.keep(files[1], b"b")
    writer.close()
    assert (writer.unkept, written.is_incomplete, unwritten.is_incomplete) == (1, False, True)
    may_go.set()
    writer.join(PATIENCE_S)


def test_what_cannot_be_written_makes_room_like_what_is_written() -> None:
    """Else the pipes of all commands would stay full once a full disk had refused a megabyte of their output."""
    told: list[str] = []
    writer = OutputWriter(lambda name, error: None, told.append)
    may_go, resumed = threading.Event(), threading.Event()

    def refuse() -> None:
        may_go.wait(PATIENCE_S)
        raise OSError(errno.ENOSPC, "No space left on device")

    writer.start()
    writer.do(refuse, output.BACKLOG_BYTES_MAX + 1)
    assert writer.is_full(resumed.set)
    may_go.set()
    assert resumed.wait(PATIENCE_S)
    assert not writer.is_full(resumed.set)
    assert (len(told), writer.is_full_disk) == (1, True)
    writer.close()
    writer.join(PATIENCE_S)


def test_the_last_stream_that_leaves_a_file_closes_it() -> None:
    """Else old files would take up the number that may be open, and those at work would be cut into several."""
    writer = OutputWriter(lambda name, error: None, lambda text: None)
    first, second = (Stream(Mailbox(), writer, ours, "line", False) for ours in (1, 2))
    before, after = File(), File()
    files: list[Any] = [before, after]
    writer.start()
    for file in files:
        first.keep_in(file)
        second.keep_in(file)
    assert before.closed.wait(PATIENCE_S)
    second.close()
    looked = threading.Event()
    writer.do(looked.set)
    assert looked.wait(PATIENCE_S)
    assert not after.closed.is_set(), "the first stream still ends in it"
    first.close()
    assert after.closed.wait(PATIENCE_S)
    writer.close()
    writer.join(PATIENCE_S)


def test_the_unfinished_line_of_a_process_that_was_left_behind_is_shown() -> None:
    printed: list[bytes] = []
    writer = OutputWriter(lambda name, error: None, lambda text: None, lambda ours, data: printed.append(data))
    stream = Stream(Mailbox(), writer, 1, "line", False)
    writer.start()
    os.write(stream.write_end, b"in time")
    stream.read()
    stream.ended()
    os.write(stream.write_end, b"late")
    stream.read()
    stream.close()
    writer.close(lambda: False)
    writer.join(PATIENCE_S)
    assert b"".join(printed).replace(b"\n", b"") == b"in timelate"


# -- the reporter


def outcomes(queue: object, count: int, verb: Any, **fields: Any) -> list[Outcome]:
    made: list[Any] = [SimpleNamespace(queue=queue, batch=f"{verb}-{fields}", index=number) for number in range(count)]
    return [Outcome(task, verb, **fields) for task in made]


def test_outcomes_are_told_in_calls_of_a_bounded_size_and_none_is_left_out() -> None:
    one, other = object(), object()
    completed, released = outcomes(one, 2 * TOGETHER_MAX + 1, "complete"), outcomes(other, 3, "release", delay_s=0)
    later, failed = outcomes(other, 2, "release", delay_s=5), outcomes(one, 2, "fail")
    groups = list(settling._grouped([*completed, *released, *later, *failed]))
    assert sorted(len(mine) for *_, mine in groups) == [1, 1, 1, 2, 3, TOGETHER_MAX, TOGETHER_MAX]
    for queue, verb, delay_s, mine in groups:
        assert all((each.task.queue, each.verb, each.delay_s) == (queue, verb, delay_s) for each in mine)
    told = {id(outcome) for *_, mine in groups for outcome in mine}
    assert told == {id(outcome) for outcome in (*completed, *released, *later, *failed)}
    twice = [replace(completed[0]) for _ in range(2)]
    assert [mine for *_, mine in settling._grouped(twice)] == [twice[:1], twice[1:]], "under two leases of one task"


@pytest.mark.parametrize(
    ("code", "longest_s"),
    [(errno.EACCES, HOPELESS_S), (errno.EROFS, HOPELESS_S), (errno.ENOTDIR, HOPELESS_S), (errno.EIO, 600),
     (errno.ESTALE, 600), (errno.ENOSPC, 600)],
)  # fmt: skip
def test_an_error_that_does_not_look_as_if_it_would_pass_is_waited_for_shortly(code: int, longest_s: float) -> None:
    error = StorageError("no")
    error.__cause__ = OSError(code, os.strerror(code))
    assert patience_with(error, 600) == longest_s
    assert patience_with(error, 2) == 2, "as short as the user says, in any case"


# -- the feeder


def feeder_of(*queues: Queue) -> feeding.Feeder:
    return Worker(queues, tasks.nothing, threads=1, until="forever")._loop._feeder


def test_dead_workers_are_told_of_once_for_each_state_of_things(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only of those that two looks have found dead. An error at one queue hides nothing of the others, and is no
    state of things.
    """
    queues, said = [queue_factory("a"), queue_factory("b")], list[str]()
    feeder = feeder_of(*queues)
    failed = OSError(errno.EIO, "no")
    looks: dict[str, list[Any]] = {
        "a": [failed, "x", "x", "x", failed, "x", "", "x", "x"],
        "b": ["y", "y", "yz", "yz", "", "", "", "", ""],
    }

    def dead(store: Any, asks_slurm: bool = True) -> list[Any]:
        assert not asks_slurm, "an idle worker does not ask the scheduler again and again"
        found = looks[os.path.basename(store.path)].pop(0)
        if isinstance(found, OSError):
            raise found
        return [SimpleNamespace(key=key) for key in found]

    def what_to_type(store: Any, workers: list[Any]) -> str | None:
        return "".join(worker.key for worker in workers) or None

    monkeypatch.setattr(feeding.lease_holders, "dead", dead)
    monkeypatch.setattr(feeding.lease_holders, "what_to_type", what_to_type)
    monkeypatch.setattr(feeder, "_say", lambda kind, text: said.append(text))
    for _ in range(len(looks["a"])):
        feeder._tell_of_dead()
    assert said == ["y", "x", "yz", "x"]


def test_the_longer_a_worker_waits_the_seldomer_it_looks_for_dead_ones(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look reads the logs of all batches at work. But it does not become ever seldomer."""
    clock, feeder, looks = ManualClock(), feeder_of(queue), list[float]()
    began, (shortest, longest) = clock.now_s, feeding.DEATH_CHECK_S

    def sleep(seconds: float, deaf: bool) -> None:
        clock.advance(seconds)
        feeder._is_closed = clock.now_s > began + 5 * longest

    watches: Any = SimpleNamespace(look=lambda n: [], due_s=lambda: math.inf, is_deaf=False)
    feeder._watches = watches
    monkeypatch.setattr(feeder, "_now", clock.monotonic)
    monkeypatch.setattr(feeder, "_sleep", sleep)
    monkeypatch.setattr(feeder, "_tell_of_dead", lambda: looks.append(clock.now_s - began))
    assert feeder._wait(1) == feeding.Fed()
    late_s = 2 * BELL_S[1]
    assert shortest <= looks[0] <= shortest + late_s
    for before, after in itertools.pairwise(looks):
        assert min(before, longest) <= after - before <= min(max(before, shortest), longest) + late_s
    assert 10 < len(looks) < 25


def test_a_task_that_cannot_be_read_is_counted_as_given_up(queue_factory: QueueFactory) -> None:
    queue, events = queue_factory(shards=1), list[Event]()
    queue.insert_many(range(3), batch_tasks=3)
    [path] = (base_of(queue) / "queue").glob("*/*")
    path.write_bytes(path.read_bytes().replace(b'{"payload":1}', b'{"payload":?}'))
    report = Worker(queue, tasks.nothing, threads=1, tell=events.append).run()
    assert (report.completed, report.failed, report.spent) == (2, 0, 1)
    [fields] = [event.fields for event in events if event.kind == "given-up"]
    [letter] = queue.dead()
    assert (fields["task"], fields["attempt"], fields["reason"]) == (letter.id, 1, UNREADABLE_LINE)
