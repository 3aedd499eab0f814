"""A queue is deleted, and another one made at its place, while a command waits for it, watches it or works on it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group, Queue
from fsqueue.groups.drain_check import GroupDrainCheck
from fsqueue.views.inspection import DrainCheck
from tests.cli.conftest import Run, Spawn
from tests.waiting import PATIENCE_S, until
from tests.worker.support import until_there

pytestmark = pytest.mark.once


class Place:
    """Where a queue is, and another one comes."""

    def __init__(self, home: Path, kind: str) -> None:
        self.kind = kind
        self.group = Group.create(home / "group", durability="none") if kind != "queue" else None
        self.path = home / "queue" if self.group is None else self.group.path / "q"
        self.typed = self.group.path if self.group is not None and kind == "group" else self.path
        if self.group is None:
            Queue.create(self.path, durability="none")

    @property
    def queue(self) -> Queue:
        """The queue that is there now."""
        return Queue(self.path) if self.group is None else Group(self.group.path)["q"]

    def replace(self, *payloads: Any) -> None:
        if self.group is None:
            self.queue.delete()
            Queue.create(self.path, durability="none")
        else:
            self.group.delete("q")
        self.queue.insert_many(payloads)


@pytest.fixture(params=["queue", "queue of a group", "group"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path, request.param)


def between_looks(monkeypatch: pytest.MonkeyPatch, kind: type, *acts: Callable[[], object]) -> None:
    """Have something done before the second look of a wait, and something else before each later one."""
    real, left, looks = kind.__call__, list(acts), list[Any]()

    def check(self: Any) -> bool:
        looks.append(self)
        if len(looks) > 1 and left and looks[0] is self:
            left.pop(0)()
        found: bool = real(self)
        return found

    monkeypatch.setattr(kind, "__call__", check)


def test_wait_calls_it_not_done_though_the_other_one_is_drained(
    fsqueue_cli: Run, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.queue.insert("first")
    kind = DrainCheck if place.kind == "queue" else GroupDrainCheck
    between_looks(monkeypatch, kind, lambda: place.replace("second"), lambda: place.queue.lease()[0].complete())
    done = fsqueue_cli("wait", place.typed, "--timeout", "60", code=5 if place.kind == "queue" else 1)
    if place.kind == "queue":
        assert "was deleted (perhaps with another created in its place)" in done.stderr
    else:
        assert f"The queue {place.path} was purged or overwritten while it was waited for" in done.stderr
    assert done.stdout == ""


def test_wait_for_a_queue_of_a_group_that_is_deleted_for_good(
    fsqueue_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, "queue of a group")
    place.queue.insert("first")
    assert place.group is not None
    group = place.group
    between_looks(monkeypatch, GroupDrainCheck, lambda: group.delete("q"))
    done = fsqueue_cli("wait", place.typed, "--timeout", "60", code=5)
    assert f"The queue {place.path} was deleted while it was waited for" in done.stderr


def test_watch_says_it_of_a_queue_and_goes_on_with_the_other_one_of_a_group(spawn: Spawn, place: Place) -> None:
    place.queue.insert_many(["first", "second"])
    process = spawn("status", place.typed, "--watch", "--interval", "0.1", "--json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["waiting"] == 2
    place.replace(1, 2, 3)
    if place.kind == "queue":
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 5
        assert "was deleted (perhaps with another created in its place)" in err
        return
    looks: list[dict[str, Any]] = []

    def shows(**counts: int) -> None:
        def is_shown() -> bool:
            looks.append(json.loads(process.stdout.readline()))  # type: ignore[union-attr]
            return all(looks[-1][name] == count for name, count in counts.items())

        until(is_shown, f"{counts}")

    shows(waiting=3, inserted=3)
    place.queue.lease()[0].complete()
    shows(waiting=2, completed=1)
    for task in place.queue.lease(2):
        task.complete()
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, "")
    last = json.loads(out.splitlines()[-1]) if out else looks[-1]
    assert (last["inserted"], last["completed"]) == (3, 3)


@pytest.mark.parametrize("at_work", [False, True])
def test_run(spawn: Spawn, place: Place, tmp_path: Path, at_work: bool) -> None:
    """The run of a queue ends, with 5: it may be another one's. One of a group goes on with the new queue."""
    script = f'echo "$1" >> {tmp_path}/done; [ "$1" != waits ] || {until_there(tmp_path / "go")}'
    process = spawn("run", place.typed, "--forever", "--", "sh", "-c", script, "sh", "{}")
    place.queue.insert("waits" if at_work else "first")
    done = tmp_path / "done"
    until(lambda: done.exists() and done.read_text(), "the first task to begin")
    if not at_work:
        until(lambda: place.queue.status().completed == 1, "its end")
    place.replace("other")
    (tmp_path / "go").touch()
    if place.kind == "queue":
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 5
        assert "was deleted (perhaps with another created in its place)" in err
        assert place.queue.status().waiting == 1
        assert "other" not in done.read_text()
    else:
        until(lambda: place.queue.status().completed == 1, "the task of the other one")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 143
        assert done.read_text().split() == ["waits" if at_work else "first", "other"]
    if at_work:
        assert "was lost" in err
