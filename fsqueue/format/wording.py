"""Words of messages."""

from __future__ import annotations

import re

import orjson

_WHOLE = re.compile(r"-?\d{1,30}", re.ASCII)
"""Match a priority that is read as a whole number. Any other is a text."""


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 task", "2,000 tasks". `plural`: if it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """Return a duration in about three digits: `12 ms`, `3.42 s`, `5 min 07 s`, `31 min`, `2 h 05 min`, `3 d 4 h`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms" if seconds > 0 else "0 s"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.3g} s"
    if whole < 600:
        return _in_two(whole, 60, "min", "s")
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return _in_two(minutes, 60, "h", "min") if minutes >= 60 else f"{minutes} min"
    return _in_two(round(seconds / 3600), 24, "d", "h")


def _in_two(count: int, size: int, large: str, small: str) -> str:
    """Return a number of small units, of which `size` make a large one, as `5 min 07 s`, or `5 min`."""
    whole, rest = divmod(count, size)
    digits = 1 if large == "d" else 2
    return f"{whole:,} {large}" + (f" {rest:0{digits}} {small}" if rest else "")


def priority_text(given: str | int) -> str:
    """Return a priority as people read it, and as `priority_of` does: a text that would be taken for something else, or
    for none, is in double quotes, as JSON.
    """
    if isinstance(given, str) and (not given or _WHOLE.fullmatch(given) or given.startswith('"')):
        return orjson.dumps(given).decode()
    return str(given)


def priority_of(text: str) -> str | int | None:
    """Return the priority that a text stands for. None: it begins with a double quote, and is no JSON."""
    if _WHOLE.fullmatch(text):
        return int(text)
    if not text.startswith('"'):
        return text
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, str) else None
