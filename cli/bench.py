"""bench: what a queue does on the user's own mount."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

import fsqueue

from .common import example, json_option
from .options import DURATION
from .printing import print_json, say

PAYLOAD = {"input": "x" * 170}
"""About 200 bytes in a file."""

SINGLE_SHARE = 0.1
"""The part of the tasks that is used up singly, at most."""


class Laps:
    """The durations of many calls, until they are enough or the time is over."""

    def __init__(self, seconds: float, count: int) -> None:
        self.took_s: list[float] = []
        self.tasks = 0
        begin = time.monotonic()
        self._end, self._count = begin + seconds, count

    def run(self, call: Callable[[], int]) -> Laps:
        """Repeat `call`, which returns how many tasks it dealt with, until that is 0."""
        while len(self.took_s) < self._count and time.monotonic() < self._end:
            begin = time.perf_counter()
            tasks = call()
            if not tasks:
                break
            self.took_s.append(time.perf_counter() - begin)
            self.tasks += tasks
        return self

    def as_dict(self) -> dict[str, float]:
        """Return tasks a second, and the time of a call in milliseconds: median, 99th percentile, greatest."""
        took = sorted(self.took_s) or [float("nan")]
        at = {"median_ms": took[len(took) // 2], "p99_ms": took[int(len(took) * 0.99)], "max_ms": took[-1]}
        total_s = sum(self.took_s)
        return {
            "tasks": self.tasks,
            "tasks_per_s": self.tasks / total_s if total_s else 0.0,
            **{k: v * 1000 for k, v in at.items()},
        }


@click.command(epilog=example("fsqueue bench /scratch/me\nfsqueue bench /scratch/me --tasks 100000 --json"))
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--tasks", type=click.IntRange(min=1), default=10_000, help="Tasks to insert [10000].")
@click.option("--duration", "seconds", type=DURATION, default=3.0,
              help="How long each of the other measurements takes at most [3].")  # fmt: skip
@click.option("--allow-unsafe", is_flag=True, help="Also on a mount that can't keep the promises.")
@json_option
def bench(directory: Path, tasks: int, seconds: float, allow_unsafe: bool, as_json: bool) -> None:
    """Measure a temporary queue in DIR, with one process, and remove it.

    It measures what one process can do on this filesystem, not how many workers it can serve.
    """
    place = Path(tempfile.mkdtemp(prefix="fsqueue-bench-", dir=directory))
    try:
        figures = _measure(place / "queue", tasks, seconds, allow_unsafe)
    finally:
        with suppress(OSError):
            place.rmdir()  # it is empty, or another process has put something there
    if as_json:
        print_json(figures)
        return
    say(f"{'':<24}{'tasks/s':>12}{'median':>12}{'p99':>12}{'max':>12}")
    for name, row in figures.items():
        rate = f"{row['tasks_per_s']:,.0f}" if row["tasks_per_s"] else "-"
        times = "".join(f"{row[key]:>9,.2f} ms" for key in ("median_ms", "p99_ms", "max_ms"))
        say(f"{name.replace('_', ' '):<24}{rate:>12}{times}")


def _measure(path: Path, tasks: int, seconds: float, allow_unsafe: bool) -> dict[str, dict[str, Any]]:
    with fsqueue.Queue.create(path, allow_unsafe=allow_unsafe) as q:
        try:

            def insert_all() -> int:
                return q.insert_many(PAYLOAD for _ in range(tasks))

            def insert_one() -> int:
                q.insert(PAYLOAD)
                return 1

            def work(n: int) -> Callable[[], int]:
                def lease_and_complete() -> int:
                    leased = q.lease(n)
                    q.complete(leased)
                    return len(leased)

                return lease_and_complete

            def look(exact: bool) -> Callable[[], int]:
                return lambda: q.status(exact=exact).inserted

            singly = max(1, int(tasks * SINGLE_SHARE))
            figures = {
                "insert_many": Laps(float("inf"), 1).run(insert_all).as_dict(),
                "insert": Laps(seconds, singly).run(insert_one).as_dict(),
                "status": Laps(seconds, 20).run(look(exact=True)).as_dict(),
                "status_fast": Laps(seconds, 20).run(look(exact=False)).as_dict(),
                "lease_1_complete": Laps(seconds, singly).run(work(1)).as_dict(),
                "lease_100_complete": Laps(seconds, tasks).run(work(100)).as_dict(),
            }
        finally:
            with suppress(fsqueue.FsqueueError):
                q.delete(foreground=True)  # on proof that it is this queue, whatever has its name by then
    for name in ("status", "status_fast"):
        figures[name] |= {"tasks": 0, "tasks_per_s": 0.0}
    return figures
