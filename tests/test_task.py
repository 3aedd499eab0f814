"""What users hold: plain values that print and compare well."""

from __future__ import annotations

import dataclasses

import orjson
import pytest

from fsqueue import DeadLetter, GcReport, Movement, Status, Task, TaskInfo, TaskRef
from fsqueue.format.models import STATES


def test_the_sum_of_the_states_is_what_was_inserted() -> None:
    status = Status(waiting=1, delayed=2, leased=4, completed=8, dead=16)
    assert (status.inserted, status.remaining, status.drained) == (31, 7, False)
    assert list(status.as_dict()) == ["inserted", "waiting", "delayed", "leased", "completed", "dead"]
    assert Status(completed=3, dead=1).drained


def test_values_are_ready_for_json() -> None:
    info = TaskInfo("id", "waiting", {"a": 1})
    letter = DeadLetter("id", [1], "no", 1.5)
    for value in (info, letter, GcReport(finished=1), Status()):
        assert orjson.loads(orjson.dumps(value.as_dict())) == value.as_dict()
    assert {field.name for field in dataclasses.fields(info)} == set(info.as_dict())


def test_a_movement_tells_only_what_is_known() -> None:
    assert Movement("lease", 1.0, lease="a").as_dict() == {"op": "lease", "at": 1.0, "lease": "a"}


def test_values_do_not_change_under_their_holder() -> None:
    for value in (Task(1), Status(), TaskInfo("x", "waiting")):
        name = dataclasses.fields(value)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, 2)
    for name in ("id", "inserted"):
        with pytest.raises(AttributeError):
            setattr(TaskRef("x"), name, 2)


def test_a_reference_prints_as_its_id() -> None:
    assert f"{TaskRef('abc.0')}" == "abc.0"
    assert TaskRef("abc.0") == TaskRef("abc.0", inserted=True)


def test_the_states_are_those_of_the_interface() -> None:
    assert STATES == ("waiting", "delayed", "leased", "completed", "dead", "cancelled")
