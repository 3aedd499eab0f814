"""insert of Parquet files: every row a task, every value what it was, or the column is named."""

from __future__ import annotations

import datetime as dt
import signal
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fsqueue_cli import insert_input, insert_parquet, insert_source, printing
from pyarrow import parquet

from fsqueue import Queue
from tests.cli.conftest import Run
from tests.conftest import QueueFactory

pytestmark = pytest.mark.once

NOON = dt.datetime(2026, 11, 30, 12)  # noqa: DTZ001 (a column without a zone)
COLUMNS: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "i": (pa.int64(), [-(2**63), None], [-(2**63), None]),
    "u": (pa.uint64(), [2**64 - 1, 0], [2**64 - 1, 0]),
    "f": (pa.float64(), [0.1, None], [0.1, None]),
    "f32": (pa.float32(), [0.1, 16777216.0], [0.1, 16777216.0]),
    "b": (pa.bool_(), [True, None], [True, None]),
    "s": (pa.string(), ["ä\n", ""], ["ä\n", ""]),
    "null": (pa.null(), [None, None], [None, None]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)], ["0001-01-01", "9999-12-31"]),
    "day64": (pa.date64(), [NOON, None], ["2026-11-30", None]),
    "at_s": (pa.timestamp("s"), [NOON, None], ["2026-11-30T12:00:00.000000", None]),
    "at_ms": (pa.timestamp("ms"), [1, 1500], ["1970-01-01T00:00:00.001000", "1970-01-01T00:00:01.500000"]),
    "at_us": (pa.timestamp("us"), [1, -1], ["1970-01-01T00:00:00.000001", "1969-12-31T23:59:59.999999"]),
    "at_ns": (pa.timestamp("ns"), [1_000, 1], ["1970-01-01T00:00:00.000001", "1970-01-01T00:00:00.000000001"]),
    "zone": (pa.timestamp("ms", tz="Europe/Berlin"), [0, None], ["1970-01-01T00:00:00.000000Z", None]),
    "time": (pa.time64("us"), [dt.time(1, 2, 3, 4), None], ["01:02:03.000004", None]),
    "time_s": (pa.time32("s"), [dt.time(1, 2, 3), None], ["01:02:03.000000", None]),
    "time_ms": (pa.time32("ms"), [dt.time(1, 2, 3, 4000), None], ["01:02:03.004000", None]),
    "time_ns": (pa.time64("ns"), [1_000_000_001, None], ["00:00:01.000000001", None]),
    "dec": (pa.decimal128(20, 2), [Decimal("12.50"), Decimal("123456789012345678.90")],
            ["12.50", "123456789012345678.90"]),
    "list": (pa.list_(pa.timestamp("s")), [[NOON, None], []], [["2026-11-30T12:00:00.000000", None], []]),
    "pair": (pa.list_(pa.int8(), 2), [[1, 2], None], [[1, 2], None]),
    "struct": (pa.struct({"a": pa.date32(), "b": pa.list_(pa.int8())}), [{"a": None, "b": [1]}, None],
               [{"a": None, "b": [1]}, None]),
    "map": (pa.map_(pa.string(), pa.decimal128(5, 1)), [[("k", Decimal("1.5")), ("l", None)], []],
            [{"k": "1.5", "l": None}, {}]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", None], ["a", None]),
}  # fmt: skip
"""Name of a column: its type, two values, and what becomes of them."""


def write(path: Path, **columns: Any) -> Path:
    parquet.write_table(pa.table(columns), path)
    return path


def payloads(queue: Queue) -> list[Any]:
    return sorted((task.payload for task in queue.tasks()), key=lambda payload: payload["n"])


def test_every_type_that_json_can_hold(fsqueue_cli: Run, queue: Queue, tmp_path: Path) -> None:
    columns = {name: pa.array(values, kind) for name, (kind, values, _) in COLUMNS.items()}
    file = write(tmp_path / "t.parquet", n=[0, 1], **columns)
    result = fsqueue_cli("insert", queue.path, file)
    assert (result.stdout, result.stderr) == ("2\n", "")
    found = payloads(queue)
    for name, (_, _, expected) in COLUMNS.items():
        assert [payload[name] for payload in found] == expected, name
        assert [type(payload[name]) for payload in found] == [*map(type, expected)], name


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pa.array([b"a"]), "the column 'x' of type binary"),
        (pa.array([b"ab"], pa.binary(2)), "the column 'x' of type fixed_size_binary[2]"),
        (pa.array([[b"a"]]), "the column 'x[]' of type binary"),
        (pa.array([{"a": {"b": b"a"}}]), "the column 'x.a.b' of type binary"),
        (pa.array([1], pa.duration("s")), "write it as a number of seconds"),
        (pa.array([[(1, 2)]], pa.map_(pa.int8(), pa.int8())), "its names are text alone"),
        (
            pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]),
            "with two fields 'a': rename one",
        ),
    ],
)
def test_a_column_that_json_has_no_form_for_is_refused_by_its_name(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, column: Any, says: str
) -> None:
    good, bad = write(tmp_path / "a.parquet", n=[1]), write(tmp_path / "b.parquet", n=[1], x=column)
    for more in ([], ["--commit", "c"], ["--skip-bad"]):
        result = fsqueue_cli("insert", queue.path, good, bad, *more, code=2)
        assert result.stderr.startswith(f"fsqueue: {bad} has the column 'x")
        assert says in result.stderr
        assert result.stderr.endswith("Nothing was inserted.\n")
    assert queue.status().inserted == 0


def test_a_column_without_a_name_is_refused(fsqueue_cli: Run, queue: Queue, tmp_path: Path) -> None:
    write(tmp_path / "t.parquet", n=[1], **{"": [2]})
    result = fsqueue_cli("insert", queue.path, tmp_path / "t.parquet", code=2)
    assert "t.parquet has no name for the column number 2: give it one. Nothing was inserted." in result.stderr
    assert queue.status().inserted == 0


def test_an_index_of_pandas_and_a_name_that_no_command_can_type_are_told(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path
) -> None:
    file = write(tmp_path / "t.parquet", n=[1], **{"__index_level_0__": [10], 'the 5" disk': [2], "2x": [3]})
    result = fsqueue_cli("insert", queue.path, file, tmp_path / "t.parquet")
    assert result.stderr.splitlines() == [
        "hint: no placeholder of a command can name the column 'the 5\" disk', which has a double quote or a brace",
        "hint: the column '__index_level_0__' is the index of a pandas table, and a field of each task: "
        "to_parquet(…, index=False) leaves it out",
    ]
    assert payloads(queue)[0]["__index_level_0__"] == 10


@pytest.mark.parametrize("option", ["--key", "--priority"])
def test_a_column_of_an_option_that_is_not_there_is_refused_before_anything(
    fsqueue_cli: Run, queue: Queue, table: Path, option: str
) -> None:
    result = fsqueue_cli("insert", queue.path, table, option, "zz", code=2)
    assert f"has no column 'zz' ({option}). Its columns are 'n', 'x'. Nothing was inserted." in result.stderr
    assert queue.status().inserted == 0


def test_two_columns_of_one_name_are_refused(fsqueue_cli: Run, queue: Queue, tmp_path: Path) -> None:
    parquet.write_table(pa.table([pa.array([1]), pa.array([2])], names=["n", "n"]), tmp_path / "t.parquet")
    assert "has two columns 'n'" in fsqueue_cli("insert", queue.path, tmp_path / "t.parquet", code=2).stderr


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (pa.array([0.5, float("nan"), 2]), "has nan, which JSON does not have, in the column 'x'"),
        (pa.array([0.5, float("-inf"), 2], pa.float32()), "has -inf, which JSON does not have, in the column 'x'"),
        (pa.array([0, 10**12, 0], pa.timestamp("s")), "has a time beyond the years 1 to 9999 in the column 'x'"),
        (
            pa.array([0, 10**7, 0], pa.int32()).cast(pa.date32()),
            "has a date beyond the years 1 to 9999 in the column 'x'",
        ),
        (pa.array([b"a", b"\xff", b"b"]).view(pa.string()), "has text that is not UTF-8 in the column 'x'"),
        (
            pa.ListArray.from_arrays([0, 0, 1, 1], pa.array([b"\xff"]).view(pa.string())),
            "has text that is not UTF-8 in the column 'x'",
        ),
        (pa.array([[], [("k", 1), ("k", 2)], []], pa.map_(pa.string(), pa.int8())), "has a map with a key twice in"),
    ],
)
def test_a_value_that_json_has_no_form_for_is_a_bad_row(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, values: Any, says: str
) -> None:
    file = write(tmp_path / "my tasks.parquet", n=[0, 1, 2], x=values)
    result = fsqueue_cli("insert", queue.path, file, code=2)
    assert f"{file}, row 2 {says}" in result.stderr
    assert "1 task was inserted, from all the rows before this one" in result.stderr
    assert f"insert the rows of '{file}' from number 2 on; to repeat" in result.stderr
    assert "nothing was inserted as a" in fsqueue_cli("insert", queue.path, file, "--commit", "a", code=2).stderr
    fsqueue_cli("insert", queue.path, file, "--skip-bad", code=1)
    assert [payload["n"] for payload in payloads(queue)] == [0, 0, 2]


def test_it_goes_with_keys_priorities_commits_and_other_files(fsqueue_cli: Run, queue: Queue, tmp_path: Path) -> None:
    named = write(tmp_path / "a.pq", n=[1, 2], p=["b", None])
    unnamed = write(tmp_path / "no suffix", n=[3], p=pa.nulls(1))
    (tmp_path / "lines").write_text('{"n": 4}\n')
    given = (named, unnamed, tmp_path / "lines")
    assert fsqueue_cli("insert", queue.path, *given, "--key", "n", "--priority", "p").stdout == "4\n"
    assert fsqueue_cli("insert", queue.path, *given, "--key", "n").stdout == "0\n"
    assert {task.key: task.priority for task in queue.tasks()} == {"1": "b", "2": None, "3": None, "4": None}
    for count in (4, 0):
        assert fsqueue_cli("insert", queue.path, *given, "--commit", "c").stdout == f"{count}\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A directory of two parts, as Spark writes them."""
    whole = tmp_path / "my table.parquet"
    whole.mkdir()
    for name in ("_SUCCESS", "._SUCCESS.crc", ".part-00000.snappy.parquet.crc"):
        (whole / name).touch()
    write(whole / "part-00001.snappy.parquet", n=[3, 4], x=["c", None])
    write(whole / "part-00000.snappy.parquet", n=[1, 2], x=["a", "b"])
    return whole


def test_a_directory_of_parts_is_one_table_in_the_order_of_names(
    fsqueue_cli: Run, queue_factory: QueueFactory, table: Path
) -> None:
    queue = queue_factory(shards=1)
    for count in (4, 0):
        assert fsqueue_cli("insert", queue.path, f"{table}/", "--commit", "c").stdout == f"{count}\n"
    assert [(task.payload["n"], task.payload["x"]) for task in queue.lease(9)] == [
        (1, "a"), (2, "b"), (3, "c"), (4, None)
    ]  # fmt: skip


def test_a_repeated_commit_does_not_look_for_the_directory(
    fsqueue_cli: Run, queue: Queue, table: Path, tmp_path: Path
) -> None:
    fsqueue_cli("insert", queue.path, table, "--commit", "c")
    table.rename(tmp_path / "gone")
    assert fsqueue_cli("insert", queue.path, table, "--commit", "c").stdout == "0\n"


def test_a_directory_goes_with_other_files_and_options(
    fsqueue_cli: Run, queue: Queue, table: Path, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_text('{"n": 0}\n')
    last = write(tmp_path / "last.parquet", x=["e"], n=pa.nulls(1, pa.int64()))
    assert fsqueue_cli("insert", queue.path, tmp_path / "lines", table, last, "--priority", "n").stdout == "6\n"
    assert {task.payload["n"]: task.priority for task in queue.tasks()} == {
        0: 0, 1: 1, 2: 2, 3: 3, 4: 4, None: None
    }  # fmt: skip


def test_the_bar_is_as_long_as_all_parts_of_a_directory(
    fsqueue_cli: Run, queue: Queue, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not as the directory itself. In the end it has come so far."""
    last = write(table / "part-00002.parquet", n=list(range(300)), x=["d"] * 300)
    alone = write(tmp_path / "alone.parquet", n=[5], x=["e"])
    given: list[dict[str, Any]] = []
    done: list[float] = []

    class Bar:
        n = 0

        def __init__(self, **options: Any) -> None:
            given.append(options)

        def set_postfix_str(self, text: str, refresh: bool) -> None:
            assert text == "256 tasks"

        def update(self, count: int) -> None:
            self.n += count

        def close(self) -> None:
            done.append(self.n)

    monkeypatch.setattr(printing, "is_screen", lambda stream: True)
    monkeypatch.setattr(insert_source, "PROGRESS_AFTER_S", 0.0)
    monkeypatch.setattr("tqdm.tqdm", Bar)
    fsqueue_cli("insert", queue.path, table, alone)
    parts = [path.stat().st_size for path in table.glob("part-*")]
    assert [options["total"] for options in given] == [sum(parts) + alone.stat().st_size]
    assert [sum(parts) - last.stat().st_size < count <= sum(parts) for count in done] == [True]


def test_a_column_without_values_in_a_part_agrees_with_any(fsqueue_cli: Run, queue: Queue, table: Path) -> None:
    write(table / "part-00000.a.parquet", n=[0], x=pa.nulls(1))
    write(table / "part-00002.parquet", x=pa.nulls(1), n=[5])
    assert fsqueue_cli("insert", queue.path, table).stdout == "6\n"


def test_a_column_without_values_in_the_first_part_has_the_type_of_the_next(
    fsqueue_cli: Run, queue: Queue, table: Path
) -> None:
    write(table / "part-00000.a.parquet", n=[0], x=pa.nulls(1))
    last = write(table / "part-00002.parquet", n=[5], x=[1])
    result = fsqueue_cli("insert", queue.path, table, code=2)
    known = table / "part-00000.snappy.parquet"
    assert f"{last} has the column 'x' of type int64, and {known} has it of type string" in result.stderr
    assert queue.status().inserted == 0


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"n": [5]}, "has no column 'x', and"),
        ({"n": [5], "x": ["a"], "y": [1]}, "has a column 'y', and"),
        ({"n": [5], "x": [1]}, "has the column 'x' of type int64, and"),
        ({"n": [5], "x": pa.array([b"a"])}, "has the column 'x' of type binary, which JSON does not have"),
    ],
)
def test_parts_that_do_not_agree_are_refused_by_file_and_column(
    fsqueue_cli: Run, queue: Queue, table: Path, tmp_path: Path, columns: dict[str, Any], says: str
) -> None:
    part = write(table / "part-00002.parquet", **columns)
    for more in ([], ["--commit", "c"], ["beside"]):
        given = [table]
        if more == ["beside"]:  # several files are one table, as those of a directory are
            part = part.rename(tmp_path / "part.parquet")
            given, more = [table, part], []
        result = fsqueue_cli("insert", queue.path, *given, *more, code=2)
        assert result.stderr.startswith(f"fsqueue: {part} {says}")
        assert result.stderr.endswith("Nothing was inserted.\n")
    assert queue.status().inserted == 0


@pytest.mark.parametrize(
    ("name", "is_directory", "says"),
    [
        ("day=2026-11-30", True, "it is partitioned, with values of the column 'day' in names of directories"),
        ("inner", True, "inner is in it, which is no Parquet file"),
        ("inner.parquet", True, "inner.parquet is in it, which is no Parquet file"),
        ("README.md", False, "README.md is in it, which is no Parquet file"),
        ("_delta_log", True, "it is a Delta table"),
        (".hoodie", True, "it is a Hudi table"),
        ("_temporary", True, "a job is writing it, or has died"),
    ],
)
def test_a_directory_with_anything_else_in_it_is_refused(
    fsqueue_cli: Run, queue: Queue, table: Path, name: str, is_directory: bool, says: str
) -> None:
    (table / name).mkdir() if is_directory else (table / name).touch()
    result = fsqueue_cli("insert", queue.path, table, code=2)
    assert result.stderr.startswith(f"fsqueue: {table} cannot be inserted as one table: ")
    assert says in result.stderr
    assert queue.status().inserted == 0


def test_a_directory_of_partitions_alone_is_refused_by_their_column(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path
) -> None:
    """As Spark writes it with `partitionBy`: no file lies beside the directories."""
    (tmp_path / "table" / "day=1").mkdir(parents=True)
    write(tmp_path / "table" / "day=1" / "part-0.parquet", n=[1])
    result = fsqueue_cli("insert", queue.path, tmp_path / "table", code=2)
    assert "it is partitioned, with values of the column 'day' in names of directories (day=1)" in result.stderr


def test_names_of_files_may_be_in_capitals(fsqueue_cli: Run, queue: Queue, tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    write(tmp_path / "table" / "A.PARQUET", n=[1])
    write(tmp_path / "table" / "b.Pq", n=[2])
    assert fsqueue_cli("insert", queue.path, tmp_path / "table").stdout == "2\n"


def test_a_directory_that_is_no_table_is_refused_as_ever(fsqueue_cli: Run, queue: Queue, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    assert f"{other}: it is a directory. Nothing" in fsqueue_cli("insert", queue.path, other, code=2).stderr
    (other / "part-0.csv").touch()
    assert "(its files: " in fsqueue_cli("insert", queue.path, other, code=2).stderr
    (other / "part-0.csv").rename(other / "part-0.parquet")
    assert "it is a directory" in fsqueue_cli("insert", queue.path, "--lines", other, code=2).stderr


def test_a_bad_row_of_a_part_says_where_to_go_on(fsqueue_cli: Run, queue: Queue, tmp_path: Path) -> None:
    table = tmp_path / "table"
    table.mkdir()
    for n in range(30):
        write(table / f"p{n:02}.parquet", n=[n, n + 100], x=[0.5, float("nan") if n == 3 else 1.5])
    result = fsqueue_cli("insert", queue.path, table, code=2)
    bad = table / "p03.parquet"
    assert f"{bad}, row 2 has nan" in result.stderr
    assert f"insert the rows of {bad} from number 2 on, and after it {table / 'p04.parquet'} " in result.stderr
    assert "and the 6 behind them; to repeat" in result.stderr
    assert queue.status().inserted == 7


def test_a_large_file_comes_in_batches(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(insert_parquet, "BATCH_BYTES", 20_000)
    sizes = []
    real = parquet.ParquetFile.iter_batches

    def noted(self: Any, *args: Any, **options: Any) -> Any:
        for batch in real(self, *args, **options):
            sizes.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", noted)
    file = tmp_path / "t.parquet"
    parquet.write_table(
        pa.table({"n": range(5000), "x": [f"{n:0100d}" for n in range(5000)]}), file, row_group_size=1000
    )
    assert fsqueue_cli("insert", queue.path, file).stdout == "5000\n"
    assert max(sizes) <= 500
    assert [payload["n"] for payload in payloads(queue)] == [*range(5000)]


def test_a_signal_ends_the_reading_within_a_file(tmp_path: Path) -> None:
    """Else Ctrl-C would wait for the end of a file of millions of rows."""
    source = insert_input.Input(1 << 20)
    form = insert_parquet.ParquetFormat(source)
    with write(tmp_path / "t.parquet", n=[*range(5)]).open("rb") as file:
        rows = form.rows(0, "t.parquet", file)
        assert [next(rows)[3], next(rows)[3]] == [{"n": 0}, {"n": 1}]
        source.signal = signal.SIGINT
        assert list(rows) == []
    assert form.line == 2


def test_what_is_no_parquet_or_damaged_or_comes_through_a_pipe(fsqueue_cli: Run, queue: Queue, tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_text("hello\n")
    result = fsqueue_cli("insert", queue.path, tmp_path / "t.parquet", code=2)
    assert f"{tmp_path / 't.parquet'} cannot be read as Parquet: " in result.stderr
    assert ".." not in result.stderr
    file = write(tmp_path / "u.parquet", n=[*range(1000)], x=[f"{n:0100d}" for n in range(1000)])
    data = file.read_bytes()
    assert (
        "it is a Parquet file, which cannot be read from a pipe"
        in fsqueue_cli("insert", queue.path, input=data, code=2).stderr
    )
    for option in ("--csv", "--lines"):
        result = fsqueue_cli("insert", queue.path, option, file, code=2)
        assert "it is a Parquet file: leave out the option" in result.stderr
    file.write_bytes(data[:1000] + b"\xff" * 2000 + data[3000:])
    result = fsqueue_cli("insert", queue.path, file, code=2)
    assert f"{file} cannot be read: " in result.stderr
    assert queue.status().inserted == 0


def test_of_a_file_that_is_damaged_half_way_the_first_row_that_cannot_be_read_is_named(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(insert_parquet, "BATCH_ROWS_MAX", 50)
    names = [f"{n:0100d}" for n in range(300)]
    parquet.write_table(
        pa.table({"n": [*range(300)], "x": names}), tmp_path / "a.parquet", row_group_size=100, compression="none"
    )
    opened = parquet.ParquetFile(tmp_path / "a.parquet")
    column = opened.metadata.row_group(2).column(1)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    begin = column.dictionary_page_offset or column.data_page_offset
    data[begin : begin + 40] = b"\xff" * 40
    (tmp_path / "a.parquet").write_bytes(data)
    result = fsqueue_cli("insert", queue.path, tmp_path / "a.parquet", code=2)
    inserted = queue.status().inserted
    assert 0 < inserted <= 200
    assert f"{tmp_path / 'a.parquet'}, row {inserted + 1:,} cannot be read: " in result.stderr
    assert f"the rows of {tmp_path / 'a.parquet'} from number {inserted + 1:,} on" in result.stderr


def test_without_pyarrow_it_says_what_to_install(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "t.parquet", n=[1])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = fsqueue_cli("insert", queue.path, file, code=2)
    assert result.stderr == (
        f"fsqueue: {file} is a Parquet file, and pyarrow is not installed. To install it: "
        "pip install 'fsqueue-tasks[arrow]'. Nothing was inserted.\n"
    )
