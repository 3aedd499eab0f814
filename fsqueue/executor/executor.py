"""`fsqueue.Executor`: the interface of PEP 3148, with a queue in the place of a pool (docs/executor.md)."""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from fsqueue import functions
from fsqueue.arguments import whole
from fsqueue.clock import Clock
from fsqueue.errors import InvalidArgument
from fsqueue.executor.calls import NamedFunction
from fsqueue.executor.pending_calls import PendingCalls, StartWorker
from fsqueue.executor.task_future import TaskFuture
from fsqueue.queue import Queue
from fsqueue.worker.started_worker import FunctionList, StartedWorker

T = TypeVar("T")


class Executor(concurrent.futures.Executor):
    """Execute calls of functions as tasks of a queue, by workers on any host. Its futures are `concurrent.futures`'s.

    ``with fsqueue.Executor(path, workers=4) as ex: list(ex.map(f, items))``. docs/executor.md has what differs from
    the executors of Python.

    queue: a queue, also of a group or at a gateway, or the path of one. It keeps a history.
    workers: how many calls are executed at a time by a worker that this executor starts on this host, and ends. 0: by
        the workers that others start (`fsqueue run QUEUE --load MODULE`), of functions that `@fsqueue.task` registers.

    Raises InvalidArgument, QueueNotFound.
    """

    def __init__(self, queue: Any, *, workers: int = 0) -> None:
        whole("workers", workers, 0)
        opened = queue if hasattr(queue, "insert_many") else Queue(queue)
        if not opened.settings.keep_history:
            raise InvalidArgument(
                f"{queue} keeps no history (--no-history), so nothing would tell what a call has returned. Give the "
                "executor another queue."
            )
        if workers and not isinstance(opened, Queue):
            raise InvalidArgument(
                "workers starts processes that open the queue's directory, and a gateway's queue has none here. Leave "
                "it out, and start workers with 'fsqueue run ADDRESS --load MODULE'."
            )
        self._named: dict[Callable[..., Any], NamedFunction] = {}
        self._listed = FunctionList() if workers else None
        self._workers = workers
        self._calls = PendingCalls(self, opened, *_starting(opened, workers, self._listed))
        self._where = str(getattr(opened, "path", opened))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> TaskFuture:
        """Insert a call of a function, and return its future.

        It is inserted together with others that are submitted within some milliseconds, 50 at most; at once if
        somebody waits for its result. InvalidArgument if workers cannot find the function, InvalidTask for arguments
        that do not fit it, or that JSON cannot hold; InvalidArgument, too, in a worker that just imports the module of
        a function. RuntimeError after `shutdown`, BrokenExecutor if the own worker
        does not live.
        """
        return self._calls.submit(self._name(fn).task(args, kwargs))

    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]:
        """Insert a call for each group of items, as `Queue.insert_many` does, and return an iterator of their results.

        In the order of the items. All items are read, and all calls are inserted, before this returns. TimeoutError
        from the iterator if a result is not there `timeout` seconds after this call. What has not begun is cancelled
        if the iterator is closed, or breaks off. `chunksize` changes nothing: calls are inserted, leased and told of
        many at a time anyway. Errors: see `submit`.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        named, now = self._name(fn), Clock().monotonic
        ends = None if timeout is None else now() + timeout
        calls = self._calls.insert([named.task(args, {}) for args in zip(*iterables, strict=False)])

        def results() -> Iterator[Any]:
            calls.reverse()
            try:
                while calls:
                    result = calls[-1].result(None if ends is None else max(0.0, ends - now()))
                    calls.pop()
                    yield result
            finally:
                self._calls.cancel_soon(calls)
                calls.clear()  # they refer to this list, and it to them

        return results()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. With `wait`, return when all have ended, and the own worker has.

        Without it, that happens behind the caller's back. `cancel_futures`: cancel what no worker holds.
        """
        thread = self._calls.shut(cancel_futures)
        if wait and thread is not None:
            thread.join()

    def _name(self, function: Callable[..., Any]) -> NamedFunction:
        """Return how calls of a function name it. The own worker learns of it before the first call is inserted."""
        self._calls.refuse()
        if functions.loading.modules:
            raise InvalidArgument(
                f"A worker imports {functions.loading.modules[0]} to find a function, and the module submits calls "
                "while it is imported. Each worker would submit them once more. Put that below: if __name__ == "
                "'__main__':"
            )
        try:
            named = self._named.get(function)
        except TypeError:  # it has no hash
            named = None
        if named is None:
            named = NamedFunction(function)
            if self._listed is not None:
                self._listed.add(named.line)
            elif not named.is_registered:
                raise InvalidArgument(
                    f"Workers that others start call only functions that are registered, and {named.name} is not. Put "
                    f"@fsqueue.task before it, and start workers with 'fsqueue run {self._where} --load "
                    f"{named.module}'; or give the executor workers of its own: workers=N."
                )
            self._named[function] = named
        return named

    def __repr__(self) -> str:
        return f"<fsqueue.Executor of {self._where}, {self._workers} own workers>"


def _starting(queue: Any, workers: int, listed: FunctionList | None) -> tuple[StartWorker | None, Callable[[], object]]:
    """Return what starts an own worker, or None if there is none to start, and what to call when it has ended."""
    if listed is None:
        return None, lambda: None
    path = os.path.abspath(queue.path)

    def start(told: Callable[[list[str]], object]) -> StartedWorker:
        queue.insert_many([])  # a queue of a group comes into being
        return StartedWorker(path, workers, listed.names, told)

    return start, listed.close
