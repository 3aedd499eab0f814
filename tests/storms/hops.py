"""The storm of hops: a task always lives, and hops by every verb there is; nobody may be told that all is drained.

A chain is such a task. Whoever ends it has inserted the next one before, or does both in one update. A process that
dies in between leaves two: then the one that has hopped less often may end, as long as the other one was seen to live.
So the task of a chain that has hopped most often never ends without a next one, and a task of each chain lives at each
instant, whatever is killed. The chain `one` stays in one queue, the chain `three` hops through three.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import fsqueue
from fsqueue import Group, LeasedTask, RemoteGroup, TaskInfo
from tests.storms.caller import PATIENCE_S, AnyGroup, Caller, inserts, named, next_of, payloads
from tests.storms.journal import DONE, Journal
from tests.storms.rounds import Storm

CHAINS = {"one": ("one",), "three": ("a", "b", "c")}
SIDE = "side"
"""A queue whose tasks come and go beside the chains: it is purged and deleted."""
QUEUES = ("one", "a", "b", "c", SIDE)
LADDER = 100
"""How many letters, and completed tasks, each queue has to begin with: to be retried as the next task of a chain."""
STRIDE = 25
"""By how many hops each of them is ahead of the one before."""
LEASES_S = (0.3, 1.0, 5.0)

Living = LeasedTask | TaskInfo


def begin(group: Group, journal: Journal) -> None:
    """Insert the first task of each chain, and what can be retried as a later one."""
    ladder = []
    for chain, queues in CHAINS.items():
        for place, name in enumerate(queues):
            call, queue = journal.begin(), group[name]
            rungs = [one | {"chain": chain, "hop": 0} for one in payloads(call, 2 * LADDER)]
            for number, rung in enumerate(rungs):
                rung["hop"] = (number * len(queues) + place + 1) * STRIDE // 2
            journal.will(call, "begin", **inserts(name, len(rungs)))
            queue.insert_many(rungs, batch_tasks=20)
            journal.did(call, DONE)
            tasks = queue.lease(2 * LADDER, lease_s=600)
            letters, others = tasks[::2], tasks[1::2]
            ends = {verb: journal.begin() for verb in ("bury", "complete")}
            for verb, ended in (("bury", letters), ("complete", others)):
                journal.will(ends[verb], "begin", **named(verb, ended))
                ladder += [[name, verb, task.id, task.payload["hop"]] for task in ended]
            for task in letters:
                task.bury(ends["bury"])
            queue.complete(others, {task.id: {"by": ends["complete"]} for task in others})
            for call in ends.values():
                journal.did(call, DONE)
    (group.path.parent / "ladder").write_text(json.dumps(ladder))
    for chain, (first, *_) in CHAINS.items():
        call = journal.begin()
        journal.will(call, "begin", **inserts(first, 1))
        group[first].insert(payloads(call, 1, chain=chain, hop=0)[0])
        journal.did(call, DONE)


def rank(task: Living) -> tuple[int, str]:
    """Return what orders the tasks of a chain: the last one must not end before there is a later one."""
    return task.payload["hop"], task.id


class Hopper(Caller):
    """Lets the tasks of chains hop."""

    def __init__(self, group: AnyGroup, journal: Journal, dice: random.Random) -> None:
        super().__init__(group, journal, dice)
        path = journal.directory.parent / "ladder"
        self.ladder: list[tuple[str, str, str, int]] = [tuple(rung) for rung in json.loads(path.read_text())]

    def step(self) -> None:
        """Do one thing."""
        chance = self.dice.random()
        queues = CHAINS[self.dice.choice([*CHAINS])]
        here, there = self.dice.choice(queues), self.dice.choice(queues)
        if chance < 0.55:
            self.hop_leased(here, there)
        elif chance < 0.75:
            self.hop_waiting(here, there)
        elif chance < 0.80:
            self.beside()
        elif chance < 0.85:
            self.letters(here)
        elif chance < 0.90:
            self.call("release all", lambda _: self.group[here].release_all())
        elif chance < 0.95:
            self.replace(here)
        else:
            self.call("gc", lambda _: self.group[self.dice.choice(QUEUES)].gc())

    def as_child(self) -> None:
        """Let a task hop."""
        self.hop_leased("one", "one")
        self.hop_waiting("a", "b")

    # -- hops ----------------------------------------------------------------------------------------

    def hop_leased(self, here: str, there: str) -> None:
        """Lease tasks of a chain; let the last one hop, and end the others."""
        most, lease_s = self.dice.choice([1, 2, 8]), self.dice.choice(LEASES_S)
        found = self.call("lease", lambda _: self.group[here].lease(most, lease_s=lease_s))
        if not found:
            return
        *earlier, last = sorted(found, key=rank)
        if earlier:
            self._end_earlier(earlier, last)
        if self.dice.random() < 0.05:
            return  # the lease runs out
        verb = self.dice.choice(["complete", "complete", "bury", "cancel"])
        if self.dice.random() < 0.5:
            self._by_update(verb, last, there)
        elif self._has_next(last, there):
            self._end(verb, here, last)

    def hop_waiting(self, here: str, there: str) -> None:
        """Look at the tasks of a chain that wait; cancel all, the last one when it has a next one."""
        found = self.peek(here, 8)
        if not found:
            return
        *earlier, last = sorted(found, key=rank)
        if self.dice.random() < 0.5:
            self._by_update("cancel", last, there)
        elif self._has_next(last, there):  # a whole batch, perhaps
            self._drop(here, found)
            return
        if earlier:
            self._drop(here, earlier)

    def _drop(self, queue: str, tasks: Sequence[Living]) -> None:
        ids = [task.id for task in tasks]
        self.call("drop", lambda _: self.group[queue].cancel(ids), lambda _: named("drop", tasks))

    def _end_earlier(self, earlier: list[LeasedTask], last: LeasedTask) -> None:
        self.held = earlier
        if self.dice.random() < 0.5:
            self.complete(earlier)
        else:

            def act(call: str) -> None:
                with self.group.update() as update:
                    for task in earlier:
                        update.complete(task, {"by": call})
                    update.depends(last)

            self.call("thin", act, lambda _: named("complete", earlier))
        self.held = []

    def _by_update(self, verb: str, task: Living, there: str) -> None:
        """Let a task hop by one update."""
        hop = task.payload["hop"] + 1

        def act(call: str) -> None:
            with self.group.update() as update:
                if verb == "complete":
                    update.complete(task, {"by": call})  # type: ignore[arg-type]
                elif verb == "bury":
                    update.bury(task, call)  # type: ignore[arg-type]
                else:
                    update.cancel(task)
                update.insert(there, *payloads(call, 1, chain=task.payload["chain"], hop=hop))

        self.call("hop", act, lambda _: inserts(there, 1) | named(verb, [task]))

    def _end(self, verb: str, here: str, task: LeasedTask) -> None:
        match verb:
            case "complete":
                self.complete([task])
            case "bury":
                self.call("bury", lambda call: task.bury(call), lambda _: named("bury", [task]))
            case _:
                self.call("release", lambda _: task.release())
                self._drop(here, [task])

    def _has_next(self, task: Living, there: str) -> bool:
        """Insert the next task. Return whether it is known to have come into being."""
        queue, chain, hop = self.group[there], task.payload["chain"], task.payload["hop"] + 1
        how = self.dice.choice(["insert", "key", "commit", "many", "retry", "again"])
        count = 2 if how in ("commit", "many") else 1
        rungs = [rung for rung in self.ladder if rung[0] == there and rung[3] > hop]
        retried = [id for _, verb, id, _ in rungs if verb == ("bury" if how == "retry" else "complete")][:1]
        if how in ("retry", "again") and retried:
            if how == "retry":
                return self.call(how, lambda _: queue.retry_dead(retried), lambda _: {"retry": retried}) == 1
            report = self.call(how, lambda _: queue.retry_completed(retried), lambda _: {"again": retried})
            return report is not None and report.retried == 1

        def act(call: str) -> int:
            new = payloads(call, count, chain=chain, hop=hop)
            if count == 1:
                return int(queue.insert(new[0], key=call if how == "key" else None).inserted)
            return queue.insert_many(self.wrapped(new), commit=call if how == "commit" else None)

        effects = {**inserts(there, count), "whole": how != "many"}
        return self.call(how, act, lambda _: effects) == count

    # -- what goes on beside them --------------------------------------------------------------------

    def replace(self, here: str) -> None:
        """Replace the payload of a task that waits. It stays the same task of its chain."""
        for seen in self.peek(here, 1):

            def act(_: str, seen: TaskInfo = seen) -> None:
                with self.group.update() as update:
                    update.replace(seen, next_of(seen))
                    update.insert(SIDE, *payloads(_, 1))

            self.call("replace", act, lambda _, seen=seen: {"loose": [[SIDE, 0]], **named("seen", [seen])})  # type: ignore[misc]

    def letters(self, here: str) -> None:
        """Retry some dead letters of tasks that have hopped before, or throw them away."""
        known = {id for _, _, id, _ in self.ladder}
        found = self.call("dead", lambda _: [one for one in self.group[here].dead() if one.id not in known][:4])
        if not found:
            return
        letters = [one.id for one in found]
        if self.dice.random() < 0.3:
            self.call("retry", lambda _: self.group[here].retry_dead(letters), lambda _: {"retry": letters})
        else:
            self.call("forget", lambda _: self.group[here].purge_dead(letters), lambda _: named("forget", found))

    def beside(self) -> None:
        """Insert into the queue beside the chains, purge it, or delete it."""
        chance = self.dice.random()
        if chance < 0.7:
            self.call(
                "beside", lambda call: self.group[SIDE].insert(*payloads(call, 1)), lambda _: {"loose": [[SIDE, 0]]}
            )
        elif not self.call("exists", lambda _: self.group[SIDE].exists()):
            return
        elif chance < 0.85:
            self.call("purge", lambda _: self.group[SIDE].purge())
        else:
            self.call("delete", lambda _: self.group.delete(SIDE))


# -- to be told that all is drained ----------------------------------------------------------------------

Question = tuple[str, Callable[[], bool]]


class Asker(Caller):
    """Asks whether all is drained, in all ways there are."""

    def questions(self) -> list[Question]:
        """Return what it may ask, and how; the answer is whether that was called drained."""
        one = self.group["one"]
        if not isinstance(self.group, Group):
            return [("one", one.is_drained), ("wait for one", lambda: self._in_time(one.wait))]
        three = [self.group[name] for name in CHAINS["three"]]
        pattern = self.group.matching("[abc]")
        return [
            ("one", one.is_drained),
            ("the group", self.group.is_drained),
            ("a pattern", pattern.is_drained),
            ("wait for one", lambda: self._in_time(one.wait)),
            ("wait for a pattern", lambda: self._in_time(pattern.wait)),
            ("wait for the group", lambda: self._in_time(self.group.wait)),  # type: ignore[union-attr]
            ("wait for three", lambda: self._in_time(lambda s: fsqueue.wait(three, timeout_s=s))),
            ("wait for a command", self._by_command),
        ]

    def _in_time(self, wait: Callable[[float], object]) -> bool:
        """Return whether it waited no longer than it was told to: then it says that all is drained."""
        timeout_s, begun = self.dice.choice([0.0, 0.1, 0.5, 2.0]), time.monotonic()
        wait(timeout_s)
        return time.monotonic() - begun < timeout_s

    def _by_command(self) -> bool:
        assert isinstance(self.group, Group)
        words = ["wait", str(self.group.path), "--match", "[abc]", "--timeout", "2s"]
        ended = subprocess.run([sys.executable, "-m", "fsqueue_cli", *words], capture_output=True, text=True)
        if ended.returncode not in (0, 9, 124):
            self.journal.say("odd", kind="command", error=f"{ended.returncode}: {ended.stderr}")
        return ended.returncode in (0, 9)

    def step(self) -> None:
        """Ask once."""
        what, ask = self.dice.choice(self.questions())
        drained = self.call("ask", lambda _: ask()) if what != "wait for a command" else ask()
        if drained is not None:
            self.journal.say("answer", what=what, drained=drained)

    def as_child(self) -> None:
        """Ask once."""
        self.step()


def _asking(group: AnyGroup, notes: Path, seed: int, name: str) -> int:
    """Ask until all is drained; how often."""
    asker, times = Asker(group, Journal(notes, f"asker-{name}"), random.Random(f"{seed} {name}")), 0
    while not (notes.parent / "drained").exists():
        asker.step()
        times += 1
    for what, ask in asker.questions():
        if "wait" not in what:
            assert ask(), f"{what} is not drained in the end"
    return times


def ask_here(path: Path, url: str, notes: Path, seed: int) -> int:
    """Ask at the disk."""
    return _asking(Group(path), notes, seed, "local")


def ask_there(path: Path, url: str, notes: Path, seed: int) -> int:
    """Ask a gateway."""
    return _asking(connected(url), notes, seed, "remote")


def connected(url: str) -> RemoteGroup:
    """Return the group at a gateway."""
    group = fsqueue.connect(url, patience_s=PATIENCE_S)
    assert isinstance(group, RemoteGroup)
    return group


def wait_here(path: Path, url: str, notes: Path, seed: int) -> int:
    """Wait for three queues without end."""
    group, journal = Group(path), Journal(notes, "waiter-local")
    found = fsqueue.wait([group[name] for name in CHAINS["three"]])
    journal.say("answer", what="wait for three", drained=all(status.drained for status in found))
    return 1


def wait_there(path: Path, url: str, notes: Path, seed: int) -> int:
    """Wait for one queue at a gateway without end."""
    journal = Journal(notes, "waiter-remote")
    journal.say("answer", what="wait for one", drained=connected(url)["one"].wait().drained)
    return 1


STORM = Storm("hops", Hopper, begin, QUEUES, (None,), (ask_here, ask_there, wait_here, wait_there))
