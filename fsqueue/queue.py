"""The queue as users hold it: arguments checked, errors translated, the work done below.

One task goes this way. `Queue.insert`: its line is encoded (`arguments.task_to_insert`), and appended to the log of a
batch (`SingleInserter.insert`, whose module has the steps). `Queue.lease`: `Leaser.lease` takes the next task of the
batch in hand (`fast_path.lease_next`), or looks for a batch (its module has the steps). `LeasedTask.complete`:
`Queue._complete_one`, and there `fast_path.complete_in_hand`, or `transitions.complete`. Each of the three ends in
`Log.append` (storage/logs.py), which writes a record, and reads it back.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from fsqueue import forks
from fsqueue.arguments import (
    ORDERS,
    bound_of,
    check_change,
    ended,
    field_of,
    holder_of,
    leased,
    newest_of,
    one_of,
    pieces_of,
    references,
    refuse,
    results_of,
    task_ids,
    task_to_insert,
    tasks_to_insert,
    translated,
    verb,
    whole,
    window_ms,
    worker_of,
)
from fsqueue.clock import Clock, Entropy, duration_ms
from fsqueue.commit import Commit, insert_once
from fsqueue.errors import (
    ForkedChild,
    FsqueueError,
    InvalidTask,
    LeaseLost,
    QueueClosed,
    QueueNotFound,
    from_os_error,
    said,
    text_of,
)
from fsqueue.filesystem import Filesystem, resources
from fsqueue.forks import Late
from fsqueue.format import names
from fsqueue.format.layout import DEFAULTS, Durability, Pause, Settings
from fsqueue.format.models import STATES, ChangeReport, Movement, Result, State, Status, TaskInfo, TaskRef
from fsqueue.format.priority import Rank
from fsqueue.format.results import encode_result
from fsqueue.interruptions import let_out
from fsqueue.leased_task import LeasedTask
from fsqueue.maintenance import Maintenance
from fsqueue.poll import (
    EndCheck,
    Errors,
    Poll,
    Prefetched,
    Until,
    check_loop,
    dropped,
    put_back_dropped,
    result_of,
    wait,
)
from fsqueue.protocol import (
    encoding,
    fast_path,
    insert_errors,
    insertion,
    keyed_inserts,
    losses,
    transitions,
    waiting,
)
from fsqueue.protocol.keyed_inserts import KeyedInserter
from fsqueue.protocol.leasing import Leaser
from fsqueue.protocol.shares import Shares
from fsqueue.protocol.single_inserts import SingleInserter
from fsqueue.storage import decisions, group_directory, nodes
from fsqueue.storage.discovery import queue_path
from fsqueue.storage.nodes import FailingNode
from fsqueue.storage.store import Store
from fsqueue.user_code import UserCodeError, user_function
from fsqueue.views import inspection

if TYPE_CHECKING:
    from fsqueue import administration, asyncpoll, new_rows
    from fsqueue.asyncpoll import AsyncPoll
    from fsqueue.protocol import changing, leasing_by_id
    from fsqueue.views import (
        activity,
        attaching,
        by_key,
        lease_holders,
        newest_results,
        priorities,
        stuck_locks,
        task_history,
        task_results,
        timeline,
        usage,
    )
    from fsqueue.views.activity import Activity
    from fsqueue.views.lease_holders import LeaseHolder
    from fsqueue.views.priorities import PriorityRange
    from fsqueue.views.stuck_locks import StuckLock
    from fsqueue.views.timeline import Timeline
    from fsqueue.views.usage import Usage
else:
    administration, asyncpoll = Late("fsqueue.administration"), Late("fsqueue.asyncpoll")
    changing, leasing_by_id = Late("fsqueue.protocol.changing"), Late("fsqueue.protocol.leasing_by_id")
    new_rows = Late("fsqueue.new_rows")
    activity, attaching = Late("fsqueue.views.activity"), Late("fsqueue.views.attaching")
    lease_holders, priorities = Late("fsqueue.views.lease_holders"), Late("fsqueue.views.priorities")
    task_results, stuck_locks = Late("fsqueue.views.task_results"), Late("fsqueue.views.stuck_locks")
    newest_results = Late("fsqueue.views.newest_results")
    task_history, timeline = Late("fsqueue.views.task_history"), Late("fsqueue.views.timeline")
    by_key, usage = Late("fsqueue.views.by_key"), Late("fsqueue.views.usage")

Order = Literal["priority", "random"]


@lru_cache(maxsize=256)
def _as_path(path: str) -> Path:
    """Return a path as a `Path`, kept for the next call: to make one may cost more than a short task."""
    return Path(path)


def open_store(path: str | os.PathLike[str], worker: str | None, **given: Any) -> Store:
    """Open a queue, given what `Store` takes. Errors as of `Queue`."""
    worker_of(worker)
    where = queue_path(path)
    try:
        with resources.Scope():
            store = Store(where, worker, **given)
        if given.get("holder") is None and given.get("fs") is None:
            decisions.ring_bells_of(store)
        return store
    except QueueClosed:
        administration.finish_deletion(where)
        raise
    except OSError as error:
        raise from_os_error(error, f"opening the queue {path}") from error


class Queue(Maintenance):
    """An existing queue at a directory. Safe to use from many threads, and after a fork; pickled, it is opened anew.

    `path` is a directory or `fq://` and a directory; `worker` a name to appear under in logs.
    QueueNotFound, NotAQueue or FormatTooNew if it cannot be opened; nothing is created. UnsafeFilesystem if this host's
    mount is known to break its promises.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        worker: str | None = None,
        *,
        filesystem: Filesystem | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self._local = threading.local()
        try:
            store = open_store(path, worker, fs=filesystem, clock=clock, entropy=entropy)
        except QueueNotFound:
            if filesystem is None:
                group_directory.refuse_strays_above(queue_path(path))
            raise
        self._work_on(store)

    def _work_on(self, store: Store) -> None:
        """Work on an open queue from now on. Set `store` last: other threads look for it, and then use the
        inserters.
        """
        self._inserter = SingleInserter(store)
        self._keyed = KeyedInserter(store, self._inserter)
        self.store = store

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        shards: int = DEFAULTS.shards,
        batch_tasks_max: int = DEFAULTS.batch_tasks_max,
        task_bytes_max: int = DEFAULTS.task_bytes_max,
        max_attempts: int | None = DEFAULTS.max_attempts,
        lease_s: float = DEFAULTS.lease_s,
        backoff_s: Sequence[float] = DEFAULTS.backoff_s,
        durability: Durability = DEFAULTS.durability,
        keep_history: bool = DEFAULTS.keep_history,
        keep_payloads: int | None = DEFAULTS.keep_payloads,
        exist_ok: bool = False,
        allow_unsafe: bool = False,
    ) -> Queue:
        """Make a queue, whole or not at all, and open it. Parents of `path` are made as needed.

        `backoff_s`: the least and the greatest pause after a failure. `keep_payloads`: how many bytes a payload
        may have that the history keeps (None: all; 0: none), on average over those that were inserted together.

        QueueExists if there is one (with `exist_ok` it is opened as it is); NotAQueue if the path
        is a file, a symbolic link or a directory with something else in it; UnsafeFilesystem if the mount cannot
        keep the queue's promises, unless `allow_unsafe`, which is recorded: opening refuses such mounts, too.
        """
        settings = Settings(
            shards,
            batch_tasks_max,
            task_bytes_max,
            max_attempts,
            lease_s,
            backoff_s,  # type: ignore[arg-type]  # a sequence of another length or type is refused there
            durability,
            keep_history,
            keep_payloads,
        )
        where = queue_path(path)
        try:
            with resources.Scope():
                administration.create(where, settings, exist_ok=exist_ok, allow_unsafe=allow_unsafe)
        except OSError as error:
            raise from_os_error(error, f"creating the queue {where}") from error
        return cls(where)

    # -- what it is ---------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """Return the queue's directory."""
        return _as_path(self.store.path)

    @property
    def settings(self) -> Settings:
        """Return the settings, as last read: those given when it was created, with what `change_settings` changed."""
        settings: Settings = self.store.settings
        return settings

    @property
    def id(self) -> str:
        """Return what tells it from a queue made later at the same path. QueueNotFound if it is not there yet."""
        return self.store.queue_state.id

    @property
    def generation(self) -> int:
        """Return which generation it is in, as last read: each purge begins the next."""
        return self.store.queue_state.generation

    @property
    def has_priorities(self) -> bool:
        """Return whether tasks with priorities were ever inserted, as last read."""
        return self.store.queue_state.is_ordered

    @property
    def paused(self) -> Pause | None:
        """Return since when, by whom and why no task is leased, as last read; None if the queue is not paused."""
        return self.store.queue_state.paused

    @property
    def _leaser(self) -> Leaser:
        try:
            leaser: Leaser = self._local.leaser
        except AttributeError:
            leaser = self._local.leaser = Leaser(self, self.store)
        return leaser

    def _leaser_for(self, order: Order) -> Leaser:
        """Return the `Leaser` of this thread that leases in an order."""
        one_of("order", order, ORDERS)
        if order == "priority":
            return self._leaser
        try:
            leaser: Leaser = self._local.at_random
        except AttributeError:
            leaser = self._local.at_random = Leaser(self, self.store, at_random=True)
        return leaser

    def close(self) -> None:
        """Close what is open. Leases go on; the queue may be used again."""
        self._inserter.close()
        self.store.close()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Queue({self.store.path!r})"

    def __eq__(self, other: object) -> bool:
        return self.store.path == other.store.path if isinstance(other, Queue) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.store.path)

    def __reduce__(self) -> tuple[type[Queue], tuple[str, str | None]]:
        """Pickle the path and the worker's name, so that a process pool opens the queue anew."""
        return Queue, (self.store.path, self.store.worker_name)

    # -- inserting ------------------------------------------------------------------------------------

    @verb("inserting")
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
        """Insert one task: any JSON value, or bytes. It is durable when this returns.

        `key` (1 to 1,024 bytes) is unique: while a task with it is waiting, delayed or leased, nothing is inserted, and
        the id of that task is returned, with `inserted` False. The key is free once the task is completed, cancelled
        or dead. A task with a key may take 64 KiB; a queue with one task a batch takes no keys. A Task may bring its
        own key and priority; InvalidArgument if the call says another one.

        Some values come back as others: a tuple as a list, a UUID as text, a member of an Enum as its value, an
        instance of a subclass of str, int, list or dict as one of the base class, bytearray and memoryview as bytes.
        `strict` refuses these. `priority`: see Task. Available after `delay_s` seconds, or from `available_at` (Unix
        seconds) on; a Task may say otherwise. InvalidTask or TaskTooLarge if it cannot be stored.
        """
        try:
            task = task_to_insert(
                payload,
                self.store.settings.task_bytes_max,
                key=key,
                priority=priority,
                delay_s=delay_s,
                available_at=available_at,
                strict=strict,
            )
            if task.key is not None:
                found = self._keyed.insert(task)
                return TaskRef(found.id, found.inserted, self)
            if self._inserter.takes(task):  # into the log of a batch that takes inserts: one append
                return TaskRef(self._inserter.insert(task), True, self)
            return TaskRef(insertion.insert_in_file(self.store, task), True, self)  # it is long, or goes alone
        except OSError as error:
            let_out(error)
            raise insert_errors.not_inserted_error(self.store, error) from error
        except FsqueueError as error:
            insert_errors.note_none_inserted(error)
            raise

    @overload
    def insert_many(
        self,
        /,
        payloads: Iterable[Any],
        *,
        batch_tasks: int | None = None,
        delay_s: float = 0,
        commit: str | None = None,
        total: int | None = None,
        strict: bool = False,
        new_by: str | None = None,
        refs: Literal[False] = False,
    ) -> int: ...

    @overload
    def insert_many(
        self,
        /,
        payloads: Iterable[Any],
        *,
        batch_tasks: int | None = None,
        delay_s: float = 0,
        total: int | None = None,
        strict: bool = False,
        refs: Literal[True],
    ) -> list[TaskRef]: ...

    @verb("inserting")
    def insert_many(
        self,
        payloads: Iterable[Any],
        *,
        batch_tasks: int | None = None,
        delay_s: float = 0,
        commit: str | None = None,
        total: int | None = None,
        strict: bool = False,
        new_by: str | None = None,
        refs: bool = False,
    ) -> int | list[TaskRef]:
        """Insert a stream of payloads or Tasks in bounded memory; returns how many are new.

        Up to 256 tasks (on a network mount: 32) that take up to 256 KiB are appended to a batch at once, for the price
        of one `insert`. More become files: of about 256 tasks or more, on a network mount of 32 or more. What a slow
        stream has brought is inserted when its next task comes after a second. Tasks with keys are inserted in the
        order of the stream, after all that came before them: those that come fast up to 128 at once (on a network
        mount: 32), others one at a time. Those whose key is taken are neither inserted nor counted. For more than
        100,000 keys, a `commit` is the better choice.

        `batch_tasks`: tasks a file, instead of batches that grow with the stream; small streams make files, too, then.
        It applies only to tasks without keys. `total`: how many tasks there will be about, if known, so that batches
        are large from the start.
        `delay_s`: seconds before tasks become available that do not say so themselves. They are durable when this
        returns. An InvalidTask names the position of the bad one; the tasks before it are in the queue. An error's
        `inserted` says up to where the stream was handled, and `new` how many tasks were inserted. Under the name
        `commit` all appear together or not at all, once: what was committed before is not inserted again, nor
        read. InvalidArgument if no tasks were committed under it, and here are some.
        `strict` refuses payloads that would come back changed: see `insert`.

        `new_by` names a field of the payloads, which are JSON objects. Tasks with the same value in it are versions of
        each other. A payload is inserted unless the newest version of its value, among the tasks that wait, are leased
        or were completed, has the same content. So a table may be inserted again and again, with what was added and
        changed. Each task gets a key, VALUE#DIGEST of its content. Some 300 bytes of memory are taken for each value.
        InvalidArgument if the queue keeps no history; InvalidTask for a payload without a value, with a value that an
        earlier one of the call has with other content, or longer than `keep_payloads`.

        `refs`: return references to the tasks instead (a list of TaskRef, in the order of the stream), to wait for
        their results. They take some 200 bytes of memory each. A task whose key is taken gets the reference that
        `insert` returns: to the task that has the key. An error returns none, also of the tasks that it says are in
        the queue. InvalidArgument together with `commit` or `new_by`.
        """
        tasks = tasks_to_insert(
            payloads,
            batch_tasks=batch_tasks,
            delay_s=delay_s,
            commit=commit,
            total=total,
            strict=strict,
            new_by=new_by,
            refs=refs,
        )
        if new_by is not None:
            return self._insert_new(tasks, new_by, delay_s, total)
        if commit is not None:
            return insert_once(self.store, tasks, commit, delay_s, batch_tasks)
        inserter = self._inserter if batch_tasks is None else None
        if refs:
            ids = insertion.InsertedIds()
            keyed = partial(self._insert_noted, ids)
            insertion.insert_many(self.store, tasks, delay_s, batch_tasks, total, inserter, keyed, ids)
            return references(ids.ids, ids.taken, self)
        return insertion.insert_many(self.store, tasks, delay_s, batch_tasks, total, inserter, self._insert_keyed)

    def _insert_new(self, tasks: Iterable[Any], field: str, delay_s: float, total: int | None) -> int:
        """Insert those payloads that are new or changed by the field `field`: see `new_by` of `insert_many`."""
        rows = new_rows.NewRows(self.store, self._keyed, field)
        try:
            new = insertion.insert_many(
                self.store, rows.with_keys(tasks), delay_s, None, total, self._inserter, rows.take
            )
        except InvalidTask as error:  # all rows before the invalid one are to be in the queue
            error.new = rows.finish(error.new or 0)
            raise
        except UserCodeError as foreign:
            foreign.count_new(rows.finish(0))
            raise
        except FsqueueError as error:
            rows.count_in(error)
            raise
        return rows.finish(new)

    def _insert_keyed(self, tasks: Sequence[encoding.EncodedTask], count: Callable[[bool], None]) -> None:
        def note(task: encoding.EncodedTask, found: keyed_inserts.Outcome) -> None:
            assert isinstance(found, TaskRef), "how a task has ended was not asked for"
            count(found.inserted)

        self._keyed.insert_all(tasks, note)

    def _insert_noted(
        self, ids: insertion.InsertedIds, tasks: Sequence[encoding.EncodedTask], count: Callable[[bool], None]
    ) -> None:
        """Insert tasks with keys, and note their ids, or those of the tasks which have the keys."""

        def note(task: encoding.EncodedTask, found: keyed_inserts.Outcome) -> None:
            assert task.place is not None, "it is one of many"
            assert isinstance(found, TaskRef), "how a task has ended was not asked for"
            ids.put(found.id, task.place)
            if not found.inserted:
                ids.taken.add(task.place)
            count(found.inserted)

        self._keyed.insert_all(tasks, note)

    def commit(self, name: str, *, attempt: str | None = None) -> Commit:
        """Return a named commit: many writers on many hosts stage, one publishes; all of it appears together, once.

        `attempt`: that of a `CommitPart`, to discard what a commit staged that is not at hand any more.
        """
        return Commit(self.store, name, attempt, self._why_gone)

    # -- leasing ----------------------------------------------------------------------------------------

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
    ) -> list[LeasedTask]:
        """Lease up to `n` tasks for `lease_s` seconds (default: the queue's): the most urgent first, about.

        Those without a priority come after all that have one, about in insertion order. `up_to`: only tasks with a
        priority that is not greater. `order="random"`: any of the tasks, each call others.
        Return [] only after a full look: no such task was available; or if the queue is `paused`. With `wait_s`, wait
        for one, up to this many seconds.
        `strict` looks at all shards for the best instead of remembering some, and waits for a batch that is locked at
        the moment, 2 s at most: so it is exact as long as no other process leases.
        `holder`: the worker that gets the tokens, if that is another process: `host`, and if known `name`, `pid`,
        `address`, and its job, as docs/format.md names them under "Workers".
        """
        if type(n) is not int or n < 1:
            whole("n", n)
        lease_ms = None if lease_s is None else duration_ms(lease_s, "lease_s", 0.001)
        if wait_s != 0:
            waits_s = duration_ms(wait_s, "wait_s") / 1000
            return self._lease_waiting(
                n, lease_ms, wait_s=waits_s, strict=strict, up_to=up_to, order=order, holder=holder
            )
        leaser, bound = self._leaser, None
        if up_to is not None or order != "priority":
            leaser, bound = self._leaser_for(order), None if up_to is None else bound_of(up_to)
        if holder is not None:
            leaser.holder = holder_of(holder)
        if dropped:
            put_back_dropped(self)
        mine = resources.this_thread.owned  # on the hot path: what `mark` asks, without a frame of its own
        before = resources.mark() if mine.sections or mine.fds or mine.fresh else resources.NOTHING
        process = forks.depth
        try:
            got = leaser.lease(n, lease_ms, strict, bound)
            if process == forks.depth:
                return got
            raise ForkedChild("a call")
        except BaseException as error:
            raise ended(self, before, process, error, "leasing")  # noqa: B904 - its cause is set
        finally:
            leaser.holder = None

    @verb("leasing")
    def lease_for(
        self,
        wanted: Sequence[tuple[int, Mapping[str, Any]]],
        *,
        lease_s: float | None = None,
        up_to: str | int | None = None,
        order: Order = "priority",
        strict: bool = False,
    ) -> list[list[LeasedTask]]:
        """Lease for several workers at once, in one look and few writes: `lease(n, holder=...)` for each of them.

        `wanted`: how many tasks each wants at most, and who it is. Return the tasks of each; the first ones come first.
        If all have got none, no such task was available, or the queue is paused. If some have, call again for the rest.
        """
        shares = Shares([(whole("n", n), holder_of(holder)) for n, holder in wanted])
        lease_ms = None if lease_s is None else self._lease_ms(lease_s)
        leaser, bound = self._leaser_for(order), None if up_to is None else bound_of(up_to)
        if not wanted:
            return []
        put_back_dropped(self)
        leaser.shares = shares
        try:
            return shares.parts(leaser.lease(shares.n, lease_ms, strict, bound))
        finally:
            leaser.shares = None

    @verb("leasing")
    def lease_by_id(
        self,
        ids: str | Iterable[str],
        *,
        lease_s: float | None = None,
        holder: Mapping[str, Any] | None = None,
    ) -> list[LeasedTask]:
        """Lease the tasks with these ids for `lease_s` seconds (default: the queue's), as far as they are available.

        Tasks are left out that are not due yet, that a worker holds, that have ended, and those that the queue does not
        have: `task(id).state` tells. So are all of them while the queue is `paused`, and those of a batch that another
        process keeps locked for 2 s. A task that was leased together with others when its worker died is leased only if
        it is the only one that is named. Priorities do not matter. `holder`: see `lease`.
        """
        named = _in_batches(ids)
        lease_ms = None if lease_s is None else self._lease_ms(lease_s)
        worker = None if holder is None else holder_of(holder)
        leaser = leasing_by_id.NamedLeaser(self, self.store)
        leaser.holder = worker
        put_back_dropped(self)
        return leaser.lease_named(named, lease_ms)

    def poll(
        self,
        *,
        lease_s: float | None = None,
        prefetch: int = 1,
        until: Until = "drained",
        errors: Errors = "record",
        stop_after_failures: int | None = None,
    ) -> Poll:
        """Return an iterator over leased tasks, until the queue is drained or for ever.

        ``for task in q.poll():`` then ``with task: ...``. Completing a task leases the next in the
        same append; leaving the loop puts back what was leased ahead.

        An exception in a `with task:` block is recorded with the task and logged, and the loop goes on. So is a lost
        lease. With `errors="raise"` the exception is raised on. `stop_after_failures`: the exception of that many
        failures in a row is raised on (0: never). By default that is 10, before the first success; then never.
        """
        return self._poll(lease_s, prefetch, until, errors, stop_after_failures)

    def poll_async(
        self,
        *,
        lease_s: float | None = None,
        prefetch: int = 1,
        until: Until = "drained",
        errors: Errors = "record",
        stop_after_failures: int | None = None,
    ) -> AsyncPoll:
        """Return an asynchronous iterator over leased tasks: `poll` for asyncio, which works on the queue in threads.

        ``async for task in q.poll_async():`` then ``async with task: ...``. A cancellation releases the task of the
        block; ``async with q.poll_async() as tasks:`` puts back at once what was leased ahead.
        """
        return asyncpoll.AsyncPoll(
            self, self._poll(lease_s, prefetch, until, errors, stop_after_failures, exchange=False)
        )

    def _poll(
        self,
        lease_s: float | None,
        prefetch: int,
        until: Until,
        errors: Errors,
        stop_after_failures: int | None,
        exchange: bool = True,
    ) -> Poll:
        check_loop(prefetch, until, errors, stop_after_failures)
        ahead = Prefetched(self, self._lease_ms(lease_s), exchange and prefetch == 1, errors, stop_after_failures)
        return Poll(self, ahead, prefetch, until)

    def _end_check(self, ahead: Prefetched) -> Callable[[], bool]:
        """Return a function that tells a loop whether the queue is drained. If it is, its idle workers are
        told, too.
        """
        return EndCheck(self.store, ahead)

    def _lease_ms(self, lease_s: float | None) -> int | None:
        """Return the length of a lease in milliseconds; None for the queue's setting, which each lease looks up."""
        return None if lease_s is None else duration_ms(lease_s, "lease_s", 0.001)

    @verb("leasing")
    def _lease_waiting(
        self,
        n: int,
        lease_ms: int | None,
        stop: Callable[[], bool] = lambda: False,
        wait_s: float = math.inf,
        *,
        strict: bool = False,
        up_to: str | int | None = None,
        order: Order = "priority",
        holder: Mapping[str, Any] | None = None,
    ) -> list[LeasedTask]:
        one_of("order", order, ORDERS)
        bound, who = None if up_to is None else bound_of(up_to), None if holder is None else holder_of(holder)
        put_back_dropped(self)
        used: list[Leaser] = []

        def leaser() -> Leaser:
            used.append(self._leaser_for(order))
            used[-1].holder = who
            return used[-1]

        try:
            return waiting.wait(self._source(leaser, lease_ms, strict, bound), n, wait_s, stop)
        finally:
            for one in used:
                one.holder = None

    @verb("leasing")
    def _look(self, source: waiting.TaskSource, n: int, stop: Callable[[], bool]) -> tuple[list[LeasedTask], bool]:
        put_back_dropped(self)
        got = source.look(n)
        waiting.tell_pauses(source.stores)
        return got, not got and stop()

    def _source(
        self, leaser: Callable[[], Leaser], lease_ms: int | None, strict: bool = False, up_to: Rank | None = None
    ) -> waiting.TaskSource:
        """Return the source that a waiting lease polls. `leaser` makes or returns the `Leaser` that looks there."""
        return waiting.IdlePoller(leaser(), lease_ms, strict, up_to)

    @verb("attaching to a lease")
    def attach(self, token: str, *, verify: bool = True) -> LeasedTask:
        """Return a lease made elsewhere, from its token, to act on it from this process.

        InvalidArgument if it is no token; TaskNotFound if the batch has finished; LeaseLost if the
        lease does not hold any more. Without `verify` nothing is read: the verbs that end the lease tell whether it
        holds. Its `attempt`, `version` and `lease_until` are 0 then, its `key` and `priority` None. To read its
        payload raises TaskNotFound.
        """
        return attaching.attach(self, token) if verify else attaching.attach_unread(self, token)

    # -- ending leases ------------------------------------------------------------------------------------

    def _complete_one(self, task: LeasedTask, result: Any) -> None:
        mine = resources.this_thread.owned  # on the hot path: what `mark` asks, without a frame of its own
        before = resources.mark() if mine.sections or mine.fds or mine.fresh else resources.NOTHING
        process = forks.depth
        try:
            encoded: bytes | None = None
            if result is not None:
                try:
                    encoded = encode_result(result)
                except InvalidTask as error:
                    refuse({task.id: str(error)})
            is_done = task.poll is not None and task.poll.complete(task, encoded)
            if not is_done and not fast_path.complete_in_hand(self.store, task, encoded):
                transitions.complete(self.store, [task], transitions.result_of(task, encoded))
            task.done = True
            if process != forks.depth:
                raise ForkedChild("a call")
        except BaseException as error:
            failure = self._lost_with_it(error, [task]) if isinstance(error, QueueNotFound) else error
            raise ended(self, before, process, failure, "completing")  # noqa: B904 - its cause is set

    @verb("completing")
    def complete(self, tasks: LeasedTask | Iterable[LeasedTask], results: Mapping[str, Any] | None = None) -> None:
        """Report tasks as done, one or many, one write a batch. LeaseLost.tokens names those lost; the rest is done.

        `results`: small values to keep, by task id; docs/functions.md has the rules ("What a function may return").
        InvalidResult.tasks names those whose results cannot be kept: they stay leased, and the rest is done.
        """
        encoded, refused = results_of(results) if results else ({}, {})
        sound = [task for task in leased(tasks) if task.id not in refused] if refused else tasks
        try:
            self._end(sound, lambda mine: transitions.complete(self.store, mine, encoded))
        except LeaseLost as lost:
            refuse(refused, lost)
            raise
        refuse(refused)

    @verb("renewing")
    def renew(self, tasks: LeasedTask | Iterable[LeasedTask], lease_s: float | None = None) -> None:
        """Extend leases to `lease_s` seconds from now. LeaseLost (LeaseExpired) names those that held no longer."""
        lease_ms, mine = self._lease_ms(lease_s), leased(tasks)
        try:
            if lease_ms is None:
                self.store.refresh()  # a process that does nothing but renew learns of a new `lease_s`, too
                lease_ms = self.store.lease_ms
            transitions.renew(self.store, mine, lease_ms)
        except QueueNotFound as error:
            raise self._lost_with_it(error, mine) from error.__cause__

    @verb("releasing")
    def release(self, tasks: LeasedTask | Iterable[LeasedTask], delay_s: float = 0) -> None:
        """Put tasks back, available after `delay_s` seconds, uncharged. LeaseLost names those that held no longer."""
        delay_ms = duration_ms(delay_s, "delay_s")
        self._end(tasks, lambda mine: transitions.release(self.store, mine, delay_ms))

    @verb("failing a task")
    def _fail(self, task: LeasedTask, error: object, delay_s: float | None) -> None:
        text = said(error) if isinstance(error, BaseException) else text_of(error)
        delay_ms = None if delay_s is None else duration_ms(delay_s, "delay_s")
        self._end([task], lambda mine: transitions.fail(self.store, task, text, delay_ms))

    @verb("burying a task")
    def _bury(self, task: LeasedTask, reason: object) -> None:
        self._end([task], lambda mine: transitions.bury(self.store, task, text_of(reason)))

    def _end(self, tasks: LeasedTask | Iterable[LeasedTask], act: Callable[[Sequence[LeasedTask]], None]) -> None:
        mine = leased(tasks)
        try:
            act(mine)
        except QueueNotFound as error:
            raise self._lost_with_it(error, mine) from error.__cause__
        for task in mine:
            task.done = True

    def _lost_with_it(self, error: QueueNotFound, tasks: Iterable[LeasedTask]) -> FsqueueError:
        """Return the error for leases of a queue that is gone: LeaseLost if it was deleted, else `error`."""
        return losses.of_deleted(tasks) if isinstance(error, QueueClosed) else error

    @verb("cancelling")
    def cancel(self, ids: str | Iterable[str]) -> int:
        """Cancel tasks that no worker holds, by id. Return how many. Leased and finished tasks are left alone."""
        grouped = _in_batches(ids)
        self.store.verify()
        cancelled = 0
        try:
            for batch_id, indices in sorted(grouped.items()):
                cancelled += transitions.cancel(self.store, batch_id, indices)
        except (OSError, FsqueueError) as error:
            let_out(error)
            then = f"Tasks cancelled: {cancelled}. Repeat the call for the rest."
            raise self.store.explain(error, "cancelling", then) from (error if isinstance(error, OSError) else None)
        return cancelled

    @verb("changing")
    def change(
        self,
        ids: str | Iterable[str],
        *,
        priority: str | int | None = None,
        no_priority: bool = False,
        delay_s: float | None = None,
        available_at: float | None = None,
    ) -> ChangeReport:
        """Change the priority or the time of waiting tasks, by id; return which were changed, and which are leased.

        What is left out stays; `no_priority` takes the priority away. `delay_s`: seconds from now; `available_at`: the
        same as an absolute time in Unix seconds. Ids, keys and attempts stay. A task whose lease has run out is
        waiting, and the lease ends. Workers that are at work elsewhere notice a change within ten seconds.
        """
        check_change(priority, no_priority, delay_s, available_at)
        grouped = _in_batches(ids)
        values = changing.NewValues(
            [None] if no_priority else [] if priority is None else [encoding.priority_of(priority, None)],
            None if delay_s is None else duration_ms(delay_s, "delay_s"),
            None if available_at is None else duration_ms(available_at, "available_at"),
        )
        self.store.verify()
        report = ChangeReport()
        try:
            changing.begin(self.store, values)
            for batch_id, indices in sorted(grouped.items()):
                report.add(changing.change(self.store, batch_id, indices, values))
        except (OSError, FsqueueError) as error:
            let_out(error)
            then = f"Tasks changed: {len(report.changed)}. Repeat the call for all: none is changed twice."
            raise self.store.explain(error, "changing", then) from (error if isinstance(error, OSError) else None)
        finally:
            if report.changed:
                self.store.doorbell.ring()
        return report

    # -- looking ------------------------------------------------------------------------------------------

    @verb("reading the status")
    def status(self, exact: bool = True) -> Status:
        """Return how many tasks are in which state.

        `exact` reads the active logs; otherwise names alone (an estimate).
        """
        put_back_dropped(self)
        return inspection.status(self.store, exact)

    @verb("reading what went on")
    def activity(self, window_s: float | None = None) -> Activity:
        """Return rates over the last `window_s` seconds, the average lease, the oldest leases, failures by reason.

        Without `window_s` over a minute, or an hour if tasks take long. Cheap, and bounded: see `Activity`.
        """
        over_ms = None if window_s is None else window_ms(window_s)
        return activity.activity(self.store, over_ms)

    @verb("reading what went on")
    def timeline(self, window_s: float = 3600, pieces: int = 60) -> Timeline:
        """Return how many tasks were inserted, leased, completed and given up in each piece of the last `window_s`.

        At most 1,000 pieces. Durations of the work are in it, too. Cheap, and bounded, as `activity`: see `Timeline`.
        """
        over_ms, number = window_ms(window_s), pieces_of(pieces)
        return timeline.timeline(self.store, over_ms, number)

    @verb("reading who holds tasks")
    def workers(self, *, asks_slurm: bool = True) -> list[LeaseHolder]:
        """Return the workers that hold tasks, with what they hold and whether they live; the oldest lease first.

        It reads the logs of the batches at work, and asks Slurm once, unless told otherwise. Only what this host's
        processes or Slurm prove is called dead (docs/guarantees.md, 18). A hint while others work.
        """
        return lease_holders.workers(self.store, asks_slurm)

    @verb("reading on which nodes attempts fail")
    def failing_nodes(self) -> list[FailingNode]:
        """Return the nodes on which the latest attempts failed, one after the other, by name.

        They are counted for workers with `exclude_after` (`fsqueue run --exclude-after`) alone. A hint.
        """
        return nodes.failing(self.store)

    @verb("counting the files")
    def usage(self) -> dict[str, Usage]:
        """Return the files, directories and bytes of the queue, by what they are for, and their sum as "all".

        It asks for each file. docs/growth.md says what each kind holds, and what gives it back.
        """
        return usage.of_store(self.store)

    @verb("counting by priority")
    def waiting_by_priority(
        self, ranges: int = 8, *, progress: Callable[[int, int], object] | None = None
    ) -> list[PriorityRange]:
        """Return how many tasks wait, by priority: `ranges` ranges at most, and then the tasks without a priority.

        Each different priority is a range of its own if there are no more than `ranges`. Else the ranges have about
        equally many tasks. It reads all waiting tasks that have a priority, in bounded memory; of those without the
        files' names are enough. `progress(done, shards)` is called before each shard, and at the end.
        A hint while others work.
        """
        most, told = whole("ranges", ranges), None if progress is None else user_function(progress)
        return priorities.count(self.store, most, told)

    @verb("looking for stuck locks")
    def stuck(self) -> list[StuckLock]:
        """Return the locks that stay taken, because their holders are stopped or cut off: each names whom it can.

        Takes half a second if a lock is suspect. What such a holder has locked waits for it; all else goes on.
        """
        return stuck_locks.of_store(self.store)

    @verb("reading the queue")
    def is_drained(self) -> bool:
        """Return whether nothing is waiting, delayed or leased; cheaper than `status().drained`."""
        return inspection.DrainCheck(self.store)()

    def drained_proof(self) -> bytes | None:
        """Return what stands for all that is there besides, if nothing is waiting, delayed or leased; otherwise None.

        Two that are equal prove that nothing was left between the two. So several queues were drained at one instant,
        if each has the proof again that it had, after all of them had one.
        """
        found = inspection.proof(inspection.DrainCheck(self.store).look)
        return None if found is None else self.store.queue_state.id.encode() + found

    def wait(self, timeout_s: float | None = None, poll: Callable[[Status], None] | None = None) -> Status:
        """Wait until nothing is waiting, delayed or leased, or `timeout_s` is over; returns the last status.

        `poll` is called with each status on the way; without it, waiting costs little (four cheap looks a minute).
        QueuePurged if what was waited for was purged or overwritten. For several queues: `fsqueue.wait`.
        """
        if poll is None:
            return wait([self], timeout_s)[0]
        user_function(poll)  # raises InvalidArgument if it is no function
        return wait([self], timeout_s, lambda found: poll(found[0]))[0]

    @verb("peeking")
    def peek(self, n: int = 1) -> list[TaskInfo]:
        """Return up to `n` waiting tasks, about in the order in which they would be leased; nothing is leased."""
        whole("n", n)
        return inspection.peek(self.store, n)

    @verb("looking a task up")
    def task(self, id: str) -> TaskInfo:
        """Return what is known of a task; TaskNotFound. Finished ones only while the history keeps them."""
        names.parse_task_id(id)  # before the store is asked for
        return inspection.task(self.store, id)

    @verb("looking a key up")
    def find_by_key(self, key: str) -> TaskInfo:
        """Return what is known of the unfinished task that has this key; TaskNotFound. A hint while others insert.

        It costs a few reads, however many tasks the queue has. A key is free again once its task has ended.
        """
        wanted = encoding.key_of(key, None)  # before the store is asked for
        return by_key.find(self.store, wanted)

    def result(self, task: str | TaskRef, timeout_s: float | None = None) -> Any:
        """Return the result of a task, by its id or by what `insert` has returned, once the task is completed.

        That is the JSON value that its worker handed to `complete`, or what a function returned; None if there was
        none. TaskFailed if the task was given up (`error.task.error` is why) or cancelled. ResultNotReady, which is a
        TimeoutError, if it has not ended within `timeout_s` seconds; 0: look once. TaskNotFound if nothing is known of
        it: a queue that keeps no history tells nothing of a task that has ended, and `gc` removes old history.

        This looks at the task again and again: after 10 ms first, then after a tenth of the time waited, 2 s at most.
        """
        return result_of(task, timeout_s, self.task, lambda: self.store)

    @verb("reading results")
    def results_of(self, ids: str | TaskRef | Iterable[str | TaskRef]) -> dict[str, Result]:
        """Return what is known of these tasks, finished or not, by their ids. A TaskRef stands for its id.

        Tasks of which nothing is known are left out: those that have ended in a queue that keeps no history, those
        whose history `gc` has removed, and dead letters that were retried or purged. Each batch of tasks is read once,
        however many of its tasks are asked for. Memory: that of the answer, and of a batch.
        """
        wanted = task_ids(ids)  # before the store is asked for
        return task_results.results_of(self.store, wanted)

    def tasks(self, state: State | None = None) -> Iterator[TaskInfo]:
        """Yield the unfinished tasks, or those in one state: waiting, delayed, leased, completed, dead or cancelled."""
        if state is not None:
            one_of("state", state, STATES)
        return translated(self, inspection.tasks(self.store, state), "listing tasks")

    def results(
        self,
        where: Callable[[Result], bool] | None = None,
        dead: bool = False,
        *,
        latest_by: str | None = None,
        newest: int | None = None,
    ) -> Iterator[Result]:
        """Yield the tasks that were completed, then the dead letters; with `dead` the latter alone.

        Each has its payload, its result or error, and who worked on it, when and for how long. They go back as far as
        the queue keeps its history. `where`: a function that tells which to yield. For DataFrames:
        `pandas.DataFrame(result.as_dict() for result in queue.results())`. QueuePurged, at the end, if the queue was
        purged meanwhile. Lines of the history that cannot be read are left out; a warning is logged.

        `latest_by` names a field of the payloads: for each value of it only the newest version is yielded (see
        `insert_many`), if that was completed or is a dead letter, and meets `dead` and `where`. Memory grows with the
        number of values. InvalidArgument if the queue keeps no history.

        `newest`: only this many (1 to 1,000), those that ended last, the newest first, dead letters among them. `where`
        looks at these alone. It reads the ends of the files alone, so it costs about the same whatever the queue has
        done. A warning is logged if something was left out for its size (see docs/newest-results.md).
        """
        if where is not None:
            user_function(where)  # raises InvalidArgument if it is no function
        latest_by, newest = field_of("latest_by", latest_by), newest_of(newest, latest_by)
        if newest is None:
            self._write_letters()
            rows = task_results.results(self.store, dead, latest_by)
        else:
            self.store.refresh(now=True)
            rows = newest_results.results(self.store, newest, dead)
        found = chain.from_iterable(translated(self, rows, "reading results"))
        return found if where is None else filter(where, found)

    def result_columns(
        self, dead: bool = False, *, latest_by: str | None = None, newest: int | None = None
    ) -> Iterator[list[Sequence[Any]]]:
        """Yield what `results` yields, but in columns, up to some thousand tasks at a time: several times as fast.

        Each item has a sequence for each field of `fsqueue.Result`, in their order, with the values of those tasks.
        Payloads of one shape may be a `UniformObjects`, which makes a dict of each when it is asked.
        """
        latest_by, newest = field_of("latest_by", latest_by), newest_of(newest, latest_by)
        if newest is not None:
            self.store.refresh(now=True)
            return translated(self, newest_results.columns(self.store, newest, dead), "reading results")
        self._write_letters()
        return translated(self, task_results.columns(self.store, dead, latest_by), "reading results")

    @verb("reading the history")
    def history(self, id: str) -> list[Movement]:
        """Return what happened to a task, oldest first; TaskNotFound if nothing is known of it."""
        names.parse_task_id(id)  # before the store is asked for
        return task_history.movements_of(self.store, id)


def _in_batches(ids: object) -> dict[names.Batch, list[int]]:
    """Return the indices of the tasks that `ids` name, by batch. InvalidArgument."""
    found: dict[names.Batch, list[int]] = {}
    for task_id in sorted(task_ids(ids)):
        batch, index = names.parse_task_id(task_id)
        found.setdefault(batch, []).append(index)
    return found
