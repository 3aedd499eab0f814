"""A task that moves is done once, at one of the two queues, whatever becomes of the mover, and whoever acts meanwhile.

The gate tells some of the calls for each fault; `scripts/test --all` tells all.
"""

from __future__ import annotations

import itertools
from unittest import mock

import pytest

from fsqueue.protocol import parcels
from fsqueue.protocol.parcels import Parcel
from tests.levels import how_many
from tests.simulation.moves import ACTS, ALONE, BESIDE, wrong

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("kind", "fate"), [(kind, fate) for kind, fates in ALONE.items() for fate in fates])
def test_every_fault_at_calls_of_a_move(kind: str, fate: str) -> None:
    count, found = wrong(kind, fate, "", how_many(8, 1))
    assert not found, "\n".join(found[:5])
    assert count > 1


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(("kind", "fate"), [(kind, fate) for kind, fates in BESIDE.items() for fate in fates])
def test_another_process_acts_at_calls_of_a_move(kind: str, fate: str, act: str) -> None:
    count, found = wrong(kind, fate, act, how_many(12, 1))
    assert not found, "\n".join(found[:5])
    assert count > 1


BROKEN: dict[str, tuple[tuple[object, str, object], tuple[str, str, str]]] = {
    "the hold is not synced": ((parcels, "_sync", lambda _: None), ("lossy", "power", "")),
    "the hold runs out": ((parcels, "HELD_MS", 10_000), ("local", "days", "execute-source")),
    "each mover has a name of its own": (
        (Parcel, "commit", property(lambda parcel: f"mv-{parcel.lease}-{next(NUMBERS)}")),
        ("local", "killed", ""),
    ),
    "the hold is not ended": ((parcels, "end", lambda *_: 0), ("local", "on", "execute-target")),
}
"""What is broken on purpose, and the kind of case that finds it."""
NUMBERS = itertools.count()


@pytest.mark.parametrize("name", BROKEN)
def test_a_move_that_is_broken_on_purpose_is_found(name: str) -> None:
    broken, case = BROKEN[name]
    with mock.patch.object(*broken):
        assert wrong(*case, 5)[1]
