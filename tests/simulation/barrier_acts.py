"""Barriers in stories of groups: tasks come into the queue `r` once `q`, or some tasks of it, are done; the judgement.

Setting one is an insert into `r`: what was reported has to be there. Whoever finds nothing to do lets it pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from fsqueue import LeasedTask, TaskRef
from tests.simulation import relays
from tests.simulation.group_acts import group_of
from tests.simulation.history import DONE, Actor, Call, original

if TYPE_CHECKING:
    from tests.simulation.stories import Story

OF, INTO = "q", "r"
MARK = "behind"
"""An argument of a call that has set a barrier: the queue that it waits for, or the payloads of a join's tasks."""
HOW, STRICT = "on_failure", "wait"
"""An argument of a call that has set a join; and its value if dead letters hold the join up."""
DONE_BY = ("complete", "cancel")
"""Verbs from whose beginning on a task may have ended otherwise than as a dead letter."""


def set_barrier(story: Story, actor: Actor) -> None:
    """Set a barrier: one or two tasks come into `r` once `q` is drained."""
    payloads = story.fresh(story.rng.choice((1, 2)))
    then = [(INTO, payload) for payload in payloads]
    into = relays.both(story, actor)[1]
    into.do("insert", lambda q: group_of(q).barrier(OF, then), payloads=payloads, **{MARK: OF})


def set_join(story: Story, actor: Actor) -> None:
    """Set a join: a task comes into `r` once up to three tasks of `q` have ended, which may have by now."""
    _join(story, actor, "run")


def set_strict_join(story: Story, actor: Actor) -> None:
    """Set a join that waits while one of its tasks is a dead letter."""
    _join(story, actor, STRICT)


def _join(story: Story, actor: Actor, on_failure: Literal["run", "wait"]) -> None:
    known = {payload: ids[0] for payload, ids in story.history.ids.items() if ids}
    if not known:
        return
    awaited = story.rng.sample(sorted(known), min(len(known), story.rng.choice((1, 2, 3))))
    payloads = story.fresh(1)
    into = relays.both(story, actor)[1]

    def join(q: Any) -> Any:
        group = group_of(q)
        refs = [TaskRef(known[payload], True, group[OF]) for payload in awaited]
        return group.join(refs, (INTO, payloads[0]), on_failure=on_failure)

    into.do("insert", join, payloads=payloads, **{MARK: awaited, HOW: on_failure})


def feed_first(story: Story, actor: Actor) -> None:
    """Insert a task into `q`."""
    relays.insert(story, relays.both(story, actor)[0])


def give_up(story: Story, actor: Actor) -> None:
    """Lease one or two tasks of `q`, and give them up."""
    for task in actor.lease(story.rng.choice((1, 2))) or ():
        actor.bury(task)


def pass_barriers(story: Story, actor: Actor) -> None:
    """Look at the barriers."""
    actor.do("pass_barriers", lambda q: group_of(q).pass_barriers(at_once=True))


ACTS: dict[str, Callable[[Story, Actor], None]] = {
    act.__name__: act for act in (set_barrier, set_join, set_strict_join, feed_first, give_up, pass_barriers)
}


def judge(story: Story) -> Iterator[str]:
    """Each task of a barrier was there once, and was leased only after an instant at which `q` was drained; that of a
    join only after its tasks had ended, or had been done.
    """
    set_by = {
        payload: call
        for call in story.history_beside.calls
        if call.verb == "insert" and MARK in call.args
        for payload in call.args["payloads"]
    }
    for payload in set_by:
        if len(known := story.history_beside.ids.get(payload, [])) > 1:
            yield f"{payload}: its barrier has inserted it more than once: {known}"
    if not set_by or story.world.disk.lost or story.scenario.stale_listings:
        return  # the proof of "drained" presumes that a listing asks the server
    lives = sorted(_lives(story))
    ends = {"run": relays.ends_of_lives(story), STRICT: relays.ends_of_lives(story, DONE_BY)}
    for history in (story.history, story.history_beside):
        for call in history.calls:
            for task in _handed_out(call):
                begun = set_by.get(original(task.payload))
                if begun is None:
                    continue
                if begun.args[MARK] == OF:
                    yield from _too_early(begun, call, lives)
                elif left := [one for one in begun.args[MARK] if ends[begun.args[HOW]].get(one, math.inf) >= call.end]:
                    yield f"{call}: it got the task of {begun}, before {left} had ended"


def _handed_out(call: Call) -> Iterator[LeasedTask]:
    found: Any = call.result if call.outcome == DONE else None
    for one in found if isinstance(found, list) else [found]:
        if isinstance(one, LeasedTask):
            yield one


def _lives(story: Story) -> Iterator[tuple[float, float]]:
    """From when to when each task of `q` lived for certain, in steps."""
    ends = relays.ends_of_lives(story)
    for call in story.history.calls:
        if call.verb == "insert" and call.outcome == DONE:
            yield from ((call.end, ends.get(payload, math.inf)) for payload in call.args["payloads"])


def _too_early(begun: Call, call: Call, lives: list[tuple[float, float]]) -> Iterator[str]:
    at: float = begun.begin
    for begin, end in lives:
        if begin <= at:
            at = max(at, end)
    if at > begun.begin and at >= call.end:
        yield f"{call}: it got a task of {begun}, but at each instant in between a task lived in {OF}"
