"""A work loop: a command for each task, several at a time, its lease renewed while it runs.

One thread, the runner's, decides everything: it takes events from a queue and acts on them. What may
block is kept away from it, so that leases are renewed and signals noticed in time: a feeder thread waits
for tasks, and two threads a child read its standard error and wait for its exit. Signal handlers only
put an event into the same queue: nothing is ever raised in the middle of a verb.

If the runner itself is killed with SIGKILL, its commands go on to their end (nothing is left that could
stop them), but their leases run out and other workers take the tasks over. Inside a Slurm step, a systemd
scope or a container the commands die with the rest of it.
"""

from __future__ import annotations

import errno
import math
import queue as queues
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from fsqueue import errors
from fsqueue.clock import Clock, duration_ms
from fsqueue.command import PLACEHOLDER, RunningCommand, describe
from fsqueue.errors import FsqueueError, InvalidArgument
from fsqueue.inspection import DrainCheck
from fsqueue.queue import Queue
from fsqueue.task import LeasedTask

RETRY_S = 1.0
"""How soon a verb is repeated after the filesystem failed."""
LEASE_TRIES = 5
"""Of a lease that meets a failing filesystem, with pauses that double from RETRY_S."""

_LOST = (errors.LeaseLost, errors.TaskNotFound, errors.QueueNotFound)
_BROKEN = (errors.StorageError, errors.StorageFull)
_NO_COMMAND = (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC, errno.ENAMETOOLONG)
_COUNTED_AS = {"complete": "completed", "fail": "failed", "bury": "failed", "release": "released"}
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class RunReport:
    """What became of the tasks of one run."""

    completed: int = 0
    failed: int = 0
    """Attempts that failed, timed out, or were buried; a task retried here counts each time."""
    released: int = 0
    """Put back because the run was told to stop."""
    lost: int = 0
    """Taken over, purged or cancelled while they ran: the results were dropped."""
    signal: int | None = None
    """The number of the signal that ended the run, if one did."""

    def as_dict(self) -> dict[str, int | None]:
        """The numbers by name."""
        return dict(vars(self))


class CommandRunner:
    """Runs `argv` once for each task of `queue`.

    `{}` in an argument stands for the payload and `{field}` for a field of it, where the payload is an
    object that has it; strings go in as they are, all else as JSON. No shell is involved. The command
    also gets the payload as JSON on standard input (bytes as they are), and in its environment
    FSQUEUE_PAYLOAD (up to 100 kB), FSQUEUE_TASK_ID, FSQUEUE_ATTEMPT, FSQUEUE_QUEUE and FSQUEUE_TOKEN,
    with which it may settle the task itself. Exit status 0 completes the task; anything else fails it,
    with the last 4 KiB of standard error as the reason.

    jobs: how many commands run at a time.
    lease_s: seconds; the queue's own if None. Leases are renewed after each third of it.
    timeout_s: a command that runs for longer is ended, and the task fails.
    until: "drained" ends when nothing is waiting, delayed or leased; "forever" when stopped.
    grace_s: seconds between SIGTERM and SIGKILL for commands that have to end.
    tell: called with a sentence for each thing that the person at the terminal should know.

    Raises InvalidArgument.
    """

    def __init__(
        self,
        queue: Queue,
        argv: Sequence[str],
        *,
        jobs: int = 1,
        lease_s: float | None = None,
        timeout_s: float | None = None,
        until: Literal["drained", "forever"] = "drained",
        grace_s: float = 10.0,
        tell: Callable[[str], None] = lambda message: None,
    ) -> None:
        if type(jobs) is not int or jobs < 1:
            raise InvalidArgument(f"jobs must be a whole number from 1, not {jobs!r}.")
        if until not in ("drained", "forever"):
            raise InvalidArgument(f"until must be 'drained' or 'forever', not {until!r}.")
        if not argv:
            raise InvalidArgument("There is no command to run. Give it after '--'.")
        self._lease_s = duration_ms(queue.settings.lease_s if lease_s is None else lease_s, "lease_s", 0.001) / 1000
        self._timeout_s = math.inf if timeout_s is None else duration_ms(timeout_s, "timeout_s", 0.001) / 1000
        self._grace_s = duration_ms(grace_s, "grace_s") / 1000
        self._queue, self._argv, self._jobs, self._tell = queue, list(argv), jobs, tell
        self._is_fixed = PLACEHOLDER.search(argv[0]) is None  # else each payload names its own program
        self._now = Clock().monotonic
        self._events: queues.SimpleQueue[object] = queues.SimpleQueue()
        self._feeder = _Feeder(queue, self._lease_s, until == "drained", self._events)
        self._children: set[RunningCommand] = set()
        self._unsettled: list[_Outcome] = []
        self._report = RunReport()
        self._renew_at = math.inf
        self._ending = False  # nothing more is leased
        self._error: Exception | None = None

    def stop(self) -> None:
        """End the run as SIGTERM does, from any thread; a second call kills the commands at once."""
        self._events.put(signal.SIGTERM)

    def run(self) -> RunReport:
        """Work until there is nothing left to do, or until stopped. To be called once.

        Raises what keeps it from going on (QueueNotFound, StorageError, InvalidArgument for a command that
        cannot be executed), after the commands that run have ended and their tasks are settled.
        """
        with self._signals():
            self._feeder.start()
            try:
                while not self._is_finished():
                    self._ask()
                    self._handle(self._next_event())
                    self._keep_time()
            finally:
                self._feeder.close()
                self._abandon()
        if self._error is not None and self._report.signal is None:
            raise self._error
        return self._report

    # -- the loop

    def _is_finished(self) -> bool:
        return self._ending and not (self._children or self._unsettled or self._feeder.is_busy)

    def _ask(self) -> None:
        free = self._jobs - len(self._children) - len(self._unsettled)
        if self._ending:
            self._feeder.close()
        elif free > 0 and not self._feeder.is_busy:
            self._feeder.ask(free)

    def _next_event(self) -> object:
        due = min(
            self._renew_at,
            *(min(child.timeout_at, child.kill_at) for child in self._children),
            *(outcome.again_at for outcome in self._unsettled),
            math.inf,
        )
        try:
            return self._events.get(timeout=None if due == math.inf else max(0.0, due - self._now()))
        except queues.Empty:
            return None

    def _handle(self, event: object) -> None:
        if isinstance(event, _Fed):
            self._feeder.is_busy = False
            if event.error is not None:
                self._give_up(event.error)
            self._ending = self._ending or event.drained
            for task in event.tasks:
                self._start(task)
        elif isinstance(event, RunningCommand):
            self._children.remove(event)
            self._judge(event)
        elif isinstance(event, int):
            self._stop(event)

    def _keep_time(self) -> None:
        now = self._now()
        if now >= self._renew_at:
            self._renew()
        for child in self._children:
            if now >= child.kill_at:
                child.kill(signal.SIGKILL)
                child.kill_at = math.inf
            elif now >= child.timeout_at:
                self._terminate(child, "timeout")
        for outcome in [outcome for outcome in self._unsettled if now >= outcome.again_at]:
            self._unsettled.remove(outcome)
            self._settle(outcome)

    # -- a task's way

    def _start(self, task: LeasedTask) -> None:
        if self._ending:
            self._settle(_Outcome(task, "release"))
            return
        try:
            child = RunningCommand(task, self._argv, self._events.put)
        except (OSError, ValueError) as error:
            self._refuse(task, error)
            return
        child.timeout_at = self._now() + self._timeout_s
        self._children.add(child)
        self._renew_at = min(self._renew_at, self._now() + self._lease_s / 3)

    def _refuse(self, task: LeasedTask, error: OSError | ValueError) -> None:
        """A command could not be started: for this payload, or for all?"""
        if isinstance(error, ValueError):
            why = f"the payload cannot be an argument ({error}): read it from standard input"
        elif error.errno == errno.E2BIG:
            why = "the payload is too large for a command line: read it from standard input"
        elif not self._is_fixed and error.errno in _NO_COMMAND:
            why = f"the command cannot be executed: {error.strerror}: {error.filename}"
        else:
            self._settle(_Outcome(task, "release"))
            what = f"The command {self._argv[0]!r} could not be executed: {error.strerror or error}."
            self._give_up(InvalidArgument(f"{what} Its task was put back."))
            return
        self._settle(_Outcome(task, "fail", why))

    def _judge(self, child: RunningCommand) -> None:
        """A command has ended: settle its task."""
        if child.doomed:
            child.kill(signal.SIGKILL)  # what is left of its process group
        child.reap()
        if child.settled or child.doomed == "lost":
            self._count(child.settled or "lost")
        elif child.doomed == "stop":
            self._settle(_Outcome(child.task, "release"))
        elif child.doomed == "timeout":
            self._settle(_Outcome(child.task, "fail", child.reason(f"timed out after {self._timeout_s:g} s")))
        elif child.status == 0:
            self._settle(_Outcome(child.task, "complete"))
        else:
            self._settle(_Outcome(child.task, "fail", child.reason(describe(child.status))))

    def _settle(self, outcome: _Outcome) -> None:
        """Tell the queue; while its filesystem fails, again and again, until the lease would have run out."""
        task = outcome.task
        try:
            if outcome.verb == "complete":
                task.complete()
            elif outcome.verb == "release":
                task.release()
            else:
                task.fail(outcome.reason)
        except _LOST as error:
            own = self._own_outcome(task)
            if own is None:
                self._tell(f"task {task.id} was lost, its result is dropped: {error}")
            self._count(own or "lost")
        except _BROKEN as error:
            now = self._now()
            if outcome.again_at == math.inf:
                outcome.until = now + self._lease_s
                self._tell(f"task {task.id}: {error} Trying again.")
            if now < outcome.until:
                outcome.again_at = now + RETRY_S
                self._unsettled.append(outcome)
                self._renew_at = min(self._renew_at, now + self._lease_s / 3)
            else:
                self._count("lost")
                self._give_up(error)
        else:
            self._count(_COUNTED_AS[outcome.verb])

    def _own_outcome(self, task: LeasedTask) -> str | None:
        """How the command settled its task itself, through FSQUEUE_TOKEN, if it did."""
        lease = task.token.rpartition("@")[2]
        try:
            moves = self._queue.history(task.id)
        except FsqueueError:
            return None
        return next((_COUNTED_AS[move.op] for move in moves if move.lease == lease and move.op in _COUNTED_AS), None)

    def _count(self, what: str) -> None:
        setattr(self._report, what, getattr(self._report, what) + 1)

    # -- leases

    def _held(self) -> list[LeasedTask]:
        running = [child.task for child in self._children if child.doomed != "lost" and not child.settled]
        return running + [outcome.task for outcome in self._unsettled]

    def _renew(self) -> None:
        """Renew everything held, in one call. The commands of tasks that turn out to be lost are stopped."""
        held = self._held()
        self._renew_at = self._now() + self._lease_s / 3 if held else math.inf
        try:
            self._queue.renew(held, lease_s=self._lease_s)
        except _LOST as error:
            lost = (isinstance(error, errors.LeaseLost) and error.tasks) or [task.id for task in held]
            for child in [child for child in self._children if child.task.id in lost and not child.doomed]:
                child.settled = self._own_outcome(
                    child.task
                )  # if so, it may go on: the task is not our concern any more
                if not child.settled:
                    self._tell(f"task {child.task.id} was lost, its command is stopped: {error}")
                    self._terminate(child, "lost")
        except _BROKEN as error:
            self._tell(f"leases could not be renewed: {error} Trying again.")
            self._renew_at = self._now() + min(RETRY_S, self._lease_s / 3)

    # -- the end

    def _give_up(self, error: Exception) -> None:
        """Take no more tasks, and raise `error` once everything that runs has ended."""
        self._ending = True
        self._error = self._error or error

    def _stop(self, number: int) -> None:
        again = self._report.signal is not None
        self._ending, self._report.signal = True, self._report.signal or number
        if not again and self._children:
            self._tell(f"stopping: {len(self._children)} running command(s) have to end; a second signal kills them")
        for child in self._children:
            self._terminate(child, "stop", signal.SIGKILL if again else signal.SIGTERM)

    def _terminate(self, child: RunningCommand, why: str, number: int = signal.SIGTERM) -> None:
        """Ask `child` to end. If it has ended already, nothing happens: its own exit status counts."""
        if not child.has_exited():
            child.doomed = child.doomed or why
            child.timeout_at = math.inf
            child.kill_at = min(child.kill_at, self._now() + self._grace_s)
            child.kill(number)

    def _abandon(self) -> None:
        """Leave nothing behind after an error in the loop itself."""
        for child in self._children:
            child.kill(signal.SIGKILL)
        for task in self._held():
            try:
                task.release()
            except FsqueueError:
                pass  # it comes back by itself when the lease runs out

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """In the main thread, turn signals into events. Those that are ignored (nohup) stay ignored."""
        before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in _STOPPING:
                if signal.getsignal(number) != signal.SIG_IGN:
                    before[number] = signal.signal(number, lambda number, frame: self._events.put(number))
            if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # inherited; it would hide every exit status
                before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            yield
        finally:
            for changed, handler in before.items():
                signal.signal(changed, handler)


@dataclass
class _Outcome:
    """What the queue has to be told about a task."""

    task: LeasedTask
    verb: Literal["complete", "fail", "release"]
    reason: str = ""
    again_at: float = math.inf
    until: float = math.inf


@dataclass
class _Fed:
    """The feeder's answer."""

    tasks: list[LeasedTask] = field(default_factory=list)
    drained: bool = False
    error: FsqueueError | None = None


class _Feeder(threading.Thread):
    """Waits for tasks on behalf of the loop, one request at a time; each is answered with one `_Fed`."""

    def __init__(self, queue: Queue, lease_s: float, ends: bool, events: queues.SimpleQueue[object]) -> None:
        super().__init__(name="fsqueue-feeder", daemon=True)
        self.is_busy = False  # written by the loop only
        self._queue, self._lease_ms, self._events = queue, math.ceil(lease_s * 1000), events
        self._requests: queues.SimpleQueue[int] = queues.SimpleQueue()
        self._closed = threading.Event()
        self._is_drained: Callable[[], bool] = DrainCheck(queue.store) if ends else lambda: False

    def ask(self, n: int) -> None:
        """Request up to `n` tasks. The answer comes when there are some, or when there is no point in waiting."""
        self.is_busy = True
        self._requests.put(n)

    def close(self) -> None:
        """Wait no longer."""
        if not self._closed.is_set():
            self._closed.set()
            self._requests.put(0)

    def run(self) -> None:
        while n := self._requests.get():
            try:
                answer = self._lease(n)
            except FsqueueError as error:
                answer = _Fed(error=error)
            except Exception as error:  # whatever it is, the loop must hear of it, or it would wait for ever
                answer = _Fed(error=FsqueueError(f"Leasing failed: {type(error).__name__}: {error}."))
            self._events.put(answer)

    def _lease(self, n: int) -> _Fed:
        pause_s = RETRY_S
        for tries_left in reversed(range(LEASE_TRIES)):
            try:
                tasks = self._queue._lease_waiting(n, self._lease_ms, self._is_over, self._closed.wait)
                return _Fed(tasks, drained=not tasks)
            except errors.StorageError:
                if not tries_left or self._closed.wait(pause_s):
                    raise
                pause_s *= 2
        raise AssertionError

    def _is_over(self) -> bool:
        return self._closed.is_set() or self._is_drained()
