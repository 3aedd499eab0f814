"""Say what to do about a path at which nothing is: perhaps its filesystem is not mounted."""

from __future__ import annotations

from fsqueue.filesystem import NOT_FILES, Filesystem, is_gone
from fsqueue.format import layout
from fsqueue.interruptions import let_out, suppress

MOUNTED = "If it lies on another filesystem, check that this is mounted"


def how_to_go_on(path: str, create: str) -> str:
    """Return sentences: "not mounted?" first, then the command that creates something at the path.

    That command is left out if it would make something in what may be a bare mount point: nobody would find it again
    once the filesystem is mounted.
    """
    bare = None
    with suppress(OSError):
        bare = _empty_directory(path)
    if bare is None:
        return f"{MOUNTED}. Else check the path, or create it: {create}"
    return (
        f"{MOUNTED}: {bare} is empty, as a mount point is without its filesystem. Else check the path. "
        "('fsqueue create' makes a new one.)"
    )


def _empty_directory(path: str) -> str | None:
    """Return the path, or the nearest directory above it that is there, if that is empty; else None. OSError."""
    above = layout.parent_of(path)
    fs = Filesystem(above)
    try:
        if fs.is_directory(path):
            return None if fs.names(path) else path
    except OSError as error:
        let_out(error)
        if not (is_gone(error) or error.errno in NOT_FILES):
            raise
    finally:
        fs.close_root()
    return None if above == path else _empty_directory(above)
