"""Many processes with many threads each. They are forked, so that Python need not start for each of them."""

from __future__ import annotations

import multiprocessing
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

clock = time.perf_counter_ns

START_NS = 50_000_000
"""How long after the last process was ready all begin."""
GRACE_S = 120
"""How much longer than its budget a crowd may take before it is stopped."""

Start = Callable[[], int]
"""Called by a process when it is ready. Returns when all are, at one moment, and returns that moment."""
IsOver = Callable[[], bool]
Work = Callable[[Start, IsOver], Any]
"""What a process does. `IsOver`: whether those whose end ends the others have ended."""


class CrowdFailed(Exception):
    """A process of a crowd broke, or did not end in time; the message is the end of what it said."""


def _child(work: Work, pipe: Connection, over: Any) -> None:
    def start() -> int:
        pipe.send(("ready", None))
        moment = int(pipe.recv())
        time.sleep(max(0, moment - clock()) / 1e9)
        return moment

    try:
        pipe.send(("done", work(start, over.is_set)))
    except BaseException:
        pipe.send(("failed", traceback.format_exc().strip().splitlines()[-1]))


def run(works: Sequence[Work], budget_s: float, until: int = 0) -> list[Any]:
    """Run each in a process of its own; return what they returned, in their order.

    `until`: when so many of them, the first, have ended, the others are told that it is over.
    """
    forking = multiprocessing.get_context("fork")
    over = forking.Event()
    pipes: list[Connection] = []
    processes = []
    deadline = time.monotonic() + budget_s + GRACE_S
    try:
        for work in works:
            mine, theirs = forking.Pipe()
            process = forking.Process(target=_child, args=(work, theirs, over), daemon=True)
            process.start()
            theirs.close()
            pipes.append(mine)
            processes.append(process)
        for pipe in pipes:
            _receive(pipe, deadline, "ready")
        moment = clock() + START_NS
        for pipe in pipes:
            pipe.send(moment)
        results: dict[int, Any] = {}
        while len(results) < len(pipes):
            left = [pipe for place, pipe in enumerate(pipes) if place not in results]
            ready = wait(left, max(0.0, deadline - time.monotonic()))
            if not ready:
                raise CrowdFailed("it did not end in time")
            for place, pipe in enumerate(pipes):
                if pipe in ready:
                    results[place] = _receive(pipe, deadline, "done")
            if until and all(place in results for place in range(until)):
                over.set()
        return [results[place] for place in range(len(works))]
    finally:
        for process in processes:
            if process.is_alive():
                process.join(0.2)
            if process.is_alive():
                process.kill()
            process.join()
        for pipe in pipes:
            pipe.close()


def _receive(pipe: Connection, deadline: float, wanted: str) -> Any:
    try:
        if not pipe.poll(max(0.0, deadline - time.monotonic())):
            raise CrowdFailed("a process was not ready in time")
        kind, what = pipe.recv()
    except (EOFError, ConnectionResetError):
        raise CrowdFailed("a process ended without an answer") from None
    if kind != wanted:
        raise CrowdFailed(str(what))
    return what


def in_threads(count: int, act: Callable[[int], Any]) -> list[Any]:
    """Do it in so many threads, each with its number; return what they returned. The first error is raised."""
    if count == 1:
        return [act(0)]
    results: list[Any] = [None] * count
    errors: list[BaseException] = []

    def one(number: int) -> None:
        try:
            results[number] = act(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
