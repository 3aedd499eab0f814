"""A commit that overwrites: at one instant all of it is there, and nothing else."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fsqueue import CommitLost, CommitReport, FsqueueError, LeaseLost, LockTimeout, Queue, StorageFull
from fsqueue.clock import Clock, ManualClock
from tests.concurrency.trapped import Trapped, needs_room, trapped
from tests.support import QueueFactory, base_of, crashes, drain, files_below, generations_of, leftovers, raised
from tests.waiting import PATIENCE_S, until, until_nothing_reaps

OLD, NEW = ["old", "older"], [f"new {number}" for number in range(5)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(time.time())


@pytest.fixture
def q(queue_factory: QueueFactory, clock: ManualClock) -> Queue:
    return with_something(Queue(queue_factory(shards=4, durability="none").path, clock=clock))


def with_something(queue: Queue) -> Queue:
    queue.insert_many(OLD, batch_tasks=1)
    return queue


def overwrite(queue: Queue, name: str = "anew") -> CommitReport:
    commit = queue.commit(name)
    return commit.publish([commit.stage(NEW[:2]), commit.stage(NEW[2:], batch_tasks=1)], overwrite=True)


def payloads(queue: Queue) -> list[Any]:
    return sorted(info.payload for info in Queue(queue.path).tasks())


def test_what_was_there_is_gone_and_what_is_new_is_there(q: Queue, clock: ManualClock) -> None:
    [held] = q.lease()
    q.insert_many(["named"], commit="before")
    report = overwrite(q)
    assert (report.tasks, report.repeated) == (5, False)
    assert q.generation == 2
    assert payloads(q) == NEW
    assert (q.status().inserted, q.status().waiting) == (5, 5)
    with pytest.raises(LeaseLost):
        held.complete()
    q.gc()
    assert generations_of(q) == [base_of(q)]
    assert q.insert_many(["named"], commit="before") == 1, "a generation's names are its own"
    drain(q, clock)
    assert leftovers(q) == []


def test_nothing_may_take_the_place_of_all(q: Queue) -> None:
    assert q.commit("empty").publish([], overwrite=True).tasks == 0
    assert (q.generation, q.status().inserted) == (2, 0)
    assert q.commit("empty").publish([], overwrite=True).repeated


def test_what_was_committed_under_the_name_is_not_repeated(q: Queue) -> None:
    overwrite(q)
    q.insert("later")
    for way in (True, False):
        commit = q.commit("anew")
        assert commit.publish([commit.stage(["again"])], overwrite=way).repeated
    q.insert_many(["x"], commit="appended")
    assert overwrite(q, "appended").repeated
    assert payloads(q) == sorted([*NEW, "later", "x"])
    q.gc()
    assert not files_below(base_of(q) / "staging")


def test_of_two_who_overwrite_the_second_is_told(q: Queue) -> None:
    first, second = q.commit("one"), q.commit("two")
    parts = first.stage(["first"]), second.stage(["second"])
    first.publish([parts[0]], overwrite=True)
    with pytest.raises(CommitLost, match="stage them again"):
        second.publish([parts[1]], overwrite=True)
    assert payloads(q) == ["first"]


@pytest.mark.parametrize("other", ["purge", "overwrite", "the same name", "append"])
def test_another_is_faster_by_a_moment(q: Queue, clock: ManualClock, other: str) -> None:
    """Between the look at the queue and its lock."""
    rival, done = Queue(q.path, clock=clock), []
    theirs = rival.commit("anew" if other in ("the same name", "append") else "other")
    part = theirs.stage(["theirs"])

    def trap(step: str, call: Any, *args: Any) -> Any:
        if step == "look" and len(args) > 1 and args[1] & os.O_APPEND and args[0].endswith("queue.jsonl") and not done:
            done.append(1)
            rival.purge() if other == "purge" else theirs.publish([part], overwrite=other != "append")
        return call(*args)

    told = raised(CommitLost, lambda: overwrite(trapped(q, trap)))
    assert done
    assert (told is None) == (other in ("the same name", "append"))
    assert payloads(q) == {"purge": [], "append": sorted(["theirs", *OLD])}.get(other, ["theirs"])


def test_an_insert_that_is_overtaken_is_made_in_the_new_generation(q: Queue, clock: ManualClock) -> None:
    other, done = Queue(q.path, clock=clock), []

    def trap(step: str, call: Any, *args: Any) -> Any:
        if step == "rename" and "/queue/" in args[1] and not done:
            done.append(overwrite(other))
        return call(*args)

    trapped(q, trap).insert("late")
    assert payloads(q) == sorted([*NEW, "late"])


def test_an_overwriting_under_way_is_no_finding(q: Queue, clock: ManualClock) -> None:
    """Its generation's directory is there before the generation: fsck waits a moment for its end."""
    found, checking = list[object](), list[threading.Thread]()
    has_looked, is_over = threading.Event(), threading.Event()

    class Settling(Clock):
        """What fsck waits for a moment for happens meanwhile."""

        def sleep(self, seconds: float) -> None:
            has_looked.set()
            assert is_over.wait(PATIENCE_S)

    def trap(step: str, call: Any, *args: Any) -> Any:
        if step == "create" and "/pending/" in args[0] and not checking:
            other = Queue(q.path, clock=Settling())
            checking.append(threading.Thread(target=lambda: found.extend(other.fsck())))
            checking[0].start()
            assert has_looked.wait(PATIENCE_S)
        return call(*args)

    try:
        overwrite(trapped(q, trap))
    finally:
        is_over.set()
    checking[0].join()
    assert not [finding for finding in found if "does not exist" in str(finding)]


@pytest.mark.parametrize("afterwards", ["again", "purge"])
def test_it_is_there_whole_or_not_at_all(queue_factory: QueueFactory, clock: ManualClock, afterwards: str) -> None:
    def build(number: int) -> Queue:
        return with_something(Queue(queue_factory(f"q{number}", shards=2).path, clock=clock))

    seen = set()
    for where, queue in crashes(build, overwrite, clock):
        fresh = Queue(queue.path, clock=clock)
        found = payloads(fresh)
        assert found in (sorted(OLD), NEW), where
        assert fresh.status().inserted == len(found), where
        seen.add((len(found), fresh.generation))
        if afterwards == "purge":
            fresh.purge()
            until_nothing_reaps()  # gc leaves to it what a purge's own reaper is at
            fresh.insert("only")
            assert payloads(fresh) == ["only"], where
        else:
            assert overwrite(fresh).repeated == (found == NEW), where
            assert payloads(fresh) == NEW, where
        clock.advance(8 * 86_400)
        assert not [finding for finding in fresh.fsck(repair=True) if not finding.repaired], where
        fresh.gc()
        drain(fresh, clock)
        assert leftovers(fresh) == [], where
    assert seen == {(2, 1), (5, 2)}


def test_on_a_full_disk_it_can_be_published_again(queue_factory: QueueFactory, clock: ManualClock) -> None:
    for number in range(1, 100):
        queue = with_something(Queue(queue_factory(f"q{number}", shards=2).path, clock=clock))
        commit = queue.commit("anew")
        part = commit.stage(NEW)
        left = [number]

        def trap(step: str, call: Any, *args: Any, left: list[int] = left) -> Any:
            if needs_room(step, args):
                left[0] -= 1
                if left[0] == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(*args)

        mine = trapped(queue, trap)
        refused = raised(FsqueueError, lambda: mine.commit("anew").publish([part], overwrite=True))  # noqa: B023
        assert refused is None or isinstance(refused, StorageFull), refused
        assert payloads(queue) in (sorted(OLD), NEW)
        commit.publish([part], overwrite=True)
        assert payloads(queue) == NEW
        if left[0] > 0:
            assert number > 8
            return
    raise AssertionError("it never ends")


@pytest.mark.once
@pytest.mark.parametrize("how", ["overwrite", "purge"])
def test_batches_that_took_inserts_are_gone_and_their_inserters_go_on_in_the_new_generation(
    queue_factory: QueueFactory, clock: ManualClock, how: str
) -> None:
    inserter = Queue(queue_factory(shards=4, durability="none", batch_tasks_max=2).path, clock=clock)
    q = Queue(inserter.path, clock=clock)
    for number in range(3):  # a batch that is sealed, and an open one
        inserter.insert(number)
    [held] = q.lease()
    if how == "overwrite":
        overwrite(q)
    else:
        q.purge()
    kept = NEW if how == "overwrite" else []
    assert payloads(q) == kept
    assert [inserter.insert(f"x {number}").inserted for number in range(3)] == [True] * 3
    assert payloads(q) == [*kept, "x 0", "x 1", "x 2"]
    assert q.status().waiting == len(kept) + 3
    with pytest.raises(LeaseLost):
        held.complete()
    q.gc()
    assert generations_of(q) == [base_of(q)]
    assert list(drain(q, clock).values()) == [1] * (len(kept) + 3)
    clock.advance(3)
    q.gc()
    assert leftovers(q) == []
    assert q.status().completed == len(kept) + 3


# -- another process publishes the same parts, without overwriting -------------------------------------------------


def staged_twice(q: Queue, clock: ManualClock, trap: Any) -> tuple[Any, Any, list[Any]]:
    """Return a commit in a trapped queue, the same one in another, and their parts."""
    appending = trapped(Queue(q.path, clock=clock), trap).commit("anew")
    overwriting = Queue(q.path, clock=clock).commit("anew", attempt=appending.attempt)
    return appending, overwriting, [overwriting.stage(NEW[:2]), overwriting.stage(NEW[2:], batch_tasks=1)]


class Died(BaseException):
    """Ends a call at a step, and each step after it."""


def is_link(step: str, args: tuple[Any, ...]) -> bool:
    return step == "link" and args[1].endswith("/anew.json")


def is_move_into_a_shard(step: str, args: tuple[Any, ...]) -> bool:
    return step == "rename" and "/staging/" in args[0] and "/queue/" in args[1]


def test_parts_that_another_process_is_moving_into_their_shards_are_not_moved_away(
    q: Queue, clock: ManualClock
) -> None:
    """It has decided. An NFS client would move a file by its directory's handle, wherever the directory is."""
    told: list[CommitReport] = []

    def trap(step: str, call: Any, *args: Any) -> Any:
        if is_move_into_a_shard(step, args) and not told:
            told.append(overwriting.publish(parts, overwrite=True))
        return call(*args)

    appending, overwriting, parts = staged_twice(q, clock, trap)
    done = appending.publish(parts)
    assert [(report.tasks, report.repeated) for report in (done, *told)] == [(5, False), (5, True)]
    assert (Queue(q.path).generation, payloads(q)) == (1, sorted([*NEW, *OLD]))
    drain(q, clock)
    assert leftovers(q) == []


def test_parts_that_another_process_is_about_to_decide_for_stay_where_they_are(q: Queue, clock: ManualClock) -> None:
    refused: list[Exception] = []

    def trap(step: str, call: Any, *args: Any) -> Any:
        if is_link(step, args):
            refused.append(raised(LockTimeout, lambda: overwriting.publish(parts, overwrite=True)))
        return call(*args)

    appending, overwriting, parts = staged_twice(q, clock, trap)
    assert not appending.publish(parts).repeated
    assert "Nothing was overwritten. Repeat the call once that process has ended." in str(refused[0])
    assert (Queue(q.path).generation, payloads(q)) == (1, sorted([*NEW, *OLD]))
    assert overwriting.publish(parts, overwrite=True).repeated
    drain(q, clock)
    assert leftovers(q) == []


def test_others_do_not_wait_meanwhile_for_the_queues_lock(q: Queue, clock: ManualClock) -> None:
    """The first wait for a proposer that lives is before the lock of queue.jsonl."""
    waits: list[str] = []

    def trap(step: str, call: Any, *args: Any) -> Any:
        if is_link(step, args):
            raised(LockTimeout, lambda: overwriting.publish(parts, overwrite=True))
        return call(*args)

    def waiting(step: str, call: Any, *args: Any) -> Any:
        got = call(*args)
        if step == "try_lock" and not got and not waits:
            waits.append(step)
            Queue(q.path, clock=clock).pause("maintenance")
        return got

    appending, overwriting, parts = staged_twice(q, clock, trap)
    overwriting.store = Queue(q.path, clock=clock, filesystem=Trapped(str(q.path), waiting)).store
    appending.publish(parts)
    assert waits
    assert Queue(q.path).paused is not None


def test_a_proposer_that_waits_for_the_attempt_is_waited_for(q: Queue) -> None:
    """It proposes under the overwriting's locks, and decides once they are given back."""
    proposers: list[threading.Thread] = []
    appended: list[CommitReport] = []
    has_locked: list[str] = []

    def trap(step: str, call: Any, *args: Any) -> Any:
        if step == "look" and args[0].endswith("/lock"):
            has_locked.append(args[0])
        if step == "names" and args[0].endswith("/pending") and has_locked and not proposers:
            proposers.append(threading.Thread(target=lambda: appended.append(appending.publish(parts))))
            proposers[0].start()
            written = partial(base_of(q).glob, "commits/pending/*.json")
            until(lambda: any(path.stat().st_size for path in written()), "a proposal that is written")
        return call(*args)

    overwriting = trapped(Queue(q.path), trap).commit("anew")
    appending = Queue(q.path).commit("anew", attempt=overwriting.attempt)
    parts = [appending.stage(NEW[:2]), appending.stage(NEW[2:], batch_tasks=1)]
    report = overwriting.publish(parts, overwrite=True)
    proposers[0].join(PATIENCE_S)
    assert [(one.tasks, one.repeated) for one in (*appended, report)] == [(5, False), (5, True)]
    assert (Queue(q.path).generation, payloads(q)) == (1, sorted([*NEW, *OLD]))


def test_a_decision_under_the_locks_counts(q: Queue, clock: ManualClock) -> None:
    """Another process has proven the parts just before they were locked, decides then, and dies before it moves one."""
    has_proven, goes_on = threading.Event(), threading.Event()
    has_locked: list[str] = []

    def theirs(step: str, call: Any, *args: Any) -> Any:
        if is_link(step, args):
            has_proven.set()
            assert goes_on.wait(PATIENCE_S)
        if is_move_into_a_shard(step, args):
            raise Died
        return call(*args)

    def mine(step: str, call: Any, *args: Any) -> Any:
        if step == "look" and args[0].endswith("/lock") and not has_locked:
            proposer.start()
            assert has_proven.wait(PATIENCE_S)
            has_locked.append(args[0])
        if step == "names" and args[0].endswith("/pending") and has_locked and not goes_on.is_set():
            goes_on.set()
            proposer.join(PATIENCE_S)
        return call(*args)

    appending, _, parts = staged_twice(q, clock, theirs)
    overwriting = trapped(Queue(q.path), mine).commit("anew", attempt=appending.attempt)
    proposer = threading.Thread(target=lambda: raised(Died, lambda: appending.publish(parts)))
    assert overwriting.publish(parts, overwrite=True).repeated
    assert goes_on.is_set()
    assert (Queue(q.path).generation, payloads(q)) == (1, sorted([*NEW, *OLD]))


@pytest.mark.parametrize("before", ["create the proposal", "lock the attempt", "link"])
def test_a_proposer_that_died_does_not_hinder(q: Queue, clock: ManualClock, before: str) -> None:
    """Its ballot is gone: a link of its own that comes late decides nothing."""
    late: list[Callable[[], object]] = []

    def trap(step: str, call: Any, *args: Any) -> Any:
        is_here = {
            "create the proposal": step == "create" and "/pending/" in args[0],
            "lock the attempt": step == "look" and args[0].endswith("/lock"),
            "link": is_link(step, args),
        }[before]
        if step in ("close", "unlock"):  # the system does that when a process dies
            return call(*args)
        if late or is_here:
            late.append(lambda: call(*args))
            raise Died
        return call(*args)

    appending, overwriting, parts = staged_twice(q, clock, trap)
    raised(Died, lambda: appending.publish(parts))
    assert late
    assert not overwriting.publish(parts, overwrite=True).repeated
    if before == "link":
        raised(FileNotFoundError, late[0])
    assert (Queue(q.path).generation, payloads(q)) == (2, NEW)
    drain(q, clock)
    q.gc()
    assert leftovers(q) == []
