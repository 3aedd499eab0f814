"""Measure updates over several queues against lease + complete, in the same run: see scripts/bench-updates."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import machine

from fsqueue import Group, LeasedTask, Queue
from fsqueue.clock import Clock
from fsqueue.filesystem import Filesystem
from fsqueue.format.layout import Durability
from fsqueue.protocol import updates

PIECES, PIECE = 40, 25
"""Number of pieces, and of tasks in each. What is compared takes turns by pieces. A figure is the least time of its
pieces: what else the machine has to do only adds to a time."""
REPEATS = 5
"""Number of times that an update of many operations is measured; the least time counts."""
QUEUES, OPERATIONS = (1, 2, 5, 10), (1, 10, 100, 1000)
TEXT = "x" * 1000
PAYLOADS: dict[str, Any] = {
    "numbers": 7,
    "texts of 1 kB": TEXT,
    "nested": {"page": {"links": [{"to": number, "tags": ["a", "b"]} for number in range(8)]}, "depth": [[[1]]]},
}
BEGIN = "<!-- updates: scripts/bench-updates --docs docs writes what follows -->"
END = "<!-- end of the updates -->"
NEAREST = (
    "TaskMaster's paper has no row for an update. The nearest of its table 1 "
    "([benchmarks-order.md](benchmarks-order.md), where it is cited): 1,630 enqueues, 1,485 pairs of lease and dequeue "
    "a second, by 50 workers with 10 threads each, against a server and 20 servers of its data store. One process here "
    "applies, on one machine, "
)


def arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench-updates",
        description="Measure updates (complete one task, insert one into the next queue) against lease + complete; an "
        "update of one log; updates of many operations and queues; and recovery after a crash. It prints tables in "
        "Markdown, in less than a minute.",
        epilog="example: scripts/bench-updates --dir /scratch/me --docs docs",
    )
    parser.add_argument("--dir", default=None, help="where to make the groups (default: a temporary directory)")
    parser.add_argument("--open", type=int, default=500, help="updates that a crash left open (default: 500)")
    parser.add_argument("--docs", type=Path, default=None, help="write the tables into benchmarks.md there, too")
    return parser.parse_args()


class Timed:
    """Times of the pieces of one kind of work: passed, and used by this process, in microseconds a task."""

    def __init__(self) -> None:
        self.passed: list[float] = []
        self.used: list[float] = []

    def piece(self, act: Callable[[], object], tasks: int) -> None:
        """Do something `tasks` times, and take its time in."""
        began, used = time.monotonic(), time.process_time()
        for _ in range(tasks):
            act()
        self.passed.append((time.monotonic() - began) / tasks * 1e6)
        self.used.append((time.process_time() - used) / tasks * 1e6)


def compared(where: Path, durability: Durability) -> dict[str, Timed]:
    """Return what a task costs: completed; completed with an insert elsewhere, or into its own batch; inserted."""
    group = Group.create(where / durability, durability=durability)
    alone, across, own, calls, last = (group[name] for name in ("alone", "across", "own", "calls", "last"))
    pieces = PIECES if durability == "none" else PIECES // 10
    for queue, times in ((alone, 1), (across, 2), (calls, 2)):
        queue.insert_many([7] * (times * pieces * PIECE))
    for _ in range(PIECE):
        own.insert(7)  # its batch takes the inserts of its tasks
    found = defaultdict[str, Timed](Timed)

    def measure(what: str, queue: Queue, act: Callable[[LeasedTask], object]) -> None:
        """Measure what is done with a task: with its lease in the time, and without."""
        found[f"lease 1 + {what}"].piece(lambda: act(queue.lease()[0]), PIECE)
        if what != "complete":
            tasks = iter([queue.lease()[0] for _ in range(PIECE)])
            found[what].piece(lambda: act(next(tasks)), PIECE)

    def complete_and_insert(task: LeasedTask) -> None:
        task.complete()
        last.insert(task.payload)

    def passed_on(target: str) -> Callable[[LeasedTask], object]:
        def update(task: LeasedTask) -> None:
            with group.update() as update:
                update.complete(task)
                update.insert(target, task.payload)

        return update

    def inserted() -> None:
        with group.update() as update:
            update.insert("only", 7)

    for _ in range(pieces):
        measure("complete", alone, LeasedTask.complete)
        measure("complete and insert, by two calls", calls, complete_and_insert)
        measure("update over two queues", across, passed_on("next"))
        measure("update of one log", own, passed_on("own"))
        found["update that only inserts"].piece(inserted, PIECE)
    return found


def syncs(where: Path) -> Iterator[tuple[str, int, int]]:
    """Yield for kinds of updates how many files they sync, and how many of these syncs they wait for in a row."""
    made, rows = [0], [0]
    original = Filesystem.__init__

    def counting(self: Filesystem, *args: object, **named: object) -> None:
        original(self, *args, **named)  # type: ignore[arg-type]
        fsync, at_once = self.fsync, self.at_once

        def counted(fd: int) -> None:
            made[0] += 1
            rows[0] += 1
            fsync(fd)

        def together(calls: Sequence[Callable[[], object]]) -> None:
            rows[0] -= len(calls) - 1  # `counted` adds one for each
            at_once(calls)

        self.fsync, self.at_once = counted, together

    Group.create(where / "syncs")
    with mock.patch.object(Filesystem, "__init__", counting):
        group = Group(where / "syncs")
        for what, targets in (("two queues", "b"), ("ten queues", "bcdefghij"), ("one log", "a")):
            group["a"].insert(7)
            for number in range(10):
                [task] = group["a"].lease()
                before = made[0], rows[0]
                with group.update() as update:
                    update.complete(task)
                    for target in targets:
                        update.insert(target, number)
                latest = made[0] - before[0], rows[0] - before[1]
                if "a" not in targets:
                    group["a"].insert(number)
            yield what, *latest


def grown(where: Path) -> Iterator[tuple[str, int, list[float]]]:
    """Yield what updates of many inserts cost (ms), by their payloads and queues."""
    for number, (shape, payload) in enumerate(PAYLOADS.items()):
        group = Group.create(where / f"grown{number}", durability="none")
        for queues in QUEUES:
            times = []
            for operations in OPERATIONS:
                least = float("inf")
                for _ in range(REPEATS):
                    update = group.update()
                    began = time.monotonic()
                    for place in range(max(operations, queues)):
                        update.insert(f"q{place % queues}", payload)
                    update.apply()
                    least = min(least, (time.monotonic() - began) * 1e3)
                times.append(least)
            yield shape, queues, times


def recovered(where: Path, count: int) -> Iterator[tuple[str, float]]:
    """Yield how long others take (s) to bring updates to an end that a crash left open, by their payloads."""
    for number, (shape, payload) in enumerate(PAYLOADS.items()):
        group = Group.create(where / f"crash{number}", durability="none")
        group["a"].insert_many([payload] * count)
        tasks = group["a"].lease(count, lease_s=60)
        with mock.patch.object(updates._Try, "_give", return_value=None):
            for task in tasks:
                with group.update() as update:
                    update.complete(task)
                    update.insert("b", payload)
        clock = Clock()
        clock.offset_ms = 3_600_000
        began = time.monotonic()
        later, found = Queue(group.path / "b", clock=clock), 0
        while got := later.lease(100):
            later.complete(got)
            found += len(got)
        if found != count:
            raise SystemExit(f"{count} updates were left open, and {found} tasks of them were found.")
        yield shape, time.monotonic() - began


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown: the first column is words, the others are numbers."""
    under = "|".join(["---", *["---:"] * (len(head) - 1)])
    first, *others = [f"| {' | '.join(line)} |" for line in (head, *rows)]
    return "\n".join([first, f"|{under}|", *others])


def measured(where: Path, count: int) -> Iterator[str]:
    """Yield the parts of the page."""
    facts = machine.facts(str(where), {})
    yield "## Updates"
    yield filled(
        f"Measured on {facts['date']} at commit {facts['commit']}: {facts['cores']} cores ({facts['cpu']}), "
        f"{facts['kernel']}, {facts['filesystem']}, Python {facts['python']}. What else the machine had to do when it "
        f"began, as load average: {facts['load_average']}."
    )
    yield filled(
        f"A task, in microseconds: the least of {PIECES} pieces of {PIECE} tasks (synced: of {PIECES // 10}), in "
        "which what is compared takes turns. Rates are against lease 1 + complete. Two calls are what an update "
        "replaces: they are not all or nothing. Synced is the durability 'default': there a completion by itself is "
        "not."
    )
    rows, rate = [], 0.0
    for durability, words in (("none", "not synced"), ("default", "synced")):
        found = compared(where, durability)  # type: ignore[arg-type]
        base = found["lease 1 + complete"]
        for what, timed in found.items():
            passed, used = min(timed.passed), min(timed.used)
            by = f"{min(base.passed) / passed:.2f}", f"{min(base.used) / used:.2f}"
            rows.append([f"{what}, {words}", f"{passed:,.0f}", f"{used:,.0f}", *by])
            if what == "lease 1 + update over two queues" and durability == "none":
                rate = 1e6 / passed
    yield table(["", "passed", "of the processor", "rate", "by processor time"], rows)
    yield filled(f"{NEAREST}{rate:,.0f} pairs of lease and update over two queues a second, not synced.")
    yield filled("Syncs of an update that completes a task and inserts one into each other queue, all names known:")
    yield table(["", "syncs", "in a row"], [[what, str(made), str(row)] for what, made, row in syncs(where)])
    yield filled(
        f"Updates that only insert, in milliseconds, not synced: the least of {REPEATS}. Of more queues than inserts, "
        "each gets one."
    )
    yield table(
        ["payloads, queues; inserts:", *(f"{operations:,}" for operations in OPERATIONS)],
        [[f"{shape}, {queues}", *(f"{ms:.2f}" for ms in times)] for shape, queues, times in grown(where)],
    )
    yield filled(f"{count} updates over two queues that a crash left open: until others have done all tasks, seconds.")
    yield table(["payloads", "s"], [[shape, f"{seconds:.2f}"] for shape, seconds in recovered(where, count)])


def filled(text: str) -> str:
    """Return a paragraph in lines of at most 100 columns."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > 100:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])


def write(docs: Path, body: str) -> Path:
    """Put the tables into benchmarks.md, between their marks."""
    page = docs / "benchmarks.md"
    text = page.read_text(encoding="utf-8") if page.exists() else "# Benchmarks\n"
    if BEGIN not in text:
        text += f"\n{BEGIN}\n{END}\n"
    head, _, rest = text.partition(BEGIN)
    page.write_text(f"{head}{BEGIN}\n\n{body}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return page


def main() -> None:
    """Measure, and print."""
    given = arguments()
    parts = []
    with tempfile.TemporaryDirectory(dir=given.dir) as made:
        for part in measured(Path(made), given.open):
            parts.append(part)
            print(f"{part}\n", flush=True)
    if given.docs is not None:
        page = write(given.docs, "\n\n".join(parts))
        print(f"written: {page}")


if __name__ == "__main__":
    main()
