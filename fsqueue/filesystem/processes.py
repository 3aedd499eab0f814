"""Tell whether the process that wrote an identity still has its number (Linux: /proc), and what a process inherits."""

from __future__ import annotations

import os
import shutil

from fsqueue.filesystem.holders import boot_id

BOOT_DIGITS = 12


def _place() -> str | None:
    """Return where process numbers mean what they mean here: this boot of this kernel, and in it this PID namespace.

    None where /proc does not tell, or shows another namespace's processes.
    """
    boot = boot_id().replace("-", "")[:BOOT_DIGITS]
    try:
        if not boot or os.readlink("/proc/self") != str(os.getpid()):
            return None
        return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino:x}"
    except OSError:
        return None


def identity_of(pid: int) -> str | None:
    """Return what no other process ever has: `BOOT.NAMESPACE.START`; None if that cannot be told, or there is none
    such.

    The beginning of the boot id and the number of the PID namespace in hexadecimal digits, then when the process
    began, in ticks since the boot (proc(5), /proc/PID/stat, field 22).
    """
    place, fields = _place(), fields_of(pid)
    return f"{place}.{fields[19]}" if place is not None and len(fields) > 19 else None


def is_alive(pid: int, identity: str) -> bool | None:
    """Return whether the process that had this number and identity still runs; None if this host cannot tell."""
    place = _place()
    if place is None or not identity.startswith(f"{place}."):
        return None  # another machine, another boot, or a container of which nothing is seen from here
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # another user's, and there
    fields = fields_of(pid)
    if len(fields) <= 19:
        return None  # hidden from us, or just gone
    return identity == f"{place}.{fields[19]}" and fields[0] not in ("Z", "X")


def inheritable_descriptors() -> list[int]:
    """Return the descriptors above standard error that programs started from here would inherit.

    Python opens none of that kind: they came from the process that started this one, or from a library.
    """
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return []
    found = []
    for number in numbers:
        try:
            if number > 2 and os.get_inheritable(number):
                found.append(number)
        except OSError:
            pass  # the listing's own, which is closed by now
    return found


def fields_of(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on: the second, in brackets, may hold anything."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def is_program(word: str) -> bool:
    """Return whether a program has this name, in a directory or on the search path. A hint: it may come or go."""
    return shutil.which(word) is not None
