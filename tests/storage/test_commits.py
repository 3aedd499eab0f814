"""Named commits: everything appears together, once, whoever repeats it and whatever dies on the way."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsqueue import (
    Commit,
    CommitLost,
    CommitPart,
    CommitReport,
    InvalidArgument,
    InvalidTask,
    LockTimeout,
    Queue,
    QueueFileLost,
    QueueNotFound,
    StorageError,
    Task,
    administration,
)
from fsqueue.clock import ManualClock
from fsqueue.filesystem import Filesystem
from fsqueue.format import names
from fsqueue.storage import commits
from fsqueue.storage.commits import Part, Record
from tests.support import QueueFactory, base_of, crashes, drain, files_below, leftovers, task_file_names

DAY_S = 86_400


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(time.time())


@pytest.fixture
def q(queue_factory: QueueFactory, clock: ManualClock) -> Queue:
    return Queue(queue_factory(shards=4, durability="none").path, clock=clock)


def base(queue: Queue) -> Path:
    return base_of(queue)


def payloads(queue: Queue) -> list[object]:
    return sorted(info.payload for info in queue.tasks())


def nothing_staged(queue: Queue) -> bool:
    return (
        files_below(base(queue) / "staging") == [] == files_below(base(queue) / "commits" / "pending") == ballots(queue)
    )


def ballots(queue: Queue) -> list[Path]:
    return list((base(queue) / "commits").glob(".*"))


def sent(value: Any) -> Any:
    """As another process gets it."""
    return ForkingPickler.loads(ForkingPickler.dumps(value))


# -- what users see --------------------------------------------------------------------------------------------


def test_insert_many_with_a_name_inserts_once(q: Queue) -> None:
    assert q.insert_many(range(10), commit="seed-2026-11") == 10
    assert q.insert_many(range(10), commit="seed-2026-11") == 0
    assert q.insert_many(range(5), commit="seed-2026-12") == 5
    assert q.status().waiting == 15
    assert nothing_staged(q)


def test_a_name_that_was_committed_does_not_even_read_the_stream(q: Queue) -> None:
    q.insert_many(range(3), commit="seed")

    def explode() -> object:
        raise AssertionError("it was read")
        yield

    assert q.insert_many(explode(), commit="seed") == 0


def test_a_commit_is_full_batches_from_the_start(q: Queue) -> None:
    q.insert_many(range(3000), commit="seed")
    most = q.settings.batch_tasks_max
    counts = [name.count for name in task_file_names(q)]
    assert len(counts) == math.ceil(3000 / most)
    assert counts[:-1] == [most] * (len(counts) - 1)
    in_shards = [len(list(shard.iterdir())) for shard in (base(q) / "queue").iterdir()]
    assert max(in_shards) - min(in_shards) <= 1


def test_many_writers_stage_and_one_publishes(q: Queue, clock: ManualClock) -> None:
    commit = q.commit("job")
    parts = []
    for number in range(3):
        elsewhere = sent(commit)
        assert isinstance(elsewhere, Commit)
        parts.append(sent(elsewhere.stage(range(number * 10, number * 10 + number))))
    assert [part.tasks for part in parts] == [0, 1, 2]
    assert q.status().inserted == 0
    assert q.lease() == []
    assert q.is_drained()
    report = commit.publish(parts)
    assert report == CommitReport("job", 3, report.files, report.bytes, report.at, False)
    assert payloads(q) == [10, 20, 21]
    assert nothing_staged(q)
    assert drain(q, clock).total() == 3
    assert leftovers(q) == []


def test_what_was_staged_and_not_published_goes_with_the_attempt(q: Queue) -> None:
    """Task retries and speculative copies leave parts that nobody publishes."""
    commit = q.commit("job")
    commit.stage(["a failed attempt"])
    good = commit.stage(["good"])
    commit.stage(["a speculative copy"])
    commit.publish([good])
    assert payloads(q) == ["good"]
    assert nothing_staged(q)


def test_parts_of_several_commit_objects_of_one_name(q: Queue) -> None:
    commits_ = [q.commit("job") for _ in range(5)]
    parts = [commit.stage([number]) for number, commit in enumerate(commits_)]
    assert len({part.attempt for part in parts}) == 5
    q.commit("job").publish(parts)
    assert payloads(q) == [0, 1, 2, 3, 4]
    assert nothing_staged(q)


def test_publishing_the_same_parts_twice_is_harmless(q: Queue, clock: ManualClock) -> None:
    commit = q.commit("job")
    part = commit.stage(range(4))
    first = commit.publish([part, part])
    assert drain(q, clock).total() == 4
    again = commit.publish([part])
    assert again == replace(first, repeated=True)
    assert q.status().inserted == 4


def test_the_first_decides_and_the_second_is_told_so(q: Queue) -> None:
    one, other = q.commit("job"), q.commit("job")
    mine, yours = one.stage(["mine"]), other.stage(["yours", "too"])
    assert not one.publish([mine]).repeated
    report = other.publish([yours])
    assert report.repeated
    assert report.tasks == 1
    assert payloads(q) == ["mine"]
    assert nothing_staged(q)


def test_committed_tells_before_anything_is_staged(q: Queue) -> None:
    assert q.commit("job").committed() is None
    q.insert_many([1, 2], commit="job")
    report = q.commit("job").committed()
    assert report is not None
    assert (report.tasks, report.repeated) == (2, True)


def test_nothing_at_all_can_be_committed_and_other_tasks_are_told_so(
    q: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    assert q.insert_many([], commit="empty") == 0
    assert "Its name is used up" in caplog.text
    assert q.insert_many([], commit="empty") == 0
    with pytest.raises(InvalidArgument, match="with 0 tasks, and here are 1 or more"):
        q.insert_many([1], commit="empty")

    def while_another_is_quicker() -> Iterator[int]:
        q.commit("quick").publish([])
        yield 1

    with pytest.raises(InvalidArgument, match="with 0 tasks, and here is 1 task"):
        q.insert_many(while_another_is_quicker(), commit="quick")
    assert q.commit("of-no-parts").publish([]).tasks == 0
    part = q.commit("another").stage([])
    assert q.commit("another").publish([part]).tasks == 0
    assert nothing_staged(q)


def test_discarded_parts_cannot_be_published(q: Queue) -> None:
    commit = q.commit("job")
    part = commit.stage([1])
    assert commit.discard()
    assert nothing_staged(q)
    with pytest.raises(CommitLost, match="stage it again"):
        commit.publish([part])
    assert commit.publish([commit.stage([2])]).tasks == 1
    assert payloads(q) == [2]


def test_discarding_what_was_published_changes_nothing(q: Queue) -> None:
    commit = q.commit("job")
    commit.publish([commit.stage([1, 2])])
    commit.discard()
    assert payloads(q) == [1, 2]
    assert q.commit("job").committed() is not None


def test_a_bad_task_leaves_nothing_of_an_insert(q: Queue) -> None:
    with pytest.raises(InvalidTask, match="number 3") as caught:
        q.insert_many([1, 2, float("nan"), 4], commit="seed")
    assert caught.value.inserted == 0
    assert nothing_staged(q)
    assert q.insert_many([1, 2, 4], commit="seed") == 3


def test_a_bad_task_leaves_a_part_of_what_came_before(q: Queue) -> None:
    commit = q.commit("job")
    with pytest.raises(InvalidTask) as caught:
        commit.stage([1, 2, float("nan"), 4])
    assert caught.value.part.tasks == 2
    commit.publish([caught.value.part, commit.stage([4])])
    assert payloads(q) == [1, 2, 4]


def test_a_stream_that_breaks_off_leaves_nothing(q: Queue) -> None:
    def stream() -> object:
        yield from range(100)
        raise RuntimeError("the source is gone")

    with pytest.raises(RuntimeError):
        q.insert_many(stream(), commit="seed")
    assert nothing_staged(q)
    assert q.status().inserted == 0


def test_delays(q: Queue, clock: ManualClock) -> None:
    q.insert_many([1, Task(2, delay_s=100), 3], commit="seed", delay_s=10)
    assert q.status().delayed == 3
    clock.advance(11)
    assert q.status().waiting == 2


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a b", "-x", "ä", "x" * 201, "a\n", 7, b"x", "../../etc"])
def test_names_that_cannot_be(q: Queue, name: object) -> None:
    with pytest.raises(InvalidArgument, match="commit's name"):
        q.insert_many([1], commit=name)  # type: ignore[arg-type]
    assert q.status().inserted == 0


@pytest.mark.parametrize("name", ["x" * 200, "seed-2026-11", "a", "9", "q=1@host+b_c.json", "pending"])
def test_names_that_can_be(q: Queue, name: str) -> None:
    assert q.insert_many([1], commit=name) == 1
    assert q.insert_many([1], commit=name) == 0


def test_parts_of_another_name_or_queue_are_refused(q: Queue, queue_factory: QueueFactory) -> None:
    part = q.commit("one").stage([1])
    with pytest.raises(InvalidArgument, match="another commit or queue"):
        q.commit("other").publish([part])
    other = queue_factory("other")
    with pytest.raises(InvalidArgument, match="another commit or queue"):
        other.commit("one").publish([part])
    with pytest.raises(InvalidArgument, match="takes parts"):
        q.commit("one").publish([None])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match="takes a list"):
        q.commit("one").stage("text")
    assert q.status().inserted == 0


def test_a_part_goes_through_json(q: Queue) -> None:
    commit = q.commit("job")
    part = CommitPart(**json.loads(json.dumps(commit.stage([1]).as_dict())))
    assert commit.publish([part]).tasks == 1


# -- purges and deletions --------------------------------------------------------------------------------------


def test_a_purge_forgets_commits(q: Queue) -> None:
    q.insert_many([1, 2], commit="seed")
    q.purge()
    assert q.insert_many([1, 2], commit="seed") == 2
    assert q.status().inserted == 2


def test_what_was_staged_before_a_purge_is_gone(q: Queue) -> None:
    commit = q.commit("job")
    part = commit.stage([1])
    q.purge()
    with pytest.raises(CommitLost, match="purged"):
        commit.publish([part])
    assert q.status().inserted == 0
    assert commit.publish([commit.stage([1])]).tasks == 1


def test_a_purge_while_tasks_are_being_staged_is_named(q: Queue) -> None:
    def tasks() -> Iterator[int]:
        yield from range(5000)
        Queue(q.path).purge()
        yield from range(5000)

    commit = q.commit("job")
    with pytest.raises(CommitLost, match=r"was purged while job was being staged.*the name is free: repeat the call"):
        commit.stage(tasks(), batch_tasks=10)
    with pytest.raises(CommitLost, match="was purged while job was being staged"):
        q.insert_many(tasks(), commit="job", batch_tasks=10)
    assert q.insert_many([1], commit="job") == 1


def test_a_purge_at_any_step_of_a_publish(queue_factory: QueueFactory, clock: ManualClock) -> None:
    """It is reported lost, or it was committed and then purged; never the one for the other."""

    def act(step: int, queue: Queue) -> bool:
        met = []
        other = Queue(queue.path, clock=clock)
        part = queue.commit("job").stage([1, 2])
        link, rename = queue.store.fs.link, queue.store.fs.rename

        def purging(do: Callable[..., object]) -> Callable[..., object]:
            def done(*args: str) -> object:
                met.append(args)
                if len(met) == step:
                    other.purge()
                return do(*args)

            return done

        queue.store.fs.link = purging(link)  # type: ignore[method-assign, assignment]
        queue.store.fs.rename = purging(rename)  # type: ignore[method-assign, assignment]
        try:
            report = queue.commit("job").publish([part])
        except CommitLost:
            report = None
        after = Queue(queue.path, clock=clock)
        assert after.status().inserted == (0 if len(met) >= step else 2)
        if report is None:
            assert step == 1
        assert all(finding.repaired for finding in after.fsck(repair=True))
        assert after.insert_many([3], commit="job") == (1 if len(met) >= step else 0)
        return len(met) >= step

    step = 1
    while act(step, Queue(queue_factory(f"q{step}", shards=1, durability="none").path, clock=clock)):
        step += 1
    assert step >= 3


def test_a_deleted_queue(q: Queue) -> None:
    commit = q.commit("job")
    part = commit.stage([1])
    Queue(q.path).delete(foreground=True)
    for act in (lambda: commit.publish([part]), lambda: commit.stage([1]), commit.committed, commit.discard):
        with pytest.raises(QueueNotFound):
            act()
    assert not q.path.exists()


# -- crashes ---------------------------------------------------------------------------------------------------

WORDS = ["a", "b", "c", "d", "e"]


def sizes(queue: Queue) -> tuple[int, int]:
    """What a status says, and what there is to lease."""
    return queue.status().inserted, len(list(queue.tasks()))


@pytest.mark.parametrize("durability", ["none", "default"])
def test_a_death_at_any_step_of_an_insert(queue_factory: QueueFactory, clock: ManualClock, durability: str) -> None:
    """All is there or nothing; repeated, all is there, once; upkeep leaves nothing."""

    def build(number: int) -> Queue:
        return Queue(queue_factory(f"q{number}", shards=2, durability=durability).path, clock=clock)

    seen = set()
    for where, queue in crashes(build, lambda queue: queue.insert_many(WORDS, commit="seed", batch_tasks=2), clock):
        before = sizes(queue)
        assert before in ((0, 0), (5, 5)), where
        seen.add(before[0])
        assert queue.insert_many(WORDS, commit="seed") == 5 - before[0], where
        assert payloads(queue) == WORDS, where
        clock.advance(8 * DAY_S)
        queue.gc()
        assert nothing_staged(queue), where
        assert list(queue.fsck()) == [], where
        executed = drain(queue, clock)
        assert list(executed.values()) == [1] * 5, where
        assert queue.insert_many(WORDS, commit="seed") == 0, where
        assert leftovers(queue) == [], where
    assert seen == {0, 5}


READERS: dict[str, Callable[[Queue], int]] = {
    "a status": lambda queue: queue.status().inserted,
    "an estimate": lambda queue: queue.status(exact=False).inserted,
    "a listing": lambda queue: len(list(queue.tasks())),
    "a peek": lambda queue: len(queue.peek(10)),
    "a lessee": lambda queue: len(queue.lease(10)),
    "one lessee after the other": lambda queue: sum(len(queue.lease(1)) for _ in range(10)),
    "a poll": lambda queue: sum(1 for task in queue.poll() if task.complete() is None),
    "is it drained": lambda queue: 0 if queue.is_drained() else 5,
    "upkeep": lambda queue: (queue.gc(), len(task_file_names(queue)) and queue.status().inserted)[1],
    "repair": lambda queue: (list(queue.fsck(repair=True)), len(task_file_names(queue)) and queue.status().inserted)[1],
}


@pytest.mark.parametrize("reader", READERS)
def test_whoever_comes_first_after_a_death_sees_all_or_nothing(
    queue_factory: QueueFactory, clock: ManualClock, reader: str
) -> None:
    def build(number: int) -> Queue:
        return Queue(queue_factory(f"q{number}", shards=2, durability="none").path, clock=clock)

    def publish(queue: Queue) -> None:
        commit = queue.commit("seed")
        commit.publish([commit.stage(WORDS[:3], batch_tasks=2), commit.stage(WORDS[3:], batch_tasks=2)])

    seen = set()
    for where, queue in crashes(build, publish, clock):
        decided = (base(queue) / "commits" / "seed.json").exists()
        assert READERS[reader](queue) == (5 if decided else 0), where
        seen.add(decided)
    assert seen == {True, False}


def test_the_status_of_one_who_may_not_publish(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may only read counts what is staged and decided."""
    commit = q.commit("seed")
    part = commit.stage(WORDS, batch_tasks=1)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(commits, "_publish", refuse)
    with pytest.raises(StorageError):
        commit.publish([part])
    assert q.status().inserted == 5
    assert q.status(exact=False).inserted == 5
    for look in (q.lease, q.is_drained):  # "empty" would be a lie
        with pytest.raises(StorageError):
            look()
    monkeypatch.undo()
    assert len(q.lease(9)) == 5


@pytest.mark.parametrize("when", range(1, 12))
def test_a_status_that_a_commit_overtakes_is_read_again(q: Queue, monkeypatch: pytest.MonkeyPatch, when: int) -> None:
    """It never counts a part of what is published while it reads, shard by shard."""
    q.insert_many(range(4), commit="before", batch_tasks=1)  # so that all shards are listed
    commit = Queue(q.path, clock=q.store.clock).commit("seed")
    part = commit.stage(range(40), batch_tasks=5)
    listings = 0
    names_of = q.store.fs.names

    def slow(directory: str, strict: bool = False) -> list[str]:
        nonlocal listings
        listings += 1
        if listings == when:
            commit.publish([part])
        return names_of(directory, strict)

    monkeypatch.setattr(q.store.fs, "names", slow)
    assert q.status().inserted in (4, 44)
    assert listings >= when
    assert q.status().inserted == 44


def test_a_death_at_any_step_of_a_repeat(queue_factory: QueueFactory, clock: ManualClock) -> None:
    """The one who finishes another's commit may die, too."""

    def build(number: int) -> Queue:
        queue = Queue(queue_factory(f"q{number}", shards=2, durability="none").path, clock=clock)
        commit = queue.commit("seed")
        part = commit.stage(WORDS, batch_tasks=2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(commits, "apply", lambda *args: None)
            commit.publish([part])
        queue.close()
        return queue

    for where, queue in crashes(build, lambda queue: queue.insert_many(WORDS, commit="seed"), clock):
        assert sizes(queue) == (5, 5), where
        assert queue.insert_many(WORDS, commit="seed") == 0, where
        assert nothing_staged(queue), where
        assert list(drain(queue, clock).values()) == [1] * 5, where


@pytest.mark.parametrize("act", ["discard", "gc"])
def test_a_death_at_any_step_of_reaping(queue_factory: QueueFactory, clock: ManualClock, act: str) -> None:
    made: dict[str, Commit] = {}

    def build(number: int) -> Queue:
        queue = Queue(queue_factory(f"q{number}", shards=2, durability="none").path, clock=clock)
        made[str(queue.path)] = commit = queue.commit("seed")
        commit.stage(WORDS, batch_tasks=2)
        clock.advance(8 * DAY_S)
        queue.close()
        return queue

    def reap(queue: Queue) -> None:
        if act == "gc":
            queue.gc()
        else:
            Commit(queue.store, "seed", made[str(queue.path)].attempt).discard()

    for where, queue in crashes(build, reap, clock):
        queue.gc()
        assert nothing_staged(queue), where
        assert queue.insert_many(WORDS, commit="seed") == 5, where


def test_a_lost_reply_to_the_link(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS may answer "exists" to the repeat of a request that was done."""
    link = q.store.fs.link

    def lost(source: str, target: str) -> None:
        link(source, target)
        raise FileExistsError(17, "File exists", target)

    monkeypatch.setattr(q.store.fs, "link", lost)
    assert q.insert_many(WORDS, commit="seed") == 5
    assert payloads(q) == WORDS
    assert nothing_staged(q)


def test_a_link_that_fails_leaves_nothing(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: str, target: str) -> None:
        raise OSError(5, "Input/output error", target)

    with monkeypatch.context() as patch:
        patch.setattr(q.store.fs, "link", fail)
        with pytest.raises(StorageError):
            q.insert_many(WORDS, commit="seed")
    assert q.status().inserted == 0
    assert nothing_staged(q)
    assert q.insert_many(WORDS, commit="seed") == 5


def test_a_link_that_comes_late_after_the_proposal_was_withdrawn(q: Queue, clock: ManualClock) -> None:
    """A client that was cut off for two days comes back with what it had begun."""
    commit = q.commit("seed")
    part = commit.stage(WORDS)
    link = q.store.fs.link

    def late(source: str, target: str) -> None:
        q.store.fs.unlock(fd_of(source.replace("commits/.", "commits/pending/")))  # its lock is lost
        clock.advance(2 * DAY_S)
        Queue(q.path, clock=clock).gc()
        link(source, target)

    def fd_of(path: str) -> int:
        for fd in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{fd}") == path:
                    return int(fd)
            except OSError:
                continue
        raise AssertionError

    q.store.fs.link = late  # type: ignore[method-assign]
    with pytest.raises(CommitLost, match="given up"):
        commit.publish([part])
    q.store.fs.link = link  # type: ignore[method-assign]
    assert q.status().inserted == 0
    assert commit.publish([part]).tasks == 5


class NoLinksAcross(Filesystem):
    """A filesystem that refuses hard links from one directory into another, as BeeGFS before version 8."""

    def link(self, source: str, target: str) -> None:
        if os.path.dirname(source) != os.path.dirname(target):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source)
        super().link(source, target)


def test_commits_where_links_across_directories_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administration, "Filesystem", NoLinksAcross)  # what creating probes and does works there, too
    path = Queue.create(tmp_path / "q", shards=4).path
    q = Queue(path, filesystem=NoLinksAcross(str(path), shared=False))
    assert q.insert_many(WORDS, commit="seed") == 5
    assert q.insert_many(WORDS, commit="seed") == 0
    commit = q.commit("other")
    assert commit.publish([commit.stage(["x"])], overwrite=True).tasks == 1
    assert nothing_staged(q)
    assert payloads(q) == ["x"]


def test_a_ballot_whose_author_died_before_it_proposed_is_reaped_after_a_day(q: Queue, clock: ManualClock) -> None:
    q.insert_many(WORDS, commit="seed")
    identity = names.new_uuid(q.store.entropy, clock.now_ms())
    commits.cast_ballot(q.store, q.store.layout, identity, b"whatever\n")
    [ballot] = ballots(q)
    assert not list(q.fsck())
    q.gc(touch=True)
    assert ballots(q) == [ballot]
    clock.advance(DAY_S + 60)
    assert [finding.kind for finding in q.fsck()] == ["stale-proposal"]
    q.gc()
    assert nothing_staged(q)
    assert commits.decided(q.store) == {"seed.json"}


# -- reaping ---------------------------------------------------------------------------------------------------


def test_an_attempt_is_reaped_after_a_week_and_not_before(q: Queue, clock: ManualClock) -> None:
    commit = q.commit("job")
    part = commit.stage([1])
    clock.advance(6 * DAY_S)
    assert q.gc().attempts_reaped == 0
    clock.advance(2 * DAY_S)
    assert q.gc().attempts_reaped == 1
    assert nothing_staged(q)
    with pytest.raises(CommitLost):
        commit.publish([part])


def test_what_is_proposed_is_not_reaped(q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = q.commit("job")
    part = commit.stage([1])
    clock.advance(30 * DAY_S)
    link = q.store.fs.link

    def meanwhile(source: str, target: str) -> None:
        other = Queue(q.path, clock=clock)
        assert other.gc().attempts_reaped == 0
        assert not Commit(other.store, "job", commit.attempt).discard()
        link(source, target)

    monkeypatch.setattr(q.store.fs, "link", meanwhile)
    assert commit.publish([part]).tasks == 1
    assert payloads(q) == [1]


def test_nothing_is_proven_while_it_is_reaped_by_who_waited_for_the_lock_of_an_attempt_before(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two discard an attempt at once, and more is staged for it. The file that the second has opened is gone by then:
    its lock keeps nobody from proving and deciding what the second is about to reap.
    """
    commit = q.commit("job")
    commit.stage([1])
    late = Queue(q.path, clock=clock)
    lock, rename, link = late.store.fs.lock, late.store.fs.rename, q.store.fs.link
    parts: list[CommitPart] = []

    def overtaken(fd: int, *rest: Any) -> bool:
        if not parts:
            assert commit.discard()
            parts.append(commit.stage([2]))
        return lock(fd, *rest)

    def proven_meanwhile(source: str, target: str) -> bool:
        def reaped_meanwhile(*ends: str) -> None:
            assert rename(source, target)
            link(*ends)

        monkeypatch.setattr(q.store.fs, "link", reaped_meanwhile)
        with pytest.raises(LockTimeout):
            commit.publish(parts)
        return rename(source, target)

    monkeypatch.setattr(commits, "LOCK_S", 0.1)
    monkeypatch.setattr(late.store.fs, "lock", overtaken)
    monkeypatch.setattr(late.store.fs, "rename", proven_meanwhile)
    assert Commit(late.store, "job", commit.attempt).discard()
    with pytest.raises(CommitLost):
        commit.publish(parts)
    assert (parts[0].tasks, payloads(q)) == (1, [])


def test_an_attempt_without_a_lock_is_reaped(q: Queue) -> None:
    """A process died between making the directory and the lock in it."""
    commit = q.commit("job")
    commit.stage([1])
    os.unlink(f"{q.store.layout.attempt(commit.attempt, 'job')}/{commits.LOCK}")
    assert commit.discard()
    assert not commit.discard()
    assert nothing_staged(q)


def test_an_old_listing_of_what_was_staged_does_not_mean_that_all_is_applied(
    q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS client may have listed the attempt before the parts were staged, and answer from that once more."""
    commit = q.commit("job")
    part = commit.stage([1])
    attempt = q.store.layout.attempt(commit.attempt, "job")
    with monkeypatch.context() as patched:
        patched.setattr(commits, "apply", lambda *arguments: None)  # the author dies when it is decided
        commit.publish([part])
    other = Queue(q.path)
    usual, old = other.store.fs.names, [["lock"]]

    def names(path: str, strict: bool = False) -> list[str]:
        return old.pop() if path == attempt and old else usual(path, strict)

    monkeypatch.setattr(other.store.fs, "names", names)
    assert [task.payload for task in other.lease()] == [1]
    assert not old


def test_files_that_somebody_removed_are_missed(q: Queue) -> None:
    commit = q.commit("job")
    part = commit.stage(range(3), batch_tasks=1)
    next((base(q) / "staging").glob("*/*.jsonl")).unlink()
    with pytest.raises(CommitLost):
        commit.publish([part])
    assert q.status().inserted == 0
    assert list((base(q) / "commits").glob("*.json")) == []


def test_without_its_lock_an_attempt_counts_as_gone(q: Queue) -> None:
    commit = q.commit("job")
    part = commit.stage([1])
    next((base(q) / "staging").glob("*/lock")).unlink()
    with pytest.raises(CommitLost):
        commit.publish([part])
    assert commit.publish([part, commit.stage([2])]).tasks == 2, "staging once more has made it anew"


def test_a_damaged_record_is_not_taken_for_none(q: Queue) -> None:
    q.insert_many([1], commit="seed")
    (base(q) / "commits" / "seed.json").write_bytes(b"{}\n")
    with pytest.raises(StorageError, match="damaged"):
        q.insert_many([1], commit="seed")
    assert q.status().inserted == 1


def test_strangers_in_pending_hurt_nobody(q: Queue) -> None:
    """Under a proposal's name, what is no file may hide tasks: so a count names it, and all else goes on."""
    q.insert_many(WORDS, commit="seed")
    pending = base(q) / "commits" / "pending"
    (pending / "notes").write_text("notes")
    (pending / f"{'0' * 32}.json").write_bytes(b"\xff\n")
    strays = [pending / f"{'1' * 32}.json", pending / f"{'2' * 32}.json"]
    strays[0].mkdir()
    strays[1].symlink_to("/etc/passwd")
    copy = json.loads((base(q) / "commits" / "seed.json").read_bytes())
    copy["parts"][0]["attempt"] = "../../../../.."
    (pending / f"{copy['id']}.json").write_text(json.dumps(copy) + "\n")
    with pytest.raises(QueueFileLost, match=re.escape(f"{pending}/")):
        q.status()
    assert len(q.lease(9)) == 5
    assert q.lease() == []
    q.gc()
    strays[0].rmdir()
    assert strays[1].is_symlink()
    strays[1].unlink()
    assert q.status().inserted == 5


# -- names and records -----------------------------------------------------------------------------------------

uuids = st.text("0123456789abcdef", min_size=32, max_size=32)
parts_ = st.builds(Part, uuids, uuids, st.integers(0, 1 << 32), st.integers(0, 1 << 50), st.integers(0, 1 << 60))


@given(uuids, st.integers(0, (1 << 32) - 1))
def test_batches_in_a_row(first: str, index: int) -> None:
    batch = names.successor(first, index)
    assert names.parse_uuid(batch) == batch
    assert names.distance(first, batch) == index
    assert batch[:24] == first[:24]


@given(uuids, uuids)
def test_batches_of_other_parts(first: str, batch: str) -> None:
    distance = names.distance(first, batch)
    assert (distance is None) == (first[:24] != batch[:24])
    assert distance is None or names.successor(first, distance) == batch


@given(uuids, st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._=+@-]{0,199}", fullmatch=True), st.lists(parts_, max_size=4))
def test_records_are_read_as_written(identity: str, name: str, parts: list[Part]) -> None:
    record = Record(identity, name, 1_800_000_000_000, tuple(parts))
    content = record.encode()
    assert commits.parse(content) == record
    assert commits.parse(content[:-1]) is None
    assert names.parse_attempt(f"{identity}-{name}") == (identity, name)
    assert names.parse_record_file(f"{name}.json") == name


@given(st.binary() | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["op", "id", "name", "at", "parts", "attempt", "first", "files", "tasks", "bytes"]), inner),
    max_leaves=20,
).map(lambda value: json.dumps(value).encode() + b"\n"))  # fmt: skip
def test_no_bytes_lead_astray(content: bytes) -> None:
    record = commits.parse(content)
    if record is not None:
        assert names.parse_commit(record.name) == record.name
        assert all(names.parse_uuid(part.attempt) and names.parse_uuid(part.first) for part in record.parts)


@pytest.mark.parametrize("field", ["attempt", "first", "files", "tasks", "bytes"])
@pytest.mark.parametrize("value", [None, "../..", -1, 1.5, True, 1 << 33, []])
def test_a_record_with_a_field_that_makes_no_sense(field: str, value: object) -> None:
    part = {"attempt": "0" * 32, "first": "0" * 32, "files": 1, "tasks": 1, "bytes": 1}
    line = {"op": "commit", "id": "0" * 32, "name": "x", "at": 1, "parts": [part]}
    assert commits.parse(json.dumps(line).encode() + b"\n") is not None
    if not (field in ("tasks", "bytes") and value == 1 << 33):
        part[field] = value  # type: ignore[assignment]
        assert commits.parse(json.dumps(line).encode() + b"\n") is None


def test_a_move_of_the_whole_queue_leaves_its_commits_whole(q: Queue, tmp_path: Path) -> None:
    q.insert_many(WORDS, commit="seed")
    shutil.move(q.path, tmp_path / "elsewhere")
    moved = Queue(tmp_path / "elsewhere")
    assert moved.insert_many(WORDS, commit="seed") == 0


def test_what_is_staged_counts_as_inserted_when_it_was_staged(q: Queue, clock: ManualClock) -> None:
    """docs/status.md says so of the rate."""
    commit = q.commit("seed")
    part = commit.stage(range(60))
    clock.advance(50)
    commit.publish([part])
    assert q.activity(60).inserted.per_s == 1
    clock.advance(20)
    assert q.activity(60).inserted.per_s == 0
