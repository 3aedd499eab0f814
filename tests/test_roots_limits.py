"""Root sets limits of a queue or a group of another user: the owner can use them, or nothing was changed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group, Queue, StorageError
from fsqueue.protocol import limiting
from tests.support import needs_root, open_to_all
from tests.test_group import GROUP, MEMBER, OWNER, as_user

pytestmark = needs_root


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of a user who is not root."""
    monkeypatch.setattr(limiting, "SETTLE_S", 0.0)
    place = tmp_path / "home"
    place.mkdir()
    os.chown(place, OWNER, OWNER)
    open_to_all(tmp_path)
    return place


def made(place: Path, kind: str, tasks: int) -> None:
    as_user(OWNER, 0o022, lambda: made_here(place, kind, tasks))


def made_here(place: Path, kind: str, tasks: int) -> None:
    if kind == "queue":
        Queue.create(place / "q", shards=2).close()
    else:
        Group.create(place / "g", shards=2)
    insert(place, kind, tasks)


def opened(place: Path, kind: str) -> Queue:
    return Queue(place / "q") if kind == "queue" else Queue(place / "g" / "a")


def insert(place: Path, kind: str, tasks: int) -> None:
    if tasks:
        queue: Any = Queue(place / "q") if kind == "queue" else Group(place / "g")["a"]
        queue.insert_many(range(tasks))


def limit(place: Path, kind: str, **limits: Any) -> None:
    if kind == "queue":
        Queue(place / "q").change_settings(**limits)
    else:
        Group(place / "g").set_limits(**limits)


def leased(place: Path, kind: str) -> int:
    return len(opened(place, kind).lease(9))


def of_root(place: Path) -> list[str]:
    return [str(path.relative_to(place)) for path in place.rglob("*") if path.stat().st_uid == 0]


@pytest.mark.parametrize("kind", ["queue", "group"])
@pytest.mark.parametrize("tasks", [0, 5])
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_owner_can_use_what_root_makes(place: Path, kind: str, tasks: int, umask: int) -> None:
    made(place, kind, tasks)
    as_user(0, umask, lambda: limit(place, kind, max_leased=2))
    assert of_root(place) == []
    as_user(OWNER, 0o022, lambda: insert(place, kind, 5))
    assert as_user(OWNER, 0o022, lambda: leased(place, kind)) == 2
    as_user(OWNER, 0o022, lambda: limit(place, kind, max_leased=4, limit={"host": 1}))
    assert as_user(OWNER, 0o022, lambda: leased(place, kind)) == 2


@pytest.mark.parametrize("kind", ["queue", "group"])
def test_members_of_a_group_can_use_what_root_makes(place: Path, kind: str) -> None:
    os.chown(place, OWNER, GROUP)
    place.chmod(0o2775)
    as_user(OWNER, 0o002, lambda: made_here(place, kind, 5))
    as_user(0, 0o077, lambda: limit(place, kind, max_leased=2))
    assert of_root(place) == []
    assert as_user(MEMBER, 0o077, lambda: leased(place, kind)) == 2
    assert {path.stat().st_gid for path in place.rglob("*")} == {GROUP}


@pytest.mark.parametrize("kind", ["queue", "group"])
def test_a_worker_of_root_that_makes_the_file_of_slots_anew_gives_it_to_the_owner(place: Path, kind: str) -> None:
    made(place, kind, 5)
    as_user(OWNER, 0o022, lambda: limit(place, kind, max_leased=2))
    [path] = place.rglob("*.slots")
    path.unlink()
    assert leased(place, kind) == 2
    assert path.stat().st_uid == OWNER


@pytest.mark.parametrize("kind", ["queue", "group"])
def test_nothing_is_changed_if_root_may_not_give_it(place: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an NFS mount whose server takes root for nobody, or in a container without the right."""
    made(place, kind, 5)
    before = {path: path.read_bytes() if path.is_file() else b"" for path in place.rglob("*")}

    def forbidden(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchown", forbidden)
    with pytest.raises(StorageError, match="Run the command as that user"):
        limit(place, kind, max_leased=2)
    assert {path: path.read_bytes() if path.is_file() else b"" for path in place.rglob("*")} == before
    assert as_user(OWNER, 0o022, lambda: leased(place, kind)) == 5


@pytest.mark.parametrize("what", ["directory with files", "file"])
def test_what_root_has_put_there_before_is_not_given_away(place: Path, what: str) -> None:
    """A neighbour may have moved it there."""
    made(place, "group", 5)
    secret = place / "g" / ".limits"
    secret.mkdir()
    if what == "directory with files":
        (secret / "key").write_text("secret")
    limit(place, "group", max_leased=2)
    assert secret.stat().st_uid == (0 if what == "directory with files" else OWNER)
    [path] = place.rglob("*.slots")
    if what == "file":
        path.unlink()
        path.write_text("")
        path.chmod(0o600)
        assert leased(place, "group") == 2
        assert path.stat().st_uid == 0


def test_a_link_in_place_of_the_directory_or_file_gives_nothing_away(place: Path, tmp_path: Path) -> None:
    made(place, "group", 5)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (place / "g" / ".limits").symlink_to(elsewhere)
    with pytest.raises(StorageError):
        limit(place, "group", max_leased=2)
    (place / "g" / ".limits").unlink()
    limit(place, "group", max_leased=2)
    [path] = place.rglob("*.slots")
    path.unlink()
    target = tmp_path / "target"
    path.symlink_to(target)
    with pytest.raises(StorageError):
        leased(place, "group")
    assert not target.exists()
    assert elsewhere.stat().st_uid == 0
    assert [*elsewhere.iterdir()] == []
