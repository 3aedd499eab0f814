"""A command for each task: what it is given, how its end is judged, and where it leaves its result.

Results are read in a thread, `ResultKeeper`: their filesystem may not answer, or not soon. The loop asks it and is
answered by a post. Meanwhile the loop renews leases and hears signals. What may lie before the thread is bounded by the
number of paths that the loop has asked for.
"""

from __future__ import annotations

import errno
import math
import os
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import orjson

from fsqueue import errors
from fsqueue.errors import UNKEPT, FsqueueError, InvalidArgument, InvalidTask
from fsqueue.filesystem import program_fault
from fsqueue.filesystem.result_paths import NO_RESULT_FILES, ResultFile, ResultFiles
from fsqueue.format.results import RESULT_BYTES_MAX, decode_result, is_kept_exactly
from fsqueue.leased_task import LeasedTask
from fsqueue.worker import inserts, output, placeholders, shortages
from fsqueue.worker.background import BackgroundThread, Died
from fsqueue.worker.causes import UNKNOWN, Cause
from fsqueue.worker.command_processes import (
    EX_DATAERR,
    EX_TEMPFAIL,
    NO_COMMAND,
    CommandAtWork,
    CommandExecutor,
    path_for_commands,
)
from fsqueue.worker.events import Mailbox
from fsqueue.worker.jobs import How, Job, not_kept
from fsqueue.worker.loop import Loop
from fsqueue.worker.supervision import NoForkServer

T = TypeVar("T")


ENVIRONMENT_BYTES_MAX = 100_000
"""A larger payload stays out of the environment: Linux takes 128 KiB a variable."""
FRESH_S = 1.0
"""A path that has lain ready for longer goes through the thread again: a cleaner may have removed its directory."""
UNREAD_S = 0.5
"""When the grace is over: how long the results of commands that have ended are still waited for."""


class _Running(CommandAtWork):
    """A command at work on one task."""

    def __init__(self, commands: Commands, job: Job, result: ResultFile) -> None:
        self.job, self.result = job, result
        self.seconds = 0.0
        """How long it took. Set when it has exited."""
        self.printed = b""
        """The beginning of what it has printed, as far as that is data. Set when it has exited."""
        argv, environment, stdin = commands.invocation(job.task)
        environment[b"FSQUEUE_RESULT"] = os.fsencode(result.path)
        super().__init__(commands, argv, environment, stdin, job.task, lambda: commands.ended(self))


class Commands(CommandExecutor):
    """Runs a command once for each task, as many at a time as there are slots.

    A thread makes the paths of results, and reads results (`ResultKeeper`). There is one path for each slot at most:
    that bounds how much may lie before the thread.
    """

    def __init__(self, how: How, loop: Loop, results: ResultFiles) -> None:
        super().__init__(how, loop)
        self._results = results
        self._has_stdin = how.stdin or not placeholders.hand_over(how.command)
        self._has_told_bytes = False
        self._environment = {key: value for key, value in os.environb.items() if key != b"FSQUEUE_PAYLOAD"}
        self._running: dict[Job, _Running] = {}
        self._awaited: dict[Job, _Running] = {}
        """The commands that have succeeded, and whose results the thread has not read."""
        self._keeper = ResultKeeper(results, self.mailbox, loop.thread_died)
        self._is_open = self._is_hurried = False
        self._paths: deque[tuple[ResultFile, float]] = deque()
        """The paths that are ready, and when they came: no command has been told of any of them."""
        self._path_count = 0
        """Number of paths that are there, or were asked for."""
        self._give_up_at = math.inf
        """When results are waited for no longer."""

    def start(self) -> None:
        """Do what any executor of commands does.

        A thread makes the directory of results; the loop is told if it cannot. Until it is there no task is leased.
        """
        super().start()
        self._keeper.start()
        self._keeper.open(self._opened)

    def _opened(self, error: OSError | None) -> None:
        if error is None:
            self._is_open = True
            self._ask_for_paths(1)
        elif shortages.is_short(error):
            self.fall_short(error)
        else:
            self.loop.refused(no_results(self._results, error))

    @property
    def slots(self) -> int:
        """Return how many commands can be at work: as long as the system refuses another one, those that are."""
        return len(self._running) if self.shortage.is_on else self.most

    def is_ready(self) -> bool:
        return self._is_open and not self.shortage.is_on

    def room(self, each: int) -> int:
        while self._paths and self._paths[0][1] < self.now() - FRESH_S:
            self._exchange(self._paths.popleft()[0], 0, self._has_let_go)
        return min(self.slots - len(self._running), len(self._paths))

    def give(self, job: Job) -> bool:
        result, came_at = self._paths.popleft()
        job.began = self.now()
        try:
            running = self.having_descriptors(lambda: _Running(self, job, result))
        except NoForkServer as error:
            self._paths.appendleft((result, came_at))
            self._cannot(job, error)
            return True
        except (OSError, ValueError) as error:
            self._paths.appendleft((result, came_at))  # no command was told of it
            if isinstance(error, OSError) and shortages.is_short(error):
                job.began = math.inf
                self.fall_short(error)
                return False
            self._refuse(job, error)
            return True
        self.shortage.over()
        self._running[job] = running
        self.free.remove(running.slot)  # others may have become free meanwhile
        out = running.streams[0]
        if self.how.then is not None:
            out.head_bytes_max, out.is_shown = inserts.INSERTS_BYTES_MAX + 1, False
        elif self.how.result_from_stdout:
            out.head_bytes_max = RESULT_BYTES_MAX + 1
        return True

    def prepare(self, waiting: int) -> None:
        if not self.shortage.is_on:
            self._ask_for_paths(min(waiting, self.most) - len(self._paths))

    def _ask_for_paths(self, count: int) -> None:
        for _ in range(min(count, self.most - self._path_count)):
            self._path_count += 1
            self._keeper.new(self._has_path)

    def _has_path(self, result: ResultFile | OSError) -> None:
        if not isinstance(result, OSError):
            self._paths.append((result, self.now()))
            return
        self._path_count -= 1
        if result.errno in errors.NO_DESCRIPTORS and self._left.give_up():
            self._ask_for_paths(1)
        elif shortages.is_short(result):
            self.fall_short(result)
        else:
            self.loop.refused(no_results(self._results, result))

    @property
    def due_at(self) -> float:
        return min(super().due_at, self._give_up_at)

    def keep_time(self, now: float) -> None:
        self.supervisors.keep_time(now)
        if self.shortage.pass_by(now) and not self._is_open:
            self._keeper.open(self._opened)
        if now < self._give_up_at:
            return
        self._give_up_at = math.inf
        if not self._awaited:
            return
        where = self._results.parent or TEMPORARY
        self.output_writer.say(
            f"Results in {where} could not be read: it does not answer. The tasks of {len(self._awaited)} commands "
            "that have ended are put back without blame, and will be executed again."
        )
        for job, running in list(self._awaited.items()):
            del self._awaited[job]
            self.loop.done(job, "release", 0, running.seconds)

    def hurry(self) -> None:
        self._is_hurried = True
        self._give_up_at = self.now() + UNREAD_S

    def at_work(self) -> list[Job]:
        return list(self._running)

    def held(self) -> list[Job]:
        return [*self._running, *self._awaited]

    def end(self, job: Job, number: int) -> None:
        """Ask a command to end. If it has ended already, nothing happens: its own exit status counts."""
        running = self._running.get(job)
        if running is not None:
            running.process.kill(number)

    def close(self) -> None:
        self.end_all(list(self._running.values()))
        self._running.clear()
        # A thread that has not answered for a while does not at the end, either.
        self._keeper.close(CLOSE_S if self._give_up_at == math.inf and not self._awaited else UNREAD_S)
        super().close()

    def ended(self, running: _Running) -> None:
        """Judge a command that has exited. If its result counts, that follows when the thread has read it."""
        job = running.job
        seconds = running.seconds = self.now() - job.began
        if not running.process.was_told and running.process.status is not None:
            job.doomed = job.why = ""  # it has ended by itself
        running.process.reap()
        job.killed, job.used = (running.process.status or 0) < 0, running.process.used
        for stream in running.streams:
            stream.drain()
        running.printed = running.streams[0].take_head()
        status = running.process.status
        if status == 0 and not job.doomed and not self.how.result_from_stdout:
            self._finish(running)
            self._awaited[job] = running
            if self._is_hurried and self._give_up_at == math.inf:
                self._give_up_at = self.now() + UNREAD_S
            self._take(running)
            return
        verb, value, cause = self._judge(running)
        self._finish(running)
        self._exchange(running.result, 0, self._has_let_go)
        self.loop.done(job, verb, value, seconds, cause)

    def _take(self, running: _Running) -> None:
        """Have the thread read the result of a command that has succeeded."""
        self._exchange(running.result, RESULT_BYTES_MAX + 1, lambda written: self._read(running, written))

    def _exchange(self, result: ResultFile, bytes_max: int, answer: Callable[[bytes | OSError], object]) -> None:
        """Have the thread read a result, and make a path in place of this one's."""
        self._keeper.exchange(result, bytes_max, answer, self._has_path_in_exchange)

    def _has_path_in_exchange(self, result: ResultFile | OSError) -> None:
        self._path_count += 1
        self._has_path(result)

    def _read(self, running: _Running, written: bytes | OSError) -> None:
        """Judge a command by its result."""
        if (
            isinstance(written, OSError)
            and written.errno in errors.NO_DESCRIPTORS
            and running.job in self._awaited
            and self._left.give_up()
        ):
            self._take(running)
            return
        self._has_let_go(written)
        if self._awaited.pop(running.job, None) is not None:
            verb, value = self._result_of(running, written)
            if verb == "complete" and self.how.then is not None:
                verb, value = self._then(running, self.how.then, value)
            self.loop.done(running.job, verb, value, running.seconds)

    def _has_let_go(self, written: bytes | OSError) -> None:
        """Note that a path has ended. Another one comes in its place."""
        self._path_count -= 1

    def _finish(self, running: _Running) -> None:
        del self._running[running.job]
        self.let_go(running)

    def _judge(self, running: _Running) -> tuple[str, Any, Cause]:
        """Judge a command whose result file does not count."""
        (out, err), status = running.streams, running.process.status
        if status == 0 and not running.job.doomed:
            return *self._result_of(running, b""), UNKNOWN
        has_own_meaning = self.how.sysexits and status not in self.how.moved_exits
        if has_own_meaning and status == EX_TEMPFAIL and not running.job.doomed:
            return "release", None, UNKNOWN
        verb = "bury" if has_own_meaning and status == EX_DATAERR else "fail"
        why, cause = running.job.why, UNKNOWN
        if not why:
            why, memory = self.how_it_ended(running.process, err.tail, out.tail)
            cause = Cause(memory, status)
        return verb, output.reason(why, err.tail, out.tail), cause

    def _result_of(self, running: _Running, written: bytes | OSError) -> tuple[str, Any]:
        if self.how.result_from_stdout:
            data, where = running.printed, "standard output"
        elif isinstance(written, OSError) and written.errno not in NO_RESULT_FILES:
            return self._unread(running.job, written)
        elif isinstance(written, OSError):
            return "bury", f"{UNKEPT} (FSQUEUE_RESULT): it cannot be read as a file, {written.strerror}"
        else:
            data, where = written, "FSQUEUE_RESULT"
        if len(data) > RESULT_BYTES_MAX:
            return (
                "bury",
                f"{UNKEPT} ({where}): it takes more than {RESULT_BYTES_MAX:,} bytes. Store it and give its path.",
            )
        if not data.strip():
            return "complete", None
        try:
            value = decode_result(data)
        except InvalidTask as error:
            return "bury", f"{UNKEPT} ({where}): {error}"
        if not self._has_told_bytes and not is_kept_exactly(data):
            self._has_told_bytes = True
            self.output_writer.say(
                f"The result ({where}) of task {running.job.task.id} is not UTF-8. It is kept as text, with U+FFFD in "
                "place of what is not: results are JSON, which has no other bytes. Write them to a file, and give its "
                "path as the result. Further results of this kind are not told."
            )
        return "complete", value

    def _then(self, running: _Running, queue: str, result: Any) -> tuple[str, Any]:
        """Judge a command that has succeeded by what it has printed, which is inserted with its completion."""
        try:
            following = inserts.of_output(running.printed, queue)
        except inserts.NotInserted as unfit:
            return unfit.verb, output.reason(str(unfit), running.streams[1].tail)
        return ("then", (result, following)) if following.each else ("complete", result)

    def _unread(self, job: Job, error: OSError) -> tuple[str, Any]:
        """Put back a task whose command succeeded, and whose result this worker could not read: it is not to blame."""
        what = f"The result (FSQUEUE_RESULT) of task {job.task.id} could not be read by this worker: {error.strerror}."
        then = "The task is put back without blame, and will be executed again."
        if shortages.is_short(error):
            self.output_writer.say(shortages.words(error, what.rstrip("."), then))
            return "release", None
        self.loop.refused(errors.StorageError(f"{what} {then} Give another directory for results (--result-dir)."))
        return "release", 0

    def _refuse(self, job: Job, error: OSError | ValueError) -> None:
        """Refuse a command that could not be started, for this payload or for all."""
        if isinstance(error, placeholders.Unfilled):
            why = str(error)
        elif isinstance(error, ValueError):
            why = placeholders.no_argument(str(error))
        elif error.errno == errno.E2BIG:
            why = placeholders.TOO_LARGE
        elif not self._is_fixed and error.errno in NO_COMMAND:
            # Named as the user typed it: the program's own name is of the payload, which may not be kept.
            name, typed = os.fsdecode(error.filename or b""), self._argv[0]
            fault = program_fault(name).replace(name or typed, typed)
            why = f"the command cannot be executed: {error.strerror}: {typed}{fault and f' ({fault})'}"
        else:
            fault = program_fault(self._argv[0]) if error.errno in NO_COMMAND else ""
            what = f"The command {self._argv[0]!r} could not be executed: {fault or error.strerror or error}."
            self._cannot(job, InvalidArgument(f"{what} Its task was put back."))
            return
        self.loop.done(job, "fail", why, 0.0)

    def _cannot(self, job: Job, error: FsqueueError) -> None:
        """Put the task back, and say why no task can be done here."""
        self.loop.refused(error)
        self.loop.done(job, "release", 0, 0.0)

    def invocation(self, task: LeasedTask) -> tuple[list[bytes], dict[bytes, bytes], bytes | None]:
        """Return the command line, the environment and the standard input for `task`: None for an empty one. Unfilled.

        A payload that stands in the arguments stays off standard input: ffmpeg, ssh and others would read it as what a
        user types, or as data.
        """
        payload = task.payload
        data = placeholders.bytes_of(payload)
        environment = self._environment | {
            b"FSQUEUE_TASK_ID": task.id.encode(),
            b"FSQUEUE_ATTEMPT": b"%d" % task.attempt,
            b"FSQUEUE_QUEUE": os.fsencode(path_for_commands(task.queue)),
            b"FSQUEUE_TOKEN": placeholders.system_bytes(task.token),
        }
        if len(data) <= ENVIRONMENT_BYTES_MAX and b"\0" not in data:
            environment[b"FSQUEUE_PAYLOAD"] = data
        stdin = None
        if self._has_stdin:
            stdin = payload if isinstance(payload, bytes) else orjson.dumps(payload, option=orjson.OPT_APPEND_NEWLINE)
        return placeholders.fill(self._argv, payload, task.id), environment, stdin


SWEEP_NAMES = 1_000
"""Number of names of a tree to remove before the thread looks whether a result waits to be read."""
CLOSE_S = 2.0
"""Maximum wait at the end for the removal of everything. The next worker on this host removes what is left."""
TEMPORARY = "the directory for temporary files"
"""What results are in if their directory has no name."""


class ResultKeeper(BackgroundThread):
    """Do what concerns the files of results, in order; trees are removed when nothing else is to be done.

    Each answer is called in the loop: with what was asked for, or with the OSError that kept it from being had.
    """

    def __init__(self, results: ResultFiles, mailbox: Mailbox, died: Died) -> None:
        super().__init__("results", died)
        self._results, self._mailbox = results, mailbox
        self._requests: SimpleQueue[tuple[Callable[[], Any], Callable[[Any], object]] | None] = SimpleQueue()

    def open(self, answer: Callable[[OSError | None], object]) -> None:
        """Make the private directory."""
        self._ask(self._results.open, answer)

    def new(self, answer: Callable[[ResultFile | OSError], object]) -> None:
        """Make a path for an attempt."""
        self._ask(self._results.new, answer)

    def take(self, result: ResultFile, bytes_max: int, answer: Callable[[bytes | OSError], object]) -> None:
        """Read up to `bytes_max` bytes of what an attempt has left, and end the life of its path."""
        self._ask(lambda: self._results.take(result, bytes_max), answer)

    def exchange(
        self,
        result: ResultFile,
        bytes_max: int,
        answer: Callable[[bytes | OSError], object],
        has_path: Callable[[ResultFile | OSError], object],
    ) -> None:
        """Do as `take`, and then as `new`, unless the files cannot be asked. Both are answered at once, in this order.

        To be asked twice would cost the loop another wait for this thread, after each command.
        """

        def both() -> tuple[bytes | OSError, ResultFile | OSError | None]:
            written = _tried(lambda: self._results.take(result, bytes_max))
            is_there = not isinstance(written, OSError) or written.errno in NO_RESULT_FILES
            return written, _tried(self._results.new) if is_there else None

        def answer_both(got: tuple[bytes | OSError, ResultFile | OSError | None] | OSError) -> None:
            assert isinstance(got, tuple)
            answer(got[0])
            if got[1] is not None:
                has_path(got[1])

        self._ask(both, answer_both)

    def _ask(self, action: Callable[[], T], answer: Callable[[T | OSError], object]) -> None:
        self._requests.put((action, answer))

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Do what was asked for so far, then remove all files of results. Wait up to `wait_s` seconds for both."""
        self._requests.put(None)
        if self.ident is not None:
            self.join(wait_s)

    def work(self) -> None:
        try:
            while (request := self._next()) is not None:
                self._do(*request)
        finally:
            self._results.close()

    def _do(self, action: Callable[[], Any], answer: Callable[[Any], object]) -> None:
        got = _tried(action)
        self._mailbox.post(lambda: answer(got))

    def _next(self) -> tuple[Callable[[], Any], Callable[[Any], object]] | None:
        """Return the next request. As long as there is none, remove trees."""
        while True:
            try:
                return self._requests.get(block=not self._results.has_trees)
            except Empty:
                self._results.sweep(SWEEP_NAMES)


def _tried(action: Callable[[], T]) -> T | OSError:
    try:
        return action()
    except OSError as error:
        return error


def no_results(results: ResultFiles, error: OSError) -> FsqueueError:
    """Return what it means that no directory for results can be made."""
    what = f"Results cannot be kept in {results.parent or TEMPORARY}"
    return not_kept(error, what, "Name another directory with --result-dir, or TMPDIR.")
