"""scripts/bench-results: CPU time and memory of `fsqueue results`, beside orjson reading and writing the same rows."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsqueue

BASE = """
import sys, orjson
with open(sys.argv[1], "rb") as rows, open(sys.argv[2], "wb") as out:
    for line in rows:
        out.write(orjson.dumps(orjson.loads(line), option=orjson.OPT_APPEND_NEWLINE))
"""


def measured(*command: str) -> tuple[float, float]:
    """Run a command; its CPU seconds (user and system) and its peak memory in MB."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


TEXT = 'He said: "It, too, is [null]." ' * 8
SHAPES: dict[str, tuple[Callable[[int], Any], Callable[[int], Any]]] = {
    "fields": (
        lambda seed: {"seed": seed, "rate": seed / 7, "name": f"sample-{seed}"},
        lambda seed: {"loss": 1 / (1 + seed), "ok": True},
    ),
    "numbers": (lambda seed: {"seed": seed, "rate": seed / 7}, lambda seed: seed / 3),
    "texts": (lambda seed: {"seed": seed, "text": f"{TEXT}{seed}"}, lambda seed: {"answer": f"{seed} {TEXT}"}),
    "nested": (
        lambda seed: {"seed": seed, "grid": {"x": [seed, seed / 7], "names": ["a", "b"]}},
        lambda seed: {"losses": [seed / 3, 1.0, None], "best": {"at": seed, "of": {"all": True}}},
    ),
    "failures": (
        lambda seed: {"seed": seed, "rate": seed / 7, "name": f"sample-{seed}"},
        lambda seed: {"loss": 1 / (1 + seed), "ok": True},
    ),
}
"""What the payloads and the results are like, made from a task's number. Of "failures", each third task fails once."""


def fill(path: str, tasks: int, shape: str = "fields") -> None:
    """Make a queue whose tasks are all completed, with payloads and results of a shape."""
    payload, result = SHAPES[shape]
    with fsqueue.Queue.create(path, durability="none", backoff_s=(0, 0)) as queue:
        queue.insert_many(map(payload, range(tasks)))
        while leased := queue.lease(500):
            for task in leased:
                if shape == "failures" and task.attempt == 1 and task.payload["seed"] % 3 == 0:
                    task.fail("no luck, this time", 0)
                else:
                    task.complete(result(task.payload["seed"]))


def main() -> None:
    """Measure each format a few times, and print the least."""
    made = argparse.ArgumentParser(prog="scripts/bench-results", description=__doc__)
    made.add_argument("--tasks", type=int, default=1_000_000, metavar="N", help="tasks in the queue (1000000)")
    made.add_argument("--repeat", type=int, default=3, metavar="K", help="the least of so many runs (3)")
    made.add_argument("--dir", metavar="DIR", help="below this directory (the system's temporary directory)")
    made.add_argument("--shape", choices=SHAPES, default="fields", help="what payloads and results are like (fields)")
    options = made.parse_args()
    home = Path(tempfile.mkdtemp(prefix="fsqueue-results-", dir=options.dir))
    try:
        queue = str(home / "queue")
        fill(queue, options.tasks, options.shape)
        found: dict[str, tuple[float, float]] = {}
        for name in ("out.jsonl", "out.csv", "out.parquet"):
            if name == "out.parquet" and not _has_pyarrow():
                continue
            command = (sys.executable, "-m", "fsqueue_cli", "results", queue, str(home / name))
            found[name] = min(measured(*command) for _ in range(options.repeat))
        base_command = (sys.executable, "-c", BASE, str(home / "out.jsonl"), str(home / "copy"))
        base = min(measured(*base_command) for _ in range(options.repeat))
        print("| what | CPU s | times | peak memory |\n|---|---:|---:|---:|")
        print(f"| orjson reads and writes the rows of out.jsonl | {base[0]:.2f} | 1 | {base[1]:.0f} MB |")
        for name, (cpu_s, memory) in found.items():
            print(f"| `fsqueue results Q {name}` | {cpu_s:.2f} | {cpu_s / base[0]:.1f} | {memory:.0f} MB |")
    finally:
        shutil.rmtree(home)


def _has_pyarrow() -> bool:
    import importlib.util

    return importlib.util.find_spec("pyarrow") is not None


if __name__ == "__main__":
    main()
