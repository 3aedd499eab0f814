"""The directory of a group of queues: its file, the queues in it, and how one comes into being.

docs/format-groups.md, "Groups"; docs/design.md, section 4.21.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fsqueue.clock import Clock, Entropy, LatestMeasurement
from fsqueue.errors import (
    FsqueueError,
    GroupNotFound,
    HiddenTasks,
    InvalidArgument,
    NotAQueue,
    QueueClosed,
    QueueNotFound,
    StorageError,
    from_os_error,
)
from fsqueue.filesystem import NOT_FILES, Filesystem, Stamp, directories_above, is_gone, mount_of
from fsqueue.format import layout, names, sparse
from fsqueue.format.groups import GROUP_FILE, GroupState, barriers_directory, bell_of, group_file, read_group_state
from fsqueue.format.layout import QueueState
from fsqueue.format.names import QueueDirectory
from fsqueue.interruptions import let_out, suppress
from fsqueue.storage import absence, queue_changes, remains
from fsqueue.storage.bells import Bells, GroupDoorbell
from fsqueue.storage.queue_file import refuse_stray_group_file, state_in
from fsqueue.storage.store import Store

BEGIN_TRIES = 10
"""Maximum number of times that a queue is begun whose directory others move away meanwhile."""


SECOND_NS = 1_000_000_000


class QueueMoved(StorageError):
    """The directory of a queue was moved away while the queue was coming into being."""


class GroupFileLost(GroupNotFound):
    """A group's own file is gone, and queues of it are there: `fsqueue fsck --repair` writes the file again."""

    why = f"has no {GROUP_FILE} any more: see fsqueue fsck"


def gone(path: str) -> GroupNotFound:
    """Return the error for a group that was open, and is not in its place any more."""
    return GroupNotFound(
        f"The group {path} is not there any more. If it lies on another filesystem, check that this is mounted; else "
        "it was deleted or moved."
    )


def replaced(path: str) -> GroupNotFound:
    """Return the error for a group that was open, and in whose place another one is."""
    error = GroupNotFound(
        f"{path} holds another group than the one that was opened. If that one lies on another filesystem, check that "
        "this is mounted; else it was deleted, and another group made in its place. To use what is there now, open it "
        "again with Group(path)."
    )
    error.why = "holds another group than the one that was opened (not mounted?)"
    return error


class DirectoryStamp(NamedTuple):
    """The times of a group's directory, its number, and how many names it has."""

    mtime_ns: int
    ctime_ns: int
    number: int
    links: int

    def shows_after_s(self) -> float:
        """Return after how many seconds each further change makes another stamp.

        Kernels stamp by a clock that ticks every 10 ms at most. Some filesystems keep whole seconds.
        """
        return 1.1 if not self.mtime_ns % SECOND_NS and not self.ctime_ns % SECOND_NS else 0.02


class GroupDirectory:
    """An open group. All below is resolved from its directory, and no link is followed: see `Rooted`.

    GroupNotFound if there is no group at `path`; NotAQueue or FormatTooNew if its file cannot be read.
    """

    def __init__(self, path: str, fs: Filesystem | None = None) -> None:
        self.path = path
        mount = mount_of(path)
        self.fs = fs or Filesystem(path, shared=mount.shared, lists_by_time=mount.lists_by_time)
        self.clock, self.entropy = Clock(), Entropy()
        self.bells = Bells(self.fs, path, self.clock, self.entropy)
        self._measurement = LatestMeasurement()
        self.left_in_logs: dict[str, tuple[Stamp, int]] = {}
        """Number of tasks that a log of an open batch said to be left, by the log's path, and the log's stamp then:
        `unopened_queues`."""
        try:
            self._stamp, self.state = self._read()
        except GroupNotFound:
            if not mount.shared or not _is_there_after_all(path):
                raise
            self._stamp, self.state = self._read()

    def is_in_place(self) -> bool:
        """Return whether the path still leads to this group: neither moved nor removed, nor replaced by another group.

        The id in its file decides. While that file is the one that was read, and unchanged, this is one system call.
        NotAQueue, FormatTooNew. On a network filesystem an answer may be a minute old.
        """
        if self.fs.stamp_at(group_file(self.path)) == self._stamp:
            return True
        if not self.fs.is_in_place():
            return False
        try:
            stamp, state = self._read()
        except GroupNotFound:
            return False
        if state.id != self.state.id:
            return False
        self._stamp, self.state = stamp, state
        return True

    def _read(self) -> tuple[Stamp, GroupState]:
        """Return the content of the group's file, and the identity of that file."""
        try:
            stamp, pieces = self.fs.read_stamped(group_file(self.path))
        except OSError as error:
            if not is_gone(error) and error.errno not in NOT_FILES:
                raise
            if error.errno in NOT_FILES:
                refuse_stray_group_file(self.fs, self.path)
            if error.errno == errno.ENOTDIR:
                raise NotAQueue(f"{self.path} is a file, or lies below one: it is no group's directory.") from None
            if is_gone(error) and self.fs.exists(layout.settings_file(self.path)):
                raise NotAQueue(f"{self.path} is a queue, and no group of queues. Check the path.") from None
            lost = remains.without_group(self.fs, self.path)
            if lost is not None:
                raise GroupFileLost(lost) from None
            raise GroupNotFound(
                f"There is no group of queues at {self.path}. "
                + absence.how_to_go_on(self.path, f"fsqueue create --group {shlex.quote(self.path)}")
            ) from None
        if is_planted(self.fs, self.path):
            raise NotAQueue(
                f"{group_file(self.path)} is another user's, in a directory in which all users may write. It makes "
                "no group. Nothing was changed. Choose another path."
            )
        return stamp, read_group_state(sparse.content_of(pieces), self.path)

    def read_anew(self) -> GroupState:
        """Read the group's file, by a revalidating open, and return its state. GroupNotFound if the group is not there,
        or another one is.
        """
        stamp, state = self._read()
        if state.id != self.state.id:
            raise replaced(self.path)
        self._stamp, self.state = stamp, state
        return state

    def path_of(self, directory: QueueDirectory) -> str:
        """Return the path of a queue's directory."""
        return f"{self.path}/{directory}"

    def stamp(self) -> DirectoryStamp:
        """Return a stamp that changes when a queue comes into being or is deleted, as a server knows it at this moment.

        Changes in one tick of the clock that stamps the directory leave it equal.
        """
        fd = self.fs.look(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            found = self.fs.fstat(fd)
            return DirectoryStamp(found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_nlink)
        finally:
            self.fs.close(fd)

    def queue_stamp(self, directory: QueueDirectory) -> Stamp | None:
        """Return the stamp of a queue's own file, as a server knows it at this moment; None if there is none.

        To close a queue makes its file longer.
        """
        try:
            return self.fs.read_stamped(layout.settings_file(self.path_of(directory)))[0]
        except OSError as error:
            let_out(error)
            if is_gone(error) or error.errno in NOT_FILES:
                return None
            raise

    def directories(self) -> list[QueueDirectory]:
        """Return the names that queues can have, unordered, by one listing. A hint: nothing in them is read.

        Links are among them, and what is neither a directory nor a file: tasks may be behind it, and `hidden` tells.
        A file is not: no tasks are behind it, and the output of a job, for example, is no queue.
        """
        return names.listed_queue_directories(self.fs.names_but_files(self.path))

    def has_barriers(self) -> bool:
        """Return whether the group ever had a barrier, by one system call on a local disk."""
        return self.fs.is_directory(barriers_directory(self.path))

    def is_there(self, directory: QueueDirectory) -> bool:
        """Return whether there is something at a queue's path: a queue, what is left of one, or one that is coming."""
        path = self.path_of(directory)
        try:
            return self.fs.exists(layout.settings_file(path)) or bool(remains.of_queue(self.fs, path))
        except OSError as error:
            let_out(error)
            if error.errno in NOT_FILES:
                return True  # a link, for example: tasks may be behind it
            raise

    def hidden(self, directory: QueueDirectory) -> HiddenTasks | None:
        """Return the error for what stands in the place of a queue's directory, or of its own file; None for neither.

        For what is thorough: `has_queue` learns it from the error of its open.
        """
        try:
            with self.fs.closing(self.fs.look(layout.settings_file(self.path_of(directory)))) as fd:
                code = errno.EISDIR if stat.S_ISDIR(self.fs.fstat(fd).st_mode) else 0
        except OSError as error:
            let_out(error)
            if error.errno not in NOT_FILES:
                return None  # other checks tell of it
            code = error.errno
        return self._hidden(self.path_of(directory), code) if code else None

    def _hidden(self, path: str, code: int) -> HiddenTasks:
        """Return the error for what an open of a queue's file met on its way, without following it."""
        return self.fs.hidden(layout.settings_file(path), code)

    def has_queue(self, directory: QueueDirectory) -> bool:
        """Return whether a queue is there, by its file alone. NotAQueue if it was not made in this group; other errors
        as of `queue_state`.
        """
        state = self.queue_state(directory)
        if state is None:
            return False
        self.refuse_foreign(state, self.path_of(directory))
        return True

    def queue_state(self, directory: QueueDirectory) -> QueueState | None:
        """Return the state of the queue at a place, as its file says, by a revalidating open; None if nothing is there.
        The queue may be another group's. No link is followed.

        HiddenTasks if something else stands in the place of the file, or of the queue: there may be tasks behind it.
        QueueFileLost if the file is gone, and tasks are there. Other errors as of `layout.read_queue_state`; OSError.
        """
        path = self.path_of(directory)
        try:
            return layout.read_queue_state(sparse.content_of(self.fs.read_pieces(layout.settings_file(path))), path)
        except OSError as error:
            let_out(error)
            if is_gone(error):
                remains.refuse(self.fs, path)
                self._refuse_nested(path)
                return None
            if error.errno in NOT_FILES:
                raise self._hidden(path, error.errno) from None
            raise

    def _refuse_nested(self, path: str) -> None:
        """Raise NotAQueue if another group lies in this one: its tasks are in no queue of this group."""
        if self.fs.exists(group_file(path)):
            raise NotAQueue(
                f"{path} is a group of its own, and lies in the group {self.path}: somebody has moved it here. It was "
                f"left as it is, and its queues are none of this group's. Move it out of {self.path}."
            )

    def refuse_foreign(self, state: QueueState, path: str) -> None:
        """Raise NotAQueue unless this is a queue of the group.

        To open a queue may write into it, on a network mount: into no other group's.
        """
        if state.group != self.state.id:
            raise NotAQueue(
                f"{path} holds a queue that was not made in this group: somebody has moved it here, or restored it. It "
                "was left as it is, and its tasks count in no look at the group. Move it out of the group: there it is "
                "a queue of its own."
            )

    def open_root(self, fs: Filesystem) -> None:
        """Open the directory of a queue of this group, for `Store`, in the group's open directory. OSError.

        QueueFileLost if something else stands in its place.

        By its path a neighbour could lead it to a queue elsewhere, just now: to open that one may write into it.
        """
        try:
            fs.open_root_in(self.fs)
        except NotADirectoryError:
            raise self._lost(fs.root, errno.ENOTDIR) from None
        except FileNotFoundError:
            raise QueueNotFound(f"The queue {fs.root} was deleted just now.") from None

    def measurement_for(self, fs: Filesystem) -> LatestMeasurement:
        """Return the latest measurement of the clock of the file server that has a queue's open directory.

        The queues of a group share it, unless something is mounted in the place of one.
        """
        return self._measurement if fs.device == self.fs.device else LatestMeasurement()

    def doorbell(self, fs: Filesystem, path: str, entropy: Entropy) -> GroupDoorbell:
        """Return the doorbell of a queue of this group, which rings the queue's bell, too."""
        directory = names.listed_queue_directory(fs.root.rpartition("/")[2])
        assert directory is not None, "it was opened by that name"
        return GroupDoorbell(fs, path, entropy, self.bells, bell_of(directory))

    def prove(self, store: Store, directory: QueueDirectory) -> None:
        """Raise unless an open queue is the group's own: made in this group, and its directory in its place.

        A neighbour may have put a link in the place of the directory, or moved another group's queue there.
        """
        self.refuse_foreign(store.queue_state, store.path)
        try:
            mine = self.fs.stat(self.path_of(directory))
        except FileNotFoundError:
            raise QueueNotFound(f"The queue {store.path} was deleted just now.") from None
        opened = store.fs.stat(store.path)
        if not stat.S_ISDIR(mine.st_mode) or (mine.st_dev, mine.st_ino) != (opened.st_dev, opened.st_ino):
            if not stat.S_ISDIR(mine.st_mode):
                raise self._lost(store.path, errno.ENOTDIR)
            raise QueueNotFound(f"The queue {store.path} was deleted just now, and another one made in its place.")

    def _lost(self, path: str, code: int) -> FsqueueError:
        return from_os_error(self._hidden(path, code), f"opening the queue {path}")

    # -- a queue comes into being ----------------------------------------------------------------------------

    def begin(self, directory: QueueDirectory) -> None:
        """Make a queue, unless there is one. A complete `queue.jsonl` is linked to its name, which decides.

        A crash before the link leaves an empty directory, or one with a file `.new-…`: the next process that inserts
        goes on with it. QueueClosed if a deleted queue is still in place; QueueMoved if the directory was moved
        meanwhile: in both cases the caller begins anew. HiddenTasks if something else has the name, or that of its
        file; NotAQueue if the directory holds something else.
        """
        path = self.path_of(directory)
        try:
            self._begin(path)
        except OSError as error:
            let_out(error)
            if error.errno in (*NOT_FILES, errno.EEXIST, errno.EXDEV):
                raise self._hidden(path, error.errno) from None
            if is_gone(error):
                raise QueueMoved(f"{path} was moved away while the queue was coming into being.") from None
            raise

    def _begin(self, path: str) -> None:
        fs = self.fs
        fs.make_directory(path)
        present = [name for name in fs.names(path) if not layout.is_leftover(name)]
        if layout.SETTINGS_FILE not in present:
            self._refuse_strange(path, present)
            self._link(path)
        fd = fs.look(layout.settings_file(path))
        try:
            state = state_in(fs, fd, path)
            if state.closed:
                raise QueueClosed(f"The queue {path} has been deleted.")
            self._mark_if_limited(state, path)
            # The process that linked it may have died before these: what is inserted below would be lost with it.
            fs.fsync(fd)
        finally:
            fs.close(fd)
        fs.sync_directory(path)
        fs.sync_directory(self.path)

    def mark_late(self, store: Store) -> None:
        """Mark an open queue of this group that has no mark although the group has limits. Who may only read it cannot
        lease from it, either.
        """
        with suppress(PermissionError, FileNotFoundError):
            queue_changes.mark_group_limits(self.fs, self.clock, self.entropy, store.path, self.state.id)
            store.refresh(now=True)

    def _mark_if_limited(self, state: QueueState, path: str) -> None:
        """Mark a queue that has just come into being, if the group has got limits meanwhile, and has not been listed
        with it (docs/decisions/0078-limits-of-a-group.md)."""
        if not state.has_group_limits:
            if self.fs.shared:
                self.read_anew()
            elif not self.is_in_place():
                raise gone(self.path)
            if self.state.limits is not None:
                queue_changes.mark_group_limits(self.fs, self.clock, self.entropy, path, self.state.id)

    def _link(self, path: str) -> None:
        fs, now = self.fs, self.clock.now_ms()
        fresh = f"{path}/{names.fresh(self.entropy.hex16())}"
        unsafe = layout.unsafe_record(now) if self.state.allows_unsafe else b""
        mark = b"" if self.state.limits is None else layout.group_mark(now)
        birth = layout.birth_record(self.state.settings, self.entropy.hex16(), now)
        birth += layout.place_record(fs.place(path), now)
        fd = fs.create(fresh)
        try:
            fs.write_all(fd, birth + layout.group_record(self.state.id, now) + unsafe + mark)
            fs.fsync(fd)
            with suppress(FileExistsError):  # another process has made the same queue just now
                fs.link(fresh, layout.settings_file(path))
        finally:
            fs.close(fd)
            with suppress(OSError):  # no process reads it
                fs.unlink(fresh)

    def _refuse_strange(self, path: str, present: list[str]) -> None:
        """Raise NotAQueue if a directory without a queue was not left by a process that died while it made one."""
        remains.refuse(self.fs, path)
        if present:
            raise NotAQueue(
                f"{path} is in the way of a queue of this group: it has {present[0]!r} in it, and no queue. It was "
                "left as it is. Move it elsewhere, or choose another name."
            )
        mine, group = self.fs.stat(path), self.fs.stat(self.path)
        is_members = group.st_mode & stat.S_ISGID and group.st_mode & stat.S_IWGRP and mine.st_gid == group.st_gid
        if mine.st_uid not in (0, os.geteuid(), group.st_uid) and not is_members:
            raise NotAQueue(
                f"{path} is an empty directory of another user, who could read and replace what is put there. It was "
                "left as it is. Choose another name, or have its owner remove it."
            )


def refuse_lost(path: str) -> None:
    """Raise GroupFileLost if a directory holds queues of a group whose own file is gone."""
    fs = Filesystem(path)
    try:
        lost = remains.without_group(fs, path)
    finally:
        fs.close_root()
    if lost is not None:
        raise GroupFileLost(lost)


def is_group(path: str, refuses_strays: bool = False) -> bool:
    """Return whether a directory holds a group, damaged or not. OSError if that cannot be found out.

    `refuses_strays`: NotAQueue if something else that no stranger has planted has the name of its file.

    It asks as on a shared mount, whatever the mount is: to find that out would cost more, for each directory above.
    """
    fs = Filesystem(path)
    try:
        found = fs.exists(group_file(path)) and not is_planted(fs, path)
        if found and refuses_strays:
            refuse_stray_group_file(fs, path)  # as a directory
        return found
    except OSError as error:
        let_out(error)
        if error.errno in NOT_FILES and refuses_strays:
            with suppress(OSError):  # it is no directory, perhaps
                if not is_planted(fs, path):
                    refuse_stray_group_file(fs, path)
        if is_gone(error) or error.errno in NOT_FILES:
            return False
        raise
    finally:
        fs.close_root()


def _is_there_after_all(path: str) -> bool:
    """Return whether a directory is there after all, though it seemed missing. It asks the file server for each on the
    way.

    An NFS client may call a directory missing for up to a minute after another host has made it. A group would count as
    drained while tasks are in it.
    """
    above = layout.parent_of(path)
    fs = Filesystem(above)
    try:
        if fs.exists(path):
            return True
        if fs.is_open() or above == path:
            return False
    except OSError as error:
        let_out(error)
        return False
    finally:
        fs.close_root()
    return _is_there_after_all(above) and _is_there_after_all(path)


def around(holders: Iterable[str], refuses_strays: bool = False) -> str | None:
    """Return the first of some directories that holds a group; None if none does, as far as this user may look."""
    for holder in holders:
        try:
            if is_group(holder, refuses_strays):
                return holder
        except OSError as error:
            let_out(error)
            continue
    return None


def is_planted(fs: Filesystem, path: str) -> bool:
    """Return whether another user has put `.group.jsonl` into a directory in which all users may write.

    /tmp must not become a group, and a mistyped path below it a queue, because a stranger has made a file there.
    """
    holder, owner = fs.stat(path), fs.stat(group_file(path)).st_uid
    return bool(holder.st_mode & stat.S_IWOTH) and owner not in (holder.st_uid, os.geteuid())


def refuse_strays_above(path: str) -> None:
    """Raise NotAQueue if something has replaced the file of a group in which a path lies that is no queue."""
    around(directories_above(path), refuses_strays=True)


def _above(path: str) -> Iterator[str]:
    """Yield the directories above a path, as it is written, the nearest first."""
    while path not in ("", "/"):
        path = layout.parent_of(path)
        yield path


def resolve(where: str) -> tuple[str, str] | None:
    """Return the group and the name that a path GROUP/NAME means; None if it does not lie in a group.

    NAME is the queue's name, and not that of its directory: it may hold slashes. InvalidArgument if it is the name of
    a directory, as a shell completes it, while no queue has it as its name.
    """
    group = around(_above(where))
    if group is None:
        return None
    name = where[len(group.rstrip("/")) + 1 :]
    decoded = names.parse_queue_directory(name)
    if decoded is not None and decoded != name:
        fs = Filesystem(group)
        try:
            meant, typed = f"{group}/{name}", f"{group}/{names.queue_directory(name)}"
            if fs.is_directory(meant) and not fs.is_directory(typed):
                raise InvalidArgument(
                    f"{meant} is the directory of the queue {decoded!r} of the group {group}. Nothing was done. Give "
                    f"the queue's name: {shlex.quote(f'{group}/{decoded}')}"
                )
        finally:
            fs.close_root()
    return group, name
