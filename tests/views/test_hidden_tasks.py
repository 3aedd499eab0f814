"""What stands under a name of the queue's own and is of another kind may hide tasks: no verb calls that drained.

Deduplicators, archives and careless hands leave links, directories and files there. Names that are none of the queue's
are passed over as ever.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import Group, Queue, QueueFileLost, RemoteGroup, StorageError, Worker
from fsqueue.clock import ManualClock
from fsqueue.format import names
from fsqueue.fsck.findings import KINDS
from fsqueue.storage import commits
from fsqueue.worker import settling
from tests.cli.conftest import Run
from tests.cli.conftest import fsqueue_cli as fsqueue_cli  # a fixture
from tests.client.conftest import serve as serve  # a fixture
from tests.gateways import Serve
from tests.support import base_of, log_files

pytestmark = pytest.mark.once

PLACES: dict[str, Callable[[Queue], Path]] = {
    "log": lambda queue: log_files(queue)[0],
    "log's shard": lambda queue: log_files(queue)[0].parent,
    "logs": lambda queue: base_of(queue) / "movements",
    "shard": lambda queue: base_of(queue) / "queue" / log_files(queue)[0].parent.name,
    "task files": lambda queue: base_of(queue) / "queue",
    "generation": base_of,
}
"""Where tasks stand, and where no look would find them."""


def link(path: Path, aside: Path) -> None:
    path.rename(aside)
    path.symlink_to(aside)


def dangling_link(path: Path, aside: Path) -> None:
    path.rename(aside)
    path.symlink_to("nowhere")


def other(path: Path, aside: Path) -> None:
    """Put a directory in the place of a file, and a file in that of a directory."""
    was_directory = path.is_dir()
    path.rename(aside)
    path.touch() if was_directory else path.mkdir()


def pipe(path: Path, aside: Path) -> None:
    path.rename(aside)
    os.mkfifo(path)


KINDS_OF_STRAYS = [link, dangling_link, other, pipe]
LINKS = [link, dangling_link]

VERBS: dict[str, Callable[[Queue], object]] = {
    "is_drained": lambda queue: queue.is_drained(),
    "wait": lambda queue: queue.wait(),
    "wait for a time": lambda queue: queue.wait(timeout_s=0.01),
    "wait for several": lambda queue: fsqueue.wait([queue], timeout_s=0.01),
    "status": lambda queue: queue.status(),
    "estimate": lambda queue: queue.status(exact=False),
    "tasks": lambda queue: list(queue.tasks()),
    "lease": lambda queue: queue.lease(5),
    "poll": lambda queue: [task.id for task in queue.poll()],
    "worker": lambda queue: Worker(queue, handler=nothing, threads=1, until="drained").run(),
    "group is_drained": lambda queue: Group(queue.path.parent).is_drained(),
    "group wait": lambda queue: Group(queue.path.parent).wait(timeout_s=0.01),
    "group worker": lambda queue: Worker(Group(queue.path.parent), handler=nothing, threads=1, until="drained").run(),
}


def nothing(payload: Any) -> None:
    """Do nothing."""


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    """A queue in a group. Its only task was inserted singly, and is leased for ever: its log alone tells of it."""
    return queue_of(tmp_path)


def queue_of(tmp_path: Path) -> Queue:
    group = Group.create(tmp_path / "group", shards=1, lease_s=10_000)
    group["q"].insert("the task")
    queue = Queue(group.path / "q")
    assert [task.payload for task in queue.lease()] == ["the task"]
    assert not queue.is_drained()
    return queue


def put(queue: Queue, kind: Callable[[Path, Path], None], place: Path) -> Queue:
    """Put something else in a place, and return the queue, opened anew."""
    queue.close()
    kind(place, queue.path.parent.parent / "aside")
    return Queue(queue.path)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS_OF_STRAYS)
@pytest.mark.parametrize("verb", VERBS)
def test_what_may_hide_tasks_is_named_by_each_verb(queue: Queue, place: str, kind: Any, verb: str) -> None:
    at = PLACES[place](queue)
    queue = put(queue, kind, at)
    said = re.escape(str(at)) + r" is a .*, where a .* belongs.*fsqueue fsck"
    with pytest.raises(QueueFileLost, match=said) as caught:
        VERBS[verb](queue)
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", ["status", "status --fast", "wait --timeout 0", "ls", "run -- true"])
@pytest.mark.parametrize("given", ["queue", "group"])
def test_each_command_ends_with_the_same_exit_code(
    fsqueue_cli: Run, queue: Queue, place: str, command: str, given: str
) -> None:
    at = PLACES[place](queue)
    put(queue, link, at).close()
    verb, *options = command.split()
    path = queue.path if given == "queue" else queue.path.parent
    done = fsqueue_cli(verb, path, *options, code=None)
    assert f"{at} is a symbolic link, where a " in done.output
    assert done.exit_code == 5, done.output
    assert fsqueue_cli("fsck", path, "--repair", code=10).stdout.count("hidden-file") == 1


@pytest.mark.parametrize("place", PLACES)
def test_a_gateway_and_its_client_say_the_same(queue: Queue, place: str, serve: Serve) -> None:
    at = PLACES[place](queue)
    put(queue, link, at).close()
    group = fsqueue.connect(serve(queue.path.parent))
    assert isinstance(group, RemoteGroup)
    remote = group["q"]
    assert [each.name for each in group.queues()] == ["q"]
    with pytest.raises(QueueFileLost, match="in q cannot be counted"):
        group.status()
    for verb in (remote.status, remote.is_drained, lambda: remote.wait(timeout_s=0.01), lambda: list(remote.tasks())):
        with pytest.raises(QueueFileLost, match=r"where a .* belongs"):
            verb()


def test_a_group_names_the_queue_and_counts_the_others(queue: Queue) -> None:
    group = Group(queue.path.parent)
    group["other"].insert(1)
    put(queue, link, log_files(queue)[0])
    status = group.status()
    assert (status.lost, list(status.queues)) == (("q",), ["other"])
    assert [one.name for one in group.queues()] == ["other", "q"]


COUNTED: dict[str, str] = {
    "counters": "completions",
    "a counter": "completions/*",
    "letters": "dead",
    "a file of letters": "dead/*.jsonl",
    "commits": "commits",
    "what is staged": "staging",
}
"""What tells of tasks besides their own files."""


@pytest.mark.parametrize("place", COUNTED)
@pytest.mark.parametrize("kind", KINDS_OF_STRAYS)
def test_what_tells_of_tasks_is_not_counted_as_nothing(queue: Queue, place: str, kind: Any) -> None:
    queue.insert_many([1, 2], batch_tasks=1)
    done, dead = queue.lease(2)
    done.complete()
    dead.bury("no")
    queue.insert_many([3], commit="job")
    queue.release_all()
    for task in queue.lease(5):
        task.complete()
    assert queue.is_drained()
    assert (queue.status().completed, queue.status().dead) == (3, 1)
    at = next(base_of(queue).glob(COUNTED[place]))
    queue = put(queue, kind, at)
    for verb in (queue.status, queue.is_drained, queue.wait):
        with pytest.raises(QueueFileLost, match=re.escape(str(at)) + " is a "):
            verb()


LETTERS: dict[str, Callable[[Queue, str], object]] = {
    "dead": lambda queue, task: list(queue.dead()),
    "dead ones that meet a condition": lambda queue, task: list(queue.dead(bool)),
    "dead tasks": lambda queue, task: list(queue.tasks("dead")),
    "retry": lambda queue, task: queue.retry_dead(),
    "retry one": lambda queue, task: queue.retry_dead([task]),
    "purge": lambda queue, task: queue.purge_dead(),
    "purge by a condition": lambda queue, task: queue.purge_dead(where=bool),
}


@pytest.mark.parametrize("place", ["letters", "a file of letters"])
@pytest.mark.parametrize("kind", KINDS_OF_STRAYS)
@pytest.mark.parametrize("verb", LETTERS)
def test_letters_that_are_hidden_are_not_none(queue: Queue, place: str, kind: Any, verb: str) -> None:
    ref = queue.insert("dead")
    [task] = queue.lease()
    task.bury("no")
    [at] = base_of(queue).glob(COUNTED[place])
    queue = put(queue, kind, at)
    with pytest.raises(QueueFileLost, match=re.escape(str(at)) + " is a .*, where a .* belongs.*fsqueue fsck"):
        LETTERS[verb](queue, ref.id)
    at.rmdir() if at.is_dir() and not at.is_symlink() else at.unlink()
    (queue.path.parent.parent / "aside").rename(at)
    assert [letter.payload for letter in queue.dead()] == ["dead"]


@pytest.mark.parametrize("place", ["letters", "a file of letters"])
@pytest.mark.parametrize("command", ["list", "list --json", "list --each", "retry", "purge --yes"])
def test_a_command_about_letters_names_the_place(fsqueue_cli: Run, queue: Queue, place: str, command: str) -> None:
    queue.insert("dead")
    queue.lease()[0].bury("no")
    [at] = base_of(queue).glob(COUNTED[place])
    put(queue, link, at).close()
    verb, *options = command.split()
    done = fsqueue_cli("dead", verb, queue.path, *options, code=5)
    assert f"{at} is a symbolic link, where a " in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_listing_of_queues_names_the_hidden_one_and_lists_the_others(
    fsqueue_cli: Run, queue: Queue, options: tuple[str, ...]
) -> None:
    group = Group(queue.path.parent)
    group["a"].insert(1)
    group["z"].insert(1)
    at = log_files(queue)[0]
    put(queue, link, at)
    done = fsqueue_cli("ls", group.path, *options, code=5)
    assert done.stderr.count(f"{at} is a symbolic link") == 1
    if options:
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert [line["queue"] for line in lines if "error" in line] == [str(queue.path)]
        assert [line["name"] for line in lines if "error" not in line] == ["a", "z"]
    else:
        assert done.stdout.split()[1::2] == ["a", "z"]
    assert fsqueue_cli("ls", group.path, "--min", 0).stdout.split() == ["a", "q", "z"]


def test_names_that_are_none_of_the_queues_are_passed_over(queue: Queue, tmp_path: Path) -> None:
    queue.insert(2)
    [task] = queue.lease()
    task.complete()
    base = base_of(queue)
    for where in ("", "queue", "movements", "completions", "dead", "queue/00", "movements/00"):
        for name in ("zz", "notes", "0000000000000-x.jsonl", "f" * 31 + ".jsonl"):
            (base / where).mkdir(exist_ok=True)
            (base / where / name).symlink_to(tmp_path)
            (base / where / f"{name}~").touch()
    queue = Queue(queue.path)
    assert (queue.status().leased, queue.status().completed) == (1, 1)
    assert not queue.is_drained()
    queue.release_all()
    [task] = queue.lease(5)
    task.complete()
    assert queue.lease(5) == []
    assert queue.is_drained()
    assert queue.wait(timeout_s=0).completed == 2
    assert [finding.kind for finding in queue.fsck(repair=True) if not finding.repaired] == []


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", LINKS)
def test_fsck_leaves_a_link_and_what_it_says_brings_the_tasks_back(queue: Queue, place: str, kind: Any) -> None:
    counted = queue.status()
    at = PLACES[place](queue)
    queue = put(queue, kind, at)
    for repair in (False, True, True):
        found = list(queue.fsck(repair=repair))
        assert [(one.kind, one.path, one.repaired) for one in found] == [
            ("hidden-file", str(at.relative_to(queue.path)), False)
        ]
    assert at.is_symlink()
    assert not (queue.path / ".quarantine").exists()
    if kind is dangling_link:
        at.unlink()
        at.symlink_to(queue.path.parent.parent / "aside")
    how = 'target=$(readlink -f LINK) && rm LINK && cp -a "$target" LINK'
    assert how in KINDS["hidden-file"].repair
    subprocess.run(["sh", "-c", how.replace("LINK", f"'{at}'")], check=True)
    queue = Queue(queue.path)
    assert list(queue.fsck()) == []
    assert queue.status() == counted
    assert not queue.is_drained()


@pytest.mark.parametrize("place", PLACES)
def test_what_a_repair_moves_away_is_damage_and_kept(queue: Queue, place: str) -> None:
    """A directory in the place of a file, and the other way round: nothing of the queue's can be in it."""
    at = PLACES[place](queue)
    queue = put(queue, other, at)
    found = {one.path: (one.kind, one.repaired) for one in queue.fsck(repair=True)}
    assert found[str(at.relative_to(queue.path))] == ("in-the-way", True)
    assert [path.name for path in (queue.path / ".quarantine").rglob(at.name)] == [at.name]


def test_nothing_is_decided_about_tasks_behind_a_link(queue: Queue) -> None:
    """Their batch has a log: without its task file they would be buried."""
    queue.insert_many([1, 2], batch_tasks=2)
    assert queue.lease()
    counted = queue.status()
    shard = base_of(queue) / "queue" / "00"
    queue = put(queue, link, shard)
    list(queue.fsck(repair=True))
    shard.unlink()
    (queue.path.parent.parent / "aside").rename(shard)
    assert Queue(queue.path).status() == counted


@pytest.mark.parametrize("place", ["task file", "log"])
@pytest.mark.parametrize("kind", [*KINDS_OF_STRAYS, "hard link"])
def test_a_worker_executes_the_others_then_names_the_file_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, kind: Any
) -> None:
    monkeypatch.setattr(settling, "HOPELESS_S", 0.0)
    queue = Queue.create(tmp_path / "group" / "q", shards=1)
    queue.insert_many([1, 2], batch_tasks=2)
    if place == "log":
        queue.release_all()
        queue.lease()[0].release()
    at = next((base_of(queue) / "queue").glob("*/*")) if place == "task file" else log_files(queue)[0]
    queue.insert_many([3, 4], batch_tasks=2)
    if kind == "hard link":
        os.link(at, tmp_path / "second")
        queue.close()
    else:
        put(queue, kind, at)
    done: list[int] = []
    worker = Worker(Queue(queue.path), handler=done.append, threads=1, until="drained")
    if kind == "hard link" and place == "task file":  # which is only read
        assert worker.run().completed == 4
        return
    expected = (StorageError, "second name") if kind == "hard link" else (QueueFileLost, "is a ")
    with pytest.raises(expected[0], match=expected[1]) as caught:
        worker.run()
    assert str(at) in str(caught.value)
    assert sorted(done) == [3, 4]
    if place == "task file":
        assert not Queue(queue.path).is_drained()


def test_a_queue_is_not_drained_while_a_task_is_executed_behind_a_link(queue: Queue) -> None:
    """The log that its holder has open is the one behind the link: its completion counts there."""
    [log] = log_files(queue)
    link(log, queue.path.parent.parent / "aside")
    with pytest.raises(QueueFileLost):
        Queue(queue.path).wait(timeout_s=0.01)
    log.unlink()
    (queue.path.parent.parent / "aside").rename(log)
    assert not Queue(queue.path).is_drained()


# -- a commit that is decided, and of which only its files in `commits` and `staging` tell ------------------------


def decided_by_a_dead_committer(queue: Queue) -> None:
    """Make the queue one whose tasks were committed, and not published: its committer died right after it decided."""
    for task in queue.lease(5):
        task.complete()
    queue.release_all()
    for task in queue.lease(5):
        task.complete()
    assert queue.is_drained()
    store, commit = queue.store, queue.commit("job")
    part = commit.stage([1, 2])
    record = commits.Record(
        names.new_uuid(store.entropy, 0), commit.name, store.clock.now_ms(), (commits.Part.of(part),)
    )
    assert commits.decide(store, store.layout, record) == record


DECIDED: dict[str, str] = {
    "proposal": "commits/pending/*.json",
    "proposals": "commits/pending",
    "record": "commits/job.json",
    "attempt": "staging/*-job",
}
SURE: dict[str, Callable[[Queue], object]] = {
    verb: VERBS[verb]
    for verb in ("is_drained", "wait", "wait for a time", "wait for several", "status", "estimate", "group is_drained")
}


@pytest.mark.parametrize("place", DECIDED)
@pytest.mark.parametrize("kind", KINDS_OF_STRAYS)
@pytest.mark.parametrize("verb", SURE)
def test_what_may_hide_a_decided_commit_is_named(queue: Queue, place: str, kind: Any, verb: str) -> None:
    decided_by_a_dead_committer(queue)
    [at] = base_of(queue).glob(DECIDED[place])
    queue = put(queue, kind, at)
    with pytest.raises(QueueFileLost, match=re.escape(str(at)) + " is a .*, where a .* belongs.*fsqueue fsck"):
        SURE[verb](queue)


@pytest.mark.parametrize("place", DECIDED)
@pytest.mark.parametrize("kind", KINDS_OF_STRAYS)
def test_nobody_gives_up_a_decided_commit_that_something_hides(queue: Queue, place: str, kind: Any) -> None:
    """Lessees take the other tasks, and gc goes on. After a day it gives up proposals that are not decided."""
    decided_by_a_dead_committer(queue)
    [at] = base_of(queue).glob(DECIDED[place])
    queue.insert(3)
    put(queue, kind, at).close()
    clock = ManualClock(time.time() + 3 * 86_400)
    late = Queue(queue.path, clock=clock)
    assert [task.payload for task in late.lease(5)] == [3]
    assert late.lease() == []
    late.gc()
    found = {(one.kind, one.path, one.repaired) for one in late.fsck(repair=kind in LINKS)}
    named = "hidden-file" if kind in LINKS else "in-the-way"
    assert (named, str(at.relative_to(queue.path)), False) in found
    assert {each[0] for each in found} == ({named, "pending-commit"} if place == "attempt" else {named})
    assert {each[2] for each in found} == {False}
    at.rmdir() if at.is_dir() and not at.is_symlink() else at.unlink()
    (queue.path.parent.parent / "aside").rename(at)
    assert sorted(task.payload for task in late.lease(5)) == [1, 2]


@pytest.mark.parametrize("kind", KINDS_OF_STRAYS)
def test_after_a_week_the_record_alone_has_the_commit_published(queue: Queue, kind: Any) -> None:
    decided_by_a_dead_committer(queue)
    [at] = base_of(queue).glob(DECIDED["proposal"])
    put(queue, kind, at).close()
    late = Queue(queue.path, clock=ManualClock(time.time() + 8 * 86_400))
    late.gc()
    assert sorted(task.payload for task in late.lease(5)) == [1, 2]


@pytest.mark.parametrize("place", DECIDED)
@pytest.mark.parametrize("kind", LINKS)
def test_fsck_leaves_a_link_that_hides_a_decided_commit(fsqueue_cli: Run, queue: Queue, place: str, kind: Any) -> None:
    decided_by_a_dead_committer(queue)
    [at] = base_of(queue).glob(DECIDED[place])
    put(queue, kind, at).close()
    for options in ((), ("--repair",), ("--repair",)):
        done = fsqueue_cli("fsck", queue.path, *options, code=10)
        assert done.stdout.count("hidden-file") == 1
        assert str(at.relative_to(queue.path)) in done.stdout
    assert at.is_symlink()
    for verb in ("status", "wait --timeout 0", "run -- true"):
        command, *options = verb.split()
        assert f"{at} is a symbolic link" in fsqueue_cli(command, queue.path, *options, code=5).output
    at.unlink()
    (queue.path.parent.parent / "aside").rename(at)
    assert Queue(queue.path).status().waiting == 2


@pytest.mark.parametrize("content", [b"", b"{", b"\0" * 300, b"\xff\n"])
def test_a_damaged_proposal_of_a_decided_commit_hides_nothing(queue: Queue, content: bytes) -> None:
    """Its ballot says the same."""
    decided_by_a_dead_committer(queue)
    next(base_of(queue).glob(DECIDED["proposal"])).write_bytes(content)
    queue = Queue(queue.path)
    assert not queue.is_drained()
    assert sorted(task.payload for task in queue.lease(5)) == [1, 2]


def test_a_damaged_record_is_not_drained(queue: Queue) -> None:
    decided_by_a_dead_committer(queue)
    record = next(base_of(queue).glob(DECIDED["record"]))
    record.unlink()
    record.write_bytes(b"{}\n")
    for verb in (queue.is_drained, queue.status, queue.wait):
        with pytest.raises(StorageError, match=r"job\.json\) is damaged"):
            verb()


@pytest.mark.parametrize("content", [b"", b"{"])
def test_a_proposal_that_is_being_written_is_no_error(queue: Queue, content: bytes) -> None:
    store, identity = queue.store, "0" * 32
    queue.insert_many([1], commit="other")
    record = commits.Record(identity, queue.commit("job").name, store.clock.now_ms(), ())
    commits.cast_ballot(store, store.layout, identity, record.encode())
    (base_of(queue) / "commits" / "pending" / f"{identity}.json").write_bytes(content)
    for task in queue.lease(5):
        task.complete()
    queue.release_all()
    for task in queue.lease(5):
        task.complete()
    assert queue.is_drained()
    assert queue.status().completed == 2
    assert queue.wait(timeout_s=0).completed == 2
