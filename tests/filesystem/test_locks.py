"""Locks between openings of a file, threads and processes, waiting for them, and systems without them."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fsqueue
from fsqueue import Queue, UnsafeFilesystem
from fsqueue.clock import Entropy, ManualClock
from fsqueue.filesystem import Filesystem, locks

TRY = """
import fcntl, os, sys
for name in ("F_OFD_GETLK", "F_OFD_SETLK", "F_OFD_SETLKW"):
    delattr(fcntl, name)
from fsqueue.filesystem import locks
fd = os.open(sys.argv[1], os.O_RDWR)
sys.exit(0 if locks.try_lock(fd) else 17)
"""
"""Lock a file with a Python whose `fcntl` lacks the names, as one that was built with an old C library does."""

CLASSIC = """
import fcntl, os, sys
try:
    fcntl.lockf(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(17)
"""
"""Lock a file as another program may do it."""


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


def free_for_another_process(path: Path, script: str = TRY) -> bool:
    environment = os.environ | {"PYTHONPATH": str(Path(fsqueue.__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False, env=environment)
    assert done.returncode in (0, 17)
    return done.returncode == 0


def test_two_openings_in_one_process_exclude_each_other(opened: Opener) -> None:
    first, second = opened(), opened()
    assert locks.try_lock(first)
    assert not locks.try_lock(second)
    locks.unlock(first)
    assert locks.try_lock(second)
    assert not locks.try_lock(first)


def test_locking_what_one_holds_already_is_harmless(opened: Opener) -> None:
    first, second = opened(), opened()
    assert locks.try_lock(first)
    assert locks.try_lock(first)
    locks.unlock(first)
    locks.unlock(first)
    assert locks.try_lock(second)


def test_asking_takes_no_lock(opened: Opener) -> None:
    first, second = opened(), opened()
    assert not locks.is_locked(first)
    assert locks.try_lock(second)
    assert locks.is_locked(first)
    assert not locks.is_locked(second), "what one has locked oneself is not another's"


def test_closing_gives_the_lock_back(opened: Opener) -> None:
    first, second = opened(), opened()
    assert locks.try_lock(first)
    os.close(first)
    assert locks.try_lock(second)


def test_closing_another_opening_keeps_the_lock(opened: Opener) -> None:
    """A classic lock would be lost here, and two processes would write at once."""
    first, second = opened(), opened()
    assert locks.try_lock(first)
    os.close(second)
    assert not free_for_another_process(opened.path)
    locks.unlock(first)
    assert free_for_another_process(opened.path)


def test_a_forked_child_keeps_the_lock_until_it_closes_the_file(opened: Opener) -> None:
    """So a child lets go of what its parent has open: `resources`."""
    first, second = opened(), opened()
    assert locks.try_lock(first)
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(there)
        os.read(here, 1)
        os._exit(0)
    os.close(first)
    assert not locks.try_lock(second)
    os.close(there)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(here)
    assert locks.try_lock(second)


def test_other_processes_are_excluded(opened: Opener) -> None:
    first = opened()
    assert locks.try_lock(first)
    assert not free_for_another_process(opened.path)
    os.close(first)
    assert free_for_another_process(opened.path)


def test_programs_with_classic_locks_are_excluded(opened: Opener) -> None:
    first = opened()
    assert locks.try_lock(first)
    assert not free_for_another_process(opened.path, CLASSIC)
    locks.unlock(first)
    assert free_for_another_process(opened.path, CLASSIC)


def test_the_classic_lock_of_another_program_excludes(opened: Opener) -> None:
    first = opened()
    held, locked = os.pipe()
    ended, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        fcntl.lockf(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(locked, b"!")
        os.read(ended, 1)
        os._exit(0)
    os.close(locked)
    assert os.read(held, 1) == b"!"
    assert locks.is_locked(first)
    assert not locks.try_lock(first)
    os.close(end)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert locks.try_lock(first)
    os.close(held)
    os.close(ended)


def test_threads_exclude_each_other(opened: Opener) -> None:
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


def test_locks_of_different_files_have_nothing_to_do_with_each_other(tmp_path: Path) -> None:
    fds = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in "ab"]
    assert all(locks.try_lock(fd) for fd in fds)
    for fd in fds:
        os.close(fd)


def test_the_numbers_are_those_of_the_system() -> None:
    assert (locks.GET, locks.SET) == (fcntl.F_OFD_GETLK, fcntl.F_OFD_SETLK)


# -- a system without them ------------------------------------------------------------------------------


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A kernel that does not know the calls."""
    monkeypatch.setattr(locks, "GET", 9999)
    monkeypatch.setattr(locks, "SET", 9999)
    locks.fault.cache_clear()
    yield
    monkeypatch.undo()
    locks.fault.cache_clear()


VERBS: dict[str, Callable[[Path], object]] = {
    "open": Queue,
    "create": lambda path: Queue.create(path.with_name("new")),
    "allow": lambda path: Queue.create(path.with_name("new"), allow_unsafe=True),
    "allow an old one": lambda path: Queue.create(path, exist_ok=True, allow_unsafe=True),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_a_system_without_such_locks_is_refused_and_nothing_is_changed(
    tmp_path: Path, request: pytest.FixtureRequest, verb: Callable[[Path], object]
) -> None:
    """Nor does it help to allow what is unsafe: no two workers would exclude each other, on one host either."""
    before = (Queue.create(tmp_path / "q").path / "queue.jsonl").read_bytes()
    request.getfixturevalue("no_locks")
    with pytest.raises(UnsafeFilesystem, match=r"F_OFD_GETLK: Invalid argument.*Use Linux 3\.15 or newer"):
        verb(tmp_path / "q")
    assert os.listdir(tmp_path) == ["q"]
    assert os.listdir(tmp_path / "q") == ["queue.jsonl"]
    assert (tmp_path / "q" / "queue.jsonl").read_bytes() == before


def test_the_system_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Filesystem(str(tmp_path))
    monkeypatch.setattr(locks, "is_locked", None)
    Filesystem(str(tmp_path))


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
