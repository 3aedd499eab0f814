"""Files of a name in the directories above an open one."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from fsqueue.filesystem import parent_directories
from fsqueue.filesystem.parent_directories import files_above, other_paths

pytestmark = pytest.mark.once

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
31 22 8:2 / /data rw - ext4 /dev/sda2 rw
32 22 8:2 /me/q/1-ab/history /short rw - ext4 /dev/sda2 rw
33 22 8:2 /me /of\\040me rw - ext4 /dev/sda2 rw
34 22 8:2 /me/q/1-ab/history /again rw - ext4 /dev/sda2 rw
35 22 8:2 /me/q2 /beside rw - ext4 /dev/sda2 rw
36 22 8:3 /me/q/1-ab/history /another rw - ext4 /dev/sda3 rw
a line that is cut
"""


@pytest.mark.parametrize(
    ("number", "paths"),
    [
        (32, ["/data/me/q/1-ab/history", "/of me/q/1-ab/history"]),
        (33, ["/data/me"]),
        (35, ["/data/me/q2", "/of me/q2"]),
        (36, []),
        (31, []),
        (22, []),
        (99, []),
        (-1, []),
    ],
)
def test_a_directory_that_is_mounted_elsewhere_is_found_where_its_filesystem_is(number: int, paths: list[str]) -> None:
    assert other_paths(MOUNTS.splitlines(), number) == paths


def lowest_free() -> int:
    fd = os.dup(1)
    os.close(fd)
    return fd


def found_from(path: Path, name: str) -> list[bytes | None]:
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY)
    try:
        return [found.content for found in files_above(fd, name, 5)]
    finally:
        os.close(fd)


def test_only_regular_files_in_the_directory_and_above_count(tmp_path: Path) -> None:
    name = "above-here.txt"
    deep = tmp_path / "one" / "two" / "three" / "four"
    deep.mkdir(parents=True)
    (tmp_path / name).write_text("the outermost")
    (tmp_path / "one" / name).mkdir()
    os.mkfifo(tmp_path / "one" / "two" / name)
    (deep.parent / name).symlink_to(tmp_path / name)
    (deep / name).write_text("own")
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / name).write_text("no")
    gc.collect()
    lowest = lowest_free()
    assert found_from(deep, name) == [b"own", b"the o"]
    assert lowest_free() == lowest, "all descriptors are closed"


def test_neither_the_name_by_which_it_was_opened_nor_a_move_matters(tmp_path: Path) -> None:
    (tmp_path / "queue" / "inner").mkdir(parents=True)
    (tmp_path / "queue" / "file").write_text("found")
    (tmp_path / "link").symlink_to("queue/inner")
    fd = os.open(tmp_path / "link", os.O_PATH | os.O_DIRECTORY)
    try:
        assert [found.content for found in files_above(fd, "file", 9)] == [b"found"]
        (tmp_path / "queue" / "inner").rename(tmp_path / "moved")
        assert [found.content for found in files_above(fd, "file", 9)] == []
    finally:
        os.close(fd)


def test_without_numbers_of_mounts_the_root_is_where_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("found")
    monkeypatch.setattr(parent_directories, "_mount_number", lambda fd: -1)
    assert found_from(tmp_path, "file") == [b"found"]
