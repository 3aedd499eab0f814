"""A descriptor passes from one owner to the next, and an exception comes in between, as a signal handler raises it.

At instructions of the code that opens, records, keeps, hands over and closes, once at each, a KeyboardInterrupt is
raised by a trace function; in the code of the records once for each caller. Afterwards no descriptor may be open, none
may have been closed twice, and no mutex may be held. A number that was closed stays taken for the test: whatever closes
it once more is found out, though no other file has got the number yet.
"""

from __future__ import annotations

import _thread
import errno
import gc
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count, islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from fsqueue import FsqueueError, Group, Queue, administration, poll
from fsqueue.filesystem import replacing, resources, side_threads
from fsqueue.storage import decisions, listening
from tests.levels import IS_ALL, how_many
from tests.support import open_below
from tests.test_interrupted import HERE, in_thread, places
from tests.waiting import PATIENCE_S, until_nothing_reaps

OWNERS = {"resources.py", "beneath.py", "rooted.py", "operations.py", "journals.py", "logs.py", "open_logs.py",
          "locked_batch.py", "queue_file.py", "store.py", "decisions.py", "update_syncs.py", "single_inserts.py",
          "group_directory.py", "group_queues.py", "arguments.py", "group.py", "selection.py", "keys.py",
          "letter_files.py", "queue.py", "update.py", "numbers.py"}  # fmt: skip
"""Modules that open, keep or close descriptors, or hold mutexes, and those that call them first."""


class CloseWatch:
    """Watch what is closed. A number that was closed is not used again, and leads to the root directory."""

    def __init__(self) -> None:
        self._close, self._nowhere = os.close, os.open("/", os.O_PATH | os.O_CLOEXEC)
        self._closed: set[int] = set()
        self.wrong: list[str] = []
        """What was closed twice, or was not open."""

    def close(self, fd: int) -> None:
        """Close a descriptor as `os.close` does."""
        try:
            os.fstat(fd)
            if fd in self._closed:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        except OSError:
            self.wrong.append(f"{fd} is closed, and was closed before:\n{''.join(traceback.format_stack(limit=9))}")
            raise
        os.dup2(self._nowhere, fd, inheritable=False)
        self._closed.add(fd)

    def end(self) -> None:
        """Give the numbers back."""
        for fd in (*self._closed, self._nowhere):
            self._close(fd)
        self._closed.clear()


class CountedLock(resources.OwnedLock):
    """A lock that can be found."""


class Watch:
    """Watch descriptors and mutexes while an action runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, below: Path) -> None:
        self._patch, self._below = monkeypatch, str(below)
        self._locks: weakref.WeakSet[CountedLock] = weakref.WeakSet()

    def _lock(self) -> CountedLock:
        lock = CountedLock()
        self._locks.add(lock)
        return lock

    @contextmanager
    def run(self) -> Iterator[list[str]]:
        """Watch a block; in the list that it yields stands afterwards what is wrong."""
        wrong: list[str] = []
        others = set(resources._kept)  # of tests that ran before in this process
        closes = CloseWatch()
        with self._patch.context() as patch:
            patch.setattr(os, "close", closes.close)
            patch.setattr(os, "fsync", lambda fd: None)  # no power is lost here
            patch.setattr(resources, "OwnedLock", self._lock)
            yield wrong
            owned = resources.this_thread.owned
            if owned.sections or owned.fds or owned.fresh:
                wrong.append(f"recorded still: {owned.sections}, {owned.fds}, {list(owned.fresh)}")
                owned.sections.clear()
                owned.fds.clear()
                owned.fresh.clear()
            wrong += [f"held still: {lock}" for lock in self._locks if lock.is_mine()]
            poll.put_back_dropped()
            until_nothing_reaps()
            listening.close_idle()
            gc.collect()
            wrong += closes.wrong
            now = [one() for number, one in [*resources._kept.items()] if number not in others]
            wrong += [f"kept still: {kept.fd}" for kept in now if kept is not None]
        closes.end()
        for fd in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):
                if (place := os.readlink(f"/proc/self/fd/{fd}")).startswith(self._below):
                    wrong.append(f"open still: {fd}, {place}")
                    os.close(fd)


TOLD = "the time of the caller is over"


class Interrupter:
    """Raise at an instruction of the owners that was not interrupted before on the same way, once a run.

    The trace function gets the frame that it interrupts, as a signal handler does.
    """

    def __init__(self, kind: type[BaseException] = KeyboardInterrupt) -> None:
        self._kind = kind
        self.seen: set[tuple[object, ...]] = set()
        self.where = ""
        self.lost: list[str] = []
        """What came out of the action in place of the interruption."""

    def run(self, action: Callable[[], object]) -> bool:
        """Do it; False if nothing new was met."""
        self.where = came = ""
        dropped: list[str] = []
        before, hook = sys.gettrace(), sys.unraisablehook
        sys.unraisablehook = lambda one: dropped.append(repr(one.exc_value))
        sys.settrace(self._enter)
        try:
            action()
        except (self._kind, FsqueueError) as error:
            came = repr(error)
        finally:
            sys.settrace(before)
            sys.unraisablehook = hook
        if self.where and repr(self._kind(TOLD)) not in (came, *dropped):
            self.lost.append(f"{self.where}: {came or 'nothing'}")
        return bool(self.where)

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        path = frame.f_code.co_filename
        if self.where or not path.startswith(HERE) or os.path.basename(path) not in OWNERS:
            return None
        if any(one.f_code.co_name == "__del__" for one in _above(frame)):
            return None  # a finalizer: Python swallows what is raised there
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode" and not self.where and frame.f_lasti in places(frame.f_code):
            key: tuple[object, ...] = (frame.f_code, frame.f_lasti)
            if IS_ALL or frame.f_code.co_filename == resources.__file__:
                key += tuple(one.f_code for one in islice(_above(frame.f_back), 1))
            if key not in self.seen:
                self.seen.add(key)
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname} @{frame.f_lasti}"
                raise self._kind(TOLD)
        return self._step


def _above(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def work(queue: Queue) -> None:
    """Insert, lease and end tasks in each way."""
    queue.insert(1)
    queue.insert_many([1, 2, 3])
    first, second, third, *more = queue.lease(5)
    first.complete()
    second.fail("no", delay_s=0)
    third.renew()
    third.bury("no")
    queue.release(more)


def finish(queue: Queue) -> None:
    """End a batch, and read what is kept of it."""
    queue.insert_many([1, 2], batch_tasks=2)
    queue.complete(queue.lease(100), {})


def look(queue: Queue) -> None:
    """Read all that can be read."""
    queue.status()
    queue.activity()
    next(iter(queue.tasks()), None)
    for _ in (*queue.tasks(), *queue.dead(), *queue.fsck()):
        pass
    queue.is_drained()
    queue.wait(0)


def loop(queue: Queue) -> None:
    """Work in a loop that is left."""
    for number, task in enumerate(queue.poll(prefetch=2)):
        with task:
            pass
        if number:
            break


def insert_with_keys(queue: Queue) -> None:
    """Insert tasks with keys: new ones, and one whose key is taken."""
    for number in (next(NUMBERS), next(NUMBERS)):
        queue.insert(number, key=f"{number}")
        queue.insert(number, key=f"{number}")


NUMBERS = count()
QUEUE_VERBS: dict[str, Callable[[Queue], object]] = {
    "work": work,
    "finish": finish,
    "look": look,
    "loop": loop,
    "insert with keys": insert_with_keys,
    "retry": lambda queue: (queue.retry_dead(), queue.retry_completed()),
    "commit": lambda queue: queue.insert_many([1, 2], commit=f"c{next(NUMBERS)}"),
    "gc": lambda queue: (queue.gc(), queue.close(), queue.insert(1)),
    "purge": lambda queue: (queue.insert(1), queue.purge()),
    "settings": lambda queue: (queue.pause("why"), queue.resume(), queue.change_settings(lease_s=20)),
}
QUEUE_OF_GROUP_VERBS: dict[str, Callable[[Group], object]] = {
    name: (lambda group, act=act: act(group["A"])) for name, act in QUEUE_VERBS.items()
}
GROUP_VERBS: dict[str, Callable[[Group], object]] = {
    "new queue": lambda group: group[f"new-{next(NUMBERS)}"].insert(1),
    "delete": lambda group: (group["gone"].insert(1), group.delete("gone"), group["gone"].exists()),
    "look": lambda group: (
        group.status(),
        group.is_drained(),
        group.wait(0),
        [*group.queues()],
        group.settings,
        group.id,
    ),
    "usage": lambda group: (group.usage(), group.flows(), [*group.fsck()]),
    "lease": lambda group: [task.complete() for task in group.lease(2)],
    "loop": lambda group: next(iter(group.poll())).complete(),
    "find": lambda group: (
        Group.at(group.path),
        Group.queue_at(group.path / "A").status(),
        Group.holding(group.path / "A"),
    ),
    "lineage": lambda group: group.lineage("A", group["A"].insert(1).id),
}


def complete_and_insert(group: Group) -> None:
    """Move a task from one queue to another."""
    group["A"].insert(1)
    [task] = group["A"].lease(1)
    with group.update() as update:
        update.complete(task)
        update.insert("B", 2)
        update.insert("C", 3, key=f"{next(NUMBERS)}")


def change_what_was_seen(group: Group) -> None:
    """Replace, cancel and depend on tasks that were looked up."""
    seen = [group["A"].task(group["A"].insert(number).id) for number in range(3)]
    with group.update() as update:
        update.replace(seen[0], "new")
        update.cancel(seen[1])
        update.depends(seen[2])


def update_one_queue(group: Group) -> None:
    """Insert, and end a task, by one write."""
    with group.update() as update:
        update.insert("A", 1)
        update.insert("A", 2)
    [task] = group["A"].lease(1)
    with group.update() as update:
        update.complete(task)
        update.insert("A", 1)


def conflict(group: Group) -> None:
    """Give an update up."""
    group["A"].insert(1)
    [task] = group["A"].lease(1)
    update = group.update()
    update.complete(task)
    update.insert("B", 1)
    task.release()
    with suppress(FsqueueError):
        update.apply()


UPDATES: dict[str, Callable[[Group], object]] = {
    "complete and insert": complete_and_insert,
    "change what was seen": change_what_was_seen,
    "update one queue": update_one_queue,
    "conflict": conflict,
}
ROUNDS = 100
"""After so many interruptions the queue, or the group, is another one: its files grow."""


def new_queue(path: Path) -> None:
    """Make a queue with a few batches."""
    with Queue.create(path, shards=2, max_attempts=2, backoff_s=(0, 0)) as queue:
        queue.insert_many(range(40), batch_tasks=8)


def new_group(path: Path) -> None:
    """Make a group with such queues."""
    group = Group.create(path, shards=2, max_attempts=2, backoff_s=(0, 0))
    for name in "ABC":
        with group[name] as queue:
            queue.insert_many(range(40), batch_tasks=8)


Verbs = dict[str, Callable[[Any], object]]
VERBS: dict[str, tuple[Callable[[Path], object], Callable[[Path], Any], Verbs]] = {
    "a queue": (new_queue, Queue, QUEUE_VERBS),
    "a queue of a group": (new_group, Group, QUEUE_OF_GROUP_VERBS),
    "a group": (new_group, Group, GROUP_VERBS),
    "updates": (new_group, Group, UPDATES),
}


def interrupted_anywhere(watch: Watch, place: Path, kind: type[BaseException], of: str) -> tuple[list[str], int]:
    """Interrupt each verb at each instruction of the owners: of an object that it has just opened.

    What one verb was interrupted at, the next ones are not. Return what was wrong, and how many interruptions there
    were.
    """
    failed: list[str] = []
    interrupter, rounds, number = Interrupter(kind), 0, count()
    make, open_, verbs = VERBS[of]
    for verb, act in verbs.items():
        hit, mine = True, 0
        while hit and len(failed) < 9:
            if mine % ROUNDS == 0:
                here = place / f"{next(number)}"
                make(here)
            mine += 1
            with watch.run() as wrong:
                hit = interrupter.run(lambda: act(open_(here)))  # noqa: B023 - called at once
            failed += [f"{verb} at {interrupter.where}: {one}" for one in wrong]
        failed += [f"{verb}: lost at {one}" for one in interrupter.lost]
        interrupter.lost.clear()
        rounds += mine
    return failed, rounds


def start_what_is_waited_for(function: Any, given: tuple[Any, ...]) -> None:
    """Make the calls of an update here. `Watch` puts back what a loop has left: no thread does."""
    if isinstance(getattr(function, "__self__", None), side_threads._Calls):
        function(*given)


@pytest.mark.parametrize("of", VERBS)
@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError])
def test_an_interruption_leaves_each_descriptor_to_one_owner_and_comes_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException], of: str
) -> None:
    """In all verbs. A TimeoutError is an OSError, as the system's."""
    monkeypatch.setattr(_thread, "start_new_thread", start_what_is_waited_for)
    monkeypatch.setattr(administration, "_reap_later", lambda reap: None)
    gc.collect()
    gc.freeze()  # what is there by now is not looked through each time
    try:
        failed, rounds = in_thread(lambda: interrupted_anywhere(Watch(monkeypatch, tmp_path), tmp_path, kind, of))
    finally:
        gc.unfreeze()
    assert not failed, "\n".join(failed)
    assert rounds > how_many(500, 2500)


def raised_at(code: CodeType, event: str, action: Callable[[], object], where: Callable[[FrameType], bool]) -> None:
    """Do it, interrupted once in a function at an event of its trace."""
    done: list[bool] = []

    def local(frame: FrameType, now: str, _: Any) -> Any:
        if now == event and not done and where(frame):
            done.append(True)
            raise KeyboardInterrupt
        return local

    before = sys.gettrace()
    sys.settrace(lambda frame, now, _: local if frame.f_code is code else None)
    try:
        with pytest.raises(KeyboardInterrupt):
            action()
    finally:
        sys.settrace(before)


def test_a_file_that_a_program_opens_after_an_interruption_stays_open(tmp_path: Path) -> None:
    """The decision file of the process was just being kept: its number is the program's now."""
    new_group(tmp_path / "g")
    group = Group(tmp_path / "g")
    [task] = group["A"].lease(1)
    group["B"].insert(1)
    update = group.update()
    update.complete(task)
    update.insert("B", 2)
    mine: list[int] = []

    def apply() -> None:
        try:
            update.apply()
        except KeyboardInterrupt:
            mine.extend(os.open(tmp_path / "mine", os.O_RDWR | os.O_CREAT) for _ in range(4))
            raise

    in_thread(lambda: raised_at(decisions._Opened.__init__.__code__, "return", apply, lambda frame: True))
    gc.collect()
    wanted = os.stat(tmp_path / "mine")
    for fd in mine:
        assert os.path.samestat(os.fstat(fd), wanted)
        os.close(fd)
    with group.update() as again:
        again.complete(task)
        again.insert("B", 2)


def test_an_interruption_while_a_queue_of_a_group_is_opened_stops_no_other_thread(tmp_path: Path) -> None:
    new_group(tmp_path / "g")
    queue = Group(tmp_path / "g")["A"]

    def status() -> None:
        raised_at(
            resources.Mutex.__exit__.__code__,
            "line",
            queue.status,
            lambda frame: frame.f_locals["self"] is queue._opening,
        )
        assert resources.this_thread.owned.sections == []
        assert not queue._opening._lock.is_mine()

    in_thread(status)
    thread = threading.Thread(target=queue.insert, args=(1,), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_release_that_is_interrupted_is_done_once_more(tmp_path: Path) -> None:
    """A second interruption, before the unlocking: the descriptor stays recorded, and is closed after all."""
    closer = resources._Plain()
    calls: list[int] = []

    def unlock(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            raise KeyboardInterrupt

    closer.unlock = unlock
    before = resources.mark()
    fd = resources.opened(closer, map(os.open, (str(tmp_path),), (os.O_RDONLY,)))
    assert type(resources.give_back(before, FileNotFoundError())) is KeyboardInterrupt
    assert calls == [fd, fd]
    assert fd not in resources.this_thread.owned.fds
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


class _Broken:
    """A section that cannot be abandoned at first."""

    def __init__(self, error: BaseException) -> None:
        self.errors = [error]

    def abandon(self) -> None:
        """Raise the error, once."""
        if self.errors:
            raise self.errors.pop()


@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_of_what_a_release_raises_an_interruption_alone_takes_the_place_of_the_error(
    kind: type[BaseException],
) -> None:
    expected, broken = FileNotFoundError(), kind()

    def fail() -> None:
        with resources.Scope():
            resources.this_thread.owned.sections.append(_Broken(broken))
            raise expected

    with pytest.raises((KeyboardInterrupt, FileNotFoundError)) as raised:
        fail()
    assert raised.value is (expected if kind is OSError else broken)
    assert resources.this_thread.owned.sections == []


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError])
def test_an_interruption_of_the_release_after_an_expected_error_comes_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    """The queue has just been deleted: `exists` meets that, clears up, and would return False."""
    group, interrupter = Group.create(tmp_path / "g"), Interrupter(kind)
    monkeypatch.setitem(globals(), "OWNERS", {"resources.py"})

    def all_places() -> None:
        hit = True
        while hit:
            queue = group["gone"]
            queue.insert(1)
            Group(group.path).delete("gone")
            hit = interrupter.run(queue.exists)
            assert interrupter.lost == []
            assert resources.this_thread.owned.sections == []
            assert resources.this_thread.owned.fds == {}

    in_thread(all_places)
    entered = {code.co_name for code, *_ in interrupter.seen if isinstance(code, CodeType)}
    assert {"give_back", "mark"} <= entered, entered


def test_a_number_that_was_open_before_and_is_another_files_now_is_given_back(tmp_path: Path) -> None:
    closer, others = resources._Plain(), dict(resources.this_thread.owned.fds)
    first = resources.opened(closer, map(os.open, (str(tmp_path),), (os.O_RDONLY,)))
    before = resources.mark()
    resources.close(first)  # as the end of a listing that user code has let go of
    again = resources.opened(closer, map(os.open, (str(tmp_path),), (os.O_RDONLY,)))
    assert again == first
    resources.give_back(before, KeyboardInterrupt())
    assert resources.this_thread.owned.fds == others
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(again)


def test_an_interruption_on_the_way_along_a_link_closes_no_number_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("other")
    (tmp_path / "other").symlink_to("file")
    monkeypatch.setitem(globals(), "OWNERS", {"replacing.py"})
    interrupter, hit = Interrupter(), True
    while hit:
        closes = CloseWatch()
        with monkeypatch.context() as patch:
            patch.setattr(os, "close", closes.close)
            hit = interrupter.run(lambda: os.close(replacing.place_of(str(tmp_path / "link"))[0]))
        closes.end()
        assert closes.wrong == [], interrupter.where
    assert len(interrupter.seen) > 10


def test_a_lingering_listener_keeps_no_queue_open(tmp_path: Path) -> None:
    """It is kept for the next wait. A disk could not be unmounted meanwhile, though its queue was let go of."""
    queue = Queue.create(tmp_path / "q")
    queue.insert(1)
    with listening.over([queue.store.doorbell], queue.store.clock) as listener:
        listener.listen()
    assert listener.fd != listening.NONE
    del queue
    gc.collect()
    assert open_below(tmp_path) == 0
    listening.close_idle()
