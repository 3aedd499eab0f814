"""Signals reach all processes of a job: those that a worker is just starting, too. None of them ends by that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Queue, StorageError, Worker
from fsqueue.worker import shortages, supervision, supervisor
from fsqueue.worker.worker import STOPPING
from tests.support import QueueFactory
from tests.waiting import PATIENCE_S, until
from tests.worker import tasks
from tests.worker.support import drained

pytestmark = pytest.mark.once

SIGNALS = [*STOPPING, signal.SIGXCPU, signal.SIGQUIT, signal.SIGALRM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGRTMIN]
BEFORE = """
import os, signal, sys
number, *program = sys.argv[1:]
signal.signal(int(number), signal.SIG_DFL)
os.kill(os.getpid(), int(number))
os.execv(program[0], program)
"""
"""Sends itself a signal, and goes on as the program that was to be started: with its process, and its blocked signals.
Nothing has caught the signal by then, as while the interpreter of that program starts."""
MOMENTS = """
import os, signal, socket, sys
sys.path.insert(0, {where!r})
import supervisor
def storm():
    for number in supervisor.CAUGHT:
        if number < signal.SIGRTMIN: os.kill(os.getpid(), number)
def around(module, name):
    real = getattr(module, name)
    def call(*arguments, **options):
        storm()
        try: return real(*arguments, **options)
        finally: storm()
    setattr(module, name, call)
for module, name in (
    (signal, "signal"), (signal, "pthread_sigmask"), (signal, "set_wakeup_fd"), (os, "pidfd_open"), (os, "dup2"),
    (os, "pipe"), (os, "fork"), (os, "posix_spawnp"), (socket, "socket"),
): around(module, name)
storm()
supervisor.main()
"""
"""Gets all signals before and after each step by which a fork server, or a supervisor, begins."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that can begin nothing gives up soon."""
    monkeypatch.setattr(shortages, "PAUSES_S", (0.001, 0.001))
    monkeypatch.setattr(shortages, "PATIENCE_S", 0.0)


def spawn_by(monkeypatch: pytest.MonkeyPatch, *before: str) -> None:
    """Have the fork server started by another program."""
    real = os.posix_spawnp

    def spawn(file: str, argv: Sequence[str], environment: Mapping[Any, Any], **options: Any) -> int:
        return real(file, [argv[0], "-I", "-S", *before, *argv], environment, **options)

    monkeypatch.setattr(os, "posix_spawnp", spawn)


def as_fork_server(monkeypatch: pytest.MonkeyPatch, directory: Path, code: str) -> None:
    """Have another program be the fork server."""
    program = directory / "program.py"
    program.write_text(code)
    monkeypatch.setattr(supervisor, "__file__", str(program))


@pytest.mark.one_in(4)
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: signal.Signals(number).name)
def test_a_signal_while_the_fork_server_starts_does_not_end_it(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    spawn_by(monkeypatch, "-c", BEFORE, str(int(number)))
    queue.insert_many(range(2))
    told: list[str] = []
    assert Worker(queue, command=["true"], tell=lambda event: told.append(event.text)).run() == drained(completed=2)
    assert not any("could not be begun" in text for text in told)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("how", ["command", "function"])
def test_all_signals_at_each_moment_of_its_start_end_neither_it_nor_a_supervisor(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    as_fork_server(monkeypatch, tmp_path, MOMENTS.format(where=str(Path(supervision.__file__).parent)))
    queue.insert_many([None] * 2)
    worker = Worker(queue, command=["true"]) if how == "command" else Worker(queue, tasks.nothing)
    assert worker.run() == drained(completed=2)


WORKER = """
import os, sys
from fsqueue_cli import entry
real = os.posix_spawnp
def spawn(file, argv, environment, **options):
    return real(file, [argv[0], "-I", "-S", "-c", {before!r}, *argv], environment, **options)
os.posix_spawnp = spawn
sys.argv[0] = "fsqueue"
entry.main()
"""
BOTH = BEFORE.replace("number, *program = sys.argv[1:]", "number, *program = {number}, *sys.argv[1:]").replace(
    "os.kill(", "os.kill(os.getppid(), int(number)); os.kill("
)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("number", STOPPING, ids=lambda number: number.name)
def test_a_worker_that_is_told_to_stop_while_it_begins_its_first_command_puts_it_back(
    queue: Queue, number: signal.Signals
) -> None:
    """As by Slurm, which sends the signal to the fork server, too."""
    task = queue.insert(1)
    code = WORKER.format(before=BOTH.format(number=int(number)))
    command = [sys.executable, "-c", code, "run", str(queue.path), "--grace", "0", "--", "sleep", "9000"]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )  # fmt: skip
    assert "1 released" in run.stderr
    assert "could not be begun" not in run.stderr
    assert run.returncode in (-number, 128 + number)
    assert queue.task(task.id).state == "waiting"


def test_nothing_stays_blocked(queue: Queue, tmp_path: Path) -> None:
    """Neither in the fork server, nor in a supervisor, nor in a command.

    A shell blocks its signals for a moment whenever it begins to wait for a program. So the command looks at itself
    without one. Its supervisor blocks all of them until the system has told it that the command runs: of many looks the
    last one counts.
    """
    queue.insert(1)
    pids = '$(cut -d " " -f 4 /proc/$PPID/stat) $PPID'
    look = f"for pid in {pids}; do grep SigBlk /proc/$pid/status; done >{tmp_path}/blocked"
    script = f"for number in $(seq 50); do {look}; done; exec grep SigBlk /proc/self/status >>{tmp_path}/blocked"
    assert Worker(queue, command=["sh", "-c", script]).run() == drained(completed=1)
    own = [line for line in Path("/proc/thread-self/status").read_text().splitlines() if line.startswith("SigBlk")]
    assert (tmp_path / "blocked").read_text().splitlines() == own * 3


# -- a fork server that ends nevertheless


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("how", ["command", "function"])
def test_of_fork_servers_that_are_killed_one_after_the_other_it_is_said_what_ended_them(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    as_fork_server(monkeypatch, tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    queue.insert_many([None] * 2)
    told: list[str] = []
    work: dict[str, Any] = {"command": ["true"]} if how == "command" else {"handler": tasks.nothing}
    worker = Worker(queue, tell=lambda event: told.append(event.text), **work)
    with pytest.raises(StorageError, match=r"functions has ended \(killed by SIGKILL\), 3 times in a row") as raised:
        worker.run()
    assert any("killed by SIGKILL" in text for text in told)
    assert not any("ulimit" in text for text in (*told, str(raised.value)))
    assert (queue.status().waiting, queue.peek(1)[0].attempt) == (2, 0)


@pytest.mark.usefixtures("impatient")
def test_a_fork_server_that_has_closed_its_socket_and_not_ended_yet_is_waited_for(
    queue_factory: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel closes the files of a process that was killed a moment before its parent can wait for it."""
    fifo, closed = tmp_path / "fifo", tmp_path / "closed"
    os.mkfifo(fifo)
    dying = f"import os, sys; os.close(int(sys.argv[2])); open({str(closed)!r}, 'w'); open({str(fifo)!r}).read()"
    program = supervisor.__file__
    as_fork_server(monkeypatch, tmp_path, dying + "; os.kill(os.getpid(), 9)")
    queue = queue_factory(max_attempts=1)
    queue.insert(1)
    real_spawn, real_wait = os.posix_spawnp, os.waitpid

    def spawn(*arguments: Any, **options: Any) -> int:
        pid = real_spawn(*arguments, **options)
        until(closed.exists, "the socket to be closed")
        monkeypatch.setattr(supervisor, "__file__", program)
        return pid

    def wait(pid: int, flags: int) -> tuple[int, int]:
        if not flags and fifo.exists():
            fifo.open("w").close()  # only now it ends
            fifo.unlink()
        return real_wait(pid, flags)

    monkeypatch.setattr(os, "posix_spawnp", spawn)
    monkeypatch.setattr(os, "waitpid", wait)
    told: list[str] = []
    try:
        report = Worker(queue, command=["true"], tell=lambda event: told.append(event.text)).run()
    finally:
        if fifo.exists():
            os.close(os.open(fifo, os.O_RDWR))  # it ends
    assert report == drained(completed=1)
    assert not any("could not be begun" in text for text in told)
