"""The history of a task, from its batch's log or, once that is finished, from the history of the queue."""

from __future__ import annotations

from typing import Any

from fsqueue.errors import TaskNotFound
from fsqueue.format import movements, names, sparse
from fsqueue.format.models import Movement
from fsqueue.format.replay import CANCELLED, COMPLETED, SKIPPED, ReplayState
from fsqueue.storage import deadletters, decided, history, listing
from fsqueue.storage.store import Store

FORGETS = "keeps nothing of tasks that have ended (it was created with --no-history)."


def movements_of(store: Store, task_id: str) -> list[Movement]:
    """Return what happened to a task, oldest first; TaskNotFound if nothing is known of it. Its birth comes first."""
    batch, index = names.parse_task_id(task_id)
    store.verify()
    records = decided_records(store, batch)
    if not any(record["op"] == "open" for _, record in records):
        records = history.find(store, batch) or []
    name = listing.task_files(store, store.layout.shard(batch)).get(batch) if not records else None
    replay_state = history.replay(records)
    if not (index < name.count if name is not None else _is_task(replay_state, index)):
        why = "check the id, or it was not kept." if store.settings.keep_history else f"that queue {FORGETS}"
        raise TaskNotFound(f"The history of {task_id} is not known in {store.path}: {why}")
    if records and not store.settings.keep_history and replay_state.state[index] in (COMPLETED, CANCELLED):
        raise TaskNotFound(f"The task {task_id} has ended, and {store.path} {FORGETS}")
    first, *others = _applied(records, index) or [{"op": "open"}]
    if first["op"] == "insert":
        birth = Movement("insert", first["at"] / 1000, update=_update(first))
    else:  # a retry makes task files
        birth = Movement("insert", names.birth_ms(batch) / 1000, repeats=deadletters.repeats(store, task_id))
    return [birth, *(_movement(record, index) for record in others)]


def _is_task(replay_state: ReplayState, index: int) -> bool:
    return index < replay_state.count and replay_state.state[index] != SKIPPED


def records_of(store: Store, batch: names.Batch) -> history.Records:
    """Return the records in a batch's log, with their offsets; none if there is no log."""
    try:
        content = store.fs.read_pieces(store.layout.log(batch))
    except FileNotFoundError:
        return []
    found = ((offset, movements.parse(line)) for offset, line, _ in sparse.lines(content, 0))
    return [(offset, record) for offset, record in found if record is not None]


def decided_records(store: Store, batch: names.Batch) -> history.Records:
    """Return the records in a batch's log, and behind them the outcomes of updates that it does not have yet."""

    def again() -> history.Records:
        return records_of(store, batch)

    return decided.seen_records(store, again(), again)


def _applied(records: history.Records, index: int) -> list[dict[str, Any]]:
    """Return the records that changed the task: those that gave it another version. The first one brought it."""
    replay_state = ReplayState()
    applied: list[dict[str, Any]] = []
    version = None
    sound = ((offset, record) for offset, record in records if movements.is_record(record))
    for offset, record in replay_state.effective(sound):
        if index < replay_state.count and replay_state.version[index] == offset != version:
            version = offset
            applied.append(record)
    return applied


def version_before(store: Store, task_id: str, version: int) -> int | None:
    """Return the version that a task had until the record that gave it this one; None if that is not known any more.

    It replays the log of the task's batch.
    """
    batch, index = names.parse_task_id(task_id)
    replay_state = ReplayState()
    before: int | None = None
    sound = ((offset, record) for offset, record in decided_records(store, batch) if movements.is_record(record))
    for _ in replay_state.effective(sound):
        if index >= replay_state.count:
            continue
        if replay_state.version[index] == version:
            return before
        before = replay_state.version[index]
    return None


def _update(record: dict[str, Any]) -> str | None:
    return names.parse_update(record.get("update"))


def _movement(record: dict[str, Any], index: int) -> Movement:
    took, used = movements.took_ms(record, index), movements.used(record, index)

    def seconds(field: str) -> float | None:
        value = record.get(field)
        return value / 1000 if isinstance(value, int) else None

    return Movement(
        op=record["op"],
        at=record["at"] / 1000,
        lease=record.get("lease"),
        until=seconds("until"),
        available_at=seconds("available_at"),
        worker=record.get("worker"),
        error=record.get("error"),
        reason=record.get("reason"),
        result=record.get("result"),
        took_s=None if took is None else took / 1000,
        cpu_s=None if used is None else used[0] / 1000,
        peak_memory_bytes=None if used is None else used[1] * 1024,
        update=_update(record),
        priority=record.get("priority") if record["op"] == "change" else None,
    )
