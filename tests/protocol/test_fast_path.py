"""The fast path does what the normal way does, or nothing (docs/decisions/0060-fast-path.md)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.levels import how_many
from tests.protocol.fast_and_normal import SINGLES, Differs, live
from tests.protocol.fast_path_mutations import MUTATIONS
from tests.simulation.places import changed, edited

pytestmark = pytest.mark.once

PIECES = how_many(6, 60)


@pytest.mark.parametrize("piece", range(PIECES))
def test_the_fast_path_and_the_normal_way_are_the_same(tmp_path: Path, piece: int) -> None:
    went: Counter[str] = Counter()
    for seed in range(piece * 10, piece * 10 + how_many(4, 10)):
        went += live(tmp_path, seed)
    assert went["lease_next"] > 5, went
    assert went["complete_in_hand"] > 5, went


@pytest.mark.parametrize("piece", range(PIECES))
def test_an_insert_on_the_fast_path_and_the_normal_way_are_the_same(tmp_path: Path, piece: int) -> None:
    went: Counter[str] = Counter()
    for seed in range(piece * 10, piece * 10 + how_many(4, 10)):
        went += live(tmp_path, seed, much=SINGLES)
    assert went["insert_next"] > 5, went


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_in_the_fast_path_is_noticed(tmp_path: Path, name: str) -> None:
    much, seed, edits = MUTATIONS[name]
    live(tmp_path / "right", seed, much=much)
    with changed(edited(edits)), pytest.raises(Differs):
        live(tmp_path / "wrong", seed, much=much)
