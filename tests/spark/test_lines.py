"""Lines of task files: of rows one by one, and those that the JVM made."""

from __future__ import annotations

import datetime
import math
from typing import Any

import orjson
import pytest

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")
types = pytest.importorskip("pyspark.sql.types")

from fsqueue.errors import InvalidArgument, InvalidTask, TaskTooLarge  # noqa: E402
from fsqueue.format.layout import Settings  # noqa: E402
from fsqueue.protocol.encoding import NOW  # noqa: E402
from fsqueue.spark import lines, options  # noqa: E402
from fsqueue.spark.stored_columns import Encoder  # noqa: E402

UTC = datetime.UTC
FLOATS = types.StructType([types.StructField("x", types.ArrayType(types.DoubleType()))])
MIXED = types.StructType(
    [
        types.StructField("text", types.StringType()),
        types.StructField("map", types.MapType(types.StringType(), types.FloatType())),
        types.StructField("at", types.ArrayType(types.StructType([types.StructField("t", types.TimestampType())]))),
        types.StructField("day", types.DateType()),
    ]
)


def payloads(kind: Any, columns: dict[str, Any], **given: str) -> list[Any]:
    """What rows encoded one by one stand for."""
    encoder = Encoder(options.writing({"path": "/q", **given}), kind)
    batches = lines.Lines(encoder, Settings()).batches([pa.RecordBatch.from_pydict(columns)])
    return [
        orjson.loads(line)["payload"]
        for one in batches
        if one.when == NOW
        for line in bytes(one.content()).splitlines()
    ]


def test_rows_are_what_their_values_are_as_json() -> None:
    at = datetime.datetime(2026, 11, 21, 15, 4, 5, 123456, UTC)
    found = payloads(
        MIXED,
        {
            "text": ['ü"\n\\\x01', None],
            "map": pa.array([[("a", 0.1), ("b", None)], None], pa.map_(pa.string(), pa.float32())),
            "at": pa.array([[{"t": at}, None], []], pa.list_(pa.struct([("t", pa.timestamp("us", "Asia/Tokyo"))]))),
            "day": pa.array([datetime.date(1, 1, 1), None]),
        },
    )
    assert found == [
        {
            "text": 'ü"\n\\\x01', "map": {"a": 0.1, "b": None}, "at": [{"t": "2026-11-21T15:04:05.123456Z"}, None],
            "day": "0001-01-01",
        },
        {"text": None, "map": None, "at": [], "day": None},
    ]  # fmt: skip


def test_times_at_the_ends_of_time_are_written_whatever_the_zone() -> None:
    kind = types.StructType([types.StructField("t", types.TimestampType())])
    ends = [-62_135_596_800_000_000, 253_402_300_799_999_999]
    for zone in ("America/New_York", "Asia/Tokyo"):
        found = payloads(kind, {"t": pa.array(ends, pa.timestamp("us", zone))})
        assert [one["t"] for one in found] == ["0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"]
        with pytest.raises(InvalidTask, match="years 1 to 9999"):
            payloads(kind, {"t": pa.array([ends[1] + 1], pa.timestamp("us", zone))})


@pytest.mark.parametrize("days", [-719_163, 2_932_897])
def test_years_that_nobody_reads_are_refused(days: int) -> None:
    kind = types.StructType([types.StructField("d", types.DateType())])
    with pytest.raises(InvalidTask, match="years 1 to 9999"):
        payloads(kind, {"d": pa.array([0, days], pa.int32()).view(pa.date32())})


def test_numbers_that_json_does_not_have_are_refused_with_their_row() -> None:
    with pytest.raises(InvalidTask, match="Task number 3: the payload contains nan") as caught:
        payloads(FLOATS, {"x": [[0.5], None, [None, math.nan]]})
    assert caught.value.index == 2


def test_objects_without_fields_are_objects() -> None:
    kind = types.StructType([types.StructField("wait", types.DoubleType())])
    assert payloads(kind, {"wait": [0.0, None]}, delay_s="wait") == [{}, {}]


# -- what the JVM made ----------------------------------------------------------------------------------------------


def made(kind: Any, texts: list[str], bytes_max: int = 1000, before: int = 0) -> None:
    """Check lines with these payloads. `before`: rows of the array that the column leaves out."""
    column = pa.array(["bad"] * before + [f'{{"payload":{text}}}\n' for text in texts]).slice(before)
    lines.Made(kind).check(column, 10_000, bytes_max)


@pytest.mark.parametrize("sign", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("before", [0, 2])
def test_a_float_that_became_text_is_found(sign: str, before: int) -> None:
    with pytest.raises(InvalidTask, match=f"Task number 10003: the payload contains {sign}, which JSON") as caught:
        made(FLOATS, ['{"x":null}', '{"x":[0.5,null]}', f'{{"x":[null,"{sign}"]}}'], before=before)
    assert caught.value.index == 10_002


def test_texts_that_only_look_so_are_sound() -> None:
    made(MIXED, ['{"text":"NaN","map":{"NaN":1.0,"-Infinity":null},"at":[null],"day":"2026-11-21"}'])
    made(MIXED, ['{"text":"-1","map":null,"at":[{"t":"2026-11-21T00:00:00.000000Z"},{"t":null}],"day":null}'])
    made(types.StringType(), ['"NaN"', '"+1"'])


@pytest.mark.parametrize("day", ["+10000-01-01", "-0001-01-01", "0000-12-31"])
def test_a_time_of_an_odd_year_is_found(day: str) -> None:
    with pytest.raises(InvalidTask, match="Task number 10001: the payload contains a time outside of the years"):
        made(MIXED, [f'{{"text":null,"map":null,"at":null,"day":"{day}"}}'])
    with pytest.raises(InvalidTask, match="a time outside"):
        made(MIXED, [f'{{"text":null,"map":null,"at":[{{"t":"{day}T00:00:00.000000Z"}}],"day":null}}'])


def test_a_line_that_is_too_long_is_named() -> None:
    with pytest.raises(TaskTooLarge, match="Task number 10002 takes 113 bytes; this queue accepts up to 100"):
        made(types.StringType(), ['"a"', '"' + "x" * 98 + '"'], 100, before=1)


def test_a_map_with_a_key_twice_is_refused() -> None:
    kind = types.StructType([types.StructField("m", types.MapType(types.StringType(), types.LongType()))])
    column = pa.array([[("a", 1)], [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    with pytest.raises(InvalidTask, match="a map with a key twice"):
        payloads(kind, {"m": column})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a":1,"a":2}', "the payload has a name twice in an object, 'a'"),
        ('{"seed":18446744073709551617}', "the payload has an integer beyond 64 bits"),
        ("1e999", "the payload has a number beyond the range of floats"),
        ("[" * 2000 + "]" * 2000, "the payload nests too deep"),
        ("{", "the payload is not JSON"),
    ],
)
def test_json_text_that_could_not_be_kept_as_it_is_is_refused(text: str, why: str) -> None:
    kind = types.StructType([types.StructField("doc", types.StringType())])
    with pytest.raises(InvalidTask, match=f"Row 2: {why}"):
        payloads(kind, {"doc": ["1", text]}, payload="doc", payloadformat="json")


def test_two_fields_of_one_name_in_a_struct_are_refused() -> None:
    inner = types.StructType([types.StructField("id", types.LongType()), types.StructField("id", types.LongType())])
    for kind in (inner, types.ArrayType(inner), types.MapType(types.StringType(), inner)):
        with pytest.raises(InvalidArgument, match=r"The column 'pair.*' has several fields named 'id'"):
            Encoder(options.writing({"path": "/q"}), types.StructType([types.StructField("pair", kind)]))


def test_a_result_of_a_drain_is_judged_as_any_result() -> None:
    from fsqueue.spark.jobs.drain import _apply

    for result, kept, why in (
        ({"a": np.float32(0.5), "b": np.arange(3)}, '{"a":0.5,"b":[0,1,2]}', None),
        ({"a": np.array([1.0, math.nan])}, '{"a":[1.0,"NaN"]}', None),
        (math.inf, '"Infinity"', None),
        (1 << 70, None, "64 bits"),
    ):
        found, error, _ = _apply(lambda _, result=result: result, None)
        assert found == kept
        assert error is None if why is None else why in str(error)
