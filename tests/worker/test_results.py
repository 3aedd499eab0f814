"""The files of results: each attempt has its own, and who writes late hits nobody."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import filelock
import pytest

from fsqueue import InvalidArgument, Queue, StorageError, Worker
from fsqueue.filesystem import resources, result_paths
from fsqueue.filesystem.result_paths import ResultFiles
from fsqueue.worker.output import Leftovers
from tests.support import QueueFactory
from tests.waiting import PATIENCE_S, until
from tests.worker.support import drained, in_background, until_there

PATIENTLY = until_there("{0}")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the workers of a test make their private directories."""
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


@pytest.fixture
def run(place: Path) -> Callable[..., Worker]:
    def make(queue: Queue, script: str, **options: Any) -> Worker:
        return Worker(queue, command=["sh", "-c", script], result_dir=place, **options)

    return make


Make = Callable[..., Worker]


@pytest.mark.parametrize(
    "late",
    [
        "echo '\"late\"' >$FSQUEUE_RESULT",
        "echo '\"late\"' >>$FSQUEUE_RESULT",
        "echo '\"late\"' >&3",
        "cd $was && echo '\"late\"' >$name",
        "cd /proc/self/cwd && echo '\"late\"' >$name",
        "rm -r $was; mkdir -p $was; echo '\"late\"' >$FSQUEUE_RESULT",
    ],
)
@pytest.mark.parametrize("kind", ["with a result", "without"])
def test_a_process_that_a_command_leaves_behind_writes_into_no_other_tasks_result(
    queue: Queue, run: Make, tmp_path: Path, late: str, kind: str
) -> None:
    """The first task leaves it behind; while the second is at work it writes what is its own task's, late."""
    queue.insert_many([1, 2])
    go, tried = tmp_path / "go", tmp_path / "tried"
    write = "echo '\"mine\"' >$FSQUEUE_RESULT" if kind == "with a result" else ":"
    leave = (
        f"was=$(dirname $FSQUEUE_RESULT); name=$(basename $FSQUEUE_RESULT); cd $was; exec 3>$FSQUEUE_RESULT; "
        f"({PATIENTLY.format(go)}; {late}; touch {tried}) >/dev/null 2>&1 &"
    )
    again = f"touch {go}; {PATIENTLY.format(tried)}; {write}"
    worker = run(queue, f"if mkdir {tmp_path}/first; then {leave}\nelse {again}; fi")
    assert worker.run() == drained(completed=2)
    results = {task.result for task in queue.tasks("completed")}
    assert results == ({None, "mine"} if kind == "with a result" else {None})
    assert list(queue.fsck()) == []


def test_no_path_is_ever_used_again_and_none_is_left(queue: Queue, run: Make, place: Path, tmp_path: Path) -> None:
    queue.insert_many(range(40))
    script = f"echo $FSQUEUE_RESULT >>{tmp_path}/paths; [ $(($FSQUEUE_PAYLOAD % 2)) = 0 ] || echo 1 >$FSQUEUE_RESULT"
    assert run(queue, script, processes=3).run() == drained(completed=40)
    paths = (tmp_path / "paths").read_text().split()
    assert len(set(paths)) == len(paths) == 40
    assert all(path.startswith(f"{place}/") for path in paths)  # and none names a descriptor of the worker
    assert list(place.iterdir()) == []


def test_other_users_cannot_enter(queue: Queue, run: Make, tmp_path: Path) -> None:
    queue.insert(1)
    before = os.umask(0)
    try:
        run(queue, f'stat -c "%a %u" "$(dirname "$(dirname "$FSQUEUE_RESULT")")" >{tmp_path}/mode').run()
    finally:
        os.umask(before)
    assert (tmp_path / "mode").read_text().split() == ["700", str(os.geteuid())]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("script", "result"),
    [
        ("echo 5 >$FSQUEUE_RESULT.new; mv $FSQUEUE_RESULT.new $FSQUEUE_RESULT", 5),
        ("echo 6 >$FSQUEUE_RESULT; echo more >$FSQUEUE_RESULT.tmp; mkdir -p $(dirname $FSQUEUE_RESULT)/a/b", 6),
        ("set -C; echo 7 >$FSQUEUE_RESULT", 7),
        ("ln -s $FSQUEUE_RESULT.x $FSQUEUE_RESULT.y", None),
        ("rm -r $(dirname $FSQUEUE_RESULT)", None),
        (": >$FSQUEUE_RESULT", None),
    ],
)
def test_however_a_result_gets_there_it_is_kept(
    queue: Queue, run: Make, place: Path, script: str, result: object
) -> None:
    queue.insert_many(range(3))
    assert run(queue, script).run() == drained(completed=3)
    assert [task.result for task in queue.tasks("completed")] == [result] * 3
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("where", ["standard output", "FSQUEUE_RESULT"])
def test_a_result_that_is_not_utf_8_is_told_once(queue: Queue, where: str) -> None:
    """JSON has no such bytes: they would be changed without a word."""
    into = "" if where == "standard output" else ">$FSQUEUE_RESULT"
    queue.insert_many([r"\377\376x", r'{"a":"Z\374"}', r"Z\303\274"])
    said: list[str] = []
    worker = Worker(
        queue, command=["sh", "-c", f'printf "$1" {into}', "sh", "{}"], result_from_stdout=not into,
        tell=lambda event: event.text and said.append(event.text),
    )  # fmt: skip
    assert worker.run() == drained(completed=3)
    assert sorted(task.result for task in queue.tasks("completed")) == ["Zü", '{"a":"Z\ufffd"}', "\ufffd\ufffdx"]
    [told] = [text for text in said if "UTF-8" in text]
    assert told.startswith(f"The result ({where}) of task ")
    assert "Write them to a file, and give its path as the result." in told


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("mkfifo $FSQUEUE_RESULT", "cannot be read as a file"),
        ("ln -s {secret} $FSQUEUE_RESULT", "cannot be read as a file"),
        ("mkdir $FSQUEUE_RESULT", "cannot be read as a file"),
        ("head -c 70000 /dev/zero >$FSQUEUE_RESULT", "more than 65,536 bytes"),
        (f"echo '{'[' * 201}{']' * 201}' >$FSQUEUE_RESULT", "200 levels"),
        (f"echo '{'[' * 1100}{']' * 1100}' >$FSQUEUE_RESULT", "nests too deep"),
    ],
)
def test_what_is_no_small_file_buries_the_task_at_once(
    queue_factory: QueueFactory, run: Make, place: Path, tmp_path: Path, script: str, why: str
) -> None:
    queue = queue_factory()
    queue.insert(1)
    (tmp_path / "secret").write_text("'a secret'")
    assert run(queue, script.replace("{secret}", str(tmp_path / "secret"))).run() == drained(failed=1)
    [letter] = queue.dead()
    assert letter.attempt == 1
    assert why in letter.reason
    assert (tmp_path / "secret").read_text() == "'a secret'"
    assert list(place.iterdir()) == []


@pytest.mark.once
def test_links_in_what_a_command_leaves_behind_lead_nowhere(
    queue: Queue, run: Make, place: Path, tmp_path: Path
) -> None:
    queue.insert(1)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    script = "d=$(dirname $FSQUEUE_RESULT); ln -s {0} $d/link; rmdir $d/x 2>/dev/null; ln -s {0} $(dirname $d)/beside"
    assert run(queue, script.format(precious)).run() == drained(completed=1)
    assert (precious / "file").exists()
    assert list(place.iterdir()) == []


@pytest.mark.once
@pytest.mark.parametrize("missing", ["gone", "/proc/version/below"])
def test_where_no_results_can_be_kept_nothing_is_leased(queue: Queue, tmp_path: Path, missing: str) -> None:
    queue.insert(1)
    worker = Worker(queue, command=["true"], result_dir=tmp_path / missing)
    with pytest.raises(InvalidArgument, match=r"Results cannot be kept in .*--result-dir"):
        worker.run()
    assert [(task.state, task.attempt) for task in queue.tasks()] == [("waiting", 0)]


@pytest.mark.once
def test_a_cleaner_that_removes_the_private_directory_costs_no_task(
    queue: Queue, run: Make, place: Path, tmp_path: Path
) -> None:
    queue.insert_many(range(3))
    script = f"echo $FSQUEUE_RESULT >>{tmp_path}/paths; if mkdir {tmp_path}/first; then rm -r {place}/*; "
    assert run(queue, f"{script}else echo 8 >$FSQUEUE_RESULT; fi").run() == drained(completed=3)
    assert sorted(task.result or 0 for task in queue.tasks("completed")) == [0, 8, 8]
    roots = {Path(path).parent.parent for path in (tmp_path / "paths").read_text().split()}
    assert len(roots) == 2
    assert list(place.iterdir()) == []


@pytest.mark.once
def test_no_room_for_results_puts_the_task_back_and_ends_the_worker(queue: Queue, run: Make, place: Path) -> None:
    queue.insert_many(range(3))
    worker = run(queue, f"rm -r {place}")
    with pytest.raises(InvalidArgument, match="Results cannot be kept"):
        worker.run()
    assert sorted((task.state, task.attempt) for task in queue.tasks()) == [("waiting", 0)] * 2


@pytest.mark.once
def test_after_a_worker_was_killed_what_a_command_has_left_writes_into_no_other_programs_file(
    queue_factory: QueueFactory, place: Path, tmp_path: Path
) -> None:
    """Once the path named a descriptor of the worker by its process number, which another program may have by then."""
    queue = queue_factory()
    queue.insert_many(range(2))
    late = f"{PATIENTLY.format(tmp_path / 'go')}; echo done 2>{tmp_path}/said >$FSQUEUE_RESULT; touch {tmp_path}/ended"
    script = f"if mkdir {tmp_path}/first; then echo $FSQUEUE_RESULT >{tmp_path}/name; ({late}) & exit 0; fi; "
    script += f"touch {tmp_path}/second; exec sleep 9000"
    arguments = ["run", str(queue.path), "--result-dir", str(place), "--", "sh", "-c", script]
    with subprocess.Popen([sys.executable, "-m", "fsqueue_cli", *arguments]) as worker:
        until((tmp_path / "second").exists, "the begin of the second command")
        worker.kill()
    (tmp_path / "go").touch()
    until((tmp_path / "ended").exists, "the end of what the first command has left")
    path = Path((tmp_path / "name").read_text().strip())
    assert path.is_relative_to(place)
    assert not path.exists(), "nothing leads where it wrote"


@pytest.mark.once
def test_a_container_with_process_numbers_of_its_own_has_results(queue: Queue, run: Make) -> None:
    inside = "unshare --fork --pid --mount-proc sh -c 'echo $$ >$FSQUEUE_RESULT'"
    probe = ["unshare", "--fork", "--pid", "--mount-proc", "true"]
    if os.geteuid() or shutil.which("unshare") is None or subprocess.run(probe, check=False).returncode:
        pytest.skip("only root can make a PID namespace, and not everywhere")
    queue.insert(1)
    assert run(queue, inside).run() == drained(completed=1)
    assert [task.result for task in queue.tasks("completed")] == [1]


@pytest.mark.once
def test_a_stopped_worker_leaves_no_directory(queue: Queue, run: Make, place: Path) -> None:
    queue.insert(1)
    worker = run(queue, "echo 1 >$FSQUEUE_RESULT; sleep 1000", grace_s=0.1)
    thread, reports = in_background(worker)
    until(lambda: any(path.is_file() and path.name[0] != "." for path in place.rglob("*")), "a result")
    worker.stop()
    thread.join(PATIENCE_S)
    assert reports[0].released == 1
    assert list(place.iterdir()) == []


def test_directories_are_made_for_tasks_at_a_time_and_not_for_each(tmp_path: Path) -> None:
    """On some disks that takes a millisecond, half of what a command does."""
    files = ResultFiles(str(tmp_path))
    files.open()
    [root] = tmp_path.iterdir()
    inodes = set()
    for _ in range(20):
        first, second = files.new(), files.new()
        inodes |= {entry.stat().st_ino for entry in root.iterdir() if entry.is_dir()}
        assert files.take(first, 10) == files.take(second, 10) == b""
        assert not Path(first.path).parent.exists()
    assert len(inodes) == 2
    files.close()
    assert list(tmp_path.iterdir()) == []


def test_a_spare_directory_that_a_cleaner_removes_costs_nothing_at_work(tmp_path: Path) -> None:
    files = ResultFiles(str(tmp_path))
    files.open()
    first, second = files.new(), files.new()
    files.take(first, 10)
    for spare in next(tmp_path.iterdir()).iterdir():
        if spare.is_dir() and spare != Path(second.path).parent:
            spare.rmdir()
    third = files.new()
    for result in (second, third):
        Path(result.path).write_text("here")
    assert files.take(second, 10) == files.take(third, 3) + b"e" == b"here"
    assert len(list(tmp_path.iterdir())) == 1
    files.close()


class Failing:
    """Lets the reading of results fail: the opening of a directory or of the file in it, or the listing."""

    def __init__(self, where: str, code: int, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = times
        open_, listdir = os.open, os.listdir

        def fail(here: str) -> None:
            if here == where and self.times > 0:
                self.times -= 1
                raise OSError(code, os.strerror(code))

        def opened(path: Any, flags: int, *rest: Any, **options: Any) -> int:
            caller = sys._getframe(1).f_code.co_name
            fail({"take": "directory", "_read": "file"}.get(caller, ""))
            return open_(path, flags, *rest, **options)

        def listed(path: Any = ".") -> list[str]:
            fail("listing" if sys._getframe(1).f_code.co_name == "take" else "")
            return listdir(path)

        monkeypatch.setattr(os, "open", opened)
        monkeypatch.setattr(os, "listdir", listed)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("where", ["directory", "listing", "file"])
def test_an_error_of_the_workers_own_is_not_taken_for_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, code: int
) -> None:
    files = ResultFiles(str(tmp_path))
    files.open()
    result = files.new()
    Path(result.path).write_text("here")
    Failing(where, code, 2, monkeypatch)
    for _ in range(2):
        with pytest.raises(OSError, match=os.strerror(code)):
            files.take(result, 10)
    assert files.take(result, 10) == b"here", "what could not be read was kept for another try"
    assert not Path(result.path).parent.exists()
    files.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.once
@pytest.mark.parametrize("where", ["directory", "listing", "file"])
def test_where_descriptors_run_out_a_result_is_read_after_outputs_were_closed(
    queue: Queue, run: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The first task leaves a process behind: closing its output makes room to read what it has written."""
    queue.insert_many([1, 2])
    script = (
        f"[ $FSQUEUE_PAYLOAD = 2 ] || {{ {until_there(tmp_path / 'go')} & }}; echo $FSQUEUE_PAYLOAD >$FSQUEUE_RESULT"
    )
    failing = Failing(where, errno.EMFILE, 0, monkeypatch)
    add, give_up = Leftovers.add, Leftovers.give_up

    def added(self: Leftovers, streams: Any) -> None:
        add(self, streams)
        if self._commands:
            failing.times = 100  # what the first task has left is given up for its own result

    def given_up(self: Leftovers) -> bool:
        failing.times = 0
        return give_up(self)

    monkeypatch.setattr(Leftovers, "add", added)
    monkeypatch.setattr(Leftovers, "give_up", given_up)
    told: list[str] = []
    report = run(queue, script, prefetch=1, tell=lambda event: told.append(event.text)).run()
    (tmp_path / "go").touch()
    assert (report.completed, report.failed) == (2, 0)  # put back without blame, where nothing could be closed yet
    assert sorted(task.result for task in queue.tasks("completed")) == [1, 2]
    assert report.released or any("left many processes behind" in text for text in told)


@pytest.mark.once
def test_a_result_that_cannot_be_read_for_want_of_descriptors_costs_the_task_nothing(
    queue_factory: QueueFactory, run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    queue = queue_factory(max_attempts=1)
    queue.insert("x")
    failing = Failing("directory", errno.EMFILE, 1, monkeypatch)
    report = run(queue, "echo 7 >$FSQUEUE_RESULT", tell=lambda event: told.append(event.text)).run()
    assert (report.completed, report.failed, report.released, failing.times) == (1, 0, 1, 0)
    assert [task.result for task in queue.tasks("completed")] == [7]
    assert any("could not be read by this worker" in text and "without blame" in text for text in told)


@pytest.mark.once
@pytest.mark.parametrize("where", ["directory", "file"])
def test_a_worker_whose_results_are_on_a_broken_disk_ends_and_blames_no_task(
    queue_factory: QueueFactory, run: Make, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    queue = queue_factory(max_attempts=1)
    queue.insert("x")
    Failing(where, errno.EIO, 1, monkeypatch)
    with pytest.raises(StorageError, match="put back without blame"):
        run(queue, "echo 7 >$FSQUEUE_RESULT").run()
    assert (queue.status().waiting, queue.status().dead) == (1, 0)
    [task] = queue.lease()
    assert task.attempt == 1


def test_a_directory_that_would_not_be_private_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on mounts that show every file with one mode or owner."""
    files, real = ResultFiles(str(tmp_path)), os.fstat

    def shown(fd: int) -> os.stat_result:
        found = real(fd)
        return os.stat_result((found.st_mode | 0o077, *found[1:]))

    monkeypatch.setattr(os, "fstat", shown)
    with pytest.raises(PermissionError):
        files.open()


def is_killed_at_work(queue: Queue, written: Path, *options: str, also: str = "") -> None:
    """Kill a worker whose command has written its result, and then the file `written`."""
    script = f"echo 1 >$FSQUEUE_RESULT; touch {written}; exec sleep 9000{also}"
    arguments = ["run", str(queue.path), *options, "--", "sh", "-c", script]
    with subprocess.Popen([sys.executable, "-m", "fsqueue_cli", *arguments]) as worker:
        until(written.exists, "a result")
        worker.kill()


def dies_with_a_result_at_work(queue: Queue, place: Path) -> Path:
    """Kill a worker in the middle of a command; the private directory that it leaves."""
    queue.insert("killed")
    is_killed_at_work(queue, place.parent / "written", "--result-dir", str(place))
    [left] = place.iterdir()
    return left


def test_the_next_worker_removes_what_a_killed_one_left(queue: Queue, run: Make, place: Path) -> None:
    left = dies_with_a_result_at_work(queue, place)
    queue.release_all()
    assert run(queue, "true").run() == drained(completed=1)
    assert not left.exists()
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("why", ["its worker lives", "of another boot", "not private", "no lock in it", "a link"])
def test_nothing_is_removed_without_proof_that_its_worker_was_killed(
    queue: Queue, run: Make, place: Path, tmp_path: Path, why: str
) -> None:
    left = dies_with_a_result_at_work(queue, place)
    [lock] = left.glob(".alive-*")
    (left / "precious").touch()
    holder = None
    if why == "its worker lives":
        holder = filelock.FileLock(lock)
        holder.acquire()
    elif why == "of another boot":
        lock.rename(left / ".alive-0")
    elif why == "not private":
        left.chmod(0o755)
    elif why == "no lock in it":
        lock.unlink()
    else:
        left.rename(tmp_path / "elsewhere")
        left.symlink_to(tmp_path / "elsewhere")
    queue.release_all()
    assert run(queue, "true").run() == drained(completed=1)
    assert (left / "precious").exists()
    if holder is not None:
        holder.release()


@pytest.mark.parametrize("moment", ["listdir", "flock"])
def test_no_exchange_of_the_private_directory_leads_the_lock_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A member of a group may rename what lies in the queue's directory of results, and plant links there."""
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    shared.mkdir()
    victim.mkdir()
    real = {"listdir": os.listdir, "flock": fcntl.flock}[moment]

    def exchange(*arguments: Any) -> Any:
        monkeypatch.undo()
        [private] = shared.glob("fsqueue-results-*")
        private.rename(tmp_path / "away")
        private.symlink_to(victim)
        (shared / f"{private.name} (deleted)").symlink_to(victim)
        return real(*arguments)

    monkeypatch.setattr(fcntl if moment == "flock" else os, moment, exchange)
    files = ResultFiles(str(shared))
    with suppress(OSError):
        files.open()
    files.close()
    assert list(victim.iterdir()) == []


@pytest.mark.parametrize("name", [".alive-x", ".alive-y"])
def test_a_link_or_a_pipe_in_place_of_the_lock_is_not_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private/.alive-x").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "private/.alive-y")
    directory = os.open(tmp_path / "private", os.O_RDONLY)
    try:
        assert result_paths._lock(directory, name) == -1
    finally:
        os.close(directory)
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_whose_file_was_removed_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that reaps may have removed it between the opening and the locking."""
    flock = fcntl.flock

    def remove_first(fd: int, operation: int) -> None:
        (tmp_path / ".alive-x").unlink()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(result_paths._Taken):
            result_paths._lock(directory, ".alive-x")
    finally:
        os.close(directory)


# -- commands that run on other nodes, or in containers ----------------------------------------------------


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A srun whose node shares this machine's files, except for its directory for temporary files."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "tmp").mkdir()
    srun = tmp_path / "bin/srun"
    srun.write_text(f'#!/bin/sh\ncase $FSQUEUE_RESULT in {tmp_path}/tmp/*) exit 65;; esac; exec "$@"\n')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)


KEEP = "echo {:d} >$FSQUEUE_RESULT; echo $FSQUEUE_RESULT >>$FSQUEUE_QUEUE.paths"
BATCH = {"SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_END_TIME": "x"}


@pytest.mark.once
@pytest.mark.parametrize(
    ("command", "environment"),
    [
        (["srun", "sh", "-c", KEEP], {}),
        (["sh", "-c", f"srun sh -c '{KEEP}'"], {}),
        (["sh", "-c", KEEP], BATCH),
    ],
)
def test_results_of_commands_on_other_nodes_are_kept_where_all_nodes_see_them(
    queue: Queue, launcher: None, monkeypatch: pytest.MonkeyPatch, command: list[str], environment: dict[str, str]
) -> None:
    queue.insert_many(range(3))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Worker(queue, command=command).run() == drained(completed=3)
    assert sorted(task.result for task in queue.tasks("completed")) == [0, 1, 2]
    paths = Path(f"{queue.path}.paths").read_text().split()
    assert all(path.startswith(f"{queue.path}/.results/") for path in paths)
    assert list((queue.path / ".results").iterdir()) == []
    assert list(queue.fsck()) == []
    queue.delete(foreground=True)
    assert not queue.path.exists()


@pytest.mark.once
@pytest.mark.parametrize(
    "environment",
    [{}, BATCH | {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}, BATCH | {"SLURM_JOB_NUM_NODES": "1"}],
)
def test_results_of_other_commands_cost_the_file_server_nothing(
    queue: Queue, launcher: None, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    queue.insert(1)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Worker(queue, command=["sh", "-c", KEEP]).run() == drained(completed=1)
    assert not (queue.path / ".results").exists()


@pytest.mark.once
def test_a_container_with_processes_of_its_own_keeps_its_result(queue: Queue) -> None:
    container = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*container, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces can be made here")
    queue.insert(7)
    command = [*container, "sh", "-c", "[ $$ -lt 9 ] && echo {:d} >$FSQUEUE_RESULT"]
    assert Worker(queue, command=command).run() == drained(completed=1)
    assert [task.result for task in queue.tasks("completed")] == [7]


@pytest.mark.once
def test_a_link_in_place_of_the_queue_s_results_leads_nowhere(queue: Queue, launcher: None, tmp_path: Path) -> None:
    """A member puts it there: nothing may be made or removed in the home that it leads to."""
    queue.insert(1)
    home = tmp_path / "home"
    home.mkdir()
    (home / "fsqueue-results-0").mkdir(0o700)
    (home / "fsqueue-results-0/.alive-0").touch()
    old = time.time() - 30 * 86_400
    for path in (home / "fsqueue-results-0/.alive-0", home / "fsqueue-results-0"):
        os.utime(path, (old, old))
    (queue.path / ".results").symlink_to(home)
    with pytest.raises(InvalidArgument, match=r"Results cannot be kept in .*--result-dir"):
        Worker(queue, command=["srun", "true"]).run()
    queue.gc()
    assert [path.name for path in home.rglob("*")] == ["fsqueue-results-0", ".alive-0"]


@pytest.mark.once
@pytest.mark.parametrize(
    "state", ["killed", "killed lately", "used lately", "at work", "of another user", "open to others"]
)
def test_gc_removes_what_a_worker_killed_on_another_host_left_in_the_queue(
    queue: Queue, launcher: None, state: str
) -> None:
    left = queue.path / ".results/fsqueue-results-0123456789abcdef"
    (left / "0123").mkdir(parents=True)
    left.chmod(0o755 if state == "open to others" else 0o700)
    (left / "0123/result").write_text("1")
    lock = left / ".alive-of-another-boot"
    lock.touch()
    old = time.time() - (6 if state == "killed lately" else 8) * 86_400
    holder = filelock.FileLock(lock)
    if state == "at work":
        holder.acquire()
    if state == "of another user":
        if os.geteuid():
            pytest.skip("only root can give a directory away")
        os.chown(left, 65534, 65534)
    for path in (left / "0123", lock, left):
        os.utime(path, (old, old))
    if state == "used lately":  # as by a command that works for weeks, where locks do not exclude other hosts
        os.utime(left / "0123")
    queue.gc()
    assert left.exists() == (state != "killed")
    holder.release()


@pytest.mark.once
def test_gc_removes_what_a_worker_killed_on_this_host_left_in_the_queue(
    queue: Queue, launcher: None, tmp_path: Path
) -> None:
    queue.insert("killed")
    is_killed_at_work(queue, tmp_path / "written", also="; : srun")
    assert len(list((queue.path / ".results").iterdir())) == 1
    queue.gc()
    assert list((queue.path / ".results").iterdir()) == []


class Killed(BaseException):
    """Stand for SIGKILL."""


class Dying:
    """Have calls raise `Killed` at the `at`-th of them, together; count them."""

    def __init__(self, at: int, patch: pytest.MonkeyPatch, *names: str) -> None:
        self.at, self.calls = at, 0
        for name in names:
            patch.setattr(os, name, self.counting(getattr(os, name)))

    def counting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == self.at:
                raise Killed
            return call(*arguments, **options)

        return counted


def let_a_week_pass(place: Path) -> None:
    """What is in a place was changed eight days ago."""
    for path in place.rglob("*"):
        os.utime(path, (time.time() - 8 * 86_400,) * 2)


@pytest.mark.once
def test_whichever_step_a_worker_on_another_host_was_killed_at_gc_removes_what_it_left(
    queue: Queue, launcher: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop before each call that changes the disk, in making, using and closing."""
    place = queue.path / ".results"
    for at in range(1, 100):
        with monkeypatch.context() as patch:
            patch.setattr(result_paths, "_lock_name", lambda: ".alive-of-another-boot")
            dying = Dying(at, patch, "mkdir", "unlink", "rename", "rmdir")
            patch.setattr(result_paths, "_lock", dying.counting(result_paths._lock))
            files = ResultFiles(queue.store.layout.results, queue.store.fs)
            with suppress(Killed):
                files.open()
                for _ in range(2):
                    result = files.new()
                    Path(result.path).write_text("1")
                    files.take(result, 10)
                files.new()
                files.close()
        if files._alive >= 0:
            resources.close(files._alive)
        let_a_week_pass(place)
        queue.gc()
        assert not place.exists() or list(place.iterdir()) == [], at
        if dying.calls < at:
            break
    assert 8 < at < 99


@pytest.mark.once
def test_whenever_gc_is_killed_while_it_removes_results_the_next_one_goes_on(
    queue: Queue, launcher: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = queue.path / ".results"
    for at in range(1, 20):
        left = place / "fsqueue-results-0123456789abcdef"
        (left / "zzz").mkdir(parents=True)
        left.chmod(0o700)
        (left / "zzz/result").write_text("1")
        (left / ".alive-of-another-boot").touch()
        let_a_week_pass(place)
        with monkeypatch.context() as patch, suppress(Killed):
            dying = Dying(at, patch, "unlink", "rmdir")
            result_paths.reap(queue.store.fs, str(place), time.time())
        let_a_week_pass(place)
        queue.gc()
        assert not left.exists(), at
        if dying.calls < at:
            break
    assert 4 < at < 19


@pytest.mark.once
def test_a_purge_meanwhile_costs_no_result(queue: Queue, launcher: None) -> None:
    queue.insert(1)

    command = f"{sys.executable} -m fsqueue_cli purge --yes $FSQUEUE_QUEUE; echo 2 | {sys.executable} -m fsqueue_cli"
    command += " insert $FSQUEUE_QUEUE; : srun"
    first = f"if mkdir $FSQUEUE_QUEUE.first; then {command}; else echo {{:d}} >$FSQUEUE_RESULT; fi"
    Worker(queue, command=["sh", "-c", first]).run()
    assert [task.result for task in Queue(queue.path).tasks("completed")] == [2]
