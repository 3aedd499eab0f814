"""How often looks at the queues of a group ask a file server, counted in the filesystem layer. Labs count the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fsqueue import Group, NotAQueue
from fsqueue.filesystem import Filesystem
from fsqueue.filesystem.mounts import Mount
from fsqueue.format.names import Batch
from fsqueue.format.replay import ReplayState
from fsqueue.groups.drain_check import GroupDrainCheck, source_of
from fsqueue.storage import listing
from fsqueue.storage.store import Store

QUEUES = 5


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Group:
    """A group that seems to lie on a network mount. All tasks of its queues are done; none of them is open."""
    for module in ("store", "group_directory"):
        monkeypatch.setattr(f"fsqueue.storage.{module}.mount_of", lambda path: Mount("nfs4", "/m", "rw,vers=4.2"))
    made = Group.create(tmp_path / "g", shards=2, allow_unsafe=True)
    for number in range(QUEUES):
        queue = made[f"q{number}"]
        queue.insert_many([1, 2])
        queue.complete(queue.lease(2))
    made.close()
    return Group(made.path)


def counted(monkeypatch: pytest.MonkeyPatch, *methods: str) -> Counter[str]:
    """Count the calls of methods of `Filesystem` from now on: by the method, and by the name it is given."""
    calls: Counter[str] = Counter()

    def counting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(fs: Filesystem, *args: Any, **given: Any) -> Any:
            calls[name] += 1
            calls.update(f"{name} {Path(one).name}" for one in args[:1] if isinstance(one, str))
            return method(fs, *args, **given)

        return call

    for name in methods:
        monkeypatch.setattr(Filesystem, name, counting(name, getattr(Filesystem, name)))
    return calls


@pytest.mark.parametrize("look", [Group.status, Group.is_drained], ids=["status", "is_drained"])
def test_the_server_s_clock_is_measured_once_for_all_queues(
    group: Group, look: Callable[[Group], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counted(monkeypatch, "compare_clock")
    look(group)
    assert calls["compare_clock"] == 1
    look(group)
    assert calls["compare_clock"] == 1
    assert not group["q3"].store.clock.is_stale()


def test_to_open_a_queue_its_file_is_read_once(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, "read_pieces")
    assert group["q1"].exists()
    assert calls["read_pieces queue.jsonl"] == 2  # `exists` asks once more
    assert group["q2"].settings.shards == 2
    assert calls["read_pieces queue.jsonl"] == 3


def test_nothing_is_written_into_a_queue_of_another_group(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if that was closed to be deleted: what is left of it is for its own group's processes."""
    other = Group.create(group.path.parent / "other", allow_unsafe=True)
    other["foreign"].insert(1)
    other.close()
    (other.path / "foreign").rename(group.path / "foreign")
    with open(group.path / "foreign" / "queue.jsonl", "a") as file:
        file.write('{"op":"closed","at":1}\n')
    calls = counted(monkeypatch, "create", "rename", "touch", "make_directory")
    with pytest.raises(NotAQueue, match="not made in this group"):
        group["foreign"].status()
    assert not calls


def test_a_status_reads_a_queue_s_file_once_and_lists_few_directories(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counted(monkeypatch, "read_pieces", "size_on_server", "names", "look_anew")
    assert group.status().status.completed == 2 * QUEUES
    assert calls["read_pieces queue.jsonl"] == QUEUES
    assert calls["size_on_server queue.jsonl"] == 4 * QUEUES  # whether a purge came in between, twice
    assert calls["names"] <= 17 * QUEUES


def test_each_look_whether_all_is_drained_lists_few_directories(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, "read_pieces", "size_on_server", "names")
    assert group.is_drained()
    assert calls["read_pieces queue.jsonl"] == QUEUES
    assert calls["size_on_server queue.jsonl"] == 2 * QUEUES
    assert calls["names"] <= 2 * 7 * QUEUES


def test_the_second_look_reads_no_log_that_is_as_long_as_before(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: Counter[str] = Counter()
    original = listing.read_own_state

    def read(store: Store, batch: Batch) -> ReplayState | None:
        reads[batch] += 1
        return original(store, batch)

    monkeypatch.setattr(listing, "read_own_state", read)
    assert group.is_drained()
    assert sorted(reads.values()) == [1] * QUEUES
    assert group.is_drained()
    assert sorted(reads.values()) == [2] * QUEUES


def test_a_log_that_has_grown_between_the_looks_is_read_again(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process inserts into the open batch, after the first look and before the second one."""
    other, original = Group(group.path), GroupDrainCheck._collect
    looks: list[bytes | None] = []

    def collect(check: GroupDrainCheck) -> bytes | None:
        if looks == [mock.ANY]:
            other["q3"].insert("late")
        looks.append(original(check))
        return looks[-1]

    monkeypatch.setattr(GroupDrainCheck, "_collect", collect)
    assert not group.is_drained()
    assert looks[0] is not None
    assert looks[1] is None


@pytest.mark.parametrize("end", ["delete", "move", "replace"])
def test_a_queue_that_goes_between_the_looks_makes_them_differ(
    group: Group, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The second look uses the queue that the first one has left open, and asks whether it still has its place."""
    other, original = Group(group.path), GroupDrainCheck._collect
    looks: list[bytes | None] = []

    def collect(check: GroupDrainCheck) -> bytes | None:
        if looks == [mock.ANY]:
            if end == "delete":
                other.delete("q3")
            else:
                (group.path / "q3").rename(group.path.parent / "moved")
            if end == "replace":
                other.close()
                other["q3"].insert("new")
        looks.append(original(check))
        return looks[-1]

    monkeypatch.setattr(GroupDrainCheck, "_collect", collect)
    assert GroupDrainCheck([source_of(group["q3"])])() is (end != "replace")
    assert looks[0] is not None
    assert looks[1] != looks[0]
