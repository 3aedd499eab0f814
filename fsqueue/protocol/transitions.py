"""End or extend a lease: lock the batch, look whether the lease holds, append (docs/design.md, section 4.7).

The usual completion of one task goes by `fast_path.complete_in_hand`, in one frame. Any other completion, and each
other verb, goes this way:

1. Leave out tasks of an earlier generation (`of_present_generation`).
2. Go through the batches of the others (`act_on_leases`).
3. Lock a batch, once the updates are decided that have frozen its tasks (`_act_in_batch`).
4. Find the leases that hold, make the records (`act`, given by the verb), and append them at once (`_act_in_locked`).
5. Finish the batch, if that was its last task (`protocol.finishing`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, groupby
from operator import attrgetter

from fsqueue import checks
from fsqueue.checks import CHECK
from fsqueue.errors import FsqueueError, QueueClosed, in_unicode
from fsqueue.filesystem import LOST
from fsqueue.format import movements, names
from fsqueue.format.movements import Record, UpdatePart, to_ranges
from fsqueue.format.names import Batch, TaskFileName
from fsqueue.format.replay import LEASED, ReplayState
from fsqueue.interruptions import let_out, suppress
from fsqueue.leased_task import LeasedTask
from fsqueue.protocol import deciding, finishing, worktimes
from fsqueue.protocol.losses import (
    ALREADY,
    DELETED,
    EXPIRED,
    FINISHED,
    PURGED,
    Losses,
    completed_by,
    why_lost,
    why_unknown,
)
from fsqueue.storage import history, journals, locked_batch, published, record_times
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.store import Store

ERROR_CHARS_MAX = 8_000
"""Longer errors and reasons are cut in the middle."""


TOGETHER_BYTES = 1 << 20
"""Maximum length of the records of several leases to which another one is added before they are appended (bytes)."""


class NotRecorded(OSError):
    """A lock was lost before the record was written: if a task is free after that, another holder gave it back."""


def of_present_generation(store: Store, tasks: Sequence[LeasedTask], losses: Losses) -> Sequence[LeasedTask]:
    """Return the tasks that were leased from the queue's present generation, or from one that is not known (0).

    Add the others to `losses`: they were purged, or deleted with the queue. QueueNotFound if the queue is not in its
    place for an unknown reason: on a filesystem that is not mounted the leases hold all the same.
    """
    reason = PURGED
    try:
        store.verify()
        generation = store.queue_state.generation
    except QueueClosed:
        generation, reason = -1, DELETED
    lost = [task for task in tasks if task.generation != generation]
    if lost and generation > 0:
        lost = [task for task in lost if task.generation]
    for task in lost:
        losses.add(task.batch, [task.index], task.lease, reason)
    return [task for task in tasks if task not in lost] if lost else tasks


Transition = Callable[[LockedBatch, str, list[int], int], None]
"""Decides what becomes of the tasks with these indices, which a lease of this id holds, at this time (ms). Adds records
to the log, or writes them."""
Done = Callable[[ReplayState, int, str], bool]
"""Tells of a task that a lease of this id does not hold whether this very lease has ended it, as the caller wants."""
_LEASE = attrgetter("batch", "lease")
_GENERATION = attrgetter("generation")


def never_done(replay_state: ReplayState, index: int, lease: str) -> bool:
    """Return False: a task that its lease does not hold any more is always lost."""
    return False


def ended_by(replay_state: ReplayState, index: int, lease: str) -> bool:
    """Return whether this very lease has given the task back or buried it, whatever others did with the task since."""
    return (index, lease) in replay_state.ended


def act_on_leases(
    store: Store,
    tasks: Sequence[LeasedTask],
    losses: Losses,
    act: Transition,
    done: Done = never_done,
    after_loss: Done | None = None,
    uncertain: OSError | None = None,
    frozen_too: bool = False,
) -> None:
    """Lock the batch of each lease among `tasks`, and call `act` with those of its tasks that it holds.

    The others are noted in `losses`, but for those that are `done` already. If the lock is lost, the log is opened
    anew, once, and tells what became of the record: then `after_loss` counts in place of `done`, if it is given.
    `uncertain`: why the record may be there already. Tasks of an update that is not decided are waited for, as a locked
    batch is; with `frozen_too` they are as others.

    After an error in one batch, those before it are dealt with: the error says so.
    """
    grouped: dict[Batch, dict[str, list[int]]] = {}
    for (batch, lease), run in groupby(of_present_generation(store, tasks, losses), _LEASE):
        grouped.setdefault(batch, {}).setdefault(lease, []).extend([task.index for task in run])

    def attempt(batch: Batch, wait_s: float) -> None:
        try:
            lost = _act_in_batch(store, batch, grouped[batch], act, done, wait_s, uncertain, frozen_too, tasks)
        except OSError as error:
            if error.errno not in LOST:
                raise
            ended = done if isinstance(error, NotRecorded) else after_loss or done
            doubt = None if ended is never_done else error
            lost = _act_in_batch(store, batch, grouped[batch], act, ended, wait_s, doubt, frozen_too, tasks)
        losses.join(lost)
        dealt_with.add(batch)

    dealt_with: set[Batch] = set()
    try:
        busy = locked_batch.for_each_batch(store, sorted(grouped), attempt)
        if busy:
            raise next(iter(busy.values()))
    except (OSError, FsqueueError) as error:
        let_out(error)
        if not dealt_with:
            raise
        done_with = sum(task.batch in dealt_with for task in tasks)
        then = f"Of {len(tasks):,} tasks this call has dealt with {done_with:,}, in other batches. Repeat it for all."
        raise store.explain(error, "ending leases", then) from (error if isinstance(error, OSError) else None)


def _act_in_batch(
    store: Store,
    batch: Batch,
    leases: dict[str, list[int]],
    act: Transition,
    done: Done,
    wait_s: float,
    uncertain: OSError | None,
    frozen_too: bool,
    tasks: Sequence[LeasedTask],
) -> Losses:
    """Lock one batch, do `act` in it for each lease, and return what was lost. LockTimeout if the batch's lock stays
    busy, or an update of these tasks undecided.

    If the batch has finished, and the record may be what finished it, the history tells; `uncertain` if there is none.
    `tasks`: they tell the generation that the leases are of; 0 if that of one is not known.
    """
    losses = Losses()
    waiting = deciding.DecisionWait(store, batch, wait_s)
    try:
        while True:
            with LockedBatch(store, batch, waiting.wait_s) as locked:
                wanted = [] if frozen_too else deciding.freezing(locked, chain.from_iterable(leases.values()))
                if not wanted:
                    _act_in_locked(locked, leases, act, done, losses)
                    return losses
            waiting.out(wanted)
    except FileNotFoundError:
        generation = min(map(_GENERATION, tasks), default=0)
        records = _history_of(store, batch, done, uncertain, generation)
        if records is None and uncertain is not None:
            raise uncertain from None
        replay_state = history.replay(records or [])
        reason = FINISHED if records is not None else why_unknown(store.queue_state, generation)
        for lease, indices in leases.items():
            for index in indices:
                if uncertain is None or not done(replay_state, index, lease):
                    is_own = completed_by(replay_state, index, lease)
                    losses.add(batch, [index], lease, ALREADY if is_own else reason)
    return losses


def _act_in_locked(
    locked: LockedBatch, leases: dict[str, list[int]], act: Transition, done: Done, losses: Losses
) -> None:
    """Call `act` for each lease in a locked batch. None of their tasks is frozen, or `act` may act on frozen ones.

    The records of all leases are appended together: one write, and one sync.
    """
    log, replay_state = locked.log, locked.replay_state
    at = record_times.next_at(locked)
    for lease, indices in leases.items():
        held = sorted(set(replay_state.named_by(indices, lease)))
        if len(held) < len(indices):
            replay_state = locked.recall()
            for index in set(indices).difference(held):
                if not done(replay_state, index, lease):
                    is_own = completed_by(replay_state, index, lease)
                    losses.add(locked.batch, [index], lease, ALREADY if is_own else why_lost(replay_state, index))
        if held:
            if CHECK:
                check_fenced(locked, lease, held)
            act(locked, lease, held, at)
            if log.added_bytes >= TOGETHER_BYTES:
                log.write()
    if log.added_bytes:
        log.write()
    if not replay_state.remaining:
        finishing.try_finish(locked)


def _history_of(
    store: Store, batch: Batch, done: Done, uncertain: OSError | None, generation: int
) -> history.Records | None:
    """Return the records of a finished batch from the history; None if there are none, or nobody needs them.

    Two questions need them: has the caller's own lease completed the task? Was the batch of the present generation?
    """
    if uncertain is not None:
        return history.find(store, batch)
    if done is completed_by or (not generation and store.queue_state.generation > 1):
        with suppress(OSError):  # the lease is lost in any case: this only chooses the words
            return history.find(store, batch)
    return None


Results = Mapping[tuple[Batch, int], bytes]
"""JSON by batch and index."""


def complete(
    store: Store, tasks: Sequence[LeasedTask], results: Results | None = None, uncertain: OSError | None = None
) -> None:
    """Record completions: a record a lease and batch, and one for each task with a result, in one write a batch.

    LeaseLost names those that did not hold. `uncertain`: the error that left it open whether they are recorded.
    """
    losses, work = Losses(), worktimes.measure_work(tasks)

    def act(locked: LockedBatch, lease: str, held: list[int], at: int) -> None:
        given: Results = results or {}
        own = {index: data for index in held if (data := given.get((locked.batch, index))) is not None} if given else {}
        rest = [index for index in held if index not in own] if own else held
        if rest:
            more = worktimes.work_fields(work, locked, rest, at)
            locked.log.add(movements.record("complete", at, lease=lease, tasks=to_ranges(rest), **more))
        if own:
            is_measured = work.ms or work.used
            locked.log.add_all(
                movements.completion(
                    at,
                    lease,
                    [index],
                    data,
                    **(worktimes.work_fields_of_one(work, locked, index, at) if is_measured else {}),
                )
                for index, data in own.items()
            )

    act_on_leases(store, tasks, losses, act, completed_by, uncertain=uncertain)
    losses.check()


def result_of(task: LeasedTask, result: bytes | None) -> Results | None:
    """Return the JSON of one task's result in the form in which `complete` takes results; None if there is none."""
    return None if result is None else {(task.batch, task.index): result}


def completion(locked: LockedBatch, task: LeasedTask, at: int, part: UpdatePart | None = None) -> Record:
    """Return the record that completes one task, which its lease holds. `part`: of an update."""
    if CHECK:
        check_fenced(locked, task.lease, [task.index])
    made = {"op": "complete", "at": at, "lease": task.lease, "tasks": [[task.index, task.index + 1]]}
    made |= work_fields_of(locked, task, at)
    return made if part is None else made | part.fields


def add_completion(locked: LockedBatch, task: LeasedTask, at: int, result: bytes | None) -> None:
    """Add the record that completes one task, which its lease holds. `result`: JSON. `Log.write` appends it."""
    if result is None:
        locked.log.add(completion(locked, task, at))
        return
    if CHECK:
        check_fenced(locked, task.lease, [task.index])
    more = work_fields_of(locked, task, at)
    locked.log.add(*movements.completion(at, task.lease, [task.index], result, **more))


def work_fields_of(locked: LockedBatch, task: LeasedTask, at: int) -> Record:
    """Return the fields `took` and `used` for the record that completes a task; none if its work was not measured."""
    if task.began is None and task.used is None and task.took_s is None:
        return {}
    return worktimes.work_fields_of_one(worktimes.measure_work([task]), locked, task.index, at)


def check_fenced(locked: LockedBatch, lease: str, tasks: list[int]) -> None:
    """Check invariant 3 before a record that ends or extends a lease: it is the latest one of each task."""
    replay_state = locked.replay_state
    for index in tasks:
        what = f"the lease {lease} is about to act on task {index} of batch {locked.batch}, and does not hold it"
        holder = replay_state.holder[index]
        checks.hold(3, replay_state.state[index] == LEASED and holder is not None and holder.id == lease, what)


def renew(store: Store, tasks: Sequence[LeasedTask], lease_ms: int) -> None:
    """Extend leases that have not run out, also of tasks that an update has frozen: it may be given up."""
    assert lease_ms > 0, "a lease would end at once"
    losses = Losses()
    ends: dict[tuple[Batch, int, str], int] = {}

    def act(locked: LockedBatch, lease: str, held: list[int], at: int) -> None:
        replay_state = locked.replay_state
        in_time = [index for index in held if at < replay_state.since[index]]
        if in_time:
            until = at + lease_ms
            name_earlier(locked, at, until)
            locked.append_record("renew", at, lease=lease, tasks=to_ranges(in_time), until=until)
            ends.update({(locked.batch, index, lease): until for index in in_time})
        if len(in_time) < len(held):
            late = [index for index in held if index not in in_time]
            losses.add(locked.batch, late, lease, EXPIRED)

    try:
        act_on_leases(store, tasks, losses, act, frozen_too=True)
    finally:  # of those in other batches, too, when one batch stayed locked
        for task in tasks:
            task.until_ms = ends.get((task.batch, task.index, task.lease), task.until_ms)
    store.logs.let_go_seldom()  # a worker whose tasks take long does not look for others
    losses.check()


def release(store: Store, tasks: Sequence[LeasedTask], delay_ms: int) -> None:
    """Put tasks back, uncharged, available after `delay_ms` milliseconds."""
    assert delay_ms >= 0, "a task would come back before it was put back"
    losses, work = Losses(), worktimes.measure_work(tasks)

    def act(locked: LockedBatch, lease: str, held: list[int], at: int) -> None:
        available_at = at + delay_ms
        name_earlier(locked, at, available_at)
        more = worktimes.work_fields(work, locked, held, at)
        locked.append_record("release", at, lease=lease, tasks=to_ranges(held), available_at=available_at, **more)

    try:
        act_on_leases(store, tasks, losses, act, after_loss=ended_by)
    finally:
        store.doorbell.ring()
    losses.check()


def fail(store: Store, task: LeasedTask, error: str, delay_ms: int | None) -> None:
    """Charge an attempt: the task comes back later, or is buried when that was the last one."""
    assert delay_ms is None or delay_ms >= 0, "a task would come back before it failed"
    losses, settings, work = Losses(), store.settings, worktimes.measure_work([task])
    error = shorten(error)

    def act(locked: LockedBatch, lease: str, held: list[int], at: int) -> None:
        more = worktimes.work_fields(work, locked, held, at)
        attempts = locked.replay_state.attempts[task.index] + 1
        if settings.max_attempts is not None and attempts >= settings.max_attempts:
            locked.append_record("bury", at, lease=lease, tasks=to_ranges(held), reason=error, **more)
            finishing.write_letters(locked, held)
            return
        pause = delay_ms if delay_ms is not None else backoff_ms(store, attempts)
        name_earlier(locked, at, at + pause)
        locked.append_record(
            "fail", at, lease=lease, tasks=to_ranges(held), **more, available_at=at + pause, error=error
        )

    act_on_leases(store, [task], losses, act, after_loss=ended_by)
    store.doorbell.ring()
    losses.check()


def bury(store: Store, task: LeasedTask, reason: str) -> None:
    """Give a task up at once."""
    losses, work = Losses(), worktimes.measure_work([task])

    def act(locked: LockedBatch, lease: str, held: list[int], at: int) -> None:
        more = worktimes.work_fields(work, locked, held, at)
        locked.append_record("bury", at, lease=lease, tasks=to_ranges(held), reason=shorten(reason), **more)
        finishing.write_letters(locked, held)

    act_on_leases(store, [task], losses, act, after_loss=ended_by)
    losses.check()


def backoff_ms(store: Store, attempts: int) -> int:
    """Return the pause after the `attempts`-th failure: doubling, a quarter more or less, within the queue's bounds."""
    assert attempts > 0, "a pause follows a failure"
    least, most = store.settings.backoff_s
    pause = min(least * 2 ** min(attempts - 1, 40), most)
    # Draw between the bounds: cut down to them, half of all pauses would be the same, and end together.
    shortest, longest = max(0.75 * pause, least), min(1.25 * pause, most)
    pause_s: float = shortest + (longest - shortest) * store.entropy.random()
    return round(pause_s * 1000)


def shorten(text: str) -> str:
    """Return a text of bounded length that UTF-8 can hold, cut in the middle if need be."""
    text = in_unicode(text)
    if len(text) <= ERROR_CHARS_MAX:
        return text
    half = ERROR_CHARS_MAX // 2
    left_out = len(text) - 2 * half
    assert left_out > 0, "a text is cut that is short enough"
    return f"{text[:half]} [... {left_out} characters left out ...] {text[-half:]}"


def name_earlier(locked: LockedBatch, at: int, available_at: int) -> None:
    """Give the file a name that does not promise a later time, as `LockedBatch.name_earlier` does. NotRecorded if the
    file server cannot be reached: then the record must not be written.
    """
    try:
        locked.name_earlier(at, available_at)
    except OSError as error:
        if error.errno not in LOST:
            raise
        raise NotRecorded(error.errno, error.strerror, error.filename) from error


def cancel(store: Store, batch: Batch, indices: Sequence[int], only_due: int | None = None) -> int:
    """Take waiting tasks of a batch out; how many (0 if the batch has finished).

    `only_due`: only those that are due at this very time (ms); that they are out is synced, then. Tasks of an update
    that is not decided are waited for. LockTimeout.
    """
    name = file_of_waiting(store, batch)
    if name is None:
        return 0
    waiting = deciding.DecisionWait(store, batch, journals.LOCK_TIMEOUT_S)
    try:
        while True:
            with LockedBatch(store, batch, waiting.wait_s, create=True) as locked:
                if not begin_waiting(locked, name):
                    return 0
                wanted = deciding.freezing(locked, indices)
                if not wanted:
                    return _cancel_in(locked, indices, only_due)
            waiting.out(wanted)
    except FileNotFoundError:
        return 0


def _cancel_in(locked: LockedBatch, indices: Sequence[int], only_due: int | None) -> int:
    replay_state = locked.replay_state
    at = record_times.next_at(locked)
    free = sorted({index for index in indices if index < replay_state.count and replay_state.is_free(index, at)})
    if only_due is not None:
        free = replay_state.due_at(free, only_due)
    if free:
        versions = [replay_state.version[index] for index in free]
        locked.append_record("cancel", at, tasks=to_ranges(free), versions=versions)
        if only_due is not None and locked.store.sync_inserts and not locked.log.sync:
            locked.store.fs.fsync(locked.log.fd)
    if not replay_state.remaining:
        finishing.try_finish(locked)
    return len(free)


def file_of_waiting(store: Store, batch: Batch) -> TaskFileName | None:
    """Return the name of a batch's task file, as a listing has it; None if it shows none: the batch has finished."""
    found = published.names_of(store, store.layout, batch)
    return found[0] if found else None


def begin_waiting(locked: LockedBatch, name: TaskFileName) -> bool:
    """Write the `open` of a batch from which nothing was leased so far, if its task file, of this name, is there.

    False if it is not: the batch has finished, and a log that was made just now is retired.
    """
    locked.log.name = locked.log.name or name
    if open_untouched(locked):
        return True
    finishing.retire(locked)
    return False


def open_untouched(locked: LockedBatch) -> bool:
    """Write the `open` of an untouched batch, once its file is proven there; False if it is not."""
    log = locked.log
    if not locked.replay_state.opened:
        if locked.read_lines() is None or log.name is None:
            return False
        log.write(opening(locked, log.name))
    return True


def opening(locked: LockedBatch, name: TaskFileName) -> Record:
    """Return the first record of a batch's log. A log that outlives a power loss must not outlive the task file's name.

    The process that publishes the file may not have synced that yet, or may have died before. Call it after the task
    file was read: it says whose inserts the batch takes.
    """
    store = locked.store
    if store.sync_movements and not store.fs.shared:
        layout = store.layout
        with suppress(FileNotFoundError):  # the generation has gone
            store.fs.sync_directory(f"{layout.tasks}/{layout.shard(name.batch)}")
    return movements.record(
        "open",
        store.clock.now_ms(),
        count=name.count,
        birth=names.birth_ms(name.batch),
        available_at=name.available_at,
        name=str(name),
        inserts=None if name.inserted is None else locked.log.domain or "",
    )
