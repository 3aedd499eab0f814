"""fsqueue: a task queue that is a directory on a shared filesystem.

No server, no database, no administrator: every producer and worker is a process with the
filesystem mounted. Start with `Queue.create(path)`, `Queue.insert_many` and `Queue.poll`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsqueue.commit import Commit
from fsqueue.errors import (
    Bury,
    CommitLost,
    Conflict,
    ForkedChild,
    FormatTooNew,
    FormatTooOld,
    FsqueueError,
    GroupNotFound,
    InvalidArgument,
    InvalidResult,
    InvalidTask,
    LeaseExpired,
    LeaseLost,
    LockTimeout,
    NotAQueue,
    QueueClosed,
    QueueExists,
    QueueFileLost,
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
from fsqueue.format.layout import Durability, Pause, Settings
from fsqueue.format.models import (
    CommitPart,
    CommitReport,
    DeadLetter,
    GcReport,
    Movement,
    Result,
    RetryReport,
    State,
    Status,
    Task,
    TaskInfo,
    TaskRef,
)
from fsqueue.functions import task
from fsqueue.leased_task import LeasedTask
from fsqueue.poll import Poll, wait
from fsqueue.queue import Queue
from fsqueue.several import lease
from fsqueue.storage.discovery import queues
from fsqueue.then import Then
from fsqueue.views.activity import Activity, Failure, Held, MostUsed, Rate, TimeLeft

__version__ = "0.1.0"

_LAZY = {
    "AsyncPoll": "fsqueue.asyncpoll",
    "Event": "fsqueue.worker",
    "Finding": "fsqueue.fsck",
    "FailingNode": "fsqueue.storage.nodes",
    "Flow": "fsqueue.views.flows",
    "Group": "fsqueue.groups",
    "GroupQueue": "fsqueue.groups",
    "GroupQueues": "fsqueue.groups",
    "GroupStatus": "fsqueue.groups",
    "Lineage": "fsqueue.groups",
    "LeaseHolder": "fsqueue.views.lease_holders",
    "NewNumber": "fsqueue.groups",
    "NumberedInfo": "fsqueue.groups",
    "PriorityRange": "fsqueue.views.priorities",
    "Relative": "fsqueue.groups",
    "RemoteGroup": "fsqueue.client",
    "RemoteQueue": "fsqueue.client",
    "Report": "fsqueue.doctor",
    "StuckLock": "fsqueue.views.stuck_locks",
    "TaskNumbers": "fsqueue.groups",
    "Timeline": "fsqueue.views.timeline",
    "Update": "fsqueue.groups",
    "Usage": "fsqueue.views.usage",
    "Worker": "fsqueue.worker",
    "WorkerReport": "fsqueue.worker",
    "connect": "fsqueue.client",
}
"""Names that few programs use. Their modules are imported when the program first asks for them."""

if TYPE_CHECKING:
    from fsqueue.asyncpoll import AsyncPoll
    from fsqueue.client import RemoteGroup, RemoteQueue, connect
    from fsqueue.doctor import Report
    from fsqueue.fsck import Finding
    from fsqueue.groups import (
        Group,
        GroupQueue,
        GroupQueues,
        GroupStatus,
        Lineage,
        NewNumber,
        NumberedInfo,
        Relative,
        TaskNumbers,
        Update,
    )
    from fsqueue.storage.nodes import FailingNode
    from fsqueue.views.flows import Flow
    from fsqueue.views.lease_holders import LeaseHolder
    from fsqueue.views.priorities import PriorityRange
    from fsqueue.views.stuck_locks import StuckLock
    from fsqueue.views.timeline import Timeline
    from fsqueue.views.usage import Usage
    from fsqueue.worker import Event, Worker, WorkerReport
else:  # hidden from type checkers, which would take every misspelt name for one that is imported late

    def __getattr__(name):
        if name not in _LAZY:
            raise AttributeError(f"module 'fsqueue' has no attribute {name!r}")
        from importlib import import_module

        from fsqueue.forks import held_off

        with held_off():
            return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "Activity",
    "AsyncPoll",
    "Bury",
    "Commit",
    "CommitLost",
    "CommitPart",
    "CommitReport",
    "Conflict",
    "DeadLetter",
    "Durability",
    "Event",
    "FailingNode",
    "Failure",
    "Finding",
    "Flow",
    "ForkedChild",
    "FormatTooNew",
    "FormatTooOld",
    "FsqueueError",
    "GcReport",
    "Group",
    "GroupNotFound",
    "GroupQueue",
    "GroupQueues",
    "GroupStatus",
    "Held",
    "InvalidArgument",
    "InvalidResult",
    "InvalidTask",
    "LeaseExpired",
    "LeaseHolder",
    "LeaseLost",
    "LeasedTask",
    "Lineage",
    "LockTimeout",
    "MostUsed",
    "Movement",
    "NewNumber",
    "NotAQueue",
    "NumberedInfo",
    "Pause",
    "Poll",
    "PriorityRange",
    "Queue",
    "QueueClosed",
    "QueueExists",
    "QueueFileLost",
    "QueueNotFound",
    "QueuePurged",
    "Rate",
    "Relative",
    "RemoteGroup",
    "RemoteQueue",
    "Report",
    "Result",
    "Retry",
    "RetryReport",
    "Settings",
    "State",
    "Status",
    "StorageError",
    "StorageFull",
    "StuckLock",
    "Task",
    "TaskInfo",
    "TaskNotFound",
    "TaskNumbers",
    "TaskRef",
    "TaskTooLarge",
    "Then",
    "TimeLeft",
    "Timeline",
    "UnsafeFilesystem",
    "Update",
    "UpdateConflict",
    "Usage",
    "Worker",
    "WorkerReport",
    "__version__",
    "connect",
    "lease",
    "queues",
    "task",
    "wait",
]
