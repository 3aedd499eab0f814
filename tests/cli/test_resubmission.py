"""slurm --resubmit, --fill: what Slurm alone has of it, and what follows from what a job finds.

test_campaigns.py has the steps, with a stand-in for each scheduler. tests/lab/test_resubmission.py has a real Slurm.

The order of steps and the crash table are in docs/decisions/0062-jobs-that-replace-themselves.md.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from fsqueue_cli import campaign, successors
from fsqueue_cli.campaign import (
    Campaign,
    Capacity,
    Evidence,
    Relay,
    Sighting,
    after,
    after_nothing,
    due,
    may_fill,
    why_none_fits,
)
from fsqueue_cli.worker_need import Load, Reckoning, load_of, reckon

from fsqueue import Queue, Worker
from fsqueue.cluster.slurm import exit_status_in, job_end
from fsqueue.storage import stops
from tests.cli.conftest import Run, Spawn
from tests.cli.scheduler_stand_in import StandIn
from tests.waiting import LOOK_AGAIN, until

pytestmark = pytest.mark.once


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StandIn:
    """A stand-in for Slurm, in the PATH of this process."""
    made = StandIn.make(tmp_path / "slurm", "slurm")
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(successors, "SPACE_S", 0.0)
    monkeypatch.setattr(successors, "PAUSE_S", (0.01, 0.02))
    job_end.cache_clear()
    return made


@pytest.fixture
def busy(queue: Queue) -> Queue:
    queue.insert_many(range(3))
    return queue


def begin(fsqueue_cli: Run, queue: Queue, *options: object) -> list[str]:
    """Begin a campaign, and return the ids of its first jobs."""
    said = fsqueue_cli("slurm", queue.path, "--resubmit", *options, "--", "true")
    return said.stdout.split()


def step(slurm: StandIn, monkeypatch: pytest.MonkeyPatch, job: str, begins: bool = True) -> int:
    """Have a job take its first step in this process, and return its exit code."""
    if begins:
        assert job in slurm.can_begin()
        slurm.change(job, state="runs")
    monkeypatch.setenv("SLURM_JOB_ID", job)
    job_end.cache_clear()
    code = successors.main(slurm.told(job))
    monkeypatch.delenv("SLURM_JOB_ID")
    return code


# -- what is submitted


def test_a_job_for_each_place_that_slurm_runs_one_at_a_time(fsqueue_cli: Run, busy: Queue, slurm: StandIn) -> None:
    assert begin(fsqueue_cli, busy, "--max-jobs", 3, "-t", 60, "-J", "a b,c") == ["1", "2", "3"]
    jobs = slurm.jobs()
    assert len({job["name"] for job in jobs}) == 3
    assert all(re.fullmatch(r"a_b_c-[0-9a-f]{12}-[012]", job["name"]) for job in jobs)
    assert all(job["is_single"] and job["after"] == [] for job in jobs)
    assert all("--stoppable" in job["script"] for job in jobs)
    assert all(subprocess.run(["bash", "-n"], input=job["script"], text=True).returncode == 0 for job in jobs)


def test_one_job_at_a_time_unless_asked_otherwise(fsqueue_cli: Run, busy: Queue, slurm: StandIn) -> None:
    assert begin(fsqueue_cli, busy) == ["1"]
    assert "[1]" in fsqueue_cli("slurm", "--help").stdout


def test_what_is_printed_is_what_is_submitted(fsqueue_cli: Run, busy: Queue, slurm: StandIn) -> None:
    options = ["slurm", busy.path, "--resubmit", "--max-jobs", 2, "-d", "afterok:77"]
    fsqueue_cli(*options, "--", "true", "it's\n")
    printed = fsqueue_cli(*options, "--print", "--", "true", "it's\n").stdout
    subprocess.run(["bash", "-c", printed], check=True, stdout=subprocess.DEVNULL)
    told = [re.sub(r"-[0-9a-f]{12}", "", json.dumps([job["words"], job["script"]])) for job in slurm.jobs()]
    assert told[:2] == told[2:]
    assert all(job["words"][-1] == "--dependency=afterok:77,singleton" for job in slurm.jobs())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--array", "0-3"], "--max-jobs N says how many"),
        (["--wait"], "--wait cannot be used"),
        (["-H"], "--hold cannot be used"),
        (["-M", "other"], "--clusters cannot be used"),
        (["-d", "afterok:1?afterok:2"], "with '\\?'"),
        (["--max-jobs", "0"], "max-jobs"),
    ],
)
def test_what_cannot_be_done_anew_is_refused(
    fsqueue_cli: Run, busy: Queue, slurm: StandIn, words: list[str], said: str
) -> None:
    assert re.search(said, fsqueue_cli("slurm", busy.path, "--resubmit", *words, "--", "true", code=2).stderr)
    assert slurm.jobs() == []
    assert "--resubmit" in fsqueue_cli("slurm", busy.path, "--max-jobs", 2, "--", "true", code=2).stderr


# -- a job begins


def test_a_site_that_renames_jobs_does_not_multiply_them(
    fsqueue_cli: Run, busy: Queue, slurm: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(fsqueue_cli, busy, "--max-jobs", 3)
    for job in slurm.jobs():
        slurm.change(job["id"], name=f"site-{job['name']}")
    assert step(slurm, monkeypatch, "1") == 0
    assert [job["after"] for job in slurm.jobs()[3:]] == [["1"]], "its own successor, and no other places"
    slurm.change("4", name="site-other")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert step(slurm, monkeypatch, "1", begins=False) == 0
    assert len(slurm.jobs()) == 4


@pytest.mark.parametrize("way", ["drained", "paused", "stopped"])
def test_a_successor_with_nothing_to_do_ends_at_once(
    fsqueue_cli: Run, busy: Queue, slurm: StandIn, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    begin(fsqueue_cli, busy)
    if way == "drained":
        Worker(busy, command=["true"]).run()
    elif way == "paused":
        busy.pause()
    else:
        stops.stop(busy.store)
    script = slurm.told("1")[0]
    ran = subprocess.run(["bash", script], env=of_job("1"), capture_output=True, timeout=60)
    assert ran.returncode == 0
    assert b"no other is submitted" in ran.stderr
    assert len(slurm.jobs()) == 1


def of_job(job: str) -> dict[str, str]:
    """The environment of a job's script."""
    return os.environ | {"SLURM_JOB_ID": job}


def test_the_script_begins_the_worker_behind_the_step(fsqueue_cli: Run, busy: Queue, slurm: StandIn) -> None:
    begin(fsqueue_cli, busy)
    slurm.change("1", state="runs")
    script = Path(slurm.told("1")[0])
    ran = subprocess.run(["bash", script], env=of_job("1"), capture_output=True, text=True, timeout=60)
    assert (ran.returncode, "follows this one" in ran.stderr, "3 completed" in ran.stderr) == (0, True, True), ran
    assert len(slurm.jobs()) == 2


# -- the stop


def test_a_stoppable_worker_finishes_its_task_and_no_other(busy: Queue, spawn: Spawn, tmp_path: Path) -> None:
    command = ["sh", "-c", f"touch {tmp_path}/begun; until [ -e {tmp_path}/go ]; do {LOOK_AGAIN}; done"]
    process = spawn("run", busy.path, "--stoppable", "--grace", "0", "--", *command)
    until((tmp_path / "begun").exists, "a task is at work")
    stops.stop(busy.store)
    [line] = [next(iter(process.stderr or ()))]
    assert "its campaign was stopped" in line
    (tmp_path / "go").touch()
    assert process.wait() == 0
    assert (busy.status().completed, busy.status().waiting) == (1, 2)


def test_a_worker_whose_campaign_was_stopped_before_it_began_does_no_task(
    fsqueue_cli: Run, busy: Queue, slurm: StandIn
) -> None:
    """The stop falls between the job's last look and the worker's first one."""
    fsqueue_cli("slurm", "--stop", busy.path)
    begin(fsqueue_cli, busy)
    [line] = [line for line in slurm.jobs()[0]["script"].splitlines() if "--stoppable" in line]
    assert "--stoppable --stops-before 1 " in line
    fsqueue_cli("slurm", "--stop", busy.path)
    done = fsqueue_cli("run", busy.path, "--forever", "--stoppable", "--stops-before", 1, "--", "true")
    assert "its campaign was stopped" in done.stderr
    assert busy.status().completed < 3, "it may have begun one before its first look"


@pytest.mark.parametrize("words", [["-t", "60"], ["--resubmit"], ["--max-jobs", "3"], ["--", "true"]])
def test_a_stop_stands_alone(fsqueue_cli: Run, busy: Queue, slurm: StandIn, words: list[str]) -> None:
    assert "stands alone" in fsqueue_cli("slurm", busy.path, "--stop", *words, code=2).stderr
    assert "stands alone" in fsqueue_cli("slurm", busy.path, "--now", code=2).stderr
    assert stops.count(busy.store) == 0


# -- what follows from what was found


@pytest.mark.parametrize(
    ("text", "status"), [("35328", 138), ("138:0", 138), ("0", 0), ("9", 0), ("", -1), ("N/A", -1)]
)
def test_an_exit_status_as_squeue_prints_it(text: str, status: int) -> None:
    assert exit_status_in(text) == status


def found(at: float, ended: int = 0) -> Sighting:
    return Sighting(at, ended, is_over=False, is_paused=False, stops=0)


def test_an_own_place_comes_first_and_others_only_if_nobody_is_there() -> None:
    runs, waits = ("1", False), ("2", True)
    assert due([[], [], []], None) == [0, 1, 2]
    assert due([[runs], [], [("5", False)]], (0, "1")) == [0, 1]
    assert due([[runs, waits], [("5", True)], []], (0, "1")) == [2]
    assert due([[("1", True)]], (0, "1")) == [0], "its own entry is no successor: Slurm may not know yet that it runs"


USED = Evidence("TIMEOUT", 3600.0, 3600.0, 40.0)


@pytest.mark.parametrize(
    ("evidence", "ended", "fruitless"),
    [
        (USED, 7, 2),
        (USED, 8, 0),
        (replace(USED, state="COMPLETED", elapsed_s=3480.0), 7, 2),
        (replace(USED, state="COMPLETED", elapsed_s=3000.0), 7, 1),
        (replace(USED, state="PREEMPTED"), 7, 1),
        (replace(USED, state="CANCELLED"), 7, 1),
        (replace(USED, state="FAILED", exit_status=11), 7, 1),
        (replace(USED, state="FAILED", exit_status=138), 7, 2),
        (replace(USED, state="NODE_FAIL"), 7, 1),
        (Evidence(limit_s=3600.0), 7, 1),
        (Evidence("TIMEOUT", 12.0, 60.0, 40.0), 7, 2),
        (Evidence("TIMEOUT", 9.0, 60.0, 40.0), 7, 1),
    ],
)
def test_only_a_job_that_used_its_time_and_saw_no_task_end_counts(
    evidence: Evidence, ended: int, fruitless: int
) -> None:
    relay = Relay(job="1", at=1000.0, ended=7, fruitless=1)
    assert after(relay, found(9000.0, ended), evidence).fruitless == fruitless


def test_why_none_fits() -> None:
    assert why_none_fits(Relay(fruitless=2), USED) is None
    assert "no task ended" in (why_none_fits(Relay(fruitless=3), USED) or "")
    assert "3,601 s" in (why_none_fits(Relay(fruitless=1), replace(USED, shortest_s=3601.0)) or "")
    assert why_none_fits(Relay(fruitless=1), replace(USED, shortest_s=3599.0)) is None
    assert why_none_fits(Relay(fruitless=0), replace(USED, shortest_s=3601.0)) is None, "one job has to try"


def test_an_empty_place_is_not_filled_while_no_task_ends() -> None:
    assert may_fill(Relay(), found(1.0))
    assert may_fill(Relay(at=1.0, ended=3), found(2.0, 4))
    assert not may_fill(Relay(at=1.0, ended=3), found(2.0, 3))


def test_a_pause_is_forgotten_after_a_job_that_worked() -> None:
    relay = Relay(job="1", at=0.0, pause_s=120.0, quick=3)
    assert after(relay, found(179.0), Evidence()).quick == 4
    assert after(relay, found(181.0), Evidence()) == replace(relay, at=181.0, pause_s=0.0, quick=0)
    assert after_nothing(relay, 181.0, is_absent=True).absent == 1
    assert after_nothing(replace(relay, absent=2), 181.0, is_absent=False).absent == 2


def test_any_word_is_handed_on_as_it_is() -> None:
    words = ["it's", "\n", "é", "\udcff", '"', "\\"]
    given = Campaign("n", 1, words, [], False, words, "/", 40, 0)
    assert campaign.decode(campaign.encode(given, Relay(slot=3))) == (given, Relay(slot=3))
    assert campaign.encode(given, Relay()).isascii()
    given = replace(given, worker=Capacity(4, 3600.0, 3560.0, 7), replaces=False)
    assert campaign.decode(campaign.encode(given, Relay())) == (given, Relay())


def test_the_measured_durations_are_those_of_the_queues(busy: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(successors, "MEASURED_MIN", 3)
    given = Campaign("n", 1, [str(busy.path)], [], False, [], "/", 40, 0)
    assert successors._shortest_s(given) is None
    Worker(busy, command=["true"]).run()
    assert (successors._shortest_s(given) or 0.0) > 0.0


# -- as many jobs as the tasks need


def fill(fsqueue_cli: Run, queue: Queue, most: int, *options: object) -> tuple[list[str], dict[str, object]]:
    """Submit what is missing, and return the ids of the jobs and the reckoning."""
    said = json.loads(fsqueue_cli("slurm", queue.path, "--fill", most, *options, "--json", "--", "true").stdout)
    return said["jobs"], said["fill"]


def took(queue: Queue, monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    """Let the queue's completed tasks have taken so long."""
    real = Queue.timeline

    def timeline(self: Queue, window_s: float = 3600, pieces: int = 60) -> object:
        return replace(real(self, window_s, pieces), work_s=[(one, 20) for one in seconds])

    monkeypatch.setattr(Queue, "timeline", timeline)


def test_as_many_jobs_as_the_tasks_need_at_the_measured_rate(
    fsqueue_cli: Run, queue: Queue, slurm: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker has 3,560 s, and does two tasks of 600 s at a time: ten in all."""
    queue.insert_many(range(31))
    took(queue, monkeypatch, 500.0, 700.0)
    jobs, said = fill(fsqueue_cli, queue, 10, "-t", 60, "-j", 2)
    assert jobs == ["1", "2", "3", "4"]
    assert said == {
        "most": 10, "tasks": 31, "measured": 40, "mean_s": 600.0, "at_a_time": 2, "work_s": 3560.0, "needed": 4,
        "there": 0, "submitted": 4,
    }  # fmt: skip
    assert slurm.slots() == ["0", "1", "2", "3"]
    assert all(job["is_single"] and "--stoppable" in job["script"] for job in slurm.jobs())
    assert not any("successors" in job["script"] for job in slurm.jobs())
    assert fill(fsqueue_cli, queue, 10, "-t", 60, "-j", 2)[0] == [], "they are there"
    slurm.change("2", state="COMPLETED")
    assert fill(fsqueue_cli, queue, 10, "-t", 60, "-j", 2)[0] == ["5"]
    assert slurm.slots()[-1] == "1", "it has the place of the one that ended"


def test_no_more_than_n_are_there_and_others_count(
    fsqueue_cli: Run, busy: Queue, slurm: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(fsqueue_cli, busy)
    assert step(slurm, monkeypatch, "1") == 0
    busy.lease(1)
    said = fsqueue_cli("slurm", busy.path, "--fill", 4, "-t", 60, "--", "true")
    assert said.stdout.split() == ["3"], "a campaign's job with its successor is one worker, a process another"
    assert " ".join(said.stderr.split()).endswith(
        "3 tasks to do, no duration is known yet, so each of these counts as all of a worker's time; a worker has 59 "
        "min and does 1 at a time: 3 workers needed, 2 there, 1 to submit (at most 4)"
    )
    busy.insert_many(range(40))
    assert len(fill(fsqueue_cli, busy, 4, "-t", 60)[0]) == 1


def test_a_refusal_in_a_burst_is_tried_again(
    fsqueue_cli: Run, busy: Queue, slurm: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = successors.submit
    refusals = [0, 2, 1, 0]

    def submit(to: Campaign, relay: Relay, *rest: object) -> str:
        if relay.slot and refusals[relay.slot]:
            refusals[relay.slot] -= 1
            raise successors.NotTaken("not now")
        return real(to, relay, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(successors, "submit", submit)
    assert len(fill(fsqueue_cli, busy, 3, "-t", 60)[0]) == 3
    slurm.change("3", state="FAILED")
    monkeypatch.setattr(successors, "FOREGROUND_S", 0.0)
    busy.insert("one more")
    refusals[3] = 1
    said = fsqueue_cli("slurm", busy.path, "--fill", 4, "-t", 60, "--", "true").stderr
    assert "has taken 1 job of 2" in said
    assert "repeat the command" in said


def test_a_job_that_cannot_reckon_submits_its_successor_alone(
    fsqueue_cli: Run, busy: Queue, slurm: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(fsqueue_cli, busy, 2, "-t", 60, "--resubmit")
    slurm.change("2", state="FAILED")

    def timeline(*_: object) -> None:
        raise OSError("no answer")

    monkeypatch.setattr(Queue, "timeline", timeline)
    assert step(slurm, monkeypatch, "1") == 0
    assert slurm.slots() == ["0", "1", "0"]


def test_a_stop_ends_the_jobs_of_a_fill(fsqueue_cli: Run, busy: Queue, slurm: StandIn) -> None:
    fill(fsqueue_cli, busy, 3, "-t", 60)
    slurm.change("1", state="runs")
    said = fsqueue_cli("slurm", "--stop", busy.path).stdout
    assert "2 waiting jobs cancelled (2 3); 1 running job finishes its tasks (1)" in said


def test_what_is_printed_is_what_a_fill_submits(fsqueue_cli: Run, busy: Queue, slurm: StandIn) -> None:
    options = ["slurm", busy.path, "--fill", 2, "-t", 60]
    printed = fsqueue_cli(*options, "--print", "--", "true").stdout
    slurm.fault("list", "refuse")
    assert fsqueue_cli(*options, "--print", "--", "true").stdout == printed, "also where Slurm does not answer"
    fsqueue_cli(*options, "--", "true")
    told = [[job["words"], job["script"]] for job in slurm.jobs()]
    subprocess.run(["bash", "-c", printed], check=True, stdout=subprocess.DEVNULL)
    assert [[job["words"], job["script"]] for job in slurm.jobs()[2:]] == told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "time limit of a job, and none is given"),
        (["-t", "UNLIMITED"], "'UNLIMITED' is none"),
        (["-t", "60", "-j", "auto"], "-j auto tells that only in the job"),
        (["-t", "60", "--max-jobs", "3"], "leave out --max-jobs"),
        (["-t", "60", "--resubmit", "--max-jobs", "3"], "leave out --max-jobs"),
        (["-t", "60", "--array", "0-3"], "--fill N says how many"),
        (["-t", "60", "-n", "4"], "one worker in each job"),
        (["-t", "60", "--hold"], "--hold cannot be used with --fill"),
        (["--stop"], "stands alone"),
    ],
)
def test_a_fill_that_makes_no_sense_is_refused(
    fsqueue_cli: Run, busy: Queue, slurm: StandIn, words: list[str], said: str
) -> None:
    assert said in fsqueue_cli("slurm", busy.path, "--fill", 3, *words, "--", "true", code=2).stderr
    assert slurm.jobs() == []


def test_a_fill_says_if_no_task_fits_or_slurm_does_not_answer(
    fsqueue_cli: Run, busy: Queue, slurm: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.fault("list", "refuse")
    assert "nobody knows which workers wait" in fsqueue_cli(
        "slurm", busy.path, "--fill", 3, "-t", 60, "--", "true", code=1
    ).stderr  # fmt: skip
    took(busy, monkeypatch, 7200.0)
    said = fsqueue_cli("slurm", busy.path, "--fill", 3, "-t", 60, "--", "true", code=2).stderr
    assert re.search(r"took\s+2 h,\s+and a job has\s+1 h", said)
    assert slurm.jobs() == []


def test_a_paused_queue_needs_no_workers(fsqueue_cli: Run, busy: Queue, slurm: StandIn) -> None:
    busy.pause()
    said = fsqueue_cli("slurm", busy.path, "--fill", 3, "-t", 60, "--", "true").stderr
    assert "is paused" in said
    assert "0 workers needed" in said
    assert slurm.jobs() == []


HOUR = Capacity(4, 3600.0, 3560.0)


@pytest.mark.parametrize(
    ("load", "worker", "workers"),
    [
        (Load(100), HOUR, 25.0),
        (Load(100, 5, 60.0, 50.0), HOUR, 100 / (4 * 59)),
        (Load(100, 5, 2000.0, 50.0), HOUR, 25.0),
        (Load(100, 5, 5000.0, 50.0), HOUR, 25.0),
        (Load(100, 19, 5000.0, 4000.0), HOUR, 25.0),
        (Load(100, 20, 5000.0, 4000.0), HOUR, 0.0),
        (Load(100, 5, 0.0, 0.0), HOUR, 100 / (4 * 3_560_000)),
        (Load(100, 5, 60.0, 50.0), replace(HOUR, tasks_max=10), 10.0),
        (Load(100, 5, 2000.0, 50.0, at_once_max=8.0), HOUR, 2.0),
        (Load(100, at_once_max=1000.0), HOUR, 25.0),
    ],
)
def test_how_many_workers_a_queue_needs(load: Load, worker: Capacity, workers: float) -> None:
    assert load.workers(worker) == pytest.approx(workers)


def test_queues_share_workers() -> None:
    half = Load(20, 50, 700.0, 1.0)  # a worker does 20 of them
    assert reckon([half, half, Load(0)], HOUR, 0, 9).needed == 2
    assert reckon([Load(1), Load(1)], HOUR, 0, 9).needed == 1
    assert reckon([], HOUR, 2, 9) == Reckoning(9, 0, 0, None, 4, 3560.0, 0, 2)
    mixed = reckon([half, Load(1)], HOUR, 0, 9)
    assert (mixed.needed, mixed.mean_s) == (2, None)
    assert "the durations of some are not known" in str(mixed)


def test_limits_of_a_queue_bound_what_is_at_work(busy: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    busy.change_settings(max_leased=6, rate="30/m", limit={"licence": 2})
    assert load_of(busy).at_once_max == 6
    took(busy, monkeypatch, 4.0)
    assert load_of(busy) == Load(3, 20, 4.0, 4.0, at_once_max=2.0)
    busy.change_settings(max_leased=None, rate=None)
    assert load_of(busy).at_once_max is None, "how many values a field has is not known"


def test_the_load_of_a_queue_is_what_was_measured(busy: Queue) -> None:
    assert load_of(busy) == Load(3)
    Worker(busy, command=["true"], max_tasks=2).run()
    found = load_of(busy)
    assert (found.tasks, found.measured) == (1, 2)
    assert found.shortest_s is not None
    assert found.mean_s is not None
    assert found.mean_s >= found.shortest_s
