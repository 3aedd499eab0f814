"""Words of messages."""

from __future__ import annotations

import re

import orjson

_WHOLE = re.compile(r"-?\d{1,30}", re.ASCII)
"""Match a priority that is read as a whole number. Any other is a text."""


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 task", "2,000 tasks". `plural`: if it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


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
