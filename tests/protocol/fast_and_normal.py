"""Two copies of a queue that live through the same story: one with the fast path, the other one without it.

After each step they must have answered the same, have the same bytes on disk, and know the same of their open logs.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

import fsqueue.queue
from fsqueue import LeasedTask, Queue, Task
from fsqueue.clock import Entropy, ManualClock
from fsqueue.filesystem import Filesystem, locks, resources
from fsqueue.format import names
from fsqueue.format.models import Used
from fsqueue.format.movements import UpdatePart
from fsqueue.format.replay import ReplayState
from fsqueue.format.task_states import AVAILABLE, Lease, States
from fsqueue.protocol import fast_path, leasing, sealing, single_inserts
from fsqueue.storage import open_logs
from fsqueue.storage.logs import Log
from tests import record_lines
from tests.support import base_of, log_files

UPDATE, FILE = names.UpdateId("0f" * 8), names.DecisionFileName("0193f0c2a4b97c31a2d5e8f001234567")
VERBS = ("lease_next", "complete_in_hand", "exchange_next", "insert_next")
NORMAL = SimpleNamespace(**{name: lambda *args: None for name in VERBS}, AppendBroken=fast_path.AppendBroken)
"""In place of the fast path: it always leaves all to the normal way."""
TASKS = 5


class Seeded(Entropy):
    """The same identifiers in both copies."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = Random(seed)

    def hex16(self) -> str:
        return f"{self._random.getrandbits(64):016x}"


class Ringing(ManualClock):
    """Calls a signal handler when it is asked for the time in a critical section."""

    handler: Callable[[], None] | None = None

    def now_ms(self) -> int:
        if self.handler is not None and resources.this_thread.owned.sections:
            handler, self.handler = self.handler, None
            handler()
        return super().now_ms()

    def sleep(self, seconds: float) -> None:
        super().sleep(max(seconds, 1.0))  # else a wait for a lock takes thousands of tries


class Faulty(Filesystem):
    """Has one fault in stock for a movement log."""

    def __init__(self, root: str) -> None:
        super().__init__(root, shared=False)
        self.fault = ""
        write, pread, unlock, try_lock = self.write, self.pread, self.unlock, self.try_lock

        def due(*kinds: str) -> str:
            found = self.fault if self.fault in kinds else ""
            if found:
                self.fault = ""
            return found

        def faulty_write(fd: int, data: bytes | memoryview) -> int:
            kind = due("short", "full", "lost before", "lost after", "altered")
            if kind == "short":
                return write(fd, data[: len(data) // 2])
            if kind == "full":
                raise OSError(errno.ENOSPC, "full")
            if kind == "lost before":
                raise OSError(errno.ESTALE, "stale")
            self.fault = {"lost after": "lost read", "altered": "altered read"}.get(kind, self.fault)
            return write(fd, data)

        def faulty_pread(fd: int, size: int, offset: int) -> bytes:
            kind = due("lost read", "broken read", "altered read")
            if kind in ("lost read", "broken read"):
                raise OSError(errno.ESTALE if kind == "lost read" else errno.ENOBUFS, "read")
            data = pread(fd, size, offset)
            return data if not kind else data[:-2] + b"?\n"

        def faulty_unlock(fd: int) -> None:
            unlock(fd)
            if due("lost unlock"):
                raise OSError(errno.ESTALE, "stale")

        def faulty_try_lock(fd: int) -> bool:
            if due("lost lock"):
                raise OSError(errno.ESTALE, "stale")
            return try_lock(fd)

        self.write, self.pread, self.unlock, self.try_lock = faulty_write, faulty_pread, faulty_unlock, faulty_try_lock


FAULTS = (
    "short", "full", "lost before", "lost after", "altered", "lost read", "broken read", "lost unlock", "lost lock",
)  # fmt: skip


class Copy:
    """One of the two: the queue as two processes have it open, and the tasks that they hold."""

    def __init__(self, path: Path, seed: int, is_fast: bool, much: str = "") -> None:
        self.path, self.clock, self.fs = path, Ringing(), Faulty(str(path))
        self.q = Queue(path, worker="mine", clock=self.clock, entropy=Seeded(seed), filesystem=self.fs)
        self.other = Queue(path, worker="other", clock=self.clock, entropy=Seeded(seed + 1))
        self.held: list[LeasedTask] = []
        self.is_fast, self.much = is_fast, much
        self.went: Counter[str] = Counter()
        """How often the fast path has done its work."""

    @contextmanager
    def ways(self) -> Iterator[None]:
        """Go the ways of this copy."""

        def counted(name: str) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                found = getattr(fast_path, name)(*args)
                self.went[name] += bool(found)
                self.went[f"{name} asked"] += 1
                return found

            return call

        counting = SimpleNamespace(**{name: counted(name) for name in VERBS}, AppendBroken=fast_path.AppendBroken)
        with pytest.MonkeyPatch.context() as patch:
            for module in (leasing, fsqueue.queue, single_inserts):
                patch.setattr(module, "fast_path", counting if self.is_fast else NORMAL)
            patch.setattr(open_logs, "beside", lambda mine: [])  # else each copy would close logs of the other one
            if self.much == SINGLES:
                patch.setattr(sealing, "LOG_BYTES_MAX", LOG_BYTES_MAX)
            yield

    def does(self, act: Callable[[Copy], object]) -> object:
        """Do a step; what it answers, or how it fails."""
        with self.ways():
            try:
                return told(act(self))
            except Exception as error:
                return type(error).__name__, str(error).replace(str(self.path), "Q")
            finally:
                if self.fs.fault or self.clock.handler:
                    self.fs.fault, self.clock.handler = "", None

    def lease(self, q: Queue, n: int = 1, **more: Any) -> list[LeasedTask]:
        got = q.lease(n, **more)
        self.held += got
        return got

    def pick(self, place: int, of: int | None = None) -> LeasedTask | None:
        """Return a task that is held: any, or one of a process."""
        mine = [task for task in self.held if of is None or (task.queue is self.q) == (of == 0)]
        return mine[place % len(mine)] if mine else None

    def end(self, place: int, how: Callable[[LeasedTask], object]) -> object:
        """End a lease that is held, by the process that has it."""
        task = self.pick(place)
        if task is None:
            return None
        if place % 4:  # else a lease is ended twice
            self.held.remove(task)
        return how(task)

    def log_of(self, task: LeasedTask) -> Path:
        return next(path for path in log_files(self.q) if path.name.startswith(task.batch))

    def append(self, place: int, make: Callable[[LeasedTask, int], bytes]) -> None:
        """Append to the log of a task as another program would."""
        task = self.pick(place)
        if task is not None:
            with self.log_of(task).open("ab") as file:
                file.write(make(task, self.clock.now_ms()))

    def on_disk(self) -> dict[str, bytes]:
        """Return the content of all files but those that a purge has moved away: they are removed behind the call."""
        found: dict[str, bytes] = {}
        for top, directories, files in os.walk(self.path):
            directories[:] = [name for name in directories if name != ".trash"]
            found.update((os.path.relpath(f"{top}/{name}", self.path), Path(top, name).read_bytes()) for name in files)
        return found

    def known(self) -> dict[str, dict[str, object]]:
        """What the process knows of its open logs."""
        return {log.batch: known_of(log) for log in self.q.store.logs if not log.closed}


def told(value: object) -> object:
    """Return what two answers have in common if they are equal."""
    if isinstance(value, list):
        return [told(each) for each in value]
    if isinstance(value, LeasedTask):
        return {name: each for name, each in vars(value).items() if name != "queue"}
    return value


NOT_KNOWN = {"fresh_end", "quiet_until", "_frontier", "_order", "stretch", "prepared"}
"""What is not compared: what a survey finds; and what is compared as below."""


def known_of(log: Log) -> dict[str, object]:
    state = log.replay_state
    slots = [name for kind in (States, ReplayState) for name in kind.__slots__ if name not in NOT_KNOWN]
    found: dict[str, object] = {name: plain(getattr(state, name)) for name in slots if name != "end"}
    fresh = state._order[state._frontier : state._end]
    found["fresh"] = [index for index in fresh if state.state[index] == AVAILABLE and index not in state.touched]
    found["stretch"] = state.stretch.since, state.stretch.sum
    found["prepared"] = [(each.update, plain(each.records), each.tasks) for each in state.prepared.values()]
    found["_expiries"] = sorted(
        (until, lease.id) for until, _, lease in state._expiries if state._ends_at(until, lease)
    )
    found["_returns"] = sorted(each for each in state._returns if state._is_due(*each))
    of_log = ("end", "torn", "name", "is_named_so", "single", "lettered")
    return found | {name: getattr(log, name) for name in of_log} | {"lines": type(log.lines)}


def plain(value: object) -> object:
    if isinstance(value, Lease):
        return value.id, value.at, value.span, orjson.dumps(value.worker), value.is_alone, tuple(value.tasks)
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, str):
        return tuple(map(plain, value))
    return value


@contextmanager
def locked_by_another(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR)
    try:
        assert locks.try_lock(fd)
        yield
    finally:
        os.close(fd)


# -- the steps --------------------------------------------------------------------------------------------


CALM = "calm"
"""Stands for a kind of step: hardly anything happens but leases and completions."""
INSERTS = {
    "single": 30, "single, fault": 5, "single, locked": 2, "single, interrupted": 3, "single, record": 3,
    "another boot": 0.5, "insert": 2, "lease": 12, "complete": 8, "end": 2, "other": 3, "time": 3, "server's time": 2,
    "rare": 0.3,
}  # fmt: skip
"""Of each kind of step, how many there are in a story of inserts."""
EXCHANGES = "exchanges"
"""Stands for a kind of step: as usual, but mostly a task is completed and the next one leased in one append."""
EXCHANGED = {
    "exchange": 40, "complete": 3, "lease": 14, "exchange, fault": 4, "exchange, locked": 2, "exchange, interrupted": 4,
}  # fmt: skip
"""Of each kind of step, how many more or fewer there are in such a story."""
SINGLES = "singles"
"""Stands for a kind of step: those of `INSERTS`."""
LOG_BYTES_MAX = 2500
"""In a story of inserts, a log that is longer takes no more tasks."""


def step(rng: Random, much: str) -> tuple[str, Callable[[Copy], object]]:
    """Draw a step: what it is called, and what both copies do. `much`: the kind of step of which there are many."""
    weights = [weight + 12 * (name == much) for name, (weight, _) in STEPS.items()]
    if much == CALM:
        weights = [
            weight if name in ("lease", "complete") else min(weight, 0.2)
            for name, weight in zip(STEPS, weights, strict=True)
        ]
    if much == EXCHANGES:
        weights = [EXCHANGED.get(name, weight) for name, weight in zip(STEPS, weights, strict=True)]
    if much == SINGLES:
        weights = [INSERTS.get(name, 0) for name in STEPS]
    name = rng.choices([*STEPS], weights)[0]
    return name, STEPS[name][1](rng)


Step = Callable[[Copy], object]
Acts = tuple[Callable[[Random], Step], ...]
"""What a fault, a lock or a signal handler comes upon: one of these."""
PLACE = 1 << 20
RESULTS = (None, None, None, {"y": [1, None]}, 0, "x" * 500, [[[1]]])
"""Of these one is drawn for each completion. None: it has no result."""


def leases(rng: Random) -> Step:
    lease_s = rng.choice([None, None, 600, 0.5, 5, 0.001])
    return lambda copy: copy.lease(copy.q, lease_s=lease_s)


def completes(rng: Random) -> Step:
    place, latest = rng.randrange(PLACE), rng.random() < 0.8
    result = rng.choice(RESULTS)
    measured = rng.choice([None] * 6 + ["began", "took_s", "used"])

    def act(copy: Copy) -> object:
        task = copy.held[-1] if latest and copy.held else copy.pick(place)
        if task is None:
            return None
        if measured == "began":
            task.began = copy.clock.monotonic() - 100
        elif measured == "took_s":
            task.took_s = 7.5
        elif measured == "used":
            task.used = Used(5, 7)
        if place % 5:
            copy.held.remove(task)
        return task.complete(result)

    return act


def exchanges(rng: Random) -> Step:
    place, latest, lease_s = rng.randrange(PLACE), rng.random() < 0.8, rng.choice([None, None, 600_000, 500, 5_000, 1])
    began, result = rng.random() < 0.2, RESULTS[place // 5 % len(RESULTS)]
    encoded = None if result is None else orjson.dumps(result)

    def act(copy: Copy) -> object:
        mine = [task for task in copy.held if task.queue is copy.q]
        if not mine:
            return None
        task = mine[-1] if latest else mine[place % len(mine)]
        if began:
            task.began = copy.clock.monotonic() - 100
        got = copy.q._leaser.exchange(task, encoded, lease_s)
        if got is not None:
            if place % 5:
                copy.held.remove(task)
            copy.held += got
        return got

    return act


def ends(rng: Random) -> Step:
    place, way = rng.randrange(PLACE), rng.randrange(7)
    ways: list[Callable[[LeasedTask], object]] = [
        lambda task: task.fail("oops", 0),
        lambda task: task.fail("oops", 3),
        lambda task: task.release(),
        lambda task: task.release(2),
        lambda task: task.bury("no"),
        lambda task: task.renew(30),
        lambda task: setattr(task, "used", Used(3, 4)) or task.fail("used", 0),  # type: ignore[func-returns-value]
    ]
    return lambda copy: copy.end(place, ways[way])


def other_acts(rng: Random) -> Step:
    way, n, lease_s = rng.randrange(4), rng.choice([1, 1, 2]), rng.choice([0.5, 20])
    acts: list[Step] = [
        lambda copy: copy.lease(copy.other, n, lease_s=lease_s),
        lambda copy: copy.other.insert("single"),
        lambda copy: copy.other.insert_many(["m", Task("d", delay_s=2), "n"]),
        lambda copy: copy.other.complete(copy.lease(copy.other, n, lease_s=lease_s)),
    ]
    return acts[way]


def several(rng: Random) -> Step:
    n, strict = rng.choice([2, 3]), rng.random() < 0.3
    return lambda copy: copy.lease(copy.q, n, strict=strict)


def inserts(rng: Random) -> Step:
    way = rng.randrange(4)
    acts: list[Step] = [
        lambda copy: copy.q.insert("mine"),
        lambda copy: [copy.q.insert(number) for number in range(5)],
        lambda copy: copy.q.insert_many([Task(number, key=f"k{number}") for number in range(4)]),
        lambda copy: copy.q.insert_many(range(6), batch_tasks=3),
    ]
    return lambda copy: told_of(acts[way](copy))


def told_of(value: object) -> object:
    return repr(value)


def passes(rng: Random) -> Step:
    seconds = rng.choice([0.2, 0.2, 1.5, 6, 700, -0.3, -30, -1300])

    def act(copy: Copy) -> None:
        copy.clock.now_s += seconds

    return act


def hides_clock(rng: Random) -> Step:
    """Set the clock of the file server only: what is read within a second is by another clock."""
    ms = rng.choice([-400, -30_000, -1_300_000, 400, 0])

    def act(copy: Copy) -> None:
        copy.clock.offset_ms = ms

    return act


def records(rng: Random) -> Step:
    place, way = rng.randrange(PLACE), rng.randrange(9)
    part = UpdatePart(UPDATE, FILE, 5_000)
    free = rng.randrange(TASKS)
    makes: list[Callable[[LeasedTask, int], bytes]] = [
        lambda task, at: b'{"op":"lease","at',
        lambda task, at: b"no record\n",
        lambda task, at: record_lines.record("gone", at),
        lambda task, at: record_lines.complete(at, task.lease, [task.index], None, part=part),
        lambda task, at: record_lines.record("abort", at, update=UPDATE),
        lambda task, at: record_lines.commit(at, UPDATE, 1),
        lambda task, at: record_lines.record(
            "replace", at, lease=task.lease, tasks=[[task.index, task.index + 1]], payload=9
        ),
        lambda task, at: record_lines.record("replace", at, version=0, tasks=[[free, free + 1]], payload="new"),
        lambda task, at: record_lines.record("bury", at, tasks=[[free, free + 1]], reason="r"),
    ]
    return lambda copy: copy.append(place, makes[way])


def tears(rng: Random) -> Step:
    place = rng.randrange(PLACE)
    return lambda copy: copy.append(place, lambda task, at: b'{"op":"lease","at')


def retires(rng: Random) -> Step:
    place = rng.randrange(PLACE)
    return lambda copy: copy.append(place, lambda task, at: record_lines.record("gone", at))


def tasks_of(task: LeasedTask) -> list[list[int]]:
    return [[task.index, task.index + 1]]


DAMAGED = (
    b"?", b'["payload"]', b'"payload"', b"{}", b'{"b64":"aGk="}', b'{"payload":' + b"[" * 220 + b"]" * 220 + b"}",
)  # fmt: skip


def damages(rng: Random) -> Step:
    """Overwrite lines of a task file that nobody has read yet, by others of the same length."""
    places = {place: rng.choice(DAMAGED) for place in rng.sample(range(TASKS), 3)}

    def act(copy: Copy) -> None:
        payloads = [f"{number}" + "x" * 480 for number in range(TASKS)]
        copy.other.insert_many(payloads, batch_tasks=TASKS)
        path = max((base_of(copy.q) / "queue").glob("*/*"), key=lambda each: each.name[14:])
        lines = path.read_bytes().split(b"\n")
        for place, body in places.items():
            if len(lines) > place + 1 and len(lines[place]) >= len(body):
                lines[place] = body + b" " * (len(lines[place]) - len(body))
        path.write_bytes(b"\n".join(lines))

    return act


def faults(rng: Random, acts: Acts = (leases, completes)) -> Step:
    fault, act = rng.choice(FAULTS), rng.choice(acts)(rng)

    def armed(copy: Copy) -> object:
        copy.fs.fault = fault
        try:
            return act(copy)
        finally:
            copy.fs.fault = ""

    return armed


def locked(rng: Random, acts: Acts = (leases, completes)) -> Step:
    place, act = rng.randrange(PLACE), rng.choice(acts)(rng)

    def beside(copy: Copy) -> object:
        task = copy.pick(place)
        if task is None:
            return None
        try:
            path = copy.log_of(task)
        except StopIteration:
            return None
        with locked_by_another(path):
            return act(copy)

    return beside


def interrupted(rng: Random, acts: Acts = (leases, completes)) -> Step:
    place, act, leases_too = rng.randrange(PLACE), rng.choice(acts)(rng), rng.random() < 0.5

    def within(copy: Copy) -> object:
        task, found = copy.pick(place, 0), []
        copy.q.store.verify()  # else the handler may tell of a purge: one way then has leased already, the other not

        def handler() -> None:
            assert task is not None
            now_s = copy.clock.now_s
            try:
                if leases_too:
                    found.append(told(copy.lease(copy.q)))
                elif exchanges in acts:
                    found.append(told(copy.q._leaser.exchange(task, None, None)))
                else:
                    found.append(told(task.complete()))
            except Exception as error:
                found.append(type(error).__name__)
            copy.clock.now_s = now_s  # what it has waited: one way measures the work before, and the other one behind

        copy.clock.handler = None if task is None else handler
        try:
            return [told(act(copy)), found]
        finally:
            if copy.clock.handler is not None:  # one way may have seen before it asked for the time that nothing holds
                copy.clock.handler = None
                handler()

    return within


def urgent(rng: Random) -> Step:
    way, priority = rng.randrange(4), rng.choice([0, 3, 5])
    mixed = [Task(number, priority=each) for number, each in enumerate((0, 0, priority, None, None, None))]
    acts: list[Step] = [
        lambda copy: copy.other.insert("urgent", priority=priority),
        lambda copy: copy.q.insert("mine", priority=priority),
        lambda copy: copy.other.insert_many(mixed, batch_tasks=len(mixed)),
        lambda copy: copy.other.insert_many(mixed, batch_tasks=len(mixed)),
    ]
    return lambda copy: told_of(acts[way](copy))


def cancels(rng: Random) -> Step:
    """Cancel a task that waits: in a run of tasks that are as they began, it is one that is not."""
    place, index = rng.randrange(PLACE), rng.randrange(2, TASKS)

    def act(copy: Copy) -> object:
        task = copy.pick(place)
        return None if task is None else copy.other.cancel(f"{task.batch}.{index}")

    return act


def rules(rng: Random) -> Step:
    way = rng.randrange(5)
    acts: list[Step] = [
        lambda copy: copy.other.pause("why"),
        lambda copy: copy.other.resume(),
        lambda copy: copy.other.resume(),
        lambda copy: copy.q.lease_for([(1, {"host": "h"})]),
        lambda copy: copy.lease(copy.q, holder={"host": "h", "name": "w"}),
    ]
    return lambda copy: told_of(acts[way](copy)) if way < 3 else acts[way](copy)


def rare(rng: Random) -> Step:
    way = rng.randrange(5)
    acts: list[Step] = [
        lambda copy: copy.other.purge(),
        lambda copy: copy.q.close(),
        lambda copy: copy.q.close(),
        lambda copy: copy.other.set(max_attempts=1),
        lambda copy: copy.lease(copy.q, order="random"),
    ]
    return lambda copy: told_of(acts[way](copy)) if way < 4 else acts[way](copy)


def singles(rng: Random, keys: bool = True) -> Step:
    """Insert one task."""
    payload: Any = rng.choice([1, "x", {"y": [None, 2.5]}, b"\xff", "long" * 100])
    more = rng.choice([{}] * 12 + [{"delay_s": 1.5}, {"priority": 3}, {"strict": True}, {"key": "k"} if keys else {}])
    return lambda copy: told_of(copy.q.insert(payload, **more))


def single_faults(rng: Random) -> Step:
    fault, act = rng.choice(FAULTS), singles(rng, keys=False)  # with a key, it would strike at the file of that

    def armed(copy: Copy) -> object:
        copy.fs.fault = fault
        try:
            return act(copy)
        finally:
            copy.fs.fault = ""

    return armed


def log_of_inserts(copy: Copy) -> Path | None:
    """Return the log of the batch into which the process inserts; None if there is none."""
    batch = copy.q._inserter._batch
    path = None if batch is None else Path(copy.q.store.layout.log(batch))
    return path if path is not None and path.exists() else None


def single_locked(rng: Random) -> Step:
    act = singles(rng)

    def beside(copy: Copy) -> object:
        path = log_of_inserts(copy)
        if path is None:
            return None
        with locked_by_another(path):
            return act(copy)

    return beside


def single_interrupted(rng: Random) -> Step:
    act, within = singles(rng), rng.choice([leases, completes, singles])(rng)

    def acts(copy: Copy) -> object:
        found: list[object] = []
        copy.q.store.verify()

        def handler() -> None:
            now_s = copy.clock.now_s
            try:
                found.append(told(within(copy)))
            except Exception as error:
                found.append(type(error).__name__)
            copy.clock.now_s = now_s

        copy.clock.handler = handler
        try:
            return [told(act(copy)), found]
        finally:
            copy.clock.handler = None

    return acts


def single_records(rng: Random) -> Step:
    """Append to the log of the batch into which the process inserts, as another program would."""
    way = rng.randrange(7)

    def act(copy: Copy) -> None:
        path = log_of_inserts(copy)
        if path is None:
            return
        at, state = copy.clock.now_ms(), ReplayState()
        state.replay(path.read_bytes(), 0)
        count = state.count
        inserted = record_lines.insert(at, f"{count:016x}", count, b'{"payload":0}\n')
        made = [
            b'{"op":"insert","at',
            b"no record\n",
            record_lines.record("gone", at),
            record_lines.record("seal", at, here=path.stat().st_size, tasks=count),
            inserted,
            inserted,
            record_lines.record("bury", at, tasks=[[0, 1]], reason="r"),
        ]
        with path.open("ab") as file:
            file.write(made[way])

    return act


def boots(rng: Random) -> Step:
    """From now on the process inserts as one of another boot of its host."""
    name = f"boot{rng.randrange(3)}"

    def act(copy: Copy) -> None:
        copy.q.store.domain = name

    return act


STEPS: dict[str, tuple[float, Callable[[Random], Step]]] = {
    "lease": (26, leases),
    "complete": (20, completes),
    "end": (5, ends),
    "other": (6, other_acts),
    "several": (2, several),
    "insert": (4, inserts),
    "time": (5, passes),
    "server's time": (2, hides_clock),
    "record": (3, records),
    "damage": (1.5, damages),
    "fault": (4, faults),
    "locked": (1, locked),
    "interrupted": (3, interrupted),
    "rules": (1.5, rules),
    "priority": (0.2, urgent),
    "cancel": (1, cancels),
    "torn": (0.5, tears),
    "gone": (0.2, retires),
    "rare": (0.5, rare),
    "single": (0, singles),
    "single, fault": (0, single_faults),
    "single, locked": (0, single_locked),
    "single, interrupted": (0, single_interrupted),
    "single, record": (0, single_records),
    "another boot": (0, boots),
    "exchange": (0, exchanges),
    "exchange, fault": (0, partial(faults, acts=(exchanges,))),
    "exchange, locked": (0, partial(locked, acts=(exchanges,))),
    "exchange, interrupted": (0, partial(interrupted, acts=(exchanges,))),
}


class Differs(AssertionError):
    """The two copies are not the same after a step."""


def live(directory: Path, seed: int, steps: int = 40, much: str = "") -> Counter[str]:
    """Let two copies live through the story of a seed; how often the fast path was gone. Differs.

    `much`: the kind of step of which there are many.
    """
    rng, (first, second) = Random(seed), (directory / "fast", directory / "normal")
    durability: Any = rng.choice(["none", "none", "strict"])
    open_batches = rng.random() < 0.3 or much == SINGLES
    few: dict[str, Any] = {"batch_tasks_max": 12} if much == SINGLES else {}
    Queue.create(first, shards=2, durability=durability, max_attempts=3, **few).close()
    with Queue(first, clock=ManualClock(), entropy=Seeded(seed + 2)) as made:
        if not open_batches:
            made.insert_many(range(3 * TASKS), batch_tasks=TASKS)
        else:
            for number in range(TASKS):
                made.insert(number)
    shutil.copytree(first, second)
    copies = [Copy(path, seed, path is first, much) for path in (first, second)]
    story: list[str] = []
    try:
        for _ in range(steps):
            name, act = step(rng, much)
            story.append(name)
            answers = [copy.does(act) for copy in copies]
            compare(seed, story, "answers", *answers)
            compare(seed, story, "disks", *(copy.on_disk() for copy in copies))
            if name.endswith(("fault", "locked", "interrupted")):  # which logs are closed then is not compared
                close_what_one_has_closed(*copies)
            known = [copy.known() for copy in copies]
            if (
                "fault" in story or "single, fault" in story or "exchange, fault" in story
            ):  # one way may have opened the log anew, and not know the name
                for log in (log for logs in known for log in logs.values()):
                    log["is_named_so"] = log["lettered"] = None
            compare(seed, story, "logs", *known)
            compare(seed, story, "clocks", *(copy.clock.now_s for copy in copies))
    finally:
        for copy in copies:
            copy.q.close()
            copy.other.close()
            shutil.rmtree(copy.path, ignore_errors=True)
    return copies[0].went


def close_what_one_has_closed(*copies: Copy) -> None:
    common = set.intersection(*(set(copy.known()) for copy in copies))
    for copy in copies:
        for log in copy.q.store.logs:
            if log.batch not in common:
                copy.q.store.logs.drop(log)


def compare(seed: int, story: list[str], what: str, fast: Any, normal: Any) -> None:
    if fast != normal:
        if isinstance(fast, dict) and isinstance(normal, dict):
            keys = [key for key in {**fast, **normal} if fast.get(key) != normal.get(key)]
            fast, normal = ({key: each.get(key) for key in keys} for each in (fast, normal))
            if what == "logs" and all(isinstance(each, dict) for one in (fast, normal) for each in one.values()):
                for batch in keys:
                    differ = [key for key in fast[batch] if fast[batch][key] != normal[batch][key]]
                    fast[batch], normal[batch] = ({key: one[batch][key] for key in differ} for one in (fast, normal))
        raise Differs(
            f"seed {seed}, {what} after {' '.join(story[-8:])} ({len(story)}):\n{fast!r:.3000}\n{normal!r:.3000}"
        )
