"""CI's promise that nothing was skipped, tested on a suite of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.house.source import NO_PLUGINS, TOP

SUITE = """
import pytest

def test_passes():
    pass

@pytest.mark.skip(reason="not today")
def test_skipped():
    pass

@pytest.mark.xfail(strict=True)
def test_known_to_fail():
    assert False

def test_skips_itself():
    pytest.skip("cannot")
"""


def run(directory: Path, no_skips: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.house.no_skips", "-q", str(directory)],
        env=os.environ | NO_PLUGINS | {"FSQUEUE_TEST_NO_SKIPS": no_skips, "PYTHONPATH": str(TOP)},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    return finished.stdout.splitlines()[-1]


def test_skips_fail_where_they_must_not_be(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    assert "1 passed, 2 skipped, 1 xfailed" in run(tmp_path, "0")
    assert "1 failed, 1 passed, 1 xfailed, 1 error" in run(tmp_path, "1")


def test_a_module_that_skips_itself_fails_too(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    assert "1 skipped" in run(tmp_path, "0")
    assert "1 error" in run(tmp_path, "1")
