"""Figures for Prometheus at /metrics. docs/metrics.md lists them."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from fsqueue import metrics
from fsqueue.service import patterns
from fsqueue.service.looks import QueueLook
from fsqueue.service.page import Pages

ALL = 1 << 40
"""More queues than any group has."""


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """Looks at queues, and how many queues were left out."""

    looks: list[QueueLook]
    left_out: int

    def signature(self) -> object:
        """Return what is equal as long as nothing has changed."""
        return [look.signature() for look in self.looks]

    def calls(self) -> int:
        """Return about how many calls the look has made to the filesystem."""
        return sum(look.calls() for look in self.looks)


def routes() -> list[BaseRoute]:
    """Return the routes."""
    return [Route("/metrics", _metrics)]


async def _metrics(request: Request) -> Response:
    """Answer with figures of the queues whose whole names match `match`, or of all: of the first QUEUES_MAX."""
    pages: Pages = request.app.state.pages
    served, match = pages.served, patterns.check("match", request.query_params.get("match"))

    def make() -> MetricsPage:
        names = served.names(match, 0, None, ALL)
        looks = [pages.look(name) for name in names[: metrics.QUEUES_MAX]]
        return MetricsPage(looks, max(0, len(names) - metrics.QUEUES_MAX))

    def text() -> bytes:
        seen = pages.looks.look(("metrics", match), make, fresh=True)
        shown: MetricsPage = seen.shown
        found = [
            metrics.Figures(pages.root, look.name, look.status, look.activity, look.paused is not None)
            for look in shown.looks
            if not look.error
        ]
        unreadable = len(shown.looks) - len(found)
        return metrics.text(metrics.Scrape(found, seen.at, seen.took_s, shown.left_out, unreadable))

    return Response(await pages.threads.run(text), media_type=metrics.CONTENT_TYPE)
