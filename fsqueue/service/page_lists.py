"""Pages that list tasks, or find one: tasks in a state, the newest results, what one worker holds, a task by its id or
key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

import fsqueue
from fsqueue.format.wording import duration
from fsqueue.service import attention
from fsqueue.service.page_contents import ROWS, WHOLE_MAX, QueuePage
from fsqueue.service.page_frame import (
    CALLS,
    CELL_CHARS_MAX,
    Pages,
    above,
    answer,
    as_text,
    common,
    is_fresh,
    page_number,
    pages_of,
    queue_key,
    queue_link,
    safely,
    task_link,
    url,
)
from fsqueue.webpages import charts
from fsqueue.webpages.rendering import Link

STATES: tuple[fsqueue.State, ...] = ("waiting", "delayed", "leased")
"""The states whose tasks are listed; dead letters have a page of their own."""
LIST_PAGES_MAX = 20
"""Maximum number of pages of a list. Each page reads all tasks of those before it. No more than 1,000 results may be
asked for as the newest ones."""


def routes() -> list[BaseRoute]:
    """Return the routes."""
    return [
        Route("/tasks", safely(_tasks)),
        Route("/results", safely(_results)),
        Route("/worker", safely(_worker)),
        Route("/find", safely(_find)),
    ]


# -- tasks in a state ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TasksPage:
    """Some tasks of a queue that are in one state."""

    tasks: list[fsqueue.TaskInfo]
    has_more: bool

    def signature(self) -> object:
        """Return what is equal as long as nothing has changed."""
        return [(task.id, task.version) for task in self.tasks], self.has_more

    def calls(self) -> int:
        """Return about how many calls the look has made to the filesystem, at most."""
        return CALLS


async def _tasks(request: Request) -> Response:
    pages, name = pages_of(request), request.query_params.get("queue", "")
    number = min(page_number(request, "page"), LIST_PAGES_MAX - 1)
    state = request.query_params.get("state", "")
    wanted = next((one for one in STATES if one == state), STATES[0])
    key = "tasks", name, wanted, number

    def make() -> TasksPage:
        with pages.served.queue(name) as queue:
            tasks = list(islice(queue.tasks(wanted), number * ROWS, (number + 1) * ROWS + 1))
            return TasksPage(tasks[:ROWS], len(tasks) > ROWS)

    seen = await pages.seen_now(key, make)
    shown: TasksPage = seen.shown
    is_last = number == LIST_PAGES_MAX - 1
    values = common(request, f"{wanted.capitalize()} tasks of {name}", above(pages, queue_link(name)))
    more = {
        "state": wanted,
        "rows": [_row(name, task, wanted) for task in shown.tasks],
        "others": [link for link in lists(name) if link.text != wanted],
        "before": url("tasks", queue=name, state=wanted, page=number - 1) if number else "",
        "after": url("tasks", queue=name, state=wanted, page=number + 1) if shown.has_more and not is_last else "",
        "number": number + 1,
        "numbers": 0,
        "is_cut": shown.has_more and is_last,
        "path": pages.path_of(name),
    }
    return answer(request, "tasks.html", key, seen, values | more)


def _row(name: str, task: fsqueue.TaskInfo, state: fsqueue.State) -> dict[str, Any]:
    """Return what a list shows of a task."""
    row: dict[str, Any] = {"task": task_link(name, task.id)}
    if state == "leased":
        row |= {"since": _moment(task.since), "lease until": _moment(task.lease_until)}
        row |= {"worker": attention.who(task.worker)}
    elif state == "delayed":
        row |= {"available": _moment(task.available_at)}
    else:
        row |= {"since": _moment(task.since)}
    return row | {
        "attempt": task.attempt,
        "priority": None if task.priority is None else attention.cut(str(task.priority), CELL_CHARS_MAX),
        "key": None if task.key is None else attention.cut(task.key, CELL_CHARS_MAX),
        "payload": attention.cut(as_text(task.payload), CELL_CHARS_MAX),
    }


def _moment(at: float | None) -> str | None:
    return None if at is None else charts.moment(at)


def lists(name: str) -> list[Link]:
    """Return links to all lists of a queue."""
    return [
        *(Link(state, url("tasks", queue=name, state=state)) for state in STATES),
        Link(NEWEST, url("results", queue=name)),
        Link("dead letters", url("dead", queue=name)),
    ]


# -- the newest results --------------------------------------------------------------------------------------------

NEWEST = "newest results"


@dataclass(frozen=True, slots=True)
class ResultsPage:
    """Some of the tasks of a queue that ended last."""

    results: list[fsqueue.Result]
    has_more: bool
    keeps_history: bool

    def signature(self) -> object:
        """Return what is equal as long as nothing has changed."""
        return [result.id for result in self.results], self.has_more, self.keeps_history

    def calls(self) -> int:
        """Return about how many calls the look has made to the filesystem, at most."""
        return CALLS


async def _results(request: Request) -> Response:
    pages, name = pages_of(request), request.query_params.get("queue", "")
    number = min(page_number(request, "page"), LIST_PAGES_MAX - 1)
    key = "results", name, number

    def make() -> ResultsPage:
        with pages.served.queue(name) as queue:
            first, end = number * ROWS, (number + 1) * ROWS
            results = list(queue.results(newest=min(end + 1, ROWS * LIST_PAGES_MAX)))
            return ResultsPage(results[first:end], len(results) > end, queue.settings.keep_history)

    seen = await pages.seen_now(key, make)
    shown: ResultsPage = seen.shown
    is_last = number == LIST_PAGES_MAX - 1
    values = common(request, f"Newest results of {name}", above(pages, queue_link(name)))
    more = {
        "keeps_history": shown.keeps_history,
        "rows": [_result_row(name, result) for result in shown.results],
        "others": [link for link in lists(name) if link.text != NEWEST],
        "before": url("results", queue=name, page=number - 1) if number else "",
        "after": url("results", queue=name, page=number + 1) if shown.has_more and not is_last else "",
        "number": number + 1,
        "numbers": 0,
        "is_cut": is_last and bool(shown.results),
        "path": pages.path_of(name),
    }
    return answer(request, "results.html", key, seen, values | more)


def _result_row(name: str, result: fsqueue.Result) -> dict[str, Any]:
    """Return what the list of results shows of a task."""
    is_dead = result.state == "dead"
    came = result.error or "" if is_dead else as_text(result.result) if result.result is not None else ""
    worker = {} if result.worker is None else {"name": result.worker}
    return {
        "task": task_link(name, result.id),
        "ended": _moment(result.finished_at),
        "state": "given up" if is_dead else result.state,
        "took": None if result.took_s is None else duration(result.took_s),
        "attempts": result.attempts,
        "result": attention.cut(came, CELL_CHARS_MAX),
        "payload": None if result.payload is None else attention.cut(as_text(result.payload), CELL_CHARS_MAX),
        "worker": None if result.host is None else attention.who({**worker, "host": result.host}),
    }


# -- a worker ------------------------------------------------------------------------------------------------------


def worker_link(name: str, worker: fsqueue.LeaseHolder) -> Link:
    """Return a link to the page of a worker."""
    return Link(attention.who(worker.worker), url("worker", queue=name, worker=_digest(worker)))


def _digest(worker: fsqueue.LeaseHolder) -> str:
    """Return what names a worker in an address."""
    return blake2b(worker.key, digest_size=16).hexdigest()


async def _worker(request: Request) -> Response:
    pages, name = pages_of(request), request.query_params.get("queue", "")
    digest = request.query_params.get("worker", "")
    key = queue_key(name)
    seen = await pages.queue(name, is_fresh(request))
    if seen is None:
        return answer(request, "worker.html", key, None, common(request, "A worker", above(pages, queue_link(name))))
    shown: QueuePage = seen.shown
    worker, now = next((one for one in shown.look.workers if _digest(one) == digest), None), seen.at
    if worker is None:
        raise fsqueue.TaskNotFound(f"This worker holds no task of {name} any more.")
    tasks = await pages.threads.run(lambda: _held_now(pages, name, worker))
    facts = {
        **{what: attention.cut(as_text(value), CELL_CHARS_MAX) for what, value in worker.worker.items()},
        "node": worker.node,
        "job": worker.job,
        "life": f"{worker.life}, {worker.evidence}" if worker.evidence else worker.life,
        "holds tasks since": charts.moment(worker.since),
        "last heard of": f"{duration(max(0.0, now - worker.heartbeat))} ago",
        "first lease runs out": charts.moment(worker.lease_until),
        "tasks": f"{len(worker.tasks):,}",
    }
    values = common(request, attention.who(worker.worker), above(pages, queue_link(name)))
    more = {
        "name": name,
        "life": worker.life,
        "facts": [{"what": what, "value": value} for what, value in facts.items() if value not in (None, "")],
        "rows": [_row(name, task, "leased") for task in tasks],
        "has_more": len(worker.tasks) > ROWS,
        "host": str(worker.worker.get("host", "")),
    }
    return answer(request, "worker.html", key, seen, values | more)


def _held_now(pages: Pages, name: str, worker: fsqueue.LeaseHolder) -> list[fsqueue.TaskInfo]:
    """Return some of the tasks that a worker held at a look and still holds, as they are now, with payloads."""
    found = []
    with pages.served.queue(name) as queue:
        for task_id in worker.tasks[:ROWS]:
            try:
                task = queue.task(task_id)
            except fsqueue.TaskNotFound:  # it has ended meanwhile, and is not kept
                continue
            if task.state == "leased" and (task.worker or {}) == worker.worker:
                found.append(task)
    return found


# -- a task by its id or key ---------------------------------------------------------------------------------------


async def _find(request: Request) -> Response:
    """Lead to the page of the task that has this id, or this key."""
    pages, wanted = pages_of(request), request.query_params.get("task", "").strip()
    given = request.query_params.get("queue", "")
    if not wanted:
        return RedirectResponse(url("queue", name=given) if given else "./", 303)
    found = await pages.threads.run(lambda: _found(pages, given, wanted))
    return RedirectResponse(url("task", queue=found[0], id=found[1]), 303)


def _found(pages: Pages, given: str, wanted: str) -> tuple[str, str]:
    """Return the queue and the id of a task. `given`: the queue to look in; "" for all of the group. TaskNotFound."""
    seen: set[str] = set()
    unread = 0
    for names in _names(pages, given):
        unread = max(0, len(names) - WHOLE_MAX)
        for name in names[:WHOLE_MAX]:
            found = None if name in seen else _found_in(pages, name, wanted)
            seen.add(name)
            if found is not None:
                return name, found
    more = f" {unread:,} further queues were not looked at: search on the page of the queue." if unread else ""
    raise fsqueue.TaskNotFound(
        f"No task has the id {wanted!r:.200}, and no unfinished one has it as its key. The queue may not keep tasks "
        f"that have ended.{more}"
    )


def _names(pages: Pages, given: str) -> Iterator[list[str]]:
    """Yield the names of queues to look in: of a group those that are known, then those of a list that is due."""
    if given or pages.names is None:
        yield [given or str(pages.served.only)]
        return
    yield pages.names.listed()
    yield pages.names.containing("")[0]  # listed anew if that is due: a queue may have come since


def _found_in(pages: Pages, name: str, wanted: str) -> str | None:
    """Return the id of a task of this queue; None if there is none."""
    with pages.served.queue(name) as queue:
        for look, by in ((queue.task, wanted.partition("@")[0]), (queue.find_by_key, wanted)):
            try:
                return look(by).id
            except (fsqueue.TaskNotFound, fsqueue.QueueNotFound, fsqueue.InvalidArgument, fsqueue.InvalidTask):
                continue
    return None
