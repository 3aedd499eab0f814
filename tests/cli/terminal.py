"""A terminal: a command at work on a pty, and what its screen shows."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.waiting import until

_TOKEN = re.compile(r"\x1b\[([\d;]*)([A-Za-z])|([\r\n])|([^\x00-\x1f\x7f-\x9f])|([\x00-\x1f\x7f-\x9f])")

LAST = b"\x00last\x00"
"""Written after the end of a command."""


class Terminal:
    """Starts `python PROGRAM ARGUMENTS`, by default the command line.

    `read` follows what it writes, as a plain terminal would.
    """

    def __init__(
        self,
        *arguments: Any,
        columns: int = 80,
        rows: int = 24,
        encoding: str = "utf-8",
        env: dict[str, str] | None = None,
        stdout: Path | None = None,
        program: Sequence[str] = ("-m", "fsqueue_cli"),
    ) -> None:
        self.columns, self.rows, self.encoding = columns, rows, encoding
        self.main, side = pty.openpty()
        self.resize(columns, rows)
        self.before = termios.tcgetattr(side)
        self.side = os.dup(side)
        self.raw = b""
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self.clear()
        self.process = subprocess.Popen(
            [sys.executable, *program, *map(str, arguments)],
            stdin=side,
            stdout=side if stdout is None else self._opened(stdout),
            stderr=side,
            env=os.environ | {"TERM": "xterm"} | (env or {}),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(side)

    @staticmethod
    def _opened(path: Path) -> int:
        return os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC)

    def clear(self) -> None:
        self.cells = [[" "] * self.columns for _ in range(self.rows)]
        self.row = self.column = self.scrolled = 0
        self.broken = 0
        """How often a line was longer than the screen is wide."""
        self.coloured = False
        self.strange: list[str] = []
        """What a plain status has no business to send."""

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.columns, self.rows = columns, rows

    @property
    def text(self) -> str:
        return "\n".join("".join(row).rstrip() for row in self.cells).rstrip()

    def read(self, wanted: Callable[[str], bool]) -> str:
        """Follow until the screen is as wanted, or the command has ended; AssertionError with the screen if neither."""

        def is_over() -> bool:
            has_ended = self.process.poll() is not None
            if wanted(self.text):
                return True
            return not self._take() if self._has_more() else has_ended

        self._until(is_over, "the screen to be as wanted")
        return self.text

    def end(self, number: int | None = None) -> tuple[int, str]:
        """Wait for the end, after a signal if one is given: exit code and last screen."""
        if number is not None:
            self.process.send_signal(number)

        def has_ended() -> bool:
            ended = self.process.poll() is not None
            while self._has_more() and self._take():
                pass
            return ended

        self._until(has_ended, "the command to end")
        os.write(self.side, LAST)  # what comes before it was written by the command
        rest = b""

        def is_whole() -> bool:
            nonlocal rest
            rest += os.read(self.main, 1 << 16) if self._has_more() else b""
            return rest.endswith(LAST)

        self._until(is_whole, "the rest of its output")
        self._show(rest.removesuffix(LAST))
        return self.process.returncode, self.text

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            until(condition, what)
        except AssertionError as error:
            raise AssertionError(f"{error}; the screen:\n{self.text}") from None

    def _has_more(self) -> bool:
        return bool(select.select([self.main], [], [], 0)[0])

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.main)
        os.close(self.side)

    def settings_are_as_before(self) -> bool:
        return termios.tcgetattr(self.side) == self.before

    def _take(self) -> bool:
        try:
            data = os.read(self.main, 1 << 16)
        except OSError:
            return False
        self._show(data)
        return True

    def _show(self, data: bytes) -> None:
        self.raw += data
        for match in _TOKEN.finditer(self._decoder.decode(data)):
            number, letter, motion, character, control = match.groups()
            if character is not None:
                self._put(character)
            elif motion == "\r":
                self.column = 0
            elif motion == "\n":
                self._down()
            elif letter == "A":
                self.row = max(0, self.row - int(number or 1))
            elif letter == "K" and not number:
                self.cells[self.row][self.column :] = [" "] * (self.columns - self.column)
            elif letter == "K" and number == "2":
                self.cells[self.row] = [" "] * self.columns
            elif letter == "J" and number == "2":
                self.cells = [[" "] * self.columns for _ in range(self.rows)]
            elif letter == "J" and not number:
                self.cells[self.row][self.column :] = [" "] * (self.columns - self.column)
                for row in range(self.row + 1, self.rows):
                    self.cells[row] = [" "] * self.columns
            elif letter == "H" and not number:
                self.row = self.column = 0
            elif letter == "m":
                self.coloured = self.coloured or number not in ("", "0")
            else:
                self.strange.append(control or match[0])

    def _put(self, character: str) -> None:
        width = 2 if unicodedata.east_asian_width(character) in "FW" else 1
        if self.column + width > self.columns:
            self.broken += 1
            self.column = 0
            self._down()
        self.cells[self.row][self.column] = character
        if width == 2:
            self.cells[self.row][self.column + 1] = ""
        self.column += width

    def _down(self) -> None:
        if self.row == self.rows - 1:
            self.cells = [*self.cells[1:], [" "] * self.columns]
            self.scrolled += 1
        else:
            self.row += 1
