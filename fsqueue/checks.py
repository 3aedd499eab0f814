"""Assertions of the invariants of docs/design.md, section 2, where they can be seen (docs/testing.md, "Invariants").

They are on if FSQUEUE_CHECK is set when this module is imported, as it is in all tests. Each place asks `if CHECK:`
first, so that nothing is evaluated without the switch. None of them makes a system call.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

CHECK: Final = os.environ.get("FSQUEUE_CHECK", "0") not in ("", "0")
"""Whether the invariants are checked."""

INVARIANTS = {
    1: "no loss",
    2: "one holder",
    3: "fencing",
    4: "all or nothing",
    5: "hints are never late",
    6: "counts add up",
    7: "recirculation",
    8: "bounded",
}
"""The numbered invariants of the design."""


class InvariantBroken(AssertionError):
    """An invariant does not hold: fsqueue itself is wrong, or another program has changed its files.

    The critical section is left as if the process had died there. So what was appended counts, and the next process
    goes on from that.
    """


def hold(number: int, is_so: bool, what: str) -> None:
    """Raise InvariantBroken unless an invariant is seen to hold. `what`: what contradicts it."""
    if not is_so:
        raise InvariantBroken(
            f"Invariant {number} ({INVARIANTS[number]}) does not hold: {what}. Another program has changed files of "
            "the queue, or this is an error in fsqueue. Stop its processes, keep a copy of the queue's directory, and "
            "report this with it; then run 'fsqueue fsck'."
        )


def refuse(broken: Iterable[tuple[int, str]], where: str) -> None:
    """Raise InvariantBroken for the first invariant that was found broken. `where`: in what, and when."""
    for number, what in broken:
        hold(number, False, f"{where}, {what}")
