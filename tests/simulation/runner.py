"""Many stories in several processes."""

from __future__ import annotations

import multiprocessing
import multiprocessing.pool
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.simulation.corpus import keep_found
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.stories import tell
from tests.simulation.wiring import collect, undisturbed

SHARE = 100
"""So many stories are told between two reports."""
FOUND_MOST = 3
"""So many of them are written down if they go wrong: each is told some times more for that."""


@dataclass
class Told:
    """What became of some stories. `wrong`: scenario, seed and findings; the last one says how to keep the story."""

    stories: int = 0
    steps: int = 0
    calls: int = 0
    """Of verbs."""
    faults: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[str, int, list[str]]] = field(default_factory=list)

    def add(self, other: Told) -> None:
        self.stories += other.stories
        self.steps += other.steps
        self.calls += other.calls
        self.faults += other.faults
        self.wrong += other.wrong


def replay_command(scenario: str, seed: int) -> str:
    """What to type to see a story again, exactly."""
    return f"python -m tests.simulation {seed} --scenario {scenario} -v"


def tell_share(job: tuple[str, int, int]) -> Told:
    """Stories of one scenario, from one seed on."""
    name, first, count = job
    told = Told()
    with undisturbed():
        for seed in range(first, first + count):
            story = tell(SCENARIOS[name], seed)
            told.stories += 1
            told.steps += story.world.disk.step
            told.calls += len(story.history.calls)
            told.faults.update(story.fault_kinds)
            if story.wrong:
                found = story.wrong
                if len(told.wrong) < FOUND_MOST:
                    found = [*found[:3], keep_found(name, seed, found)]
                told.wrong.append((name, seed, found))
            story.forget()
            collect(told.stories)
    return told


def shares(names: list[str], first: int, count: int) -> Iterator[tuple[str, int, int]]:
    """The scenarios in turn, each from the first seed on, until there are `count` stories."""
    seeds = first
    while count > 0:
        for name in names:
            size = min(SHARE, count)
            if size <= 0:
                return
            yield name, seeds, size
            count -= size
        seeds += SHARE


def tell_many(names: list[str], first: int, count: int, jobs: int, minutes: float | None = None) -> Iterator[Told]:
    """Reports, as they come in."""
    until = time.monotonic() + minutes * 60 if minutes else None
    if jobs == 1:
        for job in shares(names, first, count):
            yield tell_share(job)
            if until is not None and time.monotonic() > until:
                return
        return
    with multiprocessing.get_context("forkserver").Pool(jobs) as pool:
        waiting: list[multiprocessing.pool.AsyncResult[Told]] = []
        for job in shares(names, first, count):
            waiting.append(pool.apply_async(tell_share, (job,)))
            if len(waiting) > 2 * jobs:
                yield waiting.pop(0).get()
            if until is not None and time.monotonic() > until:
                break
        for result in waiting:
            yield result.get()
