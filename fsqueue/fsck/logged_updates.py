"""Check updates in the logs at work: not decided for a day, decided in two ways, or decided by a file that is lost.

A decision file is read while no log is locked (docs/design.md, section 4.22).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from fsqueue.errors import FsqueueError, HiddenTasks
from fsqueue.filesystem import PassingOverStrays
from fsqueue.format import movements, names, sparse
from fsqueue.format.decisions import DecisionState, LogName, Outcome
from fsqueue.format.names import Batch, DecisionFileName, UpdateId
from fsqueue.format.replay import Records, ReplayState
from fsqueue.format.task_states import Prepared
from fsqueue.fsck.findings import Suspect, found
from fsqueue.fsck.repair import WAIT_S, StillHeld
from fsqueue.interruptions import suppress
from fsqueue.protocol import deciding
from fsqueue.storage import decisions, given_outcomes, history, listing
from fsqueue.storage.decisions import DecisionRequest, OutOfGroup
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.store import Store

AGE_MS = 86_400_000
"""Age from which an update without an outcome in a log counts as left behind. A process that needs its tasks decides
earlier."""
MARK = b'"file":"'
"""What is in the line of each prepared record."""


class LoggedUpdate(NamedTuple):
    """An update in a log: its decision file, and its outcome in this log, or the operations that wait for it."""

    file: DecisionFileName
    outcome: Outcome | None
    prepared: Prepared | None
    beside: LogName | None
    """The log in which it was prepared first, if the records name it."""


class _Wrong(NamedTuple):
    kind: str
    tasks: int
    note: str
    logs: tuple[LogName, ...] = ()
    """The logs that are known to have its `commit`."""


def check(store: Store, batch: Batch, content: list[sparse.Piece]) -> Iterator[Suspect]:
    """Yield what is wrong with the updates in a log."""
    for update, logged in _told(content).items():
        wrong = _judge(store, batch, update, logged)
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
    for update, logged in _told_by(records).items():
        wrong = _judge(store, batch, update, logged)
        if wrong is not None:
            finding = found(store, wrong.kind, path, note=f"batch {batch}, {wrong.note}")
            yield Suspect(
                finding,
                partial(_is_wrong, store, batch, update, logged, wrong.kind),
                partial(_mend_finished, store, batch, update, logged, wrong.kind),
            )


def _is_wrong(store: Store, batch: Batch, update: UpdateId, logged: LoggedUpdate, kind: str) -> bool:
    wrong = _judge(store, batch, update, logged)
    return wrong is not None and wrong.kind == kind


def _mend_finished(store: Store, batch: Batch, update: UpdateId, logged: LoggedUpdate, kind: str) -> None:
    wrong = _judge(store, batch, update, logged)
    if wrong is not None and wrong.kind == kind == "cut-decisions":
        _write_again(store, update, logged, wrong.logs)


def _told(content: list[sparse.Piece]) -> dict[UpdateId, LoggedUpdate]:
    """Return what a log tells of each of its updates that have a decision file."""
    if not any(MARK in data for _, data in content):
        return {}
    return _told_by(given_outcomes.records_of(content))


def _told_by(records: Records) -> dict[UpdateId, LoggedUpdate]:
    state, outcomes = ReplayState(), dict[UpdateId, LoggedUpdate]()
    for offset, record in records:
        update = names.parse_update(record.get("update"))
        before = None if update is None else state.prepared.get(update)
        state.apply(record, offset)
        if update is not None and before is not None and before.file is not None and update not in state.prepared:
            outcome: Outcome = "commit" if record["op"] == "commit" else "abort"
            outcomes[update] = LoggedUpdate(before.file, outcome, None, before.beside)
    waiting = {
        update: LoggedUpdate(one.file, None, one, one.beside)
        for update, one in state.prepared.items()
        if one.file is not None
    }
    return outcomes | waiting


def _judge(store: Store, batch: Batch, update: UpdateId, logged: LoggedUpdate) -> _Wrong | None:
    """Return what is wrong with an update in a log, by what its decision file says now; None if nothing is."""
    prepared = logged.prepared
    tasks = 0 if prepared is None else len(prepared.tasks) + sum(op == "insert" for op in _ops(prepared))
    try:
        group = decisions.group_of(store)
    except OutOfGroup:
        return None if prepared is None else _Wrong("moved-queue", tasks, f"update {update}")
    file = _read_decisions(group, logged)
    decided = None if file is None else file.first.get(update)
    is_over = file is None or file.is_gone
    if prepared is None:
        return _judge_given(group, store, batch, update, logged, None if decided is None else decided.outcome, is_over)
    age_ms = store.clock.now_ms() - prepared.at
    if decided is None:
        where = _committed(group, store, update, logged, is_over or age_ms >= prepared.patience_ms)
        if where is not None:
            file = _read_decisions(group, logged)
            if file is None or update not in file.first:  # else it was decided meanwhile, before the other log had it
                mine = _log_name(store, batch)
                note = f"update {update}: another log has its commit, in the queue {_name(where)}"
                return _Wrong("lost-decision", tasks, note, (where, mine))
    if age_ms >= AGE_MS:
        return _Wrong("undecided-update", tasks, f"update {update}, {'decided' if decided else 'not decided'}")
    return None


def _judge_given(
    group: GroupDirectory,
    store: Store,
    batch: Batch,
    update: UpdateId,
    logged: LoggedUpdate,
    decided: Outcome | None,
    is_over: bool,
) -> _Wrong | None:
    """Return what is wrong with an update that has its outcome in a log, beside what its file says of it."""
    if decided is not None:
        if decided == logged.outcome:
            return None
        return _Wrong("half-update", 0, f"update {update}: here {logged.outcome}, decided {decided}")
    if logged.outcome == "commit":
        note = f"update {update}, in {names.decision_file(logged.file)}"
        return None if is_over else _Wrong("cut-decisions", 0, note, (_log_name(store, batch),))
    if logged.beside is not None and _is_committed(group, store, logged.beside, update):
        other = _name(logged.beside)
        return _Wrong("half-update", 0, f"update {update}: here abort, in the queue {other} commit")
    return None


def _read_decisions(group: GroupDirectory, logged: LoggedUpdate) -> DecisionState | None:
    with PassingOverStrays():  # something else in its place is a finding of the group's
        return decisions.read(group, logged.file)
    return None


def _log_name(store: Store, batch: Batch) -> LogName:
    directory = store.directory_in_group
    assert directory is not None  # it lies in its group
    return LogName(directory, store.queue_state.directory, batch)


def _name(log: LogName) -> str | None:
    """Return the name of the queue of a log, for people."""
    return names.parse_queue_directory(log.directory)


def _ops(prepared: Prepared) -> Iterator[str]:
    return (record["op"] for _, _, record in prepared.records)


def _committed(
    group: GroupDirectory, store: Store, update: UpdateId, logged: LoggedUpdate, everywhere: bool
) -> LogName | None:
    """Return a log that has the `commit` of an update; None if none is found.

    The log that the records name is asked at once. `everywhere`: all logs of the group are read, and the history since
    then. That is done only for an update that should be decided by now, and of which no file tells.
    """
    if logged.beside is not None and _is_committed(group, store, logged.beside, update):
        return logged.beside
    assert logged.prepared is not None
    return _search(group, update, logged.prepared.at) if everywhere else None


def _is_committed(group: GroupDirectory, store: Store, log: LogName, update: UpdateId) -> bool:
    with suppress(FsqueueError, HiddenTasks):
        return given_outcomes.is_committed(group, log, update, store)
    return False


def _search(group: GroupDirectory, update: UpdateId, since_ms: int) -> LogName | None:
    for directory in sorted(group.directories()):
        with suppress(FsqueueError):
            store = Store(group.path_of(directory), holder=group)
            try:
                group.prove(store, directory)
                batch = _commits_in(store, update, since_ms)
                if batch is not None:
                    return LogName(directory, store.queue_state.directory, batch)
            finally:
                store.close()
    return None


def _commits_in(store: Store, update: UpdateId, since_ms: int) -> Batch | None:
    """Return the batch of a queue in which an update has happened; None if there is none."""
    mark = given_outcomes.mark(update)
    for batch in listing.with_logs(store, every_shard=True):
        with PassingOverStrays():
            logged = _told(store.fs.read_pieces(store.layout.log(batch))).get(update)
            if logged is not None and logged.outcome == "commit":
                return batch
    for day in history.days(store):
        for shard in history.shards_of(store, day) if day >= names.day_of(max(0, since_ms)) else ():
            for line in history.beginnings(store, store.layout.history(day, shard)):
                parsed = history.parse(line) if mark in line else None
                if parsed is not None and _has_committed(parsed[1], update):
                    return names.parse_batch(parsed[0])
    return None


def _has_committed(records: history.Records, update: UpdateId) -> bool:
    sound = [(offset, record) for offset, record in records if movements.is_record(record)]
    return bool(given_outcomes.acted_in(sound, update))


def _read(store: Store, batch: Batch) -> dict[UpdateId, LoggedUpdate]:
    try:
        return _told(store.fs.read_pieces(store.layout.log(batch)))
    except FileNotFoundError:
        return {}  # it has finished meanwhile


def _again(store: Store, batch: Batch, update: UpdateId, kind: str) -> bool:
    """Look once more. Outcomes never change, and are behind the decision: no lock is needed to trust the look."""
    logged = _read(store, batch).get(update)
    wrong = None if logged is None else _judge(store, batch, update, logged)
    return wrong is not None and wrong.kind == kind


def _mend(store: Store, batch: Batch, update: UpdateId, kind: str) -> None:
    """Give an update its outcome in a log, or its file the decision. StillHeld if the decision file stays locked."""
    logged = _read(store, batch).get(update)
    if kind == "half-update" or logged is None:
        return
    if kind in ("lost-decision", "cut-decisions"):
        wrong = _judge(store, batch, update, logged)
        if wrong is None or wrong.kind != kind:
            return
        # The file comes first: then no process decides against it in the logs that are checked later.
        _write_again(store, update, logged, wrong.logs)
    if logged.prepared is None:
        return
    outcome: Outcome = "commit" if kind == "lost-decision" else "abort"
    if kind == "undecided-update":
        decision = decisions.ask(store, DecisionRequest(logged.file, update, True, logged.beside))
        if decision is None:
            raise StillHeld("another process keeps the decision file locked; check again later")
        outcome = decision.outcome
    with LockedBatch(store, batch, WAIT_S) as locked:
        deciding.give(locked, update, outcome)
    store.doorbell.ring()


def _write_again(store: Store, update: UpdateId, logged: LoggedUpdate, logs: Sequence[LogName]) -> None:
    """Write the decision for an update into its file again, if there is one."""
    group = decisions.group_of(store)
    decision = None
    with PassingOverStrays(), suppress(FileNotFoundError):
        decision = decisions.commit_again(group, logged.file, update, logs, store.clock, store.entropy)
    if decision is not None and decision.outcome == "abort":
        raise StillHeld("another process has decided against the update just now; check again")
