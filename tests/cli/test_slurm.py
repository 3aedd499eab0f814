"""slurm: what is submitted, with a stand-in for sbatch; tests/lab/test_slurm.py has a real one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from fsqueue import Queue
from tests.cli.conftest import Run

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
    words = ["--array", "0-99%20", "-j", "4", "-t", "1:00:00", "--mem=4G", "--requeue", "--timeout=60", "-N1", "-j2"]
    assert fsqueue_cli("slurm", busy.path, *words, "--", "./process", "{}").output == "4711\n"
    assert given(sbatch) == [
        *("--parsable", "--job-name=fsqueue-q", "--signal=B:USR1@40"),
        *("--array", "0-99%20", "-t", "1:00:00", "--mem=4G", "--requeue", "-N1"),
    ]
    assert worker_of(sbatch)[4:] == [
        *("run", str(busy.path), "-j", "4", "--timeout=60", "-j2", "--", "./process", "{}"),
    ]


def test_workers_hear_of_the_end_in_time_for_their_grace(fsqueue_cli: Run, busy: Queue, sbatch: Path) -> None:
    fsqueue_cli("slurm", busy.path, "--grace", "300", "--", "true")
    assert "--signal=B:USR1@330" in given(sbatch)
    fsqueue_cli("slurm", busy.path, "--grace", "1e9", "--", "true")
    assert "--signal=B:USR1@65535" in given(sbatch)
    fsqueue_cli("slurm", busy.path, "--signal", "B:TERM@60", "-J", "mine", "--", "true")
    assert given(sbatch) == ["--parsable", "--signal", "B:TERM@60", "-J", "mine"]


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
    assert shown == {"sbatch": said["sbatch"], "script": said["script"]}


def test_without_sbatch(fsqueue_cli: Run, busy: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fsqueue_cli("slurm", busy.path, "--print", "--", "true")
    monkeypatch.setenv("PATH", str(tmp_path))
    said = fsqueue_cli("slurm", busy.path, "--", "true", code=1).stderr
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
        (["Q", "--timeout"], "requires an argument"),
        (["Q", "--timeout", "soon", "--", "x"], "soon"),
        (["Q", "-j", "0", "--", "x"], "-j"),
    ],
)
def test_what_makes_no_sense_is_refused(
    fsqueue_cli: Run, busy: Queue, sbatch: Path, words: list[str], said: str
) -> None:
    result = fsqueue_cli("slurm", *[busy.path if word == "Q" and words[0] == "Q" else word for word in words], code=2)
    assert said in result.stderr
    assert not (sbatch / "script").exists()
