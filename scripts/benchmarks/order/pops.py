"""In which order tasks were popped, and how many more urgent ones each pop passed over: the PEI.

The PEI (popped element index) of a pop is the number of tasks that are more urgent than the one popped and were not
popped before it ("A Scalable Relaxed Distributed Priority Queue", section 4). A task is popped when its lease is
appended. The order comes from the logs: the `at` of the `lease` records. Records of one millisecond are ordered by the
moment at which the worker's write returned, under the log's lock, on CLOCK_MONOTONIC, which is one clock for all
processes of a machine. A worker reads `at` before it writes: where many workers wait for a core, records of different
logs may be written in another order. So the PEI in the order of the writes alone is computed beside it.
"""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fsqueue.simulation import Distribution, Ranks

Result = dict[str, Any]


class Pop(NamedTuple):
    """A task that a worker got: its id, its rank among all (0 is the most urgent), and moments (ns, monotonic)."""

    id: str
    rank: int
    leased: int
    completed: int


def lease_times(queue: str) -> dict[str, int]:
    """Return when each task was leased first, by id, as the logs tell and the history, where finished logs go."""
    found: dict[str, int] = {}
    for batch, record in _records(queue):
        if record.get("op") != "lease":
            continue
        for first, end in record["tasks"]:
            for index in range(first, end):
                key = f"{batch}.{index}"
                found[key] = min(record["at"], found.get(key, record["at"]))
    return found


def _records(queue: str) -> Iterator[tuple[str, Result]]:
    for log in Path(queue).glob("[0-9]*/movements/*/*.jsonl"):
        for record in _lines(log):
            yield log.stem, record
    for history in Path(queue).glob("[0-9]*/history/*/*.jsonl"):
        for line in _lines(history):
            for record in line.get("records", ()):
                yield str(line["batch"]), record


def _lines(path: Path) -> Iterator[Result]:
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            record: Any = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def in_order(pops: Iterable[Pop], at: dict[str, int]) -> list[Pop]:
    """Return the pops in the order of the logs; KeyError if no log tells of one."""
    return sorted(pops, key=lambda pop: (at[pop.id], pop.leased))


def indices(ranks: Sequence[int], tasks: int) -> list[int]:
    """Return the PEI of each pop, given the ranks of what was popped, in that order: of 0 to `tasks` - 1, each once."""
    waiting = Ranks(tasks)
    for rank in range(tasks):
        waiting.add(rank)
    return [waiting.remove(rank) for rank in ranks]


def held_at(pops: Sequence[Pop]) -> list[int]:
    """Return, for each pop, how many other tasks were leased and not completed at its moment."""
    completed: list[int] = []
    found = []
    for number, pop in enumerate(sorted(pops, key=lambda pop: pop.leased)):
        found.append(number - bisect_left(completed, pop.leased))
        insort(completed, pop.completed)
    return found


def nearest(ordered: Sequence[int], percent: int) -> int:
    """Return a percentile of sorted values: nearest rank."""
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]


def judge(pops: Sequence[Pop], at: dict[str, int], tasks: int, part: float = 1.0) -> Result:
    """Return what workers did that together popped all tasks of a queue, or a `part` of them."""
    ranks = {pop.rank for pop in pops}
    lost = max(0, int(tasks * part) - len(ranks))
    result: Result = {"tasks": len(pops), "lost": lost, "twice": len(pops) - len(ranks)}
    if result["lost"] or result["twice"]:
        return result  # the PEI of what is left has no meaning
    held = held_at(pops)

    def pei(ordered: Iterable[Pop]) -> Result:
        return Distribution.of(indices([pop.rank for pop in ordered], tasks)).as_dict()

    return {
        **result,
        "pei": pei(in_order(pops, at)),
        "pei_as_written": pei(sorted(pops, key=lambda pop: pop.leased)),
        "held": {"median": nearest(sorted(held), 50), "greatest": max(held)},
    }
