"""Find queues inside other queues' directories. `create` refuses to make one; `delete` refuses while it finds one.

`mv` may have put one there. It would be moved and removed with the outer queue. So before fsqueue
moves a tree aside or removes it, it searches the tree for the `queue.jsonl` of another queue. (How deep JSON nests is
the matter of `nesting`.)
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterator

import orjson

from fsqueue.errors import FormatTooNew, FormatTooOld, InvalidArgument, NotAQueue
from fsqueue.filesystem import NOT_FILES, Filesystem, PassingOverStrays, directories_above
from fsqueue.filesystem.parent_directories import files_above
from fsqueue.format.layout import SETTINGS_FILE, read_queue_state, settings_file
from fsqueue.interruptions import let_out

logger = logging.getLogger("fsqueue")

READ_BYTES = 1 << 20
"""Number of bytes to read of a `queue.jsonl`. A file of this name may belong to any program, and have any size."""
NO_ACCESS = (errno.EACCES, errno.EPERM, errno.EIO)
LEAF_LINKS = 2
"""Link count of a directory without subdirectories, if the filesystem counts them: its name and its `.`."""


def around(path: str, shared: bool) -> str | None:
    """Return the queue in whose directory `path` lies, at any depth, links resolved; None if there is none.

    A directory like /tmp is no queue because another user has put a `queue.jsonl` into it.
    """
    for holder in directories_above(path):
        fs = Filesystem(holder, shared=shared)
        try:
            content = _content(fs, holder)
            if content is not None and _is_birth(content) and not _is_strangers(fs, holder):
                return holder
        except OSError as error:
            let_out(error)
            continue  # this user may go through the directory, but not list it
        finally:
            fs.close_root()
    return None


def holds(directory: int) -> bool:
    """Return whether an open directory is a queue's, or lies in one at any depth. OSError if that cannot be found out.

    Its own name and those above it do not count: it asks `..` of each, and where mounts show a directory elsewhere. A
    `queue.jsonl` that this user may not read counts as a queue's, but for a stranger's (see `around`).
    """
    for found in files_above(directory, SETTINGS_FILE, READ_BYTES):
        is_queue = found.content is None or _is_birth(found.content)
        if is_queue and not _was_put_there(found.holder, found.status.st_uid):
            return True
    return False


def inside(fs: Filesystem, directory: str, of_itself: bool = True) -> str | None:
    """Return a queue inside a directory, at any depth; None if there is none. `of_itself`: the directory itself counts.

    Links are not followed. Directories that may not be read are skipped. A deleted queue does not count. If the link
    count shows that a directory has no subdirectories, it is not listed.
    """
    counts_links: bool | None = None
    pending = [directory]
    while pending:
        here = pending.pop()
        try:
            if (of_itself or here != directory) and _is_there(fs, here):
                return here
            if counts_links and fs.stat(here).st_nlink == LEAF_LINKS:
                continue
            below = [f"{here}/{name}" for name, kind in fs.entries(here) if kind == "directory"]
            if below and counts_links is not False:
                counts_links = fs.stat(here).st_nlink == LEAF_LINKS + len(below)
            pending += below
        except OSError as error:
            if error.errno not in (errno.ENOENT, *NOT_FILES, *NO_ACCESS):
                raise
    return None


def refuse_inside(fs: Filesystem, queue: str) -> None:
    """Raise InvalidArgument if another queue stands inside a queue's directory that is about to be removed."""
    found = inside(fs, queue, of_itself=False)
    if found is not None:
        raise InvalidArgument(
            f"Another queue stands inside the directory of the queue {queue}: {found}. It would be deleted, too. "
            "Nothing was changed. Move that directory elsewhere with mv while no worker uses it, or delete that "
            "queue first; then repeat."
        )


def spared(fs: Filesystem, tree: str) -> bool:
    """Return whether a tree must stay because a queue stands inside it, and log that."""
    found = inside(fs, tree)
    if found is not None:
        logger.warning("%s is left as it is: the queue %s stands in it; move that elsewhere", tree, found)
    return found is not None


def _is_there(fs: Filesystem, directory: str) -> bool:
    """Tell whether a directory has a `queue.jsonl`, damaged or not, without a record that the queue was deleted."""
    content = _content(fs, directory)
    if content is None:
        return False
    try:
        return not read_queue_state(content, directory).closed
    except (NotAQueue, FormatTooNew, FormatTooOld):
        return True


def _is_birth(content: bytes) -> bool:
    """Tell whether the content is a queue's, and not a user's file of tasks that happens to have this name."""
    for line in _lines(content):
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        return isinstance(record, dict) and record.get("op") == "create" and "id" in record
    return False


def _lines(content: bytes) -> Iterator[bytes]:
    return (line for line in content.split(b"\n") if line.strip())


def _content(fs: Filesystem, directory: str) -> bytes | None:
    """Return the beginning of a directory's `queue.jsonl`; None if it has no regular file of that name."""
    with PassingOverStrays(), fs.closing(fs.look(settings_file(directory.rstrip("/")))) as fd:
        return fs.pread(fd, READ_BYTES, 0) if stat.S_ISREG(fs.fstat(fd).st_mode) else None
    return None


def _is_strangers(fs: Filesystem, directory: str) -> bool:
    owner = fs.stat(f"{directory.rstrip('/')}/{SETTINGS_FILE}").st_uid
    return _was_put_there(fs.stat(directory), owner)


def _was_put_there(holder: os.stat_result, owner: int) -> bool:
    """Tell whether all users may write in a directory, and its `queue.jsonl` is neither its owner's nor this user's."""
    return bool(holder.st_mode & stat.S_IWOTH) and owner not in (holder.st_uid, os.geteuid())
