"""Check the arguments that users give to the public verbs, and translate the system's errors into fsqueue's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from fsqueue import forks
from fsqueue.clock import duration_ms
from fsqueue.errors import (
    ForkedInCall,
    FsqueueError,
    InvalidArgument,
    InvalidResult,
    InvalidTask,
    LeaseLost,
    QueueNotFound,
    StorageError,
    in_unicode,
    shown,
)
from fsqueue.filesystem import resources
from fsqueue.format import layout, names, priority, task_file
from fsqueue.format.layout import FIELD_CHARS_MAX, REASON_CHARS_MAX, Settings
from fsqueue.format.models import NEWEST_MAX, Task, TaskRef, TellsOfTasks
from fsqueue.format.names import Batch
from fsqueue.format.plain_values import plain
from fsqueue.format.results import encode_result
from fsqueue.interruptions import is_interruption
from fsqueue.leased_task import LeasedTask
from fsqueue.protocol import encoding
from fsqueue.protocol.encoding import EncodedTask
from fsqueue.storage.store import Store
from fsqueue.user_code import UserCodeError, user_items

ORDERS = ("priority", "random")
"""The orders in which tasks are leased."""
PIECES_MAX = 1_000
"""Maximum number of pieces of a timeline: a chart has room for no more."""

WINDOW_S_MIN = 1.0
"""A window that is shorter tells no rate."""

P = ParamSpec("P")
R = TypeVar("R")


class Every(Enum):
    """Stand for an argument that was not given, where None would be a mistake."""

    EVERY = "every"


EVERY: Final = Every.EVERY


class HasStore(Protocol):
    """A queue, or another object with a store."""

    store: Store

    def _why_gone(self, error: QueueNotFound) -> FsqueueError:
        """Return what a verb raises if the queue is not there: GroupNotFound if it is gone with its group."""


Q = TypeVar("Q", bound=HasStore)


def ended(queue: HasStore, before: resources.Mark, process: int, error: BaseException, doing: str) -> BaseException:
    """Return the error that a verb raises after `error`. First give back the locks and descriptors that the verb has
    taken since `before`.

    `process`: `forks.depth` at the verb's start. The store is asked for afterwards: a queue of a group may have to be
    opened for that.
    """
    error = resources.give_back(before, error)
    if process != forks.depth and not isinstance(error, UserCodeError):
        return resources.in_child(error)
    if isinstance(error, (UserCodeError, ForkedInCall)):
        return error.error
    if is_interruption(error):
        return error  # that of a signal handler may be an OSError, and is none of the system's
    failure = error
    if isinstance(error, OSError):
        with resources.Scope():
            failure = queue.store.explain(error, doing)
        failure.__cause__ = error
    if isinstance(failure, QueueNotFound):
        found = queue._why_gone(failure)
        if found is not failure:
            found.__cause__ = failure
        return found
    return failure


def verb(doing: str) -> Callable[[Callable[Concatenate[Q, P], R]], Callable[Concatenate[Q, P], R]]:
    """Decorate a verb: errors of the system become fsqueue's, and say what the verb was `doing`."""

    def decorate(function: Callable[Concatenate[Q, P], R]) -> Callable[Concatenate[Q, P], R]:
        @wraps(function)
        def translating(queue: Q, /, *args: P.args, **kwargs: P.kwargs) -> R:
            before, process = resources.mark(), forks.depth
            try:
                found = function(queue, *args, **kwargs)
                if process == forks.depth:
                    return found
                failure: BaseException = resources.in_child(None)
            except BaseException as error:
                failure = ended(queue, before, process, error, doing)
            try:
                raise failure  # out here, so that its context stays what it was
            finally:
                del failure  # else it and this frame would keep each other

        return translating

    return decorate


def translated(queue: HasStore, items: Iterator[R], doing: str) -> Iterator[R]:
    """Yield the items of an iterator, and translate its errors as `verb` does.

    StorageError, too, if a call that took a step was interrupted: the interruption has closed what `items` had open.
    """
    mine: dict[int, resources.Entry] = {}
    while True:
        if any(entry.is_given_back for entry in mine.values()):
            what = f"{doing.capitalize()}: a call that was interrupted has closed the file. Begin anew."
            failure: BaseException = StorageError(what)
            break
        (sections, open_now, fresh), process = resources.mark(), forks.depth
        try:
            item = next(items)
            if process != forks.depth:
                raise resources.in_child(None)
        except StopIteration:
            return
        except BaseException as error:
            others = resources.new_since(mine, open_now)
            failure = ended(queue, (sections, others, fresh), process, error, doing)
            break
        # What stays open until the next step, or its end.
        mine = resources.new_since(resources.new_since(mine, open_now), resources.this_thread.owned.fds)
        yield item
    try:
        raise failure
    finally:
        del failure


def whole(name: str, value: object, least: int = 1) -> int:
    """Return a whole number of at least `least`, or InvalidArgument."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidArgument(f"{name} must be a whole number of at least {least}, not {shown(value)}.")
    return value


def window_ms(window_s: float) -> int:
    """Return the period up to now that is looked at, in milliseconds; InvalidArgument."""
    return duration_ms(window_s, "window_s", WINDOW_S_MIN)


def pieces_of(pieces: object) -> int:
    """Return into how many pieces a period is divided; InvalidArgument."""
    number = whole("pieces", pieces)
    if number > PIECES_MAX:
        raise InvalidArgument(f"pieces must be at most {PIECES_MAX:,}, not {shown(number)}. Nothing was done.")
    return number


def in_utf8(name: str, text: str) -> str:
    """Return a text; InvalidArgument if no record and no request can hold it: half a surrogate pair is in it."""
    if in_unicode(text) != text:
        raise InvalidArgument(f"{name} must be text that UTF-8 can hold, not {shown(text)}. Nothing was done.")
    return text


def field_of(name: str, field: object) -> str | None:
    """Return the name of a field of payloads, if one is given; InvalidArgument."""
    if field is None:
        return None
    if type(field) is not str or not 1 <= len(field) <= FIELD_CHARS_MAX:
        raise InvalidArgument(
            f"{name} must be the name of a field, of 1 to {FIELD_CHARS_MAX:,} characters, not {shown(field)}. Nothing "
            "was done."
        )
    return in_utf8(name, field)


def newest_of(newest: object, latest_by: object = None) -> int | None:
    """Return how many of the newest results are wanted, if a number is given; InvalidArgument."""
    if newest is None:
        return None
    number = whole("newest", newest)
    if number > NEWEST_MAX:
        raise InvalidArgument(f"newest must be at most {NEWEST_MAX:,}, not {shown(newest)}. Nothing was done.")
    if latest_by is not None:
        raise InvalidArgument(
            "newest reads no more than it must, and latest_by reads all tasks. Nothing was done. Leave one of the two "
            "out."
        )
    return number


def node_of(node: object) -> str:
    """Return the name of a node; InvalidArgument."""
    if not isinstance(node, str) or not node:
        raise InvalidArgument(f"node must be the name of a node, not {shown(node)}. Nothing was done.")
    return in_utf8("node", node)


def reason_of(reason: object) -> str | None:
    """Return why a queue is paused, if that is told; InvalidArgument."""
    if reason is not None and (not isinstance(reason, str) or len(reason) > REASON_CHARS_MAX):
        raise InvalidArgument(f"reason must be text of at most {REASON_CHARS_MAX:,} characters. Nothing was done.")
    return None if reason is None else in_utf8("reason", reason)


def settings_of(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings to change; InvalidArgument for a name or a value that cannot be."""
    known = ", ".join((*layout.CHANGEABLE, *layout.LIMITS))
    for name in given:
        if name not in Settings.__dataclass_fields__:
            raise InvalidArgument(f"There is no setting {name!r}. These can be changed: {known}. Nothing was changed.")
        if name not in layout.CHANGEABLE and name not in layout.LIMITS:
            raise InvalidArgument(
                f"{name} is fixed when a queue is created: what is in the queue already was laid out by it. Nothing "
                f"was changed. These can be changed: {known}. For another {name}, create "
                "another queue."
            )
    fields = given.get("limit", {})
    if isinstance(fields, dict):
        fields = {name: 1 if most is None else most for name, most in fields.items()}
    replace(layout.DEFAULTS, **given | ({"limit": fields} if "limit" in given else {}))
    return given


def limits_of_group(given: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the limits of a group to change; InvalidArgument for a name or a value that cannot be."""
    for name in given:
        if name in Settings.__dataclass_fields__ and name not in layout.LIMITS:
            raise InvalidArgument(
                f"{name} of the group {path} is what its queues begin with: it stays. Nothing was changed. Change it "
                f"in one of its queues. These can be changed for a group: {', '.join(layout.LIMITS)}."
            )
    return settings_of(given)


def worker_of(worker: object) -> str | None:
    """Return the name to appear under in histories, if one is given; InvalidArgument."""
    if worker is not None and (type(worker) is not str or not 1 <= len(worker) <= 200 or not worker.isprintable()):
        raise InvalidArgument(f"worker must be a name of 1 to 200 printable characters, not {shown(worker)}.")
    return worker


_TOLD_TEXTS = {
    "host", "name", "address", "slurm_job", "slurm_index", "slurm_node", "slurm_cluster", "slurm_restart", "scheduler",
    "job", "job_index", "job_server",
}  # fmt: skip
_TOLD_NUMBERS = {"pid", "slurm_user"}


def holder_of(holder: object) -> dict[str, Any]:
    """Return what leases on behalf of another process record about that process. InvalidArgument.

    It never has `process` nor `run`: by these a worker is proven dead, and this process cannot vouch for them.
    """
    if not isinstance(holder, Mapping) or "host" not in holder:
        raise InvalidArgument(f"holder must be a dict with the worker's host, not {shown(holder)}. Nothing was leased.")
    for name, value in holder.items():
        if name in _TOLD_NUMBERS:
            is_sound = type(value) is int and 0 <= value < 1 << 63
        else:
            is_sound = name in _TOLD_TEXTS and type(value) is str and 1 <= len(value) <= 200 and value.isprintable()
        if not is_sound:
            raise InvalidArgument(
                f"holder has {shown(name)}: {shown(value)}. It takes {', '.join(sorted(_TOLD_TEXTS))}, texts of 1 to "
                f"200 printable characters, and {', '.join(sorted(_TOLD_NUMBERS))}, numbers. Nothing was leased."
            )
    return dict(holder)


def one_of(name: str, value: object, known: Sequence[str]) -> None:
    """Raise InvalidArgument unless `value` is one of the known words."""
    if not isinstance(value, str) or value not in known:
        raise InvalidArgument(f"{name} must be one of {', '.join(map(repr, known))}, not {shown(value)}.")


def bound_of(up_to: object) -> priority.Rank:
    """Return the rank of a bound on priorities; InvalidArgument if it is no priority."""
    why = priority.fault(up_to)
    if why is not None:
        raise InvalidArgument(f"up_to must be a priority, not {shown(up_to)}: {why}.")
    return priority.rank_of(up_to)


def check_change(urgency: object, no_priority: object, delay_s: object, available_at: object) -> None:
    """Raise InvalidArgument if a priority or a time that `change` gives tasks is wrong, or if it gives neither.

    `urgency`: the new priority.
    """
    why = None if urgency is None else priority.fault(urgency)
    if why is not None:
        raise InvalidArgument(f"priority must be a priority, not {shown(urgency)}: {why}. Nothing was changed.")
    if not isinstance(no_priority, bool):
        raise InvalidArgument(f"no_priority must be true or false, not {shown(no_priority)}. Nothing was changed.")
    for one, other, is_both in (
        ("priority", "no_priority", urgency is not None and no_priority),
        ("delay_s", "available_at", delay_s is not None and available_at is not None),
    ):
        if is_both:
            raise InvalidArgument(f"Give either {one} or {other}, not both. Nothing was changed.")
    if delay_s is not None:
        duration_ms(delay_s, "delay_s")  # type: ignore[arg-type]
    if available_at is not None:
        duration_ms(available_at, "available_at")  # type: ignore[arg-type]
    if urgency is None and not no_priority and delay_s is None and available_at is None:
        known = "priority, no_priority, delay_s or available_at"
        raise InvalidArgument(f"Say what to change: {known}. Nothing was changed.")


def check_lease(
    lease_s: float | None = None,
    up_to: object = None,
    order: object = "priority",
    strict: bool = False,
    holder: object = None,
) -> None:
    """Raise InvalidArgument if an argument of `lease` is wrong, other than its number and its time to wait."""
    if lease_s is not None:
        duration_ms(lease_s, "lease_s", 0.001)
    one_of("order", order, ORDERS)
    if up_to is not None:
        bound_of(up_to)
    if holder is not None:
        holder_of(holder)


def selector(name: str, value: object) -> str | None:
    """Return which leases are meant: those of this name, or None for those of every name; InvalidArgument."""
    if value is EVERY:
        return None
    if not isinstance(value, str) or not value:
        raise InvalidArgument(
            f"{name} must be text that is not empty, not {shown(value)}. No lease was ended. To end the leases of "
            f"every {name}, leave the argument out."
        )
    return in_utf8(name, value)


def unchanged(tasks: Iterable[Any]) -> Iterator[Any]:
    """Pass payloads or Tasks on; InvalidTask for the first payload that would come back changed."""
    for index, item in enumerate(tasks):
        task_file.check_unchanged(item.payload if isinstance(item, Task) else item, index)
        yield item


def one_task(payload: Any, key: object, priority: object) -> Task:
    """Return a payload or a Task with the key and the priority that the call gives; InvalidArgument if the Task has
    others.
    """
    if not isinstance(payload, Task):
        return Task(payload, key, priority)  # type: ignore[arg-type]
    task = payload
    for name, given in (("key", key), ("priority", priority)):
        own, given = plain(getattr(task, name)), plain(given)
        if given is None or (type(own) is type(given) and own == given):
            continue
        if own is not None:
            raise InvalidArgument(
                f"The task has the {name} {own!r:.100}, and the call says {given!r:.100}. Nothing was inserted. "
                f"Give one {name}, in the Task or in the call."
            )
        task = replace(task, **{name: given})  # type: ignore[arg-type]
    return task


def task_to_insert(
    payload: Any,
    bytes_max: int,
    *,
    key: object = None,
    priority: object = None,
    delay_s: float = 0,
    available_at: float | None = None,
    strict: bool = False,
) -> EncodedTask:
    """Check the arguments of `Queue.insert`, and encode the task. InvalidArgument; InvalidTask; TaskTooLarge if the
    task's line is longer than `bytes_max`.
    """
    is_bare = key is None and priority is None and not isinstance(payload, Task)  # as most are
    task = payload if is_bare else one_task(payload, key, priority)
    if strict:
        task_file.check_unchanged(payload if is_bare else task.payload)
    when = encoding.NOW
    if available_at is not None or type(delay_s) is not int or delay_s:
        when = encoding.available_from(Task(None, delay_s=delay_s, available_at=available_at), None)
    if is_bare:
        return EncodedTask(task_file.encode_task(payload, bytes_max), when)
    return encoding.encode(task, bytes_max, default=when)


def tasks_to_insert(
    payloads: object,
    *,
    batch_tasks: object = None,
    delay_s: float = 0,
    commit: object = None,
    total: object = None,
    strict: bool = False,
    new_by: object = None,
    refs: bool = False,
) -> Iterable[Any]:
    """Check what `insert_many` takes, and return its stream, of which nothing is read. InvalidArgument."""
    if batch_tasks is not None:
        whole("batch_tasks", batch_tasks)
    if total is not None:
        whole("total", total, 0)
    if commit is not None:
        names.commit_name(commit)
    if field_of("new_by", new_by) is not None:
        for name, given in (("commit", commit), ("batch_tasks", batch_tasks)):
            if given is not None:
                raise InvalidArgument(
                    f"new_by gives each task a key, and {name} is for tasks without keys. Nothing was inserted. Leave "
                    "one of the two out."
                )
    if refs:
        for name, given in (("commit", commit), ("new_by", new_by)):
            if given is not None:
                raise InvalidArgument(
                    f"refs asks for references to the tasks of this call, and with {name} they may be an earlier "
                    "call's. Nothing was inserted. Leave one of the two out."
                )
    tasks = payloads_of(payloads, "insert_many")
    encoding.default_when(delay_s)
    return unchanged(tasks) if strict else tasks


def references(ids: Sequence[str], taken: Collection[int], queue: TellsOfTasks) -> list[TaskRef]:
    """Return references to tasks of a queue, in their order. `taken`: the places of those that are not new."""
    return [TaskRef(one, place not in taken, queue) for place, one in enumerate(ids)]


def check_commit(name: object, *, attempt: object = None) -> None:
    """Raise InvalidArgument if an argument of `commit` is wrong."""
    names.commit_name(name)
    if attempt is not None:
        names.attempt_name(attempt)


def payloads_of(tasks: object, verb: str) -> Iterable[Any]:
    """Return many payloads or Tasks; InvalidArgument for what looks like a single one, and for a data frame, of which
    an iterator yields the names of the columns.
    """
    if hasattr(tasks, "columns"):
        raise InvalidArgument(
            f"{verb} takes payloads, and a {type(tasks).__name__} yields the names of its columns. For a task of each "
            "row give it df.to_dict('records') of pandas, or df.to_dicts() of Polars."
        )
    if isinstance(tasks, (str, bytes, bytearray, memoryview, dict, Task)) or not isinstance(tasks, Iterable):
        raise InvalidArgument(
            f"{verb} takes a list or another iterable of payloads. For a single one use insert, or put it in a list."
        )
    return user_items(tasks)


def task_ids(ids: object) -> set[str]:
    """Return task ids, one or many, as a set of sound ones; InvalidArgument. A TaskRef stands for its task's id."""
    if isinstance(ids, (str, TaskRef)):
        ids = [ids]
    if not isinstance(ids, Iterable):
        raise InvalidArgument(f"Task ids are text, or a list of texts, not {shown(ids)}.")
    wanted = {str(one) for one in user_items(ids)}
    for one in wanted:
        names.parse_task_id(one)
    return wanted


def tasks_meant(ids: object, kind: str) -> set[str] | None:
    """Return the ids of the tasks that are meant, or None for all of a `kind`; InvalidArgument."""
    if ids is EVERY:
        return None
    if ids is None:
        raise InvalidArgument(
            f"ids must be task ids, not None. Nothing was done. To mean all {kind}, leave the argument out."
        )
    return task_ids(ids)


def leased(tasks: object) -> list[LeasedTask]:
    """Return leased tasks, one or many, as a list; InvalidArgument for anything else."""
    if isinstance(tasks, LeasedTask):
        return [tasks]
    if type(tasks) is list and set(map(type, tasks)) == {LeasedTask}:
        return list(tasks)
    if isinstance(tasks, Mapping):  # its keys may be tasks: their results would be dropped without a word
        raise InvalidArgument(
            f"This verb takes leased tasks, as `lease` returns them, not a {type(tasks).__name__}. Nothing was done. "
            "Results go into `results`, by task id: complete(tasks, results={task.id: 7})."
        )
    found: list[LeasedTask] = []
    for task in user_items(tasks) if isinstance(tasks, Iterable) else [tasks]:
        if not isinstance(task, LeasedTask):
            raise InvalidArgument(f"This verb takes leased tasks, as `lease` returns them, not {shown(task)}.")
        found.append(task)
    return found


def results_of(results: object) -> tuple[dict[tuple[Batch, int], bytes], dict[str, str]]:
    """Return the results as JSON, by batch and index; and for those that cannot be kept why, by task id."""
    if not isinstance(results, Mapping):
        raise InvalidArgument(
            f"results must be a dict of results by task id, as {{task.id: 7}}, not {shown(results)}. No task was "
            "completed."
        )
    encoded: dict[tuple[Batch, int], bytes] = {}
    refused: dict[str, str] = {}
    for task_id, value in user_items(results.items()):
        place = names.parse_task_id(task_id)
        try:
            encoded[place] = encode_result(value)
        except InvalidTask as error:
            refused[task_id] = str(error)
    return encoded, refused


def refuse(refused: Mapping[str, str], lost: LeaseLost | None = None) -> None:
    """Raise InvalidResult if there are results that cannot be kept. `lost`: the leases that were lost meanwhile."""
    if refused:
        first, why = next(iter(refused.items()))
        what = f"The task {first} was not completed, its lease goes on. {why}"
        if len(refused) > 1:
            what += f" The same holds for {len(refused) - 1:,} more."
        raise InvalidResult(what, refused) from lost
