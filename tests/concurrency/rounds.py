"""A round: producers fill a small queue while workers drain it and are killed at random moments; then the books
are checked.

Several rounds go on side by side, each under a process of its own, because they spend their time waiting
for leases to run out. A round follows from its seed as far as the scheduler lets it.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fsqueue import FsqueueError, LeaseLost, Queue
from tests.concurrency.books import Diary, check_drained, check_sound, diaries
from tests.concurrency.processes import Child, at_a_random_moment, children

SIDE_BY_SIDE = 5


@dataclass(frozen=True)
class Plan:
    """What is random about a round, decided by its seed."""

    seed: int
    tasks: int
    lease_s: float
    kills: int
    batch_tasks: int | None
    batch_tasks_max: int
    max_attempts: int | None
    durability: str
    shards: int
    producers: int
    style: str
    stops: int
    interrupts: int

    @classmethod
    def of(cls, seed: int, batch_tasks_max: int) -> Plan:
        """The plan of a seed."""
        dice = random.Random(seed)
        return cls(
            seed=seed,
            tasks=dice.randint(20, 60),
            lease_s=dice.choice([0.3, 0.3, 0.4, 0.6, 1.0]),
            kills=dice.randint(5, 16),
            batch_tasks=dice.choice([None, None, 1, 7, 60]),
            batch_tasks_max=min(batch_tasks_max, dice.choice([1024, 1024, 5])),
            max_attempts=dice.choice([None, None, 2, 4]),
            durability=dice.choice(["none", "none", "default", "strict"]),
            shards=dice.choice([1, 4, 64]),
            producers=dice.choice([0, 1, 2]),
            style=dice.choice(["one", "many", "mixed", "mixed", "poll"]),
            stops=dice.choice([0, 0, 2, 6]),
            interrupts=dice.choice([0, 0, 4, 12]),
        )

    def faults(self, dice: random.Random) -> list[str]:
        """What is done to processes of the round, in order: SIGKILL, SIGSTOP for a while, and SIGINT."""
        faults = ["kill"] * self.kills + ["stop"] * self.stops + ["interrupt"] * self.interrupts
        dice.shuffle(faults)
        return faults


class Worker:
    """A worker of a round: leases, and completes, fails, renews, releases or forgets what it got, until told that
    all is done.
    """

    def __init__(self, path: Path, diary: Path, plan: Plan, number: int) -> None:
        self.queue = Queue(path, worker=f"worker-{number}")
        self.diary = Diary(diary)
        self.plan = plan
        self.dice = random.Random(plan.seed * 1000 + number)

    def work(self) -> None:
        """Until the queue is drained, and the file `over` says that no more will come."""
        over = self.queue.path.parent / "over"
        while True:
            last = over.exists()
            if self.plan.style == "poll":
                for task in self.queue.poll(lease_s=self.plan.lease_s):
                    self.one(task)
            else:
                most = {"one": 1, "many": 50}.get(self.plan.style) or self.dice.choice([1, 1, 2, 5, 50])
                tasks = self.queue.lease(most, lease_s=self.plan.lease_s, wait_s=0.05)
                if len(tasks) > 1 and self.dice.random() < 0.4:
                    self.together(tasks)
                else:
                    for task in tasks:
                        self.one(task)
                if tasks:
                    continue
            if last and self.queue.status().drained:
                return

    def one(self, task) -> None:
        """Deal with one task."""
        chance = self.dice.random()
        try:
            if chance < 0.04:
                return  # forgotten: its lease runs out
            if chance < 0.10:
                task.release()
                return
            if chance < 0.16:
                task.fail("no luck", delay_s=self.dice.choice([0, 0, 0.05]))
                return
            if chance < 0.22:
                task.renew(self.plan.lease_s)
            self.diary.note("try", task.id, task.payload)
            task.complete({"by": 1} if chance > 0.95 else None)
            self.diary.note("done", task.id, task.payload)
        except LeaseLost as error:
            self.diary.note("lost", *error.tasks)

    def together(self, tasks) -> None:
        """Complete several at once."""
        for task in tasks:
            self.diary.note("try", task.id, task.payload)
        lost: set[str] = set()
        try:
            self.queue.complete(tasks)
        except LeaseLost as error:
            lost.update(error.tasks)
            assert lost <= {task.id for task in tasks}
        for task in tasks:
            if task.id not in lost:
                self.diary.note("done", task.id, task.payload)


_is_heeded = False
"""Whether SIGINT raises KeyboardInterrupt in this process just now."""


def _heed(number: int, frame: object) -> None:
    if _is_heeded:
        raise KeyboardInterrupt


@contextmanager
def heeding_interrupts() -> Iterator[None]:
    """What is forked meanwhile hears of SIGINT while it works, and only then."""
    before = signal.signal(signal.SIGINT, _heed)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def work(path: Path, diary: Path, plan: Plan, number: int) -> int:
    """Work to the end, whatever is interrupted meanwhile (its leases run out); returns how often that was."""
    global _is_heeded
    worker, interrupted = Worker(path, diary, plan, number), 0
    while True:
        try:
            _is_heeded = True
            worker.work()
            _is_heeded = False
            return interrupted
        except KeyboardInterrupt:
            _is_heeded = False
            interrupted += 1


def produce(path: Path, diary: Path, plan: Plan, number: int) -> None:
    """Insert some tasks, in several ways, while others work."""
    queue, notes, dice = Queue(path), Diary(diary), random.Random(plan.seed * 1000 + number)
    for step in range(6):
        payloads = [f"p{number}.{step}.{index}" for index in range(dice.choice([1, 1, 3, 8]))]
        for payload in payloads:
            notes.note("will", payload)
        if len(payloads) == 1:
            queue.insert(payloads[0], delay_s=dice.choice([0, 0, 0.05]))
        else:
            queue.insert_many(payloads, batch_tasks=plan.batch_tasks, delay_s=dice.choice([0, 0, 0.05]))
        for payload in payloads:
            notes.note("inserted", payload)
        at_a_random_moment(dice, 0.02)


def prepare(path: Path, notes: Path, plan: Plan) -> Queue:
    """The queue of a round, with its first tasks in it, which a diary below `notes` tells of."""
    notes.mkdir(parents=True)
    queue = Queue.create(
        path,
        shards=plan.shards,
        batch_tasks_max=plan.batch_tasks_max,
        max_attempts=plan.max_attempts,
        durability=plan.durability,
        backoff_s=(0, 0),
    )
    first = [f"f.{index}" for index in range(plan.tasks)]
    queue.insert_many(first, batch_tasks=plan.batch_tasks)
    with Diary(notes / "parent") as diary:
        for payload in first:
            diary.note("inserted", payload)
    return queue


def stop_for_a_while(crew: list[Child], dice: random.Random) -> bool:
    """Stop one of these processes wherever it is (SIGSTOP), and let it go on, perhaps after its leases have ended."""
    victim = dice.choice(crew)
    if not victim.running:
        return False
    victim.signal(signal.SIGSTOP)
    at_a_random_moment(dice, dice.choice([0.005, 0.05, 0.5]))
    victim.signal(signal.SIGCONT)
    return True


def interrupt(victim: Child) -> None:
    """Ctrl-C, wherever it is."""
    if victim.running:
        victim.signal(signal.SIGINT)


def play(directory: Path, plan: Plan, workers: int = 8) -> dict[str, int]:
    """Play a round and check the books; what happened, in numbers. AssertionError if anything is wrong."""
    with heeding_interrupts():
        return _play(directory, plan, workers)


def _play(directory: Path, plan: Plan, workers: int) -> dict[str, int]:
    dice, notes = random.Random(plan.seed), directory / "diaries"
    queue = prepare(directory / "q", notes, plan)
    number = 100
    with children(*((produce, queue.path, notes / f"p{i}", plan, i) for i in range(plan.producers))) as producers:
        crew: list[Child] = []

        def hire() -> Child:
            nonlocal number
            number += 1
            return Child(work, queue.path, notes / f"w{number}", plan, number)

        try:
            crew = [hire() for _ in range(workers)]
            killed = stopped = 0
            for fault in plan.faults(dice):
                at_a_random_moment(dice, dice.choice([0.0002, 0.001, 0.003, 0.01]))
                if fault == "stop":
                    stopped += stop_for_a_while(crew, dice)
                    continue
                if fault == "interrupt":
                    interrupt(dice.choice(crew))
                    continue
                victims = [*crew, *producers] if dice.random() < 0.2 else crew
                victim = dice.choice(victims)
                if victim.running:
                    victim.kill()
                    killed += 1
                    if victim in crew:
                        crew[crew.index(victim)] = hire()
                        victim.close()
            cut_short = 0
            for producer in producers:
                if producer.wait() == -signal.SIGKILL:
                    cut_short += 1
                else:
                    producer.result()
            (directory / "over").touch()
            interrupted = sum(child.result() for child in crew)
        finally:
            for child in crew:
                child.close()
    return {"killed": killed, "stopped": stopped, "interrupted": interrupted, **check(queue, notes, cut_short)}


def check(queue: Queue, notes: Path, cut_short: int) -> dict[str, int]:
    """Compare the queue with what everybody wrote down."""
    lines = diaries(notes)
    completed, dead = check_drained(Queue(queue.path), staged_leftovers=64 * cut_short)
    done = Counter(words[1] for words in lines if words[0] == "done")
    assert all(count == 1 for count in done.values()), f"reported completed twice: {done.most_common(3)}"
    assert set(done) <= completed, f"reported completed, but they are not: {set(done) - completed}"
    tried = {words[1]: words[2] for words in lines if words[0] == "try"}
    assert completed <= set(tried), f"completed by nobody: {completed - set(tried)}"
    letters = {letter.id: letter.payload for letter in queue.dead()}
    assert set(letters) == dead
    ended = Counter([*(tried[task] for task in completed), *letters.values()])
    assert all(count == 1 for count in ended.values()), f"inserted twice: {ended.most_common(3)}"
    inserted = {words[1] for words in lines if words[0] == "inserted"}
    will = inserted | {words[1] for words in lines if words[0] == "will"}
    assert inserted <= set(ended), f"lost: {inserted - set(ended)}; dead: {[*queue.dead()]}"
    assert set(ended) <= will, f"nobody inserted {set(ended) - will}"
    assert queue.status().inserted == len(ended)
    check_sound(queue)
    return {"completed": len(completed), "dead": len(dead), "reported": len(done), "repeated": len(tried) - len(done)}


def play_all(directory: Path, seeds: Iterable[int], batch_tasks_max: int) -> dict[str, int]:
    """Play rounds one after another; the sums of what happened. The seed is in the message of a failure."""
    total: Counter[str] = Counter()
    for seed in seeds:
        plan = Plan.of(seed, batch_tasks_max)
        place = directory / f"round-{seed}"
        try:
            total.update(play(place, plan))
        except (AssertionError, FsqueueError, TimeoutError) as error:
            raise AssertionError(f"seed {seed}, {plan}; files under {place}: {error}") from error
        shutil.rmtree(place)
        total["rounds"] += 1
    return dict(total)


def play_side_by_side(directory: Path, seeds: range, batch_tasks_max: int, timeout_s: float = 300) -> Counter[str]:
    """Play the rounds of many seeds, a few at a time."""
    total: Counter[str] = Counter()
    lanes = [
        (play_all, directory / f"lane-{lane}", list(seeds[lane::SIDE_BY_SIDE]), batch_tasks_max)
        for lane in range(SIDE_BY_SIDE)
    ]
    for _, lane, *_ in lanes:
        lane.mkdir()
    with children(*lanes) as started:
        for child in started:
            total.update(child.result(timeout_s))
    return total
