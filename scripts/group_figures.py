"""What it costs to find queues in a group of many: `scripts/bench-groups`.

The queues are made by what an insert makes of them, without tasks; some have one. With `--worked-off` each has had two
tasks, which are completed. Each figure of a listing is the CPU time of the cheapest round, and stands beside
`os.scandir` of the same directory (the floor), by turns in one run. An idle look is one of a
lessee that has looked into all of them before; the calls are system calls that go through the filesystem layer.

Starts are lessees that begin while one queue, chosen by chance, has a task; and such as begin while none has, and find
one in a queue that comes into being a moment later: seconds until that is leased, of the slowest.

Pairs are a lease of one task and its completion, over groups and in a plain queue by turns. Each figure is the CPU time
of this process, and what asking the queues costs at intervals is in it. With them come loops that name their queue anew
each time, beside such that hold it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import fsqueue
from fsqueue.filesystem import Filesystem
from fsqueue.format import names
from fsqueue.groups import members
from fsqueue.protocol.waiting import BELL_S
from fsqueue.storage.group_directory import GroupDirectory

IDLE_S = 30.0
"""How long a lessee waits before a task is inserted: its pauses have grown to the longest one by then."""
QUEUES, ROUNDS, PATTERN = 100_000, 3, r".*7\.example#fetch"
PAYLOAD = {"payload": "x" * 180}


def make(path: str, queues: int, every: int, is_worked_off: bool = False) -> fsqueue.Group:
    """Make a group with a number of queues, synced once at the end; one in `every` has a task."""
    group = fsqueue.Group.create(path, shards=1, durability="none")
    directory = GroupDirectory(path)
    fs = directory.fs
    fs.sync_directory, fs.fsync = lambda path: None, lambda fd: None  # type: ignore[method-assign]
    for number in range(queues):
        directory.begin(names.queue_directory(f"site{number}.example#fetch"))
        if is_worked_off:
            with fsqueue.Group(path) as opened:
                queue = opened[f"site{number}.example#fetch"]
                queue.insert_many([PAYLOAD, PAYLOAD])
                for task in queue.lease(2):
                    task.complete()
    os.sync()
    for number in range(0, queues, every):
        group[f"site{number}.example#fetch"].insert(number)
    return group


def least_s(rounds: int, *actions: Callable[[], object]) -> list[float]:
    """The least CPU time of each action, by turns."""
    found = [float("inf")] * len(actions)
    for _ in range(rounds):
        for place, action in enumerate(actions):
            begin = time.process_time()
            action()
            found[place] = min(found[place], time.process_time() - begin)
    return found


def scan(path: str) -> int:
    """The floor: names and kinds of all entries."""
    with os.scandir(path) as entries:
        return sum(entry.is_dir(follow_symlinks=False) for entry in entries)


def counted(group: fsqueue.Group, looks: int) -> dict[str, Any]:
    """What idle looks cost, after a full one: opens of files and seconds a look; and what the full one took."""
    selected = group.matching(".*")
    begin = time.perf_counter()
    taken = 0
    while tasks := selected.lease(100):
        taken += len(tasks)
        for task in tasks:
            task.complete()
    full_s = time.perf_counter() - begin
    opens = 0
    look = Filesystem.look

    def counting(self: Filesystem, path: str, flags: int = os.O_RDONLY) -> int:
        nonlocal opens
        opens += 1
        return look(self, path, flags)

    Filesystem.look = counting  # type: ignore[method-assign]
    try:
        begin = time.perf_counter()
        for _ in range(looks):
            selected.lease()
            time.sleep(1.0)
        per_s = opens / (time.perf_counter() - begin)
    finally:
        Filesystem.look = look  # type: ignore[method-assign]
    return {"tasks": taken, "full_look_s": full_s, "idle_opens_per_s": per_s, "bells_per_s_max": members.BELLS_PER_S}


def starts(path: str, queues: int, rounds: int) -> dict[str, Any]:
    """How long lessees take that begin, in a group without tasks, until they have the task of some queue, or a new one.

    Seconds, and CPU seconds, of the slowest of the rounds.
    """
    group = fsqueue.Group(path)
    found = dict.fromkeys(("start_some_s", "start_some_cpu_s", "start_new_s", "start_new_cpu_s"), 0.0)

    def measure(name: str, early_s: float) -> None:
        begin, cpu = time.perf_counter() + early_s, time.process_time()
        [task] = fsqueue.Group(path).matching(".*").lease(wait_s=600)
        found[f"{name}_s"] = max(found[f"{name}_s"], time.perf_counter() - begin)
        found[f"{name}_cpu_s"] = max(found[f"{name}_cpu_s"], time.process_time() - cpu)
        task.complete()

    for turn in range(rounds):
        group[f"site{random.randrange(queues)}.example#fetch"].insert(turn)
        measure("start_some", 0)
        inserted = threading.Timer(0.2, lambda turn=turn: group[f"new{turn}.example#fetch"].insert(turn))
        inserted.start()
        measure("start_new", 0.2)
    return found


def waits(path: str, queues: int, count: int) -> dict[str, Any]:
    """How long a lessee that waits takes until it has the task that another process inserts into some queue.

    Seconds, of the slowest and of the median of `count` inserts. The lessee's first look at all queues comes before.
    """
    reading, writing = os.pipe()
    lessee = os.fork()
    if lessee == 0:
        for task in fsqueue.Group(path).matching(".*").poll(until="forever"):
            os.write(writing, f"{task.payload} {time.time()}\n".encode())
            task.complete()
        os._exit(0)
    group, found = fsqueue.Group(path), []
    try:
        with open(reading) as leased:
            for turn in range(count + 1):
                begin = time.time()
                group[f"site{random.randrange(queues)}.example#fetch"].insert(f"wait{turn}")
                line = next(line for line in leased if line.startswith(f"wait{turn} "))
                found.append(float(line.split()[1]) - begin)
                time.sleep(IDLE_S + random.uniform(0, BELL_S[1]))
    finally:
        os.kill(lessee, signal.SIGKILL)
        os.waitpid(lessee, 0)
        os.close(writing)
    return {"wait_first_s": found[0], "wait_s": max(found[1:]), "wait_median_s": statistics.median(found[1:])}


def pairs(place: str, rounds: int, count: int) -> dict[str, Any]:
    """What a pair costs in a plain queue, and how many times that over 64 and 100 queues: one has tasks, or all have.

    CPU seconds and ratios, of the cheapest of the rounds of `count` pairs.
    """
    plain = fsqueue.Queue.create(f"{place}/plain", durability="none")
    sources: dict[str, fsqueue.Queue | fsqueue.GroupQueues] = {"pair": plain}
    plain.insert_many([PAYLOAD] * (rounds * count + rounds))
    for queues in (members.OPEN_MAX, 100):
        for having in ("one has tasks", "all have tasks"):
            name = f"pair_{queues}_{having.partition(' ')[0]}"
            group = fsqueue.Group.create(f"{place}/{name}", durability="none")
            each = rounds * count // queues + 2 * rounds
            for number in range(queues):
                queue = group[f"q{number:03}"]
                if having == "all have tasks":
                    queue.insert_many([PAYLOAD] * each)
                elif number == queues // 2:
                    queue.insert_many([PAYLOAD] * (rounds * count + rounds))
                else:
                    queue.insert(PAYLOAD)
                    queue.lease()[0].complete()
                queue.close()
            sources[name] = group.matching(".*")
    found = dict.fromkeys(sources, float("inf"))
    for _ in range(rounds):
        for name, source in sources.items():
            source.lease()[0].complete()  # after a pause all queues are asked: not what is measured here
            begin = time.process_time()
            for _ in range(count):
                source.lease()[0].complete()
            found[name] = min(found[name], (time.process_time() - begin) / count)
    pair_s = found.pop("pair")
    return {"pair_cpu_us": pair_s * 1e6} | {f"{name}_ratio": cpu_s / pair_s for name, cpu_s in found.items()}


def by_name(place: str, rounds: int, count: int) -> dict[str, Any]:
    """How many times what it costs with a queue that is held, `group[name]` takes in a loop: an insert, and a pair.

    Ratios of CPU times, of the cheapest of the rounds of `count`, by turns.
    """
    group = fsqueue.Group.create(f"{place}/named", durability="none")
    held = group["q"]
    ratios = {}
    for verb, of_held, of_named in (
        ("insert", lambda: held.insert(PAYLOAD), lambda: group["q"].insert(PAYLOAD)),
        ("pair", lambda: held.lease()[0].complete(), lambda: group["q"].lease()[0].complete()),
    ):
        held_s, named_s = least_s(rounds, *(partial(repeated, one, count) for one in (of_held, of_named)))
        ratios[f"named_{verb}_ratio"] = named_s / held_s
    return ratios


def repeated(action: Callable[[], object], count: int) -> None:
    for _ in range(count):
        action()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench-groups", description=__doc__.partition("\n")[0])
    parser.add_argument("--queues", type=int, default=QUEUES, help=f"queues in the group [{QUEUES:,}]")
    parser.add_argument("--with-task", type=int, default=1000, metavar="N", help="every N-th has a task [1000]")
    parser.add_argument("--worked-off", action="store_true", help="each queue has had tasks [they never had any]")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--looks", type=int, default=5, help="idle looks, one a second [5]; 0: no looks, no starts")
    parser.add_argument("--waits", type=int, default=0, metavar="N", help="inserts for an idle lessee, 33 s each [0]")
    parser.add_argument("--pairs", type=int, default=2000, help="pairs a round [2000]; 0: measure none")
    parser.add_argument("--place", help="the directory to work in [that of temporary files]")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    place = tempfile.mkdtemp(prefix="fsqueue-groups-", dir=given.place)
    try:
        path = f"{place}/group"
        begin = time.perf_counter()
        group = make(path, given.queues, given.with_task, given.worked_off)
        made_s = time.perf_counter() - begin
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        counts = [0, 0, 0]

        def listing(place: int, match: str | None, tasks_min: int) -> Callable[[], object]:
            """Return what lists queues as a user does, and notes how many there were."""

            def list_them() -> None:
                counts[place] = sum(1 for _ in group.queues(match, tasks_min=tasks_min))

            return list_them

        floor_s, all_s, some_s, with_tasks_s = least_s(
            given.rounds,
            lambda: scan(path),
            listing(0, None, 0),
            listing(1, PATTERN, 0),
            listing(2, None, 1),
        )
        after_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found: dict[str, Any] = {
            "queues": given.queues,
            "made_s": made_s,
            "scandir_s": floor_s,
            "all_found": counts[0],
            "all_s": all_s,
            "all_ratio": all_s / floor_s,
            "pattern_found": counts[1],
            "pattern_s": some_s,
            "pattern_ratio": some_s / floor_s,
            "with_tasks_found": counts[2],
            "with_tasks_s": with_tasks_s,
            "with_tasks_us_a_queue": with_tasks_s / given.queues * 1e6,
            "memory_kib": after_kib - before_kib,
        }
        if given.looks:
            found |= counted(group, given.looks)
            found |= starts(path, given.queues, given.rounds)
            found["memory_with_looks_kib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
        if given.waits:
            found |= waits(path, given.queues, given.waits)
        if given.pairs:
            found |= pairs(place, given.rounds, given.pairs)
            found |= by_name(place, given.rounds, given.pairs)
    finally:
        shutil.rmtree(place)
    if given.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:<24}{value:>14,.3f}" if isinstance(value, float) else f"{name:<24}{value:>14,}")


if __name__ == "__main__":
    main(sys.argv[1:])
