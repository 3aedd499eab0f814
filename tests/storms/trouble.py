"""Trouble within calls: in every fifth an exception of a signal handler, in every tenth a fork."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn, TypeVar

from tests.concurrency.processes import at_a_random_moment

T = TypeVar("T")

FORK_EVERY, INTERRUPT_EVERY = 10, 5
USUAL_S = 0.002
"""How long a call is thought to take as long as none of its kind was made."""
MAKERS = ("update", "__enter__", "__getitem__", "__init__")
"""Methods of fsqueue that do nothing in a queue."""
HANGS_S = 120
"""A child that lives for longer than this hangs, and ends by SIGALRM."""


class Interruption(Exception):
    """What the handler of an alarm raises, as that of a timeout does."""


class Abort(BaseException):
    """What another handler raises, as that of Ctrl-C does."""


class Trouble:
    """Makes calls, and troubles some of them at a random moment. One process's, in its main thread.

    `in_child(outcome)` is called in each forked child, once it has come back from the parent's call: with what the call
    has raised there, None if it has returned. The child ends with it. `tell` gets what is odd.
    """

    def __init__(
        self, dice: random.Random, in_child: Callable[[BaseException | None, str], object], tell: Callable[..., object]
    ) -> None:
        self._dice, self._in_child, self._tell = dice, in_child, tell
        self._usual_s: dict[str, float] = {}
        self._is_armed = False
        self._forked: list[int] = []
        self._is_child = False
        self._where = ""
        self.counts = {"calls": 0, "interrupted": 0, "forked": 0}
        signal.signal(signal.SIGALRM, self._interrupt)

    def call(self, kind: str, act: Callable[[], T]) -> T:
        """Make a call. Interruption or Abort if that was the trouble."""
        self.counts["calls"] += 1
        number = self.counts["calls"]
        if number % FORK_EVERY == 0:
            return self._forking(kind, act)
        if number % INTERRUPT_EVERY == 2:
            return self._interrupted(kind, act)
        begun = time.perf_counter()
        try:
            return act()
        finally:
            took_s = time.perf_counter() - begun
            self._usual_s[kind] = 0.8 * self._usual_s.get(kind, took_s) + 0.2 * took_s

    def payloads(self, found: list[Any]) -> Iterator[Any]:
        """Yield payloads as a generator of the caller. If the call is one that forks, it may fork in here."""
        for number, payload in enumerate(found):
            if self._is_armed and signal.getsignal(signal.SIGALRM) == self._fork_at_alarm and number == len(found) // 2:
                self._is_armed = False
                self._fork("generator")
            yield payload

    # -- interruptions -------------------------------------------------------------------------------

    def _alarm(self, kind: str) -> None:
        usual_s = min(self._usual_s.get(kind, USUAL_S), 0.1)
        signal.setitimer(signal.ITIMER_REAL, max(1e-5, usual_s * 1.1 * self._dice.random()))

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._is_armed:
            self._is_armed = False
            self._where = _place(frame)
            raise self._dice.choice([Interruption, Abort])("the handler of an alarm")

    def _interrupted(self, kind: str, act: Callable[[], T]) -> T:
        signal.signal(signal.SIGALRM, self._interrupt)
        self._where = ""
        try:
            try:
                self._is_armed = True
                self._alarm(kind)
                found = act()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                self._is_armed = False
        except (Interruption, Abort):
            self.counts["interrupted"] += 1
            raise
        except Exception as error:
            if self._where:
                self._tell("turned", kind=kind, where=self._where, into=f"{type(error).__name__}: {error}")
            raise
        if self._where:
            self._tell("swallowed", kind=kind, where=self._where)
        return found

    # -- forks ---------------------------------------------------------------------------------------

    def _forking(self, kind: str, act: Callable[[], T]) -> T:
        how = self._dice.choice(["signal", "signal", "generator", "thread"])
        self._where, self._is_child = "", False
        signal.signal(signal.SIGALRM, self._fork_at_alarm)
        raised: BaseException | None = None
        thread = None
        try:
            if how == "thread":
                usual_s = min(self._usual_s.get(kind, USUAL_S), 0.1)
                thread = threading.Thread(target=self._fork_in_thread, args=(usual_s,))
                thread.start()
            else:
                self._is_armed = True
                if how == "signal":
                    self._alarm(kind)
            found = act()
        except BaseException as error:
            raised = error
            raise
        finally:
            self._is_armed = False
            if self._is_child:
                self._end_as_child(raised)
            signal.setitimer(signal.ITIMER_REAL, 0)
            if thread is not None:
                thread.join()
            raised = thread = None  # an error leads to this frame: the thread would die in a call, in Python code
            self._reap(kind)
        return found

    def _fork_at_alarm(self, number: int, frame: FrameType | None) -> None:
        if not self._is_armed:
            return
        if not _is_in_call(frame):
            signal.setitimer(signal.ITIMER_REAL, 2e-4)
            return
        self._is_armed = False
        self._fork(_place(frame))

    def _fork_in_thread(self, most_s: float) -> None:
        at_a_random_moment(self._dice, most_s)
        self._fork("thread")
        if self._is_child:
            self._end_as_child(None, alone=True)

    def _fork(self, where: str) -> None:
        self._where = where
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            self._forked.append(pid)
            self.counts["forked"] += 1
            return
        self._is_child, self._forked = True, []
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(HANGS_S)

    def _end_as_child(self, raised: BaseException | None, alone: bool = False) -> NoReturn:
        status = 1
        try:
            self._in_child(raised, "alone" if alone else self._where)
            status = 0
        finally:
            os._exit(status)

    def _reap(self, kind: str) -> None:
        for pid in self._forked:
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if status != 0:
                self._tell("child", kind=kind, where=self._where, status=status)
        self._forked.clear()


def _is_in_call(frame: FrameType | None) -> bool:
    """Return whether a call of fsqueue is on the stack that does something.

    A child that is forked in a call which only puts an object together makes what follows on its own, rightly.
    """
    outermost: FrameType | None = None
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] == "fsqueue":
            outermost = frame
        frame = frame.f_back
    return outermost is not None and outermost.f_code.co_name not in MAKERS


def _place(frame: FrameType | None) -> str:
    """Return the innermost places of a stack, in fsqueue and below it."""
    found = []
    while frame is not None and len(found) < 8:
        found.append(f"{'/'.join(frame.f_code.co_filename.split('/')[-2:])}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(found)
