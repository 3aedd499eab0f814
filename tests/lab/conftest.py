"""The guests of these tests: each boots once, for all of them, and both work at the same time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.lab.guests import Guest, why_not

SEED = int(os.environ.get("FSQUEUE_TEST_SEED", "1"))
NFS = os.environ.get("FSQUEUE_TEST_NFS", "4.2")
"""The version of NFS; scripts/soak has 3, too."""
FILESYSTEM = os.environ.get("FSQUEUE_TEST_POWER_FS", "ext4")
"""What loses its power; scripts/soak has xfs and btrfs, too."""
CUTS = int(os.environ.get("FSQUEUE_TEST_CUTS", "2"))
"""Power cuts of each case."""
POWER_CASES = [
    (style, durability, batches)
    for style in ("inserting", "working", "looping", "everything", "purging")
    for durability in ("default", "strict")
    for batches in ("batched", "single")
    if (durability, batches) != ("strict", "single") or style == "everything"
]


def _guest(tmp_path_factory: pytest.TempPathFactory, lab: str, **environment: str) -> Guest:
    lacking = why_not()
    if lacking:
        pytest.skip(lacking)
    return Guest(tmp_path_factory.mktemp(lab) / "guest", lab, **environment)


@pytest.fixture(scope="session")
def nfs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """Two NFS clients, with default mount options."""
    guest = _guest(tmp_path_factory, "nfs", NFS=NFS)
    if any("power" in _fixtures(item) for item in request.session.items):
        request.getfixturevalue("power")  # the other guest does its work meanwhile
    yield guest
    guest.close()


@pytest.fixture(scope="session")
def power(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[tuple[str, str, str]], dict[str, int]]]:
    """What became of the power cuts of a case; those of all tests that are to run begin at once."""
    guest = _guest(tmp_path_factory, "power", FS=FILESYSTEM)
    wanted = [item.callspec.params["case"] for item in request.session.items if "power" in _fixtures(item)]
    begun = {}
    for style, durability, batches in wanted:
        begun[style, durability, batches] = guest.begin(
            "tests.lab.power",
            "cuts",
            timeout_s=60.0 * CUTS,
            seed=SEED,
            count=CUTS,
            style=style,
            durability=durability,
            batch_tasks_max=1 if batches == "single" else 1024,
        )
    yield lambda case: guest.result(begun[case], 120 + 60.0 * CUTS * len(wanted))
    guest.close()


def _fixtures(item: pytest.Item) -> list[str]:
    return getattr(item, "fixturenames", [])
