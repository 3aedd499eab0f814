"""Small disks of their own for tests, full by bytes or by inodes."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fsqueue.errors import FULL


@contextmanager
def small_disk(place: Path, megabytes: int, inodes: int, kind: str = "tmpfs") -> Iterator[Path]:
    """A small filesystem mounted at `place` (root only): a tmpfs, or an ext4, xfs or btrfs on a file."""
    if not can_mount(kind):
        pytest.skip("only root, where it may mount, can make a small disk")
    place.mkdir()
    image = Path(f"{place}.img")
    if kind == "tmpfs":
        mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,nr_inodes={inodes},mode=777", "small", str(place)]
    else:
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        by_kind = {
            "ext4": ("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", "-N", str(inodes)),
            "xfs": ("mkfs.xfs", "-q"),  # none below 300 MB; inodes as it likes
            "btrfs": ("mkfs.btrfs", "-q"),  # none below 109 MB
        }
        run(*by_kind[kind], str(image))
        mount = ["mount", "-o", "loop", str(image), str(place)]
    run(*mount)
    try:
        if kind == "ext4":
            os.rmdir(place / "lost+found")
        yield place
    finally:
        run("umount", "--lazy", str(place))
        image.unlink(missing_ok=True)


def run(*command: str) -> None:
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, f"{command}: {finished.stderr}"


def can_mount(kind: str) -> bool:
    """Whether this machine lets us mount one (containers often don't)."""
    if os.geteuid() != 0 or (kind != "tmpfs" and not os.path.exists("/dev/loop-control")):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.prctl(23, 21, 0, 0, 0) == 1  # PR_CAPBSET_READ, CAP_SYS_ADMIN


DISKS = [kind for kind in ("tmpfs", "ext4") if can_mount(kind)] or ["none"]


class Ballast:
    """What fills a disk, in bytes or inodes: some of it from the beginning, so that there is room again without it."""

    def __init__(self, disk: Path, what: str) -> None:
        self.place = disk / "ballast"
        self.what = what
        self.place.mkdir()
        if what == "bytes":
            (self.place / "0").write_bytes(b"x" * (200 << 10))
        else:
            for number in range(30):
                (self.place / str(number)).touch()

    def fill(self) -> None:
        """Write until there is no room for anything."""
        try:
            self._fill()
        except OSError as error:
            if error.errno not in FULL:
                raise

    def _fill(self) -> None:
        if self.what == "inodes":
            for number in range(30, 10_000):
                (self.place / str(number)).touch()
        with open(self.place / "0", "ab", buffering=0) as file:
            while True:
                file.write(b"x" * 512)

    def empty(self) -> None:
        """Make room."""
        for path in self.place.iterdir():
            path.unlink()
