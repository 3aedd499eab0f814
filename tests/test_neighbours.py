"""What a neighbour with write access plants in a queue: links lead nowhere outside, pipes stop nobody."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from fsqueue import FsqueueError, Queue, Status
from fsqueue.clock import ManualClock
from fsqueue.errors import InvalidArgument, StorageError
from fsqueue.format import names
from tests.support import QueueFactory, base_of, files_below, leftovers, log_files

EVIL_IDS = [
    "../../x.0", "/etc/passwd.0", "0" * 32 + ".0\n", "0" * 32 + ".0\0", "0" * 31 + "/.0", "0" * 32 + ".-1",
    "0" * 32 + ".٣", "0" * 5000 + ".0", "", ".", "..", "\udcff",
]  # fmt: skip


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory that no queue may touch."""
    place = tmp_path / "outside"
    (place / "deep").mkdir(parents=True)
    (place / "precious").write_text("precious\n")
    (place / "deep" / "precious").write_text("precious\n")
    return place


def append(path: Path, *records: dict[str, object]) -> None:
    """Whole records at the end of a file, as any member can write them."""
    with path.open("ab") as file:
        file.writelines(orjson.dumps(record) + b"\n" for record in records)


def untouched(outside: Path) -> bool:
    return files_below(outside) == ["deep/precious", "precious"] and all(
        (outside / name).read_text() == "precious\n" for name in files_below(outside)
    )


def use_everything(queue: Queue) -> None:
    """Every verb once; what is in the way may be refused, in so many words."""
    for verb in (
        lambda: queue.insert_many(range(8), batch_tasks=2),
        lambda: queue.complete(queue.lease(2)),
        lambda: [task.bury("no") for task in queue.lease(2)],
        lambda: [task.fail("no", delay_s=0) for task in queue.lease(2)],
        lambda: queue.retry_dead(),
        lambda: queue.status(),
        lambda: list(queue.tasks()),
        lambda: list(queue.tasks("completed")),
        lambda: queue.release_all(),
        lambda: queue.gc(history_days=0),
        lambda: list(queue.fsck()),
        lambda: list(queue.fsck(repair=True)),
        lambda: queue.purge(),
        lambda: queue.gc(),
    ):
        try:
            verb()
        except FsqueueError:
            pass


PLACES = [
    "BASE", "BASE/queue", "BASE/movements", "BASE/completions", "BASE/dead", "BASE/history", "BASE/staging",
    "BASE/queue/00", "BASE/movements/00", ".trash", "doorbell", "BASE/completions/00", "BASE/dead/00.jsonl",
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("target", ["", "precious"])
def test_links_in_the_tree_lead_nowhere(queue_factory: QueueFactory, outside: Path, place: str, target: str) -> None:
    queue = queue_factory(shards=1)
    queue.insert_many(range(4), batch_tasks=2)
    queue.complete(queue.lease(1))
    queue.close()
    path = queue.path / place.replace("BASE", base_of(queue).name)
    if path.exists():
        path.rename(queue.path.parent / "aside")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(outside / target)
    clock = ManualClock(time.time())
    use_everything(Queue(queue.path, clock=clock))
    assert untouched(outside)
    fresh = Queue(queue.path, clock=clock)
    assert all(finding.repaired for finding in fresh.fsck(repair=True))
    fresh.insert("afterwards")
    assert "afterwards" in [task.payload for task in fresh.lease(20)]
    fresh.delete(foreground=True)
    assert untouched(outside)


def test_reaping_follows_no_links(queue: Queue, outside: Path) -> None:
    trash, ours = queue.path / ".trash", [f"{base_of(queue, n).name}-{n:016x}" for n in (1, 2, 3)]
    (trash / ours[0]).mkdir(parents=True)
    (trash / ours[1]).symlink_to(outside)
    (trash / ours[0] / "link").symlink_to(outside)
    (queue.path / f".trash-{ours[2]}").symlink_to(outside)
    queue.gc()
    assert untouched(outside)
    assert os.listdir(trash) == [ours[1]]


def test_deleting_where_the_trash_is_a_link(queue: Queue, outside: Path) -> None:
    (queue.path.parent / ".trash").symlink_to(outside)
    queue.delete(foreground=True)
    assert untouched(outside)
    assert not queue.path.exists()


@pytest.mark.parametrize("place", PLACES[-3:])
def test_pipes_stop_nobody(queue_factory: QueueFactory, place: str) -> None:
    queue = queue_factory(shards=1)
    queue.insert_many(range(4), batch_tasks=2)
    path = queue.path / place.replace("BASE", base_of(queue).name)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    use_everything(queue)


@pytest.mark.parametrize("text", EVIL_IDS)
def test_ids_from_outside_lead_nowhere(queue: Queue, text: str) -> None:
    with pytest.raises(InvalidArgument):
        names.parse_task_id(text)
    for verb in (queue.task, queue.history, queue.attach, lambda one: queue.cancel([one])):
        with pytest.raises(InvalidArgument):
            verb(text)
    with pytest.raises(InvalidArgument):
        queue.retry_dead([text])


@pytest.mark.parametrize("file", ["../../../outside/precious", "/etc/passwd", "\0", "x" * 5000, "00"])
@pytest.mark.parametrize("offset", [0, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_counter_named_in_a_log_is_one_of_the_queue(
    queue_factory: QueueFactory, outside: Path, file: str, offset: int
) -> None:
    queue = queue_factory(shards=1)
    queue.insert("x")
    [task] = queue.lease()
    [log] = (base_of(queue) / "movements").glob("*/*")
    at = queue.store.clock.now_ms() + 1
    append(
        log,
        {"op": "complete", "at": at, "lease": task.lease, "tasks": [[0, 1]]},
        {"op": "finish", "at": at},
        {"op": "count", "at": at, "file": file, "offset": offset, "count": 1},
    )
    queue.close()
    assert queue.status().completed == 1
    assert all(finding.repaired for finding in queue.fsck(repair=True))
    assert queue.status().completed == 1
    assert untouched(outside)


LONG_NAMES = ["p" * 300, "ä" * 130, "p" * 100_000]


@pytest.mark.parametrize("priority", LONG_NAMES, ids=["300 bytes", "130 characters of two bytes", "100 kB"])
@pytest.mark.parametrize("op", ["move", "lease", "unknown"])
def test_a_name_in_a_record_that_no_file_can_have_stops_nobody(
    queue_factory: QueueFactory, priority: str, op: str
) -> None:
    queue = queue_factory(shards=1)
    queue.insert_many(["a", "b"], batch_tasks=2)
    first = queue.lease()
    for log in log_files(queue):
        name = f"0000000000000-{log.stem}-2-{priority}.jsonl"
        append(log, {"op": op, "at": queue.store.clock.now_ms(), "from": name, "name": name})
    for other in (queue, Queue(queue.path)):
        assert len(list(other.tasks())) == 2
        other.renew(first)
        other.gc()
        lacking = {"damaged-line"} if op == "lease" and other is queue else set()  # it lacks what a lease needs
        assert {finding.kind for finding in other.fsck(repair=True)} == lacking
    queue.complete(first)
    queue.complete(queue.lease())
    assert queue.status() == Status(completed=2)
    queue.gc()
    assert leftovers(queue) == []


def test_a_record_that_names_another_batchs_file_moves_nothing(queue_factory: QueueFactory) -> None:
    """The other file is neither read, renamed nor replaced."""
    queue = queue_factory(shards=1)
    queue.insert_many(["a", "b"], batch_tasks=1)
    other, mine = queue.lease(), queue.lease()
    queue.close()
    [theirs] = names.task_files_of(other[0].batch, (path.name for path in base_of(queue).glob("queue/*/*")))
    [log] = [path for path in log_files(queue) if path.stem == mine[0].batch]
    append(log, {"op": "move", "at": queue.store.clock.now_ms(), "from": "x", "name": str(theirs)})
    for path in base_of(queue).glob("queue/*/*"):
        if path.name.split("-")[1] == mine[0].batch:
            path.unlink()
    fresh = Queue(queue.path)
    assert fresh.task(mine[0].id).payload is None
    fresh.release(mine)
    assert [task.payload for task in fresh.lease(5)] == []
    assert fresh.task(other[0].id).payload == other[0].payload
    fresh.complete(other)
    assert [finding.kind for finding in fresh.fsck(repair=True)] == ["task-file-gone"]
    assert fresh.status() == Status(completed=1, dead=1)


EVIL_ATTEMPTS = [
    "../../../outside", "../../../../outside/deep", "/", ".", "..", "", "a" * 31, "A" * 32, "a" * 32 + "\n", 7,
]  # fmt: skip


@pytest.mark.parametrize("attempt", EVIL_ATTEMPTS)
def test_the_name_of_an_attempt_leads_nowhere(queue: Queue, outside: Path, attempt: str) -> None:
    """However it comes: as an argument, in a commit that was sent about, or in a part of one."""
    (outside.parent / "outside-m").mkdir()
    commit = queue.commit("m")
    part = commit.stage(range(3))
    reopen, (path, worker, name, _) = commit.__reduce__()
    for make in (lambda: queue.commit("m", attempt=attempt), lambda: reopen(path, worker, name, attempt)):
        with pytest.raises(InvalidArgument, match="Nothing was done"):
            make()
    before = files_below(queue.path)
    changes: list[dict[str, Any]] = [{"attempt": attempt}, {"first": attempt}, {"first": attempt, "files": 0}]
    for change in changes:
        with pytest.raises(InvalidArgument):
            commit.publish([part, replace(part, **change)])
    assert (outside.parent / "outside-m").is_dir()
    assert untouched(outside)
    assert files_below(queue.path) == before
    assert commit.publish([part]).tasks == 3


@pytest.mark.parametrize("change", [{"files": -1}, {"files": "1"}, {"tasks": None}, {"bytes": -1}, {"files": 1 << 40}])
def test_a_part_with_other_numbers_is_no_part(queue: Queue, change: dict[str, Any]) -> None:
    part = queue.commit("m").stage(range(3))
    with pytest.raises(InvalidArgument):
        queue.commit("m").publish([replace(part, **change)])
    assert queue.status().inserted == 0


def test_a_record_with_other_names_is_damaged(queue: Queue, outside: Path) -> None:
    commit = queue.commit("m")
    commit.publish([commit.stage(range(3))])
    path = base_of(queue) / "commits" / "m.json"
    record = orjson.loads(path.read_bytes())
    for change in ({"attempt": "../../../outside"}, {"first": "../../../outside"}):
        record["parts"] = [record["parts"][0] | change]
        path.write_bytes(orjson.dumps(record) + b"\n")
        with pytest.raises(StorageError, match="damaged"):
            queue.commit("m").committed()
    assert untouched(outside)


def test_a_keyed_log_names_no_other_path(queue_factory: QueueFactory) -> None:
    """A record `insert` with a batch that is none is void, and stops nobody."""
    queue = queue_factory(shards=1)
    queue.insert_many(["a", "b"])
    [first] = queue.lease()
    [log] = log_files(queue)
    at = queue.store.clock.now_ms()
    append(log, {"op": "insert", "at": at, "batch": "../../x", "count": 1, "staged": "x"})
    fresh = Queue(queue.path)
    assert len(list(fresh.tasks())) == 2
    fresh.complete([first])
    assert fresh.status().completed == 1
