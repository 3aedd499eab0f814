"""Whether another task is begun near the end: the bound on its duration, simulated runs, and real ones."""

from __future__ import annotations

import heapq
import math
import random
import time
from collections.abc import Callable

import pytest

from fsqueue import Queue, Worker
from fsqueue.cluster import slurm
from fsqueue.worker import Event
from fsqueue.worker.pace import RECENT, Pace, bound_s
from tests.waiting import PATIENCE_S, until
from tests.worker.support import in_background

Draw = Callable[[random.Random], float]

KINDS: dict[str, Draw] = {
    "equal": lambda seeded: 1.0,
    "uniform": lambda seeded: seeded.uniform(0.0, 2.0),
    "exponential": lambda seeded: seeded.expovariate(1.0),
    "lognormal": lambda seeded: seeded.lognormvariate(-0.5, 1.0),
    "bimodal": lambda seeded: 5.5 if seeded.random() < 0.1 else 0.5,
}
"""Durations of tasks, 1 on average."""


def simulated(draw: Draw, time_s: float, slots: int, seed: int, grace_s: float = 0.0) -> tuple[float, float]:
    """Run a worker as its loop decides: return the share of the slots' time that was used, and cut-offs a slot."""
    seeded, pace, now = random.Random(seed), Pace(600, None), 0.0
    at_work: list[tuple[float, float]] = []  # when it ends, when it began
    used = cut = 0.0
    ended = False
    while not ended or at_work:
        while not ended and len(at_work) < slots:
            left_s = time_s + grace_s - now
            ages = [now - began for _, began in at_work]
            ended = now >= time_s or pace.likely_s(left_s, ages.copy) >= left_s
            if not ended:
                heapq.heappush(at_work, (now + draw(seeded), now))
        if at_work:
            now, began = heapq.heappop(at_work)
            if now > time_s + grace_s:
                cut += 1
            else:
                used += now - began
                pace.took(now - began)
    return used / (slots * time_s), cut / slots


def average(kind: str, time_s: float, slots: int, runs: int = 150) -> tuple[float, float]:
    results = [simulated(KINDS[kind], time_s, slots, seed) for seed in range(runs)]
    return sum(used for used, _ in results) / runs, sum(cut for _, cut in results) / runs


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize(
    ("kind", "time_s", "used_min", "cut_max"),
    [
        ("equal", 4.2, 0.90, 0.0), ("equal", 10.5, 0.90, 0.0), ("equal", 20.5, 0.95, 0.0),
        ("uniform", 10.5, 0.83, 0.02), ("uniform", 20.5, 0.90, 0.02), ("uniform", 60.5, 0.95, 0.02),
        ("exponential", 10.5, 0.70, 0.12), ("exponential", 20.5, 0.82, 0.10), ("exponential", 60.5, 0.94, 0.08),
        ("lognormal", 10.5, 0.68, 0.15), ("lognormal", 20.5, 0.80, 0.12), ("lognormal", 60.5, 0.92, 0.12),
        ("bimodal", 10.5, 0.64, 0.22), ("bimodal", 20.5, 0.78, 0.06), ("bimodal", 60.5, 0.92, 0.03),
    ],
)  # fmt: skip
def test_much_of_the_time_is_used_and_few_tasks_are_cut_off(
    kind: str, time_s: float, slots: int, used_min: float, cut_max: float
) -> None:
    used, cut = average(kind, time_s, slots)
    assert used >= used_min
    assert cut <= cut_max


@pytest.mark.parametrize("slots", [1, 3])
def test_of_equal_tasks_four_fifths_of_the_time_is_used_or_all_that_fit(slots: int) -> None:
    for tenths in range(11, 300):
        used, cut = simulated(KINDS["equal"], tenths / 10, slots, 0)
        assert cut == 0
        done, fit = round(used * tenths / 10), math.floor(tenths / 10)
        assert used >= 0.8 if tenths >= 52 else done >= fit - 1, tenths
        assert done == fit or tenths - 10 * done <= 15, tenths


def test_a_grace_is_time_for_a_task_that_was_begun_before() -> None:
    """Sixty seconds and a grace of ten, tasks of fifteen: all four fit, and without the grace three."""
    assert simulated(lambda seeded: 15.3, 60, 1, 0, grace_s=10) == (pytest.approx(1.02), 0)
    assert simulated(lambda seeded: 15.3, 60, 1, 0) == (pytest.approx(0.765), 0)


def test_of_enough_tasks_the_next_outlasts_the_bound_with_a_twentieth_of_probability_whatever_they_are() -> None:
    for kind, draw in KINDS.items():
        seeded = random.Random(kind)
        for n in (19, RECENT):
            above = sum(draw(seeded) > bound_s([draw(seeded) for _ in range(n)]) for _ in range(1000))
            assert above / 1000 < 0.075, (kind, n)


def test_the_margin_shrinks_with_every_task() -> None:
    margins = [bound_s([10.0] * n) / 10 for n in range(1, 25)]
    assert margins[:4] == pytest.approx([1.5, 1.25, 7 / 6, 1.125])
    assert margins == sorted(margins, reverse=True)
    assert margins[18] == 1


def test_a_task_that_has_been_at_work_for_long_is_heard_of() -> None:
    """The first to end are the shortest: three that have been at work ten times as long say more."""
    pace = Pace(600, None)
    pace.took(1)
    assert pace.likely_s(20, lambda: [0.5, 1.0]) == 1.5
    assert pace.likely_s(20, lambda: [10.0, 10.0, 10.0]) == 11.25


def test_tasks_that_have_become_longer_count_soon() -> None:
    pace = Pace(600, None)
    for _ in range(1000):
        pace.took(0.1)
    for _ in range(5):
        pace.took(3)
    assert pace.likely_s(10, list) == 3


def test_nothing_is_computed_without_a_measurement_or_an_end() -> None:
    def ages() -> list[float]:
        raise AssertionError("nobody asks for these")

    pace = Pace(600, None)
    assert pace.likely_s(10, ages) == 0
    pace.took(0.001)
    assert pace.likely_s(math.inf, ages) == pace.likely_s(10, ages) == 0


def test_what_is_leased_ahead_is_the_work_of_a_moment_and_no_more_than_was_there() -> None:
    def each(mean_s: float, grown: int = 20, lease_s: float = 600, prefetch: int | None = None) -> int:
        pace = Pace(lease_s, prefetch)
        pace.took(mean_s)
        for _ in range(grown):
            pace.grow()
        return pace.each()

    assert Pace(600, None).each() == 1, "nothing was measured"
    assert each(0.01) == 25
    assert each(0.01, lease_s=1) == 5, "a twentieth of a short lease"
    assert each(1e-7) == 1000
    assert each(0.01, grown=2) == 4, "twice as much after each request that was filled"
    assert each(10) == 1
    assert each(10, prefetch=7) == 7, "as its user says"


def test_no_more_is_leased_ahead_than_may_fail_or_end_in_time() -> None:
    pace = Pace(600, 10)
    assert pace.each_within(math.inf, math.inf, 0.0) == 10
    assert [pace.each_within(left, math.inf, 0.0) for left in (20, 3, 0, -1)] == [10, 3, 1, 1]
    assert [pace.each_within(math.inf, left_s, 3.0) for left_s in (100, 20, 2, -1)] == [10, 6, 1, 1]


class Observed:
    """Notes how long tasks have taken, and when a worker said that it begins no more."""

    def __init__(self) -> None:
        self.took: list[float] = []
        self.ended_at, self.bound_s = math.inf, 0.0

    def __call__(self, event: Event) -> None:
        if event.kind == "completed":
            self.took.append(event.fields["seconds"])
        elif event.kind == "ending":
            self.ended_at, self.bound_s = time.monotonic(), bound_s(self.took) if self.took else 0.0

    def check(self, deadline: float, grace_s: float) -> None:
        """Nothing more is begun only when as much as the bound is not left. This holds on a busy machine, too.

        If the machine is so slow that no task has ended by then, nothing was measured: only the grace was left.
        """
        left_s = deadline - self.ended_at
        assert left_s < self.bound_s if self.took else left_s <= grace_s


@pytest.fixture
def sleeps(queue: Queue) -> Queue:
    queue.insert_many([1] * 40)
    return queue


@pytest.mark.once
def test_a_worker_with_a_time_to_end_uses_it(sleeps: Queue) -> None:
    observed, began = Observed(), time.monotonic()
    report = Worker(sleeps, command=["sleep", "{}"], max_runtime_s=4, grace_s=0.7, tell=observed).run()
    assert report.ended == "max-runtime"
    observed.check(began + 4.7, 0.7)


@pytest.mark.once
def test_a_worker_uses_the_time_of_its_slurm_job(sleeps: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    observed, began = Observed(), time.monotonic()
    end = time.time() + 10 + 4  # ten seconds are kept for the very end
    monkeypatch.setattr(slurm, "job_end", lambda: end)
    report = Worker(sleeps, command=["sleep", "{}"], grace_s=0.7, processes=2, tell=observed).run()
    assert report.ended == "job-end"
    observed.check(began + 4, 0.7)


@pytest.mark.once
def test_an_attempt_that_timed_out_tells_how_long_tasks_take(queue: Queue) -> None:
    queue.insert_many([600] * 9)
    worker = Worker(queue, command=["sleep", "{}"], max_runtime_s=1750, grace_s=0, task_timeout_s=1000)
    thread, reports = in_background(worker)
    until(worker._loop._executor.at_work, "the begin of a task")

    def later() -> None:
        [job] = worker._loop._executor.at_work()
        job.began -= 1000
        worker._loop._stop_at -= 1000

    worker._loop.mailbox.post(later)
    thread.join(PATIENCE_S)
    [report] = reports
    assert (report.ended, report.completed, report.released, report.failed) == ("max-runtime", 0, 0, 1)
