"""A command for each task: what it is given, how its end is judged."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import orjson

from fsqueue import errors
from fsqueue.clock import Clock
from fsqueue.errors import FsqueueError, InvalidArgument, InvalidTask
from fsqueue.filesystem import (
    NO_RESULT_FILES,
    KeptOutput,
    ResultFile,
    ResultFiles,
    inheritable_descriptors,
    write_all,
)
from fsqueue.format import task_file
from fsqueue.format.task_file import RESULT_BYTES_MAX
from fsqueue.leased_task import LeasedTask
from fsqueue.worker import output, placeholders
from fsqueue.worker.directories import no_results, open_directories
from fsqueue.worker.events import Mailbox
from fsqueue.worker.jobs import Done, Job, kept_name
from fsqueue.worker.leftovers import Leftovers
from fsqueue.worker.limits import KILLED_S
from fsqueue.worker.output import OutputWriter, Stream
from fsqueue.worker.passing import Output
from fsqueue.worker.spawning import Process, describe

T = TypeVar("T")

ENVIRONMENT_BYTES_MAX = 100_000
"""A larger payload stays out of the environment: Linux takes 128 KiB a variable."""
EX_DATAERR, EX_TEMPFAIL = 65, 75
"""The exit codes of sysexits.h that mean something on request."""

_SHORTAGES = (*errors.NO_DESCRIPTORS, errno.ENOMEM, errno.ENOBUFS)
"""What passes, most likely, as other tasks end."""
_NO_COMMAND = (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC, errno.ENAMETOOLONG)


class _Running:
    """A command at work."""

    def __init__(self, commands: Commands, job: Job, result: ResultFile) -> None:
        self.job, self.result = job, result
        mailbox, output_writer = commands.mailbox, commands.output_writer
        argv, environment, stdin = commands.invocation(job.task)
        environment["FSQUEUE_RESULT"] = result.path
        self.slot = commands.free[-1]
        environment.update(commands.of_slots[self.slot])
        self.streams: list[Stream] = []
        source = os.memfd_create("payload")  # unlike a pipe it is never full and never breaks
        try:
            write_all(source, stdin)
            os.lseek(source, 0, os.SEEK_SET)
            for ours in (1, 2):
                self.streams.append(Stream(mailbox, output_writer, ours, commands.output, commands.has_tags))
            # A session of its own: Ctrl-C at the terminal reaches the worker only, and a kill all of the command.
            ends = [stream.write_end for stream in self.streams]
            self.process = Process(
                mailbox, argv, environment, [source, *ends], lambda: commands.ended(self), closed=commands.foreign
            )
        except BaseException:
            for stream in self.streams:
                stream.close()
            raise
        finally:
            os.close(source)
        kept = None if commands.keep_output is None else commands.keep_output.file(kept_name(job.task))
        for stream in self.streams:
            stream.started()
            stream.keep_in(kept)
            stream.fresh(job.task)


class Commands:
    """Runs `argv` once for each task, as many at a time as there are slots.

    `of_slots` is what the environment of a slot's command has more. A slot is free again when its command has exited.

    `refused` is called with an error if the command cannot be executed whatever the payload; its task is put back.
    """

    def __init__(
        self,
        argv: Sequence[str],
        of_slots: Sequence[dict[str, str]],
        mailbox: Mailbox,
        output_writer: OutputWriter,
        done: Done,
        refused: Callable[[FsqueueError], object],
        results: ResultFiles,
        *,
        sysexits: bool = False,
        keep_output: KeptOutput | None = None,
        result_from_stdout: bool = False,
        output: Output = "group",
        has_tags: bool = False,
    ) -> None:
        self.slots, self.of_slots = len(of_slots), of_slots
        self.free = list(reversed(range(self.slots)))
        """The slots in which no command is at work; the last is taken next."""
        self.output, self.has_tags = output, has_tags
        self.mailbox, self.output_writer, self.keep_output = mailbox, output_writer, keep_output
        self._argv, self._done, self._refused, self._results = list(argv), done, refused, results
        self.foreign: list[int] = []
        """Descriptors that commands would inherit from what started this process."""
        self._sysexits, self._result_from_stdout = sysexits, result_from_stdout
        self._is_fixed = placeholders.is_fixed(argv[0])  # else each payload names its own program
        self._environment = {key: value for key, value in os.environ.items() if key != "FSQUEUE_PAYLOAD"}
        self._running: dict[Job, _Running] = {}
        self._left = Leftovers(output_writer)
        self._now = Clock().monotonic

    def start(self) -> None:
        """Make the directories that are needed, or try whether they can be used. InvalidArgument if not.

        The same if the command line was quoted as a whole.
        """
        placeholders.check_program(self._argv)
        self.foreign = inheritable_descriptors()
        open_directories(self.keep_output, self._results)

    def is_ready(self) -> bool:
        return True

    def room(self, each: int) -> int:
        return self.slots - len(self._running)

    def give(self, job: Job) -> bool:
        job.began = self._now()
        try:
            result = self._having_descriptors(self._results.new)
        except OSError as error:
            self._cannot(job, no_results(self._results, error))
            return True
        try:
            running = self._having_descriptors(lambda: _Running(self, job, result))
        except (OSError, ValueError) as error:
            self._taken(result)
            self._refuse(job, error)
            return True
        self._running[job] = running
        self.free.pop()
        for stream in running.streams:
            stream.head_bytes_max = RESULT_BYTES_MAX + 1 if self._result_from_stdout else 0
        return True

    def _having_descriptors(self, action: Callable[[], T]) -> T:
        """Call `action`. As long as it fails for want of descriptors, close what ended commands have left open."""
        while True:
            try:
                return action()
            except OSError as error:
                if error.errno not in errors.NO_DESCRIPTORS or not self._left.give_up():
                    raise

    def prepare(self, waiting: int) -> None:
        """Do nothing: all that is needed is there."""

    def at_work(self) -> list[Job]:
        return list(self._running)

    held = at_work

    def take_back(self, slower_than_s: float = -1.0) -> list[Job]:
        return []

    def end(self, job: Job, number: int) -> None:
        """Ask a command to end. If it has ended already, nothing happens: its own exit status counts."""
        running = self._running.get(job)
        if running is not None and not running.process.has_exited():
            running.process.kill(number)
        elif running is not None:
            job.doomed = ""

    def stopping(self) -> None:
        """Do nothing: commands get SIGTERM when their time is over."""

    def close(self) -> None:
        for running in self._running.values():
            running.process.kill(signal.SIGKILL)
        deadline = self._now() + KILLED_S
        for running in list(self._running.values()):
            running.process.reap(deadline)
            self._finish(running)
        self._left.close()
        self._results.close()
        if self.keep_output is not None:
            self.output_writer.do(self.keep_output.close)

    def ended(self, running: _Running) -> None:
        """Judge a command that has exited."""
        job = running.job
        seconds = self._now() - job.began
        if job.doomed:
            running.process.kill(signal.SIGKILL)  # what is left of its process group
        running.process.reap()
        job.killed = (running.process.status or 0) < 0
        for stream in running.streams:
            stream.drain()
        verb, value = self._judge(running, running.process.status, self._taken(running.result))
        self._finish(running)
        self._done(job, verb, value, seconds)

    def _finish(self, running: _Running) -> None:
        del self._running[running.job]
        self.free.append(running.slot)
        for stream in running.streams:
            stream.ended()
        self._left.add(running.streams)

    def _taken(self, result: ResultFile) -> bytes | OSError:
        """Return what an attempt has left in its result file, or why that cannot be read, and give the file up."""
        try:
            return self._having_descriptors(lambda: self._results.take(result, RESULT_BYTES_MAX + 1))
        except OSError as error:
            return error

    def _judge(self, running: _Running, status: int | None, written: bytes | OSError) -> tuple[str, Any]:
        out, err = running.streams
        if status == 0 and not running.job.doomed:
            return self._result_of(running, written)
        if self._sysexits and status == EX_TEMPFAIL and not running.job.doomed:
            return "release", None
        verb = "bury" if self._sysexits and status == EX_DATAERR else "fail"
        return verb, output.reason(running.job.why or describe(status), err.tail, out.tail)

    def _result_of(self, running: _Running, written: bytes | OSError) -> tuple[str, Any]:
        if self._result_from_stdout:
            data, where = running.streams[0].head, "standard output"
        elif isinstance(written, OSError) and written.errno not in NO_RESULT_FILES:
            return self._unread(running.job, written)
        elif isinstance(written, OSError):
            return "fail", f"its result (FSQUEUE_RESULT) cannot be read as a file: {written.strerror}"
        else:
            data, where = written, "FSQUEUE_RESULT"
        if len(data) > RESULT_BYTES_MAX:
            return (
                "fail",
                f"its result ({where}) takes more than {RESULT_BYTES_MAX:,} bytes: store it and give its path",
            )
        if not data.strip():
            return "complete", None
        try:
            return "complete", task_file.decode_result(data)
        except InvalidTask as error:
            return "fail", f"its result ({where}) cannot be kept: {error}"

    def _unread(self, job: Job, error: OSError) -> tuple[str, Any]:
        """Put back a task whose command succeeded, and whose result this worker could not read: it is not to blame."""
        what = f"The result (FSQUEUE_RESULT) of task {job.task.id} could not be read by this worker: {error.strerror}."
        then = "The task is put back without blame, and will be executed again."
        if error.errno in _SHORTAGES:
            self.output_writer.say(f"{what} {then}")
            return "release", None
        self._refused(errors.StorageError(f"{what} {then} Give another directory for results (--result-dir)."))
        return "release", 0

    def _refuse(self, job: Job, error: OSError | ValueError) -> None:
        """Refuse a command that could not be started, for this payload or for all."""
        if isinstance(error, placeholders.MissingField):
            why = str(error)
        elif isinstance(error, ValueError):
            why = f"the payload cannot be an argument ({error}): read it from standard input"
        elif error.errno == errno.E2BIG:
            why = "the payload is too large for a command line: read it from standard input"
        elif not self._is_fixed and error.errno in _NO_COMMAND:
            why = f"the command cannot be executed: {error.strerror}: {error.filename}"
        else:
            what = f"The command {self._argv[0]!r} could not be executed: {error.strerror or error}."
            self._cannot(job, InvalidArgument(f"{what} Its task was put back."))
            return
        self._done(job, "fail", why, 0.0)

    def _cannot(self, job: Job, error: FsqueueError) -> None:
        """Put the task back, and say why no task can be done here."""
        self._refused(error)
        self._done(job, "release", 0, 0.0)

    def invocation(self, task: LeasedTask) -> tuple[list[str], dict[str, str], bytes]:
        """Return the command line, the environment and the standard input for `task`. MissingField."""
        payload = task.payload
        text = placeholders.text_of(payload)
        environment = self._environment | {
            "FSQUEUE_TASK_ID": task.id,
            "FSQUEUE_ATTEMPT": str(task.attempt),
            "FSQUEUE_QUEUE": os.path.abspath(task.queue.store.path),
            "FSQUEUE_TOKEN": task.token,
        }
        if len(os.fsencode(text)) <= ENVIRONMENT_BYTES_MAX and "\0" not in text:
            environment["FSQUEUE_PAYLOAD"] = text
        stdin = payload if isinstance(payload, bytes) else orjson.dumps(payload, option=orjson.OPT_APPEND_NEWLINE)
        return placeholders.fill(self._argv, payload), environment, stdin
