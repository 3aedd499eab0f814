"""Queues in queues: refused when one is created, spared where one is already."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fsqueue import InvalidArgument, Queue
from fsqueue.filesystem import Filesystem
from fsqueue.filesystem.parent_directories import FileAbove
from fsqueue.format import names
from fsqueue.format.layout import FORMAT
from fsqueue.storage import commits, nested
from fsqueue.upkeep import trash
from tests.concurrency.processes import Child
from tests.support import age_staging, base_of, files_below, needs_root, open_to_all

pytestmark = pytest.mark.once  # of directories, whatever the queues hold


@pytest.fixture
def outer(tmp_path: Path) -> Queue:
    queue = Queue.create(tmp_path / "outer", shards=2)
    queue.insert_many(range(4), batch_tasks=2)
    queue.complete(queue.lease(2))
    return queue


def put(outer: Queue, place: str) -> Path:
    """Put a queue with a task into another one's directory, as older versions allowed."""
    elsewhere = outer.path.parent / "elsewhere"
    queue = Queue.create(elsewhere)
    queue.insert("precious")
    queue.close()
    target = outer.path / place
    target.parent.mkdir(parents=True, exist_ok=True)
    return elsewhere.rename(target)


def check(inner: Path) -> None:
    """It is where it was, sound, and has its task."""
    queue = Queue(inner)
    assert [task.payload for task in queue.peek(9)] == ["precious"]
    assert list(queue.fsck()) == []
    queue.close()


# -- create ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("below", ["inner", "a/b/c", ".trash/inner", "GENERATION/inner", "GENERATION/queue/00/inner"])
def test_a_queue_is_not_created_inside_another(outer: Queue, below: str) -> None:
    path = outer.path / below.replace("GENERATION", base_of(outer).name)
    before = files_below(outer.path)
    for exist_ok in (False, True):
        with pytest.raises(InvalidArgument, match=f"inside the directory of the queue {outer.path}.*Nothing was cre"):
            Queue.create(path, exist_ok=exist_ok)
    assert files_below(outer.path) == before
    assert not path.exists()
    assert not (outer.path / "a").exists(), "no parents either"


def test_links_to_the_inside_are_resolved(outer: Queue, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(outer.path)
    (outer.path / "work").mkdir()
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "direct").symlink_to(outer.path / "work")
    for path in (tmp_path / "link" / "inner", tmp_path / "far" / "direct", tmp_path / "far" / "direct" / "x" / "y"):
        with pytest.raises(InvalidArgument, match="inside the directory of the queue"):
            Queue.create(path)
    assert files_below(outer.path / "work") == []
    (outer.path / "out").symlink_to(tmp_path / "far")
    Queue.create(outer.path / "out" / "fine").delete(foreground=True)  # what it leads to lies outside


def test_a_queue_that_is_inside_already_is_opened_as_it_is(outer: Queue) -> None:
    inner = put(outer, "inner")
    assert [task.payload for task in Queue.create(inner, exist_ok=True).peek()] == ["precious"]


def test_a_file_of_tasks_called_queue_jsonl_makes_no_queue(tmp_path: Path) -> None:
    (tmp_path / "queue.jsonl").write_text('{"payload":1}\n{"op":"create"}\n')
    Queue.create(tmp_path / "q")
    (tmp_path / "queue.jsonl").unlink()
    (tmp_path / "queue.jsonl").mkdir()
    Queue.create(tmp_path / "r")


@needs_root
def test_a_stranger_cannot_keep_others_from_creating_queues_below_tmp(outer: Queue, tmp_path: Path) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    place.chmod(0o1777)
    shutil.copy(outer.path / "queue.jsonl", place / "queue.jsonl")
    os.chown(place / "queue.jsonl", 54321, 54321)
    Queue.create(place / "mine").insert(1)
    os.chown(place / "queue.jsonl", 0, 0)
    with pytest.raises(InvalidArgument, match="inside the directory of the queue"):
        Queue.create(place / "other")
    open_to_all(tmp_path)

    def create() -> str:
        os.setgroups([])
        os.setgid(54322)
        os.setuid(54322)
        try:
            Queue.create(place / "theirs")
        except InvalidArgument as error:
            return str(error)
        return ""

    child = Child(create)
    try:
        assert "inside the directory" in child.result(), "its directory's owner has put it there"
    finally:
        child.close()


# -- what is there already ---------------------------------------------------------------------------------------------

PLACES = {
    "at the top": "inner",
    "deep below the top": "work/of/mine/inner",
    "in the quarantine, where fsck once moved it": ".quarantine/20261122T000000Z-01234567/inner",
    "in the trash": ".trash/mine/inner",
    "in a purged tree": ".trash/{trashed}/queue/inner",
    "beside the trash": ".trash-{trashed}/inner",
    "in the generation": "{generation}/inner",
    "in a shard": "{generation}/queue/00/inner",
    "in place of a shard": "{generation}/movements/01",
    "in place of a part": "{generation}/commits",
    "in an earlier generation": "0-{id}/inner",
    "in a generation that never began": "9-{id}/queue/inner",
    "in an attempt": "{generation}/staging/{attempt}/inner",
}


def place_of(outer: Queue, place: str) -> str:
    generation = names.generation(1, outer.store.queue_state.id)
    return PLACES[place].format(
        generation=generation,
        id=outer.store.queue_state.id,
        trashed=names.trashed(generation, "6" * 16),
        attempt=names.attempt("0193f0c2a4b97c31a2d5e8f001234567", "seed"),
    )


VERBS: dict[str, Callable[[Queue], object]] = {
    "fsck": lambda queue: list(queue.fsck(repair=True)),
    "gc": lambda queue: queue.gc(history_days=0),
    "purge": lambda queue: (queue.purge(), queue.gc()),
}


@pytest.mark.parametrize("place", PLACES)
def test_what_is_there_already_is_spared(outer: Queue, place: str) -> None:
    where = place_of(outer, place)
    taken = outer.path / where
    if taken.exists():
        shutil.rmtree(taken)
    inner = put(outer, where)
    age_staging(outer, 30 * 86_400)
    with pytest.raises(InvalidArgument, match=f"(?s)queue {outer.path}: {inner}\\. .*Nothing was changed"):
        outer.delete()
    check(inner)
    assert Queue(outer.path).status().inserted >= 2, "it was not deleted"
    for verb, act in VERBS.items():
        act(Queue(outer.path))
        assert inner.is_dir(), verb
        check(inner)
    shutil.rmtree(inner, ignore_errors=True)  # what a purge left may be removed in the background at the same time
    Queue(outer.path).delete(foreground=True)
    assert not outer.path.exists()


@pytest.mark.parametrize("place", [place for place in PLACES if "attempt" not in place])
def test_fsck_names_it(outer: Queue, place: str) -> None:
    where = place_of(outer, place)
    if (outer.path / where).exists():
        shutil.rmtree(outer.path / where)
    inner = put(outer, where)
    found = [finding for finding in outer.fsck(repair=True) if finding.kind == "queue-inside"]
    assert [(finding.path, finding.repaired) for finding in found] == [(str(inner.relative_to(outer.path)), False)]
    assert "mv" in found[0].repair


def test_a_deleted_queue_with_another_in_it_is_not_emptied(outer: Queue, tmp_path: Path) -> None:
    """An older version has deleted the outer one."""
    inner = put(outer, "work/inner")
    name = names.deleted(outer.store.queue_state.id, "6" * 16)
    with (outer.path / "queue.jsonl").open("ab") as file:
        file.write(b'{"op":"closed","at":1}\n')
    moved = outer.path.rename(tmp_path / name)
    [(path, why)] = trash.reap(tmp_path).left.items()
    assert path == str(moved)
    assert f"the queue {moved / 'work' / 'inner'} stands in it" in why
    check(moved / inner.relative_to(outer.path))


def test_a_damaged_queue_is_spared_too_and_a_deleted_one_is_none(outer: Queue) -> None:
    inner = put(outer, "inner")
    sound = (inner / "queue.jsonl").read_bytes()
    fs = Filesystem(str(outer.path))
    others = [sound.replace(b'"format":%d' % FORMAT, b'"format":%d' % other) for other in (FORMAT - 1, FORMAT + 1)]
    assert sound not in others
    for damaged in (b"", b"garbage", sound.replace(b'"shards"', b'"x"'), *others):
        (inner / "queue.jsonl").write_bytes(damaged)
        assert nested.inside(fs, str(outer.path), of_itself=False) == str(inner)
    (inner / "queue.jsonl").write_bytes(sound + b'{"op":"closed","at":1}\n')
    assert nested.inside(fs, str(outer.path), of_itself=False) is None
    assert [finding.kind for finding in outer.fsck(repair=True)] == ["stray"]


def test_directories_without_others_are_not_listed_where_links_tell(
    outer: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    if outer.path.stat().st_nlink < 3:
        pytest.skip("this filesystem does not count directories among links")
    listed: list[str] = []
    entries = Filesystem.entries
    monkeypatch.setattr(Filesystem, "entries", lambda self, path: listed.append(path) or entries(self, path))
    assert nested.inside(Filesystem(str(outer.path)), str(outer.path), of_itself=False) is None
    assert not [path for path in listed if "/queue/" in path or "/movements/" in path]
    inner = put(outer, f"{base_of(outer).name}/queue/00/inner")
    assert nested.inside(Filesystem(str(outer.path)), str(outer.path), of_itself=False) == str(inner)


def test_an_attempt_is_removed_as_before(outer: Queue) -> None:
    commit = outer.commit("seed")
    commit.stage([1, 2])
    [attempt] = (base_of(outer) / "staging").iterdir()
    assert commits.drop(outer.store, str(attempt))
    assert not attempt.exists()


@pytest.mark.parametrize(
    ("mode", "owner", "content", "is_held"),
    [
        (0o755, 4711, None, True),
        (0o1777, 4711, None, False),
        (0o1777, os.geteuid(), None, True),
        (0o755, os.geteuid(), b'{"x":1}\n', False),
        (0o755, os.geteuid(), b"", False),
    ],
)
def test_what_holds_an_open_directory_is_a_queue_by_its_content_and_its_owner(
    outer: Queue, monkeypatch: pytest.MonkeyPatch, mode: int, owner: int, content: bytes | None, is_held: bool
) -> None:
    """A stranger's file in a directory like /tmp is none; what this user may not read may be one."""
    found = nested.files_above

    def seen(directory: int, name: str, bytes_max: int) -> Iterator[FileAbove]:
        for each in found(directory, name, bytes_max):
            holder, status = list(each.holder), list(each.status)
            holder[stat.ST_MODE] = stat.S_IFDIR | mode
            status[stat.ST_UID] = owner
            yield FileAbove(os.stat_result(holder), os.stat_result(status), content)

    fd = os.open(base_of(outer), os.O_PATH | os.O_DIRECTORY)
    try:
        assert nested.holds(fd)
        monkeypatch.setattr(nested, "files_above", seen)
        assert nested.holds(fd) == is_held
    finally:
        os.close(fd)
