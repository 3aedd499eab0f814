"""Campaigns in stories: jobs that submit their successors by the package's own code, to a Slurm in memory.

A user begins a campaign. The controller, a process of its own, starts each job that may begin; a job takes its first
step (`fsqueue_cli.successors`), and then works on the queue until that is drained, the campaign is stopped, or its time
is over. Users stop the campaign meanwhile, pause the queue, insert tasks, cancel jobs. What is judged is what
docs/resubmit.md and decision 62 promise: `_taken` with each job that Slurm takes, `_stepped` after each first step, and
`judge` at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from fsqueue_cli import successors
from fsqueue_cli.campaign import FRUITLESS_MAX, Campaign
from fsqueue_cli.successors import AGAIN, LEAVE, NotTaken, begin_campaign

from fsqueue.cluster.slurm import SLURM
from fsqueue.errors import from_os_error
from fsqueue.storage import stops
from tests.simulation.books import APART, BEFORE
from tests.simulation.faults import DAY_S, QUEUE
from tests.simulation.handles import Host
from tests.simulation.history import DONE, Actor, Call
from tests.simulation.slurm import CLEAN, KILLED, LIMIT_S, WARNED_S, Job, Slurm
from tests.simulation.world import runs

if TYPE_CHECKING:
    from fsqueue import Queue
    from tests.simulation.stories import Story

SCRIPT = b"#!/bin/bash\n\nexec fsqueue run Q -- true\n"
BELATED_S = 500.0
"""Within this time after the last refusal a job has its successor: the pause is 300 s at most, times 1.5."""
LOOK_S = 20.0
"""Time between two looks of an idle worker."""
STEP_S = 60.0
"""A first step takes no longer: half a minute of refusals, and delays."""
ENDS_S = 4 * DAY_S
"""Each campaign of a story has ended by then."""
STEP, STOP, PAUSE, RESUME = "step", "stop", "pause", "resume"
"""Names of calls in the history."""
USED = ("TIMEOUT", "COMPLETED")
"""States of jobs that ended by themselves, or at their limit."""


# -- acts ----------------------------------------------------------------------------------------------------------


def _later(story: Story, actor: Actor) -> None:
    """Let time pass: what users do comes at any time of a campaign."""
    actor.work(story.rng.choice((0.05, 0.3, 1.0, 30.0, 700.0, 2000.0)))


def stop_campaigns(story: Story, actor: Actor) -> None:
    """Stop all campaigns, at any time."""
    _later(story, actor)
    stop_now(story, actor)


def stop_now(story: Story, actor: Actor) -> None:
    """Stop all campaigns, as `fsqueue slurm --stop` does."""
    asked = story.slurm.troubled

    def stop() -> bool | None:
        try:
            return successors.stop(QUEUE, False, False, SLURM)
        except OSError as error:
            raise from_os_error(error, "stopping") from error  # as the command line does

    if actor._note(STOP, stop):
        story.history.wrong += _left_waiting(story, actor.last)
    elif actor.last.outcome == DONE and story.slurm.troubled == asked:
        story.history.wrong.append(f"{actor.last}: Slurm has done all that it was asked for")


def pause_and_resume(story: Story, actor: Actor) -> None:
    """Pause the queue, and resume it, most times."""
    _later(story, actor)
    actor.do(PAUSE, lambda q: q.pause())
    _later(story, actor)
    if story.rng.random() < 0.6:
        actor.do(RESUME, lambda q: q.resume())


def insert_later(story: Story, actor: Actor) -> None:
    """Insert tasks while jobs run."""
    _later(story, actor)
    actor.insert_many(story.fresh(story.rng.randint(1, 4)), None)


def cancel_job(story: Story, actor: Actor) -> None:
    """Cancel a single job that runs: its successor takes its place."""
    _later(story, actor)
    running = [job for job in story.slurm.jobs if job.state == "runs"]
    if running:
        job = story.rng.choice(running)
        story.world.fault(f"job {job.number} is cancelled")
        story.slurm.end(job, "CANCELLED", KILLED)


def requeue_job(story: Story, actor: Actor) -> None:
    """Requeue a job that runs, as sites do when they preempt it."""
    _later(story, actor)
    running = [job for job in story.slurm.jobs if job.state == "runs"]
    if running:
        job = story.rng.choice(running)
        story.world.fault(f"job {job.number} is requeued")
        story.slurm.requeue(job)


_ACTS = (stop_campaigns, pause_and_resume, insert_later, cancel_job, requeue_job)
ACTS: dict[str, Callable[[Story, Actor], None]] = {act.__name__: act for act in _ACTS}


# -- how a campaign goes on ------------------------------------------------------------------------------------------


def begin(story: Story) -> None:
    """Let a user begin a campaign, and the controller start its jobs."""
    slurm = story.world.slurm = story.slurm
    slurm.judge = lambda job: story.history.wrong.extend(_taken(story, job))
    slots, earlier, story.task_s = story.shape or _drawn(story)
    before = story.actor("before", story.hosts[0])
    for _ in range(earlier):
        before.do("stop before", lambda q: stops.stop(q.store))
    before.exit()
    name = f"work-{str(story.identity)[:8]}0a1b"
    command = ["sbatch", "--parsable", "--time=10"]
    campaign = Campaign(name, slots, [QUEUE], [], False, command, "/", int(WARNED_S), earlier)
    employ(story, "user", story.hosts[0], lambda actor: _begin_campaign(campaign, actor))
    employ(story, "slurmctld", Host("controller"), lambda actor: _control(story, actor))
    slurm.turn = story.scheduler.turns[-1]


def _drawn(story: Story) -> tuple[int, int, float]:
    """Draw how many jobs run at most, how often campaigns were stopped before, and how long a task takes."""
    rng = story.rng
    story.purpose(BEFORE)
    slots, earlier = rng.choice((1, 2, 2, 3)), rng.choice((0, 0, 1))
    task_s = LIMIT_S * 2 if story.scenario.too_long else rng.choice((5.0, 90.0, 250.0))
    story.purpose(APART)
    return slots, earlier, task_s


def employ(story: Story, name: str, host: Host, act: Callable[[Actor], None]) -> Actor:
    """Let a new process act, whose draws are written down."""
    actor = story.actor(name, host)

    def work() -> None:
        try:
            story.begin_act(actor, 1)
            act(actor)
        finally:
            actor.held.clear()
            story.slurm.wake()
        actor.exit()

    story.scheduler.add(actor.persona.process, work)
    return actor


def _begin_campaign(campaign: Campaign, actor: Actor) -> None:
    def submit() -> list[str] | None:
        try:
            return begin_campaign(campaign, SCRIPT, "", range(campaign.slots))
        except NotTaken:
            return None

    actor._note("begin", submit)


def _control(story: Story, actor: Actor) -> None:
    """Start jobs, and end them, until there are none any more, and nobody who could submit one."""
    slurm, world = story.slurm, story.world
    until = world.now + ENDS_S
    while True:
        _take_late(slurm)
        _spawn(story)
        for job in slurm.here():
            if job.state == "runs":
                _look_after(slurm, job)
        for job in slurm.can_begin():
            _start(story, job)
        mine = {id(turn) for job in slurm.jobs for turn in job.turns} | {id(slurm.turn)}
        if (
            not slurm.here()
            and not slurm.late
            and not runs(one for one in story.scheduler.turns if id(one) not in mine)
        ):
            return
        if world.now >= until:
            story.history.wrong.append(f"jobs are submitted for ever: {[job.number for job in slurm.here()]} are there")
        if story.history.wrong:  # it may go on for ever
            for job in slurm.here():
                slurm.end(job, "CANCELLED", KILLED)
            return
        times = [at for at, _ in slurm.late] + [until]
        times += [job.started + LIMIT_S for job in slurm.here() if job.state == "runs"]
        times += [job.begin_at for job in slurm.here() if job.state == "waits" and job.begin_at > world.now]
        others = [one for one in story.scheduler.turns if id(one) not in mine and not one.finished]
        actor.work(max(0.01, min(times) - world.now) if not others else min(60.0, max(0.01, min(times) - world.now)))


def _take_late(slurm: Slurm) -> None:
    due = [one for one in slurm.late if one[0] <= slurm.world.now]
    slurm.late = [one for one in slurm.late if one not in due]
    for _, job in due:
        slurm.take(job)


def _spawn(story: Story) -> None:
    """Let processes begin that jobs have begun: those that go on to submit a successor."""
    slurm = story.slurm
    for parent, words in slurm.spawned:
        job = slurm.job_of(parent)
        assert job is not None
        assert words[2:] == [AGAIN]
        if job.state == "runs" and parent is job.turns[0].process:
            child = employ(story, f"{parent.name}+", parent.host, lambda actor, words=words: _again(actor, words))
            _join(story, job, child)
    slurm.spawned.clear()


def _again(actor: Actor, words: list[str]) -> None:
    actor._note("again", lambda: successors.main(words))


def _join(story: Story, job: Job, actor: Actor) -> None:
    process = actor.persona.process
    process.environ = {
        "SLURM_JOB_ID": str(job.number), "SLURM_RESTART_COUNT": str(job.restarts),
        "SLURM_JOB_END_TIME": str(int(job.started + LIMIT_S)), "SLURMD_NODENAME": process.host.name,
    }  # fmt: skip
    story.slurm.processes[process] = job
    job.turns.append(story.scheduler.turns[-1])


def _start(story: Story, job: Job) -> None:
    """Let a job begin, for the first time or again."""
    world, slurm = story.world, story.slurm
    job.waited.append((job.since, world.disk.step))
    job.state, job.since, job.started, job.turns = "runs", world.disk.step, world.now, []
    running = [other for other in slurm.jobs if other.state == "runs"]
    if len(running) > job.campaign.slots:
        story.history.wrong.append(f"{len(running)} jobs run, and {job.campaign.slots} may: {_named(running)}")
    twice = [other for other in running if other.name == job.name]
    if len(twice) > 1:
        story.history.wrong.append(f"two jobs of one slot run: {_named(twice)}")
    again = f".{job.restarts}" if job.restarts else ""
    host = story.hosts[job.number % len(story.hosts)]
    world.say(f"      job {job.number}{again} begins, {job.name}")
    _join(story, job, employ(story, f"job{job.number}{again}", host, lambda actor: _run(story, job, actor)))


def _look_after(slurm: Slurm, job: Job) -> None:
    """End a job whose script has ended, or whose time is over. Of those that died each third one is requeued."""
    if slurm.world.now >= job.started + LIMIT_S:
        slurm.end(job, "TIMEOUT", CLEAN)
    elif job.is_clean:
        slurm.end(job, "COMPLETED", CLEAN)
    elif job.turns[0].process.dead:
        if job.number % 3 == 0:
            slurm.requeue(job)
        else:
            slurm.end(job, "FAILED", KILLED)


def _harm(story: Story) -> int:
    """Return how much has gone wrong so far. That a process stands still harms nobody."""
    return sum("stands still" not in text for text in story.world.faults)


def _run(story: Story, job: Job, actor: Actor) -> None:
    """Do what a job's script does: its first step, and then the worker."""
    begin = story.world.disk.step, _harm(story), story.slurm.troubled
    job.code = actor._note(STEP, lambda: successors.main([*job.told()]), job=job.number)
    if actor.last.outcome == DONE:
        is_calm = begin[1:] == (_harm(story), story.slurm.troubled)
        story.history.wrong += _stepped(story, job, actor, is_calm)
        if job.code == CLEAN:
            _work(story, job, actor)
    job.is_clean = True


def _stops(queue: Queue) -> int | None:
    """Return how often campaigns were stopped, as a worker asks; None if that cannot be read."""
    with suppress(OSError):
        return stops.count(queue.store)
    return None


def _work(story: Story, job: Job, actor: Actor) -> None:
    """Execute tasks until the queue is drained, the campaign is stopped, or Slurm warns of the end."""
    world = story.world
    until = job.started + LIMIT_S - WARNED_S
    while world.now < until:
        if actor.do("stops", _stops) not in (None, job.campaign.stops):
            return
        tasks = actor.lease(1, lease_s=LIMIT_S)
        if tasks:
            actor.work(story.task_s)
            actor.complete(tasks)
        elif actor.plain("is_drained"):
            return
        else:
            actor.work(LOOK_S)


# -- the judgement ---------------------------------------------------------------------------------------------------


def _named(jobs: list[Job]) -> str:
    return ", ".join(f"{job.number} ({job.name}, {job.state})" for job in jobs)


def _taken(story: Story, job: Job) -> Iterator[str]:
    """What is wrong if Slurm takes this job, by what its submitter could know of the others."""
    slurm, by = story.slurm, job.by
    mine = None if by is None else slurm.job_of(by)
    if by is None or mine is None or job.is_late:
        return
    since = slurm.looked.get(by, mine.since)
    others = [other for other in slurm.jobs if other.name == job.name and other not in (job, mine)]
    if job.slot == mine.slot:
        known = [other for other in others if other.state == "waits" and other.since < since]
    else:
        known = [other for other in others if other.is_here and other.taken < since]
    if known:
        yield f"{by.name} submits job {job.number} for slot {job.slot}, in which there is {_named(known)}"


def _stepped(story: Story, job: Job, actor: Actor, is_calm: bool) -> Iterator[str]:
    """What is wrong after the first step of a job. `is_calm`: nothing has gone wrong meanwhile, in the whole world."""
    call, slurm = actor.last, story.slurm
    said = slurm.said.get(actor.persona.process, [""])
    if any(text.startswith("no successor is submitted") for text in said):
        yield f"{call}: {said}"
    if job.code == LEAVE:
        yield from _left(story, job, call, said[-1])
    elif is_calm and job.code == CLEAN:
        yield from (f"{call}: it goes on, although {why}" for why in _reasons_to_leave(story, job, call))
        if not _calls(story, STOP, begun_by=call.end):
            yield from _provided_for(story, job, call)
    if is_calm:
        stopped = [one for one in _calls(story, STOP, begun_by=call.end) if one.end < call.end and one.result]
        for other in slurm.jobs:
            is_mine = other.by is actor.persona.process and other.state == "waits" and not other.is_late
            if is_mine and any(one.end < other.taken for one in stopped):
                yield f"{call}: it has submitted job {other.number} after the stop, and not cancelled it"


def _calls(story: Story, verb: str, begun_by: float = math.inf) -> list[Call]:
    return [call for call in story.history.calls if call.verb == verb and call.begin <= begun_by]


def _unfinished(story: Story, inserted_by: float, completed_by: float, surely: bool) -> bool:
    """Return whether tasks are left of those whose inserts had ended by one step, and completions by another one.

    `surely`: what was only begun does not count as inserted, and does as completed. Else the other way round.
    """
    there, gone = set[object](), set[object]()
    for call in story.history.calls:
        if call.verb == "insert" and (
            call.end <= inserted_by and call.outcome == DONE if surely else call.begin <= inserted_by
        ):
            there.update(call.args["payloads"])
        elif call.verb == "complete" and (
            call.begin <= completed_by if surely else call.end <= completed_by and call.outcome == DONE
        ):
            gone.update(task.payload for task in call.args["tasks"])
    return bool(there - gone)


def _completed(story: Story, since_s: float) -> bool:
    """Return whether a task was completed after this time, as far as can be known."""
    return any(call.verb == "complete" and call.ended >= since_s for call in story.history.calls)


def _left(story: Story, job: Job, call: Call, said: str) -> Iterator[str]:
    """What is wrong if a job ends at once, saying so."""
    if "nothing is left" in said:
        is_so = not _unfinished(story, call.begin, call.end, surely=True)
    elif "all is paused" in said:
        is_so = bool(_calls(story, PAUSE, begun_by=call.end))
    elif "was stopped" in said:
        is_so = bool(_calls(story, STOP, begun_by=call.end))
    elif "no task fits" in said:
        is_so = len(_fruitless(story, job, STEP_S)) >= FRUITLESS_MAX
    else:
        is_so = False
    if not is_so:
        yield f"{call}: it leaves, and says {said!r}"


def _fruitless(story: Story, job: Job, later_s: float = 0.0) -> list[Job]:
    """Return the jobs before this one, the latest first, that used their time while no task ended.

    `later_s`: how long after its beginning a job may have counted the tasks that had ended.
    """
    found: list[Job] = []
    while job.relay.job is not None:
        before = story.slurm.jobs[int(job.relay.job) - 1]
        if _completed(story, job.relay.at + later_s):
            break
        if before.state in USED and before.used_s(0) >= LIMIT_S - WARNED_S - 90:
            found.append(before)
        job = before
    return found


def _reasons_to_leave(story: Story, job: Job, call: Call) -> Iterator[str]:
    """Yield why a job must have left at once: what was so before it began, and all the time since."""
    if any(one.end < call.begin and one.outcome == DONE for one in _calls(story, STOP)):
        yield "its campaign was stopped"
    if not _unfinished(story, call.end, call.begin, surely=False):
        yield "nothing was left to do"
    paused = [one.end for one in _calls(story, PAUSE) if one.outcome == DONE and one.end < call.begin]
    if paused and not any(one.end > max(paused) for one in _calls(story, RESUME, begun_by=call.end)):
        yield "the queue was paused"
    if len(used := _fruitless(story, job)) >= FRUITLESS_MAX:
        yield f"no task ended while these used their time: {_named(used)}"


def _provided_for(story: Story, job: Job, call: Call) -> Iterator[str]:
    """What is wrong if a job without a successor works; or if it has left a slot empty, though tasks end."""
    jobs = story.slurm.jobs
    if not any(
        other.name == job.name and other is not job and other.was_waiting(call.begin, call.end) for other in jobs
    ):
        yield f"{call}: job {job.number} works, and has no successor"
    if job.relay.at and not any(
        one.verb == "complete" and one.outcome == DONE and one.began >= job.relay.at and one.end < call.begin
        for one in story.history.calls
    ):
        return
    for slot in range(job.campaign.slots):
        name = job.campaign.job_name(slot)
        if not any(other.name == name and (other.is_here or other.ended >= call.began) for other in jobs):
            yield f"{call}: job {job.number} works, and slot {slot} is empty"


def _left_waiting(story: Story, call: Call) -> Iterator[str]:
    """What is wrong after a stop that has cancelled all that waits: jobs wait whose submitters have done with them."""
    for job in story.slurm.jobs:
        mine = None if job.by is None else story.slurm.job_of(job.by)
        if mine is None or job.state != "waits" or job.taken > call.end or job.is_late:
            continue
        steps = [one for one in _calls(story, STEP) if job.by is not None and one.actor == job.by.name]
        if any(one.outcome == DONE and one.end < call.end for one in steps) and not job.restarts:
            yield f"{call}: job {job.number} waits still, which {mine.number} has submitted"


def judge(story: Story) -> Iterator[str]:
    """What is wrong when no jobs are there any more: each row of jobs must have had a reason to end."""
    slurm = story.slurm
    if not slurm.jobs:
        return
    has_ended = bool(_calls(story, STOP) or _calls(story, PAUSE))
    if has_ended or not _unfinished(story, math.inf, math.inf, surely=True):
        return
    for slot in range(slurm.jobs[0].campaign.slots):
        of_slot = [job for job in slurm.jobs if job.slot == slot]
        if not of_slot:
            continue
        last = max(of_slot, key=lambda job: job.ended)
        followers = [job for job in of_slot if job.relay.job == str(last.number)]
        is_provided = last.ended - max(last.trouble_at, last.started) > BELATED_S
        is_killed = any(turn.process.name in slurm.killed for turn in last.turns)
        had_trouble = last.trouble_at >= last.started and not is_provided
        if last.code == CLEAN and not followers and not had_trouble and not is_killed:
            yield f"job {last.number} has ended ({last.state}), tasks are left, and it has no successor"


def at_rest(story: Story) -> list[str]:
    """Judge the campaign, and let the queue go on for the end of the story."""
    wrong = [*judge(story)]
    after = story.actor("after", Host("server"))
    after.do(RESUME, lambda q: q.resume())
    after.exit()
    return wrong
