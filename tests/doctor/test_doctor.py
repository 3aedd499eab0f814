"""The doctor: where it looks, what it says when it cannot, and that it leaves nothing."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fsqueue import FsqueueError, InvalidArgument, NotAQueue, Queue, UnsafeFilesystem
from fsqueue.doctor import examination as doctor
from fsqueue.doctor.probes import OK, UNFIT, UNTRIED, WARNING, ProbeResult
from fsqueue.filesystem import Filesystem, Mount
from fsqueue.filesystem.mounts import mount_among
from fsqueue.filesystem.quota import Quota, parse_lfs, quota_of
from fsqueue.format import layout
from tests.support import files_below

pytestmark = pytest.mark.once


def by_probe(findings: list[ProbeResult]) -> dict[str, ProbeResult]:
    found = {finding.probe: finding for finding in findings}
    assert len(found) == len(findings)
    return found


def everything_below(directory: Path) -> list[str]:
    return sorted(os.path.join(place, name) for place, dirs, files in os.walk(directory) for name in dirs + files)


# -- where it looks ---------------------------------------------------------------------------------------


def test_a_directory_and_a_queue(tmp_path: Path, queue: Queue) -> None:
    queue.insert("task")
    before = everything_below(tmp_path)
    for path in (tmp_path, queue.path):
        report = doctor.examine(path)
        assert report.path == str(path)
        assert report.verdict in (OK, WARNING)  # a warning on tmpfs
        assert {finding.verdict for finding in report.findings[1:]} == {OK}
        assert report.stuck == []
        assert everything_below(tmp_path) == before
    assert doctor.examine(f"fq://{queue.path}").path == str(queue.path)


def test_a_queue_can_be_made_in_a_directory_that_is_being_examined(tmp_path: Path) -> None:
    (tmp_path / "q" / ".fsqueue-doctor" / "join").mkdir(parents=True)
    (tmp_path / "q" / ".fsqueue-doctor-0123456789abcdef").mkdir()
    Queue.create(tmp_path / "q").insert("task")


def test_a_file_is_no_place_for_a_queue(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotAQueue, match="is a file"):
        doctor.examine(tmp_path / "file")
    with pytest.raises(InvalidArgument):
        doctor.examine("")


def test_a_path_at_which_nothing_is_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for path in ("file/below", "link", "not", "not/yet"):
        for look in (doctor.examine, doctor.join):
            with pytest.raises(InvalidArgument, match=f"nothing at .* nearest one is {re.escape(str(tmp_path))}$"):
                look(tmp_path / path)


def test_the_report_can_be_json(tmp_path: Path) -> None:
    report = doctor.examine(tmp_path).as_dict()
    assert report["verdict"] in (OK, WARNING)
    assert report["partner"] is None
    mount = report["findings"][0]
    assert (mount["probe"], set(mount["figures"])) == ("mount", {"type", "point", "options", "source"})
    assert all(finding.keys() == mount.keys() for finding in report["findings"])


# -- what is wrong --------------------------------------------------------------------------------------------


def examined(directory: Path, made: Callable[[Filesystem], None]) -> doctor.Report:
    """The report on a directory in which every filesystem is treated by `made`."""

    def make(root: str, **options: Any) -> Filesystem:
        fs = Filesystem(root, **options)
        made(fs)
        return fs

    return doctor.Examination(directory, lambda step: None, make).report


@pytest.mark.parametrize(
    ("code", "seen", "advice"),
    [
        (errno.EROFS, "read-only", "writable"),
        (errno.EACCES, "may not write", "owner"),
        (errno.EDQUOT, "no room", "quota"),
        (errno.ENOSPC, "no room", "quota"),
        (errno.EMFILE, "not to blame", "ulimit -n"),
        (errno.EFBIG, "not to blame", "ulimit -f"),
        (errno.EIO, "fails", "administrator"),
    ],
)
def test_where_nothing_can_be_written_it_is_said_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, seen: str, advice: str
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fsqueue.filesystem.open_directories.os.mkdir", fail)
    report = doctor.examine(tmp_path)
    assert report.verdict == UNFIT
    writing = by_probe(report.findings)["writing"]
    assert seen in writing.seen
    assert advice in writing.advice
    assert "locks" not in by_probe(report.findings)


def test_room_that_ends_in_the_middle_is_said(tmp_path: Path) -> None:
    def full(fs: Filesystem) -> None:
        fs.write = lambda fd, data: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device"))

    report = examined(tmp_path, full)
    assert "no room" in by_probe(report.findings)["writing"].seen
    assert os.listdir(tmp_path) == []


def test_locks_that_exclude_nobody_make_it_unfit(tmp_path: Path) -> None:
    def exclude_nobody(fs: Filesystem) -> None:
        fs.try_lock = lambda fd: True

    report = examined(tmp_path, exclude_nobody)
    found = by_probe(report.findings)
    assert report.verdict == UNFIT
    assert {name for name in found if found[name].verdict == UNFIT} >= {"locks", "locks between threads"}
    assert found["locks between processes"].verdict == OK  # these are other processes: the disk is good
    assert os.listdir(tmp_path) == []


def test_an_interrupted_examination_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(step: str) -> None:
        [place] = os.listdir(tmp_path)
        assert layout.is_doctor_directory(place)
        assert stat.S_IMODE((tmp_path / place).stat().st_mode) == 0o700
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        doctor.examine(tmp_path, progress=interrupt)
    assert os.listdir(tmp_path) == []


REMNANTS = (
    ".fsqueue-doctor-0123456789abcdef/threads/ledger",
    ".fsqueue-doctor-0123456789abcdef/processes/renamed-7-p2",
    ".fsqueue-doctor-0123456789abcdef/probe-0123456789abcdef/inner/file",
    ".fsqueue-doctor/join/0123456789abcdef.place/sights1/listing/gone",
    ".fsqueue-doctor/join/0123456789abcdef.here",
    ".fsqueue-doctor/join/0123456789abcdef.fedcba9876543210.000001",
)


def leave(directory: Path, *files: str) -> None:
    for name in files:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).touch()


def age(directory: Path) -> None:
    for path in directory.rglob("*"):
        os.utime(path, (1e9, 1e9), follow_symlinks=False)


def test_what_killed_doctors_left_goes_after_a_day(tmp_path: Path, queue: Queue) -> None:
    for directory, reap in ((tmp_path, lambda: doctor.examine(tmp_path)), (Path(queue.path), queue.gc)):
        before = everything_below(directory)
        leave(directory, *REMNANTS)
        left = everything_below(directory)
        reap()
        assert everything_below(directory) == left  # they may be at work
        for place in directory.glob(".fsqueue-doctor*"):
            age(place)
            os.utime(place, (1e9, 1e9))
        reap()
        assert everything_below(directory) == before


def test_only_what_doctors_make_is_reaped(tmp_path: Path) -> None:
    """Names that are nearly a doctor's, and a stranger's files in a directory that was given a doctor's name."""
    place = ".fsqueue-doctor-0123456789abcdef"
    kept = (
        f"{place}/thesis",
        f"{place}/threads/thesis",
        f"{place}/probe-0123456789abcdef/ledger",
        ".fsqueue-doctor-0123456789abcdeg/ledger",
        ".fsqueue-doctor-1/ledger",
        ".fsqueue-doctor/0123456789abcdef/0123456789abcdef",
        ".fsqueue-doctor/thesis/ledger",
        ".fsqueue-doctor/thesis.place/ledger",
        ".fsqueue-doctor/join/0123456789abcdef.place/thesis",
        ".fsqueue-doctor/join/0123456789abcdef.thesis",
        ".fsqueue-doctor/join/thesis",
    )
    leave(tmp_path, *kept, f"{place}/ledger")
    age(tmp_path)
    doctor.examine(tmp_path)
    assert files_below(tmp_path) == sorted(kept)


def test_reaping_follows_no_links(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "m"
    leave(outside, "ledger", "threads/ledger", "join/0123456789abcdef.here", "0123456789abcdef/ledger")
    inside.mkdir()
    (inside / ".fsqueue-doctor").symlink_to(outside)
    (inside / ".fsqueue-doctor-0123456789abcdef").symlink_to(outside)
    (inside / ".fsqueue-doctor-1123456789abcdef").mkdir()
    (inside / ".fsqueue-doctor-1123456789abcdef" / "threads").symlink_to(outside / "threads")
    before = everything_below(tmp_path)
    age(tmp_path)
    doctor.examine(inside)
    assert everything_below(tmp_path) == before


def test_a_place_is_left_alone_that_was_exchanged(tmp_path: Path) -> None:
    """While a doctor works, somebody moves its place away and puts a directory of hers under its name."""
    leave(tmp_path, "precious/ledger", "precious/threads/ledger")

    def exchange(step: str) -> None:
        if step == "contests between processes":
            [place] = tmp_path.glob(".fsqueue-doctor-*")
            place.rename(tmp_path / "moved")
            (tmp_path / "precious").rename(place)

    report = doctor.examine(tmp_path, progress=exchange)
    assert report.verdict in (OK, WARNING)
    [place] = tmp_path.glob(".fsqueue-doctor-*")
    assert files_below(place) == ["ledger", "threads/ledger"]
    assert files_below(tmp_path / "moved") == []


# -- mounts and room ------------------------------------------------------------------------------------------


def test_a_shared_mount_is_not_called_fit_between_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "mount_of", lambda path: Mount("gpfs", "/gpfs", "rw"))
    report = doctor.examine(tmp_path)
    assert report.findings[-1].verdict == UNTRIED
    assert f"fsqueue doctor {tmp_path} --join" in report.findings[-1].advice


def test_scratch_systems_delete_idle_files(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    assert "--touch" in by_probe(doctor.examine(tmp_path / "scratch").findings)["idle files"].advice


def space(
    bytes_free: int, files_free: int, files: int = 10**6, quotas: list[Quota] | None = None, blocks: int = 2**40
) -> ProbeResult:
    fs = SimpleNamespace(
        space=lambda path: SimpleNamespace(
            f_blocks=blocks, f_bavail=bytes_free // 512, f_frsize=512, f_files=files, f_favail=files_free
        )
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "quota_of", lambda mount: quotas or [])
        return doctor.space(fs, "/x", Mount("xfs", "/", "rw"))  # type: ignore[arg-type]


def test_room_is_told_in_bytes_and_files() -> None:
    assert space(2**40, 10**6).verdict == OK
    assert space(2**20, 10**6).verdict == space(2**40, 100).verdict == WARNING
    assert space(0, 10**6).verdict == space(2**40, 0).verdict == UNFIT
    assert space(2**40, 0, files=0).figures == {"bytes_free": 2**40}  # btrfs counts no inodes


def test_a_mount_that_tells_no_number_of_blocks_is_not_called_full() -> None:
    """ramfs, and FUSE systems without statfs."""
    found = space(0, 0, files=0, blocks=0)
    assert (found.verdict, found.figures) == (UNTRIED, {})
    assert "does not tell" in found.seen
    assert space(0, 0, files=10**6, blocks=0).verdict == UNFIT  # it has no inode left, and says so
    assert space(0, 100, files=10**6, blocks=0).verdict == WARNING


def without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no /proc from now on: neither mountinfo, nor a path to an open directory."""
    is_directory = os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda path: not str(path).startswith("/proc/") and is_directory(path))
    monkeypatch.setattr(doctor, "mount_of", lambda path: mount_among((), path))


def test_without_proc_the_doctor_says_what_it_could_not_examine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_proc(tmp_path, monkeypatch)
    for report in (doctor.examine(tmp_path), doctor.join(tmp_path, timeout_s=0)):
        assert report.verdict == WARNING
        said = [finding.seen for finding in report.findings]
        assert any("/proc" in seen and "locks" in seen for seen in said)
        assert "mountinfo is unreadable" in said[0]
    assert os.listdir(tmp_path) == []


def test_a_quota_counts_where_it_leaves_less() -> None:
    quota = Quota("user 7", 2**30, 3 * 2**30, 999_000, 10**6)
    found = space(2**40, 10**9, quotas=[quota])
    assert (found.verdict, found.figures) == (WARNING, {"bytes_free": 2**31, "files_free": 1000})
    assert "user 7" in found.seen
    assert space(2**40, 10**9, quotas=[Quota("user 7", 2**30, 2**30, 5, 0)]).verdict == UNFIT


def test_what_lfs_says_of_quotas_is_understood() -> None:
    said = "     /lustre  1048576  2097152 4194304       -    5000*   4000   10000       -\n"
    assert parse_lfs(said, "user 1") == Quota("user 1", 2**30, 2 * 2**30, 5000, 4000)
    assert parse_lfs("     /lustre  1048576       0       0       -    5000       0       0       -\n", "u") is None
    assert parse_lfs("Unexpected quotactl error: Operation not supported\n", "u") is None
    assert parse_lfs("", "u") is None


def test_lfs_is_asked_on_lustre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lfs = tmp_path / "lfs"
    lfs.write_text('#!/bin/sh\necho "$5 100 200 300 - 1 2 3 -"\n')
    lfs.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    [user, group] = quota_of(Mount("lustre", "/lustre", "rw,flock"))
    assert (user.bytes_limit, user.files_limit) == (200 * 1024, 2)
    assert (user.whose, group.whose) == (f"user {os.getuid()}", f"group {os.getgid()}")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert quota_of(Mount("lustre", "/lustre", "rw,flock")) == []


def test_a_program_that_a_stranger_put_somewhere_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PATH with `.`, an empty entry, a relative one, or a directory where everybody may write."""
    everybodys = tmp_path / "everybodys"
    for directory in (tmp_path, everybodys):
        directory.mkdir(exist_ok=True)
        (directory / "lfs").write_text(f"#!/bin/sh\necho x >> {tmp_path}/started\n")
        (directory / "lfs").chmod(0o755)
    everybodys.chmod(0o1777)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f".::everybodys:{everybodys}")
    assert quota_of(Mount("lustre", "/lustre", "rw,flock")) == []
    assert not (tmp_path / "started").exists()


def test_processes_of_a_contest_import_nothing_from_where_they_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "orjson", "subprocess", "fsqueue", "sitecustomize", "usercustomize", "encodings"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write({name!r})\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", ".", str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONPATH", ":.")
    report = doctor.examine(tmp_path)
    assert by_probe(report.findings)["locks between processes"].verdict == OK
    assert not (tmp_path / "imported").exists()


def test_disks_without_quotas_have_none() -> None:
    assert quota_of(Mount("ext4", "/", "rw", "/dev/null")) == []
    assert quota_of(Mount("tmpfs", "/tmp", "rw", "tmpfs")) == []


# -- create -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mount", "asked"),
    [
        (Mount("lustre", "/l", "rw,localflock"), "'flock'"),
        (Mount("nfs4", "/n", "rw,vers=4.2,local_lock=all"), "local_lock=none"),
        (Mount("fuse.sshfs", "/s", "rw"), "no locks"),
    ],
)
def test_create_refuses_a_mount_that_is_known_to_be_unfit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: Mount, asked: str
) -> None:
    monkeypatch.setattr("fsqueue.administration.mount_of", lambda path: mount)
    with pytest.raises(UnsafeFilesystem, match=asked) as caught:
        Queue.create(tmp_path / "q")
    assert caught.value.exit_code == 8
    assert "allow_unsafe=True" in str(caught.value)
    assert os.listdir(tmp_path) == []
    q = Queue.create(tmp_path / "q", allow_unsafe=True)
    q.insert("task")
    assert Queue.create(tmp_path / "q", exist_ok=True).status().waiting == 1  # what is there stays usable


@pytest.mark.parametrize("kind", ["gpfs", "fuse.unheard-of", "tmpfs", "overlay", "nfs4"])
def test_create_takes_what_it_cannot_call_unfit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr("fsqueue.administration.mount_of", lambda path: Mount(kind, "/m", "rw,vers=4.2"))
    Queue.create(tmp_path / "q").insert("task")
    assert files_below(tmp_path / "q")[-1] == "queue.jsonl"


def failing(name: str, call: Callable[..., Any]) -> type[Filesystem]:
    class Failing(Filesystem):
        def __init__(self, root: str, **options: Any) -> None:
            super().__init__(root, **options)
            setattr(self, name, call)

    return Failing


def test_create_without_room_or_permission_is_no_matter_of_safety(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for code, said in ((errno.ENOSPC, "no room"), (errno.EROFS, "read-only"), (errno.EACCES, "Permission")):

        def fail(*_: Any, code: int = code) -> Any:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr("fsqueue.administration.Filesystem", failing("create", fail))
        with pytest.raises(FsqueueError, match=said) as caught:
            Queue.create(tmp_path / "q")
        assert not isinstance(caught.value, UnsafeFilesystem)


def test_create_refuses_a_mount_without_links_or_directory_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, code, probe in (("link", errno.EPERM, "Link"), ("sync_directory", errno.EINVAL, "Sync")):

        def fail(*_: Any, code: int = code) -> Any:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr("fsqueue.administration.Filesystem", failing(name, fail))
        with pytest.raises(UnsafeFilesystem, match=probe):
            Queue.create(tmp_path / "q")
        assert os.listdir(tmp_path) == []
