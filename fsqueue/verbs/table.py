"""The table of verbs: what each takes, whether it may be repeated, and what it answers for a queue that is not there.

From it come the routes of a gateway and their description, the requests of its client, and the answers of a group's
queue that has not come into being. The signatures of `Queue`, `GroupQueue` and `RemoteQueue` are written by hand, so
that editors and mypy see them; `tests/verbs/test_table.py` holds them against the table. To add a verb, write one entry
here, the method of `Queue` that does it and that of `RemoteQueue`, and its tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fsqueue.errors import TaskNotFound
from fsqueue.forks import Late
from fsqueue.format.layout import FIELD_CHARS_MAX
from fsqueue.format.models import NEWEST_MAX, STATES, ChangeReport, GcReport, RetryReport, Status
from fsqueue.verbs.fields import BYTES, PAYLOAD, PRIORITY, SECONDS_MAX, TASK, Field
from fsqueue.views.activity import total_activity

if TYPE_CHECKING:
    from fsqueue.views import timeline
else:
    timeline = Late("fsqueue.views.timeline")

Effect = Literal["reads", "repeatable", "once"]
"""What asking twice does: nothing, since the verb only reads; what asking once does; or something else."""
Absent = Literal["own", "made", "raises"]
"""What a queue of a group that is not there does: `GroupQueue` says; it comes into being; QueueNotFound."""
NDJSON = "application/x-ndjson"


class Route(NamedTuple):
    """One method of one path below /v1, which may have {queue} and {task}.

    `answer`: the field of the answer that has what the verb returns; "": the answer is what it returns. `status`: of
    the answer if all is well. `takes_lines`: the body may be JSON Lines. `gives`: a kind of stream, or one JSON object.
    """

    method: str
    path: str
    query: tuple[Field, ...] = ()
    body: tuple[Field, ...] = ()
    answer: str = ""
    status: int = 200
    takes_lines: bool = False
    gives: str = "application/json"

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return all fields of a request."""
        return *self.query, *self.body


class Verb(NamedTuple):
    """A verb of a queue, or what else is asked of a gateway.

    `absent`: what it answers for a queue of a group that is not there, made anew each time, or what it does then.
    `command`: the command that does it. `here_only`: its arguments that act on this process or host, and which a
    gateway does not take.
    """

    name: str
    about: str
    effect: Effect
    route: Route | None = None
    absent: Callable[[], Any] | Absent = "own"
    command: str = ""
    here_only: tuple[str, ...] = ()

    @property
    def may_be_repeated(self) -> bool:
        """Return whether asking twice does what asking once does."""
        return self.effect != "once"


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
BARRIER_ID = Field("id", "text", "Its id: 32 hexadecimal digits.", needed=True, least=32, most=32)
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
OF_QUEUE = Field("queue", "text", "The name of the task's queue.", needed=True, least=1, most=1024)
HELD = (OF_QUEUE, TOKEN)
HELD_OR_SEEN = (
    OF_QUEUE,
    Field("token", "text", "The token of the lease, if the caller has leased the task.", least=1, most=200),
    Field("id", "text", "Otherwise its id, ...", least=1, most=200),
    Field("version", "whole", "... and the version that it was seen with: it must still have it."),
)
"""How a task is named that is leased, or waits."""
RESULT = Field("result", "any", "Any JSON value; null: none.", nullable=True)
ERROR = Field("error", "text", "Why it failed.", needed=True, most=1 << 20)
THEN = Field("then", "objects", "The tasks that come then, each of its queue.", needed=True, least=1,
             of=(OF_QUEUE, PAYLOAD, BYTES, PRIORITY))  # fmt: skip
ON_FAILURE = ("run", "wait", "drop")
"""What a barrier may do if there are dead letters: `fsqueue.format.barriers.ON_FAILURE`, which few processes load."""
UPDATE_S = 30.0
"""How long an update waits at most for others that are in its way."""


def _get(path: str, *query: Field, answer: str = "", gives: str = "application/json") -> Route:
    return Route("GET", path, query=query, answer=answer, gives=gives)


def _post(path: str, *body: Field, answer: str = "") -> Route:
    return Route("POST", path, body=body, answer=answer)


def _on_failure(default: str) -> Field:
    return Field("on_failure", "text", "If there are dead letters: come all the same, wait until there are none, or be "
                 "cancelled.", default=default, choices=ON_FAILURE)  # fmt: skip


def _nothing() -> Any:
    return None


def _no_items() -> Any:
    return iter(())


def _no_such_task() -> Any:
    raise TaskNotFound("There is no such task: the queue has not come into being, or was deleted.")


OF_QUEUES: Sequence[Verb] = (
    # -- inserting
    Verb("insert", "Insert one task; or, as JSON Lines, many, each line with the same fields. With a commit's name all "
         "of them appear together, once: a request that is repeated under the name inserts nothing.", "once",
         Route("POST", f"{QUEUE}/tasks", body=TASK, status=201, takes_lines=True, query=(
             Field("commit", "text", "The commit's name; the header Idempotency-Key is the same.", least=1, most=200),
             Field("total", "whole", "How many tasks there will be about.", most=1e12),
             Field("new_by", "text", "A field of the payloads: a payload is inserted unless the newest task with its "
                   "value in this field has the same content.", least=1, most=FIELD_CHARS_MAX),
             Field("refs", "flag", "Tell the ids of the tasks, too, in the order of the lines.", default=False))),
         absent="made", command="insert"),
    Verb("insert_many", "Insert a stream of tasks: see insert.", "once", absent="made", command="insert",
         here_only=("batch_tasks",)),
    Verb("commit", "Insert a stream of tasks once, under a name.", "once", absent="made", command="insert"),
    # -- leases
    Verb("lease", "Lease tasks for a worker; wait for one if there is none.", "once", _post(f"{QUEUE}/lease", *LEASE,
         Field("order", "text", "The most urgent first, or random ones.", default="priority",
               choices=("priority", "random")),
         Field("strict", "flag", "Look at all shards for the most urgent ones.", default=False),
         Field("depends", "objects", "Tasks of the group that must be as they were seen while the new leases hold; "
               "otherwise 409, and nothing is leased.", default=(), of=HELD_OR_SEEN)), command="lease"),
    Verb("lease_for", "Lease tasks for several workers at once.", "once"),
    Verb("lease_by_id", "Lease the tasks with these ids, as far as they are available.", "once",
         _post(f"{QUEUE}/lease-by-id", Field("ids", "texts", "Ids of tasks.", needed=True, least=1), LEASE_S, HOLDER,
               answer="tasks"), absent=list, command="lease"),
    Verb("poll", "Iterate over leased tasks.", "once", command="run"),
    Verb("poll_async", "Iterate over leased tasks in an event loop.", "once"),
    Verb("attach", "The task that a lease holds, by the token of the lease.", "reads", _post(f"{QUEUE}/attach", TOKEN),
         absent="raises"),
    Verb("complete", "Report leased tasks as done, with small results to keep.", "repeatable",
         _post(f"{QUEUE}/complete", Field("tasks", "objects", "Each with its token, and its result if there is one.",
                                          needed=True, least=1, of=(TOKEN, RESULT))), command="complete"),
    Verb("renew", "Extend leases.", "repeatable", _post(f"{QUEUE}/renew", TOKENS, LEASE_S), command="renew"),
    Verb("release", "Put leased tasks back, without counting the attempt.", "repeatable",
         _post(f"{QUEUE}/release", TOKENS, DELAY_S), command="release"),
    Verb("fail", "Record a failed attempt: the task comes back later, or is given up.", "repeatable",
         _post(f"{QUEUE}/fail", TOKEN, ERROR,
               Field("delay_s", "number", "Seconds before it comes back: growing pauses if left out.",
                     most=SECONDS_MAX, nullable=True)), command="fail"),
    Verb("bury", "Make a leased task a dead letter at once.", "repeatable",
         _post(f"{QUEUE}/bury", TOKEN, Field("reason", "text", "Why it cannot succeed.", needed=True, most=1 << 20)),
         command="bury"),
    # -- looking
    Verb("status", "Count the tasks by state.", "reads", _get(f"{QUEUE}/status", EXACT), absent=Status,
         command="status"),
    Verb("is_drained", "Tell whether nothing is waiting, delayed or leased. If so, `proof` stands for what is there "
         "besides: if a request that is made after the answer brings the same, nothing was left in between.", "reads",
         _get(f"{QUEUE}/drained"), absent=lambda: True, command="wait"),
    Verb("wait", "Wait until the queue is drained; tell its status then, or at the end of the time. Go by `drained`: "
         "tasks that others move meanwhile may be in none of the counts.", "reads", _get(f"{QUEUE}/wait", TIMEOUT_S),
         command="wait"),
    Verb("activity", "Rates, durations, the oldest leases, failures by reason.", "reads",
         _get(f"{QUEUE}/activity", Field("window_s", "number", "The period up to now, in seconds.", least=1,
                                         most=SECONDS_MAX, nullable=True)),
         absent=lambda: total_activity([]), command="status"),
    Verb("timeline", "What was inserted, leased, completed and given up, over time.", "reads",
         _get(f"{QUEUE}/timeline",
              Field("window_s", "number", "The period up to now, in seconds.", default=3600, least=1, most=SECONDS_MAX),
              Field("pieces", "whole", "Number of pieces of the period.", default=60, least=1, most=1_000)),
         absent=lambda: timeline.Timeline(0.0, 1.0, [], [], [], [])),
    Verb("workers", "The workers that hold tasks, and whether they live.", "reads",
         _get(f"{QUEUE}/workers", answer="workers"), absent=list, command="workers", here_only=("asks_slurm",)),
    Verb("failing_nodes", "Nodes on which the latest attempts failed, one after the other.", "reads",
         _get(f"{QUEUE}/nodes", answer="nodes"), absent=list, command="workers"),
    Verb("usage", "Files, directories and bytes, by what they are for.", "reads", _get(f"{QUEUE}/usage"), absent=dict,
         command="status"),
    Verb("waiting_by_priority", "How many tasks wait, by priority.", "reads",
         _get(f"{QUEUE}/priorities", Field("ranges", "whole", "Maximum number of ranges.", default=8, least=1,
                                           most=1_000), answer="ranges"),
         absent=list, command="status", here_only=("progress",)),
    Verb("stuck", "Locks that stay taken.", "reads", _get(f"{QUEUE}/stuck", answer="locks"), absent=list,
         command="status"),
    Verb("peek", "Tasks that would be leased next, about.", "reads",
         _get(f"{QUEUE}/peek", Field("n", "whole", "How many at most.", default=1, least=1, most=1_000),
              answer="tasks"), absent=list),
    Verb("task", "What is known of a task.", "reads", _get(ONE_TASK), absent=_no_such_task, command="show"),
    Verb("find_by_key", "What is known of the unfinished task that has a key.", "reads",
         _get(f"{QUEUE}/keys", Field("key", "text", "The key.", needed=True, least=1, most=1024)),
         absent=_no_such_task, command="show"),
    Verb("result", "The result of a task, once it is completed.", "reads", absent="own"),
    Verb("history", "What happened to a task, oldest first.", "reads", _get(f"{ONE_TASK}/history", answer="movements"),
         absent=_no_such_task, command="show"),
    Verb("tasks", "The unfinished tasks, or those in one state.", "reads",
         _get(f"{QUEUE}/tasks", Field("state", "text", "Of this state.", choices=STATES), gives=NDJSON),
         absent=_no_items, command="ls"),
    Verb("results", "Inputs beside outputs of the tasks that have ended.", "reads",
         _get(f"{QUEUE}/results", Field("dead", "flag", "Dead letters alone.", default=False),
              Field("latest_by", "text", "A field of the payloads: of the tasks with one value in it the newest alone.",
                    least=1, most=FIELD_CHARS_MAX),
              Field("newest", "whole", "Only this many, those that ended last, the newest first. Not with `latest_by`.",
                    least=1, most=NEWEST_MAX), gives=NDJSON),
         absent=_no_items, command="results"),
    Verb("results_of", "What is known of tasks, finished or not, by their ids.", "reads",
         _post(f"{QUEUE}/results-of", Field("ids", "texts", "Ids of tasks.", needed=True, least=1)), absent=dict),
    Verb("result_columns", "The same in columns.", "reads", absent=_no_items, command="results"),
    Verb("dead", "The dead letters.", "reads", _get(f"{QUEUE}/dead", gives=NDJSON), absent=_no_items,
         command="dead list"),
    # -- for the person who looks after it
    Verb("cancel", "Cancel tasks that no worker holds.", "repeatable",
         _post(f"{QUEUE}/cancel", Field("ids", "texts", "Ids of tasks.", needed=True, least=1), answer="cancelled"),
         absent=int, command="cancel"),
    Verb("change", "Change the priority or the time of tasks that no worker holds. What is left out stays.",
         "repeatable", _post(
             f"{QUEUE}/change", Field("ids", "texts", "Ids of tasks.", needed=True, least=1),
             Field("priority", "priority", "The new priority.", nullable=True),
             Field("no_priority", "flag", "Take the priority away.", default=False),
             Field("delay_s", "number", "Seconds from now until they are available.", most=SECONDS_MAX,
                   nullable=True),
             Field("available_at", "number", "The same as an absolute time, in Unix seconds.", most=1e11,
                   nullable=True)),
         absent=ChangeReport, command="change"),
    Verb("retry_dead", "Insert dead letters again.", "once", _post(f"{QUEUE}/dead/retry", IDS, ALL, answer="retried"),
         absent=int, command="dead retry"),
    Verb("purge_dead", "Remove dead letters.", "once", _post(f"{QUEUE}/dead/purge", IDS, ALL, answer="purged"),
         absent=int, command="dead purge"),
    Verb("retry_completed", "Insert completed tasks again.", "once", _post(f"{QUEUE}/completed/retry", IDS, ALL),
         absent=RetryReport, command="retry"),
    Verb("release_all", "End leases of other workers: all, or those named.", "once",
         _post(f"{QUEUE}/release-all",
               Field("worker", "text", "Of this worker's name.", least=1, nullable=True),
               Field("host", "text", "Of this host.", least=1, nullable=True),
               Field("slurm_job", "text", "Of this job of Slurm.", least=1, nullable=True),
               Field("job", "text", "Of this job of any scheduler.", least=1, nullable=True), ALL, answer="released"),
         absent=int, command="release-all", here_only=("offline",)),
    Verb("admit_node", "Forget a node's failures: it takes tasks again.", "repeatable",
         _post(f"{QUEUE}/nodes/admit", Field("node", "text", "The node's name.", needed=True, least=1, most=1024),
               answer="admitted"), absent=bool, command="workers"),
    Verb("change_settings", "Change settings of a queue in use: max_attempts, lease_s, backoff_s, keep_payloads.",
         "repeatable", Route("PATCH", f"{QUEUE}/settings",
                             body=(Field("settings", "object", "New values, by name.", needed=True),)),
         absent="raises", command="set"),
    Verb("pause", "Have no task leased until resume.", "once",
         _post(f"{QUEUE}/pause", Field("reason", "text", "Why, for people.", most=1_000, nullable=True),
               answer="changed"), absent="raises", command="pause"),
    Verb("resume", "Have tasks leased again.", "once", _post(f"{QUEUE}/resume", answer="changed"), absent="raises",
         command="resume"),
    Verb("purge", "Drop all tasks of a queue; its settings stay.", "once",
         _post(f"{QUEUE}/purge", CONFIRM, answer="purged"), absent=_nothing, command="purge"),
    Verb("delete", "Delete a queue at once, whatever its size.", "once",
         Route("DELETE", QUEUE, query=(CONFIRM,), answer="deleted"),
         command="delete", here_only=("foreground",)),
    Verb("gc", "Finish what crashes left half done; remove trash.", "repeatable", _post(f"{QUEUE}/gc"),
         absent=GcReport, command="gc", here_only=("touch", "history_days", "payload_days", "payload_bytes")),
    Verb("fsck", "Check a queue, and mend it.", "once", absent=_no_items, command="fsck"),
    Verb("is_copy", "Tell whether a directory may be a copy of the queue in it.", "reads", absent=bool),
    Verb("accept_copy", "End the warning that a directory may be a copy.", "repeatable", absent=bool, command="fsck"),
)  # fmt: skip
"""The verbs of a queue; `fail` and `bury` are methods of a leased task."""
OF_GATEWAYS: Sequence[Verb] = (
    Verb("about", "What is served.", "reads", _get("")),
    Verb("queue", "Tell what a queue is: its settings, whether it is paused or may be a copy.", "reads", _get(QUEUE)),
    Verb("events", "The status of the queue, whenever it has changed.", "reads",
         _get(f"{QUEUE}/events", gives="text/event-stream")),
    Verb("task_events", "Each movement of a task, to its end.", "reads",
         _get(f"{ONE_TASK}/events", gives="text/event-stream")),
    Verb("committed", "What was inserted under a commit's name: `report` is null if nothing was decided yet.", "reads",
         _get(f"{QUEUE}/commits", Field("name", "text", "The commit's name.", needed=True, least=1, most=200),
              answer="report"), command="insert"),
    Verb("queues", "Names of queues, in order, a page at a time.", "reads", _get(
        "/queues", MATCH,
        Field("tasks_min", "whole", "Least number of unfinished tasks of a queue; 0: also empty ones.", default=1,
              most=1e12),
        Field("after", "text", "Only names behind this one: `next` of the page before.", most=1024),
        Field("limit", "whole", "How many at most.", default=100, least=1, most=10_000))),
    Verb("group_status", "Counts and activity over queues of the group.", "reads", _get("/status", MATCH, EXACT)),
    Verb("group_is_drained", "Tell whether at one instant nothing was waiting, delayed or leased in queues of the "
         "group; `proof`: see is_drained.", "reads", _get("/drained", MATCH), command="wait"),
    Verb("group_wait", "Wait until queues of the group are drained; tell the sum of their counts then, or at the end "
         "of the time. `states` has what tells each queue from one that was purged or made anew since.", "reads",
         _get("/wait", MATCH, TIMEOUT_S), command="wait"),
    Verb("group_usage", "Files, directories and bytes of the group and its queues, by what they are for.", "reads",
         _get("/usage"), command="status"),
    Verb("group_settings", "The settings that the group's queues begin with.", "reads", _get("/settings"),
         command="set"),
    Verb("group_flows", "Which queues' tasks updates complete that insert into which, the most frequent first.",
         "reads", _get("/flows", answer="flows")),
    Verb("lease_any", "Lease tasks of any queue of the group; each says of which.", "once",
         _post("/lease", *LEASE, MATCH)),
    Verb("group_barrier", "Insert tasks that become available once, when at one instant queues are drained.", "once",
         _post("/barriers", Field("of", "texts", "Names of the queues that have to be drained.", least=1),
               Field("match", "pattern", "Instead: all queues whose whole names match this regular expression.",
                     most=1024), THEN, _on_failure("run")), command="barrier"),
    Verb("group_join", "Insert tasks that become available once, when all tasks of a set are done.", "once",
         _post("/joins",
               Field("tasks", "objects", "The tasks of the set, by their queues.", default=(), of=(
                   OF_QUEUE, Field("ids", "texts", "Ids of tasks.", needed=True, least=1))),
               Field("commits", "objects", "Named commits: all their tasks are of the set, too.", default=(), of=(
                   OF_QUEUE, Field("name", "text", "The commit's name.", needed=True, least=1, most=200))),
               THEN, _on_failure("wait")), command="barrier"),
    Verb("group_barriers", "The group's barriers and joins, the oldest first: those that wait, and for a week those "
         "that have ended.", "reads", _get("/barriers", answer="barriers"), command="barrier"),
    Verb("group_barrier_state", "How far a barrier or a join is: waiting, fired, cancelled, or forgotten a week after "
         "its end.", "reads", _get("/barriers/state", BARRIER_ID, answer="state"), command="barrier"),
    Verb("group_cancel_barrier", "Cancel a barrier or a join: its tasks are taken out. False if it has passed before.",
         "repeatable", _post("/barriers/cancel", BARRIER_ID, answer="cancelled"), command="barrier"),
    Verb("inputs", "What came of the tasks that a join has waited for, which has inserted this task.", "reads",
         _get(f"{ONE_TASK}/inputs", gives=NDJSON), command="results"),
    Verb("update", "Changes to tasks of several queues that happen all together, or not at all.", "once", Route(
        "POST", "/update",
        query=(Field("timeout_s", "number", "How long to wait for others in the way. Longer waits are cut to 30 s.",
                     default=UPDATE_S, most=SECONDS_MAX),),
        body=(
            Field("inserts", "objects", "Tasks to insert.", default=(), of=(OF_QUEUE, *TASK)),
            Field("complete", "objects", "Leased tasks to report as done.", default=(), of=(*HELD, RESULT)),
            Field("renew", "objects", "Leases to extend.", default=(), of=(*HELD, LEASE_S)),
            Field("release", "objects", "Leased tasks to put back.", default=(), of=(*HELD, DELAY_S)),
            Field("fail", "objects", "Failed attempts.", default=(), of=(*HELD, ERROR, Field(
                "delay_s", "number", "Seconds before it comes back.", most=SECONDS_MAX, nullable=True))),
            Field("bury", "objects", "Leased tasks to give up.", default=(),
                  of=(*HELD, Field("reason", "text", "Why.", needed=True, most=1 << 20))),
            Field("cancel", "objects", "Tasks to take out.", default=(), of=HELD_OR_SEEN),
            Field("depends", "objects", "Tasks that must be as they were seen, and stay so.", default=(),
                  of=HELD_OR_SEEN),
            Field("replace", "objects", "Tasks to give another payload.", default=(),
                  of=(*HELD_OR_SEEN, Field("payload", "any", "The new payload: any JSON value.", needed=True,
                                           nullable=True))),
        ))),
)  # fmt: skip
"""What else a gateway is asked for."""
VERBS = {one.name: one for one in (*OF_QUEUES, *OF_GATEWAYS)}
"""Each verb, by its name."""
ROUTED = tuple((one, one.route) for one in VERBS.values() if one.route is not None)
"""Those that a gateway has routes for, with these."""
