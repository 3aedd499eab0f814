"""The guests of these tests: each boots once, for all tests that use it, and they work at the same time, until the last
of these tests has ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from tests.lab.guests import BOOT_S, PATIENCE_S, Guest, running, why_not
from tests.levels import how_many

SEED = int(os.environ.get("FSQUEUE_TEST_SEED", "1"))
NFS = os.environ.get("FSQUEUE_TEST_NFS", "4.2")
"""The version of NFS; scripts/soak has 3, too."""
FILESYSTEM = os.environ.get("FSQUEUE_TEST_POWER_FS", "ext4")
"""What loses its power; scripts/soak has xfs and btrfs, too."""
CUTS = int(os.environ.get("FSQUEUE_TEST_CUTS", how_many(1, 2)))
"""Power cuts of each case."""
POWER_CASES = [
    (style, durability, batches, FILESYSTEM)
    for style in ("inserting", "working", "looping", "everything", "purging", "committing", "commands")
    for durability in ("default", "strict")
    for batches in ("batched", "single")
    if (durability, batches) != ("strict", "single") or style == "everything"
    if style not in ("committing", "commands") or (durability, batches) == ("default", "batched")
] + [
    (style, durability, "batched", filesystem)
    for filesystem in ("ext4", "xfs", "btrfs")
    for style in ("singly", "keyed", "updating")
    for durability in ("default", "strict")
    if durability == "default" or (style, filesystem) in (("singly", "ext4"), ("updating", "ext4"))
]
"""What is done, its durability, how tasks are batched, and the filesystem that loses its power.

Inserts one at a time, and updates, rely most on the order in which a disk keeps things: they have each filesystem.
"""

GATE_POWER_CASES = [
    ("everything", "default", "batched", "ext4"),
    ("singly", "default", "batched", "xfs"),
    ("keyed", "default", "batched", "btrfs"),
    ("updating", "default", "batched", "ext4"),
]
"""Those of the gate: each filesystem, and each time other work."""

POWER_GUESTS = 2
"""How many lose their power: they wait for the disk more than they compute. One is enough for a few cases."""
FEW = 4


def needs(lacking: str) -> None:
    """Skip a test for which something is lacking on this machine."""
    if lacking:
        pytest.skip(lacking)


def _guest(tmp_path_factory: pytest.TempPathFactory, lab: str, **environment: str) -> Guest:
    needs(why_not())
    return Guest(tmp_path_factory.mktemp(lab) / "guest", lab, **environment)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Print what the guests and the cluster have said, with each test here that fails."""
    report = yield
    if report.failed:
        report.sections += [(f"said in the lab of {lab.directory}", lab.said()) for lab in running]
    return report


@pytest.fixture(scope="package")
def nfs_guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """Two NFS clients, with default mount options, that have done nothing yet."""
    guest = _guest(tmp_path_factory, "nfs", NFS=NFS)
    yield guest
    guest.close()


@pytest.fixture(scope="package")
def calls(nfs_guest: Guest) -> Callable[[], dict[str, dict[str, float]]]:
    """The calls to a server that nobody has contended on: first of all, since files that clients have contended for
    are not delegated for a while, and none to a client that was cut off.
    """
    begun = nfs_guest.begin("tests.lab.nfs", "calls_per_task")
    return lambda: nfs_guest.result(begun, BOOT_S + PATIENCE_S)


@pytest.fixture(scope="package")
def single_calls(nfs_guest: Guest) -> Callable[[], dict[str, dict[str, float]]]:
    """The same of tasks that are inserted alone."""
    begun = nfs_guest.begin("tests.lab.single_inserts", "calls_per_task")
    return lambda: nfs_guest.result(begun, BOOT_S + PATIENCE_S)


@pytest.fixture(scope="package")
def update_calls(nfs_guest: Guest) -> Callable[[], dict[str, dict[str, float]]]:
    """The same of updates over several queues."""
    begun = nfs_guest.begin("tests.lab.updates", "calls_per_update")
    return lambda: nfs_guest.result(begun, BOOT_S + PATIENCE_S)


@pytest.fixture(scope="package")
def group_calls(nfs_guest: Guest) -> Callable[[], dict[str, dict[str, float]]]:
    """The same of looks at groups, and of lessees that wait."""
    begun = nfs_guest.begin("tests.lab.groups", "calls")
    return lambda: nfs_guest.result(begun, BOOT_S + PATIENCE_S)


@pytest.fixture(scope="package")
def nfs(request: pytest.FixtureRequest, nfs_guest: Guest) -> Guest:
    """Two NFS clients, with default mount options."""
    for other in (
        "calls",
        "single_calls",
        "update_calls",
        "group_calls",
        "cut_off",
        "power",
        "nolock",
    ):  # what comes first, and what other guests do meanwhile
        if _wanted(request, other) and (NFS != "3" or other in ("power", "nolock")):
            request.getfixturevalue(other)
    return nfs_guest


@pytest.fixture(scope="package")
def cut_off(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], dict[str, dict[str, Any]]]]:
    """What became of each point at which a client was cut off: those of the tests that are to run.

    Many of them in a guest apart, because there is much waiting.
    """
    points = [item.callspec.params["point"] for item in _wanted(request, "cut_off")]
    apart = len(points) > FEW
    guest = _guest(tmp_path_factory, "nfs", NFS=NFS) if apart else request.getfixturevalue("nfs_guest")
    begun = guest.begin("tests.lab.nfs", "cut", points=points)
    if apart:
        guest.ends_then()
    yield lambda: guest.result(begun, BOOT_S + PATIENCE_S)
    if apart:
        guest.close()


@pytest.fixture(scope="package")
def nolock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """What the doctor reports from two clients that mount NFS 3 with `nolock`."""
    guest = _guest(tmp_path_factory, "nfs", NFS="3", NFS_OPTIONS="nolock")
    begun = guest.begin("tests.lab.doctors", "two_join")
    guest.ends_then()
    yield lambda: guest.result(begun, BOOT_S + PATIENCE_S)
    guest.close()


@pytest.fixture(scope="package")
def power(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[tuple[str, str, str, str]], dict[str, int]]]:
    """What became of the power cuts of a case; those of all tests that are to run begin at once."""
    wanted = [item.callspec.params["case"] for item in _wanted(request, "power")]
    guests = [_guest(tmp_path_factory, "power") for _ in range(1 if len(wanted) <= FEW else POWER_GUESTS)]
    begun = {}
    for number, (style, durability, batches, filesystem) in enumerate(wanted):
        guest = guests[number % len(guests)]
        begun[style, durability, batches, filesystem] = (
            guest,
            guest.begin(
                "tests.lab.power",
                "cuts",
                timeout_s=PATIENCE_S * CUTS,
                seed=SEED,
                count=CUTS,
                style=style,
                durability=durability,
                filesystem=filesystem,
                batch_tasks_max=1 if batches == "single" else 1024,
            ),
        )

    for guest in guests:
        guest.ends_then()

    def result(case: tuple[str, str, str, str]) -> dict[str, int]:
        guest, number = begun[case]
        return guest.result(number, BOOT_S + PATIENCE_S * CUTS * len(wanted))

    yield result
    for guest in guests:
        guest.close()


def _wanted(request: pytest.FixtureRequest, fixture: str) -> list[Any]:
    """The tests that are to run and use a fixture."""
    return [item for item in request.session.items if fixture in getattr(item, "fixturenames", ())]
