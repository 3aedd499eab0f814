"""Everything that the command line prints, on standard output and standard error (docs/sharing.md, "What is printed").

File names, host names, reasons and payloads that others wrote may hold what drives a terminal: move the cursor, set a
title, answer as if the user had typed. All of it is escaped here. tests/house/test_printing.py finds what goes past.
"""

from __future__ import annotations

import _thread
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, TypeVar

import click

if TYPE_CHECKING:
    import logging

    from rich.console import Console, RenderableType

T = TypeVar("T")
ERROR, CAUTION, GOOD = "red", "yellow", "green"
"""The colours of what is wrong, of what needs a look, and of what is right."""

_DRIVING = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, what turns the direction of text, and bytes that are no text (as surrogates)."""
_DRIVING_WITHIN_LINES = re.compile(_DRIVING.pattern.replace(r"\x00-\x1f", r"\x00-\x09\x0b-\x1f"))
"""Like the pattern above, without newlines."""
COLUMNS, ROWS = 80, 24
"""The size of a terminal that does not tell."""
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def plain(text: str) -> str:
    """Return `text` on one line with what drives a terminal escaped, as Python writes it: \\x1b, \\n, \\u202e."""
    return _DRIVING.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return repr(match[0])[1:-1]


# -- lines ------------------------------------------------------------------------------------------------


def say(*lines: object) -> None:
    """Print lines on standard output. A line stays one line, whatever is in it."""
    for line in lines or ("",):
        _print(plain(str(line)))


def say_in_pages(text: str) -> None:
    """Print lines that may be more than a screen: on a terminal through the user's pager, if there is one."""
    if not is_screen(sys.stdout):
        say(*text.split("\n"))
        return
    os.environ.setdefault("LESS", "FRX")  # end at once if it is one screen, as git has it
    with unguarded():
        click.echo_via_pager(_DRIVING_WITHIN_LINES.sub(_escaped, text))


def _print(text: str) -> None:
    """Print a line, which is harmless, on standard output; if that fails and `done` is on, on standard error."""
    done_now = _Done.now
    if done_now is None or not done_now.is_lost:
        try:
            click.echo(text)
            return
        except OSError as error:
            if done_now is None:
                raise
            done_now.lose(error)
    if not done_now.is_unread:
        hint(text)


class _Done:
    """Know what became of the report of a command whose work is done."""

    now: _Done | None = None

    def __init__(self, meta: dict[str, Any]) -> None:
        self._meta = meta
        self.is_lost = self.is_unread = False
        """Say whether standard output takes nothing, and whether that is so since its reader has gone."""

    def lose(self, error: OSError) -> None:
        """Note that standard output has failed, and say so."""
        from fsqueue.errors import FULL, StorageFull

        self.is_lost, self.is_unread = True, isinstance(error, BrokenPipeError)
        silence_stdout()
        if self.is_unread:
            self._meta[_UNPRINTED] = GONE_EXIT
            return
        self._meta[_UNPRINTED] = StorageFull.exit_code if error.errno in FULL else 1
        complain(
            f"standard output cannot be written ({error.strerror or error}). What was done is done, so do not repeat "
            "the command for that. This was to be printed:"
        )


_UNPRINTED = "unprinted"
GONE_EXIT = 141
"""The exit code where the reader of the output has gone, as a shell has it: 128 + SIGPIPE."""


@contextmanager
def done() -> Iterator[None]:
    """Report in the meantime what a command has done: its decisive step is over.

    An error of standard output then must not advise to repeat the command, which would do it twice. So it raises
    nothing: it says that the rest is done, and prints the lines on standard error. The command goes on, and
    `unprinted_exit` gives its exit code. Of a reader that has gone nothing is said, as elsewhere.
    """
    before, _Done.now = _Done.now, _Done(click.get_current_context().meta)
    try:
        yield
    finally:
        _Done.now = before


def print_done(as_json: bool, value: Any, *lines: object) -> None:
    """Print what a command has done, as `done` has it: as JSON, or else in lines, if there are any."""
    with done():
        if as_json:
            print_json(value)
        elif lines:
            say(*lines)


def unprinted_exit(ctx: click.Context) -> int:
    """Return the exit code for what `done` could not print; 0 if there was nothing."""
    code: int = ctx.meta.get(_UNPRINTED, 0)
    return code


class Coloured(NamedTuple):
    """A text, and the colour that it has on a terminal with colours."""

    text: str
    colour: str


def say_in_colours(*pieces: str | Coloured) -> None:
    """Print one line on standard output, put together from texts with and without a colour."""
    text = "".join(_shown(piece, sys.stdout) for piece in pieces)
    click.echo(text, file=_bare(sys.stdout), color=True)


def _shown(piece: str | Coloured, stream: Any) -> str:
    """Return a piece as it is printed: what drives a terminal is escaped before our own colour is put around it."""
    if isinstance(piece, str):
        return plain(piece)
    return click.style(plain(piece.text), fg=piece.colour) if has_colours(stream) else plain(piece.text)


def has_colours(stream: Any) -> bool:
    """Return whether a stream is a terminal whose user has not set NO_COLOR (https://no-color.org)."""
    return is_screen(stream) and not os.environ.get("NO_COLOR")


def complain(message: str) -> None:
    """Print a line on standard error; ignore that it cannot be written."""
    try:
        name = _shown(Coloured("fsqueue:", ERROR), sys.stderr)
        click.echo(f"{name} {plain(message)}", file=_bare(sys.stderr), color=True)
    except OSError:
        pass


def hint(*lines: str) -> None:
    """Print lines on standard error, without our name before them; ignore that they cannot be written."""
    try:
        for line in lines:
            click.echo(plain(line), err=True)
    except OSError:
        pass


def or_hint(things: Iterable[T], message: str) -> Iterator[T]:
    """Yield things; if there are none, print a line on standard error, so that an empty list does not look broken."""
    is_empty = True
    for thing in things:
        is_empty = False
        yield thing
    if is_empty:
        hint(message)


def say_at_once(*messages: str) -> None:
    """Print lines on standard error from any thread, without waiting: for when nothing else may work any more.

    Another thread may stand still while it prints, and standard error may be a file on a server that does not answer.
    """
    lines = "".join(f"fsqueue: {plain(message)}\n" for message in messages)
    _thread.start_new_thread(_write_at_once, (lines.encode(),))


def _write_at_once(lines: bytes) -> None:
    with suppress(OSError):
        os.write(2, lines)


def can_show(text: str, encoding: str | None) -> bool:
    """Return whether an encoding, ASCII if it is not known, has all characters of a text."""
    try:
        text.encode(encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def print_table(rows: Iterable[tuple[str, ...]], widths: tuple[int, ...], heading: tuple[str, ...] = ()) -> None:
    """Print rows as they come: see `table_lines`."""
    for line in table_lines(rows, widths, heading):
        say(line)


def table_lines(
    rows: Iterable[tuple[str, ...]], widths: tuple[int, ...], heading: tuple[str, ...] = ()
) -> Iterator[str]:
    """Yield rows as they come, in columns of the given least widths (the last is open); the heading before the first.

    Without rows there is no heading.
    """
    for row in rows:
        if heading:
            yield from table_lines([heading], widths)
            heading = ()
        cells = [plain(cell) for cell in row]
        filled = [cell.ljust(width) for cell, width in zip(cells, widths, strict=False)]
        yield "  ".join([*filled, *cells[len(widths) :]]).rstrip()


def print_json(value: Any, err: bool = False) -> None:
    """Print one JSON value on a line of its own: UTF-8, and escaped also where JSON would not ask for it."""
    text = json_text(value)
    stream = sys.stderr if err else sys.stdout
    if (getattr(stream, "encoding", None) or "").lower().replace("-", "") != "utf8":
        text = _NOT_ASCII.sub(_json_escaped, text)
    if err:
        click.echo(text, err=True)
    else:
        _print(text)


def json_text(value: Any) -> str:
    """Return a value as JSON. U+007F to U+009F and what turns the direction of text become \\uXXXX: still JSON."""
    import orjson

    try:
        data = orjson.dumps(value, default=_as_json)
    except TypeError:  # text that is no Unicode, such as a path of any bytes
        data = orjson.dumps(_as_unicode(value), default=_as_json)
    return _DRIVING.sub(_json_escaped, data.decode())


def _json_escaped(match: re.Match[str]) -> str:
    import json

    return "\\u007f" if match[0] == "\x7f" else json.dumps(match[0])[1:-1]


def _as_json(value: Any) -> Any:
    """Return what JSON has no form for as text."""
    return _as_unicode(str(value))


def _as_unicode(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_as_unicode(key): _as_unicode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_unicode(item) for item in value]
    return value


# -- questions --------------------------------------------------------------------------------------------


def ask(question: str) -> bool:
    """Ask on standard error, and return whether the answer is yes. Ctrl-C raises KeyboardInterrupt, as anywhere.

    (`click.confirm` takes it for "no answer", which is another exit code.)
    """
    while True:
        click.echo(f"{plain(question)} [y/N]: ", err=True, nl=False)
        try:
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            click.echo(err=True)
            raise
        except UnicodeDecodeError:
            line = "?"
        if not line:
            click.echo(err=True)
        answer = line.strip().lower()
        if answer in ("y", "yes", "n", "no", ""):
            return answer in ("y", "yes")
        complain("answer y or n")


# -- terminals --------------------------------------------------------------------------------------------


class Canvas:
    """A terminal on which rich draws one thing over the other. It changes nothing there that would have to be undone.

    (`rich.live.Live` hides the cursor, and a killed process would leave it hidden.)
    """

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console, ConsoleDimensions
        from rich.live_render import LiveRender

        self._fd = stream.fileno()
        self._size = _size_of(self._fd)
        self._console = Console(
            file=_bare(stream),
            color_system="standard" if has_colours(stream) else None,
            markup=False,
            emoji=False,
            highlight=False,
            force_terminal=True,
        )
        self._new = partial(LiveRender, "", vertical_overflow="crop")
        self._drawn = self._new()
        self._dimensions = ConsoleDimensions

    def draw(self, picture: Callable[[Console], RenderableType]) -> None:
        """Draw the text that `picture` returns for the console's size over the text that was drawn before."""
        size, before = _size_of(self._fd), self._size
        self._size = size
        if size != before and self._drawn.last_render_height:
            self._console.clear()  # the terminal may have broken the lines anew: begin at the top
            self._drawn = self._new()
        self._console.size = self._dimensions(max(1, size.columns - 1), size.lines)  # some begin a line in the last
        self._drawn.set_renderable(picture(self._console))
        self._console.print(self._drawn.position_cursor(), self._drawn, end="")

    def close(self) -> None:
        """Leave what was drawn, and go to the next line."""
        if self._drawn.last_render_height:
            self._drawn = self._new()
            self._console.line()

    def clear(self) -> None:
        """Take away what was drawn."""
        if self._drawn.last_render_height:
            self._console.print(self._drawn.restore_cursor(), end="")
            self._drawn = self._new()


_WIPE = "\r\x1b[K"
"""Go to the beginning of the line, and clear it."""


class Footer:
    """A line that stays below all else that is printed on the terminal of standard error. Thread-safe.

    It is drawn only where a line begins, so it never cuts what commands print. A process in the background draws
    nothing: the terminal is another job's then.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._stream = _bare(sys.stderr)
        self._is_terminal = {1: os.isatty(1), 2: True}
        self._line = ""
        self._is_drawn, self._is_at_start = False, True

    def draw(self, line: Callable[[int, str], str]) -> None:
        """Show another line, of at most so many columns and in the encoding that `line` is called with."""
        columns = _size_of(2).columns - 1  # in the last one some terminals begin a line
        text = plain(line(columns, self._stream.encoding))
        with self._mutex:
            self._line = text
            self._paint()

    def pass_on(self, ours: int, data: bytes) -> None:
        """Write what commands print, on standard output (1) or error (2). It is theirs: it is not escaped."""
        if not self._is_terminal[ours]:
            _write(ours, data)
            return
        with self._mutex:
            # In one write: between two, another `run` on this terminal could draw its bar, and the data go on there.
            wipe = _WIPE.encode() if self._is_drawn else b""
            self._is_drawn = False
            _write(ours, wipe + data)
            self._is_at_start = data.endswith(b"\n")
            self._paint()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Have a line printed in the meantime, above."""
        with self._mutex:
            self._wipe()
            self._begin_line()
            yield
            self._paint()

    def close(self) -> None:
        """Take the line away."""
        with self._mutex:
            self._wipe()
            self._begin_line()
            self._line = ""

    def _begin_line(self) -> None:
        if not self._is_at_start:
            self._is_at_start = True
            self._put("\r\n")

    def _paint(self) -> None:
        if self._line and self._is_at_start and _is_in_foreground():
            self._is_drawn = True
            self._put(f"\r{self._line}\x1b[K")

    def _wipe(self) -> None:
        if self._is_drawn:
            self._is_drawn = False
            self._put(_WIPE)

    def _put(self, text: str) -> None:
        try:
            _write(2, text.encode(self._stream.encoding, "backslashreplace"))
        except OSError:
            pass  # the terminal is gone: no task must suffer for it


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _size_of(fd: int) -> os.terminal_size:
    try:
        columns, rows = os.get_terminal_size(fd)
    except OSError:
        columns, rows = 0, 0
    return os.terminal_size((columns or COLUMNS, rows or ROWS))


def _is_in_foreground() -> bool:
    try:
        return os.tcgetpgrp(2) == os.getpgrp()
    except OSError:
        return True  # it is not the terminal that started this process


def is_screen(stream: Any) -> bool:
    """Return whether a stream is a terminal on which lines can be drawn over: TERM names one that is not dumb."""
    return bool(stream.isatty()) and os.environ.get("TERM", "") not in ("", "dumb")


def passing(text: str) -> None:
    """Show on standard error, if it is a screen, what the command is doing, over the line that was shown before."""
    if is_screen(sys.stderr):
        stream = _bare(sys.stderr)
        stream.write(f"\r\x1b[K{plain(text)}")
        stream.flush()


class Bar:
    """Show on a terminal how far a command has come, if it takes longer than `after_s`.

    `unit`: what is counted, as it stands behind a number. `is_scaled`: large numbers are shortened, as in 1.2M. Nothing
    that others wrote belongs into any text.
    """

    def __init__(self, doing: str, unit: str = " shards", after_s: float = 0.5, is_scaled: bool = False) -> None:
        self._how: dict[str, Any] = {
            "desc": doing,
            "unit": unit,
            "unit_scale": is_scaled,
            "leave": False,
            "miniters": 1,
        }
        self._due = time.monotonic() + after_s if is_screen(sys.stderr) else math.inf
        self._bar: Any = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def show(self, done: int, steps: int | None, beside: str = "") -> None:
        """Show how many of the steps are done, and a text beside. None: it is not known how many steps there are."""
        if self._bar is None and time.monotonic() >= self._due:
            from tqdm import tqdm

            self._bar = tqdm(file=_bare(sys.stderr), total=steps, **self._how)
        if self._bar is not None:
            self._bar.set_postfix_str(beside, refresh=False)
            self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()


# -- what goes past the above -----------------------------------------------------------------------------


class _Guarded:
    """A text stream, as far as what writes to it without our knowing needs one: click's own messages, tracebacks."""

    def __init__(self, stream: TextIO) -> None:
        self.bare = stream

    def write(self, text: str) -> int:
        self.bare.write(_DRIVING_WITHIN_LINES.sub(_escaped, text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name in ("buffer", "detach"):  # the way round
            raise AttributeError(name)
        return getattr(self.bare, name)


def _bare(stream: Any) -> Any:
    return stream.bare if isinstance(stream, _Guarded) else stream


@contextmanager
def guarded() -> Iterator[None]:
    """Escape everything that this process writes to its standard streams meanwhile, also what libraries write.

    Newlines pass. What is no text in the stream's encoding is escaped, too.
    """
    before = sys.stdout, sys.stderr
    for stream in before:  # a file name may hold bytes that are no text: show them, don't stumble
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = _Guarded(before[0]), _Guarded(before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


@contextmanager
def unguarded() -> Iterator[None]:
    """End that for a while: for the code of users that runs in this process, and prints what it likes."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_bare, before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


@contextmanager
def logging_escaped() -> Iterator[None]:
    """Escape what the queue logs meanwhile, and put our name before it, as `complain` does, unless the user's functions
    have set up where logs go. The names in it come from directories of other users.
    """
    import logging

    logger = logging.getLogger("fsqueue")
    logger.addFilter(_escape_record)
    try:
        yield
    finally:
        logger.removeFilter(_escape_record)


def _escape_record(record: logging.LogRecord) -> bool:
    import logging

    ours = "" if logging.getLogger(record.name).hasHandlers() else "fsqueue: "
    record.msg, record.args = ours + plain(record.getMessage()), None
    return True


def silence_stdout() -> None:
    """Drop what standard output still buffers and cannot write: the interpreter would try again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (OSError, ValueError):
            pass


# -- shells -----------------------------------------------------------------------------------------------


def quoted(word: str) -> str:
    """Return a word as bash reads it, on one line of printable characters."""
    import shlex

    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(_escaped_for_bash(character) for character in word) + "'"


def _escaped_for_bash(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    return "".join(f"\\{byte:03o}" for byte in os.fsencode(character))
