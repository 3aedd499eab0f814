"""A FileQueue of python-task-queue, as its programs write it: for tests of what takes one over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

FAR_S = 4_000_000_000
"""A time that is always to come."""
CALL = [["tests.compat.tiles", "note"], [7], {"out": "did"}, -1]


class Files:
    """A FileQueue as its programs write it."""

    def __init__(self, home: Path, logs: str = "movement") -> None:
        self.home, self.logs = home, home / logs
        (home / "queue").mkdir(parents=True)
        self.logs.mkdir()
        self.count = 0

    def add(self, payload: Any = CALL, at: int | str = 0, text: str | None = None) -> str:
        """Insert a task, and return its id."""
        self.count += 1
        task = str(UUID(int=self.count))
        name = f"{at}--{task}.json"
        stored = json.dumps({"payload": payload, "queueName": "q", "id": task}) if text is None else text
        (self.home / "queue" / name).write_text(stored)
        (self.logs / task).write_text(f"{name}\n")
        return task

    def lease(self, task: str, until_s: int) -> None:
        """Lease a task."""
        [path] = (self.home / "queue").glob(f"*{task}.json")
        name = f"{until_s}--{task}.json"
        path.rename(path.with_name(name))
        with open(self.logs / task, "a") as log:
            log.write(f"{name}\n")

    def seen(self) -> list[tuple[Any, ...]]:
        """Return all that a program could see of the directory: names, kinds, times and contents."""
        found: list[tuple[Any, ...]] = []
        for path in sorted([self.home, *self.home.rglob("*")]):
            info = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            found.append((str(path), info.st_mode, info.st_ino, info.st_mtime_ns, info.st_nlink, content))
        return found
