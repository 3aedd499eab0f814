"""One Queue object in many threads, and across forks in the middle of everything."""

from __future__ import annotations

import asyncio
import gc
import itertools
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fsqueue import ForkedChild, FsqueueError, Group, LeasedTask, LeaseLost, Queue, StorageError, Task, Worker, forks
from fsqueue.clock import Entropy
from fsqueue.filesystem import Filesystem, resources
from fsqueue.protocol import encoding
from tests.concurrency.books import check_drained, drain
from tests.concurrency.processes import Child, children
from tests.concurrency.trapped import trapped
from tests.house.source import TOP
from tests.levels import how_many
from tests.support import in_time
from tests.waiting import PATIENCE_S, until, until_async

QueueFactory = Callable[..., Queue]


@contextmanager
def threads(*actions: Callable[[], Any]) -> Iterator[list[Any]]:
    """Run each action in a thread, until the end of the block and theirs; their results. An error in one is raised
    here.
    """
    results: list[Any] = [None] * len(actions)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            results[number] = actions[number]()
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(actions))]
    for thread in running:
        thread.start()
    try:
        yield results
    finally:
        for thread in running:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def work(queue: Queue, n: int = 1) -> list[str]:
    """Lease and complete until there is nothing; the payloads."""
    done: list[str] = []
    while tasks := queue.lease(n):
        queue.complete(tasks)
        done += [task.payload for task in tasks]
    return done


# -- threads ------------------------------------------------------------------------------------------


def test_many_threads_drain_through_one_queue_object(queue: Queue) -> None:
    queue.insert_many(range(600), batch_tasks=7)
    shared = Queue(queue.path)
    with threads(*(lambda n=n: work(shared, n) for n in (1, 1, 1, 3, 3, 20, 20, 50))) as results:
        pass
    done = [payload for result in results for payload in result]
    assert sorted(done) == list(range(600))
    assert len(check_drained(queue)[0]) == 600


def test_threads_insert_lease_fail_renew_and_look_at_once(queue_factory: QueueFactory) -> None:
    queue = queue_factory(max_attempts=None, backoff_s=(0, 0))
    over = threading.Event()

    def insert(number: int) -> int:
        return sum(
            queue.insert_many([f"{number}.{step}.{index}" for index in range(6)], batch_tasks=3) for step in range(20)
        )

    def labour() -> list[str]:
        done, turn = [], 0
        while True:
            last = over.is_set()
            for task in queue.lease(3, wait_s=0.02):
                turn += 1
                if turn % 5 == 0:
                    task.fail("no", delay_s=0)
                elif turn % 7 == 0:
                    task.release()
                else:
                    task.renew()
                    task.complete()
                    done.append(task.payload)
            if last and queue.status().drained:
                return done

    def look() -> int:
        looks = 0
        while not over.is_set():
            queue.status()
            queue.peek(3)
            queue.gc()
            looks += 1
        return looks

    with threads(labour, labour, labour, look) as results:
        try:
            with threads(lambda: insert(0), lambda: insert(1), lambda: insert(2)):
                pass
        finally:
            over.set()
    done = Counter(payload for result in results[:3] for payload in result)
    assert len(done) == 360
    assert set(done.values()) == {1}
    assert len(check_drained(queue)[0]) == 360


def test_lease_ids_and_batch_names_are_never_equal(queue: Queue) -> None:
    """Not between threads, and not between a parent and its children, who inherit its state."""
    queue.insert_many(range(120), batch_tasks=1)
    queue.lease(5)  # so that there is a pool of random digits to inherit

    def lease() -> list[list[str]]:
        leases = {task.lease for task in queue.lease(20)}  # one for each batch that the call has leased from
        return [sorted(leases), [queue.insert("x").id for _ in range(20)]]

    with children(*((lease,) for _ in range(3))) as started, threads(lease, lease) as results:
        found = [child.result() for child in started]
    found += results
    leases = Counter(one for each, _ in found for one in each)
    ids = Counter(one for _, each in found for one in each)
    assert sum(ids.values()) == 5 * 20
    assert max(ids.values()) == max(leases.values()) == 1


def test_a_thread_purges_while_others_work_on_the_same_object(queue: Queue) -> None:
    """Nothing of the old generation is counted, buried or published in the new one, and no descriptor is confused."""
    over = threading.Event()
    inserted: list[tuple[int, str]] = []
    """How often the queue had been purged when the call began, and the payload."""
    purges: list[bool] = []

    def labour() -> None:
        while not over.is_set():
            for task in queue.lease(3, wait_s=0.01):
                try:
                    task.complete()
                except LeaseLost:
                    pass

    def insert() -> None:
        for step in itertools.count():
            if over.is_set():
                break
            begin = len(purges)
            try:
                queue.insert_many([f"{step}.{index}" for index in range(8)], batch_tasks=2)
            except StorageError as error:  # on a busy machine all purges may fall into one call
                if "purged again and again" not in str(error):
                    raise
                continue
            inserted.extend((begin, f"{step}.{index}") for index in range(8))

    with threads(labour, labour, insert):
        try:
            for _ in range(15):
                before = len(inserted)
                until(lambda before=before: len(inserted) > before, "an insert")  # type: ignore[misc]
                queue.purge()
                purges.append(True)
            until(lambda: inserted[-1][0] == 15, "an insert after the last purge")
        finally:
            over.set()
    rest = drain(queue)
    assert len(rest) == len(set(rest))
    status = queue.status()
    after = sum(1 for begin, _ in inserted if begin == 15)
    since = status.inserted
    assert status.dead == 0
    assert 0 < after <= since <= len(inserted)
    completed, _ = check_drained(queue)
    ids = Counter(info.id for info in queue.tasks("completed"))
    assert len(completed) == since == len(ids)


# -- forks ---------------------------------------------------------------------------------------------


def test_a_child_works_on_where_its_parent_was(queue: Queue) -> None:
    queue.insert_many(range(30), batch_tasks=10)
    first = queue.lease(3)
    assert len(first) == 3

    def live() -> list[int]:
        first[0].complete()
        done = [first[0].payload]
        assert queue.store.worker["pid"] == os.getpid()
        return done + work(queue, 2)

    with children((live,)) as [child]:
        done = work(queue, 2)
        first[1].complete()
        first[2].complete()
        done += [first[1].payload, first[2].payload, *child.result()]
    done += work(queue)
    assert sorted(done) == list(range(30))
    with pytest.raises(LeaseLost):
        first[2].renew()
    assert len(check_drained(queue)[0]) == 30


def test_a_child_that_lives_on_keeps_no_lock_of_its_parent(queue: Queue) -> None:
    """Forked at every step of a lease and of a finish, under whatever locks there are then; the children stay, and
    stand in nobody's way. (The gate forks at every second step.)
    """
    queue.insert_many(range(4), batch_tasks=2)
    started: list[Child] = []
    steps = itertools.count()

    def fork_at_each_step(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if armed and len(started) < 150 and next(steps) % how_many(2, 1) == 0:
            started.append(Child(time.sleep, 600))
        return call(*args)

    armed: list[int] = []
    mine = trapped(queue, fork_at_each_step)
    armed.append(1)
    try:
        tasks = mine.lease(4)
        mine.complete(tasks[:2])
        tasks[2].bury("bad")
        buried = tasks[2].payload
        tasks[3].complete()
        mine.insert("one more")
        armed.clear()
        assert len(started) > 30

        def work_off() -> None:
            other = Queue(queue.path)
            other.insert_many(range(10, 16), batch_tasks=2)
            done = work(other, 3)
            other.retry_dead()
            done += work(other)
            assert sorted(map(str, done)) == sorted([*map(str, range(10, 16)), "one more", str(buried)])
            assert other.gc().busy == 0
            other.purge()

        in_time(work_off)
    finally:
        for child in started:
            child.close()


def test_a_parent_that_dies_leaves_no_lock_with_its_children(queue: Queue) -> None:
    """The parent is killed inside a critical section of one of its threads, which its child has inherited as it
    stood.
    """
    queue.insert_many(range(3), batch_tasks=3)

    def live() -> None:
        inside, forked = threading.Event(), threading.Event()

        def hold(step: str, call: Callable[..., Any], *args: Any) -> Any:
            result = call(*args)
            if step == "try_lock":
                inside.set()
                forked.wait()
                time.sleep(600)
            return result

        mine = trapped(queue, hold)
        threading.Thread(target=mine.lease, daemon=True).start()
        inside.wait()
        pid = os.fork()
        if not pid:
            time.sleep(600)
            os._exit(0)
        (queue.path / "forked").write_text(str(pid))
        forked.set()
        time.sleep(600)

    with children((live,)) as [parent]:
        said = queue.path / "forked"
        orphan = int(until(lambda: said.exists() and said.read_text(), "the child's child"))
        parent.kill()
        try:
            leased: list[LeasedTask] = []

            def lease() -> bool:
                leased.extend(queue.lease(3 - len(leased)))
                return len(leased) == 3

            until(lease, "the tasks")  # the killed process has its batch locked for a moment more
        finally:
            os.kill(orphan, 9)


def test_no_code_of_python_runs_when_a_holder_is_let_go_of() -> None:
    """A signal handler that raises there would be passed over: Python prints what a callback raises, and goes on."""

    class Holder:
        pass

    holder, ran = Holder(), list[str]()
    forks.register(holder, lambda holder: None)
    before = len(forks._holders.items())

    def note(frame: Any, event: str, argument: object) -> None:
        ran.append(f"{event} {frame.f_code.co_name}")

    sys.setprofile(note)
    try:
        del holder
    finally:
        sys.setprofile(None)
    assert len(forks._holders.items()) == before - 1
    assert [one for one in ran if one.startswith("call")] == []


def test_forking_all_the_time_while_threads_work(queue: Queue) -> None:
    """A pool that forks while other threads are in the middle of things: nobody hangs, nothing is lost."""
    queue.insert_many(range(800), batch_tasks=5)

    def live() -> list[int]:
        done = []
        for _ in range(5):
            for task in queue.lease(2):
                task.complete()
                done.append(task.payload)
        return done

    started: list[Child] = []
    try:
        with threads(lambda: work(queue), lambda: work(queue, 4)) as results:
            for _ in range(25):
                started.append(Child(live))
            found = [payload for child in started for payload in child.result(PATIENCE_S)]
    finally:
        for child in started:
            child.close()
    done = found + [payload for result in results for payload in result]
    done += work(queue)
    assert sorted(done) == list(range(800))
    assert len(check_drained(queue)[0]) == 800


def test_a_child_opens_the_queue_that_a_thread_of_its_parent_was_opening(queue: Queue) -> None:
    queue.insert("x")
    queue.close()
    begun, over = threading.Event(), threading.Event()

    def open_slowly() -> None:
        with queue.store.fs._opening:
            begun.set()
            over.wait(PATIENCE_S)

    with threads(open_slowly):
        begun.wait(PATIENCE_S)
        child = Child(lambda: work(queue))
        try:
            assert child.result(PATIENCE_S) == ["x"]
        finally:
            over.set()
            child.close()


def test_a_polling_loop_that_forks(queue: Queue) -> None:
    """A child forked inside a loop neither completes nor puts back what its parent holds."""
    queue.insert_many(range(12), batch_tasks=6)
    done = []
    for task in queue.poll(prefetch=4):
        child = Child(lambda: queue.status().as_dict())
        child.result()
        child.close()
        task.complete()
        done.append(task.payload)
    assert sorted(done) == list(range(12))


# -- forks in the middle of what the parent goes on with -----------------------------------------------


def forked() -> int:
    """Fork. In the parent: the child's exit status, once it has ended. In the child: -1."""
    pid = os.fork()
    return status_of(pid) if pid else -1


def status_of(pid: int) -> int:
    """Wait for a child, and return its exit status. One that does not end is ended."""
    ended: list[int] = []

    def has_ended() -> bool:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            ended.append(os.waitstatus_to_exitcode(status))
        return bool(found)

    try:
        until(has_ended, f"the end of the process {pid}", PATIENCE_S)
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    return ended[0]


def ending(act: Callable[[], object]) -> None:
    """Run what forks. The child ends here: 0, if it came back without an error, 1 with ForkedChild, else 2."""
    me, status = os.getpid(), 2
    try:
        act()
        status = 0
    except ForkedChild:
        status = 1
    except SystemExit as error:
        status = int(str(error))
    finally:
        if os.getpid() != me:
            os._exit(status)


@pytest.mark.once  # whose batch is one, so that tasks come in order
def test_a_child_that_goes_on_with_an_asynchronous_loop_leases_its_own(queue: Queue) -> None:
    queue.insert_many(range(10), batch_tasks=10)
    loop = queue.poll_async(prefetch=5)
    told, tell = os.pipe()

    async def one() -> Any:
        return (await anext(loop)).payload

    assert asyncio.run(one()) == 0

    def go_on() -> None:
        if forked() < 0:
            os.write(tell, b"%d" % asyncio.run(one()))

    try:
        ending(go_on)
        assert os.read(told, 9) == b"5"
        assert [asyncio.run(one()) for _ in range(4)] == [1, 2, 3, 4]
    finally:
        os.close(told)
        os.close(tell)


def test_a_child_can_use_an_asynchronous_loop_that_a_coroutine_of_its_parent_was_waiting_in(queue: Queue) -> None:
    loop = queue.poll_async(until="forever")
    statuses: list[int] = []

    async def main() -> None:
        waiting = asyncio.ensure_future(anext(loop))
        await until_async(loop._turn.locked, "the coroutine to wait")
        pid = os.fork()
        if not pid:
            queue.insert("for the child")
            with ThreadPoolExecutor(1) as pool:  # where no event loop is running
                assert pool.submit(asyncio.run, next_payload()).result() == "for the child"
            os._exit(0)
        statuses.append(status_of(pid))
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting

    async def next_payload() -> Any:
        async with asyncio.timeout(PATIENCE_S):
            return (await anext(loop)).payload

    me = os.getpid()
    try:
        asyncio.run(main())
    finally:
        if os.getpid() != me:
            os._exit(2)
    assert statuses == [0]


def test_a_child_that_leaves_an_asynchronous_block_changes_nothing(queue: Queue) -> None:
    queue.insert_many(range(3))
    statuses: list[int] = []

    async def main() -> None:
        async for task in queue.poll_async(errors="raise"):
            async with task:
                status = forked()
            if status < 0:
                os._exit(0)
            statuses.append(status)

    ending(lambda: asyncio.run(main()))
    assert statuses == [0, 0, 0]
    assert len(check_drained(queue)[0]) == 3


def forks_in(payloads: list[str], end: Callable[[], object], statuses: list[int]) -> Iterator[str]:
    """Yield payloads. At the second one fork, and have the child go on as `end` says."""
    for number, payload in enumerate(payloads):
        if number == 1:
            status = forked()
            if status < 0:
                end()
            else:
                statuses.append(status)
        yield payload


ENDS: dict[str, tuple[Callable[[], object], int]] = {
    "goes on": (lambda: None, 1),
    "exits": (lambda: sys.exit(3), 3),
    "fails": (lambda: 1 // 0, 2),
}
"""How a child comes back into its parent's call, and the status with which it then ends."""


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("keys", [False, pytest.param(True, marks=pytest.mark.batched)])
def test_a_child_of_the_payloads_inserts_nothing(queue: Queue, end: str, keys: bool) -> None:
    act, expected = ENDS[end]
    statuses: list[int] = []
    payloads = forks_in(["a", "b", "c", "d"], act, statuses)
    stream = (Task(payload, key=payload) if keys else payload for payload in payloads)
    ending(lambda: queue.insert_many(stream, batch_tasks=1))
    assert statuses == [expected]
    assert sorted(info.payload for info in queue.tasks()) == ["a", "b", "c", "d"]


@pytest.mark.once
@pytest.mark.parametrize("end", ENDS)
def test_a_child_of_the_payloads_of_an_update_applies_nothing(tmp_path: Path, end: str) -> None:
    group = Group.create(tmp_path / "group", shards=1)
    act, expected = ENDS[end]
    statuses: list[int] = []

    def insert() -> None:
        update = group.update()
        update.insert_many("q", forks_in(["a", "b", "c"], act, statuses))
        update.apply()

    ending(insert)
    assert statuses == [expected]
    assert sorted(info.payload for info in group["q"].tasks()) == ["a", "b", "c"]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("how", ["insert_many", "stage"])
def test_a_child_of_the_payloads_of_a_commit_leaves_what_is_staged(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, end: str, how: str
) -> None:
    act, expected = ENDS[end]
    statuses: list[int] = []
    monkeypatch.setattr(encoding, "GROUP_BATCHES_MAX", 1)  # so that something is staged when it forks

    def payloads() -> Iterator[str]:
        yield from (f"{number}" for number in range(6))
        assert any(place.name.endswith(".task") or "." in place.name for place in queue.path.rglob("*"))
        yield from forks_in(["a", "b", "c"], act, statuses)

    def insert() -> None:
        if how == "insert_many":
            assert queue.insert_many(payloads(), commit="once", batch_tasks=1) == 9
        else:
            commit = queue.commit("once")
            assert commit.publish([commit.stage(payloads(), batch_tasks=1)]).tasks == 9

    ending(insert)
    assert statuses == [expected]
    assert len(list(queue.tasks())) == 9


@pytest.mark.parametrize("end", ENDS)
def test_a_child_of_a_function_that_was_handed_to_a_verb_changes_nothing(queue_factory: QueueFactory, end: str) -> None:
    queue = queue_factory()
    act, expected = ENDS[end]
    queue.insert_many(range(3))
    for task in queue.lease(3):
        task.bury("bad")
    statuses: list[int] = []

    def where(letter: Any) -> bool:
        if not statuses:
            status = forked()
            if status < 0:
                act()
            else:
                statuses.append(status)
                assert queue.status().dead == 3
        return True

    ending(lambda: queue.retry_dead(where=where))
    assert statuses == [expected]
    assert sorted(info.payload for info in queue.tasks()) == [0, 1, 2]


def test_a_child_of_a_verb_may_make_calls_of_its_own(queue: Queue) -> None:
    """As `multiprocessing` does when it forks: its child never comes back into the call."""

    def payloads() -> Iterator[str]:
        yield "a"
        pid = os.fork()
        if not pid:
            queue.insert_many(["from the child"])
            os._exit(0)
        assert status_of(pid) == 0
        yield "b"

    ending(lambda: queue.insert_many(payloads()))
    assert sorted(info.payload for info in queue.tasks()) == ["a", "b", "from the child"]


@pytest.mark.parametrize("end", ["return", "raise", "exit"])
def test_a_child_of_a_handler_in_a_thread_ends_with_the_handler(queue: Queue, tmp_path: Path, end: str) -> None:
    """Else it would execute what its parent has leased ahead, and wait for more for ever."""
    queue.insert_many(range(5))
    log, statuses = tmp_path / "log", list[int]()

    def handler(payload: int) -> None:
        with log.open("a") as file:
            file.write(f"{payload}\n")
        if payload == 0:
            status = forked()
            if status >= 0:
                statuses.append(status)
            elif end == "raise":
                raise ZeroDivisionError
            elif end == "exit":
                sys.exit(1)

    assert Worker(queue, handler, threads=1, prefetch=5).run().completed == 5
    assert statuses == [0]
    assert sorted(log.read_text().split()) == ["0", "1", "2", "3", "4"]


def test_a_child_of_a_handler_in_a_thread_obeys_signals_as_any_process(queue: Queue) -> None:
    """A pool of the handler's ends its processes so. They would take the signal for one to the worker."""
    queue.insert("x")
    statuses: list[int] = []

    def handler(payload: str) -> None:
        pid = os.fork()
        if not pid:
            signal.raise_signal(signal.SIGTERM)
            os._exit(0)
        statuses.append(status_of(pid))

    assert Worker(queue, handler, threads=1).run().completed == 1
    assert statuses == [-signal.SIGTERM]


@pytest.mark.parametrize("where", ["tell", "pass_on"])
def test_a_child_of_what_listens_to_a_worker_ends_there(queue: Queue, tmp_path: Path, where: str) -> None:
    queue.insert_many(range(3))
    log, statuses = tmp_path / "log", list[int]()

    def listen(*args: Any) -> None:
        if args[0] != "warning":
            with log.open("a") as file:
                file.write("x\n")
            if not statuses:
                status = forked()
                if status >= 0:
                    statuses.append(status)

    if where == "tell":
        worker = Worker(queue, _nothing, threads=1, tell=lambda event: listen(event.kind))
    else:
        worker = Worker(queue, command=["echo", "{}"], pass_on=listen)
    assert worker.run().completed == 3
    assert statuses == [0]
    assert log.read_text() == "x\n" * 3


def _nothing(payload: Any) -> None:
    """Do nothing."""


def test_a_child_of_a_signal_handler_leaves_the_workers_loop(queue: Queue) -> None:
    """It has none of the threads, and would give back what its parent holds."""
    queue.insert_many(range(3))
    statuses: list[int] = []

    def forks(number: int, frame: object) -> None:
        status = forked()
        if status >= 0:
            statuses.append(status)
            over.set()

    def handler(payload: int) -> None:
        if payload == 0:
            signal.pthread_kill(main, signal.SIGALRM)
            assert over.wait(PATIENCE_S)

    over, main = threading.Event(), threading.get_ident()
    before = signal.signal(signal.SIGALRM, forks)
    try:
        ending(lambda: Worker(queue, handler, threads=1, prefetch=3).run())
    finally:
        signal.signal(signal.SIGALRM, before)
    assert statuses == [1]
    assert len(check_drained(queue)[0]) == 3


def test_a_worker_that_was_made_before_the_fork_runs_in_each_child(queue: Queue) -> None:
    """They share no descriptor by which one would take the news of another."""
    queue.insert_many(range(60), batch_tasks=1)
    worker = Worker(queue, _nothing, threads=2)
    bell, end = worker._loop.mailbox._bell, worker._loop._feeder._end

    def run() -> int:
        worker._loop.mailbox.post(lambda: None)
        return worker.run().completed

    with children((run,), (run,), (run,)) as started:
        assert sum(child.result() for child in started) == 60
    heard = select.poll()
    for fd in (bell, end):
        heard.register(fd, select.POLLIN)
    assert heard.poll(0) == []


# -- forks while other threads are at work -------------------------------------------------------------


class SlowImport:
    """Find nothing, and let an import of `name` wait until `over`."""

    def __init__(self, name: str) -> None:
        self.name, self.begun, self.over = name, threading.Event(), threading.Event()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == self.name:
            self.begun.set()
            assert self.over.wait(PATIENCE_S)


def test_a_child_waits_for_a_task_although_a_thread_of_its_parent_was_importing_what_that_takes(queue: Queue) -> None:
    """The modules' locks are not made anew in a child: it would wait at its own import for ever."""
    script = (
        "import os, sys, threading, time\n"
        "from fsqueue import Queue, forks\n"
        "from tests.test_fork_and_threads import SlowImport\n"
        "from tests.waiting import until\n"
        "queue, finder = Queue(sys.argv[1]), SlowImport('inotify_simple')\n"
        "assert 'inotify_simple' not in sys.modules\n"
        "sys.meta_path.insert(0, finder)\n"
        "threading.Thread(target=lambda: queue.lease(wait_s=60), daemon=True).start()\n"
        "assert finder.begun.wait(180)\n"
        "os.register_at_fork(before=finder.over.set)\n"
        "pid = os.fork()\n"
        "if not pid: os._exit(len(queue.lease(wait_s=0.01)))\n"
        "def ended(): return os.waitpid(pid, os.WNOHANG)[0]\n"
        "try: until(ended, 'the child', 180)\n"
        "except AssertionError: os.kill(pid, 9); raise\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script, queue.path], check=True, cwd=TOP)


@pytest.mark.parametrize(
    ("module", "asks"),
    [
        ("fsqueue.queue", "fsqueue.Queue"),
        ("fsqueue.views.activity", "fsqueue.Queue(sys.argv[1]).activity()"),
    ],
    ids=["a public name", "a view"],
)
def test_a_child_uses_what_a_thread_of_its_parent_was_importing(queue: Queue, module: str, asks: str) -> None:
    """A fork waits until what is imported late is there."""
    script = (
        "import os, sys, threading\n"
        "import fsqueue\n"
        "from tests.waiting import until\n"
        "class Slow:\n"
        "    begun, over = threading.Event(), threading.Event()\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: self.begun.set(); assert self.over.wait(180)\n"
        f"assert {module!r} not in sys.modules\n"
        "sys.meta_path.insert(0, Slow())\n"
        f"threading.Thread(target=lambda: {asks}, daemon=True).start()\n"
        "assert Slow.begun.wait(180)\n"
        "os.register_at_fork(before=Slow.over.set)\n"
        "pid = os.fork()\n"
        f"if not pid: {asks}; os._exit(0)\n"
        "def ended(): return os.waitpid(pid, os.WNOHANG)[0]\n"
        "try: until(ended, 'the child', 20)\n"
        "except AssertionError: os.kill(pid, 9); raise\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script, queue.path], check=True, cwd=TOP)


def test_a_worker_of_commands_runs_in_a_child(queue: Queue) -> None:
    """One of its threads imports a module. The lock that keeps forks off meanwhile is not the parent's."""
    queue.insert_many(range(3))
    with children((lambda: Worker(queue, command=["true"]).run().completed,)) as [child]:
        assert child.result() == 3


LOCKED: dict[str, tuple[str, Callable[[Queue], object]]] = {
    "a key": ("/keys/", lambda queue: queue.insert("x", key="k")),
    "a staged file": ("/staging/", lambda queue: queue.insert_many(["x", "y"], batch_tasks=1)),
    "a counter": ("/completions/", lambda queue: queue.complete(queue.lease(3))),
    "letters": ("/dead/", lambda queue: queue.lease()[0].bury("bad")),
    "the history": ("/history/", lambda queue: queue.complete(queue.lease(3))),
    "queue.jsonl": ("queue.jsonl", lambda queue: queue.purge()),
    "a log": ("/movements/", lambda queue: queue.lease()),
}
"""What a call locks: a part of its path, and the call."""
NEEDS = {"a key": pytest.mark.batched}
"""With one task a batch a queue takes no keys."""


@pytest.mark.parametrize("what", [pytest.param(what, marks=NEEDS.get(what, ())) for what in LOCKED])
@pytest.mark.parametrize("whose", ["another thread", "the thread that forks"])
def test_no_lock_of_a_dead_parent_lives_on_with_its_child(queue: Queue, what: str, whose: str) -> None:
    """The parent is killed while it holds the lock. Its child lives, and has inherited the descriptor."""
    part, act = LOCKED[what]
    queue.insert_many(range(3), batch_tasks=3)
    told, tell = os.pipe()

    def live() -> None:
        inside = threading.Event()

        def fork() -> None:
            pid = os.fork()
            if not pid:
                while True:
                    signal.pause()
            os.write(tell, b"%d %s\n" % (pid, path[0].encode()))

        def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
            found = call(*args)
            if step == "try_lock" and not path and part in (name := os.readlink(f"/proc/self/fd/{args[0]}")):
                path.append(name)
                if whose == "the thread that forks":
                    fork()
                inside.set()
                while True:
                    time.sleep(60)
            return found

        path: list[str] = []
        mine = trapped(queue, trap)
        thread = threading.Thread(target=act, args=(mine,), daemon=True)
        thread.start()
        assert inside.wait(PATIENCE_S)
        if whose == "another thread":
            fork()
        thread.join()

    fs = Filesystem(str(queue.path), shared=False)
    with children((live,)) as [parent]:
        os.close(tell)
        with open(told, "rb") as file:
            said = file.readline()
        assert said, parent.report()
        pid, path = said.split()
        fd = fs.look(path.decode(), os.O_RDWR)
        try:
            assert fs.is_locked(fd)
            parent.kill()
            os.kill(int(pid), 0)
            until(lambda: not fs.is_locked(fd), "the lock of the dead parent", PATIENCE_S)
        finally:
            os.kill(int(pid), signal.SIGKILL)
            fs.close(fd)
    fs.close_root()


def test_a_child_does_not_keep_a_file_that_a_thread_was_just_opening(queue: Queue) -> None:
    """The system has opened it, and no record of it is made yet. Its parent locks it afterwards."""
    fs = queue.store.fs
    path = f"{queue.path}/queue.jsonl"
    opened, over = threading.Event(), threading.Event()

    def slowly(*args: Any) -> int:
        fd = os.open(*args)
        opened.set()
        assert over.wait(PATIENCE_S)
        return fd

    def take() -> None:
        fd = resources.opened(fs, map(slowly, (path,), (os.O_RDWR,)))
        assert fs.try_lock(fd)
        resources.close(fd)

    queue.status()  # so that its directory is open
    before = paths_open().count(path)  # for reading alone
    with threads(take):
        assert opened.wait(PATIENCE_S)
        child = Child(paths_open)
        over.set()
        try:
            assert child.result().count(path) == before
        finally:
            child.close()


def paths_open() -> list[str]:
    """Return the paths of what this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found


def test_a_log_that_a_child_closes_keeps_no_other_file_from_being_let_go(queue: Queue) -> None:
    """The directory above the queue was opened after the queue: it lets go last, as a group does."""
    queue.insert_many(range(3), batch_tasks=3)
    [task] = queue.lease()  # the log stays open
    above = Filesystem(str(queue.path.parent), shared=False)
    path = f"{queue.path.parent}/slow"
    above.close(above.look(path, os.O_RDWR | os.O_CREAT))
    opened, over = threading.Event(), threading.Event()

    def slowly(*args: Any) -> int:
        fd = os.open(*args)
        opened.set()
        assert over.wait(PATIENCE_S)
        return fd

    with threads(lambda: resources.close(resources.opened(above, map(slowly, (path,), (os.O_RDWR,))))):
        assert opened.wait(PATIENCE_S)
        child = Child(paths_open)
        over.set()
        try:
            assert path not in child.result()
        finally:
            child.close()
    above.close_root()
    task.complete()


def test_what_a_thread_opened_and_another_closed_is_no_file_of_the_first(queue: Queue, tmp_path: Path) -> None:
    """A child would give up a file of its parent's that has the number now."""
    queue.insert_many(range(3), batch_tasks=3)
    fs = queue.store.fs
    found: list[int] = []
    with threads(lambda: found.append(fs.look(f"{queue.path}/queue.jsonl", os.O_RDWR))):
        pass
    over = threading.Event()
    with threads(lambda: over.wait(PATIENCE_S)):
        fs.close(found[0])
        with open(tmp_path / "mine", "w") as mine:
            if mine.fileno() != found[0]:
                os.dup2(mine.fileno(), found[0])
            child = Child(lambda: os.write(found[0], b"x"))
            try:
                assert child.result() == 1
            finally:
                child.close()
                over.set()
                if mine.fileno() != found[0]:
                    os.close(found[0])


def test_a_child_goes_on_reading_what_its_thread_was_reading(queue: Queue) -> None:
    queue.insert_many(range(40), batch_tasks=2)
    looking = queue.tasks()
    first = next(looking)

    def rest() -> list[Any]:
        return [first.payload, *(info.payload for info in looking)]

    child = Child(rest)
    try:
        assert sorted(child.result()) == list(range(40))
        assert sorted(rest()) == list(range(40))
    finally:
        child.close()


def test_identifiers_of_a_child_are_its_own_whatever_draws_them(queue: Queue) -> None:
    entropy = Entropy()
    entropy.hex16()
    child = Child(lambda: [entropy.hex16() for _ in range(50)])
    try:
        assert not set(child.result()) & {entropy.hex16() for _ in range(50)}
    finally:
        child.close()


def test_a_child_leases_for_others_too_if_its_parent_did(queue: Queue) -> None:
    queue.store.lease_for_others()
    child = Child(lambda: [queue.store.worker["pid"] == os.getpid(), "process" in queue.store.worker])
    try:
        assert child.result() == [True, False]
    finally:
        child.close()


def _lease_one(queue: Queue, told: Any) -> None:
    told.put([task.payload for task in queue.lease()])


@pytest.mark.once  # whose batch is one, so that tasks come in order
def test_a_queue_is_an_argument_of_a_process_that_is_forked(queue: Queue) -> None:
    context = multiprocessing.get_context("fork")
    queue.insert_many(range(3), batch_tasks=3)
    [task] = queue.lease()
    told = context.SimpleQueue()
    process = context.Process(target=_lease_one, args=(queue, told))
    process.start()
    assert told.get() == [1]
    process.join(PATIENCE_S)
    task.complete()
    assert (queue.status().leased, queue.status().completed) == (1, 1)


def test_a_child_with_a_terminal_is_a_child_as_any(queue: Queue) -> None:
    queue.insert_many(range(3), batch_tasks=3)
    loop = queue.poll(prefetch=2)
    first = next(loop).payload
    pid, terminal = os.forkpty()
    if not pid:
        try:
            os._exit(10 + next(loop).payload)
        finally:
            os._exit(1)
    try:
        of_the_child = status_of(pid) - 10
        assert {first, next(loop).payload, of_the_child} == {0, 1, 2}
    finally:
        os.close(terminal)


def test_a_holder_that_fails_keeps_no_other_from_letting_go() -> None:
    class Holder:
        def __init__(self, error: BaseException | None) -> None:
            self.error, self.asked = error, 0

        def let_go(self) -> None:
            self.asked += 1
            if self.error is not None and self.asked == 1:
                raise self.error

    holders = [Holder(error) for error in (KeyboardInterrupt(), OSError(), None)]
    for holder in holders:
        forks.register(holder, Holder.let_go)
    child = Child(lambda: [holder.asked for holder in holders])
    try:
        assert child.result() == [2, 2, 1]
        assert [holder.asked for holder in holders] == [0, 0, 0]
    finally:
        child.close()


def test_closing_and_using_again(queue: Queue) -> None:
    queue.insert_many(range(10))
    tasks = queue.lease(3)
    queue.close()
    queue.complete(tasks)
    with queue:
        assert len(work(queue)) == 7
    assert queue.status().completed == 10


def test_open_descriptors_do_not_pile_up(queue: Queue) -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    queue.insert_many(range(400), batch_tasks=1)
    before = opened()
    tasks = queue.lease(400)
    assert opened() - before <= 140
    for task in tasks[:200]:
        task.fail("no")
    queue.complete(tasks[200:])
    try:
        tasks[250].renew()
    except FsqueueError:
        pass
    queue.gc()
    queue.status()
    queue.close()
    assert opened() <= before + 1


def test_a_queue_that_is_let_go_of_has_closed_its_descriptors(queue_factory: QueueFactory) -> None:
    """At once, not when the garbage collector comes by: a program may open many queues, one after the other."""
    gc.collect()
    gc.disable()
    try:
        before = set(os.listdir("/proc/self/fd"))
        queue = queue_factory()
        queue.insert_many(range(3), batch_tasks=1)
        queue.lease()[0].complete()
        for task in queue.poll():
            with task:
                pass
            break
        queue.status()
        queue.release_all()
        del queue, task
        assert set(os.listdir("/proc/self/fd")) - before == set()
    finally:
        gc.enable()
