"""huey's SQLite storage, which its consumers take tasks from. Taking a task deletes it: there is no lease."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.systems import Payload, encode


class Adapter:
    """A SQLite file in the directory `path`. A task is its payload."""

    def __init__(self, path: str, fsync: bool | None = None) -> None:
        os.makedirs(path, exist_ok=True)
        huey: Any = importlib.import_module("huey")
        # A busy database is waited for: eight processes contend for one write lock.
        self._huey = huey.SqliteHuey(filename=os.path.join(path, "huey.db"), fsync=fsync, timeout=60)
        self._storage = self._huey.storage

    def create(self) -> None:
        pass  # opening made it

    def insert_many(self, payloads: Iterable[Payload]) -> int:
        count = 0
        for payload in payloads:
            self._storage.enqueue(encode(payload))
            count += 1
        return count

    def insert_one(self, payload: Payload) -> None:
        self._storage.enqueue(encode(payload))

    def lease(self, n: int) -> list[Any]:
        tasks: list[Any] = []
        while len(tasks) < n:
            data = self._storage.dequeue()
            if data is None:
                break
            tasks.append(json.loads(bytes(data)))
        return tasks

    def payload(self, task: Any) -> Payload:
        payload: Payload = task
        return payload

    def complete(self, tasks: list[Any]) -> None:
        pass

    def loop(self) -> Iterator[Any]:
        while tasks := self.lease(1):
            yield tasks[0]

    def status(self) -> int:
        count: int = self._huey.pending_count()
        return count

    def delete(self) -> None:
        self._huey.flush()

    def gone(self) -> bool:
        return bool(self._huey.pending_count() == 0)
