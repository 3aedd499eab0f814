"""fsqueue, by its public interface."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import fsqueue
from benchmarks.systems import Payload
from fsqueue.format.names import parse_deleted


class Adapter:
    """A fsqueue queue; `options` are those of `Queue.create`."""

    def __init__(self, path: str, **options: Any) -> None:
        self._path = path
        self._options = options
        self._opened: fsqueue.Queue | None = None

    @property
    def _queue(self) -> fsqueue.Queue:
        if self._opened is None:
            self._opened = fsqueue.Queue(self._path)
        return self._opened

    def create(self) -> None:
        self._opened = fsqueue.Queue.create(self._path, allow_unsafe=True, **self._options)

    def insert_many(self, payloads: Iterable[Payload]) -> int:
        return self._queue.insert_many(payloads)

    def insert_one(self, payload: Payload) -> None:
        self._queue.insert(payload)

    def lease(self, n: int) -> list[Any]:
        return self._queue.lease(n)

    def payload(self, task: Any) -> Payload:
        payload: Payload = task.payload
        return payload

    def complete(self, tasks: list[Any]) -> None:
        if len(tasks) == 1:
            tasks[0].complete()
        else:
            self._queue.complete(tasks)

    def loop(self) -> Iterator[Any]:
        # Completing a task that came from poll() leases the next one in the same append.
        for task in self._queue.poll():
            yield task
            task.complete()

    def status(self) -> int:
        return self._queue.status().remaining

    def delete(self) -> None:
        self._queue.delete()

    def gone(self) -> bool:
        beside = os.listdir(os.path.dirname(self._path))
        return not any(name == os.path.basename(self._path) or parse_deleted(name) for name in beside)


def batch_of(task: Any) -> str:
    """The batch that a leased task belongs to: its id is BATCH.INDEX (docs/format.md)."""
    batch: str = task.id.rpartition(".")[0]
    return batch
