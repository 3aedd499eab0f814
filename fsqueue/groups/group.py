"""A group of queues as users hold it, and the queues of one whose names match a pattern."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsqueue.arguments import bound_of, holder_of, limits_of_group, whole, window_ms, worker_of
from fsqueue.clock import Clock, duration_ms
from fsqueue.errors import (
    FsqueueError,
    GroupNotFound,
    InvalidArgument,
    NotAQueue,
    QueueFileLost,
    QueueNotFound,
    from_os_error,
)
from fsqueue.filesystem import resources
from fsqueue.forks import Late
from fsqueue.format import names
from fsqueue.format.layout import DEFAULTS, Settings, parent_of
from fsqueue.format.models import Result, Status
from fsqueue.format.names import QueueDirectory, QueueId
from fsqueue.format.priority import Rank
from fsqueue.groups import drain_check
from fsqueue.groups.drain_check import GroupDrainCheck
from fsqueue.groups.group_source import GroupPoll, GroupSource
from fsqueue.groups.queue import GroupQueue, listed_queue
from fsqueue.groups.queue_selection import Selected, compiled
from fsqueue.interruptions import let_out, suppress
from fsqueue.leased_task import LeasedTask
from fsqueue.poll import Errors, Poll, Until, check_loop, put_back_dropped
from fsqueue.protocol import waiting
from fsqueue.queue import Queue
from fsqueue.storage import group_directory, unopened_queues
from fsqueue.storage.discovery import queue_path
from fsqueue.storage.group_directory import GroupDirectory, GroupFileLost
from fsqueue.storage.store import Store
from fsqueue.user_code import user_function
from fsqueue.views.activity import Activity, activity, total_activity
from fsqueue.views.rates import total
from fsqueue.weak_table import WeakTable

logger = logging.getLogger("fsqueue")

NONE_S = 2.0
"""Time between two questions whether a group has barriers, while it has none."""
KEPT_MAX = 64
"""Maximum number of queues that a group keeps as they were used last."""


if TYPE_CHECKING:
    from fsqueue import administration
    from fsqueue import fsck as checker
    from fsqueue.format.barriers import OnFailure
    from fsqueue.fsck import Finding
    from fsqueue.groups import barriers, joins, lineage, task_numbers, update
    from fsqueue.groups.barriers import Barrier, BarrierLooks
    from fsqueue.groups.lineage import Lineage
    from fsqueue.groups.task_numbers import TaskNumbers
    from fsqueue.groups.update import Update
    from fsqueue.protocol import updates
    from fsqueue.views import flows, usage
    from fsqueue.views.flows import Flow
    from fsqueue.views.usage import Usage
else:
    barriers, joins = Late("fsqueue.groups.barriers"), Late("fsqueue.groups.joins")
    administration, flows = Late("fsqueue.administration"), Late("fsqueue.views.flows")
    checker, task_numbers = Late("fsqueue.fsck"), Late("fsqueue.groups.task_numbers")
    update, updates = Late("fsqueue.groups.update"), Late("fsqueue.protocol.updates")
    lineage, usage = Late("fsqueue.groups.lineage"), Late("fsqueue.views.usage")


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """Counts and activity of queues of a group: of all together, and the counts of each, by name.

    `activity` has the sum of the rates, the average duration over all measured tasks, and the oldest leases. `lost`
    names queues whose own file is gone (QueueFileLost): what is in them is not counted.
    """

    status: Status = field(default_factory=Status)
    activity: Activity = field(default_factory=lambda: total_activity([]))
    queues: dict[str, Status] = field(default_factory=dict)
    lost: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the status as a dict, ready for JSON."""
        return {
            **self.status.as_dict(),
            "activity": self.activity.as_dict(),
            "queues": {name: status.as_dict() for name, status in self.queues.items()},
            "lost": list(self.lost),
        }


class GroupQueues(Selected):
    """The queues of a group whose names match a pattern, also those that come later: `group.matching("fetch.*")`.

    `fsqueue.wait` and `Worker` take it among queues. Safe to use from many threads, and after a fork.
    """

    def __init__(self, group: Group, pattern: str | None = None, names_: tuple[str, ...] | None = None) -> None:
        super().__init__(group, pattern, names_)
        self._local = threading.local()

    def __repr__(self) -> str:
        return f"GroupQueues({str(self.group.path)!r}, {self.pattern!r})"

    def __reduce__(self) -> Any:
        return type(self), (self.group, self.pattern, self.names)

    def queues(self, pattern: str | None = None, tasks_min: int = 1) -> Iterator[GroupQueue]:
        """Yield the queues that match and have at least `tasks_min` unfinished tasks, by name. 0: also the empty ones,
        by one listing.

        `pattern`: only those whose whole names match this regular expression, too. A hint. Above 0, it reads in each
        queue the names of the task files, and the logs of its open batches; strays are left out then.
        """
        whole("tasks_min", tasks_min, 0)
        matches = None if pattern is None else compiled(pattern).fullmatch
        group = self.group
        for directory in sorted(self.directories()):
            if matches is not None and not matches(names.parse_queue_directory(directory) or ""):
                continue
            queue = listed_queue(group, directory)
            if not tasks_min:
                yield queue
                continue
            try:
                with resources.Scope():
                    left = unopened_queues.remaining(group.directory(), directory)
                is_meant = (queue.status(exact=False).remaining if left is None else left) >= tasks_min
            except NotAQueue:
                continue
            except QueueFileLost:
                is_meant = True  # tasks may be in it: what is asked of it next says so
            if is_meant:
                yield queue

    def status(self, pattern: str | None = None, *, exact: bool = True, window_s: float | None = None) -> GroupStatus:
        """Return counts, rates and durations over all queues that match, and the counts of each that ever had a task.

        `pattern`: only those whose whole names match this regular expression, too. `exact` and `window_s`: see
        `Queue.status` and `Queue.activity`; without `exact`, no activity is read. It opens each queue. What is read
        while others work is consistent queue by queue.
        """
        over_ms = None if window_s is None else window_ms(window_s)
        self.group.pass_barriers(at_once=exact)
        counts: dict[str, Status] = {}
        lost: list[str] = []
        summed, seen = Status(), total_activity([])
        for queue in self.queues(pattern, 0):
            with suppress(NotAQueue):
                try:
                    status = queue.status(exact)
                except QueueFileLost:
                    lost.append(queue.name)
                    continue
                if not status.inserted:
                    continue
                counts[queue.name] = status
                summed = total((summed, status))
                if exact:
                    found = queue.activity(window_s) if over_ms is None else activity(queue.store, over_ms)
                    seen = found if len(counts) == 1 else total_activity([seen, found])
            queue.close()
        return GroupStatus(summed, seen, counts, tuple(lost))

    def is_drained(self) -> bool:
        """Return whether at one instant nothing was waiting, delayed or leased in any of them."""
        return GroupDrainCheck([self])()

    def drained_proof(self) -> bytes | None:
        """Return a proof that all queues that match were drained at one instant; None if they are not. See
        `Queue.drained_proof`.
        """
        return self._proof_of(self)

    def _proof_of(self, given: object) -> bytes | None:
        return GroupDrainCheck([drain_check.source_of(given)]).proof()

    def wait(self, timeout_s: float | None = None, poll: Callable[[Status], object] | None = None) -> Status:
        """Wait until at one instant nothing is waiting, delayed or leased in any of them; return the sum.

        Queues that come while this waits are waited for, too. QueuePurged if one that was there when it began was
        purged, overwritten or deleted.
        """
        if poll is None:
            return drain_check.wait([self], timeout_s, None)[0]
        user_function(poll)  # raises InvalidArgument if it is no function
        return drain_check.wait([self], timeout_s, lambda found: poll(found[0]))[0]

    def _wait_together(
        self, given: Sequence[object], timeout_s: float | None, poll: Callable[[list[Status]], object] | None
    ) -> list[Status]:
        return drain_check.wait(given, timeout_s, poll)

    def _lease_together(
        self, given: Sequence[Queue], n: int, lease_ms: int | None, wait_s: float, up_to: Rank | None
    ) -> list[LeasedTask]:
        return waiting.wait(GroupSource(map(drain_check.source_of, given), lease_ms, up_to), n, wait_s)

    def lease(
        self,
        n: int = 1,
        *,
        lease_s: float | None = None,
        wait_s: float = 0,
        up_to: str | int | None = None,
        holder: Mapping[str, Any] | None = None,
    ) -> list[LeasedTask]:
        """Lease up to `n` tasks: the most urgent of all first, about; queues with equally urgent tasks take turns.

        `holder`: see `Queue.lease`.

        The first [] in a thread comes after a full look at each queue. Later ones cost little: they look at queues in
        which a process has rung. A bell whose write was lost is found within ten minutes (docs/group-cost.md,
        "Leasing").
        """
        whole("n", n)
        lease_ms = None if lease_s is None else duration_ms(lease_s, "lease_s", 0.001)
        bound = None if up_to is None else bound_of(up_to)
        put_back_dropped()
        how = lease_ms, bound, None if holder is None else holder_of(holder)
        if getattr(self._local, "how", None) != how:
            self._local.how, self._local.source = how, GroupSource([self], *how)
        source: GroupSource = self._local.source
        with resources.Scope():
            return waiting.wait(source, n, duration_ms(wait_s, "wait_s") / 1000)

    def poll(
        self,
        *,
        lease_s: float | None = None,
        prefetch: int = 1,
        until: Until = "drained",
        errors: Errors = "record",
        stop_after_failures: int | None = None,
    ) -> Poll:
        """Return an iterator over leased tasks of all queues that match, until all are drained or for ever: see
        `Queue.poll`.
        """
        check_loop(prefetch, until, errors, stop_after_failures)
        lease_ms = None if lease_s is None else duration_ms(lease_s, "lease_s", 0.001)
        return GroupPoll([self], lease_ms, prefetch, until, errors, stop_after_failures)


class Group(GroupQueues):
    """A directory of queues: ``group["fetch"].insert(payload)`` makes the queue `fetch` if it is not there.

    `path`: a directory or `fq://` and a directory. `worker`: a name to appear under in logs. The group must be there:
    `Group.create` makes one. docs/groups.md tells more.

    GroupNotFound if there is none; NotAQueue if its file is damaged. GroupNotFound from each verb if the group is not
    in its place any more, or another one is: perhaps its filesystem was unmounted.
    """

    def __init__(self, path: str | os.PathLike[str], *, worker: str | None = None) -> None:
        self._path = queue_path(path)
        self.worker = worker_of(worker)
        self._opened: GroupDirectory | None = None
        self._id: QueueId | None = None
        """The id of the group that was opened first: no other one is opened."""
        self._opening = resources.Mutex()
        self.coordinator = updates.Coordinator()
        """Applies its updates in this process."""
        self._numbers = task_numbers.KnownNumbers()
        self._looks: BarrierLooks | None = None
        """None as long as it has no barriers, as far as is known; ..."""
        self._asks_at, self._clock = -math.inf, Clock()
        """... which is asked again from this time on (monotonic clock)."""
        self._kept: dict[QueueDirectory, GroupQueue] = {}
        self._open_queues: WeakTable[GroupQueue, None] = WeakTable()
        """All queues of it that were opened."""
        super().__init__(self)
        self.directory()

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        worker: str | None = None,
        exist_ok: bool = False,
        allow_unsafe: bool = False,
        **queue_defaults: Any,
    ) -> Group:
        """Make a group, whole or not at all, and open it. Parents of `path` are made as needed.

        `queue_defaults`: settings that its queues begin with, as for `Queue.create`. Errors as of `Queue.create`. With
        `exist_ok`, InvalidArgument if it is there with others than those that are given.
        """
        where, settings = queue_path(path), asked(queue_defaults)
        try:
            with resources.Scope():
                administration.create_group(where, settings, exist_ok=exist_ok, allow_unsafe=allow_unsafe)
        except OSError as error:
            raise from_os_error(error, f"creating the group {where}") from error
        made = cls(where, worker=worker)
        _refuse_others(made, {name: getattr(settings, name) for name in queue_defaults})
        return made

    @property
    def group(self) -> Group:
        """Return the group itself."""
        return self

    @property
    def numbers(self) -> TaskNumbers:
        """Return the numbers that are ids of the group's tasks, for clients of taskstore."""
        return task_numbers.TaskNumbers(self, self._numbers)

    @property
    def path(self) -> Path:
        """Return the group's directory."""
        return Path(self._path)

    @property
    def settings(self) -> Settings:
        """Return the settings with which the group's queues begin. The limits among them are the group's own."""
        return self.directory().state.settings

    def set_limits(self, /, **limits: Any) -> Settings:
        """Change limits of the group, over all of its queues and all hosts: `max_leased`, `limit`, `rate`. Return all
        settings.

        `group.set_limits(limit={"licence": 4})` lets at most four tasks whose payloads have one value of `licence`
        be leased at one instant, in all queues of the group together. See `Queue.change_settings`: a queue's own limits
        hold besides. A group may have limits by three fields. Queues that come later keep to them, too.

        It is durable when this returns. InvalidArgument, with nothing changed, for another setting: `settings` of a
        group are those with which its queues begin, and these stay. LockTimeout if the file of a queue stays locked.
        """
        given = limits_of_group(limits, self._path)
        try:
            with resources.Scope():
                return administration.set_group_limits(self.directory(), given)
        except OSError as error:
            raise from_os_error(error, f"setting limits of the group {self._path}") from error

    @property
    def id(self) -> str:
        """Return the group's id. A group that is made later at the same path has another."""
        return self.directory().state.id

    def close(self) -> None:
        """Close the group's directory, and each of its queues that is open. Leases go on; the group may be used
        again.
        """
        with resources.Scope(), self._opening:
            opened, self._opened, self._kept, self._numbers = self._opened, None, {}, task_numbers.KnownNumbers()
            queues = self._open_queues.living()
            self._open_queues.clear()
        self._local = threading.local()  # with what this group leases from
        self.coordinator.close()
        for queue in queues:
            queue.close()
            queue._let_go()  # it is opened in the group's directory, which is closed, too
        if opened is not None:
            opened.fs.close_root()

    def note_open(self, queue: GroupQueue) -> None:
        """Take note of a queue that is open now: closing the group closes it."""
        self._open_queues[queue] = None

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Group({self._path!r})"

    def __reduce__(self) -> Any:
        return _again, (self._path, self.worker)

    def __eq__(self, other: object) -> bool:
        return self._path == other._path if isinstance(other, Group) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._path)

    def __getitem__(self, name: str) -> GroupQueue:
        """Return a queue by its name: any text of at most 255 bytes, encoded. InvalidArgument for any other.

        It is the same object as the last time, and open if that was: the 64 that were used last are kept.
        """
        return self.opened_queue(names.queue_directory(name))

    def matching(self, pattern: str) -> GroupQueues:
        """Return the queues whose whole names match a regular expression, also those that come later."""
        return GroupQueues(self, pattern)

    def update(self) -> Update:
        """Return an update: changes to tasks of the group's queues that happen all together, or not at all.

            with group.update() as update:
                update.complete(task)
                update.insert("parse", page)

        It is applied at the end of the block. docs/updates.md tells more.
        """
        return update.Update(self)

    def barrier(self, queues: Any, then: Any, *, on_failure: OnFailure = "run") -> Barrier:
        """Insert tasks that become available once, when at one instant all of `queues` are drained.

            group.barrier(["fetch", "parse"], then=("report", {"of": "today"}))

        `queues`: names, queues of the group, or `group.matching(...)`. `then`: (queue, payload), or a list of such; a
        payload may be a Task with a priority. The tasks are in their queues at once, as delayed ones, so these are not
        drained. Insert what is to be waited for before: queues that are drained already let the barrier pass at once.
        Dead letters are no tasks that are left. If there are some at that instant, `on_failure` says what to do: "run"
        all the same; "wait" until there are none; "drop", which cancels the barrier.

        Idle workers of the group, `wait`, `status` and `gc` let it pass: docs/barriers.md. InvalidArgument;
        TaskTooLarge; GroupNotFound.
        """
        return self._hurried(barriers.set_barrier(self, queues, then, on_failure))

    def join(self, tasks: Any, then: Any, *, on_failure: OnFailure = "wait") -> Barrier:
        """Have tasks become available once all tasks of a set are done, whichever process dies. Return the barrier.

            refs = [group["fetch"].insert(page) for page in pages]
            group.join(refs, then=("report", {"of": "today"}))

        `tasks`: references, as `insert` returns them; or a named commit (`queue.commit(name)`, or (queue, name)), which
        was published; or several of either. `then`: as of `barrier`. The task that comes then finds what came of the
        set by `inputs()`. A cancelled task is done, and so is one whose queue was purged or deleted. `on_failure` is
        for dead letters:
        "wait" until they are retried and done, or purged; "run" all the same; "drop", which cancels this barrier.

        Who lets it pass, and when: docs/barriers.md. InvalidArgument; TaskTooLarge; GroupNotFound.
        """
        return self._hurried(barriers.set_join(self, tasks, then, on_failure))

    def _inputs_of(self, queue: GroupQueue, task_id: str) -> Iterator[Result]:
        """Yield what came of the tasks that the join of a task of this queue has waited for."""
        return joins.inputs(self, self.directory(), queue.store, task_id)

    def _hurried(self, made: Barrier) -> Barrier:
        """Have the next look at the barriers happen at once."""
        self._asks_at = -math.inf
        if self._looks is not None:
            self._looks.hurry()
        return made

    def barriers(self) -> list[Barrier]:
        """Return the group's barriers, the oldest first: those that wait, and those that have ended within a week."""
        self.pass_barriers(at_once=True)
        return barriers.all_of(self)

    def pass_barriers(self, *, at_once: bool = False) -> int:
        """Let barriers pass whose queues are drained. Return how many did.

        Whatever finds nothing to do calls this. Unless `at_once`, it does nothing if this process has looked just now.
        Errors are logged: what is asked next meets them.
        """
        looks = self._looks
        try:
            if looks is None:
                now = self._clock.monotonic()
                if not at_once and now < self._asks_at:
                    return 0
                self._asks_at = now + NONE_S
                with resources.Scope():
                    if not self.directory().has_barriers():
                        return 0
                looks = self._looks = barriers.BarrierLooks(NONE_S)
            with resources.Scope():
                return looks.look(self, at_once=at_once)
        except (OSError, FsqueueError) as error:
            let_out(error)
            logger.debug("the barriers of %s could not be looked at: %s", self._path, error)
            return 0

    def barriers_due_s(self) -> float:
        """Return in how many seconds to call `pass_barriers` again at the latest."""
        return math.inf if self._looks is None else self._looks.due_s()

    def flows(self) -> list[Flow]:
        """Return which queues' tasks updates complete that insert into which, the most frequent first; [] if none did.

        It is read from the latest updates, in bounds, as far as `gc` keeps what decided them. A hint.
        """
        group = self.directory()
        opened: dict[QueueDirectory, GroupQueue] = {}

        def store_of(directory: QueueDirectory) -> Store | None:
            queue = opened[directory] = opened.get(directory) or self.queue_in(directory)
            try:
                return queue.store
            except (QueueNotFound, NotAQueue):
                return None

        try:
            with resources.Scope():
                return flows.flows(group, store_of)
        except OSError as error:
            raise from_os_error(error, f"reading the updates of the group {group.path}") from error
        finally:
            for queue in opened.values():
                queue.close()

    def opened_queue(self, directory: QueueDirectory) -> GroupQueue:
        """Return the queue of a directory, the same object as the last time if that is kept."""
        kept = self._kept.get(directory)
        if kept is not None and len(self._kept) < KEPT_MAX:
            return kept  # as in most cases: no queue has to make room for another one
        with resources.Scope(), self._opening:
            queue = self._kept.pop(directory, None)
            if queue is None:
                queue = GroupQueue(self, names.parse_queue_directory(directory) or directory, is_kept=True)
            self._kept[directory] = queue
            while len(self._kept) > KEPT_MAX:
                self._kept.pop(next(iter(self._kept)))
        return queue

    def opener(self) -> Callable[[], Group]:
        """Return a function that opens the same group once more. It does not keep this object."""
        return partial(_again, self._path, self.worker, self._id)

    def delete(self, name: str, *, foreground: bool = False) -> bool:
        """Delete a queue at once, whatever its size. Return False if there was none.

        A worker that holds tasks of it gets an error for each. An insert that comes later makes the queue anew.
        """
        self.directory()  # GroupNotFound: a queue that is kept open does not ask for its group
        queue = self[name]
        is_there = queue.exists()
        queue.delete(foreground=foreground)
        return is_there

    def usage(self) -> dict[str, Usage]:
        """Return the files, directories and bytes of the group, and of its queues, by what they are for: see
        `Queue.usage`. Those that decide about updates are "updates".
        """
        group = self.directory()

        def of_each() -> Iterator[dict[str, Usage]]:
            for queue in self.queues(tasks_min=0):
                with suppress(NotAQueue):
                    yield queue.usage()
                    queue.close()

        try:
            with resources.Scope():
                return usage.of_group(group, of_each())
        except OSError as error:
            raise from_os_error(error, f"counting the files of the group {group.path}") from error

    def lineage(self, queue: str, id: str) -> Lineage:
        """Return the tasks that a task came of by updates, stage by stage, and those that came of it. A hint.

        It reads the logs, or the history, of the batches concerned, 200 at most. docs/pipelines.md, "Follow a task",
        says how long that is known. InvalidArgument for what is no name of a queue, or no id.
        """
        return lineage.Search(self.directory(), self.queue_in).lineage(names.queue_directory(queue), id)

    def fsck(self, *, repair: bool = False) -> Iterator[Finding]:
        """Yield what is wrong with the group's own files: those that decide about atomic updates.

        Each of its queues is checked by itself: see `Queue.fsck`. With `repair`, each finding is mended before it is
        yielded.
        """
        group = self.directory()
        found = checker.fsck_group(group, repair)
        while True:
            try:
                with resources.Scope():
                    finding = next(found)
            except StopIteration:
                return
            except OSError as error:
                raise from_os_error(error, f"checking the group {group.path}") from error
            yield finding

    def directory(self) -> GroupDirectory:
        """Return the open group, which is in its place. GroupNotFound if it is not, or another one is: nothing is made.

        A group that comes back to its path, as one that is mounted again, is opened again.
        """
        opened = self._opened
        try:
            with resources.Scope():
                if opened is not None and opened.is_in_place():
                    return opened
            with resources.Scope(), self._opening:
                if self._opened is not opened and self._opened is not None:
                    return self._opened  # another thread was faster
                self._opened = found = self._open()
                return found
        except OSError as error:
            raise from_os_error(error, f"opening the group {self._path}") from error

    def _open(self) -> GroupDirectory:
        """Open the group, perhaps anew. GroupNotFound if another one is there than was opened before."""
        try:
            found = GroupDirectory(self._path)
        except GroupFileLost:
            raise
        except GroupNotFound as error:
            if self._id is None:
                raise
            raise group_directory.gone(self._path) from error
        if self._id not in (None, found.state.id):
            raise group_directory.replaced(self._path)
        self._id = found.state.id
        return found

    # -- paths --------------------------------------------------------------------------------------------------

    @classmethod
    def queue_at(cls, path: str | os.PathLike[str], worker: str | None = None) -> Queue:
        """Return the queue that a path means: the queue of that directory, or with GROUP/NAME the queue of a group.

        NAME is the queue's name, as it was given to `group[NAME]`: a path's `//`, `.` and `..` count as in any path,
        unless NAME is a URL. A queue of a group need not be there yet. Errors as of `Queue`.
        """
        where = queue_path(path)
        try:
            with resources.Scope():
                found = group_directory.resolve(where)
        except OSError as error:
            raise from_os_error(error, f"opening the queue {where}") from error
        if found is None:
            try:
                return Queue(where, worker)
            except (QueueNotFound, NotAQueue):
                for holder in (where, parent_of(where)):
                    group_directory.refuse_lost(holder)
                raise
        return GroupQueue(cls(found[0], worker=worker), _name_as_typed(os.fspath(path), *found))

    @classmethod
    def holding(cls, path: str | os.PathLike[str]) -> str | None:
        """Return the path of the group in which a path lies; None if it lies in none. A group lies in none."""
        where = queue_path(path)
        try:
            with resources.Scope():
                found = group_directory.resolve(where)
        except OSError as error:
            raise from_os_error(error, f"looking for the group of {where}") from error
        return None if found is None else found[0]

    @classmethod
    def at(cls, path: str | os.PathLike[str], worker: str | None = None) -> Group | None:
        """Return the group at a path; None if there is none. GroupNotFound if its own file is gone, and its queues are
        there.
        """
        where = queue_path(path)
        try:
            with resources.Scope():
                is_there = group_directory.is_group(where)
                if not is_there:
                    group_directory.refuse_lost(where)
            return cls(where, worker=worker) if is_there else None
        except OSError as error:
            raise from_os_error(error, f"looking for a group at {where}") from error


def _name_as_typed(path: str, group: str, name: str) -> str:
    """Return the name of a queue in a user's path. A URL stays as typed: as a path, it would lose one of its slashes.

    `group`, `name`: what the path means without its dots and doubled slashes.
    """
    text = path.removeprefix("fq://")
    if "://" not in text:
        return name
    ends = (at for at, char in enumerate(text) if char == "/" and at and queue_path(text[:at]) == group)
    at = next(ends, None)
    return name if at is None else text[at:].lstrip("/")


def asked(given: dict[str, Any]) -> Settings:
    """Return the defaults with what was given. InvalidArgument for what is no setting, or out of range."""
    for name in given:
        if name not in Settings.__dataclass_fields__:
            known = ", ".join(asdict(DEFAULTS))
            raise InvalidArgument(f"There is no setting {name!r}. A group's queues have: {known}. Nothing was done.")
    return replace(DEFAULTS, **given)


def _refuse_others(group: Group, given: dict[str, Any]) -> None:
    """Raise InvalidArgument if a group has other settings for its queues than those that are given."""
    settings = group.settings
    others = [name for name, value in given.items() if getattr(settings, name) != value]
    if others:
        said = ", ".join(f"{name} is {getattr(settings, name)!r}" for name in sorted(others))
        raise InvalidArgument(
            f"The group {group.path} has other settings for its queues: {said}. Nothing was done. Leave them out "
            "to use the group as it is, or choose another path."
        )


def _again(path: str, worker: str | None, identity: QueueId | None = None) -> Group:
    group = Group(path, worker=worker)
    if identity not in (None, group.id):
        raise group_directory.replaced(path)
    return group
