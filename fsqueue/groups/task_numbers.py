"""Numbers as ids of a group's tasks: each names one version of one task (docs/decisions/0053-taskstore-ids.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fsqueue.errors import InvalidArgument, NotAQueue, QueueNotFound, from_os_error
from fsqueue.filesystem import resources
from fsqueue.format import names
from fsqueue.format.models import DELAYED, LEASED, WAITING, State, TaskInfo
from fsqueue.format.names import Batch, QueueDirectory, QueueId
from fsqueue.format.numbers import TaskVersion, place_of
from fsqueue.groups.update import HasUpdates
from fsqueue.leased_task import LeasedTask
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.number_table import Numbers
from fsqueue.storage.store import Store
from fsqueue.views import inspection, task_history


@dataclass(frozen=True, slots=True)
class NumberedInfo:
    """A task that has a number. `owner`: the client that owns it until `available_ms` (Unix ms), or 0."""

    number: int
    task: TaskInfo
    owner: int
    available_ms: int
    token: str | None = None
    """The token of a lease on it that a client's gateway has made."""
    is_plain: bool = False
    """True if the payload is text, and the task has no priority."""


@dataclass(frozen=True, slots=True)
class NewNumber:
    """A version of a task that is to get a number. `owner`: the client that owns it, 32 bits with a sign; None if that
    is not known. `available_ms`: from when on nobody owns it (Unix ms).
    """

    task: TaskInfo | LeasedTask
    available_ms: int
    owner: int | None = None


class KnownNumbers:
    """Keep what a process knows of the numbers of one group. The group keeps this object, which does not refer
    to it.
    """

    def __init__(self) -> None:
        self.opened: tuple[GroupDirectory, Numbers] | None = None
        self.directories: dict[bytes, QueueDirectory] = {}


class TaskNumbers:
    """The numbers of a group's tasks: `group.numbers`. They grow from 1, and none is ever used twice.

    A number names a task as long as that is in the version in which it got the number. Any change of the task, by any
    process, ends the number. StorageError, StorageFull: the numbers that were asked for may be on disk, and nobody was
    told them; ask again. Safe to use from many threads, and after a fork.
    """

    def __init__(self, group: HasUpdates, known: KnownNumbers) -> None:
        self._group, self._known = group, known

    def give(self, tasks: Sequence[NewNumber]) -> list[NumberedInfo]:
        """Return the numbers of tasks of the group, each in the version in which it was seen.

        A version without one gets the next. A leased or delayed task of a known owner gets a new number if the present
        one names another owner, or none: the process that gave it may not have known the owner. The answer tells owner
        and time as they are kept with the number.
        """
        with self._verb("giving numbers to tasks of") as (_, kept):
            wanted = [(self._version(new), new.owner is not None and _is_held(new.task)) for new in tasks]
            given = kept.give(wanted)
        return [
            NumberedInfo(one.number, _info(new.task), one.owner, one.available_ms, _token(named), named.is_plain)
            for new, (named, _), one in zip(tasks, wanted, given, strict=True)
        ]

    def ended_by(self, task: LeasedTask, numbers: Sequence[int]) -> list[int]:
        """Return the numbers among `numbers` that named a leased task until this very lease ended them.

        Call it before the task gets its next number. Truth, unless the task's log is gone: then the list is empty.
        """
        with self._verb("reading numbers of") as (_, kept):
            batch, index = names.parse_task_id(task.id)
            queue, name = task.queue, task.queue.store.name_in_group
            identity = queue.store.queue_state.id
            of_task = [
                (number, named)
                for number, named in self._latest(kept, numbers).items()
                if (named.queue, named.batch, named.index) == (identity, batch, index)
                and name is not None
                and named.place == place_of(names.queue_directory(name))
            ]
            if not of_task:
                return []
            before = task_history.version_before(queue.store, task.id, task.version)
        return [number for number, named in of_task if named.version == before]

    def named(self, numbers: Sequence[int]) -> list[NumberedInfo | None]:
        """Return the task that each number names, as it was when it got the number, without its payload; None for none.

        A hint: the task itself is not read, and may have changed. An update that names its version finds out.
        """
        with self._verb("reading numbers of") as (group, kept):
            found: dict[int, NumberedInfo] = {}
            for number, named in self._latest(kept, numbers).items():
                directory = self._directory_of(group, named.place)
                queue = names.parse_queue_directory(directory) if directory is not None else None
                if directory is None or queue is None:
                    continue
                store = self._store_of(directory)
                if store is None:
                    continue
                is_held = named.available_ms > store.clock.now_ms()
                state: State = WAITING if not is_held else LEASED if named.lease else DELAYED
                info = TaskInfo(names.task_id(named.batch, named.index), state, version=named.version, queue=queue)
                found[number] = _numbered(number, named, info)
        return [found.get(number) for number in numbers]

    def now_ms(self, queue: str) -> int:
        """Return the time by which tasks of a queue are available: Unix milliseconds on the file server's clock. An
        estimate; of a queue that has not come into being, by this host's clock.
        """
        with self._verb("reading the clock of") as (group, _):
            store = self._store_of(names.queue_directory(queue))
            return (group if store is None else store).clock.now_ms()

    def find(self, numbers: Sequence[int]) -> list[NumberedInfo | None]:
        """Return the task that each number names; None if it names none, or none any more. Truth at some moment during
        the call.
        """
        with self._verb("looking up numbers of") as (group, kept):
            by_batch: dict[tuple[bytes, QueueId, Batch], list[tuple[int, TaskVersion]]] = {}
            for number, named in self._latest(kept, numbers).items():
                by_batch.setdefault((named.place, named.queue, named.batch), []).append((number, named))
            found: dict[int, NumberedInfo] = {}
            for (place, identity, batch), those in by_batch.items():
                directory = self._directory_of(group, place)
                infos = {} if directory is None else self._in_batch(directory, identity, batch, those)
                for number, named in those:
                    info = infos.get(named.index)
                    if info is not None and info.version == named.version:
                        found[number] = _numbered(number, named, info)
        return [found.get(number) for number in numbers]

    @staticmethod
    def _latest(kept: Numbers, numbers: Sequence[int]) -> dict[int, TaskVersion]:
        """Return the task versions of those numbers that are the latest of their tasks, as far as files of numbers
        tell.
        """
        kept.catch_up()
        found = kept.read(numbers)
        latest = {number: kept.latest(named.key, named.index) for number, named in found.items()}
        return {number: found[number] for number, one in latest.items() if one is not None and one.number == number}

    def _store_of(self, directory: QueueDirectory) -> Store | None:
        """Return an open queue's store; None if there is no such queue, as far as is known."""
        try:
            return self._group.opened_queue(directory).store
        except (QueueNotFound, NotAQueue):
            return None

    def _in_batch(
        self, directory: QueueDirectory, identity: QueueId, batch: Batch, those: list[tuple[int, TaskVersion]]
    ) -> dict[int, TaskInfo]:
        """Return what a batch tells of its tasks; nothing if their queue is gone, or another one has its place."""
        queue = self._group.opened_queue(directory)
        try:
            if not queue.exists() or queue.store.queue_state.id != identity:
                return {}
            return inspection.unfinished(queue.store, batch, [named.index for _, named in those])
        except (QueueNotFound, NotAQueue):
            return {}

    def _directory_of(self, group: GroupDirectory, place: bytes) -> QueueDirectory | None:
        """Return the directory that 8 bytes stand for; None if the group has none. One listing finds all of them."""
        if place not in self._known.directories:
            self._known.directories = {place_of(directory): directory for directory in group.directories()}
        return self._known.directories.get(place)

    def _version(self, new: NewNumber) -> TaskVersion:
        task = new.task
        name = task.queue if isinstance(task, TaskInfo) else task.queue.store.name_in_group
        if name is None:
            raise InvalidArgument(f"The task {task.id} is of no queue of the group {self._group.path}.")
        directory = names.queue_directory(name)
        queue = self._group.opened_queue(directory) if isinstance(task, TaskInfo) else task.queue
        lease = task.lease if isinstance(task, LeasedTask) else ""
        batch, index = names.parse_task_id(task.id)
        return TaskVersion(
            queue.store.queue_state.id,
            place_of(directory),
            batch,
            index,
            task.version,
            new.available_ms,
            new.owner or 0,
            lease,
            isinstance(task.payload, str) and task.priority is None,
        )

    @contextmanager
    def _verb(self, what: str) -> Iterator[tuple[GroupDirectory, Numbers]]:
        try:
            with resources.Scope():
                group = self._group.directory()
                opened = self._known.opened
                if opened is None or opened[0] is not group:
                    syncs = group.state.settings.durability != "none"
                    opened = self._known.opened = group, Numbers(group, syncs)
                yield opened
        except OSError as error:
            raise from_os_error(error, f"{what} the group {self._group.path}") from error


def _numbered(number: int, named: TaskVersion, info: TaskInfo) -> NumberedInfo:
    return NumberedInfo(number, info, named.owner, named.available_ms, _token(named), named.is_plain)


def _token(named: TaskVersion) -> str | None:
    return names.token(named.batch, named.index, named.lease) if named.lease else None


def _is_held(task: TaskInfo | LeasedTask) -> bool:
    """Return whether a task is leased or delayed."""
    return not isinstance(task, TaskInfo) or task.state != WAITING


def _info(task: TaskInfo | LeasedTask) -> TaskInfo:
    """Return what is known of a task."""
    if isinstance(task, TaskInfo):
        return task
    return TaskInfo(
        task.id, LEASED, task.payload, task.attempt, version=task.version, queue=task.queue.store.name_in_group
    )
