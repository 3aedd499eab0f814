"""pbs: jobs that replace themselves, with a stand-in for PBS.

The order of steps and the crash table are in docs/decisions/0062-jobs-that-replace-themselves.md.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fsqueue_cli import campaign, successors
from fsqueue_cli.campaign import Relay
from fsqueue_cli.pbs import told_in

from fsqueue import Queue, Worker
from fsqueue.cluster import pbs as controller
from fsqueue.storage import stops
from tests.cli.conftest import Run, Spawn
from tests.cli.pbs_stand_in import PbsStandIn
from tests.pages import blocks, text_of
from tests.waiting import until

pytestmark = pytest.mark.once


@pytest.fixture
def pbs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PbsStandIn:
    """A stand-in for PBS, in the PATH of this process."""
    made = PbsStandIn.make(tmp_path / "pbs")
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    for name in ("PBS_JOBID", "PBS_ENVIRONMENT", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(successors, "SPACE_S", 0.0)
    monkeypatch.setattr(successors, "PAUSE_S", (0.01, 0.02))
    return made


@pytest.fixture
def busy(queue: Queue) -> Queue:
    queue.insert_many(range(3))
    return queue


@pytest.fixture
def script(tmp_path: Path, busy: Queue) -> Path:
    path = tmp_path / "worker.pbs"
    path.write_text(f'#!/bin/bash\n#PBS -l walltime=1:00:00\nfsqueue pbs {busy.path} "$0" || exit 0\necho worker\n')
    return path


def begin(fsqueue_cli: Run, queue: Queue, script: Path, *options: object) -> list[str]:
    """Begin a campaign, and return the ids of its first jobs."""
    return fsqueue_cli("pbs", queue.path, script, *options).stdout.split()


def step(pbs: PbsStandIn, monkeypatch: pytest.MonkeyPatch, job: str, begins: bool = True) -> int:
    """Have a job take its first step in this process, and return its exit code."""
    if begins:
        assert job in pbs.can_begin()
        pbs.change(job, state="R")
    monkeypatch.setenv("PBS_JOBID", job)
    path = pbs.script_of(job)
    told = told_in(Path(path).read_bytes())
    assert told is not None
    code = successors.begin_job(path, told, is_again=False)
    monkeypatch.delenv("PBS_JOBID")
    return code


def step_in_a_process(pbs: PbsStandIn, queue: Queue, job: str) -> subprocess.Popen[str]:
    return pbs.begin(job, sys.executable, "-P", "-m", "fsqueue_cli", "pbs", str(queue.path))


def slots(pbs: PbsStandIn, *states: str) -> list[str]:
    """The slots of jobs, by their ids."""
    return [job["name"].rpartition("-")[2] for job in pbs.jobs(*states)]


def test_a_job_for_each_place(fsqueue_cli: Run, busy: Queue, script: Path, pbs: PbsStandIn) -> None:
    assert begin(fsqueue_cli, busy, script, "--max-jobs", 3) == ["1.pbs01", "2.pbs01", "3.pbs01"]
    jobs = pbs.jobs()
    assert [len(job["name"]) <= 15 and job["after"] == [] for job in jobs] == [True] * 3
    assert slots(pbs) == ["0", "1", "2"]
    assert [campaign.names_of(busy.id).fullmatch(job["name"]) is not None for job in jobs] == [True] * 3
    first, told, *rest = jobs[0]["script"].split("\n")
    assert [first, *rest] == script.read_text().split("\n")
    assert told.startswith("#fsqueue {")
    assert json.loads(fsqueue_cli("pbs", busy.path, script, "--json").stdout)["jobs"] == ["4.pbs01"]
    printed = fsqueue_cli("pbs", busy.path, script, "--print", "--max-jobs", 2).stdout
    subprocess.run(["bash", "-c", printed], check=True, stdout=subprocess.DEVNULL)
    assert slots(pbs)[4:] == ["0", "1"]
    assert [job["script"].split("\n")[2:] for job in pbs.jobs()[4:]] == [rest] * 2


def test_a_job_that_begins_submits_its_successor_once(
    fsqueue_cli: Run, busy: Queue, script: Path, pbs: PbsStandIn
) -> None:
    begin(fsqueue_cli, busy, script, "--max-jobs", 2)
    with step_in_a_process(pbs, busy, "1.pbs01") as process:
        said = process.communicate()[1]
    assert process.returncode == 0, said
    *_, made = pbs.jobs()
    assert (made["name"], made["after"]) == (pbs.jobs()[0]["name"], ["1.pbs01"])
    assert made["script"].split("\n")[2:] == pbs.jobs()[0]["script"].split("\n")[2:]
    with pbs.execute("1.pbs01", sys.executable, "-P", "-m", "fsqueue_cli", "pbs", str(busy.path)) as process:
        assert process.wait() == 0  # requeued, it begins a second time
    assert len(pbs.jobs()) == 3


@pytest.mark.parametrize(
    ("command", "act", "mended_by"),
    [("qselect", "kill-before", "another"), ("qsub", "kill-before", "another"), ("qsub", "kill-after", "nobody")],
)
def test_a_crash_at_each_step_leaves_a_campaign_that_goes_on(
    fsqueue_cli: Run, busy: Queue, script: Path, pbs: PbsStandIn, command: str, act: str, mended_by: str
) -> None:
    """The job dies with its step. Then the other one begins."""
    begin(fsqueue_cli, busy, script, "--max-jobs", 2)
    pbs.fault(command, act)
    with step_in_a_process(pbs, busy, "1.pbs01") as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    pbs.change("1.pbs01", state="F")
    assert slots(pbs, "Q", "H", "R") == (["1"] if mended_by == "another" else ["1", "0"])
    with step_in_a_process(pbs, busy, "2.pbs01") as process:
        process.communicate()
    assert process.returncode == 0
    assert sorted(slots(pbs, "Q", "H", "R")) == ["0", "1", "1"]


def test_a_successor_whose_answer_was_lost_is_found_by_its_name(
    fsqueue_cli: Run, busy: Queue, script: Path, pbs: PbsStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(fsqueue_cli, busy, script)
    pbs.fault("qsub", "lose")
    assert step(pbs, monkeypatch, "1.pbs01") == 0
    assert len(pbs.jobs("H")) == 1


def test_a_refusal_is_tried_again_until_it_is_taken(
    fsqueue_cli: Run,
    busy: Queue,
    script: Path,
    pbs: PbsStandIn,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    pbs.fault("qsub", "refuse")
    assert "per-user limit" in fsqueue_cli("pbs", busy.path, script, code=1).stderr
    begin(fsqueue_cli, busy, script)
    pbs.fault("qsub", "refuse", 5)
    assert step(pbs, monkeypatch, "1.pbs01") == 0
    assert len(pbs.jobs("H")) == 1
    assert capfd.readouterr().err.count("per-user limit") == 1, "it is said once"


def a_surplus(pbs: PbsStandIn, of: str) -> str:
    """Submit a second job of the same slot, as one whose answer came too late for the next look."""
    with pbs.changing() as jobs:
        [one] = [job for job in jobs if job["id"] == of]
        jobs.append({**one, "id": f"{len(jobs) + 1}.pbs01"})
        return str(jobs[-1]["id"])


def test_of_two_jobs_of_one_place_one_works(
    fsqueue_cli: Run, busy: Queue, script: Path, pbs: PbsStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(fsqueue_cli, busy, script)
    other = a_surplus(pbs, "1.pbs01")
    assert step(pbs, monkeypatch, "1.pbs01") == 0
    assert step(pbs, monkeypatch, other) == successors.LEAVE, "it finds the first one running"
    monkeypatch.setattr(successors, "ALONE_S", 0.0)
    assert step(pbs, monkeypatch, "1.pbs01", begins=False) == successors.LEAVE, "the other one has looked, and works"


def test_of_two_jobs_that_begin_at_once_one_works(fsqueue_cli: Run, busy: Queue, script: Path, pbs: PbsStandIn) -> None:
    begin(fsqueue_cli, busy, script)
    other = a_surplus(pbs, "1.pbs01")
    pbs.change(other, state="R")
    with (
        step_in_a_process(pbs, busy, "1.pbs01") as first,
        pbs.execute(other, sys.executable, "-P", "-m", "fsqueue_cli", "pbs", str(busy.path)) as second,
    ):
        assert second.wait() == successors.LEAVE
        pbs.change(other, state="F")
        assert first.wait() == 0
    waiting = pbs.jobs("H")
    assert len(waiting) in (1, 2)
    assert all("1.pbs01" in job["after"] for job in waiting if job["after"] != [other])


def test_a_site_that_renames_jobs_does_not_multiply_them(
    fsqueue_cli: Run, busy: Queue, script: Path, pbs: PbsStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(fsqueue_cli, busy, script)
    pbs.change("1.pbs01", name="other")
    assert step(pbs, monkeypatch, "1.pbs01") == 0
    assert len(pbs.jobs()) == 1


@pytest.mark.parametrize("way", ["drained", "paused", "stopped"])
def test_a_successor_with_nothing_to_do_ends_at_once(
    fsqueue_cli: Run, busy: Queue, script: Path, pbs: PbsStandIn, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    begin(fsqueue_cli, busy, script)
    if way == "drained":
        Worker(busy, command=["true"]).run()
    elif way == "paused":
        busy.pause()
    else:
        stops.stop(busy.store)
    assert step(pbs, monkeypatch, "1.pbs01") == successors.LEAVE
    assert len(pbs.jobs()) == 1


def test_failed_jobs_are_spaced_out_and_none_is_the_last(
    fsqueue_cli: Run, busy: Queue, script: Path, pbs: PbsStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(fsqueue_cli, busy, script)
    for number in range(1, 8):
        job = f"{number}.pbs01"
        assert step(pbs, monkeypatch, job) == 0
        pbs.change(job, state="F", fields={"resources_used.walltime": "00:00:05", "Exit_status": "1"})
    begins = [job["begin"] for job in pbs.jobs()]
    assert begins[:2] == [None, None]
    assert all(begin[12] == "." and len(begin) == 15 for begin in begins[2:])


def test_tasks_that_do_not_fit_the_limit_end_the_campaign(
    fsqueue_cli: Run,
    busy: Queue,
    script: Path,
    pbs: PbsStandIn,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    script.write_text(script.read_text() + "fsqueue run Q --max-runtime 50m -- true\n")
    begin(fsqueue_cli, busy, script)
    ends = [("271", "01:00:10"), ("0", "00:50:05"), ("265", "00:59:00")]
    for number, (status, used) in enumerate(ends, 1):
        job = f"{number}.pbs01"
        pbs.change(job, fields={"Resource_List.walltime": "01:00:00", "resources_used.walltime": "00:00:00"})
        assert step(pbs, monkeypatch, job) == 0
        ended = {"Resource_List.walltime": "01:00:00", "resources_used.walltime": used, "Exit_status": status}
        pbs.change(job, state="F", fields=ended)
    pbs.change("4.pbs01", fields={"Resource_List.walltime": "01:00:00", "resources_used.walltime": "00:00:00"})
    assert step(pbs, monkeypatch, "4.pbs01") == successors.LEAVE
    assert "no task fits the time limit" in capfd.readouterr().err
    assert len(pbs.jobs()) == 4


def test_a_stop_cancels_what_waits_and_says_so(
    fsqueue_cli: Run, busy: Queue, script: Path, pbs: PbsStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(fsqueue_cli, busy, script, "--max-jobs", 2)
    step(pbs, monkeypatch, "1.pbs01")
    said = fsqueue_cli("pbs", "--stop", busy.path).stdout
    assert "2 waiting jobs cancelled (2.pbs01 3.pbs01); 1 running job finishes its tasks (1.pbs01)" in said
    assert [job["state"] for job in pbs.jobs()] == ["R", "F", "F"]
    said = fsqueue_cli("pbs", "--stop", busy.path, "--now", "--json").stdout
    assert json.loads(said) == {"queue": str(busy.path), "cancelled": ["1.pbs01"], "running": [], "asked": True}
    assert pbs.jobs("R") == []
    pbs.fault("qselect", "refuse")
    assert "PBS does not answer" in fsqueue_cli("pbs", "--stop", busy.path, code=1).stdout


def test_a_stop_that_dies_is_repeated_or_the_jobs_leave(
    fsqueue_cli: Run, busy: Queue, script: Path, pbs: PbsStandIn, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(fsqueue_cli, busy, script)
    pbs.fault("qdel", "kill-before")
    assert spawn("pbs", "--stop", busy.path).wait() == -signal.SIGKILL
    assert step(pbs, monkeypatch, "1.pbs01") == successors.LEAVE
    pbs.change("1.pbs01", state="Q")
    fsqueue_cli("pbs", "--stop", busy.path)
    assert pbs.jobs("Q") == []


def test_a_stop_between_the_look_and_the_submission_leaves_no_job(
    fsqueue_cli: Run, busy: Queue, script: Path, pbs: PbsStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(fsqueue_cli, busy, script)
    real = successors.submit

    def submit(*given: object) -> str:
        stops.stop(Queue(busy.path).store)  # its list of jobs came before this one
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(successors, "submit", submit)
    assert step(pbs, monkeypatch, "1.pbs01") == successors.LEAVE
    assert [job["state"] for job in pbs.jobs()] == ["R", "F"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/bash\nexec fsqueue run Q -- true\n", "would not replace itself"),
        ("#!/bin/bash\n# fsqueue pbs Q worker.pbs\nexec fsqueue run Q -- true\n", "would not replace itself"),
        ('#!/bin/bash\n#PBS -J 0-3\nfsqueue pbs Q "$0" || exit 0\n', "An array cannot replace itself"),
        ('#!/bin/bash\n#PBS -j oe -t 0-3\nfsqueue pbs Q "$0" || exit 0\n', "An array cannot replace itself"),
        ("\0", "is no script"),
    ],
)
def test_a_script_that_cannot_replace_itself_is_refused(
    fsqueue_cli: Run, busy: Queue, script: Path, pbs: PbsStandIn, text: str, said: str
) -> None:
    script.write_text(text)
    assert said in " ".join(fsqueue_cli("pbs", busy.path, script, code=2).stderr.split())
    assert pbs.jobs() == []


def test_what_makes_no_sense_is_refused(
    fsqueue_cli: Run, busy: Queue, script: Path, pbs: PbsStandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "stands alone" in fsqueue_cli("pbs", "--stop", busy.path, "--max-jobs", 2, code=2).stderr
    assert "stands alone" in fsqueue_cli("pbs", "--now", busy.path, code=2).stderr
    assert "Name the queues" in fsqueue_cli("pbs", script, code=2).stderr
    assert "cannot be read" in fsqueue_cli("pbs", busy.path, tmp_path / "none", code=2).stderr
    monkeypatch.setenv("PBS_ENVIRONMENT", "PBS_BATCH")
    assert "submitted by qsub" in fsqueue_cli("pbs", busy.path, script, code=2).stderr
    monkeypatch.delenv("PBS_ENVIRONMENT")
    Worker(busy, command=["true"]).run()
    assert "nothing to do" in fsqueue_cli("pbs", busy.path, script, code=3).stderr
    monkeypatch.setenv("PATH", "/nowhere")
    busy.insert("x")
    assert "qsub cannot be run here" in fsqueue_cli("pbs", busy.path, script, code=1).stderr


def test_the_worker_begins_although_pbs_refuses_for_long(
    fsqueue_cli: Run, busy: Queue, script: Path, pbs: PbsStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(fsqueue_cli, busy, script)
    monkeypatch.setattr(successors, "FOREGROUND_S", 0.0)
    pbs.fault("qsub", "refuse", 2)
    assert step(pbs, monkeypatch, "1.pbs01") == 0
    assert pbs.jobs("H") == [], "the step has ended, and the worker begins"
    until(lambda: pbs.jobs("H"), "another process submits the successor")


def test_the_script_of_the_guide(
    fsqueue_cli: Run, queue: Queue, pbs: PbsStandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    [code] = [block.code for block in blocks(text_of("docs/schedulers.md")) if block.section == "PBS: jobs for weeks"]
    (tmp_path / "worker.pbs").write_text(code)
    (tmp_path / "fsqueue-env").symlink_to(sys.prefix)
    (pbs.directory / "render").write_text("#!/bin/sh\n")
    (pbs.directory / "render").chmod(0o755)
    queue.insert_many([{"tile": n, "zoom": 2} for n in (1, 2)])
    begin(fsqueue_cli, queue, tmp_path / "worker.pbs")
    monkeypatch.setenv("Q", str(queue.path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pbs.begin("1.pbs01", "bash") as process:
        said = process.communicate()[1]
    assert (process.returncode, "2 completed" in said) == (0, True), said
    pbs.change("1.pbs01", state="F")
    with pbs.begin("2.pbs01", "bash") as process:
        said = process.communicate()[1]
    assert (process.returncode, "nothing is left to do" in said) == (0, True), said
    assert len(pbs.jobs()) == 2


def test_when_a_job_ends_is_asked(pbs: PbsStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"Resource_List.walltime": "01:00:00", "resources_used.walltime": "00:20:00"}
    with pbs.changing() as jobs:
        jobs.append({"id": "1.pbs01", "name": "a", "state": "R", "after": [], "script": "", "fields": fields})
    assert controller.job_end() is None
    monkeypatch.setenv("PBS_JOBID", "1.pbs01")
    end = controller.job_end()
    assert end is not None
    assert end == pytest.approx(time.time() + 2400, abs=300)
    assert controller.jobs_by_name() == {"a": [("1.pbs01", False)]}, "an array of the user is none of them"
    assert controller.run_of("1.pbs01") == ("FAILED", "00:20:00", -1)
    assert controller.run_of("7.pbs01") is None
    assert controller.cancel(["1.pbs01", "7.pbs01"], only_waiting=False)
    assert campaign.decode(campaign.encode(CAMPAIGN, Relay())) == (CAMPAIGN, Relay())


CAMPAIGN = campaign.Campaign("n", 1, ["/q"], [], False, [], "/", 0, 0, scheduler="pbs", max_runtime_s=60.0)
