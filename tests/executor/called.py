"""Functions that executors of the tests call, also in processes of their own: these import this module."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import Any

import fsqueue
from tests.concurrency.processes import at_a_random_moment
from tests.waiting import until


@fsqueue.task
def same(value: Any, *, other: Any = None) -> Any:
    return value if other is None else [value, other]


@fsqueue.task
def add(one: int, other: int) -> int:
    return one + other


@fsqueue.task
def divide(one: int, other: int) -> float:
    return one / other


def kind(value: Any) -> str:
    return type(value).__name__


def pair(value: Any) -> tuple[Any, Any]:
    return value, {"of": (value,)}


def raises(text: str) -> None:
    raise ValueError(text)


def unkept(value: Any) -> Any:
    return {value}


def once_more(path: str) -> str:
    """Ask to be repeated, once."""
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return "repeated"
    raise fsqueue.Retry(0)


def process() -> int:
    return os.getpid()


def die_once(path: str) -> str:
    """Die by SIGKILL, once."""
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return "lives"
    os.kill(os.getpid(), 9)
    return "unreachable"


@fsqueue.task
def wait_for(path: str) -> str:
    """Wait until a file is there."""
    Path(f"{path}.begun").touch()
    until(lambda: Path(path).exists(), "the file")
    return "waited"


def note(directory: str, number: int) -> int:
    """Note an execution, and work for a moment."""
    Path(directory, f"{number}.{os.getpid()}").touch()
    at_a_random_moment(random.Random(number), 0.01)
    return number * number


async def in_a_loop() -> None: ...


def generator() -> Any:
    yield 1


class Tool:
    def method(self) -> None: ...


class Odd(Exception):
    """An exception that cannot be unpickled: it takes two arguments, and gives its base one."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(one + other)


def lock() -> Any:
    return threading.Lock()


def fail(error: Exception) -> None:
    raise error


def double(value: Any) -> Any:
    return 2 * value
