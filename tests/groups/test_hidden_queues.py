"""What stands in the place of a queue of a group, or of its own file, may hide tasks: no verb passes over it.

A disk that fills up is the usual cause: a queue was moved to another one, and a link left in its place.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import Group, Queue, QueueFileLost, Worker
from fsqueue.errors import FsqueueError
from fsqueue.fsck.findings import KINDS
from fsqueue.worker import settling
from tests.cli.conftest import Run
from tests.cli.conftest import fsqueue_cli as fsqueue_cli  # a fixture
from tests.client.conftest import serve as serve  # a fixture
from tests.gateways import Serve
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once

PLACES = {"queue": "b", "queue's file": "b/queue.jsonl"}
"""What may be replaced, in the group."""


def link(path: Path, aside: Path) -> None:
    path.symlink_to(aside)


def dangling_link(path: Path, aside: Path) -> None:
    path.symlink_to("nowhere")


def other(path: Path, aside: Path) -> None:
    """Put a file in the place of a directory, and a directory in that of a file."""
    path.touch() if aside.is_dir() else path.mkdir()


def pipe(path: Path, aside: Path) -> None:
    os.mkfifo(path)


def listening(path: Path, aside: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = os.getcwd()
        os.chdir(path.parent)
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


STRAYS = [link, dangling_link, other, pipe, listening]


def device(path: Path, aside: Path) -> None:
    os.mknod(path, 0o20600, os.makedev(1, 3))


if os.geteuid() == 0:
    STRAYS.append(device)


def nothing(payload: Any) -> None:
    """Do nothing."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers give up at once."""
    monkeypatch.setattr(settling, "HOPELESS_S", 0.0)


@pytest.fixture
def group(tmp_path: Path) -> Group:
    """A group of the queues a and b, each with a task to do, and an empty one."""
    group = Group.create(tmp_path / "g", shards=1, durability="none")
    for name in ("a", "b", "c"):
        group[name].insert(name)
    group["c"].lease()[0].complete()
    return group


def hide(group: Group, kind: Callable[[Path, Path], None], place: str) -> Path:
    """Put something else in a place. Return the place."""
    group.close()
    at, aside = group.path / PLACES[place], group.path.parent / "aside"
    at.rename(aside)
    kind(at, aside)
    return at


def said(at: Path) -> str:
    return re.escape(str(at)) + " is a .*, where a .* belongs.*fsqueue fsck"


def update(group: Group) -> None:
    with group.update() as change:
        change.insert(group["a"], 1)
        change.insert(group["b"], 1)


VERBS: dict[str, Callable[[Group], object]] = {
    "is_drained": lambda group: group.matching("b|c").is_drained(),
    "wait": lambda group: group.matching("b|c").wait(timeout_s=PATIENCE_S),
    "wait for a time": lambda group: group.wait(timeout_s=0.01),
    "wait by a pattern": lambda group: group.matching("b").wait(timeout_s=PATIENCE_S),
    "wait by name": lambda group: group["b"].wait(timeout_s=PATIENCE_S),
    "wait for several": lambda group: fsqueue.wait([group["b"], group["c"]], timeout_s=PATIENCE_S),
    "is_drained by a pattern": lambda group: group.matching("b.*").is_drained(),
    "is_drained by name": lambda group: group["b"].is_drained(),
    "exists": lambda group: group["b"].exists(),
    "status by name": lambda group: group["b"].status(),
    "tasks": lambda group: list(group["b"].tasks()),
    "dead": lambda group: list(group["b"].dead()),
    "lease": lambda group: group["b"].lease(),
    "poll": lambda group: list(group["b"].poll()),
    "poll by a pattern": lambda group: list(group.matching("b").poll()),
    "insert": lambda group: group["b"].insert(1),
    "insert_many": lambda group: group["b"].insert_many([1]),
    "pause": lambda group: group["b"].pause(),
    "delete": lambda group: group.delete("b"),
    "usage": lambda group: group.usage(),
    "update": update,
    "worker": lambda group: Worker(group["b"], handler=nothing, threads=1, until="drained").run(),
    "worker by a pattern": lambda group: Worker(group.matching("b"), handler=nothing, threads=1).run(),
    "worker of a group": lambda group: Worker(group, handler=nothing, threads=1).run(),
    "worker of a later stage": lambda group: Worker(group["c"], handler=nothing, threads=1, upstream=group["b"]).run(),
}


LISTING = {verb for verb in VERBS if re.search("pattern|of a group|usage|for a time", verb)} | {"is_drained", "wait"}
"""Verbs that list the group. A file there is no queue to them: no task is behind it."""


def is_passed_over(place: str, kind: Any, lists: bool) -> bool:
    return lists and (place, kind) == ("queue", other)


@pytest.mark.parametrize(
    ("verb", "place", "kind"),
    [
        (verb, place, kind)
        for verb in VERBS
        for place in PLACES
        for kind in STRAYS
        if not is_passed_over(place, kind, verb in LISTING)
    ],
)
def test_each_verb_names_what_has_the_place_of_a_queue(group: Group, place: str, kind: Any, verb: str) -> None:
    at = hide(group, kind, place)
    with pytest.raises(QueueFileLost, match=said(at)) as caught:
        VERBS[verb](Group(group.path))
    assert caught.value.exit_code == 5
    if verb in ("insert", "insert_many"):
        assert str(caught.value).endswith(" Nothing was inserted; the call may be repeated.")
        assert (caught.value.inserted, caught.value.new, caught.value.is_exact) == (0, 0, True)
    assert "Move it elsewhere" not in str(caught.value), "with its tasks"


COMMANDS = [
    "wait {g} --match b --timeout 60", "wait {g} --timeout 60 --match b|c", "wait {b} --timeout 60",
    "run {b} -- true", "run {g} --match b -- true", "run {g} -- true", "run {c} --upstream b -- true",
    "status {g} --match b", "status {g}", "status {b}", "status {g} --fast", "ls {g}", "gc {g}", "gc {b}",
    "insert {b} --task 1", "pause {b}", "dead list {b}", "delete {b} --yes",
]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "place", "kind"),
    [
        (command, place, kind)
        for command in COMMANDS
        for place in PLACES
        for kind in (link, other)
        if not is_passed_over(place, kind, "{g}" in command)
    ],
)
def test_each_command_names_it_and_ends_with_5(
    fsqueue_cli: Run, group: Group, place: str, kind: Any, command: str
) -> None:
    at = hide(group, kind, place)
    words = [word.format(g=group.path, b=group.path / "b", c=group.path / "c") for word in command.split()]
    done = fsqueue_cli(*words, code=None)
    assert re.search(said(at), done.output), done.output
    assert "counts as drained" not in done.output
    assert done.exit_code == 5, done.output


@pytest.mark.parametrize(
    ("given", "place", "kind"),
    [
        (given, place, kind)
        for given in ("g", "g/b")
        for place in PLACES
        for kind in STRAYS
        if not is_passed_over(place, kind, given == "g")
    ],
)
def test_fsck_finds_it_and_leaves_it(fsqueue_cli: Run, group: Group, place: str, kind: Any, given: str) -> None:
    at = hide(group, kind, place)
    before = os.lstat(at)
    for options in ([], ["--repair"], ["--repair"]):
        done = fsqueue_cli("fsck", group.path.parent / given, *options, code=10)
        assert done.stdout.count("hidden-file") == 1
        assert f"hidden-file       {PLACES[place]}: a" in done.stdout
    assert os.lstat(at) == before
    assert sorted(os.listdir(group.path)) == [".bells", ".group.jsonl", "a", "b", "c"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", [link, dangling_link])
def test_what_fsck_says_brings_the_tasks_back(group: Group, place: str, kind: Any) -> None:
    at = hide(group, kind, place)
    if kind is dangling_link:
        at.unlink()
        at.symlink_to(group.path.parent / "aside")
    how = 'target=$(readlink -f LINK) && rm LINK && cp -a "$target" LINK'
    assert how in KINDS["hidden-file"].repair
    subprocess.run(["sh", "-c", how.replace("LINK", f"'{at}'")], check=True)
    again = Group(group.path)
    assert list(again.fsck()) == []
    assert [task.payload for task in again["b"].lease()] == ["b"]


@pytest.mark.parametrize("place", PLACES)
def test_the_status_of_a_group_counts_the_others(group: Group, place: str) -> None:
    hide(group, link, place)
    found = Group(group.path).status()
    assert (found.lost, sorted(found.queues)) == (("b",), ["a", "c"])
    assert Group(group.path).matching("a|c").status().status.waiting == 1


@pytest.mark.parametrize("place", PLACES)
def test_the_other_queues_go_on(group: Group, place: str) -> None:
    hide(group, link, place)
    again = Group(group.path)
    done: list[Any] = []
    with pytest.raises(QueueFileLost):
        Worker(again, handler=done.append, threads=1).run()
    assert done == ["a"]
    assert again["a"].is_drained()
    assert again.matching("a|c").is_drained()
    assert again.matching("a|c").wait(timeout_s=PATIENCE_S).completed == 2


@pytest.mark.parametrize(("place", "kind"), [("queue", link), ("queue's file", link), ("queue's file", other)])
def test_a_gateway_says_the_same(group: Group, place: str, kind: Any, serve: Serve) -> None:
    at = hide(group, kind, place)
    remote = fsqueue.connect(serve(group.path))
    assert isinstance(remote, fsqueue.RemoteGroup)
    with pytest.raises(QueueFileLost, match="in b cannot be counted"):
        remote.status()
    one = remote["b"]
    for verb in (one.status, one.is_drained, lambda: one.wait(timeout_s=0.01), one.lease, lambda: one.insert(1)):
        with pytest.raises(QueueFileLost, match=re.escape(str(at)) + " is a"):
            verb()


@pytest.mark.parametrize("kind", [link, pipe])
@pytest.mark.parametrize("given", ["group", "pattern", "queue"])
@pytest.mark.parametrize("verb", ["wait", "worker"])
def test_one_that_runs_already_ends_too(group: Group, kind: Any, given: str, verb: str) -> None:
    for name in ("a", "b"):
        group[name].lease(lease_s=1000)
    running = Group(group.path)
    source: Any = {"group": running, "pattern": running.matching("b.*"), "queue": running["b"]}[given]
    errors: list[FsqueueError] = []

    def run() -> None:
        try:
            source.wait() if verb == "wait" else Worker(source, handler=nothing, threads=1).run()
        except FsqueueError as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    until(lambda: bool(running._open_queues.living()), "a queue that is open")
    assert thread.is_alive(), errors
    at = hide(group, kind, "queue")
    if given == "group":
        group["a"].release_all()
        for task in group["a"].lease():  # unless the worker was faster
            task.complete()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    [error] = errors
    assert isinstance(error, QueueFileLost), error
    assert str(at) in str(error)


def test_a_file_beside_the_queues_is_in_nobodys_way(fsqueue_cli: Run, group: Group) -> None:
    for name in ("slurm-12.out", "README"):
        (group.path / name).write_text("of a job\n")
    again, done = Group(group.path), list[Any]()
    assert [queue.name for queue in again.queues(tasks_min=0)] == ["a", "b", "c"]
    assert again.status().lost == ()
    assert Worker(again, handler=done.append, threads=1).run().ended == "drained"
    assert sorted(done) == ["a", "b"]
    assert again.wait(timeout_s=PATIENCE_S).completed == 3
    assert again.is_drained()
    for command in ("wait {} --timeout 60", "status {}", "ls {}", "gc {}", "fsck {}", "run {} -- true"):
        assert "README" not in fsqueue_cli(*command.format(group.path).split()).output
    with pytest.raises(QueueFileLost, match="README is a file, where a directory of the queue belongs"):
        again["README"].insert(1)


def test_what_can_be_no_queue_is_passed_over(group: Group) -> None:
    for name in (".notes", "read me", "%41", "a%2fb"):
        (group.path / name).symlink_to(group.path.parent)
    (group.path / "read me too").touch()
    again = Group(group.path)
    assert list(again.fsck()) == []
    assert not again.is_drained()
    for name in ("a", "b"):
        again[name].lease()[0].complete()
    assert again.is_drained()
    assert again.wait(timeout_s=PATIENCE_S).completed == 3
    assert again.status().lost == ()


def test_a_queue_elsewhere_is_as_it_was(group: Group) -> None:
    """What is behind a link is neither read nor written to."""
    hide(group, link, "queue")
    for verb in VERBS.values():
        with pytest.raises(QueueFileLost):
            verb(Group(group.path))
    (group.path / "b").unlink()
    (group.path.parent / "aside").rename(group.path / "b")
    assert Queue(group.path / "b").status().waiting == 1
