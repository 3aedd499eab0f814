"""Types of options: durations, limits, priorities."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from fsqueue.format import wording

if TYPE_CHECKING:
    from click import ParamType as Type
else:

    class Type(click.ParamType):
        """A type of parameters that names what it converts into: click's own is generic in its new versions only."""

        def __class_getitem__(cls, _: Any) -> type[Type]:
            return cls


_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_PLAIN = rf"{_NUMBER}(?:[eE][+-]?\d+)?"
_CLOCK = rf"(?:(?P<d>\d+)-)?(?:(?P<h>\d+):)?(?P<m>\d+):(?P<s>{_NUMBER})"
_UNITS = {"w": 604_800.0, "d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PARTS = (
    rf"(?:(?P<w>{_NUMBER})\s*w)?\s*(?:(?P<d>{_NUMBER})\s*d)?\s*(?:(?P<h>{_NUMBER})\s*h)?\s*"
    rf"(?:(?P<m>{_NUMBER})\s*m(?:in)?)?\s*(?:(?P<s>{_NUMBER})\s*s)?\s*(?:(?P<ms>{_NUMBER})\s*ms)?"
)


def seconds_in(text: str) -> float | None:
    """Return the seconds of a duration: `90`, `1.5`, `5m`, `1h30m`, `1:00:00`, `2-12:00:00`. None for other text.

    A plain number is seconds; `m:ss` and `h:mm:ss` are read as Slurm and most clocks do.
    """
    text = text.strip()
    if re.fullmatch(_PLAIN, text, re.ASCII):
        total = float(text)
    elif clock := re.fullmatch(_CLOCK, text, re.ASCII):
        days, hours, minutes, seconds = (float(clock[part] or 0) for part in "dhms")
        if seconds >= 60 or (clock["h"] and minutes >= 60) or (clock["d"] and (not clock["h"] or hours >= 24)):
            return None
        total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    elif (parts := re.fullmatch(_PARTS, text, re.ASCII)) and any(parts.groups()):
        total = sum(float(parts[unit]) * length for unit, length in _UNITS.items() if parts[unit])
    else:
        return None
    return total if math.isfinite(total) else None


class Duration(Type[float]):
    """Convert a duration, such as `90`, `5m` or `1:00:00`, into seconds from 0 on."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        seconds = value if isinstance(value, (int, float)) else seconds_in(value)
        if seconds is None:
            self.fail(f"{value!r} is no duration. Write seconds (90), units (5m, 1h30m) or a clock (1:00:00).")
        return float(seconds)


DURATION = Duration()


class Moment(Type[float]):
    """Convert a date with a time, in ISO 8601, or a number of Unix seconds, into Unix seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the Unix seconds. A time without a zone is local."""
        if isinstance(value, (int, float)):
            return float(value)
        try:
            number = re.fullmatch(_NUMBER, value.strip(), re.ASCII)
            found = float(number[0]) if number else datetime.fromisoformat(value.strip()).timestamp()
        except (ValueError, OverflowError, OSError):
            found = -1.0
        if not 0 <= found < math.inf:
            self.fail(f"{value!r} is no time. Write 2026-12-01T18:00 (local), 2026-12-01T18:00Z, or Unix seconds.")
        return found


MOMENT = Moment()


_SIZE = rf"(?P<number>{_NUMBER})\s*(?:(?P<unit>[kmgt])(?:i?b)?|b)?"


class Size(Type[int]):
    """Convert a size in memory, such as `500M`, `2GiB` or `1.5g`, into bytes from 1 on. K is 1024, as in Slurm."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(_SIZE, value.strip(), re.IGNORECASE | re.ASCII)
        size = (
            0
            if found is None
            else round(float(found["number"]) * 1024 ** " kmgt".index((found["unit"] or " ").lower()))
        )
        if size < 1:
            self.fail(f"{value!r} is no size. Write bytes (2000000000), or units of 1024: 500M, 2G, 1.5GiB.")
        return size


SIZE = Size()


class NumberOr(Type[int | str]):
    """Convert a whole number from `least` on, or the one word that stands for "no limit"."""

    name = "number"

    def __init__(self, least: int, of: str, word: str) -> None:
        self.least, self.of, self.word = least, of, word

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Return the number, or the word."""
        if value == self.word or isinstance(value, int):
            return value  # type: ignore[no-any-return]
        if not (value.isascii() and value.isdecimal()) or int(value) < self.least:
            self.fail(f"{value!r} is neither a whole number {self.of} nor {self.word!r}.")
        return int(value)


def limit(value: int | str) -> int | None:
    """Return the limit that a value of NumberOr stands for, as queues have it: None for no limit."""
    return None if isinstance(value, str) else value


ATTEMPTS = NumberOr(1, "from 1", "none")
KEPT_PAYLOAD = NumberOr(0, "of bytes", "all")


class PriorityType(Type[str | int]):
    """Convert a priority: a whole number, or any other text. A text that looks like a number is in double quotes."""

    name = "priority"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        """Return the number, or the text."""
        if not isinstance(value, str):
            return int(value)
        if not value:
            self.fail("The priority is empty. Is a variable of the shell not set? '\"\"' is the empty text.")
        given = wording.priority_of(value)
        if given is None:
            self.fail(f"{value} is no priority. A text that begins with a double quote is JSON: '\"5\"' is the text 5.")
        return given


PRIORITY = PriorityType()


def takes_value(command: click.Command) -> dict[str, bool]:
    """Return the names of a command's options, and whether each takes a value."""
    return {
        name: isinstance(option, click.Option) and not option.is_flag
        for option in command.params
        for name in option.opts
    }


def at_argument(command: click.Command, words: Sequence[str], number: int) -> int | None:
    """Return the index of the argument of that number, from 0 on, among words with options; None if there are less."""
    takes = takes_value(command)
    is_value = False
    for at, word in enumerate(words):
        if is_value:
            is_value = False
        elif word.startswith("-") and word != "-":
            name = word.partition("=")[0] if word.startswith("--") else word[:2]
            is_value = word == name and takes.get(name, False)
        elif number == 0:
            return at
        else:
            number -= 1
    return None


class OneScreen(click.Command):
    """A command whose `--help` is one screen, since the whole is longer (`fsqueue help COMMAND`)."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from . import short_help

        short_help.write(short_help.SHORT[self.name or ""], self, ctx, formatter)


class AfterDashes(OneScreen):
    """A command line in which everything after the first `--` is another one, `ctx.meta["command"]`.

    `only_with`: an option without which `--` means what it means elsewhere.
    """

    usage: tuple[str, ...] = ("[OPTIONS]", "Q...", "[-- COMMAND...]")
    only_with = ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["typed"] = list(args)
        if "--" in args:
            at = args.index("--")
            if not self.only_with or self.only_with in args[:at]:
                args, ctx.meta["command"] = args[:at], args[at + 1 :]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return list(self.usage)
