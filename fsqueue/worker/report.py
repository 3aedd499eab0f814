"""The report of a worker's run, and the events of which it tells on the way."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fsqueue import forks
from fsqueue.leased_task import LeasedTask
from fsqueue.worker.background import end_in_child

logger = logging.getLogger("fsqueue")


@dataclass
class WorkerReport:
    """The outcomes of the tasks of one run, and why it ended."""

    completed: int = 0
    failed: int = 0
    """Attempts that failed, timed out, or were buried; a task retried here counts each time."""
    buried: int = field(default=0, compare=False)
    """Number of `failed` that made a dead letter. A part of it, so two reports are not compared by this, too."""
    buried_attempts: int = field(default=0, compare=False)
    """Number of attempts at those tasks, all together, by this worker and others."""
    spent: int = field(default=0, compare=False)
    """Number of tasks that this worker made dead letters of without beginning them: they have had all attempts, or
    their payloads cannot be read. Not in `failed` nor in `buried`."""
    released: int = 0
    """Put back after they were begun: the run was told to stop, or the task asked for it."""
    moved: int = 0
    """Moved to another queue after an attempt that failed (`then_to`). Not in `failed`."""
    lost: int = 0
    """Taken over, purged or cancelled while they ran: the results were dropped."""
    unsettled: int = field(default=0, compare=False)
    """Begun, and neither reported nor put back when the run ended: the user waited no longer. They are available again
    when their leases end, at the latest."""
    unkept: int = 0
    """Attempts whose output was not kept, or not all of it, although `keep_output` asked for it."""
    unwritten: bool = False
    """Whether there was no room for what was to be passed on to standard output or standard error."""
    signal: int | None = None
    """The number of the signal that ended the run, if one did."""
    ended: str = ""
    """Why it ended: drained, signal, max-tasks, max-runtime, job-end, idle, failures, excluded, stopped; away:
    all is drained but what is not there."""

    def count(self, what: str, attempt: int = 0) -> None:
        """Count one more that is completed, failed, buried (which is failed, too), released, moved or lost.

        `attempt`: the number of the attempt that ended so.
        """
        if what == "buried":
            self.failed += 1
            self.buried_attempts += attempt
        setattr(self, what, getattr(self, what) + 1)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return dict(vars(self))


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a worker. `text` is a sentence for people, or empty where they need none."""

    kind: str
    text: str
    fields: dict[str, Any]


Tell = Callable[[Event], object]
"""What a worker is given to be heard. It is called in a thread of its own, one event at a time.

If it has a method `flush`, that is called after the last one of some events that are told together.
"""


def nobody(event: Event) -> None:
    """Stand for a listener where there is none."""


class Teller:
    """Makes events of what happens. `do` has an action done, in a thread that may be kept waiting."""

    def __init__(self, do: Callable[[Callable[[], object]], object], tell: Tell) -> None:
        self._do, self._tell = do, tell
        self._at_end: Callable[[], object] | None = getattr(tell, "flush", None)
        self._events: list[Event] = []

    def say(self, kind: str, text: str, **fields: Any) -> None:
        """Record an event: a sentence for people, with fields for programs. `flush` tells it."""
        self._events.append(Event(kind, text, fields))

    def flush(self) -> None:
        """Tell the events recorded so far."""
        if self._events:
            events, self._events = self._events, []
            self._do(lambda: self._out(events))

    def say_now(self, kind: str, text: str) -> None:
        """Tell a sentence at once. To be called in the thread that telling is done in."""
        self._out([Event(kind, text, {})])

    def _out(self, events: list[Event]) -> None:
        depth = forks.depth
        for event in events:
            try:
                self._tell(event)
            except Exception as error:  # what listens must not end the worker
                logger.debug("an event could not be told: %s", error, exc_info=True)
            end_in_child(depth)
        if self._at_end is not None:
            try:
                self._at_end()
            except Exception as error:
                logger.debug("events could not be told: %s", error, exc_info=True)
            end_in_child(depth)

    def note(self, kind: str, task: LeasedTask, seconds: float, **fields: Any) -> None:
        """Record what became of an attempt at a task, for programs: if there are any."""
        if self._tell is nobody:
            return
        where = {"task": task.id, "attempt": task.attempt, "queue": str(task.queue.path), "seconds": round(seconds, 6)}
        self._events.append(Event(kind, "", where | fields if fields else where))
