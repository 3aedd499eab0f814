"""Atomic updates in stories: tasks end and come into being in two queues of a group, all together or not at all.

An update is written down as its operations (`Operation`), and as a call of `update`. For the judgement of what is lost
and what is done, each operation also counts as the verb that does the same to one queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fsqueue import LeasedTask, TaskInfo, TaskNotFound
from tests.simulation import group_acts, keyed_acts, relays
from tests.simulation.history import CRASHED, DONE, Actor, Call, original

if TYPE_CHECKING:
    from fsqueue import Queue
    from tests.simulation.stories import Story

KINDS = ("complete", "complete", "complete", "release", "fail", "bury", "renew")
DEPENDING = (*KINDS, "depends", "depends", "depends")
HELD_KINDS = ("complete", "complete", "cancel", "replace", "replace", "release", "renew", "depends")
"""What becomes of a leased task in an update that changes some."""


@dataclass
class Operation:
    """What an update does to one task of one of the two queues: inserts it, ends or renews its lease, changes it, or
    depends on it.
    """

    place: int
    kind: str
    payload: Any
    task: LeasedTask | TaskInfo | None = None
    """The one that is leased, or that was looked up."""
    new: Any = None
    """What is put in the place of the payload."""
    key: str | None = None
    """Of an insert."""
    is_new: bool | None = None
    """Of an insert with a key that was reported: whether there was no task with the key."""
    was: Any = None
    """The payload that the task had when the update was made."""


@dataclass
class Told:
    """An update, and the call that applied it."""

    operations: list[Operation]
    call: Call
    shadows: list[Call] = field(default_factory=list)


@dataclass
class Look:
    """What somebody saw of one of the queues: a task by its id, or all that are not finished. `None`: no such task."""

    call: Call
    place: int
    tasks: dict[str, TaskInfo | None]
    is_all: bool


class Updates:
    """All updates of a story."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.leased: dict[int, list[LeasedTask]] = {}
        """The tasks that were leased for updates, by the place of the queue."""
        self.looks: list[Look] = []


# -- acts ----------------------------------------------------------------------------------------------------


def depend(story: Story, actor: Actor) -> None:
    """As `update`, but some of the tasks are left as they are: the update depends on their leases."""
    update(story, actor, DEPENDING)


def update(story: Story, actor: Actor, kinds: Sequence[str] = KINDS) -> None:
    """Lease some tasks of both queues, and end them in one update that inserts others."""
    rng, queues = story.rng, relays.both(story, actor)
    tasks: list[LeasedTask] = []
    for place in rng.choice(((0,), (1,), (0, 1), (1, 0))):
        mine, leased = queues[place], story.updates.leased
        if leased.get(place) and rng.random() < 0.25:  # by its token, as another process may
            mine.attach(rng.choice(leased[place]).token)
            tasks += [task for task in mine.held if task.id not in {one.id for one in tasks}]
        else:
            got = mine.lease(rng.choice((1, 1, 2)))
            leased.setdefault(place, []).extend(got)
            tasks += got
        mine.held.clear()
    if rng.random() < 0.3:
        actor.work(rng.choice((0.1, 3.0, 12.0)))
    operations = [
        Operation(relays.place_of(task), rng.choice(kinds) if number else "complete", task.payload, task)
        for number, task in enumerate(tasks)
    ]
    for place in (0, 1):
        if rng.random() < (0.7 if operations or place else 0.3):
            operations += [Operation(place, "insert", payload) for payload in story.fresh(rng.choice((1, 1, 2)))]
    if rng.random() < 0.5:
        rng.shuffle(operations)
    if operations:
        apply(story, actor, operations)


def insert_into_both(story: Story, actor: Actor) -> None:
    """Insert into both queues at once."""
    apply(story, actor, [Operation(place, "insert", payload) for place, payload in enumerate(story.fresh(2))])


def change(story: Story, actor: Actor) -> None:
    """Cancel tasks that were looked up or leased, or give them another payload, with others that end or come."""
    rng, queues = story.rng, relays.both(story, actor)
    operations: list[Operation] = []
    for place in rng.choice(((0,), (1,), (0, 1), (0, 1))):
        mine = queues[place]
        if rng.random() < 0.35:
            got = mine.lease(1)
            mine.held.clear()
            operations += [_of_held(story, place, task) for task in got]
        found = mine.do("tasks", lambda q: list(q.tasks())) or []
        for info in rng.sample(found, min(len(found), rng.choice((1, 1, 2)))):
            mine.history.saw(info.payload, info.id)
            if all(one.task is None or one.task.id != info.id for one in operations):
                operations.append(_of_seen(story, place, info))
    if rng.random() < 0.3:
        actor.work(rng.choice((0.1, 3.0, 12.0)))
    for place in (0, 1):
        if rng.random() < 0.4:
            operations += [Operation(place, "insert", payload) for payload in story.fresh(1)]
    if rng.random() < 0.5:
        rng.shuffle(operations)
    if operations:
        apply(story, actor, operations)


def complete_late(story: Story, actor: Actor) -> None:
    """Lease a task, and complete it when the lease has run out: that counts as long as nobody has taken it over."""
    mine = story.rng.choice(relays.both(story, actor))
    got = mine.lease(1)
    if got:
        actor.work(story.rng.choice((11.0, 13.0, 20.0, 40.0)))
        mine.complete(got)


def _of_held(story: Story, place: int, task: LeasedTask) -> Operation:
    kind = story.rng.choice(HELD_KINDS)
    return Operation(place, kind, task.payload, task, _another(story, task.payload, kind), was=task.payload)


def _of_seen(story: Story, place: int, info: TaskInfo) -> Operation:
    kind = story.rng.choice(("replace", "replace", "cancel", "depends"))
    return Operation(place, kind, info.payload, info, _another(story, info.payload, kind), was=info.payload)


def _another(story: Story, payload: Any, kind: str) -> Any:
    """A payload that nobody used before, of which can be told whose it is."""
    return f"{original(payload)}'{story.fresh(1)[0]}" if kind == "replace" else None


def update_keyed(story: Story, actor: Actor) -> None:
    """Lease from a queue, or not, and end that in one update that inserts with few keys."""
    rng, queues = story.rng, relays.both(story, actor)
    operations = []
    if rng.random() < 0.6:
        place = rng.randrange(2)
        got = queues[place].lease(1)
        queues[place].held.clear()
        operations += [
            Operation(place, rng.choice(("complete", "complete", "release")), task.payload, task) for task in got
        ]
    for place in rng.choice(((0,), (1,), (0, 1))):
        keys = rng.sample(keyed_acts.KEYS, rng.choice((1, 1, 2)))
        operations += [
            Operation(place, "insert", payload, key=key)
            for key, payload in zip(keys, story.fresh(len(keys)), strict=True)
        ]
    if rng.random() < 0.3:
        operations += [Operation(rng.randrange(2), "insert", payload) for payload in story.fresh(1)]
    if rng.random() < 0.5:
        rng.shuffle(operations)
    apply(story, actor, operations)
    two_living(story)


def two_living(story: Story) -> None:
    """Note each key of which several tasks live in one of the queues."""
    for view in (story, story.beside()):
        story.history.wrong += keyed_acts.two_living(view)


def look_at_updates(story: Story, actor: Actor) -> None:
    """Look at what updates change, again and again: whoever has seen a part of one must see the rest."""
    rng, queues = story.rng, relays.both(story, actor)
    told = rng.sample(story.updates.told, min(len(story.updates.told), 2))
    for number in range(rng.randint(2, 5)):
        if story.updates.told and (not told or number == 2):
            told = [*told, story.updates.told[-1]]
        if not told:
            actor.work(0.1)
            continue
        one = rng.choice(rng.choice(told).operations)
        mine = queues[one.place]
        if one.task is None or rng.random() < 0.3:
            found = mine.do("tasks", lambda q: list(q.tasks()))
            if found is not None:
                seen: dict[str, TaskInfo | None] = {info.id: info for info in found}
                story.updates.looks.append(Look(mine.last, one.place, seen, True))
        else:
            identity = one.task.id
            info = mine.do("task", lambda q, identity=identity: q.task(identity))  # type: ignore[misc]
            if info is not None or isinstance(mine.last.error, TaskNotFound):
                story.updates.looks.append(Look(mine.last, one.place, {identity: info}, False))
        if rng.random() < 0.3:
            actor.work(rng.choice((0.01, 1.0, 6.0)))


def apply(story: Story, actor: Actor, operations: list[Operation]) -> None:
    """Apply an update, and write it down."""
    queues = relays.both(story, actor)

    def act(queue: Queue) -> list[Any]:
        mine = group_acts.group_of(queue).update()
        for one in operations:
            task: Any = one.task
            match one.kind:
                case "insert":
                    mine.insert(("q", "r")[one.place], one.payload, key=one.key)
                case "complete":
                    mine.complete(task)
                case "release":
                    mine.release(task)
                case "fail":
                    mine.fail(task, "no luck", 0)
                case "bury":
                    mine.bury(task, "no hope")
                case "renew":
                    mine.renew(task)
                case "cancel":
                    mine.cancel(task)
                case "replace":
                    mine.replace(task, one.new)
                case "depends":
                    mine.depends(task)
        return mine.apply()

    shadows = []
    for place, one in enumerate(queues):
        for operation in operations:
            if operation.place == place and operation.kind not in ("replace", "depends"):
                shadows.append(_shadow(story, one, operation))
    call = Call(actor.name, "update", {}, story.world)
    told = Told(operations, call, shadows)
    ended = [
        set(keyed_acts.ended(view)).difference(*keyed_acts.living(view).values())
        for view in ((story, story.beside()) if any(one.key for one in operations) else ())
    ]
    story.updates.told.append(told)
    try:
        found = actor.do("update", act, operations=operations)
        for operation, result in zip(operations, found or (), strict=False):
            if operation.kind == "insert":
                operation.is_new = result.inserted
                if result.inserted:
                    queues[operation.place].history.saw(operation.payload, result.id)
                elif result.id in ended[operation.place]:
                    story.history.wrong.append(f"{actor.last}: the task {result.id} had ended before")
    finally:
        told.call = actor.last
        is_new = {operation.payload: operation.is_new for operation in operations}
        for shadow in shadows:
            shadow.end, shadow.ended = actor.last.end, actor.last.ended
            shadow.outcome = DONE if actor.last.outcome == DONE else CRASHED
            if shadow.verb == keyed_acts.ACT and is_new[shadow.args["payloads"][0]]:
                shadow.verb = "insert"


def _shadow(story: Story, actor: Actor, operation: Operation) -> Call:
    """The verb that does the same to one queue."""
    args: dict[str, Any] = {"payloads": [operation.payload]} if operation.task is None else {"tasks": [operation.task]}
    call = Call(actor.name, operation.kind if operation.key is None else keyed_acts.ACT, args, story.world)
    actor.history.calls.append(call)
    return call


ACTS: dict[str, Callable[[Story, Actor], None]] = {
    act.__name__: act
    for act in (update, depend, insert_into_both, change, complete_late, update_keyed, look_at_updates)
}
