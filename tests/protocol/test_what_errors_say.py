"""What an error of an insert says is what is on disk: each sentence, and each error that may come at any call.

`SENTENCES` says what must be true when a sentence is told. `ROWS` leads to each of them by one injected error. The
sweep then lets every call of the filesystem fail, once or from then on, before or after it was done.
"""

from __future__ import annotations

import ast
import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fsqueue import FsqueueError, Queue, Task
from fsqueue.clock import ManualClock
from fsqueue.filesystem import Filesystem, operations
from fsqueue.protocol import single_inserts
from fsqueue.protocol.insert_errors import LOOK_FIRST
from tests.house.source import PACKAGE, TOP, parse
from tests.support import QueueFactory

pytestmark = pytest.mark.once

STEPS = ("look", "create", "make_directory", "names", "rename", "link", "unlink", "write", "pwrite", "pread", "fsync",
         "fstat", "try_lock", "unlock", "sync_directory")  # fmt: skip
LARGE = "x" * single_inserts.TASK_BYTES_MAX


class Faulty(Filesystem):
    """Fails at its `at`-th call of interest once it is armed, or from then on: before it does it, or after."""

    def __init__(
        self,
        root: str,
        code: int = 0,
        at: int = -1,
        *,
        late: bool = False,
        lasting: bool = False,
        step: str | None = None,
        where: str = "",
        shared: bool = False,
    ) -> None:
        super().__init__(root, shared=shared)
        self.armed, self.calls = False, 0
        for name in STEPS if step is None else (step,):
            setattr(self, name, self._faulty(name, code, at, late, lasting, where))

    def _faulty(self, name: str, code: int, at: int, late: bool, lasting: bool, where: str) -> Callable[..., Any]:
        call = getattr(self, name)

        def faulty(*args: Any) -> Any:
            if not self.armed or where not in _path_of(args):
                return call(*args)
            self.calls += 1
            if self.calls == at or (lasting and 0 <= at < self.calls):
                if late and self.calls == at:
                    done = call(*args)
                    if name in ("look", "create"):
                        self.close(done)
                raise OSError(code, os.strerror(code))
            return call(*args)

        return faulty


def _path_of(args: Sequence[Any]) -> str:
    """Return the path that a call is about: of a renaming the new one."""
    paths = [arg for arg in args if isinstance(arg, str)]
    if paths:
        return paths[-1]
    try:
        return os.readlink(f"/proc/self/fd/{args[0]}")
    except OSError:
        return ""


@dataclass(frozen=True)
class Verb:
    """One way to insert: the payloads in the order of the call, and the call."""

    payloads: list[Any]
    act: Callable[[Queue], object]
    has_name: bool = False
    """Whether it is a named commit: repeating is harmless whatever has happened."""
    shared: bool = False
    """Whether it is about a queue on a network mount."""

    def there(self, queue: Queue) -> list[Any]:
        """Return those of the payloads that are in the queue, as another process sees it."""
        found = [info.payload for info in Queue(queue.path).tasks()]
        return [payload for payload in found if payload in self.payloads]


def commit(q: Queue) -> object:
    named = q.commit("name")
    return named.publish(named.stage(range(20), batch_tasks=5))


def overwrite(q: Queue) -> object:
    named = q.commit("name")
    return named.publish(named.stage(range(20), batch_tasks=5), overwrite=True)


def urgent(number: int) -> Task:
    return Task(number, priority=-number)


VERBS = {
    "insert": Verb([1], lambda q: q.insert(1)),
    "insert, large": Verb([LARGE], lambda q: q.insert(LARGE)),
    "insert, key": Verb([1], lambda q: q.insert(1, key="k")),
    "insert, priority": Verb([1], lambda q: q.insert(1, priority=3)),
    "insert_many, one": Verb([1], lambda q: q.insert_many([1])),
    "insert_many, few": Verb(list(range(20)), lambda q: q.insert_many(range(20))),
    "insert_many, few urgent": Verb(list(range(9)), lambda q: q.insert_many(map(urgent, range(9)))),
    "insert_many, then few": Verb(list(range(1_028)), lambda q: q.insert_many(range(1_028), total=1_000_000)),
    "insert_many, network": Verb(list(range(70)), lambda q: q.insert_many(range(70)), shared=True),
    "insert_many": Verb(list(range(20)), lambda q: q.insert_many(range(20), batch_tasks=5)),
    "insert_many, groups": Verb(list(range(150)), lambda q: q.insert_many(range(150), batch_tasks=1)),
    "insert_many, priorities": Verb(list(range(20)), lambda q: q.insert_many(map(urgent, range(20)), batch_tasks=5)),
    "insert_many, keys": Verb(
        [1, 2, 3], lambda q: q.insert_many(iter([Task(1, key="a"), Task(2, key="b"), Task(3, key="c")]))
    ),
    "insert_many, keys at once": Verb(
        [1, 2, 3], lambda q: q.insert_many([Task(1, key="a"), Task(2, key="b"), Task(3, key="c")])
    ),
    "insert_many, some keys": Verb([1, 2, 3, 4], lambda q: q.insert_many([1, 2, Task(3, key="c"), 4])),
    "insert_many, commit": Verb(list(range(20)), lambda q: q.insert_many(range(20), batch_tasks=5, commit="c"), True),
    "commit": Verb(list(range(20)), commit, True),
    "overwrite": Verb(list(range(20)), overwrite, True),
}


# -- what must be true -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """What was said, and what is there."""

    error: FsqueueError
    verb: Verb
    there: list[Any]

    @property
    def count(self) -> int:
        return len(self.there)

    def first(self, count: int) -> bool:
        """Return whether the first `count` tasks of the call are there, and no others if the error is exact."""
        wanted = self.verb.payloads[:count]
        return set(map(str, wanted)) <= set(map(str, self.there)) and (not self.error.is_exact or self.count == count)


def number(text: str) -> int:
    return int(text.replace(",", ""))


Holds = Callable[[Told, re.Match[str]], bool]
SENTENCES: dict[str, Holds] = {
    r"None of the tasks is in the queue: repeat the call\.": lambda told, _: not told.there,
    r"Nothing was inserted; the call may be repeated\.": lambda told, _: not told.there,
    r"The task is not in the queue|The task is not in it|The task was not inserted": lambda told, _: not told.there,
    r"Nothing of it is visible": lambda told, _: not told.there,
    r"The task is in the queue: do not insert it again\.": lambda told, _: told.count == 1,
    r"It is unknown whether the task is in the queue\.": lambda told, _: not told.error.is_exact,
    r"It is unknown whether the commit is decided\.": lambda told, _: not told.error.is_exact,
    r"It is decided": lambda told, _: told.first(len(told.verb.payloads)),
    r"The first task of this call is in the queue": lambda told, _: told.first(1),
    r"The first ([\d,]+) tasks of this call are in the queue": lambda told, found: told.first(number(found[1])),
    r"([\d,]+) of the tasks of this call are new in the queue": lambda told, found: told.count == number(found[1]),
    r"Some of the tasks may be in the queue": lambda told, _: not told.error.is_exact,
    r"some of those that came next may be": lambda told, _: not told.error.is_exact,
    r"may still take": lambda told, _: told.count > 0,
}
REPEAT = r"repeat the call|may be repeated|Repeat|and repeat"
NO_REPEAT = r"would insert|do not insert it again|before you insert it again"


def judge(told: Told) -> None:
    """Compare what an error says, in words and in numbers, with what is there."""
    error, text = told.error, str(told.error)
    context = f"{text}\ninserted={error.inserted} new={error.new} exact={error.is_exact} there={told.count}"
    for sentence, holds in SENTENCES.items():
        if (found := re.search(sentence, text)) is not None:
            assert holds(told, found), context
    if error.new is None:
        assert told.verb.has_name, context
    else:
        assert error.new == told.count if error.is_exact else error.new <= told.count, context
    if error.inserted:
        assert told.first(error.inserted), context
    if not error.is_exact and not told.verb.has_name:
        assert re.search(r"is unknown|may be in the queue|that came next may be\b", text), context


def judge_repeat(queue: Queue, told: Told) -> None:
    """Where the error says that the call may be repeated, nothing is there twice after that."""
    text = str(told.error)
    if told.verb.has_name or (re.search(REPEAT, text) and not re.search(NO_REPEAT, text)):
        told.verb.act(Queue(queue.path))
        assert sorted(map(str, told.verb.there(queue))) == sorted(map(str, told.verb.payloads)), text


def broken(queue: Queue, fs: Faulty, verb: Verb) -> Told | None:
    """Insert while the filesystem fails. None if there was no error: then all is in the queue."""
    q = Queue(queue.path, filesystem=fs, clock=ManualClock(Queue(queue.path).store.clock.now_ms() / 1000))
    q.insert("before")
    q.store.refresh(now=True)
    q.store.secure_generation()
    fs.armed = True
    try:
        verb.act(q)
    except FsqueueError as error:
        fs.armed = False
        q.close()
        return Told(error, verb, verb.there(queue))
    fs.armed = False
    assert sorted(map(str, verb.there(queue))) == sorted(map(str, verb.payloads))
    q.close()
    return None


# -- each sentence, by the error that leads to it ----------------------------------------------------------------


ELSEWHERE = [
    "The task is not in the queue",  # test_single_inserts: purged again and again
    "some of those that came next may be",  # below: the disk answers no more
    "Some of the tasks may be in the queue",
    "The task is in the queue: do not insert it again.",
]
"""What other tests than the rows lead to, or more of what these tell."""


@dataclass(frozen=True)
class Row:
    """At which call of a step, about which paths, which error is met, and what is said then."""

    verb: str
    step: str
    where: str
    at: int
    code: int
    says: str
    lasting: bool = False


ROWS = [
    Row("insert", "write", "/movements/", 1, errno.ENOSPC, "Nothing was inserted; the call may be repeated."),
    Row("insert", "try_lock", "/movements/", 1, errno.EMFILE, "Nothing was inserted; the call may be repeated."),
    Row("insert", "fsync", "/movements/", 1, errno.EIO, "It is unknown whether the task is in the queue. Look for it"),
    Row("insert, large", "create", "/staging/", 1, errno.EACCES, "Nothing was inserted; the call may be repeated."),
    Row("insert, large", "fsync", "/staging/", 1, errno.EIO, "Nothing was inserted; the call may be repeated."),
    Row("insert, large", "rename", "/queue/", 1, errno.EDQUOT, "Nothing was inserted; the call may be repeated."),
    Row("insert, large", "sync_directory", "/queue/", 1, errno.EIO, "The task is in the queue: do not insert it"),
    Row("insert, large", "rename", "/queue/", 1, errno.EIO, "Nothing was inserted; the call may be repeated."),
    Row("insert, key", "fsync", "/keys/", 1, errno.EIO, "Nothing was inserted; the call may be repeated."),
    Row("insert, key", "fsync", "/movements/", 1, errno.EIO, "is in the queue. Repeat the insert: the key keeps it"),
    Row("insert_many", "create", "", 1, errno.EACCES, "None of the tasks is in the queue: repeat the call."),
    Row("insert_many", "create", "", 1, errno.EIO, "None of the tasks is in the queue: repeat the call."),
    Row("insert_many", "fsync", "/staging/", 2, errno.EIO, "None of the tasks is in the queue: repeat the call."),
    Row("insert_many", "rename", "/queue/", 2, errno.EDQUOT, "The first 5 tasks of this call are in the queue. "),
    Row("insert_many", "rename", "/queue/", 4, errno.EIO, "The first 15 tasks of this call are in the queue. "),
    Row("insert_many", "sync_directory", "/queue/", 1, errno.EIO, "The first 20 tasks of this call are in the queue"),
    Row("insert_many, groups", "create", "", 129, errno.ENOSPC, "The first 128 tasks of this call are in the queue. "),
    Row("insert_many, groups", "sync_directory", "/queue/", 1, errno.EIO, "may still take the 64 tasks that came in"),
    Row("insert_many, priorities", "rename", "/queue/", 2, errno.EIO,
        "5 of the tasks of this call are new in the queue. They need not be its first ones"),
    Row("insert_many, keys", "write", "/keys/", 2, errno.EIO, "The first task of this call is in the queue. The"),
    Row("insert_many, keys", "fsync", "/movements/", 1, errno.EIO,
        "Some of the tasks may be in the queue. The call may be repeated: it inserts no task whose key is taken."),
    Row("insert_many, keys", "fsync", "/movements/", 2, errno.EIO,
        "The first task of this call is in the queue, and some of those that came next may be. The call may be"),
    Row("insert_many, keys at once", "write", "/keys/", 2, errno.EIO, "The call may be repeated: it inserts no task"),
    Row("insert_many, keys at once", "fsync", "/keys/", 2, errno.EIO, "The call may be repeated: it inserts no task"),
    Row("insert_many, keys at once", "fsync", "/movements/", 1, errno.EIO,
        "Some of the tasks may be in the queue. The call may be repeated: it inserts no task whose key is taken."),
    Row("insert_many, some keys", "fsync", "/movements/", 1, errno.EIO,
        "Some of the tasks may be in the queue; repeating the call would insert those again."),
    Row("insert_many, some keys", "fsync", "/movements/", 2, errno.EIO,
        "The first 2 tasks of this call are in the queue, and some of those that came next may be. "),
    Row("insert_many, some keys", "fsync", "/keys/", 1, errno.EIO, "The first 2 tasks of this call are in the queue. "),
    Row("insert_many, one", "write", "/movements/", 1, errno.ENOSPC, "None of the tasks is in the queue: repeat"),
    Row("insert_many, one", "fsync", "/movements/", 1, errno.EIO, "Some of the tasks may be in the queue; repeating"),
    Row("insert_many, few", "write", "/movements/", 1, errno.ENOSPC, "None of the tasks is in the queue: repeat"),
    Row("insert_many, few", "fsync", "/movements/", 1, errno.EIO, "Some of the tasks may be in the queue; repeating"),
    Row("insert_many, then few", "fsync", "/movements/", 1, errno.EIO,
        "The first 1,024 tasks of this call are in the queue, and some of those that came next may be. "),
    Row("insert_many, network", "fsync", "/staging/", 2, errno.EIO, "None of the tasks is in the queue"),
    Row("insert_many, network", "rename", "/queue/", 2, errno.EIO, "The first 32 tasks of this call are"),
    Row("insert_many, network", "write", "/movements/", 1, errno.ENOSPC,
        "The first 64 tasks of this call are in the queue. "),
    Row("insert_many, network", "fsync", "/movements/", 1, errno.EIO,
        "The first 64 tasks of this call are in the queue, and some of those that came next may be. ", lasting=True),
    Row("insert_many, commit", "create", "/staging/", 2, errno.ENOSPC, "Nothing of it is visible; the call may be"),
    Row("insert_many, commit", "link", "", 1, errno.EIO, "Nothing of it is visible; the call may be repeated."),
    Row("commit", "fsync", "/staging/", 2, errno.EIO, "Nothing of it is visible; the call may be repeated."),
    Row("commit", "rename", "/queue/", 2, errno.EIO, "It is decided: all of its tasks are in the queue, or will be"),
    Row("commit", "sync_directory", "/queue/", 1, errno.EIO, "It is decided: all of its tasks are in the queue"),
    Row("overwrite", "write", "/queue.jsonl", 1, errno.ENOSPC, "Nothing of it is visible; the call may be repeated."),
    Row("overwrite", "fsync", "/queue.jsonl", 1, errno.EIO, "It is unknown whether the commit is decided."),
    Row("overwrite", "rename", "/queue/", 1, errno.EIO, "It is decided: all of its tasks are in the queue, or will be"),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.verb}: {row.step} {row.where} {row.at} {row.code}")
def test_an_error_says_what_is_on_disk(queue: Queue, row: Row) -> None:
    verb, path = VERBS[row.verb], str(queue.path)
    fs = Faulty(path, row.code, row.at, step=row.step, where=row.where, lasting=row.lasting, shared=verb.shared)
    told = broken(queue, fs, verb)
    assert told is not None, fs.calls
    assert row.says in str(told.error)
    judge(told)
    judge_repeat(queue, told)


@pytest.mark.parametrize(("verb", "says"), [
    ("insert_many, 2", "The first 5 tasks of this call are in the queue, and some of those that came next may be."),
    ("insert_many", "Some of the tasks may be in the queue; repeating the call would insert those again."),
    ("insert, large", "It is unknown whether the task is in the queue. Look for it before you insert it again."),
])  # fmt: skip
def test_a_disk_that_answers_no_more_leaves_it_open(queue: Queue, verb: str, says: str) -> None:
    """The renaming fails, and so does each look at what has become of it."""
    fs = Faulty(str(queue.path))
    is_second, verb = verb.endswith(", 2"), verb.removesuffix(", 2")
    left = [True] if is_second else []

    def rename(source: str, target: str) -> bool:
        if "/queue/" not in target or (left and left.pop()):
            return Filesystem.rename(fs, source, target)
        for step in STEPS:
            setattr(fs, step, fail)
        return fail()

    def fail(*_: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    fs.rename = rename  # type: ignore[method-assign]
    q = Queue(queue.path, filesystem=fs)
    with pytest.raises(FsqueueError) as caught:
        VERBS[verb].act(q)
    assert says in str(caught.value)
    judge(Told(caught.value, VERBS[verb], VERBS[verb].there(queue)))


def test_an_error_of_the_look_behind_the_renaming_is_none_of_the_renaming(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The renaming is done. The look whether the file has two names is refused, as a renaming may be."""
    stat, refused = operations._stat, [errno.EACCES]

    def looked(*args: Any) -> os.stat_result:
        if refused:
            raise OSError(refused.pop(), "Permission denied")
        return stat(*args)

    q = Queue(queue.path)
    q.insert("before")
    monkeypatch.setattr(operations, "_stat", looked)
    with pytest.raises(FsqueueError, match="The task is in the queue: do not insert it again") as caught:
        q.insert(LARGE)
    assert (caught.value.new, caught.value.is_exact) == (1, True)
    assert [info.payload == LARGE for info in queue.tasks()].count(True) == 1


# -- every call --------------------------------------------------------------------------------------------------


def sweep(queue_factory: QueueFactory, verb: Verb, code: int, late: bool, lasting: bool, shared: bool) -> int:
    """Let each call fail in turn. Return how many errors were told."""
    told_count, at = 0, 0
    while True:
        at += 1
        queue = queue_factory(f"{at}")
        fs = Faulty(str(queue.path), code, at, late=late, lasting=lasting, shared=shared or verb.shared)
        told = broken(queue, fs, verb)
        if told is not None:
            told_count += 1
            judge(told)
            judge_repeat(queue, told)
        if fs.calls < at:
            return told_count


SWEPT = [name for name in VERBS if name != "insert_many, groups"]
QUICK = ("insert, key", "insert, large", "insert_many", "insert_many, few urgent", "insert_many, some keys")


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("name", QUICK)
def test_whichever_call_fails_the_error_says_what_is_on_disk(
    queue_factory: QueueFactory, name: str, lasting: bool
) -> None:
    assert sweep(queue_factory, VERBS[name], errno.EIO, False, lasting, False)


@pytest.mark.thorough
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("code", [errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("name", SWEPT)
def test_whichever_call_of_any_verb_fails_the_error_says_what_is_on_disk(
    queue_factory: QueueFactory, name: str, code: int, lasting: bool
) -> None:
    assert sweep(queue_factory, VERBS[name], code, False, lasting, False)


@pytest.mark.thorough
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("name", SWEPT)
def test_whichever_reply_is_lost_the_error_says_what_is_on_disk(
    queue_factory: QueueFactory, name: str, code: int, shared: bool
) -> None:
    sweep(queue_factory, VERBS[name], code, True, False, shared)


@pytest.mark.thorough
@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EMFILE, errno.ENOSPC, errno.ESTALE])
@pytest.mark.parametrize("name", SWEPT)
def test_whichever_call_is_refused_the_error_says_what_is_on_disk(
    queue_factory: QueueFactory, name: str, code: int
) -> None:
    sweep(queue_factory, VERBS[name], code, False, True, True)


# -- after the decisive step -------------------------------------------------------------------------------------


def faulty(queue: Queue, step: str, where: str, at: int = 1, code: int = errno.EIO, lasting: bool = False) -> Queue:
    """Return the queue on a filesystem of which a step fails, once `arm` is called."""
    fs = Faulty(str(queue.path), code, at, step=step, where=where, lasting=lasting)
    return Queue(queue.path, filesystem=fs)


def arm(q: Queue) -> None:
    assert isinstance(q.store.fs, Faulty)
    q.store.fs.armed = True


def dead(queue: Queue, count: int) -> None:
    queue.insert_many(range(count), batch_tasks=1)
    for task in queue.lease(count):
        task.bury("no use")


@pytest.mark.parametrize("verb", ["retry_dead", "purge_dead"])
def test_an_error_while_letters_are_settled_says_how_many_are(queue: Queue, verb: str) -> None:
    dead(queue, 12)
    q = faulty(queue, "write", "/dead/", 3)
    arm(q)
    with pytest.raises(FsqueueError, match="Dead letters settled: ") as caught:
        getattr(q, verb)()
    found = re.search(r"settled: (\d+)\.", str(caught.value))
    assert found is not None
    settled = 12 - len(list(queue.dead()))
    assert 0 < settled == int(found[1])
    assert getattr(queue, verb)() == 12 - settled
    assert queue.status().waiting == (12 if verb == "retry_dead" else 0)


def test_what_a_retry_has_recorded_is_retried_though_it_could_not_be_published(queue: Queue) -> None:
    dead(queue, 3)
    q = faulty(queue, "rename", "/queue/", lasting=True)
    arm(q)
    assert q.retry_dead() == 3
    assert sorted(task.payload for task in queue.lease(9)) == [0, 1, 2]


def test_an_error_while_tasks_are_cancelled_says_how_many_are(queue: Queue) -> None:
    queue.insert_many(range(5), batch_tasks=1)
    ids = [info.id for info in queue.tasks()]
    q = faulty(queue, "write", "/movements/", 5)
    arm(q)
    with pytest.raises(FsqueueError, match="Tasks cancelled: ") as caught:
        q.cancel(ids)
    found = re.search(r"cancelled: (\d+)\.", str(caught.value))
    assert found is not None
    assert queue.status().waiting == 5 - int(found[1])
    assert 0 < int(found[1]) == 5 - queue.cancel(ids)


def test_an_error_while_leases_are_ended_says_how_many_are(queue: Queue) -> None:
    queue.insert_many(range(5), batch_tasks=1)
    assert len(queue.lease(5)) == 5
    q = faulty(queue, "write", "/movements/", 3)
    bell = queue.store.doorbell.read()
    arm(q)
    with pytest.raises(FsqueueError, match="Leases released: ") as caught:
        q.release_all()
    found = re.search(r"released: (\d+)\.", str(caught.value))
    assert found is not None
    assert 0 < int(found[1]) == queue.status().waiting
    assert queue.store.doorbell.read() != bell, "idle workers are notified of those"


def test_an_error_while_several_tasks_are_completed_says_how_many_are(queue: Queue) -> None:
    queue.insert_many(range(5), batch_tasks=1)
    q = faulty(queue, "write", "/movements/", 5, errno.ENOSPC)
    tasks = q.lease(5)
    arm(q)
    with pytest.raises(FsqueueError, match="Of 5 tasks this call has dealt with ") as caught:
        q.complete(tasks)
    found = re.search(r"dealt with (\d+),", str(caught.value))
    assert found is not None
    assert 0 < int(found[1]) == queue.status().completed


@pytest.mark.parametrize("step", ["unlock", "close"])
def test_an_error_of_letting_go_is_none_of_what_was_done(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    q = faulty(queue, "unlock", "", lasting=True)
    if step == "unlock":
        arm(q)
    else:
        close = os.close

        def closing(fd: int) -> None:
            close(fd)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "close", closing)
    q.insert(1)
    q.insert(2, key="k")
    q.insert(LARGE)
    assert q.insert_many([3, 4], batch_tasks=1) == 2
    assert q.insert_many([5], commit="c") == 1
    tasks = q.lease(9)
    assert len(tasks) == 6
    q.complete(tasks[:3])
    tasks[3].fail("why")
    tasks[4].bury("why")
    tasks[5].complete()
    assert q.retry_dead() == 1
    q.purge()
    q.close()
    monkeypatch.undo()
    assert queue.status().inserted == 0


def test_a_purge_that_was_done_ends_without_an_error(queue: Queue) -> None:
    queue.insert(1)
    q = faulty(queue, "look", "/queue.jsonl", 4, lasting=True)
    arm(q)
    q.purge()
    assert queue.status().inserted == 0


def test_a_purge_that_may_have_been_done_is_not_to_be_repeated_blindly(queue: Queue) -> None:
    q = faulty(queue, "fsync", "/queue.jsonl")
    arm(q)
    with pytest.raises(FsqueueError, match="look at its status before you repeat the purge"):
        q.purge()


# -- nothing is left out -----------------------------------------------------------------------------------------

CLAIMS = re.compile(
    r"not in (the queue|it)\b|none of the tasks|in the queue(:|\.|, and|;)|may be in the queue|is decided|need not be|"
    r"look for it before|not inserted|nothing was inserted|nothing of it is visible|may still take",
    re.IGNORECASE,
)
PARTS = (LOOK_FIRST, "They need not be its first ones", "So they are others, and were not inserted")
"""Of sentences above, what stands in a text of its own; and what tests/storage/test_commits.py leads to."""
OTHERS = {
    "cli/filequeue.py": "said before anything is inserted: tests/cli/test_import.py",
    "cli/importing.py": "said before anything is inserted, or of a name that is used up: the same",
    "cli/task_lines.py": "said before anything is inserted: tests/cli/test_export.py",
    "cli/insert_lines.py": "said before anything was inserted",
    "cli/insert_input.py": "said before anything was inserted",
    "cli/insert_source.py": "made of the error's numbers, or said before anything was inserted",
    "cli/inserting.py": "said before anything was inserted, or of a name that is used up",
    "cli/mapping.py": "said before anything was inserted: tests/cli/test_map.py",
    "cli/slurm.py": "no error of an insert",
    "fsqueue/administration.py": "no error of an insert",
    "fsqueue/compat/taskqueue.py": "an argument that is refused first",
    "fsqueue/arguments.py": "an argument that is refused first",
    "fsqueue/executor/named_calls.py": "said before a commit is published: tests/executor/test_named_calls.py",
    "fsqueue/service/streaming.py": "lines of a gateway's client: tests/service/test_bodies.py",
    "fsqueue/spark/options.py": "an option that is refused first",
    "fsqueue/storage/queue_changes.py": "the queue is gone",
    "fsqueue/storage/staging.py": "an inserter that was away for half a day: tests/upkeep/test_collect.py",
    "fsqueue/worker/inserts.py": "an outcome that is refused before its update begins: tests/worker/test_then.py",
    "fsqueue/worker/loop.py": "an argument that is refused first",
}
"""Where sentences stand that no row here leads to, and why they are true."""


def texts_of(path: Path) -> Iterator[str]:
    """Yield each text in a module that claims something of what is in a queue."""
    tree = parse(path)
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation
        if is_text and CLAIMS.search(node.value):
            yield node.value


def test_no_sentence_about_what_is_in_the_queue_is_left_out() -> None:
    known = re.compile("|".join([*SENTENCES, *map(re.escape, PARTS)]))
    unknown = [
        (where, text)
        for path in [*PACKAGE.rglob("*.py"), *(TOP / "cli").glob("*.py")]
        if (where := str(path.relative_to(TOP))) not in OTHERS
        for text in texts_of(path)
        if not known.search(text)
    ]
    assert not unknown
    assert all(any(texts_of(TOP / where)) for where in OTHERS)


def test_each_sentence_is_told_in_a_row() -> None:
    told = " ".join([*(row.says for row in ROWS), *ELSEWHERE])
    assert [sentence for sentence in SENTENCES if not re.search(sentence, told)] == []
