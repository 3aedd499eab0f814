"""Plan an update, log by log: the operations on held tasks as records, and why they cannot be (section 4.22 of the
design)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, NamedTuple

from fsqueue.cluster.identity import describe
from fsqueue.errors import Conflict, UpdateConflict
from fsqueue.format import movements, names
from fsqueue.format.models import TaskRef
from fsqueue.format.movements import Record, UpdatePart, to_ranges
from fsqueue.format.names import Batch, QueueDirectory
from fsqueue.format.replay import AVAILABLE, CANCELLED, COMPLETED, DEAD, LEASED, ReplayState
from fsqueue.leased_task import LeasedTask
from fsqueue.protocol import deciding, transitions, worktimes
from fsqueue.protocol.encoding import EncodedTask
from fsqueue.protocol.keyed_inserts import KeyedInserter
from fsqueue.protocol.losses import EXPIRED, completed_by, why_lost
from fsqueue.protocol.single_inserts import APPEND_BYTES_MAX, APPEND_TASKS_MAX, SingleInserter
from fsqueue.storage.locked_batch import LockedBatch, Undecided
from fsqueue.storage.store import Store

Kind = Literal["complete", "renew", "release", "fail", "bury", "cancel", "replace", "depends"]
ENDS = frozenset({"complete", "fail", "bury", "cancel"})
"""The kinds of changes after which a task may have ended."""
RETURNS = frozenset({"release", "fail", "replace"})
"""The kinds of changes after which a worker may look for the task."""
MAY_STILL_COMPLETE = "has a lease on it that has run out, but may still complete it"
ALREADY = "completed by this lease"
"""The reason of a conflict if the same lease has completed the task before."""
LOOK_AGAIN = "Discard the results of these tasks; of those that were only seen, look at what they are now."
"""Advice of the error about a conflict."""


@dataclass(frozen=True, slots=True)
class SeenTask:
    """A task as it was seen, which this process does not hold: an update acts only if it still has this version."""

    batch: Batch
    index: int
    version: int
    lease: str = ""


class TaskChange(NamedTuple):
    """An operation of an update on a task that is held, or that was seen. `depends` changes nothing."""

    kind: Kind
    task: LeasedTask | SeenTask
    result: bytes | None = None
    """JSON, of a completion; the new payload."""
    ms: int | None = None
    """Duration of a renewal, or pause after which the task comes back (ms). None of a failure: the queue's own
    pause."""
    text: str = ""
    """The error, or the reason."""

    def is_of(self, generation: int) -> bool:
        """Return whether the task may be in this generation. If its own is not known, its batch tells."""
        return isinstance(self.task, SeenTask) or self.task.generation in (generation, 0)


class QueuePlan:
    """Plan of an update in one queue. Answers that are asked for again and again are noted as operations are added."""

    __slots__ = (
        "directory",
        "endings",
        "freezes_free_tasks",
        "has_inserts",
        "inserts",
        "keyed",
        "longest",
        "makes_available",
        "name",
        "open",
    )

    def __init__(
        self, name: str, directory: QueueDirectory, open: Callable[[], tuple[Store, SingleInserter, KeyedInserter]]
    ) -> None:
        self.name, self.directory = name, directory
        self.open = open
        """Open the queue, made if it is not there and the update inserts into it."""
        self.endings: dict[Batch, list[TaskChange]] = {}
        self.inserts: list[EncodedTask] = []
        """The inserts without keys."""
        self.keyed: dict[str, EncodedTask] = {}
        """The first task that the update inserts with each key."""
        self.has_inserts = False
        """True if the update inserts anything, with a key or without."""
        self.makes_available = False
        """True if the update makes tasks available, now or later."""
        self.freezes_free_tasks = False
        """True if the update's prepared records keep other processes from tasks that no lease holds."""
        self.longest = 0
        """The bytes of the longest task, or new payload, that the update brings."""

    def add_change(self, change: TaskChange) -> None:
        """Add a change of an existing task."""
        self.endings.setdefault(change.task.batch, []).append(change)
        if change.kind in RETURNS:
            self.makes_available = True
            if change.kind == "replace":
                self.longest = max(self.longest, len(change.result or b""))
        if isinstance(change.task, SeenTask):
            self.freezes_free_tasks = self.makes_available = True

    def insert(self, task: EncodedTask) -> None:
        """Add a task to insert."""
        self.has_inserts = self.makes_available = True
        if len(task.line) > self.longest:
            self.longest = len(task.line)
        if task.key is None:
            self.inserts.append(task)
        else:
            self.keyed.setdefault(task.key, task)

    @property
    def logs(self) -> int:
        """Return about how many logs the update changes."""
        return len(self.endings) + bool(self.inserts) + len(self.keyed)

    def ends(self, task: str) -> bool:
        """Return whether the plan ends the task of this id, or may: a failed attempt may be the last one."""
        every = (each for endings in self.endings.values() for each in endings if each.kind in ENDS)
        return any(names.task_id(each.task.batch, each.task.index) == task for each in every)

    def chunks(self, tasks_max: int) -> list[list[EncodedTask]]:
        """Return the inserts without keys in their order, in runs for one append each."""
        if len(self.inserts) <= 1:
            return [self.inserts] if self.inserts else []
        found: list[list[EncodedTask]] = []
        size = 0
        for task in self.inserts:
            size += len(task.line)
            if not found or len(found[-1]) >= min(tasks_max, APPEND_TASKS_MAX) or size > APPEND_BYTES_MAX:
                found.append([])
                size = len(task.line)
            found[-1].append(task)
        return found


class Applied:
    """Hold the changes that an update has made: new tasks, and new versions."""

    def __init__(self) -> None:
        self.inserted: dict[str, list[str]] = {}
        """The ids of the new tasks without keys, in the order of their inserts, by the queue's name."""
        self.keyed: dict[tuple[str, str], TaskRef] = {}
        """The task that each key has, by the queue's name and the key."""
        self.until: dict[tuple[Batch, int], int] = {}
        """The new ends of renewed leases (ms)."""
        self.versions: dict[tuple[Batch, int], int] = {}
        """The new versions of tasks whose payloads were replaced."""
        self.new_versions: dict[str, int] = {}
        """The versions of the new tasks without keys, by their ids."""

    def note_new(self, queue: str, batch: Batch, first: int, versions: Sequence[int]) -> None:
        """Note new tasks of a queue, from the index `first` of a batch on, each with its version."""
        assert first >= 0, "tasks of a batch are numbered from 0"
        ids = self.inserted.setdefault(queue, [])
        for index, version in enumerate(versions, first):
            identity = names.task_id(batch, index)
            ids.append(identity)
            self.new_versions[identity] = version

    def note_version(self, batch: Batch, offset: int, record: dict[str, Any]) -> None:
        """Note the version that a `replace` record gives its task. Any other record is passed over."""
        if record["op"] == "replace":
            self.versions[batch, record["tasks"][0][0]] = offset


class Conflicts:
    """The reasons why an update cannot happen."""

    def __init__(self) -> None:
        self.missing: list[Conflict] = []
        self.changed: list[Conflict] = []
        self.owned: list[Conflict] = []
        self.depends: list[Conflict] = []
        """Conflicts of the tasks that the update only depends on."""

    def __bool__(self) -> bool:
        return bool(self.missing or self.changed or self.owned or self.depends)

    def _note(self, among: list[Conflict], queue: QueuePlan, ending: TaskChange, reason: str) -> None:
        conflict = Conflict(ending.kind, queue.name, names.task_id(ending.task.batch, ending.task.index), reason)
        (self.depends if ending.kind == "depends" else among).append(conflict)

    def miss(self, queue: QueuePlan, endings: Iterable[TaskChange], reason: str) -> None:
        """Note tasks that have ended, or are gone with their queue."""
        for each in endings:
            self._note(self.missing, queue, each, reason)

    def own(self, queue: QueuePlan, ending: TaskChange, reason: str) -> None:
        """Note a task whose lease does not hold any more."""
        self._note(self.owned, queue, ending, reason)

    def judge(self, queue: QueuePlan, replay_state: ReplayState, ending: TaskChange, at: int) -> None:
        """Note why a lease does not hold at `at`, or a task is not as it was seen, by the state of the whole log."""
        index, lease = ending.task.index, ending.task.lease
        if isinstance(ending.task, SeenTask):
            self._judge_seen(queue, replay_state, ending, ending.task, at)
        elif completed_by(replay_state, index, lease):
            self.miss(queue, [ending], ALREADY)
        elif index < replay_state.count and replay_state.state[index] <= LEASED:
            self.own(queue, ending, why_lost(replay_state, index))
        else:
            self.miss(queue, [ending], why_lost(replay_state, index))

    def _judge_seen(
        self, queue: QueuePlan, replay_state: ReplayState, ending: TaskChange, task: SeenTask, at: int
    ) -> None:
        state = replay_state.state[task.index] if task.index < replay_state.count else None
        if state in (COMPLETED, CANCELLED, DEAD):
            self.miss(queue, [ending], why_lost(replay_state, task.index))
        elif state == LEASED and ending.kind != "depends" and (
            replay_state.since[task.index] > at or ending.kind == "replace"
        ):  # fmt: skip
            holder = replay_state.holder[task.index]
            worker = describe(holder.worker if holder is not None else None)
            is_in_time = replay_state.since[task.index] > at
            self.own(queue, ending, f"leased by {worker}" if is_in_time else f"{worker} {MAY_STILL_COMPLETE}")
        elif state in (AVAILABLE, LEASED):
            version = replay_state.version[task.index]
            self._note(self.changed, queue, ending, f"has the version {version} now; {task.version} was seen")
        else:
            self.miss(queue, [ending], "there is no such task")

    def error(self) -> UpdateConflict:
        """Return the error that lists all conflicts."""
        found = [*self.missing, *self.changed, *self.owned, *self.depends]
        which = "; ".join(f"{each.op} {each.id} in {each.queue}: {each.reason}" for each in found[:3])
        more = f"; and {len(found) - 3:,} more" if len(found) > 3 else ""
        done = all(each.reason == ALREADY for each in found) and not self.depends
        then = "An earlier update with this lease has completed it." if done else LOOK_AGAIN
        return UpdateConflict(
            f"The update cannot happen ({which}{more}). Nothing of it was done now. {then}",
            missing=self.missing,
            changed=self.changed,
            owned=self.owned,
            depends=self.depends,
        )


def _may_be_changed(replay_state: ReplayState, ending: TaskChange, at: int) -> bool:
    """Return whether an update may change a task: its lease holds, or the task is still as the update saw it.

    A task that was seen must be free to be changed. To be depended on, it must have no outcome.

    A lease that has run out may still complete its task. So the payload is not replaced under it: the worker would
    complete the old one, and the new one would never be executed. A cancellation ends the lease.
    """
    task = ending.task
    is_depended_on = ending.kind == "depends"
    if not isinstance(task, SeenTask):
        if is_depended_on:  # others may depend on it, too
            return bool(replay_state.named_by([task.index], task.lease))
        return replay_state.holds(task.index, task.lease)
    if task.index >= replay_state.count or replay_state.version[task.index] != task.version:
        return False
    if is_depended_on:
        return replay_state.state[task.index] in (AVAILABLE, LEASED)
    is_available = replay_state.state[task.index] == AVAILABLE
    return replay_state.is_free(task.index, at) and (is_available or ending.kind == "cancel")


def completes_one(endings: Sequence[TaskChange]) -> LeasedTask | None:
    """Return the leased task, if one is completed without a result, as in most updates; else None."""
    kind, task, result, _, _ = endings[0]
    if kind != "complete" or result is not None or len(endings) > 1 or isinstance(task, SeenTask):
        return None
    return task


def in_the_way(locked: LockedBatch, endings: Sequence[TaskChange]) -> list[Undecided]:
    """Return the updates whose decision must be waited for before these operations can be judged."""
    if not locked.replay_state.prepared:
        return []  # as in most updates
    changed = [each.task.index for each in endings if each.kind != "depends"]
    return deciding.freezing(locked, changed, [each.task.index for each in endings if each.kind == "depends"])


def check(locked: LockedBatch, queue: QueuePlan, endings: Sequence[TaskChange], at: int, conflicts: Conflicts) -> bool:
    """Return whether all leases hold, and all tasks have the versions that were seen; note the conflicts."""
    replay_state = locked.replay_state
    lost = [each for each in endings if not _may_be_changed(replay_state, each, at)]
    if lost:
        replay_state = locked.recall()
        for ending in lost:
            conflicts.judge(queue, replay_state, ending, at)
    late = [each for each in endings if each.kind == "renew" and each not in lost]
    for ending in late:
        if at >= replay_state.since[ending.task.index]:
            conflicts.own(queue, ending, EXPIRED)
            lost.append(ending)
    return not lost


class Records:
    """Make the records of an update, in one log, that change existing tasks."""

    def __init__(self, locked: LockedBatch, endings: Sequence[TaskChange], part: UpdatePart, at: int) -> None:
        self.made: list[tuple[Record, bytes | None]] = []
        """Each with its line, where that has what was given as JSON."""
        self.until: dict[int, int] = {}
        """The new ends of leases (ms), by the tasks' indices."""
        self.buried: list[int] = []
        """The tasks that they bury: they need dead letters once the records act."""
        self.earliest: int | None = None
        """The earliest time at which one of these tasks may be leased again (ms): see `transitions.name_earlier`."""
        self._locked, self._part, self._at = locked, part, at
        self._work = worktimes.measure_work([each.task for each in endings if isinstance(each.task, LeasedTask)])
        for found in _alike_together(endings):
            kind, task, result, ms, text = found[0]
            if kind in ("cancel", "replace", "depends"):
                self._change(kind, task.lease or None, sorted(found, key=lambda each: each.task.index))
                continue
            self._add(kind, task.lease, [each.task.index for each in found], result, -1 if ms is None else ms, text)

    def _change(self, kind: str, lease: str | None, found: Sequence[TaskChange]) -> None:
        """Cancel tasks, depend on them, or replace the payload of one.

        `found` ascends: versions stand in the order of the indices.
        """
        if kind != "replace":
            versions = [each.task.version for each in found] if lease is None else None
            self._record(kind, lease, [each.task.index for each in found], versions=versions)
        else:
            [(_, task, payload, _, _)] = found
            assert payload is not None
            version = task.version if lease is None else None
            self.made.append(movements.replacement(self._at, lease, version, task.index, payload, self._part))

    def _add(self, kind: str, lease: str, tasks: list[int], result: bytes | None, ms: int, text: str) -> None:
        locked, at = self._locked, self._at
        if kind == "renew":
            until = at + ms
            self._promise(until)
            self.until.update(dict.fromkeys(tasks, until))
            self._record("renew", lease, tasks, until=until)
            return
        more = worktimes.work_fields(self._work, locked, tasks, at)
        if kind == "complete":
            if result is None:
                self._record("complete", lease, tasks, **more)
            else:
                self.made.append(movements.completion(at, lease, tasks, result, **more, **self._part.fields))
        elif kind == "release":
            self._promise(at + ms)
            self._record("release", lease, tasks, available_at=at + ms, **more)
        elif kind == "bury":
            self.buried += tasks
            self._record("bury", lease, tasks, reason=text, **more)
        else:
            self._fail(lease, tasks, ms, text)

    def _fail(self, lease: str, tasks: list[int], ms: int, error: str) -> None:
        locked, at, most = self._locked, self._at, self._locked.store.settings.max_attempts
        for index in tasks:
            attempts = locked.replay_state.attempts[index] + 1
            more = worktimes.work_fields(self._work, locked, [index], at)
            if most is not None and attempts >= most:
                self.buried.append(index)
                self._record("bury", lease, [index], reason=error, **more)
                continue
            available_at = at + (ms if ms >= 0 else transitions.backoff_ms(locked.store, attempts))
            self._promise(available_at)
            self._record("fail", lease, [index], **more, available_at=available_at, error=error)

    def _record(self, op: str, lease: str | None, tasks: list[int], **fields: object) -> None:
        made = movements.record(op, self._at, lease=lease, tasks=to_ranges(tasks), **fields, **self._part.fields)
        self.made.append((made, None))

    def add(self) -> None:
        """Add the records to the log."""
        for record, line in self.made:
            self._locked.log.add(record, line)

    def _promise(self, available_at: int) -> None:
        self.earliest = available_at if self.earliest is None else min(self.earliest, available_at)

    def name_earlier(self) -> None:
        """Give the task file a name that does not promise a later time, before the records are appended."""
        if self.earliest is not None:
            transitions.name_earlier(self._locked, self._at, self.earliest)


def _alike_together(endings: Sequence[TaskChange]) -> list[Sequence[TaskChange]]:
    """Return the endings in runs that share a record."""
    if len(endings) == 1:
        return [endings]
    return [list(alike) for _, alike in groupby(sorted(endings, key=_alike), key=_alike)]


def _alike(ending: TaskChange) -> tuple[str, str, int, int, str]:
    """Return the fields that endings have in common which share a record. Of those with results or payloads each has
    its own."""
    own = ending.task.index if ending.result is not None else -1
    return ending.kind, ending.task.lease, own, -1 if ending.ms is None else ending.ms, ending.text
