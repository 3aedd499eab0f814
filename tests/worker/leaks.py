"""Functions that tell in which process they were, and keep memory."""

from __future__ import annotations

import mmap
import os
import signal
import threading
import time
from typing import Any

MIB = 1 << 20
_kept: list[Any] = []


def pid(payload: Any) -> int:
    return os.getpid()


def leak(payload: int) -> int:
    """Keep `payload` MiB for ever."""
    _kept.append(b"x" * (payload * MIB))
    return os.getpid()


def passing(payload: int) -> int:
    """Use `payload` MiB, and give them back."""
    with mmap.mmap(-1, payload * MIB) as memory:
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1
    return os.getpid()


def stay(payload: Any) -> int:
    """Refuse to end: as a library does whose threads are not daemons."""
    if not _kept:
        thread = threading.Thread(target=time.sleep, args=(60,))
        _kept.append(thread)
        thread.start()
    return os.getpid()


def die_at_seven(payload: int) -> int:
    if payload == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()
