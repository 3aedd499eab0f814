"""Report what fsck cannot read, because of permissions or a bad disk, and let it go on with the rest."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator

from fsqueue.fsck.findings import Suspect, found
from fsqueue.storage.store import Store

UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO)


def guarded(store: Store, place: str, suspects: Iterable[Suspect]) -> Iterator[Suspect]:
    """Yield the suspects of one part of the queue. If it cannot be read further, yield that, and end."""
    try:
        yield from suspects
    except OSError as error:
        yield no_access(store, place, error)


def no_access(store: Store, place: str, error: OSError) -> Suspect:
    """Return the finding for a path that cannot be read: the one that `error` names, or `place`.

    If a directory above it cannot be read, the finding names that directory. Any other error is raised again.
    """
    if error.errno not in UNREADABLE:
        raise error
    path = str(error.filename or place)
    while (holder := path.rpartition("/")[0]).startswith(store.path + "/") and not _is_readable(store, holder):
        path = holder
    return Suspect(
        found(store, "no-access", path, note=str(error.strerror)), lambda: not _is_readable(store, path), lambda: None
    )


def _read(store: Store, path: str) -> None:
    fd = store.fs.look_anew(path)
    try:
        for _ in store.fs.pieces(fd, 0):
            pass  # a file may have more bytes than memory
    finally:
        store.fs.close(fd)


def _is_readable(store: Store, path: str) -> bool:
    try:
        if store.fs.is_directory(path):
            store.fs.entries(path)
        else:
            _read(store, path)
    except FileNotFoundError:
        pass
    except OSError as error:
        return error.errno not in UNREADABLE
    return True
