"""How long an idle worker takes to start a task that is inserted on its own host, by how long it has idled.

All workers of a case idle at the same time, each at a queue of its own, in threads of one process. The time is taken
from before the insert until the task's code runs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

Request = dict[str, Any]
Insert = Callable[[int], object]
"""Insert a task for the worker of that number."""
Started = tuple[Insert, Callable[[], object]]
"""How to insert, and how to stop the workers."""

GAP_S = 0.1
"""Between two inserts: for a worker to be idle again when the next one starts, as on a host with more cores."""
WARM_UP = 2
PATIENCE_S = 60.0
RUN_SHARE = 4
"""Of so many workers one, where each has a process of its own for its tasks."""

CASES = {"poll": "fsqueue", "run": "fsqueue", "consumer": "huey"}
"""Which system each case is of: `Queue.poll`; a worker as `fsqueue run` has it; huey's consumer."""

FIFO_VARIABLE = "FSQUEUE_BENCH_WAKE"
"""Tells tasks where to report."""


class Starts:
    """When each worker has started a task: tasks call `begun`, perhaps in many threads."""

    def __init__(self, workers: int) -> None:
        self.at = [0.0] * workers
        self._arrived = [threading.Event() for _ in range(workers)]

    def begun(self, worker: int, at: float) -> None:
        """Note that a worker's task has started."""
        self.at[worker] = at
        self._arrived[worker].set()

    def wait(self, worker: int) -> float:
        """Wait until the worker's task has started, and return when."""
        if not self._arrived[worker].wait(PATIENCE_S):
            raise RuntimeError(f"worker {worker} did not start its task within {PATIENCE_S:g} s")
        self._arrived[worker].clear()
        return self.at[worker]


def perform(request: Request) -> dict[str, Any]:
    """Start the workers of a case, let them idle, and return what each time of idling led to."""
    workers = max(1, request["workers"] // (RUN_SHARE if request["case"] == "run" else 1))
    starts = Starts(workers)
    insert, stop = STARTERS[request["case"]](request["path"], starts, workers)
    for _ in range(WARM_UP):  # all is loaded, and no queue is empty of files
        _round(insert, starts, workers, 0.2)
    rows = []
    for idle_s in request["idle_s"]:
        begun, spent = time.monotonic(), time.process_time()
        found = _round(insert, starts, workers, idle_s)
        cpu_ms = (time.process_time() - spent) / (time.monotonic() - begun) / workers * 1e3
        if idle_s < 10:
            found += _round(insert, starts, workers, idle_s)
        rows.append({"idle_s": idle_s, "samples_us": [round(one * 1e6) for one in found], "cpu_ms_a_s": cpu_ms})
    stop()
    return {"tasks": sum(len(row["samples_us"]) for row in rows), "idles": rows}


def _round(insert: Insert, starts: Starts, workers: int, idle_s: float) -> list[float]:
    """Let all idle, insert one task for each, and return how long each took to start, in seconds."""
    time.sleep(idle_s)
    inserted = []
    for worker in range(workers):
        inserted.append(time.monotonic())
        insert(worker)
        time.sleep(GAP_S)
    return [starts.wait(worker) - inserted[worker] for worker in range(workers)]


def poll(path: str, starts: Starts, workers: int) -> Started:
    """Start loops of `Queue.poll`."""
    import fsqueue

    queues = [fsqueue.Queue.create(f"{path}/{number}", allow_unsafe=True) for number in range(workers)]

    def work(worker: int) -> None:
        with fsqueue.Queue(queues[worker].path) as mine:
            for task in mine.poll(until="forever"):
                starts.begun(worker, time.monotonic())
                task.complete()

    for number in range(workers):
        threading.Thread(target=work, args=(number,), daemon=True).start()
    return lambda worker: queues[worker].insert(worker), lambda: None


def run(path: str, starts: Starts, workers: int) -> Started:
    """Start workers with a function, each with a process for it. The tasks report through a named pipe."""
    import fsqueue

    os.makedirs(path, exist_ok=True)
    fifo = f"{path}/starts"
    os.mkfifo(fifo)

    def listen() -> None:
        # For writing, too: else it would end whenever no task has it open.
        with os.fdopen(os.open(fifo, os.O_RDWR), encoding="ascii") as lines:
            for line in lines:
                worker, at = line.split()
                starts.begun(int(worker), float(at))

    threading.Thread(target=listen, daemon=True).start()
    os.environ[FIFO_VARIABLE] = fifo
    queues = [fsqueue.Queue.create(f"{path}/{number}", allow_unsafe=True) for number in range(workers)]
    made = [fsqueue.Worker(fsqueue.Queue(queue.path), report_start, until="forever") for queue in queues]
    threads = [threading.Thread(target=worker.run, daemon=True) for worker in made]
    for thread in threads:
        thread.start()

    def stop() -> None:
        for worker in made:
            worker.stop()
        for thread in threads:
            thread.join(PATIENCE_S)

    return lambda number: queues[number].insert(number), stop


def report_start(payload: int) -> None:
    """Say that the task has started: one write, which no other process's can divide."""
    at = time.monotonic()
    fd = os.open(os.environ[FIFO_VARIABLE], os.O_WRONLY)
    try:
        os.write(fd, f"{payload} {at}\n".encode())
    finally:
        os.close(fd)


def consumer(path: str, starts: Starts, workers: int) -> Started:
    """Start huey's consumers, with one worker each and the settings that they have by default."""
    import importlib

    huey: Any = importlib.import_module("huey")
    module: Any = importlib.import_module("huey.consumer")

    class Consumer(module.Consumer):  # type: ignore[misc]
        """A consumer in a thread: it leaves the signals alone."""

        def _set_signal_handlers(self) -> None:
            pass

    os.makedirs(path, exist_ok=True)

    def start(number: int) -> Callable[[], object]:
        mine = huey.SqliteHuey(filename=f"{path}/{number}.db", timeout=60)

        @mine.task()
        def task() -> None:
            starts.begun(number, time.monotonic())

        Consumer(mine, workers=1, periodic=False).start()
        insert: Callable[[], object] = task
        return insert

    inserts = [start(number) for number in range(workers)]
    return lambda worker: inserts[worker](), lambda: None


STARTERS: dict[str, Callable[[str, Starts, int], Started]] = {"poll": poll, "run": run, "consumer": consumer}
