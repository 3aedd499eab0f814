"""Show how `run` gets on: on a terminal a bar below the output of commands, in a log file a line a minute.

One thread draws, another looks at the queues now and then. The work loop has its own thread. So a file server that
does not answer, or a stopped terminal, delays the display and not the work.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import fsqueue
from fsqueue.format.wording import counted, duration
from fsqueue.views.activity import alike, headline
from fsqueue.views.rates import WorkerProgress, total
from fsqueue.worker import Event

from .printing import Footer, can_show, complain, quoted
from .status_text import is_all_delayed, number

DRAW_S = 0.5
LOOK_S = 5.0
"""Shortest time between two looks at the queues."""
LOOK_SHARE = 0.05
"""The largest part of its time that the looking thread spends on looks: the work goes on in the same process."""
REPEAT_S = 5.0
"""The first failure of a kind is shown at once. Further ones are counted for this time, and then shown as a number."""
KINDS_MAX = 8
"""Maximum number of kinds of failures shown at a time; the rest is only counted."""
LINE_S = 60.0
"""Time between two lines in a log file."""
LOGGED_KINDS_MAX = 64
"""Maximum number of kinds of failures in a log file."""
IN_A_ROW = 10
"""Number of failures in a row that gets a hint if other workers complete tasks meanwhile."""
BAR_COLUMNS = 16
CLOSE_S = 1.0

Now = Callable[[], float]
Loop = Callable[[], None]


def in_words(progress: WorkerProgress, failed: int, next_due_s: float = math.inf) -> str:
    """Return how far the queues are, how fast that goes, and how long it may still take.

    `next_due_s`: in how many seconds a delayed task is available, if the worker knows one.
    """
    rate, status, done = progress.rate(), progress.status, progress.done
    parts = [f"{done:,} done" if status is None else f"{done:,} of {max(status.inserted, done):,} done"]
    parts += [counted(failed, "failed attempt")] if failed else []
    parts += [f"{progress.leased_elsewhere:,} leased elsewhere"] if progress.leased_elsewhere else []
    parts += [f"{number(rate)}/s"] if rate else []
    left = progress.remaining
    if status is not None and is_all_delayed(status) and left:
        what = ("waits" if left == 1 else "wait") + " for a retry" if failed else "delayed"
        soon = f", the next in {duration(max(0.0, next_due_s))}" if next_due_s < math.inf else ""
        parts.append(f"{left:,} {what}{soon}")
    else:
        parts += [f"{duration(left / rate)} left"] if rate and left else []
    return ", ".join(parts)


def line(progress: WorkerProgress, failed: int, columns: int, encoding: str, next_due_s: float = math.inf) -> str:
    """Return the bar and the numbers, cut to the width of the terminal, in characters of its encoding."""
    from tqdm import tqdm

    text = in_words(progress, failed, next_due_s)
    if progress.status is not None:
        inserted = max(progress.status.inserted, progress.done)
        share = progress.done / inserted if inserted else 0.0
        drawn = tqdm.format_meter(
            min(share, 1.0), 1.0, 0.0, ncols=BAR_COLUMNS, ascii=not can_show("█▏", encoding), bar_format="{bar}"
        )
        text = f"{int(100 * share):>3}% [{drawn}] {text}"
    return text if len(text) <= columns else f"{text[: columns - 1]}{'…' if can_show('…', encoding) else '~'}"


@dataclass
class _Kind:
    """Hold failures of one kind: the first one's text, when they were last shown, and how many were not shown since."""

    said: str
    told_at: float
    more: int = 0


class Failures:
    """Show failures as they happen, each kind in a line. Repeated ones are counted together.

    `kinds_max`: how many kinds are shown at a time; the rest is only counted.
    """

    def __init__(self, tell: Callable[[str], object], now: Now = time.monotonic, kinds_max: int = KINDS_MAX) -> None:
        self._tell, self._now, self._kinds_max = tell, now, kinds_max
        self._kinds: dict[str, _Kind] = {}
        self._others = 0

    def add(self, task: str, reason: str) -> None:
        """Show a failed attempt, or count it."""
        key = alike(reason)
        kind = self._kinds.get(key)
        if kind is not None:
            kind.more += 1
        elif len(self._kinds) >= self._kinds_max:
            self._others += 1
        else:
            self._kinds[key] = _Kind(headline(reason), self._now())
            self._tell(f"an attempt at {task} failed: {headline(reason)}")

    def flush(self, least_s: float = REPEAT_S) -> None:
        """Show how many failures were only counted, for each kind that was last shown `least_s` ago or earlier."""
        now = self._now()
        due = [(key, kind) for key, kind in self._kinds.items() if now - kind.told_at >= least_s]
        for key, kind in due:
            if kind.more:
                self._tell(f"{counted(kind.more, 'more attempt')} failed: {kind.said}")
                kind.more, kind.told_at = 0, now
            else:
                del self._kinds[key]  # if it comes again, show it at once
        if self._others and (due or least_s <= 0):
            self._tell(f"{counted(self._others, 'more attempt')} failed, for other reasons")
            self._others = 0


class FailingHere:
    """Notice that all attempts of this worker fail while others complete tasks: it may be the node."""

    def __init__(self, queue: str) -> None:
        self._queue, self._row, self._others_then = queue, 0, -1
        self._has_said = False

    def count(self, kind: str) -> None:
        """Take in an event of the worker."""
        if kind == "completed":
            self._row, self._others_then = 0, -1
        elif kind == "failed":
            self._row += 1

    def look(self, others: int) -> str:
        """Take in how many tasks others have completed so far. Return a hint, once, if it is time for one."""
        if self._row and (self._others_then < 0 or others < self._others_then):
            self._others_then = others
        if self._has_said or self._row < IN_A_ROW or others <= self._others_then:
            return ""
        self._has_said = True
        return (
            f"hint: the last {self._row:,} attempts here, on {socket.gethostname()}, have failed, while other workers "
            f"completed {others - self._others_then:,} tasks. A worker with --exclude-after N takes no more tasks on a "
            f"node where N in a row have failed; 'fsqueue workers {quoted(self._queue)}' shows such nodes"
        )


class _Told:
    """Hold what a worker tells, and look at its queues from time to time, for either way of showing it.

    `loops`: what threads do from `start` to `close`, by their names. `close` waits a moment for the first one.
    """

    def __init__(
        self, paths: list[str], say: Callable[[str], object], now: Now, kinds_max: int, loops: dict[str, Loop]
    ) -> None:
        self._paths, self._say, self._now = paths, say, now
        self.status_of: Sequence[Callable[[], fsqueue.Status]] | None = None
        """What tells the status of each queue or group; None: `paths` are those of queues."""
        self._worker: fsqueue.Worker | None = None
        self._queues: list[fsqueue.Queue] = []  # the looks' own
        self._progress = WorkerProgress(now)
        self._failing_here = FailingHere(paths[0])
        self._counts: Counter[str] = Counter()  # the events of the worker by kind, such as "failed"
        self._failures = Failures(say, now, kinds_max)
        self._mutex = threading.Lock()  # for the failures: the worker's thread adds them, another flushes
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=loop, name=name, daemon=True) for name, loop in loops.items()]

    def show(self, worker: fsqueue.Worker) -> None:
        """Take in the worker that is shown."""
        self._worker = worker
        self._progress.completed = lambda: worker.completed

    def start(self, worker: fsqueue.Worker) -> None:
        """Begin to look at the queues of a worker, and to show it."""
        self.show(worker)
        for thread in self._threads:
            thread.start()

    def tell(self, event: Event) -> None:
        """Record an event of the worker, and show it if it has a text. Called in a thread of the worker's."""
        self._counts[event.kind] += 1
        self._failing_here.count(event.kind)
        if event.text:
            self._say(event.text)
        elif event.kind in ("failed", "given-up"):
            with self._mutex:
                self._failures.add(event.fields["task"], event.fields["reason"])
        elif event.kind == "moved":
            with self._mutex:
                moved = f"{headline(event.fields['reason'])}; the task moved to {event.fields['to']}"
                self._failures.add(event.fields["task"], moved)

    def close(self) -> None:
        """End the threads, and say how many failures were only counted."""
        self._closed.set()
        if self._threads[0].ident is not None:  # else it was never started
            self._threads[0].join(CLOSE_S)
        with self._mutex:
            self._failures.flush(0)

    def _look(self) -> None:
        """Look once. What goes wrong the worker meets, too, and reports."""
        try:
            if self.status_of is None:
                self._queues = [fsqueue.Queue(path) for path in self._paths]
                self.status_of = [queue.status for queue in self._queues]
            held = self._held()
            each = [status() for status in self.status_of]
            held = max(held, self._held())  # tasks that this worker leased meanwhile are not leased elsewhere
        except (fsqueue.FsqueueError, OSError):
            return
        status = total(each)
        self._progress.look(status, held)
        hint = self._failing_here.look(max(0, status.completed - self._progress.completed()[1]))
        if hint:
            self._say(hint)

    def _held(self) -> int:
        return self._worker.held if self._worker is not None else 0

    def _next_due_s(self) -> float:
        return self._worker.next_due_s if self._worker is not None else math.inf

    def _close_queues(self) -> None:
        for queue in self._queues:
            queue.close()


class LogProgress(_Told):
    """Tell in a log file how a worker gets on: a line a minute, and the first failure of each kind.

    `tell` is for the worker. `say` writes a line. `now` is the clock that the minute is of.
    """

    def __init__(self, paths: list[str], say: Callable[[str], object] = complain, now: Now = time.monotonic) -> None:
        super().__init__(paths, say, now, LOGGED_KINDS_MAX, {"fsqueue-log": self._keep_time})
        self._line_at = now() + LINE_S
        self._has_looked = False

    def step(self) -> None:
        """Write a line if a minute is over. Look some seconds after the begin, too: a rate needs two looks."""
        began = self._now()
        is_due = began >= self._line_at
        if is_due or not self._has_looked:
            self._has_looked = True
            self._look()
            text = in_words(self._progress, self._counts["failed"], self._next_due_s())
            if is_due:
                self._line_at = began + max(LINE_S, (self._now() - began) / LOOK_SHARE)
                self._say(text)

    def _keep_time(self) -> None:
        while not self._closed.wait(min(LOOK_S, max(0.1, self._line_at - self._now()))):
            self.step()
        self._close_queues()


class Progress(_Told):
    """Show on the terminal how a worker gets on, from `start` to `close`.

    `tell` and `pass_on` are for the worker.
    """

    def __init__(self, paths: list[str]) -> None:
        self._footer = Footer()
        loops = {"fsqueue-bar": self._keep_drawing, "fsqueue-look": self._keep_looking}
        super().__init__(paths, self._say_aside, time.monotonic, KINDS_MAX, loops)
        self.pass_on = self._footer.pass_on

    def close(self) -> None:
        """Remove the bar, and show how many failures were only counted."""
        super().close()
        self._footer.close()

    def _say_aside(self, text: str) -> None:
        with self._footer.aside():
            complain(text)

    def _keep_drawing(self) -> None:
        while not self._closed.wait(DRAW_S):
            with self._mutex:
                self._failures.flush()
            self._footer.draw(self._line)

    def _line(self, columns: int, encoding: str) -> str:
        return line(self._progress, self._counts["failed"], columns, encoding, self._next_due_s())

    def _keep_looking(self) -> None:
        wait_s = DRAW_S
        while not self._closed.wait(wait_s):
            began = time.monotonic()
            self._look()
            wait_s = max(LOOK_S, (time.monotonic() - began) / LOOK_SHARE)
        self._close_queues()
