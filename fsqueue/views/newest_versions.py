"""The newest version of each value of a field: of tasks that wait, are leased, or have ended (docs/tables.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fsqueue.errors import InvalidArgument
from fsqueue.format import names, versions
from fsqueue.format.names import Batch
from fsqueue.format.replay import COMPLETED, DEAD
from fsqueue.format.versions import RowVersion
from fsqueue.storage import deadletters
from fsqueue.storage.store import Store
from fsqueue.views import finished, inspection


def check(store: Store, argument: str) -> None:
    """Raise InvalidArgument if the queue forgets completed tasks at once. `argument`: what asks for versions."""
    if not store.settings.keep_history:
        raise InvalidArgument(
            f"{argument} goes by the tasks that were completed, and {store.path} keeps none of them: it was created "
            "without a history (--no-history). Nothing was done."
        )


def newest(store: Store, field: str, must_be_there: bool = False) -> dict[str, RowVersion]:
    """Return the newest version of each value of a field. Memory: some 300 bytes for each value.

    Of tasks that wait, are delayed or leased, of dead letters, and of completed tasks that the history keeps with their
    payload. Each task that was in the queue when this began, and was not cancelled, is seen: unfinished tasks are read
    before completed ones. A dead letter has no content: no row has done its work, so none is the same.

    `must_be_there`: raise InvalidArgument if there are tasks, and none has a value in the field.
    """
    found: dict[str, RowVersion] = {}
    dead_since: dict[str, int] = {}
    has_tasks = False
    for batch, index, at, payload, key, is_dead in _tasks(store, dead_since):
        value, has_tasks = versions.value_of(payload, field), True
        if value is not None:
            content = "" if is_dead else versions.content_of(payload, key, value)
            version = RowVersion(at, batch, index, content)
            if value not in found or found[value] < version:
                found[value] = version
    if must_be_there and has_tasks and not found:
        raise InvalidArgument(
            f"No task of {store.path} has a value in the field {field!r} of its payload, as far as payloads are kept. "
            "Name a field as the payloads have it, without 'payload.'. Nothing was done."
        )
    return found


def _tasks(store: Store, dead_since: dict[str, int]) -> Iterator[tuple[Batch, int, int, Any, str | None, bool]]:
    """Yield batch, index, time of insertion (ms), payload and key of tasks, and whether they are dead letters, whose
    times `dead_since` takes.
    """
    store.verify()
    for batch, index, at, record in inspection.unfinished_records(store):
        yield batch, index, at, record.get("payload"), record.get("key"), False
    seen: set[Batch] = set()
    for at_work in inspection.partly_done(store):
        seen.add(at_work.batch)
        yield from _completed(at_work, dead_since)
    for done in finished.batches(store, offsets=False):
        if done.batch not in seen:
            yield from _completed(done, dead_since)
    for letter in deadletters.letters(store):
        batch, index = names.parse_task_id(letter.id)
        yield batch, index, dead_since.get(letter.id, names.birth_ms(batch)), letter.payload, letter.key, True


def _completed(
    found: finished.FinishedBatch, dead_since: dict[str, int]
) -> Iterator[tuple[Batch, int, int, Any, str | None, bool]]:
    state, birth = found.replay_state, names.birth_ms(found.batch)
    indices = [index for index in range(state.count) if state.state[index] == COMPLETED]
    payloads, keys, _ = found.tasks(indices)
    for index, payload, key in zip(indices, payloads, keys, strict=True):
        at = found.inserted_at(index)
        yield found.batch, index, birth if at is None else at, payload, key, False
    if state.done[DEAD]:
        for index in range(state.count):
            if state.state[index] == DEAD and (at := found.inserted_at(index)) is not None:
                dead_since[names.task_id(found.batch, index)] = at
