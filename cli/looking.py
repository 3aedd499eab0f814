"""status, wait, ls, show: looking at a queue changes nothing."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import click

import fsqueue

from .common import (
    brief,
    duration,
    example,
    json_option,
    moment,
    plain,
    print_json,
    print_table,
    queue_argument,
    seconds,
)

STATES = ("waiting", "delayed", "leased", "completed", "dead", "cancelled")

RATE_WINDOW_S = 60.0
"""What the rate is an average over."""

LOOK_SHARE = 0.2
"""--watch spends at most this part of its time looking: a large queue on a slow mount is looked at less often."""

WAIT_TIMEOUT_EXIT = 124
"""As of timeout(1): not drained yet is neither success nor an error."""


class Pace:
    """Rate and time left, from one status after another."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, status: fsqueue.Status) -> tuple[float | None, float | None]:
        """Tasks finished a second, and seconds left at that rate; None while unknown."""
        now, finished = time.monotonic(), status.completed + status.dead
        if self._seen and finished < self._seen[-1][1]:
            self._seen.clear()  # purged
        self._seen.append((now, finished))
        while len(self._seen) > 2 and now - self._seen[1][0] > RATE_WINDOW_S:
            self._seen.popleft()
        since, before = self._seen[0]
        if now <= since:
            return None, None
        rate = (finished - before) / (now - since)
        return rate, status.remaining / rate if rate > 0 else None


def progress_line(status: fsqueue.Status, rate: float | None, left_s: float | None) -> str:
    share = f" ({status.completed / status.inserted:.1%})" if status.inserted else ""
    parts = [
        f"completed {status.completed:,} of {status.inserted:,}{share}",
        f"waiting {status.waiting + status.delayed:,}",
    ]
    parts += [f"leased {status.leased:,}"]
    parts += [f"dead {status.dead:,}"] if status.dead else []
    parts += [f"{rate:,.1f}/s"] if rate is not None else []
    parts += [f"{duration(left_s)} left"] if left_s is not None and status.remaining else []
    return ", ".join(parts)


class Screen:
    """One line that is rewritten on a terminal; elsewhere a line each time."""

    def __init__(self, err: bool = False) -> None:
        self._err = err
        self._is_terminal = (sys.stderr if err else sys.stdout).isatty()
        self._open = False

    def show(self, line: str) -> None:
        if self._is_terminal:
            click.echo(f"\r\x1b[K{line}", nl=False, err=self._err)
            self._open = True
        else:
            click.echo(line, err=self._err)

    def close(self) -> None:
        if self._open:
            click.echo(err=self._err)
            self._open = False


@click.command(
    epilog=example(
        """fsqueue status /scratch/me/tiles
fsqueue status /scratch/me/tiles --watch"""
    )
)
@queue_argument
@click.option("--watch", is_flag=True, help="Look again and again, with rate and time left, until drained.")
@click.option("--interval", "interval_s", type=seconds, default=2.0, help="Seconds between two looks [2].")
@click.option("--fast", is_flag=True, help="Read file names only: cheap, but leased tasks may count as waiting.")
@json_option
def status(queue: str, watch: bool, interval_s: float, fast: bool, as_json: bool) -> None:
    """Count the tasks of Q by their state, and name locks that stay taken because their holders are stopped."""
    with fsqueue.Queue(queue) as q:
        if watch:
            _watch(lambda: q.status(exact=not fast), interval_s, as_json)
            return
        now = q.status(exact=not fast)
        stuck = [] if fast else q.stuck()
    if as_json:
        print_json(now.as_dict() | {"stuck": [lock.as_dict() for lock in stuck]})
        return
    for name in ("waiting", "delayed", "leased", "completed", "dead", "inserted"):
        click.echo(f"{name:<10}{getattr(now, name):>16,}")
    for lock in stuck:
        click.echo(f"stuck lock, last written to {moment(lock.written)}: {plain(str(lock))}")


def _watch(look: Callable[[], fsqueue.Status], interval_s: float, as_json: bool) -> None:
    pace, screen = Pace(), Screen()
    try:
        while True:
            begin = time.monotonic()
            now = look()
            took_s = time.monotonic() - begin
            rate, left_s = pace.add(now)
            if as_json:
                print_json(now.as_dict() | {"at": time.time(), "rate": rate, "left_s": left_s})
            else:
                screen.show(progress_line(now, rate, left_s))
            if now.drained:
                return
            time.sleep(max(interval_s, took_s * (1 / LOOK_SHARE - 1)))
    finally:
        screen.close()


@click.command(epilog=example("fsqueue wait /scratch/me/tiles --timeout 3600 && ./next-step"))
@queue_argument
@click.option("--timeout", "timeout_s", type=seconds, help="Seconds to wait at most.")
@json_option
def wait(queue: str, timeout_s: float | None, as_json: bool) -> None:
    """Wait until Q is drained: nothing is waiting, delayed or leased.

    Progress is shown on a terminal.

    Exit codes: 0 drained; 9 drained, but there are dead letters; 124 the timeout ran out.
    """
    pace, screen = Pace(), Screen(err=True)

    def show(now: fsqueue.Status) -> None:
        if sys.stderr.isatty():
            screen.show(progress_line(now, *pace.add(now)))

    with fsqueue.Queue(queue) as q:
        try:
            last = q.wait(timeout_s=timeout_s, poll=show)
        finally:
            screen.close()
    if as_json:
        print_json(last.as_dict())
    else:
        click.echo(progress_line(last, None, None))
    if not last.drained:
        raise click.exceptions.Exit(WAIT_TIMEOUT_EXIT)
    if last.dead:
        raise click.exceptions.Exit(9)


@click.command(
    epilog=example(
        """fsqueue ls Q --state leased
fsqueue ls Q --json | jq -r 'select(.attempt > 1) | .id'"""
    )
)
@queue_argument
@click.option("--state", type=click.Choice(STATES), help="Only tasks in this state [all that are unfinished].")
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="Stop after N tasks.")
@json_option
def ls(queue: str, state: str | None, limit: int | None, as_json: bool) -> None:
    """List the tasks of Q, in no particular order.

    Finished ones are known while the history keeps them, without payload. The list is made as
    the queue is read: a task that moves meanwhile may appear in either state.
    """
    with fsqueue.Queue(queue) as q:
        tasks = islice(q.tasks(state), limit)
        if as_json:
            for task in tasks:
                print_json(task.as_dict())
            return
        heading = [("TASK", "STATE", "ATTEMPT", "SINCE", "PAYLOAD")]
        rows = ((task.id, task.state, str(task.attempt), moment(task.since), brief(task.payload)) for task in tasks)
        print_table(_after(heading, rows), (36, 9, 7, 19))


def _after(heading: Iterable[tuple[str, ...]], rows: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """The heading, once there is a row to come after it."""
    for row in rows:
        yield from heading
        heading = ()
        yield row


@click.command(epilog=example("fsqueue show Q 0193f0c2a4b97c31a2d5e8f001234567.12"))
@queue_argument
@click.argument("task", metavar="TASK")
@json_option
def show(queue: str, task: str, as_json: bool) -> None:
    """Show everything about one task of Q, by its id or a token: state, payload, worker, and its history."""
    task_id = task.partition("@")[0]
    with fsqueue.Queue(queue) as q:
        info = q.task(task_id)
        movements = q.history(task_id)
    if as_json:
        print_json(info.as_dict() | {"history": [move.as_dict() for move in movements]})
        return
    times = ("since", "available_at", "lease_until")
    for name, value in info.as_dict().items():
        if value is not None:
            click.echo(f"{name.replace('_', ' '):<13} {moment(value) if name in times else _text(value)}")
    click.echo("history")
    for move in movements:
        rest = {name: value for name, value in move.as_dict().items() if name not in ("op", "at")}
        shown = [
            f"{name} {moment(value) if name in ('until', 'available_at') else _text(value)}"
            for name, value in rest.items()
        ]
        click.echo(f"  {moment(move.at)}  {move.op:<9} {', '.join(shown)}".rstrip())


def _text(value: Any) -> str:
    """A value in full; of several lines, as of an error, the later ones indented."""
    if isinstance(value, str) and "\n" in value:
        return "\n    ".join(plain(line) for line in value.splitlines())
    if isinstance(value, dict):
        return " ".join(f"{brief(name)}={brief(item)}" for name, item in value.items())
    return brief(value, 10_000)
