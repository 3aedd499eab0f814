"""Real quotas (ext4, xfs), and a disk that becomes read-only under open files: see `disks`, which runs in a guest."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.source import TOP
from tests.lab.disks import SCENARIOS
from tests.lab.guests import DIES_WITH_US, LAB, why_not

pytestmark = pytest.mark.slow
PATIENCE_S = 300.0


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """Where the answers come, one after the other, and what gives them."""
    lacking = why_not()
    if lacking:
        pytest.skip(lacking)
    directory = tmp_path_factory.mktemp("disks")
    with open(directory / "output", "wb") as output:
        process = subprocess.Popen(
            [*DIES_WITH_US, LAB / "guest", directory, sys.executable, "-m", "tests.lab.disks", directory],
            cwd=TOP,
            env=os.environ | {"MEMORY": "700M"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    yield directory, process
    process.terminate()
    process.wait()


@pytest.mark.parametrize("name", SCENARIOS)
def test_in_the_guest(guest: tuple[Path, subprocess.Popen[bytes]], name: str) -> None:
    directory, process = guest
    answer, until = directory / f"{name}.answer", time.monotonic() + PATIENCE_S
    while not answer.exists():
        said = (directory / "output").read_text(errors="replace")
        assert process.poll() is None or answer.exists(), said
        assert time.monotonic() < until, said
        time.sleep(0.05)
    assert answer.read_text() == ""
