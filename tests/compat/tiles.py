"""Tasks as a user of python-task-queue has them in a module: functions, and classes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import fsqueue
from fsqueue.compat.taskqueue import RegisteredTask, queueable


class Throttled(Exception):
    """A server has asked for patience."""


@queueable
def render(at: list[int], mip: int = 0, out: str = ".") -> object:
    """Leave a file; what is returned could not be kept as a result, and does not matter."""
    if at[0] == 13:
        raise ValueError("no such tile")
    Path(out, f"{at[0]}-{mip}").write_text(repr(at))
    return object()


@queueable
def note(what: Any, out: str) -> None:
    """Write a line of what it was given, with its type."""
    with open(out, "a") as lines:
        lines.write(f"{what!r}\n")


@queueable
def hang(out: str) -> None:
    """Say that it has begun, and take long the first time."""
    with open(out, "a") as lines:
        lines.write(f"{os.getpid()}\n")
    if len(Path(out).read_text().splitlines()) == 1:
        time.sleep(600)


@queueable
def refuse(out: str, times: int) -> None:
    """Fail with an error that says nothing of the task, the first times."""
    with open(out, "a") as lines:
        lines.write("tried\n")
    if len(Path(out).read_text().splitlines()) <= times:
        raise Throttled


@queueable
def once_more(out: str) -> None:
    """Ask for another time, once."""
    with open(out, "a") as lines:
        lines.write("tried\n")
    if len(Path(out).read_text().splitlines()) == 1:
        raise fsqueue.Retry(0)


class Copy(RegisteredTask):
    """A task as an object, as older programs have it."""

    def __init__(self, name: str, sizes: Any = (), out: str = ".") -> None:
        super().__init__(name, sizes, out)
        self.name = name.upper()

    def execute(self, *args: Any, **kwargs: Any) -> None:
        """Leave a file."""
        Path(self.out, self.name).write_text(f"{self.sizes!r} {args} {kwargs}")  # type: ignore[attr-defined]
