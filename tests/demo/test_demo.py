"""The demonstration itself, on fewer files: a worker is killed, and everything still agrees."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.house.source import TOP
from tests.waiting import PATIENCE_S


@pytest.mark.slow
def test_demo_on_some_files(tmp_path: Path) -> None:
    finished = subprocess.run(
        [TOP / "scripts" / "demo", "--limit", "300", "--workers", "3", "--dir", tmp_path],
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    print(finished.stdout, finished.stderr)
    assert finished.returncode == 0
    assert "Everything agrees." in finished.stdout
    assert "WRONG" not in finished.stdout
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"
