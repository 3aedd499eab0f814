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

Request = dict[str, Any]

BULK = 1024
"""So many tasks are leased and completed at a time."""
CONTROL_ZEROS, LOG_ZEROS = 128 << 20, 1 << 30
"""How many bytes of zeros stand behind `queue.jsonl` and the dead letters, and behind a log."""

LETTER_EACH = 100
"""Of so many tasks one becomes a dead letter."""

COMMAND = """
import json, sys, time
from benchmarks import machine
from cli.main import cli
try:
    code = cli(sys.argv[1:])
except SystemExit as end:
    code = end.code
print(json.dumps({"code": code or 0, "cpu_s": round(time.process_time(), 3), "memory_mb": machine.peak_memory_mb()}))
"""


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
    yield _cost(path, "status", "--window", window)
    yield _cost(path, "status", "--fast")


def zeros(path: str, tasks: int) -> Iterator[dict[str, Any]]:
    """Yield what looks and repairs cost with zeros behind a log, the dead letters and `queue.jsonl`."""
    import fsqueue

    with fsqueue.Queue.create(path, shards=1, max_attempts=1, durability="none", allow_unsafe=True) as queue:
        queue.insert_many(range(64), batch_tasks=64)
        for number, task in enumerate(queue.lease(4)):
            task.bury("no") if number else task.complete()
    [log], [letters] = Path(path).glob("*/movements/*/*"), Path(path).glob("*/dead/*")
    os.truncate(log, log.stat().st_size + LOG_ZEROS)
    yield _cost(path, "status")
    with letters.open("ab") as file:  # these are no hole: they are read
        for _ in range(CONTROL_ZEROS >> 20):
            file.write(bytes(1 << 20))
    os.truncate(f"{path}/queue.jsonl", os.stat(f"{path}/queue.jsonl").st_size + CONTROL_ZEROS)
    yield _cost(path, "status")
    yield _cost(path, "fsck", "--repair")
    yield _cost(path, "fsck")


def letters(path: str, tasks: int) -> Iterator[dict[str, Any]]:
    """Yield what looks cost before and after dead letters were purged: one for each hundred tasks."""
    import fsqueue

    with fsqueue.Queue.create(path, durability="none", allow_unsafe=True) as queue:
        yield _cost(path, "status")
        queue.insert_many({"tile": number} for number in range(max(1, tasks // LETTER_EACH)))
        while leased := queue.lease(BULK):
            for task in leased:
                task.bury("no such tile")
        yield _cost(path, "status")
        yield _cost(path, "dead purge", "--yes")
    yield _cost(path, "status")
    yield _cost(path, "gc")
    yield _cost(path, "fsck")


CASES: dict[str, Callable[[str, int], Iterator[dict[str, Any]]]] = {
    "activity": activity,
    "letters": letters,
    "zeros": zeros,
}


def _cost(path: str, verb: str, *options: str) -> dict[str, Any]:
    """Run one command in a fresh process, and return what it cost."""
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *verb.split(), path, *options], stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"command": " ".join([verb, *options]), "seconds": round(time.monotonic() - begin, 3), **found}


def rows_of(case: str, result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each command of a case."""
    return [
        {"case": case, "tasks": result["tasks"], "number": number, **one}
        for number, one in enumerate(result["commands"])
    ]
