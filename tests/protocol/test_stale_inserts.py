"""ESTALE while tasks are inserted: what another client has purged or deleted is gone, and what is there stays.

A network filesystem says ESTALE of a file, open on this host, that another host has removed. A local disk says nothing
of it, or that a name is missing.
"""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from fsqueue import CommitLost, FsqueueError, Queue, QueueNotFound
from tests.concurrency.trapped import Count, trapped
from tests.protocol.test_what_errors_say import QUICK, SWEPT, VERBS, Faulty, Verb, broken, judge, judge_repeat
from tests.support import QueueFactory, base_of

pytestmark = pytest.mark.once

HANDLED = ("close", "unlock", "look", "names")
"""Steps of which no caller gets ESTALE, or each takes it for an answer."""
LASTING = 1 << 30
BESIDE = [name for name in SWEPT if name not in ("overwrite", "insert_many, priorities")]
"""Overwriting holds the lock that a purge needs, and a deletion."""
QUICK_BESIDE = ["insert", "insert, large", "insert, key", "insert_many", "commit"]


def where(args: tuple[Any, ...]) -> str:
    """Return the paths that a step is about. That of an open file stays known when it was moved and removed."""
    if isinstance(args[0], int):
        return os.readlink(f"/proc/self/fd/{args[0]}")
    return " ".join(arg for arg in args if isinstance(arg, str))


class GoneAt(Count):
    """Another client has the queue's generation gone before the n-th step on it. The server knows its files no more.

    `times`: number of steps from then on that end with ESTALE. LASTING: all on files that are open; the client asks the
    server for names, and is told that they are missing.
    """

    def __init__(self, number: int, times: int, directory: str, gone: Callable[[], object]) -> None:
        super().__init__(lambda step, args: directory in where(args))
        self.number, self.times, self.gone = number, times, gone
        self.met = 0

    def at(self, number: int, step: str, call: Callable[..., Any], *args: Any) -> Any:
        if number == self.number:
            self.armed = False
            self.gone()
            self.armed = True
        is_by_name = self.times == LASTING and not isinstance(args[0], int)
        if number < self.number or step in HANDLED or is_by_name or self.met >= self.times:
            return call(*args)
        self.met += 1
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))


class Beside:
    """An insert beside another client's purge or deletion: what was in the queue just before that, and what is told."""

    def __init__(self, queue: Queue, verb: Verb, how: str, number: int, times: int) -> None:
        self.before: list[Any] = []
        self.error: FsqueueError | None = None
        other = Queue(queue.path)

        def gone() -> None:
            self.before = verb.there(other)
            other.purge() if how == "purge" else other.delete()

        trap = GoneAt(number, times, base_of(queue).name, gone)
        mine = trapped(queue, trap, shared=True)
        mine.insert("first")
        trap.armed = True
        try:
            verb.act(mine)
        except FsqueueError as error:
            self.error = error
        trap.armed = False
        self.is_over = len(trap.steps) < number
        mine.close()


def sweep(queue_factory: QueueFactory, verb: Verb, how: str, times: int) -> None:
    """Have the queue gone before each step of a verb in turn."""
    wanted = Counter(map(str, verb.payloads))
    for number in range(1, 1000):
        queue = queue_factory(f"of-{number}", shards=1)
        beside = Beside(queue, verb, how, number, times)
        if beside.is_over:
            assert number > 5
            return
        context = f"step {number}: {beside.error!r}"
        was_whole = Counter(map(str, beside.before)) == wanted
        if how == "delete":
            assert was_whole if beside.error is None else isinstance(beside.error, QueueNotFound), context
            continue
        if beside.error is not None:
            assert verb.has_name, context
            assert isinstance(beside.error, CommitLost), context
            assert not verb.there(queue), context
            verb.act(Queue(queue.path))
            assert Counter(map(str, verb.there(queue))) == wanted, context
            continue
        found, before = Counter(map(str, verb.there(queue))), Counter(map(str, beside.before))
        assert found <= wanted, context
        assert wanted - found <= before, f"{context}: what the purge has not dropped is in the queue"
    pytest.fail("it never got through")


@pytest.mark.parametrize("times", [1, LASTING])
@pytest.mark.parametrize("how", ["purge", "delete"])
@pytest.mark.parametrize("name", QUICK_BESIDE)
def test_an_insert_beside_a_purge_or_a_deletion_on_another_host(
    queue_factory: QueueFactory, name: str, how: str, times: int
) -> None:
    """The tasks come into the new generation, or it is said that there is no queue any more."""
    sweep(queue_factory, VERBS[name], how, times)


@pytest.mark.thorough
@pytest.mark.parametrize("times", [0, 1, 2, 3, LASTING])
@pytest.mark.parametrize("how", ["purge", "delete"])
@pytest.mark.parametrize("name", BESIDE)
def test_any_insert_beside_a_purge_or_a_deletion_on_another_host(
    queue_factory: QueueFactory, name: str, how: str, times: int
) -> None:
    sweep(queue_factory, VERBS[name], how, times)


def well(queue_factory: QueueFactory, verb: Verb) -> None:
    """Have each step of a verb end with ESTALE once, although nothing was removed."""
    for at in range(1, 1000):
        queue = queue_factory(f"of-{at}")
        fs = Faulty(str(queue.path), errno.ESTALE, at, shared=True)
        told = broken(queue, fs, verb)
        if told is not None:
            assert not isinstance(told.error, QueueNotFound)
            judge(told)
            judge_repeat(queue, told)
        if fs.calls < at:
            return


@pytest.mark.parametrize("name", QUICK)
def test_estale_of_what_is_there_loses_and_doubles_no_task(queue_factory: QueueFactory, name: str) -> None:
    well(queue_factory, VERBS[name])


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in SWEPT if name not in QUICK])
def test_estale_of_what_is_there_loses_and_doubles_no_task_of_any_insert(
    queue_factory: QueueFactory, name: str
) -> None:
    well(queue_factory, VERBS[name])


@pytest.mark.parametrize("step", ["create", "try_lock", "write", "fsync"])
@pytest.mark.parametrize("name", ["insert", "insert, large", "insert, key", "insert_many"])
def test_estale_that_lasts_is_no_purge(queue: Queue, name: str, step: str) -> None:
    """The error says what the system says, and claims neither a purge nor a deletion."""
    fs = Faulty(str(queue.path), errno.ESTALE, 1, step=step, where="/staging/", lasting=True, shared=True)
    q = Queue(queue.path, filesystem=fs)
    fs.armed = True
    with pytest.raises(FsqueueError, match="Stale file handle") as caught:
        VERBS[name].act(q)
    assert not re.search("purge|delete", str(caught.value).replace(str(queue.path), ""))
    assert VERBS[name].there(queue) == []
    fs.armed = False
    VERBS[name].act(q)
    assert len(VERBS[name].there(queue)) == len(VERBS[name].payloads)
