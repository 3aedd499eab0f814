"""Whatever is in the way: one line on standard error, an exit code, no traceback, nothing made worse."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from fsqueue import Queue
from fsqueue.format.layout import FORMAT
from tests.cli.conftest import Run
from tests.support import base_of

COMMANDS = {
    "insert": [],
    "lease": [],
    "complete": ["0" * 32 + ".0@" + "0" * 16],
    "run": ["--", "true"],
    "status": [],
    "status --watch": [],
    "wait": ["--timeout", "1"],
    "ls": [],
    "show": ["0" * 32 + ".0"],
    "dead list": [],
    "dead retry": [],
    "dead purge": ["--yes"],
    "release-all": ["--yes"],
    "cancel": ["0" * 32 + ".0", "--yes"],
    "set": ["lease_s=5"],
    "pause": [],
    "resume": [],
    "purge": ["--yes"],
    "delete": ["--yes"],
    "gc": [],
    "workers": ["--release-dead"],
    "slurm": ["--array=0-9", "--", "true"],
}


def fails_on_every_command(run: Run, path: Path, code: int, input: str = "1\n") -> None:
    before = contents(path)
    for command, rest in COMMANDS.items():
        name, *options = command.split() if command != "status --watch" else ["status", "--watch"]
        options = [option for option in options if not option.startswith("-")]
        flags = ["--watch"] if command == "status --watch" else []
        result = run(name, *options, path, *flags, *rest, input=input, code=code)
        assert result.stdout == ""
        assert len(result.stderr.splitlines()) == 1, result.stderr
        assert result.stderr.startswith("fsqueue: ")
    assert contents(path) == before


def contents(path: Path) -> dict[str, bytes]:
    if path.is_file():
        return {"": path.read_bytes()}
    return {str(file): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_a_path_that_is_a_file(fsqueue_cli: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    fails_on_every_command(fsqueue_cli, tmp_path / "file", 5)
    fsqueue_cli("create", tmp_path / "file", code=5)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_directory_that_is_no_queue(fsqueue_cli: Run, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    fails_on_every_command(fsqueue_cli, tmp_path, 5)
    fsqueue_cli("create", tmp_path, code=5)
    assert os.listdir(tmp_path) == ["thesis.tex"]


@pytest.mark.once
@pytest.mark.parametrize(
    "settings", [b"", b"garbage\n", b"{}\n", b"[]\n", b"\x00" * 100, b'{"op":"queue"}\n', b'"text"\n']
)
def test_a_queue_whose_settings_are_damaged(fsqueue_cli: Run, queue: Queue, settings: bytes) -> None:
    (queue.path / "queue.jsonl").write_bytes(settings)
    fails_on_every_command(fsqueue_cli, queue.path, 5)


@pytest.mark.once
def test_a_queue_of_a_newer_format(fsqueue_cli: Run, queue: Queue) -> None:
    file = queue.path / "queue.jsonl"
    first, _, rest = file.read_bytes().partition(b"\n")
    record = orjson.loads(first)
    assert isinstance(record["format"], int)
    file.write_bytes(orjson.dumps(record | {"format": FORMAT + 1}) + b"\n" + rest)
    fails_on_every_command(fsqueue_cli, queue.path, 1)


def test_odd_paths(fsqueue_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("", "fq://", "a\0b", "x" * 300, "/dev/null/q", "fq:///dev/null/q"):
        for command in ("create", "status"):
            result = fsqueue_cli(command, path, code=None)
            assert result.exit_code in (1, 2, 5), (command, path, result.output)
    assert os.listdir(tmp_path) == []
    for path in ("with space", "ümläut", "new\nline", os.fsdecode(b"\xff\xfe"), "deep/er/q", "q.jsonl"):
        fsqueue_cli("create", path)
        fsqueue_cli("insert", path, input="1\n")
        assert "waiting" in fsqueue_cli("status", path).stdout


@pytest.mark.once
def test_nobody_may_write_there(fsqueue_cli: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a mount that is read-only says it, whoever runs the test."""
    import errno

    from fsqueue.filesystem import beneath

    def refuse(*arguments: object, **options: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(queue.path))

    queue.insert(1)
    real = os.open

    def open_to_read(path: str, flags: int, *arguments: object, **options: object) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            refuse()
        return real(path, flags, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(beneath, "openat2_works", lambda: False)
    monkeypatch.setattr(os, "open", open_to_read)
    for name in ("rename", "unlink", "link", "mkdir"):
        monkeypatch.setattr(os, name, refuse)
    assert "1" in fsqueue_cli("status", queue.path).stdout
    assert fsqueue_cli("ls", queue.path).stdout
    for command in (["insert"], ["lease"], ["purge", "--yes"], ["delete", "--yes"]):
        result = fsqueue_cli(command[0], queue.path, *command[1:], input="1\n", code=1)
        assert "read-only" in result.stderr.lower()
    fsqueue_cli("create", queue.path.parent / "other", code=1)


def scatter(queue: Queue) -> None:
    """What editors, NFS clients, and people leave in a tree."""
    for directory in [path for path in queue.path.rglob("*") if path.is_dir()] + [queue.path]:
        for name in (".nfs0001", "notes.txt~", "#draft#", ".swp", "core.123", "0000000000000-x-1.jsonl", "a b", "ü"):
            (directory / name).write_bytes(b"\x00garbage\n")
        (directory / "subdirectory").mkdir()


def garbage_in_task_files(queue: Queue) -> None:
    shard = next(path for path in (base_of(queue) / "queue").iterdir() if path.is_dir())
    for number, content in enumerate([b"", b"{", b"\xff\xfe\n", b"null\n", b"[" * 10_000 + b"\n", b'{"payload": 1}']):
        (shard / f"0000000000000-{number:032x}-2.jsonl").write_bytes(content)


def garbage_in_logs(queue: Queue) -> None:
    shard = base_of(queue) / "movements" / "00"
    shard.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate([b"", b"{", b"~\n", b"\x00" * 5000, b'{"op":"lease"}\n', b"[]\n1\n" * 100]):
        (shard / f"{number:032x}.jsonl").write_bytes(content)


@pytest.mark.parametrize("damage", [scatter, garbage_in_task_files, garbage_in_logs])
def test_stray_and_damaged_files_poison_nothing(
    fsqueue_cli: Run, queue: Queue, damage: Callable[[Queue], None]
) -> None:
    """Every good task can still be worked off; nothing crashes on the way."""
    queue.insert_many(range(20))
    damage(queue)
    for command, *options in (["status"], ["ls"], ["status", "--fast"], ["gc"]):
        fsqueue_cli(command, queue.path, *options)
    fsqueue_cli("insert", queue.path, input="20\n21\n")
    seen = set()
    while (result := fsqueue_cli("lease", queue.path, "-n", 5, code=None)).exit_code == 0:
        tasks = [orjson.loads(line) for line in result.stdout.splitlines()]
        seen |= {task["payload"] for task in tasks if isinstance(task["payload"], int)}
        fsqueue_cli("complete", queue.path, "-", input=result.stdout)
    assert result.exit_code == 3, result.output
    assert seen >= set(range(22))
    fsqueue_cli("gc", queue.path)
    fsqueue_cli("purge", queue.path, "--yes")
    fsqueue_cli("delete", queue.path, "--yes", "--foreground")
