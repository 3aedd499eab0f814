"""scripts/bench from end to end, small: it measures, judges, and writes what it promises."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from benchmarks import peers
from benchmarks.alive import CASES
from benchmarks.systems import redis_

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
BENCH = SCRIPTS / "benchmarks"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCH), *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S
    )


@pytest.mark.thorough
def test_a_quick_run_measures_fsqueue_and_the_floor_and_writes_json_markdown_and_plots(tmp_path: Path) -> None:
    file, docs, work = tmp_path / "run.json", tmp_path / "docs", tmp_path / "work"
    work.mkdir()
    small = "--quick", "--peers", "none", "--sizes", "600", "--systems", "fsqueue,floor"
    done = run(*small, "--json", file, "--docs", docs, "--dir", work)
    assert done.returncode == 0, done.stderr
    assert "measuring in" in done.stderr
    assert list(work.iterdir()) == []  # it cleans up

    made = json.loads(file.read_text())
    assert made["facts"]["filesystem"]
    broken = [row for row in made["rows"] if "not_run" in row]
    assert broken == []
    measured = {(row["system"], row["step"]) for row in made["rows"]}
    for step in (
        "insert",
        "insert_one",
        "lease_one",
        "lease_many",
        "loop",
        "leased",
        "status",
        "delete",
        "drain",
        "mixed",
    ):
        assert ("fsqueue", step) in measured
    for step in ("insert", "lease_one", "lease_many", "loop", "delete"):
        assert ("floor", step) in measured
    assert {row["case"] for row in made["rows"] if row["step"] == "alive"} == set(CASES)
    assert {row["case"] for row in made["rows"] if row["step"] == "wake"} == {"poll", "run"}
    assert all(row["samples_us"] for row in made["rows"] if row["step"] == "wake")
    for row in made["rows"]:
        if row["step"] in ("drain", "drain_work", "drain_many", "mixed"):
            assert (row["lost"], row["twice"]) == (0, 0)
            assert row.get("false_empties", 0) == 0

    page = (docs / "benchmarks.md").read_text()
    assert "## Figures to reach" in page
    assert "lease 1 + complete, against the bare system calls" in page
    assert "insert to start on one host, run, idle for 0.3 s: median" in page
    assert "| fsqueue, poll, idle for 0.3 s | 8 |" in page
    for plot in docs.glob("*.svg"):
        xml.etree.ElementTree.parse(plot)
    assert len(list(docs.glob("*.svg"))) == 2

    # The tables can be made again without measuring, and what was written by hand around them stays.
    (docs / "benchmarks.md").write_text("# By hand\n\n" + page.partition("# Benchmarks\n\n")[2] + "\nThe end.\n")
    again = run("--from", file, "--docs", docs)
    assert again.returncode == 0, again.stderr
    text = (docs / "benchmarks.md").read_text()
    assert text.startswith("# By hand\n")
    assert text.endswith("\nThe end.\n")
    assert text.count("## Figures to reach") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sizes", "ten"), "not a list of whole numbers"),
        (("--sizes", "5"), "at least 100"),
        (("--only", "lease"), "not known"),
        (("--dir", "/nowhere/at/all", "--peers", "none"), "No such file"),
    ],
)
def test_what_it_cannot_do_it_says(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_tells_its_options_before_anything_is_installed(tmp_path: Path) -> None:
    """Also where there is no environment yet: with a Python that has none of what a run needs."""
    shutil.copytree(SCRIPTS, tmp_path / "scripts")
    bare = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, "PYTHONNOUSERSITE": "1"}
    done = subprocess.run(
        [tmp_path / "scripts/bench", "--help"], capture_output=True, text=True, timeout=PATIENCE_S, env=bare
    )
    assert done.returncode == 0, done.stderr
    assert "--budget" in done.stdout
    assert "== " not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["scripts"]


def test_without_a_redis_server_the_reason_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert peers.redis_version() is None
    assert "apt-get install redis-server" in peers.NO_REDIS
    with pytest.raises(SystemExit, match="Redis is not measured"):
        redis_.Adapter(str(tmp_path / "queue"))
