"""status, with or without --watch, and wait: one queue or several, on a terminal, in a file, as JSON."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING
from urllib.parse import unquote

import click

import fsqueue
from fsqueue.format import wording
from fsqueue.views.rates import StatusRates, better_rates

from .common import (
    DEAD_EXIT,
    TIMEOUT_EXIT,
    brief,
    example,
    json_option,
    match_option,
    moment,
    no_match,
    not_there,
    path_of,
    queues_argument,
)
from .options import DURATION, seconds_in
from .printing import (
    ERROR,
    Bar,
    Canvas,
    Coloured,
    can_show,
    complain,
    is_screen,
    plain,
    print_json,
    print_table,
    quoted,
    say,
    say_in_colours,
)
from .silent_servers import PendingAnswer, no_answer, wait_for_any, wait_while_answering
from .status_text import STATES, Look, copied, details, limited, paused, progress_line, total
from .targets import each_once, group_limits, group_named, is_address, is_rate_used_up, one_queue, path_given, place_of

if TYPE_CHECKING:
    from fsqueue import StuckLock
    from fsqueue.client.remote_group import RemoteQueues

    from .targets import AnyQueue

    AnySource = fsqueue.Queue | fsqueue.GroupQueues | fsqueue.RemoteQueue | RemoteQueues

LOOK_SHARE = 0.2
"""--watch spends at most this part of its time looking: a large queue on a slow mount is looked at less often."""


def queues_at(given: str) -> list[str]:
    """Return the queues at a path or an address that is no group's: that queue, or those in a directory of queues.

    Each as `path_of` has it, whatever was typed: programs find a queue again by that.
    """
    if is_address(given) or fsqueue.Group.holding(given) is not None:
        return [path_of(one_queue(given))]
    return fsqueue.queues(given)


def name_of(path: str) -> str:
    """Return a queue's name in its directory."""
    return plain(unquote(path.rpartition("/")[2])) or path


class Watched:
    """One queue that is looked at."""

    def __init__(
        self,
        path: str,
        fast: bool = False,
        window_s: float | None = None,
        opens: Callable[[], AnyQueue] | None = None,
    ) -> None:
        self.path = path
        self.queue = one_queue(path) if opens is None else opens()
        self.name = name_of(path) if type(self.queue) is fsqueue.Queue else self.queue.name  # type: ignore[union-attr]
        self.place = place_of(self.queue)
        self.fast, self.window_s = fast, window_s
        self.rates = StatusRates(time.monotonic, time.time)
        self.last: Look | None = None

    @property
    def root(self) -> str:
        """Return the directory of the queue's group, or the one that it is in; of an address the gateway's address."""
        if not isinstance(self.queue, fsqueue.Queue):
            return self.queue.gateway
        return str(self.queue.group.path if isinstance(self.queue, fsqueue.GroupQueue) else self.queue.path.parent)

    @property
    def paused(self) -> fsqueue.Pause | None:
        """Return why no task of the queue is leased, if it is paused."""
        return self.queue.paused

    @property
    def max_leased(self) -> int | None:
        """Return how many tasks of the queue may be leased at a time; None: any number."""
        return self.queue.settings.max_leased

    def with_tasks(self) -> Iterator[tuple[str, AnyQueue]]:
        """Yield what is typed for its workers, and the queue."""
        yield self.path, self.queue

    def look(self) -> Look:
        """Look at the queue once: its status, rates, pause and whether it may be a copy."""
        status = self.queue.status(exact=not self.fast)
        found = self.rates.add(status)
        if not self.fast:
            found = better_rates(self.queue.activity(self.window_s), found)
        is_paused, copied = self.queue.paused, self._copy_accepted_at()
        return Look(
            self.name,
            self.path,
            status,
            found,
            paused=is_paused,
            copy_accepted_at=copied,
            max_leased=self.max_leased,
            limits=self.limits,
            rate=self.queue.settings.rate,
            is_rate_used_up=is_rate_used_up(self.queue),
            group_limits=group_limits(self.queue),
        )

    @property
    def limits(self) -> str:
        """Return the limits by fields of payloads, as `fsqueue set` takes them."""
        return " ".join(f"limit.{name}={number}" for name, number in self.queue.settings.limit.items())

    def _copy_accepted_at(self) -> str | None:
        if not self.queue.is_copy():
            return None
        return str(self.queue.group.path) if isinstance(self.queue, fsqueue.GroupQueue) else self.path


class WatchedPlace:
    """What was given: a queue, a group, a directory of queues, or an address. Its queues may come and go."""

    def __init__(self, given: str, fast: bool, window_s: float | None, match: str | None) -> None:
        self.given, self.path, self.match = given, path_given(given), match
        self.fast, self.window_s = fast, window_s
        self.watched: dict[str, Watched] = {}
        self.is_group = False
        self.errors: dict[str, fsqueue.FsqueueError] = {}
        """What is wrong with it, or with those of its queues that cannot be looked at at all."""
        self.pending: PendingAnswer[list[Look]] | None = None
        """Its looks, if its file server has not answered in time."""

    def looks(self, alone: bool) -> list[Look]:
        """Return a look at each queue. If nothing else was given (`alone`), raise the error of a single queue.

        Any other error is shown. So is what the filesystem says of a queue that could be looked at before: it may work
        again.
        """
        self.errors.clear()
        opens: dict[str, Callable[[], AnyQueue]] = {}
        try:
            group = group_named(self.given, {"--match": self.match})
            self.is_group = group is not None
            if isinstance(group, fsqueue.Group):  # not by path, where '..' and 'a//b' are no names
                group.pass_barriers(at_once=not self.fast)
                opens = {path_of(one): partial(group.__getitem__, one.name) for one in group.queues(self.match, 0)}
                paths = list(opens)
            elif group is not None:
                paths = [path_of(one) for one in group.queues(self.match, tasks_min=0)]
            else:
                paths = queues_at(self.given)
        except fsqueue.FsqueueError as error:
            if not isinstance(error, fsqueue.StorageError) or not self.watched:
                return [self._failed(self.path, error, alone)]
            paths = list(self.watched)
        looks = [self._look(path, opens.get(path), alone and len(paths) == 1) for path in paths]
        return [look for look in looks if look is not None and not self._is_hidden(look)]

    def _is_hidden(self, look: Look) -> bool:
        """Return whether a look is one at a queue of a group without a task, which was not named itself."""
        return self.is_group and look.error is None and not look.status.inserted

    def _look(self, path: str, opens: Callable[[], AnyQueue] | None, alone: bool) -> Look | None:
        one = None
        try:
            one = self.watched.get(path) or Watched(path, self.fast, self.window_s, opens)
            self.watched[path] = one
            one.last = one.look()
            return one.last
        except fsqueue.FsqueueError as error:
            if isinstance(error, fsqueue.StorageError) and one is not None and one.last is not None:
                return one.last._replace(error=error)
            self.watched.pop(path, None)
            if isinstance(error, fsqueue.QueueNotFound) and not alone:
                return None  # it was deleted just now
            return self._failed(path, error, alone)

    def _failed(self, path: str, error: fsqueue.FsqueueError, alone: bool) -> Look:
        if alone:
            raise error
        self.errors[path] = error
        return Look(name_of(path), path, fsqueue.Status(), error=error)


class Watching:
    """The queues at some paths, each a queue, a group or a directory of queues, which may come and go."""

    def __init__(self, paths: tuple[str, ...], fast: bool, window_s: float | None, match: str | None = None) -> None:
        self.match = match
        self.places = [WatchedPlace(path, fast, window_s, match) for path in dict.fromkeys(paths)]
        self.errors: dict[str, fsqueue.FsqueueError] = {}
        """What is wrong with queues, or with what was given, that cannot be looked at at all."""
        self.aliases: dict[str, str] = {}
        """By each path that names a queue once more, the one that it is counted under."""

    @property
    def watched(self) -> dict[str, Watched]:
        """Return the queues whose file servers answer, by their paths."""
        return {path: one for place in self.places if place.pending is None for path, one in place.watched.items()}

    def looks(self) -> list[Look]:
        """Return a look at each. An error with what was given alone ends it; any other is shown.

        Of several that were given, each is asked in a thread of its own: its file server may not answer.
        """
        self.errors.clear()
        if len(self.places) == 1:
            found = [(place, place.looks(alone=True)) for place in self.places]
        else:
            begun = {place: PendingAnswer(place.given, partial(place.looks, alone=False)) for place in self.places
                     if place.pending is None}  # fmt: skip
            wait_while_answering(begun.values())
            found = [(place, self._answered(place, place.pending or begun[place])) for place in self.places]
        for place, _ in found:
            self.errors |= place.errors
        return self._each_once([look for _, looks in found for look in looks])

    def _each_once(self, looks: list[Look]) -> list[Look]:
        """Leave out looks at a queue that two paths name. The second one is said, the first time."""
        places = {path: one.place for path, one in self.watched.items()}
        return each_once(looks, lambda look: look.path, lambda look: places.get(look.path, look.path), self.aliases)

    def _answered(self, place: WatchedPlace, answer: PendingAnswer[list[Look]]) -> list[Look]:
        """Return the looks at a place, or say that its file server is silent."""
        if answer.done():
            place.pending = None
            return answer.result()
        place.pending = answer
        error = place.errors[place.path] = no_answer(place.path)
        return [Look(name_of(place.path), place.path, fsqueue.Status(), error=error)]

    def is_drained(self) -> bool:
        """Return whether `wait` calls them drained. Looks are no proof: tasks that move meanwhile may be in none."""
        with ExitStack() as closing:
            waited_for, _ = _opened([one.given for one in self.places if one.pending is None], self.match, None)
            for one in waited_for:
                if isinstance(one.queue, fsqueue.Queue):
                    closing.enter_context(one.queue)
            try:
                found = fsqueue.wait([one.queue for one in waited_for], 0, lambda statuses: None)
                return all(status.drained for status in found)
            except fsqueue.FsqueueError:
                return False  # they are not, or the next look says what is wrong

    def groups(self) -> Iterator[fsqueue.Group | fsqueue.RemoteGroup]:
        """Yield the groups among the places that were given, as far as their directories exist."""
        for place in self.places:
            if place.path not in self.errors and (group := group_named(place.given, {})) is not None:
                yield group

    def priorities(self, path: str) -> list[fsqueue.PriorityRange]:
        """Return how many tasks of a queue wait, by priority; on a terminal with a bar, if that takes long."""
        queue = self.watched[path].queue
        if not isinstance(queue, fsqueue.Queue):
            return queue.waiting_by_priority()
        with Bar("reading priorities") as progress:
            return queue.waiting_by_priority(progress=progress.show)

    def stuck(self, path: str) -> list[StuckLock]:
        """Return the locks of a queue that stay taken; of a queue that was just deleted none matters any more.

        An error with one of several queues is told with those of the looks.
        """
        try:
            return self.watched[path].queue.stuck()
        except fsqueue.QueueNotFound:
            return []
        except fsqueue.FsqueueError as error:
            if len(self.places) == len(self.watched) == 1:
                raise
            self.errors[path] = error
            return []

    def close(self) -> None:
        """Close the queues; not those whose file server is silent: it might keep that waiting, too."""
        for place in self.places:
            for one in place.watched.values() if place.pending is None else ():
                one.queue.close()


def told_apart(looks: list[Look]) -> list[Look]:
    """Return looks for people: queues of one name, as in groups on two file servers, are called by their paths."""
    count = Counter(look.name for look in looks)
    return [look if count[look.name] == 1 else look._replace(name=plain(look.path)) for look in looks]


def as_json(look: Look) -> dict[str, object]:
    """Return all that is known of a queue. Rates are tasks a second, times seconds; null: not known."""
    if look.error is not None:
        return {"queue": look.path, "at": time.time(), "error": str(look.error)}
    left, found = look.left, look.activity
    return look.status.as_dict() | {
        "queue": look.path,
        "at": time.time(),
        "rate": found.finished.per_s if found is not None and found.finished is not None else None,
        "left_s": left.likely_s if left is not None else None,
        "left_least_s": left.least_s if left is not None else None,
        "left_most_s": left.most_s if left is not None else None,
        "activity": found.as_dict() if found is not None else None,
        "paused": look.paused.as_dict() if look.paused is not None else None,
        "max_leased": look.max_leased,
        "lease_rate": look.rate,
        "copy": look.copy_accepted_at is not None,
        "idle": look.is_idle,
    }


@click.command(
    epilog=example(
        """fsqueue status /scratch/me/tiles
fsqueue status /scratch/me/tiles --watch
fsqueue status /scratch/me --watch                  # all queues in a directory
fsqueue status /scratch/me/crawl --match '.*#fetch' # queues of a group
fsqueue status /scratch/me/crawl --prometheus /var/lib/node_exporter/crawl.prom    # from cron"""
    )
)
@queues_argument
@click.option("--watch", is_flag=True, help="Look again and again until drained; on a terminal, a screen.")
@click.option("--interval", "interval_s", type=DURATION, default=2.0, help="Time between two looks [2].")
@click.option("--window", "window_s", type=DURATION, help="Time to average rates over [1m, or 1h if slow].")
@click.option(
    "--fast", is_flag=True, help="Read file names only: cheap, but leased tasks may count as waiting or delayed."
)
@click.option(
    "--usage",
    is_flag=True,
    help="Show files, directories and bytes, by what they are for; of a group as a whole. Asks for each file.",
)
@match_option
@click.option("--priorities", is_flag=True, help="Show waiting tasks by ranges of priorities. Reads all that have one.")
@click.option("--prometheus", "prometheus", type=click.Path(), metavar="FILE", help="Write figures for Prometheus.")
@json_option
def status(
    queues: tuple[str, ...],
    watch: bool,
    interval_s: float,
    window_s: float | None,
    fast: bool,
    usage: bool,
    match: str | None,
    priorities: bool,
    prometheus: str | None,
    as_json: bool,
) -> None:
    """Count the tasks of Q by their state; show rates, time left, failures by reason, and the slowest leased tasks.

    Q is a queue, a group, a directory of queues, or an address of a gateway. Locks whose holders were stopped are
    named, too. So are queues that may be copies, as after a restored backup (docs/fsck.md). The time left is an
    interval that is right 19 of 20 times, if work goes on as before. docs/status.md tells what the numbers come from,
    docs/growth.md what --usage shows, and docs/order.md what --priorities shows.

    --prometheus prints nothing. It writes FILE, whole or not at all, for the text files of a node exporter, whose names
    end in .prom (docs/metrics.md).
    """
    if prometheus is not None and (watch or usage or priorities or as_json):
        raise click.UsageError(
            "--prometheus writes a file of its own: use it without --watch, --usage, --priorities, --json."
        )
    if usage and watch:
        raise click.UsageError("--usage looks at every file: use it without --watch.")
    if watch and len(queues) > 1 and (wanted := seconds_in(queues[-1])) is not None and not os.path.exists(queues[-1]):
        raise click.UsageError(f"--watch takes no value. For the time between two looks: --interval {wanted:g}")
    if priorities and watch:
        raise click.UsageError("--priorities reads every waiting task: use it without --watch.")
    watching = Watching(queues, fast, window_s, match)
    try:
        if prometheus is not None:
            _write_figures(watching, prometheus)
        elif watch:
            _watch(watching, interval_s, as_json)
        else:
            _once(watching, fast, usage, priorities, as_json, match)
    finally:
        watching.close()
    end_with(watching.errors.values())


def held_by_dead(q: AnyQueue, status: fsqueue.Status) -> str | None:
    """Return what to type if only leased tasks are left to be taken, and workers that are proven dead hold some.

    That reads the logs of the batches at work, and asks Slurm once. What cannot be read is passed by: it is a hint.
    """
    if status.waiting or not status.leased or not isinstance(q, fsqueue.Queue):  # a gateway does not tell it
        return None
    from fsqueue.views import lease_holders

    try:
        return lease_holders.held_by_dead(q.store)
    except (OSError, fsqueue.FsqueueError):
        return None


def end_with(errors: Iterable[fsqueue.FsqueueError]) -> None:
    """Say all errors, and end with the exit code of the first, if there is one."""
    said = [*errors]
    for error in said[1:]:
        complain(str(error))
    if said:
        raise said[0]


def _write_figures(watching: Watching, file: str) -> None:
    from .metrics_file import write

    at, begin = time.time(), time.monotonic()
    looks = watching.looks()
    roots = {path: one.root for path, one in watching.watched.items()}
    write(file, looks, roots, at, time.monotonic() - begin)


def _once(watching: Watching, fast: bool, usage: bool, priorities: bool, json: bool, match: str | None) -> None:
    """Print one look. Of groups the usage as a whole is told, and as text not that of each queue."""
    looks = watching.looks()
    groups = list(watching.groups()) if usage and match is None else []
    stuck = {} if fast else {path: watching.stuck(path) for path in watching.watched if path not in watching.aliases}
    if json:
        for look in looks:
            more: dict[str, object] = {"stuck": [lock.as_dict() for lock in stuck.get(look.path, ())]}
            if usage and look.error is None:
                more["usage"] = _as_dicts(watching.watched[look.path].queue.usage())
            if priorities and look.error is None:
                more["priorities"] = [found.as_dict() for found in watching.priorities(look.path)]
            print_json(as_json(look) | more)
        for group in groups:
            print_json({"group": path_of(group), "usage": _as_dicts(group.usage())})
        return
    sound = told_apart([look for look in looks if look.error is None])
    if not looks:
        named = "" if match is None else f" with a name that matches {match}"
        say(f"no queue here{named} has had a task")
        _print_usage(groups)
        return
    if not sound and watching.errors.keys() >= {place.path for place in watching.places}:
        return  # nothing that was given is there
    if len(looks) == 1:
        for name in (*STATES, "inserted"):
            line = f"{name:<10}{getattr(looks[0].status, name):>16,}" + (
                looks[0].of_at_most if name == "leased" else ""
            )
            say_in_colours(Coloured(line, ERROR) if name == "dead" and looks[0].status.dead else line)
    else:
        print_table(_table(sound), (20, 12, 12, 12, 12, 12))
    plus_minus = "±" if can_show("±", getattr(sys.stdout, "encoding", None)) else "+-"
    whole = sound[0] if len(looks) == 1 else total(sound)
    for line in details(whole, 1 << 16, plus_minus) if not fast else copied(whole) + paused(whole) + limited(whole):
        say(line)
    _print_usage(groups)
    if usage:
        told = tuple(f"{path_of(group).rstrip('/')}/" for group in groups)
        for look in sound:
            if look.path.startswith(told):
                continue
            print_table(_usage_table(look.name, watching.watched[look.path].queue.usage()), (20, 12, 12, 16))
    if priorities:
        for look in sound:
            print_table(_priorities_table(look.name, watching.priorities(look.path)), (20, 20, 20, 12))
    for look in sound if not fast else ():
        if (text := held_by_dead(watching.watched[look.path].queue, look.status)) is not None:
            say(text)
    for locks in stuck.values():
        for lock in locks:
            say(f"stuck lock, last written to {moment(lock.written)}: {lock}")


def _as_dicts(usage: dict[str, fsqueue.Usage]) -> dict[str, object]:
    return {part: each.as_dict() for part, each in usage.items()}


def _print_usage(groups: Iterable[fsqueue.Group | fsqueue.RemoteGroup]) -> None:
    for group in groups:
        print_table(_usage_table(name_of(path_of(group).rstrip("/")), group.usage()), (20, 12, 12, 16))


def _usage_table(name: str, usage: dict[str, fsqueue.Usage]) -> Iterator[tuple[str, ...]]:
    yield (name, *(heading.rjust(width) for heading, width in (("FILES", 12), ("DIRECTORIES", 12), ("BYTES", 16))))
    for part, found in usage.items():
        if found.files or found.directories:
            yield f"  {part}", f"{found.files:>12,}", f"{found.directories:>12,}", f"{found.bytes:>16,}"


def _priorities_table(name: str, ranges: list[fsqueue.PriorityRange]) -> Iterator[tuple[str, ...]]:
    yield name, "FIRST PRIORITY", "LAST PRIORITY", "WAITING".rjust(12)
    for each in ranges:
        first, last = (_priority(each.first), _priority(each.last)) if each.first is not None else ("no priority", "")
        yield "", first, last, f"{each.waiting:>12,}"


def _priority(given: str | int | None) -> str:
    return "" if given is None else brief(wording.priority_text(given), 40)


def _table(looks: list[Look]) -> Iterator[tuple[str, ...]]:
    yield ("QUEUE", *(name.upper().rjust(12) for name in STATES))
    for look in [*looks, total(looks)]:
        yield (look.name, *(f"{getattr(look.status, name):>12,}" for name in STATES))


def _watch(watching: Watching, interval_s: float, json: bool) -> None:
    canvas = Canvas(sys.stdout) if is_screen(sys.stdout) and not json else None
    several = False
    try:
        while True:
            begin = time.monotonic()
            looks = watching.looks()
            took_s = time.monotonic() - begin
            several = several or len(looks) > 1
            if json:
                for look in looks:
                    print_json(as_json(look))
            elif canvas is not None:
                from .status_screen import screen

                canvas.draw(partial(screen, looks=told_apart(looks)))
            else:
                for look in told_apart(looks):
                    say(progress_line(look, named=several))
            sys.stdout.flush()
            if looks and all(look.status.drained for look in looks) and watching.is_drained():
                return
            time.sleep(max(interval_s, took_s * (1 / LOOK_SHARE - 1)))
    finally:
        if canvas is not None:
            canvas.close()


@click.command(
    epilog=example(
        """fsqueue wait /scratch/me/tiles --timeout 1h && ./next-step
sbatch --dependency=afterok:$(sbatch --parsable --wrap 'fsqueue wait /scratch/me/tiles') next.sh
fsqueue wait http://localhost:8750/fetch http://localhost:8750/parse /scratch/me/tiles    # until all are"""
    )
)
@queues_argument
@click.option("--timeout", "timeout_s", type=DURATION, help="How long to wait at most.")
@click.option(
    "--no-workers-timeout",
    "no_workers_s",
    type=DURATION,
    help="How long to wait at most while tasks could be leased, and nobody leases any.",
)
@match_option
@json_option
def wait(
    queues: tuple[str, ...], timeout_s: float | None, no_workers_s: float | None, match: str | None, as_json: bool
) -> None:
    """Wait until Q is drained: nothing is waiting, delayed or leased.

    Q is a queue, or a group: then the command waits for its queues, also for those that come meanwhile. Or it is a
    directory: then the command waits for all queues that are in it now, until all of them are drained at the same time.
    Or it is the address of a gateway's queue, or of its group. Of several, paths and addresses, the command waits until
    all are drained at the same time. If one of several queues cannot be opened, the command says so at once. It waits
    for the others, and then ends with the exit code of that error.

    If tasks wait and nobody has leased any for four minutes, the command says so, and waits on. It does not while the
    queue is paused. With --no-workers-timeout it ends then, once nobody has leased any for that time.

    On a terminal, the command shows the progress. Elsewhere it looks at the queue more and more rarely, down to four
    times a minute; a look takes some 15 system calls. It notices the end within a tenth of the time waited, 20 s at
    most.

    \b
    Exit codes:
      0    drained
      9    drained, but there are dead letters
      15   nobody worked for the time of --no-workers-timeout
      124  the timeout ran out
      1    the queue was purged, or a commit with 'overwrite' replaced its tasks; or a gateway was away for 10 seconds
      5    there is no such queue, or it was deleted; or the timeout ran out, and a file server does not answer
    """
    canvas = Canvas(sys.stderr) if is_screen(sys.stderr) else None
    with ExitStack() as closing:
        watched, errors = _opened(queues, match, {})
        most: dict[str, int | None] = {}
        for error in errors.values():
            complain(str(error))
        for one in watched:
            if isinstance(one, Watched):
                closing.enter_context(one.queue)
                status = one.queue.status()
                if (text := held_by_dead(one.queue, status)) is not None:
                    complain(text)
                if one.paused is not None and not status.drained:
                    complain(f"{one.path} is paused {one.paused}. To go on: fsqueue resume {quoted(one.path)}")
                most[one.path] = one.max_leased
                seen = Look(
                    one.name,
                    one.path,
                    status,
                    max_leased=most[one.path],
                    limits=one.limits,
                    rate=one.queue.settings.rate,
                    is_rate_used_up=is_rate_used_up(one.queue),
                    group_limits=group_limits(one.queue),
                )
                for text in limited(seen):
                    complain(f"{one.path}: {text.removeprefix('limited').strip()}")
            with suppress(fsqueue.FsqueueError):
                if (text := no_match(one.queue) or not_there(one.queue, one.path)) is not None:
                    complain(text)

        def show(found: list[fsqueue.Status]) -> None:
            from .status_screen import line

            looks = [
                Look(
                    one.name, one.path, status, one.rates.add(status), paused=one.paused, max_leased=most.get(one.path)
                )
                for one, status in zip(watched, found, strict=True)
            ]
            if canvas is not None:
                canvas.draw(partial(line, text=progress_line(total(looks) if len(looks) > 1 else looks[0])))

        idle_exit: int | None = None
        try:
            found = _wait(watched, timeout_s, show if canvas is not None else None, no_workers_s)
        except KeyboardInterrupt:
            closing.pop_all()  # a thread uses them still
            raise
        except click.exceptions.Exit as ended:
            closing.pop_all()
            watched, errors = _opened(queues, match, {})
            found, idle_exit = fsqueue.wait([one.queue for one in watched], 0), ended.exit_code
        finally:
            if canvas is not None:
                canvas.clear()
        if found is None:
            closing.pop_all()  # to close what lies on a silent file server may take for ever, too
            if len(queues) == 1:
                raise no_answer(path_given(queues[0]))
            watched, errors = _opened(queues, match, None)
            for error in errors.values():
                complain(str(error))
            found = fsqueue.wait([one.queue for one in watched], 0)
        last = found
    for one, status in zip(watched, last, strict=True):
        if as_json:
            print_json(status.as_dict() | {"queue": one.path})
        else:
            look = Look(one.name, one.path, status, paused=one.paused, max_leased=most.get(one.path))
            say(progress_line(look, named=len(watched) + len(errors) > 1))
    for path, error in errors.items():
        if as_json:
            print_json({"queue": path, "error": str(error)})
    for error in errors.values():
        raise click.exceptions.Exit(error.exit_code)  # what it says was said at the start
    if not all(status.drained for status in last):
        raise click.exceptions.Exit(TIMEOUT_EXIT if idle_exit is None else idle_exit)
    if any(status.dead for status in last):
        raise click.exceptions.Exit(DEAD_EXIT)


def _wait(
    watched: Sequence[Watched | _Awaited],
    timeout_s: float | None,
    poll: Callable[[list[fsqueue.Status]], object] | None,
    no_workers_s: float | None,
) -> list[fsqueue.Status] | None:
    """Wait as `fsqueue.wait` does, and say meanwhile if nobody works. None if the time is over, and a file server does
    not answer.

    A gateway's queue, or group, that is waited for alone does the waiting itself.
    """
    from .idle import IdleWatch

    sources = [one.queue for one in watched]
    alone = sources[0]
    asks: Callable[[], list[fsqueue.Status]] = partial(fsqueue.wait, sources, timeout_s, poll)
    if len(sources) == 1 and not isinstance(alone, fsqueue.Queue | fsqueue.GroupQueues):
        remote = alone
        asks = lambda: [remote.wait(timeout_s, None if poll is None else lambda status: poll([status]))]  # noqa: E731
    paths = ", ".join(one.path for one in watched)
    named = paths if len(watched) == 1 else f"one of {paths}"
    idle = IdleWatch(lambda: chain.from_iterable(one.with_tasks() for one in watched), no_workers_s)
    ends = math.inf if timeout_s is None else time.monotonic() + timeout_s
    answer = PendingAnswer(named, asks)
    look: PendingAnswer[None] | None = None
    while not answer.done() and (left_s := ends - time.monotonic()) > 0:
        if look is None and not idle.due_s():
            look = PendingAnswer(named, idle.look)
        if look is None:
            wait_for_any([answer], min(left_s, idle.due_s()))
            continue
        wait_for_any([answer, look], left_s)
        if look.done():
            look.result()
            look = None
    if timeout_s is not None:
        wait_while_answering([answer])
    return answer.result() if answer.done() else None


class _Awaited:
    """Queues of a group that are waited for as one."""

    def __init__(self, queues: fsqueue.GroupQueues | RemoteQueues) -> None:
        self.queue = queues
        self.path = self.name = path_of(queues)
        self.place = place_of(queues)
        self.rates = StatusRates(time.monotonic, time.time)
        self.paused = None

    def with_tasks(self) -> Iterator[tuple[str, AnyQueue]]:
        """Yield those that have unfinished tasks, each with what is typed for workers of all."""
        for queue in self.queue.queues():
            yield self.path, queue


_Opened = tuple[list[Watched | _Awaited], dict[str, fsqueue.FsqueueError]]


def _opened(given: Sequence[str], match: str | None, aliases: dict[str, str] | None) -> _Opened:
    """Open queues to wait for, each once; those that cannot be opened, with the reason. Raise it if none can.

    `aliases`: see `each_once`.
    """
    several = list(dict.fromkeys(given))
    if len(several) == 1:
        found = _opened_at(several[0], match)
    else:
        found = [], {}
        answers = [PendingAnswer(path_given(one), partial(_opened_at, one, match)) for one in several]
        wait_while_answering(answers)
        for answer in answers:
            try:
                watched, errors = answer.result() if answer.done() else ([], {answer.path: no_answer(answer.path)})
            except fsqueue.FsqueueError as error:
                watched, errors = [], {answer.path: error}
            found[0].extend(watched)
            found[1].update(errors)
    if not found[0]:
        end_with(found[1].values())
    groups = {one.place for one in found[0] if isinstance(one, _Awaited)}
    watched = each_once(found[0], lambda one: one.path, lambda one: one.place, aliases, groups)
    for one in found[0]:
        if isinstance(one, Watched) and one not in watched:
            one.queue.close()
    return watched, found[1]


def _opened_at(given: str, match: str | None) -> _Opened:
    """Open what was given."""
    group = group_named(given, {"--match": match})
    if group is not None:
        return [_Awaited(group if match is None else group.matching(match))], {}
    watched: list[Watched | _Awaited] = []
    errors: dict[str, fsqueue.FsqueueError] = {}
    for path in queues_at(given):
        try:
            watched.append(Watched(path))
        except fsqueue.FsqueueError as error:
            errors[path] = error
    return watched, errors
