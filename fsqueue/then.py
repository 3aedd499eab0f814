"""What a worker's handler may return to have tasks inserted as its own task completes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fsqueue.format.models import Task


class Then:
    """Return this from a handler: complete the task with `result`, and insert tasks, in one step (docs/pipelines.md).

    `inserts`: pairs of a queue's name, in the group of the handler's queue, and a payload or a `Task`. At most
    9,999 of them, each of 64 KiB at most, and 8 MiB in all. Tasks may have priorities, delays and keys. Either the task
    is completed and all of them are inserted, or none of that happens. One whose key is taken is left out, as
    `Queue.insert` does.

    Where one of them cannot be inserted, nothing is: the attempt fails. So it does if one has the key of the handler's
    own task, in the same queue: an update cannot end a task and insert its key anew. If they are too many or too large
    the task becomes a dead letter, since each further attempt would end in the same way.

    It is no dataclass on purpose: a result may be one, so a Then inside of a result would be kept as data, and its
    tasks would be lost without a word.
    """

    __slots__ = ("inserts", "result")

    def __init__(self, result: Any = None, inserts: Sequence[tuple[str, Any | Task]] = ()) -> None:
        self.result = result
        self.inserts = inserts

    def __repr__(self) -> str:
        return f"Then({self.result!r}, {self.inserts!r})"
