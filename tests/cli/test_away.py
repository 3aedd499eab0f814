"""fsqueue run over several queues of which some are not there."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from fsqueue import Group
from tests.cli.conftest import Run, Spawn
from tests.conftest import QueueFactory
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once


def test_a_queue_that_is_not_there_is_named_and_the_others_are_done(
    fsqueue_cli: Run, queue_factory: QueueFactory, tmp_path: Path
) -> None:
    queue = queue_factory("a")
    queue.insert_many(range(3))
    away = tmp_path / "unmounted" / "tiles"
    said = fsqueue_cli("run", away, queue.path, "--", "true", code=5).stderr
    assert f"{away} is not there (not mounted?); it is tried again." in said
    assert f"all else is drained, and {away} is not there (not mounted?)" in said
    assert "3 completed" in said
    assert queue.status().completed == 3
    said = fsqueue_cli("run", queue.path, away, "--json", "--", "true", code=5).stdout
    assert (json.loads(said)["ended"], json.loads(said)["completed"]) == ("away", 0)


def test_if_none_is_there_nothing_begins(fsqueue_cli: Run, tmp_path: Path) -> None:
    for paths in (["a"], ["a", "b"]):
        said = fsqueue_cli("run", *(tmp_path / path for path in paths), "--", "true", code=5).stderr
        assert "There is no queue at" in said
        assert "tried again" not in said


def test_a_group_that_comes_later_is_taken_too(spawn: Spawn, queue_factory: QueueFactory, tmp_path: Path) -> None:
    queue, root = queue_factory("a"), tmp_path / "root"
    group = Group.create(tmp_path / "root.away" / "crawl", durability="none")
    group["fetch"].insert_many(range(3))
    queue.insert(1)
    process = spawn("run", queue.path, root / "crawl", "--forever", "--", "true")
    until(lambda: queue.status().completed == 1, "the task of the one that is there")
    (tmp_path / "root.away").rename(root)
    until(lambda: Group(root / "crawl")["fetch"].status().completed == 3, "the tasks of the other")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143
    assert f"{root}/crawl is there: its tasks are taken, too." in said
