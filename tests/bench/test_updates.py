"""The benchmark of updates, small: what it prints is there, and the number of syncs in a row holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "update_figures.py"


@pytest.mark.thorough
@pytest.mark.once
def test_the_benchmark_of_updates_writes_its_tables_between_the_marks(tmp_path: Path) -> None:
    docs, place = tmp_path / "docs", tmp_path / "place"
    docs.mkdir()
    place.mkdir()
    page = docs / "benchmarks.md"
    page.write_text("# By hand\n")
    command = [sys.executable, str(SCRIPT), "--dir", str(place), "--open", "20", "--docs", str(docs)]
    for _ in range(2):
        ran = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert ran.returncode == 0, ran.stderr
    text = page.read_text()
    assert text.startswith("# By hand\n")
    assert text.count("## Updates") == 1
    assert "| ten queues | 11 | 2 |\n" in text
    assert "| one log | 1 | 1 |\n" in text
    assert all(len(line) <= 100 for line in text.splitlines() if not line.startswith(("|", "<")))
    assert list(place.iterdir()) == []
