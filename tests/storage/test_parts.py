"""What many processes do in parts (Spark's executors): staging encoded batches, looking at some shards only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fsqueue import Queue, administration
from fsqueue.format import names
from fsqueue.fsck import fsck_part
from fsqueue.protocol.encoding import NOW, Encoded
from fsqueue.storage import commits, deadletters, history
from fsqueue.views import inspection
from tests.support import QueueFactory


def encoded(*numbers: int) -> Encoded:
    batch = Encoded(NOW)
    for number in numbers:
        batch.take(b'{"payload":%d}\n' % number, 1)
    return batch


def test_encoded_batches_are_staged_as_they_are(queue: Queue) -> None:
    commit = queue.commit("c")
    some = encoded(1, 2)
    some.take(b'{"payload":3}\n{"payload":4}\n', 2)
    part = commit.stage_encoded([some, encoded(5)])
    assert (part.files, part.tasks, part.bytes) == (2, 5, 5 * len(b'{"payload":1}\n'))
    assert queue.status().inserted == 0
    commit.publish([part])
    assert sorted(task.payload for task in queue.tasks()) == [1, 2, 3, 4, 5]
    assert list(queue.fsck()) == []


def test_a_forgotten_name_can_be_used_again(queue: Queue) -> None:
    assert not queue.commit("c").forget()
    for count in (1, 2):
        commit = queue.commit("c")
        assert not commit.publish([commit.stage([count])]).repeated
        assert queue.commit("c").forget()
        assert queue.commit("c").committed() is None
    assert queue.status().waiting == 2


def test_what_was_decided_is_applied_before_its_name_is_forgotten(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = queue.commit("c")
    part = commit.stage(range(10))
    with monkeypatch.context() as patched:
        patched.setattr(commits, "apply", lambda *arguments: None)
        commit.publish([part])
    assert queue.commit("c").forget()
    assert len(list(queue.path.rglob("queue/*/*.jsonl"))) > 0
    assert queue.status().waiting == 10
    assert commits.pending(queue.store, queue.store.layout) == []


def test_whoever_knows_an_attempt_can_discard_it(queue: Queue) -> None:
    part = queue.commit("c").stage(range(3))
    assert len(os.listdir(queue.store.layout.staging)) == 1
    assert queue.commit("c", attempt=part.attempt).discard()
    assert os.listdir(queue.store.layout.staging) == []


def test_the_parts_of_a_check_are_the_whole(queue: Queue) -> None:
    queue.insert_many(range(200), batch_tasks=2)
    for path in sorted(queue.path.rglob("queue/*/*.jsonl"))[:7]:
        path.write_bytes(b"\x00")
    Path(queue.store.layout.base, "stray").touch()
    shards = names.all_shards(queue.settings.shards)
    whole = {(found.kind, found.path) for found in queue.fsck()}
    parts = [
        found for half in (shards[:20], shards[20:]) for found in fsck_part(queue.store, half, half == shards[:20])
    ]
    assert {(found.kind, found.path) for found in parts} == whole
    assert len(parts) == len(whole) == 8


def test_shards_one_by_one_are_everything(queue_factory: QueueFactory) -> None:
    queue = queue_factory(batch_tasks_max=4)
    queue.insert_many(range(60))
    for task in queue.lease(60):
        task.bury("no") if task.payload % 3 else task.complete()
    store, shards = queue.store, names.all_shards(queue.settings.shards)
    letters = [letter for shard in shards for letter in deadletters.letters(store, shard)]
    assert sorted(letter.id for letter in letters) == sorted(letter.id for letter in queue.dead())
    kept = [batch for shard in shards for batch, _ in history.batches_of(store, shard)]
    assert sorted(kept) == sorted(found.batch for found in history.finished_batches(store))
    assert sum(history.sizes(store).values()) == sum(
        path.stat().st_size for path in Path(queue.store.layout.history_days).rglob("*.jsonl")
    )


def test_leases_are_released_by_any_condition(queue: Queue) -> None:
    queue.insert_many(range(20))
    for name in ("a.1", "a.2", "b.1"):
        with Queue(queue.path, worker=name) as worker:
            worker.lease(3)

    def of_a(replay_state: inspection.ReplayState, index: int) -> bool:
        holder = replay_state.holder[index]
        return holder is not None and str((holder.worker or {})["name"]).startswith("a.")

    assert administration.release(queue.store, of_a) == 6
    assert queue.status().leased == 3
