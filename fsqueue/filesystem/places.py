"""Tell an open directory from copies of it: by the number of its inode, and the generation of that number."""

from __future__ import annotations

import fcntl
import os
import platform
import struct

from fsqueue.interruptions import suppress

_READS = 0x40000000 if platform.machine().startswith(("ppc", "mips", "sparc", "alpha")) else 0x80000000
GET_VERSION = _READS | struct.calcsize("l") << 16 | ord("v") << 8 | 1
"""FS_IOC_GETVERSION of <linux/fs.h>: _IOR('v', 1, long)."""


def place_of(fd: int) -> tuple[int, int | None]:
    """Return the number of an open directory's inode, and the generation of the number; None: it is not known.

    A filesystem may give the number of a removed directory to the next one. Then the generation differs.
    """
    generation = None
    with suppress(OSError):  # ENOTTY, EOPNOTSUPP, EPERM of a container
        answer = fcntl.ioctl(fd, GET_VERSION, bytes(struct.calcsize("l")))
        [generation] = struct.unpack_from("I", answer)  # an int, whatever the ioctl is called
    return os.fstat(fd).st_ino, generation
