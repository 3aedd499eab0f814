"""What the pages for a browser have in common: looks that are shared, answers, links, and how values are shown."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

import fsqueue
from fsqueue.format.wording import duration
from fsqueue.service import actions, attention, faults, page_contents
from fsqueue.service.login import html
from fsqueue.service.page_contents import Names, PageLooks, QueueLook, QueuePage, SeenPage, Shown
from fsqueue.service.served import Served
from fsqueue.service.threads import ServiceThreads
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

    async def queue(self, name: str, fresh: bool) -> SeenPage | None:
        """Return what was seen last of a queue: a QueuePage, which its page and those of its workers share.

        QueueNotFound, NotAQueue, StorageError.
        """

        def make() -> QueuePage:
            with self.served.queue(name) as queue:
                return page_contents.look_into(queue, name, self.has_clients())

        return await self.seen(queue_key(name), make, fresh)

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
        """Return a task's ancestors and descendants by updates; None if they cannot be read."""
        try:
            return None if self.served.group is None else self.served.group.lineage(name, task_id)
        except fsqueue.FsqueueError as error:
            logger.warning("the page shows no lineage: %s", error)
            return None

    def path_of(self, name: str) -> str:
        """Return how a queue is typed in a command."""
        path = self.served.path
        return path if self.served.only is not None else f"{path}/{name}"


def queue_key(name: str) -> object:
    """Return the key of the look at a queue."""
    return "queue", name


Handler = Callable[[Request], Any]


def safely(handler: Handler) -> Handler:
    """Have a handler answer errors of fsqueue by a page."""

    async def answering(request: Request) -> Response:
        try:
            answer: Response = await handler(request)
            return answer
        except fsqueue.FsqueueError as error:
            reply = faults.answer_to(error)
            answer = html("problem.html", reply.status_code, **common(request, "Something is wrong"), error=str(error))
            if "retry-after" in reply.headers:
                answer.headers["retry-after"] = reply.headers["retry-after"]
            return answer

    return answering


def pages_of(request: Request) -> Pages:
    found: Pages = request.app.state.pages
    return found


def common(request: Request, heading: str, above: Iterable[Link] = ()) -> dict[str, Any]:
    """Return what each template asks for."""
    caller = request.state.caller
    done = request.query_params.get("done", "")
    number = request.query_params.get("n", "0")
    count = int(number) if number.isascii() and number.isdecimal() and len(number) < 12 else 0
    return {
        "heading": heading,
        "served": pages_of(request).served.path,
        "above": list(above),
        "csrf": caller.csrf,
        "may_write": caller.may_write,
        "may_log_out": caller.by_cookie,
        "done": actions.DONE[done](count) if done in actions.DONE else "",
        "idle_s": IDLE_S,
        "tag": "",
        "looked_at": None,
        "said": "",
    }


def is_fresh(request: Request) -> bool:
    """Return whether a person asks: by a button, or by loading the page again."""
    asked = request.headers.get("cache-control", "")
    return "no-cache" in asked or "max-age=0" in asked


def answer(request: Request, template: str, key: object, seen: SeenPage | None, values: dict[str, Any]) -> Response:
    """Return a page as an answer, or that it is as the browser has it."""
    pages = pages_of(request)
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


def url(path: str, **query: object) -> str:
    """Return a link to another page, relative to the directory that all pages are in: a proxy may have put that below
    a prefix, which the gateway need not know.
    """
    return f"{path}?{urlencode({name: value for name, value in query.items() if value not in (None, '')})}"


def queue_link(name: str) -> Link:
    """Return a link to the page of a queue."""
    return Link(attention.cut(name, CELL_CHARS_MAX), url("queue", name=name))


def task_link(name: str, task_id: str) -> Link:
    """Return a link to the page of a task."""
    return Link(task_id, url("task", queue=name, id=task_id))


def page_number(request: Request, name: str) -> int:
    given = request.query_params.get(name, "0")
    return min(int(given), PAGE_MAX) if given.isascii() and given.isdecimal() and len(given) < 10 else 0


def age(now: float, since: float | None) -> str:
    return "–" if since is None else duration(max(0.0, now - since))


def above(pages: Pages, *links: Link) -> list[Link]:
    return [*([Link("Queues", "./")] if pages.names is not None else []), *links]


def as_text(value: Any, indent: int | None = None) -> str:
    """Return a payload or a result as people read it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return repr(value[:PAYLOAD_CHARS_MAX])
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent)
    except RecursionError:
        return "(nested too deeply to be shown)"


def lines_of(text: str) -> list[str]:
    """Return the lines of a text, cut. The page writes out hidden characters, line feeds among them."""
    lines = text[:PAYLOAD_CHARS_MAX].split("\n")
    return [*lines, f"… (cut: it has {len(text):,} characters)"] if len(text) > PAYLOAD_CHARS_MAX else lines
