"""create, purge, delete, gc."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from fsqueue_cli import queues
from fsqueue_cli.queues import _cleaned

from fsqueue import GcReport, Queue
from fsqueue.format import names
from fsqueue.upkeep.trash import Reaping
from tests.cli.conftest import Run, waits
from tests.waiting import PATIENCE_S, until


def test_create_with_settings(fsqueue_cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "q"
    fsqueue_cli(
        "create", path, "--shards", 4, "--max-batch-tasks", 10, "--max-task-bytes", 5000, "--max-attempts", "none",
        "--lease", 30.5, "--backoff", 0.5, 10, "--durability", "strict", "--no-history",
    )  # fmt: skip
    settings = Queue(path).settings
    assert (settings.shards, settings.batch_tasks_max, settings.task_bytes_max) == (4, 10, 5000)
    assert (settings.max_attempts, settings.lease_s, tuple(settings.backoff_s)) == (None, 30.5, (0.5, 10))
    assert (settings.durability, settings.keep_history) == ("strict", False)


def test_create_says_what_it_made(fsqueue_cli: Run, tmp_path: Path) -> None:
    said = fsqueue_cli("create", tmp_path / "q", "--lease", "1h", "--max-attempts", "1").stdout
    assert said == f"made the queue {tmp_path / 'q'}: a lease lasts 1 h unless renewed, a task has 1 attempt\n"
    assert fsqueue_cli("create", tmp_path / "q", "--exist-ok").stdout == ""
    assert "any number of attempts" in fsqueue_cli("create", tmp_path / "r", "--max-attempts", "none").stdout


def test_create_twice(fsqueue_cli: Run, tmp_path: Path) -> None:
    fsqueue_cli("create", tmp_path / "q")
    said = fsqueue_cli("create", tmp_path / "q", code=1).stderr
    assert f"There is a queue at {tmp_path / 'q'} already. Nothing was changed. Use it as it is (--exist-ok)" in said
    assert "exist_ok" not in said, "the words of Python"
    fsqueue_cli("create", tmp_path / "q", "--exist-ok")


@pytest.mark.parametrize(
    "options",
    [["--shards", "0"], ["--shards", "x"], ["--max-batch-tasks", "0"], ["--max-batch-tasks", "-5"],
     ["--max-task-bytes", "0"], ["--max-attempts", "0"], ["--max-attempts", "1.5"],
     ["--lease", "0"], ["--lease", "-1"], ["--lease", "inf"],
     ["--backoff", "10", "1"], ["--durability", "some"], ["--backoff", "1"], ["--shards", "9" * 5000]],
)  # fmt: skip
def test_bad_settings_are_usage_errors_and_make_nothing(fsqueue_cli: Run, tmp_path: Path, options: list[str]) -> None:
    fsqueue_cli("create", tmp_path / "q", *options, code=2)
    assert not (tmp_path / "q").exists()


def test_purge(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many(range(10))
    queue.lease(2)
    fsqueue_cli("purge", queue.path, "--yes")
    assert queue.status().inserted == 0
    wait_until_empty(queue.path / ".trash")


def test_delete_returns_and_the_files_go_in_the_background(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many(range(1000), batch_tasks=1)
    fsqueue_cli("delete", queue.path, "--yes")
    assert not queue.path.exists()
    wait_until_empty(queue.path.parent)


def test_delete_and_wait(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many(range(100), batch_tasks=1)
    fsqueue_cli("delete", queue.path, "--foreground", "--yes")
    assert not queue.path.exists()
    assert list(queue.path.parent.iterdir()) == []


@pytest.mark.once
def test_the_background_process_outlives_the_command(queue: Queue) -> None:
    """Also when the reaping takes longer than the command, as on a slow mount."""
    queue.insert_many(range(3000), batch_tasks=1)
    done = subprocess.run(
        [sys.executable, "-m", "fsqueue_cli", "delete", str(queue.path), "--yes"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("", "")
    wait_until_empty(queue.path.parent)


def wait_until_empty(trash: Path) -> None:
    until(lambda: not trash.exists() or not list(trash.iterdir()), "the trash to be emptied")


def test_gc(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many(range(10))
    report = json.loads(fsqueue_cli("gc", queue.path, "--touch", "--history-days", "30", "--json").stdout)
    assert report["touched"] >= 1
    assert re.fullmatch(r"touched +\d+ files\n", fsqueue_cli("gc", queue.path, "--touch").stdout)
    assert fsqueue_cli("gc", queue.path).stdout == "nothing was to be cleaned up\n"
    assert json.loads(fsqueue_cli("gc", "--trash", queue.path.parent, "--json").stdout) == {"reaped": 0, "left": {}}


def test_gc_has_words_for_each_count_and_needs_few_lines() -> None:
    counts = {field.name: number for number, field in enumerate(dataclasses.fields(GcReport), start=1)}
    lines = [*_cleaned({**counts, "reaped": 99})]
    assert len(lines) <= 10
    for number in (*counts.values(), 99):
        assert re.search(rf"\b{number} [a-z]", " ".join(lines))
    assert [*_cleaned(dict.fromkeys(counts, 0))] == []
    assert [*_cleaned({"finished": 1, "reaped": 2})] == [
        "finished     1 batch",
        "removed      2 files and directories of what was deleted",
    ]


def test_gc_says_what_it_left_alone_and_why(fsqueue_cli: Run, queue: Queue) -> None:
    parent = queue.path.parent
    left, mine = parent / names.deleted(queue.store.queue_state.id, "0" * 16), parent / ".trash" / "mine"
    left.mkdir()
    mine.mkdir(parents=True)
    (left / "thesis.tex").touch()
    said = fsqueue_cli("gc", "--trash", parent).stdout
    assert f"{left} was left alone: no queue.jsonl in it proves that it was a queue." in said
    assert "removed" not in said
    assert "mine" not in said
    told = json.loads(fsqueue_cli("gc", "--trash", parent, "--json").stdout)
    assert told == {"reaped": 0, "left": {str(left): "no queue.jsonl in it proves that it was a queue"}}
    assert (left / "thesis.tex").exists()
    assert mine.exists()


def test_a_queue_is_not_deleted_through_a_link(fsqueue_cli: Run, queue: Queue) -> None:
    link = queue.path.parent / "link"
    link.symlink_to(queue.path)
    queue.insert(1)
    said = fsqueue_cli("delete", link, "--yes", code=2).stderr
    assert "symbolic link" in said
    assert "readlink -f" in said
    assert queue.status().waiting == 1
    fsqueue_cli("purge", link, "--yes")
    assert queue.status().inserted == 0


@pytest.mark.parametrize("url", ["file:///x", "s3://x/y", "hdfs://name/x", "http://localhost:8750/x"])
def test_other_urls_make_no_directory(
    fsqueue_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    of_queues = [] if url.startswith("http") else [["status", url], ["lease", url]]  # these take a gateway's address
    for command in (["create", url], ["gc", "--trash", url], *of_queues):
        assert "mounted" in fsqueue_cli(*command, code=2).stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.once
def test_what_is_reaped_before_and_after_another_process_was_at_it_is_counted(
    fsqueue_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reapings = [Reaping(2, unfinished=["x"]), Reaping(1, unfinished=["x"]), Reaping(4)]
    monkeypatch.setattr(queues, "reap", lambda directory: reapings.pop(0))
    monkeypatch.setattr("fsqueue.upkeep.trash.UNFINISHED_PAUSE_S", 0.0)
    assert json.loads(fsqueue_cli("gc", "--trash", tmp_path, "--json").stdout) == {"reaped": 7, "left": {}}


@pytest.mark.once
def test_zero_is_a_limit_and_not_a_missing_one(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc, given = Queue.gc, list[dict[str, object]]()

    def noted(self: Queue, **options: Any) -> GcReport:
        given.append(options)
        return gc(self, **options)

    monkeypatch.setattr(Queue, "gc", noted)
    fsqueue_cli("gc", queue.path, "--history-days", "0", "--payload-days", "0", "--payload-bytes", "0")
    fsqueue_cli("gc", queue.path, "--payload-days", "7", "--payload-bytes", "5")
    fsqueue_cli("gc", queue.path)
    assert given == [
        {"touch": False, "history_days": 0, "payload_days": 0, "payload_bytes": 0},
        {"touch": False, "payload_days": 7, "payload_bytes": 5},
        {"touch": False},
    ]
    for word, kept in (("0", 0), ("7", 7), ("all", None)):
        fsqueue_cli("create", tmp_path / word, "--keep-payloads", word)
        assert Queue(tmp_path / word).settings.keep_payloads == kept


def test_gc_needs_one_thing_to_clean(fsqueue_cli: Run, queue: Queue, tmp_path: Path) -> None:
    fsqueue_cli("gc", code=2)
    fsqueue_cli("gc", queue.path, "--trash", tmp_path, code=2)
    for option in (["--touch"], ["--history-days", "0"], ["--payload-days", "0"], ["--payload-bytes", "0"]):
        assert "need a queue" in fsqueue_cli("gc", "--trash", tmp_path, *option, code=2).stderr


@pytest.mark.one_in(3)
@pytest.mark.once
@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, 0), ("n\n", 1, 3), ("\n", 1, 3), ("\x04", 1, 3),
                                                    ("what?\ny\n", 0, 0), ("\x03", 130, 3)])  # fmt: skip
def test_on_a_terminal_it_asks(queue: Queue, answer: str, code: int, left: int) -> None:
    queue.insert_many(range(3))
    main, side = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "fsqueue_cli", "purge", str(queue.path)], stdin=side, stdout=side, stderr=side,
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(side)
    written = b""
    while b"]: " not in written:
        written += os.read(main, 4096)
    assert b"Drop 3 unfinished tasks, 0 of them leased, and 0 dead letters" in written
    until(lambda: waits(process.pid), "it to wait for the answer")
    os.write(main, answer.encode())
    assert process.wait(timeout=PATIENCE_S) == code
    os.close(main)
    assert queue.status().waiting == left


def test_a_status_shows_the_limit_and_lease_says_why_nothing_is_leased(fsqueue_cli: Run, queue: Queue) -> None:
    refs = [queue.insert(number) for number in range(3)]
    fsqueue_cli("set", queue.path, "max_leased=1")
    fsqueue_cli("lease", queue.path)
    assert f"leased    {1:>16} of at most 1\n" in fsqueue_cli("status", queue.path).stdout
    for more in ((), ("--id", next(ref.id for ref in refs if ref.state() == "waiting"))):
        result = fsqueue_cli("lease", queue.path, *more, code=3)
        assert "allows no more leased tasks at a time (max_leased=1)" in result.stderr
