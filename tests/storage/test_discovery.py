"""Which queues there are in a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

import fsqueue
from fsqueue import Queue, QueueNotFound, StorageError
from fsqueue.filesystem import Filesystem
from tests.conftest import QueueFactory

pytestmark = pytest.mark.once


def test_the_queues_of_a_directory_in_the_order_of_their_names(queue_factory: QueueFactory, tmp_path: Path) -> None:
    for name in ("group/b", "group/a", "group/.hidden", "group/deeper/c"):
        queue_factory(name)
    (tmp_path / "group" / "file").write_text("mine")
    (tmp_path / "group" / "link").symlink_to(tmp_path / "group" / "a")
    (tmp_path / "group" / "dangling").mkdir()
    (tmp_path / "group" / "dangling" / "queue.jsonl").symlink_to("/nowhere")
    assert fsqueue.queues(tmp_path / "group") == [f"{tmp_path}/group/a", f"{tmp_path}/group/b"]
    assert fsqueue.queues(f"fq://{tmp_path}/group/deeper") == [f"{tmp_path}/group/deeper/c"]


def test_of_a_queue_it_is_the_queue(queue: Queue) -> None:
    assert fsqueue.queues(queue.path) == [str(queue.path)]


def test_a_deleted_queue_is_none(queue_factory: QueueFactory, tmp_path: Path) -> None:
    queue_factory("group/a")
    queue_factory("group/b").delete(foreground=True)
    assert fsqueue.queues(tmp_path / "group") == [f"{tmp_path}/group/a"]


@pytest.mark.parametrize("name", ["empty", "file", "missing"])
def test_where_there_is_no_queue_an_error_says_so(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(QueueNotFound, match="no queue at"):
        fsqueue.queues(tmp_path / name)


def test_a_queue_that_one_may_not_see_is_passed_by(
    queue_factory: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue_factory("group/a")
    exists = Filesystem.exists

    def closed(fs: Filesystem, path: str) -> bool:
        if path.startswith(f"{tmp_path}/group/b/"):
            raise PermissionError(13, "Permission denied", path)
        return exists(fs, path)

    queue_factory("group/b")
    monkeypatch.setattr(Filesystem, "exists", closed)
    assert fsqueue.queues(tmp_path / "group") == [f"{tmp_path}/group/a"]
    with pytest.raises(StorageError, match="Permission denied while looking for queues"):
        fsqueue.queues(tmp_path / "group" / "b")
