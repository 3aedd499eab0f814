"""What one look costs at a queue that has a long past, or damage behind its files: it should follow what is alive.

Each case makes a queue, and then runs commands, each in a process of its own: its CPU time and its peak memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import machine

Request = dict[str, Any]

BULK = 1024
"""So many tasks are leased and completed at a time."""
CONTROL_ZEROS, LOG_ZEROS = 128 << 20, 1 << 30
"""How many bytes of zeros stand behind `queue.jsonl` and the dead letters, and behind a log."""

LETTER_EACH = 100
"""Of so many tasks one becomes a dead letter."""
LONG_LETTERS, LONG_BYTES = 3, 60_000_000
STRAGGLERS_MAX, STRAGGLER_EACH = 300_000, 1024
RENEWED_MAX, RENEWALS_MAX = 1000, 432
"""A lease of ten minutes is renewed so often a day, each time a third of it is over."""
LATER_S = 86_400
RUNS, RUNS_FROM = 3, 100_000
"""Of so many runs of a command the cheapest counts: what else the machine does only adds. At so many tasks, or more."""

START = "--version"
"""Looks at no queue: what the start of Python and of the program costs."""
LOOKS = (
    (START,),
    ("status",),
    ("gc",),
    ("workers",),
    ("peek",),
    ("ls", "--state", "leased"),
    ("dead list",),
    ("fsck",),
)
"""What is asked of a queue with a past. `fsck` reads all that is on disk, and is shown to be compared only."""

COMMAND = """
import json, sys, time
from benchmarks import machine
from fsqueue.clock import Clock
if ahead := float(sys.argv[1]):
    Clock.local_s = staticmethod(lambda: time.time() + ahead)
code = None
if sys.argv[2] == "peek":
    import fsqueue
    with fsqueue.Queue(sys.argv[3]) as queue:
        print(queue.peek())
else:
    from fsqueue_cli.main import cli
    try:
        code = cli(sys.argv[2:])
    except SystemExit as end:
        code = end.code
found = {"code": code or 0, "cpu_s": round(time.process_time(), 4), "memory_mb": machine.peak_memory_mb()}
print(json.dumps(found | {"read_mb": round(machine.bytes_read() / 1e6, 3)}))
"""
"""`peek` is a verb of the library only; a clock may be set ahead."""


def typed(command: str) -> str:
    """Return what a user types for it."""
    return "Queue.peek()" if command == "peek" else f"fsqueue {command}"


def runs_of(tasks: int) -> int:
    """Return how often each command is run: a try with few tasks is not meant to be exact."""
    return RUNS if tasks >= RUNS_FROM else 1


def looks_of(tasks: int) -> tuple[tuple[str, ...], ...]:
    """Return the commands to run: a try with few tasks does a few of them."""
    return LOOKS if tasks >= RUNS_FROM else (("status",), ("gc",))


def perform(request: Request) -> dict[str, Any]:
    """Make the queue of a case, run its commands, and return what each cost."""
    rows = list(CASES[request["case"]](request["path"], request["count"]))
    return {"tasks": request["count"], "commands": rows}


def activity(path: str, tasks: int) -> Iterator[dict[str, Any]]:
    """Yield what looks cost after so many tasks were completed in bulk within the window."""
    import fsqueue

    begin = time.monotonic()
    with fsqueue.Queue.create(path, durability="none", allow_unsafe=True) as queue:
        queue.insert_many({"tile": number} for number in range(tasks))
        while leased := queue.lease(BULK):
            queue.complete(leased)
    window = f"{int(time.monotonic() - begin) + 60}s"
    yield cheapest(tasks, path, "status", "--window", window)
    yield cheapest(tasks, path, "status", "--fast")
    for look in looks_of(tasks):
        yield cost(path, *look) if look == ("fsck",) else cheapest(tasks, path, *look)


def stragglers(path: str, tasks: int) -> Iterator[dict[str, Any]]:
    """Yield what looks cost where of each 1,024 tasks one waits in its back-off, and all others are done one by one."""
    yield from _stragglers(path, tasks, lambda task: task.fail("node lost", 3600), one_by_one=True)


def stragglers_in_bulk(path: str, tasks: int) -> Iterator[dict[str, Any]]:
    """Yield the same where the others are done 64 at a time."""
    yield from _stragglers(path, tasks, lambda task: task.fail("node lost", 3600), one_by_one=False)


def stragglers_leased(path: str, tasks: int) -> Iterator[dict[str, Any]]:
    """Yield the same where the one is leased still."""
    yield from _stragglers(path, tasks, lambda task: None, one_by_one=True)


def _stragglers(path: str, tasks: int, leave: Callable[[Any], None], one_by_one: bool) -> Iterator[dict[str, Any]]:
    import fsqueue

    count = min(tasks, STRAGGLERS_MAX)
    with fsqueue.Queue.create(path, durability="none", allow_unsafe=True) as queue:
        queue.insert_many(range(count), total=count)
        while leased := queue.lease(1 if one_by_one else 64, lease_s=36_000):
            done = [task for task in leased if not task.id.endswith(".5")]
            for task in leased:
                if task.id.endswith(".5"):
                    leave(task)
            if one_by_one:
                for task in done:
                    task.complete()
            elif done:
                queue.complete(done)
        for look in looks_of(tasks):
            yield cheapest(tasks, path, *look) | _log(path)


def renewed(path: str, tasks: int) -> Iterator[dict[str, Any]]:
    """Yield what commands cost at 1,000 tasks of one batch before and after a day of renewals, one by one."""
    yield from _renewed(path, tasks, at_once=1)


def renewed_in_bulk(path: str, tasks: int) -> Iterator[dict[str, Any]]:
    """Yield the same where each worker renews ten tasks at once."""
    yield from _renewed(path, tasks, at_once=10)


def _renewed(path: str, tasks: int, at_once: int) -> Iterator[dict[str, Any]]:
    import fsqueue

    count, times = min(RENEWED_MAX, max(10, tasks // 10)), min(RENEWALS_MAX, max(1, tasks // 10))
    runs = runs_of(tasks)
    with fsqueue.Queue.create(path, durability="none", allow_unsafe=True) as queue:
        queue.insert_many(range(count), batch_tasks=count)
        leased = [task for _ in range(count // at_once) for task in queue.lease(at_once, lease_s=36_000)]
        renewing, tokens = leased[: -4 * runs], iter([task.token for task in leased[-4 * runs :]])

        def commands() -> Iterator[dict[str, Any]]:
            for look in looks_of(tasks):
                yield cheapest(tasks, path, *look) | _log(path)
            for verb in ("renew", "complete"):
                yield min((cost(path, verb, next(tokens)) for _ in range(runs)), key=_cpu_s) | {"command": verb}

        for row in commands():
            yield row | {"fresh": True}
        for _ in range(times):
            for first in range(0, len(renewing), at_once):
                queue.renew(renewing[first : first + at_once], lease_s=36_000)
        yield from commands()


def _log(path: str) -> dict[str, Any]:
    """Return the bytes of all logs, and how many of them restate the others."""
    from fsqueue.format import checkpoints

    whole = restated = 0
    for file in Path(path).glob("*/movements/*/*"):
        for line in file.read_bytes().splitlines(keepends=True):
            whole += len(line)
            restated += len(line) if line.startswith(checkpoints.MARK) else 0
    return {"log_bytes": whole, "restated_bytes": restated}


def zeros(path: str, tasks: int) -> Iterator[dict[str, Any]]:
    """Yield what looks and repairs cost with zeros behind a log, the dead letters and `queue.jsonl`."""
    import fsqueue

    with fsqueue.Queue.create(path, shards=1, max_attempts=1, durability="none", allow_unsafe=True) as queue:
        queue.insert_many(range(64), batch_tasks=64)
        for number, task in enumerate(queue.lease(4)):
            task.bury("no") if number else task.complete()
    [log], [letters] = Path(path).glob("*/movements/*/*"), Path(path).glob("*/dead/*")
    os.truncate(log, log.stat().st_size + LOG_ZEROS)
    yield cost(path, "status")
    with letters.open("ab") as file:  # these are no hole: they are read
        for _ in range(CONTROL_ZEROS >> 20):
            file.write(bytes(1 << 20))
    os.truncate(f"{path}/queue.jsonl", os.stat(f"{path}/queue.jsonl").st_size + CONTROL_ZEROS)
    yield cost(path, "status")
    yield cost(path, "fsck", "--repair")
    yield cost(path, "fsck")


def letters(path: str, tasks: int) -> Iterator[dict[str, Any]]:
    """Yield what looks cost before and after dead letters were purged: one for each hundred tasks."""
    import fsqueue

    with fsqueue.Queue.create(path, durability="none", allow_unsafe=True) as queue:
        cost(path, "status")  # the first process of an interpreter compiles
        yield cheapest(tasks, path, "status")
        queue.insert_many({"tile": number} for number in range(max(1, tasks // LETTER_EACH)))
        while leased := queue.lease(BULK):
            for task in leased:
                task.bury("no such tile")
        yield cheapest(tasks, path, "status")
        yield cost(path, "dead purge", "--yes")
    # In turns, so that what else the machine does falls on both; and when the burials are out of the window of rates.
    with fsqueue.Queue.create(f"{path}.empty", durability="none", allow_unsafe=True):
        pairs = [
            (cost(f"{path}.empty", "status", ahead_s=LATER_S), cost(path, "status", ahead_s=LATER_S))
            for _ in range(runs_of(tasks) ** 2)
        ]
    bare, purged = (min(each, key=_cpu_s) for each in zip(*pairs, strict=True))
    yield purged | {"command": "status, a day later", "empty_cpu_s": bare["cpu_s"]}
    for look in looks_of(tasks):
        yield cheapest(tasks, path, *look)


def long_letters(path: str, tasks: int) -> Iterator[dict[str, Any]]:
    """Yield what looks cost at three sound letters of 60 MB each, beside reading their file line by line."""
    import fsqueue

    size = min(LONG_BYTES, tasks * 600)
    with fsqueue.Queue.create(path, shards=1, durability="none", allow_unsafe=True) as queue:
        for _ in range(LONG_LETTERS):
            queue.insert("x" * size)
            for task in queue.lease(1):
                task.bury("no such tile")
    [file] = Path(path).glob("*/dead/*")
    for verb in ("status", "dead", "status(exact=False)"):
        yield _against_reading(path, str(file), verb)
    yield cheapest(tasks, path, "status")
    yield cheapest(tasks, path, "dead list")
    yield cost(path, "fsck")


READING = """
import json, sys, time
from benchmarks import machine
import fsqueue
path, file, verb = sys.argv[1:]

def reading():
    with open(file, "rb") as lines:
        for line in lines:
            len(line)

def looking():
    with fsqueue.Queue(path) as queue:
        if verb == "dead":
            for letter in queue.dead():
                pass
        else:
            queue.status(exact=verb == "status")

def cpu_s(act):
    begin = time.process_time()
    act()
    return time.process_time() - begin

pairs = [(cpu_s(reading), cpu_s(looking)) for _ in range(5)]
plain, look = map(min, zip(*pairs))
found = {"code": 0, "cpu_s": round(look, 4), "plain_cpu_s": round(plain, 4), "memory_mb": machine.peak_memory_mb()}
print(json.dumps(found))
"""


def _against_reading(path: str, file: str, verb: str) -> dict[str, Any]:
    return _ask([READING, path, file, verb]) | {"command": f"Queue.{verb}"}


CASES: dict[str, Callable[[str, int], Iterator[dict[str, Any]]]] = {
    "activity": activity,
    "stragglers": stragglers,
    "stragglers, 64 at a time": stragglers_in_bulk,
    "stragglers, leased": stragglers_leased,
    "renewed": renewed,
    "renewed, 10 at a time": renewed_in_bulk,
    "letters": letters,
    "long letters": long_letters,
    "zeros": zeros,
}


def cheapest(tasks: int, path: str, verb: str, *options: str) -> dict[str, Any]:
    """Return what the cheapest of several runs of a command cost."""
    return min((cost(path, verb, *options) for _ in range(runs_of(tasks))), key=_cpu_s)


def cost(path: str, verb: str, *options: str, ahead_s: float = 0) -> dict[str, Any]:
    """Run one command in a fresh process, and return what it cost. Its clock may be ahead of the machine's."""
    words = [verb] if verb.startswith("-") else [*verb.split(), path, *options]
    return _ask([COMMAND, str(ahead_s), *words]) | {"command": " ".join([verb, *options])}


def _cpu_s(row: dict[str, Any]) -> float:
    return float(row["cpu_s"])


def _ask(program: list[str]) -> dict[str, Any]:
    begin = time.monotonic()
    paths = [str(machine.ROOT / "scripts"), str(machine.ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", *program],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"seconds": round(time.monotonic() - begin, 3), **found}


def rows_of(case: str, result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each command of a case."""
    return [
        {"case": case, "tasks": result["tasks"], "number": number, **one}
        for number, one in enumerate(result["commands"])
    ]
