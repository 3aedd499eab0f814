"""Lease: pick a batch, lease tasks in its log, prove emptiness before saying so (docs/design.md, section 4.5).

The batch in hand is the one that gave the last task. A head is a task file that may have a task to lease: the worker
has seen it in a listing of its shard (`protocol.selection`).

The usual lease takes the next task of the batch in hand: `Leaser.lease`, and there `fast_path.lease_next`, in one
frame. Any other lease goes this way:

1. Choose a batch (`_lease_from_heads`), and up to which rank its tasks may go (`_from_head`).
2. Lock its log, and judge errors (`_from_batch`).
3. Choose tasks (`_from_locked`).
4. Append the `lease` record, and unlock (`_record_lease`).
5. Decode the payloads (`_hand_out`).
"""

from __future__ import annotations

import errno
import logging
import math
import weakref
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

from orjson import loads

from fsqueue import forks
from fsqueue.clock import Backoff
from fsqueue.errors import FsqueueError, HiddenTasks, SecondName
from fsqueue.filesystem import LOST, NOT_FILES
from fsqueue.format import movements, names, nesting, priority, task_file
from fsqueue.format.names import Batch, TaskFileName
from fsqueue.format.priority import LAST, Rank
from fsqueue.format.task_states import LEASED, Choice
from fsqueue.interruptions import is_interruption, let_out
from fsqueue.leased_task import LeasedTask, Verbs
from fsqueue.protocol import deciding, fast_path, finishing, sealing, spending, transitions
from fsqueue.protocol.selection import RandomSelection, Selection
from fsqueue.protocol.shares import Holder, NewLease, Shares
from fsqueue.storage import commits, record_times, retrying
from fsqueue.storage.locked_batch import BatchBusy, BatchGone, LockedBatch, Undecided
from fsqueue.storage.logs import TaskLines
from fsqueue.storage.queue_file import FRESH_S
from fsqueue.storage.store import Store

if TYPE_CHECKING:
    from fsqueue.protocol import all_limits
else:
    all_limits = forks.Late("fsqueue.protocol.all_limits")

logger = logging.getLogger("fsqueue")

BUSY_WAIT_S = 2.0
"""Maximum seconds that a lease waits for batches that other processes have locked, before it reports "empty".

A strict look passes a batch by after that time."""
BUSY_AGAIN_MS = 50
"""Pause before another look into a batch that was locked when one of its tasks came due."""
MISSING_S = 10.0
"""Seconds during which a worker tries again to make a log. An NFS client can answer "no such file" to that: once if
another client removes the log at that moment, and for seconds while the server restarts.
"""
SLOTS_ANEW = 3
"""Maximum number of times in a row that a lease gives slots back whose leases are over, and then is not allowed."""
FULL_LOOK_S = 2.0
"""Seconds after which a look ends that has met only tasks whose values are full, although there are more batches: the
next one remembers these, and goes on behind them.
"""
LOOKS_ANEW = 3
"""Maximum number of looks from the beginning because a decided commit was still to be published."""

OVERPROMISED_MAX = 32
"""Maximum number of batches in a row that had less urgent tasks than they promised, as others take them meanwhile: the
next one is taken from whatever it has. A strict look counts those only that it has looked into before.
"""

UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO)
"""Skip a batch that fails with one of these; raise only if nothing else could be leased."""
UNREADABLE_LINE = "unreadable: its line in the task file is damaged"
"""The reason of a task whose payload cannot be read."""
WARN_AGAIN_S = 600.0
"""Pause before batches that are skipped for the same reason are logged again."""


class Without(Enum):
    """Say why a batch gave no task. A member is false, as an empty list is."""

    BUSY = "another process has its log locked"
    NOTHING = "it has no task to lease now"
    UNDECIDED = "what may make a task available is part of an update that is not decided"
    LATER = "what it has is less urgent than what another batch promises, or than what was asked for"
    LIMITED = "as many tasks are leased, or were leased of late, as the limits of the queue allow"
    FULL = "its tasks have values of fields of which as many are leased as their limits allow"

    def __bool__(self) -> bool:
        return False


BUSY: Final = Without.BUSY
NOTHING: Final = Without.NOTHING
UNDECIDED: Final = Without.UNDECIDED
LATER: Final = Without.LATER
LIMITED: Final = Without.LIMITED
FULL: Final = Without.FULL
LEFT: Final = (BUSY, UNDECIDED, LIMITED, FULL)
"""Reasons for which a batch gave no task, while it is not known what it has."""
Got = list[LeasedTask] | Without


class Leaser:
    """Lease from one queue: stay with a batch, and remember the heads that were listed. Not thread-safe."""

    def __init__(self, queue: Verbs, store: Store, at_random: bool = False) -> None:
        self.queue = weakref.ref(queue)  # no cycle: a queue that is let go of closes its descriptors at once
        self.store = store
        self.at_random = at_random
        """True if any task will do, rather than the most urgent one."""
        self.generation = store.queue_state.generation
        self.current: Batch | None = None
        """The batch to lease from first: the last one that gave a task."""
        self._bound: Rank = LAST
        """The rank of the least urgent task that the caller asks for."""
        self._limit: Rank = LAST
        """The rank of the least urgent task that may be taken from the batch that is looked into."""
        self._overpromised = 0
        """Number of batches in a row that had less urgent tasks than they promised."""
        self._corrected: set[Batch] | None = None
        """Batches whose names have promised too much, in a strict look. `OVERPROMISED_MAX` does not count these."""
        self._next_head: tuple[TaskFileName, Rank] | None = None
        """The batch that was looked into last, and the rank of the next task that it has; None if it has none. Without
        priorities a batch counts as having one until it is exhausted or found empty."""
        self.selection = self._new_selection()
        self._damaged: list[LeasedTask] = []
        self._wanted: list[Undecided] = []
        """The updates that the batch at hand waits for."""
        self.run_id: str | None = None
        """The run of a worker that the leases belong to (docs/format.md, "Workers"); None: they may be handed on."""
        self.holder: Holder | None = None
        """The worker whom leases name, if this leaser leases for another process; None: for this process."""
        self.shares: Shares | None = None
        """The holders among whom the tasks of a call are shared; None: all are for one."""
        self._of_run: tuple[Holder, Holder] | None = None
        """The store's worker, and what leases of the run say in its place."""
        self.gave_up: Callable[[str, int, str], object] = lambda task, attempts, reason: None
        """Called with the id, the number of attempts and the reason of each task that was buried instead of leased. Its
        batch may be locked meanwhile, so it must not block."""
        self.is_held_up = False
        """True if the last look has given nothing because the queue is paused, or because of its limits."""
        self._asks_first = False
        """True if the batch at hand may have a more urgent task once slots were given back."""
        self._was_full = False
        """True if the batch at hand had no task since the values of all have as many leased as their limits allow."""
        self._limiter: all_limits.AllLimits | None = None
        """The limits of the queue and of its group, once there were some."""
        self.let_go: Callable[[], None] = store.logs.let_go
        """Close logs that are not needed, once a look has found nothing: see `OpenLogs`."""
        self._passed_over: dict[int, OSError] = {}
        """The first error of each number for which batches were skipped, until a warning is logged."""
        self._warned: dict[int, float] = {}
        """Time at which a warning was last logged, by the error's number."""

    def begin_look(self, now: bool = False) -> bool:
        """Read `queue.jsonl` if that is due. If the queue was purged since the last look, forget what was listed, and
        return True.
        """
        self.store.refresh(now)
        if self.generation == self.store.queue_state.generation:
            return False
        self.selection = self._new_selection()
        self.current = self._next_head = None
        # Last, so that a call after an interruption does all of it again.
        self.generation = self.store.queue_state.generation
        return True

    def check_held_up(self) -> bool:
        """Return whether the queue is paused, or as many tasks are leased as its limits allow. Note it.

        While it seems paused, `queue.jsonl` is read at each look. Otherwise a worker that was just notified of the end
        of the pause could use up the notification, and go on waiting.
        """
        if self.store.queue_state.paused is not None:
            self.begin_look(now=True)
        state = self.store.queue_state
        self.is_held_up = state.paused is not None
        if state.is_limited and not self.is_held_up:
            limits = self._limits()
            self.is_held_up = not limits.has_room(self.current)
            self.store.full = limits.full if self.is_held_up else None
        return self.is_held_up

    def _is_held_up_by_now(self) -> bool:
        """Return whether the limits of the queue allow no more by now. Call it in a look after a step in vain.

        It reads `queue.jsonl` again a second after the last time: limits may have begun during this look, and a lessee
        that does not know of them would lease without a slot. QueueNotFound. A purge is noted after the look.
        """
        store = self.store
        if store.queue_file.is_fresh():
            return False
        store.refresh(now=True)
        return store.queue_state.is_limited and not self._limits().has_room(self.current)

    def _note_full(self, holds_none: bool) -> None:
        """Note that the limits of the queue allow no more leases. `holds_none`: the look has leased nothing, so they
        are the reason.
        """
        self.is_held_up = holds_none
        self.store.full = self._limits().holding_up()

    def _limits(self) -> all_limits.AllLimits:
        """Return the `AllLimits` of this leaser. They are made at the first call."""
        self._limiter = self._limiter or all_limits.AllLimits(self.store)
        return self._limiter

    def held_up_s(self) -> float:
        """Return in how many seconds the rate of the queue may allow a lease; infinity unless the rate has held up the
        last look.
        """
        return self._limiter.due_s() if self.is_held_up and self._limiter is not None else math.inf

    def _new_selection(self) -> Selection:
        """Return a selection that has seen nothing."""
        return RandomSelection(self.store) if self.at_random else Selection(self.store)

    # -- the verb -------------------------------------------------------------------------------

    def lease(self, n: int, lease_ms: int | None, strict: bool = False, up_to: Rank | None = None) -> list[LeasedTask]:
        """Return up to `n` tasks, over as many batches as it takes. [] only after a full look, or in a paused queue, or
        in one whose limits allow no more (`is_held_up`).

        `lease_ms`: how long the leases last; None for the queue's setting. In a queue with priorities the most urgent
        ones that were seen; with `up_to` none that is less urgent.

        Raise an error of the system only if no task is held by then. To put held tasks back might need just what lacks
        (descriptors, space), and no process would know of those leases. The next look begins anew, and meets the error
        again. FileNotFoundError is raised in any case: the whole queue may be gone.
        """
        store, queue_file = self.store, self.store.queue_file
        if strict:  # else it might go by what was true a second ago: that no task has a priority, or of a pause
            store.verify()
        # On the hot path: `is_fresh`, without a frame of its own.
        if store.clock.monotonic() - queue_file.read_at > FRESH_S or self.generation != queue_file.state.generation:
            self.begin_look()
        if (queue_file.state.is_checked or self.is_held_up) and self.check_held_up():
            self.let_go()
            return []
        batch, limit = self.current, None
        if batch is not None and batch == self.selection.batch_in_hand and up_to is None and not strict:
            if not queue_file.state.is_plain:
                limit = self.selection.limit_in_hand(batch)
            else:
                limit = LAST  # no head is better, whatever has come meanwhile
                if n == 1 and self.shares is None:
                    next_one = fast_path.lease_next(store, batch, lease_ms, self._holder(), self.queue())
                    if next_one is not None:
                        return next_one
        held: list[LeasedTask] = []
        self._bound = LAST
        if up_to is not None:
            self.begin_look(now=True)
            if self._has_none_within(up_to):
                return []
            self._bound = up_to
        selection = self.selection
        if strict:
            selection.sweep()
        elif batch is not None and limit is not None:
            self._limit = limit
            got = self._from_batch(batch, None, n, n, lease_ms)
            if got not in LEFT and (self._next_head is None or not got or queue_file.state.is_ordered):
                # A busy one is among the heads, and is tried again or rests. One that goes on stays in hand.
                self._tell_selection(batch, got)
            if isinstance(got, list):
                if len(got) == n or (got and got[0].solo):
                    return got
                held = got
        try:
            self._lease_from_heads(held, n, lease_ms, strict)
        except BaseException as error:
            self.generation = -1  # the look was broken off: the next one begins anew
            if not held or not _leaves_what_is_held(error):
                self._put_back(held)
                raise
            logger.debug("fewer tasks of %s are leased than asked for: %s", store.path, error)
        finally:
            self._warn()
        if not held and self.begin_look(now=True):
            # The queue was purged during the look: the new generation may have tasks.
            return self.lease(n, lease_ms, strict, up_to)
        if not held:
            self.let_go()
        return latest_leases(held)

    def _has_none_within(self, bound: Rank) -> bool:
        """Return whether only tasks with a priority are asked for, and the queue has none, as last read.

        An inserter writes into `queue.jsonl` that there are priorities before it inserts the first such task.
        """
        return bound < LAST and not self.selection.is_ordered

    def promise(self, up_to: Rank | None = None, is_anew: bool = True) -> Rank | None:
        """Return the rank of the most urgent task that any shard seems to have; None if all seem to have none. A hint.

        `is_anew`: list the shards again. Otherwise only what is known of batches counts, and not what their names
        promise.
        """
        bound = LAST if up_to is None else up_to
        if not self.selection.is_ordered and (self.current is None or bound < LAST):
            self.store.verify()  # ranks may matter by now: see `queue_changes.mark_ordered`
        self.begin_look()
        if self.check_held_up() or self._has_none_within(bound):
            return None
        rank = self._glance(bound, is_anew)
        if rank is None and is_anew:
            self.selection.sweep()
            rank = self._glance(bound, is_anew)
        return rank

    def _glance(self, bound: Rank, is_anew: bool) -> Rank | None:
        now = self.store.clock.now_ms()
        if is_anew:
            self.selection.keep_up(now, every=True)
        return self.selection.glance(now, bound)

    def lease_seen(self, n: int, lease_ms: int | None, bound: Rank) -> list[LeasedTask]:
        """Return up to `n` tasks of what the selection has seen, none less urgent than `bound`. [] proves nothing."""
        self.begin_look()
        held: list[LeasedTask] = []
        if self.check_held_up() or self._has_none_within(bound):
            return held
        self._bound = bound
        try:
            self._lease_from_heads(held, n, lease_ms, strict=False, is_sure=False)
        except BaseException as error:
            self.generation = -1
            if not held or not _leaves_what_is_held(error):
                self._put_back(held)
                raise
        finally:
            self._warn()
        return latest_leases(held)

    def _put_back(self, held: list[LeasedTask]) -> None:
        """Release the leased tasks of a call that ends with an error. No caller gets them, and their leases would have
        to run out.
        """
        queue = self.queue()
        if held and queue is not None:
            try:
                queue.release(held)
            except FsqueueError as error:
                if forks.is_of_the_parent():  # which has them still
                    return
                logger.warning(
                    "%d leased tasks could not be put back (%s); they come back when their leases end", len(held), error
                )

    def _lease_from_heads(
        self, held: list[LeasedTask], n: int, lease_ms: int | None, strict: bool, is_sure: bool = True
    ) -> None:
        """Add tasks of other batches to `held` until there are `n` or none is left.

        Two sweeps over all shards in a row that find nothing prove that there is nothing. Unless `is_sure` no proof is
        wanted. A strict look waits for the batch that comes next if another process has it locked.
        """
        store, selection = self.store, self.selection
        waited_s = 0.0
        busy: dict[Batch, TaskFileName] = {}
        fruitless, anew, self._overpromised = 0, LOOKS_ANEW, 0
        is_full, full_until = False, store.clock.monotonic() + FULL_LOOK_S
        self._corrected = set() if strict else None
        if not strict:
            selection.keep_up(store.clock.now_ms())
        while len(held) < n:
            name = selection.next(store.clock.now_ms(), strict, self._bound, self.current)
            if name is None:
                if not is_sure:
                    return
                if fruitless == 2 or (held and fruitless):
                    break
                fruitless += 1
                retrying.publish_pending(store)
                if commits.apply_pending(store) and anew:
                    fruitless, anew = 1, anew - 1
                busy.clear()
                selection.sweep()
                if self._is_held_up_by_now():
                    self._note_full(not held)
                    return
                continue
            got = self._from_head(name, n - len(held), n, lease_ms, solo=not held)
            for _ in range(SLOTS_ANEW):
                if (got is LIMITED and self._limits().give_back()) or (
                    got is FULL and (self._limits().give_back_of_batch() or self._asks_first)
                ):
                    got = self._from_head(name, n - len(held), n, lease_ms, solo=not held)
            if got is LIMITED:
                self._note_full(not held)
                return
            if got is FULL:
                is_full = True
                if not strict and store.clock.monotonic() > full_until:
                    break
            if got in (BUSY, UNDECIDED) and strict and waited_s < BUSY_WAIT_S:
                begin, locked = store.clock.monotonic(), {name.batch: name}
                got = self._outwait(locked, n - len(held), n, lease_ms, not held, BUSY_WAIT_S - waited_s)
                got = BUSY if locked else got
                waited_s += store.clock.monotonic() - begin
            if not isinstance(got, list) and self._is_held_up_by_now():
                self._note_full(not held)
                return
            if got in (BUSY, UNDECIDED):
                busy[name.batch] = name
            elif isinstance(got, list) and got:
                fruitless = 0
                held += got
                self.current = name.batch
                if got[0].solo:
                    break
        if not held and busy and not waited_s >= BUSY_WAIT_S:
            held += self._outwait(busy, n, n, lease_ms, True, BUSY_WAIT_S)
        if is_full and not held:
            self._note_full(True)
        if not held:
            self._raise_unreadable()

    def _outwait(
        self,
        busy: dict[Batch, TaskFileName],
        most: int,
        asked: int,
        lease_ms: int | None,
        solo: bool,
        patience_s: float,
    ) -> list[LeasedTask]:
        """Try locked batches again and again, for `patience_s` seconds at most, until one gives a task. Take each batch
        off `busy` that could be locked.

        Log a warning of each that stayed locked. The last try comes when the time is over: a process that was stopped
        may have gone on during the last pause.
        """
        clock, path, is_over = self.store.clock, self.store.path, False
        undecided: set[Batch] = set()
        until = clock.monotonic() + patience_s
        backoff = Backoff(self.store.fs.pauses_s, self.store.entropy.random, 1.5, 0.5)
        while busy and not is_over:
            clock.sleep(backoff.next_s())
            is_over = clock.monotonic() >= until
            if self._is_held_up_by_now():
                self._note_full(True)
                busy.clear()
                return []
            for name in list(busy.values()):
                got = self._from_head(name, most, asked, lease_ms, solo)
                if got is LIMITED:
                    self._note_full(True)
                    busy.clear()
                    return []
                if got in (BUSY, UNDECIDED):
                    undecided.update({name.batch} if got is UNDECIDED else ())
                    continue
                del busy[name.batch]
                if got is FULL:
                    self._note_full(True)
                if isinstance(got, list) and got:
                    self.current = name.batch
                    return got
        for batch in busy:
            if batch in undecided:  # another look comes when the update is old
                logger.debug("batch %s of %s has tasks of an update that is not decided yet", batch, path)
                continue
            logger.warning("batch %s of %s stayed locked for %g s and was passed by", batch, path, BUSY_WAIT_S)
        return []

    # -- one batch --------------------------------------------------------------------------------

    def _from_head(self, name: TaskFileName, most: int, asked: int, lease_ms: int | None, solo: bool = True) -> Got:
        """Lease up to `most` tasks of a batch that the selection has returned, and tell the selection what is left.

        No task is leased that is less urgent than the next best head (the paper's policy, section 4.3). If that leaves
        no task, the head goes back with the rank that it really has.
        """
        batch, selection = name.batch, self.selection
        is_limited = self.store.queue_file.state.is_limited
        if is_limited and not name.is_open and self._limits().is_full(batch):
            selection.take_off(batch)
            return FULL
        self._limit = self._bound if self._overpromised >= OVERPROMISED_MAX else selection.limit(self._bound)
        is_open = batch == self.current and self.store.logs.get(batch) is not None
        got = self._from_batch(batch, None if is_open else name, most, asked, lease_ms, solo)
        if got is not LATER:
            self._overpromised = 0
        elif self._corrected is None or batch in self._corrected:
            self._overpromised += 1
        else:
            self._corrected.add(batch)
        if got in (BUSY, UNDECIDED):
            selection.rest(name)
        elif got is LIMITED:
            selection.put_back(name, name.rank)
        elif got is FULL:
            selection.take_off(batch)  # until the next listing: other batches may have other values
        else:
            self._tell_selection(batch, got)
        return got

    def _tell_selection(self, batch: Batch, got: Got) -> None:
        """Tell the selection what a batch has left after a look into it: `_next_head`, which this forgets."""
        selection, left, self._next_head = self.selection, self._next_head, None
        if left is None or got is NOTHING:
            selection.take_off(batch)
        elif got is LATER:
            selection.put_back(*left)
        else:
            selection.keep_in_hand(*left)

    def _from_batch(
        self, batch: Batch, name: TaskFileName | None, most: int, asked: int, lease_ms: int | None, solo: bool = True
    ) -> Got:
        """Lease up to `most` tasks of a batch. `name`: the task file's name, if it was just listed.

        Return BUSY if another process has the lock, NOTHING if the batch has ended or has no task to lease now. If it
        has none but an update is not decided, get that decided first; UNDECIDED if it cannot be yet.
        """
        store, again, give_up_at = self.store, False, math.inf
        create = name is not None and batch != self.current  # one that gave a task has a log, or has finished
        while True:
            self._wanted = []
            try:
                with LockedBatch(store, batch, 0, create=create) as locked:
                    if locked.log.name is None:
                        locked.log.name = name
                    got = self._from_locked(locked, name, most, asked, lease_ms, solo)
                if self._wanted:
                    decided = self._get_decided(batch, got)
                    if decided is None:
                        continue
                    got = decided
            except BatchBusy:
                return BUSY
            except BatchGone:
                if create:
                    continue  # its file was listed: make a new log, in which it turns out whether the file is there
                got = NOTHING
            except FileNotFoundError:
                if create:
                    store.refresh(now=True)
                if create and store.queue_state.generation == self.generation:
                    now = store.clock.monotonic()
                    give_up_at = min(give_up_at, now + MISSING_S)
                    if not store.fs.shared or now >= give_up_at:
                        raise
                    store.clock.sleep(store.fs.pauses_s[1])
                    continue
                got = NOTHING  # it has finished, or the queue was purged meanwhile
            except OSError as error:
                let_out(error)
                if error.errno in LOST and not again:
                    again = True
                    continue
                if error.errno not in NOT_FILES and not (error.errno in UNREADABLE and name is not None):
                    raise
                self._pass_over(batch, error)
                got = NOTHING
            if self._damaged:
                self._bury_damaged(bool(got))
                if not got:
                    continue
            if got is NOTHING and self.current == batch:
                self.current = None
            return got

    def _get_decided(self, batch: Batch, got: Got) -> Got | None:
        """Ask for the decisions about the updates in `_wanted`: they hold up all tasks that the batch could give.

        Return None if they are decided: look into the batch again. Else return `got`, and expect the batch when the
        first of the updates is old.
        """
        wanted, self._wanted = self._wanted, []
        if deciding.decide(self.store, batch, wanted, 0.0):
            return None
        self.selection.expect(
            batch, max(min(each.old_ms for each in wanted), self.store.clock.now_ms() + BUSY_AGAIN_MS)
        )
        return got

    def _note_undecided(self, locked: LockedBatch, at: int) -> Got:
        """Note the undecided updates of a batch that has no other task to lease: `_get_decided` asks for the decisions
        once the log is unlocked.

        Return UNDECIDED if one of them may free a task, else NOTHING.
        """
        self._wanted = locked.undecided()
        return UNDECIDED if deciding.may_free_a_task(locked.replay_state, at) else NOTHING

    def _bury_damaged(self, others: bool) -> None:
        """Bury the tasks that were leased just now and whose lines are damaged.

        If that fails, and `others` were leased with them, only log it: an error would lose the others to every worker
        until their leases end. Whichever worker leases a damaged task next tries again.
        """
        damaged, self._damaged = self._damaged, []
        try:
            for task in damaged:
                transitions.bury(self.store, task, UNREADABLE_LINE)
                self.gave_up(task.id, 1, UNREADABLE_LINE)
        except (OSError, FsqueueError) as error:
            let_out(error)
            if not others:
                raise
            logger.warning(
                "%d tasks of batch %s of %s are unreadable, and not all of them could be buried (%s): that is tried "
                "again when their leases end",
                len(damaged), damaged[0].batch, self.store.path, error,
            )  # fmt: skip

    def _pass_over(self, batch: str, error: OSError) -> None:
        """Remember that a batch was skipped; a warning for each would flood a user who may only read."""
        logger.debug("batch %s of %s is passed over: %s", batch, self.store.path, error)
        self._passed_over.setdefault(error.errno or 0, error)

    def _raise_unreadable(self) -> None:
        """Raise the system's error for batches that cannot be read, if there were any: "empty" would be wrong.

        HiddenTasks if something else has the place of a batch's file or log, or of a shard.
        """
        found = [self._passed_over.pop(code) for code in UNREADABLE if code in self._passed_over]
        if found:
            raise found[0]
        strays = [self._passed_over.pop(code) for code in NOT_FILES if code in self._passed_over]
        if strays and (isinstance(strays[0], (SecondName, HiddenTasks)) or not isinstance(strays[0].filename, str)):
            raise strays[0]
        if strays:
            raise self.store.fs.hidden(strays[0].filename, strays[0].errno or 0)
        if self.selection.hidden is not None:
            raise self.selection.hidden

    def _warn(self) -> None:
        """Log the skipped batches: a line for each kind of error, again after WARN_AGAIN_S at the earliest."""
        if not self._passed_over:
            return
        passed_over, self._passed_over = self._passed_over, {}
        if forks.is_of_the_parent():  # what a child has let go of is no fault of the queue's
            return
        now = self.store.clock.monotonic()
        for code, error in passed_over.items():
            if now - self._warned.get(code, -WARN_AGAIN_S) >= WARN_AGAIN_S:
                self._warned[code] = now
                logger.warning("batches of %s are passed over, the first because of: %s", self.store.path, error)

    def _from_locked(
        self, locked: LockedBatch, name: TaskFileName | None, most: int, asked: int, lease_ms: int | None, solo: bool
    ) -> Got:
        """Decide which tasks of a locked batch to lease, and record the lease.

        `most` tasks at most are leased, of `asked` that the caller wants. A task that was leased with others when its
        worker died must go alone, so that it is known which one ends its worker: it is leased only if `solo`. After the
        lease is recorded the batch is unlocked: other processes may have the lock by the return.
        """
        store, replay_state = self.store, locked.replay_state
        is_new = not replay_state.opened
        if is_new:
            if locked.read_lines() is None or locked.log.name is None:
                finishing.retire(locked)  # it finished after it was listed, and opening the log revived its name
                return NOTHING
            locked.log.add(transitions.opening(locked, locked.log.name))
            if not replay_state.remaining:  # it takes inserts, and has got none yet
                self._end_if_empty(locked)
                return NOTHING
        elif replay_state.prepared and (not replay_state.remaining or record_times.is_ahead(store, replay_state)):
            return self._note_undecided(locked, replay_state.at)  # before the log's time is corrected, too
        elif not replay_state.remaining:
            self._try_finish(locked)
            return NOTHING
        at = record_times.next_at(locked)
        if store.queue_file.state.is_limited:
            most = self._limits().allowed(locked, at, most)
            if not most:
                if is_new:
                    locked.drop()  # what was added is not written
                return LIMITED
        choice = self._choose(locked, at, most, solo)
        if choice is None:
            if replay_state.prepared:
                return self._note_undecided(locked, at)
            finishing.bury_lost(locked)
            return NOTHING
        tasks, spent, alone = choice
        if spent:
            self._bury_spent(locked, spent, at)
            if not replay_state.remaining:
                finishing.try_finish(locked)
                return NOTHING
        if not tasks and self._was_full:
            if not replay_state.takes_inserts:
                self._limits().remember(locked)
            if is_new:
                locked.drop()  # what was added is not written
            return FULL
        if not tasks:
            is_later = self._next_head is not None and self._next_head[1] > self._limit
            if is_new:  # what was added is not written: the file's name was in the future after all, or too urgent
                locked.drop()
            elif replay_state.prepared and not is_later:
                return self._note_undecided(locked, at)
            elif not is_later:
                self._correct_name(locked, name, at)
            elif self._limit == self._bound and (change := replay_state.next_change()) is not None:
                # it may be one that was asked for
                self.selection.expect(locked.batch, max(change, at) + store.clock.margin_ms)
            return LATER if is_later else NOTHING
        if locked.log.lines is None and locked.read_lines() is None:
            got = self._note_undecided(locked, at) if replay_state.prepared else NOTHING
            finishing.bury_lost(locked)
            locked.drop()  # what was chosen is not taken after all: replay anew next time
            return got
        return self._record_lease(locked, tasks, at, lease_ms, asked > 1 and not alone, alone)

    def _choose(self, locked: LockedBatch, at: int, most: int, solo: bool) -> Choice | None:
        """Choose tasks that are not less urgent than `_limit`. Note in `_next_head` what the batch has besides.

        None: the priorities of its tasks are in the task file, and that is proven absent.
        """
        store, replay_state, log = self.store, locked.replay_state, locked.log
        name, margin, attempts_max = log.name, store.clock.margin_ms, store.settings.max_attempts
        if name is not None and name.priority is not None and not replay_state.is_ranked:
            if not _learn_ranks(locked):
                return None
            name = log.name
        self._was_full = self._asks_first = False
        if store.queue_file.state.is_limited and self._limits().by_fields:
            return self._choose_with_room(locked, name, at, most, solo)
        if self.at_random:
            shuffled = store.entropy.shuffled
            choice = replay_state.choose_any(at, most, margin, attempts_max, solo, self._limit, shuffled)
        else:
            choice = replay_state.choose(at, most, margin, attempts_max, solo, self._limit)
        head = replay_state.head(at, margin) if store.queue_file.state.is_ordered else LAST
        self._next_head = None if head is None or name is None else (name, head)
        return choice

    def _choose_with_room(
        self, locked: LockedBatch, name: TaskFileName | None, at: int, most: int, solo: bool
    ) -> Choice | None:
        """Choose tasks whose values have room under the limits by fields: the most urgent ones, in their order.

        None: the lines of the batch are proven absent. What is left counts also where it has no room now: it may have
        some as soon as one of these leases ends.
        """
        store, replay_state, limits = self.store, locked.replay_state, self._limits()
        if locked.log.lines is None and locked.read_lines() is None:
            return None
        order = [index for index, state in enumerate(replay_state.state) if state <= LEASED]
        if self.at_random:
            order = store.entropy.shuffled(order)
        elif replay_state.ranks:
            order.sort(key=replay_state.rank)
        margin, attempts_max = store.clock.margin_ms, store.settings.max_attempts
        found = limits.with_room(locked, at, order)
        tasks, spent, alone = replay_state.choose_among(found, at, most + 1, margin, attempts_max, solo)
        # In their order: a task whose value is full by a slot that is of no use must not be overtaken for that.
        self._asks_first = store.queue_file.state.is_ordered and limits.may_give_back()
        if self._asks_first:
            self._next_head, self._was_full = None, True
            return [], [], False
        self._was_full = not tasks and not spent and limits.saw_full
        rest = next((index for index in tasks if replay_state.rank(index) > self._limit), None)
        kept = [index for index in tasks if replay_state.rank(index) <= self._limit][:most]
        left = rest
        if kept:
            others = (index for index in order if index not in kept and replay_state.may_be_taken(index, at, margin))
            left = next(others, None)
        self._next_head = None if left is None or name is None else (name, replay_state.rank(left))
        return kept, spent, alone

    def _end_if_empty(self, locked: LockedBatch) -> None:
        """End an open batch into which nothing was inserted: the inserter that made it died, or is about to insert."""
        ends_at = names.birth_ms(locked.batch) + finishing.LINGER_MS
        if self.store.clock.now_ms() < ends_at:
            locked.drop()  # what was added is not written
            self.selection.expect(locked.batch, ends_at)
        else:
            locked.log.write()
            finishing.try_finish(locked)

    def _try_finish(self, locked: LockedBatch) -> None:
        """Finish a batch whose tasks all have outcomes. If it takes inserts and got one a moment ago, it goes on:
        expect it later.
        """
        finishing.try_finish(locked)
        if locked.log.fd >= 0:
            self.selection.expect(locked.batch, locked.replay_state.inserted_at + finishing.LINGER_MS)

    def _record_lease(
        self, locked: LockedBatch, tasks: list[int], at: int, lease_ms: int | None, several: bool, solo: bool
    ) -> Got:
        """Record the lease, give the file a later name if no other task is available, unlock, then decode.

        The leases of several holders are one write, which a crash may tear: then the whole records in it count. So are
        the records that were added before. If the append fails, the state is dropped with the log. LIMITED if the
        limits of the queue allow none.
        """
        store, log, replay_state = self.store, locked.log, locked.replay_state
        until = at + (store.lease_ms if lease_ms is None else lease_ms)
        if store.queue_file.state.is_limited:
            leases = self._limits().take(locked, at, tasks, lambda those: self._new_leases(those, several, solo))
            if not leases:
                locked.drop()  # what was chosen is not taken after all: replay anew next time
                return FULL if self._limits().is_by_field else LIMITED
            given = {index for each in leases for index in each.tasks}
            left = [index for index in tasks if index not in given]
            replay_state.offer(left)
            if left and log.name is not None:
                self._next_head = log.name, replay_state.rank(left[0])
        elif self.shares is None:
            leases = [NewLease(store.entropy.hex16(), tasks, self._holder(), several)]
        else:
            leases = self.shares.next_leases(tasks, store.entropy.hex16, solo)
        for each in leases:
            record, each.offset = each.record(at, until), log.next_offset()
            replay_state.apply(record, each.offset)
            if each is not leases[-1]:
                log.add_line(movements.encode(record))
        target = None
        if replay_state.exhausted(at) and log.name is not None and not replay_state.takes_inserts:
            self._next_head = None
            due = replay_state.next_time()
            target = locked.task_file_name_at(log.name, due if due is not None else until)
            if target != log.name:
                record |= {"from": str(log.name), "name": str(target)}
                replay_state.take_in_names(record)
        log.add_line(movements.encode(record))
        log.write()
        lines = log.lines
        if target is not None:
            log.let_go_of_lines()
            if "name" in record:
                locked.rename_task_file(target)
        locked.unlock()
        got: list[LeasedTask] = []
        for each in leases:
            mine = self._hand_out(locked, each.tasks, each.id, until, each.offset, lines or [], solo)
            each.hand_out(mine)
            got += mine
        return got

    def _new_leases(self, tasks: list[int], several: bool, solo: bool) -> list[NewLease]:
        """Return the leases of tasks that were chosen, with ids that no other lease has."""
        draw = self.store.entropy.hex16
        if self.shares is None:
            return [NewLease(draw(), tasks, self._holder(), several)]
        return self.shares.next_leases(tasks, draw, solo)

    def _holder(self) -> Holder:
        """Return the fields by which a lease names its worker."""
        store = self.store
        if self.holder is not None:
            return self.holder
        if self.run_id is None:
            return store.worker
        worker = store.worker
        if self._of_run is None or self._of_run[0] is not worker:
            self._of_run = worker, worker | {"run": self.run_id}
        return self._of_run[1]

    def _hand_out(
        self, locked: LockedBatch, given: list[int], lease: str, until: int, offset: int, lines: TaskLines, solo: bool
    ) -> list[LeasedTask]:
        """Return the leased tasks with their payloads. A damaged line becomes a dead letter instead of a task."""
        log = locked.log
        batch, queue = log.batch, self.queue()
        generation = log.layout.generation  # the batch's: another thread may have seen a later one meanwhile
        assert queue is not None  # a method of it called this
        state = locked.replay_state
        attempts, payloads, changed = state.attempts, state.payloads, state.changed
        shallow, tasks = nesting.SHALLOW_BYTES, list[LeasedTask]()
        for index in given:
            try:
                line = lines[index]
                record = loads(line)
                if "payload" not in record:
                    record = task_file.decode_task(line)
                elif len(line) > shallow:
                    task_file.check_depth(line)
                payload = record["payload"] if not payloads else payloads.get(index, record["payload"])
            except (ValueError, IndexError, TypeError):
                self._damaged.append(LeasedTask(queue, batch, index, lease, None, 0, offset, until, generation))
                continue
            task = LeasedTask(queue, batch, index, lease, payload, attempts[index] + 1, offset, until, generation)
            if len(record) > 1:
                task.key, task.priority = record.get("key"), record.get("priority")
            if changed and index in changed:
                task.priority = changed[index]
            tasks.append(task)
        if solo:
            for task in tasks:
                task.solo = True
        return tasks

    def exchange(self, task: LeasedTask, result: bytes | None, lease_ms: int | None) -> list[LeasedTask] | None:
        """Complete a task, with a `result` as JSON, and lease the next of its batch in one append.

        None if nothing was done.
        """
        store = self.store
        queue_file = store.queue_file
        if not queue_file.is_unchanged(task.generation) or (queue := queue_file.state).is_checked:
            return None  # `complete` tells what became of it, and what a lease has to look at
        if queue.is_plain and self.shares is None:
            got = fast_path.exchange_next(store, task, result, lease_ms, self._holder(), self.queue())
            if got is not None:
                return got
        selection = self.selection
        self._bound = self._limit = LAST
        if is_ordered := queue.is_ordered:  # else no batch has anything better
            limit = selection.limit_in_hand(task.batch)
            if limit is None and selection.is_behind():
                return None  # the next lease lists first
            self._limit = selection.limit(without=task.batch) if limit is None else limit
        try:
            with LockedBatch(store, task.batch, 0) as locked:
                replay_state = locked.replay_state
                if not replay_state.holds(task.index, task.lease):
                    return None
                at = record_times.next_at(locked)
                transitions.add_completion(locked, task, at, result)
                tasks, spent, alone = self._choose(locked, at, 1, True) or ([], [], False)
                if is_ordered or not tasks or spent:
                    self._tell_rest(locked, tasks, spent)
                next_ones: Got = []
                if tasks and not spent and locked.read_lines() is not None:
                    next_ones = self._record_lease(locked, tasks, at, lease_ms, False, alone)
                else:
                    locked.log.write()
                    if tasks or spent:
                        locked.drop()  # what was chosen is not taken after all: replay anew next time
                    elif not replay_state.remaining:
                        finishing.try_finish(locked)
            if self._damaged:
                self._bury_damaged(True)  # the task is completed: an error would say otherwise
            return next_ones if isinstance(next_ones, list) else []
        except (BatchBusy, FileNotFoundError):
            return None
        except OSError as error:
            if error.errno not in LOST:
                raise
            lost = error
        transitions.complete(store, [task], transitions.result_of(task, result), lost)  # tells whether it is in the log
        return []

    def _tell_rest(self, locked: LockedBatch, tasks: list[int], spent: list[int]) -> None:
        """Tell the selection what a batch has left in which a task was just completed, and these were chosen.

        With tasks that are out of attempts nothing is taken, and so all stays.
        """
        left, self._next_head = self._next_head, None
        if not locked.replay_state.remaining:
            left = None
        elif spent and locked.log.name is not None:
            left = locked.log.name, min(locked.replay_state.rank(index) for index in (*tasks, *spent))
        if left is None:
            self.selection.take_off(locked.batch)
        elif tasks and not spent:
            self.selection.keep_in_hand(*left)
        else:
            self.selection.put_back(*left)

    def _bury_spent(self, locked: LockedBatch, spent: list[int], at: int) -> None:
        """Bury tasks that have had all attempts: the last lease ran out, or `max_attempts` was lowered since."""
        for index, charge in spending.last_charges(locked, spent).items():
            attempts = locked.replay_state.charged(index)
            reason = spending.reason(charge, attempts, self.store.settings.max_attempts)
            worker = {} if charge.worker is None else {"worker": charge.worker}
            locked.append_record("bury", at, tasks=[[index, index + 1]], reason=reason, **worker)
            self.gave_up(names.task_id(locked.batch, index), attempts, reason)
        finishing.write_letters(locked, spent)

    def _correct_name(self, locked: LockedBatch, name: TaskFileName | None, at: int) -> None:
        """Give a task file a later name if its batch has no task to lease now. Note when to look at the batch again."""
        log = locked.log
        store, replay_state = self.store, locked.replay_state
        due = replay_state.next_time()
        if replay_state.takes_inserts:
            if at < (ends_at := replay_state.inserted_at + finishing.LINGER_MS):
                self.selection.expect(log.batch, min(ends_at, due) if due is not None and due > at else ends_at)
                return
            sealing.seal(locked, at)  # so that its file may get a later name
        if due is None or log.name is None:
            return
        if due > at:
            self.selection.expect(log.batch, due)
            target = locked.task_file_name_at(log.name, due)
            if target != log.name:
                # Else the name was recorded, and the process that recorded it died before renaming.
                if str(target) != replay_state.last_name():
                    locked.append_move(at, log.name, target)
                locked.rename_task_file(target)
            elif name is not None and name != target:
                store.fs.rename(log.layout.task_file(name), log.layout.task_file(target))
        elif due + store.clock.margin_ms > at:  # a lease that has just run out: its holder's clock may differ
            self.selection.expect(log.batch, due + store.clock.margin_ms)

    def from_shards(
        self, shards: list[str], n: int, lease_ms: int | None, up_to: Rank | None = None
    ) -> list[LeasedTask]:
        """Lease up to `n` tasks of one batch in some shards: those in which a task has come due. [] proves nothing
        about other shards.

        An error makes the next look begin anew, since the known times are forgotten.
        """
        self.begin_look()
        if self.check_held_up():
            return []
        self._bound, self._overpromised, self._corrected = LAST if up_to is None else up_to, 0, None
        self.selection.sweep(shards)
        try:
            while (name := self.selection.next(self.store.clock.now_ms(), True, self._bound)) is not None:
                got = self._from_head(name, n, n, lease_ms)
                if isinstance(got, list) and got:
                    self.current = name.batch
                    return got
                if got is LIMITED:
                    self._note_full(True)
                    return []
                if got is FULL:
                    self._note_full(True)
                if got is BUSY:  # of one that waits for a decision it is known when to look again
                    self.selection.expect(name.batch, self.store.clock.now_ms() + BUSY_AGAIN_MS)
            self._raise_unreadable()
            return []
        except BaseException:
            self.generation = -1
            raise
        finally:
            self._warn()


def _leaves_what_is_held(error: BaseException) -> bool:
    """Return whether a look that ends with `error` still returns the tasks that it has leased: an error of the system,
    but not a missing file, nor an interruption.
    """
    return isinstance(error, OSError) and not isinstance(error, FileNotFoundError) and not is_interruption(error)


def latest_leases(tasks: list[LeasedTask]) -> list[LeasedTask]:
    """Return the last lease of each task among `tasks`, which are of one queue.

    A lease may end (released, or run out) during a look, and the look then leases the task again. With both leases the
    caller would do the task twice. A LeaseLost, which names tasks, would say that the task is lost.
    """
    return list({(task.batch, task.index): task for task in tasks}.values())


def _learn_ranks(locked: LockedBatch) -> bool:
    """Read the priorities of a batch's unfinished tasks from its task file, into the replay state.

    Those of tasks in the log the state knows already. False: the file is proven absent.
    """
    replay_state = locked.replay_state
    if replay_state.inserts is None:
        lines = locked.read_lines()
        if not isinstance(lines, list):
            return False
        unfinished = [index for index, state in enumerate(replay_state.state) if state <= LEASED]
        replay_state.take_ranks(priority.ranks_in_lines(lines, unfinished))
    return True
