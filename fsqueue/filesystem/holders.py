"""Which processes of this host hold a lock on a file: what the kernel tells in /proc (Linux).

Locks of open file descriptions have no process number (/proc/locks says -1), but a process shows the locks of each of
its descriptors in /proc/PID/fdinfo/FD. That can be read of one's own processes, and by root of all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for the filesystem",
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "a zombie",
    "I": "idle",
}
COMMAND_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class Holder:
    """A process of this host that holds a lock: its number, what it is doing ("stopped", ...), its command line."""

    pid: int
    state: str
    command: str


def holders_of(device: int, inode: int) -> list[Holder]:
    """Return the processes that hold a lock on a file, as far as this user may know; a forked child shares its
    parent's.
    """
    return [
        Holder(pid, _state(pid), _command(pid))
        for pid in _processes()
        if any(_is(pid, fd, device, inode) for fd in _locking(pid, inode))
    ]


def _processes() -> Iterator[int]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    yield from sorted(int(name) for name in names if name.isdigit())


def _locking(pid: int, inode: int) -> Iterator[str]:
    """Yield the descriptors of a process that have a lock on an inode of that number, of whichever device."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fdinfo")
    except OSError:
        return  # it has ended, or is another user's
    ending = f":{inode}"
    for fd in descriptors:
        for line in _read(f"/proc/{pid}/fdinfo/{fd}").splitlines():
            words = line.split()
            if words[:1] == ["lock:"] and "WRITE" in words and any(word.endswith(ending) for word in words):
                yield fd
                break


def _is(pid: int, fd: str, device: int, inode: int) -> bool:
    try:
        found = os.stat(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (device, inode)


def _state(pid: int) -> str:
    """Return the third field of /proc/PID/stat; the second, in brackets, may hold anything."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return STATES.get(fields[0], fields[0]) if fields else "gone"


def _command(pid: int) -> str:
    return _read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()[:COMMAND_CHARS_MAX]


def boot_id() -> str:
    """Return what tells this boot of this machine from any other; "" where the system does not say."""
    return _read("/proc/sys/kernel/random/boot_id").strip()


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
