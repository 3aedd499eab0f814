"""The ways in which a queue, or a group, comes to be a copy."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Copy = Callable[[Path], Path]
"""Makes a copy of a directory. Returns where it is: perhaps at the same path."""


def run(*command: object) -> None:
    subprocess.run([*map(str, command)], check=True)


def beside(path: Path) -> Path:
    there = path.with_name("copy")
    run("cp", "-a", path, there)
    return there


def restored(path: Path) -> Path:
    """A backup that takes the place of the original. ext4 gives it the same number."""
    backup = path.with_name("backup")
    run("cp", "-a", path, backup)
    run("rm", "-r", path)
    run("cp", "-a", backup, path)
    run("rm", "-r", backup)
    return path


def from_a_tar(path: Path) -> Path:
    archive = path.with_name("backup.tar")
    run("tar", "-C", path.parent, "-cf", archive, path.name)
    run("rm", "-r", path)
    run("tar", "-C", path.parent, "-xf", archive)
    return path


def of_a_copy(path: Path) -> Path:
    return restored(beside(path))


WAYS = [beside, restored, from_a_tar, of_a_copy]


@contextmanager
def on_tmpfs() -> Iterator[Path]:
    """A directory on a tmpfs, which tells no generation."""
    there = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        yield there
    finally:
        shutil.rmtree(there)
