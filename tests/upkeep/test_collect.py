"""Upkeep: each kind of leftover is mended or reaped, and nothing else is touched."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsqueue import InvalidArgument, Queue, StorageError, StorageFull
from fsqueue.clock import ManualClock
from fsqueue.filesystem import Filesystem, trees
from fsqueue.format.priority import LAST
from fsqueue.protocol import finishing
from fsqueue.storage import commits, letter_files, retrying, staging
from fsqueue.storage.nodes import NodeFailures
from fsqueue.upkeep import collect, trash
from tests.concurrency.trapped import Count, Trapped, trapped
from tests.support import (
    Crash,
    QueueFactory,
    age_staging,
    base_of,
    counted,
    files_below,
    insert_in_file,
    leftovers,
    log_files,
    task_file_names,
)
from tests.waiting import until_nothing_reaps


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def q(queue_factory: QueueFactory, clock: ManualClock) -> Queue:
    queue = Queue(queue_factory(shards=1).path, clock=clock)
    queue.store.make_generation()
    return queue


def found(q: Queue, **arguments: object) -> dict[str, int]:
    """Run gc, and return its counts that are not 0. Hold what it gave back against the disk, and leave that out."""
    before = inodes(q.path)
    report = q.gc(**arguments).as_dict()  # type: ignore[arg-type]
    gone = [before[one] for one in before.keys() - inodes(q.path).keys()]
    assert report.pop("inodes_given_back") == len(gone)
    assert report.pop("bytes_given_back") >= sum(gone)  # a log may have grown by its last record
    return {key: value for key, value in report.items() if value}


def inodes(path: Path) -> dict[int, int]:
    """Return the bytes of what is below a path, by number of the inode; 0 for a directory."""
    found = ((one.stat(follow_symlinks=False), one) for one in path.rglob("*"))
    return {stat.st_ino: 0 if one.is_dir() else stat.st_size for stat, one in found}


def test_in_a_tidy_queue_there_is_nothing_to_do(q: Queue) -> None:
    assert found(q) == {}
    q.insert_many(range(5))
    q.insert("later", delay_s=5)
    q.lease()[0].complete()
    q.lease()[0].bury("no")
    q.lease()
    before = [(name, (q.path / name).read_bytes()) for name in files_below(q.path)]
    assert found(q) == {}
    assert [(name, (q.path / name).read_bytes()) for name in files_below(q.path)] == before


def test_a_half_done_finish_is_done(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    insert_in_file(q, "x")
    [task] = q.lease()
    with monkeypatch.context() as patch:

        def crash(*args: object) -> None:
            raise Crash

        patch.setattr(finishing, "retire", crash)
        with pytest.raises(Crash):
            task.complete()
    assert len(log_files(q)) == 1
    assert found(q) == {"finished": 1}
    assert found(q) == {}
    assert leftovers(q) == []
    assert q.status().completed == counted(q) == 1


def test_a_log_that_said_farewell_is_removed(q: Queue, clock: ManualClock) -> None:
    insert_in_file(q, "x")
    other = Queue(q.path, clock=clock)
    fs = other.store.fs
    unlink = fs.unlink

    def dying(path: str) -> bool:
        if "/movements/" in path:
            raise Crash
        return unlink(path)

    fs.unlink = dying  # type: ignore[method-assign]
    with pytest.raises(Crash):
        other.lease()[0].complete()
    other.close()
    assert len(log_files(q)) == 1
    assert b'"gone"' in log_files(q)[0].read_bytes()
    q.gc()
    assert leftovers(q) == []
    assert q.status().completed == counted(q) == 1


def test_an_empty_log_of_a_batch_that_is_gone_is_removed(q: Queue) -> None:
    log = q.store.logs.open("0" * 32, create=True)
    log.discard()
    assert found(q) == {"finished": 1}
    assert leftovers(q) == []
    assert q.status().inserted == 0


def test_an_empty_log_of_a_batch_that_is_there_does_no_harm(q: Queue) -> None:
    ref = q.insert("x")
    q.store.logs.open(ref.id.partition(".")[0], create=True).discard()
    assert found(q) == {}
    assert q.status().waiting == 1
    assert len(q.lease()) == 1


def test_garbage_in_the_place_of_a_log_is_removed_when_its_batch_is_gone(q: Queue) -> None:
    log = q.store.logs.open("0" * 32, create=True)
    Path(log.path).write_bytes(b"\x00garbage\nmore")
    log.discard()
    assert found(q) == {"finished": 1}
    assert leftovers(q) == []


def test_tasks_whose_file_was_removed_are_buried(q: Queue) -> None:
    ref = q.insert("x")
    q.lease()[0].release()
    for path in (base_of(q) / "queue").glob("*/*"):
        path.unlink()
    assert found(q) == {"finished": 1}
    [letter] = q.dead()
    assert letter.id == ref.id
    assert "task file gone" in letter.reason
    assert q.status().as_dict() == {"inserted": 1, "waiting": 0, "delayed": 0, "leased": 0, "completed": 0, "dead": 1}
    assert leftovers(q) == []


def test_a_lease_on_a_task_whose_file_was_removed_may_still_complete(q: Queue) -> None:
    q.insert("x")
    [task] = q.lease()
    for path in (base_of(q) / "queue").glob("*/*"):
        path.unlink()
    q.gc()
    assert q.status().leased == 1
    task.complete()
    assert q.status().completed == counted(q) == 1
    assert leftovers(q) == []


def test_a_locked_batch_is_left_for_the_next_time(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = q.store.logs.open("0" * 32, create=True)
    assert q.store.fs.try_lock(log.fd)
    assert found(Queue(q.path, clock=clock)) == {"busy": 1}
    q.close()
    assert found(Queue(q.path, clock=clock)) == {"finished": 1}


# -- staging -----------------------------------------------------------------------


def test_old_staged_files_of_dead_writers_are_reaped(q: Queue, clock: ManualClock) -> None:
    writer = Queue(q.path, clock=clock)
    staged = [staging.stage(writer.store, writer.store.layout, [b'{"payload":1}\n'], 1, 0) for _ in range(2)]
    age_staging(q)
    staged[0].close(writer.store)
    assert found(q) == {"staged_reaped": 1}
    assert found(q) == {}, "the writer of the other one lives: its lock says so"
    staging.sync(writer.store, staged[1:])
    assert list(staging.publish(writer.store, writer.store.layout, staged[1:])) == staged[1:]
    staged[1].close(writer.store)
    assert q.status().waiting == 1
    assert leftovers(q) == [f"queue/00/{staged[1].name}"]


def test_who_was_stopped_for_days_before_locking_what_he_staged_stages_it_again(q: Queue, clock: ManualClock) -> None:
    """Upkeep has reaped it; that it is gone would else be taken for the reply to a rename that was lost."""
    reaped: list[dict[str, int]] = []

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if step == "try_lock" and not reaped:
            clock.advance(2 * 86_400)
            age_staging(q)
            reaped.append(found(q))
        return call(*args)

    Queue(q.path, filesystem=Trapped(str(q.path), trap), clock=clock).insert("x")
    assert reaped == [{"staged_reaped": 1}]
    assert [task.payload for task in q.lease(2)] == ["x"]


def test_a_task_file_that_a_power_loss_put_back_into_staging_is_published_again(q: Queue, clock: ManualClock) -> None:
    """Its inserter had not synced the name yet, and somebody had leased from it: the log is there."""
    q.insert("x")
    [name] = task_file_names(q)
    q.lease()
    [moved] = (base_of(q) / "queue" / "00").iterdir()
    moved.rename(base_of(q) / "staging" / str(name))
    clock.advance(10**6)
    other = Queue(q.path, clock=clock)
    bell = other.store.doorbell.read()
    other.gc()
    assert other.store.doorbell.read() != bell, "idle workers are told of it"
    assert [task.payload for task in other.lease(2)] == ["x"]
    assert not list(other.dead())


def decided_and_half_applied(q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit of three batches, as a power loss leaves it: one was renamed, leased from, and is back in staging."""
    clock.now_s = time.time()  # so that the proposal is young
    commit = q.commit("seed")
    with monkeypatch.context() as patch:
        patch.setattr(commits, "apply", lambda *_: None)  # the publisher died after its decision
        commit.publish([commit.stage(list("abc"), batch_tasks=1)])
        [attempt] = (base_of(q) / "staging").iterdir()
        [first, *_] = sorted(path for path in attempt.iterdir() if path.name != commits.LOCK)
        shard = base_of(q) / "queue" / "00"
        shard.mkdir(parents=True)
        first.rename(shard / first.name)
        assert [task.payload for task in Queue(q.path, clock=q.store.clock).lease()] == ["a"]
        [moved] = shard.iterdir()
        moved.rename(first)


def test_what_is_decided_is_applied_before_anything_counts_as_lost(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided_and_half_applied(q, clock, monkeypatch)
    clock.advance(3600)
    other = Queue(q.path, clock=clock)
    bell = other.store.doorbell.read()
    assert other.gc().commits_applied == 1
    assert other.store.doorbell.read() != bell
    assert not list(other.dead())
    assert sorted(task.payload for task in other.lease(9)) == ["a", "b", "c"]


def test_what_is_decided_and_cannot_be_applied_does_not_count_as_lost(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full: the rest of the upkeep is done, and nothing that is still staged is buried."""
    decided_and_half_applied(q, clock, monkeypatch)
    clock.advance(3600)
    other = Queue(q.path, clock=clock)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(commits, "apply", full)
        with pytest.raises(StorageFull):
            other.gc()
    assert not list(other.dead())
    assert sorted(task.payload for task in other.lease(9)) == ["a", "b", "c"]


@pytest.mark.parametrize("verb", ["gc", "status"])
def test_who_makes_tasks_available_rings_the_bell(q: Queue, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    q.insert("x")
    q.lease()[0].bury("no")
    with monkeypatch.context() as patch:
        patch.setattr(staging, "publish", lambda *_: iter(()))  # it died after its record
        q.retry_dead()
    bell = q.store.doorbell.read()
    other = Queue(q.path, clock=q.store.clock)
    getattr(other, verb)()
    assert other.store.doorbell.read() != bell
    with monkeypatch.context() as patch:
        patch.setattr(commits, "apply", lambda *_: None)
        q.insert_many(list("abc"), commit="seed")
    bell = q.store.doorbell.read()
    getattr(other, verb)()
    assert other.store.doorbell.read() != bell
    getattr(other, verb)()
    assert len(other.lease(9)) == 4


def test_who_makes_a_task_available_earlier_rings_the_bell(q: Queue, clock: ManualClock) -> None:
    """Who had put it back died before the renaming: idle workers would look when the file's name says, in an hour."""
    q.insert("x")
    q.lease()[0].release()
    [name] = task_file_names(q)
    [file] = (base_of(q) / "queue").glob("*/*")
    file.rename(file.with_name(str(name.at(clock.now_ms() + 3_600_000))))
    bell = q.store.doorbell.read()
    other = Queue(q.path, clock=clock)
    assert other.gc().renamed == 1
    assert other.store.doorbell.read() != bell


def cut_off_before_renaming(q: Queue, clock: ManualClock, hours: float, meanwhile: Callable[[str], object]) -> Queue:
    """A client of a file server that is cut off before its second batch gets its name; its lock is lost."""
    away: list[str] = []

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if step == "rename" and "/staging/" in args[0]:
            away.append(args[0])
            if len(away) == 2:
                clock.advance(hours * 3600)
                meanwhile(args[0])
        return call(*args)

    return Queue(q.path, filesystem=Trapped(str(q.path), trap), clock=clock)


def test_an_inserter_whose_staged_file_was_reaped_while_it_was_away_is_told(q: Queue, clock: ManualClock) -> None:
    inserter = cut_off_before_renaming(q, clock, 48, os.unlink)
    with pytest.raises(StorageError, match="stopped or cut off for 48 hours") as caught:
        inserter.insert_many(list("abc"), batch_tasks=1)
    assert caught.value.inserted == 1
    assert [task.payload for task in q.lease(9)] == ["a"]


def test_an_inserter_that_was_away_is_not_told_so_of_what_others_have_taken(q: Queue, clock: ManualClock) -> None:
    """The renaming was done, its reply was lost, and somebody has leased from the file since."""

    def done(path: str) -> None:
        shard = base_of(q) / "queue" / "00"
        os.rename(path, shard / os.path.basename(path))
        assert len(Queue(q.path, clock=clock).lease(9)) == 2

    assert cut_off_before_renaming(q, clock, 48, done).insert_many(list("abc"), batch_tasks=1) == 3
    assert q.status().inserted == 3


def test_young_staged_files_are_left_alone(q: Queue) -> None:
    staged = staging.stage(q.store, q.store.layout, [b'{"payload":1}\n'], 1, 0)
    staged.close(q.store)
    age_staging(q, collect.STAGED_AGE_S - 60)
    assert found(q) == {}
    age_staging(q, collect.STAGED_AGE_S + 60)
    assert found(q) == {"staged_reaped": 1}


def test_other_old_files_in_staging_are_reaped(q: Queue) -> None:
    directory = base_of(q) / "staging"
    directory.mkdir(parents=True)
    (directory / f"{'6' * 16}.probe").touch()
    age_staging(q)
    assert found(q) == {"staged_reaped": 1}


def test_a_recorded_retry_is_published_however_old(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    q.insert("x")
    q.lease()[0].bury("no")
    with monkeypatch.context() as patch:

        def crash(*args: object) -> None:
            raise Crash

        patch.setattr(staging, "publish", crash)
        with pytest.raises(Crash):
            q.retry_dead()
    assert b'"retried"' in (base_of(q) / "dead" / "00.jsonl").read_bytes()
    assert len(retrying.staged_names(q.store)) == 1
    age_staging(q)
    q.close()
    assert found(q) == {"retries_published": 1}
    assert found(q) == {}
    assert [task.payload for task in q.lease(9)] == ["x"]


# -- generations, trash, history -------------------------------------------------------


def test_earlier_generations_that_were_left_in_place_go(q: Queue) -> None:
    q.insert("x")
    q.purge()
    q.purge()
    until_nothing_reaps()  # gc leaves to it what a purge's own reaper is at
    ended, of_another, to_come = base_of(q, 2), q.path / f"1-{'5' * 16}", base_of(q, 7)
    for name in (ended, of_another):
        (q.path / name / "queue" / "00").mkdir(parents=True)
        (q.path / name / "queue" / "00" / "file").touch()
    to_come.mkdir()
    (q.path / "notes").mkdir()
    q.insert("y")
    report = found(q)
    assert report["generations_trashed"] == 1
    assert report["trash_reaped"] >= 4
    assert {name for name in os.listdir(q.path) if not name.startswith(".")} == {
        base_of(q, 3).name,
        of_another.name,
        to_come.name,
        "doorbell",
        "notes",
        "queue.jsonl",
    }
    assert q.status().waiting == 1


def in_trash(q: Queue, number: int, *inside: str) -> Path:
    """A tree as a purge moves it into the queue's trash."""
    tree = q.path / ".trash" / f"{base_of(q, number).name}-{number:016x}"
    tree.mkdir(parents=True)
    for name in inside:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    return tree


def test_what_was_given_back_is_said_in_inodes_and_bytes(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a removed generation each file and directory, of a file of dead letters what its successor is shorter by."""
    q.insert_many([f"{number:04}" * 1000 for number in range(8)], batch_tasks=8)
    with monkeypatch.context() as patch:
        patch.setattr(trash, "reap_own", lambda *_: 0)
        q.purge()
    before = inodes(q.path)
    report = q.gc()
    assert report.inodes_given_back == len(before) - len(inodes(q.path)) > 2
    assert report.bytes_given_back == sum(before.values()) - sum(inodes(q.path).values()) > 32_000
    assert (q.gc().inodes_given_back, q.gc().bytes_given_back) == (0, 0)

    q.insert_many(["x" * 3000] * 4, batch_tasks=2)
    for task in q.lease(4):
        task.bury("no")
    with monkeypatch.context() as patch:
        patch.setattr(letter_files, "give_back", lambda *_: 0)
        q.purge_dead()
    letters = base_of(q) / "dead" / "00.jsonl"
    size = letters.stat().st_size
    report = q.gc()
    assert (report.inodes_given_back, report.bytes_given_back) == (0, size - letter_files.HEADER_BYTES)


def test_what_is_removed_without_counting_costs_no_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = Filesystem(str(tmp_path))
    for name in "abc":
        (tmp_path / name).write_text("12345")
    (tmp_path / "d").hardlink_to(tmp_path / "c")
    with trees.count_removals() as removed:
        assert fs.unlink(f"{tmp_path}/a")
        assert not fs.unlink(f"{tmp_path}/a")
        assert fs.unlink(f"{tmp_path}/c")  # which has another name
    assert removed == trees.Freed(1, 5)
    looked: list[object] = []
    real = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **options: (looked.append(path), real(path, **options))[1])
    assert fs.unlink(f"{tmp_path}/b")
    assert (removed, "b" in looked) == (trees.Freed(1, 5), False)
    with trees.count_removals():
        assert fs.unlink(f"{tmp_path}/d")
    assert "d" in looked


def test_trash_is_reaped_by_several_at_once(q: Queue) -> None:
    for number in range(1, 5):
        in_trash(q, number, *(f"queue/{shard}/{name}" for shard in "abc" for name in range(50)))
    reaped: list[int] = []

    def reap() -> None:
        reaped.append(trash.reap_own(Filesystem(str(q.path), shared=False), str(q.path), q.store.queue_state.id))

    threads = [threading.Thread(target=reap) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reap()
    assert sum(reaped) == 4 * (3 * 51 + 2)
    assert os.listdir(q.path / ".trash") == []


def test_in_a_queues_trash_only_what_the_queue_put_there_is_removed(q: Queue, tmp_path: Path) -> None:
    """Neither a stranger's files there, nor another queue's, nor what has only nearly the name, nor links."""
    place = q.path / ".trash"
    q.insert("x")
    q.purge()
    of_another = f"1-{'5' * 16}-{'6' * 16}"
    kept = [
        "mine", "1", "1-2", of_another, f"{base_of(q, 1).name}", f"{base_of(q, 1).name}-{'6' * 15}",
        f"0-{q.store.queue_state.id}-{'6' * 16}", f"2026-11-2-{'6' * 16}", f"x2026-11-21-{'6' * 16}", ".lock",
    ]  # fmt: skip
    beside = [".trash-mine", ".trash-", ".trash.bak", f".trash-{of_another}"]
    for path in [*(place / name for name in kept), *(q.path / name for name in beside)]:
        path.mkdir(parents=True, exist_ok=True)
        (path / "f").touch()
    file = place / f"{base_of(q, 4).name}-{'6' * 16}"
    file.touch()
    link = place / f"{base_of(q, 5).name}-{'6' * 16}"
    link.symlink_to(tmp_path)
    ours = [place / f"2026-11-21-{'6' * 16}", q.path / f".trash-{base_of(q, 1).name}-{'7' * 16}", in_trash(q, 7)]
    for path in ours:
        path.mkdir(exist_ok=True)
    q.gc()
    assert [path for path in ours if path.exists()] == []
    assert all((place / name / "f").exists() for name in kept)
    assert all((q.path / name / "f").exists() for name in beside)
    assert file.exists()
    assert link.is_symlink()


def test_what_a_member_put_into_a_queues_trash_survives_a_purge(q: Queue) -> None:
    (q.path / ".trash" / "mine").mkdir(parents=True)
    (q.path / ".trash" / "mine" / "f").touch()
    q.insert(1)
    q.purge()
    until_nothing_reaps()
    assert files_below(q.path / ".trash") == ["mine/f"]


def test_a_trash_that_cannot_be_reaped_is_reported(
    q: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_trash(q, 1)

    def failing(path: str) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(q.store.fs, "remove_tree", failing)
    assert found(q) == {}
    assert "could not be reaped" in caplog.text


def test_a_trash_that_one_may_not_look_into_is_reported(
    q: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = q.store.fs.entries

    def refusing(directory: str) -> list[tuple[str, str]]:
        if directory.endswith(".trash"):
            raise PermissionError(13, "Permission denied", directory)
        return entries(directory)

    monkeypatch.setattr(q.store.fs, "entries", refusing)
    assert found(q) == {}
    assert "could not be reaped" in caplog.text


def test_a_tree_that_cannot_be_reaped_does_not_keep_the_others(
    q: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second, _ = (in_trash(q, number) for number in (1, 2, 3))
    real = q.store.fs.remove_tree

    def failing(path: str) -> int:
        if path == str(second):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(q.store.fs, "remove_tree", failing)
    assert found(q) == {"trash_reaped": 2}
    assert os.listdir(q.path / ".trash") == [second.name]
    assert f"{second} could not be reaped" in caplog.text


def test_files_in_staging_that_fsqueue_does_not_stage_stay(q: Queue) -> None:
    q.insert("x")
    staging = base_of(q) / "staging"
    staging.mkdir(exist_ok=True)
    ours = [staging / f"{'6' * 16}.probe", staging / f"0000000000000-{'0' * 32}-1.jsonl"]
    theirs = [staging / "mine", staging / f"{'6' * 15}.probe", staging / f"0000000000000-{'0' * 32}-1.jsonl.swp"]
    for path in ours + theirs:
        path.touch()
    age_staging(q)
    assert q.gc().staged_reaped == 2
    assert [path.exists() for path in ours + theirs] == [False] * 2 + [True] * 3


def test_touching_refreshes_every_file_that_the_queue_needs(queue: Queue) -> None:
    """Without its `queue.jsonl` a queue is none, without the record of a commit its tasks would be inserted again."""
    queue.insert_many(range(2), batch_tasks=1)
    queue.insert_many(["committed"], commit="name")
    finished, dead, held = queue.lease(3)
    finished.complete()
    dead.bury("hopeless")
    queue.commit("other").stage(["staged"])
    paths = [path for path in queue.path.rglob("*") if path.is_file()]
    before = int(time.time()) - 3600
    for path in paths:
        os.utime(path, (before, before))
    assert found(queue) == {}
    assert {path.stat().st_mtime for path in paths} == {before}
    left_alone = {path for path in paths if "staging" in path.parts}
    assert len(left_alone) == 2  # a file, and the attempt's lock
    assert found(queue, touch=True) == {"touched": len(paths) - 2}
    assert {path for path in paths if path.stat().st_mtime == before} == left_alone
    kinds = {path.relative_to(base_of(queue)).parts[0] for path in paths if base_of(queue) in path.parents}
    assert kinds == {"queue", "movements", "dead", "completions", "history", "commits", "staging"}
    held.complete()


@pytest.mark.parametrize("days", [-1, 1.5, "3", True])
def test_wrong_days_are_refused(q: Queue, days: int) -> None:
    with pytest.raises(InvalidArgument, match="history_days"):
        q.gc(history_days=days)


def test_stray_files_are_counted_and_left_alone(q: Queue) -> None:
    q.insert("x")
    q.lease()
    for directory in ("queue/00", "movements/00"):
        for name in (".nfs01", "notes", "x.jsonl~"):
            (base_of(q) / directory / name).touch()
    assert found(q) == {"stray": 4}
    assert found(q) == {"stray": 4}


def test_upkeep_while_others_work_disturbs_nobody(q: Queue, clock: ManualClock) -> None:
    worker = Queue(q.path, clock=clock)
    q.insert_many(range(8), batch_tasks=4)
    while tasks := worker.lease(3):
        assert found(q) == {}
        tasks[0].complete()
        q.gc(touch=True)
        worker.complete(tasks[1:])
    assert q.status().completed == counted(q) == 8
    assert leftovers(q) == []
    assert task_file_names(q) == []


# -- open batches ------------------------------------------------------------------------------------------


@pytest.mark.once
def test_an_open_batch_whose_file_was_removed_takes_no_more_inserts(
    queue_factory: QueueFactory, clock: ManualClock
) -> None:
    """Only upkeep finds a log without a task file: what is inserted into it afterwards would be a dead letter, too."""
    q = Queue(queue_factory(shards=1).path, clock=clock)
    lost = q.insert({"a": 1})
    for path in (base_of(q) / "queue").glob("*/*"):
        path.unlink()
    assert found(q) == {"finished": 1}
    [letter] = q.dead()
    assert (letter.id, letter.payload, letter.payload_lost) == (lost.id, {"a": 1}, False)
    other = q.insert({"a": 2})
    assert other.id.partition(".")[0] != lost.id.partition(".")[0]
    assert [task.id for task in q.lease(9)] == [other.id]


@pytest.mark.once
def test_the_letters_of_an_open_batch_do_not_wait_until_it_finishes(
    queue_factory: QueueFactory, clock: ManualClock
) -> None:
    q = Queue(queue_factory(shards=1).path, clock=clock)
    q.insert("x")
    [task] = q.lease()
    (base_of(q) / "dead").write_text("a file where a directory should be")
    task.bury("no")
    (base_of(q) / "dead").unlink()
    assert found(q) == {"letters_added": 1}
    assert [letter.payload for letter in q.dead()] == ["x"]
    assert found(q) == {}
    assert len(task_file_names(q)) == 1
    clock.advance(3)
    assert q.gc().finished == 1
    assert leftovers(q) == []
    assert [letter.payload for letter in q.dead()] == ["x"]


@pytest.mark.once
def test_an_open_batch_whose_inserter_died_before_its_first_insert_is_cleared_away(
    queue_factory: QueueFactory, clock: ManualClock
) -> None:
    path = queue_factory(shards=1, durability="none").path
    for number, step in enumerate(("create", "write"), 1):
        fs = Filesystem(str(path), shared=False)
        real = {"create": fs.look, "write": fs.write}[step]

        def dying(*args: Any, real: Callable[..., Any] = real, step: str = step) -> Any:
            if step == "write" or "/movements/" in str(args[0]):
                raise Crash
            return real(*args)

        inserter = Queue(path, filesystem=fs, clock=clock)
        if step == "write":
            inserter._inserter._make_batch(LAST)
        setattr(fs, {"create": "look"}.get(step, step), dying)
        with pytest.raises(Crash):
            inserter.insert("x")
        q = Queue(path, clock=clock)
        assert len(task_file_names(q)) == 1
        assert len(log_files(q)) == number - 1
        q.gc()
        assert len(task_file_names(q)) == 1
        assert list(q.fsck()) == []
        clock.advance(3)
        assert q.gc().finished == 1
        assert leftovers(q) == []
        assert q.status().inserted == 0


@pytest.mark.once
@pytest.mark.parametrize("by", ["lease", "gc"])
def test_an_open_batch_is_cleared_away_some_time_after_its_last_insert(
    queue_factory: QueueFactory, clock: ManualClock, by: str
) -> None:
    q = Queue(queue_factory(shards=1).path, clock=clock)
    done, dead, cancelled = (q.insert(n).id for n in range(3))
    tasks = {task.id: task for task in q.lease(2)}
    tasks[done].complete({"n": 1})
    tasks[dead].bury("no")
    assert q.cancel([cancelled]) == 1
    clock.advance(1)
    for _ in range(2):
        q.gc()
        assert q.lease() == []
    assert len(task_file_names(q)) == len(log_files(q)) == 1
    assert q.status().drained
    assert (q.status().completed, q.status().dead) == (1, 1)
    clock.advance(2)
    q.gc() if by == "gc" else q.lease()
    assert leftovers(q) == []
    assert (q.status().completed, q.status().dead, counted(q)) == (1, 1, 1)
    assert [q.task(task_id).state for task_id in (done, dead, cancelled)] == ["completed", "dead", "cancelled"]
    assert [(letter.id, letter.payload) for letter in q.dead()] == [(dead, 1)]
    assert [move.op for move in q.history(done)] == ["insert", "lease", "complete"]


OF_THEIR_OWN = ("close", "unlock", "names")
"""Steps that take ESTALE for an answer."""


class PurgedAt(Count):
    """Another host purges the queue before the n-th step on its generation, and the server knows those files no more.

    `times`: how often from then on it says so: a client asks once more by itself, and then is told "missing".
    """

    def __init__(self, number: int, times: int, directory: str, purge: Callable[[], object]) -> None:
        super().__init__(lambda step, args: directory in where(args[0]) and step not in OF_THEIR_OWN)
        self.number, self.times, self.purge = number, times, purge

    def at(self, number: int, step: str, call: Callable[..., Any], *args: Any) -> Any:
        if number == self.number:
            self.purge()
        if self.number <= number < self.number + self.times:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return call(*args)


def where(place: int | str) -> str:
    return os.readlink(f"/proc/self/fd/{place}") if isinstance(place, int) else place


@pytest.mark.batched  # with one task a batch a queue takes no keys
@pytest.mark.parametrize("times", [1, 2])
def test_a_purge_on_another_host_ends_no_upkeep(queue_factory: QueueFactory, times: int) -> None:
    """The server says ESTALE of what is gone, where a local disk says "missing"."""
    for number in range(1, 1000):
        q = queue_factory(f"of-{number}", shards=1, max_attempts=1)
        q.insert_many(range(4), batch_tasks=2)
        q.insert("key", key="k")
        q.insert("single")
        for task in q.lease(3)[:2]:
            task.bury("no")
        NodeFailures(q.store, 1).failed("x")
        staging.stage(q.store, q.store.layout, [b'{"payload":1}\n'], 1, 0, LAST).close(q.store)
        q.commit("c").stage([1])
        trap = PurgedAt(number, times, base_of(q).name, q.purge)
        mine = trapped(q, trap, shared=True)
        trap.armed = True
        mine.gc()
        trap.armed = False
        if len(trap.steps) < number:
            break
        assert mine.status().inserted == 0
        assert mine.insert("later").id
    else:
        pytest.fail("it never got through")
    assert number > 10


@pytest.mark.once
def test_a_daily_touch_keeps_what_waits_and_lets_what_a_dead_insert_staged_go(tmp_path: Path) -> None:
    """A purge by age must find what is needed young, and `gc` must find what nobody needs old."""
    q = Queue.create(tmp_path / "queue", shards=1)
    q.insert("waits")
    q.commit("half").stage([1, 2])
    left = base_of(q) / "staging"
    assert list(left.rglob("*.jsonl"))
    [waiting] = (base_of(q) / "queue").rglob("*.jsonl")
    for _ in range(10):
        for path in [*q.path.rglob("*"), q.path]:
            found = path.stat()
            os.utime(path, (found.st_atime - 86_400, found.st_mtime - 86_400))
        needed = [waiting, q.path / "queue.jsonl"]
        staged = [*left.rglob("*.jsonl")]
        before = {path: path.stat().st_mtime for path in needed + staged}
        q.gc(touch=True)
        assert all(path.stat().st_mtime > before[path] + 80_000 for path in needed), "they look as new"
        assert all(path.stat().st_mtime == before[path] for path in staged if path.exists())
    assert not list(left.rglob("*.jsonl"))
    assert [task.payload for task in q.lease(9)] == ["waits"]
