"""Random stories: a few workers with a few things to do, on a world that may go wrong, and the end of it.

A story is made of a seed and a scenario. When its workers have finished, died or been stopped for ever, the faults
end, time passes, and a fresh worker drains the queue; then everything is judged.
"""

from __future__ import annotations

import copy
import errno
import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from unittest import mock

from fsqueue import FsqueueError, QueueNotFound, Task, TaskTooLarge
from fsqueue.format.groups import GROUP_FILE
from fsqueue.format.layout import Settings, birth_record
from fsqueue.format.names import QueueId
from tests.simulation import (
    barrier_acts,
    campaigns,
    commit_acts,
    group_acts,
    invariants,
    keyed_acts,
    limits,
    order,
    relays,
    update_acts,
    update_judge,
)
from tests.simulation.books import END, Book
from tests.simulation.disk import Disk
from tests.simulation.faults import BESIDE, DAY_S, LONG_S, QUEUE, Fault, draw
from tests.simulation.handles import Host
from tests.simulation.history import DONE, Actor, History
from tests.simulation.kernel import Process
from tests.simulation.nfs import Client, NfsProcess
from tests.simulation.slurm import Slurm
from tests.simulation.wiring import Persona, begin_anew, take_stage
from tests.simulation.world import NEVER, START_S, Circles, Scheduler, SimClock, SimEntropy, World

LEASE_S = 10.0
AT_ONCE = (("storage.letter_files:BLOCK_BYTES", 0),)
"""Settled letters are given back as soon as they are half of a file."""


@dataclass(frozen=True)
class Scenario:
    """What kind of story: the filesystem, who does what, what may go wrong."""

    name: str
    shared: bool = True
    hosts: int = 2
    workers: int = 3
    actions: dict[str, float] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    faults_most: int = 3
    tasks_before: int = 4
    stale: float = 0.0
    torn_listings: float = 0.0
    stale_listings: float = 0.0
    skew_s: float = 0.0
    lossy: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    compare_clocks: bool = False
    tick_s: float = 0.0
    """The resolution of the times that the disk keeps; 0: they are exact."""
    both_names: bool = False
    """Whether a power loss may leave a file that was being renamed with both its names."""
    priorities: tuple[Any, ...] = ()
    """What tasks with keys, and those of named commits, have as priorities, by lot. Nothing: none has one."""
    of_group: bool = False
    """Whether its limits are those of a group that the queue lies in."""
    group: bool = False
    """Whether both are queues of a group, which come into being at their first insert: see `group_acts`."""
    two_queues: bool = False
    """Whether there is another queue beside the first one, with the same settings: see `relays`."""
    limits: tuple[tuple[str, int], ...] = ()
    """Constants of the package that are small here, so that they are reached: "module:NAME" and value."""
    campaign: bool = False
    """Whether there are jobs that submit their successors: see `campaigns`."""
    too_long: bool = False
    """Whether no task fits the time limit of a job."""
    singly: bool = False
    """Whether it begins and ends with tasks that are inserted singly, into an open batch."""


AStory = TypeVar("AStory", bound="Story")


class Story:
    """A world with a queue in it, and what happens there."""

    def __init__(self, scenario: Scenario, seed: int | str, trace: bool = False, book: Book | None = None) -> None:
        self.scenario, self.seed = scenario, seed
        self.world = World(f"{scenario.name}/{seed}", lossy=scenario.lossy, trace=trace, book=book)
        self.world.disk.names_sync = scenario.shared
        self.world.disk.keeps_both_names = scenario.both_names
        self.world.disk.tick_s = scenario.tick_s
        self.rng = self.world.rng
        self.path = QUEUE
        """The queue from which it is told."""
        self.history = History(self.world)
        self.history_beside = History(self.world)
        """That of the other queue, if there are two."""
        self.history_beside.priorities = self.history.priorities
        self.processes: list[Process] = []
        self.hosts: list[Host] = []
        self.actors: list[Actor] = []
        self.faults: list[Fault] = []
        self.full, self.full_code = 0, errno.ENOSPC
        self.fault_kinds: list[str] = []
        self.wrong: list[str] = []
        self.power_lost = False
        self.forgotten_until = -1
        """What was reported up to this step may have been lost with the power (it was not synced)."""
        self.skew_s = scenario.skew_s
        self.letters: dict[Any, set[str]] = {}
        self.payloads = 0
        self.staged = commit_acts.Staged()
        self.updates = update_acts.Updates()
        self.serial = 0
        self.begun: list[tuple[float, int]] = []
        """When each call began that has leased, in a story with a rate, and how many tasks it has leased."""
        self.settings = self._settings()
        self.slurm = Slurm(self.world)
        self.shape: tuple[int, int, float] | None = None
        """Of a campaign: jobs at most, stops before it, and `task_s`. None: they are drawn."""
        self.task_s = 0.0
        """How long a task takes in a job."""
        self._make_queue()
        for number in range(scenario.hosts):
            self.hosts.append(self._host(f"host{number}", self._skew_s(number), scenario.stale))
        self.world.cut_write = self._cut_write  # type: ignore[method-assign]

    # -- how it begins ----------------------------------------------------------------------------

    def _settings(self) -> Settings:
        rng = self.rng
        given: dict[str, Any] = {
            "shards": rng.choice((1, 1, 2)),
            "batch_tasks_max": rng.choice((1, 2, 4)),
            "max_attempts": rng.choice((1, 2, 3, None)),
            "lease_s": LEASE_S,
            "backoff_s": (0, 2),
            "keep_history": rng.random() < 0.5,
            "keep_payloads": 0,
        }
        if not self.scenario.shared:
            given["durability"] = rng.choice(("default", "strict"))
        return Settings(**{**given, **self.scenario.settings})

    def _skew_s(self, number: int) -> float:
        """By how much the clock of a host is wrong."""
        return (self.rng.random() * 2 - 1) * self.scenario.skew_s

    @property
    def durable(self) -> bool:
        """Whether each movement is synced before it is reported."""
        return self.scenario.shared or self.settings.durability == "strict"

    def _make_queue(self) -> None:
        disk: Disk = self.world.disk
        if self.scenario.group:
            group_acts.make(self)
            disk.sync_all()
            return
        group = disk.new_directory(disk.root, "group")
        identities = {QUEUE: "0123456789abcdef"} | ({BESIDE: "fedcba9876543210"} if self.scenario.two_queues else {})
        if of_group := limits.of_group(self, int(START_S * 1000)):
            file = disk.new_file(group, GROUP_FILE)
            file.data += of_group
            disk.written(file)
        for path, identity in identities.items():
            queue = disk.new_directory(group, path.rpartition("/")[2])
            file = disk.new_file(queue, "queue.jsonl")
            self.identity = QueueId(identity)
            file.data += birth_record(self.settings, identity, int(START_S * 1000))
            file.data += limits.line(self, int(START_S * 1000))
            disk.written(file)
        if disk.lossy:
            disk.sync_all()

    def _host(self, name: str, skew_s: float, stale: float) -> Host:
        return Client(name, skew_s, stale) if self.scenario.shared else Host(name, skew_s)

    def actor(self, name: str, host: Host | None = None) -> Actor:
        """A new process on a host."""
        host = host or self._host_of(name)
        process: Process
        if isinstance(host, Client):
            process = NfsProcess(self.world, name, host)
        else:
            process = Process(self.world, name, host)
        clock = SimClock(process, self.scenario.compare_clocks)
        self.serial += 1
        entropy = SimEntropy(f"{self.scenario.name}/{self.seed}/{self.serial}")
        worker = {"host": host.name, "pid": self.serial, "name": name}
        persona = Persona(process, clock, entropy, isinstance(host, Client), worker)
        actor = (
            group_acts.GroupActor(self.history, persona, self.path, self.settings)
            if self.scenario.group
            else Actor(self.history, persona, self.path)
        )
        self.processes.append(process)
        self.actors.append(actor)
        return actor

    def beside(self: AStory) -> AStory:
        """The same story as it is told from the other queue: from now on, only what happened is common to both."""
        other = copy.copy(self)
        other.path, other.history, other.staged, other.letters = BESIDE, self.history_beside, commit_acts.Staged(), {}
        return other

    def _host_of(self, name: str) -> Host:
        """Where a worker runs."""
        return self.rng.choice(self.hosts)

    def fresh(self, count: int) -> list[str]:
        """Payloads that nobody used before."""
        self.payloads += count
        return [f"t{number}" for number in range(self.payloads - count, self.payloads)]

    def priority(self, payload: str) -> Any:
        """The priority that a task of this payload is given, by lot."""
        if not self.scenario.priorities:
            return None
        given = self.rng.choice(self.scenario.priorities)
        self.history.was_given({payload: given})
        return given

    def tasks(self, payloads: list[str]) -> list[Any]:
        """Tasks of these payloads, with priorities if the scenario has any."""
        if not self.scenario.priorities:
            return list(payloads)
        return [Task(payload, priority=self.priority(payload)) for payload in payloads]

    # -- what goes wrong ----------------------------------------------------------------------------

    def _cut_write(self, process: Process, data: bytes) -> int | None:
        if not self.full:
            return None
        self.full -= 1
        fraction = self.world.cuts.pop(process, 0.0)
        cut = min(int(len(data) * fraction), len(data) - 1)
        if not cut:
            raise OSError(self.full_code, "simulated: no room")
        return cut

    def lose_power(self, lose: Callable[[], None]) -> None:
        """Everything stops, and what was not synced is gone: `lose` says how much of it."""
        self.power_lost = True
        if not self.durable:
            self.forgotten_until = self.world.disk.step
        for process in self.processes:
            if not process.dead:
                process.dead = True
                process.fds.clear()
        for host in self.hosts:
            if isinstance(host, Client):
                host.__init__(host.name, host.skew_s, host.stale)  # type: ignore[misc]
        lose()

    def pause(self, process: Process, name: str, args: tuple[Any, ...]) -> None:
        """Before a call: does something go wrong, and is it somebody else's turn?"""
        world = self.world
        step = world.disk.step
        while self.faults and self.faults[0].step <= step:
            fault = self.faults.pop(0)
            self.fault_kinds.append(fault.kind)
            if not self._strike(fault, process, name, args):
                self.fault_kinds.pop()
                self.faults.insert(0, fault)
                break
        if step >= self.switch_at:
            self.switch_at = step + 1 + self._gap()
            self._switch(process)
        world.pause_at = min(self.switch_at, max(self.faults[0].step, world.disk.step + 1) if self.faults else NEVER)

    def _strike(self, fault: Fault, process: Process, name: str, args: tuple[Any, ...]) -> bool:
        return fault.act(self, process, name, args)

    def _gap(self) -> int:
        """For how many calls nobody else has a turn."""
        return int(self.rng.expovariate(1.0) * self.gap)

    def _switch(self, process: Process) -> None:
        self.scheduler.switch(process)

    # -- where it is written down, or read from ----------------------------------------------------------

    def purpose(self, purpose: str) -> None:
        """For what numbers are drawn from here on, outside of acts."""

    def script(self, actor: Actor, drawn: list[str]) -> list[str]:
        """Return the names of a worker's acts: those that were drawn."""
        return drawn

    def begin_act(self, actor: Actor, number: int) -> None:
        """A worker begins its act of this number, counted from one on."""

    # -- how it goes on --------------------------------------------------------------------------------

    def run(self, acts: list[Callable[[Story, Actor], None]]) -> None:
        """The given acts at the same time, each by a process of its own."""
        world = self.world
        self.gap = self.rng.choice((1, 4, 15, 60, 400))
        self.scheduler = Scheduler(world)
        for number, act in enumerate(acts):
            self._employ(f"w{number}", act)
        if self.scenario.campaign:
            campaigns.begin(self)
        self._plan()
        world.torn_listings = self.scenario.torn_listings
        world.stale_listings = self.scenario.stale_listings
        world.pause, world.pause_at = self.pause, 0
        self.scheduler.run()
        self.quiet()

    def _plan(self) -> None:
        """Draw what will go wrong, and when the first one stops for another."""
        rng = self.rng
        kinds = list(self.scenario.faults)
        self.faults = draw(rng, kinds, self.scenario.faults_most, rng.choice((60, 250, 800)))
        self.switch_at = 1 + int(rng.expovariate(1.0) * self.gap)

    def _employ(self, name: str, act: Callable[[Story, Actor], None]) -> None:
        actor = self.actor(name)

        def work() -> None:
            try:
                act(self, actor)
            finally:
                actor.held.clear()
                if actor.persona.process.dead:
                    self._replace(name, act)
            actor.exit()

        self.scheduler.add(actor.persona.process, work)

    def _replace(self, name: str, act: Callable[[Story, Actor], None]) -> None:
        """Now and then the dead have successors."""

    def quiet(self) -> None:
        """From here on nothing goes wrong any more, and nobody interrupts."""
        world = self.world
        world.pause_at, world.sleep = NEVER, world.pass_time
        world.torn_listings = world.stale_listings = 0.0
        world.cuts.clear()
        self.full = 0
        self.faults = []
        for process in self.processes:
            if not process.dead:
                process.kill()
        for host in self.hosts:
            if isinstance(host, Client):
                host.stale = 0.0
                for file in list(host.pages):
                    for opened, *_ in host.pages[file].dirty:
                        opened.lost = True  # too late for what a dead process had buffered
        world.disk.step += 1

    def end(self) -> list[str]:
        """The end of the story, and of that of the other queue."""
        if self.scenario.campaign:
            return [*campaigns.at_rest(self), *self._end()]
        if not self.scenario.two_queues:
            return self._end()
        if self.scenario.group:
            beside = self.beside()
            wrong = [*group_acts.at_rest(self), *self._end(), *beside._end(), *group_acts.judge(self)]
            return [*wrong, *update_judge.judge(self), *barrier_acts.judge(self)]
        return [*relays.at_rest(self), *self._end(), *self.beside()._end()]

    def _end(self) -> list[str]:
        """Time passes, a fresh worker drains the queue, upkeep clears up: what is wrong then?"""
        world, wrong = self.world, list[str]()
        self.purpose(END)
        if not world.faults:
            wrong += invariants.late_hints(self)
        wrong += order.late_promises(self)
        wrong += limits.soon_after_power(self)
        world.now += LONG_S + 2 * self.skew_s
        last = self.actor("last", self._other_host())
        try:
            last.queue  # noqa: B018
        except FsqueueError as error:
            gone = isinstance(error, QueueNotFound) and invariants.is_deleted(self)
            if not gone:
                wrong.append(f"the queue does not open: {error!r}")
            return wrong + invariants.judge(self)
        if self._begins_with_upkeep():
            last.plain("gc")
            wrong += invariants.late_hints(self)
            wrong += order.late_promises(self)
        if self.scenario.singly:
            for payload in self.fresh(2):
                last.insert(payload)
        if self.scenario.priorities and self.rng.random() < 0.5:
            wrong += self._check(last)
        commit_acts.repeat_all(self, last)
        wrong += keyed_acts.insert_beside(self, last)
        wrong += self._drain(last)
        wrong += keyed_acts.insert_at_the_end(self, last)
        wrong += self._drain(last)
        if self.scenario.singly:
            last.work(LONG_S)
            wrong += self._drain(last)  # what took inserts ends now, and writes letters for which there was no room
        self._refusals(last, wrong)
        status = last.plain("status")
        if status is not None:
            wrong += invariants.judge_status(self, status)
        wrong += invariants.judge(self)
        last.work(9 * DAY_S)
        last.plain("gc")
        if any(invariants.judge_leftovers(self)):
            wrong += self._drain(last) if self.power_lost else []  # of what was found in staging
            for _ in range(3):  # on a network mount files of keys go in three steps, a day apart
                last.work(2 * DAY_S)
                last.plain("gc")
        wrong += invariants.judge_leftovers(self)
        if self.rng.random() < 0.3:
            again = last.plain("status")
            if again != status and not self.power_lost:
                wrong.append(f"upkeep made {again} of {status}")
        if self.rng.random() < 0.1:
            wrong += self._check(last)
        self._refusals(last, wrong)
        last.exit()
        return wrong

    def forget(self) -> None:
        """Take the world apart when nobody reads in it any more: nothing can be read in it then.

        All in a world knows each other. Only the garbage collector could free it, which takes a tenth of the time.
        """
        take_stage(None)
        self.world.disk.take_apart()
        for actor in self.actors:
            persona, queue = actor.persona, actor._queue
            if queue is not None:
                if "store" in vars(queue):  # a queue of a group may not have come into being
                    vars(queue.store).clear()
                vars(queue).clear()
            vars(persona.process).clear()
            persona.process.dead = True  # what is freed now closes its files
            for one in (persona.clock, persona, actor):
                vars(one).clear()
        for some in (*self.hosts, self.world, self):
            vars(some).clear()

    def _other_host(self) -> Host:
        """One that was not there before: another client of the file server, or the server itself, on its own disk."""
        return self._host("elsewhere", 0.0, 0.0) if self.rng.random() < 0.5 else Host("server")

    def _begins_with_upkeep(self) -> bool:
        """Whether `gc` comes before anybody leases, when nothing goes wrong any more."""
        return self.rng.random() < 0.5

    def _check(self, last: Actor) -> list[str]:
        """What `fsck` finds where nothing went wrong; or elsewhere, after it has repaired what it found.

        What a purge has put into the trash is no fault: a thread clears that away, which is not simulated.
        """
        left = last.do("fsck", lambda q: list(q.fsck(repair=True))) or []
        if self.world.faults:
            left = last.do("fsck", lambda q: list(q.fsck())) or []
        return [f"fsck finds {one}" for one in left if one.kind != "trash"]

    def _drain(self, last: Actor) -> list[str]:
        if order.is_exact(self):
            return order.drain(self, last, LEASE_S / 2)
        for _ in range(200):
            got = last.lease(self.rng.choice((1, 3, 9)))
            if got:
                last.complete(got)
            elif last.plain("is_drained"):
                return []
            else:
                last.work(LEASE_S / 2)
        return ["the queue does not drain"]

    @staticmethod
    def _refusals(actor: Actor, wrong: list[str]) -> None:
        """When nothing goes wrong any more, nothing is refused but a task that is too long for a key."""
        for call in actor.history.calls:
            is_done = call.outcome == DONE or isinstance(call.error, TaskTooLarge)
            if call.actor == actor.name and not is_done and str(call) not in wrong:
                wrong.append(str(call))


def tell(scenario: Scenario, seed: int | str, trace: bool = False) -> Story:
    """One story, from its beginning to the judgement, which is in `story.wrong`."""
    return told(scenario, lambda: Story(scenario, seed, trace))


def told(scenario: Scenario, make: Callable[[], AStory]) -> AStory:
    """The story that is made, from its beginning to the judgement."""
    from tests.simulation.acts import cast

    begin_anew()
    with limited(scenario):
        story = make()
        try:
            acts = cast(story)
            story.run(acts)
            story.wrong = story.end()
        except Circles as circles:
            story.wrong = [str(circles)]
    return story


@contextmanager
def limited(scenario: Scenario) -> Iterator[None]:
    """While this lasts, the package has the limits of a scenario."""
    with ExitStack() as stack:
        for where, value in scenario.limits:
            module, _, name = where.partition(":")
            patched = mock.patch.object(importlib.import_module(f"fsqueue.{module}"), name, value)
            stack.enter_context(patched)
        yield
