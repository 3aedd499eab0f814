"""One Queue object in many threads, and across forks in the middle of everything."""

from __future__ import annotations

import gc
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fsqueue import FsqueueError, LeasedTask, LeaseLost, Queue, StorageError
from fsqueue.filesystem import Filesystem
from tests.concurrency.books import check_drained, drain
from tests.concurrency.processes import Child, children
from tests.concurrency.trapped import trapped
from tests.support import in_time
from tests.waiting import until

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
            thread.join(60)
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


@pytest.mark.parametrize("process_locks", [False, True])
def test_many_threads_drain_through_one_queue_object(queue: Queue, process_locks: bool) -> None:
    queue.insert_many(range(600), batch_tasks=7)
    shared = Queue(queue.path, filesystem=Filesystem(str(queue.path), shared=False, process_locks=process_locks))
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
    stand in nobody's way.
    """
    queue.insert_many(range(4), batch_tasks=2)
    started: list[Child] = []

    def fork_at_each_step(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if armed and len(started) < 150:
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
            found = [payload for child in started for payload in child.result(60)]
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
            over.wait(60)

    with threads(open_slowly):
        begun.wait(60)
        child = Child(lambda: work(queue))
        try:
            assert child.result(60) == ["x"]
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
        queue.insert_many(range(3))
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
