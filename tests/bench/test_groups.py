"""The benchmark of groups, small: what it prints is there, and its bound holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "group_figures.py"


@pytest.mark.once
def test_the_benchmark_of_groups_works_and_leaves_nothing(tmp_path: Path) -> None:
    small = ["--queues", "200", "--with-task", "50", "--looks", "2", "--pairs", "50"]
    command = [sys.executable, str(SCRIPT), *small, "--json"]
    ran = subprocess.run([*command, "--place", str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["tasks"] == 4
    assert (found["all_found"], found["pattern_found"], found["with_tasks_found"]) == (200, 20, 4)
    assert found["pattern_s"] > 0
    assert found["all_ratio"] > 0
    assert [name for name in found if name.startswith("pair_")] == [
        "pair_cpu_us", "pair_64_one_ratio", "pair_64_all_ratio", "pair_100_one_ratio", "pair_100_all_ratio",
    ]  # fmt: skip
    assert all(found[name] > 0 for name in found if name.startswith("pair_"))
    assert list(tmp_path.iterdir()) == []
