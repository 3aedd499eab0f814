"""MapReduce: how often each word occurs in a tree of Python sources, also if workers are killed meanwhile.

    python examples/mapreduce.py /usr/lib/python3 /scratch/me/words --workers 4 --kill 3

The first argument is a directory of sources, the second a new directory for a group. A map task counts the words of a
few files. In one step with its completion it inserts what it has counted: a task, or several, for each partition of the
words. When the map stage is drained, nothing can come any more into a partition: a reduce task for each adds up what is
there. It completes all of that, and inserts the totals, in one update. So each file counts exactly once. `--kill N`
kills N workers at random, with SIGKILL; the program starts others in their place.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import fsqueue

PARTITIONS = 4
FILES_A_TASK = 4
WORDS_A_TASK = 1000
"""A task that is inserted by an update may take 64 KiB."""
WORD = re.compile(rb"[A-Za-z_][A-Za-z_0-9]{2,31}")


def count(files: Iterable[str]) -> Counter[str]:
    """Count the words in some files."""
    words: Counter[str] = Counter()
    for name in files:
        words.update(match.decode() for match in WORD.findall(Path(name).read_bytes()))
    return words


def pieces(words: dict[str, int]) -> Iterator[dict[str, int]]:
    """Cut counts into pieces that fit into a task."""
    items = sorted(words.items())
    for first in range(0, len(items), WORDS_A_TASK):
        yield dict(items[first : first + WORDS_A_TASK])


def map_files(payload: list[str]) -> Any:
    """Count the words of some files, and insert the counts of each partition's words into its queue."""
    parts: dict[int, dict[str, int]] = {}
    for word, times in count(payload).items():
        parts.setdefault(zlib.crc32(word.encode()) % PARTITIONS, {})[word] = times
    return fsqueue.Then(inserts=[(f"part-{part}", piece) for part, words in parts.items() for piece in pieces(words)])


def reduce_part(group: fsqueue.Group, part: int) -> None:
    """Add up what is in a partition, complete all of it, and insert the totals: in one step."""
    tasks = group[f"part-{part}"].lease(5000)
    words: Counter[str] = Counter()
    for task in tasks:
        words.update(task.payload)
    with group.update() as update:
        for task in tasks:
            update.complete(task)
        for piece in pieces(words):
            update.insert("totals", piece)


def worker(place: str) -> None:
    """Take part: map until that stage is drained."""
    fsqueue.Worker(fsqueue.Group(place)["map"], map_files).run()


def main(sources: str, place: str, workers: int, kills: int) -> Counter[str]:
    """Start workers, kill some, reduce what they have made, and return the totals."""
    group = fsqueue.Group.create(place, lease_s=60, max_attempts=20)
    files = sorted(map(str, Path(sources).rglob("*.py")))
    group["map"].insert_many(files[first : first + FILES_A_TASK] for first in range(0, len(files), FILES_A_TASK))

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, __file__, "worker", place])

    at_work = [start() for _ in range(workers)]
    moments = sorted(random.sample(range(1, len(files) // FILES_A_TASK), kills))

    def kill_some(status: fsqueue.Status) -> None:
        """Kill a worker each time when another random number of tasks is completed."""
        while moments and status.completed >= moments[0]:
            moments.pop(0)
            victim = random.randrange(len(at_work))
            at_work[victim].kill()
            at_work[victim].wait()
            at_work[victim] = start()

    group["map"].wait(poll=kill_some)  # then nothing comes into the partitions any more
    for one in at_work:
        one.wait()
    print(f"killed {kills - len(moments)} workers", file=sys.stderr)
    for part in range(PARTITIONS):
        reduce_part(group, part)
    words: Counter[str] = Counter()
    for task in group["totals"].tasks():
        words.update(task.payload)
    return words


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(sys.argv[2])
    else:
        parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
        parser.add_argument("sources")
        parser.add_argument("place")
        parser.add_argument("--workers", type=int, default=4)
        parser.add_argument("--kill", type=int, default=0)
        given = parser.parse_args()
        for word, times in main(given.sources, given.place, given.workers, given.kill).most_common(10):
            print(f"{times:>8} {word}")
