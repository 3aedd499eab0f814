"""What the files of a queue take, by what they are for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fsqueue import Queue, Usage
from tests.prepared import ByHand
from tests.support import QueueFactory, base_of

pytestmark = pytest.mark.once


def seen(path: Path) -> tuple[int, int, int]:
    """Return the files, directories and bytes below a path, and itself, as the system counts them."""
    files = directories = size = 0
    for place, below, names in os.walk(path):
        directories += 1
        links = [name for name in below if os.path.islink(f"{place}/{name}")]
        for name in [*names, *links]:
            files += 1
            size += os.lstat(f"{place}/{name}").st_size
    return files, directories, size


@pytest.fixture
def q(queue_factory: QueueFactory) -> Queue:
    """A queue with files of most kinds."""
    queue = queue_factory(shards=4, durability="none")
    queue.insert_many(range(30), batch_tasks=10)
    queue.insert_many(range(30), commit="load")
    queue.complete(queue.lease(10))
    for task in queue.lease(3):
        task.bury("no")
    queue.lease(2)
    queue.insert_many(range(2), batch_tasks=2)
    queue.cancel([info.id for info in queue.tasks() if info.payload in (0, 1)])
    return queue


def test_each_file_is_counted_once(q: Queue) -> None:
    (q.path / "stray").write_text("x" * 100)
    (base_of(q) / "stray").mkdir()
    (q.path / ".quarantine").mkdir()
    (q.path / ".quarantine" / "queue").symlink_to("/")
    found = q.usage()
    total = found["all"]
    assert (total.files, total.directories, total.bytes) == seen(q.path)
    assert total.disk_bytes >= total.bytes // 4096 * 4096
    assert found["tasks"].files == len([*(base_of(q) / "queue").glob("*/*")]) > 0
    assert found["logs"].files == len([*(base_of(q) / "movements").glob("*/*")]) > 0
    assert found["counters"] == Usage(2, 1, found["counters"].bytes, found["counters"].disk_bytes)
    assert found["commits"].files >= 1
    assert found["dead"].files >= 1
    assert (found["other"].files, found["other"].directories, found["other"].bytes) == (1, 1, 100)
    assert (found["quarantine"].files, found["quarantine"].directories) == (1, 1)
    rest = [usage for part, usage in found.items() if part != "all"]
    assert sum(usage.files + usage.directories for usage in rest) == total.files + total.directories


def test_a_purge_gives_back_all_but_the_settings(q: Queue) -> None:
    q.purge()
    q.gc()
    found = q.usage()
    assert found["all"].files == found["settings"].files == 2
    assert found["tasks"] == found["history"] == Usage()


def test_what_vanishes_meanwhile_is_passed_by(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = q.store.fs.entries

    def late(directory: str) -> list[tuple[str, str]]:
        found = entries(directory)
        if directory.endswith("/dead"):
            for name, _ in found:
                os.unlink(f"{directory}/{name}")
        return found

    monkeypatch.setattr(q.store.fs, "entries", late)
    assert q.usage()["dead"].files == 0


def test_of_a_group_each_file_is_counted_once(tmp_path: Path) -> None:
    update = ByHand(tmp_path / "group")
    update.says("commit")
    (tmp_path / "group" / ".quarantine").mkdir()
    found = update.group.usage()
    total = found["all"]
    assert (total.files, total.directories, total.bytes) == seen(tmp_path / "group")
    assert (found["updates"].files, found["updates"].directories) == (1, 1)
    assert found["logs"].files == 2
    rest = [usage for part, usage in found.items() if part != "all"]
    assert sum(usage.files + usage.directories for usage in rest) == total.files + total.directories
