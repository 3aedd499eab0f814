"""LocalTaskQueue: tasks executed at once, in this process or in some of its own, without a queue on disk."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any

from tqdm import tqdm

from fsqueue.compat.tasks import AnyTask, FunctionTask, FunctionTaskLite, totask

Job = tuple[Callable[..., Any], list[Any], dict[str, Any], tuple[Any, ...], dict[str, Any]]
"""What makes and executes a task: function or class with its arguments, and those of `execute`."""


def is_one(given: Any) -> bool:
    """Return whether this is a single task, and not an iterable of tasks."""
    return isinstance(given, (str, bytes, dict, FunctionTaskLite)) or not hasattr(given, "__iter__")


def tasks_in(given: Any) -> Iterator[Any]:
    """Yield the tasks of an iterable; a single task, payload or JSON text is one."""
    if is_one(given):
        yield given
    else:
        yield from given


def count_of(given: Any, total: int | None) -> int | None:
    """Return how many tasks there are, for a progress bar; None if that is not known."""
    if total is not None or is_one(given):
        return total or 1
    return len(given) if hasattr(given, "__len__") else None


class LocalTaskQueue:
    """Executes tasks where it stands: `insert_all`, or `insert` and then `execute`.

    `parallel`: number of processes; True for one for each processor. Each imports the modules of its tasks anew. An
    exception of a task ends the call. Tasks that were inserted and not executed are lost with the process.
    """

    def __init__(
        self, parallel: int | bool = 1, queue_name: str = "", queue_server: str = "", progress: bool = True
    ) -> None:
        self.parallel = multiprocessing.cpu_count() if parallel is True else max(1, int(parallel))
        self.progress = bool(progress)
        self.queue: list[Job] = []

    def insert(
        self,
        tasks: Any,
        delay_seconds: float = 0,
        total: int | None = None,
        parallel: int | bool | None = None,
        progress: bool = True,
    ) -> int:
        """Keep tasks for `execute`, and return how many. A tuple is a task with arguments for its `execute`."""
        before = len(self.queue)
        for one in tasks_in(tasks):
            task, args, kwargs = one if type(one) is tuple else (one, (), {})
            self.queue.append(_job(totask(task), tuple(args), dict(kwargs)))
        return len(self.queue) - before

    def insert_all(self, *args: Any, **kwargs: Any) -> int:
        """Execute tasks, and return how many."""
        count = self.insert(*args, **kwargs)
        self.execute(self.progress)
        return count

    def execute(self, progress: bool = True, parallel: int | bool | None = None, total: int | None = None) -> None:
        """Execute what was inserted, in that order; each task leaves the queue when it is given out."""
        processes = self.parallel if parallel is None else int(parallel)
        jobs, self.queue = self.queue, []
        with tqdm(total=len(jobs), desc="Tasks", disable=not progress) as bar:
            if processes == 1:
                for job in jobs:
                    _execute(job)
                    bar.update()
                return
            with multiprocessing.get_context("spawn").Pool(processes) as pool:  # a fork could inherit a locked lock
                for _ in pool.imap(_execute, jobs):
                    bar.update()

    def add_insert_count(self, ct: int) -> None:
        """Do nothing: there is no counter."""

    def poll(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: `insert_all` and `execute` have executed the tasks."""

    def delete(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: a task that was executed is in no queue."""

    def purge(self, native: bool = False) -> None:
        """Drop what was inserted and not executed."""
        self.queue = []

    def is_empty(self) -> bool:
        """Return whether nothing is left to execute."""
        return not self.queue

    def __enter__(self) -> LocalTaskQueue:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.execute(self.progress)


class MockTaskQueue(LocalTaskQueue):
    """A LocalTaskQueue under another name."""


def _job(task: AnyTask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Job:
    """Return what another process can be given: functions and classes travel by their names."""
    if isinstance(task, FunctionTask):
        bound = task.tofunc()
        return bound.func, task.args, task.kwargs, (), {}
    attributes = task.payload()
    del attributes["class"]
    return type(task), [], attributes, args, kwargs


def _execute(job: Job) -> None:
    made, given, named, args, kwargs = job
    found = made(*given, **named)
    if isinstance(made, type):
        found.execute(*args, **kwargs)
