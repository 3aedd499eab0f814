"""The calls of python-task-queue, on queues of fsqueue: `from fsqueue.compat.taskqueue import TaskQueue, queueable`.

docs/from-task-queue.md says what is the same, and what differs. All of it goes through fsqueue's public names: whatever
is promised of a queue holds for this layer, too.
"""

from __future__ import annotations

import builtins
import inspect
import logging
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from tqdm import tqdm

import fsqueue
from fsqueue.compat import stored
from fsqueue.compat.local import LocalTaskQueue, MockTaskQueue, count_of, tasks_in
from fsqueue.compat.tasks import (
    AnyTask,
    FunctionTask,
    MockTask,
    PrintTask,
    RegisteredTask,
    UnregisteredFunctionError,
    call_of,
    of_call,
    queueable,
    totask,
)

LEASE_SECONDS = 300
"""How long `poll` leases a task unless it is told."""
PAUSE_S = 0.05
"""Shortest time that an idle worker waits, whatever window it was given: it would otherwise do nothing but look."""

Outcome = Literal["done", "backoff", "lost", "put back"]
"""What became of a leased task: its work is done; it was put back for an error that the caller named; another worker
has taken it over; it was put back or given up as it asked for."""

logger = logging.getLogger("fsqueue.compat.taskqueue")


class QueueEmptyError(LookupError):
    """No task is available."""


class UnsupportedProtocolError(ValueError):
    """The address is neither a path (fq://) nor that of a gateway (http://)."""


class ExtractedPath(NamedTuple):
    """An address, taken apart."""

    protocol: str
    path: str


def _extracted(address: str) -> ExtractedPath:
    protocol, colon, path = address.partition("://")
    if not colon:
        raise UnsupportedProtocolError(
            f"{address!r} has no protocol. Nothing was made. Write fq://{address} for a queue at that path."
        )
    if protocol == "fq" and path:
        return ExtractedPath(protocol, path)
    if protocol in ("http", "https", "http+unix"):
        return ExtractedPath(protocol, address)
    raise UnsupportedProtocolError(
        f"{address!r} is no queue that fsqueue has. Nothing was made. Write fq://PATH for a directory, or the address "
        "of a gateway: http://HOST:PORT/QUEUE."
    )


class TaskQueue:
    """A queue of functions' calls and RegisteredTasks. `qurl`: fq:// and a path, or the address of a gateway's queue.

    The queue is created if there is none at the path; one behind a gateway must be there. `progress`: show a bar on
    standard error while tasks are inserted. The other arguments are accepted and change nothing. `queue` is the
    fsqueue.Queue (or RemoteQueue) itself. Errors as of that: every error of fsqueue is an `fsqueue.FsqueueError`.
    """

    def __init__(
        self, qurl: str, n_threads: int = 40, green: bool = False, progress: bool = True, **kwargs: Any
    ) -> None:
        self.qurl, self.n_threads, self.green, self.progress = qurl, n_threads, bool(green), bool(progress)
        self.path = _extracted(str(qurl))
        self.queue: Any = _opened(self.path)
        self._held: dict[str, fsqueue.LeasedTask] = {}
        """The tasks that `lease` has given out, by id."""
        self._zero = fsqueue.Status()
        """The counts at the last `rezero` of this object."""

    # -- counts -------------------------------------------------------------------------------------------

    @property
    def enqueued(self) -> int:
        """Return how many tasks have no outcome yet: waiting, delayed and leased ones, and no dead letters."""
        return int(self.queue.status().remaining)

    @property
    def leased(self) -> int:
        """Return how many tasks are leased."""
        return int(self.queue.status().leased)

    @property
    def inserted(self) -> int:
        """Return how many tasks were inserted since the queue was created or purged, or since `rezero`."""
        return self._since_rezero()[0]

    @property
    def completed(self) -> int:
        """Return how many tasks were completed, each once, since the queue was created or purged, or since `rezero`."""
        return self._since_rezero()[1]

    def _since_rezero(self) -> tuple[int, int]:
        """Return how many tasks were inserted and completed since then."""
        now, zero = self.queue.status(), self._zero
        if now.inserted < zero.inserted or now.completed < zero.completed:  # purged meanwhile: it counts from zero
            self._zero = zero = fsqueue.Status()
        return now.inserted - zero.inserted, now.completed - zero.completed

    def rezero(self) -> None:
        """Have `inserted` and `completed` of this object count from now on. The queue's own counts stay."""
        self._zero = self.queue.status()

    def is_empty(self) -> bool:
        """Return whether no task is left to do."""
        return bool(self.queue.is_drained())

    # -- inserting ----------------------------------------------------------------------------------------

    def insert(
        self,
        tasks: Any,
        delay_seconds: float = 0,
        total: int | None = None,
        parallel: int | bool = 1,
        skip_insert_counter: bool = False,
    ) -> int:
        """Insert one task or many, and return how many; they are durable then.

        `tasks`: a task, an iterable of tasks, or another TaskQueue, whose unfinished tasks are copied. A task is a
        partial of a queueable function, or a RegisteredTask. `total`: how many there are, for the progress bar.
        `parallel` and `skip_insert_counter` change nothing: one process writes them all, in batches.
        """
        if isinstance(tasks, TaskQueue):
            if tasks.queue == self.queue:
                raise fsqueue.InvalidArgument("A queue cannot be inserted into itself. Nothing was inserted.")
            count = total
            payloads: Iterable[Any] = (info.payload for info in tasks.queue.tasks())
        else:
            count = count_of(tasks, total)
            payloads = (call_of(totask(task)).as_payload() for task in tasks_in(tasks))
        with tqdm(payloads, desc="Inserting", total=count, disable=count == 1 or not self.progress) as payloads:
            return int(self.queue.insert_many(payloads, delay_s=delay_seconds, total=count, strict=True))

    def insert_all(self, *args: Any, **kwargs: Any) -> int:
        """Insert tasks: `insert` under an older name."""
        return self.insert(*args, **kwargs)

    def add_insert_count(self, ct: int) -> None:
        """Do nothing: the queue counts what is inserted itself."""

    # -- leases -------------------------------------------------------------------------------------------

    def lease(self, seconds: float = 600, num_tasks: int = 1, wait_sec: float | None = None) -> Any:
        """Lease a task, or a list of up to `num_tasks` if that is more than 1. QueueEmptyError if there is none.

        `wait_sec`: how long to wait for one. End each lease with `delete` (it is done) or `cancel` (put it back).
        UnregisteredFunctionError, and the tasks are put back, if a class is not registered in this process.
        """
        found = self._leased(num_tasks, seconds, wait_sec or 0)
        if not found:
            raise QueueEmptyError(f"No task of {self.qurl} is available.")
        self._held |= {held.id: held for held, _ in found}
        tasks = [task for _, task in found]
        return tasks[0] if num_tasks == 1 else tasks

    def _leased(self, n: int, seconds: float, wait_s: float) -> list[tuple[fsqueue.LeasedTask, AnyTask]]:
        """Lease tasks; [] if there is none. What is no call becomes a dead letter: no worker could execute it."""
        held = self.queue.lease(n, lease_s=seconds, wait_s=wait_s)
        while held:
            if found := self._calls_of(held):
                return found
            held = self.queue.lease(n, lease_s=seconds)
        return []

    def _calls_of(self, held: Sequence[fsqueue.LeasedTask]) -> builtins.list[tuple[fsqueue.LeasedTask, AnyTask]]:
        found = []
        for place, one in enumerate(held):
            try:
                found.append((one, of_call(stored.from_payload(one.payload), one.id)))
            except stored.StoredTaskError as error:
                one.bury(f"the payload {error}")
            except Exception:  # a class that is not registered, or that cannot be made: put all back
                self.queue.release([each for each, _ in found] + [*held[place:]])
                raise
        return found

    def renew(self, task: Any, seconds: float) -> None:
        """Extend the lease of a task that `lease` has returned to `seconds` from now. fsqueue.LeaseLost."""
        self._lease_of(task).renew(seconds)

    def cancel(self, task: Any) -> None:
        """Put a task back that `lease` has returned: it is available at once. fsqueue.LeaseLost."""
        self._lease_of(task).release()
        del self._held[_id_of(task)]

    def _lease_of(self, task: Any) -> fsqueue.LeasedTask:
        held = self._held.get(_id_of(task))
        if held is None:
            raise fsqueue.InvalidArgument(f"This TaskQueue holds no lease of {task!r:.100}. Nothing was done.")
        return held

    def delete(self, task_id: Any, total: int | None = None, tally: bool = False) -> None:
        """Report tasks as done that `lease` has returned, or take waiting ones out of the queue. One task, or many.

        fsqueue.LeaseLost if another worker has taken a task over, or holds it: that task is not deleted. `tally`
        changes nothing: what is done is counted, once.
        """
        for one in tasks_in(task_id):
            held = self._held.pop(_id_of(one), None)
            if held is not None:
                held.complete()
            elif not self.queue.cancel([_id_of(one)]):
                self._refuse_held(_id_of(one))

    def _refuse_held(self, id: str) -> None:
        """Raise LeaseLost if another worker holds a task. One that has ended needs no deleting."""
        try:
            is_leased = self.queue.task(id).state == "leased"
        except fsqueue.TaskNotFound:
            return
        if is_leased:
            raise fsqueue.LeaseLost(
                f"The task {id} is leased by another worker, and was not deleted. Wait until that has ended, or take "
                "its lease away with release_all."
            )

    def release_all(self) -> None:
        """End all leases, also those of other workers: their tasks are available, and they cannot complete them."""
        self.queue.release_all()
        self._held.clear()

    def purge(self, native: bool = False) -> None:
        """Drop all tasks, and count from zero."""
        self.queue.purge()
        self._held.clear()
        self._zero = fsqueue.Status()

    # -- looking ------------------------------------------------------------------------------------------

    def tasks(self) -> Iterator[AnyTask]:
        """Yield the unfinished tasks, leased or not. A hint while others work."""
        return (of_call(stored.from_payload(info.payload), info.id) for info in self.queue.tasks())

    def list(self) -> Sequence[AnyTask]:
        """Return the unfinished tasks, leased or not. A hint while others work."""
        return [*self.tasks()]

    def block_until_empty(self, interval_sec: float = 2) -> None:
        """Wait until no task is left to do. A warning is logged if some were given up (dead letters)."""
        dead = self.queue.wait().dead
        if dead:
            logger.warning(
                "%s: nothing is left to do, but %d tasks were given up (dead letters). To see why: fsqueue dead list",
                self.qurl, dead,
            )  # fmt: skip

    # -- working ------------------------------------------------------------------------------------------

    def poll(
        self,
        lease_seconds: float = LEASE_SECONDS,
        verbose: bool = False,
        execute_args: Iterable[Any] = (),
        execute_kwargs: dict[str, Any] | None = None,
        stop_fn: Callable[..., Any] | None = None,
        backoff_exceptions: Iterable[type[Exception]] = (),
        min_backoff_window: float = 1,
        max_backoff_window: float = 120,
        before_fn: Callable[[Any], Any] | None = None,
        after_fn: Callable[[Any], Any] | None = None,
        tally: bool = False,
    ) -> int:
        """Execute tasks until `stop_fn` returns true (without it: for ever), and return how many.

        `stop_fn` is called after each task, and each time that none was found. It gets those of these arguments that
        it has: `executed` (tasks), `tries` (looks for a task since the last one, this one included),
        `elapsed_time` and `previous_execution_time` (seconds).

        An exception of a task fails the attempt, with the error as its reason, and is raised. The task comes back after
        a pause, up to the queue's number of attempts. One of `backoff_exceptions` is not raised: the task is put back,
        which counts as no attempt, and this worker pauses. `fsqueue.Retry` and `fsqueue.Bury` do as in a worker.

        A worker that finds no task waits for one; a new task ends that at once on the same host. The wait, and the
        pause after one of `backoff_exceptions`, has a random length, up to a window (seconds) that doubles from
        `min_backoff_window` to `max_backoff_window`. `before_fn` and `after_fn` get the task. The lease is not renewed:
        if the task takes longer than `lease_seconds` and another worker takes it over, a warning is logged.

        Ctrl-C ends the loop when the task at hand is done; a second Ctrl-C ends it at once, and the task is put back.
        `tally` changes nothing: what is done is counted.
        """
        attempt = _Attempt(
            tuple(backoff_exceptions), tuple(execute_args), dict(execute_kwargs or {}), before_fn, after_fn, verbose
        )
        stops, patience = _Stop(stop_fn), _Patience(min_backoff_window, max_backoff_window)
        began, executed, tries, pause_s, wait_s = time.monotonic(), 0, 0, 0.0, 0.0
        with _interruptible() as interrupt:
            while True:
                found: builtins.list[tuple[fsqueue.LeasedTask, AnyTask]] = []
                try:
                    interrupt.is_waiting = True
                    if interrupt.asked:
                        break
                    time.sleep(pause_s)
                    found = self._leased(1, lease_seconds, wait_s)
                    interrupt.is_waiting = False
                except KeyboardInterrupt:
                    if not interrupt.has_ended_wait():
                        raise
                    if found:
                        self.queue.release(found[0][0])
                    break
                tries += 1
                outcome: Outcome | None = None
                if found:
                    interrupt.is_busy = True
                    outcome = attempt.run(*found[0])
                    interrupt.is_busy = False
                    if outcome == "done":
                        executed, tries = executed + 1, 0
                if stops(executed, tries, time.monotonic() - began, attempt.took_s):
                    break
                pause_s = wait_s = 0.0
                if not found:
                    wait_s = patience.next_s()  # the next look waits up to `wait_s` for a task
                elif outcome == "backoff":
                    pause_s = patience.next_s()
                else:
                    patience.end()
        attempt.say("INFO the loop has ended")
        return executed

    def close(self) -> None:
        """Close what is open. The queue may be used again."""
        self.queue.close()

    def __enter__(self) -> TaskQueue:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"TaskQueue({self.qurl!r})"


class GreenTaskQueue(TaskQueue):
    """A TaskQueue: gevent's threads are not needed, since inserting waits for no server."""


def _opened(path: ExtractedPath) -> fsqueue.Queue | fsqueue.RemoteQueue:
    if path.protocol == "fq":
        try:
            return fsqueue.Queue.create(path.path, exist_ok=True)
        except fsqueue.NotAQueue as error:
            raise fsqueue.NotAQueue(
                f"{error} If a FileQueue of python-task-queue is there, its tasks can be taken over into a new queue: "
                f"fsqueue import --from-filequeue {path.path} QUEUE"
            ) from error
    found = fsqueue.connect(path.path)
    if not isinstance(found, fsqueue.RemoteQueue):
        raise fsqueue.NotAQueue(f"{path.path} is a group of queues. Name one of them: {path.path.rstrip('/')}/QUEUE")
    return found


def _id_of(task: Any) -> str:
    return str(task if isinstance(task, str) else task.id)


class _Attempt:
    """Execute leased tasks, as `TaskQueue.poll` was told to."""

    def __init__(
        self,
        backing_off: tuple[type[Exception], ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        before_fn: Callable[[Any], Any] | None,
        after_fn: Callable[[Any], Any] | None,
        verbose: bool,
    ) -> None:
        self._backing_off, self._args, self._kwargs = backing_off, args, kwargs
        self._before_fn, self._after_fn, self._verbose = before_fn, after_fn, verbose
        self.took_s = 0.0
        """How long the last task took that was done."""

    def say(self, text: str) -> None:
        """Print a line, if `poll` was asked for that."""
        if self._verbose:
            print(text, flush=True)  # noqa: T201 - the caller has asked for it

    def run(self, held: fsqueue.LeasedTask, task: AnyTask) -> Outcome:
        """Execute a task and end its lease. Return what became of it; a failure is recorded, and raised."""
        outcome: Outcome = "put back"  # fsqueue.Retry and Bury end in the block
        try:
            with held:
                outcome = self._execute(held, task)
        except fsqueue.LeaseLost as error:
            logger.warning("the work on %s is not counted: %s", held.id, error)
            return "lost"
        if outcome == "done":
            self.say(f"INFO done in {self.took_s:.2f} s: {task!r} ({held.id})")
            if self._after_fn is not None:
                self._after_fn(task)
        return outcome

    def _execute(self, held: fsqueue.LeasedTask, task: AnyTask) -> Outcome:
        self.say(f"INFO leased {task!r} ({held.id})")
        began = time.monotonic()
        try:
            if self._before_fn is not None:
                self._before_fn(task)
            task.execute(*self._args, **self._kwargs)
        except UnregisteredFunctionError:
            held.release()  # the task is sound: a worker that has imported the module can execute it
            raise
        except self._backing_off as error:
            self.say(f"INFO put back, {type(error).__name__}: {task!r} ({held.id}): {_line(error)}")
            held.release()
            return "backoff"
        except Exception as error:
            self.say(f"ERROR {type(error).__name__}: {task!r} ({held.id}): {_line(error)}")
            raise
        self.took_s = time.monotonic() - began
        return "done"


def _line(error: Exception) -> str:
    """Return an error's text on one line, with what drives a terminal escaped."""
    return repr(str(error))[1:-1]


class _Stop:
    """Ask a `stop_fn`, with the arguments that it has."""

    def __init__(self, stop_fn: Callable[..., Any] | None) -> None:
        if stop_fn is not None and not callable(stop_fn):
            raise ValueError(f"stop_fn must be a function, not {stop_fn!r}.")
        self._function = stop_fn
        self._names = set(inspect.signature(stop_fn).parameters) if stop_fn is not None else set()

    def __call__(self, executed: int, tries: int, elapsed_s: float, took_s: float) -> bool:
        if self._function is None:
            return False
        known = {
            "executed": executed,
            "tries": tries,
            "elapsed_time": elapsed_s,
            "previous_execution_time": took_s,
        }
        return bool(self._function(**{name: value for name, value in known.items() if name in self._names}))


class _Patience:
    """Give random pauses, from a window that doubles."""

    def __init__(self, least_s: float, most_s: float) -> None:
        self._least_s, self._most_s = max(PAUSE_S, least_s), max(PAUSE_S, most_s)
        self.end()

    def end(self) -> None:
        """Begin with the smallest window again: there was work."""
        self._window_s = min(self._least_s, self._most_s)

    def next_s(self) -> float:
        """Return how many seconds to wait."""
        window_s, self._window_s = self._window_s, min(2 * self._window_s, self._most_s)
        return random.uniform(PAUSE_S, window_s)


class _Interrupt:
    """Take Ctrl-C: the first one asks for the end, and ends a wait at once; a second one raises KeyboardInterrupt."""

    asked = False
    """Whether Ctrl-C has come."""
    is_waiting = False
    """Whether the loop waits, in a `try` that takes the KeyboardInterrupt by which a first Ctrl-C ends the wait."""
    is_busy = False
    """Whether a task is being executed: the user is told that the loop goes on until it is done."""

    def __call__(self, number: int, frame: object) -> None:
        was_asked, self.asked = self.asked, True
        if was_asked or self.is_waiting:
            raise KeyboardInterrupt
        if self.is_busy:
            print(  # noqa: T201 - the user waits for a word
                "Interrupted: the loop ends after this task. Ctrl-C again ends it at once.", flush=True
            )

    def has_ended_wait(self) -> bool:
        """Return whether a KeyboardInterrupt was this object's, which has ended a wait."""
        was_waiting, self.is_waiting = self.is_waiting, False
        return was_waiting and self.asked


@contextmanager
def _interruptible() -> Iterator[_Interrupt]:
    """Take Ctrl-C in a block. In another thread than the main one, signals stay what they are."""
    interrupt = _Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


__all__ = [
    "LEASE_SECONDS",
    "FunctionTask",
    "GreenTaskQueue",
    "LocalTaskQueue",
    "MockTask",
    "MockTaskQueue",
    "PrintTask",
    "QueueEmptyError",
    "RegisteredTask",
    "TaskQueue",
    "UnregisteredFunctionError",
    "UnsupportedProtocolError",
    "queueable",
    "totask",
]
