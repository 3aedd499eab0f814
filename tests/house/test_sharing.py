"""A run of tests ends, whatever becomes of its processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.house.source import NO_PLUGINS, TOP
from tests.waiting import PATIENCE_S

TESTS = """
import os
import pytest

@pytest.mark.parametrize("number", range({tests}))
def test_it(number):
    with open(os.environ["RAN"], "a") as ran:
        ran.write(f"{unit}-{{number}}\\n")
    if ("{unit}", number) == ("{unit_of_death}", {number_of_death}):
        os._exit(3)
"""


def run(directory: Path, units: dict[str, int], death: tuple[str, int]) -> tuple[str, Counter[str]]:
    """Run tests in two processes, one of which dies in a test. Return the output, and how often each test ran."""
    for unit, tests in units.items():
        path = directory / f"tests/test_{unit}.py"
        path.parent.mkdir(exist_ok=True)
        values = {"tests": tests, "unit": unit, "unit_of_death": death[0], "number_of_death": death[1]}
        path.write_text(TESTS.format(**values))
    ran = directory / "ran"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.house.sharing", "-p", "xdist", "-n", "2", "tests"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env |= NO_PLUGINS | {"PYTHONPATH": str(TOP), "RAN": str(ran)}
    options = {"cwd": directory, "env": env, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, timeout=PATIENCE_S, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 1, done.stdout
    return done.stdout, Counter(ran.read_text().split())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("death", [("a", 3), ("a", 0), ("c", 1), ("g", 4), ("g", 0), ("e", 0)], ids=str)
def test_each_test_runs_once_though_a_process_dies(tmp_path: Path, death: tuple[str, int]) -> None:
    units = {"a": 5, "b": 1, "c": 3, "d": 1, "e": 1, "f": 2, "g": 5}
    output, ran = run(tmp_path, units, death)
    assert ran == Counter(f"{unit}-{number}" for unit, tests in units.items() for number in range(tests)), output
    assert f"{sum(units.values()) - 1} passed" in output
    assert "1 failed" in output
