"""The storm of updates: workers at a disk and at gateways move tasks from queue to queue, and each may break off."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fsqueue import Group, LeasedTask, Task, TaskInfo
from tests.storms.caller import Caller, Effects, inserts, named, next_of, payloads, replaced
from tests.storms.journal import DONE, Journal
from tests.storms.rounds import Storm

COUNTER = "counter"
COUNTERS = 3
NEXT = {"fetch": "parse", "parse": "done", "done": None}
"""The stages, and where each hands its tasks on."""
STAGES = tuple(NEXT)
LEASES_S = (0.3, 1.0, 5.0)
KEYS = 6
"""Few, so that inserts meet."""


def begin(group: Group, journal: Journal) -> None:
    """Insert the tasks in which all workers count."""
    call = journal.begin()
    journal.will(call, "begin", **inserts(COUNTER, COUNTERS))
    group[COUNTER].insert_many(payloads(call, COUNTERS), batch_tasks=1)
    journal.did(call, DONE)


class Worker(Caller):
    """Leases tasks, ends them, and inserts the next ones, in all ways there are."""

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
            self.call("gc", lambda _: self.group[self.dice.choice((*STAGES, COUNTER))].gc())
        else:
            self.work()

    def as_child(self) -> None:
        """Insert something, and work."""
        self.insert()
        self.work()

    # -- without leases ------------------------------------------------------------------------------

    def insert(self) -> None:
        """Insert tasks of the first stage."""
        count, queue = self.dice.choice([1, 2, 5]), self.group["fetch"]
        match self.dice.choice(["insert", "many", "commit", "update"]):
            case "insert":
                self.call("insert", lambda call: queue.insert(*payloads(call, 1)), lambda _: inserts("fetch", 1))
            case "update":
                self.call("update", lambda call: self._insert_by_update(call, count), lambda _: inserts("fetch", count))
            case how:
                self.call(
                    how,
                    lambda call: queue.insert_many(self._tasks(call, count), commit=call if how == "commit" else None),
                    lambda _: {**inserts("fetch", count), "whole": how == "commit"},
                )

    def _insert_by_update(self, call: str, count: int) -> None:
        with self.group.update() as update:
            update.insert_many("fetch", self._tasks(call, count))

    def _tasks(self, call: str, count: int) -> Iterable[Task]:
        return self.wrapped([Task(one, priority=self.dice.choice([None, 2])) for one in payloads(call, count)])

    def change_waiting(self) -> None:
        """Cancel a task that waits, or replace its payload, in an update."""
        seen = self._seen(self.dice.choice(["fetch", "parse"]))
        if seen is None:
            return
        is_cancel = self.dice.random() < 0.3

        def act(call: str) -> None:
            with self.group.update() as update:
                if is_cancel:
                    update.cancel(seen)
                else:
                    update.replace(seen, next_of(seen))
                update.insert("done", *payloads(call, 1))

        change = named("cancel", [seen]) if is_cancel else replaced(seen)
        self.call("change", act, lambda _: inserts("done", 1) | change)

    def count(self) -> None:
        """Count by one more in a task in which all count: it was looked up, or is leased."""
        if self.dice.random() < 0.7:
            seen = self._seen(COUNTER)
            if seen is not None:
                self._count(seen)
            return
        for task in self.call("lease", lambda _: self.group[COUNTER].lease(lease_s=0.5)) or ():
            self._count(task)
            self.end("release", [task])

    def _count(self, counter: TaskInfo | LeasedTask) -> None:
        def act(call: str) -> None:
            with self.group.update() as update:
                update.replace(counter, next_of(counter))
                update.insert("done", *payloads(call, 1))

        self.call("count", act, lambda _: inserts("done", 1) | replaced(counter))

    def retry(self) -> None:
        """Retry dead letters."""
        queue = self.group[self.dice.choice(STAGES)]
        letters = self.call("dead", lambda _: [letter.id for letter in queue.dead()][:3])
        if letters:
            self.call("retry", lambda _: queue.retry_dead(letters), lambda _: {"retry": letters})

    def _seen(self, queue: str) -> TaskInfo | None:
        """Return a waiting task, or none."""
        found = self.peek(queue, 4)
        return self.dice.choice(found) if found else None

    # -- with leases ---------------------------------------------------------------------------------

    def work(self) -> None:
        """Lease some tasks, and end them."""
        stage, lease_s = self.dice.choice(STAGES), self.dice.choice(LEASES_S)
        tasks = self.call("lease", lambda _: self.group[stage].lease(self.dice.choice([1, 1, 2, 4]), lease_s=lease_s))
        left = list(tasks or ())
        while left:
            together = [left.pop() for _ in range(min(len(left), self.dice.choice([1, 1, 2])))]
            chance = self.dice.random()
            if chance < 0.05:
                continue  # their leases run out
            self.held = together
            if chance < 0.65:
                self.update(stage, together)
            elif chance < 0.75:
                self.complete(together)
            elif chance < 0.90:
                self.end(self.dice.choice(["release", "fail", "bury", "renew"]), together)
            else:
                self.in_block(together[0])
            self.held = []

    def in_block(self, task: LeasedTask) -> None:
        """Complete a task within its block, and insert the next one."""

        def act(call: str) -> None:
            with task, self.group.update() as update:
                update.complete(task, {"by": call})
                update.insert("done", *payloads(call, 1))

        self.call("block", act, lambda _: inserts("done", 1) | named("complete", [task]))

    def end(self, verb: str, tasks: list[LeasedTask]) -> None:
        """Do something else to tasks, without an update."""
        for task in tasks:
            match verb:
                case "release":
                    self.call(verb, lambda _, task=task: task.release())  # type: ignore[misc]
                case "renew":
                    self.call(verb, lambda _, task=task: task.renew(1))  # type: ignore[misc]
                case "fail":
                    delay_s = self.dice.choice([0, 0.2])
                    self.call(verb, lambda _, task=task, s=delay_s: task.fail("no luck", delay_s=s))  # type: ignore[misc]
                case "bury":
                    self.call(verb, lambda call, task=task: task.bury(call), lambda _, task=task: named("bury", [task]))  # type: ignore[misc]

    def update(self, stage: str, tasks: list[LeasedTask]) -> None:
        """End tasks and insert the next ones in one update, with something else beside it by lot."""
        following = NEXT[stage]
        verbs = [self.dice.choice(["complete", "complete", "complete", "bury", "cancel"]) for _ in tasks]
        count = self.dice.choice([0, 1, 1, 2]) if following else 0
        key = self.dice.choice([None, None, f"key-{self.dice.randrange(KEYS)}"])
        beside = self.dice.choice([None, None, "replace", "count", "depends"])
        seen = self._seen(COUNTER if beside == "count" else self.dice.choice(["fetch", "parse"])) if beside else None
        if seen is not None and seen.id in [task.id for task in tasks]:
            seen = None  # its lease has run out
        is_many = self.dice.random() < 0.5

        def effects(_: str) -> Effects:
            found = inserts("done", 1)
            for verb, task in zip(verbs, tasks, strict=True):
                found.setdefault(verb, []).extend(named(verb, [task])[verb])
            found["insert"] += [[following, number + 1] for number in range(count)]
            if key is not None:
                found["keyed"] = [["parse", count + 1, key]]
            return found | (replaced(seen) if seen is not None and beside != "depends" else {})

        def act(call: str) -> None:
            first, *others = payloads(call, count + 2)
            with self.group.update() as update:
                for verb, task in zip(verbs, tasks, strict=True):
                    if verb == "complete":
                        update.complete(task, {"by": call})
                    elif verb == "bury":
                        update.bury(task, call)
                    else:
                        update.cancel(task)
                update.insert("done", first, priority=self.dice.choice([None, 1, 5]))
                if following and is_many:
                    update.insert_many(following, self.wrapped(others[:count]))
                elif following:
                    for one in others[:count]:
                        update.insert(following, one, delay_s=self.dice.choice([0, 0, 0.2]))
                if key is not None:
                    update.insert("parse", others[count], key=key)
                if seen is not None and beside == "depends":
                    update.depends(seen)
                elif seen is not None:
                    update.replace(seen, next_of(seen))
                self.present = update
            self._check_results(update.results)

        self.call("update", act, effects)
        self.present = None

    def _check_results(self, results: list[Any]) -> None:
        """Whatever was inserted without a key is new."""
        flat = [ref for one in results for ref in (one if isinstance(one, list) else [one])]
        ids = [ref.id for ref in flat if hasattr(ref, "inserted") and ref.inserted]
        if len(ids) != len(set(ids)):
            self.journal.say("odd", kind="update", error=f"one id for two tasks: {results}")


STORM = Storm("updates", Worker, begin, (*STAGES, COUNTER), max_attempts=(None, 5))
