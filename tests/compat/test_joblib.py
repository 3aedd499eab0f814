"""joblib's calls as tasks: what its documentation says of Parallel, with the backend "fsqueue"."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from joblib import Parallel, delayed, parallel_config

from fsqueue import InvalidArgument, Queue, pickled
from fsqueue.compat.joblib import FsqueueBackend
from tests.executor.called import double
from tests.executor.conftest import wait_for_threads
from tests.waiting import until

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def executors_end() -> Iterator[None]:
    """Let no executor of a backend go on beside the tests that follow: it ends once its backend is collected."""
    yield
    gc.collect()
    wait_for_threads()


@pytest.fixture(autouse=True)
def own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pickled.KEY_VARIABLE, str(tmp_path / "key"))


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue.create(tmp_path / "q", durability="none", backoff_s=(0.01, 0.01))


@pytest.fixture
def backend(queue: Queue) -> Iterator[FsqueueBackend]:
    made = FsqueueBackend(queue, workers=2)
    with parallel_config(backend=made):
        yield made
    made.abort_everything()


def test_the_module_registers_the_backend_and_its_workers_do_the_calls(queue: Queue) -> None:
    with parallel_config(backend="fsqueue", path=str(queue.path), workers=2):
        here = os.getpid()
        found = Parallel(n_jobs=-1)(delayed(lambda value: (os.getpid(), value + 1))(one) for one in range(20))
    assert [value for _, value in found] == [*range(1, 21)]
    assert here not in {pid for pid, _ in found}
    assert queue.status().completed > 0
    with pytest.raises(InvalidArgument, match="needs a queue"):
        Parallel(n_jobs=2, backend="fsqueue")


def test_what_parallel_documents_holds(backend: FsqueueBackend, capfd: pytest.CaptureFixture[str]) -> None:
    calls = [delayed(double)(one) for one in range(30)]
    wanted = [2 * one for one in range(30)]
    assert Parallel(n_jobs=2)(calls) == wanted
    assert Parallel(n_jobs=3, batch_size=7, pre_dispatch="all")(calls) == wanted
    assert [*Parallel(n_jobs=2, return_as="generator")(calls)] == wanted
    assert sorted(Parallel(n_jobs=2, return_as="generator_unordered")(calls)) == wanted
    assert Parallel(n_jobs=2)([]) == []
    assert Parallel(n_jobs=1)(calls) == wanted, "joblib makes these itself"
    with Parallel(n_jobs=2) as parallel:
        assert parallel(calls) == parallel(calls) == wanted
    capfd.readouterr()
    Parallel(n_jobs=2, verbose=10)(calls)
    assert " out of 30 | elapsed:" in capfd.readouterr().err, "joblib need not show the last one"


def test_nested_calls_are_made_in_the_worker(queue: Queue, backend: FsqueueBackend) -> None:
    def outer(count: int) -> tuple[int, set[int]]:
        found = Parallel(n_jobs=2)(delayed(lambda one: (one, os.getpid()))(one) for one in range(count))
        return sum(one for one, _ in found), {pid for _, pid in found} | {os.getpid()}

    found = Parallel(n_jobs=2, batch_size=1)(delayed(outer)(count) for count in range(5))
    assert [total for total, _ in found] == [0, 0, 1, 3, 6]
    assert all(len(pids) == 1 for _, pids in found)
    assert queue.status().inserted == 5


def test_an_exception_comes_with_its_type_and_ends_the_others(queue: Queue, backend: FsqueueBackend) -> None:
    with pytest.raises(ZeroDivisionError) as error:
        Parallel(n_jobs=2, batch_size=1)(delayed(lambda one: 1 / one)(one) for one in (1, 2, 0, *range(1, 50)))
    assert "in <lambda>" in str(error.value.__cause__)
    assert Parallel(n_jobs=2)(delayed(double)(one) for one in range(3)) == [0, 2, 4], "the backend goes on"
    assert queue.status().inserted < 30
    until(lambda: not queue.status().remaining, "what was at work")


def test_what_is_interrupted_is_cancelled(queue: Queue) -> None:
    """Ctrl-C raises where Parallel waits. No worker is there, so all of its tasks wait."""

    def interrupt() -> None:
        until(lambda: queue.status().waiting, "the first calls")
        raise KeyboardInterrupt

    parallel = Parallel(n_jobs=2, pre_dispatch=4, backend=FsqueueBackend(queue, processes=4))
    parallel._retrieve = lambda: iter(interrupt, None)
    with pytest.raises(KeyboardInterrupt):
        parallel(delayed(double)(one) for one in range(50))
    until(lambda: not queue.status().remaining, "the cancelling")
    status = queue.status()
    assert (status.completed, status.dead) == (0, 0)
    assert status.inserted <= 4


@pytest.mark.parametrize(("given", "jobs"), [(1, 1), (5, 5), (-1, 8), (-2, 7), (-20, 2), (None, 1)])
def test_n_jobs_counts_the_processes_of_all_hosts(queue: Queue, given: int | None, jobs: int) -> None:
    assert FsqueueBackend(queue, processes=8).effective_n_jobs(given) == jobs
    assert FsqueueBackend(queue, workers=1).effective_n_jobs(-1) == 2, "joblib would make them itself for one"
    with pytest.raises(ValueError, match="no meaning"):
        FsqueueBackend(queue, processes=8).effective_n_jobs(0)


def test_a_generator_that_is_dropped_cancels_what_waits(queue: Queue) -> None:
    backend = FsqueueBackend(queue, processes=4)
    with parallel_config(backend=backend), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # joblib says so, too
        found = Parallel(n_jobs=2, return_as="generator")(delayed(double)(one) for one in range(9))
        until(lambda: queue.status().remaining, "the first calls")
        found.close()
    until(lambda: not queue.status().remaining, "the cancelling")
