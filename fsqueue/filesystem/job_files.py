"""Read what the kernel's and a batch system's files say about the job that this process runs in."""

from __future__ import annotations

import os
import stat
import time

from fsqueue.filesystem.processes import fields_of

TEXT_BYTES_MAX = 1 << 20
"""Maximum number of bytes to read of a batch system's file."""
ANCESTORS_MAX = 100
"""Maximum number of generations of parent processes to look at."""


def text_of(path: str) -> str:
    """Return what a regular file says, or "" if that cannot be read. Never waits for a FIFO's writer."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return ""
    try:
        return os.read(fd, TEXT_BYTES_MAX).decode(errors="replace") if stat.S_ISREG(os.fstat(fd).st_mode) else ""
    except OSError:
        return ""
    finally:
        os.close(fd)


def age_with(variable: str, value: str) -> float:
    """Return for how many seconds processes with this variable have run: this one, and those that started it.

    A scheduler starts a job's first process with the job's variables. So this is the job's age, unless a process in
    between is hidden, or this process runs on another node of the job: then it is less.
    """
    wanted = os.fsencode(f"{variable}={value}")
    pid, ticks = os.getpid(), 0
    for _ in range(ANCESTORS_MAX):
        fields = fields_of(pid)
        if len(fields) <= 19:
            break
        ticks, pid = int(fields[19]), int(fields[1])
        if pid <= 0 or wanted not in _environment(pid):
            break
    if not ticks:
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


def _environment(pid: int) -> list[bytes]:
    """Return the environment that a process began with; empty if it is another user's, or gone."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []
