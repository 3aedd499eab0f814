"""Root sets limits of a queue or a group of another user: the owner can use them, or nothing was changed."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group, Queue, StorageError
from fsqueue.filesystem import resources
from fsqueue.protocol import limiting
from fsqueue.storage import group_directory
from tests.support import Crash, CrashingFilesystem, needs_root, open_to_all
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


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_directory_of_roots_is_given_only_if_it_is_empty(place: Path, is_empty: bool) -> None:
    """A neighbour may have moved it there."""
    made(place, "group", 5)
    secret = place / "g" / ".limits"
    secret.mkdir()
    if not is_empty:
        (secret / "key").write_text("secret")
    limit(place, "group", max_leased=2)
    assert secret.stat().st_uid == (OWNER if is_empty else 0)


@pytest.mark.parametrize("kind", ["queue", "group"])
@pytest.mark.parametrize("what", ["empty", "not empty", "a second name", "of a third user"])
def test_a_file_is_given_only_if_root_can_have_left_it(place: Path, tmp_path: Path, kind: str, what: str) -> None:
    """A neighbour may have moved another file there, or made a second name of one."""
    made(place, kind, 5)
    limit(place, kind, max_leased=2)
    [path] = place.rglob("*.slots")
    path.unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("secret" if what == "not empty" else "")
    elsewhere.chmod(0o600)
    if what == "a second name":
        os.link(elsewhere, path)
    else:
        elsewhere.rename(path)
    if what == "of a third user":
        os.chown(path, MEMBER, MEMBER)
    with suppress(StorageError):
        leased(place, kind)
    assert path.stat().st_uid == {"empty": OWNER, "of a third user": MEMBER}.get(what, 0)
    if what == "empty":
        assert as_user(OWNER, 0o022, lambda: leased(place, kind)) == 0
    else:
        assert path.stat().st_mode & 0o777 == 0o600


class Mortal(CrashingFilesystem):
    """Root's process, which also dies before it gives a file or a directory away, or right behind that."""

    def __init__(self, root: str, at: int) -> None:
        super().__init__(root, at=at)

    def give(self, fd: int, user: int, group: int) -> None:
        self.change("give")
        CHOWN(fd, user, group)
        self.change("given")


CHOWN = os.fchown


@pytest.mark.parametrize("kind", ["queue", "group"])
@pytest.mark.parametrize("is_shared", [False, True])
def test_what_root_leaves_when_it_dies_is_given_the_next_time(
    place: Path, monkeypatch: pytest.MonkeyPatch, kind: str, is_shared: bool
) -> None:
    """At each step. Root repeats the command, and the owner can use the limits; so can members of a shared place."""
    os.chown(place, OWNER, GROUP)
    place.chmod(0o2775 if is_shared else 0o755)
    path = place / kind[0]
    places = set[str]()
    for at in itertools.count(1):
        as_user(OWNER, 0o002, lambda: made_here(place, kind, 5))
        died, log = dies(monkeypatch, place, kind, at)
        with resources.Scope():
            limit(place, kind, max_leased=2)
        assert of_root(place) == [], f"after a death at step {at}: {log[-1]}"
        assert as_user(MEMBER if is_shared else OWNER, 0o077, lambda: leased(place, kind)) == 2
        if not died:
            break
        places.add(log[-1].split(" ")[0] + (" slots" if log[-1].endswith(".slots") else ""))
        shutil.rmtree(path)
    assert places >= {"mkdir", "create slots", "give", "given"}
    assert log.count("give") == 2


def dies(monkeypatch: pytest.MonkeyPatch, place: Path, kind: str, at: int) -> tuple[bool, list[str]]:
    """Set a limit as root, and die at one step. Return whether that step was reached, and the steps."""
    fs = Mortal(str(place / kind[0]), at)
    with monkeypatch.context() as patch, suppress(Crash), resources.Scope():
        patch.setattr(os, "fchown", fs.give)
        if kind == "group":
            patch.setattr(group_directory, "Filesystem", lambda root, **_: fs)
            Group(place / "g").set_limits(max_leased=2)
        else:
            Queue(place / "q", filesystem=fs).change_settings(max_leased=2)
    fs.bury()
    return fs.dead, fs.log


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
