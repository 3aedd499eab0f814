"""The figures of a gateway, on few tasks: the script runs, and its ratios are those of its rates."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gateway_figures.py"
VERBS = ("lease + complete", "lease + update", "claim + delete")
pytestmark = [pytest.mark.once, pytest.mark.slow, pytest.mark.thorough]


def test_a_gateway_is_measured_beside_as_many_processes(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--dir", str(tmp_path), "--clients", "2", "--payloads", "20 B"]
    done = subprocess.run([*command, "--seconds", "0.5", "--rounds", "1"], capture_output=True, text=True, check=True)
    heading, _, *rows = done.stdout.splitlines()
    assert [row.split(" | ")[0] for row in rows] == [f"| {verb}" for verb in VERBS]
    for row in rows:
        cells = [cell.strip() for cell in row.strip("| ").split("|")]
        assert len(cells) == heading.count("|") - 1
        rate, of_processes, ratio = (float(cell.replace(",", "")) for cell in cells[4:7])
        assert rate > 0
        assert abs(rate / of_processes - ratio) < 0.1 * ratio + 0.01
    assert list(tmp_path.iterdir()) == []


def test_the_page_of_a_group_is_measured(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--dir", str(tmp_path), "--queues", "20"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "first answer after" in done.stdout
    assert "with its table after" in done.stdout
    assert "in Chromium" in done.stdout
