"""Tasks wait, and nobody works: `status` and `wait` say so, and `wait --no-workers-timeout` ends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from fsqueue_cli import idle
from fsqueue_cli.idle import IdleWatch

from fsqueue import Group, Queue
from fsqueue.clock import ManualClock
from tests.cli.conftest import Run

SOON = ("--no-workers-timeout", "0.1")
NOT_YET = ("--timeout", "0.5")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(idle, "complain", found.append)
    return found


@pytest.fixture
def passes(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """`passes(seconds)`: time passes, for a queue and for those who watch it."""
    now = SimpleNamespace(s=1000.0)
    monkeypatch.setattr(idle, "time", SimpleNamespace(monotonic=lambda: now.s))

    def advance(seconds: float) -> None:
        clock.advance(seconds)
        now.s += seconds

    return advance


def watch(*queues: Queue, ends_after_s: float | None = None) -> IdleWatch:
    return IdleWatch(lambda: ((str(one.path), one) for one in queues), ends_after_s)


# -- commands ----------------------------------------------------------------------------------------------------


def test_a_status_tells_that_nobody_works_and_what_to_type(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many(range(56))
    result = fsqueue_cli("status", queue.path).stdout
    command = f"fsqueue run {queue.path} -- COMMAND"
    assert f"no workers  56 tasks wait, and no worker is there. Start workers, such as: {command}\n" in result
    assert json.loads(fsqueue_cli("status", queue.path, "--json").stdout)["idle"] is True


def test_a_status_tells_when_the_last_lease_began(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many(range(2))
    queue.release(queue.lease(2))
    assert "2 tasks wait, and nothing was leased for " in fsqueue_cli("status", queue.path).stdout


@pytest.mark.parametrize("why", ["paused", "leased", "delayed", "drained"])
def test_nobody_is_missed(fsqueue_cli: Run, queue: Queue, why: str) -> None:
    queue.insert_many(range(3), delay_s=3600 if why == "delayed" else 0)
    if why == "paused":
        queue.pause("maintenance")
    elif why in ("leased", "drained"):
        held = queue.lease(1 if why == "leased" else 3)
        if why == "drained":
            queue.complete(held)
    assert "no workers" not in fsqueue_cli("status", queue.path).stdout
    assert json.loads(fsqueue_cli("status", queue.path, "--json").stdout)["idle"] is False
    result = fsqueue_cli("wait", queue.path, *SOON, *NOT_YET, code=0 if why == "drained" else 124)
    assert "Start workers" not in result.stderr


def test_wait_ends_if_nobody_works_for_so_long(fsqueue_cli: Run, queue: Queue, place_of: Callable[[Path], str]) -> None:
    queue.insert(1)
    place = place_of(queue.path)
    result = fsqueue_cli("wait", place, *SOON, code=15)
    assert "1 task waits, and nothing was leased for " in result.stderr
    assert re.search(f"fsqueue run {re.escape(place)}(/q)? -- COMMAND", result.stderr)
    assert "--no-workers-timeout is over: nothing was changed" in result.stderr
    assert result.stdout == "completed 0 of 1 (0.0%), waiting 1, leased 0\n"
    assert queue.status().waiting == 1
    told = json.loads(fsqueue_cli("wait", place, *SOON, "--json", code=15).stdout)
    assert told["waiting"] == 1
    assert told["queue"].startswith(place)


def test_wait_for_a_group_ends_so_too(fsqueue_cli: Run, tmp_path: Path, place_of: Callable[[Path], str]) -> None:
    group = Group.create(tmp_path / "group")
    group["a"].insert(1)
    group["b"].insert_many([2, 3])
    place = place_of(group.path)
    result = fsqueue_cli("wait", place, *SOON, code=15)
    assert "3 tasks wait" in result.stderr
    assert re.search(f"fsqueue run {re.escape(place)}/? -- COMMAND", result.stderr)
    group["a"].pause("a licence")
    assert "2 tasks wait" in fsqueue_cli("wait", place, *SOON, code=15).stderr
    group["b"].lease()
    fsqueue_cli("wait", place, *SOON, *NOT_YET, code=124)


def test_of_many_queues_without_workers_some_are_named(fsqueue_cli: Run, tmp_path: Path) -> None:
    group = Group.create(tmp_path / "group")
    for number in range(5):
        group[f"q{number}"].insert(number)
    lines = [line for line in fsqueue_cli("status", group.path).stdout.splitlines() if line.startswith("no workers")]
    assert [f"{group.path}/q{number} " in line for number, line in enumerate(lines[:3])] == [True] * 3
    assert lines[3:] == ["no workers  nor for 2 other queues with tasks"]


# -- the watch ---------------------------------------------------------------------------------------------------


def spend(seconds: int, watching: IdleWatch, passes: Callable[[float], None]) -> None:
    """Let time pass, and look every 20 seconds."""
    for _ in range(seconds // 20):
        passes(20)
        watching.look()


def test_it_is_said_once_after_four_minutes(q: Queue, said: list[str], passes: Callable[[float], None]) -> None:
    q.insert_many(range(2))
    watching = watch(q)
    spend(220, watching, passes)
    assert said == []
    spend(20, watching, passes)
    assert ["nothing was leased for 4 min." in text for text in said] == [True]
    spend(3600, watching, passes)
    assert len(said) == 1


def test_it_is_said_again_after_somebody_has_worked(q: Queue, said: list[str], passes: Callable[[float], None]) -> None:
    q.insert_many(range(3))
    watching = watch(q)
    spend(300, watching, passes)
    [task] = q.lease(1)
    spend(20, watching, passes)
    task.complete()
    spend(200, watching, passes)
    assert len(said) == 1, "the last lease began 220 s ago"
    spend(20, watching, passes)
    assert ["nothing was leased for 4 min." in text for text in said] == [True, True]


def test_work_between_two_looks_counts(q: Queue, said: list[str], passes: Callable[[float], None]) -> None:
    """By the number of tasks that have ended: the look itself sees nothing of batches that ended minutes before."""
    q.insert_many(range(6), batch_tasks=2)
    watching = watch(q)
    spend(200, watching, passes)
    q.complete(q.lease(2))
    passes(200)
    watching.look()
    assert said == []
    spend(180, watching, passes)
    assert len(said) == 1


def test_an_old_lease_does_not_end_a_wait_that_has_just_begun(
    q: Queue, said: list[str], passes: Callable[[float], None]
) -> None:
    """Workers may have been submitted a moment ago."""
    q.insert_many(range(2))
    q.release(q.lease(1))
    passes(3600)
    watching = watch(q, ends_after_s=600)
    spend(20, watching, passes)
    assert ["nothing was leased for 1 h" in text for text in said] == [True]
    spend(560, watching, passes)
    with pytest.raises(click.exceptions.Exit) as ended:
        spend(20, watching, passes)
    assert ended.value.exit_code == 15


@pytest.mark.parametrize(("ends_after_s", "pauses"), [(None, [60, 60, 120, 240, 480, 900, 900]), (40, [10] * 4)])
def test_looks_become_rare(
    q: Queue, passes: Callable[[float], None], said: list[str], ends_after_s: float | None, pauses: list[float]
) -> None:
    q.insert(1)
    q.lease(lease_s=10_000)
    watching = watch(q, ends_after_s=ends_after_s)
    for pause in pauses:
        assert watching.due_s() == pytest.approx(pause)
        passes(pause)
        watching.look()


def test_what_cannot_be_read_is_passed_by(passes: Callable[[float], None], said: list[str]) -> None:
    def fails() -> Iterator[tuple[str, Any]]:
        raise OSError("the file server")
        yield

    watching = IdleWatch(fails, 1.0)
    passes(5)
    watching.look()
    assert said == []
    assert watching.due_s() > 0
