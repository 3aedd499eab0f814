"""Show on a terminal how `run` gets on: a bar below the output of commands, and failures as they happen.

One thread draws, another looks at the queues now and then. The work loop has its own thread. So a file server that
does not answer, or a stopped terminal, delays the display and not the work.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

import fsqueue
from fsqueue.views.activity import alike, headline
from fsqueue.worker import Event

from .common import duration
from .drawing import Pen, number
from .printing import Footer, complain

DRAW_S = 0.5
LOOK_S = 5.0
"""How often the queues are looked at, at most."""
LOOK_SHARE = 0.05
"""The largest part of its time that the looking thread spends on looks: the work goes on in the same process."""
WINDOW_S = 60.0
"""The rate is an average over this time."""
REPEAT_S = 5.0
"""The first failure of a kind is shown at once. Further ones are counted for this time, and then shown as a number."""
KINDS_MAX = 8
"""How many kinds of failures are shown at a time; the rest is only counted."""
BAR_COLUMNS = 16
CLOSE_S = 1.0

Now = Callable[[], float]
Completed = Callable[[], tuple[int, int]]
"""Return how many tasks this worker has completed: for certain, and at most."""


class Numbers:
    """Compute how far the queues are, from the last look at them and from what this worker has done since.

    What it has done is asked of the worker. Its events would not do: while the terminal stands still they are not told,
    and tasks that the last look has counted would be counted again.
    """

    def __init__(self, now: Now = time.monotonic) -> None:
        self._now = now
        self.completed: Completed = lambda: (0, 0)
        self.counts: Counter[str] = Counter()
        """This worker's events by kind, such as "completed" or "failed"."""
        self._status: fsqueue.Status | None = None
        self._elsewhere = 0
        self._completed_then = 0
        self._seen: deque[tuple[float, int]] = deque([(now(), 0)])

    def look(self, status: fsqueue.Status, held: int) -> None:
        """Record a look at the queues, right after it. Meanwhile this worker held `held` tasks."""
        if self._status is None or self._done() > status.completed + status.dead + status.remaining:
            self._seen.clear()  # tasks done before this worker began, or before a purge, would distort the rate
        # At most, and after the look: a task too few until the next look is better than one counted twice.
        self._completed_then = self.completed()[1]
        self._status, self._elsewhere = status, max(0, status.leased - held)

    def _since(self) -> int:
        return max(0, self.completed()[0] - self._completed_then)

    def _done(self) -> int:
        status = self._status
        return self._since() + (status.completed + status.dead if status is not None else 0)

    def rate(self) -> float:
        """Return the tasks done per second lately, by all workers; 0 while that is not known."""
        now = self._now()
        self._seen.append((now, self._done()))
        while len(self._seen) > 2 and now - self._seen[1][0] > WINDOW_S:
            self._seen.popleft()
        (then, before), (now, done) = self._seen[0], self._seen[-1]
        return max(0.0, (done - before) / (now - then)) if now > then else 0.0

    def line(self, pen: Pen) -> str:
        """Return the bar and the numbers, cut to the width of the terminal."""
        rate, failed, status, done = self.rate(), self.counts["failed"], self._status, self._done()
        bar = ""
        if status is None:
            parts = [f"{done:,} done"]
        else:
            inserted = max(status.inserted, done)
            share = done / inserted if inserted else 0.0
            bar = f"{int(100 * share):>3}% [{pen.bar(share, BAR_COLUMNS)}] "
            parts = [f"{done:,} of {inserted:,} done"]
        parts += [f"{failed:,} failed"] if failed else []
        parts += [f"{self._elsewhere:,} leased elsewhere"] if self._elsewhere else []
        parts += [f"{number(rate)}/s"] if rate else []
        left = status.remaining - self._since() if status is not None else 0
        parts += [f"{duration(left / rate)} left"] if rate and left > 0 else []
        return pen.fit(bar + ", ".join(parts))


@dataclass
class _Kind:
    """Hold failures of one kind: the first one's text, when they were last shown, and how many were not shown since."""

    said: str
    told_at: float
    more: int = 0


class Failures:
    """Show failures as they happen, each kind in a line. Repeated ones are counted together."""

    def __init__(self, tell: Callable[[str], object], now: Now = time.monotonic) -> None:
        self._tell, self._now = tell, now
        self._kinds: dict[str, _Kind] = {}
        self._others = 0

    def add(self, task: str, reason: str) -> None:
        """Show a failed attempt, or count it."""
        key = alike(reason)
        kind = self._kinds.get(key)
        if kind is not None:
            kind.more += 1
        elif len(self._kinds) >= KINDS_MAX:
            self._others += 1
        else:
            self._kinds[key] = _Kind(headline(reason), self._now())
            self._tell(f"task {task} failed: {headline(reason)}")

    def flush(self, least_s: float = REPEAT_S) -> None:
        """Show how many failures were only counted, for each kind that was last shown `least_s` ago or earlier."""
        now = self._now()
        due = [(key, kind) for key, kind in self._kinds.items() if now - kind.told_at >= least_s]
        for key, kind in due:
            if kind.more:
                self._tell(f"{kind.more:,} more failed: {kind.said}")
                kind.more, kind.told_at = 0, now
            else:
                del self._kinds[key]  # if it comes again, show it at once
        if self._others and (due or least_s <= 0):
            self._tell(f"{self._others:,} more failed, for other reasons")
            self._others = 0


class Progress:
    """Show on the terminal how a worker gets on, from `start` to `close`.

    `tell` and `pass_on` are for the worker.
    """

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths
        self._footer = Footer()
        self._numbers = Numbers()
        self._failures = Failures(self._say)
        self._mutex = threading.Lock()  # for the failures: the worker's thread adds them, the drawing thread flushes
        self._closed = threading.Event()
        self._held: Callable[[], int] = lambda: 0
        self._drawer = threading.Thread(target=self._draw, name="fsqueue-bar", daemon=True)
        self.pass_on = self._footer.pass_on

    def start(self, worker: fsqueue.Worker) -> None:
        """Begin to draw, and to look at the queues."""
        self._held = lambda: worker.held
        self._numbers.completed = lambda: worker.completed
        self._drawer.start()
        threading.Thread(target=self._look, name="fsqueue-look", daemon=True).start()

    def tell(self, event: Event) -> None:
        """Record an event of the worker, and show it if it has a text. Called in a thread of the worker's."""
        self._numbers.counts[event.kind] += 1
        if event.text:
            self._say(event.text)
        elif event.kind == "failed":
            with self._mutex:
                self._failures.add(event.fields["task"], event.fields["reason"])

    def close(self) -> None:
        """Remove the bar, and show how many failures were only counted."""
        self._closed.set()
        if self._drawer.ident is not None:
            self._drawer.join(CLOSE_S)
        with self._mutex:
            self._failures.flush(0)
        self._footer.close()

    def _say(self, text: str) -> None:
        with self._footer.aside():
            complain(text)

    def _draw(self) -> None:
        while not self._closed.wait(DRAW_S):
            with self._mutex:
                self._failures.flush()
            self._footer.draw(lambda columns, encoding: self._numbers.line(Pen(columns, encoding=encoding)))

    def _look(self) -> None:
        """Look at the queues from time to time, in objects of this thread's own."""
        queues: list[fsqueue.Queue] = []
        wait_s = DRAW_S
        while not self._closed.wait(wait_s):
            began = time.monotonic()
            try:
                queues = queues or [fsqueue.Queue(path) for path in self._paths]
                held = self._held()
                each = [queue.status() for queue in queues]
                held = max(held, self._held())  # tasks that this worker leased meanwhile are not leased elsewhere
            except (fsqueue.FsqueueError, OSError):
                pass  # the worker meets the same error, and reports it
            else:
                self._numbers.look(total(each), held)
            wait_s = max(LOOK_S, (time.monotonic() - began) / LOOK_SHARE)
        for queue in queues:
            queue.close()


def total(each: list[fsqueue.Status]) -> fsqueue.Status:
    """Return the sum of several statuses."""
    names = ("waiting", "delayed", "leased", "completed", "dead")
    return fsqueue.Status(**{name: sum(getattr(one, name) for one in each) for name in names})
