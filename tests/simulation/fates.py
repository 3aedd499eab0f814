"""What may become of a verb at one of its calls: what `exhaustive` tries everywhere."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from tests.simulation.faults import DAY_S, EXCLUSIVE, NAMES, WRITES, clean_up, is_clean, locks_of, lose_locks, torn
from tests.simulation.handles import Crash
from tests.simulation.kernel import INTERRUPTED, Process
from tests.simulation.nfs import NfsProcess
from tests.simulation.stories import LEASE_S, Story


class Skip(BaseException):
    """This call is no place for this fate."""


Call = tuple[str, tuple[Any, ...]]


class StruckStory(Story):
    """A story in which a fate comes at one call of one process."""

    again = 0
    """At so many later calls of the process the fate comes again."""

    def strike(self, fate: str, process: Process, call: Call, meanwhile: Callable[[], None]) -> None:
        """Let a fate come at a call that a process is about to make, and others act before it goes on.

        Raise what the call raises then; `Crash` if the process is dead; `Skip` if the fate has no place at the call.
        """
        if not is_place(fate, call):
            raise Skip
        failure: BaseException | None = None
        try:
            FATES[fate](self, process, call)
        except (OSError, KeyboardInterrupt) as error:
            failure = error
        if fate not in DELAYS:
            self.world.fault(f"{fate} at {call[0]}")
        meanwhile()
        if failure is not None:
            raise failure
        if fate in AFTERWARDS:
            AFTERWARDS[fate](self, process, call)
        if process.dead:
            raise Crash


Fate = Callable[[StruckStory, Process, Call], None]


def on(story: StruckStory, process: Process, call: Call) -> None:
    """It goes on when the other has done."""


def late(story: StruckStory, process: Process, call: Call) -> None:
    """It stands still until its leases have run out."""
    story.world.now += LEASE_S + 2


def days(story: StruckStory, process: Process, call: Call) -> None:
    """It stands still until what it has staged looks abandoned."""
    story.world.now += 2 * DAY_S


def a_little_later(story: StruckStory, process: Process, call: Call) -> None:
    """So much that the other reads `queue.jsonl` again."""
    story.world.now += 2


def away(story: StruckStory, process: Process, call: Call) -> None:
    """Its host is out of touch for days, as a suspended laptop is: its locks are gone when it goes on."""
    lose_locks(story, process)
    days(story, process, call)


def cleaned(story: StruckStory, process: Process, call: Call) -> None:
    """A cleaner of scratch space removes the queue's empty directories."""
    if not clean_up(story):
        raise Skip


def interrupted(story: StruckStory, process: Process, call: Call) -> None:
    """Ctrl-C before the call; the process lives on."""
    raise KeyboardInterrupt


def interrupted_after(story: StruckStory, process: Process, call: Call) -> None:
    """Ctrl-C after the call, before its caller has the result."""
    process.answer = INTERRUPTED


def killed(story: StruckStory, process: Process, call: Call) -> None:
    process.kill()


def killed_a_while_ago(story: StruckStory, process: Process, call: Call) -> None:
    a_little_later(story, process, call)
    process.kill()


def cut_short(story: StruckStory, process: Process, call: Call) -> None:
    """It is killed in the middle of a write."""
    args = call[1]
    opened, file = process._file(args[0])
    half = len(args[1]) // 2
    torn(story, process, opened, file, args[1], half)
    process.put_data(opened, file, len(process.content(opened, file)), args[1][:half])
    process.kill()


def locks_lost(story: StruckStory, process: Process, call: Call) -> None:
    if not lose_locks(story, process):
        raise Skip


def host_lost(story: StruckStory, process: Process, call: Call) -> None:
    """Its host is switched off: what was buffered is gone."""
    assert isinstance(process, NfsProcess)
    for pages in process.host.pages.values():
        pages.dirty.clear()
    process.kill()


def unlistable(story: StruckStory, process: Process, call: Call) -> None:
    """For a while no directory can be read."""
    story.again = story.again or 20
    raise OSError(errno.EIO, "simulated", call[1][0])


def reply_lost(story: StruckStory, process: Process, call: Call) -> None:
    process.answer = errno.EEXIST if call[0] in EXCLUSIVE else errno.ENOENT


def _answer(code: int) -> Fate:
    def fate(story: StruckStory, process: Process, call: Call) -> None:
        process.answer = code

    return fate


def _error(code: int) -> Fate:
    def fate(story: StruckStory, process: Process, call: Call) -> None:
        raise OSError(code, "simulated", call[1][0] if call[1] and isinstance(call[1][0], str) else None)

    return fate


def _full(fraction: float) -> Fate:
    def fate(story: StruckStory, process: Process, call: Call) -> None:
        story.full, story.full_code = 3, errno.ENOSPC
        story.world.cuts[process] = fraction

    return fate


def _power(names: bool, data: bool, both_names: bool = False) -> Fate:
    def fate(story: StruckStory, process: Process, call: Call) -> None:
        story.lose_power(lambda: story.world.disk.lose_power_exactly(names, data, both_names))

    return fate


FATES: dict[str, Fate] = {
    "on": on,
    "late": late,
    "days": days,
    "away": away,
    "cleaned": cleaned,
    "interrupted": interrupted,
    "interrupted-after": interrupted_after,
    "killed": killed,
    "cut-short": cut_short,
    "stopped": on,
    "then-power": a_little_later,
    "then-power-names": a_little_later,
    "killed-then-power": killed_a_while_ago,
    "locks-lost": locks_lost,
    "host-lost": host_lost,
    "unlistable": unlistable,
    "reply-lost": reply_lost,
    "eio-after": _answer(errno.EIO),
    "eio": _error(errno.EIO),
    "estale": _error(errno.ESTALE),
    "eacces": _error(errno.EACCES),
    "full": _full(0.0),
    "full-halfway": _full(0.5),
    "power": _power(False, False),
    "power-names": _power(True, False),
    "power-data": _power(False, True),
    "power-all": _power(True, True),
    "power-both-names": _power(True, True, both_names=True),
}
"""What may become of the first verb at a call, by name."""

AFTERWARDS: dict[str, Fate] = {
    "stopped": killed,
    "then-power": _power(False, False),
    "then-power-names": _power(True, False),
    "killed-then-power": _power(False, False),
}
"""What comes when the second verb has run."""


def _is_answered(call: Call) -> bool:
    return call[0] not in ("close", "unlock", "scandir")


def _is_repeated(call: Call) -> bool:
    """Whether a client sends the request again if the reply is lost, and is told then that it was done before."""
    name, args = call
    return name in NAMES or (name == "open" and bool(args[1] & Process.O_EXCL))


def _writes(call: Call) -> bool:
    return call[0] in WRITES


_PLACES: dict[str, Callable[[Call], bool]] = {
    "cut-short": lambda call: call[0] == "write",
    "interrupted-after": _is_answered,
    "unlistable": lambda call: call[0] == "listdir",
    "reply-lost": _is_repeated,
    "eio-after": _is_answered,
    "eio": _is_answered,
    "estale": _is_answered,
    "eacces": _is_answered,
    "full": _writes,
    "full-halfway": _writes,
}


def is_place(fate: str, call: Call) -> bool:
    """Whether this may become of a verb at such a call. Some fates find out only there that there is nothing to do."""
    return fate not in _PLACES or _PLACES[fate](call)


def in_vain(story: StruckStory, process: Process) -> frozenset[str]:
    """Return the fates that would find nothing to do now: they raise `Skip`, or leave what another one leaves."""
    found = set[str]()
    if is_clean(story):
        found.add("cleaned")
    if not locks_of(story, process):
        found.add("locks-lost")
    return frozenset(found)


DEATHS = frozenset(("killed", "host-lost", *(fate for fate in FATES if fate.startswith("power"))))
"""After these nothing is left of the first verb but what the disk holds, and what its caller was told before."""

DELAYS = frozenset(("on", "late", "days"))
"""These are no faults: the process only goes on later."""
