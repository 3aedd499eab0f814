"""An exception between any two instructions of a verb, as Ctrl-C raises it: nothing stays locked or open.

At instructions of fsqueue's own code that a verb executes, once at each, a KeyboardInterrupt is raised by a trace
function: in the gate where a signal handler can run, with --all also where it could not. Then no mutex and no file lock
may be taken, no descriptor be open that does not belong to an open log, and the queue must go on.
"""

from __future__ import annotations

import _thread
import dis
import gc
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

import pytest

import fsqueue
from fsqueue import FsqueueError, LeasedTask, Queue, poll
from fsqueue.filesystem import Filesystem, resources
from fsqueue.filesystem.rooted import SizeOf
from fsqueue.format.layout import Durability, settings_file
from tests.levels import IS_ALL, how_many

T = TypeVar("T")

HERE = os.path.dirname(fsqueue.__file__) + "/"
SECTIONS = {"resources.py", "locks.py", "logs.py", "open_logs.py", "locked_batch.py", "journals.py", "store.py",
            "queue_file.py", "leasing.py", "transitions.py", "arguments.py", "queue.py", "poll.py", "rooted.py",
            "beneath.py", "single_inserts.py", "sealing.py", "keyed_inserts.py", "keys.py"}  # fmt: skip
"""Modules that take something, or give it back. In the others nothing is taken that these do not know of."""
EVERYWHERE = os.environ.get("FSQUEUE_TEST_INTERRUPT") == "everywhere"
"""Set it to interrupt all other modules, too, which takes minutes."""


@cache
def places(code: CodeType) -> frozenset[int]:
    """Return the instructions at which a function is interrupted."""
    if EVERYWHERE or IS_ALL:
        return frozenset(one.offset for one in dis.get_instructions(code)) - never_interrupted(code)
    return behind_looks(code)


@cache
def behind_looks(code: CodeType) -> frozenset[int]:
    """Return where the interpreter has just looked for signals: at a function's begin, behind calls and jumps back."""
    found: set[int] = set()
    looked = False
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if looked:
            found.add(instruction.offset)
        if "BACKWARD" in name:
            found.add(instruction.argval)
        looked = name == "RESUME" or (name.startswith("CALL") and not name.startswith("CALL_INTRINSIC"))
    return frozenset(found)


@cache
def never_interrupted(code: CodeType) -> frozenset[int]:
    """Return where only a trace function can raise, and the interpreter would then take one thing for another.

    It looks for signals nowhere near. Where it has prepared a call with keywords, an exception would leave that to the
    next call (CPython 3.11 and 3.12). Where it begins or ends to handle an exception, this would stay the one that the
    thread handles: for good, and with it all that its frames have.
    """
    found: set[int] = set()
    prepared = False
    for instruction in dis.get_instructions(code):
        handles = instruction.opname in ("PUSH_EXC_INFO", "POP_EXCEPT")
        if prepared or handles:
            found.add(instruction.offset)
        if instruction.opname == "POP_EXCEPT":
            found.add(instruction.offset - COPY_BYTES)  # of an exception that is raised on, the instruction before it
        prepared = instruction.opname == "KW_NAMES" or (prepared and instruction.opname != "CALL")
    return frozenset(found)


COPY_BYTES = 2


class Interrupter:
    """Raises KeyboardInterrupt at an instruction of fsqueue that was not interrupted before, once a run."""

    def __init__(self) -> None:
        self.seen: set[tuple[CodeType, int]] = set()
        self.where = ""

    def run(self, action: Callable[[], object]) -> bool:
        """Do it; False if nothing new was met, and it came to its end."""
        self.where = ""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            action()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return bool(self.where)  # swallowed where Python swallows it: in a finalizer

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        path = frame.f_code.co_filename
        if self.where or not path.startswith(HERE) or not (EVERYWHERE or os.path.basename(path) in SECTIONS):
            return None
        above: FrameType | None = frame
        while above is not None:
            if above.f_code.co_name == "__del__" or above.f_code.co_filename.endswith("/weakref.py"):
                return None  # a finalizer: what is raised there is swallowed, and may leave a descriptor open
            above = above.f_back
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode" and not self.where:
            key = frame.f_code, frame.f_lasti
            if key not in self.seen and frame.f_lasti in places(frame.f_code):
                self.seen.add(key)
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname} @{frame.f_lasti}"
                raise KeyboardInterrupt
        return self._step


def descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            pass
    return found


def is_locked_by(fd: int) -> bool:
    """Whether a descriptor has a file lock."""
    return "lock:" in Path(f"/proc/self/fdinfo/{fd}").read_text()


def check(queue: Queue, before: dict[int, str]) -> None:
    """Nothing is taken, and what is open belongs to open logs, or tells whether the queue was purged."""
    poll.put_back_dropped()
    store = queue.store
    assert resources.this_thread.owned.sections == []
    assert not resources.this_thread.owned.fds
    assert not store.mutex.locked()
    assert not any(log.mutex.locked() for log in store.logs)
    logs = {log.fd: log.path for log in store.logs} | {store.fs._root_fd: store.path}
    if (synced := queue._inserter._syncer._log) is not None:
        logs[synced.fd] = store.layout.log(synced.batch)
    if isinstance(store.queue_file._size_now, SizeOf):
        logs[store.queue_file._size_now.args[0]] = settings_file(store.path)
    now = {fd: path for fd, path in descriptors().items() if before.get(fd) != path}
    if now.keys() - logs.keys():
        gc.collect()
        now = {fd: path for fd, path in descriptors().items() if before.get(fd) != path}
    assert now.keys() <= logs.keys(), {fd: now[fd] for fd in now.keys() - logs.keys()}
    for fd, path in now.items():
        assert path.split()[0] == logs[fd]
        assert not is_locked_by(fd)


def lease_and_complete(queue: Queue) -> None:
    for task in queue.lease(1):
        task.complete()


def lease_and_release(queue: Queue) -> None:
    queue.release(queue.lease(2))


def fail_and_bury(queue: Queue) -> None:
    for task, end in zip(queue.lease(2), (LeasedTask.fail, LeasedTask.bury), strict=False):
        end(task, "no")


def finish(queue: Queue) -> None:
    queue.insert_many([1, 2], batch_tasks=2)
    queue.complete(queue.lease(2), {})


def loop(queue: Queue) -> None:
    for number, task in enumerate(queue.poll(prefetch=2)):
        with task:
            pass
        if number == 2:
            break
    for task in queue.poll():
        with task:
            break


VERBS: dict[str, Callable[[Queue], object]] = {
    "lease, complete": lease_and_complete,
    "lease, release": lease_and_release,
    "lease, fail, bury": fail_and_bury,
    "finish": finish,
    "poll": loop,
    "renew": lambda q: q.renew(q.lease(1)),
    "retry": lambda q: q.retry_dead(),
    "retry completed": lambda q: q.retry_completed(),
    "look": lambda q: (q.status(), list(q.tasks()), list(q.dead())),
    "gc": lambda q: q.gc(),
    "commit": lambda q: q.insert_many([1, 2], commit=os.urandom(4).hex()),
    "reopen": lambda q: (q.close(), q.insert(1)),
}
SINGLE_INSERTS: dict[str, Callable[[Queue], object]] = {
    "insert": lambda q: q.insert(1),
    "insert first": lambda q: (forget_batch(q), q.insert(1)),
    "insert into a full batch": lambda q: [q.insert(1) for _ in range(4)],
    "insert and work": lambda q: (q.insert(1), [task.complete() for task in q.lease(3)]),
}
"""Verbs on a queue in which single inserts are appended to open batches; each is synced."""
KEYED: dict[str, Callable[[Queue], object]] = {
    "insert with a key": lambda q: [q.insert(1, key="k") for _ in range(2)],
    "free a key": lambda q: (q.insert(1, key="k"), q.complete(q.lease(3)), q.insert(1, key="k")),
}
"""Inserts with keys: new ones, those of tasks that wait, those of tasks that have ended."""


def forget_batch(queue: Queue) -> None:
    """Let the next insert begin as that of a process that was just started."""
    queue.close()
    queue._inserter._batch = queue._inserter._known_batch = None


def in_thread(act: Callable[[], T]) -> T:
    """Return what `act` returns, called in a thread of its own.

    An exception between two instructions of an `except` clause leaves the clause's error to the thread, for good, as
    the one that is being handled. In the main thread all later errors would carry it, with what its frames hold.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result()


def test_verbs_interrupted_anywhere_leave_nothing_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_thread, "start_new_thread", lambda *_: None)  # `check` puts back what a loop has left
    interrupter = Interrupter()
    failed = in_thread(lambda: interrupted_anywhere(tmp_path, interrupter, VERBS))
    assert not failed, "\n".join(failed)
    assert len(interrupter.seen) > how_many(200, 1000)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_single_inserts_interrupted_anywhere_leave_nothing_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the tasks whose insert was interrupted each is there whole, or not at all: all can be worked off."""
    interrupter = Interrupter()
    failed = in_thread(lambda: interrupted_anywhere(tmp_path, interrupter, SINGLE_INSERTS, "default", 3))
    assert not failed, "\n".join(failed)
    assert len(interrupter.seen) > how_many(200, 1000)
    for path in tmp_path.iterdir():
        with Queue(path) as queue:
            while tasks := queue.lease(100):
                assert {task.payload for task in tasks} <= {*range(600), 1, "another"}
                queue.complete(tasks)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_inserts_with_keys_interrupted_anywhere_leave_nothing_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of a key one task lives at most: when all have ended, the next insert is new, and the one after it is not."""
    interrupter = Interrupter()
    failed = in_thread(lambda: interrupted_anywhere(tmp_path, interrupter, KEYED))
    assert not failed, "\n".join(failed)
    assert {"keys.py", "keyed_inserts.py"} <= {os.path.basename(code.co_filename) for code, _ in interrupter.seen}
    for path in tmp_path.iterdir():
        with Queue(path) as queue:
            keys = [info.key for info in queue.tasks() if info.key is not None and info.state in ("waiting", "leased")]
            assert len(keys) == len(set(keys))
            queue.release_all()  # what was leased after an interruption
            while tasks := queue.lease(100):
                queue.complete(tasks)
            assert [queue.insert(1, key="k").inserted for _ in range(2)] == [True, False]


def interrupted_anywhere(
    tmp_path: Path,
    interrupter: Interrupter,
    verbs: dict[str, Callable[[Queue], object]],
    durability: Durability = "none",
    batch_tasks_max: int = 1024,
) -> list[str]:
    """Interrupt each verb at each of its `places`, and return what was wrong."""
    failed: list[str] = []
    queues = 0
    for verb, act in verbs.items():
        rounds, hit = 0, True
        while hit:
            if rounds % 100 == 0:
                queues += 1
                queue = Queue.create(
                    tmp_path / f"{queues}", shards=2, durability=durability, max_attempts=2, backoff_s=(0, 0),
                    batch_tasks_max=batch_tasks_max,
                )  # fmt: skip
                queue.insert_many(range(600), batch_tasks=60)
                queue.lease()[0].bury("as a beginning")
                queue.close()
                queue.status()
                before = descriptors()
            rounds += 1
            hit = interrupter.run(lambda: act(queue))  # noqa: B023 - called at once
            try:
                check(queue, before)
                queue.insert("another")
                assert len(queue.lease(1)) == 1
            except (AssertionError, FsqueueError, OSError) as error:
                failed.append(f"{verb} at {interrupter.where}: {str(error)[:300]}")
                resources.this_thread.owned.sections.clear()
                resources.this_thread.owned.fds.clear()
                rounds = 0
                if len(failed) > 5:
                    break
        queue.close()
    return failed


def test_the_removal_of_a_tree_interrupted_anywhere_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "SECTIONS", {"trees.py"})
    in_thread(lambda: interrupted_removal(tmp_path))


def interrupted_removal(tmp_path: Path) -> None:
    """Remove a tree, interrupted at each instruction."""
    interrupter, fs = Interrupter(), Filesystem(str(tmp_path))
    tree = tmp_path / "tree"
    deep = tree / "a" / "b"

    def remove() -> None:
        with resources.Scope():
            fs.remove_tree(str(tree))

    fs.remove_tree(str(tree))  # opens the root
    before = descriptors()
    hit = True
    while hit:
        deep.mkdir(parents=True, exist_ok=True)
        (tree / "c").mkdir(exist_ok=True)
        (deep / "file").touch()
        hit = interrupter.run(remove)
        now = descriptors()
        assert {fd: path for fd, path in now.items() if before.get(fd) != path} == {}, interrupter.where
        assert now.keys() == before.keys(), interrupter.where
        assert not resources.this_thread.owned.fds
    assert not tree.exists()
    assert len(interrupter.seen) > how_many(20, 100)
