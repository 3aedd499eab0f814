"""The pages for a browser: a group, a queue, a task, dead letters. docs/page.md is the users' page.

A page is made whole on the server. Its script asks for it again and puts in what has changed. `page_contents` decides
when the filesystem is read, `attention` says why something stands still, `actions` does what the buttons ask for.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

import fsqueue
from fsqueue.format.wording import counted, duration
from fsqueue.service import actions, attention, bodies, faults, page_contents
from fsqueue.service.login import html
from fsqueue.service.page_contents import ROWS, GroupPage, Names, PageLooks, QueueLook, QueuePage, SeenPage, Shown
from fsqueue.service.served import Served
from fsqueue.service.threads import ServiceThreads
from fsqueue.webpages import charts, rendering
from fsqueue.webpages.rendering import Link

logger = logging.getLogger("fsqueue")

FIRST_S = 0.4
"""How long a request waits for a look. After that it shows the last one, or that queues are being read."""
SOON_S = 1.0
"""When the script asks again for what is being read."""
IDLE_S = 600
"""The script asks for nothing more if nobody has touched the page for this time."""
PAYLOAD_CHARS_MAX = 4_000
CELL_CHARS_MAX = 300
PAGE_MAX = 10_000
CALLS = 1_500
"""About how many calls a look at dead letters, or at a task, makes at most."""


class Pages:
    """What the pages of one gateway share."""

    def __init__(
        self, served: Served, threads: ServiceThreads, has_clients: Callable[[], bool] = lambda: False
    ) -> None:
        self.served, self.threads, self.has_clients = served, threads, has_clients
        self.looks = PageLooks()
        self.id = secrets.token_hex(4)
        """Tells what this process has numbered from what another gateway has."""
        group = served.group
        self.names = None if group is None else Names(group)
        self._looking: dict[object, asyncio.Future[SeenPage]] = {}

    async def seen(self, key: object, make: Callable[[], Shown], fresh: bool) -> SeenPage | None:
        """Return what was seen last for a page, by a look if one is due; None if the first one takes long."""
        if self.looks.due_s(key, fresh) > 0:
            return self.looks.last(key)
        looking = self._looking.get(key)
        if looking is None:
            looking = asyncio.ensure_future(self.threads.run(lambda: self.looks.look(key, make, fresh)))
            self._looking[key] = looking
            looking.add_done_callback(lambda done: self._looked(key, done))
        await asyncio.wait({looking}, timeout=FIRST_S)
        return looking.result() if looking.done() else self.looks.last(key)

    async def seen_now(self, key: object, make: Callable[[], Shown]) -> SeenPage:
        """Return what is seen of a page that shows payloads: by a look of this request's own, which is waited for.

        An earlier look may show what is hidden by now: the task has ended, or its queue keeps less.
        """
        return await self.threads.run(lambda: self.looks.look_anew(key, make))

    async def samples(self, look: QueueLook) -> list[fsqueue.TaskInfo]:
        """Return some of the tasks that are leased for longest, as they are now; none if that fails or takes long."""

        def read() -> list[fsqueue.TaskInfo]:
            with self.served.queue(look.name) as queue:
                return page_contents.samples(queue, look)

        reading = asyncio.ensure_future(self.threads.run(read))
        reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait({reading}, timeout=FIRST_S)
        return reading.result() if reading.done() and reading.exception() is None else []

    def _looked(self, key: object, done: asyncio.Future[SeenPage]) -> None:
        self._looking.pop(key, None)
        if not done.cancelled():
            done.exception()  # who waits for it has it; without one it is told at the next look

    def look(self, name: str) -> QueueLook:
        """Look at a queue by its name."""
        with self.served.queue(name) as queue:
            return page_contents.look_at(queue, name, has_clients=self.has_clients())

    @property
    def root(self) -> str:
        """Return the directory of the group, or the one that the only queue is in."""
        path, only = self.served.path, self.served.only
        return path if only is None else path.removesuffix(f"/{only}")

    def flows(self) -> list[fsqueue.Flow]:
        """Return the flows between the queues of the group; none if they cannot be read."""
        try:
            return [] if self.served.group is None else self.served.group.flows()
        except fsqueue.FsqueueError as error:
            logger.warning("the page shows no stages: %s", error)
            return []

    def lineage(self, name: str, task_id: str) -> fsqueue.Lineage | None:
        """Return the tasks that a task came of, and those that came of it; None if that cannot be read."""
        try:
            return None if self.served.group is None else self.served.group.lineage(name, task_id)
        except fsqueue.FsqueueError as error:
            logger.warning("the page shows no lineage: %s", error)
            return None

    def path_of(self, name: str) -> str:
        """Return how a queue is typed in a command."""
        path = self.served.path
        return path if self.served.only is not None else f"{path}/{name}"


def routes() -> list[BaseRoute]:
    """Return the routes."""
    return [
        Route("/", _safely(_front)),
        Route("/queue", _safely(_queue)),
        Route("/dead", _safely(_dead)),
        Route("/task", _safely(_task)),
        Route("/act", _safely(_act), methods=["POST"]),
        Route("/page.js", _script),
    ]


Handler = Callable[[Request], Any]


def _safely(handler: Handler) -> Handler:
    """Have a handler answer errors of fsqueue by a page."""

    async def answering(request: Request) -> Response:
        try:
            answer: Response = await handler(request)
            return answer
        except fsqueue.FsqueueError as error:
            reply = faults.answer_to(error)
            answer = html("problem.html", reply.status_code, **_common(request, "Something is wrong"), error=str(error))
            if "retry-after" in reply.headers:
                answer.headers["retry-after"] = reply.headers["retry-after"]
            return answer

    return answering


async def _script(request: Request) -> Response:
    return PlainTextResponse(rendering.script(), media_type="text/javascript", headers={"cache-control": "no-cache"})


# -- what pages have in common -------------------------------------------------------------------------------------


def _pages(request: Request) -> Pages:
    found: Pages = request.app.state.pages
    return found


def _common(request: Request, heading: str, above: Iterable[Link] = ()) -> dict[str, Any]:
    """Return what each template asks for."""
    caller = request.state.caller
    done = request.query_params.get("done", "")
    number = request.query_params.get("n", "0")
    count = int(number) if number.isascii() and number.isdecimal() and len(number) < 12 else 0
    return {
        "heading": heading,
        "served": _pages(request).served.path,
        "above": list(above),
        "csrf": caller.csrf,
        "may_write": caller.may_write,
        "done": actions.DONE[done](count) if done in actions.DONE else "",
        "idle_s": IDLE_S,
        "tag": "",
        "looked_at": None,
        "said": "",
    }


def _is_fresh(request: Request) -> bool:
    """Return whether a person asks: by a button, or by loading the page again."""
    asked = request.headers.get("cache-control", "")
    return "no-cache" in asked or "max-age=0" in asked


def _answer(request: Request, template: str, key: object, seen: SeenPage | None, values: dict[str, Any]) -> Response:
    """Return a page as an answer, or that it is as the browser has it."""
    pages = _pages(request)
    if seen is None:
        headers = {"x-next-look": f"{SOON_S}"}
        answer = html("reading.html", **values)
    else:
        tag = f"{pages.id}-{seen.number}-{request.state.caller.role}"
        headers = {"etag": f'"{tag}"', "x-next-look": f"{max(page_contents.LEAST_S, pages.looks.due_s(key)):.1f}"}
        if request.headers.get("if-none-match") == f'"{tag}"':
            return Response(status_code=304, headers=headers)
        answer = html(template, **values | {"tag": tag, "looked_at": seen.at})
    answer.headers.update(headers)
    return answer


def _url(path: str, **query: object) -> str:
    """Return a link to another page, relative to the directory that all pages are in: a proxy may have put that below
    a prefix, which the gateway need not know.
    """
    return f"{path}?{urlencode({name: value for name, value in query.items() if value not in (None, '')})}"


def queue_link(name: str) -> Link:
    """Return a link to the page of a queue."""
    return Link(attention.cut(name, CELL_CHARS_MAX), _url("queue", name=name))


def task_link(name: str, task_id: str) -> Link:
    """Return a link to the page of a task."""
    return Link(task_id, _url("task", queue=name, id=task_id))


def _number(request: Request, name: str) -> int:
    given = request.query_params.get(name, "0")
    return min(int(given), PAGE_MAX) if given.isascii() and given.isdecimal() and len(given) < 10 else 0


def _rate(rate: fsqueue.Rate | None) -> str:
    return "–" if rate is None else f"{rate.per_s:.3g}"


def _age(now: float, since: float | None) -> str:
    return "–" if since is None else duration(max(0.0, now - since))


# -- a group -------------------------------------------------------------------------------------------------------


async def _front(request: Request) -> Response:
    pages = _pages(request)
    if pages.names is None:
        return await _one(request, str(pages.served.only))
    names, text, number = pages.names, request.query_params.get("q", "")[:CELL_CHARS_MAX], _number(request, "page")
    key = "group", text, number
    seen = await pages.seen(
        key, lambda: page_contents.look_over(names, pages.look, pages.flows, text, number), _is_fresh(request)
    )
    values = _common(request, "Queues") | {"q": text}
    if seen is None:
        return _answer(request, "group.html", key, None, values)
    shown: GroupPage = seen.shown
    notices = [notice for look in shown.looks for notice in attention.notices(look, pages.path_of(look.name))]
    notices.sort(key=lambda notice: attention.KINDS.index(notice.kind))
    counts = [look.status for look in shown.looks if not look.error]
    states = ("waiting", "delayed", "leased", "completed", "dead")
    last = max(0, (shown.matching - 1) // ROWS)
    at = shown.first // ROWS
    return _answer(
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
            "before": _url("./", q=text, page=at - 1) if at else "",
            "after": _url("./", q=text, page=at + 1) if at < last else "",
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
        "oldest": _age(found.at, found.oldest_inserted) if found is not None else "–",
        "completed": status.completed if known else None,
    }


# -- a queue -------------------------------------------------------------------------------------------------------


async def _queue(request: Request) -> Response:
    return await _one(request, request.query_params.get("name", ""))


def _above(pages: Pages, *links: Link) -> list[Link]:
    return [*([Link("Queues", "./")] if pages.names is not None else []), *links]


async def _one(request: Request, name: str) -> Response:
    pages, key = _pages(request), ("queue", name)

    def make() -> QueuePage:
        with pages.served.queue(name) as queue:
            return page_contents.look_into(queue, name, pages.has_clients())

    seen = await pages.seen(key, make, _is_fresh(request))
    values = _common(request, name, _above(pages)) | {"name": name}
    if seen is None:
        return _answer(request, "queue.html", key, None, values)
    shown: QueuePage = seen.shown
    look = shown.look
    samples = await pages.samples(look) if look.activity is not None and look.activity.oldest else []
    notices = attention.notices(look, pages.path_of(name))
    more = _of_queue(shown, samples, name) | {"notices": notices, "said": _said(notices)}
    return _answer(request, "queue.html", key, seen, values | more)


def _of_queue(shown: QueuePage, samples: list[fsqueue.TaskInfo], name: str) -> dict[str, Any]:
    look, found = shown.look, shown.look.activity
    now = found.at if found is not None else 0.0
    status = look.status
    return {
        "verdict": attention.verdict(look),
        "counts": [{"": "tasks", **status.as_dict()}],
        "pace": [] if found is None else [_pace(look, found)],
        "is_paused": look.paused is not None,
        "workers": [_worker(worker, now) for worker in look.workers],
        "samples": [
            {
                "task": task_link(name, task.id),
                "leased for": _age(now, task.since),
                "attempt": task.attempt,
                "worker": attention.who(task.worker),
                "payload": attention.cut(_as_text(task.payload), CELL_CHARS_MAX),
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
        "dead_url": _url("dead", queue=name),
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
        "oldest task": _age(found.at, found.oldest_inserted),
        "time left": "–" if left is None else duration(left.likely_s),
    }


def _worker(worker: fsqueue.LeaseHolder, now: float) -> dict[str, Any]:
    return {
        "worker": attention.who(worker.worker),
        "node": worker.node,
        "job": worker.job,
        "tasks": len(worker.tasks),
        "since": charts.moment(worker.since),
        "last heard of": f"{_age(now, worker.heartbeat)} ago",
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
    pages, name, number = _pages(request), request.query_params.get("queue", ""), _number(request, "page")
    key = "dead", name, number

    def make() -> DeadPage:
        with pages.served.queue(name) as queue:
            letters = list(islice(queue.dead(), number * ROWS, (number + 1) * ROWS + 1))
            return DeadPage(letters[:ROWS], len(letters) > ROWS)

    seen = await pages.seen_now(key, make)
    values = _common(request, f"Dead letters of {name}", _above(pages, queue_link(name))) | {"name": name}
    shown: DeadPage = seen.shown
    rows = [
        {
            "task": task_link(name, letter.id),
            "given up": charts.moment(letter.at),
            "attempts": letter.attempt,
            "reason": attention.cut(letter.reason, CELL_CHARS_MAX),
            "payload": "lost" if letter.payload_lost else attention.cut(_as_text(letter.payload), CELL_CHARS_MAX),
        }
        for letter in shown.letters
    ]
    more = {
        "rows": rows,
        "before": _url("dead", queue=name, page=number - 1) if number else "",
        "after": _url("dead", queue=name, page=number + 1) if shown.has_more else "",
        "number": number + 1,
        "numbers": 0,
    }
    return _answer(request, "dead.html", key, seen, values | more)


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
    pages = _pages(request)
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
    values = _common(request, heading, _above(pages, queue_link(name))) | {"name": name, "task_id": task_id}
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
        "error": _lines(task.error or ""),
        "payload": None if task.payload is None else _lines(_as_text(task.payload, 2)),
        "result": None if task.result is None else _lines(_as_text(task.result, 2)),
        "history": [_movement(one) for one in shown.history],
        "before": [] if shown.lineage is None else list(map(_relative, shown.lineage.ancestors)),
        "after": [] if shown.lineage is None else list(map(_relative, shown.lineage.successors)),
        "is_whole": shown.lineage is None or shown.lineage.is_whole,
    }
    return _answer(request, "task.html", key, seen, values | more)


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


def _as_text(value: Any, indent: int | None = None) -> str:
    """Return a payload or a result as people read it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return repr(value[:PAYLOAD_CHARS_MAX])
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent)
    except RecursionError:
        return "(nested too deeply to be shown)"


def _lines(text: str) -> list[str]:
    """Return the lines of a text, cut. The page writes out hidden characters, line feeds among them."""
    lines = text[:PAYLOAD_CHARS_MAX].split("\n")
    return [*lines, f"… (cut: it has {len(text):,} characters)"] if len(text) > PAYLOAD_CHARS_MAX else lines


# -- what buttons do -----------------------------------------------------------------------------------------------


async def _act(request: Request) -> Response:
    """Do what a form asks for, and show the page that it was on."""
    pages = _pages(request)
    given = await bodies.form(request)
    name, verb = given.get("queue", ""), given.get("verb", "")

    def act() -> int:
        with pages.served.queue(name) as queue:
            return actions.act(queue, verb, given)

    count = await pages.threads.run(act)
    pages.looks.forget()
    back = {"queue": _url("queue", name=name), "dead": _url("dead", queue=name), "group": "./?",
            "task": _url("task", queue=name, id=given.get("id", ""))}  # fmt: skip
    where = back.get(given.get("back", ""), back["queue"])
    return RedirectResponse(f"{where}&{urlencode({'done': verb, 'n': count})}", 303)
