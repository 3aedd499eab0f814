"""fsqueue: a task queue that is a directory on a shared filesystem.

No server, no database, no administrator: every producer and worker is a process with the
filesystem mounted. Start with `Queue.create(path)`, `Queue.insert_many` and `Queue.poll`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsqueue.activity import Activity, Failure, Held, Rate, TimeLeft
from fsqueue.committing import Commit
from fsqueue.discovery import queues
from fsqueue.errors import (
    Bury,
    CommitLost,
    FormatTooNew,
    FsqueueError,
    InvalidArgument,
    InvalidResult,
    InvalidTask,
    LeaseExpired,
    LeaseLost,
    LockTimeout,
    NotAQueue,
    QueueExists,
    QueueNotFound,
    QueuePurged,
    Retry,
    StorageError,
    StorageFull,
    TaskNotFound,
    TaskTooLarge,
    UnsafeFilesystem,
    UpdateConflict,
)
from fsqueue.fsck import Finding
from fsqueue.functions import task
from fsqueue.poll import wait
from fsqueue.queue import Queue
from fsqueue.task import (
    CommitPart,
    CommitReport,
    DeadLetter,
    GcReport,
    LeasedTask,
    Movement,
    Status,
    Task,
    TaskInfo,
    TaskRef,
)

if TYPE_CHECKING:
    from fsqueue.work import Worker, WorkerReport

__version__ = "0.1.0"

_LAZY = {"Worker": "fsqueue.work", "WorkerReport": "fsqueue.work"}
"""What most programs do not use is imported when it is first asked for."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'fsqueue' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


__all__ = [
    "Activity",
    "Bury",
    "Commit",
    "CommitLost",
    "CommitPart",
    "CommitReport",
    "DeadLetter",
    "Failure",
    "Finding",
    "FormatTooNew",
    "FsqueueError",
    "GcReport",
    "Held",
    "InvalidArgument",
    "InvalidResult",
    "InvalidTask",
    "LeaseExpired",
    "LeaseLost",
    "LeasedTask",
    "LockTimeout",
    "Movement",
    "NotAQueue",
    "Queue",
    "QueueExists",
    "QueueNotFound",
    "QueuePurged",
    "Rate",
    "Retry",
    "Status",
    "StorageError",
    "StorageFull",
    "Task",
    "TaskInfo",
    "TaskNotFound",
    "TaskRef",
    "TaskTooLarge",
    "TimeLeft",
    "UnsafeFilesystem",
    "UpdateConflict",
    "Worker",
    "WorkerReport",
    "__version__",
    "queues",
    "task",
    "wait",
]
