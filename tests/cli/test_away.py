"""fsqueue run over several queues of which some are not there."""

from __future__ import annotations

import errno
import json
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsqueue_cli import running

from fsqueue import Group, Queue, QueueNotFound
from fsqueue.errors import from_os_error
from fsqueue.worker import feeding, sources
from tests.cli.conftest import Run, Spawn
from tests.conftest import QueueFactory
from tests.gateways import gateways
from tests.waiting import LOOK_AGAIN, PATIENCE_S, until

pytestmark = pytest.mark.once


@pytest.mark.parametrize("how", ["first", "upstream"])
def test_a_queue_that_is_not_there_is_named_and_the_others_are_done(
    fsqueue_cli: Run, queue_factory: QueueFactory, tmp_path: Path, how: str
) -> None:
    """Also if it is an earlier stage."""
    queue = queue_factory("a")
    queue.insert_many(range(3))
    away = tmp_path / "unmounted" / "tiles"
    named = {"first": [away, queue.path], "upstream": [queue.path, "--upstream", away]}[how]
    said = fsqueue_cli("run", *named, "--", "true", code=5).stderr
    assert f"{away} is not there (not mounted?); it is tried again." in said
    assert f"all else is drained, and {away} is not there (not mounted?)" in said
    assert "3 completed" in said
    assert queue.status().completed == 3
    said = fsqueue_cli("run", *named, "--json", "--", "true", code=5).stdout
    assert (json.loads(said)["ended"], json.loads(said)["completed"]) == ("away", 0)


def test_if_none_is_there_nothing_begins(fsqueue_cli: Run, tmp_path: Path) -> None:
    for paths in (["a"], ["a", "b"]):
        said = fsqueue_cli("run", *(tmp_path / path for path in paths), "--", "true", code=5).stderr
        assert "There is no queue at" in said
        assert "tried again" not in said


def test_a_group_that_comes_later_is_taken_too(spawn: Spawn, queue_factory: QueueFactory, tmp_path: Path) -> None:
    queue, root = queue_factory("a"), tmp_path / "root"
    group = Group.create(tmp_path / "root.away" / "crawl", durability="none")
    group["fetch"].insert_many(range(3))
    queue.insert(1)
    process = spawn("run", queue.path, root / "crawl", "--forever", "--", "true")
    until(lambda: queue.status().completed == 1, "the task of the one that is there")
    (tmp_path / "root.away").rename(root)
    until(lambda: Group(root / "crawl")["fetch"].status().completed == 3, "the tasks of the other")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143
    assert f"{root}/crawl is there: its tasks are taken, too." in said


def test_a_group_whose_file_is_damaged_is_named_and_taken_once_it_is_mended(
    spawn: Spawn, fsqueue_cli: Run, queue_factory: QueueFactory, tmp_path: Path
) -> None:
    queue, group = queue_factory("a"), Group.create(tmp_path / "crawl", durability="none")
    group["fetch"].insert_many(range(3))
    queue.insert(1)
    file = group.path / ".group.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:20])
    said = fsqueue_cli("run", group.path, "--", "true", code=5).stderr
    assert f"{file} is damaged" in said
    assert "tried again" not in said
    said = fsqueue_cli("run", group.path, queue.path, "--max-tasks", "1", "--", "true").stderr
    assert re.search(rf"{group.path} cannot be opened \(NotAQueue: {file} is damaged.*; it is tried again\.", said)
    queue.insert(2)
    process = spawn("run", group.path, queue.path, "--forever", "--", "true")
    until(lambda: queue.status().completed == 2, "the task of the one that is sound")
    file.write_bytes(whole)
    until(lambda: Group(group.path)["fetch"].status().completed == 3, "the tasks of the other")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143
    assert f"{group.path} is there: its tasks are taken, too." in said


def test_a_group_that_may_not_be_read_is_named_and_the_others_are_done(
    fsqueue_cli: Run, queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    queue, closed, real = queue_factory("a"), Group.create(tmp_path / "crawl"), running.group_at
    queue.insert_many(range(3))

    def group_at(path: str, *given: Any) -> Group | None:
        if path == str(closed.path):
            raise from_os_error(PermissionError(errno.EACCES, "Permission denied", path), f"looking into {path}")
        return real(path, *given)

    monkeypatch.setattr(running, "group_at", group_at)
    said = fsqueue_cli("run", closed.path, "--", "true", code=1).stderr
    assert "Permission denied while looking into" in said
    said = fsqueue_cli("run", closed.path, queue.path, "--", "true", code=5).stderr
    assert re.search(rf"{closed.path} cannot be opened \(StorageError: Permission denied.*; it is tried again\.", said)
    assert f"all else is drained, and {closed.path} cannot be opened" in said
    assert queue.status().completed == 3


@pytest.fixture
def looks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "AWAY_LOOK_S", 0.05)


@pytest.mark.parametrize("is_grouped", [False, True])
@pytest.mark.usefixtures("looks_soon")
def test_an_earlier_stage_that_is_damaged_is_named_and_has_to_be_drained_once_it_is_mended(
    fsqueue_cli: Run, queue_factory: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_grouped: bool
) -> None:
    """The run is not drained as long as it cannot look into that stage."""
    queue, texts = queue_factory("live"), list[str]()
    group = Group.create(tmp_path / "crawl", durability="none")
    stage = group["fetch"] if is_grouped else queue_factory("stage")
    stage.insert("a task")
    queue.insert(1)
    file = group.path / ".group.jsonl" if is_grouped else stage.path / "queue.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:20])
    named = ("run", queue.path, "--upstream", stage.path)
    said = fsqueue_cli(*named, "--", "true", code=5).stderr
    assert re.search(rf"{stage.path} cannot be opened \(\w+: .*damaged.*; it is tried again\.", said)
    assert f"all else is drained, and {stage.path} cannot be opened" in said
    assert queue.status().completed == 1
    monkeypatch.setattr(running, "_log_json", lambda event: texts.append(event.text))

    queue.insert(2)
    mended = tmp_path / "mended"

    def mend() -> None:
        try:
            until(lambda: any(f"{stage.path} cannot be opened" in text for text in texts), "its name")
            file.write_bytes(whole)
            until(lambda: f"{stage.path} is there: it has to be drained, too." in texts, "its return")
        finally:
            mended.touch()
        queue.insert(3)
        until(lambda: queue.status().completed == 3, "the task that the stage has inserted")
        opened = Group(group.path)["fetch"] if is_grouped else Queue(stage.path)
        opened.complete(opened.lease())

    thread = threading.Thread(target=mend, daemon=True)
    thread.start()
    wait = f"until [ -e {mended} ]; do {LOOK_AGAIN}; done"
    fsqueue_cli(*named, "-j", 2, "--log-json", "--", "sh", "-c", wait)  # one asks for tasks meanwhile
    thread.join()


@pytest.mark.usefixtures("looks_soon")
def test_an_earlier_stage_at_an_address_that_does_not_answer_is_named_and_the_others_are_done(
    fsqueue_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, before = (Group.create(tmp_path / name, durability="none") for name in ("later", "before"))
    group["a"].insert_many(range(3))
    before["b"].insert("a task")
    texts = list[str]()
    with gateways(tmp_path) as serve:
        url = serve(group.path)
        stage = f"{url.replace('0.sock', '1.sock')}/b"
        named = ("run", f"{url}/a", "--upstream", stage)
        said = fsqueue_cli(*named, "--patience", "0", "--", "true", code=5).stderr
        assert re.search(rf"{re.escape(stage)} cannot be opened \(StorageError: .*; it is tried again\.", said)
        assert f"all else is drained, and {stage} cannot be opened" in said
        assert group["a"].status().completed == 3
        monkeypatch.setattr(running, "_log_json", lambda event: texts.append(event.text))
        monkeypatch.setattr(running, "OPEN_S", 0.1)
        monkeypatch.setattr(sources, "SILENT_S", 0.2)

        def answer() -> None:
            until(lambda: f"{stage} does not answer; it is tried again." in texts, "its name")
            group["a"].insert(3)
            until(lambda: group["a"].status().completed == 4, "a task that comes later")
            assert f"{serve(before.path)}/b" == stage
            until(lambda: f"{stage} is there: it has to be drained, too." in texts, "its return")
            group["a"].insert(4)
            until(lambda: group["a"].status().completed == 5, "the task that the stage has inserted")
            before["b"].complete(before["b"].lease())

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        fsqueue_cli(*named, "--log-json", "--", "true")
        thread.join()


class Silent:
    """Places of which nothing can be opened until they answer."""

    def __init__(self, root: Path) -> None:
        self.places = [root / "a", root / "b"]
        self.asked: list[str] = []
        self.answers, self.is_late = threading.Event(), False
        """`is_late`: the first answer is that no queue is there."""
        self.real = running.queue_at

    def queue_at(self, path: str, worker: str | None = None) -> Queue:
        if Path(path) in self.places:
            self.asked.append(path)
            self.answers.wait()
            if self.is_late and self.asked.count(path) == 1:
                raise QueueNotFound(f"There is no queue at {path}.")
        return self.real(path, worker)

    def answers_after(self, queue: Queue, count: int) -> threading.Thread:
        """Have them answer once `count` tasks of `queue` are completed."""

        def wait() -> None:
            try:
                until(lambda: queue.status().completed == count, "the tasks of the one that answers")
            finally:
                self.answers.set()

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        return thread


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Silent]:
    made = Silent(tmp_path / "silent")
    monkeypatch.setattr(running, "queue_at", made.queue_at)
    monkeypatch.setattr(running, "OPEN_S", 0.1)
    monkeypatch.setattr(sources, "SILENT_S", 0.2)
    monkeypatch.setattr(feeding, "AWAY_LOOK_S", 0.05)
    yield made
    made.answers.set()


def at(place: Path, *payloads: Any) -> Queue:
    queue = Queue.create(place, durability="none")
    queue.insert_many(payloads)
    return queue


@pytest.mark.parametrize("how", ["first", "last", "upstream"])
def test_what_does_not_answer_at_the_start_is_named_and_the_others_are_done(
    fsqueue_cli: Run, queue_factory: QueueFactory, silent: Silent, how: str
) -> None:
    place, queue = silent.places[0], queue_factory("live")
    queue.insert_many(range(3))
    named = {"first": [place, queue.path], "last": [queue.path, place], "upstream": [queue.path, "--upstream", place]}
    said = fsqueue_cli("run", *named[how], "--patience", "0", "--", "true", code=5).stderr
    assert f"{place} does not answer; it is tried again." in said
    assert f"all else is drained, and {place} does not answer" in said
    assert queue.status().completed == 3


@pytest.mark.parametrize("is_late", [False, True])
def test_what_answers_later_is_done_too(
    fsqueue_cli: Run, queue_factory: QueueFactory, silent: Silent, is_late: bool
) -> None:
    """Also if it answers at first that no queue is there: it is tried again."""
    queue, other = queue_factory("live"), at(silent.places[0], 1, 2)
    queue.insert_many(range(3))
    silent.is_late = is_late
    thread = silent.answers_after(queue, 3)
    fsqueue_cli("run", silent.places[0], queue.path, "--", "true")
    thread.join()
    assert (queue.status().completed, other.status().completed) == (3, 2)


def test_an_earlier_stage_that_answers_later_has_to_be_drained_too(
    fsqueue_cli: Run, queue_factory: QueueFactory, silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, stage, texts = queue_factory("live"), at(silent.places[0], "a task"), list[str]()
    queue.insert(1)
    monkeypatch.setattr(running, "_log_json", lambda event: texts.append(event.text))

    def drain() -> None:
        try:
            until(lambda: f"{stage.path} does not answer; it is tried again." in texts, "its name")
        finally:
            silent.answers.set()
        until(lambda: f"{stage.path} is there: it has to be drained, too." in texts, "its return")
        [task] = stage.lease()
        queue.insert(2)
        until(lambda: queue.status().completed == 2, "the task that the stage has inserted")
        task.complete()

    thread = threading.Thread(target=drain, daemon=True)
    thread.start()
    fsqueue_cli("run", queue.path, "--upstream", stage.path, "--log-json", "--", "true")
    thread.join()
    assert stage.status().completed == 1
    assert queue.status().completed == 2


def test_if_none_answers_the_first_that_does_is_begun_with(fsqueue_cli: Run, silent: Silent) -> None:
    queues = [at(place, 1) for place in silent.places]

    def answer() -> None:
        try:
            until(lambda: len(silent.asked) == 2, "both to be asked")
        finally:
            silent.answers.set()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    fsqueue_cli("run", *silent.places, "--", "true")
    thread.join()
    assert [queue.status().completed for queue in queues] == [1, 1]


def test_what_is_wrong_with_one_that_answers_ends_the_command_though_another_one_is_silent(
    fsqueue_cli: Run, silent: Silent, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    said = fsqueue_cli("run", silent.places[0], tmp_path / "file", "--", "true", code=5).stderr
    assert f"{tmp_path}/file is a file or a symbolic link" in said


def test_the_end_of_a_run_waits_for_no_count_of_dead_letters_of_what_does_not_answer(
    fsqueue_cli: Run, queue_factory: QueueFactory, silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other, real = queue_factory("live"), at(silent.places[0]), running._status_of
    queue.insert(1)

    def status_of(source: Any) -> Any:
        if source.path == other.path:
            silent.answers.wait()
        return real(source)

    silent.places.clear()
    monkeypatch.setattr(running, "_status_of", status_of)
    monkeypatch.setattr(running, "SILENT_S", 0.1)
    options = ("--max-tasks", "1", "--json")
    said = json.loads(fsqueue_cli("run", queue.path, other.path, *options, "--", "true").stdout)
    assert (said["ended"], said["completed"], "dead" in said) == ("max-tasks", 1, False)
    silent.answers.set()
    said = json.loads(fsqueue_cli("run", queue.path, other.path, "--json", "--", "true").stdout)
    assert (said["ended"], said["dead"]) == ("drained", 0)
