"""Tell what Linux says of processes in /proc: whether one still has its number, which ones hold a lock, how old a job
is, what a process inherits; how often the kernel killed for want of memory; and why a program cannot be executed.

Locks of open file descriptions have no process number (/proc/locks says -1), but a process shows the locks of each of
its descriptors in /proc/PID/fdinfo/FD. That can be read of one's own processes, and by root of all.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from fsqueue.forks import Late
from fsqueue.interruptions import let_out, suppress

if TYPE_CHECKING:
    import shutil
else:
    shutil = Late("shutil")


from fsqueue.filesystem.mounts import plain

BOOT_DIGITS = 12
_HEAD_BYTES = 256
"""Number of bytes in which the kernel looks for an interpreter."""
ANCESTORS_MAX = 100
"""Maximum number of generations of parent processes to look at."""
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


def no_second_python() -> str | None:
    """Return in a sentence why no second Python process can import this package; None if one can.

    A zip file (zipapp) is unpacked by nobody: what it holds has no path that a process could execute.
    """
    archive = getattr(sys.modules[__name__].__loader__, "archive", None)
    if archive is None:
        return None
    return (
        f"fsqueue lies in the zip file {archive}, and no process can be started from there. Install it with pip, and "
        "do this with the installed one. Commands that start no process work from the zip file."
    )


def _place() -> str | None:
    """Return the place in which process numbers are unique: this boot of this kernel, and in it this PID namespace.

    None where /proc does not tell, or shows another namespace's processes.
    """
    boot = boot_id().replace("-", "")[:BOOT_DIGITS]
    try:
        if not boot or os.readlink("/proc/self") != str(os.getpid()):
            return None
        return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino:x}"
    except OSError as error:
        let_out(error)
        return None


def identity_of(pid: int) -> str | None:
    """Return the identity of a process, which no other process ever has: `BOOT.NAMESPACE.START`; None if it cannot be
    told, or there is no such process.

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
    except (OSError, OverflowError) as error:
        let_out(error)  # else it is another user's, and there
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
    except OSError as error:
        let_out(error)
        return []
    found = []
    for number in numbers:
        with suppress(OSError):  # the listing's own, which is closed by now
            if number > 2 and os.get_inheritable(number):
                found.append(number)
    return found


def fields_of(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on: the second, in brackets, may hold anything."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def resident_bytes(pid: int) -> int:
    """Return how much physical memory a process has now (proc(5), /proc/PID/stat, field 24); 0 if that is not told."""
    fields = fields_of(pid)
    return int(fields[21]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 21 else 0


def is_program(word: str) -> bool:
    """Return whether a program has this name, in a directory or on the search path. A hint: it may come or go."""
    return shutil.which(word) is not None


def program_fault(word: str, has_begun: bool = False) -> str:
    """Return why a program that is there cannot be executed, and what to do; "" if that cannot be told. A hint.

    `has_begun`: the kernel did execute it, so only what its interpreter was to find can be wrong. A script is told by
    its first line. Nothing but a regular file is opened.
    """
    path = shutil.which(word) or (word if os.path.dirname(word) else "")
    head = start_of(path, _HEAD_BYTES)
    if head is None:
        return ""
    if not has_begun and not os.access(path, os.X_OK):
        return _not_executable(path, word)
    if head.startswith(b"\xef\xbb\xbf#!"):
        return "" if has_begun else f"a byte order mark stands before its #!: sed -i '1s/^\\xef\\xbb\\xbf//' {word}"
    if not head.startswith(b"#!"):
        return "" if has_begun else _no_script(word, head)
    line = head[2:].partition(b"\n")[0]
    if line.endswith(b"\r"):
        return (
            "its lines end as on Windows (CR LF), so the name of its interpreter does, too: remove that by "
            f"sed -i 's/\\r$//' {word}"
        )
    interpreter, *arguments = os.fsdecode(line).split() or [""]
    by = ""
    if os.path.basename(interpreter) == "env" and os.path.exists(interpreter):
        interpreter = next((one for one in arguments if not one.startswith("-") and "=" not in one), "")
        by = " in PATH"
    if not interpreter or shutil.which(interpreter) is not None:
        return ""
    what = "cannot be executed" if os.path.isfile(interpreter) else f"is not here{by}"
    return (
        f"its interpreter {interpreter}, named in its first line, {what}: install it (or load its module), or name "
        "another one there"
    )


def _not_executable(path: str, word: str) -> str:
    """Say why this process may not execute a file."""
    try:
        is_marked = bool(os.stat(path).st_mode & 0o111)
    except OSError as error:
        let_out(error)
        return ""
    if is_marked:
        return "it may not be executed here: the mount has the option noexec, or the file is for other users"
    return f"it is not executable: chmod +x {word}"


def _no_script(word: str, head: bytes) -> str:
    """Say why a file without "#!" is not executed."""
    if not head:
        return "the file is empty"
    if head.startswith(b"\x7fELF"):
        return "it was built for another system, whose loader or processor this host does not have: build it here"
    if b"\0" in head:
        return "it is neither a program for this host nor a script"
    return f"it names no interpreter: begin it with a line such as #!/bin/sh, or write the interpreter before {word}"


def start_of(path: str, bytes_max: int) -> bytes | None:
    """Return the first bytes of a regular file; None if it cannot be read, or is none. Do not wait for a pipe."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        let_out(error)
        return None
    try:
        return os.read(fd, bytes_max) if stat.S_ISREG(os.fstat(fd).st_mode) else None
    except OSError as error:
        let_out(error)
        return None
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
    return _read_bytes(f"/proc/{pid}/environ").split(b"\0")


class Holder(NamedTuple):
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
    except OSError as error:
        let_out(error)
        return
    yield from sorted(int(name) for name in names if name.isdigit())


def _locking(pid: int, inode: int) -> Iterator[str]:
    """Yield a process's descriptors with a lock on an inode whose number is given, on any device."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fdinfo")
    except OSError as error:
        let_out(error)
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
    except OSError as error:
        let_out(error)
        return False
    return (found.st_dev, found.st_ino) == (device, inode)


def _state(pid: int) -> str:
    fields = fields_of(pid)
    return STATES.get(fields[0], fields[0]) if fields else "gone"


def _command(pid: int) -> str:
    return _read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()[:COMMAND_CHARS_MAX]


def boot_id() -> str:
    """Return the id of this boot of this machine, which no other boot has; "" where the system does not say."""
    return _read("/proc/sys/kernel/random/boot_id").strip()


def _read(path: str) -> str:
    return _read_bytes(path).decode(errors="replace")


def _read_bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        let_out(error)
        return b""


_COUNTERS = {"cgroup2": "memory.events", "cgroup": "memory.oom_control"}
"""The file with the counter `oom_kill`, by the type of the mount."""


def oom_kills(proc: str = "/proc/self") -> int | None:
    """Return how often the kernel has killed a process in this one's control group because memory was used up.

    It counts since the group was made (cgroups(7)). None if no counter can be read.
    Slurm and container runtimes make a group for each job, step or container.
    """
    for path in _counters(_lines(f"{proc}/cgroup"), _lines(f"{proc}/mountinfo")):
        for line in _lines(path):
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdecimal():
                return int(count)
    return None


def _counters(groups: list[str], mounts: list[str]) -> Iterator[str]:
    """Yield the paths of the files that may have the counter, from the lines of /proc/PID/cgroup and mountinfo."""
    own = {}
    for line in groups:
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "-", "")
        if not controllers:
            own["cgroup2"] = path
        elif "memory" in controllers.split(","):
            own["cgroup"] = path
    for line in mounts:
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.partition(" ")[0]
        if len(fields) < 5 or kind not in own or (kind == "cgroup" and "memory" not in after.split()[-1].split(",")):
            continue
        root, path = plain(fields[3]).rstrip("/"), own[kind]
        # In a container the mount may be of this very group, and the path be another namespace's.
        below = path[len(root) :] if path == root or path.startswith(f"{root}/") else ""
        yield os.path.join(plain(fields[4]), below.lstrip("/"), _COUNTERS[kind])


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as lines:
            return lines.read().splitlines()
    except OSError as error:
        let_out(error)
        return []
