"""A worker over queues on several filesystems, of which one does not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group, Queue, Worker
from fsqueue.protocol.queue_watches import Watch
from fsqueue.storage.listening import Doorbell
from fsqueue.storage.nodes import NodeFailures
from fsqueue.views import inspection
from fsqueue.worker import Away, Event, feeding, loop, settling, sources
from tests.disks import run, small_disk
from tests.support import QueueFactory
from tests.waiting import PATIENCE_S, until
from tests.worker.support import in_background

pytestmark = pytest.mark.once


class Tasks:
    """They end when they are told to, by their payloads."""

    def __init__(self) -> None:
        self.begun, self.ends = set[str](), {payload: threading.Event() for payload in ("mine", "other")}

    def __call__(self, payload: str) -> None:
        self.begun.add(payload)
        self.ends[payload].wait()

    def end(self, payload: str) -> None:
        self.ends[payload].set()


def lease_end(queue: Queue) -> float:
    [task] = queue.tasks("leased")
    assert task.lease_until is not None
    return task.lease_until


def is_renewed_since(queue: Queue, before: float) -> Callable[[], bool]:
    return lambda: lease_end(queue) > before


@contextmanager
def both_at_work(mine: Queue, other: Queue, tasks: Tasks) -> Iterator[Worker]:
    """A worker that is at a task of each queue. In the end both are completed."""
    mine.insert("mine")
    other.insert("other")
    worker = Worker([mine, other], tasks, threads=2, prefetch=1)
    thread, reports = in_background(worker)
    until(lambda: len(tasks.begun) == 2, "both tasks to begin")
    yield worker
    until(lambda: not thread.is_alive(), "the end of the worker")
    assert [(report.completed, report.ended) for report in reports] == [(2, "drained")]


def goes_on_without(mine: Queue, tasks: Tasks) -> None:
    """Leases on the filesystem that answers are renewed, and outcomes are told."""
    for _ in range(3):
        until(is_renewed_since(mine, lease_end(mine)), "a renewal")
    tasks.end("mine")
    until(lambda: mine.status().completed == 1, "the outcome")


class Silent:
    """Calls for tasks of one queue do not come back until it answers."""

    def __init__(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queue, self.asked, self.answers = queue, set[str](), threading.Event()
        for owner, name, place in ((settling, "_tell", 0), (settling.LeaseRenewer, "_renew", 1)):
            monkeypatch.setattr(owner, name, self.silent(name, getattr(owner, name), place))

    def silent(self, name: str, real: Callable[..., Any], place: int) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            given = arguments[place]
            if self.queue in (given, *([given[0].queue] if isinstance(given, list) else [])):
                self.asked.add(name)
                self.answers.wait()
            return real(*arguments)

        return call


@pytest.fixture
def on_two_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each queue, and each group, lay on a filesystem of its own."""
    monkeypatch.setattr(sources, "_root_of", sources._path_of)


@pytest.mark.parametrize("asked", ["_tell", "_renew"])
@pytest.mark.usefixtures("on_two_roots", "renews_often")
def test_a_filesystem_that_does_not_answer_keeps_no_lease_on_another_one_from_being_renewed(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    mine, other = queue_factory("mine"), queue_factory("other")
    silent, tasks = Silent(other, monkeypatch), Tasks()
    with both_at_work(mine, other, tasks):
        if asked == "_tell":
            tasks.end("other")
        until(lambda: asked in silent.asked, "the silence")
        goes_on_without(mine, tasks)
        assert other.status().completed == 0
        silent.answers.set()
        tasks.end("other")


@pytest.mark.usefixtures("on_two_roots")
def test_what_is_held_on_one_filesystem_is_given_back_at_the_end_though_another_one_does_not_answer(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the two comes first."""
    queues = [queue_factory("a"), queue_factory("b")]
    for queue in queues:
        queue.insert(1)
    held = [queue.lease()[0] for queue in queues]
    silent = Silent(queues[0], monkeypatch)
    outcomes = [[settling.Outcome(task, "release")] for task in held]
    settling.give_back(outcomes, list, lambda: queues[1].status().waiting == 1)
    assert [queue.status().leased for queue in queues] == [1, 0]
    silent.answers.set()
    until(lambda: queues[0].status().waiting == 1, "the other one")


def test_queues_are_told_apart_by_their_filesystems(tmp_path: Path, queue_factory: QueueFactory) -> None:
    group = Group.create(tmp_path / "group", durability="none")
    group["fetch"].insert(1)
    queues = [queue_factory("a"), queue_factory("b")]
    given = sources.sources_of([group, *queues])
    assert not given.has_several_roots
    with small_disk(tmp_path / "disk", 4, 500) as disk:
        elsewhere = Queue.create(disk / "q", durability="none")
        given = sources.sources_of([group, *queues, elsewhere])
        assert given.has_several_roots
        [task] = group["fetch"].lease()
        assert len({given.root_of(queue) for queue in (*queues, task.queue)}) == 1
        assert given.root_of(elsewhere) != given.root_of(queues[0])
        elsewhere.close()


@pytest.mark.usefixtures("renews_often")
def test_on_a_frozen_disk_nothing_is_told_and_on_the_other_one_all_goes_on(
    tmp_path: Path, queue_factory: QueueFactory
) -> None:
    mine, tasks = queue_factory("mine"), Tasks()
    with small_disk(tmp_path / "disk", 16, 500, "ext4") as disk:
        other = Queue.create(disk / "q", durability="none")
        with both_at_work(mine, other, tasks):
            run("fsfreeze", "--freeze", str(disk))
            try:
                tasks.end("other")
                goes_on_without(mine, tasks)
            finally:
                run("fsfreeze", "--unfreeze", str(disk))
                tasks.end("mine")
        assert other.status().completed == 1
        other.close()


# -- leasing


def named_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not answer is left, and named, after parts of a second."""
    monkeypatch.setattr(loop, "LATE_S", 0.2)
    monkeypatch.setattr(sources, "SILENT_S", 0.2)


class SilentLooks:
    """Looks at one queue do not come back until it answers."""

    def __init__(self, queue: Queue, monkeypatch: pytest.MonkeyPatch, after: bool = False) -> None:
        """`after`: what is leased is leased, and only the answer is late."""
        self.answers, self.is_asked = threading.Event(), threading.Event()
        real = Watch.take
        path = queue.store.path

        def take(watch: Watch, *arguments: Any) -> Any:
            got = real(watch, *arguments) if after else None
            if watch.store.path == path:
                self.is_asked.set()
                self.answers.wait()
            return got if after else real(watch, *arguments)

        monkeypatch.setattr(Watch, "take", take)
        named_soon(monkeypatch)
        monkeypatch.setattr(feeding, "AWAY_LOOK_S", 0.05)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.usefixtures("on_two_roots")
def test_a_filesystem_that_does_not_answer_keeps_no_task_of_another_one_back(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    mine, other = queue_factory("mine"), queue_factory("other")
    mine.insert_many(range(20))
    other.insert_many(range(3))
    silent, done, events = SilentLooks(other, monkeypatch, after), list[int](), list[Event]()
    worker = Worker([mine, other], done.append, threads=1, prefetch=1, tell=events.append)
    thread, reports = in_background(worker)
    until(silent.is_asked.is_set, "the silence")
    until(lambda: mine.status().completed == 20, "the tasks of the other one")
    until(lambda: any(f"{other.path} does not answer; it is tried again." == one.text for one in events), "its name")
    mine.insert(20)
    until(lambda: mine.status().completed == 21, "a further task")
    assert not reports
    assert other.status().completed == 0
    silent.answers.set()
    until(lambda: not thread.is_alive(), "the end of the worker")
    assert [(report.completed, report.ended) for report in reports] == [(24, "drained")]
    assert [one.attempts for one in other.results()] == [1, 1, 1]


@pytest.mark.usefixtures("on_two_roots")
def test_a_run_waits_for_what_does_not_answer_no_longer_than_its_patience(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = queue_factory("mine"), queue_factory("other")
    mine.insert(1)
    other.insert(2)
    silent, events = SilentLooks(other, monkeypatch), list[Event]()
    worker = Worker([mine, other], len_of, threads=1, prefetch=1, tell=events.append)
    monkeypatch.setattr(worker._loop, "_limits", replace(worker._loop._limits, patience_s=0))
    report = worker.run()
    assert (report.completed, report.ended) == (1, "away")
    assert f"all else is drained, and {other.path} does not answer" in [one.text for one in events]
    silent.answers.set()
    [task] = other.tasks()
    until(lambda: len(other.history(task.id)) == 3, "what was leased late to be put back")
    assert [move.op for move in other.history(task.id)] == ["insert", "lease", "release"]


class SilentUpstream:
    """Nobody is told whether a queue is drained until it answers."""

    def __init__(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers, self.is_asked = threading.Event(), threading.Event()
        real, path = inspection._Remains.collect, queue.store.path

        def collect(remains: inspection._Remains) -> Any:
            if remains.store.path == path:
                self.is_asked.set()
                self.answers.wait()
            return real(remains)

        monkeypatch.setattr(inspection._Remains, "collect", collect)
        named_soon(monkeypatch)
        monkeypatch.setattr(feeding, "AWAY_LOOK_S", 0.05)


@pytest.mark.parametrize("is_grouped", [False, True])
@pytest.mark.usefixtures("on_two_roots")
def test_an_earlier_stage_whose_filesystem_does_not_answer_keeps_no_task_back(
    queue_factory: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_grouped: bool
) -> None:
    """The run is not drained as long as it is silent. Once it answers, it has to be drained, too."""
    mine = queue_factory("mine")
    if is_grouped:
        stage: Queue = Group.create(tmp_path / "group", durability="none")["fetch"]
        stage.insert(0)
        [task] = stage.lease()
        task.complete()
        path = stage.group.path  # type: ignore[attr-defined]
    else:
        stage = queue_factory("stage")
        path = stage.path
    silent, events = SilentUpstream(stage, monkeypatch), list[Event]()
    thread, reports = in_background(Worker([mine], len_of, threads=1, upstream=[stage], tell=events.append))
    until(silent.is_asked.is_set, "the silence")
    until(lambda: any(f"{path} does not answer; it is tried again." == one.text for one in events), "its name")
    for count in (1, 2):
        mine.insert(count)
        until(lambda count=count: mine.status().completed == count, "the task of the other one")  # type: ignore[misc]
    assert not reports
    held = stage.insert("left")
    silent.answers.set()
    until(lambda: any(f"{path} is there: it has to be drained, too." == one.text for one in events), "its return")
    mine.insert(3)
    until(lambda: mine.status().completed == 3, "a further task")
    assert not reports
    stage.cancel([held])
    until(lambda: not thread.is_alive(), "the end of the worker")
    assert [(report.completed, report.ended) for report in reports] == [(3, "drained")]


@pytest.mark.usefixtures("on_two_roots")
def test_a_run_waits_for_an_earlier_stage_that_does_not_answer_no_longer_than_its_patience(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, stage = queue_factory("mine"), queue_factory("stage")
    mine.insert(1)
    silent, events = SilentUpstream(stage, monkeypatch), list[Event]()
    worker = Worker([mine], len_of, threads=1, upstream=[stage], tell=events.append)
    monkeypatch.setattr(worker._loop, "_limits", replace(worker._loop._limits, patience_s=0))
    report = worker.run()
    assert (report.completed, report.ended) == (1, "away")
    assert f"all else is drained, and {stage.path} does not answer" in [one.text for one in events]
    silent.answers.set()


def moves(queue: Queue) -> list[list[str]]:
    """What has happened to each completed task."""
    return [[move.op for move in queue.history(task.id)] for task in queue.tasks("completed")]


ONCE = ["insert", "lease", "complete"]


@pytest.mark.usefixtures("on_two_roots")
def test_tasks_of_others_wait_for_a_silent_filesystem_less_long_than_it_takes_to_be_named(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that were leased in the look that met the silence. What comes late from there is done all the same."""
    mine, other = queue_factory("mine"), queue_factory("other")
    mine.insert_many(range(40))
    other.insert_many(range(5))
    late_s, noticed = loop.LATE_S, list[Event]()
    assert late_s < sources.SILENT_S
    silent = SilentLooks(other, monkeypatch, after=True)
    monkeypatch.setattr(loop, "LATE_S", late_s)
    monkeypatch.setattr(sources, "SILENT_S", PATIENCE_S)
    worker = Worker([mine, other], len_of, threads=2, prefetch=2, tell=noticed.append)
    thread, reports = in_background(worker)
    until(silent.is_asked.is_set, "the silence")
    until(lambda: mine.status().completed == 40, "the tasks of the other one")
    assert not [one.text for one in noticed if one.kind == "away"]
    silent.answers.set()
    until(lambda: not thread.is_alive(), "the end of the worker")
    assert [(report.completed, report.ended) for report in reports] == [(45, "drained")]
    assert [one.text for one in noticed if one.kind in ("away", "lost")] == []
    assert moves(mine) == [ONCE] * 40
    assert moves(other) == [ONCE] * 5


@pytest.mark.usefixtures("on_two_roots")
def test_a_slow_filesystem_keeps_its_share_while_another_one_has_tasks(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time that it is late it is waited for longer from then on, and what it gives is done next."""
    monkeypatch.setattr(loop, "LATE_S", 0.05)
    mine, other = queue_factory("mine"), queue_factory("other")
    mine.insert_many(range(20_000))
    other.insert_many(range(8))
    real_take, real_leave, left = Watch.take, feeding.Feeder.leave, list[str | None]()

    def take(watch: Watch, *arguments: Any) -> Any:
        if watch.store.path == other.store.path and (before := len(left)) < 5:
            until(lambda: len(left) > before, "the worker to go on without it")
        return real_take(watch, *arguments)

    def leave(feeder: feeding.Feeder) -> Any:
        left.append(feeder.silent())
        return real_leave(feeder)

    monkeypatch.setattr(Watch, "take", take)
    monkeypatch.setattr(feeding.Feeder, "leave", leave)
    worker = Worker([mine, other], len_of, threads=1, prefetch=1)
    thread, _ = in_background(worker)
    until(lambda: other.status().completed == 8, "the tasks of the slow one")
    assert mine.status().waiting
    worker.stop()
    until(lambda: not thread.is_alive(), "the end of the worker")
    assert left[:5] == [other.store.path] * 5
    assert worker._loop._late_s[other.store.path] >= 0.05 * 2**5
    assert moves(other) == [ONCE] * 8


@pytest.mark.usefixtures("on_two_roots")
def test_what_comes_late_and_is_more_than_the_run_may_take_is_put_back(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = queue_factory("mine"), queue_factory("other")
    mine.insert("mine")
    other.insert("other")
    silent, tasks = SilentLooks(other, monkeypatch, after=True), Tasks()
    thread, reports = in_background(Worker([other, mine], tasks, threads=1, prefetch=1, max_tasks=1))
    until(lambda: tasks.begun == {"mine"}, "the task of the other one")
    assert other.status().leased == 1
    silent.answers.set()
    until(lambda: other.status().waiting == 1, "what came late to be put back")
    tasks.end("mine")
    until(lambda: not thread.is_alive(), "the end of the worker")
    assert [(report.completed, report.ended) for report in reports] == [(1, "max-tasks")]
    assert tasks.begun == {"mine"}
    [task] = other.tasks("waiting")
    assert task.attempt == 0


@pytest.mark.parametrize("is_taken_over", [False, True])
@pytest.mark.usefixtures("on_two_roots")
def test_a_task_is_not_begun_under_a_lease_that_may_have_run_out_before_it_came(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, is_taken_over: bool
) -> None:
    mine, other = queue_factory("mine"), queue_factory("other", lease_s=1)
    mine.insert(1)
    other.insert(2)
    silent, done, events = SilentLooks(other, monkeypatch, after=True), list[int](), list[Event]()
    thread, reports = in_background(Worker([mine, other], done.append, threads=1, prefetch=1, tell=events.append))
    until(lambda: mine.status().completed == 1, "the task of the other one")
    until(silent.is_asked.is_set, "the silence")
    until(lambda: other.status().waiting == 1, "the end of the lease")
    if is_taken_over:
        [task] = until(Queue(other.path, worker="another").lease, "the lease of another worker")
        task.complete()
    silent.answers.set()
    until(lambda: not thread.is_alive(), "the end of the worker")
    assert [report.ended for report in reports] == ["drained"]
    assert sorted(done) == ([1] if is_taken_over else [1, 2])
    assert not [one for one in events if one.kind == "lost"]
    [task] = other.tasks("completed")
    assert [move.op for move in other.history(task.id)].count("complete") == 1


def _hangs(of: Any, name: str, store_of: Callable[..., Any]) -> Any:
    return pytest.param((of, name, store_of), id=name)


@pytest.mark.parametrize(
    "place",
    [
        _hangs(Watch, "promise", lambda watch, **_: watch.store),
        _hangs(feeding.lease_holders, "dead", lambda store, **_: store),
        _hangs(inspection._Remains, "collect", lambda remains: remains.store),
        _hangs(NodeFailures, "excluded", lambda failures: failures.store),
        _hangs(Doorbell, "ring", lambda doorbell: doorbell),
    ],
)
@pytest.mark.usefixtures("on_two_roots")
def test_wherever_a_feeder_waits_for_a_filesystem_the_tasks_of_others_are_done(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, place: tuple[Any, str, Callable[..., Any]]
) -> None:
    named_soon(monkeypatch)
    monkeypatch.setattr(feeding, "AWAY_LOOK_S", 0.05)
    owner, name, store_of = place
    mine, other = queue_factory("mine"), queue_factory("other")
    hangs, answers = threading.Event(), threading.Event()
    real, path, events = getattr(owner, name), other.store.path, list[Event]()

    def act(*arguments: Any, **named: Any) -> Any:
        asked = store_of(*arguments, **named)
        of = asked._fs.root if isinstance(asked, Doorbell) else asked.path
        if of == path and threading.current_thread().name == "fsqueue-feeder":
            hangs.set()
            answers.wait()
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, act)
    holder = Queue(mine.path)
    if name == "dead":  # else all is drained before it is looked for them
        mine.insert(0)
        [held] = holder.lease()
    elif name == "ring":  # the end is told by those that have done something
        mine.insert(0)
    worker = Worker([mine, other], len_of, threads=1, prefetch=1, exclude_after=3, tell=events.append)
    thread, reports = in_background(worker)
    until(hangs.is_set, "the silence")
    mine.insert(1)
    if name == "dead":
        held.complete()
    until(lambda: mine.status().waiting == 0 and mine.status().leased == 0, "the tasks of the other one")
    until(lambda: any(f"{other.path} does not answer; it is tried again." == one.text for one in events), "its name")
    assert not reports
    answers.set()
    until(lambda: not thread.is_alive(), "the end of the worker")
    assert [report.ended for report in reports] == ["drained"]


@pytest.mark.usefixtures("on_two_roots")
def test_what_was_not_there_and_does_not_answer_when_it_is_looked_for_keeps_no_task_back(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    named_soon(monkeypatch)
    monkeypatch.setattr(feeding, "AWAY_LOOK_S", 0.05)
    mine, other = queue_factory("mine"), queue_factory("other")
    hangs, answers = threading.Event(), threading.Event()

    def come() -> Queue:
        hangs.set()
        answers.wait()
        return other

    away, events = Away(str(other.path), come), list[Event]()
    worker = Worker([mine], len_of, threads=1, until="forever", away=[away], tell=events.append)
    thread, _ = in_background(worker)
    until(hangs.is_set, "the silence")
    told = [f"{other.path} is not there (not mounted?); it is tried again."]
    told.append(f"{other.path} does not answer; it is tried again.")
    until(lambda: [one.text for one in events if one.kind == "away"] == told, "the reason that is true now")
    mine.insert(1)
    until(lambda: mine.status().completed == 1, "the task of the other one")
    other.insert(2)
    answers.set()
    until(lambda: other.status().completed == 1, "the task of what is there now")
    worker.stop()
    until(lambda: not thread.is_alive(), "the end of the worker")


class Passed:
    """A lock that tells who has waited for it."""

    def __init__(self, name: str, told: list[str]) -> None:
        self._name, self._told = name, told

    def acquire(self, timeout: float) -> bool:
        self._told.append(self._name)
        return True

    def release(self) -> None:
        """Nobody waits."""


def test_a_loss_waits_for_the_feeder_that_waits_for_the_same_filesystem_and_for_no_other_such() -> None:
    told = list[str]()
    taking: Any = settling.Taking(lambda queue: queue)  # type: ignore[arg-type,return-value]
    taking.lock = Passed("left", told)
    taking.leave("b")
    taking.lock = Passed("present", told)
    taking.let_pass("a")
    assert told == ["present"]
    taking.let_pass("b")
    assert told == ["present", "present", "left"]


def len_of(payload: Any) -> None:
    """Do nothing."""


def test_on_a_frozen_disk_nothing_is_leased_and_on_the_other_one_all_goes_on(
    tmp_path: Path, queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on before the frozen one is named. Once that answers, each of its tasks is done under its first lease."""
    monkeypatch.setattr(sources, "SILENT_S", PATIENCE_S)
    mine, done, events = queue_factory("mine"), list[int](), list[Event]()
    with small_disk(tmp_path / "disk", 16, 500, "ext4") as disk:
        other = Queue.create(disk / "q", durability="none")
        other.insert_many(range(10))
        mine.insert_many(range(10))
        run("fsfreeze", "--freeze", str(disk))
        try:
            thread, reports = in_background(Worker([mine, other], done.append, threads=2, tell=events.append))
            until(lambda: mine.status().completed == 10, "the tasks of the other one")
            assert not [one.text for one in events if one.kind == "away"]
        finally:
            run("fsfreeze", "--unfreeze", str(disk))
        until(lambda: not thread.is_alive(), "the end of the worker")
        assert [(report.completed, report.ended) for report in reports] == [(20, "drained")]
        assert moves(other) == [ONCE] * 10
        other.close()
