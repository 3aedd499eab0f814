"""Tell the queues how tasks ended, and renew leases, in threads of their own.

A file server that is away blocks every process that asks it, or fails its calls, for minutes. So the loop never asks.
It hands outcomes to an `OutcomeReporter`, which reports them in bulk and repeats what fails, and leases to a
`LeaseRenewer`. A lease that has run out may still be ours as long as no other worker took the task: its work goes on,
and completing it counts. If this worker takes the task again itself, the loop goes on under the new lease. So a loss is
reported only while the feeder is not leasing (`taking`): by then the loop knows what the feeder took.

A failure belongs to the lease that its work was begun under, and is never reported under another one: the task may be
here again only because that failure was reported already.
"""

from __future__ import annotations

import errno
import logging
import math
import signal
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Literal

from fsqueue import errors
from fsqueue.clock import Backoff, Clock, Entropy
from fsqueue.cluster import schedulers, slurm
from fsqueue.errors import FsqueueError, GroupNotFound, QueueNotFound
from fsqueue.filesystem.side_threads import SideThread
from fsqueue.interruptions import suppress
from fsqueue.leased_task import LeasedTask, Verbs
from fsqueue.storage.nodes import NodeFailures
from fsqueue.views import outcomes
from fsqueue.worker import completion_updates
from fsqueue.worker.background import BackgroundThread, Died
from fsqueue.worker.inserts import NONE, Inserts
from fsqueue.worker.jobs import Job
from fsqueue.worker.limits import GIVE_BACK_S, Limits

logger = logging.getLogger("fsqueue")

RETRY_S = (1.0, 15.0)
"""First and longest pause before a verb that met a failing filesystem is repeated."""
HOPELESS_S = 15.0
"""Maximum wait for the end of an error that does not look as if it would pass."""
FLUSH_S = 0.1
"""Completions are told at once; those that follow sooner than this are told together."""

TOGETHER_MAX = 512
"""Maximum number of outcomes, with results of up to 64 KiB each, in one call."""

TAKING_S = 10.0
"""Maximum wait for a look of the feeder to end before a loss is told. Usually a look takes milliseconds."""

DOUBT_S = 1.0
"""Time that a failure in a batch job waits for a signal that explains it."""

GIVE_BACK_LOOK_S = 0.05
"""How soon a signal is heard while the last outcomes are told."""

LOST = (errors.LeaseLost, errors.TaskNotFound, errors.QueueNotFound, errors.GroupNotFound)
BROKEN = (errors.StorageError, errors.StorageFull)
_HOPELESS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO)
REFUSED = "the tasks to insert with its completion were refused"
"""The reason of a failure begins so if the attempt succeeded, and what it wanted to insert was refused."""
COUNTED_AS = {"complete": "completed", "fail": "failed", "bury": "buried", "release": "released"}
MOVED = {"move": "moved"}

Verb = Literal["complete", "fail", "bury", "release", "move"]
Place = tuple[int, str, int]
"""Where a task is: its queue by a number, its batch, and its index in there."""


def is_hopeless(error: FsqueueError) -> bool:
    """Tell whether an error does not look as if it would pass."""
    cause = error.__cause__
    return isinstance(error, errors.QueueFileLost) or (isinstance(cause, OSError) and cause.errno in _HOPELESS)


def patience_with(error: FsqueueError, patience_s: float) -> float:
    """Return for how many seconds to go on trying."""
    return min(patience_s, HOPELESS_S) if is_hopeless(error) else patience_s


@dataclass(slots=True)
class Outcome:
    """The outcome of a task, to be reported to its queue."""

    task: LeasedTask
    verb: Verb
    reason: str = ""
    result: Any = None
    inserts: Inserts = NONE
    """What is inserted in one step with a completion; of a task that moves, that task."""
    delay_s: float | None = None
    begun: bool = True
    """Whether the task was at work; else it is put back untouched, and counts nowhere."""
    leads: bool = True
    """Whether a failure counts among those of its node in a row."""


@dataclass(slots=True)
class Settled:
    """The result of reporting: what became of each outcome, those still to be reported, and why."""

    counted: list[tuple[Outcome, str, str]] = field(default_factory=list)
    """Outcome, what it counts as, and what to say of it, if anything. All for tasks that were begun only."""
    error: FsqueueError | None = None


class OutcomeReporter(BackgroundThread):
    """Tells outcomes, in bulk. `report(Settled)` is called in this thread after each round; `trouble(error)` when the
    filesystem fails for the first time in a row."""

    def __init__(
        self,
        limits: Limits,
        taking: Taking,
        report: Callable[[Settled], object],
        trouble: Callable[[FsqueueError], object],
        died: Died,
    ) -> None:
        super().__init__("reporter", died)
        self._patience_s, self._exclude_after = limits.patience_s, limits.exclude_after
        self._taking, self._report, self._trouble = taking, report, trouble
        self._streaks: dict[int, NodeFailures] = {}
        self._inbox: SimpleQueue[list[Outcome] | None] = SimpleQueue()
        self._hurry, self._flush_s = threading.Event(), FLUSH_S
        self._now, self._random = Clock().monotonic, Entropy().random

    def tell(self, outcomes: list[Outcome]) -> None:
        """Report outcomes to their queues, in the thread."""
        self._inbox.put(outcomes)

    def hurry(self) -> None:
        """Do not wait for more to come from now on."""
        self._flush_s = 0.0
        self._hurry.set()

    def hurry_once(self) -> None:
        """Do not wait for more to come before these are reported that were told so far."""
        self._hurry.set()

    def close(self) -> None:
        """End. What is not told by then is dropped."""
        self.hurry()
        self._inbox.put(None)

    def work(self) -> None:
        failing_since, pause_s, backoff = math.inf, RETRY_S[0], Backoff(RETRY_S, self._random, 2)
        open_: list[Outcome] = []
        told_at = -math.inf
        while True:
            wait_s = None if not open_ else pause_s
            closing = not self._gather(open_, wait_s, told_at)
            if closing:
                return
            settled, open_ = self._round(open_)
            told_at = now = self._now()
            if settled.error is None:
                failing_since, pause_s, backoff = math.inf, RETRY_S[0], Backoff(RETRY_S, self._random, 2)
            else:
                pause_s = backoff.next_s()
                if failing_since == math.inf:
                    failing_since = now
                    self._trouble(settled.error)
                if now - failing_since < patience_with(settled.error, self._patience_s):
                    settled.error = None
                else:
                    settled.counted += [(outcome, "lost", "") for outcome in open_]
                    open_ = []
            self._report(settled)

    def _gather(self, into: list[Outcome], wait_s: float | None, told_at: float) -> bool:
        """Wait for outcomes (without success: to try again), and for those that come right after. False: closed."""
        try:
            got = self._inbox.get(timeout=wait_s)
        except Empty:
            return True
        if got is None:
            return False
        into += got
        left = told_at + self._flush_s - self._now()
        if left > 0:
            self._hurry.wait(left)
        self._hurry.clear()  # before the rest is taken: what is told later hurries anew
        while not self._inbox.empty():
            got = self._inbox.get()
            if got is None:
                return False
            into += got
        return True

    def _round(self, outcomes: list[Outcome]) -> tuple[Settled, list[Outcome]]:
        """Report each outcome once to its queue. Return how that went, and which outcomes must be reported again."""
        settled, again = Settled(), []
        for queue, verb, delay_s, mine in _grouped(outcomes):
            try:
                lost = _tell(queue, verb, delay_s, mine)
            except BROKEN as error:
                settled.error = error
                again += mine
                continue
            except FsqueueError as error:  # this one outcome is what is wrong, not the filesystem
                lost = {outcome.task.token: error for outcome in mine}
            if lost:
                self._taking.let_pass(queue)
            for outcome in mine:
                # A completion may have become a dead letter, and a task that was to move a failure.
                counted, said = (COUNTED_AS | MOVED)[outcome.verb], ""
                if outcome.task.token in lost:
                    ends = COUNTED_AS | {"cancel": "moved"} if outcome.verb == "move" else COUNTED_AS
                    counted = own_outcome(outcome.task, ends) or "lost"
                    if counted == "lost":
                        said = f"task {outcome.task.id} was lost, its result is dropped: {lost[outcome.task.token]}"
                elif counted == "failed" and _is_last(outcome.task):
                    counted = "buried"
                settled.counted.append((outcome, counted, said))
                if self._exclude_after is not None and outcome.begun and outcome.leads:
                    self._count_in_a_row(outcome, counted, self._exclude_after)
        return settled, again

    def _count_in_a_row(self, outcome: Outcome, counted: str, after: int) -> None:
        """Count failures in a row for all workers on this node."""
        if counted not in ("completed", "failed", "buried"):
            return
        with suppress(QueueNotFound, GroupNotFound):  # it has gone since, or its group has: nothing is counted there
            store = outcome.task.queue.store
            streak = self._streaks.setdefault(id(store), NodeFailures(store, after))
            if counted == "completed":
                streak.succeeded()
            else:
                streak.failed(outcome.reason.partition("\n")[0])


def _is_last(task: LeasedTask) -> bool:
    """Tell whether an attempt was the last: if it fails, the queue buries the task."""
    most = None
    with suppress(QueueNotFound, GroupNotFound):  # it has gone since: what became of the task is not known
        most = task.queue.settings.max_attempts
    return most is not None and task.attempt >= most


def _grouped(outcomes: Sequence[Outcome]) -> Iterable[tuple[Verbs, Verb, float | None, list[Outcome]]]:
    """Yield groups of outcomes that one call can report. Those with a reason of their own are reported one by one.

    A call reports a task once: results are handed in by the tasks' ids, and so the result of a lost lease would be kept
    for the lease that this worker took on the task later.
    """
    bulk: dict[tuple[int, str, float | None, int], list[Outcome]] = {}
    told: dict[Place, int] = {}
    numbers = _Numbers()
    following = [outcome for outcome in outcomes if outcome.inserts.each]
    others = [outcome for outcome in outcomes if not outcome.inserts.each]  # now: what is refused has none afterwards
    for mine in completion_updates.grouped(following):
        yield mine[0].task.queue, "complete", None, mine
    for outcome in others:
        if outcome.verb in ("release", "complete"):
            place = numbers.place(outcome.task)
            before = told.get(place, 0)
            told[place] = before + 1
            bulk.setdefault((place[0], outcome.verb, outcome.delay_s, before), []).append(outcome)
        else:
            yield outcome.task.queue, outcome.verb, outcome.delay_s, [outcome]
    for mine in bulk.values():
        for first in range(0, len(mine), TOGETHER_MAX):
            yield mine[0].task.queue, mine[0].verb, mine[0].delay_s, mine[first : first + TOGETHER_MAX]


def _tell(queue: Verbs, verb: Verb, delay_s: float | None, mine: list[Outcome]) -> dict[str, FsqueueError]:
    """Report outcomes of one verb by one call. Return the tokens of the leases that were lost, each with its error."""
    tasks = [outcome.task for outcome in mine]
    try:
        if mine[0].inserts.each:
            return _settle_refused(mine, completion_updates.complete_and_insert(mine))
        if verb == "release":
            queue.release(tasks, delay_s or 0)
        elif verb == "fail":
            tasks[0].fail(mine[0].reason, delay_s)
        elif verb == "bury":
            tasks[0].bury(mine[0].reason)
        else:
            queue.complete(tasks, {outcome.task.id: outcome.result for outcome in mine if outcome.result is not None})
    except LOST as error:
        named = (isinstance(error, errors.LeaseLost) and error.tokens) or [task.token for task in tasks]
        return dict.fromkeys(named, error)
    except errors.InvalidResult as error:  # the others are completed
        cause = error.__cause__
        lost = dict.fromkeys(cause.tokens, cause) if isinstance(cause, errors.LeaseLost) else {}
        return lost | _bury_refused(queue, mine, error.reasons)
    return {}


def _settle_refused(mine: list[Outcome], refused: Mapping[str, FsqueueError]) -> dict[str, FsqueueError]:
    """Report what became of those that an update refused. Return the leases that were lost, by token.

    Where the tasks to insert are to blame, the attempt fails. All become failures first: see `_bury_refused`.
    """
    lost: dict[str, FsqueueError] = {}
    failed: list[Outcome] = []
    for outcome in mine:
        error = refused.get(outcome.task.token)
        if isinstance(error, (*LOST, errors.UpdateConflict)):
            lost[outcome.task.token] = error
        elif error is not None and outcome.verb == "move":
            reason = not_moved(outcome.reason, outcome.inserts.each[0].queue, str(error))
            outcome.verb, outcome.reason, outcome.inserts = "fail", reason, NONE
            failed.append(outcome)
        elif error is not None:
            outcome.verb = "bury" if isinstance(error, (errors.TaskTooLarge, errors.InvalidResult)) else "fail"
            why = errors.UNKEPT if isinstance(error, errors.InvalidResult) else REFUSED
            outcome.reason, outcome.result, outcome.inserts = f"{why}: {error}", None, NONE
            failed.append(outcome)
    for outcome in failed:
        lost |= _tell(outcome.task.queue, outcome.verb, None, [outcome])
    return lost


def not_moved(reason: str, queue: str, why: str) -> str:
    """Return the reason of a failure whose task was to go to another queue, and could not."""
    return f"{reason}\nThe task could not be moved to {queue}: {why}"


def _bury_refused(queue: Verbs, mine: list[Outcome], reasons: Mapping[str, str]) -> dict[str, FsqueueError]:
    """Give up those of `mine` whose results cannot be kept, each for its own reason; the leases that were lost.

    First all of them become dead letters to be told: if the filesystem fails on the way, those are what is told again.
    """
    refused = [outcome for outcome in mine if outcome.task.id in reasons]
    for outcome in refused:
        why = f"{errors.UNKEPT}: {reasons[outcome.task.id]}"
        outcome.verb, outcome.reason, outcome.result = "bury", why, None
    lost: dict[str, FsqueueError] = {}
    for outcome in refused:
        lost |= _tell(queue, "bury", None, [outcome])
    return lost


class _Numbers:
    """Number the queues of tasks: numbers are cheaper to compare, a thousand times a second, than paths."""

    def __init__(self) -> None:
        self._by_queue: dict[Verbs, int] = {}
        self._by_identity: dict[int, int] = {}
        """The same. A queue that was opened twice is two objects, which are equal."""

    def place(self, task: LeasedTask) -> Place:
        """Return what is equal for two leases on one task alone: a copy of a queue has tasks of the same ids."""
        number = self._by_identity.get(id(task.queue))
        if number is None:
            number = self._by_queue.setdefault(task.queue, len(self._by_queue))
            self._by_identity[id(task.queue)] = number
        return number, task.batch, task.index


def adopt(
    tasks: Sequence[LeasedTask], held: Iterable[Job], told: Iterable[Outcome]
) -> tuple[list[LeasedTask], list[Outcome]]:
    """Return those of `tasks` that are new here, and the outcomes to report of the others.

    What had run out while the worker was at it, and no other worker took, is its own again, under the new lease. So is
    a task that is done: it cannot be leased once the queue has been told, so the queue has not. A failed one is new:
    the failure was told, or its lease ran out; the new lease is for another attempt.

    Tasks are told apart by their queues and ids: a copy of a queue has the same ids, and its tasks are others.
    """
    place = _Numbers().place
    leased = {place(task): task for task in tasks}
    at_hand = {where: job for job in held if (where := place(job.task)) in leased}
    on_its_way = {
        where: one
        for one in told
        if (where := place(one.task)) in leased and one.begun and one.verb in ("complete", "bury", "move")
    }
    new: list[LeasedTask] = []
    outcomes: list[Outcome] = []
    if not (at_hand or on_its_way):
        return list(tasks), outcomes
    for task in tasks:
        job, done = at_hand.get(place(task)), on_its_way.get(place(task))
        if job is not None and (job.doomed or job.settled):
            outcomes.append(Outcome(task, "release", begun=False))  # its work is being ended
        elif job is not None:
            job.task = task
        elif done is not None:
            task.took_s, task.used = done.task.took_s, done.task.used
            outcomes.append(replace(done, task=task))
            done.begun = False  # under the lease before it is lost, which is no loss
        else:
            new.append(task)
    return new, outcomes


def failure(job: Job, verb: Literal["fail", "bury"], reason: str) -> tuple[Outcome, list[Outcome]]:
    """Return the outcome to report of an attempt that failed, and further ones.

    If the lease ran out during the work, and this worker holds the task under another one, a failure is told of the
    lease that the work was begun under. Charged to the new lease it would cost an attempt that never ran; that lease
    is released instead. A task that is given up is given up under whichever lease.
    """
    if verb == "bury" or job.begun_under.token == job.task.token:
        return Outcome(job.task, verb, reason), []
    job.task.took_s, job.task.used = 0.0, None
    return Outcome(job.begun_under, verb, reason), [Outcome(job.task, "release", begun=False)]


class PendingFailures:
    """Failures on their way, in order. Used in the loop's thread alone. Outside of jobs nothing is doubted.

    When a batch job is cancelled, preempted, requeued or over its time, its scheduler sends SIGTERM to every process in
    it at once. A command may die of it before its worker gets the signal. So in a job the worker reports a failure a
    second later. If such a signal comes meanwhile, it puts the task back instead.
    """

    def __init__(self) -> None:
        job = schedulers.here()
        self._ending = frozenset({signal.SIGTERM}) if slurm.in_job() else job.scheduler.ending if job else frozenset()
        self._warning = frozenset() if slurm.in_job() or job is None else job.scheduler.warning
        self._wait_s = DOUBT_S if self._ending else 0.0
        self._is_explained = False
        self._waiting: deque[tuple[float, Outcome]] = deque()
        self.is_over = False
        """Whether the job is being ended."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, failure: Outcome, now: float) -> None:
        """Take in a failure."""
        self._waiting.append((now + self._wait_s, failure))

    def due_at(self) -> float:
        """Return when the first of them is due to be reported; infinite if there is none."""
        return self._waiting[0][0] if self._waiting else math.inf

    def ripe(self, now: float) -> list[Outcome]:
        """Return what to report now: failures that no signal has explained, and for the others, releases."""
        told = []
        while self._waiting and (self._is_explained or self._waiting[0][0] <= now):
            failure = self._waiting.popleft()[1]
            told.append(replace(failure, verb="release", delay_s=0, inserts=NONE) if self._is_explained else failure)
        self._is_explained = self.is_over  # a warning explains what was waiting, and nothing that fails later
        return told

    def left(self) -> list[Outcome]:
        """Return the failures that are not told yet."""
        return [failure for _, failure in self._waiting]

    def hear(self, number: int) -> None:
        """Take in a signal. One that ends the job, or warns of its end, has reached the commands, too."""
        self.is_over = self.is_over or number in self._ending
        self._is_explained = self.is_over or number in self._warning


def give_back(
    outcomes: Sequence[Sequence[Outcome]], untaken: Callable[[], list[LeasedTask]], is_hurried: Callable[[], bool]
) -> None:
    """Report outcomes once, and put back what is `untaken`, in threads; wait for them until `is_hurried`.

    `outcomes`: those of each filesystem by themselves, since another one may not answer.

    For a worker that must end and cannot rely on its reporter. An outcome that cannot be reported becomes a release; if
    that fails, too, the lease runs out by itself. To report an outcome again has no effect. Wait at most GIVE_BACK_S
    seconds.
    """

    def tell_untaken() -> None:
        tell([Outcome(task, "release", begun=False) for task in untaken()])

    def tell(some: Sequence[Outcome]) -> None:
        for queue, verb, delay_s, mine in _grouped(some):
            try:
                _tell(queue, verb, delay_s, mine)
            except Exception as error:  # whatever is wrong with one of them, the others have to be given back
                logger.debug("%d tasks are put back, for they cannot be told of: %s", len(mine), error)
                for outcome in mine:
                    with suppress(Exception):
                        outcome.task.release()

    threads: list[SideThread] = []
    acts: list[Callable[[], object]] = [*(partial(tell, some) for some in outcomes), tell_untaken]
    for act in acts:
        thread = SideThread("fsqueue-last", act)
        try:
            thread.start()
        except OSError:  # the system allows no further thread: the leases run out by themselves
            break
        threads.append(thread)
    now = Clock().monotonic
    until = now() + GIVE_BACK_S
    for thread in threads:
        while thread.is_alive() and not is_hurried() and now() < until:
            thread.join(GIVE_BACK_LOOK_S)


class Taking:
    """Hold the locks that feeders hold while they take tasks.

    `root_of`: see `Sources.root_of`.
    """

    def __init__(self, root_of: Callable[[Verbs], Hashable] = lambda queue: None) -> None:
        self.lock = threading.Lock()
        """That of the feeder that asks all filesystems but those that are silent."""
        self._root_of = root_of
        self._silent: dict[Hashable, threading.Lock] = {}
        """That of the last feeder that was left, for each filesystem that has ever been silent."""

    def leave(self, root: Hashable) -> None:
        """Have a lock for the next feeder: the present one waits for a filesystem, and takes from no other one."""
        self._silent[root], self.lock = self.lock, threading.Lock()

    def stay(self, root: Hashable) -> None:
        """Undo `leave`: there can be no further feeder."""
        self.lock = self._silent.pop(root)

    def let_pass(self, queue: Verbs) -> None:
        """Wait until what a feeder takes from a queue at this moment, which may be what was lost, is known to the loop.

        A feeder that waits for another file server is not waited for: this one's outcomes would wait as long.
        """
        silent = self._silent.get(self._root_of(queue)) if self._silent else None
        for lock in (self.lock, silent):
            if lock is not None and lock.acquire(timeout=TAKING_S):
                lock.release()


def own_outcome(task: LeasedTask, ends: Mapping[str, str] = COUNTED_AS) -> str | None:
    """Return how this lease ended already: by the command, through FSQUEUE_TOKEN, or by a try that seemed to fail.

    `ends`: what each kind of movement counts as that may have ended it.
    """
    lease = task.token.rpartition("@")[2]
    try:
        moves = task.queue.history(task.id)
    except errors.TaskNotFound:  # a queue may forget completed tasks at once; the lease tells still
        with suppress(FsqueueError):  # or a queue of a group was deleted, and has no store any more
            return "completed" if outcomes.is_completed_by(task.queue.store, task.token) else None
        return None
    except FsqueueError:
        return None
    return next((ends[move.op] for move in moves if move.lease == lease and move.op in ends), None)


@dataclass(slots=True)
class Renewed:
    """The result of a renewal: the leases that are lost, and those that their commands themselves ended, by token."""

    lost: dict[str, FsqueueError] = field(default_factory=dict)
    settled: dict[str, str] = field(default_factory=dict)
    error: FsqueueError | None = None


class LeaseRenewer(BackgroundThread):
    """Renews leases, one request at a time; each is answered by `report(Renewed)`, called in this thread."""

    def __init__(self, lease_s: float | None, taking: Taking, report: Callable[[Renewed], object], died: Died) -> None:
        super().__init__("renewer", died)
        self._lease_s, self._taking, self._report = lease_s, taking, report
        self._inbox: SimpleQueue[list[LeasedTask] | None] = SimpleQueue()

    def renew(self, tasks: list[LeasedTask]) -> None:
        """Renew the leases of these tasks, all of one length."""
        self._inbox.put(tasks)

    def close(self) -> None:
        """End, after what is under way."""
        self._inbox.put(None)

    def work(self) -> None:
        while (tasks := self._inbox.get()) is not None:
            answer = Renewed()
            queues: dict[int, list[LeasedTask]] = {}
            for task in tasks:
                queues.setdefault(id(task.queue), []).append(task)
            for mine in queues.values():
                self._renew(mine, answer)
            if answer.lost:
                for mine in queues.values():
                    if any(task.token in answer.lost for task in mine):
                        self._taking.let_pass(mine[0].queue)
            self._report(answer)

    def _renew(self, tasks: list[LeasedTask], answer: Renewed) -> None:
        try:
            tasks[0].queue.renew(tasks, self._lease_s)
        except errors.LeaseExpired:
            pass  # too late, but no other worker has taken them: what is finished still counts
        except LOST as error:
            if isinstance(error, errors.LeaseLost) and len(tasks) > 1:
                lost = set(error.tokens)
                for task in tasks:  # taken over, or only late? One by one they tell
                    if task.token in lost:
                        self._renew([task], answer)
                return
            for task in tasks:
                own = own_outcome(task)
                if own is None:
                    answer.lost[task.token] = error
                else:
                    answer.settled[task.token] = own
        except FsqueueError as error:
            answer.error = error
