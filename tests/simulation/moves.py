"""A move between two queues, with every fault at every call of the mover, or another process's act at every call.

What is judged is what users are promised (docs/moves.md): each task is done once, at one of the two queues. Workers of
both queues act after the fault, or in the middle of the move. Then another mover repeats the command.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fsqueue_cli.moving import Mover

from fsqueue import Task
from tests.simulation.fates import Call, Skip, StruckStory, is_place
from tests.simulation.faults import LONG_S
from tests.simulation.handles import Crash
from tests.simulation.history import DONE, Actor
from tests.simulation.kernel import Process
from tests.simulation.relays import both
from tests.simulation.stories import Scenario, limited
from tests.simulation.wiring import begin_anew, collect, undisturbed
from tests.simulation.world import NEVER, Circles

SETTINGS: dict[str, Any] = {"shards": 1, "batch_tasks_max": 4, "max_attempts": None, "keep_history": True}
KINDS = {
    one.name: one
    for one in (
        Scenario("local", shared=False, hosts=1, two_queues=True, settings=SETTINGS),
        Scenario("nfs", stale=1.0, two_queues=True, settings=SETTINGS),
        Scenario("lossy", shared=False, hosts=1, lossy=True, two_queues=True, settings=SETTINGS),
        Scenario("lossy-nfs", lossy=True, two_queues=True, settings=SETTINGS),
    )
}
POWER = ("power", "power-names", "power-data", "power-all")
ALONE = {
    "local": ("killed", "cut-short", "reply-lost", "eio-after", "eio", "full", "full-halfway", "interrupted",
              "interrupted-after"),
    "nfs": ("killed", "cut-short", "locks-lost", "host-lost", "reply-lost", "eio-after", "eio", "estale", "full"),
    "lossy": POWER,
    "lossy-nfs": POWER,
}  # fmt: skip
"""What may become of the mover, on each filesystem."""
BESIDE = {"local": ("on", "days"), "nfs": ("on", "days", "away")}
"""How long the mover stands still while another process acts."""
PAYLOADS = Counter(["a", "b", "later", "urgent", "e", "f"])


@dataclass(frozen=True)
class Case:
    """`fate` comes at call `at` of the mover; there `act` is done by another process, if one is named."""

    kind: str
    fate: str
    at: int
    act: str = ""


class Move(StruckStory):
    """Six tasks of two batches of one queue, which are moved to the other one."""

    def __init__(self, case: Case, trace: bool = False) -> None:
        super().__init__(KINDS[case.kind], "move", trace)
        self.case = case
        self.made: list[Call] = []
        """The calls that the mover has made."""
        self.done = Counter[str]()
        """How often each payload was executed, at either queue."""

    def move(self, actor: Actor) -> None:
        """Do what `fsqueue mv` does."""
        target = both(self, actor)[1]
        actor.do("mv", lambda q: Mover(q, target.queue, (), False).run())

    def execute(self, actor: Actor, places: tuple[int, ...] = (0, 1)) -> None:
        """Complete all that may be leased at these queues."""
        for place in places:
            one = both(self, actor)[place]
            while got := one.lease(2):
                self.done.update(task.payload for task in got if one.complete([task]))

    def tell(self) -> list[str]:
        """Tell it, and return what is wrong in the end."""
        self._prepare()
        mover = self.actor("mover", self.hosts[0])
        process, world = mover.persona.process, self.world

        def pause(who: Process, name: str, args: tuple[Any, ...]) -> None:
            if who is process:
                self.made.append((name, args))
                if len(self.made) == self.case.at:
                    self.strike(self.case.fate, who, (name, args), self._act_beside)

        world.pause, world.pause_at = pause, 0
        try:
            self.move(mover)
        except Crash:
            pass
        self.quiet()
        return [*self._wrong()] if len(self.made) >= self.case.at else []

    def _prepare(self) -> None:
        before = self.actor("before", self.hosts[0])
        before.do("insert", lambda q: q.insert_many([Task("a"), Task("b"), Task("later", delay_s=5)]))
        before.do("insert", lambda q: q.insert_many([Task("urgent", priority=1), Task("e"), Task("f")]))
        before.exit()
        self.world.now += 1
        if self.world.disk.lossy:
            self.world.disk.sync_all()

    def _act_beside(self) -> None:
        """Let another process act, if the case names an act."""
        if self.case.act:
            other = self.actor("other", self.hosts[-1])
            before, self.world.pause = self.world.pause, lambda *_: None
            ACTS[self.case.act](self, other)
            self.world.pause = before

    def _wrong(self) -> Iterator[str]:
        """Have workers go on at both queues, then repeat the move: was each task done once?"""
        self.world.now += LONG_S
        worker = self.actor("worker", self.hosts[-1])
        self.execute(worker)
        if self.done - PAYLOADS:
            yield f"done twice, before the move was repeated: {[*(self.done - PAYLOADS)]}"
        again = self.actor("again", self.hosts[-1])
        self.move(again)
        if again.last.outcome != DONE:
            yield f"the repeated move: {again.last}"
        self.execute(worker)
        if self.done != PAYLOADS:
            yield f"lost: {[*(PAYLOADS - self.done)]}, done twice: {[*(self.done - PAYLOADS)]}"
        for one in both(self, worker):
            if not one.plain("is_drained"):
                yield f"{one.path} is not drained: {one.plain('status')}"
            if self.case.fate in ("killed", "on"):
                one.plain("gc")
                left = one.do("fsck", lambda q: [found for found in q.fsck() if found.kind not in KNOWN]) or []
                yield from (f"fsck of {one.path} finds {found}" for found in left)


KNOWN = ("staged-file", "repeated-history")
"""What a process that was killed leaves for a later `gc`, or repeats."""


def _execute_source(story: Move, actor: Actor) -> None:
    story.execute(actor, (0,))


def _execute_target(story: Move, actor: Actor) -> None:
    story.execute(actor, (1,))


def _move_and_execute(story: Move, actor: Actor) -> None:
    story.move(actor)
    story.execute(actor, (1,))


def _collect(story: Move, actor: Actor) -> None:
    for one in both(story, actor):
        one.plain("gc")


ACTS: dict[str, Callable[[Move, Actor], None]] = {
    "execute-source": _execute_source,
    "execute-target": _execute_target,
    "execute-both": lambda story, actor: story.execute(actor),
    "move": Move.move,
    "move-and-execute": _move_and_execute,
    "gc": _collect,
}
"""What another process does while the mover stands still."""


def tell(case: Case, trace: bool = False) -> tuple[Move, list[str]] | None:
    """Tell one case; None if its fate has no place at that call."""
    begin_anew()
    with limited(KINDS[case.kind]):
        story = Move(case, trace)
        try:
            return story, story.tell()
        except Circles as circles:
            return story, [str(circles)]
        except Skip:
            return None


def places_of(kind: str, fate: str) -> list[int]:
    """Return the numbers of those calls of a mover at which a fate may come."""
    told = tell(Case(kind, "on", NEVER))
    assert told is not None
    return [at for at, call in enumerate(told[0].made, 1) if is_place(fate, call)]


def wrong(kind: str, fate: str, act: str, step: int) -> tuple[int, list[str]]:
    """Tell each `step`-th case, two at least. Return how many were told, and what went wrong, with the case."""
    count, found = 0, list[str]()
    with undisturbed():
        places = places_of(kind, fate)
        step = max(1, min(step, len(places) // 2))
        for at in places[len(fate + act) % step :: step]:
            case = Case(kind, fate, at, act)
            told = tell(case)
            if told is not None:
                count += 1
                found += [f"{case}: {text}" for text in told[1]]
                for actor in told[0].actors:
                    actor.exit()
                told[0].forget()
                collect(count)
    return count, found
