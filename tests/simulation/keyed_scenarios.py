# ruff: noqa: E501
"""The kinds of stories that are told of keys."""

from __future__ import annotations

from tests.simulation.order import PRIORITIES
from tests.simulation.stories import Scenario

WORK = {"insert_keyed": 8.0, "consume": 5.0, "gc": 0.5, "cancel": 0.3, "retry_dead": 0.2, "insert": 0.5, "release_all": 0.1}  # fmt: skip
PURGES = {"insert_keyed": 6.0, "consume": 2.0, "purge": 1.5}
AWAY = WORK | {"gc": 4.0}

MANY = {"batch_tasks_max": 4, "shards": 1}
FEW = {"batch_tasks_max": 2, "shards": 1, "durability": "default"}
SHORTLY = (("protocol.finishing:LINGER_MS", 1),)
RESTATED = (
    ("format.checkpoints:LEAST_BYTES", 1), ("format.checkpoints:SHARE", 0), ("storage.logs:TAIL_BYTES", 128),
)  # fmt: skip
FEW_LINES = (("storage.keys:BYTES_MAX", 200),)
"""Files of keys are begun anew behind the first line."""

AT_ONCE = (("upkeep.key_files:KEY_AGE_S", 0),)
"""Upkeep removes the files of free keys at once."""
EPOCHS = (*AT_ONCE, ("upkeep.key_files:FREE_MIN", 1), ("upkeep.key_files:EPOCH_AGE_S", 61))
"""On a network mount it begins a key epoch for one file, and ends the one before when no listing is from that time."""

NFS = {"stale": 0.4, "stale_listings": 0.3}

RANKED = {
    "insert_keyed": 6.0, "insert_many_keyed": 3.0, "insert_ranked": 0.5, "consume_ranked": 6.0, "poll": 1.0, "gc": 0.5,
    "cancel": 0.3, "retry_dead": 0.4, "release_all": 0.1, "wait": 0.3, "look": 0.2, "fsck": 0.2,
}  # fmt: skip
"""Keys and priorities together: in single inserts, and several in one call."""
RANKED_PURGES = {"insert_keyed": 4.0, "insert_many_keyed": 2.0, "consume_ranked": 2.0, "purge": 1.5}
TOGETHER = {
    "insert_keyed_together": 6.0, "insert_keyed": 3.0, "insert": 0.5, "consume": 6.0, "gc": 0.5, "cancel": 0.3, "retry_dead": 0.2,
    "release_all": 0.1,
}  # fmt: skip
"""Several tasks with keys are inserted together, beside others."""
TOGETHER_PURGES = {"insert_keyed_together": 4.0, "insert_keyed": 2.0, "consume": 2.0, "purge": 1.5}
LARGE = (("protocol.single_inserts:TASK_BYTES_MAX", 46),)
"""Tasks with a key and a priority that is not short are refused. Others with a priority have a file of their own."""

SCENARIOS = {
    one.name: one
    for one in (
        Scenario("keyed", shared=False, hosts=1, actions=WORK, faults=("kill", "delay", "error", "after", "stop"), limits=SHORTLY, settings=MANY, tasks_before=1),
        Scenario("keyed-calm", actions=WORK, workers=4, settings=MANY, torn_listings=0.2, tasks_before=0),
        Scenario("keyed-nfs", actions=WORK, faults=("kill", "delay", "cut", "cut", "reply", "stop"), limits=SHORTLY, settings=MANY, tasks_before=0, **NFS),
        Scenario("keyed-cut", actions=WORK, faults=("cut", "cut", "cut", "delay"), settings=MANY, tasks_before=0, faults_most=5),
        Scenario("keyed-power", shared=False, hosts=1, actions=WORK, faults=("power", "kill"), lossy=True, settings=FEW, tasks_before=0),
        Scenario("keyed-again-power", shared=False, hosts=1, actions={"insert_keyed": 3.0, "consume": 2.0, "insert": 0.5}, faults=("power",), lossy=True, settings=FEW, tasks_before=0, workers=4),
        Scenario("keyed-restated", actions=WORK, faults=("kill", "cut", "delay"), limits=(*SHORTLY, *RESTATED, *FEW_LINES), settings=MANY, tasks_before=0),
        Scenario("keyed-purge", actions=PURGES, faults=("delay", "kill"), stale=0.4, settings=MANY, tasks_before=0),
        Scenario("keyed-away", actions=AWAY, faults=("away", "away", "nap", "kill"), limits=SHORTLY, settings=MANY, tasks_before=0),
        Scenario("keyed-gc", shared=False, hosts=1, actions=AWAY, faults=("kill", "delay", "error"), limits=(*SHORTLY, *AT_ONCE), settings=MANY, tasks_before=0),
        Scenario("keyed-gc-nfs", actions=AWAY, faults=("kill", "delay", "cut", "cut"), limits=(*SHORTLY, *EPOCHS), settings=MANY, tasks_before=0, faults_most=6, **NFS),
        Scenario("keyed-epochs", actions=AWAY, faults=("cut", "kill", "delay", "delay", "stop"), limits=(*SHORTLY, *EPOCHS), settings=MANY, tasks_before=0, faults_most=8),
        Scenario("keyed-full", shared=False, hosts=1, actions=WORK, faults=("full", "full", "kill"), settings=MANY, tasks_before=0),
        Scenario("keyed-order", shared=False, hosts=1, actions=RANKED, faults=("kill", "delay", "error", "after"), limits=SHORTLY, settings=MANY, priorities=PRIORITIES),
        Scenario("keyed-order-calm", actions=RANKED, workers=4, settings=MANY, priorities=PRIORITIES, torn_listings=0.2),
        Scenario("keyed-order-nfs", actions=RANKED, faults=("kill", "delay", "cut", "reply", "stop"), limits=SHORTLY, settings={"batch_tasks_max": 4}, priorities=PRIORITIES, **NFS),
        Scenario("keyed-order-power", shared=False, hosts=1, actions=RANKED, faults=("power", "kill"), lossy=True, settings=FEW, priorities=PRIORITIES, tasks_before=0),
        Scenario("keyed-refused", shared=False, hosts=1, actions=RANKED, faults=("kill", "delay", "error", "after"), limits=LARGE, settings=MANY, priorities=PRIORITIES),
        Scenario("keyed-order-restated", actions=RANKED, faults=("kill", "cut", "delay"), limits=(*SHORTLY, *RESTATED, *FEW_LINES), settings=MANY, priorities=PRIORITIES),
        Scenario("keyed-order-purge", actions=RANKED_PURGES, faults=("delay", "kill"), stale=0.4, settings=MANY, priorities=PRIORITIES),
        Scenario("keyed-order-gc", shared=False, hosts=1, actions=RANKED | {"gc": 4.0}, faults=("kill", "delay", "error"), limits=(*SHORTLY, *AT_ONCE), settings=MANY, priorities=PRIORITIES),
        Scenario("keyed-order-full", shared=False, hosts=1, actions=RANKED, faults=("full", "full", "kill"), settings=MANY, priorities=PRIORITIES),
        Scenario("keyed-unclean", shared=False, hosts=1, actions=RANKED, faults=("broken", "broken", "unclean"), settings=MANY, priorities=PRIORITIES),
        Scenario("keyed-fork", shared=False, hosts=1, actions=RANKED, faults=("fork", "fork", "error"), settings=MANY, priorities=PRIORITIES),
        Scenario("keyed-interrupt", shared=False, hosts=1, actions=WORK, faults=("interrupt", "interrupt", "delay"), settings=MANY, tasks_before=0),
        Scenario("keyed-together", shared=False, hosts=1, actions=TOGETHER, faults=("kill", "delay", "error", "after", "stop"), limits=SHORTLY, settings=MANY, tasks_before=1),
        Scenario("keyed-together-calm", shared=False, hosts=1, actions=TOGETHER, workers=4, settings=MANY, tasks_before=0),
        Scenario("keyed-together-nfs", actions=TOGETHER, faults=("kill", "delay", "cut", "cut", "reply", "stop"), limits=SHORTLY, settings=MANY, tasks_before=0, **NFS),
        Scenario("keyed-together-cut", actions=TOGETHER, faults=("cut", "cut", "cut", "delay"), settings=MANY, tasks_before=0, faults_most=5),
        Scenario("keyed-together-away", actions=TOGETHER | {"gc": 4.0}, faults=("away", "away", "nap", "kill"), limits=SHORTLY, settings=MANY, tasks_before=0),
        Scenario("keyed-together-power", shared=False, hosts=1, actions=TOGETHER, faults=("power", "kill"), lossy=True, settings={"batch_tasks_max": 4, "shards": 2, "durability": "default"}, tasks_before=0),
        Scenario("keyed-together-purge", actions=TOGETHER_PURGES, faults=("delay", "kill"), stale=0.4, settings=MANY, tasks_before=0),
        Scenario("keyed-together-gc", shared=False, hosts=1, actions=TOGETHER | {"gc": 4.0}, faults=("kill", "delay", "error"), limits=(*SHORTLY, *AT_ONCE, *FEW_LINES), settings=MANY, tasks_before=0),
        Scenario("keyed-together-epochs", actions=TOGETHER | {"gc": 4.0}, faults=("cut", "kill", "delay", "delay", "stop"), limits=(*SHORTLY, *EPOCHS), settings=MANY, tasks_before=0, faults_most=8),
        Scenario("keyed-together-full", shared=False, hosts=1, actions=TOGETHER, faults=("full", "full", "kill"), settings=MANY, tasks_before=0),
        Scenario("keyed-together-fork", shared=False, hosts=1, actions=TOGETHER, faults=("fork", "fork", "error"), settings=MANY, tasks_before=0),
        Scenario("keyed-together-interrupt", shared=False, hosts=1, actions=TOGETHER, faults=("interrupt", "interrupt", "delay"), settings=MANY, tasks_before=0),
        Scenario("keyed-together-unclean", shared=False, hosts=1, actions=TOGETHER, faults=("broken", "broken", "unclean"), settings=MANY, tasks_before=0),
    )
}  # fmt: skip
"""By name."""
