"""Ten mistakes, each on a line that says so: type checkers must find these ten, and nothing else. Never run."""
# pyright: strict

from __future__ import annotations

import asyncio
import os

import fsqueue
from fsqueue import Queue

queue = Queue("/scratch/tiles")
[task] = queue.lease()

fsqueue.Quue("/scratch/tiles")  # MISTAKE: a misspelt name
queue.instert({"tile": 1})  # MISTAKE: a misspelt verb
queue.insert({"tile": 1}, delay=5)  # MISTAKE: a misspelt option
queue.poll(until="drianed")  # MISTAKE: a misspelt end
queue.tasks("finished")  # MISTAKE: no such state
Queue.create("/scratch/more", durability="high")  # MISTAKE: no such durability
queue.release_all(worker=os.environ.get("WORKER"))  # MISTAKE: perhaps None
queue.complete(task.id)  # MISTAKE: an id, where a task is meant
print(task.payloads)  # MISTAKE: a misspelt attribute


async def work() -> None:
    for _ in queue.poll_async():  # MISTAKE: no `async`
        pass


asyncio.run(work())
