"""A command for each task: what it is given, how its end is judged, and where it leaves its result.

Results are read in a thread, `ResultKeeper`: their filesystem may not answer, or not soon. The loop asks it and is
answered by a post. Meanwhile the loop renews leases and hears signals. What may lie before the thread is bounded by the
number of paths that the loop has asked for.
"""

from __future__ import annotations

import errno
import math
import os
import signal
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import orjson

from fsqueue import errors
from fsqueue.errors import UNKEPT, FsqueueError, InvalidArgument, InvalidTask
from fsqueue.filesystem import idle_files, program_fault
from fsqueue.filesystem.outputs import open_nothing, write_all
from fsqueue.filesystem.result_paths import NO_RESULT_FILES, ResultFile, ResultFiles
from fsqueue.format.results import RESULT_BYTES_MAX, decode_result, is_kept_exactly
from fsqueue.groups.queue import GroupQueue
from fsqueue.leased_task import LeasedTask, Verbs
from fsqueue.worker import inserts, output, placeholders, scripts, shortages
from fsqueue.worker.background import BackgroundThread, Died
from fsqueue.worker.causes import UNKNOWN, Cause, Memory
from fsqueue.worker.events import Mailbox
from fsqueue.worker.jobs import How, Job, not_kept
from fsqueue.worker.limits import KILLED_S
from fsqueue.worker.loop import Loop
from fsqueue.worker.output import Leftovers, Stream
from fsqueue.worker.sources import is_remote
from fsqueue.worker.spawning import NOT_EXECUTABLE, NOT_FOUND, Process, ProcessExecutor, describe, not_executed
from fsqueue.worker.supervision import NoForkServer

T = TypeVar("T")


ENVIRONMENT_BYTES_MAX = 100_000
"""A larger payload stays out of the environment: Linux takes 128 KiB a variable."""
EX_DATAERR, EX_TEMPFAIL = 65, 75
"""The exit codes of sysexits.h that mean something on request."""

FRESH_S = 1.0
"""A path that has lain ready for longer goes through the thread again: a cleaner may have removed its directory."""
FAULTS_MAX = 100
"""Maximum number of diagnoses of commands that did not find a program: each reads files in the loop."""
UNREAD_S = 0.5
"""When the grace is over: how long the results of commands that have ended are still waited for."""
_NO_COMMAND = (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC, errno.ENAMETOOLONG)


class _Running:
    """A command at work."""

    def __init__(self, commands: Commands, job: Job, result: ResultFile) -> None:
        self.job, self.result = job, result
        self.seconds = 0.0
        """How long it took. Set when it has exited."""
        self.printed = b""
        """The beginning of what it has printed, as far as that is data. Set when it has exited."""
        argv, environment, stdin = commands.invocation(job.task)
        environment[b"FSQUEUE_RESULT"] = os.fsencode(result.path)
        self.slot, how = commands.free[-1], commands.how
        environment.update((key.encode(), value.encode()) for key, value in how.of_slots[self.slot].items())
        self.streams: list[Stream] = []
        source = commands.nothing() if stdin is None else _file_of(stdin)
        try:
            for ours in (1, 2):
                self.streams.append(Stream(commands.mailbox, commands.output_writer, ours, how.output, how.has_tags))
            ends = [stream.write_end for stream in self.streams]
            self.process = Process(
                commands.supervisors, argv, environment, [source, *ends], lambda: commands.ended(self)
            )
        except BaseException:
            for stream in self.streams:
                stream.close()
            raise
        finally:
            if stdin is not None:
                os.close(source)
        for stream in self.streams:
            stream.started()
        commands.begin_attempt(self.streams, job.task)


class Commands(ProcessExecutor):
    """Runs a command once for each task, as many at a time as there are slots.

    A slot is free again when its command has exited. A thread makes the paths of results, and reads results
    (`ResultKeeper`). There is one path for each slot at most: that bounds how much may lie before the thread.
    """

    def __init__(self, how: How, loop: Loop, results: ResultFiles) -> None:
        super().__init__(how, loop)
        self.free = list(reversed(range(how.slots)))
        """The slots in which no command is at work; the last is taken next."""
        self._argv, self._results = how.command, results
        self._is_fixed = not any(placeholders.in_argument(how.command[0]))  # else each payload names its own program
        self._has_stdin = how.stdin or not placeholders.hand_over(how.command)
        self._faults_told = 0
        self._has_told_bytes = False
        self._environment = {key: value for key, value in os.environb.items() if key != b"FSQUEUE_PAYLOAD"}
        self._running: dict[Job, _Running] = {}
        self._awaited: dict[Job, _Running] = {}
        """The commands that have succeeded, and whose results the thread has not read."""
        self._keeper = ResultKeeper(results, self.mailbox, loop.thread_died)
        self._nothing = -1
        self._is_open = self._is_hurried = False
        self._paths: deque[tuple[ResultFile, float]] = deque()
        """The paths that are ready, and when they came: no command has been told of any of them."""
        self._path_count = 0
        """Number of paths that are there, or were asked for."""
        self._give_up_at = math.inf
        """When results are waited for no longer."""
        self._left = Leftovers(self.output_writer)

    def start(self) -> None:
        """Do what any executor by processes does. InvalidArgument if the command line was quoted as a whole.

        A thread makes the directory of results; the loop is told if it cannot. Until it is there no task is leased.
        """
        scripts.check_program(self._argv)
        super().start()
        self._keeper.start()
        self._keeper.open(self._opened)

    def nothing(self) -> int:
        """Return a descriptor of `/dev/null`, the standard input of commands. OSError."""
        if self._nothing < 0:
            self._nothing = open_nothing()
        return self._nothing

    def _opened(self, error: OSError | None) -> None:
        if error is None:
            self._is_open = True
            self._ask_for_paths(1)
        elif shortages.is_short(error):
            self._fall_short(error)
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
            running = self._having_descriptors(lambda: _Running(self, job, result))
        except NoForkServer as error:
            self._paths.appendleft((result, came_at))
            self._cannot(job, error)
            return True
        except (OSError, ValueError) as error:
            self._paths.appendleft((result, came_at))  # no command was told of it
            if isinstance(error, OSError) and shortages.is_short(error):
                job.began = math.inf
                self._fall_short(error)
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

    def _having_descriptors(self, action: Callable[[], T]) -> T:
        """Call `action`. As long as it fails for want of descriptors, close what ended commands have left open."""
        while True:
            try:
                return action()
            except OSError as error:
                if error.errno not in errors.NO_DESCRIPTORS or not self._left.give_up():
                    raise

    def _fall_short(self, error: OSError) -> None:
        """Wait after a call that the system has refused for want of something; end if nothing will give it back."""
        what = f"The command {self._argv[0]!r} could not be begun"
        idle_files.make_room(error)  # for the next try
        if self.shortage.met():
            self.output_writer.say(shortages.words(error, what, "Its task waits, or is put back. Trying again."))
        elif not self._running and self.shortage.is_hopeless(error):
            self.loop.refused(shortages.explain(error, what, "beginning a command"))

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
            self._fall_short(result)
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
        for running in self._running.values():
            running.process.kill(signal.SIGKILL)
        deadline = self.now() + KILLED_S
        for running in list(self._running.values()):
            running.process.reap(deadline)
            self._finish(running)
        self.supervisors.close()
        self._left.close()
        # A thread that has not answered for a while does not at the end, either.
        if self._nothing >= 0:
            os.close(self._nothing)
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
        self.free.append(running.slot)
        for stream in running.streams:
            stream.ended()
        self._left.add(running.streams)

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
            why, memory = self._described(running.process, err.tail, out.tail)
            cause = Cause(memory, status)
        return verb, output.reason(why, err.tail, out.tail), cause

    def _described(self, process: Process, *tails: bytes) -> tuple[str, Memory]:
        """Return how a command has ended, with what else is to blame, and whether for want of memory."""
        status = process.status
        said = b"\n".join(tails).decode(errors="replace")
        fault = ""
        if self._is_fixed and self._faults_told < FAULTS_MAX and status in (NOT_FOUND, NOT_EXECUTABLE):
            self._faults_told += 1
            fault = not_executed(self._argv[0], said)
        return (f"{describe(process)}{fault}", Memory.ENOUGH) if fault else self.described(process, said)

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
        elif not self._is_fixed and error.errno in _NO_COMMAND:
            # Named as the user typed it: the program's own name is of the payload, which may not be kept.
            name, typed = os.fsdecode(error.filename or b""), self._argv[0]
            fault = program_fault(name).replace(name or typed, typed)
            why = f"the command cannot be executed: {error.strerror}: {typed}{fault and f' ({fault})'}"
        else:
            fault = program_fault(self._argv[0]) if error.errno in _NO_COMMAND else ""
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
            b"FSQUEUE_QUEUE": os.fsencode(_path_for_commands(task.queue)),
            b"FSQUEUE_TOKEN": placeholders.system_bytes(task.token),
        }
        if len(data) <= ENVIRONMENT_BYTES_MAX and b"\0" not in data:
            environment[b"FSQUEUE_PAYLOAD"] = data
        stdin = None
        if self._has_stdin:
            stdin = payload if isinstance(payload, bytes) else orjson.dumps(payload, option=orjson.OPT_APPEND_NEWLINE)
        return placeholders.fill(self._argv, payload, task.id), environment, stdin


def _file_of(data: bytes) -> int:
    """Return a descriptor of a file in memory, at its beginning: unlike a pipe it is never full and never breaks."""
    fd = os.memfd_create("payload")
    try:
        write_all(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _path_for_commands(queue: Verbs) -> str:
    """Return a queue's path as commands of fsqueue take it: of a queue of a group, with the name as it is."""
    if isinstance(queue, GroupQueue):
        return queue.typed_path
    return queue.url if is_remote(queue) else os.path.abspath(queue.path)


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
