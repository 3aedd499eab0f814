"""A story written down: who does what, what goes wrong where, whose turn it is, and the draws of each.

A seed means another story as soon as a verb makes one system call more: all draws come from one generator, in order.
What is written down survives that: each draw belongs to its purpose, and each fault and turn to a place.

A **place** is `w0 2.3 rename 1`: the first `rename` of the third verb that the worker w0 calls in its second act.
Sleeps count like system calls. Two more places are `begin`, and `w0 ends`.

The **purpose** of a draw is an act (`w0 2`); what the world answers to calls of one kind in a verb (`w0 2.3 listdir`);
a fault; or what comes `before` the workers, and at the `end`.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from threading import get_ident
from typing import Any

BEFORE, END, APART = "before", "end", "apart"
"""Purposes of draws outside of acts. APART: they are not written down, but what they decided is."""
BEGIN = "begin"
"""The place of the first turn."""

Draw = int | float
"""What `getrandbits` gave, or `random`."""


@dataclass
class Role:
    """A worker: its host, and what it does, act by act."""

    name: str
    host: str
    acts: list[str] = field(default_factory=list)


@dataclass
class KeptFault:
    """Something that goes wrong at a place, and what it draws."""

    kind: str
    place: str
    draws: list[Draw] = field(default_factory=list)


@dataclass
class Kept:
    """A story. `seed` names things in it, and decides what is not written down."""

    scenario: str
    seed: int | str
    showed: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    skews_s: list[float] = field(default_factory=list)
    cast: list[Role] = field(default_factory=list)
    faults: list[KeptFault] = field(default_factory=list)
    turns: list[tuple[str, str]] = field(default_factory=list)
    """At each of these places: who goes on."""
    draws: dict[str, list[Draw]] = field(default_factory=dict)
    """Of each purpose."""


class _Doing:
    """Where a worker is."""

    __slots__ = ("act", "actor", "apart", "call", "counts", "in_verb", "verb")

    def __init__(self, actor: str) -> None:
        self.actor = actor
        self.act = self.verb = 0
        self.in_verb = False
        self.call = ""
        """The system call that it made last, or makes."""
        self.counts: Counter[str] = Counter()
        """How many calls of each kind it has made in this verb."""
        self.apart: str | None = None
        """For what it draws at the moment, if for nothing of its own."""

    def at(self, what: str) -> str:
        return f"{self.actor} {self.act}.{self.verb} {what} {self.counts[what]}"

    @property
    def purpose(self) -> str:
        if self.apart is not None:
            return self.apart
        return f"{self.actor} {self.act}.{self.verb} {self.call}" if self.in_verb else f"{self.actor} {self.act}"


class Book(Random):
    """The draws of a story, each of which knows its purpose; and where each worker is."""

    def __init__(self, seed: int | str) -> None:
        super().__init__(seed)
        self.main = APART
        """For what the thread draws in which no worker acts."""
        self._workers: dict[str, _Doing] = {}
        self._threads: dict[int, _Doing] = {}

    # -- where everybody is ------------------------------------------------------------------------

    def act(self, actor: str, number: int) -> None:
        """A worker begins its next act, in the thread that asks."""
        doing = self._workers.get(actor)
        if doing is None:
            doing = self._workers[actor] = self._threads[get_ident()] = _Doing(actor)
        doing.act, doing.verb = number, 0
        doing.counts.clear()

    def verb(self, actor: str) -> None:
        """A worker calls its next verb."""
        doing = self._workers.get(actor)
        if doing is not None:
            doing.verb += 1
            doing.in_verb = True
            doing.call = ""
            doing.counts.clear()

    def verb_ended(self, actor: str) -> None:
        doing = self._workers.get(actor)
        if doing is not None:
            doing.in_verb = False

    def count(self, actor: str, call: str) -> None:
        """A worker makes a system call."""
        doing = self._workers.get(actor)
        if doing is not None:
            doing.call = call
            doing.counts[call] += 1

    def place(self, actor: str) -> str:
        """Return the place of a worker, which is at a system call; of others, the name."""
        doing = self._workers.get(actor)
        return actor if doing is None else doing.at(doing.call)

    def sleep(self, actor: str) -> str:
        """Return the place of a worker, which begins to sleep."""
        doing = self._workers.get(actor)
        if doing is None:
            return ""
        doing.counts["sleep"] += 1
        return doing.at("sleep")

    @contextmanager
    def apart(self, purpose: str = APART) -> Iterator[None]:
        """While this lasts, what the thread draws is for this."""
        doing = self._threads[get_ident()]
        before, doing.apart = doing.apart, purpose
        try:
            yield
        finally:
            doing.apart = before

    def purpose(self) -> str:
        """Return for what the next draw is."""
        doing = self._threads.get(get_ident())
        return self.main if doing is None else doing.purpose

    # -- turns -------------------------------------------------------------------------------------

    def choose(self, able: list[str], place: str) -> int:
        """Return which of several workers goes on. A writer draws it, and a reader takes what was written down."""
        raise NotImplementedError

    def turned(self, place: str, name: str, is_choice: bool) -> None:
        """A worker goes on. `is_choice`: the one that stopped had to, so that it counts, too, if it goes on at once."""


class Writer(Book):
    """The draws of a seed, written down. They are the same as without."""

    def __init__(self, seed: int | str, kept: Kept) -> None:
        super().__init__(seed)
        self.kept = kept
        self._draws: dict[str, list[Draw]] = defaultdict(list)
        self._was_drawn = False
        """Whether the next turn is one of several that might be."""

    def random(self) -> float:
        value = super().random()
        self._draws[self.purpose()].append(value)
        return value

    def getrandbits(self, k: int, /) -> int:
        value = super().getrandbits(k)
        self._draws[self.purpose()].append(value)
        return value

    def choose(self, able: list[str], place: str) -> int:
        self._was_drawn = True
        return int(super().random() * len(able))

    def turned(self, place: str, name: str, is_choice: bool) -> None:
        mine = place.partition(" ")[0]
        if name != mine or (is_choice and self._was_drawn):
            self.kept.turns.append((place, name))
        self._was_drawn = False

    def begin(self, fault: KeptFault) -> str:
        """Return the purpose of what a fault draws."""
        self.kept.faults.append(fault)
        purpose = f"fault {id(fault)}"
        self._draws[purpose] = fault.draws
        return purpose

    def drop(self, fault: KeptFault) -> None:
        """It was not the place for this fault."""
        self.kept.faults = [one for one in self.kept.faults if one is not fault]

    def end(self) -> None:
        """Nothing more is told."""
        left_out = (APART, "fault ")
        self.kept.draws = {why: draws for why, draws in self._draws.items() if not why.startswith(left_out)}


class Reader(Book):
    """The draws that were written down. Where there are no more of a purpose, the seed decides."""

    def __init__(self, seed: int | str, kept: Kept) -> None:
        super().__init__(seed)
        self._seed = seed
        self._left = {why: deque(draws) for why, draws in kept.draws.items()}
        self._left |= {f"fault {number}": deque(fault.draws) for number, fault in enumerate(kept.faults)}
        self._more: dict[str, Random] = {}
        self.turns: dict[str, deque[str]] = defaultdict(deque)
        for place, name in kept.turns:
            self.turns[place].append(name)

    def _written(self, kind: type) -> Any:
        """Return what was drawn for this purpose, if it was drawn in the same way."""
        left = self._left.get(self.purpose())
        return left.popleft() if left and type(left[0]) is kind else None

    def _of_the_seed(self) -> Random:
        purpose = self.purpose()
        if purpose not in self._more:
            self._more[purpose] = Random(f"{self._seed}/{purpose}")
        return self._more[purpose]

    def random(self) -> float:
        written: float | None = self._written(float)
        return self._of_the_seed().random() if written is None else written

    def getrandbits(self, k: int, /) -> int:
        written: int | None = self._written(int)
        return self._of_the_seed().getrandbits(k) if written is None else written & ((1 << k) - 1)

    def choose(self, able: list[str], place: str) -> int:
        name = self.turns[place].popleft() if self.turns.get(place) else None
        return able.index(name) if name in able else int(self._of_the_seed().random() * len(able))
