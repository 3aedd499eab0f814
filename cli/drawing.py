"""What a status looks like, as lines of text for a terminal of a given size and encoding. Nothing is printed here."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import TypeGuard

import fsqueue
from fsqueue.cluster.identity import describe
from fsqueue.views.activity import together
from fsqueue.views.rates import last_left
from fsqueue.views.rates import total as sum_of

from .common import duration
from .printing import plain

STATES = ("waiting", "delayed", "leased", "completed", "dead")
NAME_COLUMNS_MAX = 40
OLDEST = 10
"""So many of the slowest are shown at most."""
LEASED_AHEAD = 0.9
"""Where tasks are at work for less than this part of their leases, both times are told."""
LEAST_ROWS, LEAST_COLUMNS, TABLE_COLUMNS = 10, 50, 70
"""On less than this only the numbers are shown; the last for several queues."""


@dataclass(frozen=True)
class Look:
    """What was seen of one queue; `activity` as far as it is known. `error`: why it could not be looked at."""

    name: str
    path: str
    status: fsqueue.Status
    activity: fsqueue.Activity | None = None
    error: fsqueue.FsqueueError | None = None
    parts: Sequence[Look] = ()
    """What this is the sum of."""

    @property
    def left(self) -> fsqueue.TimeLeft | None:
        """Return when it will be drained.

        Of several queues it is the last that counts, if each has workers of its own.
        """
        last = last_left([part.left for part in self.parts if part.status.remaining])
        if last is not None:
            return last
        return self.activity.left(self.status.remaining) if self.activity is not None else None


class Pen:
    """Fits text into `columns`, in characters that the terminal has."""

    def __init__(self, columns: int = 1 << 16, rows: int = 1 << 16, encoding: str | None = None) -> None:
        self.columns, self.rows = columns, rows
        self.encoding = encoding or getattr(sys.stdout, "encoding", None) or "ascii"
        self.is_rich = self.text("█▏…±") == "█▏…±"

    def text(self, value: object) -> str:
        """Return a value as text that cannot drive the terminal, and that its encoding has."""
        return plain(str(value)).encode(self.encoding, "backslashreplace").decode(self.encoding)

    def fit(self, text: str, columns: int | None = None) -> str:
        """Return the beginning of a text; wide characters take two columns."""
        from tqdm.utils import disp_len, disp_trim

        room = self.columns if columns is None else columns
        text = self.text(text[: 4 * room])
        if disp_len(text) <= room:
            return text
        mark = "…" if self.is_rich else "~"
        return f"{disp_trim(text, room - 1)}{mark}" if room > 1 else mark[:room]

    def cell(self, text: str, columns: int) -> str:
        """Return the same, filled up with blanks."""
        from tqdm.utils import disp_len

        text = self.fit(text, columns)
        return text + " " * (columns - disp_len(text))

    def bar(self, share: float, columns: int) -> str:
        """Return a bar that is filled up to `share`."""
        from tqdm import tqdm

        share = min(max(share, 0.0), 1.0)
        return tqdm.format_meter(share, 1.0, 0.0, ncols=columns, ascii=not self.is_rich, bar_format="{bar}")

    def rate(self, rate: fsqueue.Rate) -> str:
        """Return a rate with its error."""
        return f"{number(rate.per_s)} {'±' if self.is_rich else '+-'} {number(rate.error)}"


def something(rate: fsqueue.Rate | None) -> TypeGuard[fsqueue.Rate]:
    """Return whether a rate is known, and one of something: that of nothing is not shown."""
    return rate is not None and rate.per_s > 0


def number(value: float) -> str:
    """Return a rate in three digits or so."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def time_left(left: fsqueue.TimeLeft) -> str:
    """Return the time left, with the interval in which it lies 19 of 20 times."""
    if left.most_s is None:
        return f"{duration(left.likely_s)} left ({duration(left.least_s)} or more)"
    least, most = duration(left.least_s), duration(left.most_s)
    return f"{duration(left.likely_s)} left" + (f" ({least} to {most})" if least != most else "")


# -- lines ----------------------------------------------------------------------------------------


def parts_of(look: Look) -> list[str]:
    """Return what a line on a queue says, most important first."""
    status, found = look.status, look.activity
    share = f" ({status.completed / status.inserted:.1%})" if status.inserted else ""
    parts = [
        f"completed {status.completed:,} of {status.inserted:,}{share}",
        f"waiting {status.waiting + status.delayed:,}",
        f"leased {status.leased:,}",
    ]
    parts += [f"dead {status.dead:,}"] if status.dead else []
    parts += [f"{number(found.finished.per_s)}/s"] if found is not None and something(found.finished) else []
    parts += [time_left(look.left)] if look.left is not None and status.remaining else []
    return parts


def progress_line(look: Look, named: bool = False) -> str:
    """Return a queue on one line."""
    line = str(look.error) if look.error is not None else ", ".join(parts_of(look))
    return f"{look.name}: {line}" if named else line


def rates(pen: Pen, look: Look, found: fsqueue.Activity) -> list[str]:
    """Return a line each for the workers, the rates, the time left and the average lease."""
    lines = []
    if found.workers is not None and look.status.remaining:
        more = " or more" if found.share < 1 else ""
        holding = f"{found.workers:,}{more} hold{'s' if found.workers == 1 and not more else ''} tasks"
        lines.append(f"workers     {holding if found.workers else 'nobody holds a task'}")
    windows: dict[str, list[str]] = {}
    """The rates that are known, by the time over which each is an average."""
    if something(found.inserted):
        windows.setdefault(duration(found.inserted.over_s), []).append(f"inserted {number(found.inserted.per_s)}")
    for name, rate in (("leased", found.leased), ("completed", found.completed)):
        if something(rate):
            windows.setdefault(duration(rate.over_s), []).append(f"{name} {pen.rate(rate)}")
    sampled = f", sampled ({found.share:.0%})" if found.share < 1 else ""
    told = [f"{', '.join(each)} over {over}" for over, each in windows.items()]
    lines += [f"per second  {'; '.join(told)}{sampled}"] if told else []
    left = look.left if look.status.remaining else None
    lines += [f"time left   {time_left(left).replace(' left', '', 1)}"] if left is not None else []
    if found.lease_s is not None:
        ahead = found.work_s is not None and found.work_s < LEASED_AHEAD * found.lease_s
        work = f" ({duration(found.work_s or 0.0)} of it at work)" if ahead else ""
        lines.append(f"a lease     {duration(found.lease_s)} on average{work}, of {found.measured:,} completed tasks")
    return lines


def failures(found: fsqueue.Activity, rows: int) -> list[str]:
    """Failures by reason: a heading, and as many as there is room for."""
    if not found.failures or rows < 2:
        return []
    partly = "" if found.whole_reasons else " (of the latest dead letters)"
    lines = [f"failures by reason{partly}"]
    for failure in found.failures[: rows - 1]:
        counts = [
            f"{count:,} {what}" for count, what in ((failure.dead, "dead"), (failure.retrying, "retrying")) if count
        ]
        lines.append(f"  {', '.join(counts):>12}  {failure.reason or 'no reason was given'}")
    return lines


def oldest(look: Look, rows: int) -> list[str]:
    """Return the slowest leased tasks: a heading, and as many as there is room for."""
    known = [
        (found.at - held.since, held, f"  {one.name}" if look.parts else "")
        for one in look.parts or [look]
        if (found := one.activity) is not None
        for held in found.oldest
    ]
    if not known or rows < 2:
        return []
    lines = ["slowest leased"]
    for age_s, held, queue in nlargest(rows - 1, known, key=lambda each: each[0]):
        more = f" and {held.tasks - 1:,} more" if held.tasks > 1 else ""
        lines.append(f"  {duration(max(0.0, age_s)):>12}{queue}  {describe(held.worker)}  {held.id}{more}")
    return lines


def details(pen: Pen, look: Look, rows: int) -> list[str]:
    """Rates, failures and the slowest, in so many rows."""
    found = look.activity
    if found is None:
        return []
    lines = rates(pen, look, found)[:rows]
    room = rows - len(lines)
    reasons, slowest = failures(found, room), oldest(look, min(room, OLDEST + 1))
    share = max(room // 2, room - len(slowest))
    reasons = reasons[:share] if share > 1 else []
    return lines + reasons + slowest[: room - len(reasons)]


# -- screens --------------------------------------------------------------------------------------


def screen(pen: Pen, looks: Sequence[Look]) -> list[str]:
    """Return a screen of at most `pen.rows` lines, each of at most `pen.columns` columns."""
    if not looks:
        return []
    if pen.rows < LEAST_ROWS or pen.columns < (LEAST_COLUMNS if len(looks) == 1 else TABLE_COLUMNS):
        lines = _numbers(pen, looks)
    elif len(looks) == 1:
        lines = _one(pen, looks[0])
    else:
        lines = _several(pen, looks)
    return [pen.fit(line) for line in lines[: pen.rows]]


def _numbers(pen: Pen, looks: Sequence[Look]) -> list[str]:
    """Parts of lines, as many to a line as fit."""
    if len(looks) > 1:
        return [progress_line(look, named=True) for look in [total(looks), *looks]]
    lines = [""]
    for part in parts_of(looks[0]) if looks[0].error is None else [str(looks[0].error)]:
        if lines[-1] and len(lines[-1]) + len(part) + 2 > pen.columns:
            lines.append("")
        lines[-1] += f"{', ' if lines[-1] else ''}{part}"
    return lines


def _one(pen: Pen, look: Look) -> list[str]:
    lines = [_heading(pen, look.path)]
    if look.error is not None:
        return [*lines, str(look.error)]
    width = max(10, pen.columns - 34)
    for name in STATES:
        count = getattr(look.status, name)
        share = count / look.status.inserted if look.status.inserted else 0.0
        lines.append(f"{name:<10}{pen.bar(share, width)}{count:>15,}{share:>8.1%}")
    return lines + details(pen, look, pen.rows - len(lines))


def _several(pen: Pen, looks: Sequence[Look]) -> list[str]:
    whole = total(looks)
    lines = [_heading(pen, f"{len(looks)} queues")]
    room = max(3, pen.rows - 3 - 6)  # for rates, failures and the slowest
    shown = sorted(looks, key=lambda look: look.status.drained and look.error is None)[:room]
    widest = min(NAME_COLUMNS_MAX, max(8, pen.columns - 66), max(len(pen.text(look.name)) for look in [*shown, whole]))
    lines.append(_row(pen, widest, "", "", "done", "waiting", "leased", "dead", "per s", "left"))
    lines += [_row_of(pen, widest, look) for look in sorted(shown, key=lambda look: look.name)]
    if len(shown) < len(looks):
        lines.append(f"and {len(looks) - len(shown):,} more")
    lines.append(_row_of(pen, widest, whole))
    return lines + details(pen, whole, pen.rows - len(lines))


def total(looks: Sequence[Look]) -> Look:
    """Return all queues as one."""
    known = [look.activity for look in looks if look.activity is not None]
    return Look(
        "all",
        "",
        sum_of(look.status for look in looks),
        together(known) if known else None,
        parts=looks,
    )


def _row_of(pen: Pen, widest: int, look: Look) -> str:
    status, found = look.status, look.activity
    if look.error is not None:
        return f"{pen.cell(look.name, widest)} {look.error}"
    share = status.completed / status.inserted if status.inserted else 0.0
    left = duration(look.left.likely_s) if look.left is not None and status.remaining else ""
    rate = number(found.finished.per_s) if found is not None and something(found.finished) else ""
    counts = (status.waiting + status.delayed, status.leased, status.dead)
    return _row(
        pen, widest, look.name, pen.bar(share, _bar_columns(pen, widest)), f"{share:.1%}", *map("{:,}".format, counts),
        rate, left,
    )  # fmt: skip


def _row(pen: Pen, widest: int, name: str, bar: str, *cells: str) -> str:
    widths = (6, 11, 7, 7, 7, 11)
    filled = " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return f"{pen.cell(name, widest)} {bar.ljust(_bar_columns(pen, widest))} {filled}"


def _bar_columns(pen: Pen, widest: int) -> int:
    return max(1, pen.columns - widest - 56)


def _heading(pen: Pen, name: str) -> str:
    now = time.strftime("%H:%M:%S")
    return f"{pen.cell(name, pen.columns - len(now) - 1)} {now}"
