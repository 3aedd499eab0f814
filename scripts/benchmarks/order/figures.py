"""The figures to reach, each with what this run measured. Nothing here is a result: all is computed from the rows."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.figures import Figure, measured_figure
from benchmarks.order import papers
from benchmarks.order.campaign import PAYLOAD_BYTES, WAYS

Row = dict[str, Any]

INSERTED = {"bulk": "inserted in bulk", "single": "singly inserted with random priorities"}
LEAST = {"bulk": 0.7, "single": 0.3}
SHARDS, WORKERS = 64, 8
"""Where the PEI is judged."""
KEYED_TIMES, KEYED_SYNCS = 6, 4


class Rows:
    """The rows of a run, asked by what they say of themselves. Values are medians of the rounds; None: not measured."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def found(self, step: str, **wanted: Any) -> list[Row]:
        """Return the rows of a step that say all this."""
        return [
            row
            for row in self.rows
            if row["step"] == step
            and "not_run" not in row
            and all(key in row and row[key] == value for key, value in wanted.items())
        ]

    def value(self, step: str, get: Callable[[Row], float | None], **wanted: Any) -> float | None:
        """Return the median of what `get` takes from the rows."""
        values = [value for row in self.found(step, **wanted) if (value := get(row)) is not None]
        return statistics.median(values) if values else None

    def rate(self, step: str, **wanted: Any) -> float | None:
        """Return tasks a second."""
        return self.value(step, lambda row: row["tasks"] / row["seconds"] if row["seconds"] else None, **wanted)

    def latency(self, step: str, verb: str, percentile: str, **wanted: Any) -> float | None:
        """Return a latency in microseconds."""
        return self.value(step, lambda row: (row["latency_us"].get(verb) or {}).get(percentile), **wanted)

    def kinds(self, step: str, key: str) -> list[Any]:
        """Return the values that a key has in the rows of a step, in the order of the run."""
        return list(dict.fromkeys(row[key] for row in self.found(step) if key in row))


def figures(rows: Rows) -> list[Figure]:
    """Return all of them, in order."""
    return [*_throughput(rows), *_strict(rows), *_pei(rows), _nothing_lost(rows), _isolation(rows), *_keys(rows)]


def _throughput(rows: Rows) -> list[Figure]:
    found = []
    for way in WAYS:
        for workers in rows.kinds("work", "workers") or [1]:
            ordered, plain = (
                rows.rate("work", way=way, priorities=priorities, workers=workers) for priorities in (True, False)
            )
            least = LEAST[way]
            found.append(
                measured_figure(
                    f"lease 1 + complete with priorities, {INSERTED[way]}, {_workers(workers)}",
                    f"at least {least} of the unordered queue's rate",
                    ordered / plain if ordered and plain else None,
                    lambda ratio, least=least: ratio >= least,  # type: ignore[misc]
                    lambda ratio, ordered=ordered, plain=plain: f"{ratio:.2f} ({ordered:,.0f}/s to {plain:,.0f}/s)",  # type: ignore[misc]
                )
            )
    return found


def _workers(count: int) -> str:
    return "one worker" if count == 1 else f"{count} workers"


def _strict(rows: Rows) -> list[Figure]:
    return [
        measured_figure(
            f"strict order, one worker, one shard, {INSERTED[way]}",
            "exact",
            rows.value("strict", lambda row: (row.get("pei") or {}).get("greatest"), way=way),
            lambda worst: worst == 0,
            lambda worst: "each pop the most urgent task" if worst == 0 else f"passed over up to {worst:,.0f}",
        )
        for way in WAYS
    ]


def _pei(rows: Rows) -> list[Figure]:
    at = {"shards": SHARDS, "workers": WORKERS}
    predicted = rows.value("simulated", lambda row: row["better"]["median"], **at)
    found = []
    for way in WAYS:
        held = rows.value("pei", lambda row: (row.get("held") or {}).get("median"), **at, way=way)
        median = rows.value("pei", lambda row: (row.get("pei") or {}).get("median"), **at, way=way)
        limit = None if predicted is None or held is None else predicted + held
        found.append(
            measured_figure(
                f"median PEI, {SHARDS} shards, {WORKERS} workers, {INSERTED[way]}",
                f"at most the simulation's, {papers.POP_PEEKS} peeks, and what workers hold",
                median if limit is not None else None,
                lambda value, limit=limit: value <= limit,  # type: ignore[misc]
                lambda value, held=held: f"{value:,.0f} (simulation {predicted:,.0f}, held {held:,.0f})",  # type: ignore[misc]
            )
        )
    return found


def _nothing_lost(rows: Rows) -> Figure:
    drained = [row for step in ("pei", "figure 8", "strict") for row in rows.found(step)]
    wrong = sum(row["lost"] + row["twice"] for row in drained)
    return measured_figure(
        "tasks lost or popped twice, in all queues whose PEI was measured",
        "none",
        wrong if drained else None,
        lambda count: count == 0,
        lambda count: f"{count:,.0f} (in {len(drained):,} queues, {sum(row['tasks'] for row in drained):,} tasks)",
    )


def share(loaders: int, cores: int) -> float:
    """Return which part of its rate alone a lone worker's share is: the cores over the processes that are at work."""
    return min(1.0, cores / (loaders + 1))


def _isolation(rows: Rows) -> Figure:
    most = max(rows.kinds("isolation", "loaders"), default=0)
    alone, loaded = rows.rate("isolation", loaders=0), rows.rate("isolation", loaders=most)
    cores = rows.value("cores", lambda row: row["cores"]) or 1
    mine = share(most, int(cores))
    return measured_figure(
        f"a lone worker beside {papers.LOADERS} loaders of other queues",
        "at least half its share of the machine",
        loaded / alone / mine if most == papers.LOADERS and alone and loaded else None,
        lambda ratio: ratio >= 0.5,
        lambda ratio: (
            f"{ratio:.2f} of it ({loaded or 0:,.0f}/s, alone {alone or 0:,.0f}/s; its share is {mine:.2f} of that: "
            f"{most + 1} processes, {cores:.0f} cores)"
        ),
    )


def _keys(rows: Rows) -> list[Figure]:
    plain, keyed = (
        rows.value("keys", lambda row, kind=kind: row[kind], bytes=PAYLOAD_BYTES)  # type: ignore[misc]
        for kind in ("plain", "keyed")
    )
    return [
        measured_figure(
            "a keyed insert, not synced, against a plain single insert",
            f"at most {KEYED_TIMES} times its time",
            keyed / plain if keyed and plain else None,
            lambda ratio: ratio <= KEYED_TIMES,
            lambda ratio: f"{ratio:.1f} times ({keyed:,.0f} µs to {plain:,.0f} µs)",
        ),
        measured_figure(
            "a keyed insert: syncs",
            f"at most {KEYED_SYNCS}",
            rows.value("syncs", lambda row: row["keyed"]["greatest"]),
            lambda most: most <= KEYED_SYNCS,
            lambda most: (
                f"{most:.0f} at most, {rows.value('syncs', lambda row: row['keyed']['median']):.0f} in the median; "
                f"{rows.value('syncs', lambda row: row['first']['greatest']):.0f} where it makes a directory"
            ),
        ),
    ]
