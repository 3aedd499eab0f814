"""insert: every line a task, or named."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import pytest
from click.testing import CliRunner
from fsqueue_cli import insert_source
from fsqueue_cli.insert_input import Input
from fsqueue_cli.insert_source import Advance
from fsqueue_cli.main import cli

from fsqueue import Group, Queue, StorageError, StorageFull
from fsqueue.protocol import insert_errors
from fsqueue.protocol.encoding import EncodedTask
from fsqueue.protocol.keyed_inserts import KeyedInserter
from fsqueue.protocol.single_inserts import SingleInserter
from fsqueue.storage import keys, staging
from tests.cli.conftest import Run, Spawn, waits
from tests.concurrency.processes import Child
from tests.conftest import QueueFactory
from tests.levels import how_many
from tests.support import task_file_names
from tests.waiting import PATIENCE_S, until

SPARE = 3
"""Loops that meet at a batch's lock begin another one; so many for each loop is plenty."""


def payloads(queue: Queue) -> list[object]:
    return sorted((task.payload for task in queue.tasks()), key=json.dumps)


def test_json_lines_from_standard_input(fsqueue_cli: Run, queue: Queue) -> None:
    result = fsqueue_cli("insert", queue.path, input='{"a": [1, 2]}\n"text"\nnull\n1.5\n')
    assert result.stdout == "4\n"
    assert result.stderr == ""
    assert payloads(queue) == ["text", 1.5, None, {"a": [1, 2]}]


def test_files_in_turn_without_a_last_line_end(fsqueue_cli: Run, queue: Queue, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1\n2")
    (tmp_path / "two").write_text("3\n\n  \n4\n")
    assert fsqueue_cli("insert", queue.path, tmp_path / "one", "-", tmp_path / "two", input="5").stdout == "5\n"
    assert payloads(queue) == [1, 2, 3, 4, 5]


def test_plain_lines(fsqueue_cli: Run, queue: Queue) -> None:
    fsqueue_cli("insert", queue.path, "--lines", input="/data/a b.tif\n{not json\r\n\n ä\n".encode())
    assert payloads(queue) == sorted(["/data/a b.tif", "{not json", " ä"], key=json.dumps)


def test_a_byte_order_mark_and_dos_line_ends_are_no_part_of_the_payload(fsqueue_cli: Run, queue: Queue) -> None:
    fsqueue_cli("insert", queue.path, input=b"\xef\xbb\xbf1\r\n2\r\n")
    assert payloads(queue) == [1, 2]


def test_delay_and_batch_size(fsqueue_cli: Run, queue: Queue) -> None:
    fsqueue_cli("insert", queue.path, "--delay", "3600.5", "--batch-tasks", "10", input="1\n" * 25)
    assert queue.status().delayed == 25
    fsqueue_cli("insert", queue.path, "--batch-tasks", "0", input="1\n", code=2)


def insert_lines(path: str, lines: list[str]) -> None:
    """Do what a shell loop does: a process for each line, one after the other."""
    for line in lines:
        child = Child(
            lambda line=line: CliRunner().invoke(cli, ["insert", path], input=line, catch_exceptions=False).output
        )
        assert child.result() == "1\n"


@pytest.mark.once
def test_many_processes_that_insert_a_line_each_make_few_inodes(queue_factory: QueueFactory) -> None:
    queue, count = queue_factory(durability="none"), how_many(90, 300)
    before = len(list(queue.path.rglob("*")))
    loops = [Child(insert_lines, str(queue.path), [f"{n}\n" for n in range(first, count, 3)]) for first in range(3)]
    for loop in loops:
        assert loop.wait() == 0, loop.report()
    assert payloads(queue) == sorted(range(count), key=json.dumps)
    assert queue.status().waiting == count
    assert len(task_file_names(queue)) <= 3 * SPARE
    assert len(list(queue.path.rglob("*"))) - before <= 2 * (3 * SPARE) + 4


def test_json_output(fsqueue_cli: Run, queue: Queue) -> None:
    assert json.loads(fsqueue_cli("insert", queue.path, "--json", input="1\n2\n").stdout) == {
        "inserted": 2,
        "skipped": 0,
    }


BAD = {
    b"{": "is not JSON",
    b"plain text": "use --lines",
    b"NaN": "is not JSON",
    b"[1, Infinity]": "is not JSON",
    b"[-Infinity]": "is not JSON",
    b"1e999": "beyond the range of floats",
    b'{"a": 1, "b": {"a": 2, "a": 3}}': "has a name twice in an object, 'a'",
    b"'single'": "is not JSON",
    b"1 2": "is not JSON",
    b'{"a": 1,}': "is not JSON",
    b"\xff\xfe1\x00": "is not JSON",
    b'"\\ud800"': "is not JSON",
    b'"tab\there"': "is not JSON",
    b"18446744073709551616": "beyond 64 bits",
    b'{"n": [-9223372036854775809]}': "beyond 64 bits",
    b"1" * 5000: "beyond 64 bits",
    b"[" * 1000 + b"-" + b"1" * 30 + b"]" * 1000: "beyond 64 bits",
    b"[" * 100_000: "nests too deep",
    b"[" * 2000 + b"]" * 2000: "nests too deep",
    b"[" * 201 + b"]" * 201: "nests deeper than 200 levels",
    b'{"a":' * 254 + b"1" + b"}" * 254: "nests deeper than 200 levels",
    b"[" * 500 + b"]" * 500: "is no task for this queue",
}


@pytest.mark.parametrize("line", BAD, ids=lambda line: line[:20].decode("latin-1"))
def test_a_bad_line_is_named_and_what_was_before_is_in(fsqueue_cli: Run, queue: Queue, line: bytes) -> None:
    result = fsqueue_cli("insert", queue.path, input=b"1\n2\n" + line + b"\n3\n", code=2)
    assert "standard input, line 3 " in result.stderr
    assert BAD[line] in result.stderr
    assert "2 tasks were inserted" in result.stderr
    assert "tail -n +3" in result.stderr
    assert "insert the first 2 again" in result.stderr
    assert result.stdout == "2\n"
    assert payloads(queue) == [1, 2]


def test_large_numbers_that_json_keeps_are_kept(fsqueue_cli: Run, queue: Queue) -> None:
    lines = [
        "18446744073709551615",
        "-9223372036854775808",
        "0.12345678901234567890123",
        '"99999999999999999999"',
        "1.99999999999999999999e5",
    ]
    fsqueue_cli("insert", queue.path, input="\n".join(lines))
    assert payloads(queue) == sorted(map(json.loads, lines), key=json.dumps)


def test_skip_bad_names_each_and_ends_with_1(fsqueue_cli: Run, queue: Queue) -> None:
    result = fsqueue_cli("insert", queue.path, "--skip-bad", input="1\nx\n2\nNaN\n3\n", code=1)
    assert payloads(queue) == [1, 2, 3]
    assert result.stdout == "3\n"
    assert "line 2 is not JSON" in result.stderr
    assert "line 4 is not JSON" in result.stderr
    assert "3 tasks were inserted; 2 bad lines skipped" in result.stderr


def test_many_skipped_lines_are_counted(fsqueue_cli: Run, queue: Queue) -> None:
    result = fsqueue_cli("insert", queue.path, "--skip-bad", "--json", input="x\n" * 100 + "1\n", code=1)
    assert len(result.stderr.splitlines()) < 30
    assert "80 more" in result.stderr
    assert json.loads(result.stdout) == {"inserted": 1, "skipped": 100}


def test_a_line_that_is_too_long_is_named_and_the_next_is_read(fsqueue_cli: Run, queue_factory: QueueFactory) -> None:
    queue = queue_factory(task_bytes_max=1000)
    long = json.dumps("x" * 300_000)
    result = fsqueue_cli("insert", queue.path, "--skip-bad", input=f"1\n{long}\n2\n", code=1)
    assert "line 2 is longer" in result.stderr
    assert payloads(queue) == [1, 2]


def test_a_task_just_too_large_is_named_with_its_line(fsqueue_cli: Run, queue_factory: QueueFactory) -> None:
    queue = queue_factory(task_bytes_max=1000)
    result = fsqueue_cli("insert", queue.path, input="1\n2\n" + json.dumps("x" * 997) + "\n3\n", code=14)
    assert "line 3" in result.stderr
    assert "2 tasks were inserted" in result.stderr
    assert payloads(queue) == [1, 2]


@pytest.mark.once
def test_a_task_that_is_too_large_has_an_exit_code_of_its_own(
    fsqueue_cli: Run, tmp_path: Path, place_of: Callable[[Path], str]
) -> None:
    """14. Wrong use, and a line that is no JSON, have 2; so has a task that cannot be stored for another reason."""
    group = Group.create(tmp_path / "group", task_bytes_max=1000, durability="none")
    place = place_of(group.path)
    much_too_large, too_large, queue = json.dumps("x" * 300_000), json.dumps("x" * 997), f"{place}/q"
    for line, code in {much_too_large: 14, too_large: 14, "{": 2}.items():
        fsqueue_cli("insert", queue, input=line, code=code)
        fsqueue_cli("insert", queue, "--commit", "c", input=f"1\n{line}", code=code)
    fsqueue_cli("insert", queue, "--key", "k", input='{"k": ""}', code=2)
    for arguments, code in {("--insert", f"q={too_large}"): 14, ("--insert", "q={"): 2, ("--insert", "q"): 2}.items():
        fsqueue_cli("update", place, *arguments, code=code)
    fsqueue_cli("insert", queue, "--task", too_large, code=14)
    assert group.status().status.inserted == 0


def test_a_task_that_the_queue_refuses_can_be_skipped(fsqueue_cli: Run, queue_factory: QueueFactory) -> None:
    queue = queue_factory(task_bytes_max=1000)
    lines = [1, 2, "x" * 997, 3, "x" * 2000, 4]
    result = fsqueue_cli("insert", queue.path, "--skip-bad", input="\n".join(map(json.dumps, lines)), code=1)
    assert "line 3 is no task for this queue" in result.stderr
    assert "line 5 is longer" in result.stderr
    assert payloads(queue) == [1, 2, 3, 4]


def test_a_full_disk_exits_with_7_and_says_how_many_were_inserted(
    fsqueue_cli: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(self: Queue, payloads: Iterable[object], **options: object) -> int:
        error = StorageFull("There is no room left.")
        error.inserted = sum(1 for _ in payloads) - 2
        raise error

    monkeypatch.setattr(Queue, "insert_many", fill)
    result = fsqueue_cli("insert", queue.path, input="1\n2\n3\n4\n5\n", code=7)
    assert result.stdout == "3\n"
    assert "3 tasks were inserted from the beginning of the input" in result.stderr
    assert "no room left" in result.stderr


@pytest.mark.parametrize(
    ("inserted", "is_exact", "says"),
    [
        (2, True, "2 tasks were inserted from the beginning of the input, then this happened:"),
        (
            2,
            False,
            "from the beginning of the input, and some that came next may be in the queue, too, then this happened:",
        ),
        (
            None,
            True,
            "do not repeat the command: it would insert them again. The error says more\nfsqueue: 2 tasks were",
        ),
    ],
)
def test_what_is_said_of_an_insert_that_broke_off(
    fsqueue_cli: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch, inserted: int | None, is_exact: bool, says: str
) -> None:
    def fail(self: Queue, payloads: Iterable[object], **options: object) -> int:
        assert len(list(payloads)) == 5
        error = StorageFull("No room. This call did something.")
        error.inserted, error.new, error.is_exact, error.advice = inserted, 2, is_exact, "This call did something."
        raise error

    monkeypatch.setattr(Queue, "insert_many", fail)
    result = fsqueue_cli("insert", queue.path, input="1\n\n2\n\n\n3\n4\n5\n", code=7)
    assert result.stdout == "2\n"
    assert says in result.stderr
    assert ("This call did something" in result.stderr) == (inserted is None)
    assert ("through 'tail -n +6'" in result.stderr) == (inserted is not None)


@pytest.mark.parametrize(
    ("step", "successes", "code", "inserted", "says"),
    [
        ("sync_shards", 0, errno.EIO, 4, "4 tasks were inserted from the beginning of the input, then this happened:"),
        ("sync_shards", 0, errno.EIO, 4, "may still take the 4 tasks that came in last."),
        (
            "publish_staged",
            2,
            errno.EDQUOT,
            2,
            "2 tasks were inserted from the beginning of the input, then this happened:",
        ),
        ("publish_staged", 0, errno.EACCES, 0, "None of the tasks is in the queue: repeat the call."),
        ("stage", 1, errno.EIO, 0, "None of the tasks is in the queue: repeat the call."),
    ],
)
def test_what_is_said_after_an_error_of_the_disk_is_what_is_in_the_queue(
    fsqueue_cli: Run,
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    successes: int,
    code: int,
    inserted: int,
    says: str,
) -> None:
    real, left = getattr(staging, step), successes

    def failing(*args: Any) -> Any:
        nonlocal left
        if not left:
            raise OSError(code, os.strerror(code))
        left -= 1
        return real(*args)

    monkeypatch.setattr(staging, step, failing)
    exit_code = 7 if code == errno.EDQUOT else 1
    result = fsqueue_cli("insert", queue.path, "--batch-tasks", 1, input="1\n2\n3\n4\n", code=exit_code)
    assert result.stdout == (f"{inserted}\n" if inserted else "")
    assert says in result.stderr
    assert payloads(queue) == [1, 2, 3, 4][:inserted]


def test_bytes_that_are_no_text_are_no_plain_line(fsqueue_cli: Run, queue: Queue) -> None:
    assert "line 2 is not UTF-8" in fsqueue_cli("insert", queue.path, "--lines", input=b"a\n\xff\n", code=2).stderr


def test_a_mistyped_file_is_one_sentence_and_nothing_is_inserted(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path
) -> None:
    (tmp_path / "good").write_text("1\n")
    for bad, why in ((tmp_path / "tasks.josnl", "no such file"), (tmp_path, "it is a directory")):
        for more in ([], ["--commit", "seed"], ["--skip-bad"], ["--json"]):
            result = fsqueue_cli("insert", queue.path, tmp_path / "good", bad, *more, code=2)
            assert (result.stdout, result.stderr) == ("", f"fsqueue: {bad}: {why}. Nothing was inserted.\n")
    assert queue.status().inserted == 0
    fsqueue_cli("insert", queue.path, tmp_path / "good", "--commit", "seed")
    assert fsqueue_cli("insert", queue.path, tmp_path / "absent", "--commit", "seed").stdout == "0\n", "it is not read"


HINT = "what \"jq -c '.[]'\" makes of it"


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ("[1, 2, 3]\n", 0, f"one JSON array, and became one task. For a task of each element, .*{re.escape(HINT)}"),
        ("[\n  1,\n  2\n]\n", 2, f"line 1 is not JSON: .*array over several lines. .*{re.escape(HINT)}"),
        ('{\n  "a": 1\n}\n', 2, "object over several lines. 'jq -c .' makes a line of each"),
        ("word\n", 2, "for plain lines use --lines"),
    ],
)
def test_json_that_is_no_json_lines_gets_a_hint(
    fsqueue_cli: Run, queue: Queue, given: str, code: int, words: str
) -> None:
    assert re.search(words, fsqueue_cli("insert", queue.path, input=given, code=code).stderr)


@pytest.mark.parametrize("given", ["[1, 2]\n[3, 4]\n", "[]\n", "[1]\n", '{"a": [1, 2]}\n'])
def test_payloads_that_are_arrays_get_none(fsqueue_cli: Run, queue: Queue, given: str) -> None:
    assert fsqueue_cli("insert", queue.path, input=given).stderr == ""


@pytest.fixture
def files_vanish(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are there when the command begins, and cannot be read later."""
    monkeypatch.setattr("fsqueue_cli.insert_source.why_unreadable", lambda name: None)


@pytest.mark.usefixtures("files_vanish")
def test_a_file_that_cannot_be_read_ends_it_after_those_before(fsqueue_cli: Run, queue: Queue, tmp_path: Path) -> None:
    (tmp_path / "good").write_text("1\n")
    for bad in (tmp_path / "absent", tmp_path):
        result = fsqueue_cli("insert", queue.path, tmp_path / "good", bad, code=2)
        assert f"{bad}" in result.stderr
        assert "cannot be read" in result.stderr
        assert "1 task was inserted" in result.stderr
        assert f"insert {bad}; to repeat the command would insert the first 1 again" in result.stderr


def rest_of(stderr: str) -> str:
    """What the last line says that is to be inserted next."""
    [_, rest] = stderr.splitlines()[-1].split("insert ", 1)
    return rest


def test_who_follows_the_advice_after_a_bad_line_of_several_files_loses_and_repeats_nothing(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path
) -> None:
    """`fsqueue insert q a b c`: the rest of b, and c."""
    a, b, c = (tmp_path / name for name in ("a", "b with blanks", "c"))
    a.write_text("1\n2\n")
    b.write_text("3\nbad\n5\n")
    c.write_text("6\n")
    result = fsqueue_cli("insert", queue.path, a, b, c, code=2)
    rest = rest_of(result.stderr)
    assert rest.startswith(f"the rest, which 'tail -n +2 '{b}'' prints, and after it {c};")
    b.write_text("3\n4\n5\n")  # corrected
    fsqueue_cli("insert", queue.path, "-", c, input="".join(b.read_text().splitlines(keepends=True)[1:]))
    assert sorted(payloads(queue)) == [1, 2, 3, 4, 5, 6]


@pytest.mark.usefixtures("files_vanish")
def test_the_advice_after_a_bad_line_of_a_pipe_and_a_missing_file(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path
) -> None:
    (tmp_path / "good").write_text("1\n")
    result = fsqueue_cli("insert", queue.path, tmp_path / "good", "-", input="2\nbad\n", code=2)
    assert rest_of(result.stderr).startswith("the rest (a pipe cannot be read again: make its input once more")
    result = fsqueue_cli("insert", queue.path, tmp_path / "good", tmp_path / "no", tmp_path / "good", code=2)
    assert rest_of(result.stderr).startswith(f"{tmp_path / 'no'}, and after it {tmp_path / 'good'};")
    result = fsqueue_cli("insert", queue.path, input="bad\n", code=2)
    assert result.stderr.splitlines()[-1].endswith("correct it and repeat the command")


@pytest.mark.parametrize(("options", "first", "says"), [((), "1\n", "tail -n +2"), (("--csv",), "n\n1\n", "sed 2,2d")])
def test_of_a_fifo_no_rest_can_be_read_again(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, options: tuple[str, ...], first: str, says: str
) -> None:
    """As of `<(…)`: what a command behind it would read is gone, or never ends."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    keeper = os.open(fifo, os.O_RDWR)
    os.write(keeper, f"{first}a,b,c\n{first[-2:]}".encode())
    writer = threading.Timer(1.0, os.close, [keeper])
    writer.start()
    result = fsqueue_cli("insert", queue.path, *options, fifo, code=2)
    writer.join()
    assert rest_of(result.stderr).startswith(
        f"the rest (a pipe cannot be read again: make its input once more, through '{says}');"
    )
    assert payloads(queue) == [{"n": 1} if options else 1]


@pytest.mark.once
def test_a_slow_producer_does_not_keep_its_tasks_from_the_queue(spawn: Spawn, queue: Queue) -> None:
    process = spawn("insert", queue.path, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("1\n2\n3")
    process.stdin.flush()
    until(lambda: queue.status().waiting == 2, "two tasks")
    assert queue.status().waiting == 2
    assert process.communicate("4\n5\n", timeout=PATIENCE_S) == ("4\n", "")
    assert payloads(queue) == [1, 2, 34, 5]


@pytest.mark.once
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_while_reading_what_was_read_is_inserted_and_counted(
    spawn: Spawn, queue: Queue, number: int, code: int
) -> None:
    process = spawn("insert", queue.path, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("1\n2\n3\nhalf a li")
    process.stdin.flush()
    until(lambda: queue.status().waiting == 3, "three tasks")
    until(lambda: waits(process.pid), "it to wait for more")
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (code, "3\n")
    first, second = err.splitlines()
    assert first == "fsqueue: interrupted: 3 tasks were inserted, up to standard input, line 3"
    assert "tail -n +4" in second
    assert "insert the first 3 again" in second
    assert queue.status().waiting == 3


@pytest.mark.once
def test_interrupted_while_busy_the_count_is_exact(spawn: Spawn, queue: Queue, tmp_path: Path) -> None:
    (tmp_path / "many").write_text('{"payload": "0123456789"}\n' * 2_000_000)
    process = spawn("insert", queue.path, tmp_path / "many")
    until(lambda: queue.status(exact=False).inserted, "the first tasks")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert 0 < int(out) < 2_000_000
    assert queue.status().inserted == int(out)
    assert f"up to {tmp_path / 'many'}, line {int(out):,}" in err


@pytest.mark.slow
@pytest.mark.once
def test_memory_is_bounded(spawn: Spawn, queue: Queue) -> None:
    process = spawn("insert", queue.path, stdin=subprocess.PIPE)
    assert process.stdin is not None
    line = json.dumps("x" * 200) + "\n"
    for _ in range(300):
        process.stdin.write(line * 1000)
    status = Path(f"/proc/{process.pid}/status").read_text()
    assert process.communicate(timeout=PATIENCE_S)[0] == "300000\n"
    assert int(status.partition("VmHWM:")[2].split()[0]) < 100 * 1024


@pytest.mark.once
@pytest.mark.parametrize(
    ("options", "first", "more"), [((), "1\n" * 300, 300), (("--csv",), "n\n" + "1\n" * 10_000, 300)]
)
def test_on_a_terminal_progress_is_shown_when_it_takes_long(
    spawn: Spawn, queue: Queue, options: tuple[str, ...], first: str, more: int
) -> None:
    terminal, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    process = spawn("insert", queue.path, *options, stdin=subprocess.PIPE, stderr=side)
    os.close(side)
    assert process.stdin is not None
    process.stdin.write(first)
    process.stdin.flush()
    tasks = first.count("1\n")
    until(lambda: queue.status().waiting == tasks, "the first tasks, which a pause publishes")
    assert process.communicate("1\n" * more, timeout=PATIENCE_S)[0] == f"{tasks + more}\n"
    shown = os.read(terminal, 100_000).decode()
    os.close(terminal)
    assert "insert: " in shown


# -- priorities --------------------------------------------------------------------------------------


@pytest.mark.batched
def test_a_field_of_each_payload_is_its_priority(queue: Queue) -> None:
    given = ['{"due":"b","n":1}', '{"n":2}', '"text"', '{"due":"a","n":3}', '{"due":null}', '{"due":7}']
    for some in (given[:-1], given[-1:]):  # in one input all priorities are texts, or all numbers
        result = CliRunner().invoke(cli, ["insert", str(queue.path), "--priority", "due"], input="\n".join(some))
        assert (result.exit_code, result.stdout) == (0, f"{len(some)}\n"), result.output
    lines = [
        json.loads(line)
        for path in Path(queue.path).glob("1-*/movements/*/*.jsonl")
        for line in path.read_text().splitlines()
        if '"insert"' in line
    ]
    kept = {json.dumps(line["payload"], separators=(",", ":")): line.get("priority") for line in lines}
    assert kept == dict(zip(given, ["b", None, None, "a", None, 7], strict=True))


@pytest.mark.parametrize("value", ["1.5", "true", "[1]", "9223372036854775808", '"' + "x" * 1025 + '"'])
def test_a_field_that_is_no_priority_is_a_bad_line(queue: Queue, value: str) -> None:
    given = f'{{"due":1}}\n{{"due":{value}}}\n{{"due":2}}\n'
    result = CliRunner().invoke(cli, ["insert", str(queue.path), "--priority", "due"], input=given)
    assert result.exit_code == 2
    assert re.search("line 2 is no task for this queue: (a|the|a whole number as) priority ", result.stderr)
    assert ("such as 150 for 1.5" in result.stderr) == (value == "1.5")
    assert "Task number" not in result.stderr, "it might be another number than the line's"
    assert queue.status().waiting == 1


def test_lines_have_no_fields(queue: Queue) -> None:
    result = CliRunner().invoke(cli, ["insert", str(queue.path), "--lines", "--priority", "due"], input="a\n")
    assert result.exit_code != 0
    assert "leave --lines out" in str(result.exception) + result.output
    assert queue.status().waiting == 0


@pytest.mark.batched  # with one task a batch a queue takes no keys
def test_tasks_with_keys_are_inserted_once_while_they_live(fsqueue_cli: Run, queue: Queue) -> None:
    lines = '{"scan": "a"}\n{"scan": 7}\n{"scan": "a", "again": true}\n{"other": 1}\n'
    first = fsqueue_cli("insert", queue.path, "--key", "scan", input=lines)
    assert (first.stdout, first.stderr) == ("3\n", "3 of 4 tasks were new: the keys of the others were taken\n")
    assert {task.key for task in queue.tasks()} == {"a", "7", None}
    again = fsqueue_cli("insert", queue.path, "--key", "scan", "--json", input=lines)
    assert json.loads(again.stdout) == {"inserted": 1, "skipped": 0, "tasks": 4}
    queue.complete(queue.lease(10))
    assert fsqueue_cli("insert", queue.path, "--key", "scan", input=lines).stdout == "3\n"


@pytest.mark.batched  # with one task a batch a queue takes no keys
def test_what_cannot_be_a_key_is_a_bad_line(fsqueue_cli: Run, queue: Queue) -> None:
    lines = '{"k": "a"}\n{"k": [1]}\n{"k": ""}\n{"k": true}\n{"k": null}\n5\n{"k": "a"}\n'
    result = fsqueue_cli("insert", queue.path, "--key", "k", "--skip-bad", input=lines, code=1)
    assert result.stdout == "3\n"
    assert result.stderr.count("a key is a text, not ") == 2
    assert "line 3 is no task for this queue: the key is empty" in result.stderr
    assert "Task number" not in result.stderr, "it would be another number than the line's"
    for other, why in (("--lines", "leave --lines out"), ("--commit=x", "takes no keys")):
        result = fsqueue_cli("insert", queue.path, "--key", "k", other, input=lines, code=2)
        assert why in result.stderr


@pytest.mark.batched  # with one task a batch a queue takes no keys
def test_a_line_that_is_refused_is_no_task_whose_key_was_taken(fsqueue_cli: Run, queue: Queue) -> None:
    lines = '{"k":"1"}\nbad\n{"k":["x"]}\n'
    result = fsqueue_cli("insert", queue.path, "--key", "k", "--skip-bad", input=lines, code=1)
    assert "keys of the others" not in result.stderr
    result = fsqueue_cli("insert", queue.path, "--key", "k", "--skip-bad", "--json", input=lines, code=1)
    assert json.loads(result.stdout) == {"inserted": 0, "skipped": 2, "tasks": 1}


@pytest.mark.batched
def test_a_line_that_is_too_long_for_a_key_is_named(fsqueue_cli: Run, queue: Queue) -> None:
    lines = f'{{"k":"1"}}\n\n{{"k":"2","x":"{"y" * 70_000}"}}\n{{"k":"3"}}\n'
    result = fsqueue_cli("insert", queue.path, "--key", "k", input=lines, code=14)
    assert result.stdout == "1\n"
    assert "line 3 is no task for this queue: it takes 70,0" in result.stderr
    assert "a task with a key may take 65,536. Store the data in a file and queue its path" in result.stderr
    assert "or repeat the command: it inserts no line whose key is taken" in result.stderr
    result = fsqueue_cli("insert", queue.path, "--key", "k", "--skip-bad", input=lines, code=1)
    assert (result.stdout, result.stderr.count("line 3 is no task")) == ("1\n", 1)
    assert sorted(str(task.key) for task in queue.tasks()) == ["1", "3"]


@pytest.mark.batched
def test_a_bad_line_among_many_with_keys_is_named_and_the_others_are_inserted(fsqueue_cli: Run, queue: Queue) -> None:
    lines = [f'{{"k":"{number}"}}' for number in range(300)]
    lines[200] = f'{{"k":"200","x":"{"y" * 70_000}"}}'
    result = fsqueue_cli("insert", queue.path, "--key", "k", "--skip-bad", input="\n".join(lines), code=1)
    assert (result.stdout, result.stderr.count("line 201 is no task")) == ("299\n", 1)
    assert sorted(int(task.key or "") for task in queue.tasks()) == [*range(200), *range(201, 300)]


@pytest.mark.once
def test_a_queue_with_batches_of_one_refuses_the_first_line_with_a_key(
    fsqueue_cli: Run, queue_factory: QueueFactory
) -> None:
    queue = queue_factory(batch_tasks_max=1)
    result = fsqueue_cli("insert", queue.path, "--key", "k", input='{"u":1}\n{"k":"2"}\n{"k":"3"}\n', code=2)
    assert result.stdout == "1\n"
    assert "line 2 is no task for this queue: it has a key, and the queue" in result.stderr
    assert [task.payload for task in queue.tasks()] == [{"u": 1}]


@pytest.mark.parametrize("option", [pytest.param("--key", marks=pytest.mark.batched), "--priority"])
def test_a_mistyped_field_gets_a_hint(fsqueue_cli: Run, queue: Queue, option: str) -> None:
    lines = '{"a":1}\n{"a":null,"b":2}\n'
    hint = f"hint: no line has a value in the field 'typo' ({option}), so no task has a {option[2:]}\n"
    assert fsqueue_cli("insert", queue.path, option, "typo", input=lines).stderr == hint
    for field in ("a", "b"):
        assert fsqueue_cli("insert", queue.path, option, field, input=lines).stderr == ""
    assert "hint" not in fsqueue_cli("insert", queue.path, option, "typo", input="").stderr
    assert "is empty" in fsqueue_cli("insert", queue.path, option, "", input=lines, code=2).stderr


def test_a_mistyped_field_of_a_commit_gets_a_hint(fsqueue_cli: Run, queue: Queue) -> None:
    result = fsqueue_cli("insert", queue.path, "--priority", "typo", "--commit", "c", input='{"a":1}\n')
    assert "no line has a value in the field 'typo'" in result.stderr


def test_what_does_not_go_with_keys_is_refused(fsqueue_cli: Run, queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    result = fsqueue_cli("insert", queue.path, "--key", "k", "--batch-tasks", "3", input='{"k":1}\n', code=2)
    assert "one at a time. Leave --batch-tasks or --key out" in result.stderr
    assert queue.status().inserted == 0


@pytest.mark.batched  # with one task a batch a queue takes no keys
def test_after_a_bad_line_only_lines_with_keys_may_be_repeated(fsqueue_cli: Run, queue: Queue) -> None:
    result = fsqueue_cli("insert", queue.path, "--key", "k", input='{"k":1}\n{"k":1}\n\nbad\n', code=2)
    assert result.stdout == "1\n"
    last = result.stderr.splitlines()[-1]
    assert "'tail -n +4'); or repeat the command: it inserts no line whose key is taken" in last
    result = fsqueue_cli("insert", queue.path, "--key", "k", input='{"k":1}\n{"u":1}\nbad\n', code=2)
    assert result.stderr.splitlines()[-1].endswith("to repeat the command would insert the lines without a key again")


@pytest.mark.once
@pytest.mark.parametrize(
    ("lines", "may"),
    [
        ('{"k":1}\n{"k":2}\n', True),
        ('{"p":[1]}\n{"k":1}\n{"p":[1],"k":2}\n{"k":3}\n', True),
        ('{"u":1}\n{"p":[1]}\n{"k":1}\n', False),
    ],
    ids=["all have keys", "one without a key is refused", "one without a key is inserted"],
)
def test_when_interrupted_lines_with_keys_may_be_repeated(spawn: Spawn, queue: Queue, lines: str, may: bool) -> None:
    process = spawn("insert", queue.path, "--key", "k", "--priority", "p", "--skip-bad", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(lines)
    process.stdin.flush()
    until(lambda: queue.status().waiting == 2, "two tasks")
    until(lambda: waits(process.pid), "it to wait for more")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, "2\n")
    assert ("or repeat the command: it inserts no line whose key is taken" in err) == may
    assert ("would insert the lines without a key again" in err) != may


@pytest.mark.batched
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("options", [(), ("--csv",)])
@pytest.mark.parametrize("at", [1, 4])
def test_a_signal_is_heard_between_two_tasks_with_keys(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals, options: tuple[str, ...], at: int,
) -> None:  # fmt: skip
    """A block of the input holds thousands of lines, and each key takes milliseconds."""
    file = tmp_path / "input"
    file.write_text("k\n1\n2\n3\n4\n" if options else '{"k":1}\n{"k":2}\n{"k":3}\n{"k":4}\n')
    signal_in_insert(monkeypatch, number, at)
    command = ("insert", queue.path, "--key", "k", *options, file)
    if at == 4:
        result = fsqueue_cli(*command)
        assert (result.stdout, result.stderr) == ("4\n", ""), "nothing is left to insert"
    else:
        result = fsqueue_cli(*command, code=128 + number)
        line = 2 if options else 1
        assert result.stdout == "1\n"
        assert f"interrupted: 1 task was inserted, up to {file}, line {line}\n" in result.stderr
        assert "insert the rest, which" in result.stderr
    assert queue.status().inserted == at


@pytest.mark.batched
@pytest.mark.parametrize(
    ("lines", "code"), [('{"k":1}\n\n \n', 0), ('{"k":1}', 0), ('{"k":1}\n{"k":2}', 143), ('{"k":1}\n\n1', 143)]
)
def test_after_a_signal_a_rest_is_named_only_if_there_is_one(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, code: int
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).write_text(lines)
    (tmp_path / "more").write_text('{"k":9}\n')
    signal_in_insert(monkeypatch, signal.SIGTERM, 1)
    fsqueue_cli("insert", queue.path, "--key", "k", tmp_path / "first", code=code)
    assert queue.status().inserted == 1
    queue.purge()
    signal_in_insert(monkeypatch, signal.SIGTERM, 1)
    result = fsqueue_cli("insert", queue.path, "--key", "k", tmp_path / "second", tmp_path / "more", code=143)
    assert f"and after it {tmp_path / 'more'}" in result.stderr
    assert queue.status().waiting == 1


def signal_in_insert(monkeypatch: pytest.MonkeyPatch, number: int, at: int) -> None:
    """Have this process get a signal while the `at`-th task with a key is inserted."""
    count, real = 0, KeyedInserter.insert_all

    def insert_all(self: KeyedInserter, tasks: Sequence[EncodedTask], *arguments: Any) -> None:
        nonlocal count
        if count < at <= count + len(tasks):
            os.kill(os.getpid(), number)
        count += len(tasks)
        real(self, tasks, *arguments)

    monkeypatch.setattr(KeyedInserter, "insert_all", insert_all)


@pytest.mark.batched  # with one task a batch a queue takes no keys
def test_a_line_whose_key_is_locked_by_a_stopped_process_may_be_repeated(
    fsqueue_cli: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys.locked, "__defaults__", (0.01,))
    queue.insert(0, key="held")
    with keys.locked(queue.store, queue.store.layout, "held"):
        alone = fsqueue_cli("insert", queue.path, "--key", "k", input='{"k":"held"}\n', code=1)
        mixed = fsqueue_cli("insert", queue.path, "--key", "k", input='{"u":1}\n\n{"k":"held"}\n', code=1)
    assert (alone.stdout, mixed.stdout) == ("", "1\n")
    assert "may be in the queue" not in alone.stderr + mixed.stderr
    assert alone.stderr.endswith("The call may be repeated: it inserts no task whose key is taken.\n")
    assert "through 'tail -n +3'); to repeat the command would insert the lines without a key again" in mixed.stderr
    assert "repeat the call" not in mixed.stderr
    assert "1 task was inserted from the beginning of the input, then this happened:" in mixed.stderr


def cannot_be_synced(self: SingleInserter, *_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def cannot_be_looked_for(self: SingleInserter, *_: object) -> None:
    raise insert_errors.unknown_error(self.store, StorageError("The lock was lost."))


@pytest.mark.batched  # the tasks are in the log of an open batch
@pytest.mark.parametrize(
    ("step", "instead"), [("_make_durable", cannot_be_synced), ("_append_surely", cannot_be_looked_for)]
)
def test_a_line_with_a_key_that_may_be_in_the_queue_may_be_repeated(
    fsqueue_cli: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch, step: str, instead: Callable[..., None]
) -> None:
    queue.insert(0, key="taken")
    with monkeypatch.context() as patch:
        patch.setattr(SingleInserter, step, instead)
        alone = fsqueue_cli("insert", queue.path, "--key", "k", input='{"k":"a"}\n', code=1).stderr
        later = fsqueue_cli("insert", queue.path, "--key", "k", input='{"k":"taken"}\n{"k":"b"}\n', code=1).stderr
    assert alone.endswith("The call may be repeated: it inserts no task whose key is taken.\n")
    assert "or repeat the command: it inserts no line whose key is taken" in later
    assert "Look for it" not in alone + later
    for key in ("a", "b"):
        fsqueue_cli("insert", queue.path, "--key", "k", input=f'{{"k":"{key}"}}\n')
    assert sorted(str(task.key) for task in queue.tasks()) == ["a", "b", "taken"]


def test_the_places_of_many_tasks_are_known_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insert_source, "PLACES_MAX", 10)
    places = insert_source.Places()
    assert places.find(0) is None
    for task in range(1000):
        places.note(task, 0, task + 1)
    places.note(1000, 0, 1002)  # after a blank line
    places.note(1000, 0, 1003)  # the one before was refused
    places.note(1001, 1, 1)
    assert [places.find(task) for task in (0, 999, 1000, 1001)] == [(0, 1), (0, 1000), (0, 1003), (1, 1)]
    for task in range(1002, 1102):
        places.note(task, 1, 2 * task)
        assert places.find(task) == (1, 2 * task)
        assert len(places._steps) <= 10
    assert places.find(999) is None


class Shown:
    """Stands for the bar: what it was to show, (bytes done, all bytes, tasks)."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int | None, int]] = []

    def show(self, done: int, steps: int | None, beside: str = "") -> None:
        self.steps.append((done, steps, int(beside.split()[0].replace(",", ""))))

    def close(self) -> None:
        """Nothing is drawn."""


@pytest.mark.parametrize(
    "options",
    [[], ["--lines"], ["--csv"], ["--delimiter", ";"], pytest.param(["--key", "n"], marks=pytest.mark.batched), ["-0"]],
)
@pytest.mark.parametrize("rows", [3_000, 30_000])
def test_the_bar_stands_where_the_tasks_are(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], rows: int
) -> None:
    """All of a small file is read before its first task is inserted. Of a table that holds for many rows."""
    if options == ["--key", "n"] and rows > 3_000:
        return  # a key takes a file
    shown = Shown()
    monkeypatch.setattr("fsqueue_cli.insert_source.Bar", lambda *how, **more: shown)
    files = [tmp_path / "a", tmp_path / "b"]
    for number, file in enumerate(files):
        lines = [f'{{"n":"{number}-{n:05}"}}' for n in range(rows // 2)]
        if options[:1] in (["--csv"], ["--delimiter"]):
            lines = ["n", *(f"{n:09}" for n in range(rows // 2))]
        file.write_text("".join(line + ("\0" if options == ["-0"] else "\n") for line in lines))
    fsqueue_cli("insert", queue.path, *options, *files)
    assert queue.status().inserted == rows
    assert [tasks for _, _, tasks in shown.steps] == list(range(256, rows + 1, 256))
    for done, size, tasks in shown.steps:
        assert size == sum(file.stat().st_size for file in files)
        assert size is not None
        assert abs(done / size - tasks / rows) < 0.01, f"{done} of {size} bytes, {tasks} of {rows} tasks"


def test_the_bar_never_goes_back() -> None:
    """Whatever the lines are: some end in no chunk, or a file in the middle of one."""
    advance = Advance()
    places = []
    for number, chunks in enumerate([[(10, 2), (10, 0), (10, 3), (3, 0)], [(5, 0)], [], [(10, 1), (10, 9)]]):
        advance.begin(number)
        for size, lines in chunks:
            advance.read(size, lines)
        places += [(number, line) for line in range(1, sum(lines for _, lines in chunks) + 2)]
    done = [advance.until(*place) for place in places]
    assert done == sorted(done)
    assert done[0] == 5
    assert done[-1] == 58


@pytest.mark.parametrize("options", [[], ["--lines"], ["--csv"], ["--commit", "a"], ["--csv", "--commit", "a"]])
def test_standard_input_is_read_once_and_refused_twice_before_anything(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, options: list[str]
) -> None:
    """The first reading closes it: the second one was an internal error, after the insert."""
    file = tmp_path / "a"
    file.write_text("1\n2\n")
    result = fsqueue_cli("insert", queue.path, *options, "-", file, "-", input="1\n2\n", code=2)
    assert result.stderr.endswith(
        "Standard input can be read once only, and '-' is given twice. Nothing was inserted.\n"
    )
    assert result.stdout == ""
    assert queue.status().inserted == 0
    assert queue.commit("a").committed() is None
    assert fsqueue_cli("insert", queue.path, "--lines", file, "-", file, input="3\n").stdout == "5\n"


# -- a file that is written to while it is read --------------------------------------------------------------


def written_while_read(monkeypatch: pytest.MonkeyPatch, file: Path, looks: int) -> None:
    """Let another program write to the file after its first chunk was read, and `looks` at it before."""
    read, reads = Input._read, iter(range(looks + 1))

    def writing(self: Input, source: IO[bytes]) -> Any:
        chunk = read(self, source)
        if next(reads, None) == looks:
            file.write_bytes(file.read_bytes() + b"7,8\n")
        return chunk

    monkeypatch.setattr(Input, "_read", writing)


@pytest.mark.parametrize("options", [["--csv"], ["--lines"], ["--csv", "--commit", "a"], ["--lines", "--commit", "a"]])
def test_a_file_that_is_written_to_while_it_is_read_is_no_success(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    file = tmp_path / "table"
    file.write_text("n,x\n1,2\n3,4\n")
    written_while_read(monkeypatch, file, looks="--csv" in options)  # at its header
    result = fsqueue_cli("insert", queue.path, *options, file, code=2)
    assert f"{file} was written to while it was read" in result.stderr
    is_in = options == ["--lines"]  # the rows of a table wait until it is known
    assert ("may be of two versions" in result.stderr) == is_in
    assert bool(queue.status().inserted) == is_in
    done = fsqueue_cli("insert", queue.path, *options, file)
    assert done.stdout == ("3\n" if "--csv" in options else "4\n")


@pytest.mark.batched
def test_with_keys_the_insert_of_such_a_file_is_repeated(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsqueue_cli.insert_tables.SAMPLE_ROWS", 2)
    file = tmp_path / "table"
    file.write_text("n,x\n1,2\n3,4\n")
    written_while_read(monkeypatch, file, looks=1)
    result = fsqueue_cli("insert", queue.path, "--csv", "--key", "n", file, code=2)
    assert "repeat the command: it inserts no line whose key is taken" in result.stderr
    assert fsqueue_cli("insert", queue.path, "--csv", "--key", "n", file).stdout == "0\n"
    assert queue.status().inserted == 3
