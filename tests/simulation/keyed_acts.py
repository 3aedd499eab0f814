"""Keys in stories: several processes insert with few keys, and what must hold of it at any time.

Three things are judged by what is on the disk: no two tasks with one key live; a task that is named in place of a new
one lived during the call; and of a call that inserts several, as many are there as it has told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from fsqueue import Task
from tests.simulation import invariants
from tests.simulation.disk import File
from tests.simulation.history import DONE, Actor, Call
from tests.simulation.replay import AVAILABLE, LEASED, OUTCOMES, Replay

if TYPE_CHECKING:
    from tests.simulation.stories import Story

KEYS = ("k0", "k1")
MANY_KEYS = (*KEYS, "k2", "k3", "k4")
FREE_MIN = "upkeep.key_files:FREE_MIN"
ACT, ACT_OF_MANY = "insert_keyed", "insert_many_keyed"


def insert_keyed(story: Story, actor: Actor) -> None:
    """Insert a task with one of few keys."""
    _insert(story, actor, story.rng.choice(KEYS), story.rng.choice((0, 0, 0, 3)))
    story.history.wrong += two_living(story)


def insert_many_keyed(story: Story, actor: Actor) -> None:
    """Insert some tasks with one call, most of them with one of few keys."""
    rng = story.rng
    payloads = story.fresh(rng.randint(1, 5))
    keys = {payload: rng.choice((*KEYS, *KEYS, None)) for payload in payloads}
    tasks = [
        Task(payload, key=keys[payload], priority=story.priority(payload), delay_s=rng.choice((0, 0, 0, 3)))
        for payload in payloads
    ]
    batch_tasks = rng.choice((None, 1, 2))
    actor.do(ACT_OF_MANY, lambda q: q.insert_many(tasks, batch_tasks=batch_tasks), payloads=payloads, keys=keys)
    story.history.wrong += two_living(story)


def insert_keyed_together(story: Story, actor: Actor) -> None:
    """Insert tasks with keys in one call, so many that some are inserted together: most have keys of their own."""
    rng = story.rng
    payloads = story.fresh(rng.randint(2, 5))
    drawn = rng.sample(MANY_KEYS, len(payloads))
    keys = {payload: rng.choice((key, key, key, KEYS[0])) for payload, key in zip(payloads, drawn, strict=True)}
    tasks = [Task(payload, key=keys[payload], priority=story.priority(payload)) for payload in payloads]
    actor.do(ACT_OF_MANY, lambda q: q.insert_many(tasks), payloads=payloads, keys=keys)
    story.history.wrong += two_living(story)


def insert_twice(story: Story, actor: Actor) -> None:
    """Insert a task with a key, and once more: the second time its key is taken."""
    for _ in range(2):
        _insert(story, actor, KEYS[0])
    story.history.wrong += two_living(story)


def _insert(story: Story, actor: Actor, key: str, delay_s: float = 0) -> bool | None:
    """Insert; whether the task is new; None if that was refused."""
    [payload] = story.fresh(1)
    # A power loss may have taken an outcome.
    had_ended = set(ended(story)).difference(*living(story).values())
    task = Task(payload, key=key, delay_s=delay_s, priority=story.priority(payload))
    ref = actor.do(ACT, lambda q: q.insert(task), payloads=[payload], key=key)
    call = actor.last
    if ref is None:
        return None
    if ref.inserted:
        call.verb = "insert"  # from here on it is a task like any other
        story.history.saw(payload, ref.id)
    else:
        was_purged = any(call.begin <= step <= call.end for step, _ in story.world.disk.ends)
        if ref.id in had_ended:
            story.history.wrong.append(f"{call}: the task {ref.id} had ended before")
        elif not was_purged and not _was_ever(story, ref.id):
            story.history.wrong.append(f"{call}: there is no task {ref.id}")
    return ref.inserted


def _logs(story: Story) -> Iterator[tuple[str, File, Replay]]:
    """The logs of the current generation that there ever were."""
    present = invariants.directory(story, invariants.generation(story))
    for batch, files in story.world.disk.logs.items():
        for file in files:
            above = file.home.above
            if above is not None and above.above is not None and above.above is present:
                yield batch, file, invariants.replayed(story, file)


def ended(story: Story) -> Iterator[str]:
    """The tasks that have ended."""
    for batch, _, replay in _logs(story):
        yield from (f"{batch}.{index}" for index, task in enumerate(replay.tasks) if task.state in OUTCOMES)


def _was_ever(story: Story, task_id: str) -> bool:
    batch, _, index = task_id.rpartition(".")
    return any(one == batch and int(index) < len(replay.tasks) for one, _, replay in _logs(story))


def living(story: Story) -> dict[str, list[str]]:
    """The tasks with keys that live, by their keys."""
    found: dict[str, list[str]] = {}
    for batch, file, replay in _logs(story):
        for index, key in replay.keys.items() if file.links else ():
            if replay.tasks[index].state in (AVAILABLE, LEASED):
                found.setdefault(key, []).append(f"{batch}.{index}")
    return found


def two_living(story: Story) -> Iterator[str]:
    """Keys with several living tasks."""
    for key, ids in living(story).items():
        if len(ids) > 1:
            yield f"at step {story.world.disk.step} the key {key} has several living tasks: {ids}"


def insert_beside(story: Story, last: Actor) -> Iterator[str]:
    """Insert with each key beside what lives still, also after a power loss."""
    yield from two_living(story)
    for key in KEYS if ACT in story.scenario.actions else ():
        _insert(story, last, key)
    yield from two_living(story)


def insert_at_the_end(story: Story, last: Actor) -> Iterator[str]:
    """When all tasks have ended, every key is free, and taken then."""
    if ACT not in story.scenario.actions:
        return
    for key in KEYS:
        is_new = _insert(story, last, key)
        if is_new is False:
            yield f"{last.last}: all tasks had ended, and the key was not free"
        if _insert(story, last, key) and is_new:  # else the first was refused
            yield f"{last.last}: the key was taken"
    yield from two_living(story)


def judge(story: Story, seen: Collection[str]) -> Iterator[str]:
    """What was told of keyed tasks is what came of them: `seen` are the payloads of all tasks that ever were.

    Of a call with several, those that were inserted are judged from here on as any others.
    """
    ended = max((step for step, _ in story.world.disk.ends), default=-1)
    for call in list(story.history.calls):
        if call.outcome != DONE or call.verb not in (ACT, ACT_OF_MANY):
            continue
        there = [payload for payload in call.args["payloads"] if payload in seen]
        if call.verb == ACT and there:
            yield f"{call}: it was told not to be new, and was inserted"
        if call.verb == ACT_OF_MANY and call.begin > ended:
            lost = [payload for payload, key in call.args["keys"].items() if key is None and payload not in seen]
            if lost or len(there) != call.result:
                yield f"{call}: of its tasks {there} were inserted"
            made = Call(call.actor, "insert", {"payloads": there}, story.world)
            made.begin, made.end, made.outcome = call.begin, call.end, DONE
            story.history.calls.append(made)


def judge_leftovers(story: Story, base: str) -> Iterator[str]:
    """After upkeep no file of a free key is left; on a network mount, where a key epoch begins for one file."""
    if story.scenario.shared and not any(name == FREE_MIN for name, _ in story.scenario.limits):
        return
    for path, _ in invariants.files(story, base):
        if "/keys" in path.removeprefix(base) and "/.nfs" not in path:
            yield f"upkeep left {path}"
