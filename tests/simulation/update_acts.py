"""Atomic updates in stories: tasks end and come into being in two queues of a group, all together or not at all.

An update is written down as its operations (`Operation`), and as a call of `update`. For the judgement of what is lost
and what is done, each operation also counts as the verb that does the same to one queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from fsqueue import FsqueueError, LeasedTask, UpdateConflict
from tests.simulation import group_acts, invariants, relays
from tests.simulation.disk import File
from tests.simulation.history import CRASHED, DONE, REFUSED, Actor, Call
from tests.simulation.replay import SKIPPED, Replay

if TYPE_CHECKING:
    from fsqueue import Queue
    from tests.simulation.stories import Story

NOT_DONE = "Nothing of the update has happened"
DONE_ALL_THE_SAME = "The update has happened"
KINDS = ("complete", "complete", "complete", "release", "fail", "bury", "renew")
DEPENDING = (*KINDS, "depends", "depends", "depends")


@dataclass
class Operation:
    """What an update does to one task of one of the two queues: inserts it, ends or renews its lease, or depends on
    it.
    """

    place: int
    kind: str
    payload: Any
    task: LeasedTask | None = None


@dataclass
class Told:
    """An update, and the call that applied it."""

    operations: list[Operation]
    call: Call
    shadows: list[Call] = field(default_factory=list)


class Updates:
    """All updates of a story."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.leased: dict[int, list[LeasedTask]] = {}
        """The tasks that were leased for updates, by the place of the queue."""


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


def apply(story: Story, actor: Actor, operations: list[Operation]) -> None:
    """Apply an update, and write it down."""
    queues = relays.both(story, actor)

    def act(queue: Queue) -> list[Any]:
        mine = group_acts.group_of(queue).update()
        for one in operations:
            task: Any = one.task
            match one.kind:
                case "insert":
                    mine.insert(("q", "r")[one.place], one.payload)
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
                case "depends":
                    mine.depends(task)
        return mine.apply()

    shadows = []
    for place, one in enumerate(queues):
        for operation in operations:
            if operation.place == place and operation.kind != "depends":
                shadows.append(_shadow(story, one, operation))
    call = Call(actor.name, "update", {}, story.world)
    told = Told(operations, call, shadows)
    story.updates.told.append(told)
    try:
        found = actor.do("update", act, operations=operations)
        for operation, result in zip(operations, found or (), strict=False):
            if operation.kind == "insert":
                queues[operation.place].history.saw(operation.payload, result.id)
    finally:
        told.call = actor.last
        for shadow in shadows:
            shadow.end, shadow.ended = actor.last.end, actor.last.ended
            shadow.outcome = DONE if actor.last.outcome == DONE else CRASHED


def _shadow(story: Story, actor: Actor, operation: Operation) -> Call:
    """The verb that does the same to one queue."""
    args = {"payloads": [operation.payload]} if operation.kind == "insert" else {"tasks": [operation.task]}
    call = Call(actor.name, operation.kind, args, story.world)
    actor.history.calls.append(call)
    return call


ACTS: dict[str, Callable[[Story, Actor], None]] = {
    "update": update,
    "depend": depend,
    "insert_into_both": insert_into_both,
}


# -- the judgement -------------------------------------------------------------------------------------------


def judge(story: Story) -> Iterator[str]:
    """All or nothing; what was reported is true; no two outcomes of one update; at the end nothing is prepared."""
    if not story.updates.told:
        return
    logs = [
        (file, invariants.replayed(story, file), _is_current(story, file))
        for files in story.world.disk.logs.values()
        for file in files
    ]
    ends = Counter(
        (call.verb, task.id, task.lease)
        for history in (story.history, story.history_beside)
        for call in history.calls
        for task in call.args.get("tasks", ())
    )
    ends.update(
        (one.kind, one.task.id, one.task.lease)
        for told in story.updates.told
        for one in told.operations
        if one.kind == "depends" and one.task is not None
    )
    for told in story.updates.told:
        yield from _judge(story, told, [one for one in told.operations if not _is_others(one, ends)], logs)
    yield from _outcomes(story, logs)
    if not story.power_lost or story.durable:
        yield from _rest(story, logs)


def _is_current(story: Story, log: File) -> bool:
    """Whether a log is in the present generation of one of the queues."""
    movements = log.home.above
    base = movements.above if movements is not None else None
    return any(base is invariants.directory(story, invariants.generation(view)) for view in (story, story.beside()))


Logs = list[tuple[File, Replay, bool]]


def _is_others(operation: Operation, ends: Counter[tuple[str, str, str]]) -> bool:
    """Whether another call did the same with the same lease: then nothing tells which of them it was."""
    task = operation.task
    return task is not None and ends[operation.kind, task.id, task.lease] > 1


def _judge(story: Story, told: Told, operations: list[Operation], logs: Logs) -> Iterator[str]:
    if story.power_lost and not story.durable:
        return
    ended = max((step for step, _ in story.world.disk.ends), default=-1)
    acted = []
    for operation in operations:
        times = sum(_acted(operation, one) for _, one, _ in logs)
        if times > 1 and operation.kind == "insert":
            yield f"{told.call}: {operation.payload!r} was inserted {times} times"
        acted.append(times > 0)
    if not acted:
        return
    is_excused = ended >= told.call.begin  # a queue that was purged or deleted needs no outcome
    if any(acted) and not all(acted) and not is_excused:
        yield f"{told.call}: a part of it has happened: {list(zip(map(_shown, operations), acted, strict=True))}"
    error = told.call.error
    if told.call.outcome == DONE and not all(acted) and not is_excused and told.call.end > story.forgotten_until:
        yield f"{told.call}: it was reported done, and it was not"
    if told.call.outcome == REFUSED and isinstance(error, FsqueueError):
        says_not = isinstance(error, UpdateConflict) or NOT_DONE in str(error)
        if says_not and any(acted):
            yield f"{told.call}: it says that nothing has happened, and it has"
        if DONE_ALL_THE_SAME in str(error) and not all(acted) and not is_excused:
            yield f"{told.call}: it says that it has happened, and it has not"


def _acted(operation: Operation, log: Replay) -> int:
    if operation.kind == "insert":
        return sum(
            payload == operation.payload and log.tasks[index].state != SKIPPED
            for index, payload in log.payloads.items()
        )
    task = operation.task
    assert task is not None
    kinds = ("fail", "bury") if operation.kind == "fail" else (operation.kind,)
    return sum(log.acted(task.index, kind, task.lease) for kind in kinds)


def _shown(operation: Operation) -> str:
    return f"{operation.kind} {operation.payload}"


def _outcomes(story: Story, logs: Logs) -> Iterator[str]:
    """An update has one outcome in all logs: that of the first line in its decision file."""
    found: dict[str, set[str]] = {}
    for _, one, _ in logs:
        for update_id, outcome in one.decided:
            found.setdefault(update_id, set()).add(outcome)
    said = dict(_said(story))
    for update_id, outcomes in found.items():
        if len(outcomes) > 1:
            yield f"the update {update_id} was both committed and aborted"
        if "commit" in outcomes and said.get(update_id, "commit") != "commit" and not story.power_lost:
            yield f"the update {update_id} was committed in a log, and its file says {said[update_id]}"
        if "abort" in outcomes and said.get(update_id) == "commit" and not story.power_lost:
            yield f"the update {update_id} was aborted in a log, and its file says commit"


def _said(story: Story) -> Iterator[tuple[str, str]]:
    """What the first line about each update says, in all decision files that ever were."""
    for file in story.world.disk.files:
        if not bytes(file.data[:18]).startswith(b'{"op":"decisions"'):
            continue
        first: dict[str, str] = {}
        for line in bytes(file.data).split(b"\n")[:-1]:
            try:
                record = orjson.loads(line)
            except ValueError:
                continue
            if record.get("op") == "gone":
                break
            if record.get("op") in ("commit", "abort"):
                first.setdefault(record["update"], record["op"])
        yield from first.items()


def _rest(story: Story, logs: Logs) -> Iterator[str]:
    """At the end nothing is prepared in a log that counts."""
    for file, one, is_current in logs:
        if one.prepared and is_current and file.links:
            yield f"at the end {sorted(one.prepared)} are prepared"
