"""Turn the input of an insert into a stream of payloads, and say where and why it ended."""

from __future__ import annotations

import bisect
import operator
import os
import re
import signal
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any

import click

import fsqueue
from fsqueue.format import priority, wording

from . import insert_parquet, process
from .insert_input import (
    PAUSE,
    BadLine,
    Changed,
    Input,
    PriorityKind,
    Producer,
    Unreadable,
    open_input,
    shown,
    version_of,
    why_unreadable,
)
from .insert_lines import Format, GivenFormat, LineFormat, one_for_many
from .insert_options import Asked
from .insert_parquet import ParquetFormat, is_parquet
from .printing import Bar, complain, hint, quoted

SKIPPED_SHOWN_MAX = 20
"""Maximum number of skipped lines that are named one by one; the rest is only counted."""
LATER_SHOWN_MAX = 20
"""Maximum number of later files that are named, likewise: a directory may have thousands."""
PLACES_MAX = 100_000
"""Maximum number of gaps between lines with tasks to remember: more than stand in what is read ahead, but for odd
inputs."""
CHUNKS_MAX = 10_000
"""Maximum number of chunks that are read ahead to remember, for the bar; of a table up to 16 MiB are read ahead."""
PROGRESS_AFTER_S = 1.0
_TASK_NUMBER = re.compile(r"(?:Task number [0-9,]+|The task)(?P<colon>:)? ")
LOOK_EVERY = 256
"""Tasks between two steps of the bar."""


def were_inserted(count: int) -> str:
    """Say how many tasks were inserted."""
    return f"{wording.counted(count, 'task')} {'was' if count == 1 else 'were'} inserted"


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


class Advance:
    """Tell how many bytes of the input stand before a line: exactly or about, and in bounded memory.

    Of a small file all bytes are read before its first task is inserted, and of a table those of many rows.
    """

    def __init__(self) -> None:
        self._file = self._line = self._bytes = 0
        self._chunks: deque[tuple[int, int, int]] = deque(maxlen=CHUNKS_MAX)
        """(the number of a file, its lines, all bytes) at the end of each chunk that was read."""
        self._before = (0, 0, 0)
        """The same at the end of the chunk before these."""

    def begin(self, number: int) -> None:
        """Take in that another file is read from now on."""
        self._file, self._line = number, 0

    def read(self, count: int, lines: int) -> None:
        """Take in a chunk: its bytes, and how many lines end in it."""
        self._line += lines
        self._bytes += count
        self._chunks.append((self._file, self._line, self._bytes))

    def until(self, number: int, line: int) -> int:
        """Return how many bytes stand before the end of a line of a file. They never get fewer."""
        while len(self._chunks) > 1 and self._chunks[0][:2] <= (number, line):
            self._before = self._chunks.popleft()
        (file, first, begin), (read, last, end) = self._before, self._chunks[0] if self._chunks else self._before
        if file != number:
            first = 0
        if read != number or last <= first:
            return begin
        return begin + (end - begin) * (min(line, last) - first) // (last - first)


class Source:
    """Yield the payloads in order. After an early end it knows where and why.

    A bad line does not raise but ends the iteration, so that the lines before it are inserted and counted. When the
    input pauses, the iteration pauses, so that the lines read so far are published.
    """

    def __init__(self, source: Input, asked: Asked, form: Format, producer: Producer | None) -> None:
        self._priority, self._key, self._new_by = asked.priority, asked.key, asked.new_by
        """Name the fields of a payload that hold its priority, its key, and the value that its versions share."""
        self._kind = PriorityKind(f"field {shown(self._priority or '')}", "write each of them as a text")
        """The kind of all priorities."""
        self.tasks = 0
        """Count the lines that were read as tasks. Those that the queue refuses do not count."""
        self._had_priority = self._had_key = False
        """Say whether any task so far had a priority, or a key."""
        self._first_plain: int | None = None
        """Count the tasks before the first one without a key. None if every task so far has one."""
        self._places = Places()
        self._input, self._skip_bad, self.producer = source, asked.skip_bad, producer
        self._files, self._is_commit = asked.files or ("-",), asked.commit is not None
        self._may_be_parquet, self._parquet = asked.may_be_parquet, ParquetFormat(source, asked.fields)
        self._formats = [self._parquet if self._may_be_parquet and is_parquet(name) else form for name in self._files]
        """The format of each file."""
        self._stream = self._payloads()
        self._bar = Bar("insert", "B", PROGRESS_AFTER_S, is_scaled=True)
        self._lines = 0
        """Count all lines that are tasks, for the bar."""
        self._advance = Advance()
        source.on_bytes = self._advance.read
        self._number = self._line = self._last = 0
        """Give the index in `_files` of the file that is being read, and the first and last line of its last task."""
        self._bad: str | None = None
        self._is_changed = False
        """Say whether that line is none, but a file that was written to while it was read."""
        self._bad_exit = BadLine.exit_code
        self._bad_option = ""
        """Give the option with which the whole input, inserted anew, would not end at that line."""
        self._bad_may_skip = False
        """Say whether --skip-bad would go on after the line that has ended it."""
        self._has_rest = False
        """Say whether a signal has ended it before the end of the input."""
        self.ended = False
        self.skipped = 0
        self._first_line: Any = None
        """The payload in the first line of the input, if it is one of JSON Lines."""

    @property
    def _form(self) -> Format:
        return self._formats[self._number]

    @property
    def respelled(self) -> list[dict[str, str]]:
        """Return the columns of a table whose numbers a payload spells otherwise, with an example of each."""
        return [
            {"column": column, "cell": cell, "becomes": becomes}
            for form in dict.fromkeys(self._formats)
            for column, (cell, becomes) in form.respelled.items()
        ]

    @property
    def place(self) -> str:
        """Return the file and the line that was read last; the file alone if none was."""
        return self._place(self._line)

    def _place(self, line: int) -> str:
        name = self._files[self._number]
        if isinstance(self._form, GivenFormat):
            name = "--task"
        elif self.producer is not None:
            name = f"the output of {self.producer.name}"
        elif name == "-":
            name = "standard input"
        return f"{name}, {self._form.unit} {line:,}" if line else name

    def check_files(self) -> None:
        """Refuse files that cannot be read, before anything is inserted. Most often a name is mistyped.

        The parts of a table that is a directory take its place.
        """
        if self._may_be_parquet:
            self._find_parts()
        named: dict[Format, list[str]] = {}
        for name, form in zip(self._files, self._formats, strict=True):
            if name == "-":
                if self._is_commit and self.producer is None and "stdin" in process.closed:
                    raise fsqueue.InvalidArgument(
                        "Standard input is closed. Nothing was inserted, and the name is free: an empty input would "
                        "use it up. Name a file, or give standard input; '</dev/null' is an empty one."
                    )
                continue
            why = why_unreadable(name)
            if why is not None:
                raise fsqueue.InvalidArgument(f"{name}: {why}. Nothing was inserted.")
            named.setdefault(form, []).append(name)
        for form, names in named.items():
            form.check(names)

    def _find_parts(self) -> None:
        files: list[str] = []
        formats: list[Format] = []
        for name, form in zip(self._files, self._formats, strict=True):
            parts = insert_parquet.parts_of(name)
            files += parts or [name]
            formats += [self._parquet] * len(parts) or [form]
        self._files, self._formats = tuple(files), formats

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let signals end the reading, and end the producer at the end, if it has not ended by itself."""
        with self._input.interruptible(also=() if self.producer is None else (signal.SIGHUP,)):
            try:
                yield
            finally:
                if self.producer is not None:
                    self.producer.end(self._input.signal or signal.SIGTERM)

    def until_pause(self) -> Iterator[Any]:
        """Yield the payloads up to a pause of the input, or its end."""
        self._input.begin_call()
        for payload in self._stream:
            if payload is PAUSE:
                return
            yield payload
        self.ended = True

    def until_end(self) -> Iterator[Any]:
        """Yield the payloads up to the end of the input, through all pauses."""
        while not self.ended:
            yield from self.until_pause()

    def await_producer(self) -> None:
        """Wait until it is known how the producer ended, unless its output is given up: then end it.

        A bad line may be the half of one, written by a producer that died. So its exit code counts there, too.
        """
        if self.producer is None or (self._bad is not None and not self._input.at_end):
            return
        self._input.wait_for(self.producer.wait)

    @property
    def broken_off(self) -> bool:
        """Tell whether it ended before the end of the input, or the producer did not succeed."""
        is_bad = self._bad is not None or self._input.signal is not None
        return is_bad or (self.producer is not None and self.producer.exit_code != 0)

    @property
    def fault(self) -> str | None:
        """Return which line has ended the input, and why; None if none has."""
        return None if self._bad is None else f"{self.place} {self._bad}"

    @property
    def signal(self) -> int | None:
        """Return the signal that has ended the reading; None if none has."""
        return self._input.signal

    def forget_signal(self) -> None:
        """Forget a signal that came when all was inserted."""
        self._input.signal = None

    def refuse(
        self, why: str, may_skip: bool = True, option: str = "", exit_code: int = BadLine.exit_code
    ) -> None:  # fmt: skip
        """Skip the line that was read last, or end: it is not a task. `option`, `exit_code`: as in a BadLine."""
        if not (self._skip_bad and may_skip):
            self._bad, self._bad_option, self._bad_exit, self.ended = why, option, exit_code, True
            self._bad_may_skip = may_skip and not self._skip_bad
            return
        self.skipped += 1
        if self.skipped <= SKIPPED_SHOWN_MAX:
            complain(f"skipped: {self.place} {why}")

    def refuse_task(self, error: fsqueue.InvalidTask) -> None:
        """Skip the line that was read last, or end: the queue does not take it as a task."""
        self.tasks -= 1
        if self._first_plain == self.tasks:
            self._first_plain = None
        named = _TASK_NUMBER.match(str(error))  # in a call: the line is named already
        why = str(error)[named.end() :] if named else str(error)
        why = f"it {why}" if named and not named["colon"] else why
        if "a key is a text" in why and self._form.takes_text:
            why += f" Of a table: --text {quoted(self._key or '')}"
        self.refuse(f"is no task for this queue: {why}", exit_code=error.exit_code)

    def _rows(self) -> Iterator[Any]:
        """Yield the rows of all files, and PAUSE. A file that cannot be read is the last one."""
        form: Format | None = None
        for number, name in enumerate(self._files):
            if form is not None and form is not self._formats[number]:
                yield from form.waiting()
            form = self._formats[number]
            form.line = 0
            self._advance.begin(number)
            try:
                with self._open(name, form) as file:
                    version = version_of(file)
                    yield from form.rows(number, name, file)
                    is_changed = self._input.signal is None and version_of(file) != version
            except OSError as error:  # of the file, not of the queue: insert the lines read so far, then report it
                line = form.line
                yield from form.waiting()
                yield number, line, line, Unreadable(error.strerror or str(error))
                return
            if self._input.signal is not None:
                self._has_rest = self._input.is_cut or form.has_waiting or number + 1 < len(self._files)
                return
            if is_changed:
                yield number, 0, 0, Changed()
                return
        if form is not None:
            yield from form.waiting()

    def _open(self, name: str, form: Format) -> Any:
        if isinstance(form, GivenFormat):
            return nullcontext()
        return open_input(name) if self.producer is None else self.producer.start()

    def _payloads(self) -> Iterator[Any]:
        try:
            for row in self._rows():
                if row is PAUSE:
                    yield PAUSE
                    continue
                if self._input.signal is not None:  # each task with a key takes a while: no more are begun
                    self._has_rest = True
                    return
                self._number, self._line, self._last, payload = row
                if isinstance(payload, BadLine):
                    if isinstance(payload, Unreadable) and self._line:
                        self._line += 1  # the lines before it could be read, and are inserted
                    self._is_changed = isinstance(payload, Changed)
                    self.refuse(str(payload), payload.may_skip, payload.option, payload.exit_code)
                    if self._bad:
                        return
                    continue
                mixed = None if self._priority is None else self._mixed(payload)
                if mixed is not None:
                    self.refuse(str(mixed), mixed.may_skip)
                    return
                yield self._as_task(payload)
        finally:
            self._bar.close()

    @cached_property
    def _size(self) -> int | None:
        """Return the number of bytes of the files; None if it is not known, as of standard input."""
        try:
            return sum(map(os.path.getsize, self._files)) or None
        except OSError:  # it has none, or is no longer there
            return None

    def _mixed(self, payload: Any) -> BadLine | None:
        """Return the error on a priority that is of another kind than those before it. None for what is no priority:
        the queue refuses that.
        """
        urgency = payload.get(self._priority) if type(payload) is dict else None
        if urgency is None or priority.fault(urgency) is not None:
            return None
        return self._kind.other(str(urgency), type(urgency) is int)

    def _as_task(self, payload: Any) -> Any:
        """Count a payload, and give it the priority and the key that its fields say."""
        key = None if self._key is None else _key_of(payload, self._key)
        self._lines += 1
        if not self._lines % LOOK_EVERY:
            self._bar.show(self._advance.until(self._number, self._last), self._size, f"{self._lines:,} tasks")
        self._input.note_task()
        if self._line == 1 and not self.tasks and isinstance(self._form, LineFormat):
            self._first_line = payload
        self._places.note(self.tasks, self._number, self._line)
        if key is not None:
            self._had_key = True
        elif self._first_plain is None and self._new_by is None:
            self._first_plain = self.tasks
        self.tasks += 1
        if type(payload) is dict and (self._priority is not None or self._key is not None):
            urgency = None if self._priority is None else payload.get(self._priority)
            self._had_priority |= urgency is not None
            payload = fsqueue.Task(payload, key=key, priority=urgency)
        return payload

    def conclude_without(self, name: str, is_used_up: bool) -> None:
        """Say why nothing was committed, and exit accordingly. `is_used_up`: by an earlier commit of no tasks."""
        if self._input.signal is not None and self._bad is None:
            complain(f"interrupted: nothing was inserted as {name}; repeat the command")
            raise click.exceptions.Exit(128 + self._input.signal)
        if self.producer is not None and self.producer.exit_code and (self._bad is None or self._input.at_end):
            if self._bad is not None:
                complain(f"{self.place} {self._bad}")
            complain(f"{self.producer.how_it_ended()}")
            again = "" if is_used_up else ": the name is free, and the command may be repeated"
            complain(f"nothing was inserted as {name}{again}")
            raise click.exceptions.Exit(1)
        complain(f"{self.place} {self._bad}")
        or_skip = ", or use --skip-bad" if self._bad_may_skip else ""
        or_option = f", or add {self._bad_option}," if self._bad_option else ""
        complain(f"nothing was inserted as {name}: correct it{or_option} and repeat the command{or_skip}")
        raise click.exceptions.Exit(self._bad_exit)

    def hint_at_input(self) -> None:
        """Hint at a field that no line had, most often since its name is mistyped; and at an item without its end."""
        if any(form.has_open_end for form in self._formats):
            hint("hint: the last item does not end with NUL: if the program that printed it was ended, it is not whole")
        for form in dict.fromkeys(self._formats):
            for name in list(form.unnamed)[:LATER_SHOWN_MAX]:
                hint(f"hint: no placeholder of a command can name the column {name!r}, which has a double quote or a "
                     "brace")  # fmt: skip
            for name in form.indexes:
                hint(f"hint: the column {name!r} is the index of a pandas table, and a field of each task: "
                     "to_parquet(…, index=False) leaves it out")  # fmt: skip
        for option, field, was_found in (
            ("--priority", self._priority, self._had_priority),
            ("--key", self._key, self._had_key),
        ):
            if field is not None and self.tasks and not was_found:
                what = option.strip("-")
                hint(f"hint: no line has a value in the field {field!r} ({option}), so no task has a {what}")

    def hint_at_one_task(self) -> None:
        """Hint at an input that became one task, if it looks like many: an array, or a table in an object."""
        if self.tasks == 1 and self._first_line is not None:
            what = one_for_many(self._first_line)
            if what is not None:
                hint(f"hint: the input is one JSON {what}")

    def _may_be_repeated(self, handled: int) -> bool:
        """Tell whether each of the first tasks had a key, so that to insert them again does no harm."""
        return self._first_plain is None or handled <= self._first_plain

    @property
    def _what_a_repeat_does(self) -> str:
        if self._new_by is not None:
            return "it inserts only lines that are new or changed"
        return "it inserts no line whose key is taken"

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
            later = self._files[number + 1 :]
            rest = self._rest(number, line) + self._formats[number].advice()
        then = f", and after it {' '.join(map(quoted, later[:LATER_SHOWN_MAX]))}" if later else ""
        if len(later) > LATER_SHOWN_MAX:
            then += f" and the {len(later) - LATER_SHOWN_MAX:,} behind them"
        if self._may_be_repeated(handled):
            return f"insert {rest}{then}; or repeat the command: {self._what_a_repeat_does}"
        again = f"the first {handled:,}" if self._key is None else "the lines without a key"
        return f"insert {rest}{then}; to repeat the command would insert {again} again"

    def _rest(self, number: int, line: int) -> str:
        """Say what a file has from a line on."""
        name, form = self._files[number], self._formats[number]
        command = form.from_line(number, line)
        can_be_read_again = name != "-" and not _is_pipe(name)
        if command == "" and (can_be_read_again or not line):
            return quoted(name)
        if command is None:
            of = "" if isinstance(form, GivenFormat) else f" of {quoted(name)}"
            return f"the {form.unit}s{of} from number {line:,} on"
        if not can_be_read_again:
            through = f", through '{command}'" if command else ""
            return f"the rest (a pipe cannot be read again: make its input once more{through})"
        return f"the rest, which '{command} {quoted(name)}' prints"

    def conclude_failure(self, failure: fsqueue.FsqueueError, count: int, handled: int | None) -> None:
        """Say what is in the queue after an error of the queue, and how to go on, unless the error says it all.

        `count`: how many tasks are new. `handled`: how many tasks from the beginning of the input are in the queue, or
        had a key that was taken; None if it cannot be told.
        """
        if not count and not handled:
            return
        if handled is None:
            them = "them" if self._key is None else "those without a key"
            complain(f"do not repeat the command: it would insert {them} again. The error says more")
            complain(f"{were_inserted(count)}, then this happened:")
            return
        more = "" if failure.is_exact else ", and some that came next may be in the queue, too"
        complain(self._how_to_go_on(handled, self._places.find(handled)))
        complain(f"{were_inserted(count)} from the beginning of the input{more}, then this happened:")
        failure.args = (str(failure).removesuffix(failure.advice).rstrip(), *failure.args[1:])

    def conclude(self, count: int) -> None:
        """Say what was left out, if anything was, and exit accordingly."""
        so_far, unit = were_inserted(count), self._form.unit
        if self.skipped > SKIPPED_SHOWN_MAX:
            complain(f"skipped: {self.skipped - SKIPPED_SHOWN_MAX:,} more {unit}s")
        if self._bad is not None:
            complain(f"{self.place} {self._bad}")
            before = f"{so_far}, from all the {unit}s before this one and none after it"
            if self._is_changed and self.tasks:
                complain(f"{so_far}, and may be of two versions of it: compare them with the file ('fsqueue ls')")
                if self._may_be_repeated(self.tasks):
                    complain(f"repeat the command: {self._what_a_repeat_does}")
                raise click.exceptions.Exit(self._bad_exit)
            complain(before if self.tasks else "nothing was inserted")
            complain(f"correct it and {self._how_to_go_on(self.tasks, (self._number, self._line))}")
            raise click.exceptions.Exit(self._bad_exit)
        if self._input.signal is not None and self._has_rest:
            complain(f"interrupted: {so_far}, up to {self._place(self._last)}")
            complain(self._how_to_go_on(self.tasks, (self._number, self._last + 1)))
            raise click.exceptions.Exit(128 + self._input.signal)
        if self.skipped:
            complain(f"{so_far}; {wording.counted(self.skipped, f'bad {unit}')} skipped")
            raise click.exceptions.Exit(1)


def _is_pipe(name: str) -> bool:
    """Tell whether a file, as one of `<(…)` in a shell, can be read once only."""
    try:
        return not stat.S_ISREG(os.stat(name).st_mode)
    except OSError:
        return False


def _key_of(payload: Any, field: str) -> str | None:
    """Return the key in a field of a payload, be it fit or not; None if it has no such field, or null in it."""
    value = payload.get(field) if type(payload) is dict else None
    return str(value) if type(value) is int else value
