"""Names that outlive a power loss: directories are synced up to the queue's own (docs/design.md, section 10)."""

from __future__ import annotations

import os

from fsqueue.filesystem import Filesystem


class DurableNames:
    """Sync the names in a queue's directories, each directory's own name and those above it only once."""

    def __init__(self, fs: Filesystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._known: set[str] = set()
        """Directories whose names are known to be durable."""
        self.shards: set[str] = set()
        """Shard directories that are known to be there, and durable."""
        self.replaced: set[object] = set()
        """Versions of files that have replaced others, and whose names are known to be durable."""

    def secure(self, fd: int, path: str) -> None:
        """Make the name of an open file durable, and those of its directories, unless the file has content already.

        Whichever process writes the first byte has done this before. On a shared mount names are durable at once.
        """
        if self._fs.shared or self._fs.fstat(fd).st_size:
            return
        self.sync(os.path.dirname(path))

    def sync(self, directory: str) -> None:
        """Make the names in a directory durable, and once its own and those above it, up to the queue's.

        The queue itself may have been created a moment ago, and its creator not have come so far yet.
        """
        self._fs.sync_directory(directory)
        while directory not in self._known:
            above = os.path.dirname(directory)
            try:
                self._fs.sync_directory(above)
            except PermissionError:
                if directory != self._path:
                    raise
                # the directory that holds the queue is another's matter
            self._known.add(directory)
            if directory == self._path:
                return
            directory = above
