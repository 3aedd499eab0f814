"""End or extend a lease: lock, replay, append (docs/design.md, section 4.7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from fsqueue.cluster.identity import describe
from fsqueue.errors import LeaseExpired, LeaseLost, LockTimeout, QueueNotFound
from fsqueue.filesystem import LOST
from fsqueue.format import movements, names
from fsqueue.format.movements import to_ranges
from fsqueue.format.names import Batch, TaskFileName, parse_task_file
from fsqueue.format.replay import CANCELLED, COMPLETED, DEAD, LEASED, ReplayState
from fsqueue.leased_task import LeasedTask
from fsqueue.protocol import finishing, worktimes
from fsqueue.storage import history, published, record_times
from fsqueue.storage.jsonl import LOCK_TIMEOUT_S
from fsqueue.storage.logs import Log
from fsqueue.storage.store import Store

ERROR_CHARS_MAX = 8_000
"""Longer errors and reasons are cut in the middle."""


class NotRecorded(OSError):
    """A lock was lost before the record was written: if a task is free after that, another holder gave it back."""


@contextmanager
def locked(store: Store, batch: Batch, wait_s: float = LOCK_TIMEOUT_S) -> Iterator[Log]:
    """Lock the log of a batch that was touched before, and catch up with it. FileNotFoundError if it is gone.

    After an exception inside nothing is believed: the log is closed.
    """
    while True:
        log = store.log(batch)
        if not log.enter():
            raise LockTimeout(f"A signal handler needs batch {batch} of {store.path}, which its thread is in. Repeat.")
        try:
            if log.closed:
                continue
            try:
                if not store.lock(log, wait_s):
                    raise store.busy(log)
                log.catch_up()
                if finishing.retire_if_gone(store, log):
                    raise FileNotFoundError(log.path)
                yield log
                if not log.closed:
                    store.fs.unlock(log.fd)
            except BaseException:
                store.drop(log)
                raise
            return
        finally:
            log.leave()


ALREADY = "you have completed it already"
"""Why a lease does not hold with which the task was completed before."""


def why_lost(replay_state: ReplayState, index: int) -> str:
    """Why a lease on a task does not hold."""
    if index >= replay_state.count:
        return "unknown"
    state = replay_state.state[index]
    if state == LEASED:
        holder = replay_state.holder[index]
        return f"taken over by {describe(holder.worker if holder is not None else None)}"
    return {COMPLETED: "completed", DEAD: "dead", CANCELLED: "cancelled"}.get(state, "given back")


EXPIRED = "it ran out before it was renewed"
"""Why a lease cannot be renewed that nobody has taken over: its task can still be completed."""


NOT_ITS_OWN = "Discard the result: this lease cannot settle the task any more."
"""What a LeaseLost tells a worker to do."""


def already(tasks: str) -> str:
    """Return the sentence about tasks that the caller's own lease has completed."""
    return f"You have completed {tasks} already, with this lease. That counts, and nothing is left to do."


class Losses:
    """Collects what no longer held, over several batches, and raises it at the end."""

    def __init__(self) -> None:
        self.tasks: list[str] = []
        self.expired: list[str] = []
        """Tasks whose leases ran out, and that nobody has taken, as the log says."""
        self.reasons: set[str] = set()

    def add(self, batch: Batch, indices: Sequence[int], reason: str) -> None:
        """Note tasks that were lost; `reason` is EXPIRED if nobody has taken them."""
        kind = self.expired if reason == EXPIRED else self.tasks
        kind += [names.task_id(batch, index) for index in indices]
        self.reasons.add(reason)

    def join(self, others: Losses) -> None:
        """Take over what another one has collected."""
        self.tasks += others.tasks
        self.expired += others.expired
        self.reasons |= others.reasons

    def check(self) -> None:
        """Raise LeaseLost (LeaseExpired if that is all it was) if anything was noted."""
        said = []
        if self.tasks:
            why = ", ".join(sorted(self.reasons - {EXPIRED}))
            if why == ALREADY:
                said.append(already(_some(self.tasks)))
            else:
                said.append(f"The lease of {_some(self.tasks)} holds no longer ({why}). {NOT_ITS_OWN}")
        if self.expired:
            said.append(
                f"The lease of {_some(self.expired)} ran out before it was renewed. Nobody has taken it over yet: a "
                "completion counts until somebody does."
            )
        if said:
            kind = LeaseLost if self.tasks else LeaseExpired
            raise kind(" ".join(said), self.tasks + self.expired, ", ".join(sorted(self.reasons)))


def _some(tasks: Sequence[str]) -> str:
    return tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks ({tasks[0]}, ...)"


def fresh(store: Store, tasks: Sequence[LeasedTask], losses: Losses) -> Sequence[LeasedTask]:
    """Return the tasks leased from the queue's present generation. Those purged or deleted since are noted as lost."""
    reason = "purged"
    try:
        store.verify()
        generation = store.queue_state.generation
    except QueueNotFound:
        generation, reason = -1, "the queue was deleted"
    lost = [task for task in tasks if task.generation != generation]
    for task in lost:
        losses.add(task.batch, [task.index], reason)
    return [task for task in tasks if task not in lost] if lost else tasks


Transition = Callable[[Log, str, list[int], int], None]
Done = Callable[[ReplayState, int, str], bool]


def never(replay_state: ReplayState, index: int, lease: str) -> bool:
    """Return False: nothing counts as done already."""
    return False


def completed_by(replay_state: ReplayState, index: int, lease: str) -> bool:
    """Return whether this very lease completed the task. After an error that left it open, repeating is harmless."""
    holder = replay_state.holder[index] if index < replay_state.count else None
    return holder is not None and replay_state.state[index] == COMPLETED and holder.id == lease


def ended_by(replay_state: ReplayState, index: int, lease: str) -> bool:
    """Return whether this very lease has given the task back or buried it, whatever others did with the task since."""
    return (index, lease) in replay_state.ended


def each(
    store: Store,
    tasks: Sequence[LeasedTask],
    losses: Losses,
    act: Transition,
    done: Done = never,
    after_loss: Done | None = None,
    uncertain: OSError | None = None,
) -> None:
    """Lock the log of each lease among `tasks`; call `act(log, lease, indices that hold, at)`; note the others.

    Others that are `done` are none. If the lock is lost, the log is opened anew, once, and tells what became of
    the record: then `after_loss` counts instead, if it is given. `uncertain`: why the record may be there already.
    """
    grouped: dict[Batch, dict[str, list[int]]] = {}
    batch: Batch | None = None
    lease = ""
    run: list[int] = []
    for task in fresh(store, tasks, losses):
        if task.lease != lease or task.batch != batch:
            batch, lease = task.batch, task.lease
            run = grouped.setdefault(batch, {}).setdefault(lease, [])
        run.append(task.index)
    waiting = sorted(grouped)

    def attempt(batch: Batch, wait_s: float) -> LockTimeout | None:
        """Do it in one batch; the error, and nothing done, if its lock stays busy for `wait_s` seconds."""
        try:
            try:
                lost = _in_batch(store, batch, grouped[batch], act, done, wait_s, uncertain)
            except OSError as error:
                if error.errno not in LOST:
                    raise
                ended = done if isinstance(error, NotRecorded) else after_loss or done
                doubt = None if ended is never else error
                lost = _in_batch(store, batch, grouped[batch], act, ended, wait_s, doubt)
        except LockTimeout as error:
            return error
        losses.join(lost)
        return None

    if len(waiting) > 1:  # first those that nobody has locked: a stopped process must not keep the rest waiting
        waiting = [batch for batch in waiting if attempt(batch, 0.0)]
    until = store.clock.monotonic() + LOCK_TIMEOUT_S
    busy = [error for batch in waiting if (error := attempt(batch, until - store.clock.monotonic()))]
    if busy:
        raise busy[0]


def _in_batch(
    store: Store,
    batch: Batch,
    leases: dict[str, list[int]],
    act: Transition,
    done: Done,
    wait_s: float,
    uncertain: OSError | None,
) -> Losses:
    """Return what `each` does in one batch; what was lost. LockTimeout if its lock stays busy.

    If the batch has finished, and the record may be what finished it, the history tells; `uncertain` if there is none.
    """
    losses = Losses()
    try:
        with locked(store, batch, wait_s) as log:
            replay_state = log.replay_state
            at = record_times.present(store, log)
            for lease, indices in leases.items():
                held = sorted({index for index in indices if replay_state.holds(index, lease)})
                if len(held) < len(indices):
                    for index in set(indices).difference(held):
                        if not done(replay_state, index, lease):
                            is_own = completed_by(replay_state, index, lease)
                            losses.add(batch, [index], ALREADY if is_own else why_lost(replay_state, index))
                if held:
                    act(log, lease, held, at)
            if not log.replay_state.left:
                finishing.try_finish(store, log)
    except FileNotFoundError:
        records = _history_of(store, batch, done, uncertain)
        if records is None and uncertain is not None:
            raise uncertain from None
        replay_state = history.replay(records or [])
        for lease, indices in leases.items():
            for index in indices:
                if uncertain is None or not done(replay_state, index, lease):
                    is_own = completed_by(replay_state, index, lease)
                    losses.add(batch, [index], ALREADY if is_own else "the batch has finished")
    return losses


def _history_of(store: Store, batch: Batch, done: Done, uncertain: OSError | None) -> history.Records | None:
    """Return the records of a finished batch, where they may tell that the caller has completed the task."""
    if uncertain is not None:
        return history.find(store, batch)
    if done is completed_by:
        with suppress(OSError):  # the lease is lost in any case: this only chooses the words
            return history.find(store, batch)
    return None


Results = Mapping[tuple[Batch, int], bytes]
"""JSON by batch and index."""


def complete(
    store: Store, tasks: Sequence[LeasedTask], results: Results | None = None, uncertain: OSError | None = None
) -> None:
    """Record completions: a record a lease and batch, and one for each task with a result, in one write a lease.

    LeaseLost names those that did not hold. `uncertain`: the error that left it open whether they are recorded.
    """
    losses, times = Losses(), worktimes.worked(tasks)

    def act(log: Log, lease: str, held: list[int], at: int) -> None:
        own = {index: results[log.batch, index] for index in held if (log.batch, index) in results} if results else {}
        rest = [index for index in held if index not in own] if own else held
        records = [movements.complete(at, lease, rest, None, worktimes.took(times, log, rest, at))] if rest else []
        for index, data in own.items():
            records.append(movements.complete(at, lease, [index], data, worktimes.took(times, log, [index], at)))
        log.write(b"".join(records))

    each(store, tasks, losses, act, completed_by, uncertain=uncertain)
    losses.check()


def complete_one(store: Store, task: LeasedTask) -> None:
    """Like `complete`, for one task whose log is open and undisturbed: the hot path."""
    log, uncertain = store.logs.get(task.batch), None
    held = log is not None and store.is_unchanged() and task.generation == store.queue_state.generation
    if log is not None and held and log.enter(0):
        try:
            if log.fd >= 0 and store.fs.try_lock(log.fd) and _complete_in(store, log, task):
                return
        except OSError as error:
            store.drop(log)
            if error.errno not in LOST:
                raise
            uncertain = error
        except BaseException:
            store.drop(log)
            raise
        finally:
            log.leave()
    complete(store, [task], uncertain=uncertain)


def _complete_in(store: Store, log: Log, task: LeasedTask) -> bool:
    """Complete under the log's lock, and give it back. Return False if this path cannot, and nothing was done."""
    log.catch_up()
    replay_state, index, lease = log.replay_state, task.index, task.lease
    holds = not replay_state.gone and replay_state.holds(index, lease)
    if holds:
        at = store.clock.now_ms()
        if replay_state.at > at:
            at = record_times.present(store, log)
        took = None if task.began is None else worktimes.took(worktimes.worked([task]), log, [index], at)
        offset = log.append(movements.complete(at, lease, [index], None, took))
        replay_state.decide(index, COMPLETED, at, offset)
        replay_state.at = at
        if not replay_state.left:
            finishing.try_finish(store, log)
    if log.fd >= 0:
        store.fs.unlock(log.fd)
    return holds


def renew(store: Store, tasks: Sequence[LeasedTask], lease_ms: int) -> None:
    """Extend leases that have not run out."""
    losses = Losses()
    ends: dict[tuple[str, int], int] = {}

    def act(log: Log, lease: str, held: list[int], at: int) -> None:
        replay_state = log.replay_state
        in_time = [index for index in held if at < replay_state.since[index]]
        if in_time:
            until = at + lease_ms
            name_earlier(store, log, at, until)
            log.append_record("renew", at, lease=lease, tasks=to_ranges(in_time), until=until)
            ends.update({(log.batch, index): until for index in in_time})
        if len(in_time) < len(held):
            late = [index for index in held if index not in in_time]
            losses.add(log.batch, late, EXPIRED)

    try:
        each(store, tasks, losses, act)
    finally:  # of those in other batches, too, when one batch stayed locked
        for task in tasks:
            task.until_ms = ends.get((task.batch, task.index), task.until_ms)
    losses.check()


def release(store: Store, tasks: Sequence[LeasedTask], delay_ms: int) -> None:
    """Put tasks back, uncharged."""
    losses, times = Losses(), worktimes.worked(tasks)

    def act(log: Log, lease: str, held: list[int], at: int) -> None:
        available_at = at + delay_ms
        name_earlier(store, log, at, available_at)
        took = worktimes.took(times, log, held, at)
        log.append_record("release", at, lease=lease, tasks=to_ranges(held), took=took, available_at=available_at)

    try:
        each(store, tasks, losses, act, after_loss=ended_by)
    finally:
        store.notify()
    losses.check()


def fail(store: Store, task: LeasedTask, error: str, delay_ms: int | None) -> None:
    """Charge an attempt: the task comes back later, or is buried when that was the last one."""
    losses, settings, times = Losses(), store.settings, worktimes.worked([task])
    error = shorten(error)

    def act(log: Log, lease: str, held: list[int], at: int) -> None:
        took = worktimes.took(times, log, held, at)
        attempts = log.replay_state.attempts[task.index] + 1
        if settings.max_attempts is not None and attempts >= settings.max_attempts:
            log.append_record("bury", at, lease=lease, tasks=to_ranges(held), took=took, reason=error)
            finishing.bury(store, log, held)
            return
        pause = delay_ms if delay_ms is not None else backoff_ms(store, attempts)
        name_earlier(store, log, at, at + pause)
        log.append_record(
            "fail", at, lease=lease, tasks=to_ranges(held), took=took, available_at=at + pause, error=error
        )

    each(store, [task], losses, act, after_loss=ended_by)
    store.notify()
    losses.check()


def bury(store: Store, task: LeasedTask, reason: str) -> None:
    """Give a task up at once."""
    losses, times = Losses(), worktimes.worked([task])

    def act(log: Log, lease: str, held: list[int], at: int) -> None:
        took = worktimes.took(times, log, held, at)
        log.append_record("bury", at, lease=lease, tasks=to_ranges(held), took=took, reason=shorten(reason))
        finishing.bury(store, log, held)

    each(store, [task], losses, act, after_loss=ended_by)
    losses.check()


def backoff_ms(store: Store, attempts: int) -> int:
    """Return the pause after the `attempts`-th failure: doubling, a quarter more or less, within the queue's bounds."""
    least, most = store.settings.backoff_s
    pause = min(least * 2 ** min(attempts - 1, 40), most)
    # Draw between the bounds: cut down to them, half of all pauses would be the same, and end together.
    shortest, longest = max(0.75 * pause, least), min(1.25 * pause, most)
    pause_s: float = shortest + (longest - shortest) * store.entropy.random()
    return round(pause_s * 1000)


def shorten(text: str) -> str:
    """Return a text of bounded length that UTF-8 can hold, cut in the middle if need be."""
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= ERROR_CHARS_MAX:
        return text
    half = ERROR_CHARS_MAX // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters left out ...] {text[-half:]}"


def name_earlier(store: Store, log: Log, at: int, available_at: int) -> None:
    """Before a record makes tasks available: give the file a name that does not promise a later time.

    OSError if that fails. Then the record must not be written: nobody would look for its tasks before the time that
    the name promises, and "empty" would be said although they wait. A name that is too early costs a look.
    """
    try:
        name = published.find(store, log)
        if name is not None and name.available_at > available_at:
            target = name.at(available_at)
            log.append_record("move", at, **{"from": str(name), "name": str(target)})
            published.rename_surely(store, log, target)
    except OSError as error:
        if error.errno not in LOST:
            raise
        raise NotRecorded(error.errno, error.strerror, error.filename) from error


def cancel(store: Store, batch: Batch, indices: list[int]) -> int:
    """Take waiting tasks of a batch out; how many (0 if the batch has finished)."""
    found = published.listed(store, store.layout, batch)
    if not found:
        return 0
    name = parse_task_file(found[0])
    store.log(batch, create=True)
    try:
        with locked(store, batch) as log:
            log.name = log.name or name
            if not open_untouched(store, log):
                finishing.retire(store, log)
                return 0
            replay_state = log.replay_state
            at = record_times.present(store, log)
            free = sorted(
                {index for index in indices if index < replay_state.count and replay_state.is_free(index, at)}
            )
            if free:
                log.append_record(
                    "cancel", at, tasks=to_ranges(free), versions=[replay_state.version[index] for index in free]
                )
            if not replay_state.left:
                finishing.try_finish(store, log)
            return len(free)
    except FileNotFoundError:
        return 0


def open_untouched(store: Store, log: Log) -> bool:
    """Write the `open` of an untouched batch, once its file is proven there; False if it is not."""
    if not log.replay_state.count:
        if published.read(store, log) is None or log.name is None:
            return False
        log.write(opening(store, log.name))
    return True


def opening(store: Store, name: TaskFileName) -> bytes:
    """Return the first record of a batch's log. A log that outlives a power loss must not outlive the task file's name.

    Who publishes the file may not have synced that yet, or may have died before.
    """
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
    )
