"""What workers do: small random scripts of the queue's own verbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fsqueue import LeasedTask, Queue
from fsqueue.protocol.waiting import IdlePoller
from tests.simulation import (
    barrier_acts,
    campaigns,
    commit_acts,
    fork_acts,
    group_acts,
    invariants,
    keyed_acts,
    limits,
    order,
    relays,
    update_acts,
)
from tests.simulation.books import APART, BEFORE
from tests.simulation.history import DONE, Actor
from tests.simulation.order import PRIORITIES

if TYPE_CHECKING:
    from tests.simulation.stories import Story

IDLE_S = 3.0

Act = Callable[["Story", Actor], None]


def insert(story: Story, actor: Actor) -> None:
    actor.insert(*story.fresh(1), delay_s=story.rng.choice((0, 0, 0, 3)))


def trickle(story: Story, actor: Actor) -> None:
    """Insert some tasks, one after the other, with pauses shorter than those between two notifications."""
    for _ in range(story.rng.randint(3, 6)):
        insert(story, actor)
        actor.work(story.rng.choice((0.1, 0.3, 0.6)))


def insert_many(story: Story, actor: Actor) -> None:
    rng = story.rng
    actor.insert_many(story.fresh(rng.randint(1, 6)), rng.choice((1, 2, 4)))


def insert_few(story: Story, actor: Actor) -> None:
    """Insert some by one append to an open batch."""
    actor.insert_many(story.fresh(story.rng.randint(2, 4)), None)


def insert_few_ranked(story: Story, actor: Actor) -> None:
    payloads = story.fresh(story.rng.randint(2, 4))
    actor.insert_many(payloads, None, [story.rng.choice(PRIORITIES) for _ in payloads], story.rng.choice((0, 0, 3)))


BOUNDS = tuple(given for given in PRIORITIES if given is not None)


def insert_ranked(story: Story, actor: Actor) -> None:
    rng = story.rng
    actor.insert(*story.fresh(1), delay_s=rng.choice((0, 0, 0, 3)), priority=rng.choice(PRIORITIES))


def insert_many_ranked(story: Story, actor: Actor) -> None:
    rng = story.rng
    payloads = story.fresh(rng.randint(1, 6))
    delay_s = rng.choice((0, 0, 0, 3))
    actor.insert_many(payloads, rng.choice((1, 2, 4)), [rng.choice(PRIORITIES) for _ in payloads], delay_s)


def ask(story: Story, actor: Actor, n: int, **how: Any) -> list[LeasedTask]:
    """Lease; nothing is believed to be nothing only where it is."""
    got = actor.lease(n, **how)
    call = actor.last
    story.history.wrong += limits.too_many(story, call)
    if not got and call.outcome == DONE and not limits.is_limited(story):
        story.history.wrong += invariants.false_empty(story, call, actor.persona.process)
        story.history.wrong += order.late_promises(story)
    return got


def consume(story: Story, actor: Actor) -> None:
    """Lease some, work, and end each lease in one way or another."""
    rng = story.rng
    settle(story, actor, list(ask(story, actor, rng.choice((1, 1, 2, 3)))))


def consume_ranked(story: Story, actor: Actor) -> None:
    """The same, now and then up to a priority, in no order, or strictly."""
    rng = story.rng
    how: dict[str, Any] = {}
    if rng.random() < 0.3:
        how["up_to"] = rng.choice(BOUNDS)
    if rng.random() < 0.2:
        how["order"] = "random"
    if rng.random() < 0.2:
        how["strict"] = True
    settle(story, actor, list(ask(story, actor, rng.choice((1, 1, 2, 3)), **how)))


def settle(story: Story, actor: Actor, got: list[LeasedTask]) -> None:
    """Work on what was leased, and end each lease in one way or another."""
    rng = story.rng
    story.history.wrong += keyed_acts.two_living(story) if keyed_acts.ACT in story.scenario.actions else ()
    if not got:
        actor.work(rng.choice((0.0, 0.5, 4.0)))
        return
    if rng.random() < 0.5:
        actor.work(rng.choice((0.1, 3.0, 9.9, 12.0)))
    if rng.random() < 0.15:
        actor.renew(got)
    if rng.random() < 0.3:
        actor.complete(got)
        return
    for task in got:
        luck = rng.random()
        if luck < 0.6:
            actor.complete([task])
        elif luck < 0.7:
            actor.release([task], rng.choice((0, 2)))
        elif luck < 0.85:
            actor.fail(task, rng.choice((None, 0, 3)))
        elif luck < 0.9:
            actor.bury(task)
        elif luck < 0.95:
            actor.renew([task], rng.choice((None, 1, 30)))
    actor.held.clear()


def poll(story: Story, actor: Actor) -> None:
    """The work loop: completing a task leases the next in the same append."""
    work_loop(story, actor, story.rng.choice((1, 1, 3)), story.rng.randint(1, 5), story.rng.random)


def work_loop(story: Story, actor: Actor, prefetch: int, rounds: int, luck: Callable[[], float] = lambda: 0.5) -> None:
    """Some rounds of a loop over `poll`, left then."""
    loop = actor.do("poll", lambda q: q.poll(prefetch=prefetch))
    if loop is None:
        return
    loop._stop = lambda: True  # ends when nothing is left at the moment
    try:
        for _ in range(rounds):
            task = actor.next(loop)
            story.history.wrong += limits.too_many(story, actor.last)
            if task is None:
                break
            if luck() < 0.2:
                actor.work(story.rng.choice((0.1, 4.0, 12.0)))
            if luck() < 0.9:
                actor.complete([task])
        actor.do("leave", lambda q: loop.close())
    finally:
        loop._ahead.tasks.clear()
        loop._ahead.open = False


def idle(story: Story, actor: Actor) -> None:
    """An idle worker, which looks now and then and goes by notifications. Only where none is lost."""
    idle_poller: IdlePoller | None = None

    def look(queue: Queue) -> list[LeasedTask]:
        nonlocal idle_poller
        idle_poller = idle_poller or IdlePoller(queue._leaser, queue._lease_ms(None))
        return idle_poller.look(1)

    def work() -> None:
        while got := actor.do("lease", look, n=1):
            actor.complete(got)
            actor.work(story.rng.choice((0.01, 0.1)))

    for _ in range(3):
        work()
        actor.work(IDLE_S)  # from now on it will look for what was inserted without a notification
        work()
        story.history.wrong += invariants.false_empty(story, actor.last, actor.persona.process)


def status(story: Story, actor: Actor) -> None:
    actor.plain("status")
    call = actor.last
    if call.outcome == DONE and not (story.world.faults or story.world.disk.ends or story.scenario.stale_listings):
        story.history.wrong += invariants.false_status(story, call)


def is_drained(story: Story, actor: Actor) -> None:
    answer = actor.plain("is_drained")
    if answer:
        story.history.wrong += invariants.false_drained(story, actor.last)


def release_all(story: Story, actor: Actor) -> None:
    actor.plain("release_all")


def cancel(story: Story, actor: Actor) -> None:
    known = story.history.all_ids()
    if known:
        actor.cancel(story.rng.sample(known, min(len(known), story.rng.randint(1, 2))))


def change_waiting(story: Story, actor: Actor) -> None:
    """Give tasks another priority, another time, or both."""
    known, rng = story.history.all_ids(), story.rng
    if known:
        ids = rng.sample(known, min(len(known), rng.randint(1, 3)))
        times: list[dict[str, Any]] = [{}, {"delay_s": 0}, {"delay_s": 3}, {"available_at": story.world.now + 5}]
        urgencies: list[dict[str, Any]] = [{"priority": 0}, {"priority": rng.randint(1, 5)}, {"no_priority": True}]
        given = rng.choice(times) | rng.choice(urgencies) if rng.random() < 0.7 else rng.choice(times[1:])
        actor.change(ids, given)


def retry_dead(story: Story, actor: Actor) -> None:
    actor.plain("retry_dead")


def retry_completed(story: Story, actor: Actor) -> None:
    actor.plain("retry_completed")


def purge_dead(story: Story, actor: Actor) -> None:
    actor.plain("purge_dead")


def gc(story: Story, actor: Actor) -> None:
    actor.plain("gc")


def fsck(story: Story, actor: Actor) -> None:
    repair = story.rng.random() < 0.5
    actor.do("fsck", lambda q: list(q.fsck(repair=repair)))


def purge(story: Story, actor: Actor) -> None:
    actor.plain("purge")


def delete(story: Story, actor: Actor) -> None:
    actor.plain("delete")


def create(story: Story, actor: Actor) -> None:
    """Make the queue, if there is none."""
    actor.create(story.settings)


def attach(story: Story, actor: Actor) -> None:
    """Act on a lease of another process by its token."""
    held = [task for other in story.actors for task in other.held]
    if held:
        actor.attach(story.rng.choice(held).token)
        if actor.held:
            actor.complete([actor.held[-1]])


def look(story: Story, actor: Actor) -> None:
    """Everything that only reads."""
    rng = story.rng
    known = story.history.all_ids()
    luck = rng.randrange(5)
    if luck == 0:
        actor.do("peek", lambda q: q.peek(2))
    elif luck == 1:
        actor.do("tasks", lambda q: list(q.tasks()))
    elif luck == 2:
        actor.do("dead", lambda q: list(q.dead()))
    elif known:
        wanted = rng.choice(known)
        actor.do("task", (lambda q: q.task(wanted)) if luck == 3 else (lambda q: q.history(wanted)))


def wait(story: Story, actor: Actor) -> None:
    """Time passes, as far as others let it."""
    actor.work(story.rng.choice((0.1, 2.0, 11.0)))


def close(story: Story, actor: Actor) -> None:
    actor.plain("close")


ACTS: dict[str, Act] = {
    act.__name__: act
    for act in (
        insert, insert_many, consume, poll, status, is_drained, release_all, cancel, change_waiting, retry_dead,
        retry_completed,
        purge_dead, gc, purge, delete, create, attach, look, wait, close, idle, trickle, insert_ranked,
        insert_few, insert_few_ranked, insert_many_ranked, consume_ranked, keyed_acts.insert_keyed,
        keyed_acts.insert_many_keyed, keyed_acts.insert_keyed_together, fsck,
    )
} | commit_acts.ACTS | group_acts.ACTS | update_acts.ACTS | relays.ACTS | fork_acts.ACTS | limits.ACTS  # fmt: skip
ACTS |= barrier_acts.ACTS | campaigns.ACTS


def cast(story: Story) -> list[Act]:
    """Who does what in a story: a few tasks are there already, then each worker has a list of acts."""
    rng, scenario = story.rng, story.scenario
    story.purpose(BEFORE)
    before = story.actor("before", story.hosts[0])
    payloads, batch_tasks = story.fresh(rng.randint(0, scenario.tasks_before)), rng.choice((1, 2, 4))
    if payloads or not scenario.group:
        before.insert_many(payloads, batch_tasks)
    before.exit()
    if story.world.disk.lossy:
        story.world.disk.sync_all()
    story.purpose(APART)
    names, weights = list(scenario.actions), list(scenario.actions.values())

    def worker(_: Story, actor: Actor) -> None:
        for number, name in enumerate(story.script(actor, chosen.pop(0)), 1):
            story.begin_act(actor, number)
            ACTS[name](story, actor)

    chosen = [rng.choices(names, weights, k=rng.randint(1, 4)) for _ in range(scenario.workers + 2)]
    return [worker] * rng.randint(min(2, scenario.workers), scenario.workers)
