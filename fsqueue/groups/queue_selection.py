"""Which queues of a group are meant: all, those whose names match, or some by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from fsqueue.errors import FsqueueError, InvalidArgument, NotAQueue, QueueFileLost, from_os_error, in_unicode
from fsqueue.filesystem import resources
from fsqueue.format import layout, names
from fsqueue.format.names import QueueDirectory
from fsqueue.groups.queue import GroupQueue, HasQueues, listed_queue
from fsqueue.interruptions import suppress
from fsqueue.storage.group_directory import DirectoryStamp, GroupDirectory
from fsqueue.storage.listening import Doorbell
from fsqueue.storage.queue_file import state_in


class Selected:
    """Select queues of a group, also those that come later. Safe to use from many threads.

    `pattern`: a regular expression for the whole name; None for every name. `names`: these queues alone.
    """

    def __init__(self, group: HasQueues, pattern: str | None = None, names_: tuple[str, ...] | None = None) -> None:
        own: object = self
        if group is not own:  # else it would keep itself from being let go of
            self._group = group
        self.pattern = pattern
        self.names = names_
        self._matches = None if pattern is None else compiled(pattern).fullmatch
        self._fixed = None if names_ is None else [names.queue_directory(name) for name in names_]

    @property
    def group(self) -> HasQueues:
        """Return the group of the selected queues."""
        return self._group

    def directories(self) -> list[QueueDirectory]:
        """Return the directories of the selected queues that are there, unordered, by one listing of the group.

        Not all of them need to hold a queue: one may just be coming into being, or be a stray. GroupNotFound.
        """
        group = self.group.directory()
        try:
            with resources.Scope():
                if self._fixed is not None:
                    return [one for one in self._fixed if group.is_there(one)]
                found = group.directories()
        except OSError as error:
            raise from_os_error(error, f"listing the group {group.path}") from error
        matches = self._matches
        if matches is None:
            return found
        return [one for one in found if matches(names.parse_queue_directory(one) or "")]

    def stamp(self) -> DirectoryStamp:
        """Return a stamp that changes whenever a queue of the group comes into being or is deleted. GroupNotFound."""
        group = self.group.directory()
        try:
            with resources.Scope():
                return group.stamp()
        except OSError as error:
            raise from_os_error(error, f"looking at the group {group.path}") from error

    def queue_stamp(self, directory: QueueDirectory) -> object:
        """Return a stamp that changes whenever the queue in a directory comes into being or is closed.
        GroupNotFound.
        """
        group = self.group.directory()
        try:
            with resources.Scope():
                return group.queue_stamp(directory)
        except OSError as error:
            raise from_os_error(error, f"looking at the queue {group.path_of(directory)}") from error

    def queue_in(self, directory: QueueDirectory) -> GroupQueue:
        """Return the queue whose directory this is."""
        return listed_queue(self.group, directory)

    def states(self, strays: list[NotAQueue] | None = None) -> Iterator[tuple[str, tuple[str, int]]]:
        """Yield the path of each selected queue, with its id and generation. Those that cannot be read are left out.

        `strays`: gets the errors of queues and groups that were moved into this group. GroupNotFound.
        """
        group = self.group.directory()
        for directory in self.directories():
            state = None
            path = layout.settings_file(group.path_of(directory))
            with suppress(OSError, FsqueueError), resources.Scope(), group.fs.closing(group.fs.look(path)) as fd:
                state = state_in(group.fs, fd, group.path_of(directory))
            if state is not None and state.group == group.state.id:
                if not state.closed:
                    yield group.path_of(directory), (state.id, state.generation)
            elif strays is not None:
                strays += _error_of_stray(group, directory)

    def bells(self, directories: Iterable[QueueDirectory]) -> Iterator[bytes]:
        """Yield the value of each queue's doorbell, without opening the queue; b"" if it has none. A hint.

        GroupNotFound.
        """
        group = self.group.directory()
        for directory in directories:
            path = group.path_of(directory)
            yield Doorbell(group.fs, f"{path}/doorbell", group.entropy).read()


def _error_of_stray(group: GroupDirectory, directory: QueueDirectory) -> Iterator[NotAQueue]:
    try:
        with suppress(OSError, QueueFileLost), resources.Scope():
            group.has_queue(directory)
    except NotAQueue as error:
        yield error


def compiled(pattern: object) -> re.Pattern[str]:
    """Return a pattern for whole names, in which `.` also matches a line break; InvalidArgument if it is none."""
    try:
        if isinstance(pattern, str) and in_unicode(pattern) == pattern:
            return re.compile(pattern, re.DOTALL)
        why = "it is no text that UTF-8 can hold"
    except (re.error, RecursionError, OverflowError) as error:
        why = str(error)
    raise InvalidArgument(
        f"{pattern!r:.100} is no regular expression for names of queues: {why}. Write, for instance, 'fetch' for one "
        "name, or '.*#fetch' for all that end so."
    )
