"""The loop: when it ends, what it shares, how it gets through a file server's absence."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fsqueue import InvalidArgument, Queue, StorageError, Worker
from fsqueue.clock import ManualClock
from fsqueue.filesystem import Filesystem
from fsqueue.protocol.waiting import tell_of_end
from fsqueue.storage import listening, nodes
from fsqueue.worker import feeding, handler_threads, limits, settling, sources
from tests.support import QueueFactory
from tests.waiting import PATIENCE_S, until
from tests.worker import tasks
from tests.worker.support import Renewals, Resting, drained, in_background, time_is_over, until_there

# -- how it ends


HEARS_LATE = """
import signal, sys, threading
import fsqueue
from tests.waiting import until

def waits():
    frame = sys._current_frames()[threading.main_thread().ident]
    is_ready = signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL and worker._loop._feeder.is_busy
    return is_ready and frame.f_code.co_name == "select"

def kill_from_another_thread():
    until(waits, "the main thread to wait")
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    threading.Event().wait()

worker = fsqueue.Worker(fsqueue.Queue(sys.argv[1]), command=["true"], until="forever")
threading.Thread(target=kill_from_another_thread, daemon=True).start()
print(worker.run().signal)
"""


@pytest.mark.once
def test_a_signal_that_does_not_interrupt_the_wait_ends_an_idle_worker(queue: Queue) -> None:
    """As one that comes just before the wait begins: its handler is called when the main thread goes on, not before."""
    command = [sys.executable, "-c", HEARS_LATE, str(queue.path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=True)
    assert int(done.stdout) == signal.SIGTERM


@pytest.mark.once
def test_an_idle_worker_wakes_for_a_task_of_this_host_and_ends_at_once(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a notification the next look would come after ten minutes."""
    monkeypatch.setattr(feeding, "BELL_S", (600.0, 600.0))
    queues = [queue_factory("a"), queue_factory("b")]
    worker = Worker(queues, tasks.nothing, until="forever")
    resting = Resting(worker, monkeypatch)
    thread, reports = in_background(worker)
    for number, queue in enumerate([*queues, *queues]):
        resting.until_so()
        queue.insert({"n": number})
        until(lambda: queue.status().remaining == 0, "the task to be done")  # noqa: B023 - called at once
    resting.until_so()
    worker.stop()
    thread.join(PATIENCE_S)
    assert reports[0].completed == 4


@pytest.mark.once
@pytest.mark.parametrize("hears", [True, False])
def test_the_worker_that_finds_the_end_tells_the_idle_ones(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, hears: bool
) -> None:
    """On its host they hear of it; on others they read the doorbell. By themselves they would ask in ten minutes."""
    monkeypatch.setattr(feeding, "DRAIN_CHECK_S", 600.0)
    monkeypatch.setattr(feeding, "BELL_S", (600.0, 600.0) if hears else (0.05, 0.05))
    if not hears:
        monkeypatch.setattr(listening.Listener, "listen", lambda self: False)
    queues = [queue_factory("a"), queue_factory("b")]
    queues[1].insert("last")
    is_begun, may_end = threading.Event(), threading.Event()

    def last(payload: Any) -> None:
        is_begun.set()
        may_end.wait(PATIENCE_S)

    working, reports = in_background(Worker(queues, last, threads=1))
    is_begun.wait(PATIENCE_S)
    idle = [Worker(watched, tasks.nothing) for watched in (queues, queues[1:], queues[1:])]
    resting = [Resting(worker, monkeypatch) for worker in idle]
    started = [in_background(worker) for worker in idle]
    for one in resting:
        one.until_so()
    may_end.set()
    for thread, _ in started:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    working.join(PATIENCE_S)
    assert reports == [drained(completed=1)]
    assert [report for _, [report] in started] == [drained()] * 3


@pytest.mark.once
def test_a_worker_whose_feeder_waits_ends_with_its_own_last_task(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread executes the last task. The other one has been idle until its pauses are long."""
    monkeypatch.setattr(feeding, "DRAIN_CHECK_S", 600.0)
    monkeypatch.setattr(feeding, "BELL_S", (600.0, 600.0))
    queue.insert("last")
    may_end = threading.Event()
    worker = Worker(queue, lambda payload: may_end.wait(PATIENCE_S), threads=2)
    resting = Resting(worker, monkeypatch)
    thread, reports = in_background(worker)
    resting.until_so()
    may_end.set()
    thread.join(PATIENCE_S)
    assert reports == [drained(completed=1)]


@pytest.mark.once
@pytest.mark.parametrize("looks", [1, 2])
def test_a_check_that_came_too_early_is_repeated_soon(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """Others may still count their last batches when a worker is told of the end: then its check says "not drained"."""
    monkeypatch.setattr(feeding, "DRAIN_CHECK_S", 600.0)
    monkeypatch.setattr(feeding, "BELL_S", (600.0, 600.0))
    queue.insert("theirs")
    [task] = queue.lease(1)
    worker = Worker(queue, tasks.nothing)
    resting = Resting(worker, monkeypatch)
    thread, reports = in_background(worker)
    resting.until_so()
    real, checks = sources.DrainCheck.__call__, []

    def check(self: sources.DrainCheck) -> bool:
        checks.append(real(self))
        return len(checks) == looks and checks[-1]

    monkeypatch.setattr(sources.DrainCheck, "__call__", check)
    task.complete()
    tell_of_end([queue.store])
    thread.join(PATIENCE_S)
    assert reports == [drained()]
    assert checks == [True] * looks


def test_a_worker_that_had_no_task_tells_no_other_of_the_end(queue: Queue) -> None:
    queue.insert("x")
    assert Worker(queue, tasks.nothing).run() == drained(completed=1)
    bell = queue.store.doorbell.read()
    assert Worker(queue, tasks.nothing).run() == drained()
    assert queue.store.doorbell.read() == bell


@pytest.mark.once
def test_a_worker_that_waits_for_a_broken_queue_ends_at_once(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "RETRY_S", (600.0, 600.0))
    worker = Worker(queue, tasks.nothing, until="forever")
    feeder = worker._loop._feeder
    feeder._has_fed = True

    def fail(n: int) -> None:
        raise StorageError("the file server does not answer")

    monkeypatch.setattr(feeder, "_wait", fail)
    resting = Resting(worker, monkeypatch)
    thread, _ = in_background(worker)
    resting.until_so()
    worker.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_an_empty_queue_is_drained(queue: Queue) -> None:
    assert Worker(queue, tasks.nothing).run() == drained()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("processes", [1, 3])
def test_max_tasks(queue: Queue, processes: int) -> None:
    queue.insert_many(range(50))
    report = Worker(queue, tasks.nothing, processes=processes, max_tasks=7).run()
    assert (report.completed, report.ended) == (7, "max-tasks")
    assert queue.status().waiting == 43


def test_max_runtime_puts_back_what_does_not_end_in_time(queue: Queue) -> None:
    queue.insert_many([{"do": "last"}] * 3)
    worker = Worker(queue, tasks.obey, max_runtime_s=1000, grace_s=0.3)
    thread, reports = in_background(worker)
    until(worker._loop._executor.at_work, "the begin of a task")
    time_is_over(worker)
    thread.join(PATIENCE_S)
    [report] = reports
    assert (report.completed, report.released, report.ended) == (0, 1, "max-runtime")
    assert queue.status().waiting == 3


def test_a_time_that_is_years_away_is_waited_for(queue: Queue) -> None:
    queue.insert("x")
    assert Worker(queue, tasks.nothing, max_runtime_s=1e9, idle_timeout_s=1e9).run() == drained(completed=1)


@pytest.mark.parametrize(("unit_s", "likely"), [(1, "3.75 s"), (1000, "1 h 02 min")])
def test_nothing_is_begun_that_would_not_end_in_time(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, told: list[str], unit_s: float, likely: str
) -> None:
    """Of three units of time each, after two; a third could take 3.75 units, and there are three left."""
    clock = ManualClock()
    queue.insert_many(range(20))
    worker = Worker(
        queue, lambda payload: clock.advance(3 * unit_s), threads=1, max_runtime_s=8 * unit_s, grace_s=unit_s,
        tell=lambda event: told.append(event.text),
    )  # fmt: skip
    monkeypatch.setattr(worker._loop, "_now", clock.monotonic)
    monkeypatch.setattr(worker._loop._executor, "_now", clock.monotonic)
    monkeypatch.setattr(handler_threads, "time", SimpleNamespace(perf_counter=clock.monotonic))
    report = worker.run()
    assert (report.completed, report.released, report.ended) == (2, 0, "max-runtime")
    assert any(f"another task may take {likely}, longer than is left: nothing more is begun" in line for line in told)


def test_the_end_of_the_slurm_job_is_kept(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.insert_many([{"do": "last"}] * 3)
    monkeypatch.setattr(limits.slurm, "job_end", lambda: time.time() + 1000)
    worker = Worker(queue, tasks.obey, grace_s=1)
    thread, reports = in_background(worker)
    until(worker._loop._executor.at_work, "the begin of a task")
    time_is_over(worker)
    thread.join(PATIENCE_S)
    [report] = reports
    assert (report.released, report.ended) == (1, "job-end")
    assert queue.status().waiting == 3


def test_idle_timeout(queue: Queue) -> None:
    queue.insert_many(range(3))
    worker = Worker(queue, tasks.nothing, until="forever", idle_timeout_s=1000)
    thread, reports = in_background(worker)
    until(lambda: queue.status().completed == 3, "three completed tasks")

    def much_later() -> bool:
        worker._loop.mailbox.post(lambda: setattr(worker._loop, "_idle_since", worker._loop._idle_since - 2000))
        return not thread.is_alive()

    until(much_later, "the worker to end")
    [report] = reports
    assert (report.completed, report.ended) == (3, "idle")


def test_failures_in_a_row_end_it_before_much_is_burnt(queue: Queue, told: list[str]) -> None:
    queue.insert_many([{"do": "raise", "text": "typo"}] * 500)
    worker = Worker(queue, tasks.obey, stop_after_failures=3, tell=lambda event: told.append(event.text))
    report = worker.run()
    assert (report.failed, report.ended) == (3, "failures")
    assert any("3 attempts in a row have failed, the last one: ValueError: typo" in line for line in told)
    assert sum(task.attempt for task in queue.tasks()) == 3


@pytest.mark.batched
def test_failures_that_are_not_in_a_row_do_not_count(queue_factory: QueueFactory) -> None:
    queue = queue_factory(max_attempts=1)
    one = [{"do": "raise", "text": "typo"}, {"do": "raise", "text": "typo"}, {"do": "return"}]
    queue.insert_many(one * 10, batch_tasks=30)
    assert Worker(queue, tasks.obey, stop_after_failures=3).run() == drained(completed=10, failed=20)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "how", [{"handler": tasks.obey}, {"command": ["false"]}, {"handler": tasks.obey, "threads": 2}]
)
def test_ten_failures_before_the_first_success_end_it(queue: Queue, told: list[str], how: dict[str, Any]) -> None:
    queue.insert_many([{"do": "raise", "text": "typo"}] * 500)
    report = Worker(queue, **how, tell=lambda event: told.append(event.text)).run()
    assert report.ended == "failures"
    assert limits.FAILURES_FIRST == 10 <= report.failed <= 30  # what threads had begun, ended, too
    assert any("attempts have all failed, the last one: " in line for line in told)
    assert sum(task.attempt for task in queue.tasks()) == report.failed


@pytest.mark.batched
def test_failures_after_a_success_end_nothing_by_default(queue_factory: QueueFactory) -> None:
    queue = queue_factory(max_attempts=1)
    queue.insert_many([{"do": "return"}, *[{"do": "raise", "text": "bad input"}] * 30], batch_tasks=31)
    assert Worker(queue, tasks.obey).run() == drained(completed=1, failed=30)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("option", ["stop_after_failures", "exclude_after"])
def test_who_says_a_number_gets_that_number(queue_factory: QueueFactory, option: str) -> None:
    queue = queue_factory(max_attempts=1)
    queue.insert_many([{"do": "raise", "text": "bad input"}] * 15)
    assert Worker(queue, tasks.obey, **{option: 20}).run() == drained(failed=15)


@pytest.mark.batched
def test_quick_failures_beside_slow_work_end_nothing(queue_factory: QueueFactory, tmp_path: Path) -> None:
    """A long task that began first may well succeed: bad inputs beside it do not stop the worker."""
    queue = queue_factory(max_attempts=1)
    go = tmp_path / "go"
    queue.insert_many([{"wait": until_there(go)}, *[{"wait": "false"}] * 20], batch_tasks=21)
    worker = Worker(queue, command=["sh", "-c", 'eval "$1"', "sh", "{wait}"], processes=2, prefetch=1)
    thread, reports = in_background(worker)
    until(lambda: queue.status().dead == 20, "twenty dead letters")
    go.touch()
    thread.join()
    assert reports == [drained(completed=1, failed=20)]


def test_failures_on_a_node_are_counted_for_workers_that_may_exclude_it(queue_factory: QueueFactory) -> None:
    """docs/growth.md says so of `nodes`."""
    for name, option, counted in (("without", {}, 0), ("with", {"exclude_after": 9}, 3)):
        queue = queue_factory(name, max_attempts=1)
        queue.insert_many([{"do": "raise", "text": "bad input"}] * 3)
        assert Worker(queue, tasks.obey, **option).run() == drained(failed=3)
        assert sum(node.failures for node in nodes.failing(queue.store)) == counted


def test_a_node_on_which_tasks_fail_takes_no_more(queue: Queue) -> None:
    queue.insert_many([{"do": "raise", "text": "no GPU"}] * 100)
    first = Worker(queue, tasks.obey, exclude_after=4).run()
    assert first.ended == "excluded"
    assert first.failed >= 4
    second = Worker(queue, tasks.obey, exclude_after=4).run()
    assert (second.ended, second.failed) == ("excluded", 0)


@pytest.mark.parametrize(
    "options",
    [{"prefetch": 0}, {"max_tasks": 0}, {"max_runtime_s": 0}, {"idle_timeout_s": -1}, {"stop_after_failures": 0},
     {"exclude_after": 1.5}, {"on_lease_lost": "shrug"}, {"threads": 0}, {"threads": 2, "task_timeout_s": 1},
     {"threads": 2, "keep_output": "x"}, {"command": ["true"]}, {"load": ["x"]}, {"patience_s": -1}],
)  # fmt: skip
def test_bad_options(queue: Queue, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Worker(queue, tasks.nothing, **options)


@pytest.mark.parametrize(
    "options", [{"command": "true"}, {"command": ["echo", 5]}, {"command": b"true"}, {"load": "tasks"}, {"load": [1]}]
)
def test_lists_of_texts(queue: Queue, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="must be a list of texts"):
        Worker(queue, **options)


def test_a_worker_runs_once(queue: Queue) -> None:
    queue.insert(1)
    worker = Worker(queue, command=["true"])
    assert worker.run() == drained(completed=1)
    queue.insert(2)
    with pytest.raises(InvalidArgument, match="has run already"):
        worker.run()
    assert queue.status().waiting == 1


@pytest.mark.parametrize("queues", [[], "path", [None], 5, None])
def test_bad_queues(queues: Any) -> None:
    with pytest.raises(InvalidArgument, match="a Queue"):
        Worker(queues, tasks.nothing)


# -- several queues


def test_several_queues_are_served_in_turn_until_all_are_drained(queue_factory: QueueFactory, tmp_path: Path) -> None:
    queues = [queue_factory(name) for name in ("a", "b", "empty")]
    log = tmp_path / "log"
    for queue in queues[:2]:
        queue.insert_many({"log": str(log), "n": queue.path.name} for _ in range(20))
    assert Worker(queues, tasks.note, prefetch=1).run() == drained(completed=40)
    served = [line.split()[0] for line in log.read_text().splitlines()]
    assert sorted(served[:10]) == ["a"] * 5 + ["b"] * 5


def test_a_delayed_task_of_one_queue_does_not_end_it_early(queue_factory: QueueFactory) -> None:
    queues = [queue_factory(name) for name in ("a", "b")]
    queues[1].insert(1, delay_s=1)
    assert Worker(queues, tasks.nothing).run() == drained(completed=1)


# -- leasing ahead


@pytest.mark.batched
def test_what_lies_behind_a_slow_task_is_put_back_for_others(queue: Queue, tmp_path: Path) -> None:
    """Many short tasks teach a worker to lease ahead; then one is slow."""
    slow = {"do": "until", "path": str(tmp_path / "go")}
    queue.insert_many(
        [*({"do": "return"} for _ in range(500)), slow, *({"do": "return"} for _ in range(500))], total=2000
    )
    thread, reports = in_background(Worker(queue, tasks.obey))
    others = Queue(queue.path)
    try:
        until(lambda: others.status().completed, "a completed task")
        second = Worker(others, tasks.obey, until="forever")
        thread2, reports2 = in_background(second)
        until(
            lambda: (lambda it: (it.completed, it.leased, it.waiting))(others.status()) == (1000, 1, 0),
            "the second worker to do all but the slow task",
        )
        second.stop()
        thread2.join(PATIENCE_S)
    finally:
        (tmp_path / "go").touch()
        thread.join(PATIENCE_S)
    assert reports[0].completed + reports2[0].completed == 1001
    assert reports[0].lost == reports[0].failed == reports[0].released == reports2[0].lost == 0


@pytest.mark.batched
def test_what_was_put_back_does_not_count_among_max_tasks(queue: Queue, tmp_path: Path) -> None:
    """What a worker has leased ahead behind a task that turns out to be slow is put back, and leased again.

    So it takes some tasks twice. It has to do as many as were asked for all the same.
    """
    short, slow = {"do": "return"}, {"do": "until", "path": str(tmp_path / "go")}
    queue.insert_many([*[short] * 500, slow, *[short] * 500], batch_tasks=1024)
    # One batch, in its order: of several, that with the slow task may come behind the 900.
    worker = Worker(queue, tasks.obey, max_tasks=900)
    worker._loop._pace.each = lambda: 20  # type: ignore[method-assign]  # as short tasks teach it on a quiet machine
    puts_back, put_back = worker._loop._put_back_untouched, 0

    def counted(most: int | None = None) -> None:
        nonlocal put_back
        before = len(worker._loop._ahead)
        puts_back(most)
        put_back += before - len(worker._loop._ahead)

    worker._loop._put_back_untouched = counted  # type: ignore[method-assign]
    thread, reports = in_background(worker)
    try:
        until(lambda: put_back, "what was leased ahead to be put back")
    finally:
        (tmp_path / "go").touch()
        thread.join(PATIENCE_S)
    assert (reports[0].completed, reports[0].ended) == (900, "max-tasks")


# -- threads


def test_threads_do_tasks_and_warn(queue: Queue, told: list[str]) -> None:
    queue.insert_many(range(20))
    worker = Worker(queue, lambda payload: payload + 1, threads=3, tell=lambda event: told.append(event.text))
    assert worker.run() == drained(completed=20)
    assert "threads of this process" in told[0]
    assert sorted(info.result for info in queue.tasks("completed")) == list(range(1, 21))


def test_a_thread_that_does_not_return_is_left_behind(queue: Queue) -> None:
    queue.insert_many(range(2))
    began, go = threading.Event(), threading.Event()

    def handler(payload: Any) -> None:
        began.set()
        go.wait()

    worker = Worker(queue, handler, threads=1, grace_s=0.3)
    thread, reports = in_background(worker)
    assert began.wait(PATIENCE_S)
    worker.stop()
    thread.join(PATIENCE_S)
    go.set()
    assert (reports[0].released, reports[0].completed) == (1, 0)
    assert queue.status().waiting == 2


# -- a file server that is away


class Server:
    """Stands between queues and their files, and can be away: whoever asks waits, or is told of an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there = threading.Event()
        self.there.set()
        self.error: OSError | None = None
        self.away_for: tuple[str, ...] = ("fsqueue-",)
        """How the names of the threads begin that meet it."""
        self.waiting = 0
        for name in ("look", "names", "rename"):
            monkeypatch.setattr(Filesystem, name, self._guarded(getattr(Filesystem, name)))

    def _guarded(self, real: Any) -> Any:
        def asking(fs: Filesystem, *arguments: Any, **options: Any) -> Any:
            if threading.current_thread().name.startswith(self.away_for):
                self.waiting += not self.there.is_set()
                self.there.wait()
                if self.error is not None:
                    raise self.error
            return real(fs, *arguments, **options)

        return asking


def until_leases_end(queue: Queue) -> None:
    """What a worker cannot renew can be leased again."""
    with Queue(queue.path) as fresh:
        until(lambda: fresh.status().leased == 0, "the leases to end")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr("fsqueue.worker.settling.RETRY_S", (0.05, 0.1))
    monkeypatch.setattr("fsqueue.worker.feeding.RETRY_S", (0.05, 0.1))
    return Server(monkeypatch)


@pytest.mark.parametrize("how", ["it hangs", "it fails"])
def test_work_is_finished_and_kept_while_the_server_is_away_for_longer_than_a_lease(
    queue_factory: QueueFactory, server: Server, tmp_path: Path, how: str
) -> None:
    queue = queue_factory(lease_s=1)
    queue.insert_many([{"do": "until", "path": str(tmp_path / name)} for name in ("one", "two")])
    thread, reports = in_background(Worker(queue, tasks.obey, processes=2))
    until(lambda: queue.status().leased == 2, "two leased tasks")
    if how == "it hangs":
        server.there.clear()
    else:
        server.error = OSError(5, "Input/output error")
    queue.close()
    (tmp_path / "one").touch()
    until_leases_end(queue)
    assert thread.is_alive()
    server.error = None
    server.there.set()
    (tmp_path / "two").touch()
    thread.join(PATIENCE_S)
    assert reports == [drained(completed=2)]


def test_a_worker_that_takes_its_own_task_again_does_not_take_it_for_lost(
    queue_factory: QueueFactory, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    """Also when the loss is found, by telling an outcome or by renewing, before what was taken is known."""
    look, tell, renewals, told_to_queue = feeding.Watch.look, settling._tell, Renewals(monkeypatch), []

    def tell_counted(*arguments: Any) -> Any:
        answer = tell(*arguments)
        told_to_queue.append(arguments)
        return answer

    def look_slowly(watch: Any, n: int) -> Any:
        got = look(watch, n)
        if got and server.error is not None:
            server.error = None
            renewals.until_more(1)
            until(lambda: told_to_queue, "the reporter to try again, if it got through no earlier")
        return got

    monkeypatch.setattr(settling, "_tell", tell_counted)
    queue = queue_factory(lease_s=1.5)
    queue.insert_many([{"do": "until", "path": str(tmp_path / name)} for name in ("one", "two")])
    worker = Worker(queue, tasks.obey, processes=2, tell=lambda event: told.append(event.text))
    thread, reports = in_background(worker)
    until(lambda: queue.status().leased == 2, "two leased tasks")
    server.error = OSError(5, "Input/output error")
    queue.close()
    monkeypatch.setattr(feeding.Watch, "look", look_slowly)
    (tmp_path / "one").touch()
    until_leases_end(queue)
    server.away_for = ("fsqueue-renewer", "fsqueue-reporter")  # the feeder meets it again first
    until(lambda: server.error is None, "the worker to take its tasks again")
    renewals.until_more(2)
    (tmp_path / "two").touch()
    thread.join(PATIENCE_S)
    assert reports == [drained(completed=2)]
    assert not [text for text in told if "was lost" in text]
    leases = sum(move.op == "lease" for task in queue.tasks("completed") for move in queue.history(task.id))
    assert leases > 2  # else nothing was tried here


@pytest.mark.usefixtures("renews_often")
def test_signals_are_heard_while_the_server_is_away(
    queue_factory: QueueFactory, server: Server, tmp_path: Path
) -> None:
    queue = queue_factory()
    queue.insert({"do": "touch", "path": str(tmp_path / "began"), "lasts": True})
    worker = Worker(queue, tasks.obey)
    thread, reports = in_background(worker)
    until(lambda: (tmp_path / "began").exists(), "the begin of a task")
    server.there.clear()
    until(lambda: server.waiting, "a thread to wait for the server")
    for _ in range(3):
        worker.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    server.there.set()
    assert reports[0].completed == 0


@pytest.mark.parametrize("kind", ["command", "function"])
def test_what_the_signal_that_ends_the_worker_ends_too_is_put_back_without_blame(
    queue: Queue, tmp_path: Path, kind: str
) -> None:
    """Slurm sends its signals to all processes of a job."""
    path = tmp_path / "began"
    queue.insert({"do": "touch", "path": str(path), "lasts": True})
    command = ["sh", "-c", f"echo $$ >{path}; exec sleep 1000"]
    worker = Worker(queue, command=command) if kind == "command" else Worker(queue, tasks.obey)
    thread, reports = in_background(worker)
    until(lambda: path.exists() and path.stat().st_size, "the begin of a task")
    worker.stop()
    os.kill(int(path.read_text()), signal.SIGTERM)
    thread.join(PATIENCE_S)
    assert (reports[0].failed, reports[0].released) == (0, 1)
    [task] = queue.tasks()
    assert (task.state, task.attempt) == ("waiting", 0)


@pytest.mark.once
def test_nothing_is_left_behind(queue: Queue) -> None:
    def descriptors() -> int:
        gc.collect()  # a mailbox goes with the last thread that may ring it
        return len(os.listdir("/proc/self/fd"))

    queue.insert_many(range(5))
    Worker(queue, tasks.nothing).run()
    before = descriptors(), threading.active_count()
    for _ in range(3):
        queue.insert_many(range(20))
        Worker(queue, tasks.nothing, processes=3).run()
    until(lambda: threading.active_count() <= before[1], "the end of the threads")
    until(lambda: descriptors() <= before[0] + 2, "descriptors to be closed")


@pytest.mark.once
def test_a_worker_renews_by_the_queue_s_present_lease_unless_it_has_its_own(queue: Queue) -> None:
    """Renewed for 30 s, a lease would run out if the next renewal came after a third of the 600 s from before."""
    learning, own = Worker(queue, tasks.nothing), Worker(queue, tasks.nothing, lease_s=60)
    assert (learning._loop._renewal_s(), own._loop._renewal_s()) == (200, 20)
    queue.change_settings(lease_s=30)
    assert (learning._loop._renewal_s(), own._loop._renewal_s()) == (10, 20)
    learning._loop._renew_at = learning._loop._now() + 200
    learning._loop._renewed(settling.Renewed())
    assert learning._loop._renew_at <= learning._loop._now() + 10
