"""The kinds of queues and groups that all behave alike. A new kind adds itself here, by one function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import Group, Queue
from tests.conformance.command_line import CommandLine
from tests.conformance.taskstore import Taskstore
from tests.gateways import gateways

Make = Callable[[Path], AbstractContextManager[Any]]

SETTINGS: dict[str, Any] = {"shards": 2, "max_attempts": 3, "lease_s": 60, "backoff_s": (0.01, 0.01),
                            "task_bytes_max": 1 << 20}  # fmt: skip
"""Those of each queue here."""


@contextmanager
def plain(home: Path) -> Iterator[Queue]:
    """Yield a queue at a directory."""
    with Queue.create(home / "queue", **SETTINGS) as queue:
        yield queue


@contextmanager
def of_a_group(home: Path) -> Iterator[Queue]:
    """Yield a queue of a group, which has come into being."""
    with local_group(home) as group:
        yield group["fetch"]


@contextmanager
def of_a_gateway(home: Path) -> Iterator[Any]:
    """Yield a queue of a gateway that serves a group."""
    with remote_group(home) as group:
        yield group["fetch"]


@contextmanager
def of_a_gateway_of_one(home: Path) -> Iterator[Any]:
    """Yield the queue of a gateway that serves that one alone."""
    with plain(home) as queue, gateways(home) as serve:
        yield fsqueue.connect(serve(queue.path))


@contextmanager
def of_commands(home: Path) -> Iterator[CommandLine]:
    """Yield a queue of a group whose verbs are commands."""
    with local_group(home) as group:
        yield CommandLine(group.path / "fetch")


@contextmanager
def of_taskstore(home: Path) -> Iterator[Taskstore]:
    """Yield a queue of a gateway that serves a group, for clients of taskstore."""
    with local_group(home) as group, gateways(home) as serve:
        yield Taskstore(serve(group.path), "fetch")


@contextmanager
def local_group(home: Path) -> Iterator[Group]:
    """Yield a group at a directory, with a queue that has come into being."""
    group = Group.create(home / "group", **SETTINGS)
    group["fetch"].insert_many([])
    yield group
    group["fetch"].close()


@contextmanager
def remote_group(home: Path) -> Iterator[Any]:
    """Yield a group of a gateway."""
    with local_group(home) as group, gateways(home) as serve:
        yield fsqueue.connect(serve(group.path))


QUEUES: dict[str, Make] = {
    "plain": plain,
    "group": of_a_group,
    "gateway": of_a_gateway,
    "gateway of one": of_a_gateway_of_one,
    "command line": of_commands,
    "taskstore": of_taskstore,
}
GROUPS: dict[str, Make] = {"group": local_group, "gateway": remote_group}
COMMANDS, TASKSTORE = "command line", "taskstore"
IN_GATE = ("group", "gateway", COMMANDS, TASKSTORE)
"""The kinds that the gate has. The others differ from one of them by how they are opened: a queue without a group has
all other tests, a gateway of one queue those of tests/service."""
IN_PYTHON = [kind for kind in QUEUES if kind not in (COMMANDS, TASKSTORE)]
"""Those whose verbs take values, and not words."""


def lacks(**why: str) -> pytest.MarkDecorator:
    """Return a mark: these kinds cannot run the test, each for its reason. `commands`, `taskstore`."""
    assert all(why.values())
    return pytest.mark.lacks([{"commands": COMMANDS, "taskstore": TASKSTORE}[kind] for kind in why])


A_LOOP = lacks(
    commands="A loop is a program's. The worker of `run` has tests of its own: tests/cli/test_run.py.",
    taskstore="A loop is a program's, which claims again and again.",
)
A_FUNCTION = lacks(commands="No command takes a function. Conditions: tests/cli/test_conditions.py.")
ANY_VALUE = lacks(
    commands="A command takes words, and JSON. What is none is tested in tests/cli/test_bad_input.py.",
    taskstore="A task has text. What is no request is tested in tests/service/test_taskstore_wire.py.",
)
AN_OBJECT = lacks(
    commands="A command keeps no object over a fork, or from one call to the next.",
    taskstore="Its clients are other programs, with no object of this library.",
)
THE_REASON = lacks(
    commands="It says why a lease is lost in a sentence, on standard error: tests/cli/test_leases.py.",
    taskstore="It names the id that is gone, and no reason.",
)
THE_HOST = lacks(
    commands="A command leases for a worker of this host: it takes its name alone.",
    taskstore="A client has a number, and no name.",
)
# What taskstore's protocol does not have. docs/taskstore.md says what it has in its place.
BY_ID = lacks(taskstore="Its ids are other numbers, and a claim takes a random task.")
A_KEY = lacks(taskstore="A task has no key, no priority, and no name that it is committed under.")
A_RESULT = lacks(taskstore="A delete brings no result. What comes of a task is another task.")
A_FAILURE = lacks(taskstore="An attempt fails if its claim runs out. A client does not see dead letters.")
A_PART = lacks(taskstore="An update happens as a whole, or not at all. A stream of tasks is inserted by one.")
AN_ID = lacks(taskstore="An id is a number, and an id that is gone tells nothing.")
