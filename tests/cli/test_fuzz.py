"""Any arguments, and anything that others wrote: one line of error at most, and nothing but the queue is touched."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click
import orjson
import pytest
from click.testing import CliRunner
from fsqueue_cli.main import COMMANDS, cli
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsqueue import Queue
from fsqueue.format import names
from tests.cli.conftest import Run
from tests.levels import how_many
from tests.support import base_of, files_below, log_files

pytestmark = [pytest.mark.once, pytest.mark.slow]

CODES = {0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 13, 124}
ENDLESS = {"--forever", "--watch", "--join", "--help"}
"""They wait for what does not come, or do nothing."""
LAST = {
    "wait": ["--timeout", "0.01"],
    "bench": ["--tasks", "1", "--duration", "0.01"],
    "simulate": ["--lag", "1"],
    "serve": ["--listen", "unix:missing/socket"],
}
"""What keeps the others from taking long: the last of an option counts."""
PATHS = [
    "q",
    "q",
    "q",
    "q",
    "fq://q",
    "missing",
    "file",
    "",
    "fq://",
    "x" * 300,
    "ü",
    "-",
    "q/1",
    "q/queue.jsonl",
]
WORDS = [
    "", "-", "--", "-1", "0", "0.001", "1", "1e400", "nan", "inf", "٣", "1_0", "{}", "{x}", "\n", "\x1b[2J",
    "../../x", "/etc/passwd", "..", "0" * 32 + ".0", "0" * 32 + ".0@" + "0" * 16, "9" * 5000, '{"a":1}', "$(touch x)",
    "`touch x`", "\udcff", "%s%n", "*", "~", "true",
]  # fmt: skip
words = st.sampled_from(WORDS) | st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12)
"""What the system hands to a program: no NUL."""
inputs = st.binary(max_size=60) | st.lists(words.map(lambda word: word.encode("utf-8", "replace")), max_size=4).map(
    b"\n".join
)


def commands() -> Iterator[tuple[list[str], click.Command]]:
    for name in COMMANDS:
        if name == "spark":
            continue  # tests/spark/test_commands.py: here there is no Java
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from (([name, inner], command.commands[inner]) for inner in command.commands)
        else:
            yield [name], command


EACH = [pytest.param(*found, id=" ".join(found[0])) for found in commands()]


@st.composite
def arguments(draw: st.DrawFn, command: click.Command) -> list[str]:
    """Some of a command's options, with values that may make no sense, and more or fewer operands than it takes."""
    options = [
        option for option in command.params if isinstance(option, click.Option) and option.opts[-1] not in ENDLESS
    ]
    said = []
    for option in draw(st.lists(st.sampled_from(options), max_size=3)) if options else []:
        said.append(draw(st.sampled_from([*option.opts, *option.secondary_opts])))
        if not option.is_flag:
            said.append(draw(words))
    operands = [draw(st.sampled_from(PATHS)), *draw(st.lists(words, max_size=3))]
    return said + (operands if draw(st.integers(0, 9)) else [])


@pytest.mark.parametrize(("name", "command"), EACH)
def test_any_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: list[str], command: click.Command
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    (tmp_path / "precious").write_text("precious")
    (place / "file").write_text("mine")

    made = {"*"} if name == ["run"] else set[str]()  # --keep-output makes its directory, whatever its name

    @settings(max_examples=how_many(8, 40), deadline=None, suppress_health_check=list(HealthCheck))
    @given(arguments(command), inputs)
    def check(given: list[str], said: bytes) -> None:
        queue = Queue.create("q", exist_ok=True, shards=2, durability="none")
        queue.insert({"x": 1})
        queue.lease(lease_s=0.01)
        queue.close()
        command_line = [*name, *given, *LAST.get(name[0], [])]
        made.update(file for option, file in pairwise(given) if option == "--prometheus")
        if name == ["run"]:
            command_line = [word for word in command_line if word != "--"] + ["--", "true", "{}"]
        result = CliRunner().invoke(cli, command_line, input=said, prog_name="fsqueue")
        assert result.exception is None or isinstance(result.exception, SystemExit), command_line
        assert result.exit_code in CODES, (command_line, result.output)
        assert "Traceback" not in result.output
        assert "internal error" not in result.output, (command_line, result.output)

    check()
    assert os.listdir(tmp_path) == ["place", "precious"] or os.listdir(tmp_path) == ["precious", "place"]
    assert (tmp_path / "precious").read_text() == "precious"
    assert (place / "file").read_text() == "mine"
    left = {name for name in os.listdir(place) if names.parse_deleted(name) is None}  # those are on their way out
    assert left <= {"q", "file", "missing", "ü", "-"} | made
    assert not [path for path in files_below(place) if path.endswith(("/x", "/passwd"))]


EVIL = "\x1b[2J\x1b]0;title\x07\r\x9b31m"


def test_what_others_wrote_does_not_drive_the_terminal(fsqueue_cli: Run, queue: Queue) -> None:
    """Payloads, errors, reasons, names of workers and of files."""
    queue.insert_many([EVIL, {EVIL: EVIL}, "fails", "dies", "runs out"], batch_tasks=1)
    leased = {str(task.payload): task for task in queue.lease(99)}
    leased["fails"].fail(EVIL, delay_s=0)
    leased["dies"].bury(EVIL)
    leased[EVIL].complete({"result": EVIL})
    task = leased["runs out"]
    queue.close()
    [log] = [path for path in log_files(queue) if path.stem == task.batch]
    worker = {"host": EVIL, "name": EVIL, "pid": EVIL, "slurm_job": EVIL}
    at = queue.store.clock.now_ms()
    records = [
        {"op": "release", "at": at, "lease": task.lease, "tasks": [[0, 1]], "available_at": 0},
        {"op": "lease", "at": at, "lease": EVIL, "tasks": [[0, 1]], "until": at + 10**6, "worker": worker},
    ]
    with log.open("ab") as file:
        file.writelines(orjson.dumps(record) + b"\n" for record in records)
    (base_of(queue) / EVIL).touch()
    ids = [task.id for task in leased.values()]
    shown = []
    for command in (
        ["status"],
        ["workers"],
        ["ls"],
        ["ls", "--state", "completed"],
        ["dead", "list"],
        ["fsck"],
        ["doctor"],
    ):
        shown.append(
            fsqueue_cli(
                *command[:2] if command[0] == "dead" else command[:1],
                queue.path,
                *command[1 + (command[0] == "dead") :],
                code=None,
            )
        )
    shown += [fsqueue_cli("show", queue.path, one) for one in ids]
    shown += [fsqueue_cli("complete", queue.path, task.token, code=4), fsqueue_cli("gc", queue.path)]
    for result in shown:
        assert not {"\x1b", "\x07", "\r", "\x9b"} & set(result.output), result.output
    assert "title" in "".join(result.output for result in shown)
