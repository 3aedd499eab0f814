"""What the command line says of a queue that may be a copy: a warning, which --accept-copy ends."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group, Queue
from tests import copied
from tests.cli.conftest import Run, Spawn
from tests.copied import WAYS, Copy

pytestmark = pytest.mark.once

SEEN = "its directory is not the one that its queue.jsonl names"
FOLLOWS = "are executed again, and workers may be at work on the original. Check that."


def accept(path: object) -> str:
    return f"fsqueue fsck {shlex.quote(str(path))} --accept-copy"


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def is_a_warning(line: str, path: object, to_type: object | None = None) -> None:
    """It says what was seen, what may follow, and what to type."""
    assert str(path) in line
    assert SEEN in line
    assert FOLLOWS in line
    assert line.endswith(accept(to_type or path))


@pytest.fixture(params=[*WAYS, Path], ids=lambda way: way.__name__)
def way(request: pytest.FixtureRequest) -> Copy:
    """Each way to make a copy; and the original, which has no warning."""
    found: Copy = request.param
    return found


def test_status_warns(tmp_path: Path, way: Copy, fsqueue_cli: Run) -> None:
    original = Queue.create(tmp_path / "q").path
    Queue(original).insert(1)
    path = way(original)
    for options in ([], ["--fast"]):
        said = [line for line in fsqueue_cli("status", path, *options).output.splitlines() if "copy" in line]
        assert len(said) == (way is not Path)
        for line in said:
            assert line.startswith("warning     ")
            is_a_warning(line, path)
        [found] = json_lines(fsqueue_cli("status", path, "--json", *options).stdout)
        assert found["copy"] is (way is not Path)


def test_fsck_warns_and_that_is_no_finding(tmp_path: Path, way: Copy, fsqueue_cli: Run) -> None:
    path = way(Queue.create(tmp_path / "q").path)
    said = fsqueue_cli("fsck", path).stdout.splitlines()
    found = json_lines(fsqueue_cli("fsck", path, "--json").stdout)
    if way is Path:
        assert said == ["nothing was found: all is as it should be"]
        assert found == []
        return
    assert said[1:] == ["nothing else was found"]
    assert said[0].startswith("warning: ")
    is_a_warning(said[0], path)
    [warning] = found
    assert set(warning) == {"warning", "queue", "note"}
    assert (warning["warning"], warning["queue"]) == ("copy", str(path))
    is_a_warning(warning["note"], path)
    assert Queue(path).is_copy(), "fsck has accepted it without being told to"
    fsqueue_cli("fsck", path, "--repair")
    assert Queue(path).is_copy(), "--repair has accepted it"


def test_the_warning_stands_before_the_findings_and_they_decide_the_exit_code(tmp_path: Path, fsqueue_cli: Run) -> None:
    path = copied.restored(Queue.create(tmp_path / "q").path)
    (path / "stray").touch()
    said = fsqueue_cli("fsck", path, code=10).stdout.splitlines()
    assert said[0].startswith("warning: ")
    assert said[1].startswith("stray ")
    found = json_lines(fsqueue_cli("fsck", path, "--json", code=10).stdout)
    assert [one.get("kind") for one in found] == [None, "stray"]
    assert [one["path"] for one in found if one.get("repaired") is False] == ["stray"]


def test_accept_copy_ends_the_warning_of_each_reader(tmp_path: Path, fsqueue_cli: Run) -> None:
    path = copied.restored(Queue.create(tmp_path / "q").path)
    said = fsqueue_cli("fsck", path, "--accept-copy").stdout.splitlines()
    assert said == [
        f"accepted: the directory of {path} counts as the queue's own from now on",
        "nothing was found: all is as it should be",
    ]
    assert fsqueue_cli("fsck", path, "--accept-copy").stdout.splitlines() == said[1:]
    assert fsqueue_cli("fsck", path).stdout.splitlines() == said[1:]
    assert "copy" not in fsqueue_cli("status", path).output
    assert json_lines(fsqueue_cli("status", path, "--json").stdout)[0]["copy"] is False
    assert "copy" not in fsqueue_cli("run", path, "--", "true").output
    again = copied.restored(path)
    assert json_lines(fsqueue_cli("fsck", again, "--accept-copy", "--json").stdout) == [{"accepted": str(again)}]


@pytest.mark.parametrize("name", ["plain", "it's here"])
def test_what_the_warning_says_to_type_ends_it(tmp_path: Path, name: str, fsqueue_cli: Run) -> None:
    path = copied.restored(Queue.create(tmp_path / name).path)
    [line] = [line for line in fsqueue_cli("status", path).output.splitlines() if line.startswith("warning")]
    to_type = shlex.split(line[line.index("fsqueue fsck ") :])
    fsqueue_cli(*to_type[1:])
    assert not Queue(path).is_copy()


@pytest.mark.one_in(4)
def test_a_worker_says_it_first(tmp_path: Path, way: Copy, spawn: Spawn) -> None:
    original = Queue.create(tmp_path / "q").path
    Queue(original).insert_many(range(2))
    path = way(original)
    worker = spawn("run", path, "--", "sh", "-c", "echo done >&2", "sh")
    _, said = worker.communicate()
    assert worker.returncode == 0
    first = said.splitlines()[0]
    if way is Path:
        assert "copy" not in said
        return
    assert first.startswith("fsqueue: ")
    is_a_warning(first, path)
    assert said.count(SEEN) == 1
    assert said.count("done\n") == 2


def test_a_worker_s_log_for_programs_has_an_event(tmp_path: Path, spawn: Spawn) -> None:
    path = copied.restored(Queue.create(tmp_path / "q").path)
    _, said = spawn("run", path, "--log-json", "--", "true").communicate()
    first = json_lines(said)[0]
    assert first["event"] == "copy"
    is_a_warning(first["text"], path)


@pytest.fixture
def group(tmp_path: Path) -> Group:
    group = Group.create(tmp_path / "group", shards=1)
    for name in ("a", "b", "c d"):
        group[name].insert(1)
    return group


@pytest.mark.parametrize("copy", WAYS)
def test_status_of_a_copied_group_warns_once_with_a_count(group: Group, copy: Copy, fsqueue_cli: Run) -> None:
    path = copy(group.path)
    [line] = [line for line in fsqueue_cli("status", path).output.splitlines() if "cop" in line]
    assert "3 of 3 queues may be copies (a, b, c d)" in line
    assert FOLLOWS in line
    assert line.endswith(accept(path))
    assert [one["copy"] for one in json_lines(fsqueue_cli("status", path, "--json").stdout)] == [True] * 3
    [line] = [line for line in fsqueue_cli("status", f"{path}/c d").output.splitlines() if "copy" in line]
    is_a_warning(line, f"{path}/c d")


@pytest.mark.parametrize("copy", WAYS)
def test_fsck_of_a_copied_group_warns_of_each_queue_and_accepts_all(group: Group, copy: Copy, fsqueue_cli: Run) -> None:
    path = copy(group.path)
    said = fsqueue_cli("fsck", path).stdout.splitlines()
    assert said[3:] == ["nothing else was found"]
    for name, line in zip(("a", "b", "c d"), sorted(said[:3]), strict=True):
        is_a_warning(line, f"{path}/{name}")
    accepted = json_lines(fsqueue_cli("fsck", path, "--accept-copy", "--json").stdout)
    assert sorted(one["accepted"] for one in accepted) == [f"{path}/{name}" for name in ("a", "b", "c d")]
    assert "cop" not in fsqueue_cli("status", path).output.replace(str(path), "")
    assert fsqueue_cli("fsck", path).stdout.splitlines() == ["nothing was found: all is as it should be"]


def test_one_restored_queue_of_a_group_is_named(group: Group, fsqueue_cli: Run, spawn: Spawn) -> None:
    copied.restored(group["b"].path)
    [line] = [line for line in fsqueue_cli("status", group.path).output.splitlines() if "cop" in line]
    assert "1 of 3 queues may be copies (b)" in line
    [line] = [line for line in fsqueue_cli("fsck", group.path).stdout.splitlines() if "cop" in line]
    is_a_warning(line, f"{group.path}/b")
    _, said = spawn("run", group.path, "--idle-timeout", "20", "--", "true").communicate()
    is_a_warning(said.splitlines()[0], f"{group.path}/b", group.path)


def test_a_worker_warns_once_for_a_copied_group(group: Group, spawn: Spawn) -> None:
    path = copied.restored(group.path)
    worker = spawn("run", path, "--", "sh", "-c", "echo done >&2", "sh")
    _, said = worker.communicate()
    assert worker.returncode == 0
    first = said.splitlines()[0]
    assert "and so may others of its group" in first
    is_a_warning(first, f"{path}/", path)
    assert said.count(SEEN) == 1
    assert said.count("done\n") == 3


def test_several_copies_in_a_directory_are_counted(tmp_path: Path, fsqueue_cli: Run) -> None:
    for name in ("a", "b"):
        copied.restored(Queue.create(tmp_path / name).path)
    Queue.create(tmp_path / "c")
    [line] = [line for line in fsqueue_cli("status", tmp_path).output.splitlines() if "cop" in line]
    assert "2 of 3 queues may be copies (a, b)" in line
    assert line.endswith(f"{accept(tmp_path / 'a')}, and so on for each of these 2")
    watched = fsqueue_cli("status", tmp_path / "a", "--watch").output
    assert "may be a copy" in watched
