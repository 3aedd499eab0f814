"""A queue of a group whose tasks are inserted, leased and ended by taskstore's calls: docs/taskstore.md.

A client of taskstore keeps text: here the JSON of a payload. Its ids are numbers. Whoever looks at the queue, and looks
after it, does so beside it, as the gateway's own client does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import orjson

import fsqueue
from fsqueue import LeasedTask, errors
from fsqueue.arguments import leased
from fsqueue.client.addresses import address_of, connection_to
from fsqueue.format.names import Batch

LACKING = {
    "commit": "parts of a commit are staged by programs that use the library",
    "lease_for": "a gateway's: it leases for several workers at once",
    "lease_by_id": "its ids are other numbers, and a claim takes a random task",
    "poll": "a loop is a program's: it claims again and again",
    "poll_async": "a loop is a program's: it claims again and again",
    "attach": "an id is all that a client has of its claim, and any process with its number may use it",
    "change": "a client changes the time of a task with a claim, and knows no priorities",
    "fail": "an attempt fails if its claim runs out",
    "bury": "a client cannot give a task up; with `max_attempts` fsqueue does",
    "peek": "a claim takes a random task: none is the next one",
    "history": "an id of a task that has ended tells nothing",
    "results_of": "its ids are other numbers",
    "find_by_key": "its tasks have no keys",
    "result": "a client adds what comes of a task as another task",
    "results": "a client adds what comes of a task as another task",
    "result_columns": "a client adds what comes of a task as another task",
    "dead": "a client does not see dead letters",
    "retry_dead": "a client does not see dead letters",
    "purge_dead": "a client does not see dead letters",
    "retry_completed": "a deleted task is gone",
    "fsck": "only a user of the directory can do that",
    "accept_copy": "only a user of the directory can do that",
}
"""Verbs that neither this protocol has nor the suite asks beside it, each with the reason."""
BESIDE = {
    "status", "is_drained", "wait", "activity", "timeline", "workers", "failing_nodes", "usage", "waiting_by_priority",
    "stuck", "release_all", "admit_node", "change_settings", "pause", "resume", "purge", "delete", "gc", "is_copy",
}  # fmt: skip
"""Verbs that somebody beside the clients asks the gateway."""
CLIENT = 7


class Claimed(LeasedTask):
    """A task that the client owns. `number`: its id, which a renewal changes."""

    def __init__(self, queue: Any, given: dict[str, Any]) -> None:
        super().__init__(queue, Batch(""), 0, "", orjson.loads(given["data"]), 1, 0, given["timespec"], 0)
        self.number: int = given["id"]

    @property
    def id(self) -> str:
        return str(self.number)

    @property
    def token(self) -> str:
        return str(self.number)


class Taskstore:
    """A queue of a gateway, at its address, with those methods of `Queue` that taskstore's calls have."""

    def __init__(self, gateway: str, name: str) -> None:
        self._address, self.name = address_of(gateway), name
        self._beside = fsqueue.connect(gateway)[name]
        self.store = self._beside.store

    def __getattr__(self, name: str) -> Any:
        """Return a verb of somebody beside, or what such a verb has changed."""
        if name not in BESIDE | {"settings", "paused"}:
            raise AttributeError(name)
        return getattr(self._beside, name)

    # -- calls ----------------------------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, **fields: Any) -> Any:
        """Return what a call answers; raise the error that it names."""
        with closing(connection_to(self._address, 60)) as connection:
            body = orjson.dumps({"clientid": CLIENT, **fields}) if method == "POST" else None
            connection.request(method, path, body)
            answer = connection.getresponse()
            found = orjson.loads(answer.read())
        if answer.status != 200:
            raise getattr(errors, found["error"]["type"])(found["error"]["message"])
        return found

    def _update(self, **lists: Any) -> list[dict[str, Any]]:
        """Return the new tasks of an update. Refused: with the ids that are in the way."""
        answer = self._ask("POST", "/update", **lists)
        if answer["error"] is not None:
            raise Refused({number for name in ("changes", "deletes", "owned") for number in answer["error"][name]})
        tasks: list[dict[str, Any]] = answer["tasks"]
        return tasks

    # -- inserting ------------------------------------------------------------------------------------------------

    def insert(self, payload: Any, *, delay_s: float = 0, available_at: float | None = None) -> fsqueue.TaskRef:
        [made] = self._add([fsqueue.Task(payload, delay_s=delay_s, available_at=available_at)])
        return fsqueue.TaskRef(str(made["id"]), True)

    def insert_many(self, payloads: Iterable[Any], *, delay_s: float = 0) -> int:
        """Insert tasks by one update: all of them, or none."""
        tasks = [one if isinstance(one, fsqueue.Task) else fsqueue.Task(one, delay_s=delay_s) for one in payloads]
        return len(self._add(tasks))

    def _add(self, tasks: Iterable[fsqueue.Task]) -> list[dict[str, Any]]:
        times = [(_encoded(task.payload), _timespec(task.available_at, task.delay_s)) for task in tasks]
        adds = [{"group": self.name, "data": data, "timespec": timespec} for data, timespec in times]
        try:
            return self._update(adds=adds) if adds else []
        except errors.InvalidTask as error:
            error.inserted = error.new = 0
            raise

    # -- leasing --------------------------------------------------------------------------------------------------

    def lease(self, n: int = 1, *, lease_s: float = 60, strict: bool = False) -> list[LeasedTask]:
        """Claim tasks, one after the other. `strict` is what a claim always is."""
        found: list[LeasedTask] = []
        while len(found) < n and (task := self._claim(lease_s)) is not None:
            found.append(task)
        return found

    def _claim(self, lease_s: float) -> Claimed | None:
        answer = self._ask("POST", "/claim", group=self.name, duration=round(lease_s * 1000))
        assert answer["error"] is None
        if not answer["tasks"]:
            return None
        [given] = answer["tasks"]
        return Claimed(self, given)

    def complete(self, tasks: Any) -> None:
        self._end(leased(tasks), lambda held: self._update(deletes=[task.number for task in held]))

    def release(self, tasks: Any, delay_s: float = 0) -> None:
        self._end(leased(tasks), lambda held: self._change(held, delay_s))

    def renew(self, tasks: Any, lease_s: float | None = None) -> None:
        def renew(held: list[Any]) -> None:
            for task, new in zip(held, self._change(held, lease_s or 60), strict=True):
                task.number, task.until_ms = new["id"], new["timespec"]

        self._end(leased(tasks), renew, ends=False)

    def _change(self, held: list[Any], delay_s: float) -> list[dict[str, Any]]:
        """Give claimed tasks other times, and so other ids."""
        return self._update(
            updates=[
                {"id": task.number, "data": _encoded(task.payload), "timespec": _timespec(None, delay_s)}
                for task in held
            ]
        )

    def _end(self, tasks: list[Any], act: Any, ends: bool = True) -> None:
        """Do something to claimed tasks: to all, or to none. It is tried again without those that are lost."""
        held, lost = tasks, []
        while held:
            try:
                act(held)
                break
            except Refused as refused:
                lost += [task for task in held if task.number in refused.ids]
                held = [task for task in held if task.number not in refused.ids]
        for task in held:
            task.done = ends
        if lost:
            raise errors.LeaseLost("Other clients have these tasks now.", [task.token for task in lost])

    def _complete_one(self, task: LeasedTask, result: Any) -> None:
        assert result is None
        self.complete([task])

    # -- looking --------------------------------------------------------------------------------------------------

    def task(self, id: str) -> fsqueue.TaskInfo:
        found = self._ask("GET", f"/task/{id}")
        if found is None:
            raise errors.TaskNotFound(f"There is no task {id} any more.")
        return self._told(found, "waiting")

    def tasks(self, state: str | None = None) -> Iterator[fsqueue.TaskInfo]:
        """Yield the tasks that nobody owns, as waiting; and those that somebody owns, as leased."""
        free = self._ask("GET", f"/group/{self.name}") or []
        numbers = {one["id"] for one in free}
        for one in self._ask("GET", f"/group/{self.name}?owned=yes") or []:
            told = self._told(one, "waiting" if one["id"] in numbers else "leased")
            if state in (None, told.state):
                yield told

    def _told(self, given: dict[str, Any], state: fsqueue.State) -> fsqueue.TaskInfo:
        return fsqueue.TaskInfo(str(given["id"]), state, orjson.loads(given["data"]), queue=given["group"])

    def cancel(self, ids: Any) -> int:
        """Delete tasks, each by itself: of several one that is gone would keep the others."""
        count = 0
        for id in ids if isinstance(ids, list) else [ids]:
            try:
                self._update(deletes=[int(id)])
                count += 1
            except Refused:
                pass
        return count


class Refused(Exception):
    """An update that did not happen. `ids`: the tasks that are in the way."""

    def __init__(self, ids: set[int]) -> None:
        super().__init__(ids)
        self.ids = ids


def _encoded(payload: Any) -> str:
    return orjson.dumps(payload).decode()


def _timespec(available_at: float | None, delay_s: float) -> int:
    """Return a time as requests have it: milliseconds since the epoch, or less the milliseconds from now."""
    return -round(delay_s * 1000) if available_at is None else round(available_at * 1000)
