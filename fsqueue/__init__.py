"""fsqueue: a task queue that is a directory on a shared filesystem.

No server, no database, no administrator: every producer and worker is a process with the
filesystem mounted. Start with `Queue.create(path)`, `Queue.insert_many` and `Queue.poll`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from fsqueue.forks import held_off

__version__ = "0.1.0"

_HOMES = {
    "Activity": "fsqueue.views.activity",
    "AsyncPoll": "fsqueue.asyncpoll",
    "Barrier": "fsqueue.groups.barriers",
    "Bury": "fsqueue.errors",
    "ChangeReport": "fsqueue.format.models",
    "Commit": "fsqueue.commit",
    "CommitLost": "fsqueue.errors",
    "CommitPart": "fsqueue.format.models",
    "CommitReport": "fsqueue.format.models",
    "Conflict": "fsqueue.errors",
    "DeadLetter": "fsqueue.format.models",
    "Durability": "fsqueue.format.layout",
    "Event": "fsqueue.worker",
    "Executor": "fsqueue.executor.executor",
    "FailingNode": "fsqueue.storage.nodes",
    "Failure": "fsqueue.views.activity",
    "Finding": "fsqueue.fsck",
    "Flow": "fsqueue.views.flows",
    "ForkedChild": "fsqueue.errors",
    "FormatTooNew": "fsqueue.errors",
    "FormatTooOld": "fsqueue.errors",
    "FsqueueError": "fsqueue.errors",
    "GcReport": "fsqueue.format.models",
    "Group": "fsqueue.groups.group",
    "GroupNotFound": "fsqueue.errors",
    "GroupQueue": "fsqueue.groups.queue",
    "GroupQueues": "fsqueue.groups.group",
    "GroupStatus": "fsqueue.groups.group",
    "Held": "fsqueue.views.activity",
    "InvalidArgument": "fsqueue.errors",
    "InvalidResult": "fsqueue.errors",
    "InvalidTask": "fsqueue.errors",
    "LeaseExpired": "fsqueue.errors",
    "LeaseHolder": "fsqueue.views.lease_holders",
    "LeaseLost": "fsqueue.errors",
    "LeasedTask": "fsqueue.leased_task",
    "Lineage": "fsqueue.groups.lineage",
    "LockTimeout": "fsqueue.errors",
    "MostUsed": "fsqueue.views.activity",
    "Movement": "fsqueue.format.models",
    "NewNumber": "fsqueue.groups.task_numbers",
    "NotAQueue": "fsqueue.errors",
    "NumberedInfo": "fsqueue.groups.task_numbers",
    "Pause": "fsqueue.format.layout",
    "Poll": "fsqueue.poll",
    "PriorityRange": "fsqueue.views.priorities",
    "Queue": "fsqueue.queue",
    "QueueClosed": "fsqueue.errors",
    "QueueExists": "fsqueue.errors",
    "QueueFileLost": "fsqueue.errors",
    "QueueNotFound": "fsqueue.errors",
    "QueuePurged": "fsqueue.errors",
    "Rate": "fsqueue.views.activity",
    "Relative": "fsqueue.groups.lineage",
    "RemoteGroup": "fsqueue.client",
    "RemoteQueue": "fsqueue.client",
    "Report": "fsqueue.doctor",
    "Result": "fsqueue.format.models",
    "ResultNotReady": "fsqueue.errors",
    "Retry": "fsqueue.errors",
    "RetryReport": "fsqueue.format.models",
    "Settings": "fsqueue.format.layout",
    "State": "fsqueue.format.models",
    "Status": "fsqueue.format.models",
    "StorageError": "fsqueue.errors",
    "StorageFull": "fsqueue.errors",
    "StuckLock": "fsqueue.views.stuck_locks",
    "Task": "fsqueue.format.models",
    "TaskFailed": "fsqueue.errors",
    "TaskInfo": "fsqueue.format.models",
    "TaskNotFound": "fsqueue.errors",
    "TaskNumbers": "fsqueue.groups.task_numbers",
    "TaskRef": "fsqueue.format.models",
    "TaskTooLarge": "fsqueue.errors",
    "Then": "fsqueue.then",
    "TimeLeft": "fsqueue.views.activity",
    "Timeline": "fsqueue.views.timeline",
    "UnsafeFilesystem": "fsqueue.errors",
    "Update": "fsqueue.groups.update",
    "UpdateConflict": "fsqueue.errors",
    "Usage": "fsqueue.views.usage",
    "Worker": "fsqueue.worker",
    "WorkerReport": "fsqueue.worker",
    "as_completed": "fsqueue.poll",
    "connect": "fsqueue.client",
    "lease": "fsqueue.several_queues",
    "queues": "fsqueue.storage.discovery",
    "task": "fsqueue.functions",
    "wait": "fsqueue.poll",
}
"""The module of each public name. A module is imported when the program first asks for a name of it. So a command that
needs two of them, or none, starts at once."""

if TYPE_CHECKING:
    from fsqueue.asyncpoll import AsyncPoll
    from fsqueue.client import RemoteGroup, RemoteQueue, connect
    from fsqueue.commit import Commit
    from fsqueue.doctor import Report
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
        ResultNotReady,
        Retry,
        StorageError,
        StorageFull,
        TaskFailed,
        TaskNotFound,
        TaskTooLarge,
        UnsafeFilesystem,
        UpdateConflict,
    )
    from fsqueue.executor.executor import Executor
    from fsqueue.format.layout import Durability, Pause, Settings
    from fsqueue.format.models import (
        ChangeReport,
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
    from fsqueue.fsck import Finding
    from fsqueue.functions import task
    from fsqueue.groups.barriers import Barrier
    from fsqueue.groups.group import Group, GroupQueues, GroupStatus
    from fsqueue.groups.lineage import Lineage, Relative
    from fsqueue.groups.queue import GroupQueue
    from fsqueue.groups.task_numbers import NewNumber, NumberedInfo, TaskNumbers
    from fsqueue.groups.update import Update
    from fsqueue.leased_task import LeasedTask
    from fsqueue.poll import Poll, as_completed, wait
    from fsqueue.queue import Queue
    from fsqueue.several_queues import lease
    from fsqueue.storage.discovery import queues
    from fsqueue.storage.nodes import FailingNode
    from fsqueue.then import Then
    from fsqueue.views.activity import Activity, Failure, Held, MostUsed, Rate, TimeLeft
    from fsqueue.views.flows import Flow
    from fsqueue.views.lease_holders import LeaseHolder
    from fsqueue.views.priorities import PriorityRange
    from fsqueue.views.stuck_locks import StuckLock
    from fsqueue.views.timeline import Timeline
    from fsqueue.views.usage import Usage
    from fsqueue.worker import Event, Worker, WorkerReport
else:  # hidden from type checkers, which would take every misspelt name for one that is imported late

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module 'fsqueue' has no attribute {name!r}")
        with held_off():
            found = getattr(import_module(_HOMES[name]), name)
        globals()[name] = found  # from now on Python finds the name without this function
        return found


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "Barrier",
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
    "Executor",
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
    "ResultNotReady",
    "Retry",
    "ChangeReport",
    "RetryReport",
    "Settings",
    "State",
    "Status",
    "StorageError",
    "StorageFull",
    "StuckLock",
    "Task",
    "TaskFailed",
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
    "as_completed",
    "connect",
    "lease",
    "queues",
    "task",
    "wait",
]
