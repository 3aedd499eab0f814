"""Every line of `queue.jsonl` but the first is appended in one way: lock, read, compare, append, sync, read again."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from fsqueue import Queue, QueueNotFound
from fsqueue.format.layout import QueueState, closed_record, generation_record, ordered_record, pause_record
from fsqueue.storage import queue_changes
from tests.support import failing

pytestmark = pytest.mark.once

PAUSE = pause_record("why", {}, 1)


def content(queue: Queue) -> bytes:
    return (queue.path / "queue.jsonl").read_bytes()


def add(queue: Queue, line: bytes) -> None:
    """Append a line as another process does."""
    with (queue.path / "queue.jsonl").open("ab") as file:
        file.write(line)


def recorded(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done with the file from now on, in its order."""
    fs, done = queue.store.fs, list[str]()
    for name in ("try_lock", "write", "fsync", "unlock", "close"):
        real = getattr(fs, name)

        def act(*args: object, name: str = name, real: Callable[..., object] = real) -> object:
            done.append(name)
            return real(*args)

        monkeypatch.setattr(fs, name, act)
    return done


def test_the_line_is_synced_under_the_lock(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    done = recorded(queue, monkeypatch)

    def line(state: QueueState) -> bytes:
        assert done == ["try_lock", "close"], "the line was made before the file was locked"  # `close`: of same_file
        done.clear()
        return PAUSE

    before = content(queue)
    assert queue_changes.append(queue.store, line)
    assert done[:3] == ["write", "fsync", "unlock"]
    assert content(queue) == before + PAUSE


def test_what_is_said_already_is_synced_and_not_said_again(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer may have died before its own sync, and a power loss could take the line back."""
    before, done = content(queue), recorded(queue, monkeypatch)
    assert not queue_changes.append(queue.store, lambda state: None)
    assert done.index("fsync") < done.index("unlock")
    assert "write" not in done
    assert content(queue) == before


def test_the_line_depends_on_what_the_file_says_under_the_lock(queue: Queue) -> None:
    """Not on what this process has read of it a moment ago."""
    add(queue, ordered_record(1))
    assert not queue.store.queue_state.is_ordered
    assert not queue_changes.append(queue.store, lambda state: None if state.is_ordered else PAUSE)


@pytest.mark.parametrize("says", [None, PAUSE], ids=["nothing", "a line"])
def test_what_the_file_says_is_known_afterwards(queue: Queue, says: bytes | None) -> None:
    add(queue, ordered_record(1))
    queue_changes.append(queue.store, lambda state: says)
    state = queue.store.queue_state
    assert (state.is_ordered, state.paused is not None) == (True, says is not None)


def deleted(queue: Queue) -> None:
    add(queue, closed_record(1))


def replaced(queue: Queue) -> None:
    other = Queue.create(queue.path.with_name("other"))
    os.replace(other.path / "queue.jsonl", queue.path / "queue.jsonl")


def moved(queue: Queue) -> None:
    queue.path.rename(queue.path.with_name("aside"))


@pytest.mark.parametrize("end", [deleted, replaced, moved])
def test_in_a_queue_that_is_gone_nothing_is_said(queue: Queue, end: Callable[[Queue], None]) -> None:
    end(queue)
    found = next(path for path in (queue.path, queue.path.with_name("aside")) if path.exists()) / "queue.jsonl"
    before = found.read_bytes()
    with pytest.raises(QueueNotFound, match=r"was deleted just now\. Nothing was touched\.$"):
        queue_changes.append(queue.store, lambda state: PAUSE, "Nothing was touched.")
    assert found.read_bytes() == before


def test_a_torn_line_does_not_swallow_the_next(queue: Queue) -> None:
    add(queue, PAUSE[:-9])
    queue_changes.append(queue.store, lambda state: ordered_record(1))
    assert queue.store.queue_state.is_ordered
    assert queue.paused is None


@pytest.mark.parametrize("step", ["write", "fsync"])
def test_an_append_that_fails_leaves_the_file_unlocked(queue: Queue, step: str) -> None:
    with failing(queue.store.fs, step), pytest.raises(OSError, match="No space"):
        queue_changes.append(queue.store, lambda state: PAUSE)
    assert Queue(queue.path).resume() == (step == "fsync")  # a line that is not synced stands all the same


def test_an_error_of_the_line_leaves_the_file_as_it_was(queue: Queue) -> None:
    def line(state: QueueState) -> bytes:
        raise KeyError

    before = content(queue)
    with pytest.raises(KeyError):
        queue_changes.append(queue.store, line)
    assert content(queue) == before
    assert Queue(queue.path).pause()


def locked(queue: Queue) -> AbstractContextManager[queue_changes.Locked]:
    store = queue.store
    return queue_changes.locked(store.fs, store.clock, store.entropy, store.path)


def test_it_is_locked_until_the_end(queue: Queue) -> None:
    other = Queue(queue.path)
    with locked(queue) as file:
        fd = other.store.fs.look(str(queue.path / "queue.jsonl"), os.O_RDWR)
        assert not other.store.fs.try_lock(fd)
        file.append(PAUSE)
        assert not other.store.fs.try_lock(fd)
    assert other.store.fs.try_lock(fd)
    other.store.fs.close(fd)


@pytest.mark.parametrize(
    ("line", "differs"),
    [
        (b"", False),
        (PAUSE, False),
        (b'{"op":"generation"', False),
        (generation_record(2, 1), True),
        (closed_record(1), True),
    ],
    ids=["nothing", "a pause", "half a line", "a purge", "a deletion"],
)
def test_whether_a_line_that_failed_may_stand_is_read_from_the_file(queue: Queue, line: bytes, differs: bool) -> None:
    with locked(queue) as file:
        add(queue, line)
        assert file.may_differ() == differs


def test_a_line_that_failed_may_stand_in_a_file_that_cannot_be_read(queue: Queue) -> None:
    fs = queue.store.fs
    with locked(queue) as file:
        with failing(fs, "pread", errno.EIO):
            assert file.may_differ()
        assert not file.may_differ()


def test_a_file_that_is_gone_is_an_error_of_the_system(queue: Queue) -> None:
    (queue.path / "queue.jsonl").unlink()
    with pytest.raises(FileNotFoundError):
        queue_changes.append(queue.store, lambda state: PAUSE)
