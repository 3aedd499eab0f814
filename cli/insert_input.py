"""Read what is to be inserted: bytes in chunks, cut into lines, with pauses and signals.

A `Producer` is the command behind `insert --from`, whose output is read (docs/design.md, section 4.3).
"""

from __future__ import annotations

import io
import math
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import IO, Any, TypeVar

import click

import fsqueue

from .printing import complain, quoted

CHUNK_BYTES = 1 << 16
HEAD_BYTES = 1 << 12
"""Number of bytes of a file's beginning that are kept, to tell what kind of file it is."""
PAUSE = object()
"""Stands between lines where the input has paused while tasks wait to be published."""
PUBLISH_S = 1.0
"""Maximum time that a task waits for further input before it is published."""
GRACE_S = 5.0
"""Maximum time for the command to end after a signal. Then it is killed."""
LOOK_S = 0.02
"""Between two looks whether it has."""
SIGNAL_BASE = 128
"""Added to the number of a signal, as shells do, it is the exit code of a command that the signal has killed."""

Answer = TypeVar("Answer")


class BadLine(Exception):
    """Say why a line is no task, as the end of a sentence.

    `may_skip`: whether --skip-bad may go on after it. `option`: what makes a task of it, if the whole input is inserted
    with it; "" if nothing does. `exit_code`: of a command that ends at the line.
    """

    exit_code = fsqueue.InvalidTask.exit_code

    def __init__(self, why: str, may_skip: bool = True, option: str = "") -> None:
        super().__init__(why)
        self.may_skip, self.option = may_skip, option


class TooLong(BadLine):
    """Say that a line is too long for a task."""

    exit_code = fsqueue.TaskTooLarge.exit_code

    def __init__(self, bytes_max: int) -> None:
        super().__init__(f"is longer than a task of this queue may be ({bytes_max:,} bytes)")


class Unreadable(BadLine):
    """Say why a file cannot be read any further. The lines before are tasks."""

    def __init__(self, why: str) -> None:
        super().__init__(f"cannot be read: {why}", may_skip=False)


class Changed(BadLine):
    """Say that a program wrote to a file while it was read: the lines before are tasks, and may be of two versions."""

    def __init__(self) -> None:
        super().__init__("was written to while it was read: wait until it is whole", may_skip=False)


class Input:
    """Read files in chunks. A signal or a pause ends the waiting for more."""

    def __init__(self, line_bytes_max: int) -> None:
        self.line_bytes_max = line_bytes_max
        self.signal: int | None = None
        """Give the signal that interrupted the reading. None if there was none."""
        self.at_end = False
        """Say whether the end of the file that is being read was reached."""
        self.is_unended = False
        """Say whether the line that was yielded last has no end: it is the last one of a file."""
        self.is_cut = False
        """Say whether a signal has ended the reading of the file before its end, or perhaps before it."""
        self.head = b""
        """Give the first bytes of the file that is being read, up to HEAD_BYTES."""
        self.on_bytes: Callable[[int, int], None] = lambda count, lines: None
        """Is called with the number of bytes of each chunk, and that of the lines, or rows, that end in it."""
        self._publish_at = math.inf
        self._reading = False

    def begin_call(self) -> None:
        """Begin another insert: no task waits to be published."""
        self._publish_at = math.inf

    def note_task(self) -> None:
        """Let a pause come within PUBLISH_S from now, if no task waited before."""
        self._publish_at = min(self._publish_at, time.monotonic() + PUBLISH_S)

    def lines(self, file: IO[bytes], end: bytes = b"\n") -> Iterator[Any]:
        """Yield lines without their ends, and PAUSE. A line too long for a task is cut, but stays too long."""
        parts: list[bytes] = []
        size = 0
        self.at_end = self.is_cut = self.is_unended = False
        self.head = b""
        while chunk := self._read(file):
            if chunk is PAUSE:
                yield PAUSE
                continue
            if len(self.head) < HEAD_BYTES:
                self.head += chunk[: HEAD_BYTES - len(self.head)]
            first, *others = chunk.split(end)
            self.on_bytes(len(chunk), len(others))
            if size <= self.line_bytes_max:
                parts.append(first)
                size += len(first)
            if others:
                yield b"".join(parts)
                yield from others[:-1]
                parts, size = [others[-1]], len(others[-1])
            if self.signal is not None:
                break
        if self.signal is not None:
            self.is_cut = bool(size) or not _is_over(file)
            return
        self.at_end = True
        if size:
            self.is_unended = True
            yield b"".join(parts)

    def _read(self, file: IO[bytes]) -> Any:
        """Return some bytes; b"" at the end or if interrupted; PAUSE if tasks wait and no byte has come yet."""
        self._reading = True
        try:
            if self.signal is not None:
                return b""
            if self._publish_at < math.inf and not _is_ready(file, self._publish_at):
                self._publish_at = math.inf
                return PAUSE
            return os.read(file.fileno(), CHUNK_BYTES)
        except io.UnsupportedOperation:  # not a file of the operating system
            return file.read(CHUNK_BYTES)
        except KeyboardInterrupt:
            return b""
        finally:
            self._reading = False

    def wait_for(self, answer: Callable[[], Answer]) -> Answer | None:
        """Return what a call returns that may take long. None if a signal came before or meanwhile."""
        self._reading = True
        try:
            return answer() if self.signal is None else None
        except KeyboardInterrupt:
            return None
        finally:
            self._reading = False

    @contextmanager
    def interruptible(self, also: tuple[signal.Signals, ...] = ()) -> Iterator[None]:
        """Let SIGINT and SIGTERM interrupt the reading of a line. During an insert they wait for its end, and no line
        that comes next is inserted.

        `also`: further signals that do, unless this process ignores them (as under nohup).
        """

        def note(number: int, frame: FrameType | None) -> None:
            again = self.signal is not None
            self.signal = number
            if self._reading or again:
                raise KeyboardInterrupt

        heard = [number for number in also if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, *heard)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def version_of(file: IO[bytes] | None) -> tuple[int, int] | None:
    """Return the size and the time of the last change of a regular file (bytes, ns); None of any other."""
    try:
        found = os.fstat(file.fileno()) if file is not None else None
    except OSError:  # also io.UnsupportedOperation: not a file of the operating system
        return None
    return None if found is None or not stat.S_ISREG(found.st_mode) else (found.st_size, found.st_mtime_ns)


def open_input(name: str) -> IO[bytes]:
    """Open a file by its name; `-` is standard input."""
    if name == "-":
        if sys.stdin.isatty():
            complain("reading from the terminal, a task a line; end with Ctrl-D")
        return sys.stdin.buffer
    return open(name, "rb", buffering=0)


def why_unreadable(name: str) -> str | None:
    """Return why a file cannot be read, in a few words; None if it seems that it can."""
    try:
        if stat.S_ISDIR(os.stat(name).st_mode):
            return f"it is a directory{_of_parts(name)}"
    except FileNotFoundError:
        return "no such file"
    except OSError as error:
        return error.strerror or str(error)
    return None if os.access(name, os.R_OK) else "permission denied"


def _is_ready(file: IO[bytes], until: float) -> bool:
    """Tell whether there is something to read (or the end). Wait for it `until` that time (monotonic seconds)."""
    waiting = select.poll()
    waiting.register(file.fileno(), select.POLLIN)
    return bool(waiting.poll(max(0.0, until - time.monotonic()) * 1000))


def _is_over(file: IO[bytes]) -> bool:
    """Tell whether nothing is left to read. Do not wait: False if that is not known, as of a pipe.

    The end of a pipe says nothing: Ctrl-C ends the program before the `|`, too.
    """
    try:
        fd = file.fileno()
        return stat.S_ISREG(os.fstat(fd).st_mode) and not os.read(fd, 1)
    except OSError:  # also io.UnsupportedOperation: not a file of the operating system
        return False


def _of_parts(name: str) -> str:
    """Return what to type for a directory in which a program has written the parts of a table; else ""."""
    for suffix in (".csv", ".json", ".jsonl"):
        try:
            if any(entry.endswith(suffix) and not entry.startswith((".", "_")) for entry in os.listdir(name)):
                return f" (its files: {quoted(name.rstrip('/'))}/*{suffix})"
        except OSError:
            break
    return ""


# -- a command ----------------------------------------------------------------------------------------------


class Producer:
    """A command whose standard output is inserted. It inherits the other standard streams.

    Where there is a terminal it stays in the foreground, so that it may ask for a password, and Ctrl-C reaches it.
    Elsewhere it gets a process group of its own, so that a signal reaches all that it has started.
    """

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.exit_code: int | None = None
        """Give the exit code, as a shell does. None if the command was ended, or has not ended."""
        self._has_group = not _has_terminal()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """Return the program's name."""
        return os.path.basename(self.command[0])

    def start(self) -> IO[bytes]:
        """Start the command and return its standard output. InvalidArgument if it cannot be started."""
        try:
            self._process = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, bufsize=0, process_group=0 if self._has_group else None
            )
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
            why = error.strerror if isinstance(error, OSError) else error
            raise fsqueue.InvalidArgument(
                f"The command '{self.command[0]}' could not be started: {why}. Nothing was inserted."
            ) from None
        assert self._process.stdout is not None
        return self._process.stdout

    def wait(self) -> int:
        """Wait for the end of the command and return its exit code. KeyboardInterrupt may end the waiting."""
        assert self._process is not None
        code = self._process.wait()
        self.exit_code = SIGNAL_BASE - code if code < 0 else code
        return self.exit_code

    def end(self, number: int = signal.SIGTERM) -> None:
        """End the command, if it still runs: with a signal, and SIGKILL after GRACE_S. Return when it has ended."""
        if self._process is None or self._process.returncode is not None:
            return
        assert self._process.stdout is not None
        self._process.stdout.close()  # what goes on to write ends by SIGPIPE
        try:
            self._send(number)
            until = time.monotonic() + GRACE_S
            while not self._has_ended() and time.monotonic() < until:
                time.sleep(LOOK_S)
        finally:  # also after a second signal to this process
            self._send(signal.SIGKILL)
            self._process.wait()

    def how_it_ended(self) -> str:
        """Say how a command ended that did not succeed."""
        code = self.exit_code or 0
        if code > SIGNAL_BASE and self._process is not None and self._process.returncode < 0:
            try:
                return f"{self.name} was killed by {signal.Signals(code - SIGNAL_BASE).name}"
            except ValueError:  # a real-time signal
                return f"{self.name} was killed by signal {code - SIGNAL_BASE}"
        return f"{self.name} ended with exit code {code}"

    def _has_ended(self) -> bool:
        """Tell whether the command has ended. Its id stays its own."""
        assert self._process is not None
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _send(self, number: int) -> None:
        """Send a signal to the command, and to its group if that is its own.

        Nothing has waited for the process before, so its id is still its own, and the group's, if it has ended, too.
        """
        assert self._process is not None
        if self._has_group:
            os.killpg(self._process.pid, number)
        else:
            os.kill(self._process.pid, number)


def checked_command(command: list[str]) -> list[str]:
    """Return a command, or refuse one that is not there, with a usage error, before anything else is done."""
    if not command:
        raise click.UsageError("--from needs a command after '--': fsqueue insert Q --commit NAME --from -- COMMAND.")
    if shutil.which(command[0]) is None:
        from fsqueue.worker import check_program

        check_program(command)
        raise click.UsageError(f"The command '{command[0]}' was not found, or is not executable. Nothing was inserted.")
    return command


def _has_terminal() -> bool:
    """Tell whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


SHOWN_CHARS = 40


def cut(text: str) -> str:
    """Return a text, or its beginning if it is long."""
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"


def shown(text: str) -> str:
    """Return a text in quotes, cut if it is long."""
    return repr(cut(text))


class PriorityKind:
    """Remember whether the priorities of an input are texts or numbers: the first one decides."""

    def __init__(self, place: str, cure: str) -> None:
        self._place, self._cure = place, cure
        """Where a priority stands, and what to do if texts are meant."""
        self._is_number: bool | None = None

    def other(self, value: str, is_number: bool) -> BadLine | None:
        """Return the error on a priority of another kind than the priorities before it; None if it is of their kind."""
        if self._is_number is None:
            self._is_number = is_number
        return None if is_number == self._is_number else self.refusal(value, is_number)

    def refusal(self, value: str, is_number: bool) -> BadLine:
        """Return the error on a priority that is a text among numbers, or a number among texts."""
        what, others = ("a number", "texts") if is_number else ("a text", "numbers")
        return BadLine(
            f"has {shown(value)} in the {self._place} (--priority): {what}, and those before it are {others}. Of "
            f"texts, '10' comes before '9': if you mean that, {self._cure}",
            may_skip=False,
        )
