"""doctor: from one host, and two processes that play two hosts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fsqueue import Queue
from fsqueue.doctor import examination as doctor
from fsqueue.filesystem import Mount
from tests.cli.conftest import Run, Spawn
from tests.pages import text_of
from tests.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.once, pytest.mark.slow]


def test_a_report_for_people(fsqueue_cli: Run, tmp_path: Path) -> None:
    at_term = signal.getsignal(signal.SIGTERM)
    said = fsqueue_cli("doctor", tmp_path).stdout
    assert signal.getsignal(signal.SIGTERM) is at_term  # what runs on in this process is ended as before
    for words in (f"{tmp_path} on ", "locks between processes", "timestamps", "space", "Fit for a queue"):
        assert words in said
    assert "UNFIT" not in said
    assert os.listdir(tmp_path) == []


def test_a_path_that_is_not_there_is_an_error_that_names_the_nearest(fsqueue_cli: Run, tmp_path: Path) -> None:
    done = fsqueue_cli("doctor", tmp_path / "not" / "there", code=2)
    assert done.stdout == ""
    assert f"There is nothing at {tmp_path}/not/there." in done.stderr
    assert done.stderr.endswith(f" The nearest one is {tmp_path}\n")


def test_a_report_for_programs(fsqueue_cli: Run, queue: Queue) -> None:
    report = json.loads(fsqueue_cli("doctor", queue.path, "--json").stdout)
    assert report["verdict"] in ("ok", "warning")
    assert report["path"] == str(queue.path)
    assert {"mount", "locks", "space", "clock"} <= {finding["probe"] for finding in report["findings"]}


def test_an_unfit_mount_ends_with_8(fsqueue_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = Mount("lustre", "/l", "rw,localflock")
    monkeypatch.setattr(doctor, "mount_of", lambda path: mount)
    said = fsqueue_cli("doctor", tmp_path, code=8).stdout
    assert "UNFIT" in said
    assert "'flock'" in said
    assert "NOT fit" in said
    assert json.loads(fsqueue_cli("doctor", tmp_path, "--json", code=8).stdout)["verdict"] == "unfit"
    monkeypatch.setattr("fsqueue.administration.mount_of", lambda path: mount)
    assert "--allow-unsafe" in fsqueue_cli("create", tmp_path / "q", code=8).stderr
    fsqueue_cli("create", tmp_path / "q", "--allow-unsafe")


def test_bad_input(fsqueue_cli: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is a file" in fsqueue_cli("doctor", tmp_path / "file", code=5).stderr
    fsqueue_cli("doctor", code=2)
    fsqueue_cli("doctor", tmp_path, "--join", "--timeout", "-1", code=2)


def test_nobody_joins(fsqueue_cli: Run, tmp_path: Path) -> None:
    result = fsqueue_cli("doctor", tmp_path, "--join", "--timeout", "0.5", code=124)
    assert f"fsqueue doctor {tmp_path} --join" in result.stderr
    assert "No other host joined" in result.stdout
    assert "Fit" not in result.stdout
    assert os.listdir(tmp_path) == []


def waiting(process: subprocess.Popen[str]) -> None:
    """Return when it says what to type on the other host."""
    assert process.stderr is not None
    for line in process.stderr:
        if "--join" in line:
            return
    raise AssertionError("it ended before it waited")


def at_work(directory: Path) -> None:
    """Return when two have met and begun with their tests, which take some seconds."""
    until(lambda: list(directory.glob(".fsqueue-doctor/join/*.place/ledger")), "the two to meet")


def test_two_join(spawn: Spawn, tmp_path: Path) -> None:
    first = spawn("doctor", tmp_path, "--join", "--json")
    waiting(first)
    second = spawn("doctor", tmp_path, "--join")
    said, _ = second.communicate(timeout=PATIENCE_S)
    report = json.loads(first.communicate(timeout=PATIENCE_S)[0])
    assert (first.returncode, second.returncode) == (124, 124)  # as if no other host had come
    assert report["same_host"]
    assert "Fit" not in said
    assert "Between two hosts NOTHING was shown: both ends ran on this host." in said.splitlines()[-1]
    assert report["partner"] == report["host"]
    found = {finding["probe"]: finding for finding in report["findings"]}
    for probe in ("locks", "appending", "reading", "create", "link", "rename", "sight"):
        assert found[f"{probe} between hosts"]["verdict"] == "ok"
        assert f"{probe} between hosts" in said
    assert found["two hosts"]["verdict"] == "warning"  # they are one host
    assert "same host" in found["two hosts"]["seen"]
    assert os.listdir(tmp_path) == []


@pytest.mark.one_in(2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_is_ended_while_waiting_leaves_nothing(spawn: Spawn, tmp_path: Path, number: int) -> None:
    process = spawn("doctor", tmp_path, "--join")
    waiting(process)
    process.send_signal(number)
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number
    assert "Traceback" not in said
    assert os.listdir(tmp_path) == []


IMPATIENT = """
import sys
from fsqueue.doctor import rendezvous
from fsqueue_cli.entry import main
rendezvous.SILENCE_S = 3.0
sys.argv[0] = "fsqueue"
main()
"""


def test_a_partner_killed_in_the_middle(spawn: Spawn, tmp_path: Path) -> None:
    """The other says so after a while, and clears away what both have left."""
    command = [sys.executable, "-c", IMPATIENT, "doctor", str(tmp_path), "--join"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    waiting(first)
    second = spawn("doctor", tmp_path, "--join")
    at_work(tmp_path)
    second.kill()
    second.communicate()
    said, _ = first.communicate(timeout=PATIENCE_S)
    assert first.returncode == 124
    assert "said nothing more" in said
    assert list(tmp_path.glob(".fsqueue-doctor/join/*")) == []


def test_a_partner_that_is_interrupted_says_so(spawn: Spawn, tmp_path: Path) -> None:
    first = spawn("doctor", tmp_path, "--join")
    waiting(first)
    second = spawn("doctor", tmp_path, "--join")
    at_work(tmp_path)
    second.send_signal(signal.SIGINT)
    assert second.wait(PATIENCE_S) == 130
    said, _ = first.communicate(timeout=PATIENCE_S)
    assert first.returncode == 124
    assert "was ended" in said
    assert os.listdir(tmp_path) == []


def test_the_page_explains_every_probe_and_names_every_field(fsqueue_cli: Run, tmp_path: Path) -> None:
    page = text_of("docs/doctor.md")
    report = json.loads(fsqueue_cli("doctor", tmp_path, "--json").stdout)
    table = re.findall(
        r"^\| ([^|]*) \|", page.partition("## What each probe means")[2].partition("\n## ")[0], re.MULTILINE
    )
    explained = {probe for row in table for probe in row.split(", ")}
    assert {"mount", "... between threads", "processes", "... between hosts"} <= explained
    for finding in report["findings"]:
        for field in finding:
            assert f"`{field}`" in page
        probe, between, whom = finding["probe"].partition(" between ")
        assert (probe in explained) if not between else (whom in ("threads", "processes")), finding["probe"]
