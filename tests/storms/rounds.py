"""A round of a storm: its plan by a seed, its processes and their faults, and its end."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest import mock

from fsqueue import FsqueueError, Group
from fsqueue.protocol import finishing
from tests.concurrency.processes import Child, children
from tests.storms import books
from tests.storms.caller import Caller, work
from tests.storms.crew import Crew, adopt_orphans, wait_for_orphans
from tests.storms.journal import Journal

Asker = Callable[[Path, str, Path, int], int]
"""Asks, given the group, the address of a gateway, where journals are, and a seed; how often."""


@dataclass(frozen=True)
class Storm:
    """What is done in the rounds of a kind of storm."""

    name: str
    workers: type[Caller]
    begin: Callable[[Group, Journal], None]
    """Puts the first tasks in."""
    queues: tuple[str, ...]
    max_attempts: tuple[int | None, ...]
    askers: tuple[Asker, ...] = ()
    """They ask for the end of all tasks as long as the round lasts; they are not killed."""


@dataclass(frozen=True)
class Plan:
    """What is random about a round, decided by its seed."""

    seed: int
    faults: int
    local: int
    remote: int
    gateways: int
    shards: int
    durability: str
    max_attempts: int | None
    linger_ms: int

    @classmethod
    def of(cls, storm: Storm, seed: int, faults: int) -> Plan:
        """Return the plan of a seed."""
        dice = random.Random(seed)
        return cls(
            seed=seed,
            faults=faults,
            local=dice.choice([2, 3]),
            remote=dice.choice([2, 3]),
            gateways=dice.choice([1, 2]),
            shards=dice.choice([1, 2, 8]),
            durability=dice.choice(["none", "default", "strict"]),
            max_attempts=dice.choice(storm.max_attempts),
            linger_ms=dice.choice([-1, finishing.LINGER_MS]),
        )


def play(storm: Storm, directory: Path, seed: int, faults: int) -> dict[str, int]:
    """Play the round of a seed in a directory, and judge it; what happened, in numbers.

    AssertionError, which names the seed, if anything is wrong; then its files stay. The process is used for nothing
    else.
    """
    plan, place = Plan.of(storm, seed, faults), directory / f"{storm.name}-{seed}"
    try:
        found = _play(storm, place, plan)
    except (AssertionError, FsqueueError, TimeoutError) as error:
        raise AssertionError(f"seed {seed}, {plan}; files under {place}: {error}") from error
    shutil.rmtree(place)
    return found


def _play(storm: Storm, place: Path, plan: Plan) -> dict[str, int]:
    adopt_orphans()
    dice, notes = random.Random(plan.seed), place / "journals"
    notes.mkdir(parents=True)
    group = Group.create(
        place / "group",
        shards=plan.shards,
        durability=plan.durability,  # type: ignore[arg-type]
        max_attempts=plan.max_attempts,
        backoff_s=(0, 0),
        keep_payloads=1 << 20,
    )
    main = Journal(notes, "main")
    storm.begin(group, main)

    def hire(number: int, urls: list[str]) -> Child:
        is_local = number % (plan.local + plan.remote) < plan.local
        url = None if is_local else dice.choice(urls)
        return Child(work, storm.workers, group.path, url, notes, plan.seed, number)

    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(finishing, "LINGER_MS", plan.linger_ms))
        crew = stack.enter_context(Crew(group, place, dice, hire, plan.local + plan.remote, plan.gateways))
        url = crew.gateways[0].url
        askers = stack.enter_context(
            children(*((asker, group.path, url, notes, plan.seed) for asker in storm.askers)),
        )
        crew.suffer(plan.faults)
        (place / "over").touch()
        for told in crew.results():
            counts.update(told)
        odd = wait_for_orphans(crew.pids | {asker.pid for asker in askers})
        ends = time.monotonic()
        _drain(storm.queues, group, Journal(notes, "drain"))
        (place / "drained").touch()
        counts["asked"] += sum(asker.result() for asker in askers)
        odd += crew.odd()
        counts.update(crew.counts)
    odd += wait_for_orphans(set())
    found, wrong = books.judge(group, notes)
    odd += wrong
    odd += books.lies(notes, ends)
    assert not odd, "\n".join(odd)
    return dict(counts + Counter(found))


def _drain(queues: Iterable[str], group: Group, journal: Journal) -> None:
    """Complete what is left, once all leases have ended."""
    caller = Caller(group, journal, random.Random(0), is_troubled=False)
    for name in queues:
        queue = group[name]
        while not queue.status().drained:
            tasks = queue.lease(20, lease_s=600, wait_s=10)
            if tasks:
                caller.complete(tasks)


def play_apart(storm: Storm, directory: Path, seed: int, faults: int) -> dict[str, int]:
    """Play a round in a process of its own; AssertionError if it goes wrong."""
    with children((partial(play, storm), directory, seed, faults)) as [child]:
        found: dict[str, int] = child.result(timeout_s=3600)
    return found
