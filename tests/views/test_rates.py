"""Rates, totals and time left from one status after another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsqueue import Activity, Rate, Status, TimeLeft
from fsqueue.clock import ManualClock
from fsqueue.views.rates import SURE_S, StatusRates, WorkerProgress, better_rates, last_left, total

IDLE = Activity(0.0, None, None, None, None, None, None, 0, 1.0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


def test_a_total_adds_every_state() -> None:
    assert total([]) == Status()
    assert total([Status(1, 2, 3, 4, 5), Status(10, 20, 30, 40, 50)]) == Status(11, 22, 33, 44, 55)


def test_several_queues_are_drained_when_the_last_is() -> None:
    fast, slow = TimeLeft(5, 4, 6), TimeLeft(50, 3, 60)
    assert last_left([fast, slow]) == TimeLeft(50, 4, 60)
    assert last_left([fast, slow._replace(most_s=None)]) == TimeLeft(50, 4, None), "no end of one is no end of all"
    assert last_left([fast, None]) is None
    assert last_left([]) is None


def test_rates_come_from_one_status_after_another(clock: ManualClock) -> None:
    rates = StatusRates(clock.monotonic, clock.local_s)
    assert rates.add(Status(waiting=100)).finished is None
    clock.advance(10)
    found = rates.add(Status(waiting=80, completed=18, dead=2))
    assert (found.finished, found.completed) == (Rate(2.0, 2.0, 10.0), Rate(1.8, 1.8, 10.0))
    clock.advance(10)
    assert rates.add(Status(waiting=60, completed=38, dead=2)).finished == Rate(2.0, 0.0, 20.0)


def test_a_purge_begins_the_rates_anew_and_no_work_leaves_no_time(clock: ManualClock) -> None:
    rates = StatusRates(clock.monotonic, clock.local_s)
    rates.add(Status(completed=40))
    clock.advance(10)
    assert rates.add(Status(waiting=5)).finished is None
    for _ in range(100):
        clock.advance(10)
        found = rates.add(Status(waiting=5))
    assert found.finished is not None
    assert (found.finished.per_s, found.finished.over_s, found.left(5)) == (0.0, 70.0, None)


def test_counts_are_preferred_to_a_sample_once_they_are_far_enough_apart() -> None:
    sampled = replace(IDLE, finished=Rate(1, 1, 60), lease_s=7.0, share=0.5)
    counted = replace(IDLE, finished=Rate(2, 1, SURE_S + 1), inserted=Rate(3, 1, SURE_S + 1))
    assert better_rates(sampled, counted) == replace(sampled, finished=counted.finished, inserted=counted.inserted)
    assert better_rates(sampled, replace(counted, finished=Rate(2, 1, SURE_S))) is sampled
    whole = replace(sampled, share=1.0)
    assert better_rates(whole, counted) is whole
    assert better_rates(replace(whole, finished=None), counted).finished == counted.finished


def test_progress_adds_what_the_worker_did_since_the_status(clock: ManualClock) -> None:
    progress = WorkerProgress(clock.monotonic)
    assert (progress.done, progress.remaining, progress.rate()) == (0, 0, 0.0)
    progress.completed = lambda: (3, 5)
    progress.look(Status(waiting=5, leased=4, completed=5, dead=1), held=1)
    assert (progress.done, progress.remaining, progress.leased_elsewhere) == (6, 9, 3)
    progress.completed = lambda: (5, 5)
    assert progress.done == 6, "the status may have counted these two"
    progress.rate()
    clock.advance(2)
    progress.completed = lambda: (7, 7)
    assert (progress.done, progress.remaining, progress.rate()) == (8, 7, 1.0)


def test_a_purge_begins_the_progress_anew(clock: ManualClock) -> None:
    progress = WorkerProgress(clock.monotonic)
    progress.look(Status(completed=1000, waiting=10), held=0)
    progress.rate()
    progress.look(Status(waiting=10), held=0)
    clock.advance(10)
    assert (progress.done, progress.rate()) == (0, 0.0)
