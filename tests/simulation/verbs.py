"""The verbs of a queue, each as somebody would call it on a queue of two tasks: what the exhaustive part is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from unittest import mock

from fsqueue import LeasedTask, Queue
from fsqueue.protocol import encoding, revoking
from fsqueue.protocol.waiting import IdlePoller
from fsqueue.storage import listing
from tests.simulation import commit_acts, invariants, keyed_acts
from tests.simulation.acts import ACTS, ask, work_loop
from tests.simulation.history import DONE, Actor

if TYPE_CHECKING:
    from tests.simulation.stories import Story

LEASE, LEASED, LETTER, LEFTOVERS, NO_QUEUE = "lease", "leased", "letter", "leftovers", "no queue"
"""What must be there: its caller holds tasks; anybody does; a dead letter; what crashes leave; nothing."""
STAGED = "staged"
"""Parts of a commit that were staged and not published."""


@dataclass(frozen=True)
class Verb:
    """`needs`: what is to be prepared before it can do what it is for."""

    name: str
    act: Callable[[Story, Actor], None]
    needs: frozenset[str] = frozenset()


def insert(story: Story, actor: Actor) -> None:
    actor.insert(*story.fresh(1))


def insert_urgent(story: Story, actor: Actor) -> None:
    """The first task with a priority: the queue has an order from then on, and an open batch's file another name."""
    actor.insert(*story.fresh(1), priority="a")


def lease_up_to(story: Story, actor: Actor) -> None:
    """What is urgent, and nothing else."""
    insert_urgent(story, actor)
    ask(story, actor, 5, up_to="b")
    ask(story, actor, 5, up_to="b")


def insert_many(story: Story, actor: Actor) -> None:
    """One group of two batches."""
    actor.insert_many(story.fresh(3), 2)


def insert_few(story: Story, actor: Actor) -> None:
    """Several tasks, by one append."""
    actor.insert_many(story.fresh(3), None)


def insert_groups(story: Story, actor: Actor) -> None:
    """Two groups, one after the other."""
    with mock.patch.object(encoding, "GROUP_BATCHES_MAX", 1):
        actor.insert_many(story.fresh(2), 1)


def insert_twice(story: Story, actor: Actor) -> None:
    insert(story, actor)
    insert(story, actor)


def insert_keyed(story: Story, actor: Actor) -> None:
    keyed_acts.insert_twice(story, actor)


def lease(story: Story, actor: Actor) -> None:
    ask(story, actor, 1)


def lease_many(story: Story, actor: Actor) -> None:
    """More than there are: over all batches, and until nothing is left."""
    ask(story, actor, 5)


def lease_again(story: Story, actor: Actor) -> None:
    """What there is, and then once more."""
    ask(story, actor, 5)
    ask(story, actor, 5)


def purge_and_insert(story: Story, actor: Actor) -> None:
    """The queue is emptied, and something else is put into it."""
    ACTS["purge"](story, actor)
    insert_many(story, actor)


def complete(story: Story, actor: Actor) -> None:
    actor.complete(list(actor.held))


def complete_each(story: Story, actor: Actor) -> None:
    for task in list(actor.held):
        actor.complete([task])


def fail(story: Story, actor: Actor) -> None:
    for task in list(actor.held):
        actor.fail(task, 0)


def bury(story: Story, actor: Actor) -> None:
    for task in list(actor.held):
        actor.bury(task)


def release(story: Story, actor: Actor) -> None:
    actor.release(list(actor.held))


def renew(story: Story, actor: Actor) -> None:
    """To an earlier end, so that the task file is renamed, too."""
    actor.renew(list(actor.held), 1)


def poll(story: Story, actor: Actor) -> None:
    """The work loop: completing leases the next in the same append."""
    work_loop(story, actor, prefetch=1, rounds=3)


def idle_looks(story: Story, actor: Actor) -> None:
    """An idle worker, which looks every few seconds. Another inserts a task; leases run out, of which nobody tells."""
    idle_poller: IdlePoller | None = None

    def look(queue: Queue) -> list[LeasedTask]:
        nonlocal idle_poller
        idle_poller = idle_poller or IdlePoller(queue._leaser, queue._lease_ms(None))
        try:
            return idle_poller.look(2)
        except OSError as error:
            raise queue.store.explain(error, "leasing") from error

    for number in range(6):
        actor.took(actor.do("lease", look, n=2) or [])
        call = actor.last
        if call.outcome == DONE and not call.result:
            story.history.wrong += invariants.false_empty(story, call, actor.persona.process)
        if number == 1:
            producer = story.actor("producer", story.hosts[0])
            producer.insert(*story.fresh(1))
            producer.exit()
        actor.work(3)


def cancel(story: Story, actor: Actor) -> None:
    actor.cancel(story.known)


def create_anew(story: Story, actor: Actor) -> None:
    """Where there is no queue any more."""
    actor.create(story.settings)


def replace(story: Story, actor: Actor) -> None:
    """The queue is deleted, and another created at the same path."""
    ACTS["delete"](story, actor)
    create_anew(story, actor)
    insert(story, actor)


def fsck(story: Story, actor: Actor) -> None:
    actor.do("fsck", lambda q: list(q.fsck(repair=True)))


def expire(story: Story, actor: Actor) -> None:
    """End all leases as if they ran out now, as is done for a worker that is proven dead. Here it may live."""

    def end(queue: Queue) -> object:
        try:
            return revoking.expire_in(queue.store, listing.with_logs(queue.store), lambda replay_state, index: True)
        except OSError as error:
            raise queue.store.explain(error, "ending leases") from error

    actor.do("expire", end)


def tasks(story: Story, actor: Actor) -> None:
    actor.do("tasks", lambda q: list(q.tasks()))


def _verbs() -> list[Verb]:
    def verb(act: Callable[[Story, Actor], None], *needs: str) -> Verb:
        return Verb(act.__name__.replace("_", "-"), act, frozenset(needs))

    return [
        *map(
            verb, (insert, insert_many, insert_few, insert_groups, insert_twice, lease, lease_many, lease_again, poll)
        ),
        *map(verb, (cancel, tasks, insert_urgent, insert_keyed, lease_up_to)),
        verb(idle_looks),
        *(verb(act, LEASE) for act in (complete, complete_each, fail, bury, release, renew)),
        verb(ACTS["retry_dead"], LETTER),
        verb(ACTS["purge_dead"], LETTER),
        verb(ACTS["release_all"], LEASED),
        verb(expire, LEASED),
        *(verb(ACTS[name]) for name in ("status", "is_drained", "purge", "delete", "create")),
        verb(ACTS["gc"], LEFTOVERS),
        verb(fsck, LEFTOVERS),
        verb(create_anew, NO_QUEUE),
        verb(replace),
        verb(purge_and_insert),
        *(verb(act, STAGED) for act in commit_acts.VERBS),
    ]


VERBS = {verb.name: verb for verb in _verbs()}
"""By name."""
FIRST_CLASS = [
    *(
        "insert",
        "insert-many",
        "insert-few",
        "insert-groups",
        "lease",
        "poll",
        "complete",
        "fail",
        "bury",
        "release",
        "renew",
    ),
    *("cancel", "retry-dead", "purge-dead", "release-all", "status", "purge", "delete", "gc", "fsck"),
    *("publish-staged", "overwrite-staged", "replace"),
]
"""Those that are set against each other in each run of the tests."""
