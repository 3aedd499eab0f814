"""The figures to reach, each with what this run measured. Nothing here is a result: all is computed from the rows."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.alive import LETTER_EACH, START
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
        *_one_at_a_time(summary),
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
        *_alive(summary),
        *idle_workers(summary),
    ]


def measured_figure(
    what: str, wanted: str, value: float | None, passes: Callable[[float], bool], words: Callable[[float], str]
) -> Figure:
    """Return a figure with the value that was measured, in words, and whether it passes; None: not measured."""
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
        measured_figure(
            "insert_many, synced, against task-queue, not synced",
            "at least 100 times its rate",
            _over(mine, theirs),
            lambda ratio: ratio >= 100,
            lambda ratio: f"{ratio:,.0f} times ({mine:,.0f}/s to {theirs:,.0f}/s, {at}{of})",
        ),
        measured_figure(
            "insert_many: inodes",
            "at most 1 for 500 tasks",
            _over(tasks, inodes),
            lambda each: each >= 500,
            lambda each: f"1 for {each:,.0f} ({at})",
        ),
        measured_figure(
            "insert_many: peak memory", "under 100 MB", memory, lambda mb: mb < 100, lambda mb: f"{mb:,.0f} MB ({at})"
        ),
    ]


def _one_at_a_time(summary: Summary) -> list[Figure]:
    """What single inserts cost, alone, and beside workers. Batches of one are how each was stored before."""
    synced = summary.rate("fsqueue", "insert_one", 0)
    mixed = _largest(summary, "mixed")

    def against(what: str, rate: float | None, other: float | None, least: float) -> Figure:
        return measured_figure(
            what,
            f"at least {least:g} times the rate",
            _over(rate, other),
            lambda ratio: ratio >= least,
            lambda ratio: f"{ratio:,.2f} times ({rate or 0:,.0f}/s to {other or 0:,.0f}/s)",
        )

    return [
        against(
            "insert one, synced, against a file for each", synced, summary.rate("fsqueue-single", "insert_one", 0), 2.5
        ),
        against("insert one, synced, against huey, synced", synced, summary.rate("huey", "insert_one", 0), 1),
        measured_figure(
            "insert one, not synced",
            "at least 30,000/s",
            summary.rate("fsqueue-nosync", "insert_one", 0),
            lambda rate: rate >= 30_000,
            lambda rate: f"{rate:,.0f}/s",
        ),
        against(
            "8 processes, half insert and half work, synced, against huey, synced",
            summary.rate("fsqueue", "mixed", mixed),
            summary.rate("huey", "mixed", mixed),
            1,
        ),
    ]


def _against(summary: Summary, step: str, peer: str, least: int) -> Figure:
    found = [(ratio, size) for size in summary.sizes(step, peer) if (ratio := summary.times(peer, step, size))]
    worst, size = min(found, default=(None, 0))
    return measured_figure(
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
        measured_figure(
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
    return measured_figure(
        "lease 1 + complete, against the bare system calls",
        "at most 3 times their time",
        worst,
        lambda ratio: ratio <= 3,
        lambda ratio: f"{ratio:.2f} times (worst size: {size:,} tasks)",
    )


def _at_scale(summary: Summary, step: str, also: str) -> Figure:
    base, size = min(summary.sizes("lease_one", "fsqueue"), default=0), _largest(summary, step)
    cost, base_cost = summary.task_us("fsqueue", step, size), summary.task_us("fsqueue", "lease_one", base)
    return measured_figure(
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
    return measured_figure(
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
        measured_figure(
            "status, against listing 64 empty directories",
            "under 50 times its time",
            _over(mine, listing),
            lambda ratio: ratio < 50,
            lambda ratio: f"{ratio:.1f} times ({(mine or 0) * 1e3:.2f} ms to {(listing or 0) * 1e3:.2f} ms, {at})",
        ),
        measured_figure(
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
        measured_figure(
            "delete: the call",
            "returns before the reaping ends",
            _over(returned, reaped),
            lambda share: share < 1,
            lambda share: f"after {(returned or 0) * 1e3:.1f} ms of {(reaped or 0) * 1e3:.1f} ms (at {size:,} tasks)",
        ),
        measured_figure(
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
    return measured_figure(what, "at most 4 to 1", middle, lambda ratio: ratio <= 4, words)


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
            measured_figure(
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


WAKE_MS = {50: 20, 99: 100}
"""Within how many milliseconds a worker that idles starts a task of its host, by percentile."""


def idle_workers(summary: Summary) -> list[Figure]:
    """An idle worker starts a task of its own host at once, however long it has idled."""
    rows = [row for size in summary.sizes("wake", "fsqueue") for row in summary.rounds("fsqueue", "wake", size)]
    peers = [row for size in summary.sizes("wake", "huey") for row in summary.rounds("huey", "wake", size)]
    made = []
    for row in rows or [{"case": "poll", "idle_s": 2, "samples_us": []}]:
        beside = next((one for one in peers if one["idle_s"] == row["idle_s"]), {"samples_us": []})
        for percent, most_ms in WAKE_MS.items():
            other, count = rank_ms(beside["samples_us"], percent), len(row["samples_us"])
            named = "median" if percent == 50 else f"{percent}th percentile"
            made.append(
                measured_figure(
                    f"insert to start on one host, {row['case']}, idle for {row['idle_s']:g} s: {named}",
                    f"under {most_ms} ms",
                    rank_ms(row["samples_us"], percent),
                    lambda ms, most_ms=most_ms: ms < most_ms,  # type: ignore[misc]
                    lambda ms, count=count, other=other: (  # type: ignore[misc]
                        f"{ms:.1f} ms (of {count}" + (f"; huey: {other:,.0f} ms)" if other is not None else ")")
                    ),
                )
            )
    return made


def rank_ms(samples_us: list[int], percent: int) -> float | None:
    """Return a percentile of microseconds, in milliseconds; None without samples. Nearest rank."""
    ordered = sorted(samples_us)
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)] / 1000 if ordered else None


MIB = 1.048576
"""MB in a MiB."""


def _alive(summary: Summary) -> list[Figure]:
    """What is not alive costs nothing. Commands are processes of their own: their start counts."""
    size = _largest(summary, "alive")
    found: dict[str, list[Row]] = {}
    for row in summary.rounds("fsqueue", "alive", size):
        found.setdefault(row["case"], []).append(row)
    return [
        _bounded(found, "activity", "status --window", f"status, {size:,} tasks done in bulk in the window", 0.6, 60),
        *_stragglers(found),
        *_renewed(found),
        _restated(found),
        _purged(found),
        *_long(found),
    ]


def _bounded(found: dict[str, list[Row]], case: str, command: str, what: str, cpu_s: float, mib: int) -> Figure:
    rows = [row for row in found.get(case, ()) if row["command"].startswith(command)]
    spent, memory = (statistics.median(row[key] for row in rows) if rows else None for key in ("cpu_s", "memory_mb"))
    starts = [row["cpu_s"] for row in found.get(case, ()) if row["command"] == START]
    start = f" ({statistics.median(starts):.2f} s to start)" if starts else ""
    return measured_figure(
        what,
        f"under {cpu_s:g} s of CPU and {mib} MiB",
        spent,
        lambda spent: spent < cpu_s and (memory or 0) / MIB < mib,
        lambda spent: f"{spent:.2f} s{start}, {(memory or 0) / MIB:.0f} MiB",
    )


def _stragglers(found: dict[str, list[Row]]) -> list[Figure]:
    shapes = [case for case in found if case.startswith("stragglers")] or ["stragglers"]
    return [
        _bounded(found, case, command, f"{case}, 1 in 1,024: {command}", 0.3, 40)
        for case in shapes
        for command in ("status", "gc", "workers", "peek", "ls", "dead list")
    ]


def _renewed(found: dict[str, list[Row]]) -> list[Figure]:
    """How much more each command takes after a day of renewals; fsck replays whole logs, and is left out."""
    figures = []
    for case in [case for case in found if case.startswith("renewed")] or ["renewed"]:
        spent: dict[str, dict[bool, list[float]]] = {}
        for row in found.get(case, ()):
            spent.setdefault(row["command"], {}).setdefault("fresh" in row, []).append(row["cpu_s"])
        more = {
            command: (statistics.median(each[False]) - statistics.median(each[True])) * 1e3
            for command, each in spent.items()
            if command not in ("fsck", START)
        }
        worst, command = max(((ms, command) for command, ms in more.items()), default=(None, ""))
        figures.append(
            measured_figure(
                f"a batch {case}, for a day: each command, against a fresh queue",
                "at most 50 ms of CPU more",
                worst,
                lambda ms: ms <= 50,
                lambda ms, command=command: f"{ms:+.0f} ms (worst command: {command})",  # type: ignore[misc]
            )
        )
    return figures


def _restated(found: dict[str, list[Row]]) -> Figure:
    """How much longer checkpoints make a log, in the worst of the cases."""
    ratios = [
        (row["log_bytes"] / (row["log_bytes"] - row["restated_bytes"]), case)
        for case, rows in found.items()
        for row in rows
        if row.get("log_bytes")
    ]
    worst, case = max(ratios, default=(None, ""))
    return measured_figure(
        "logs with checkpoints, against the same without",
        "at most 1.25 times as long",
        worst,
        lambda ratio: ratio <= 1.25,
        lambda ratio: f"{ratio:.2f} times (worst: {case})",
    )


def _purged(found: dict[str, list[Row]]) -> Figure:
    rows = [row for row in found.get("letters", ()) if "empty_cpu_s" in row]
    more = statistics.median((row["cpu_s"] - row["empty_cpu_s"]) * 1e3 for row in rows) if rows else None
    letters = rows[0]["tasks"] // LETTER_EACH if rows else 0
    return measured_figure(
        "status with all dead letters purged, against an empty queue",
        "within 5 ms of CPU",
        more,
        lambda ms: ms <= 5,
        lambda ms: f"{ms:+.1f} ms ({letters:,} letters)",
    )


def _long(found: dict[str, list[Row]]) -> list[Figure]:
    rows: dict[str, list[Row]] = {"Queue.status": [], "Queue.dead": []}
    for row in found.get("long letters", ()):
        if row["command"] in rows:
            rows[row["command"]].append(row)
    return [
        measured_figure(
            f"long dead letters: {verb}, against reading their lines",
            "at most 2 times the CPU time",
            statistics.median(row["cpu_s"] / row["plain_cpu_s"] for row in each) if each else None,
            lambda ratio: ratio <= 2,
            lambda ratio: f"{ratio:.2f} times",
        )
        for verb, each in rows.items()
    ]
