"""A whole queue, with two workers on the same directory, against a trivial model in memory."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fsqueue import LeasedTask, LeaseExpired, LeaseLost, Queue, Task, TaskNotFound, administration
from fsqueue.clock import Entropy, ManualClock
from fsqueue.format.replay import ReplayState
from tests.levels import how_many
from tests.support import counted, drain, full_state, leftovers, task_file_names

MARGIN_MS = 50
MAX_ATTEMPTS = 3


@dataclass
class Model:
    """A task as the user thinks of it."""

    id: str
    payload: Any
    available_at: int
    state: str = "open"
    """open, leased, completed, dead, cancelled"""
    until: int = 0
    token: str = ""
    alone: bool = True
    """Whether its lease is of this task alone."""
    span: int = 0
    solo: bool = False
    attempts: int = 0
    result: Any = None
    error: str | None = None
    path: list[str] = field(default_factory=lambda: ["insert"])

    def move(self, op: str, state: str) -> None:
        self.path.append(op)
        self.state = state

    def charged(self) -> int:
        return self.attempts + (self.state == "leased" and self.alone)

    def is_lonely(self) -> bool:
        return self.solo or (self.state == "leased" and not self.alone)

    def may_be_taken(self, now: int) -> bool:
        if self.state == "open":
            return self.available_at <= now
        return self.state == "leased" and self.until + min(MARGIN_MS, self.span // 10) <= now

    def must_be_taken(self, now: int) -> bool:
        if self.state == "open":
            return self.available_at <= now
        return self.state == "leased" and self.until + MARGIN_MS <= now

    def shown(self, now: int) -> str:
        if self.state == "open":
            return "waiting" if self.available_at <= now else "delayed"
        if self.state == "leased":
            return "leased" if now < self.until else "waiting"
        return self.state

    @property
    def due(self) -> int:
        return self.available_at if self.state == "open" else self.until


class SeededEntropy(Entropy):
    """The same identifiers and choices in every run: a failure can be replayed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)

    def hex16(self) -> str:
        return f"{self._random.getrandbits(64):016x}"


seconds = st.sampled_from([0.02, 1, 9.98, 10, 10.03, 60, 700])
leases = st.sampled_from([0.2, 1, 10, 50])
picks = st.integers(0, 10**6)
which = st.integers(0, 1)


class QueueMachine(RuleBasedStateMachine):
    def __init__(self, tasks_a_batch: int) -> None:
        super().__init__()
        self.tasks_a_batch = tasks_a_batch
        self.directory = tempfile.mkdtemp(prefix="fsqueue-")
        self.clock = ManualClock()
        self.tasks: dict[str, Model] = {}
        self.held: list[LeasedTask] = []
        """Everything that was ever leased and not completed: also what was given back or lost since."""
        self.completed = 0
        """Completed tasks, of this generation."""
        self.number = 0
        self.step = 0
        self.opened = 0

    @initialize(shards=st.sampled_from([1, 3]), batch=st.sampled_from([1, 4, 1024]))
    def create(self, shards: int, batch: int) -> None:
        self.queues = [
            Queue.create(
                f"{self.directory}/q",
                shards=shards,
                batch_tasks_max=min(batch, self.tasks_a_batch),
                max_attempts=MAX_ATTEMPTS,
                durability="none",
                backoff_s=(2, 30),
            )
        ]
        self.queues = [self.open(number) for number in range(2)]

    def open(self, number: int) -> Queue:
        self.opened += 1
        entropy = SeededEntropy(self.opened)
        return Queue(f"{self.directory}/q", worker=f"w{number}", clock=self.clock, entropy=entropy)

    @property
    def now(self) -> int:
        return self.clock.now_ms()

    def teardown(self) -> None:
        try:
            if hasattr(self, "queues"):
                self.finish()
        finally:
            for queue in getattr(self, "queues", ()):
                queue.close()
            shutil.rmtree(self.directory, ignore_errors=True)

    def finish(self) -> None:
        """In the end everything can be drained, and nothing is left over."""
        queue = self.queues[0]
        before = queue.status()
        self.clock.advance(1000)
        executed = drain(queue, self.clock)
        after = queue.status()
        assert max(executed.values(), default=0) <= 1
        assert after.drained
        assert after.inserted == before.inserted
        assert after.completed == before.completed + sum(executed.values())
        assert after.dead - before.dead == before.remaining - sum(executed.values())
        queue.gc()
        assert leftovers(queue) == []
        assert counted(queue) == after.completed
        assert queue.status() == after

    # -- inserting ----------------------------------------------------------------

    @rule(worker=which, delay_s=st.sampled_from([0, 0, 0.5, 10]))
    def insert(self, worker: int, delay_s: float) -> None:
        self.number += 1
        ref = self.queues[worker].insert(self.number, delay_s=delay_s)
        self.tasks[ref.id] = Model(ref.id, self.number, self.now + round(delay_s * 1000))

    @rule(
        worker=which,
        delays=st.lists(st.sampled_from([0, 0, 0, 5]), min_size=1, max_size=7),
        batch=st.sampled_from([None, 2, 5]),
    )
    def insert_many(self, worker: int, delays: list[float], batch: int | None) -> None:
        first = self.number + 1
        self.number += len(delays)
        tasks = [Task(first + place, delay_s=delay) for place, delay in enumerate(delays)]
        assert self.queues[worker].insert_many(tasks, batch_tasks=batch) == len(tasks)
        self.learn({task.payload: self.now + round(task.delay_s * 1000) for task in tasks})

    def learn(self, due: dict[Any, int]) -> None:
        """Find out the ids of new tasks, by their payloads."""
        new = [info for info in self.queues[0].tasks() if info.id not in self.tasks]
        assert sorted(info.payload for info in new) == sorted(due)
        for info in new:
            self.tasks[info.id] = Model(info.id, info.payload, due[info.payload])

    # -- leasing ------------------------------------------------------------------

    @rule(worker=which, n=st.sampled_from([1, 1, 2, 3, 20]), lease_s=leases, strict=st.booleans())
    def lease(self, worker: int, n: int, lease_s: float, strict: bool) -> None:
        now = self.now
        may = {one.id for one in self.tasks.values() if one.may_be_taken(now)}
        must = {one.id for one in self.tasks.values() if one.must_be_taken(now)}
        lonely = {one.id for one in self.tasks.values() if one.is_lonely()}
        spent = {one for one in may if self.tasks[one].charged() >= MAX_ATTEMPTS}
        got = self.queues[worker].lease(n, lease_s=lease_s, strict=strict)
        ids = {task.id for task in got}
        assert len(got) == len(ids) <= n
        assert ids <= may - spent
        if ids & lonely:
            assert len(ids) == 1, "a task that may kill its worker goes alone"
        elif len(ids) < n:
            missed = must - spent - ids - (lonely if ids else set())
            assert not missed, "an empty answer, or a short one, means that no more is there"
        self.bury_spent(spent, all_of_them=must & spent if len(ids) < n and not ids & lonely else set())
        groups: dict[str, int] = {}
        for task in got:
            groups[task.lease] = groups.get(task.lease, 0) + 1
        for task in got:
            one = self.tasks[task.id]
            one.attempts, one.solo = one.charged(), one.is_lonely()
            assert (task.payload, task.attempt) == (one.payload, one.attempts + 1)
            assert task.solo == (task.id in lonely)
            assert task.until_ms == now + round(lease_s * 1000)
            one.move("lease", "leased")
            one.until, one.span, one.token = task.until_ms, task.until_ms - now, task.token
            one.alone = groups[task.lease] == 1 and (n == 1 or task.solo)
        self.held += got

    def bury_spent(self, candidates: set[str], all_of_them: set[str]) -> None:
        """What is out of attempts is buried by whoever would lease it."""
        if not candidates:
            return
        letters = {letter.id: letter for letter in self.queues[0].dead()}
        assert all_of_them <= set(letters)
        for id in candidates & set(letters):
            one = self.tasks[id]
            one.attempts = one.charged()
            assert letters[id].attempt == one.attempts == MAX_ATTEMPTS
            assert letters[id].payload == one.payload
            assert letters[id].reason.startswith("lease expired, last worker w")
            one.move("bury", "dead")
            one.error = letters[id].reason

    # -- ending leases ---------------------------------------------------------------

    def holds(self, task: LeasedTask) -> bool:
        one = self.tasks.get(task.id)
        return one is not None and one.state == "leased" and one.token == task.token

    def pick(self, place: int) -> LeasedTask:
        return self.held[place % len(self.held)]

    def attempt(self, task: LeasedTask, act: Callable[[], None]) -> bool:
        """Act on a lease; True if that worked. It works if the lease is the task's latest, late or not."""
        if self.holds(task):
            act()
            return True
        with pytest.raises(LeaseLost) as caught:
            act()
        assert type(caught.value) is LeaseLost
        assert caught.value.tasks == [task.id]
        return False

    @precondition(lambda self: self.held)
    @rule(place=picks, result=st.sampled_from([None, None, 1, {"a": []}]))
    def complete(self, place: int, result: Any) -> None:
        task = self.pick(place)
        if self.attempt(task, lambda: task.complete(result)):
            one = self.tasks[task.id]
            one.move("complete", "completed")
            one.result = result
            self.held.remove(task)

    @precondition(lambda self: self.held)
    @rule(places=st.lists(picks, min_size=1, max_size=6), worker=which)
    def complete_together(self, places: list[int], worker: int) -> None:
        tasks = list({task.token: task for task in map(self.pick, places)}.values())
        good = [task for task in tasks if self.holds(task)]
        lost = [task.id for task in tasks if task not in good]
        if lost:
            with pytest.raises(LeaseLost) as caught:
                self.queues[worker].complete(tasks)
            assert sorted(caught.value.tasks) == sorted(lost)
        else:
            self.queues[worker].complete(tasks)
        for task in good:
            self.tasks[task.id].move("complete", "completed")
            self.held.remove(task)

    @precondition(lambda self: self.held)
    @rule(place=picks, lease_s=leases)
    def renew(self, place: int, lease_s: float) -> None:
        task = self.pick(place)
        if self.holds(task) and self.tasks[task.id].until <= self.now:
            with pytest.raises(LeaseExpired):
                task.renew(lease_s)
        elif self.attempt(task, lambda: task.renew(lease_s)):
            one = self.tasks[task.id]
            one.move("renew", "leased")
            one.until = task.until_ms
            assert one.until == self.now + round(lease_s * 1000)

    @precondition(lambda self: self.held)
    @rule(place=picks, delay_s=st.sampled_from([0, 0, 3, 100]))
    def release(self, place: int, delay_s: float) -> None:
        task = self.pick(place)
        if self.attempt(task, lambda: task.release(delay_s)):
            one = self.tasks[task.id]
            one.move("release", "open")
            one.available_at = self.now + round(delay_s * 1000)

    @precondition(lambda self: self.held)
    @rule(place=picks, delay_s=st.sampled_from([None, 0, 0, 5]))
    def fail(self, place: int, delay_s: float | None) -> None:
        task, text = self.pick(place), f"failed at {self.now}"
        if not self.attempt(task, lambda: task.fail(text, delay_s)):
            return
        one = self.tasks[task.id]
        one.attempts += 1
        one.error = text
        if one.attempts >= MAX_ATTEMPTS:
            one.move("bury", "dead")
            return
        one.move("fail", "open")
        if delay_s is not None:
            one.available_at = self.now + round(delay_s * 1000)
            return
        found = self.queues[0].task(one.id).available_at
        assert found is not None
        one.available_at = round(found * 1000)
        pause = (one.available_at - self.now) / 1000
        assert 0.75 * 2**one.attempts - 0.01 <= pause <= 1.25 * 2**one.attempts

    @precondition(lambda self: self.held)
    @rule(place=picks)
    def bury(self, place: int) -> None:
        task = self.pick(place)
        if self.attempt(task, lambda: task.bury("hopeless")):
            one = self.tasks[task.id]
            one.attempts += 1
            one.error = "hopeless"
            one.move("bury", "dead")

    @precondition(lambda self: self.held)
    @rule(place=picks, worker=which)
    def attach(self, place: int, worker: int) -> None:
        """Another process goes on with a lease, if it is one."""
        task = self.pick(place)
        if self.holds(task):
            mine = self.queues[worker].attach(task.token)
            one = self.tasks[task.id]
            assert (mine.payload, mine.attempt, mine.until_ms) == (one.payload, one.attempts + 1, one.until)
            self.held[self.held.index(task)] = mine
        else:
            with pytest.raises((LeaseLost, TaskNotFound)):
                self.queues[worker].attach(task.token)

    # -- from outside -------------------------------------------------------------------

    @precondition(lambda self: self.tasks)
    @rule(places=st.lists(picks, max_size=4), worker=which)
    def cancel(self, places: list[int], worker: int) -> None:
        ids = {list(self.tasks)[place % len(self.tasks)] for place in places}
        free = [self.tasks[id] for id in ids if self.tasks[id].shown(self.now) in ("waiting", "delayed")]
        assert self.queues[worker].cancel(ids) == len(free)
        for one in free:
            one.move("cancel", "cancelled")

    @rule(worker=which, name=st.sampled_from([None, "w0", "w1"]))
    def release_all(self, worker: int, name: str | None) -> None:
        leased = [one for one in self.tasks.values() if one.state == "leased"]
        holders = {task.token: task.queue.store.worker_name for task in self.held}
        if name is not None:
            leased = [one for one in leased if holders[one.token] == name]
        if name is None or all(self.leased_by(one) == name for one in leased):
            count = self.queues[worker].release_all(**({} if name is None else {"worker": name}))
            affected = [
                one for one in self.tasks.values() if one.state == "leased" and name in (None, self.leased_by(one))
            ]
            assert count == sum(one.until > self.now for one in affected)
            for one in affected:
                one.move("revoke", "open")
                one.available_at = self.now

    def leased_by(self, one: Model) -> str | None:
        """The name in the lease's record: an attached task is handled by another than its lessee."""
        path = self.queues[0].history(one.id)
        worker = next(movement.worker for movement in reversed(path) if movement.op == "lease")
        return None if worker is None else str(worker["name"])

    def dead(self) -> list[Model]:
        return [one for one in self.tasks.values() if one.state == "dead"]

    @rule(worker=which, some=st.sampled_from([None, 0, 1]))
    def retry_dead(self, worker: int, some: int | None) -> None:
        chosen = [one for one in self.dead() if some is None or one.payload % 2 == some]
        where = None if some is None else (lambda letter: letter.payload % 2 == some)
        assert self.queues[worker].retry_dead(where=where) == len(chosen)
        for one in chosen:
            del self.tasks[one.id]
        gone = {one.id for one in chosen}
        assert not gone & {info.id for info in self.queues[0].tasks()}
        self.learn({one.payload: 0 for one in chosen})

    @rule(worker=which, place=picks, everything=st.booleans())
    def purge_dead(self, worker: int, place: int, everything: bool) -> None:
        chosen = self.dead()
        if not everything and chosen:
            chosen = [chosen[place % len(chosen)]]
        queue = self.queues[worker]
        purged = queue.purge_dead() if everything else queue.purge_dead([one.id for one in chosen])
        assert purged == len(chosen)
        for one in chosen:
            del self.tasks[one.id]

    @rule(worker=which)
    @precondition(lambda self: self.step % 5 == 0)
    def purge(self, worker: int) -> None:
        later, administration._reap_later = administration._reap_later, lambda reap: reap()
        try:
            self.queues[worker].purge()
        finally:
            administration._reap_later = later
        self.tasks.clear()
        self.clock.advance(1.1)  # so long others may not have noticed

    @rule(worker=which, touch=st.booleans())
    def gc(self, worker: int, touch: bool) -> None:
        living = {one.id.partition(".")[0] for one in self.tasks.values() if one.state in ("open", "leased")}
        names = task_file_names(self.queues[self.generation_seer()])
        lingering = sum(name.is_open and name.batch not in living for name in names)
        report = self.queues[worker].gc(touch=touch).as_dict()
        for expected in ("touched", "generations_trashed", "trash_reaped"):  # an insert may be late for a purge
            report.pop(expected)
        if report["finished"] <= lingering:  # batches that took inserts, but none for a while
            for expected in ("finished", "inodes_given_back", "bytes_given_back"):
                report.pop(expected)
        assert not any(report.values()), "nobody died: there is nothing to mend"

    # -- the world -----------------------------------------------------------------------

    @rule(passed=seconds)
    def advance(self, passed: float) -> None:
        self.clock.advance(passed)

    @rule(worker=which)
    def reopen(self, worker: int) -> None:
        """A worker dies, and another one with its name begins. Its leases go on until they run out."""
        self.queues[worker].close()
        self.queues[worker] = self.open(worker)

    # -- what always holds -----------------------------------------------------------------

    @invariant()
    def numbers_add_up(self) -> None:
        if not hasattr(self, "queues"):
            return
        self.step += 1
        now = self.now
        shown = [one.shown(now) for one in self.tasks.values()]
        wanted = {state: shown.count(state) for state in ("waiting", "delayed", "leased", "completed", "dead")}
        found = self.queues[self.step % 2].status().as_dict()
        assert found.pop("inserted") == sum(wanted.values())
        assert found == wanted

    @invariant()
    def one_task_is_as_it_should_be(self) -> None:
        """Of every task in turn: its state, and all that ever happened to it."""
        if not self.tasks:
            return
        one = list(self.tasks.values())[self.step % len(self.tasks)]
        info = self.queues[self.step % 2].task(one.id)
        assert info.state == one.shown(self.now)
        assert (info.result, info.error) == (one.result, one.error)
        assert [movement.op for movement in self.queues[self.step % 2].history(one.id)] == one.path
        if one.state in ("open", "leased"):
            assert info.payload == one.payload
            expected = one.attempts + 1 if info.state == "leased" else one.charged()
            assert info.attempt == expected

    @invariant()
    def hints_are_never_late(self) -> None:
        if hasattr(self, "queues"):
            due: dict[str, int] = {}
            for one in self.tasks.values():
                if one.state in ("open", "leased"):
                    batch = one.id.partition(".")[0]
                    due[batch] = min(due.get(batch, one.due), one.due)
            found = {name.batch: name for name in task_file_names(self.queues[self.generation_seer()])}
            lingering = {batch for batch, name in found.items() if name.is_open}
            assert set(due) <= set(found) <= set(due) | lingering, (
                "a task file for each batch with something to do, and for no other that takes no inserts"
            )
            for batch, at in due.items():
                assert found[batch].available_at <= at

    def generation_seer(self) -> int:
        """The worker that knows the latest generation."""
        return 0 if self.queues[0].generation >= self.queues[1].generation else 1

    @invariant()
    def what_a_worker_knows_is_on_disk(self) -> None:
        """Verbs apply their own records to the replay state directly; folding the bytes anew gives the same."""
        for queue in getattr(self, "queues", ()):
            for log in queue.store.logs:
                replay_state = ReplayState()
                replay_state.replay(queue.store.fs.read_from(log.fd, 0)[: log.end], 0)
                assert full_state(log.replay_state) == full_state(replay_state)


SETTINGS = settings(
    max_examples=how_many(8, 100),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def test_a_queue_does_what_the_model_does(tasks_a_batch: int) -> None:
    run_state_machine_as_test(partial(QueueMachine, tasks_a_batch), settings=SETTINGS)
