"""Apply an update: prepare it in each log, decide, and give each log the outcome (docs/design.md, section 4.22).

A process holds one log's lock at a time. Up to the decision the update is given up by an `abort` in each log. Once the
decision has begun, only the decision file tells what the outcome is.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from fsqueue import forks
from fsqueue.clock import Backoff
from fsqueue.errors import (
    Conflict,
    FsqueueError,
    InvalidArgument,
    LockTimeout,
    QueueClosed,
    QueueNotFound,
    StorageError,
    UpdateConflict,
    from_os_error,
)
from fsqueue.filesystem import LOST
from fsqueue.format import names
from fsqueue.format.decisions import ABORTED, Decision, LogName, Outcome
from fsqueue.format.movements import UpdatePart
from fsqueue.format.names import Batch, DecisionFileName
from fsqueue.format.priority import LAST
from fsqueue.format.replay import PATIENCE_MS
from fsqueue.interruptions import is_interruption, let_out
from fsqueue.leased_task import LeasedTask
from fsqueue.protocol import deciding, transitions, update_traces
from fsqueue.protocol.encoding import EncodedTask
from fsqueue.protocol.insert_errors import AppendFailed
from fsqueue.protocol.keyed_inserts import KeyedInserter
from fsqueue.protocol.losses import DELETED, FINISHED_OR_PURGED, PURGED, why_unknown
from fsqueue.protocol.single_inserts import SingleInserter
from fsqueue.protocol.update_in_one_log import UpdateInOneLog
from fsqueue.protocol.update_plan import (
    Applied,
    Conflicts,
    QueuePlan,
    Records,
    SeenTask,
    TaskChange,
    check,
    completes_one,
    in_the_way,
)
from fsqueue.protocol.update_syncs import LogSync, LogSyncs
from fsqueue.storage import decisions, history, journals, record_times
from fsqueue.storage.decisions import OwnDecisionFiles, Vote
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.locked_batch import LEAST_WAIT_S, LockedBatch
from fsqueue.storage.store import Store

SLOWER = 4
"""The patience of an update is this factor times what its logs take, at the speed of the last update's logs."""
LOG_S_MAX = 5.0
"""Longest time in seconds that a log counts for. A process that took longer was stopped, or waited for another one: if
its next update had as much patience, its death would freeze tasks for an hour.
"""
OUTCOME_WAIT_S = 2.0
"""Seconds to wait for the lock of a log that is to get its outcome. Otherwise another process gives it."""
SETTLE_WAIT_S = 10.0
"""Seconds to wait for the lock of the decision file, if it is open what was decided."""
PAUSES_S = (0.01, 1.0)
"""Shortest and longest pause before an update begins anew."""
FAILURES_MAX = 3
"""Maximum number of tries that may end with a lost lock: a broken disk gives the same error."""
_DIRECTORY = attrgetter("directory")
NOTHING = "Nothing of the update has happened; it may be applied again."
"""The reason of a conflict if nothing tells any more what has become of a task that was seen."""


class _Anew(Exception):
    """Raised if an update was given up, and may succeed if it begins anew."""


class _Opened(NamedTuple):
    """A queue that an update changes, open."""

    plan: QueuePlan
    store: Store
    inserter: SingleInserter
    keyed: KeyedInserter


class _Touched:
    """A log that has prepared records of an update, or may have."""

    __slots__ = ("batch", "has_new_name", "is_begun", "layout", "log", "opened", "records")

    def __init__(self, opened: _Opened, locked: LockedBatch, syncs: bool) -> None:
        self.opened, self.batch, self.layout = opened, locked.batch, locked.log.layout
        self.log = LogSync(locked, syncs)
        self.records = 0
        """Number of records that were appended."""
        self.is_begun = False
        """True if the log was begun for these records, beside a task file whose name may not be on disk yet."""
        self.has_new_name = False

    @property
    def name(self) -> LogName:
        """Return how the decision file calls the log."""
        return LogName(self.opened.plan.directory, self.layout.directory, self.batch)


def _has_seen(changes: Sequence[TaskChange]) -> bool:
    return any(isinstance(each.task, SeenTask) for each in changes)


def _require_in_place(store: Store) -> None:
    """Raise _Anew if a queue's directory is not in the group any more. The next try opens what is there then."""
    if not store.fs.is_in_place():
        store.queue_file.forget()
        raise _Anew("The directory of a queue was moved just now.")


class Coordinator:
    """Apply updates in one group. Threads may share it."""

    def __init__(self) -> None:
        self.files = OwnDecisionFiles()
        self.syncs = LogSyncs()
        self.log_s = 0.0
        """Time that each log took in the last update (s), its sync and its part of the decision included."""

    def close(self) -> None:
        """Leave the decision file. The next update begins another one."""
        self.files = OwnDecisionFiles()

    def apply(self, directory: Callable[[], GroupDirectory], queues: Sequence[QueuePlan], timeout_s: float) -> Applied:
        """Let an update happen. It is tried anew for up to `timeout_s` while others are in the way.

        `directory` returns the open group that is in its place, for each try: another one may have come there. It is
        asked also if there is nothing to do.
        UpdateConflict: nothing has happened. StorageError with `advice`: it is unknown whether it has. Of any other
        error the text says it.
        """
        group = directory()
        if not queues:
            return Applied()
        clock, backoff = group.clock, None
        until = clock.monotonic() + timeout_s
        tries = failures = 0
        while True:
            try:
                return _Try(self, group, queues, tries, until).apply()
            except (_Anew, LockTimeout) as busy:
                why: Exception = busy
            except OSError as error:
                let_out(error)
                failures += 1
                if error.errno not in LOST or failures >= FAILURES_MAX:
                    raise from_os_error(error, f"applying an update in {group.path}", NOTHING) from error
                why = error
            left_s = until - clock.monotonic()
            if left_s <= 0:
                raise _busy(queues, why) from why
            tries += 1
            backoff = backoff or Backoff(PAUSES_S, group.entropy.random, 2.0, 0.5)
            clock.sleep(min(left_s, backoff.next_s()))
            group = directory()

    def patience_ms(self, logs: int, tries: int) -> int:
        """Return how long others wait before they decide against an update that changes `logs` logs, and was given up
        `tries` times before.
        """
        return max(PATIENCE_MS[0], round(SLOWER * self.log_s * 1000 * (logs + 1))) << min(tries, 10)


def _busy(queues: Sequence[QueuePlan], why: BaseException) -> UpdateConflict:
    return UpdateConflict(
        f"Other processes were in the way of the update until its time was over. {why} {NOTHING}",
        busy=[Conflict("update", queue.name, "", str(why)) for queue in queues],
    )


def _own_key(plan: QueuePlan, key: str) -> InvalidArgument:
    return InvalidArgument(
        f"The update ends the task of {plan.name} that has the key {key!r:.100}, and inserts a task with this key. It "
        f"cannot do both. {NOTHING} To do that task again, release it, with a delay; or leave the insert out."
    )


class _Try:
    """One try at an update, under an id of its own."""

    def __init__(
        self, coordinator: Coordinator, group: GroupDirectory, queues: Sequence[QueuePlan], tries: int, until: float
    ) -> None:
        self._coordinator, self._group, self._tries = coordinator, group, tries
        self._clock, self._entropy = group.clock, group.entropy
        self._until = until
        """Time at which the try must end, on the monotonic clock."""
        self._process = forks.depth
        self._update = names.new_update(group.entropy)
        self._part = UpdatePart(self._update)
        """Fields of the next prepared records that say of which update they are."""
        self._conflicts, self._applied = Conflicts(), Applied()
        self._touched: list[_Touched] = []
        self._collapsed: list[tuple[_Opened, int]] = []
        """The queues in which a key is taken, each with the generation in which its task lives."""
        self._queues: list[_Opened] = []
        self._syncs = False
        for plan in sorted(queues, key=_DIRECTORY) if len(queues) > 1 else queues:
            self._open(plan)
        if len(queues) > 1:
            self._refuse_copies()

    def _refuse_copies(self) -> None:
        """Raise InvalidArgument if one of the queues is a copy of another one: their tasks have the same ids, and what
        the update tells of a task is told by its id.
        """
        paths: dict[str, str] = {}
        for opened in self._queues:
            path = opened.store.path
            if (other := paths.setdefault(opened.store.queue_state.id, path)) != path:
                raise InvalidArgument(
                    f"{other} and {path} have the same id: one is a copy of the other, and their tasks have the same "
                    f"ids. An update changes one of the two. {NOTHING} Make an update for each, or take the copy out "
                    "of the group."
                )

    def _open(self, plan: QueuePlan) -> None:
        try:
            store, inserter, keyed = plan.open()
        except QueueNotFound:
            if not plan.endings or not self._group.is_in_place():
                raise _Anew("A queue was deleted just now, or its group is away.") from None
            for endings in plan.endings.values():
                self._conflicts.miss(plan, endings, DELETED)
            return
        self._require_same_group(plan, store)
        generation = store.queue_file.state.generation
        for endings in plan.endings.values():
            if purged := [each for each in endings if not each.is_of(generation)]:
                self._conflicts.miss(plan, purged, PURGED)
        self._queues.append(_Opened(plan, store, inserter, keyed))
        self._syncs = self._syncs or store.sync_inserts

    def _require_same_group(self, plan: QueuePlan, store: Store) -> None:
        """Raise _Anew if a queue is of another group than the decision file would be; NotAQueue if it lies in this one.

        The group may have been moved away just now, and another one made in its place, with the queue in it. Other
        processes would look for the decision in that one, find none, and give its log an `abort`.
        """
        if store.queue_state.group == self._group.state.id:
            return
        if self._group.fs.is_in_place():
            self._group.prove(store, plan.directory)
        raise _Anew("The group was moved just now, and another one made in its place.")

    @property
    def _wait_s(self) -> float:
        return max(0.0, self._until - self._clock.monotonic())

    def apply(self) -> Applied:
        """Let the update happen. _Anew, LockTimeout or OSError: it has not, and may if it begins anew."""
        if not self._conflicts and self._apply_in_one_log():
            return self._applied
        if self._conflicts:
            self._check_all()
            raise self._conflicts.error()
        began = self._clock.monotonic()
        worker = self._queues[0].store.worker
        file = self._coordinator.files.present(self._group, self._clock, self._entropy, worker, self._syncs)
        logs = sum([each.plan.logs for each in self._queues])
        vote = Vote(self._update, [])
        try:
            self._prepare(UpdatePart(self._update, file.name, self._coordinator.patience_ms(logs, self._tries)))
            self._look()
            if not self._touched:
                return self._applied  # all keys were taken
            self._sync()
            vote.logs += [each.name for each in self._touched]
            decision = file.decide(vote, self._clock, self._entropy, self._syncs)
        except BaseException as error:
            if forks.depth != self._process:
                raise  # the update is the parent's
            if not vote.is_begun:
                self._give("abort")
                if type(error) is StorageError:  # a lock was lost, perhaps
                    raise StorageError(f"{error} {NOTHING}") from error
                raise
            decision = self._settle(file.name, error)
            self._give(decision.outcome)
            if not isinstance(error, (OSError, FsqueueError)) or is_interruption(error):
                raise  # it ends the call, whatever is decided
            if decision.outcome == "abort":
                raise _Anew(str(error)) from error
        else:
            self._give(decision.outcome)
        if decision.outcome == "abort":
            raise _Anew("Another process has decided against the update.")
        self._coordinator.log_s = min(LOG_S_MAX, (self._clock.monotonic() - began) / logs)
        if not vote.is_durable:
            raise StorageError(
                f"The update has happened. Its decision in {file.path} could not be synced: a power loss may still "
                "take a part of it. Do not apply it again, and check the disk."
            )
        return self._applied

    def _apply_in_one_log(self) -> bool:
        """Let the update happen by one write, if one log takes all of it. Return whether it has happened."""
        if len(self._queues) > 1:
            return False
        [(plan, store, inserter, _)] = self._queues
        if plan.keyed or len(plan.endings) > 1 or len(plan.chunks(store.settings.batch_tasks_max)) > 1:
            return False
        _require_in_place(store)
        if not plan.endings:
            return self._insert_together(plan, inserter)
        one = UpdateInOneLog(self._update, plan, store, inserter, self._conflicts, self._applied)
        try:
            if not one.apply(self._coordinator.syncs, self._until):
                if self._conflicts:
                    raise self._conflicts.error()  # that log has all of it: nothing else is to be checked
                return False
        except FileNotFoundError:
            return False  # the batch has finished: what comes next finds that, too
        self._notify()
        return True

    def _insert_together(self, plan: QueuePlan, inserter: SingleInserter) -> bool:
        """Let an update happen that does nothing but insert into one batch. Return True."""
        try:
            self._applied.note_new(plan.name, *inserter.insert_together(plan.inserts))
        except QueueClosed:
            raise _Anew("A queue was deleted just now.") from None
        except QueueNotFound as moved:  # with what was inserted, perhaps
            raise update_traces.unknown(moved) from moved
        except AppendFailed as failed:
            if not failed.is_exact:
                raise update_traces.unknown(failed.error) from failed.error
            if failed.new:
                raise update_traces.not_durable(failed.error) from failed.error
            raise _Anew(str(failed.error)) from failed.error
        except StorageError as error:
            if type(error) is not StorageError:
                raise
            raise StorageError(f"{error} {NOTHING}") from error
        return True

    # -- 2. prepare --------------------------------------------------------------------------------

    def _prepare(self, part: UpdatePart) -> None:
        self._part = part
        for opened in self._queues:
            if opened.plan.endings:
                for batch, endings in sorted(opened.plan.endings.items()):
                    self._in_log(opened, batch, endings, self._part)
        if self._conflicts:
            raise self._conflicts.error()
        for opened in self._queues:
            tasks_max = opened.store.settings.batch_tasks_max
            for chunk in opened.plan.chunks(tasks_max):
                self._insert(opened, chunk)
        self._insert_keyed()
        self._notify()

    def _check_all(self) -> None:
        """Note all conflicts. No record of the update is written."""
        for opened in self._queues:
            for batch, endings in sorted(opened.plan.endings.items()):
                if all(each.is_of(opened.store.queue_state.generation) for each in endings):
                    self._in_log(opened, batch, endings, None)

    def _in_log(self, opened: _Opened, batch: Batch, endings: Sequence[TaskChange], part: UpdatePart | None) -> None:
        """Prepare what changes tasks of one batch, or note why that cannot be. `part` None: only note it.

        A task that was seen may wait in a file: then the batch's log is begun.
        """
        store = opened.store
        one = completes_one(endings)
        file = transitions.file_of_waiting(store, batch) if one is None and _has_seen(endings) else None
        is_begun = False
        waiting = deciding.DecisionWait(store, batch, self._wait_s)
        try:
            while True:
                with LockedBatch(store, batch, waiting.wait_s, create=file is not None) as locked:
                    if file is not None:
                        is_begun = not locked.replay_state.opened or is_begun
                        if not transitions.begin_waiting(locked, file):
                            raise FileNotFoundError(errno.ENOENT, "The batch has finished just now")
                    elif not locked.replay_state.opened:  # made anew for a batch that has finished
                        raise FileNotFoundError(errno.ENOENT, "The batch has finished")
                    wanted = in_the_way(locked, endings) if locked.replay_state.prepared else []
                    if not wanted:
                        at = record_times.next_at(locked)
                        if part and one and not self._conflicts and self._complete_one(opened, locked, one, part, at):
                            return
                        if check(locked, opened.plan, endings, at, self._conflicts) and part and not self._conflicts:
                            self._change(opened, locked, endings, part, at).is_begun |= is_begun
                        return
                waiting.out(wanted)
        except FileNotFoundError:
            self._judge_finished(opened, batch, endings)

    def _complete_one(self, opened: _Opened, locked: LockedBatch, task: LeasedTask, part: UpdatePart, at: int) -> bool:
        """Prepare the completion of one task. False if its lease does not hold: then nothing was done.

        It does what `_change` does, with fewer looks.
        """
        if not locked.replay_state.holds(task.index, task.lease):
            return False  # the log may not even have such a task, of which `worktimes` could ask
        record = transitions.completion(locked, task, at, part)
        self._touch(opened, locked).records += 1
        if not locked.log.add(record):
            raise StorageError(f"The records of an update do not apply in {locked.log.path}.")
        locked.log.write()
        return True

    def _change(
        self, opened: _Opened, locked: LockedBatch, endings: Sequence[TaskChange], part: UpdatePart, at: int
    ) -> _Touched:
        records = Records(locked, endings, part, at)
        records.name_earlier()
        touched = self._touch(opened, locked)
        touched.records += len(records.made)
        records.add()
        locked.log.write()
        prepared = locked.replay_state.prepared.get(self._update)
        if prepared is None or len(prepared.records) != touched.records:
            raise StorageError(f"The records of an update do not apply in {locked.log.path}.")
        for index, until in records.until.items():
            self._applied.until[locked.batch, index] = until
        for offset, _, record in prepared.records:
            self._applied.note_version(locked.batch, offset, record)
        return touched

    def _judge_finished(self, opened: _Opened, batch: Batch, endings: Sequence[TaskChange]) -> None:
        """Note the tasks of a batch that has no log any more: the history may tell how they have ended."""
        plan, store = opened.plan, opened.store
        store.refresh(now=True)
        generation = store.queue_state.generation
        if not all(each.is_of(generation) for each in endings):
            self._conflicts.miss(plan, endings, PURGED)
            return
        state = history.replay(history.find(store, batch) or [])
        for ending in endings:
            if state.count > ending.task.index:
                self._conflicts.judge(plan, state, ending, 0)
            else:
                task = ending.task
                if isinstance(task, SeenTask):
                    why = FINISHED_OR_PURGED
                else:
                    why = why_unknown(store.queue_state, task.generation)
                self._conflicts.miss(plan, [ending], why)

    def _insert(self, opened: _Opened, tasks: Sequence[EncodedTask]) -> None:
        try:
            found = opened.inserter.prepare(tasks, self._part, partial(self._note_inserts, opened, tasks))
        except QueueNotFound:
            raise _Anew("A queue was deleted just now.") from None
        self._applied.note_new(opened.plan.name, found.batch, found.first, found.versions)

    def _note_inserts(self, opened: _Opened, tasks: Sequence[EncodedTask], locked: LockedBatch) -> None:
        touched = self._touch(opened, locked)
        touched.records += len(tasks)
        touched.has_new_name = touched.has_new_name or any(task.rank != LAST for task in tasks)

    def _insert_keyed(self) -> None:
        """Prepare the inserts with keys, after all others. An insert that waits for another update waits for one that
        inserts with the same key. All go through their keys in one order, so none waits in a circle.
        """
        keyed = [opened for opened in self._queues if opened.plan.keyed]
        if not keyed:
            return
        ordered = sorted(
            (names.key_digest(key), opened.plan.directory, key, opened) for opened in keyed for key in opened.plan.keyed
        )
        for _, _, key, opened in ordered:
            task, generation = opened.plan.keyed[key], opened.store.queue_state.generation

            note = partial(self._note_inserts, opened, [task])
            wait_s = max(LEAST_WAIT_S, min(journals.LOCK_TIMEOUT_S, self._wait_s))
            try:
                ref = opened.keyed.prepare(task, self._part, note, self._syncs, wait_s)
            except QueueNotFound:
                raise _Anew("A queue was deleted just now.") from None
            if ref is None:
                raise _Anew("A queue was purged just now.")
            if not ref.inserted:
                if opened.plan.ends(ref.id):
                    raise _own_key(opened.plan, key)
                self._collapsed.append((opened, generation))
            self._applied.keyed[opened.plan.name, key] = ref

    def _touch(self, opened: _Opened, locked: LockedBatch) -> _Touched:
        for touched in self._touched:
            if touched.batch == locked.batch and touched.opened is opened:
                return touched
        touched = _Touched(opened, locked, self._syncs)
        if not self._touched:  # it is the first that gets the outcome: the records in all others name it
            self._part = self._part._replace(beside=touched.name)
        self._touched.append(touched)
        return touched

    # -- 3. and 4. look, sync ----------------------------------------------------------------------

    def _look(self) -> None:
        """Ask each queue of an update whether it is still in the generation that has the update's records, and
        in the group.
        """
        for opened in self._queues:
            store = opened.store
            try:
                store.verify()
            except QueueNotFound:
                raise _Anew("A queue was deleted just now.") from None
            _require_in_place(store)
        for touched in self._touched:
            if touched.layout.generation != touched.opened.store.queue_state.generation:
                raise _Anew("A queue was purged just now.")
        for opened, generation in self._collapsed:
            if generation != opened.store.queue_state.generation:
                raise _Anew("A queue was purged just now.")

    def _sync(self) -> None:
        if not self._syncs:
            return
        self._coordinator.syncs.sync(
            [
                (touched.log, touched.opened.plan.has_inserts or touched.is_begun, touched.has_new_name)
                for touched in self._touched
            ]
        )
        for opened in self._queues:
            if opened.plan.has_inserts:
                opened.store.secure_generation()

    # -- 5. and 6. what was decided ----------------------------------------------------------------

    def _settle(self, file: DecisionFileName, error: BaseException) -> Decision:
        """Return the decision, after an error at deciding: only its file tells, or the logs if it is gone."""
        last: BaseException = error
        for _ in range(2):
            try:
                found = decisions.vote_against(
                    self._group, file, self._update, self._clock, self._entropy, SETTLE_WAIT_S
                )
            except FileNotFoundError:
                found = None
            except (OSError, FsqueueError) as another:
                let_out(another)
                last = another
                continue
            return found if found is not None else self._ask_logs(error)
        raise update_traces.unknown(error) from last

    def _ask_logs(self, error: BaseException) -> Decision:
        """Return the decision as the logs tell it, once the decision file is retired: before that each log had its
        outcome."""
        for touched in self._touched:
            try:
                acted = update_traces.acted(touched.opened.store, touched.batch, self._update)
            except (OSError, FsqueueError) as other:
                let_out(other)
                continue
            if acted is not None:
                return Decision("commit", tuple(each.name for each in self._touched)) if acted else ABORTED
        raise update_traces.unknown(error) from error

    def _give(self, outcome: Outcome) -> None:
        """Give each log the outcome. What fails is left to the next process that meets the records."""
        for touched in self._touched:
            store = touched.opened.store
            try:
                with LockedBatch(store, touched.batch, OUTCOME_WAIT_S) as locked:
                    deciding.give(locked, self._update, outcome)
            except (OSError, FsqueueError) as error:
                let_out(error)
                continue  # or it was purged, or another process has given the outcome, and finished the batch
        self._notify(outcome)

    def _notify(self, outcome: Outcome = "commit") -> None:
        """Notify idle workers where the update makes tasks available; of an `abort`, where it thaws some."""
        now = self._clock.monotonic()
        for plan, store, _, _ in self._queues:
            if plan.makes_available if outcome == "commit" else plan.freezes_free_tasks:
                store.doorbell.ring_now_and_then(now)
