"""Dead letters: tasks that were given up, with the reason, until a user retries or purges them.

One file a shard, appended under its lock: `dead`, `retried` and `purged` lines; of an id the last
line counts, and a second `dead` is dropped (docs/format.md, "Dead letters").
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from types import MappingProxyType
from typing import Any

import orjson

from fsqueue.errors import FsqueueError
from fsqueue.filesystem import NOT_FILES
from fsqueue.format import movements, names, priority, task_file
from fsqueue.format.layout import Layout
from fsqueue.format.models import DeadLetter
from fsqueue.format.names import Batch, Shard
from fsqueue.format.replay import DEAD, ReplayState
from fsqueue.format.wording import counted
from fsqueue.interruptions import let_out
from fsqueue.storage import journals, letter_files, retrying
from fsqueue.storage.locked_batch import LOST, LockedBatch
from fsqueue.storage.retrying import EndedTask
from fsqueue.storage.store import Store

logger = logging.getLogger("fsqueue")

Where = Callable[[DeadLetter], bool]
END_BYTES = 1 << 14
"""Minimum number of bytes that are read of the end of a file, for its latest letters."""
UPKEEP_WAIT_S = 2.0
"""Time that upkeep waits for the lock of a file of dead letters."""


# -- writing -----------------------------------------------------------------------------------------


def write(
    locked: LockedBatch, tasks: Iterable[int], payload_of: Callable[[int], Any], *, certain: bool, timeout_s: float
) -> int:
    """Append letters for buried `tasks`. The batch's lock keeps others from doing the same.

    `certain`: they were buried just now. Otherwise those are left out that have a line already,
    and what is there is synced. Returns how many were written.
    """
    store, log = locked.store, locked.log
    wanted = [index for index in tasks if index not in log.lettered]
    assert all(locked.replay_state.state[index] == DEAD for index in wanted), "a task gets a letter and is not dead"
    shard = log.layout.shard(log.batch)
    sync = store.sync_inserts and not certain
    with letter_files.locked(store, log.layout, shard, timeout_s, durable=store.sync_inserts) as file:
        if wanted and not store.fs.same_file(log.fd, log.path):
            return 0  # this process has lost the batch's lock, and another has finished it, which includes its letters
        if wanted and not certain:
            there, settled = letter_files.dead_and_settled(file)
            wanted = [index for index in wanted if names.task_id(log.batch, index) not in there | settled]
        if wanted:
            state, more = locked.replay_state, locked.key_and_priority
            letters = [_letter(log.batch, state, index, payload_of(index), more(index)) for index in wanted]
            file.append(b"".join(letters), sync)
        elif sync:
            store.fs.fsync(file.fd)
    log.lettered.update(wanted)
    return len(wanted)


def restore(store: Store, batch: str, replay_state: ReplayState, tasks: Iterable[int]) -> None:
    """Write the letters of a finished batch that are missing all the same, without the payloads, which are gone."""
    shard = store.layout.shard(batch)
    with letter_files.locked(store, store.layout, shard, durable=store.sync_inserts) as file:
        there, settled = letter_files.dead_and_settled(file)
        for line in letter_files.given_back(store, shard, names.birth_ms(batch)):
            settled.update(one for one in line["ids"] if isinstance(one, str))
        lost = [index for index in tasks if names.task_id(batch, index) not in there | settled]
        file.append(b"".join(_letter(batch, replay_state, index, LOST) for index in lost), True)


def _letter(
    batch_id: str, replay_state: ReplayState, index: int, payload: Any, more: Mapping[str, Any] = MappingProxyType({})
) -> bytes:
    holder, blamed = replay_state.holder[index], replay_state.blamed.get(index)
    letter = {
        "op": "dead",
        "at": replay_state.since[index],
        "id": names.task_id(batch_id, index),
        "reason": replay_state.errors.get(index, ""),
        "attempt": replay_state.attempts[index],
        "worker": blamed or (holder.worker if holder is not None else None),
        **({"used": used} if (used := replay_state.used.get(index)) is not None else {}),
        **({} if payload is LOST else task_file.payload_fields(payload)),
        **more,
    }
    return orjson.dumps(letter, option=orjson.OPT_APPEND_NEWLINE)


# -- reading -----------------------------------------------------------------------------------------


class Ids:
    """The findings of one reading of all letters, or of those of some shards: the ids that are dead, those that were
    dealt with, what retries staged."""

    def __init__(self, store: Store, only: Sequence[Shard] | None = None) -> None:
        self.dead: set[str] = set()
        self.settled: set[str] = set()
        self.staged: set[str] = set()
        """The names of the files in `staging/` that are as good as published, if they are there still."""
        layout = store.layout

        def read(_: Shard, file: journals.Journal) -> tuple[set[str], set[str], frozenset[str]]:
            return *letter_files.dead_and_settled(file), retrying.read_on(store, file)

        for some, others, staged in letter_files.each(store, layout, read, only):
            self.dead |= some
            self.settled |= others
            self.staged |= staged
        retrying.forget_published(store)

    def known(self) -> set[str]:
        """Return the ids that have a letter, or had one that was dealt with."""
        return self.dead | self.settled


def known(store: Store, shard: Shard) -> set[str]:
    """Return the ids in a shard that have a letter, or had one that was dealt with."""
    found: set[str] = set()
    for ids in letter_files.each(store, store.layout, lambda _, file: letter_files.dead_and_settled(file), [shard]):
        found.update(*ids)
    for line in letter_files.given_back(store, shard):
        found.update(one for one in line["ids"] if isinstance(one, str))
    return found


def sizes(store: Store) -> dict[Shard, int]:
    """Return the size of each file of letters in bytes."""
    return {shard: state.size for shard, (_, state) in states(store).items()}


def states(store: Store, strict: bool = False) -> dict[Shard, tuple[letter_files.Version, letter_files.State]]:
    """Return a value for each file of letters: another one, if anything was appended, or a file was replaced.

    `strict`: HiddenTasks if something else stands in the place of one of them, or of their directory.
    """
    layout = store.layout
    listed = letter_files.shards(store, layout, strict)
    found = {shard: letter_files.look(store, layout, shard, strict) for shard in listed}
    return {shard: seen for shard, seen in found.items() if seen is not None}


def letters(store: Store, only: Shard | None = None) -> Iterator[DeadLetter]:
    """Yield all dead letters, shard by shard, or those of one; memory is bounded by a shard's ids.

    HiddenTasks if something else stands in the place of a file of letters, or of their directory.
    """
    layout = store.layout
    for shard in letter_files.shards(store, layout, strict=True) if only is None else [only]:
        yield from _letters_in(store, layout, shard)


def _letters_in(store: Store, layout: Layout, shard: Shard) -> Generator[DeadLetter, None, None]:
    """Yield the letters of a shard. If another host replaces the file meanwhile, it is read again: none comes twice."""
    given: set[str] = set()
    path = layout.dead(shard)
    for is_last in (False, True):
        try:
            with journals.opened(store.fs, path) as file:
                for letter in _letters(file):
                    if letter.id not in given:
                        given.add(letter.id)
                        yield letter
                    del letter
                return
        except FileNotFoundError:
            return
        except OSError as error:
            let_out(error)
            if error.errno in NOT_FILES:
                raise store.fs.hidden(path, error.errno or 0) from error
            if error.errno != errno.ESTALE or is_last:
                raise


def latest(store: Store, bytes_max: int) -> tuple[list[DeadLetter], bool]:
    """Return the letters at the ends of the files, of which about `bytes_max` bytes in all are read; whether those are
    all.

    Letters that were dealt with are left out: what says so stands behind them.
    """
    found: list[DeadLetter] = []
    shards, whole, left = letter_files.shards_with_letters(store, store.layout), True, bytes_max
    share = max(END_BYTES, bytes_max // max(1, len(shards)))
    for shard in store.entropy.shuffled(shards):
        if left <= 0:
            return found, False
        for letters, size in letter_files.each(store, store.layout, lambda _, file: _latest(file, share), [shard]):
            found += letters
            left -= min(size, share)
            whole = whole and size <= share
    return found, whole


def _latest(file: journals.Journal, bytes_max: int) -> tuple[Iterable[DeadLetter], int]:
    """Return the letters at the end of one file, of which about `bytes_max` bytes are read; and its size."""
    dead: dict[str, DeadLetter] = {}
    settled: set[str] = set()
    for _, line in file.lines_from_end(bytes_max):
        record = letter_files.parse(line)
        if record is not None and record["op"] == "dead":
            if record["id"] not in settled:
                dead[record["id"]] = _decode(record)
        elif record is not None:
            for one in record["ids"]:
                if isinstance(one, str):
                    settled.add(one)
                    dead.pop(one, None)  # a `dead` line behind this one is a repeat
    return dead.values(), file.length()


def letter_of(store: Store, task_id: str) -> DeadLetter | None:
    """Return the dead letter of one task; None if there is none."""
    shard = store.layout.shard(names.parse_task_id(task_id)[0])
    with closing(_letters_in(store, store.layout, shard)) as found:
        return next((letter for letter in found if letter.id == task_id), None)


def settled_as(store: Store, task_id: str) -> tuple[str, str | None] | None:
    """Return how a dead letter was dealt with: `retried` and the new id of its task, or `purged`; None if it
    was not.
    """
    line = _settling(store, names.parse_task_id(task_id)[0], lambda line: task_id in line["ids"])
    if line is None:
        return None
    new = line.get("as")
    return line["op"], names.task_id(new, line["ids"].index(task_id)) if isinstance(new, str) else None


def repeats(store: Store, task_id: str) -> str | None:
    """Return the ended task that was inserted again as this one; None if none was. Both are of one shard."""
    batch, index = names.parse_task_id(task_id)
    line = _settling(store, batch, lambda line: line.get("as") == batch and index < len(line["ids"]))
    old = None if line is None else line["ids"][index]
    return old if isinstance(old, str) else None


def retried(store: Store, ids: Iterable[str]) -> dict[str, str]:
    """Return those of some ended tasks that were inserted again, by their ids, and the ids of the new tasks.

    A queue that keeps no history forgets them. One that does forgets them with the history.
    """
    wanted: dict[Shard, set[str]] = {}
    since: dict[Shard, Batch] = {}
    for task_id in ids:
        batch = names.parse_task_id(task_id)[0]
        shard = store.layout.shard(batch)
        wanted.setdefault(shard, set()).add(task_id)
        since[shard] = min(batch, since.get(shard, batch))  # their names begin with their times
    found: dict[str, str] = {}
    for shard, some in wanted.items():
        for line in _settled(store, since[shard]):
            new = line.get("as")
            if isinstance(new, str):
                places = enumerate(line["ids"])
                found.update((old, names.task_id(new, place)) for place, old in places if old in some)
    return found


def _settled(store: Store, batch: Batch) -> Iterator[dict[str, Any]]:
    """Yield the `retried` and `purged` lines of a batch's shard, as far back as its birth."""
    shard = store.layout.shard(batch)
    for lines in letter_files.each(store, store.layout, lambda _, file: [*letter_files.settling(file)], [shard]):
        yield from lines
    yield from letter_files.given_back(store, shard, names.birth_ms(batch))


def _settling(store: Store, batch: Batch, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
    """Return the first `retried` or `purged` line that is wanted, among the lines of a batch's shard since the
    batch was made.
    """
    return next(filter(is_wanted, _settled(store, batch)), None)


def _letters(file: journals.Journal) -> Iterator[DeadLetter]:
    """Yield the letters of a file that were not dealt with. A repeat of one is dropped."""
    passed = letter_files.settled(file)
    for line in letter_files.records(file):
        if line["op"] == "dead" and line["id"] not in passed:
            passed.add(line["id"])
            yield _decode(line)
        del line  # it may be long: it is not held while the next one is read


def _decode(line: dict[str, Any]) -> DeadLetter:
    try:
        payload, is_lost = task_file.decode_fields(line), False
    except ValueError:
        payload, is_lost = None, True  # the letter is still there to be seen
    at, attempt, worker = line.get("at"), line.get("attempt"), line.get("worker")
    key, urgency, used = line.get("key"), line.get("priority"), movements.usage(line.get("used"))
    return DeadLetter(
        id=line["id"],
        payload=payload,
        reason=str(line.get("reason", "")),
        at=at / 1000 if isinstance(at, int) else 0.0,
        attempt=attempt if isinstance(attempt, int) else 0,
        worker=worker if isinstance(worker, dict) else None,
        payload_lost=is_lost,
        key=key if isinstance(key, str) else None,
        priority=None if priority.fault(urgency) is not None else urgency,
        cpu_s=None if used is None else used[0] / 1000,
        peak_memory_bytes=None if used is None else used[1] * 1024,
    )


# -- settling ------------------------------------------------------------------------------------------


def purge(store: Store, wanted: set[str] | None, where: Where | None) -> int:
    """Remove dead letters for good. Their tasks do not count as inserted any more, either. Returns how many."""

    def act(layout: Layout, file: journals.Journal, part: list[EndedTask]) -> None:
        file.append(retrying.settled_line(store, "purged", part), store.sync_inserts)

    return _settle(store, wanted, where, lambda letter: EndedTask(letter.id), act)


def retry(store: Store, wanted: set[str] | None, where: Where | None) -> int:
    """Insert the tasks of letters again, with new ids and no attempts charged. Returns how many.

    Batches are bounded and sorted as inserted ones are. Each is inserted under the file's lock: `retrying` has the
    steps. Letters whose payloads are lost stay, and are warned of.
    """
    bytes_max, lost = 2 * store.settings.task_bytes_max, 0

    def anew(letter: DeadLetter) -> EndedTask | None:
        nonlocal lost
        lost += letter.payload_lost
        if letter.payload_lost:
            return None
        line = task_file.encode_task(letter.payload, bytes_max, priority=letter.priority)
        return EndedTask(letter.id, line, letter.priority)

    count = _settle(store, wanted, where, anew, partial(retrying.insert_again, store))
    if lost:
        logger.warning(
            "%s of %s cannot be retried: the payload is lost. Insert the tasks anew from where they came from, then "
            "purge the letters.",
            counted(lost, "dead letter"),
            store.path,
        )
    return count


def _settle(
    store: Store,
    wanted: set[str] | None,
    where: Where | None,
    task_of: Callable[[DeadLetter], EndedTask | None],
    act: Callable[[Layout, journals.Journal, list[EndedTask]], None],
) -> int:
    """Have `act` settle letters of locked files, some at a time; returns how many. Those of which `task_of` makes None
    are left out.

    No lock is held while `where` runs: it may be slow, or settle letters itself. Letters never change, so its answer
    holds until they are locked; those that were settled meanwhile are not found any more.
    """
    settlement = retrying.Settlement(store, "settling dead letters", "Dead letters settled")
    layout = settlement.layout
    shards = None if wanted is None else {layout.shard(names.parse_task_id(task_id)[0]) for task_id in wanted}
    with settlement.explaining_errors():
        for shard in letter_files.shards(store, layout, strict=True):
            chosen = wanted
            if shards is not None and shard not in shards:
                continue
            if where is not None:
                found = _letters_in(store, layout, shard)
                chosen = {letter.id for letter in found if (wanted is None or letter.id in wanted) and where(letter)}
                if not chosen:
                    continue
            with settlement.locked(shard) as file:
                if file is None:
                    continue
                letters = (letter for letter in _letters(file) if chosen is None or letter.id in chosen)
                for part in retrying.parts(store, filter(None, map(task_of, letters))):
                    act(layout, file, part)
                    settlement.count += len(part)
                _give_back(store, layout, shard, file)
    return settlement.count


def _give_back(store: Store, layout: Layout, shard: Shard, file: letter_files.LetterFile) -> int:
    """Replace a locked file of letters by one without the settled letters, if that is worth it. What fails is
    told, and is left to upkeep.
    """
    try:
        return letter_files.give_back(store, layout, shard, file)
    except FileNotFoundError:
        raise  # a purge took the files
    except (OSError, FsqueueError) as error:
        let_out(error)
        logger.warning(
            "the room of settled dead letters in %s is not given back yet (%s); 'fsqueue gc' will do it",
            layout.dead(shard),
            error,
        )
        return 0


def give_back(store: Store, shard: Shard) -> int:
    """Give back the room of settled letters in a shard's file, for upkeep. Return how many bytes. LockTimeout."""
    with letter_files.locked(store, store.layout, shard, UPKEEP_WAIT_S) as file:
        return _give_back(store, store.layout, shard, file)
