"""Measure what keys cost beside the same inserts without keys, in whole runs, by turns in one process.

    scripts/bench-keys --dir /scratch/me        # all shapes, 1,000 tasks of 100 bytes, synced
    scripts/bench-keys --durability none --tasks 10000 --bytes 4096 --shapes many,new_by

Shapes: `single`, inserts in a loop; `many`, one `insert_many`; `new_by`, one `insert_many(new_by=…)`; `csv`, the
command `fsqueue insert --csv` with `--new-by` and without. Each is done with keys that are all new, all known, and half
known. A line has the time and the processor's time for a task, in microseconds and as a multiple of the same shape
without keys: medians of the rounds. `syncs` are calls of fsync(2) for a task, not counted in the command.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsqueue import Queue, Task

SHAPES = ("single", "many", "new_by", "csv")
KINDS = ("plain", "new", "known", "half")
Cost = tuple[float, float, float]
"""Seconds, seconds of the processor, and number of syncs."""


def payload(number: int, size: int) -> dict[str, Any]:
    """Return a payload of about `size` bytes of JSON."""
    return {"run": number, "pad": "x" * max(0, size - 25)}


class Syncs:
    """Count the calls of fsync(2) in this process."""

    def __init__(self) -> None:
        self.calls, self._real = 0, os.fsync
        os.fsync = self  # type: ignore[assignment]  # a queue takes it when it is opened

    def __call__(self, fd: int) -> None:
        self.calls += 1
        self._real(fd)


def cost(act: Callable[[], object], syncs: Syncs) -> Cost:
    """Return what a call costs, with the processes that it waits for."""
    calls, before, began = syncs.calls, used(), time.perf_counter()
    act()
    return time.perf_counter() - began, used() - before, syncs.calls - calls


def used() -> float:
    """Return the seconds of the processor that this process has used, with the processes that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def insert(shape: str, queue: Queue, rows: list[dict[str, Any]], keyed: bool, table: Path) -> None:
    """Insert rows in a shape, with keys or without."""
    if shape == "single":
        for row in rows:
            queue.insert(row, key=f"{row['run']}" if keyed else None)
    elif shape == "many":
        queue.insert_many([Task(row, key=f"{row['run']}") for row in rows] if keyed else rows)
    elif shape == "new_by":
        queue.insert_many(rows, new_by="run" if keyed else None)
    else:
        more = ["--new-by", "run"] if keyed else []
        command = [sys.executable, "-m", "fsqueue", "insert", str(queue.path), "--csv", str(table), *more]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def measure(shape: str, directory: str, given: argparse.Namespace, syncs: Syncs) -> dict[str, Cost]:
    """Return what each kind of keys costs in a shape, in a round of its own queues."""
    found: dict[str, Cost] = {}
    tasks: int = given.tasks
    settings = {"durability": given.durability, "keep_payloads": max(1024, 2 * given.bytes)}
    plain, keyed = (
        Queue.create(os.path.join(directory, name), allow_unsafe=True, **settings) for name in ("plain", "keyed")
    )
    for queue in (plain, keyed):
        queue.insert(payload(-1, given.bytes))
    keyed.insert(payload(-2, given.bytes), key="first")
    for kind in KINDS:
        first = tasks // 2 if kind == "half" else 0
        rows = [payload(number, given.bytes) for number in range(first, first + tasks)]
        table = Path(directory, "table.csv")
        with table.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        queue = plain if kind == "plain" else keyed
        found[kind] = cost(lambda: insert(shape, queue, rows, kind != "plain", table), syncs)  # noqa: B023
    plain.close()
    keyed.close()
    return found


def main() -> None:
    """Measure, and print a table."""
    made = argparse.ArgumentParser(
        prog="scripts/bench-keys", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--dir", metavar="DIR", help="measure below this directory (the system's temporary directory)")
    made.add_argument("--shapes", default=",".join(SHAPES), help="some of: %(default)s")
    made.add_argument("--tasks", type=int, default=1000, metavar="N", help="tasks of a run (%(default)s)")
    made.add_argument("--bytes", type=int, default=100, metavar="N", help="size of a payload (%(default)s)")
    made.add_argument("--durability", default="default", help="of the queues: none, default or strict (%(default)s)")
    made.add_argument("--rounds", type=int, default=3, metavar="K", help="rounds, of which medians are (%(default)s)")
    given = made.parse_args()
    shapes = given.shapes.split(",")
    syncs, rounds = Syncs(), dict[str, list[dict[str, Cost]]]()
    for _ in range(given.rounds):
        for shape in shapes:
            directory = tempfile.mkdtemp(prefix="fsqueue-keys-", dir=given.dir)
            try:
                rounds.setdefault(shape, []).append(measure(shape, directory, given, syncs))
            finally:
                shutil.rmtree(directory)
    print("| shape | keys | time: µs | times | processor: µs | times | syncs |\n|---|---|---:|---:|---:|---:|---:|")
    for shape, found in rounds.items():
        medians = {kind: [statistics.median(one[kind][at] for one in found) for at in range(3)] for kind in KINDS}
        for kind, (took, used, calls) in medians.items():
            us, times = 1e6 / given.tasks, medians["plain"]
            print(
                f"| {shape} | {kind} | {took * us:,.1f} | {took / times[0]:.1f} | {used * us:,.1f} "
                f"| {used / max(times[1], 1e-9):.1f} | {calls / given.tasks:.2f} |"
            )


if __name__ == "__main__":
    main()
