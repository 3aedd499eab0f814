"""bench: measures, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Run


def test_bench_prints_rates_and_leaves_nothing(fsqueue_cli: Run, tmp_path: Path) -> None:
    figures = json.loads(fsqueue_cli("bench", tmp_path, "--tasks", "500", "--duration", "0.5", "--json").stdout)
    for name in ("insert_many", "insert", "lease_1_complete", "lease_100_complete"):
        assert figures[name]["tasks_per_s"] > 0
        assert 0 < figures[name]["median_ms"] <= figures[name]["p99_ms"] <= figures[name]["max_ms"]
    assert figures["status"]["median_ms"] > 0
    table = fsqueue_cli("bench", tmp_path, "--tasks", "1", "--duration", "0").stdout
    assert len(table.splitlines()) == 7
    assert list(tmp_path.iterdir()) == []


def test_bench_needs_a_directory(fsqueue_cli: Run, tmp_path: Path) -> None:
    fsqueue_cli("bench", tmp_path / "absent", code=2)
    fsqueue_cli("bench", tmp_path, "--tasks", "0", code=2)
