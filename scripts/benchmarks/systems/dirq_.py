"""dirq's QueueSimple: a file an element, a hard link a lock."""

from __future__ import annotations

import importlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.systems import Payload, encode


class Adapter:
    """A directory queue. A task is the pair (name, payload)."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._queue: Any = importlib.import_module("dirq.QueueSimple").QueueSimple(path)
        self._listed = False

    def create(self) -> None:
        pass  # opening made it

    def insert_many(self, payloads: Iterable[Payload]) -> int:
        count = 0
        for payload in payloads:
            self._queue.add(encode(payload))
            count += 1
        return count

    def insert_one(self, payload: Payload) -> None:
        self._queue.add(encode(payload))

    def lease(self, n: int) -> list[Any]:
        tasks: list[Any] = []
        listed_anew = False
        while len(tasks) < n:
            # first() lists the directories, next() goes on in that listing ("" at its end).
            name = self._queue.next() if self._listed else self._queue.first()
            listed_anew |= not self._listed
            self._listed = bool(name)
            if name:
                if self._queue.lock(name):
                    tasks.append((name, json.loads(self._queue.get(name))))
            elif tasks or listed_anew:
                break
        return tasks

    def payload(self, task: Any) -> Payload:
        payload: Payload = task[1]
        return payload

    def complete(self, tasks: list[Any]) -> None:
        for name, _ in tasks:
            self._queue.remove(name)

    def loop(self) -> Iterator[Any]:
        while tasks := self.lease(1):
            yield tasks[0]
            self.complete(tasks)

    def status(self) -> int:
        count: int = self._queue.count()
        return count

    def delete(self) -> None:
        shutil.rmtree(self._path)  # it has no verb for this

    def gone(self) -> bool:
        return not os.path.exists(self._path)
