"""Which job the environment tells of, outside of Slurm; and docs/schedulers.md's scripts, run with those variables."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fsqueue import Queue
from fsqueue.clock import ManualClock
from fsqueue.cluster import schedulers
from fsqueue.cluster.identity import describe, is_in_job, job_of, worker_of_this_process
from fsqueue.filesystem import processes
from fsqueue.filesystem.processes import fields_of
from fsqueue.worker.limits import KILL_S, Limits, stop_time
from fsqueue.worker.settling import Outcome, PendingFailures
from tests.pages import blocks, text_of
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once

VARIABLES = [name for one in schedulers.SCHEDULERS for name in (*one.marks, *one.job, *one.index, *one.limits)]
PBS = {"PBS_JOBID": "4711[3].pbs01", "PBS_ARRAY_INDEX": "3", "PBS_ENVIRONMENT": "PBS_BATCH"}
TORQUE = {"PBS_JOBID": "4711[3].mgr", "PBS_ARRAYID": "3", "PBS_WALLTIME": "3600"}
LSF = {"LSB_JOBID": "4711", "LSB_JOBINDEX": "3", "LSB_JOBNAME": "tiles[3]"}
SGE = {"JOB_ID": "4711", "SGE_TASK_ID": "3", "SGE_ROOT": "/opt/sge"}
CONDOR = {"_CONDOR_SLOT": "slot1_2", "CONDOR_CLUSTER": "4711", "CONDOR_PROCESS": "3"}
AD = """AllowedExecuteDuration = 3600
AllowedJobDuration = 7200
ClusterId = 4711
Cmd = "/home/me/worker.sh"
ProcId = 3
Requirements = (TARGET.Arch == "X86_64") && (TARGET.Disk >= RequestDisk)
"""


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No job anywhere."""
    for name in (*VARIABLES, "SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)


def set_all(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def ad(tmp_path: Path) -> Path:
    """The file that HTCondor's variable names."""
    file = tmp_path / ".job.ad"
    file.write_text(AD)
    return file


# -- which job -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "recorded", "written", "described"),
    [
        (PBS, {"scheduler": "pbs", "job": "4711", "job_index": "3", "job_server": "pbs01"}, "4711[3]", "PBS"),
        ({"PBS_JOBID": "4711.pbs01"}, {"scheduler": "pbs", "job": "4711", "job_server": "pbs01"}, "4711", "PBS"),
        (TORQUE, {"scheduler": "pbs", "job": "4711", "job_index": "3", "job_server": "mgr"}, "4711[3]", "PBS"),
        ({"PBS_JOBID": "4711-3.a.b"}, {"scheduler": "pbs", "job": "4711", "job_index": "3", "job_server": "a.b"},
         "4711[3]", "PBS"),
        (LSF, {"scheduler": "lsf", "job": "4711", "job_index": "3"}, "4711[3]", "LSF"),
        (LSF | {"LSB_JOBINDEX": "0"}, {"scheduler": "lsf", "job": "4711"}, "4711", "LSF"),
        (SGE, {"scheduler": "sge", "job": "4711", "job_index": "3"}, "4711.3", "Grid Engine"),
        (SGE | {"SGE_TASK_ID": "undefined"}, {"scheduler": "sge", "job": "4711"}, "4711", "Grid Engine"),
        (CONDOR, {"scheduler": "htcondor", "job": "4711", "job_index": "3"}, "4711.3", "HTCondor"),
        (CONDOR | {"CONDOR_PROCESS": "0"}, {"scheduler": "htcondor", "job": "4711", "job_index": "0"}, "4711.0",
         "HTCondor"),
    ],
)  # fmt: skip
def test_a_worker_tells_its_job(
    variables: dict[str, str], recorded: dict[str, str], written: str, described: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, variables)
    worker = worker_of_this_process()
    assert {key: value for key, value in worker.items() if key in recorded or key.startswith("job")} == recorded
    assert job_of(worker) == written
    assert f"{described} job {written})" in describe(worker)


def test_htcondor_tells_in_a_file(monkeypatch: pytest.MonkeyPatch, ad: Path) -> None:
    monkeypatch.setenv("_CONDOR_JOB_AD", str(ad))
    assert job_of(worker_of_this_process()) == "4711.3"
    job = schedulers.here()
    assert job is not None
    assert job.limit_s == 3600


@pytest.mark.parametrize(
    "variables",
    [
        {"PBS_JOBID": ""},
        {"PBS_JOBID": "STDIN"},
        {"LSB_JOBID": "4711; rm -rf /"},
        {"LSB_JOBID": "１２"},
        {"LSB_JOBID": "1" * 1000},
        {"LSB_JOBID": "bad\udcff"},
        {"JOB_ID": "4711"},  # many programs' variable
        {"SGE_TASK_ID": "3"},
        {"_CONDOR_SLOT": "slot1"},
        {"_CONDOR_JOB_AD": "/nowhere"},
        {"_CONDOR_JOB_AD": "/dev/zero"},
    ],
)
def test_what_is_no_job_tells_nothing(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, variables)
    worker = worker_of_this_process()
    assert (job_of(worker), worker.get("scheduler"), schedulers.job_end()) == (None, None, None)


def test_in_a_job_of_slurm_leftovers_of_others_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, LSF | {"SLURM_JOB_ID": "5"})
    assert job_of(worker_of_this_process()) == "5"


def test_a_fifo_instead_of_the_file_does_not_hold_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ad")
    monkeypatch.setenv("_CONDOR_JOB_AD", str(tmp_path / "ad"))
    assert schedulers.here() is None


@pytest.mark.parametrize(
    ("variables", "yes", "no"),
    [
        (PBS, ["4711", "4711[]", "4711[3]", "4711[].pbs01", "4711[3].pbs01"], ["471", "4711[4]", "4711.other"]),
        (LSF, ["4711", "4711[3]"], ["4711[30]", "4711.3", "3", "", "*"]),
        (SGE, ["4711", "4711.3"], ["4711.4", "4711[3]"]),
        (CONDOR, ["4711", "4711.3"], ["4711.0", "711"]),
        ({"SLURM_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "3"}, ["4711", "4711_3"], ["4711_4", "4711.3", "None"]),
        ({}, [], ["None", "4711", ""]),
    ],
)  # fmt: skip
def test_a_job_is_found_by_what_its_scheduler_calls_it(
    variables: dict[str, str], yes: list[str], no: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, variables)
    worker = worker_of_this_process()
    assert [text for text in (*yes, *no) if is_in_job(worker, text)] == yes


@pytest.mark.parametrize(
    "worker", [{"scheduler": ["pbs"]}, {"scheduler": "pbs"}, {"scheduler": "pbs", "job": ["4711"], "job_index": {}}]
)
def test_records_of_strangers_do_no_harm(worker: dict[str, Any]) -> None:
    assert is_in_job(worker, "4711") is False
    describe(worker)


def test_leases_of_a_job_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    Queue.create(tmp_path / "q")
    queue = Queue(tmp_path / "q", clock=clock)
    queue.insert_many(range(8), batch_tasks=2)
    for index in "123":
        with monkeypatch.context() as patched:
            set_all(patched, LSF | {"LSB_JOBINDEX": index})
            Queue(queue.path, clock=clock).lease(2)
    assert queue.release_all(job="4712") == 0
    assert queue.release_all(slurm_job="4711") == 0
    assert queue.release_all(job="4711[2]") == 2
    assert queue.release_all(job="4711") == 4


# -- when it ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("walltime", "limit_s"),
    [("3600", 3600), ("1:00:00", 3600), ("2:01:00:00", 176_400), ("5:00", 300), ("", None), ("0", None), ("∞", None),
     ("never", None), ("1" * 40, None), ("-5", None)],
)  # fmt: skip
def test_the_time_limit_counts_from_the_begin_of_the_job(
    walltime: str, limit_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, TORQUE | {"PBS_WALLTIME": walltime})
    asked = []
    monkeypatch.setattr(processes, "age_with", lambda *sign: asked.append(sign) or 100.0)
    monkeypatch.setattr(schedulers, "time", SimpleNamespace(time=lambda: 1e9))
    end = schedulers.job_end()
    if limit_s is None:
        assert end is None
    else:
        assert end == 1e9 + limit_s - 100
        assert asked == [("PBS_JOBID", "4711[3].mgr")]


def test_a_limit_that_is_over_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, TORQUE)
    monkeypatch.setattr(processes, "age_with", lambda *sign: 3601.0)
    assert schedulers.job_end() is None


def test_a_worker_stops_before_the_limit(monkeypatch: pytest.MonkeyPatch, ad: Path) -> None:
    monkeypatch.setenv("_CONDOR_JOB_AD", str(ad))
    monkeypatch.setattr(processes, "age_with", lambda *sign: 600.0)
    limits = Limits(**{one.name: math.inf for one in fields(Limits)} | {"grace_s": 10.0})
    at, why = stop_time(limits, 0.0)
    assert (at - time.monotonic(), why) == (pytest.approx(3000 - 10 - 2 * KILL_S, abs=60), "job-end")


AGE = "from fsqueue.filesystem.processes import age_with as a; print(a('J', '7'), a('J', '8'))"


def begin_s(pid: int) -> float:
    """When a process began, in seconds since the boot."""
    return int(fields_of(pid)[19]) / os.sysconf("SC_CLK_TCK")


def begin_of_one_that_begins_now() -> float:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        return begin_s(process.pid)


def test_the_first_process_with_the_variable_gives_the_age() -> None:
    """A script that copies its input first: that time belongs to the job. Its worker is in a session of its own."""
    program = ["sh", "-c", f'read go; setsid --wait {sys.executable} -c "$1"; exit', "sh", AGE]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(program, env=os.environ | {"J": "7"}, **pipes) as script:
        until(lambda: begin_of_one_that_begins_now() - begin_s(script.pid) >= 0.5, "the script to be older")
        job, own = map(float, script.communicate("go\n")[0].split())
    assert job >= own + 0.45


def test_variables_that_the_locale_has_no_characters_for_do_not_matter() -> None:
    """In a locale of ASCII alone; in one of Latin-1 the euro sign would be such a character."""
    variables = {**os.environb, b"J": b"7", b"PRICE": "5 €".encode(), b"PLACE": b"/data/m\xfcller"}
    locale = {b"LC_ALL": b"C", b"PYTHONUTF8": b"0", b"PYTHONCOERCECLOCALE": b"0"}
    program = ["sh", "-c", f'{sys.executable} -c "$1"; exit', "sh", AGE]  # the variables of its parent are read
    done = subprocess.run(
        program, env=variables | locale, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.stderr == ""
    assert [float(age) > 0 for age in done.stdout.split()] == [True, True]


# -- how it ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "number", "explained", "over"),
    [
        (PBS, signal.SIGTERM, True, True),
        (PBS, signal.SIGUSR2, False, False),
        (LSF, signal.SIGUSR2, True, False),
        (LSF, signal.SIGINT, True, True),
        (SGE, signal.SIGUSR2, True, True),
        (SGE, signal.SIGUSR1, True, False),
        (CONDOR, signal.SIGTERM, True, True),
        ({"SLURM_JOB_ID": "5", "SLURMD_NODENAME": "n"}, signal.SIGTERM, True, True),
        ({"SLURM_JOB_ID": "5", "SLURMD_NODENAME": "n"}, signal.SIGUSR2, False, False),
        ({}, signal.SIGTERM, False, False),
    ],
)
def test_signals_that_reach_the_commands_too_explain_their_failures(
    variables: dict[str, str], number: int, explained: bool, over: bool, monkeypatch: pytest.MonkeyPatch, queue: Queue
) -> None:
    set_all(monkeypatch, variables)
    queue.insert_many(range(2))
    early, late = (Outcome(task, "fail") for task in queue.lease(2))
    pending_failures = PendingFailures()
    pending_failures.add(early, 0.0)
    pending_failures.hear(number)
    assert pending_failures.is_over == over
    assert [outcome.verb for outcome in pending_failures.ripe(1e9)] == ["release" if explained else "fail"]
    pending_failures.add(late, 0.0)
    assert [outcome.verb for outcome in pending_failures.ripe(1e9)] == ["release" if over else "fail"]


# -- the guide -------------------------------------------------------------------------------------------

PAGE = blocks(text_of("docs/schedulers.md"))
SCRIPTS = [block for block in PAGE if block.section == "PBS, LSF, SGE, HTCondor" and block.language == "bash"]
ENVIRONMENTS = {"#PBS": PBS, "#BSUB": LSF, "#$": SGE, "": CONDOR}


def test_there_is_a_script_for_each() -> None:
    assert len(SCRIPTS) == len(ENVIRONMENTS) == len(schedulers.SCHEDULERS)


@pytest.mark.parametrize(("prefix", "code"), list(zip(ENVIRONMENTS, [block.code for block in SCRIPTS], strict=True)))
def test_the_scripts_of_the_guide(prefix: str, code: str, tmp_path: Path) -> None:
    """As the scheduler would run it: its own variables, a home with the environment, and the guide's program."""
    assert all(line.startswith(prefix) for line in code.splitlines()[1:] if line.startswith("#"))
    variables = dict(ENVIRONMENTS[prefix])
    (tmp_path / "fsqueue-env").symlink_to(sys.prefix)
    (tmp_path / "script").write_text(code)
    [program] = re.findall(r"^cat >render <<'END'\n(.*?)^END$", text_of("docs/hpc.md"), re.MULTILINE | re.DOTALL)
    (tmp_path / "render").write_text(program)
    (tmp_path / "render").chmod(0o755)
    queue = Queue.create(tmp_path / "q")
    queue.insert_many([{"tile": n, "zoom": 2} for n in (1, 2)])
    for shell in ("sh", "bash"):
        subprocess.run([shell, "-n", "script"], cwd=tmp_path, check=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", *VARIABLES)}
    environment |= variables | {"HOME": str(tmp_path), "Q": str(queue.path), "PBS_O_WORKDIR": str(tmp_path)}
    ran = subprocess.run(
        ["bash", "script"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (ran.returncode, "2 completed" in ran.stderr) == (0, True), ran.stderr
    for info in queue.tasks("completed"):
        assert info.result == {"tile": info.result["tile"], "pixels": 512}
        assert info.worker is not None
        assert (info.worker["job"], info.worker["job_index"]) == ("4711", "3")


def test_the_submit_file_starts_the_script_with_what_it_needs() -> None:
    [code] = [block.code for block in PAGE if block.language == "ini"]
    *lines, last = code.splitlines()
    said = dict(map(str.strip, line.split("=", 1)) for line in lines)
    assert last == "queue 4"
    assert said["executable"] == "worker.sh"
    given = dict(word.split("=") for word in said["environment"].strip('"').split())
    assert given == {
        "Q": "$ENV(Q)", "HOME": "$ENV(HOME)", "CONDOR_CLUSTER": "$(ClusterId)", "CONDOR_PROCESS": "$(ProcId)",
    }  # fmt: skip
