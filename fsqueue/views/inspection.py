"""Count and list tasks: `status`, `tasks`, `peek`, `task` (docs/design.md, section 6).

A look takes no log's lock. It publishes what a decided commit or a recorded retry has still to publish, and changes
nothing else. If batches keep finishing while `status` reads, it locks the counters for a moment. What is read while
others work is consistent batch by batch. The numbers of `status` add up: *inserted* is their sum, and no completion is
counted both from a log and from a counter.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

from fsqueue.errors import LockTimeout, StorageError, TaskNotFound
from fsqueue.filesystem import PassingOverStrays
from fsqueue.format import names, task_file
from fsqueue.format.models import CANCELLED as IS_CANCELLED
from fsqueue.format.models import COMPLETED as IS_COMPLETED
from fsqueue.format.models import DEAD as IS_DEAD
from fsqueue.format.models import DELAYED as IS_DELAYED
from fsqueue.format.models import LEASED as IS_LEASED
from fsqueue.format.models import WAITING as IS_WAITING
from fsqueue.format.models import DeadLetter, State, Status, TaskInfo
from fsqueue.format.names import Batch, CounterName, Shard, TaskFileName
from fsqueue.format.priority import Rank, rank_of
from fsqueue.format.replay import AVAILABLE, CANCELLED, COMPLETED, DEAD, LEASED, SKIPPED, ReplayState
from fsqueue.interruptions import suppress
from fsqueue.storage import (
    commits,
    counters,
    deadletters,
    decided,
    history,
    listing,
    payloads,
    published,
    retrying,
    staging,
)
from fsqueue.storage.store import Store
from fsqueue.views import finished, task_history

ROUNDS = 2
"""Number of times to read a status because batches finish meanwhile, before it holds the counters for a moment."""
HOLD_S = 0.5
"""Seconds to wait for the lock of one counter."""
LOOKS = 10
"""Maximum number of looks for a task file that others may be renaming."""
COMMITS_MAX = 10
"""Maximum number of times to read a status again because something was committed while it was read."""


# -- status -------------------------------------------------------------------------------------


def status(store: Store, exact: bool = True) -> Status:
    """Return how many tasks are in which state. `exact` reads the logs of the batches at work; else names alone.

    Names alone call every task of a batch waiting that has one, and know of completions and dead
    letters only what finished batches left: a cheap estimate. Of a batch that takes inserts the log is read in any
    case: its file's name does not tell how many tasks it has.
    """
    store.verify_place()
    while True:
        found = _status(store, exact)
        if not store.verify_place():  # what is seen while a queue is purged or deleted does not matter
            return found


def _status(store: Store, exact: bool) -> Status:
    there = listing.parts(store)
    if store.layout.staging in there:
        retrying.publish_pending(store)
    if store.layout.commits in there:
        apply_pending(store)
    before: _Seen | None = None
    for _ in range(ROUNDS):
        seen = _look(store, exact)
        there = listing.parts(store)
        now = _counted(store, there)
        # A retry turns a letter into a batch: if letters were settled meanwhile, its tasks may have been seen as both.
        vanished = seen.counted[1] != now[1] or before is None or not before.batches() <= seen.batches()
        counted = seen.counted == now or not vanished
        if counted and seen.is_sure and seen.decided == _decided(store, there):
            return seen.sum_up(store)
        before = seen
    with ExitStack() as holding:  # batches finish faster than they can be looked at: keep them from being counted
        for number in counters.NUMBERS:
            # This user may not write it, or its holder is stopped: the status is an estimate then
            with suppress(OSError, LockTimeout):
                holding.enter_context(store.locked(store.layout.counter(number), HOLD_S))
        seen = _look(store, exact)
        for _ in range(COMMITS_MAX):
            if seen.decided == commits.decided(store) and seen.counted[1] == deadletters.states(store, strict=True):
                break
            seen = _look(store, exact)
        return seen.sum_up(store)


def apply_pending(store: Store) -> None:
    """Publish what was committed, if this user may write. What cannot be published is counted all the same."""
    with suppress(OSError, StorageError):
        commits.apply_pending(store)


Counted = tuple[dict[CounterName, int], Mapping[Shard, object]]
"""The sizes of the completion counters, and the states of the files of dead letters."""


def _counted(store: Store, there: Container[str]) -> Counted:
    """Return sizes of completion counters and states of dead letters' files. `there`: a listing of the generation."""
    layout = store.layout
    return (
        counters.sizes(store) if layout.completions in there else {},
        deadletters.states(store, strict=True) if layout.dead_letters in there else {},
    )


def _decided(store: Store, there: Container[str]) -> set[str]:
    """Return the names of all records of commits. `there`: a listing of the generation's directory."""
    return commits.decided(store) if store.layout.commits in there else set()


class _Tally(NamedTuple):
    """How many tasks of a batch are in which state, by its log; `counts`: the counters' bytes that it announced."""

    waiting: int
    delayed: int
    leased: int
    completed: int
    counts: tuple[tuple[str, int, int], ...]


class _Seen:
    """Hold what one look has seen of everything. It reads in this order:

    1. What finished batches left (`counted`, `dead`). So a batch that is still there is counted by what its files say,
       unless its log announced bytes that were in the counters already.
    2. The logs of a shard, before its task files. So a batch that has only a task file was untouched at that moment,
       and no letter or counter knows of it.
    3. The logs again. A file that is just being renamed may be missing in a listing, but then it has a log.

    A look misses a batch that was counted and vanished in between. Then `counted` has changed since, and a batch of the
    look before is missing. It may see a part only of what was committed meanwhile. Then `decided` has changed since.
    """

    def __init__(self, counted: Counted, decided: set[str], letters: deadletters.Ids) -> None:
        self.counted = counted
        self.decided = decided
        self.dead = letters.dead
        self.settled = letters.settled
        self.is_sure = True
        """Whether no batch lost its log and its file between the listing and the reading."""
        self.files: dict[Batch, TaskFileName] = {}
        self.at_work: dict[Batch, _Tally] = {}
        """What the logs say. A replay state is some 40 bytes a task: it is summed up at once, and not kept."""

    def batches(self) -> set[str]:
        """Return all batches that the look has seen."""
        return self.files.keys() | self.at_work.keys()

    def add(self, store: Store, batch: Batch, replay_state: ReplayState) -> None:
        """Count what a log says now. A batch that is added again replaces what was counted of it."""
        now = store.clock.now_ms()
        waiting = delayed = leased = 0
        untouched = replay_state.state.count(AVAILABLE)
        for index in replay_state.touched:
            state, is_later = replay_state.state[index], replay_state.since[index] > now
            untouched -= state == AVAILABLE
            if state == LEASED and is_later:
                leased += 1
            elif state == AVAILABLE and is_later:
                delayed += 1
            elif state in (LEASED, AVAILABLE):
                waiting += 1
        if replay_state.available_at > now:
            delayed += untouched
        else:
            waiting += untouched
        if replay_state.done[DEAD]:
            letters = (names.task_id(batch, index) for index, state in enumerate(replay_state.state) if state == DEAD)
            self.dead.update(letter for letter in letters if letter not in self.settled)
        self.at_work[batch] = _Tally(waiting, delayed, leased, replay_state.done[COMPLETED], tuple(replay_state.counts))

    def sum_up(self, store: Store) -> Status:
        """Return the numbers."""
        now = store.clock.now_ms()
        waiting = sum(name.tasks for name in self.files.values() if name.available_at <= now)
        delayed = sum(name.tasks for name in self.files.values()) - waiting
        sizes = {str(name): size for name, size in self.counted[0].items()}
        leased, completed = 0, sum(counters.completed(store, self.counted[0]).values())
        for batch, tally in self.at_work.items():
            waiting, delayed, leased = waiting + tally.waiting, delayed + tally.delayed, leased + tally.leased
            completed += tally.completed - sum(
                counters.there(store, store.layout, batch, number, offset, min(count, sizes.get(number, 0) - offset))
                for number, offset, count in tally.counts
            )
        return Status(waiting, delayed, leased, completed, len(self.dead))


def _read_logs(store: Store, seen: _Seen, shard: Shard, touched: list[Batch]) -> None:
    """Replay the logs of these batches, whose task files, if any, were seen before."""
    for batch in dict.fromkeys(touched):
        name = seen.files.get(batch)
        if name is not None and name.inserted is not None and not name.is_open:
            waiting = listing.waiting_if_sealed(store, batch)
            if waiting is not None:
                seen.at_work[batch] = _Tally(waiting, 0, 0, 0, ())
                continue
        replay_state = listing.read_present_state(store, batch)
        if replay_state is not None:
            seen.add(store, batch, replay_state)
        elif batch in seen.files and batch not in listing.task_files(store, shard):
            seen.is_sure = False  # it has finished since, or a worker has just begun with it


def _look_into(store: Store, seen: _Seen, shard: Shard, has_logs: bool) -> None:
    touched = listing.logs(store, shard) if has_logs else []
    files = listing.task_files(store, shard)
    touched += listing.logs(store, shard) if has_logs else []
    seen.files.update(files)
    _read_logs(store, seen, shard, touched)


def status_of_shard(store: Store, shard: Shard) -> Status:
    """Count the tasks of one shard, for what adds shards up; of the completed ones those that no counter holds yet.

    While others work this is a hint: a batch that finishes meanwhile may be missing, or be in a counter, too.
    """
    seen = _Seen(({}, {}), set(), deadletters.Ids(store, [shard]))
    _look_into(store, seen, shard, True)
    for batch in seen.at_work:
        seen.files.pop(batch, None)
    if any(tally.counts for tally in seen.at_work.values()):
        seen.counted = counters.sizes(store), {}
    found = seen.sum_up(store)
    return replace(found, completed=found.completed - sum(counters.completed(store, seen.counted[0]).values()))


def _look(store: Store, exact: bool) -> _Seen:
    there = listing.parts(store)
    counted = _counted(store, there)
    letters = deadletters.Ids(store, None if store.layout.dead_letters in there else [])
    seen = _Seen(counted, _decided(store, there), letters)
    if store.layout.staging in there:
        retried = [name for name in staging.files(store, store.layout, strict=True) if str(name) in letters.staged]
        seen.files.update({name.batch: name for name in retried})  # as good as published
    if store.layout.commits in there:
        seen.files.update(commits.waiting(store, strict=True))  # as good as published, too
    begun = listing.shards_with_logs(store) if exact else frozenset[Shard]()
    for shard in listing.shards(store):
        _look_into(store, seen, shard, shard in begun)
    if exact:
        for shard in sorted(listing.shards_with_logs(store) - begun):
            _read_logs(store, seen, shard, listing.logs(store, shard))
    else:
        for batch in [name.batch for name in seen.files.values() if name.is_open]:  # whose names promise nothing
            _read_logs(store, seen, store.layout.shard(batch), [batch])
    for batch in seen.at_work:
        seen.files.pop(batch, None)
    return seen


DONE_MAX = 1_000
"""Maximum number of batches of a queue of which a check keeps that all of their tasks have outcomes."""
COLLECTS_MAX = 4
"""Maximum number of looks at everything in a row, until two have found the same."""


def two_agree(collect: Callable[[], object]) -> bool:
    """Return whether two looks in a row found the same besides tasks without an outcome, and no such task.

    `collect` looks at all that is concerned, and returns what is there; None if a task has no outcome. Then there was
    an instant between the two at which none was left (docs/design.md, section 6.1). False: something is left, or others
    work so fast that no two looks agreed.
    """
    before = None
    for _ in range(COLLECTS_MAX):
        found = collect()
        if found is None:
            return False
        if found == before:
            return True
        before = found
    return False


def proof(look: Callable[[], bytes | None]) -> bytes | None:
    """Return what two looks in a row have found, as `two_agree` asks for them; None where that says False.

    If another proof, whose looks begin after this, is the same, then nothing was left in between.
    """
    found: list[bytes | None] = []

    def collect() -> bytes | None:
        found.append(look())
        return found[-1]

    return found[-1] if two_agree(collect) else None


class _Nothing(NamedTuple):
    """What a look at a queue with nothing left has found. None of it ever comes back to what it was once.

    A task that got its outcome between two looks has changed it: its batch is there, with more tasks than before, or it
    has ended, and then a counter has grown or a file of dead letters is another one. docs/design.md, section 6.1, goes
    through all that may become of a task.
    """

    generation: int
    ended: frozenset[tuple[Batch, int, int]]
    """The batches that are there still, each with how many tasks were inserted into it. All of them have outcomes; or
    the batch has lost its task file: then with the length of its log, else 0. If others rename the file all the time, a
    listing may miss it, too."""
    counted: dict[CounterName, int]
    """The sizes of the completion counters: batches that have ended with completed tasks."""
    letters: Mapping[Shard, object]
    """The states of the files of dead letters: batches that have ended with dead ones, and what was retried."""
    cancelled: int
    """Batches that have ended in any other way."""

    def digest(self) -> bytes:
        """Return a digest of a look, 16 bytes: a group may have too many queues to keep what each look found."""
        sizes, letters = (
            sorted((str(name), str(value)) for name, value in part.items()) for part in (self.counted, self.letters)
        )
        text = repr((self.generation, sorted(self.ended), sizes, letters, self.cancelled))
        return hashlib.blake2b(text.encode(), digest_size=16).digest()


class DrainCheck:
    """Whether there was an instant at which nothing was waiting, delayed or leased in any of these queues.

    The only judge of "drained": of one queue, and of several. To ask each of several queues by itself proves nothing:
    a task may insert the next one into a queue that was asked before (docs/design.md, section 6.1). Cheap to ask
    again: it begins where something was left. Not thread-safe.
    """

    def __init__(self, *stores: Store) -> None:
        self._remains = [_Remains(store) for store in stores]
        """The queue in which something was left the last time comes first."""
        self.store = stores[0]
        """The queue that was looked at last: to explain an error of the system."""

    def __call__(self) -> bool:
        """Look. False: something is left, or others work so fast that no two looks agreed. QueueNotFound."""
        return not self._has_left() and two_agree(self._collect)

    def look(self) -> bytes | None:
        """Look once; None if something is left. Otherwise a digest of what is there besides: two that are equal, with
        an instant in between, prove that nothing was left at that instant. QueueNotFound.
        """
        found = None if self._has_left() else self._collect()
        return None if found is None else b"".join(nothing.digest() for nothing in found)

    def _has_left(self) -> bool:
        """Return whether something is left where something was left the last time."""
        for remains in self._remains:
            self.store = remains.store
            remains.store.refresh()
        self.store = self._remains[0].store
        return self._remains[0].is_where_it_was()

    def _collect(self) -> list[_Nothing] | None:
        """Look at all queues, one after the other; None if something is left in one."""
        found: list[_Nothing] = []
        for remains in self._remains:
            self.store = remains.store
            nothing = remains.collect()
            if nothing is None:
                self._remains.remove(remains)
                self._remains.insert(0, remains)
                return None
            found.append(nothing)
        return found


class _Remains:
    """Look for what is left in one queue."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._hint: Shard | None = None
        """The shard in which something was left the last time."""
        self._left: TaskFileName | None = None
        """The task file in which something was left the last time."""
        self._patience = decided.UpdatePatience()
        self._done: dict[Batch, tuple[int, int]] = {}
        """Batches in which all tasks have outcomes: how long the log was, and how many tasks were inserted."""

    def is_where_it_was(self) -> bool:
        """Return whether something is left where something was left the last time."""
        if self._left is not None and self._is_there(self._left) and self._work_in(self._left)[0]:
            return True
        return self._hint is not None and self._is_at_work(self._hint, set())

    def collect(self) -> _Nothing | None:
        """Return what is there besides tasks without an outcome; None if there are such tasks.

        The order proves it. A task moves from what is pending to its shard, and from there to what batches leave that
        have ended: it cannot pass this look on its way.
        """
        store = self.store
        while True:
            layout, there = store.layout, listing.parts(store)
            if layout.staging in there and retrying.pending(store, strict=True):
                retrying.publish_pending(store)
                return None  # what was committed may be done or not: the next look tells
            if layout.commits in there and commits.apply_pending(store, strict=True):
                return None
            ended: set[tuple[Batch, int, int]] = set()
            for shard in listing.shards(store):
                if self._is_at_work(shard, ended):
                    self._hint = shard
                    return None
            there = listing.parts(store)  # anew: what ends meanwhile may be the first to leave something there
            found = _Nothing(
                store.queue_state.generation,
                frozenset(ended),
                *_counted(store, there),
                counters.cancelled(store) if layout.cancelled in there else 0,
            )
            if not store.verify_place():  # a deleted queue is not a drained one; what was drained had been purged
                return found

    def _is_at_work(self, shard: Shard, ended: set[tuple[Batch, int, int]]) -> bool:
        """Return whether a task in a shard has no outcome. Add the batches to `ended` in which all have one.

        The logs are listed after the files: a file that is missing because it is being renamed has a log. So has a
        batch that is just being removed. A batch counts as one that has lost its file if two listings do not show that.
        A renaming stands in the log before it is done. So while the log is as long as at the look before, there was one
        at most, and it cannot have hidden the file from all listings of both looks.
        """
        self._left = None
        files = listing.task_files(self.store, shard)
        for batch, name in files.items():
            has_work, count = self._work_in(name)
            if has_work:
                self._left = name
                return True
            ended.add((batch, count, 0))
        for batch in listing.logs(self.store, shard):
            if batch in files:
                continue
            replay_state = self._state_of(batch)
            has_left = replay_state is None or replay_state.remaining > 0  # None: fsck renames what has an empty log
            if (replay_state and replay_state.prepared) or (
                has_left and batch in listing.task_files(self.store, shard)
            ):
                return True
            if replay_state is not None and _is_held(replay_state, self.store.clock.now_ms()):
                return True  # a worker has read its payload, and may complete it
            if replay_state is not None:  # a file that stays away was removed: its tasks are lost
                ended.add((batch, replay_state.count, listing.log_bytes(self.store, batch) if has_left else 0))
        return False

    def _is_there(self, name: TaskFileName) -> bool:
        """Return whether a task file still has this name. If it was renamed, a listing tells."""
        with PassingOverStrays():
            return self.store.fs.exists(self.store.layout.task_file(name))
        return False  # something else has the name, or its directory

    def _work_in(self, name: TaskFileName) -> tuple[bool, int]:
        """Return whether a task of a batch has no outcome, and how many tasks were inserted into it.

        The file may outlive the outcomes: its finisher died, or is about to remove it.
        """
        end, count = self._done.get(name.batch, (0, 0))
        if end and listing.log_bytes(self.store, name.batch) == end:
            return False, count  # each record makes a log longer
        replay_state = self._state_of(name.batch)
        if replay_state is None:
            return not name.is_open, 0
        if replay_state.remaining > 0 or replay_state.prepared:
            return True, replay_state.count
        if len(self._done) < DONE_MAX:
            self._done[name.batch] = replay_state.end, replay_state.count
        return False, replay_state.count

    def _state_of(self, batch: Batch) -> ReplayState | None:
        """Return the state of a batch. What an old update has prepared in it, is decided first.

        Otherwise an updater that died would keep the queue from being drained, if no worker looks into it any more.
        """
        found = listing.read_present_state(self.store, batch)
        if found is not None and found.prepared and self._patience.decide(self.store, batch, found):
            return listing.read_present_state(self.store, batch)
        return found


def _is_held(replay_state: ReplayState, now: int) -> bool:
    """Return whether a lease holds a task of a batch."""
    return any(
        replay_state.state[index] == LEASED and replay_state.since[index] > now for index in replay_state.touched
    )


# -- tasks ----------------------------------------------------------------------------------------

_NAMES: dict[int, State] = {COMPLETED: IS_COMPLETED, DEAD: IS_DEAD, CANCELLED: IS_CANCELLED}
_UNFINISHED = frozenset((AVAILABLE, LEASED))
_BY_THE_LOG = {IS_LEASED: frozenset((LEASED,)), IS_DELAYED: frozenset((AVAILABLE,))}
"""The states by which the log calls tasks that are shown as leased or delayed. One that waits may have either: its
lease may have run out."""


def tasks(store: Store, state: str | None = None) -> Iterator[TaskInfo]:
    """Yield the unfinished tasks, or those in a state; finished ones as far as letters and history know them."""
    store.verify()
    if state in (None, IS_WAITING, IS_DELAYED, IS_LEASED):
        among = _UNFINISHED if state is None else _BY_THE_LOG.get(state, _UNFINISHED)
        for batch, name in _unfinished_batches(store, state):
            for info in of_batch(store, batch, name, whole=False, among=among):
                if info.state == state or (state is None and info.state in (IS_WAITING, IS_DELAYED, IS_LEASED)):
                    yield info
    elif state == IS_DEAD:
        for letter in deadletters.letters(store):
            yield _of_letter(letter, store.name_in_group)
    else:
        seen: set[str] = set()
        for found in partly_done(store):
            seen.add(found.batch)
            yield from (info for info in _of_finished(store, found) if info.state == state)
        for found in finished.batches(store):
            if found.batch not in seen:
                yield from (info for info in _of_finished(store, found) if info.state == state)


def _unfinished_batches(store: Store, state: str | None = None) -> Iterator[tuple[Batch, TaskFileName]]:
    """Return the batches that may have tasks without an outcome, or such in a state. Decided updates are applied."""
    apply_pending(store)
    return listing.published(store) if state is None else _where_it_can_be(store, state)


def unfinished_records(store: Store) -> Iterator[tuple[Batch, int, int, dict[str, Any]]]:
    """Yield batch, index, time of insertion (ms) and record of each task without an outcome: its `payload`, and its
    `key` and `priority` if it has them. Cheaper than `tasks`. A task that cannot be read is left out.
    """
    for batch, name in _unfinished_batches(store):
        seen = _state_and_lines(store, batch, name, whole=False)
        if seen is None:
            continue
        state, lines = seen
        for index in range(min(state.count, len(lines))):
            if state.state[index] not in _UNFINISHED:
                continue
            try:
                record = task_file.decode_task(lines[index])
            except ValueError:
                continue
            at = record["at"] if index in state.places else names.birth_ms(batch)
            if index in state.payloads:
                record["payload"] = None if state.payloads[index] is history.NOT_KEPT else state.payloads[index]
            yield batch, index, at, record


def _where_it_can_be(store: Store, state: str) -> Iterator[tuple[Batch, TaskFileName]]:
    """Yield the batches that may have tasks in a state: waiting, delayed or leased.

    Of a batch from which no worker has leased, the name of its task file tells. So leased tasks cost what is at work,
    not what is in the queue. Logs are listed after the task files: what is called untouched was so when its
    file was seen.
    """
    now = store.clock.now_ms()
    for shard in listing.shards(store):
        files = sorted(listing.task_files(store, shard).items())
        touched = set(listing.logs(store, shard))
        for batch, name in files:
            if batch not in touched:
                if state == (IS_DELAYED if name.available_at > now else IS_WAITING):
                    yield batch, name
            elif state != IS_LEASED or _is_leased_from(store, batch):
                yield batch, name


def _is_leased_from(store: Store, batch: Batch) -> bool:
    replay_state = listing.read_present_state(store, batch)
    return replay_state is not None and LEASED in replay_state.state


def of_batch(
    store: Store, batch: Batch, name: TaskFileName, whole: bool = True, among: frozenset[int] | None = None
) -> Iterator[TaskInfo]:
    """Yield the tasks of a batch that has (or had just now) a task file of this name, finished ones too.

    Unless it is to tell the `whole`, it says of those that were completed or cancelled no more than that they were.
    With `among`, only tasks whose log gives them one of these states: no other line of the task file is parsed.
    """
    seen = _state_and_lines(store, batch, name, whole)
    if seen is not None:
        yield from _of_replay_state(store, batch, *seen, among)


def _state_and_lines(
    store: Store, batch: Batch, name: TaskFileName, whole: bool
) -> tuple[ReplayState, list[bytes]] | None:
    """Return the state of a batch, and the lines of its tasks; None if it has finished.

    It may finish between the two looks. Then its tasks are not what the state says.
    """
    read = listing.read_replay_state if whole else listing.read_present_state
    if name.inserted is not None:
        state = read(store, batch)
        lines = listing.lines_in_log(store, batch, state) if state is not None else None
        return None if state is None or lines is None else (state, lines)
    lines = lines_of(store, name)  # none, if it was renamed or finished since it was listed
    state = read(store, batch)
    if state is None:
        return (untouched(name), lines) if lines else None
    if not lines and state.remaining and state.inserts is None:
        lines = lines_anywhere(store, batch, state)
    return None if lines is None else (state, lines)


def untouched(name: TaskFileName) -> ReplayState:
    """Return the state of a batch that has no log yet."""
    state = ReplayState()
    state.begin(name.count, name.available_at, 0)
    return state


def unfinished(store: Store, batch: Batch, indices: Iterable[int]) -> dict[int, TaskInfo]:
    """Return those of a batch's tasks that have no outcome, by their indices. It costs one batch, however many are
    asked for. What has no outcome is found in any case, as long as the queue was not purged.
    """
    for _ in range(LOOKS):
        replay_state = listing.read_present_state(store, batch)
        if replay_state is not None:
            if replay_state.inserts is not None:
                lines = listing.lines_in_log(store, batch, replay_state)
            else:
                lines = lines_anywhere(store, batch, replay_state) if replay_state.remaining else []
            if lines is None:
                continue  # it has finished meanwhile
            break
        name = listing.task_files(store, store.layout.shard(batch)).get(batch)
        lines = lines_of(store, name) if name is not None else []
        if name is not None and lines:
            replay_state = untouched(name)
            break
        if name is None and listing.read_present_state(store, batch) is None:
            return {}
    else:
        raise StorageError(f"Others rename the file of the batch {batch} all the time. Repeat.")
    now, queue = store.clock.now_ms(), store.name_in_group
    return {
        index: _info(batch, replay_state, index, lines, now, queue)
        for index in indices
        if index < replay_state.count and replay_state.state[index] in _UNFINISHED
    }


def record_of(store: Store, batch: Batch, index: int, replay_state: ReplayState) -> dict[str, Any]:
    """Return a task's `payload`, and its `key` and `priority` if it has them.

    TaskNotFound if the task file cannot be read any more. A payload that an update has given is known all the same.
    """
    replaced = {"payload": replay_state.payloads[index]} if index in replay_state.payloads else {}
    changed = {"priority": replay_state.changed[index]} if index in replay_state.changed else {}
    try:
        if index in replay_state.places:
            lines = listing.lines_in_log(store, batch, replay_state)
        else:
            lines = lines_anywhere(store, batch, replay_state)
        return task_file.decode_task((lines or [])[index]) | replaced | changed
    except (IndexError, ValueError):
        if replaced:
            return replaced | changed
        raise TaskNotFound(
            f"The payload of {names.task_id(batch, index)} cannot be read: its task file is damaged or gone."
        ) from None


def lines_of(store: Store, name: TaskFileName) -> list[bytes]:
    """Return the lines of a task file; none if it is not there under this name, or no file, or has no tasks."""
    if name.inserted is not None:
        return []
    with PassingOverStrays():
        return task_file.split_lines(published.content_of(store, store.layout.task_file(name)))
    return []


def lines_anywhere(store: Store, batch: Batch, replay_state: ReplayState) -> list[bytes] | None:
    """Return the lines of a batch's task file, whichever name it has: those in the log are tried, then a listing's.

    While others rename the file, the log is read anew. None if it is gone: the batch has finished. An empty list if the
    log is there and the file is not.
    """
    for _ in range(LOOKS):
        texts = (*published.listed(store, store.layout, batch), *reversed(replay_state.names))
        if lines := next(filter(None, (lines_of(store, name) for name in names.task_files_of(batch, texts))), []):
            return lines
        if (now := listing.read_replay_state(store, batch)) is None:
            return None
        replay_state = now
    return []


def _of_replay_state(
    store: Store,
    batch: str,
    replay_state: ReplayState,
    lines: list[bytes] | None,
    among: frozenset[int] | None = None,
) -> Iterator[TaskInfo]:
    now, queue = store.clock.now_ms(), store.name_in_group
    for index in range(replay_state.count):
        state = replay_state.state[index]
        if state != SKIPPED and (among is None or state in among):
            yield _info(batch, replay_state, index, lines, now, queue)


def partly_done(store: Store, only: Iterable[Batch] | None = None) -> Iterator[finished.FinishedBatch]:
    """Yield the batches at work in which tasks were completed, cancelled or buried, each with its whole log.

    None of a queue that forgets such tasks at once. `only`: these batches, whose logs are opened by their names.
    """
    if store.settings.keep_history:
        yield from with_outcomes(store, listing.with_logs(store) if only is None else only)


def with_outcomes(store: Store, batches: Iterable[Batch]) -> Iterator[finished.FinishedBatch]:
    """Yield those of these batches that have a log in which a task has an outcome, each with its whole log."""
    for batch in batches:
        found = _read_whole(store, batch)
        if any(found.replay_state.done):
            yield found


def _read_whole(store: Store, batch: Batch) -> finished.FinishedBatch:
    """Return a batch at work, with all its records and its tasks' lines."""
    records = task_history.decided_records(store, batch)
    found = finished.FinishedBatch(batch, records, [], store.settings.keep_payloads)
    if found.replay_state.opened and found.replay_state.inserts is None and any(found.replay_state.done):
        found.lines = lines_anywhere(store, batch, found.replay_state) or payloads.of_batch(store, batch)
    return found


def _of_finished(store: Store, found: finished.FinishedBatch) -> Iterator[TaskInfo]:
    """Yield the tasks of a finished batch, with what is kept of their payloads."""
    for info in _of_replay_state(store, found.batch, found.replay_state, None):
        if info.state != IS_DEAD:
            payload, key, priority = found.task(names.parse_task_id(info.id)[1])
            info = replace(info, payload=payload, key=key, priority=priority)
        yield info


def cancelled_of(store: Store, found: finished.FinishedBatch) -> Iterator[TaskInfo]:
    """Yield the cancelled tasks of a batch of which every record is known."""
    return (info for info in _of_finished(store, found) if info.state == IS_CANCELLED)


def buried_of(store: Store, found: finished.FinishedBatch) -> Iterator[TaskInfo]:
    """Yield the tasks of a batch that were given up, by its records. Their letters may not be written yet."""
    if not found.replay_state.done[DEAD]:
        return iter(())
    return (info for info in _of_finished(store, found) if info.state == IS_DEAD)


def _info(
    batch: str, replay_state: ReplayState, index: int, lines: list[bytes] | None, now: int, queue: str | None
) -> TaskInfo:
    state, since, holder = replay_state.state[index], replay_state.since[index], replay_state.holder[index]
    known = _NAMES.get(state)
    if known is None:
        if state == LEASED and since > now:
            known = IS_LEASED
        else:
            known = IS_DELAYED if state == AVAILABLE and since > now else IS_WAITING
    record: dict[str, Any] = {}
    if lines is not None and index < len(lines) and state in (AVAILABLE, LEASED):
        try:
            record = task_file.decode_task(lines[index])
        except ValueError:
            pass
    payload = record.get("payload")
    if index in replay_state.payloads and state not in (COMPLETED, CANCELLED):  # of these `FinishedBatch` tells
        replaced = replay_state.payloads[index]
        payload = None if replaced is history.NOT_KEPT else replaced
    born = record["at"] if index in replay_state.places and record else names.birth_ms(batch)
    return TaskInfo(
        id=names.task_id(batch, index),
        state=known,
        payload=payload,
        attempt=replay_state.attempts[index] + 1 if known in (IS_LEASED, IS_COMPLETED) else replay_state.charged(index),
        since=(holder.at if known == IS_LEASED and holder is not None else since or born) / 1000,
        available_at=since / 1000 if state == AVAILABLE and since else None,
        lease_until=since / 1000 if known == IS_LEASED else None,
        worker=holder.worker if holder is not None and state != AVAILABLE else None,
        error=replay_state.errors.get(index),
        result=replay_state.results.get(index),
        version=replay_state.version[index],
        key=record.get("key"),
        priority=replay_state.changed.get(index, record.get("priority")) if state <= LEASED else None,
        update=replay_state.frozen.get(index),
        queue=queue,
    )


def _of_letter(letter: DeadLetter, queue: str | None) -> TaskInfo:
    return TaskInfo(
        letter.id,
        IS_DEAD,
        letter.payload,
        letter.attempt,
        letter.at,
        worker=letter.worker,
        error=letter.reason,
        key=letter.key,
        priority=letter.priority,
        queue=queue,
    )


def task(store: Store, task_id: str) -> TaskInfo:
    """Return what is known of one task; TaskNotFound if neither the queue nor its history knows it."""
    batch, _ = names.parse_task_id(task_id)
    store.verify()
    name = listing.task_files(store, store.layout.shard(batch)).get(batch)
    seen = _state_and_lines(store, batch, name, whole=True) if name is not None else None
    found: Iterator[TaskInfo] = iter(())
    in_history = False
    if seen is not None:
        found = _of_replay_state(store, batch, *seen)
    elif (replay_state := listing.read_replay_state(store, batch)) is not None:
        found = _of_replay_state(store, batch, replay_state, None)
    elif (known_batch := finished.find(store, batch)) is not None:
        found, in_history = _of_finished(store, known_batch), True
    known = next((info for info in found if info.id == task_id), None)
    if known is not None and known.state in (IS_COMPLETED, IS_CANCELLED) and not store.settings.keep_history:
        raise TaskNotFound(f"The task {task_id} has ended, and {store.path} {task_history.FORGETS}")
    if known is not None and known.state in (IS_COMPLETED, IS_CANCELLED) and not in_history:
        at_work = _read_whole(store, batch)
        ended = at_work if at_work.replay_state.opened else finished.find(store, batch) or at_work  # meanwhile, perhaps
        known = next((info for info in _of_finished(store, ended) if info.id == task_id), known)
    if known is not None and known.state != IS_DEAD:
        return known
    letter = deadletters.letter_of(store, task_id)  # which has the payload, too
    if letter is not None:
        return _of_letter(letter, store.name_in_group)
    if known is not None:
        return known
    match deadletters.settled_as(store, task_id):
        case ("retried", str(new)):
            raise TaskNotFound(f"The task {task_id} has ended, and was retried: its new id is {new}.")
        case ("purged", _):
            raise TaskNotFound(f"The task {task_id} was a dead letter, and was purged. It is gone.")
    place = "nor in the history that it keeps." if store.settings.keep_history else f"which {task_history.FORGETS}"
    raise TaskNotFound(f"The task {task_id} is not in {store.path}, {place} Check the id and the queue.")


def peek(store: Store, n: int) -> list[TaskInfo]:
    """Return up to `n` waiting tasks, about in the order in which they would be leased. Nothing is leased."""
    n = min(n, sys.maxsize)
    store.verify()
    apply_pending(store)
    now = store.clock.now_ms()
    heads = [name for _, name in listing.published(store) if name.available_at <= now]
    found: list[tuple[Rank, str, TaskInfo]] = []
    for name in sorted(heads, key=lambda head: (head.rank, head.batch)):
        if len(found) == n and found[-1][:2] <= (name.rank, name.batch):
            break  # what this batch and later ones have is no more urgent
        among = of_batch(store, name.batch, name, whole=False, among=_UNFINISHED)
        waiting = ((rank_of(info.priority), name.batch, info) for info in among if info.state == IS_WAITING)
        found += waiting if name.priority is not None else islice(waiting, n)
        found.sort(key=itemgetter(0, 1))
        del found[n:]
    return [info for _, _, info in found]
