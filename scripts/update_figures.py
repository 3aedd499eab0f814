"""Measure updates over several queues against lease + complete, in the same run: see scripts/bench-updates."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from fsqueue import Group, LeasedTask, Queue
from fsqueue.clock import Clock
from fsqueue.filesystem import Filesystem
from fsqueue.format.layout import Durability
from fsqueue.protocol import updates

ROUNDS = 5
"""Each figure is the median of so many rounds, in which what is compared takes turns."""


def arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench-updates",
        description="Measure updates (complete one task, insert one into the next queue) against lease + complete; an "
        "update of one log; updates of many operations and queues; and recovery after a crash.",
        epilog="example: scripts/bench-updates --dir /scratch/me --tasks 200",
    )
    parser.add_argument("--dir", default=None, help="where to make the group (default: a temporary directory)")
    parser.add_argument("--tasks", type=int, default=200, help="tasks in each round (default: 200)")
    parser.add_argument("--open", type=int, default=500, help="updates that a crash left open (default: 500)")
    return parser.parse_args()


def measured(act: Callable[[LeasedTask], object], queue: Queue, tasks: int) -> tuple[float, float]:
    """Return the time of a lease and `act`, in microseconds a task: passed, and used by this process."""
    queue.insert_many(range(tasks))
    began, used = time.monotonic(), time.process_time()
    for _ in range(tasks):
        [task] = queue.lease()
        act(task)
    return (time.monotonic() - began) / tasks * 1e6, (time.process_time() - used) / tasks * 1e6


def compared(where: Path, durability: Durability, tasks: int) -> None:
    """Print what a task costs: completed, completed with an insert elsewhere, and with one in its own batch."""
    group = Group.create(where / durability, durability=durability)
    alone, across, own = group["alone"], group["across"], group["own"]

    def over_two(task: LeasedTask) -> None:
        with group.update() as update:
            update.complete(task)
            update.insert("next", task.payload)

    def in_one(task: LeasedTask) -> None:
        with group.update() as update:
            update.complete(task)
            update.insert("own", task.payload)

    own.insert(0)  # its batch takes the inserts of its tasks
    found: dict[str, list[tuple[float, float]]] = {"lease + complete": [], "update": [], "update of one log": []}
    for _ in range(ROUNDS):
        found["lease + complete"].append(measured(LeasedTask.complete, alone, tasks))
        found["update"].append(measured(over_two, across, tasks))
        began, used = time.monotonic(), time.process_time()
        for _ in range(tasks):
            [task] = own.lease()
            in_one(task)
        passed = (time.monotonic() - began) / tasks * 1e6, (time.process_time() - used) / tasks * 1e6
        found["update of one log"].append(passed)
    base = [statistics.median(column) for column in zip(*found["lease + complete"], strict=True)]
    for what, rounds in found.items():
        passed, used = (statistics.median(column) for column in zip(*rounds, strict=True))
        rates = f"rate against lease + complete: {base[0] / passed:.2f} (by processor time {base[1] / used:.2f})"
        print(f"{durability:8} {what:20} {passed:9.0f} us, {used:7.0f} us of processor time; {rates}")


def syncs(where: Path) -> None:
    """Print how many syncs an update over two queues waits for, one after the other."""
    group, counted = Group.create(where / "syncs"), [0]
    original = Filesystem.__init__

    def counting(self: Filesystem, *args: object, **named: object) -> None:
        original(self, *args, **named)  # type: ignore[arg-type]
        real = self.fsync

        def fsync(fd: int) -> None:
            counted[0] += 1
            real(fd)

        self.fsync = fsync

    with mock.patch.object(Filesystem, "__init__", counting):
        group = Group(group.path)
        group["a"].insert_many(range(10))
        for number in range(10):
            [task] = group["a"].lease()
            before = counted[0]
            with group.update() as update:
                update.complete(task)
                update.insert("b", number)
            latest = counted[0] - before
    print(f"default  syncs in a row of an update over two queues: {latest}")


def grown(where: Path) -> None:
    """Print what updates of many operations and queues cost."""
    group = Group.create(where / "grown", durability="none")
    for queues in (1, 2, 5, 10):
        for operations in (1, 10, 100, 1000):
            times = []
            for _ in range(ROUNDS):
                with group.update() as update:
                    for number in range(max(operations, queues)):
                        update.insert(f"q{number % queues}", number)
                    began = time.monotonic()
                times.append((time.monotonic() - began) * 1e3)
            print(
                f"none     {queues:3} queues, {max(operations, queues):5} inserts: {statistics.median(times):8.2f} ms"
            )


def recovered(where: Path, count: int) -> None:
    """Print how long others take to bring updates to an end that a crash left open."""
    group = Group.create(where / "crash", durability="none")
    group["a"].insert_many(range(count))
    tasks = group["a"].lease(count, lease_s=60)
    with mock.patch.object(updates._Try, "_give", return_value=None):
        for task in tasks:
            with group.update() as update:
                update.complete(task)
                update.insert("b", 1)
    clock = Clock()
    clock.offset_ms = 3_600_000
    began = time.monotonic()
    later = Queue(group.path / "b", clock=clock)
    found = 0
    while got := later.lease(100):
        later.complete(got)
        found += len(got)
    print(f"none     {found} updates left open: all done by others after {time.monotonic() - began:.2f} s")


def main() -> None:
    """Measure, and print."""
    given = arguments()
    with tempfile.TemporaryDirectory(dir=given.dir) as made:
        where = Path(made)
        for durability in ("none", "default"):
            compared(where, durability, given.tasks)
        syncs(where)
        grown(where)
        recovered(where, given.open)


if __name__ == "__main__":
    main()
