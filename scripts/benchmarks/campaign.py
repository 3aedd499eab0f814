"""Which steps are done in which order: every system in turn, round after round, each step in its own process.

Taking turns spreads what else the machine does over all systems alike. fsqueue's queues are filled
anew for every step; the peers, which need minutes for that, do their steps one after the other on
one queue and have a budget of time: what does not fit is reported as not run, never guessed.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks import alive, tree, wake
from benchmarks.launch import Launcher, StepFailed
from benchmarks.systems import BY_NAME, Entry

Row = dict[str, Any]

PROCESSES = 8
LEASED_SHARE = 0.6
ROOM_LEFT = 0.15
"""What steps have left stays until the end, as long as this part of the disk's bytes and inodes is free."""
STEP_BUDGET_S = 30
"""The longest that taking tasks from one queue is measured."""


@dataclass
class Plan:
    """What to do. `budget_s`: for filling a slow system's queue, and for all its rounds of a size."""

    sizes: list[int]
    systems: list[str]
    steps: list[str]
    repeat: int = 3
    budget_s: float = 120
    drain_tasks: int = 1000
    drains: int = 5
    """How often the small queue is drained in a round: it takes but a few of the scheduler's time slices."""
    many_tasks: int = 20_000
    mixed_tasks: int = 4_000
    work_s: float = 0.005
    alive_tasks: int = 10_000_000
    """How many tasks were done in bulk before the looks of "alive"."""
    wake_workers: int = 40
    wake_idle_s: tuple[float, ...] = (2.0, 25.0)
    """How many workers of "wake" idle, and for how long."""
    settle: bool = True
    """Whether the disk is synced before each step."""


STEPS = {
    "insert": "insert many, and the inodes and memory it takes",
    "insert_one": "insert one at a time",
    "lease_one": "lease one, complete one",
    "loop": "the work loop",
    "lease_many": "lease 100, complete 100",
    "leased": "lease one, complete one, while 60 % of the tasks are leased",
    "status": "the counts",
    "delete": "delete the queue",
    "drain": f"{PROCESSES} processes drain a small queue",
    "alive": "what looks cost at queues with a long past, and with zeros behind files",
    "wake": "from an insert to the start of the task, by how long the workers have idled",
    "mixed": f"{PROCESSES} processes: half insert, half work",
}
"""What --only takes."""


@dataclass
class Trace:
    """What fsqueue did in a step, for the floor to do likewise."""

    counts: dict[str, int]
    trail: list[Any]
    sizes: dict[str, int]
    warmup_tasks: int


@dataclass
class Campaign:
    """A run. `rows` grows as it goes."""

    plan: Plan
    launcher: Launcher
    directory: str
    progress: Callable[[str], None]
    rows: list[Row] = field(default_factory=list)
    _traces: dict[tuple[int, str], Trace] = field(default_factory=dict)
    _filled: dict[int, tuple[list[int], int]] = field(default_factory=dict)
    _spent: dict[tuple[str, int], float] = field(default_factory=dict)
    _serial: int = 0

    def run(self) -> list[Row]:
        """Everything in the plan."""
        plan = self.plan
        for size in plan.sizes if set(plan.steps) - {"alive", "wake"} else ():
            for number in range(plan.repeat):
                self._baseline(size, number)
                for name in plan.systems:
                    self._visit(BY_NAME[name], size, number)
        for number in range(plan.repeat):
            for name in plan.systems:
                if number == 0 or not BY_NAME[name].slow:
                    self._several(BY_NAME[name], number)
            if "alive" in plan.steps and "fsqueue" in plan.systems:
                self._alive(number)
        if "wake" in plan.steps:
            self._wake()
        return self.rows

    # -- turns -------------------------------------------------------------------------------

    def _wants(self, entry: Entry, step: str) -> bool:
        return step in self.plan.steps and (not entry.steps or step in entry.steps)

    def _visit(self, entry: Entry, size: int, number: int) -> None:
        spent = self._spent.get((entry.name, size), 0.0)
        if entry.slow and spent > self.plan.budget_s:
            return
        begin = time.monotonic()
        self.progress(f"{size:,} tasks, round {number + 1} of {self.plan.repeat}: {entry.title}")
        if entry.name == "floor":
            self._floor(size, number)
        elif entry.slow:
            self._in_a_row(entry, size, number)
        else:
            self._each_anew(entry, size, number)
        self._spent[entry.name, size] = spent + time.monotonic() - begin

    def _baseline(self, size: int, number: int) -> None:
        if "status" in self.plan.steps:
            result = self.launcher.run({"step": "list_directories", "path": self.directory})
            self._note("64 empty directories", "status", size, number, result)

    def _each_anew(self, entry: Entry, size: int, number: int) -> None:
        """For systems that fill a queue in seconds: a new one for every step."""
        warmup = min(200, size // 20)
        samples = {
            "lease_one": min(size * 8 // 10, 8_000) - warmup,
            "loop": min(size * 8 // 10, 8_000) - warmup,
            "lease_many": min(size * 8 // 10, 40_000) - warmup,
        }
        if self._wants(entry, "insert") or self._wants(entry, "status") or self._wants(entry, "delete"):
            path = self._place()
            filled = self._fill(entry, path, size, number, note="insert")
            if filled is None:
                return
            if entry.name == "fsqueue":
                files = tree.task_files(path)
                self._filled[size] = list(map(tree.task_count, files.values())), tree.line_bytes(files)
            if self._wants(entry, "status"):
                self._step(entry, "status", path, size, number, {})
            if self._wants(entry, "delete"):
                self._step(entry, "delete", path, size, number, {"count": size})
            self._clear(path)
        self._insert_one(entry, size, number)
        for step, sample in samples.items():
            if not self._wants(entry, step):
                continue
            path = self._place()
            if self._fill(entry, path, size, number) is None:
                return
            files = tree.task_files(path)
            counts = {batch: tree.task_count(file) for batch, file in files.items()}
            line = tree.line_bytes(files)
            asked = {"count": size, "sample": sample, "warmup": warmup, "budget_s": STEP_BUDGET_S}
            asked["trail"] = entry.name == "fsqueue"
            result = self._step(entry, step, path, size, number, asked)
            if result is not None and entry.name == "fsqueue":
                touched = {batch: counts[batch] for batch, _, _ in result["trail"]}
                sizes = {"line": line, **tree.record_bytes(path)}
                self._traces[size, step] = Trace(touched, result["trail"], sizes, result["warmup_tasks"])
            self._clear(path)
        if self._wants(entry, "leased"):
            path = self._place()
            if self._fill(entry, path, size, number) is None:
                return
            self._leased(entry, path, size, size, number, min(size * 3 // 10, 8_000) - warmup, warmup)
            self._clear(path)

    def _in_a_row(self, entry: Entry, size: int, number: int) -> None:
        """For slow systems: all steps on one queue, each on a share of its tasks."""
        self._insert_one(entry, size, number)
        path = self._place()
        left = self._fill(entry, path, size, number, note="insert")
        others = [
            step
            for step in ("status", "lease_one", "lease_many", "loop", "leased", "delete")
            if self._wants(entry, step)
        ]
        if left is None or left < size:
            done = (
                f"it had {left:,} of {size:,} tasks when the {self.plan.budget_s:.0f} s for filling it were over"
                if left
                else "filling failed"
            )
            for step in others:
                self._skip(entry, step, size, done)
            self._clear(path)
            return
        warmup = min(100, size // 50)
        shares = {
            "lease_one": min(size // 5, 4_000),
            "lease_many": min(size // 5, 4_000),
            "loop": min(size // 10, 2_000),
        }
        if self._wants(entry, "status"):
            self._step(entry, "status", path, size, number, {"budget_s": STEP_BUDGET_S})
        for step, share in shares.items():
            if self._wants(entry, step):
                asked = {"count": left, "sample": share - warmup, "warmup": warmup, "budget_s": STEP_BUDGET_S}
                result = self._step(entry, step, path, size, number, asked)
                left = result["left"] if result else left
        if self._wants(entry, "leased"):
            if entry.name.startswith("huey"):
                self._skip(entry, "leased", size, "it has no leases: taking a task deletes it")
            else:
                self._leased(entry, path, size, left, number, min(size // 20, 1_000) - warmup // 4, warmup // 4)
        if self._wants(entry, "delete"):
            self._step(entry, "delete", path, size, number, {"count": left, "budget_s": 10 * self.plan.budget_s})
        self._clear(path)

    def _leased(self, entry: Entry, path: str, size: int, left: int, number: int, sample: int, warmup: int) -> None:
        wanted = int(left * LEASED_SHARE)
        held = self._try(
            entry,
            "leased",
            size,
            {"step": "hold", "system": entry.name, "path": path, "count": wanted, "budget_s": self.plan.budget_s},
        )
        if held is None:
            return
        if held["tasks"] < wanted:
            reason = (
                f"it had leased {held['tasks']:,} of {wanted:,} tasks when its {self.plan.budget_s:.0f} s were over"
            )
            self._skip(entry, "leased", size, reason)
            return
        self._settle()
        asked = {"step": "lease_one", "count": left, "sample": sample, "warmup": warmup, "budget_s": STEP_BUDGET_S}
        result = self._try(entry, "leased", size, {"system": entry.name, "path": path, **asked})
        if result is not None:
            self._note(entry.name, "leased", size, number, result)

    def _insert_one(self, entry: Entry, size: int, number: int) -> None:
        """Does not depend on the size: done with the first."""
        if self._wants(entry, "insert_one") and size == self.plan.sizes[0]:
            path = self._place()
            self._step(entry, "insert_one", path, 0, number, {"sample": min(size, 2_000), "budget_s": STEP_BUDGET_S})
            self._clear(path)

    def _floor(self, size: int, number: int) -> None:
        entry = BY_NAME["floor"]
        for step in ("insert", "lease_one", "lease_many", "loop"):
            if not self._wants(entry, step):
                continue
            path = self._place()
            asked: dict[str, Any] = {"step": "floor", "floor_step": step, "path": path}
            if step == "insert":
                if size not in self._filled:
                    continue
                counts, line = self._filled[size]
                asked |= {"counts": counts, "sizes": {"line": line}}
            else:
                trace = self._traces.get((size, step))
                if trace is None:
                    continue
                asked |= {
                    "counts": trace.counts,
                    "trail": trace.trail,
                    "sizes": trace.sizes,
                    "warmup_tasks": trace.warmup_tasks,
                }
            result = self._try(entry, step, size, asked)
            if result is not None:
                self._note("floor", step, size, number, result)
            if step == "insert" and self._wants(entry, "delete"):
                self._settle()
                result = self._try(entry, "delete", size, asked | {"floor_step": "delete", "count": size})
                if result is not None:
                    self._note("floor", "delete", size, number, result)
            self._clear(path)

    def _alive(self, number: int) -> None:
        entry, size = BY_NAME["fsqueue"], self.plan.alive_tasks
        for case in alive.CASES:
            self.progress(f"what is not alive, {case}, round {number + 1} of {self.plan.repeat}: {entry.title}")
            path = self._place()
            result = self._try(entry, "alive", size, {"step": "alive", "case": case, "path": path, "count": size})
            for row in alive.rows_of(case, result) if result is not None else ():
                self._note(entry.name, "alive", size, number, row)
            self._clear(path)

    def _wake(self) -> None:
        """Once: it has many workers, whose waking can be compared, instead of rounds."""
        plan = self.plan
        for case, name in wake.CASES.items():
            if name in plan.systems:
                self.progress(f"idle workers wake, {case}: {BY_NAME[name].title}")
                path = self._place()
                asked = {"case": case, "path": path, "workers": plan.wake_workers, "idle_s": plan.wake_idle_s}
                result = self._try(BY_NAME[name], "wake", plan.wake_workers, {"step": "wake", "system": name, **asked})
                for row in result["idles"] if result is not None else ():
                    self._note(name, "wake", plan.wake_workers, 0, {"case": case, **row})
                self._clear(path)

    # -- several processes -------------------------------------------------------------------

    def _several(self, entry: Entry, number: int) -> None:
        plan = self.plan
        if self._wants(entry, "drain"):
            kinds = [("drain", plan.drain_tasks, 0.0), ("drain_work", plan.drain_tasks, plan.work_s)]
            if plan.many_tasks > plan.drain_tasks:
                kinds.append(("drain_many", plan.many_tasks, 0.0))
            for step, tasks, work_s in kinds:
                self.progress(
                    f"{PROCESSES} processes drain {tasks:,} tasks{f' of {work_s * 1e3:g} ms' if work_s else ''}, "
                    f"round {number + 1} of {plan.repeat}: {entry.title}"
                )
                for _ in range(plan.drains if step == "drain" else 1):
                    self._drain(entry, step, tasks, work_s, number)
        if self._wants(entry, "mixed"):
            self.progress(f"{PROCESSES} processes insert and work, round {number + 1} of {plan.repeat}: {entry.title}")
            self._mixed(entry, plan.mixed_tasks, number)

    def _drain(self, entry: Entry, step: str, tasks: int, work_s: float, number: int) -> None:
        path = self._place()
        if self._fill(entry, path, tasks, number) != tasks:
            self._skip(entry, step, tasks, "filling failed")
        else:
            request = {
                "step": "drain",
                "system": entry.name,
                "path": path,
                "work_s": work_s,
                "budget_s": self.plan.budget_s,
            }
            try:
                answers = self.launcher.run_together([request] * PROCESSES)
            except StepFailed as failure:
                self._skip(entry, step, tasks, f"it failed: {failure}")
            else:
                self._note(entry.name, step, tasks, number, {"work_s": work_s, **judge_drain(answers, tasks)})
        self._clear(path)

    def _mixed(self, entry: Entry, tasks: int, number: int) -> None:
        path = self._place()
        stop = os.path.join(os.path.dirname(path), "stop")
        each = tasks // (PROCESSES // 2)
        if self._fill(entry, path, 0, number) is None:
            return
        common = {"system": entry.name, "path": path, "budget_s": self.plan.budget_s}
        producers = [
            {**common, "step": "produce", "first": each * rank, "count": each, "budget_s": self.plan.budget_s / 2}
            for rank in range(PROCESSES // 2)
        ]
        consumers = [{**common, "step": "consume", "stop": stop}] * (PROCESSES // 2)
        try:
            answers = self.launcher.run_together([*producers, *consumers], stop=(stop, len(producers)))
        except StepFailed as failure:
            self._skip(entry, "mixed", tasks, f"it failed: {failure}")
        else:
            self._note(
                entry.name, "mixed", tasks, number, judge_mixed(answers[: len(producers)], answers[len(producers) :])
            )
        self._clear(path)

    # -- one step ----------------------------------------------------------------------------

    def _place(self) -> str:
        self._serial += 1
        return os.path.join(self.directory, f"step-{self._serial}", "queue")

    def _clear(self, path: str) -> None:
        """Remove what a step has left, if room gets scarce; else that is done when all is over.

        ext4 goes through the inodes that were freed in the last minutes before it gives one out: who measures next
        would pay for each file that was removed.
        """
        found = os.statvfs(self.directory)
        inodes = found.f_favail / found.f_files if found.f_files else 1.0  # some filesystems have no number of them
        if min(found.f_bavail / found.f_blocks, inodes) > ROOM_LEFT:
            return
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)

    def _settle(self) -> None:
        """What one step left to be written must not be written during the next."""
        if self.plan.settle:
            os.sync()

    def _fill(self, entry: Entry, path: str, size: int, number: int, note: str = "") -> int | None:
        """Create and fill a queue; how many tasks it took, None if it failed."""
        asked = {"step": "fill", "count": size, "budget_s": self.plan.budget_s, "inodes": bool(note)}
        result = self._try(entry, note or "insert", size, {"system": entry.name, "path": path, **asked})
        if result is None:
            return None
        if note and self._wants(entry, note):
            if result["tasks"] < size:
                result["note"] = f"the first {result['tasks']:,}: then the time was over"
            self._note(entry.name, note, size, number, result)
        self._settle()
        return int(result["tasks"])

    def _step(self, entry: Entry, step: str, path: str, size: int, number: int, asked: Row) -> Row | None:
        result = self._try(entry, step, size, {"step": step, "system": entry.name, "path": path, **asked})
        if result is not None:
            self._note(entry.name, step, size, number, {key: value for key, value in result.items() if key != "trail"})
        self._settle()
        return result

    def _try(self, entry: Entry, step: str, size: int, request: Row) -> Row | None:
        os.makedirs(os.path.dirname(request["path"]), exist_ok=True)
        try:
            result = self.launcher.run(request)
        except StepFailed as failure:
            self._skip(entry, step, size, f"it failed: {failure}")
            return None
        if result["tasks"] == 0 and request["step"] in ("lease_one", "lease_many", "loop", "hold"):
            self._skip(entry, step, size, "it found no task to work on")
            return None
        return result

    def _note(self, system: str, step: str, size: int, number: int, result: Row) -> None:
        self.rows.append({"system": system, "step": step, "size": size, "round": number + 1, **result})

    def _skip(self, entry: Entry, step: str, size: int, reason: str) -> None:
        self.progress(f"  not run: {entry.title}, {step}, {size:,} tasks: {reason}")
        row = {"system": entry.name, "step": step, "size": size, "not_run": reason}
        if row not in self.rows:
            self.rows.append(row)


def judge_drain(answers: list[Row], tasks: int) -> Row:
    """What workers that drained a queue together did: how fast, how evenly, and whether anything was lost or lied.

    An "empty" is false if a task was leased by a call that was made after the answer: nothing comes
    back in this step, so that task had been available all the while.
    """
    numbers = [number for answer in answers for number in answer["numbers"]]
    shares = sorted(len(answer["numbers"]) for answer in answers)
    latest = max(answer["last_lease_asked"] for answer in answers if answer["numbers"]) if numbers else 0
    begin = min(answer["begin"] for answer in answers)
    return {
        "tasks": len(numbers),
        "seconds": (latest - begin) / 1e9,
        "shares": shares,
        "fairness": round(shares[-1] / shares[0], 2) if shares[0] else None,
        "false_empties": sum(answer["empty_answered"] < latest for answer in answers),
        "lost": tasks - len(set(numbers)),
        "twice": len(numbers) - len(set(numbers)),
        "latency_us": {"lease": _worst(answers, "lease")},
    }


def judge_mixed(producers: list[Row], consumers: list[Row]) -> Row:
    """What producers and consumers did at the same time: tasks from insert to completion a second."""
    numbers = [number for answer in consumers for number in answer["numbers"]]
    inserted = sum(answer["tasks"] for answer in producers)
    begin = min(answer["begin"] for answer in producers)
    shares = sorted(len(answer["numbers"]) for answer in consumers)
    return {
        "tasks": len(numbers),
        "seconds": (max(answer["end"] for answer in consumers) - begin) / 1e9,
        "insert_seconds": (max(answer["end"] for answer in producers) - begin) / 1e9,
        "shares": shares,
        "empties": sum(answer["empties"] for answer in consumers),
        "lost": inserted - len(set(numbers)),
        "twice": len(numbers) - len(set(numbers)),
        "latency_us": {
            "insert": _worst(producers, "insert"),
            "lease": _worst(consumers, "lease"),
            "complete": _worst(consumers, "complete"),
        },
    }


def _worst(answers: list[Row], verb: str) -> dict[str, float] | None:
    """The worst process's percentiles."""
    found = [answer["latency_us"][verb] for answer in answers if answer["latency_us"][verb]]
    return {key: max(each[key] for each in found) for key in found[0]} if found else None
