"""Limits over all hosts: no more tasks are leased at one instant than the queue allows, whatever dies."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from fsqueue.format import groups
from fsqueue.format.layout import (
    QueueState,
    Settings,
    group_mark,
    group_record,
    lease_rate,
    limits_of,
    limits_record,
    read_queue_state,
)
from tests.simulation.disk import File
from tests.simulation.handles import Host
from tests.simulation.history import DONE, Actor, Call, original
from tests.simulation.invariants import directory, generation
from tests.simulation.order import published
from tests.simulation.replay import LEASED, Replay

if TYPE_CHECKING:
    from tests.simulation.stories import Story

EPOCH = "00112233aabbccdd"
GROUP_ID = "aabbccdd00112233"
SETTLES_S = 1.5
"""Seconds after which limits hold that were just set. Whoever has set them may be killed before it is told so."""
ACT, ACT_OF_FIELD = "set_limit", "set_limit_of_field"
FIELD = "host"
"""The field of payloads that has a limit."""


def is_limited(story: Story) -> bool:
    """Whether there are limits in a story, or may be."""
    limited = limits_of(story.settings, EPOCH) is not None
    return limited or not story.scenario.actions.keys().isdisjoint(ACTS)


def of_group(story: Story, at: int) -> bytes:
    """The file of the group that the queue of a story lies in, if its limits are the group's; else b""."""
    if not story.scenario.of_group:
        return b""
    birth = groups.birth_record(story.settings, GROUP_ID, at)
    return birth + groups.limits_record(limits_of(story.settings, EPOCH), {}, at)


def line(story: Story, at: int) -> bytes:
    """The lines of `queue.jsonl` with which a story begins that has a limit; b"" if it has none."""
    if story.scenario.of_group:
        return group_record(GROUP_ID, at) + group_mark(at)
    limits = limits_of(story.settings, EPOCH)
    return b"" if limits is None else limits_record(QueueState(story.settings, story.identity), limits, {}, at)


def set_limit(story: Story, actor: Actor) -> None:
    """Set the limit, to what it was or to something else."""
    most = story.rng.choice((1, 2, 2, 3))
    actor.do(ACT, lambda q: q.change_settings(max_leased=most))


def set_limit_of_field(story: Story, actor: Actor) -> None:
    """Set the limit of the field, to what it was or to something else, or end it."""
    most = story.rng.choice((1, 1, 2, None))
    actor.do(ACT_OF_FIELD, lambda q: q.change_settings(limit={FIELD: most}))


ACTS = {ACT: set_limit, ACT_OF_FIELD: set_limit_of_field}


def value_of(payload: object) -> int | None:
    """The value of the field of a payload, which is text here: of every third none."""
    number = int("".join(filter(str.isdigit, str(original(payload)))) or 0)
    return None if number % 3 == 2 else number % 3


def digests(payload: object, fields: Iterable[str]) -> dict[str, bytes]:
    """What stands in place of `format.slots.digests`: payloads of stories are no objects."""
    value = value_of(payload)
    return {} if value is None else dict.fromkeys(fields, b"%-8d" % value)


def _allowed(story: Story, began: float, of: Callable[[Settings], int | None]) -> float:
    """How many tasks may be leased by now by a call that began then: the greatest limit there was, if one surely held.

    A limit that is lowered is not known to all at once.
    """
    first = of(story.settings)
    found = [] if first is None else [(0.0, first)]
    queue = directory(story, story.path)
    file = queue.entries.get("queue.jsonl") if queue is not None else None
    lines = bytes(file.data).splitlines(keepends=True) if isinstance(file, File) else []
    for number, text in enumerate(lines, 1):
        if b'"limits"' in text and text.endswith(b"\n"):
            most = of(read_queue_state(b"".join(lines[:number]), story.path).settings)
            if most is not None or found:
                found.append((_at(text), most or sys.maxsize))
    if not found or began < found[0][0] + SETTLES_S:
        return math.inf
    return max(most for _, most in found)


def _at(text: bytes) -> float:
    return int(text.partition(b'"at":')[2].partition(b",")[0]) / 1000


def held(story: Story) -> list[str]:
    """The tasks that are leased at this moment, by all logs of the queue that can be reached; or of both queues.

    The time of a log does not count: if a clock that was far ahead gave it, it is set back, and leases hold again.
    """
    found, now = [], story.world.now * 1000
    views = [story, story.beside()] if story.scenario.two_queues else [story]
    for batch, files in story.world.disk.logs.items():
        for file in files:
            if not (file.links and any(_is_of(view, file) for view in views)):
                continue
            told = story.world.disk.read_by(Replay, file)
            found += [
                f"{batch}.{index}" for index, task in enumerate(told.tasks) if task.state == LEASED and task.since > now
            ]
    return found


def _is_of(story: Story, file: File) -> bool:
    """Whether a log is of the current generation."""
    movements = file.home.above
    return movements is not None and movements.above is directory(story, generation(story))


def too_many(story: Story, call: Call) -> Iterator[str]:
    """What is wrong if more tasks are leased than the limit allows, when a call has just leased some.

    What was leased before the limit held stays leased.
    """
    is_handed_out = call.begin == call.end  # without a call of the system: it was leased ahead by an earlier one
    if not is_limited(story) or call.outcome != DONE or not call.result or is_handed_out:
        return
    yield from _too_fast(story, call)
    allowed, now_held = _allowed(story, call.began, lambda settings: settings.max_leased), held(story)
    if len(now_held) > allowed:
        yield f"{call}: {len(now_held)} tasks are leased, and {allowed} may be: {sorted(now_held)}"
    allowed = _allowed(story, call.began, lambda settings: settings.limit.get(FIELD))
    if allowed < math.inf:
        payloads = {
            f"{name[14:46]}.{index}": task.payload for name, tasks in published(story) for index, task in tasks.items()
        }
        counts = Counter(value_of(payloads[one]) for one in now_held if one in payloads)
        leased = call.result if isinstance(call.result, list) else [call.result]
        given = {value_of(task.payload) for task in leased} - {None}  # of others more may be held, since before
        for value, number in counts.items():
            if number > allowed and value in given:
                yield f"{call}: {number} tasks of value {value} are leased, and {allowed} may be: {sorted(now_held)}"


def _too_fast(story: Story, call: Call) -> Iterator[str]:
    """What is wrong if more tasks were leased since the begin of an earlier call than the rate allows in that time.

    A power loss may take what was written of the rate: then one token is there that was taken.
    """
    if story.settings.rate is None:
        return
    rate = lease_rate(story.settings.rate)
    leased = len(call.result) if isinstance(call.result, list) else 1
    story.begun.append((call.began, leased))
    now, since, began = story.world.now, 0, math.inf
    for one, number in reversed(story.begun):
        since, began = since + number, min(began, one)
        most = 1 + rate.per_s * (now - began + 1) + (1 if story.power_lost else 0)
        if since > most + 0.01:
            yield f"{call}: {since} tasks were leased in {now - began:.3f} s, and {most:.2f} may be"


def soon_after_power(story: Story) -> Iterator[str]:
    """What is wrong if a worker leases all that it may at once after a power loss: leases that are left hold still."""
    if not (story.power_lost and is_limited(story)):
        return
    soon = story.actor("soon", Host("server"))
    for _ in range(3):
        soon.do("lease", lambda q: q.lease(2))
        yield from too_many(story, soon.last)
    soon.exit()
