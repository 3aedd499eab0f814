"""Read tasks from JSON Lines, as `export`, `ls --json`, `dead list --each --json` and `lease` print them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import IO, Any

import fsqueue
from fsqueue.format import priority, user_json

from .insert_input import BadLine
from .printing import Bar

BESIDE_BYTES_MAX = 16 << 20
"""How much longer a line may be than what a task of the queue may take: an error of the last attempt is in it, too."""
SHOW_EVERY = 1_000
ENDED = ("completed", "cancelled")
WITHOUT_LAST = """sed 's/,"last":[a-z]*}$/}/' FILE | fsqueue import Q -"""
"""What to type to import lines of which `import` cannot tell whether they are a whole export. jq would round large
numbers in payloads."""


def task_of(line: bytes) -> tuple[fsqueue.Task, bool | None]:
    """Return the task that a line describes (payload, key, priority, due time), and the line's `last`. BadLine.

    `last` is None if the line has none. All else in the line is passed over: how often it was attempted, and what
    became of these attempts.
    """
    try:
        found = user_json.decode(line)
    except user_json.NotExact as error:
        raise BadLine(str(error)) from None
    if not isinstance(found, dict) or ("payload" in found) == ("b64" in found):
        raise BadLine(
            "is no task as 'fsqueue export' prints it: an object with either a payload or b64. For lines that are "
            "payloads themselves: fsqueue insert"
        )
    state, key, urgency, due = (found.get(name) for name in ("state", "key", "priority", "available_at"))
    if state in ENDED:
        raise BadLine(f"is a task that was {state}. To do such tasks again: fsqueue retry")
    if found.get("payload_lost") is True:
        raise BadLine("is a dead letter whose payload is lost")
    if key is not None and not isinstance(key, str):
        raise BadLine("has a key that is no text")
    if urgency is not None and (why := priority.fault(urgency)) is not None:
        raise BadLine(f"has a priority that is none: {why}")
    if due is not None and (isinstance(due, bool) or not isinstance(due, int | float) or not 0 <= due <= 1e10):
        raise BadLine("has an available_at that is no time in Unix seconds")
    last = found.get("last")
    if last is not None and not isinstance(last, bool):
        raise BadLine("has a last that is neither true nor false")
    later = float(due) if due is not None and due > time.time() else None
    return fsqueue.Task(_payload(found), key=key, priority=urgency, available_at=later), last


def _payload(found: dict[str, Any]) -> Any:
    if "payload" in found:
        return found["payload"]
    try:
        return base64.b64decode(found["b64"], validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise BadLine("has a b64 that is no base64") from None


class TaskLines:
    """The lines of a file, or of standard input. They are checked first, and may then be read again and again.

    `tasks`, `keyed`: how many there are, and how many of them have keys. `digest`: what tells this input from others;
    blank lines and blanks around lines, such as the CR of another system, do not count. All three are known once
    `check` has returned.
    """

    def __init__(self, name: str, bytes_max: int) -> None:
        """`name`: a path, or '-'. `bytes_max`: how long a task of the queue may be. FsqueueError."""
        self.name = "standard input" if name == "-" else name
        self._line_max = 2 * bytes_max + BESIDE_BYTES_MAX
        self._file = self._spooled() if name == "-" else self._opened(name)
        self.tasks = self.keyed = 0
        self.digest = ""
        self.line = 0
        """The number of the line that was read last."""
        self._end = 0
        self._seen: tuple[int, int] = (0, 0)

    def _opened(self, name: str) -> IO[bytes]:
        try:
            file = open(name, "rb")  # noqa: SIM115 - closed with this object
            if not file.seekable():
                with file:
                    return self._copied(file)
            return file
        except OSError as error:
            raise self._unreadable(error) from error

    def _spooled(self) -> IO[bytes]:
        return self._copied(sys.stdin.buffer)

    def _copied(self, source: IO[bytes]) -> IO[bytes]:
        """Return a temporary file with all that a pipe brings: it is read more than once."""
        file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
        try:
            shutil.copyfileobj(source, file)
            file.flush()
        except OSError as error:
            file.close()
            raise fsqueue.StorageFull(
                f"The input could not be kept in {tempfile.gettempdir()}: {error.strerror}. Nothing was inserted. "
                "Choose another directory: TMPDIR=DIR."
            ) from error
        return file

    def _unreadable(self, error: OSError) -> fsqueue.FsqueueError:
        return fsqueue.FsqueueError(f"{self.name} cannot be read: {error.strerror}. Nothing was inserted.")

    def check(self) -> None:
        """Read the whole input, and count its tasks.

        InvalidTask if a line is no task, if the output of an export was cut, or if lines follow its end.
        """
        sha = hashlib.sha256()
        self._seen = self._stamp()
        last: bool | None = None
        with Bar("read", "B", is_scaled=True) as progress:
            for line in self._lines(None):
                self._end += len(line)
                if self.line % SHOW_EVERY == 0:
                    progress.show(self._end, self._seen[0])
                if stripped := line.strip():
                    if last:
                        raise fsqueue.InvalidTask(
                            f"Line {self.line:,} of {self.name} is behind the last line of 'fsqueue export': this is "
                            "more than one export, or the same one twice. Nothing was inserted. Import each by itself; "
                            f"or, if all lines are meant: {WITHOUT_LAST}"
                        )
                    sha.update(stripped + b"\n")
                    self.tasks += 1
                    task, last = self._parsed(line)
                    self.keyed += task.key is not None
        if last is False:
            raise fsqueue.InvalidTask(
                f"{self.name} ends before the last line of 'fsqueue export': that failed or was interrupted, or the "
                "line was taken out. Nothing was inserted. Export again; or, if these are the tasks that are meant: "
                f"{WITHOUT_LAST}"
            )
        self.digest = sha.hexdigest()[:32]

    def read(self, keyed: bool) -> Iterator[fsqueue.Task]:
        """Yield the tasks that have keys, or those that have none.

        FsqueueError at the end if a program wrote to the file since it was checked.
        """
        for line in self._lines(self._end):
            if line.strip() and ((task := self._parsed(line)[0]).key is not None) == keyed:
                yield task
        if self._stamp() != self._seen:
            raise fsqueue.FsqueueError(
                f"{self.name} was written to while it was read. Wait until it is whole, and repeat the command."
            )

    def _parsed(self, line: bytes) -> tuple[fsqueue.Task, bool | None]:
        try:
            return task_of(line)
        except BadLine as error:
            raise fsqueue.InvalidTask(f"Line {self.line:,} of {self.name} {error}. Nothing was inserted.") from None

    def _lines(self, end: int | None) -> Iterator[bytes]:
        self._file.seek(0)
        self.line = at = 0
        while end is None or at < end:
            try:
                line = self._file.readline(self._line_max)
            except OSError as error:
                raise self._unreadable(error) from error
            if not line:
                return
            self.line += 1
            at += len(line)
            if len(line) == self._line_max and not line.endswith(b"\n"):
                raise fsqueue.InvalidTask(
                    f"Line {self.line:,} of {self.name} is longer than a task of this queue may be. Nothing was "
                    "inserted."
                )
            yield line

    def _stamp(self) -> tuple[int, int]:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns

    def __enter__(self) -> TaskLines:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
