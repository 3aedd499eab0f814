"""The figures to reach, each with what this run measured. Nothing here is a result: all is computed from the rows."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.summary import Row, Summary

NAMES = {"lease_one": "lease 1 + complete", "lease_many": "lease 100 + complete"}


@dataclass(frozen=True)
class Figure:
    """A figure to reach. `reached` is None if this run did not measure it."""

    what: str
    wanted: str
    measured: str
    reached: bool | None


def figures(summary: Summary) -> list[Figure]:
    """All of them, in order. Where several sizes or rounds were measured, `measured` says which one counts."""
    return [
        *_insert(summary),
        *_by_size(summary, "lease_one", "task-queue", 30),
        _against(summary, "lease_one", "dirq", 2),
        _against(summary, "lease_one", "huey", 4),
        _over_floor(summary),
        *_by_size(summary, "lease_many", "task-queue", 100),
        _at_scale(summary, "lease_one", ""),
        _at_scale(summary, "leased", ", 60 % of the tasks leased,"),
        _history(summary),
        *_status(summary),
        *_delete(summary),
        *_drain(summary),
    ]


def _figure(
    what: str, wanted: str, value: float | None, passes: Callable[[float], bool], words: Callable[[float], str]
) -> Figure:
    if value is None:
        return Figure(what, wanted, "not measured", None)
    return Figure(what, wanted, words(value), passes(value))


def _largest(summary: Summary, step: str, system: str = "fsqueue") -> int:
    return max(summary.sizes(step, system), default=0)


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def _insert(summary: Summary) -> list[Figure]:
    size = _largest(summary, "insert")
    mine, theirs = summary.rate("fsqueue", "insert", size), summary.rate("task-queue", "insert", size)
    tasks, inodes = (summary.value("fsqueue", "insert", size, key) for key in ("tasks", "inodes"))
    memory = summary.value("fsqueue", "insert", size, "memory_mb")
    at = f"at {size:,} tasks"
    sample = next((row["tasks"] for row in summary.rounds("task-queue", "insert", size) if "note" in row), None)
    of = "" if sample is None else f"; task-queue's first {sample:,}"
    return [
        _figure(
            "insert_many, synced, against task-queue, not synced",
            "at least 100 times its rate",
            _over(mine, theirs),
            lambda ratio: ratio >= 100,
            lambda ratio: f"{ratio:,.0f} times ({mine:,.0f}/s to {theirs:,.0f}/s, {at}{of})",
        ),
        _figure(
            "insert_many: inodes",
            "at most 1 for 500 tasks",
            _over(tasks, inodes),
            lambda each: each >= 500,
            lambda each: f"1 for {each:,.0f} ({at})",
        ),
        _figure(
            "insert_many: peak memory", "under 100 MB", memory, lambda mb: mb < 100, lambda mb: f"{mb:,.0f} MB ({at})"
        ),
    ]


def _against(summary: Summary, step: str, peer: str, least: int) -> Figure:
    found = [(ratio, size) for size in summary.sizes(step, peer) if (ratio := summary.times(peer, step, size))]
    worst, size = min(found, default=(None, 0))
    return _figure(
        f"{NAMES[step]}, one process, against {peer}",
        f"at least {least} times its rate",
        worst,
        lambda ratio: ratio >= least,
        lambda ratio: f"{ratio:,.1f} times (worst size: {size:,} tasks)",
    )


def _by_size(summary: Summary, step: str, peer: str, least: int) -> list[Figure]:
    """A line for each size: what the end of a batch costs weighs more, the smaller the batches of a small queue are."""

    def words(size: int) -> Callable[[float], str]:
        floor = summary.rate("floor", step, size)
        theirs = summary.rate(peer, step, size)
        bare = "" if floor is None or not theirs else f"; the bare system calls: {floor / theirs:,.0f} times"
        return lambda ratio: f"{ratio:,.1f} times{bare}"

    what, wanted = f"{NAMES[step]}, one process, against {peer}", f"at least {least} times its rate"
    return [
        _figure(
            f"{what}, {size:,} tasks",
            wanted,
            summary.times(peer, step, size),
            lambda ratio: ratio >= least,
            words(size),
        )
        for size in summary.sizes(step, peer)
        if summary.times(peer, step, size)
    ] or [Figure(what, wanted, "not measured", None)]


def _over_floor(summary: Summary) -> Figure:
    sizes = summary.sizes("lease_one", "floor")
    found = [(1 / ratio, size) for size in sizes if (ratio := summary.times("floor", "lease_one", size))]
    worst, size = max(found, default=(None, 0))
    return _figure(
        "lease 1 + complete, against the bare system calls",
        "at most 3 times their time",
        worst,
        lambda ratio: ratio <= 3,
        lambda ratio: f"{ratio:.2f} times (worst size: {size:,} tasks)",
    )


def _at_scale(summary: Summary, step: str, also: str) -> Figure:
    base, size = min(summary.sizes("lease_one", "fsqueue"), default=0), _largest(summary, step)
    cost, base_cost = summary.task_us("fsqueue", step, size), summary.task_us("fsqueue", "lease_one", base)
    return _figure(
        f"lease 1 + complete in the largest queue{also} against the smallest",
        "at most 1.2 times the cost",
        _over(cost, base_cost) if size > base else None,
        lambda ratio: ratio <= 1.2,
        lambda ratio: f"{ratio:.2f} times ({cost:.1f} µs at {size:,} tasks, {base_cost:.1f} µs at {base:,})",
    )


def _history(summary: Summary) -> Figure:
    sizes = summary.sizes("lease_one", "fsqueue-nohistory")
    found = [(1 / ratio, size) for size in sizes if (ratio := summary.times("fsqueue-nohistory", "lease_one", size))]
    worst, size = max(found, default=(None, 0))
    return _figure(
        "lease 1 + complete with history kept, against without",
        "at most 15 % more",
        worst,
        lambda ratio: ratio <= 1.15,
        lambda ratio: f"{(ratio - 1) * 100:+.1f} % (worst size: {size:,} tasks)",
    )


def _status(summary: Summary) -> list[Figure]:
    size = _largest(summary, "status")
    mine = summary.value("fsqueue", "status", size, "seconds")
    listing = summary.value("64 empty directories", "status", size, "seconds")
    read = summary.value("fsqueue", "status", size, "bytes_read")
    at = f"at {size:,} tasks"
    return [
        _figure(
            "status, against listing 64 empty directories",
            "under 50 times its time",
            _over(mine, listing),
            lambda ratio: ratio < 50,
            lambda ratio: f"{ratio:.1f} times ({(mine or 0) * 1e3:.2f} ms to {(listing or 0) * 1e3:.2f} ms, {at})",
        ),
        _figure(
            "status: bytes read from files",
            "never every task (of 200 bytes)",
            _over(read, size),
            lambda each: each < 20,
            lambda each: f"{each:.3g} a task ({at})",
        ),
    ]


def _delete(summary: Summary) -> list[Figure]:
    size, theirs = _largest(summary, "delete"), _largest(summary, "delete", "task-queue")
    returned, reaped = (summary.value("fsqueue", "delete", size, key) for key in ("return_s", "seconds"))
    ratio = _over(summary.task_us("task-queue", "delete", theirs), summary.task_us("fsqueue", "delete", size))
    return [
        _figure(
            "delete: the call",
            "returns before the reaping ends",
            _over(returned, reaped),
            lambda share: share < 1,
            lambda share: f"after {(returned or 0) * 1e3:.1f} ms of {(reaped or 0) * 1e3:.1f} ms (at {size:,} tasks)",
        ),
        _figure(
            "reaping, a task, against task-queue's directory",
            "at least 50 times faster",
            ratio,
            lambda ratio: ratio >= 50,
            lambda ratio: f"{ratio:,.0f} times (of {size:,} tasks; task-queue of {theirs:,})",
        ),
    ]


def _evenly(summary: Summary, step: str, also: str) -> Figure:
    rounds = _rounds(summary, step)
    found = [row["fairness"] or float("inf") for row in rounds]
    middle = statistics.median(found) if found else None
    tasks = max((row["size"] for row in rounds), default=0)

    def words(ratio: float) -> str:
        said = "a worker got none" if ratio == float("inf") else f"{ratio:.2f} to 1"
        return f"{said} ({tasks:,} tasks; median of {len(rounds)} drains, worst {max(found):.2f})"

    what = f"8 processes drain a small queue {also}: fastest to slowest worker"
    return _figure(what, "at most 4 to 1", middle, lambda ratio: ratio <= 4, words)


def _drain(summary: Summary) -> list[Figure]:
    made = [
        _evenly(summary, "drain", "with nothing to do"),
        _evenly(summary, "drain_work", "with a little work for each"),
    ]
    rows = [row for step in ("drain", "drain_work", "drain_many") for row in _rounds(summary, step)]
    empties = sum(row["false_empties"] for row in rows) if rows else None
    wrong = sum(row["lost"] + row["twice"] for row in rows) if rows else None
    for what, value in (("false empty answers", empties), ("tasks lost or done twice", wrong)):
        made.append(
            _figure(
                f"8 processes drain: {what}",
                "none",
                value,
                lambda count: count == 0,
                lambda count: f"{count:.0f} (in {len(rows)} drains)",
            )
        )
    return made


def _rounds(summary: Summary, step: str) -> list[Row]:
    return [row for size in summary.sizes(step, "fsqueue") for row in summary.rounds("fsqueue", step, size)]
