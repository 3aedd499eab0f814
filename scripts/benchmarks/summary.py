"""Medians of the rounds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]


class Summary:
    """The rows of a run, asked by system, step and size. Values are medians of the rounds; None: not measured."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self._measured: dict[tuple[str, str, int], list[Row]] = {}
        self._not_run: dict[tuple[str, str, int], str] = {}
        for row in rows:
            key = row["system"], row["step"], row["size"]
            if "not_run" in row:
                self._not_run[key] = row["not_run"]
            else:
                self._measured.setdefault(key, []).append(row)

    def rounds(self, system: str, step: str, size: int) -> list[Row]:
        """The rows themselves."""
        return self._measured.get((system, step, size), [])

    def not_run(self, system: str, step: str, size: int) -> str | None:
        """Why nothing was measured, if it was tried."""
        return None if self.rounds(system, step, size) else self._not_run.get((system, step, size))

    def sizes(self, step: str, system: str | None = None) -> list[int]:
        """The sizes at which a step was tried (of that system: was measured)."""
        if system is None:
            found: Iterable[tuple[str, str, int]] = [*self._measured, *self._not_run]
        else:
            found = [key for key in self._measured if key[0] == system]
        return sorted({size for _, name, size in found if name == step})

    def value(self, system: str, step: str, size: int, key: str) -> float | None:
        """The median of a number in the rows."""
        found = [row[key] for row in self.rounds(system, step, size) if row.get(key) is not None]
        return statistics.median(found) if found else None

    def task_us(self, system: str, step: str, size: int) -> float | None:
        """Microseconds a task."""
        found = [row["seconds"] / row["tasks"] * 1e6 for row in self.rounds(system, step, size) if row["tasks"]]
        return statistics.median(found) if found else None

    def cpu_us(self, system: str, step: str, size: int) -> float | None:
        """Microseconds of processor time a task, of the process that does the step. A server's are not in it."""
        rounds = [row for row in self.rounds(system, step, size) if row["tasks"] and row.get("cpu_s") is not None]
        return statistics.median(row["cpu_s"] / row["tasks"] * 1e6 for row in rounds) if rounds else None

    def rate(self, system: str, step: str, size: int) -> float | None:
        """Tasks a second."""
        cost = self.task_us(system, step, size)
        return 1e6 / cost if cost else None

    def times(self, system: str, step: str, size: int) -> float | None:
        """How many times as long as fsqueue's a system's step takes at this size."""
        mine, other = self.task_us("fsqueue", step, size), self.task_us(system, step, size)
        return other / mine if mine and other else None

    def latency(self, system: str, step: str, size: int, verb: str) -> dict[str, float] | None:
        """Percentiles in microseconds: of each the median of the rounds."""
        found = [
            row["latency_us"][verb]
            for row in self.rounds(system, step, size)
            if (row.get("latency_us") or {}).get(verb)
        ]
        return {key: statistics.median(each[key] for each in found) for key in found[0]} if found else None
