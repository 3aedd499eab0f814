"""Eight processes drain a queue while some are killed with SIGKILL at random moments and replaced, and others
stopped with SIGSTOP for a while, or interrupted with SIGINT: ten rounds, and hundreds in `scripts/test --all`.

`FSQUEUE_TEST_ROUNDS` and `FSQUEUE_TEST_SEED` play more, or others: see scripts/soak.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests import tally
from tests.concurrency.rounds import play_side_by_side
from tests.levels import how_many

SEED = int(os.environ.get("FSQUEUE_TEST_SEED", "67"))
"""The first round's. The ten from 67 on have 30 stops and 72 interrupts, all ways of leasing, and all durabilities."""


def test_nothing_is_lost_and_nothing_done_twice_when_workers_are_killed(tmp_path: Path, tasks_a_batch: int) -> None:
    number = int(os.environ.get("FSQUEUE_TEST_ROUNDS", how_many(5, 200 if tasks_a_batch > 1 else 100)))
    total = play_side_by_side(tmp_path, range(SEED, SEED + number), tasks_a_batch, timeout_s=300 + 10 * number)
    print(dict(total))
    tally.note("local disk", total)
    assert total["rounds"] == number
    assert total["killed"] > 4 * number
    assert total["stopped"] > number / 2
    assert total["interrupted"] > number / 2
    assert total["completed"] > 20 * number
