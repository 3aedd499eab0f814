"""The steps, each done by a process of its own, which forks a crowd where it needs one.

Every function takes a request and returns what it measured. A payload's `n` is the rank of its task among all that the
queue is filled with: 0 is the most urgent.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from time import process_time_ns
from typing import Any, get_args

from benchmarks.order import crowd, pops
from fsqueue import LeasedTask, Queue, Task, simulation
from fsqueue.simulation import Policy

Request = dict[str, Any]
Result = dict[str, Any]
Operation = Callable[[], int]
"""Does something with tasks; returns with how many."""
clock = crowd.clock

SLICES = 10
"""A rate's variation is that of the rates in so many equal parts of the time."""
KEYED_KINDS = ("keyed", "repeat", "used")
"""Inserts with the same keys, one after the other: new ones, those of tasks that wait, those of tasks that have ended.
"""
BARE_DIRECTORIES, KEY_FILE_BYTES = 256, 150
"""Files without a queue are made in so many directories, as those of keys are, with about as much in them."""
PRIORITIES = 1 << 62
"""Random priorities are below this: two equal ones are unlikely."""


def payload(number: int, size: int) -> dict[str, Any]:
    """Return a payload of about `size` bytes of JSON."""
    return {"n": number, "pad": "x" * max(0, size - 24)}


def _created(path: str, settings: dict[str, Any]) -> Queue:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return Queue.create(path, allow_unsafe=True, **settings)


# -- filling -------------------------------------------------------------------------------------


def fill(request: Request) -> Result:
    """Create queues and insert tasks into each, singly or in several bulk inserts, with priorities or without any.

    Each of several bulk inserts makes as few batches as it can. With priorities their ranks are distinct and in random
    order. Returns how long the inserts took, and in how many batches and shards the tasks are.
    """
    rng = random.Random(request["seed"])
    order = list(range(request["tasks"]))
    taken = 0
    for path in request["paths"]:
        rng.shuffle(order)
        queue = _created(path, request.get("settings", {}))
        begin = clock()
        if request["way"] == "single":
            for item, more in _tasks(order, request):
                queue.insert(item, **more)
        else:
            inserts = request.get("inserts", 1)
            for number in range(inserts):
                ranks = order[number::inserts]
                each = min(queue.settings.batch_tasks_max, max(1, len(ranks))) if inserts > 1 else None
                tasks = (Task(item, **more) for item, more in _tasks(ranks, request))
                queue.insert_many(tasks, batch_tasks=each)
        taken += clock() - begin
        queue.close()
    os.sync()
    files = [file for path in request["paths"] for file in Path(path).glob("[0-9]*/queue/*/*.jsonl")]
    places = {"batches": len(files), "shards": len({file.parent for file in files})}
    return {"tasks": len(order) * len(request["paths"]), "seconds": taken / 1e9, **places}


def _tasks(ranks: list[int], request: Request) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for rank in ranks:
        yield payload(rank, request["bytes"]), {"priority": rank} if request["priorities"] else {}


# -- popping -------------------------------------------------------------------------------------


class Writes:
    """When the last `lease` record was written by a queue of this process, in the thread that wrote it."""

    def __init__(self, queue: Queue) -> None:
        self._write = queue.store.fs.write
        self._local = threading.local()
        queue.store.fs.write = self._noting

    def _noting(self, fd: int, data: bytes | memoryview) -> int:
        written = self._write(fd, data)
        if b'"op":"lease"' in bytes(data):
            self._local.moment = clock()
        return written

    @property
    def moment(self) -> int:
        """Return the moment (ns, monotonic): right behind the write, while the log is still locked."""
        moment: int = self._local.moment
        return moment


def _popper(path: str, strict: bool, left: Any, start: crowd.Start, is_over: crowd.IsOver) -> Result:
    queue = Queue(path)
    writes = Writes(queue)
    found: list[tuple[str, int, int, int]] = []
    begin = start()
    while left.value > 0 and (tasks := queue.lease(1, strict=strict)):
        task = tasks[0]
        leased = writes.moment
        with left.get_lock():
            left.value -= 1
        task.complete()
        found.append((task.id, task.payload["n"], leased, clock()))
    return {"pops": found, "begin": begin}


def pop(request: Request) -> Result:
    """Have many processes pop tasks of a queue, one at a time: lease one, complete it. See `pops` for the PEI.

    `part`: they stop when so many of the tasks are popped.
    """
    path, workers, part = request["path"], request["workers"], request.get("part", 1.0)
    left = multiprocessing.get_context("fork").Value("q", int(request["tasks"] * part) if part < 1 else 1 << 62)
    popper = partial(_popper, path, request.get("strict", False), left)
    answers = crowd.run([popper] * workers, request["budget_s"])
    found = [pops.Pop(*one) for answer in answers for one in answer["pops"]]
    judged = pops.judge(found, pops.lease_times(path), request["tasks"], part)
    shares = sorted(len(answer["pops"]) for answer in answers)
    end = max((one.completed for one in found), default=0)
    begin = min(answer["begin"] for answer in answers)
    return {**judged, "seconds": max(1, end - begin) / 1e9, "shares": [shares[0], shares[-1]]}


# -- for so long ---------------------------------------------------------------------------------


class Timed:
    """Repeats an operation until a moment, and notes when each ended and how long it took."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, int]] = []
        self.took: dict[str, list[int]] = {}

    def run(self, operation: Callable[[Timed], int], until: int, is_over: crowd.IsOver | None = None) -> None:
        """Go on until the moment, or it is over, or the operation finds no tasks."""
        while clock() < until and not (is_over is not None and is_over()):
            tasks = operation(self)
            if not tasks:
                return
            self.ends.append((clock(), tasks))

    def note(self, verb: str, began: int) -> int:
        """Note how long a verb took that began then; return now."""
        now = clock()
        self.took.setdefault(verb, []).append(now - began)
        return now


def latencies(samples: list[int]) -> Result | None:
    """Return percentiles in microseconds."""
    if not samples:
        return None
    ordered = sorted(samples)
    return {f"p{percent}": pops.nearest(ordered, percent) / 1000 for percent in (20, 50, 80, 90, 99)}


def rates(begin: int, ends: list[tuple[int, int]]) -> Result:
    """Return tasks, seconds until the last was done, and how much the rate varied, in percent of the mean."""
    tasks = sum(each for _, each in ends)
    last = max((end for end, _ in ends), default=begin + 1)
    width = max(1, (last - begin) / SLICES)
    slices = [0] * SLICES
    for end, each in ends:
        slices[min(SLICES - 1, int((end - begin) / width))] += each
    mean = statistics.mean(slices)
    variation = round(100 * statistics.pstdev(slices) / mean, 1) if mean else None
    return {"tasks": tasks, "seconds": (last - begin) / 1e9, "variation": variation}


def _merged(answers: list[Result]) -> Result:
    """Return what all processes did: rates from the common begin, latencies of all operations."""
    ends = [tuple(end) for answer in answers for end in answer["ends"]]
    took: dict[str, list[int]] = {}
    for answer in answers:
        for verb, samples in answer["took"].items():
            took.setdefault(verb, []).extend(samples)
    begin = min(answer["begin"] for answer in answers)
    return {
        **rates(begin, ends),
        "operations": len(ends),
        "busy_threads": sum(answer["busy_threads"] for answer in answers),
        "latency_us": {verb: latencies(samples) for verb, samples in took.items()},
    }


def _in_threads(
    threads: int,
    seconds: float,
    operations: Callable[[int], Callable[[Timed], int]],
    start: crowd.Start,
    is_over: crowd.IsOver | None = None,
) -> Result:
    """Have each thread repeat its operation for so long; the threads begin when all processes are ready."""
    ready = [operations(number) for number in range(threads)]
    begin = start()
    until = begin + int(seconds * 1e9)

    def one(number: int) -> Timed:
        timed = Timed()
        timed.run(ready[number], until, is_over)
        return timed

    timed = crowd.in_threads(threads, one)
    took: dict[str, list[int]] = {}
    for each in timed:
        for verb, samples in each.took.items():
            took.setdefault(verb, []).extend(samples)
    return {
        "begin": begin,
        "ends": [end for each in timed for end in each.ends],
        "took": took,
        "busy_threads": sum(bool(each.ends) for each in timed),
    }


# -- working -------------------------------------------------------------------------------------


def _working(queue: Queue, n: int, timed: Timed) -> int:
    began = clock()
    tasks: list[LeasedTask] = queue.lease(n)
    if not tasks:
        return 0
    leased = timed.note("lease", began)
    if len(tasks) == 1:
        tasks[0].complete()
    else:
        queue.complete(tasks)
    timed.note("complete", leased)
    return len(tasks)


def _worker(path: str, n: int, threads: int, seconds: float, start: crowd.Start, is_over: crowd.IsOver) -> Result:
    queue = Queue(path)
    return _in_threads(threads, seconds, lambda _: partial(_working, queue, n), start)


def work(request: Request) -> Result:
    """Have workers lease `n` and complete them, for some seconds or until there are no more.

    `paths`: the queues. Worker i takes the i-th, and again from the first.
    """
    paths = request["paths"]
    works = [
        partial(_worker, paths[number % len(paths)], request["n"], request["threads"], request["seconds"])
        for number in range(request["workers"])
    ]
    return _merged(crowd.run(works, request["seconds"]))


# -- inserting -----------------------------------------------------------------------------------


def _insert_operation(queue: Queue, request: Request, seed: str) -> Callable[[Timed], int]:
    """Return the operation that a request describes: insert one, or `n` in bulk; with priorities; with keys."""
    rng = random.Random(seed)
    n: int = request["n"]
    size: int = request["bytes"]
    numbers = count()

    def options() -> dict[str, Any]:
        return {"priority": rng.randrange(PRIORITIES)} if request["priorities"] else {}

    if n > 1:

        def many(timed: Timed) -> int:
            tasks = [Task(payload(next(numbers), size), **options()) for _ in range(n)]
            began = clock()
            queue.insert_many(tasks, batch_tasks=n)  # one file: else a small job is spread over many
            timed.note("insert", began)
            return n

        return many

    collisions: float | None = request.get("collisions")

    def one(timed: Timed) -> int:
        more = options()
        if collisions is not None:
            is_same = rng.random() < collisions
            more["key"] = "the same" if is_same else f"{seed}-{next(numbers)}"
        item = payload(next(numbers), size)
        began = clock()
        queue.insert(item, **more)
        timed.note("insert", began)
        return 1

    return one


def _inserter(path: str, request: Request, number: int, start: crowd.Start, is_over: crowd.IsOver) -> Result:
    queue = Queue(path)
    return _in_threads(
        request["threads"],
        request["seconds"],
        lambda thread: _insert_operation(queue, request, f"{request['seed']}-{number}-{thread}"),
        start,
        is_over,
    )


def insert(request: Request) -> Result:
    """Have processes insert for some seconds, into queues that are created. `paths` as in `work`."""
    paths = request["paths"]
    for path in paths:
        _created(path, request.get("settings", {})).close()
    works = [partial(_inserter, paths[number % len(paths)], request, number) for number in range(request["workers"])]
    return _merged(crowd.run(works, request["seconds"]))


def isolate(request: Request) -> Result:
    """Have a lone worker with one thread work on a queue, while loaders insert into queues of their own."""
    for path in request["paths"]:
        _created(path, request.get("settings", {})).close()
    lone = partial(_worker, request["path"], 1, 1, request["seconds"])
    loading = {**request, "seconds": request["seconds"] + 60}  # they end when the lone worker does
    loaders = [partial(_inserter, path, loading, number) for number, path in enumerate(request["paths"])]
    answers = crowd.run([lone, *loaders], request["seconds"], until=1)
    result = _merged(answers[:1])
    if loaders:
        load = _merged(answers[1:])
        result |= {
            "loaded_tasks": load["tasks"],
            "loaded_seconds": load["seconds"],
            "busy_loaders": load["busy_threads"],
        }
    return result


# -- keys ----------------------------------------------------------------------------------------


def keys(request: Request) -> Result:
    """Insert single tasks in one process, plain ones and keyed ones by turns: what each costs, in microseconds of the
    processor.

    A repeat is an insert with a key whose task still waits: it inserts nothing. The key of an insert that is "used" had
    a task that has ended. A "file" is made, written and closed, and nothing else.
    """
    path, size, each = request["path"], request["bytes"], request["each"]
    queue = _created(path, request["settings"])
    for number in range(request["warmup"]):  # it makes directories
        queue.insert(payload(number, size), key=f"first {number}")
    bare = [os.path.join(os.path.dirname(path), "bare", f"{number:02x}") for number in range(BARE_DIRECTORIES)]
    for directory in bare:
        os.makedirs(directory)
    makes: dict[str, Callable[[int], object]] = {
        "file": lambda number: _make_file(f"{bare[number % len(bare)]}/{number}"),
        "plain": lambda number: queue.insert(payload(number, size)),
        **dict.fromkeys(KEYED_KINDS, lambda number: queue.insert(payload(number, size), key=f"key {number}")),
    }
    found: dict[str, list[float]] = {kind: [] for kind in makes}
    for turn in range(request["turns"] + 1):
        for kind, make in makes.items():
            if kind == "used":
                while leased := queue.lease(each):
                    queue.complete(leased)
            begin = process_time_ns()
            for number in range(turn * each, (turn + 1) * each):
                make(number)
            if turn:  # the first one is a warm-up
                found[kind].append((process_time_ns() - begin) / each / 1000)
    return {"tasks": each * request["turns"], **{kind: statistics.median(costs) for kind, costs in found.items()}}


def _make_file(path: str) -> None:
    """Make a file with as much in it as the file of a key has."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    os.write(fd, b"x" * KEY_FILE_BYTES)
    os.close(fd)


def syncs(request: Request) -> Result:
    """Count the calls of fsync(2) for each single insert: plain ones, then keyed ones.

    The first `warmup` keyed inserts make the directories of keys, and count by themselves (`first`).
    """
    calls = [0]
    real = os.fsync

    def counting(fd: Any) -> None:
        calls[0] += 1
        real(fd)

    os.fsync = counting  # the queue takes it when it is opened
    queue = _created(request["path"], request["settings"])
    queue.insert(payload(0, request["bytes"]))

    def counted(number: int, **more: Any) -> int:
        before = calls[0]
        queue.insert(payload(number, request["bytes"]), **more)
        return calls[0] - before

    plain = sorted(counted(number) for number in range(request["sample"]))
    first = sorted(counted(number, key=f"first {number}") for number in range(request["warmup"]))
    keyed = sorted(counted(number, key=f"key {number}") for number in range(request["sample"]))
    return {
        "tasks": request["sample"],
        "plain": {"median": pops.nearest(plain, 50), "greatest": plain[-1]},
        "first": {"median": pops.nearest(first, 50), "greatest": first[-1]},
        "keyed": {"median": pops.nearest(keyed, 50), "greatest": keyed[-1]},
    }


def simulate(request: Request) -> Result:
    """Return what the simulation predicts for so many subqueues and clients that pop at the same time.

    Both policies of the paper: "basic" keeps what a pop gives, "better" compares it with the second best.
    """
    found: Result = {}
    policies: tuple[Policy, ...] = get_args(Policy)
    for policy in policies:
        predicted = simulation.simulate(
            nodes=request["subqueues"],
            peeks=request["peeks"],
            lag=request["lag"],
            pops=request["pops"],
            policy=policy,
            concurrent=request["concurrent"],
            seed=request["seed"],
        )
        found[policy] = predicted.as_dict()
    return {"tasks": request["pops"], **found}


STEPS: dict[str, Callable[[Request], Result]] = {
    "order.fill": fill,
    "order.pop": pop,
    "order.work": work,
    "order.insert": insert,
    "order.isolate": isolate,
    "order.keys": keys,
    "order.syncs": syncs,
    "order.simulate": simulate,
}
"""By the name in a request."""
