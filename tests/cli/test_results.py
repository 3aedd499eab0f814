"""`fsqueue results`: tables with inputs beside outputs."""

from __future__ import annotations

import base64
import csv
import importlib.util
import json
import math
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from fsqueue_cli import result_files
from hypothesis import given, settings
from hypothesis import strategies as st

from fsqueue import Queue, Result
from fsqueue.clock import ManualClock
from tests.cli.conftest import Run
from tests.levels import how_many
from tests.support import QueueFactory, needs_root
from tests.test_group import MEMBER

pytestmark = pytest.mark.once  # its tests go by the order of the tasks, which batches of one do not keep
HEAD, TAIL = ["id", "state", "attempts"], list(result_files.AFTER)


def fill(queue: Queue, *pairs: tuple[Any, Any]) -> None:
    """Complete tasks with these payloads and results, in this order."""
    outcomes = dict(enumerate(result for _, result in pairs))
    queue.insert_many([payload for payload, _ in pairs], batch_tasks=len(pairs))
    for task in queue.lease(len(pairs)):
        task.complete(outcomes[task.index])


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def sweep(queue_factory: QueueFactory) -> Queue:
    queue = queue_factory(max_attempts=1)
    fill(queue, *[({"x": x, "name": f"n{x}"}, {"loss": x / 4, "ok": x > 1}) for x in range(3)])
    queue.insert({"x": 9, "name": "bad"})
    queue.lease()[0].fail("exploded,\nbadly")
    return queue


def test_a_csv_has_a_column_for_each_field(fsqueue_cli: Run, sweep: Queue, tmp_path: Path) -> None:
    file = tmp_path / "out.csv"
    done = fsqueue_cli("results", sweep.path, file)
    assert done.stdout == f"{file}: 4 rows, {len(HEAD) + 4 + len(TAIL)} columns\n"
    rows = rows_of(file)
    assert list(rows[0]) == [*HEAD, "x", "name", "loss", "ok", *TAIL]
    assert [(row["x"], row["name"], row["loss"], row["ok"]) for row in rows] == [
        ("0", "n0", "0.0", "false"), ("1", "n1", "0.25", "false"), ("2", "n2", "0.5", "true"), ("9", "bad", "", ""),
    ]  # fmt: skip
    assert [(row["state"], row["error"]) for row in rows][2:] == [("completed", ""), ("dead", "exploded,\nbadly")]
    assert float(rows[0]["finished_at"]) >= float(rows[0]["started_at"]) >= float(rows[0]["inserted_at"]) > 1.7e9
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == [], "no temporary file is left"


def test_fields_in_another_order_are_in_the_same_columns(
    fsqueue_cli: Run, queue_factory: QueueFactory, tmp_path: Path
) -> None:
    queue = queue_factory()
    fill(queue, ({"x": 1, "y": 2}, {"loss": 3, "ok": 4}), ({"y": 6, "x": 5}, {"ok": 8, "loss": 7}))
    fsqueue_cli("results", queue.path, tmp_path / "out.csv")
    rows = rows_of(tmp_path / "out.csv")
    assert [[row[name] for name in ("x", "y", "loss", "ok")] for row in rows] == [list("1234"), list("5678")]


def test_json_lines_have_the_same_columns(fsqueue_cli: Run, sweep: Queue, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    said = json.loads(fsqueue_cli("results", sweep.path, file, "--json").stdout)
    assert said == {"file": str(file), "rows": 4, "columns": len(HEAD) + 4 + len(TAIL)}
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["x"], row.get("loss"), row.get("ok")) for row in rows] == [
        (0, 0.0, False), (1, 0.25, False), (2, 0.5, True), (9, None, None),
    ]  # fmt: skip
    assert "loss" not in rows[3], "what a result lacks is left out"


def test_parquet_has_types(fsqueue_cli: Run, queue_factory: QueueFactory, tmp_path: Path) -> None:
    from pyarrow import parquet

    queue = queue_factory()
    pairs: list[tuple[Any, Any]] = [
        ({"i": 1, "f": 1, "n": "NaN", "s": "a", "mixed": 1, "big": 2**63, "list": [1]}, True),
        ({"i": 2, "f": 0.5, "n": 1.5, "s": None, "mixed": "b", "big": 1, "list": None}, False),
    ]
    fill(queue, *pairs)
    fsqueue_cli("results", queue.path, tmp_path / "out.parquet")
    table = parquet.read_table(tmp_path / "out.parquet")
    types = {field.name: str(field.type) for field in table.schema}
    assert {name: types[name] for name in ("i", "f", "n", "s", "mixed", "big", "list", "result", "attempts")} == {
        "i": "int64", "f": "double", "n": "double", "s": "string", "mixed": "string", "big": "string",
        "list": "string", "result": "bool", "attempts": "int64",
    }  # fmt: skip
    rows = table.to_pylist()
    assert rows[0]["n"] != rows[0]["n"]
    assert [(row["mixed"], row["big"], row["list"], row["result"]) for row in rows] == [
        ("1", str(2**63), "[1]", True), ("b", "1", None, False),
    ]  # fmt: skip


def test_parquet_without_pyarrow_is_a_sentence(
    fsqueue_cli: Run, sweep: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else found(name))
    done = fsqueue_cli("results", sweep.path, tmp_path / "out.parquet", code=1)
    assert "pip install 'fsqueue-tasks[arrow]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out.parquet").exists()


def test_names_that_are_taken_get_a_prefix(fsqueue_cli: Run, queue_factory: QueueFactory, tmp_path: Path) -> None:
    queue = queue_factory()
    fill(queue, ({"id": 7, "x": 1, "result": "r"}, {"x": 2, "state": "s", "payload.id": 3}))
    fsqueue_cli("results", queue.path, tmp_path / "out.csv")
    [row] = rows_of(tmp_path / "out.csv")
    names = ("payload.id", "x", "payload.result", "result.x", "result.state", "result.payload.id")
    assert [row[name] for name in names] == ["7", "1", "r", "2", "s", "3"]
    assert row["state"] == "completed"


def test_what_is_no_object_is_one_column(fsqueue_cli: Run, queue_factory: QueueFactory, tmp_path: Path) -> None:
    queue = queue_factory()
    fill(queue, ("one", [1, 2]), (b"\xff", None), ({"x": 1}, {"y": {"z": 1}}), (None, 0.5))
    fsqueue_cli("results", queue.path, tmp_path / "out.csv")
    rows = rows_of(tmp_path / "out.csv")
    assert list(rows[0]) == [*HEAD, "payload", "x", "result", "y", *TAIL]
    assert [(row["payload"], row["x"], row["result"], row["y"]) for row in rows] == [
        ("one", "", "[1,2]", ""), ("/w==", "", "", ""), ("", "1", "", '{"z":1}'), ("", "", "0.5", ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        "null", "a null, and a comma", 'say "hi"', "two\nlines", "tab\t", "\\", "[1]", "{", "[", "", "ü\u2028", "\x7f",
        "-1", "true", 1e300, 0.1, -5, True, [None, "null"], {"null": None}, {"b": [1, "x,y"]},
    ],
)  # fmt: skip
def test_every_value_comes_back_from_a_csv(tmp_path: Path, value: Any) -> None:
    """Alone in its column, among others, and among texts."""
    payloads = [{"a": value, "b": number, "c": value, "d": "null"} for number in range(3)]
    payloads[1] |= {"a": None, "c": "x,y"}
    [(path, _)] = written(tmp_path, [columns_of(payloads, [None] * 3)], ".csv")
    wanted = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    rows = rows_of(path)
    if isinstance(value, float):
        assert [float(row["a"] or "nan") == value for row in rows] == [True, False, True]
    else:
        assert [row["a"] for row in rows] == [wanted, "", wanted]
        assert [row["c"] for row in rows] == [wanted, "x,y", wanted]
    assert [(row["b"], row["d"]) for row in rows] == [("0", "null"), ("1", "null"), ("2", "null")]


WICKED = [
    "Mac\rline", "\r", "\n", "\r\n", "a\r\nb", '"', '""', '","', ",", "=1+1", "'", "null", "[", "{", "\\", "\\r",
    "\u2028", "\x85", "\x0b\x0c\x1c", " x ", "\t", "true", "1", "NaN", "", "\ufeff", "日本",
]  # fmt: skip
cells = st.none() | st.sampled_from([*WICKED, "\0"]) | st.text(st.sampled_from('a,"\r\n\\ \u2028'), max_size=6)
others = st.none() | st.integers(-(2**63), 2**63 - 1) | st.just([1, {"a": "x\r"}]) | st.just("null") | st.booleans()


@given(st.lists(st.tuples(cells, others), min_size=1, max_size=8), st.sampled_from([1, 1000]))
@settings(max_examples=how_many(10, 1000))
def test_texts_are_quoted_and_null_is_empty_whichever_way_a_row_goes(rows: list[Any], at_once: int) -> None:
    """For Python's reader, for Arrow's, and by the bytes: a text that is empty is `""`, and null is nothing."""
    from pyarrow import csv as arrow_csv

    payloads = [{"before": 1, "text": text, "other": other, "after": text} for text, other in rows]
    blocks = (
        [columns_of(payloads, [None] * len(rows))] if at_once > 1 else [columns_of([one], [None]) for one in payloads]
    )
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(result_files, "ROWS_AT_ONCE", at_once)
        [(path, _)] = written(Path(directory), blocks, ".csv")
        read = rows_of(path)
        table = arrow_csv.read_csv(
            path,
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(("text", "other", "after"), "string"),
                null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False,
            ),
        )  # fmt: skip
        raw = path.read_bytes()
    wanted = [other if isinstance(other, str | None) else json.dumps(other, separators=(",", ":")) for _, other in rows]
    assert [(row["before"], row["text"], row["other"], row["after"]) for row in read] == [
        ("1", text or "", other or "", text or "") for (text, _), other in zip(rows, wanted, strict=True)
    ]
    assert table["text"].to_pylist() == table["after"].to_pylist() == [text for text, _ in rows]
    assert table["other"].to_pylist() == wanted
    for text, other in rows:
        quoted = "" if text is None else '"' + text.replace('"', '""') + '"'
        shown = "" if other is None else json.dumps(other, separators=(",", ":"))
        shown = '"' + shown.replace('"', '""') + '"' if isinstance(other, list) else shown
        assert f",1,{quoted},{shown},{quoted},".encode() in raw


def test_insert_takes_a_csv_of_results_back(fsqueue_cli: Run, queue_factory: QueueFactory, tmp_path: Path) -> None:
    queue, again = queue_factory(), Queue.create(tmp_path / "again")
    fill(queue, *[({"number": number, "text": text}, [text]) for number, text in enumerate([*WICKED, None])])
    path = tmp_path / "out.csv"
    fsqueue_cli("results", queue.path, path)
    fsqueue_cli("insert", again.path, "--csv", path, "--text", "text", "--text", "result")
    payloads = sorted((task.payload for task in again.lease(100)), key=lambda payload: int(payload["number"]))
    assert [payload["text"] for payload in payloads] == [text or None for text in [*WICKED, None]]
    assert [json.loads(payload["result"]) for payload in payloads] == [[text] for text in [*WICKED, None]]


def columns_of(payloads: list[Any], results: list[Any], **others: list[Any]) -> list[list[Any]]:
    """Columns as `Queue.result_columns` yields them."""
    rows = len(payloads)
    fixed = {"id": [f"t{row}" for row in range(rows)], "state": ["completed"] * rows, "attempts": [1] * rows}
    known = {**fixed, "payload": [*payloads], "result": [*results], **others}
    return [known.get(name) or [None] * rows for name in Result._fields]


def written(tmp_path: Path, blocks: list[list[list[Any]]], *endings: str) -> list[tuple[Path, int]]:
    """Write a table in each format; the paths, and how many columns there are."""
    made = []
    for ending in endings:
        path = tmp_path / f"table{ending}"
        copies = [[[*column] for column in block] for block in blocks]
        _, columns = result_files.write(str(path), copies, lambda done: None, lambda done: None)
        made.append((path, columns))
    return made


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["NaN", "Infinity", "null", ",", '","', "a,b", "[", "\\", '"', 0.0, -0.0, 1, True]),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=3), inside, max_size=3),
    max_leaves=4,
)  # fmt: skip
objects = st.dictionaries(st.sampled_from(["x", "y", "z", "id", "a,b"]), values, max_size=3)
uniform = st.fixed_dictionaries({"x": values, "y": st.floats(-1, 1), "n": st.sampled_from(["NaN", 1, 2.5, None])})
same_shape = st.lists(uniform, min_size=1, max_size=6)
results_drawn = st.lists(objects | values, min_size=1, max_size=6) | same_shape
payloads_drawn = st.lists(objects | values | st.binary(max_size=3), min_size=1, max_size=6) | same_shape


@given(st.lists(st.tuples(payloads_drawn, results_drawn), min_size=1, max_size=3), st.sampled_from([1, 1000]))
@settings(max_examples=how_many(10, 1000))
def test_tables_have_what_was_put_in(parts: list[tuple[list[Any], list[Any]]], at_once: int) -> None:
    """Whichever way a column goes, as a whole or value by value."""
    blocks = []
    for payloads, results in parts:
        rows = min(len(payloads), len(results))
        blocks.append(columns_of(payloads[:rows], results[:rows], error=(["e,", None, 'f"'] * 3)[:rows]))
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(result_files, "ROWS_AT_ONCE", at_once)
        [(lines, width), (table, _)] = written(Path(directory), blocks, ".jsonl", ".csv")
        found = [json.loads(line) for line in lines.read_bytes().split(b"\n")[:-1]]
        with table.open(newline="", encoding="utf-8") as file:
            [head, *in_csv] = csv.reader(file)
    assert len(head) == width
    wanted, names = expected(blocks)
    assert head == [*HEAD, *names.values(), *TAIL]
    assert len(found) == len(in_csv) == len(wanted)
    names |= {("", name): name for name in [*HEAD, *TAIL]}
    numeric = {name for field, name in names.items() if is_numeric([row.get(field) for row in wanted])}
    for row, cells, want in zip(found, in_csv, wanted, strict=True):
        here = {names[field]: value for field, value in want.items()}
        assert json.dumps(row) == json.dumps({name: here[name] for name in head if name in here})
        for name, cell in zip(head, cells, strict=True):
            value = here.get(name)
            if name in numeric and isinstance(value, str):
                assert (cell, str(float(cell))) == (str(float(value)), str(float(value)))
            elif isinstance(value, float):
                assert repr(float(cell)) == repr(value)
            elif isinstance(value, str) or value is None:
                assert cell == (value or "")
            else:
                assert json.dumps(json.loads(cell)) == json.dumps(value)


Row = dict[tuple[str, str | None], Any]


def expected(blocks: list[list[list[Any]]]) -> tuple[list[Row], dict[tuple[str, str | None], str]]:
    """The rows by field, and the names of the fields' columns, by docs/results.md."""
    rows: list[Row] = []
    for block in blocks:
        for values in zip(*block, strict=True):
            row: Row = {}
            for name, value in zip(Result._fields, values, strict=True):
                if name not in ("payload", "result"):
                    row["", name] = value
                elif isinstance(value, dict):
                    row |= {(name, inside): one for inside, one in value.items()}
                elif value is not None:
                    row[name, None] = base64.b64encode(value).decode() if isinstance(value, bytes) else value
            rows.append(row)
    names: dict[tuple[str, str | None], str] = {}
    taken = {*HEAD, *TAIL, "payload", "result"}
    for whole in ("payload", "result"):
        met = dict.fromkeys(field for row in rows for field in row if field[0] == whole)
        for field in sorted(met, key=lambda field: field[1] is not None):
            name = whole if field[1] is None else field[1]
            while field[1] is not None and name in taken:
                name = f"{whole}.{name}"
            taken.add(name)
            names[field] = name
    return rows, names


def is_numeric(values: list[Any]) -> bool:
    """Whether a double can hold all values, be they missing, numbers, or the texts of NaN and infinities."""
    kinds = {type(value) for value in values} - {type(None)}
    texts = {value for value in values if type(value) is str}
    integers = [value for value in values if type(value) is int]
    return (
        bool(kinds & {int, float})
        and kinds <= {int, float, str}
        and texts <= {"NaN", "Infinity", "-Infinity"}
        and all(-(2**53) <= value < 2**53 for value in integers)
    )


def test_rows_keep_their_order_in_whatever_blocks_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are kept together with the next ones, many at once; several blocks are a row group of Parquet."""
    from pyarrow import parquet

    monkeypatch.setattr(result_files, "ROWS_AT_ONCE", 2)
    monkeypatch.setattr(result_files, "BLOCKS_AT_ONCE", 2)
    blocks, first = [], 0
    for size in (1, 3, 1, 1, 5, 2, 3, 1):
        numbers = range(first, first + size)
        payloads = [{"n": number, "large": number} if size > 2 else {"n": number} for number in numbers]
        blocks.append(columns_of(payloads, [None] * size))
        first += size
    made = {path.suffix: path for path, _ in written(tmp_path, blocks, ".csv", ".jsonl", ".parquet")}
    large = [1, 2, 3, 6, 7, 8, 9, 10, 13, 14, 15]
    assert [int(row["n"]) for row in rows_of(made[".csv"])] == [*range(17)]
    lines = [json.loads(line) for line in made[".jsonl"].read_text().splitlines()]
    assert [row["n"] for row in lines] == [*range(17)]
    assert [row["large"] for row in lines if "large" in row] == large
    rows = parquet.read_table(made[".parquet"]).to_pylist()
    assert [row["n"] for row in rows] == [*range(17)]
    assert [row["large"] for row in rows if row["large"] is not None] == large


@pytest.mark.parametrize("lacking", [0, 1])
def test_in_json_lines_a_field_that_is_lacking_is_told_from_one_that_is_null(tmp_path: Path, lacking: int) -> None:
    payloads: list[dict[str, Any]] = [{"x": None, "y": 1}, {"x": None, "y": 1}]
    del payloads[lacking]["x"]
    [(path, _)] = written(tmp_path, [columns_of(payloads, [None] * 2)], ".jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert ["x" in row for row in rows] == [lacking != 0, lacking != 1]


@pytest.mark.parametrize(
    ("given_values", "in_csv", "in_parquet"),
    [
        ([1.5, "NaN", None, "Infinity", "-Infinity", 2], ["1.5", "nan", "", "inf", "-inf", "2"], "double"),
        (["NaN", 1], ["nan", "1"], "double"),
        ([1, "NaN", "other"], ["1", '"NaN"', '"other"'], "string"),
        ([1, "nan"], ["1", '"nan"'], "string"),
        ([True, "NaN"], ["true", '"NaN"'], "string"),
        (["NaN", "Infinity"], ['"NaN"', '"Infinity"'], "string"),
        ([2**53, "NaN"], [str(2**53), '"NaN"'], "string"),
        ([2**53, 0.5], [str(2**53), "0.5"], "string"),
        ([2**53, 1], [str(2**53), "1"], "int64"),
        ([2**53 - 1, 0.5], [str(2**53 - 1), "0.5"], "double"),
        ([-(2**53), 0.5], [str(-(2**53)), "0.5"], "double"),
        ([-(2**53) - 1, 0.5], [str(-(2**53) - 1), "0.5"], "string"),
        ([-(2**63), 2**63 - 1], [str(-(2**63)), str(2**63 - 1)], "int64"),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_numbers_that_json_lacks_are_numbers_in_columns_of_numbers(
    tmp_path: Path, given_values: list[Any], in_csv: list[str], in_parquet: str, at_once: bool
) -> None:
    """They are kept as texts. Only all rows together tell what the column is."""
    from pyarrow import parquet

    parts = [given_values] if at_once else [[value] for value in given_values]
    blocks = [columns_of([None] * len(part), [{"v": value} for value in part]) for part in parts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(result_files, "ROWS_AT_ONCE", 1)
        made = {path.suffix: path for path, _ in written(tmp_path, blocks, ".csv", ".parquet", ".jsonl")}
    assert [line.split(",")[3] for line in made[".csv"].read_text().splitlines()[1:]] == in_csv
    column = parquet.read_table(made[".parquet"])["v"]
    assert str(column.type) == in_parquet
    for value, wanted in zip(column.to_pylist(), given_values, strict=True):
        if in_parquet == "double" and wanted is not None:
            assert value == float(wanted) or (math.isnan(value) and wanted == "NaN")
        elif in_parquet == "string":
            assert value == (wanted if isinstance(wanted, str) else json.dumps(wanted))
        else:
            assert value == wanted
    lines = made[".jsonl"].read_text().splitlines()
    assert [json.loads(line)["v"] for line in lines] == given_values, "JSON has no such numbers: they stay texts"


def test_objects_with_too_many_fields_stay_whole(
    fsqueue_cli: Run, queue_factory: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_files, "COLUMNS_MAX", 3)
    queue = queue_factory()
    fill(queue, *[({f"k{number}": number}, {"y": number}) for number in range(6)])
    path = str(tmp_path / "out.jsonl")
    rows, columns = result_files.write(path, queue.result_columns(), lambda done: None, lambda done: None)
    assert rows == 6
    assert columns <= len(HEAD) + len(TAIL) + 3 + 3
    found = [json.loads(line) for line in Path(path).read_text().splitlines()]
    assert json.loads(found[5]["payload"]) == {"k5": 5}


def test_as_many_fields_as_a_table_may_have_are_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_files, "COLUMNS_MAX", 3)
    monkeypatch.setattr(result_files, "ROWS_AT_ONCE", 1)
    payloads = [{"a": 0, "b": 0}, {"a": 1, "b": 1}, {"a": 2, "more": 2}, {"a": 3}]
    blocks = [columns_of([payload], [{"c": row}]) for row, payload in enumerate(payloads)]
    [(path, columns)] = written(tmp_path, blocks, ".jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row.get("a") for row in rows] == [0, 1, 2, None], "one field more, and what comes next stays whole"
    assert (rows[3]["payload"], rows[3]["result"]) == ('{"a":3}', '{"c":3}')
    assert columns == len(HEAD) + len(TAIL) + 4 + 2


def test_all_that_a_condition_chooses_is_in_the_file(
    fsqueue_cli: Run, sweep: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsqueue_cli.results.ROWS_AT_ONCE", 2)
    fsqueue_cli("results", sweep.path, tmp_path / "out.csv", "--where", "payload.x>=0", "--where", "payload.x!=1")
    assert [row["x"] for row in rows_of(tmp_path / "out.csv")] == ["0", "2", "9"]


def test_without_a_file_json_lines_keep_payload_and_result_whole(fsqueue_cli: Run, sweep: Queue) -> None:
    rows = [json.loads(line) for line in fsqueue_cli("results", sweep.path).stdout.splitlines()]
    assert [(row["payload"]["x"], row["state"]) for row in rows] == [
        (0, "completed"), (1, "completed"), (2, "completed"), (9, "dead"),
    ]  # fmt: skip
    assert rows[2]["result"] == {"loss": 0.5, "ok": True}


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--where", "result.loss<0.3"], [0, 1]),
        (["--where", "result.loss<0.3", "--where", "payload.name=n1"], [1]),
        (["--where", "state=dead"], [9]),
        (["--where", "error~expl"], [9]),
        (["--dead"], [9]),
        (["--dead", "--where", "payload.x=1"], []),
    ],
)
def test_some_are_chosen(fsqueue_cli: Run, sweep: Queue, options: list[str], found: list[int]) -> None:
    lines = fsqueue_cli("results", sweep.path, *options).stdout.splitlines()
    assert [json.loads(line)["payload"]["x"] for line in lines] == found


def test_the_end_of_the_name_chooses_the_format_in_small_letters_and_in_capitals(
    fsqueue_cli: Run, sweep: Queue, tmp_path: Path
) -> None:
    for name, begin in (("a.CSV", b'"id",'), ("a.ndjson", b'{"id":'), ("a.JsonL", b'{"id":'), ("a.Parquet", b"PAR1")):
        fsqueue_cli("results", sweep.path, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(begin)


def test_an_empty_table_has_a_header(fsqueue_cli: Run, queue_factory: QueueFactory, tmp_path: Path) -> None:
    fsqueue_cli("results", queue_factory().path, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == ",".join(f'"{name}"' for name in [*HEAD, *TAIL]) + "\n"


@pytest.mark.parametrize(
    ("name", "says", "code"),
    [
        ("out.xlsx", "ends in none of .csv, .jsonl", 2),
        ("directory.csv", "no regular file", 2),
        ("missing/out.csv", "missing/out.csv", 1),
    ],
)
def test_a_file_that_cannot_be_written_is_refused(
    fsqueue_cli: Run, sweep: Queue, tmp_path: Path, name: str, says: str, code: int
) -> None:
    (tmp_path / "directory.csv").mkdir()
    done = fsqueue_cli("results", sweep.path, tmp_path / name, code=code)
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_an_existing_file_stays_until_the_new_one_is_whole(
    sweep: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "out.csv"
    file.write_text("before")

    def failing(new: IO[bytes], table: object, step: object) -> None:
        new.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(result_files.FORMATS, ".csv", (failing, lambda: None))
    with pytest.raises(OSError, match="No space"):
        result_files.write(str(file), sweep.result_columns(), lambda done: None, lambda done: None)
    assert file.read_text() == "before"
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize("ending", [".csv", ".jsonl", pytest.param(".parquet")])
@pytest.mark.parametrize("way", ["itself", "below", "dots", "link to a directory", "link to a file", "bare name"])
def test_no_file_of_a_queue_is_replaced(
    fsqueue_cli: Run, sweep: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, way: str
) -> None:
    """Nor is any made in its directory, whatever path leads there."""
    (tmp_path / "beside").mkdir()
    (tmp_path / "inner").symlink_to(sweep.path)
    (tmp_path / f"link{ending}").symlink_to(Path("inner", "queue.jsonl"))
    (tmp_path / f"again{ending}").symlink_to(f"link{ending}")
    below = next(path for path in sweep.path.iterdir() if path.is_dir())
    monkeypatch.chdir(below)
    file = {
        "itself": sweep.path / f"queue{ending}",
        "below": below / f"out{ending}",
        "dots": tmp_path / "beside" / ".." / "inner" / "." / f"out{ending}",
        "link to a directory": tmp_path / "inner" / f"out{ending}",
        "link to a file": tmp_path / f"again{ending}",
        "bare name": f"out{ending}",
    }[way]
    before = {path: path.read_bytes() for path in sweep.path.rglob("*") if path.is_file()}
    done = fsqueue_cli("results", sweep.path, file, code=2)
    assert "inside the directory of a queue" in done.stderr
    assert {path: path.read_bytes() for path in sweep.path.rglob("*") if path.is_file()} == before


def test_a_table_called_like_a_queue_s_file_makes_no_queue(fsqueue_cli: Run, sweep: Queue, tmp_path: Path) -> None:
    """Otherwise the next table in the same directory would be refused."""
    for _ in range(2):
        fsqueue_cli("results", sweep.path, tmp_path / "queue.jsonl")
    fsqueue_cli("results", sweep.path, tmp_path / "out.csv")


def test_of_a_queue_that_is_purged_meanwhile_nothing_is_written(
    fsqueue_cli: Run, sweep: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out.csv").write_text("before")
    read = Queue.result_columns

    def purged(self: Queue, dead: bool = False, **more: Any) -> Iterator[Any]:
        found = read(self, dead)
        yield next(found)
        Queue(sweep.path).purge()
        yield from found

    monkeypatch.setattr(Queue, "result_columns", purged)
    done = fsqueue_cli("results", sweep.path, tmp_path / "out.csv", code=1)
    assert "was purged while its results were being read" in done.stderr
    assert f"{tmp_path / 'out.csv'} is as it was" in done.stderr
    assert (tmp_path / "out.csv").read_text() == "before"
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def histories(queue: Queue) -> list[Path]:
    return sorted(path for path in queue.path.glob("1-*/history/*/*") if path.is_file())


@pytest.mark.parametrize("options", [[], ["out.csv"], ["out.csv", "--where", "payload.x=1"], ["--json"]])
@pytest.mark.parametrize("tasks", [1, 2])
def test_what_is_missing_is_said(
    fsqueue_cli: Run, queue_factory: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str],
    tasks: int,
) -> None:  # fmt: skip
    """A completed task that the history does not have, in whatever way the results are shown."""
    monkeypatch.chdir(tmp_path)
    queue = queue_factory()
    fill(queue, *(({"x": number}, number) for number in range(1, 1 + tasks)))
    assert fsqueue_cli("results", queue.path, *options).stderr == ""
    for path in histories(queue):
        path.unlink()
    done = fsqueue_cli("results", queue.path, *options)
    are = "2 completed tasks of {} have no row: they are" if tasks == 2 else "1 completed task of {} has no row: it is"
    assert done.stderr.startswith(f"fsqueue: {are.format(queue.path)} not in the history")
    assert fsqueue_cli("results", queue.path, "--dead").stderr == "", "they were not asked for"


def test_a_queue_without_results_is_told_and_a_directory_of_queues_is_no_queue(
    fsqueue_cli: Run, queue_factory: QueueFactory
) -> None:
    queue = queue_factory()
    done = fsqueue_cli("results", queue.path)
    assert (done.stdout, done.stderr) == ("", f"{queue.path} has no finished task on record\n")
    assert fsqueue_cli("results", queue.path, "--json").stderr == ""
    fill(queue, ({"x": 1}, 1))
    assert "that meets the conditions" in fsqueue_cli("results", queue.path, "--where", "payload.x=2").stderr
    said = fsqueue_cli("results", queue.path.parent, code=5).stderr
    assert f"no queue. Check the path. To see queues that it holds: fsqueue status {queue.path.parent}" in said


def test_without_a_history_that_is_said(fsqueue_cli: Run, queue_factory: QueueFactory) -> None:
    queue = queue_factory(keep_history=False)
    fill(queue, ({"x": 1}, 1))
    assert "1 completed task of" in fsqueue_cli("results", queue.path).stderr


@pytest.mark.parametrize("mode", [0o640, 0o600, 0o664, 0o755])
def test_the_mode_of_the_file_that_is_replaced_is_kept(
    fsqueue_cli: Run, sweep: Queue, tmp_path: Path, mode: int
) -> None:
    file, link = tmp_path / "out.csv", tmp_path / "link.csv"
    file.write_text("before")
    file.chmod(mode)
    link.symlink_to("out.csv")
    fsqueue_cli("results", sweep.path, link)
    assert link.is_symlink()
    assert file.read_text().startswith('"id"')
    assert stat.S_IMODE(file.stat().st_mode) == mode


def test_a_new_file_has_the_mode_that_the_umask_leaves(fsqueue_cli: Run, sweep: Queue, tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        fsqueue_cli("results", sweep.path, tmp_path / "out.csv")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "out.csv").stat().st_mode) == 0o640


@needs_root
@pytest.mark.parametrize(("mode", "then"), [(0o666, 0o600), (0o777, 0o600), (0o400, 0o400)], ids=oct)
def test_another_user_s_file_does_not_choose_who_may_read_and_change_what_replaces_it(
    fsqueue_cli: Run, sweep: Queue, tmp_path: Path, mode: int, then: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He has put it in a shared directory, under a name that he expects. Not even when it is made may he do more."""
    opened, known = list[int](), os.open

    def noted(path: Any, *arguments: Any, **options: Any) -> int:
        fd = known(path, *arguments, **options)
        if str(path).startswith(".fsqueue-results-"):
            opened.append(stat.S_IMODE(os.fstat(fd).st_mode))
        return fd

    monkeypatch.setattr(os, "open", noted)
    file = tmp_path / "out.csv"
    file.write_text("before")
    file.chmod(mode)
    os.chown(file, MEMBER, MEMBER)
    mask = os.umask(0o077)
    try:
        fsqueue_cli("results", sweep.path, file)
    finally:
        os.umask(mask)
    found = file.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (then, 0, tmp_path.stat().st_gid)
    assert opened == [0o600, then], "what is written is put together in a first file, which is removed"
    assert file.read_text().startswith('"id"')


def test_without_the_group_of_the_old_file_one_s_own_group_may_do_no_more_than_all(
    fsqueue_cli: Run, sweep: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "out.csv"
    file.write_text("before")
    file.chmod(0o664)
    known = os.stat

    def of_another_group(path: Any, **options: Any) -> os.stat_result:
        found = known(path, **options)
        if path != "out.csv":
            return found
        fields = list(found)
        fields[stat.ST_GID] += 1
        return os.stat_result(fields)

    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "stat", of_another_group)
    monkeypatch.setattr(os, "fchown", refused)
    fsqueue_cli("results", sweep.path, file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_what_a_killed_command_has_left_is_removed_by_the_next(
    fsqueue_cli: Run, sweep: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same file, if nobody has it locked. All else stays."""
    with result_files.place_of(str(tmp_path / "out.csv")) as place:
        monkeypatch.setattr(os, "rename", lambda *_, **__: os._exit(9))
        if (pid := os.fork()) == 0:
            place.replace(lambda file: None)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
        monkeypatch.undo()
        [left] = [name for name in os.listdir(tmp_path) if name.startswith(".fsqueue-results-")]
        kinds = {"a pipe": os.mkfifo, "a directory": os.mkdir}
        digits = [digit for digit in "01234" if digit != left[-5]]
        theirs = {
            name: f"{left[:-5]}{digit}.tmp" for digit, name in zip(digits, [*kinds, "linked", "a link"], strict=False)
        }
        for kind, make in kinds.items():
            make(tmp_path / theirs[kind])
        (tmp_path / "mine").write_text("kept")
        os.link(tmp_path / "mine", tmp_path / theirs["linked"])
        (tmp_path / theirs["a link"]).symlink_to("mine")
        strays = {left + "x", left.replace("results-", "results-0"), ".out.csv.0123456789abcdef.tmp"}
        for name in strays:
            (tmp_path / name).write_text("kept")
        kept = {*theirs.values(), *strays, "mine"}

        def while_locked(file: IO[bytes]) -> None:
            fsqueue_cli("results", sweep.path, tmp_path / "out.csv")
            assert len({*os.listdir(tmp_path)} - kept - {"out.csv", left, sweep.path.name}) == 1, "a living one's stays"
            assert left not in os.listdir(tmp_path)
            file.write(b"last")

        place.replace(while_locked)
    assert {*os.listdir(tmp_path)} - {sweep.path.name} == kept | {"out.csv"}
    assert (tmp_path / "out.csv").read_text() == "last"
    assert (tmp_path / "mine").read_text() == "kept"


def test_a_file_that_was_taken_away_before_it_was_whole_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "out.csv").write_text("before")

    def exchanged(file: IO[bytes]) -> None:
        [name] = [name for name in os.listdir(tmp_path) if name.startswith(".")]
        (tmp_path / name).unlink()
        (tmp_path / name).write_text("another's")

    with (
        pytest.raises(OSError, match="was removed or replaced") as failed,
        result_files.place_of(str(tmp_path / "out.csv")) as place,
    ):
        place.replace(exchanged)
    assert failed.value.filename == str(tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "before"
    assert len(os.listdir(tmp_path)) == 2, "what is not ours is not removed"


def test_a_wrong_condition_is_refused(fsqueue_cli: Run, sweep: Queue) -> None:
    done = fsqueue_cli("results", sweep.path, "--where", "loss<1", code=2)
    assert "payload.name" in done.stderr


def test_ls_shows_both(fsqueue_cli: Run, sweep: Queue) -> None:
    lines = fsqueue_cli("ls", sweep.path, "--state", "completed").stdout.splitlines()
    assert lines[0].split()[-3:] == ["PAYLOAD", "->", "RESULT"]
    assert '{"x":2,"name":"n2"} -> {"loss":0.5,"ok":true}' in lines[3]


@needs_root
@pytest.mark.parametrize("target", ["there.csv", "made.csv"])
def test_a_link_of_another_user_is_not_followed_to_the_file(
    fsqueue_cli: Run, sweep: Queue, tmp_path: Path, target: str
) -> None:
    """Whoever may write beside it would choose which of this user's files is replaced, or where one is made."""
    project, mine = tmp_path / "project", tmp_path / "mine"
    project.mkdir()
    mine.mkdir()
    (mine / "there.csv").write_text("before")
    theirs, chain = project / "out.csv", tmp_path / "chain.csv"
    theirs.symlink_to(mine / target)
    os.lchown(theirs, MEMBER, MEMBER)
    chain.symlink_to(theirs)
    for path in (theirs, chain):
        said = fsqueue_cli("results", sweep.path, path, code=2).stderr
        assert f"{str(path)!r}" in said
        assert "a symbolic link of another user" in said
    assert os.listdir(mine) == ["there.csv"]
    assert (mine / "there.csv").read_text() == "before"
    os.lchown(theirs, 0, 0)
    fsqueue_cli("results", sweep.path, chain)
    assert (mine / target).read_text().startswith('"id"')


@pytest.mark.parametrize("target", ["there.csv", "there.csv/", "there.csv/.", "pipe.csv"])
def test_what_is_no_file_is_not_replaced(fsqueue_cli: Run, sweep: Queue, tmp_path: Path, target: str) -> None:
    (tmp_path / "there.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "out.csv").symlink_to(target)
    for name in ("there.csv", "pipe.csv", "out.csv"):
        assert "no regular file" in fsqueue_cli("results", sweep.path, tmp_path / name, code=2).stderr
    assert os.listdir(tmp_path / "there.csv") == []
    assert stat.S_ISFIFO((tmp_path / "pipe.csv").stat().st_mode)


def test_where_a_link_leads_to_nothing_the_file_is_made(fsqueue_cli: Run, sweep: Queue, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "out.csv").symlink_to("below/made.csv")
    fsqueue_cli("results", sweep.path, tmp_path / "out.csv")
    assert os.listdir(tmp_path / "below") == ["made.csv"]
    assert (tmp_path / "out.csv").is_symlink()


def test_the_newest_results_of_a_queue_and_of_several(
    fsqueue_cli: Run, queue_factory: QueueFactory, tmp_path: Path
) -> None:
    clock = ManualClock(1_800_000_000.0)
    queues = [Queue(queue_factory(name).path, clock=clock) for name in ("one", "two")]
    for number in range(6):
        queue = queues[number % 2]
        queue.insert_many([{"x": number}], batch_tasks=1)
        [task] = queue.lease()
        clock.advance(60)
        task.complete({"y": number})
    one, two = (queue.path for queue in queues)

    def told(*words: object) -> list[Any]:
        return [json.loads(line) for line in fsqueue_cli("results", *words, "--json").stdout.splitlines()]

    assert [row["payload"]["x"] for row in told(one, "--newest", 2)] == [4, 2]
    both = told(one, f"{two}/", "--newest", 3)
    assert [(row["payload"]["x"], Path(row["queue"]).name) for row in both] == [(5, "two"), (4, "one"), (3, "two")]
    assert [row["payload"]["x"] for row in told(one, "--newest", 2, "--where", "result.y<3")] == [2]
    file = tmp_path / "out.csv"
    assert fsqueue_cli("results", one, f"{two}/", file, "--newest", 4).stderr == ""
    rows = rows_of(file)
    assert [(row["x"], row["y"]) for row in rows] == [("5", "5"), ("4", "4"), ("3", "3"), ("2", "2")]
    assert [Path(row["queue"]).name for row in rows] == ["two", "one", "two", "one"]
    fsqueue_cli("results", queue_factory("empty").path, file, "--newest", 4)
    assert rows_of(file) == []


@pytest.mark.parametrize("more", [["--latest-by", "x"], ["--inputs-of", "x"], ["--newest", "1001"], ["--newest", "0"]])
def test_what_the_newest_results_do_not_go_with_is_refused(fsqueue_cli: Run, sweep: Queue, more: list[str]) -> None:
    assert "--newest" in fsqueue_cli("results", sweep.path, "--newest", 5, *more, code=2).stderr
