"""A filesystem that does as a test tells it, at each of its steps: fail, lie, stop or die."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from fsqueue import Group, Queue
from fsqueue.filesystem import Filesystem
from fsqueue.storage import group_directory, store

STEPS = (
    *("try_lock", "unlock", "close", "pread", "write", "pwrite", "fsync", "fstat"),
    *("look", "create", "make_directory", "names", "rename", "link", "unlink", "stat", "touch"),
)
"""All that a Filesystem does to the system; its other methods are made of these."""

Call = Callable[..., Any]
Trap = Callable[..., Any]
"""`trap(step, call, *args)` does `call(*args)`, or something else."""


def one_after_the_other(calls: Sequence[Callable[[], object]]) -> None:
    """Do what the layer does in threads here: the steps are counted, and stay in one order."""
    for call in calls:
        call()


class Trapped(Filesystem):
    """A Filesystem whose steps all go through `trap`."""

    def __init__(self, root: str, trap: Trap, *, shared: bool = False) -> None:
        super().__init__(root, shared=shared)
        for step in STEPS:
            setattr(self, step, partial(self._step, step, getattr(self, step)))
        self.trap: Trap = trap
        self.at_once = one_after_the_other

    def _step(self, step: str, call: Call, *args: Any) -> Any:
        return self.trap(step, call, *args)


def trapped(queue: Queue, trap: Trap, *, shared: bool = False) -> Queue:
    """The same queue, opened through a filesystem with `trap`."""
    return Queue(queue.path, filesystem=Trapped(str(queue.path), trap, shared=shared))


@contextmanager
def trapped_group(path: Path, trap: Trap, shared: bool = False) -> Iterator[Group]:
    """The group at a path, and its queues, opened through filesystems with a trap."""

    def filesystem(root: str, **_: Any) -> Filesystem:
        return Trapped(root, trap, shared=shared)

    with (
        mock.patch.object(store, "Filesystem", filesystem),
        mock.patch.object(group_directory, "Filesystem", filesystem),
    ):
        yield Group(path)


def creates(step: str, args: tuple[Any, ...]) -> bool:
    """Whether this step may need a new name or inode."""
    return step in ("create", "make_directory", "rename", "link") or (
        step == "look" and len(args) > 1 and bool(args[1] & os.O_CREAT)
    )


def needs_room(step: str, args: tuple[Any, ...]) -> bool:
    """Whether this step can meet a full disk."""
    return step in ("write", "pwrite", "fsync") or creates(step, args)


class Count:
    """Counts the steps of interest, and does them; `armed` later, so that opening is not counted."""

    def __init__(self, of_interest: Callable[[str, tuple[Any, ...]], bool] = lambda step, args: True) -> None:
        self.of_interest = of_interest
        self.steps: list[str] = []
        self.armed = False

    def __call__(self, step: str, call: Call, *args: Any) -> Any:
        if not self.armed or not self.of_interest(step, args):
            return call(*args)
        self.steps.append(step)
        return self.at(len(self.steps), step, call, *args)

    def at(self, number: int, step: str, call: Call, *args: Any) -> Any:
        """The step with this number, from 1 on."""
        return call(*args)


class DieAt(Count):
    """SIGKILL instead of the n-th step: whatever came before it has happened, nothing after."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def at(self, number: int, step: str, call: Call, *args: Any) -> Any:
        if number == self.number:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args)


class FullFrom(Count):
    """The n-th step that needs room finds none, and for `times` more nobody does. A write may get some bytes in
    before.
    """

    def __init__(self, number: int, *, times: int = 1, code: int = errno.ENOSPC, partly: bool = False) -> None:
        super().__init__(needs_room)
        self.number = number
        self.times = times
        self.code = code
        self.partly = partly
        self.met = 0

    def at(self, number: int, step: str, call: Call, *args: Any) -> Any:
        if not self.number <= number < self.number + self.times:
            return call(*args)
        self.met += 1
        if self.partly and step == "write" and len(args[1]) > 1:
            fd, data = args
            return call(fd, data[: len(data) // 2])
        raise OSError(self.code, os.strerror(self.code))
