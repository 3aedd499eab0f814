"""Redis as a reliable queue: LMOVE to a list of what is at work, LREM when it is done. Nothing runs out by itself.

Each process has a server of its own beside the append-only file in `path`, on a socket there: it ends with the process.
So only steps of one process at a time are measured.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import subprocess
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from benchmarks.peers import NO_REDIS
from benchmarks.systems import Payload, encode

WAITING, AT_WORK = "waiting", "at_work"
PIPELINE = 1_000
"""Number of payloads that one command inserts."""
START_S = 120.0


class Adapter:
    """A server in the directory `path`. A task is its payload, as bytes. `fsync`: when what was written is synced."""

    def __init__(self, path: str, fsync: str = "everysec") -> None:
        os.makedirs(path, exist_ok=True)
        socket = os.path.join("/tmp", f"fsqueue-bench-redis-{os.getpid()}.sock")  # a socket's path is short
        options = {
            "port": "0", "unixsocket": socket, "dir": path, "appendonly": "yes", "appendfsync": fsync, "save": "",
            "loglevel": "warning",
        }  # fmt: skip
        command = ["redis-server", *(word for key, value in options.items() for word in (f"--{key}", value))]
        try:
            # The kernel ends it if this process is killed.
            self._server = subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *command], stdout=subprocess.DEVNULL)
        except FileNotFoundError:
            raise SystemExit("setpriv (util-linux) is not installed, so Redis is not measured") from None
        redis: Any = importlib.import_module("redis")
        self._redis = redis.Redis(unix_socket_path=socket)
        atexit.register(self._end, socket)
        until = time.monotonic() + START_S
        while True:
            try:
                self._redis.ping()
                return
            except redis.exceptions.RedisError:  # it starts, or reads its file
                if self._server.poll() is not None:
                    raise SystemExit(NO_REDIS) from None
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)

    def _end(self, socket: str) -> None:
        self._server.terminate()
        self._server.wait()
        if os.path.exists(socket):
            os.unlink(socket)

    def create(self) -> None:
        pass  # opening made it

    def insert_many(self, payloads: Iterable[Payload]) -> int:
        count, rest = 0, iter(payloads)
        while some := [encode(payload) for payload in islice(rest, PIPELINE)]:
            self._redis.rpush(WAITING, *some)
            count += len(some)
        return count

    def insert_one(self, payload: Payload) -> None:
        self._redis.rpush(WAITING, encode(payload))

    def lease(self, n: int) -> list[Any]:
        if n == 1:
            data = self._redis.lmove(WAITING, AT_WORK, "LEFT", "RIGHT")
            return [] if data is None else [data]
        pipeline = self._redis.pipeline(transaction=False)
        for _ in range(n):
            pipeline.lmove(WAITING, AT_WORK, "LEFT", "RIGHT")
        return [data for data in pipeline.execute() if data is not None]

    def payload(self, task: Any) -> Payload:
        payload: Payload = json.loads(task)
        return payload

    def complete(self, tasks: list[Any]) -> None:
        if len(tasks) == 1:
            self._redis.lrem(AT_WORK, 1, tasks[0])
            return
        pipeline = self._redis.pipeline(transaction=False)
        for data in tasks:
            pipeline.lrem(AT_WORK, 1, data)
        pipeline.execute()

    def loop(self) -> Iterator[Any]:
        while tasks := self.lease(1):
            yield tasks[0]
            self.complete(tasks)

    def status(self) -> int:
        return int(self._redis.llen(WAITING)) + int(self._redis.llen(AT_WORK))

    def delete(self) -> None:
        self._redis.flushall()

    def gone(self) -> bool:
        return int(self._redis.dbsize()) == 0
