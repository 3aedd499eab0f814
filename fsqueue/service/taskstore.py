"""Do what taskstore's calls mean, on a group of queues: tasks with numbers as ids (decision 53).

`Taskstore` has a method for each call. What these take and return, and `Refused`, come first.
"""

from __future__ import annotations

import base64
import socket
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import orjson

import fsqueue

WAITING: Final = "waiting"
DELAYED: Final = "delayed"
LEASED: Final = "leased"
HOLDER: Final = "taskstore:"
"""A lease that is a claim has a worker's name that begins with this. The client's id follows."""
AT_ONCE: Final = 10_000
"""Maximum number of tasks of a listing that get their ids in one append."""
TRIES_MAX: Final = 5
"""Maximum number of tries of an update that conflicts with others, although a look finds that its ids still hold."""
OPEN_MAX: Final = 64
"""Maximum number of queues that are kept open for claims and listings."""


@dataclass(frozen=True, slots=True)
class NumberedTask:
    """A task as a client of taskstore sees it. Nothing in it ever changes: a change ends its id, and gives a new one.

    `group` is the name of its queue. `data`: its payload, if that is text; else the payload as JSON text.
    `available_ms`: Unix milliseconds, on the file server's clock, from which no client owns it; `owner` owns it until
    then.
    """

    id: int
    group: str
    data: str
    available_ms: int
    owner: int


@dataclass(frozen=True, slots=True)
class Add:
    """A task to add. `available_ms`: Unix milliseconds; 0 or less counts from now: -60000 is in a minute."""

    group: str
    data: str = ""
    available_ms: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """What a task is to become: all of it, so what is left out is lost. `available_ms`: as in `Add`."""

    id: int
    data: str = ""
    available_ms: int = 0


class Refused(Exception):
    """No task was changed, added, deleted or claimed. Each list has all ids that are in the way, as taskstore says.

    Each is in the order of the request.
    `changes`, `deletes` and `depends`: tasks of these lists that are not there under this id, or not any more. `owned`:
    tasks to change or delete that another client owns. `bugs`: sentences on what can never be done.
    """

    def __init__(
        self,
        *,
        changes: Sequence[int] = (),
        deletes: Sequence[int] = (),
        depends: Sequence[int] = (),
        owned: Sequence[int] = (),
        bugs: Sequence[str] = (),
    ) -> None:
        self.changes, self.deletes, self.depends = list(changes), list(deletes), list(depends)
        self.owned, self.bugs = list(owned), list(bugs)
        super().__init__(
            f"Nothing was done. changes: {self.changes}, deletes: {self.deletes}, depends: {self.depends}, "
            f"owned: {self.owned}, bugs: {self.bugs}"
        )


class Taskstore:
    """taskstore's calls on a group, which workers may work on directly at the same time.

    Each call is done on disk when it returns, so any number of processes may answer for one group. Ids are
    `group.numbers`. A claim is a lease, an update is an atomic update of the group: what these raise goes through
    (StorageError with `advice`: it is unknown whether it was done). Blocks; safe to use from many threads.
    """

    def __init__(self, group: fsqueue.Group) -> None:
        self._group = group
        self._queues: OrderedDict[str, fsqueue.GroupQueue] = OrderedDict()
        self._lock = threading.Lock()

    def groups(self) -> list[str]:
        """Return the names of the queues that have tasks, in order. A hint."""
        return [queue.name for queue in self._group.queues()]

    def tasks(self, ids: Sequence[int]) -> list[NumberedTask | None]:
        """Return the tasks of these ids, one for each; None for one that was never given, or has ended."""
        found = self._group.numbers.find(ids)
        return [None if one is None else _numbered_task(one) for one in found]

    def listing(self, group: str, limit: int = 0, allow_owned: bool = False) -> list[NumberedTask] | None:
        """Return tasks of a queue: of all that may be claimed, or with `allow_owned` of all, up to `limit` (0: any
        number). None if it has none at all. Tasks that were inserted directly get their ids now.
        """
        queue = self._queue(group)
        found: list[NumberedTask] = []
        has_any = False
        seen: list[fsqueue.TaskInfo] = []
        for info in queue.tasks():
            has_any = True
            if allow_owned or info.state == WAITING:
                seen.append(info)
            if len(seen) >= AT_ONCE or (0 < limit <= len(found) + len(seen)):
                found += self._numbered(seen)
                seen = []
            if 0 < limit <= len(found):
                break
        found += self._numbered(seen)
        return found if has_any else None

    def update(
        self,
        client: int,
        adds: Sequence[Add] = (),
        changes: Sequence[Change] = (),
        deletes: Sequence[int] = (),
        depends: Sequence[int] = (),
    ) -> list[NumberedTask]:
        """Apply an update, all or nothing. Return the new tasks: the added ones, then those that replaced others.

        `client`: the client's id, 32 bits with a sign. It may change and delete what no client owns, and what it owns.
        To change a task is to end it, and to insert another one into the same queue; until its time the client owns it.
        One id may stand in several lists, and more than once. Refused.
        """
        bugs = ["the update is empty"] if not adds and not changes and not deletes else []
        bugs += [f"adds[{place}] has no group" for place, add in enumerate(adds) if not add.group]
        for tries in range(TRIES_MAX):
            known = None if tries or bugs else self._expected(client, changes, deletes, depends)
            if known is None:
                known = self._look(client, changes, deletes, depends, bugs)
            try:
                return self._apply(client, known, adds, changes, deletes, depends)
            except fsqueue.UpdateConflict as conflict:
                if conflict.busy:
                    raise
                # something has changed meanwhile: the look tells what is in the way, by its ids
        raise fsqueue.StorageError("Other processes keep changing these tasks. Nothing was done. Try again.")

    def claim(self, client: int, group: str, duration_ms: int, depends: Sequence[int] = ()) -> NumberedTask | None:
        """Give a client one task of a queue, chosen at random, for this time; None if it has none that nobody owns.

        `duration_ms` of 0 or less gives it for no time. Refused (`depends`). The claim may take a task that it depends
        on: that was there, and is the client's now. If one ends while the claim is under way, the claim puts the task
        back that it had taken: nobody owns that task, and its id is a new one. A task whose lease has run out as often
        as its queue allows goes to the dead letters.
        """
        self._must_hold(depends)
        holder = {"host": socket.gethostname() or "localhost", "name": f"{HOLDER}{client}"}
        got = self._queue(group).lease(1, lease_s=max(1, duration_ms) / 1000, order="random", holder=holder)
        if not got:
            return None
        [task] = got
        try:
            taken = self._group.numbers.ended_by(task, depends) if depends else []
            # Versions never come back: what holds now has held at the moment of the lease, too.
            self._must_hold([id for id in depends if id not in taken])
            new = fsqueue.NewNumber(task, _ms(task.lease_until), client)
            [given] = self._group.numbers.give([new])
        except BaseException:
            with suppress(fsqueue.FsqueueError):  # it runs out by itself
                task.release()
            raise
        return _numbered_task(given)

    def _queue(self, name: str) -> fsqueue.GroupQueue:
        """Return a queue, the same object as the last time if that is kept."""
        with self._lock:
            queue = self._queues.pop(name, None)
            if queue is None:
                queue = self._group[name]
                queue.lease_for_others()
            self._queues[name] = queue
            while len(self._queues) > OPEN_MAX:
                self._queues.popitem(last=False)
        return queue

    # -- what is in the way ------------------------------------------------------------------------

    def _must_hold(self, depends: Sequence[int]) -> None:
        if depends:
            found = self._group.numbers.find(depends)
            missing = [id for id, one in zip(depends, found, strict=True) if one is None]
            if missing:
                raise Refused(depends=missing)

    def _look(
        self,
        client: int,
        changes: Sequence[Change],
        deletes: Sequence[int],
        depends: Sequence[int],
        bugs: Sequence[str],
    ) -> dict[int, fsqueue.NumberedInfo]:
        """Return the tasks that an update names, by their ids. Refused, with all that is in the way."""
        changed = [change.id for change in changes]
        asked = list(dict.fromkeys((*deletes, *changed, *depends)))
        found = self._group.numbers.find(asked)
        known = {id: one for id, one in zip(asked, found, strict=True) if one is not None}
        missing = [[id for id in ids if id not in known] for ids in (changed, deletes, depends)]
        owned = [id for id in (*deletes, *changed) if id in known and not _may_change(known[id], client)]
        if owned or bugs or any(missing):
            raise Refused(changes=missing[0], deletes=missing[1], depends=missing[2], owned=owned, bugs=bugs)
        return known

    def _expected(
        self, client: int, changes: Sequence[Change], deletes: Sequence[int], depends: Sequence[int]
    ) -> dict[int, fsqueue.NumberedInfo] | None:
        """Return the tasks that an update names, as they were when they got their ids: no batch is read. The update
        itself finds out whether they still are so. None if something may be in the way, or a payload is needed.
        """
        asked = list(dict.fromkeys((*deletes, *(change.id for change in changes), *depends)))
        known = {id: one for id, one in zip(asked, self._group.numbers.named(asked), strict=True) if one is not None}
        if len(known) < len(asked) or not all(known[change.id].is_plain for change in changes):
            return None
        may = all(_may_be_expected(known[id], client) for id in (*deletes, *(change.id for change in changes)))
        return known if may else None

    # -- to do it ----------------------------------------------------------------------------------

    def _apply(
        self,
        client: int,
        known: Mapping[int, fsqueue.NumberedInfo],
        adds: Sequence[Add],
        changes: Sequence[Change],
        deletes: Sequence[int],
        depends: Sequence[int],
    ) -> list[NumberedTask]:
        """Apply it as one update of the group, and return the new tasks."""
        update, numbers = self._group.update(), self._group.numbers
        new: list[tuple[str, Any, int, int | str | None]] = [
            (add.group, add.data, add.available_ms, None) for add in adds
        ]
        for change in changes:
            info = known[change.id].task
            payload = info.payload if info.payload is not None and _data(info.payload) == change.data else change.data
            new.append((str(info.queue), payload, change.available_ms, info.priority))
        now_ms = {queue: numbers.now_ms(queue) for queue in dict.fromkeys(queue for queue, _, _, _ in new)}
        times = [at if at > 0 else now_ms[queue] - at for queue, _, at, _ in new]
        is_later = [time_ms > now_ms[queue] for time_ms, (queue, _, _, _) in zip(times, new, strict=True)]
        for (queue, payload, _, priority), time_ms, later in zip(new, times, is_later, strict=True):
            update.insert(queue, payload, priority=priority, available_at=time_ms / 1000 if later else None)
        changed = dict.fromkeys(change.id for change in changes)
        for id in dict.fromkeys((*changed, *deletes)):
            task = self._task(known[id], client)
            if id not in changed and isinstance(task, fsqueue.LeasedTask):
                update.complete(task)
            else:
                update.cancel(task)
        for id in dict.fromkeys(depends):
            if id not in changed and id not in deletes:
                update.depends(known[id].task)
        results = update.apply()[: len(new)]
        made = []
        for ref, (queue, payload, _, priority), time_ms, later in zip(results, new, times, is_later, strict=True):
            state: fsqueue.State = DELAYED if later else WAITING
            version = update.versions[ref.id]
            info = fsqueue.TaskInfo(ref.id, state, payload, version=version, priority=priority, queue=queue)
            made.append(fsqueue.NewNumber(info, time_ms, client))
        try:
            return [_numbered_task(one) for one in numbers.give(made)]
        except (fsqueue.StorageError, fsqueue.StorageFull) as error:  # as it stands, it says to repeat the call
            full = isinstance(error, fsqueue.StorageFull)
            raise (fsqueue.StorageFull if full else fsqueue.StorageError)(
                f"The update has happened: do not repeat it. Its new tasks have no ids yet ({error}). They get them "
                "when their groups are listed."
            ) from error

    def _task(self, known: fsqueue.NumberedInfo, client: int) -> fsqueue.TaskInfo | fsqueue.LeasedTask:
        """Return a task as an update takes it: by the client's lease on it, if it has one; else by its version."""
        info, token = known.task, known.token if known.owner == client else None
        if token is None and info.state != LEASED:
            return info
        queue = self._queue(str(info.queue))
        if token is None:  # the gateway that claimed it died before it gave the number
            leases = [step.lease for step in queue.history(info.id) if step.op == "lease"]
            token = f"{info.id}@{leases[-1]}"
        return queue.attach(token, verify=False)

    def _numbered(self, infos: Sequence[fsqueue.TaskInfo]) -> list[NumberedTask]:
        """Return tasks that were seen, with their numbers."""
        new = [fsqueue.NewNumber(info, _available_ms(info), _holder(info)) for info in infos]
        return [_numbered_task(one) for one in self._group.numbers.give(new)]


def _numbered_task(one: fsqueue.NumberedInfo) -> NumberedTask:
    """Return a task as the client sees it."""
    return NumberedTask(one.number, str(one.task.queue), _data(one.task.payload), one.available_ms, one.owner)


def _may_be_expected(known: fsqueue.NumberedInfo, client: int) -> bool:
    """Return whether a client may change a task, as far as its number tells."""
    return known.task.state == WAITING or known.owner == client


def _may_change(found: fsqueue.NumberedInfo, client: int) -> bool:
    """Return whether a client may change a task: its time has come, or it is the client's own."""
    if found.task.state == LEASED:
        return _holder(found.task) == client
    return found.task.state == WAITING or found.owner == client


def _holder(info: fsqueue.TaskInfo) -> int | None:
    """Return the client that has claimed a task; None if a worker has leased it, or nobody."""
    name = str((info.worker or {}).get("name", ""))
    text = name.removeprefix(HOLDER)
    if info.state != LEASED or text == name or not text.removeprefix("-").isdecimal():
        return None
    found = int(text[:12])
    return found if -(1 << 31) <= found < 1 << 31 else None


def _data(payload: Any) -> str:
    """Return a payload as text: what is no text, as JSON; bytes as the queue's files have them, in base64."""
    if isinstance(payload, str):
        return payload
    if isinstance(payload, bytes):
        payload = {"b64": base64.b64encode(payload).decode()}
    return orjson.dumps(payload).decode()


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _available_ms(info: fsqueue.TaskInfo) -> int:
    """Return from when on nobody owns a task, or since when."""
    return _ms(next((at for at in (info.lease_until, info.available_at, info.since) if at is not None), 0))
