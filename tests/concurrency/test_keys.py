"""Keys between processes: at no time do two tasks with one key live, and an answer is true."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from fsqueue import LockTimeout, Queue
from fsqueue.format import names
from fsqueue.protocol import finishing
from fsqueue.storage import history, keys
from tests.concurrency.processes import Count, children
from tests.levels import how_many
from tests.waiting import until

pytestmark = pytest.mark.batched  # what is looked at is in the logs of open batches

QueueFactory = Callable[..., Queue]
KEYS = 5
NEW = how_many(20, 120)
"""Number of new tasks after which an inserter ends."""
SLACK_MS = 2
"""Times are cut to milliseconds."""


def lives(queue: Queue) -> dict[str, tuple[str, int, int]]:
    """Of each task in the history: its key, which its worker has told, when it was inserted, when it ended (ms)."""
    found: dict[str, list[Any]] = {}
    for batch, records, _ in history.finished_batches(queue.store):
        for _, record in records:
            if record["op"] == "insert":
                found[names.task_id(batch, record["first"])] = ["", record["at"], 0]
            elif record["op"] in ("complete", "bury"):
                for first, end in record["tasks"]:
                    for index in range(first, end):
                        key = record.get("result") or record["reason"]
                        found[names.task_id(batch, index)][::2] = key, record["at"]
    return {task: (key, born, ended) for task, (key, born, ended) in found.items()}


@pytest.mark.parametrize("killed", [False, True])
def test_many_inserters_and_workers(queue_factory: QueueFactory, killed: bool) -> None:
    queue = queue_factory(shards=2, durability="none", batch_tasks_max=16)
    over, begun = queue.path.with_name("over"), Count()

    def insert(seed: int) -> list[tuple[str, str, bool, float, float]]:
        mine, rng, told, new = Queue(queue.path), random.Random(seed), [], 0
        while new < NEW:
            key, began = f"k{rng.randrange(KEYS)}", time.time() * 1000
            ref = mine.insert(seed, key=key)
            told.append((key, ref.id, ref.inserted, began, time.time() * 1000))
            new += ref.inserted
        return told

    def work() -> dict[str, float]:
        mine, done = Queue(queue.path), dict[str, float]()
        while not over.exists():
            for task in mine.lease(2):
                task.bury(task.key) if len(done) % 7 == 0 else task.complete(task.key)
                done[task.id] = time.time() * 1000
        return done

    def insert_and_die() -> None:
        mine = Queue(queue.path)
        for number in itertools.count():
            mine.insert(-1, key=f"k{number % KEYS}")
            begun.add()

    with children(*((insert, seed) for seed in range(3)), (work,), (work,), (insert_and_die,)) as processes:
        if killed:
            until(lambda: int(begun) > 3 * KEYS, "the one that dies to be in the middle of its inserts")
            processes[-1].kill()
        told = [answer for child in processes[:3] for answer in child.result()]
        over.touch()
        reported = processes[3].result() | processes[4].result()
        assert len(reported) > 20
        processes[-1].kill()
    for task in queue.lease(1000):
        task.complete(task.key)
    with mock.patch.object(finishing, "LINGER_MS", 0):  # else open batches end some seconds after the last insert
        queue.gc()
    assert queue.status().drained
    known = lives(queue)
    for key in {key for key, *_ in known.values()}:
        spans = sorted((born, ended) for one, born, ended in known.values() if one == key)
        assert len(spans) > 3
        for (_, ended), (born, _) in itertools.pairwise(spans):
            assert born >= ended - SLACK_MS, f"two tasks with the key {key} live at {born}"
    ids = [one for _, one, is_new, *_ in told if is_new]
    assert len(ids) == len(set(ids)) > 10
    for key, one, is_new, began, ended in told:
        of, born, _ = known[one]
        assert of == key
        assert born <= ended + SLACK_MS
        assert is_new or reported.get(one, ended) >= began, f"{one} had ended before it was named"


@pytest.mark.parametrize("end", [signal.SIGCONT, signal.SIGKILL])
def test_an_inserter_that_stands_still_between_the_line_and_the_record(
    queue_factory: QueueFactory, end: signal.Signals
) -> None:
    queue = queue_factory()
    queue.insert("before", key="k")
    queue.complete(queue.lease())

    def live() -> str:
        mine = Queue(queue.path)
        into = mine._inserter._insert_into

        def stopped(*args: object) -> object:
            os.kill(os.getpid(), signal.SIGSTOP)
            return into(*args)  # type: ignore[arg-type]

        with mock.patch.object(mine._inserter, "_insert_into", stopped):
            return mine.insert("slow", key="k").id

    with children((live,)) as [child]:
        child.wait_stopped()
        hasty = mock.patch.object(keys.locked, "__defaults__", (0.2,))
        with hasty, pytest.raises(LockTimeout, match=rf"last saw .*process {child.pid}"):
            queue.insert("x", key="k")
        assert queue.insert("y", key="other").inserted  # nobody else is kept waiting
        child.signal(end)
        if end == signal.SIGKILL:
            child.wait()
            assert queue.insert("x", key="k").inserted
        else:
            assert queue.insert("x", key="k").id == child.result()
    assert queue.status().waiting == 2
