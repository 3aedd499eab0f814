"""Measure how long many workers take to drain one small stream, with one tree of fsqueue or with several by turns.

The workers of a small stream share the locks of few batches (docs/decisions/0045-small-streams.md). On a network mount
an append keeps such a lock for a few requests, so it is measured there. The workers take turns in the directories,
which are mounts of the same export. In the lab:

    ROUND_TRIP_MS=30 scripts/lab/nfs "$(mktemp -d)" \\
        .venv/bin/python scripts/drain_figures.py --tree OLD --tree . --task-s 3 /c1 /c2

`--round-trip-ms` needs no such mount: calls of the filesystem layer then sleep as long as their requests would take.

Look at how busy the processors were. If they were so all the time, as they are in the lab without that delay, the
figure is the time of the processors, and says nothing of what workers wait for. On a slow or busy machine choose longer
round trips and, by the same factor, longer tasks.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fsqueue import Queue
from fsqueue.filesystem import Filesystem

PATIENCE_S = 900.0
"""Seconds after which a round has failed."""
CLIENT_CALLS = ("lab-nfs", "calls")
"""The lab's command that counts a client's calls to the server; elsewhere there is none."""
REQUESTS = {
    "look": 2, "create": 2, "make_directory": 1, "names": 1, "rename": 1, "link": 1, "unlink": 1, "write": 1,
    "pread": 1, "try_lock": 1, "unlock": 1, "stat": 1, "exists": 1,
}  # fmt: skip
"""About how many requests an NFS client waits for in each call of the filesystem layer."""


class Moment(NamedTuple):
    """A time of this machine's, and what its processors have done until then."""

    at_s: float
    """On the monotonic clock."""
    idle: int
    """Ticks in which processors of the machine, or the guest, had nothing to do."""
    ticks: int
    """All of their ticks."""


def now() -> Moment:
    """Return this moment."""
    ticks = [int(text) for text in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    return Moment(time.monotonic(), ticks[3] + ticks[4], sum(ticks))


class Distant(Filesystem):
    """A local directory that takes as long to answer as a network mount, and counts as one."""

    def __init__(self, root: str, round_trip_s: float) -> None:
        super().__init__(root, shared=True)
        self.requests = 0
        for name, requests in REQUESTS.items():
            setattr(self, name, self._slow(getattr(self, name), requests, round_trip_s))

    def _slow(self, call: Callable[..., Any], requests: int, round_trip_s: float) -> Callable[..., Any]:
        def slow(*given: Any) -> Any:
            self.requests += requests
            time.sleep(requests * round_trip_s)
            return call(*given)

        return slow


def arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(
        description="Insert tasks by one insert_many, let workers drain them, and print the time from when all workers "
        "have opened the queue to the last completion.",
        epilog="example: scripts/drain_figures.py --workers 8 --tasks 64 /scratch/me",
    )
    parser.add_argument("directories", nargs="+", type=Path, help="mounts of one directory; workers take turns in them")
    parser.add_argument("--tree", action="append", type=Path, help="a clone of fsqueue, by turns (default: this one)")
    parser.add_argument("--tasks", type=int, default=256)
    parser.add_argument("--workers", type=int, default=32)
    parser.add_argument("--task-s", type=float, default=0.1, help="seconds that each task takes (default: 0.1)")
    parser.add_argument("--round-trip-ms", type=float, help="pretend that the directories are mounts this far away")
    parser.add_argument("--batch-tasks", type=int, help="tasks in each batch (default: as insert_many chooses)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--once", metavar="NAME", help="one round with the fsqueue of this process, printed in JSON")
    return parser.parse_args()


def opened(path: Path, round_trip_ms: float | None) -> tuple[Queue, Distant | None]:
    """Open a queue. Return the filesystem that pretends to be far away, too."""
    if round_trip_ms is None:
        return Queue(path), None
    fs = Distant(str(path), round_trip_ms / 1000)
    return Queue(path, filesystem=fs), fs


def work(path: Path, task_s: float, round_trip_ms: float | None, start: Any, told: Any) -> None:
    """Work on the queue. Tell how many tasks this worker had, when it began to look for them, had the first and
    completed the last one, and how many requests it has pretended to make.
    """
    (queue, fs), leased = opened(path, round_trip_ms), 0
    start.wait(PATIENCE_S)
    before = fs.requests if fs is not None else 0
    began = last = now()
    first_s = math.inf
    for task in queue.poll():
        first_s = min(first_s, time.monotonic())
        time.sleep(task_s)
        task.complete()
        last = now()
        leased += 1
    told.put((leased, began, first_s, last, fs.requests - before if fs is not None else 0))


def calls() -> int:
    """Return how many calls the lab's clients have made to the server so far; 0 outside the lab."""
    made = 0
    for client in (1, 2):
        try:
            told = subprocess.run([*CLIENT_CALLS, str(client)], capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return 0
        made += sum(int(line.split()[1]) for line in told.splitlines())
    return made


def drained(name: str, given: argparse.Namespace) -> dict[str, float]:
    """Return the figures of one round, in a queue of this name: seconds, calls to the server, tasks of a worker."""
    began = time.monotonic()
    Queue.create(given.directories[0] / name)
    queue, _ = opened(given.directories[0] / name, given.round_trip_ms)
    payloads = ({"n": number} for number in range(given.tasks))
    queue.insert_many(payloads, batch_tasks=given.batch_tasks)
    insert_s = time.monotonic() - began
    forked = multiprocessing.get_context("fork")
    start, told = forked.Barrier(given.workers + 1), forked.SimpleQueue()
    paths = [given.directories[number % len(given.directories)] / name for number in range(given.workers)]
    rest = given.task_s, given.round_trip_ms, start, told
    crew = [forked.Process(target=work, args=(path, *rest), daemon=True) for path in paths]
    for worker in crew:
        worker.start()
    before = calls()
    start.wait(PATIENCE_S)
    for worker in crew:
        worker.join(PATIENCE_S)
        if worker.exitcode != 0:
            raise SystemExit(f"A worker ended with {worker.exitcode}.")
    found = [told.get() for _ in crew]
    had = [leased for leased, _, _, _, _ in found]
    if sum(had) != given.tasks:
        raise SystemExit(f"{sum(had)} tasks were completed, of {given.tasks}.")
    begin, end = min(began for _, began, _, _, _ in found), max(last for _, _, _, last, _ in found)
    return {
        "insert_s": insert_s,
        "first_s": min(first_s for _, _, first_s, _, _ in found) - begin.at_s,
        "drain_s": end.at_s - begin.at_s,
        "busy": 1 - (end.idle - begin.idle) / max(1, end.ticks - begin.ticks),
        "calls": (calls() - before + sum(requests for _, _, _, _, requests in found)) / given.tasks,
        "least": min(had),
        "most": max(had),
    }


def main() -> None:
    """Measure, and print."""
    given = arguments()
    if given.once:
        print(json.dumps(drained(given.once, given)))
        return
    trees = [tree.resolve() for tree in given.tree or [Path(__file__).parents[1]]]
    found: dict[Path, list[dict[str, float]]] = {tree: [] for tree in trees}
    for number in range(given.rounds):
        for place, tree in enumerate(trees):
            command = [sys.executable, __file__, "--once", f"drain-{os.getpid()}-{number}-{place}"]
            command += ["--tasks", str(given.tasks), "--workers", str(given.workers), "--task-s", str(given.task_s)]
            command += [] if given.batch_tasks is None else ["--batch-tasks", str(given.batch_tasks)]
            command += [] if given.round_trip_ms is None else ["--round-trip-ms", str(given.round_trip_ms)]
            command += list(map(str, given.directories))
            said = subprocess.run(
                command, env=os.environ | {"PYTHONPATH": str(tree)}, stdout=subprocess.PIPE, text=True, check=True
            ).stdout
            found[tree].append(json.loads(said))
            print(f"{tree}: {said.strip()}", flush=True)
    for tree, rounds in found.items():
        middle = {what: statistics.median(one[what] for one in rounds) for what in rounds[0]}
        ideal_s = given.tasks * given.task_s / given.workers
        print(
            f"{tree}: drained in {middle['drain_s']:.2f} s (ideal: {ideal_s:.2f} s), the first task leased after "
            f"{middle['first_s']:.2f} s, processors {middle['busy']:.0%} busy; {middle['calls']:.1f} calls to the "
            f"server a task, {middle['least']:.0f} to {middle['most']:.0f} tasks a worker; inserted in "
            f"{middle['insert_s']:.2f} s"
        )


if __name__ == "__main__":
    main()
