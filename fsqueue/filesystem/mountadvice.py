"""Judge a mount by its type and options, and say what to ask its administrator for (docs/doctor.md).

Some options keep locks within one host. No test on that host can show this, so only the options tell. The doctor,
`create` and every open of a queue take their verdict and their words from here.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from fsqueue.errors import UnsafeFilesystem
from fsqueue.filesystem import UNKNOWN, Mount, beegfs_setting, mount_of

OK, WARNING, UNFIT = "ok", "warning", "unfit"
"""A queue may be on the mount. It may, with a limit that users should know. It may not: its promises would break."""

Advice = tuple[str, str, str]
"""The verdict, a sentence on the mount, and what to ask for."""

ONE_HOST = "Locks exclude on this host only, though they succeed: workers on two hosts would take the same tasks."
ANOTHER = "Use another filesystem that all hosts share (NFS 4, Lustre with flock, Spectrum Scale, CephFS)."
TRY = "Try it: type 'fsqueue doctor PATH --join' here and on a second host."

MEMORY = ("tmpfs", "ramfs", "rootfs")
"""Filesystems in a host's memory."""

COHERENT = {
    "gpfs": "Spectrum Scale",
    "ceph": "CephFS",
    "fuse.ceph": "CephFS",
    "fuse.ceph-fuse": "CephFS",
    "fuse.glusterfs": "GlusterFS",
    "fuse.juicefs": "JuiceFS",
    "fuse.JuiceFS": "JuiceFS",
    "wekafs": "WEKA",
    "panfs": "PanFS",
}
"""Filesystems whose fcntl locks are designed to exclude between hosts."""

OBJECT_STORES = (
    "fuse.s3fs",
    "fuse.goofys",
    "fuse.rclone",
    "fuse.gcsfuse",
    "fuse.blobfuse",
    "fuse.blobfuse2",
    "fuse.mount-s3",
    "fuse.mountpoint-s3",
    "fuse.geesefs",
    "fuse.ossfs",
    "fuse.davfs",
    "davfs",
)
"""Stores of whole objects: no locks between hosts, no appending, no atomic renaming."""

HOST_FOLDERS = ("vboxsf", "vmhgfs", "fuse.vmhgfs-fuse", "prl_fs", "fakeowner", "fuse.grpcfuse", "fuse.osxfs")
"""Folders of a host that a virtual machine sees."""

FAT = ("vfat", "msdos", "exfat")
"""Filesystems of removable media: no hard links, and coarse time stamps."""


def advice_on(mount: Mount) -> Advice:
    """Return the advice on a mount. WARNING if it depends on something that this host cannot see."""
    if mount.kind == UNKNOWN:
        return (
            WARNING,
            "the type and the options of this mount cannot be told: /proc/self/mountinfo is unreadable.",
            TRY,
        )
    advice = _BY_KIND.get(mount.kind, _other)
    return advice(mount) if callable(advice) else advice


def volatile(path: str) -> str:
    """Return a warning if a restart of this host would lose a queue at `path`, else an empty text."""
    mount = mount_of(path)
    if mount.kind not in MEMORY:
        return ""
    return (
        f"on {mount.kind}, in this host's memory: when the host restarts, the queue and all that is in it are lost "
        "(tasks, results, dead letters, history). No other host sees it. Good for tests; for work choose a disk."
    )


def is_unfit(mount: Mount) -> bool:
    """Tell whether a mount is known to break a queue's promises. Costs next to nothing on a local disk."""
    return mount.shared and advice_on(mount)[0] == UNFIT


def refusal(mount: Mount, what: str, then: str) -> UnsafeFilesystem:
    """Return the error for an unfit mount: `what` says what is wrong with it, `then` what to do."""
    return UnsafeFilesystem(f"{mount.point} ({mount.kind}) cannot keep a queue's promises. {what} {then}")


def words(probe: str, seen: str, advice: str) -> str:
    """Return the sentences of an error about one probe that found the mount unfit."""
    return f"{probe.capitalize()}: {seen} {advice}"


def refuse_unfit(mount: Mount, path: str) -> None:
    """Raise UnsafeFilesystem if the mount that holds an existing queue is known to be unfit."""
    if is_unfit(mount):
        _, seen, advice = advice_on(mount)
        typed = shlex.quote(path)
        raise refusal(
            mount,
            words("mount", seen, advice),
            f"The queue {path} was not opened, and nothing was changed; 'fsqueue doctor {typed}' tells more. "
            f"To use it all the same, on every host: fsqueue create {typed} --exist-ok --allow-unsafe",
        )


def _nfs(mount: Mount) -> Advice:
    version = mount.option("vers") or mount.option("nfsvers") or ("4" if mount.kind == "nfs4" else "3")
    local = mount.option("local_lock")
    if mount.option("nolock") is not None or local in ("all", "posix"):
        option = "nolock" if mount.option("nolock") is not None else f"local_lock={local}"
        return (
            UNFIT,
            f"NFS {version} with '{option}'. {ONE_HOST}",
            (
                "Ask the administrator to mount it with 'local_lock=none' and without 'nolock' (best: vers=4.2 and "
                "default options)."
            ),
        )
    if mount.option("nocto") is not None:
        return (
            UNFIT,
            f"NFS {version} with 'nocto': opening a file does not ask the server, so that what others did is not seen.",
            "Ask the administrator to mount it without 'nocto'.",
        )
    if not version.startswith("4"):
        return (
            WARNING,
            (
                f"NFS {version}. A lock of a client that crashed or was cut off stays until that client is back, and "
                "with it what it locked."
            ),
            "Ask the administrator for NFS 4 ('vers=4.2'); until then for a running lock service (lockd, statd).",
        )
    if mount.option("soft") is not None or mount.option("softerr") is not None:
        return (
            WARNING,
            (
                f"NFS {version}, mounted 'soft': a slow server makes calls fail that may have happened; fsqueue "
                "reports them as failed, and looks what became of them."
            ),
            "Ask the administrator for the mount option 'hard' (the default).",
        )
    return OK, f"NFS {version}, locks go to the server.", ""


def _lustre(mount: Mount) -> Advice:
    ask = "Ask the administrator to mount Lustre with the option 'flock' on all hosts."
    if mount.option("localflock") is not None:
        return UNFIT, f"Lustre with 'localflock'. {ONE_HOST}", ask
    if mount.option("flock") is None:
        return UNFIT, "Lustre without 'flock': file locks are off.", ask
    return (
        OK,
        ("Lustre with 'flock'. It stamps files with each host's own clock, so the hosts' clocks must agree (NTP)."),
        "",
    )


def _beegfs(mount: Mount) -> Advice:
    setting = beegfs_setting("tuneUseGlobalFileLocks")
    ask = "Ask the administrator to set 'tuneUseGlobalFileLocks = true' in beegfs-client.conf on all hosts."
    if setting is None:
        return WARNING, "BeeGFS, which by default excludes within one host only; its settings cannot be read.", ask
    if setting.lower() not in ("true", "1", "yes"):
        return UNFIT, f"BeeGFS with 'tuneUseGlobalFileLocks = {setting}'. {ONE_HOST}", ask
    return OK, "BeeGFS with 'tuneUseGlobalFileLocks = true'.", ""


def _smb(mount: Mount) -> Advice:
    for option in ("nobrl", "nolock"):
        if mount.option(option) is not None:
            return (
                UNFIT,
                f"SMB with '{option}': locks are not sent to the server. {ONE_HOST}",
                (f"Ask the administrator to mount it without '{option}'; better, use NFS 4."),
            )
    return (
        WARNING,
        ("SMB. Its locks are mandatory (a locked file cannot be read by others) unless POSIX extensions are on."),
        f"Better use NFS 4. {TRY}",
    )


def _afs(mount: Mount) -> Advice:
    if mount.option("flock") in ("strict", "write"):
        return WARNING, "AFS with locks of whole files on the server.", TRY
    return UNFIT, f"AFS. {ONE_HOST}", f"With the kernel's client ask for 'flock=strict'. {ANOTHER}"


def _gfs2(mount: Mount) -> Advice:
    if mount.option("localflocks") is not None or mount.option("lockproto") == "lock_nolock":
        return (
            UNFIT,
            f"GFS2 with locks of its own host. {ONE_HOST}",
            ("Ask the administrator to mount it without 'localflocks' and with 'lockproto=lock_dlm'."),
        )
    return OK, "GFS2, locks go through the cluster.", ""


def _guest(mount: Mount) -> Advice:
    return (
        WARNING,
        (
            f"{mount.kind}, a directory of the machine around this one. Many servers of it grant every lock, or keep "
            "locks within the guest."
        ),
        f"Good for this machine alone; with virtiofsd ask for remote locks ('--posix-lock'). {TRY}",
    )


def _other(mount: Mount) -> Advice:
    if not mount.shared:
        return OK, "a disk of this host. Workers on other hosts cannot see it.", ""
    if mount.kind in COHERENT:
        return OK, f"{COHERENT[mount.kind]}, whose locks exclude between hosts.", ""
    if mount.kind.startswith("fuse"):
        return WARNING, "a FUSE filesystem: unless it was made to do otherwise, locks exclude on this host only.", TRY
    return WARNING, "a kind that this version of fsqueue knows nothing of.", TRY


_OBJECT_STORE = (
    UNFIT, "an object store behind a mount: no locks between hosts, no appending, no atomic renaming.", ANOTHER,
)  # fmt: skip
_HOST_FOLDER = (
    UNFIT, f"a shared folder of a virtual machine. {ONE_HOST}", f"Use a disk of the machine's own. {ANOTHER}",
)  # fmt: skip
_FAT = (
    UNFIT, "it has no hard links, and stamps files in steps of up to 2 s.",
    "Use a Linux filesystem (ext4, xfs, btrfs).",
)  # fmt: skip
_ORANGEFS = UNFIT, f"OrangeFS has no locks, or, with 'local_lock', those of one host. {ONE_HOST}", ANOTHER
_MEMORY = (
    WARNING, "in this host's memory: lost when it restarts, and no other host sees it.",
    "Good for tests. For work choose a disk.",
)  # fmt: skip
_BY_KIND: dict[str, Advice | Callable[[Mount], Advice]] = {
    "nfs": _nfs,
    "nfs4": _nfs,
    "lustre": _lustre,
    "beegfs": _beegfs,
    "fhgfs": _beegfs,
    **dict.fromkeys(("cifs", "smb3", "smbfs"), _smb),
    "fuse.sshfs": (UNFIT, f"sshfs. {ONE_HOST}", f"The SFTP protocol has no locks. {ANOTHER}"),
    "afs": _afs,
    "gfs2": _gfs2,
    "ocfs2": (
        WARNING,
        "OCFS2: fcntl locks go through the cluster with a userspace cluster stack (pcmk), not with o2cb.",
        f"Ask the administrator which stack is in use. {TRY}",
    ),
    **dict.fromkeys(("orangefs", "pvfs2"), _ORANGEFS),
    **dict.fromkeys(("9p", "virtiofs"), _guest),
    **dict.fromkeys(MEMORY, _MEMORY),
    "overlay": (
        WARNING,
        "the inside of a container: it goes when the container goes, and no other host sees it.",
        "Bind a directory of the host, or of a shared filesystem, into the container.",
    ),
    **dict.fromkeys(OBJECT_STORES, _OBJECT_STORE),
    **dict.fromkeys(HOST_FOLDERS, _HOST_FOLDER),
    **dict.fromkeys(FAT, _FAT),
}
