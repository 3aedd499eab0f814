"""`fsqueue.Executor`: the interface of PEP 3148, with a queue in the place of a pool (docs/executor.md)."""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fsqueue import functions
from fsqueue.arguments import whole
from fsqueue.clock import Clock
from fsqueue.errors import InvalidArgument
from fsqueue.executor import named_calls
from fsqueue.executor.calls import NamedFunction
from fsqueue.executor.pending_calls import PendingCalls, StartWorker
from fsqueue.executor.slurm_jobs import JobOptions, SlurmJobs
from fsqueue.executor.task_future import ResultUnpacker, TaskFuture
from fsqueue.forks import Late
from fsqueue.groups.queue import GroupQueue
from fsqueue.queue import Queue
from fsqueue.worker.started_worker import FunctionList, StartedWorker

if TYPE_CHECKING:
    from fsqueue import pickled
else:
    pickled = Late("fsqueue.pickled")

T = TypeVar("T")
Pack = Callable[[Sequence[Any], Mapping[str, Any]], tuple[Any, ResultUnpacker | None]]
"""Make a call of arguments."""


class Executor(concurrent.futures.Executor):
    """Execute calls of functions as tasks of a queue, by workers on any host. Its futures are `concurrent.futures`'s.

    ``with fsqueue.Executor(path, workers=4) as ex: list(ex.map(f, items))``. docs/executor.md has what differs from
    the executors of Python.

    queue: a queue, also of a group or at a gateway, or the path of one. It keeps a history.
    workers: how many calls are executed at a time by a worker that this executor starts on this host, and ends. 0: by
        the workers that others start (`fsqueue run QUEUE --load MODULE`), of functions that `@fsqueue.task` registers.

    pickle: pickle functions, arguments and results, by cloudpickle, so that they may be any; and sign them with a key
        that only this user has. Other workers than its own load `fsqueue.pickled`, as this user (docs/joblib.md).
    files: with `pickle`, the directory in which long arguments and results are written, under the same path for all
        workers. The directory that holds the queue, or its group, unless another one is given.

    Raises InvalidArgument, QueueNotFound.
    """

    def __init__(
        self,
        queue: Any,
        *,
        workers: int = 0,
        slurm: Mapping[str, Any] | None = None,
        pickle: bool = False,
        files: str | os.PathLike[str] | None = None,
    ) -> None:
        whole("workers", workers, 0)
        options = None if slurm is None else JobOptions(slurm)
        if workers and options is not None:
            raise InvalidArgument(
                "An executor has either workers on this host (workers) or jobs of Slurm (slurm). Leave one of them "
                "out. Other workers of the queue may be started beside either."
            )
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
        if options is not None and not isinstance(opened, Queue):
            raise InvalidArgument(
                "slurm submits jobs that open the queue's directory, and a gateway's queue has none here. Leave it "
                "out, and submit workers with 'fsqueue slurm PATH --load MODULE' where the directory is."
            )
        if files is not None and not pickle:
            raise InvalidArgument(
                "files is the directory for what pickled calls take and return. Say pickle=True, too."
            )
        self._pickles = pickled.Pickles(_place_of(opened) if files is None else os.fspath(files)) if pickle else None
        self._named: dict[Callable[..., Any], NamedFunction] = {}
        self._listed = FunctionList() if workers else None
        self._workers, self._queue = workers, opened
        if pickle and options is not None and options.modules is not None:
            options.modules.append(pickled.call.__module__)
        self._jobs = None if options is None else SlurmJobs(_operand(opened), options, opened.status)
        self._calls = PendingCalls(self, opened, *_starting(opened, workers, self._listed), self._jobs)
        self._where = str(getattr(opened, "path", opened))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> TaskFuture:
        """Insert a call of a function, and return its future.

        It is inserted together with others that are submitted within some milliseconds, 50 at most; at once if
        somebody waits for its result. InvalidArgument if workers cannot find the function, InvalidTask for arguments
        that do not fit it, or that JSON cannot hold; InvalidArgument, too, in a worker that just imports the module of
        a function. RuntimeError after `shutdown`, BrokenExecutor if the own worker does not
        live.
        """
        payload, packed = self._packer(fn)(args, kwargs)
        return self._calls.submit(payload, packed)

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
        now = Clock().monotonic
        ends = None if timeout is None else now() + timeout
        calls: list[Any] = []
        if self._pickles is None:
            task = self._name(fn).task
            calls += self._calls.insert_mapped([task(args, {}) for args in zip(*iterables, strict=False)])
        else:
            calls += self.submit_many(fn, *iterables)

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

    def submit_many(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], name: str | None = None
    ) -> list[TaskFuture]:
        """Insert a call for each group of items, as `map` does, and return their futures, in the order of the items.

        name: of the calls, as of a commit. All are inserted or none, once. A program that calls this again under the
        same name, with the same function and items, inserts nothing, and gets futures of the calls that are there: in
        another process, on another host, after the first one was killed. InvalidArgument if the name is that of others.
        A purge of the queue frees the name.
        """
        pack = self._packer(fn)
        queue, insert = self._queue, None
        payloads: list[Any] = []
        packed: list[ResultUnpacker | None] = []
        if name is not None:
            if self._pickles is not None:
                raise InvalidArgument(
                    "Pickled calls have no name: two pickles of one call may differ, so it could not be found again. "
                    "Leave the name out, or use an executor that does not pickle."
                )
            if not isinstance(queue, Queue):
                raise InvalidArgument(
                    "Calls have no name at a gateway: which tasks are theirs is read in the queue's directory. Leave "
                    "the name out, or open the queue by its path."
                )
            insert = partial(named_calls.insert_once, queue, name, payloads)
        try:
            for args in zip(*iterables, strict=False):
                payload, one = pack(args, {})
                payloads.append(payload)
                packed.append(one)
            return self._calls.insert(payloads, packed) if insert is None else self._calls.take(packed, insert)
        except BaseException:
            for one in packed:
                if one is not None:
                    one.end()
            raise

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. With `wait`, return when all have ended, and the own worker has.

        Without it, that happens behind the caller's back. `cancel_futures`: cancel what no worker holds.
        """
        thread = self._calls.shut(cancel_futures)
        if wait and thread is not None:
            thread.join()

    def _packer(self, function: Callable[..., Any]) -> Pack:
        """Return what makes calls of a function: the payload of each, and what its future unpacks the result with."""
        pickles = self._pickles
        if pickles is None:
            task = self._name(function).task
            return lambda args, kwargs: (task(args, kwargs), None)
        self._name(pickled.call)

        def pack(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ResultUnpacker | None]:
            packed = pickles.pack(function, args, kwargs)
            return packed.payload, packed

        return pack

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
                    if self._jobs is None
                    else f"Jobs of Slurm call only functions that are registered, and {named.name} is not. Put "
                    "@fsqueue.task before it; or let the executor pickle calls of any function: pickle=True."
                )
            if self._jobs is not None:
                self._jobs.need(named.module, named.name)
            self._named[function] = named
        return named

    def __repr__(self) -> str:
        own = f"{self._workers} own workers" if self._jobs is None else "own jobs of Slurm"
        return f"<fsqueue.Executor of {self._where}, {own}>"


def _operand(queue: Queue) -> str:
    """Return how commands name a queue."""
    if isinstance(queue, GroupQueue):
        return os.path.join(os.path.abspath(queue.group.path), queue.name)
    return os.path.abspath(queue.path)


def _place_of(queue: Any) -> str | None:
    """Return the directory that holds a queue, or the group that it is in; None at a gateway."""
    if not isinstance(queue, Queue):
        return None
    return os.path.dirname(os.path.dirname(queue.path) if isinstance(queue, GroupQueue) else queue.path)


def _starting(
    queue: Any, workers: int, listed: FunctionList | None
) -> tuple[StartWorker | None, Callable[[], object], Callable[[], object]]:
    """Return what starts an own worker, or None if there is none to start; what to call when it has ended; and what has
    it hear of the next insert at once.
    """
    if listed is None:
        return None, lambda: None, lambda: None
    path = os.path.abspath(queue.path)

    def start(told: Callable[[list[str]], object]) -> StartedWorker:
        queue.insert_many([])  # a queue of a group comes into being
        return StartedWorker(path, workers, listed.names, told)

    return start, listed.close, lambda: queue.store.doorbell.ring_next_time()
