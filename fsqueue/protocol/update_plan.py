"""What an update is to do, log by log: the operations on held tasks as records, and why they cannot be (section 4.22 of
the design).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal, NamedTuple

from fsqueue.errors import Conflict
from fsqueue.format import movements, names
from fsqueue.format.models import TaskRef
from fsqueue.format.movements import UpdatePart, to_ranges
from fsqueue.format.names import Batch, QueueDirectory
from fsqueue.format.replay import LEASED, ReplayState
from fsqueue.leased_task import LeasedTask
from fsqueue.protocol import transitions, worktimes
from fsqueue.protocol.encoding import EncodedTask
from fsqueue.protocol.keyed_inserts import KeyedInserter
from fsqueue.protocol.losses import EXPIRED, completed_by, why_lost
from fsqueue.protocol.single_inserts import APPEND_BYTES_MAX, APPEND_TASKS_MAX, SingleInserter
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.store import Store

Kind = Literal["complete", "renew", "release", "fail", "bury"]
ENDS = frozenset({"complete", "fail", "bury"})
"""The kinds of changes after which a task may have ended."""
ALREADY = "completed by this lease"
"""The reason of a conflict if the same lease has completed the task before."""


class LeaseChange(NamedTuple):
    """An operation of an update on a task that is held."""

    kind: Kind
    task: LeasedTask
    result: bytes | None = None
    """JSON, of a completion."""
    ms: int | None = None
    """For how long to renew; after which pause it comes back. None of a failure: the queue's own pause."""
    text: str = ""
    """The error, or the reason."""


@dataclass(slots=True)
class QueuePlan:
    """What an update does in one queue."""

    name: str
    directory: QueueDirectory
    open: Callable[[], tuple[Store, SingleInserter, KeyedInserter]]
    """Open the queue, made if it is not there and the update inserts into it."""
    endings: dict[Batch, list[LeaseChange]] = field(default_factory=dict)
    inserts: list[EncodedTask] = field(default_factory=list)
    """Those without keys."""
    keyed: dict[str, EncodedTask] = field(default_factory=dict)
    """Of each key the first task that is to be inserted with it."""

    @property
    def has_inserts(self) -> bool:
        """Return whether it inserts anything, with a key or without."""
        return bool(self.inserts or self.keyed)

    def ends(self, task: str) -> bool:
        """Return whether it ends the task of this id, or may: a failed attempt may be the last one."""
        every = (each for endings in self.endings.values() for each in endings if each.kind in ENDS)
        return any(names.task_id(each.task.batch, each.task.index) == task for each in every)

    @property
    def makes_available(self) -> bool:
        """Return whether it makes tasks available, now or later."""
        ended = (each.kind for endings in self.endings.values() for each in endings)
        return self.has_inserts or not {"release", "fail"}.isdisjoint(ended)

    def chunks(self, tasks_max: int) -> list[list[EncodedTask]]:
        """Return the inserts without keys in their order, in runs for one append each."""
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
    """What an update has brought about."""

    def __init__(self) -> None:
        self.inserted: dict[str, list[str]] = {}
        """The ids of the new tasks without keys, in the order of their inserts, by the queue's name."""
        self.keyed: dict[tuple[str, str], TaskRef] = {}
        """The task that each key has, by the queue's name and the key."""
        self.until: dict[tuple[Batch, int], int] = {}
        """The new ends of renewed leases (ms)."""


class Conflicts:
    """Why an update cannot happen."""

    def __init__(self) -> None:
        self.missing: list[Conflict] = []
        self.owned: list[Conflict] = []

    def __bool__(self) -> bool:
        return bool(self.missing or self.owned)

    def miss(self, queue: QueuePlan, endings: Iterable[LeaseChange], reason: str) -> None:
        """Note tasks that have ended, or are gone with their queue."""
        self.missing += [_conflict(queue, each, reason) for each in endings]

    def own(self, queue: QueuePlan, ending: LeaseChange, reason: str) -> None:
        """Note a task whose lease does not hold any more."""
        self.owned.append(_conflict(queue, ending, reason))

    def judge(self, queue: QueuePlan, replay_state: ReplayState, ending: LeaseChange) -> None:
        """Note why a lease does not hold, by the state of the whole log."""
        index, lease = ending.task.index, ending.task.lease
        if completed_by(replay_state, index, lease):
            self.miss(queue, [ending], ALREADY)
        elif index < replay_state.count and replay_state.state[index] <= LEASED:
            self.own(queue, ending, why_lost(replay_state, index))
        else:
            self.miss(queue, [ending], why_lost(replay_state, index))


def _conflict(queue: QueuePlan, ending: LeaseChange, reason: str) -> Conflict:
    return Conflict(ending.kind, queue.name, names.task_id(ending.task.batch, ending.task.index), reason)


def check(locked: LockedBatch, queue: QueuePlan, endings: Sequence[LeaseChange], at: int, conflicts: Conflicts) -> bool:
    """Return whether all leases hold; note those that do not."""
    replay_state = locked.replay_state
    lost = [each for each in endings if not replay_state.holds(each.task.index, each.task.lease)]
    if lost:
        replay_state = locked.recall()
        for ending in lost:
            conflicts.judge(queue, replay_state, ending)
    late = [each for each in endings if each.kind == "renew" and each not in lost]
    for ending in late:
        if at >= replay_state.since[ending.task.index]:
            conflicts.own(queue, ending, EXPIRED)
            lost.append(ending)
    return not lost


class Records:
    """The records of an update in one log that end or extend leases."""

    def __init__(self, locked: LockedBatch, endings: Sequence[LeaseChange], part: UpdatePart, at: int) -> None:
        self.lines: list[bytes] = []
        self.until: dict[int, int] = {}
        """The new ends of leases (ms), by the tasks' indices."""
        self.buried: list[int] = []
        """The tasks that they bury: they need dead letters once the records act."""
        self.earliest: int | None = None
        """The earliest time at which one of these tasks may be leased again (ms): see `transitions.name_earlier`."""
        self._locked, self._part, self._at = locked, part, at
        self._work = worktimes.worked([each.task for each in endings])
        ordered = sorted(endings, key=_alike)
        for (kind, lease, _, ms, text), alike in groupby(ordered, key=_alike):
            found = list(alike)
            self._add(kind, lease, [each.task.index for each in found], found[0].result, ms, text)

    def _add(self, kind: str, lease: str, tasks: list[int], result: bytes | None, ms: int, text: str) -> None:
        locked, at, part = self._locked, self._at, self._part
        if kind == "renew":
            until = at + ms
            self._promise(until)
            self.until.update(dict.fromkeys(tasks, until))
            self._record("renew", lease, tasks, until=until)
            return
        more = worktimes.fields(self._work, locked, tasks, at)
        if kind == "complete":
            self.lines.append(movements.complete(at, lease, tasks, result, **more, part=part))
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
            more = worktimes.fields(self._work, locked, [index], at)
            if most is not None and attempts >= most:
                self.buried.append(index)
                self._record("bury", lease, [index], reason=error, **more)
                continue
            available_at = at + (ms if ms >= 0 else transitions.backoff_ms(locked.store, attempts))
            self._promise(available_at)
            self._record("fail", lease, [index], **more, available_at=available_at, error=error)

    def _record(self, op: str, lease: str, tasks: list[int], **fields: object) -> None:
        self.lines.append(
            movements.record(op, self._at, lease=lease, tasks=to_ranges(tasks), **fields, **self._part.fields)
        )

    def _promise(self, available_at: int) -> None:
        self.earliest = available_at if self.earliest is None else min(self.earliest, available_at)

    def name_earlier(self) -> None:
        """Give the task file a name that does not promise a later time, before the records are appended."""
        if self.earliest is not None:
            transitions.name_earlier(self._locked, self._at, self.earliest)


def _alike(ending: LeaseChange) -> tuple[str, str, int, int, str]:
    """Return what endings have in common that share a record. Of those with results each has its own."""
    own = ending.task.index if ending.result is not None else -1
    return ending.kind, ending.task.lease, own, -1 if ending.ms is None else ending.ms, ending.text
