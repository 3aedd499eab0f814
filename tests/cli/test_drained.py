"""`wait` and `status --watch` beside a task that always lives, and hops from place to place: none says "drained"."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from fsqueue_cli import watching

from fsqueue import Group, Queue
from tests.cli.conftest import Run
from tests.hopping import ENDS, WAYS, Hopper
from tests.levels import each_once
from tests.support import base_of

pytestmark = pytest.mark.once

GIVEN: dict[str, Callable[[Group], list[Path]]] = {
    "a queue": lambda group: [group.path / "b"],
    "queues": lambda group: [group.path / "a", group.path / "b"],
    "a group": lambda group: [group.path],
}


LOOKS = 2
"""How many looks `status --watch` makes before Ctrl-C ends it."""


def waits(cli: Run, paths: list[Path]) -> bool:
    """Return whether `wait` says that all is drained: with dead letters, or without."""
    done = cli("wait", *paths, "--timeout", "0", code=None)
    assert done.exit_code in (0, 1, 9, 124), done.output
    if done.exit_code == 1:
        assert "the queues are not drained" in done.stderr
    return done.exit_code in (0, 9)


def watches(cli: Run, paths: list[Path]) -> bool:
    """Return whether `status --watch` ends by itself, within some looks."""
    sleep = mock.Mock(side_effect=[*[None] * (LOOKS - 1), KeyboardInterrupt])
    with mock.patch.object(watching, "time", SimpleNamespace(**vars(time) | {"sleep": sleep})):
        done = cli("status", *paths, "--watch", "--interval", "0", code=None)
    assert done.exit_code == (130 if sleep.call_count == LOOKS else 0), done.output
    return done.exit_code == 0


COMMANDS = {"wait": waits, "status --watch": watches}
ASKED = [(command, given) for command in COMMANDS for given in GIVEN]


def asked_while_a_task_hops(cli: Run, path: Path, command: str, given: str, way: str, verb: str) -> None:
    hopper = Hopper(path / "group", way, verb, "b" if given == "a queue" else "ab")
    with hopper.hopping() as group:
        assert not COMMANDS[command](cli, GIVEN[given](group))
        assert hopper.hops
        hopper.end()
        assert COMMANDS[command](cli, GIVEN[given](group))


@pytest.mark.one_in(4)
@each_once(("command, given", ASKED), ("verb", ENDS))
def test_a_task_that_hops_is_not_missed_however_it_ends(
    fsqueue_cli: Run, tmp_path: Path, command: str, given: str, verb: str
) -> None:
    asked_while_a_task_hops(fsqueue_cli, tmp_path, command, given, "file", verb)


@pytest.mark.one_in(4)
@each_once(("command, given", ASKED), ("way", WAYS))
def test_a_task_that_hops_is_not_missed_however_it_comes(
    fsqueue_cli: Run, tmp_path: Path, command: str, given: str, way: str
) -> None:
    asked_while_a_task_hops(fsqueue_cli, tmp_path, command, given, way, "cancel")


def lose_a_task_file(path: Path, how: str) -> Queue:
    """Return a queue of three tasks whose task file another program has removed, before or after a lease."""
    queue = Queue.create(path, shards=1)
    queue.insert_many([1, 2, 3], commit="all")
    tasks = queue.lease(1) if how != "never leased" else []
    if how == "begun":
        queue.complete(tasks)
    for file in (base_of(queue) / "queue").glob("*/*"):
        file.unlink()
    return queue


@pytest.mark.parametrize("mends", [["gc"], ["fsck", "--repair"]])
def test_a_lost_task_file_ends_workers_at_once_and_waits_when_its_tasks_are_letters(
    fsqueue_cli: Run, tmp_path: Path, mends: list[str]
) -> None:
    """docs/status.md, "Waiting", says so."""
    queue = lose_a_task_file(tmp_path / "q", "begun")
    assert (queue.status().waiting, queue.is_drained()) == (2, True)
    assert fsqueue_cli("wait", queue.path, "--timeout", "0", code=None).exit_code == 124
    assert "nothing to do" in fsqueue_cli("run", queue.path, "--", "true", code=0).stderr
    assert fsqueue_cli("wait", queue.path, "--timeout", "0", code=None).exit_code == 124
    fsqueue_cli(mends[0], queue.path, *mends[1:], code=None)
    fsqueue_cli("wait", queue.path, "--timeout", "0", code=9)
    assert (queue.status().waiting, queue.status().dead, queue.is_drained()) == (0, 2, True)


def test_a_leased_task_without_its_file_is_waited_for_by_all(fsqueue_cli: Run, tmp_path: Path) -> None:
    queue = lose_a_task_file(tmp_path / "q", "leased")
    assert (queue.status().leased, queue.is_drained()) == (1, False)
    fsqueue_cli("wait", queue.path, "--timeout", "0", code=124)


def test_of_a_batch_of_which_no_task_was_leased_nothing_is_left(fsqueue_cli: Run, tmp_path: Path) -> None:
    queue = lose_a_task_file(tmp_path / "q", "never leased")
    assert (queue.status().inserted, queue.is_drained()) == (0, True)
    fsqueue_cli("wait", queue.path, "--timeout", "0", code=0)
    assert list(queue.fsck()) == []
