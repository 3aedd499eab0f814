"""`wait` and `status --watch` beside a task that always lives, and hops from place to place: none says "drained"."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from fsqueue_cli import watching

from fsqueue import Group
from tests.cli.conftest import Run
from tests.hopping import ENDS, WAYS, Hopper
from tests.levels import each_once

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


@each_once(("command, given", ASKED), ("verb", ENDS))
def test_a_task_that_hops_is_not_missed_however_it_ends(
    fsqueue_cli: Run, tmp_path: Path, command: str, given: str, verb: str
) -> None:
    asked_while_a_task_hops(fsqueue_cli, tmp_path, command, given, "file", verb)


@each_once(("command, given", ASKED), ("way", WAYS))
def test_a_task_that_hops_is_not_missed_however_it_comes(
    fsqueue_cli: Run, tmp_path: Path, command: str, given: str, way: str
) -> None:
    asked_while_a_task_hops(fsqueue_cli, tmp_path, command, given, way, "cancel")
