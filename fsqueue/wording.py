"""Words of messages."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 task", "2,000 tasks". `plural`: if it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
