"""fsqueue: a task queue that is a directory on a shared filesystem.

No server, no database, no administrator: every producer and worker is a process with the
filesystem mounted. Start with `Queue.create(path)`, `Queue.insert_many` and `Queue.poll`.
"""

from fsqueue.activity import Activity, Failure, Held, Rate, TimeLeft
from fsqueue.committing import Commit
from fsqueue.discovery import queues
from fsqueue.errors import (
    CommitLost,
    FormatTooNew,
    FsqueueError,
    InvalidArgument,
    InvalidTask,
    LeaseExpired,
    LeaseLost,
    LockTimeout,
    NotAQueue,
    QueueExists,
    QueueNotFound,
    QueuePurged,
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

__version__ = "0.1.0"

__all__ = [
    "Activity",
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
    "__version__",
    "queues",
    "task",
    "wait",
]
