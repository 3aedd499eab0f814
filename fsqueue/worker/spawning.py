"""A process of its own session, as the loop holds it: started by a supervisor, ended with all that it has started.

`ProcessExecutor` is what those have in common that start such a process for each slot.
"""

from __future__ import annotations

import math
import os
import re
import resource
import sys
from collections.abc import Callable, Mapping, Sequence

from fsqueue.clock import Clock, Entropy
from fsqueue.filesystem import inheritable_descriptors, program_fault
from fsqueue.filesystem.outputs import KeptOutput
from fsqueue.format.models import Used
from fsqueue.leased_task import LeasedTask
from fsqueue.worker import shortages, supervisor
from fsqueue.worker.causes import Memory
from fsqueue.worker.jobs import How, JobExecutor, kept_name, not_kept
from fsqueue.worker.limits import KILLED_S
from fsqueue.worker.loop import Loop
from fsqueue.worker.output import Stream
from fsqueue.worker.supervision import Supervisors, how_ended

SPARE_FILES = 32
"""Number of files of kept output that may be open besides one for each slot: for processes that commands leave
behind."""
NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""With these, shells and env(1) say that they could not execute a program."""
_FOUND_WANTING = re.compile(
    r"(?P<program>[^\s:]*/[^\s:]+): (?:not found|bad interpreter|cannot execute|exec format error|permission denied"
    r"|no such file)",
    re.IGNORECASE,
)
"""Matches the program that a shell could not execute."""
_FLAGS = {
    "isolated": "-I", "ignore_environment": "-E", "no_user_site": "-s", "safe_path": "-P", "no_site": "-S",
    "dont_write_bytecode": "-B",
}  # fmt: skip
"""The interpreter's options that say what it looks at, by their names in `sys.flags`."""


def python(module: str) -> list[str]:
    """Return the command that calls `main` of a module of fsqueue.worker. Arguments may follow.

    It runs in an interpreter like this one, and finds the same modules: what this one was told not to look at (-I),
    that one does not look at, either.
    """
    flags = [option for name, option in _FLAGS.items() if getattr(sys.flags, name)]
    if sys.flags.utf8_mode:  # its file names are those of this process
        flags += ["-X", "utf8"]
    path = [entry for entry in map(_absolute, sys.path) if entry is not None]
    program = f"import sys; sys.path[:] = {path!a}; from fsqueue.worker import {module}; {module}.main()"
    return [sys.executable, *flags, "-c", program]


def _absolute(entry: object) -> str | None:
    """Return an entry of the search path as seen from any directory; None if nothing is found by it."""
    try:
        return os.path.abspath(entry) if isinstance(entry, str) else None
    except OSError:  # it is relative, and the working directory was removed
        return None


class Process:
    """A running process, the leader of a session and a process group, under a supervisor of its own.

    `files` are its descriptors, from standard input on; it gets no others. `ended` is called in the loop when it has
    exited, before it is reaped. By then all that it had started has ended, too, unless it has exited with 0 and no
    signal was sent to it. OSError, ValueError or InvalidArgument if it cannot be started.
    """

    def __init__(
        self,
        supervisors: Supervisors,
        argv: Sequence[str | bytes],
        environment: Mapping[bytes, bytes],
        files: Sequence[int],
        ended: Callable[[], object],
    ) -> None:
        self._supervisors, self._ended, self._clock = supervisors, ended, Clock()
        self.status: int | None = None
        """The exit status; negative: the signal that ended it. None: not known (yet)."""
        self.used: Used | None = None
        """What it used, with all that it has waited for; None: not known (yet)."""
        self.was_told = False
        """Whether a signal was sent to it before it had exited. Set when it has exited."""
        self._has_exited = self._has_left = self._is_over = self._gone = False
        self.rest = ""
        """If its supervisor was killed: what became of what that had started."""
        self._handle, self.pid = supervisors.begin(self, argv, environment, files)

    @property
    def supervisor(self) -> int:
        """Return the number of its parent."""
        return self._handle.pid

    def exited(self, flags: int, status: int, usage: resource.struct_rusage) -> None:
        """Take in how it has ended."""
        self.status = status
        self.used = Used(round((usage.ru_utime + usage.ru_stime) * 1000), usage.ru_maxrss)  # Linux: in KiB
        self.was_told, self._has_left = bool(flags & supervisor.TOLD), bool(flags & supervisor.LEFT)
        self._has_exited = True
        self._ended()

    def held(self, is_refused: bool) -> None:
        """Tell the user that SIGKILL has not ended it."""
        why = "it belongs to another user" if is_refused else "the kernel holds it, maybe for a file server"
        self._supervisors.say(
            f"Process {self.pid}, which executes a task, cannot be ended: {why}. The worker waits for its end. Two "
            "signals (Ctrl-C, SIGTERM) end the worker, and leave that process at work."
        )

    def lost(self, rest: str) -> None:
        """Take in that its supervisor was killed; `rest` says what became of what it had started."""
        self.rest = rest
        self._has_exited = True
        self._ended()

    def kill(self, number: int) -> None:
        """Send a signal to the process and its process group. SIGKILL goes to all that the process has started.

        If it has succeeded, what it has left is ended, by SIGKILL, whatever the signal. After the reaping nothing
        happens.
        """
        if self._gone or self._is_over:
            return
        if not self._has_exited:
            self._supervisors.ask(self._handle, supervisor.SIGNAL, number)
        elif self._has_left:
            self._is_over = True
            self._supervisors.ask(self._handle, supervisor.END)

    def reap(self, deadline: float = math.inf) -> None:
        """Wait for the exit, and let it go.

        At `deadline`, of the monotonic clock, it is left to its supervisor: what the kernel holds is not ended even by
        SIGKILL.
        """
        if self._gone:
            return
        self._ended = lambda: None
        while not self._has_exited and self._clock.monotonic() < deadline:
            self._supervisors.wait(self._handle, min(1.0, deadline - self._clock.monotonic()))
        self._gone = True
        if not self._has_exited:
            self._supervisors.say(
                f"Process {self.pid or 'of a task'} could not be ended, and may go on. Its task is put back, or comes "
                "back when its lease ends; then it may be executed a second time beside it."
            )
        if self._is_over:
            until = min(deadline, self._clock.monotonic() + KILLED_S)
            while self._supervisors.is_open(self._handle) and self._clock.monotonic() < until:
                self._supervisors.wait(self._handle, until - self._clock.monotonic())
        elif self._has_left and self.status == 0 and not self.was_told:
            self._supervisors.retire(self._handle)
            return
        elif self._has_exited and not self._has_left:
            self._supervisors.give_back(self._handle)
            return
        self._supervisors.drop(self._handle)


def describe(process: Process) -> str:
    """Return in words how a process has ended."""
    status = process.status
    if status is None:
        return f"its exit status was lost: the process that supervises it was killed, {process.rest}"
    return how_ended(status)


def not_executed(program: str, printed: str) -> str:
    """Return why a program could not execute a script, or its interpreter: " (…)", or "" if that is not the case.

    `program`: the command's own, which was executed; `printed`: the end of its standard error.
    """
    fault = program_fault(program, has_begun=True)
    if not fault and (found := _FOUND_WANTING.search(printed)) is not None:
        program = found["program"]
        fault = program_fault(program)
    return f" ({os.path.basename(program)}: {fault})" if fault else ""


class ProcessExecutor(JobExecutor):
    """What `Commands` and `Children` have in common: they start a process for each slot."""

    def __init__(self, how: How, loop: Loop) -> None:
        self.how, self.loop, self.most = how, loop, how.slots
        self.mailbox, self.output_writer = loop.mailbox, loop.output_writer
        self.keep_output = None if how.keep_output is None else KeptOutput(how.keep_output, how.slots + SPARE_FILES)
        self.now, self.entropy = Clock().monotonic, Entropy()
        self.shortage = shortages.Shortage(self.now, self.entropy.random)
        self._killed = shortages.KilledForMemory(self.now)
        self.supervisors = Supervisors(self.mailbox, self.output_writer.say, loop.is_hurried)

    def start(self) -> None:
        """Make the directory of kept output, or try whether it can be used. InvalidArgument, StorageFull if not."""
        self.supervisors.foreign = inheritable_descriptors()
        if self.keep_output is not None:
            try:
                self.keep_output.open()
            except OSError as error:
                what = f"No output can be kept in {self.keep_output.path}"
                raise not_kept(error, what, "Name a directory that you may write in.") from error

    def described(self, process: Process, said: str) -> tuple[str, Memory]:
        """Return how a process has ended, in words, and whether for want of memory. `said`: what it has printed at
        last.
        """
        memory, ended, status = Memory.ENOUGH, "", process.status
        if status is not None:
            memory, ended = self._killed.judge(status, said, process.was_told)
        return f"{memory.reason(ended or describe(process))}{shortages.memory(said, status)}", memory

    def begin_attempt(self, streams: Sequence[Stream], task: LeasedTask) -> None:
        """Let what comes through the streams from now on belong to an attempt at a task."""
        kept = None if self.keep_output is None else self.keep_output.file(kept_name(task))
        for stream in streams:
            stream.keep_in(kept)
            stream.fresh(task)

    @property
    def due_at(self) -> float:
        return min(self.shortage.until, self.supervisors.due_at)

    def close(self) -> None:
        if self.keep_output is not None:
            self.output_writer.do(self.keep_output.close)
