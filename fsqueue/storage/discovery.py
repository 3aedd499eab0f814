"""Which queues there are in a directory."""

from __future__ import annotations

import errno
import os

from fsqueue.errors import QueueNotFound, from_os_error
from fsqueue.filesystem import NOT_FILES, Filesystem, mount_of
from fsqueue.format.layout import settings_file
from fsqueue.storage.paths import queue_path


def queues(path: str | os.PathLike[str]) -> list[str]:
    """Return the paths of the queues in a directory, in the order of their names; or of the queue that it is.

    `path` is a directory or `fq://` and a directory. QueueNotFound if there is no queue. Damaged queues are among
    them, and directories that the filesystem fails to look into: opening one of those tells what is wrong.
    """
    where = queue_path(path)
    try:
        return queues_in(where) or [where]
    except OSError as error:
        raise from_os_error(error, f"looking for queues in {where}") from error


def queues_in(path: str) -> list[str] | None:
    """Return the queues in a directory, by path; None if the directory is a queue itself. QueueNotFound if neither."""
    fs = Filesystem(path, shared=mount_of(path).shared)
    if _is_queue(fs, path):
        return None
    found = [
        f"{path}/{name}"
        for name, kind in sorted(fs.entries(path))
        if kind == "directory" and not name.startswith(".") and _may_be_queue(fs, f"{path}/{name}")
    ]
    if not found:
        raise QueueNotFound(
            f"There is no queue at {path}, and none in it. Check the path (every host must have it mounted), or "
            f"create it: fsqueue create {path}"
        )
    return found


def _is_queue(fs: Filesystem, path: str) -> bool:
    """Return whether a directory holds a queue."""
    try:
        return fs.exists(settings_file(path))
    except OSError as error:
        if error.errno in NOT_FILES:
            return False
        raise


def _may_be_queue(fs: Filesystem, path: str) -> bool:
    """Return whether a directory among others holds a queue, as far as this user may know.

    True if the filesystem fails to say: one dead mount must not hide the queues beside it.
    """
    try:
        return _is_queue(fs, path)
    except OSError as error:
        return error.errno != errno.EACCES
