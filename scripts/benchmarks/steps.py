"""The steps that a worker process does and times. Every function takes a request and returns what it measured.

Times are in seconds, latencies in nanoseconds until `percentiles` turns them into microseconds.
CLOCK_MONOTONIC is one clock for all processes of a machine: the steps with many workers rely on it.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import alive, machine, wake
from benchmarks.systems import Payload, System, encode, open_system

Request = dict[str, Any]
Result = dict[str, Any]
clock = time.perf_counter_ns

PAYLOAD_BYTES = 200
FIRST_NUMBER = 1_000_000_000
"""Numbers of the same width make payloads of the same size."""
PAD = "x" * (PAYLOAD_BYTES - len(encode({"n": FIRST_NUMBER, "pad": ""})))
MANY = 100
HOLD_AT_ONCE = 1000
STATUS_CALLS = 7
EMPTY_PAUSE_S = 0.002
"""How long a worker that found nothing waits, while producers are still at it."""


def payload(number: int) -> Payload:
    """The payload of the n-th task: 200 bytes of JSON."""
    return {"n": FIRST_NUMBER + number, "pad": PAD}


def stream(count: int, until: float, first: int = 0) -> Iterator[Payload]:
    """Payloads, until there are enough or the time (monotonic) is over."""
    base = FIRST_NUMBER + first
    for number in range(base, base + count):
        if not number & 127 and time.monotonic() > until:
            return
        yield {"n": number, "pad": PAD}


def percentiles(samples: list[int]) -> dict[str, float] | None:
    """p50, p90, p99 and max in microseconds; None without samples. Nearest rank."""
    if not samples:
        return None
    ordered = sorted(samples)

    def rank(percent: int) -> float:
        return ordered[max(0, -(-percent * len(ordered) // 100) - 1)] / 1000

    return {"p50": rank(50), "p90": rank(90), "p99": rank(99), "max": ordered[-1] / 1000}


def _until(request: Request) -> float:
    return time.monotonic() + float(request.get("budget_s", 3600))


# -- one process ---------------------------------------------------------------------------------


def fill(system: System, request: Request) -> Result:
    """Create the queue and insert `count` tasks by the call for many."""
    until = _until(request)
    system.create()
    begin, cpu = clock(), time.process_time()
    tasks = system.insert_many(stream(request["count"], until))
    seconds, cpu_s = (clock() - begin) / 1e9, time.process_time() - cpu
    result = {"tasks": tasks, "seconds": seconds, "cpu_s": cpu_s, "memory_mb": machine.peak_memory_mb()}
    if request.get("inodes"):
        result["inodes"] = machine.count_names(request["path"])
    return result


def insert_one(system: System, request: Request) -> Result:
    """Insert one task at a time into a new queue."""
    until = _until(request)
    system.create()
    samples: list[int] = []
    cpu = time.process_time()
    for number in range(request["sample"]):
        item = payload(number)
        begin = clock()
        system.insert_one(item)
        samples.append(clock() - begin)
        if time.monotonic() > until:
            break
    return {
        "tasks": len(samples),
        "seconds": sum(samples) / 1e9,
        "cpu_s": time.process_time() - cpu,
        "latency_us": {"insert": percentiles(samples)},
    }


def lease_one(system: System, request: Request) -> Result:
    """Lease one, complete one."""
    return _lease(system, request, 1)


def lease_many(system: System, request: Request) -> Result:
    """Lease a hundred, complete a hundred."""
    return _lease(system, request, MANY)


def _lease(system: System, request: Request, n: int) -> Result:
    sample, warmup = request["sample"], request["warmup"]
    begun, budget_ns = clock(), int(request.get("budget_s", 3600) * 1e9)
    until, warm_until = begun + budget_ns, begun + budget_ns // 4
    leases: list[int] = []
    completes: list[int] = []
    calls: list[list[Any]] = []
    done = warmed = 0
    started, cpu = clock(), time.process_time()
    last = started
    while done < sample + warmup and last < until:
        wanted = min(n, sample + warmup - done)
        begin = clock()
        tasks = system.lease(wanted)
        leased = clock()
        if not tasks:
            break
        system.complete(tasks)
        last = clock()
        calls.append(tasks)
        done += len(tasks)
        if done <= warmup and last < warm_until:
            warmed, started, cpu = done, last, time.process_time()
        else:
            leases.append(leased - begin)
            completes.append(last - leased)
    cpu_s = time.process_time() - cpu
    left = _check(system, request, done)
    result: Result = {
        "left": left,
        "tasks": done - warmed,
        "seconds": (last - started) / 1e9,
        "cpu_s": cpu_s,
        "warmup_tasks": warmed,
        "latency_us": {"lease": percentiles(leases), "complete": percentiles(completes)},
    }
    return _with_trail(result, request, calls)


def loop(system: System, request: Request) -> Result:
    """The system's own work loop, with nothing to do for each task."""
    sample, warmup = request["sample"], request["warmup"]
    until = clock() + int(request.get("budget_s", 3600) * 1e9)
    samples: list[int] = []
    calls: list[list[Any]] = []
    tasks = iter(system.loop())
    started, cpu = clock(), time.process_time()
    last = started
    for done, task in enumerate(tasks, 1):
        now = clock()
        calls.append([task])
        if done <= warmup:
            started, cpu = now, time.process_time()
        else:
            samples.append(now - last)
        last = now
        if done >= sample + warmup or now > until:
            break
    cpu_s = time.process_time() - cpu
    if close := getattr(tasks, "close", None):
        close()
    left = _check(system, request, len(calls) - bool(calls))  # the last one was taken, and not acknowledged
    result: Result = {
        "left": left,
        "tasks": len(samples),
        "seconds": (last - started) / 1e9,
        "cpu_s": cpu_s,
        "warmup_tasks": len(calls) - len(samples),
        "latency_us": {"task": percentiles(samples)},
    }
    return _with_trail(result, request, calls)


def _check(system: System, request: Request, done: int) -> int:
    """A system that only seems to be fast has not done its work: its own counts must show it."""
    left, expected = system.status(), request["count"] - done
    if left != expected and not (left == expected - 1 and request["step"] == "loop"):
        raise RuntimeError(f"{expected:,} tasks should be left, and it counts {left:,}")
    return left


def _with_trail(result: Result, request: Request, calls: list[list[Any]]) -> Result:
    result["memory_mb"] = machine.peak_memory_mb()
    if request.get("trail"):
        from benchmarks.systems.fsqueue_ import batch_of

        trail: list[list[Any]] = []
        for tasks in calls:
            batches = [batch_of(task) for task in tasks]
            for batch in dict.fromkeys(batches):
                stop = [batch, batches.count(batch), 1]
                if trail and trail[-1][:2] == stop[:2]:
                    trail[-1][2] += 1
                else:
                    trail.append(stop)
        result["trail"] = trail
    return result


def hold(system: System, request: Request) -> Result:
    """Lease `count` tasks and keep them."""
    until = time.monotonic() + float(request.get("budget_s", 3600))
    held = 0
    begin = clock()
    while held < request["count"]:
        tasks = system.lease(min(HOLD_AT_ONCE, request["count"] - held))
        if not tasks:
            break
        held += len(tasks)
        if time.monotonic() > until:
            break
    return {"tasks": held, "seconds": (clock() - begin) / 1e9}


def status(system: System, request: Request) -> Result:
    """Ask for the counts: the first time in this process, and again."""
    samples: list[int] = []
    before = machine.bytes_read()
    first_bytes = 0
    remaining = 0
    for call in range(STATUS_CALLS):
        begin = clock()
        remaining = system.status()
        samples.append(clock() - begin)
        if call == 0:
            first_bytes = machine.bytes_read() - before
        if sum(samples) / 1e9 > request.get("budget_s", 3600) / 2:
            break
    return {
        "tasks": remaining,
        "first_s": samples[0] / 1e9,
        "seconds": sorted(samples)[len(samples) // 2] / 1e9,
        "bytes_read": first_bytes,
        "memory_mb": machine.peak_memory_mb(),
    }


def delete(system: System, request: Request) -> Result:
    """Delete the queue: until the call returns, and until the disk is free of it."""
    begin = clock()
    system.delete()
    returned = clock()
    while not system.gone():
        time.sleep(0.001)
    return {"tasks": request["count"], "return_s": (returned - begin) / 1e9, "seconds": (clock() - begin) / 1e9}


# -- several processes ---------------------------------------------------------------------------


def _wait_for_start(say: Callable[[str], None]) -> None:
    """Say that this worker is ready, and sleep until the moment (ns, monotonic) that it is told."""
    say("ready")
    moment = int(sys.stdin.readline())
    time.sleep(max(0, moment - clock()) / 1e9)


def drain(system: System, request: Request, say: Callable[[str], None]) -> Result:
    """One of several workers: lease one, work for a while, complete it, until the system says that there is nothing.

    Reports each answer's time, so that the parent can tell a true "empty" from a false one.
    """
    work_s = request.get("work_s", 0)
    until = _until(request)
    numbers: list[int] = []
    waited: list[int] = []
    system.status()  # opened, and its code is loaded, before the race begins
    _wait_for_start(say)
    begin = last_lease = clock()
    while time.monotonic() < until:
        asked = clock()
        tasks = system.lease(1)
        if not tasks:
            break
        last_lease = asked
        waited.append(clock() - asked)
        numbers.append(system.payload(tasks[0])["n"] - FIRST_NUMBER)
        if work_s:
            time.sleep(work_s)
        system.complete(tasks)
    return {
        "numbers": numbers,
        "begin": begin,
        "last_lease_asked": last_lease,
        "empty_answered": clock(),
        "latency_us": {"lease": percentiles(waited)},
    }


def produce(system: System, request: Request, say: Callable[[str], None]) -> Result:
    """One of several producers: inserts its share one at a time."""
    until = _until(request)
    samples: list[int] = []
    _wait_for_start(say)
    begin = clock()
    for number in range(request["first"], request["first"] + request["count"]):
        item = payload(number)
        asked = clock()
        system.insert_one(item)
        samples.append(clock() - asked)
        if time.monotonic() > until:
            break
    return {"tasks": len(samples), "begin": begin, "end": clock(), "latency_us": {"insert": percentiles(samples)}}


def consume(system: System, request: Request, say: Callable[[str], None]) -> Result:
    """One of several consumers: works until nothing is left after the file `stop` appeared."""
    until = _until(request)
    stop = Path(request["stop"])
    numbers: list[int] = []
    leases: list[int] = []
    completes: list[int] = []
    empties = 0
    system.status()
    _wait_for_start(say)
    begin = last = clock()
    while time.monotonic() < until:
        last_round = stop.exists()
        asked = clock()
        tasks = system.lease(1)
        if tasks:
            leased = clock()
            system.complete(tasks)
            last = clock()
            leases.append(leased - asked)
            completes.append(last - leased)
            numbers.append(system.payload(tasks[0])["n"] - FIRST_NUMBER)
        elif last_round:
            break
        else:
            empties += 1
            time.sleep(EMPTY_PAUSE_S)
    latency = {"lease": percentiles(leases), "complete": percentiles(completes)}
    return {"numbers": numbers, "begin": begin, "end": last, "empties": empties, "latency_us": latency}


# -- baselines -----------------------------------------------------------------------------------


def list_directories(request: Request) -> Result:
    """List 64 empty directories: what status is compared with."""
    samples = []
    with tempfile.TemporaryDirectory(dir=request["path"], prefix="empty-") as parent:
        paths = [f"{parent}/{number:02x}" for number in range(64)]
        for path in paths:
            os.mkdir(path)
        for _ in range(50):
            begin = clock()
            for path in paths:
                os.listdir(path)
            samples.append(clock() - begin)
    return {"tasks": 64, "seconds": sorted(samples)[len(samples) // 2] / 1e9, "first_s": samples[0] / 1e9}


def floor(request: Request) -> Result:
    """A step of the bare system calls."""
    from benchmarks.systems.floor import Floor, Sizes, Stop

    bare = Floor(request["path"], Sizes(**request["sizes"]))
    step = request["floor_step"]
    if step == "insert":
        bare.create()
        begin = clock()
        bare.insert(request["counts"], sync=True)
        return {"tasks": sum(request["counts"]), "seconds": (clock() - begin) / 1e9}
    if step == "delete":
        begin = clock()
        bare.delete()
        return {"tasks": request["count"], "seconds": (clock() - begin) / 1e9}
    counts: dict[str, int] = request["counts"]
    bare.create()
    bare.insert(list(counts.values()), sync=False)
    os.sync()
    trail = [Stop(*stop) for stop in request["trail"]]
    warm, rest = _split(trail, request["warmup_tasks"])
    joined = step == "loop"
    done_before = dict.fromkeys(counts, 0)
    for stop in warm:
        done_before[stop.batch] += stop.tasks * stop.times
    # Warm-up and measurement are two walks: the batches open between them are opened twice, which
    # is a handful of calls in thousands.
    warm_counts = {batch: counts[batch] for batch in counts}
    bare.walk(warm_counts, warm, joined)
    left = {batch: counts[batch] - done_before[batch] for batch in counts}
    begin = clock()
    done = bare.walk(left, rest, joined)
    return {"tasks": done, "seconds": (clock() - begin) / 1e9}


def _split(trail: list[Any], tasks: int) -> tuple[list[Any], list[Any]]:
    """Cut a trail after so many tasks."""
    warm: list[Any] = []
    rest = list(trail)
    while rest and tasks > 0:
        stop = rest.pop(0)
        times = min(stop.times, -(-tasks // stop.tasks))
        warm.append(stop._replace(times=times))
        tasks -= times * stop.tasks
        if times < stop.times:
            rest.insert(0, stop._replace(times=stop.times - times))
    return warm, rest


ALONE: dict[str, Callable[[System, Request], Result]] = {
    "fill": fill,
    "insert_one": insert_one,
    "lease_one": lease_one,
    "lease_many": lease_many,
    "loop": loop,
    "hold": hold,
    "status": status,
    "delete": delete,
}
TOGETHER: dict[str, Callable[[System, Request, Callable[[str], None]], Result]] = {
    "drain": drain,
    "produce": produce,
    "consume": consume,
}
BARE: dict[str, Callable[[Request], Result]] = {
    "alive": alive.perform,
    "list_directories": list_directories,
    "floor": floor,
    "wake": wake.perform,
}


def perform(request: Request, say: Callable[[str], None]) -> Result:
    """Do the step that the request names."""
    step = request["step"]
    if step.startswith("order."):
        from benchmarks.order.steps import STEPS

        return STEPS[step](request)
    if step in BARE:
        return BARE[step](request)
    system = open_system(request["system"], request["path"])
    gc.collect()
    if step in TOGETHER:
        return TOGETHER[step](system, request, say)
    return ALONE[step](system, request)
