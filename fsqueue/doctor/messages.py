"""What two parties tell each other, and what becomes of a note that is none of a doctor's.

Another user may be the other party, and write what he likes. So of a note only what has a place in its shape is taken,
within bounds: no text drives a terminal. One that lacks anything raises Nonsense, and the tests between two hosts end.
"""

from __future__ import annotations

from typing import Any

from fsqueue.doctor.verdicts import OK, UNFIT, UNTRIED, WARNING
from fsqueue.errors import StorageError

HOST_CHARS_MAX = 253
"""The longest name of a host (RFC 1035, section 2.3.4)."""
TEXT_CHARS_MAX, ITEMS_MAX = 10_000, 100
"""The longest other text (a mount's options can be long), and the most entries of a list."""
NUMBER_MAX = 1e18
"""More than any time in milliseconds, any size in bytes and any device's number."""

Body = dict[str, Any]

TEXT, NUMBER, NUMBER_OR_NONE = str, float, None
"""Shapes. Others: a whole number, up to which one counts; a tuple of words; a list of a shape; a dict of shapes."""
IDENTITY = {
    "host": TEXT,
    "boot": TEXT,
    "device": NUMBER,
    "mount": {
        "verdict": (OK, WARNING, UNFIT, UNTRIED),
        "seen": TEXT,
        "advice": TEXT,
        "figures": dict.fromkeys(("type", "point", "options", "source"), TEXT),
    },
}


class PartnerLost(StorageError):
    """The other party fell silent, or never came."""


class PartnerEnded(PartnerLost):
    """The other party has ended, and has removed its files."""

    def __init__(self) -> None:
        super().__init__("The doctor on the other host was ended.")


class Nonsense(PartnerLost):
    """The other party has written a note that no doctor writes."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"What the other party said makes no sense ({what}): it runs another version of fsqueue, or is no doctor."
        )


def say(text: str, most: int = TEXT_CHARS_MAX) -> str:
    """Return a text as it may be said to another party: printable, and not too long."""
    return "".join(char if char.isprintable() else "?" for char in text[:most])


def taken(said: Any, shape: Any, name: str = "all") -> Any:
    """Return what has a place in `shape` of what another party said. Nonsense if anything is missing or out of bounds.

    `name` says what it is, for that error.
    """
    if isinstance(shape, dict) and isinstance(said, dict):
        return {key: taken(said.get(key), inner, key) for key, inner in shape.items()}
    if isinstance(shape, list) and isinstance(said, list) and len(said) <= ITEMS_MAX:
        return [taken(one, shape[0], name) for one in said]
    if shape is TEXT:
        fits = isinstance(said, str) and len(said) <= TEXT_CHARS_MAX and said.isprintable()
    elif isinstance(shape, tuple):
        fits = said in shape
    elif isinstance(shape, int):
        fits = type(said) is int and 0 <= said <= shape
    elif shape in (NUMBER, NUMBER_OR_NONE):
        fits = said is shape or (type(said) in (int, float) and -NUMBER_MAX <= said <= NUMBER_MAX)  # a NaN is not
    else:
        fits = False
    if not fits:
        raise Nonsense(f"{name!r} is not what it should be")
    return said
