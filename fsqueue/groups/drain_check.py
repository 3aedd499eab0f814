"""Whether all queues of a group were drained at one instant, also if new ones come meanwhile; and waiting for that."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from fsqueue.clock import Clock, duration_ms
from fsqueue.errors import ForkedInCall, NotAQueue, QueueNotFound, QueuePurged
from fsqueue.filesystem import idle_files, resources
from fsqueue.format.models import Status
from fsqueue.format.names import QueueDirectory
from fsqueue.groups.queue import GroupQueue, HasQueues, drained_behind_barriers
from fsqueue.groups.queue_selection import Selected
from fsqueue.interruptions import let_out
from fsqueue.poll import Backlog
from fsqueue.queue import Queue
from fsqueue.user_code import UserCodeError, user_function
from fsqueue.views.inspection import DrainCheck, proof, two_agree
from fsqueue.views.rates import total

BUSY_S = 2.0
"""Time after which a loop or a worker that always finds tasks looks at the barriers: a join may wait for a few of many.
"""
T = TypeVar("T")

logger = logging.getLogger("fsqueue")

NO_QUEUE = b"no queue"
"""Note of a look about a directory in which no queue is, or no longer, or something else."""

KEPT_MAX = 64
"""Maximum number of queues that stay open between two looks, ..."""
SHARE = 8
"""... and the divisor of the number of descriptors that the process may have: no more queues than the quotient stay
open."""
Source = Queue | Selected
"""Source of tasks to wait for, or to lease from: a queue, or queues of a group. (A GroupQueue stands as Selected.)"""


@runtime_checkable
class Elsewhere(Protocol):
    """Queues of a gateway, which says what its own look has found."""

    @property
    def url(self) -> str:
        """Return the address of the queues."""

    def drained_proof(self) -> bytes | None:
        """Return what a look found besides tasks without an outcome; None if there are such: see `GroupDrainCheck`."""

    def counted(self) -> tuple[Status, dict[str, str]]:
        """Return the sum of their counts; and by each one's address what is another text once it was purged."""


Awaited = Source | Elsewhere


def source_of(given: object) -> Source:
    """Return a queue, or queues of a group, as given to `wait`, to `lease` or to a worker."""
    if isinstance(given, GroupQueue):
        return Selected(given.group, names_=(given.name,))
    if isinstance(given, (Queue, Selected)):
        return given
    return Queue(given)  # type: ignore[arg-type]  # a path; anything else is refused there


def awaited_of(given: object) -> Awaited:
    """Return what was given to `wait`, or to a worker, which may be queues of a gateway."""
    return given if not isinstance(given, (Queue, Selected)) and isinstance(given, Elsewhere) else source_of(given)


def groups_of(sources: Iterable[object]) -> list[HasQueues]:
    """Return the groups of those of some sources that are queues of groups, each once."""
    return list(dict.fromkeys(source.group for source in sources if isinstance(source, Selected)))


def pass_barriers(groups: Iterable[HasQueues], *, at_once: bool = False) -> int:
    """Let barriers of these groups pass: see `Group.pass_barriers`. Return how many did."""
    return sum(group.pass_barriers(at_once=at_once) for group in groups)


def barriers_due_s(groups: Iterable[HasQueues]) -> float:
    """Return in how many seconds barriers must be passed again at the latest."""
    return min((group.barriers_due_s() for group in groups), default=math.inf)


class GroupDrainCheck:
    """Tells whether there was an instant at which nothing was waiting, delayed or leased in any of these queues.

    It asks `DrainCheck` about each queue; docs/groups.md, "Drained". Each look lists the groups anew. Two looks in a
    row that found the same queues with nothing in them prove the instant between the two. A queue that was there then
    is in both, or was deleted after that instant. A deletion changes the stamp of the group's directory, which each
    look notes last (docs/design.md, section 6.1). A gateway tells what its look has found, which is a part of each look
    here. Cheap to ask again: it begins where something was left. Not thread-safe. Memory is bounded: few queues stay
    open between two looks.
    """

    def __init__(self, sources: Sequence[Awaited]) -> None:
        self._sources = list(sources)
        self._clock = Clock()
        self._shows_at = -math.inf
        """Time from which on each deletion shows, beside the stamps that the last look has noted (monotonic)."""
        self._left: tuple[Queue, DrainCheck] | None = None
        """The queue in which something was left the last time."""
        self.asked_source: Awaited | None = None
        """What is asked at this moment, for other threads: it may not answer."""
        self._kept: dict[str, tuple[GroupQueue, DrainCheck]] = {}
        """Queues of groups that stay open between two looks, by path."""
        self._kept_max = idle_files.share(SHARE, KEPT_MAX)

    def __call__(self) -> bool:
        """Look. False: something is left, or others work so fast that no two looks agreed."""
        if self._left is not None:
            self.asked_source = source_of(self._left[0])
            try:
                if _look(*self._left) is None:
                    return False
            except QueueNotFound:
                pass  # it was deleted: then nothing is left in it
            self._left = None
        return self._with_open_queues(two_agree)

    @property
    def left_in(self) -> str | None:
        """Return the name of the queue of a group in which something was left the last time."""
        left = None if self._left is None else self._left[0]
        return left.name if isinstance(left, GroupQueue) else None

    def proof(self) -> bytes | None:
        """Return what two looks in a row have found: see `inspection.proof`. Each later deletion changes it."""
        found = self._with_open_queues(proof)
        if found is not None:
            self._clock.sleep(max(0.0, self._shows_at - self._clock.monotonic()))
        return found

    def _with_open_queues(self, look: Callable[[Callable[[], bytes | None]], T]) -> T:
        """Look at least twice, while queues stay open between the looks."""
        try:
            return look(self._collect)
        finally:
            for queue, _ in self._kept.values():
                queue.close()
            self._kept.clear()

    def _collect(self) -> bytes | None:
        """Look at all queues, one after the other. None if something is left in one."""
        digest = hashlib.blake2b(digest_size=16)
        if (early_s := self._shows_at - self._clock.monotonic()) > 0:
            self._clock.sleep(early_s)
        for source in self._sources:
            self.asked_source = source
            if isinstance(source, Queue):
                if (seen := self._ask(source, DrainCheck(source.store))) is None:
                    return None
                digest.update(seen)
                continue
            if not isinstance(source, Selected):
                if (seen := source.drained_proof()) is None:
                    return None
                digest.update(f"{source.url}\n".encode() + seen)
                continue
            directories = sorted(source.directories())
            are_queues = source.names is not None and len(directories) == len(source.names)
            for directory in directories:
                if (seen := self._ask_member(source, directory)) is None:
                    return None
                digest.update(f"{directory}\n".encode() + seen)
                are_queues = are_queues and not seen.startswith(NO_QUEUE)
            if not are_queues:  # then one may come, and be deleted before the next look
                digest.update(self._stamp_of(source))
        return digest.digest()

    def _stamp_of(self, source: Selected) -> bytes:
        """Return what is another one at the next look if a queue of the group was deleted in between."""
        if source.group.directory().fs.lists_by_time:
            return b""  # each listing of this look, and of others, changes the directory's time
        stamp = source.stamp()
        self._shows_at = max(self._shows_at, self._clock.monotonic() + stamp.shows_after_s())
        return repr(stamp).encode()

    def _ask_member(self, source: Selected, directory: QueueDirectory) -> bytes | None:
        path = f"{source.group.path}/{directory}"
        try:
            if (kept := self._kept.pop(path, None)) is not None:
                queue, check = kept
            else:
                queue = source.queue_in(directory)
                check = DrainCheck(queue.store)
            seen = self._ask(queue, check)
        except QueueNotFound:
            # It is just coming into being, or was deleted. If it was there in between, its file is another one.
            return NO_QUEUE + repr(source.queue_stamp(directory)).encode()
        except NotAQueue:
            return NO_QUEUE
        if seen is not None and len(self._kept) < self._kept_max:
            self._kept[path] = queue, check
        elif seen is not None:
            queue.close()
        return seen

    def _ask(self, queue: Queue, check: DrainCheck) -> bytes | None:
        self.asked_source = queue
        seen = _look(queue, check)
        if seen is None:
            self._left = queue, check
            return None
        return queue.store.queue_state.id.encode() + seen


def _look(queue: Queue, check: DrainCheck) -> bytes | None:
    try:
        with resources.Scope():
            return check.look()
    except OSError as error:
        let_out(error)
        raise queue.store.explain(error, "looking whether the queue is drained") from error


def wait(
    given: Sequence[object], timeout_s: float | None, poll: Callable[[list[Status]], object] | None
) -> list[Status]:
    """Wait as `fsqueue.wait` does, for queues of groups, too. The status of queues that are given as one is a sum.

    QueuePurged if a queue that was there when this began was purged, overwritten or deleted meanwhile.
    """
    sources = [awaited_of(one) for one in given]
    timeout = math.inf if timeout_s is None else duration_ms(timeout_s, "timeout_s") / 1000
    tell = None if poll is None else user_function(poll)
    try:
        return GroupBacklog(sources).wait(timeout, tell)
    except (UserCodeError, ForkedInCall) as carried:
        own = carried.error
    raise own


class GroupBacklog(Backlog):
    """The tasks of queues and groups, to wait until all are done."""

    def __init__(self, sources: Sequence[Awaited]) -> None:
        self.stores = [source.store for source in sources if isinstance(source, Queue)]
        strays: list[NotAQueue] = []
        self._sources, self._known = sources, _states(sources, strays)
        for error in strays:
            logger.warning("not waited for: %s", error)
        self.is_drained = GroupDrainCheck(sources)
        self._groups = groups_of(sources)

    def statuses(self) -> list[Status]:
        """Return the status of each queue that was given, and the sum of each group."""
        return [status_of(source) for source in self._sources]

    def look(self, counts: bool) -> tuple[bool, list[Status]]:
        """Return whether all is done, and the statuses if it is, or if `counts`. QueuePurged."""
        pass_barriers(self._groups)
        drained = drained_behind_barriers(self.is_drained, self._groups)
        if drained:
            _refuse_purged(self._known, _states(self._sources))
        return drained, self.statuses() if drained or counts else []


def _states(sources: Sequence[Awaited], strays: list[NotAQueue] | None = None) -> dict[str, object]:
    """Return the id and the generation of each queue that is there, by path: some 200 bytes a queue.

    `strays`: as for `Selected.states`.
    """
    found: dict[str, object] = {}
    for source in sources:
        if isinstance(source, Selected):
            found.update(source.states(strays))
        elif not isinstance(source, Queue):
            found.update(source.counted()[1])
        else:
            source.store.refresh(now=True)
            found[source.store.path] = source.store.queue_state.id, source.store.queue_state.generation
    return found


def _refuse_purged(before: dict[str, object], now: dict[str, object]) -> None:
    for path, state in before.items():
        if now.get(path) != state:
            what = "purged or overwritten" if path in now else "deleted"
            error = QueuePurged(
                f"The queue {path} was {what} while it was waited for: what was in it was not worked off. Wait again "
                "for what is there now."
            )
            if path not in now:
                error.exit_code = QueueNotFound.exit_code
            raise error


def status_of(source: Awaited, exact: bool = True) -> Status:
    """Return the status of a queue, or the sum of the queues of a group. A gateway's is always exact."""
    if isinstance(source, Queue):
        return source.status(exact)
    if not isinstance(source, Selected):
        return source.counted()[0]
    found = Status()
    for directory in source.directories():
        try:
            queue = source.queue_in(directory)
            found = total((found, queue.status(exact)))
            queue.close()
        except NotAQueue:
            continue  # a stray
    return found
