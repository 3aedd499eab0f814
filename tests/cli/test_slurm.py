"""slurm: what is submitted, with a stand-in for sbatch; tests/lab/test_slurm.py has a real one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import click
import pytest
from fsqueue_cli.slurm import _make_logs

from fsqueue import Queue
from fsqueue.cluster.slurm import SLURM
from tests.cli.conftest import Run
from tests.support import needs_root

pytestmark = pytest.mark.once

HOSTILE = [
    "", "{}", "a b", "it's", '"', "$HOME", "`id`", "\n", "a\r\nb", "\\", "\\n", "--", "#SBATCH -n 9", "END",
    "\x1b[2J", "é", "\udcff", "\x7f0", "*", "!!", "a\nEND\nrm -rf /",
]  # fmt: skip


@pytest.fixture
def busy(queue: Queue) -> Queue:
    queue.insert("x")
    return queue


@pytest.fixture
def sbatch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A sbatch that notes what it is given; its directory."""
    place = tmp_path / "bin"
    place.mkdir()
    monkeypatch.chdir(tmp_path)
    for program in (place / "x", tmp_path / "process"):
        program.touch(0o755)
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")
    script(place, f'printf "%s\\0" "$@" >{place}/arguments; cat >{place}/script; echo "4711;lab"')
    return place


def script(place: Path, text: str) -> None:
    (place / "sbatch").write_text(f"#!/bin/sh\n{text}\n")
    (place / "sbatch").chmod(0o755)


def given(place: Path) -> list[str]:
    return (place / "arguments").read_text(errors="surrogateescape").split("\0")[:-1]


def worker_of(place: Path) -> list[str]:
    """What the script runs, as bash sees it: the words after `exec`."""
    text = (place / "script").read_bytes()
    head, _, rest = text.partition(b"exec ")
    assert head == b"#!/bin/bash\n"
    show = subprocess.run(["bash", "-c", b"printf '%s\\0' " + rest], stdout=subprocess.PIPE, check=True)
    return show.stdout.decode(errors="surrogateescape").split("\0")[:-1]


def test_sbatch_s_options_and_those_of_workers(fsqueue_cli: Run, busy: Queue, sbatch: Path) -> None:
    words = [
        "--array",
        "0-99%20",
        "-j",
        "4",
        "-t",
        "1:00:00",
        "--mem=4G",
        "--requeue",
        "--task-timeout=60",
        "-N1",
        "-j2",
    ]
    assert fsqueue_cli("slurm", busy.path, *words, "--", "./process", "{}").output == "4711\n"
    assert given(sbatch) == [
        *("--parsable", "--job-name=fsqueue-q", "--signal=B:USR1@40", "--open-mode=append"),
        *("--cpus-per-task=2", f"--output={sbatch.parent}/fsqueue-logs/%x-%A_%a.out"),
        *("--array", "0-99%20", "-t", "1:00:00", "--mem=4G", "--requeue", "-N1"),
    ]
    assert worker_of(sbatch)[4:] == [
        *("run", str(busy.path), "-j", "4", "--task-timeout=60", "-j2", "--", "./process", "{}"),
    ]


def test_workers_hear_of_the_end_in_time_for_their_grace(fsqueue_cli: Run, busy: Queue, sbatch: Path) -> None:
    fsqueue_cli("slurm", busy.path, "--grace", "300", "--", "true")
    assert "--signal=B:USR1@330" in given(sbatch)
    fsqueue_cli("slurm", busy.path, "--grace", "1e9", "--", "true")
    assert "--signal=B:USR1@65535" in given(sbatch)
    fsqueue_cli("slurm", busy.path, "--signal", "B:TERM@60", "-J", "mine", "--", "true")
    assert [word for word in given(sbatch) if "signal" in word or "job-name" in word] == ["--signal"]


def test_any_argument_arrives_as_it_is(fsqueue_cli: Run, busy: Queue, sbatch: Path) -> None:
    fsqueue_cli("slurm", busy.path, "--comment", "a 'b'\n$c", "--", "x", *HOSTILE)
    assert worker_of(sbatch)[6:] == ["--", "x", *HOSTILE]
    assert given(sbatch)[-2:] == ["--comment", "a 'b'\n$c"]
    assert b"\r" not in (sbatch / "script").read_bytes()
    assert (sbatch / "script").read_bytes().count(b"\n") == 2


def test_what_is_printed_is_what_is_submitted(fsqueue_cli: Run, busy: Queue, sbatch: Path) -> None:
    words = ["slurm", busy.path, "--array", "0-9", "--comment", "it's\n", "--", "x", *HOSTILE]
    fsqueue_cli(*words)
    submitted, script = given(sbatch), (sbatch / "script").read_bytes()
    (sbatch / "script").unlink()
    printed = fsqueue_cli(*words[:2], "--print", *words[2:]).output
    assert not (sbatch / "script").exists()
    assert printed.isprintable() or set(printed) - {"\n"} <= {c for c in printed if c.isprintable()}
    subprocess.run(["bash", "-c", printed], check=True, stdout=subprocess.DEVNULL)
    assert (given(sbatch), (sbatch / "script").read_bytes()) == (submitted, script)


def test_json(fsqueue_cli: Run, busy: Queue, sbatch: Path) -> None:
    said = json.loads(fsqueue_cli("slurm", busy.path, "--json", "--array=0-9", "--", "true").output)
    assert (said["job"], said["cluster"]) == ("4711", "lab")
    assert said["sbatch"][0] == "sbatch"
    assert said["script"] == (sbatch / "script").read_text()
    shown = json.loads(fsqueue_cli("slurm", busy.path, "--json", "--print", "--array=0-9", "--", "true").output)
    assert shown == {name: said[name] for name in ("sbatch", "script", "log_dir", "unset")}
    assert said["unset"] == []
    assert said["log_dir"] == str(sbatch.parent / "fsqueue-logs")


def test_without_sbatch(fsqueue_cli: Run, busy: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    fsqueue_cli("slurm", busy.path, "--print", "--", "true")
    monkeypatch.setenv("PATH", str(tmp_path))
    said = fsqueue_cli("slurm", busy.path, "--", "/bin/true", code=1).stderr
    assert "sbatch cannot be run here" in said
    assert "--print" in said


def test_a_refusal_of_sbatch(fsqueue_cli: Run, busy: Queue, sbatch: Path) -> None:
    script(sbatch, "exit 3")
    assert "refused the job (exit status 3)" in fsqueue_cli("slurm", busy.path, "--", "true", code=1).stderr


def test_waiting_for_the_job_ends_as_the_job_does(fsqueue_cli: Run, busy: Queue, sbatch: Path) -> None:
    script(sbatch, "cat >/dev/null; echo 4711; exit 9")
    assert fsqueue_cli("slurm", busy.path, "--wait", "--", "true", code=9).output == "4711\n"


def test_a_queue_that_is_not_there(fsqueue_cli: Run, sbatch: Path, tmp_path: Path) -> None:
    fsqueue_cli("slurm", tmp_path / "none", "--array=0-9", "--", "true", code=5)
    assert not (sbatch / "script").exists()


def test_nothing_to_do(fsqueue_cli: Run, queue: Queue, sbatch: Path) -> None:
    assert "nothing to do" in fsqueue_cli("slurm", queue.path, "--", "true", code=3).stderr
    assert not (sbatch / "script").exists()
    fsqueue_cli("slurm", queue.path, "--allow-empty", "--", "true")
    fsqueue_cli("slurm", queue.path, "--forever", "--", "true")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Queues come first"),
        (["--array", "0-9", "Q", "--", "true"], "'Q' is no option"),
        (["Q", "--array", "0-9"], "nothing to run"),
        (["Q", "--array", "0-9", "--"], "nothing to run"),
        (["Q", "--array", "0-9", "./process", "{}"], "'./process' is no option"),
        (["Q", "--exclusive", "./process", "--", "x"], "'./process' is no option"),
        (["Q", "--wrap", "true", "--", "x"], "--wrap cannot be used"),
        (["Q", "--task-timeout"], "requires an argument"),
        (["Q", "--task-timeout", "soon", "--", "x"], "soon"),
        (["Q", "-j", "0", "--", "x"], "-j"),
    ],
)
def test_what_makes_no_sense_is_refused(
    fsqueue_cli: Run, busy: Queue, sbatch: Path, words: list[str], said: str
) -> None:
    result = fsqueue_cli("slurm", *[busy.path if word == "Q" and words[0] == "Q" else word for word in words], code=2)
    assert said in result.stderr
    assert not (sbatch / "script").exists()


@pytest.mark.parametrize(
    ("words", "asked", "jobs"),
    [
        (["-j", "4"], ["--cpus-per-task=4"], ["-j", "4"]),
        (["-c", "4"], ["-c", "4"], ["-j", "4"]),
        (["--cpus-per-task=4"], ["--cpus-per-task=4"], ["-j", "4"]),
        (["-c4", "-j", "8"], ["-c4"], ["-j", "8"]),
        (["-c", "4", "--threads", "2"], ["-c", "4"], ["--threads", "2"]),
        (["-j", "auto", "--exclusive"], [], ["-j", "auto"]),
        ([], [], []),
    ],
)
def test_as_many_processors_as_tasks_at_a_time(
    fsqueue_cli: Run, busy: Queue, sbatch: Path, words: list[str], asked: list[str], jobs: list[str]
) -> None:
    fsqueue_cli("slurm", busy.path, *words, "--call", "json:dumps")
    found = given(sbatch)
    named = [at for at, word in enumerate(found) if word.startswith(("-c", "--cpus"))]
    assert [word for at in named for word in found[at : at + len(asked)]] == asked
    assert worker_of(sbatch)[6:] == [*jobs, "--call", "json:dumps"]


@pytest.mark.parametrize("words", [["-N", "4", "--ntasks-per-node=1"], ["-n4"], ["--nodes=2-4"], ["-N4"]])
def test_a_job_of_several_tasks_has_a_worker_in_each(
    fsqueue_cli: Run, busy: Queue, sbatch: Path, words: list[str]
) -> None:
    assert "--one-worker" in fsqueue_cli("slurm", busy.path, *words, "-j", "3", "--", "x", "{}").stderr
    started = worker_of(sbatch)
    assert (started[0], "--cpus-per-task=3" in started) == ("srun", True)
    assert started[-7:] == ["run", str(busy.path), "-j", "3", "--", "x", "{}"]
    assert "--cpus-per-task=3" in given(sbatch)


@pytest.mark.parametrize("words", [["--one-worker", "--", "x"], ["--", "srun", "-n", "2", "x"]])
def test_commands_that_use_the_tasks_of_the_job_have_one_worker(
    fsqueue_cli: Run, busy: Queue, sbatch: Path, words: list[str]
) -> None:
    (sbatch / "srun").touch(0o755)
    fsqueue_cli("slurm", busy.path, "-N", "4", "-n", "64", "-c", "2", "-j", "3", *words)
    assert worker_of(sbatch)[4:8] == ["run", str(busy.path), "-j", "3"]
    assert "--cpus-per-task=3" not in given(sbatch)
    fsqueue_cli("slurm", busy.path, "-N", "4", "-c", "2", *words)
    assert "-j" not in worker_of(sbatch)


def test_logs_have_a_directory_that_is_there(fsqueue_cli: Run, busy: Queue, sbatch: Path, tmp_path: Path) -> None:
    fsqueue_cli("slurm", busy.path, "--print", "--", "true")
    assert not (tmp_path / "fsqueue-logs").exists()
    fsqueue_cli("slurm", busy.path, "--", "true")
    assert f"--output={tmp_path}/fsqueue-logs/%x-%j.out" in given(sbatch)
    assert (tmp_path / "fsqueue-logs").is_dir()
    fsqueue_cli("slurm", busy.path, "--log-dir", "100%/of", "-a", "0-3", "--", "true")
    assert f"--output={tmp_path}/100%%/of/%x-%A_%a.out" in given(sbatch)
    assert (tmp_path / "100%/of").is_dir()
    fsqueue_cli("slurm", busy.path, "-o", "mine.out", "--", "true")
    assert [word for word in given(sbatch) if word.startswith(("-o", "--output"))] == ["-o"]
    for words in (("--output", "mine.out"), ("--output=mine.out",)):
        fsqueue_cli("slurm", busy.path, *words, "--output", "line", "--", "true")
        assert " ".join(words) in " ".join(given(sbatch))
        assert worker_of(sbatch)[-4:] == ["--output", "line", "--", "true"]
        assert not any("fsqueue-logs" in word for word in given(sbatch))
    assert "either" in fsqueue_cli("slurm", busy.path, "-o", "a", "--log-dir", "b", "--", "true", code=2).stderr
    (sbatch / "script").unlink()
    said = fsqueue_cli("slurm", busy.path, "--log-dir", "process/logs", "--", "true", code=1).stderr
    assert "Nothing was submitted" in said
    assert not (sbatch / "script").exists()


def test_a_log_is_appended_to_unless_asked_otherwise(fsqueue_cli: Run, busy: Queue, sbatch: Path) -> None:
    fsqueue_cli("slurm", busy.path, "--requeue", "--", "true")
    assert "--open-mode=append" in given(sbatch)
    fsqueue_cli("slurm", busy.path, "--open-mode=truncate", "--", "true")
    assert "--open-mode=append" not in given(sbatch)


def test_a_prologue_comes_before_the_worker(fsqueue_cli: Run, busy: Queue, sbatch: Path, tmp_path: Path) -> None:
    """Its environment is the worker's, however it ends; what is printed does the same."""
    prologue = tmp_path / "modules.sh"
    prologue.write_text("module() {\n\texport LOADED=$2\n}\nmodule load 'gcc\t12' \\")
    words = ["slurm", busy.path, "--prologue", prologue, "--", "only-with-modules"]
    fsqueue_cli(*words)
    submitted, script = given(sbatch), (sbatch / "script").read_text()
    assert script.startswith("#!/bin/bash\nmodule() {\n\texport")
    shown = script.replace("exec ", "declare -p LOADED #")
    ran = subprocess.run(["bash"], input=shown, stdout=subprocess.PIPE, check=True, text=True)
    assert ran.stdout == "declare -x LOADED=$'gcc\\t12'\n"
    printed = fsqueue_cli(*words[:2], "--print", *words[2:]).stdout
    subprocess.run(["bash", "-c", printed], check=True, stdout=subprocess.DEVNULL)
    assert (given(sbatch), (sbatch / "script").read_text()) == (submitted, script)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"if true; then\n", "unexpected end"),
        (b"cat <<EOF\n", "here-document"),
        (b"#SBATCH -t 5\n", "#SBATCH"),
        (b"#PBS -l walltime=1:00:00\n", "#PBS"),
        (b"#BSUB -W 60\n", "#BSUB"),
        (b"module load gcc\r\n", "CR LF"),
        (b"module load gcc\r", "CR LF"),
        (b"\0", "no text"),
        (b"#" * 1_100_000, "larger"),
    ],
)
def test_a_prologue_that_cannot_work_is_refused(
    fsqueue_cli: Run, busy: Queue, sbatch: Path, tmp_path: Path, text: bytes, said: str
) -> None:
    (tmp_path / "prologue").write_bytes(text)
    error = fsqueue_cli("slurm", busy.path, "--prologue", "prologue", "--", "true", code=2).stderr
    assert said in error
    assert "Nothing was submitted" in error
    assert not (sbatch / "script").exists()
    fsqueue_cli("slurm", busy.path, "--prologue", "none", "--", "true", code=2)


def test_a_sound_prologue_passes_whatever_the_environment_of_bash_is(
    fsqueue_cli: Run, busy: Queue, sbatch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").write_text("if\n")
    (tmp_path / "prologue").write_text("shopt -s extglob\nls !(a)\n")
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "site"))
    monkeypatch.setenv("LC_ALL", "xx_YY.UTF-8")  # on the nodes, but not installed here
    fsqueue_cli("slurm", busy.path, "--prologue", "prologue", "--", "true")
    assert "ls !(a)" in (sbatch / "script").read_text()


def test_logs_are_not_written_into_the_queue(
    fsqueue_cli: Run, busy: Queue, sbatch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(busy.path)
    for place in (f"{busy.path}/logs", busy.path, "link/logs"):
        said = fsqueue_cli("slurm", busy.path, "--log-dir", str(place), "--", "true", code=2).stderr
        assert "in the queue" in said
        assert "Nothing was submitted" in said
    monkeypatch.chdir(busy.path)
    fsqueue_cli("slurm", busy.path, "--", "true", code=2)
    fsqueue_cli("slurm", busy.path, "--output", "/dev/null", "--", "true")
    assert not (Path(busy.path) / "fsqueue-logs").exists()


@needs_root
def test_a_directory_for_logs_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    pid = os.fork()
    if not pid:
        said = 99
        try:
            os.chdir(tmp_path)  # whatever is above it
            os.setuid(65534)
            _make_logs(".")
        except click.exceptions.Exit as end:
            said = end.exit_code
        finally:
            os._exit(said)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def test_a_slash_in_the_jobs_name_is_no_directory_of_the_logs(
    fsqueue_cli: Run, busy: Queue, sbatch: Path, tmp_path: Path
) -> None:
    fsqueue_cli("slurm", busy.path, "-J", "a/b", "--array=0-3", "--", "true")
    assert f"--output={tmp_path}/fsqueue-logs/%A_%a.out" in given(sbatch)


def test_a_command_that_is_not_there_is_refused_before_it_is_submitted(
    fsqueue_cli: Run, busy: Queue, sbatch: Path, tmp_path: Path
) -> None:
    said = fsqueue_cli("slurm", busy.path, "--", "proces", "{}", code=2).stderr
    assert "The command 'proces' was not found here" in said
    assert "--no-command-check" in said
    fsqueue_cli("slurm", busy.path, "--", "./no-such", code=2)
    assert "one word" in fsqueue_cli("slurm", busy.path, "--", "./process all", code=2).stderr
    fsqueue_cli("slurm", busy.path, "-D", sbatch, "--", "./process", code=2)
    assert not (sbatch / "script").exists()
    fsqueue_cli("slurm", busy.path, "--chdir", sbatch, "--", "./x")
    fsqueue_cli("slurm", busy.path, "--no-command-check", "--", "proces", "{}")
    fsqueue_cli("slurm", busy.path, "--", "{}")


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["-j", "4", "--gpus-per-task", "2"], ["--gres=gpu:8"]),
        (["-c", "3", "--gpus-per-task=1"], ["--gres=gpu:3"]),
        (["-j", "2", "--gpus-per-task", "1", "--gres=gpu:a100:2"], ["--gres=gpu:a100:2"]),
        (["-j", "2", "--gpus-per-task", "1", "-G2"], ["-G2"]),
        (["-n", "4", "-j", "2", "--gpus-per-task", "1"], []),  # sbatch knows how many tasks there are
        (["-j", "2"], []),
    ],
)
def test_gpus_for_each_process_are_asked_for(
    fsqueue_cli: Run, busy: Queue, sbatch: Path, words: list[str], asked: list[str]
) -> None:
    fsqueue_cli("slurm", busy.path, "-t", "5", *words, "--", "true")
    assert [word for word in given(sbatch) if word.startswith(("--gres", "-G", "--gpus"))] == asked
    assert ("--gpus-per-task" in " ".join(worker_of(sbatch))) == ("--gpus-per-task" in " ".join(words))


# -- inside of another job

OUTER = {
    "SLURM_JOB_ID": "99", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_CPUS_PER_TASK": "1",
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x1", "SLURM_MEM_PER_CPU": "50", "SLURM_ARRAY_TASK_ID": "7",
    "SLURM_TRES_PER_TASK": "cpu=1", "SLURM_EXPORT_ENV": "NONE", "SLURMD_NODENAME": "n1", "SRUN_CPUS_PER_TASK": "1",
    "SBATCH_MEM_BIND": "local", "SBATCH_CPU_BIND_LIST": "0x1", "PMIX_RANK": "0", "PMI_RANK": "0",
    "OMPI_COMM_WORLD_RANK": "0", "SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "0",
}  # fmt: skip
"""What Slurm and its launchers set in a job and its steps."""
OWN = {
    "SLURM_CONF": "/etc/slurm/site.conf", "SLURM_CLUSTERS": "lab", "SLURM_JWT": "token", "SLURM_TIME_FORMAT": "%s",
    "SBATCH_ACCOUNT": "mine", "SBATCH_PARTITION": "long", "SBATCH_TIMELIMIT": "5", "SALLOC_ACCOUNT": "mine",
    "PMIX_MCA_gds": "hash", "OMPI_MCA_btl": "self", "OMP_NUM_THREADS": "2", "FSQUEUE_MARK": "1",
}  # fmt: skip
"""What users and sites set."""


@pytest.fixture
def handed(sbatch: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the false sbatch notes the names of the variables that it is given. Nothing of a real job is there."""
    for name in os.environ:
        if name.startswith(("SLURM", "SRUN", "SBATCH", "PMI", "OMPI")):
            monkeypatch.delenv(name)
    script(sbatch, f"env | cut -d= -f1 >{sbatch}/env; cat >{sbatch}/script; echo 4711")
    return sbatch / "env"


def test_a_job_hands_none_of_its_own_variables_on(
    fsqueue_cli: Run, busy: Queue, handed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (OUTER | OWN).items():
        monkeypatch.setenv(name, value)
    ran = fsqueue_cli("slurm", busy.path, "-N", "2", "--mem", "200", "--", "true")
    assert ran.stdout == "4711\n"
    assert "this is typed in job 99: the new job does not get the 19 variables of that one" in ran.stderr
    names = handed.read_text().split()
    assert not OUTER.keys() & set(names)
    assert OWN.keys() <= set(names)
    shown = json.loads(fsqueue_cli("slurm", busy.path, "--json", "--print", "--", "true").stdout)
    assert shown["unset"] == sorted(OUTER)
    handed.unlink()
    printed = fsqueue_cli("slurm", busy.path, "--print", "--", "true").stdout
    subprocess.run(["bash", "-c", printed], check=True, stdout=subprocess.DEVNULL)
    names = handed.read_text().split()
    assert not OUTER.keys() & set(names)
    assert OWN.keys() <= set(names)


def test_outside_of_jobs_all_variables_are_the_user_s(
    fsqueue_cli: Run, busy: Queue, handed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = {name: value for name, value in OUTER.items() if name != "SLURM_JOB_ID"}
    for name, value in (outer | OWN).items():
        monkeypatch.setenv(name, value)
    ran = fsqueue_cli("slurm", busy.path, "--", "true")
    assert ran.stderr == ""
    assert (outer | OWN).keys() <= set(handed.read_text().split())


def test_devices_that_no_job_has_given_stay(
    fsqueue_cli: Run, busy: Queue, handed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "99")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    fsqueue_cli("slurm", busy.path, "--", "true")
    assert "CUDA_VISIBLE_DEVICES" in handed.read_text().split()


@pytest.mark.parametrize(
    ("variables", "outer"),
    [
        ({"SLURM_JOBID": "99", "SRUN_DEBUG": "1"}, ["SLURM_JOBID", "SRUN_DEBUG"]),  # as old versions call it
        ({"SLURM_JOB_ID": "", "SRUN_DEBUG": "1"}, []),
        ({"SLURM_JOB_ID": "9", "SLURM_JOB_GPUS": "", "GPU_DEVICE_ORDINAL": "0"}, ["SLURM_JOB_GPUS", "SLURM_JOB_ID"]),
        ({"SLURM_JOB_ID": "9", "SLURM_GPUS_ON_NODE": "1", "ZE_AFFINITY_MASK": "0"},
         ["SLURM_GPUS_ON_NODE", "SLURM_JOB_ID", "ZE_AFFINITY_MASK"]),
    ],
)  # fmt: skip
def test_which_variables_are_those_of_the_outer_job(variables: dict[str, str], outer: list[str]) -> None:
    assert SLURM.outer_variables(variables) == outer


def test_a_payload_in_a_script_is_refused_before_anything_is_submitted(
    fsqueue_cli: Run, busy: Queue, sbatch: Path
) -> None:
    ran = fsqueue_cli("slurm", busy.path, "--", "sh", "-c", "echo {}", code=2)
    assert """-- sh -c 'echo "$1"' sh {}""" in ran.stderr
    assert not (sbatch / "script").exists()
    fsqueue_cli("slurm", busy.path, "--allow-in-script", "--", "sh", "-c", "echo {}")
    assert "--allow-in-script" in worker_of(sbatch)
    (sbatch / "script").unlink()
    assert "{{1}}" in fsqueue_cli("slurm", busy.path, "--", "echo", "{1}", code=2).stderr
    assert not (sbatch / "script").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ["--", "echo", "{nofield}"],
            "the payload has no field 'nofield' for {nofield} (write {{nofield}} for the text",
        ),
        (["--", "echo", "{tile.}"], "takes a part of a text"),
        (["--", "echo", "{:d4}"], "has no valid format behind the colon"),
        (["--", "echo", "{%}"], "$FSQUEUE_SLOT"),
        (["--call", "no_such_module:f"], "The module 'no_such_module' was not found here"),
        (["--load", "no_such_module.sub"], "The module 'no_such_module' was not found here"),
        (["--call", "no such:f"], "The module 'no such' was not found here"),
        (["--call", ":f"], "MODULE:FUNCTION"),
        (["--load", ""], "The module '' was not found here"),
        (["--call", "json"], "--call names a function as MODULE:FUNCTION, not 'json'"),
    ],
)
def test_what_no_worker_could_do_is_refused_before_anything_is_submitted(
    fsqueue_cli: Run, queue: Queue, sbatch: Path, words: list[str], why: str
) -> None:
    """Each element of the array would end with that."""
    queue.insert({"tile": 1})
    ran = fsqueue_cli("slurm", queue.path, *words, code=2)
    assert why in ran.stderr
    assert not (sbatch / "script").exists()
    assert queue.status().waiting == 1


def test_a_module_is_looked_for_where_the_workers_look(fsqueue_cli: Run, busy: Queue, sbatch: Path) -> None:
    (sbatch.parent / "here").mkdir()
    (sbatch.parent / "here" / "a_module_of_nodes.py").write_text(
        "raise RuntimeError('this module is not imported here')\n"
    )
    fsqueue_cli("slurm", busy.path, "--call", "a_module_of_nodes:f", code=2)
    fsqueue_cli("slurm", busy.path, "-D", sbatch.parent / "here", "--call", "a_module_of_nodes:f")
    (sbatch / "script").unlink()
    fsqueue_cli("slurm", busy.path, "--no-command-check", "--call", "no_such_module:f")
    (sbatch / "script").unlink()
    (sbatch.parent / "modules.sh").write_text("PYTHONPATH=/apps\n")
    fsqueue_cli("slurm", busy.path, "--prologue", sbatch.parent / "modules.sh", "--call", "no_such_module:f")
    assert (sbatch / "script").exists()


def test_the_option_for_standard_input_goes_to_the_workers(fsqueue_cli: Run, busy: Queue, sbatch: Path) -> None:
    fsqueue_cli("slurm", busy.path, "--stdin", "--", "./process", "{}")
    assert worker_of(sbatch)[4:] == ["run", str(busy.path), "--stdin", "--", "./process", "{}"]
    assert "--stdin" not in given(sbatch)
