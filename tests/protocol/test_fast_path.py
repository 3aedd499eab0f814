"""The fast path does what the normal way does, or nothing (docs/decisions/0060-fast-path.md)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from fsqueue import Queue
from fsqueue.format.models import Used
from fsqueue.protocol import leasing
from tests.levels import how_many
from tests.protocol.fast_and_normal import EXCHANGES, SINGLES, Differs, live
from tests.protocol.fast_path_mutations import MUTATIONS
from tests.simulation.places import changed, edited
from tests.support import QueueFactory, base_of

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
def test_an_exchange_on_the_fast_path_and_the_normal_way_are_the_same(tmp_path: Path, piece: int) -> None:
    went: Counter[str] = Counter()
    for seed in range(piece * 10, piece * 10 + how_many(4, 10)):
        went += live(tmp_path, seed, much=EXCHANGES)
    assert went["exchange_next"] > 5, went


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


def test_a_loop_gives_out_no_payload_that_nests_too_deep(queue_factory: QueueFactory) -> None:
    """Too rare for the stories: its line must be long, sound, of a task that the loop has not met, and the next one."""
    q = queue_factory()
    q.insert_many(["x" * 1_000] * 5, batch_tasks=5)
    [file] = (base_of(q) / "queue").glob("*/*")
    lines = file.read_bytes().splitlines()
    deep = b'{"payload":' + b"[" * 300 + b"]" * 300 + b"}"
    lines[2] = deep + b" " * (len(lines[2]) - len(deep))
    file.write_bytes(b"\n".join([*lines, b""]))
    with Queue(q.path) as other:
        done = [task.id for task in other.poll() if not task.complete()]  # type: ignore[func-returns-value]
    assert len(done) == 4
    [letter] = q.dead()
    assert letter.reason == leasing.UNREADABLE_LINE


def test_a_loop_records_what_a_task_has_used(queue_factory: QueueFactory) -> None:
    q = queue_factory()
    q.insert_many(range(5), batch_tasks=5)
    for task in q.poll():
        task.used = Used(1_500, 2_048)
        task.complete()
    assert [(result.cpu_s, result.peak_memory_bytes) for result in q.results()] == [(1.5, 2 << 20)] * 5
