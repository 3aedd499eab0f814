"""`fsqueue results`: tables with inputs beside outputs."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from fsqueue_cli import result_files

from fsqueue import Queue
from tests.cli.conftest import Run
from tests.support import QueueFactory

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


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is in the extra `arrow`")
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
def test_every_value_comes_back_from_a_csv(value: Any) -> None:
    """What goes the fast way is read like what the library `csv` writes."""
    line = result_files._csv_line(["first", None, value, None, "null", 5]).decode()
    [cells] = csv.reader(io.StringIO(line, newline=""))
    wanted = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    assert cells[:2] + cells[3:] == ["first", "", "", "null", "5"]
    if isinstance(value, float):
        assert float(cells[2]) == value
    else:
        assert cells[2] == wanted


def test_objects_with_too_many_fields_stay_whole(
    fsqueue_cli: Run, queue_factory: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_files, "COLUMNS_MAX", 3)
    queue = queue_factory()
    fill(queue, *[({f"k{number}": number}, {"y": number}) for number in range(6)])
    path = str(tmp_path / "out.jsonl")
    rows, columns = result_files.write(path, queue.results(), lambda done: None)
    assert rows == 6
    assert columns <= len(HEAD) + len(TAIL) + 3 + 3
    found = [json.loads(line) for line in Path(path).read_text().splitlines()]
    assert json.loads(found[5]["payload"]) == {"k5": 5}


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
        (["--failed"], [9]),
        (["--failed", "--where", "payload.x=1"], []),
    ],
)
def test_some_are_chosen(fsqueue_cli: Run, sweep: Queue, options: list[str], found: list[int]) -> None:
    lines = fsqueue_cli("results", sweep.path, *options).stdout.splitlines()
    assert [json.loads(line)["payload"]["x"] for line in lines] == found


def test_an_empty_table_has_a_header(fsqueue_cli: Run, queue_factory: QueueFactory, tmp_path: Path) -> None:
    fsqueue_cli("results", queue_factory().path, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == ",".join(f'"{name}"' for name in [*HEAD, *TAIL]) + "\n"


@pytest.mark.parametrize(
    ("name", "says", "code"),
    [
        ("out.xlsx", "ends in none of .csv, .jsonl", 2),
        ("directory.csv", "no regular file", 2),
        ("missing/out.csv", "No such file", 1),
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

    def failing(path: str, table: object) -> None:
        Path(path).write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(result_files.FORMATS, ".csv", (failing, lambda: None))
    with pytest.raises(OSError, match="No space"):
        result_files.write(str(file), sweep.results(), lambda done: None)
    assert file.read_text() == "before"
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".out")]


def test_a_wrong_condition_is_refused(fsqueue_cli: Run, sweep: Queue) -> None:
    done = fsqueue_cli("results", sweep.path, "--where", "loss<1", code=2)
    assert "payload.name" in done.stderr


def test_ls_shows_both(fsqueue_cli: Run, sweep: Queue) -> None:
    lines = fsqueue_cli("ls", sweep.path, "--state", "completed").stdout.splitlines()
    assert lines[0].split()[-3:] == ["PAYLOAD", "->", "RESULT"]
    assert '{"x":2,"name":"n2"} -> {"loss":0.5,"ok":true}' in lines[3]
