"""On what was measured, and what lies in a tree of files."""

from __future__ import annotations

import datetime
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MEMORY_FILESYSTEMS = ("tmpfs", "ramfs")


def mount_of(path: str) -> tuple[str, str]:
    """Type and options of the filesystem that holds `path`: the mount whose point is the longest above it."""
    real, best, found = os.path.realpath(path), "", ("unknown", "")
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return found
    for line in lines:
        left, _, right = line.partition(b" - ")
        fields, kind = left.split(), os.fsdecode(right.split()[0])
        # The kernel writes blanks and backslashes in octal, and leaves other bytes as they are.
        point = os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), fields[4]))
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, found = point, (kind, os.fsdecode(fields[5]))
    return found


def facts(directory: str, versions: dict[str, str]) -> dict[str, Any]:
    """What a reader needs to judge the numbers. `versions`: of packages that other interpreters measured."""
    kind, options = mount_of(directory)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "filesystem": kind,
        "mount_options": options,
        "free_gb": round(shutil.disk_usage(directory).free / 1e9, 1),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
        "versions": versions,
    }


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def commit() -> str:
    """The commit that is checked out, marked when files differ from it; "unknown" outside a repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip() or "unknown"


def count_names(path: str) -> int:
    """Files and directories in a tree, its root included: the inodes it takes."""
    total, pending = 1, [path]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                total += 1
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return total


def peak_memory_mb() -> float:
    """The most memory this process had resident since it began its program.

    VmHWM, not ru_maxrss: that one starts from what the parent had when it forked.
    """
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return round(int(line.split()[1]) / 1000 * 1.024, 1)
    except OSError:
        pass
    import resource

    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000 * 1.024, 1)


def bytes_read() -> int:
    """Bytes this process has asked the kernel for so far (0 where the kernel does not tell)."""
    try:
        for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines():
            if line.startswith("rchar:"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0
