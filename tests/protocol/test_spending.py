"""What used up a task's attempts, from the records of a log."""

from __future__ import annotations

from typing import Any

from fsqueue.protocol.spending import Charge, last

FIRST, SECOND = {"host": "a", "pid": 1}, {"host": "b", "pid": 2}
Records = list[tuple[int, dict[str, Any]]]


def log(*records: dict[str, Any]) -> Records:
    """Return records with offsets, one a millisecond, behind an `open` of three tasks."""
    opened = {"op": "open", "count": 3, "birth": 0, "name": ""}
    return [(100 * at, {"at": at} | record) for at, record in enumerate([opened, *records])]


def leased(lease: str, worker: dict[str, Any], *ranges: list[int], until: int = 1000) -> dict[str, Any]:
    return {"op": "lease", "lease": lease, "tasks": [*ranges], "until": until, "worker": worker}


def failed(lease: str, error: str, *ranges: list[int]) -> dict[str, Any]:
    return {"op": "fail", "lease": lease, "tasks": [*ranges], "available_at": 0, "error": error}


def test_a_failure_counts_though_the_task_was_released_since() -> None:
    records = log(
        leased("l1", FIRST, [0, 3]),
        failed("l1", "no", [0, 2]),
        leased("l2", SECOND, [0, 1]),
        {"op": "release", "lease": "l2", "tasks": [[0, 1]], "available_at": 0},
    )
    assert last(records, [0, 1, 2]) == {0: Charge("no", FIRST), 1: Charge("no", FIRST)}
    assert last(records, [1]) == {1: Charge("no", FIRST)}


def test_a_lease_that_ran_out_after_a_failure_counts_once_the_task_is_leased_again() -> None:
    records = log(
        leased("l1", FIRST, [0, 1]),
        failed("l1", "no", [0, 1]),
        leased("l2", SECOND, [0, 1], until=4),
        leased("l3", FIRST, [0, 1]),
    )
    assert last(records[:-1], [0]) == {0: Charge("no", FIRST)}
    assert last(records, [0]) == {0: Charge(None, SECOND)}


def test_records_that_do_not_act_charge_nothing() -> None:
    damaged: list[dict[str, Any]] = [
        failed("l2", "of another lease", [0, 1]),
        {"op": "fail", "lease": "l1"},
        {"op": "fail", "lease": "l1", "tasks": 5, "available_at": 0, "error": "damaged"},
        {"op": "fail", "lease": "l1", "tasks": [["a", None]], "available_at": 0, "error": "damaged"},
        {"op": "fail", "lease": "l1", "tasks": [[0, 10**15]], "available_at": 0, "error": "damaged"},
        {"op": "fail", "lease": "l1", "tasks": [[0, 10**30]], "available_at": 0, "error": "damaged"},
    ]
    assert last(log(leased("l1", FIRST, [0, 1]), *damaged), [0]) == {}
    assert last(log(), [7]) == {}


def test_a_failure_of_an_update_counts_if_that_is_committed() -> None:
    part = {"update": "a" * 16, "file": "e" * 32}
    records = log(leased("l1", FIRST, [0, 1]), failed("l1", "no", [0, 1]) | part)
    assert last(records, [0]) == {}
    aborted, committed = {"op": "abort", "update": "a" * 16}, {"op": "commit", "update": "a" * 16, "of": 1}
    assert last([*records, (900, aborted | {"at": 9})], [0]) == {}
    assert last([*records, (900, committed | {"at": 9})], [0]) == {0: Charge("no", FIRST)}
