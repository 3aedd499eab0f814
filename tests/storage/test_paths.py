"""Which directory a user means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fsqueue import InvalidArgument
from fsqueue.storage.discovery import queue_path


def test_queue_path_takes_paths_and_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert queue_path("/a/b/") == "/a/b"
    assert queue_path("fq:///a/b") == "/a/b"
    assert queue_path(Path("/a/../c")) == "/c"
    assert queue_path("q") == queue_path("fq://q") == os.path.join(tmp_path, "q")
    assert queue_path("~/q") == "/home/me/q"


@pytest.mark.parametrize("path", ["", "fq://", "a\0b", "/a\ud800", None, 7, b"/a"])
def test_what_is_no_path_is_an_invalid_argument(path: object) -> None:
    with pytest.raises(InvalidArgument, match="not a queue's path"):
        queue_path(path)
