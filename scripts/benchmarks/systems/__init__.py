"""The systems that are measured, behind one interface so that the same code times them all."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

Payload = dict[str, Any]


class System(Protocol):
    """A queue, as the steps use it. Payloads go in and come out as objects; encoding them is part of the cost."""

    def create(self) -> None:
        """Make the queue, empty."""

    def insert_many(self, payloads: Iterable[Payload]) -> int:
        """Insert a stream in the way its authors meant for many; how many it took."""
        ...

    def insert_one(self, payload: Payload) -> None:
        """Insert one."""

    def lease(self, n: int) -> list[Any]:
        """Take up to `n` tasks, payloads decoded; [] when the system finds none."""
        ...

    def payload(self, task: Any) -> Payload:
        """The payload of a task taken."""
        ...

    def complete(self, tasks: list[Any]) -> None:
        """Acknowledge all of them, in one call where the system has one."""

    def loop(self) -> Iterator[Any]:
        """The system's own work loop: asking for the next task acknowledges the one before."""
        ...

    def status(self) -> int:
        """What the system can say of its counts, all of it; returns the number of tasks not completed."""
        ...

    def delete(self) -> None:
        """Get rid of the queue or of everything in it, in the way its authors meant."""

    def gone(self) -> bool:
        """Whether the disk is free of it."""
        ...


@dataclass(frozen=True)
class Entry:
    """A system as it stands in a row of the results."""

    name: str
    module: str
    title: str
    """For tables."""
    options: dict[str, Any] = field(default_factory=dict)
    peer: bool = False
    steps: tuple[str, ...] = ()
    """Which steps are measured of it; () for all."""

    @property
    def slow(self) -> bool:
        """Whether filling a large queue takes it minutes."""
        return self.peer or self.options.get("batch_tasks_max") == 1


ALONE = ("insert", "insert_one", "lease_one", "lease_many", "loop", "status", "delete")
"""The steps of one process at a time."""

ENTRIES = [
    Entry("fsqueue", "fsqueue_", "fsqueue"),
    Entry(
        "floor",
        "floor",
        "bare system calls",
        steps=("insert", "lease_one", "lease_many", "loop", "delete"),
    ),
    Entry(
        "fsqueue-nosync",
        "fsqueue_",
        "fsqueue, durability=none",
        {"durability": "none"},
        steps=("insert", "insert_one", "mixed"),
    ),
    Entry(
        "fsqueue-strict",
        "fsqueue_",
        "fsqueue, durability=strict",
        {"durability": "strict"},
        steps=("lease_one", "lease_many", "loop"),
    ),
    Entry(
        "fsqueue-nohistory",
        "fsqueue_",
        "fsqueue, no history",
        {"keep_history": False},
        steps=("lease_one", "lease_many", "loop"),
    ),
    Entry(
        "fsqueue-nopayloads",
        "fsqueue_",
        "fsqueue, no payloads kept",
        {"keep_payloads": 0},
        steps=("lease_one", "lease_many", "loop"),
    ),
    Entry(
        "fsqueue-single",
        "fsqueue_",
        "fsqueue, batches of one",
        {"batch_tasks_max": 1},
    ),
    Entry("task-queue", "taskqueue_", "task-queue (fq://)", peer=True),
    Entry("dirq", "dirq_", "dirq (QueueSimple)", peer=True),
    Entry("huey", "huey_", "huey (SQLite)", peer=True),
    Entry(
        "huey-nosync",
        "huey_",
        "huey (SQLite, fsync=False)",
        {"fsync": False},
        peer=True,
    ),
    Entry("redis", "redis_", "Redis (LMOVE + LREM)", peer=True, steps=ALONE),
    Entry("redis-always", "redis_", "Redis (appendfsync always)", {"fsync": "always"}, peer=True, steps=ALONE),
]
"""The first is what all others are compared with; `floor` needs what it measured."""

BY_NAME = {entry.name: entry for entry in ENTRIES}


def open_system(name: str, path: str) -> System:
    """The adapter of `name` on `path`; imports the system's package, and no other's."""
    entry = BY_NAME[name]
    module = importlib.import_module(f"benchmarks.systems.{entry.module}")
    system: System = module.Adapter(path, **entry.options)
    return system


def encode(payload: Payload) -> bytes:
    """A payload as JSON, for the systems that take bytes."""
    return json.dumps(payload, separators=(",", ":")).encode()
