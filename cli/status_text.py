"""What a status says, as lines of text. Nothing is printed here."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from heapq import nlargest
from typing import NamedTuple, TypeGuard

import fsqueue
from fsqueue.cluster.identity import describe
from fsqueue.format.wording import counted, duration
from fsqueue.views import copy_warnings
from fsqueue.views.activity import total_activity
from fsqueue.views.rates import last_left
from fsqueue.views.rates import total as sum_of

from .common import size

STATES = ("waiting", "delayed", "leased", "completed", "dead")
OLDEST = 10
"""Maximum number of the slowest tasks that are shown."""
IDLE_NAMED = 3
"""Maximum number of queues without workers that are named; the rest is counted."""
LEASED_AHEAD = 0.9
"""If work takes less than this part of the leases, both times are shown."""


def is_all_delayed(status: fsqueue.Status) -> bool:
    """Return whether all that is left waits for its time: for a retry, or as it was inserted."""
    return 0 < status.delayed == status.remaining


class Look(NamedTuple):
    """What was seen of one queue; `activity` as far as it is known. `error`: why it could not be looked at."""

    name: str
    path: str
    status: fsqueue.Status
    activity: fsqueue.Activity | None = None
    error: fsqueue.FsqueueError | None = None
    paused: fsqueue.Pause | None = None
    copy_accepted_at: str | None = None
    """If it may be a copy: what 'fsqueue fsck --accept-copy' is typed with, the queue or its group."""
    max_leased: int | None = None
    """How many of its tasks may be leased at a time; None: any number, or it is not known."""
    rate: str | None = None
    """How many of its tasks may be leased in a time, as `fsqueue set` takes it; None: any number, or not known."""
    is_rate_used_up: bool | None = None
    """Whether the rate allows no lease at this moment; None: it is not known, as of a queue of a gateway."""
    limits: str = ""
    """The limits by fields of payloads, as `fsqueue set` takes them; "" if there is none, or it is not known."""

    @property
    def of_at_most(self) -> str:
        """Return what follows the number of leased tasks: how many there may be; "" where there is no limit."""
        return "" if self.max_leased is None else f" of at most {self.max_leased:,}"

    group_limits: str = ""
    """The limits of its group for which tasks may wait; "" if there are none, or it is not known."""

    parts: Sequence[Look] = ()
    """What this is the sum of."""

    @property
    def is_full(self) -> bool:
        """Return whether tasks wait because as many are leased as may be."""
        return self.max_leased is not None and self.status.leased >= self.max_leased and self.status.waiting > 0

    @property
    def is_idle(self) -> bool:
        """Return whether workers should be started for this one queue: not for what may be a copy."""
        is_idle = self.activity is not None and self.activity.is_idle(self.status)
        return is_idle and self.paused is None and self.copy_accepted_at is None

    @property
    def left(self) -> fsqueue.TimeLeft | None:
        """Return the time until the queue is drained. Of several queues, each with workers, the last one counts.

        None: it is not known, or nothing moves in a queue that is not drained.
        """
        if is_all_delayed(self.status):
            return None  # what is left waits for its time, and not for a worker
        left = [part for part in self.parts or [self] if part.status.remaining]
        if any(part.paused is not None or (part.activity is not None and not part.activity.is_worked) for part in left):
            return None
        last = last_left([part.left for part in left]) if self.parts else None
        if last is not None:
            return last
        return self.activity.left(self.status.remaining) if self.activity is not None else None


def is_above_zero(rate: fsqueue.Rate | None) -> TypeGuard[fsqueue.Rate]:
    """Return whether a rate is known and above 0. A rate of 0 is not shown."""
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
        f"waiting {status.waiting + status.delayed:,}" + (" (all delayed)" if is_all_delayed(status) else ""),
        f"leased {status.leased:,}{look.of_at_most}",
    ]
    parts += [f"dead {status.dead:,}"] if status.dead else []
    parts += [f"paused {look.paused}"] if look.paused is not None else []
    held_up = sum(part.paused is not None for part in look.parts)
    parts += [f"{held_up:,} of {len(look.parts):,} queues paused"] if held_up else []
    copies_of = sum(part.copy_accepted_at is not None for part in look.parts)
    parts += [f"{copies_of:,} of {len(look.parts):,} queues may be copies"] if copies_of else []
    parts += ["may be a copy"] if look.copy_accepted_at is not None else []
    parts += ["no worker"] if not look.parts and look.is_idle else []
    parts += [f"{number(found.finished.per_s)}/s"] if found is not None and is_above_zero(found.finished) else []
    parts += [time_left(look.left)] if look.left is not None and status.remaining else []
    return parts


def progress_line(look: Look, named: bool = False) -> str:
    """Return a queue on one line."""
    line = str(look.error) if look.error is not None else ", ".join(parts_of(look))
    return f"{look.name}: {line}" if named else line


def paused(look: Look) -> list[str]:
    """Return a line for each queue that is paused."""
    return [
        f"paused      {f'{one.name} ' if len(look.parts) > 1 else ''}{one.paused}"
        for one in look.parts or [look]
        if one.paused is not None
    ]


def limited(look: Look) -> list[str]:
    """Return a line for each limit of a queue for which tasks wait, or may wait."""
    said: list[tuple[Look, str]] = []
    for one in look.parts or [look]:
        waiting = f"{one.status.waiting:,} wait"
        if one.is_full:
            text = f"max_leased={one.max_leased} allows no more leased tasks at a time: {waiting} for a place"
            said.append((one, text))
        if one.limits and one.status.waiting and one.status.leased:
            said.append((one, f"{one.limits}: tasks of one value may wait while as many of them are leased"))
        if one.rate is not None and one.status.waiting and one.paused is None and one.is_rate_used_up is not False:
            allows = "allows no more leases now" if one.is_rate_used_up else "may allow no more leases now"
            said.append((one, f"rate={one.rate} {allows}: {waiting}"))
    lines = [f"limited     {f'{one.name} ' if len(look.parts) > 1 else ''}{text}" for one, text in said]
    of_groups = [one.group_limits for one in look.parts or [look] if one.status.waiting and one.paused is None]
    return lines + [f"limited     {text}: tasks may wait for a place" for text in dict.fromkeys(of_groups) if text]


def copied(look: Look) -> list[str]:
    """Return a line if the queue may be a copy; of several queues one line for all of them."""
    each = look.parts or [look]
    found = [(one, at) for one in each if (at := one.copy_accepted_at) is not None]
    if not found:
        return []
    if len(each) > 1:
        names, accepted_at = [one.name for one, _ in found], list(dict.fromkeys(at for _, at in found))
        return [f"warning     {copy_warnings.of_several(names, len(each), accepted_at)}"]
    return [f"warning     {copy_warnings.of_queue(each[0].path)}"]


def idle_text(waiting: int, idle_s: float | None, typed: str) -> str:
    """Return what is said if tasks wait and nobody works. `idle_s`: for how long, if known. `typed`: how the queue, or
    the group, is typed in a command.
    """
    for_how_long = "no worker is there" if idle_s is None else f"nothing was leased for {duration(idle_s)}"
    tasks = f"{counted(waiting, 'task')} {'waits' if waiting == 1 else 'wait'}"
    return f"{tasks}, and {for_how_long}. Start workers, such as: fsqueue run {shlex.quote(typed)} -- COMMAND"


def idle(look: Look) -> list[str]:
    """Return a line for each of the first queues in which tasks wait and nobody works."""
    found = [one for one in look.parts or [look] if one.is_idle]
    lines = []
    for one in found[:IDLE_NAMED]:
        assert one.activity is not None
        last = one.activity.last_leased
        idle_s = None if last is None else max(0.0, one.activity.at - last)
        lines.append(f"no workers  {idle_text(one.status.waiting, idle_s, one.path)}")
    more = found[IDLE_NAMED:]
    return lines + ([f"no workers  nor for {counted(len(more), 'other queue')} with tasks"] if more else [])


def rates(look: Look, found: fsqueue.Activity, plus_minus: str) -> list[str]:
    """Return a line for each of these: the workers, the rates, the time left, the average lease, the most used."""
    lines = []
    if found.workers is not None and look.status.remaining and not look.is_idle:
        more = " or more" if found.share < 1 else ""
        holding = f"{found.workers:,}{more} hold{'s' if found.workers == 1 and not more else ''} tasks"
        lines.append(f"workers     {holding if found.workers else 'no worker holds a task'}")
    windows: dict[str, list[str]] = {}
    """The rates that are known, by the time over which each is an average."""
    if is_above_zero(found.inserted):
        windows.setdefault(duration(found.inserted.over_s), []).append(f"inserted {number(found.inserted.per_s)}")
    for name, rate in (("leased", found.leased), ("completed", found.completed)):
        if is_above_zero(rate):
            windows.setdefault(duration(rate.over_s), []).append(
                f"{name} {number(rate.per_s)} {plus_minus} {number(rate.error)}"
            )
    sampled = f", sampled ({found.share:.0%})" if found.share < 1 else ""
    rates_told = [f"{', '.join(each)} over {over}" for over, each in windows.items()]
    lines += [f"per second  {'; '.join(rates_told)}{sampled}"] if rates_told else []
    left = look.left if look.status.remaining else None
    lines += [f"time left   {time_left(left).replace(' left', '', 1)}"] if left is not None else []
    if found.lease_s is not None:
        ahead = found.work_s is not None and found.work_s < LEASED_AHEAD * found.lease_s
        work = f" ({duration(found.work_s or 0.0)} of it at work)" if ahead else ""
        lines.append(f"a lease     {duration(found.lease_s)} on average{work}, of {found.measured:,} completed tasks")
    if (most := found.most_used) is not None:
        measured = counted(most.attempts, "measured attempt")
        lines.append(f"most memory {size(most.peak_memory_bytes)}, {most.memory_id}, of {measured}")
        lines.append(f"most CPU    {duration(most.cpu_s)}, {most.cpu_id}")
    return lines


def failures(found: fsqueue.Activity, rows: int) -> list[str]:
    """Return the failures by reason: a heading, and as many as there is room for."""
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


def details(look: Look, rows: int, plus_minus: str = "±") -> list[str]:
    """Return warnings, pauses, rates, failures and the slowest leased tasks, in at most `rows` lines."""
    found = look.activity
    lines = (copied(look) + paused(look) + limited(look) + idle(look))[:rows]
    if found is None:
        return lines
    lines += rates(look, found, plus_minus)[: rows - len(lines)]
    room = rows - len(lines)
    reasons, slowest = failures(found, room), oldest(look, min(room, OLDEST + 1))
    share = max(room // 2, room - len(slowest))
    reasons = reasons[:share] if share > 1 else []
    return lines + reasons + slowest[: room - len(reasons)]


def total(looks: Sequence[Look]) -> Look:
    """Return all queues as one."""
    known = [look.activity for look in looks if look.activity is not None]
    return Look(
        "all",
        "",
        sum_of(look.status for look in looks),
        total_activity(known) if known else None,
        parts=looks,
    )
