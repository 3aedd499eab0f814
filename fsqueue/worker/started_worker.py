"""A worker that this process has started, as its executor sees it (decision 69)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from typing import BinaryIO

from fsqueue import forks
from fsqueue.filesystem.side_threads import SideThread
from fsqueue.interruptions import suppress
from fsqueue.worker.spawning import python
from fsqueue.worker.supervision import how_ended

READ_BYTES = 1 << 16


class FunctionList:
    """A list of functions that own workers may call: a file in memory, which ends with the processes that have it."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self._size = 0

    @property
    def names(self) -> int:
        """Return its descriptor."""
        if self._file is None:
            self._file = os.fdopen(os.memfd_create("functions"), "wb", buffering=0)
        return self._file.fileno()

    def add(self, line: bytes) -> None:
        """Add a line. Workers see it before any task that is inserted after this call."""
        os.pwrite(self.names, line, self._size)
        self._size += len(line)

    def close(self) -> None:
        """Close the file of the list."""
        if self._file is not None:
            self._file.close()


class StartedWorker:
    """A worker in a process of its own, which executes the functions of a list (`listed_functions`).

    It ends when this process closes its end of a pipe, or is gone. OSError if it cannot be started.

    path: the queue's directory.
    processes: how many calls it executes at a time.
    names: the descriptor of the list.
    told: called in a thread, with ids of tasks that the worker is done with, soon after or just before the queue knows.
    """

    def __init__(self, path: str, processes: int, names: int, told: Callable[[list[str]], object]) -> None:
        with ExitStack() as on_error, ExitStack() as given:
            theirs, self._ours = os.pipe()
            on_error.callback(self._close)
            given.callback(os.close, theirs)
            self._told_in, told_out = os.pipe()
            on_error.callback(self._close_told)
            given.callback(os.close, told_out)
            self._process = subprocess.Popen(
                [*python("own_worker"), path, str(processes), str(names), str(told_out)],
                stdin=theirs,
                pass_fds=(names, told_out),
                start_new_session=True,  # Ctrl-C is for this process, which ends the worker itself
            )
            on_error.callback(self._end)
            SideThread("fsqueue-executor-told", lambda: self._listen(told)).start()
            on_error.pop_all()
        forks.register(self, StartedWorker._in_child)

    @property
    def pid(self) -> int:
        """Return the number of its process."""
        return self._process.pid

    def ended(self) -> str:
        """Return how its process has ended, in words; "" if it is there."""
        status = self._process.poll()
        return "" if status is None else how_ended(status)

    def finish(self) -> None:
        """Tell it to begin no more tasks, and to end when those at work have ended."""
        self._close()

    def terminate(self) -> None:
        """Tell it to put back what it does not finish soon, and to end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it at once. What it has started ends with it, and its tasks come back."""
        self._process.kill()

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the worker's end. Return whether it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
            return True
        return False

    def _listen(self, told: Callable[[list[str]], object]) -> None:
        """Hand on the ids that it tells, until its process has ended."""
        rest = b""
        while data := os.read(self._told_in, READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            if lines:
                told([line.decode() for line in lines])
        self._close_told()

    def _end(self) -> None:
        """End a worker to which no thread listens."""
        self._process.kill()
        self._process.wait()

    def _close(self) -> None:
        """Close the end of the pipe by which the worker knows that it may go on."""
        fd, self._ours = self._ours, -1
        if fd >= 0:
            os.close(fd)

    def _close_told(self) -> None:
        """Close the end of the pipe by which the worker tells what it is done with."""
        fd, self._told_in = self._told_in, -1
        if fd >= 0:
            os.close(fd)

    def _in_child(self) -> None:
        """In a forked child, let go of the worker: it ends with the parent, and not later."""
        self._close()
        self._close_told()
        self._process.returncode = 0  # it is no child of this process
