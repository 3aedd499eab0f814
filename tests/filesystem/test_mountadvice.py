"""What is said of a mount, from lines of /proc/self/mountinfo as systems print them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fsqueue import Queue, administration
from fsqueue.doctor.probes import OK, UNFIT, WARNING, about
from fsqueue.errors import QueueNotFound, UnsafeFilesystem
from fsqueue.filesystem import Mount, mountadvice
from fsqueue.filesystem.mounts import mount_among
from fsqueue.storage import store
from tests.house.source import TOP
from tests.support import files_below

NFS = "rw,vers=4.2,rsize=1048576,namlen=255,hard,proto=tcp,timeo=600,sec=sys,clientaddr=10.0.0.2,{},addr=10.0.0.1"
SAMPLES = [
    # kind, source, super options, verdict, what is asked for or said
    ("nfs4", "srv:/export", NFS.format("local_lock=none"), OK, ""),
    ("nfs4", "srv:/export", NFS.format("local_lock=all"), UNFIT, "local_lock=none"),
    ("nfs4", "srv:/export", NFS.format("local_lock=posix"), UNFIT, "local_lock=none"),
    ("nfs4", "srv:/export", NFS.format("local_lock=flock"), OK, ""),
    ("nfs4", "srv:/export", NFS.format("nocto,local_lock=none"), UNFIT, "without 'nocto'"),
    ("nfs4", "srv:/export", NFS.format("local_lock=none").replace("hard", "soft"), WARNING, "'hard'"),
    ("nfs", "srv:/export", "rw,vers=3,hard,nolock,proto=tcp,local_lock=all,addr=10.0.0.1", UNFIT, "without 'nolock'"),
    (
        "nfs",
        "srv:/export",
        "rw,vers=3,hard,proto=tcp,mountproto=udp,local_lock=none,addr=10.0.0.1",
        WARNING,
        "vers=4.2",
    ),
    ("lustre", "10.0.0.1@tcp:/lfs", "rw,flock,user_xattr,lazystatfs", OK, ""),
    ("lustre", "10.0.0.1@tcp:/lfs", "rw,localflock,user_xattr,lazystatfs", UNFIT, "'flock'"),
    ("lustre", "10.0.0.1@tcp:/lfs", "rw,checksum,user_xattr,lazystatfs", UNFIT, "'flock'"),
    ("beegfs", "beegfs_nodev", "rw,cfgFile=/etc/beegfs/beegfs-client.conf", WARNING, "tuneUseGlobalFileLocks"),
    ("cifs", "//srv/share", "rw,vers=3.1.1,cache=strict,username=u,nobrl,soft", UNFIT, "without 'nobrl'"),
    ("cifs", "//srv/share", "rw,vers=3.1.1,cache=strict,username=u,soft", WARNING, "NFS 4"),
    ("fuse.sshfs", "u@srv:/data", "rw,user_id=1000,group_id=1000", UNFIT, "no locks"),
    ("fuse.s3fs", "s3fs", "rw,user_id=0,group_id=0,allow_other", UNFIT, "another filesystem"),
    ("fuse.unheard-of", "x", "rw", WARNING, "--join"),
    ("fuse.glusterfs", "srv:/vol", "rw,user_id=0", OK, ""),
    ("ceph", "10.0.0.1:6789:/", "rw,name=admin,secret=<hidden>,acl", OK, ""),
    ("gpfs", "gpfs0", "rw,mtime,quota", OK, ""),
    ("9p", "share", "rw,access=client,trans=virtio", WARNING, "--join"),
    ("virtiofs", "share", "rw", WARNING, "--posix-lock"),
    ("gfs2", "/dev/vg/lv", "rw,lockproto=lock_dlm", OK, ""),
    ("gfs2", "/dev/vg/lv", "rw,localflocks,lockproto=lock_dlm", UNFIT, "localflocks"),
    ("gfs2", "/dev/vg/lv", "rw,lockproto=lock_nolock", UNFIT, "lock_dlm"),
    ("ocfs2", "/dev/sdb1", "rw,heartbeat=local", WARNING, "stack"),
    ("afs", "%cell:root.cell", "rw,dyn", UNFIT, "flock=strict"),
    ("afs", "%cell:root.cell", "rw,dyn,flock=strict", WARNING, "--join"),
    ("orangefs", "tcp://srv:3334/orangefs", "rw,local_lock", UNFIT, "another filesystem"),
    ("vboxsf", "share", "rw,iocharset=utf8", UNFIT, "disk of the machine"),
    ("vfat", "/dev/sdb1", "rw,codepage=437", UNFIT, "ext4"),
    ("tmpfs", "tmpfs", "rw,size=1024k", WARNING, "disk"),
    ("overlay", "overlay", "rw,lowerdir=/l,upperdir=/u,workdir=/w", WARNING, "container"),
    ("ext4", "/dev/sda1", "rw,discard", OK, ""),
    ("unheard-of", "x", "rw", WARNING, "--join"),
]


@pytest.mark.parametrize(("kind", "source", "options", "verdict", "asked"), SAMPLES)
def test_each_kind_of_mount_is_told_from_its_line(
    kind: str, source: str, options: str, verdict: str, asked: str
) -> None:
    lines = [
        "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard",
        f"90 27 0:51 / /data rw,relatime shared:300 - {kind} {source} {options}",
        "91 27 0:52 / /database rw,relatime - xfs /dev/vdb rw",
    ]
    mount = mount_among(lines, "/data/me/q")
    assert (mount.kind, mount.point, mount.source) == (kind, "/data", source)
    finding = about(mount)
    assert finding.verdict == verdict
    assert asked in finding.advice
    assert (finding.verdict == UNFIT) <= bool(finding.advice)
    assert finding.figures["type"] == kind


def test_options_are_told_from_their_likes() -> None:
    mount = Mount("lustre", "/l", "rw,localflock,vers=4.2")
    assert (mount.option("flock"), mount.option("localflock"), mount.option("vers")) == (None, "", "4.2")


def test_of_mounts_upon_each_other_the_last_counts() -> None:
    lines = [
        "30 1 0:1 / / rw - rootfs rootfs rw",
        "31 30 0:2 / /home rw - autofs /etc/auto rw",
        "32 31 0:3 / /home rw - nfs4 srv:/home rw,vers=4.2",
        "33 31 0:4 / /with\\040blank rw - xfs /dev/sdc rw",
        "garbage",
    ]
    assert mount_among(lines, "/home/me").kind == "nfs4"
    assert mount_among(lines, "/with blank/q").point == "/with blank"
    assert mount_among(lines, "/elsewhere").kind == "rootfs"


@pytest.mark.parametrize(("said", "verdict"), [("true", OK), ("1", OK), ("false", UNFIT), (None, WARNING)])
def test_beegfs_is_asked_for_its_setting(monkeypatch: pytest.MonkeyPatch, said: str | None, verdict: str) -> None:
    monkeypatch.setattr(mountadvice, "beegfs_setting", lambda name: said if name == "tuneUseGlobalFileLocks" else None)
    finding = about(Mount("beegfs", "/b", "rw"))
    assert finding.verdict == verdict
    assert "tuneUseGlobalFileLocks" in finding.seen + finding.advice


def test_beegfs_settings_are_read_where_its_client_shows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsqueue.filesystem import beegfs_setting, mounts

    assert beegfs_setting("tuneUseGlobalFileLocks") is None
    client = tmp_path / "1A2B-login1"
    client.mkdir()
    (client / "config").write_text("tuneFileCacheType = buffered\ntuneUseGlobalFileLocks = true\n")
    monkeypatch.setattr(mounts, "BEEGFS", str(tmp_path))
    assert beegfs_setting("tuneUseGlobalFileLocks") == "true"
    assert beegfs_setting("unheardOf") is None


# -- opening a queue on one -----------------------------------------------------------------------------

UNFIT_MOUNTS = [
    Mount("nfs4", "/n", "rw,vers=4.2,hard,local_lock=all", "srv:/n"),
    Mount("lustre", "/l", "rw,localflock", "mgs:/l"),
]


def mounted(monkeypatch: pytest.MonkeyPatch, mount: Mount) -> None:
    """What this host's mountinfo says from now on."""
    for module in (administration, store):
        monkeypatch.setattr(module, "mount_of", lambda path: mount)


@pytest.mark.parametrize("mount", UNFIT_MOUNTS, ids=lambda mount: mount.kind)
def test_a_second_host_with_an_unfit_mount_cannot_open_a_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: Mount
) -> None:
    Queue.create(tmp_path / "q").insert("a task")  # on a sound host
    before = files_below(tmp_path / "q")
    mounted(monkeypatch, mount)
    with pytest.raises(UnsafeFilesystem, match=r"The queue .* was not opened") as refused:
        Queue(tmp_path / "q")
    seen, advice = about(mount).seen.rpartition("): ")[2], about(mount).advice
    assert seen in str(refused.value)
    assert advice in str(refused.value)  # the doctor's own words, and create's
    with pytest.raises(UnsafeFilesystem) as not_created:
        Queue.create(tmp_path / "other")
    assert f"{seen} {advice}" in str(not_created.value)
    with pytest.raises(UnsafeFilesystem):
        Queue.create(tmp_path / "q", exist_ok=True)
    assert files_below(tmp_path / "q") == before
    with pytest.raises(QueueNotFound):
        Queue(tmp_path / "elsewhere")  # what is not there is said to be missing, whatever the mount


def test_what_was_created_with_allow_unsafe_can_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted(monkeypatch, UNFIT_MOUNTS[0])
    Queue.create(tmp_path / "q", allow_unsafe=True).insert("a task")
    assert Queue(tmp_path / "q").status().waiting == 1
    assert (tmp_path / "q" / "queue.jsonl").read_bytes().count(b"allow-unsafe") == 1


def test_an_existing_queue_can_be_allowed_on_an_unfit_mount_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Queue.create(tmp_path / "q", allow_unsafe=True).insert("a task")
    settings = tmp_path / "q" / "queue.jsonl"
    assert b"allow-unsafe" not in settings.read_bytes()  # the mount was fit: nothing was decided
    mounted(monkeypatch, UNFIT_MOUNTS[0])
    with pytest.raises(UnsafeFilesystem, match=r"create .*/q --exist-ok --allow-unsafe"):
        Queue(tmp_path / "q")
    for _ in range(2):
        Queue.create(tmp_path / "q", exist_ok=True, allow_unsafe=True)
    assert settings.read_bytes().count(b"allow-unsafe") == 1
    assert [task.payload for task in Queue(tmp_path / "q").lease(2)] == ["a task"]


def test_an_open_queue_on_a_local_disk_asks_nothing_of_the_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = Queue.create(tmp_path / "q")
    mounted(monkeypatch, Mount("ext4", "/", "rw"))
    monkeypatch.setattr(mountadvice, "advice_on", lambda mount: pytest.fail("it was asked"))
    Queue(q.path)


def rows(page: str, heading: str) -> dict[str, str]:
    """The first and the second column of the table under a heading."""
    section = (TOP / page).read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", section, re.MULTILINE))


ROWS = {
    "ext4, xfs, btrfs, zfs, ...": [("ext4", ""), ("xfs", ""), ("btrfs", ""), ("zfs", "")],
    "NFS 4": [("nfs4", "vers=4.2,hard,local_lock=none")],
    "NFS with `local_lock=all` or `posix`, `nolock`": [
        ("nfs4", "vers=4.2,hard,local_lock=all"),
        ("nfs4", "vers=4.2,hard,local_lock=posix"),
        ("nfs", "vers=3,hard,nolock,local_lock=all"),
    ],
    "NFS with `nocto`": [("nfs4", "vers=4.2,hard,nocto,local_lock=none")],
    "NFS 3": [("nfs", "vers=3,hard,local_lock=none")],
    "NFS, `soft`": [("nfs4", "vers=4.2,soft,local_lock=none")],
    "Lustre with `flock`": [("lustre", "flock")],
    "Lustre with `localflock`, or without `flock`": [("lustre", "localflock"), ("lustre", "checksum")],
    "Spectrum Scale, CephFS, GlusterFS, JuiceFS, WEKA, PanFS": [
        *(("gpfs", ""), ("ceph", ""), ("fuse.ceph", ""), ("fuse.glusterfs", "")),
        *(("fuse.juicefs", ""), ("wekafs", ""), ("panfs", "")),
    ],
    "SMB with `nobrl`": [("cifs", "vers=3.1.1,nobrl"), ("smb3", "nobrl")],
    "SMB": [("cifs", "vers=3.1.1"), ("smb3", "")],
    "sshfs": [("fuse.sshfs", "")],
    "other FUSE": [("fuse.unheard-of", "")],
    "object stores (s3fs, rclone, gcsfuse, ...)": [("fuse.s3fs", ""), ("fuse.rclone", ""), ("fuse.gcsfuse", "")],
    "GFS2 with `localflocks`": [("gfs2", "localflocks,lockproto=lock_dlm")],
    "OCFS2": [("ocfs2", "heartbeat=local")],
    "AFS": [("afs", "dyn")],
    "9p, virtiofs": [("9p", "trans=virtio"), ("virtiofs", "")],
    "folders of virtual machines": [("vboxsf", ""), ("vmhgfs", ""), ("prl_fs", "")],
    "vfat, exfat": [("vfat", ""), ("exfat", "")],
    "tmpfs": [("tmpfs", "")],
    "overlay": [("overlay", "")],
}
"""What the doctor's page says of mounts, as this host's mountinfo might show each."""
VERDICTS = {"fit": OK, "unfit": UNFIT, "warning": WARNING}


@pytest.mark.parametrize("row", ROWS)
def test_the_doctor_s_page_says_of_a_mount_what_the_doctor_says(row: str) -> None:
    said = rows("docs/doctor.md", "Mounts, and what to ask for")[row]
    for kind, options in ROWS[row]:
        assert about(Mount(kind, "/m", f"rw,{options}", "x")).verdict == VERDICTS[re.split("[,:;]", said)[0]], kind


def test_no_mount_on_the_doctor_s_page_is_left_out() -> None:
    by_its_setting = {"mount", "---", "BeeGFS"}  # `test_beegfs_is_asked_for_its_setting`
    assert rows("docs/doctor.md", "Mounts, and what to ask for").keys() - by_its_setting == ROWS.keys()
