"""Paths as Spark's users write them, of queues and of directories for output, on a mounted filesystem."""

from __future__ import annotations

import errno
from urllib.parse import unquote

from fsqueue.errors import InvalidArgument
from fsqueue.filesystem import NOT_FILES, Filesystem, mount_of
from fsqueue.storage.paths import queue_path


def directory(path: str) -> str:
    """Return the directory that `path`, `fq://path` or `file:/path` means; InvalidArgument for other URLs.

    As for Spark, a percent sign in a path stands for itself. Only of a `file:` URL for which there is no such
    directory it is decoded, if that names one.
    """
    if not path.startswith("file:"):
        return queue_path(path)
    where = path.removeprefix("file:")
    if where.startswith("//"):
        host, slash, rest = where[2:].partition("/")
        if host not in ("", "localhost"):
            raise InvalidArgument(
                f"{path!r} names the host {host!r}. A queue is a directory of a mounted filesystem: give its path, as "
                "file:///scratch/me/tiles."
            )
        where = slash + rest
    if not where.startswith("/"):
        raise InvalidArgument(f"{path!r} is no absolute path. Give it as file:///scratch/me/tiles.")
    literal, decoded = queue_path(where), unquote(where)
    if decoded != where and "\0" not in decoded and not _is_there(literal) and _is_there(queue_path(decoded)):
        return queue_path(decoded)
    return literal


def _is_there(path: str) -> bool:
    try:
        return Filesystem(path, shared=mount_of(path).shared).exists(path)
    except OSError as error:
        # ENAMETOOLONG: %E3%81%82 is nine bytes before it is decoded, and three after
        if error.errno in (*NOT_FILES, errno.ENOENT, errno.EACCES, errno.ENAMETOOLONG):
            return False
        raise
