"""Several files are synced at the same time; what one of the calls raises is told after all have ended."""

from __future__ import annotations

import threading
from unittest import mock

import pytest

from fsqueue.filesystem import syncs
from tests.waiting import PATIENCE_S


def test_all_are_under_way_at_the_same_time() -> None:
    together = threading.Barrier(5)
    threads: set[int] = set()

    def call() -> None:
        threads.add(threading.get_ident())
        together.wait(PATIENCE_S)

    syncs.at_once([call] * 5)
    assert len(threads) == 5
    assert threading.get_ident() in threads


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("error", [OSError(5, "broken"), KeyboardInterrupt()], ids=lambda error: type(error).__name__)
def test_an_error_is_raised_when_all_have_ended(failing: int, error: BaseException) -> None:
    done: list[int] = []

    def call(number: int) -> None:
        if number == failing:
            raise error
        done.append(number)

    with pytest.raises(type(error)) as raised:
        syncs.at_once([lambda number=number: call(number) for number in range(3)])  # type: ignore[misc]
    assert raised.value is error
    assert sorted(done) == [number for number in range(3) if number != failing]


def test_an_interruption_is_not_lost_behind_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncs, "AT_ONCE_MAX", 1)  # one after the other, in this thread
    with pytest.raises(KeyboardInterrupt):
        syncs.at_once([mock.Mock(side_effect=OSError(5, "broken")), mock.Mock(side_effect=KeyboardInterrupt)])


def test_many_are_made_by_a_few_threads() -> None:
    done: list[int] = []
    syncs.at_once([lambda number=number: done.append(number) for number in range(50)])  # type: ignore[misc]
    assert sorted(done) == list(range(50))


def test_where_no_thread_can_be_started_all_are_made_here() -> None:
    threads: list[int] = []
    with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
        syncs.at_once([lambda: threads.append(threading.get_ident())] * 3)
    assert threads == [threading.get_ident()] * 3
