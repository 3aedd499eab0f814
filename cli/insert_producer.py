"""Run the command behind `insert --from`, and tell how it ended (docs/design.md, section 4.3)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from typing import IO

import click

import fsqueue

GRACE_S = 5.0
"""How long the command may take to end after a signal. Then it is killed."""
LOOK_S = 0.02
"""Between two looks whether it has."""
SIGNAL_BASE = 128
"""Added to the number of a signal, as shells do, it is the exit code of a command that the signal has killed."""


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


def checked(command: list[str]) -> list[str]:
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
