"""slurm --resubmit, pbs, lsf, sge: jobs that replace themselves, each step with a stand-in for each scheduler.

The order of steps and the crash table are in docs/decisions/0062-jobs-that-replace-themselves.md. What Slurm alone has
is in test_resubmission.py, which also has the parts that ask no scheduler.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fsqueue_cli import campaign, successors
from fsqueue_cli.campaign import Campaign, Relay
from fsqueue_cli.successors import CONTROLLERS, script_in, told_in

from fsqueue import Queue, Worker
from fsqueue.cluster import slurm
from fsqueue.cluster.controller import Controller, JobRun, ScriptController
from fsqueue.cluster.lsf import LSF
from fsqueue.filesystem import processes
from fsqueue.storage import stops
from tests.cli.conftest import Run, Spawn
from tests.cli.scheduler_stand_in import HERE, KINDS, StandIn
from tests.pages import blocks, text_of
from tests.waiting import until

pytestmark = pytest.mark.once

OF_SCRIPTS = [name for name in KINDS if name != "slurm"]
"""Schedulers to which a script of the user's own is submitted."""
with_scripts = pytest.mark.parametrize("kind", OF_SCRIPTS)
LIMITS = {"pbs": "#PBS -l walltime=1:00:00", "lsf": "#BSUB -W 1:00", "sge": "#$ -l h_rt=1:00:00"}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The name of a scheduler."""
    name: str = request.param
    return name


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> StandIn:
    """A stand-in for the scheduler, in the PATH of this process."""
    made = StandIn.make(tmp_path / kind, kind)
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    for name in {name for one in KINDS.values() for name in one.variables}:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(successors, "SPACE_S", 0.0)
    monkeypatch.setattr(successors, "PAUSE_S", (0.01, 0.02))
    slurm.job_end.cache_clear()
    return made


@pytest.fixture
def busy(queue: Queue) -> Queue:
    queue.insert_many(range(3))
    return queue


@pytest.fixture
def script(tmp_path: Path, busy: Queue, kind: str) -> Path:
    """A script of the user's own."""
    path = tmp_path / f"worker.{kind}"
    limit = LIMITS.get(kind, "")
    path.write_text(f'#!/bin/bash\n{limit}\nfsqueue {kind} {busy.path} "$0" || exit 0\nfsqueue run Q -j 2 -- true\n')
    return path


class Site:
    """A user who submits jobs for a queue to a scheduler, and the jobs."""

    def __init__(
        self, fsqueue_cli: Run, queue: Queue, there: StandIn, script: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.run, self.queue, self.there, self.script, self.monkeypatch = fsqueue_cli, queue, there, script, monkeypatch
        self.name = there.kind.name
        self.controller: Controller = CONTROLLERS[self.name]

    def words(self, *options: object) -> list[object]:
        """Return the arguments that begin a campaign."""
        if self.name == "slurm":
            limit = ["-t", "60", "-j", "2"]
            return ["slurm", self.queue.path, "--resubmit", *options, *limit, "--", "true"]
        return [self.name, self.queue.path, self.script, *options]

    def begin(self, *options: object) -> list[str]:
        """Begin a campaign, and return the ids of its first jobs."""
        return self.run(*self.words(*options)).stdout.split()

    def stop(self, *options: object, code: int = 0) -> str:
        return self.run(self.name, "--stop", self.queue.path, *options, code=code).stdout

    def step(self, number: int, begins: bool = True) -> int:
        """Have the job of this number take its first step in this process, and return its exit code."""
        job = self.there.id(number)
        if begins:
            assert job in self.there.can_begin()
            self.there.change(job, state="runs")
        path, told = self.there.told(job)
        variables = {name: value.format(job=job) for name, value in self.there.kind.variables.items()}
        slurm.job_end.cache_clear()
        with self.monkeypatch.context() as patched:
            for name, value in variables.items():
                patched.setenv(name, value)
            return successors.main([path, told])

    def end(self, number: int, **fields: object) -> None:
        self.there.change(self.there.id(number), **({"state": "COMPLETED"} | fields))


@pytest.fixture
def site(fsqueue_cli: Run, busy: Queue, there: StandIn, script: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(fsqueue_cli, busy, there, script, monkeypatch)


# -- what is submitted


def test_a_job_for_each_place(site: Site, there: StandIn) -> None:
    assert site.begin("--max-jobs", 3) == [there.id(number) for number in (1, 2, 3)]
    assert there.slots() == ["0", "1", "2"]
    assert [job["after"] for job in there.jobs()] == [[]] * 3
    pattern = campaign.names_of(site.queue.id)
    assert all(pattern.fullmatch(job["name"]) for job in there.jobs())
    assert len({job["name"] for job in there.jobs()}) == 3
    assert json.loads(site.run(*site.words("--json")).stdout)["jobs"] == [there.id(4)], "one unless asked otherwise"
    assert all(subprocess.run(["bash", "-n"], input=job["script"], text=True).returncode == 0 for job in there.jobs())


@with_scripts
def test_the_script_is_submitted_with_a_line_that_tells_the_job_its_campaign(site: Site, there: StandIn) -> None:
    site.begin()
    first, told, *rest = there.jobs()[0]["script"].split("\n")
    assert [first, *rest] == site.script.read_text().split("\n")
    assert told.startswith("#fsqueue {")
    assert len(there.jobs()[0]["name"]) <= 15
    printed = site.run(*site.words("--print", "--max-jobs", 2)).stdout
    before = {"env": {"LSB_NTRIES": "1", "PATH": f"{there.bin}:/usr/bin:/bin"}}
    subprocess.run(["bash", "-c", printed], check=True, stdout=subprocess.DEVNULL, **before)  # type: ignore[call-overload]
    assert there.slots()[1:] == ["0", "1"]
    assert [job["script"].split("\n")[2:] for job in there.jobs()[1:]] == [rest] * 2


# -- a job begins


def test_a_job_that_begins_submits_its_successor_once(site: Site, there: StandIn) -> None:
    site.begin("--max-jobs", 2)
    before = there.jobs()[0]
    with there.begin(there.id(1)) as process:
        said = process.communicate()[1]
    assert process.returncode == 0, said
    *_, made = there.jobs()
    assert (made["name"], made["after"], made["is_single"]) == (before["name"], [there.id(1)], site.name == "slurm")
    lines, lines_before = made["script"].split("\n"), before["script"].split("\n")
    assert [lines[0], *lines[2:]] == [lines_before[0], *lines_before[2:]]
    own = set(there.kind.variables) & set(made["variables"])
    kept = {"slurm": {"SBATCH_ACCOUNT"}, "lsf": {"LSB_DEFAULTPROJECT"}}
    if site.name in kept:
        assert own == kept[site.name], "what a job is told is not handed on, but what the user has set is"
    with there.execute(there.id(1)) as process:  # requeued, it begins a second time
        process.communicate()
    assert process.returncode == 0
    assert len(there.jobs()) == 3


@pytest.mark.parametrize(
    ("role", "act", "mended_by"),
    [("list", "kill-before", "another"), ("submit", "kill-before", "another"), ("submit", "kill-after", "nobody")],
)
def test_a_crash_at_each_step_leaves_a_campaign_that_goes_on(
    site: Site, there: StandIn, role: str, act: str, mended_by: str
) -> None:
    """The job dies with its step. Then the other one begins."""
    site.begin("--max-jobs", 2)
    there.fault(role, act)
    with there.begin(there.id(1)) as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    site.end(1, state="NODE_FAIL")
    assert there.slots(*HERE) == (["1"] if mended_by == "another" else ["1", "0"])
    with there.begin(there.id(2)) as process:
        process.communicate()
    assert process.returncode == 0
    assert sorted(there.slots(*HERE)) == ["0", "1", "1"]
    assert {job["is_single"] for job in there.jobs()} == {site.controller.keeps_names_apart}


def test_a_successor_whose_answer_was_lost_is_found_by_its_name(site: Site, there: StandIn) -> None:
    site.begin()
    there.fault("submit", "lose")
    assert site.step(1) == 0
    assert len(there.jobs("waits")) == 1


def test_a_refusal_is_tried_again_until_it_is_taken(
    site: Site, there: StandIn, capfd: pytest.CaptureFixture[str]
) -> None:
    there.fault("submit", "refuse")
    assert "too many jobs" in site.run(*site.words(), code=1).stderr
    site.begin()
    there.fault("submit", "refuse", 5)
    assert site.step(1) == 0
    assert len(there.jobs("waits")) == 1
    assert capfd.readouterr().err.count("too many jobs") == 1, "it is said once"


def test_a_burst_that_is_refused_is_completed_by_the_first_job(
    site: Site, there: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(successors, "FOREGROUND_S", 0.0)
    real = successors.submit

    def submit(to: Campaign, relay: Relay, *rest: object) -> str:
        if relay.slot:
            raise successors.NotTaken("not now")
        return real(to, relay, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(successors, "submit", submit)
    assert "has taken 1 job of 2" in site.run(*site.words("--max-jobs", 2)).stderr
    monkeypatch.setattr(successors, "submit", real)
    assert site.step(1) == 0
    assert there.slots() == ["0", "0", "1"], "the first job that begins fills the empty place"


def test_the_worker_begins_although_slurm_refuses_for_long(
    site: Site, there: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.begin()
    monkeypatch.setattr(successors, "FOREGROUND_S", 0.0)
    there.fault("submit", "refuse", 2)
    assert site.step(1) == 0
    assert there.jobs("waits") == [], "the step has ended, and the worker begins"
    until(lambda: there.jobs("waits"), "another process submits the successor")


def test_two_jobs_that_fill_one_place_leave_no_more_than_one_that_works(site: Site, there: StandIn) -> None:
    site.begin("--max-jobs", 3)
    site.end(1, state="NODE_FAIL")  # before it has submitted anything
    both = [there.begin(there.id(2)), there.begin(there.id(3))]
    for process in both:
        with process:
            process.communicate()
        assert process.returncode == 0
    filled = [job["id"] for job in there.jobs("waits") if job["name"].endswith("-0")]
    assert len(filled) in (1, 2)
    if site.controller.keeps_names_apart:
        assert len(set(filled) & set(there.can_begin())) == 1
    for job in filled:  # a surplus is used up: with one that waits already, none is submitted
        with there.begin(job) as process:
            process.communicate()
        assert process.returncode == 0
        there.change(job, state="COMPLETED")
    assert len([job for job in there.jobs("waits") if job["name"].endswith("-0")]) == 1


@with_scripts
def test_of_two_jobs_of_one_place_one_works(site: Site, there: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    site.begin()
    there.surplus(there.id(1))
    assert site.step(1) == 0
    assert site.step(2) == successors.LEAVE, "it finds the first one running"
    monkeypatch.setattr(successors, "ALONE_S", 0.0)
    assert site.step(1, begins=False) == successors.LEAVE, "the other one has looked, and works"


@with_scripts
def test_of_two_jobs_that_begin_at_once_one_works(site: Site, there: StandIn) -> None:
    site.begin()
    other = there.surplus(there.id(1))
    there.change(other, state="runs")
    with there.begin(there.id(1)) as first, there.execute(other) as second:
        second.communicate()
        assert second.returncode == successors.LEAVE
        there.change(other, state="COMPLETED")
        first.communicate()
    assert first.returncode == 0
    waiting = there.jobs("waits")
    assert len(waiting) in (1, 2)
    assert all(there.id(1) in job["after"] for job in waiting if job["after"] != [other])


@with_scripts
def test_a_site_that_gives_jobs_other_names_gets_no_successors(site: Site, there: StandIn) -> None:
    site.begin()
    there.change(there.id(1), name="other")
    assert site.step(1) == 0
    assert len(there.jobs()) == 1


@pytest.mark.parametrize("way", ["drained", "paused", "stopped"])
def test_a_successor_with_nothing_to_do_ends_at_once(
    site: Site, there: StandIn, capfd: pytest.CaptureFixture[str], way: str
) -> None:
    site.begin()
    if way == "drained":
        Worker(site.queue, command=["true"]).run()
    elif way == "paused":
        site.queue.pause()
    else:
        stops.stop(site.queue.store)
    assert site.step(1) == successors.LEAVE
    said = capfd.readouterr().err
    assert "no other is submitted" in said
    assert way != "stopped" or f"fsqueue {site.name} --stop" in said
    assert len(there.jobs()) == 1


def test_a_queue_that_is_gone_ends_the_campaign_after_some_jobs(site: Site, there: StandIn) -> None:
    site.begin()
    site.queue.delete()
    jobs = 0
    while there.can_begin():
        jobs += 1
        site.step(jobs)
        site.end(jobs, state="FAILED")
    assert jobs == campaign.ABSENT_MAX


def test_jobs_that_come_quickly_are_spaced_out_for_ever(site: Site, there: StandIn) -> None:
    site.begin()
    for number in range(1, 12):
        assert site.step(number) == 0, "no number of failed jobs ends a campaign"
        site.end(number, state="FAILED", used_s=5, status=1)
    begins = [job["begin"] for job in there.jobs()]
    assert begins[:2] == [None, None]
    assert all(begins[2:]), "the stand-in knows how its command takes a time"
    told = [campaign.decode(there.told(job["id"])[1])[1].pause_s for job in there.jobs()]
    assert told == [0, 0, 30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


ENDS = [
    {"state": "TIMEOUT", "used_s": 3610, "status": 143},
    {"state": "COMPLETED", "used_s": 3005, "status": 0},
    {"state": "TIMEOUT", "used_s": 3540, "status": 137},
]
"""A job at its limit, one whose worker had ended in time (--max-runtime), and one near its limit."""
SLURM_ENDS = [
    {"state": "TIMEOUT", "used_s": 3603},
    {"state": "FAILED", "used_s": 3530, "status": 138},
    {"state": "TIMEOUT", "used_s": 3603},
]
"""The second is one that Slurm had warned of its limit."""


def test_tasks_that_do_not_fit_the_limit_end_the_campaign(
    site: Site, there: StandIn, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    site.script.write_text(site.script.read_text() + "fsqueue run Q --max-runtime 50m -- true\n")
    site.begin()
    for number, ended in enumerate(SLURM_ENDS if site.name == "slurm" else ENDS, 1):
        there.change(there.id(number), end=int(time.time()) + 3600)  # as squeue tells it
        assert site.step(number) == 0
        site.end(number, **ended)
    there.change(there.id(4), end=int(time.time()) + 3600)
    assert site.step(4) == successors.LEAVE
    assert "no task fits the time limit" in capfd.readouterr().err
    assert len(there.jobs()) == 4


# -- the stop


def test_a_stop_cancels_what_waits_and_says_so(site: Site, there: StandIn) -> None:
    site.begin("--max-jobs", 2)
    site.step(1)
    with there.changing() as jobs:
        jobs.append({**jobs[0], "id": there.id(4), "name": "another", "state": "waits"})
    one, two, three = map(there.id, (1, 2, 3))
    said = site.stop()
    assert f"2 waiting jobs cancelled ({two} {three}); 1 running job finishes its tasks ({one})" in said
    assert [job["state"] for job in there.jobs()] == ["runs", "CANCELLED", "CANCELLED", "waits"]
    said = site.stop("--now", "--json")
    assert json.loads(said) == {"queue": str(site.queue.path), "cancelled": [one], "running": [], "asked": True}
    assert there.jobs("runs") == []


def test_a_stop_without_an_answer_holds_nevertheless(site: Site, there: StandIn) -> None:
    site.begin()
    there.fault("list", "refuse")
    assert f"{site.controller.title} does not answer" in site.stop(code=1)
    assert site.step(1) == successors.LEAVE


@pytest.mark.parametrize("role", ["list", "cancel"])
def test_a_stop_that_dies_is_repeated_or_the_jobs_leave(site: Site, there: StandIn, spawn: Spawn, role: str) -> None:
    site.begin()
    there.fault(role, "kill-before")
    assert spawn(site.name, "--stop", site.queue.path).wait() == -signal.SIGKILL
    assert len(there.jobs("waits")) == 1
    assert site.step(1) == successors.LEAVE
    there.change(there.id(1), state="waits")
    site.stop()
    assert there.jobs("waits") == []


def test_a_stop_between_the_look_and_the_submission_leaves_no_job(
    site: Site, there: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.begin()
    real = successors.submit

    def submit(*given: object) -> str:
        stops.stop(Queue(site.queue.path).store)  # its list of jobs came before this one
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(successors, "submit", submit)
    assert site.step(1) == successors.LEAVE
    assert [job["state"] for job in there.jobs()] == ["runs", "CANCELLED"]


def test_a_campaign_begun_after_a_stop_goes_on(site: Site, there: StandIn) -> None:
    site.stop()
    site.begin()
    assert site.step(1) == 0
    assert len(there.jobs()) == 2


# -- as many jobs as the tasks need


def took(queue: Queue, monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    """Let the queue's completed tasks have taken so long."""
    real = Queue.timeline

    def timeline(self: Queue, window_s: float = 3600, pieces: int = 60) -> object:
        return replace(real(self, window_s, pieces), work_s=[(one, 20) for one in seconds])

    monkeypatch.setattr(Queue, "timeline", timeline)


def fill(site: Site, most: int, code: int = 0) -> tuple[list[str], dict[str, object]]:
    """Submit what is missing, and return the ids of the jobs and the reckoning."""
    said = json.loads(site.run(*site.words("--fill", most, "--json"), code=code).stdout)
    return said["jobs"], said["fill"]


def test_as_many_jobs_as_the_tasks_need(site: Site, there: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker has an hour, or nearly that, and does two tasks of 600 s at a time."""
    site.queue.insert_many(range(28))
    took(site.queue, monkeypatch, 500.0, 700.0)
    jobs, said = fill(site, 10)
    each = 10 if site.name == "slurm" else 12  # Slurm warns of the limit
    needed = -(-31 // each)
    assert jobs == [there.id(number) for number in range(1, needed + 1)]
    assert (said["tasks"], said["at_a_time"], said["needed"], said["there"]) == (31, 2, needed, 0)
    assert fill(site, 10)[0] == [], "they are there"
    site.end(2)
    assert fill(site, 10)[0] == [there.id(needed + 1)]
    assert there.slots()[-1] == "1", "it has the place of the one that ended"


def test_two_commands_at_once_have_no_more_than_n_jobs_that_work(
    site: Site, there: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both look before either submits."""
    with monkeypatch.context() as patched:
        patched.setattr(type(site.controller), "jobs_by_name", lambda _: {})
        assert [len(fill(site, 2)[0]) for _ in range(2)] == [2, 2]
    assert there.slots() == ["0", "1", "0", "1"]
    assert [site.step(1), site.step(2)] == [0, 0]
    for number in (3, 4):
        if there.id(number) in there.can_begin():
            assert site.step(number) == successors.LEAVE
    if site.controller.keeps_names_apart:
        assert there.slots("runs") == ["0", "1"]


@pytest.mark.parametrize(("act", "left"), [("kill-before", 0), ("kill-after", 1), ("lose", 1)])
def test_a_fill_that_dies_is_repeated(site: Site, there: StandIn, spawn: Spawn, act: str, left: int) -> None:
    site.queue.insert_many(range(3))
    there.fault("submit", act)
    with spawn(*site.words("--fill", 3)) as process:
        assert process.wait() == (1 if act == "lose" else -signal.SIGKILL)
    assert len(there.jobs()) == left
    assert len(fill(site, 3)[0]) == 3 - left
    assert sorted(there.slots()) == ["0", "1", "2"]


def test_a_job_that_begins_fills_up_as_far_as_the_tasks_need(
    site: Site, there: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    took(site.queue, monkeypatch, 1000.0)
    assert fill(site, 3)[0] == [there.id(1)]
    assert site.step(1) == 0
    assert there.slots() == ["0", "0"], "one worker does six tasks of 1,000 s, and the job has its successor"
    site.end(1)
    site.queue.insert_many(range(6))
    site.queue.complete(site.queue.lease(1))
    assert site.step(2) == 0
    assert there.slots()[2:] == ["0", "1"]
    site.queue.insert_many(range(100))
    site.queue.complete(site.queue.lease(1))
    site.end(2)
    assert site.step(3) == 0
    assert there.slots()[4:] == ["0", "2"], "three are there at most"
    site.stop()
    assert there.jobs("waits") == []


def test_a_worker_of_a_job_that_runs_is_counted_once(
    site: Site, there: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a lease says of its worker's job, and what the scheduler calls it, may be different texts."""
    site.queue.insert_many(range(20))
    assert len(fill(site, 1)[0]) == 1
    assert site.step(1) == 0
    for name, value in there.kind.variables.items():
        monkeypatch.setenv(name, value.format(job=there.id(1)))
    Queue(site.queue.path).lease(1)
    for name in there.kind.variables:
        monkeypatch.delenv(name)
    assert fill(site, 2)[1]["there"] == 1


@with_scripts
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("LIMIT", "", "the script asks for none"),
        ("-j 2", "-j auto", "-j auto tells that only in the job"),
        ("-j 2", '-j "$N"', "does not tell: "),
        ("run Q -j 2 --", "run Q -j 2 'it", "does not tell: "),
    ],
)
def test_a_fill_that_cannot_reckon_is_refused(site: Site, there: StandIn, old: str, new: str, said: str) -> None:
    site.script.write_text(site.script.read_text().replace(LIMITS[site.name] if old == "LIMIT" else old, new))
    assert said in " ".join(site.run(*site.words("--fill", 3), code=2).stderr.split())
    assert there.jobs() == []


@with_scripts
def test_a_fill_says_if_no_task_fits_or_the_scheduler_does_not_answer(
    site: Site, there: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.fault("list", "refuse")
    assert "nobody knows which workers wait" in site.run(*site.words("--fill", 3), code=1).stderr
    took(site.queue, monkeypatch, 7200.0)
    said = " ".join(site.run(*site.words("--fill", 3), code=2).stderr.split())
    assert re.search(r"took 2 h, and a job has 1 h", said)
    assert "leave out --max-jobs" in site.run(*site.words("--fill", 3, "--max-jobs", 3), code=2).stderr
    assert there.jobs() == []


# -- scripts


@with_scripts
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/bash\nexec fsqueue run Q -- true\n", "would not replace itself"),
        ("#!/bin/bash\n# fsqueue KIND Q worker\nexec fsqueue run Q -- true\n", "would not replace itself"),
        ('#!/bin/bash\nARRAY\nfsqueue KIND Q "$0" || exit 0\n', "An array cannot replace itself"),
        ("\0", "is no script"),
    ],
)
def test_a_script_that_cannot_replace_itself_is_refused(site: Site, there: StandIn, text: str, said: str) -> None:
    for array in ARRAYS[site.name]:
        site.script.write_text(text.replace("KIND", site.name).replace("ARRAY", array))
        assert said in " ".join(site.run(*site.words(), code=2).stderr.split())
    assert there.jobs() == []


ARRAYS = {
    "pbs": ["#PBS -J 0-3", "#PBS -j oe -t 0-3"],
    "lsf": ['#BSUB -J "tiles[1-4]"', "#BSUB -n 2 -J [1-4]"],
    "sge": ["#$ -t 1-4", "#$ -cwd -t 1-4"],
}


@with_scripts
def test_what_makes_no_sense_is_refused(
    site: Site, there: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = site.queue.path
    assert "stands alone" in site.run(site.name, "--stop", path, "--max-jobs", 2, code=2).stderr
    assert "stands alone" in site.run(site.name, "--now", path, code=2).stderr
    assert "Name the queues" in site.run(site.name, site.script, code=2).stderr
    assert "cannot be read" in site.run(site.name, path, tmp_path / "none", code=2).stderr
    with monkeypatch.context() as patched:
        for name, value in there.kind.variables.items():
            patched.setenv(name, value.format(job=there.id(1)))
        assert f"submitted by {site.controller.submit_command}" in site.run(*site.words(), code=2).stderr
    Worker(site.queue, command=["true"]).run()
    assert "nothing to do" in site.run(*site.words(), code=3).stderr
    monkeypatch.setenv("PATH", "/nowhere")
    site.queue.insert("x")
    assert f"{site.controller.submit_command} cannot be run here" in site.run(*site.words(), code=1).stderr


PAGE = [one for one in blocks(text_of("docs/schedulers.md")) if one.section.endswith(": jobs for weeks")]


@with_scripts
def test_the_script_of_the_guide(
    fsqueue_cli: Run, queue: Queue, there: StandIn, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    [code] = [block.code for block in PAGE if f'fsqueue {kind} "$Q"' in block.code and "#!" in block.code]
    script = tmp_path / f"worker.{kind}"
    script.write_text(code)
    (tmp_path / "fsqueue-env").symlink_to(sys.prefix)
    (there.directory / "render").write_text("#!/bin/sh\n")
    (there.directory / "render").chmod(0o755)
    queue.insert_many([{"tile": n, "zoom": 2} for n in (1, 2)])
    monkeypatch.chdir(there.directory)
    assert fsqueue_cli(kind, queue.path, script, "--fill", 2).stdout.split() == [there.id(1)]
    monkeypatch.setenv("Q", str(queue.path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for number, said_then in ((1, "2 completed"), (2, "nothing is left to do")):
        with there.begin(there.id(number), "bash") as process:
            said = process.communicate()[1]
        assert (process.returncode, said_then in said) == (0, True), said
        there.change(there.id(number), state="COMPLETED")
    assert len(there.jobs()) == 2


WRAPPED = """\
#! /bin/sh

# LSBATCH: Environments
A='x'; export A
$LSB_TRAPSIGS
# LSBATCH: User input
{script}
ExitStat=$?
wait
# LSBATCH: End user input
true
exit `expr $? "|" $ExitStat`
"""


@pytest.mark.parametrize("kind", ["lsf"])
def test_a_scheduler_may_execute_more_than_the_script(
    site: Site, there: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """LSF puts a script that names no shell it knows into one of its own. A successor gets no more lines than that."""
    site.begin()
    script = there.jobs()[0]["script"]
    there.change(there.id(1), script=WRAPPED.format(script=script), state="runs")
    (tmp_path / "own").write_text(WRAPPED.format(script=script))
    for name, value in there.kind.variables.items():
        monkeypatch.setenv(name, value.format(job=there.id(1)))
    monkeypatch.setenv("LSB_JOBFILENAME", str(tmp_path / "own"))
    site.run("lsf", site.queue.path, "/bin/sh", code=2)
    (tmp_path / "empty").touch()
    site.run("lsf", site.queue.path, tmp_path / "empty")  # $0 is another file: it is looked for where LSF has it
    told = script.split("\n")
    made = there.jobs()[1]["script"].split("\n")
    assert [made[0], *made[2:]] == [told[0], *told[2:]]


def test_a_script_of_an_earlier_version_is_all_that_the_file_has() -> None:
    given = replace(CAMPAIGN, scheduler="pbs")
    data = b"#!/bin/sh\n#fsqueue " + campaign.encode(given, Relay()).encode() + b"\ntrue\n"
    told = told_in(data)
    assert told is not None
    assert campaign.decode(told) == (given, Relay())
    assert script_in(data, given) == data
    assert script_in(b"x\n" + data + b"wait\n", replace(given, script_bytes=5)) == data
    assert told_in(b"#!/bin/sh\n# fsqueue {}\n#fsqueue is good\n") is None


CAMPAIGN = Campaign("n", 1, ["/q"], [], False, [], "/", 0, 0, max_runtime_s=60.0)


# -- what a scheduler tells


@with_scripts
def test_what_is_asked_of_a_job(there: StandIn, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = CONTROLLERS[kind]
    assert isinstance(controller, ScriptController)
    assert controller.jobs_by_name() == {}
    job = there.add("a", [], "", [])
    there.change(job, state="runs", used_s=1200)
    assert controller.job_end() is None
    with monkeypatch.context() as patched:
        for name, value in there.kind.variables.items():
            patched.setenv(name, value.format(job=job))
        patched.setattr(processes, "age_with", lambda variable, job: 1200.0)  # else it is the age of this process
        end = controller.job_end()
    assert end is not None
    assert end == pytest.approx(time.time() + 2400, abs=300)
    assert controller.jobs_by_name() == {"a": [(job, False)]}, "an array of the user is none of them"
    assert controller.run_of(there.id(7)) is None
    there.change(job, state="FAILED", status=1)
    assert controller.run_of(job) == JobRun("FAILED", 1200.0, 1)
    there.change(job, state="COMPLETED", status=0)
    assert controller.run_of(job) == JobRun("COMPLETED", 1200.0, 0)
    other = there.add("a", [], "", [])
    assert controller.cancel([other, job, there.id(7)], only_waiting=False), "what has ended counts as cancelled"
    assert controller.jobs_by_name() == {}
    there.fault("cancel", "refuse")
    assert not controller.cancel([other], only_waiting=False)
    monkeypatch.setenv("PATH", "/nowhere")
    assert (controller.jobs_by_name(), controller.run_of(job)) == (None, None)


@pytest.mark.parametrize(
    ("kind", "line", "limit_s"),
    [
        ("pbs", "#PBS -l select=1:ncpus=2,walltime=1:00:00", 3600.0),
        ("pbs", "#PBS -l walltime=60", 60.0),
        ("pbs", "# walltime=60", None),
        ("lsf", "#BSUB -W 90", 5400.0),
        ("lsf", "#BSUB -n 2 -W 1:30/host1", 5400.0),
        ("lsf", "#BSUB -We 90", None),
        ("sge", "#$ -l h_vmem=2G,h_rt=3600", 3600.0),
        ("sge", "#$ -l s_rt=3600", None),
    ],
)
def test_the_time_limit_of_a_script(kind: str, line: str, limit_s: float | None) -> None:
    controller = CONTROLLERS[kind]
    assert isinstance(controller, ScriptController)
    assert controller.limit_s(f"#!/bin/sh\n{line}\ntrue\n".encode()) == limit_s


@pytest.mark.parametrize(
    ("variables", "outer"),
    [
        ({"LSB_JOBID": "9", "LSB_RESTART": "Y", "LSF_ENVDIR": "/etc", "LSB_DEFAULTQUEUE": "q", "LS_JOBPID": "1"},
         ["LSB_JOBID", "LSB_RESTART", "LS_JOBPID"]),
        ({"LSB_RESTART": "Y"}, []),
    ],
)  # fmt: skip
def test_which_variables_are_those_of_the_outer_job_of_lsf(variables: dict[str, str], outer: list[str]) -> None:
    assert LSF.outer_variables(variables) == outer


@pytest.mark.parametrize(
    ("printed", "seconds"),
    [("12 second(s)", 12.0), ("60.0 min", 3600.0), ("60.0/host1", 3600.0), ("01:00:00", 3600.0), ("-", None)],
)
def test_a_time_as_bjobs_prints_it(printed: str, seconds: float | None) -> None:
    from fsqueue.cluster.lsf import seconds_in

    assert seconds_in(printed) == seconds
