"""What a worker takes tasks from: queues, and groups, whose queues come and go."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeGuard, runtime_checkable

from fsqueue.clock import Backoff
from fsqueue.errors import FsqueueError, GroupNotFound, InvalidArgument, QueueClosed, QueueNotFound, said
from fsqueue.filesystem import resources
from fsqueue.format import layout
from fsqueue.format.layout import Settings
from fsqueue.groups.drain_check import Elsewhere, GroupDrainCheck, Source, source_of
from fsqueue.groups.queue import GroupQueue
from fsqueue.groups.queue_selection import Selected
from fsqueue.leased_task import LeasedTask, Verbs
from fsqueue.queue import Queue
from fsqueue.storage.store import Store
from fsqueue.views.inspection import DrainCheck

LOOK_S = 2.0
"""How long a look waits at the gateway for a task. A worker that is told to end waits for it."""


@runtime_checkable
class RemoteSource(Elsewhere, Protocol):
    """A queue of a gateway, as `fsqueue.connect` returns it, or queues of its group: what a worker asks of them beside
    a task's verbs.
    """

    @property
    def settings(self) -> Settings:
        """Return the queue's settings, for which the gateway is asked; of a group those that its queues begin with."""

    def lease(self, n: int = 1, *, lease_s: float | None = None, wait_s: float = 0) -> list[Any]:
        """Lease up to `n` tasks."""

    def is_drained(self) -> bool:
        """Return whether nothing is waiting, delayed or leased."""


class RemoteWatch:
    """Poll queues of a gateway, as `Watch` polls one on a filesystem. The gateway does the waiting."""

    is_deaf = False

    def __init__(self, source: RemoteSource, lease_s: float | None) -> None:
        self._source, self._lease_s = source, lease_s
        self._has_looked = self.has_waited = False
        """`has_waited`: whether the last look was a pause, too. A gateway that ends answers at once."""

    def look(self, n: int) -> list[LeasedTask]:
        """Return up to `n` tasks. The first look waits for none, so that a queue without tasks is soon known."""
        wait_s, self._has_looked = LOOK_S if self._has_looked else 0, True
        began = time.monotonic()
        got = self._source.lease(n, lease_s=self._lease_s, wait_s=wait_s)
        self.has_waited = time.monotonic() - began >= LOOK_S / 2
        return got

    def due_s(self) -> float:
        """Return infinity: it does not know what is delayed."""
        return math.inf


SILENT_S = 10.0
"""How long a filesystem may take to answer before it counts as one that does not, and is named."""


@dataclass(frozen=True, slots=True)
class Away:
    """A queue or a group that a worker is to take tasks from, and that is not there: perhaps it is not mounted. Or no
    task can be leased from it, since its filesystem fails.
    """

    path: str
    open: Callable[[], object]
    """Opens it. QueueNotFound or GroupNotFound as long as it is not there."""
    why: str = GroupNotFound.why
    """As far as is known now."""
    waits_until: float = -math.inf
    """Until when the run does not end without it, on the monotonic clock."""
    named_at: float = -math.inf
    """From when on it is worth a word, on the monotonic clock."""
    named: str | None = None
    """The reason that was told last."""
    answers: Callable[[], bool] | None = None
    """Tells whether it answers again, or is to be tried again, if that is what it is away for. It asks no filesystem.
    """
    is_upstream: bool = False
    """Whether no tasks are taken from it: it only has to be drained, too."""
    error: FsqueueError | None = None
    """What is raised if all else is drained and it is still away for that: its filesystem is full, for example."""

    @classmethod
    def silent(
        cls,
        path: str,
        opens: Callable[[], object],
        since: float,
        patience_s: float,
        answers: Callable[[], bool],
        is_upstream: bool = False,
    ) -> Away:
        """Return what has not answered since then, on the monotonic clock. `answers()` tells whether it has."""
        named_at = since + SILENT_S
        return cls(path, opens, "does not answer", named_at + patience_s, named_at, None, answers, is_upstream)

    @property
    def text(self) -> str:
        """Return the sentence that says what is away, and why."""
        return f"{self.path} {self.why}; it is tried again"


@dataclass(slots=True)
class Failing:
    """A filesystem on which no task can be leased, or no outcome recorded, while others work."""

    since: float
    """On the monotonic clock."""
    tries: Backoff
    """The pauses before it is tried again."""
    warned_of: dict[str, tuple[type, int | None] | None] = field(default_factory=dict)
    """By the path of each queue in which no task could be leased: what was warned of last."""
    is_unrecorded: bool = False
    """Whether outcomes could not be recorded: a task that is leased there may be executed, and its outcome be lost."""


class Sources(list[Queue]):
    """The queues that a worker has open: those that it was given, and of groups those that may have tasks.

    Only the feeder's thread changes it. Other threads may read it at any time, in one step: `list(sources)`.
    """

    def __init__(
        self,
        given: list[Source],
        upstream: list[Source],
        remote: Sequence[RemoteSource] = (),
        away: Iterable[Away] = (),
    ) -> None:
        super().__init__()
        self.given, self.upstream = given, upstream
        self.away = list(away)
        """What it was given, too, and is not there."""
        self.remote = remote[0] if remote else None
        """A queue of a gateway, or queues of its group, which then are the only source."""
        self._of_remote = [] if self.remote is None else [self.remote.settings]
        self._remote = remote
        """The same, and behind it what stands before it: queues of gateways, too."""
        self.asked_source: Source | Away | None = None
        """What is looked for at this moment by `put_away` or `come_back`, for other threads: it may not answer."""
        self._roots: dict[str, Hashable] = {}
        """By the path of each source that was ever there."""
        self.has_several_roots = False
        """Whether they, and what stands before them, lie on several filesystems: one may not answer while another does.
        """
        self.failing: dict[Hashable, Failing] = {}
        """By what stands for the filesystem. One goes once a task is leased there, or, by the loop, once an outcome is
        recorded."""
        self._silent: list[Queue] = []
        """Those that are open, and whose filesystem does not answer, or fails: tasks of them may be at work."""
        self._settings: dict[str, Settings] = {}
        """Those that the queues of a group begin with, by the group's path: the loop reads them, and may not wait."""
        if any(isinstance(source, Selected) for source in given):
            self.put_away()
        self._take(self.given, self.upstream)

    def _take(self, given: list[Source], upstream: list[Source]) -> None:
        """Have these open, and of groups no queue yet."""
        for source in (*given, *upstream):
            path = _path_of(source)
            if path not in self._roots:
                self._roots[path] = _root_of(source)
        for source in given:
            path = _path_of(source)
            if isinstance(source, Selected) and path not in self._settings:
                self._settings[path] = source.group.settings
        self.has_several_roots = self.remote is None and (bool(self.away) or len(set(self._roots.values())) > 1)
        self.given, self.upstream = given, upstream
        self.groups = [source for source in given if isinstance(source, Selected)]
        self[:] = [source for source in given if isinstance(source, Queue)]

    def put_away(self) -> list[Away] | None:
        """Put away what was given and is not there any more, and return it. None, and nothing is put away, if nothing
        that tasks are taken from would be left.
        """
        found: list[Away] = []
        left: tuple[list[Source], list[Source]] = [], []
        for is_upstream, sources in enumerate((self.given, self.upstream)):
            for source in sources:
                self.asked_source = source
                why = _why_gone(source)
                if why is None:
                    left[is_upstream].append(source)
                else:
                    reopen = partial(_reopened, source)
                    found.append(Away(_path_of(source), reopen, why, is_upstream=bool(is_upstream)))
        if not left[0]:
            return None
        self.away += found
        self._take(*left)
        return found

    def without(self, root: Hashable, late: Away) -> Sources | None:
        """Return these sources without those on one filesystem, which are away as `late` is. None if none is left.

        It asks no filesystem.
        """
        away = [one if self.root_at(one.path) != root else self._away_as(one, late) for one in self.away]
        left: tuple[list[Source], list[Source]] = [], []
        for is_upstream, sources in enumerate((self.given, self.upstream)):
            for source in sources:
                path = _path_of(source)
                if self._roots[path] != root:
                    left[is_upstream].append(source)
                else:
                    away.append(replace(late, path=path, open=_opens(source), is_upstream=bool(is_upstream)))
        if not left[0] or away == self.away:
            return None
        others = Sources([], [], away=away)
        others._roots, others._settings, others.failing = self._roots, self._settings, self.failing
        others._silent = [*self._silent, *(queue for queue in list(self) if self.root_of(queue) == root)]
        others._take(*left)
        return others

    def leave_out(self, root: Hashable, failing: Away) -> bool:
        """Put away what lies on a filesystem, as `failing` is away. Return False, and put nothing away, if nothing that
        tasks are taken from would be left. It asks no filesystem.
        """
        gone = [source for source in self.given if self._roots[_path_of(source)] == root]
        if len(gone) == len(self.given):
            return False
        self.away += [replace(failing, path=_path_of(source), open=_opens(source)) for source in gone]
        self._silent += [queue for queue in self if self.root_of(queue) == root]
        self._take([source for source in self.given if source not in gone], self.upstream)
        return True

    def _away_as(self, one: Away, late: Away) -> Away:
        """Return what was away before its filesystem stopped answering, and is now away for that."""
        return replace(
            late, path=one.path, open=one.open, is_upstream=one.is_upstream, named=one.named,
            waits_until=one.waits_until, error=self._error_of(one),
        )  # fmt: skip

    def _error_of(self, one: Away, error: Exception | None = None) -> FsqueueError | None:
        """Return the error that the run ends with, now that it is away for another `error`, or does not answer.

        If outcomes could not be recorded there, that stays true.
        """
        failing = self.failing.get(self.root_at(one.path))
        if one.error is None or (failing is not None and failing.is_unrecorded):
            return one.error
        return error if isinstance(error, FsqueueError) and not isinstance(error, _NOT_THERE) else None

    def come_back(self) -> list[Away]:
        """Open the queues and groups that were away and are there now. Return them."""
        found: list[Away] = []
        for place, one in reversed(list(enumerate(self.away))):
            if one.answers is not None and not one.answers():
                continue
            self.asked_source = one
            try:
                opened = one.open()
                if is_remote(opened):
                    self._remote = [*self._remote, opened]
                elif one.is_upstream:
                    self._take(self.given, [*self.upstream, source_of(opened)])
                else:
                    self._take([*self.given, source_of(opened)], self.upstream)
            except (FsqueueError, OSError) as error:
                self.away[place] = replace(one, why=_why_not(error), answers=None, error=self._error_of(one, error))
            else:
                del self.away[place]
                found.append(one)
        if not any(one.answers for one in self.away):
            self._silent = []
        return found[::-1]

    def root_of(self, queue: Verbs) -> Hashable:
        """Return what stands for the filesystem of a queue that a task was leased from. It asks none."""
        path = str(queue.group.path) if isinstance(queue, GroupQueue) else queue.store.path
        return self._roots.get(path, path)

    def root_at(self, path: str) -> Hashable:
        """Return what stands for the filesystem of a source, or of a queue in a group, by its path. It asks none."""
        return self._roots.get(path, self._roots.get(layout.parent_of(path), path))

    def settings(self) -> list[Settings]:
        """Return the settings of each queue that is open, and those that the queues of each group begin with.

        Also those of what does not answer.
        """
        paths = [_path_of(selected) for selected in self.groups] + [one.path for one in self.away]
        of_groups = [self._settings[path] for path in paths if path in self._settings]
        return [store.settings for store in self.stores() + _stores(self._silent)] + of_groups + self._of_remote

    def stores(self) -> list[Store]:
        """Return the stores of the queues that are open. A queue of a group may just have been deleted: it has none."""
        return _stores(list(self))

    def drain_check(self) -> _Checked | GroupDrainCheck | Callable[[], bool]:
        """Return a check whether all of them, and what stands before them, were drained at one instant."""
        if self.remote is not None:
            return self.remote.is_drained if len(self._remote) == 1 else GroupDrainCheck(self._remote)
        each = [*self.given, *self.upstream]
        queues = [source for source in each if isinstance(source, Queue)]
        return GroupDrainCheck(each) if len(queues) < len(each) else _Checked(DrainCheck(*(q.store for q in queues)))

    def paths(self) -> list[str]:
        """Return the paths of the queues that it was given, and of the groups."""
        return list(map(_path_of, self.given))


_NOT_THERE = (QueueNotFound, GroupNotFound)


def _stores(queues: list[Queue]) -> list[Store]:
    return [store for queue in queues if (store := vars(queue).get("store")) is not None]


def _opens(source: Source) -> Callable[[], Source]:
    return lambda: source


def _path_of(source: Source) -> str:
    return source.store.path if isinstance(source, Queue) else str(source.group.path)


def _root_of(source: Source) -> Hashable:
    """Return what stands for the filesystem of a source: its device, or the path of a group that is not there."""
    try:
        return source.store.fs.device if isinstance(source, Queue) else source.group.directory().fs.device
    except (FsqueueError, OSError):
        return _path_of(source)


def _why_gone(source: Source) -> str | None:
    """Return why a queue or a group is not in its place any more; None if it is, or if a queue was deleted, as far as
    is known.
    """
    try:
        if isinstance(source, Selected):
            source.group.directory()
        else:
            with resources.Scope():
                source.store.refresh(now=True)
    except GroupNotFound as error:
        return error.why
    except QueueNotFound as error:
        return None if isinstance(error, QueueClosed) else GroupNotFound.why
    except (FsqueueError, OSError):
        pass  # its filesystem fails: that is waited for
    return None


def _why_not(error: FsqueueError | OSError) -> str:
    """Return why something is still away that could not be opened now."""
    if isinstance(error, _NOT_THERE):
        return error.why if isinstance(error, GroupNotFound) else GroupNotFound.why  # another group may be in its place
    return f"cannot be opened ({said(error)})"


def _reopened(source: Source) -> Source:
    """Open a queue or a group again. QueueNotFound, GroupNotFound."""
    if isinstance(source, Selected):
        source.group.directory()  # the same group: another one in its place is refused
        return source
    return Queue(source.store.path, worker=source.store.worker_name)


class _Checked:
    """Ask a `DrainCheck`, its errors of the system translated."""

    def __init__(self, check: DrainCheck) -> None:
        self._check = check

    @property
    def asked_source(self) -> Store:
        """Return the queue that is asked at this moment, for other threads."""
        return self._check.store

    def __call__(self) -> bool:
        try:
            with resources.Scope():
                return self._check()
        except OSError as error:
            raise self._check.store.explain(error, "looking whether the queue is drained") from error


def sources_of(queues: Any, upstream: Any = (), away: Iterable[Away] = ()) -> Sources:
    """Return what a worker was given, and what it waits for; InvalidArgument for anything else."""
    given, before = ([one] if is_remote(one) else list(one) if isinstance(one, (list, tuple)) else []
                     for one in (queues, upstream))  # fmt: skip
    if any(map(is_remote, (*given, *before))):
        away = [*away]
        if len(given) > 1 or not all(one.is_upstream for one in away) or not all(map(is_remote, (*given, *before))):
            raise InvalidArgument(
                "A worker takes one queue of a gateway, or its group, without others: start a worker for each. Its "
                "upstream queues are gateways', too."
            )
        return Sources([], [], (*given, *before), away)
    found = _listed(queues)
    if not found:
        raise InvalidArgument(f"A worker takes a Queue, a Group, or several in a list, not {queues!r}.")
    stages = _listed(upstream)
    if stages is None:
        raise InvalidArgument(f"upstream must be a Queue, a Group, or several in a list, not {upstream!r}.")
    return Sources([source_of(one) for one in found], [source_of(one) for one in stages], away=away)


def is_remote(given: object) -> TypeGuard[RemoteSource]:
    """Return whether this is of a gateway. A group is not asked for the attributes of such: it may be away."""
    return not isinstance(given, (Queue, Selected)) and isinstance(given, RemoteSource)


def _listed(given: Any) -> list[Queue | Selected] | None:
    """Return queues and groups as a list; None if that is something else."""
    each = [given] if isinstance(given, (Queue, Selected)) else given
    if isinstance(each, (str, bytes)) or not isinstance(each, Iterable):
        return None
    found: list[Any] = list(each)
    return found if all(isinstance(one, (Queue, Selected)) for one in found) else None
