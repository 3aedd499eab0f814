"""insert: what is given otherwise than by lines (-0, --task), and files that are not what they were taken for."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import shlex
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fsqueue import Queue
from tests.cli.conftest import Run
from tests.conftest import QueueFactory

pytestmark = pytest.mark.once


def payloads(queue: Queue) -> list[Any]:
    return sorted((task.payload for task in queue.tasks()), key=str)


# -- items that end with NUL ------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [["-0"], ["--null"], ["-0", "--lines"]])
def test_names_with_anything_in_them_are_tasks(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, options: list[str]
) -> None:
    names = ["a.tif", "b\nc.tif", " d ", "e\r", "\ufefff", " ", '{"g": 1}', "ü"]
    (tmp_path / "data").mkdir()
    for name in names:
        (tmp_path / "data" / name).touch()
    found = subprocess.run(["find", "data", "-type", "f", "-printf", "%f\\0"], cwd=tmp_path, capture_output=True)
    assert fsqueue_cli("insert", queue.path, *options, input=found.stdout).stdout == f"{len(names)}\n"
    assert payloads(queue) == sorted(names)


def test_empty_items_are_none_and_the_last_needs_no_end(fsqueue_cli: Run, queue: Queue) -> None:
    assert fsqueue_cli("insert", queue.path, "-0", input="a\0\0b").stdout == "2\n"
    assert payloads(queue) == ["a", "b"]


def test_an_item_that_is_no_text_is_named_as_a_line_would_be(fsqueue_cli: Run, queue: Queue, tmp_path: Path) -> None:
    file = tmp_path / "names"
    file.write_bytes(b"a\0b\nc\0\xff\0d\0")
    result = fsqueue_cli("insert", queue.path, "-0", file, code=2)
    assert f"{file}, item 3 is not UTF-8" in result.stderr
    assert "from all the items before this one" in result.stderr
    assert f"'tail -z -n +3 {file}' prints" in result.stderr
    rest = subprocess.run(["tail", "-z", "-n", "+3", file], capture_output=True).stdout
    assert rest == b"\xff\0d\0"
    skipped = fsqueue_cli("insert", queue.path, "-0", "--skip-bad", input=rest, code=1)
    assert "1 bad item skipped" in skipped.stderr
    assert payloads(queue) == ["a", "b\nc", "d"]


def test_lines_with_nul_are_refused_and_the_option_for_them_is_named(fsqueue_cli: Run, queue: Queue) -> None:
    for option in (["--lines"], [], ["--lines", "--skip-bad"]):
        result = fsqueue_cli("insert", queue.path, *option, input="a\0b\nc\0", code=2)
        assert "has the character NUL: use -0" in result.stderr
    for option in (["--lines"], ["--lines", "--skip-bad"]):  # the first name has a line end
        result = fsqueue_cli("insert", queue.path, *option, input="a\nb\0c\n", code=2)
        assert "line 1 or one soon after has the character NUL: use -0" in result.stderr
    assert queue.status().inserted == 0
    late = "a\n" * 10_000 + "b\0c\n"
    result = fsqueue_cli("insert", queue.path, "--lines", input=late, code=2)
    assert "line 10,001 has the character NUL: use -0" in result.stderr


def test_items_have_no_fields(fsqueue_cli: Run, queue: Queue) -> None:
    assert "leave -0 out" in fsqueue_cli("insert", queue.path, "-0", "--key", "k", input="a\0", code=2).stderr


# -- tasks as options -------------------------------------------------------------------------------------


def test_tasks_as_options(fsqueue_cli: Run, queue: Queue) -> None:
    result = fsqueue_cli("insert", queue.path, "--task", '{"x": 1}', "--task", '"a"', "--task", "[\n1\n]", input="7\n")
    assert (result.stdout, result.stderr) == ("3\n", "")
    fsqueue_cli("insert", queue.path, "--lines", "--task", "plain text")
    assert payloads(queue) == sorted([{"x": 1}, "a", [1], "plain text"], key=str)


def test_tasks_as_options_take_the_other_options(fsqueue_cli: Run, queue: Queue) -> None:
    given = ("--task", '{"k": "a", "p": 2}', "--task", '{"k": "b"}')
    fsqueue_cli("insert", queue.path, *given, "--key", "k", "--priority", "p", "--delay", "1h")
    assert {task.key: task.priority for task in queue.tasks()} == {"a": 2, "b": None}
    for count in (2, 0):
        assert fsqueue_cli("insert", queue.path, *given, "--commit", "seed").stdout == f"{count}\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [("{x:1}", "--task number 2 is not JSON"), ("NaN", "is not JSON"), ('{"a":1,"a":2}', "a name twice"),
     (str(2**64), "beyond 64 bits"), ("", "is not JSON"), ("\udcff", "is not JSON")],
)  # fmt: skip
def test_a_value_that_is_no_task_is_refused_before_any_is_inserted(
    fsqueue_cli: Run, queue: Queue, text: str, says: str
) -> None:
    result = fsqueue_cli("insert", queue.path, "--task", "1", "--task", text, "--task", "3", code=2)
    assert says in result.stderr
    assert result.stderr.endswith("Nothing was inserted.\n")
    assert result.stdout == ""
    assert queue.status().inserted == 0


def test_a_value_that_the_queue_refuses_is_named_by_its_number(fsqueue_cli: Run, queue_factory: QueueFactory) -> None:
    queue = queue_factory(task_bytes_max=1000)
    given = ("--task", "1", "--task", f'"{"x" * 1000}"', "--task", "3")
    result = fsqueue_cli("insert", queue.path, *given, code=14)
    assert "--task, task 2 is no task for this queue" in result.stderr
    assert "insert the tasks from number 2 on; to repeat" in result.stderr
    assert payloads(queue) == [1]


@pytest.mark.parametrize("other", [["file"], ["--skip-bad"], ["-0"], ["--csv"], ["--from", "--", "true"]])
def test_tasks_as_options_are_all_there_is(fsqueue_cli: Run, queue: Queue, other: list[str]) -> None:
    result = fsqueue_cli("insert", queue.path, "--commit", "a", "--task", "1", *other, code=2)
    assert "--task gives the tasks themselves: leave " in result.stderr
    assert queue.status().inserted == 0


# -- what a file is ---------------------------------------------------------------------------------------

JSON = b'{"x": 1}\n'


def zipped(path: Path) -> bytes:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", JSON)
    return path.read_bytes()


@pytest.mark.parametrize("options", [[], ["--lines"], ["--csv"]])
@pytest.mark.parametrize(
    ("kind", "says"),
    [("gzip", "zcat"), ("bzip2", "bzcat"), ("xz", "xzcat"), ("zip", "unzip -p"), ("utf-16", "iconv -f UTF-16 -t UTF-8"),
     ("utf-16-le", "iconv -f UTF-16LE -t UTF-8"), ("utf-16-be", "iconv -f UTF-16BE -t UTF-8"),
     ("utf-32", "iconv -f UTF-32 -t UTF-8")],
)  # fmt: skip
def test_what_a_file_is_and_what_to_type(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, kind: str, says: str, options: list[str]
) -> None:
    data = {
        "gzip": lambda: gzip.compress(JSON),
        "bzip2": lambda: bz2.compress(JSON),
        "xz": lambda: lzma.compress(JSON),
        "zip": lambda: zipped(tmp_path / "zip"),
    }.get(kind, lambda: (JSON + b"2\n").decode().encode(kind))()
    file = tmp_path / "my tasks"
    file.write_bytes(data)
    result = fsqueue_cli("insert", queue.path, *options, file, code=2)
    assert "(it is " in result.stderr
    whole = (
        ""
        if kind.startswith("utf")
        else (f"; with --commit NAME --from -- {says} '{file}' nothing of a damaged file is inserted")
    )
    assert f"insert what '{says} '{file}'' prints{whole})" in result.stderr.splitlines()[0]
    piped = fsqueue_cli("insert", queue.path, *options, input=data, code=2)
    assert f"insert what '{says}' prints)" in piped.stderr
    assert queue.status().inserted == 0
    if not options and kind != "zip":
        made = subprocess.run(f"{says} '{file}' | head -n 1", shell=True, capture_output=True).stdout
        assert made.lstrip(b"\xef\xbb\xbf") == JSON


def of_numpy(path: Path) -> bytes:
    np.save(path / "a.npy", np.arange(3))
    return (path / "a.npy").read_bytes()


def of_tar(path: Path) -> bytes:
    (path / "a").write_bytes(JSON)
    with tarfile.open(path / "a.tar", "w") as archive:
        archive.add(path / "a", "a")
    return (path / "a.tar").read_bytes()


@pytest.mark.parametrize("options", [[], ["--lines"], ["--csv"]])
@pytest.mark.parametrize("made", [of_numpy, of_tar])
def test_of_a_binary_file_no_option_makes_tasks(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, made: Callable[[Path], bytes], options: list[str]
) -> None:
    """NULs that end names never follow each other."""
    result = fsqueue_cli("insert", queue.path, *options, input=made(tmp_path), code=2)
    assert "it is no text, but a binary file" in result.stderr
    assert "-0" not in result.stderr
    assert "iconv" not in result.stderr
    assert queue.status().inserted == 0


def test_a_hole_of_nuls_in_a_list_is_no_list_of_names(fsqueue_cli: Run, queue: Queue) -> None:
    given = "a\n" * 10_000 + "\0" * 100 + "\n"
    result = fsqueue_cli("insert", queue.path, "--lines", input=given, code=2)
    assert "line 10,001 has the character NUL: it is no text, but a binary file" in result.stderr


@pytest.mark.parametrize(("magic", "command"), [(b"\x04\x22\x4d\x18", "lz4 -dc"), (b"\x1f\x9d\x90", "zcat")])
def test_rarer_compression_is_named(fsqueue_cli: Run, queue: Queue, magic: bytes, command: str) -> None:
    result = fsqueue_cli("insert", queue.path, "--csv", input=magic + b"\xff\xfe,\n", code=2)
    assert f"insert what '{command}' prints" in result.stderr


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("a,b\n1,2\n", "looks like a table: add --csv"),
        ("a\tb\n1\t2\n", "add --tsv"),
        ("a;b\n1;2\n", "add --delimiter ';'"),
        ("a|b\n1|2\n", "add --delimiter '|'"),
        ("a,b\n", "add --csv"),
        ("a, b\nc\n", "for plain lines use --lines"),
        ("/data/a b\n", "for plain lines use --lines"),
        ("{'x': 1}\n", "in double quotes"),
        ("{x: 1}\n", "in double quotes"),
        ('{"a": 1, x: 1}\n', "in double quotes"),
        ("{\"x\": 'a'}\n", "in double quotes"),
        ('{"x": 1,}\n', "JSON has no comma before a closing bracket"),
        ('{"x": [1, 2, ], "y": "it\'s"}\n', "JSON has no comma before a closing bracket"),
        ('{"x": True}\n', "JSON writes true, false and null"),
        ('{"x": NaN}\n', "JSON has no NaN and no infinities"),
        ("[1, -Infinity]\n", "JSON has no NaN and no infinities"),
        ("NaN\n", "JSON has no NaN and no infinities"),
        ('{"x": 1}{"x": 2}\n', "several values in a line? 'jq -c .'"),
        ('{"x": "cut\n', "the end of the line is missing"),
        ('{"x": 1\n', "Or is the end of the line missing?"),
        ('{\n  "x": 1\n}\n', "'jq -c .' makes a line of each"),
        ('[\n  {"x": 1},\n  {"x": 2}\n]\n', "\"jq -c '.[]'\""),
    ],
)
def test_text_that_is_no_json(fsqueue_cli: Run, queue: Queue, given: str, says: str) -> None:
    result = fsqueue_cli("insert", queue.path, input=given, code=2)
    assert result.stderr.startswith("fsqueue: standard input, line 1 is not JSON: ")
    assert says in result.stderr


@pytest.mark.parametrize("options", [[], ["--lines"], ["--csv"]])
@pytest.mark.parametrize("kind", ["xlsx", "ods", "xls"])
def test_a_spreadsheet_is_saved_as_csv_and_never_unzipped(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, kind: str, options: list[str]
) -> None:
    file = tmp_path / "sheet"
    with zipfile.ZipFile(file, "w") as archive:
        if kind == "ods":
            archive.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        archive.writestr("[Content_Types].xml" if kind == "xlsx" else "content.xml", "<x/>")
    if kind == "xls":
        file.write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600)
    result = fsqueue_cli("insert", queue.path, *options, file, code=2)
    assert "(it is a spreadsheet: save it as CSV in its program, and insert that with --csv)" in result.stderr
    assert "unzip" not in result.stderr
    assert queue.status().inserted == 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ('{"a":1,"b":2}\n{"a":3,"b":4}\n', "it is JSON: leave out the option for tables"),
        ('{"a":1}\n{"a":3}\n', "it is JSON"),
        ('\ufeff{"a":"x, y"}\n', "it is JSON"),
        ("[1,2]\n[3,4]\n", "it is JSON"),
        ('[\n{"a":1},\n{"a":3}\n]\n', "it is JSON"),
        ("<!DOCTYPE html>\n<html>\n", "it is HTML or XML"),
        ("\n<html lang='en'>\n<body>\n", "it is HTML or XML"),
        ("<?xml version='1.0'?>\n<a/>\n", "it is HTML or XML"),
    ],
)
def test_what_is_no_table_loses_no_first_line_as_a_header(
    fsqueue_cli: Run, queue: Queue, given: str, says: str
) -> None:
    result = fsqueue_cli("insert", queue.path, "--csv", input=given, code=2)
    assert f"is no header of a table: {says}" in result.stderr
    assert queue.status().inserted == 0


@pytest.mark.parametrize("header", ["[m],n", "<x>,n", "{a},n", "x < y,n"])
def test_a_header_may_have_brackets(fsqueue_cli: Run, queue: Queue, header: str) -> None:
    fsqueue_cli("insert", queue.path, "--csv", input=f"{header}\n1,2\n")
    assert [task.payload for task in queue.tasks()] == [{header.partition(",")[0]: 1, "n": 2}]


def test_items_end_with_nul(fsqueue_cli: Run, queue: Queue) -> None:
    """A producer that was ended leaves a part of an item; lines are one item, if all of them have no NUL."""
    result = fsqueue_cli("insert", queue.path, "-0", input="a\nb\n", code=2)
    assert "has line ends and no NUL: use --lines for a task of each line" in result.stderr
    assert queue.status().inserted == 0
    result = fsqueue_cli("insert", queue.path, "-0", input="a\n\0b")
    assert (result.stdout, result.stderr.count("\n")) == ("2\n", 1)
    assert "the last item does not end with NUL" in result.stderr
    assert fsqueue_cli("insert", queue.path, "-0", input="c\0d\0").stderr == ""
    assert sorted(task.payload for task in queue.tasks()) == ["a\n", "b", "c", "d"]


@pytest.mark.batched
def test_a_fraction_in_a_column_of_keys_or_priorities_has_a_cure(fsqueue_cli: Run, queue: Queue) -> None:
    result = fsqueue_cli("insert", queue.path, "--csv", "--key", "k", input="k\n1.5\n", code=2)
    assert "line 2 is no task for this queue: a key is a text, not float: make a text of it. " in result.stderr
    assert "--text k" in result.stderr
    assert fsqueue_cli("insert", queue.path, "--csv", "--key", "k", "--text", "k", input="k\n1.5\n").stdout == "1\n"
    result = fsqueue_cli("insert", queue.path, "--csv", "--priority", "k", input="k\n1.5\n", code=2)
    assert "not float: multiply it and round, such as 150 for 1.5." in result.stderr


def test_a_program_that_a_hint_names_takes_the_line(fsqueue_cli: Run, queue: Queue) -> None:
    """jq refuses these as `insert` does, so no hint may name it."""
    for line in (
        "{x: 1}",
        '{"x": 1,}',
        '{"x": nul}',
        '{"x": 1} trailing',
        '{"x": 01}',
        '{"x": "cut',
        "{'x': 1}",
        "[1,]",
    ):
        assert "jq" not in fsqueue_cli("insert", queue.path, input=f"{line}\n", code=2).stderr, line


@pytest.mark.parametrize("first", [b"", b"1\n"])
def test_json_of_older_programs_is_told_what_makes_utf_8_of_it(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, first: bytes
) -> None:
    """jq would put U+FFFD in the place of each such character."""
    file = tmp_path / "l.jsonl"
    file.write_bytes(first + '{"site": "Zürich"}\n'.encode("latin-1"))
    ran = fsqueue_cli("insert", queue.path, file, "--commit", "a", code=2)
    assert (
        f"line {1 + len(first) // 2} is not JSON: it is not UTF-8 (byte 12 is 0xfc): what older programs" in ran.stderr
    )
    assert "jq" not in ran.stderr
    [command] = re.findall("'(iconv .*?)'", ran.stderr)
    made = subprocess.run([*shlex.split(command), str(file)], capture_output=True, check=True).stdout
    fsqueue_cli("insert", queue.path, "--commit", "a", input=made)
    assert {"site": "Zürich"} in [task.payload for task in queue.tasks()]


def test_a_byte_that_is_no_utf_8_is_named_also_at_the_end_of_a_line(fsqueue_cli: Run, queue: Queue) -> None:
    """ "Unexpected end of data" would be said of the line, and read as if it were the file's."""
    for options in (["--csv"], ["--lines"]):
        given = b"n,x\n1,caf\xe9\n2,x\n"
        result = fsqueue_cli("insert", queue.path, *options, "--commit", "a", input=given, code=2)
        assert "line 2 is not UTF-8 (byte 6 is 0xe9)" in result.stderr
        assert "end of data" not in result.stderr


def test_what_is_unpacked_by_a_command_is_inserted_as_a_whole_or_not_at_all(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path
) -> None:
    file = tmp_path / "t.csv.gz"
    packed = gzip.compress(b"n,x\n" + b"".join(b"%d,%d\n" % (n, n * n) for n in range(3000)))
    for data, count in ((packed[:-1000], 0), (packed, 3000)):
        file.write_bytes(data)
        said = fsqueue_cli("insert", queue.path, "--csv", file, code=2).stderr
        [advised] = re.findall(r"with (--commit NAME --from -- .*) nothing of", said)
        fsqueue_cli("insert", queue.path, "--csv", *shlex.split(advised), code=0 if count else 1)
        assert queue.status().inserted == count


TABLE_OF_PANDAS = '"a":{"0":1,"10":2},"c":{"0":"x","10":null}'


@pytest.mark.parametrize("options", [[], ["--commit", "a"]])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (f"{{{TABLE_OF_PANDAS}}}", "to_json(…, orient='records', lines=True)"),
        ('{"a":{"0":1}}\n', "to_json(…, orient='records', lines=True)"),
        ('{"columns":["a"],"index":[0],"data":[[1]]}', "to_json(…, orient='records', lines=True)"),
        ('{"schema":{"fields":[]},"data":[{"index":0}]}', "to_json(…, orient='records', lines=True)"),
        ('[{"a":1},{"a":2}]', "\"jq -c '.[]'\""),
        ('{"a":{"x":1,"y":2},"b":{"x":1,"y":2}}', None),
        ('{"a":{"0":1},"b":2}', None),
        ('{"a":{"0":1},"b":{"1":2}}', None),
        ('{"a":{}}', None),
        ('{"data":[1,2]}', None),
        ("{}", None),
        ('[{"a":1}]', None),
        (f"{{{TABLE_OF_PANDAS}}}\n{{{TABLE_OF_PANDAS}}}\n", None),
        ("[1,2]\n[3,4]\n", None),
    ],
)
def test_a_whole_table_in_one_object_is_one_task_and_is_told(
    fsqueue_cli: Run, queue: Queue, given: str, says: str | None, options: list[str]
) -> None:
    result = fsqueue_cli("insert", queue.path, *options, input=given)
    assert result.stdout == f"{len(given.splitlines())}\n"
    assert ("became one task" in result.stderr) == (says is not None)
    assert says is None or says in result.stderr
    assert result.stderr.count("\n") == (says is not None)


@pytest.mark.parametrize("more", [[], ["--skip-bad"], ["--commit", "a"]])
def test_plain_lines_with_a_carriage_return_within_are_refused_and_one_at_the_end_is_no_part(
    fsqueue_cli: Run, queue: Queue, more: list[str]
) -> None:
    """Lines that end as on an old Mac would be one task."""
    result = fsqueue_cli("insert", queue.path, "--lines", *more, input=b"a\rb\r", code=1 if "--skip-bad" in more else 2)
    assert 'line 1 has a carriage return within a line: where it ends lines, insert what "tr ' in result.stderr
    assert "Names with it are items for -0" in result.stderr
    assert queue.status().inserted == 0
    fsqueue_cli("insert", queue.path, "--lines", input=b"a\r\r\nb\r\n\r\n")
    fsqueue_cli("insert", queue.path, "--csv", input=b"n\r\r\nc\r\r\n\r\r\n")
    fsqueue_cli("insert", queue.path, input=b'"d"\r\r\n')
    fsqueue_cli("insert", queue.path, "-0", input=b"e\rf\0")
    fsqueue_cli("insert", queue.path, "--lines", "--task", "g\rh")
    assert payloads(queue) == sorted(["a", "b", {"n": "c"}, "d", "e\rf", "g\rh"], key=str)


def test_json_lines_round_floats_as_json_does(fsqueue_cli: Run, queue: Queue) -> None:
    """docs/tables.md says so."""
    given = '{"a":0.12345678901234567890123,"b":9007199254740993.0,"c":1e-400,"d":3.10}\n'
    assert fsqueue_cli("insert", queue.path, input=given).stderr == ""
    assert payloads(queue) == [{"a": 0.12345678901234568, "b": 9007199254740992.0, "c": 0.0, "d": 3.1}]


@pytest.mark.parametrize("options", [["--csv"], ["--lines"], []])
def test_a_last_line_without_an_end_is_a_task(fsqueue_cli: Run, queue: Queue, options: list[str]) -> None:
    """docs/tables.md says so."""
    result = fsqueue_cli("insert", queue.path, *options, input='"n"\n34\n5')
    assert (result.stdout, result.stderr) == ("2\n" if options == ["--csv"] else "3\n", "")


def test_a_table_with_one_column_is_known_by_its_name(fsqueue_cli: Run, queue: Queue, tmp_path: Path) -> None:
    for name, option in (("t.csv", "--csv"), ("T.TSV", "--tsv")):
        (tmp_path / name).write_text("name\na\n")
        result = fsqueue_cli("insert", queue.path, tmp_path / name, code=2)
        assert f"by its name it is a table: add {option}" in result.stderr


def test_a_long_header_is_known_though_its_rows_are_not_in_the_first_bytes(fsqueue_cli: Run, queue: Queue) -> None:
    names = ",".join(f"field{n}" for n in range(500))
    result = fsqueue_cli("insert", queue.path, input=f"{names}\n{names}\n", code=2)
    assert "add --csv" in result.stderr


def test_after_a_good_line_the_file_is_what_it_seemed(fsqueue_cli: Run, queue: Queue) -> None:
    assert "table" not in fsqueue_cli("insert", queue.path, input="1\na,b\n1,2\n", code=2).stderr
