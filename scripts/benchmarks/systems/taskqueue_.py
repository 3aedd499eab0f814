"""python-task-queue's FileQueueAPI, the part of it that is behind fq:// paths.

Called below its TaskQueue class, whose thread pool and progress bars cost more than they bring here.
Completions are not tallied (as by default): that would cost it a third file operation a task.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.systems import Payload

LEASE_S = 3600


class Adapter:
    """A file queue directory."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._api: Any = importlib.import_module("taskqueue.file_queue_api").FileQueueAPI(path)

    def create(self) -> None:
        pass  # opening made it

    def insert_many(self, payloads: Iterable[Payload]) -> int:
        count: int = self._api.insert({"payload": payload, "queueName": "bench"} for payload in payloads)
        self._api.add_insert_count(count)
        return count

    def insert_one(self, payload: Payload) -> None:
        self._api.insert([{"payload": payload, "queueName": "bench"}])
        self._api.add_insert_count(1)

    def lease(self, n: int) -> list[Any]:
        tasks: list[Any] = self._api.lease(LEASE_S, n)
        return tasks

    def payload(self, task: Any) -> Payload:
        payload: Payload = task["payload"]
        return payload

    def complete(self, tasks: list[Any]) -> None:
        for task in tasks:
            self._api.delete(task)

    def loop(self) -> Iterator[Any]:
        while tasks := self.lease(1):
            yield tasks[0]
            self.complete(tasks)

    def status(self) -> int:
        enqueued: int = self._api.enqueued
        _ = self._api.inserted, self._api.completed, self._api.leased
        return enqueued

    def delete(self) -> None:
        self._api.purge()

    def gone(self) -> bool:
        return not os.listdir(os.path.join(self._path, "queue"))
