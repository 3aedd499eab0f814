"""The stuck lock holder: a process stopped (SIGSTOP) inside any critical section of any verb.

It delays others for a bounded time, keeps from them at most what it has locked, is named by `status` and `doctor`, and
does no harm when it goes on or is killed.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsqueue import FsqueueError, LockTimeout, Queue
from fsqueue.clock import ManualClock
from fsqueue.doctor import examination as doctor
from fsqueue.errors import StorageError
from fsqueue.format.names import Day, all_shards
from fsqueue.views import stuck_locks
from tests.cli.conftest import Run, fsqueue_cli
from tests.concurrency.books import check_drained, drain
from tests.concurrency.processes import Child, children
from tests.concurrency.test_stopped_workers import HastyClock
from tests.concurrency.trapped import trapped
from tests.levels import each_once

__all__ = ["fsqueue_cli"]

QueueFactory = Callable[..., Queue]
TASKS = 12
BUSY_S = 12.0
"""No verb of others takes longer, whatever is locked by one process."""


class StopAt:
    """Stops the process right after its n-th lock, or right before it gives that lock back."""

    def __init__(self, number: int, before_unlock: bool) -> None:
        self.number, self.before_unlock = number, before_unlock
        self.armed, self.locks = False, 0
        self.fd = -1

    def __call__(self, step: str, call: Callable[..., Any], *args: Any) -> Any:
        if self.armed and self.before_unlock and step == "unlock" and args[0] == self.fd:
            self._stop()
        result = call(*args)
        if self.armed and step == "try_lock" and result:
            self.locks += 1
            if self.locks == self.number:
                self.fd = args[0]
                if not self.before_unlock:
                    self._stop()
        return result

    def _stop(self) -> None:
        self.armed = False
        os.kill(os.getpid(), signal.SIGSTOP)


def prepare(queue_factory: QueueFactory) -> tuple[Queue, list[str]]:
    """A queue of batches of three, one with dead letters; two tasks of one batch are leased."""
    queue = queue_factory(shards=2, max_attempts=1, backoff_s=(0, 0))
    queue.insert_many(range(TASKS), batch_tasks=3)
    queue.lease()[0].bury("for the dead letters")
    return queue, [task.token for task in queue.lease(2, lease_s=600)]


def complete(queue: Queue, tokens: list[str]) -> None:
    queue.complete([queue.attach(token) for token in tokens])


VERBS: dict[str, Callable[[Queue, list[str]], object]] = {
    "insert": lambda queue, tokens: queue.insert("one more"),
    "insert once": lambda queue, tokens: queue.insert_many(["one", "more"], batch_tasks=1, commit="seed"),
    "lease": lambda queue, tokens: queue.lease(2, lease_s=1),
    "complete": complete,
    "complete all": lambda queue, tokens: (complete(queue, tokens), drain(queue, patience_s=0)),
    "renew": lambda queue, tokens: queue.renew([queue.attach(token) for token in tokens], lease_s=700),
    "release": lambda queue, tokens: queue.release([queue.attach(token) for token in tokens]),
    "fail": lambda queue, tokens: queue.attach(tokens[0]).fail("broken"),
    "cancel": lambda queue, tokens: queue.cancel([info.id for info in queue.tasks("waiting")][:1]),
    "retry dead": lambda queue, tokens: queue.retry_dead(),
    "purge dead": lambda queue, tokens: queue.purge_dead(),
    "release all": lambda queue, tokens: queue.release_all(),
    "gc": lambda queue, tokens: queue.gc(),
    "status": lambda queue, tokens: queue.status(),
    "purge": lambda queue, tokens: queue.purge(),
}


def act(queue: Queue, tokens: list[str], verb: str, trap: StopAt) -> str:
    mine = trapped(queue, trap)
    mine.store.counter_number = queue.store.counter_number  # the same file as the others count in
    trap.armed = True
    try:
        VERBS[verb](mine, tokens)
    except FsqueueError as error:
        return type(error).__name__
    finally:
        trap.armed = False
    return "done"


def begin(queue: Queue, tokens: list[str], verb: str, number: int, before_unlock: bool) -> Child | None:
    """A child that is stopped in that verb; None if the verb takes fewer locks."""
    child = Child(act, queue, tokens, verb, StopAt(number, before_unlock))
    try:
        child.wait_stopped()
    except AssertionError:
        child.result()
        child.close()
        return None
    return child


def others_go_on(queue: Queue) -> int:
    """All that others do meanwhile is bounded; how many tasks they completed. Only waiting moves their clock."""
    clock = ManualClock(time.time())
    mine = Queue(queue.path, clock=clock)
    done, waits = 0, []

    def timed(action: Callable[[], Any]) -> Any:
        start = clock.monotonic()
        try:
            return action()
        except LockTimeout:
            return None
        finally:
            waits.append(clock.monotonic() - start)

    timed(lambda: mine.insert("meanwhile"))
    while tasks := timed(lambda: mine.lease(5, lease_s=600)):
        timed(lambda tasks=tasks: mine.complete(tasks))
        done += len(tasks)
    assert timed(mine.status) is not None
    assert max(waits) < BUSY_S, f"somebody waited for {max(waits):.1f} s"
    return done


def settle(queue: Queue, verb: str) -> None:
    """When nobody is stopped any more: everything is done, once, and counted."""
    queue = Queue(queue.path)
    queue.release_all()
    drain(queue)
    queue.retry_dead()
    drain(queue)
    staged = {"insert": 1, "retry dead": 1, "insert once": 3}.get(verb, 0)  # a killed inserter's file stays for a day
    completed, dead = check_drained(queue, staged_leftovers=staged)
    assert dead == set()
    status = queue.status()
    assert status.inserted == status.completed == len(completed)
    payloads = [info.id for info in queue.tasks("completed")]
    assert len(payloads) == len(set(payloads))


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.once
@each_once(("verb", list(VERBS)), ("end", ["goes on", "is killed"]))
def test_a_process_stopped_in_any_critical_section(queue_factory: QueueFactory, verb: str, end: str) -> None:
    number, before_unlock, met, name = 1, False, 0, 0
    while number <= 8:
        name += 1
        queue, tokens = prepare(lambda name=name, **settings: queue_factory(f"q{name}", **settings))
        child = begin(queue, tokens, verb, number, before_unlock)
        if child is None:
            break
        met += 1
        try:
            done = others_go_on(queue)
            if verb not in ("lease", "complete all", "purge"):
                assert done >= TASKS - 7, f"only {done} could be done while one batch was locked"
            if end == "goes on":
                child.signal(signal.SIGCONT)
                assert child.result() in ("done", "LeaseLost", "LockTimeout", "TaskNotFound")
            else:
                child.kill()
        finally:
            child.close()
        settle(queue, verb)
        number, before_unlock = (number, True) if not before_unlock else (number + 1, False)
    assert met or verb == "status"


def test_a_stuck_batch_keeps_other_batches_from_nothing(queue_factory: QueueFactory) -> None:
    """A heartbeat renews what it can, before it waits for what it cannot, and knows of it."""
    queue = queue_factory(shards=2)
    queue.insert_many(range(9), batch_tasks=1)
    tasks = queue.lease(9, lease_s=60)
    tasks.sort(key=lambda task: task.batch)
    with stopped_on(queue, tasks[0].token):
        hasty = Queue(queue.path, clock=HastyClock())
        mine = [hasty.attach(task.token) for task in tasks]
        with pytest.raises(LockTimeout, match=tasks[0].batch):
            hasty.renew(mine, lease_s=1000)
        until = [task.lease_until for task in mine]
        assert [one > until[0] + 200 for one in until] == [False] + [True] * 8
        with pytest.raises(LockTimeout):
            hasty.complete(mine)
        assert queue.status().completed == 8
    tasks[0].complete()
    assert queue.status().completed == 9


class stopped_on:
    """A child of this host that is stopped while it has a task's batch locked."""

    def __init__(self, queue: Queue, token: str) -> None:
        self._children = children((act, queue, [token], "renew", StopAt(1, True)))

    def __enter__(self) -> Child:
        [self.child] = self._children.__enter__()
        self.child.wait_stopped()
        return self.child

    def __exit__(self, *error: Any) -> None:
        self.child.signal(signal.SIGCONT)
        self.child.wait()
        self._children.__exit__(*error)


def every_file_counts_as_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever it was written to."""
    monkeypatch.setattr(stuck_locks, "QUIET_S", -3600.0)


def test_a_file_that_was_written_to_just_now_is_not_looked_at(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stuck_locks, "QUIET_S", 3600.0)
    queue.insert("a")
    [task] = queue.lease()
    with stopped_on(queue, task.token):
        assert queue.stuck() == []


def test_status_and_doctor_name_the_stuck_holder(
    queue: Queue, fsqueue_cli: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    every_file_counts_as_quiet(monkeypatch)
    queue.insert_many(["a", "b"])
    [task] = Queue(queue.path, worker="me").lease()
    assert queue.stuck() == []
    with stopped_on(queue, task.token) as child:
        [lock] = queue.stuck()
        assert lock.what == f"batch {task.batch}"
        assert Path(lock.path).name == f"{task.batch}.jsonl"
        assert [(holder.pid, holder.state) for holder in lock.holders] == [(child.pid, "stopped")]
        assert lock.worker is not None
        assert (lock.worker["name"], lock.worker["host"]) == ("me", socket.gethostname())
        assert lock.written == Path(lock.path).stat().st_mtime
        said = fsqueue_cli("status", queue.path).stdout
        assert f"process {child.pid} (stopped" in said
        assert task.batch in said
        assert "stuck" not in fsqueue_cli("status", queue.path, "--fast").stdout
        report = doctor.examine(queue.path)
        assert report.verdict == "warning"
        assert [each.what for each in report.stuck] == [lock.what]
        assert f"process {child.pid}" in fsqueue_cli("doctor", queue.path).stdout
    assert queue.stuck() == []


def test_the_holder_of_another_host_is_known_by_the_log(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing on this host has the lock: the last lease in the log tells where to look."""
    every_file_counts_as_quiet(monkeypatch)
    monkeypatch.setattr(stuck_locks, "holders_of", lambda device, inode: [])
    queue.insert("a")
    [task] = Queue(queue.path, worker="far away").lease()
    with stopped_on(queue, task.token):
        [lock] = queue.stuck()
        assert "far away" in str(lock)


@pytest.mark.parametrize("part", ["counter", "dead letters", "queue.jsonl"])
def test_shared_files_are_looked_at_too(queue: Queue, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    every_file_counts_as_quiet(monkeypatch)
    queue.insert_many(["a", "b"], batch_tasks=1)
    queue.lease()[0].complete()
    queue.lease()[0].bury("no")
    queue.insert("c")
    layout = queue.store.layout
    base = Path(layout.base)
    path = {
        "counter": next(base.glob("completions/??"), None),
        "dead letters": next(base.glob("dead/*"), None),
        "queue.jsonl": Path(layout.settings_file),
    }[part]
    assert path is not None

    def hold() -> None:
        fd = queue.store.fs.look(str(path), os.O_RDWR)
        assert queue.store.fs.try_lock(fd)
        os.kill(os.getpid(), signal.SIGSTOP)

    with children((hold,)) as [child]:
        child.wait_stopped()
        [lock] = queue.stuck()
        assert lock.what.startswith(part)
        assert lock.path == str(path)
        assert [holder.pid for holder in lock.holders] == [child.pid]
        child.signal(signal.SIGCONT)


def test_of_the_history_the_last_two_days_are_looked_at(queue: Queue) -> None:
    layout = queue.store.layout
    shard = all_shards(layout.shards)[0]
    made = [Path(layout.history(Day(f"2026-11-{number:02}"), shard)) for number in range(1, 29)]
    for path in made:
        path.parent.mkdir(parents=True)
        path.touch()
    looked_at = [path for what, path in stuck_locks._files(queue.store) if what.startswith("history")]
    assert looked_at == [str(path) for path in made[-2:]]


def test_locks_held_for_moments_are_not_stuck(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is quiet, and locked at the first look but not at the next ones."""
    every_file_counts_as_quiet(monkeypatch)
    queue.insert_many(["a", "b"])
    [task] = queue.lease()
    log = queue.store.layout.log(task.batch)
    queue.close()
    fd = queue.store.fs.look(log, os.O_RDWR)
    assert queue.store.fs.try_lock(fd)
    looks = [0]
    sleep = queue.store.clock.sleep

    def sleeping(seconds: float) -> None:
        looks[0] += 1
        if looks[0] == 2:
            queue.store.fs.unlock(fd)
        sleep(seconds)

    monkeypatch.setattr(queue.store.clock, "sleep", sleeping)
    assert queue.stuck() == []
    assert looks[0] == stuck_locks.LOOKS
    queue.store.fs.close(fd)


def test_a_filesystem_that_cannot_tell_of_locks_shows_none(queue: Queue) -> None:
    def is_locked(fd: int) -> bool:
        raise StorageError("no") if fd < 0 else OSError(38, "Function not implemented")

    queue.insert("a")
    queue.lease()
    queue.store.fs.is_locked = is_locked
    assert queue.stuck() == []
