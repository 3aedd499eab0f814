"""Small cases, all of them: every fault at every call of a verb, and every verb at every call of every other.

    python -m tests.simulation.exhaustive complete                 # every fault at every call of one verb
    python -m tests.simulation.exhaustive complete lease           # another verb at every call of it
    python -m tests.simulation.exhaustive complete lease --kind nfs --fate stopped --at 12 -v    # one, call by call

On a queue of two tasks the first verb runs up to its k-th call; there its fate comes, and the second verb runs whole;
then the first goes on, if it lives. At the end a fresh worker drains the queue, and all is judged as in random stories.
A verb that dies at a call leaves what it would have left at the call before, if that one only read: one of two such
deaths is told, with upkeep at the end and without. A fate that finds nothing to do at a call is not told there. Where a
fault leaves the same as one before, the end is told once (`endings`).
What is not told here is two verbs that take turns more than once: the random stories do that.

Exits with 0 if nothing was found, with 1 otherwise.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from fsqueue.format.layout import Settings
from tests.levels import IS_ALL
from tests.simulation import commit_acts
from tests.simulation.endings import Endings
from tests.simulation.fates import DEATHS, FATES, Call, Skip, StruckStory, in_vain, is_place
from tests.simulation.faults import DAY_S
from tests.simulation.handles import Crash
from tests.simulation.history import Actor
from tests.simulation.invariants import files, generation
from tests.simulation.kernel import CALL_S, Process
from tests.simulation.nfs import Client
from tests.simulation.scenarios import KEPT, MANY, MOVED
from tests.simulation.stories import AT_ONCE, LEASE_S, Scenario, limited
from tests.simulation.verbs import LEASE, LEASED, LEFTOVERS, LETTER, NO_QUEUE, STAGED, VERBS, Verb
from tests.simulation.wiring import collect, simulated_machine, undisturbed
from tests.simulation.world import NEVER, Circles

ORDERED: dict[str, Any] = {"priorities": ("b", None, "a"), "actions": {"insert_keyed": 1.0}}
"""What is staged or has a key has a priority, too; and keys are used once more at the end."""

KINDS = {
    one.name: one
    for one in (
        Scenario("local", shared=False, hosts=1, limits=AT_ONCE),
        Scenario("nfs", stale=1.0, limits=AT_ONCE),
        Scenario("singles", settings={"batch_tasks_max": 1}),
        Scenario("lossy", shared=False, hosts=1, lossy=True, limits=AT_ONCE),
        Scenario("strict", shared=False, hosts=1, lossy=True, settings={"durability": "strict"}, limits=AT_ONCE),
        Scenario("lossy-nfs", lossy=True, limits=AT_ONCE),
        Scenario("moved", shared=False, hosts=1, limits=(*AT_ONCE, *MOVED), settings=KEPT),
        Scenario("moved-nfs", stale=1.0, limits=(*AT_ONCE, *MOVED), settings=KEPT),
        Scenario("moved-lossy", shared=False, hosts=1, lossy=True, limits=(*AT_ONCE, *MOVED), settings=KEPT),
        Scenario("open", shared=False, hosts=1, singly=True, settings=MANY),
        Scenario("open-nfs", stale=1.0, singly=True, settings=MANY),
        Scenario("open-lossy", shared=False, hosts=1, lossy=True, singly=True, settings=MANY),
        Scenario("order", shared=False, hosts=1, singly=True, settings=MANY, **ORDERED),
        Scenario("order-nfs", stale=1.0, singly=True, settings=MANY, **ORDERED),
        Scenario("order-lossy", shared=False, hosts=1, lossy=True, singly=True, settings=MANY, **ORDERED),
    )
}
"""The filesystems, by name. A client of NFS believes what it remembers whenever it may."""


@dataclass(frozen=True, order=True)
class Schedule:
    """`first` runs up to its call number `at`; there `fate` comes, and `second` runs whole (up to its call `until`)."""

    kind: str
    first: str
    second: str
    fate: str
    at: int
    until: int = NEVER
    upkeep: bool | None = None
    """Whether `gc` comes first at the end; None: at every other call of the first verb, so that each has both."""

    def command(self) -> str:
        """What to type to see it again."""
        second = f" {self.second}" if self.second else ""
        until = f" --until {self.until}" if self.until < NEVER else ""
        until += "" if self.upkeep is None else " --upkeep" if self.upkeep else " --no-upkeep"
        return (
            f"python -m tests.simulation.exhaustive {self.first}{second} "
            f"--kind {self.kind} --fate {self.fate} --at {self.at}{until} -v"
        )

    @property
    def begins_with_upkeep(self) -> bool:
        """Both for each verb, filesystem and fate: in turn, or as `upkeep` says."""
        if self.upkeep is not None:
            return self.upkeep
        turn = self.at + self.at // 2  # also where only every second or third call is tried
        return (turn + list(FATES).index(self.fate)) % 2 == 0


ALONE = {
    "local": ("killed", "cut-short", "reply-lost", "eio-after", "eio", "eacces", "full", "full-halfway", "unlistable",
              "cleaned", "interrupted", "interrupted-after"),
    "nfs": ("killed", "cut-short", "late", "locks-lost", "away", "host-lost", "reply-lost", "eio-after", "eio",
            "estale", "full", "cleaned"),
    "lossy": ("power", "power-names", "power-data", "power-all", "power-both-names"),
    "strict": ("power", "power-names", "power-data"),
    "lossy-nfs": ("power",),
    "open": ("killed", "cut-short", "reply-lost", "eio-after", "eio", "full", "full-halfway", "cleaned", "interrupted",
             "interrupted-after"),
    "open-nfs": ("killed", "cut-short", "late", "locks-lost", "away", "host-lost", "reply-lost", "eio-after", "eio",
                 "estale", "full"),
    "open-lossy": ("power", "power-names", "power-data", "power-all"),
    "order": ("killed", "cut-short", "reply-lost", "eio-after", "eio", "full-halfway", "interrupted"),
    "order-nfs": ("killed", "late", "locks-lost", "host-lost", "reply-lost", "estale"),
    "order-lossy": ("power", "power-names", "power-data"),
    "moved": ("killed", "cut-short", "reply-lost", "eio-after", "eio", "eacces", "full", "full-halfway", "interrupted",
              "interrupted-after"),
    "moved-nfs": ("killed", "cut-short", "late", "locks-lost", "host-lost", "reply-lost", "eio-after", "estale"),
    "moved-lossy": ("power", "power-names", "power-data", "power-all", "power-both-names"),
}  # fmt: skip
"""The faults of one verb."""
IN_THE_LOG = frozenset((
    "insert", "insert-twice", "insert-urgent", "insert-keyed", "lease-many", "lease-up-to", "poll", "complete", "fail",
    "bury", "release", "cancel", "is-drained", "status", "purge", "gc", "fsck", "idle-looks",
))  # fmt: skip
"""The verbs that are tried in open batches, too: those to which it makes a difference where a task stands."""
WITH_PRIORITIES = frozenset(("insert-keyed", "commit-anew", "publish-staged", "overwrite-anew", "overwrite-staged"))
"""The verbs that are tried with priorities, too."""
ENDING = frozenset(("complete", "bury", "cancel", "poll", "gc"))
"""The verbs that end batches, and are tried where task files are kept, too."""
ONLY = {"open": IN_THE_LOG, "order": WITH_PRIORITIES, "moved": ENDING}
"""The verbs that are tried on the filesystems whose names begin so."""
ALONE_ON = [
    (verb, kind)
    for verb in VERBS
    for kind in ALONE
    if all(verb in verbs for prefix, verbs in ONLY.items() if kind.startswith(prefix))
]
"""Each verb that is tried alone, and a filesystem: a test each, so that processes share the work evenly."""
TOGETHER = {"local": ("killed",), "nfs": ("on",)}
"""What becomes of the first of two verbs in each run of the tests."""
SPARSE = {"fsck": 3, "gc": 2, "idle-looks": 10, "lease-up-to": 3}
"""These make many calls, of which most only look: in each run of the tests every tenth, third or second is tried."""
IN_GATE = 20
"""The gate tells one of this number of cases of a verb alone that have the same fate."""
IN_GATE_LEAST = 2
"""Least number of such cases in the gate, if there are as many."""
EACH_DEATH = frozenset(("local",))
"""The filesystem on which the gate tells each death by a signal."""
TOGETHER_LONG = {
    "local": ("on", "late", "days", "killed", "cut-short", "stopped", "reply-lost"),
    "nfs": ("on", "late", "killed", "cut-short", "stopped", "locks-lost", "reply-lost", "host-lost"),
    "lossy": ("then-power", "then-power-names", "killed-then-power"),
    "strict": ("then-power", "then-power-names"),
}
"""The same when there is time."""


# -- one schedule ------------------------------------------------------------------------------------------------


class Play(StruckStory):
    """A story in which everything is laid down."""

    def __init__(self, schedule: Schedule, trace: bool = False) -> None:
        super().__init__(KINDS[schedule.kind], f"{schedule.first}/{schedule.second}", trace)
        self.schedule = schedule
        self.known: list[str] = []
        self.calls = 0
        """How many calls the first verb has made."""
        self.seen: list[Moment] | None = None
        """Each of them, if somebody wants to know."""

    def _settings(self) -> Settings:
        given = {
            "shards": 1,
            "batch_tasks_max": 2,
            "max_attempts": 2,
            "lease_s": LEASE_S,
            "backoff_s": (0, 2),
            "keep_payloads": 0,
        }
        return Settings(**{**given, **self.scenario.settings})

    def _begins_with_upkeep(self) -> bool:
        return self.schedule.begins_with_upkeep

    def act(self) -> None:
        """Tell it."""
        schedule, world = self.schedule, self.world
        verbs = [VERBS[name] for name in (schedule.first, schedule.second) if name]
        actors = [self.actor(f"w{number}", self.hosts[-number]) for number in range(len(verbs))]
        self._prepare(verbs, actors)
        process = actors[0].persona.process

        def second() -> None:
            for verb, actor in zip(verbs[1:], actors[1:], strict=True):
                self._second(verb, actor)

        def pause(who: Process, name: str, args: tuple[Any, ...]) -> None:
            if who is process:
                self.calls += 1
                if self.seen is not None:
                    self.seen.append(Moment((name, args), self._what_a_death_leaves(), in_vain(self, who)))
                if self.calls == schedule.at:
                    self.strike(schedule.fate, who, (name, args), second)
                elif self.again:
                    self.again -= 1
                    if is_place(schedule.fate, (name, args)):
                        FATES[schedule.fate](self, who, (name, args))

        world.pause, world.pause_at = pause, 0
        self._run(verbs[0], actors[0])
        self.quiet()

    def _run(self, verb: Verb, actor: Actor) -> None:
        try:
            verb.act(self, actor)
        except Crash:
            pass

    def _second(self, verb: Verb, actor: Actor) -> None:
        world, made = self.world, itertools.count(1)

        def pause(who: Process, name: str, args: tuple[Any, ...]) -> None:
            if who is actor.persona.process and next(made) == self.schedule.until:
                world.fault(f"{who.name} is killed at {name}")
                who.kill()
                raise Crash

        before, world.pause = world.pause, pause
        self._run(verb, actor)
        world.pause = before

    def _what_a_death_leaves(self) -> object:
        """Return all that decides how it goes on if the first verb dies now, but for the milliseconds calls take."""
        world = self.world
        waited_s = round(world.now - world.disk.step * CALL_S, 1)
        told = [(call.actor, call.verb, call.outcome) for call in self.history.calls]
        made = self.payloads, self.serial, len(self.staged.parts)
        unsent = [host.unsent() for host in self.hosts if isinstance(host, Client)]
        return world.disk.state(), unsent, waited_s, told, made, self.rng.getstate()

    # -- what is there before ------------------------------------------------------------------------

    def _prepare(self, verbs: list[Verb], actors: list[Actor]) -> None:
        needs = frozenset[str]().union(*(verb.needs for verb in verbs))
        before = self.actor("before", self.hosts[0])
        if LEFTOVERS in verbs[0].needs:  # after another verb it has what that one leaves
            self._leave_things(before)
        if STAGED in needs:
            commit_acts.stage_before(self, before)
        if LETTER in needs:
            before.insert_many(self.fresh(1), 1)
            before.bury(before.lease()[0])
        if self.scenario.singly:  # both in the log of an open batch
            for payload in self.fresh(2):
                before.insert(payload)
        else:
            before.insert_many(self.fresh(2), 2)
        for info in before.do("peek", lambda q: q.peek(2)) or ():
            self.history.saw(info.payload, info.id)
            self.known.append(info.id)
        lessees = [actor for verb, actor in zip(verbs, actors, strict=True) if LEASE in verb.needs]
        for actor in lessees:
            actor.lease(2 // len(lessees))
        if LEASED in needs and not lessees:
            before.lease(1)
        if NO_QUEUE in needs:
            before.plain("delete")
        else:
            for actor in actors:
                actor.queue  # noqa: B018
        before.exit()
        if self.world.disk.lossy:
            self.world.disk.sync_all()

    def _leave_things(self, before: Actor) -> None:
        """What three crashes leave: a staged file of the day before yesterday, half a finishing, half a retrying."""
        before.insert_many(self.fresh(3), 1)
        before.bury(before.lease()[0])
        for name, call, verb in (
            ("stager", "rename", VERBS["insert"]),
            ("retrier", "rename", VERBS["retry-dead"]),
            ("finisher", "unlink", VERBS["complete"]),
        ):
            actor = self.actor(name, self.hosts[0])
            if LEASE in verb.needs:
                actor.lease(1)
            self._crash(verb, actor, call)
        for _, file in files(self, f"{generation(self)}/staging"):
            file.mtime -= 2 * DAY_S

    def _crash(self, verb: Verb, actor: Actor, call: str) -> None:
        """The actor dies at its first such call."""
        world = self.world

        def pause(who: Process, name: str, args: tuple[Any, ...]) -> None:
            if name == call:
                who.kill()
                raise Crash

        world.pause, world.pause_at = pause, 0
        self._run(verb, actor)
        world.pause_at = NEVER


def play(schedule: Schedule, trace: bool = False, end: Callable[[Play], list[str]] = Play.end) -> Play | None:
    """One schedule, judged; None if the call is no place for the fate, or the first verb makes no such call."""
    with limited(KINDS[schedule.kind]):
        return _play(schedule, trace, end)


def _play(schedule: Schedule, trace: bool, end: Callable[[Play], list[str]]) -> Play | None:
    told = Play(schedule, trace)
    try:
        told.act()
        if told.calls < schedule.at and schedule.fate != "on":
            return None
        told.wrong = end(told)
    except Circles as circles:
        told.wrong = [str(circles)]
    except Skip:
        return None
    return told


# -- all of them -----------------------------------------------------------------------------------------------


@dataclass
class Report:
    """What became of the schedules of a verb, or of two."""

    schedules: int = 0
    steps: int = 0
    wrong: list[tuple[Schedule, list[str]]] = field(default_factory=list)

    def add(self, other: Report) -> None:
        self.schedules += other.schedules
        self.steps += other.steps
        self.wrong += other.wrong

    def __str__(self) -> str:
        return "\n".join(f"{schedule.command()}\n    " + "\n    ".join(wrong[:3]) for schedule, wrong in self.wrong[:5])


class Moment(NamedTuple):
    """A call that a verb is about to make, and what its death would leave there."""

    call: Call
    left: object
    in_vain: frozenset[str]
    """The fates that would find nothing to do."""


@lru_cache(maxsize=len(KINDS))
def calls_of(kind: str, first: str, second: str) -> list[Moment]:
    """The calls that the first verb makes where nothing happens to it."""
    with limited(KINDS[kind]):
        told = Play(Schedule(kind, first, second, "on", 0))
        told.seen = []
        told.act()
    return told.seen


def schedules(
    first: str, second: str, fates: dict[str, tuple[str, ...]], step: int = 1, both: bool = False
) -> Iterator[Schedule]:
    """Every call (or every `step`-th) with every fate. `both`: with `gc` first at the end, and without."""
    for kind, names in fates.items():
        moments = calls_of(kind, first, second)
        for name in names:
            for at in range(1, len(moments) + 1, step):
                if is_place(name, moments[at - 1].call) and name not in moments[at - 1].in_vain:
                    for upkeep in (False, True) if both else (None,):
                        yield Schedule(kind, first, second, name, at, upkeep=upkeep)


def without_repeats(wanted: Iterable[Schedule]) -> Iterator[Schedule]:
    """Leave out a death that leaves the same as one before: between the two calls the verb only read.

    The same is the same disk, durable and not, at the same time, when the same had been reported to the caller. Of a
    client of a file server it is also what it had not sent yet. A client leaves caches, too, which other processes on
    its host use: where a second verb follows there, every death is told.
    """
    known: dict[tuple[str, str, str, str, bool], list[object]] = {}
    for schedule in wanted:
        if schedule.fate in DEATHS and not (schedule.second and KINDS[schedule.kind].shared):
            verbs = schedule.kind, schedule.first, schedule.second
            left = calls_of(*verbs)[schedule.at - 1].left
            alike = known.setdefault((*verbs, schedule.fate, schedule.begins_with_upkeep), [])
            if left in alike:
                continue
            alike.append(left)
        yield schedule


def with_deaths(schedule: Schedule) -> Iterator[Schedule]:
    """The same, with the second verb killed at each of its calls."""
    whole = play(schedule)
    made = sum(call.end - call.begin for call in whole.history.calls if call.actor == "w1") if whole else 0
    for until in range(1, made + 1):
        yield replace(schedule, until=until)


def report(wanted: Iterator[Schedule], each_end: bool = IS_ALL) -> Report:
    """Play them all. `each_end`: also ends that are the same as one before."""
    found = Report()
    end = Play.end if each_end else Endings().of
    with undisturbed():
        for schedule in wanted:
            told = play(schedule, end=end)
            if told is not None:
                found.schedules += 1
                found.steps += told.world.disk.step
                if told.wrong:
                    found.wrong.append((schedule, told.wrong))
                told.forget()
                collect(found.schedules)
    return found


def alone(verb: str, kind: str, long: bool) -> Iterator[Schedule]:
    """What the tests tell of one verb on one filesystem: in each run, or when there is time for `long`."""
    wanted = schedules(verb, "", {kind: ALONE[kind]}, 1 if long else SPARSE.get(verb, 1), long)
    return wanted if long else without_repeats(wanted)


def in_gate(cases: Iterable[Schedule]) -> Iterator[Schedule]:
    """Choose some of the cases of one verb on one filesystem: on each filesystem at other calls."""
    for fate, found in itertools.groupby(cases, lambda one: one.fate):
        alike = list(found)
        kind = alike[0].kind
        step = max(1, min(IN_GATE, len(alike) // IN_GATE_LEAST))
        if fate == "killed" and kind in EACH_DEATH:
            step = 1
        yield from alike[list(KINDS).index(kind) % step :: step]


def explore(first: str, second: str, long: bool) -> Report:
    """What the tests tell of two verbs: in each run, or when there is time for `long`."""
    step = 1 if long else SPARSE.get(first, 1)
    wanted = schedules(first, second, TOGETHER_LONG if long else TOGETHER, step, long)
    found = report(wanted if long else without_repeats(wanted))
    if long:
        found.add(report(death for one in schedules(first, second, {"nfs": ("on",)}) for death in with_deaths(one)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.exhaustive",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("first", choices=sorted(VERBS), metavar="VERB", help=f"one of {', '.join(sorted(VERBS))}")
    parser.add_argument("second", nargs="?", choices=sorted(VERBS), metavar="VERB")
    parser.add_argument("--kind", choices=sorted(KINDS), help="on this filesystem only")
    parser.add_argument("--fate", choices=sorted(FATES), help="only this becomes of the first")
    parser.add_argument("--at", type=int, help="only at this call of the first")
    parser.add_argument("--until", type=int, default=NEVER, help="kill the second at this call of its own")
    parser.add_argument(
        "--upkeep", action=argparse.BooleanOptionalAction, help="with or without gc first at the end (default: in turn)"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="with --at: every call")
    arguments = parser.parse_args()
    arguments.second = arguments.second or ""
    if arguments.at is not None:
        return _again(arguments)
    fates = TOGETHER_LONG if arguments.second else ALONE
    chosen = {
        kind: tuple(fate for fate in names if arguments.fate in (None, fate))
        for kind, names in fates.items()
        if arguments.kind in (None, kind)
    }
    found = report(schedules(arguments.first, arguments.second, chosen))
    print(found)
    print(f"{found.schedules:,} schedules, {found.steps:,} calls: {len(found.wrong)} went wrong")
    return 1 if found.wrong else 0


def _again(arguments: argparse.Namespace) -> int:
    """One schedule, told to the reader."""
    schedule = Schedule(
        arguments.kind or "local",
        arguments.first,
        arguments.second,
        arguments.fate or "on",
        arguments.at,
        arguments.until,
        arguments.upkeep,
    )
    with simulated_machine():
        told = play(schedule, trace=arguments.verbose)
    if told is None:
        print("the first verb makes no such call, or it is no place for this")
        return 0
    if arguments.verbose:
        print("\n".join(told.world.trace or ()))
    for text in told.wrong:
        print(f"    WRONG {text}")
    return 1 if told.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
