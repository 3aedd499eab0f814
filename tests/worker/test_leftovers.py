"""Commands that leave processes behind, which hold their output open: a worker does not run out of descriptors."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fsqueue import Queue, Worker
from fsqueue.worker import output
from fsqueue.worker.events import Mailbox
from fsqueue.worker.output import OutputWriter, Stream
from tests.waiting import PATIENCE_S
from tests.worker.support import drained

pytestmark = pytest.mark.once

LEAVES = 'echo "first $FSQUEUE_ATTEMPT"; (echo behind; exec sleep 100) & echo $! >>"$0"'
"""A command that leaves a process behind, and its number in the file `$0`."""


@pytest.fixture
def left(tmp_path: Path) -> Iterator[Path]:
    """The file with the numbers of the processes that were left behind. At the end they are killed."""
    path = tmp_path / "left"
    yield path
    for number in path.read_text().split() if path.exists() else ():
        with suppress(ProcessLookupError):
            os.kill(int(number), signal.SIGKILL)


def pipes() -> set[tuple[str, str]]:
    """The descriptors of pipes: the outputs of commands are pipes. Those of earlier tests may be closed meanwhile."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if (pipe := os.readlink(f"/proc/self/fd/{fd}")).startswith("pipe:"):
                found.add((fd, pipe))
    return found


def ends_open(made: set[int]) -> int:
    """How many ends of these pipes (by inode) are open."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found += os.stat(f"/proc/self/fd/{fd}").st_ino in made
    return found


def test_the_oldest_outputs_are_closed_with_a_note(
    queue: Queue, left: Path, tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "OPEN_MAX", 8)
    queue.insert_many(range(30))
    before, most = pipes(), 0  # not all descriptors: the queue's threads open and close some meanwhile

    def tell(event: object) -> None:
        nonlocal most
        most = max(most, len(pipes() - before))
        told.append(getattr(event, "text", ""))

    kept = tmp_path / "kept"
    worker = Worker(queue, command=["sh", "-c", LEAVES, str(left)], keep_output=kept, prefetch=1, tell=tell)
    report = worker.run()
    assert (report.completed, report.failed, report.ended) == (30, 0, "drained")
    assert most <= 20, "8 of outputs, and the worker's own; two for each of 30 tasks would be 60 and those"
    assert len([text for text in told if "left many processes behind" in text]) == 1
    contents = [path.read_bytes() for path in kept.iterdir()]
    assert len(contents) == 30
    assert all(b"first 1" in content for content in contents)
    cut = [content for content in contents if output.NOTE in content]
    assert len(cut) == 30 - 4, "all but the last four commands, which have two pipes each"
    assert all(content.count(output.NOTE) == 1 and content.endswith(output.NOTE) for content in cut)
    assert report.unkept == len(cut)
    assert pipes() <= before


def test_where_descriptors_run_out_all_the_same_outputs_are_closed_until_a_command_can_begin(
    queue: Queue, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.insert_many(range(20))
    pipe, refused = os.pipe, [0]
    made: set[int] = set()

    def scarce() -> tuple[int, int]:
        if ends_open(made) > 30:  # not all descriptors: what earlier tests have left may be closed meanwhile
            refused[0] += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        ends = pipe()
        made.add(os.fstat(ends[0]).st_ino)
        return ends

    monkeypatch.setattr(os, "pipe", scarce)
    assert Worker(queue, command=["sh", "-c", LEAVES, str(left)]).run() == drained(completed=20)
    assert refused[0] > 3
    assert ends_open(made) == 0, "what a command that could not begin had opened is closed"


def test_a_run_with_few_descriptors_gets_through(queue: Queue, left: Path) -> None:
    """As a user has it, with a limit of the system's."""
    queue.insert_many(range(60))
    run = subprocess.run(
        [sys.executable, "-m", "fsqueue_cli", "run", str(queue.path), "--", "sh", "-c", LEAVES, str(left)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (72, 72)),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "left many processes behind" in run.stderr
    assert queue.status().completed == 60


def test_who_prints_without_end_does_not_hold_the_loop_up(monkeypatch: pytest.MonkeyPatch) -> None:
    output_writer = OutputWriter(lambda name, error: None, lambda text: None)
    stream = Stream(Mailbox(), output_writer, 1, "ungrouped", False)
    monkeypatch.setattr(output_writer, "do", lambda *what: None)
    reads = [0]

    def endless(fd: int, size: int) -> bytes:
        reads[0] += 1
        assert reads[0] < 1000
        return b"y\n" * 100

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", endless)
        stream.drain()
    stream.close()
    assert reads[0] > 1
