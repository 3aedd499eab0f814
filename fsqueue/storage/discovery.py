"""Find which directory a user means by a path or a URL fq://path, and which queues are in it."""

from __future__ import annotations

import errno
import os
import re
import shlex

from fsqueue.errors import InvalidArgument, QueueNotFound, from_os_error
from fsqueue.filesystem import NOT_FILES, Filesystem, mount_of
from fsqueue.filesystem.mounts import without_dots
from fsqueue.format.layout import parent_of, settings_file
from fsqueue.interruptions import let_out
from fsqueue.storage import absence, remains
from fsqueue.storage.group_directory import is_group, refuse_lost, refuse_strays_above

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
"""Pattern of the beginning of a URL. `pathlib` leaves one slash of the two."""
GATEWAY_SCHEMES = ("http", "https", "http+unix")


def queue_path(path: object) -> str:
    """Return the directory that a user's `path` or `fq://path` means, as an absolute path without a final slash.

    InvalidArgument for other URLs: as a path, `s3://x` would make the directory `s3:` where the program happens to be.
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text.removeprefix("fq://") or "\0" in text or not _is_a_name(text):
        raise InvalidArgument(
            f"{path!r} is not a queue's path. Give a directory, as /scratch/me/tiles or fq:///scratch/me/tiles."
        )
    text = text.removeprefix("fq://")
    if _SCHEME.match(text):
        scheme = text.partition(":")[0]
        if scheme.lower() in GATEWAY_SCHEMES:
            raise InvalidArgument(
                f"{path!r} is the address of a gateway, and a directory is needed here. Nothing was done. Give the "
                "queue's path, on a host that has mounted the filesystem. fsqueue.connect takes addresses, and so do "
                "most commands (docs/targets.md lists them)."
            )
        raise InvalidArgument(
            f"{path!r} is a URL ({scheme}:), and a queue is a directory of a mounted filesystem. Nothing was done. "
            "Give its path, as /scratch/me/tiles or fq:///scratch/me/tiles (a directory whose name ends in a colon: "
            "as ./name:/tiles)."
        )
    try:
        return without_dots(os.path.expanduser(text))
    except FileNotFoundError:
        raise InvalidArgument(
            f"The working directory has been removed, so the relative path {text!r} leads nowhere. Nothing was "
            "changed. Change into another directory, or give an absolute path."
        ) from None


def _is_a_name(text: str) -> bool:
    """Return whether a file may have this name: of half surrogates it has only those that stand for a byte."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def queues(path: str | os.PathLike[str]) -> list[str]:
    """Return the paths of the queues in a directory, in the order of their names; or of the queue that it is.

    `path` is a directory or `fq://` and a directory. QueueNotFound if there is no queue. NotAQueue if something else,
    a link for example, is in the place of a group's own file. Damaged queues are among them, and directories that the
    filesystem fails to look into: opening one of those tells what is wrong.
    """
    where = queue_path(path)
    try:
        return queues_in(where) or [where]
    except OSError as error:
        raise from_os_error(error, f"looking for queues in {where}") from error


def queues_in(path: str) -> list[str] | None:
    """Return the queues in a directory, by path; None if the directory is a queue itself. QueueNotFound if neither.

    NotAQueue if something else is in the place of a group's own file: which queues belong to the group is unknown then.
    """
    fs = Filesystem(path, shared=mount_of(path).shared)
    if _is_queue(fs, path):
        return None
    is_group(path, refuses_strays=True)
    found = [
        f"{path}/{name}"
        for name, kind in sorted(fs.entries(path))
        if kind == "directory" and not name.startswith(".") and _may_be_queue(fs, f"{path}/{name}")
    ]
    if not found:
        remains.refuse(fs, path)
        refuse_strays_above(path)
        refuse_lost(parent_of(path))
        raise QueueNotFound(
            f"There is no queue at {path}, and none in it. "
            + absence.how_to_go_on(path, f"fsqueue create {shlex.quote(path)}")
        )
    return found


def _is_queue(fs: Filesystem, path: str) -> bool:
    """Return whether a directory holds a queue."""
    try:
        return fs.exists(settings_file(path))
    except OSError as error:
        let_out(error)
        if error.errno in NOT_FILES:
            return False
        raise


def _may_be_queue(fs: Filesystem, path: str) -> bool:
    """Return whether a directory among others holds a queue, or what is left of one, as far as this user may know.

    True if the filesystem fails to say: one dead mount must not hide the queues beside it.
    """
    try:
        return _is_queue(fs, path) or bool(remains.of_queue(fs, path))
    except OSError as error:
        let_out(error)
        return error.errno != errno.EACCES
