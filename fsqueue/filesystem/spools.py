"""Hold back output until it may be shown: in memory while it is little, else in a file without a name."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any

from fsqueue.filesystem.kept_output import write_all

PIECE_BYTES = 1 << 16
"""How much is read back at a time."""


class Spool:
    """Hold bytes in the order in which they came. Not thread-safe.

    The file is in the system's directory for temporary files. It goes when this process ends, also after a crash.
    """

    def __init__(self, memory_bytes_max: int) -> None:
        self._most = memory_bytes_max
        self._memory = bytearray()
        """The bytes that follow those in the file."""
        self._file: Any = None
        self._filed = 0

    def append(self, data: bytes) -> None:
        """Append bytes. OSError if the disk is full: they are kept in memory, and nothing may be appended later."""
        self._memory += data
        if len(self._memory) > self._most:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
            write_all(self._file.fileno(), bytes(self._memory))
            self._filed += len(self._memory)
            self._memory.clear()

    def pieces(self) -> Iterator[bytes]:
        """Yield all bytes, piece by piece. OSError."""
        at = 0
        while at < self._filed and (piece := os.pread(self._file.fileno(), min(PIECE_BYTES, self._filed - at), at)):
            at += len(piece)
            yield piece
        if self._memory:
            yield bytes(self._memory)

    def close(self) -> None:
        """Drop all bytes and close the file."""
        self._memory.clear()
        self._filed = 0
        if self._file is not None:
            self._file.close()
            self._file = None
