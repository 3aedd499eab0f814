"""Keys in stories: several processes insert with few keys, and what must hold of it at any time.

Two things are judged by what is on the disk: no two tasks with one key live, and a task that is named in place of a
new one lived during the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import orjson

from fsqueue import Task
from tests.simulation import invariants
from tests.simulation.disk import File
from tests.simulation.history import DONE, Actor
from tests.simulation.replay import AVAILABLE, LEASED, OUTCOMES, Replay

if TYPE_CHECKING:
    from tests.simulation.stories import Story

KEYS = ("k0", "k1")
ACT = "insert_keyed"


def insert_keyed(story: Story, actor: Actor) -> None:
    """Insert a task with one of few keys."""
    _insert(story, actor, story.rng.choice(KEYS), story.rng.choice((0, 0, 0, 3)))
    story.history.wrong += two_living(story)


def _insert(story: Story, actor: Actor, key: str, delay_s: float = 0) -> bool | None:
    """Insert; whether the task is new; None if that was refused."""
    [payload] = story.fresh(1)
    ended = set(_ended(story)).difference(*living(story).values())  # a power loss may have taken an outcome
    ref = actor.do(ACT, lambda q: q.insert(Task(payload, key=key, delay_s=delay_s)), payloads=[payload], key=key)
    call = actor.last
    if ref is None:
        return None
    if ref.inserted:
        call.verb = "insert"  # from here on it is a task like any other
        story.history.saw(payload, ref.id)
    else:
        was_purged = any(call.begin <= step <= call.end for step, _ in story.world.disk.ends)
        if ref.id in ended:
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


def _ended(story: Story) -> Iterator[str]:
    for batch, _, replay in _logs(story):
        yield from (f"{batch}.{index}" for index, task in enumerate(replay.tasks) if task.state in OUTCOMES)


def _was_ever(story: Story, task_id: str) -> bool:
    batch, _, index = task_id.rpartition(".")
    published = any(batch in path for path, _ in invariants.files(story, f"{invariants.generation(story)}/queue"))
    return published or any(one == batch and int(index) < len(replay.tasks) for one, _, replay in _logs(story))


def living(story: Story) -> dict[str, list[str]]:
    """The tasks with keys that live, by their keys."""
    found: dict[str, list[str]] = {}
    states: dict[str, Replay] = {}
    for batch, file, replay in _logs(story):
        if not file.links:
            continue
        states[batch] = replay
        for index, key in replay.keys.items():
            if replay.tasks[index].state in (AVAILABLE, LEASED):
                found.setdefault(key, []).append(f"{batch}.{index}")
    for path, file in invariants.files(story, f"{invariants.generation(story)}/queue"):
        name = path.rpartition("/")[2]
        batch, of_log = name[14:46], states.get(name[14:46])
        for index, line in enumerate(bytes(file.data).split(b"\n")[:-1]):
            try:
                key = orjson.loads(line).get("key")
            except ValueError:
                continue
            if key is None:
                continue
            is_open = of_log is None or not of_log.opened or of_log.tasks[index].state in (AVAILABLE, LEASED)
            if is_open and f"{batch}.{index}" not in found.get(key, ()):
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
        if _insert(story, last, key) is False and last.last.result.id not in living(story).get(key, ()):
            yield f"{last.last}: all tasks had ended, and the key was not free"  # a task that was staged may live now
        if _insert(story, last, key) and last.last.outcome == DONE:
            yield f"{last.last}: the key was taken"
    yield from two_living(story)


def judge_leftovers(story: Story, base: str) -> Iterator[str]:
    """After upkeep no file of a free key is left."""
    for path, _ in invariants.files(story, f"{base}/keys"):
        if "/.nfs" not in path:
            yield f"upkeep left {path}"
