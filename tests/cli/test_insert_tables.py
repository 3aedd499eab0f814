"""insert --csv, --tsv, --delimiter: every row a task, every cell what it was, or named with its line."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shlex
import signal
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from fsqueue_cli import insert_input, insert_tables
from fsqueue_cli.insert_tables import number_in
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsqueue import Queue, Worker
from fsqueue.worker import placeholders
from tests.cli.conftest import Run, Spawn, waits
from tests.cli.test_insert_commit import is_read
from tests.conftest import QueueFactory
from tests.levels import how_many
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once

NUMBERS = {
    "0": 0, "7": 7, "-7": -7, "1.5": 1.5, "-0.25": -0.25, "1e5": 100000.0, "1E-3": 0.001, ".5": 0.5, "5.": 5.0,
    " 3 ": 3, "-0": 0, "-0.0": -0.0, "18446744073709551615": 2**64 - 1, "-9223372036854775808": -(2**63), "1.0": 1.0,
    "3.10": 3.1, "1E5": 100000.0, "1e23": 1e23, "0.10000000000000001": 0.1, "1.000000000000000056e-01": 0.1,
    "0.1000000000000000055511151231257827021181583404541015625": 0.1, "0." + "5" + "0" * 900: 0.5, "-0e-999": -0.0,
    "0.30000000000000004": 0.1 + 0.2, "123456789012345.6": 123456789012345.6, "5e-324": 5e-324,
}  # fmt: skip
TEXTS = [
    "007", "00", "-01", "00.5", "+1", "+1.5", "1_000", "1,000", "1 000", "nan", "NaN", "inf", "-inf", "Infinity",
    "1e999", "18446744073709551616", "-9223372036854775809", "9" * 5000, "0x1f", "1e", "e5", ".", "-", "--1", "1.2.3",
    "12345678901234567890.123", "0.12345678901234567890", "0.12345678901234567", "-1.00000000000000000001e5",
    "0.1" + "0" * 900 + "1", "9007199254740993.0", "1e-400", "1.2345e-320",
    "true", "NA", "null", "2026-11-30", "٣", "1\n",
]  # fmt: skip


def payloads(queue: Queue) -> list[Any]:
    """In the order in which they were inserted: the tests here have a column n for it."""
    return sorted((task.payload for task in queue.tasks()), key=lambda payload: payload["n"])


def table(*rows: str) -> str:
    return "".join(f"{row}\n" for row in rows)


@pytest.mark.parametrize("text", NUMBERS)
def test_what_json_writes_as_a_number_is_one(text: str) -> None:
    found = number_in(text)
    assert found == NUMBERS[text]
    assert type(found) is type(NUMBERS[text])
    assert found is not None
    assert math.copysign(1, found) == math.copysign(1, NUMBERS[text]), "the sign of a zero"


@pytest.mark.parametrize("text", TEXTS)
def test_what_a_number_would_change_is_text(fsqueue_cli: Run, queue: Queue, text: str) -> None:
    assert number_in(text) is None
    written = io.StringIO()
    csv.writer(written).writerows([["n", "x"], [1, "5"], [2, text]])
    fsqueue_cli("insert", queue.path, "--csv", input=written.getvalue())
    assert payloads(queue) == [{"n": 1, "x": "5"}, {"n": 2, "x": text}]


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(15, 40))
def test_a_float_that_a_program_has_printed_with_enough_digits_is_a_number(value: float, digits: int) -> None:
    """As C and NumPy print them; else whole tables of measurements would be text."""
    assert number_in(repr(value).replace("+", "")) == value
    if digits >= 17:
        found = number_in(f"{value:.{digits - 1}e}")
        assert found is not None
        assert found == value


@given(st.from_regex(r"-?(0|[1-9][0-9]{0,8})\.[0-9]{1,40}", fullmatch=True))
def test_no_digit_of_a_number_is_lost(cell: str) -> None:
    """What a float does not hold is text. What it holds can be printed again with as many digits."""
    found = number_in(cell)
    if found is None:
        assert Decimal(repr(float(cell))) != Decimal(cell)
    else:
        digits = len(cell.partition(".")[2])
        assert f"{found:.{digits}f}".strip("-") == cell.strip("-")


SPELLED = table("n,version,sample,x", "1,3.9,2E10,0.5", "2,3.10,1E5,0.25")


def test_a_spelling_that_changes_is_told_before_anything_is_inserted(spawn: Spawn, queue: Queue) -> None:
    process = spawn("insert", queue.path, "--csv", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(SPELLED + table(*(f"{n},3.9,5,1" for n in range(3, 10_001))))
    process.stdin.flush()
    told = [process.stderr.readline() for _ in range(3)]
    assert told == [
        "fsqueue: the column 'version' has numbers, and '3.10' becomes 3.1. To keep each cell as it is written: "
        "--text version\n",
        "fsqueue: the column 'sample' has numbers, and '2E10' becomes 20000000000.0. To keep each cell as it is "
        "written: --text sample\n",
        "fsqueue: to keep all columns as they are written: --text-all\n",
    ]
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (0, "10000\n", "")


def test_it_is_told_before_the_first_task_is_there(
    fsqueue_cli: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, str]] = []
    monkeypatch.setattr(insert_tables, "complain", lambda text: seen.append((queue.status().inserted, text)))
    fsqueue_cli("insert", queue.path, "--csv", "--batch-tasks", 1, input=SPELLED)
    assert [inserted for inserted, _ in seen] == [0, 0, 0]


@pytest.mark.parametrize("commit", [[], ["--commit", "a"]])
def test_programs_read_which_columns_are_spelled_otherwise(fsqueue_cli: Run, queue: Queue, commit: list[str]) -> None:
    ran = fsqueue_cli("insert", queue.path, "--csv", *commit, "--json", input=SPELLED)
    assert json.loads(ran.stdout)["respelled"] == [
        {"column": "version", "cell": "3.10", "becomes": "3.1"},
        {"column": "sample", "cell": "2E10", "becomes": "20000000000.0"},
    ]
    assert json.loads(fsqueue_cli("insert", queue.path, "--csv", "--json", input="n,x\n1,0.5\n").stdout) == {
        "inserted": 1,
        "skipped": 0,
        "respelled": [],
    }
    assert "respelled" not in json.loads(fsqueue_cli("insert", queue.path, "--json", input="1\n").stdout)


def test_commands_get_what_stands_in_the_cell_if_the_advice_is_followed(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path
) -> None:
    ran = fsqueue_cli("insert", queue.path, "--csv", input=SPELLED)
    advised = [option for line in ran.stderr.splitlines() for option in re.findall("--text \\w+", line)]
    queue.purge()
    silent = fsqueue_cli("insert", queue.path, "--csv", *" ".join(advised).split(), input=SPELLED)
    assert silent.stderr == ""
    assert payloads(queue) == [
        {"n": 1, "version": "3.9", "sample": "2E10", "x": 0.5},
        {"n": 2, "version": "3.10", "sample": "1E5", "x": 0.25},
    ]
    Worker(queue, command=["sh", "-c", 'echo "$@" >>"$0"', str(tmp_path / "out"), "{version}", "{sample}"]).run()
    assert sorted((tmp_path / "out").read_text().splitlines()) == ["3.10 1E5", "3.9 2E10"]


def test_a_column_of_text_is_not_told(fsqueue_cli: Run, queue: Queue) -> None:
    ran = fsqueue_cli("insert", queue.path, "--csv", input=table("n,x,y", "1,3.10,1", "2,a,2", "3,,-0"))
    assert ran.stderr == (
        "fsqueue: the column 'y' has numbers, and '-0' becomes 0. To keep each cell as it is written: --text y\n"
    )


def test_a_later_row_is_told_once(fsqueue_cli: Run, queue: Queue) -> None:
    rows = [f"{n},1.5" for n in range(10_000)]
    ran = fsqueue_cli("insert", queue.path, "--csv", input=table("n,x", *rows, "10000,3.10", "10001,3.20"))
    assert ran.stderr == (
        "fsqueue: the column 'x' has numbers, and '3.10' becomes 3.1. To keep each cell as it is written: --text x\n"
    )


def test_many_columns_are_told_in_few_lines(fsqueue_cli: Run, queue: Queue) -> None:
    ran = fsqueue_cli(
        "insert",
        queue.path,
        "--csv",
        input=table(",".join(f"c{n}" for n in range(25)), ",".join(["1.0", "1.50"] * 12 + ["1.50"])),
    )
    assert len(ran.stderr.splitlines()) == 14
    names = ",".join(f"c{n}" for n in range(25))
    ran = fsqueue_cli("insert", queue.path, "--csv", input=table(names, ",".join(["1.50"] * 25)))
    assert ran.stderr.splitlines()[20:] == [
        "fsqueue: 5 more columns of this kind",
        "fsqueue: to keep all columns as they are written: --text-all",
    ]


def test_text_all_keeps_every_cell(spawn: Spawn, queue: Queue) -> None:
    """No types are decided, so the first rows do not wait for others."""
    process = spawn("insert", queue.path, "--csv", "--text-all", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(SPELLED + "3,,007, 1 \n")
    process.stdin.flush()
    until(lambda: queue.status().waiting == 3, "the rows to be inserted")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (0, "3\n", "")
    assert payloads(queue) == [
        {"n": "1", "version": "3.9", "sample": "2E10", "x": "0.5"},
        {"n": "2", "version": "3.10", "sample": "1E5", "x": "0.25"},
        {"n": "3", "version": None, "sample": "007", "x": " 1 "},
    ]


def test_the_rest_after_a_bad_row_is_advised_with_text_all(fsqueue_cli: Run, queue: Queue, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(table("n,x", "1,3.10", "2"))
    ran = fsqueue_cli("insert", queue.path, "--csv", "--text-all", file, code=2)
    assert f"sed 2,2d {file}' prints (with --text-all)" in ran.stderr


@pytest.mark.parametrize("line", ["sep=;", "SEP=;", "\ufeffsep=;", '"sep=;"'])
def test_a_line_of_excel_that_names_the_separator_is_no_header(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, line: str
) -> None:
    file = tmp_path / "t.csv"
    file.write_text(table(line, "n;x", "1;a", "2;b", "3"))
    ran = fsqueue_cli("insert", queue.path, "--delimiter", ";", file, code=2)
    assert payloads(queue) == [{"n": 1, "x": "a"}, {"n": 2, "x": "b"}]
    assert "line 5 has 1 cell" in ran.stderr
    assert f"sed 3,4d {file}" in ran.stderr, "the line and the header stay before the rest"


@pytest.mark.parametrize(("mark", "option"), [(";", "--delimiter ';'"), ("\t", "--tsv"), ("!", "--delimiter '!'")])
def test_a_line_of_excel_that_names_another_separator_is_told(
    fsqueue_cli: Run, queue: Queue, mark: str, option: str
) -> None:
    ran = fsqueue_cli("insert", queue.path, "--csv", input=table(f"sep={mark}", f"n{mark}x", f"1{mark}a"), code=2)
    assert f"line 1 says, as Excel writes it, that {mark!r} separates the cells: use {option}\n" in ran.stderr
    assert "pandas" not in ran.stderr
    assert queue.status().inserted == 0


def test_rows_are_objects_by_the_header(fsqueue_cli: Run, queue: Queue, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(table("n,alpha, steps,id,note", "1,0.5,100,007,", "", '2,1,,17,"a ""b"", c"', "3,1e-3, 5,x y, z "))
    result = fsqueue_cli("insert", queue.path, "--csv", file)
    changed = (
        "the column 'alpha' has numbers, and '1e-3' becomes 0.001. To keep each cell as it is written: --text alpha"
    )
    assert (result.stdout, result.stderr) == ("3\n", f"fsqueue: {changed}\n")
    assert payloads(queue) == [
        {"n": 1, "alpha": 0.5, "steps": 100, "id": "007", "note": None},
        {"n": 2, "alpha": 1, "steps": None, "id": "17", "note": 'a "b", c'},
        {"n": 3, "alpha": 0.001, "steps": 5, "id": "x y", "note": " z "},
    ]
    assert type(payloads(queue)[1]["alpha"]) is int, "a number stays what it was written as"


@pytest.mark.parametrize(
    ("options", "mark"),
    [(["--csv"], ","), (["--tsv"], "\t"), (["--delimiter", ";"], ";"), (["--delimiter", "\\t"], "\t"),
     (["--csv", "--delimiter", "|"], "|"), (["--delimiter", "§"], "§")],
)  # fmt: skip
def test_separators(fsqueue_cli: Run, queue: Queue, options: list[str], mark: str) -> None:
    fsqueue_cli("insert", queue.path, *options, "-", input=f"n{mark}x\n1{mark}a.:b\n")
    assert payloads(queue) == [{"n": 1, "x": "a.:b"}]


@pytest.mark.parametrize("options", [["--csv"], ["--tsv"], ["--delimiter", " "], ["--csv", "--text", "x"]])
def test_in_a_table_of_one_column_what_is_in_quotes_is_a_row_and_only_an_empty_line_is_none(
    fsqueue_cli: Run, queue: Queue, options: list[str]
) -> None:
    """As `csv.writer` and pandas write an empty cell there."""
    written = io.StringIO()
    csv.writer(written, quoting=csv.QUOTE_ALL).writerows([["x"], ["a"], [""], ["  "], ["\n"]])
    given = written.getvalue() + "\n\r\n"
    assert fsqueue_cli("insert", queue.path, *options, input=given).stdout == "4\n"
    assert sorted((task.payload["x"] for task in queue.tasks()), key=str) == ["\n", "  ", None, "a"]


def test_a_line_of_blanks_is_a_row_only_where_they_separate_cells(fsqueue_cli: Run, queue: Queue) -> None:
    assert fsqueue_cli("insert", queue.path, "--csv", input="n\n1\n \t\n\n").stdout == "1\n"
    assert fsqueue_cli("insert", queue.path, "--csv", input='n\n""\n"  "\n').stdout == "2\n"
    assert fsqueue_cli("insert", queue.path, "--tsv", input="n\tx\n\t\n").stdout == "1\n"
    assert fsqueue_cli("insert", queue.path, "--delimiter", " ", input="n x\n \n").stdout == "1\n"


@pytest.mark.parametrize("mark", ["", "ab", '"', "\n", "\r"])
def test_what_cannot_separate_is_refused(fsqueue_cli: Run, queue: Queue, mark: str) -> None:
    assert "is one character" in fsqueue_cli("insert", queue.path, "--delimiter", mark, input="a\n", code=2).stderr


def test_a_byte_order_mark_dos_line_ends_and_line_ends_in_cells(fsqueue_cli: Run, queue: Queue) -> None:
    given = b'\xef\xbb\xbfn,x\r\n1,"a\r\nb"\r\n\r\n2,"c\nd"\r\n3,e'
    fsqueue_cli("insert", queue.path, "--csv", input=given)
    assert payloads(queue) == [{"n": 1, "x": "a\r\nb"}, {"n": 2, "x": "c\nd"}, {"n": 3, "x": "e"}]


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6) | st.sampled_from(
    [*NUMBERS, *TEXTS, "", " ", '"', '""', "a,b", "\r", "\n", "\r\n"]
)


@settings(deadline=None, max_examples=how_many(20, 200), suppress_health_check=list(HealthCheck))
@given(rows=st.lists(st.lists(CELLS, min_size=2, max_size=2), max_size=8), chunk=st.integers(1, 40))
def test_whatever_python_writes_as_csv_comes_back(rows: list[list[str]], chunk: int) -> None:
    """Cells of columns of text as they were; numbers as Python reads them. Wherever the chunks end."""
    written = io.StringIO()
    csv.writer(written).writerows([["n", "x"], *rows])
    source = insert_input.Input(1 << 20)
    data = io.BytesIO(written.getvalue().encode())
    source._read = lambda file: data.read(chunk)  # type: ignore[method-assign]
    form = insert_tables.TableFormat(source, ",", ("x",), skip_bad=False)
    found = [row[3] for row in [*form.rows(0, "-", data), *form.waiting()]]
    columns = [number_in(first) is not None or not first.strip(" \t") for first, _ in rows]
    expected = []
    for first, second in rows:
        number = number_in(first)
        if all(columns):
            expected.append({"n": number, "x": second or None})
        else:
            expected.append({"n": first or None, "x": second or None})
    assert found == expected


HEADERS = {
    "n,x,n": "names two columns 'n'",
    "n, x,x ": "names two columns 'x'",
    "n,,x": "has no name for the column number 2",
    ",n": "to_csv(…, index=False)",
    "1,2.5": "has numbers alone, and no names",
    "n;x": "Use --delimiter ';'",
    "n\tx": "Use --tsv",
    'n,"x': "a quote that is never closed",
    'n,"x"y': "a quote within a cell must be doubled",
}


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("more", [[], ["--skip-bad"], ["--commit", "a"]])
def test_a_header_that_is_none_is_refused(fsqueue_cli: Run, queue: Queue, header: str, more: list[str]) -> None:
    result = fsqueue_cli("insert", queue.path, "--csv", *more, input=table(header, "1,2", "3,4"), code=2)
    assert "standard input, line 1 " in result.stderr
    assert HEADERS[header] in result.stderr
    assert "repeat the command" in result.stderr
    assert "or use --skip-bad" not in result.stderr, "it does not help"
    assert (result.stdout, queue.status().inserted) == ("0\n", 0)


def test_an_empty_file_has_no_header_and_a_header_alone_no_tasks(fsqueue_cli: Run, queue: Queue) -> None:
    assert "is empty: the first line" in fsqueue_cli("insert", queue.path, "--csv", input="", code=2).stderr
    assert "is empty: the first line" in fsqueue_cli("insert", queue.path, "--csv", input="\n\n", code=2).stderr
    assert fsqueue_cli("insert", queue.path, "--csv", input="n,x\n").stdout == "0\n"


BAD_ROWS = {
    "3": "has 1 cell, and the header 2: a cell without a value needs its separator, too\n",
    "3,c,d": "has 3 cells, and the header 2: a cell with a separator in it needs double quotes\n",
    "3,c,,": "has 4 cells, and the header 2: a separator at the end of a row begins an empty cell. Take it away, or",
    '3,"c"d': "a quote within a cell must be doubled",
    "3,c\rd": "has a carriage return within a line",
    "3,\0": "has the character NUL",
    "3,\udcff": "is not UTF-8",
}


@pytest.mark.parametrize(
    ("options", "given", "payload"),
    [(["--csv"], "n,x\n1,2\n", {"n": 1, "x": 2}), ([], '{"n": 1}\n', {"n": 1}), (["--lines"], "a b\n", "a b")],
)
def test_byte_order_marks_before_the_first_line_are_no_part_of_it(
    fsqueue_cli: Run, queue: Queue, options: list[str], given: str, payload: Any
) -> None:
    """A program that writes one has saved what had one."""
    fsqueue_cli("insert", queue.path, *options, input=f"\ufeff\ufeff{given}")
    assert [task.payload for task in queue.tasks()] == [payload]


@pytest.mark.parametrize("again", ["n,x", "\ufeffn,x", "\ufeff\ufeffn,x", '"n", "x"'.replace(" ", ""), " n ,x\r"])
def test_a_header_in_the_middle_is_no_row_and_decides_no_type(fsqueue_cli: Run, queue: Queue, again: str) -> None:
    """So `cat a.csv b.csv` makes one. As a row, it would make text of all numbers."""
    given = table("n,x", "1,2", again, "3,4")
    result = fsqueue_cli("insert", queue.path, "--csv", input=given, code=2)
    assert "standard input, line 3 is the header once more" in result.stderr
    assert fsqueue_cli("insert", queue.path, "--csv", "--skip-bad", input=given, code=1).stdout == "2\n"
    assert payloads(queue) == [{"n": 1, "x": 2}, {"n": 1, "x": 2}, {"n": 3, "x": 4}]


def test_a_header_without_the_name_of_the_first_column_is_told(fsqueue_cli: Run, queue: Queue) -> None:
    """So R's write.table makes one."""
    result = fsqueue_cli("insert", queue.path, "--csv", input='"n","x"\n"1",5,"a"\n"2",6,"b"\n', code=2)
    assert "needs double quotes; or one name is missing, as where R writes the names of rows" in result.stderr


def test_of_a_single_column_a_cell_may_be_called_like_it(fsqueue_cli: Run, queue: Queue) -> None:
    assert fsqueue_cli("insert", queue.path, "--csv", input="word\na\nword\n").stdout == "2\n"


@pytest.mark.parametrize("row", BAD_ROWS)
def test_a_bad_row_is_named_and_what_was_before_is_in(fsqueue_cli: Run, queue: Queue, row: str) -> None:
    given = table("n,x", '1,"a', 'b"', "", "2,b", row, "4,d").encode("utf-8", "surrogateescape")
    result = fsqueue_cli("insert", queue.path, "--csv", input=given, code=2)
    assert "standard input, line 6 " in result.stderr
    assert BAD_ROWS[row] in result.stderr
    assert "2 tasks were inserted, from all the lines before this one and none after it" in result.stderr
    assert "through 'sed 2,5d') (with --text x)" in result.stderr
    assert payloads(queue) == [{"n": 1, "x": "a\nb"}, {"n": 2, "x": "b"}]
    first = fsqueue_cli("insert", queue.path, "--csv", input="n,x\n3\n", code=2)
    assert "nothing was inserted\nfsqueue: correct it and repeat the command" in first.stderr
    skipped = fsqueue_cli("insert", queue.path, "--csv", "--skip-bad", input=given, code=1)
    assert "3 tasks were inserted; 1 bad line skipped" in skipped.stderr
    committed = fsqueue_cli("insert", queue.path, "--csv", "--commit", "a", input=given, code=2)
    assert "nothing was inserted as a: correct it and repeat the command, or use --skip-bad" in committed.stderr


@pytest.mark.parametrize("more", [[], ["--skip-bad"]])
def test_a_quote_that_is_never_closed_ends_the_insert_where_it_begins(
    fsqueue_cli: Run, queue: Queue, more: list[str]
) -> None:
    given = table("n,x", "1,a", '2,"b', *(f"{n},c" for n in range(3, 50)))
    result = fsqueue_cli("insert", queue.path, "--csv", *more, input=given, code=2)
    assert "line 3 begins a row with a quote that is never closed" in result.stderr
    assert payloads(queue) == [{"n": 1, "x": "a"}]


def test_a_quote_that_is_never_closed_ends_it_in_bounded_memory(fsqueue_cli: Run, queue_factory: QueueFactory) -> None:
    queue = queue_factory(task_bytes_max=2000)
    given = table("n,x", "1,a", '2,"b', *(f"{n},c" for n in range(3, 5000)))
    result = fsqueue_cli("insert", queue.path, "--csv", input=given, code=2)
    assert "line 3 begins a row with a quote that is never closed" in result.stderr
    assert (
        "line 2 is longer" in fsqueue_cli("insert", queue.path, "--csv", input="n,x\n1," + "x" * 9000, code=14).stderr
    )


@pytest.mark.parametrize("more", [[], ["--skip-bad"]])
def test_skip_bad_is_advised_only_where_it_helps(fsqueue_cli: Run, queue: Queue, more: list[str]) -> None:
    given = table("n,x", "1,a", '2,"b')
    result = fsqueue_cli("insert", queue.path, "--csv", "--commit", "a", *more, input=given, code=2)
    assert result.stderr.endswith("nothing was inserted as a: correct it and repeat the command\n")


def test_an_advised_option_is_written_as_bash_reads_it(fsqueue_cli: Run, queue: Queue, tmp_path: Path) -> None:
    file = tmp_path / "a\nb.csv"
    file.write_text(table('n,"t\nx"', "1,a", "2", "3,7"))
    result = fsqueue_cli("insert", queue.path, "--csv", file, code=2)
    advised = re.search(r"which '(.*)' prints \(with (.*?)\);", result.stderr)
    assert advised is not None
    printed = subprocess.run(["bash", "-c", advised[1]], capture_output=True, text=True, check=True).stdout
    words = subprocess.run(["bash", "-c", f"printf '%s\\0' {advised[2]}"], capture_output=True, text=True, check=True)
    assert printed.endswith("\n2\n3,7\n")
    rest = printed.replace("\n2\n", "\n")
    fsqueue_cli("insert", queue.path, "--csv", *words.stdout.split("\0")[:-1], input=rest)
    assert payloads(queue) == [{"n": 1, "t\nx": "a"}, {"n": 3, "t\nx": "7"}]


@pytest.fixture
def three_rows_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insert_tables, "SAMPLE_ROWS", 3)


@pytest.mark.usefixtures("three_rows_decide")
def test_who_follows_the_advice_after_a_cell_that_does_not_fit_loses_and_repeats_nothing(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path
) -> None:
    file = tmp_path / "a table.csv"
    file.write_text(table("n,x,id", "1,5,a", "2,6,b", "3,7,c", "4,8.5,7", "5,abc,9", "6,9,10"))
    result = fsqueue_cli("insert", queue.path, "--csv", file, code=2)
    assert f"{file}, line 6 has 'abc' in the column 'x', whose values before it are numbers" in result.stderr
    assert "--text x" not in result.stderr, "the rows before it are numbers, and in the queue"
    committed = fsqueue_cli("insert", queue.path, "--csv", file, "--commit", "a", code=2)
    assert "nothing was inserted as a: correct it, or add --text x, and repeat the command, or use --skip-bad\n" in (
        committed.stderr
    )
    rest = re.search(r"insert the rest, which '(.*)' prints \((.*?)\);", result.stderr)
    assert rest is not None
    assert rest[2] == "with --text id"
    printed = subprocess.run(rest[1], shell=True, capture_output=True, text=True, check=True).stdout
    fsqueue_cli("insert", queue.path, "--csv", *shlex.split(rest[2])[1:], "--text", "x", input=printed)
    assert payloads(queue) == [
        {"n": 1, "x": 5, "id": "a"},
        {"n": 2, "x": 6, "id": "b"},
        {"n": 3, "x": 7, "id": "c"},
        {"n": 4, "x": 8.5, "id": "7"},
        {"n": 5, "x": "abc", "id": "9"},
        {"n": 6, "x": "9", "id": "10"},
    ]


def test_ten_thousand_rows_decide(fsqueue_cli: Run, queue: Queue) -> None:
    rows = [f"{n},{n}" for n in range(10_000)]
    result = fsqueue_cli("insert", queue.path, "--csv", "--commit", "a", input=table("n,x", *rows, "10000,a"), code=2)
    assert "line 10,002 has 'a' in the column 'x'" in result.stderr
    fsqueue_cli("insert", queue.path, "--csv", "--commit", "a", input=table("n,x", *rows[:-1], "9999,a", "10000,b"))
    assert {type(payload["x"]) for payload in payloads(queue)} == {str}


def test_fewer_rows_decide_if_they_are_long(fsqueue_cli: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else ten thousand of them would be kept in memory, however long they are."""
    monkeypatch.setattr(insert_tables, "SAMPLE_BYTES_MAX", 1000)
    rows = [f"{n},{n},{'long' * 100}" for n in range(3)]
    result = fsqueue_cli("insert", queue.path, "--csv", input=table("n,x,y", *rows, "3,a,b"), code=2)
    assert "line 5 has 'a' in the column 'x'" in result.stderr
    assert [payload["x"] for payload in payloads(queue)] == [0, 1, 2]


def test_a_bad_row_that_is_skipped_decides_nothing(fsqueue_cli: Run, queue: Queue) -> None:
    result = fsqueue_cli("insert", queue.path, "--csv", "--skip-bad", input=table("n,x", "1,5", "2", "3,a"), code=1)
    assert "line 3 has 1 cell" in result.stderr
    assert payloads(queue) == [{"n": 1, "x": "5"}, {"n": 3, "x": "a"}]


@pytest.mark.usefixtures("three_rows_decide")
def test_an_empty_column_is_decided_by_its_first_value(fsqueue_cli: Run, queue: Queue) -> None:
    given = table("n,x", "1,", "2,", "3, ", "4,", "5,7", "6,a")
    assert "line 7 has 'a'" in fsqueue_cli("insert", queue.path, "--csv", input=given, code=2).stderr
    assert [payload["x"] for payload in payloads(queue)] == [None, None, None, None, 7]


@pytest.mark.usefixtures("three_rows_decide")
def test_cells_of_blanks_are_null_until_a_text_comes(fsqueue_cli: Run, queue: Queue) -> None:
    """docs/tables.md says so. In a column of text they stay as they are."""
    given = table("n,x,y,z", "1, ,,a", "2,  , 5, ", "3, , ,b", "4, , ,", "5,t,6,", "6, , , ")
    fsqueue_cli("insert", queue.path, "--csv", input=given)
    assert [payload["x"] for payload in payloads(queue)] == [None, None, None, None, "t", " "]
    assert [payload["y"] for payload in payloads(queue)] == [None, 5, None, None, 6, None]
    assert [payload["z"] for payload in payloads(queue)] == ["a", " ", "b", None, None, " "]


def test_a_table_may_have_many_columns_and_the_advice_names_few(
    fsqueue_cli: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"c{number}" for number in range(insert_tables.ADVISED_MAX + 1)]
    for some, says in ((names[:-1], f" --text {names[-2]})"), (names, "--text for each of the 21 columns of text)")):
        given = table(f"n,{','.join(some)}", f"1,{','.join('a' for _ in some)}", "2")
        assert says in fsqueue_cli("insert", queue.path, "--csv", input=given, code=2).stderr
    monkeypatch.setattr(insert_tables, "FIELDS_MAX", 2)
    assert fsqueue_cli("insert", queue.path, "--csv", input="n,x\n3,4\n").stdout == "1\n"
    result = fsqueue_cli("insert", queue.path, "--csv", input="n,x,y\n5,6,7\n", code=2)
    assert "has 3 names of fields, which is more than 2" in result.stderr


def test_text_keeps_a_column_as_it_is(fsqueue_cli: Run, queue: Queue) -> None:
    fsqueue_cli("insert", queue.path, "--csv", "--text", "x", "--text", "y", input=table("n,x,y", "1,1.50,", "2, 7,8"))
    assert payloads(queue) == [{"n": 1, "x": "1.50", "y": None}, {"n": 2, "x": " 7", "y": "8"}]


def test_text_of_a_column_that_is_not_there_is_refused(fsqueue_cli: Run, queue: Queue) -> None:
    result = fsqueue_cli("insert", queue.path, "--csv", "--text", "z", input="n,x\n1,2\n", code=2)
    assert "has no column 'z' (--text). Its columns are 'n', 'x'" in result.stderr
    assert queue.status().inserted == 0


def test_text_is_a_column_of_the_first_file(fsqueue_cli: Run, queue: Queue, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(table("n,x", "1,7"))
    (tmp_path / "b").write_text(table("x,n", "8,2"))
    assert fsqueue_cli("insert", queue.path, "--csv", "--text", "x", tmp_path / "a", tmp_path / "b").stdout == "2\n"
    assert payloads(queue) == [{"n": 1, "x": "7"}, {"x": "8", "n": 2}]
    (tmp_path / "c").write_text(table("n,y", "1,7"))
    result = fsqueue_cli("insert", queue.path, "--csv", "--text", "x", tmp_path / "c", code=2)
    assert "has no column 'x' (--text). Its columns are 'n', 'y'" in result.stderr


@pytest.mark.parametrize("is_there", [True, False])
def test_the_rows_before_a_file_that_is_empty_or_gone_are_inserted(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    """Their types are not decided yet, and nothing decides them but the end."""
    monkeypatch.setattr("fsqueue_cli.insert_source.why_unreadable", lambda name: None)
    (tmp_path / "good").write_text(table("n,x", "1,7", "2,8"))
    bad = "-" if is_there else tmp_path / "bad"
    result = fsqueue_cli("insert", queue.path, "--csv", tmp_path / "good", bad, input="", code=2)
    assert result.stdout == "2\n"
    says = "standard input is empty: " if is_there else f"{bad} cannot be read: No such file"
    assert says in result.stderr
    assert f"insert {bad}; to repeat the command would insert the first 2 again" in result.stderr
    assert payloads(queue) == [{"n": 1, "x": 7}, {"n": 2, "x": 8}]


@pytest.mark.parametrize("first", ["a", "-"])
@pytest.mark.parametrize(
    ("later", "says"),
    [
        ("", " is empty: the first line of a table"),
        ("\n\n", " is empty: the first line of a table"),
        ("n,x,n\n1,2,3\n", ", line 1 names two columns 'n'"),
        ("1,2\n", ", line 1 has numbers alone"),
        ('n,"x\n1,2\n', ", line 1 begins a row with a quote that is never closed"),
        ('{"n":1,"x":2}\n', ", line 1 is no header of a table: it is JSON"),
        ("n;x\n1;2\n", ", line 1 has a single name, 'n;x'"),
        ("sep=;\nn;x\n1;2\n", ", line 1 says, as Excel writes it"),
        ("\x1f\x8b\x08\0", ", line 1 is no header of a table (it is compressed"),
    ],
)
def test_a_later_file_without_a_header_is_refused_before_anything_is_inserted(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, first: str, later: str, says: str
) -> None:
    (tmp_path / "a").write_text(table("n,x", "1,7", "2,"))
    bad = tmp_path / "b"
    bad.write_text(later, "latin-1")
    given = [tmp_path / "a" if first == "a" else "-", bad]
    result = fsqueue_cli("insert", queue.path, "--csv", *given, input=table("n,x", "1,7"), code=2)
    assert result.stderr.startswith(f"fsqueue: {bad}{says}")
    assert result.stderr.endswith(". Nothing was inserted.\n")
    assert result.stderr.count("\n") == 1
    assert (result.stdout, queue.status().inserted) == ("", 0)


def test_several_files_are_one_table(fsqueue_cli: Run, queue: Queue, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(table("n,x", "1,7", "2,"))
    (tmp_path / "b").write_text(table("x,n", "a,3"))
    fsqueue_cli("insert", queue.path, "--csv", tmp_path / "a", tmp_path / "b")
    assert payloads(queue) == [{"n": 1, "x": "7"}, {"n": 2, "x": None}, {"x": "a", "n": 3}]
    (tmp_path / "c").write_text("n,x\n")
    (tmp_path / "d").write_text("n,x,n\n")
    result = fsqueue_cli("insert", queue.path, "--csv", tmp_path / "a", tmp_path / "c", tmp_path / "d", code=2)
    assert f"{tmp_path / 'd'}, line 1 names two columns" in result.stderr
    assert result.stderr.endswith("Nothing was inserted.\n")
    assert queue.status().inserted == 3


def test_a_column_that_no_command_can_name_is_told(fsqueue_cli: Run, queue: Queue) -> None:
    names = ["tile no", "2x", 'the 5" disk', "a{b", "x}"]
    header = ",".join('"' + name.replace('"', '""') + '"' for name in names)
    result = fsqueue_cli("insert", queue.path, "--csv", input=f"{header}\n1,2,3,4,5\n")
    told = [name for name in names if f"no placeholder of a command can name the column {name!r}," in result.stderr]
    assert told == names[2:]
    for name in names:
        is_named = [one.name for one in placeholders.in_argument(f'{{"{name}"}}')] == [name]
        assert is_named == (name not in told)


@pytest.mark.parametrize("other", ["x,n,y\na,3,1\n", "m,x\n3,a\n", "n\n3\n", "sep=,\nn,y\n3,4\n"])
def test_files_with_other_columns_are_refused_before_anything_is_inserted(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, other: str
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text(table("n,x", "1,7"))
    b.write_text(other)
    result = fsqueue_cli("insert", queue.path, "--csv", a, b, code=2)
    line = 2 if other.startswith("sep") else 1
    assert f"{b}, line {line} has other columns than {a}: here " in result.stderr
    assert "there 'n', 'x'. " in result.stderr
    assert result.stderr.count("\n") == 1
    assert queue.status().inserted == 0
    result = fsqueue_cli("insert", queue.path, "--csv", a, "-", input=other, code=2)
    assert f"standard input, line {line} has other columns than {a}: here " in result.stderr
    assert "1 task was inserted, from all the lines before this one and none after it" in result.stderr
    assert [task.payload for task in queue.tasks()] == [{"n": 1, "x": 7}]


@pytest.mark.parametrize(
    ("cells", "line", "cell", "what"),
    [
        (["9", "10", "high", "8"], 4, "high", "a text, and those before it are numbers"),
        (["9", "", " ", "007"], 5, "007", "a text, and those before it are numbers"),
        (["b", "a", "10"], 4, "10", "a number, and those before it are texts"),
    ],
)
def test_texts_among_numbers_are_no_priorities(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, cells: list[str], line: int, cell: str, what: str
) -> None:
    """The whole column would be text, and 10 come before 9."""
    file = tmp_path / "t.csv"
    file.write_text(table("n,due", *(f"{at},{each}" for at, each in enumerate(cells))))
    for skip in ([], ["--skip-bad"], ["--commit", "a"]):
        result = fsqueue_cli("insert", queue.path, "--csv", "--priority", "due", file, *skip, code=2)
        assert f"{file}, line {line} has '{cell}' in the column 'due' (--priority): {what}." in result.stderr
        assert "nothing was inserted" in result.stderr
        assert queue.status().inserted == 0
    fsqueue_cli("insert", queue.path, "--csv", "--priority", "due", "--text", "due", file)
    given = {task.priority for task in queue.tasks()}
    assert given == {each if each else None for each in cells}


@pytest.mark.parametrize(
    ("values", "at", "shown", "what"),
    [
        ([9, 10, "high", 8], 3, "high", "a text, and those before it are numbers"),
        ([9, None, "007"], 3, "007", "a text, and those before it are numbers"),
        (["b", "a", 10], 3, "10", "a number, and those before it are texts"),
        ([0, "0"], 2, "0", "a text, and those before it are numbers"),
    ],
)
def test_priorities_of_json_lines_are_of_one_kind_as_those_of_a_table(
    fsqueue_cli: Run, queue: Queue, values: list[Any], at: int, shown: str, what: str
) -> None:
    lines = [json.dumps({"n": n, "due": value}) for n, value in enumerate(values)]
    says = f"line {at} has '{shown}' in the field 'due' (--priority): {what}. Of texts, '10' comes before '9': if you"
    given = "\n".join(lines)
    result = fsqueue_cli("insert", queue.path, "--priority", "due", "--commit", "a", input=given, code=2)
    assert says in result.stderr
    assert queue.status().inserted == 0
    for number, skip in enumerate(([], ["--skip-bad"]), 1):
        result = fsqueue_cli("insert", queue.path, "--priority", "due", *skip, input=given, code=2)
        assert says in result.stderr
        assert result.stdout == f"{at - 1}\n"
        assert queue.status().inserted == number * (at - 1)
    each = [option for line in lines for option in ("--task", line)]
    result = fsqueue_cli("insert", queue.path, "--priority", "due", *each, code=2)
    assert says.replace("line", "--task, task", 1) in result.stderr
    fsqueue_cli("insert", queue.path, "--priority", "n", input=given)


def test_what_is_no_priority_is_refused_for_that_and_decides_no_kind(fsqueue_cli: Run, queue: Queue) -> None:
    given = '{"due":1.5}\n{"due":[1]}\n{"due":true}\n{"due":"b"}\n7\n{"due":"a"}\n'
    result = fsqueue_cli("insert", queue.path, "--priority", "due", "--skip-bad", input=given, code=1)
    assert (result.stdout, result.stderr.count("a priority is a text or a whole number")) == ("3\n", 3)
    assert {task.priority for task in queue.tasks()} == {"b", None, "a"}


@pytest.mark.usefixtures("three_rows_decide")
@pytest.mark.parametrize(("first", "later"), [("b", "10"), ("10", "b")])
def test_a_priority_of_another_kind_behind_the_first_rows_ends_the_insert(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, first: str, later: str
) -> None:
    file = tmp_path / "t.csv"
    file.write_text(table("n,due", *(f"{at},{first}" for at in range(5)), f"5,{later}", f"6,{first}"))
    result = fsqueue_cli("insert", queue.path, "--csv", "--priority", "due", file, code=2)
    assert f"{file}, line 7 has '{later}' in the column 'due'" in result.stderr
    assert "5 tasks were inserted, from all the lines before this one and none after it" in result.stderr
    assert queue.status().inserted == 5


def test_keys_priorities_and_delays_are_those_of_json_lines(fsqueue_cli: Run, queue: Queue) -> None:
    given = table("n,due", "1,b", "2,", "3,a")
    fsqueue_cli("insert", queue.path, "--csv", "--priority", "due", "--key", "n", "--delay", "1h", input=given)
    again = fsqueue_cli("insert", queue.path, "--csv", "--key", "n", "--json", input=table("n", "3", "4"))
    assert json.loads(again.stdout) == {"inserted": 1, "skipped": 0, "tasks": 2, "respelled": []}
    assert {task.key: task.priority for task in queue.tasks()} == {"1": "b", "2": None, "3": "a", "4": None}
    assert queue.status().delayed == 3
    result = fsqueue_cli("insert", queue.path, "--csv", "--key", "due", input=table("n,due", "9,"))
    assert "no line has a value in the field 'due'" in result.stderr


@pytest.mark.parametrize("option", ["--key", "--priority", "--text"])
@pytest.mark.parametrize("more", [[], ["--skip-bad"], ["--text-all"]])
def test_a_column_of_an_option_that_is_not_there_is_refused_before_anything(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, option: str, more: list[str]
) -> None:
    file = tmp_path / "t"
    file.write_text(table("n,x", "1,2"))
    for files in ([file], [file, "-"], ["-"], ["-", file]):
        result = fsqueue_cli("insert", queue.path, "--csv", option, "zz", *more, *files, input="n,x\n1,2\n", code=2)
        assert f"line 1 has no column 'zz' ({option}). Its columns are 'n', 'x'" in result.stderr
        assert queue.status().inserted == 0


def test_repeating_a_commit_of_a_table_is_harmless(fsqueue_cli: Run, queue: Queue) -> None:
    command = ("insert", queue.path, "--csv", "--commit", "a")
    assert fsqueue_cli(*command, input=table("n", "1", "2")).stdout == "2\n"
    assert fsqueue_cli(*command, input=table("n", "1", "2")).stdout == "0\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--csv", "--lines"], "leave --lines out"),
        (["--tsv", "-0"], "leave -0 out"),
        (["--tsv", "--delimiter", ","], "say different things"),
        (["--csv", "--tsv"], "say different things"),
        (["--text", "x"], "add --csv, --tsv or --delimiter"),
        (["--csv", "--task", "1"], "leave the option for tables out"),
    ],
)
def test_what_does_not_go_with_tables_is_refused(fsqueue_cli: Run, queue: Queue, options: list[str], says: str) -> None:
    result = fsqueue_cli("insert", queue.path, *options, input="n\n1\n", code=2)
    assert says in result.stderr
    assert result.stderr.endswith("Nothing was inserted.\n")
    assert queue.status().inserted == 0


def test_after_the_first_rows_a_slow_producer_does_not_keep_its_tasks_from_the_queue(
    spawn: Spawn, queue: Queue
) -> None:
    process = spawn("insert", queue.path, "--csv", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(table("n,x", *(f"{n},a" for n in range(10_000))) + '10000,"a\n')
    process.stdin.flush()
    until(lambda: queue.status().waiting == 10_000, "the rows that are whole")
    process.stdin.write('b\nc"\n10001,d\n')
    process.stdin.flush()
    until(lambda: queue.status().waiting == 10_002, "the row that was cut by a pause, and the next one")
    assert process.communicate("10002,e", timeout=PATIENCE_S) == ("10003\n", "")
    assert payloads(queue)[-3:] == [{"n": 10_000, "x": "a\nb\nc"}, {"n": 10_001, "x": "d"}, {"n": 10_002, "x": "e"}]


def test_interrupted_before_the_types_are_decided_nothing_is_inserted(spawn: Spawn, queue: Queue) -> None:
    process = spawn("insert", queue.path, "--csv", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(table("n,x", "1,a", "2,b"))
    process.stdin.flush()
    until(lambda: is_read(process.stdin) and waits(process.pid), "the rows to be read")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, "0\n")
    assert "interrupted: 0 tasks were inserted, up to standard input\nfsqueue: repeat the command\n" in err
    assert queue.status().inserted == 0


def test_a_signal_within_a_cell_in_quotes_is_no_bad_row() -> None:
    """The rest of the cell may come: that it is missing here says nothing of the table."""
    source = insert_input.Input(1 << 20)
    chunks = [b'n,x\n1,a\n2,"b\n']

    def read(file: Any) -> bytes:
        if not chunks:
            source.signal = signal.SIGINT
        return chunks.pop() if chunks else b""

    source._read = read  # type: ignore[method-assign]
    form = insert_tables.TableFormat(source, ",", (), skip_bad=False)
    assert [row[3] for row in [*form.rows(0, "-", io.BytesIO()), *form.waiting()]] == [{"n": 1, "x": "a"}]


def test_interrupted_after_the_first_rows_what_was_read_is_inserted_and_counted(spawn: Spawn, queue: Queue) -> None:
    process = spawn("insert", queue.path, "--csv", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(table("n,x", *(f"{n},a" for n in range(20_000))))  # more than a pipe holds
    process.stdin.flush()
    until(lambda: queue.status().waiting > 0, "the first rows")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert queue.status().waiting == int(out)
    assert f"up to standard input, line {int(out) + 1:,}\n" in err
    assert f"'sed 2,{int(out) + 1}d') (with --text x)" in err


@pytest.mark.usefixtures("three_rows_decide")
def test_who_follows_the_advice_after_an_interruption_behind_a_row_of_several_lines_loses_and_repeats_nothing(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = table("n,x", "1,a", "2,b", "3,c", '4,"d', "e", 'f"')
    file = tmp_path / "a table.csv"
    file.write_text(begun + table("5,g", "6,h"))
    chunks = [begun.encode()]

    whole = insert_input.Input._read

    def read(source: insert_input.Input, file: Any) -> Any:
        if not hasattr(source.on_bytes, "__self__"):  # the look at the header, before the insert
            return whole(source, file)
        if not chunks:
            source.signal = signal.SIGINT
        return chunks.pop() if chunks else b""

    with monkeypatch.context() as patch:
        patch.setattr(insert_input.Input, "_read", read)
        result = fsqueue_cli("insert", queue.path, "--csv", file, code=130)
    assert f"interrupted: 4 tasks were inserted, up to {file}, line 7\n" in result.stderr
    rest = re.search(r"insert the rest, which '(.*)' prints \((.*?)\);", result.stderr)
    assert rest is not None
    printed = subprocess.run(rest[1], shell=True, capture_output=True, text=True, check=True).stdout
    fsqueue_cli("insert", queue.path, "--csv", *shlex.split(rest[2])[1:], input=printed)
    assert [payload["x"] for payload in payloads(queue)] == ["a", "b", "c", "d\ne\nf", "g", "h"]


@pytest.mark.slow
def test_memory_is_bounded(spawn: Spawn, queue: Queue) -> None:
    process = spawn("insert", queue.path, "--csv", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("n,x\n")
    for start in range(0, 300_000, 1000):
        process.stdin.write(table(*(f"{n},{'x' * 200}" for n in range(start, start + 1000))))
    status = Path(f"/proc/{process.pid}/status").read_text()
    assert process.communicate(timeout=PATIENCE_S)[0] == "300000\n"
    assert int(status.partition("VmHWM:")[2].split()[0]) < 120 * 1024


def test_only_rows_that_are_new_or_changed_are_inserted(fsqueue_cli: Run, queue: Queue, tmp_path: Path) -> None:
    file = tmp_path / "sweep.csv"
    file.write_text("run,alpha\n1,0.5\n2,0.7\n")
    first = fsqueue_cli("insert", queue.path, "--csv", file, "--new-by", "run")
    assert (first.stdout, first.stderr) == ("2\n", "")
    for task in queue.lease(2, strict=True):
        task.complete(task.payload["alpha"])
    file.write_text("run,alpha\n1,0.5\n2,0.9\n3,1.5\n")
    second = fsqueue_cli("insert", queue.path, "--csv", file, "--new-by", "run")
    assert (second.stdout, second.stderr) == ("2\n", "2 of 3 tasks were new or changed\n")
    found = fsqueue_cli("insert", queue.path, "--csv", file, "--new-by", "run", "--json")
    assert json.loads(found.stdout) == {"inserted": 0, "skipped": 0, "tasks": 3, "respelled": []}
    rows = [json.loads(line) for line in fsqueue_cli("results", queue.path, "--latest-by", "run").stdout.splitlines()]
    assert [row["payload"]["run"] for row in rows] == [1]
    queue.complete(queue.lease(2))
    out = tmp_path / "out.csv"
    fsqueue_cli("results", queue.path, out, "--latest-by", "run", "--where", "payload.run>1")
    assert {(row["run"], row["alpha"]) for row in csv.DictReader(out.open())} == {("2", "0.9"), ("3", "1.5")}


def test_a_row_with_the_value_of_another_one_ends_the_insert(fsqueue_cli: Run, queue: Queue, tmp_path: Path) -> None:
    file = tmp_path / "sweep.csv"
    file.write_text("run,alpha\n1,0.5\n1,0.7\n2,1\n")
    found = fsqueue_cli("insert", queue.path, "--csv", file, "--new-by", "run", code=2)
    assert found.stdout == "1\n"
    assert "line 3 is no task for this queue: it has the value '1' in the field 'run'" in found.stderr
    assert "or repeat the command: it inserts only lines that are new or changed" in found.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--key", "run"), "leave --key out"),
        (("--commit", "c"), "leave --commit out"),
        (("--batch-tasks", "5"), "leave --batch-tasks out"),
        (("--skip-bad",), "leave --skip-bad out"),
    ],
)
def test_what_new_by_does_not_go_with(fsqueue_cli: Run, queue: Queue, words: tuple[str, ...], why: str) -> None:
    found = fsqueue_cli("insert", queue.path, "--csv", "--new-by", "run", *words, input="run\n1\n", code=2)
    assert queue.status().inserted == 0
    assert why in found.stderr


def test_new_by_names_a_column_that_is_there(fsqueue_cli: Run, queue: Queue, tmp_path: Path) -> None:
    file = tmp_path / "sweep.csv"
    file.write_text("run\n1\n")
    found = fsqueue_cli("insert", queue.path, "--csv", file, "--new-by", "walk", code=2)
    assert queue.status().inserted == 0
    assert "--new-by" in found.stderr
