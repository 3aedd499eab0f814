"""Real quotas (ext4, xfs), and a disk that becomes read-only under open files: see `disks`, which runs in a guest."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.source import TOP
from tests.lab.disks import SCENARIOS
from tests.lab.guests import DIES_WITH_US, LAB, running, why_not
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.thorough]
PATIENCE_S = 600.0


class Disks:
    """A guest that plays all scenarios, one after the other, and tells of each what went wrong."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with open(directory / "output", "wb") as output:
            self._process = subprocess.Popen(
                [*DIES_WITH_US, LAB / "guest", directory, sys.executable, "-m", "tests.lab.disks", directory],
                cwd=TOP,
                env=os.environ | {"MEMORY": "700M"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        running.append(self)

    def answer(self, name: str) -> str:
        """What went wrong in a scenario; "" if nothing did."""
        answer = self.directory / f"{name}.answer"

        def is_answered() -> bool:
            assert answer.exists() or self._process.poll() is None, "the guest has ended"
            return answer.exists()

        until(is_answered, f"{name} in the guest", PATIENCE_S)
        return answer.read_text()

    def said(self) -> str:
        """The end of what the guest has written."""
        return (self.directory / "output").read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """End it."""
        running.remove(self)
        self._process.terminate()
        self._process.wait()


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disks]:
    lacking = why_not()
    if lacking:
        pytest.skip(lacking)
    disks = Disks(tmp_path_factory.mktemp("disks"))
    yield disks
    disks.close()


@pytest.mark.parametrize("name", SCENARIOS)
def test_in_the_guest(disks: Disks, name: str) -> None:
    assert disks.answer(name) == ""
