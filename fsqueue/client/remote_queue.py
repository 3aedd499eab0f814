"""A queue of a gateway. Each method is that of `Queue` with the same name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Literal, NamedTuple, overload
from urllib.parse import quote

from fsqueue.arguments import (
    EVERY,
    Every,
    check_change,
    check_lease,
    field_of,
    holder_of,
    leased,
    newest_of,
    node_of,
    one_of,
    pieces_of,
    reason_of,
    references,
    refuse,
    results_of,
    selector,
    settings_of,
    task_ids,
    task_to_insert,
    tasks_meant,
    tasks_to_insert,
    unchanged,
    whole,
    window_ms,
)
from fsqueue.client.remote_base import RemoteBase
from fsqueue.client.remote_poll import RemotePoll
from fsqueue.client.values import (
    BYTES_MAX,
    activity,
    in_parts,
    json_object,
    leased_task,
    lost_together,
    made,
    task_line,
)
from fsqueue.client.wire import LOOK_FIRST, WAIT_S, Answer, Wire, encoded, in_one_process, in_steps, segment
from fsqueue.clock import Clock, Entropy, duration_ms
from fsqueue.errors import FsqueueError, InvalidArgument, InvalidTask, LeaseLost, QueuePurged, said, text_of
from fsqueue.filesystem.processes import Holder
from fsqueue.format import names
from fsqueue.format.layout import Pause, Settings
from fsqueue.format.models import (
    STATES,
    ChangeReport,
    CommitReport,
    DeadLetter,
    GcReport,
    Movement,
    Result,
    RetryReport,
    State,
    Status,
    Task,
    TaskInfo,
    TaskRef,
)
from fsqueue.format.plain_values import plain
from fsqueue.leased_task import LeasedTask
from fsqueue.poll import Errors, Until, last_statuses, result_of
from fsqueue.protocol import encoding, insert_errors, transitions
from fsqueue.protocol.keyed_inserts import REPEAT
from fsqueue.storage.nodes import FailingNode
from fsqueue.user_code import UserCodeError, reads_alike, unwrapped, user_function
from fsqueue.views import attaching
from fsqueue.views.activity import Activity
from fsqueue.views.lease_holders import LeaseHolder
from fsqueue.views.priorities import PriorityRange
from fsqueue.views.stuck_locks import StuckLock
from fsqueue.views.usage import Usage

TASKS_MAX = 1_000
"""Maximum number of tasks that one request leases or peeks at."""


REPEAT_ALL = "Repeat the call with all its tasks and the same name: none of them is inserted twice."
"""Advise how to go on when nobody knows whether the tasks of a commit are in the queue."""
REPEAT_NEW = "Repeat the call with all its tasks: it inserts only what is new or changed."
"""The same of tasks that are inserted if they are new or changed."""
RUNS_OUT = "If a task was leased, its lease runs out, and counts as an attempt."
"""Advise how to go on when nobody knows whether a task was leased."""
RANGES_MAX = 1_000
"""Maximum number of ranges of priorities that one request asks for."""


class QueueStandIn(NamedTuple):
    """What leased tasks, loops and workers ask of the queue that a task came from, where that has no store."""

    path: str
    """The queue's address: what messages call it."""
    clock: Clock
    entropy: Entropy


class RemoteQueue(RemoteBase):
    """A queue of a gateway, with the methods of `Queue`. Safe to use from many threads, and after a fork; it pickles.

    Errors are those of `Queue`. StorageError besides: the gateway cannot be reached, and nothing was done; or it has
    broken off, and what happened is unknown. The text says which.
    """

    def __init__(self, wire: Wire, name: str, holder: dict[str, Any], group: Any = None) -> None:
        segment(name)  # raises InvalidArgument if it is none
        self._wire, self.name, self._holder, self._group = wire, name, holder, group
        self.store = QueueStandIn(self.url, Clock(), Entropy())

    def __reduce__(self) -> Any:
        return RemoteQueue, (self._wire, self.name, self._holder, self._group)

    @property
    def url(self) -> str:
        """Return the queue's address, as `connect` takes it."""
        return f"{self.gateway}/{quote(self.name, safe='')}"

    @property
    def group(self) -> Any:
        """Return the queue's group, a `RemoteGroup`; None if the gateway serves this queue alone."""
        return self._group

    @property
    def gateway(self) -> str:
        """Return the address of its gateway."""
        return self._wire.address.url

    @property
    def path(self) -> str:
        """Return the queue's address: what a worker's messages call it."""
        return self.url

    def _ask(self, verb: str, /, **given: Any) -> Any:
        return self._wire.call(verb, given, queue=self.name)

    def _ask_of(self, id: str, verb: str) -> Any:
        """Return what a verb answers about a task."""
        names.parse_task_id(id)
        return self._wire.call(verb, queue=self.name, task=id)

    def _iterate(self, kind: type, verb: str, task: str = "", /, **given: Any) -> Iterator[Any]:
        """Yield what a verb answers, about a task if one is named, as values of this kind."""
        with closing(self._wire.call_lines(verb, given, self.name, task)) as found:
            for one in found:
                yield made(kind, one)

    # -- what it is ---------------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """Return the queue's settings. The gateway is asked for them."""
        found = Answer(self._ask("queue")["settings"])
        settings: Settings = made(Settings, found | {"backoff_s": tuple(found["backoff_s"])})
        return settings

    @property
    def paused(self) -> Pause | None:
        """Return since when, by whom and why no task is leased; None if the queue is not paused."""
        found = self._ask("queue")["paused"]
        return None if found is None else made(Pause, found)

    @property
    def has_priorities(self) -> bool:
        """Return whether tasks with priorities were ever inserted."""
        return bool(self._ask("queue")["has_priorities"])

    def is_copy(self) -> bool:
        """Return whether its directory may be a copy of the one in which it was made. A hint."""
        return bool(self._ask("queue")["copy"])

    def exists(self) -> bool:
        """Return whether it has come into being, and was not deleted since."""
        return bool(self._ask("queue")["exists"])

    # -- inserting ----------------------------------------------------------------------------------------------

    @in_one_process
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
        """Insert one task: see `Queue.insert`.

        If the gateway breaks off, the client does not repeat it, also if the task has a key: a worker may have
        completed the task meanwhile, and then the key keeps nothing away.
        """
        try:
            task = task_to_insert(
                payload,
                BYTES_MAX,
                key=key,
                priority=priority,
                delay_s=delay_s,
                available_at=available_at,
                strict=strict,
            )
            advice = insert_errors.LOOK_FIRST if task.key is None else REPEAT
            found = self._wire.call("insert", body=task_line(task), queue=self.name, advice=advice)
        except FsqueueError as error:
            if error.new is None:
                error.inserted = error.new = 0
            raise
        return TaskRef(found["id"], found["inserted"], self)

    @overload
    def insert_many(
        self,
        payloads: Iterable[Any],
        *,
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
        payloads: Iterable[Any],
        *,
        delay_s: float = 0,
        total: int | None = None,
        strict: bool = False,
        refs: Literal[True],
    ) -> list[TaskRef]: ...

    @in_one_process
    def insert_many(
        self,
        payloads: Iterable[Any],
        *,
        delay_s: float = 0,
        commit: str | None = None,
        total: int | None = None,
        strict: bool = False,
        new_by: str | None = None,
        refs: bool = False,
    ) -> int | list[TaskRef]:
        """Insert a stream of payloads or Tasks in bounded memory; return how many are new: see `Queue.insert_many`.

        If the gateway breaks off, a list, tuple, range or set that has a name (`commit`) is sent again. None of it is
        new then if the gateway had inserted it before it broke off. Whatever else has a name, or names a field
        (`new_by`), may be sent again by the caller.
        """
        tasks = tasks_to_insert(payloads, delay_s=delay_s, commit=commit, total=total, new_by=new_by, refs=refs)
        stream = _Stream(tasks, strict, encoding.default_when(delay_s), commit is not None)
        query, again = {"commit": commit, "total": total}, commit is not None and reads_alike(payloads)
        if new_by is not None:
            query["new_by"] = new_by
        if refs:
            query["refs"] = True
        try:
            advice = REPEAT_ALL if commit is not None else LOOK_FIRST if new_by is None else REPEAT_NEW
            found = self._wire.call_with_lines("insert", stream, query, self.name, again, advice)
        except UserCodeError as foreign:  # with a commit's name: nothing shows
            foreign.count(0, 0)
            raise foreign.error from None
        except InvalidTask as error:
            if error.new is None:
                insert_errors.note_none_inserted(error)
            raise
        new = int(found["inserted"])
        stream.check(new)
        return references(found["ids"], {*found["taken"]}, self) if refs else new

    def committed(self, name: str) -> CommitReport | None:
        """Return what was inserted under a commit's name, by whomever; None if nothing was decided yet."""
        found = self._ask("committed", name=name)
        return None if found is None else made(CommitReport, found)

    # -- leasing ------------------------------------------------------------------------------------------------

    @in_one_process
    def lease(
        self,
        n: int = 1,
        *,
        lease_s: float | None = None,
        wait_s: float = 0,
        up_to: str | int | None = None,
        order: Literal["priority", "random"] = "priority",
        strict: bool = False,
        holder: Mapping[str, Any] | None = None,
        depends: Iterable[LeasedTask | TaskInfo] = (),
    ) -> list[LeasedTask]:
        """Lease up to `n` tasks: see `Queue.lease`; `depends`, in a group: see `GroupQueue.lease`."""
        check_lease(lease_s, up_to, order, strict, holder)
        asked: dict[str, Any] = {"order": order, "strict": bool(strict)}
        if type(depends) is not tuple and not isinstance(depends, Iterable):
            raise InvalidArgument(f"depends takes a list of tasks, not {depends!r:.100}. Nothing was done.")
        if conditions := [as_seen(task, self.gateway) for task in depends]:
            asked["depends"] = conditions
        asked |= leasing(lease_s, up_to, self._holder if holder is None else holder)
        task_of = partial(leased_task, self)  # type: ignore[arg-type]
        return lease_by(self._wire, partial(self._lease, asked), n, wait_s, task_of)

    def _lease(
        self, asked: dict[str, Any], wire: Wire, n: int, step_s: float, again: bool = False
    ) -> list[dict[str, Any]]:
        answer = wire.call("lease", {**asked, "n": n}, queue=self.name, again=again, wait_s=step_s, advice=RUNS_OUT)
        found: list[dict[str, Any]] = answer["tasks"]
        return found

    def lease_by_id(
        self, ids: str | Iterable[str], *, lease_s: float | None = None, holder: Mapping[str, Any] | None = None
    ) -> list[LeasedTask]:
        """Lease the tasks with these ids: see `Queue.lease_by_id`.

        More than one request can hold take several. If one of them fails, what is leased already is returned: its
        leases run.
        """
        wanted = sorted(_sound(ids))
        check_lease(lease_s, holder=holder)
        given = {"lease_s": lease_s, "holder": holder_of(self._holder if holder is None else holder)}
        found: list[dict[str, Any]] = []
        for _, part in in_parts([encoded(one) for one in wanted]):
            body = json_object(given, ids=part)
            try:
                found += self._wire.call("lease_by_id", body=body, queue=self.name, advice=RUNS_OUT)
            except FsqueueError:
                if not found:
                    raise
                break
        return [leased_task(self, one) for one in found]  # type: ignore[arg-type]

    @in_one_process
    def lease_patiently(self, n: int, lease_s: float | None, wait_s: float) -> list[LeasedTask]:
        """Lease as a loop does, which goes on while the gateway is away. A lease whose answer was lost runs out."""
        asked = leasing(lease_s, None, self._holder)
        tasks = self._lease(asked, self._wire, min(n, TASKS_MAX), wait_s, again=True)
        return [leased_task(self, one) for one in tasks]  # type: ignore[arg-type]

    def poll(
        self,
        *,
        lease_s: float | None = None,
        prefetch: int = 1,
        until: Until = "drained",
        errors: Errors = "record",
        stop_after_failures: int | None = None,
    ) -> RemotePoll:
        """Return an iterator over leased tasks, until the queue is drained or for ever: see `Queue.poll`.

        It goes on while the gateway is away, for as long as `patience_s` of `connect` says.
        """
        return RemotePoll(self, lease_s, prefetch, until, errors, stop_after_failures)

    def attach(self, token: str, *, verify: bool = True) -> LeasedTask:
        """Return a lease made elsewhere, from its token, to act on it from this process: see `Queue.attach`."""
        names.parse_token(token)
        if verify:
            return leased_task(self, self._ask("attach", token=token))  # type: ignore[arg-type]
        unread = {"token": token, "attempt": 0, "version": 0, "lease_until": 0, "unread": attaching.not_read(token)}
        return leased_task(self, unread)  # type: ignore[arg-type]

    # -- ending leases ------------------------------------------------------------------------------------------

    @in_one_process
    def complete(self, tasks: LeasedTask | Iterable[LeasedTask], results: Mapping[str, Any] | None = None) -> None:
        """Report tasks as done: see `Queue.complete`."""
        told, refused = results_of(results) if results else ({}, {})
        mine = [task for task in _listed(tasks) if task.id not in refused]
        sent = [json_object({"token": task.token}, result=told.get((task.batch, task.index))) for task in mine]
        try:
            self._each_part("complete", "tasks", sent)
        except LeaseLost as lost:
            refuse(refused, lost)
            raise
        _end(mine)
        refuse(refused)

    @in_one_process
    def renew(self, tasks: LeasedTask | Iterable[LeasedTask], lease_s: float | None = None) -> None:
        """Extend leases: see `Queue.renew`."""
        if lease_s is not None:
            duration_ms(lease_s, "lease_s", 0.001)
        mine = _listed(tasks)
        try:
            until = self._each_part("renew", "tokens", [encoded(task.token) for task in mine], lease_s=lease_s)
        except LeaseLost as lost:
            held = [task for task in mine if task.token not in lost.tokens]
            if len(held) < len(mine):  # the gateway has renewed them, and has not said until when
                self.renew(held, lease_s)
            raise
        for task, until_s in zip(mine, [one for found in until for one in found["lease_until"]], strict=True):
            task.until_ms = round(until_s * 1000)

    @in_one_process
    def release(self, tasks: LeasedTask | Iterable[LeasedTask], delay_s: float = 0) -> None:
        """Put tasks back: see `Queue.release`."""
        duration_ms(delay_s, "delay_s")
        mine = _listed(tasks)
        self._each_part("release", "tokens", [encoded(task.token) for task in mine], delay_s=delay_s)
        _end(mine)

    def put_back(self, tasks: Iterable[LeasedTask]) -> None:
        """Put back what a loop has leased ahead, at once or not at all: their leases run out."""
        RemoteQueue(self._wire.hurried(), self.name, self._holder).release(tasks)

    def _each_part(self, verb: str, name: str, items: Sequence[bytes], **more: Any) -> list[Any]:
        """Ask for many tasks, in as many requests as they need. LeaseLost names those of all of them.

        A request is repeated: what it has ended is found lost then, or done by this very lease.
        """
        found, losses = list[Any](), list[LeaseLost]()
        for _, part in in_parts(items):
            try:
                found.append(self._wire.call(verb, body=json_object(more, **{name: part}), queue=self.name))
            except LeaseLost as lost:
                losses.append(lost)
        if losses:
            raise lost_together(losses)
        return found

    def _complete_one(self, task: LeasedTask, result: Any) -> None:
        self.complete([task], None if result is None else {task.id: result})

    @in_one_process
    def _fail(self, task: LeasedTask, error: object, delay_s: float | None) -> None:
        if delay_s is not None:
            duration_ms(delay_s, "delay_s")
        text = transitions.shorten(said(error) if isinstance(error, BaseException) else text_of(error))
        self._ask("fail", token=task.token, error=text, delay_s=delay_s)
        _end([task])

    @in_one_process
    def _bury(self, task: LeasedTask, reason: object) -> None:
        self._ask("bury", token=task.token, reason=transitions.shorten(text_of(reason)))
        _end([task])

    @in_one_process
    def cancel(self, ids: str | Iterable[str]) -> int:
        """Cancel tasks that no worker holds: see `Queue.cancel`."""
        return sum(self._of_ids("cancel", _sound(ids)))

    @in_one_process
    def change(
        self,
        ids: str | Iterable[str],
        *,
        priority: str | int | None = None,
        no_priority: bool = False,
        delay_s: float | None = None,
        available_at: float | None = None,
    ) -> ChangeReport:
        """Change the priority or the time of waiting tasks: see `Queue.change`."""
        with unwrapped():
            check_change(priority, no_priority, delay_s, available_at)
        wanted, report = _sound(ids), ChangeReport()
        given = {
            "priority": plain(priority),
            "no_priority": no_priority,
            "delay_s": delay_s,
            "available_at": available_at,
        }
        for one in self._of_ids("change", wanted, given):
            report.add(made(ChangeReport, one))
        return report

    def _of_ids(self, verb: str, ids: Iterable[str] | None, given: dict[str, Any] | None = None) -> list[Any]:
        """Ask for tasks by their ids, in as many requests as they need; for all of them, if there are none.

        `given`: what each request has besides.
        """
        if ids is None:
            return [self._ask(verb, all=True)]
        parts = in_parts([encoded(one) for one in sorted(ids)])
        return [self._wire.call(verb, body=json_object(given or {}, ids=part), queue=self.name) for _, part in parts]

    # -- looking ------------------------------------------------------------------------------------------------

    def status(self, exact: bool = True) -> Status:
        """Count the tasks by state: see `Queue.status`."""
        found: Status = made(Status, self._ask("status", exact=bool(exact)))
        return found

    def _states(self, found: dict[str, Any]) -> dict[str, str]:
        return {self.url: found["state"]} if found["state"] else {}

    @in_one_process
    def wait(self, timeout_s: float | None = None, poll: Callable[[Status], object] | None = None) -> Status:
        """Wait until the queue is drained, or `timeout_s` is over; return the last status: see `Queue.wait`."""
        waits_s = math.inf if timeout_s is None else duration_ms(timeout_s, "timeout_s") / 1000
        tell, first = None if poll is None else user_function(poll), None

        def look(step_s: float) -> tuple[bool, Status]:
            nonlocal first
            given = self._wire.call("wait", queue=self.name, wait_s=step_s)
            first = given["state"] if first is None else first
            if first and given["state"] != first:
                raise QueuePurged(
                    f"The queue {self.url} was purged, overwritten or deleted while it was waited for: what was in it "
                    "was not worked off. Wait again for what is in it now."
                )
            status: Status = made(Status, given)
            if tell is not None:
                with unwrapped():
                    tell(status)
            return given["drained"], status

        is_drained, status = in_steps(look, waits_s, lambda found: found[0])
        return status if is_drained else last_statuses([status], lambda: [self.status()], self.is_drained)[0]

    def peek(self, n: int = 1) -> list[TaskInfo]:
        """Return up to `n` waiting tasks, at most 1,000: see `Queue.peek`."""
        return [made(TaskInfo, one) for one in self._ask("peek", n=min(whole("n", n), TASKS_MAX))]

    def task(self, id: str) -> TaskInfo:
        """Return what is known of a task: see `Queue.task`."""
        found: TaskInfo = made(TaskInfo, self._ask_of(id, "task"))
        return found

    def find_by_key(self, key: str) -> TaskInfo:
        """Return what is known of the unfinished task that has this key: see `Queue.find_by_key`."""
        found: TaskInfo = made(TaskInfo, self._ask("find_by_key", key=encoding.key_of(key, None)))
        return found

    def result(self, task: str | TaskRef, timeout_s: float | None = None) -> Any:
        """Return the result of a task, once it is completed: see `Queue.result`."""
        return result_of(task, timeout_s, self.task, lambda: self.store)

    @in_one_process
    def results_of(self, ids: str | TaskRef | Iterable[str | TaskRef]) -> dict[str, Result]:
        """Return what is known of these tasks, finished or not, by their ids: see `Queue.results_of`."""
        answers = self._of_ids("results_of", _sound(ids))
        return {one["id"]: made(Result, one) for answer in answers for one in answer["results"]}

    def tasks(self, state: State | None = None) -> Iterator[TaskInfo]:
        """Yield the unfinished tasks, or those in one state: see `Queue.tasks`."""
        if state is not None:
            one_of("state", state, STATES)
        return self._iterate(TaskInfo, "tasks", state=state)

    def history(self, id: str) -> list[Movement]:
        """Return what happened to a task: see `Queue.history`."""
        return [made(Movement, one) for one in self._ask_of(id, "history")]

    def results(
        self,
        where: Callable[[Result], bool] | None = None,
        dead: bool = False,
        *,
        latest_by: str | None = None,
        newest: int | None = None,
    ) -> Iterator[Result]:
        """Yield the tasks that have ended, inputs beside outputs: see `Queue.results`."""
        if where is not None:
            user_function(where)
        more: dict[str, Any] = {} if latest_by is None else {"latest_by": field_of("latest_by", latest_by)}
        more |= {} if newest is None else {"newest": newest_of(newest, latest_by)}
        found = self._iterate(Result, "results", dead=bool(dead), **more)
        return found if where is None else filter(where, found)

    def inputs(self, task: LeasedTask | TaskRef | str) -> Iterator[Result]:
        """Yield what came of the tasks that a join has waited for: see `LeasedTask.inputs`. `task`: one that it began.

        InvalidArgument if no join of the last week has inserted the task.
        """
        [task_id] = _sound(task.id if isinstance(task, LeasedTask) else task)
        return self._iterate(Result, "inputs", task_id)

    def activity(self, window_s: float | None = None) -> Activity:
        """Return rates, durations, the oldest leases, failures by reason: see `Queue.activity`."""
        if window_s is not None:
            window_ms(window_s)
        return activity(self._ask("activity", window_s=window_s))

    def timeline(self, window_s: float = 3600, pieces: int = 60) -> dict[str, Any]:
        """Return `Queue.timeline` as a dict."""
        window_ms(window_s)
        found = self._ask("timeline", window_s=window_s, pieces=pieces_of(pieces))
        return {"begin": found["begin"], **found}

    def workers(self) -> list[LeaseHolder]:
        """Return the workers that hold tasks: see `Queue.workers`. Slurm is not asked."""
        return [made(LeaseHolder, one) for one in self._ask("workers")]

    def failing_nodes(self) -> list[FailingNode]:
        """Return the nodes on which the latest attempts failed, one after the other: see `Queue.failing_nodes`."""
        return [made(FailingNode, one) for one in self._ask("failing_nodes")]

    def admit_node(self, node: str) -> bool:
        """Forget a node's failures, so that it takes tasks again: see `Queue.admit_node`."""
        return bool(self._ask("admit_node", node=node_of(node)))

    def usage(self) -> dict[str, Usage]:
        """Return files, directories and bytes, by what they are for: see `Queue.usage`."""
        return {part: made(Usage, one) for part, one in self._ask("usage").items()}

    def waiting_by_priority(self, ranges: int = 8) -> list[PriorityRange]:
        """Return how many tasks wait, by priority, in at most 1,000 ranges: see `Queue.waiting_by_priority`."""
        found = self._ask("waiting_by_priority", ranges=min(whole("ranges", ranges), RANGES_MAX))
        return [made(PriorityRange, one) for one in found]

    def stuck(self) -> list[StuckLock]:
        """Return the locks that stay taken: see `Queue.stuck`. Their holders are processes of the gateway's host."""
        found = ({**one, "holders": [made(Holder, each) for each in one["holders"]]} for one in self._ask("stuck"))
        return [made(StuckLock, one) for one in found]

    # -- dead letters, and the whole queue ------------------------------------------------------------------------

    def dead(self, where: Callable[[DeadLetter], bool] | None = None) -> Iterator[DeadLetter]:
        """Yield the dead letters: see `Queue.dead`."""
        if where is not None:
            user_function(where)
        found = self._iterate(DeadLetter, "dead")
        return found if where is None else filter(where, found)

    @in_one_process
    def retry_dead(
        self, ids: str | Iterable[str] | Every = EVERY, where: Callable[[DeadLetter], bool] | None = None
    ) -> int:
        """Insert dead letters again: see `Queue.retry_dead`. Return how many."""
        wanted = _chosen(_meant(ids, "dead letters"), where, self.dead)
        return sum(self._of_ids("retry_dead", wanted))

    @in_one_process
    def purge_dead(
        self, ids: str | Iterable[str] | Every = EVERY, where: Callable[[DeadLetter], bool] | None = None
    ) -> int:
        """Remove dead letters: see `Queue.purge_dead`. Return how many."""
        wanted = _chosen(_meant(ids, "dead letters"), where, self.dead)
        return sum(self._of_ids("purge_dead", wanted))

    def _completed(self, where: Callable[[Result], bool]) -> Iterator[Result]:
        user_function(where)
        return (one for one in self.results() if one.state == "completed" and where(one))

    @in_one_process
    def retry_completed(
        self, ids: str | Iterable[str] | Every = EVERY, where: Callable[[Result], bool] | None = None
    ) -> RetryReport:
        """Insert completed tasks again: see `Queue.retry_completed`."""
        wanted = _chosen(_meant(ids, "completed tasks"), where, self._completed)
        report = RetryReport()
        for one in self._of_ids("retry_completed", wanted):
            report.add(made(RetryReport, one))
        return report

    def gc(self) -> GcReport:
        """Finish what crashes left half done; remove trash: see `Queue.gc`."""
        found: GcReport = made(GcReport, self._ask("gc"))
        return found

    def release_all(
        self,
        *,
        worker: str | Every = EVERY,
        host: str | Every = EVERY,
        slurm_job: str | Every = EVERY,
        job: str | Every = EVERY,
    ) -> int:
        """End leases of other workers: see `Queue.release_all`. Without a name: all."""
        given = {"worker": worker, "host": host, "slurm_job": slurm_job, "job": job}
        named = {name: text for name, value in given.items() if (text := selector(name, value)) is not None}
        return int(self._ask("release_all", **named, all=not named))

    def change_settings(self, /, **settings: Any) -> Settings:
        """Change settings of the queue in use: see `Queue.change_settings`."""
        self._ask("change_settings", settings=settings_of(settings))
        return self.settings

    def pause(self, reason: str | None = None) -> bool:
        """Have no task leased until `resume`: see `Queue.pause`."""
        return bool(self._ask("pause", reason=reason_of(reason)))

    def resume(self) -> bool:
        """Have tasks leased again: see `Queue.resume`."""
        return bool(self._ask("resume"))

    def purge(self) -> None:
        """Drop everything in the queue: see `Queue.purge`."""
        self._ask("purge", confirm=self.name)

    def delete(self) -> dict[str, str]:
        """Delete the queue: see `Queue.delete`. Its files are removed in the background."""
        self._ask("delete", confirm=self.name)
        return {}


class _Stream:
    """The tasks of a call as lines for a gateway. Without a commit's name, what came before a bad one is inserted."""

    def __init__(self, tasks: Iterable[Any], strict: bool, default: encoding.When, is_whole: bool) -> None:
        self._tasks, self._strict, self._default, self._is_whole = tasks, strict, default, is_whole
        self._count = 0
        self._broken: Exception | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            for index, item in enumerate(unchanged(self._tasks) if self._strict else self._tasks):
                task = item if isinstance(item, Task) else Task(item)
                yield task_line(encoding.encode(task, BYTES_MAX, index, self._default)) + b"\n"
                self._count = index + 1
        except Exception as error:
            if self._is_whole:  # a request that does not come to its end inserts nothing
                raise
            self._broken = error

    def check(self, new: int) -> None:
        """Raise what the stream has ended with, if that is an error. `new`: how many tasks were inserted."""
        error, self._broken = self._broken, None
        if isinstance(error, UserCodeError):
            error.count(self._count, new)
            raise error.error from None
        if isinstance(error, InvalidTask):
            error.inserted, error.new = self._count, new
        if error is not None:
            raise error


Ask = Callable[[Wire, int, float], list[dict[str, Any]]]
"""Ask a gateway for so many tasks, and have it wait for so long (s)."""


def leasing(lease_s: float | None, up_to: str | int | None, holder: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a request for leases says. InvalidArgument."""
    check_lease(lease_s, up_to)
    return {"lease_s": lease_s, "up_to": up_to, "holder": holder_of(holder)}


def lease_by(
    wire: Wire, ask: Ask, n: int, wait_s: float, task_of: Callable[[dict[str, Any]], LeasedTask]
) -> list[LeasedTask]:
    """Ask for tasks until there are some, or the time is over. Each request waits for a part of it.

    More than one request leases are asked for as long as there are as many. What is leased already is returned at once
    if such a request fails: its leases run.
    """
    whole("n", n)
    waits_s = duration_ms(wait_s, "wait_s") / 1000
    got = in_steps(lambda step_s: ask(wire, min(n, TASKS_MAX), step_s), waits_s, bool, first_s=WAIT_S)
    is_full = len(got) == TASKS_MAX
    hurried = wire.hurried() if is_full else wire
    while is_full and len(got) < n:
        try:
            more = ask(hurried, min(n - len(got), TASKS_MAX), 0)
        except FsqueueError:
            break
        got += more
        is_full = len(more) == TASKS_MAX
    return [task_of(one) for one in got]


def as_seen(task: object, gateway: str) -> dict[str, Any]:
    """Return how a request names a task that it depends on: by its lease, or as it was seen. InvalidArgument."""
    if isinstance(task, TaskInfo) and task.queue is not None:
        return {"queue": task.queue, "id": task.id, "version": task.version}
    queue: object = task.queue if isinstance(task, LeasedTask) else None
    if isinstance(task, LeasedTask) and isinstance(queue, RemoteQueue) and queue.gateway == gateway:
        return {"queue": queue.name, "token": task.token}
    raise InvalidArgument(
        f"The task {getattr(task, 'id', task)!s:.100} was leased, or looked up, in no queue of a gateway that serves a "
        f"group, or of another one than {gateway}. Nothing was done."
    )


def _listed(tasks: object) -> list[LeasedTask]:
    with unwrapped():
        return leased(tasks)


def _sound(ids: object) -> set[str]:
    with unwrapped():
        return task_ids(ids)


def _meant(ids: object, kind: str) -> set[str] | None:
    return tasks_meant(ids, kind) if ids is EVERY or ids is None else _sound(ids)


def _chosen(ids: set[str] | None, where: Callable[[Any], bool] | None, every: Callable[..., Iterator[Any]]) -> Any:
    """Return the ids of the tasks that are meant; None for all."""
    if where is None:
        return ids
    return {one.id for one in every(where) if ids is None or one.id in ids}


def _end(tasks: Iterable[LeasedTask]) -> None:
    for task in tasks:
        task.done = True
