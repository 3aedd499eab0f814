"""The command line in this process (quick) and as a process of its own (signals, pipes, terminals)."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fsqueue_cli.main import cli

from fsqueue import Queue
from tests.conftest import QueueFactory
from tests.gateways import gateways

Run = Callable[..., Result]
Spawn = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def fsqueue_cli() -> Run:
    """`fsqueue_cli("insert", q, input="1\\n", code=0)`: checks the exit code; nothing may look like a traceback."""

    def run(*arguments: Any, input: str | bytes | None = None, code: int | None = 0) -> Result:
        result = CliRunner().invoke(cli, [str(argument) for argument in arguments], input=input, prog_name="fsqueue")
        assert code is None or result.exit_code == code, f"{arguments}: {result.output}{result.exception!r}"
        assert "Traceback" not in result.output
        assert "internal error" not in result.output
        return result

    return run


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """`spawn("run", q, ...)`: starts a process; those still alive at the end are killed."""
    processes: list[subprocess.Popen[str]] = []

    def hear_signals() -> None:  # as on a terminal, also when the tests themselves run under nohup or in the background
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        command = [sys.executable, "-m", "fsqueue_cli", *map(str, arguments)]
        processes.append(subprocess.Popen(command, text=True, preexec_fn=hear_signals, **options))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):  # not read to the end: its commands may live on
            if pipe is not None:
                pipe.close()


@pytest.fixture(params=["path", "address"])
def place_of(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[Path], str]]:
    """`place_of(path)`: the path of a queue or a group, or its address at a gateway. Tests are run for both."""
    with gateways(tmp_path) as serve:
        yield str if request.param == "path" else serve


@pytest.fixture
def place(queue: Queue, place_of: Callable[[Path], str]) -> str:
    """The path of the queue, or its address."""
    return place_of(queue.path)


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal by now."""
    status = Path(f"/proc/{pid}/status").read_text()
    [caught] = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(int(caught, 16) >> (number - 1) & 1)


def waits(pid: int) -> bool:
    """Whether a process of one thread sleeps in the kernel, so that a signal wakes it.

    A signal that comes between Python's last look for signals and the call that then sleeps would be seen only when
    that call returns: when somebody answers, or never.
    """
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "S"


@pytest.fixture
def mixed(queue_factory: QueueFactory) -> Queue:
    """Five waiting, one delayed, two leased, three completed, one dead."""
    queue = queue_factory()
    queue.insert_many(range(11))
    queue.insert("later", delay_s=3600)
    tasks = queue.lease(6)
    queue.complete(tasks[:3])
    tasks[3].bury("broken 17\nin detail: \x1b[31mred")
    return queue
