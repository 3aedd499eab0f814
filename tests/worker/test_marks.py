"""Where the output of one task ends: the reason of a failure has no word of another task."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from fsqueue import Queue, Worker
from fsqueue.filesystem.outputs import PipeEnd
from fsqueue.worker import child_processes, output
from fsqueue.worker.events import Mailbox
from fsqueue.worker.marks import FLAGS, Marker, Marks, flags, mark
from fsqueue.worker.output import OutputWriter, Stream
from tests.levels import each_once
from tests.support import QueueFactory
from tests.worker import tasks
from tests.worker.support import drained

TOKEN = "0123456789abcdef"


@pytest.fixture
def flag() -> Iterator[int]:
    fd = os.memfd_create("stopping")
    os.pwrite(fd, FLAGS, 0)
    yield fd
    os.close(fd)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("size", range(1, 90))
def test_a_mark_is_found_wherever_a_read_ends(flag: int, size: int) -> None:
    printed = [b"import\n", b"one \0 two \0", b"", b"\0\0last"]
    data = b"".join(piece + mark(TOKEN, number) for number, piece in enumerate(printed)) + b"at work\0"
    marks, tail, shown = Marks(TOKEN, flag), b"", b""
    for start in range(0, len(data), size):
        got, tail = marks.take(data[start : start + size], tail, is_cut=True)
        shown += got
    got, tail = marks.take(b"", tail, is_cut=False)
    assert shown + got == b"".join(printed) + b"at work\0"
    assert marks.tail_of(4, tail) == b"at work\0"
    assert marks.tail_of(3, tail) == b"\0\0lastat work\0", "it was ended, and has not been answered"


def test_nothing_is_marked_before_something_was_printed(flag: int, capfd: pytest.CaptureFixture[str]) -> None:
    read, write = os.pipe()
    kept = os.dup(1)
    os.dup2(write, 1)
    try:
        marker, marks = Marker(TOKEN, flags(flag)), Marks(TOKEN, flag)
        marker.ended(0)
        os.write(1, b"one")
        marker.ended(1)
        assert os.read(read, 100) == b"one" + mark(TOKEN, 1), "it is in the pipe, and no byte was before it"
        again = Marker(TOKEN, flags(flag))
        again.ended(2)
        marks.begin_read()
        again.ended(3)
        assert os.read(read, 100) == mark(TOKEN, 3), "it may have been read already"
    finally:
        os.dup2(kept, 1)
        for fd in (kept, read, write):
            os.close(fd)


def test_a_child_hears_of_a_read_before_the_read(flag: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that ends between the two finds its pipe empty. Unmarked, its output would be the next task's."""
    output_writer = OutputWriter(lambda name, error: None, lambda text: None)
    stream = Stream(Mailbox(), output_writer, 1, "line", False, Marks(TOKEN, flag))
    marker = Marker(TOKEN, flags(flag))
    marker._ends = [PipeEnd(stream.write_end)]
    os.write(stream.write_end, b"one")
    read, source = os.read, stream._fd

    def ending_the_task(fd: int, size: int) -> bytes:
        chunk = read(fd, size)
        if fd == source:
            marker.ended(1)
        return chunk

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", ending_the_task)
        stream.read()
    os.write(stream.write_end, b"two")
    stream.read()
    assert stream.tail_of(2) == b"two"
    stream.close()


def test_whether_anything_was_printed_is_asked_of_the_pipe_before_the_parent(
    flag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two questions the parent may say that it reads, and read all. Asked the other way, both say no."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    marker, marks = Marker(TOKEN, flags(flag)), Marks(TOKEN, flag)
    marker._ends = [PipeEnd(write)]
    os.write(write, b"one")
    unread, has_read = PipeEnd.unread, list[bytes]()

    def before_the_parent_reads(answer: Any) -> Any:
        if not has_read:
            marks.begin_read()
            has_read.append(os.read(read, 100))
        return answer

    class Asked:
        def __getitem__(self, at: int) -> int:
            return int(before_the_parent_reads(seen[at]))

    seen = marker._flags
    with monkeypatch.context() as patch:
        patch.setattr(PipeEnd, "unread", lambda end: before_the_parent_reads(unread(end)))
        marker._flags = Asked()
        marker.ended(1)
    assert has_read == [b"one"]
    assert os.read(read, 100) == mark(TOKEN, 1)
    os.close(read)
    os.close(write)


def test_what_is_printed_on_one_of_the_two_has_both_marked(flag: int) -> None:
    """The parent reads them apart: what the next task prints on the other one would count for the one before."""
    for printed in (0, 1):
        pipes = [os.pipe() for _ in range(2)]
        marker = Marker(TOKEN, flags(flag))
        marker._ends = [PipeEnd(write) for _, write in pipes]
        os.write(pipes[printed][1], b"one")
        marker.ended(1)
        for number, (read, write) in enumerate(pipes):
            os.set_blocking(read, False)
            assert os.read(read, 100) == (b"one" if number == printed else b"") + mark(TOKEN, 1)
            os.close(read)
            os.close(write)


def test_a_mark_that_the_longest_read_cuts_is_not_shown(flag: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "CHUNK_BYTES", 100)
    output_writer = OutputWriter(lambda name, error: None, lambda text: None)
    stream, shown = Stream(Mailbox(), output_writer, 1, "line", False, Marks(TOKEN, flag)), list[bytes]()
    monkeypatch.setattr(stream, "_pass_on", shown.append)
    os.write(stream.write_end, b"x" * 91 + mark(TOKEN, 1) + b"two")
    stream.read()
    stream.read()
    assert b"".join(shown) == b"x" * 91 + b"two"
    assert (stream.tail_of(1), stream.tail_of(2)) == (b"x" * 91 + b"two", b"two")
    stream.close()


def test_a_mark_goes_into_nothing_but_the_pipe(tmp_path: Any) -> None:
    read, write = os.pipe()
    own = os.dup(write)
    os.close(own)
    end = PipeEnd(write)  # it has the lowest free number
    with open(tmp_path / "file", "wb") as other:
        os.dup2(other.fileno(), own)
        end.write(b"mark")
    assert (tmp_path / "file").read_bytes() == b""
    os.close(own)
    end.write(b"mark")
    assert end.unread() == 0
    os.close(read)
    os.close(write)


def test_a_full_pipe_that_does_not_block_is_waited_for() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    with suppress(BlockingIOError):
        while True:
            os.write(write, b"x" * 4096)
    end = PipeEnd(write)
    assert end.unread() >= 4096
    thread = threading.Thread(target=end.write, args=(b"mark",))
    thread.start()
    found = b""
    while not found.endswith(b"mark"):
        found += os.read(read, 1 << 16)
    thread.join()
    os.close(read)
    end.write(b"without a reader nothing happens")
    os.close(write)


def late_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read nothing that is printed before the child has died."""
    monkeypatch.setattr(Stream, "read", lambda stream: None)


def late_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read no answer before the child has died."""

    def after_the_end(take: Callable[[Any], None]) -> Callable[[Any], None]:
        return lambda child: None if child.is_ready and child.process.status is None else take(child)

    for name in ("read", "look"):
        monkeypatch.setattr(child_processes._Child, name, after_the_end(getattr(child_processes._Child, name)))


@pytest.mark.once
@each_once(
    ("before, dying", [({"do": before, "text": "its own"}, {"do": dying})
                       for before in ("print", "bye") for dying in ("kill", "vanish")]),
    ("late", [late_output, late_answers]),
)  # fmt: skip
def test_a_task_is_blamed_with_its_own_output(
    queue_factory: QueueFactory,
    monkeypatch: pytest.MonkeyPatch,
    late: Callable[[pytest.MonkeyPatch], None],
    before: dict[str, Any],
    dying: dict[str, Any],
) -> None:
    late(monkeypatch)
    once = queue_factory(max_attempts=1, lease_s=60)
    once.insert_many([before, dying])
    Worker(once, tasks.obey, prefetch=2).run()
    reasons = {letter.payload["do"]: letter.reason for letter in once.dead()}
    own = ": going\ngoing" if dying["do"] == "vanish" else ""
    ended = "exit status 5" if own else "killed by SIGKILL"
    assert reasons[dying["do"]] == f"the handler's process ended: {ended}{own}"
    if before["do"] == "bye":
        assert reasons["bye"].startswith("SystemExit: bye\n")


@pytest.mark.once
def test_what_a_module_prints_as_it_is_imported_is_no_tasks(
    queue_factory: QueueFactory, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    late_output(monkeypatch)
    (tmp_path / "loud_module.py").write_text("import os\nprint('loading')\ndef g(payload): os._exit(5)\n")
    monkeypatch.syspath_prepend(tmp_path)
    once = queue_factory(max_attempts=1)
    once.insert(1)
    assert Worker(once, "loud_module:g").run() == drained(failed=1)
    assert [letter.reason for letter in once.dead()] == ["the handler's process ended: exit status 5"]


@pytest.mark.once
def test_marks_are_not_shown(queue: Queue, capfd: pytest.CaptureFixture[str]) -> None:
    queue.insert_many([{"do": "print", "text": f"line {number}"} for number in range(40)])
    assert Worker(queue, tasks.obey).run() == drained(completed=40)
    shown = capfd.readouterr()
    assert sorted(shown.out.splitlines()) == sorted(shown.err.splitlines()) == sorted(f"line {n}" for n in range(40))
