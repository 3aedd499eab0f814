"""What two parties tell each other: check a note of the other one before anything is done with it.

Another user may be the other party, and write what he likes. So a note is first checked as a whole: no text drives a
terminal, nothing is larger than what doctors write. Then it is read field by field. One that makes no sense raises
Nonsense, and the tests between two hosts end.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

from fsqueue.doctor.contests import NAMES, RACES, Sums, Took
from fsqueue.doctor.verdicts import OK, UNFIT, UNTRIED, WARNING, ProbeResult
from fsqueue.errors import StorageError

HOST_CHARS_MAX = 253
"""The longest name of a host (RFC 1035, section 2.3.4)."""
TEXT_CHARS_MAX, ITEMS_MAX, DEPTH_MAX = 10_000, 100, 4
"""The longest text (a mount's options can be long), the most values in a list or an object, and how deep they nest."""
NUMBER_MAX = 1e18
"""More than any time in milliseconds, any size in bytes and any device's number."""

Body = dict[str, Any]
T = TypeVar("T")


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


def checked(body: Body) -> Body:
    """Return a note, if no part of it drives a terminal or is larger than what doctors write."""
    if not _fits(body, DEPTH_MAX):
        raise Nonsense("a part of it is out of bounds")
    return body


def _fits(value: Any, depth: int) -> bool:
    if isinstance(value, str):
        return len(value) <= TEXT_CHARS_MAX and value.isprintable()
    if isinstance(value, (int, float)):
        return -NUMBER_MAX <= value <= NUMBER_MAX  # a NaN is not
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return depth > 0 and len(value) <= ITEMS_MAX and all(_fits(one, depth - 1) for one in value)
    return value is None


def field(body: Body, key: str, kind: type[T]) -> T:
    """Return a field of a note, which must be of a kind."""
    found = body.get(key)
    if not isinstance(found, kind) or isinstance(found, bool):
        raise Nonsense(f"{key!r} is no {kind.__name__}")
    return found


def number(body: Body, key: str) -> float:
    """Return a number."""
    return float(field(body, key, int) if isinstance(body.get(key), int) else field(body, key, float))


def count(body: Body, key: str, most: int) -> int:
    """Return a whole number from 0 to `most`."""
    found = field(body, key, int)
    if not 0 <= found <= most:
        raise Nonsense(f"{key!r} is not from 0 to {most}")
    return found


def host(body: Body) -> str:
    """Return the name of a host."""
    found = field(body, "host", str)
    if not 0 < len(found) <= HOST_CHARS_MAX:
        raise Nonsense("'host' is no name of one")
    return found


def mount(body: Body) -> ProbeResult:
    """Return what the other party found out about its mount."""
    said = field(body, "mount", dict)
    if said.get("verdict") not in (OK, WARNING, UNFIT, UNTRIED):
        raise Nonsense("a finding has no verdict")
    seen, advice, figures = field(said, "seen", str), field(said, "advice", str), field(said, "figures", dict)
    return ProbeResult(f"mount of {host(body)}", said["verdict"], seen, advice, figures)


def took(body: Body, name: str, rounds_max: int) -> Took:
    """Return how a party called `name` locked and appended. Its holds count by the ledger alone, and are left out."""
    rounds, timeouts = (count(body, key, rounds_max) for key in ("rounds", "timeouts"))
    return Took(name, rounds, timeouts=timeouts, error=field(body, "error", str))


def sums(body: Body, rounds_max: int) -> Sums:
    """Return what the ledger shows a party. `rounds_max`: of all parties together."""
    said = field(body, "sums", dict)
    return Sums(*(count(said, name, 2 * rounds_max) for name in ("overlaps", "lost", "number")))


def won(body: Body) -> dict[str, list[int]]:
    """Return which names a party won, by kind of race."""
    said = field(body, "won", dict)
    return {kind: [count({kind: one}, kind, NAMES - 1) for one in field(said, kind, list)] for kind in RACES}


def seen(body: Body, names: Collection[str]) -> dict[str, float | None]:
    """Return when a party saw each change, in milliseconds of its own clock; None: not in time."""
    said = field(body, "seen_ms", dict)
    return {name: None if said.get(name, 0) is None else number(said, name) for name in names}
