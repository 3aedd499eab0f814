"""Lease: what is handed out, in which order, how often, and when "empty" may be said."""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsqueue import (
    FsqueueError,
    InvalidArgument,
    LeasedTask,
    LockTimeout,
    Queue,
    QueueNotFound,
    StorageError,
    StorageFull,
)
from fsqueue.clock import ManualClock
from fsqueue.filesystem import Filesystem
from fsqueue.format.names import TaskFileName
from fsqueue.protocol import finishing, selection, transitions
from fsqueue.protocol.leasing import MISSING_S
from fsqueue.protocol.selection import Selection
from tests.support import Crash, QueueFactory, base_of, calls, insert_in_file, log_files, task_file_names


def together(q: Queue, *payloads: Any) -> None:
    q.insert_many(payloads, batch_tasks=len(payloads))


def crash(*_: object) -> None:
    raise Crash


def payloads(tasks: list[LeasedTask]) -> list[Any]:
    return sorted(task.payload for task in tasks)


# -- what is handed out --------------------------------------------------------------------------------


def test_an_empty_queue_leases_nothing(q: Queue) -> None:
    assert q.lease() == []
    assert q.lease(5, strict=True) == []


def test_a_leased_task_tells_what_is_needed(q: Queue, clock: ManualClock) -> None:
    ref = q.insert({"a": 1})
    [task] = q.lease(lease_s=30)
    assert (task.id, task.payload, task.attempt, task.key, task.priority) == (ref.id, {"a": 1}, 1, None, None)
    assert task.lease_until == pytest.approx(clock.now_s + 30)
    assert task.token.startswith(f"{ref.id}@")
    assert task.queue is q
    info = q.task(ref.id)
    assert (info.state, info.lease_until, info.version) == ("leased", task.lease_until, task.version)
    assert info.worker is not None
    assert (info.worker["name"], info.worker["pid"]) == ("w1", os.getpid())
    assert ref.id in repr(task)


def test_the_queue_s_lease_is_the_default(queue_factory: QueueFactory, clock: ManualClock) -> None:
    q = Queue(queue_factory(lease_s=42).path, clock=clock)
    q.insert(1)
    assert q.lease()[0].lease_until == pytest.approx(clock.now_s + 42)


def test_nothing_is_handed_out_twice(q: Queue, q2: Queue) -> None:
    q.insert_many(range(40))
    got = [task for _ in range(10) for queue in (q, q2) for task in queue.lease(2)]
    assert payloads(got) == list(range(40))
    assert q.lease() == q2.lease() == []
    assert len({task.token for task in got}) == 40


def test_a_task_whose_lease_ends_while_the_call_goes_on_is_handed_out_once(
    q: Queue, q2: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.insert_many(["a", "b"], batch_tasks=1)
    sweep, released = Selection.sweep, list[int]()

    def released_meanwhile(self: Selection, *shards: Any) -> None:
        if not released and (count := q2.release_all()):
            released.append(count)
        sweep(self, *shards)

    monkeypatch.setattr(Selection, "sweep", released_meanwhile)
    tasks = q.lease(5)
    assert released == [2]
    assert payloads(tasks) == ["a", "b"]
    q.complete(tasks)
    assert q.status().completed == 2


@pytest.mark.parametrize("n", [1, 2, 7, 39, 40, 41, 1000])
def test_up_to_n_over_as_many_batches_as_it_takes(q: Queue, n: int) -> None:
    q.insert_many(range(10))
    together(q, *range(10, 40))
    assert len(q.lease(n)) == min(n, 40)
    assert q.status().leased == min(n, 40)


@pytest.mark.batched
def test_one_call_has_one_lease_in_a_batch(q: Queue) -> None:
    together(q, *range(10))
    tasks = q.lease(4)
    assert len({task.lease for task in tasks}) == 1
    assert len(q.lease(4) + tasks) == 8
    [log] = log_files(q)
    assert log.read_bytes().count(b"\n") == 3, "open, lease, lease"


def test_strictly_in_the_order_of_insertion(q: Queue, clock: ManualClock) -> None:
    for number in range(12):
        q.insert(number)
        clock.advance(0.001)
    assert [q.lease(strict=True)[0].payload for _ in range(6)] == list(range(6))
    assert [task.payload for task in q.lease(6, strict=True)] == list(range(6, 12))


def test_strict_sees_what_came_back(q: Queue, clock: ManualClock) -> None:
    for number in range(5):
        q.insert(number)
        clock.advance(0.001)
    [task] = q.lease(strict=True)
    assert task.payload == 0
    assert [other.payload for other in q.lease(strict=True)] == [1]
    task.release()
    assert [again.payload for again in q.lease(strict=True)] == [0]


def test_batches_of_one_millisecond_are_leased_as_they_were_inserted(q: Queue) -> None:
    """The clock stands still."""
    for i in range(100):
        together(q, i)
    assert [q.lease(1, strict=True)[0].payload for _ in range(100)] == list(range(100))


def test_older_tasks_come_first_as_far_as_the_listed_shards_go(queue_factory: QueueFactory, clock: ManualClock) -> None:
    q = Queue(queue_factory(shards=2).path, clock=clock)
    for number in range(100):
        q.insert(number)
        clock.advance(0.001)
    assert [q.lease()[0].payload for _ in range(100)] == list(range(100))


@pytest.mark.batched
def test_a_worker_stays_with_its_batch(q: Queue) -> None:
    for first in (0, 10, 20):
        together(q, *range(first, first + 10))
    batches = [q.lease()[0].batch for _ in range(30)]
    assert len(list(itertools.groupby(batches))) == 3


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"n": 0}, "n must"),
        ({"n": -1}, "n must"),
        ({"n": 1.0}, "n must"),
        ({"n": True}, "n must"),
        ({"n": "1"}, "n must"),
        ({"lease_s": 0}, "lease_s"),
        ({"lease_s": -1}, "lease_s"),
        ({"lease_s": float("nan")}, "lease_s"),
        ({"lease_s": 1e30}, "lease_s"),
        ({"lease_s": "1"}, "lease_s"),
        ({"wait_s": -1}, "wait_s"),
        ({"wait_s": None}, "wait_s"),
        ({"wait_s": float("nan")}, "wait_s"),
        ({"wait_s": "1"}, "wait_s"),
    ],
)
def test_wrong_arguments_are_refused_by_name(q: Queue, arguments: dict[str, Any], name: str) -> None:
    q.insert(1)
    with pytest.raises(InvalidArgument, match=name):
        q.lease(**arguments)
    assert q.status().waiting == 1


def test_fractions_of_a_second_are_leases_too(q: Queue, clock: ManualClock) -> None:
    q.insert(1)
    [task] = q.lease(lease_s=0.25)
    assert task.lease_until == pytest.approx(clock.now_s + 0.25)


def test_a_lease_may_last_for_ever_and_a_day(q: Queue) -> None:
    q.insert(1)
    [task] = q.lease(lease_s=9_000_000_000)
    task.complete()
    assert q.status().completed == 1


# -- leases that run out -----------------------------------------------------------------------------------


def test_a_task_comes_back_by_itself_when_its_lease_has_run_out(q: Queue, q2: Queue, clock: ManualClock) -> None:
    q.insert("x")
    [task] = q.lease(lease_s=10)
    clock.advance(9.999)
    assert q2.lease() == []
    assert q2.status().leased == 1
    clock.advance(0.001)
    assert q2.status().waiting == 1
    assert q2.lease() == [], "not within the margin: the holder's clock may be behind"
    clock.advance(0.05)
    [again] = q2.lease()
    assert (again.id, again.attempt) == (task.id, 2)


def test_a_short_lease_has_a_short_margin(q: Queue, clock: ManualClock) -> None:
    q.insert("x")
    q.lease(lease_s=0.1)
    clock.advance(0.11)
    assert len(q.lease()) == 1


def test_every_expiry_is_charged_once_until_the_task_is_buried(queue_factory: QueueFactory, clock: ManualClock) -> None:
    q = Queue(queue_factory(max_attempts=3).path, worker="killer", clock=clock)
    ref = q.insert("x")
    for attempt in (1, 2, 3):
        [task] = q.lease(lease_s=1)
        assert task.attempt == attempt
        clock.advance(5)
        assert q.task(ref.id).attempt == attempt
    assert q.lease() == []
    [letter] = q.dead()
    assert "lease expired, last worker killer on " in letter.reason
    assert "out of attempts" in letter.reason
    assert letter.attempt == 3
    assert [movement.op for movement in q.history(ref.id)] == ["insert", "lease", "lease", "lease", "bury"]
    assert q.status().as_dict() == {"inserted": 1, "waiting": 0, "delayed": 0, "leased": 0, "completed": 0, "dead": 1}


OWN_REASON = "ValueError: my own reason\nand its traceback"


def used_up(had: int) -> str:
    return f"ValueError: my own reason (out of attempts: it has had {had}, and max_attempts is 1)\nand its traceback"


@pytest.mark.parametrize("then", ["failed", "released", "ran out, with another"])
def test_lowering_the_attempts_buries_for_the_reason_of_the_last_attempt(
    queue_factory: QueueFactory, clock: ManualClock, then: str
) -> None:
    path = queue_factory().path
    first, second, third = (Queue(path, worker=name, clock=clock) for name in ("first", "second", "third"))
    together(first, "x", "y")
    for task in first.lease(2):
        task.fail(OWN_REASON, delay_s=0)
    for task in second.lease(2):
        if then == "failed":
            task.fail(OWN_REASON, delay_s=0)
        elif then == "released":
            task.release()
    clock.advance(7200)
    third.change_settings(max_attempts=1)
    assert third.lease(2) == []
    had, who = (2, "second") if then == "failed" else (1, "first")
    letters = list(third.dead())
    assert [(letter.reason, letter.attempt) for letter in letters] == [(used_up(had), had)] * 2
    assert [letter.worker and letter.worker["name"] for letter in letters] == [who] * 2
    assert [third.history(letter.id)[-1].worker == letter.worker for letter in letters] == [True] * 2


def test_a_lease_that_ran_out_before_another_was_released_is_the_reason(
    queue_factory: QueueFactory, clock: ManualClock
) -> None:
    path = queue_factory().path
    first, second, third = (Queue(path, worker=name, clock=clock) for name in ("first", "second", "third"))
    first.insert("x")
    first.lease(1)
    clock.advance(7200)
    [task] = second.lease(1)
    task.release()
    third.change_settings(max_attempts=1)
    assert third.lease() == []
    [letter] = third.dead()
    assert letter.reason.startswith("lease expired, last worker first on ")
    assert letter.reason.endswith(": out of attempts")
    assert letter.worker is not None
    assert letter.worker["name"] == "first"


@pytest.mark.batched
def test_a_letter_that_is_written_later_says_who_made_the_last_attempt(
    q: Queue, q2: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    together(q, "x", "y", "z")
    for task in q.lease(2):
        task.fail(OWN_REASON, delay_s=0)
    q2.change_settings(max_attempts=1)
    with monkeypatch.context() as dying:
        dying.setattr(finishing, "write_letters", crash)
        with pytest.raises(Crash):
            q2.lease()
    [log] = log_files(q)
    [task] = Queue(q.path, clock=clock).lease()
    while log.stat().st_size < 1 << 16:
        task.renew()
    task.release()
    assert not list((base_of(q) / "dead").glob("*"))
    other = Queue(q.path, worker="w3", clock=clock)  # it begins at the checkpoint, which does not tell
    other.lease()[0].complete()
    lines = [json.loads(line) for file in (base_of(q) / "dead").iterdir() for line in file.read_text().splitlines()]
    assert [(line["reason"], line["worker"]["name"]) for line in lines] == [(used_up(1), "w1")] * 2


def test_without_a_limit_a_task_is_never_buried(queue_factory: QueueFactory, clock: ManualClock) -> None:
    q = Queue(queue_factory(max_attempts=None).path, clock=clock)
    q.insert("x")
    for attempt in range(1, 20):
        [task] = q.lease(lease_s=1)
        assert task.attempt == attempt
        clock.advance(5)


def test_releasing_is_no_attempt_failing_is(q: Queue, clock: ManualClock) -> None:
    q.insert("x")
    for _ in range(10):
        [task] = q.lease()
        assert task.attempt == 1
        task.release()
    task = q.lease()[0]
    task.fail("oops", 0)
    [task] = q.lease(lease_s=1)
    assert task.attempt == 2
    clock.advance(5)
    task.fail("late, but nobody took it", 0)
    assert q.lease()[0].attempt == 3, "one attempt, not one for the expiry and one for the failure"


def test_after_several_were_lost_together_each_goes_alone(q: Queue, q2: Queue, clock: ManualClock) -> None:
    """So that only the one that kills its worker is charged."""
    together(q, "a", "b", "c")
    assert len(q.lease(3, lease_s=10)) == 3
    clock.advance(20)
    seen = []
    for _ in range(3):
        [task] = q2.lease(3)
        assert (task.attempt, task.solo) == (1, True)
        seen.append(task.payload)
    assert sorted(seen) == ["a", "b", "c"]
    assert q2.lease(3) == []


def test_of_those_that_go_alone_the_killer_alone_is_charged(queue_factory: QueueFactory, clock: ManualClock) -> None:
    q = Queue(queue_factory(max_attempts=2).path, clock=clock)
    together(q, "a", "killer", "b")
    q.lease(3, lease_s=10)
    clock.advance(20)
    done = []
    for _ in range(8):
        tasks = q.lease(3, lease_s=10)
        if any(task.payload == "killer" for task in tasks):
            assert len(tasks) == 1
            clock.advance(20)  # the worker is dead
            continue
        for task in tasks:
            task.complete()
            done.append(task.payload)
    assert sorted(done) == ["a", "b"]
    assert [(letter.payload, letter.attempt) for letter in q.dead()] == [("killer", 2)]


def test_tasks_that_go_alone_do_not_hold_up_others(q: Queue, clock: ManualClock) -> None:
    together(q, "a", "b")
    assert len(q.lease(2, lease_s=10)) == 2
    clock.advance(20)
    for number in range(5):
        q.insert(number)
    got = []
    while tasks := q.lease(4):
        assert len(tasks) == 1 or not any(task.solo for task in tasks)
        got += tasks
    assert sorted(str(task.payload) for task in got) == ["0", "1", "2", "3", "4", "a", "b"]


def test_a_lease_of_one_within_a_larger_call_is_not_charged_either(q: Queue, clock: ManualClock) -> None:
    q.insert("a")
    q.insert("b")
    assert len(q.lease(2, lease_s=10)) == 2
    clock.advance(20)
    assert [(task.attempt, task.solo) for task in q.lease(2)] == [(1, True)]


@pytest.mark.parametrize("seconds", [0.01, 9, 11])
def test_a_log_that_an_nfs_client_calls_missing_is_asked_for_again(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """An open that may make the file says so if another client removes it at that moment, or the server restarts."""
    insert_in_file(q, "x")
    fs, until_s = q.store.fs, clock.now_s + seconds
    open_append = fs.open_append

    def missing(path: str) -> int:
        if clock.now_s < until_s:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return open_append(path)

    monkeypatch.setattr(fs, "shared", True)
    monkeypatch.setattr(fs, "open_append", missing)
    if seconds < MISSING_S:
        assert [task.payload for task in q.lease()] == ["x"]
    else:
        with pytest.raises(StorageError, match="No such file"):
            q.lease()


def test_a_task_that_comes_back_does_not_wait_for_others_of_its_batch(q: Queue, q2: Queue, clock: ManualClock) -> None:
    together(q, "a", "b")
    [first] = q.lease(lease_s=1000)
    [second] = q2.lease(lease_s=10)
    clock.advance(20)
    [again] = Queue(q.path, clock=clock).lease()
    assert again.payload == second.payload != first.payload


# -- when "empty" may be said --------------------------------------------------------------------------------


def test_empty_is_not_said_of_what_was_just_put_back(q: Queue, q2: Queue) -> None:
    q.insert("x")
    [task] = q.lease()
    assert q.lease() == q2.lease() == []
    task.release()
    assert len(q2.lease()) == 1


@pytest.mark.once
def test_empty_is_not_said_while_a_task_waits_behind_names_that_promise_too_much(
    queue_factory: QueueFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than the cache of heads holds, twice over: leases that were renewed beyond what the names say."""
    monkeypatch.setattr(selection, "HEADS_MAX", 3)
    q = Queue(queue_factory(shards=1).path, clock=clock)
    q.insert_many(range(20), batch_tasks=1)
    q.renew(q.lease(20, lease_s=10), 3600)
    clock.advance(20)
    q.insert("new")
    other = Queue(q.path, clock=clock)
    assert payloads(other.lease()) == ["new"]
    assert other.lease() == []


def test_empty_is_not_said_by_the_one_who_put_back(q: Queue) -> None:
    q.insert("x")
    [task] = q.lease()
    assert q.lease() == []
    task.fail("oops", 0)
    [task] = q.lease()
    assert q.lease() == []
    q.release_all()
    assert len(q.lease()) == 1


def test_what_one_worker_puts_back_while_another_has_the_rest_is_found(q: Queue, q2: Queue, clock: ManualClock) -> None:
    together(q, "a", "b")
    [mine] = q.lease()
    [other] = q2.lease()
    clock.advance(1)
    mine.release()
    for queue in (Queue(q.path, clock=clock), q2, q):
        [found] = queue.lease()
        assert found.payload == mine.payload != other.payload
        found.release()


@pytest.mark.batched
def test_a_task_put_back_while_another_s_lease_has_just_run_out_is_found(q: Queue, clock: ManualClock) -> None:
    together(q, "a", "b")
    q.lease(lease_s=1)
    [task] = q.lease(lease_s=100)
    clock.advance(1.01)
    assert q.lease() == [], "within the margin"
    task.release()
    assert [found.payload for found in q.lease()] == [task.payload]


def test_a_listing_that_misses_a_name_is_not_believed(queue: Queue, clock: ManualClock) -> None:
    """A name that is being renamed may be missed by a listing: only two of them prove that nothing is there."""
    Queue(queue.path, clock=clock).insert("x")
    fs = Filesystem(str(queue.path), shared=False)
    names, missed = fs.names, []

    def missing(directory: str, strict: bool = False) -> list[str]:
        found = names(directory, strict)
        if found and "/queue/" in directory and not missed:
            missed.append(directory)
            return []
        return found

    fs.names = missing  # type: ignore[method-assign]
    q = Queue(queue.path, filesystem=fs, clock=clock)
    assert [task.payload for task in q.lease()] == ["x"]
    assert missed


def test_a_batch_locked_by_another_is_waited_for(queue: Queue, clock: ManualClock) -> None:
    q = Queue(queue.path, clock=clock)
    q.insert("x")
    fs = Filesystem(str(queue.path), shared=False)
    real, busy = fs.try_lock, [5]

    def try_lock(fd: int) -> bool:
        busy[0] -= 1
        return busy[0] < 0 and real(fd)

    fs.try_lock = try_lock
    before = clock.now_s
    assert len(Queue(queue.path, filesystem=fs, clock=clock).lease()) == 1
    assert clock.now_s > before


def test_a_batch_that_stays_locked_is_passed_by_and_named(
    queue: Queue, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    q = Queue(queue.path, clock=clock)
    ref = q.insert("x")
    q.lease()[0].release()
    [log] = log_files(q)
    stopped = Filesystem(str(queue.path), shared=False)
    fd = stopped.look(str(log), os.O_RDWR)
    assert stopped.try_lock(fd)
    before = clock.now_s
    with caplog.at_level(logging.WARNING, "fsqueue"):
        assert q.lease() == []
    assert 2 <= clock.now_s - before < 3
    assert ref.id.partition(".")[0] in caplog.text
    q.insert("y")
    assert [task.payload for task in q.lease()] == ["y"], "other batches go on"
    stopped.close(fd)
    assert [task.payload for task in q.lease()] == ["x"]


def test_stray_files_do_no_harm(q: Queue) -> None:
    q.insert("x")
    q.lease()[0].release()
    for directory in [*(base_of(q) / "queue").glob("*"), *(base_of(q) / "movements").glob("*")]:
        for name in (".nfs0001", "core", "x.jsonl~"):
            (directory / name).write_bytes(b"garbage\n")
        [good] = [path for path in directory.iterdir() if path.name[0].isdigit()]
        (directory / f"{good.name}~").write_bytes(b"garbage\n")
    assert [task.payload for task in q.lease(9)] == ["x"]
    assert q.status().inserted == 1


def failing_from_the_third_lease(
    queue: Queue, clock: ManualClock, error: BaseException
) -> tuple[Queue, Callable[[], None]]:
    """Return a queue of four batches, and what mends it: the writing of each lease from the third on meets `error`."""
    fs = Filesystem(str(queue.path), shared=False)
    q = Queue(queue.path, filesystem=fs, clock=clock)
    q.insert_many(range(4), batch_tasks=1)
    write, leases = fs.write, [0]

    def failing(fd: int, data: bytes) -> int:
        leases[0] += b'"op":"lease"' in data
        if b'"op":"lease"' in data and leases[0] >= 3:
            raise error
        return write(fd, data)

    def mend() -> None:
        fs.write = write

    fs.write = failing
    return q, mend


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (errno.EMFILE, StorageError, "Too many files are open"),
        (errno.ENFILE, StorageError, "Too many files are open"),
        (errno.EFBIG, StorageError, r"A file may not grow.*'ulimit -f'"),
        (errno.ENOSPC, StorageFull, "No space left"),
        (errno.EIO, StorageError, "Input/output error"),
    ],
)
def test_what_was_leased_before_the_system_failed_is_handed_out(
    queue: Queue, clock: ManualClock, code: int, kind: type[Exception], words: str
) -> None:
    """To put it back might fail for the same reason: nobody would know of those leases until they run out."""
    q, mend = failing_from_the_third_lease(queue, clock, OSError(code, os.strerror(code)))
    held = q.lease(4)
    assert len(held) == 2
    with pytest.raises(kind, match=words):
        q.lease(4)
    mend()
    q.complete(held)
    rest = q.lease(4)
    assert [task.attempt for task in rest] == [1, 1]
    assert payloads([*held, *rest]) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "error",
    [
        LockTimeout("busy"),
        StorageError("odd"),
        QueueNotFound("gone"),
        FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_was_leased_before_any_other_error_is_put_back(
    queue: Queue, clock: ManualClock, error: BaseException
) -> None:
    """The caller never hears of those leases: nobody should have to wait until they run out."""
    q, mend = failing_from_the_third_lease(queue, clock, error)
    with pytest.raises(StorageError if isinstance(error, OSError) else type(error)):
        q.lease(4)
    mend()
    assert q.status().as_dict() == {"inserted": 4, "waiting": 4, "delayed": 0, "leased": 0, "completed": 0, "dead": 0}
    assert [task.attempt for task in q.lease(4)] == [1] * 4


def test_a_file_that_somebody_renamed_by_hand_is_found_by_listing(q: Queue, clock: ManualClock) -> None:
    together(q, "a", "b")
    tasks = q.lease(2)
    for path in (base_of(q) / "queue").glob("*/*"):
        path.rename(path.with_name(f"{path.name[:12]}7{path.name[13:]}"))
    tasks[0].release()
    [again] = Queue(q.path, clock=clock).lease()
    assert again.payload == tasks[0].payload
    q.complete([again, tasks[1]])
    assert task_file_names(q) == log_files(q) == []


# -- damage -----------------------------------------------------------------------------------------------------


def test_a_damaged_log_is_a_valid_log(q: Queue, clock: ManualClock) -> None:
    """A batch whose log has become garbage is leased anew: at least once."""
    insert_in_file(q, "x")
    q.lease()
    [log] = log_files(q)
    log.write_bytes(b"\x00" * 100 + b'\n{"op":"open","at":5,"count":99999999}\n{"op":"lea')
    clock.advance(10_000)
    [task] = Queue(q.path, clock=clock).lease()
    task.complete()
    assert q.status().completed == 1
    assert task_file_names(q) == log_files(q) == []


def test_a_truncated_task_file_loses_only_what_was_cut_off(q: Queue) -> None:
    together(q, "a", "b", "c")
    before = len(task_file_names(q))
    for path in (base_of(q) / "queue").glob("*/*"):
        if b'"c"' in path.read_bytes():
            path.write_bytes(path.read_bytes()[:-2])
    assert payloads(q.lease(9)) == ["a", "b"]
    assert q.status().dead == 1
    assert len(task_file_names(q)) == (before if before == 1 else 2)


def test_a_task_file_that_somebody_removed_is_reported(q: Queue, clock: ManualClock, tasks_a_batch: int) -> None:
    together(q, "a", "b")
    [task] = q.lease(lease_s=10)
    q.close()
    batch = task.batch
    for path in (base_of(q) / "queue").glob(f"*/*{batch}*"):
        path.unlink()
    clock.advance(20)
    q.gc()
    assert {letter.reason for letter in q.dead()} == {"task file gone: it was removed by something else than fsqueue"}
    assert q.status().dead == min(2, tasks_a_batch)


def test_a_file_that_was_renamed_since_it_was_listed_is_found(q: Queue, q2: Queue, clock: ManualClock) -> None:
    """A head that one worker has cached has been leased, renamed and put back by another."""
    q.insert("x")
    q.insert("y")
    [first] = q2.lease()  # q2 has the other one as a cached head
    [other] = q.lease()
    other.fail("later", 5)
    assert q2.lease() == []
    clock.advance(5)
    [again] = q2.lease()
    assert again.payload == other.payload != first.payload


def test_a_batch_that_finished_since_it_was_listed_is_not_revived(q: Queue, q2: Queue) -> None:
    """Opening its log creates it anew: an empty log must not make everything available."""
    q.insert("x")
    q.insert("y")
    q2.lease()
    q.lease()[0].complete()
    assert q2.lease() == []
    assert len(log_files(q)) == 1
    assert q.status().as_dict() == {"inserted": 2, "waiting": 0, "delayed": 0, "leased": 1, "completed": 1, "dead": 0}


def test_hints_are_never_late(q: Queue, q2: Queue, clock: ManualClock) -> None:
    """The time in a file's name is not later than the first moment at which something inside is available."""
    together(q, *range(6))
    held: list[LeasedTask] = []
    for step in range(40):
        queue = (q, q2)[step % 2]
        held += queue.lease(1 + step % 2, lease_s=7 + step)
        if step % 3 == 0 and held:
            held.pop(0).release(step % 5)
        if step % 4 == 1 and held:
            task = held.pop()
            queue.attach(task.token).fail("oops", step % 7)
        for name in task_file_names(q):
            ledger_time = min(
                (info.available_at or info.lease_until or clock.now_s)
                for info in q.tasks()
                if info.id.startswith(name.batch)
            )
            assert name.available_at <= round(ledger_time * 1000), f"step {step}"
        clock.advance(0.5)


# -- waiting ----------------------------------------------------------------------------------------------------------


def test_waiting_ends_when_the_time_is_up(q: Queue, clock: ManualClock) -> None:
    before = clock.now_s
    assert q.lease(wait_s=7) == []
    assert clock.now_s - before == pytest.approx(7, abs=0.01)


def test_waiting_ends_when_something_comes_due(q: Queue, clock: ManualClock) -> None:
    q.insert("x", delay_s=100)
    before = clock.now_ms()
    assert len(q.lease(wait_s=1000)) == 1
    assert 100_000 <= clock.now_ms() - before < 101_000


def test_waiting_ends_when_a_lease_runs_out(q: Queue, q2: Queue, clock: ManualClock) -> None:
    q.insert("x")
    q.lease(lease_s=100)
    before = clock.now_ms()
    assert len(q2.lease(wait_s=1000)) == 1
    assert 100_000 <= clock.now_ms() - before < 101_000


def test_waiting_ends_when_the_bell_rings(q: Queue, q2: Queue, clock: ManualClock) -> None:
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        clock.advance(seconds)
        if len(naps) == 30:
            q2.insert("x")

    clock.sleep = sleep  # type: ignore[method-assign]
    assert len(q.lease(wait_s=1000)) == 1
    assert len(naps) == 30
    assert 3 < max(naps) < 8, "idle workers go easy on the file server"


def test_what_nobody_rang_for_is_found_in_the_end(q: Queue, q2: Queue, clock: ManualClock) -> None:
    """The bell is a hint: without it everything is listed now and then."""
    slept = [0]

    def sleep(seconds: float) -> None:
        clock.advance(seconds)
        slept[0] += 1
        if slept[0] == 3:
            q2.store.doorbell.ring = lambda: None  # type: ignore[method-assign]
            q2.insert("x")

    clock.sleep = sleep  # type: ignore[method-assign]
    before = clock.now_s
    assert len(q.lease(wait_s=10_000)) == 1
    assert clock.now_s - before < 1000


def test_idle_workers_list_nothing(queue: Queue, clock: ManualClock) -> None:
    fs = Filesystem(str(queue.path), shared=False)
    listed: list[str] = []
    real = fs.names
    fs.names = lambda directory, *strict: (listed.append(directory), real(directory, *strict))[1]  # type: ignore[method-assign]
    q = Queue(queue.path, filesystem=fs, clock=clock)
    q.insert("x")
    q.lease(lease_s=10_000)
    assert q.lease(wait_s=1) == []
    listed.clear()
    assert q.lease(wait_s=400) == []
    first = len(listed)
    listed.clear()
    assert q.lease(wait_s=400) == []
    assert len(listed) <= first + 70
    assert first < 300


def test_attempts_are_told_by_every_lease(q: Queue, clock: ManualClock, tmp_path: Path) -> None:
    ref = q.insert("x")
    for attempt in (1, 2, 3):
        [task] = q.lease()
        assert task.attempt == attempt
        assert q.task(ref.id).attempt == attempt
        task.fail("oops", 0)
        assert q.task(ref.id).attempt == attempt


def test_empty_is_not_said_of_a_generation_that_was_purged_a_moment_ago(queue: Queue, clock: ManualClock) -> None:
    """`queue.jsonl` was read within the last second, and so would not be read again before the look."""
    q, other = Queue(queue.path, clock=clock), Queue(queue.path, clock=clock)
    q.insert("before")
    assert len(q.lease()) == 1
    other.purge()
    other.insert("after")
    assert [task.payload for task in q.lease()] == ["after"]


# -- batches that cannot be taken


class Refusing(Filesystem):
    """Says of some files that this user may not write them, or that they are something else."""

    refuses: Callable[[str], int] = staticmethod(lambda path: 0)

    def open_append(self, path: str) -> int:
        if code := self.refuses(path):
            raise OSError(code, os.strerror(code), path)
        return super().open_append(path)


def test_a_queue_of_which_nothing_can_be_written_is_one_error(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    queue.insert_many(range(30), batch_tasks=1)
    fs = Refusing(str(queue.path), shared=False)
    fs.refuses = lambda path: errno.EACCES if "/movements/" in path else 0
    with pytest.raises(StorageError, match="Permission denied"):
        Queue(queue.path, filesystem=fs).lease()
    assert caplog.records == []


def test_of_batches_that_are_passed_over_a_line_for_each_kind_is_logged(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    queue.insert_many(range(30), batch_tasks=1)
    codes = {"0": errno.EACCES, "1": errno.EACCES, "2": errno.EISDIR, "3": errno.EACCES, "4": errno.EISDIR}
    batches = sorted(name.batch for name in task_file_names(queue))
    refused = {batch: codes[str(number)] for number, batch in enumerate(batches[:5])}
    fs = Refusing(str(queue.path), shared=False)
    fs.refuses = lambda path: refused.get(os.path.basename(path).partition(".")[0], 0)
    worker = Queue(queue.path, filesystem=fs, clock=clock)
    for _ in range(3):
        tasks = worker.lease(30)
        assert len(tasks) == 25
        worker.release(tasks)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert sorted("Permission denied" in line for line in said) == [False, True]
    clock.advance(601)
    worker.lease(30)
    assert len(caplog.records) == 4


@pytest.mark.once
def test_leasing_from_many_batches_costs_the_calls_that_few_cost(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """README and guarantee 12: an open queue's lease and completion cost the same, however many batches wait."""
    costs = []
    for batches in (20, 400):
        q = queue_factory(f"of-{batches}", shards=4)
        q.insert_many(range(batches), batch_tasks=1)
        with calls(monkeypatch) as counted:
            q = Queue(q.path)
            for _ in range(10):
                q.complete(q.lease(1))
        costs.append(counted.total())
    assert costs[0] > 20
    assert costs[1] <= costs[0] + 5, costs


@pytest.mark.batched
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no space"), LockTimeout("the letters are locked")])
def test_sound_tasks_are_handed_out_although_a_damaged_one_cannot_be_buried(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """They would be leased to nobody until their leases end."""
    together(q, "a", "b", "c")
    [path] = (base_of(q) / "queue").glob("*/*")
    path.write_bytes(path.read_bytes().replace(b'{"payload":"b"}', b'{"payload":"b"?'))

    def fails(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(transitions, "bury", fails)
        held = q.lease(9)
        assert payloads(held) == ["a", "c"]
        assert "unreadable" in caplog.text
        q.complete(held)
        clock.advance(1000)
        with pytest.raises(FsqueueError):  # nobody is harmed by an error that leaves nothing leased but the damaged one
            q.lease(9)
    clock.advance(1000)
    assert q.lease(9) == []
    assert ["unreadable" in letter.reason for letter in q.dead()] == [True]
    assert q.status().drained


@pytest.mark.batched
def test_what_was_chosen_from_a_file_that_is_gone_for_a_while_is_chosen_again(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss may put a task file back into staging. The tasks are neither buried nor passed over then."""
    queue.insert_many(range(3), batch_tasks=3)
    [task] = queue.lease()
    task.release()
    other, following, moved = Queue(queue.path), Selection.next, list[TaskFileName]()
    layout = queue.store.layout

    def moved_meanwhile(self: Selection, *args: Any, **kwargs: Any) -> Any:
        name = following(self, *args, **kwargs)
        if name is not None and not moved:
            os.rename(layout.task_file(name), layout.staged(name))
            moved.append(name)
        return name

    with monkeypatch.context() as patch:
        patch.setattr(Selection, "next", moved_meanwhile)
        assert other.lease(3) == []
    os.rename(layout.staged(moved[0]), layout.task_file(moved[0]))
    assert sorted(payloads(other.lease(3))) == [0, 1, 2]


def test_a_lease_belongs_to_the_generation_that_it_was_found_in(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may notice a purge in the middle of a look, which then finds tasks of the new generation."""
    assert queue.lease() == []
    other = Queue(queue.path)
    other.purge()
    other.insert("new")
    following = Selection.next

    def noticed_meanwhile(self: Selection, *args: Any, **kwargs: Any) -> Any:
        queue.store.refresh(now=True)
        return following(self, *args, **kwargs)

    monkeypatch.setattr(Selection, "next", noticed_meanwhile)
    [task] = queue.lease()
    monkeypatch.undo()
    task.complete()
    assert queue.status().completed == 1
