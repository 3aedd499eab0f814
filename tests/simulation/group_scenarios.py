"""The kinds of stories that are told of groups."""

from __future__ import annotations

from typing import Any

from tests.simulation.keyed_scenarios import AT_ONCE, EPOCHS, SHORTLY
from tests.simulation.stories import Scenario

RESTATED = (
    ("format.checkpoints:LEAST_BYTES", 1),
    ("format.checkpoints:SHARE", 0),
    ("storage.logs:TAIL_BYTES", 128),
    ("storage.logs:FAR_BYTES", 64),
)
"""A checkpoint behind every movement, but beside records of updates."""

BEGIN = {
    "insert": 5.0,
    "insert_few": 1.0,
    "consume": 3.0,
    "status": 0.5,
    "is_drained": 1.0,
    "look_around": 0.5,
    "gc": 0.3,
}
"""Inserters at once, in a queue that is not there yet."""
ENDS = BEGIN | {"insert": 6.0, "delete": 2.0, "purge": 0.3}
"""Queues are deleted and made anew, all the time."""
RELAY = {
    "feed": 3.0,
    "relay_any": 6.0,
    "consume_any": 2.0,
    "drained_any": 3.0,
    "poll_any": 3.0,
    "look_around": 0.5,
    "gc": 0.3,
}
WAITS = RELAY | {"wait_any": 5.0, "relay_any": 4.0}
DELETES = {
    "feed": 5.0,
    "consume_any": 3.0,
    "consume": 2.0,
    "delete_any": 2.0,
    "drained_any": 2.0,
    "look_around": 1.0,
    "status": 0.5,
}
HOPS = {"hop_any": 4.0, "drained_unluckily_any": 5.0, "drained_any": 1.0, "look_around": 0.3}
"""A task is always there, in a queue that is made for it. Looks come when it is elsewhere."""
GROUP: dict[str, Any] = {"group": True, "two_queues": True, "tasks_before": 0, "settings": {"max_attempts": None}}
"""A task lives until a worker completes it."""
GROUP_NFS: dict[str, Any] = {"faults": ("kill", "delay", "cut", "reply"), **GROUP}
"""As GROUP, on several hosts: each of them may be cut off, or lose a reply."""

UPDATES = {
    "update": 6.0,
    "insert_into_both": 2.0,
    "feed": 2.0,
    "consume_any": 2.0,
    "consume": 1.0,
    "drained_any": 1.0,
    "gc": 0.5,
    "status": 0.3,
    "wait": 0.5,
}
DEPENDS = UPDATES | {"update": 1.0, "depend": 5.0}
UPDATED: dict[str, Any] = {
    "group": True,
    "two_queues": True,
    "tasks_before": 4,
    "settings": {"max_attempts": None, "batch_tasks_max": 4},
}
"""Queues with open batches, into which updates insert."""
UPDATED_NFS: dict[str, Any] = {"faults": ("kill", "delay", "cut", "reply", "stop"), **UPDATED}
FORKS = ("fork", "fork", "fork", "error", "interrupt", "delay")
CHANGES = {"change": 7.0, "update": 2.0, "feed": 3.0, "consume": 2.0, "consume_any": 1.0, "gc": 0.3, "look": 0.3}
"""Updates cancel tasks and replace their payloads, beside others and plain verbs."""
DECIDED = UPDATES | {"wait": 4.0, "consume": 3.0}
"""Lessees come some seconds after an updater has died that had decided: before its records are old."""
PURGED = {"update": 6.0, "purge_any": 3.0, "feed": 3.0, "insert_into_both": 1.0, "consume_any": 1.0}
"""Either queue is purged beside updates, or both are, one after the other."""
ENDED = PURGED | {"purge_any": 0.0, "end_any": 3.0}
"""The same, and they are deleted."""
LATE = {"change": 5.0, "complete_late": 5.0, "feed": 1.0}
"""Leases run out, and their workers complete the tasks all the same, beside updates that change them."""
KEYED = {"update_keyed": 7.0, "insert_keyed": 3.0, "consume_any": 2.0, "consume": 1.0, "gc": 0.5, "cancel": 0.3}
"""Updates insert with few keys, beside plain inserts with the same keys."""
SEEN = {"update": 4.0, "change": 2.0, "look_at_updates": 7.0, "feed": 1.0, "consume_any": 1.0}
"""Others look at what updates change."""
MOVED = {
    "update": 6.0,
    "insert_into_both": 3.0,
    "change": 1.0,
    "feed": 2.0,
    "consume_any": 2.0,
    "consume": 1.0,
    "gc": 1.0,
}
"""A queue may be away at each step of them."""
GROUP_MOVED = MOVED | {"update": 8.0, "change": 3.0, "insert_into_both": 0.5, "feed": 0.5, "gc": 2.0}
"""The group is away while they work: they are told so, and nothing is made in its place."""
COLLECTED = {"update": 6.0, "insert_into_both": 3.0, "feed": 1.0, "consume_any": 2.0, "consume": 1.0, "gc": 5.0}
RETIRED_AT_ONCE = (("upkeep.decision_files:AGE_MS", 1),)
"""Upkeep retires decision files while their owners use them: that costs time, and nothing else."""
BARRIERS = {
    "set_barrier": 3.0,
    "feed_first": 3.0,
    "consume_any": 4.0,
    "consume": 3.0,
    "pass_barriers": 3.0,
    "drained_any": 1.0,
    "wait_any": 1.0,
    "look_around": 0.5,
    "gc": 0.5,
}
"""Barriers are set and pass, beside inserts into the queue that they wait for, and workers of it."""
JOINS = BARRIERS | {"set_barrier": 0.0, "set_join": 4.0, "feed_first": 4.0}
"""Joins wait for some tasks of that queue."""
JOINS_OF_DEAD = JOINS | {"set_join": 1.0, "set_strict_join": 4.0, "consume": 1.0, "give_up": 3.0, "retry_dead": 1.5}
"""Joins wait for tasks that become dead letters, and are retried."""
GROUP_WITH_HISTORY = GROUP | {"settings": {"max_attempts": None, "keep_history": True}}
"""As GROUP; and which of the tasks that have ended are dead letters is known."""
SCENARIOS = {
    one.name: one
    for one in (
        Scenario("barrier", shared=False, hosts=1, actions=BARRIERS, faults=("kill", "kill", "delay"), **GROUP),
        Scenario("barrier-error", shared=False, hosts=1, actions=BARRIERS, faults=("error", "after", "full"), **GROUP),
        Scenario(
            "barrier-power", shared=False, hosts=1, actions=BARRIERS, faults=("power", "kill"), lossy=True, **GROUP
        ),
        Scenario("barrier-nfs", actions=BARRIERS, faults=("kill", "delay", "stop", "cut", "reply"), stale=0.4, **GROUP),
        Scenario("join", shared=False, hosts=1, actions=JOINS, faults=("kill", "kill", "delay"), **GROUP),
        Scenario("join-error", shared=False, hosts=1, actions=JOINS, faults=("error", "after", "full"), **GROUP),
        Scenario("join-power", shared=False, hosts=1, actions=JOINS, faults=("power", "kill"), lossy=True, **GROUP),
        Scenario("join-nfs", actions=JOINS, faults=("kill", "delay", "stop", "cut", "reply"), stale=0.4, **GROUP),
        Scenario(
            "join-dead",
            shared=False,
            hosts=1,
            actions=JOINS_OF_DEAD,
            faults=("kill", "kill", "delay"),
            **GROUP_WITH_HISTORY,
        ),
        Scenario(
            "join-dead-error",
            shared=False,
            hosts=1,
            actions=JOINS_OF_DEAD,
            faults=("error", "after", "full"),
            **GROUP_WITH_HISTORY,
        ),
        Scenario("group", shared=False, hosts=1, actions=BEGIN, faults=("kill", "kill", "delay"), **GROUP),
        Scenario("group-nfs", actions=BEGIN, faults=("kill", "host", "delay", "stop", "cut"), stale=0.4, **GROUP),
        Scenario("group-reply", actions=BEGIN, faults=("reply", "reply", "after", "kill"), stale=0.3, **GROUP),
        Scenario("group-error", shared=False, hosts=1, actions=BEGIN, faults=("error", "after", "full"), **GROUP),
        Scenario("group-error-nfs", actions=BEGIN, faults=("error", "full", "broken", "unclean"), stale=0.3, **GROUP),
        Scenario("group-power", shared=False, hosts=1, actions=BEGIN, faults=("power", "kill"), lossy=True, **GROUP),
        Scenario("group-power-nfs", actions=BEGIN, faults=("power", "kill"), lossy=True, **GROUP),
        Scenario("group-hops", shared=False, hosts=1, actions=HOPS, tick_s=1.0, **GROUP),
        Scenario("group-delete", shared=False, hosts=1, actions=ENDS, faults=("kill", "delay", "error"), **GROUP),
        Scenario("group-delete-nfs", actions=ENDS, faults=("kill", "delay", "reply", "cut"), stale=0.5, **GROUP),
        Scenario(
            "group-delete-power", shared=False, hosts=1, actions=ENDS, faults=("power", "kill"), lossy=True, **GROUP
        ),
        Scenario("group-relay", shared=False, hosts=1, actions=RELAY, faults=("kill", "delay"), workers=4, **GROUP),
        Scenario("group-relay-nfs", actions=RELAY, stale=0.5, stale_listings=0.3, **GROUP_NFS),
        Scenario("group-wait", shared=False, hosts=1, actions=WAITS, faults=("kill", "delay"), workers=4, **GROUP),
        Scenario("group-wait-nfs", actions=WAITS, stale=0.4, stale_listings=0.3, **GROUP_NFS),
        Scenario("group-deletes", shared=False, hosts=1, actions=DELETES, faults=("kill", "delay"), workers=4, **GROUP),
        Scenario("group-deletes-nfs", actions=DELETES, stale=0.5, workers=4, **GROUP_NFS),
        Scenario("update", shared=False, hosts=1, actions=UPDATES, faults=("kill", "delay"), workers=4, **UPDATED),
        Scenario(
            "update-decided",
            shared=False,
            hosts=1,
            actions=DECIDED,
            faults=("decided", "decided", "delay"),
            workers=4,
            **UPDATED,
        ),
        Scenario("update-calm", actions=UPDATES, workers=4, **UPDATED),
        Scenario("update-stop", shared=False, hosts=1, actions=UPDATES, faults=("stop", "delay", "kill"), **UPDATED),
        Scenario("update-error", shared=False, hosts=1, actions=UPDATES, faults=("error", "after", "full"), **UPDATED),
        Scenario(
            "update-unclean",
            shared=False,
            hosts=1,
            actions=UPDATES,
            faults=("broken", "unclean", "unclosed"),
            **UPDATED,
        ),
        Scenario(
            "update-interrupt",
            shared=False,
            hosts=1,
            actions=UPDATES,
            faults=("interrupt", "interrupt", "delay"),
            **UPDATED,
        ),
        Scenario(
            "update-nfs",
            actions=UPDATES,
            faults=("kill", "delay", "cut", "reply", "stop"),
            stale=0.4,
            stale_listings=0.3,
            **UPDATED,
        ),
        Scenario("update-cut", actions=DEPENDS, faults=("cut", "cut", "host", "delay"), stale=0.4, **UPDATED),
        Scenario("update-error-nfs", actions=UPDATES, faults=("error", "after", "reply"), stale=0.4, **UPDATED),
        Scenario(
            "update-power", shared=False, hosts=1, actions=UPDATES, faults=("power", "kill"), lossy=True, **UPDATED
        ),
        Scenario("update-power-nfs", actions=UPDATES, faults=("power", "kill"), lossy=True, **UPDATED),
        Scenario("update-steps", actions=UPDATES, faults=("clock", "clock", "delay", "kill"), **UPDATED),
        Scenario("update-depends", shared=False, hosts=1, actions=DEPENDS, faults=("kill", "stop", "error"), **UPDATED),
        Scenario(
            "update-delete",
            shared=False,
            hosts=1,
            actions=UPDATES | {"delete_any": 1.0},
            faults=("kill", "delay", "error"),
            **UPDATED,
        ),
        Scenario(
            "update-purge-nfs",
            actions=UPDATES | {"purge": 1.0},
            faults=("kill", "delay", "reply"),
            stale=0.4,
            **UPDATED,
        ),
        Scenario(
            "update-purges", shared=False, hosts=1, actions=PURGED, faults=("delay", "kill"), workers=4, **UPDATED
        ),
        Scenario("update-ends", shared=False, hosts=1, actions=ENDED, faults=("delay", "kill"), workers=4, **UPDATED),
        Scenario(
            "update-restated",
            shared=False,
            hosts=1,
            actions=UPDATES,
            faults=("kill", "delay", "error", "stop"),
            limits=RESTATED,
            **UPDATED,
        ),
        Scenario("update-away", actions=UPDATES | {"gc": 3.0}, faults=("away", "nap", "cut", "kill"), **UPDATED),
        Scenario(
            "update-change",
            shared=False,
            hosts=1,
            actions=CHANGES,
            faults=("kill", "delay", "stop"),
            workers=4,
            **UPDATED,
        ),
        Scenario(
            "update-change-error",
            shared=False,
            hosts=1,
            actions=CHANGES,
            faults=("error", "after", "interrupt"),
            limits=RESTATED,
            **UPDATED,
        ),
        Scenario("update-change-nfs", actions=CHANGES, stale=0.4, stale_listings=0.3, **UPDATED_NFS),
        Scenario(
            "update-change-power",
            shared=False,
            hosts=1,
            actions=CHANGES,
            faults=("power", "kill"),
            lossy=True,
            **UPDATED,
        ),
        Scenario("update-late", shared=False, hosts=1, actions=LATE, faults=("delay", "kill"), workers=4, **UPDATED),
        Scenario("update-seen", shared=False, hosts=1, actions=SEEN, faults=("kill", "delay"), workers=4, **UPDATED),
        Scenario("update-seen-nfs", actions=SEEN, stale=0.4, workers=4, **UPDATED_NFS),
        Scenario(
            "update-keyed",
            shared=False,
            hosts=1,
            actions=KEYED,
            faults=("kill", "delay", "error", "after", "stop"),
            workers=4,
            limits=SHORTLY,
            **UPDATED,
        ),
        Scenario("update-keyed-nfs", actions=KEYED, stale=0.4, stale_listings=0.3, limits=SHORTLY, **UPDATED_NFS),
        Scenario(
            "update-keyed-power", shared=False, hosts=1, actions=KEYED, faults=("power", "kill"), lossy=True, **UPDATED
        ),
        Scenario("update-keyed-purge", actions=KEYED | {"purge": 1.5}, faults=("delay", "kill"), stale=0.4, **UPDATED),
        Scenario(
            "update-keyed-gc",
            shared=False,
            hosts=1,
            actions=KEYED | {"gc": 4.0},
            faults=("kill", "delay", "error"),
            limits=(*SHORTLY, *AT_ONCE),
            **UPDATED,
        ),
        Scenario(
            "update-keyed-epochs",
            actions=KEYED | {"gc": 4.0},
            faults=("cut", "kill", "delay", "delay", "stop"),
            faults_most=8,
            limits=(*SHORTLY, *EPOCHS),
            **UPDATED,
        ),
        Scenario("update-fork", shared=False, hosts=1, actions=UPDATES | {"change": 2.0}, faults=FORKS, **UPDATED),
        Scenario("update-moved", shared=False, hosts=1, actions=MOVED, faults=("moved", "moved", "kill"), **UPDATED),
        Scenario("update-moved-nfs", actions=MOVED, faults=("moved", "moved", "delay", "cut"), stale=0.3, **UPDATED),
        Scenario(
            "update-group-moved",
            shared=False,
            hosts=1,
            actions=GROUP_MOVED,
            faults=("moved-group", "moved-group", "kill", "delay"),
            workers=4,
            **UPDATED,
        ),
        Scenario(
            "update-group-moved-nfs",
            actions=GROUP_MOVED,
            faults=("moved-group", "moved-group", "delay", "cut"),
            stale=0.3,
            **UPDATED,
        ),
        Scenario(
            "update-gc",
            shared=False,
            hosts=1,
            actions=COLLECTED,
            faults=("kill", "delay", "error", "after"),
            workers=4,
            limits=RETIRED_AT_ONCE,
            **UPDATED,
        ),
        Scenario("update-gc-nfs", actions=COLLECTED, stale=0.3, workers=4, limits=RETIRED_AT_ONCE, **UPDATED_NFS),
        Scenario(
            "update-gc-power",
            shared=False,
            hosts=1,
            actions=COLLECTED,
            faults=("power", "power", "kill", "delay"),
            lossy=True,
            limits=RETIRED_AT_ONCE,
            **UPDATED,
        ),
    )
}
"""By name."""
