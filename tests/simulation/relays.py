"""Two queues that feed each other: a worker inserts the next task into the other queue, and completes its own then.

So something lives in one of them from the first insert to the last completion, though either may be empty at a look.
`drained` over both must see that, and a lease over both must find it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from unittest import mock

import fsqueue
from fsqueue import LeasedTask
from fsqueue.filesystem import resources
from fsqueue.views.inspection import DrainCheck
from tests.simulation import invariants, limits, order
from tests.simulation.books import END
from tests.simulation.faults import BESIDE, LONG_S
from tests.simulation.history import DONE, Actor, Call, original
from tests.simulation.replay import OUTCOMES

if TYPE_CHECKING:
    from tests.simulation.stories import Story

ENDS = ("complete", "fail", "bury", "cancel")
"""Verbs from whose beginning on a task may have its outcome."""


# -- acts ----------------------------------------------------------------------------------------------------


def both(story: Story, actor: Actor) -> list[Actor]:
    """What a process is in either queue."""
    if actor.beside is None:
        actor.beside = actor.another(story.history_beside, BESIDE)
    return [actor, actor.beside]


def feed(story: Story, actor: Actor) -> None:
    """Insert a task into one of the queues."""
    insert(story, story.rng.choice(both(story, actor)))


def insert(story: Story, into: Actor) -> None:
    """Insert a task into this queue."""
    [payload] = story.fresh(1)
    into.insert(payload, priority=story.priority(payload))


def relay(story: Story, actor: Actor) -> None:
    """Lease, and insert the next task into the other queue, most times, before the task is completed."""
    for task in _lease_both(story, actor, story.rng.choice((1, 1, 2))):
        hand_on(story, actor, task, likely=0.7)


def consume_both(story: Story, actor: Actor) -> None:
    """Lease, and complete."""
    for task in _lease_both(story, actor, story.rng.choice((1, 2, 4))):
        hand_on(story, actor, task, likely=0.0)


def relay_waiting(story: Story, actor: Actor) -> None:
    """Wait for a task of either queue, as an idle worker of both does, and hand it on."""
    for task in _lease_both(story, actor, 1, story.rng.choice((0.2, 3.0, 20.0))):
        hand_on(story, actor, task, likely=0.5)


def poll_one(story: Story, actor: Actor) -> None:
    """Work on one of the queues until it is drained, and hand tasks on to the other one."""
    rng = story.rng
    place = rng.randrange(2)
    mine = both(story, actor)[place]
    loop = mine.do("poll", lambda q: q.poll(prefetch=rng.choice((1, 1, 3))))
    if loop is None:
        return
    try:
        for _ in range(rng.randint(1, 4)):
            task = mine.next(loop)
            if task is None:
                if mine.last.outcome == DONE:
                    story.history.wrong += invariants.false_drained((story, story.beside())[place], mine.last)
                break
            hand_on(story, actor, task, likely=0.5)
        mine.do("leave", lambda q: loop.close())
    finally:
        loop._ahead.tasks.clear()
        loop._ahead.open = False


def wait_both(story: Story, actor: Actor) -> None:
    """Wait until both queues are drained, or some time is over: if it returns before, they were, at one instant."""
    queues, timeout_s = both(story, actor), story.rng.choice((0.5, 10.0, 60.0))
    found = actor.do("wait", lambda _: fsqueue.wait([one.queue for one in queues], timeout_s), timeout_s=timeout_s)
    if found is not None and actor.last.ended - actor.last.began < timeout_s:
        story.history.wrong += false_drained(story, actor.last)


def _lease_both(story: Story, actor: Actor, n: int, wait_s: float = 0) -> list[LeasedTask]:
    """Lease from both queues with one call; [] must be true of either."""
    queues = both(story, actor)
    got = actor.do("lease", lambda _: fsqueue.lease([one.queue for one in queues], n, wait_s=wait_s), n=n) or []
    for task in got:
        queues[place_of(task)].history.saw(task.payload, task.id)
    story.history.wrong += limits.too_many(story, actor.last)
    if not got and actor.last.outcome == DONE and not limits.is_limited(story):
        for view in (story, story.beside()):
            story.history.wrong += invariants.false_empty(view, actor.last, actor.persona.process)
    return got


def place_of(task: LeasedTask) -> int:
    """Return in which of both queues a task is leased, by the queue's path: that opens nothing outside a verb."""
    return int(str(task.queue.path) == BESIDE)


def hand_on(story: Story, actor: Actor, task: LeasedTask, likely: float) -> None:
    queues, place = both(story, actor), place_of(task)
    if story.rng.random() < 0.3:
        actor.work(story.rng.choice((0.1, 3.0, 12.0)))
    if story.rng.random() < likely:
        insert(story, queues[1 - place])
    queues[place].complete([task])


def hop(story: Story, actor: Actor) -> None:
    """Let a task hop: insert the next one into the other queue, then cancel those that wait. Nothing is done."""
    queues = both(story, actor)
    for _ in range(story.rng.randint(5, 20)):
        there = [
            (place, found)
            for place, one in enumerate(queues)
            for found in one.do("tasks", lambda q: list(q.tasks("waiting"))) or ()
            if found.payload is not None
        ]
        insert(story, queues[1 - there[0][0] if there else 0])
        for place, found in there:
            queues[place].history.saw(found.payload, found.id)
            queues[place].cancel([found.id])


def drained_unluckily(story: Story, actor: Actor) -> None:
    """The same, by looks that always come when nothing is in the queue that they look at."""
    drained_both(story, actor, _Unlucky)


def drained_both(story: Story, actor: Actor, seen_by: Callable[[Any], Any] | None = None) -> None:
    """Ask, some times, whether both queues are drained: with one check, as a work loop has it."""
    queues = both(story, actor)
    if story.rng.random() < 0.5:
        queues.reverse()
    check: DrainCheck | None = None

    def ask(_: object) -> bool:
        nonlocal check
        check = check or DrainCheck(*(one.queue.store for one in queues))
        if seen_by is None:
            return _looked(check)
        with mock.patch.object(check, "_remains", [seen_by(one) for one in check._remains]):
            return _looked(check)

    for _ in range(story.rng.randint(1, 3)):
        if actor.do("drained", ask):
            story.history.wrong += false_drained(story, actor.last)


class _Unlucky:
    """What looks at one queue, and comes at a moment at which nothing is in it, if there is one soon."""

    def __init__(self, remains: Any) -> None:
        self.remains = remains

    def __getattr__(self, name: str) -> Any:
        return getattr(self.remains, name)

    def is_where_it_was(self) -> bool:
        return False

    def collect(self) -> Any:
        for _ in range(40):
            found = self.remains.collect()
            if found is not None:
                break
            self.remains.store.clock.sleep(0.01)
        return found


def _looked(check: DrainCheck) -> bool:
    """Look, as `fsqueue.wait` does: an error of the system is told as one of the queue that was looked at."""
    try:
        with resources.Scope():
            return check()
    except OSError as error:
        raise check.store.explain(error, "waiting") from error


_ACTS = (relay, feed, consume_both, drained_both, relay_waiting, poll_one, wait_both, hop, drained_unluckily)
ACTS: dict[str, Callable[[Story, Actor], None]] = {act.__name__: act for act in _ACTS}


# -- the judgement -------------------------------------------------------------------------------------------


def false_drained(story: Story, call: Call) -> Iterator[str]:
    """Both queues were called drained: was there an instant of the call at which no task lived for certain?"""
    for view in (story, story.beside()):
        yield from invariants.false_drained(view, call)
    if story.world.disk.lost:
        return  # tasks live in it, wherever it is
    if story.scenario.stale_listings:
        return  # the proof presumes that a listing asks the server (docs/design.md, section 6.1)
    at = call.begin
    for begin, end in sorted(_lives(story)):
        if begin <= at:
            at = max(at, end)
    if at > call.begin and at >= call.end:  # a call may make no step
        yield f'{call}: "drained", but at each instant of the call a task lived in one of the queues'


def _lives(story: Story) -> Iterator[tuple[float, float]]:
    """From when to when each task lived for certain, in steps: reported inserted, and no verb called that ends it."""
    ends = ends_of_lives(story)
    for history in (story.history, story.history_beside):
        wipes = [call for call in history.calls if call.verb in ("purge", "delete")]
        for call in history.calls:
            if call.verb == "insert" and call.outcome == DONE:
                wiped = min((one.begin for one in wipes if one.end > call.begin), default=math.inf)
                yield from ((call.end, min(wiped, ends.get(payload, math.inf))) for payload in call.args["payloads"])


def ends_of_lives(story: Story, verbs: Sequence[str] = ENDS) -> dict[Any, float]:
    """From which step on each task may have its outcome by one of these verbs, by the payload with which it was
    inserted.
    """
    ends: dict[Any, float] = {}
    for history in (story.history, story.history_beside):
        whose = {task_id: payload for payload, known in history.ids.items() for task_id in known}
        for call in history.calls:
            named = [original(task.payload) for task in call.args.get("tasks", ())]
            named += [whose[task_id] for task_id in call.args.get("ids", ())]
            for payload in named if call.verb in verbs else ():
                ends[payload] = min(call.begin, ends.get(payload, math.inf))
    return ends


def at_rest(story: Story) -> Iterator[str]:
    """When nothing goes wrong any more, a single worker leases from both queues: the most urgent task first.

    When it finds none, both are drained.
    """
    story.purpose(END)
    story.world.now += LONG_S + 2 * story.skew_s
    actor = story.actor("both", story.hosts[0])
    is_exact = order.is_exact(story) and story.settings.shards == 1
    for _ in range(200):
        limit = int(story.world.now * 1000) - 1000
        there = _free(story, limit) if is_exact else []
        got = _lease_both(story, actor, 1)
        if got:
            yield from _passed_over(story, got[0], there)
            hand_on(story, actor, got[0], likely=0.0)
        elif actor.do("drained", lambda _: _looked(DrainCheck(*(one.queue.store for one in both(story, actor))))):
            yield from false_drained(story, actor.last)
            break
        else:
            actor.work(5.0)
    else:
        yield "the two queues do not drain"
    for one in both(story, actor):
        story._refusals(one, story.history.wrong)
    actor.exit()


def _free(story: Story, limit: int) -> list[tuple[str, int, order.Task]]:
    """The tasks of both queues that may be leased, with their batches and indices."""
    return [
        (name[14:46], index, task)
        for view in (story, story.beside())
        for name, tasks in order.published(view)
        for index, task in tasks.items()
        if task.free_at <= limit and int(name[:13]) <= limit
    ]


def _passed_over(story: Story, got: LeasedTask, there: list[tuple[str, int, order.Task]]) -> Iterator[str]:
    """The tasks of either queue that are more urgent than the one that was leased."""
    mine = order.rank(got.priority)
    for batch, index, task in there:
        if task.rank < mine and not _has_outcome(story, batch, index):
            yield f"{got.payload!r} of rank {mine!r} was leased while {task.payload!r} of rank {task.rank!r} was there"


def _has_outcome(story: Story, batch: str, index: int) -> bool:
    replays = [invariants.replayed(story, log) for log in story.world.disk.logs.get(batch, ())]
    return any(index < len(one.tasks) and one.tasks[index].state in OUTCOMES for one in replays)
