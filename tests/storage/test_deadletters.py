"""Dead letters: given up with a reason, retried or purged."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from fsqueue import (
    DeadLetter,
    InvalidArgument,
    LockTimeout,
    Queue,
    QueueNotFound,
    QueuePurged,
    StorageError,
    Task,
    administration,
)
from fsqueue.clock import ManualClock
from fsqueue.storage import deadletters, letter_files, retrying, staging
from fsqueue.storage.journals import LOCK_TIMEOUT_S
from tests.concurrency.trapped import trapped
from tests.support import (
    Crash,
    CrashingFilesystem,
    QueueFactory,
    base_of,
    crashes,
    drain,
    insert_in_file,
    leftovers,
    task_file_names,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def q(queue_factory: QueueFactory, clock: ManualClock) -> Queue:
    return Queue(queue_factory(shards=1).path, worker="w1", clock=clock)


def bury(q: Queue, *payloads: object, reason: str = "no") -> list[str]:
    """Insert and bury payloads, as one batch where possible; their ids."""
    q.insert_many(payloads, batch_tasks=len(payloads))
    tasks = q.lease(len(payloads))
    assert len(tasks) == len(payloads)
    for task in tasks:
        task.bury(reason)
    return [task.id for task in tasks]


def letter_file(q: Queue) -> Path:
    return base_of(q) / "dead" / "00.jsonl"


def test_a_letter_tells_what_why_when_and_who(q: Queue, clock: ManualClock) -> None:
    ref = q.insert({"a": 1})
    [task] = q.lease()
    clock.advance(5)
    task.bury("broken input")
    [letter] = q.dead()
    assert (letter.id, letter.payload, letter.reason, letter.attempt) == (ref.id, {"a": 1}, "broken input", 1)
    assert letter.at == pytest.approx(clock.now_s)
    assert letter.worker is not None
    assert letter.worker["name"] == "w1"
    assert letter.as_dict()["reason"] == "broken input"
    status = q.status()
    assert (status.dead, status.waiting, status.inserted, status.drained) == (1, 0, 1, True)
    info = q.task(ref.id)
    assert (info.state, info.error) == ("dead", "broken input")
    assert [dead.id for dead in q.tasks("dead")] == [ref.id]


def test_bytes_survive(q: Queue) -> None:
    bury(q, b"\x00\xff")
    assert next(q.dead()).payload == b"\x00\xff"
    assert q.retry_dead() == 1
    assert q.lease()[0].payload == b"\x00\xff"


def test_letters_are_filtered(q: Queue) -> None:
    bury(q, 1, 2, 3)
    assert {letter.payload for letter in q.dead(where=lambda letter: letter.payload > 1)} == {2, 3}


@pytest.mark.batched
def test_a_task_is_dead_while_others_of_its_batch_go_on(q: Queue) -> None:
    q.insert_many([1, 2, 3], batch_tasks=3)
    first, second, third = q.lease(3)
    second.bury("no")
    assert q.status().as_dict() == {"inserted": 3, "waiting": 0, "delayed": 0, "leased": 2, "completed": 0, "dead": 1}
    q.complete([first, third])
    assert q.status().as_dict() == {"inserted": 3, "waiting": 0, "delayed": 0, "leased": 0, "completed": 2, "dead": 1}
    assert [letter.id for letter in q.dead()] == [second.id]


def test_retrying_inserts_anew_with_all_attempts_before_it(q: Queue) -> None:
    ids = bury(q, "a", "b")
    assert q.retry_dead() == 2
    assert list(q.dead()) == []
    assert q.status().as_dict() == {"inserted": 2, "waiting": 2, "delayed": 0, "leased": 0, "completed": 0, "dead": 0}
    tasks = q.lease(2)
    assert {task.payload for task in tasks} == {"a", "b"}
    assert not {task.id for task in tasks} & set(ids)
    assert {task.attempt for task in tasks} == {1}
    assert q.retry_dead() == 0


def test_some_letters_are_retried_or_purged_by_id_or_by_what_they_say(q: Queue) -> None:
    ids = bury(q, 0, 1, 2, 3)
    numbers = {letter.payload: letter.id for letter in q.dead()}
    assert set(numbers.values()) == set(ids)
    assert q.retry_dead([numbers[0]]) == 1
    assert q.retry_dead([numbers[0]]) == 0, "it is not dead any more"
    assert q.retry_dead(where=lambda letter: letter.payload == 1) == 1
    assert q.purge_dead(numbers[2]) == 1
    assert q.purge_dead(where=lambda letter: letter.payload == 0) == 0
    assert [letter.payload for letter in q.dead()] == [3]
    assert q.status().as_dict() == {"inserted": 3, "waiting": 2, "delayed": 0, "leased": 0, "completed": 0, "dead": 1}


def test_purged_letters_leave_the_sum(q: Queue) -> None:
    bury(q, 1, 2)
    assert q.purge_dead() == 2
    assert q.purge_dead() == 0
    assert q.status().inserted == 0
    assert list(q.dead()) == list(q.tasks("dead")) == []


def test_ids_that_are_none_are_refused(q: Queue) -> None:
    for verb in (q.retry_dead, q.purge_dead):
        with pytest.raises(InvalidArgument, match="not a task id"):
            verb(["nonsense"])
        assert verb([f"{'0' * 32}.0"]) == 0


@pytest.mark.batched
def test_many_letters_are_retried_in_batches(q: Queue) -> None:
    bury(q, *range(50))
    assert q.retry_dead() == 50
    assert len(list((base_of(q) / "queue").glob("*/*"))) == 1


@pytest.mark.parametrize("verb", ["retry_dead", "purge_dead"])
def test_stopped_processes_keep_only_the_letters_of_their_shards_waiting(
    queue_factory: QueueFactory, clock: ManualClock, verb: str
) -> None:
    q = Queue(queue_factory(shards=4).path, clock=clock)
    q.insert_many(range(40), batch_tasks=1)
    for task in q.lease(40):
        task.bury("no")
    files = sorted((base_of(q) / "dead").iterdir())
    assert len(files) == 4
    stuck = {orjson.loads(line)["id"] for path in files[:2] for line in path.read_bytes().splitlines()}
    fs = q.store.fs
    locked = [fs.look(str(path), os.O_RDWR) for path in files[:2]]
    assert all(map(fs.try_lock, locked))
    other = Queue(q.path, clock=clock)
    began = clock.monotonic()
    with pytest.raises(LockTimeout, match=rf"00\.jsonl.*Dead letters settled: {40 - len(stuck)}\. Repeat the call"):
        getattr(other, verb)()
    assert LOCK_TIMEOUT_S <= clock.monotonic() - began < 1.5 * LOCK_TIMEOUT_S
    assert {letter.id for letter in q.dead()} == stuck
    for fd in locked:
        fs.close(fd)
    assert getattr(q, verb)() == len(stuck)
    assert q.status().waiting == (40 if verb == "retry_dead" else 0)


@pytest.mark.batched
def test_each_retried_letter_leads_to_its_own_new_task(q: Queue) -> None:
    """Also where the new tasks stand in another order than the letters: they are sorted by their priorities."""
    q.insert_many([Task(f"of {number}", priority=number) for number in range(4)], batch_tasks=4)
    tasks = q.lease(4)
    for task in reversed(tasks):
        task.bury("no")
    assert q.retry_dead() == 4
    for task in tasks:
        settled = deadletters.settled_as(q.store, task.id)
        assert settled is not None
        how, new = settled
        assert how == "retried"
        assert new is not None
        assert q.task(new).payload == task.payload
        assert deadletters.repeats(q.store, new) == task.id


def test_a_retried_task_may_die_again(q: Queue, clock: ManualClock) -> None:
    [first] = bury(q, "x")
    q.retry_dead()
    [task] = q.lease()
    task.bury("again")
    [letter] = q.dead()
    assert (letter.id, letter.reason) == (task.id, "again")
    assert letter.id != first
    q.retry_dead()
    assert sum(drain(q, clock).values()) == 1
    assert q.status().as_dict() == {"inserted": 1, "waiting": 0, "delayed": 0, "leased": 0, "completed": 1, "dead": 0}
    q.gc()
    assert leftovers(q) == []


def test_strange_and_torn_lines_are_passed_over(q: Queue) -> None:
    ids = bury(q, 1)
    good = letter_file(q).read_bytes()
    strange: list[object] = [
        7,
        [],
        {},
        {"op": "dead"},
        {"op": "dead", "id": 7},
        {"op": "later", "id": ids[0]},
        {"op": "purged", "ids": ids[0]},
        {"op": "purged", "id": ids[0]},
    ]
    lines = b"".join(orjson.dumps(line) + b"\n" for line in strange)
    letter_file(q).write_bytes(b"~\n\n" + lines + good + b'{"op":"purged","ids":["' + ids[0].encode() + b'"]}')
    assert [letter.id for letter in q.dead()] == ids
    assert q.status().dead == 1
    assert q.retry_dead() == 1


@pytest.mark.parametrize(
    "field", [{"b64": "!!"}, {"b64": 7}, {"payload": 1, "at": "x", "attempt": [], "worker": 7, "reason": None}, {}]
)
def test_a_damaged_letter_is_still_there_to_be_seen_and_purged(q: Queue, field: dict[str, object]) -> None:
    one = f"{'0' * 32}.0"
    letter_file(q).parent.mkdir(parents=True)
    letter_file(q).write_bytes(orjson.dumps({"op": "dead", "id": one, **field}) + b"\n")
    bury(q, "good")
    assert {letter.payload for letter in q.dead()} == {field.get("payload"), "good"}
    assert q.purge_dead([one]) == 1
    assert [letter.payload for letter in q.dead()] == ["good"]


def test_a_repeated_letter_counts_once_and_does_not_revive_what_was_dealt_with(q: Queue) -> None:
    bury(q, 1)
    line = letter_file(q).read_bytes()
    letter_file(q).write_bytes(line * 3)
    assert len(list(q.dead())) == q.status().dead == 1
    assert q.retry_dead() == 1
    with open(letter_file(q), "ab") as file:
        file.write(line)
    assert list(q.dead()) == []
    assert q.status().dead == 0


def test_long_letters_are_held_in_memory_one_at_a_time(q: Queue) -> None:
    size = 16_000_000
    ids = bury(q, *["x" * size] * 3)
    q.purge_dead(ids[:1])
    code = """
import fsqueue, sys
def most_kb():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:"))
queue = fsqueue.Queue(sys.argv[1])
before = most_kb()
print(queue.status().dead)
print(most_kb() - before)
"""
    told = subprocess.run([sys.executable, "-c", code, q.path], stdout=subprocess.PIPE, text=True, check=True).stdout
    dead, kilobytes = told.splitlines()
    assert dead == "2"
    # The parts of a line as they were read, the line, the parser's copy, and the payload.
    assert int(kilobytes) * 1024 < 4.6 * size


@pytest.mark.batched
def test_a_letter_is_written_once_whoever_finishes_the_batch(q: Queue, clock: ManualClock) -> None:
    q.insert_many([1, 2], batch_tasks=2)
    first, second = q.lease(2)
    first.bury("no")
    other = Queue(q.path, clock=clock)
    other.attach(second.token).bury("no")
    assert letter_file(q).read_bytes().count(b'"op":"dead"') == 2
    assert leftovers(q) == []


def test_stray_files_beside_the_letters_are_passed_over(q: Queue) -> None:
    bury(q, 1)
    for name in ("01.jsonl", "zz.jsonl", "00.jsonl~", ".nfs01", "00"):
        (letter_file(q).parent / name).write_bytes(b'{"op":"dead","id":"x"}\n')
    assert len(list(q.dead())) == 1


def test_a_retry_that_died_before_publishing_is_not_lost_and_never_empty(q: Queue, clock: ManualClock) -> None:
    """The line says `retried`: from then on the tasks count as there, and whoever looks publishes them."""
    bury(q, "x", "y")
    steps = 0
    while True:
        steps += 1
        fs = CrashingFilesystem(str(q.path), at=steps)
        try:
            Queue(q.path, filesystem=fs, clock=clock).retry_dead()
        except Crash:
            pass
        fs.bury()
        status = Queue(q.path, clock=clock).status()
        assert status.inserted == status.waiting + status.dead == 2, f"after step {steps}: {fs.log[-1]}"
        assert not status.drained or status.dead == 2
        if not fs.dead or status.waiting == 2:
            break
    assert steps > 3
    executed = drain(Queue(q.path, clock=clock), clock)
    assert sum(executed.values()) == len(executed) == 2


@pytest.mark.parametrize("step", ["write", "fsync"])
def test_an_error_that_leaves_open_whether_a_retry_was_recorded_loses_nothing(
    q: Queue, clock: ManualClock, tasks_a_batch: int, step: str
) -> None:
    """The line is there, though the system reported an error: then the tasks must be, too."""
    bury(q, "x", "y")

    def trap(what: str, call: Callable[..., Any], *args: Any) -> Any:
        answer = call(*args)
        if what == step and "/dead/" in os.readlink(f"/proc/self/fd/{args[0]}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return answer

    with trapped(q, trap) as mine, pytest.raises(StorageError):
        mine.retry_dead()
    assert b'"retried"' in letter_file(q).read_bytes()
    other = Queue(q.path, clock=clock)
    status = other.status()
    assert status.waiting == min(2, tasks_a_batch)  # what was to be retried in a batch of its own has not begun
    assert status.waiting + status.dead == 2
    assert sum(drain(other, clock).values()) == status.waiting


@pytest.mark.parametrize("look", ["lease", "poll", "status", "wait", "gc"])
def test_whoever_looks_finds_what_a_dead_retry_left_staged(q: Queue, clock: ManualClock, look: str) -> None:
    bury(q, "x")
    for step in range(1, 12):
        fs = CrashingFilesystem(str(q.path), at=step)
        try:
            Queue(q.path, filesystem=fs, clock=clock).retry_dead()
        except Crash:
            pass
        fs.bury()
        if b'"retried"' in letter_file(q).read_bytes():
            break
    assert any(name.startswith("staging/") for name in leftovers(q)), "it died between the line and the rename"
    other = Queue(q.path, clock=clock)
    if look == "lease":
        assert [task.payload for task in other.lease(5)] == ["x"]
    elif look == "poll":
        assert [task.payload for task in [next(other.poll())]] == ["x"]
    elif look == "gc":
        assert other.gc().retries_published == 1
    else:
        assert not (other.status() if look == "status" else other.wait(timeout_s=1)).drained
    assert sum(drain(other, clock).values()) == 1


def test_a_damaged_line_of_a_task_file_becomes_a_letter(q: Queue) -> None:
    q.insert_many(["a", "b", "c"], batch_tasks=3)
    for path in (base_of(q) / "queue").glob("*/*"):
        path.write_bytes(path.read_bytes().replace(b'{"payload":"b"}', b'{"payload":"b"?'))
    assert sorted(task.payload for task in q.lease(9)) == ["a", "c"]
    [letter] = q.dead()
    assert "unreadable" in letter.reason
    assert letter.payload is None
    assert q.status().as_dict() == {"inserted": 3, "waiting": 0, "delayed": 0, "leased": 2, "completed": 0, "dead": 1}


def writes_and_syncs(queue: Queue, act: Callable[[Queue], object]) -> list[str]:
    """What is written and synced, in order: the name of a directory, and of a file the directory that it is in."""
    steps: list[str] = []
    base = base_of(queue)

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if step in ("write", "fsync"):
            path = os.readlink(f"/proc/self/fd/{args[0]}").removeprefix(str(base))
            steps.append(f"{step} {path if os.path.isdir(f'{base}{path}') else path.split('/')[1]}")
        return call(*args)

    with trapped(queue, trap) as mine:
        act(mine)
    return steps


def test_a_burial_is_synced_before_its_letter_is_written(queue: Queue) -> None:
    # Else a power loss might keep the letter and lose the burial: the task would be dead, and there again.
    queue.insert("payload")
    steps = writes_and_syncs(queue, lambda mine: mine.lease()[0].bury("no good"))
    steps = steps[steps.index("write movements") + 1 :]  # from the burial on
    assert steps.index("write movements") < steps.index("fsync movements") < steps.index("write dead")


def test_the_name_of_a_file_of_letters_is_durable_before_anything_is_in_it(queue: Queue) -> None:
    # Else a power loss might take the name of a file whose content was synced, and the payloads with it.
    queue.insert_many(range(2), batch_tasks=1)
    steps = writes_and_syncs(queue, lambda mine: mine.lease()[0].bury("no good"))
    assert max(map(steps.index, ("fsync /dead", "fsync "))) < steps.index("write dead")


def test_a_retry_is_not_recorded_before_the_name_of_what_it_stages_is_durable(queue: Queue) -> None:
    # Else a power loss might keep the line, and lose the tasks that it promises.
    queue.insert("payload")
    queue.lease()[0].bury("no good")
    steps = writes_and_syncs(queue, lambda mine: mine.retry_dead())
    assert steps.index("write staging") < steps.index("fsync /staging") < steps.index("write dead")


def test_a_recorded_retry_is_durable_before_another_process_publishes_it(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else a power loss might take the line, and keep the tasks: they would be dead, and there again.
    queue.insert("payload")
    queue.lease()[0].bury("no good")
    with monkeypatch.context() as patch:
        patch.setattr(staging, "publish", lambda *_: [])  # its author died before
        assert queue.retry_dead() == 1
    steps = writes_and_syncs(queue, lambda mine: mine.lease())
    published = next(place for place, step in enumerate(steps) if step.startswith("fsync /queue/"))
    assert "fsync dead" in steps[:published]


def test_a_purge_of_letters_is_durable_when_it_is_reported(queue: Queue) -> None:
    # Else a power loss might bring letters back that a user was told are gone.
    queue.insert("payload")
    queue.lease()[0].bury("no good")
    steps = writes_and_syncs(queue, lambda mine: mine.purge_dead())
    assert "fsync dead" in steps[steps.index("write dead") :]


@pytest.mark.parametrize("verb", ["retry_dead", "purge_dead"])
def test_letters_of_which_the_record_fails_are_not_counted_as_settled(q: Queue, verb: str) -> None:
    bury(q, "x")

    def trap(what: str, call: Callable[..., Any], *args: Any) -> Any:
        if what == "write" and "/dead/" in os.readlink(f"/proc/self/fd/{args[0]}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return call(*args)

    with trapped(q, trap) as mine, pytest.raises(StorageError, match="Dead letters settled: 0"):
        getattr(mine, verb)()
    assert len(list(q.dead())) == 1


# -- batches of a retry --------------------------------------------------------------------------------


@pytest.mark.once
def test_a_retry_makes_batches_no_larger_than_an_insert_does(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "BATCH_BYTES_MAX", 1000)
    payloads = ["x" * 200] * 10 + ["large" * 500] + ["y" * 200] * 3
    bury(q, *payloads)
    assert q.retry_dead() == len(payloads)
    batches = [(path.stat().st_size, path.name) for path in (base_of(q) / "queue").glob("*/*")]
    assert sorted(name.count for name in task_file_names(q)) == [1, 2, 3, 4, 4]
    assert sum(size > 1000 for size, _ in batches) == 1
    assert sorted(task.payload for task in q.lease(20)) == sorted(payloads)


@pytest.mark.once
def test_a_retry_in_several_batches_may_die_at_any_step(queue_factory: QueueFactory, clock: ManualClock) -> None:
    def build(number: int) -> Queue:
        made = queue_factory(f"q{number}", shards=1, batch_tasks_max=2)
        mine = Queue(made.path, clock=clock)
        mine.insert_many(range(5))
        for task in mine.lease(5):
            task.bury("no")
        return mine

    for where, mine in crashes(build, lambda worker: worker.retry_dead(), clock):
        status = mine.status()
        assert (status.waiting + status.dead, status.inserted) == (5, 5), where
        mine.retry_dead()
        executed = drain(mine, clock)
        assert (len(executed), sum(executed.values())) == (5, 5), where
        assert mine.status().completed == 5, where


# -- lost payloads -------------------------------------------------------------------------------------


def lose(q: Queue, clock: ManualClock, payload: object) -> str:
    """Have a cleaner remove a leased task's file; the id of the letter."""
    insert_in_file(q, payload)
    [task] = q.lease(lease_s=10)
    for path in (base_of(q) / "queue").glob("*/*"):
        path.unlink()
    clock.advance(20)
    other = Queue(q.path, clock=clock)
    other.gc()
    return task.id


@pytest.mark.once
def test_a_task_whose_payload_is_lost_is_not_retried_as_none(
    q: Queue, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    lost = lose(q, clock, {"customer": 17})
    [none] = bury(q, None)
    assert {letter.id: letter.payload_lost for letter in q.dead()} == {lost: True, none: False}
    assert q.retry_dead() == 1
    assert "1 dead letter of" in caplog.text
    assert "the payload is lost" in caplog.text
    assert [task.payload for task in q.lease(9)] == [None]
    assert q.retry_dead([lost]) == 0
    assert [letter.id for letter in q.dead()] == [lost]
    assert q.purge_dead([lost]) == 1


@pytest.mark.once
def test_a_letter_that_was_written_again_without_its_payload_is_not_retried(q: Queue) -> None:
    [dead] = bury(q, "x")
    assert q.status().drained
    letter_file(q).write_bytes(b"")
    assert [finding.kind for finding in q.fsck(repair=True)] == ["missing-letter"]
    assert [(letter.id, letter.payload_lost) for letter in q.dead()] == [(dead, True)]
    assert q.retry_dead() == 0


# -- what the caller's condition may do ------------------------------------------------------------------


@pytest.mark.once
@pytest.mark.parametrize("verb", ["retry_dead", "purge_dead"])
def test_a_condition_may_settle_the_same_letters_itself(q: Queue, clock: ManualClock, verb: str) -> None:
    """No lock is held while it runs: the call within would wait for the one around it."""
    bury(q, 1, 2, 3)
    began = clock.monotonic()

    def where(letter: DeadLetter) -> bool:
        if letter.payload == 2:
            assert Queue(q.path, clock=clock).purge_dead([letter.id]) == 1
        return True

    assert getattr(q, verb)(where=where) == 2
    assert clock.monotonic() - began < 1
    assert list(q.dead()) == []
    assert q.status().waiting == (2 if verb == "retry_dead" else 0)


# -- looking for retries -----------------------------------------------------------------------------------


class Reads:
    """Counts the bytes that a queue reads of dead letters."""

    def __init__(self, q: Queue) -> None:
        self.bytes = 0
        pread = q.store.fs.pread

        def counting(fd: int, size: int, offset: int) -> bytes:
            data = pread(fd, size, offset)
            if "/dead/" in os.readlink(f"/proc/self/fd/{fd}"):
                self.bytes += len(data)
            return data

        q.store.fs.pread = counting

    def of(self, look: Callable[[], object]) -> int:
        self.bytes = 0
        look()
        return self.bytes


def orphan(q: Queue) -> None:
    """What an inserter leaves that was killed before it published."""
    fs = CrashingFilesystem(str(q.path), at=10**6)
    victim = Queue(q.path, filesystem=fs, clock=q.store.clock)
    staged = staging.stage(victim.store, victim.store.layout, [b'{"payload":"never"}\n'], 1, 0)
    fs.bury()
    staged.fd = -1


@pytest.mark.once
def test_a_staged_file_of_a_dead_inserter_does_not_make_every_look_read_all_letters(
    q: Queue, clock: ManualClock
) -> None:
    bury(q, *range(50))
    orphan(q)
    mine = Queue(q.path, clock=clock)
    reads = Reads(mine)
    assert reads.of(mine.lease) > 0
    for look in (mine.lease, mine.store.refresh, mine.lease):
        assert reads.of(look) == 0
    assert reads.of(mine.is_drained) == 2 * letter_files.HEADER_BYTES, "two looks, each at what the file begins with"
    assert reads.of(mine.lease) == 0
    [new] = bury(q, "more")
    assert 0 < reads.of(mine.lease) < 1000
    assert new in letter_file(q).read_text()


def recorded_retry(q: Queue, clock: ManualClock) -> None:
    """A retry that dies between its line and the renaming."""
    for step in range(1, 20):
        before = letter_file(q).read_bytes().count(b'"retried"')
        fs = CrashingFilesystem(str(q.path), at=step)
        try:
            Queue(q.path, filesystem=fs, clock=clock).retry_dead()
        except Crash:
            pass
        fs.bury()
        if letter_file(q).read_bytes().count(b'"retried"') > before:
            return


@pytest.mark.once
def test_a_retry_that_dies_later_is_found_although_the_letters_before_it_are_not_read_again(
    q: Queue, clock: ManualClock
) -> None:
    bury(q, "x")
    orphan(q)
    mine = Queue(q.path, clock=clock)
    assert mine.lease() == []
    recorded_retry(q, clock)
    assert [task.payload for task in mine.lease()] == ["x"]
    mine.status()
    assert not any(seen.names for seen in mine.store.retried.values()), "what is published is not remembered"
    mine.purge()
    assert mine.status().inserted == 0
    assert not mine.store.retried


@pytest.mark.once
def test_what_was_read_as_zeros_is_read_again(q: Queue, clock: ManualClock) -> None:
    """An NFS client serves zeros for what others have appended, while a process of its host has the file open."""
    bury(q, "x")
    orphan(q)
    mine = Queue(q.path, clock=clock)
    recorded_retry(q, clock)
    content = letter_file(q).read_bytes() + b'{"op":"purged","ids":[],"at":1}\n'
    letter_file(q).write_bytes(content)
    begin = content.index(b'{"op":"retried"')
    pread, quirk = mine.store.fs.pread, [True]

    def stale(fd: int, size: int, offset: int) -> bytes:
        data = pread(fd, size, offset)
        if quirk[0] and "/dead/" in os.readlink(f"/proc/self/fd/{fd}") and offset <= begin < offset + len(data):
            return data[: begin - offset] + bytes(20) + data[begin - offset + 20 :]
        return data

    mine.store.fs.pread = stale
    assert mine.lease() == []
    quirk[0] = False
    assert [task.payload for task in mine.lease()] == ["x"]


@pytest.mark.once
def test_a_recorded_retry_is_published_though_a_cleaner_has_removed_its_shard(q: Queue, clock: ManualClock) -> None:
    bury(q, "x")
    mine = Queue(q.path, clock=clock)
    insert_in_file(mine, "before")
    mine.lease()[0].complete()
    recorded_retry(q, clock)
    (base_of(q) / "queue" / "00").rmdir()
    assert [task.payload for task in mine.lease()] == ["x"]


@pytest.mark.parametrize("files", ["stay", "go"])
@pytest.mark.parametrize("late", [1, 2])
@pytest.mark.parametrize(
    ("ending", "error"), [(Queue.purge, QueuePurged), (Queue.delete, QueueNotFound)], ids=["purge", "delete"]
)
@pytest.mark.parametrize("verb", ["retry_dead", "purge_dead"])
def test_letters_of_a_queue_that_has_ended_meanwhile_are_not_reported_settled(
    q: Queue,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    ending: Callable[[Queue], None],
    error: type[Exception],
    late: int,
    files: str,
) -> None:
    """Its files may be there still, on their way into the trash: what is done to them is lost."""
    monkeypatch.setattr(administration, "_reap_later", lambda reap: reap() if files == "go" else None)  # else a thread
    bury(q, 1, 2)
    asked: list[Any] = []

    def where(letter: DeadLetter) -> bool:
        asked.append(letter.payload)
        if len(asked) == late:
            ending(Queue(q.path))
        return True

    with pytest.raises(error):
        getattr(q, verb)(where=where)
    assert sorted(asked) == [1, 2]  # letters of two batches lie in shards in no order
    if ending is Queue.purge:
        assert not q.status().inserted


def test_letters_are_not_reported_settled_if_the_queue_ends_after_the_last(
    q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(administration, "_reap_later", lambda reap: None)
    bury(q, 1)
    publish = staging.publish

    def publish_and_end(*args: Any) -> list[staging.Staged]:
        published = list(publish(*args))
        Queue(q.path).delete()
        return published

    monkeypatch.setattr(staging, "publish", publish_and_end)
    with pytest.raises(QueueNotFound):
        q.retry_dead()


def test_what_a_retry_has_recorded_is_done_by_others_while_its_author_stands_still(
    q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.insert("x")
    [task] = q.lease()
    task.bury("no hope")
    other, done = Queue(q.path), []
    usual = staging.publish

    def overtaken(*args: Any) -> Any:
        for task in other.lease(2):
            task.complete()
            done.append(task.payload)
        return usual(*args)

    monkeypatch.setattr(staging, "publish", overtaken)
    assert q.retry_dead() == 1
    assert done == ["x"]
    assert q.lease() == []
    assert (q.status().completed, q.status().dead, q.status().drained) == (1, 0, True)
    assert list(q.fsck()) == []
