"""A weak table: values of objects for as long as these live."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import pytest

from fsqueue.weak_table import WeakTable


class Thing:
    """Equal to each other thing."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing)

    def __hash__(self) -> int:
        return 1


def test_equal_objects_are_several() -> None:
    table, one, two = WeakTable[Thing, str](), Thing(), Thing()
    table[one], table[two] = "one", "two"
    assert (table.get(one), table.get(two), table.get(Thing())) == ("one", "two", None)
    assert [value for _, value in table.items()] == ["one", "two"]


def test_an_object_that_dies_takes_its_value_along() -> None:
    table, one, value = WeakTable[Thing, Thing](), Thing(), Thing()
    values = WeakTable[Thing, None]()
    table[one], values[value] = value, None
    del value
    assert len(values.living()) == 1
    del one
    assert (table.living(), values.living()) == ([], [])


def test_a_value_that_is_put_in_anew_replaces_the_first_one() -> None:
    table, one = WeakTable[Thing, int](), Thing()
    for number in range(3):
        table[one] = number
    assert [value for _, value in table.items()] == [2]


def test_what_dies_after_all_were_taken_out_does_no_harm() -> None:
    table, one = WeakTable[Thing, int](), Thing()
    table[one] = 1
    table.clear()
    del one
    assert table.items() == []


def test_what_dies_after_its_table_does_no_harm(capsys: pytest.CaptureFixture[str]) -> None:
    table, one = WeakTable[Thing, int](), Thing()
    table[one] = 1
    del table
    gc.collect()
    del one
    assert capsys.readouterr().err == ""


def test_no_code_of_python_runs_at_a_death() -> None:
    table, ran = WeakTable[Thing, int](), list[str]()

    def note(frame: Any, event: str, argument: object) -> None:
        ran.append(event)

    gc.collect()  # what earlier tests have left
    asked, gc.callbacks[:] = gc.callbacks[:], []  # other libraries have the collector call them
    try:
        for way in ("let go of", "collected"):
            one: Any = Thing()
            one.itself = one if way == "collected" else None
            table[one] = 1
            sys.setprofile(note)
            try:
                del one
                gc.collect()
            finally:
                sys.setprofile(None)
            assert table.items() == []
    finally:
        gc.callbacks[:] = asked
    assert "call" not in ran


def test_threads_share_a_table_whose_objects_die() -> None:
    table, stop = WeakTable[Thing, int](), threading.Event()
    failed: list[BaseException] = []

    def come_and_go() -> None:
        try:
            while not stop.is_set():
                things = [Thing() for _ in range(100)]
                for thing in things:
                    table[thing] = id(thing)
                assert [table.get(thing) for thing in things] == [*map(id, things)]
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=come_and_go) for _ in range(3)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for _ in range(300):
            assert all(id(thing) == number for thing, number in table.items())
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
    assert failed == []
    assert table.items() == []
