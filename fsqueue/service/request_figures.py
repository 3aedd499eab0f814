"""What a gateway tells of itself at /metrics: its requests by verb and status, and how long they took.

One count at the end of each request, in the event loop: no lock, and nothing on disk.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable

from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from fsqueue.metrics import REQUESTS_S

NO_VERB = "none"
"""What requests are called that were answered before a route was found: without a token, or to an unknown path."""
NO_STATUS = "none"
"""The status of requests whose client was gone before the answer began."""
PREFIX = "/v1/"


class RequestFigures:
    """The figures of one process. To be used in the event loop."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._verbs: dict[Hashable, str] = {}
        self._requests: Counter[tuple[str, str]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()
        self.in_progress = 0

    def name(self, routes: Iterable[BaseRoute]) -> None:
        """Take in what requests to each route are called: the verb, or the route's path if it has none."""
        for route in routes:
            if isinstance(route, Route):
                self._verbs[route.endpoint] = route.name if route.path.startswith(PREFIX) else route.path

    def begin(self) -> float:
        """Count a request that begins. Return when."""
        self.in_progress += 1
        return self._monotonic()

    def end(self, scope: Scope, status: int | None, began: float) -> None:
        """Count a request whose answer has ended. `status`: None if no answer began."""
        verb = self._verbs.get(scope.get("endpoint"), NO_VERB)
        seconds = self._monotonic() - began
        self.in_progress -= 1
        self._requests[verb, NO_STATUS if status is None else str(status)] += 1
        buckets = self._buckets.get(verb)
        if buckets is None:
            buckets = self._buckets[verb] = [0] * (len(REQUESTS_S) + 1)
        buckets[bisect_left(REQUESTS_S, seconds)] += 1
        self._seconds[verb] += seconds  # type: ignore[assignment]  # Counter adds any number

    def requests(self) -> dict[tuple[str, str], int]:
        """Return how many requests were answered, by verb and status."""
        return dict(self._requests)

    def durations(self) -> dict[str, tuple[list[int], float]]:
        """Return for each verb how many requests fell into each bucket, and the sum of their seconds."""
        return {verb: ([*buckets], self._seconds[verb]) for verb, buckets in self._buckets.items()}
