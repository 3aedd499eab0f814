# ruff: noqa: E501
"""The kinds of stories that are told of keys."""

from __future__ import annotations

from tests.simulation.stories import Scenario

WORK = {"insert_keyed": 8.0, "consume": 5.0, "gc": 0.5, "cancel": 0.3, "retry_dead": 0.2, "insert": 0.5, "release_all": 0.1}  # fmt: skip
PURGES = {"insert_keyed": 6.0, "consume": 2.0, "purge": 1.5}
AWAY = WORK | {"gc": 4.0}

MANY = {"batch_tasks_max": 4, "shards": 1}
FEW = {"batch_tasks_max": 2, "shards": 1, "durability": "default"}
ONE = {"batch_tasks_max": 1, "shards": 1}
"""Each task has a file of its own."""
SHORTLY = (("protocol.finishing:LINGER_MS", 1),)
RESTATED = (
    ("format.checkpoints:LEAST_BYTES", 1), ("format.checkpoints:SHARE", 0), ("storage.logs:TAIL_BYTES", 128),
)  # fmt: skip
FEW_LINES = (("storage.keys:BYTES_MAX", 200),)
"""Files of keys are begun anew behind the first line."""

AT_ONCE = (("upkeep.collect:KEY_AGE_S", 0),)
"""Upkeep removes the files of free keys at once."""

NFS = {"stale": 0.4, "stale_listings": 0.3}

SCENARIOS = {
    one.name: one
    for one in (
        Scenario("keyed", shared=False, hosts=1, actions=WORK, faults=("kill", "delay", "error", "after", "stop"), limits=SHORTLY, settings=MANY, tasks_before=1),
        Scenario("keyed-calm", actions=WORK, workers=4, settings=MANY, torn_listings=0.2, tasks_before=0),
        Scenario("keyed-nfs", actions=WORK, faults=("kill", "delay", "cut", "cut", "reply", "stop"), limits=SHORTLY, settings=MANY, tasks_before=0, **NFS),
        Scenario("keyed-cut", actions=WORK, faults=("cut", "cut", "cut", "delay"), settings=MANY, tasks_before=0, faults_most=5),
        Scenario("keyed-files", shared=False, hosts=1, actions=WORK, faults=("kill", "delay", "error", "after"), settings=ONE, tasks_before=0),
        Scenario("keyed-files-nfs", actions=WORK, faults=("kill", "delay", "cut", "cut", "reply"), settings=ONE, tasks_before=0, **NFS),
        Scenario("keyed-power", shared=False, hosts=1, actions=WORK, faults=("power", "kill"), lossy=True, settings=FEW, tasks_before=0),
        Scenario("keyed-files-power", shared=False, hosts=1, actions=WORK, faults=("power", "kill"), lossy=True, settings=ONE, tasks_before=0),
        Scenario("keyed-again-power", shared=False, hosts=1, actions={"insert_keyed": 3.0, "consume": 2.0, "insert": 0.5}, faults=("power",), lossy=True, settings=FEW, tasks_before=0, workers=4),
        Scenario("keyed-restated", actions=WORK, faults=("kill", "cut", "delay"), limits=(*SHORTLY, *RESTATED, *FEW_LINES), settings=MANY, tasks_before=0),
        Scenario("keyed-purge", actions=PURGES, faults=("delay", "kill"), stale=0.4, settings=MANY, tasks_before=0),
        Scenario("keyed-away", actions=AWAY, faults=("away", "away", "nap", "kill"), limits=SHORTLY, settings=MANY, tasks_before=0),
        Scenario("keyed-files-away", actions=AWAY, faults=("away", "away", "nap", "kill"), settings=ONE, tasks_before=0),
        Scenario("keyed-gc", shared=False, hosts=1, actions=AWAY, faults=("kill", "delay", "error"), limits=(*SHORTLY, *AT_ONCE), settings=MANY, tasks_before=0),
        Scenario("keyed-gc-nfs", actions=AWAY, faults=("kill", "delay", "cut", "cut"), limits=(*SHORTLY, *AT_ONCE), settings=MANY, tasks_before=0, **NFS),
        Scenario("keyed-full", shared=False, hosts=1, actions=WORK, faults=("full", "full", "kill"), settings=MANY, tasks_before=0),
        Scenario("keyed-interrupt", shared=False, hosts=1, actions=WORK, faults=("interrupt", "interrupt", "delay"), settings=MANY, tasks_before=0),
    )
}  # fmt: skip
"""By name."""
