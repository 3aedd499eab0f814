"""Tell how much this user may still store: by quotactl(2) on local disks, by `lfs quota` on Lustre."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import subprocess
from dataclasses import dataclass

from fsqueue.filesystem.mounts import Mount
from fsqueue.interruptions import let_out

Q_GETQUOTA, USRQUOTA, GRPQUOTA = 0x800007, 0, 1
BLOCK_BYTES = 1024
"""The unit of limits in `struct dqblk`; space in use is in bytes."""
COMMAND_S = 10.0


@dataclass(frozen=True, slots=True)
class Quota:
    """A user's or group's usage and limit in bytes and files; a limit of 0 is none. The soft limit, where lower."""

    whose: str
    bytes_used: int
    bytes_limit: int
    files_used: int
    files_limit: int


class QuotaLimits(ctypes.Structure):
    """`struct dqblk` of quotactl(2)."""

    _fields_ = (
        *(
            (name, ctypes.c_uint64)
            for name in ("bhard", "bsoft", "space", "ihard", "isoft", "inodes", "btime", "itime")
        ),
        ("valid", ctypes.c_uint32),
    )


def quota_of(mount: Mount) -> list[Quota]:
    """Return the quotas of this user and group on a mount; [] where there are none, or nothing tells."""
    if mount.kind == "lustre":
        return _lustre(mount)
    if not mount.source.startswith("/dev/"):
        return []
    found = (_local(mount, USRQUOTA, os.getuid(), "user"), _local(mount, GRPQUOTA, os.getgid(), "group"))
    return [quota for quota in found if quota is not None]


def _local(mount: Mount, kind: int, number: int, name: str) -> Quota | None:
    block = QuotaLimits()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        command = (Q_GETQUOTA << 8) | kind
        if libc.quotactl(ctypes.c_int(command), os.fsencode(mount.source), number, ctypes.byref(block)):
            return None
    except (OSError, AttributeError) as error:
        let_out(error)
        return None
    bytes_limit = _limit(block.bhard, block.bsoft) * BLOCK_BYTES
    files_limit = _limit(block.ihard, block.isoft)
    if not bytes_limit and not files_limit:
        return None
    return Quota(f"{name} {number}", block.space, bytes_limit, block.inodes, files_limit)


def _limit(hard: int, soft: int) -> int:
    """Return the lower of the two that are set; 0 if none is."""
    return min((limit for limit in (hard, soft) if limit), default=0)


def _lustre(mount: Mount) -> list[Quota]:
    lfs = shutil.which("lfs", path=safe_path(os.environ.get("PATH", os.defpath)))
    if lfs is None:
        return []
    found = []
    for flag, number, name in (("-u", os.getuid(), "user"), ("-g", os.getgid(), "group")):
        try:
            said = subprocess.run(
                [lfs, "quota", "-q", flag, str(number), mount.point],
                capture_output=True,
                text=True,
                timeout=COMMAND_S,
                check=False,
                stdin=subprocess.DEVNULL,
                cwd="/",
            ).stdout
        except (OSError, subprocess.SubprocessError) as error:
            let_out(error)
            continue
        quota = parse_lfs(said, f"{name} {number}")
        if quota is not None:
            found.append(quota)
    return found


def safe_path(path: str) -> str:
    """Return the directories of a PATH in which only their owners, and this user's, can have put a program.

    Left out are relative ones, as `.` in a PATH that grew by accident: they would be those of a scratch directory. And
    those in which all users may write.
    """
    return os.pathsep.join(entry for entry in path.split(os.pathsep) if os.path.isabs(entry) and _is_kept(entry))


def _is_kept(directory: str) -> bool:
    try:
        return not os.stat(directory).st_mode & stat.S_IWOTH
    except OSError as error:
        let_out(error)
        return False


def parse_lfs(said: str, whose: str) -> Quota | None:
    """Parse what `lfs quota -q` prints: path, kbytes, quota, limit, grace, files, quota, limit, grace (`*`: over)."""
    words = said.split()
    numbers = [word.strip("[]*") for word in words[1:]]
    try:
        kbytes, soft, hard, files, files_soft, files_hard = (int(numbers[at]) for at in (0, 1, 2, 4, 5, 6))
    except (ValueError, IndexError):
        return None
    bytes_limit, files_limit = _limit(hard, soft) * BLOCK_BYTES, _limit(files_hard, files_soft)
    if not bytes_limit and not files_limit:
        return None
    return Quota(whose, kbytes * BLOCK_BYTES, bytes_limit, files, files_limit)
