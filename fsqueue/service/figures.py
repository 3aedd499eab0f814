"""Answer /metrics: figures for Prometheus of queues and of the gateway itself (docs/metrics.md)."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

import fsqueue
from fsqueue import metrics
from fsqueue.service import page_frame, request_fields
from fsqueue.service.page_contents import QueueLook

ALL = 1 << 40
"""More queues than any group has."""


def routes() -> list[BaseRoute]:
    """Return the route."""
    return [Route("/metrics", _metrics)]


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """Looks at queues, what was counted of each, and how many queues were left out."""

    looks: list[QueueLook]
    counted: list[metrics.Counted | None]
    left_out: int

    def signature(self) -> object:
        """Return what is equal as long as nothing has changed."""
        return [look.signature() for look in self.looks]

    def calls(self) -> int:
        """Return about how many calls the look has made to the filesystem."""
        return sum(look.calls() for look in self.looks)


async def _metrics(request: Request) -> Response:
    """Answer with the figures of the queues whose whole names match `match`, or of all; of the first QUEUES_MAX."""
    pages: page_frame.Pages = request.app.state.pages
    gateway = request.app.state.gateway
    served, match = pages.served, request_fields.check_pattern("match", request.query_params.get("match"))
    requests, durations, in_progress = (
        gateway.requests.requests(),
        gateway.requests.durations(),
        gateway.requests.in_progress,
    )

    def make() -> MetricsPage:
        names = served.names(match, 0, None, ALL)
        looks, counted = [], []
        for name in names[: metrics.QUEUES_MAX]:
            with served.queue(name) as queue:
                looks.append(pages.look(name))
                counted.append(gateway.counters.counted(queue, looks[-1]))
        return MetricsPage(looks, counted, max(0, len(names) - metrics.QUEUES_MAX))

    def text() -> bytes:
        seen = pages.looks.look(("metrics", match), make, fresh=True)
        shown: MetricsPage = seen.shown
        found = [
            metrics.Figures(pages.root, look.name, look.status, look.activity, look.paused is not None, counted)
            for look, counted in zip(shown.looks, shown.counted, strict=True)
            if not look.error
        ]
        itself = metrics.GatewayFigures(
            fsqueue.__version__, pages.looks.age_s(seen), in_progress, gateway.threads.streams, gateway.followers,
            requests, durations,
        )  # fmt: skip
        unreadable = len(shown.looks) - len(found)
        return metrics.text(metrics.Scrape(found, seen.at, seen.took_s, shown.left_out, unreadable, itself))

    return Response(await pages.threads.run(text), media_type=metrics.CONTENT_TYPE)
