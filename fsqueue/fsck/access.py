"""What fsck may not read, or the disk does not give back: said, and passed by."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator

from fsqueue.fsck.findings import Suspect, found
from fsqueue.storage.store import Store

UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO)


def guarded(store: Store, place: str, suspects: Iterable[Suspect]) -> Iterator[Suspect]:
    """Yield the suspects of a part of the queue, at `place`, up to what cannot be read: that is the last of them."""
    try:
        yield from suspects
    except OSError as error:
        yield no_access(store, place, error)


def no_access(store: Store, place: str, error: OSError) -> Suspect:
    """Return what `error` says cannot be read, at `place` if it does not say where; raised again if it says something
    else.

    Of a directory that cannot be read it is the directory, not what may be in it.
    """
    if error.errno not in UNREADABLE:
        raise error
    path = str(error.filename or place)
    while (holder := path.rpartition("/")[0]).startswith(store.path + "/") and not _is_readable(store, holder):
        path = holder
    return Suspect(
        found(store, "no-access", path, note=str(error.strerror)), lambda: not _is_readable(store, path), lambda: None
    )


def _is_readable(store: Store, path: str) -> bool:
    try:
        if store.fs.is_directory(path):
            store.fs.entries(path)
        else:
            store.fs.read(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        return error.errno not in UNREADABLE
    return True
