"""A thread of the worker that dies of what nobody expected ends the worker; a second signal does so in any case."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Queue, Worker
from fsqueue.leased_task import LeasedTask
from fsqueue.worker import feeding, handlers, loop, output_relay, settling, sources
from tests.support import QueueFactory
from tests.waiting import PATIENCE_S, until
from tests.worker.support import until_there

SURPRISES = [TypeError("Recursion limit reached"), SystemExit(3)]


def unexpected(error: BaseException) -> Callable[..., Any]:
    def surprise(*arguments: Any, **options: Any) -> Any:
        raise error

    return surprise


def given_back(queue: Queue, tasks: int) -> None:
    """Everything waits again, without blame. It would take ten minutes if leases had to run out."""
    found = sorted((task.state, task.attempt) for task in queue.tasks())
    assert found == [("waiting", 0)] * tasks


@pytest.fixture
def long(tmp_path: Path) -> Iterator[tuple[list[str], Path]]:
    """A command that says that it has begun, and goes on for ever; none is left in the end."""
    began = tmp_path / "began"
    yield ["sh", "-c", f"echo $$ >>{began}; exec sleep 1000"], began
    pids = [int(word) for word in began.read_text().split()] if began.exists() else []
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize("error", SURPRISES)
@pytest.mark.parametrize("verb", ["complete", "fail"])
def test_a_reporter_that_dies_ends_the_worker(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, verb: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """It did so at a payload that could not be written into a dead letter, and the worker waited for ever."""
    real = settling._tell
    reporter = "fsqueue-reporter"

    def tell(*arguments: Any) -> Any:
        if arguments[1] == verb and threading.current_thread().name == reporter:
            raise error
        return real(*arguments)

    monkeypatch.setattr(settling, "_tell", tell)
    queue.insert_many(range(30))
    with caplog.at_level(logging.DEBUG, "fsqueue"), pytest.raises(RuntimeError, match=f"{reporter} died") as raised:
        Worker(queue, command=["true" if verb == "complete" else "false"], processes=2).run()
    assert raised.value.__cause__ is error
    assert any(record.exc_info and reporter in record.getMessage() for record in caplog.records)
    counts = queue.status()
    assert (counts.leased, counts.waiting + counts.completed + counts.delayed) == (0, 30)
    assert counts.completed if verb == "complete" else counts.delayed  # told by another thread, once it was dead


def test_an_outcome_that_nobody_can_tell_is_put_back(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    real = settling._tell

    def tell(owner: Queue, verb: str, *rest: Any) -> Any:
        if verb == "complete":
            raise TypeError("in any thread")
        return real(owner, verb, *rest)

    monkeypatch.setattr(settling, "_tell", tell)
    queue.insert_many(range(10))
    with pytest.raises(RuntimeError, match="in any thread"):
        Worker(queue, command=["true"], processes=2).run()
    given_back(queue, 10)


def test_a_feeder_that_dies_ends_the_worker_after_what_can_end_in_the_grace(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, began = feeding.Watch.look, tmp_path / "began"

    def look(watch: Any, n: int) -> Any:
        if not began.exists():
            return real(watch, n)
        raise TypeError("Recursion limit reached")

    monkeypatch.setattr(feeding.Watch, "look", look)
    monkeypatch.setattr(feeding, "BELL_S", (0.01, 0.1))
    queue.insert_many(range(2))
    script = f"if mkdir {tmp_path}/first; then {until_there(tmp_path / 'died')}; exit 0; fi; touch {began}; sleep 1000"
    worker = Worker(queue, command=["sh", "-c", script], grace_s=1000, processes=3, prefetch=1)

    def go_on() -> None:
        until(lambda: worker._loop._broken, "the feeder's death")
        (tmp_path / "died").touch()
        until(lambda: queue.status().completed == 1, "the end of what can end")
        worker._loop.mailbox.post(lambda: setattr(worker._loop, "_grace_until", 0.0))  # the grace is over

    other = threading.Thread(target=go_on)
    other.start()
    with pytest.raises(RuntimeError, match="fsqueue-feeder died"):
        worker.run()
    other.join(PATIENCE_S)
    assert queue.status().completed == 1
    given_back(queue, 1)


def test_an_error_of_the_system_in_the_feeder_is_none_of_those(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    """Asking whether the queue is drained asks the file server, which may fail for a moment."""
    monkeypatch.setattr("fsqueue.worker.feeding.RETRY_S", (0.05, 0.05))
    real, errors = sources.DrainCheck.__call__, [OSError(5, "Input/output error")] * 3

    def check(self: Any) -> bool:
        if errors:
            raise errors.pop()
        return real(self)

    monkeypatch.setattr(sources.DrainCheck, "__call__", check)
    report = Worker(queue, command=["true"], tell=lambda event: event.text and told.append(event.text)).run()
    assert report.ended == "drained"
    assert not errors
    assert len(told) == 1
    assert "Input/output error" in told[0]


def test_a_renewer_that_dies_ends_the_worker(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, long: tuple[list[str], Path]
) -> None:
    monkeypatch.setattr(settling.LeaseRenewer, "_renew", unexpected(TypeError("what")))
    queue.insert_many(range(5))
    with pytest.raises(RuntimeError, match=r"fsqueue-renewer died \(TypeError: what\)"):
        Worker(queue, command=long[0], processes=2, lease_s=0.6, grace_s=0.2).run()
    assert queue.status().leased == 0
    assert queue.status().waiting == 5


@pytest.mark.parametrize("kind", ["command", "function"])
def test_an_outlet_that_dies_ends_the_worker(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    monkeypatch.setattr(output_relay, "write_all", unexpected(TypeError("what")))
    queue.insert_many([{"do": "print", "text": "x" * 3_000_000}] * 3)
    command = ["head", "-c", "3000000", "/dev/zero"]
    how: dict[str, Any] = {"command": command} if kind == "command" else {"handler": "tests.worker.tasks:obey"}
    with pytest.raises(RuntimeError, match="fsqueue-output died"):
        Worker(queue, grace_s=0.2, **how).run()
    given_back(queue, 3)


def test_a_handlers_thread_that_dies_ends_the_worker(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "call", unexpected(MemoryError()))
    queue.insert_many(range(3))
    with pytest.raises(RuntimeError, match="fsqueue-handler-0 died"):
        Worker(queue, lambda payload: None, threads=1, grace_s=0.2).run()
    given_back(queue, 3)


@pytest.mark.parametrize("where", ["_hand_out", "_keep_time"])
def test_an_error_of_the_loop_itself_ends_it_with_all_given_back(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    real, calls = getattr(loop.Loop, where), iter(range(1000))

    def step(self: Any) -> None:
        real(self)
        if (self._ahead or self._executor.held() or self._untold) and next(calls) > 3:
            raise TypeError("what")

    monkeypatch.setattr(loop.Loop, where, step)
    queue.insert_many(range(20))
    with pytest.raises(TypeError, match="what"):
        Worker(queue, command=["true"], processes=2).run()
    counts = queue.status()
    assert (counts.leased, counts.waiting + counts.completed) == (0, 20)


def test_what_listens_to_events_may_fail(queue: Queue) -> None:
    queue.insert_many(range(3))
    assert Worker(queue, command=["false"], stop_after_failures=2, tell=unexpected(TypeError("what"))).run().failed >= 2


# -- signals, to a real process


TAMPERED = """
import os, sys, threading, time
from fsqueue.worker import commands, events, feeding, loop, child_processes, settling, spawning, sources
from fsqueue_cli.entry import main
for module in (commands, loop, child_processes):
    for name, seconds in (("LEAVE_S", 0.5), ("KILLED_S", 0.3)):
        if hasattr(module, name):
            setattr(module, name, seconds)
def for_ever(*arguments):
    print("stuck", file=sys.stderr, flush=True)
    threading.Event().wait()
def die(*arguments):
    raise TypeError("Recursion limit reached")
exec(os.environ["TAMPER"])
sys.argv[:] = ["fsqueue", *sys.argv[1:]]
main()
"""


@contextmanager
def tampered(how: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """`fsqueue run …`, after the code `how`."""
    command = [sys.executable, "-c", TAMPERED, "run", *map(str, arguments)]
    environment = os.environ | {"TAMPER": how}
    with subprocess.Popen(command, text=True, stderr=subprocess.PIPE, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.once
def test_run_says_in_one_line_that_a_thread_died_and_holds_nothing(queue_factory: QueueFactory) -> None:
    queue = queue_factory(max_attempts=1)
    queue.insert_many(range(20))
    with tampered("settling._tell = die", queue.path, "-j", 2, "--", "false") as process:
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    [line] = [line for line in err.splitlines() if "failed: exit status 1" not in line]
    said = "fsqueue: internal error, please report it: RuntimeError: the worker's thread fsqueue-reporter"
    assert line.startswith(said)
    assert "TypeError: Recursion limit reached" in line
    given_back(queue, 20)


STUCK = {
    "nobody answers the reporter": "settling._tell = for_ever",
    "nobody answers the renewer": "settling.LeaseRenewer._renew = for_ever",
    "nobody answers the feeder": "n = iter(range(9)); real = feeding.Watch.look\n"
    "feeding.Watch.look = lambda *all: real(*all) if not next(n) else for_ever()",
    "the last words are not heard": "settling._tell = for_ever; settling.OutcomeReporter._round = die",
    "the kernel holds the command": "spawning.Process.kill = lambda *all: None; print('stuck', file=sys.stderr)",
    "everything at once": "settling._tell = for_ever; settling.LeaseRenewer._renew = for_ever\n"
    "feeding.Watch.look.__name__\n"
    "spawning.Process.kill = lambda *all: None",
}


@pytest.mark.one_in(3)
@pytest.mark.once
@pytest.mark.parametrize("how", STUCK)
def test_a_second_signal_ends_it_whatever_its_threads_are_at(queue: Queue, tmp_path: Path, how: str) -> None:
    queue.insert_many([0, 30])
    script = f'echo $$ >>{tmp_path}/pids; exec sleep "$1"'
    with tampered(
        STUCK[how], queue.path, "--lease", "1", "--grace", "1000", "--", "sh", "-c", script, "sh", "{}"
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "stuck\n"
        if "command" in how:
            until(lambda: (tmp_path / "pids").exists(), "the begin of a command")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)  # two of one kind could be taken for one
        try:
            assert process.wait(timeout=PATIENCE_S) in (130, 143, 1)  # 1: an error of its own is told all the same
        finally:
            if (tmp_path / "pids").exists():
                pids = (tmp_path / "pids").read_text().split()
                subprocess.run(["kill", "-9", *pids], stderr=subprocess.DEVNULL, check=False)


@pytest.mark.once
def test_after_a_second_signal_what_can_be_told_is_told(queue: Queue, tmp_path: Path) -> None:
    queue.insert_many(range(3))
    command = ["sh", "-c", f"trap '' TERM; echo $$ >>{tmp_path}/pids; while :; do sleep 600; done"]
    with tampered("", queue.path, "-j", 2, "--grace", "1000", "--", *command) as process:
        until(
            lambda: (tmp_path / "pids").exists() and len((tmp_path / "pids").read_text().split()) == 2,
            "the begin of two commands",
        )
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE_S) in (130, 143)
    given_back(queue, 3)


def test_giving_back_is_not_waited_for_beyond_a_signal(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    monkeypatch.setattr(settling, "_tell", lambda *arguments: go.wait())
    queue.insert(1)
    [task] = queue.lease()
    assert isinstance(task, LeasedTask)
    looks = iter([False] * 3)
    settling.give_back([[settling.Outcome(task, "release")]], list, lambda: next(looks, True))
    assert list(looks) == []
    assert not go.is_set()
    go.set()
