"""Named commits by real processes: at once, killed at every step, stopped for ever."""

from __future__ import annotations

import signal
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest

from fsqueue import Commit, FsqueueError, Queue
from tests.concurrency.books import check_drained, drain
from tests.concurrency.processes import Child, children, together
from tests.concurrency.trapped import DieAt, trapped
from tests.levels import how_many

QueueFactory = Callable[..., Queue]
TASKS = 12


def insert(queue: Queue, name: str, who: int) -> int:
    """Insert one's own tasks under a name that others use, too; how many were new."""
    return Queue(queue.path).insert_many([f"{who}.{index}" for index in range(TASKS)], commit=name, batch_tasks=2)


@pytest.mark.parametrize("round_", range(5))
def test_of_many_who_commit_one_name_at_once_one_wins(queue_factory: QueueFactory, round_: int) -> None:
    queue = queue_factory(shards=4)
    names = ["a", "b"]
    new = together(*((insert, queue, names[who % 2], who) for who in range(6)))
    assert sorted(new) == [0, 0, 0, 0, TASKS, TASKS]
    winners = {str(who) for who, count in enumerate(new) if count}
    payloads = drain(queue)
    assert sorted(payloads) == sorted(f"{who}.{index}" for who in winners for index in range(TASKS))
    check_drained(queue)


def stage_by_bytes(commit: bytes, who: int) -> Any:
    part = ForkingPickler.loads(commit).stage([f"{who}.{index}" for index in range(TASKS)], batch_tasks=3)
    return part.as_dict()


def publish_by_bytes(commit: bytes, parts: list[dict[str, Any]]) -> bool:
    from fsqueue import CommitPart

    return bool(ForkingPickler.loads(commit).publish([CommitPart(**part) for part in parts]).repeated)


def test_writers_in_other_processes_and_two_drivers_at_once(queue_factory: QueueFactory) -> None:
    """As a job that was started twice: the same parts, published by both."""
    queue = queue_factory(shards=4)
    commit = bytes(ForkingPickler.dumps(queue.commit("job")))
    parts = together(*((stage_by_bytes, commit, who) for who in range(4)))
    assert queue.lease() == []
    repeated = together(*((publish_by_bytes, commit, parts[:3]) for _ in range(4)))
    assert sorted(repeated) == [False, True, True, True]
    assert sorted(drain(queue)) == sorted(f"{who}.{index}" for who in range(3) for index in range(TASKS))
    check_drained(queue)


def test_killed_at_every_step(queue_factory: QueueFactory) -> None:
    """All is there or nothing, for whoever looks; typed again, all is there once."""
    seen, step = set(), 1
    while True:
        queue = queue_factory(f"q{step}", shards=2, durability="none" if step % 2 else "default")

        def live(queue: Queue = queue, step: int = step) -> None:
            trap = DieAt(step)
            mine = trapped(queue, trap)
            trap.armed = True
            mine.insert_many(["a", "b", "c"], batch_tasks=2, commit="seed")

        with children((live,)) as [child]:
            status = child.wait()
        assert status in (0, -signal.SIGKILL), child.report()
        looks: dict[int, Callable[[], int]] = {
            0: lambda queue=queue: queue.status().inserted,
            1: lambda queue=queue: len(queue.lease(5)),
            2: lambda queue=queue: 0 if queue.is_drained() else 3,
        }
        there = looks[step % 3]()
        assert there in (0, 3), step
        queue.release_all()
        seen.add(there)
        assert queue.insert_many(["a", "b", "c"], commit="seed") == 3 - there, step
        assert sorted(drain(queue)) == ["a", "b", "c"], step
        check_drained(queue, staged_leftovers=4)
        if status == 0:
            break
        step += how_many(5, 1)  # so that each look, and each durability, has its turn
    assert seen == {0, 3}
    assert step > 30


def stop_at(queue: Queue, step: int, name: str) -> str:
    def stop(number: int, call: str, action: Callable[..., Any], *args: Any) -> Any:
        if number == step:
            import os

            os.kill(os.getpid(), signal.SIGSTOP)
        return action(*args)

    trap = DieAt(-1)
    trap.at = stop  # type: ignore[method-assign]
    mine = trapped(queue, trap)
    trap.armed = True
    try:
        return str(mine.insert_many(["a", "b", "c"], batch_tasks=2, commit=name))
    except FsqueueError as error:
        return type(error).__name__


@pytest.mark.slow
def test_stopped_at_any_step_it_keeps_nobody_from_committing(queue_factory: QueueFactory) -> None:
    """Others commit under the same name at once, or finish what was decided; who wakes up is told, and adds nothing."""
    step, stopped = 1, 0
    while True:
        queue = queue_factory(f"q{step}", shards=2, durability="none")
        child = Child(stop_at, queue, step, "seed")
        try:
            try:
                child.wait_stopped()
            except AssertionError:
                assert child.result() == "3"
                break
            stopped += 1
            new = queue.insert_many(["d", "e", "f"], commit="seed")
            wanted = ["d", "e", "f"] if new else ["a", "b", "c"]
            assert queue.status().inserted == 3, step
            queue.gc()
            assert sorted(drain(queue)) == wanted, step
            child.signal(signal.SIGCONT)
            told = child.result()
            assert told == ("0" if new else "3"), (step, told)
            assert drain(queue) == []
            assert isinstance(queue.commit("seed"), Commit)
            check_drained(queue, staged_leftovers=0)
        finally:
            child.close()
        step += 3
    assert stopped > 15
