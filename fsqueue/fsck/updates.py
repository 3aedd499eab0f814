"""Check updates in the logs at work: not decided for a day, decided in two ways, or decided by a file that is lost.

A decision file is read while no log is locked (docs/design.md, section 4.22).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from fsqueue.errors import FsqueueError
from fsqueue.filesystem import PassingOverStrays
from fsqueue.format import movements, names, sparse
from fsqueue.format.decisions import Outcome
from fsqueue.format.names import Batch, DecisionFileName, UpdateId
from fsqueue.format.replay import ReplayState
from fsqueue.format.task_states import Prepared
from fsqueue.fsck.findings import Suspect, found
from fsqueue.fsck.repair import WAIT_S, StillHeld
from fsqueue.protocol import deciding
from fsqueue.storage import decisions, history, listing
from fsqueue.storage.decisions import OutOfGroup
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.store import Store

AGE_MS = 86_400_000
"""Age from which an update without an outcome in a log counts as left behind. A process that needs its tasks decides
earlier."""
MARK = b'"file":"'
"""What is in the line of each prepared record."""


class Told(NamedTuple):
    """What a log tells of an update: its decision file, and its outcome here, or what waits for that."""

    file: DecisionFileName
    outcome: Outcome | None
    prepared: Prepared | None


class _Wrong(NamedTuple):
    kind: str
    tasks: int
    note: str


def check(store: Store, batch: Batch, content: list[sparse.Piece]) -> Iterator[Suspect]:
    """Yield what is wrong with the updates in a log."""
    for update, told in _told(content).items():
        wrong = _judge(store, update, told)
        if wrong is not None:
            yield Suspect(
                found(store, wrong.kind, store.layout.log(batch), wrong.tasks, wrong.note),
                partial(_again, store, batch, update, wrong.kind),
                partial(_mend, store, batch, update, wrong.kind),
            )


def check_finished(store: Store, path: str, batch: Batch, records: history.Records) -> Iterator[Suspect]:
    """Yield what is wrong with the updates in a batch that the history has."""
    if not any(movements.is_prepared(record) for _, record in records):
        return
    for update, told in _told_by(records).items():
        wrong = _judge(store, update, told)
        if wrong is not None:
            finding = found(store, wrong.kind, path, note=f"batch {batch}, {wrong.note}")
            yield Suspect(finding, partial(_is_wrong, store, update, told), lambda: None)


def _is_wrong(store: Store, update: UpdateId, told: Told) -> bool:
    return _judge(store, update, told) is not None


def _told(content: list[sparse.Piece]) -> dict[UpdateId, Told]:
    """Return what a log tells of each of its updates that have a decision file."""
    if not any(MARK in data for _, data in content):
        return {}
    parsed = ((offset, movements.parse(line)) for offset, line, _ in sparse.lines(content, 0))
    return _told_by((offset, record) for offset, record in parsed if record is not None)


def _told_by(records: Iterable[tuple[int, dict[str, Any]]]) -> dict[UpdateId, Told]:
    state, outcomes = ReplayState(), dict[UpdateId, Told]()
    for offset, record in records:
        update = names.parse_update(record.get("update"))
        before = None if update is None else state.prepared.get(update)
        state.apply(record, offset)
        if update is not None and before is not None and before.file is not None and update not in state.prepared:
            outcomes[update] = Told(before.file, "commit" if record["op"] == "commit" else "abort", None)
    waiting = {update: Told(one.file, None, one) for update, one in state.prepared.items() if one.file is not None}
    return outcomes | waiting


def _judge(store: Store, update: UpdateId, told: Told) -> _Wrong | None:
    """Return what is wrong with an update in a log, by what its decision file says now; None if nothing is."""
    prepared = told.prepared
    tasks = 0 if prepared is None else len(prepared.tasks) + sum(op == "insert" for op in _ops(prepared))
    try:
        group = decisions.group_of(store)
    except OutOfGroup:
        return None if prepared is None else _Wrong("moved-queue", tasks, f"update {update}")
    file = None
    with PassingOverStrays():  # something else in its place is a finding of the group's
        file = decisions.read(group, told.file)
    decided = None if file is None else file.first.get(update)
    if prepared is None:
        if decided is not None and decided.outcome != told.outcome:
            return _Wrong("half-update", 0, f"update {update}: here {told.outcome}, decided {decided.outcome}")
        return None
    age_ms = store.clock.now_ms() - prepared.at
    is_lost = decided is None and (file is None or file.is_gone or age_ms >= AGE_MS)
    if is_lost and _committed(group, update, prepared.at):
        return _Wrong("lost-decision", tasks, f"update {update}: another log has its commit")
    if age_ms >= AGE_MS:
        return _Wrong("undecided-update", tasks, f"update {update}, {'decided' if decided else 'not decided'}")
    return None


def _ops(prepared: Prepared) -> Iterator[str]:
    return (record["op"] for _, _, record in prepared.records)


def _committed(group: GroupDirectory, update: UpdateId, since_ms: int) -> bool:
    """Return whether a log of the group, or the history since then, has the `commit` of an update.

    It reads all of them. That is done only for an update of which nothing else tells.
    """
    for directory in sorted(group.directories()):
        with suppress(FsqueueError):
            store = Store(group.path_of(directory), open_root=group.open_root)
            try:
                group.prove(store, directory)
                if _commits_in(store, update, since_ms):
                    return True
            finally:
                store.close()
    return False


def _commits_in(store: Store, update: UpdateId, since_ms: int) -> bool:
    mark = b'"update":"%s"' % update.encode()
    for batch in listing.with_logs(store, every_shard=True):
        with PassingOverStrays():
            told = _told(store.fs.read_pieces(store.layout.log(batch))).get(update)
            if told is not None and told.outcome == "commit":
                return True
    for day in history.days(store):
        for shard in history.shards_of(store, day) if day >= names.day_of(max(0, since_ms)) else ():
            for line in history.beginnings(store, store.layout.history(day, shard)):
                parsed = history.parse(line) if mark in line else None
                if parsed is not None and _has_committed(parsed[1], update):
                    return True
    return False


def _has_committed(records: history.Records, update: UpdateId) -> bool:
    acting = ReplayState().effective((offset, record) for offset, record in records if movements.is_record(record))
    return any(record.get("update") == update for _, record in acting)


def _read(store: Store, batch: Batch) -> dict[UpdateId, Told]:
    try:
        return _told(store.fs.read_pieces(store.layout.log(batch)))
    except FileNotFoundError:
        return {}  # it has finished meanwhile


def _again(store: Store, batch: Batch, update: UpdateId, kind: str) -> bool:
    """Look once more. Outcomes never change, and are behind the decision: no lock is needed to trust the look."""
    told = _read(store, batch).get(update)
    wrong = None if told is None else _judge(store, update, told)
    return wrong is not None and wrong.kind == kind


def _mend(store: Store, batch: Batch, update: UpdateId, kind: str) -> None:
    """Give an update its outcome in a log. StillHeld if its decision file stays locked."""
    told = _read(store, batch).get(update)
    if kind == "half-update" or told is None or told.prepared is None:
        return
    outcome: Outcome = "commit" if kind == "lost-decision" else "abort"
    if kind == "undecided-update":
        decision = decisions.ask(store, told.file, update, may_abort=True)
        if decision is None:
            raise StillHeld("another process keeps the decision file locked; check again later")
        outcome = decision.outcome
    with LockedBatch(store, batch, WAIT_S) as locked:
        deciding.give(locked, update, outcome)
    store.doorbell.ring()
