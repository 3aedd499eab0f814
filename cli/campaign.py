"""A campaign of jobs that replace themselves: their names, what each hands to its successor, and what follows from it.

docs/decisions/0062-jobs-that-replace-themselves.md has the order of steps, the crash table, and the reasons. Nothing
here reads or writes: `successors` does.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

JOBS_MAX = 1000
"""Maximum number of jobs of a campaign at once."""
QUICK_S = 60.0
"""A job came quickly if it begins sooner than this after the earliest time at which its predecessor could begin."""
PAUSE_S, PAUSE_S_MAX = 30.0, 3600.0
"""Least time between two jobs of a slot after the first that came quickly, and the longest. Each one doubles it."""
FRUITLESS_MAX = 3
"""Number of jobs in a row that used their time without one task ended, after which no task is said to fit."""
MEASURED_MIN = 20
"""Number of measured durations, all longer than the limit, from which on one such job is enough."""
ABSENT_MAX = 5
"""Number of jobs in a row that found no queue, after which the queue counts as deleted."""
EARLY_S = 90.0
"""Slurm may warn a worker up to a minute too early, and looks every half minute."""
WARNED_EXITS = frozenset(128 + number for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT))
"""Exit codes of a worker that has heard of the end of its job. Slurm calls such a job failed."""
LIMIT_SHARE = 1 / 6
"""A job that has used its time has run for at least this part of its limit, however short that is."""
NAME_CHARS_MAX = 60


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a worker of a job can do, as far as its options tell."""

    at_a_time: int
    """How many tasks it does at a time."""
    limit_s: float
    """The time limit of its job."""
    work_s: float
    """Seconds in which it begins and ends tasks: the limit, less the time by which Slurm warns it."""
    tasks_max: int | None = None
    """How many tasks it does at most."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """What is the same for all jobs of a campaign."""

    name: str
    """What the names of all its jobs begin with."""
    slots: int
    queues: list[str]
    """Their paths. The first one's `queue.jsonl` has the stop."""
    upstream: list[str]
    """Queues of earlier stages, as the worker's option names them."""
    forever: bool
    """Whether the workers wait for more tasks when the queues are drained."""
    sbatch: list[str]
    """What is given of the command that submits a job: of Slurm all but the name, and what it depends on."""
    directory: str
    """Where that command works: names of files are relative to it."""
    warned_s: int
    """How long before their limit the workers hear of it, in seconds."""
    stops: int
    """How often campaigns had been stopped when this one began."""
    worker: Capacity | None = None
    """What a worker can do, by which empty slots are filled as far as the tasks need it; None: all slots are filled."""
    replaces: bool = True
    """Whether each job submits its successor. If not, a job has no first step."""
    scheduler: str = "slurm"
    """The name of its controller."""
    script_bytes: int | None = None
    """How many bytes follow the second line of a user's script; None: all. LSF may execute more than that."""
    max_runtime_s: float | None = None
    """How long a worker works at most, if its script says so; None: as long as its job lasts."""

    @property
    def stop_command(self) -> str:
        """Return what ends the campaign."""
        return f"fsqueue {self.scheduler} --stop"

    def job_name(self, slot: int) -> str:
        """Return the name of all jobs of a slot."""
        return f"{self.name}-{slot}"

    def slot_jobs(self, jobs: Mapping[str, list[tuple[str, bool]]]) -> list[list[tuple[str, bool]]]:
        """Return the jobs of each slot: id, and whether it waits."""
        return [jobs.get(self.job_name(slot), []) for slot in range(self.slots)]


@dataclass(frozen=True, slots=True)
class Relay:
    """What a job is told by the one that submitted it."""

    slot: int = 0
    """Its own."""
    job: str | None = None
    """Its predecessor, which submitted it; None: it is the first of its slot, or fills the empty slot."""
    at: float = 0.0
    """When the job began that submitted it, in Unix seconds; 0: it is of the campaign's first jobs."""
    ended: int = 0
    """How many tasks had ended by then."""
    pause_s: float = 0.0
    """By how much it had to begin later than that one, at least."""
    quick: int = 0
    """Number of earlier jobs in a row that came quickly."""
    fruitless: int = 0
    """Number of earlier jobs in a row that used their time without one task ended."""
    absent: int = 0
    """Number of earlier jobs in a row that found no queue."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a job finds when it begins. A hint: others work."""

    at: float
    """When, in Unix seconds."""
    ended: int
    """How many tasks have ended, completed or given up."""
    is_over: bool
    """Whether nothing is left to do."""
    is_paused: bool
    """Whether no queue lets tasks be leased."""
    stops: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of how the predecessor has gone, in seconds."""

    state: str = ""
    """What Slurm calls it; "": the scheduler knows that job no more."""
    elapsed_s: float | None = None
    limit_s: float | None = None
    """The time limit of a job."""
    warned_s: float = 0.0
    """How long before its limit a worker hears of it."""
    shortest_s: float | None = None
    """The shortest duration of a task that was measured; None: too few were."""
    exit_status: int = 0


def names_of(queue_id: str) -> re.Pattern[str]:
    """Return what matches the names of all jobs of a queue's campaigns."""
    own = re.escape(queue_id[:8])
    return re.compile(rf"(?:.+-{own}[0-9a-f]{{4}}|f{own}[0-9a-f]{{2}})-\d+")


def short_name(queue_id: str, is_shared: bool) -> str:
    """Return a campaign's name for schedulers that take names of 15 characters. `is_shared`: as of `name`."""
    return f"f{queue_id[:10] if is_shared else queue_id[:8] + os.urandom(1).hex()}"


def name(base: str, queue_id: str, is_shared: bool) -> str:
    """Return a campaign's name. `base`: the name of the job, as the user wants it.

    `is_shared`: all campaigns of the queue have the same name, with one `base`. So their jobs share the slots, and what
    is submitted by several commands at once waits instead of running beside the others.
    """
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", base)[:NAME_CHARS_MAX]
    return f"{plain}-{queue_id[:12] if is_shared else queue_id[:8] + os.urandom(2).hex()}"


def encode(campaign: Campaign, relay: Relay) -> str:
    """Return a line of ASCII that tells a job its campaign, and what its predecessor hands on."""
    return json.dumps({"campaign": asdict(campaign), "relay": asdict(relay)}, separators=(",", ":"))


def decode(text: str) -> tuple[Campaign, Relay]:
    """Return what `encode` was given. ValueError, KeyError or TypeError for any other text."""
    found = json.loads(text)
    campaign, worker = Campaign(**found["campaign"]), found["campaign"].get("worker")
    return replace(campaign, worker=None if worker is None else Capacity(**worker)), Relay(**found["relay"])


def due(slots: Sequence[Sequence[tuple[str, bool]]], own: tuple[int, str] | None) -> list[int]:
    """Return the slots to which a job has to be submitted. `own`: the slot and the id of the job that asks.

    Its own comes first, if no job waits there; then those that have none.
    """
    empty = [slot for slot, jobs in enumerate(slots) if not jobs and (own is None or slot != own[0])]
    if own is None or any(waits for job, waits in slots[own[0]] if job != own[1]):
        return empty
    return [own[0], *empty]


def may_fill(relay: Relay, found: Sighting) -> bool:
    """Return whether a job that has found this fills empty slots: tasks end. Else rows of jobs that end because no task
    fits would revive each other.
    """
    return not relay.at or found.ended != relay.ended


def after(relay: Relay, found: Sighting, evidence: Evidence) -> Relay:
    """Return what a job that has found this hands to its own successor. `job` is left to the caller."""
    came_quickly = relay.job is not None and found.at - relay.at < QUICK_S + relay.pause_s
    quick = relay.quick + 1 if came_quickly else 0
    fruitless = relay.fruitless
    if found.ended != relay.ended:
        fruitless = 0
    elif relay.job is not None and _used_its_time(evidence):
        fruitless += 1
    pause_s = min(PAUSE_S * 2 ** min(quick - 1, 20), PAUSE_S_MAX) if quick else 0.0
    return replace(relay, at=found.at, ended=found.ended, pause_s=pause_s, quick=quick, fruitless=fruitless, absent=0)


def after_nothing(relay: Relay, at: float, is_absent: bool) -> Relay:
    """Return what a job hands on that could not read its queues: because one is not there, or does not answer."""
    absent = relay.absent + 1 if is_absent else relay.absent
    found = Sighting(at, relay.ended, False, False, 0)
    return replace(after(relay, found, Evidence()), absent=absent)


def _used_its_time(evidence: Evidence) -> bool:
    """Return whether a job ended because of its time limit: one that failed, or was cancelled, did not."""
    if evidence.elapsed_s is None or evidence.limit_s is None:
        return False
    is_warned = evidence.state == "FAILED" and evidence.exit_status in WARNED_EXITS
    if not is_warned and evidence.state not in ("COMPLETED", "TIMEOUT"):
        return False
    least_s = max(evidence.limit_s - evidence.warned_s - EARLY_S, evidence.limit_s * LIMIT_SHARE)
    return evidence.elapsed_s >= least_s


def why_none_fits(relay: Relay, evidence: Evidence) -> str | None:
    """Return why nothing more is submitted: no task fits the time limit. None if one may."""
    limit_s, shortest_s = evidence.limit_s, evidence.shortest_s
    if relay.fruitless and limit_s is not None and shortest_s is not None and shortest_s > limit_s:
        return f"The shortest task that was measured took {shortest_s:,.0f} s, and a job has {limit_s:,.0f} s."
    if relay.fruitless >= FRUITLESS_MAX:
        return f"The last {relay.fruitless} jobs used their time, and no task ended meanwhile."
    return None
