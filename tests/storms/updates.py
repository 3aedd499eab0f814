"""The storm of updates: workers at a disk and at gateways move tasks from queue to queue, and each may break off."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import fsqueue
from fsqueue import (
    Group,
    InvalidArgument,
    LeasedTask,
    LeaseLost,
    LockTimeout,
    RemoteGroup,
    StorageError,
    Task,
    TaskInfo,
    TaskNotFound,
    UpdateConflict,
)
from fsqueue.protocol import finishing
from tests.concurrency.processes import Child
from tests.storms import update_books
from tests.storms.crew import Crew, adopt_orphans, what_is_left
from tests.storms.journal import DONE, REFUSED, UNKNOWN, Journal
from tests.storms.trouble import Abort, Interruption, Trouble

T = TypeVar("T")

STAGES = ("fetch", "parse", "done")
COUNTER = "counter"
COUNTERS = 3
QUEUES = (*STAGES, COUNTER)
LEASES_S = (0.3, 1.0, 5.0)
PATIENCE_S = 60.0
"""For how long a client waits for its gateway."""
KEYS = 6
"""Few, so that inserts meet."""

AnyGroup = Group | RemoteGroup


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
    def of(cls, seed: int, faults: int) -> Plan:
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
            max_attempts=dice.choice([None, 5]),
            linger_ms=dice.choice([-1, finishing.LINGER_MS]),
        )


class Actor:
    """A worker: leases tasks, ends them, and inserts the next ones, in all ways there are."""

    def __init__(self, group: AnyGroup, journal: Journal, dice: random.Random) -> None:
        self.group, self.journal, self.dice = group, journal, dice
        self.trouble: Trouble | None = Trouble(dice, self._go_on_as_child, self.journal.say)
        self._call = ""

    # -- calls ---------------------------------------------------------------------------------------

    def call(
        self, kind: str, act: Callable[[str], T], effects: Callable[[str], dict[str, Any]] | None = None
    ) -> T | None:
        """Make a call, which is written down before and after. None if it has failed, or nobody knows."""
        call = self._call = self.journal.begin()
        self.journal.will(call, kind, **(effects(call) if effects is not None else {}))
        try:
            found = act(call) if self.trouble is None else self.trouble.call(kind, partial(act, call))
        except (UpdateConflict, LockTimeout, TaskNotFound) as error:
            self.journal.did(call, REFUSED, error=_said(error))
        except LeaseLost as error:
            told = (
                UNKNOWN if error.reason == LeaseLost.COMPLETED_BEFORE else DONE
            )  # an interrupted block fails its task
            self.journal.did(call, told, lost=error.tasks, error=_said(error))
        except InvalidArgument as error:
            self.journal.did(call, REFUSED, error=_said(error))
            if "that has the key" not in str(error):
                self.journal.say("odd", kind=kind, error=_said(error))
        except StorageError as error:
            self.journal.did(call, UNKNOWN, error=_said(error))
            if isinstance(self.group, Group):
                self.journal.say("odd", kind=kind, error=_said(error))
        except (Interruption, Abort) as error:
            self.journal.did(call, UNKNOWN, error=_said(error))
        except Exception as error:
            self.journal.did(call, UNKNOWN, error=_said(error))
            self.journal.say("odd", kind=kind, error=_said(error))
        else:
            self.journal.did(call, DONE)
            return found
        return None

    def _go_on_as_child(self, raised: BaseException | None, where: str) -> None:
        """As a forked child: tell what came of the parent's call, and make calls of its own with the same objects."""
        parents, call = self.journal, self._call
        self.journal = Journal(parents.directory, f"{call}.child-{os.getpid()}")
        self.journal.say("came back", call=call, where=where, raised=_said(raised))
        self.trouble = None
        self.dice = random.Random(f"{call}")
        self.insert()
        self.work()

    # -- what it does --------------------------------------------------------------------------------

    def step(self) -> None:
        """Do one thing."""
        chance = self.dice.random()
        if chance < 0.08:
            self.insert()
        elif chance < 0.14:
            self.change_waiting()
        elif chance < 0.19:
            self.count()
        elif chance < 0.22:
            self.retry()
        elif chance < 0.23:
            self.upkeep()
        else:
            self.work()

    def insert(self) -> None:
        """Insert first tasks, without an update."""
        count, how = self.dice.choice([1, 2, 5]), self.dice.choice(["one", "many", "commit", "update"])
        queue, payloads = self.group[STAGES[0]], self._payloads
        if how == "one":
            self.call(
                "insert", lambda call: queue.insert(payloads(call, 1)[0]), lambda call: _inserts(call, "fetch", 1)
            )
        elif how == "update":

            def apply(call: str) -> None:
                with self.group.update() as update:
                    update.insert_many("fetch", self._generated(call, count))

            self.call("update", apply, lambda call: _inserts(call, "fetch", count))
        else:
            self.call(
                how,
                lambda call: queue.insert_many(self._generated(call, count), commit=call if how == "commit" else None),
                lambda call: {**_inserts(call, "fetch", count), "whole": how == "commit"},
            )

    def work(self) -> None:
        """Lease some tasks, and end them."""
        queue = self.group[self.dice.choice(STAGES)]
        tasks = self.call(
            "lease", lambda _: queue.lease(self.dice.choice([1, 1, 2, 4]), lease_s=self.dice.choice(LEASES_S))
        )
        tasks = list(tasks or ())
        while tasks:
            together = [tasks.pop() for _ in range(min(len(tasks), self.dice.choice([1, 1, 2])))]
            chance = self.dice.random()
            if chance < 0.05:
                continue  # their leases run out
            if chance < 0.65:
                self.update(together)
            elif chance < 0.75:
                self.complete_plainly(together)
            elif chance < 0.80:
                self.call("release", partial(_release, together))
            elif chance < 0.85:
                for task in together:
                    self.call("fail", lambda _, task=task: task.fail("no luck", delay_s=self.dice.choice([0, 0.2])))
            elif chance < 0.90:
                for task in together:
                    self.call(
                        "bury", lambda call, task=task: task.bury(call), lambda _, task=task: _ends("bury", [task])
                    )
            else:
                for task in together:
                    self.in_block(task)

    def complete_plainly(self, tasks: list[LeasedTask]) -> None:
        """Complete tasks without an update: one, or all at once."""

        def act(call: str) -> None:
            if len(tasks) == 1:
                tasks[0].complete({"by": call})
            else:
                tasks[0].queue.complete(tasks, {task.id: {"by": call} for task in tasks})

        self.call("complete", act, lambda _: {**_ends("complete", tasks), "whole": False})

    def in_block(self, task: LeasedTask) -> None:
        """Complete a task by its block, and insert the next one in it."""

        def act(call: str) -> None:
            with task, self.group.update() as update:
                update.complete(task, {"by": call})
                update.insert("done", self._payloads(call, 1)[0])

        self.call("block", act, lambda call: {**_ends("complete", [task]), **_inserts(call, "done", 1)})

    def update(self, tasks: list[LeasedTask]) -> None:
        """End tasks and insert the next ones in one update, with something else beside it by lot."""
        queue = str(tasks[0].queue.path).rpartition("/")[2] if isinstance(self.group, Group) else tasks[0].queue.name
        following = {"fetch": "parse", "parse": "done", "done": "done", COUNTER: "done"}[queue]
        kinds = [self.dice.choice(["complete", "complete", "complete", "bury", "cancel"]) for _ in tasks]
        count = self.dice.choice([0, 1, 1, 2]) if following != queue else 0
        key = self.dice.choice([None, None, f"key-{self.dice.randrange(KEYS)}"])
        beside = self.dice.choice(["", "", "replace", "count", "depends"])
        seen = self._seen(self.group[self.dice.choice(STAGES[:2])]) if beside in ("replace", "depends") else None
        counter = self._seen(self.group[COUNTER]) if beside == "count" else None
        many = self.dice.random() < 0.3
        if seen is not None and seen.id in [task.id for task in tasks]:
            seen = None  # its lease has run out

        def effects(call: str) -> dict[str, Any]:
            found: dict[str, Any] = {"witness": 1} | _inserts(call, "done", 1)
            for kind, task in zip(kinds, tasks, strict=True):
                found.setdefault(kind, []).extend(_ends(kind, [task])[kind])
            found["insert"] += [[following, number + 1] for number in range(count)]
            found["keyed"] = [["parse", count + 1, key]] if key else []
            if beside == "replace" and seen is not None:
                found["replace"] = [_replaced(seen)]
            if counter is not None:
                found["replace"] = [_replaced(counter)]
            return found

        def act(call: str) -> None:
            payloads = self._payloads(call, count + 2)
            with self.group.update() as update:
                for kind, task in zip(kinds, tasks, strict=True):
                    if kind == "complete":
                        update.complete(task, {"by": call})
                    elif kind == "bury":
                        update.bury(task, call)
                    else:
                        update.cancel(task)
                update.insert("done", payloads[0], priority=self.dice.choice([None, 1, 5]))
                if many:
                    update.insert_many(following, self._wrapped(payloads[1 : count + 1]))
                else:
                    for payload in payloads[1 : count + 1]:
                        update.insert(following, payload, delay_s=self.dice.choice([0, 0, 0.2]))
                if key:
                    update.insert("parse", payloads[count + 1], key=key)
                if beside == "replace" and seen is not None:
                    update.replace(seen, _next_of(seen))
                if beside == "depends" and seen is not None:
                    update.depends(seen)
                if counter is not None:
                    update.replace(counter, _next_of(counter))

        self.call("update", act, effects)

    def change_waiting(self) -> None:
        """Cancel a task that waits, or replace its payload, in an update."""
        seen = self._seen(self.group[self.dice.choice(STAGES[:2])])
        if seen is None:
            return
        is_cancel = self.dice.random() < 0.3

        def act(call: str) -> None:
            with self.group.update() as update:
                if is_cancel:
                    update.cancel(seen)
                else:
                    update.replace(seen, _next_of(seen))
                update.insert("done", self._payloads(call, 1)[0])

        change = _ends("cancel", [seen]) if is_cancel else {"replace": [_replaced(seen)]}
        self.call("change", act, lambda call: {**_inserts(call, "done", 1), **change})

    def count(self) -> None:
        """Count by one more, in a task that all count in: looked up, or leased."""
        queue = self.group[COUNTER]
        if self.dice.random() < 0.7:
            seen = self._seen(queue)
            if seen is None:
                return

            def act(call: str) -> None:
                with self.group.update() as update:
                    update.replace(seen, _next_of(seen))
                    update.insert("done", self._payloads(call, 1)[0])

            self.call("count", act, lambda call: {**_inserts(call, "done", 1), "replace": [_replaced(seen)]})
            return
        found = self.call("lease", lambda _: queue.lease(lease_s=0.5))
        for task in found or ():

            def act_held(call: str, task: LeasedTask = task) -> None:
                with self.group.update() as update:
                    update.replace(task, _next_of(task))
                    update.insert("done", self._payloads(call, 1)[0])

            self.call(
                "count",
                act_held,
                lambda call, task=task: {**_inserts(call, "done", 1), "replace": [_replaced(task)]},
            )
            self.call("release", lambda _, task=task: task.release())

    def retry(self) -> None:
        """Retry dead letters."""
        queue = self.group[self.dice.choice(STAGES)]
        letters = self.call("dead", lambda _: [letter.id for letter in queue.dead()][:3])
        if letters:
            self.call("retry", lambda _: queue.retry_dead(letters), lambda _: {"retry": letters})

    def upkeep(self) -> None:
        """Collect what crashes have left."""
        self.call("gc", lambda _: self.group[self.dice.choice(QUEUES)].gc())

    # -- parts ---------------------------------------------------------------------------------------

    def _seen(self, queue: Any) -> TaskInfo | None:
        """Return a waiting task, or none."""
        found = self.call("peek", lambda _: queue.peek(4))
        return self.dice.choice(found) if found else None

    def _payloads(self, call: str, count: int) -> list[dict[str, Any]]:
        return [{"by": call, "i": number, "r": 0} for number in range(count)]

    def _generated(self, call: str, count: int) -> Iterable[Any]:
        return self._wrapped(
            [Task(payload, priority=self.dice.choice([None, 2])) for payload in self._payloads(call, count)]
        )

    def _wrapped(self, payloads: list[Any]) -> Iterable[Any]:
        return payloads if self.trouble is None else self.trouble.payloads(payloads)


def _release(tasks: list[LeasedTask], call: str) -> None:
    tasks[0].queue.release(tasks)


def _said(error: BaseException | None) -> str:
    return "" if error is None else f"{type(error).__name__}: {error}"


def _inserts(call: str, queue: str, count: int) -> dict[str, Any]:
    return {"insert": [[queue, number] for number in range(count)]}


def _ends(kind: str, tasks: Sequence[LeasedTask | TaskInfo]) -> dict[str, Any]:
    return {kind: [[task.id, task.payload["by"], task.payload["i"]] for task in tasks]}


def _next_of(task: TaskInfo | LeasedTask) -> dict[str, Any]:
    return {**task.payload, "r": task.payload["r"] + 1}


def _replaced(task: TaskInfo | LeasedTask) -> list[Any]:
    return [task.id, task.payload["by"], task.payload["i"], task.payload["r"] + 1]


# -- processes -----------------------------------------------------------------------------------------


def work(path: Path, url: str | None, notes: Path, seed: int, number: int) -> dict[str, int]:
    """Work until the round is over; what was done, in numbers."""
    descriptors = _open_descriptors()
    actor = _actor(path, url, notes, seed, number)
    over = path.parent / "over"
    while not over.exists():
        actor.step()
    assert actor.trouble is not None
    counts = actor.trouble.counts
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    if isinstance(actor.group, Group):
        actor.group.close()
    del actor
    gc.collect()
    left = _open_descriptors().keys() - descriptors.keys()
    assert len(left) <= 1, f"left open: {[_open_descriptors().get(fd) for fd in left]}"
    return counts


def _actor(path: Path, url: str | None, notes: Path, seed: int, number: int) -> Actor:
    name = f"{'l' if url is None else 'r'}{number}"
    group = Group(path, worker=name) if url is None else fsqueue.connect(url, worker=name, patience_s=PATIENCE_S)
    assert isinstance(group, (Group, RemoteGroup))
    return Actor(group, Journal(notes, name), random.Random(seed * 1000 + number))


def _open_descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
    return found


def play(directory: Path, plan: Plan) -> dict[str, int]:
    """Play a round, and judge it. AssertionError if anything is wrong."""
    adopt_orphans()
    dice, notes = random.Random(plan.seed), directory / "journals"
    notes.mkdir(parents=True)
    group = Group.create(
        directory / "group",
        shards=plan.shards,
        durability=plan.durability,  # type: ignore[arg-type]
        max_attempts=plan.max_attempts,
        backoff_s=(0, 0),
        keep_payloads=1 << 20,
    )
    main = Journal(notes, "main")
    call = main.begin()
    main.will(call, "seed", **_inserts(call, COUNTER, COUNTERS), whole=True)
    for number in range(COUNTERS):
        group[COUNTER].insert({"by": call, "i": number, "r": 0})
    main.did(call, DONE)
    with mock.patch.object(finishing, "LINGER_MS", plan.linger_ms):

        def hire(number: int, urls: list[str]) -> Child:
            is_local = number % (plan.local + plan.remote) < plan.local
            return Child(work, group.path, None if is_local else dice.choice(urls), notes, plan.seed, number)

        with Crew(group, directory, dice, hire, plan.local + plan.remote, plan.gateways) as crew:
            crew.suffer(plan.faults)
            (directory / "over").touch()
            told = crew.results()
            _drain(group, notes)
            odd = crew.odd()
    odd += what_is_left()
    counts: Counter[str] = Counter(crew.counts)
    for one in told:
        counts.update(one)
    found, wrong = update_books.judge(group, notes)
    assert not odd + wrong, "\n".join(odd + wrong)
    counts.update(found)
    return dict(counts)


def _drain(group: Group, notes: Path) -> None:
    """Complete what is left, once all leases have ended."""
    actor = Actor(group, Journal(notes, "drain"), random.Random(0))
    actor.trouble = None
    for name in QUEUES:
        queue = group[name]
        while not queue.status().drained:
            tasks = queue.lease(20, lease_s=600, wait_s=10)
            if tasks:
                actor.complete_plainly(tasks)


def play_and_clean(directory: Path, seed: int, faults: int) -> dict[str, int]:
    """Play the round of a seed. Its files stay if anything was wrong; the error names the seed."""
    plan, place = Plan.of(seed, faults), directory / f"updates-{seed}"
    try:
        found = play(place, plan)
    except (AssertionError, fsqueue.FsqueueError, TimeoutError) as error:
        raise AssertionError(f"seed {seed}, {plan}; files under {place}: {error}") from error
    shutil.rmtree(place)
    return found
