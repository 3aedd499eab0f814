"""A command at work on a task: what it is given, how it is watched, ended and described.

Each has two threads, since both may block: one reads its standard error, one waits for its exit.
"""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from fsqueue.task import LeasedTask

TAIL_BYTES = 4096
"""How much of a command's standard error is kept as the reason of its failure."""
ENVIRONMENT_BYTES_MAX = 100_000
"""A larger payload stays out of the environment: Linux takes 128 KiB a variable."""
DRAIN_S = 0.5
"""How long to read on after the exit: a daemon left behind may hold standard error open for ever."""

PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
"""`{}`: the payload; `{field}`: a field of it."""


class RunningCommand:
    """A running command. Only the loop signals and reaps it, so that its process number never means another process."""

    def __init__(self, task: LeasedTask, argv: Sequence[str], report: Callable[[RunningCommand], object]) -> None:
        self.task = task
        self.doomed = ""  # why it was told to end
        self.settled: str | None = None  # what it did with its task itself
        self.status: int | None = None  # as of Popen.returncode; None: lost
        self.timeout_at = self.kill_at = math.inf
        self._report = report
        self._tail = b""
        filled, environment, stdin = invocation(task, argv)
        with os.fdopen(os.memfd_create("payload"), "w+b") as file:  # unlike a pipe it is never full and never breaks
            file.write(stdin)
            file.seek(0)
            # A session of its own: Ctrl-C at the terminal reaches the runner only, and a kill all of the command.
            self._process = subprocess.Popen(
                filled, stdin=file, stderr=subprocess.PIPE, env=environment, start_new_session=True, bufsize=0
            )
        self._pump = threading.Thread(target=self._forward, daemon=True)
        self._pump.start()
        threading.Thread(target=self._watch, daemon=True).start()

    def has_exited(self) -> bool:
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def kill(self, number: int) -> None:
        """Send a signal to the command and to all that it has started."""
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # they have ended, or run as another user

    def reap(self) -> None:
        self._process.wait()

    def reason(self, headline: str) -> str:
        """Why it failed: the headline with the last line of standard error, then its tail."""
        tail = self._tail.decode(errors="replace").strip()
        return f"{headline}: {tail.rpartition(chr(10))[2].strip()[:200]}\n{tail}" if tail else headline

    def _forward(self) -> None:
        """Pass standard error on as it comes, and remember its tail."""
        assert self._process.stderr is not None
        with self._process.stderr as pipe:
            while chunk := pipe.read(65536):
                self._tail = (self._tail + chunk)[-TAIL_BYTES:]
                try:
                    while chunk and sys.__stderr__ is not None:  # None: closed when this process began
                        with os.fdopen(2, "wb", buffering=0, closefd=False) as ours:
                            chunk = chunk[ours.write(chunk) :]
                except OSError:
                    pass  # our own standard error is gone: the command must not suffer for it

    def _watch(self) -> None:
        """Wait for the exit, without reaping, and report it."""
        try:
            info = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            info = None
        if info is not None:
            self.status = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
        self._pump.join(DRAIN_S)
        self._report(self)


def invocation(task: LeasedTask, argv: Sequence[str]) -> tuple[list[str], dict[str, str], bytes]:
    """The command line, the environment and the standard input for `task`."""
    payload = task.payload
    text = text_of(payload)
    fields = payload if isinstance(payload, dict) else {}

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        return text if not name else text_of(fields[name]) if name in fields else match[0]

    environment = os.environ | {
        "FSQUEUE_TASK_ID": task.id,
        "FSQUEUE_ATTEMPT": str(task.attempt),
        "FSQUEUE_QUEUE": str(task.queue.path.absolute()),
        "FSQUEUE_TOKEN": task.token,
    }
    environment.pop("FSQUEUE_PAYLOAD", None)  # of a runner around this one
    if len(os.fsencode(text)) <= ENVIRONMENT_BYTES_MAX and "\0" not in text:
        environment["FSQUEUE_PAYLOAD"] = text
    stdin = payload if isinstance(payload, bytes) else orjson.dumps(payload, option=orjson.OPT_APPEND_NEWLINE)
    return [PLACEHOLDER.sub(fill, argument) for argument in argv], environment, stdin


def text_of(value: Any) -> str:
    """A payload, or a field of one, as it stands in an argument."""
    if isinstance(value, str):
        return value
    return os.fsdecode(value if isinstance(value, bytes) else orjson.dumps(value))


def describe(status: int | None) -> str:
    if status is None:
        return "its exit status was lost: something else in this process waited for it"
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
