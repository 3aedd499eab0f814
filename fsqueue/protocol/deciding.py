"""Get updates decided of which a batch has prepared records (docs/design.md, section 4.22).

A process that needs a decision notes which one under the log's lock, and asks for it when the log is unlocked: reading
a decision file may wait for another host, and no process waits with a log locked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fsqueue.clock import Backoff
from fsqueue.errors import FsqueueError, LockTimeout
from fsqueue.format import movements
from fsqueue.format.decisions import Decision, LogName, Outcome
from fsqueue.format.names import Batch, UpdateId
from fsqueue.format.replay import AVAILABLE, ReplayState
from fsqueue.format.task_states import Prepared
from fsqueue.interruptions import let_out
from fsqueue.protocol import finishing
from fsqueue.storage import decisions, group_queues, record_times
from fsqueue.storage.decisions import DecisionRequest
from fsqueue.storage.locked_batch import LEAST_WAIT_S, LockedBatch, Undecided
from fsqueue.storage.store import Store

MAKES_AVAILABLE = frozenset({"insert", "release", "fail"})
"""The kinds of prepared records whose `commit` makes a task available."""
JOINED_MS = 100
"""Milliseconds after the first of several updates that depend on a task within which a further one may join them. An
update on a file server takes about this long."""
PAUSES_S = (0.005, 0.25)
"""Shortest and longest pause between two looks at what a verb waits for: an update is decided in milliseconds, or when
it is old."""


class TaskFrozen(LockTimeout):
    """A task is part of an update that stayed undecided. Nothing was done to it."""


def give(locked: LockedBatch, update: UpdateId, outcome: Outcome) -> bool:
    """Append the outcome of an update to a locked log, and do what follows from it. False if it has one already.

    The decision was read from the decision file, or made there: it is on disk. What an append of the same records
    would do is done here: dead letters are written, and a batch whose tasks all have outcomes is finished. The caller
    notifies the queue's idle workers once the log is unlocked. OSError as from any append.
    """
    prepared = locked.replay_state.prepared.get(update)
    if prepared is None:
        return False
    is_commit = outcome == "commit"
    of = len(prepared.records) if is_commit else None
    locked.append_record(outcome, record_times.next_at(locked), update=update, of=of)
    dead = _buried(prepared) if is_commit else []
    if dead:
        finishing.write_letters(locked, dead)
    if not locked.replay_state.remaining:
        finishing.try_finish(locked)
    return True


def _buried(prepared: Prepared) -> list[int]:
    """Return the tasks that prepared records bury."""
    return [
        index
        for _, _, record in prepared.records
        if record["op"] == "bury"
        for index in movements.from_ranges(record["tasks"])
    ]


def decide(store: Store, batch: Batch, wanted: Sequence[Undecided], wait_s: float) -> bool:
    """Ask for the decisions about some updates, and append their outcomes to the batch's log. Return whether all are
    decided.

    Decide against those that are old. Call it while no log is locked; it waits for the log's lock as `LockedBatch`
    does. LockTimeout; OutOfGroup if the queue was moved out of its group; OSError if a decision cannot be read.
    """
    decided = decisions.ask_all(
        store, [DecisionRequest(each.file, each.update, each.is_old, each.beside) for each in wanted]
    )
    if decided:
        given = False
        try:
            with LockedBatch(store, batch, wait_s) as locked:
                for update, decision in decided.items():
                    if locked.log.fd < 0:
                        break  # the last one has finished the batch
                    given = give(locked, update, decision.outcome) or given
        except FileNotFoundError:
            pass  # the batch has finished, or was purged: all of its updates were decided
        finally:
            if given:
                store.doorbell.ring()
        _give_others(store, batch, {each.update: decided[each.update] for each in wanted if _is_left(each, decided)})
    return len(decided) == len(wanted)


def _is_left(each: Undecided, decided: Mapping[UpdateId, Decision]) -> bool:
    """Return whether an update was committed so long ago that its process must have died, or is held up."""
    return each.is_old and each.update in decided and decided[each.update].outcome == "commit"


def _give_others(store: Store, batch: Batch, committed: Mapping[UpdateId, Decision]) -> None:
    """Append the outcomes of committed updates to the other logs that the commits name: no worker may be looking at
    those.

    What fails is left to the next process that meets the records.
    """
    updates: dict[LogName, list[UpdateId]] = {}
    for update, decision in committed.items():
        for name in decision.logs:
            if name.batch != batch:
                updates.setdefault(name, []).append(update)
    if not updates:
        return
    try:
        group = decisions.group_of(store)
    except (OSError, FsqueueError) as error:
        let_out(error)
        return
    for name, of_log in updates.items():
        try:
            with group_queues.opened(group, name, store) as queue:
                if queue is not None:
                    _give_all(queue, name.batch, of_log)
        except (OSError, FsqueueError) as error:
            let_out(error)
            continue


def _give_all(queue: Store, batch: Batch, updates: Sequence[UpdateId]) -> None:
    given = False
    with LockedBatch(queue, batch, 0) as locked:
        for update in updates:
            if locked.log.fd >= 0:
                given = give(locked, update, "commit") or given
    if given:
        queue.doorbell.ring()


def freezing(locked: LockedBatch, tasks: Iterable[int], depends: Iterable[int] = ()) -> list[Undecided]:
    """Return the updates that keep others from changing any of `tasks`, or from depending on any of `depends`: those
    that freeze it, or insert it.

    A reader shows an inserted task as soon as its update is decided. So its log may not have the outcome yet, when a
    verb comes for the task. Several updates may depend on a task at the same time. But if it has been frozen for long
    by one after the other, a new one waits: otherwise the task could never be changed.
    """
    replay_state = locked.replay_state
    if not replay_state.prepared:
        return []
    wanted, shared = set(tasks), replay_state.shared
    joined_from = record_times.next_at(locked) - JOINED_MS if shared else 0
    wanted.update(index for index in depends if index not in shared or shared[index].at < joined_from)
    updates = {
        update
        for update, each in replay_state.prepared.items()
        if not wanted.isdisjoint(each.tasks) or not wanted.isdisjoint(each.inserted)
    }
    return [each for each in locked.undecided() if each.update in updates] if updates else []


def may_free_a_task(replay_state: ReplayState, at: int) -> bool:
    """Return whether an outcome of what is prepared may make a task available that is not now, at `at`."""
    for prepared in replay_state.prepared.values():
        if any(record["op"] in MAKES_AVAILABLE for _, _, record in prepared.records):
            return True
        if any(replay_state.state[index] == AVAILABLE or replay_state.since[index] <= at for index in prepared.tasks):
            return True
    return False


class DecisionWait:
    """Wait for decisions about tasks of a batch that a verb needs, as it would wait for the batch's lock.

    waiting = DecisionWait(store, batch, wait_s)
    while True:
        with LockedBatch(store, batch, waiting.wait_s) as locked:
            wanted = freezing(locked, tasks)
            if not wanted:
                ...
                return
        waiting.out(wanted)
    """

    def __init__(self, store: Store, batch: Batch, wait_s: float) -> None:
        self._store, self._batch = store, batch
        self._until = store.clock.monotonic() + wait_s
        self._is_patient = wait_s > 0
        self._backoff: Backoff | None = None

    @property
    def wait_s(self) -> float:
        """Return how long to wait for the lock now, in seconds; 0 if the caller waits for nothing."""
        return max(LEAST_WAIT_S, self._until - self._store.clock.monotonic()) if self._is_patient else 0.0

    def out(self, wanted: Sequence[Undecided]) -> None:
        """Get some updates decided, or pause before the next look. TaskFrozen once the time is over."""
        store, clock = self._store, self._store.clock
        if decide(store, self._batch, wanted, self.wait_s):
            return
        left_s = self._until - clock.monotonic()
        if left_s <= 0:
            raise TaskFrozen(
                f"A task of batch {self._batch} in {store.path} is part of update {wanted[0].update}, which is not "
                "decided yet. Nothing was done to it; repeat the call."
            )
        if self._backoff is None:
            self._backoff = Backoff(PAUSES_S, store.entropy.random, 1.5, 0.5)
        clock.sleep(min(left_s, self._backoff.next_s()))
