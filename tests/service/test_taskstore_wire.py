"""taskstore's requests and answers: what is read of each field, and what is refused by its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar, get_args

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fsqueue.service.faults import BadField
from fsqueue.service.taskstore import Add, Change, NumberedTask, Refused
from fsqueue.service.taskstore_wire import (
    AUTO_MS_BELOW,
    AUTO_NS_FROM,
    AVAILABLE_MS_MAX,
    DELAY_MS_MAX,
    DurationUnit,
    claim_in,
    done_body,
    ids_in,
    listing_in,
    refused_body,
    task_as_json,
    tasks_body,
    update_in,
)
from tests.levels import how_many

pytestmark = pytest.mark.once

INT64_MAX = (1 << 63) - 1
T = TypeVar("T")


def field_of(bad: pytest.ExceptionInfo[BadField]) -> str:
    return bad.value.field


# -- updates -----------------------------------------------------------------------------------------------------------


def test_the_documents_update_is_read_as_it_says() -> None:
    asked = update_in(
        {
            "clientid": 1643,
            "adds": [{"group": "map", "data": "a:1:2"}, {"group": "map", "data": "a:2:3", "timespec": 5}],
            "updates": [{"id": 14, "data": "some data", "timespec": -60_000}],
            "deletes": [16, 18],
            "depends": [12],
        }
    )
    assert asked.client == 1643
    assert asked.adds == [Add("map", "a:1:2", 0), Add("map", "a:2:3", 5)]
    assert asked.changes == [Change(14, "some data", -60_000)]
    assert (asked.deletes, asked.depends) == ([16, 18], [12])


def test_names_have_any_case_unknown_ones_and_null_are_nothing() -> None:
    asked = update_in({"ClientID": -5, "ADDS": [{"Group": "g", "at": 1e300, "data": None}], "deletes": None, "x": [{}]})
    assert (asked.client, asked.adds, asked.deletes, asked.depends) == (-5, [Add("g")], [], [])


@pytest.mark.parametrize(
    ("time", "available_ms"),
    [
        ({"timespec": 1_388_552_400_000}, 1_388_552_400_000),
        ({"duration": 1_388_552_400_000_000_000}, 1_388_552_400_000),
        ({"timespec": -60_000}, -60_000), ({"duration": -60_000_000_000}, -60_000),
        ({"duration": 1}, 1), ({"duration": -1}, -1), ({"duration": 1_000_001}, 2), ({"duration": -1_000_001}, -2),
        ({}, 0), ({"timespec": 0}, 0), ({"duration": 0}, 0), ({"timespec": None, "duration": -2_000_000}, -2),
        ({"timespec": -60_000, "duration": 1_388_552_400_000_000_000}, -60_000),
        ({"timespec": 0, "duration": 1_388_552_400_000_000_000}, 0),
        ({"timespec": AVAILABLE_MS_MAX}, AVAILABLE_MS_MAX), ({"timespec": -DELAY_MS_MAX}, -DELAY_MS_MAX),
    ],
)  # fmt: skip
def test_a_tasks_time_by_either_field(time: dict[str, Any], available_ms: int) -> None:
    """Rounded up: no task comes before its time. `timespec` counts if a client sends back both."""
    asked = update_in({"clientid": 1, "adds": [{"group": "g", **time}], "updates": [{"id": 1, **time}]})
    assert (asked.adds[0].available_ms, asked.changes[0].available_ms) == (available_ms, available_ms)


WRONG_UPDATES: list[tuple[Any, str]] = [
    (None, "body"), ([], "body"), ("text", "body"), (7, "body"),
    ({}, "clientid"), ({"clientid": None}, "clientid"), ({"clientid": "7"}, "clientid"),
    ({"clientid": True}, "clientid"), ({"clientid": 1.0}, "clientid"), ({"clientid": 1 << 31}, "clientid"),
    ({"clientid": -(1 << 31) - 1}, "clientid"), ({"clientid": 1, "CLIENTID": 2}, "clientid"),
    ({"clientid": 1, "adds": {}}, "adds"), ({"clientid": 1, "adds": "x"}, "adds"),
    ({"clientid": 1, "adds": [7]}, "adds[0]"), ({"clientid": 1, "adds": [None]}, "adds[0]"),
    ({"clientid": 1, "adds": [{"group": "g"}, {"group": 7}]}, "adds[1].group"),
    ({"clientid": 1, "adds": [{"group": "g", "data": {}}]}, "adds[0].data"),
    ({"clientid": 1, "adds": [{"group": "g", "timespec": "1"}]}, "adds[0].timespec"),
    ({"clientid": 1, "adds": [{"group": "g", "timespec": float(1 << 63)}]}, "adds[0].timespec"),
    ({"clientid": 1, "adds": [{"group": "g", "timespec": AVAILABLE_MS_MAX + 1}]}, "adds[0].timespec"),
    ({"clientid": 1, "adds": [{"group": "g", "timespec": -DELAY_MS_MAX - 1}]}, "adds[0].timespec"),
    ({"clientid": 1, "adds": [{"group": "g", "duration": False}]}, "adds[0].duration"),
    ({"clientid": 1, "updates": [{"id": 1 << 63}]}, "updates[0].id"),
    ({"clientid": 1, "updates": [{"id": "1"}]}, "updates[0].id"),
    ({"clientid": 1, "deletes": 7}, "deletes"), ({"clientid": 1, "deletes": [1, "2"]}, "deletes[1]"),
    ({"clientid": 1, "deletes": [None]}, "deletes[0]"), ({"clientid": 1, "depends": [-(1 << 63) - 1]}, "depends[0]"),
    ({"clientid": 1, "deletes": [1] * 10_001}, "deletes"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sent", "field"), WRONG_UPDATES, ids=[f"{n}-{field}" for n, (_, field) in enumerate(WRONG_UPDATES)]
)
def test_a_wrong_update_is_refused_by_the_fields_name(sent: Any, field: str) -> None:
    with pytest.raises(BadField) as bad:
        update_in(sent)
    assert field_of(bad) == field
    assert str(bad.value).startswith(field)
    assert "Nothing was done" in str(bad.value)
    assert len(str(bad.value)) < 400


def test_ids_that_no_task_can_have_are_left_to_the_store() -> None:
    """It answers by its lists, as for ids that are gone."""
    asked = update_in({"clientid": 1, "updates": [{}, {"id": -3}], "deletes": [0], "depends": [-1]})
    assert (asked.changes, asked.deletes, asked.depends) == ([Change(0), Change(-3)], [0], [-1])


# -- claims ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "duration", "ms"),
    [
        ("auto", 60_000, 60_000), ("auto", AUTO_MS_BELOW - 1, AUTO_MS_BELOW - 1), ("auto", AUTO_NS_FROM, 1_000),
        ("auto", 30 * 10**9 + 1, 30_001), ("auto", 0, 0), ("auto", -5, 0), ("auto", -(1 << 63), 0),
        ("ms", 60_000, 60_000), ("ms", AUTO_MS_BELOW, AUTO_MS_BELOW), ("ms", DELAY_MS_MAX, DELAY_MS_MAX), ("ms", -1, 0),
        ("ns", 60_000, 1), ("ns", 500_000_000, 500), ("ns", 10**9, 1_000), ("ns", 0, 0), ("ns", -1, 0),
    ],
)  # fmt: skip
def test_what_a_claims_duration_counts(unit: DurationUnit, duration: int, ms: int) -> None:
    asked = claim_in({"clientid": 1, "group": "map", "duration": duration, "depends": [14, 10]}, unit)
    assert (asked.client, asked.group, asked.duration_ms, asked.depends) == (1, "map", ms, [14, 10])


@pytest.mark.parametrize(
    ("unit", "duration"),
    [
        ("auto", AUTO_MS_BELOW), ("auto", AUTO_NS_FROM - 1), ("auto", INT64_MAX), ("ms", DELAY_MS_MAX + 1),
        ("ns", INT64_MAX), ("ns", 1 << 63), ("ms", 1.5), ("auto", "1"), ("auto", True),
    ],
)  # fmt: skip
def test_a_duration_that_may_be_either_or_is_too_long_is_refused(unit: DurationUnit, duration: Any) -> None:
    with pytest.raises(BadField) as bad:
        claim_in({"clientid": 1, "group": "map", "duration": duration}, unit)
    assert field_of(bad) == "duration"
    if AUTO_MS_BELOW <= int(duration) < AUTO_NS_FROM:
        assert "--taskstore-duration" in str(bad.value)


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ([], "body"), ({"group": "g"}, "clientid"), ({"clientid": 1, "group": ["g"]}, "group"),
        ({"clientid": 1}, "group"), ({"clientid": 1, "group": ""}, "group"),
        ({"clientid": 1, "group": "g", "depends": [[]]}, "depends[0]"), ({"clientid": 1 << 40}, "clientid"),
    ],
)  # fmt: skip
def test_a_wrong_claim_is_refused_by_the_fields_name(sent: Any, field: str) -> None:
    with pytest.raises(BadField) as bad:
        claim_in(sent, "auto")
    assert field_of(bad) == field


# -- paths and queries -------------------------------------------------------------------------------------------------


def test_ids_of_a_path() -> None:
    assert ids_in("1") == [1]
    assert ids_in(f"+3,-4,{INT64_MAX},007") == [3, -4, INT64_MAX, 7]


@pytest.mark.parametrize(
    "text",
    ["", ",", "1,", "1,,2", "x", "1.0", " 1", "1_0", "٣", "0x1", str(1 << 63), "9" * 5_000, "--1", "1," * 10_001],
)
def test_what_is_no_list_of_ids(text: str) -> None:
    with pytest.raises(BadField) as bad:
        ids_in(text)
    assert field_of(bad) == "id"


def test_too_many_are_told_by_their_number() -> None:
    with pytest.raises(BadField, match="names more than 10,000 tasks"):
        ids_in("1," * 20_000 + "1")
    with pytest.raises(BadField, match="deletes has 10,001 items"):
        update_in({"clientid": 1, "deletes": [1] * 10_001})
    assert len(ids_in("1," * 9_999 + "1")) == 10_000


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ({}, (0, False)), ({"limit": "", "owned": ""}, (0, False)), ({"limit": "7", "owned": "YES"}, (7, True)),
        ({"limit": "-1", "owned": "1"}, (-1, True)), ({"owned": "True"}, (0, True)), ({"owned": "no"}, (0, False)),
        ({"owned": "0"}, (0, False)), ({"owned": "false", "more": "x"}, (0, False)),
    ],
)  # fmt: skip
def test_the_query_of_a_listing(query: dict[str, str], asked: tuple[int, bool]) -> None:
    assert listing_in(query) == asked


@pytest.mark.parametrize(
    ("query", "field"), [({"limit": "x"}, "limit"), ({"limit": str(1 << 63)}, "limit"), ({"owned": "maybe"}, "owned")]
)
def test_a_wrong_query_of_a_listing(query: dict[str, str], field: str) -> None:
    with pytest.raises(BadField) as bad:
        listing_in(query)
    assert field_of(bad) == field


# -- answers -----------------------------------------------------------------------------------------------------------


def test_answers_have_the_documents_keys_and_the_codes_time_beside() -> None:
    task = NumberedTask(3, "map", "ä\n", 1_388_552_400_000, 7)
    shown = {
        "id": 3, "group": "map", "data": "ä\n", "timespec": 1_388_552_400_000,
        "duration": 1_388_552_400_000_000_000, "ownerid": 7,
    }  # fmt: skip
    assert json.loads(done_body([task])) == {"tasks": [shown], "error": None}
    assert json.loads(done_body([])) == {"tasks": [], "error": None}
    assert json.loads(tasks_body([task, None])) == [shown, None]
    assert json.loads(tasks_body([])) == []
    assert json.loads(tasks_body(None)) is None
    refused = Refused(changes=[1], deletes=[2], depends=[3], owned=[4], bugs=["why"])
    assert json.loads(refused_body(refused)) == {
        "tasks": [],
        "error": {"changes": [1], "deletes": [2], "depends": [3], "owned": [4], "bugs": ["why"]},
    }


def test_a_time_beyond_64_bits_of_nanoseconds_is_shown_as_the_last_one() -> None:
    """A task that was inserted directly may have it."""
    shown = task_as_json(NumberedTask(1, "g", "", AVAILABLE_MS_MAX + 1, 0))
    assert shown is not None
    assert (shown["timespec"], shown["duration"]) == (AVAILABLE_MS_MAX + 1, INT64_MAX)


# -- anything ----------------------------------------------------------------------------------------------------------

LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 65), 1 << 65), st.floats(allow_nan=False), st.text(max_size=5)
)
NAMES = st.sampled_from(
    ["clientid", "adds", "updates", "deletes", "depends", "group", "data", "timespec", "duration", "id", "ID", "other"]
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5), max_leaves=20
)


@given(VALUES, st.sampled_from(get_args(DurationUnit)))
@hypothesis_settings(max_examples=how_many(10, 5_000))
def test_any_value_is_a_request_within_bounds_or_refused_by_a_name(value: Any, unit: DurationUnit) -> None:
    if isinstance(value, dict):
        value.setdefault("clientid", 1)
    update = read_or_refused(update_in, value)
    if update is not None:
        tasks = (*update.adds, *update.changes)
        assert all(-DELAY_MS_MAX <= one.available_ms <= AVAILABLE_MS_MAX and type(one.data) is str for one in tasks)
        assert all(type(one) is int for one in (*update.deletes, *update.depends))
    claim = read_or_refused(claim_in, value, unit)
    assert claim is None or 0 <= claim.duration_ms <= DELAY_MS_MAX


def read_or_refused(read: Callable[..., T], *given: Any) -> T | None:
    try:
        return read(*given)
    except BadField as error:
        refused = error
    assert refused.field
    return None
