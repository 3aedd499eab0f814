"""`mv` leaves each task at exactly one of the two queues, if processes are killed and if workers go on."""

from __future__ import annotations

import itertools
import json
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsqueue_cli.moving import Mover

import fsqueue
from fsqueue import Group, Queue, Task
from fsqueue.clock import ManualClock
from fsqueue.format import names
from fsqueue.protocol import parcels
from tests.cli.conftest import Run, Spawn
from tests.support import Crash, CrashingFilesystem
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once
DUE = 2_000_000_000.0
KINDS = {"to another queue": False, "within a group": True}


class Pair:
    """A queue with tasks, one of them delayed and one leased, and another one, empty: in one group, or apart."""

    def __init__(self, home: Path, clock: ManualClock, in_group: bool) -> None:
        self.home, self.clock, self.in_group = home, clock, in_group
        if in_group:
            Group.create(home, shards=1, durability="none")
        else:
            for name in ("src", "dst"):
                Queue.create(home / name, shards=1, durability="none")
        src = self.queue("src")
        src.insert("held")
        [self.held] = src.lease(lease_s=1e6)
        src.insert_many([Task(1), Task(2, priority=7), Task(b"4")], batch_tasks=3)
        src.insert(3, available_at=DUE)
        src.insert(5)

    def queue(self, name: str, fs: Any = None) -> Queue:
        if self.in_group:
            return Group(self.home)[name]
        return Queue(self.home / name, clock=self.clock, filesystem=fs)

    def mover(self, source: Any = None, target: Any = None) -> Mover:
        return Mover(self.queue("src", source), self.queue("dst", target), (), False)

    def filesystem(self, name: str, at: int, torn: bool = False) -> CrashingFilesystem:
        return CrashingFilesystem(str(self.home / name), at=at, torn=torn)


def found(queue: Queue, *states: str) -> Counter[Any]:
    """Return the payloads of a queue's unfinished tasks."""
    return Counter(task.payload for task in queue.tasks() if not states or task.state in states)


ALL = Counter[Any]([1, 2, 3, b"4", 5])


def check_moved(pair: Pair, is_exact: bool = True) -> None:
    """All tasks that wait are at the target, each once, as they were."""
    src, dst = pair.queue("src"), pair.queue("dst")
    assert found(src) == Counter(["held"])
    assert found(dst) == ALL
    about = {task.payload: task for task in dst.tasks()}
    assert about[2].priority == 7
    if is_exact:
        assert (about[3].state, about[3].available_at) == ("delayed", DUE)
    pair.held.complete()
    src.gc()  # a batch may have been killed on its way out
    dst.gc()
    kinds = {finding.kind for finding in (*src.fsck(), *dst.fsck())}
    assert kinds <= {"repeated-history"}  # of a process that died while it cleared a batch away


@pytest.mark.parametrize("in_group", KINDS.values(), ids=KINDS)
def test_all_that_wait_are_moved(tmp_path: Path, in_group: bool) -> None:
    pair = Pair(tmp_path / "home", ManualClock(), in_group)
    mover = pair.mover()
    mover.run()
    assert (mover.moved, mover.leased, mover.keyed, mover.elsewhere) == (5, 1, 0, 0)
    check_moved(pair)
    again = pair.mover()
    again.run()
    assert again.moved == 0


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("side", ["src", "dst"])
def test_killed_at_each_change_of_the_disk(tmp_path: Path, clock: ManualClock, side: str, torn: bool) -> None:
    """What the target has, no worker of the source gets. The same command goes on."""
    for at in itertools.count(1):
        pair = Pair(tmp_path / f"{at}", clock, False)
        fs = pair.filesystem(side, at, torn)
        try:
            pair.mover(*((fs, None) if side == "src" else (None, fs))).run()
        except Crash:
            assert fs.dead
        fs.bury()
        src, dst = found(pair.queue("src"), "waiting", "delayed"), found(pair.queue("dst"))
        assert not src & dst, fs.log[-1]
        if torn:  # half of the append that holds may have been the change of the time
            assert found(pair.queue("src"), "delayed") <= Counter([3])
        pair.mover().run()
        check_moved(pair, is_exact=not torn)
        if not fs.dead:
            break
    assert at > 8


class ActingFilesystem(CrashingFilesystem):
    """Calls a function before one of its changes of the disk."""

    act: Callable[[], object] = staticmethod(lambda: None)

    def change(self, what: str, half: Callable[[], object] | None = None) -> None:
        self.step += 1
        if self.step == self.at:
            self.act()


def acting(pair: Pair, side: str, at: int, act: Callable[[], object]) -> tuple[Mover, ActingFilesystem]:
    fs = ActingFilesystem(str(pair.home / side), at=at)
    fs.act = act  # type: ignore[method-assign]
    return pair.mover(*((fs, None) if side == "src" else (None, fs))), fs


@pytest.mark.parametrize("side", ["src", "dst"])
def test_a_worker_of_the_source_goes_on_at_each_step(tmp_path: Path, clock: ManualClock, side: str) -> None:
    """Also ten days later: no lease of the mover has run out by then."""
    done = Counter[Any]()

    def work() -> None:
        clock.advance(864_000)
        for task in pair.queue("src").lease(2):
            task.complete()
            done[task.payload] += 1

    for at in itertools.count(1):
        pair = Pair(tmp_path / f"{at}", clock, False)
        done.clear()
        mover, fs = acting(pair, side, at, work)
        mover.run()
        assert done + found(pair.queue("dst")) == ALL
        assert mover.moved == ALL.total() - done.total()
        if fs.step < at:
            break
    assert at > 8


@pytest.mark.parametrize("side", ["src", "dst"])
def test_a_second_mover_at_each_step_of_the_first(tmp_path: Path, clock: ManualClock, side: str) -> None:
    def move() -> None:
        try:
            other.run()
        except fsqueue.LockTimeout:
            pass  # the first one has the lock of a log: this one ends, as if it were killed

    for at in itertools.count(1):
        pair = Pair(tmp_path / f"{at}", clock, False)
        other = pair.mover()
        mover, fs = acting(pair, side, at, move)
        mover.run()
        assert found(pair.queue("dst")) + found(pair.queue("src"), "waiting", "delayed") == ALL
        assert mover.moved + other.moved + mover.returned == 5
        pair.mover().run()
        check_moved(pair)
        fs.bury()
        if fs.step < at:
            break
    assert at > 8


def test_a_refused_parcel_is_given_back_as_it_was(tmp_path: Path, clock: ManualClock) -> None:
    pair = Pair(tmp_path / "home", clock, False)
    pair.queue("src").insert("x" * 3000)
    small = Queue.create(tmp_path / "small", task_bytes_max=1000, shards=1)
    for _ in range(2):
        with pytest.raises(fsqueue.TaskTooLarge):
            Mover(pair.queue("src"), small, (), False).run()
        there = found(pair.queue("src"), "waiting", "delayed") + found(small)
        assert there == ALL + Counter(["x" * 3000])
        assert [task.available_at for task in (*pair.queue("src").tasks(), *small.tasks()) if task.payload == 3] == [
            DUE
        ]


def test_a_parcel_that_was_refused_by_a_mover_that_died_is_given_back(tmp_path: Path, clock: ManualClock) -> None:
    """It has used the name up. Another mover of the same parcel inserts nothing under it."""
    pair = Pair(tmp_path / "home", clock, False)
    mover = pair.mover()
    to = mover._destination()
    batch, index = names.parse_task_id(next(task.id for task in pair.queue("src").tasks() if task.payload == 3))
    parcel = parcels.hold(pair.queue("src").store, batch, range(4), to, "host")
    assert parcel is not None
    assert parcel.due == {index: DUE * 1000}
    assert found(pair.queue("src"), "waiting", "delayed") == Counter([1, 2, b"4"])
    pair.queue("dst").commit(parcel.commit).publish([])
    mover._go_on_with(to)
    assert found(pair.queue("src"), "waiting", "delayed") == ALL
    assert found(pair.queue("dst")) == Counter()
    pair.mover().run()
    check_moved(pair)


def hold_all(pair: Pair) -> None:
    """Do what a mover does that is killed once it holds all."""
    mover = pair.mover()
    to = mover._destination()
    for batch in {names.parse_task_id(task.id)[0] for task in pair.queue("src").tasks()}:
        parcels.hold(pair.queue("src").store, batch, range(8), to, "host")


def test_a_target_that_was_purged_meanwhile(tmp_path: Path, clock: ManualClock, fsqueue_cli: Run) -> None:
    pair = Pair(tmp_path / "home", clock, False)
    hold_all(pair)
    pair.queue("dst").purge()
    src, dst = (str(pair.home / name) for name in ("src", "dst"))
    refused = fsqueue_cli("mv", src, dst, code=fsqueue.QueuePurged.exit_code)
    assert "5 tasks" in refused.stderr
    assert found(pair.queue("src"), "waiting", "delayed") == Counter()
    assert f"release-all {src} --worker 'mv to {dst}'" in refused.stderr
    assert fsqueue_cli("release-all", src, "--worker", f"mv to {dst}", "--yes").stdout == "5\n"
    assert fsqueue_cli("mv", src, dst).stdout == "5\n"
    assert found(pair.queue("dst")) == ALL


@pytest.mark.parametrize("is_made_anew", [True, False])
def test_a_target_that_was_deleted_meanwhile(
    tmp_path: Path, fsqueue_cli: Run, monkeypatch: pytest.MonkeyPatch, is_made_anew: bool
) -> None:
    pair = Pair(tmp_path / "home", ManualClock(time.time()), False)
    hold_all(pair)
    pair.queue("dst").delete(foreground=True)
    code = fsqueue.QueueNotFound.exit_code
    if is_made_anew:
        Queue.create(pair.home / "dst")
        code = fsqueue.QueuePurged.exit_code
    src, dst = (str(pair.home / name) for name in ("src", "dst"))
    refused = fsqueue_cli("mv", src, dst, code=code)
    assert "5 tasks" in refused.stderr
    assert f"release-all {src} --worker 'mv to {dst}'" in refused.stderr
    assert found(pair.queue("src"), "waiting", "delayed") == Counter()
    monkeypatch.chdir(pair.home)
    assert fsqueue_cli("release-all", "src", "--worker", "mv to dst", "--yes").stdout == "5\n"
    assert found(pair.queue("src"), "waiting", "delayed") == ALL


def test_targets_whose_long_paths_begin_alike_are_told_apart(tmp_path: Path, fsqueue_cli: Run) -> None:
    """Else a move to one is refused while tasks are held for the other, with advice that doubles those."""
    pair = Pair(tmp_path / "home", ManualClock(time.time()), False)
    home = tmp_path / ("a" * 120) / ("b" * 120)
    home.mkdir(parents=True)
    one, other = (Queue.create(home / name) for name in ("one", "other"))
    mover = pair.mover()
    mover.dst = one
    batch, _ = parcels.place(next(task.id for task in pair.queue("src").tasks() if task.payload == 5))
    held = parcels.hold(pair.queue("src").store, batch, range(8), mover._destination(), "host")
    assert held is not None
    assert fsqueue_cli("mv", str(pair.home / "src"), str(other.path)).stdout == f"{5 - len(held.tasks)}\n"
    one.delete(foreground=True)
    refused = fsqueue_cli("mv", str(pair.home / "src"), str(one.path), code=fsqueue.QueueNotFound.exit_code)
    assert f"--worker 'mv to {one.path}'" in refused.stderr
    given_back = fsqueue_cli("release-all", str(pair.home / "src"), "--worker", f"mv to {one.path}", "--yes")
    assert given_back.stdout == f"{len(held.tasks)}\n"


@pytest.mark.parametrize("options", [[], ["--host", "host"], ["--host", "host", "--offline"]])
def test_leases_of_a_move_are_not_released_with_others(tmp_path: Path, fsqueue_cli: Run, options: list[str]) -> None:
    """The target may have the tasks: they would be done at both queues."""
    pair = Pair(tmp_path / "home", ManualClock(time.time()), False)
    hold_all(pair)
    src, dst = (str(pair.home / name) for name in ("src", "dst"))
    done = fsqueue_cli("release-all", src, *options, "--yes")
    assert done.stdout == ("0\n" if options else "1\n")
    assert f"5 tasks left alone, on the way to {dst}. To go on: fsqueue mv {src} {dst}" in done.stderr
    fsqueue_cli("mv", src, dst)
    assert {1, 2, 3, 5} <= {task.payload for task in pair.queue("dst").tasks()}


def test_after_an_error_a_move_says_what_is_held_and_what_is_not(
    tmp_path: Path, fsqueue_cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    src, dst = Queue.create(tmp_path / "src"), Queue.create(tmp_path / "dst", task_bytes_max=1_000)
    src.insert_many(["x" * 2_000, "y"], batch_tasks=2)
    refused = fsqueue_cli("mv", src.path, dst.path, code=fsqueue.TaskTooLarge.exit_code)
    assert "all others are at" in refused.stderr
    assert "--where can leave out those that cannot move" in refused.stderr
    assert src.status().waiting == 2
    end = parcels.end

    def fails(*args: Any) -> int:
        raise fsqueue.StorageError("It failed.")

    monkeypatch.setattr(parcels, "end", fails)
    refused = fsqueue_cli("mv", src.path, dst.path, "--where", "payload=y", code=fsqueue.StorageError.exit_code)
    assert f"1 task of {src.path} is held until then" in refused.stderr
    monkeypatch.setattr(parcels, "end", end)
    assert fsqueue_cli("mv", src.path, dst.path, "--where", "payload=y").stdout == "1\n"
    assert dst.status().waiting == 1


def test_a_target_that_had_the_parcel_and_another_target(tmp_path: Path, clock: ManualClock, fsqueue_cli: Run) -> None:
    pair = Pair(tmp_path / "home", clock, False)
    hold_all(pair)
    other = Queue.create(tmp_path / "other")
    src, dst = (str(pair.home / name) for name in ("src", "dst"))
    done = fsqueue_cli("mv", src, other.path, "--json", code=3)
    assert json.loads(done.stdout) == {
        "moved": 0,
        "leased": 1,
        "keyed": 0,
        "merged": 0,
        "elsewhere": 5,
        "returned": 0,
        "held": 0,
    }
    assert f"To go on: fsqueue mv {src} {dst}" in done.stderr
    assert f"mv to {dst}" in fsqueue_cli("workers", src, "--json").stdout
    assert fsqueue_cli("mv", src, dst).stdout == "5\n"
    check_moved(pair)


def test_the_source_may_be_paused_and_limited(tmp_path: Path, clock: ManualClock, fsqueue_cli: Run) -> None:
    pair = Pair(tmp_path / "home", ManualClock(time.time()), False)
    src, dst = (str(pair.home / name) for name in ("src", "dst"))
    fsqueue_cli("set", src, "max_leased=1")
    fsqueue_cli("pause", src)
    fsqueue_cli("pause", dst)
    assert fsqueue_cli("mv", src, dst).stdout == "5\n"
    assert found(pair.queue("dst")) == ALL


def test_keys(tmp_path: Path, fsqueue_cli: Run) -> None:
    """They go with their tasks within a group, and nowhere else."""
    group = Group.create(tmp_path / "g")
    group["a"].insert({"n": 1}, key="k")
    group["a"].insert({"n": 2}, key="l")
    group["b"].insert({"n": 3}, key="l")
    out = Queue.create(tmp_path / "out")
    done = fsqueue_cli("mv", f"{group.path}/a", f"{group.path}/b", "--json")
    assert json.loads(done.stdout) == {
        "moved": 2,
        "leased": 0,
        "keyed": 0,
        "merged": 1,
        "elsewhere": 0,
        "returned": 0,
        "held": 0,
    }
    assert {(task.key, task.payload["n"]) for task in group["b"].tasks()} == {("k", 1), ("l", 3)}
    stays = fsqueue_cli("mv", f"{group.path}/b", out.path, code=3)
    assert "2 tasks with keys stayed" in stays.stderr
    assert fsqueue_cli("mv", f"{group.path}/b", out.path, "--drop-keys", "--where", "payload.n=3").stdout == "1\n"
    assert [(task.key, task.payload) for task in out.tasks()] == [(None, {"n": 3})]
    assert group["b"].insert({"n": 4}, key="l").inserted  # it is free again


def test_between_two_filesystems(tmp_path: Path, fsqueue_cli: Run) -> None:
    """From a disk to memory, and back."""
    src = Queue.create(tmp_path / "src")
    src.insert_many(range(50))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        assert os.stat(other).st_dev != os.stat(tmp_path).st_dev
        dst = Queue.create(f"{other}/dst")
        assert fsqueue_cli("mv", src.path, dst.path).stdout == "50\n"
        assert fsqueue_cli("mv", dst.path, src.path, "--where", "payload<20").stdout == "20\n"
        assert sorted(found(dst)) == [*range(20, 50)]
    assert sorted(found(src)) == [*range(20)]


def test_large_payloads_within_a_group(tmp_path: Path, fsqueue_cli: Run) -> None:
    """An update does not take them: they go as between any two queues."""
    group = Group.create(tmp_path / "g")
    group["a"].insert_many(["x" * 100_000, 1])
    assert fsqueue_cli("mv", f"{group.path}/a", f"{group.path}/b").stdout == "2\n"
    assert found(group["b"]) == Counter(["x" * 100_000, 1])
    assert group["a"].status().inserted == 0


def test_what_is_refused(tmp_path: Path, fsqueue_cli: Run, spawn: Spawn) -> None:
    src = Queue.create(tmp_path / "src")
    (tmp_path / "link").symlink_to(src.path)
    assert "are one queue" in fsqueue_cli("mv", src.path, tmp_path / "link", code=2).stderr
    assert "mv takes paths" in fsqueue_cli("mv", src.path, "http://localhost:1/q", code=2).stderr
    fsqueue_cli("mv", src.path, tmp_path / "missing", code=5)
    fsqueue_cli("mv", tmp_path / "missing", src.path, code=5)
    os.system(f"cp -r {src.path} {tmp_path}/copy")
    assert "is a copy of" in fsqueue_cli("mv", src.path, tmp_path / "copy", code=1).stderr


@pytest.mark.parametrize("in_group", KINDS.values(), ids=KINDS)
def test_each_task_is_done_once_while_movers_are_killed_and_workers_go_on(
    tmp_path: Path, spawn: Spawn, in_group: bool
) -> None:
    group = Group.create(tmp_path / "g", shards=2)
    src, dst = (group[name] if in_group else Queue.create(tmp_path / name, shards=2) for name in ("src", "dst"))
    dst.insert("so that its worker goes on", delay_s=3600)
    paths = [f"{group.path}/{name}" if in_group else str(tmp_path / name) for name in ("src", "dst")]
    for n in range(0, 200, 20):
        src.insert_many([Task({"n": n + i}, priority=i % 3) for i in range(20)], batch_tasks=20)
    did = tmp_path / "did"
    script = ("--", "sh", "-c", f'jq -r .n >>"{did}"')
    workers = [spawn("run", path, *script) for path in paths]
    for _ in range(8):
        mover, before = spawn("mv", *paths), dst.status().inserted
        until(lambda m=mover, n=before: m.poll() is not None or dst.status().inserted > n, "it has moved some")
        mover.send_signal(signal.SIGKILL)
        mover.wait(PATIENCE_S)
    last = spawn("mv", *paths)
    assert last.wait(PATIENCE_S) in (0, 3)
    until(lambda: (src.status().remaining, dst.status().remaining) == (0, 1), "all is done")
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=PATIENCE_S)
    assert sorted(map(int, did.read_text().split())) == list(range(200))
