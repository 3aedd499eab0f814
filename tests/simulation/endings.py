"""What decides how a small case ends: if it is the same in two of them, they end alike, and one of the ends is told.

Faults at different calls of a verb often leave the same, since most calls only read. The end of a case is told by a new
process on a host that was not there before. It finds the disk; and the judgement reads what was called and reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING

from tests.simulation.disk import Directory
from tests.simulation.faults import DAY_S
from tests.simulation.history import Call
from tests.simulation.kernel import CALL_S
from tests.simulation.world import START_S

if TYPE_CHECKING:
    from tests.simulation.exhaustive import Play

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
TIME = re.compile(
    r"0(?<![0-9a-f]0)1a[0-9a-f]{9}(?=[0-9a-f]{20})"
    r"|1(?<![0-9a-f]1)[78](?:[0-9]{11}(?![0-9])|[0-9]{8}[.][0-9]+)"
)
"""A time: in the name of a batch, in a record, of a file. That it begins with a literal makes it four times as fast."""
ABOUT_MS = range(int((START_S - 30 * DAY_S) * 1000), int((START_S + 30 * DAY_S) * 1000))
"""All times of a case are among these. Other numbers are left as they are."""


def decides(play: Play) -> bytes:
    """Return a digest of all that decides the end of a case in which nothing goes wrong any more.

    Left out are only the milliseconds that calls take, and the numbers of steps: of these the order decides. All times,
    also those on the disk, are compared to a tenth of a second, and by their order.
    """
    world, disk, calls = play.world, play.world.disk, play.history.calls
    since = list(_since(disk.root))
    steps = {step for call in calls for step in (call.begin, call.end)}
    steps |= {step for _, _, step in since} | {step for step, _ in disk.ends} | {file.lost_at for file in disk.files}
    steps.add(play.forgotten_until)
    rank = {step: place for place, step in enumerate(sorted(steps))}

    def waited_s(step: int, now: float) -> float:
        return round(now - step * CALL_S, 1)

    def told(call: Call) -> tuple[object, ...]:
        error = call.error and (type(call.error).__name__, str(call.error), vars(call.error))
        at = rank[call.begin], rank[call.end]
        times = waited_s(call.begin, call.began), waited_s(call.end, call.ended)
        return call.actor, call.verb, call.args, call.outcome, call.result, error, at, times

    files, *rest, _, boots = disk.state()
    found = (
        (play.schedule.kind, play.schedule.first, play.schedule.second, play.schedule.begins_with_upkeep),
        [(*file[:-1], rank[file[-1]]) for file in files],
        (*rest, boots),
        [(file.home.number, file.home.removed) for file in disk.files],
        {name: [file.number for file in logs] for name, logs in disk.logs.items()},
        [(directory, name, rank[step]) for directory, name, step in since],
        [(rank[step], how, waited_s(step, disk.ended_at[step])) for step, how in disk.ends],
        waited_s(disk.step, world.now),
        [told(call) for call in calls],
        (play.history.ids, play.history.priorities, play.history.wrong, play.letters, play.known),
        (play.payloads, play.serial, play.staged.payloads, play.staged.parts),
        (play.power_lost, rank[play.forgotten_until], bool(world.faults), world.overwritten),
        [(file.number, offset, meant) for file, offset, meant in world.torn],
        sorted(file.number for file in world.voided_farewells),
        hash(play.rng.getstate()),
    )
    return blake2b(in_order(ADDRESS.sub("", repr(found))).encode()).digest()


def in_order(text: str) -> str:
    """Return a text in which each time is told to a tenth of a second, and by its place among all of them."""
    times = {found: ms for found in set(TIME.findall(text)) if int(ms := _ms(found)) in ABOUT_MS}
    places = {ms: place for place, ms in enumerate(sorted(set(times.values())))}
    told = {found: f"<{round(ms / 1000, 1)} {places[ms]}>" for found, ms in times.items()}
    return TIME.sub(lambda match: told.get(match[0], match[0]), text)


def _ms(found: str) -> float:
    if "." in found:
        return float(found) * 1000
    return int(found, 16) if len(found) == 12 else int(found)


def _since(directory: Directory) -> Iterator[tuple[int, str, int]]:
    """Yield the directory, the name, and the step at which it came to be: of each name that is there."""
    yield from ((directory.number, name, directory.since[name]) for name in directory.entries)
    for node in {**directory.durable, **directory.entries}.values():
        if isinstance(node, Directory):
            yield from _since(node)


class Endings:
    """The verdicts of the ends that were told."""

    def __init__(self) -> None:
        self._known: dict[bytes, list[str]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, play: Play) -> list[str]:
        """Return what is wrong at the end: by telling it, if none that is the same was told before."""
        key = decides(play)
        if key not in self._known:
            self._known[key] = play.end()
        return self._known[key]
