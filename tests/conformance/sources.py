"""The kinds of what tasks are leased from, and waited for: one queue, or several together.

A new kind adds itself here, by one function.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import fsqueue
from fsqueue import Group, LeasedTask, Queue, Status
from fsqueue.views.rates import total
from tests.conformance.kinds import SETTINGS
from tests.disks import small_disk
from tests.gateways import gateways

NAMES = ("a", "b", "c")


@dataclass
class Source:
    """Queues that tasks are leased from together.

    `lease`, `wait`: the verbs. `of_worker`: what a worker takes. `places`: the directories of the queues. `goes_away`:
    the last one, or its group, which a filesystem that is unmounted takes away.
    """

    queues: Sequence[Any]
    lease: Callable[..., list[LeasedTask]]
    wait: Callable[..., Status]
    of_worker: Any
    places: Sequence[Path]
    goes_away: Path

    def is_drained(self) -> bool:
        """Return whether a wait says so. Where there is a verb that asks, it says the same."""
        drained = self.wait(0).drained
        if hasattr(self.of_worker, "is_drained"):
            assert self.of_worker.is_drained() == drained
        return drained


Make = Callable[[Path], AbstractContextManager[Source]]


def alone(queue: Any, place: Path, goes_away: Path) -> Source:
    return Source([queue], partial(queue.lease, strict=True), queue.wait, queue, [place], goes_away)


def together(queues: Sequence[Queue], waited_for: Sequence[Any], goes_away: Path | None = None) -> Source:
    """Return queues that are leased from by `fsqueue.lease`, and waited for by `fsqueue.wait`."""

    def wait(timeout_s: float | None = None, poll: Callable[[Status], object] | None = None) -> Status:
        told = None if poll is None else lambda found: poll(total(found))
        return total(fsqueue.wait(waited_for, timeout_s, told))

    places = [queue.path for queue in queues]
    return Source(queues, partial(fsqueue.lease, queues), wait, waited_for, places, goes_away or places[-1])


@contextmanager
def a_queue(home: Path) -> Iterator[Source]:
    with Queue.create(home / "a", **SETTINGS) as queue:
        yield alone(queue, queue.path, queue.path)


@contextmanager
def a_gateways_queue(home: Path) -> Iterator[Source]:
    with gateways(home) as serve:
        group = Group.create(home / "group", **SETTINGS)
        yield alone(fsqueue.connect(serve(group.path))["a"], group.path / "a", group.path)


@contextmanager
def queues(home: Path) -> Iterator[Source]:
    with ExitStack() as closing:
        made = [closing.enter_context(Queue.create(home / name, **SETTINGS)) for name in NAMES]
        yield together(made, made)


@contextmanager
def disks(home: Path) -> Iterator[tuple[Path, Path]]:
    """Yield two directories on two filesystems."""
    with small_disk(home / "far", 8, 2_000) as far:
        (home / "near").mkdir()
        assert os.stat(far).st_dev != os.stat(home).st_dev
        yield home / "near", far


@contextmanager
def queues_on_two_filesystems(home: Path) -> Iterator[Source]:
    with disks(home) as (near, far), ExitStack() as closing:
        paths = [near / "a", near / "c", far / "b"]
        made = [closing.enter_context(Queue.create(path, **SETTINGS)) for path in paths]
        yield together(made, made)


@contextmanager
def groups_on_two_filesystems(home: Path) -> Iterator[Source]:
    with disks(home) as places, ExitStack() as closing:
        near, far = (closing.enter_context(Group.create(place / "group", **SETTINGS)) for place in places)
        yield together([near["a"], near["c"], far["b"]], [near, far], far.path)


@contextmanager
def a_selection(home: Path) -> Iterator[Source]:
    with Group.create(home / "group", **SETTINGS) as group:
        yield of_group(group, group)


@contextmanager
def a_gateways_selection(home: Path) -> Iterator[Source]:
    with gateways(home) as serve, Group.create(home / "group", **SETTINGS) as group:
        yield of_group(fsqueue.connect(serve(group.path)), group)


def of_group(group: Any, local: Group) -> Source:
    """Return the queues of a group that match. Another one has tasks, too."""
    local["other"].insert("left alone")
    chosen = group.matching("[abc]")
    places = [local.path / name for name in NAMES]
    return Source([group[name] for name in NAMES], chosen.lease, chosen.wait, chosen, places, local.path)


SOURCES: dict[str, Make] = {
    "queue": a_queue,
    "gateway's queue": a_gateways_queue,
    "queues": queues,
    "queues on two filesystems": queues_on_two_filesystems,
    "groups on two filesystems": groups_on_two_filesystems,
    "selection": a_selection,
    "gateway's selection": a_gateways_selection,
}
OF_SEVERAL = [kind for kind in SOURCES if not kind.endswith("queue")]
