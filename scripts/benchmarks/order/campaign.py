"""Which steps run, how large they are, and in which order. Each is done by a process of its own, on a new queue."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.campaign import ROOM_LEFT
from benchmarks.launch import Launcher, StepFailed
from benchmarks.order import papers

Row = dict[str, Any]

GROUPS = {
    "order": "throughput with priorities beside the unordered queue's, strict order",
    "keys": "what keys cost",
    "pei": "how many more urgent tasks a pop passes over, in the real queue and in simulation",
    "taskmaster": "TaskMaster's benchmarks: single operations, bulk operations, collisions, isolation",
}
"""What the command takes."""
WAYS = ("bulk", "single")
"""How a queue is filled: by several bulk inserts, or by single inserts."""
UNSYNCED = {"durability": "none"}
PAYLOAD_BYTES = 200
"""Of the payloads in most steps."""
BATCHES_A_SHARD = 2
"""So many batches of random tasks for each shard: most shards have some, as the paper's nodes have."""

FULL_PART = 0.5
"""Workers stop when so many of the tasks are popped: the simulation's queue does not drain."""
SIMULATED_POPS = 10_000


@dataclass
class Plan:
    """What to do."""

    groups: list[str]
    repeat: int = 3
    """Rounds of what ratios are made of; their medians count."""
    seed: int = 1
    tasks: int = 10_000
    """Of the queues whose throughput is measured."""
    single_tasks: int = 4000
    """The same, of those that are filled by single inserts: each is synced."""
    many_workers: int = 8
    pei_tasks: int = 2048
    pei_shards: list[int] = field(default_factory=lambda: [1, 4, 16, 64, 256])
    pei_workers: list[int] = field(default_factory=lambda: [1, 4, 8, 16, 64])
    nodes: list[int] = field(default_factory=lambda: papers.POP_NODES)
    clients: list[int] = field(default_factory=lambda: papers.POP_CLIENTS[::2])
    crowd: tuple[int, int] = papers.CROWD
    seconds: float = 5
    """How long each line of TaskMaster's table 1 is measured."""
    point_seconds: float = 2
    """How long each point of a plot is measured."""
    batches: list[int] = field(default_factory=lambda: papers.BATCHES)
    bulk_crowd: tuple[int, int] = (10, 5)
    """Processes and threads of the bulk operations: with TaskMaster's 500, large batches wait for the disk alone."""
    collisions: list[float] = field(default_factory=lambda: [0.0, 0.001, 0.01, 0.1, 0.5, 1.0])
    collision_crowd: tuple[int, int] = papers.COLLISION_CROWD
    loaders: list[int] = field(default_factory=lambda: [0, 1, 2, 4, 6, 8, papers.LOADERS])
    loader_threads: int = papers.LOADER_THREADS
    work_tasks: int = 60_000
    """How many tasks wait for workers whose throughput is measured for some seconds."""
    key_bytes: list[int] = field(default_factory=lambda: [30, PAYLOAD_BYTES, 1000])
    key_turns: int = 20
    key_each: int = 100
    sync_sample: int = 200
    sync_warmup: int = 600
    """By then every directory of keys is there. All of these tasks fit into one open batch."""
    settle: bool = True
    """Whether the disk is synced before each step."""
    budget_s: float = 120


def quick(groups: list[str]) -> Plan:
    """Return a plan for about a minute."""
    return Plan(
        groups,
        repeat=1,
        tasks=2000,
        single_tasks=1000,
        pei_tasks=1024,
        pei_shards=[1, 64],
        pei_workers=[1, 8],
        nodes=[10],
        clients=[1, 8],
        crowd=(10, 5),
        seconds=1,
        point_seconds=0.7,
        batches=[1, 50, 1000],
        bulk_crowd=(4, 2),
        collisions=[0.0, 1.0],
        collision_crowd=(4, 5),
        loaders=[0, 10],
        loader_threads=5,
        work_tasks=20_000,
        key_turns=5,
        sync_sample=50,
        sync_warmup=300,
        settle=False,
        budget_s=30,
    )


@dataclass
class Campaign:
    """A run. `rows` grows as it goes."""

    plan: Plan
    launcher: Launcher
    directory: str
    progress: Callable[[str], None]
    rows: list[Row] = field(default_factory=list)
    _serial: int = 0

    def run(self) -> list[Row]:
        """Do everything in the plan."""
        ways: dict[str, list[Callable[[], None]]] = {
            "order": [self._throughput, self._strict],
            "keys": [self._keys],
            "pei": [self._pei, self._figure_8, self._cluster],
            "taskmaster": [self._single_operations, self._bulk, self._collisions, self._isolation],
        }
        for group in self.plan.groups:
            for part in ways[group]:
                part()
                self._clear()
        return self.rows

    # -- order ---------------------------------------------------------------------------------

    def _throughput(self) -> None:
        """Ordered and unordered queues take turns, in each round."""
        plan = self.plan
        for number in range(plan.repeat):
            for way in WAYS:
                tasks = plan.single_tasks if way == "single" else plan.tasks
                for priorities in (False, True):
                    kind = f"{way}, {'random priorities' if priorities else 'no priorities'}"
                    self.progress(f"throughput, {kind}, round {number + 1} of {plan.repeat}")
                    told = {"way": way, "priorities": priorities, "round": number + 1}
                    for workers in (1, plan.many_workers):
                        path = self._place()
                        filled = self._fill([path], way, priorities, tasks, plan.seed + number)
                        if filled is None:
                            continue
                        if workers == 1:
                            self._note("fill", {**told, **filled})
                        asked = {"paths": [path], "workers": workers, "threads": 1, "n": 1}
                        self._step("work", {**asked, "seconds": plan.budget_s}, {**told, "workers": workers})

    def _strict(self) -> None:
        for way in WAYS:
            self.progress(f"strict order, {way}")
            path = self._place()
            filled = self._fill(
                [path], way, True, self.plan.pei_tasks, self.plan.seed, settings={"shards": 1, **UNSYNCED}
            )
            if filled is not None:
                told = {"way": way, "shards": 1, "workers": 1}
                self._pop("strict", path, self.plan.pei_tasks, 1, told, strict=True)

    def _keys(self) -> None:
        plan = self.plan
        for number in range(plan.repeat):
            self.progress(f"what keys cost, round {number + 1} of {plan.repeat}")
            for size in plan.key_bytes:
                asked = {"path": self._place(), "settings": UNSYNCED, "bytes": size, "warmup": plan.sync_warmup}
                asked |= {"turns": plan.key_turns, "each": plan.key_each}
                self._step("keys", asked, {"round": number + 1, "bytes": size})
        self.progress("syncs of inserts with keys")
        asked = {"path": self._place(), "settings": {}, "bytes": 200}
        self._step("syncs", {**asked, "sample": plan.sync_sample, "warmup": plan.sync_warmup}, {})

    # -- PEI -----------------------------------------------------------------------------------

    def _pei(self) -> None:
        plan = self.plan
        for shards in plan.pei_shards:
            for workers in plan.pei_workers:
                told = {"shards": shards, "workers": workers}
                self._simulate("simulated", plan.pei_tasks, shards, workers, told)
                for way in WAYS:
                    self.progress(f"PEI, {shards} shards, {workers} workers, {way}")
                    batches = BATCHES_A_SHARD * shards
                    self._real("pei", plan.pei_tasks, shards, workers, batches, {**told, "way": way}, FULL_PART)
            self._clear()

    def _figure_8(self) -> None:
        """The paper's setting: one batch for each node, each with its share of 1,000 tasks."""
        tasks = papers.POP_TASKS
        for nodes in self.plan.nodes:
            for clients in self.plan.clients:
                self.progress(f"figure 8, {nodes} nodes, {clients} clients")
                told = {"shards": nodes, "workers": clients, "way": "bulk"}
                self._simulate("figure 8 simulated", tasks // 2, nodes, clients, told)  # the mean, while it drains
                self._real("figure 8", tasks, nodes, clients, nodes, told)

    def _simulate(self, name: str, lag: int, subqueues: int, concurrent: int, told: Row) -> None:
        asked = {"lag": lag, "subqueues": subqueues, "concurrent": concurrent, "pops": SIMULATED_POPS}
        self._step("simulate", {**asked, "peeks": papers.POP_PEEKS, "seed": self.plan.seed}, told, name)

    def _real(
        self, name: str, tasks: int, shards: int, workers: int, batches: int, told: Row, part: float = 1.0
    ) -> None:
        each = min(1024, max(1, tasks // batches))
        settings = {"shards": shards, "batch_tasks_max": each, **UNSYNCED}
        path = self._place()
        filled = self._fill([path], told["way"], True, tasks, self.plan.seed, settings=settings, inserts=batches)
        if filled is not None:
            place = {"batches": filled["batches"], "shards_used": filled["shards"]}
            self._pop(name, path, tasks, workers, {**told, **place}, part)

    def _cluster(self) -> None:
        nodes, clients = papers.CLUSTER_NODES, papers.CLUSTER_CLIENTS
        self.progress(f"{clients} clients of {nodes} nodes")
        path = self._place()
        if self._fill([path], "bulk", True, self.plan.tasks, self.plan.seed, {"shards": nodes}, inserts=8 * nodes):
            asked = {"paths": [path], "workers": clients, "threads": 1, "n": 1, "seconds": self.plan.seconds}
            self._step("work", asked, {"shards": nodes, "workers": clients}, "cluster")

    def _pop(
        self, name: str, path: str, tasks: int, workers: int, told: Row, part: float = 1.0, strict: bool = False
    ) -> None:
        asked = {"path": path, "tasks": tasks, "workers": workers, "part": part, "strict": strict}
        self._step("pop", asked, told, name)

    # -- TaskMaster ----------------------------------------------------------------------------

    def _inserting(self, places: int, crowd: tuple[int, int], n: int, seconds: float, priorities: bool) -> Row:
        return {
            "paths": [self._place() for _ in range(places)],
            "workers": crowd[0],
            "threads": crowd[1],
            "n": n,
            "bytes": 1000,
            "seconds": seconds,
            "priorities": priorities,
            "seed": self.plan.seed,
        }

    def _filled(self, places: int, tasks: int) -> list[str] | None:
        """Return queues filled with tasks in random order of priorities."""
        paths = [self._place() for _ in range(places)]
        filled = self._fill(paths, "bulk", True, max(1, tasks // places), self.plan.seed, inserts=4, size=1000)
        return None if filled is None else paths

    def _single_operations(self) -> None:
        plan = self.plan
        for crowd in ((1, 1), plan.crowd):
            told = {"workers": crowd[0], "threads": crowd[1]}
            for name, priorities in (("insert_priority", True), ("insert", False)):
                self.progress(f"single operations, {crowd[0]} x {crowd[1]}: {name}")
                asked = self._inserting(crowd[0], crowd, 1, plan.seconds, priorities)
                self._step("insert", asked, {**told, "operation": name}, "single")
            self.progress(f"single operations, {crowd[0]} x {crowd[1]}: work")
            paths = self._filled(crowd[0], 2 * plan.work_tasks)
            if paths is not None:
                asked = {"paths": paths, "n": 1, "seconds": plan.seconds, **told}
                self._step("work", asked, {**told, "operation": "work"}, "single")
            self._clear()

    def _bulk(self) -> None:
        plan, crowd = self.plan, self.plan.bulk_crowd
        told = {"workers": crowd[0], "threads": crowd[1]}
        for n in plan.batches:
            for name, priorities in (("insert_priority", True), ("insert", False)):
                self.progress(f"bulk operations of {n}: {name}")
                asked = self._inserting(crowd[0], crowd, n, plan.point_seconds, priorities)
                self._step("insert", asked, {**told, "n": n, "operation": name}, "bulk")
            self.progress(f"bulk operations of {n}: work")
            paths = self._filled(crowd[0], plan.work_tasks * (3 if n > 50 else 1))
            if paths is not None:
                asked = {"paths": paths, "n": n, "seconds": plan.point_seconds, **told}
                self._step("work", asked, {**told, "n": n, "operation": "work"}, "bulk")
            self._clear()

    def _collisions(self) -> None:
        plan, crowd = self.plan, self.plan.collision_crowd
        told = {"workers": crowd[0], "threads": crowd[1]}
        for collisions in (None, *plan.collisions):
            self.progress(f"collisions: {'no keys' if collisions is None else f'likelihood {collisions:g}'}")
            asked = self._inserting(crowd[0], crowd, 1, plan.point_seconds, False)
            self._step("insert", {**asked, "collisions": collisions}, {**told, "collisions": collisions}, "collisions")
        self._clear()

    def _isolation(self) -> None:
        plan = self.plan
        for number in range(plan.repeat):
            for loaders in plan.loaders:
                self.progress(f"isolation, {loaders} loaders, round {number + 1} of {plan.repeat}")
                paths = self._filled(1, plan.work_tasks)
                if paths is None:
                    continue
                crowd = loaders, plan.loader_threads
                asked = self._inserting(loaders, crowd, papers.LOADER_BATCH, plan.point_seconds, True)
                told = {"loaders": loaders, "threads": plan.loader_threads, "round": number + 1}
                self._step("isolate", {**asked, "path": paths[0]}, told, "isolation")
                self._clear()

    # -- one step ------------------------------------------------------------------------------

    def _place(self) -> str:
        self._serial += 1
        return os.path.join(self.directory, f"step-{self._serial}", "queue")

    def _clear(self) -> None:
        """Remove what steps have left, if room gets scarce; else that is done when all is over.

        ext4 goes through the inodes that were freed in the last minutes before it gives one out: the next step would
        pay for each file that was removed.
        """
        found = os.statvfs(self.directory)
        inodes = found.f_favail / found.f_files if found.f_files else 1.0  # some filesystems have no number of them
        if min(found.f_bavail / found.f_blocks, inodes) <= ROOM_LEFT:
            for name in os.listdir(self.directory):
                if name.startswith("step-"):
                    shutil.rmtree(os.path.join(self.directory, name), ignore_errors=True)

    def _fill(
        self,
        paths: list[str],
        way: str,
        priorities: bool,
        tasks: int,
        seed: int,
        settings: Row | None = None,
        inserts: int = 1,
        size: int = 200,
    ) -> Row | None:
        """Create queues and fill each; what it took, None if it failed."""
        asked = {"paths": paths, "way": way, "priorities": priorities, "tasks": tasks, "seed": seed, "bytes": size}
        asked |= {"settings": settings or {}, "inserts": inserts}
        return self._try("fill", {"way": way}, asked)

    def _step(self, step: str, asked: Row, told: Row, name: str = "") -> None:
        """Do a step and note what it measured, beside what tells it from others."""
        if self.plan.settle:
            os.sync()  # what one step left to be written must not be written during the next
        result = self._try(step, told, asked)
        if result is not None:
            self._note(name or step, {**told, **result})

    def _try(self, step: str, told: Row, asked: Row) -> Row | None:
        try:
            return self.launcher.run({"budget_s": self.plan.budget_s, **asked, "step": f"order.{step}"})
        except StepFailed as failure:
            self.progress(f"  not run: {step}: {failure}")
            self.rows.append({"step": step, "not_run": str(failure), **told})
            return None

    def _note(self, step: str, row: Row) -> None:
        self.rows.append({"step": step, **row})
