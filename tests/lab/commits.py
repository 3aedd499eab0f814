"""Named commits in the labs: under power cuts, and by two NFS clients at once."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from fsqueue import Commit, CommitLost, CommitPart, FsqueueError, Queue
from tests.concurrency.books import Diary, check_drained, diaries
from tests.concurrency.processes import PATIENCE_S, Child, at_a_random_moment, children
from tests.lab.evidence import explained
from tests.waiting import until

TASKS = 40


# -- power -----------------------------------------------------------------------------------------------------


def keep_committing(queue: Queue, diary: Diary, who: str, dice: random.Random) -> None:
    """One name after the other, some of them twice, and some that the other one uses, too."""
    for step in range(100_000):
        shared = dice.random() < 0.3
        name = f"both-{step}" if shared else f"{who}-{step}"
        payloads = [f"{name}/{who}.{index}" for index in range(TASKS)]
        diary.note("will-commit", name)
        commit = queue.commit(name)
        parts = [commit.stage(payloads[start::2], batch_tasks=dice.choice([7, 20])) for start in range(2)]
        report = commit.publish(parts)
        diary.note("committed", name, report.tasks, report.repeated)
        diary.note("inserted", name)  # somebody got something done
        if dice.random() < 0.2:
            assert queue.insert_many(payloads, commit=name) == 0


def check_after_cut(queue: Queue, lines: list[list[str]]) -> dict[str, int]:
    """What was reported committed is all there, of one author; what the cut met is there as a whole or not at all."""
    told = {line[1] for line in lines if line[0] == "committed"}
    begun = {line[1] for line in lines if line[0] == "will-commit"}
    known = {name for name in begun if queue.commit(name).committed() is not None}
    assert told <= known, f"reported committed, and there is no record: {sorted(told - known)[:5]}"
    assert queue.status().inserted == TASKS * len(known), f"{queue.status()}, but {len(known)} commits of {TASKS} tasks"
    there: dict[str, Counter[str]] = defaultdict(Counter)
    authors: dict[str, set[str]] = defaultdict(set)

    def is_drained() -> bool:
        for task in queue.lease(100, wait_s=1):
            name, _, rest = task.payload.partition("/")
            there[name][rest] += 1
            authors[name].add(rest.partition(".")[0])
            task.complete()
        return queue.status().drained

    until(is_drained, "all to be drained", PATIENCE_S)
    assert there.keys() == known, f"{sorted(there.keys() ^ known)[:5]} is not what was decided"
    for name, found in there.items():
        assert len(authors[name]) == 1, f"{name} has tasks of {authors[name]}"
        assert len(found) == TASKS, f"{name} has {len(found)} of {TASKS} tasks"
        assert set(found.values()) == {1}, f"{name} has tasks twice"
    for name in sorted(begun - known):
        assert queue.insert_many([f"{name}/again.{index}" for index in range(3)], commit=name) == 3
    return {"inserted": len(told), "there": len(known), "met by the cut": len(begun - told)}


# -- NFS -------------------------------------------------------------------------------------------------------


def commit_all(path: Path, notes: Path, names: list[str], seed: int) -> int:
    """Commit each name, and note what was answered; a death is somebody else's matter."""
    queue, who, dice = Queue(path), notes.name, random.Random(seed)
    with Diary(notes) as diary:
        for name in names:
            payloads = [f"{name}/{who}.{index}" for index in range(dice.choice([3, 10]))]
            commit = queue.commit(name)
            parts = [commit.stage(payloads[:2], batch_tasks=1), commit.stage(payloads[2:], batch_tasks=4)]
            try:
                report = commit.publish(parts)
            except FsqueueError as error:
                diary.note("refused", name, error)
                raise
            diary.note("committed", name, report.tasks, report.repeated)
    return os.getpid()


def race(seed: int, commits: int, kills: int) -> dict[str, int]:
    """Processes at two clients commit the same names at once, and some are killed; then everything is repeated."""
    queue_name = f"commits-{seed}"
    notes = Path("/tmp") / queue_name
    notes.mkdir()
    here, there = Path("/c1") / queue_name, Path("/c2") / queue_name
    Queue.create(here, shards=4)
    with explained(Path("/export") / queue_name, notes):
        return _race(here, there, notes, seed, commits, kills)


def _race(here: Path, there: Path, notes: Path, seed: int, commits: int, kills: int) -> dict[str, int]:
    queue_name, dice = here.name, random.Random(seed)
    names = [f"n{number}" for number in range(commits)]
    killed = number = 0
    with children() as crew:
        for kill in range(kills + 1):
            for client in (here, there):
                number += 1
                crew.append(Child(commit_all, client, notes / f"w{number}", names, seed * 1000 + number))
            if kill < kills:
                at_a_random_moment(dice, 0.5)
                victim = dice.choice(crew[-2:])
                killed += victim.running
                victim.kill()
        for child in crew:
            assert child.wait() in (0, -signal.SIGKILL), child.report()
    told: dict[str, set[str]] = defaultdict(set)
    new: Counter[str] = Counter()
    for line in diaries(notes):
        told[line[1]].add(line[2])
        new[line[1]] += line[3] == "False"
    truth: dict[str, int] = {}
    for name in names:
        reports = [Queue(path).commit(name).committed() for path in (here, there)]
        assert all(report is not None for report in reports), name
        assert len({report.tasks for report in reports if report}) == 1, reports
        truth[name] = reports[0].tasks if reports[0] else 0
        assert told[name] <= {str(truth[name])}, f"{name}: told {told[name]}, but {truth[name]} were committed"
        assert new[name] <= 1, f"{name} was reported new {new[name]} times"
    for path in (here, there):
        assert Queue(path).status().inserted == sum(truth.values()), Queue(path).status()
    found: dict[str, Counter[str]] = defaultdict(Counter)
    queue = Queue(there)
    while tasks := queue.lease(50):
        for task in tasks:
            name, _, rest = task.payload.partition("/")
            found[name][rest] += 1
        queue.complete(tasks)
    for name, payloads in found.items():
        assert sum(payloads.values()) == len(payloads) == truth[name], f"{name}: {payloads}"
        assert len({payload.partition(".")[0] for payload in payloads}) == 1, f"{name} has tasks of two authors"
    check_drained(Queue(Path("/export") / queue_name), staged_leftovers=1 << 20)
    return {"commits": commits, "killed": killed, "tasks": sum(truth.values())}


def stage_part(path: Path, name: str, attempt: str, start: int) -> dict[str, Any]:
    """Stage at a client what another one publishes."""
    part = Commit(Queue(path).store, name, attempt).stage(range(start, start + 25), batch_tasks=5)
    return part.as_dict()


def publish_elsewhere(rounds: int = 4) -> dict[str, int]:
    """What one client staged the other one publishes at once, and the first one sees all of it at once."""
    here, there = Path("/c1/handover"), Path("/c2/handover")
    Queue.create(here, shards=4)
    first, second = Queue(here), Queue(there)
    for number in range(rounds):
        commit = second.commit(f"c{number}")
        second.lease(), first.lease()  # both have listed everything just now
        with children(*((stage_part, here, commit.name, commit.attempt, 25 * each) for each in range(3))) as crew:
            parts = [CommitPart(**child.result()) for child in crew]
        assert first.status().waiting == second.status().waiting == 0
        assert commit.publish(parts).tasks == 75
        assert first.status().waiting == 75, f"round {number}: {first.status()}"
        tasks = first.lease(100)
        assert sorted(task.payload for task in tasks) == list(range(75)), f"round {number}"
        first.complete(tasks)
        assert second.is_drained(), f"round {number}"
        assert first.commit(commit.name).publish(parts[:1]).repeated
        dropped = first.commit(f"dropped{number}")
        part = dropped.stage(range(5), batch_tasks=2)
        assert Commit(second.store, dropped.name, dropped.attempt).discard()
        try:
            assert not dropped.publish([part]), "what the other client had discarded was published"
        except CommitLost:
            assert dropped.publish([dropped.stage([])]).tasks == 0
    return {"rounds": rounds}
