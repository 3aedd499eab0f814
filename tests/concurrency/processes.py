"""Forked children that report back, for tests with real processes.

They come from a parent that has everything imported, so that a hundred of them cost a second, and so
that every test of this kind is a test of forking, too. A child dies with its parent.
"""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import json
import os
import random
import select
import signal
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE_S, until

_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_TELL = signal.SIGUSR2
"""What a child answers with its Python stacks."""
_TELLING_S = 5.0
"""How long a child that runs may take for that; this is for the message of a failure only."""


class Child:
    """A forked process that runs `action(*args)`, which returns something that JSON can hold."""

    def __init__(self, action: Callable[..., Any], *args: Any) -> None:
        self._report = os.memfd_create("report")
        self._stacks = os.memfd_create("stacks")
        self._said = ""
        self.status: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            self._live(parent, action, args)
        _started.add(self)

    def _live(self, parent: int, action: Callable[..., Any], args: tuple[Any, ...]) -> None:
        status = 1
        try:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            _started.clear()  # they are its siblings
            faulthandler.register(_TELL, self._stacks)
            if os.getppid() == parent:
                os.write(self._report, json.dumps(action(*args)).encode())
                status = 0
        except BaseException:
            os.ftruncate(self._report, 0)
            os.pwrite(self._report, traceback.format_exc().encode("utf-8", "replace"), 0)
        finally:
            os._exit(status)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """The exit status (negative: the signal that ended it); TimeoutError if it lives on."""
        if self.status is None:
            handle = os.pidfd_open(self.pid)
            try:
                ended = select.poll()
                ended.register(handle, select.POLLIN)
                if not ended.poll(timeout_s * 1000):
                    raise TimeoutError(f"process {self.pid} is still running after {timeout_s:g} s\n{what_they_do()}")
            finally:
                os.close(handle)
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is None

    def wait_stopped(self, timeout_s: float = PATIENCE_S) -> None:
        """Return when it has stopped itself (SIGSTOP)."""

        def changed() -> Any:
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT)

        try:
            found = until(changed, f"process {self.pid}, which is to stop itself", timeout_s)
        except AssertionError as error:
            raise TimeoutError(f"{error}\n{what_they_do()}") from error
        assert found.si_code == os.CLD_STOPPED, f"process {self.pid} ended instead of stopping: {self.report()}"

    def stacks(self) -> str:
        """Where it is just now, in Python and in the kernel. (Who waits in the kernel may not answer for Python.)"""
        if not self.running:
            return f"process {self.pid} has ended with {self.status}"
        before = os.fstat(self._stacks).st_size
        self.signal(_TELL)

        def told_all() -> str:
            told = os.pread(self._stacks, 1 << 16, before).decode("utf-8", "replace")
            return told if "in <module>\n" in told or "\n  ...\n" in told else ""

        told = ""
        if in_the_kernel(self.pid)[:1] in ("R", "S"):  # one that is stopped, or waits for a server, does not answer
            with suppress(AssertionError):
                told = until(told_all, "its stacks", _TELLING_S)
        return f"process {self.pid} ({in_the_kernel(self.pid)}):\n{told or 'no answer'}"

    def report(self) -> str:
        """What it has written: its result, or its traceback."""
        return os.pread(self._report, 1 << 24, 0).decode() if self._report >= 0 else self._said

    def result(self, timeout_s: float = PATIENCE_S) -> Any:
        """What `action` returned; AssertionError with the child's traceback if it failed."""
        status = self.wait(timeout_s)
        assert status == 0, f"process {self.pid} ended with {status}: {self.report()}"
        return json.loads(self.report())

    def signal(self, number: int) -> None:
        """Send a signal, if it has not been waited for."""
        if self.status is None:
            os.kill(self.pid, number)

    def kill(self) -> int:
        """SIGKILL, and its exit status."""
        self.signal(signal.SIGKILL)
        return self.wait()

    def close(self) -> None:
        """End it if need be, and forget it."""
        if self._report >= 0:
            self.kill()
            self._said = self.report()
            os.close(self._report)
            os.close(self._stacks)
            self._report = self._stacks = -1


_started: weakref.WeakSet[Child] = weakref.WeakSet()


def what_they_do() -> str:
    """What each living child of this process does, and which locks there are: for the message of a failure."""
    children = sorted((child for child in _started if child.running), key=lambda child: child.pid)
    locks = Path("/proc/locks").read_text()
    return "\n".join([*(child.stacks() for child in children), f"/proc/locks:\n{locks}"])


def in_the_kernel(pid: int) -> str:
    """State of a process, and where in the kernel it waits, as far as one may know."""
    told = []
    for part in ("stat", "wchan", "stack"):
        try:
            found = Path(f"/proc/{pid}/{part}").read_text()
        except OSError:
            continue
        told.append(found.rpartition(") ")[2][:1] if part == "stat" else " < ".join(found.split("\n")).strip(" <"))
    return ", ".join(told)


def at_a_random_moment(dice: random.Random, most_s: float) -> None:
    """Return after a random time: so a fault that comes next meets others anywhere. Nothing must depend on when."""
    time.sleep(most_s * dice.random())


class Count:
    """How often something has happened in all forked processes together. A SIGKILL takes nothing back."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("count")
        fcntl.fcntl(self._fd, fcntl.F_SETFL, os.O_APPEND)
        weakref.finalize(self, os.close, self._fd)

    def add(self, times: int = 1) -> None:
        """It has happened."""
        os.write(self._fd, b"." * times)

    def __int__(self) -> int:
        return os.fstat(self._fd).st_size


@contextmanager
def children(*actions: tuple[Any, ...]) -> Iterator[list[Child]]:
    """Children for `(action, *args)` each, none of which outlives the block."""
    started: list[Child] = []
    try:
        for action, *args in actions:
            started.append(Child(action, *args))
        yield started
    finally:
        for child in started:
            child.close()


def wait_all_stopped(stopped: dict[str, Child]) -> None:
    """Return when all of them have stopped themselves. An error says which has not."""
    for what, child in stopped.items():
        try:
            child.wait_stopped()
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"{what}: {error}") from error


def together(*actions: tuple[Any, ...], timeout_s: float = PATIENCE_S) -> list[Any]:
    """Run `(action, *args)` each in a process of its own, all at once; their results in order."""
    with children(*actions) as started:
        return [child.result(timeout_s) for child in started]
