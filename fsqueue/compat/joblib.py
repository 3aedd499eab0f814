"""A backend of joblib: its calls, and so those of scikit-learn and others that use it, are tasks of a queue.

Importing this module registers it: ``joblib.parallel_config(backend="fsqueue", path="/scratch/me/q")``. What joblib
wants of a backend is in the documentation of its `ParallelBackendBase`. docs/joblib.md has the rest.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

try:
    from joblib import cpu_count, register_parallel_backend
    from joblib.parallel import AutoBatchingMixin, ParallelBackendBase
except ImportError:
    raise ImportError("fsqueue.compat.joblib needs joblib: pip install 'fsqueue-tasks[joblib]'") from None

import fsqueue

NAME = "fsqueue"
"""What `parallel_config` and `Parallel` call the backend."""
JOBS_MIN = 2
"""Number of jobs that n_jobs=-1 means at least. For a single one joblib would make the calls itself."""


class FsqueueBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]  # joblib has no types
    """Have batches of joblib's calls done by the workers of a queue.

    path: the queue's directory, a `Queue`, or one of a group or at a gateway. It keeps a history.
    workers: how many processes of a worker on this host do calls. 0: workers that others start do them
        (`fsqueue run QUEUE --load fsqueue.pickled`), as this user.
    processes: how many processes of workers there are on all hosts: what `n_jobs=-1` means. `workers` unless it is
        given, or this host's number of processors.
    files: where long arguments and results are written. See `fsqueue.Executor`.
    """

    supports_retrieve_callback = True
    uses_threads = False
    supports_sharedmem = False
    default_n_jobs = -1

    def __init__(
        self,
        path: Any = None,
        workers: int = 0,
        processes: int = 0,
        files: str | os.PathLike[str] | None = None,
        **of_joblib: Any,
    ) -> None:
        super().__init__(**of_joblib)
        if path is None:
            raise fsqueue.InvalidArgument(
                'The backend needs a queue: parallel_config(backend="fsqueue", path="/scratch/me/q").'
            )
        self._path, self._workers, self._files = path, workers, files
        self._processes = processes or workers or cpu_count()
        self._lock = threading.Lock()
        self._executor: fsqueue.Executor | None = None

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return how many batches are under way at a time."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None:
            return 1
        return n_jobs if n_jobs > 0 else max(self._processes + 1 + n_jobs, JOBS_MIN)

    def configure(self, n_jobs: int | None = 1, parallel: Any = None, **of_joblib: Any) -> int:
        """Be ready for calls of `parallel`."""
        self.parallel = parallel
        self._opened()
        return self.effective_n_jobs(n_jobs)

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], Any] | None = None) -> Any:
        """Insert a batch of calls. Return its future."""
        future = self._opened().submit(func)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Any) -> Any:
        """Return what a batch has returned, or raise what it has raised."""
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel the batches that no worker holds. Those that one holds go on, and nobody hears of them."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)

    def terminate(self) -> None:
        """End what a call of Parallel has used. An own worker stays for the next call: to start one takes time."""
        if not self._workers:
            self.abort_everything()

    def _opened(self) -> fsqueue.Executor:
        with self._lock:
            if self._executor is None:
                self._executor = fsqueue.Executor(self._path, workers=self._workers, pickle=True, files=self._files)
            return self._executor


register_parallel_backend(NAME, FsqueueBackend)
