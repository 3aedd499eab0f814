"""The table of fsck: each kind of journal has a row, and what is unsound in each kind is told and mended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pytest

from fsqueue import Group, NewNumber, Queue
from fsqueue.format import numbers
from fsqueue.fsck.findings import KINDS
from fsqueue.fsck.journal_kinds import JOURNALS, JournalKind
from fsqueue.storage.journals import Journal
from fsqueue.storage.nodes import NodeFailures
from tests.house.source import TOP
from tests.house.test_vanishing_files import SAME, leaves

NO_JOURNALS = {
    "doorbell", ".bells", "N-ID/cancelled", "N-ID/completions/NN",  # bytes, and no records
    "N-ID/limits/EPOCH.slots", ".limits/EPOCH.slots",  # records at places, written over: `slot_checks`
    "N-ID/queue/SHARD/TASKFILE", "N-ID/payloads/YYYY-MM-DD/TASKFILE",  # complete, and never appended to
    "N-ID/commits/NAME.json", "N-ID/commits/.ID.json", "N-ID/commits/pending/ID.json", ".barriers/ID.STEP",  # the same
    "N-ID/dead/SHARD.ID.jsonl", "N-ID/staging/ATTEMPT-NAME/",  # invisible until it is complete
    ".trash/", ".quarantine/", ".results/fsqueue-results-RANDOM/", ".fsqueue-deleted-ID-RANDOM/",
}  # fmt: skip
"""Files and directories of the format that are no journals."""
SAME_KIND = {"N-ID/keys-N/SHARD/DIGEST.jsonl"}
"""Drawn apart from their kind: keys of a later epoch."""
CLASSES = {
    "Journal": {"queue.jsonl", "movement log", "settled letters", "history", "nodes", "group.jsonl"},
    "LetterFile": {"dead letters"},
    "KeyFile": {"keys"},
    "DecisionFile": {"decisions"},
    "NumberFile": {"numbers"},
    "Locked": {"queue.jsonl"},
    "SlotFile": set(),
}
"""The kinds whose files each class of journals opens. Slots are no journal for fsck: see `NO_JOURNALS`."""


def test_each_journal_that_the_format_draws_has_a_row() -> None:
    drawn = set()
    for page in ("format.md", "format-groups.md"):
        for tree in re.findall(r"```(?:text)?\n((?:QUEUE|GROUP)/\n.*?)```", (TOP / "docs" / page).read_text(), re.S):
            drawn |= leaves(tree)
    rows = [kind.drawn for kind in JOURNALS]
    assert len(rows) == len(set(rows))
    assert set(rows) | NO_JOURNALS | SAME_KIND == drawn - SAME, "fsck says of each file of the format what is wrong"
    assert NO_JOURNALS.isdisjoint(rows)


def below(kind: type[Journal]) -> Iterator[type[Journal]]:
    yield kind
    for one in kind.__subclasses__():
        yield from below(one)


def test_each_class_of_journals_is_of_a_row() -> None:
    known = {one.__name__ for one in below(Journal) if one.__module__.startswith("fsqueue.")}
    assert known <= CLASSES.keys(), "a class has come: give its kind a row in fsqueue.fsck.journal_kinds.JOURNALS"
    assert set().union(*CLASSES.values()) == {kind.name for kind in JOURNALS}


@pytest.mark.parametrize("kind", JOURNALS, ids=lambda kind: kind.name)
def test_a_row_is_whole(kind: JournalKind) -> None:
    told = {kind.unsound, kind.torn, kind.zeros} - {None}
    assert told <= KINDS.keys(), "a user is told what it means, and what a repair does"
    ways = [kind.in_queue, kind.in_shard, kind.in_group]
    assert len([way for way in ways if way is not None]) == (kind.name != "movement log")


# -- what is unsound in each kind ------------------------------------------------------------------------------------


class Used(NamedTuple):
    """A group with a file of each kind of journal, and one queue of it."""

    group: Group
    queue: Queue
    files: dict[str, Path]

    def findings(self, repair: bool = False) -> list[tuple[str, str, str, bool]]:
        found = [*self.group.fsck(repair=repair), *self.queue.fsck(repair=repair)]
        return [(one.kind, one.path.rpartition("/")[2], one.note, one.repaired) for one in found]


@pytest.fixture
def used(tmp_path: Path) -> Used:
    group = Group.create(tmp_path / "group", shards=1, max_attempts=1, durability="none")
    queue = group["q"]
    queue.insert_many(range(8), batch_tasks=2)
    queue.insert("keyed", key="k")
    queue.complete(queue.lease(2))
    for task in queue.lease(2):
        task.bury("no")
    queue.release(queue.lease(2))
    NodeFailures(queue.store, 3).failed("no")
    group["other"].insert(1)
    with group.update() as update:
        update.complete(group["other"].lease(1)[0])
        update.complete(queue.lease(1)[0])
    group.numbers.give([NewNumber(task, 0) for task in islice(queue.tasks("waiting"), 3)])
    top, base = Path(queue.path), Path(queue.store.layout.base)
    [day] = (base / "history").iterdir()
    files = {
        "queue.jsonl": top / "queue.jsonl",
        "movement log": max((base / "movements").rglob("*.jsonl")),
        "dead letters": one_of(base / "dead"),
        "settled letters": day / f"{one_of(base / 'dead').stem}.settled.jsonl",
        "history": one_of(day),
        "keys": next((base / "keys").rglob("*.jsonl")),
        "nodes": one_of(base / "nodes"),
        "group.jsonl": top.parent / ".group.jsonl",
        "decisions": one_of(top.parent / ".updates"),
        "numbers": one_of(top.parent / ".numbers"),
    }
    files["settled letters"].write_bytes(b'{"op":"purged","ids":["%s.0"],"at":1}\n' % (b"0" * 32))
    made = Used(group, queue, files)
    assert made.findings() == []
    return made


def one_of(directory: Path) -> Path:
    [found] = directory.iterdir()
    return found


WRONG: dict[str, bytes] = {
    "queue.jsonl": b'{"op":"generation","at":1,"generation":"2"}\n',
    "movement log": b'{"op":"lease","at":1,"lease":7,"tasks":[[0,1]],"until":2}\n',
    "dead letters": b'{"op":"dead","id":5,"at":1}\n',
    "settled letters": b'{"op":"purged","ids":"all","at":1}\n',
    "history": b'{"batch":5,"count":1,"records":[]}\n',
    "keys": b'{"op":"key","at":1,"key":5,"batch":"","insert":""}\n',
    "nodes": b'{"op":"failed","at":1,"node":5,"after":3,"reason":""}\n',
    "group.jsonl": b'{"op":"limits","at":1,"limits":[]}\n',
    "decisions": b'{"op":"commit","at":1,"update":"0123456789abcdef","logs":5}\n',
    "numbers": b"\7" * numbers.RECORD_BYTES,  # of another kind than 1, and with a wrong sum
}
"""What lacks a field of the right type, for each kind."""
DAMAGE = ("garbage", "a wrong type", "torn")


def damaged(kind: JournalKind, how: str) -> bytes:
    """Return what is appended to a file of a kind."""
    whole = b"\xff\0\1garbage{\n" if kind.name != "numbers" else b"\xff" * numbers.RECORD_BYTES
    return {"garbage": whole, "a wrong type": WRONG[kind.name], "torn": b'{"op":"x'}[how]


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("kind", JOURNALS, ids=lambda kind: kind.name)
def test_what_is_unsound_is_told_and_mended(used: Used, kind: JournalKind, how: str) -> None:
    """But for a torn end that the next append closes off by itself."""
    file = used.files[kind.name]
    before, added = file.read_bytes(), damaged(kind, how)
    file.write_bytes(before + added)
    told = kind.torn if how == "torn" else kind.unsound
    note = "" if how == "torn" else f"1 {kind.records.unit}"
    wanted = [] if told is None else [(told, file.name, note)]
    assert used.findings() == [(*one, False) for one in wanted]
    assert used.findings(repair=True) == [(*one, True) for one in wanted]
    assert used.findings() == []
    after = file.read_bytes()
    assert after.startswith(before), "no sound record has moved or changed"
    if told == kind.unsound:
        assert len(after) == len(before + added), "what is void stays in its place"
        kept = b"".join(path.read_bytes() for top in (used.group.path, used.queue.path) for path in quarantined(top))
        assert added.replace(b"\n", b"") in kept
    assert Queue(used.queue.path).status() == used.queue.status()


def quarantined(top: Path) -> Iterator[Path]:
    return (path for path in (top / ".quarantine").rglob("*") if path.is_file())


def test_numbers_that_were_filled_up_are_sound_and_a_damaged_one_names_nothing(used: Used) -> None:
    file = used.files["numbers"]
    before = file.read_bytes()
    file.write_bytes(before + bytes(2 * numbers.RECORD_BYTES))
    assert used.findings() == []
    flipped = bytes([before[40] ^ 1])
    file.write_bytes(before[:40] + flipped + before[41:])
    assert [one[:3] for one in used.findings(repair=True)] == [("damaged-line", file.name, "1 record")]
    assert file.read_bytes() == bytes(numbers.RECORD_BYTES) + before[numbers.RECORD_BYTES :]
