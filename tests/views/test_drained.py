""" "Drained" beside a task that always lives, and hops from place to place by every verb: it is never said."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import fsqueue
from fsqueue import Group, LeasedTask, Queue, StorageError
from fsqueue.format import names
from fsqueue.poll import EndCheck, Prefetched
from fsqueue.storage import letter_files
from fsqueue.storage.journals import Journal
from fsqueue.views.inspection import DrainCheck
from fsqueue.worker.sources import sources_of
from tests.concurrency.trapped import trapped_group
from tests.hopping import ENDS, WAYS, Hopper
from tests.levels import each_once
from tests.support import insert_in_file
from tests.waiting import until

pytestmark = pytest.mark.once


def waits(wait: Callable[[], list[fsqueue.Status]]) -> bool:
    """Return whether a wait says that all is drained. It says so of a proof alone."""
    try:
        return all(status.drained for status in wait())
    except StorageError as error:
        if "are not drained" not in str(error):
            raise
        return False


def loop(queue: Queue) -> Prefetched:
    return Prefetched(queue, None, False, "record", None)


ASKED: dict[str, Callable[[Group], bool]] = {
    "a queue": lambda group: group["b"].is_drained(),
    "waiting for a queue": lambda group: waits(lambda: [group["b"].wait(0)]),
    "a loop over a queue": lambda group: EndCheck(group["b"].store, loop(group["b"]))(),
    "several queues": lambda group: DrainCheck(group["a"].store, group["b"].store)(),
    "waiting for several": lambda group: waits(lambda: fsqueue.wait([group.path / "a", group.path / "b"], 0)),
    "a worker of several": lambda group: sources_of(
        [fsqueue.Queue(group.path / name) for name in "ab"]
    ).drain_check()(),
    "a group": lambda group: group.is_drained(),
    "waiting for a group": lambda group: waits(lambda: [group.wait(0)]),
    "a worker of a group": lambda group: sources_of(group).drain_check()(),
}
OF_ONE = ("a queue", "waiting for a queue", "a loop over a queue")


def asked_while_a_task_hops(path: Path, asked: str, way: str, verb: str) -> None:
    hopper = Hopper(path / "group", way, verb, "b" if asked in OF_ONE else "ab")
    with hopper.hopping() as group:
        for _ in range(3):
            assert not ASKED[asked](group)
        assert hopper.hops
        hopper.end()
        assert ASKED[asked](group)


@each_once(("asked", list(ASKED)), ("verb", ENDS))
def test_a_task_that_hops_is_not_missed_however_it_ends(tmp_path: Path, asked: str, verb: str) -> None:
    asked_while_a_task_hops(tmp_path, asked, "file", verb)


@each_once(("asked", list(ASKED)), ("way", WAYS))
def test_a_task_that_hops_is_not_missed_however_it_comes(tmp_path: Path, asked: str, way: str) -> None:
    asked_while_a_task_hops(tmp_path, asked, way, "cancel")


@each_once(("way", WAYS), ("verb", ENDS))
def test_a_task_that_hops_is_not_missed_however_it_comes_and_ends(tmp_path: Path, way: str, verb: str) -> None:
    asked_while_a_task_hops(tmp_path, "a group", way, verb)


class Renamer:
    """Another process: it leases the only task, or puts it back, while the directory of the task's file is listed.

    Each of that renames the file. So no listing shows it, and the log grows.
    """

    def __init__(self, path: Path) -> None:
        self.group = Group.create(path, shards=1, durability="none")
        for queue in (self.group["a"], self.group["b"]):
            queue.insert("the first one")
            queue.complete(queue.lease())
        self.queue = self.group["b"]
        insert_in_file(self.queue, "the only one")
        layout = self.queue.store.layout
        (self.batch, _), *_ = [names.parse_task_id(one.id) for one in self.queue.tasks()]
        self.directory = f"{layout.tasks}/{layout.shard(self.batch)}"
        self.held: list[LeasedTask] = []
        self.listings = 0

    def __call__(self, step: str, call: Callable[..., Any], *args: Any) -> Any:
        if (step, *args[:1]) != ("names", self.directory):
            return call(*args)
        self.listings += 1
        before = set(call(*args))
        self.rename()
        return before.intersection(call(*args))

    def rename(self) -> None:
        if self.held:
            self.queue.release(self.held)
            self.held = []
        else:
            self.held = self.queue.lease(lease_s=1000 + self.listings)
            assert self.held


@pytest.mark.parametrize("asked", ASKED)
def test_a_task_whose_file_is_renamed_at_each_listing_is_not_missed(tmp_path: Path, asked: str) -> None:
    """A batch whose file is not seen counts as one that has lost it. Its log is longer at the next look.

    No lease holds the task whenever its log is read: such a lease would say by itself that the task lives.
    """
    renamer = Renamer(tmp_path / "group")
    with trapped_group(renamer.group.path, renamer) as group:
        for _ in range(3):
            if not renamer.held:
                renamer.rename()
            begun = renamer.listings
            assert not ASKED[asked](group)
            assert renamer.listings >= begun + 4, "two looks missed the file, by two listings each"


@pytest.mark.parametrize("asked", ASKED)
def test_a_batch_that_has_lost_its_file_ends_workers_and_a_repair_ends_waits(tmp_path: Path, asked: str) -> None:
    """Nobody renames it, and its log stays as it is: the task is lost. Its status shows it, until it is a letter."""
    renamer = Renamer(tmp_path / "group")
    renamer.rename()
    renamer.rename()
    assert not renamer.held
    (name,) = [one for one in os.listdir(renamer.directory) if renamer.batch in one]
    os.unlink(os.path.join(renamer.directory, name))
    group = Group(renamer.group.path)
    assert ASKED[asked](group) == ("waiting" not in asked)
    assert [one.kind for one in group["b"].fsck(repair=True)] == ["task-file-gone"]
    assert ASKED[asked](group)
    assert group["b"].status().dead == 1


@pytest.mark.parametrize("asked", ASKED)
def test_a_leased_task_whose_file_is_lost_is_waited_for_until_its_lease_ends(tmp_path: Path, asked: str) -> None:
    renamer = Renamer(tmp_path / "group")
    renamer.rename()
    assert renamer.held
    for name in os.listdir(renamer.directory):
        os.unlink(os.path.join(renamer.directory, name))
    group = Group(renamer.group.path)
    assert not ASKED[asked](group)
    renamer.held[0].renew(0.05)
    until(lambda: group["b"].status().leased == 0, "the end of the lease")
    assert ASKED[asked](group) == ("waiting" not in asked)


@pytest.mark.parametrize("asked", ASKED)
def test_a_leased_task_whose_file_is_lost_may_be_completed(tmp_path: Path, asked: str) -> None:
    renamer = Renamer(tmp_path / "group")
    renamer.rename()
    for name in os.listdir(renamer.directory):
        os.unlink(os.path.join(renamer.directory, name))
    group = Group(renamer.group.path)
    assert not ASKED[asked](group)
    renamer.held[0].complete()
    assert ASKED[asked](group)
    assert group["b"].status().completed == 2


class Purger(Hopper):
    """A hopper that buries its task and purges the letter. That gives back the room: each file of letters is new."""

    def hop(self, directory: str, way: str) -> None:
        super().hop(directory, way)
        for queue in self.queues.values():
            queue.purge_dead()


@contextmanager
def numbers_that_come_again() -> Iterator[None]:
    """Have a file's number and times say nothing: a number may come again, and times may count whole seconds."""
    version, state_of = letter_files.version, letter_files.state_of

    def begin(file: Journal) -> letter_files.Version:
        return version(file)._replace(inode=1)

    def coarse(file: Journal) -> letter_files.State:
        return state_of(file)._replace(inode=1, changed_ns=1)

    with (
        mock.patch.object(letter_files, "version", begin),
        mock.patch.object(letter_files, "state_of", coarse),
        mock.patch.object(letter_files, "BLOCK_BYTES", 0),
    ):
        yield


@pytest.mark.parametrize("asked", ASKED)
def test_a_task_is_not_missed_whose_letter_is_given_back_at_once(tmp_path: Path, asked: str) -> None:
    """The file of letters has the size that it had before, and perhaps the number and the time."""
    hopper = Purger(tmp_path / "group", "file", "bury", "b" if asked in OF_ONE else "ab")
    with numbers_that_come_again(), hopper.hopping() as group:
        for _ in range(3):
            assert not ASKED[asked](group)
        assert hopper.hops
        hopper.end()
        assert ASKED[asked](group)
