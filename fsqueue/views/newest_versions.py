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


def newest(store: Store, field: str, with_dead: bool) -> dict[str, RowVersion]:
    """Return the newest version of each value of a field. Memory: some 300 bytes for each value.

    Of tasks that wait, are delayed or leased, of completed ones that the history keeps with their payload, and with
    `with_dead` of dead letters. Each task that was in the queue when this began, and was not cancelled, is seen:
    unfinished tasks are read before completed ones. InvalidArgument: see `check`.
    """
    found: dict[str, RowVersion] = {}
    dead_since: dict[str, int] = {}
    for batch, index, at, payload, key in _tasks(store, dead_since if with_dead else None):
        value = versions.value_of(payload, field)
        if value is not None:
            version = RowVersion(at, batch, index, versions.content_of(payload, key, value))
            if value not in found or found[value] < version:
                found[value] = version
    return found


def _tasks(store: Store, dead_since: dict[str, int] | None) -> Iterator[tuple[Batch, int, int, Any, str | None]]:
    """Yield batch, index, time of insertion (ms), payload and key of tasks. `dead_since`: with dead letters; it takes
    their times.
    """
    store.verify()
    for batch, index, at, record in inspection.unfinished_records(store):
        yield batch, index, at, record.get("payload"), record.get("key")
    seen: set[Batch] = set()
    for at_work in inspection.partly_done(store):
        seen.add(at_work.batch)
        yield from _completed(at_work, dead_since)
    for done in finished.batches(store, offsets=False):
        if done.batch not in seen:
            yield from _completed(done, dead_since)
    if dead_since is not None:
        for letter in deadletters.letters(store):
            batch, index = names.parse_task_id(letter.id)
            yield batch, index, dead_since.get(letter.id, names.birth_ms(batch)), letter.payload, letter.key


def _completed(
    found: finished.FinishedBatch, dead_since: dict[str, int] | None
) -> Iterator[tuple[Batch, int, int, Any, str | None]]:
    state, birth = found.replay_state, names.birth_ms(found.batch)
    indices = [index for index in range(state.count) if state.state[index] == COMPLETED]
    payloads, keys, _ = found.tasks(indices)
    for index, payload, key in zip(indices, payloads, keys, strict=True):
        at = found.inserted_at(index)
        yield found.batch, index, birth if at is None else at, payload, key
    if dead_since is not None and state.done[DEAD]:
        for index in range(state.count):
            if state.state[index] == DEAD and (at := found.inserted_at(index)) is not None:
                dead_since[names.task_id(found.batch, index)] = at
