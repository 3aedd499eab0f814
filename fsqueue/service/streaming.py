"""The operations that wait, and those whose bodies or answers are streams."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

import fsqueue
from fsqueue.service import answers, bodies, faults, request_batches, request_fields, update_requests
from fsqueue.service.answers import Json
from fsqueue.service.faults import BadField, Overloaded
from fsqueue.service.lessees import AtOnce, Look
from fsqueue.service.served import Served
from fsqueue.verbs.fields import TASK

T = TypeVar("T")

PAUSE_S = (0.5, 5.0)
"""Shortest and longest pause between two looks of a stream of events. It grows while nothing changes."""
NOTHING_DONE = "Nothing was done."
"""The end of what is said of a field that is wrong. Lines before it may have been inserted."""
COMMENT_S = 15.0
"""Pause without an event after which a comment is sent, so that a proxy does not end the connection."""


# -- insert -----------------------------------------------------------------------------------------------


async def insert(request: Request, given: dict[str, Any]) -> Response:
    """Insert one task, or the tasks of JSON Lines in bounded memory."""
    gateway = request.app.state.gateway
    key = request.headers.get("idempotency-key")
    if key is not None:
        if given["commit"] not in (None, key):
            raise BadField("commit", "is another one than Idempotency-Key says. Nothing was done.")
        given["commit"] = key
    bodies.refuse_encoded(request)  # before the queue comes into being
    if bodies.kind_of(request) in bodies.JSON_LINES:
        return await _insert_lines(request, given)
    given["task"] = await bodies.json_object(request, gateway.limits.body_bytes_max, task_in)

    def act() -> Any:
        with gateway.served.queue(given["queue"]) as queue:
            if given["commit"] is not None or given["new_by"] is not None:
                once = queue.insert_many([given["task"]], commit=given["commit"], new_by=given["new_by"])
                return {"id": None, "inserted": bool(once)}
            ref = queue.insert(given["task"])
            return {"id": ref.id, "inserted": ref.inserted}

    found = await gateway.threads.run(act)
    return Json(found, 201 if found["inserted"] else 200)


def task_in(sent: Any, where: str = "") -> fsqueue.Task:
    """Return the task that a JSON object describes; BadField."""
    task = request_fields.given_in(TASK, sent, where)
    payload = request_fields.payload_in(task, sent, where)
    return fsqueue.Task(payload, task["key"], task["priority"], task["delay_s"] or 0, task["available_at"])


async def _insert_lines(request: Request, given: dict[str, Any]) -> Response:
    """Insert a stream: a thread takes its lines as they come, and holds no more than a part of them."""
    gateway = request.app.state.gateway
    loop = asyncio.get_running_loop()
    parts = bodies.lines(request, gateway.limits.line_bytes_max)

    def tasks() -> Iterator[fsqueue.Task]:
        number = 0
        while (part := asyncio.run_coroutine_threadsafe(anext_of(parts), loop).result()) is not None:
            for line in part:
                number += 1
                where = f"line {number}"
                yield task_in(bodies.decoded(line, where), where)

    def act() -> dict[str, Any]:
        how = {name: given[name] for name in ("commit", "total", "new_by", "refs")}
        with gateway.served.queue(given["queue"]) as queue:
            try:
                found: int | list[fsqueue.TaskRef] = queue.insert_many(tasks(), **how)
            except BadField as error:
                if error.new:
                    before = str(error).removesuffix(NOTHING_DONE)
                    error.args = (f"{before}Of the tasks in the lines before it, {error.new:,} are new in the queue.",)
                raise
            except HTTPException as error:  # the stream has broken off, or has too long a line
                is_whole = given["commit"] is not None
                error.detail += " Nothing was inserted." if is_whole else " The lines before that may be inserted."
                raise
            return answers.inserted(found)

    with gateway.threads.one() as thread:
        answer = await asyncio.wrap_future(thread.submit(act))
    return Json(answer, 201 if answer["inserted"] else 200)


async def anext_of(parts: AsyncIterator[T]) -> T | None:
    """Return the next item; None at the end."""
    return await anext(parts, None)


# -- lease and wait -----------------------------------------------------------------------------------------


async def lease(request: Request, given: dict[str, Any]) -> Response:
    """Lease tasks of one queue."""
    gateway = request.app.state.gateway
    served, name = gateway.served, given["queue"]
    how = {one: given[one] for one in ("lease_s", "up_to", "order", "strict")}
    way, holder = (name, *how_of(how)), holder_in(request, given)
    if given["depends"]:
        return await _leased(request, given, way, holder, _depending(request, given, holder, how), with_queue=False)

    def look(n: int, wait_s: float) -> list[fsqueue.LeasedTask]:
        with served.queue(name) as queue:
            found: list[fsqueue.LeasedTask] = queue.lease(n, wait_s=wait_s, holder=holder, **how)
            return found

    async def at_once(n: int) -> list[fsqueue.LeasedTask]:
        found: list[fsqueue.LeasedTask] = await gateway.batches.run(
            ("lease", *way),
            request_batches.Wanted(n, holder),
            partial(request_batches.lease, served, name, how),
            lambda wanted, is_again: request_batches.lease_alone(served, name, how, wanted),
            lambda late: gateway.threads.begin(partial(put_back, late)) if late else None,
        )
        return found

    return await _leased(request, given, way, holder, look, with_queue=False, at_once=at_once)


def _depending(request: Request, given: dict[str, Any], holder: Mapping[str, Any], how: Mapping[str, Any]) -> Look:
    """Return the look of a request that depends on tasks. It shares none with others: their tasks are other ones."""
    served, depends = request.app.state.gateway.served, given["depends"]
    if served.group is None:
        raise BadField("depends", f"is for a group. Here is one queue, {served.only!r}. Nothing was done.")
    update_requests.check_named(given, "depends")

    def look(n: int, wait_s: float) -> list[fsqueue.LeasedTask]:
        with ExitStack() as queues:
            queue = queues.enter_context(served.queue(given["queue"]))
            tasks = [update_requests.seen(served, queues, one) for one in depends]
            found: list[fsqueue.LeasedTask] = queue.lease(n, wait_s=wait_s, holder=holder, depends=tasks, **how)
            return found

    return look


async def lease_any(request: Request, given: dict[str, Any]) -> Response:
    """Lease tasks of any queue of the group."""
    served = request.app.state.gateway.served
    if served.group is None:
        raise BadField("path", f"/v1/lease is for a group. Here is one queue: /v1/queues/{served.only}/lease.")
    of = selected(served.group, given)
    how, holder = {one: given[one] for one in ("lease_s", "up_to")}, holder_in(request, given)

    def look(n: int, wait_s: float) -> list[fsqueue.LeasedTask]:
        found: list[fsqueue.LeasedTask] = of.lease(n, wait_s=wait_s, holder=holder, **how)
        return found

    return await _leased(request, given, (None, given["match"], *how_of(how)), holder, look, with_queue=True)


def holder_in(request: Request, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return whom leases are made for, as histories show it: what the request says, or the address that it came from.

    It is never this process: that a gateway has ended proves nothing about those who have its leases.
    """
    client = request.client.host if request.client is not None and request.client.host else "localhost"
    return dict(given["holder"]) if given["holder"] is not None else {"host": client[:200], "name": "over HTTP"}


def how_of(how: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a way to lease as a key. 1 and True, 5 and 5.0 are different ways."""
    return tuple(repr(value) for value in how.values())


def put_back(tasks: list[fsqueue.LeasedTask]) -> None:
    """Put tasks back that nobody has got. What fails comes back when its lease runs out."""
    for queue in dict.fromkeys(task.queue for task in tasks):
        with suppress(fsqueue.FsqueueError):
            queue.release([task for task in tasks if task.queue is queue])


async def _leased(
    request: Request,
    given: dict[str, Any],
    way: tuple[Any, ...],
    holder: Mapping[str, Any],
    look: Look,
    with_queue: bool,
    at_once: AtOnce | None = None,
) -> Response:
    gateway, key = request.app.state.gateway, (*way, repr(sorted(holder.items())), repr(given.get("depends")))
    wait_s = min(given["wait_s"], gateway.limits.wait_s_max)
    of_all = way if at_once is not None else key
    leasing = asyncio.ensure_future(gateway.lessees.lease(key, given["n"], wait_s, look, put_back, of_all, at_once))
    got = await while_there(request, leasing, lambda late: gateway.threads.begin(partial(put_back, late)))
    return Json({"tasks": [answers.leased(task, with_queue) for task in got]})


class ClientHasGone(Exception):
    """The client has closed its connection while it waited. Nothing is answered."""


async def while_there(request: Request, doing: asyncio.Future[T], late: Callable[[T], object]) -> T:
    """Return what `doing` brings. If the client goes before that, cancel it; `late` gets what came all the same."""
    gone = asyncio.ensure_future(_gone(request))
    try:
        both: set[asyncio.Future[Any]] = {doing, gone}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise ClientHasGone
    finally:
        gone.cancel()
        if not doing.done():
            doing.cancel()
            doing.add_done_callback(
                lambda done: None if done.cancelled() or done.exception() is not None else late(done.result())
            )


async def _gone(request: Request) -> None:
    """Return when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def wait(request: Request, given: dict[str, Any]) -> Response:
    """Wait until a queue is drained; tell its status then, or at the end of the time."""
    gateway = request.app.state.gateway

    def look() -> bool:
        return _with(gateway, given["queue"], fsqueue.Queue.is_drained)

    def counted(is_drained: bool) -> tuple[bool, fsqueue.Status, str]:
        with gateway.served.queue(given["queue"]) as queue:
            return is_drained or queue.is_drained(), queue.status(), _state_of(queue)

    is_drained, status, state = await _waited(request, given["timeout_s"], look, counted)
    # A status without a task proves nothing. After a proof, it tells whether something was inserted since.
    return Json({**status.as_dict(), "drained": is_drained and status.drained, "state": state})


async def wait_for_group(request: Request, given: dict[str, Any]) -> Response:
    """Wait until queues of the group are drained; tell the sum of their counts then, or at the end of the time."""
    queues = selected(group_of(request.app.state.gateway.served), given)

    def counted(is_drained: bool) -> tuple[bool, fsqueue.Status, dict[str, str]]:
        is_drained, status = is_drained or queues.is_drained(), _summed(queues)
        states = {path.rpartition("/")[2]: f"{id}.{generation}" for path, (id, generation) in queues.states()}
        return is_drained, status, states

    is_drained, status, states = await _waited(request, given["timeout_s"], queues.is_drained, counted)
    return Json({**status.as_dict(), "drained": is_drained and status.drained, "states": states})  # see `wait`


def _summed(queues: fsqueue.GroupQueues) -> fsqueue.Status:
    """Return the sum of the counts of all of them."""
    found: Counter[str] = Counter()
    for queue in queues.queues(tasks_min=0):
        with suppress(fsqueue.NotAQueue):  # a stray
            found.update(queue.status().as_dict())
            queue.close()
    del found["inserted"]
    return fsqueue.Status(**found)


def group_of(served: Served) -> fsqueue.Group:
    """Return the group that is served; BadField if it is one queue."""
    if served.group is None:
        raise BadField("path", f"is for a group. Here is one queue: /v1/queues/{served.only}.")
    return served.group


def selected(group: fsqueue.Group, given: Mapping[str, Any]) -> fsqueue.GroupQueues:
    """Return the queues of the group that a request means."""
    return group if given["match"] is None else group.matching(given["match"])


async def _waited(request: Request, wanted_s: float, look: Callable[[], bool], counted: Callable[[bool], T]) -> T:
    """Look more and more rarely whether something is drained, for a time. Return what `counted` does at the end."""
    gateway = request.app.state.gateway
    timeout_s = min(wanted_s, gateway.limits.wait_s_max)

    async def waiting() -> T:
        loop = asyncio.get_running_loop()
        deadline, pause_s = loop.time() + timeout_s, PAUSE_S[0]
        is_drained = False
        while not is_drained and (left_s := deadline - loop.time()) > 0 and not gateway.is_closing:
            is_drained = await gateway.threads.run(look)
            if not is_drained:
                await gateway.pause(min(pause_s, left_s))
                pause_s = min(pause_s * 1.5, PAUSE_S[1])
        found: T = await gateway.threads.run(lambda: counted(is_drained))
        return found

    return await while_there(request, asyncio.ensure_future(waiting()), lambda late: None)


def _state_of(queue: fsqueue.Queue) -> str:
    """Return what tells a queue from one that was purged, or made anew at its place, since; "" if there is none."""
    try:
        return f"{queue.id}.{queue.generation}"
    except fsqueue.QueueNotFound:
        return ""


def _with(gateway: Any, name: str, act: Callable[[fsqueue.Queue], T]) -> T:
    with gateway.served.queue(name) as queue:
        # A queue of a group answers by its own method, which knows that it may not be there.
        found: T = getattr(queue, act.__name__)()
        return found


# -- events -----------------------------------------------------------------------------------------------


async def follow(request: Request, given: dict[str, Any]) -> Response:
    """Answer with a stream of a queue's status: an event whenever it has changed."""
    gateway = request.app.state.gateway

    async def look(seen: int) -> tuple[list[tuple[str, Any]], bool]:
        status = await gateway.threads.run(lambda: _with(gateway, given["queue"], fsqueue.Queue.status))
        return [("status", status.as_dict())], False

    return await _events(request, look, 0, only_changes=True)


async def follow_task(request: Request, given: dict[str, Any]) -> Response:
    """Answer with a stream of a task's movements, to its end. `Last-Event-ID`: how many the client has had."""
    gateway = request.app.state.gateway
    last = request.headers.get("last-event-id", "0")
    if not (last.isascii() and last.isdecimal() and len(last) < 10):
        raise BadField("Last-Event-ID", "is a number that this stream has told. Nothing was done.")

    def moved(seen: int) -> tuple[list[tuple[str, Any]], bool]:
        with gateway.served.queue(given["queue"]) as queue:
            movements = queue.history(given["task"])
            is_over = queue.task(given["task"]).state in ("completed", "dead", "cancelled")
        return [("movement", answers.plain(one)) for one in movements[seen:]], is_over

    async def look(seen: int) -> tuple[list[tuple[str, Any]], bool]:
        found: tuple[list[tuple[str, Any]], bool] = await gateway.threads.run(lambda: moved(seen))
        return found

    return await _events(request, look, int(last), only_changes=False)


Looking = Callable[[int], Awaitable[tuple[list[tuple[str, Any]], bool]]]
"""Return the events after a number of them, and whether they are the last ones."""


async def _events(request: Request, look: Looking, seen: int, only_changes: bool) -> Response:
    """Return a stream of events. The first look is made before it begins: its errors have a status of their own."""
    gateway = request.app.state.gateway
    if gateway.followers >= gateway.limits.followers_max:
        raise Overloaded("Too many streams of events are under way at this gateway: come again.")
    first, is_over = await look(seen)

    async def telling() -> AsyncIterator[bytes]:
        nonlocal seen
        gateway.followers += 1
        told, found, ends, pause_s, silent_s = b"", first, is_over, PAUSE_S[0], 0.0
        try:
            while True:
                for name, value in found:
                    text = answers.encoded(value)
                    if only_changes and text == told:
                        continue
                    told, seen, silent_s, pause_s = text, seen + 1, 0.0, PAUSE_S[0]
                    yield answers.event(value, name, str(seen))
                if ends:
                    yield answers.event({}, "end")
                    return
                if silent_s >= COMMENT_S:
                    yield b": still here\n\n"
                    silent_s = 0.0
                await gateway.pause(pause_s)
                if gateway.is_closing:
                    return
                silent_s += pause_s
                pause_s = min(pause_s * 1.3, PAUSE_S[1])
                try:
                    found, ends = await look(seen)
                except fsqueue.FsqueueError as error:
                    yield answers.event({"type": faults.type_of(error), "message": str(error)}, "error")
                    return
        finally:
            gateway.followers -= 1

    return StreamingResponse(telling(), media_type="text/event-stream")
