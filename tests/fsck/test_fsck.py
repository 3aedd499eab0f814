"""fsck: each kind of damage is found, explained and repaired, nothing is lost, and a sound queue has no findings."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from fsqueue import Finding, LeaseLost, Queue, Status
from fsqueue.clock import ManualClock
from fsqueue.format import names
from fsqueue.format.replay import ReplayState
from fsqueue.fsck.findings import KINDS
from fsqueue.protocol import finishing
from fsqueue.storage import commits, counters, retrying, staging
from fsqueue.storage.store import Store
from fsqueue.upkeep import trash as own_trash
from tests import record_lines
from tests.concurrency.processes import Child
from tests.concurrency.trapped import trapped
from tests.levels import how_many
from tests.support import (
    Crash,
    QueueFactory,
    age_staging,
    base_of,
    counted,
    crashes,
    files_below,
    insert_in_file,
    log_files,
    needs_root,
)
from tests.waiting import PATIENCE_S, until

NOBODY = 65534


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(time.time())


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory, where there is any: hundreds of queues are made and removed, and none has to survive."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="fsqueue-test-") as directory:
        yield Path(directory)


@pytest.fixture
def q(queue_factory: QueueFactory, clock: ManualClock) -> Queue:
    return build(queue_factory, clock)


def build(queue_factory: QueueFactory, clock: ManualClock) -> Queue:
    """Tasks in every state: two finished, two dead, four held, the others waiting; all in batches of two."""
    queue = Queue(queue_factory(shards=4, backoff_s=(0, 0), durability="none").path, clock=clock)
    queue.insert_many(["done 0", "done 1"], batch_tasks=2)
    queue.complete(queue.lease(2))
    queue.insert_many(["dead 0", "dead 1"], batch_tasks=2)
    for task in queue.lease(2):
        task.bury("from the beginning")
    queue.insert_many([f"held {index}" for index in range(4)], batch_tasks=2)
    assert len(queue.lease(4)) == 4
    queue.insert_many([f"waiting {index}" for index in range(6)], batch_tasks=2)
    queue.close()
    return queue


WORK = [f"held {index}" for index in range(4)] + [f"waiting {index}" for index in range(6)]


def snapshot(queue: Queue) -> dict[str, bytes | str]:
    """Every name below the queue, with what is in it."""
    found: dict[str, bytes | str] = {}
    for name in files_below(queue.path):
        path = queue.path / name
        found[name] = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else "other"
    return found


def kinds(findings: list[Finding]) -> set[str]:
    return {finding.kind for finding in findings}


def base(queue: Queue) -> Path:
    return base_of(queue)


def waiting_file(queue: Queue) -> Path:
    """The task file of an untouched batch."""
    logs = {path.stem for path in log_files(queue)}
    return next(path for path in sorted((base(queue) / "queue").glob("*/*")) if path.name.split("-")[1] not in logs)


def held_file(queue: Queue) -> Path:
    logs = {path.stem for path in log_files(queue)}
    return next(path for path in sorted((base(queue) / "queue").glob("*/*")) if path.name.split("-")[1] in logs)


def log_of(queue: Queue, path: Path) -> Path:
    return base(queue) / "movements" / path.parent.name / f"{path.name.split('-')[1]}.jsonl"


def rest(queue: Queue, clock: ManualClock) -> list[Any]:
    """What can be had when all leases have run out."""
    clock.advance(10_000)
    payloads = []
    while tasks := queue.lease(20):
        queue.complete(tasks)
        payloads += [task.payload for task in tasks]
    return sorted(payloads)


# -- damages: each returns what is lost by it (payloads), and changes the queue ---------------------------------

Damage = Callable[[Queue, ManualClock], set[str]]
DAMAGES: dict[str, list[Damage]] = {}


def damage(kind: str) -> Callable[[Damage], Damage]:
    def note(function: Damage) -> Damage:
        DAMAGES.setdefault(kind, []).append(function)
        return function

    return note


def dying(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, action: Callable[[], object]) -> None:
    """Do `action`, which dies where `owner.name` is called."""

    def crash(*args: object, **named: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, crash)
        with pytest.raises(Crash):
            action()


def die_while_completing(queue: Queue, owner: object, name: str) -> set[str]:
    mine = Queue(queue.path, clock=queue.store.clock)
    held = mine.lease(min(2, mine.settings.batch_tasks_max))
    with pytest.MonkeyPatch.context() as patch:
        dying(patch, owner, name, lambda: mine.complete(held))
    mine.close()
    return {task.payload for task in held}


@damage("unfinished")
def before_the_farewell(queue: Queue, clock: ManualClock) -> set[str]:
    return die_while_completing(queue, finishing, "retire")


@damage("unfinished")
def before_counting(queue: Queue, clock: ManualClock) -> set[str]:
    return die_while_completing(queue, counters, "add")


@damage("unfinished")
def before_finishing(queue: Queue, clock: ManualClock) -> set[str]:
    return die_while_completing(queue, finishing, "try_finish")


@damage("orphaned-log")
def an_empty_log(queue: Queue, clock: ManualClock) -> set[str]:
    queue.store.logs.open("0" * 32, create=True)
    queue.close()
    return set()


@damage("orphaned-log")
def a_log_of_garbage(queue: Queue, clock: ManualClock) -> set[str]:
    log = queue.store.logs.open("0" * 32, create=True)
    Path(log.path).write_bytes(b'{"op":"complete"}~\n')
    queue.close()
    return set()


@damage("orphaned-log")
def a_log_that_said_farewell(queue: Queue, clock: ManualClock) -> set[str]:
    log = queue.store.logs.open("0" * 32, create=True)
    Path(log.path).write_bytes(b'{"op":"gone","at":1}\n')
    queue.close()
    return set()


@damage("late-name")
def a_name_in_the_future(queue: Queue, clock: ManualClock) -> set[str]:
    path = held_file(queue)
    path.rename(path.with_name(f"9{path.name[1:]}"))
    return set()


@damage("future-time")
def a_process_with_a_clock_ahead(queue: Queue, clock: ManualClock) -> set[str]:
    path = held_file(queue)
    month_ahead = round((clock.now_s + 30 * 86_400) * 1000)
    with log_of(queue, path).open("ab") as log:
        log.write(record_lines.record("move", month_ahead, **{"from": path.name, "name": path.name}))
    return set()


@damage("wrong-checkpoint")
def a_checkpoint_that_forgets_who_holds_what(queue: Queue, clock: ManualClock) -> set[str]:
    log = log_of(queue, held_file(queue))
    data, state = log.read_bytes(), ReplayState()
    state.replay(data, 0)
    record = orjson.loads(state.checkpoint(len(data), anyway=True))
    log.write_bytes(data + orjson.dumps(record | {"touched": [], "leases": []}) + b"\n")
    return set()


@damage("missing-letter")
def a_letter_that_was_not_written(queue: Queue, clock: ManualClock) -> set[str]:
    queue.insert_many(["given up", "other"], batch_tasks=2)
    mine = Queue(queue.path, clock=clock)
    [task] = [task for task in mine.lease(99) if task.payload == "given up"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finishing, "write_letters", lambda *args: None)
        patch.setattr(finishing, "try_finish", lambda *args: None)
        task.bury("because")
    mine.close()
    return {"given up", "+other"}


@damage("missing-letter")
def letters_that_were_lost(queue: Queue, clock: ManualClock) -> set[str]:
    for path in (base(queue) / "dead").iterdir():
        path.unlink()
    return set()


APPENDED_TO: dict[str, Callable[[Queue], Path]] = {
    "the log": lambda queue: log_of(queue, held_file(queue)),
    "the letters": lambda queue: next((base(queue) / "dead").iterdir()),
    "the history": lambda queue: next((base(queue) / "history").glob("*/*")),
    "the settings": lambda queue: queue.path / "queue.jsonl",
}
APPENDED = {"torn-line": b'{"op":"complete"', "damaged-line": b'\x00\xff\n[1,2]\nx\n{"batch":1}\n'}


def appending(place: str, data: bytes) -> Damage:
    def act(queue: Queue, clock: ManualClock) -> set[str]:
        append(APPENDED_TO[place](queue), data)
        return set()

    act.__name__ = f"in {place}"
    return act


for _kind, _data in APPENDED.items():
    for _place in APPENDED_TO:
        damage(_kind)(appending(_place, _data))


for _place in ("the letters", "the settings"):
    damage("zeros")(appending(_place, bytes(3000)))
for _place in ("the log", "the history"):  # their offsets are held elsewhere: closed off, and not cut
    damage("torn-line")(appending(_place, bytes(3000)))


@damage("staged-file")
def an_insert_that_died(queue: Queue, clock: ManualClock) -> set[str]:
    staged = staging.stage(queue.store, queue.store.layout, [b'{"payload":1}\n'], 1, 0)
    staged.close(queue.store)
    (base(queue) / "staging" / "0123.probe").touch()
    age_staging(queue)
    return set()


@damage("pending-retry")
def a_retry_that_died(queue: Queue, clock: ManualClock) -> set[str]:
    mine = Queue(queue.path, clock=clock)
    with pytest.MonkeyPatch.context() as patch:
        dying(patch, staging, "publish", mine.retry_dead)
    mine.close()
    [one] = {path.name for path in (base(queue) / "staging").iterdir()}
    return {f"+{payload}" for payload in payloads_in(base(queue) / "staging" / one)}


@damage("pending-commit")
def a_commit_that_died_before_it_published(queue: Queue, clock: ManualClock) -> set[str]:
    commit = Queue(queue.path, clock=clock).commit("seed")
    parts = [commit.stage(["new 0", "new 1"], batch_tasks=1)]
    dying(pytest.MonkeyPatch(), staging, "prepare", lambda: commit.publish(parts))
    return {"+new 0", "+new 1"}


@damage("stale-proposal")
def a_commit_that_died_undecided(queue: Queue, clock: ManualClock) -> set[str]:
    commit = Queue(queue.path, clock=clock).commit("seed")
    dying(pytest.MonkeyPatch(), commits, "_prove", lambda: commit.publish([]))
    clock.advance(2 * 86_400)
    return set()


@damage("staged-attempt")
def a_stager_that_died(queue: Queue, clock: ManualClock) -> set[str]:
    queue.commit("never").stage(["never"])
    clock.advance(8 * 86_400)
    return set()


@damage("staged-attempt")
def a_reaper_that_died(queue: Queue, clock: ManualClock) -> set[str]:
    path = base(queue) / "staging" / ".gone-0123456789abcdef"
    path.mkdir()
    (path / "lock").touch()
    clock.advance(60)
    return set()


@damage("damaged-record")
def a_damaged_record(queue: Queue, clock: ManualClock) -> set[str]:
    queue.insert_many([], commit="damaged")
    (base(queue) / "commits" / "damaged.json").write_bytes(b'{"op":"commit","id":')
    return set()


@damage("old-generation")
def a_purge_that_died(queue: Queue, clock: ManualClock) -> set[str]:
    dying(pytest.MonkeyPatch(), own_trash, "discard", queue.purge)
    queue.insert("afterwards")
    return {"all", "+afterwards"}


@damage("trash")
def trash(queue: Queue, clock: ManualClock) -> set[str]:
    shutil.copytree(base(queue), queue.path / ".trash" / names.trashed(base(queue).name, "6" * 16))
    shutil.copytree(base(queue), queue.path / f".trash-{names.trashed('2026-11-21', '6' * 16)}")
    return set()


@damage("new-file")
def a_creator_that_died(queue: Queue, clock: ManualClock) -> set[str]:
    path = queue.path / names.fresh("6" * 16)
    path.touch()
    os.utime(path, (1, 1))
    return set()


@damage("repeated-history")
def a_repeat(queue: Queue, clock: ManualClock) -> set[str]:
    for path in (base(queue) / "history").glob("*/*"):
        append(path, path.read_bytes())
    return set()


@damage("task-file-gone")
def a_removed_task_file(queue: Queue, clock: ManualClock) -> set[str]:
    path = held_file(queue)
    clock.advance(10_000)
    lost = payloads_in(path)
    path.unlink()
    return lost


@damage("unreadable-tasks")
def a_damaged_task_file(queue: Queue, clock: ManualClock) -> set[str]:
    path = waiting_file(queue)
    lines = path.read_bytes().splitlines(keepends=True)
    lost = payloads_in(path)
    path.write_bytes(b"\x00garbage\n" + b"".join(lines[1:]))
    return {sorted(lost)[0]}


@damage("unreadable-tasks")
def an_empty_task_file(queue: Queue, clock: ManualClock) -> set[str]:
    path = waiting_file(queue)
    lost = payloads_in(path)
    path.write_bytes(b"")
    return lost


@damage("unreadable-tasks")
def a_task_file_that_was_cut_under_way(queue: Queue, clock: ManualClock) -> set[str]:
    path = held_file(queue)
    clock.advance(10_000)
    lost = payloads_in(path)
    path.write_bytes(path.read_bytes()[:-3])
    return {sorted(lost)[-1]}


@damage("wrong-count")
def a_name_with_another_count(queue: Queue, clock: ManualClock) -> set[str]:
    path = held_file(queue)
    path.rename(path.with_name(path.name[:47] + "777.jsonl"))
    return set()


@damage("wrong-count")
def an_untouched_name_with_a_smaller_count(queue: Queue, clock: ManualClock) -> set[str]:
    path = waiting_file(queue)
    path.write_bytes(path.read_bytes() + b'{"payload":"another"}\n')
    return {"+another"}


@damage("modest-name")
def an_untouched_name_without_the_urgency_of_its_task(queue: Queue, clock: ManualClock) -> set[str]:
    path = waiting_file(queue)
    path.write_bytes(b"".join(line[:-1] + b',"priority":7}\n' for line in path.read_bytes().splitlines()))
    return set()


@damage("second-name")
def a_second_name(queue: Queue, clock: ManualClock) -> set[str]:
    path = waiting_file(queue)
    os.link(path, path.with_name(f"0000000000001{path.name[13:]}"))
    return set()


@damage("second-name")
def a_copy(queue: Queue, clock: ManualClock) -> set[str]:
    path = held_file(queue)
    shutil.copy(path, path.with_name(f"0000000000001{path.name[13:]}"))
    return set()


@damage("returned-file")
def a_file_that_came_back(queue: Queue, clock: ManualClock) -> set[str]:
    path = waiting_file(queue)
    copy = path.parent.parent.parent / "copy"
    shutil.copy(path, copy)
    batch = path.name.split("-")[1]
    mine = Queue(queue.path, clock=clock)
    tasks = mine.lease(99)
    done = {task.payload for task in tasks if task.batch == batch}
    mine.complete([task for task in tasks if task.batch == batch])
    mine.close()
    assert not path.exists()
    copy.rename(path)
    return done


@damage("returned-file")
def a_file_and_its_log_that_came_back(queue: Queue, clock: ManualClock) -> set[str]:
    path = held_file(queue)
    copies = {one: one.read_bytes() for one in (path, log_of(queue, path))}
    clock.advance(10_000)
    done = payloads_in(path)
    mine = Queue(queue.path, clock=clock)
    held = []
    while tasks := mine.lease(99):
        mine.complete([task for task in tasks if task.payload in done])
        held += [task for task in tasks if task.payload not in done]
    mine.release(held)
    mine.close()
    for one, content in copies.items():
        one.write_bytes(content)
    return done


@damage("wrong-shard")
def a_task_file_in_another_shard(queue: Queue, clock: ManualClock) -> set[str]:
    path = waiting_file(queue)
    elsewhere = path.parent.parent / ("00" if path.parent.name != "00" else "01")
    elsewhere.mkdir(exist_ok=True)
    path.rename(elsewhere / path.name)
    return set()


@damage("wrong-shard")
def a_log_in_another_shard(queue: Queue, clock: ManualClock) -> set[str]:
    path = log_of(queue, held_file(queue))
    elsewhere = path.parent.parent / "63"
    elsewhere.mkdir(exist_ok=True)
    path.rename(elsewhere / path.name)
    return set()


@damage("wrong-shard")
def a_copy_in_another_shard(queue: Queue, clock: ManualClock) -> set[str]:
    path = held_file(queue)
    (path.parent.parent / "ff").mkdir()
    shutil.copy(path, path.parent.parent / "ff" / path.name)
    return set()


def cut_counter(queue: Queue) -> Path:
    [path] = (base(queue) / "completions").iterdir()
    return path


@damage("counter-bytes")
def a_counter_that_was_cut(queue: Queue, clock: ManualClock) -> set[str]:
    path = cut_counter(queue)
    path.write_bytes(path.read_bytes()[:-1])
    return set()


@damage("counter-bytes")
def a_counter_that_was_cut_and_went_on(queue: Queue, clock: ManualClock) -> set[str]:
    before = cut_counter(queue).read_bytes()
    cut_counter(queue).write_bytes(b"")
    mine = Queue(queue.path, clock=clock)
    done = mine.lease(4)
    # A byte's value says whose it is, but by chance two batches in 256 have the same: those come last, where none was.
    for task in sorted(done, key=lambda task: (not set(before).isdisjoint(counters.mark(task.batch, 2)), task.id)):
        mine.complete([task])
    mine.close()
    return {task.payload for task in done}


@damage("counter-bytes")
def a_counter_of_garbage(queue: Queue, clock: ManualClock) -> set[str]:
    path = cut_counter(queue)
    path.write_bytes(b"\x00" * path.stat().st_size)
    return set()


@damage("counter-bytes")
def a_removed_counter(queue: Queue, clock: ManualClock) -> set[str]:
    cut_counter(queue).unlink()
    return set()


@damage("counter-surplus")
def a_counter_with_garbage_behind(queue: Queue, clock: ManualClock) -> set[str]:
    append(cut_counter(queue), b"garbage\0\0garbage")
    return set()


@damage("counter-surplus")
def a_counter_with_garbage_in_its_middle(queue: Queue, clock: ManualClock) -> set[str]:
    append(cut_counter(queue), b"garbage")
    mine = Queue(queue.path, clock=clock)
    done = mine.lease(4)
    mine.complete(done)
    mine.close()
    return {task.payload for task in done}


@damage("in-the-way")
def a_directory_for_a_task_file(queue: Queue, clock: ManualClock) -> set[str]:
    (waiting_file(queue).parent / f"0000000000000-{'0' * 32}-1.jsonl").mkdir()
    return set()


@damage("in-the-way")
def a_pipe_for_a_log(queue: Queue, clock: ManualClock) -> set[str]:
    path = log_of(queue, waiting_file(queue))
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    return set()


@damage("in-the-way")
def a_file_for_a_directory(queue: Queue, clock: ManualClock) -> set[str]:
    (base(queue) / "commits").write_bytes(b"")
    return set()


@damage("link")
def links_for_everything(queue: Queue, clock: ManualClock) -> set[str]:
    outside = queue.path.parent / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    (queue.path / ".trash").symlink_to(outside)
    (queue.path / "7").symlink_to(outside)
    (base(queue) / "staging" / "link").symlink_to(outside)
    (base(queue) / "completions" / "1f").symlink_to(outside / "precious")
    return set()


@damage("stray")
def strays_everywhere(queue: Queue, clock: ManualClock) -> set[str]:
    places = [queue.path, base(queue), waiting_file(queue).parent, log_files(queue)[0].parent]
    places += [base(queue) / "completions", base(queue) / "dead", next((base(queue) / "history").iterdir())]
    for number, place in enumerate(places):
        (place / f"notes {number}\n\udcff").write_text("notes")
    (queue.path / "9").mkdir()
    (queue.path / ".trash" / "mine").mkdir(parents=True)
    (queue.path / ".trash-mine").mkdir()
    (base(queue) / "queue" / "zz").mkdir()
    (base(queue) / "history" / "someday").touch()
    (base(queue) / "staging" / "directory").mkdir()
    return set()


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def payloads_in(path: Path) -> set[str]:
    return {json.loads(line)["payload"] for line in path.read_bytes().splitlines()}


EACH = [
    pytest.param(
        kind,
        action,
        id=f"{kind}: {action.__name__}",
        marks=[pytest.mark.batched] if action is a_letter_that_was_not_written else [],
    )
    for kind, some in DAMAGES.items()
    for action in some
]


def test_every_kind_has_its_damage() -> None:
    """And those that no repair mends have tests of their own; and keys, updates, and a place's own files."""
    of_keys = {"shared-key", "unnamed-key"}  # tests/fsck/test_keys.py
    # tests/fsck/test_updates.py, tests/groups/test_lost_decisions.py
    of_updates = {"undecided-update", "lost-decision", "cut-decisions", "half-update", "moved-queue"}
    # tests/fsck/test_own_files.py, test_slots.py
    of_own = {"queue-file-gone", "group-file-gone", "damaged-barrier", "missing-slot"}
    of_limits = {"missing-mark", "mark-of-no-group"}  # tests/groups/test_limits_of_groups.py
    alone = {"no-access", "queue-inside", "linked-file", "hidden-file"}
    assert DAMAGES.keys() | alone | of_keys | of_updates | of_own | of_limits == KINDS.keys()


@pytest.mark.parametrize(("kind", "action"), EACH)
def test_damage_is_found_explained_and_repaired(q: Queue, clock: ManualClock, kind: str, action: Damage) -> None:
    lost = action(q, clock)
    before = snapshot(q)
    looked = list(q.fsck())
    assert snapshot(q) == before, "looking changes nothing"
    assert kind in kinds(looked), looked
    for finding in looked:
        assert not finding.repaired
        assert finding.meaning
        assert finding.repair
        assert finding.as_dict()["gravity"] in ("leftover", "damage", "stray")
    mended = list(q.fsck(repair=True))
    assert kind in kinds(mended)
    assert all(finding.repaired for finding in mended), mended
    check_mended(q, clock, lost)
    check_outside(q)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("kind", "action"), EACH)
def test_a_repair_that_dies_at_any_step_is_repeated(
    q: Queue, tmp_path: Path, clock: ManualClock, kind: str, action: Damage
) -> None:
    lost = action(q, clock)
    q.close()
    now_s = clock.now_s

    def damaged(number: int) -> Queue:
        clock.now_s = now_s
        copy = tmp_path / str(number) / q.path.name
        copy.parent.mkdir()
        subprocess.run(["cp", "-a", q.path, copy], check=True)
        return Queue(copy, clock=clock)

    for where, queue in crashes(damaged, lambda worker: list(worker.fsck(repair=True)), clock, every=how_many(20, 1)):
        left = list(queue.fsck(repair=True))
        assert all(finding.repaired for finding in left), (where, left)
        check_mended(queue, clock, lost)
    check_outside(q)


def check_mended(q: Queue, clock: ManualClock, lost: set[str]) -> None:
    """The queue is sound, holds all but what was lost, can be drained, and counts right."""
    extra = {payload.removeprefix("+") for payload in lost if payload.startswith("+")}
    lost = {payload for payload in lost if not payload.startswith("+")}
    assert list(q.fsck()) == []
    wanted = sorted(({*WORK} if "all" not in lost else set()) - lost | extra)
    status = q.status()
    assert status.remaining == len(wanted)
    assert status.completed == counted(q)
    assert rest(q, clock) == wanted
    after = q.status()
    assert after.drained
    assert after.completed == counted(q) == status.completed + len(wanted)
    assert after.dead == len(list(q.dead())) == status.dead
    if "all" not in lost:
        assert after.inserted == 14 + len(extra - {"dead 0", "dead 1"}) + ("given up" in lost)
    assert list(q.fsck()) == []


def check_outside(q: Queue) -> None:
    """What links have led to is as it was."""
    outside = q.path.parent / "outside"
    assert not outside.exists() or [path.read_text() for path in outside.iterdir()] == ["precious"]


BARRED: dict[str, Callable[[Queue], Path]] = {
    "a task file": held_file,
    "a log": lambda queue: log_files(queue)[0],
    "a shard": lambda queue: held_file(queue).parent,
    "the task files": lambda queue: base(queue) / "queue",
    "the logs": lambda queue: base(queue) / "movements",
    "letters": lambda queue: next((base(queue) / "dead").iterdir()),
    "a day": lambda queue: next((base(queue) / "history").iterdir()),
    "a shard's history": lambda queue: next((base(queue) / "history").glob("*/*")),
    "a counter": lambda queue: cut_counter(queue),
    "the staging": lambda queue: base(queue) / "staging",
    "everything": base,
}


@needs_root
@pytest.mark.parametrize("repair", [False, True], ids=["look", "repair"])
@pytest.mark.parametrize("what", BARRED)
def test_what_may_not_be_read_is_a_finding_and_the_rest_is_checked_all_the_same(
    q: Queue, clock: ManualClock, what: str, repair: bool
) -> None:
    barred = BARRED[what](q)
    append(q.path / "queue.jsonl", b"garbage\n")
    for place in (q.path, *q.path.rglob("*")):
        os.chown(place, NOBODY, NOBODY)
    for above in (q.path.parent, q.path.parent.parent):
        above.chmod(above.stat().st_mode | 0o005)
    mode = barred.stat().st_mode
    barred.chmod(0)

    def check() -> list[list[Any]]:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        return [[f.kind, f.path, f.repaired] for f in Queue(q.path, clock=clock).fsck(repair=repair)]

    child = Child(check)
    try:
        assert sorted(child.result()) == [
            ["damaged-line", "queue.jsonl", repair],
            ["no-access", str(barred.relative_to(q.path)), False],
        ]
    finally:
        child.close()
        barred.chmod(mode)
    assert all(finding.repaired for finding in q.fsck(repair=True))
    check_mended(q, clock, set())


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_what_the_disk_does_not_give_back_is_a_finding(q: Queue, clock: ManualClock, code: int) -> None:
    """Wherever it begins to fail: fsck comes to its end, and says what could not be read."""
    failing = waiting_file(q)

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if step == "look" and args[0] == str(failing):
            raise OSError(code, os.strerror(code), str(failing))
        return call(*args)

    found = list(trapped(q, trap).fsck(repair=True))
    assert [(finding.kind, finding.note) for finding in found] == [("no-access", os.strerror(code))]
    assert "ask its owner" in found[0].repair
    check_mended(q, clock, set())


def test_a_sound_queue_has_no_findings(q: Queue, clock: ManualClock) -> None:
    assert list(q.fsck()) == []
    q.insert("later", delay_s=100)
    q.retry_dead()
    tasks = q.lease(5)
    assert list(q.fsck()) == []
    tasks[0].fail("no")
    tasks[1].release(50)
    tasks[2].renew(5)
    tasks[3].complete({"a": 1})
    tasks[4].bury("no")
    assert list(q.fsck(repair=True)) == []
    assert not (q.path / ".quarantine").exists()
    q.purge()
    trash = q.path / ".trash"
    until(lambda: not trash.exists() or not os.listdir(trash), "the trash to be reaped")
    assert list(q.fsck()) == []


@pytest.mark.batched
@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["gone", "unreadable"])
def test_who_holds_tasks_of_a_damaged_file_may_complete_them(
    queue_factory: QueueFactory, clock: ManualClock, change: Callable[[Path], object]
) -> None:
    queue = Queue(queue_factory(shards=1, backoff_s=(0, 0)).path, clock=clock)
    queue.insert_many(["a", "b", "c"], batch_tasks=3)
    first, second = queue.lease(), queue.lease()
    for path in (base(queue) / "queue").glob("*/*"):
        change(path)
    found = list(queue.fsck(repair=True))
    assert [finding.repaired for finding in found] == [False] * len(found)
    assert found, "nobody may be told that all is well"
    assert all("hold until" in finding.note and "check again" in finding.note for finding in found), found
    queue.complete(first)
    assert queue.status().completed == 1
    clock.advance(10_000)
    assert all(finding.repaired for finding in queue.fsck(repair=True))
    assert list(queue.fsck()) == []
    with pytest.raises(LeaseLost):
        queue.complete(second)
    assert queue.status() == Status(completed=1, dead=2)
    assert {letter.payload for letter in queue.dead()} == {None}


def test_what_an_nfs_client_keeps_of_files_that_are_open_is_no_finding(q: Queue) -> None:
    """It renames a file that is removed while a process has it open, and removes it when that closes it."""
    directories = [q.path, *(path for path in q.path.rglob("*") if path.is_dir())]
    for directory in directories:
        (directory / ".nfs000000000000002a00000001").touch()
    assert list(q.fsck(repair=True)) == []
    assert all((directory / ".nfs000000000000002a00000001").exists() for directory in directories)


def test_an_empty_queue_has_no_findings(queue: Queue) -> None:
    seen = []
    assert list(queue.fsck(progress=lambda done, steps: seen.append((done, steps)))) == []
    assert seen == [(done, 64) for done in range(65)]


def test_more_garbage_than_is_looked_at_in_one_go(q: Queue, clock: ManualClock) -> None:
    path = next((base(q) / "dead").iterdir())
    append(path, b"garbage\n" * 2500)
    assert [(finding.kind, finding.repaired) for finding in q.fsck(repair=True)] == [("damaged-line", True)]
    kept = [name for name in files_below(q.path / ".quarantine") if "lines-from" in name]
    assert sum((q.path / ".quarantine" / name).read_bytes().count(b"garbage\n") for name in kept) == 2500
    check_mended(q, clock, set())


@pytest.mark.once
@pytest.mark.parametrize("what", ["link", "file"])
@pytest.mark.parametrize("with_stray", [False, True])
def test_what_stands_in_the_quarantines_place_blocks_no_repair(
    q: Queue, clock: ManualClock, tmp_path: Path, what: str, with_stray: bool
) -> None:
    """It goes into a new quarantine; what a link points to is not touched."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (q.path / ".quarantine").symlink_to(outside) if what == "link" else (q.path / ".quarantine").write_text("mine")
    append(next((base(q) / "dead").iterdir()), b"garbage\n")
    if with_stray:  # met before or after the link
        (q.path / ".a-stray").write_text("stray")
    found = list(q.fsck(repair=True))
    assert {finding.kind for finding in found} >= {"damaged-line"}
    assert all(finding.repaired for finding in found), found
    assert os.listdir(outside) == []
    kept = [path for path in (q.path / ".quarantine").rglob("*") if path.name == ".quarantine"]
    assert len(kept) == 1
    assert (os.readlink(kept[0]) == str(outside)) if what == "link" else (kept[0].read_text() == "mine")
    assert list(q.fsck()) == []


@pytest.mark.once
def test_what_a_link_hides_is_kept_and_told_how_to_bring_back(q: Queue, clock: ManualClock, tmp_path: Path) -> None:
    """A deduplicator has put links in the place of files. Moved away, they would be forgotten, with the tasks."""
    before = snapshot(q)
    counted, tasks = q.status(), sorted(task.id for task in q.tasks())
    hidden = [waiting_file(q), *log_files(q)]
    for number, path in enumerate(hidden):
        path.rename(tmp_path / f"target-{number}")
        path.symlink_to(tmp_path / f"target-{number}")
    for _ in range(2):
        found = [one for one in q.fsck(repair=True) if one.kind in ("hidden-file", "link", "task-file-gone")]
        assert sorted((one.kind, one.path, one.repaired) for one in found) == sorted(
            ("hidden-file", str(path.relative_to(q.path)), False) for path in hidden
        )
    q.gc()
    assert all(path.is_symlink() for path in hidden)
    how = 'target=$(readlink -f LINK) && rm LINK && cp -a "$target" LINK'
    assert how in found[0].repair
    for path in hidden:
        subprocess.run(["sh", "-c", how.replace("LINK", f"'{path}'")], check=True)
    fresh = Queue(q.path, clock=clock)
    assert fresh.status() == counted
    assert sorted(task.id for task in fresh.tasks()) == tasks
    assert before.keys() <= snapshot(fresh).keys()


@pytest.mark.once
def test_idle_workers_are_told_of_a_task_file_that_is_moved_to_its_shard(queue_factory: QueueFactory) -> None:
    queue = queue_factory(shards=2)
    insert_in_file(queue, "x")
    [path] = (base_of(queue) / "queue").glob("*/*")
    other = path.parent.with_name("01" if path.parent.name == "00" else "00")
    other.mkdir(exist_ok=True)
    path.rename(other / path.name)
    before = queue.store.doorbell.read()
    assert [finding.kind for finding in queue.fsck(repair=True)] == ["wrong-shard"]
    assert queue.store.doorbell.read() != before
    assert [task.payload for task in queue.lease()] == ["x"]


def test_what_a_retry_is_about_to_publish_is_no_finding(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, real = queue_factory(), staging.publish
    queue.insert("again")
    queue.lease()[0].bury("for now")
    found: list[Finding] = []

    def slow(*args: Any) -> Any:
        found.extend(Queue(queue.path).fsck())
        found.extend(Queue(queue.path).fsck(repair=True))
        return real(*args)

    monkeypatch.setattr(staging, "publish", slow)
    assert queue.retry_dead() == 1
    assert found == []
    assert queue.status().waiting == 1


@pytest.mark.parametrize("look", [1, 2], ids=["the first look", "the second look"])
def test_what_a_retry_publishes_during_a_look_is_no_finding(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    """It is named and staged when the look begins, and published before it ends."""
    queue = queue_factory()
    queue.insert("again")
    queue.lease()[0].bury("for now")
    publish, pending = staging.publish, retrying.pending
    retry = threading.Thread(target=queue.retry_dead)
    is_named, goes_on = threading.Event(), threading.Event()
    looks = 0

    def slow(*args: Any) -> Any:
        is_named.set()
        goes_on.wait(PATIENCE_S)
        return publish(*args)

    def overtaken(store: Store) -> set[str]:
        nonlocal looks
        looks += 1
        found = pending(store)
        if looks == look:
            assert found
            goes_on.set()
            retry.join(PATIENCE_S)
        return found

    monkeypatch.setattr(staging, "publish", slow)
    monkeypatch.setattr(retrying, "pending", overtaken)
    retry.start()
    assert is_named.wait(PATIENCE_S)
    found = list(Queue(queue.path).fsck())
    goes_on.set()
    retry.join(PATIENCE_S)
    assert found == []
    assert looks == 1, "the lock, which is asked for first, says that the author lives"
    assert queue.status().waiting == 1


@pytest.mark.parametrize("place", APPENDED_TO)
def test_zeros_behind_a_file_cost_neither_memory_nor_what_is_in_it(queue_factory: QueueFactory, place: str) -> None:
    """A power loss leaves files that are longer than what was written of them."""
    q = queue_factory(max_attempts=1, shards=1)
    q.insert_many(range(6), batch_tasks=2)
    for number, task in enumerate(q.lease(5)):
        task.bury("no") if number else task.complete()
    q.release(q.lease())  # so that a log is there, also with batches of one task
    before, letters = q.status(), len(list(q.dead()))
    q.close()
    path = APPENDED_TO[place](q)
    size = path.stat().st_size
    os.truncate(path, size + (128 << 20))
    q = Queue(q.path)
    tracemalloc.start()
    try:
        assert q.status() == before
        found = list(q.fsck())
        assert {finding.kind for finding in found} == {"zeros" if place in MAY_CUT else "torn-line"}
        if place in MAY_CUT:
            assert found[0].note == "134,217,728 bytes"
        assert all(finding.repaired for finding in q.fsck(repair=True))
        assert list(q.fsck()) == []
        assert (path.stat().st_size == size) == (place in MAY_CUT)
        assert (q.status(), len(list(q.dead()))) == (before, letters)
        for task in q.lease(9):
            task.bury("no")
        assert q.insert("later").id
        assert len(list(q.dead())) == letters + 1
        assert [task.payload for task in q.lease()] == ["later"]
        assert q.status().completed == 1
        assert list(q.fsck()) == []
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()


MAY_CUT = ("the letters", "the settings")


@pytest.mark.batched
@pytest.mark.parametrize(("field", "garbled"), [(b'"payload"', b'"paxload"'), (b'"first"', b'"f\xc3\xa4st"')])
def test_an_insert_that_lacks_a_field_is_told(queue_factory: QueueFactory, field: bytes, garbled: bytes) -> None:
    """It parses, and is void: its task would be missing without a word."""
    queue = queue_factory()
    for number in range(3):
        queue.insert({"n": number})
    [log] = log_files(queue)
    data = log.read_bytes()
    line = data.rindex(b"\n", 0, data.index(b'"n":1')) + 1
    at = data.index(field, line)
    log.write_bytes(data[:at] + garbled + data[at + len(field) :])
    queue.close()
    [finding] = [one for one in queue.fsck() if one.kind == "damaged-line"]
    assert finding.note == "1 line"
    assert [one.repaired for one in queue.fsck(repair=True) if one.kind == "damaged-line"] == [True]
    assert "damaged-line" not in {one.kind for one in queue.fsck()}
    kept = b"".join(path.read_bytes() for path in (queue.path / ".quarantine").rglob("*") if path.is_file())
    assert garbled in kept
