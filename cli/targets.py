"""Turn what a user names into the queues that a command acts on: paths, groups with `--match`, addresses of gateways.

    targets = Targets(queues, match, as_json)
    for target in targets:
        with target as q:
            target.report("released", q.release_all())
    targets.end()

One queue that is named by itself behaves as ever: its error ends the command. Of several, or of a group's, each is
named in what the command prints. An error of one is said, the others go on, and the command ends with the exit code of
the first error.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

import fsqueue
from fsqueue.format import wording

from .common import (
    GATEWAY_PATIENCE_S,
    NAMED_MAX,
    UNKNOWN_EXIT,
    confirm,
    confirm_at_terminal,
    group_at,
    path_of,
    queue_at,
    queues_there,
    say_unknown,
    words,
)
from .printing import complain, hint, plain, print_done, print_json, say

if TYPE_CHECKING:
    from fsqueue.client.remote_group import RemoteQueues
    from fsqueue.views.outcomes import Loss

    AnyQueue = fsqueue.Queue | fsqueue.RemoteQueue

T = TypeVar("T")


class Named(NamedTuple):
    """A queue that is meant, before it is opened."""

    path: str
    """As the user would type it: a path, GROUP/NAME, or an address."""
    place: str
    """As `place_of` has it."""
    open: Callable[[], AnyQueue]
    is_member: bool = False
    """Whether the user has named its group, and not the queue."""


def is_address(given: str) -> bool:
    """Return whether this is the address of a gateway, and no path."""
    return given.startswith(("http://", "https://", "http+unix://"))


def path_given(given: str) -> str:
    """Return what was given as lines of JSON have it: an absolute path; an address as it is."""
    if not is_address(given):
        with suppress(FileNotFoundError):  # the working directory has been removed
            return os.path.abspath(os.path.expanduser(given.removeprefix("fq://")))
    return given


def group_named(given: str, options: dict[str, object]) -> fsqueue.Group | fsqueue.RemoteGroup | None:
    """Return the group that a path or an address means; None if it means a queue: see `group_at`."""
    if not is_address(given):
        return group_at(given, options)
    found = fsqueue.connect(given, patience_s=GATEWAY_PATIENCE_S)
    if isinstance(found, fsqueue.RemoteGroup):
        return found
    for option in (name for name, value in options.items() if value is not None):
        raise click.UsageError(f"{option} is for the queues of a group, and {given} is one queue. Nothing was done.")
    return None


def one_queue(given: str, worker: str | None = None) -> AnyQueue:
    """Return the queue that a path or an address means: see `queue_at`. UsageError for the address of a group."""
    if not is_address(given):
        return queue_at(given, worker)
    found = fsqueue.connect(given, worker=worker, patience_s=GATEWAY_PATIENCE_S)
    if isinstance(found, fsqueue.RemoteGroup):
        raise click.UsageError(
            f"{given} is a gateway that serves a group. Nothing was done. Name one of its queues: {found.url}QUEUE. "
            f"{queues_there(found)}"
        )
    return found


def place_of(source: fsqueue.Queue | fsqueue.GroupQueues | fsqueue.RemoteQueue | RemoteQueues) -> str:
    """Return where a queue or a group is, without links: what two names of one have in common. An address as it is."""
    if isinstance(source, fsqueue.Queue | fsqueue.GroupQueues):
        return os.path.realpath(source.path if isinstance(source, fsqueue.Queue) else source.group.path)
    return source.url.rstrip("/")


def each_once(
    given: Iterable[T],
    path: Callable[[T], str],
    place: Callable[[T], str],
    aliases: dict[str, str] | None,
    groups: Collection[str] = (),
) -> list[T]:
    """Leave out each queue or group that another path names, too, and each queue in one of the `groups`, by place.

    `aliases` gets, by each path that is left out, the one that it counts under. What is new there is said; with None
    nothing is.
    """
    kept: dict[str, tuple[str, T]] = {}
    new: dict[str, str] = {}
    for one in given:
        named, where = path(one), place(one)
        if os.path.dirname(where) in groups:
            continue
        first, _ = kept.setdefault(where, (named, one))
        if aliases is not None and first != named and named not in aliases:
            new[named] = aliases[named] = first
    for named, first in islice(new.items(), NAMED_MAX):
        complain(f"{named} is {first} by another name, and counts once")
    if len(new) > NAMED_MAX:
        complain(f"{len(new) - NAMED_MAX:,} more are named twice, and count once")
    return [one for _, one in kept.values()]


def with_tasks(arguments: Sequence[str], match: str | None, as_json: bool) -> tuple[Targets, list[str] | None]:
    """Return the queues, and the ids of TASKs, that stand among arguments `Q... [TASK]...`; None for no TASKs.

    An id has no slash, and a second queue must have one. So a mistyped id is never taken for a queue: the command would
    act on all tasks of the first one. TASKs are of one queue: with several, which of them is meant is not said.
    """
    from fsqueue.views import outcomes

    first, *others = arguments
    ids = [one for one in others if "/" not in one]
    for one in ids:
        if one != "-":
            try:
                outcomes.check_id(one)
            except fsqueue.InvalidArgument as error:
                raise fsqueue.InvalidArgument(f"{error} If it is a queue in this directory: ./{one}") from None
    targets = Targets([first, *(one for one in others if "/" in one)], match, as_json)
    if ids and targets.is_several:
        raise click.UsageError(
            f"TASKs are of one queue, and {', '.join(targets.given)} may be several. Nothing was done. Name the queue "
            "that has them."
        )
    return targets, list(dict.fromkeys(words(tuple(ids)))) if ids else None


def unknown_in(q: AnyQueue, ids: Iterable[str]) -> list[str]:
    """Return those ids that neither a queue nor its history knows."""
    wanted = list(dict.fromkeys(ids))
    if not wanted:
        return []
    if isinstance(q, fsqueue.Queue):
        from fsqueue.views import outcomes

        return outcomes.unknown(q.store, wanted)
    return [one for one in wanted if state_of(q, one) is None]


def state_of(q: AnyQueue, task_id: str) -> str | None:
    """Return the state of a task; None if neither the queue nor its history knows it."""
    try:
        return q.task(task_id).state
    except fsqueue.TaskNotFound:
        return None


def is_rate_used_up(q: AnyQueue) -> bool | None:
    """Return whether the queue's rate allows no lease at this moment. None: not known. A gateway does not tell."""
    if not isinstance(q, fsqueue.Queue) or q.settings.rate is None:
        return None
    from fsqueue.protocol import limiting

    with suppress(OSError, fsqueue.FsqueueError):
        return limiting.is_rate_used_up(q.store)
    return None


def group_limits(q: AnyQueue) -> str:
    """Return the limits of the group of a queue for which tasks may wait now; "" if none. A gateway does not tell."""
    with suppress(OSError, fsqueue.FsqueueError):
        if isinstance(q, fsqueue.Queue) and q.store.queue_state.has_group_limits:
            from fsqueue.protocol import all_limits

            limits = all_limits.holding_up(q.store)
            return "" if limits is None else f"{limits} over all queues of the group {plain(limits.group)}"
    return ""


def why_lost(q: AnyQueue, tokens: Iterable[str]) -> dict[str, Loss | None]:
    """Return for each token whose batch is not at work why its lease no longer holds; None for an unknown task."""
    if isinstance(q, fsqueue.Queue):
        from fsqueue.views import outcomes

        return outcomes.why_lost(q.store, tokens)
    return {token: _loss_at_gateway(q, token) for token in tokens}


def _loss_at_gateway(q: fsqueue.RemoteQueue, token: str) -> Loss | None:
    from fsqueue.views import outcomes

    task_id, _, lease = token.partition("@")
    state = state_of(q, task_id)
    if state is None:
        return None
    movements: list[fsqueue.Movement] = []
    if state == "completed":
        with suppress(fsqueue.TaskNotFound):  # it may have been removed meanwhile
            movements = q.history(task_id)
    return outcomes.loss_in_state(task_id, state, any(one.op == "complete" and one.lease == lease for one in movements))


class Targets:
    """The queues that a command acts on, in the order in which they were named, each once; see the module's text."""

    def __init__(
        self, given: Sequence[str], match: str | None = None, as_json: bool = False, *, is_several: bool = False
    ) -> None:
        self.given, self.match, self.as_json = list(dict.fromkeys(given)), match, as_json
        self.is_several = is_several or len(self.given) > 1
        """Whether what is printed names each queue: several were named, or a group."""
        self.count = 0
        """Number of queues that were opened."""
        self._code = 0
        self._sum: tuple[str, int] | None = None
        self._said: set[str] = set()
        self.groups: list[fsqueue.Group | fsqueue.RemoteGroup] = []
        named: list[Named] = []
        for one in self.given:
            try:
                named += self._resolved(one)
            except fsqueue.FsqueueError as error:
                self.fail(error, path_given(one))
        self.named = each_once(named, lambda one: one.path, lambda one: one.place, {})
        self._names = Counter(path.rpartition("/")[2] for path in {one.path for one in self.named})
        if self.given and not self.named and not self._code:
            hint(self._none())

    def _resolved(self, given: str) -> list[Named]:
        if is_address(given):
            return self._resolved_address(given)
        group = group_at(given, {"--match": self.match})
        if group is None:
            q = queue_at(given)  # at once: an error comes before any question
            return [Named(path_of(q), place_of(q), lambda: q)]
        self.is_several = True
        self.groups.append(group)
        place = place_of(group)
        return [
            Named(f"{group.path}/{one.name}", f"{place}/{one.directory}", partial(group.__getitem__, one.name), True)
            for one in group.queues(self.match, tasks_min=0)
        ]

    def _resolved_address(self, url: str) -> list[Named]:
        found = fsqueue.connect(url, patience_s=GATEWAY_PATIENCE_S)
        if isinstance(found, fsqueue.RemoteGroup):
            self.is_several = True
            self.groups.append(found)
            return [
                Named(one.url, place_of(one), partial(found.__getitem__, one.name), is_member=True)
                for one in found.queues(self.match, tasks_min=0)
            ]
        if self.match is not None:
            raise click.UsageError(f"--match is for the queues of a group, and {url} is one queue. Nothing was done.")
        return [Named(found.url, place_of(found), lambda: found)]

    def _none(self) -> str:
        """Return a hint: no queue is meant."""
        have = f"{', '.join(self.given)} {'has' if len(self.given) == 1 else 'have'}"
        if self.match is None:
            return f"hint: {have} no queue yet"
        there = f" {queues_there(self.groups[-1])}" if len(self.given) == 1 else ""
        return f"hint: {have} no queue whose whole name matches {self.match}.{there}"

    def confirm(self, question: str, yes: bool) -> None:
        """Go on only with `--yes`, or if the user at the terminal agrees; without a question if no queue is meant."""
        if self.named:
            confirm(question, yes)

    def confirm_at_terminal(self, question: str, yes: bool) -> None:
        """Ask the user at a terminal, if any queue is meant; elsewhere go on."""
        if self.named:
            confirm_at_terminal(question, yes)

    @property
    def is_sound(self) -> bool:
        """Return whether nothing went wrong with any so far."""
        return not self._code

    @property
    def described(self) -> str:
        """Return which queues are meant, for a question."""
        paths = [one.path for one in self.named]
        if len(paths) <= 1:
            return "".join(paths)
        more = f" and {len(paths) - NAMED_MAX:,} more" if len(paths) > NAMED_MAX else ""
        return f"{wording.counted(len(paths), 'queue')} ({', '.join(paths[:NAMED_MAX])}{more})"

    def is_repeated(self, path: str) -> bool:
        """Return whether another queue has the same name, as one in a group on another file server."""
        return self._names[path.rpartition("/")[2]] > 1

    def __iter__(self) -> Iterator[Target]:
        """Open one after the other. What has the place of a queue in a group and is none is named, and left out."""
        self.count = 0
        for one in self.named:
            try:
                q = one.open()
                if one.is_member and not q.exists():  # type: ignore[union-attr]  # a group's has it
                    continue
            except fsqueue.NotAQueue as error:
                if not one.is_member:
                    self.fail(error, one.path)
                    continue
                if one.path not in self._said:
                    self._said.add(one.path)
                    complain(str(error))
            except fsqueue.FsqueueError as error:
                self.fail(error, one.path)
            else:
                self.count += 1
                yield Target(self, q, path_of(q))

    def fail(self, error: fsqueue.FsqueueError, path: str) -> None:
        """Say the error of one of several queues; raise that of a single one."""
        if not self.is_several:
            raise error
        self._code = self._code or error.exit_code
        if path in self._said:
            return
        self._said.add(path)
        text = str(error)
        complain(text if path in text else f"{path}: {text}")
        if self.as_json:
            print_json({"queue": path, "error": text})

    def add(self, what: str, count: int) -> None:
        """Add to the sum that `end` prints."""
        self._sum = what, count + (self._sum[1] if self._sum is not None else 0)

    def leave_with(self, code: int) -> None:
        """End the command with this code at its `end`, unless something went wrong before."""
        self._code = self._code or code

    def end(self) -> None:
        """Print the sum, if several queues were counted, and end the command with the code of the first error."""
        if self._sum is not None and self.is_several and not self.as_json:
            what, count = self._sum
            say(f"{what} {count:,} in {wording.counted(self.count, 'queue')}")
        if self._code:
            raise click.exceptions.Exit(self._code)


class Target:
    """One queue, held open for a `with` block."""

    def __init__(self, targets: Targets, queue: AnyQueue, path: str) -> None:
        self._targets, self.queue, self.path = targets, queue, path

    @property
    def name(self) -> str:
        """Return what tables call it: its name in its group, or that of its directory; its path if others have that."""
        q = self.queue
        if self._targets.is_repeated(self.path):
            return plain(self.path)
        return plain(q.path.name if type(q) is fsqueue.Queue else q.name)  # type: ignore[union-attr]

    def __enter__(self) -> AnyQueue:
        return self.queue

    def __exit__(self, kind: object, error: BaseException | None, at: TracebackType | None) -> bool:
        if isinstance(self.queue, fsqueue.Queue):  # a gateway's queues share a connection, which goes with the process
            self.queue.close()
        if isinstance(error, fsqueue.FsqueueError):
            self._targets.fail(error, self.path)
            return True
        return False

    def as_dict(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return what was found, or done, with the queue's path as `queue`."""
        return {"queue": self.path} | value

    def print_done(self, value: dict[str, Any], *lines: str) -> None:
        """Print what was done to this queue: as JSON, or in lines, which name it among several."""
        prefix = f"{self.path}: " if self._targets.is_several else ""
        print_done(self._targets.as_json, self.as_dict(value), *(prefix + line for line in lines))

    def print_count(
        self, what: str, count: int, unknown: Sequence[str] = (), more: dict[str, Any] | None = None
    ) -> None:
        """Print how many tasks something was done to. Ids that the queue does not know are named. `more`: for JSON.

        Among several queues, those with none are not named, and `Targets.end` prints the sum.
        """
        value = {what: count} | (more or {}) | ({"unknown": list(unknown)} if unknown else {})
        if self._targets.is_several:
            self._targets.add(what, count)
            self.print_done(value, *[f"{what} {count:,}"] * bool(count))
        else:
            self.print_done(value, f"{count}")
        say_unknown(unknown)
        if unknown:
            self._targets.leave_with(UNKNOWN_EXIT)
