"""Programs of others upon an executor that pickles: scikit-learn by joblib, SciPy, Dask; workers that are killed.

scripts/test --all installs them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import joblib
import pytest

import fsqueue.compat.joblib
from fsqueue import Executor, Queue, pickled
from tests.house.source import TOP
from tests.waiting import until

pytestmark = [pytest.mark.once, pytest.mark.thorough]


@pytest.fixture(autouse=True)
def own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pickled.KEY_VARIABLE, str(tmp_path / "key"))


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue.create(tmp_path / "q", durability="none", backoff_s=(0.01, 0.01))


@contextmanager
def workers(queue: Queue, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start workers as a user does on two hosts. A test may kill some, and start others (`started`)."""
    found: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            found.append(started(queue))
        yield found
    finally:
        for one in found:
            one.kill()
            one.wait()


def started(queue: Queue) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fsqueue", "run", str(queue.path), "--load", "fsqueue.pickled", "-j", "1"]
    return subprocess.Popen(
        [*command, "--forever"], cwd=TOP, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TOP)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def searched(n_jobs: int | None) -> Any:
    """Return a grid search that has been fitted."""
    from sklearn.datasets import make_classification
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import GridSearchCV

    x, y = make_classification(n_samples=400, n_features=10, random_state=3)
    grid = {"n_estimators": [5, 10, 20], "max_depth": [2, 4, None]}
    return GridSearchCV(RandomForestClassifier(random_state=5), grid, cv=4, n_jobs=n_jobs).fit(x, y)


def test_a_grid_search_goes_on_unchanged_over_workers_that_are_killed(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    alone = searched(1)
    killed: list[int] = []
    with workers(queue, 2) as running:
        retrieve = fsqueue.compat.joblib.FsqueueBackend.retrieve_result_callback

        def retrieve_and_kill(self: Any, out: Any) -> Any:
            if len(killed) < 3:
                victim = running.pop(0)
                victim.kill()
                killed.append(victim.wait())
                running.append(started(queue))
            return retrieve(self, out)

        monkeypatch.setattr(fsqueue.compat.joblib.FsqueueBackend, "retrieve_result_callback", retrieve_and_kill)
        with joblib.parallel_config(backend="fsqueue", path=str(queue.path)):
            together = searched(4)
    assert killed == [-signal.SIGKILL] * 3
    assert together.best_params_ == alone.best_params_
    assert [*together.cv_results_["mean_test_score"]] == [*alone.cv_results_["mean_test_score"]]
    status = queue.status()
    assert (status.remaining, status.dead) == (0, 0)
    assert not [*queue.path.parent.glob(".fsqueue-data-*")]


def test_a_long_array_is_one_file_for_all_calls_of_scikit_learn(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    sklearn = pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    assert sklearn
    import numpy
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import cross_val_score

    x = numpy.random.default_rng(1).normal(size=(20_000, 20))
    y = x @ numpy.arange(20)
    written: list[str] = []
    write = pickled.DataDirectory.write
    monkeypatch.setattr(
        pickled.DataDirectory, "write", lambda self, name, pieces: (written.append(name), write(self, name, pieces))
    )
    with workers(queue, 2), joblib.parallel_config(backend="fsqueue", path=queue):
        scores = cross_val_score(Ridge(), x, y, cv=6, n_jobs=2)
    assert [*scores] == [*cross_val_score(Ridge(), x, y, cv=6)]
    long = [name for name in written if written.count(name) > 1]
    assert not long
    until(lambda: not [*queue.path.parent.glob(".fsqueue-data-*")], "the end of the files")


def test_scipy_maps_over_an_executor(queue: Queue) -> None:
    optimize = pytest.importorskip("scipy.optimize", reason="SciPy is not installed")

    def evolved(**how: Any) -> Any:
        return optimize.differential_evolution(
            optimize.rosen, [(0, 2)] * 2, maxiter=3, popsize=5, rng=2, updating="deferred", **how
        )

    with Executor(queue, workers=2, pickle=True) as executor:
        found = evolved(workers=executor.map)
    alone = evolved()
    assert [*found.x] == [*alone.x]
    assert queue.status().completed > 30


@pytest.mark.parametrize("kind", ["delayed", "bag"])
def test_dask_has_an_executor_as_its_scheduler(queue: Queue, kind: str) -> None:
    dask: Any = pytest.importorskip("dask", reason="Dask is not installed")
    made: dict[str, Callable[[], Any]] = {
        "delayed": lambda: dask.delayed(sum)([dask.delayed(lambda one: one * one)(one) for one in range(9)]),
        "bag": lambda: (
            pytest.importorskip("dask.bag").from_sequence(range(9), npartitions=3).map(lambda one: one**2).sum()
        ),
    }
    with Executor(queue, workers=2, pickle=True) as executor:
        assert made[kind]().compute(scheduler=executor) == sum(one * one for one in range(9))
    assert queue.status().completed >= 2
