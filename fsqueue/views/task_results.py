"""What came of tasks: inputs beside outputs (docs/results.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from fsqueue.errors import QueuePurged
from fsqueue.format import names, versions
from fsqueue.format.layout import Layout
from fsqueue.format.models import COMPLETED as IS_COMPLETED
from fsqueue.format.models import DeadLetter, Result
from fsqueue.format.names import Batch
from fsqueue.format.replay import CANCELLED, COMPLETED
from fsqueue.format.task_states import Lease
from fsqueue.storage import deadletters
from fsqueue.storage.store import Store
from fsqueue.views import finished, inspection, newest_versions
from fsqueue.views.finished import FinishedBatch

LETTERS_AT_ONCE = 100

_ID, _PAYLOAD = Result._fields.index("id"), Result._fields.index("payload")
Columns = list[Sequence[Any]]
"""Results as columns: for each field of `Result`, in its order, the values of all tasks."""


def results(store: Store, dead: bool = False, latest_by: str | None = None) -> Iterator[list[Result]]:
    """Yield the tasks that were completed and those that are dead letters, many at a time; `dead`: the latter alone.

    A hint while others work: a task that ends meanwhile may be missing. None comes twice, unless it is retried. Memory
    is bounded by a batch, and by some 400 bytes for each batch that is kept.
    """
    for found in columns(store, dead, latest_by):
        yield [*map(Result._make, zip(*found, strict=True))]


def columns(store: Store, dead: bool = False, latest_by: str | None = None) -> Iterator[Columns]:
    """Yield the same as columns, those of a batch at a time. That is several times as fast as an object for each task.

    `latest_by`: a field of the payloads; of the tasks with one value in it the newest alone, if it has ended.
    QueuePurged, at the end, if the queue was purged meanwhile.
    """
    if latest_by is None:
        yield from _columns(store, dead)
        return
    newest_versions.check(store, "latest_by")
    newest = newest_versions.newest(store, latest_by, must_be_there=True)
    for found in _columns(store, dead):
        chosen = []
        for row, (task_id, payload) in enumerate(zip(found[_ID], found[_PAYLOAD], strict=True)):
            value = versions.value_of(payload, latest_by)
            version = None if value is None else newest.get(value)
            if version is not None and names.task_id(version.batch, version.place) == task_id:
                chosen.append(row)
        if chosen:
            yield [[column[row] for row in chosen] for column in found]


def _columns(store: Store, dead: bool) -> Iterator[Columns]:
    """Yield the results of a queue as columns.

    Logs are read before the history, so that a batch which finishes in between is in one of them.
    """
    store.verify()
    layout = store.layout
    if not dead:
        seen: set[Batch] = set()
        for at_work in inspection.partly_done(store):
            seen.add(at_work.batch)
            yield _completed(at_work)
        for found in finished.batches(store, offsets=False):
            if found.batch not in seen:
                yield _completed(found)
    letters = map(DeadLetter.as_result, deadletters.letters(store))
    while some := [*islice(letters, LETTERS_AT_ONCE)]:
        yield [*map(list, zip(*some, strict=True))]
    check_generation(store, layout)


def check_generation(store: Store, layout: Layout) -> None:
    """Raise QueuePurged if the queue was purged since it had this layout."""
    store.refresh(now=True)
    if store.layout is not layout:  # another call may have found it out
        raise QueuePurged(
            f"The queue {store.path} was purged while its results were being read: what was read of them is not whole."
        )


def results_of(store: Store, ids: Iterable[str]) -> dict[str, Result]:
    """Return what is known of tasks, finished or not, by their ids. Those of which nothing is known are left out.

    What has no outcome is looked for first, then the logs, then the history, then the dead letters, each only of the
    batches of which a task is still missing. So a task that ends meanwhile is in one of them. A letter has the payload,
    which the log of a batch may not have any more. Where a task was given up just now, the log has that, and its letter
    is not written yet.
    """
    store.verify()
    wanted: dict[Batch, set[int]] = {}
    for task_id in ids:
        batch, index = names.parse_task_id(task_id)
        wanted.setdefault(batch, set()).add(index)
    found: dict[str, Result] = {}

    def take(some: Iterable[Result]) -> None:
        for result in some:
            batch, index = names.parse_task_id(result.id)
            if index in wanted.get(batch, ()):
                found[result.id] = result
                take_out(batch, [index])

    def take_out(batch: Batch, indices: Iterable[int]) -> None:
        wanted[batch].difference_update(indices)
        if not wanted[batch]:
            del wanted[batch]

    def take_ended(ended: FinishedBatch) -> None:
        """Take the completed and the cancelled tasks of a batch."""
        if indices := _completed_of(ended, sorted(wanted.get(ended.batch, ()))):
            found.update((result.id, result) for result in map(Result._make, zip(*_rows(ended, indices), strict=True)))
            take_out(ended.batch, indices)
        if ended.replay_state.done[CANCELLED]:
            take(info.as_result() for info in inspection.cancelled_of(store, ended))

    for batch, indices in [*wanted.items()]:
        unfinished = inspection.unfinished(store, batch, indices)
        found.update((info.id, info.as_result()) for info in unfinished.values())
        if unfinished:
            take_out(batch, unfinished)
    buried: list[Result] = []
    keeps_history = store.settings.keep_history
    for at_work in inspection.with_outcomes(store, [*wanted]):
        if keeps_history:
            take_ended(at_work)
        left = {names.task_id(at_work.batch, index) for index in wanted.get(at_work.batch, ())}
        buried += (info.as_result() for info in inspection.buried_of(store, at_work) if info.id in left)
    for ended in finished.batches(store, offsets=False, only=[*wanted]) if keeps_history else ():
        take_ended(ended)
    for shard in sorted({store.layout.shard(batch) for batch in wanted}):
        take(letter.as_result() for letter in deadletters.letters(store, shard))
    if wanted:
        take(result for result in buried if result.id not in found and deadletters.settled_as(store, result.id) is None)
    return found


def completed(found: FinishedBatch, among: Sequence[int] | None = None) -> Iterator[Result]:
    """Yield the completed tasks of a batch. `among`: these alone of the completed ones, in order."""
    columns = _completed(found) if among is None else _rows(found, among)
    return map(Result._make, zip(*columns, strict=True))


def _completed(found: FinishedBatch) -> Columns:
    """Return the completed tasks of a batch."""
    return _rows(found, _completed_of(found, range(found.replay_state.count)))


def _completed_of(found: FinishedBatch, indices: Sequence[int]) -> Sequence[int]:
    """Return those of a batch's tasks that are completed."""
    replay_state = found.replay_state
    count, state = replay_state.count, replay_state.state
    if replay_state.done[COMPLETED] == count and (not indices or indices[-1] < count):
        return indices
    return [index for index in indices if index < count and state[index] == COMPLETED]


def _rows(found: FinishedBatch, indices: Sequence[int]) -> Columns:
    """Return completed tasks of a batch. `indices`: theirs, in ascending order."""
    batch, replay_state = found.batch, found.replay_state
    count = len(indices)
    payloads, keys, priorities = found.tasks(indices)
    ended_at = [replay_state.since[index] for index in indices]
    holders: list[Any] = [replay_state.holder[index] for index in indices]  # only one who holds a lease completes
    took: list[int] = [max(0, end - holder.at) for end, holder in zip(ended_at, holders, strict=True)]
    if replay_state.took:
        took = [*map(replay_state.took.get, indices, took)]
    used: list[tuple[int, int] | None] = [*map(replay_state.used.get, indices)] if replay_state.used else [None] * count
    workers, hosts = _names(holders)
    return [
        [f"{batch}.{index}" for index in indices],
        [IS_COMPLETED] * count,
        [replay_state.attempts[index] + 1 for index in indices],
        payloads,
        [*map(replay_state.results.get, indices)],
        [*map(replay_state.errors.get, indices)] if replay_state.errors else [None] * count,
        workers,
        hosts,
        _inserted_at(found, indices),
        [(end - length) / 1000 for end, length in zip(ended_at, took, strict=True)],
        [end / 1000 for end in ended_at],
        [length / 1000 for length in took],
        [None if used_by is None else used_by[0] / 1000 for used_by in used],
        [None if used_by is None else used_by[1] * 1024 for used_by in used],
        keys,
        priorities,
    ]


def _names(holders: list[Lease]) -> tuple[list[Any], list[Any]]:
    """Return the names and the hosts of the workers that held these leases."""
    names_of = {holder: ((worker := holder.worker or {}).get("name"), worker.get("host")) for holder in set(holders)}
    pairs = [*map(names_of.__getitem__, holders)]
    return [name for name, _ in pairs], [host for _, host in pairs]


def _inserted_at(found: FinishedBatch, indices: Sequence[int]) -> list[float]:
    """Return when tasks were inserted (s): into the log, or with the whole batch."""
    birth = names.birth_ms(found.batch) / 1000
    if found.replay_state.inserts is None:
        return [birth] * len(indices)
    times = map(found.inserted_at, indices)
    return [birth if at is None else at / 1000 for at in times]
