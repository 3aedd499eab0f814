"""Rare verbs on a whole queue: create, purge, delete, release all."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fsqueue import (
    FsqueueError,
    Group,
    InvalidArgument,
    LeasedTask,
    LeaseLost,
    LockTimeout,
    NotAQueue,
    Queue,
    QueueExists,
    QueueFileLost,
    QueueNotFound,
    UnsafeFilesystem,
    administration,
    queues,
)
from fsqueue.clock import ManualClock
from fsqueue.filesystem import Filesystem
from fsqueue.format import layout
from tests.concurrency.books import check_sound
from tests.concurrency.trapped import trapped
from tests.levels import how_many
from tests.support import (
    Crash,
    CrashingFilesystem,
    QueueFactory,
    base_of,
    drain,
    files_below,
    generations_of,
    insert_in_file,
    leftovers,
    log_files,
    raised,
    task_file_names,
)
from tests.waiting import until


def wait_until_gone(directory: Path) -> None:
    """A reaper works in the background."""
    until(lambda: not directory.exists() or not os.listdir(directory), f"{directory} to be reaped")


# -- create ---------------------------------------------------------------------


def test_a_new_queue_is_a_directory_with_a_settings_file(tmp_path: Path) -> None:
    q = Queue.create(tmp_path / "project" / "tiles", shards=8, lease_s=30)
    assert files_below(q.path) == ["queue.jsonl"]
    assert (q.settings.shards, q.settings.lease_s, q.settings.max_attempts, q.generation) == (8, 30, 5, 1)
    assert Queue(q.path).settings == q.settings


def test_a_queue_is_not_made_twice(queue: Queue) -> None:
    queue.insert("x")
    before = (queue.path / "queue.jsonl").read_bytes()
    with pytest.raises(QueueExists, match=r"\(exist_ok=True\), or choose"):
        Queue.create(queue.path, shards=3)
    again = Queue.create(queue.path, shards=3, exist_ok=True)
    assert again.settings == queue.settings
    assert again.status().waiting == 1
    assert (queue.path / "queue.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "name", ["queue.jsonl", ".group.jsonl", f"3-{'0a' * 8}", f".fsqueue-deleted-{'0a' * 8}-{'1b' * 8}"]
)
@pytest.mark.parametrize("kind", [Queue, Group])
def test_nothing_is_made_under_a_name_that_would_mislead_who_looks_at_the_directory_above(
    tmp_path: Path, kind: type[Queue] | type[Group], name: str
) -> None:
    beside = Queue.create(tmp_path / "all" / "beside")
    with pytest.raises(InvalidArgument, match=re.escape(repr(name)) + r".*Nothing was created\. Choose another name"):
        kind.create(tmp_path / "all" / name)
    assert os.listdir(tmp_path / "all") == ["beside"]
    assert queues(tmp_path / "all") == [str(beside.path)]
    assert kind.create(tmp_path / "all" / f"{name}s").path.is_dir()


@pytest.mark.parametrize("exist_ok", [False, True])
def test_a_queue_is_not_made_over_something_else(tmp_path: Path, exist_ok: bool) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "thesis.tex").write_text("x")
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / ".git").mkdir()
    for name in ("file", "file/below", "directory", "hidden"):
        with pytest.raises(NotAQueue):
            Queue.create(tmp_path / name, exist_ok=exist_ok)
    assert files_below(tmp_path) == ["directory/thesis.tex", "file"]


def test_an_empty_directory_may_become_a_queue(tmp_path: Path) -> None:
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / ".new-0123").touch()  # of a creation that died
    (tmp_path / "q" / "doorbell").touch()  # of a queue that was deleted: somebody was late
    with pytest.raises(QueueNotFound):
        Queue(tmp_path / "q")
    Queue.create(tmp_path / "q").insert("x")


def test_a_directory_whose_settings_are_lost_is_no_place_for_a_queue(q: Queue) -> None:
    q.insert("x")
    (q.path / "queue.jsonl").unlink()
    with pytest.raises(QueueFileLost, match="holds what is left of a queue"):
        Queue.create(q.path)
    assert len(task_file_names(q)) == 1


def test_wrong_settings_make_nothing(tmp_path: Path) -> None:
    settings: list[dict[str, Any]] = [{"shards": 0}, {"batch_tasks_max": 0}, {"durability": "x"}, {"backoff_s": (2, 1)}]
    for wrong in settings:
        with pytest.raises(InvalidArgument):
            Queue.create(tmp_path / "q", **wrong)
    assert os.listdir(tmp_path) == []


def test_a_path_that_is_none_is_refused() -> None:
    for path in ("", "fq://", None, 7):
        with pytest.raises(InvalidArgument):
            Queue.create(path)  # type: ignore[arg-type]


def test_of_many_who_create_one_queue_all_get_the_same(tmp_path: Path) -> None:
    made: list[str] = []
    exists: list[QueueExists] = []

    def create(number: int) -> None:
        try:
            q = Queue.create(tmp_path / "q", shards=number + 1, exist_ok=number % 2 == 0)
            made.append(f"{q.settings.shards} {q.store.queue_state.id}")
        except QueueExists as error:
            exists.append(error)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 1
    assert len(made) + len(exists) == 8
    assert files_below(tmp_path) == ["q/queue.jsonl"]


class NoLocks(Filesystem):
    """Locks that exclude nobody, as on a mount without them."""

    def __init__(self, root: str, *, shared: bool = True) -> None:
        super().__init__(root, shared=shared)
        self.try_lock = lambda fd: True


def test_a_mount_whose_locks_do_not_exclude_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administration, "Filesystem", NoLocks)
    with pytest.raises(UnsafeFilesystem, match="flock"):
        Queue.create(tmp_path / "q")
    assert os.listdir(tmp_path) == []
    (tmp_path / "q").mkdir()
    with pytest.raises(UnsafeFilesystem, match="allow_unsafe"):
        Queue.create(tmp_path / "q")
    assert os.listdir(tmp_path / "q") == []
    Queue.create(tmp_path / "q", allow_unsafe=True)


# -- purge ----------------------------------------------------------------------


def test_a_purge_drops_everything_and_keeps_the_settings(queue_factory: QueueFactory, clock: ManualClock) -> None:
    q = Queue(queue_factory(shards=3, lease_s=77).path, clock=clock)
    q.insert_many(range(10))
    q.lease()[0].complete()
    q.lease()[0].bury("no")
    q.lease()
    q.purge()
    assert q.generation == 2
    assert q.status().as_dict() == dict.fromkeys(q.status().as_dict(), 0)
    assert q.lease() == list(q.dead()) == list(q.tasks()) == []
    assert (q.settings.shards, q.settings.lease_s) == (3, 77)
    assert not base_of(q, 1).exists()
    wait_until_gone(q.path / ".trash")
    q.insert("new")
    assert [task.payload for task in q.lease(9)] == ["new"]
    assert base_of(q, 2).exists()


def test_purging_an_empty_queue_is_harmless(q: Queue) -> None:
    q.purge()
    q.purge()
    assert q.generation == 3
    assert q.gc().as_dict()["generations_trashed"] == 0


def test_two_who_purge_at_once_purge_once(queue: Queue, clock: ManualClock) -> None:
    """What was inserted after the other's purge must not go with this one."""
    fs = Filesystem(str(queue.path), shared=False)
    look, other = fs.look, Queue(queue.path, clock=clock)

    def looking(path: str, flags: int = os.O_RDONLY) -> int:
        if path.endswith("queue.jsonl") and flags & os.O_APPEND and other.generation == 1:
            other.purge()
            other.insert("new")
        return look(path, flags)

    fs.look = looking  # type: ignore[method-assign]
    q = Queue(queue.path, filesystem=fs, clock=clock)
    q.insert("old")
    q.purge()
    assert q.generation == 2
    assert [task.payload for task in q.lease(9)] == ["new"]


def test_others_notice_a_purge_within_a_second(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(4), batch_tasks=4)
    other = Queue(q.path, clock=clock)
    held = other.lease(2)
    q.purge()
    clock.advance(1.1)
    for verb in (held[0].complete, held[1].renew, lambda: other.release(held), lambda: held[0].fail("x")):
        with pytest.raises(LeaseLost) as caught:
            verb()
        assert caught.value.reason == "purged"
    assert other.lease() == []
    other.insert("new")
    assert other.generation == 2
    assert len(q.lease(9)) == 1


def opened(q: Queue, clock: ManualClock, shared: bool) -> Queue:
    return Queue(q.path, filesystem=Filesystem(str(q.path), shared=shared), clock=clock)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("end", ["purge", "delete"])
@pytest.mark.parametrize("verb", ["complete", "complete many", "renew", "release", "fail", "bury", "poll"])
def test_a_holder_is_told_at_once_that_the_queue_was_purged_or_deleted(
    q: Queue, clock: ManualClock, verb: str, end: str, shared: bool
) -> None:
    """Not within a second: not a moment later does a verb report what never happens."""
    q.insert_many(range(4), batch_tasks=4)
    other = opened(q, clock, shared)
    held = [next(other.poll())] if verb == "poll" else other.lease(2)
    task = held[0]
    getattr(q, end)()
    acts: dict[str, Callable[[], object]] = {
        "complete": task.complete,
        "complete many": lambda: other.complete(held),
        "renew": task.renew,
        "release": lambda: other.release(held),
        "fail": lambda: task.fail("x"),
        "bury": lambda: task.bury("x"),
        "poll": task.complete,
    }
    with pytest.raises(LeaseLost) as caught:
        acts[verb]()
    assert caught.value.reason == {"purge": "purged", "delete": "the queue was deleted"}[end]


@pytest.mark.parametrize("shared", [False, True])
def test_who_looks_sees_at_once_that_the_queue_was_purged(q: Queue, clock: ManualClock, shared: bool) -> None:
    q.insert("old")
    others = [opened(q, clock, shared) for _ in range(6)]
    assert all(len(list(other.tasks())) == 1 for other in others)
    q.purge()
    new = q.insert("new").id
    looks: list[Callable[[Queue], object]] = [
        lambda other: [info.payload for info in other.tasks()] == ["new"],
        lambda other: other.peek()[0].payload == "new",
        lambda other: other.task(new).payload == "new",
        lambda other: len(other.history(new)) == 1,
        lambda other: [task.payload for task in other.lease(9)] == ["new"],
        lambda other: other.release_all() == 1 and other.cancel([new]) == 1,
    ]
    for look, other in zip(looks, others, strict=True):
        assert look(other)


@pytest.mark.batched
def test_on_a_shared_mount_a_completion_asks_the_server_once_more(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.insert_many(range(9), batch_tasks=9)
    other = opened(q, clock, True)
    asked: list[str] = []
    ask = other.store.fs.size_on_server
    monkeypatch.setattr(other.store.fs, "size_on_server", lambda path: (asked.append(path), ask(path))[1])
    for _ in range(3):
        other.lease()[0].complete()
    assert asked == [str(q.path / "queue.jsonl")] * 3


def test_the_purger_s_own_leases_are_lost_as_well(q: Queue) -> None:
    q.insert_many(range(2), batch_tasks=2)
    tasks = q.lease(2)
    q.purge()
    for verb in (tasks[0].complete, lambda: q.complete(tasks), lambda: tasks[0].complete(1)):
        with pytest.raises(LeaseLost) as caught:
            verb()
        assert caught.value.reason == "purged"
    assert q.status().inserted == 0


def test_a_generation_s_directory_is_left_to_upkeep_if_it_cannot_be_moved(
    q: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    q.insert("x")

    def failing(source: str, target: str) -> bool:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(q.store.fs, "rename", failing)
        q.purge()
    assert "No space left" in caplog.text
    assert q.status().inserted == 0
    assert base_of(q, 1).exists()
    assert q.gc().generations_trashed == 1
    assert not base_of(q, 1).exists()


# -- delete ---------------------------------------------------------------------


@pytest.mark.parametrize("foreground", [True, False])
def test_a_deleted_queue_is_gone(q: Queue, foreground: bool) -> None:
    q.insert_many(range(10))
    q.lease()
    q.delete(foreground=foreground)
    assert not q.path.exists()
    if not foreground:
        until(lambda: not os.listdir(q.path.parent), "the queue to be reaped")
    assert os.listdir(q.path.parent) == []
    for verb in (q.lease, q.status, lambda: q.insert(1), q.purge, q.gc, q.delete, lambda: Queue(q.path)):
        q.store.queue_file.forget()
        with pytest.raises(QueueNotFound):
            verb()
    assert not q.path.exists(), "nothing brings it back to life"


def test_others_notice_a_deletion(q: Queue, clock: ManualClock) -> None:
    q.insert("x")
    other = Queue(q.path, clock=clock)
    [task] = other.lease()
    q.delete(foreground=True)
    clock.advance(1.1)
    with pytest.raises(LeaseLost, match="deleted"):
        task.complete()
    with pytest.raises(QueueNotFound):
        other.lease()
    with pytest.raises(QueueNotFound):
        other.insert_many(range(3))
    assert not q.path.exists()


def test_what_a_reaper_has_left_of_a_deleted_queue_is_no_queue(q: Queue, clock: ManualClock) -> None:
    # An NFS client may look into the directory under its old name until the last of it is removed.
    other = Queue(q.path, clock=clock)
    q.delete(foreground=True)
    base_of(q).mkdir(parents=True)
    clock.advance(1.1)
    for verb in (other.lease, other.status, lambda: other.insert("x")):
        with pytest.raises(QueueNotFound):
            verb()


def test_an_insert_that_a_deletion_overtakes_is_an_error(queue: Queue, clock: ManualClock) -> None:
    fs = Filesystem(str(queue.path), shared=False)
    rename, deleted = fs.rename, []

    def renaming(source: str, target: str) -> bool:
        done = rename(source, target)
        if "/queue/" in target and not deleted:
            deleted.append(1)
            Queue(queue.path, clock=clock).delete(foreground=True)
        return done

    fs.rename = renaming  # type: ignore[method-assign]
    with pytest.raises(QueueNotFound):
        Queue(queue.path, filesystem=fs, clock=clock).insert("x")
    assert not queue.path.exists()


def test_a_queue_made_anew_at_the_same_place_is_another_one(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(5), batch_tasks=1)
    other = Queue(q.path, clock=clock)
    [task] = other.lease()
    q.delete(foreground=True)
    Queue.create(q.path, shards=3).insert("new")
    clock.advance(1.1)
    with pytest.raises(LeaseLost):
        task.complete()
    for verb in (other.lease, other.status, lambda: other.insert("x"), lambda: other.insert_many([1, 2]), other.lease):
        with pytest.raises(QueueNotFound, match="another created in its place"):
            verb()
    again = Queue(q.path, clock=clock)
    assert [found.payload for found in again.lease(9)] == ["new"]
    assert again.status().inserted == 1, "nothing of what the old object did is in the new queue"


class Successor(Filesystem):
    """Where the queue is deleted, and another created in its place, just before the n-th change of this process."""

    def __init__(self, root: str) -> None:
        super().__init__(root, shared=False)
        self.left, self.made = 0, False
        for step in ("look", "names", "create", "make_directory", "write", "pwrite", "rename", "link", "unlink"):
            setattr(self, step, partial(self._step, getattr(self, step)))

    def _is_ours(self) -> bool:
        fd = os.open(f"{self.root}/queue.jsonl", os.O_RDWR)
        try:
            return self.is_locked(fd)
        finally:
            self.close(fd)

    def _step(self, call: Callable[..., Any], *args: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return call(*args)  # a reaper's, which goes on when its verb has returned
        self.left -= 1
        if self.left == 0 and self._is_ours():
            self.left = 1  # nobody can delete it now
        elif self.left == 0:
            self.made = True
            raised(QueueNotFound, lambda: Queue(self.root).delete(foreground=True))  # it may have the mark
            Queue.create(self.root).insert_many(["new", "newer"], batch_tasks=1)
        return call(*args)


LATE: list[Callable[[Queue], object]] = [
    lambda q: q.insert("late"),
    lambda q: q.insert_many(range(3), commit="late"),
    lambda q: q.complete(q.lease(4)),
    lambda q: [task.bury("late") for task in q.lease(4)],
    lambda q: q.retry_dead(),
    lambda q: q.purge(),
    lambda q: q.delete(foreground=True),
    lambda q: q.gc(),
    lambda q: list(q.fsck(repair=True)),
]


FSCK = 8
"""Which of them that is: it takes as many steps as all others together."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("late", range(len(LATE)))
def test_who_is_late_does_nothing_to_the_queue_in_place_of_a_deleted_one(tmp_path: Path, late: int) -> None:
    """At whichever step of his: its tasks, counts, letters and directories are its own."""
    for number in range(1, 1000, how_many(21 if late == FSCK else 7, 1)):  # tests/simulation does so at each call
        with Queue.create(tmp_path / f"{number}" / "q") as before:
            before.insert_many(range(4), batch_tasks=2)
            before.lease()[0].bury("dead")
        fs, clock = Successor(str(before.path)), ManualClock(time.time())
        with Queue(before.path, filesystem=fs, clock=clock) as mine:
            fs.left = number
            refused = raised(FsqueueError, lambda: LATE[late](mine))
        assert fs.made or refused is None
        if not fs.made:
            assert number > (2 if late == 6 else 5)  # what `delete` does under the lock nobody can come between
            return
        after = Queue(before.path, clock=clock)
        assert (after.status().inserted, after.status().waiting) == (2, 2)
        assert sorted(task.payload for task in after.lease(9)) == ["new", "newer"]
        assert generations_of(after) == [base_of(after)]
        assert [finding for finding in after.fsck() if finding.kind != "trash"] == []
        shutil.rmtree(before.path.parent)
    raise AssertionError("it never ends")


def test_a_generation_that_a_cleaner_removed_comes_back(q: Queue) -> None:
    """Scratch space is cleared of empty directories."""
    for insert in (lambda: q.insert_many([1, 2]), lambda: q.insert_many([3, 4], commit="more")):
        shutil.rmtree(base_of(q), ignore_errors=True)
        insert()
        assert len(q.lease(9)) == 2


@pytest.mark.parametrize("way", ["open", "create", "create again"])
def test_a_deletion_that_died_after_its_mark_is_finished_by_whoever_comes(q: Queue, way: str) -> None:
    q.insert("x")
    with open(q.path / "queue.jsonl", "ab") as file:
        file.write(layout.closed_record(1))
    if way == "open":
        with pytest.raises(QueueNotFound):
            Queue(q.path)
    else:
        made = Queue.create(q.path, exist_ok=way == "create again")
        assert made.status().inserted == 0
        assert made.generation == 1


# -- release all -------------------------------------------------------------------


def workers(path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> dict[str, Queue]:
    found = {}
    for name, job in (("a", "1"), ("b", "1"), ("c", "2")):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        found[name] = Queue(path, worker=name, clock=clock)
    monkeypatch.delenv("SLURM_JOB_ID")
    return found


@pytest.mark.parametrize("name", ["job", "slurm_job"])
def test_leases_of_an_array_its_element_or_a_node_are_ended(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    q.insert_many(range(8), batch_tasks=2)
    for index in ("1", "10", "11"):
        monkeypatch.setenv("SLURM_JOB_ID", f"50{index}")
        monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "50")
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", index)
        monkeypatch.setenv("SLURMD_NODENAME", f"node{index}")
        Queue(q.path, clock=clock).lease(2)
    assert q.release_all(**{name: "5"}) == 0
    assert q.release_all(**{name: "50_1"}) == 2
    assert q.release_all(host="node11") == 2
    assert q.release_all(host="node1") == 0
    assert q.release_all(**{name: "50"}) == 2


def test_leases_are_ended_by_worker_host_or_job(q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    found = workers(q.path, clock, monkeypatch)
    q.insert_many(range(12), batch_tasks=4)
    held = {name: worker.lease(2) for name, worker in found.items()}
    assert q.status().leased == 6
    assert q.release_all(worker="nobody") == 0
    assert q.release_all(host="elsewhere") == 0
    assert q.release_all(worker="a") == 2
    with pytest.raises(LeaseLost):
        held["a"][0].complete()
    held["b"][0].complete()
    assert q.release_all(slurm_job="1") == 1
    assert q.release_all(worker="c", slurm_job="1") == 0
    assert q.release_all(worker="c", host=os.uname().nodename) == 2
    assert q.status().leased == 0
    assert all(info.attempt == 0 for info in q.tasks())
    clock.advance(5)
    assert sum(drain(q, clock).values()) == 11
    assert leftovers(q) == []


@pytest.mark.parametrize("offline", [True, False])
def test_all_leases_are_ended_and_the_tasks_are_there_at_once(q: Queue, clock: ManualClock, offline: bool) -> None:
    q.insert_many(range(9), batch_tasks=3)
    Queue(q.path, clock=clock).lease(5)
    bell = q.store.doorbell.read()
    assert q.release_all(offline=offline) == 5
    assert q.store.doorbell.read() != bell
    assert q.release_all(offline=offline) == 0
    assert len(Queue(q.path, clock=clock).lease(20)) == 9


def test_leases_that_ran_out_are_ended_uncharged(q: Queue, clock: ManualClock) -> None:
    q.insert("x")
    q.lease(lease_s=1)
    clock.advance(5)
    assert q.release_all() == 0  # nothing that was in time
    assert q.lease()[0].attempt == 1


@pytest.mark.parametrize("offline", [True, False])
def test_a_batch_that_stays_locked_is_named_and_the_others_are_released(
    q: Queue, clock: ManualClock, offline: bool
) -> None:
    q.insert_many(range(2), batch_tasks=1)
    q.lease(2)
    stopped = Queue(q.path, clock=clock)
    [log, _other] = log_files(q)
    fd = stopped.store.fs.look(str(log), os.O_RDWR)
    assert stopped.store.fs.try_lock(fd)
    before = clock.now_s
    other = Queue(q.path, clock=clock)
    with pytest.raises(LockTimeout, match=f"Leases released: 1. But 1 batch stayed.*{log.stem}"):
        other.release_all(offline=offline)
    assert (clock.now_s - before >= 20) != offline
    assert q.status().leased == 1
    stopped.store.fs.close(fd)
    assert other.release_all() == 1


def noting_syncs(paths: list[str]) -> Callable[..., Any]:
    """A trap that appends to `paths` what is synced."""

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if step == "fsync":
            paths.append(os.readlink(f"/proc/self/fd/{args[0]}"))
        return call(*args)

    return trap


def test_who_inserts_into_a_new_generation_has_its_beginning_on_disk(queue: Queue) -> None:
    """Its author may not have synced it yet: a power loss would bring back the generation before, without the task."""
    steps: list[str] = []
    with trapped(queue, noting_syncs(steps)) as mine:
        mine.insert(1)
        assert f"{queue.path}/queue.jsonl" not in steps
        queue.purge()
        mine.insert(2)
        assert steps.count(f"{queue.path}/queue.jsonl") == 1
        mine.insert(3)
        assert steps.count(f"{queue.path}/queue.jsonl") == 1
        overwrite = queue.commit("anew")
        overwrite.publish([overwrite.stage(["x"])], overwrite=True)
        mine.insert(4)
        assert steps.count(f"{queue.path}/queue.jsonl") == 2


def test_who_inserts_into_a_queue_or_finds_it_there_has_its_name_on_disk(queue: Queue) -> None:
    """Its creator may not have come so far yet: a power loss would take the queue, with what was inserted."""
    synced: list[str] = []
    with trapped(queue, noting_syncs(synced)) as mine:
        mine.insert(1)
        assert {str(queue.path), str(queue.path.parent)} <= set(synced)
        synced.clear()
        mine.insert(2)
        assert str(queue.path) not in synced, "once is enough"
    real = os.fsync
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd)))
        Queue.create(queue.path, exist_ok=True)
    assert {str(queue.path), str(queue.path.parent)} <= set(synced)


@pytest.mark.parametrize("end", [Queue.purge, partial(Queue.delete, foreground=True)], ids=["purge", "delete"])
@pytest.mark.parametrize("last", [LeasedTask.complete, lambda task: task.bury("no")], ids=["complete", "bury"])
def test_a_batch_that_is_purged_while_it_finishes_is_nothing_to_warn_of(
    q: Queue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    end: Callable[[Queue], None],
    last: Callable[[LeasedTask], None],
) -> None:
    """'fsqueue gc' cannot do it any more, and need not."""
    monkeypatch.setattr(administration, "reap_later", lambda store: None)
    insert_in_file(q, "x")
    [task] = q.lease()
    fsync, times = q.store.fs.fsync, itertools.count()

    def purging(fd: int) -> None:
        if next(times) == 0:  # the outcome is recorded, and the rest is to come
            end(Queue(q.path))
        fsync(fd)

    monkeypatch.setattr(q.store.fs, "fsync", purging)
    last(task)
    assert next(times) > 0, "it was purged meanwhile"
    assert [record.getMessage() for record in caplog.records if "gc" in record.getMessage()] == []


@pytest.mark.parametrize(("existing", "torn"), [(False, False), (True, True)])
def test_a_crash_at_any_step_of_create_leaves_a_queue_or_what_creating_again_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool, torn: bool
) -> None:
    """docs/design.md, section 4.1."""
    crashed: list[str] = []
    for at in itertools.count(1):
        path = tmp_path / f"q{at}"
        if existing:
            path.mkdir()
        made: list[CrashingFilesystem] = []

        def dying(root: str, shared: bool, at: int = at, made: list[CrashingFilesystem] = made) -> CrashingFilesystem:
            made.append(CrashingFilesystem(root, at=at, torn=torn, shared=shared))
            return made[-1]

        with monkeypatch.context() as patched, suppress(Crash):
            patched.setattr(administration, "Filesystem", dying)
            Queue.create(path, shards=7)
        is_dead = made[0].dead
        for fs in made:
            fs.bury()
        if (path / "queue.jsonl").exists():
            with pytest.raises(QueueExists):
                Queue.create(path, shards=9)
            queue = Queue(path)
            assert queue.settings.shards == 7
        else:
            assert is_dead
            queue = Queue.create(path, shards=9)
            assert queue.settings.shards == 9
        queue.insert("x")
        assert [task.payload for task in queue.lease(5)] == ["x"]
        check_sound(queue)
        if not is_dead:
            break
        crashed.append(made[0].log[-1].partition(" ")[0])
    assert {"create", "link", "unlink", "write"} <= set(crashed)
    assert ("mkdir" in crashed) != existing
