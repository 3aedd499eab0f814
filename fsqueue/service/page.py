"""The pages for a browser: a group, a queue, a task, dead letters. docs/page.md is the users' page.

A page is made whole on the server. Its script asks for it again and puts in what has changed. `page_contents` decides
when the filesystem is read, `attention` says why something stands still, `actions` does what the buttons ask for.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

import fsqueue
from fsqueue.format.wording import counted, duration
from fsqueue.service import actions, attention, bodies, page_contents, page_lists
from fsqueue.service.page_contents import ROWS, GroupPage, QueueLook, QueuePage
from fsqueue.service.page_frame import (
    CALLS,
    CELL_CHARS_MAX,
    above,
    age,
    answer,
    as_text,
    common,
    is_fresh,
    lines_of,
    page_number,
    pages_of,
    queue_key,
    queue_link,
    safely,
    task_link,
    url,
)
from fsqueue.webpages import charts, rendering


def routes() -> list[BaseRoute]:
    """Return the routes."""
    return [
        Route("/", safely(_front)),
        Route("/queue", safely(_queue)),
        Route("/dead", safely(_dead)),
        Route("/task", safely(_task)),
        Route("/act", safely(_act), methods=["POST"]),
        Route("/page.js", _script),
        *page_lists.routes(),
    ]


async def _script(request: Request) -> Response:
    return PlainTextResponse(rendering.script(), media_type="text/javascript", headers={"cache-control": "no-cache"})


def _rate(rate: fsqueue.Rate | None) -> str:
    return "–" if rate is None else f"{rate.per_s:.3g}"


# -- a group -------------------------------------------------------------------------------------------------------


async def _front(request: Request) -> Response:
    pages = pages_of(request)
    if pages.names is None:
        return await _one(request, str(pages.served.only))
    names, text, number = pages.names, request.query_params.get("q", "")[:CELL_CHARS_MAX], page_number(request, "page")
    key = "group", text, number
    seen = await pages.seen(
        key, lambda: page_contents.look_over(names, pages.look, pages.flows, text, number), is_fresh(request)
    )
    values = common(request, "Queues") | {"q": text}
    if seen is None:
        return answer(request, "group.html", key, None, values)
    shown: GroupPage = seen.shown
    notices = [notice for look in shown.looks for notice in attention.notices(look, pages.path_of(look.name))]
    notices.sort(key=lambda notice: attention.KINDS.index(notice.kind))
    counts = [look.status for look in shown.looks if not look.error]
    states = ("waiting", "delayed", "leased", "completed", "dead")
    last = max(0, (shown.matching - 1) // ROWS)
    at = shown.first // ROWS
    return answer(
        request,
        "group.html",
        key,
        seen,
        values
        | {
            "shown": shown,
            "notices": notices[:NOTICES_MAX],
            "more_notices": max(0, len(notices) - NOTICES_MAX),
            "said": _said(notices),
            "totals": [{state: sum(getattr(one, state) for one in counts) for state in states}],
            "rows": [_row(look) for look in shown.rows],
            "stages": _stages(shown),
            "before": url("./", q=text, page=at - 1) if at else "",
            "after": url("./", q=text, page=at + 1) if at < last else "",
            "number": at + 1,
            "numbers": last + 1,
        },
    )


NOTICES_MAX = 30


def _said(notices: list[attention.Notice]) -> str:
    """Return what a screen reader says when it changes."""
    still = [notice for notice in notices if notice.kind == "stands still"]
    problems = [notice for notice in notices if notice.kind == "problem"]
    if not still and not problems:
        return "Nothing stands still."
    return f"{counted(len(still), 'reason')} to stand still, {counted(len(problems), 'problem')}."


def _stages(shown: GroupPage) -> list[list[dict[str, Any]]]:
    """Return what the graph of the stages shows of each queue, stage by stage."""
    known = {look.name: look for look in shown.looks}
    return [
        [
            {
                "link": queue_link(name),
                "state": attention.verdict(known[name]),
                "status": known[name].status,
                "to": [
                    {"name": flow.target, "share": f"{flow.updates:,}"} for flow in shown.flows if flow.source == name
                ],
            }
            for name in stage
        ]
        for stage in page_contents.stages(shown.flows)
    ]


def _row(look: QueueLook) -> dict[str, Any]:
    status, found = look.status, look.activity
    known = found is not None
    return {
        "queue": queue_link(look.name),
        "state": attention.verdict(look),
        "waiting": status.waiting if known else None,
        "delayed": status.delayed if known else None,
        "leased": status.leased if known else None,
        "dead": status.dead if known else None,
        "workers": found.workers if found is not None else None,
        "inserted/s": _rate(found.inserted) if found is not None else "–",
        "completed/s": _rate(found.completed) if found is not None else "–",
        "oldest": age(found.at, found.oldest_inserted) if found is not None else "–",
        "completed": status.completed if known else None,
    }


# -- a queue -------------------------------------------------------------------------------------------------------


async def _queue(request: Request) -> Response:
    return await _one(request, request.query_params.get("name", ""))


async def _one(request: Request, name: str) -> Response:
    pages, key = pages_of(request), queue_key(name)
    seen = await pages.queue(name, is_fresh(request))
    values = common(request, name, above(pages)) | {"name": name}
    if seen is None:
        return answer(request, "queue.html", key, None, values)
    shown: QueuePage = seen.shown
    look = shown.look
    samples = await pages.samples(look) if look.activity is not None and look.activity.oldest else []
    notices = attention.notices(look, pages.path_of(name))
    more = _of_queue(shown, samples, name) | {"notices": notices, "said": _said(notices)}
    return answer(request, "queue.html", key, seen, values | more)


def _of_queue(shown: QueuePage, samples: list[fsqueue.TaskInfo], name: str) -> dict[str, Any]:
    look, found = shown.look, shown.look.activity
    now = found.at if found is not None else 0.0
    status = look.status
    return {
        "verdict": attention.verdict(look),
        "counts": [{"": "tasks", **status.as_dict()}],
        "pace": [] if found is None else [_pace(look, found)],
        "is_paused": look.paused is not None,
        "lists": page_lists.lists(name),
        "workers": [_worker(name, worker, now) for worker in look.workers],
        "samples": [
            {
                "task": task_link(name, task.id),
                "leased for": age(now, task.since),
                "attempt": task.attempt,
                "worker": attention.who(task.worker),
                "payload": attention.cut(as_text(task.payload), CELL_CHARS_MAX),
            }
            for task in samples
        ],
        "failures": [
            {
                "reason": failure.reason,
                "given up": failure.dead,
                "tried again": failure.retrying,
                "last": None if failure.last is None else charts.moment(failure.last),
                "example": task_link(name, failure.example) if failure.example else None,
            }
            for failure in look.failures
        ],
        "reasons": [failure.reason for failure in look.failures if failure.dead],
        "dead_url": url("dead", queue=name),
        "charts": _charts(shown.timeline),
        "durations": _durations(shown.timeline),
        "is_sampled": shown.timeline is not None and shown.timeline.share < 1,
        "used": None if found is None or found.most_used is None else _most_used(name, found.most_used),
        "settings": [] if look.settings is None else _settings(look.settings),
    }


def _pace(look: QueueLook, found: fsqueue.Activity) -> dict[str, Any]:
    left = found.left(look.status.remaining) if look.paused is None else None
    over = "" if found.completed is None else f" over {duration(found.completed.over_s)}"
    return {
        "": "now",
        f"inserted/s{over}": _rate(found.inserted),
        f"leased/s{over}": _rate(found.leased),
        f"completed/s{over}": _rate(found.completed),
        "a lease takes": "–" if found.lease_s is None else duration(found.lease_s),
        "oldest task": age(found.at, found.oldest_inserted),
        "time left": "–" if left is None else duration(left.likely_s),
    }


def _worker(name: str, worker: fsqueue.LeaseHolder, now: float) -> dict[str, Any]:
    return {
        "worker": page_lists.worker_link(name, worker),
        "node": worker.node,
        "job": worker.job,
        "tasks": len(worker.tasks),
        "since": charts.moment(worker.since),
        "last heard of": f"{age(now, worker.heartbeat)} ago",
        "lease runs out in": duration(worker.lease_until - now) if worker.lease_until > now else "ran out",
        "life": f"{worker.life}, {worker.evidence}" if worker.evidence else worker.life,
    }


def _most_used(name: str, used: fsqueue.MostUsed) -> list[dict[str, Any]]:
    return [
        {"": "memory", "most": f"{used.peak_memory_bytes / 2**20:,.0f} MiB", "task": task_link(name, used.memory_id)},
        {"": "processor time", "most": duration(used.cpu_s), "task": task_link(name, used.cpu_id)},
    ]


def _settings(settings: fsqueue.Settings) -> list[dict[str, Any]]:
    least, most = settings.backoff_s
    return [
        {"limit": "attempts of a task", "value": str(settings.max_attempts or "any number")},
        {"limit": "length of a lease", "value": duration(settings.lease_s)},
        {"limit": "pause after a failure", "value": f"{duration(least)} to {duration(most)}"},
        {"limit": "size of a task", "value": f"{settings.task_bytes_max:,} bytes"},
    ]  # fmt: skip


def _charts(timeline: fsqueue.Timeline | None) -> list[dict[str, Any]]:
    """Return a chart for each thing that happens to tasks; None in it if nothing happened, or it is not known."""
    if timeline is None:
        return []
    made = []
    for what, numbers in (
        ("inserted", timeline.inserted), ("leased", timeline.leased), ("completed", timeline.completed),
        ("given up", timeline.given_up),
    ):  # fmt: skip
        points = [(timeline.begin + n * timeline.step_s, count or 0) for n, count in enumerate(numbers)]
        total = sum(count for _, count in points)
        is_known = any(count is not None for count in numbers)
        chart = charts.over_time(points, timeline.step_s, what) if total and points else None
        made.append({"what": what, "chart": chart, "total": total if is_known else None})
    return made


def _durations(timeline: fsqueue.Timeline | None) -> charts.Chart | None:
    """Return the chart of how long the work on tasks took."""
    if timeline is None or not timeline.work_s:
        return None
    bins = charts.bins_for(timeline.work_s[0][0], timeline.work_s[-1][0])
    edges = [bins.edge(number) for number in range(bins.count + 1)]
    numbers = [0] * bins.count
    place = 0
    for seconds, tasks in timeline.work_s:
        while place < bins.count - 1 and seconds >= edges[place + 1]:
            place += 1
        numbers[place] += tasks
    total, sum_ = sum(numbers), 0
    marks = []
    wanted = [("median", 0.5), ("90 %", 0.9), ("longest", 1.0)]
    for seconds, tasks in timeline.work_s:
        sum_ += tasks
        while wanted and sum_ >= wanted[0][1] * total:
            marks.append((wanted.pop(0)[0], seconds))
    return charts.of_durations(bins, numbers, marks)


# -- dead letters --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeadPage:
    """Some dead letters of a queue."""

    letters: list[fsqueue.DeadLetter]
    has_more: bool

    def signature(self) -> object:
        """Return what is equal as long as nothing has changed."""
        return [letter.id for letter in self.letters], self.has_more

    def calls(self) -> int:
        """Return about how many calls the look has made to the filesystem, at most."""
        return CALLS


async def _dead(request: Request) -> Response:
    pages, name, number = pages_of(request), request.query_params.get("queue", ""), page_number(request, "page")
    key = "dead", name, number

    def make() -> DeadPage:
        with pages.served.queue(name) as queue:
            letters = list(islice(queue.dead(), number * ROWS, (number + 1) * ROWS + 1))
            return DeadPage(letters[:ROWS], len(letters) > ROWS)

    seen = await pages.seen_now(key, make)
    values = common(request, f"Dead letters of {name}", above(pages, queue_link(name))) | {"name": name}
    shown: DeadPage = seen.shown
    rows = [
        {
            "task": task_link(name, letter.id),
            "given up": charts.moment(letter.at),
            "attempts": letter.attempt,
            "reason": attention.cut(letter.reason, CELL_CHARS_MAX),
            "payload": "lost" if letter.payload_lost else attention.cut(as_text(letter.payload), CELL_CHARS_MAX),
        }
        for letter in shown.letters
    ]
    more = {
        "rows": rows,
        "before": url("dead", queue=name, page=number - 1) if number else "",
        "after": url("dead", queue=name, page=number + 1) if shown.has_more else "",
        "number": number + 1,
        "numbers": 0,
    }
    return answer(request, "dead.html", key, seen, values | more)


# -- a task --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskPage:
    """A task, its history, and the tasks that it came of and that came of it."""

    task: fsqueue.TaskInfo
    history: list[fsqueue.Movement]
    lineage: fsqueue.Lineage | None = None

    def signature(self) -> object:
        """Return what is equal as long as nothing has changed."""
        return self.task.state, self.task.version, len(self.history)

    def calls(self) -> int:
        """Return about how many calls the look has made to the filesystem, at most."""
        return CALLS


async def _task(request: Request) -> Response:
    pages = pages_of(request)
    name, task_id = request.query_params.get("queue", ""), request.query_params.get("id", "")
    key = "task", name, task_id

    def make() -> TaskPage:
        with pages.served.queue(name) as queue:
            task = queue.task(task_id)
            try:
                history = queue.history(task_id)
            except fsqueue.TaskNotFound:  # it is not kept
                history = []
        return TaskPage(task, history, pages.lineage(name, task_id) if any(one.update for one in history) else None)

    seen = await pages.seen_now(key, make)
    heading = f"Task {attention.cut(task_id, CELL_CHARS_MAX)}"
    values = common(request, heading, above(pages, queue_link(name))) | {"name": name, "task_id": task_id}
    shown: TaskPage = seen.shown
    task = shown.task
    about = {
        "state": task.state,
        "attempt": task.attempt,
        "since": None if task.since is None else charts.moment(task.since),
        "available": None if task.available_at is None else charts.moment(task.available_at),
        "lease until": None if task.lease_until is None else charts.moment(task.lease_until),
        "worker": None if task.worker is None else attention.who(task.worker),
        "key": task.key,
        "changed by an update that is not decided": task.update,
        "priority": task.priority if task.priority is None else str(task.priority),
    }
    more = {
        "state": task.state,
        "about": [{"what": what, "value": value} for what, value in about.items() if value is not None],
        "error": lines_of(task.error or ""),
        "payload": None if task.payload is None else lines_of(as_text(task.payload, 2)),
        "result": None if task.result is None else lines_of(as_text(task.result, 2)),
        "history": [_movement(one) for one in shown.history],
        "before": [] if shown.lineage is None else list(map(_relative, shown.lineage.ancestors)),
        "after": [] if shown.lineage is None else list(map(_relative, shown.lineage.successors)),
        "is_whole": shown.lineage is None or shown.lineage.is_whole,
    }
    return answer(request, "task.html", key, seen, values | more)


def _relative(one: fsqueue.Relative) -> dict[str, Any]:
    return {
        "task": task_link(one.queue, one.id),
        "queue": queue_link(one.queue),
        "steps": abs(one.steps),
        "when": charts.moment(one.at),
        "update": one.update + (f", which ended {one.among:,} tasks" if one.among > 1 else ""),
    }


def _movement(one: fsqueue.Movement) -> dict[str, Any]:
    why = one.error or one.reason or (f"repeats {one.repeats}" if one.repeats else "")
    if one.update is not None:
        why = f"{why}{', ' if why else ''}by the update {one.update}"
    used = "" if one.peak_memory_bytes is None else f", {one.peak_memory_bytes / 2**20:,.0f} MiB"
    return {
        "when": charts.moment(one.at),
        "what": one.op,
        "worker": "–" if one.worker is None else attention.who(one.worker),
        "took": "–" if one.took_s is None else f"{duration(one.took_s)}{used}",
        "until": "–" if one.until is None else charts.moment(one.until),
        "why": attention.cut(why, CELL_CHARS_MAX),
    }


# -- what buttons do -----------------------------------------------------------------------------------------------


async def _act(request: Request) -> Response:
    """Do what a form asks for, and show the page that it was on."""
    pages = pages_of(request)
    given = await bodies.form(request)
    name, verb = given.get("queue", ""), given.get("verb", "")

    def act() -> int:
        with pages.served.queue(name) as queue:
            return actions.act(queue, verb, given)

    count = await pages.threads.run(act)
    pages.looks.forget()
    back = {"queue": url("queue", name=name), "dead": url("dead", queue=name), "group": "./?",
            "task": url("task", queue=name, id=given.get("id", ""))}  # fmt: skip
    where = back.get(given.get("back", ""), back["queue"])
    return RedirectResponse(f"{where}&{urlencode({'done': verb, 'n': count})}", 303)
