"""Submit the successors of a job, as the first step of its script; stop that, for `fsqueue slurm --stop`.

docs/decisions/0062-jobs-that-replace-themselves.md has the order of steps, and what a crash between any two leaves.
They are the same for all schedulers. CONTROLLERS has what differs.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

import fsqueue
from fsqueue.cluster.controller import Controller, Jobs
from fsqueue.cluster.lsf import LSF
from fsqueue.cluster.pbs import PBS
from fsqueue.cluster.sge import SGE
from fsqueue.cluster.slurm import SLURM
from fsqueue.errors import FsqueueError, QueueNotFound
from fsqueue.format import wording
from fsqueue.storage import stops

from .campaign import (
    ABSENT_MAX,
    MEASURED_MIN,
    Campaign,
    Evidence,
    Relay,
    Sighting,
    after,
    after_nothing,
    decode,
    due,
    encode,
    may_fill,
    names_of,
    why_none_fits,
)
from .common import path_of, queue_at
from .printing import complain, print_done, quoted
from .worker_need import MEASURED_S, load_of, reckon, workers_there

LEAVE = 3
"""Exit code of this step: the job ends, and no worker begins."""
SUBMIT_S = 60.0
"""Seconds that a submission may take. It may have been taken nevertheless: the next look tells."""
SPACE_S = 0.2
"""Seconds between two submissions: controllers refuse bursts."""
FOREGROUND_S = 30.0
"""Seconds for which a worker waits until its job has a successor. Then another process goes on to try."""
PAUSE_S = (1.0, 300.0)
"""The pause after the first refusal, and the longest, in seconds. Each is times a random number from 0.5 to 1.5."""
CONTROLLERS: dict[str, Controller] = {one.name: one for one in (SLURM, PBS, LSF, SGE)}
"""What submits to each scheduler, by the names that campaigns have for them."""
MARK = b"#fsqueue "
"""What a script's second line begins with that tells a job its campaign, where the user has written the script."""
_TOLD = re.compile(rb"^%s(\{[ -~]*\})$" % MARK, re.MULTILINE)
ALONE_S = 60.0
"""Seconds for which a job waits until others of its slot have left, which began at the same time."""
AGAIN = "--again"
"""With this, the step was taken by another process: what is handed on is decided."""


class NotTaken(Exception):
    """The scheduler did not take a job, or did not answer: then it may have taken it."""


def script_line(campaign: Campaign, relay: Relay) -> str:
    """Return the second line of a job's script. The warning of Slurm must not end bash before the worker is there."""
    step = " ".join(map(quoted, [sys.executable, "-P", "-m", f"{__package__ or 'fsqueue_cli'}.successors"]))
    told = quoted(encode(campaign, relay))
    return f"trap '' USR1; {step} \"$0\" {told}; [ $? != {LEAVE} ] || exit 0; trap - USR1"


def submission(campaign: Campaign, relay: Relay, script: bytes, depends_on: str) -> tuple[list[str], bytes]:
    """Return the command that submits a job, and the script on its standard input. Arguments as of `submit`."""
    controller = CONTROLLERS[campaign.scheduler]
    if campaign.replaces:
        first, _, rest = script.split(b"\n", 2)
        is_ours = controller.writes_scripts
        line = os.fsencode(script_line(campaign, relay)) if is_ours else MARK + encode(campaign, relay).encode()
        script = b"\n".join([first, line, rest])
    name = campaign.job_name(relay.slot)
    return controller.submission(campaign.sbatch, name, depends_on, relay.pause_s), script


def submit(campaign: Campaign, relay: Relay, script: bytes, depends_on: str) -> str:
    """Submit a job, and return its id. NotTaken if the scheduler does not take it, or does not answer in time.

    `script`: all of it. Its second line is made anew, if the campaign's jobs have a first step. `depends_on`: as of
    `Controller.submission`.
    """
    controller = CONTROLLERS[campaign.scheduler]
    words, script = submission(campaign, relay, script, depends_on)
    try:
        ran = subprocess.run(
            words,
            input=script,
            capture_output=True,
            env=controller.environment(os.environ),
            cwd=campaign.directory if os.path.isdir(campaign.directory) else None,
            timeout=SUBMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotTaken(f"{words[0]} did not answer within {SUBMIT_S:g} s") from None
    except OSError as error:
        raise NotTaken(f"{words[0]} cannot be run here ({error.strerror or error})") from None
    job = controller.job_in(ran.stdout.decode(errors="replace"))
    if ran.returncode or job is None:
        raise NotTaken(controller.refusal_in(ran.stderr.decode(errors="replace"), ran.returncode))
    return job


def told_in(script: bytes) -> str | None:
    """Return what a job is told, by the file of its script; None if it is not a campaign's."""
    found = _TOLD.search(script)
    return None if found is None else found[1].decode()


def script_in(data: bytes, campaign: Campaign) -> bytes:
    """Return the script of a job, by the file that its scheduler executes. That may have more lines around it."""
    if campaign.script_bytes is None:
        return data
    before, _, after = data.partition(b"\n" + MARK)
    told, _, rest = after.partition(b"\n")
    return b"\n".join([before.rpartition(b"\n")[2], MARK + told, rest[: campaign.script_bytes]])


class Filling:
    """Submits what a campaign lacks: a successor of this process's job, and a job to each empty slot.

    `relay`: what the successor is told. `job`: the id of this process's job. `fills`: whether to fill empty slots.
    """

    def __init__(self, campaign: Campaign, relay: Relay, script: bytes, job: str, fills: bool) -> None:
        self.campaign, self.relay, self.script, self.job, self.fills = campaign, relay, script, job, fills
        self.refused = ""
        """Why the scheduler did not take the last one."""
        self.controller = CONTROLLERS[campaign.scheduler]

    def is_done(self) -> bool:
        """Take the steps once. False if this job has no successor yet: take them again later."""
        if is_stopped(self.campaign):
            return True
        jobs = self.controller.jobs_by_name()
        if jobs is None:
            self.refused = f"{self.controller.title} does not tell which jobs there are"
            return False
        slots = self.campaign.slot_jobs(jobs)
        is_seen = any(job == self.job for job, _ in slots[self.relay.slot])
        if not is_seen and not self.controller.may_follow_unseen():
            complain("this site gives jobs other names, so a successor would not be found: no second one is submitted")
            return True
        wanted = due(slots, (self.relay.slot, self.job))
        if self.campaign.worker is not None and self.fills:
            own = [slot for slot in wanted if slot == self.relay.slot]
            wanted = wanted[: len(own) + _needed(self.campaign, jobs)]
        for slot in wanted:
            is_own = slot == self.relay.slot
            if not is_own and not (self.fills and is_seen):  # with other names all slots would look empty
                break
            relay = self.relay if is_own else replace(self.relay, slot=slot, job=None, pause_s=0.0, quick=0)
            try:
                submitted = submit(self.campaign, relay, self.script, self._depends(slots) if is_own else "")
            except NotTaken as error:
                self.refused = str(error)
                return not is_own  # an empty slot is left to the next job that begins
            if is_stopped(self.campaign):  # after the last look: `--stop` may have listed the jobs before
                self.controller.cancel([submitted], only_waiting=True)
                return True
            complain(f"job {submitted} {'follows this one' if is_own else 'fills an empty place'}")
            time.sleep(SPACE_S)
        return True

    def _depends(self, slots: Sequence[Sequence[tuple[str, bool]]]) -> str:
        """Return what the successor depends on: where the scheduler does not keep jobs of one name apart, on all of
        its slot.
        """
        others = [] if self.controller.keeps_names_apart else [
            job for job, _ in slots[self.relay.slot] if job != self.job
        ]  # fmt: skip
        return self.controller.after([self.job, *others])

    def try_for(self, seconds: float) -> bool:
        """Take the steps until they are done, with growing pauses. False if that is not so after this time."""
        until, (pause_s, most_s) = time.monotonic() + seconds, PAUSE_S
        said = ""
        while not self.is_done():
            if self.refused != said:
                said = self.refused
                complain(f"no successor yet: {said}; it is tried again")
            wait_s = pause_s * random.uniform(0.5, 1.5)
            if time.monotonic() + wait_s > until:
                return False
            time.sleep(wait_s)
            pause_s = min(2 * pause_s, most_s)
        return True


def _needed(campaign: Campaign, jobs: Jobs) -> int:
    """Return how many more workers the tasks need, while the user's jobs are these. 0 if that cannot be read."""
    assert campaign.worker is not None
    try:
        opened = [queue_at(path) for path in campaign.queues]
        there = workers_there(opened, jobs)
        return reckon([load_of(queue) for queue in opened], campaign.worker, there, campaign.slots).submitted
    except (OSError, FsqueueError, click.ClickException):
        return 0


def is_stopped(campaign: Campaign) -> bool:
    """Return whether the campaign was stopped since it began. False also if that cannot be read."""
    try:
        return stops.count(queue_at(campaign.queues[0]).store) != campaign.stops
    except (OSError, FsqueueError, click.ClickException):
        return False


def look(campaign: Campaign) -> Sighting:
    """Return what there is to do. QueueNotFound, and other errors of the queues."""
    from .running import upstream_at

    ended = remaining = 0
    is_paused = True
    opened = [queue_at(path) for path in campaign.queues]
    for queue in opened:
        status = queue.status()
        ended += status.completed + status.dead
        remaining += status.remaining
        is_paused = is_paused and queue.paused is not None
    for name in campaign.upstream:
        remaining += upstream_at(name, campaign.queues[0], None).status().remaining
    is_over = not remaining and not campaign.forever
    return Sighting(time.time(), ended, is_over, is_paused, stops.count(opened[0].store))


def evidence_of(campaign: Campaign, relay: Relay) -> Evidence:
    """Return how the predecessor has gone, as far as the scheduler and the queues tell. Nothing raises."""
    controller = CONTROLLERS[campaign.scheduler]
    end = controller.job_end()
    limit_s = None if end is None else end - time.time()
    run = None if relay.job is None else controller.run_of(relay.job)
    warned_s: float = campaign.warned_s
    if campaign.max_runtime_s is not None and limit_s is not None:
        warned_s = max(warned_s, limit_s - campaign.max_runtime_s)
    if run is None or limit_s is None:
        return Evidence(limit_s=limit_s, warned_s=warned_s)
    try:
        shortest_s = _shortest_s(campaign)
    except (OSError, FsqueueError):
        shortest_s = None
    return Evidence(run.state, run.elapsed_s, limit_s, warned_s, shortest_s, run.exit_status)


def _shortest_s(campaign: Campaign) -> float | None:
    """Return the shortest duration of the tasks that were measured lately; None if one queue has too few of them."""
    found = []
    for path in campaign.queues:
        work = queue_at(path).timeline(MEASURED_S, 1).work_s
        if sum(tasks for _, tasks in work) < MEASURED_MIN:
            return None
        found.append(min(seconds for seconds, _ in work))
    return min(found)


def why_leave(campaign: Campaign, found: Sighting) -> str | None:
    """Return why a job ends at once, and has no successor; None if it works."""
    if found.stops != campaign.stops:
        return f"the campaign was stopped ({campaign.stop_command})"
    if found.is_over:
        return "nothing is left to do"
    if found.is_paused:
        return f"all is paused. After 'fsqueue resume {quoted(campaign.queues[0])}', submit again"
    return None


def begin_job(script_path: str, told: str, is_again: bool) -> int:
    """Take the step that a job begins with, and return its exit code: LEAVE, or 0 to begin the worker."""
    campaign, relay = decode(told)
    job = CONTROLLERS[campaign.scheduler].own_job()
    with open(script_path, "rb") as file:
        script = script_in(file.read(), campaign)
    if is_again:
        Filling(campaign, relay, script, job, fills=False).try_for(_left_s(campaign))
        return 0
    fills = False
    try:
        found = look(campaign)
    except (QueueNotFound, fsqueue.QueueClosed, fsqueue.NotAQueue) as error:
        complain(str(error))
        handed = after_nothing(relay, time.time(), is_absent=True)
        if handed.absent >= ABSENT_MAX:
            complain(f"{handed.absent} jobs in a row have not found the queue: no more are submitted")
            return LEAVE
    except (OSError, FsqueueError) as error:
        complain(str(error))
        handed = after_nothing(relay, time.time(), is_absent=False)
    else:
        if (why := why_leave(campaign, found)) is not None:
            complain(f"this job ends, and no other is submitted: {why}")
            return LEAVE
        evidence = evidence_of(campaign, relay)
        handed = after(relay, found, evidence)
        if (why := why_none_fits(handed, evidence)) is not None:
            complain(
                f"this job ends, and no other is submitted: no task fits the time limit. {why} Submit again with a "
                "longer one."
            )
            return LEAVE
        fills = may_fill(relay, found)
    filling = Filling(campaign, replace(handed, job=job), script, job, fills)
    if not filling.try_for(FOREGROUND_S):
        complain("the worker begins; another process goes on to submit the successor")
        words = [sys.executable, "-P", "-m", f"{__package__}.successors", script_path]
        subprocess.Popen([*words, encode(campaign, filling.relay), AGAIN], stdin=subprocess.DEVNULL)
    if is_stopped(campaign):  # since the look above
        complain(f"this job ends: the campaign was stopped ({campaign.stop_command})")
        return LEAVE
    if not CONTROLLERS[campaign.scheduler].keeps_names_apart and not is_alone(campaign, relay.slot, job):
        complain("this job ends: another one of the same place runs")
        return LEAVE
    return 0


def is_alone(campaign: Campaign, slot: int, job: str) -> bool:
    """Return whether no other job of the same slot runs. Wait for those that began at the same time, and leave first.

    A scheduler shows a job as running before its script begins. So of two jobs, the one that looks last sees the other.
    The one with the larger number leaves at once. The other waits for that; if it does not happen, that one had looked
    before this one began, and works. Return True, too, if the scheduler does not answer: it takes no job then, either.
    """
    controller = CONTROLLERS[campaign.scheduler]
    until, (pause_s, most_s) = time.monotonic() + ALONE_S, PAUSE_S
    while True:
        jobs = controller.jobs_by_name()
        others = [] if jobs is None else [
            other for other, waits in jobs.get(campaign.job_name(slot), []) if not waits and other != job
        ]  # fmt: skip
        if not others:
            return True
        wait_s = pause_s * random.uniform(0.5, 1.5)
        if min(map(controller.number, others)) < controller.number(job) or time.monotonic() + wait_s > until:
            return False
        time.sleep(wait_s)
        pause_s = min(2 * pause_s, most_s)


def _left_s(campaign: Campaign) -> float:
    """Return how long this job lasts, in seconds."""
    end = CONTROLLERS[campaign.scheduler].job_end()
    return 30 * 86_400.0 if end is None else end - time.time()


def begin_campaign(campaign: Campaign, script: bytes, depends_on: str, slots: Sequence[int]) -> list[str]:
    """Submit a job to each of these slots, and return their ids. NotTaken if the scheduler takes none.

    Those that it refuses for half a minute are left to the first jobs that begin, or to the user. `depends_on`: for all
    of them.
    """
    jobs: list[str] = []
    until, (pause_s, _) = time.monotonic() + FOREGROUND_S, PAUSE_S
    while len(jobs) < len(slots):
        try:
            jobs.append(submit(campaign, Relay(slot=slots[len(jobs)]), script, depends_on))
            time.sleep(SPACE_S)
        except NotTaken as error:
            wait_s = pause_s * random.uniform(0.5, 1.5)
            if not jobs:
                raise
            if time.monotonic() + wait_s > until:
                rest = "For the others, repeat the command later."
                if campaign.replaces:
                    rest = "The first jobs that begin submit those that are missing."
                taken = f"{CONTROLLERS[campaign.scheduler].title} has taken {wording.counted(len(jobs), 'job')}"
                complain(f"{taken} of {len(slots):,} ({error}). {rest}")
                break
            time.sleep(wait_s)
            pause_s *= 2
    return jobs


def stop(path: str, now: bool, as_json: bool, controller: Controller) -> bool:
    """Stop the campaigns of a queue, and say what was done. False if the scheduler could not be asked, or did not
    cancel.
    """
    queue = queue_at(path)
    stops.stop(queue.store)
    pattern = names_of(queue.store.queue_state.id)
    jobs = controller.jobs_by_name()
    found = [job for name, listed in (jobs or {}).items() if pattern.fullmatch(name) for job in listed]
    waiting = sorted((job for job, waits in found if waits), key=controller.number)
    running = sorted((job for job, waits in found if not waits), key=controller.number)
    is_done = jobs is not None and controller.cancel(waiting, only_waiting=not now)
    is_done = is_done and (not now or controller.cancel(running, only_waiting=False))
    said: dict[str, Any] = {"queue": path_of(queue), "cancelled": waiting + (running if now else [])}
    said |= {"running": [] if now else running, "asked": jobs is not None}
    parts = [f"{wording.counted(len(waiting), 'waiting job')} cancelled{_listed(waiting)}"]
    if now:
        parts.append(f"{wording.counted(len(running), 'running job')} cancelled{_listed(running)}")
    elif running:
        verb = "finishes its tasks" if len(running) == 1 else "finish their tasks"
        parts.append(f"{wording.counted(len(running), 'running job')} {verb}{_listed(running)}")
    if jobs is None:
        parts = [
            f"{controller.title} does not answer here, so no job was cancelled. Those that wait end when they begin"
        ]
    print_done(as_json, said, f"{path_of(queue)}: no more jobs are submitted; {'; '.join(parts)}")
    return is_done


def _listed(jobs: list[str]) -> str:
    return f" ({' '.join(jobs)})" if jobs else ""


def main(arguments: list[str]) -> int:
    """Take the step of a job. Whatever is wrong with it, the worker begins: tasks matter more than the successor."""
    try:
        return begin_job(arguments[0], arguments[1], AGAIN in arguments[2:])
    except Exception as error:
        complain(f"no successor is submitted: {type(error).__name__}: {error}")
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
