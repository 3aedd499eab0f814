"""How often the kernel has killed a process in this one's control group because memory was used up (cgroups(7))."""

from __future__ import annotations

import os
from collections.abc import Iterator

from fsqueue.filesystem.mounts import plain
from fsqueue.interruptions import let_out

_COUNTERS = {"cgroup2": "memory.events", "cgroup": "memory.oom_control"}
"""The file with the counter `oom_kill`, by the type of the mount."""


def oom_kills(proc: str = "/proc/self") -> int | None:
    """Return the number of these kills since the group was made; None if no counter can be read.

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
