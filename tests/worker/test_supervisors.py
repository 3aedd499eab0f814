"""A process ends with all that it has started: whatever its descendants do, whichever process is killed."""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fsqueue import Queue, Worker
from fsqueue.clock import ManualClock
from fsqueue.worker import command_processes, spawning, supervision, supervisor
from fsqueue.worker.events import Mailbox
from tests.support import QueueFactory
from tests.waiting import PATIENCE_S, until
from tests.worker import tasks
from tests.worker.support import drained, in_background, python, shell_until, stopped, time_out, until_there

pytestmark = pytest.mark.once

NOTE = "import os, sys, time\ndef note(): os.write(os.open(sys.argv[1], 1025 | 64), b'%d\\n' % os.getpid())\n"
"""1025 | 64: O_WRONLY | O_APPEND | O_CREAT."""
DAEMON = f"{NOTE}if not os.fork():\n  os.setsid()\n  if not os.fork(): note(); time.sleep(9000)\n  os._exit(0)\n"
"""A process in a session of its own, whose parents are gone."""
HYDRA = NOTE + (
    "for _ in range(12):\n"
    "  if not os.fork():\n"
    "    note()\n"
    "    for _ in range(100_000):\n"  # some minutes, if nothing ends it
    "      os.setsid() if os.getpid() != os.getsid(0) else None\n"
    "      if os.fork(): os._exit(0)\n"
    "    os._exit(0)\n"
)
"""A dozen processes, each of which lives for as long as it takes to start the next one, in a session of its own."""


def quoted(code: str) -> str:
    return f"{sys.executable} -c '{code.replace(chr(39), chr(34))}'"


ESCAPES = {
    "in the group of the command": 'sh -c "echo \\$\\$ >>$0; exec sleep 9000" &',
    "in a group of its own": 'timeout 9000 sh -c "echo \\$\\$ >>$0; exec sleep 9000" &',
    "in a session of its own": 'setsid sh -c "echo \\$\\$ >>$0; trap : TERM HUP INT; while :; do sleep 600; done" &',
    "a daemon": f'{quoted(DAEMON)} "$0"',
}
"""What a script starts; each writes its number into the file `$0`."""


def numbers(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_any_alive(path: Path) -> bool:
    return any(map(is_alive, numbers(path)))


def children_of(pid: int) -> list[int]:
    found = list[int]()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):  # each thread has its own
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            found += map(int, path.read_text().split())
    return found


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Path]:
    """The file into which what a test starts writes its numbers. At the end they are killed."""
    path = tmp_path / "pids"
    yield path
    for pid in numbers(path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def script(escape: str, then: str) -> list[str]:
    return ["sh", "-c", f"{escape}\n{shell_until('[ -s $0 ]')}\n{then}"]


@pytest.fixture
def once(queue_factory: QueueFactory) -> Queue:
    queue = queue_factory(max_attempts=1, lease_s=600)
    queue.insert(1)
    return queue


# -- the worker ends a task


@pytest.mark.parametrize("escape", ESCAPES)
def test_what_a_failing_command_has_started_ends_before_the_failure_is_told(
    once: Queue, pids: Path, escape: str
) -> None:
    seen: list[bool] = []
    worker = Worker(
        once,
        command=[*script(ESCAPES[escape], "exit 3"), str(pids)],
        tell=lambda event: event.kind == "failed" and seen.append(is_any_alive(pids)),
    )
    assert worker.run() == drained(failed=1)
    assert (len(numbers(pids)), seen) == (1, [False])


@pytest.mark.parametrize("how", ["timeout", "stopped"])
@pytest.mark.parametrize("escape", ESCAPES)
def test_what_a_command_has_started_ends_with_it(once: Queue, pids: Path, escape: str, how: str) -> None:
    command = [*script(ESCAPES[escape], "echo $$ >>$0; exec sleep 9000"), str(pids)]
    worker = Worker(once, command=command, task_timeout_s=1000, grace_s=0)
    thread, reports = in_background(worker)
    until(lambda: len(numbers(pids)) == 2, "all that the command starts")
    time_out(worker) if how == "timeout" else worker.stop()
    thread.join(PATIENCE_S)
    assert (reports[0].failed, reports[0].released) == ((1, 0) if how == "timeout" else (0, 1))
    assert not is_any_alive(pids)


def test_what_a_command_has_started_ends_before_the_failure_is_told_if_it_exits_with_0_when_told_to_end(
    once: Queue, pids: Path, tmp_path: Path
) -> None:
    """Such an exit is no success: the task has timed out, and may be executed again at once."""
    told, seen = tmp_path / "told", list[bool]()
    begins = f"trap 'touch {told}; exit 0' TERM; echo $$ >>$0; while :; do sleep 600 & wait; done"
    worker = Worker(
        once,
        command=[*script(ESCAPES["a daemon"], begins), str(pids)],
        task_timeout_s=1000,
        tell=lambda event: event.kind == "failed" and seen.append(is_any_alive(pids)),
    )
    worker._loop._kill_s = 1000  # on a busy machine the command might be killed before it exits
    thread, reports = in_background(worker)
    until(lambda: len(numbers(pids)) == 2, "all that the command starts")
    time_out(worker)
    thread.join(PATIENCE_S)
    assert (reports, told.exists(), seen) == ([drained(failed=1)], True, [False])


def test_a_command_that_ignores_sigterm_is_killed_with_all_it_has_started(once: Queue, pids: Path) -> None:
    command = ["sh", "-c", f"trap '' TERM; {ESCAPES['a daemon']}; echo $$ >>$0; while :; do sleep 600; done", str(pids)]
    worker = Worker(once, command=command, task_timeout_s=1000, grace_s=0.1)
    thread, reports = in_background(worker)
    until(lambda: len(numbers(pids)) == 2, "all that the command starts")
    time_out(worker)
    thread.join(PATIENCE_S)
    assert (reports, is_any_alive(pids)) == ([drained(failed=1)], False)


def test_processes_that_start_others_while_they_are_killed_end(once: Queue, pids: Path, tmp_path: Path) -> None:
    command = ["sh", "-c", f"{quoted(HYDRA)} $0; {until_there(tmp_path / 'go')}; exit 1", str(pids)]
    worker = Worker(once, command=command)
    thread, reports = in_background(worker)
    until(lambda: len(numbers(pids)) == 12, "the processes")
    [server] = [pid for pid in children_of(os.getpid()) if is_fork_server(pid)]
    [one] = children_of(server)
    assert len(children_of(one)) > 1, "they are there when the command fails"
    (tmp_path / "go").touch()
    thread.join(PATIENCE_S)
    assert reports == [drained(failed=1)]
    assert not Path(f"/proc/{one}").exists(), "it has waited for all of them"


def test_a_signal_reaches_the_group_of_the_command_and_no_other(once: Queue, pids: Path, tmp_path: Path) -> None:
    """A launcher passes it on to what it has started, which would else get it twice."""
    told = tmp_path / "told"

    def waits(name: str) -> str:
        trap = f'trap \\"echo {name} >>{told}; exit\\" TERM'
        return f'sh -c "{trap}; echo \\$\\$ >>$0; sleep 600 & wait" &'

    begins = f"setsid {waits('other')}\n{waits('inner')}\ntrap '{until_there(told)}; exit 1' TERM; echo $$ >>$0; wait"
    worker = Worker(once, command=["sh", "-c", begins, str(pids)], task_timeout_s=1000, grace_s=1000)
    thread, reports = in_background(worker)
    until(lambda: len(numbers(pids)) == 3, "all that the command starts")
    time_out(worker)
    thread.join(PATIENCE_S)
    assert reports == [drained(failed=1)]
    assert (told.read_text(), is_any_alive(pids)) == ("inner\n", False)


def test_what_a_function_has_started_ends_if_its_process_exits_with_0_instead_of_an_answer(
    once: Queue, pids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task is not done, and may be executed again at once."""
    (tmp_path / "leaving.py").write_text(
        "import os, subprocess\n"
        "from tests.waiting import until\n"
        "def start(payload):\n"
        f"  subprocess.Popen(['sh', '-c', 'echo $$ >>{pids}; exec sleep 9000'], start_new_session=True)\n"
        f"  until(lambda: os.path.exists('{pids}') and os.path.getsize('{pids}'), 'the process')\n"
        "  os._exit(0)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[bool] = []
    worker = Worker(
        once, "leaving:start", tell=lambda event: event.kind == "failed" and seen.append(is_any_alive(pids))
    )
    assert worker.run() == drained(failed=1)
    assert (len(numbers(pids)), seen) == (1, [False])


# -- what succeeds


def test_what_a_command_that_succeeds_leaves_stays(queue: Queue, pids: Path) -> None:
    queue.insert_many(range(3))
    command = [*script(ESCAPES["a daemon"] + "\n" + ESCAPES["in the group of the command"], "exit 0"), str(pids)]
    assert Worker(queue, command=command).run() == drained(completed=3)
    until(lambda: len(numbers(pids)) == 6, "all that the commands start")
    assert all(map(is_alive, numbers(pids))), "also after the worker's end"


def test_a_command_that_leaves_nothing_leaves_its_supervisor_to_the_next(queue: Queue, tmp_path: Path) -> None:
    queue.insert_many(range(20))
    command = ["sh", "-c", f'echo $PPID >>"{tmp_path}/parents"']
    assert Worker(queue, command=command, processes=2).run() == drained(completed=20)
    assert 1 <= len(set(numbers(tmp_path / "parents"))) <= 2


# -- the worker is killed


CODE = (
    "import sys; from fsqueue import Queue, Worker; Worker(Queue(sys.argv[1]), command=sys.argv[2:], prefetch=1).run()"
)
FORKING = (
    "import os, sys, threading, time; from fsqueue import Queue, Worker\n"
    "def fork():\n"
    "  open(sys.argv[-1] + '.begun').read()\n"
    "  if not os.fork(): open(sys.argv[-1], 'a').write(f'{os.getpid()}\\n'); time.sleep(9000)\n"
    "threading.Thread(target=fork, daemon=True).start()\n"
    "Worker(Queue(sys.argv[1]), command=sys.argv[2:], prefetch=1).run()\n"
)
"""A worker whose process forks once its command has begun. The child lives on, with copies of all that is open."""


@contextmanager
def worker_process(
    queue: Queue, command: list[str], code: str = CODE, options: Sequence[str] = (), **more: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a worker, by an interpreter with these options, and end it."""
    with subprocess.Popen([sys.executable, *options, "-c", code, str(queue.path), *command], **more) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("escape", ESCAPES)
def test_with_a_killed_worker_its_command_ends_and_all_it_has_started(once: Queue, pids: Path, escape: str) -> None:
    with worker_process(once, [*script(ESCAPES[escape], "echo $$ >>$0; exec sleep 9000"), str(pids)]) as process:
        until(lambda: len(numbers(pids)) == 2, "all that the command starts")
        assert all(map(is_alive, numbers(pids)))
        process.kill()
    until(lambda: not is_any_alive(pids), "the end of all of it")


def test_of_a_worker_killed_in_the_grace_nothing_is_left(once: Queue, pids: Path) -> None:
    begins = f"trap 'echo $$ >>$0' TERM; {ESCAPES['a daemon']}; echo $$ >>$0; while :; do sleep 600 & wait; done"
    code = CODE.replace("prefetch=1", "grace_s=0.5")
    with worker_process(once, ["sh", "-c", begins, str(pids)], code) as process:
        until(lambda: len(numbers(pids)) == 2, "all that the command starts")
        process.send_signal(signal.SIGTERM)
        until(lambda: len(numbers(pids)) == 3, "the signal")
        process.kill()
    until(lambda: not is_any_alive(pids), "the end of all of it")


def test_of_a_killed_worker_what_completed_tasks_have_left_stays(queue: Queue, pids: Path, tmp_path: Path) -> None:
    queue.insert_many(range(2))
    left, then = tmp_path / "left", f'[ -e {pids} ] && exec sleep 9000; cp "$0" {pids}; mv "$0" {tmp_path}/left; exit 0'
    begins = f"{ESCAPES['a daemon']}\n{shell_until('[ -s $0 ]')}\n{then}"
    try:
        with worker_process(queue, ["sh", "-c", begins, str(tmp_path / "first")]) as process:
            until(lambda: queue.status().completed == 1 and numbers(tmp_path / "first"), "the second command")
            process.kill()
        until(lambda: not is_any_alive(tmp_path / "first"), "the end of what the second has started")
        assert all(map(is_alive, numbers(left)))
        assert len(numbers(left)) == 1
    finally:
        for pid in [*numbers(left), *numbers(tmp_path / "first")]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_what_the_workers_process_has_forked_keeps_no_command_going(once: Queue, pids: Path) -> None:
    """Its copy of a socket must not hide the death of the worker."""
    os.mkfifo(f"{pids}.begun")
    command = ["sh", "-c", "echo $$ >$0; echo >$0.begun; exec sleep 9000", str(pids)]
    with worker_process(once, command, FORKING) as process:
        until(lambda: len(numbers(pids)) == 2, "the command and the forked process")
        process.kill()
    command, forked = numbers(pids)
    until(lambda: not is_alive(command), "the end of the command")
    assert is_alive(forked)


def test_with_a_killed_worker_a_function_ends_and_all_it_has_started(once: Queue, pids: Path, tmp_path: Path) -> None:
    scripts = [ESCAPES["a daemon"], "echo $$ >>$0; exec sleep 9000"]
    (tmp_path / "daemons.py").write_text(
        "import subprocess\n"
        "def start(payload):\n"
        f"  for script in {scripts!r}: subprocess.run(['sh', '-c', script, {str(pids)!r}])\n"
    )
    code = "import sys; from fsqueue import Queue, Worker; sys.path.insert(0, sys.argv[2]); "
    code += "Worker(Queue(sys.argv[1]), 'daemons:start').run()"
    with worker_process(once, [str(tmp_path)], code) as process:
        until(lambda: len(numbers(pids)) == 2, "all that the function starts")
        process.kill()
    until(lambda: not is_any_alive(pids), "the end of all of it")


# -- a supervisor is killed, or the fork server


def is_fork_server(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return supervisor.__file__ in Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return False


def killed_supervisor(process: subprocess.Popen[bytes]) -> None:
    [server] = children_of(process.pid)
    [one] = children_of(server)
    os.kill(one, signal.SIGKILL)


def killed_fork_server(process: subprocess.Popen[bytes]) -> None:
    [server] = children_of(process.pid)
    os.kill(server, signal.SIGKILL)


def test_what_a_killed_supervisor_was_at_ends_and_fails_and_the_worker_goes_on(
    queue_factory: QueueFactory, pids: Path
) -> None:
    queue = queue_factory(max_attempts=1)
    queue.insert_many(["sleep 9000", "exit 0"])
    command = ["sh", "-c", f'{ESCAPES["a daemon"]}\necho $$ >>$0; eval "$1"', str(pids), "{}"]
    with worker_process(queue, command) as process:
        until(lambda: len(numbers(pids)) == 2, "all that the first command starts")
        first = numbers(pids)
        killed_supervisor(process)
        assert process.wait(PATIENCE_S) == 0
    assert not any(map(is_alive, first))
    [letter] = queue.dead()
    assert letter.reason.startswith("its exit status was lost: the process that supervises it was killed")
    assert queue.status().completed == 1


def test_a_supervisor_that_was_killed_while_it_had_nothing_to_do_is_replaced() -> None:
    first = Run("true")
    assert first.until_reaped().status == 0
    os.kill(first.process.supervisor, signal.SIGKILL)
    until(lambda: not is_alive(first.process.supervisor), "its end")
    second = Run("sh", "-c", "exit 3", after=first)
    assert second.until_ended().status == 3
    assert second.process.supervisor != first.process.supervisor


def test_without_its_fork_server_a_worker_goes_on_with_another(queue: Queue, pids: Path, tmp_path: Path) -> None:
    queue.insert_many(range(3))
    command = ["sh", "-c", f"echo $$ >>$0; {until_there(tmp_path / 'go')}; {ESCAPES['a daemon']}", str(pids)]
    with worker_process(queue, command) as process:
        until(lambda: numbers(pids), "the first command")
        killed_fork_server(process)
        until(lambda: not children_of(process.pid), "its end")
        (tmp_path / "go").touch()
        assert process.wait(PATIENCE_S) == 0
    assert queue.status().completed == 3
    until(lambda: len(numbers(pids)) == 6, "all that the commands start")
    assert sum(map(is_alive, numbers(pids))) == 3, "what they have left stays"


def test_with_a_worker_killed_after_its_fork_server_the_command_ends(once: Queue, pids: Path) -> None:
    with worker_process(once, [*script(ESCAPES["a daemon"], "echo $$ >>$0; exec sleep 9000"), str(pids)]) as process:
        until(lambda: len(numbers(pids)) == 2, "all that the command starts")
        killed_fork_server(process)
        process.kill()
    until(lambda: not is_any_alive(pids), "the end of all of it")


def test_of_a_worker_and_a_supervisor_that_are_killed_at_once_nothing_is_left(once: Queue, pids: Path) -> None:
    with worker_process(once, [*script(ESCAPES["a daemon"], "echo $$ >>$0; exec sleep 9000"), str(pids)]) as process:
        until(lambda: len(numbers(pids)) == 2, "all that the command starts")
        process.send_signal(signal.SIGSTOP)  # it must not hear of the other death
        killed_supervisor(process)
        process.kill()
    until(lambda: not is_any_alive(pids), "the end of all of it")


OWN = CODE.replace("prefetch=1", "prefetch=1, stop_after_failures=9").replace(
    "Worker(", "supervision.is_own_process = True; Worker(", 1
)
OWN = "from fsqueue.worker import supervision; " + OWN
"""As the command line's worker: the process is its own."""


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("first", ["fork server", "supervisor"])
def test_of_a_fork_server_and_a_supervisor_that_are_killed_both_the_reason_is_true(
    once: Queue, pids: Path, first: str, is_own: bool
) -> None:
    begins = [*script(ESCAPES["a daemon"], "echo $$ >>$0; exec sleep 9000"), str(pids)]
    with worker_process(once, begins, OWN if is_own else CODE) as process:
        until(lambda: len(numbers(pids)) == 2, "all that the command starts")
        [server] = children_of(process.pid)
        [one] = children_of(server)
        process.send_signal(signal.SIGSTOP)  # it hears of both at once
        for pid in (server, one) if first == "fork server" else (one, server):
            os.kill(pid, signal.SIGKILL)
        process.send_signal(signal.SIGCONT)
        assert process.wait(PATIENCE_S) == 0
    [letter] = once.dead()
    if is_own or not is_any_alive(pids):  # the fork server may have ended them before it was killed
        assert not is_any_alive(pids)
    else:
        assert supervision.ALONE in letter.reason
    if is_own:
        assert supervision.ENDED in letter.reason


def test_what_completed_tasks_have_left_is_no_orphan_of_a_killed_supervisor(queue: Queue, pids: Path) -> None:
    """Whether the supervisor was retired with a fork server or without. In another order the last kills the worker."""
    queue.insert_many(["leave", "kill-server", "leave", "kill-both"], batch_tasks=4)
    both = 'kill -9 $(cut -d " " -f 4 /proc/$PPID/stat)'
    begins = (
        f"case $1 in *leave*) {ESCAPES['a daemon']};; *server*) {both};; *) {both}; kill -9 $PPID; sleep 9000;; esac"
    )
    code = OWN.replace("prefetch=1", "prefetch=1, max_attempts=1")
    with worker_process(queue, ["sh", "-c", begins, str(pids), "{}"], code) as process:
        assert process.wait(PATIENCE_S) == 0
    assert (queue.status().completed, queue.status().dead) == (3, 1)
    until(lambda: len(numbers(pids)) == 2, "what the commands have left")
    assert all(map(is_alive, numbers(pids)))


def test_a_supervisor_and_the_fork_server_that_are_killed_take_no_other_command_along(
    queue: Queue, pids: Path, tmp_path: Path
) -> None:
    """The worker ends what the one has left, and not the other supervisors, which come to it as well."""
    queue.insert_many(["stay", "kill"])
    both = 'kill -9 $(cut -d " " -f 4 /proc/$PPID/stat); kill -9 $PPID'
    stays, kills = f"echo $$ >>$0; {until_there(tmp_path / 'go')}", f"{shell_until('[ -s $0 ]')}; {both}; sleep 9000"
    begins = f"case $1 in *stay*) {stays};; *) {kills};; esac"
    code = OWN.replace("prefetch=1", "prefetch=1, processes=2, max_attempts=1")
    with worker_process(queue, ["sh", "-c", begins, str(pids), "{}"], code) as process:
        until(lambda: queue.status().dead, "the end of the one whose supervisor was killed")
        (tmp_path / "go").touch()
        assert process.wait(PATIENCE_S) == 0
    assert (queue.status().completed, queue.status().dead) == (1, 1)
    [letter] = queue.dead()
    assert supervision.ENDED in letter.reason


ADOPTING = """
import os, subprocess
from fsqueue.worker import supervision, supervisor
from fsqueue.worker.events import Mailbox
supervision.is_own_process = True
for is_alone in (False, True):
    others = None if is_alone else subprocess.Popen(["sleep", "9000"], start_new_session=True)
    supervisors = supervision.Supervisors(Mailbox(), print)
    supervisors._running_server()
    print(supervisors._adopts)
    supervisors.close()
    if others is not None:
        others.kill()
    while supervisor.own_children():
        os.waitpid(-1, 0)
"""


def test_a_process_that_has_children_already_ends_no_orphans() -> None:
    """What has executed the worker's program may have started some before: they are no task's."""
    run = subprocess.run(
        [sys.executable, "-c", ADOPTING], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (run.stdout.split(), run.stderr) == (["False", "True"], "")


def test_the_fork_server_reaps_for_killed_supervisors_also_after_it_has_let_one_go(pids: Path) -> None:
    first = Run("sh", "-c", "sleep 9000 & echo $! >>$0", str(pids))
    assert first.until_reaped().status == 0
    second = Run("sh", "-c", "echo $$ >>$0; exec sleep 9000", str(pids), after=first)
    until(lambda: len(numbers(pids)) == 2, "the second command")
    left, at_work = numbers(pids)
    os.kill(second.process.supervisor, signal.SIGKILL)
    process = second.until_ended()
    assert spawning.describe(process).endswith(supervision.ENDED)
    assert (is_alive(left), is_alive(at_work)) == (True, False)


def test_a_supervisor_killed_before_it_could_answer_costs_an_attempt_with_the_reason(
    once: Queue, pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command may have been begun: to say that it could not be begun would be wrong."""
    real = supervisor.receive

    def receive(end: socket.socket) -> tuple[bytes, bytes, list[int]]:
        kind, body, fds = real(end)
        if kind != supervisor.STARTED:
            return kind, body, fds
        until(lambda: numbers(pids), "the command")
        [server] = [pid for pid in children_of(os.getpid()) if is_fork_server(pid)]
        [one] = children_of(server)
        os.kill(one, signal.SIGKILL)
        return real(end)  # the end of the messages, as if it had been killed before it sent that one

    monkeypatch.setattr(supervisor, "receive", receive)
    assert Worker(once, command=["sh", "-c", "echo $$ >>$0; exec sleep 9000", str(pids)]).run() == drained(failed=1)
    [letter] = once.dead()
    assert letter.reason.startswith("its exit status was lost: the process that supervises it was killed, and what")
    assert (len(numbers(pids)), is_any_alive(pids)) == (1, False)


def test_a_command_that_ends_while_another_one_is_begun_gives_back_its_own_slot(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does of which the supervisor and the fork server were killed: the next begin finds that out."""
    real, begun = supervision.Supervisors.begin, list[spawning.Process]()

    def begin(supervisors: supervision.Supervisors, process: spawning.Process, *rest: Any) -> Any:
        begun.append(process)
        while len(begun) == 2 and not begun[0]._has_exited:
            supervisors.wait(begun[0]._handle, 60)
        return real(supervisors, process, *rest)

    monkeypatch.setattr(supervision.Supervisors, "begin", begin)
    queue.insert_many(range(3))
    slots = tmp_path / "slots"
    both = shell_until(f"[ $(wc -l <{slots}) = 2 ]")
    script = f"mkdir {tmp_path}/first && exit; echo $FSQUEUE_SLOT >>{slots}; {both}"
    assert Worker(queue, command=["sh", "-c", script], processes=2).run() == drained(completed=3)
    assert sorted(numbers(slots)) == [0, 1]


# -- a supervisor is stopped, or the fork server


@pytest.mark.parametrize("which", ["supervisor", "fork server"])
def test_with_a_killed_worker_all_ends_although_one_of_them_was_stopped(once: Queue, pids: Path, which: str) -> None:
    with worker_process(once, [*script(ESCAPES["a daemon"], "echo $$ >>$0; exec sleep 9000"), str(pids)]) as process:
        until(lambda: len(numbers(pids)) == 2, "all that the command starts")
        [server] = children_of(process.pid)
        [one] = children_of(server)
        stopped(one if which == "supervisor" else server)
        process.kill()
    until(lambda: not is_any_alive(pids), "the end of all of it")
    until(lambda: not (is_alive(server) or is_alive(one)), "the end of the fork server and the supervisor")


@pytest.mark.parametrize("how", ["timeout", "stopped"])
def test_a_stopped_supervisor_goes_on_when_its_command_must_end(once: Queue, pids: Path, how: str) -> None:
    worker = Worker(
        once, command=["sh", "-c", "echo $$ >>$0; exec sleep 9000", str(pids)], task_timeout_s=1000, grace_s=0
    )
    thread, reports = in_background(worker)
    until(lambda: numbers(pids), "the command")
    [server] = [pid for pid in children_of(os.getpid()) if is_fork_server(pid)]
    [one] = children_of(server)
    stopped(server)
    stopped(one)
    time_out(worker) if how == "timeout" else worker.stop()
    thread.join(PATIENCE_S)
    assert (reports[0].failed, reports[0].released) == ((1, 0) if how == "timeout" else (0, 1))
    assert not is_any_alive(pids)


def test_a_stopped_fork_server_goes_on_when_it_is_needed(queue: Queue, pids: Path, tmp_path: Path) -> None:
    queue.insert_many(range(3))
    command = ["sh", "-c", f"echo $$ >>$0; {until_there(tmp_path / 'go')}; {ESCAPES['a daemon']}", str(pids)]
    with worker_process(queue, command) as process:
        until(lambda: numbers(pids), "the first command")
        stopped(children_of(process.pid)[0])
        (tmp_path / "go").touch()
        assert process.wait(PATIENCE_S) == 0
    assert queue.status().completed == 3
    until(lambda: len(numbers(pids)) == 6, "all that the commands start")
    assert sum(map(is_alive, numbers(pids))) == 3, "what they have left stays"


def test_a_supervisor_that_does_not_answer_is_killed_with_what_it_was_at(pids: Path) -> None:
    """As if it were stopped again and again."""
    run = Run("sh", "-c", "echo $$ >>$0; exec sleep 9000", str(pids))
    until(lambda: numbers(pids), "the command")
    assert run.supervisors.due_at == math.inf
    stopped(run.process.supervisor)
    run.supervisors._unanswered[run.process._handle] = 0.0
    run.supervisors.keep_time(1.0)
    process = run.until_ended()
    assert (process.status, run.said) == (None, [supervision.UNANSWERED])
    assert spawning.describe(process).endswith(supervision.ENDED)
    assert not is_any_alive(pids)


@pytest.mark.parametrize("how", ["command", "function"])
def test_a_worker_gives_up_a_supervisor_that_does_not_answer(
    once: Queue, pids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(supervision, "KILL_ANSWER_S", 0.0)
    path, told = tmp_path / "began", list[str]()
    once.purge()
    once.insert({"do": "touch", "path": str(path), "lasts": True})
    work: dict[str, Any] = {"command": ["sh", "-c", "echo $$ >$0; exec sleep 9000", str(path)]}
    worker = Worker(
        once, tasks.obey if how == "function" else None, **(work if how == "command" else {}), task_timeout_s=1000,
        grace_s=0, tell=lambda event: told.append(event.text),
    )  # fmt: skip
    thread, reports = in_background(worker)
    until(lambda: path.exists() and path.read_text() and worker._loop._executor.at_work(), "the begin of the task")
    [server] = [pid for pid in children_of(os.getpid()) if is_fork_server(pid)]
    [one] = children_of(server)
    worker._loop._executor.supervisors._resume = lambda: None  # type: ignore[attr-defined]  # as if stopped again
    stopped(one)
    time_out(worker)
    thread.join(PATIENCE_S)
    assert reports == [drained(failed=1)]
    assert supervision.UNANSWERED in told
    assert not is_alive(int(path.read_text()))


@pytest.mark.parametrize(("code", "completed", "reason"), [(0, 1, []), (3, 0, ["exit status 3"])])
def test_a_command_that_has_ended_when_its_time_is_over_counts_for_what_it_has_done(
    once: Queue, pids: Path, tmp_path: Path, code: int, completed: int, reason: list[str]
) -> None:
    """Its supervisor stands still: the worker has not heard of the end, and what it asks for comes behind that."""
    command = ["sh", "-c", f"echo $$ >>$0; {until_there(tmp_path / 'go')}; exit {code}", str(pids)]
    worker = Worker(once, command=command, task_timeout_s=1000)
    thread, reports = in_background(worker)
    until(lambda: numbers(pids) and worker._loop._executor.at_work(), "the command, and the word of its begin")
    [server] = [pid for pid in children_of(os.getpid()) if is_fork_server(pid)]
    [one] = children_of(server)
    stopped(one)
    (tmp_path / "go").touch()
    until(lambda: not is_any_alive(pids), "the end of the command")
    time_out(worker)
    thread.join(PATIENCE_S)
    assert reports == [drained(completed=completed, failed=1 - completed)]
    assert [letter.reason for letter in once.dead()] == reason


class Supervised:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def exited(self, flags: int, status: int, usage: Any) -> None:
        self.told.append(("exited", flags, status))

    def held(self, is_refused: bool) -> None:
        self.told.append(("held", is_refused))

    def lost(self, rest: str) -> None:
        self.told.append(("lost", rest))


class Spoken:
    """A supervisor and a fork server that say what a test has them say."""

    def __init__(self) -> None:
        self.said, self.process, self.clock, self.mailbox = list[str](), Supervised(), ManualClock(), Mailbox()
        self.supervisors = supervision.Supervisors(self.mailbox, self.said.append)
        self.supervisors._clock = self.clock
        (ours, self._one), (end, self._server) = socket.socketpair(), socket.socketpair()
        self.handle = supervision.Handle(ours, 1 << 30)
        self.handle.process = self.process
        self.supervisors._all.add(self.handle)
        self.supervisors._server, self.supervisors._server_pid = end, 1 << 30
        for fd in (ours.fileno(), end.fileno()):
            self.mailbox.watch(fd, lambda: None)

    def says(self, kind: bytes, body: bytes) -> None:
        supervisor.send(self._one, kind, body)
        self.supervisors._heard(self.handle)

    def exits(self, flags: int, status: int) -> None:
        self.says(supervisor.EXITED, supervisor.EXIT.pack(flags, status, 0.0, 0.0, *[0] * 14))

    def is_killed(self) -> None:
        self._one.close()
        self.supervisors._heard(self.handle)

    def server_says(self, kind: bytes, body: bytes) -> None:
        supervisor.send(self._server, kind, body)
        self.supervisors._heard_server()

    def ask(self, number: int) -> None:
        self.supervisors.ask(self.handle, supervisor.SIGNAL, number)

    def close(self) -> None:
        self.supervisors.close()
        self.mailbox.close()
        self._one.close()
        self._server.close()


@pytest.fixture
def it() -> Iterator[Spoken]:
    spoken = Spoken()
    yield spoken
    spoken.close()


def test_how_sigkill_went_is_waited_for_since_it_was_asked_for_first_and_until_something_is_heard(it: Spoken) -> None:
    it.ask(signal.SIGTERM)
    assert it.supervisors.due_at == math.inf, "of another signal nothing is to be heard"
    it.ask(signal.SIGKILL)
    due_at = it.clock.monotonic() + supervision.KILL_ANSWER_S
    it.clock.advance(1)
    it.ask(signal.SIGKILL)
    assert it.supervisors.due_at == due_at
    it.says(supervisor.HELD, supervisor.NUMBER.pack(1))
    assert it.supervisors.due_at == math.inf, "it has answered: the kernel, or another user, holds the process"
    it.ask(signal.SIGKILL)
    it.exits(supervisor.TOLD, -9)
    assert it.supervisors.due_at == math.inf
    assert it.process.told == [("held", True), ("exited", supervisor.TOLD, -9)]
    it.supervisors.keep_time(it.clock.monotonic() + 1000)
    assert it.said == []


@pytest.mark.parametrize(
    ("flags", "status", "is_said"),
    [
        (supervisor.LEFT, 0, False),
        (0, 3, False),
        (supervisor.TOLD, 0, False),
        (supervisor.LEFT, 3, True),
        (supervisor.LEFT, -9, True),
        (supervisor.LEFT | supervisor.TOLD, 0, True),
    ],
)
def test_that_something_could_not_be_ended_is_said_once_and_of_no_success(
    it: Spoken, flags: int, status: int, is_said: bool
) -> None:
    for _ in range(2):
        it.handle.process = it.process
        it.exits(flags, status)
    assert it.said == [supervision.NOT_ENDED] * is_said
    assert it.process.told == [("exited", flags, status)] * 2


@pytest.mark.parametrize("left", [0, 2])
def test_what_a_killed_supervisor_was_at_is_told_when_the_fork_server_says_what_is_left(it: Spoken, left: int) -> None:
    it.is_killed()
    assert it.process.told == []
    it.server_says(supervisor.LOST, supervisor.NUMBERS.pack(it.handle.pid, left))
    assert it.process.told == [("lost", supervision.NOT_ALL_ENDED if left else supervision.ENDED)]
    assert it.said == [supervision.NOT_ENDED] * bool(left)


def test_an_answer_is_waited_for_until_the_user_is_in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "ANSWER_S", 0.001)
    resumed: list[int] = []
    supervisors = supervision.Supervisors(Mailbox(), print, lambda: len(resumed) > 2)

    def resume() -> None:
        resumed.append(len(resumed))
        assert len(resumed) < 9, "it waits on"

    monkeypatch.setattr(supervisors, "_resume", resume)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert supervisors._answer(ours) == (b"", b"")
        assert resumed == [0, 1, 2], "what is stopped is told to go on, again and again"
        supervisor.send(theirs, supervisor.HELLO, b"1234")
        assert supervisors._answer(ours) == (supervisor.HELLO, b"1234")


SERVING = """
import os, socket, sys, time
sys.path.insert(0, sys.argv[1])
import supervisor
supervisor.KILLED_S, supervisor.LOOK_MS = 0.3, (10, 100)
looks, real = [], supervisor.Reaper.has_children
supervisor.Reaper.has_children = lambda reaper: looks.append(0) or real(reaper)
ours, theirs = socket.socketpair()
server = supervisor.ForkServer(theirs, -1)
number = os.fork()
if not number:
    ours.close()
    time.sleep(9000)
server.spared.add(number)
ours.close()
server.serve()
print(len(looks) < 50, server.spared)
"""


def test_after_the_workers_death_the_fork_server_sleeps_and_kills_a_supervisor_that_does_not_end() -> None:
    run = subprocess.run(
        [sys.executable, "-c", SERVING, str(Path(supervisor.__file__).parent)],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (run.stdout.strip(), run.stderr) == ("True set()", "")


def test_a_fork_server_that_cannot_run_is_said_and_the_task_put_back(
    once: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(Exception, match=r"by a process of Python's own.*/none"):
        Worker(once, command=["true"]).run()
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(Exception, match="The process that starts commands and functions has failed with exit status 1"):
        Worker(once, command=["true"]).run()
    assert (once.status().waiting, once.peek(1)[0].attempt) == (1, 0)


# -- what a command gets


STATUS = (
    "import json; print(json.dumps([line for line in open('/proc/self/status') if line[:6] in ('SigBlk', 'SigIgn')]))"
)


def test_a_command_has_the_signals_blocked_and_ignored_that_its_worker_has(once: Queue, tmp_path: Path) -> None:
    code = (
        "import os, signal, subprocess, sys; from fsqueue import Queue, Worker\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, signal.SIGUSR2])\n"
        "command = ['sh', '-c', 'exec \"$@\" >plain', 'sh', *sys.argv[2:]]\n"
        "spawn = dict(setsid=True, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ])\n"  # glibc's makes others ignored, too
        "os.waitpid(os.posix_spawnp('sh', command, os.environ, **spawn), 0)\n"
        "Worker(Queue(sys.argv[1]), command=['sh', '-c', 'exec \"$@\" >by-worker', 'sh', *sys.argv[2:]]).run()\n"
    )
    command = [sys.executable, "-c", code, str(once.path), *python(STATUS)]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=PATIENCE_S)
    plain, mine = (json.loads((tmp_path / name).read_text()) for name in ("plain", "by-worker"))
    assert plain == mine
    assert int(plain[0].split()[1], 16) == 1 << (signal.SIGCHLD - 1) | 1 << (signal.SIGUSR2 - 1)


class Run:
    """A process as the loop has it."""

    def __init__(self, *argv: str, environment: dict[str, str] | None = None, after: Run | None = None) -> None:
        """`after`: one that has ended, under the same fork server."""
        self.has_ended = False
        if after is None:
            self.mailbox, self.said = Mailbox(), list[str]()
            self.supervisors = supervision.Supervisors(self.mailbox, self.said.append)
        else:
            self.mailbox, self.said, self.supervisors = after.mailbox, after.said, after.supervisors
        null = os.open(os.devnull, os.O_RDWR)
        given = {os.fsencode(name): os.fsencode(value) for name, value in (environment or os.environ).items()}
        self.process = spawning.Process(self.supervisors, argv, given, [null] * 3, self.ended)
        os.close(null)

    def ended(self) -> None:
        self.has_ended = True

    def until_reaped(self) -> spawning.Process:
        while not self.has_ended:
            self.mailbox.wait(PATIENCE_S)
        self.process.reap()
        return self.process

    def until_ended(self) -> spawning.Process:
        self.until_reaped()
        self.supervisors.close()
        self.mailbox.close()
        return self.process


def test_what_a_process_has_used_is_known_with_its_exit() -> None:
    process = Run(*python("b = bytearray(50_000_000); sum(range(1_000_000))")).until_ended()
    assert process.status == 0
    assert process.used is not None
    assert 48_000 < process.used.peak_kib < 200_000, "its own, and none of this process"
    assert process.used.cpu_ms > 0


def test_the_environment_is_exactly_what_was_asked_for(tmp_path: Path) -> None:
    asked = {"PATH": os.environ["PATH"], "EMPTY": "", "LINES": "a\nb=c", "BYTES": os.fsdecode(b"\xff")}
    assert Run("sh", "-c", f"env -0 >{tmp_path}/env", environment=asked).until_ended().status == 0
    found = dict(item.split(b"=", 1) for item in (tmp_path / "env").read_bytes().split(b"\0") if item)
    assert {name: found.get(name) for name in map(os.fsencode, asked)} == {
        os.fsencode(name): os.fsencode(value) for name, value in asked.items()
    }
    assert found.keys() - set(map(os.fsencode, asked)) <= {b"PWD", b"_", b"SHLVL"}, "what the shell sets"


@pytest.mark.parametrize("length", [10, 100_000])
def test_a_message_arrives_whole(length: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull) as file:
        command = [b"x" * length, b"", b"\xff"]
        supervisor.send(
            ours, supervisor.START, supervisor.encode_command(command, {b"A": b"="}, [b"HOME"]), (file.fileno(),)
        )
        kind, body, fds = supervisor.receive(theirs)
        assert (kind, len(fds)) == (supervisor.START, 1)
        assert not os.get_inheritable(fds[0])
        os.close(fds[0])
        argv, environment = supervisor.decode_command(body)
        assert argv == command
        assert environment[b"A"] == b"="
        assert b"HOME" not in environment
        ours.close()
        assert supervisor.receive(theirs)[0] == b""


def test_of_descriptors_that_do_not_all_arrive_none_is_kept_and_no_command_begun() -> None:
    """It would have standard input and no output."""
    ours, theirs = socket.socketpair()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = supervisor.encode_command([b"true"], {}, [])
    with ours, theirs, open(os.devnull) as file:
        supervisor.send(ours, supervisor.START, command, (file.fileno(),) * 3)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))
        try:
            assert supervisor.receive(theirs) == (supervisor.START, command, [])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        again = os.dup(0)
        os.close(again)
        assert again == free, "the one that came is closed"
        its: Any = SimpleNamespace(end=theirs)
        supervisor.Supervisor._start(its, command, [])
        assert supervisor.receive(ours) == (supervisor.REFUSED, supervisor.NUMBER.pack(errno.EMFILE), [])


# -- what cannot be ended, or seen


REAPING = """
import builtins, os, socket, sys, time
sys.path.insert(0, sys.argv[1])
import supervisor
ours, theirs = socket.socketpair()
reaper = supervisor.Reaper(theirs, -1)
if not os.fork():
    if not os.fork(): os.setsid(); time.sleep(9000)
    time.sleep(9000)
real = os.kill, os.killpg, open, supervisor.listed_children
def refuse(*_): raise PermissionError
def no_list(path, *rest):
    if "/task/" in path: raise FileNotFoundError(path)
    return real[2](path, *rest)
"""


@pytest.mark.parametrize(
    ("then", "answer"),
    [
        ("print(reaper.end_children(None))", "0"),
        ("builtins.open = no_list; print(reaper.end_children(None))", "0"),
        ("os.kill = os.killpg = refuse; print(reaper.end_children(None))", "1"),
        ("os.kill = os.killpg = lambda *_: None; print(reaper.end_children(0.05))", "1"),
        ("supervisor.listed_children = lambda: [1, 2**40, os.getppid()]; print(reaper.end_children(0.05))", "1"),
    ],
    ids=["all", "without a list of children", "another user's", "held by the kernel", "another namespace's numbers"],
)
def test_ending_children_ends(then: str, answer: str) -> None:
    """The last lists numbers that are no children: none of them gets a signal, or this process would end."""
    where = str(Path(supervisor.__file__).parent)
    finish = "\nos.kill, os.killpg, builtins.open, supervisor.listed_children = real\nreaper.end_children()"
    run = subprocess.run(
        [sys.executable, "-u", "-c", REAPING + then + finish, where],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False, start_new_session=True,
    )  # fmt: skip
    assert (run.stdout.strip(), run.stderr) == (answer, "")


HOLDING = """
import os, signal, sys
sys.path.insert(0, {where!r})
import supervisor
supervisor.KILLED_S, real = 0.05, os.kill
def refuse(*_): {refuse}
os.killpg = refuse
os.kill = lambda pid, number: real(pid, number) if number == signal.SIGCONT else refuse()
supervisor.main()
"""


@pytest.mark.parametrize(
    ("refuse", "said"),
    [("raise PermissionError", "it belongs to another user"), ("pass", "the kernel holds it")],
    ids=["another user's", "held by the kernel"],
)
def test_what_sigkill_does_not_end_is_said_and_that_it_goes_on(
    once: Queue, pids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuse: str, said: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(HOLDING.format(where=str(Path(supervisor.__file__).parent), refuse=refuse))
    monkeypatch.setattr(supervisor, "__file__", str(program))
    monkeypatch.setattr(command_processes, "KILLED_S", 0.05)
    told: list[str] = []
    worker = Worker(
        once, command=["sh", "-c", "echo $$ >>$0; exec sleep 9000", str(pids)], task_timeout_s=1000, grace_s=0,
        tell=lambda event: told.append(event.text),
    )  # fmt: skip
    thread, reports = in_background(worker)
    until(lambda: numbers(pids), "the command")
    [pid] = numbers(pids)
    time_out(worker)
    until(lambda: any(f"Process {pid}, which executes a task, cannot be ended: {said}" in text for text in told), said)
    for _ in range(3):
        worker.stop()
    thread.join(PATIENCE_S)
    assert (reports[0].ended, reports[0].unsettled) == ("signal", 1)
    assert any(f"Process {pid} could not be ended, and may go on" in text for text in told)
    assert is_alive(pid)


HELD_FOR_A_WHILE = """
import os, signal, sys
sys.path.insert(0, {where!r})
import supervisor
supervisor.KILLED_S, kill, killpg, server = 0.05, os.kill, os.killpg, os.getpid()
is_held = lambda number: number == signal.SIGKILL and os.path.exists({held!r}) and os.getpid() != server
os.kill = lambda pid, number: None if is_held(number) else kill(pid, number)
os.killpg = lambda group, number: None if is_held(number) else killpg(group, number)
supervisor.main()
"""


LEAVING = """sh -c 'trap "" TERM; echo $$ >>$0; exec sleep 9000' $0 & until [ -s $0 ]; do :; done;"""


@pytest.mark.parametrize(
    ("script", "is_told", "status"),
    [(f"{LEAVING} exit 3", False, 3), (f'trap "exit 0" TERM; {LEAVING} wait', True, 0)],
    ids=["that has failed", "that was told to end"],
)
def test_what_the_kernel_holds_of_a_command_is_ended_when_it_lets_go(
    pids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, is_told: bool, status: int
) -> None:
    """The worker waits for it no longer, and goes on with other tasks: the supervisor goes on with this one."""
    program, held = tmp_path / "program.py", tmp_path / "held"
    held.touch()
    program.write_text(HELD_FOR_A_WHILE.format(where=str(Path(supervisor.__file__).parent), held=str(held)))
    monkeypatch.setattr(supervisor, "__file__", str(program))
    run = Run("sh", "-c", script, str(pids))
    if is_told:
        until(lambda: numbers(pids), "the command")
        run.process.kill(signal.SIGTERM)
    assert run.until_reaped().status == status
    assert (run.said, is_any_alive(pids)) == ([supervision.NOT_ENDED], True)
    held.unlink()
    until(lambda: not is_any_alive(pids), "the end of what the command has started")
    run.until_ended()


# -- process 1 of a container

ORPHANS = 6


def test_process_1_of_a_container_leaves_no_zombies(queue: Queue, tmp_path: Path) -> None:
    """Each task leaves a process that ends later. It becomes a child of the worker, and dies when that waits."""
    container = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*container, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces can be made here")
    queue.insert_many(range(ORPHANS))
    leaves = f"( {until_there(tmp_path / 'go')}; touch $0/$1 ) & "
    work = [*container, sys.executable, "-m", "fsqueue_cli", "run", str(queue.path), "--forever", "--result-dir"]
    with subprocess.Popen([*work, str(tmp_path), "--", "sh", "-c", leaves, str(tmp_path), "{:d}"]) as outside:
        try:
            until(lambda: queue.status().completed == ORPHANS, "the tasks")
            [worker] = children_of(outside.pid)
            until(lambda: len(children_of(worker)) == ORPHANS + 1, "what they have left to come to the worker")
            (tmp_path / "go").touch()
            until(lambda: len(list(tmp_path.glob("[0-9]"))) == ORPHANS, "what they have left to end")
            until(lambda: len(children_of(worker)) == 1, "nothing but the fork server to be left")
            queue.insert(ORPHANS)
            until(lambda: queue.status().completed == ORPHANS + 1, "a task afterwards")
        finally:
            outside.kill()


ADOPTING_SOME = """
import os, subprocess, sys, threading
from fsqueue.worker import supervisor
supervisor.become_subreaper()
others, held = [], threading.Event()
def start():
    others.append(subprocess.Popen(["sh", "-c", "exit 7"]))
    held.wait()
threading.Thread(target=start).start()
spared = subprocess.Popen(["sh", "-c", "exit 5"])
ends, stays = f"sh -c '{sys.argv[1]}' $$", "sh -c 'exec sleep 9000'"
subprocess.run(["sh", "-c", f"{ends} & {stays} >/dev/null & echo $!"], check=True)
def states():
    found = supervisor.own_children()
    return sorted(open(f"/proc/{number}/stat").read().rpartition(")")[2].split()[0] for number in found)
while states() != ["S", "Z", "Z"]: pass
os.waitid(os.P_PID, others[0].pid, os.WEXITED | os.WNOWAIT)
supervisor.reap_adopted({spared.pid})
print(*states(), others[0].wait(), spared.wait())
held.set()
"""
"""A subreaper with a child of another thread, one that is spared, and two that it has adopted, of which one lives."""


def test_what_is_adopted_is_reaped_and_neither_another_thread_s_child_nor_one_that_is_spared() -> None:
    ends = shell_until("! kill -0 $0 2>&-")  # once its parent has: its $PPID may be the subreaper
    run = subprocess.run(
        [sys.executable, "-c", ADOPTING_SOME, ends], stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=True
    )
    left, said = run.stdout.splitlines()
    os.kill(int(left), signal.SIGKILL)
    assert said == "S Z 7 5"
