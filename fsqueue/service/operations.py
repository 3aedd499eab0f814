"""The verbs of a queue as operations over HTTP: what each takes, and what it does.

Those that need no more than a queue and the fields are here. `asking` makes routes of them, and `streaming` has those
that wait or whose bodies and answers are streams. Each function blocks, and is called in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import fsqueue
from fsqueue.service import answers, fields
from fsqueue.service.answers import plain
from fsqueue.service.faults import BadField
from fsqueue.service.fields import SECONDS_MAX, Field

Given = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path below /v1. `path` may have {queue} and {task}.

    `act`: what it does, with the queue that it is about; None: a module of its own has it. `lines`: it takes or gives
    JSON Lines, or events. `status`: of the answer if all is well.
    """

    method: str
    path: str
    name: str
    about: str
    query: tuple[Field, ...] = ()
    body: tuple[Field, ...] = ()
    act: Callable[[fsqueue.Queue, Given], Any] | None = None
    each: Callable[[fsqueue.Queue, Given], Iterator[Any]] | None = None
    status: int = 200
    takes: str = "application/json"
    gives: str = "application/json"


QUEUE = "/queues/{queue}"
ONE_TASK = f"{QUEUE}/tasks/{{task}}"
EXACT = Field("exact", "flag", "Read the active logs; otherwise names alone (an estimate).", default=True)
TOKEN = Field("token", "text", "The token of the lease.", needed=True, least=1, most=200)
TOKENS = Field("tokens", "texts", "Tokens of leases.", needed=True, least=1)
LEASE_S = Field("lease_s", "number", "How long the lease lasts: the queue's setting if left out.", least=0.001,
                most=SECONDS_MAX, nullable=True)  # fmt: skip
DELAY_S = Field("delay_s", "number", "Seconds before the task is available again.", default=0, most=SECONDS_MAX)
TIMEOUT_S = Field("timeout_s", "number", "How long to wait. Longer waits are cut to what the gateway allows.",
                  default=0, most=SECONDS_MAX)  # fmt: skip
IDS = Field("ids", "texts", "Ids of tasks.", least=1)
ALL = Field("all", "flag", "All of them, instead of `ids`.", default=False)
CONFIRM = Field("confirm", "text", "The queue's name once more: this cannot be undone.", needed=True, most=1024)
MATCH = Field("match", "pattern", "Only queues whose whole names match this regular expression.", most=1024)
HOLDER = Field(
    "holder",
    "object",
    "The worker that gets the tokens, as histories show it: `host`, and if known `name`, `pid`, `slurm_job`.",
    nullable=True,
)
LEASE = (
    Field("n", "whole", "How many tasks at most.", default=1, least=1, most=1_000),
    LEASE_S,
    Field("wait_s", "number", "How long to wait for a task. Longer waits are cut to what the gateway allows.",
          default=0, most=SECONDS_MAX),
    Field("up_to", "priority", "Only tasks with this priority or a smaller one.", nullable=True),
    HOLDER,
)  # fmt: skip


def queue_facts(queue: fsqueue.Queue, given: Given) -> Any:
    """Return what a queue is: settings, whether it is there, whether it is paused, whether it may be a copy."""
    exists = queue.exists() if isinstance(queue, fsqueue.GroupQueue) else True
    return {
        "exists": exists,
        "generation": queue.generation,
        "has_priorities": queue.has_priorities,
        "paused": plain(queue.paused),
        "copy": queue.is_copy(),
        "settings": asdict(queue.settings),
    }


def complete(queue: fsqueue.Queue, given: Given) -> Any:
    """Report leased tasks as done."""
    tasks = [queue.attach(one["token"], verify=False) for one in given["tasks"]]
    results = {task.id: one["result"] for task, one in zip(tasks, given["tasks"], strict=True)}
    queue.complete(tasks, {key: value for key, value in results.items() if value is not None})
    return {"completed": len(tasks)}


def renew(queue: fsqueue.Queue, given: Given) -> Any:
    """Extend leases."""
    tasks = [queue.attach(token, verify=False) for token in given["tokens"]]
    queue.renew(tasks, given["lease_s"])
    return {"renewed": len(tasks), "lease_until": [task.lease_until for task in tasks]}


def release(queue: fsqueue.Queue, given: Given) -> Any:
    """Put leased tasks back."""
    queue.release([queue.attach(token, verify=False) for token in given["tokens"]], given["delay_s"])
    return {"released": len(given["tokens"])}


def fail(queue: fsqueue.Queue, given: Given) -> Any:
    """Record a failed attempt."""
    queue.attach(given["token"], verify=False).fail(given["error"], given["delay_s"])
    return {"failed": 1}


def bury(queue: fsqueue.Queue, given: Given) -> Any:
    """Make a leased task a dead letter."""
    queue.attach(given["token"], verify=False).bury(given["reason"])
    return {"buried": 1}


def ids_of(given: Given) -> dict[str, Any]:
    """Return `ids` as an argument, or none for all; BadField for neither and for both."""
    if (given["ids"] is not None) == given["all"]:
        raise BadField("ids", "or all=true is needed, one of the two. Nothing was done.")
    return {} if given["all"] else {"ids": given["ids"]}


def change_settings(queue: fsqueue.Queue, given: Given) -> Any:
    """Change settings of a queue in use."""
    return asdict(queue.change_settings(**given["settings"]))


def release_all(queue: fsqueue.Queue, given: Given) -> Any:
    """End leases of other workers."""
    named = {name: given[name] for name in ("worker", "host", "slurm_job", "job") if given[name] is not None}
    if bool(named) == given["all"]:
        raise BadField("worker", "or host, slurm_job, job, or all=true is needed. No lease was ended.")
    return {"released": queue.release_all(**named)}


def confirmed(queue: fsqueue.Queue, given: Given, name: str) -> None:
    """Raise BadField unless the name was given once more."""
    if given["confirm"] != name:
        raise BadField("confirm", f"must be the name of the queue, {name!r}. Nothing was done.")


def _purged(queue: fsqueue.Queue, given: Given) -> Any:
    confirmed(queue, given, given["queue"])
    queue.purge()
    return {"purged": True}


def _deleted(queue: fsqueue.Queue, given: Given) -> Any:
    confirmed(queue, given, given["queue"])
    queue.delete()
    return {"deleted": True}


def _listed(queue: fsqueue.Queue, given: Given) -> Iterator[Any]:
    return queue.tasks(given["state"])


QUEUE_OPERATIONS: Sequence[Operation] = (
    Operation("GET", QUEUE, "queue", "Tell what a queue is: its settings, whether it is paused or may be a copy.",
              act=queue_facts),
    Operation("DELETE", QUEUE, "delete", "Delete a queue at once, whatever its size.", query=(CONFIRM,), act=_deleted),
    Operation("POST", f"{QUEUE}/purge", "purge", "Drop all tasks of a queue; its settings stay.", body=(CONFIRM,),
              act=_purged),
    Operation("PATCH", f"{QUEUE}/settings", "change_settings",
              "Change settings of a queue in use: max_attempts, lease_s, backoff_s, keep_payloads.",
              body=(Field("settings", "object", "New values, by name.", needed=True),), act=change_settings),
    Operation("POST", f"{QUEUE}/pause", "pause", "Have no task leased until resume.",
              body=(Field("reason", "text", "Why, for people.", most=1_000, nullable=True),),
              act=lambda queue, given: {"changed": queue.pause(given["reason"])}),
    Operation("POST", f"{QUEUE}/resume", "resume", "Have tasks leased again.",
              act=lambda queue, given: {"changed": queue.resume()}),
    Operation("POST", f"{QUEUE}/attach", "attach", "The task that a lease holds, by the token of the lease.",
              body=(TOKEN,), act=lambda queue, given: answers.attached(queue.attach(given["token"]))),
    Operation("POST", f"{QUEUE}/renew", "renew", "Extend leases.", body=(TOKENS, LEASE_S), act=renew),
    Operation("POST", f"{QUEUE}/release", "release", "Put leased tasks back, without counting the attempt.",
              body=(TOKENS, DELAY_S), act=release),
    Operation("POST", f"{QUEUE}/fail", "fail", "Record a failed attempt: the task comes back later, or is given up.",
              body=(TOKEN, Field("error", "text", "Why it failed.", needed=True, most=1 << 20),
                    Field("delay_s", "number", "Seconds before it comes back: growing pauses if left out.",
                          most=SECONDS_MAX, nullable=True)),
              act=fail),
    Operation("POST", f"{QUEUE}/bury", "bury", "Make a leased task a dead letter at once.",
              body=(TOKEN, Field("reason", "text", "Why it cannot succeed.", needed=True, most=1 << 20)), act=bury),
    Operation("POST", f"{QUEUE}/cancel", "cancel", "Cancel tasks that no worker holds.",
              body=(Field("ids", "texts", "Ids of tasks.", needed=True, least=1),),
              act=lambda queue, given: {"cancelled": queue.cancel(given["ids"])}),
    Operation("POST", f"{QUEUE}/release-all", "release_all", "End leases of other workers: all, or those named.",
              body=(Field("worker", "text", "Of this worker's name.", least=1, nullable=True),
                    Field("host", "text", "Of this host.", least=1, nullable=True),
                    Field("slurm_job", "text", "Of this job of Slurm.", least=1, nullable=True),
                    Field("job", "text", "Of this job of any scheduler.", least=1, nullable=True), ALL),
              act=release_all),
    Operation("GET", f"{QUEUE}/status", "status", "Count the tasks by state.", query=(EXACT,),
              act=lambda queue, given: queue.status(given["exact"]).as_dict()),
    Operation("GET", f"{QUEUE}/drained", "is_drained", "Tell whether nothing is waiting, delayed or leased.",
              act=lambda queue, given: {"drained": queue.is_drained()}),
    Operation("GET", f"{QUEUE}/activity", "activity", "Rates, durations, the oldest leases, failures by reason.",
              query=(Field("window_s", "number", "The period up to now, in seconds.", least=1, most=SECONDS_MAX,
                           nullable=True),),
              act=lambda queue, given: plain(queue.activity(given["window_s"]))),
    Operation("GET", f"{QUEUE}/timeline", "timeline", "What was inserted, leased, completed and given up, over time.",
              query=(Field("window_s", "number", "The period up to now, in seconds.", default=3600, least=1,
                           most=SECONDS_MAX),
                     Field("pieces", "whole", "Number of pieces of the period.", default=60, least=1, most=1_000)),
              act=lambda queue, given: plain(queue.timeline(given["window_s"], given["pieces"]))),
    Operation("GET", f"{QUEUE}/workers", "workers", "The workers that hold tasks, and whether they live.",
              act=lambda queue, given: {"workers": plain(queue.workers(asks_slurm=False))}),
    Operation("GET", f"{QUEUE}/nodes", "failing_nodes",
              "Nodes on which the latest attempts failed, one after the other.",
              act=lambda queue, given: {"nodes": plain(queue.failing_nodes())}),
    Operation("POST", f"{QUEUE}/nodes/admit", "admit_node", "Forget a node's failures: it takes tasks again.",
              body=(Field("node", "text", "The node's name.", needed=True, least=1, most=1024),),
              act=lambda queue, given: {"admitted": queue.admit_node(given["node"])}),
    Operation("GET", f"{QUEUE}/usage", "usage", "Files, directories and bytes, by what they are for.",
              act=lambda queue, given: plain(queue.usage())),
    Operation("GET", f"{QUEUE}/priorities", "waiting_by_priority", "How many tasks wait, by priority.",
              query=(Field("ranges", "whole", "Maximum number of ranges.", default=8, least=1, most=1_000),),
              act=lambda queue, given: {"ranges": plain(queue.waiting_by_priority(given["ranges"]))}),
    Operation("GET", f"{QUEUE}/stuck", "stuck", "Locks that stay taken.",
              act=lambda queue, given: {"locks": plain(queue.stuck())}),
    Operation("GET", f"{QUEUE}/peek", "peek", "Tasks that would be leased next, about.",
              query=(Field("n", "whole", "How many at most.", default=1, least=1, most=1_000),),
              act=lambda queue, given: {"tasks": plain(queue.peek(given["n"]))}),
    Operation("GET", ONE_TASK, "task", "What is known of a task.",
              act=lambda queue, given: plain(queue.task(given["task"]))),
    Operation("GET", f"{ONE_TASK}/history", "history", "What happened to a task, oldest first.",
              act=lambda queue, given: {"movements": plain(queue.history(given["task"]))}),
    Operation("GET", f"{QUEUE}/tasks", "tasks", "The unfinished tasks, or those in one state.",
              query=(Field("state", "text", "Of this state.",
                           choices=("waiting", "delayed", "leased", "completed", "dead", "cancelled")),),
              each=_listed, gives="application/x-ndjson"),
    Operation("GET", f"{QUEUE}/results", "results", "Inputs beside outputs of the tasks that have ended.",
              query=(Field("failed", "flag", "Dead letters alone.", default=False),),
              each=lambda queue, given: queue.results(failed=given["failed"]), gives="application/x-ndjson"),
    Operation("GET", f"{QUEUE}/dead", "dead", "The dead letters.",
              each=lambda queue, given: queue.dead(), gives="application/x-ndjson"),
    Operation("POST", f"{QUEUE}/dead/retry", "retry_dead", "Insert dead letters again.", body=(IDS, ALL),
              act=lambda queue, given: {"retried": queue.retry_dead(**ids_of(given))}),
    Operation("POST", f"{QUEUE}/dead/purge", "purge_dead", "Remove dead letters.", body=(IDS, ALL),
              act=lambda queue, given: {"purged": queue.purge_dead(**ids_of(given))}),
    Operation("POST", f"{QUEUE}/completed/retry", "retry_completed", "Insert completed tasks again.", body=(IDS, ALL),
              act=lambda queue, given: plain(queue.retry_completed(**ids_of(given)))),
    Operation("POST", f"{QUEUE}/gc", "gc", "Finish what crashes left half done; remove trash.",
              act=lambda queue, given: plain(queue.gc())),
)  # fmt: skip
"""Every verb of a queue that neither waits nor takes a stream."""

INSERT = Operation(
    "POST", f"{QUEUE}/tasks", "insert",
    "Insert one task; or, as JSON Lines, many, each line with the same fields. With a commit's name all of them appear "
    "together, once: a request that is repeated under the name inserts nothing.",
    query=(Field("commit", "text", "The commit's name; the header Idempotency-Key is the same.", least=1, most=200),
           Field("total", "whole", "How many tasks there will be about.", most=1e12)),
    body=fields.TASK, status=201,
)  # fmt: skip
COMPLETE = Operation(
    "POST", f"{QUEUE}/complete", "complete", "Report leased tasks as done, with small results to keep.",
    body=(Field("tasks", "objects", "Each with its token, and its result if there is one.", needed=True, least=1,
                of=(TOKEN, Field("result", "any", "Any JSON value; null: none.", nullable=True))),),
)  # fmt: skip
OF_QUEUE = Field("queue", "text", "The name of the task's queue.", needed=True, least=1, most=1024)
HELD = (OF_QUEUE, TOKEN)
HELD_OR_SEEN = (
    OF_QUEUE,
    Field("token", "text", "The token of the lease, if the caller has leased the task.", least=1, most=200),
    Field("id", "text", "Otherwise its id, ...", least=1, most=200),
    Field("version", "whole", "... and the version that it was seen with: it must still have it."),
)
"""How a task is named that is leased, or waits."""
LEASE_ONE = Operation(
    "POST", f"{QUEUE}/lease", "lease", "Lease tasks for a worker; wait for one if there is none.",
    body=(*LEASE, Field("order", "text", "The most urgent first, or random ones.", default="priority",
                        choices=("priority", "random")),
          Field("strict", "flag", "Look at all shards for the most urgent ones.", default=False),
          Field("depends", "objects", "Tasks of the group that must be as they were seen while the new leases hold; "
                "otherwise 409, and nothing is leased.", default=(), of=HELD_OR_SEEN)),
)  # fmt: skip
LEASE_ANY = Operation("POST", "/lease", "lease_any", "Lease tasks of any queue of the group; each says of which.",
                      body=(*LEASE, MATCH))  # fmt: skip
WAIT = Operation("GET", f"{QUEUE}/wait", "wait", "Wait until the queue is drained; tell its status then, or at the end "
                 "of the time. Go by `drained`: tasks that others move meanwhile may be in none of the counts.",
                 query=(TIMEOUT_S,))  # fmt: skip
FOLLOW = Operation("GET", f"{QUEUE}/events", "events", "The status of the queue, whenever it has changed.",
                   gives="text/event-stream")  # fmt: skip
FOLLOW_TASK = Operation("GET", f"{ONE_TASK}/events", "task_events", "Each movement of a task, to its end.",
                        gives="text/event-stream")  # fmt: skip
ABOUT = Operation("GET", "", "about", "What is served.")
QUEUES = Operation(
    "GET", "/queues", "queues", "Names of queues, in order, a page at a time.",
    query=(MATCH, Field("tasks_min", "whole", "Least number of unfinished tasks of a queue; 0: also empty ones.",
                        default=1, most=1e12),
           Field("after", "text", "Only names behind this one: `next` of the page before.", most=1024),
           Field("limit", "whole", "How many at most.", default=100, least=1, most=10_000)),
)  # fmt: skip
GROUP_STATUS = Operation("GET", "/status", "group_status", "Counts and activity over queues of the group.",
                         query=(MATCH, EXACT))  # fmt: skip
UPDATE_S = 30.0
"""How long an update waits at most for others that are in its way."""
UPDATE = Operation(
    "POST", "/update", "update", "Changes to tasks of several queues that happen all together, or not at all.",
    query=(Field("timeout_s", "number", "How long to wait for others in the way. Longer waits are cut to 30 s.",
                 default=UPDATE_S, most=SECONDS_MAX),),
    body=(
        Field("inserts", "objects", "Tasks to insert.", default=(), of=(OF_QUEUE, *fields.TASK)),
        Field("complete", "objects", "Leased tasks to report as done.", default=(),
              of=(*HELD, Field("result", "any", "Any JSON value; null: none.", nullable=True))),
        Field("renew", "objects", "Leases to extend.", default=(), of=(*HELD, LEASE_S)),
        Field("release", "objects", "Leased tasks to put back.", default=(), of=(*HELD, DELAY_S)),
        Field("fail", "objects", "Failed attempts.", default=(),
              of=(*HELD, Field("error", "text", "Why it failed.", needed=True, most=1 << 20),
                  Field("delay_s", "number", "Seconds before it comes back.", most=SECONDS_MAX, nullable=True))),
        Field("bury", "objects", "Leased tasks to give up.", default=(),
              of=(*HELD, Field("reason", "text", "Why.", needed=True, most=1 << 20))),
        Field("cancel", "objects", "Tasks to take out.", default=(), of=HELD_OR_SEEN),
        Field("depends", "objects", "Tasks that must be as they were seen, and stay so.", default=(), of=HELD_OR_SEEN),
        Field("replace", "objects", "Tasks to give another payload.", default=(),
              of=(*HELD_OR_SEEN, Field("payload", "any", "The new payload: any JSON value.", needed=True,
                                       nullable=True))),
    ),
)  # fmt: skip
OTHERS = (ABOUT, QUEUES, GROUP_STATUS, UPDATE, INSERT, COMPLETE, LEASE_ONE, LEASE_ANY, WAIT, FOLLOW, FOLLOW_TASK)
"""Those that do more than call a verb."""
OPERATIONS = (*QUEUE_OPERATIONS, *OTHERS)
