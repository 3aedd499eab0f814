"""Look, while a command waits for queues, whether tasks wait in them and nobody leases any."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

import fsqueue
from fsqueue.views.activity import WINDOWS_S

from .printing import complain
from .status_text import idle_text

if TYPE_CHECKING:
    from .targets import AnyQueue

NO_WORKERS_EXIT = 15
"""Exit code of `wait --no-workers-timeout`."""
SAY_S = 240.0
"""Number of seconds without a lease before the command says so: workers that were just submitted need time to begin."""
FIRST_LOOK_S, LOOK_S_MAX = 60.0, 900.0
"""A look comes after a minute, and then each time that the command has waited twice as long; at most so far apart."""
LOOKS_A_TIMEOUT = 4
"""Minimum number of looks within --no-workers-timeout."""
LOOK_SHARE = 0.02
"""The looks take at most this part of the time, unless --no-workers-timeout asks for more."""


class IdleWatch:
    """Tells when nobody has leased a task for long. A look uses the queues that another thread waits for meanwhile.

    `queues` yields those that may have tasks, each with what is typed to run its workers. Raise Exit once nobody has
    leased a task for `ends_after_s` seconds.
    """

    def __init__(self, queues: Callable[[], Iterable[tuple[str, AnyQueue]]], ends_after_s: float | None = None) -> None:
        self._queues, self._ends_after_s = queues, ends_after_s
        self._began = time.monotonic()
        self._next = self._began + self._pause_s(0.0)
        self._since: float | None = None
        """Since when nobody has leased a task; None: somebody works, or nothing waits."""
        self._ended = -1
        """How many tasks had been completed or given up at the last look."""
        self._is_said = False

    def _pause_s(self, took_s: float) -> float:
        waited_s = time.monotonic() - self._began
        pause_s = max(min(max(FIRST_LOOK_S, waited_s), LOOK_S_MAX), took_s / LOOK_SHARE)
        return pause_s if self._ends_after_s is None else min(pause_s, self._ends_after_s / LOOKS_A_TIMEOUT)

    def due_s(self) -> float:
        """Return in how many seconds to look again."""
        return max(0.0, self._next - time.monotonic())

    def look(self) -> None:
        """Look, and say what is new. Exit with NO_WORKERS_EXIT once nobody has worked for `ends_after_s`.

        What cannot be read is passed by: the thread that waits says so.
        """
        began = time.monotonic()
        try:
            waiting, known_s, typed = self._look()
        except (OSError, fsqueue.FsqueueError):
            return
        finally:
            self._next = time.monotonic() + self._pause_s(time.monotonic() - began)
        if not waiting:
            self._since, self._is_said = None, False
            return
        assert self._since is not None
        idle_s = time.monotonic() - self._since
        ends = self._ends_after_s is not None and idle_s >= self._ends_after_s
        if ends or (max(idle_s, known_s) >= SAY_S and not self._is_said):
            self._is_said = True
            complain(idle_text(waiting, max(idle_s, known_s), typed))
        if ends:
            complain("the time of --no-workers-timeout is over: nothing was changed")
            raise click.exceptions.Exit(NO_WORKERS_EXIT)

    def _look(self) -> tuple[int, float, str]:
        """Return how many tasks could be leased, for how long none was (s), as far as their queues tell, and where.

        No task: somebody works, or none can be leased.
        """
        waiting, ended, known_s, where, now = 0, 0, math.inf, "", time.monotonic()
        for typed, queue in self._queues():
            status, found = queue.status(), queue.activity()
            ended += status.completed + status.dead
            if status.leased or found.is_worked:
                return 0, 0.0, ""
            if found.last_leased is not None:
                known_s = min(known_s, max(0.0, found.at - found.last_leased))
            if found.is_idle(status) and queue.paused is None:
                waiting, where = waiting + status.waiting, where or typed
        if ended != self._ended or self._since is None:
            self._since = max(self._began, now - min(known_s, WINDOWS_S[0]))
        elif known_s < now - self._since:
            self._since = now - known_s
        self._ended = ended
        return waiting, 0.0 if known_s == math.inf else known_s, where
