"""What may become of a verb at one of its calls: what `exhaustive` tries everywhere."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.faults import DAY_S, EXCLUSIVE, NAMES, WRITES, clean_up, is_clean, locks_of, lose_locks, torn
from tests.simulation.kernel import INTERRUPTED, Process
from tests.simulation.nfs import NfsProcess
from tests.simulation.stories import LEASE_S

if TYPE_CHECKING:
    from tests.simulation.exhaustive import Play


class Skip(BaseException):
    """This call is no place for this fate."""


Call = tuple[str, tuple[Any, ...]]
QueueState = Callable[["Play", Process, Call], None]


def on(play: Play, process: Process, call: Call) -> None:
    """It goes on when the other has done."""


def late(play: Play, process: Process, call: Call) -> None:
    """It stands still until its leases have run out."""
    play.world.now += LEASE_S + 2


def days(play: Play, process: Process, call: Call) -> None:
    """It stands still until what it has staged looks abandoned."""
    play.world.now += 2 * DAY_S


def a_little_later(play: Play, process: Process, call: Call) -> None:
    """So much that the other reads `queue.jsonl` again."""
    play.world.now += 2


def away(play: Play, process: Process, call: Call) -> None:
    """Its host is out of touch for days, as a suspended laptop is: its locks are gone when it goes on."""
    lose_locks(play, process)
    days(play, process, call)


def cleaned(play: Play, process: Process, call: Call) -> None:
    """A cleaner of scratch space removes the queue's empty directories."""
    if not clean_up(play):
        raise Skip


def interrupted(play: Play, process: Process, call: Call) -> None:
    """Ctrl-C before the call; the process lives on."""
    raise KeyboardInterrupt


def interrupted_after(play: Play, process: Process, call: Call) -> None:
    """Ctrl-C after the call, before its caller has the result."""
    process.answer = INTERRUPTED


def killed(play: Play, process: Process, call: Call) -> None:
    process.kill()


def killed_a_while_ago(play: Play, process: Process, call: Call) -> None:
    a_little_later(play, process, call)
    process.kill()


def cut_short(play: Play, process: Process, call: Call) -> None:
    """It is killed in the middle of a write."""
    args = call[1]
    opened, file = process._file(args[0])
    half = len(args[1]) // 2
    torn(play, process, opened, file, args[1], half)
    process.put_data(opened, file, len(process.content(opened, file)), args[1][:half])
    process.kill()


def locks_lost(play: Play, process: Process, call: Call) -> None:
    if not lose_locks(play, process):
        raise Skip


def host_lost(play: Play, process: Process, call: Call) -> None:
    """Its host is switched off: what was buffered is gone."""
    assert isinstance(process, NfsProcess)
    for pages in process.host.pages.values():
        pages.dirty.clear()
    process.kill()


def unlistable(play: Play, process: Process, call: Call) -> None:
    """For a while no directory can be read."""
    play.again = play.again or 20
    raise OSError(errno.EIO, "simulated", call[1][0])


def reply_lost(play: Play, process: Process, call: Call) -> None:
    process.answer = errno.EEXIST if call[0] in EXCLUSIVE else errno.ENOENT


def _answer(code: int) -> QueueState:
    def fate(play: Play, process: Process, call: Call) -> None:
        process.answer = code

    return fate


def _error(code: int) -> QueueState:
    def fate(play: Play, process: Process, call: Call) -> None:
        raise OSError(code, "simulated", call[1][0] if call[1] and isinstance(call[1][0], str) else None)

    return fate


def _full(fraction: float) -> QueueState:
    def fate(play: Play, process: Process, call: Call) -> None:
        play.full, play.full_code = 3, errno.ENOSPC
        play.world.cuts[process] = fraction

    return fate


def _power(names: bool, data: bool, both_names: bool = False) -> QueueState:
    def fate(play: Play, process: Process, call: Call) -> None:
        play.lose_power(lambda: play.world.disk.lose_power_exactly(names, data, both_names))

    return fate


FATES: dict[str, QueueState] = {
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

AFTERWARDS: dict[str, QueueState] = {
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


def in_vain(play: Play, process: Process) -> frozenset[str]:
    """Return the fates that would find nothing to do now: they raise `Skip`, or leave what another one leaves."""
    found = set[str]()
    if is_clean(play):
        found.add("cleaned")
    if not locks_of(play, process):
        found.add("locks-lost")
    return frozenset(found)


DEATHS = frozenset(("killed", "host-lost", *(fate for fate in FATES if fate.startswith("power"))))
"""After these nothing is left of the first verb but what the disk holds, and what its caller was told before."""
