"""A signal handler that forks within a verb, in lines of fsqueue's own code that the verb executes.

The child comes back from the handler into its parent's code. It must get ForkedChild, and do nothing. The parent's
outcome must be that of a call in which nobody has forked. A trace function calls the handler, once in every
`STRIDE`-th line.
"""

from __future__ import annotations

import _thread
import linecache
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest import mock

import pytest

import fsqueue
from fsqueue import ForkedChild, LeasedTask, Queue
from fsqueue.poll import Poll
from tests.levels import how_many
from tests.waiting import PATIENCE_S, until_nothing_reaps

HERE = os.path.dirname(fsqueue.__file__) + "/"
RETURNED, REFUSED, OTHER, LOGGED = 0, 1, 2, 3
EVERYWHERE = os.environ.get("FSQUEUE_TEST_INTERRUPT") == "everywhere"
"""Set it to fork in each line, which takes minutes; else it is one of STRIDE new lines:"""
STRIDE = how_many(21, 7)
RETURNS = ("return found", "return got", "return task", "return self.results", "leaser.holder = None")
"""How verbs end, behind the look at whose process this is: see docs/design.md, section 11."""


class Forker:
    """Forks in a line of fsqueue in which it has not forked before, once a run. The child goes on first.

    `also`: another file in whose lines it forks.
    """

    def __init__(
        self, in_child: Callable[[], object] = lambda: None, stride: int = STRIDE, also: str | None = None
    ) -> None:
        self.stride, self._also = stride, also
        self.seen: set[tuple[CodeType, int]] = set()
        self.is_last = False
        """Whether nothing is left to do in that line but to return: the child may do so."""
        self.where, self.said = "", ""
        self.status: int | None = None
        self.wrong: list[str] = []
        self._forks = 0
        self._in_child = in_child

    def rounds(self, may_return: bool = True, forks_min: int = 6) -> Iterator[None]:
        """Begin rounds with one `run` in each, until one has met no new line. In the end no child must have gone wrong.

        `may_return`: whether a child may do so in each line, not only in the last of a verb.
        """
        while True:
            yield
            if not self.where:
                break
            self._forks += 1
            if self.status != REFUSED and not (self.status == RETURNED and (may_return or self.is_last)):
                self.wrong.append(f"{self.where}: the child ended with {self.status} {self.said}")
        assert self.wrong == []
        assert self._forks >= forks_min

    def run(self, action: Callable[[], Any]) -> Any:
        """Do it, and return what the parent gets. `where` is empty if no new line was met."""
        self.where, self.status, me = "", None, os.getpid()
        told, self._tell = os.pipe()
        code, said = OTHER, ""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            found = action()
            code = RETURNED
            return found
        except ForkedChild:
            code = REFUSED
            if os.getpid() == me:
                raise
        except BaseException as error:
            said = repr(error)
            if os.getpid() == me:
                raise
        finally:
            sys.settrace(before)
            if os.getpid() != me:
                os.write(self._tell, said.encode())
                os._exit(code)
            os.close(self._tell)
            self.said = os.read(told, 4096).decode()
            os.close(told)

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        return self._step if not self.where and (file.startswith(HERE) or file == self._also) else None

    def _step(self, frame: FrameType, event: str, _: Any) -> Any:
        key = frame.f_code, frame.f_lineno
        if event == "line" and not self.where and key not in self.seen:
            self.seen.add(key)
            if len(self.seen) % (1 if EVERYWHERE else self.stride):
                return self._step
            self.is_last = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() in RETURNS
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}"
            self._fork()
        return self._step

    def _fork(self) -> None:
        pid = os.fork()
        if not pid:
            sys.settrace(None)
            self._in_child()
            return
        end = os.pidfd_open(pid)
        try:
            if not select.select([end], [], [], PATIENCE_S)[0]:
                os.kill(pid, signal.SIGKILL)
        finally:
            os.close(end)
            self.status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _counts(queue: Queue) -> tuple[int, int, int]:
    status = queue.status()
    return status.waiting + status.delayed, status.leased, status.completed


def _one(queue: Queue) -> LeasedTask:
    queue.insert("x")
    [task] = queue.lease()
    return task


def _loop(queue: Queue) -> Poll:
    queue.insert("x")
    return queue.poll()


Counts = tuple[int, int, int]
VERBS: dict[str, tuple[Callable[[Queue], Any], Callable[[Queue, Any], Any], Counts]] = {
    "insert": (lambda queue: None, lambda queue, _: queue.insert("x"), (1, 0, 0)),
    "insert with a key": (lambda queue: None, lambda queue, _: queue.insert("x", key="k"), (1, 0, 0)),
    "insert_many": (lambda queue: None, lambda queue, _: queue.insert_many(range(4), batch_tasks=2), (4, 0, 0)),
    "a commit": (lambda queue: None, lambda queue, _: queue.insert_many(range(4), commit="c"), (4, 0, 0)),
    "lease": (lambda queue: queue.insert("x"), lambda queue, _: queue.lease(), (0, 1, 0)),
    "complete": (_one, lambda queue, task: task.complete(), (0, 0, 1)),
    "complete many": (_one, lambda queue, task: queue.complete([task]), (0, 0, 1)),
    "renew": (_one, lambda queue, task: task.renew(), (0, 1, 0)),
    "fail": (_one, lambda queue, task: task.fail("no", delay_s=3600), (1, 0, 0)),
    "release": (_one, lambda queue, task: task.release(), (1, 0, 0)),
    "a step of a loop": (_loop, lambda queue, loop: next(loop), (0, 1, 0)),
}  # fmt: skip
"""How to prepare a verb, the verb, and how many tasks are waiting, leased and completed afterwards."""
NEEDS = {"insert with a key": pytest.mark.batched}
"""With one task a batch a queue takes no keys."""


@pytest.mark.parametrize("verb", [pytest.param(verb, marks=NEEDS.get(verb, ())) for verb in VERBS])
def test_a_child_of_a_signal_handler_does_nothing_in_its_parents_verb(queue: Queue, verb: str) -> None:
    prepare, act, counts = VERBS[verb]
    forker = Forker()
    for _ in forker.rounds(may_return=False):
        given = prepare(queue)
        forker.run(partial(act, queue, given))
        if _counts(queue) != counts:
            forker.wrong.append(f"{forker.where}: the parent's queue has {_counts(queue)}")
        queue.purge()
    assert list(queue.fsck()) == []


def test_a_child_of_a_signal_handler_may_make_calls_of_its_own(queue: Queue) -> None:
    forker = Forker(lambda: queue.insert("the child's"))
    children = 0
    while True:
        queue.insert_many(range(2), batch_tasks=1)
        if not forker.where and children:
            break
        forker.run(lambda: queue.insert_many(range(4), batch_tasks=2))
        children += bool(forker.where)
        if not forker.is_last:
            assert forker.status in (REFUSED, None), (forker.where, forker.said)
        mine = [info.payload for info in queue.tasks()].count("the child's")
        assert mine == bool(forker.where), forker.where
        queue.purge()
    assert children > 5


class _ExitAtWarning(logging.Handler):
    """Ends the process when something is logged."""

    def emit(self, record: logging.LogRecord) -> None:
        os._exit(LOGGED)


def _end_when_something_is_logged() -> None:
    logging.getLogger("fsqueue").addHandler(_ExitAtWarning(logging.WARNING))


def _with_letters(queue: Queue) -> None:
    queue.insert_many(["x", "y"])
    for task in queue.lease(2):
        task.bury("no")


def test_a_child_of_a_signal_handler_logs_nothing_of_its_parents_verb(queue: Queue) -> None:
    """Nothing is wrong: the parent publishes what the child cannot."""
    forker = Forker(_end_when_something_is_logged)
    for _ in forker.rounds():
        _with_letters(queue)
        forker.run(queue.retry_dead)
        queue.purge()


def test_a_child_logs_what_its_own_calls_find(queue: Queue) -> None:
    def warn_by_itself() -> None:
        _end_when_something_is_logged()
        logging.getLogger("fsqueue").warning("the child's own")

    forker = Forker(warn_by_itself)
    forker.run(lambda: queue.insert_many(range(4)))
    assert forker.status == LOGGED


@pytest.mark.parametrize("verb", ["delete", "purge"])
def test_no_child_waits_for_a_thread_of_its_parents(tmp_path: Path, verb: str) -> None:
    """These verbs start one for the trash. The handler forks in lines of the module `threading`, too."""
    forker = Forker(stride=how_many(25, 7), also=threading.__file__)
    for number, _ in enumerate(forker.rounds()):
        queue = Queue.create(tmp_path / f"q{number}", durability="none")
        queue.insert("x")
        forker.run(getattr(queue, verb))
        until_nothing_reaps()
        assert queue.path.exists() == (verb == "purge")
        queue.close()


@pytest.mark.parametrize("verb", ["delete", "purge"])
def test_without_a_further_thread_the_trash_is_left_to_gc(queue: Queue, verb: str) -> None:
    queue.insert("x")
    with mock.patch.object(_thread, "start_new_thread", side_effect=RuntimeError("can't start new thread")):
        getattr(queue, verb)()
    assert queue.path.exists() == (verb == "purge")
