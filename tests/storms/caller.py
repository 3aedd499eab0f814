"""A process of a storm as it makes its calls: written down, troubled, and gone on with in forked children."""

from __future__ import annotations

import gc
import os
import random
import signal
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import fsqueue
from fsqueue import (
    DeadLetter,
    Group,
    InvalidArgument,
    LeasedTask,
    LeaseLost,
    LockTimeout,
    QueuePurged,
    RemoteGroup,
    StorageError,
    TaskInfo,
    TaskNotFound,
    Update,
    UpdateConflict,
)
from fsqueue.client.remote_group import RemoteUpdate
from tests.storms.journal import DONE, REFUSED, UNKNOWN, Journal
from tests.storms.trouble import Abort, Interruption, Trouble
from tests.waiting import until_nothing_reaps

T = TypeVar("T")

AnyGroup = Group | RemoteGroup
Effects = dict[str, Any]
PATIENCE_S = 60.0
"""For how long a client waits for its gateway."""

REFUSALS = ("that has the key", "This update has been applied")
"""What InvalidArgument says of an update that ends the task whose key it inserts, and of one in a forked child."""


class Caller:
    """One process, and its calls of a group. Subclasses say what it does."""

    def __init__(self, group: AnyGroup, journal: Journal, dice: random.Random, is_troubled: bool = True) -> None:
        self.group, self.journal, self.dice = group, journal, dice
        self.trouble = Trouble(dice, self._go_on_as_child, self.journal.say) if is_troubled else None
        self._call = ""
        self.held: list[LeasedTask] = []
        """What the present call ends the leases of: a forked child of it may try so, too."""
        self.present: Update | RemoteUpdate | None = None
        """What the present call applies, if it ends a lease: so a forked child that applies it, too, does no harm."""

    def step(self) -> None:
        """Do one thing."""
        raise NotImplementedError

    def as_child(self) -> None:
        """Make calls of its own, in a forked child."""
        raise NotImplementedError

    def call(self, kind: str, act: Callable[[str], T], effects: Callable[[str], Effects] = lambda call: {}) -> T | None:
        """Make a call, which is written down before and after. None if it has failed, or nobody knows.

        `effects(call)`: what it is about to do, in the terms of `tests.storms.books`.
        """
        call = self._call = self.journal.begin()
        self.journal.will(call, kind, **effects(call))
        try:
            found = act(call) if self.trouble is None else self.trouble.call(kind, partial(act, call))
        except LeaseLost as error:
            # A block that was interrupted behind the update in it fails its task; or before the update, which is never
            # applied then. Or another call has ended the task, before the update in the block was applied.
            told = UNKNOWN if kind == "block" or error.reason == LeaseLost.COMPLETED_BEFORE else DONE
            self.journal.did(call, told, lost=error.tasks, error=said(error))
        except (UpdateConflict, LockTimeout, TaskNotFound, QueuePurged) as error:
            self.journal.did(call, REFUSED, error=said(error))
        except (Interruption, Abort) as error:
            self.journal.did(call, UNKNOWN, error=said(error))
        except Exception as error:
            is_refused = isinstance(error, InvalidArgument) and any(words in str(error) for words in REFUSALS)
            self.journal.did(call, REFUSED if is_refused else UNKNOWN, error=said(error))
            is_gateways = isinstance(error, StorageError) and isinstance(self.group, RemoteGroup)
            if not is_refused and not is_gateways:
                self.journal.say("odd", kind=kind, error=said(error))
        else:
            self.journal.did(call, DONE)
            return found
        return None

    def _go_on_as_child(self, raised: BaseException | None, where: str) -> None:
        """As a forked child: tell what came of the parent's call, and make calls of its own with the same objects."""
        parents, call = self.journal, self._call
        self.journal = Journal(parents.directory, f"{call}.child-{os.getpid()}")
        self.journal.say("came back", call=call, where=where, raised=said(raised))
        self.trouble, self.dice = None, random.Random(call)
        held, self.held = self.held, []
        chance = self.dice.random()
        if self.present is not None and chance < 0.3:
            self.journal.say("applies", call=call)
            self.call("apply", lambda _: self.present.apply())  # type: ignore[union-attr]
        elif held and chance < 0.6:
            self.complete(held)
        self.as_child()

    # -- what it may do -----------------------------------------------------------------------------

    def complete(self, tasks: list[LeasedTask]) -> None:
        """Complete tasks without an update: one, or all at once."""

        def act(call: str) -> None:
            if len(tasks) == 1:
                tasks[0].complete({"by": call})
            else:
                tasks[0].queue.complete(tasks, {task.id: {"by": call} for task in tasks})

        self.held = tasks
        self.call("complete", act, lambda _: {**named("complete", tasks), "whole": False})
        self.held = []

    def peek(self, queue: str, n: int) -> list[TaskInfo]:
        """Return waiting tasks. One whose batch finishes meanwhile is shown without its payload: leave it out."""
        found = self.call("peek", lambda _: self.group[queue].peek(n)) or []
        for info in found:
            if info.payload is None:
                self.journal.say("no payload", task=info.id)
        return [info for info in found if info.payload is not None]

    def wrapped(self, payloads: list[Any]) -> Iterable[Any]:
        """Return payloads, as a generator that may fork."""
        return payloads if self.trouble is None else self.trouble.payloads(payloads)


def said(error: BaseException | None) -> str:
    """Return an exception in a line; "" for none."""
    return "" if error is None else f"{type(error).__name__}: {error}"


# -- effects -------------------------------------------------------------------------------------------


def payloads(call: str, count: int, **more: Any) -> list[dict[str, Any]]:
    """Return payloads that tell which call inserts them, as which one, and how often they were replaced."""
    return [{"by": call, "i": number, "r": 0, **more} for number in range(count)]


def inserts(queue: str, count: int) -> Effects:
    """Return the effect of inserting the payloads of a call."""
    return {"insert": [[queue, number] for number in range(count)]}


def named(kind: str, tasks: Sequence[LeasedTask | TaskInfo | DeadLetter]) -> Effects:
    """Return the effect of a call that does something to tasks."""
    return {kind: [[task.id, task.payload["by"], task.payload["i"]] for task in tasks]}


def replaced(task: LeasedTask | TaskInfo) -> Effects:
    """Return the effect of a call that replaces the payload of a task by `next_of` it."""
    return {"replace": [[task.id, task.payload["by"], task.payload["i"], task.payload["r"] + 1]]}


def next_of(task: TaskInfo | LeasedTask) -> dict[str, Any]:
    """Return the payload that replaces that of a task."""
    return {**task.payload, "r": task.payload["r"] + 1}


# -- processes -----------------------------------------------------------------------------------------


def work(
    make: Callable[[AnyGroup, Journal, random.Random], Caller],
    path: Path,
    url: str | None,
    notes: Path,
    seed: int,
    number: int,
) -> dict[str, int]:
    """Do one thing after the other until the round is over; what was done, in numbers."""
    before = _open_descriptors()
    name = f"{'local' if url is None else 'remote'}-{number}"
    group = Group(path, worker=name) if url is None else fsqueue.connect(url, worker=name, patience_s=PATIENCE_S)
    assert isinstance(group, (Group, RemoteGroup))
    caller = make(group, Journal(notes, name), random.Random(seed * 1000 + number))
    over = path.parent / "over"
    while not over.exists():
        caller.step()
    counts = caller.trouble.counts if caller.trouble is not None else {}
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    caller.journal.close()
    until_nothing_reaps()
    group.close()
    del group, caller
    gc.collect()
    after = _open_descriptors()
    left = [after[fd] for fd in after.keys() - before.keys()]
    assert left == [], f"left open: {left}"
    return counts


def _open_descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
    return found
