"""run on a terminal: the bar, failures as they happen, the output of commands above. In a log file: a line a minute."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fsqueue_cli.progress import IN_A_ROW, KINDS_MAX, LINE_S, REPEAT_S, Failures, LogProgress
from fsqueue_cli.progress import line as progress_line

from fsqueue import Event, Queue, Status, Worker
from fsqueue.views.rates import WorkerProgress
from tests.cli.conftest import Spawn
from tests.cli.terminal import Terminal
from tests.conftest import QueueFactory
from tests.waiting import PATIENCE_S, until
from tests.worker.support import shell_until, until_there

pytestmark = pytest.mark.once

On = Callable[..., Terminal]


@pytest.fixture
def on_terminal() -> Iterator[On]:
    terminals: list[Terminal] = []

    def start(*arguments: Any, **options: Any) -> Terminal:
        terminals.append(Terminal(*arguments, **options))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.close()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


# -- on a terminal


def test_the_bar_stays_below_the_output_and_goes_at_the_end(on_terminal: On, queue: Queue, tmp_path: Path) -> None:
    queue.insert_many(range(6))
    command = f'echo "from $1"; {until_there(f"{tmp_path}/go.$1")}'
    terminal = on_terminal("run", queue.path, "-j", 2, "--output", "line", "--", "sh", "-c", command, "sh", "{}")
    for number in range(5):
        (tmp_path / f"go.{number}").touch()
    screen = terminal.read(lambda text: "5 of 6 done" in text and "elsewhere" not in text)  # it holds them itself
    lines = screen.splitlines()
    assert lines[-1].startswith(" 83% [")
    assert sorted(lines[:-1]) == [f"from {number}" for number in range(6)]
    (tmp_path / "go.5").touch()
    code, screen = terminal.end()
    assert code == 0
    assert screen.splitlines()[-1] == "fsqueue: 6 completed"
    assert sorted(screen.splitlines()[:-1]) == [f"from {number}" for number in range(6)]
    assert (terminal.broken, terminal.strange) == (0, [])
    assert terminal.settings_are_as_before()


def test_lines_of_commands_side_by_side_stay_whole_above_the_bar(on_terminal: On, queue: Queue, tmp_path: Path) -> None:
    """Each command stops within its first line, until another has begun one and the bar is there."""
    queue.insert_many(range(12))
    (tmp_path / "begun").mkdir()
    others = "now=$(ls | wc -l); [ $now -ge $((before + 2)) ] || [ $now = 12 ]"
    command = f"""cd {tmp_path}/begun; before=$(ls | wc -l)
        for n in 1 2 3; do
            printf '<%s ' $1; touch $1; {shell_until(others)}; {until_there(tmp_path / "go")}
            printf '%s>' $1; [ $n = 3 ] || echo
        done"""
    terminal = on_terminal("run", queue.path, "-j", 4, "--", "sh", "-c", command, "sh", "{}", rows=60)
    terminal.read(lambda text: "%" in text)
    (tmp_path / "go").touch()
    code, screen = terminal.end()
    lines = screen.splitlines()
    assert (code, lines[-1]) == (0, "fsqueue: 12 completed")
    assert sorted(lines[:-1]) == sorted(f"<{n} {n}>" for n in range(12) for _ in range(3))
    assert [len(set(lines[at : at + 3])) for at in range(0, 36, 3)] == [1] * 12
    assert b"%" in terminal.raw


def test_what_others_have_leased_and_what_fails_is_shown(
    on_terminal: On, queue_factory: QueueFactory, tmp_path: Path
) -> None:
    queue = queue_factory(max_attempts=1)
    queue.insert_many([1, 2], batch_tasks=1)
    assert len(queue.lease(2)) == 2
    queue.insert_many([3, 4], batch_tasks=1)
    fails = "[ $1 = 3 ] || { echo '\x1b[31mno tile 17' >&2; exit 3; }"
    command = f"{fails}; {until_there(tmp_path / 'go')}"
    arguments = ["-j", 2, "--max-tasks", 2, "--", "sh", "-c", command]
    terminal = on_terminal("run", queue.path, *arguments, "sh", "{}", columns=120)
    screen = terminal.read(lambda text: "1 failed attempt, 2 leased elsewhere" in text.rpartition("\n")[2])
    [told] = [line for line in screen.splitlines() if line.startswith("fsqueue: an attempt at ")]
    assert told.endswith("failed: exit status 3: \\x1b[31mno tile 17"), "escaped where we say it"
    (tmp_path / "go").touch()
    assert terminal.end()[0] == 0


def test_ctrl_c_leaves_a_clean_screen(on_terminal: On, queue: Queue) -> None:
    queue.insert(1)
    terminal = on_terminal("run", queue.path, "--grace", "0.1", "--", "sleep", "1000")
    terminal.read(lambda text: "0 of 1 done" in text)
    code, screen = terminal.end(signal.SIGINT)
    assert code == 130
    assert "done" not in screen
    assert screen.splitlines()[-1] == "fsqueue: 1 released"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", [[], ["--log-json"], ["--json"]])
def test_a_second_signal_ends_it_where_nobody_reads(
    spawn: Spawn, queue: Queue, tmp_path: Path, options: list[str]
) -> None:
    queue.insert_many(range(4))
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while os.write(writer, bytes(4096)):
            pass
    except BlockingIOError:
        os.set_blocking(writer, True)
    command = ["sh", "-c", f"touch {tmp_path}/begun-$1; exec sleep 600", "sh", "{}"]
    process = spawn("run", queue.path, "-j", 2, *options, "--", *command, stdout=subprocess.DEVNULL, stderr=writer)
    os.close(writer)
    # Those only leased would be put back at once.
    until(lambda: len(list(tmp_path.glob("begun-*"))) == 2, "the begin of two tasks")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)  # two of one kind could be taken for one
    assert process.wait(timeout=PATIENCE_S) in (143, 130)
    os.close(reader)
    assert queue.status() == Status(waiting=4)


def test_a_terminal_that_is_narrow(on_terminal: On, queue: Queue, tmp_path: Path) -> None:
    queue.insert_many(range(2))
    command = ["sh", "-c", f"[ $1 = 0 ] || {until_there(tmp_path / 'go')}", "sh", "{}"]
    terminal = on_terminal("run", queue.path, "-j", "2", "--", *command, columns=20)
    terminal.read(lambda text: "50%" in text)
    (tmp_path / "go").touch()
    assert terminal.broken == 0
    assert terminal.end()[0] == 0


EAGER = """
import sys
from fsqueue_cli import progress
from fsqueue_cli.entry import main
progress.DRAW_S = 0.001
sys.argv[:] = ["fsqueue", *sys.argv[1:]]
main()
"""
"""Draws whenever it may."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("env", [{"TERM": ""}, {"TERM": "dumb"}])
def test_nothing_is_drawn_on_a_terminal_that_cannot(on_terminal: On, queue: Queue, env: dict[str, str]) -> None:
    queue.insert_many(range(2))
    terminal = on_terminal("run", queue.path, "--", "echo", "x", env=env, program=["-c", EAGER])
    assert terminal.end() == (0, "x\nx\nfsqueue: 2 completed")
    assert b"\x1b" not in terminal.raw


def test_nothing_is_drawn_without_a_terminal(queue_factory: QueueFactory) -> None:
    queue = queue_factory(max_attempts=1)
    queue.insert_many(range(2))
    command = [sys.executable, "-c", EAGER, "run", str(queue.path), "--", "sh", "-c", "echo x; exit $1", "sh", "{}"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    [letter] = queue.dead()
    said = [
        f"fsqueue: an attempt at {letter.id} failed: exit status 1: x",
        "fsqueue: 1 completed, 1 given up after 1 failed attempt",
    ]
    assert (done.stdout, done.stderr.splitlines()[:2]) == ("x\nx\n", said)


# -- in a log file


class Busy:
    """A worker, as far as what shows it asks it."""

    def __init__(self) -> None:
        self.held, self.completed = 0, (0, 0)
        self.next_due_s = math.inf


@pytest.fixture
def log(queue: Queue, clock: Clock, told: list[str]) -> LogProgress:
    """A log whose thread is not started: the test calls `step`."""
    return LogProgress([str(queue.path)], told.append, clock)


@pytest.fixture
def told() -> list[str]:
    return []


def failed(task: str, reason: str) -> Event:
    return Event("failed", "", {"task": task, "reason": reason})


def test_a_log_gets_a_line_a_minute(log: LogProgress, queue: Queue, clock: Clock, told: list[str]) -> None:
    queue.insert_many(range(200))
    worker = Busy()
    log.show(worker)  # type: ignore[arg-type]
    for second in range(180):
        clock.now = 1000.0 + second
        if second % 2 == 0 and second < 120:
            [task] = queue.lease()
            task.complete()
            worker.completed = (second // 2 + 1,) * 2
        log.step()
    assert told == ["31 of 200 done, 0.5/s, 5 min 38 s left", "60 of 200 done, 0.49/s, 4 min 45 s left"]
    log.tell(failed("t", "exit status 1"))
    clock.now += 1
    log.step()
    assert told[2:] == [
        "an attempt at t failed: exit status 1",
        "60 of 200 done, 1 failed attempt, 0.24/s, 9 min 39 s left",
    ]


def test_a_log_gets_the_first_failure_of_each_reason_and_counts_at_the_end(log: LogProgress, told: list[str]) -> None:
    for task in range(40):
        log.tell(failed(f"t{task}", f"exit status 1: no tile {task}\nin detail"))
        log.tell(failed(f"u{task}", "exit status 2"))
    assert told == ["an attempt at t0 failed: exit status 1: no tile 0", "an attempt at u0 failed: exit status 2"]
    log.tell(Event("lost", "task v0 was lost", {}))
    log.close()
    assert told[2:] == [
        "task v0 was lost",
        "39 more attempts failed: exit status 1: no tile 0",
        "39 more attempts failed: exit status 2",
    ]


def test_a_node_on_which_all_fails_while_others_succeed_is_worth_a_word(
    log: LogProgress, queue: Queue, clock: Clock, told: list[str]
) -> None:
    queue.insert_many(range(100))
    log.show(Busy())  # type: ignore[arg-type]

    def minute() -> list[str]:
        clock.now += LINE_S
        log.step()
        return [text for text in told if text.startswith("hint:")]

    for number in range(IN_A_ROW):
        log.tell(failed(f"t{number}", "exit status 1"))
    assert minute() == minute() == [], "nobody else has completed anything"
    for task in queue.lease(7):
        task.complete()
    log.tell(Event("completed", "", {}))
    log.tell(failed("t", "exit status 1"))
    assert minute() == minute() == [], "it is not all that fails here"
    for number in range(IN_A_ROW):
        log.tell(failed(f"t{number}", "exit status 1"))
    for task in queue.lease(5):
        task.complete()
    [text] = minute()
    assert text == (
        f"hint: the last 11 attempts here, on {socket.gethostname()}, have failed, while other workers completed 5 "
        "tasks. A worker with --exclude-after N takes no more tasks on a node where N in a row have failed; "
        f"'fsqueue workers {queue.path}' shows such nodes"
    )
    for task in queue.lease(5):
        task.complete()
    assert len(minute()) == 1, "once"


def test_a_bar_on_standard_error_leaves_redirected_output_alone(on_terminal: On, queue: Queue, tmp_path: Path) -> None:
    queue.insert_many(range(2))
    file = tmp_path / "out"
    command = ["sh", "-c", f"{until_there(tmp_path / 'go')}; printf x"]
    terminal = on_terminal("run", queue.path, "--", *command, stdout=file)
    terminal.read(lambda text: "of 2 done" in text)
    (tmp_path / "go").touch()
    assert terminal.end() == (0, "fsqueue: 2 completed")
    assert b"of 2 done" in terminal.raw
    assert file.read_bytes() == b"x\nx"


# -- the numbers


def line(progress: WorkerProgress, columns: int = 100, failed: int = 0) -> str:
    return progress_line(progress, failed, columns, "ascii")


TWO_AT_ONCE = """
from fsqueue_cli import printing
one, other, write = printing.Footer(), printing.Footer(), printing._write

def drawing_between(fd, data):
    write(fd, data)
    if fd == 1 or b"of other" not in data:
        other._is_drawn = False
        other.draw(lambda columns, encoding: "[ bar of other ]")

one.draw(lambda columns, encoding: "[ bar of one ]")
printing._write = drawing_between
for number in range(3):
    one.pass_on(1, b"line %d\\n" % number)
printing._write = write
one.close()
"""


def test_the_bar_of_another_on_the_same_terminal_does_not_end_up_in_the_output(on_terminal: On) -> None:
    """It draws its bar after each write of ours."""
    code, screen = on_terminal(program=["-c", TWO_AT_ONCE]).end()
    assert code == 0
    assert screen.splitlines() == [f"line {number}" for number in range(3)]


def test_what_is_not_known_is_not_shown(clock: Clock) -> None:
    numbers = WorkerProgress(clock)
    assert line(numbers) == "0 done"
    numbers.look(Status(waiting=90, completed=10), held=0)
    clock.now += 10
    assert line(numbers).endswith("] 10 of 100 done"), "no rate of nothing, no time left"


def test_rate_and_time_left_come_from_everybody(clock: Clock) -> None:
    numbers = WorkerProgress(clock)
    numbers.look(Status(waiting=100, leased=10), held=4)
    line(numbers)
    clock.now += 10
    numbers.completed = lambda: (10, 10)
    assert line(numbers).endswith("10 of 110 done, 6 leased elsewhere, 1.0/s, 1 min 40 s left")
    numbers.look(Status(waiting=80, leased=10, completed=18, dead=2), held=10)
    assert line(numbers, failed=3).endswith("20 of 110 done, 3 failed attempts, 2.0/s, 45 s left")


def test_nothing_is_counted_twice_after_the_terminal_stood_still(queue: Queue) -> None:
    """A look has counted what the worker completed meanwhile; its events come when the terminal goes on."""
    queue.insert_many(range(30))
    inside, goes_on = threading.Event(), threading.Event()
    told: list[Event] = []

    def tell(event: Event) -> None:
        inside.set()
        assert goes_on.wait(PATIENCE_S)
        told.append(event)

    numbers = WorkerProgress(time.monotonic)
    worker = Worker(queue, command=["true"], tell=tell, max_tasks=20)
    numbers.completed = lambda: worker.completed
    with ThreadPoolExecutor() as pool:
        running = pool.submit(worker.run)
        assert inside.wait(PATIENCE_S)
        until(lambda: queue.status().completed == 20, "twenty completed tasks")
        numbers.look(queue.status(), held=0)
        goes_on.set()
        running.result(PATIENCE_S)
    assert "completed" in [event.kind for event in told]
    assert "20 of 30 done" in line(numbers)


def test_what_a_look_may_have_counted_is_not_counted_again(clock: Clock) -> None:
    numbers = WorkerProgress(clock)
    numbers.completed = lambda: (3, 5)
    numbers.look(Status(waiting=5, completed=5), held=0)
    numbers.completed = lambda: (5, 5)
    assert "] 5 of 10 done" in line(numbers)
    numbers.completed = lambda: (7, 7)
    assert "] 7 of 10 done" in line(numbers)


def test_a_purge_begins_anew(clock: Clock) -> None:
    numbers = WorkerProgress(clock)
    numbers.look(Status(completed=1000, waiting=10), held=0)
    line(numbers)
    numbers.look(Status(waiting=10), held=0)
    clock.now += 10
    assert line(numbers).endswith("] 0 of 10 done")


def test_the_rate_is_that_of_the_last_minute(clock: Clock) -> None:
    numbers = WorkerProgress(clock)
    numbers.look(Status(waiting=1000), held=0)
    completed = 0
    numbers.completed = lambda: (completed, completed)
    for _ in range(200):
        line(numbers)
        clock.now += 1
        completed += 1 if clock.now < 1100 else 3
    assert "3.0/s" in line(numbers)


@pytest.mark.parametrize("columns", [1, 5, 30, 79])
def test_it_fits(clock: Clock, columns: int) -> None:
    numbers = WorkerProgress(clock)
    numbers.look(Status(waiting=100, leased=10), held=4)
    assert len(line(numbers, columns)) <= columns


# -- failures


def test_failures_that_are_alike_are_counted(clock: Clock) -> None:
    told: list[str] = []
    failures = Failures(told.append, clock)
    for number in range(40):
        failures.add(f"t{number}", f"exit status 1: no tile {number}\nin detail")
    failures.add("other", "exit status 2")
    assert told == ["an attempt at t0 failed: exit status 1: no tile 0", "an attempt at other failed: exit status 2"]
    failures.flush()
    assert len(told) == 2, "not yet"
    clock.now += REPEAT_S
    failures.flush()
    assert told[2:] == ["39 more attempts failed: exit status 1: no tile 0"]
    failures.add("again", "exit status 2")
    assert told[3:] == ["an attempt at again failed: exit status 2"]


def test_many_kinds_of_failures_are_no_flood(clock: Clock) -> None:
    told: list[str] = []
    failures = Failures(told.append, clock)
    for number in range(1000):
        failures.add("t", f"reason {'x' * number}"[:150])
    assert len(told) == KINDS_MAX
    failures.flush(0)
    assert sum(int(text.split()[0].replace(",", "")) for text in told[KINDS_MAX:]) == 1000 - KINDS_MAX


def test_while_only_retries_are_left_the_next_one_is_told_and_no_time_left(clock: Clock) -> None:
    numbers = WorkerProgress(clock)
    numbers.look(Status(waiting=20, completed=80), held=0)
    line(numbers)
    clock.now += 10
    numbers.look(Status(delayed=2, completed=98), held=0)
    said = progress_line(numbers, 2, 120, "ascii", next_due_s=7)
    assert said.endswith("98 of 100 done, 2 failed attempts, 1.8/s, 2 wait for a retry, the next in 7 s")
    assert progress_line(numbers, 0, 100, "ascii", next_due_s=7).endswith("1.8/s, 2 delayed, the next in 7 s")
    numbers.look(Status(delayed=1, completed=99), held=0)
    assert progress_line(numbers, 2, 100, "ascii").endswith(", 1 waits for a retry")
