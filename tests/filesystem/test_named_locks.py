"""Locks by name, in a directory that the caller named."""

from __future__ import annotations

from pathlib import Path

import filelock
import pytest

from fsqueue import LockTimeout
from fsqueue.filesystem import named_locks
from fsqueue.filesystem.named_locks import held_by_name

pytestmark = pytest.mark.once


def test_it_excludes_others_until_it_is_given_back(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with held_by_name(path):
        with pytest.raises(LockTimeout, match="Another process holds"), held_by_name(path):
            pass
        assert not is_free(path)
    assert is_free(path)
    with pytest.raises(RuntimeError), held_by_name(path):
        raise RuntimeError
    assert is_free(path)


def is_free(path: str) -> bool:
    try:
        with filelock.FileLock(path, timeout=0):
            return True
    except filelock.Timeout:
        return False


def test_where_there_are_no_locks_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(named_locks.FileLock, "acquire", refuse)
    with held_by_name(str(tmp_path / "lock")):
        pass
