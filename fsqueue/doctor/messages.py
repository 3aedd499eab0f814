"""Check a message of the other party before anything is done with it.

Any user who may write in the meeting place can forge one. So each message is read field by field, with bounds for every
text, number and list. A message that makes no sense raises Nonsense, and the tests between two hosts end.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fsqueue.doctor.contests import NAMES, RACES, Took
from fsqueue.doctor.rendezvous import PartnerLost
from fsqueue.doctor.verdicts import OK, UNFIT, UNTRIED, WARNING, ProbeResult

HOST_CHARS_MAX = 253
"""The longest name of a host (RFC 1035, section 2.3.4)."""
TEXT_CHARS_MAX, WORD_CHARS_MAX = 10_000, 200
"""The longest sentence (a mount's options can be long), and the longest name of a probe, of a boot, of a figure."""
NUMBER_MAX = 1e18
"""More than any time in milliseconds, any size in bytes and any device's number."""
FINDINGS_MAX, FIGURES_MAX = 30, 50

Body = dict[str, Any]


class Nonsense(PartnerLost):
    """The other party has sent a message that no doctor sends."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"What the other party said makes no sense ({what}): it runs another version of fsqueue, or is no doctor."
        )


def say(text: str, most: int = TEXT_CHARS_MAX) -> str:
    """Return a text as it may be said to another party: printable, and not too long."""
    return "".join(char if char.isprintable() else "?" for char in text[:most])


def text(body: Body, key: str, most: int = TEXT_CHARS_MAX) -> str:
    """Return a text that drives no terminal."""
    found = body.get(key)
    if not isinstance(found, str) or len(found) > most or not found.isprintable():
        raise Nonsense(f"{key!r} is no text")
    return found


def number(body: Body, key: str, least: float = -NUMBER_MAX, most: float = NUMBER_MAX) -> float:
    """Return a number within bounds."""
    found = body.get(key)
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not least <= found <= most:
        raise Nonsense(f"{key!r} is no number from {least:g} to {most:g}")
    return found


def count(body: Body, key: str, most: int) -> int:
    """Return a whole number from 0 to `most`."""
    found = number(body, key, 0, most)
    if not isinstance(found, int):
        raise Nonsense(f"{key!r} is no whole number")
    return found


def inner(body: Body, key: str) -> Body:
    """Return an object within another."""
    found = body.get(key)
    if not isinstance(found, dict):
        raise Nonsense(f"{key!r} is no object")
    return found


def host(body: Body) -> str:
    """Return the name of a host."""
    found = text(body, "host", HOST_CHARS_MAX)
    if not found:
        raise Nonsense("'host' is empty")
    return found


def finding(body: Body) -> ProbeResult:
    """Return a finding."""
    verdict = body.get("verdict")
    if verdict not in (OK, WARNING, UNFIT, UNTRIED):
        raise Nonsense("a finding has no verdict")
    figures = inner(body, "figures")
    if len(figures) > FIGURES_MAX:
        raise Nonsense("a finding has too many figures")
    for name, figure in figures.items():
        text({"figure": name}, "figure", WORD_CHARS_MAX)
        if isinstance(figure, str):
            text(figures, name)
        elif figure is not None:
            number(figures, name)
    return ProbeResult(text(body, "probe", WORD_CHARS_MAX), verdict, text(body, "seen"), text(body, "advice"), figures)


def findings(body: Body) -> list[ProbeResult]:
    """Return what the party that leads found."""
    found = body.get("findings")
    if not isinstance(found, list) or len(found) > FINDINGS_MAX or not all(isinstance(one, dict) for one in found):
        raise Nonsense("'findings' is no list of findings")
    return [finding(one) for one in found]


def took(body: Body, name: str, rounds_max: int) -> Took:
    """Return how a party called `name` locked and appended. Its holds count by the ledger alone, and are left out."""
    said = inner(body, "took")
    return Took(
        name,
        count(said, "rounds", rounds_max),
        timeouts=count(said, "timeouts", rounds_max),
        error=text(said, "error"),
    )


def won(body: Body) -> dict[str, list[int]]:
    """Return which names a party won, by kind of race."""
    said = inner(body, "won")
    for kind in RACES:
        numbers = said.get(kind)
        if not isinstance(numbers, list) or len(numbers) > NAMES:
            raise Nonsense(f"{kind!r} is no list of numbers")
        for at, _ in enumerate(numbers):
            count({kind: numbers[at]}, kind, NAMES - 1)
    return {kind: said[kind] for kind in RACES}


def ages(body: Body, names: Collection[str], most_s: float) -> dict[str, float | None]:
    """Return after how many seconds each change was seen; None: not in time."""
    said = inner(body, "ages")
    return {name: None if said.get(name, 0) is None else number(said, name, 0, most_s) for name in names}
