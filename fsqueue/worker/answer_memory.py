"""Where a child puts its answers: memory that it shares with its worker, so that most of them need no system call.

There is one slot for each task that a child may hold. The child puts each answer into the next slot, counts it, and
rings now and then: a message with the count. What it has put there stays when it dies. The order of the steps, and what
a death between any two leaves, are in docs/decisions/0058-answers-in-shared-memory.md.
"""

from __future__ import annotations

import struct
from zlib import crc32

from fsqueue.filesystem.memory import make_memory, shared_memory

SLOTS = 128
"""Maximum number of tasks that a child holds: an answer is overwritten once as many others were taken in."""
SLOT_BYTES = 512
RING_S = 0.005
"""Number of seconds without a ring after which a child rings for its next answer at once."""
RING_AFTER = SLOTS // 2
"""Maximum number of answers that a child puts into memory without a ring. It also rings before it waits for a task."""
LOOK_S = 0.01
"""Number of seconds after a ring after which the worker looks for answers once more. The child may have put some there
without a ring, and be at a long task now."""
_COUNT = struct.Struct("=Q")
_HEAD = struct.Struct("=II")
"""Before each answer: how many bytes it has, and their checksum."""
ANSWER_BYTES_MAX = SLOT_BYTES - _HEAD.size
_FIRST = 64
"""Where the first slot begins."""
_BYTES = _FIRST + SLOTS * SLOT_BYTES


def make() -> int:
    """Return a file in memory for the answers of one child. OSError."""
    return make_memory(_BYTES)


class Answers:
    """The answers of one child, in the child or in its worker. Each side counts those that it has put or taken."""

    def __init__(self, fd: int) -> None:
        self._memory = shared_memory(fd, _BYTES, is_written=True)
        self.count = 0

    def put(self, answer: bytes) -> None:
        """Add an answer, of `ANSWER_BYTES_MAX` bytes at most."""
        at = _FIRST + self.count % SLOTS * SLOT_BYTES
        size = len(answer)
        _HEAD.pack_into(self._memory, at, size, crc32(answer))
        self._memory[at + _HEAD.size : at + _HEAD.size + size] = answer
        self.count += 1
        _COUNT.pack_into(self._memory, 0, self.count)

    def next(self) -> bytes | None:
        """Return the next answer, and leave it there. None if there is none, or not all of it can be seen yet."""
        if _COUNT.unpack_from(self._memory, 0)[0] <= self.count:
            return None
        at = _FIRST + self.count % SLOTS * SLOT_BYTES
        size, checksum = _HEAD.unpack_from(self._memory, at)
        answer = self._memory[at + _HEAD.size : at + _HEAD.size + min(size, ANSWER_BYTES_MAX)]
        return answer if len(answer) == size and crc32(answer) == checksum else None

    def taken(self) -> None:
        """Note that the next one was taken in."""
        self.count += 1

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()
