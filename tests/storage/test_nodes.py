"""Nodes on which tasks fail one after the other."""

from __future__ import annotations

import hashlib
import logging
import threading
from pathlib import Path

import pytest

from fsqueue import Queue
from fsqueue.clock import ManualClock
from fsqueue.errors import InvalidArgument
from fsqueue.storage.nodes import REASON_CHARS_MAX, NodeFailures, admit, failing
from fsqueue.upkeep.collect import NODE_AGE_S
from tests.support import QueueFactory, base_of, crashes, opened

pytestmark = pytest.mark.once


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def used(queue: Queue) -> Queue:
    """A queue whose generation has begun."""
    queue.insert("x")
    return queue


def node_file(queue: Queue) -> Path:
    [file] = Path(queue.store.layout.nodes).iterdir()
    return file


def test_a_node_is_excluded_after_so_many_failures_in_a_row(used: Queue) -> None:
    streak = NodeFailures(used.store, 3)
    for _ in range(2):
        streak.failed("no such device")
    assert streak.excluded() is None
    streak.failed("no such device")
    why = streak.excluded()
    assert why is not None
    assert "the last 3 failed there (no such device)" in why
    assert f"--admit {streak.node}" in why


def test_a_success_ends_the_streak_and_the_exclusion(used: Queue) -> None:
    streak = NodeFailures(used.store, 2)
    streak.failed()
    streak.succeeded()
    streak.failed()
    assert streak.excluded() is None
    streak.failed()
    assert streak.excluded() is not None
    streak.succeeded()
    assert streak.excluded() is None
    assert failing(used.store) == []


def test_workers_of_a_node_count_together_and_those_of_another_do_not(
    used: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = NodeFailures(used.store, 2), NodeFailures(Queue(used.path).store, 2)
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURMD_NODENAME", "elsewhere")
    elsewhere = NodeFailures(Queue(used.path).store, 2)
    one.failed()
    other.failed()
    elsewhere.failed()
    assert one.excluded()
    assert other.excluded()
    assert elsewhere.excluded() is None
    other.succeeded()
    assert one.excluded() is None
    assert [(node.node, node.failures) for node in failing(used.store)] == [("elsewhere", 1)]


@pytest.mark.parametrize("name", ["../../queue.jsonl", "a/b", ".", "x" * 5000, "nöde\n\x1b[2J", " "])
def test_hostile_names_of_nodes(used: Queue, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    streak = NodeFailures(used.store, 1)
    streak.node = name
    streak.failed("why")
    assert streak.excluded()
    assert node_file(used).parent.name == "nodes"
    assert [node.node for node in failing(used.store)] == [name]
    assert list(used.fsck()) == []
    assert admit(used.store, name)
    assert streak.excluded() is None


def test_what_nobody_can_record_is_left_out_of_a_worker(used: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURMD_NODENAME", "bad\udcff")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "x" * 10_000)
    worker = Queue(used.path).store.worker
    assert worker["slurm_job"] == "7"
    assert "slurm_node" not in worker
    assert "slurm_cluster" not in worker


def test_a_death_between_the_steps_leaves_nothing_that_misleads(used: Queue) -> None:
    streak = NodeFailures(used.store, 2)
    path = used.store.layout.node(streak.node)
    used.store.fs.close(used.store.fs.open_append(path))  # died before its line was written
    assert streak.excluded() is None
    assert failing(used.store) == []
    Path(path).write_bytes(b'{"op":"failed","at":1')  # ... or while it was
    assert streak.excluded() is None
    streak.failed()
    assert streak.excluded() is None
    streak.failed()
    assert streak.excluded()
    streak.succeeded()
    assert failing(used.store) == []


def test_a_death_at_any_step_leaves_a_count_that_the_next_success_ends(
    queue_factory: QueueFactory, clock: ManualClock
) -> None:
    def build(number: int) -> Queue:
        q = queue_factory(f"q{number}")
        q.insert("x")
        return q

    def act(worker: Queue) -> None:
        streak = NodeFailures(worker.store, 2)
        streak.failed()
        streak.succeeded()
        streak.failed()

    for where, q in crashes(build, act, clock):
        streak = NodeFailures(q.store, 2)
        assert streak.excluded() is None, where
        streak.failed()
        streak.failed()
        assert streak.excluded(), where
        streak.succeeded()
        assert failing(q.store) == [], where
        assert list(q.fsck()) == [], where


def test_a_failure_waits_for_a_success_and_is_counted_anew(used: Queue) -> None:
    """The file is removed between the failing worker's opening and its lock."""
    streak = NodeFailures(used.store, 1)
    streak.failed("before")
    path = used.store.layout.node(streak.node)
    with used.store.locked_existing(path, 1):
        late = threading.Thread(target=NodeFailures(Queue(used.path).store, 1).failed, args=("after",))
        late.start()
        while opened(Path(path)) < 2:
            assert late.is_alive()
        used.store.fs.unlink(path)
    late.join()
    assert [node.reason for node in failing(used.store)] == ["after"]


def test_a_purge_admits_all_nodes(used: Queue) -> None:
    streak = NodeFailures(used.store, 1)
    streak.failed()
    used.purge()
    assert streak.excluded() is None
    streak.failed()  # nothing comes back to life
    assert streak.excluded() is None


def test_gc_forgets_what_failed_a_week_ago(used: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    q = Queue(used.path, clock=clock)
    streak = NodeFailures(q.store, 1)
    streak.failed()
    clock.advance(NODE_AGE_S - 1)
    q.gc()
    assert streak.excluded()
    clock.advance(2)
    q.gc()
    assert streak.excluded() is None


def test_strays_among_the_nodes_are_found(used: Queue) -> None:
    streak = NodeFailures(used.store, 1)
    streak.failed()
    file = node_file(used)
    (file.parent / "stray").write_text("x")
    file.unlink()
    file.mkdir()
    assert streak.excluded() is None
    streak.failed()
    streak.succeeded()
    assert failing(used.store) == []
    assert {finding.kind for finding in used.fsck()} == {"stray", "in-the-way"}


def test_a_filesystem_that_fails_stops_nobody(
    used: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    streak = NodeFailures(used.store, 1)
    with monkeypatch.context() as patch:
        patch.setattr(used.store.fs, "write_all", full)
        with caplog.at_level(logging.WARNING, "fsqueue"):
            streak.failed()
    assert "not counted" in caplog.text
    assert streak.excluded() is None


@pytest.mark.parametrize("after", [0, -1, True, 1.5, "3"])
def test_what_is_no_number_of_failures_is_refused(used: Queue, after: object) -> None:
    with pytest.raises(InvalidArgument, match="exclude_after"):
        NodeFailures(used.store, after)  # type: ignore[arg-type]


def test_a_node_s_file_is_called_as_in_the_format(queue: Queue) -> None:
    """docs/format.md, "Nodes": BLAKE2b-128 of the node's name, in hexadecimal digits."""
    queue.insert("a task")
    NodeFailures(queue.store, 3).failed("no")
    [node] = [one.node for one in failing(queue.store)]
    digest = hashlib.blake2b(node.encode(), digest_size=16).hexdigest()
    assert [path.name for path in (base_of(queue) / "nodes").iterdir()] == [f"{digest}.jsonl"]


def test_of_a_long_reason_the_end_is_kept(used: Queue) -> None:
    NodeFailures(used.store, 3).failed(f"{'x' * 1000} no such device")
    [node] = failing(used.store)
    assert len(node.reason) == REASON_CHARS_MAX
    assert node.reason.endswith("x no such device")
