"""Show on a terminal how `run` gets on: a bar below the output of commands, and failures as they happen.

One thread draws, another looks at the queues now and then. The work loop has its own thread. So a file server that
does not answer, or a stopped terminal, delays the display and not the work.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import fsqueue
from fsqueue.views.activity import alike, headline
from fsqueue.views.rates import WorkerProgress, total
from fsqueue.worker import Event

from .common import duration
from .printing import Footer, can_show, complain
from .status_text import is_all_delayed, number

DRAW_S = 0.5
LOOK_S = 5.0
"""How often the queues are looked at, at most."""
LOOK_SHARE = 0.05
"""The largest part of its time that the looking thread spends on looks: the work goes on in the same process."""
REPEAT_S = 5.0
"""The first failure of a kind is shown at once. Further ones are counted for this time, and then shown as a number."""
KINDS_MAX = 8
"""How many kinds of failures are shown at a time; the rest is only counted."""
BAR_COLUMNS = 16
CLOSE_S = 1.0

Now = Callable[[], float]


def line(progress: WorkerProgress, failed: int, columns: int, encoding: str, next_due_s: float = math.inf) -> str:
    """Return the bar and the numbers, cut to the width of the terminal, in characters of its encoding.

    `next_due_s`: in how many seconds a delayed task is available, if the worker knows one.
    """
    from tqdm import tqdm

    rate, status, done = progress.rate(), progress.status, progress.done
    bar = ""
    if status is None:
        parts = [f"{done:,} done"]
    else:
        inserted = max(status.inserted, done)
        share = done / inserted if inserted else 0.0
        drawn = tqdm.format_meter(
            min(share, 1.0), 1.0, 0.0, ncols=BAR_COLUMNS, ascii=not can_show("█▏", encoding), bar_format="{bar}"
        )
        bar = f"{int(100 * share):>3}% [{drawn}] "
        parts = [f"{done:,} of {inserted:,} done"]
    parts += [f"{failed:,} failed"] if failed else []
    parts += [f"{progress.leased_elsewhere:,} leased elsewhere"] if progress.leased_elsewhere else []
    parts += [f"{number(rate)}/s"] if rate else []
    left = progress.remaining
    if status is not None and is_all_delayed(status) and left:
        what = ("waits" if left == 1 else "wait") + " for a retry" if failed else "delayed"
        soon = f", the next in {duration(max(0.0, next_due_s))}" if next_due_s < math.inf else ""
        parts.append(f"{left:,} {what}{soon}")
    else:
        parts += [f"{duration(left / rate)} left"] if rate and left else []
    text = bar + ", ".join(parts)
    return text if len(text) <= columns else f"{text[: columns - 1]}{'…' if can_show('…', encoding) else '~'}"


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
        self._progress = WorkerProgress(time.monotonic)
        self._counts: Counter[str] = Counter()  # the events of the worker by kind, such as "failed"
        self._failures = Failures(self._say)
        self._mutex = threading.Lock()  # for the failures: the worker's thread adds them, the drawing thread flushes
        self._closed = threading.Event()
        self._held: Callable[[], int] = lambda: 0
        self._next_due_s: Callable[[], float] = lambda: math.inf
        self._drawer = threading.Thread(target=self._draw, name="fsqueue-bar", daemon=True)
        self.pass_on = self._footer.pass_on

    def start(self, worker: fsqueue.Worker) -> None:
        """Begin to draw, and to look at the queues."""
        self._held = lambda: worker.held
        self._next_due_s = lambda: worker.next_due_s
        self._progress.completed = lambda: worker.completed
        self._drawer.start()
        threading.Thread(target=self._look, name="fsqueue-look", daemon=True).start()

    def tell(self, event: Event) -> None:
        """Record an event of the worker, and show it if it has a text. Called in a thread of the worker's."""
        self._counts[event.kind] += 1
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
            self._footer.draw(self._line)

    def _line(self, columns: int, encoding: str) -> str:
        return line(self._progress, self._counts["failed"], columns, encoding, self._next_due_s())

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
                self._progress.look(total(each), held)
            wait_s = max(LOOK_S, (time.monotonic() - began) / LOOK_SHARE)
        for queue in queues:
            queue.close()
