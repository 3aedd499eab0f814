"""Read a FileQueue of python-task-queue: which tasks are in it, and which are leased. Nothing in it is changed.

A FileQueue is a directory with `queue/`, in which each task is a file TIME--UUID.json, and `movement/`, in which a file
UUID lists all names that the task's file has had. TIME is when the task is available, in Unix seconds; 0 means at once.
A lease sets it to the lease's end. (The design is on the project's wiki, "FileQueue Design".)
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from contextlib import suppress
from typing import Any, NamedTuple

import orjson

import fsqueue
from fsqueue.compat import stored
from fsqueue.format import nesting, user_json

_NAME = re.compile(r"(\d{1,10}(?:\.\d+)?)--?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.json")
_LOGS = ("movement", "movements")
"""What the directory of the logs is called: by the program, and by its design."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Follow no link, and do not wait at a pipe: what is no task's file must not be read as one, nor stop the command."""
_SLACK = 4
"""How many times as large as a task that the queue takes a file may be: JSON may be written with spaces."""
TOO_LARGE = "is larger than a task of the queue may be"
_COUNTER_BYTES = 32
"""Maximum number of bytes of a counter."""


class Unusable(ValueError):
    """Say why a file is no task, as the end of a sentence."""


class FileQueueChanged(fsqueue.FsqueueError):
    """The FileQueue was changed while it was read: a program still works on it."""


class FileQueueTask(NamedTuple):
    """A task's file, as its name tells. `at`: when it is available, or until when it is leased, in Unix seconds."""

    name: str
    id: str
    at: float


class FileQueueListing(NamedTuple):
    """What is in a FileQueue: tasks by id, those of them whose leases are alive, and names of what is no task."""

    tasks: dict[str, FileQueueTask]
    leased: list[FileQueueTask]
    strays: list[str]
    duplicates: int
    now: float

    def digest(self) -> str:
        """Return what tells this set of tasks from others."""
        return hashlib.sha256("\n".join(sorted(self.tasks)).encode()).hexdigest()[:32]

    def is_delayed(self, entry: FileQueueTask) -> bool:
        """Return whether a task is to be available later only."""
        return entry.at > self.now


class FileQueue:
    """An open FileQueue. QueueNotFound if nothing is at the path, NotAQueue if something else is."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(os.path.expanduser(path.removeprefix("fq://")))
        self._fds: list[int] = []
        try:
            self._home = self._open(self.path, None)
            self._queue = self._open("queue", self._home)
        except OSError as error:
            self.close()
            raise self._no_filequeue(error) from error
        self._logs: int | None = None
        for name in _LOGS:
            with suppress(OSError):  # without logs, each time that is to come counts as a lease
                self._logs = self._open(name, self._home)
                break

    def _open(self, name: str, within: int | None) -> int:
        fd = os.open(name, _DIRECTORY | (0 if within is None else os.O_NOFOLLOW), dir_fd=within)
        self._fds.append(fd)
        return fd

    def _no_filequeue(self, error: OSError) -> fsqueue.FsqueueError:
        if not os.path.lexists(self.path):
            return fsqueue.QueueNotFound(f"Nothing is at {self.path}. Nothing was inserted.")
        if os.path.lexists(os.path.join(self.path, "queue.jsonl")):
            what = "It is a queue of fsqueue already, and needs no import."
        elif os.path.islink(os.path.join(self.path, "queue")):
            what = "'queue' in it is a symbolic link, which is not followed."
        else:
            what = f"A FileQueue has a directory 'queue' ({error.strerror})."
        return fsqueue.NotAQueue(f"{self.path} is no FileQueue of python-task-queue. {what} Nothing was inserted.")

    def identity(self) -> str:
        """Return a name for the directory: that of `queue/` on its file server, whatever path leads to it."""
        return f"filequeue-{os.fstat(self._queue).st_ino}"

    def look(self) -> FileQueueListing:
        """List the tasks. What is leased now, by this host's clock, as for every worker of a FileQueue."""
        now = time.time()
        tasks: dict[str, FileQueueTask] = {}
        strays, duplicates = [], 0
        for name in os.listdir(self._queue):
            found = _NAME.fullmatch(name)
            if found is None:
                strays.append(name)
                continue
            entry = FileQueueTask(name, found[2], float(found[1]))
            if entry.id in tasks:
                duplicates += 1
                entry = max(entry, tasks[entry.id], key=lambda one: one.at)
            tasks[entry.id] = entry
        leased = [one for one in tasks.values() if one.at > now and self._was_leased(one)]
        return FileQueueListing(tasks, sorted(leased, key=lambda one: one.at), sorted(strays), duplicates, now)

    def _was_leased(self, entry: FileQueueTask) -> bool:
        """Return whether a task has had another name before. One that was inserted with a delay has had none.

        True, too, if its log does not tell: a program that was killed may have left the log empty.
        """
        if self._logs is None:
            return True
        try:
            log = self._content(entry.id, len(os.fsencode(entry.name)) + 2, self._logs)
        except (OSError, Unusable):
            return True
        return log.decode(errors="replace").split() != [entry.name]

    def payload(self, entry: FileQueueTask, bytes_max: int) -> dict[str, Any]:
        """Return a task as a call that fsqueue queues. Unusable if it is none; FileQueueChanged if its file is gone."""
        try:
            text = self._content(entry.name, _SLACK * bytes_max, self._queue)
        except FileNotFoundError:
            raise self.changed() from None
        except OSError as error:
            is_link = stat.S_ISLNK(os.lstat(entry.name, dir_fd=self._queue).st_mode)
            raise Unusable("is a symbolic link" if is_link else f"cannot be read ({error.strerror})") from error
        if not text:
            raise Unusable("is empty")
        try:
            found = user_json.decode(text)
        except user_json.NotExact as error:
            raise Unusable(str(error)) from None
        if not isinstance(found, dict) or "payload" not in found:
            raise Unusable("has no payload")
        if nesting.is_deeper(text, nesting.NESTING_MAX + 1):  # the file has a level more around the arguments
            raise Unusable("nests too deep")
        try:
            payload = stored.from_filequeue(found["payload"]).as_payload()
        except stored.StoredTaskError as error:
            raise Unusable(str(error)) from None
        if len(orjson.dumps(payload)) > bytes_max:
            raise Unusable(TOO_LARGE)
        return payload

    def changed(self) -> FileQueueChanged:
        """Return the error that says that others still change the FileQueue."""
        return FileQueueChanged(
            f"{self.path} was changed while it was read: a program still works on it. Nothing was inserted. End its "
            "programs, and repeat the command."
        )

    def counters(self) -> dict[str, int | None]:
        """Return how many tasks it counts as inserted and completed; None where it does not tell. Hints."""
        inserted: int | None = None
        completed: int | None = None
        with suppress(OSError, Unusable, ValueError):
            inserted = int(self._content("insertions", _COUNTER_BYTES, self._home))
        with suppress(OSError):
            completed = os.stat("completions", dir_fd=self._home, follow_symlinks=False).st_size
        return {"inserted": inserted, "completed": completed}

    def _content(self, name: str, bytes_max: int, within: int) -> bytes:
        """Return what is in a regular file. Unusable if it is none, or has more bytes."""
        fd = os.open(name, _FILE, dir_fd=within)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise Unusable("is no regular file")
            content = b""
            while len(content) <= bytes_max and (piece := os.read(fd, bytes_max + 1 - len(content))):
                content += piece
        finally:
            os.close(fd)
        if len(content) > bytes_max:
            raise Unusable(TOO_LARGE)
        return content

    def close(self) -> None:
        """Close the directories."""
        while self._fds:
            os.close(self._fds.pop())

    def __enter__(self) -> FileQueue:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
