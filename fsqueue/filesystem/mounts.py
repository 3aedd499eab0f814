"""The mount that a path lies on: its kind of filesystem, and its options."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from fsqueue.interruptions import let_out

LOCAL = frozenset(
    [
        "bcachefs",
        "btrfs",
        "ecryptfs",
        "ext2",
        "ext3",
        "ext4",
        "f2fs",
        "jfs",
        "nilfs2",
        "overlay",
        "ramfs",
        "reiserfs",
        "rootfs",
        "tmpfs",
        "ubifs",
        "xfs",
        "zfs",
    ]
)
"""Filesystems of this host alone. An unlisted type counts as shared: fsqueue then syncs more, never less."""

NUMBERED = frozenset(["fuse.ceph", "fuse.ceph-fuse", "fuse.glusterfs", "fuse.juicefs", "fuse.JuiceFS"])
"""FUSE filesystems whose inode numbers are the servers'."""

UNKNOWN = "unknown"
"""Stands for the type of a mount where /proc is missing or unreadable."""

BEEGFS = "/proc/fs/beegfs"
"""Where BeeGFS clients show their settings."""


class Mount(NamedTuple):
    """A mounted filesystem: its type ("ext4", "nfs4"), where it is mounted, its options, and what is mounted there."""

    kind: str
    point: str
    options: str
    source: str = ""

    @property
    def shared(self) -> bool:
        """Return whether other hosts may have the filesystem mounted, too."""
        return self.kind not in LOCAL

    @property
    def lists_by_time(self) -> bool:
        """Return whether clients reuse a listing as long as the directory's time is the same (NFS 2 and 3).

        The server's clock ticks every few milliseconds. If a directory changes twice in one tick, a client may have
        listed the first change only. Until the next change that client shows names that are gone, and misses others.
        """
        return self.kind == "nfs"

    @property
    def keeps_numbers(self) -> bool:
        """Return whether a directory has the same inode number at each mount. FUSE filesystems may make numbers up."""
        return not self.kind.startswith("fuse") or self.kind in NUMBERED

    def option(self, name: str) -> str | None:
        """Return the value of the option `name`: "" if it stands there without one, None if it does not stand there."""
        for option in self.options.split(","):
            key, _, value = option.partition("=")
            if key == name:
                return value
        return None


_ESCAPED = re.compile(r"\\([0-7]{3})")
"""Blanks and the like in a mount point; all are ASCII."""


def without_dots(path: str) -> str:
    """Return a path as an absolute one without "." and "..", as the system resolves it.

    `a/link/..` is the directory that holds what the link leads to, which need not be `a`. Other links stay as they are.
    """
    found = "/"
    for part in (path if os.path.isabs(path) else os.path.join(os.getcwd(), path)).split("/"):
        if part == "..":
            found = os.path.dirname(os.path.realpath(found))
        elif part not in ("", "."):
            found = os.path.join(found, part)
    return found


def directories_above(path: str) -> list[str]:
    """Return the directories above a path, which need not exist, the nearest first. Links are resolved before."""
    found, here = [], os.path.realpath(path)
    while (above := os.path.dirname(here)) != here:
        found.append(above)
        here = above
    return found


def resolved_name(path: str) -> str:
    """Return the last part of a path, which need not exist. Links are resolved before."""
    return os.path.basename(os.path.realpath(path))


def mount_of(path: str) -> Mount:
    """Return the mount that holds `path`, which need not exist. Linux; elsewhere the type is UNKNOWN."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
            return mount_among(lines, os.path.realpath(path))
    except OSError as error:
        let_out(error)
        return mount_among((), path)


def mount_among(lines: Iterable[str], real: str) -> Mount:
    """Return the mount, among the lines of a mountinfo (proc(5)), that holds the resolved path `real`."""
    best = Mount(UNKNOWN, "/", "")
    for line in lines:
        fields = line.split()
        point = plain(fields[4]) if len(fields) > 6 else ""
        if len(point) < len(best.point) or not (real == point or real.startswith(point.rstrip("/") + "/")):
            continue
        try:
            after = fields.index("-", 6) + 1  # what comes before it is of variable length
            kind, source = fields[after : after + 2]
        except ValueError:
            continue
        options = ",".join([fields[5], *fields[after + 2 : after + 3]]).split(",")
        best = Mount(kind, point, ",".join(dict.fromkeys(options)), plain(source))
    return best


def plain(text: str) -> str:
    """Return a path that mountinfo wrote, with its escapes (octal numbers) replaced."""
    return _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), text) if "\\" in text else text


def beegfs_setting(name: str) -> str | None:
    """Return the value of a setting of this host's BeeGFS client; None if it is not known."""
    try:
        clients = os.listdir(BEEGFS)
    except OSError as error:
        let_out(error)
        return None
    for client in clients:
        try:
            with open(f"{BEEGFS}/{client}/config", encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    key, _, value = line.partition("=")
                    if key.strip() == name:
                        return value.strip()
        except OSError as error:
            let_out(error)
            continue
    return None
