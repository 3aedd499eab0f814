"""Files of dead letters: what was settled is given back, whatever dies in between."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from fsqueue import Queue, TaskNotFound
from fsqueue.clock import ManualClock
from fsqueue.storage import deadletters, letter_files, staging
from tests.concurrency.processes import children
from tests.support import QueueFactory, base_of, crashes

BIG = "x" * 3000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def q(queue_factory: QueueFactory, clock: ManualClock) -> Queue:
    return Queue(queue_factory(shards=1).path, worker="w1", clock=clock)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settled letters are given back as soon as they are half of a file."""
    monkeypatch.setattr(letter_files, "BLOCK_BYTES", 0)


def bury(q: Queue, *payloads: object) -> list[str]:
    """Insert and bury payloads, as one batch where possible; their ids, in this order."""
    q.insert_many(payloads, batch_tasks=len(payloads))
    tasks = q.lease(len(payloads))
    for task in tasks:
        task.bury("no")
    ids = {str(task.payload): task.id for task in tasks}
    return [ids[str(payload)] for payload in payloads]


def letter_file(q: Queue) -> Path:
    return base_of(q) / "dead" / "00.jsonl"


def letter_lines(q: Queue) -> list[dict[str, Any]]:
    return [json.loads(line) for line in letter_file(q).read_text().splitlines()]


def ops(q: Queue) -> list[str]:
    return [line["op"] for line in letter_lines(q)]


def given_back(q: Queue) -> list[dict[str, Any]]:
    paths = sorted((base_of(q) / "history").glob("*/00.settled.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def findings(q: Queue) -> list[str]:
    return [f"{finding.kind} {finding.path}" for finding in Queue(q.path, clock=q.store.clock).fsck()]


# -- what goes, and what stays -----------------------------------------------------------------------------


@pytest.mark.batched
def test_purged_letters_go_and_the_history_knows_them(q: Queue) -> None:
    gone = bury(q, *(f"{BIG}{i}" for i in range(5)))
    assert letter_file(q).stat().st_size > 15_000
    assert q.purge_dead() == 5
    assert ops(q) == ["rewritten"]
    assert letter_file(q).stat().st_size == letter_files.HEADER_BYTES
    assert [(line["op"], sorted(line["ids"])) for line in given_back(q)] == [("purged", sorted(gone))]
    assert q.status().dead == 0
    assert list(q.dead()) == []
    assert findings(q) == []
    assert q.purge_dead(gone) == 0
    for path in (base_of(q) / "history").glob("*/00.jsonl"):
        path.unlink()  # the letter is known all the same
    with pytest.raises(TaskNotFound, match="was a dead letter, and was purged"):
        q.task(gone[0])
    assert [path.name for path in (base_of(q) / "dead").iterdir()] == ["00.jsonl"]


def test_retried_letters_go_and_show_names_the_new_id(q: Queue) -> None:
    [old] = bury(q, BIG * 2)
    assert q.retry_dead() == 1
    assert ops(q) == ["rewritten"]
    [task] = q.lease()
    assert task.payload == BIG * 2
    assert q.task(old).state == "dead"
    assert findings(q) == []
    for path in (base_of(q) / "history").glob("*/00.jsonl"):
        path.unlink()  # the letter is known all the same
    with pytest.raises(TaskNotFound, match=f"its new id is {task.id}"):
        q.task(old)


def test_living_letters_stay_as_they_are(q: Queue) -> None:
    ids = bury(q, *(f"{BIG}{i}" for i in range(6)))
    before = {letter.id: letter for letter in q.dead()}
    assert q.purge_dead(ids[:2]) == 2
    assert "rewritten" not in ops(q), "the living take up more than half of it"
    assert q.purge_dead(ids[2:4]) == 2
    assert ops(q) == ["rewritten", "dead", "dead"]
    assert {letter.id: letter for letter in q.dead()} == {one: before[one] for one in ids[4:]}
    assert q.status().dead == 2
    assert q.retry_dead() == 2
    assert sorted(task.payload for task in q.lease(2)) == [f"{BIG}4", f"{BIG}5"]


@pytest.mark.batched
def test_less_than_a_block_is_not_given_back(q: Queue) -> None:
    bury(q, *range(10))
    q.purge_dead()
    assert ops(q) == [*["dead"] * 10, "purged"]
    q.gc()
    assert len(ops(q)) == 11


@pytest.mark.batched
def test_ids_of_a_batch_at_work_stay_until_it_ends(q: Queue, clock: ManualClock) -> None:
    """Whoever replays its log finds dead tasks in it, and must not write their letters again."""
    q.insert_many([BIG, BIG, "last"], batch_tasks=3)
    first, second, last = q.lease(3)
    for task in (first, second):
        task.bury("no")
    assert q.purge_dead() == 2
    assert ops(q) == ["rewritten", "purged"]
    other = Queue(q.path, clock=clock)
    assert list(other.dead()) == []
    assert (other.status().dead, other.status().leased) == (0, 1)
    assert findings(q) == []
    last.complete()
    assert Queue(q.path, clock=clock).status().dead == 0
    bury(q, BIG * 2)
    q.purge_dead()
    assert ops(q) == ["rewritten"], "the ids of both batches are in the history now"
    assert sorted(one for line in given_back(q) for one in line["ids"]) == sorted(
        [first.id, second.id, *(one for one in given_back(q)[-1]["ids"])]
    )
    assert findings(q) == []


def test_a_retry_that_is_not_published_yet_stays(q: Queue, clock: ManualClock, at_once: None) -> None:
    bury(q, BIG)
    mine = Queue(q.path, clock=clock)
    real = staging.publish
    try:
        staging.publish = lambda *args: iter(())  # as one that is killed there
        assert mine.retry_dead() == 1
    finally:
        staging.publish = real
    assert ops(q)[-1] == "retried"
    assert "dead" not in ops(q)
    assert q.status().waiting == 1
    q.gc()
    assert [task.payload for task in q.lease(5)] == [BIG]
    q.gc()
    assert ops(q) == ["rewritten"]


def test_a_queue_without_a_history_keeps_none_of_it(queue_factory: QueueFactory, at_once: None) -> None:
    q = queue_factory("plain", shards=1, keep_history=False)
    bury(q, 1, 2)
    q.purge_dead()
    assert given_back(q) == []
    assert q.status().dead == 0
    assert findings(q) == []


@pytest.mark.batched
def test_upkeep_gives_back_what_a_purge_could_not(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    bury(q, *(f"{BIG}{i}" for i in range(3)))
    with monkeypatch.context() as patch:
        patch.setattr(letter_files, "give_back", lambda *args: 0)
        q.purge_dead()
    assert ops(q) == ["dead"] * 3 + ["purged"]
    q.gc()
    assert ops(q) == ["rewritten"]
    assert findings(q) == []


def test_a_file_with_a_damaged_line_is_left_to_fsck(q: Queue) -> None:
    bury(q, *(f"{BIG}{i}" for i in range(3)))
    with letter_file(q).open("ab") as file:
        file.write(b'{"op":"dead","id":"gar\n')
    q.purge_dead()
    assert "rewritten" not in letter_file(q).read_text()
    assert [finding.kind for finding in q.fsck(repair=True)] == ["damaged-line"]
    q.gc()
    assert ops(q) == ["rewritten"]


@pytest.mark.parametrize("staged", [{"a": 1}, [1], 7, "../../x", None])
def test_a_line_that_names_no_staged_file_goes_like_any_other(q: Queue, at_once: None, staged: object) -> None:
    first, _ = bury(q, BIG, "small")
    with letter_file(q).open("ab") as file:
        file.write(orjson.dumps({"op": "retried", "at": 1, "ids": [first], "staged": staged}) + b"\n")
    q.gc()
    assert [letter.payload for letter in q.dead()] == ["small"]
    assert [line["staged"] for line in given_back(q)] == [staged]


def test_a_new_task_leads_to_the_letter_that_it_repeats_after_that_was_given_back(q: Queue, at_once: None) -> None:
    first, _ = bury(q, BIG, "small")
    q.retry_dead([first])
    q.gc()
    assert [line["op"] for line in given_back(q)] == ["retried"]
    [new] = q.tasks("waiting")
    assert deadletters.repeats(q.store, new.id) == first
    assert deadletters.repeats(q.store, first) is None
    assert deadletters.repeats(q.store, f"{new.id.partition('.')[0]}.1") is None


def test_a_torn_end_is_closed_off_first(q: Queue) -> None:
    bury(q, *(f"{BIG}{i}" for i in range(3)))
    q.purge_dead(where=lambda letter: letter.payload == f"{BIG}0")
    with letter_file(q).open("ab") as file:
        file.write(b'{"op":"dead","id":"to')
    q.purge_dead()
    assert ops(q) == ["rewritten"]
    assert q.status().dead == 0


def test_the_room_that_is_missing_fails_no_purge(
    q: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bury(q, *(f"{BIG}{i}" for i in range(3)))

    def full(path: str, sync: bool = False) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "fsqueue"):
        patch.setattr(q.store.fs, "create", full)
        assert q.purge_dead() == 3
    assert "is not given back yet" in caplog.text
    assert q.status().dead == 0
    q.gc()
    assert ops(q) == ["rewritten"]


def test_a_reader_of_retries_begins_a_replaced_file_anew(q: Queue, clock: ManualClock, at_once: None) -> None:
    """The number of an inode comes again on most disks. What a process has read of the file before says nothing."""
    mine = Queue(q.path, clock=clock)
    mine.is_drained()
    for number in range(4):
        bury(q, f"{BIG}{number}")
        mine.is_drained()
        q.purge_dead()
        bury(q, f"{number}")
        real = staging.publish
        try:
            staging.publish = lambda *args: iter(())
            assert q.retry_dead() == 1
        finally:
            staging.publish = real
        assert not mine.is_drained(), "the retry is published by who looks"
        [task] = mine.lease()
        assert task.payload == f"{number}"
        task.complete()


# -- crashes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["purge_dead", "retry_dead"])
@pytest.mark.parametrize("durability", ["none", "default"])
def test_whatever_step_it_dies_at_nothing_is_lost_and_nothing_comes_back(
    queue_factory: QueueFactory, clock: ManualClock, at_once: None, verb: str, durability: str
) -> None:
    kept: dict[int, str] = {}

    def build(number: int) -> Queue:
        made = queue_factory(f"q{number}", shards=1, durability=durability)
        mine = Queue(made.path, clock=clock)
        kept[number] = bury(mine, "kept", "a" * 300, "b" * 300)[0]
        return mine

    def act(worker: Queue) -> None:
        getattr(worker, verb)(where=lambda letter: letter.payload != "kept")

    def executed(mine: Queue) -> list[str]:
        tasks = mine.lease(10)
        mine.complete(tasks)
        return [str(task.payload)[0] for task in tasks]

    def sound(mine: Queue, *passing: str) -> list[str]:
        return [kind for kind in findings(mine) if not kind.startswith(("torn-line", *passing))]

    steps = 0
    for number, (where, mine) in enumerate(crashes(build, act, clock), start=1):
        steps += 1
        look = Queue(mine.path, clock=clock)
        status = look.status()
        new = 2 if verb == "retry_dead" else 0
        assert 1 + new <= status.dead + status.waiting <= 3, where
        assert kept[number] in {letter.id for letter in look.dead()}, where
        assert sound(look, "pending-retry", "staged-file") == [], where
        done = executed(look)
        later = bury(look, "later")
        assert {kept[number], *later} <= {letter.id for letter in Queue(mine.path, clock=clock).dead()}, where
        getattr(look, verb)(where=lambda letter: letter.payload not in ("kept", "later"))
        clock.advance(2 * 86_400)
        look.gc()
        assert sorted(letter.payload for letter in look.dead()) == ["kept", "later"], where
        assert sorted(path.name for path in (base_of(mine) / "dead").iterdir()) == ["00.jsonl"], where
        assert sound(look) == [], where
        assert sorted(done + executed(look)) == (["a", "b"] if new else []), where
        shutil.rmtree(mine.path)
    assert steps > 12


def closed(q: Queue, *, at: int | None = None, keep: bool = True) -> Path:
    """What one leaves that is killed after it has closed the file: its successor, which this returns."""
    content = letter_file(q).read_bytes()
    successor = base_of(q) / "dead" / ("00." + "5" * 16 + ".jsonl")
    header = b'{"op":"rewritten","id":"' + b"5" * 16 + b'"}'
    successor.write_bytes(header.ljust(letter_files.HEADER_BYTES - 1) + b"\n" + content)
    size = successor.stat().st_size
    moved = {"op": "moved", "here": len(content) if at is None else at, "to": "5" * 16, "bytes": size}
    with letter_file(q).open("ab") as file:
        file.write(json.dumps(moved, separators=(",", ":")).encode() + b"\n")
    if not keep:
        successor.unlink()
    return successor


def test_what_was_closed_is_replaced_by_the_next_who_writes(q: Queue) -> None:
    [first] = bury(q, "first")
    successor = closed(q)
    assert [letter.id for letter in Queue(q.path).dead()] == [first]
    [second] = bury(q, "second")
    assert not successor.exists()
    assert ops(q) == ["rewritten", "dead", "dead"]
    assert [letter.id for letter in q.dead()] == [first, second]


def test_a_file_whose_successor_is_gone_goes_on(q: Queue) -> None:
    [first] = bury(q, "first")
    closed(q, keep=False)
    [second] = bury(q, "second")
    assert ops(q) == ["dead", "moved", "dead"]
    assert [letter.id for letter in q.dead()] == [first, second]
    assert findings(q) == []


@pytest.mark.parametrize("spoil", ["cut", "another's", "a link"])
def test_what_has_the_successor_s_name_and_is_not_it_takes_no_place(q: Queue, tmp_path: Path, spoil: str) -> None:
    [first] = bury(q, "first")
    successor = closed(q)
    content = successor.read_bytes()
    if spoil == "cut":
        successor.write_bytes(content[:-1])
    elif spoil == "another's":
        successor.write_bytes(content.replace(b"5" * 16, b"6" * 16))
    else:
        (tmp_path / "theirs").write_bytes(content)
        successor.unlink()
        successor.symlink_to(tmp_path / "theirs")
    [second] = bury(q, "second")
    assert [letter.id for letter in q.dead()] == [first, second]
    assert not letter_file(q).is_symlink()


@pytest.mark.parametrize("at", [0, 1, 10**6])
def test_a_closing_line_at_another_offset_closes_nothing(q: Queue, at: int) -> None:
    """A process that had lost its lock wrote it: others have appended since, and the successor lacks their letters."""
    bury(q, "first")
    successor = closed(q, at=at)
    bury(q, "second")
    assert ops(q) == ["dead", "moved", "dead"]
    assert successor.exists()


def test_both_names_of_a_renaming_are_made_one(q: Queue) -> None:
    """Some filesystems have both after a power loss (btrfs). A file with two names is not written to."""
    bury(q, *(f"{BIG}{i}" for i in range(3)))
    q.purge_dead()
    identity = letter_lines(q)[0]["id"]
    os.link(letter_file(q), base_of(q) / "dead" / f"00.{identity}.jsonl")
    [letter] = bury(q, "next")
    assert [one.id for one in q.dead()] == [letter]
    assert letter_file(q).stat().st_nlink == 1


def test_another_second_name_is_refused_as_ever(q: Queue, tmp_path: Path) -> None:
    bury(q, "first")
    os.link(letter_file(q), tmp_path / "mine")
    with pytest.raises(Exception, match="second name"):
        q.purge_dead()


def test_a_successor_that_no_file_names_goes_after_a_day(q: Queue, clock: ManualClock) -> None:
    [first] = bury(q, "first")
    successor = closed(q, at=1)
    os.utime(successor, (clock.now_s, clock.now_s))
    q.gc()
    assert successor.exists()
    assert findings(q) == []
    clock.advance(2 * 86_400)
    assert findings(q) == [f"staged-file {successor.relative_to(q.path)}"]
    assert [finding.kind for finding in q.fsck(repair=True)] == ["staged-file"]
    assert not successor.exists()
    assert [letter.id for letter in q.dead()] == [first]


# -- others at work -----------------------------------------------------------------------------------------


def _bury_many(path: Path, seed: int) -> int:
    queue, dice = Queue(path), random.Random(seed)
    for number in range(40):
        queue.insert_many([f"{seed}.{number}.{part}" + "x" * dice.choice([0, 500]) for part in range(3)])
        for task in queue.lease(3):
            task.bury("no")
    return 0


def _settle_many(path: Path, seed: int) -> int:
    letter_files.BLOCK_BYTES = 0
    queue, dice, purged = Queue(path), random.Random(seed), 0
    for _ in range(60):
        if dice.random() < 0.7:
            purged += queue.purge_dead(where=lambda letter: dice.random() < 0.6)
        else:
            queue.retry_dead(where=lambda letter: dice.random() < 0.2)
        list(queue.dead())
        queue.status()
    return purged


def test_while_processes_bury_purge_and_retry(queue_factory: QueueFactory) -> None:
    """Each task is purged once, or is there once."""
    q = queue_factory(shards=2, durability="none")
    work = [(_bury_many, q.path, seed) for seed in range(3)] + [(_settle_many, q.path, seed) for seed in (7, 8)]
    with children(*work) as started:
        purged = sum(child.result(120) for child in started)
    assert purged > 20
    left: Counter[str] = Counter(str(letter.payload) for letter in q.dead())
    left.update(str(task.payload) for task in q.tasks())
    assert max(left.values(), default=1) == 1
    assert sum(left.values()) + purged == 3 * 40 * 3
    assert findings(q) == []


def _looks(q: Queue) -> Iterator[object]:
    yield q.status().dead
    yield sorted(letter.id for letter in q.dead())


def test_looks_say_the_same_of_a_file_and_of_its_successor(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = bury(q, *(f"{BIG}{i}" for i in range(5)))
    with monkeypatch.context() as patch:
        patch.setattr(letter_files, "give_back", lambda *args: 0)
        q.purge_dead(ids[:4])
    before = list(_looks(Queue(q.path)))
    q.gc()
    assert ops(q) == ["rewritten", "dead"]
    assert list(_looks(Queue(q.path))) == list(_looks(q)) == before
