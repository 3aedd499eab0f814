"""The loop of a worker: one thread that decides everything, and waits for nothing but news.

Threads beside it do what may block: the feeder leases, the reporter ends leases, the renewer renews them, and the
output writer writes. They and the signal handlers post to the loop; nothing is raised in the middle of a verb. So the
loop notices signals and exits of children while the file server is away, and renews leases while it is there.
"""

from __future__ import annotations

import math
import signal
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from fsqueue import forks
from fsqueue.clock import Clock, Entropy, pause_s
from fsqueue.errors import ForkedChild, FsqueueError, InvalidArgument
from fsqueue.filesystem import resources
from fsqueue.format.wording import counted, duration
from fsqueue.leased_task import LeasedTask
from fsqueue.worker import completion_updates, inserts, sources
from fsqueue.worker.background import obituary
from fsqueue.worker.causes import UNKNOWN, Cause
from fsqueue.worker.events import Mailbox
from fsqueue.worker.feeding import Fed, Feeder
from fsqueue.worker.jobs import Job, JobExecutor, capacity
from fsqueue.worker.limits import KILL_S, LEAVE_S, STALL_S, UNTOLD_BYTES_MAX, UNTOLD_MAX, Limits, stop_time
from fsqueue.worker.output import OutputWriter
from fsqueue.worker.output_relay import PassOn
from fsqueue.worker.pace import Pace
from fsqueue.worker.report import Tell, Teller, WorkerReport
from fsqueue.worker.settling import (
    RETRY_S,
    LeaseRenewer,
    Outcome,
    OutcomeReporter,
    PendingFailures,
    Renewed,
    Settled,
    Taking,
    adopt,
    failure,
    give_back,
    not_moved,
)
from fsqueue.worker.sources import Away, Sources

T = TypeVar("T")

LATE_S = 0.5
"""How long a filesystem may take to answer at first before the worker asks the others without it, if it has others."""

_NO_GROUP = (
    "is no queue of a group, so nothing can be inserted in one step with a completion. Nothing was inserted. Use "
    "queues of a group: fsqueue.Group(path)[name], or GROUP/NAME."
)


@dataclass(eq=False)
class _Root:
    """Threads that report outcomes and renew leases at the queues of one filesystem."""

    reporter: OutcomeReporter
    renewer: LeaseRenewer
    is_renewing: bool = False
    """Whether an answer of the renewer is to come."""
    is_late: bool = False
    """Whether leases were to be renewed anew meanwhile."""

    def close(self) -> None:
        """End both threads. Outcomes that are not reported by then are dropped."""
        self.reporter.close()
        self.renewer.close()


class Loop:
    """Leases tasks, has them done, tells how they ended. `make_executor` makes what does them."""

    def __init__(
        self,
        queues: Sources,
        lease_s: float | None,
        limits: Limits,
        make_executor: Callable[[Loop], JobExecutor],
        tell: Tell,
        pass_on: PassOn | None,
    ) -> None:
        self._limits = limits
        self.mailbox = Mailbox()
        posted = self.mailbox.posted
        self.output_writer = OutputWriter(self.thread_died, lambda text: self._teller.say_now("output", text), pass_on)
        self._teller = Teller(self.output_writer.do, tell)
        self._has_told_size = False
        self._say, self._note = self._teller.say, self._teller.note
        self._now, self._random = Clock().monotonic, Entropy().random
        self._taking, died = Taking(queues.root_of), self.thread_died
        untold, unfed = map(self._trouble, ("outcomes cannot be told", "tasks cannot be leased"))

        def new_root() -> _Root:
            def renewed(answer: Renewed) -> None:
                self._renewed(answer, root)

            def settled(answer: Settled) -> None:
                self._settled(answer, root)

            reporter = OutcomeReporter(limits, self._taking, posted(settled), posted(untold), died)
            root = _Root(reporter, LeaseRenewer(lease_s, self._taking, posted(renewed), died))
            return root

        self._new_root: Callable[[], _Root] = new_root
        self._first = new_root()
        self._roots: dict[Hashable, _Root] = {}
        """By what `Sources.root_of` tells, if there are several."""
        self._reporter, self._renewer = self._first.reporter, self._first.renewer

        def new_feeder(sources: Sources) -> Feeder:
            def fed(answer: Fed) -> None:
                self._fed(answer, feeder)

            say, gave_up = posted(self._say), posted(self._given_up)
            lock = self._taking.lock
            feeder = Feeder(sources, lease_s, limits, lock, posted(fed), posted(unfed), died, say, gave_up)
            return feeder

        self._new_feeder: Callable[[Sources], Feeder] = new_feeder
        self._feeder = new_feeder(queues)
        self._left: dict[Feeder, tuple[Hashable, float]] = {}
        """The feeders that were left and have not ended: which filesystem does not answer them, and since when."""
        self._late_s: dict[Hashable, float] = {}
        """How long filesystems may take to answer that once took longer than `LATE_S`, and answered."""
        self.run_id = ""
        """What the leases of this run have, and no others. Set when it begins: a fork before that makes two runs."""
        self._queues, self._has_own_lease = queues, lease_s is not None
        self._executor = make_executor(self)
        self._pace = Pace(limits.lease_s, limits.prefetch)
        self._ahead: deque[Job] = deque()  # leased, and not given to the executor
        self._ahead_since = math.inf
        self._outbox: list[Outcome] = []
        self._untold: dict[int, Outcome] = {}
        """What the reporter was told and has not answered, by identity."""
        self._pending = PendingFailures()
        self._report = WorkerReport()
        self._asked = self._taken = 0  # taken: leased, and not put back untouched
        self._failures = self._pauses = 0  # in a row
        self._failed_since = math.inf  # when the first of them began
        self._failures_first = limits.failures_first  # without a limit once something has succeeded
        self._failures_noted = self._noted()
        self._renewal_failed = False
        self._renew_at = self._grace_until = self._look_at = math.inf  # the last: for what is stuck behind slow tasks
        self._signals, self._ending = 0, ""
        self._heard = 0  # as the signals' handler counts them; `_signals`: those that the loop has acted on
        self._leave_at = math.inf
        self._error: Exception | None = None
        self._broken: Exception | None = None  # what is wrong with the worker itself: raised in any case
        self._can_tell = True
        self._kill_s = min(KILL_S, limits.grace_s)
        self._idle_since = self._began = self._now()
        self._stop_at, self._stop_why = math.inf, ""

    # -- from outside, also from signal handlers

    def stop(self, number: int) -> None:
        """End as a signal asks for."""
        self._heard += 1
        self.mailbox.post(lambda: self._stop(number))

    def finish(self) -> None:
        """End when the tasks at work have ended: begin no more."""
        self.mailbox.post(lambda: self._end("stopped", "no more tasks are begun: its campaign was stopped"))

    def thread_died(self, name: str, error: BaseException) -> None:
        """End because a thread has died of an unexpected exception. Called in that thread."""
        self.mailbox.post(lambda: self._thread_died(name, error))

    def is_hurried(self) -> bool:
        """Return whether the user has sent a second signal, also while the loop waits for an answer."""
        return self._heard > 1

    @property
    def held_about(self) -> int:
        """Return how many tasks are held, or are not settled yet. A hint, for any thread."""
        report = self._report
        ended = report.completed + report.failed + report.released + report.moved + report.lost
        return max(0, self._taken - ended)

    @property
    def next_due_s(self) -> float:
        """Return in how many seconds a delayed task will be available, as far as is known. A hint, for any thread."""
        return self._feeder.due_at - self._now()

    @property
    def completed_about(self) -> tuple[int, int]:
        """Return how many tasks were completed for certain, and at most. Hints, for any thread.

        The difference are outcomes that the queue is just being told.
        """
        return self._report.completed, len(self._untold) + self._report.completed

    def run(self) -> WorkerReport:
        """Work until there is nothing left to do, or until stopped; then raise what kept it from going on."""
        self._began, process = self._now(), forks.depth

        def is_the_parents() -> bool:
            return process != forks.depth or forks.is_of_the_parent()

        self._stop_at, self._stop_why = stop_time(self._limits, self._began)
        self.run_id = self._feeder.run_id = Entropy().hex16()
        try:
            try:
                self._start()
                while not self._is_finished():
                    self._ask()
                    self._hand_out()
                    self._send()
                    self.mailbox.wait(self._due_s())
                    if process != forks.depth:
                        break
                    self._keep_time()
            finally:
                if not is_the_parents():  # else all that is held is, too
                    self._close()
        except BaseException as failure:
            if not is_the_parents() or (ended := resources.in_child(failure)) is failure:
                raise
            raise ended from None
        if is_the_parents():  # a signal handler has forked
            raise ForkedChild("a worker's run")
        error = self._broken or (self._error if self._report.signal is None else None)
        if error is not None:
            raise error
        return self._report

    def _start(self) -> None:
        for thread in (self.output_writer, self._reporter, self._renewer, self._feeder):
            thread.start()
        self._executor.start()

    # -- the loop

    def _is_finished(self) -> bool:
        if self._is_leaving():
            return True
        if not self._can_tell:
            return not self._feeder.is_busy
        told = not (self._outbox or self._pending or self._untold)
        return bool(self._ending) and told and not (self._ahead or self._feeder.is_busy or self._executor.held())

    def _is_leaving(self) -> bool:
        """Return whether to end at once with outcomes untold, since the user waits no longer for the file server."""
        return self._signals > 2 or self._now() >= self._leave_at

    def _ask(self) -> None:
        """Ask the feeder to lease the next tasks."""
        if self._ending or self._feeder.is_busy or not self._may_begin() or not self._executor.is_ready():
            return
        if self._failures >= self._failures_noted and (self._untold or self._pending):
            return
        most = capacity(self._executor, self._each(), self._now())
        held, at_work = len(self._ahead) + len(self._executor.held()), len(self._executor.at_work())
        few = held <= most // 2 or at_work + len(self._ahead) < self._executor.slots
        left = self._limits.max_tasks - self._taken
        if left <= 0:
            if held == at_work:
                self._end("max-tasks", f"took {counted(self._taken, 'task')}, as --max-tasks says")
        elif few and held < most and self._has_room_for_outcomes(most):
            self._asked = int(min(most - held, left))
            self._feeder.ask(self._asked)
            self._idle_since = self._now()

    def _has_room_for_outcomes(self, held_max: int) -> bool:
        """Return whether this worker may take more, with the outcomes that its queues have not been told."""
        if len(self._untold) + len(self._pending) > held_max + UNTOLD_MAX:
            return False
        return sum(outcome.inserts.size for outcome in self._untold.values()) <= UNTOLD_BYTES_MAX

    def _each(self) -> int:
        """Return how many tasks each slot may hold: the worker must notice failures before it begins more."""
        if not self._feeder.leases_ahead:
            return 1
        left_s, likely_s = (math.inf, 0.0) if self._stop_at == math.inf else self._outlook()
        return self._pace.each_within(self._failures_noted - self._failures, left_s, likely_s)

    def _may_begin(self) -> bool:
        """Return whether a task that begins now is likely to end before it would be told to.

        If not, that is the end.
        """
        if self._stop_at == math.inf:
            return True
        left_s, likely_s = self._outlook()
        if likely_s < left_s:
            return True
        why = f"another task may take {duration(likely_s)}, longer than is left" if likely_s else "no time is left"
        self._end(self._stop_why, f"{why}: nothing more is begun")
        return False

    def _outlook(self) -> tuple[float, float]:
        """Return how long a task that begins now has until the grace is over, and how long it may take (0: unknown)."""
        now = self._now()
        left_s = self._stop_at + self._limits.grace_s - now
        likely_s = self._pace.likely_s(left_s, lambda: [now - job.began for job in self._executor.at_work()])
        return left_s, min(likely_s, self._limits.task_timeout_s * self._limits.tasks_per_command)

    def _times_out_at(self, job: Job) -> float:
        """Return when a task at work has used up its time, on the monotonic clock.

        A command has the time of each of its tasks. Once it has answered for some, it has the time of those that are
        left, from its last answer on.
        """
        limit_s = self._limits.task_timeout_s
        return job.began + limit_s if job.batch is None else job.batch.since + limit_s * job.batch.left

    def _hand_out(self) -> None:
        if not self._ahead:
            return
        if self._ending or not self._may_begin():
            self._put_back_untouched()
            return
        room = self._executor.room(self._each())
        while self._ahead and room > 0:  # none is left when the command turns out to be none
            room -= 1
            job = self._ahead.popleft()
            job.begun_under = job.task
            if not self._executor.give(job):
                self._ahead.appendleft(job)
                break
        self._executor.prepare(len(self._ahead))

    def _send(self) -> None:
        self._teller.flush()
        self._outbox += self._pending.ripe(self._now())
        if self._outbox:
            self._untold.update((id(outcome), outcome) for outcome in self._outbox)
            for root, outcomes in self._by_root(self._outbox, lambda outcome: outcome.task):
                root.reporter.tell(outcomes)
                if self._limits.reports_at_once and not self._ahead and self._executor.room(1):
                    root.reporter.hurry_once()
            self._outbox = []

    # -- the filesystems of its queues: one that does not answer keeps no other one from being told

    def _by_root(self, items: list[T], task_of: Callable[[T], LeasedTask]) -> list[tuple[_Root, list[T]]]:
        """Return items together with those who tell the filesystem of their tasks."""
        if not self._queues.has_several_roots:
            return [(self._first, items)] if items else []
        found: dict[int, tuple[_Root, list[T]]] = {}
        for item in items:
            root = self._root_of(self._queues.root_of(task_of(item).queue))
            found.setdefault(id(root), (root, []))[1].append(item)
        return list(found.values())

    def _root_of(self, key: Hashable) -> _Root:
        """Return who tells a filesystem; threads of its own, unless it is the first one."""
        if key not in self._roots:
            self._roots[key] = self._begin_root() if self._roots else self._first
        return self._roots[key]

    def _begin_root(self) -> _Root:
        root = self._new_root()
        try:
            root.reporter.start()
            root.renewer.start()
        except OSError:  # no further thread: then the first one waits for this one's filesystem, too
            root.close()
            return self._first
        return root

    def _all_roots(self) -> list[_Root]:
        return [self._first, *(root for root in self._roots.values() if root is not self._first)]

    def _due_s(self) -> float | None:
        """Return how long to wait for news, before time itself asks for something."""
        due = min(
            self._renew_at, self._grace_until, self._look_at, self._idle_at(), self._stop_at, self._pending.due_at(),
            self._leave_at, self._executor.due_at,
        )  # fmt: skip
        if self._feeder.is_busy and self._queues.has_several_roots:
            due = min(due, self._now() + LATE_S)
        for job in self._executor.at_work():
            due = min(due, job.kill_at, math.inf if job.doomed else self._times_out_at(job))
        return None if due == math.inf else max(0.0, due - self._now())

    def _idle_at(self) -> float:
        return self._idle_since + self._limits.idle_timeout_s if self._is_idle() else math.inf

    def _is_idle(self) -> bool:
        """Return whether nothing is held, or left to tell, and the feeder waits for tasks."""
        left = self._ahead or self._outbox or self._untold or self._pending or self._executor.held()
        return self._feeder.is_busy and not (self._ending or left)

    def _keep_time(self) -> None:
        now = self._now()
        if now >= self._renew_at:
            self._renew()
        if now >= self._executor.due_at:
            self._executor.keep_time(now)
        for job in self._executor.at_work():
            if now >= job.kill_at:
                job.kill_at = math.inf
                self._executor.end(job, signal.SIGKILL)
            elif not job.doomed and now >= self._times_out_at(job):
                tasks = 1 if job.batch is None else job.batch.left
                job.why = f"timed out after {self._limits.task_timeout_s * tasks:g} s"
                self._doom(job, "timeout")
        if now >= self._look_at:
            self._look_for_stuck(now)
        if now >= self._grace_until:
            self._grace_until = math.inf
            for job in self._executor.at_work():
                self._doom(job, "stop")
            self._executor.hurry()
        if now >= self._stop_at:
            self._stop_at = math.inf
            self._end(self._stop_why, "the time is over")
            self._wind_up()
        if self._feeder.is_busy and self._queues.has_several_roots:
            self._leave_silent(now)
        if now >= self._idle_at():
            self._end("idle", f"there was nothing to do for {self._limits.idle_timeout_s:g} s")
        if self._executor.held() or self._ahead or self._untold:
            self._idle_since = now

    # -- tasks come

    def _leave_silent(self, now: float) -> None:
        """Have another feeder take its place, if a filesystem does not answer it in time and there are others.

        A filesystem that is slow is given twice as long each time that it has answered late. So it is waited for after
        a few times, and keeps its share.
        """
        old, since = self._feeder, self._feeder.silent_since()
        if now < since + LATE_S or (path := old.silent()) is None:
            return
        root = self._queues.root_at(path)
        if now < since + self._late_s.get(root, LATE_S):
            return
        late = Away.silent(path, lambda: None, since, self._limits.patience_s, lambda: old.has_ended)
        if (others := self._queues.without(root, late)) is None:
            return
        self._taking.leave(root)
        try:
            feeder = self._new_feeder(others)
            feeder.run_id = self.run_id
            feeder.start()
        except OSError:  # no further thread or descriptor: it is tried again
            self._taking.stay(root)
            return
        self._queues, self._feeder = others, feeder
        self._left[old] = root, since
        if held := old.leave():
            self._take_in(held, old)
            self._asked -= len(held)
        if self._asked > 0 and not self._ending:
            feeder.ask(self._asked)

    def _has_ended(self, feeder: Feeder) -> None:
        """Have what a feeder was left for be asked again."""
        if feeder in self._left:
            root, since = self._left.pop(feeder)
            if self._now() < since + sources.SILENT_S:
                self._late_s[root] = min(2 * self._late_s.get(root, LATE_S), sources.SILENT_S)
        self._feeder.wake()

    def _fed(self, fed: Fed, feeder: Feeder | None = None) -> None:
        feeder = feeder or self._feeder
        is_late = feeder is not self._feeder
        feeder.taken()
        if is_late and not fed.tasks:
            self._has_ended(feeder)
            return
        if fed.error is not None and not self._ending:
            self._give_up(fed.error)
        if fed.excluded:
            self._end("excluded", fed.excluded)
        if fed.drained:
            self._end("drained", "")
        if fed.away:
            self._end("away", f"all else is drained, and {fed.away}")
        if fed.tasks:
            if len(fed.tasks) == self._asked and not is_late:
                self._pace.grow()
            self._take_in(fed.tasks, feeder)

    def _take_in(self, tasks: list[LeasedTask], feeder: Feeder) -> None:
        """Take what a feeder has leased: as the next, if it is late. Else that would be put back first."""
        now, is_late = self._now(), feeder is not self._feeder
        held, told = (*self._ahead, *self._executor.held()), (*self._untold.values(), *self._outbox)
        new, outcomes = adopt(tasks, held, told)
        self._outbox += outcomes
        if self._queues.has_several_roots:
            new = self._without_surplus(new, feeder)
        self._taken += len(new)
        if is_late:
            self._ahead.extendleft(map(Job, reversed(new)))
        else:
            self._ahead.extend(map(Job, new))
        self._ahead_since = now
        self._look_at = min(self._look_at, now + STALL_S)
        _, since = self._left.get(feeder, (None, now))
        self._renew_at = min(self._renew_at, since + self._renewal_s())

    def _without_surplus(self, tasks: list[LeasedTask], feeder: Feeder) -> list[LeasedTask]:
        """Put back what cannot be begun, and return the rest.

        What came late may be more than this run is to take. If its leases may be near their ends, other workers may be
        about to take it.
        """
        room = self._limits.max_tasks - self._taken
        _, since = self._left.get(feeder, (None, math.inf))
        if self._now() >= since + self._renewal_s():
            room = 0
        kept = tasks[: int(min(room, len(tasks)))]
        self._outbox += [Outcome(task, "release", begun=False) for task in tasks[len(kept) :]]
        return kept

    def _given_up(self, queue: str, task: str, attempts: int, reason: str) -> None:
        """Count a task that this worker made a dead letter of without beginning it. Posted before what is fed next."""
        self._report.spent += 1
        self._say("given-up", "", task=task, attempt=attempts, queue=queue, reason=reason)

    def returned(self, jobs: list[Job], why: str) -> None:
        """Take back tasks that the executor has not begun; `why` it cannot do them, if that is worth a word."""
        for job in reversed(jobs):
            if job.gone:  # to begin it would be a second execution
                self._report.count(job.gone)
            else:
                self._ahead.appendleft(job.untouched())
        if why:
            self._say("child", f"{why}. It was at no task, and is replaced.")

    def recycled(self, tasks: int, size: int | None) -> None:
        """Take in that a process is replaced after its last task. `size`: of its memory, if that is why (bytes)."""
        why = ""
        if size is not None and tasks == 1 and not self._has_told_size:
            self._has_told_size = True
            why = (
                f"A process has {size / 1e6:,.0f} MB of memory after its first task, more than recycle_rss_bytes "
                "(--recycle-rss) allows. It is replaced, and so is each one after every task. Allow more."
            )
        self._say("recycled", why, tasks=tasks, **({} if size is None else {"bytes": size}))

    def refused(self, why: str | FsqueueError) -> None:
        """Stop: the executor can do no task at all."""
        self._give_up(InvalidArgument(why) if isinstance(why, str) else why)

    def _look_for_stuck(self, now: float) -> None:
        """Take back what lies behind slow tasks; what then is more than these allow is for others."""
        self._look_at = now + STALL_S if self._ahead or self._executor.held() else math.inf
        self.returned(self._executor.take_back(slower_than_s=STALL_S), "")
        if self._limits.prefetch is None and self._ahead and now - self._ahead_since > STALL_S:
            spare = len(self._ahead) + len(self._executor.at_work()) - capacity(self._executor, self._each(), now)
            if spare > 0:
                self._put_back_untouched(spare)

    def _put_back_untouched(self, most: int | None = None) -> None:
        """Put back the last of the tasks that were leased ahead: all of them by default."""
        for _ in range(len(self._ahead) if most is None else min(most, len(self._ahead))):
            task = self._ahead.pop().task
            task.took_s = 0.0
            self._outbox.append(Outcome(task, "release", begun=False))
            self._taken -= 1

    # -- tasks end

    def took(self, seconds: float) -> None:
        """Take in how long a command took that had several tasks."""
        self._pace.took(seconds)

    def done(self, job: Job, verb: str, value: Any, seconds: float, cause: Cause = UNKNOWN) -> None:
        """Decide what the queue is told of a task that the executor is done with. `cause`: of a failure."""
        task = job.task
        task.took_s = job.begun_under.took_s = seconds
        task.used = job.begun_under.used = job.used
        if job.batch is None and job.doomed in ("", "timeout") and verb in ("complete", "then", "fail", "bury"):
            self._pace.took(seconds)
        if job.gone:
            self._report.count(job.gone)
            return
        if job.doomed == "stop" or (job.killed and self._signals):  # Slurm's signals reach all processes of a job
            self._outbox.append(Outcome(task, "release"))
        elif job.doomed == "timeout":
            self._failed(job, "fail", value if verb == "fail" and value else job.why, seconds)
        elif verb == "then" and not completion_updates.is_of_group(task.queue):
            self._failed(job, "fail", f"fsqueue.Then: {task.queue.path} {_NO_GROUP}", seconds)
        elif verb in ("complete", "then"):
            result, following = value if verb == "then" else (value, inserts.NONE)
            self._failures = self._pauses = 0
            if self._failures_first < math.inf:
                self._failures_first = math.inf
                self._failures_noted = self._noted()
            self._outbox.append(Outcome(task, "complete", result=result, inserts=following))
            self._note("completed", task, seconds)
        elif verb == "release":
            self._pauses += value is None and job.leads
            self._outbox.append(
                Outcome(task, "release", delay_s=pause_s(self._pauses, self._random()) if value is None else value)
            )
            self._note("put-back", task, seconds)
        else:
            self._failed(job, "bury" if verb == "bury" else "fail", value, seconds, cause)

    def _failed(
        self, job: Job, verb: Literal["fail", "bury"], reason: str, seconds: float, cause: Cause = UNKNOWN
    ) -> None:
        moves = self._limits.moves
        if moves is not None and moves.take(job.doomed == "timeout", cause) and self._can_move(job, moves.queue):
            try:
                moved = Outcome(job.task, "move", reason, inserts=inserts.of_moved(job.task, moves.queue))
            except inserts.NotInserted as unfit:
                reason = not_moved(reason, moves.queue, str(unfit))
            else:
                self._pending.add(moved, self._now())
                self._note("moved", job.task, seconds, reason=reason, to=moves.queue)
                return
        if job.begun_under.attempt >= self._limits.max_attempts:
            verb = "bury"
        outcome, others = failure(job, verb, reason)
        outcome.leads = job.leads
        self._outbox += others
        self._pending.add(outcome, self._now())
        self._failures += job.leads
        self._failed_since = job.began if self._failures == 1 else min(self._failed_since, job.began)
        self._note("failed", outcome.task, seconds, reason=outcome.reason)
        if self._failures >= self._failures_noted:  # the node may be excluded: nothing more before that is known
            self.returned(self._executor.take_back(), "")
            self._put_back_untouched()
        headline = outcome.reason.partition("\n")[0]
        if self._failures >= self._limits.failures_max:
            self._end("failures", f"{self._failures} attempts in a row have failed, the last one: {headline}")
        elif self._failures >= self._failures_first and not self._is_outlasted():
            self._end("failures", f"the first {self._failures} attempts have all failed, the last one: {headline}")

    def _can_move(self, job: Job, queue: str) -> bool:
        """Return whether a task may go to a queue: it is not there, and this attempt's lease holds it still."""
        name: str = job.task.queue.name  # type: ignore[attr-defined]
        return name != queue and job.begun_under.token == job.task.token

    def _noted(self) -> float:
        """Return after how many failures in a row no more is begun until the queue has been told of them."""
        return min(self._limits.failures_max, self._failures_first, self._limits.exclude_after or math.inf)

    def _is_outlasted(self) -> bool:
        """Tell whether some task is at work since before those that failed: it may well succeed."""
        return any(job.began < self._failed_since for job in self._executor.at_work())

    def _settled(self, settled: Settled, root: _Root | None = None) -> None:
        for outcome, kind, said in settled.counted:
            if outcome.begun:
                self._report.count(kind, outcome.task.attempt)
                if said:
                    self._say("lost", said, task=outcome.task.id)
            self._untold.pop(id(outcome), None)  # last, for `completed_about`
        if settled.error is not None:
            self._leave_out(root or self._first, settled)
            return
        for key in self._keys_of(root or self._first) if self._queues.failing and settled.counted else ():
            self._queues.failing.pop(key, None)
        if self._is_idle():  # the feeder may have waited for long, and this may have been the last task of all
            self._feeder.check_soon()

    def _leave_out(self, root: _Root, settled: Settled) -> None:
        """Go on without a filesystem on which outcomes could not be recorded for too long, if there are others."""
        assert settled.error is not None
        keys = self._keys_of(root)
        if self._ending or len(keys) != 1:
            self._give_up(settled.error)
            return
        lost = sum(kind == "lost" and outcome.begun for outcome, kind, _ in settled.counted)
        if lost:
            what = f"{counted(lost, 'outcome')} could not be recorded, and the tasks come back when their leases end"
            self._say("storage", f"{what}: {settled.error}")
        self._feeder.leave_out(keys[0], settled.error)

    def _keys_of(self, root: _Root) -> list[Hashable]:
        """Return the filesystems that `root` tells."""
        return [key for key, one in self._roots.items() if one is root]

    # -- leases

    def _renew(self) -> None:
        """Renew all leases that are held, in one call."""
        held = [job.task for job in (*self._ahead, *self._executor.held()) if job.doomed != "lost" and not job.settled]
        held += [outcome.task for outcome in (*self._untold.values(), *self._outbox)]
        self._renew_at = self._now() + self._renewal_s() if held else math.inf
        for root, tasks in self._by_root(held, lambda task: task):
            if root.is_renewing:
                root.is_late = True  # the next follows at once
            else:
                root.is_renewing = True
                root.renewer.renew(tasks)

    def _renewed(self, renewed: Renewed, root: _Root | None = None) -> None:
        root = root or self._first
        is_late, root.is_renewing, root.is_late = root.is_late, False, False
        if is_late or self._renew_at == math.inf:
            self._renew_at = self._now()
        # `lease_s` may have been lowered meanwhile: what was renewed just now may be due earlier than was thought.
        self._renew_at = min(self._renew_at, self._now() + self._renewal_s())
        if renewed.error is not None:
            self._renew_at = min(self._renew_at, self._now() + min(RETRY_S[0], self._renewal_s()))
            if not self._renewal_failed:
                self._trouble("leases could not be renewed")(renewed.error)
        self._renewal_failed = renewed.error is not None
        gone = renewed.lost.keys() | renewed.settled.keys()
        if any(job.task.token in gone for job in self._executor.held() if job.began == math.inf):
            self.returned(self._executor.take_back(), "")
        # Another worker has what was not begun here.
        self._ahead = deque(job for job in self._ahead if job.task.token not in gone)
        for job in self._executor.at_work():
            if job.task.token in renewed.settled:
                job.settled = renewed.settled[job.task.token]  # it may go on: the task is not our concern any more
            elif job.task.token in renewed.lost and not job.doomed:
                self._lost(job, renewed.lost[job.task.token])

    def _lost(self, job: Job, error: FsqueueError) -> None:
        kills = self._limits.kills_lost
        what = "its work is stopped" if kills else "its work goes on"
        if kills and job.batch is not None and job.batch.left > 1:
            what = "what its command answers for it does not count"
        self._say("lost", f"task {job.task.id} was lost, {what}: {error}", task=job.task.id)
        if kills:
            self._doom(job, "lost")
        else:
            job.settled = "lost"

    # -- the end

    def _end(self, why: str, text: str) -> None:
        """Take no more tasks, and put back what is not begun."""
        if not self._ending:
            self._ending = self._report.ended = why
            if text:
                self._say("ending", text, why=why)
        self._feeder.close()
        self.returned(self._executor.take_back(), "")
        self._put_back_untouched()

    def _give_up(self, error: Exception) -> None:
        """Take no more tasks, and raise `error` once everything at work has ended."""
        self._error = self._error or error
        self._end("error", "")

    def _stop(self, number: int) -> None:
        """Act on a signal.

        The first lets finish what fits into the grace; the second puts back what it can in LEAVE_S seconds; the third
        just leaves.
        """
        self._signals += 1
        self._pending.hear(number)
        at_work = self._executor.at_work()
        if self._signals == 1:
            self._report.signal = number
            if at_work:
                left = f"may go on for {self._limits.grace_s:g} s; a second signal puts them back now"
                what = "will be put back: the job is ended" if self._pending.is_over else left
                self._say("stopping", f"stopping: {counted(len(at_work), 'task')} at work {what}")
            self._end("signal", "")
            self._report.ended = "signal"
            self._wind_up()
        else:
            self._leave_at = min(self._leave_at, self._now() + LEAVE_S)
            for root in self._all_roots():
                root.reporter.hurry()
            for job in at_work:
                self._doom(job, "stop", signal.SIGKILL)

    def _thread_died(self, name: str, error: BaseException) -> None:
        """Let tasks at work end within the grace; but none, if the thread that reports how they end has died."""
        self._broken = self._broken or obituary(name, error)
        if name == self._feeder.name:
            self._feeder.is_busy = False
        self._end("error", "")
        self._wind_up()
        if name == self._reporter.name:
            self._can_tell = False
            for job in self._executor.at_work():
                self._doom(job, "stop", signal.SIGKILL)

    def _wind_up(self) -> None:
        """Let what is at work end, as far as it can be done within the grace; none where Slurm ends it anyway."""
        self._executor.stopping()
        now, mean_s = self._now(), self._pace.mean_s
        grace_s = 0.0 if self._pending.is_over else self._limits.grace_s
        self._grace_until = min(self._grace_until, now + grace_s)
        for job in self._executor.at_work():
            if mean_s - (now - job.began) > grace_s:  # not if nothing was measured: then it is nan
                self._doom(job, "stop")

    def _doom(self, job: Job, why: str, number: int = signal.SIGTERM) -> None:
        if not self._executor.is_at_work(job):
            return  # the end of another has brought it back: it is not begun
        job.doomed = job.doomed or why
        job.kill_at = min(job.kill_at, math.inf if number == signal.SIGKILL else self._now() + self._kill_s)
        self._executor.end(job, number)

    def _close(self) -> None:
        """Leave nothing behind, also after an error in the loop itself. Usually nothing is held by then."""
        late = [task for feeder in self._left for task in feeder.abandon()]
        left = [Outcome(task, "release", begun=False) for task in late]
        left += [Outcome(job.task, "release", begun=False) for job in (*self._ahead, *self._executor.held())]
        left += (*self._untold.values(), *self._outbox, *self._pending.left())
        begun = sum(job.began < math.inf for job in self._executor.held())
        self._report.unsettled = begun + sum(outcome.begun for outcome in left)
        self._feeder.close()
        try:
            self._executor.close()
        finally:
            for root in self._all_roots():
                root.close()
            if (left or self._feeder.is_busy) and not self._is_leaving():
                enough = max(2, self._heard + 1)
                apart = [outcomes for _, outcomes in self._by_root(left, lambda outcome: outcome.task)]
                give_back(apart, self._feeder.untaken, lambda: self._heard >= enough)
            self._teller.flush()
            self.output_writer.close(lambda: self._heard > 0)
            self._report.unkept, self._report.unwritten = self.output_writer.unkept, self.output_writer.is_full_disk
            self.mailbox.close()

    def _renewal_s(self) -> float:
        """Return how long after a lease or a renewal the next renewal is due. The queues' settings may change."""
        if self._has_own_lease:
            return self._limits.lease_s / 3
        return min(settings.lease_s for settings in self._queues.settings()) / 3

    def _trouble(self, what: str) -> Callable[[FsqueueError], object]:
        return lambda error: self._say("storage", f"{what}: {error} Trying again.")
