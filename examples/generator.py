"""A task that inserts the next hundred tasks as it completes: a queue that holds little, however long the list is.

    python examples/generator.py /scratch/me/squares 1000

The first argument is a new directory for a group, the second how many numbers to square. A generator task inserts a
hundred numbers and the next generator task, in one step with its own completion: so no number is left out or queued
twice, wherever a worker dies. All of it goes into the log of one batch, with a single write.
"""

from __future__ import annotations

import sys
from typing import Any

import fsqueue

STEP = 100


def work(payload: dict[str, int]) -> Any:
    """Square a number; or insert the next STEP numbers, from `next` on, and a task that goes on behind them."""
    if "square" in payload:
        return payload["square"] ** 2
    first, last = payload["next"], min(payload["next"] + STEP, payload["end"])
    numbers = [("squares", {"square": number}) for number in range(first, last)]
    more = [("squares", {"next": last, "end": payload["end"]})] if last < payload["end"] else []
    return fsqueue.Then(inserts=[*more, *numbers])


def main(place: str, count: int) -> None:
    """Square the numbers below `count`, and print their sum."""
    queue = fsqueue.Group.create(place, exist_ok=True)["squares"]
    queue.insert({"next": 0, "end": count})
    fsqueue.Worker(queue, work).run()
    squares = [one.result for one in queue.results() if one.result is not None]
    print(f"{len(squares)} numbers, the sum of their squares is {sum(squares)}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
