"""What must be true of a queue once everybody is done: nothing lost, nothing done twice, counts exact, nothing
left over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from fsqueue import FsqueueError, Queue
from fsqueue.clock import Clock
from fsqueue.protocol import finishing
from fsqueue.storage import counters
from tests.support import base_of


class Diary:
    """What one process writes down before and after each thing it does: a line each, which a SIGKILL cannot take
    back.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def __enter__(self) -> Diary:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def note(self, *words: object) -> None:
        """Append a line."""
        os.write(self._fd, " ".join(map(str, words)).encode() + b"\n")


def diaries(directory: Path) -> list[list[str]]:
    """The words of every line of all diaries."""
    return [line.split(" ") for path in sorted(directory.iterdir()) for line in path.read_text().splitlines()]


def leftovers(queue: Queue) -> list[str]:
    """What is still there of tasks at work: task files, logs, staged files."""
    base = base_of(queue)
    found = [
        path for part in ("queue", "movements", "staging") for path in (base / part).rglob("*") if not path.is_dir()
    ]
    return [str(path.relative_to(base)) for path in found]


def counted(queue: Queue) -> int:
    """How many completions the counters hold."""
    return sum(map(marks, (base_of(queue) / "completions").glob("??")))


def marks(counter: Path) -> int:
    """How many completions a counter holds: a power cut may leave NULs where bytes were appended and not yet synced."""
    content = counter.read_bytes()
    return len(content) - content.count(0)


LATER_MS = 100_000_000


def clock_of_later() -> Clock:
    """When the leases of whoever was killed have run out, however slow the machine is."""
    clock = Clock()
    clock.offset_ms = LATER_MS
    return clock


def accounts(queue: Queue) -> str:
    """Who claims which bytes of the counters, and what the history cannot tell, for the message of a failure."""
    base = base_of(queue)
    told = []
    claims: dict[str, list[tuple[int, int, str]]] = {}
    for path in sorted((base / "history").glob("*/*.jsonl")):
        for number, line in enumerate(path.read_bytes().split(b"\n")):
            try:
                found = json.loads(line) if line else {"records": [], "batch": ""}
            except ValueError:
                told.append(f"{path.name}, line {number} makes no sense: {line!r}")
                continue
            for record in found["records"]:
                if record["op"] == "count":
                    claims.setdefault(record["file"], []).append((record["offset"], record["count"], found["batch"]))
    for path in sorted((base / "completions").glob("??")):
        content, end = path.read_bytes(), 0
        for offset, count, batch in sorted(claims.get(path.name, [])):
            there = counters.common_prefix(content[offset : offset + count], counters.mark(batch, count))
            if content[end:offset].strip(counters.GUARD) or there != count:
                told.append(
                    f"{path.name}: {batch} claims {count} at {offset} and has {there}; those before end at {end}"
                )
            end = max(end, offset + there)
        if content[end:].strip(counters.GUARD):
            told.append(f"{path.name}: nobody claims what follows {end}: {content[end:]!r}")
    return "\n".join(told)


def drain(queue: Queue, *, lease_s: float = 30, patience_s: float = 60, n: int = 50) -> list[Any]:
    """Complete all that is there or comes back, for which `patience_s` are enough; the payloads."""
    payloads = []
    while tasks := queue.lease(n, lease_s=lease_s) or (
        [] if queue.status().drained else queue.lease(n, lease_s=lease_s, wait_s=patience_s)
    ):
        queue.complete(tasks)
        payloads += [task.payload for task in tasks]
    return payloads


def check_drained(queue: Queue, staged_leftovers: int = 0) -> tuple[set[str], set[str]]:
    """A drained queue: counts exact before and after upkeep, which leaves nothing over. Returns the completed and
    the dead ids.
    """
    status = queue.status()
    assert (status.waiting, status.delayed, status.leased) == (0, 0, 0), status
    completed = [info.id for info in queue.tasks("completed")]
    assert len(completed) == len(set(completed)), "the history names a task twice"
    dead = [letter.id for letter in queue.dead()]
    assert len(dead) == len(set(dead)), "a dead letter is there twice"
    assert status.dead == len(dead), f"{status}, but there are {len(dead)} dead letters"
    assert not set(completed) & set(dead), "completed and dead"
    with mock.patch.object(finishing, "LINGER_MS", 0):  # open batches end once nothing was inserted for a while
        queue.gc()
    assert queue.status() == status, "upkeep changed the counts"
    assert counted(queue) == status.completed, f"the counters hold {counted(queue)}, not {status.completed}"
    assert status.completed == len(completed), f"{status}, but the history has {len(completed)}: {accounts(queue)}"
    over = leftovers(queue)
    staged = [path for path in over if path.startswith("staging/")]
    assert len(staged) <= staged_leftovers, staged
    assert not set(over) - set(staged), over
    return set(completed), set(dead)


LEFT_BY_A_KILL = ("torn-line", "repeated-history")
"""What the books of a finished batch may have of a killed process for good: readers pass it by, only fsck mends it."""


def check_sound(queue: Queue, *more: str) -> None:
    """After upkeep fsck finds nothing but what a kill may leave (and findings of the kinds `more`), mends that, and
    then finds nothing.
    """
    found = list(queue.fsck(repair=True))
    wrong = [finding for finding in found if finding.kind not in (*LEFT_BY_A_KILL, *more) or not finding.repaired]
    assert not wrong, f"fsck found {wrong}"
    again = list(queue.fsck())
    assert not again, f"after a repair of {found} fsck finds {again}"


def resume_insert(queue: Queue, tasks: Sequence[Any], error: FsqueueError, **options: Any) -> int:
    """What a caller does whose insert_many failed: repeat it from where the error says. Returns how many were
    inserted in all.
    """
    assert error.inserted is not None
    done = error.inserted
    return done + queue.insert_many(tasks[done:], **options)
