"""The leases of a killed worker end at once, but only when nothing of it is at work any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fsqueue import Queue, StorageError, Worker
from fsqueue.clock import ManualClock
from fsqueue.filesystem import processes
from fsqueue.storage import journals
from fsqueue.views import lease_holders
from fsqueue.worker import reclaiming, scripts, spawning, supervision, supervisor
from fsqueue.worker.child_processes import Children
from fsqueue.worker.commands import Commands
from fsqueue.worker.events import Mailbox
from tests.levels import each_once
from tests.support import QueueFactory
from tests.waiting import PATIENCE_S, until
from tests.worker.support import drained, in_background, shell_until, stopped
from tests.worker.test_supervisors import (
    CODE,
    DAEMON,
    ESCAPES,
    FORKING,
    children_of,
    is_alive,
    is_any_alive,
    numbers,
    quoted,
    worker_process,
)

pytestmark = pytest.mark.once

Process = subprocess.Popen[bytes]

BEGIN = 'exec 9>>"$0.$FSQUEUE_TASK_ID"; flock -n 9 || echo two >>"$0.two"; [ -e "$0.killed" ] && exit 0'
"""How each command begins. All that it starts inherits a lock. An execution that finds the lock of its task taken is at
work beside another one, or beside what that has left."""


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Path]:
    """The file into which what a test starts writes its numbers. At the end they are killed; no task was done by two
    at a time.
    """
    path = tmp_path / "pids"
    yield path
    for pid in numbers(path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not Path(f"{path}.two").exists(), "a task was executed by two at a time"


@pytest.fixture
def one(queue_factory: QueueFactory) -> Queue:
    queue = queue_factory(max_attempts=3, lease_s=600)
    queue.insert(1)
    return queue


def command(pids: Path, escape: str = "a daemon", then: str = "echo $$ >>$0; exec sleep 9000") -> list[str]:
    return ["sh", "-c", f"{BEGIN}\n{ESCAPES[escape]}\n{shell_until('[ -s $0 ]')}\n{then}", str(pids)]


def begun(pids: Path, count: int = 2) -> None:
    until(lambda: len(numbers(pids)) == count, "all that the commands start")


def family_of(process: Process) -> tuple[int, list[int]]:
    """The fork server of a worker, and its supervisors."""
    [server] = children_of(process.pid)
    return server, children_of(server)


def kill(process: Process, pids: Path) -> None:
    """Kill a worker. From now on the command of its task succeeds at once."""
    Path(f"{pids}.killed").touch()
    process.kill()
    process.wait()


def ended(*numbers: int) -> None:
    until(lambda: not any(map(is_alive, numbers)), "the end of the fork server and the supervisors")


def worker_alone(process: Process, pids: Path) -> None:
    kill(process, pids)


def with_supervisor(process: Process, pids: Path) -> None:
    process.send_signal(signal.SIGSTOP)  # it must not hear of the other death
    _, [one] = family_of(process)
    os.kill(one, signal.SIGKILL)
    kill(process, pids)


def with_stopped_supervisor(process: Process, pids: Path) -> None:
    _, [one] = family_of(process)
    stopped(one)
    kill(process, pids)


def with_stopped_server(process: Process, pids: Path) -> None:
    server, _ = family_of(process)
    stopped(server)
    kill(process, pids)


# -- the leases end


@each_once(
    ("how", [worker_alone, with_supervisor, with_stopped_supervisor, with_stopped_server]),
    ("escape", ["a daemon", "in a session of its own"]),
)
def test_the_task_of_a_killed_worker_is_executed_again_at_once_and_never_by_two(
    one: Queue, pids: Path, how: Callable[[Process, Path], None], escape: str
) -> None:
    argv = command(pids, escape)
    with worker_process(one, argv) as process:
        begun(pids)
        thread, reports = in_background(Worker(one, command=argv))
        how(process, pids)
        thread.join(PATIENCE_S)
    assert reports == [drained(completed=1)]
    assert not is_any_alive(pids)
    [task] = one.tasks("completed")
    assert task.attempt == 2
    insert, lease, release, again, complete = one.history(task.id)
    assert [move.op for move in (insert, lease, release, again, complete)] == [
        "insert", "lease", "renew", "lease", "complete",
    ]  # fmt: skip
    assert (release.until or 0) < release.at
    assert release.lease == lease.lease != again.lease


def test_all_that_a_killed_worker_had_leased_ahead_is_available_at_once(
    queue_factory: QueueFactory, pids: Path
) -> None:
    """In several queues. Attempts are charged as when a lease runs out: none, for tasks that were leased together."""
    queues = [queue_factory(name, lease_s=600) for name in ("a", "b")]
    for queue in queues:
        queue.insert_many(range(6), batch_tasks=2)
    code = "import sys; from fsqueue import Queue, Worker\n"
    code += f"queues = [Queue(path) for path in {[str(queue.path) for queue in queues]!r}]\n"
    code += "Worker(queues, command=sys.argv[2:], prefetch=8).run()"
    with worker_process(queues[0], command(pids), code) as process:
        begun(pids)
        until(lambda: sum(queue.status().leased for queue in queues) > 1, "tasks that are leased ahead")
        kill(process, pids)
        until(lambda: sum(queue.status().waiting for queue in queues) == 12, "all to be available")
    assert not is_any_alive(pids)
    for queue in queues:
        assert list(queue.fsck()) == []


FUNCTION = """
import fcntl, os, subprocess, sys
def hold(payload):
    lock = os.open(sys.argv[2] + ".lock", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        open(sys.argv[2] + ".two", "w")
    if os.path.exists(sys.argv[2] + ".killed"):
        return
    for script in {scripts!r}:
        subprocess.run(["sh", "-c", script, sys.argv[2]], pass_fds=[lock])
"""


def test_of_a_killed_worker_a_function_is_executed_again_at_once(one: Queue, pids: Path, tmp_path: Path) -> None:
    scripts = [ESCAPES["a daemon"], "echo $$ >>$0; exec sleep 9000"]
    (tmp_path / "holding.py").write_text(FUNCTION.format(scripts=scripts))
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from fsqueue import Queue, Worker\n"
    code += "Worker(Queue(sys.argv[1]), 'holding:hold').run()"
    with worker_process(one, [str(pids)], code) as process:
        begun(pids)
        kill(process, pids)
        until(lambda: one.status().waiting, "the task to be available")
    assert not is_any_alive(pids)
    with worker_process(one, [str(pids)], code) as process:
        assert process.wait(PATIENCE_S) == 0
    assert one.status().completed == 1


def test_a_forked_child_of_the_worker_that_lives_on_keeps_no_lease(one: Queue, pids: Path) -> None:
    """It has copies of all that its parent had open."""
    os.mkfifo(f"{pids}.begun")
    argv = ["sh", "-c", f"{BEGIN}; echo $$ >$0; echo >$0.begun; exec sleep 9000", str(pids)]
    with worker_process(one, argv, FORKING) as process:
        begun(pids)
        kill(process, pids)
    thread, reports = in_background(Worker(one, command=argv))
    thread.join(PATIENCE_S)
    assert reports == [drained(completed=1)]
    first, forked = numbers(pids)
    assert (is_alive(first), is_alive(forked)) == (False, True)


def test_of_a_worker_that_runs_in_two_processes_only_the_killed_one_loses_its_lease(queue: Queue, pids: Path) -> None:
    """It was made before the fork: so both know the same queue, the same worker, and not the same run."""
    queue.insert_many(range(2))
    code = (
        "import os, sys; from fsqueue import Queue, Worker\n"
        "worker = Worker(Queue(sys.argv[1]), command=sys.argv[2:], prefetch=1)\n"
        "if not os.fork(): open(sys.argv[-1], 'a').write(f'{os.getpid()}\\n')\n"
        "worker.run()\n"
    )
    argv = ["sh", "-c", f"{BEGIN}; echo $$ >>$0; exec sleep 9000", str(pids)]
    with worker_process(queue, argv, code) as process:
        begun(pids, 3)
        runs = {info.worker["pid"]: info.worker["run"] for info in queue.tasks("leased") if info.worker}
        assert len(set(runs.values())) == 2
        kill(process, pids)
        until(lambda: queue.status().waiting == 1, "its task to be available")
    [left] = queue.tasks("leased")
    assert left.worker is not None
    assert left.worker["run"] == runs[left.worker["pid"]] != runs[process.pid]
    assert is_any_alive(pids)


def test_leases_that_the_process_has_made_itself_stay(queue: Queue, pids: Path) -> None:
    """It may have handed their tokens on."""
    queue.insert_many(range(2))
    code = CODE.replace("Worker(Queue(sys.argv[1])", "q = Queue(sys.argv[1]); q.lease(); Worker(q")
    with worker_process(queue, command(pids), code) as process:
        begun(pids)
        kill(process, pids)
        until(lambda: queue.status().waiting == 1, "the task of the loop to be available")
    [left] = queue.tasks("leased")
    assert left.worker is not None
    assert (left.worker["pid"], "run" in left.worker) == (process.pid, False)


def test_the_leases_of_a_run_have_an_id_of_their_own(queue: Queue) -> None:
    queue.insert_many(range(3), batch_tasks=1)
    worker = Worker(queue, command=["true"], max_tasks=2)
    worker.run()
    Worker(queue, command=["true"]).run()
    leases = [queue.history(info.id)[1] for info in queue.tasks("completed")]
    runs = [lease.worker["run"] for lease in leases if lease.worker]
    assert sorted(runs.count(run) for run in set(runs)) == [1, 2]
    assert all(len(run) == 16 and int(run, 16) >= 0 for run in runs)
    queue.insert("x")
    queue.lease()
    [held] = queue.tasks("leased")
    assert "run" not in (held.worker or {}), "leases of the caller's own are of no run"


# -- the leases stay


def test_without_its_fork_server_nothing_is_proven_and_the_command_to_type_is_named(one: Queue, pids: Path) -> None:
    with worker_process(one, command(pids)) as process:
        begun(pids)
        server, [supervising] = family_of(process)
        os.kill(server, signal.SIGKILL)
        kill(process, pids)
    ended(server, supervising)
    assert not is_any_alive(pids)
    assert one.status().leased == 1
    told: list[str] = []
    idle = Worker(one, command=["true"], tell=lambda event: event.kind == "dead-workers" and told.append(event.text))
    thread, _ = in_background(idle)
    until(lambda: told, "what to type")
    idle.stop()
    thread.join(PATIENCE_S)
    assert told[0].endswith(f"fsqueue workers {one.path} --release-dead")
    assert one.status().leased == 1


def test_of_a_worker_killed_with_all_above_its_command_the_lease_keeps_the_command_alone(
    one: Queue, pids: Path
) -> None:
    with worker_process(one, command(pids)) as process:
        begun(pids)
        server, [supervising] = family_of(process)
        for pid in (process.pid, server, supervising):
            os.kill(pid, signal.SIGSTOP)
        for pid in (server, supervising):
            os.kill(pid, signal.SIGKILL)
        kill(process, pids)
    ended(server, supervising)
    assert all(map(is_alive, numbers(pids)))
    assert one.status().leased == 1


def test_a_second_fork_server_does_not_know_what_the_first_had_started(queue: Queue, pids: Path) -> None:
    queue.insert_many(["leave", "stay"], batch_tasks=2)
    last = "case $1 in *leave*) exit 0;; *) echo $$ >>$0; exec sleep 9000;; esac"
    above = 'case $1 in *leave*) kill -9 $(cut -d " " -f 4 /proc/$PPID/stat);; esac'
    argv = ["sh", "-c", f'{BEGIN}\n{above}\n{quoted(DAEMON)} "$0"\n{last}', str(pids), "{}"]
    with worker_process(queue, argv) as process:
        until(lambda: queue.status().completed == 1 and len(numbers(pids)) == 3, "the second command")
        server, [supervising] = family_of(process)
        kill(process, pids)
    ended(server, supervising)
    assert queue.status().leased == 1


@pytest.mark.one_in(2)
@pytest.mark.parametrize("line", [": ; # srun", "true || docker run x", ": `true` # at"], ids=["srun", "docker", "at"])
def test_what_works_elsewhere_may_go_on(one: Queue, pids: Path, line: str) -> None:
    with worker_process(one, command(pids, then=f"{line}\necho $$ >>$0; exec sleep 9000")) as process:
        begun(pids)
        server, supervisors = family_of(process)
        kill(process, pids)
    ended(server, *supervisors)
    assert one.status().leased == 1


@pytest.mark.parametrize(
    ("words", "may"),
    [
        (["./simulate", "{tile}"], False),
        (["sh", "-c", "cat {} >out; format x"], False),
        (["/usr/bin/ssh", "n7", "x"], True),
        (["sh", "-c", "cd x && kubectl apply"], True),
        (["mpirun", "x"], True),
        (["/usr/bin/mpirun.openmpi", "x"], True),
        (["sh", "-c", "tmux new-window x"], True),
        (["sh", "-c", "./x > mpirun.log"], False),
        ([], False),
    ],
)
def test_commands_that_may_outlive_their_worker(words: list[str], may: bool) -> None:
    assert scripts.may_outlive_worker(words) is may


def test_what_alone_has_a_job_of_several_nodes_may_work_on_others(one: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    def has_command(worker: Worker) -> bool:
        executor = worker._loop._executor
        assert isinstance(executor, (Commands, Children))
        return executor.supervisors.on_death is not None

    assert has_command(Worker(one, command=["true"]))
    assert has_command(Worker(one, "tests.worker.tasks:obey"))
    for name, value in {"SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n1", "SLURM_JOB_NUM_NODES": "2"}.items():
        monkeypatch.setenv(name, value)
    assert not has_command(Worker(one, command=["true"]))
    assert not has_command(Worker(one, "tests.worker.tasks:obey"))


def test_threads_have_no_process_that_outlives_them(one: Queue) -> None:
    one.cancel([info.id for info in one.tasks()])
    one.insert(9000)
    code = "import sys; from fsqueue import Queue, Worker; Worker(Queue(sys.argv[1]), 'time:sleep', threads=1).run()"
    with worker_process(one, [], code) as process:
        until(lambda: one.status().leased, "the lease")
        assert children_of(process.pid) == []
        process.kill()
    assert one.status().leased == 1


UNSEEN = "supervisor.listed_children = lambda: []"
"""As with a /proc of another PID namespace, or with none."""


def test_a_command_that_proc_does_not_show_ends_with_its_worker(one: Queue, pids: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(where=str(Path(supervisor.__file__).parent), patch=UNSEEN))
    code = f"from fsqueue.worker import supervisor; supervisor.__file__ = {str(program)!r}; {CODE}"
    argv = ["sh", "-c", f"{BEGIN}; sleep 9000 & echo $! >>$0; echo $$ >>$0; exec sleep 9000", str(pids)]
    with worker_process(one, argv, code) as process:
        begun(pids)
        kill(process, pids)
        until(lambda: one.status().waiting, "the task to be available")
    assert not is_any_alive(pids)


PROGRAM = """
import os, sys
sys.path.insert(0, {where!r})
import supervisor
real, become = os.kill, supervisor.become_subreaper
def refuse(*_): raise PermissionError
{patch}
supervisor.main()
"""
REFUSE = "os.killpg = refuse; os.kill = lambda pid, number: real(pid, number) if number == 18 else refuse()"
"""18: SIGCONT."""


@pytest.mark.parametrize(
    ("patch", "left"),
    [
        ("pass", 0),
        ("del os.pidfd_open", 1),
        ("supervisor.become_subreaper = lambda *is_one: become(*is_one) and False", 1),
        (REFUSE, 1),
    ],
    ids=["all is proven", "no pidfds", "no subreaper", "a process that cannot be ended"],
)
def test_what_is_not_proven_ends_no_lease(one: Queue, pids: Path, tmp_path: Path, patch: str, left: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(where=str(Path(supervisor.__file__).parent), patch=patch))
    code = f"from fsqueue.worker import supervisor; supervisor.__file__ = {str(program)!r}; {CODE}"
    if "pidfd" in patch:
        code = f"import os; {patch}; {code}"
    with worker_process(one, command(pids), code) as process:
        begun(pids)
        server, supervisors = family_of(process)
        kill(process, pids)
    ended(server, *supervisors)
    assert is_any_alive(pids) == (patch == REFUSE)
    assert one.status().leased == left


def test_a_stopped_supervisor_is_told_to_go_on_before_it_is_killed(one: Queue, pids: Path, tmp_path: Path) -> None:
    """Here it would never be killed."""
    program = tmp_path / "program.py"
    patch = "supervisor.KILLED_S = 9000.0"
    program.write_text(PROGRAM.format(where=str(Path(supervisor.__file__).parent), patch=patch))
    code = f"from fsqueue.worker import supervisor; supervisor.__file__ = {str(program)!r}; {CODE}"
    with worker_process(one, command(pids), code) as process:
        begun(pids)
        with_stopped_supervisor(process, pids)
        until(lambda: one.status().waiting, "the task to be available")
    assert not is_any_alive(pids)


LATE = """
# `alive` is opened first: once the file is there the test kills the worker, and its number means nothing any more.
import select
worker, end = map(int, sys.argv[1:])
select.select([end], [], [])
alive = os.pidfd_open(worker)
open({heard!r}, "w")
select.select([alive], [], [])
assert os.getppid() != worker
"""


def test_a_worker_may_die_before_its_fork_server_has_begun(one: Queue, pids: Path, tmp_path: Path) -> None:
    """By then its number may be another process's. The pidfd that it has sent means no other."""
    program, heard = tmp_path / "program.py", tmp_path / "heard"
    patch = LATE.format(heard=str(heard))
    program.write_text(PROGRAM.format(where=str(Path(supervisor.__file__).parent), patch=patch))
    code = f"from fsqueue.worker import supervisor; supervisor.__file__ = {str(program)!r}; {CODE}"
    with worker_process(one, command(pids), code) as process:
        until(heard.exists, "the fork server to be told what to do")
        kill(process, pids)
    until(lambda: one.status().waiting, "the task to be available")
    assert not numbers(pids)


@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_worker_that_executes_another_program_is_not_dead(
    one: Queue, pids: Path, tmp_path: Path, is_awaited: bool
) -> None:
    """Its number and the time of its start stay the same: `/proc` shows it as before. Its end is waited for a while."""
    program = tmp_path / "program.py"
    patch = "pass" if is_awaited else "supervisor.DEATH_S = 0.0"
    program.write_text(PROGRAM.format(where=str(Path(supervisor.__file__).parent), patch=patch))
    code = (
        "import os, sys, threading; from fsqueue import Queue, Worker; from fsqueue.worker import supervisor\n"
        f"supervisor.__file__ = {str(program)!r}\n"
        "def other():\n"
        "  open(sys.argv[-1] + '.go').read()\n"
        "  os.execvp('sleep', ['sleep', '9000'])\n"
        "threading.Thread(target=other, daemon=True).start()\n"
        "Worker(Queue(sys.argv[1]), command=sys.argv[2:], prefetch=1).run()\n"
    )
    os.mkfifo(f"{pids}.go")
    with worker_process(one, command(pids), code) as process:
        begun(pids)
        server, supervisors = family_of(process)
        Path(f"{pids}.go").write_text("\n")
        until(lambda: not is_any_alive(pids), "the end of the command")
        ended(*supervisors, *([] if is_awaited else [server]))
        [worker] = lease_holders.workers(one.store)
        assert worker.life == lease_holders.ALIVE
        assert one.status().leased == 1
        kill(process, pids)
        if is_awaited:
            until(lambda: one.status().waiting, "the task to be available")


@pytest.mark.parametrize("is_supervisor_killed", [False, True])
def test_a_supervisor_that_has_seen_another_retired_must_end_by_itself(
    queue: Queue, pids: Path, is_supervisor_killed: bool
) -> None:
    """While one is retired, what another leaves that is killed at that moment passes the fork server by."""
    queue.insert_many(["leave", "stay"], batch_tasks=2)
    stays = "echo $$ >>$0.stays; exec sleep 9000"
    leaves = f'{shell_until("[ -s $0.stays ]")}; {quoted(DAEMON)} "$0"; exit 0'
    argv = ["sh", "-c", f"{BEGIN}\ncase $1 in *leave*) {leaves};; *) {stays};; esac", str(pids), "{}"]
    with worker_process(queue, argv, CODE.replace("prefetch=1", "prefetch=1, processes=2")) as process:
        until(lambda: queue.status().completed == 1, "the first command")
        server, supervisors = family_of(process)
        [supervising] = [pid for pid in supervisors if children_of(pid)]
        process.send_signal(signal.SIGSTOP)
        if is_supervisor_killed:
            os.kill(supervising, signal.SIGKILL)
        kill(process, pids)
        ended(server, *supervisors)
    assert not any(map(is_alive, numbers(Path(f"{pids}.stays"))))
    assert queue.status().leased == int(is_supervisor_killed)
    assert [is_alive(pid) for pid in numbers(pids)] == [True], "what the first command has left stays"


RETIRING = """
import os, socket, sys, time
sys.path.insert(0, sys.argv[1])
import supervisor
ours, theirs = socket.socketpair()
server = supervisor.ForkServer(theirs, -1)
assert server.is_subreaper
become = supervisor.become_subreaper
for is_refused in (False, True):
    number = os.fork()
    if not number:
        time.sleep(9000)
    server.spared.add(number)
    if is_refused:
        supervisor.become_subreaper = lambda *is_one: become(*is_one) and False
    server._retire(number)
    print(server.is_subreaper)
"""


def test_a_fork_server_that_is_no_subreaper_any_more_knows_it() -> None:
    run = subprocess.run(
        [sys.executable, "-c", RETIRING, str(Path(supervisor.__file__).parent)],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (run.stdout.split(), run.stderr) == (["True", "False"], "")


@pytest.fixture
def supervisors() -> Iterator[supervision.Supervisors]:
    mailbox = Mailbox()
    found = supervision.Supervisors(mailbox, print)
    yield found
    found.close()
    mailbox.close()


def executed(supervisors: supervision.Supervisors) -> int | None:
    """Have a command executed; its exit status."""
    null, has_ended = os.open(os.devnull, os.O_RDWR), list[int]()
    process = spawning.Process(supervisors, ["true"], dict(os.environb), [null] * 3, lambda: has_ended.append(1))
    os.close(null)
    while not has_ended:
        supervisors.wait(process._handle, 60)
    process.reap()
    return process.status


def test_after_an_end_in_order_the_fork_server_waits_for_no_death(
    supervisors: supervision.Supervisors, tmp_path: Path
) -> None:
    supervisors.on_death = lambda: ["/bin/sh", "-c", f"touch {tmp_path}/executed"]
    assert executed(supervisors) == 0
    assert supervisors.on_death is None, "the first fork server has it"
    server = supervisors._server_pid
    supervisors.close()
    assert not is_alive(server)
    assert not (tmp_path / "executed").exists()


def test_a_fork_server_whose_command_was_called_off_goes_on(supervisors: supervision.Supervisors) -> None:
    supervisors.on_death = lambda: ["true"]
    supervisors._running_server()
    server = supervisors._server_pid
    supervisors._tell_server(supervisor.ON_DEATH, b"")
    assert executed(supervisors) == 0
    assert supervisors._server_pid == server


# -- who is told


def test_a_worker_found_dead_once_is_not_spoken_of_yet(one: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fork server may be about to end its leases."""
    one.lease()
    [holder] = lease_holders.workers(one.store)
    looks: list[int] = []

    def dead(*_: object, **__: object) -> list[lease_holders.LeaseHolder]:
        looks.append(1)
        return [holder]

    monkeypatch.setattr(lease_holders, "dead", dead)
    told: list[int] = []
    idle = Worker(one, command=["true"], tell=lambda event: event.kind == "dead-workers" and told.append(len(looks)))
    thread, _ = in_background(idle)
    until(lambda: told, "what to type")
    idle.stop()
    thread.join(PATIENCE_S)
    assert told[0] >= 2


# -- the program that ends the leases


def of_run(queue: Queue, run_id: str, count: int = 1) -> None:
    """Lease tasks as a worker's loop does."""
    held = Queue(queue.path)
    held._leaser.run_id = run_id
    assert len(held.lease(count)) == count


RUN = "0123456789abcdef"


def test_a_queue_that_fails_is_tried_again_after_the_others(queue_factory: QueueFactory) -> None:
    queues = [queue_factory(name) for name in ("a", "b")]
    for queue in queues:
        queue.insert(1)
        of_run(queue, RUN)
    clock, opened = ManualClock(), list[str]()

    def open_queue(path: str) -> Queue:
        opened.append(Path(path).name)
        if opened == [Path(queues[0].path).name]:
            raise StorageError("the file server does not answer")
        return Queue(path)

    assert reclaiming.reclaim([queue.path for queue in queues], RUN, clock, open_queue) == 2
    first, second = (Path(queue.path).name for queue in queues)
    assert opened == [first, second, first]


def test_it_gives_up_after_a_while(queue: Queue) -> None:
    queue.insert(1)
    of_run(queue, RUN)
    clock = ManualClock()
    began = clock.monotonic()

    def open_queue(path: str) -> Queue:
        raise OSError(5, "Input/output error")

    assert reclaiming.reclaim([queue.path], RUN, clock, open_queue) == 0
    assert reclaiming.TRY_S <= clock.monotonic() - began < reclaiming.TRY_S + 2 * reclaiming.PAUSE_S[1]
    assert queue.status().leased == 1


def test_what_is_no_queue_any_more_is_not_tried_again(queue: Queue, tmp_path: Path) -> None:
    queue.insert(1)
    of_run(queue, RUN)
    clock = ManualClock()
    before = clock.monotonic()
    (tmp_path / "empty").mkdir()
    paths = [str(tmp_path / "none"), str(tmp_path / "empty"), queue.path]
    assert reclaiming.reclaim(paths, RUN, clock) == 1
    assert clock.monotonic() == before


def test_a_batch_that_another_process_has_locked_is_tried_again(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "LOCK_TIMEOUT_S", 0.1)
    queue.insert(1)
    of_run(queue, RUN)
    [info] = queue.tasks("leased")
    fs = queue.store.fs
    fd = fs.look(queue.store.layout.log(info.id.partition(".")[0]), os.O_RDWR)
    assert fs.try_lock(fd)

    class Releasing(ManualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            fs.close(fd)

    assert reclaiming.reclaim([queue.path], RUN, Releasing()) == 1


TRAP = """
import os, sys
with open(os.path.join(os.path.dirname(__file__), "entered"), "a") as file: file.write("\\0".join(sys.argv))
"""


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("option", "is_entered"), [("-I", False), ("-E", False), ("-P", True)])
def test_the_program_looks_at_nothing_that_the_worker_does_not_look_at(
    one: Queue, pids: Path, tmp_path: Path, option: str, is_entered: bool
) -> None:
    trap = tmp_path / "trap"
    trap.mkdir()
    for name in ("sitecustomize", "usercustomize"):
        (trap / f"{name}.py").write_text(TRAP)
    argv = ["sh", "-c", "echo $$ >>$0; exec sleep 9000", str(pids)]
    env = os.environ | {"PYTHONPATH": str(trap)}
    with worker_process(one, argv, options=[option], env=env, cwd=trap) as process:
        begun(pids, 1)
        kill(process, pids)
        until(lambda: one.status().waiting, "the task to be available")
    assert (trap / "entered").exists() == is_entered


@pytest.mark.one_in(3)
@pytest.mark.parametrize("option", ["-I", "-E", "-s", "-P", "-S", "-B"])
def test_a_worker_s_programs_have_its_options(option: str) -> None:
    code = f"import sys; sys.path[:] = {sys.path!r}; from fsqueue.worker import spawning\n"
    code += f"print({option!r} in spawning.python('child'))"
    # An editable install is found by what `site` does at the start.
    root = str(Path(spawning.__file__).parents[2])
    run = subprocess.run(
        [sys.executable, option, "-c", code.replace("sys.path[:] = [", f"sys.path[:] = [{root!r}, ", 1)],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (run.stdout, run.stderr) == ("True\n", "")


AWAY = """
import os, sys
from fsqueue import Queue, Worker
os.mkdir(sys.argv[2]); os.chdir(sys.argv[2]); os.rmdir(sys.argv[2])
assert "" in sys.path
sys.path.append(None)
for queue, how in zip(sys.argv[3:], [{"command": ["true"]}, {"handler": "math:isfinite"}]):
    print(Worker(Queue(queue), **how).run().completed)
"""


def test_a_worker_whose_directory_was_removed_starts_processes(queue_factory: QueueFactory, tmp_path: Path) -> None:
    """In a program that was typed, or a notebook, the search path begins with the working directory."""
    queues = [queue_factory(name) for name in ("a", "b")]
    for queue in queues:
        queue.insert(1)
    run = subprocess.run(
        [sys.executable, "-c", AWAY, "", str(tmp_path / "gone"), *(queue.path for queue in queues)],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (run.stdout.split(), run.stderr) == (["1", "1"], "")


def test_the_program_is_this_interpreter_with_the_worker_s_path(queue: Queue) -> None:
    queue.insert(1)
    of_run(queue, RUN)
    assert processes.is_program(sys.executable)
    subprocess.run(reclaiming.command([str(queue.path)], RUN), check=True, timeout=PATIENCE_S, cwd="/")
    assert queue.status().waiting == 1
