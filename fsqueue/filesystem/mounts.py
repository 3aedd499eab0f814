"""What kind of filesystem a path lies on."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

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
        "apfs",
        "hfs",
    ]
)
"""Filesystems of this host alone. What is not listed counts as shared: it is synced more, never less."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted filesystem: its type ("ext4", "nfs4"), where it is mounted, and its options."""

    kind: str
    point: str
    options: str

    @property
    def shared(self) -> bool:
        """Whether other hosts may have it mounted, too."""
        return self.kind not in LOCAL


_ESCAPED = re.compile(r"\\([0-7]{3})")
"""Blanks and the like in a mount point; all are ASCII."""


def mount_of(path: str) -> Mount:
    """The mount that holds `path`, which need not exist. Linux; elsewhere the type is "unknown"."""
    real = os.path.realpath(path)
    best = Mount("unknown", "/", "")
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                left, _, right = line.partition(" - ")
                fields, tail = left.split(), right.split()
                point = _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), fields[4])
                inside = real == point or real.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best.point):
                    best = Mount(tail[0], point, ",".join([fields[5], *tail[2:3]]))
    except (OSError, IndexError):
        pass
    return best
