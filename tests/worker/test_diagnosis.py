"""Failures that name what is to blame: interpreters, ends of lines, memory by ulimit -v, names that are no UTF-8."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsqueue import InvalidArgument, Queue, Worker
from fsqueue.filesystem import program_fault
from fsqueue.worker import shortages
from fsqueue.worker.causes import Memory
from tests.waiting import PATIENCE_S, until
from tests.worker import tasks
from tests.worker.support import drained, python

pytestmark = pytest.mark.once

QueueFactory = Callable[..., Queue]


@pytest.fixture
def once(queue_factory: QueueFactory) -> Queue:
    """A queue with a task that has one attempt."""
    queue = queue_factory(max_attempts=1)
    queue.insert("payload")
    return queue


def program(path: Path, content: bytes, mode: int = 0o755) -> str:
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


CRLF, BARE, GONE = b"#!/bin/sh\r\necho x\r\n", b"echo x\n", b"#!/opt/nosuch/python3 -u\nprint()\n"
BY_ENV, CRLF_BY_ENV = b"#!/usr/bin/env -S nosuch9 -u\n", b"#!/usr/bin/env python3\r\nprint()\r\n"


@pytest.mark.parametrize(
    ("content", "has_begun", "fault"),
    [
        (GONE, False, "its interpreter /opt/nosuch/python3, named in its first line, is not here: install it"),
        (CRLF, False, "its lines end as on Windows (CR LF)"),
        (BARE, False, "it names no interpreter: begin it with a line such as #!/bin/sh"),
        (b"\xef\xbb\xbf#!/bin/sh\n", False, "a byte order mark stands before its #!"),
        (b"", False, "the file is empty"),
        (b"\x7fELF no program", False, "it was built for another system"),
        (b"\0\1\2", False, "it is neither a program for this host nor a script"),
        (b"#!\n", False, ""),
        (BY_ENV, False, "its interpreter nosuch9, named in its first line, is not here in PATH"),
        (BY_ENV, True, "its interpreter nosuch9"),
        (CRLF_BY_ENV, True, "its lines end as on Windows (CR LF)"),
        (b"#!/usr/bin/env A=b sh\n", True, ""),
        (b"#!/bin/sh\n", False, ""),
        (BARE, True, ""),
        (b"\x7fELF", True, ""),
    ],
)
def test_what_keeps_a_program_from_being_executed(tmp_path: Path, content: bytes, has_begun: bool, fault: str) -> None:
    found = program_fault(program(tmp_path / "tool", content), has_begun)
    assert found.startswith(fault) and bool(found) == bool(fault)  # noqa: PT018


def test_nothing_but_a_file_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o755)
    assert program_fault(str(tmp_path / "fifo")) == ""
    assert program_fault(str(tmp_path)) == ""
    assert program_fault("nosuch-program") == ""


def test_a_file_that_is_not_executable_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = program(tmp_path / "plain", b"#!/bin/sh\n", 0o644)
    assert program_fault(plain) == f"it is not executable: chmod +x {plain}"
    marked = program(tmp_path / "marked", b"#!/bin/sh\n")
    monkeypatch.setattr(os, "access", lambda *arguments, **options: False)  # as on a mount with noexec
    assert program_fault(marked) == (
        "it may not be executed here: the mount has the option noexec, or the file is for other users"
    )
    script = program(tmp_path / "script", b"#!" + plain.encode() + b"\n")
    monkeypatch.undo()
    assert program_fault(script).startswith(f"its interpreter {plain}, named in its first line, cannot be executed")


@pytest.mark.parametrize(
    ("content", "fault"), [(GONE, "/opt/nosuch/python3"), (CRLF, "CR LF"), (BARE, "it names no interpreter")]
)
def test_a_script_that_cannot_be_executed_is_refused_with_the_fault(
    once: Queue, tmp_path: Path, content: bytes, fault: str
) -> None:
    script = program(tmp_path / "tool", content)
    with pytest.raises(InvalidArgument, match=f"could not be executed: .*{fault}.* Its task was put back"):
        Worker(once, command=[script]).run()
    assert [(task.state, task.attempt) for task in once.tasks()] == [("waiting", 0)]


def test_a_script_that_a_payload_names_fails_with_the_fault(queue_factory: QueueFactory, tmp_path: Path) -> None:
    queue = queue_factory(max_attempts=1)
    queue.insert(program(tmp_path / "tool", CRLF))
    assert Worker(queue, command=["{}"]).run() == drained(failed=1)
    [letter] = queue.dead()
    assert "the command cannot be executed: " in letter.reason
    assert "(its lines end as on Windows (CR LF)" in letter.reason


@pytest.mark.parametrize(
    ("content", "through_a_shell", "fault"),
    [(BY_ENV, False, "nosuch9"), (CRLF_BY_ENV, False, "CR LF"), (CRLF, True, "CR LF"), (GONE, True, "/opt/nosuch"),
     (CRLF_BY_ENV, True, None)],
)  # fmt: skip
def test_what_shells_and_env_did_not_find_is_named(
    once: Queue, tmp_path: Path, content: bytes, through_a_shell: bool, fault: str | None
) -> None:
    script = program(tmp_path / "tool", content)
    command = ["sh", "-c", f"{script}; exit $?"] if through_a_shell else [script]
    assert Worker(once, command=command).run() == drained(failed=1)
    [letter] = once.dead()
    headline = letter.reason.partition("\n")[0]
    assert headline.startswith("exit status 12")
    assert ("(tool: " in headline) == (fault is not None)
    assert (fault or "") in headline


def test_an_exception_with_a_name_that_is_no_utf8_keeps_its_reason(once: Queue) -> None:
    assert Worker(once, tasks.no_utf8).run() == drained(failed=1)
    [letter] = once.dead()
    assert letter.reason.startswith("ValueError: cannot read scan-\\udcff.tif\nTraceback")


# -- memory


@pytest.mark.parametrize(
    "text",
    ["MemoryError", "terminate called after throwing an instance of 'std::bad_alloc'", "fork: Cannot allocate memory",
     "ImportError: x.so: failed to map segment from shared object", "Error: cannot allocate vector of size 3 Gb",
     "java.lang.OutOfMemoryError: Java heap space", "Could not reserve enough space for object heap",
     "awk: out of memory", "virtual memory exhausted"],
)  # fmt: skip
def test_what_lacks_memory_names_the_limit_if_there_is_one(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (2 << 30, 2 << 30))
    assert shortages.memory(text) == " (ulimit -v allows each process 2.0 GiB of memory: raise it, or remove it)"
    assert shortages.memory("killed", -11) != ""
    assert shortages.memory("no such file in memory.txt", 1) == ""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    assert shortages.memory(text) == ""


@pytest.mark.parametrize("words", [["--call", "tests.worker.tasks:no_memory"], ["--", *python("bytearray(1 << 60)")]])
def test_a_run_under_ulimit_v_says_so(once: Queue, words: list[str]) -> None:
    command = [sys.executable, "-m", "fsqueue_cli", "run", once.path, *words]
    limit = 1 << 40  # the worker fits; what is asked for does not, with or without it
    top = Path(__file__).parent.parent.parent
    ran = subprocess.run(
        command, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)), cwd=top,
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert ran.returncode == 9, ran.stderr
    [letter] = once.dead()
    assert "(ulimit -v allows each process 1024.0 GiB of memory" in letter.reason.partition("\n")[0]


# -- out of memory


class Counter:
    """A counter of the kernel's, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int | None) -> None:
        self.count, self.now = count, 1000.0
        monkeypatch.setattr(shortages, "oom_kills", lambda: self.count)
        self.killed = shortages.KilledForMemory(lambda: self.now)

    def words(self, status: int, said: str = "", is_own: bool = False) -> str:
        """How the reason of a failure begins; "" if memory is not to blame."""
        memory, ended = self.killed.judge(status, said, is_own)
        assert (memory is Memory.ENOUGH) == (ended == "")
        return memory.reason(ended)


def test_a_kill_that_the_kernel_has_counted_is_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter(monkeypatch, 3)
    assert counter.words(-9) == ""  # killed by a user: the kernel has counted nothing since the worker began
    counter.count = 4
    used_up = "the memory of its job or container was used up"
    assert counter.words(-9) == f"out of memory (killed by SIGKILL; {used_up})"
    counter.now += 4
    assert counter.words(137) == f"out of memory (exit status 137; {used_up})"  # of the same kill: it may end several
    assert counter.words(-9, is_own=True) == ""
    assert counter.words(-15) == ""
    counter.now += 2
    assert counter.words(-9) == ""
    counter.count = 0  # the worker was moved into another group
    assert counter.words(-9) == ""
    counter.count = 1
    assert counter.words(-9) != ""


def test_without_a_counter_it_is_probable(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter(monkeypatch, None)
    assert counter.words(-9) == "probably out of memory (killed by SIGKILL)"
    assert counter.words(-9, is_own=True) == ""
    counter.count = 7  # it can be read now: these kills may be old
    assert counter.words(-9) == ""


@pytest.mark.parametrize("count", [None, 5])
def test_a_shell_tells_of_a_kill_below_it(monkeypatch: pytest.MonkeyPatch, count: int | None) -> None:
    why = "probably out of memory (exit status 137: SIGKILL has ended a process that it had started)"
    assert Counter(monkeypatch, count).words(137) == why


@pytest.mark.parametrize(
    ("status", "said", "why"),
    [
        (1, "Traceback\n  x\nMemoryError\n", "out of memory (exit status 1)"),
        (134, "terminate called\n  what(): std::bad_alloc", "out of memory (exit status 134)"),
        (1, "out of memory: retrying\nno such file", ""),
        (0, "MemoryError", ""),
        (1, "", ""),
    ],
)
def test_the_last_line_tells_that_a_program_got_no_memory(
    monkeypatch: pytest.MonkeyPatch, status: int, said: str, why: str
) -> None:
    assert Counter(monkeypatch, 0).words(status, said) == why


def test_a_function_without_memory(once: Queue) -> None:
    assert Worker(once, tasks.no_memory).run() == drained(failed=1)
    [letter] = once.dead()
    assert letter.reason.startswith("out of memory (MemoryError")
    assert "Traceback" in letter.reason


@pytest.mark.parametrize("script", ["import sys; sys.exit('MemoryError: 5 GiB')", "bytearray(1 << 60)"])
def test_a_command_without_memory(once: Queue, script: str) -> None:
    assert Worker(once, command=python(script)).run() == drained(failed=1)
    [letter] = once.dead()
    assert letter.reason.startswith("out of memory (exit status 1): MemoryError")


@pytest.mark.thorough
@pytest.mark.parametrize("work", ["command", "shell", "function"])
def test_the_kernel_kills_a_task_for_its_memory(once: Queue, work: str) -> None:
    """A real control group: the worker is in it."""
    place = Path("/sys/fs/cgroup/memory") / f"fsqueue-test-{os.getpid()}-{work}"
    try:
        place.mkdir()
        (place / "memory.limit_in_bytes").write_text(str(300 << 20))
    except OSError as error:
        pytest.skip(f"no control group can be made here (version 1, as root): {error}")
    many = "b'x' * (1 << 30)"
    words = {
        "command": ["--", *python(many)],
        "shell": ["--", "sh", "-c", f'{sys.executable} -c "{many}"; exit $?'],
        "function": ["--call", "tests.worker.tasks:much_memory"],
    }[work]
    command = [sys.executable, "-m", "fsqueue_cli", "run", str(once.path), *words]
    script = f'echo $$ > {place}/cgroup.procs && exec "$@"'
    top = Path(__file__).parent.parent.parent
    try:
        ran = subprocess.run(["sh", "-c", script, "sh", *command], cwd=top, capture_output=True, text=True,
                             timeout=PATIENCE_S, check=False)  # fmt: skip
    finally:
        until(lambda: not (place / "cgroup.procs").read_text(), "the group is empty")
        place.rmdir()
    assert ran.returncode == 9, ran.stderr
    [letter] = once.dead()
    assert "out of memory (" in letter.reason
    assert "the memory of its job or container was used up" in letter.reason
    assert "probably" not in letter.reason


# -- open files


def limits(soft: int, hard: int) -> Any:
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("soft", "hard", "jobs", "seen", "said"),
    [(64, 4096, 40, "456", False), (1024, 4096, 384, "2176", False), (1024, 4096, 2, "1024", False),
     (64, 100, 40, "100", True), (100, 100, 40, "100", True)],
)  # fmt: skip
def test_many_jobs_raise_the_soft_limit_of_open_files(
    once: Queue, tmp_path: Path, soft: int, hard: int, jobs: int, seen: str, said: bool
) -> None:
    command = [sys.executable, "-m", "fsqueue_cli", "run", once.path, "-j", str(jobs), "--", "sh", "-c", "ulimit -n"]
    ran = subprocess.run(
        command, preexec_fn=limits(soft, hard), capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert ran.stdout == f"{seen}\n"
    assert ("the hard limit (ulimit -Hn), suffice for about 15 of 40 tasks at a time" in ran.stderr) == said


def test_the_soft_limit_is_what_it_was_afterwards() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    told: list[str] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        with shortages.room_for(100, told.append):
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(756, before[1])
            assert shortages.processes_max() >= 100
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (512, before[1])
        assert told == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
