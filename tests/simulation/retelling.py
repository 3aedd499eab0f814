"""Stories that are written down while they are told, and stories that are told from what was written down."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fsqueue.format.layout import Settings
from tests.simulation.books import Kept, KeptFault, Reader, Role, Writer
from tests.simulation.faults import Fault
from tests.simulation.handles import Host
from tests.simulation.history import Actor
from tests.simulation.kernel import Process
from tests.simulation.stories import Scenario, Story, told
from tests.simulation.world import NEVER


class Recorded(Story):
    """The story of a seed, written down meanwhile."""

    def __init__(self, scenario: Scenario, seed: int | str, trace: bool = False) -> None:
        self.kept = Kept(scenario.name, seed)
        self.writer = Writer(f"{scenario.name}/{seed}", self.kept)
        super().__init__(scenario, seed, trace, self.writer)
        self.kept.settings = asdict(self.settings)
        self.kept.skews_s = [host.skew_s for host in self.hosts]

    def _host_of(self, name: str) -> Host:
        host = super()._host_of(name)
        self.kept.cast.append(Role(name, host.name))
        return host

    def purpose(self, purpose: str) -> None:
        self.writer.main = purpose

    def script(self, actor: Actor, drawn: list[str]) -> list[str]:
        [role] = [role for role in self.kept.cast if role.name == actor.name]
        role.acts = drawn
        return drawn

    def begin_act(self, actor: Actor, number: int) -> None:
        self.writer.act(actor.name, number)

    def _gap(self) -> int:
        with self.writer.apart():
            return super()._gap()

    def _switch(self, process: Process) -> None:
        self.scheduler.switch(process, self.writer.place(process.name))

    def _strike(self, fault: Fault, process: Process, name: str, args: tuple[Any, ...]) -> bool:
        kept = KeptFault(fault.kind, self.writer.place(process.name))
        with self.writer.apart(self.writer.begin(kept)):
            is_place = super()._strike(fault, process, name, args)
        if not is_place:
            self.writer.drop(kept)
        return is_place


class Retold(Story):
    """A story that was written down. What of it finds no place any more is in `not_reached`."""

    def __init__(self, scenario: Scenario, kept: Kept, trace: bool = False) -> None:
        self.kept = kept
        self.reader = Reader(f"{scenario.name}/{kept.seed}", kept)
        self.not_reached = list(kept.faults)
        """The faults that have not come yet."""
        self._due: dict[str, list[tuple[int, KeptFault]]] = defaultdict(list)
        for number, fault in enumerate(kept.faults):
            self._due[fault.place].append((number, fault))
        super().__init__(scenario, kept.seed, trace, self.reader)

    def _settings(self) -> Settings:
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in self.kept.settings.items()}
        return Settings(**{"keep_payloads": 0, **given})  # stories from before there was such a setting have none

    def _skew_s(self, number: int) -> float:
        return self.kept.skews_s[number]

    def _host_of(self, name: str) -> Host:
        [role] = [role for role in self.kept.cast if role.name == name]
        return next(host for host in self.hosts if host.name == role.host)

    def purpose(self, purpose: str) -> None:
        self.reader.main = purpose

    def script(self, actor: Actor, drawn: list[str]) -> list[str]:
        [role] = [role for role in self.kept.cast if role.name == actor.name]
        return role.acts

    def begin_act(self, actor: Actor, number: int) -> None:
        self.reader.act(actor.name, number)

    def run(self, acts: list[Callable[[Story, Actor], None]]) -> None:
        super().run(acts[:1] * len(self.kept.cast))

    def _plan(self) -> None:
        self.switch_at = NEVER

    def pause(self, process: Process, name: str, args: tuple[Any, ...]) -> None:
        """Before each call: has something its place here?"""
        place = self.reader.place(process.name)
        while self._due.get(place):
            number, kept = self._due[place].pop(0)
            self.not_reached.remove(kept)
            self.fault_kinds.append(kept.kind)
            with self.reader.apart(f"fault {number}"):
                if not Fault(kept.kind, 0).act(self, process, name, args):
                    self.fault_kinds.pop()
                    self.not_reached.append(kept)
        if self.reader.turns.get(place):
            self.scheduler.switch(process, place)
        self.world.pause_at = 0


def record(scenario: Scenario, seed: int | str) -> Recorded:
    """Tell the story of a seed, and write it down: `kept` is what was written."""
    story = told(scenario, lambda: Recorded(scenario, seed))
    story.writer.end()
    return story


def retell(scenario: Scenario, kept: Kept, trace: bool = False) -> Retold:
    """Tell a story that was written down, to the judgement."""
    return told(scenario, lambda: Retold(scenario, kept, trace))


def what_happened(story: Story) -> tuple[list[str], list[str], list[str]]:
    """Return each call of a verb and its answer, what was done to the world, and what was wrong."""
    return [str(call) for call in story.history.calls], story.world.faults, story.wrong


def shortened(kept: Kept, digits: int) -> Kept:
    """Return the story with that many digits of each random fraction."""
    short = copy.deepcopy(kept)
    scale = 10**digits
    for draws in (*short.draws.values(), *(fault.draws for fault in short.faults)):
        draws[:] = [int(draw * scale) / scale if isinstance(draw, float) else draw for draw in draws]
    return short
