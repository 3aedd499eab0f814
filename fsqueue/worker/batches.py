"""A command for many tasks: what it is given, how it answers, and how its end is judged for each of them.

A command gets its tasks as JSON Lines on standard input. With `result_from_stdout` it answers each of them by a line on
standard output, and an answer counts as it comes. Its last one counts once the command has ended: until then that task
is at work, so that the command has its time to end.

The end of a command tells nothing of one task in particular as long as several have no answer. So it only fails them,
and a task that was attempted before gets a command of its own: docs/decisions/0068-one-command-for-many-tasks.md.
"""

from __future__ import annotations

import math
import os
import signal
from typing import Any, NamedTuple

import orjson

from fsqueue.errors import UNKEPT, FsqueueError, InvalidArgument, InvalidTask
from fsqueue.filesystem import program_fault
from fsqueue.format import user_json
from fsqueue.format.models import Used
from fsqueue.format.results import encode_result
from fsqueue.format.task_file import payload_fields
from fsqueue.leased_task import LeasedTask
from fsqueue.worker import output, placeholders, shortages
from fsqueue.worker.causes import UNKNOWN, Cause
from fsqueue.worker.command_processes import (
    EX_DATAERR,
    EX_TEMPFAIL,
    NO_COMMAND,
    CommandAtWork,
    CommandExecutor,
    path_for_commands,
)
from fsqueue.worker.jobs import How, Job, SharedCommand
from fsqueue.worker.limits import KILL_S, TASKS_PER_COMMAND_MAX
from fsqueue.worker.loop import Loop
from fsqueue.worker.supervision import NoForkServer

GATHER_S = 0.2
"""How long a command that has not got as many tasks as it may have waits for more, from its first one on."""
INPUT_BYTES_MAX = 64 << 20
"""Maximum number of bytes of payloads for one command; one task may have more. They are in memory while it runs."""
ANSWER_BYTES_MAX = 1 << 20
"""Maximum number of bytes of an answer, its line end excluded. What is longer is none."""
ERROR_CHARS = 4_000
"""Number of characters of an answer's error that are kept as the reason of a failure."""
OF_ONE_TASK = frozenset(
    (b"FSQUEUE_PAYLOAD", b"FSQUEUE_TASK_ID", b"FSQUEUE_ATTEMPT", b"FSQUEUE_QUEUE", b"FSQUEUE_TOKEN", b"FSQUEUE_RESULT")
)
"""What the environment of a command has that gets one task."""
assert TASKS_PER_COMMAND_MAX <= 1_000, "the loop looks through the tasks of a command for each of them"


class _Answer(NamedTuple):
    """What a command has said of a task."""

    task: str
    verb: str
    value: Any


class _NoAnswer(ValueError):
    """Say why a line is no answer, as the end of a sentence. It quotes nothing of the line."""


class _Lines:
    """Splits what a command prints into lines. One that is too long is dropped as it comes."""

    def __init__(self) -> None:
        self._begun = bytearray()
        self._is_too_long = False

    def take(self, chunk: bytes) -> list[bytes | None]:
        """Return the lines that end in what comes next; None for each that was too long."""
        *ended, rest = chunk.split(b"\n")
        lines = []
        for part in ended:
            self._add(part)
            lines.append(self.end())
        self._add(rest)
        return lines

    def _add(self, part: bytes) -> None:
        self._is_too_long |= len(self._begun) + len(part) > ANSWER_BYTES_MAX
        if self._is_too_long:
            self._begun.clear()
        else:
            self._begun += part

    def end(self) -> bytes | None:
        """Return the line that has begun, and begin the next one."""
        line = None if self._is_too_long else bytes(self._begun)
        self._begun.clear()
        self._is_too_long = False
        return line


class _Running(CommandAtWork):
    """A command at work on several tasks."""

    def __init__(self, batches: Batches, jobs: list[Job], stdin: bytes) -> None:
        self.left = {job.task.id: job for job in jobs}
        """The tasks at work, by their ids: those without an answer, and the one whose answer was the last."""
        self.last: tuple[_Answer, float] | None = None
        """The answer for the last of them, and how many seconds the work on it took."""
        self.lines = _Lines()
        self.lines_heard = 0
        self.no_answer = ""
        """Why the first line that is no answer is none."""
        self.signals: set[int] = set()
        """The signals that it was sent."""
        super().__init__(batches, batches.argv, batches.environment, stdin, jobs[0].task, lambda: batches.ended(self))
        self.began = batches.now()
        self.batch = SharedCommand(len(jobs), self.began)
        for job in jobs:
            job.began, job.batch = self.began, self.batch

    @property
    def unanswered(self) -> list[Job]:
        """Return the tasks that have no answer."""
        return [] if self.last is not None else list(self.left.values())

    def kill(self, number: int) -> None:
        """Send it a signal, each one once."""
        if number not in self.signals:
            self.signals.add(number)
            self.process.kill(number)


class Batches(CommandExecutor):
    """Runs commands that get up to `tasks_per_command` tasks each, as many at a time as there are slots."""

    def __init__(self, how: How, loop: Loop) -> None:
        super().__init__(how, loop)
        assert how.tasks_per_command is not None
        self._most = self._width = how.tasks_per_command
        self.argv = placeholders.fill(how.command, None, "")
        self.environment = {key: value for key, value in os.environb.items() if key not in OF_ONE_TASK}
        self._running: list[_Running] = []
        self._gathered: list[tuple[Job, bytes]] = []
        """The tasks of the next command, with their payloads."""
        self._gathered_bytes = 0
        self._gather_until = math.inf

    # -- what the loop asks

    @property
    def slots(self) -> int:
        """Return how many tasks can be at work: those that are, and those that free slots may get.

        A free slot counts as one task after a task that had a command of its own: more of them would only wait.
        """
        at_work = sum(len(running.left) for running in self._running)
        return at_work if self.shortage.is_on else at_work + self._width * len(self.free)

    @property
    def due_at(self) -> float:
        return min(super().due_at, math.inf if self.shortage.is_on else self._gather_until)

    def keep_time(self, now: float) -> None:
        self.supervisors.keep_time(now)
        self.shortage.pass_by(now)
        if now >= self._gather_until and not self.shortage.is_on:
            self._begin()

    def is_ready(self) -> bool:
        return not self.shortage.is_on

    def room(self, each: int) -> int:
        return 0 if self.shortage.is_on else self._most * len(self.free) - len(self._gathered)

    def give(self, job: Job) -> bool:
        """Gather a task for the next command. Begin that as soon as it has as many as it may have."""
        if self.shortage.is_on or not self.free:
            return False
        payload = orjson.dumps(payload_fields(job.task.payload))
        is_alone = job.task.attempt > 1
        is_full = self._gathered_bytes + len(payload) > INPUT_BYTES_MAX
        if self._gathered and (is_alone or is_full or any(job.task.id == one.task.id for one, _ in self._gathered)):
            self._begin()
            if self._gathered or self.shortage.is_on or not self.free:
                return False
        self._gathered.append((job, payload))
        self._gathered_bytes += len(payload)
        self._width = 1 if is_alone else self._most
        if is_alone or len(self._gathered) >= self._most:
            self._begin()
        elif len(self._gathered) == 1:
            self._gather_until = self.now() + GATHER_S
        return True

    def at_work(self) -> list[Job]:
        return [job for running in self._running for job in running.left.values()]

    def is_at_work(self, job: Job) -> bool:
        return any(running.left.get(job.task.id) is job for running in self._running)

    def held(self) -> list[Job]:
        return [*self.at_work(), *(job for job, _ in self._gathered)]

    def take_back(self, slower_than_s: float = -1.0) -> list[Job]:
        """Return the tasks that are gathered: they are in no slot."""
        return [] if slower_than_s >= 0 else [job for job, _ in self._take_gathered()]

    def end(self, job: Job, number: int) -> None:
        """Ask the command of a task to end. For a lost task only if all its tasks are lost: the others are at work."""
        for running in self._running:
            if running.left.get(job.task.id) is job:
                if job.doomed != "lost" or _is_all_lost(running):
                    running.kill(number)
                return

    def close(self) -> None:
        self.end_all(self._running)
        self._running.clear()
        super().close()

    # -- a command begins

    def _take_gathered(self) -> list[tuple[Job, bytes]]:
        gathered, self._gathered = self._gathered, []
        self._gathered_bytes, self._gather_until = 0, math.inf
        return gathered

    def _begin(self) -> None:
        """Begin a command for what is gathered. If the system refuses that just now, it waits."""
        if not self.free:
            return
        jobs = [job for job, _ in self._gathered]
        stdin = b"".join(_line(job.task, payload) for job, payload in self._gathered)
        try:
            running = self.having_descriptors(lambda: _Running(self, jobs, stdin))
        except NoForkServer as error:
            self._cannot(error)
            return
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and shortages.is_short(error):
                self._gather_until = self.now()
                self.fall_short(error)
                return
            is_missing = isinstance(error, OSError) and error.errno in NO_COMMAND
            fault = (program_fault(self._argv[0]) if is_missing else "") or getattr(error, "strerror", None) or error
            why = f"The command {self._argv[0]!r} could not be executed: {fault}. Its tasks were put back."
            self._cannot(InvalidArgument(why))
            return
        self._take_gathered()
        self.shortage.over()
        self._running.append(running)
        self.free.remove(running.slot)
        if self.how.result_from_stdout:
            running.streams[0].heard = lambda chunk: self._heard(running, chunk)

    def _cannot(self, error: FsqueueError) -> None:
        """Put the gathered tasks back, and say why no task can be done here."""
        jobs = self._take_gathered()
        self.loop.refused(error)
        for job, _ in jobs:
            self.loop.done(job, "release", 0, 0.0)

    # -- it answers

    def _heard(self, running: _Running, chunk: bytes) -> None:
        for line in running.lines.take(chunk):
            self._hear_line(running, line)

    def _hear_line(self, running: _Running, line: bytes | None) -> None:
        """Take in a line that a command has printed. A blank one is none."""
        running.lines_heard += 1
        if line is not None and not line.strip():
            return
        try:
            if line is None:
                raise _NoAnswer(f"takes more than {ANSWER_BYTES_MAX:,} bytes")
            answer = _parsed(line)
            job = running.left.get(answer.task)
            if job is None or running.last is not None:
                raise _NoAnswer("has the id of no task that waits for an answer")
        except _NoAnswer as error:
            running.no_answer = running.no_answer or f"line {running.lines_heard:,} of its standard output {error}"
            return
        self._answered(running, job, answer)

    def _answered(self, running: _Running, job: Job, answer: _Answer) -> None:
        now = self.now()
        seconds, running.batch.since = now - running.batch.since, now
        if job.doomed != "lost":
            job.doomed = job.why = ""  # it was told to end, and has answered before
        if len(running.left) == 1:
            running.last = answer, seconds
            return
        del running.left[job.task.id]
        running.batch.left -= 1
        self.loop.done(job, answer.verb, answer.value, seconds)
        if _is_all_lost(running):  # and nothing of what it goes on with counts
            next(iter(running.left.values())).kill_at = now + KILL_S
            running.kill(signal.SIGTERM)

    # -- it ends

    def ended(self, running: _Running) -> None:
        """Judge a command that has exited, for each of its tasks that has no answer."""
        now, process = self.now(), running.process
        process.reap()
        for stream in running.streams:
            stream.drain()
        if self.how.result_from_stdout:
            running.streams[0].drain_to_end()
            self._hear_line(running, running.lines.end())
            running.streams[0].heard = None
        if not process.was_told and process.status is not None:
            for job in running.left.values():
                if job.doomed != "lost":
                    job.doomed = job.why = ""  # it has ended by itself
        self._running.remove(running)
        self.let_go(running)
        if all(job.doomed in ("", "timeout") for job in running.left.values()):
            self.loop.took(now - running.began)
        if running.last is not None:
            [job], (answer, seconds) = running.left.values(), running.last
            if job.doomed != "lost":
                job.doomed = job.why = ""
            self.loop.done(job, answer.verb, answer.value, seconds)
            return
        jobs = running.unanswered
        seconds = (now - running.batch.since) / max(1, len(jobs))
        used = process.used
        if used is not None and not self.how.result_from_stdout:
            used = Used(round(used.cpu_ms / max(1, len(jobs))), used.peak_kib)
            for job in jobs:
                job.used = used
        held = [job for job in jobs if not job.gone]
        verb, value, cause = self._judge(running, held)
        for job in jobs:
            job.killed = (process.status or 0) < 0
            job.leads = not held or job is held[0]
            self.loop.done(job, verb, value, seconds, cause)

    def _judge(self, running: _Running, jobs: list[Job]) -> tuple[str, Any, Cause]:
        """Return what becomes of the tasks without an answer."""
        (out, err), status = running.streams, running.process.status
        is_alone = len(jobs) == 1 and not any(job.gone == "lost" for job in running.unanswered)
        tails = (err.tail,) if self.how.result_from_stdout else (err.tail, out.tail)  # answers are of other tasks
        doomed = jobs[0].doomed if jobs else ""
        if status == 0 and not doomed:
            if not self.how.result_from_stdout:
                return "complete", None, UNKNOWN
            why = "exit status 0, and no answer for this task"
            return "fail", output.reason(self._more(running, why), *tails), UNKNOWN
        has_own_meaning = self.how.sysexits and not doomed and status not in self.how.moved_exits
        if has_own_meaning and status == EX_TEMPFAIL:
            return "release", None, UNKNOWN
        verb = "bury" if has_own_meaning and status == EX_DATAERR and is_alone else "fail"
        why, cause = jobs[0].why if jobs else "", UNKNOWN
        if not why:
            why, memory = self.how_it_ended(running.process, *tails)
            cause = Cause(memory, status)
        if not is_alone:  # it is not known which one is to blame: each is tried alone
            cause = UNKNOWN
            why = f"{why} (of a command with {len(jobs):,} tasks without an answer; each gets its own next)"
            for job in jobs:
                if job.doomed == "timeout":
                    job.doomed = ""
        return verb, output.reason(self._more(running, why), *tails), cause

    def _more(self, running: _Running, why: str) -> str:
        return f"{why} ({running.no_answer})" if running.no_answer else why


def _is_all_lost(running: _Running) -> bool:
    return all(job.doomed == "lost" for job in running.left.values())


def _line(task: LeasedTask, payload: bytes) -> bytes:
    """Return a task as a command gets it. `payload`: the object that has it."""
    queue = os.fsencode(path_for_commands(task.queue)).decode(errors="replace")
    about = orjson.dumps({"id": task.id, "attempt": task.attempt, "queue": queue, "token": task.token})
    return b"%b,%b\n" % (about[:-1], payload[1:])


def _parsed(line: bytes) -> _Answer:
    """Return the answer in a line: an object with `id`, and `result` or `error`, or neither. _NoAnswer."""
    unfit = ""
    try:
        found = user_json.decode_with_constants(line)
    except user_json.NotExact as error:
        try:
            found, unfit = user_json.decode_fields(line), f"The result {error.unquoted}."
        except user_json.NotExact as worse:
            raise _NoAnswer(worse.unquoted if worse.is_json else "is no JSON") from None
    if not isinstance(found, dict) or not isinstance(task := found.get("id"), str):
        raise _NoAnswer("is no object with the id of a task")
    if "error" in found:
        if not isinstance(found["error"], str) or "result" in found:
            raise _NoAnswer("has an error that is no text, or a result beside it")
        return _Answer(task, "fail", found["error"].strip()[:ERROR_CHARS] or "the command answered with an error")
    if not unfit:
        try:
            encode_result(found.get("result"))
        except InvalidTask as error:
            unfit = str(error)
    if unfit:
        return _Answer(task, "bury", f"{UNKEPT} (its answer): {unfit}")
    return _Answer(task, "complete", found.get("result"))
