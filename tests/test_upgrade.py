"""A queue that an older fsqueue has made works as before, and can be raised to the newest format."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from fsqueue import LockTimeout, Queue, QueueNotFound, StorageFull
from fsqueue.filesystem import Filesystem
from fsqueue.format import layout
from fsqueue.format.names import TaskFileName
from tests.support import log_files, raised, task_file_names

ID = "00112233445566aa"
BATCH = "0193f0c2a4b97c31a2d5e8f001234567"
AT = 1_765_000_000_000
BIRTH = (
    b'{"op":"create","at":1765000000000,"format":1,"id":"00112233445566aa","settings":{"shards":4,'
    b'"batch_tasks_max":1024,"task_bytes_max":67108864,"max_attempts":5,"lease_s":600,"backoff_s":[1,3600],'
    b'"durability":"default","keep_history":true}}\n'
)
OPEN = (
    b'{"op":"open","at":1765000000200,"count":3,"birth":1735000000000,"available_at":0,'
    b'"name":"0000000000000-0193f0c2a4b97c31a2d5e8f001234567-3.jsonl"}\n'
)
LEASE = (
    b'{"op":"lease","at":1765000000200,"lease":"aaaaaaaaaaaaaaaa","tasks":[[0,1]],"until":1765000600000,"worker":{}}\n'
)
COMPLETE = b'{"op":"complete","at":1765000000300,"lease":"aaaaaaaaaaaaaaaa","tasks":[[0,1]]}\n'


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The bytes of a queue of format 1: three tasks in a file, of which one is completed."""
    path = tmp_path / "old"
    tree, shard = path / f"1-{ID}", f"{int(BATCH[-8:], 16) % 4:02x}"
    for part in ("queue", "movements"):
        (tree / part / shard).mkdir(parents=True)
    (path / "queue.jsonl").write_bytes(BIRTH)
    (tree / "queue" / shard / f"0000000000000-{BATCH}-3.jsonl").write_bytes(
        b'{"payload":"one"}\n{"payload":"two"}\n{"b64":"dGhyZWU="}\n'
    )
    (tree / "movements" / shard / f"{BATCH}.jsonl").write_bytes(OPEN + LEASE + COMPLETE)
    return path


def opens(queue: Queue) -> list[TaskFileName]:
    return [name for name in task_file_names(queue) if name.inserted is not None]


def syncs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """A list to which name and size of each file are added when it is synced. Open the queue after this call."""
    synced: list[tuple[str, int]] = []

    def fsync(fd: int) -> None:
        synced.append((os.path.basename(os.readlink(f"/proc/self/fd/{fd}")), os.stat(fd).st_size))

    monkeypatch.setattr(os, "fsync", fsync)
    return synced


def payloads(queue: Queue) -> list[object]:
    """Complete all that is there; what it was."""
    found = []
    while tasks := queue.lease(10):
        found += [task.payload for task in tasks]
        queue.complete(tasks)
    return found


def test_an_old_queue_works_the_old_way(old: Path) -> None:
    with Queue(old) as queue:
        assert (queue.status().waiting, queue.status().completed) == (2, 1)
        queue.insert("alone")
        assert opens(queue) == []
        assert sorted(name.count for name in task_file_names(queue)) == [1, 3]
        assert sorted(map(str, payloads(queue))) == ["alone", "b'three'", "two"]
        assert queue.status().remaining == 0
    assert (old / "queue.jsonl").read_bytes() == BIRTH


def test_an_old_queue_that_is_upgraded_has_open_batches_beside_its_files(old: Path) -> None:
    with Queue(old) as queue:
        [held] = queue.lease()
        queue.insert("before")
        assert queue.upgrade() is True
        queue.insert("after")
        queue.insert("again")
        assert sorted(str(name)[46:] for name in task_file_names(queue)) == ["-0+.jsonl", "-1.jsonl", "-3.jsonl"]
        queue.complete(held)
        assert held.payload == "two"
        status = queue.status()
        assert (status.waiting, status.completed) == (4, 2)
        assert sorted(map(str, payloads(queue))) == ["after", "again", "b'three'", "before"]
        assert list(queue.fsck()) == []


def test_another_process_that_has_it_open_goes_on_in_the_new_format(old: Path) -> None:
    with Queue(old) as queue, Queue(old) as other:
        other.insert("before")
        queue.upgrade()
        other.store.refresh(now=True)  # at the latest after a second
        other.insert("after")
        assert len(opens(other)) == 1
        assert sorted(map(str, payloads(queue))) == ["after", "b'three'", "before", "two"]


def test_an_upgrade_is_one_line_and_a_second_one_none(old: Path) -> None:
    with Queue(old) as queue:
        assert [queue.upgrade(), queue.upgrade(), queue.upgrade()] == [True, False, False]
        assert Queue(old).upgrade() is False
        line = (old / "queue.jsonl").read_bytes().removeprefix(BIRTH)
        assert orjson.loads(line) == {"op": "format", "at": orjson.loads(line)["at"], "format": layout.FORMAT}
        queue.purge()
        assert Queue(old).store.queue_state.format == layout.FORMAT


def test_an_upgrade_voids_a_torn_line(old: Path) -> None:
    with (old / "queue.jsonl").open("ab") as file:
        file.write(b'{"op":"gener')
    with Queue(old) as queue:
        assert queue.upgrade() is True
    assert Queue(old).upgrade() is False


@pytest.mark.parametrize("is_newest", [False, True])
def test_the_line_is_on_disk_before_an_upgrade_is_reported(
    old: Path, monkeypatch: pytest.MonkeyPatch, is_newest: bool
) -> None:
    """Also if it was there: its author may have died before it was synced."""
    if is_newest:
        Queue(old).upgrade()
    synced = syncs(monkeypatch)
    with Queue(old) as queue:
        assert queue.upgrade() is not is_newest
        assert synced == [("queue.jsonl", os.stat(old / "queue.jsonl").st_size)]


def test_the_line_is_on_disk_before_a_task_is_reported_inserted(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Queue(old).upgrade()
    synced = syncs(monkeypatch)
    with Queue(old) as queue:
        queue.insert("task")
        queue.insert("task")
    assert [name for name, _ in synced].count("queue.jsonl") == 1


def test_a_queue_made_in_this_format_needs_no_such_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "FORMAT_OF_NEW_QUEUES", 2)
    Queue.create(tmp_path / "q")
    synced = syncs(monkeypatch)
    with Queue(tmp_path / "q") as queue:
        queue.insert("task")
    assert synced
    assert "queue.jsonl" not in dict(synced)


def test_while_another_process_has_the_lock_nothing_is_changed(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = Filesystem(str(old))
    with Queue(old, filesystem=fs) as queue:
        monkeypatch.setattr(fs, "lock", lambda *_: False)
        assert raised(LockTimeout, queue.upgrade)
    assert (old / "queue.jsonl").read_bytes() == BIRTH


def test_without_room_the_queue_stays_what_it_is(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = Filesystem(str(old))
    with Queue(old, filesystem=fs) as queue:
        write = fs.write
        with monkeypatch.context() as patch:
            patch.setattr(fs, "write", lambda fd, data: write(fd, data[:20]) if len(data) > 20 else full())
            assert raised(StorageFull, queue.upgrade)
        assert queue.store.queue_state.format == 1
        queue.insert("old way")
        assert opens(queue) == []
        assert queue.upgrade() is True


def full() -> int:
    raise OSError(28, "No space left on device")


def test_a_deleted_queue_is_not_upgraded(old: Path) -> None:
    with Queue(old) as queue:
        Queue(old).delete(wait=True)
        assert raised(QueueNotFound, queue.upgrade)
    assert not old.exists()


def test_a_batch_with_the_newest_names_is_worked_off_whatever_the_format_says(old: Path) -> None:
    """A power loss may take the line back before its upgrade was reported."""
    with Queue(old) as queue:
        queue.upgrade()
        queue.insert("after")
    (old / "queue.jsonl").write_bytes(BIRTH)
    with Queue(old) as queue:
        assert sorted(map(str, payloads(queue))) == ["after", "b'three'", "two"]
        assert len(log_files(queue)) <= 1
