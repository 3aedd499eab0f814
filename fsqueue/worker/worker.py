"""The worker as users hold it: arguments checked, the loop built and run."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

from fsqueue import forks
from fsqueue.arguments import whole
from fsqueue.clock import duration_ms
from fsqueue.cluster import slurm
from fsqueue.errors import ForkedChild, FsqueueError, InvalidArgument
from fsqueue.filesystem.result_paths import ResultFiles
from fsqueue.format import names
from fsqueue.groups.queue_selection import Selected
from fsqueue.queue import Queue
from fsqueue.worker import completion_updates, devices, handlers, placeholders, reclaiming, scripts, shortages
from fsqueue.worker.batches import Batches
from fsqueue.worker.child_processes import Children
from fsqueue.worker.commands import Commands
from fsqueue.worker.events import Mailbox
from fsqueue.worker.handler_threads import WARNING, Threads
from fsqueue.worker.jobs import How, JobExecutor
from fsqueue.worker.limits import FAILURES_FIRST, TASKS_PER_COMMAND_MAX, Limits, Moves
from fsqueue.worker.loop import Loop
from fsqueue.worker.output_relay import OUTPUTS, Output, PassOn
from fsqueue.worker.report import Event, Tell, WorkerReport, nobody
from fsqueue.worker.sources import Away, RemoteSource, sources_of
from fsqueue.worker.spawning import ProcessExecutor

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What asks a worker to end: schedulers send SIGTERM, before it what was asked for; at its time limit LSF, SIGUSR2."""


class Worker:
    """Execute the tasks of one or several queues, by a Python function or a command, until they are drained.

    A `Group`, or `Group.matching`, stands for its queues, also for those that come while the worker runs.

    ``Worker(queue, handler).run()``: `handler(payload)`, `handler(payload, task)` or, where the fields of a payload are
    its parameters, `handler(**payload)` returns a JSON value that is kept with the task, or None. docs/functions.md has
    the rules. `sys.exit(0)` counts as a return of None. Another exception fails the attempt, and the task is tried
    again later; `fsqueue.Retry` puts it back without blame, `fsqueue.Bury` gives it up. It is a function at the top of
    a module, or its name, "package.module:function". Instead of it, `load` names modules with registered functions
    (`fsqueue.task`), or `command` a program with its arguments, run once a task: `{}` in an argument stands for the
    payload, `{field}` for a field of it. If a task lacks the field, the attempt fails. `{{field}}` stands for the text
    `{field}`. docs/commands.md has all placeholders.

    processes: how many tasks are executed at a time, each in a process of its own. "auto": one for each processor that
        this process may use, by its Slurm job or the machine. With `gpus_per_task`, no more than there are GPUs for.
    gpus_per_task: number of visible GPUs for each process, shared with no other (CUDA_VISIBLE_DEVICES and such).
        With GPUs or without, each process finds the number of its slot, from 0 on, in FSQUEUE_SLOT.
    threads: number of threads of this process instead. Nothing protects the worker from them, and it warns of that.
    lease_s: seconds; each queue's own if None. Leases are renewed after each third of it.
    task_timeout_s: a task that takes longer is ended, and fails.
    grace_s: how long tasks at work may go on when the worker is told to stop.
    until: "drained" ends when nothing is waiting, delayed or leased in any queue; "forever" when stopped.
    upstream: the queues of earlier stages. With "drained", the worker ends when at one instant nothing is waiting,
        delayed or leased in its own queues nor in these. It takes no tasks from them. They may be queues of a group
        that have not come into being; then make sure that something is inserted before the worker starts.
    tasks_per_command: start a command for up to this number of tasks (1,000 at most), which it gets as JSON Lines on
        standard input. Exit status 0 completes all of them. With `result_from_stdout` it answers for each task by a
        line of JSON with its `id`, and `result` or `error`. docs/commands.md has the rules.
    recycle_after: replace each process of a function after this number of tasks: against what a library leaks.
    recycle_rss_bytes: replace a process once a task has ended, if it has more physical memory than this by then.
    prefetch: how many tasks are leased at a time for each process. If None, that depends on how long tasks take.
    max_tasks, max_runtime_s, idle_timeout_s: end after a number of tasks, a time (s), or a time without a task.
    stop_after_failures: end when this number of attempts in a row have failed. If neither this nor `exclude_after` is
        given: when the first ten have failed, and no other attempt has been at work for longer.
    exclude_after: keep workers with this option off a node on which this number of attempts in a row have failed.
    max_attempts: give a task up when an attempt fails here and it was attempted this number of times, on any worker.
        The queue's `max_attempts` still counts: it is for leases that run out, and where it is smaller, it comes first.
    on_lease_lost: "kill" the work on a task that another worker has taken over, or let it "finish".
    sysexits: commands that exit with 75 are put back without blame, with 65 buried at once.
    then_to, on: move a task to the queue `then_to` of the same group if an attempt at it fails in one of the ways `on`:
        "oom" (out of memory), "timeout", "exit=N" (N: exit status of a command). In one step: it is in one queue.
    allow_in_script: let payloads become part of a program in the command, as in ["sh", "-c", "echo {f}"]. A user who
        inserts tasks can then run anything as you. Without it, such a command is refused, with what to write instead.
    keep_output: a directory for all that is printed, a new file for each task and attempt.
    result_dir: where commands find the file FSQUEUE_RESULT, in a private directory. If None: the system's directory
        for temporary files. If commands may run on other nodes, a place in the queue instead: they name srun or mpirun,
        or this is the only worker in a Slurm job of several nodes.
    result_from_stdout: a command's result is its standard output, instead of what it writes to the file FSQUEUE_RESULT.
    stdin: give commands the payload as JSON on standard input also if it stands in their arguments. Without it, a
        command with a placeholder gets an empty standard input, and one without any gets the payload.
    then: the name of a queue in the group of each task's queue. Each line that a command prints to standard output is a
        payload in JSON. When the command exits with 0, all of them are inserted there in one step with the completion
        of its task. A function returns `fsqueue.Then` instead. docs/pipelines.md has the rules.
    patience_s: how long the worker waits for a failing filesystem.
    output: how output is passed on: "group", together when an attempt ends; "line", line by line; "ungrouped", as it
        comes. By default in groups if commands run side by side, otherwise in lines.
    tag: begin each line that is passed on with the task's id.
    pass_on: called with 1 or 2 and bytes, instead of writing these to this process's standard output or error.
        It and `tell` are called in one thread, so never at the same time.
    tell: called with an `Event` for whatever may be of interest.
    report_at_once: report an outcome at once while there is nothing else to do, as somebody waits for each. Without it,
        the worker gathers outcomes for up to a tenth of a second, so that many are reported in one step.
    away: queues and groups that are not there yet (the command line's). Of several queues, one that is not there any
        more is tried again, too. When the others are drained, the run ends with `ended` "away".

    Raises InvalidArgument.
    """

    def __init__(
        self,
        queues: Queue | Selected | RemoteSource | Sequence[Queue | Selected | RemoteSource],
        handler: Callable[..., Any] | str | None = None,
        *,
        command: Sequence[str] = (),
        load: Sequence[str] = (),
        processes: int | Literal["auto"] = 1,
        gpus_per_task: int | None = None,
        threads: int | None = None,
        lease_s: float | None = None,
        task_timeout_s: float | None = None,
        grace_s: float = 10.0,
        until: Literal["drained", "forever"] = "drained",
        upstream: Queue | Selected | RemoteSource | Sequence[Queue | Selected | RemoteSource] = (),
        tasks_per_command: int | None = None,
        recycle_after: int | None = None,
        recycle_rss_bytes: int | None = None,
        prefetch: int | None = None,
        max_tasks: int | None = None,
        max_runtime_s: float | None = None,
        idle_timeout_s: float | None = None,
        stop_after_failures: int | None = None,
        exclude_after: int | None = None,
        on_lease_lost: Literal["kill", "finish"] = "kill",
        sysexits: bool = False,
        allow_in_script: bool = False,
        keep_output: str | Path | None = None,
        result_dir: str | Path | None = None,
        result_from_stdout: bool = False,
        stdin: bool = False,
        then: str | None = None,
        then_to: str | None = None,
        on: Sequence[str] = (),
        patience_s: float = 600.0,
        max_attempts: int | None = None,
        output: Output | None = None,
        tag: bool = False,
        pass_on: PassOn | None = None,
        tell: Tell = nobody,
        away: Sequence[Away] = (),
        report_at_once: bool = False,
    ) -> None:
        self._queues = sources_of(queues, upstream, away)
        if self._queues.remote is not None and exclude_after is not None:
            raise InvalidArgument(
                "exclude_after (--exclude-after) counts the failures of all workers on a node in a file of the queue's "
                "directory, and a gateway has no call for that. stop_after_failures (--stop-after-failures) ends this "
                "worker alone. Give that instead, or start the worker on a host that has mounted the filesystem."
            )
        if (handler is not None) + bool(command) + bool(load) != 1:
            raise InvalidArgument("A worker needs exactly one of a handler, a command, and modules to load.")
        for name, words, like in (("command", command, "['./render', '{tile}']"), ("load", load, "['tiles.jobs']")):
            if isinstance(words, str) or not all(isinstance(word, str) for word in words):
                raise InvalidArgument(f"{name} must be a list of texts, such as {like}, not {words!r}.")
        if command:
            scripts.check_command(command, allow_in_script or tasks_per_command is not None)
        elif stdin:
            raise InvalidArgument(
                "stdin (--stdin) is for commands. A function gets the payload as its parameter: leave it out."
            )
        if then is not None:
            self._check_then(then, is_command=bool(command), is_result=result_from_stdout)
        if (then_to is None) != (not on):
            raise InvalidArgument(
                "then_to (--then-to) names the queue to which tasks move, and on (--on) for which failures: give both."
            )
        moves = None if then_to is None else Moves.of(then_to, on)
        if moves is not None:
            self._check_group()
        if until not in ("drained", "forever"):
            raise InvalidArgument(f"until must be 'drained' or 'forever', not {until!r}.")
        if on_lease_lost not in ("kill", "finish"):
            raise InvalidArgument(f"on_lease_lost must be 'kill' or 'finish', not {on_lease_lost!r}.")
        for name, value in {
            "prefetch": prefetch, "max_tasks": max_tasks, "max_attempts": max_attempts, "threads": threads,
            "stop_after_failures": stop_after_failures, "exclude_after": exclude_after, "gpus_per_task": gpus_per_task,
            "recycle_after": recycle_after, "recycle_rss_bytes": recycle_rss_bytes,
            "tasks_per_command": tasks_per_command,
        }.items():  # fmt: skip
            if value is not None:
                whole(name, value)
        if processes == "auto":
            processes = _processes(gpus_per_task)
        whole("processes", processes)
        if output not in (None, *OUTPUTS):
            raise InvalidArgument(f"output must be one of {', '.join(OUTPUTS)}, not {output!r}.")
        if tag and output == "ungrouped":
            raise InvalidArgument("Tags stand before whole lines: output must be 'group' or 'line' with them.")
        if threads is not None and (
            command or task_timeout_s is not None or keep_output is not None or output is not None or tag
        ):
            raise InvalidArgument("Threads cannot be ended, nor their output told apart: a command, a timeout, kept, "
                                  "grouped or tagged output need processes.")  # fmt: skip
        if (command or threads is not None) and (recycle_after, recycle_rss_bytes) != (None, None):
            raise InvalidArgument(
                "recycle_after (--recycle-after) and recycle_rss_bytes (--recycle-rss) are for processes that call "
                f"functions. {'Each command has a process of its own' if command else 'Threads share one process'}: "
                "leave them out."
            )
        if tasks_per_command is not None:
            _check_batches(command, tasks_per_command, {"then (--then)": then, "prefetch (--prefetch)": prefetch,
                                                        "stdin (--stdin)": stdin or None,
                                                        "result_dir (--result-dir)": result_dir})  # fmt: skip
        if threads is not None and gpus_per_task is not None:
            raise InvalidArgument("Threads share what their process sees: GPUs for each task need processes.")
        function = None
        if threads is not None:
            function = (
                handler
                if callable(handler)
                else handlers.find({"load": list(load)} if load else handlers.name_of(handler))
            )
            handlers.Way(function)
        self._how = How(
            command=list(command),
            handler={"load": list(load)} if load else {} if command or function else handlers.name_of(handler),
            function=function,
            slots=processes if threads is None else threads,
            of_slots=_of_slots(processes, gpus_per_task),
            sysexits=sysexits,
            keep_output=None if keep_output is None else str(Path(keep_output).absolute()),
            result_dir=None if result_dir is None else str(Path(result_dir).absolute()),
            result_from_stdout=result_from_stdout,
            stdin=stdin,
            then=then,
            moved_exits=frozenset() if moves is None else moves.on_exits,
            output=output or ("group" if command and processes > 1 else "line"),
            has_tags=tag,
            tasks_per_command=tasks_per_command,
            recycle_after=recycle_after,
            recycle_rss_bytes=recycle_rss_bytes,
        )
        leases_s = [settings.lease_s if lease_s is None else lease_s for settings in self._queues.settings()]
        self._limits = Limits(
            lease_s=min(duration_ms(one, "lease_s", 0.001) / 1000 for one in leases_s),
            task_timeout_s=_seconds("task_timeout_s", task_timeout_s),
            grace_s=duration_ms(grace_s, "grace_s") / 1000,
            forever=until == "forever",
            prefetch=prefetch,
            max_tasks=math.inf if max_tasks is None else max_tasks,
            max_runtime_s=_seconds("max_runtime_s", max_runtime_s),
            idle_timeout_s=_seconds("idle_timeout_s", idle_timeout_s),
            failures_max=math.inf if stop_after_failures is None else stop_after_failures,
            failures_first=FAILURES_FIRST if stop_after_failures is exclude_after is None else math.inf,
            exclude_after=exclude_after,
            kills_lost=on_lease_lost == "kill",
            patience_s=duration_ms(patience_s, "patience_s") / 1000,
            max_attempts=math.inf if max_attempts is None else max_attempts,
            moves=moves,
            tasks_per_command=tasks_per_command or 1,
            reports_at_once=report_at_once,
        )
        self._lease_s, self._tell = lease_s, tell
        self._has_run = False
        try:
            self._loop = Loop(self._queues, self._lease_s, self._limits, self._make_executor, tell, pass_on)
        except OSError as error:
            raise shortages.explain(error, "The worker could not be made", "making a worker") from error

    def stop(self) -> None:
        """End the run as SIGTERM does, from any thread; a second call puts back at once what is at work."""
        self._loop.stop(signal.SIGTERM)

    def finish(self) -> None:
        """End the run when the tasks at work have ended, however long they take; begin no more. From any thread."""
        self._loop.finish()

    def run(self) -> WorkerReport:
        """Work until there is nothing left to do, or until stopped. To be called once.

        In the main thread, signals stop it. After the first, tasks that fit into `grace_s` may finish; at the second,
        the tasks at work are put back. Raises the error that keeps it from going on, after the tasks at work have
        ended and are reported: QueueNotFound, StorageError; InvalidArgument for a command or handler that cannot be
        found, and for a command that needs a field which a waiting task lacks.
        """
        if self._has_run:
            raise InvalidArgument("This worker has run already, or is running. Make another one for another run.")
        self._has_run = True
        if handlers.is_loading:
            raise InvalidArgument(
                "A worker was started while a child process imports its script. Put what starts it under "
                "if __name__ == '__main__':"
            )
        given: Iterable[Any] = self._queues if self._queues.remote is None else [self._queues.remote]
        one_each = self._how.command if self._how.tasks_per_command is None else []
        check_fields(one_each, [one for one in given if hasattr(one, "peek")])  # not of a gateway's group
        if self._how.function is not None:
            process = forks.depth
            self._tell(Event("warning", WARNING, {}))
            if process != forks.depth:
                raise ForkedChild("a worker's run")
        try:
            with self._open_files(), _signals(self._loop.stop, self._loop.mailbox):
                return self._loop.run()
        except OSError as error:  # before anything was leased, or at its very end
            raise shortages.explain(error, "The worker could not go on", "running a worker") from error

    @property
    def held(self) -> int:
        """Return how many tasks it holds just now. A hint, for any thread."""
        return self._loop.held_about

    @property
    def next_due_s(self) -> float:
        """Return in how many seconds a delayed task will be available that it has seen. A hint, for any thread.

        Infinite if it knows none.
        """
        return self._loop.next_due_s

    @property
    def completed(self) -> tuple[int, int]:
        """Return how many tasks it has completed so far: for certain, and at most. Hints, for any thread."""
        return self._loop.completed_about

    def _open_files(self) -> AbstractContextManager[object]:
        """Have as many open files as there may be processes. Children say themselves if they are fewer."""
        if self._how.function is not None:
            return nullcontext()
        say = self._tell if self._how.command else lambda event: None
        return shortages.room_for(self._how.slots, lambda text: say(Event("warning", text, {})))

    def _check_then(self, then: str, is_command: bool, is_result: bool) -> None:
        """Refuse a next queue into which nothing could be inserted."""
        names.queue_directory(then)
        if not is_command:
            raise InvalidArgument("then is for commands. A function returns fsqueue.Then instead (docs/pipelines.md).")
        if is_result:
            raise InvalidArgument(
                "What a command prints is either its result or the tasks to insert: give either result_from_stdout "
                "(--result-stdout) or then (--then). With then, write the result to the file FSQUEUE_RESULT."
            )
        self._check_group()

    def _check_group(self) -> None:
        """Refuse queues of no group: their tasks have no other queue to go to."""
        for source in self._queues.given if self._queues.remote is None else [self._queues.remote]:
            if not completion_updates.is_of_group(source):
                path = getattr(source, "path", source)
                raise InvalidArgument(
                    f"{path} is no queue of a group, and only these have a next one. Make a group "
                    "('fsqueue create --group'), and insert into its queues: GROUP/NAME."
                )

    def _make_executor(self, loop: Loop) -> JobExecutor:
        how = self._how
        if how.function is not None:
            return Threads(how.function, how.slots, loop)
        executor: ProcessExecutor
        if how.tasks_per_command is not None:
            executor = Batches(how, loop)
        else:
            executor = Commands(how, loop, self._results()) if how.command else Children(how, loop)
        if not scripts.may_outlive_worker(how.command):
            executor.supervisors.on_death = lambda: reclaiming.command(self._queues.paths(), loop.run_id)
        return executor

    def _results(self) -> ResultFiles:
        """Return where results go: by default into the queue, which all nodes see, if commands may run elsewhere."""
        if self._how.result_dir is None and scripts.may_leave_node(self._how.command):
            if not self._queues:
                raise InvalidArgument(
                    "The command may run on other nodes, and the results of a group's tasks have no place that all "
                    "nodes see. Name a directory on a shared filesystem: result_dir, --result-dir."
                )
            store = self._queues[0].store
            return ResultFiles(store.layout.results, store.fs)
        return ResultFiles(self._how.result_dir)


def _check_batches(command: Sequence[str], tasks: int, others: Mapping[str, object]) -> None:
    """Refuse what makes no sense for a command that gets several tasks. InvalidArgument."""
    name = "tasks_per_command (--tasks-per-command)"
    if not command:
        raise InvalidArgument(f"{name} is for commands. A process calls a function for many tasks anyway.")
    if tasks > TASKS_PER_COMMAND_MAX:
        raise InvalidArgument(f"{name} may be {TASKS_PER_COMMAND_MAX:,} at most, not {tasks:,}.")
    for other, value in others.items():
        if value is not None:
            raise InvalidArgument(f"{other} is for a command that gets one task. With {name}, leave it out.")
    check_no_placeholders(command)


def check_no_placeholders(command: Sequence[str]) -> None:
    """Refuse placeholders in a command that gets several tasks. InvalidArgument."""
    name = "tasks_per_command (--tasks-per-command)"
    if found := [one.text for argument in command for one in placeholders.in_argument(argument)]:
        raise InvalidArgument(
            f"{found[0]} stands for one task, and with {name} a command gets several, on standard input. Leave it out, "
            f"and read a task from each line; for the text {found[0]} write {placeholders.escaped(found[0])}."
        )


def check_fields(command: Sequence[str], queues: Iterable[Any]) -> None:
    """Refuse a command that does not suit a task which waits, before any task is leased. InvalidArgument.

    A queue that cannot be read is passed by: a worker meets it, and waits for a filesystem that fails.
    """
    if not placeholders.asks_for_fields(command):
        return
    for queue in queues:
        try:
            waiting = queue.peek(1)
        except FsqueueError:
            continue
        for task in waiting:
            try:
                placeholders.fill(command, task.payload, task.id)
            except placeholders.Unfilled as error:
                names = f" {error.names}." if error.names else ""
                raise InvalidArgument(
                    f"Task {task.id} cannot be run so: {error}.{names} No task was touched."
                ) from None


def _processes(gpus_per_task: int | None) -> int:
    """Return how many processes "auto" means."""
    processors = slurm.processors()
    if gpus_per_task is None:
        return processors
    return max(1, min(processors, devices.count(os.environ) // gpus_per_task))


def _of_slots(processes: int, gpus_per_task: int | None) -> list[dict[str, str]]:
    """Return what each slot's process finds in its environment. InvalidArgument if there are too few GPUs."""
    numbers = [{devices.SLOT: str(slot)} for slot in range(processes)]
    if gpus_per_task is None:
        return numbers
    shares = devices.shares(os.environ, processes, gpus_per_task)
    return [number | share for number, share in zip(numbers, shares, strict=True)]


def _seconds(name: str, value: float | None) -> float:
    return math.inf if value is None else duration_ms(value, name, 0.001) / 1000


@contextmanager
def _signals(stop: Callable[[int], object], mailbox: Mailbox) -> Iterator[None]:
    """Report signals to `stop`, if this is the main thread. Those that are ignored (nohup) stay ignored."""
    before: dict[int, Any] = {}
    process = os.getpid()

    def on_signal(number: int, frame: object) -> None:
        if os.getpid() == process:
            stop(number)
        else:  # a child that a handler has forked, and whose parent ends it: it is no worker
            signal.signal(number, before[number])
            signal.raise_signal(number)

    waking: AbstractContextManager[object] = nullcontext()
    if threading.current_thread() is threading.main_thread():
        waking = mailbox.woken_by_signals()
        for number in STOPPING:
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, on_signal)
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # inherited; it would hide every exit status
            before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        with waking:
            yield
    finally:
        for changed, handler in before.items():
            signal.signal(changed, handler)
