"""Errors of the caller's own code, in generators and callbacks, come back as they are; str() may raise."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import FsqueueError, LockTimeout, Queue, StorageError
from fsqueue.worker import handlers
from tests.support import QueueFactory

ERRORS = [
    FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/mine"),
    OSError(errno.ENOTDIR, "in the way"),
    PermissionError(errno.EACCES, "not yours"),
    OSError(errno.ESTALE, "stale"),
    TimeoutError("my own"),
    ConnectionResetError("my database"),
    LockTimeout("of another queue"),
]


def failing(error: Exception, *first: Any) -> Iterator[Any]:
    yield from first
    raise error


def raising(error: Exception) -> Callable[..., Any]:
    def raise_it(*_: object) -> Any:
        raise error

    return raise_it


class Results(Mapping[str, Any]):
    """Read from somewhere that does not answer."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        raise self.error

    def __getitem__(self, key: str) -> Any:
        raise self.error


VERBS: dict[str, Callable[[Queue, Exception], Any]] = {
    "insert_many": lambda q, e: q.insert_many(failing(e, 1, 2)),
    "insert_many in batches": lambda q, e: q.insert_many(failing(e, 1, 2), batch_tasks=1),
    "insert_many as a commit": lambda q, e: q.insert_many(failing(e, 1, 2), commit="c"),
    "stage": lambda q, e: q.commit("c").stage(failing(e, 1)),
    "stage_encoded": lambda q, e: q.commit("c").stage_encoded(failing(e)),
    "publish": lambda q, e: q.commit("c").publish(failing(e)),
    "retry_dead where": lambda q, e: q.retry_dead(where=raising(e)),
    "retry_completed where": lambda q, e: q.retry_completed(where=raising(e)),
    "retry_completed ids": lambda q, e: q.retry_completed(failing(e)),
    "retry_dead ids": lambda q, e: q.retry_dead(failing(e)),
    "purge_dead where": lambda q, e: q.purge_dead(where=raising(e)),
    "dead where": lambda q, e: list(q.dead(where=raising(e))),
    "wait poll": lambda q, e: q.wait(1, poll=raising(e)),
    "wait for several": lambda q, e: fsqueue.wait([q, q], 1, poll=raising(e)),
    "fsck progress": lambda q, e: list(q.fsck(progress=raising(e))),
    "cancel": lambda q, e: q.cancel(failing(e)),
    "complete": lambda q, e: q.complete(failing(e)),
    "complete with results": lambda q, e: q.complete([], Results(e)),
    "release": lambda q, e: q.release(failing(e)),
    "renew": lambda q, e: q.renew(failing(e)),
}


@pytest.mark.parametrize("verb", VERBS)
def test_an_error_of_the_callers_code_passes_through_as_it_is(verb: str, queue_factory: QueueFactory) -> None:
    queue = queue_factory(durability="none")
    queue.insert("bad")
    queue.lease()[0].bury("bad")
    queue.insert("good")
    queue.lease()[0].complete()
    for error in ERRORS:
        with pytest.raises(type(error)) as caught:
            VERBS[verb](queue, error)
        assert caught.value is error
        assert error.__cause__ is None
        assert error.__context__ is None
    assert [letter.payload for letter in queue.dead()] == ["bad"]
    queue.insert("and on")
    assert not list(queue.fsck())


def test_what_came_before_the_callers_error_is_inserted(queue_factory: QueueFactory) -> None:
    """As with any other error of a generator."""
    queue = queue_factory(durability="none")
    with pytest.raises(TimeoutError):
        queue.insert_many(failing(TimeoutError(), 1, 2))
    assert queue.status().waiting == 2


@pytest.mark.parametrize(("commit", "inserted"), [(None, 3), ("c", 0)])
def test_what_another_queue_has_inserted_is_not_told_as_this_calls(
    queue_factory: QueueFactory, commit: str | None, inserted: int
) -> None:
    queue, other = queue_factory(durability="none"), queue_factory("other", durability="none")

    def feeding_another() -> Iterator[Any]:
        yield from (1, 2, 3)
        other.insert_many([1, {1, 2}])

    with pytest.raises(fsqueue.InvalidTask) as caught:
        queue.insert_many(feeding_another(), commit=commit)
    assert caught.value.inserted == inserted == queue.status().waiting
    assert other.status().waiting == 1


def test_the_callers_generator_is_not_closed_by_an_error_of_the_queue(queue_factory: QueueFactory) -> None:
    queue = queue_factory(durability="none")
    stream = iter([1, {1, 2}, 3])
    generator = (item for item in stream)
    with pytest.raises(fsqueue.InvalidTask):
        queue.insert_many(generator)
    assert queue.insert_many(generator) == 1


def test_errors_of_the_filesystem_are_still_told_as_such(queue_factory: QueueFactory) -> None:
    queue = queue_factory(durability="none")

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "broken")

    queue.store.fs.write = broken
    for verb in (lambda: queue.insert_many(iter([1])), lambda: queue.commit("c").stage(iter([1]))):
        with pytest.raises(StorageError):
            verb()


# -- texts that cannot be had ------------------------------------------------------------------------


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no str")


def test_an_exception_whose_text_cannot_be_had_fails_its_task(queue_factory: QueueFactory) -> None:
    queue = queue_factory(max_attempts=1, durability="none")
    queue.insert(1)
    with pytest.raises(Unspeakable), queue.lease()[0]:
        raise Unspeakable
    assert queue.status().dead == 1
    assert [letter.reason for letter in queue.dead()] == ["Unspeakable: (its text could not be had: RuntimeError)"]


def test_it_does_so_in_a_polling_loop_and_as_an_argument(queue_factory: QueueFactory) -> None:
    queue = queue_factory(max_attempts=1, durability="none")
    queue.insert_many(range(3))
    for number, task in enumerate(queue.poll(errors="raise")):
        if number == 0:
            with pytest.raises(Unspeakable), task:
                raise Unspeakable
        elif number == 1:
            task.fail(Unspeakable())
        else:
            task.bury(Unspeakable())
    assert {letter.reason.split()[0] for letter in queue.dead()} == {"Unspeakable:", "(a"}
    assert queue.status().dead == 3


@pytest.mark.parametrize("error", [Unspeakable(), fsqueue.Bury(Unspeakable()), fsqueue.Retry(Unspeakable())])  # type: ignore[arg-type]
def test_it_does_so_in_a_worker(error: Exception) -> None:
    op, text, _ = handlers.call(raising(error), [])
    assert op == ("bury" if isinstance(error, fsqueue.Bury) else "fail")
    assert isinstance(text, str)
    assert "Unspeakable" in text or "Bury" in text or "Retry" in text


def test_a_path_is_not_the_callers_code(tmp_path: Path) -> None:
    """What opening a queue meets is the filesystem's, whoever named the path."""
    (tmp_path / "file").write_text("")
    with pytest.raises(FsqueueError):
        Queue(tmp_path / "file" / "below")
