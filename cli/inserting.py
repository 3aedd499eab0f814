"""Insert tasks from lines, as a stream."""

from __future__ import annotations

import bisect
import io
import math
import operator
import os
import select
import shlex
import signal
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import IO, Any

import click

import fsqueue
from fsqueue import wording
from fsqueue.format import user_json

from .common import example, json_option, moment, queue_argument
from .options import DURATION
from .printing import bar, complain, hint, is_screen, print_json, say

PROGRESS_AFTER_S = 1.0
LOOK_EVERY = 256
"""Lines between two looks at the clock for the progress bar."""

SKIPPED_SHOWN_MAX = 20
"""How many skipped lines are named one by one; the rest is only counted."""

PUBLISH_S = 1.0
"""How long a task may wait for further input before it is published."""

EACH_ELEMENT = "For a task of each element, insert what \"jq -c '.[]'\" makes of it."
CHUNK_BYTES = 1 << 16
PLACES_MAX = 100_000
"""So many gaps between lines with tasks are remembered: more than stand in what is read ahead, but for odd inputs."""
PAUSE = object()


@click.command(
    epilog=example(
        """seq 1000 | fsqueue insert Q
fsqueue insert Q tasks.jsonl --delay 10m
fsqueue insert Q tasks.jsonl --priority due    # {"due":"2026-11-30","scan":7} comes before {"due":"2026-12-24",...}
find /data -name '*.tif' | fsqueue insert Q --lines
fsqueue insert Q tasks.jsonl --key scan   # {"scan":"s7",...} is not inserted while another task with this scan waits
fsqueue insert Q tasks.jsonl --commit seed-2026-11   # all of it or nothing, and once, however often it is typed"""
    )
)
@queue_argument
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(allow_dash=True))
@click.option("--lines", is_flag=True, help="Plain lines: each one is a task, its payload the line as a string.")
@click.option("--delay", "delay_s", type=DURATION, default=0.0, help="How long until the tasks become available.")
@click.option("--batch-tasks", type=int, metavar="N", help="Tasks in a file [grows with the input].")
@click.option(
    "--priority",
    metavar="FIELD",
    help="The field of each JSON object whose value, a text or a whole number, is the task's priority: smaller ones "
    "come first, tasks without the field last.",
)
@click.option(
    "--key",
    metavar="FIELD",
    help="The field of each JSON object whose value, a text or a whole number, is the task's key. While a task with "
    "the key waits or is leased, no other with it is inserted.",
)
@click.option(
    "--skip-bad", is_flag=True, help="Go on after a bad line: name it on standard error, and end with exit code 1."
)
@click.option(
    "--commit",
    metavar="NAME",
    help="Insert all at once, or nothing: under a name that makes repeating the command harmless.",
)
@json_option
def insert(
    queue: str,
    files: tuple[str, ...],
    lines: bool,
    delay_s: float,
    batch_tasks: int | None,
    priority: str | None,
    key: str | None,
    skip_bad: bool,
    commit: str | None,
    as_json: bool,
) -> None:
    """Insert a task for each line of the FILEs, or of standard input, and print how many there were.

    Each line is a JSON value, or with --lines a string. Empty lines are skipped.

    At a bad line (not JSON, NaN, an integer beyond 64 bits, a name twice in an object, larger than the queue allows)
    the command ends with exit code 2. The lines before it are inserted; the bad line and those after it are not. The
    message says where to go on: do not repeat the command, which would insert the first lines again. The same holds
    when it is interrupted, with exit code 130, and on a full disk. With --commit nothing is inserted then, and the
    command may be repeated.

    With --commit, the command inserts nothing if NAME was committed before: it reads no input and prints 0. A NAME
    that was committed with no tasks is used up, too. If there are tasks now, the command ends with exit code 2: insert
    them under another name.

    With --key, it prints how many tasks are new. Lines without the field, or with null in it, have no key. Each key
    makes a small file: for more than 100,000 tasks --commit is the better choice. If all lines have keys, a command
    that ended early may be repeated: a line is not inserted again while its task waits or is leased.
    """
    for option, field in (("--priority", priority), ("--key", key)):
        if field == "":
            raise fsqueue.InvalidArgument(
                f"{option} names a field of JSON objects, and is empty. Is a variable of the shell not set? "
                "Nothing was inserted."
            )
    if lines and (priority is not None or key is not None):
        field = "--priority" if key is None else "--key"
        raise fsqueue.InvalidArgument(
            f"{field} names a field of JSON objects: leave --lines out. Nothing was inserted."
        )
    if key is not None and commit is not None:
        raise fsqueue.InvalidArgument(
            "A commit takes no keys: its name makes the whole insert happen once. Leave --key or --commit out. "
            "Nothing was inserted."
        )
    if key is not None and batch_tasks is not None:
        raise fsqueue.InvalidArgument(
            "Tasks with keys are inserted one at a time. Leave --batch-tasks or --key out. Nothing was inserted."
        )
    with fsqueue.Queue(queue) as q:
        if key is not None and not q.takes_keys:
            raise fsqueue.InvalidArgument(
                f"The queue {q.path} has a format of an older fsqueue, which has no keys. Raise it with 'fsqueue "
                "upgrade', or leave --key out. Nothing was inserted."
            )
        source = Source(files or ("-",), lines, skip_bad, q.settings.task_bytes_max, priority, key)
        if commit is not None:
            _insert_once(q.commit(commit), source, batch_tasks, delay_s, as_json)
            return
        source.check_files()
        count, handled = 0, 0
        failure: fsqueue.FsqueueError | None = None
        with source.interruptible():
            while not source.ended and failure is None:
                try:
                    count += q.insert_many(source.until_pause(), batch_tasks=batch_tasks, delay_s=delay_s)
                    handled = source.tasks
                except fsqueue.InvalidTask as error:  # the line read last; those before it are in
                    count += _new_of(error)
                    source.refuse_task(error)
                    handled = source.tasks
                except fsqueue.FsqueueError as error:
                    count += _new_of(error)
                    failure = error
    known = {} if key is None else {"tasks": _handled_at(failure, handled) if failure is not None else source.tasks}
    if as_json:
        print_json({"inserted": count, "skipped": source.skipped, **known})
    else:
        say(count)
        if source.tasks > count and key is not None and failure is None and not source.broken_off:
            hint(f"{count:,} of {wording.counted(source.tasks, 'task')} were new: the keys of the others were taken")
    source.hint_at_fields()
    if failure is not None:
        source.conclude_failure(failure, count, _handled_at(failure, handled))
        raise failure
    source.conclude(count)
    if source.is_one_array and count == 1:
        hint(f"hint: the input is one JSON array, and became one task. {EACH_ELEMENT}")


def _new_of(error: fsqueue.FsqueueError) -> int:
    """Return how many tasks a call has inserted that ended with an error."""
    return (error.inserted if error.new is None else error.new) or 0


def _handled_at(error: fsqueue.FsqueueError, before: int) -> int | None:
    """Return how many tasks from the beginning of the input are in the queue, or had a key that was taken.

    `before`: that number before the call that ended with the error. None if it cannot be told.
    """
    if error.inserted is not None:
        return before + error.inserted
    return before if error.new is None else None


def _insert_once(
    commit: fsqueue.Commit, source: Source, batch_tasks: int | None, delay_s: float, as_json: bool
) -> None:
    """Insert the whole input under a name, unless it was committed before."""
    report = commit.committed()
    if report is None:
        source.check_files()
        parts = []
        with source.interruptible():
            try:
                while not source.ended:
                    try:
                        parts.append(commit.stage(source.until_end(), batch_tasks=batch_tasks, delay_s=delay_s))
                    except fsqueue.InvalidTask as error:
                        parts.append(error.part)
                        source.refuse_task(error)
            except fsqueue.FsqueueError:
                with suppress(fsqueue.FsqueueError):  # otherwise `gc` does it
                    commit.discard()
                raise
            if source.broken_off:
                commit.discard()
            else:
                report = commit.publish(parts)
    elif not report.tasks:  # else the input is not read
        source.check_files()
        with source.interruptible():
            next(source.until_end(), None)
    is_repeated = report is not None and report.repeated
    is_used_up = report is not None and not report.tasks
    is_refused = is_repeated and is_used_up and source.tasks > 0
    count = 0 if report is None or is_repeated else report.tasks
    if as_json:
        print_json(
            {
                "inserted": count,
                "skipped": source.skipped,
                "commit": commit.name,
                "committed": None if report is None else report.tasks,
                "repeated": is_repeated,
                "refused": is_refused,
            }
        )
    else:
        say(count)
    if report is None or source.broken_off:
        source.hint_at_fields()
        source.conclude_without(commit.name)
        return
    when = f"{commit.name} was committed on {moment(report.at)}, with {wording.counted(report.tasks, 'task')}"
    if is_refused:
        raise fsqueue.InvalidArgument(
            f"{when}, so the name is used up. The tasks of this input were not inserted: insert them under another "
            "name."
        )
    source.hint_at_fields()
    if is_repeated:
        complain(f"{when}: nothing was added")
    if is_used_up:
        complain(f"the name {commit.name} is used up by a commit of no tasks: insert others under another name")
    if not is_repeated or is_used_up:
        source.conclude(count)


def _were_inserted(count: int) -> str:
    return f"{wording.counted(count, 'task')} {'was' if count == 1 else 'were'} inserted"


class BadLine(Exception):
    """Say why a line is not a task."""


class Source:
    """Yield the payloads in order. After an early end it knows where and why.

    A bad line does not raise but ends the iteration, so that the lines before it are inserted and counted. When the
    input pauses, the iteration pauses, so that the lines read so far are published.
    """

    def __init__(
        self,
        files: tuple[str, ...],
        plain: bool,
        skip_bad: bool,
        line_bytes_max: int,
        priority: str | None = None,
        key: str | None = None,
    ) -> None:
        self._priority, self._key = priority, key
        """Name the fields of a payload that hold its priority and its key."""
        self.tasks = 0
        """Count the lines that were read as tasks. Those that the queue refuses do not count."""
        self._had_priority = self._had_key = False
        """Say whether any task so far had a priority, or a key."""
        self._first_plain: int | None = None
        """Count the tasks before the first one without a key. None if every task so far has one."""
        self._places = Places()
        self._files, self._skip_bad, self._line_bytes_max = files, skip_bad, line_bytes_max
        self._decode = _decode_plain if plain else _decode_json
        self._stream = self._payloads()
        self._progress = InsertBar(files)
        self._file, self._line = "", 0
        self._number = 0
        """Give the index in `_files` of the file that is being read."""
        self._rest_from = 0
        """The line to go on from after a read error; 0 if there was none."""
        self._publish_at = math.inf
        self._reading = False
        self._signal: int | None = None
        self._bad: str | None = None
        self.ended = False
        self.skipped = 0
        self.is_one_array = False
        """Whether the first line is an array of several elements. The user may have meant a task for each element."""

    @property
    def place(self) -> str:
        """Return the file and the line that was read last; the file alone if none was."""
        return f"{self._file}, line {self._line:,}" if self._line else self._file

    def check_files(self) -> None:
        """Refuse files that cannot be read, before anything is inserted. Most often a name is mistyped."""
        for name in self._files:
            why = _why_unreadable(name) if name != "-" else None
            if why is not None:
                raise fsqueue.InvalidArgument(f"{name}: {why}. Nothing was inserted.")

    def until_pause(self) -> Iterator[Any]:
        """Yield the payloads up to a pause of the input, or its end."""
        self._publish_at = math.inf
        for payload in self._stream:
            if payload is PAUSE:
                return
            yield payload
        self.ended = True

    def until_end(self) -> Iterator[Any]:
        """Yield the payloads up to the end of the input, through all pauses."""
        while not self.ended:
            yield from self.until_pause()

    @property
    def broken_off(self) -> bool:
        """Tell whether it ended before the end of the input."""
        return self._bad is not None or self._signal is not None

    def refuse(self, why: str) -> None:
        """Skip the line that was read last, or end: it is not a task."""
        if not self._skip_bad:
            self._bad, self.ended = why, True
            return
        self.skipped += 1
        if self.skipped <= SKIPPED_SHOWN_MAX:
            complain(f"skipped: {self.place} {why}")

    def refuse_task(self, error: fsqueue.InvalidTask) -> None:
        """Skip the line that was read last, or end: the queue does not take it as a task."""
        self.tasks -= 1
        if self._first_plain == self.tasks:
            self._first_plain = None
        self.refuse(f"is no task for this queue: {error}")

    def _payloads(self) -> Iterator[Any]:
        try:
            for number, name in enumerate(self._files):
                self._file, self._line = "standard input" if name == "-" else name, 0
                self._number = number
                with _open(name) as file:
                    yield from self._of_file(file)
                if self._bad or self._signal:
                    return
        except OSError as error:  # of the file, not of the queue: insert the lines read so far, then report it
            self._bad = f"cannot be read: {error.strerror or error}"
            self._rest_from = self._line + 1  # the lines up to here are inserted
        finally:
            self._progress.close()

    def _of_file(self, file: IO[bytes]) -> Iterator[Any]:
        for line in self._lines(file):
            if line is PAUSE:
                yield PAUSE
                continue
            self._line += 1
            self._progress.count(len(line) + 1)
            text = line.removesuffix(b"\r")
            if self._line == 1:
                text = text.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
            if not text or text.isspace():
                continue
            try:
                if len(line) > self._line_bytes_max:
                    raise BadLine(f"is longer than a task of this queue may be ({self._line_bytes_max:,} bytes)")
                payload = self._decode(text)
                key = None if self._key is None else _key_of(payload, self._key)
            except BadLine as error:
                self.refuse(str(error))
                if self._bad:
                    return
                continue
            self._publish_at = min(self._publish_at, time.monotonic() + PUBLISH_S)
            if self._line == 1 and type(payload) is list and len(payload) > 1:
                self.is_one_array = True
            self._places.note(self.tasks, self._number, self._line)
            if key is not None:
                self._had_key = True
            elif self._first_plain is None:
                self._first_plain = self.tasks
            self.tasks += 1
            if type(payload) is dict and (self._priority is not None or self._key is not None):
                urgency = None if self._priority is None else payload.get(self._priority)
                self._had_priority |= urgency is not None
                payload = fsqueue.Task(payload, key=key, priority=urgency)
            yield payload

    def _lines(self, file: IO[bytes]) -> Iterator[Any]:
        """Yield lines without their ends, and PAUSE. A line too long for a task is cut, but stays too long."""
        parts: list[bytes] = []
        size = 0
        while chunk := self._read(file):
            if chunk is PAUSE:
                yield PAUSE
                continue
            first, *others = chunk.split(b"\n")
            if size <= self._line_bytes_max:
                parts.append(first)
                size += len(first)
            if others:
                yield b"".join(parts)
                yield from others[:-1]
                parts, size = [others[-1]], len(others[-1])
            if self._signal is not None:
                return
        if size and self._signal is None:
            yield b"".join(parts)

    def _read(self, file: IO[bytes]) -> Any:
        """Return some bytes; b"" at the end or if interrupted; PAUSE if payloads wait and no byte has come yet."""
        self._reading = True
        try:
            if self._publish_at < math.inf and not _is_ready(file, self._publish_at):
                self._publish_at = math.inf
                return PAUSE
            return os.read(file.fileno(), CHUNK_BYTES)
        except io.UnsupportedOperation:  # not a file of the operating system
            return file.read(CHUNK_BYTES)
        except KeyboardInterrupt:
            return b""
        finally:
            self._reading = False

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM interrupt the reading of a line. During an insert they wait for its end."""

        def note(number: int, frame: FrameType | None) -> None:
            again = self._signal is not None
            self._signal = number
            if self._reading or again:
                raise KeyboardInterrupt

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def conclude_without(self, name: str) -> None:
        """Say why nothing was committed, and exit accordingly."""
        if self._bad is not None:
            complain(f"{self.place} {self._bad}")
            complain(f"nothing was inserted as {name}: correct it and repeat the command, or use --skip-bad")
            raise click.exceptions.Exit(2)
        complain(f"interrupted: nothing was inserted as {name}; repeat the command")
        raise click.exceptions.Exit(128 + (self._signal or 0))

    def hint_at_fields(self) -> None:
        """Hint at a field that no line had. Most often its name is mistyped."""
        for option, field, was_found in (
            ("--priority", self._priority, self._had_priority),
            ("--key", self._key, self._had_key),
        ):
            if field is not None and self.tasks and not was_found:
                what = option.strip("-")
                hint(f"hint: no line has a value in the field {field!r} ({option}), so no task has a {what}")

    def _may_be_repeated(self, handled: int) -> bool:
        """Tell whether each of the first tasks had a key, so that to insert them again does no harm."""
        return self._first_plain is None or handled <= self._first_plain

    def _how_to_go_on(self, handled: int, place: tuple[int, int] | None) -> str:
        """Say what to insert next if the first tasks were handled. `place`: a file's number, and its first line."""
        if not handled:
            return "repeat the command"
        later: tuple[str, ...] = ()
        if place is None:
            rest = (
                f"all but the first {wording.counted(handled, 'task')} (lines that are blank or were skipped are none)"
            )
        else:
            number, line = place
            name, later = self._files[number], self._files[number + 1 :]
            if line <= 1:
                rest = shlex.quote(name)
            elif name == "-":
                rest = f"the rest (a pipe cannot be read again: make its input once more, through 'tail -n +{line}')"
            else:
                rest = f"the rest, which 'tail -n +{line} {shlex.quote(name)}' prints"
        then = f", and after it {' '.join(map(shlex.quote, later))}" if later else ""
        if self._may_be_repeated(handled):
            return f"insert {rest}{then}; or repeat the command: it inserts no line whose key is taken"
        again = f"the first {handled:,}" if self._key is None else "the lines without a key"
        return f"insert {rest}{then}; to repeat the command would insert {again} again"

    def conclude_failure(self, failure: fsqueue.FsqueueError, count: int, handled: int | None) -> None:
        """Say what is in the queue after an error of the queue, and how to go on, unless the error says it all.

        `count`: how many tasks are new. `handled`: see `_handled_at`.
        """
        if not count and not handled:
            return
        if handled is None:
            them = "them" if self._key is None else "those without a key"
            complain(f"do not repeat the command: it would insert {them} again. The error says more")
            complain(f"{_were_inserted(count)}, then this happened:")
            return
        more = "" if failure.is_exact else ", and some that came next may be in the queue, too"
        complain(self._how_to_go_on(handled, self._places.find(handled)))
        complain(f"{_were_inserted(count)} from the beginning of the input{more}, then this happened:")
        failure.args = (str(failure).removesuffix(failure.advice).rstrip(), *failure.args[1:])

    def conclude(self, count: int) -> None:
        """Say what was left out, if anything was, and exit accordingly."""
        so_far = _were_inserted(count)
        if self.skipped > SKIPPED_SHOWN_MAX:
            complain(f"skipped: {self.skipped - SKIPPED_SHOWN_MAX:,} more lines")
        if self._bad is not None:
            complain(f"{self.place} {self._bad}")
            complain(f"{so_far}, from all the lines before this one and none after it")
            complain(f"correct it and {self._how_to_go_on(self.tasks, (self._number, self._rest_from or self._line))}")
            raise click.exceptions.Exit(2)
        if self._signal is not None:
            complain(f"interrupted: {so_far}, up to {self.place}")
            complain(self._how_to_go_on(self.tasks, (self._number, self._line + 1)))
            raise click.exceptions.Exit(128 + self._signal)
        if self.skipped:
            complain(f"{so_far}; {wording.counted(self.skipped, 'bad line')} skipped")
            raise click.exceptions.Exit(1)


class Places:
    """Know the lines of the tasks that were read last, in bounded memory."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, int, int]] = []
        """(the number of a task, that of its file, its line), wherever not the next line has the next task."""

    def note(self, task: int, file: int, line: int) -> None:
        """Take in the place of a task. Of two with one number the later one counts."""
        if self._steps:
            first, known, begin = self._steps[-1]
            if known == file and line - begin == task - first:
                return
        if len(self._steps) >= PLACES_MAX:
            del self._steps[: PLACES_MAX // 2]
        self._steps.append((task, file, line))

    def find(self, task: int) -> tuple[int, int] | None:
        """Return the number of a task's file, and its line. None if they were forgotten."""
        after = bisect.bisect_right(self._steps, task, key=operator.itemgetter(0))
        if not after:
            return None
        first, file, begin = self._steps[after - 1]
        return file, begin + task - first


def _is_ready(file: IO[bytes], until: float) -> bool:
    """Tell whether there is something to read (or the end). Wait for it `until` that time (monotonic seconds)."""
    waiting = select.poll()
    waiting.register(file.fileno(), select.POLLIN)
    return bool(waiting.poll(max(0.0, until - time.monotonic()) * 1000))


class InsertBar:
    """Show a bar on standard error, if that is a terminal and the work takes more than a second."""

    def __init__(self, files: tuple[str, ...]) -> None:
        self._files = files
        self._wanted = is_screen(sys.stderr)
        self._due = time.monotonic() + PROGRESS_AFTER_S
        self._lines = self._bytes = 0
        self._bar: Any = None

    def count(self, line_bytes: int) -> None:
        """Count a line of so many bytes, and draw the bar now and then."""
        self._bytes += line_bytes
        self._lines += 1
        if not self._wanted or self._lines % LOOK_EVERY:
            return
        if self._bar is None and time.monotonic() >= self._due:
            self._bar = self._start()
        if self._bar is not None:
            self._bar.set_postfix_str(f"{self._lines:,} tasks", refresh=False)
            self._bar.update(self._bytes - self._bar.n)

    def _start(self) -> Any:
        try:
            sizes = [os.path.getsize(name) for name in self._files]
        except OSError:  # standard input, or no longer there
            sizes = []
        return bar(total=sum(sizes) or None, unit="B", unit_scale=True, desc="insert", miniters=1, leave=False)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _why_unreadable(name: str) -> str | None:
    """Return why a file cannot be read, in a few words; None if it seems that it can."""
    try:
        if stat.S_ISDIR(os.stat(name).st_mode):
            return "it is a directory"
    except FileNotFoundError:
        return "no such file"
    except OSError as error:
        return error.strerror or str(error)
    return None if os.access(name, os.R_OK) else "permission denied"


def _open(name: str) -> IO[bytes]:
    if name == "-":
        if sys.stdin.isatty():
            complain("reading from the terminal, a task a line; end with Ctrl-D")
        return sys.stdin.buffer
    return open(name, "rb", buffering=0)


def _key_of(payload: Any, field: str) -> str | None:
    """Return the key in a field of a payload, be it fit or not; None if it has no such field, or null in it."""
    value = payload.get(field) if type(payload) is dict else None
    return str(value) if type(value) is int else value


def _decode_plain(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise BadLine(f"is not UTF-8 ({error.reason} at byte {error.start + 1})") from None


def _decode_json(line: bytes) -> Any:
    try:
        return user_json.decode(line)
    except user_json.NotExact as error:
        raise BadLine(f"{error}{'' if error.is_json else _hint_at(line, error.position)}") from None


def _hint_at(line: bytes, position: int) -> str:
    """Return a hint at what the user may have meant by a line that is not JSON."""
    begin = line.lstrip()[:1]
    if begin == b"[":
        return f" (an array over several lines? {EACH_ELEMENT})"
    if begin == b"{":
        return " (an object over several lines? 'jq -c .' makes a line of each)"
    return " (for plain lines use --lines)" if position == 0 else ""
