"""Barriers: tasks that become available once other queues of the group are drained (docs/decisions/0073-barriers.md).

The tasks are in their queue from the beginning, and due never. A process that finds nothing to do looks whether they
may be done, and makes them available: no process has to stay for that.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from fsqueue import forks
from fsqueue.arguments import one_of
from fsqueue.clock import Clock
from fsqueue.commit import Commit
from fsqueue.errors import FsqueueError, InvalidArgument, QueueNotFound, TaskTooLarge, from_os_error
from fsqueue.filesystem import PassingOverStrays, resources
from fsqueue.format import barriers, names
from fsqueue.format.barriers import NEVER_MS, ON_FAILURE, BarrierRecord, BatchTasks, OnFailure, Step
from fsqueue.format.models import Task
from fsqueue.format.names import Batch, Uuid
from fsqueue.groups import joins
from fsqueue.groups.drain_check import GroupDrainCheck, status_of
from fsqueue.groups.queue import GroupQueue, HasQueues
from fsqueue.groups.queue_selection import Selected, compiled
from fsqueue.interruptions import let_out, suppress
from fsqueue.protocol import changing, encoding, transitions
from fsqueue.protocol.changing import NewValues
from fsqueue.queue import Queue
from fsqueue.storage import barrier_files, commits
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.store import Store
from fsqueue.user_code import user_items

logger = logging.getLogger("fsqueue")

WAITING_S = 0.5
"""Shortest time between two looks of idle workers while a barrier waits. (While none does: `NONE_S` of groups.)"""
LOOK_SHARE = 0.1
"""At most this part of the time of idle workers goes into looking."""
TASKS_MAX = 10_000
"""Maximum number of tasks of a barrier."""
BYTES_MAX = 8 << 20
"""Maximum number of bytes of its tasks. Store what is longer in files, and insert their paths."""
FILE_BYTES_MAX = 16 << 20
"""Maximum size of a join's file in bytes: its tasks by their batches, and those that come then."""
State = Literal["waiting", "fired", "cancelled", "forgotten"]
STATES: dict[Step | None, State] = {
    "begun": "waiting",
    "waiting": "waiting",
    "firing": "fired",
    "fired": "fired",
    "cancelling": "cancelled",
    "cancelled": "cancelled",
    None: "forgotten",
}
_MADE_AVAILABLE = NewValues([], 0, None, only_due=NEVER_MS)


@dataclass(frozen=True, slots=True)
class Barrier:
    """Tasks that become available once other queues are drained, as `group.barrier` returns it."""

    id: Uuid
    of: tuple[str, ...]
    """The names of the queues that are waited for, or whose tasks are; () if there is a pattern."""
    match: str | None
    """A regular expression for the names of those queues."""
    then: tuple[str, ...]
    """The names of the queues into which the tasks were inserted, one for each task."""
    on_failure: OnFailure
    set_at: float
    """When it was set, in Unix seconds."""
    is_join: bool
    """Whether it waits for some tasks of these queues, and not for the queues."""
    _group: HasQueues = field(repr=False, compare=False)

    @property
    def state(self) -> State:
        """Return "waiting"; "fired" once the tasks are, or will be, available; "cancelled"; or "forgotten".

        A barrier is forgotten a week after it has ended, by `gc`.
        """
        group = self._group.directory()
        try:
            with resources.Scope():
                return STATES[barrier_files.step_of(group, self.id)]
        except OSError as error:
            raise from_os_error(error, f"looking at a barrier of the group {group.path}") from error

    def cancel(self) -> bool:
        """Cancel it: its tasks are taken out of their queues. Return False if it has fired before.

        True, too, if it was cancelled before.
        """
        return cancel(self._group, self.id)

    def as_dict(self) -> dict[str, Any]:
        """Return the barrier as a dict, ready for JSON."""
        return {"id": self.id, "state": self.state, "of": list(self.of), "match": self.match, "then": list(self.then),
                "on_failure": self.on_failure, "set_at": self.set_at, "join": self.is_join}  # fmt: skip


class BarrierLooks:
    """The looks of a process at the barriers of one group. Safe to use from many threads, and after a fork.

    It keeps nothing of the group, which keeps it.
    """

    def __init__(self, none_s: float) -> None:
        """`none_s`: the time between two looks while no barrier waits."""
        self._none_s = none_s
        self._clock, self._busy = Clock(), resources.Mutex()
        self._looking_at = -1
        """The process that looks at this moment, by `forks.depth`: a child that was forked meanwhile does not."""
        self._next_at = -math.inf
        self.is_waiting = False
        """Whether a barrier waited at the last look."""
        self._records: dict[Uuid, BarrierRecord] = {}
        self._left: dict[Uuid, str] = {}
        """By barrier, the name of the queue in which something was left at the last look."""
        self._warned: dict[Uuid, str] = {}
        self._joins: dict[Uuid, joins.JoinProgress] = {}

    def due_s(self) -> float:
        """Return in how many seconds to look again at the latest."""
        return max(0.0, self._next_at - self._clock.monotonic()) if self.is_waiting else math.inf

    def look(self, group: HasQueues, *, at_once: bool) -> int:
        """Let those barriers pass whose queues are drained, and go on with what others have left. Return how many
        passed.

        Unless `at_once`, it does nothing if this process has looked just now, or another thread does at this moment.
        What goes wrong with one barrier is logged, once, and the others go on. GroupNotFound; OSError.
        """
        if not at_once and (self._clock.monotonic() < self._next_at or self._busy.locked()):
            return 0
        with self._busy:
            if self._looking_at == forks.depth:
                return 0  # a signal handler has interrupted this very thread
            self._looking_at, began = forks.depth, self._clock.monotonic()
            try:
                return self._look(group)
            finally:
                now = self._clock.monotonic()
                self._next_at = now + max(WAITING_S if self.is_waiting else self._none_s, (now - began) / LOOK_SHARE)
                self._looking_at = -1

    def hurry(self) -> None:
        """Have the next look happen at once."""
        self._next_at = -math.inf

    def _look(self, group: HasQueues) -> int:
        directory, fired, self.is_waiting = group.directory(), 0, False
        if not directory.has_barriers():
            return 0
        steps = {one: step for one, step in barrier_files.steps(directory).items() if step not in barriers.ENDED}
        for known in (self._records, self._left, self._warned, self._joins):
            for one in known.keys() - steps.keys():
                del known[one]
        self.is_waiting = bool(steps)
        for identity, step in steps.items():
            try:
                fired += self._see_to(group, directory, identity, step)
            except (OSError, FsqueueError) as error:
                let_out(error)
                what = f"looking at the barrier {identity} of the group {directory.path}"
                if isinstance(error, OSError):
                    said = str(from_os_error(error, what, "It stays as it is until a process can take it further."))
                else:
                    said = f"{error} (Met while {what}.)"
                if self._warned.get(identity) != said:
                    self._warned[identity] = said
                    logger.warning("%s", said)
        return fired

    def _see_to(self, group: HasQueues, directory: GroupDirectory, identity: Uuid, step: Step) -> int:
        """Take one barrier as far as it goes. Return 1 if it has passed."""
        record = self._records.get(identity) or barrier_files.read(directory, identity, step)
        if record is None:
            return 0  # another process is taking it further
        self._records[identity] = record
        now: Step | None = step
        if now == "begun":
            now = insert(group, directory, record)
        if now == "waiting" and (verdict := self._verdict(group, record)) is not None:
            now = barrier_files.advance(directory, identity, "waiting", verdict)
        if now == "firing":
            make_available(group, record)
            barrier_files.advance(directory, identity, "firing", "fired")
            return 1
        if now == "cancelling":
            take_out(group, directory, record)
        return 0

    def _verdict(self, group: HasQueues, record: BarrierRecord) -> Step | None:
        """Return the step that a waiting barrier takes now: "firing" if there was an instant, since this was called, at
        which it may pass; "cancelling" if it is dropped for a dead letter; None if it waits on.
        """
        if record.tasks:
            progress = self._joins.get(record.id)
            if progress is None:
                progress = self._joins[record.id] = joins.JoinProgress(record)
            return _OUTLOOKS[progress.look(group)]
        left = self._left.get(record.id)
        if left is not None and not GroupDrainCheck([Selected(group, names_=(left,))])():
            return None
        self._left.pop(record.id, None)
        awaited = Selected(group, record.match, record.of or None)
        check = GroupDrainCheck([awaited])
        is_drained, has_dead = check(), False
        if is_drained and record.on_failure != "run":
            before = check.proof()
            has_dead = status_of(awaited).dead > 0
            is_drained = before is not None and check.proof() == before
        if (name := check.left_in) is not None:
            self._left[record.id] = name
        if not is_drained or (has_dead and record.on_failure == "wait"):
            return None
        return "cancelling" if has_dead else "firing"


_OUTLOOKS: dict[joins.Outlook, Step | None] = {"waits": None, "done": "firing", "failed": "cancelling"}


# -- the steps, of any process ----------------------------------------------------------------------------------


def insert(group: HasQueues, directory: GroupDirectory, record: BarrierRecord) -> Step | None:
    """Insert the tasks of a barrier that has begun, due never, each once. Return how far it is then."""
    for name, lines in record.targets().items():
        commit = group.opened_queue(names.queue_directory(name)).commit(record.commit)
        if commit.committed() is None:
            part = commit.stage(barriers.tasks_of(lines))
            if barrier_files.step_of(directory, record.id) != "begun":  # others were quicker
                commit.discard()
                break
            commit.publish(part)
    found = barrier_files.advance(directory, record.id, "begun", "waiting")
    if found in ("cancelling", "cancelled"):  # perhaps a task was inserted behind the cancelling
        take_out(group, directory, record)
    return found


def make_available(group: HasQueues, record: BarrierRecord) -> None:
    """Make those tasks of a barrier available that are due never."""
    for store in _stores(group, record):
        for batch, tasks in _batches(store, record):
            changing.change(store, batch, range(tasks), _MADE_AVAILABLE)
        store.doorbell.ring()


def take_out(group: HasQueues, directory: GroupDirectory, record: BarrierRecord) -> None:
    """Cancel those tasks of a barrier that are due never, and see that none comes later. It is `cancelled` then."""
    for store in _stores(group, record):
        commit = Commit(store, record.commit)
        if commit.committed() is None:
            commit.publish([])  # the name is used up
        for batch, tasks in _batches(store, record):
            transitions.cancel(store, batch, range(tasks), only_due=NEVER_MS)
    barrier_files.advance(directory, record.id, "cancelling", "cancelled")


def _stores(group: HasQueues, record: BarrierRecord) -> Iterator[Store]:
    """Yield the queues of `then` that are there. What meets one that is deleted meanwhile goes on with the next."""
    for name in record.targets():
        queue = group.opened_queue(names.queue_directory(name))
        if not queue.exists():
            continue
        with suppress(QueueNotFound), resources.Scope():
            yield queue.store


def _batches(store: Store, record: BarrierRecord) -> Iterator[tuple[Batch, int]]:
    """Yield the batches of a barrier's commit, and how many tasks each has at most. None after a purge."""
    commit = Commit(store, record.commit)
    if commit.committed() is None:  # it is applied, if it was not
        return
    known = commits.find(store, store.layout, commit.name)
    for part in () if known is None else known.parts:
        for place in range(part.files):
            yield names.successor(part.first, place), part.tasks


# -- asked by users ----------------------------------------------------------------------------------------------------


def set_barrier(group: HasQueues, queues: object, then: object, on_failure: str) -> Barrier:
    """Do what `Group.barrier` says."""
    one_of("on_failure", on_failure, ON_FAILURE)
    of, match = _awaited(group, queues)
    return _set(group, of, match, then, on_failure, ())


def set_join(group: HasQueues, tasks: object, then: object, on_failure: str) -> Barrier:
    """Do what `Group.join` says."""
    one_of("on_failure", on_failure, ON_FAILURE)
    waited_for = joins.tasks_of(group, tasks)
    if on_failure != "run":
        joins.refuse_without_history(group, waited_for, on_failure)
    return _set(group, (), None, then, on_failure, waited_for)


def _set(
    group: HasQueues, of: tuple[str, ...], match: str | None, then: object, on_failure: str,
    waited_for: tuple[BatchTasks, ...],
) -> Barrier:  # fmt: skip
    """Set a barrier, by the steps of decision 73."""
    directory = group.directory()
    tasks = _then(group, then)
    at = directory.clock.now_ms()
    how: Any = on_failure
    record = BarrierRecord(names.new_uuid(directory.entropy, at), at, of, match, how, tasks, waited_for)
    content = record.encode()
    if len(content) > FILE_BYTES_MAX:
        raise TaskTooLarge(
            f"The file of a join has {FILE_BYTES_MAX >> 20} MiB at most, and this one would be longer: its tasks are "
            "of too many batches. Nothing was done. Join parts of them, and then those."
        )
    waits_for_none = {name for name in record.targets() if _waits_for(record, name)}
    if waits_for_none:
        raise InvalidArgument(
            f"The queue {waits_for_none.pop()!r} is waited for, and gets a task: that would wait for itself. Nothing "
            "was done. Insert into another queue."
        )
    try:
        with resources.Scope():
            try:
                _refuse_circle(directory, record)
            except OSError as error:
                let_out(error)
                raise _not_set(group, error, "There is no barrier.") from error
            try:
                barrier_files.write(directory, record.id, content)
                insert(group, directory, record)
            except (OSError, FsqueueError) as error:
                let_out(error)
                raise _withdrawn(group, record, error) from error
    except OSError as error:
        raise from_os_error(error, f"setting a barrier in the group {directory.path}") from error
    return _barrier(group, record)


def _withdrawn(group: HasQueues, record: BarrierRecord, error: OSError | FsqueueError) -> FsqueueError:
    """Cancel a barrier that could not be set. Return the error that says what has become of it."""
    try:
        directory = group.directory()
        found = _decide_to_cancel(directory, record.id)
        is_over = found is False and barrier_files.step_of(directory, record.id) is not None
    except (OSError, FsqueueError) as other:
        let_out(other)
        end = (
            f"It is unknown whether the barrier {record.id} is set. 'fsqueue barrier GROUP' tells, and --cancel "
            "cancels it."
        )
        failure = _not_set(group, error, end)
        failure.is_exact, failure.advice = False, end
        return failure
    if isinstance(found, BarrierRecord):
        with suppress(OSError, FsqueueError):  # the next process that looks does it
            take_out(group, directory, found)
    end = f"The barrier {record.id} has passed already." if is_over else "There is no barrier."
    failure = _not_set(group, error, end)
    failure.is_exact = not is_over
    return failure


def _not_set(group: HasQueues, error: OSError | FsqueueError, end: str) -> FsqueueError:
    """Return the error of a barrier that was not set. `end`: what its last sentence says of the barrier."""
    failure = _failed(f"setting a barrier in the group {group.path}", error, end)
    failure.inserted = failure.new = 0
    return failure


def _failed(what: str, error: OSError | FsqueueError, end: str) -> FsqueueError:
    """Return what `error`, met while doing `what`, means to the user. `end`: what is true of the barrier."""
    cause = error if isinstance(error, OSError) else error.__cause__
    # What an insert says of its own tasks, and how to go on with these, is not so any more.
    failure = from_os_error(cause, what) if isinstance(cause, OSError) else error
    assert isinstance(failure, FsqueueError)
    failure.args = (f"{failure} {end}", *failure.args[1:])
    return failure


def _waits_for(record: BarrierRecord, name: str) -> bool:
    if record.match is not None:
        return compiled(record.match).fullmatch(name) is not None
    return name in record.of


def _refuse_circle(directory: GroupDirectory, record: BarrierRecord) -> None:
    """Raise InvalidArgument if barriers would wait for each other. A hint: others may be set just now."""
    others = [one for one in listed(directory) if one[1] not in barriers.ENDED]
    reached = {*record.targets()}
    while True:
        behind = [other for other, _ in others if any(_waits_for(other, name) for name in reached)]
        more = {name for other in behind for name in other.targets()} - reached
        if found := [name for name in more if _waits_for(record, name)]:
            raise InvalidArgument(
                f"This barrier waits for {found[0]!r}, which another one is to begin once {record.then[0][0]!r} is "
                "drained: the two would wait for each other. Nothing was done. 'fsqueue barrier GROUP' lists those "
                "that wait."
            )
        if not more:
            return
        reached |= more


def listed(directory: GroupDirectory) -> Iterator[tuple[BarrierRecord, Step]]:
    """Yield the barriers of a group, the oldest first, and how far each is. Leave damaged files out, and what is
    no file: fsck tells of both.
    """
    for identity, step in barrier_files.steps(directory).items():
        found = None
        with suppress(FsqueueError), PassingOverStrays():
            found = barrier_files.find(directory, identity, step)
        if found is not None:
            yield found


def all_of(group: HasQueues) -> list[Barrier]:
    """Return the barriers of a group, the oldest first: those that wait, and those that have ended within a week."""
    directory = group.directory()
    try:
        with resources.Scope():
            return [_barrier(group, record) for record, _ in listed(directory)]
    except OSError as error:
        raise from_os_error(error, f"looking at the barriers of the group {directory.path}") from error


def _barrier(group: HasQueues, record: BarrierRecord) -> Barrier:
    then = tuple(queue for queue, _ in record.then)
    is_join = bool(record.tasks)
    of = tuple(dict.fromkeys(part.queue for part in record.tasks)) if is_join else record.of
    return Barrier(record.id, of, record.match, then, record.on_failure, record.at / 1000, is_join, group)


def cancel(group: HasQueues, identity: Uuid) -> bool:
    """Cancel a barrier. Return False if it has passed before, or is forgotten."""
    directory = group.directory()
    what = f"cancelling a barrier of the group {directory.path}"
    try:
        with resources.Scope():
            found = _decide_to_cancel(directory, identity)
            if isinstance(found, bool):
                return found
            try:
                take_out(group, directory, found)
            except (OSError, FsqueueError) as error:
                let_out(error)
                raise _failed(what, error, "The barrier is cancelled: none of its tasks becomes available.") from error
            return True
    except OSError as error:
        raise from_os_error(error, what) from error


def _decide_to_cancel(directory: GroupDirectory, identity: Uuid) -> BarrierRecord | bool:
    """Decide that a barrier is cancelled, unless it has passed. Return what its file says if its tasks are to be taken
    out. Else return whether it is cancelled. StorageError, and nothing is decided, if its file is damaged.
    """
    for _ in range(len(barriers.STEPS)):
        now = barrier_files.step_of(directory, identity)
        if now not in ("begun", "waiting", "cancelling"):
            return now == "cancelled"
        record = barrier_files.read(directory, identity, now)
        if record is None:
            continue  # another process is taking it further
        if now != "cancelling":
            now = barrier_files.advance(directory, identity, now, "cancelling")
        if now == "cancelling":
            return record
    return False


def _awaited(group: HasQueues, queues: object) -> tuple[tuple[str, ...], str | None]:
    """Return the names of the queues that are to be waited for, or the pattern. InvalidArgument."""
    own: object = group
    if isinstance(queues, Selected):
        if queues.group is not own:
            raise InvalidArgument(f"{queues!r} is of another group than {group.path}. Nothing was done.")
        if queues.names is None:
            if queues.pattern is None:
                raise InvalidArgument(
                    "A barrier that waits for all queues of the group would wait for its own tasks. Nothing was done. "
                    "Name the queues, or give group.matching(...)."
                )
            return (), queues.pattern
        queues = queues.names
    given = [queues] if isinstance(queues, (str, Queue)) else queues
    if not isinstance(given, Iterable) or isinstance(given, (bytes, dict)):
        raise InvalidArgument(f"A barrier waits for queues of its group, or their names, not {queues!r:.100}.")
    found = tuple(dict.fromkeys(_name(group, one) for one in user_items(given)))
    if not found:
        raise InvalidArgument("A barrier waits for one queue at least. Nothing was done.")
    return found, None


def _name(group: HasQueues, queue: object) -> str:
    if isinstance(queue, GroupQueue):
        if queue.group.path != group.path:
            raise InvalidArgument(f"The queue {queue.path} is not in the group {group.path}. Nothing was done.")
        return queue.name
    directory = names.queue_directory(queue)  # InvalidArgument
    return names.parse_queue_directory(directory) or directory


def _then(group: HasQueues, then: object) -> tuple[tuple[str, bytes], ...]:
    """Return the tasks that are to come then, encoded, and the names of their queues. InvalidArgument."""
    found: list[tuple[str, bytes]] = []
    for name, task in tasks_then(then, lambda queue: _name(group, queue)):
        bytes_max = group.opened_queue(names.queue_directory(name)).settings.task_bytes_max
        found.append((name, encoding.encode(task, bytes_max).line))
    if len(found) > TASKS_MAX or sum(len(line) for _, line in found) > BYTES_MAX:
        raise TaskTooLarge(
            f"A barrier has {TASKS_MAX:,} tasks and {BYTES_MAX >> 20} MiB at most. Nothing was done. Have it begin one "
            "task that inserts the others."
        )
    return tuple(found)


def tasks_then(then: object, name_of: Callable[[object], str]) -> Iterator[tuple[str, Task]]:
    """Yield the tasks that are to come then, and the names of their queues. InvalidArgument."""
    each = [then] if isinstance(then, tuple) else [*user_items(then)] if isinstance(then, list) else []
    if not each:
        raise InvalidArgument(f"`then` is (queue, payload), or a list of such, not {then!r:.100}. Nothing was done.")
    for one in each:
        if not isinstance(one, tuple) or len(one) != 2:
            raise InvalidArgument(f"`then` is (queue, payload), or a list of such, not {one!r:.100}. Nothing was done.")
        name = name_of(one[0])
        task = one[1] if isinstance(one[1], Task) else Task(one[1])
        if task.key is not None or task.delay_s or task.available_at is not None:
            raise InvalidArgument(
                f"A task of a barrier has neither a key nor a time of its own, unlike the one for {name!r}. Nothing "
                "was done."
            )
        yield name, task
