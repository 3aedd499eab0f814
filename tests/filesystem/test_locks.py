"""Locks on open files: between openings, threads and processes, with either kind."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import fsqueue
from fsqueue import Queue
from fsqueue.clock import Entropy, ManualClock
from fsqueue.filesystem import Filesystem, resources, rooted
from fsqueue.filesystem.locks import DescriptionLocks, ProcessLocks, description_locks_work
from tests.support import in_time

Locks = DescriptionLocks | ProcessLocks

TRY = """
import sys
from fsqueue.filesystem.locks import DescriptionLocks, ProcessLocks
import os
locks = {"DescriptionLocks": DescriptionLocks, "ProcessLocks": ProcessLocks}[sys.argv[1]]()
sys.exit(0 if locks.try_lock(os.open(sys.argv[2], os.O_RDWR)) else 17)
"""


@pytest.fixture(params=[DescriptionLocks, ProcessLocks])
def locks(request: pytest.FixtureRequest) -> Locks:
    made: Locks = request.param()
    return made


class Opener:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.fds: list[int] = []

    def __call__(self) -> int:
        self.fds.append(os.open(self.path, os.O_RDWR | os.O_CREAT))
        return self.fds[-1]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(tmp_path / "file")
    yield opener
    for fd in opener.fds:
        try:
            os.close(fd)
        except OSError:
            pass  # the test closed it


def free_for_another_process(kind: Locks, path: Path) -> bool:
    environment = os.environ | {"PYTHONPATH": str(Path(fsqueue.__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", TRY, type(kind).__name__, str(path)], check=False, env=environment)
    assert done.returncode in (0, 17)
    return done.returncode == 0


def test_this_kernel_has_locks_of_open_file_descriptions() -> None:
    assert description_locks_work()


def test_two_openings_in_one_process_exclude_each_other(locks: Locks, opened: Opener) -> None:
    first, second = opened(), opened()
    assert locks.try_lock(first)
    assert not locks.try_lock(second)
    locks.unlock(first)
    assert locks.try_lock(second)
    assert not locks.try_lock(first)


def test_locking_what_one_holds_already_is_harmless(locks: Locks, opened: Opener) -> None:
    first, second = opened(), opened()
    assert locks.try_lock(first)
    assert locks.try_lock(first)
    locks.unlock(first)
    locks.unlock(first)
    assert locks.try_lock(second)


def test_closing_gives_the_lock_back(locks: Locks, opened: Opener) -> None:
    first, second = opened(), opened()
    assert locks.try_lock(first)
    locks.close(first)
    assert locks.try_lock(second)


def test_closing_another_opening_keeps_the_lock(locks: Locks, opened: Opener) -> None:
    """A classic lock would be lost here, and two processes would write at once."""
    first, second = opened(), opened()
    assert locks.try_lock(first)
    locks.close(second)
    assert not free_for_another_process(locks, opened.path)
    locks.unlock(first)
    assert free_for_another_process(locks, opened.path)
    if isinstance(locks, ProcessLocks):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(second)  # it was closed when the lock was given back


def test_other_processes_are_excluded(locks: Locks, opened: Opener) -> None:
    first = opened()
    assert locks.try_lock(first)
    assert not free_for_another_process(locks, opened.path)
    locks.close(first)
    assert free_for_another_process(locks, opened.path)


def test_threads_exclude_each_other(locks: Locks, opened: Opener) -> None:
    counter, inside, most = [0], [0], [0]

    def work(fd: int) -> None:
        for _ in range(50):
            while not locks.try_lock(fd):
                pass
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            counter[0] += 1
            inside[0] -= 1
            locks.unlock(fd)

    threads = [threading.Thread(target=work, args=(opened(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (counter, most) == ([150], [1])


def test_locks_of_different_files_have_nothing_to_do_with_each_other(locks: Locks, tmp_path: Path) -> None:
    fds = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in "ab"]
    assert all(locks.try_lock(fd) for fd in fds)
    for fd in fds:
        locks.close(fd)


def test_a_forked_child_does_not_believe_to_hold_its_parent_s_classic_locks(opened: Opener) -> None:
    locks = ProcessLocks()
    first = opened()
    assert locks.try_lock(first)
    child = os.fork()
    if child == 0:
        os._exit(17 if locks.try_lock(opened()) else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_fallback_is_chosen_where_the_kernel_has_no_better(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(fcntl, "F_OFD_SETLK")
    assert not description_locks_work()
    fs = Filesystem(str(tmp_path))
    assert isinstance(fs.try_lock.__self__, ProcessLocks)  # type: ignore[attr-defined]


# -- waiting for one ------------------------------------------------------------------------------------


def test_waiting_for_a_lock_ends_when_it_comes_free(tmp_path: Path) -> None:
    fs, clock = Filesystem(str(tmp_path), shared=False), ManualClock()
    first, second = fs.create(f"{tmp_path}/f"), fs.look(f"{tmp_path}/f", os.O_RDWR)
    assert fs.try_lock(first)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance(seconds)
        if len(slept) == 5:
            fs.unlock(first)

    clock.sleep = sleep  # type: ignore[method-assign]
    assert fs.lock(second, clock, Entropy(), 10)
    assert len(slept) == 5
    assert slept[4] < 0.02
    fs.close(first)
    fs.close(second)


def test_waiting_for_a_lock_gives_up(tmp_path: Path) -> None:
    fs, clock = Filesystem(str(tmp_path), shared=False), ManualClock()
    first, second = fs.create(f"{tmp_path}/f"), fs.look(f"{tmp_path}/f", os.O_RDWR)
    assert fs.try_lock(first)
    begun = clock.monotonic()
    assert not fs.lock(second, clock, Entropy(), 1.5)
    assert 1.5 <= clock.monotonic() - begun < 1.6
    fs.close(first)
    fs.close(second)


# -- classic locks, between objects of one process ----------------------------------------------------------


def two_filesystems(root: Path) -> tuple[Filesystem, Filesystem]:
    first, second = (Filesystem(str(root), shared=False, process_locks=True) for _ in range(2))
    return first, second


def test_two_filesystems_of_a_process_exclude_each_other_by_classic_locks(tmp_path: Path) -> None:
    first, second = two_filesystems(tmp_path)
    a, b = first.open_append(f"{tmp_path}/f"), second.open_append(f"{tmp_path}/f")
    assert first.try_lock(a)
    assert not second.try_lock(b)
    assert second.is_locked(b)
    first.unlock(a)
    assert second.try_lock(b)
    second.close(b)
    first.close(a)


def test_closing_in_one_filesystem_keeps_the_classic_lock_that_another_has(tmp_path: Path) -> None:
    first, second = two_filesystems(tmp_path)
    a, b = first.open_append(f"{tmp_path}/f"), second.open_append(f"{tmp_path}/f")
    assert first.try_lock(a)
    second.close(b)
    assert not free_for_another_process(ProcessLocks(), f"{tmp_path}/f")
    first.close(a)
    assert free_for_another_process(ProcessLocks(), f"{tmp_path}/f")


def test_a_log_that_is_closed_while_a_classic_lock_is_taken_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector closes a forgotten log in the thread that is just locking the same file."""
    first, second = two_filesystems(tmp_path)
    a, b = first.open_append(f"{tmp_path}/f"), second.open_append(f"{tmp_path}/f")
    lockf = fcntl.lockf

    def collecting(fd: int, how: int) -> None:
        lockf(fd, how)
        monkeypatch.undo()
        second.close(b)

    monkeypatch.setattr(fcntl, "lockf", collecting)
    in_time(lambda: first.try_lock(a))
    assert not free_for_another_process(ProcessLocks(), f"{tmp_path}/f")
    first.close(a)


def test_two_queues_of_a_process_exclude_each_other_by_classic_locks(tmp_path: Path) -> None:
    q = Queue.create(tmp_path / "q", shards=1, durability="none")
    q.insert_many(range(4), batch_tasks=4)
    ours, theirs = (
        Queue(q.path, filesystem=Filesystem(str(q.path), shared=False, process_locks=True)) for _ in range(2)
    )
    [task] = ours.lease(1)
    log = ours.store.logs.get(task.batch)
    with log.mutex:
        assert ours.store.fs.try_lock(log.fd)
        assert theirs.store.fs.is_locked(theirs.store.logs.open(log.batch).fd)
        ours.store.fs.unlock(log.fd)
    assert {one.payload for one in theirs.lease(4)} == {1, 2, 3}


def test_a_lock_whose_descriptor_was_closed_by_somebody_else_is_free(tmp_path: Path) -> None:
    """Else the file would stay locked for this process until it ends."""
    first, second = two_filesystems(tmp_path)
    a, b = first.open_append(f"{tmp_path}/f"), second.open_append(f"{tmp_path}/f")
    assert first.try_lock(a)
    os.close(a)
    assert not second.is_locked(b)
    assert second.try_lock(b)
    second.close(b)


@pytest.mark.parametrize("way", ["watched", "opened"])
def test_asking_for_a_size_gives_no_classic_lock_of_the_file_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"123")
    monkeypatch.setattr(rooted, "size_on_server", lambda *_: None)  # so the file is opened instead
    fs = Filesystem(str(tmp_path), process_locks=True)
    watch = fs.watch(str(path), fs.look(str(path)))
    fd = fs.look(str(path), os.O_RDWR)
    assert fs.try_lock(fd)
    if way == "watched":
        assert watch() == 3
        del watch
    else:
        assert fs.size_on_server(str(path)) == 3
    assert not free_for_another_process(ProcessLocks(), path)
    fs.unlock(fd)
    assert free_for_another_process(ProcessLocks(), path)
    fs.close(fd)


def test_a_descriptor_that_its_server_has_forgotten_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = Filesystem(str(tmp_path), process_locks=True)
    (tmp_path / "file").write_bytes(b"")
    fd = fs.look(str(tmp_path / "file"))

    def forgotten(fd: int) -> tuple[int, int]:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        patch.setattr(ProcessLocks, "_file", staticmethod(forgotten))
        fs.close(fd)
    assert fd not in resources.this_thread.owned.fds
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
