"""A queue of a group: it leases nothing, and its status is zero, until a task is inserted into it."""

from __future__ import annotations

import inspect
import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fsqueue.arguments import (
    check_commit,
    check_lease,
    task_ids,
    task_to_insert,
    tasks_to_insert,
    translated,
    verb,
    whole,
)
from fsqueue.errors import (
    FsqueueError,
    GroupNotFound,
    InvalidArgument,
    QueueClosed,
    QueueNotFound,
    StorageError,
    from_os_error,
)
from fsqueue.filesystem import resources
from fsqueue.forks import Late
from fsqueue.format import names
from fsqueue.format.layout import Pause, Settings
from fsqueue.format.models import Result, Status, TaskInfo, TaskRef
from fsqueue.format.priority import Rank
from fsqueue.interruptions import let_out, suppress
from fsqueue.leased_task import LeasedTask
from fsqueue.poll import Errors, Poll, Prefetched, Until
from fsqueue.protocol import insert_errors, keyed_inserts, losses
from fsqueue.protocol.leasing import Leaser
from fsqueue.protocol.waiting import IdlePoller, TaskSource
from fsqueue.queue import Order, Queue, open_store
from fsqueue.storage.group_directory import BEGIN_TRIES, GroupDirectory, QueueMoved
from fsqueue.storage.store import Store, domain_of
from fsqueue.user_code import user_function
from fsqueue.verbs.table import OF_QUEUES

if TYPE_CHECKING:
    from fsqueue import administration
else:
    administration = Late("fsqueue.administration")

Check = Callable[[Settings, str], object]
"""Raises InvalidArgument if what is to be inserted does not go into a new queue of these settings, in this domain: see
`Store`."""

_OPENED = ("store", "_inserter", "_keyed")
"""Attributes that a queue of a group has while it is open."""
_MADE: dict[str, Callable[[GroupQueue], object]] = {
    "name": lambda queue: names.parse_queue_directory(queue.directory) or queue.directory,
    "_path": lambda queue: queue.group.path / queue.directory,
    "_local": lambda queue: threading.local(),
    "_opening": lambda queue: resources.Mutex(),
}
"""Attributes that a queue of a group has from its first use on, each with the function that makes it."""


class HasQueues(Protocol):
    """Say what a queue asks of its group. `Group` has it."""

    worker: str | None

    @property
    def path(self) -> Path:
        """Return the group's directory."""

    def opener(self) -> Callable[[], HasQueues]:
        """Return a function that opens the same group once more. It does not keep this object."""

    @property
    def settings(self) -> Settings:
        """Return the settings with which the group's queues begin."""

    def directory(self) -> GroupDirectory:
        """Return the open group. GroupNotFound if it is not in its place, or another one is."""

    def opened_queue(self, directory: names.QueueDirectory) -> GroupQueue:
        """Return the queue of a directory, the same object as the last time if that is kept."""

    def note_open(self, queue: GroupQueue) -> None:
        """Take note of a queue that is open now: closing the group closes it."""

    def update(self) -> Any:
        """Return an empty update of queues of this group."""

    def _wait_together(
        self, given: Sequence[object], timeout_s: float | None, poll: Callable[[list[Status]], object] | None
    ) -> list[Status]:
        """Wait for what was given to `fsqueue.wait`, if one of those is a queue of a group, or queues of one."""

    def pass_barriers(self, *, at_once: bool = False) -> int:
        """Let barriers pass whose queues are drained: see `Group.pass_barriers`."""

    def barriers_due_s(self) -> float:
        """Return in how many seconds to call `pass_barriers` again at the latest."""

    def _inputs_of(self, queue: GroupQueue, task_id: str) -> Iterator[Result]:
        """Yield what came of the tasks that the join of a task of this queue has waited for."""

    def _proof_of(self, given: object) -> bytes | None:
        """Return `drained_proof` of a queue of this group, or of queues of it."""

    def _lease_together(
        self, given: Sequence[Queue], n: int, lease_ms: int | None, wait_s: float, up_to: Rank | None
    ) -> list[LeasedTask]:
        """Lease from what was given to `fsqueue.lease`, if a queue of this group is among it."""


def drained_behind_barriers(
    is_drained: Callable[[], bool], groups: Iterable[HasQueues], pass_them: Callable[[], int] | None = None
) -> bool:
    """Return whether queues are drained, also once those barriers of the groups have passed that may pass now.

    `is_drained` asks about the queues. `pass_them`, if given, lets the barriers pass, and returns how many did.
    """
    if not is_drained():
        return False
    passed = sum(group.pass_barriers(at_once=True) for group in groups) if pass_them is None else pass_them()
    return not passed or is_drained()  # the next stage has begun, and may be among these queues


class GroupQueue(Queue):
    """A queue of a group: `group["fetch"]`. It comes into being when the first task is inserted.

    Until then, and after it was deleted, it leases nothing, all counts of it are zero, and `wait` calls it drained.
    What changes a queue that has to be there (`pause`, `resume`, `change_settings`) raises QueueNotFound. An insert
    into a queue that was deleted makes it anew, with the settings of the group. NotAQueue if something else has its
    place: a link, a file, or a queue that was not made in this group. GroupNotFound from each verb if the group itself
    is not in its place: perhaps it is not mounted.

    All else is as in `Queue`. Safe to use from many threads, and after a fork; pickled, it is opened anew.
    """

    name: str
    _path: Path
    _opening: resources.Mutex
    _directory: names.QueueDirectory
    _held: HasQueues | None
    _seen: weakref.ref[HasQueues]
    _open_group: Callable[[], HasQueues]
    """Only of a queue that the group keeps, as `_seen`."""
    _leases_for_others = False

    def __init__(self, group: HasQueues, name: str, *, is_kept: bool = False) -> None:
        """`is_kept`: the group keeps this object. Then this object does not keep the group: both end with the group's
        last user.
        """
        self._held = group
        self._directory = names.queue_directory(name)
        self.name = name
        if is_kept:
            self._seen, self._open_group, self._held = weakref.ref(group), group.opener(), None

    def __getattr__(self, attribute: str) -> Any:
        """Make what most queues that are listed never need. Open the queue when something asks for its store.

        QueueNotFound if it has not come into being.
        """
        if attribute in _OPENED:
            self._open()
        elif attribute in _MADE:
            self.__dict__.setdefault(attribute, _MADE[attribute](self))  # another thread may have made one just now
        else:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {attribute!r}")
        return self.__dict__[attribute]

    # -- what it is ---------------------------------------------------------------------------------------------

    @property
    def group(self) -> HasQueues:
        """Return the queue's group; if nothing refers to it any more, the same one, opened anew. GroupNotFound."""
        group = self._held or self._seen()
        if group is None:
            group = self._held = self._open_group()
        return group

    @property
    def directory(self) -> names.QueueDirectory:
        """Return the name of the queue's directory in the group."""
        return self._directory

    @property
    def path(self) -> Path:
        """Return the queue's directory, whether the queue has come into being or not."""
        return self._path

    @property
    def settings(self) -> Settings:
        """Return the queue's settings; those of the group, as long as the queue has not come into being."""
        if self._has_looked():
            return self.store.settings
        return replace(self.group.settings, max_leased=None, limit={}, rate=None)  # these are the group's own

    @property
    def generation(self) -> int:
        """Return the number of the queue's generation: each purge begins the next."""
        return self.store.queue_state.generation if self._has_looked() else 1

    @property
    def has_priorities(self) -> bool:
        """Return whether tasks with priorities were ever inserted."""
        return self._has_looked() and self.store.queue_state.is_ordered

    @property
    def paused(self) -> Pause | None:
        """Return since when, by whom and why no task is leased; None if the queue is not paused."""
        return self.store.queue_state.paused if self._has_looked() else None

    @property
    def typed_path(self) -> str:
        """Return the queue's path as a user types it for a command: GROUP/NAME, with the name as it is."""
        return f"{self.group.path}/{self.name}"

    def exists(self) -> bool:
        """Return whether the queue has come into being, and was not deleted since."""
        return self._has_looked(lambda: self.store.refresh(now=True))

    def _has_looked(self, look: Callable[[], object] | None = None) -> bool:
        """Return whether the queue is there, once `queue.jsonl` was read anew if it has changed, or `look` was
        called.
        """
        if self._opens():
            try:
                with resources.Scope():
                    (look or self.store.verify)()
            except QueueNotFound:
                self._let_go()
            except OSError as error:
                raise from_os_error(error, f"looking for the queue {self._path}") from error
        return self._opens()

    def __repr__(self) -> str:
        return f"GroupQueue({str(self.group.path)!r}, {self.name!r})"

    def __eq__(self, other: object) -> bool:
        return self.path == other.path if isinstance(other, Queue) else NotImplemented

    def __hash__(self) -> int:
        return hash(str(self._path))

    def __reduce__(self) -> Any:
        return type(self), (self.group, self.name)

    def close(self) -> None:
        """Close what is open. Leases go on; the queue may be used again."""
        if "store" in self.__dict__:
            super().close()

    # -- open, and come into being --------------------------------------------------------------------------------

    def _open(self) -> None:
        """Open the queue, and prove that it is this group's. QueueNotFound, NotAQueue, GroupNotFound."""
        with resources.Scope(), self._opening:
            if "store" in self.__dict__:
                return
            group = self.group.directory()
            try:
                store = self._open_in(group)
                group.prove(store, self._directory)
                if group.state.limits is not None and not store.queue_state.has_group_limits:
                    group.mark_late(store)  # it was moved back, or restored
            except OSError as error:
                raise from_os_error(error, f"opening the queue {self._path}") from error
            if self._leases_for_others:
                store.lease_for_others()
            self.group.note_open(self)
            self._work_on(store)

    def _open_in(self, group: GroupDirectory) -> Store:
        try:
            return open_store(self._path, self.group.worker, holder=group)
        except QueueClosed:
            raise
        except (FsqueueError, OSError) as error:  # a client may remember what is not so any more: this asks the server
            let_out(error)
            if not group.has_queue(self._directory):
                raise QueueNotFound(
                    f"There is no queue {self.name!r} in the group {group.path} yet, or no longer. It comes into being "
                    "when the first task is inserted."
                ) from None
        return open_store(self._path, self.group.worker, holder=group)

    def _opens(self) -> bool:
        """Return whether it has come into being, as far as this object knows. GroupNotFound: nobody knows."""
        if "store" not in self.__dict__:
            try:
                self._open()
            except QueueNotFound:
                return False
        return True

    def _let_go(self) -> None:
        """Forget a queue that was deleted. Another one may come into being, or has."""
        with resources.Scope(), self._opening:
            self._local = threading.local()
            for one in _OPENED:
                self.__dict__.pop(one, None)

    def _why_gone(self, error: QueueNotFound) -> FsqueueError:
        """Return the error for a queue that is not there: GroupNotFound if it is gone with its group.

        Then the queue is let go of: if the group comes back, it is opened anew.
        """
        try:
            self.group.directory()
        except GroupNotFound as away:
            self._let_go()
            if error.new is None and error.is_exact:
                return away
            found = GroupNotFound(f"{away} {insert_errors.NOTHING if error.is_exact and not error.new else error}")
            found.inserted, found.new, found.is_exact = error.inserted, error.new, error.is_exact
            found.advice, found.why = error.advice, away.why
            return found
        return error

    def _lost_with_it(self, error: QueueNotFound, tasks: Iterable[LeasedTask]) -> FsqueueError:
        """Return the error for leases of a queue that is gone: GroupNotFound if it is gone with its group.

        One that is not in its group, which is in its place, was deleted.
        """
        if (failure := self._why_gone(error)) is not error:
            return failure
        self._let_go()
        return losses.of_deleted(tasks)

    def _open_and_verify(self) -> None:
        """Open the queue, anew if it was deleted meanwhile. QueueNotFound: there is none, and none is made."""
        try:
            self.store.verify()
        except QueueNotFound:
            self._let_go()
            self.store.verify()

    def _begin(self, verifies: bool, check: Check) -> None:
        """Make the queue if it is not there, and open it. `verifies`: ask whether one that is open was deleted.

        `check` is called before it is made. An error says that nothing was inserted: nothing was, by then.
        """
        store = self.__dict__.get("store")
        if store is not None and (not verifies or store.queue_file.is_unchanged()):
            return  # as in most cases
        try:
            with resources.Scope():
                self._begin_or_open(verifies, check)
        except OSError as error:
            let_out(error)
            failure = from_os_error(error, f"making the queue {self._path}", insert_errors.NOTHING)
            insert_errors.note_none_inserted(failure)
            raise failure from error
        except InvalidArgument as error:
            insert_errors.note_none_inserted(error)
            raise
        except FsqueueError as error:
            insert_errors.say_none_inserted(error)
            raise

    def _begin_or_open(self, verifies: bool, check: Check) -> None:
        for _ in range(BEGIN_TRIES):
            try:
                if self._opens():
                    if verifies:
                        self.store.verify()
                    return
            except QueueNotFound:
                self._let_go()
                continue
            try:
                with resources.Scope():
                    group = self.group.directory()
                    check(group.state.settings, domain_of(group.fs))
                    group.begin(self._directory)
            except QueueClosed:
                administration.finish_deletion(str(self._path))
            except QueueMoved:
                continue
        raise StorageError(f"Other processes delete the queue {self._path} as often as this one makes it.")

    def insert(
        self,
        payload: Any,
        *,
        key: str | None = None,
        priority: str | int | None = None,
        delay_s: float = 0,
        available_at: float | None = None,
        strict: bool = False,
    ) -> TaskRef:
        """Insert one task: see `Queue.insert`. The queue comes into being, if there is none."""
        for left in reversed(range(BEGIN_TRIES)):
            if "store" not in self.__dict__:
                given = {"key": key, "priority": priority, "delay_s": delay_s, "available_at": available_at}
                self._begin(False, partial(self._check_insert, payload, given | {"strict": strict}))
            try:
                return super().insert(
                    payload, key=key, priority=priority, delay_s=delay_s, available_at=available_at, strict=strict
                )
            except QueueNotFound as error:
                self._let_go()
                if not left or error.new or not error.is_exact:  # it may be in the queue, if that was moved elsewhere
                    raise
        raise AssertionError("unreachable")

    @verb("inserting")
    def _check_insert(self, payload: Any, given: dict[str, Any], settings: Settings, domain: str) -> None:
        task = task_to_insert(payload, settings.task_bytes_max, **given)
        if task.key is not None:
            keyed_inserts.check(task, str(self._path), settings, domain)

    # -- while it is not there ------------------------------------------------------------------------------------

    def _poll(
        self,
        lease_s: float | None,
        prefetch: int,
        until: Until,
        errors: Errors,
        stop_after_failures: int | None,
        exchange: bool = True,
    ) -> Poll:
        is_there = self._opens()
        waits: Until = "forever" if until == "drained" and not is_there else until
        poll = super()._poll(lease_s, prefetch, waits, errors, stop_after_failures, exchange)
        if waits != until:
            poll.close()  # nothing is left to do
        return poll

    def _end_check(self, ahead: Prefetched) -> Callable[[], bool]:
        """Return a function that tells a loop whether the queue is drained, or was deleted: nothing is left to
        do then.
        """
        check: Callable[[], bool] | None = None

        def is_over() -> bool:
            nonlocal check
            try:
                if check is None:
                    check = super(GroupQueue, self)._end_check(ahead)
                return drained_behind_barriers(check, [self.group])
            except QueueNotFound as error:
                check = None  # perhaps another one has come into being: it is looked at next
                if (failure := self._why_gone(error)) is not error:
                    raise failure from error
                self._let_go()
                return not self._opens()

        return is_over

    def _source(
        self, leaser: Callable[[], Leaser], lease_ms: int | None, strict: bool = False, up_to: Rank | None = None
    ) -> TaskSource:
        return ComingQueue(self, lambda: IdlePoller(leaser(), lease_ms, strict, up_to))

    def lease_for_others(self) -> None:
        """Lease for the holders of the tokens from now on: see `Store.lease_for_others`."""
        self._leases_for_others = True
        if self._opens():
            self.store.lease_for_others()

    def lease(
        self,
        n: int = 1,
        *,
        lease_s: float | None = None,
        wait_s: float = 0,
        up_to: str | int | None = None,
        order: Order = "priority",
        strict: bool = False,
        holder: Mapping[str, Any] | None = None,
        depends: Iterable[LeasedTask | TaskInfo] = (),
    ) -> list[LeasedTask]:
        """Lease up to `n` tasks: see `Queue.lease`. With `wait_s`, wait up to that for the queue itself, too.

        `depends`: tasks of the group that must be as they were seen while the new leases hold, as in `Update.depends`.
        UpdateConflict if one is not, also if no task is available: nothing is leased then. Tasks that were leased
        before the conflict was found are put back at once, and no attempt is counted.
        """
        given: object = depends
        if type(given) is not tuple and not isinstance(given, Iterable):
            raise InvalidArgument(f"depends takes a list of tasks, not {given!r:.100}. Nothing was done.")
        conditions = [*given]
        how: dict[str, Any] = {
            "lease_s": lease_s, "up_to": up_to, "order": order, "strict": strict, "holder": holder,
        }  # fmt: skip
        if conditions:
            check = self.group.update()
            for task in conditions:
                check.depends(task)
            tasks = self.lease(n, wait_s=wait_s, **how)
            try:
                check.apply()
            except BaseException:
                with suppress(FsqueueError):  # they come back when their leases run out
                    self.release(tasks)
                raise
            return tasks
        if wait_s != 0:
            return super().lease(n, wait_s=wait_s, **how)
        while "store" in self.__dict__ or self._opens():  # the former, in most cases
            try:
                got = super().lease(n, **how)
                return got or (super().lease(n, **how) if self.group.pass_barriers() else got)
            except QueueNotFound:  # it was deleted; perhaps another one has come into being
                self._let_go()
        whole("n", n)
        check_lease(**how)
        self.group.pass_barriers()
        return []

    def lease_for(
        self,
        wanted: Sequence[tuple[int, Mapping[str, Any]]],
        *,
        lease_s: float | None = None,
        up_to: str | int | None = None,
        order: Order = "priority",
        strict: bool = False,
    ) -> list[list[LeasedTask]]:
        """Lease for several workers at once: see `Queue.lease_for`."""
        while self._opens():
            try:
                got = super().lease_for(wanted, lease_s=lease_s, up_to=up_to, order=order, strict=strict)
                if not any(got):
                    self.group.pass_barriers()
                return got
            except QueueNotFound:  # it was deleted; perhaps another one has come into being
                self._let_go()
        return [[] for _ in wanted]

    def inputs(self, task: LeasedTask | TaskRef | str) -> Iterator[Result]:
        """Yield what came of the tasks that a join has waited for: see `LeasedTask.inputs`. `task`: one that it began.

        InvalidArgument if no join of the last week has inserted the task.
        """
        [task_id] = task_ids(task.id if isinstance(task, LeasedTask) else task)
        return translated(self, self.group._inputs_of(self, task_id), "looking for the inputs of a task")

    def drained_proof(self) -> bytes | None:
        """Return a proof that the queue is drained; None if it is not. A queue that never existed has one, too. See
        `Queue.drained_proof`.
        """
        return self.group._proof_of(self)

    def wait(self, timeout_s: float | None = None, poll: Callable[[Status], None] | None = None) -> Status:
        """Wait until nothing is waiting, delayed or leased: see `Queue.wait`. One that never was is drained."""
        if poll is None:
            return self.group._wait_together([self], timeout_s, None)[0]
        user_function(poll)  # raises InvalidArgument if it is no function
        return self.group._wait_together([self], timeout_s, lambda found: poll(found[0]))[0]

    def _wait_together(
        self, given: Sequence[object], timeout_s: float | None, poll: Callable[[list[Status]], object] | None
    ) -> list[Status]:
        """Wait for what was given to `fsqueue.wait`, this queue among it."""
        return self.group._wait_together(given, timeout_s, poll)

    def _lease_together(
        self, given: Sequence[Queue], n: int, lease_ms: int | None, wait_s: float, up_to: Rank | None
    ) -> list[LeasedTask]:
        """Lease from what was given to `fsqueue.lease`, this queue among it."""
        return self.group._lease_together(given, n, lease_ms, wait_s, up_to)

    def delete(self, *, foreground: bool = False) -> dict[str, str]:
        """Delete the queue at once, whatever its size: see `Queue.delete`. Nothing happens if there is none."""
        left: dict[str, str] = {}
        if self._opens():
            with suppress(QueueNotFound):  # another process has deleted it
                left = super().delete(foreground=foreground)
        self._let_go()
        return left


def listed_queue(group: HasQueues, directory: names.QueueDirectory) -> GroupQueue:
    """Return the queue of a directory. A listing makes 100,000 of them, of which few are used."""
    made = GroupQueue.__new__(GroupQueue)
    made._held, made._directory = group, directory
    return made


def _or_empty(name: str, empty: Callable[[], Any]) -> Callable[..., Any]:
    """Return a verb of Queue that answers `empty()` as long as the queue is not there."""
    method = getattr(Queue, name)

    @wraps(method)
    def answering(self: GroupQueue, *args: Any, **named: Any) -> Any:
        for _ in range(2):
            try:
                return method(self, *args, **named)  # it looks at its arguments before it asks for the store
            except QueueNotFound:  # it is not there; or was deleted, and perhaps another one has come into being
                self._let_go()
        return empty()

    return answering


def _of_one_that_is_there(name: str) -> Callable[..., Any]:
    """Return a verb of Queue that needs a queue which is there. One that was deleted is forgotten: another may come."""
    method = getattr(Queue, name)

    @wraps(method)
    def acting(self: GroupQueue, *args: Any, **named: Any) -> Any:
        try:
            return method(self, *args, **named)
        except QueueNotFound:
            self._let_go()
            raise

    return acting


def _makes_it(name: str, check: Callable[..., object]) -> Callable[..., Any]:
    """Return a verb of Queue that makes the queue if there is none. `check` takes what the verb takes, before.

    QueueNotFound if it is deleted meanwhile: what was inserted by then was deleted with it.
    """
    method = getattr(Queue, name)

    @wraps(method)
    def making(self: GroupQueue, *args: Any, **named: Any) -> Any:
        inspect.signature(method).bind(self, *args, **named)
        check(*args, **named)
        self._begin(True, lambda settings, domain: None)
        try:
            return method(self, *args, **named)
        except QueueNotFound:
            self._let_go()
            raise

    return making


_CHECKS: dict[str, Callable[..., object]] = {"insert_many": tasks_to_insert, "commit": check_commit}


for _verb in OF_QUEUES:
    if callable(_verb.absent):
        setattr(GroupQueue, _verb.name, _or_empty(_verb.name, _verb.absent))
    elif _verb.absent == "raises":
        setattr(GroupQueue, _verb.name, _of_one_that_is_there(_verb.name))
    elif _verb.absent == "made" and _verb.name not in vars(GroupQueue):
        setattr(GroupQueue, _verb.name, _makes_it(_verb.name, _CHECKS[_verb.name]))


class ComingQueue:
    """A queue of a group as a `TaskSource`. While it is not there, it has no task. Errors are fsqueue's own.

    `poller`: makes what looks at it, once it is there.
    """

    def __init__(self, queue: GroupQueue, poller: Callable[[], IdlePoller]) -> None:
        self._queue, self._make_poller = queue, poller
        self._poller: IdlePoller | None = None
        """Looks at the queue; None while the queue is not there, as far as is known."""

    @property
    def stores(self) -> Sequence[Store]:
        """Return the store of the queue, if that is there."""
        return [] if self._poller is None else self._poller.stores

    @property
    def is_deaf(self) -> bool:
        """Return whether to sleep without listening for notifications."""
        return self._poller is None or self._poller.is_deaf

    def look(self, n: int) -> list[LeasedTask]:
        """Return up to `n` tasks of the queue, which may be deleted and come again meanwhile. GroupNotFound."""
        while self._queue._opens():
            try:
                store = self._queue.store
                with resources.Scope():
                    self._poller = self._poller or self._make_poller()
                    got = self._poller.look(n)
                    return got or (self._poller.look(n) if self._queue.group.pass_barriers() else got)
            except QueueNotFound:  # it was deleted; perhaps another one has come into being
                pass
            except OSError as error:
                let_out(error)
                failure = store.explain(error, "leasing")
                if not isinstance(failure, QueueNotFound):
                    raise failure from error
            self._poller = None
            self._queue._let_go()
        self._poller = None
        self._queue.group.pass_barriers()
        return []

    def due_s(self) -> float:
        """Return in how many seconds a task will be available that was seen and is not available yet."""
        return min(self._queue.group.barriers_due_s(), math.inf if self._poller is None else self._poller.due_s())
