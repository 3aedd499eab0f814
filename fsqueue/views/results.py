"""What came of tasks: inputs beside outputs (docs/results.md)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from fsqueue.format import names
from fsqueue.format.names import Batch
from fsqueue.format.replay import COMPLETED
from fsqueue.models import COMPLETED as IS_COMPLETED
from fsqueue.models import DEAD as IS_DEAD
from fsqueue.models import DeadLetter, Result
from fsqueue.storage import deadletters
from fsqueue.storage.store import Store
from fsqueue.views import finished, inspection
from fsqueue.views.finished import FinishedBatch

LETTERS_AT_ONCE = 100


def results(store: Store, failed: bool = False) -> Iterator[list[Result]]:
    """Yield the tasks that were completed and those that are dead letters, many at a time; `failed`: the latter alone.

    A hint while others work: a task that ends meanwhile may be missing. None comes twice, unless it is retried. Logs
    are read before the history, so that a batch which finishes in between is in one of them. Memory is bounded by a
    batch, and by some 400 bytes for each batch that is kept.
    """
    store.verify()
    if not failed:
        seen: set[Batch] = set()
        for at_work in inspection.partly_done(store):
            seen.add(at_work.batch)
            yield [*completed(at_work)]
        for found in finished.batches(store, offsets=False):
            if found.batch not in seen:
                yield [*completed(found)]
    letters = map(_of_letter, deadletters.letters(store))
    while some := [*islice(letters, LETTERS_AT_ONCE)]:
        yield some


def completed(found: FinishedBatch) -> Iterator[Result]:
    """Yield the completed tasks of a batch."""
    batch, replay_state, task_of = found.batch, found.replay_state, found.task
    since, holders, took_ms = replay_state.since, replay_state.holder, replay_state.took
    attempts, outcomes, errors = replay_state.attempts, replay_state.results, replay_state.errors
    usage = replay_state.used
    birth, is_in_file = names.birth_ms(batch) / 1000, replay_state.inserts is None
    for index, state in enumerate(replay_state.state):
        if state != COMPLETED:
            continue
        holder, ended_at = holders[index], since[index]
        assert holder is not None  # only the holder of a lease completes a task
        worker, took = holder.worker or {}, took_ms.get(index)
        if took is None:
            took = max(0, ended_at - holder.at)
        payload, key, _ = task_of(index)
        used = usage.get(index) if usage else None
        inserted_at = None if is_in_file else found.inserted_at(index)
        yield Result(
            f"{batch}.{index}",
            IS_COMPLETED,
            attempts[index] + 1,
            payload,
            outcomes.get(index),
            errors.get(index),
            worker.get("name"),
            worker.get("host"),
            birth if inserted_at is None else inserted_at / 1000,
            (ended_at - took) / 1000,
            ended_at / 1000,
            took / 1000,
            used[0] / 1000 if used is not None else None,
            used[1] * 1024 if used is not None else None,
            key,
        )


def _of_letter(letter: DeadLetter) -> Result:
    worker = letter.worker or {}
    return Result(
        letter.id,
        IS_DEAD,
        letter.attempt,
        letter.payload,
        error=letter.reason,
        worker=worker.get("name"),
        host=worker.get("host"),
        inserted_at=names.birth_ms(names.parse_task_id(letter.id)[0]) / 1000,
        finished_at=letter.at,
        key=letter.key,
    )
