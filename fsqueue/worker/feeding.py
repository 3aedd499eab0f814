"""Where tasks come from: a thread that waits for them, at one queue or at several in turn, and warns of copies."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue

from fsqueue import forks
from fsqueue.clock import Backoff, Clock, Entropy
from fsqueue.errors import FsqueueError, GroupNotFound, QueueFileLost, QueueNotFound, said
from fsqueue.filesystem import resources
from fsqueue.groups.drain_check import (
    BUSY_S,
    Elsewhere,
    barriers_due_s,
    groups_of,
    pass_barriers,
)
from fsqueue.groups.members import Members
from fsqueue.groups.queue import GroupQueue, HasQueues, drained_behind_barriers
from fsqueue.groups.queue_selection import Selected
from fsqueue.interruptions import suppress
from fsqueue.leased_task import LeasedTask
from fsqueue.protocol.queue_watches import Several, SeveralRoots, Watch
from fsqueue.protocol.waiting import BELL_S, limit_news, pause_news, tell_of_end
from fsqueue.queue import Queue
from fsqueue.storage import copies
from fsqueue.storage.listening import Listener
from fsqueue.storage.nodes import NodeFailures
from fsqueue.storage.store import Store
from fsqueue.views import copy_warnings, lease_holders
from fsqueue.worker.background import BackgroundThread, Died
from fsqueue.worker.limits import Limits
from fsqueue.worker.settling import BROKEN, RETRY_S, is_hopeless, patience_with
from fsqueue.worker.sources import Away, Failing, RemoteWatch, Sources

logger = logging.getLogger("fsqueue")

DRAIN_CHECK_S = 30.0
"""Shortest time after which a worker that waits long asks again whether all is done: that costs a listing and a look
into a log. Besides it asks when there is a reason to: see `CHECKS`."""
DEATH_CHECK_S = (1.0, 600.0)
"""Shortest and longest pause before a worker that finds nothing to lease looks whether holders of tasks have died on
this host. Each pause is as long as the worker has waited by then. That reads the logs of all batches at work.
It tells of those that two looks in a row have found dead."""
AWAY_LOOK_S = 5.0
"""How often a worker looks whether a queue or a group is there that was not: that opens it."""
FAILING_LOOK_S = (5.0, 60.0)
"""Shortest and longest pause before a worker tries to lease again on a filesystem that failed while others work."""
CHECKS = 2
"""Number of times that a worker asks whether all is done when it was notified and found no task, or when its own last
outcome was told: after that look and after the next one. While others still count their last batches, a check may say
"no"."""


@dataclass(slots=True)
class Fed:
    """The feeder's answer: tasks, or why there are none."""

    tasks: list[LeasedTask] = field(default_factory=list)
    drained: bool = False
    away: str = ""
    """What is not there, if all else is drained."""
    excluded: str = ""
    """Why this node takes no more tasks, if it does not."""
    error: FsqueueError | None = None


Asked = Queue | Selected | Watch | Store | Away | Elsewhere
"""What a feeder asks, and what may not answer."""
Say = Callable[[str, str], object]
"""Tells an event: its kind, and a sentence."""
GaveUp = Callable[[str, str, int, str], object]
"""Takes in a task that was made a dead letter instead of being leased: the path of its queue, its id, how many attempts
it has had, and the reason."""


class Feeder(BackgroundThread):
    """Waits for tasks on behalf of the loop, one request at a time; each is answered with one `Fed`.

    The most urgent tasks of all queues come first; queues with equal ones take turns, and share. With nothing to be
    had, pauses grow to `BELL_S[1]` seconds, with jitter, and a look costs the reading of one small file a queue. A
    notification on this host ends a pause, and so does `close`.
    `taking` is held from the start of a look until the loop has been told what it found: see `settling`.
    """

    def __init__(
        self,
        queues: Sources,
        lease_s: float | None,
        limits: Limits,
        taking: threading.Lock,
        report: Callable[[Fed], object],
        trouble: Callable[[FsqueueError], object],
        died: Died,
        say: Say,
        gave_up: GaveUp,
    ) -> None:
        super().__init__("feeder", died)
        self._say, self._gave_up = say, gave_up
        self.due_at = math.inf
        """When a task that was seen, and is delayed, becomes available: on the monotonic clock. A hint."""
        self.is_busy = False
        """Whether an answer is to come. The loop's."""
        self.leases_ahead = True
        """Whether more tasks may be leased than can begin: not from a queue with limits, where others wait for them."""
        self.run_id: str | None = None
        """What its leases say that they belong to. Set before it starts."""
        self._groups: list[HasQueues] = []
        """The groups that the queues are of, whose barriers it lets pass. None before it works."""
        self._barriers_at = -math.inf
        """When to look at the barriers next, also if there are tasks (monotonic)."""
        self._has_passed = False
        """Whether the last look at the barriers of these groups has let one pass."""
        self._untaken: list[LeasedTask] = []
        """What was reported, and the loop has not taken in."""
        self._told_of_dead: dict[str, str | None] = {}
        """What was said last of dead workers, by the path of the queue."""
        self._found_dead: dict[str, set[bytes]] = {}
        """The workers that the last look has found dead, by the path of the queue: see `LeaseHolder.key`."""
        self._is_left = threading.Event()
        """Set once another feeder has taken its place, since a filesystem did not answer it in time."""
        self._is_abandoned = False
        """Whether the run is over for a feeder that was left."""
        self.has_ended = False
        """Whether it asks nothing any more, for good."""
        self._look_began = math.inf
        """When it began to ask, on the monotonic clock; infinite while it asks nothing."""
        self._asked_source: Callable[[], Asked | None] = lambda: None
        """Tells what is asked."""
        self._seen: tuple[Asked | None, float] = None, -math.inf
        """What was asked when the loop looked, and since when it has seen that."""
        self._has_fed = False
        """Whether tasks were ever leased."""
        self._unrecorded: list[tuple[Hashable, FsqueueError]] = []
        """Filesystems on which outcomes cannot be recorded, and why. The loop adds them."""
        self._copies = CopyCheck()
        self._queues, self._lease_s, self._ends = queues, lease_s, not limits.forever
        self._patience_s, self._taking, self._report, self._trouble = limits.patience_s, taking, report, trouble
        self._exclude_after = limits.exclude_after
        self._streaks = self._streaks_of(queues.stores())
        self._requests: SimpleQueue[int] = SimpleQueue()
        self._is_closed = self._is_nudged = False
        self._end = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Can be read once this is closed, and when `check_soon` was called: ends a pause."""
        self._end_kept: resources.Kept | None = resources.Kept(self._end, os.close)
        self._clock = clock = Clock()
        self._listener = Listener([store.doorbell for store in queues.stores()], clock, self._end)
        self._members: Members | None = None
        """Which queues of groups are open, if there are groups."""
        self._now, self._random = clock.monotonic, Entropy().random
        self._away_at = -math.inf
        """When to look for what is away, if anything is."""
        forks.register(self, Feeder.after_fork)

    def ask(self, n: int) -> None:
        """Request up to `n` tasks. The answer comes when there are some, or when there is no point in waiting."""
        self.is_busy = True
        self._requests.put(n)

    def taken(self) -> None:
        """Note that the loop has taken in the answer."""
        self.is_busy, self._untaken = False, []

    def untaken(self) -> list[LeasedTask]:
        """Return what the loop will not take in any more, once this thread has ended: `close` comes before."""
        self.join()
        return self._untaken

    def check_soon(self) -> None:
        """Ask at once whether all is done: the last outcome of this worker's tasks has just been told."""
        if self._ends:
            self._is_nudged = True
            self.wake()

    def leave_out(self, root: Hashable, error: FsqueueError) -> None:
        """Lease nothing on a filesystem for some time, since outcomes cannot be recorded there. The loop calls it."""
        self._unrecorded.append((root, error))
        self._is_nudged = True
        self.wake()

    def silent_since(self) -> float:
        """Return since when what is asked at this moment has not answered, as far as the loop has seen; infinite if
        nothing is asked. For the loop.
        """
        asked = self._asked_source()
        if asked is not self._seen[0]:
            self._seen = asked, self._now()
        return max(self._look_began, self._seen[1])

    def silent(self) -> str | None:
        """Return the path of the queue or group that is being asked; None if that is not known. It asks nothing."""
        asked = self._asked_source()
        if isinstance(asked, Selected):
            return str(asked.group.path)
        if isinstance(asked, (GroupQueue, Away)):
            return str(asked.path)
        store = asked.store if isinstance(asked, (Queue, Watch)) else asked
        return None if store is None else store.path if isinstance(store, Store) else store.url

    def _begin_to_ask(self, asked_source: Callable[[], Asked | None]) -> None:
        """Note that the source that `asked_source` returns is asked from now on, which may take long."""
        self._asked_source, self._look_began = asked_source, self._now()

    def _each_store(self) -> Iterator[Store]:
        """Yield each queue that is open. It counts as asked until the next one."""
        try:
            for store in self._queues.stores():
                self._begin_to_ask(lambda store=store: store)  # type: ignore[misc]
                yield store
        finally:
            self._look_began = math.inf

    def leave(self) -> list[LeasedTask]:
        """Leave it, since a filesystem does not answer in time. Once that does, this feeder answers, and ends.

        Return what it has leased on the others, and could not report.
        """
        self._is_left.set()
        self.close()
        return self._watches.held() if isinstance(self._watches, SeveralRoots) else []

    def abandon(self) -> list[LeasedTask]:
        """Have it put back what it leases from now on: the run ends. Return what the loop will not take in any more.

        Only for a feeder that was left: its thread may never end.
        """
        self._is_abandoned = True
        return self._untaken

    def _put_back(self, tasks: list[LeasedTask]) -> None:
        """Put back what came after the end of the run, in this thread: nothing waits for it."""
        for task in tasks:
            with suppress(FsqueueError, OSError):
                task.release()

    def wake(self) -> None:
        """End a pause. The loop calls it, and closes this feeder: so the descriptor is still open."""
        if not self._is_closed:
            os.eventfd_write(self._end, 1)

    def _sleep(self, seconds: float, deaf: bool) -> None:
        """Sleep until the time is over, a doorbell is rung, `close` or `check_soon`."""
        self._listener.sleep(seconds, deaf)
        if not self._is_closed:  # else no pause is long any more
            with suppress(BlockingIOError):
                os.eventfd_read(self._end)

    def close(self) -> None:
        """Wait no longer. What was asked for is still answered."""
        if not self._is_closed:
            self._is_closed = True
            os.eventfd_write(self._end, 1)
            self._requests.put(0)

    def after_fork(self) -> None:
        """Have a descriptor of its own in a forked child: through the shared one it would end its parent's pauses."""
        if self._end_kept is not None:
            self._end = self._listener.end = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._end_kept = resources.Kept(self._end, os.close)

    def _give_back(self) -> None:
        """Close the descriptor that ends pauses."""
        self._end_kept = None

    def work(self) -> None:
        try:
            self._answer_all()
            self._give_back()  # `close` does not write any more: what ends the loop above is its last step
        finally:
            self._listener.close()
            self.has_ended = True
        if self._is_left.is_set():
            self._report(Fed())  # the last: what it was left for answers again

    def _answer_all(self) -> None:
        self._watch()
        self._name_away()
        while n := self._requests.get():
            try:
                answer = self._feed(n)
            except FsqueueError as error:
                answer = Fed(error=error)
            if answer is not None:
                self._report(answer)

    def _watch(self) -> None:
        """Begin to poll the queues that exist."""
        self._watches: Watch | Several | RemoteWatch
        self._members = None
        if self._queues.remote is not None:
            self._watches = RemoteWatch(self._queues.remote, self._lease_s)
        elif self._queues.groups:
            self._members = Members(self._queues.given, self._make_watch, self._clock)
            self._watches = self._several(self._members.watches)
        else:
            watches = list(map(self._make_watch, self._queues))
            self._watches = watches[0] if len(watches) == 1 else self._several(watches)
        self._drain_check = self._queues.drain_check()
        self._groups = groups_of([*self._queues.given, *self._queues.upstream])

    def _several(self, watches: list[Watch]) -> Several:
        return SeveralRoots(watches, self._is_left.is_set) if self._queues.has_several_roots else Several(watches)

    def _watch_anew(self) -> None:
        """Poll what is there now, after something has gone or come back."""
        self._watch()
        self._listen_to(self._queues.stores())

    def _put_away(self, error: FsqueueError) -> bool:
        """Go on without what is not there any more. Return whether there is such, and others are left.

        A group may be there again by now: then its queues are opened anew.
        """
        self._begin_to_ask(lambda: self._queues.asked_source)
        try:
            gone = self._queues.put_away()
        finally:
            self._look_began = math.inf
        if gone is None or not (gone or isinstance(error, GroupNotFound)):
            return False
        self._watch_anew()
        if gone:
            self._name_away()
        else:
            self._sleep(RETRY_S[0], deaf=True)
        return True

    def _leave_out_failing(self) -> bool:
        """Go on without the filesystems on which the last look has failed. Return whether there are such, and others
        are left.
        """
        errors = self._watches.errors if isinstance(self._watches, Several) else {}
        if not errors or not all(isinstance(error, BROKEN) for error in errors.values()):
            return False
        by_root = {self._queues.root_at(watch.store.path): error for watch, error in errors.items()}
        left = [self._leave_out(root, error) for root, error in by_root.items()]
        for watch in errors:
            if failing := self._queues.failing.get(self._queues.root_at(watch.store.path)):
                failing.warned_of[watch.store.path] = watch.warned_of
        return all(left)

    def _leave_out(self, root: Hashable, error: FsqueueError, is_unrecorded: bool = False) -> bool:
        """Go on without a filesystem, and try it again from time to time. Return False if there is no other one."""
        now, known = self._now(), self._queues.failing.get(root)
        failing = known or Failing(-math.inf if is_unrecorded else now, Backoff(FAILING_LOOK_S, self._random, 2))
        failing.is_unrecorded |= is_unrecorded
        enough_s, again_at = patience_with(error, self._patience_s), now + failing.tries.next_s()
        if failing.is_unrecorded:
            again_at = max(again_at, now + enough_s)
        why = f"fails ({said(error)})"
        away = Away(
            "", lambda: None, why, waits_until=failing.since + enough_s, named=why,
            answers=lambda: self._now() >= again_at, error=error,
        )  # fmt: skip
        if not self._queues.leave_out(root, away):
            return False
        if known is None:
            self._queues.failing[root] = failing
            if not is_unrecorded:
                self._trouble(error)
        self._watch_anew()
        self._is_nudged = True  # ask soon whether the others are drained
        return True

    def _note_recovered(self, tasks: list[LeasedTask]) -> None:
        """Forget that the filesystems have failed that these tasks were leased on."""
        for root in {self._queues.root_of(task.queue) for task in tasks}:
            failing = self._queues.failing.get(root)
            if failing is not None and not failing.is_unrecorded:
                self._queues.failing.pop(root, None)

    def _name_away(self) -> None:
        """Name each missing queue once, and again if the reason changes, and decide when to look for it next."""
        now, away = self._now(), self._queues.away
        for place, one in enumerate(away):
            if one.named != one.why and now >= one.named_at:
                away[place] = replace(one, named=one.why)
                self._say("away", f"{one.text}.")
        self._away_at = min((now + AWAY_LOOK_S, *(one.named_at for one in away if one.named != one.why)))

    def _look_for_away(self, is_due: bool = False) -> bool:
        """Take in what was away and is there again. Return whether there was such."""
        away = self._queues.away
        is_due = is_due or self._now() >= self._away_at or any(one.answers and one.answers() for one in away)
        if not away or not is_due:
            return False
        self._begin_to_ask(lambda: self._queues.asked_source)
        try:
            found = self._queues.come_back()
        finally:
            self._look_began = math.inf
        self._name_away()
        if any(one.error is None for one in found):
            self._copies.forget()
        if found:
            self._watch_anew()
        for one in found:
            if one.named is not None and one.error is None:
                what = "it has to be drained, too" if one.is_upstream else "its tasks are taken, too"
                self._say("away", f"{one.path} is there: {what}.")
        return bool(found)

    def _make_watch(self, queue: Queue) -> Watch:
        leaser = queue._leaser
        leaser.gave_up = partial(self._gave_up, queue.store.path)
        leaser.run_id = self.run_id
        self._copies.begun.append(queue)
        watch = Watch(leaser, queue._lease_ms(self._lease_s), may_go=isinstance(queue, GroupQueue))
        failing = self._queues.failing.get(self._queues.root_of(queue))
        if failing is not None and queue.store.path in failing.warned_of:
            watch.warned_of = failing.warned_of[queue.store.path]
        return watch

    def _streaks_of(self, stores: Sequence[Store]) -> list[NodeFailures]:
        after = self._exclude_after
        return [] if after is None else [NodeFailures(store, after) for store in stores]

    def _open_members(self) -> None:
        """Have those queues of groups open that may have tasks."""
        members = self._members
        if members is None:
            return
        self._begin_to_ask(lambda: members.asked_source)
        try:
            is_changed = members.refresh()
        finally:
            self._look_began = math.inf
        if is_changed:
            assert isinstance(self._watches, Several)
            self._watches.change(members.watches)
            self._queues[:] = members.queues
            self._listen_to([watch.store for watch in members.watches])

    def _listen_to(self, stores: Sequence[Store]) -> None:
        """Be woken by these queues, and count failures in them."""
        self._streaks = self._streaks_of(stores)
        self._listener.turn_to([store.doorbell for store in stores])

    def _feed(self, n: int) -> Fed | None:
        """Lease up to `n` tasks, and try again while the queue fails. Return the answer; None if it was given."""
        failing_since, retry = math.inf, Backoff(RETRY_S, self._random, 2)
        while True:
            try:
                return self._wait(n)
            except (QueueNotFound, GroupNotFound) as error:
                if self._is_left.is_set() or not self._put_away(error):
                    raise
            except (*BROKEN, QueueFileLost) as error:
                if is_hopeless(error) and not self._has_fed:
                    raise  # most likely this user may not work here at all: said once, and at once
                now = self._now()
                if failing_since == math.inf:
                    failing_since = now
                    self._trouble(error)
                if self._is_closed or now - failing_since >= patience_with(error, self._patience_s):
                    raise
                self._sleep(retry.next_s(), deaf=True)

    def _wait(self, n: int) -> Fed | None:
        """Look, in turn, until something is there and reported, or nothing more can come, or `close`."""
        backoff, checked, checks, is_told = Backoff(BELL_S, self._random), -math.inf, 0, False
        began = self._now()
        judge_at = began + DEATH_CHECK_S[0]
        while True:
            self._look_for_away()
            self._open_members()
            if self._copies.begun:
                self._warn_of_copies()
            if self._is_left.is_set():
                return Fed()
            if self._streaks and (excluded := self._excluded()):
                return Fed(excluded=excluded)
            is_nudged, self._is_nudged = self._is_nudged, False
            while self._unrecorded:
                root, error = self._unrecorded.pop()
                if not self._leave_out(root, error, is_unrecorded=True):
                    return Fed(error=error)
            if self._groups and self._now() >= self._barriers_at:
                self._pass_barriers()
            with self._taking:
                self._begin_to_ask(lambda: getattr(self._watches, "asked_source", None))
                try:
                    got = self._watches.look(n)
                except BROKEN:
                    if not self._leave_out_failing():
                        raise
                    continue
                finally:
                    self._look_began = math.inf
                if self._queues.failing:
                    self._note_recovered(got)
                if got:
                    self._has_fed, self._untaken = True, got
                    self.leases_ahead = not any(map(_is_limited, got))
                    if self._is_abandoned:  # asked after `_untaken` is set: see `abandon`
                        self._put_back(got)
                        return Fed()
                    self._report(Fed(got))
                    return None
            if self._is_left.is_set():
                return Fed()
            for text in pause_news(self._queues.stores()):
                self._say("pause", text)
            for text in limit_news(self._queues.stores()):
                self._say("limit", text)
            if self._is_closed:
                return Fed()
            if self._members is not None and self._members.goes_on:
                continue
            if self._groups and self._pass_barriers():
                continue
            now = self._now()
            if is_nudged or self._watches.is_deaf:  # deaf: the notification brought no task
                checks, is_told = CHECKS, not is_nudged
            if self._ends and (checks or not backoff.is_longest or now - checked >= DRAIN_CHECK_S):
                checked = now
                if drained_behind_barriers(self._is_drained, self._groups, partial(self._pass_barriers, at_once=True)):
                    away = self._queues.away
                    if not away:
                        if self._has_fed and not (checks and is_told):
                            tell_of_end(self._each_store())
                        return Fed(drained=True)
                    if now >= max(one.waits_until for one in away):
                        if self._look_for_away(is_due=True):  # it may have come back after the last look
                            continue
                        for one in away:
                            if one.error is not None:
                                return Fed(error=one.error)
                        return Fed(away=" and ".join(f"{one.path} {one.why}" for one in away))
                elif self._has_passed:
                    continue
            checks = max(0, checks - 1)
            if now >= judge_at:
                judge_at = now + min(max(now - began, DEATH_CHECK_S[0]), DEATH_CHECK_S[1])
                self._tell_of_dead()
            due_s = self._watches.due_s()
            if self._members is not None:
                due_s = min(due_s, self._members.due_s(), barriers_due_s(self._groups))
            self.due_at = now + due_s
            pause_s = max(0.001, min(backoff.next_s(), due_s, self._away_at - now if self._queues.away else math.inf))
            if not (isinstance(self._watches, RemoteWatch) and self._watches.has_waited):
                self._sleep(pause_s, self._watches.is_deaf)

    def _excluded(self) -> str | None:
        """Return why this node takes no more tasks, if it does not."""
        try:
            for streak in self._streaks:
                self._begin_to_ask(lambda streak=streak: streak.store)  # type: ignore[misc]
                if excluded := streak.excluded():
                    return excluded
        finally:
            self._look_began = math.inf
        return None

    def _warn_of_copies(self) -> None:
        """Say which queues may be copies, before anything is leased from them."""
        try:
            self._copies.warnings(lambda queue: self._begin_to_ask(lambda: queue), partial(self._say, "copy"))
        finally:
            self._look_began = math.inf

    def _tell_of_dead(self) -> None:
        """Say, once for each state of things, what to type if processes that are gone from this host hold tasks.

        The fork server of a worker that was killed ends its leases, once its commands have ended. So nothing is said
        of a worker that the look before has not found dead.
        """
        for store in self._each_store():
            place = store.path
            try:
                with resources.Scope():
                    dead = lease_holders.dead(store, asks_slurm=False)
            except (OSError, FsqueueError) as error:  # the leases run out by themselves; the next look meets the error
                logger.debug("dead workers of %s could not be looked for: %s", place, error)
                continue
            before = self._found_dead.get(place, set())
            self._found_dead[place] = {worker.key for worker in dead}
            text = lease_holders.what_to_type(store, [worker for worker in dead if worker.key in before])
            if text is not None and self._told_of_dead.get(place) != text:
                self._say("dead-workers", text)
            self._told_of_dead[place] = text

    def _pass_barriers(self, *, at_once: bool = False) -> bool:
        """Let barriers pass of the groups that the queues are of. Return whether one did."""
        self._barriers_at = self._now() + BUSY_S
        self._begin_to_ask(lambda: next(iter(self._queues.groups), None))
        try:
            self._has_passed = pass_barriers(self._groups, at_once=at_once) > 0
            return self._has_passed
        finally:
            self._look_began = math.inf

    def _is_drained(self) -> bool:
        """Return whether all queues were at one instant, and those before them."""
        if self._members is not None and not self._members.is_complete:
            return False
        self._begin_to_ask(lambda: getattr(self._drain_check, "asked_source", None))
        try:
            return self._drain_check()
        finally:
            self._look_began = math.inf


class CopyCheck:
    """Ask of each queue, when the worker begins to take tasks from it, whether it may be a copy. One thread's.

    The worker warns once of each queue, and once of each group.
    """

    def __init__(self) -> None:
        self.begun: list[Queue] = []
        """Those that the worker has begun with, and were not asked about."""
        self._asked: set[str] = set()
        """The paths of those that were, and of groups of which a warning was given."""

    def forget(self) -> None:
        """Ask of all of them once more: what was away may have come back as another one."""
        self._asked.clear()

    def warnings(self, announce: Callable[[Queue], object], say: Callable[[str], object]) -> None:
        """Warn of each queue in `begun` that may be a copy, by `say`. Call `announce` with each before it is asked.

        A queue that cannot be asked is passed by: the worker meets the error when it leases.
        """
        begun, self.begun = self.begun, []
        for queue in begun:
            path = queue.store.path
            group = str(queue.group.path) if isinstance(queue, GroupQueue) else path
            if not self._asked.isdisjoint((path, group)):
                continue
            self._asked.add(path)
            announce(queue)
            try:
                with resources.Scope():
                    is_copy = copies.is_copy(queue.store)
            except (OSError, FsqueueError) as error:
                logger.debug("whether %s is a copy could not be found out: %s", path, error)
                continue
            if is_copy:
                self._asked.add(group)
                if isinstance(queue, GroupQueue):
                    say(copy_warnings.in_group(queue.typed_path, group))
                else:
                    say(copy_warnings.of_queue(path))


def _is_limited(task: LeasedTask) -> bool:
    """Return whether the queue of a task has limits over all hosts. A gateway's counts as one without."""
    store = getattr(task.queue, "store", None)
    return isinstance(store, Store) and store.queue_state.is_limited
