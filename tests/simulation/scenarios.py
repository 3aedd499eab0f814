# ruff: noqa: E501
"""The kinds of stories that are told."""

from __future__ import annotations

from typing import Any

from tests.simulation import commit_scenarios, group_scenarios, keyed_scenarios, limits, order
from tests.simulation.stories import AT_ONCE, Scenario

WORK = {
    "insert": 2.0, "insert_many": 1.0, "consume": 8.0, "poll": 2.0, "status": 0.5, "is_drained": 0.5, "cancel": 0.3, "gc": 0.5,
    "look": 0.3, "release_all": 0.2, "retry_dead": 0.3, "purge_dead": 0.1, "attach": 0.3, "wait": 0.5, "close": 0.2,
}  # fmt: skip
ENDS = WORK | {"purge": 0.7, "insert": 4.0}
REVOKES = {"poll": 4.0, "release_all": 3.0, "wait": 1.0, "insert": 0.5}
PURGES = {"insert": 3.0, "purge": 2.0, "consume": 0.5}

SMALL = (
    ("protocol.selection:HEADS_MAX", 1), ("storage.open_logs:OPEN_LOGS_MAX", 1), ("storage.logs:TAIL_BYTES", 128),
    ("filesystem.operations:SMALL_READ_BYTES", 64), ("filesystem.operations:READ_BYTES", 128),
)  # fmt: skip
"""Limits that no story reaches as they are."""

RESTATED = (
    ("format.checkpoints:LEAST_BYTES", 1), ("format.checkpoints:SHARE", 0), ("storage.logs:TAIL_BYTES", 128),
    ("storage.logs:FAR_BYTES", 64),
)  # fmt: skip
"""A checkpoint behind every movement, and each reader begins at one, or goes on from one."""
NOW_AND_THEN = (
    ("format.checkpoints:LEAST_BYTES", 400),
    ("format.checkpoints:SHARE", 0),
    ("storage.logs:TAIL_BYTES", 256),
    ("storage.logs:FAR_BYTES", 128),
)
"""A checkpoint behind every second or third movement."""

MOVED = (("storage.payloads:WHOLE_BYTES", 1),)
"""Each task file whose payloads are kept is renamed."""
KEPT = {"keep_payloads": None, "keep_history": True}
OPEN_SHORTLY = (("protocol.finishing:LINGER_MS", 1),)
"""Open batches end soon."""
RARELY = (("storage.listening:QUIET_S", 1), ("protocol.waiting:AGAIN_S", 2))
"""Inserters notify once in a second."""
INSERTS = WORK | {"insert": 8.0, "insert_many": 0.5}
"""Single inserts and work, side by side."""
MANY = {"batch_tasks_max": 4, "shards": 1}
FEW = WORK | {"insert": 2.0, "insert_few": 6.0, "insert_many": 0.5}
"""Small streams, each of which is one append, beside single inserts and work."""
LARGE = {"batch_tasks_max": 32, "shards": 1}
TOGETHER = WORK | {"insert": 4.0, "insert_few": 6.0, "insert_many": 0.3}
"""Most tasks come into few large batches, in which they are at different points of their lives."""
SPREAD = (("protocol.encoding:FILE_TASKS_MIN", 2), ("protocol.insertion:FILE_TASKS_MIN", 2))
"""On a network mount small streams are spread over files, and an append for their rests."""

RANKED = {
    "insert_ranked": 6.0, "insert_many_ranked": 2.0, "consume_ranked": 9.0, "poll": 2.0, "status": 0.3, "is_drained": 0.3,
    "cancel": 0.3, "gc": 0.5, "look": 0.3, "release_all": 0.2, "retry_dead": 0.5, "attach": 0.2, "wait": 0.5, "close": 0.2,
}  # fmt: skip
"""Tasks with priorities and without."""
CHANGED = RANKED | {"change_waiting": 5.0}
"""Tasks get other priorities and times while they wait."""
SMALL_BATCHES = {"batch_tasks_max": 4}
ORDER_SMALL = (*SMALL, ("protocol.leasing:OVERPROMISED_MAX", 2))

LETTERS = {
    "insert": 2.0,
    "consume": 5.0,
    "retry_dead": 3.0,
    "purge_dead": 3.0,
    "gc": 2.0,
    "status": 2.0,
    "is_drained": 1.0,
}
AGAIN = {
    "insert": 2.0,
    "insert_many": 1.0,
    "consume": 6.0,
    "retry_completed": 4.0,
    "gc": 1.0,
    "retry_dead": 0.5,
    "status": 1.0,
}
"""Completed tasks are inserted again, and again."""
RELAY = {"relay": 8.0, "feed": 2.0, "drained_both": 5.0, "consume_both": 3.0, "gc": 0.3}
AT_THEIR_END = (("protocol.finishing:LINGER_MS", -1),)
"""Batches end with their last task: none stays a while for the next insert."""
HOPS = {"hop": 6.0, "drained_unluckily": 5.0, "gc": 0.3}
WAITS = {"relay": 3.0, "feed": 2.0, "relay_waiting": 4.0, "poll_one": 4.0, "wait_both": 5.0, "gc": 0.3}
NEVER_DEAD = {"max_attempts": None}
"""A task lives until a worker completes it."""
ONCE = {"max_attempts": 1, "shards": 2}

UNCLEAN = {
    "insert": 4.0, "insert_many": 5.0, "consume": 5.0, "poll": 1.0, "gc": 1.0, "retry_dead": 0.5, "status": 0.3, "wait": 0.5,
}  # fmt: skip
"""Inserts above all: their errors say what is in the queue."""
UNCLEAN_RANKED = {"insert_ranked": 4.0, "insert_many_ranked": 5.0, "consume_ranked": 5.0, "gc": 0.5}
FORKS = ("fork", "fork", "fork", "error", "interrupt", "delay")
STREAMS = {"fork_in_insert": 5.0, "fork_in_stage": 5.0, "insert": 2.0, "consume": 4.0, "gc": 0.5}
BOTH = {"fork_in_poll": 6.0, "insert": 3.0, "insert_many": 2.0, "consume": 2.0, "gc": 0.5, "status": 0.3}
GROUPS = (("protocol.encoding:GROUP_BYTES_MAX", 1),)
"""Each batch is written before the next one is read."""
BROKEN = ("broken", "broken", "unclean")
UNCLOSED = ("unclosed", "unclosed", "kill")

LIMITED = {
    "consume": 9.0, "poll": 1.0, "insert": 1.0, "gc": 0.5, "release_all": 0.3, "status": 0.3, "cancel": 0.2,
}  # fmt: skip
"""Leases above all, of which few are allowed at a time."""
AT_MOST: dict[str, object] = {"max_leased": 2}
OF_FIELD: dict[str, object] = {"limit": {limits.FIELD: 1}}
AT_RATE: dict[str, object] = {"rate": "30/m"}
BY_FIELD: Any = (("format.slots:digests", limits.digests),)
"""Payloads of stories are text, and have no fields: a number in them stands for the value."""

SUBMITS = {"insert_later": 3.0, "requeue_job": 3.0, "cancel_job": 1.0}
"""What users do beside jobs that submit their successors."""
STOPS = SUBMITS | {"stop_campaigns": 6.0, "pause_and_resume": 1.0}
COMMANDS = ("refused", "lost", "late", "silent")
"""What may go wrong with Slurm's commands."""
DEATHS = ("kill", "kill", "kill", "requeue", "delay")

SCENARIOS = {
    one.name: one
    for one in (
        Scenario("campaign", shared=False, hosts=1, actions=SUBMITS, faults=DEATHS, faults_most=5, campaign=True, settings=NEVER_DEAD, tasks_before=8),
        Scenario("campaign-calm", shared=False, hosts=1, actions=SUBMITS, campaign=True, settings=NEVER_DEAD, tasks_before=8),
        Scenario("campaign-nfs", hosts=3, actions=SUBMITS, faults=(*DEATHS, "cut", "host"), stale=0.4, campaign=True, settings=NEVER_DEAD, tasks_before=8),
        Scenario("campaign-commands", shared=False, hosts=1, actions=SUBMITS, faults=(*COMMANDS, *COMMANDS, "kill", "requeue"), faults_most=5, campaign=True, settings=NEVER_DEAD, tasks_before=8),
        Scenario("campaign-stop", shared=False, hosts=1, actions=STOPS, faults=("kill", "delay", "requeue", "late", "deaf"), campaign=True, settings=NEVER_DEAD, tasks_before=8),
        Scenario("campaign-stop-calm", actions=STOPS, campaign=True, settings=NEVER_DEAD, tasks_before=8),
        Scenario("campaign-stop-late", shared=False, hosts=1, actions={"stop_campaigns": 1.0}, faults=("delay",), campaign=True, settings=NEVER_DEAD, tasks_before=8),
        Scenario("campaign-paused", shared=False, hosts=1, actions={"pause_and_resume": 3.0, "requeue_job": 1.0}, campaign=True, settings=NEVER_DEAD, tasks_before=8),
        Scenario("campaign-errors", actions=STOPS, faults=("error", "after", "kill", "requeue"), campaign=True, settings=NEVER_DEAD, tasks_before=8),
        Scenario("campaign-too-long", shared=False, hosts=1, actions={"requeue_job": 1.0, "cancel_job": 1.0}, faults=("kill", "requeue", "refused"), campaign=True, too_long=True, settings=NEVER_DEAD, tasks_before=8),
        Scenario("calm", shared=False, hosts=1, actions=WORK, torn_listings=0.2),
        Scenario("calm-nfs", actions=WORK, torn_listings=0.2),
        Scenario("crash", shared=False, hosts=1, actions=WORK, faults=("kill", "kill", "delay")),
        Scenario("crash-nfs", actions=WORK, faults=("kill", "kill", "host", "delay", "stop")),
        Scenario("stop", shared=False, hosts=1, actions=WORK, faults=("stop", "delay", "kill")),
        Scenario("fork", shared=False, hosts=1, actions=WORK, faults=FORKS),
        Scenario("fork-stream", shared=False, hosts=1, actions=STREAMS, faults=("kill", "delay"), limits=GROUPS),
        Scenario("fork-stream-nfs", actions=STREAMS, faults=("kill", "delay"), stale=0.3, limits=GROUPS),
        Scenario("fork-nfs", actions=WORK, faults=FORKS, stale=0.3),
        Scenario("fork-both", shared=False, hosts=1, actions=BOTH, faults=("kill", "delay"), tasks_before=6),
        Scenario("fork-both-nfs", actions=BOTH, faults=("kill", "delay", "cut"), stale=0.3, tasks_before=6),
        Scenario("fork-open", shared=False, hosts=1, actions=INSERTS, faults=FORKS, singly=True, settings=MANY),
        Scenario("stale", actions=WORK, faults=("delay", "kill"), stale=0.5, torn_listings=0.3, stale_listings=0.3),
        Scenario("reply", actions=WORK, faults=("reply", "reply", "after", "kill"), stale=0.3),
        Scenario("cut", actions=WORK, faults=("cut", "cut", "kill", "delay")),
        Scenario("error", actions=WORK, faults=("error", "after"), stale=0.2),
        Scenario("error-local", shared=False, hosts=1, actions=WORK, faults=("error", "after")),
        Scenario("unclean", shared=False, hosts=1, actions=UNCLEAN, faults=BROKEN),
        Scenario("unclean-nfs", actions=UNCLEAN, faults=BROKEN, stale=0.3),
        Scenario("unclean-open", shared=False, hosts=1, actions=UNCLEAN, faults=BROKEN, singly=True, settings=MANY),
        Scenario("unclean-order-nfs", actions=UNCLEAN_RANKED, faults=BROKEN, singly=True, settings=SMALL_BATCHES),
        Scenario("unclosed", shared=False, hosts=1, actions=UNCLEAN, faults=UNCLOSED, faults_most=6),
        Scenario("unclosed-nfs", actions=UNCLEAN, faults=UNCLOSED, faults_most=6, stale=0.3),
        Scenario("unclosed-open-nfs", actions=UNCLEAN, faults=UNCLOSED, faults_most=6, singly=True, settings=MANY),
        Scenario("full", shared=False, hosts=1, actions=WORK, faults=("full", "full", "kill")),
        Scenario("full-nfs", actions=WORK, faults=("full", "full", "kill")),
        Scenario("power", shared=False, hosts=1, actions=WORK, faults=("power", "kill"), lossy=True),
        Scenario("power-nfs", actions=WORK, faults=("power", "kill"), lossy=True),
        Scenario("moved", shared=False, hosts=1, actions=WORK, faults=("kill", "kill", "delay", "error", "after"), limits=MOVED, settings=KEPT),
        Scenario("moved-nfs", actions=WORK, faults=("kill", "cut", "cut", "reply", "delay", "stop"), stale=0.3, limits=MOVED, settings=KEPT),
        Scenario("moved-full", shared=False, hosts=1, actions=WORK, faults=("full", "full", "kill"), limits=MOVED, settings=KEPT),
        Scenario("moved-power", shared=False, hosts=1, actions=WORK, faults=("power", "kill"), lossy=True, limits=MOVED, settings=KEPT),
        Scenario("moved-purge", actions=PURGES, faults=("delay", "kill"), stale=0.5, limits=MOVED, settings=KEPT),
        Scenario("copied", actions=WORK, faults=("kill", "cut", "reply", "delay", "error"), settings=KEPT),
        Scenario("copied-open", shared=False, hosts=1, actions=INSERTS, faults=("kill", "delay", "error", "after"), singly=True, settings={**MANY, **KEPT}),
        Scenario("skew", actions=WORK, faults=("delay", "kill"), skew_s=300.0),
        Scenario("skew-measured", actions=WORK, faults=("delay", "kill"), skew_s=300.0, compare_clocks=True),
        Scenario("steps", actions=WORK, faults=("clock", "clock", "delay", "kill")),
        Scenario("steps-local", shared=False, hosts=1, actions=WORK, faults=("clock", "clock", "delay", "kill")),
        Scenario("steps-measured", actions=WORK, faults=("clock", "clock", "delay", "kill"), compare_clocks=True),
        Scenario("steps-large", actions=TOGETHER, faults=("clock", "clock", "delay", "kill"), tasks_before=0, singly=True, settings=LARGE),
        Scenario("steps-large-local", shared=False, hosts=1, actions=TOGETHER, faults=("clock", "clock", "delay", "kill"), tasks_before=0, singly=True, settings=LARGE),
        Scenario("power-purge", shared=False, hosts=1, actions=PURGES, faults=("power", "kill"), lossy=True),
        Scenario("beside", actions={"consume": 6.0, "status": 4.0, "insert_many": 1.0}, workers=4, tasks_before=20),
        Scenario("stale-purge", actions=PURGES, stale=0.9),
        Scenario("first", actions=WORK | {"status": 4.0, "is_drained": 3.0}, stale=0.95, tasks_before=0),
        Scenario("home", actions={"insert": 3.0, "consume": 2.0, "is_drained": 6.0}, stale=0.2, stale_listings=0.5),
        Scenario("revoke", actions=REVOKES, stale=0.9, stale_listings=0.5),
        Scenario(
            "attach", actions={"insert": 3.0, "consume": 4.0, "look": 9.0, "attach": 9.0}, stale=0.95, hosts=3, workers=5,
            tasks_before=2,
        ),
        Scenario("limited", shared=False, hosts=1, actions=LIMITED, faults=("kill", "kill", "delay", "error", "after"), settings=AT_MOST, tasks_before=8),
        Scenario("limited-calm", shared=False, hosts=1, actions=LIMITED, settings=AT_MOST, tasks_before=8, workers=4),
        Scenario("limited-nfs", actions=LIMITED, faults=("kill", "cut", "cut", "reply", "delay", "stop", "host"), stale=0.4, stale_listings=0.3, settings=AT_MOST, tasks_before=8),
        Scenario("limited-full", shared=False, hosts=1, actions=LIMITED, faults=("full", "full", "kill"), settings=AT_MOST, tasks_before=8),
        Scenario("limited-open", shared=False, hosts=1, actions=LIMITED | {"insert": 6.0}, faults=("kill", "delay", "interrupt", "error"), singly=True, settings={**MANY, **AT_MOST}),
        Scenario("limited-purge", actions=LIMITED | PURGES | {"consume": 5.0}, faults=("kill", "delay"), stale=0.4, settings=AT_MOST, tasks_before=8),
        Scenario("limited-skew", actions=LIMITED, faults=("kill", "delay"), skew_s=20.0, settings=AT_MOST, tasks_before=8),
        Scenario("limited-steps", actions=LIMITED, faults=("clock", "clock", "clock", "delay", "kill"), settings=AT_MOST, tasks_before=8),
        Scenario("limited-power", shared=False, hosts=1, actions=LIMITED, faults=("power", "kill"), lossy=True, settings=AT_MOST, tasks_before=8),
        Scenario("limited-strict", shared=False, hosts=1, actions=LIMITED, faults=("power", "power", "kill"), lossy=True, settings=AT_MOST | {"durability": "strict"}, tasks_before=8),
        Scenario("limited-power-nfs", actions=LIMITED, faults=("power", "kill"), lossy=True, settings=AT_MOST, tasks_before=8),
        Scenario("limited-set", shared=False, hosts=1, actions=LIMITED | {"set_limit": 3.0}, faults=("kill", "kill", "error"), tasks_before=8),
        Scenario("grouped", shared=False, hosts=1, actions=LIMITED, faults=("kill", "kill", "delay", "error", "after"), of_group=True, settings=AT_MOST, tasks_before=8),
        Scenario("grouped-calm", shared=False, hosts=1, actions=LIMITED, of_group=True, settings=AT_MOST, tasks_before=8, workers=4),
        Scenario("grouped-nfs", actions=LIMITED, faults=("kill", "cut", "cut", "reply", "delay", "stop", "host"), stale=0.4, stale_listings=0.3, of_group=True, settings=AT_MOST, tasks_before=8),
        Scenario("grouped-purge", actions=LIMITED | PURGES | {"consume": 5.0}, faults=("kill", "delay"), stale=0.4, of_group=True, settings=AT_MOST, tasks_before=8),
        Scenario("grouped-power", shared=False, hosts=1, actions=LIMITED, faults=("power", "kill"), lossy=True, of_group=True, settings=AT_MOST, tasks_before=8),
        Scenario("grouped-fields", shared=False, hosts=1, actions=LIMITED, faults=("kill", "delay", "error"), limits=BY_FIELD, of_group=True, settings=AT_RATE | AT_MOST | OF_FIELD, tasks_before=8),
        Scenario("grouped-two", shared=False, hosts=1, actions=RELAY, faults=("kill", "kill", "delay"), two_queues=True, of_group=True, settings=NEVER_DEAD | AT_MOST),
        Scenario("grouped-two-nfs", actions=RELAY, faults=("kill", "delay", "cut", "reply"), stale=0.4, stale_listings=0.3, two_queues=True, of_group=True, settings=NEVER_DEAD | AT_MOST),
        Scenario("letters", actions={"insert": 2.0, "consume": 5.0, "retry_dead": 5.0, "status": 5.0}, workers=4),
        Scenario("rated", shared=False, hosts=1, actions=LIMITED, faults=("kill", "kill", "delay", "error", "after"), settings=AT_RATE, tasks_before=8),
        Scenario("rated-calm", shared=False, hosts=1, actions=LIMITED, settings=AT_RATE, tasks_before=8, workers=4),
        Scenario("rated-nfs", actions=LIMITED, faults=("kill", "cut", "cut", "reply", "delay", "stop", "host"), stale=0.4, stale_listings=0.3, settings=AT_RATE, tasks_before=8),
        Scenario("rated-held", shared=False, hosts=1, actions=LIMITED, faults=("kill", "delay", "error"), limits=BY_FIELD, settings=AT_RATE | AT_MOST | OF_FIELD, tasks_before=8),
        Scenario("rated-power", shared=False, hosts=1, actions=LIMITED, faults=("power", "kill"), lossy=True, settings=AT_RATE, tasks_before=8),
        Scenario("fields", shared=False, hosts=1, actions=LIMITED, faults=("kill", "kill", "delay", "error", "after"), limits=BY_FIELD, settings=OF_FIELD, tasks_before=8),
        Scenario("fields-calm", shared=False, hosts=1, actions=LIMITED, limits=BY_FIELD, settings=OF_FIELD, tasks_before=8, workers=4),
        Scenario("fields-nfs", actions=LIMITED, faults=("kill", "cut", "cut", "reply", "delay", "stop", "host"), stale=0.4, stale_listings=0.3, limits=BY_FIELD, settings=OF_FIELD, tasks_before=8),
        Scenario("fields-open", shared=False, hosts=1, actions=LIMITED | {"insert": 6.0}, faults=("kill", "delay", "interrupt", "error"), limits=BY_FIELD, singly=True, settings={**MANY, **OF_FIELD}),
        Scenario("fields-skew", actions=LIMITED, faults=("kill", "delay", "clock"), skew_s=20.0, limits=BY_FIELD, settings=OF_FIELD | AT_MOST, tasks_before=8),
        Scenario("fields-power", shared=False, hosts=1, actions=LIMITED, faults=("power", "kill"), lossy=True, limits=BY_FIELD, settings=OF_FIELD, tasks_before=8),
        Scenario("fields-order", shared=False, hosts=1, actions=RANKED | {"consume": 9.0}, faults=("kill", "delay", "error"), limits=BY_FIELD, settings=OF_FIELD, tasks_before=8),
        Scenario("fields-set", shared=False, hosts=1, actions=LIMITED | {"set_limit_of_field": 3.0, "set_limit": 1.0}, faults=("kill", "kill", "error"), limits=BY_FIELD, tasks_before=8),
        Scenario("fields-added", shared=False, hosts=1, actions=LIMITED | {"set_limit_of_field": 2.0}, faults=("kill", "kill", "error"), limits=BY_FIELD, settings={"max_leased": 4}, tasks_before=8, workers=4),
        Scenario("again", shared=False, hosts=1, actions=AGAIN, faults=("kill", "delay", "error", "after"), limits=AT_ONCE, settings=KEPT),
        Scenario("again-nfs", actions=AGAIN, faults=("kill", "delay", "cut", "reply", "stop"), stale=0.5, stale_listings=0.3, settings=KEPT),
        Scenario("given-back", shared=False, hosts=1, actions=LETTERS, faults=("kill", "delay", "error", "after"), limits=AT_ONCE, settings=ONCE, workers=4),
        Scenario("given-back-nfs", actions=LETTERS, faults=("kill", "delay", "cut", "reply", "stop"), stale=0.5, stale_listings=0.3, limits=AT_ONCE, settings=ONCE, workers=4),
        Scenario("given-back-full", shared=False, hosts=1, actions=LETTERS, faults=("full", "full", "kill"), limits=AT_ONCE, settings=ONCE),
        Scenario(
            "given-back-power", shared=False, hosts=1, actions=LETTERS, faults=("power", "kill"), lossy=True, both_names=True, limits=AT_ONCE, settings=ONCE,
        ),
        Scenario("given-back-purge", actions=LETTERS | {"purge": 0.7, "insert": 4.0}, faults=("delay", "kill"), stale=0.4, limits=AT_ONCE, settings=ONCE),
        Scenario("restated", shared=False, hosts=1, actions=WORK, faults=("kill", "delay", "error", "after"), limits=RESTATED),
        Scenario("restated-nfs", actions=WORK, faults=("kill", "delay", "cut", "cut", "reply", "stop"), stale=0.4, stale_listings=0.3, limits=RESTATED),
        Scenario("restated-cut", actions=WORK, faults=("cut", "cut", "stop", "delay"), stale=0.4, tasks_before=8, limits=NOW_AND_THEN),
        Scenario("restated-full", shared=False, hosts=1, actions=WORK, faults=("full", "full", "kill"), limits=RESTATED),
        Scenario("restated-power", shared=False, hosts=1, actions=WORK, faults=("power", "kill"), lossy=True, limits=NOW_AND_THEN),
        Scenario("restated-steps", actions=WORK, faults=("clock", "clock", "delay", "kill"), limits=RESTATED),
        Scenario("open", shared=False, hosts=1, actions=INSERTS, faults=("kill", "delay", "error", "after"), singly=True, settings=MANY),
        Scenario("open-calm", actions=INSERTS, singly=True, settings=MANY, torn_listings=0.2, workers=4),
        Scenario("open-idle", actions={"trickle": 6.0, "idle": 6.0}, limits=RARELY, singly=True, settings=MANY, workers=4, tasks_before=0),
        Scenario("open-ending", shared=False, hosts=1, actions=INSERTS, faults=("kill", "delay", "stop"), limits=OPEN_SHORTLY, singly=True, settings=MANY),
        Scenario("open-nfs", actions=INSERTS, faults=("kill", "delay", "cut", "reply", "stop"), stale=0.4, stale_listings=0.3, singly=True, settings=MANY),
        Scenario("open-ending-nfs", actions=INSERTS, faults=("kill", "delay", "cut", "cut", "host"), stale=0.4, stale_listings=0.3, limits=OPEN_SHORTLY, singly=True, settings=MANY),
        Scenario("open-full", shared=False, hosts=1, actions=INSERTS, faults=("full", "full", "kill"), singly=True, settings=MANY),
        Scenario("open-power", shared=False, hosts=1, actions=INSERTS, faults=("power", "kill"), lossy=True, singly=True, settings=MANY),
        Scenario("open-power-ending", shared=False, hosts=1, actions=INSERTS, faults=("power", "kill"), lossy=True, both_names=True, limits=OPEN_SHORTLY, singly=True, settings=MANY),
        Scenario("open-purge", actions=PURGES | {"insert": 8.0, "consume": 3.0, "status": 1.0}, faults=("delay", "kill"), stale=0.4, singly=True, settings=MANY),
        Scenario("open-restated", actions=INSERTS, faults=("kill", "delay", "cut", "error"), stale=0.3, limits=RESTATED, singly=True, settings=MANY),
        Scenario("open-steps", actions=INSERTS, faults=("clock", "clock", "delay", "kill"), limits=OPEN_SHORTLY, singly=True, settings=MANY),
        Scenario("open-interrupt", shared=False, hosts=1, actions=INSERTS, faults=("interrupt", "interrupt", "delay"), singly=True, settings=MANY),
        Scenario("open-small", shared=False, hosts=1, actions=INSERTS, faults=("kill", "error"), limits=SMALL, singly=True, settings=MANY),
        Scenario("few", shared=False, hosts=1, actions=FEW, faults=("kill", "delay", "error", "after"), singly=True, settings=MANY),
        Scenario("few-nfs", actions=FEW, faults=("kill", "delay", "cut", "reply", "stop", "after"), stale=0.4, stale_listings=0.3, singly=True, settings=MANY),
        Scenario("few-files-nfs", actions=FEW, faults=("kill", "delay", "cut", "reply", "after", "full"), limits=SPREAD, stale=0.4, stale_listings=0.3, singly=True, settings=MANY),
        Scenario("few-full", shared=False, hosts=1, actions=FEW, faults=("full", "full", "kill"), singly=True, settings=MANY),
        Scenario("few-full-nfs", actions=FEW, faults=("full", "full", "cut"), singly=True, settings=MANY),
        Scenario("few-power", shared=False, hosts=1, actions=FEW, faults=("power", "kill"), lossy=True, singly=True, settings=MANY),
        Scenario("few-purge", actions=PURGES | {"insert_few": 8.0, "consume": 3.0}, faults=("delay", "kill", "full"), stale=0.4, singly=True, settings=MANY),
        Scenario("few-order", shared=False, hosts=1, actions=RANKED | {"insert_few_ranked": 8.0}, faults=("kill", "error", "after"), limits=RESTATED, singly=True, settings=MANY),
        Scenario("few-unclean", shared=False, hosts=1, actions=UNCLEAN | {"insert_few": 6.0}, faults=BROKEN, singly=True, settings=MANY),
        Scenario("order", shared=False, hosts=1, actions=RANKED, faults=("kill", "delay", "error", "after"), singly=True, settings=SMALL_BATCHES),
        Scenario("order-calm", actions=RANKED, singly=True, settings=MANY, torn_listings=0.2, workers=4),
        Scenario("order-nfs", actions=RANKED, faults=("kill", "delay", "cut", "reply", "stop"), stale=0.4, stale_listings=0.3, singly=True, settings=SMALL_BATCHES),
        Scenario("order-power", shared=False, hosts=1, actions=RANKED, faults=("power", "kill"), lossy=True, singly=True, settings=SMALL_BATCHES),
        Scenario("order-restated", actions=RANKED, faults=("kill", "delay", "cut", "error"), stale=0.3, limits=RESTATED, singly=True, settings=SMALL_BATCHES),
        Scenario("order-purge", actions=PURGES | {"insert_ranked": 6.0, "consume_ranked": 3.0}, faults=("delay", "kill"), stale=0.4, singly=True, settings=SMALL_BATCHES),
        Scenario("order-full", shared=False, hosts=1, actions=RANKED, faults=("full", "full", "kill"), singly=True, settings=SMALL_BATCHES),
        Scenario("order-small", shared=False, hosts=1, actions=RANKED, faults=("kill", "error"), limits=ORDER_SMALL, singly=True, settings=SMALL_BATCHES),
        Scenario("order-later", shared=False, hosts=1, actions=RANKED, faults=("kill", "delay"), limits=(("protocol.leasing:OVERPROMISED_MAX", 1),), singly=True, settings=SMALL_BATCHES),
        Scenario("order-spent", shared=False, hosts=1, actions={"insert_many_ranked": 3.0, "insert_ranked": 1.0, "consume_ranked": 4.0}, faults=("kill",), settings=MANY | {"max_attempts": 1}),
        Scenario("order-files", shared=False, hosts=1, actions=RANKED, faults=("kill", "delay"), settings=SMALL_BATCHES),
        Scenario("changed", shared=False, hosts=1, actions=CHANGED, faults=("kill", "kill", "delay", "error", "after"), singly=True, settings=SMALL_BATCHES),
        Scenario("changed-files", shared=False, hosts=1, actions=CHANGED, faults=("kill", "kill", "delay", "error"), settings=SMALL_BATCHES),
        Scenario("changed-nfs", actions=CHANGED, faults=("kill", "delay", "cut", "reply", "stop"), stale=0.4, stale_listings=0.3, singly=True, settings=SMALL_BATCHES),
        Scenario("changed-power", shared=False, hosts=1, actions=CHANGED, faults=("power", "kill"), lossy=True, singly=True, settings=SMALL_BATCHES),
        Scenario("changed-restated", actions=CHANGED, faults=("kill", "delay", "cut", "error"), stale=0.3, limits=RESTATED, singly=True, settings=SMALL_BATCHES),
        Scenario("order-files-restated", shared=False, hosts=1, actions=RANKED, faults=("kill", "delay"), limits=RESTATED, settings=MANY, workers=4),
        Scenario("relay", shared=False, hosts=1, actions=RELAY, faults=("kill", "delay"), two_queues=True, settings=NEVER_DEAD),
        Scenario("relay-calm", shared=False, hosts=1, actions=RELAY, two_queues=True, settings=NEVER_DEAD, workers=4),
        Scenario("relay-nfs", actions=RELAY, faults=("kill", "delay", "cut", "reply"), stale=0.4, stale_listings=0.3, two_queues=True, settings=NEVER_DEAD),
        Scenario("relay-hops", shared=False, hosts=1, actions=HOPS, two_queues=True, limits=AT_THEIR_END, settings=NEVER_DEAD | {"shards": 1}, tasks_before=2),
        Scenario("relay-hops-nfs", actions=HOPS, faults=("kill", "delay", "cut", "reply"), stale=0.4, two_queues=True, limits=AT_THEIR_END, settings=NEVER_DEAD | {"shards": 1}, tasks_before=2),
        Scenario("relay-order", shared=False, hosts=1, actions=RELAY, faults=("kill", "error"), two_queues=True, priorities=order.PRIORITIES, singly=True, settings=NEVER_DEAD | MANY),
        Scenario("relay-wait", shared=False, hosts=1, actions=WAITS, faults=("kill", "delay"), two_queues=True, settings=NEVER_DEAD, workers=4),
        Scenario("relay-wait-nfs", actions=WAITS, faults=("kill", "delay", "cut", "reply"), stale=0.4, stale_listings=0.3, two_queues=True, settings=NEVER_DEAD),
        Scenario("create", actions=WORK | {"delete": 0.7, "purge": 0.3, "create": 2.0, "insert": 4.0}, faults=("delay", "kill", "reply")),
        Scenario("purge-insert", actions=PURGES, workers=2),
        Scenario("nap", actions=WORK | {"insert": 6.0, "gc": 6.0}, faults=("nap", "delay")),
        Scenario("purge", actions=ENDS, faults=("delay", "kill", "reply"), stale=0.4),
        Scenario("delete", actions=WORK | {"delete": 0.5, "insert": 4.0}, faults=("delay", "kill", "reply"), stale=0.4),
        Scenario(
            "storm", actions=ENDS, hosts=3, stale=0.3, torn_listings=0.2, skew_s=2.0, faults_most=6, compare_clocks=True,
            faults=("kill", "host", "reply", "after", "error", "full", "delay", "stop", "cut"),
        ),
        Scenario(
            "storm-local", shared=False, hosts=1, actions=ENDS, torn_listings=0.2, faults_most=6, lossy=True,
            faults=("kill", "error", "after", "full", "delay", "stop", "power"),
        ),
        Scenario("away", actions=WORK | {"insert": 6.0, "gc": 4.0}, faults=("away", "away", "cut", "kill")),
        Scenario("clean", shared=False, hosts=1, actions=WORK | {"insert_many": 4.0}, faults=("clean", "clean", "kill")),
        Scenario("clean-nfs", actions=WORK | {"insert_many": 4.0}, faults=("clean", "clean", "kill"), stale=0.4),
        Scenario(
            "power-both-names", shared=False, hosts=1, actions=WORK, faults=("power", "kill"), lossy=True, both_names=True,
        ),
        Scenario("interrupt", shared=False, hosts=1, actions=WORK, faults=("interrupt", "interrupt", "delay")),
        Scenario("interrupt-nfs", actions=WORK, faults=("interrupt", "interrupt", "cut"), stale=0.3),
        Scenario("small", shared=False, hosts=1, actions=WORK, faults=("kill",), torn_listings=0.2, tasks_before=8, limits=SMALL),
        Scenario("small-nfs", actions=WORK, faults=("kill", "delay"), stale=0.3, torn_listings=0.2, tasks_before=8, limits=SMALL),
    )
} | commit_scenarios.SCENARIOS | keyed_scenarios.SCENARIOS | group_scenarios.SCENARIOS  # fmt: skip
"""By name."""
