"""A generator that outlives the call in which it was begun: the call has given back what it had open."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from fsqueue import DeadLetter, Queue, StorageError
from fsqueue.filesystem import resources

pytestmark = pytest.mark.once


@pytest.fixture
def letters(queue: Queue) -> Iterator[DeadLetter]:
    """Dead letters whose first one was read in a call that was interrupted then."""
    queue.insert_many(["first", "second"])
    for task in queue.lease(2):
        task.bury("no")
    found = queue.dead()

    def again() -> Iterator[object]:
        yield next(found).payload
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        queue.insert_many(again())
    return found


def test_a_generator_closes_no_number_that_an_interrupted_call_has_given_back(
    letters: Generator[DeadLetter, None, None], tmp_path: Path
) -> None:
    others = [os.open(tmp_path, os.O_RDONLY) for _ in range(20)]
    letters.close()
    for fd in others:
        os.close(fd)


def test_a_lock_that_outlives_an_interrupted_call_unlocks_no_number_that_the_call_has_given_back(
    queue: Queue, tmp_path: Path
) -> None:
    """Whatever keeps it, such as a debugger that keeps frames: a `with` was interrupted before its first line."""
    queue.insert("a task")
    store, path = queue.store, tmp_path / "other"
    lock = store.locked(store.layout.cancelled)
    before = resources.mark()
    fd = lock.__enter__().fd
    resources.give_back(before, KeyboardInterrupt())
    others = [os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(20)]
    assert fd in others
    assert store.fs.try_lock(fd)
    del lock
    other = os.open(path, os.O_RDWR)
    assert not store.fs.try_lock(other)
    for one in (*others, other):
        os.close(one)


def test_a_generator_reads_nothing_by_such_a_number(letters: Iterator[DeadLetter]) -> None:
    with pytest.raises(StorageError, match=r"Reading dead letters: a call that was interrupted .* Begin anew"):
        next(letters)
    assert list(letters) == []


def test_a_generator_that_a_call_has_not_begun_goes_on(queue: Queue) -> None:
    queue.insert_many(["first", "second"])
    for task in queue.lease(2):
        task.bury("no")
    letters, read = queue.dead(), list[object]()
    read.append(next(letters).payload)

    def again() -> Iterator[object]:
        yield "third"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        queue.insert_many(again())
    read += [letter.payload for letter in letters]
    assert sorted(map(str, read)) == ["first", "second"]
