"""A worker of the demonstration: takes source files from the queue, measures each, writes down what it found.

    python work.py QUEUE RESULTS.jsonl [PACE_S]

This is all that a program needs to be a worker. Any number of them may run, on any host that has the directory
mounted, and each may be killed at any moment: what it had not completed comes back by itself when its lease ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path

from fsqueue import Queue


def measure(path: str) -> dict[str, object]:
    """The SHA-256 of a file and its number of lines (of newlines, as `wc -l` counts them)."""
    content = Path(path).read_bytes()
    return {"path": path, "sha256": hashlib.sha256(content).hexdigest(), "lines": content.count(b"\n")}


def main(queue_path: str, results_path: str, pace_s: str = "0") -> None:
    with Queue(queue_path) as queue, open(results_path, "ab", buffering=0) as results:
        for task in queue.poll(prefetch=8, until="drained"):
            with task:  # leaving this block completes the task; an exception fails it, and the loop goes on
                results.write(json.dumps(measure(task.payload["path"])).encode() + b"\n")
                os.fsync(results.fileno())  # the result is on the disk before the task counts as done
                time.sleep(float(pace_s))


if __name__ == "__main__":
    main(*sys.argv[1:])
