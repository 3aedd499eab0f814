"""`queue.jsonl`: a queue's settings, its generation, and whether it is deleted (docs/format.md, "`queue.jsonl`")."""

from __future__ import annotations

import shlex
import stat
from collections.abc import Callable

from fsqueue.clock import Clock
from fsqueue.errors import NotAQueue, QueueClosed, QueueNotFound
from fsqueue.filesystem import Filesystem
from fsqueue.format import sparse
from fsqueue.format.groups import GROUP_FILE, group_file
from fsqueue.format.layout import SETTINGS_FILE, Layout, QueueState, is_leftover, read_queue_state, settings_file
from fsqueue.interruptions import let_out
from fsqueue.storage import absence, remains

FRESH_S = 1.0
"""Maximum age of what was read of `queue.jsonl`, before an append (s)."""
LONG_AGO_S = -1e9


def state_in(fs: Filesystem, fd: int, path: str) -> QueueState:
    """Return the queue state in the open `queue.jsonl` of the queue at `path`. Errors as `read_queue_state`."""
    return read_queue_state(sparse.content_of(fs.all_pieces(fd)), path)


def refuse_stray_group_file(fs: Filesystem, path: str) -> None:
    """Raise NotAQueue if a directory holds something else that has the name of a group's file: a link, for example.

    If that cannot be looked at, or is gone by now, it does nothing.
    """
    try:
        is_file = stat.S_ISREG(fs.stat(group_file(path)).st_mode)
    except OSError as error:
        let_out(error)
        return
    if not is_file:
        raise NotAQueue(
            f"{group_file(path)} is no regular file, and was not followed or read. If this was a group of queues, "
            "somebody has put it in the place of the group's own file. Nothing was changed. Move it elsewhere, and "
            "restore the file."
        ) from None


class QueueFile:
    """Read `queue.jsonl`, and know whether what was read still holds. Call `read` before anything else."""

    state: QueueState
    layout: Layout
    """The layout of the present generation."""

    def __init__(
        self, path: str, fs: Filesystem, clock: Clock, refuse: Callable[[QueueState, str], object] | None = None
    ) -> None:
        """`refuse` raises an error for a queue that is not meant, when it is read first."""
        self.path = path
        self._fs = fs
        self._clock = clock
        self._refuse = refuse
        self.forget()

    def forget(self) -> None:
        """Force the next verb to read the file anew, and to prove that it is the same queue."""
        self.read_at = LONG_AGO_S
        """Time at which the file was read last, on the monotonic clock."""
        self._size_read = -1
        self._size_now: Callable[[], int] = lambda: -2

    def read(self) -> None:
        """Read the file. QueueNotFound or NotAQueue if there is no queue, or another one than before."""
        fs, opened = self._fs, hasattr(self, "state")
        try:
            pieces, size_now = self._content()
        except FileNotFoundError:
            # An NFS client may remember the name of a deleted queue, whose files are being removed.
            if opened and not fs.is_in_place():
                raise self._away(is_deleted=True) from None
            remains.refuse(fs, self.path)
            found = [] if opened else fs.names(self.path)
            if GROUP_FILE in found:
                refuse_stray_group_file(fs, self.path)
                raise NotAQueue(
                    f"{self.path} is a group of queues, and no queue. Name one of its queues ({self.path}/NAME). "
                    f"To list them: fsqueue ls --min 0 {shlex.quote(self.path)}"
                ) from None
            if SETTINGS_FILE not in found and not all(map(is_leftover, found)):  # else it was created a moment ago
                raise NotAQueue(
                    f"{self.path} is a directory, and no queue. Check the path. To see queues that it holds: "
                    f"fsqueue status {shlex.quote(self.path)}"
                ) from None
            raise QueueNotFound(
                f"There is no queue at {self.path}. "
                + absence.how_to_go_on(self.path, f"fsqueue create {shlex.quote(self.path)}")
            ) from None
        except NotADirectoryError:
            raise NotAQueue(
                f"{self.path} is a file or a symbolic link, or lies below one: it is no queue's directory. Check it."
            ) from None
        state = read_queue_state(sparse.content_of(pieces), self.path)
        if self._refuse is not None and not opened:
            self._refuse(state, self.path)
        if not fs.is_in_place():  # on a full disk a queue is deleted without the mark that says so
            raise self._away(is_deleted=opened and state.closed and self.state.id == state.id)
        if state.closed:
            raise QueueClosed(f"The queue {self.path} has been deleted.")
        if opened and self.state.id != state.id:
            raise QueueNotFound(
                f"The queue {self.path} was deleted, and another created in its place: open it again with Queue(path)."
            )
        if not opened or self.state.generation != state.generation:
            self.layout = Layout(self.path, state.directory, state.settings.shards)
        self.state = state  # after the layout: if a signal interrupts in between, the next `read` does both again
        self.read_at = self._clock.monotonic()
        self._size_read, self._size_now = sparse.end_of(pieces), size_now

    def _content(self) -> tuple[list[sparse.Piece], Callable[[], int]]:
        """Return the content of the file, and a function that asks for its present size."""
        fs, path = self._fs, settings_file(self.path)
        if fs.shared:
            return fs.read_pieces(path), lambda: fs.size_on_server(path)
        fd = fs.look(path)
        try:
            content = fs.all_pieces(fd)
        except BaseException:
            fs.close(fd)
            raise
        return content, fs.watch(path, fd)

    def _away(self, is_deleted: bool) -> QueueNotFound:
        """Return the error for a queue whose directory is not at its path any more. Unless `is_deleted`, the reason is
        not known."""
        kind = QueueClosed if is_deleted else QueueNotFound
        what = (
            "was deleted (perhaps with another created in its place)"
            if is_deleted
            else "is not there any more. If it lies on another filesystem, check that this is mounted; else it was "
            "deleted (perhaps with another created in its place), or its directory was moved"
        )
        return kind(
            f"The queue {self.path} {what}. What this call had still to do was not done. If there is a queue at that "
            "path, open it again with Queue(path)."
        )

    def is_fresh(self) -> bool:
        """Return whether the file was read within the last second."""
        return self._clock.monotonic() - self.read_at <= FRESH_S

    def is_unchanged(self, generation: int | None = None) -> bool:
        """Return whether the queue was neither purged nor deleted since the file was read. True is truth.

        A purge and a deletion begin with an append to the file. True: the file was read within the last second, and
        its size is still the same. False: read it again. It costs one system call on a local disk, one request to a
        file server. `generation`: the queue must be in that one, too.
        """
        if generation is not None and generation != self.state.generation:
            return False
        try:
            # On the hot path: `is_fresh`, without a frame of its own.
            size_now = self._size_now
            return self._clock.monotonic() - self.read_at <= FRESH_S and size_now() == self._size_read
        except OSError as error:
            let_out(error)
            return False  # it is gone, perhaps: reading it tells
