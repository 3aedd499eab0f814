"""Idle workers wake at once when a process of their host rings, and sleep as without it where they cannot listen."""

from __future__ import annotations

import errno
import gc
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Queue
from fsqueue.clock import Clock, ManualClock
from fsqueue.filesystem import changes
from fsqueue.storage import listening
from fsqueue.storage.listening import RETRY_S, Listener
from tests.support import inotify_instances, watched_sleeps
from tests.waiting import PATIENCE_S, until

LONG_S = PATIENCE_S
"""A sleep that nothing but a wake-up ends in time."""
SHORT_S = 0.05
"""A sleep that ends by itself."""

pytestmark = pytest.mark.once


class Ticking(Clock):
    """A real clock that a test can set forward."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s


@pytest.fixture
def listener(queue: Queue) -> Iterator[Listener]:
    """Listens to a queue in which something was inserted before."""
    queue.insert("before")
    made = Listener([queue.store.doorbell], Ticking())
    assert made.listen()
    yield made
    made.close()


def ring_from_another_process(queue: Queue) -> None:
    code = "import sys; from fsqueue import Queue; Queue(sys.argv[1]).store.doorbell.ring()"
    subprocess.run([sys.executable, "-c", code, queue.path], check=True, cwd=Path(__file__).parents[2])


def ends_early(listener: Listener, seconds: float = LONG_S, deaf: bool = False) -> bool:
    """Sleep. Return whether something else than the time ended it, or it did not begin."""
    with watched_sleeps() as sleeps:
        listener.sleep(seconds, deaf)
    return sleeps.ended != [False]


def wakes(listener: Listener, act: Callable[[], object]) -> bool:
    """Sleep, and do something in another thread meanwhile. Return whether that ended the sleep."""
    with watched_sleeps() as sleeps:

        def meanwhile() -> None:
            until(lambda: sleeps.begun, "the sleep")
            act()

        thread = threading.Thread(target=meanwhile)
        thread.start()
        listener.sleep(LONG_S)
        thread.join()
    return sleeps.ended == [True]


def watched_inodes(listener: Listener) -> set[int]:
    lines = Path(f"/proc/self/fdinfo/{listener.fd}").read_text().splitlines()
    return {int(line.split("ino:")[1].split()[0], 16) for line in lines if line.startswith("inotify")}


def test_another_process_ends_the_sleep(queue: Queue, listener: Listener) -> None:
    assert wakes(listener, lambda: ring_from_another_process(queue))


def test_the_next_sleep_does_not_end_by_an_old_ring(queue: Queue, listener: Listener) -> None:
    for _ in range(3):
        queue.store.doorbell.ring()
        assert ends_early(listener)
        assert not ends_early(listener, SHORT_S)


def test_a_ring_before_the_sleep_ends_it(queue: Queue, listener: Listener) -> None:
    queue.store.doorbell.ring()
    assert ends_early(listener)


def test_a_deaf_sleep_lasts(queue: Queue, listener: Listener) -> None:
    queue.store.doorbell.ring()
    assert not ends_early(listener, SHORT_S, deaf=True)


def test_a_doorbell_that_no_process_has_rung_yet_is_waited_for(queue: Queue) -> None:
    listener = Listener([queue.store.doorbell], Clock())
    assert not (Path(queue.path) / "doorbell").exists()
    assert listener.listen()
    assert not listener.listen(), "nothing more is possible"
    assert wakes(listener, queue.store.doorbell.ring)
    listener.listen()
    assert watched_inodes(listener) == {(Path(queue.path) / "doorbell").stat().st_ino}
    listener.take_in()
    assert wakes(listener, queue.store.doorbell.ring)
    listener.close()


def test_a_doorbell_that_was_replaced_is_heard_again(queue: Queue, listener: Listener, tmp_path: Path) -> None:
    bell = Path(queue.path) / "doorbell"
    (tmp_path / "new").write_bytes(bytes(16))
    os.replace(tmp_path / "new", bell)
    assert ends_early(listener), "the end of the watch is told"
    assert listener.listen()
    assert watched_inodes(listener) == {bell.stat().st_ino}
    os.rename(bell, tmp_path / "away")
    assert ends_early(listener)
    assert ends_early(listener), "it waits for a new one now, and looks before"
    assert wakes(listener, queue.store.doorbell.ring)


@pytest.mark.parametrize("planted", ["link", "pipe", "linked directory"])
def test_nothing_outside_the_queue_is_watched(queue: Queue, tmp_path: Path, planted: str) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(bytes(16))
    bell = Path(queue.path) / "doorbell"
    if planted == "link":
        bell.symlink_to(outside)
    elif planted == "pipe":
        os.mkfifo(bell)
    else:
        (tmp_path / "directory").mkdir()
        bell.symlink_to(tmp_path / "directory")
    listener = Listener([queue.store.doorbell], Clock())
    assert not listener.listen()
    assert watched_inodes(listener) == set()
    assert not ends_early(listener, SHORT_S)
    listener.close()


def test_the_queue_that_takes_the_place_of_another_is_not_watched(queue: Queue, tmp_path: Path) -> None:
    """What is watched lies below the directory that was opened."""
    queue.insert("x")
    old = (Path(queue.path) / "doorbell").stat().st_ino
    os.rename(queue.path, tmp_path / "moved")
    Queue.create(queue.path).insert("y")
    listener = Listener([queue.store.doorbell], Clock())
    assert listener.listen()
    assert watched_inodes(listener) == {old}
    listener.close()


@pytest.mark.parametrize("missing", ["library", "instances", "watches", "/proc", "function"])
def test_without_inotify_a_sleep_lasts_and_it_is_tried_again_later(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, missing: str
) -> None:
    queue.insert("x")
    clock = Ticking()
    listener = Listener([queue.store.doorbell], clock)
    tries = []

    def failing(error: Exception) -> Callable[..., Any]:
        def fail(*_: object, **__: object) -> None:
            tries.append(error)
            raise error

        return fail

    with monkeypatch.context() as patch, caplog.at_level(logging.DEBUG, "fsqueue"):
        if missing == "library":
            patch.setattr(changes, "_library", failing(ModuleNotFoundError("No module named 'inotify_simple'")))
        elif missing == "watches":
            patch.setattr(changes._library().INotify, "add_watch", failing(OSError(errno.ENOSPC, "no watches left")))
        elif missing == "/proc":
            patch.setattr(changes._library().INotify, "add_watch", failing(OSError(errno.ENOENT, "no /proc")))
        elif missing == "function":
            patch.setattr(changes._library(), "INotify", failing(AttributeError("inotify_init1")))
        else:
            patch.setattr(changes._library(), "INotify", failing(OSError(errno.EMFILE, "no instances left")))
        for _ in range(3):
            assert not ends_early(listener, SHORT_S)
        assert len(tries) == 1
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    assert not ends_early(listener, SHORT_S)
    assert listener.is_complete, "it is not tried again at once"
    clock.ahead_s += RETRY_S + 1
    listener.sleep(0)
    assert wakes(listener, queue.store.doorbell.ring)
    listener.close()


def test_a_library_that_is_not_installed_is_no_error(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    changes._library.cache_clear()
    monkeypatch.setitem(sys.modules, "inotify_simple", None)
    with pytest.raises(OSError, match="no inotify"):
        changes.Changes()
    assert queue.lease(wait_s=0.05) == []
    changes._library.cache_clear()


def test_no_program_is_started_to_find_the_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a program is started")

    monkeypatch.setattr(subprocess, "Popen", fail)
    monkeypatch.delitem(sys.modules, "inotify_simple", raising=False)
    changes._library.cache_clear()
    changes.Changes().close()


@pytest.mark.parametrize("listening", [True, False])
def test_a_descriptor_ends_every_sleep(queue: Queue, listening: bool) -> None:
    queue.insert("x")
    end = os.eventfd(0, os.EFD_CLOEXEC)
    listener = Listener([queue.store.doorbell] if listening else [], Clock(), end)
    listener.listen()
    assert wakes(listener, lambda: os.eventfd_write(end, 1))
    assert ends_early(listener)
    assert ends_early(listener, deaf=True)
    listener.close()
    os.close(end)


def test_several_queues_are_heard(queue_factory: Callable[..., Queue]) -> None:
    queues = [queue_factory("a"), queue_factory("b"), queue_factory("c")]
    queues[0].insert("x")
    before = inotify_instances()
    listener = Listener([queue.store.doorbell for queue in queues], Clock())
    assert listener.listen()
    assert inotify_instances() - before == {str(listener.fd)}
    for queue in queues:
        assert wakes(listener, queue.store.doorbell.ring)
        while listener.listen():
            pass
        listener.take_in()
    listener.close()


def test_threads_of_a_process_all_wake(queue: Queue) -> None:
    queue.insert("x")
    listeners = [Listener([queue.store.doorbell], Clock()) for _ in range(4)]
    threads = [threading.Thread(target=listener.sleep, args=(LONG_S,)) for listener in listeners]
    with watched_sleeps() as sleeps:
        for listener, thread in zip(listeners, threads, strict=True):
            listener.listen()
            thread.start()
        until(lambda: len(sleeps.begun) == len(threads), "threads that sleep")
        queue.store.doorbell.ring()
        for thread in threads:
            thread.join()
    assert sleeps.ended == [True] * len(threads)
    for listener in listeners:
        listener.close()


def test_a_forked_child_listens_anew_and_takes_no_ring_from_its_parent(queue: Queue, listener: Listener) -> None:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            fine = listener.fd == -1 and not inotify_instances() and listener.listen()
            queue.store.doorbell.ring()
            fine = fine and ends_early(listener)
            os.write(write, b"fine" if fine else b"no")
        finally:
            os._exit(0)
    os.close(write)
    try:
        os.waitpid(child, 0)
        assert os.read(read, 100) == b"fine"
        assert ends_early(listener), "the child has read its own ring only"
    finally:
        os.close(read)


def test_a_waiting_queue_keeps_one_instance_until_it_is_closed(queue: Queue) -> None:
    gc.collect()
    listening.close_idle()
    before = inotify_instances()
    for _ in range(3):
        assert queue.lease(wait_s=0.05) == []
    assert len(inotify_instances() - before) <= 1
    queue.close()
    assert inotify_instances() <= before
    assert queue.lease(wait_s=0.05) == []
    assert len(inotify_instances() - before) <= 1
    del queue
    gc.collect()


def test_a_queue_that_is_dropped_leaves_none(tmp_path: Path) -> None:
    gc.collect()
    listening.close_idle()
    before = inotify_instances()
    queue = Queue.create(tmp_path / "dropped")
    queue.lease(wait_s=0.05)
    assert len(inotify_instances() - before) <= 1
    del queue
    gc.collect()
    until(lambda: inotify_instances() <= before, "the instance that nobody waits by to be closed")


def test_where_time_stands_still_nothing_is_listened_to(queue: Queue) -> None:
    before = inotify_instances()
    clock = ManualClock()
    slow = Queue(queue.path, clock=clock)
    assert slow.lease(wait_s=100) == []
    assert inotify_instances() <= before


def test_a_listener_turns_to_other_doorbells(listener: Listener, queue: Queue, tmp_path: Path) -> None:
    """Those of the queues that are open now, in a wait at a group."""
    with Queue.create(tmp_path / "other") as other:
        other.insert("before")
        before = listener.fd
        listener.turn_to([queue.store.doorbell])
        assert listener.fd == before, "the same one: nothing begins anew"
        listener.turn_to([other.store.doorbell])
        assert listener.listen()
        assert wakes(listener, other.store.doorbell.ring)
        queue.store.doorbell.ring()
        assert not ends_early(listener, SHORT_S)
        listener.turn_to([])
        assert not ends_early(listener, SHORT_S)
