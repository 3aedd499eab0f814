"""`Queue.close` beside threads that use the queue, and descriptors that go with their objects, by C code alone."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Queue
from fsqueue.filesystem import resources
from tests.house.source import TOP, nodes

pytestmark = pytest.mark.once


def test_a_thread_that_uses_the_queue_while_it_is_closed_gets_through(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it opens by is closed when it has done with it: the number must not lead into another file."""
    task = queue.insert("x")
    fs, main = queue.store.fs, threading.current_thread()
    here, go_on = threading.Event(), threading.Event()
    open_beneath = fs._open_beneath

    def waits(root: int, *arguments: Any, **options: Any) -> int:
        if threading.current_thread() is not main and not here.is_set():
            here.set()
            go_on.wait()
        return open_beneath(root, *arguments, **options)

    monkeypatch.setattr(fs, "_open_beneath", waits)
    found: list[object] = []

    def use() -> None:
        try:
            found.append([leased.id for leased in queue.lease()])
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    here.wait()
    root = int(fs._root_fd)
    queue.close()
    assert "queue" in os.readlink(f"/proc/self/fd/{root}") or os.readlink(f"/proc/self/fd/{root}") == str(queue.path)
    go_on.set()
    thread.join()
    assert found == [[task.id]]


def test_a_queue_that_no_thread_uses_is_closed_at_once(queue: Queue) -> None:
    queue.insert("x")
    root = int(queue.store.fs._root_fd)
    place = os.readlink(f"/proc/self/fd/{root}")
    queue.close()
    assert not os.path.exists(f"/proc/self/fd/{root}") or os.readlink(f"/proc/self/fd/{root}") != place


def test_a_kept_descriptor_is_closed_by_c_code_alone() -> None:
    """A signal handler runs between instructions of Python: where there are none, it interrupts nothing."""
    fd = os.eventfd(0)
    seen: list[str] = []
    kept = resources.Kept(fd, os.close)
    sys.setprofile(lambda frame, event, argument: seen.append(event) if event == "call" else None)
    try:
        del kept
    finally:
        sys.setprofile(None)
    assert seen == []
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_a_kept_descriptor_in_a_cycle_goes_with_it() -> None:
    import gc

    class Holder:
        me: Holder
        kept: resources.Kept

    fd = os.eventfd(0)
    holder = Holder()
    holder.me, holder.kept = holder, resources.Kept(fd, os.close)
    del holder
    gc.collect()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_what_is_given_up_is_the_threads_to_close() -> None:
    fd = os.eventfd(0)
    kept = resources.Kept(fd, os.close)
    kept.give_up(resources._Plain())
    assert fd in resources.this_thread.owned.fds
    del kept
    os.fstat(fd)
    resources.close(fd)
    assert fd not in resources.this_thread.owned.fds


FINALIZERS = {
    "fsqueue/poll.py": "puts tasks back; if it is interrupted, they come back when their leases end",
    "fsqueue/filesystem/changes.py": "a hint: behind it the library's own object closes the descriptor in C",
}


def test_no_finalizer_in_python_closes_a_descriptor() -> None:
    found = {
        str(path.relative_to(TOP))
        for path in (TOP / "fsqueue").rglob("*.py")
        for node in nodes(path)
        if (isinstance(node, ast.FunctionDef) and node.name == "__del__")
        or (
            isinstance(node, ast.Assign)
            and any(isinstance(one, ast.Name) and one.id == "__del__" for one in node.targets)
        )
    }
    assert found == FINALIZERS.keys(), "use resources.Kept"


@pytest.mark.parametrize("use", ["q.insert(1)", "q.insert_many(range(5)); q.status()", "q.insert(1); q.lease()"])
def test_nothing_is_printed_at_the_end_of_a_program_whose_main_module_is_kept(tmp_path: Path, use: str) -> None:
    """As dill, and pathos with it, keep it: the queue is let go of when modules have lost their globals."""
    first = "import json, sys; json.main = sys.modules['__main__']"
    program = f"{first}\nimport fsqueue\nq = fsqueue.Queue.create({str(tmp_path / 'q')!r})\n{use}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
