"""A gateway whose group is not in its place: its clients raise what the verbs themselves would raise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import GroupNotFound
from fsqueue.protocol import leasing
from fsqueue.storage import queue_file
from tests.groups.absent import WAYS, Used, nothing_was_done, told
from tests.service.conftest import Serve


@pytest.mark.parametrize("away", WAYS)
def test_a_gateway_says_of_each_call_that_its_group_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Serve, away: Callable[[Used], None]
) -> None:
    (tmp_path / "disk").mkdir()
    used = Used(tmp_path / "disk")
    monkeypatch.setattr(queue_file, "FRESH_S", -1.0)
    monkeypatch.setattr(leasing, "FRESH_S", -1.0)
    remote: Any = fsqueue.connect(serve(used.group.path))
    assert remote["open"].status().inserted == 10
    away(used)
    calls: dict[str, Callable[[], Any]] = {
        "insert": lambda: remote["open"].insert(1),
        "insert into one that never was": lambda: remote["never"].insert(1),
        "insert_many": lambda: remote["open"].insert_many([1, 2]),
        "lease": lambda: remote["open"].lease(),
        "lease of one that never was": lambda: remote["never"].lease(),
        "lease of all": lambda: remote.lease(),
        "queues": lambda: [*remote.queues()],
        "status": lambda: remote["open"].status(),
        "status of one that never was": lambda: remote["never"].status(),
        "status of all": lambda: remote.status(),
        "is_drained": lambda: remote["never"].is_drained(),
        "wait": lambda: remote["never"].wait(timeout_s=5),
        "update": lambda: update(remote),
        "delete": lambda: remote["open"].delete(),
    }
    for verb, call in calls.items():
        error = told(verb, call)
        assert isinstance(error, GroupNotFound), (verb, error)
    nothing_was_done(used, away)


def update(remote: Any) -> None:
    with remote.update() as changes:
        changes.insert("open", 1)
