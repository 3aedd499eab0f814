"""What the buttons of the pages do: each by one public verb of the queue, and with an answer in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import fsqueue
from fsqueue.format.wording import counted

Fields = Mapping[str, str]


def act(queue: fsqueue.Queue, verb: str, fields: Fields) -> int:
    """Do what a button asks for. Return how many tasks, or queues, it changed. InvalidArgument for no such verb."""
    if verb not in _VERBS:
        raise fsqueue.InvalidArgument(f"There is no action {verb!r:.100}. Nothing was done.")
    return _VERBS[verb](queue, fields)


def _pause(queue: fsqueue.Queue, fields: Fields) -> int:
    return int(queue.pause(fields.get("reason") or None))


def _resume(queue: fsqueue.Queue, fields: Fields) -> int:
    return int(queue.resume())


def _retry_dead(queue: fsqueue.Queue, fields: Fields) -> int:
    """Retry one dead letter (`id`), those with a reason (`reason`), or all."""
    if "id" in fields:
        return queue.retry_dead(fields["id"])
    if "reason" in fields:
        meant = fsqueue.Failure(fields["reason"])
        return queue.retry_dead(where=lambda letter: meant.covers(letter.reason))
    return queue.retry_dead()


def _retry_completed(queue: fsqueue.Queue, fields: Fields) -> int:
    return queue.retry_completed(_one(fields)).retried


def _cancel(queue: fsqueue.Queue, fields: Fields) -> int:
    return queue.cancel(_one(fields))


def _release(queue: fsqueue.Queue, fields: Fields) -> int:
    """End the lease of one task (`id`), or all that workers on a host hold (`host`)."""
    if "host" in fields:
        return queue.release_all(host=fields["host"])
    task_id = _one(fields)
    lease = next((one.lease for one in reversed(queue.history(task_id)) if one.lease is not None), None)
    if lease is None:
        raise fsqueue.TaskNotFound(f"No worker has leased the task {task_id}. Nothing was done.")
    queue.attach(f"{task_id}@{lease}").release()
    return 1


def _admit_node(queue: fsqueue.Queue, fields: Fields) -> int:
    return int(queue.admit_node(fields.get("node", "")))


def _one(fields: Fields) -> str:
    task_id = fields.get("id")
    if not task_id:
        raise fsqueue.InvalidArgument("The form names no task. Nothing was done.")
    return task_id


_VERBS: dict[str, Callable[[fsqueue.Queue, Fields], int]] = {
    "pause": _pause,
    "resume": _resume,
    "retry-dead": _retry_dead,
    "retry-completed": _retry_completed,
    "cancel": _cancel,
    "release": _release,
    "admit-node": _admit_node,
}
DONE: dict[str, Callable[[int], str]] = {
    "pause": lambda n: "The queue is paused." if n else "The queue was paused already.",
    "resume": lambda n: "The queue goes on." if n else "The queue was not paused.",
    "retry-dead": lambda n: f"Inserted again: {counted(n, 'task')}.",
    "retry-completed": lambda n: f"Inserted again: {counted(n, 'task')}.",
    "cancel": lambda n: (
        f"Cancelled: {counted(n, 'task')}." if n else "Not cancelled: a worker has it, or it has ended."
    ),
    "release": lambda n: f"Released: {counted(n, 'task')}.",
    "admit-node": lambda n: "The node takes tasks again." if n else "No failures are counted there any more.",
}
"""What a page says after an action, from the number of tasks that it changed."""
