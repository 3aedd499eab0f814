"""Three stages, worked by eight processes that are killed at random moments and replaced: each task goes through all
stages, and is completed exactly once in each.

`FSQUEUE_TEST_SEED` plays another round.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group, Status, Then, Worker
from tests.concurrency.processes import Child, Count
from tests.levels import how_many
from tests.waiting import until

pytestmark = pytest.mark.once

SEED = int(os.environ.get("FSQUEUE_TEST_SEED", "1"))
TASKS = how_many(30, 20_000)
KILLS = how_many(6, 200)
NEXT = {"fetch": "parse", "parse": "store"}


def work(path: str, calls: Count) -> dict[str, Any]:
    """Work on all stages until they are drained."""

    def handler(payload: Any, task: Any) -> Any:
        calls.add()
        stage = Path(task.queue).name
        return Then(payload, [(NEXT[stage], payload)]) if stage in NEXT else payload

    report = Worker(Group(path), handler, threads=2, prefetch=2).run()
    return report.as_dict()


def test_each_task_goes_through_all_stages_once_while_workers_are_killed(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    dice = random.Random(SEED)
    group = Group.create(tmp_path / "group", shards=2, durability="none", lease_s=2, max_attempts=None)
    group["fetch"].insert_many(range(TASKS))
    calls = Count()
    workers = [Child(work, str(group.path), calls) for _ in range(8)]
    try:
        for at in sorted(dice.sample(range(TASKS * 5 // 2), KILLS)):
            until(lambda at=at: int(calls) > at, f"call number {at} of a handler", 600)  # type: ignore[misc]
            victim = dice.randrange(len(workers))
            workers[victim].close()
            workers[victim] = Child(work, str(group.path), calls)
        for worker in workers:
            assert worker.result(600)["ended"] == "drained"
    finally:
        for worker in workers:
            worker.close()
    for stage in ("fetch", "parse", "store"):
        assert group[stage].status() == Status(completed=TASKS)
        assert Counter(one.result for one in group[stage].results()) == Counter(range(TASKS)), stage
        if TASKS < 1_000:  # of 20,000 it takes minutes
            assert list(group[stage].fsck()) == []
