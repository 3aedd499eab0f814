# ruff: noqa: E501
"""The kinds of stories that are told of named commits."""

from __future__ import annotations

from tests.simulation import order
from tests.simulation.stories import Scenario

WORK = {
    "commit": 4.0, "stage": 2.0, "publish": 3.0, "discard": 0.5, "consume": 4.0, "status": 1.0, "is_drained": 0.7, "gc": 0.7, "wait": 0.3,
}  # fmt: skip
DISCARDS = {"commit": 1.0, "stage": 3.0, "publish": 4.0, "discard": 4.0, "is_drained": 1.0, "gc": 0.5}
UNCLEAN = WORK | {"commit": 6.0, "overwrite": 2.0}
BROKEN = ("broken", "broken", "unclean", "unclosed", "error", "after")
"""What goes wrong at a call that decides, in the clean-up behind it, and when files are closed."""
OVERWRITES = WORK | {"overwrite": 3.0, "purge": 0.4}
ENDS = WORK | {"purge": 0.8}

RANKED = {
    "commit": 3.0, "stage": 3.0, "publish": 4.0, "discard": 0.3, "consume_ranked": 5.0, "insert_ranked": 0.5, "status": 0.3,
    "is_drained": 0.7, "gc": 0.7, "retry_dead": 0.3, "wait": 0.3,
}  # fmt: skip
"""Commits of tasks with priorities, and leases in their order meanwhile."""
RANKED_OVERWRITES = RANKED | {"overwrite": 3.0, "purge": 0.4}
PRIORITIES = order.PRIORITIES

SCENARIOS = {
    one.name: one
    for one in (
        Scenario("commits", shared=False, hosts=1, actions=WORK, torn_listings=0.2, tasks_before=1),
        Scenario("commits-crash", shared=False, hosts=1, actions=WORK, faults=("kill", "kill", "delay"), tasks_before=1),
        Scenario("commits-discard", actions=DISCARDS, faults=("kill", "delay"), hosts=2, tasks_before=0),
        Scenario(
            "commits-nfs", actions=WORK, faults=("kill", "host", "delay", "stop"), stale=0.4, torn_listings=0.3,
            stale_listings=0.2, tasks_before=1,
        ),
        Scenario("commits-reply", actions=WORK, faults=("reply", "reply", "after", "kill"), stale=0.3, tasks_before=1),
        Scenario("commits-cut", actions=WORK | {"gc": 2.0}, faults=("cut", "cut", "kill", "nap"), tasks_before=1),
        Scenario("commits-error", actions=WORK, faults=("error", "after", "full"), stale=0.2, tasks_before=1),
        Scenario("commits-unclean", shared=False, hosts=1, actions=UNCLEAN, faults=BROKEN, tasks_before=1),
        Scenario("commits-unclean-nfs", actions=UNCLEAN, faults=BROKEN, stale=0.3, tasks_before=1),
        Scenario("commits-power", shared=False, hosts=1, actions=WORK, faults=("power", "kill"), lossy=True, tasks_before=1),
        Scenario("commits-power-nfs", actions=WORK, faults=("power", "kill"), lossy=True, tasks_before=1),
        Scenario("commits-purge", actions=ENDS, faults=("delay", "kill", "reply"), stale=0.4, tasks_before=1),
        Scenario("commits-overwrite", actions=OVERWRITES, faults=("kill", "delay", "reply", "after"), stale=0.3, tasks_before=2),
        Scenario("commits-overwrite-power", shared=False, hosts=1, actions=OVERWRITES, faults=("power", "kill"), lossy=True, tasks_before=2),
        Scenario("commits-away", actions=WORK | {"gc": 2.0}, faults=("away", "away", "kill"), tasks_before=1),
        Scenario("commits-clean", actions=OVERWRITES, faults=("clean", "clean", "kill"), stale=0.3, tasks_before=1),
        Scenario("commits-interrupt", actions=OVERWRITES, faults=("interrupt", "interrupt", "delay"), tasks_before=1),
        Scenario("commits-order", shared=False, hosts=1, actions=RANKED, faults=("kill", "kill", "delay", "error"), priorities=PRIORITIES, tasks_before=1),
        Scenario("commits-order-calm", actions=RANKED, workers=4, priorities=PRIORITIES, torn_listings=0.2, tasks_before=1),
        Scenario("commits-order-nfs", actions=RANKED, faults=("kill", "host", "delay", "stop", "cut"), stale=0.4, stale_listings=0.2, priorities=PRIORITIES, tasks_before=1),
        Scenario("commits-order-reply", actions=RANKED, faults=("reply", "reply", "after", "kill"), stale=0.3, priorities=PRIORITIES, tasks_before=1),
        Scenario("commits-order-power", shared=False, hosts=1, actions=RANKED, faults=("power", "kill"), lossy=True, priorities=PRIORITIES, tasks_before=1),
        Scenario("commits-order-overwrite", actions=RANKED_OVERWRITES, faults=("kill", "delay", "reply", "after"), stale=0.3, priorities=PRIORITIES, tasks_before=2),
        Scenario("commits-order-overwrite-power", shared=False, hosts=1, actions=RANKED_OVERWRITES, faults=("power", "kill"), lossy=True, priorities=PRIORITIES, tasks_before=2),
        Scenario(
            "commits-both-names", shared=False, hosts=1, actions=OVERWRITES, faults=("power", "kill"), lossy=True,
            both_names=True, tasks_before=1,
        ),
        Scenario(
            "commits-strict", shared=False, hosts=1, workers=4, actions={"commit": 3.0, "consume": 6.0}, faults=("power",),
            faults_most=1, lossy=True, tasks_before=1, settings={"durability": "strict", "shards": 1, "keep_history": False},
        ),
    )
}  # fmt: skip
"""By name."""
