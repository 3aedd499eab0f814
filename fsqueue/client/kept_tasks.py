"""Tasks that are kept in a file until all are known, to be sent to a gateway by one request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from fsqueue.format.models import Task
from fsqueue.format.task_file import decode_task
from fsqueue.protocol import encoding


class KeptTasks:
    """Tasks without keys, in a file of the caller. A gateway breaks off a request that pauses: so it begins late."""

    def __init__(self, file: IO[bytes], task_bytes_max: int, delay_s: float) -> None:
        self._file, self._bytes_max, self._default = file, task_bytes_max, encoding.default_when(delay_s)

    def add(self, payload: Any) -> None:
        """Keep a payload, or a Task. InvalidTask if the queue would refuse it; OSError of the file."""
        task = payload if isinstance(payload, Task) else Task(payload)
        self._file.write(encoding.encode(task, self._bytes_max, None, self._default).line)

    def __iter__(self) -> Iterator[Task]:
        """Yield the tasks from the beginning."""
        self._file.seek(0)
        for line in self._file:
            record = decode_task(line)
            yield Task(record["payload"], priority=record.get("priority"))
