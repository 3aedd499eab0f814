"""The size that a file has now, told by the system in one question."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fsqueue.filesystem import Filesystem, rooted


def test_both_ways_tell_what_others_append(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    fs = Filesystem(str(tmp_path))
    watch = fs.watch(str(path), fs.look(str(path)))
    assert (watch(), fs.size_on_server(str(path))) == (5, 5)
    with path.open("ab") as file:
        file.write(b"67")
    assert (watch(), fs.size_on_server(str(path))) == (7, 7)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        fs.size_on_server(str(path))


def test_a_file_further_below(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"123")
    assert Filesystem(str(tmp_path)).size_on_server(str(tmp_path / "a" / "file")) == 3


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"x" * 1000)
    (tmp_path / "link").symlink_to("target")
    assert Filesystem(str(tmp_path)).size_on_server(str(tmp_path / "link")) == len("target")


def test_where_the_system_cannot_be_asked_so_the_file_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooted, "size_on_server", lambda *_: None)
    (tmp_path / "file").write_bytes(b"123")
    (tmp_path / "link").symlink_to("file")
    fs = Filesystem(str(tmp_path))
    assert fs.size_on_server(str(tmp_path / "file")) == 3
    with pytest.raises(OSError, match="symbolic"):
        fs.size_on_server(str(tmp_path / "link"))


def test_sizes_beyond_four_gigabytes(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(5 << 32)
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        assert rooted.size_on_server(directory, "file") == 5 << 32
    finally:
        os.close(directory)


def test_the_descriptor_goes_with_the_function(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"123")
    fs = Filesystem(str(tmp_path))
    fd = fs.look(str(tmp_path / "file"))
    watch = fs.watch(str(tmp_path / "file"), fd)
    assert watch() == 3
    del watch
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
