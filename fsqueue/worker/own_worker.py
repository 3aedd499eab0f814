"""The process that an executor starts for its calls: a worker that ends with the executor's process (decision 69).

Its standard input is a pipe of which the executor has the other end. When that is closed, by the executor or by the
kernel at the death of its process, the worker begins no more tasks, and ends when those at work have ended.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import BinaryIO

from fsqueue.errors import FsqueueError
from fsqueue.filesystem.side_threads import SideThread
from fsqueue.interruptions import suppress
from fsqueue.queue import Queue
from fsqueue.worker.listed_functions import ListedFunctions
from fsqueue.worker.report import Event
from fsqueue.worker.worker import Worker

logger = logging.getLogger("fsqueue")

FAILURES_MAX = 10**12
"""Number of failures in a row that end the worker: none. The executor's futures tell of each."""
ENDED = {"completed", "failed", "given-up"}
"""Kinds of events that tell of a task that has ended, or is about to."""
EXPECTED = {"ending", "stopping", "lost", "recycled"}
"""Kinds of events of which the user of an executor need not hear."""


def main() -> None:
    """Work on a queue until the executor closes its end of standard input."""
    path, processes, names, told = sys.argv[1], *map(int, sys.argv[2:])
    for fd in (names, told):
        os.set_inheritable(fd, False)  # what functions start must not keep them
    with os.fdopen(told, "wb", buffering=0) as ended:
        try:
            worker = Worker(
                Queue(path),
                ListedFunctions(names),
                processes=processes,
                until="forever",
                stop_after_failures=FAILURES_MAX,
                tell=EndedTasks(ended),
                report_at_once=True,  # a caller may submit a call only when it has the result of one before
            )
            SideThread("fsqueue-executor", lambda: _finish_with(worker)).start()
            worker.run()
        except FsqueueError as error:
            logger.error("%s", error)
            sys.exit(1)


class EndedTasks:
    """Tells the executor which tasks have ended, and logs what its user should hear. `ended`: the pipe to it."""

    def __init__(self, ended: BinaryIO) -> None:
        self._ended = ended
        self._ids: list[str] = []

    def __call__(self, event: Event) -> None:
        """Take in an event."""
        if event.kind in ENDED:
            self._ids.append(event.fields["task"])
        elif event.text and event.kind not in EXPECTED:
            logger.warning("%s", event.text)

    def flush(self) -> None:
        """Tell of the tasks that have ended since the last time."""
        if self._ids:
            lines, self._ids = "\n".join([*self._ids, ""]).encode(), []
            with suppress(OSError):  # the executor is gone
                while lines:
                    lines = lines[self._ended.write(lines) :]


def _finish_with(worker: Worker) -> None:
    """Let the worker end when the executor, or its process, has ended."""
    while os.read(0, 100):
        pass
    worker.finish()
