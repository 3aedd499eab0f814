"""Two doctors that meet, as processes: one is killed after any step, or stopped, or its filesystem lies."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fsqueue.clock import Entropy
from fsqueue.doctor import examination as doctor
from fsqueue.doctor import rendezvous, twohosts
from fsqueue.filesystem import Filesystem
from fsqueue.filesystem.open_directories import OpenDirectory
from fsqueue.upkeep import doctorplaces
from tests.concurrency.processes import Child
from tests.levels import how_many

Make = Callable[..., Filesystem]
Start = Callable[..., Child]
LEADS, FOLLOWS = "0", "f"
"""How the id of a party begins that is to lead, or to follow."""
OTHER = {LEADS: FOLLOWS, FOLLOWS: LEADS}


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (twohosts, "TURNS_S", 0.3),
        (twohosts, "HEAD_START_S", 0.1),
        (twohosts, "SLOT_S", 0.002),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    """Start a process that plays one party's part. None outlives the test."""
    started: list[Child] = []

    def start(*args: Any) -> Child:
        started.append(Child(join, *args))
        return started[-1]

    yield start
    for child in started:
        child.close()


class Rigged(Entropy):
    """Its ids begin with a digit that was chosen."""

    def __init__(self, digit: str) -> None:
        super().__init__()
        self.digit = digit

    def hex16(self) -> str:
        return self.digit + super().hex16()[1:]


class Hasty(doctor.Examination):
    """One that makes the tests between two hosts only."""

    def _look(self) -> None:
        pass


def join(
    directory: Path, digit: str, make: Make = Filesystem, timeout_s: float = 60, silence_s: float = 60
) -> dict[str, Any]:
    """Play one party's part, in a process of its own; its report."""
    rendezvous.SILENCE_S = silence_s
    examination = Hasty(directory, lambda step: None, make)
    examination.entropy = Rigged(digit)
    examination.join(timeout_s, lambda: None)
    return examination.report.as_dict()


def two(start: Start, directory: Path, one: Make, other: Make) -> dict[str, str]:
    """Two processes on filesystems of their own: the verdicts of their tests, which both report alike."""
    children = [start(directory, digit, make) for digit, make in ((LEADS, one), (FOLLOWS, other))]
    reports = [child.result() for child in children]
    found = [
        [finding for finding in report["findings"] if " hosts" in finding["probe"] and finding["probe"] != "two hosts"]
        for report in reports
    ]
    assert found[0] == found[1]
    assert os.listdir(directory) == []
    return {finding["probe"].removesuffix(" between hosts"): finding["verdict"] for finding in found[0]}


ALL_WELL = dict.fromkeys(
    ("locks", "appending", "reading", "create", "link", "rename", "sight", "clocks of hosts"), "ok"
)  # fmt: skip


def test_two_on_a_good_filesystem(tmp_path: Path, start: Start) -> None:
    assert two(start, tmp_path, Filesystem, Filesystem) == ALL_WELL


class OwnLocks(Filesystem):
    """Its locks succeed, and exclude nobody else."""

    def __init__(self, root: str, **options: Any) -> None:
        super().__init__(root, **options)
        self.try_lock = lambda fd: True


@pytest.mark.parametrize("makes", [(OwnLocks, Filesystem), (Filesystem, OwnLocks), (OwnLocks, OwnLocks)])
def test_locks_that_do_not_exclude(tmp_path: Path, start: Start, makes: tuple[Make, Make]) -> None:
    assert two(start, tmp_path, *makes)["locks"] == "unfit"


class WithLedger(Filesystem):
    """One that knows which file is the ledger."""

    ledger = -1

    def __init__(self, root: str, **options: Any) -> None:
        super().__init__(root, **options)
        real = self.close

        def close(fd: int) -> None:
            self.ledger = -1 if fd == self.ledger else self.ledger
            real(fd)

        self.close = close

    def open_append(self, path: str) -> int:
        fd = super().open_append(path)
        if path.endswith("/ledger"):
            self.ledger = fd
        return fd


class OldReads(WithLedger):
    """Of the locked file it reads what was there at first, as a client that believes its cache."""

    def __init__(self, root: str, **options: Any) -> None:
        super().__init__(root, **options)
        real, seen = self.pread, list[bytes]()

        def pread(fd: int, count: int, offset: int) -> bytes:
            if fd != self.ledger or not seen:
                found = real(fd, count, offset)
                if fd == self.ledger:
                    seen.append(found)
                return found
            return seen[0]

        self.pread = pread


class LostAppends(WithLedger):
    """Each fifth line that it appends is lost."""

    def __init__(self, root: str, **options: Any) -> None:
        super().__init__(root, **options)
        real, lines = self.write, [0]

        def write(fd: int, data: bytes | memoryview) -> int:
            lines[0] += fd == self.ledger
            return len(data) if fd == self.ledger and lines[0] % 5 == 0 else real(fd, data)

        self.write = write


@pytest.mark.parametrize(("make", "probe"), [(OldReads, "reading"), (LostAppends, "appending")])
@pytest.mark.parametrize("leads", [True, False])
def test_data_that_are_stale_or_lost(tmp_path: Path, start: Start, make: Make, probe: str, leads: bool) -> None:
    found = two(start, tmp_path, *((make, Filesystem) if leads else (Filesystem, make)))
    assert found[probe] == "unfit"
    assert (found["create"], found["sight"]) == ("ok", "ok")


# -- a party that is killed, or stopped ------------------------------------------------------------------

Step = tuple[str, str, int]
"""An operation, a pattern of its path, and the how manieth of those it is."""


def ending_after(step: Step, how: signal.Signals) -> type[Filesystem]:
    """A filesystem whose process is hit by a signal right after a step, also one that the other party was faster in."""
    operation, pattern, number = step

    class Ending(Filesystem):
        left = number

        def __init__(self, root: str, **options: Any) -> None:
            super().__init__(root, **options)
            real = getattr(self, operation)

            def done(*words: Any) -> Any:
                try:
                    return real(*words)
                finally:
                    if re.search(pattern, str(words[0])):
                        Ending.left -= 1
                        if not Ending.left:
                            os.kill(os.getpid(), how)

            setattr(self, operation, done)

    return Ending


NOTES = 2 + twohosts.PINGS + 7
"""All notes of a party: to meet, for the clocks, how long one took, and one at the end of each step after that."""
ALONE: list[Step] = [("create", r"\.here$", 1), ("create", r"\.000001$", 1)]
"""Steps of a party that meets nobody any more, if it is killed after them."""
STEPS: list[Step] = [
    *(("create", rf"\.{number:06d}$", 1) for number in range(2, NOTES + 1, how_many(3, 1))),
    *(("write", "", number) for number in (3, 12, 15, 16)),
    ("create", r"/created-", 1),
    ("link", "", 1),
    ("rename", "", 1),
    ("create", r"/new$", 2),
    ("unlink", r"/gone$", 2),
    ("unlink", r"\.here$", 1),
    ("unlink", r"\.[0-9]{6}$", 3),
]
OF_THE_LEADER: list[Step] = [("create", r"/ledger$", 1), ("create", r"/prize-", 7), ("create", r"/gone$", 2)]
SENTENCES = ("said nothing more", "was ended", "No other host joined")
AT_ONCE = 8
"""How many pairs are at work at once: they wait most of the time."""


def steps_of(digit: str) -> list[Step]:
    """Return the steps after which a party is killed that leads, or follows."""
    return [*ALONE, *STEPS, *(OF_THE_LEADER if digit == LEADS else ())]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("digit", "first"), [(digit, first) for digit in OTHER for first in range(0, len(steps_of(digit)), AT_ONCE)]
)
def test_a_party_that_is_killed_after_any_step(tmp_path: Path, start: Start, digit: str, first: int) -> None:
    """The other says so, or has all that it needs; what both left goes at once, or after a day."""
    began = {}
    for number, step in enumerate(steps_of(digit)[first : first + AT_ONCE]):
        directory = tmp_path / str(number)
        directory.mkdir()
        killed = start(directory, digit, ending_after(step, signal.SIGKILL))
        survivor = start(directory, OTHER[digit], Filesystem, 4 if step in ALONE else 60, 3)
        began[directory] = step, killed, survivor
    for directory, (step, killed, survivor) in began.items():
        assert killed.wait() == -signal.SIGKILL, step
        check_survivor(survivor.result(), step)
        check_reaping(directory, step)


def check_survivor(report: dict[str, Any], step: Step) -> None:
    if report["partner"] is None:
        last = report["findings"][-1]
        assert (last["probe"], report["verdict"]) == ("two hosts", "warning"), step
        assert any(words in last["seen"] for words in SENTENCES), (step, last["seen"])


def check_reaping(directory: Path, step: Step) -> None:
    for path in directory.rglob("*"):
        os.utime(path, (1e9, 1e9))
    with OpenDirectory.at(str(directory)) as held:
        doctorplaces.reap(held, held.names(), directory.stat().st_mtime)
    assert os.listdir(directory) == [], step


def test_a_party_that_is_killed_at_its_tests_is_cleared_away_by_the_other(tmp_path: Path, start: Start) -> None:
    for digit in OTHER:
        killed = start(tmp_path, digit, ending_after(("link", "", 3), signal.SIGKILL))
        survivor = start(tmp_path, OTHER[digit], Filesystem, 60, 10)
        assert killed.wait() == -signal.SIGKILL
        assert "said nothing more" in survivor.result()["findings"][-1]["seen"]
        assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("digit", [LEADS, FOLLOWS])
@pytest.mark.parametrize("step", [("create", r"\.000004$", 1), ("link", "", 3), ("create", rf"\.{NOTES:06d}$", 1)])
def test_a_party_that_is_stopped_is_given_up_and_notices_when_it_goes_on(
    tmp_path: Path, start: Start, digit: str, step: Step
) -> None:
    stopped = start(tmp_path, digit, ending_after(step, signal.SIGSTOP))
    survivor = start(tmp_path, OTHER[digit], Filesystem, 60, 10)
    stopped.wait_stopped()
    report = survivor.result()
    assert os.listdir(tmp_path) == []
    stopped.signal(signal.SIGCONT)
    late = stopped.result()
    if step[1].endswith(f"{NOTES:06d}$"):  # each had said all
        assert (report["partner"] is None, late["partner"] is None) == (False, False)
    else:
        assert "said nothing more" in report["findings"][-1]["seen"]
        assert "was ended" in late["findings"][-1]["seen"]
    assert os.listdir(tmp_path) == []
