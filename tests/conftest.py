"""Fixtures of all tests, and which tests run again with batches of one task."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("FSQUEUE_CHECK", "1")  # before fsqueue is imported, and for all processes that tests start

import fsqueue.fsck  # noqa: F401 - else a test may import it while what it imports is patched, and that would stay
from fsqueue import Queue
from fsqueue.clock import ManualClock
from tests import levels
from tests.garbage import collect_and_keep
from tests.waiting import until_nothing_reaps

levels.load_profile()

TESTS = Path(__file__).parent

BATCHING_BRANCHES_IN = ("protocol",)
"""The directories whose tests run again with batches of one task in the gate. With FSQUEUE_TEST_LEVEL=all, all do."""

AGAIN = "one_task_a_batch"
"""Stands in brackets in the name of a test that runs again. Such a name, or `-k` with this, selects it at any level."""

# The first seed of the simulator's stories when there is time: another each day, the same in all processes of a run.
os.environ.setdefault("FSQUEUE_SIMULATION_FIRST", f"{datetime.now(UTC):%Y%m%d}0000")


QueueFactory = Callable[..., Queue]


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert no invariants: others damage the queue's files, and that breaks them."""
    for name, module in list(sys.modules.items()):
        if name.startswith("fsqueue.") and getattr(module, "CHECK", False):
            monkeypatch.setattr(module, "CHECK", False)


LEFT_OPEN_MOST = 100
"""Descriptors that a module may leave open: what pytest keeps of the last test, and what caches keep."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from what was collected: all of it stays, and it is looked through 300 times else.

    One look takes a quarter of a second. The fixture below takes one for each module.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_report_header() -> str:
    return f"the simulator's first seed: FSQUEUE_SIMULATION_FIRST={os.environ['FSQUEUE_SIMULATION_FIRST']}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make two tests of each that asks for `tasks_a_batch`, itself or by a fixture such as `queue`."""
    if "tasks_a_batch" in metafunc.fixturenames:
        sizes = [pytest.param(1024, id=pytest.HIDDEN_PARAM), pytest.param(1, id=AGAIN)]
        metafunc.parametrize("tasks_a_batch", sizes[: 1 + _runs_again(metafunc.definition)], indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, object, object]:
    """Mark what is left to --all, before others choose by marks. Then leave out what runs once by a later mark."""
    by_function: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and not _is_left_out(item):
            by_function.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for tests in by_function.values():
        for test in levels.repeats(tests):
            test.add_marker(pytest.mark.thorough)
    result = yield
    late = {item for item in items if _is_again(item) and not _runs_again(item)}
    if late:
        config.hook.pytest_deselected(items=list(late))
        items[:] = [item for item in items if item not in late]
    return result


def _is_left_out(item: pytest.Item) -> bool:
    """Return whether the gate has this test for a reason of its own, or does not have it."""
    marks = any(item.get_closest_marker(name) for name in ("thorough", "each_with_each"))
    return marks or (_is_again(item) and not _runs_again(item))


def _is_again(item: pytest.Item) -> bool:
    """Return whether this is a test with batches of one, which runs with large ones, too."""
    return isinstance(item, pytest.Function) and AGAIN in item.name.partition("[")[2]


def _runs_again(item: pytest.Item) -> bool:
    """Return whether a test runs with batches of one, too, if it makes queues."""
    if item.get_closest_marker("once") or item.get_closest_marker("batched"):
        return False
    if item.path.relative_to(TESTS).parts[0] in BATCHING_BRANCHES_IN or os.environ.get("FSQUEUE_TEST_LEVEL") == "all":
        return True
    return any(AGAIN in given for given in (item.config.option.keyword, *item.config.args))


@pytest.fixture(scope="module")
def tasks_a_batch(request: pytest.FixtureRequest) -> int:
    """How many tasks a batch may have: 1024, and then 1. Tests that make queues without `queue_factory` ask for it."""
    return int(request.param)


@pytest.fixture(scope="module", autouse=True)
def descriptors_are_closed() -> Iterator[None]:
    """No module leaves many descriptors open: tests that come after it would run out of them.

    What the modules before have left for good, as parsed sources, is kept from the garbage collector: else each look at
    all of it takes a second. It is kept at a module's begin: at its end pytest still holds the last test.
    """
    collect_and_keep()
    before = set(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    left = {}
    for fd in set(os.listdir("/proc/self/fd")) - before:
        with suppress(OSError):
            left[fd] = os.readlink(f"/proc/self/fd/{fd}")
    assert len(left) <= LEFT_OPEN_MOST, left


@pytest.fixture(scope="session", autouse=True)
def nothing_waits_for_the_disk() -> Iterator[None]:
    """Let `os.fsync` return at once in this process: that it reaches the disk is seen only when the power goes.

    What is synced, and in which order, is tested by what records the calls; that it helps, by power cuts in tests/lab.
    Other processes that tests start do wait for the disk.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", _check_descriptor)
        yield


def _check_descriptor(fd: Any) -> None:
    os.fstat(fd)


@pytest.fixture(autouse=True)
def no_reaper_outlives_its_test() -> Iterator[None]:
    """Wait for the threads that remove trash behind a call: else they meet what the next test patches."""
    yield
    until_nothing_reaps()


@pytest.fixture
def queue_factory(tmp_path: Path, tasks_a_batch: int) -> QueueFactory:
    """Makes queues in a temporary directory: `queue_factory(name="q", **settings)`."""

    def make(name: str = "q", **settings: Any) -> Queue:
        settings["batch_tasks_max"] = min(tasks_a_batch, settings.get("batch_tasks_max", 1024))
        return Queue.create(tmp_path / name, **settings)

    return make


@pytest.fixture
def queue(queue_factory: QueueFactory) -> Queue:
    """An empty queue with default settings."""
    return queue_factory()


@pytest.fixture
def clock() -> ManualClock:
    """The clock of `q` and `q2`."""
    return ManualClock()


@pytest.fixture
def q(queue: Queue, clock: ManualClock) -> Queue:
    """The queue, open for the worker w1, with a clock that the test sets."""
    return Queue(queue.path, worker="w1", clock=clock)


@pytest.fixture
def q2(queue: Queue, clock: ManualClock) -> Queue:
    """The same queue, open for the worker w2."""
    return Queue(queue.path, worker="w2", clock=clock)
