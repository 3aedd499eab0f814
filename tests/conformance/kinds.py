"""The kinds of queues and groups that all behave alike. A new kind adds itself here, by one function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import fsqueue
from fsqueue import Group, Queue
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
}
GROUPS: dict[str, Make] = {"group": local_group, "gateway": remote_group}
