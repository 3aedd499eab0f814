"""From a stream of tasks to encoded batches and groups of them, in bounded memory (decisions 0008 and 0045)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

from fsqueue.clock import MS_MAX, duration_ms
from fsqueue.errors import InvalidArgument, InvalidTask
from fsqueue.format import keys, task_file
from fsqueue.format.layout import BATCH_BYTES_MAX
from fsqueue.format.models import Task
from fsqueue.format.plain_values import plain
from fsqueue.format.priority import LAST, Priority, Rank, fault, rank_of, text_of
from fsqueue.interruptions import let_out
from fsqueue.storage.store import Store

GROUP_BYTES_MAX = 8 << 20
"""A group of batches is published when it has this many bytes, ..."""
GROUP_BATCHES_MAX = 64
"""... or this many batches."""
FILE_TASKS_MIN = 32
"""A stream makes no task file of fewer tasks, unless they are large, or the caller asks for such files."""
LOCAL_FILE_TASKS_MIN = 256
"""Minimum number of tasks in a file that a stream makes on a local disk, with the same exceptions: a file costs a sync,
and a lock is held for microseconds (decision 8)."""
SPREAD, SMALL_JOB = 32, 2_000
"""Number of batches, about, and the most tasks of a job that is spread over these (decision 0008)."""
HELD_MAX, HELD_S = 10_000, 1.0
"""A stream is held back up to this number of tasks, and to GROUP_BYTES_MAX, to see how large the job is. After this
time of waiting for tasks, those that came are published: workers do not wait for the rest of a slow stream."""
RUN_TASKS_MAX, RUN_BYTES_MAX, RUN_S = 256, 1 << 18, 0.05
"""Lines are handed on in runs of this number or this size; in smaller ones, if they take longer than RUN_S to come."""
OPEN_BATCHES_MAX = 64
"""Maximum number of batches with different availability times that are filled side by side."""

When = tuple[bool, int]
"""(absolute or from now on, milliseconds)."""


class EncodedTask(NamedTuple):
    """A task on its way to the disk. It was checked and encoded once: nothing that comes later looks into its line."""

    line: bytes
    """The line of the task as it stands in a task file, with its priority and its key."""
    when: When
    priority: Priority | None = None
    rank: Rank = LAST
    """The rank of the task's priority."""
    key: str | None = None
    place: int | None = None
    """The task's index in the call, if it has one."""


class Encoded:
    """A batch being filled, or full, on its way to the disk: `pieces` of its file, each of several whole lines."""

    __slots__ = ("pieces", "places", "priorities", "rank", "size", "tasks", "when")

    def __init__(self, when: When, priorities: list[Priority] | None = None) -> None:
        self.when = when
        self.priorities = priorities
        """The priorities of the batch's tasks, the most urgent first. None if no task has one."""
        self.rank = rank_of(priorities[0]) if priorities else LAST
        """The rank of the batch's most urgent task."""
        self.pieces: list[bytes | memoryview] = []
        self.places: list[int] = []
        """The indices of the batch's tasks in the call, in their order. Empty if the stream does not keep them."""
        self.tasks = self.size = 0

    def take(self, piece: bytes | memoryview, tasks: int) -> None:
        """Append a piece that holds `tasks` tasks."""
        assert tasks > 0, "a piece without a task"
        self.pieces.append(piece)
        self.size += len(piece)
        self.tasks += tasks

    def content(self) -> bytes | memoryview:
        """Return the content of the batch's file, copied only if it is in several pieces."""
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)

    def each(self) -> list[EncodedTask]:
        """Return the batch's tasks, in their order."""
        lines = bytes(self.content()).splitlines(keepends=True)
        if self.priorities is None:
            return [EncodedTask(line, self.when) for line in lines]
        given = zip(lines, self.priorities, strict=True)
        return [EncodedTask(line, self.when, priority, rank_of(priority)) for line, priority in given]


NOW: When = (True, 0)
NO_KEYS = (
    "{} has a key, and a named commit takes none: its name makes the whole insert happen once. Leave the keys out, or "
    "insert without `commit`."
)


def available_from(task: Task, index: int | None, default: When = NOW) -> When:
    """Return when a task becomes available; InvalidTask says what is wrong with its times."""
    if task.available_at is None and type(task.delay_s) in (int, float) and not task.delay_s:
        return default  # as in most cases
    try:
        if task.available_at is not None:
            if task.delay_s:
                raise InvalidArgument("give either delay_s or available_at, not both.")
            return True, duration_ms(task.available_at, "available_at")
        delay = duration_ms(task.delay_s, "delay_s")
        return (False, delay) if delay else default
    except InvalidArgument as error:
        raise InvalidTask(f"{task_at(index)}: {error}", index) from None


def priority_of(given: object, index: int | None) -> Priority:
    """Return a task's priority as a str or an int itself. InvalidTask if it is no priority."""
    priority = plain(given)
    if (why := fault(priority)) is not None:
        raise InvalidTask(f"{task_at(index)}: {why}.", index)
    assert isinstance(priority, (str, int))
    return priority


def key_of(given: object, index: int | None) -> str:
    """Return a task's key as a str itself. InvalidTask if it is no key."""
    key = plain(given)
    if (why := keys.fault(key)) is not None:
        raise InvalidTask(f"{task_at(index)}: {why}.", index)
    assert isinstance(key, str)
    return key


def task_at(index: int | None) -> str:
    """Return the beginning of a sentence about a task, with its place in the call, if it has one."""
    return "The task" if index is None else f"Task number {index + 1}"


def encode(task: Task, bytes_max: int, index: int | None = None, default: When = NOW) -> EncodedTask:
    """Check a task and encode it. `index`: its place in a stream. InvalidTask says what is wrong with it; TaskTooLarge.

    `default`: when it becomes available, if it does not say so itself.
    """
    when = available_from(task, index, default)
    priority = None if task.priority is None else priority_of(task.priority, index)
    line = task_file.encode_task(task.payload, bytes_max, index, priority)
    key = None if task.key is None else key_of(task.key, index)
    if key is not None:
        line = keys.with_key(line, key)
        if len(line) > bytes_max:
            raise task_file.too_large(len(line), bytes_max, index)
    return EncodedTask(line, when, priority, rank_of(priority), key, index)


InsertKeyed = Callable[[Sequence[EncodedTask], Callable[[bool], None]], None]
"""Insert tasks that have keys, in their order. Call the second argument for each as soon as it is dealt with, and say
whether it is new. After an error the others are not in the queue, as far as the error tells."""


class TaskStream:
    """A caller's tasks, read in stretches. A stretch ends before a task with a key that follows others."""

    def __init__(
        self,
        tasks: Iterable[Any],
        insert_keyed: Callable[[Sequence[EncodedTask]], None] | None = None,
        check_keyed: Callable[[EncodedTask], None] = lambda _: None,
        keyed_max: Callable[[], int] = lambda: 1,
        monotonic: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.tasks: Iterator[tuple[int, Any]] = enumerate(tasks)
        self.insert_keyed = insert_keyed
        """Insert tasks with keys: called for those at the beginning of a stretch. None: tasks may have no keys."""
        self._check_keyed = check_keyed
        """Raise InvalidTask for a task with a key that the queue does not take: called when it has just come."""
        self.held: list[EncodedTask] = []
        """Tasks with keys that have come, and are not inserted yet. All tasks before them are in the queue."""
        self._held_size = 0
        self._keyed_max, self._most, self._held_max = keyed_max, 0, 1
        """How many tasks with keys are inserted at once at most: asked for the first time that one comes."""
        self._is_at_hand = isinstance(tasks, (list, tuple))
        self._monotonic, self._began = monotonic, monotonic()
        self.keyed: EncodedTask | None = None
        """The task before which the latest stretch ended; None if the stream has ended. Insert it next."""
        self.number = 0
        """Number of tasks in the stretches before this one."""
        self.keeps_places = False
        """True if batches note where in the call their tasks stand. The caller may set it before it reads batches."""
        self.next_place = 0
        """The index in the call of the first task of the next stretch."""
        self.kinds: set[tuple[When, bool]] = set()
        """Kinds of tasks that went into batches in this stretch: available when, and whether with a priority."""

    def hold(self, task: EncodedTask) -> None:
        """Hold a task with a key until as many have come as are inserted at once: fewer, the slower they come.

        InvalidTask if the queue does not take it. Those that are held are to be inserted all the same.
        """
        assert task.key is not None, "tasks without keys go into batches"
        self._check_keyed(task)
        if not self._most:
            self._most = self._keyed_max()
            self._held_max = self._most if self._is_at_hand else 1
        self.held.append(task)
        self._held_size += len(task.line)
        if len(self.held) >= self._held_max or self._held_size >= RUN_BYTES_MAX:
            is_slow = self._monotonic() - self._began >= RUN_S
            self._held_max = max(1, self._held_max // 2) if is_slow else min(2 * self._held_max, self._most)
            self.insert_held()

    def insert_held(self) -> None:
        """Insert the tasks that are held."""
        tasks, self.held, self._held_size = self.held, [], 0
        if tasks and self.insert_keyed is not None:
            self.insert_keyed(tasks)
        self._began = self._monotonic()

    @property
    def is_in_order(self) -> bool:
        """Tell whether the batches of this stretch, as far as it was read, came in the order of its tasks."""
        return len(self.kinds) <= 1 and not any(is_urgent for _, is_urgent in self.kinds)


def share(tasks: int, least: int = FILE_TASKS_MIN) -> int:
    """Return how many tasks a batch of a job of so many should hold: of a small one a fraction, of a larger one more
    and more; `least` at least.

    A few workers should share a small job fairly; the cost of a larger one is the end of every batch.
    """
    assert least > 0, "a batch holds a task at least"
    return max(least, max(tasks, tasks * tasks // SMALL_JOB) // SPREAD)


class Run(NamedTuple):  # so that what costs is done once for many tasks
    """Lines in a row of the stream that become available at the same time."""

    when: When
    lines: list[bytes]
    size: int
    priorities: list[Priority] | None
    """None if no task here has one."""
    place: int
    """The index of the first line in the call."""


def _runs(
    stream: TaskStream, bytes_max: int, default: When, tasks_max: int, monotonic: Callable[[], float]
) -> Iterator[Run]:
    """Yield the lines of a stretch, handed on by the hundred, or as they come where it is slow; InvalidTask ends it."""
    encode_task = task_file.encode_task
    when, size = default, 0
    lines: list[bytes] = []
    given: list[Priority] | None = None
    most, began = 1, monotonic()
    place = stream.next_place
    is_begin = True  # no task of this stretch was handed on
    broken: Exception | None = None
    try:
        for index, item in stream.tasks:
            if given is not None or isinstance(item, Task):
                task = item if isinstance(item, Task) else Task(item)
                if task.key is not None:
                    if stream.insert_keyed is None:
                        raise InvalidTask(NO_KEYS.format(task_at(index)), index)
                    keyed = encode(task, bytes_max, index, default)
                    if is_begin and not lines:  # nothing without a key that came before it waits
                        stream.hold(keyed)
                        place = index + 1
                        continue
                    stream.keyed, stream.next_place = keyed, index + 1
                    break
                at = available_from(task, index, default)
                priority = None if task.priority is None else priority_of(task.priority, index)
                line = encode_task(task.payload, bytes_max, index, priority)
                if priority is not None or given is not None:
                    if priority is None or given is None or at != when:
                        if lines:
                            yield Run(when, lines, size, given, place)
                            is_begin = False
                        when, lines, size, given = at, [], 0, None if priority is None else []
                        place = index
                    if priority is not None and given is not None:
                        given.append(priority)
            else:
                at, line = default, encode_task(item, bytes_max, index)
            if stream.held:
                stream.insert_held()  # they came before this one
            if at is not when and at != when:
                if lines:
                    yield Run(when, lines, size, None, place)
                    is_begin = False
                when, lines, size, place = at, [], 0, index
            lines.append(line)
            size += len(line)
            if len(lines) >= most or size >= RUN_BYTES_MAX:
                yield Run(when, lines, size, given, place)
                is_begin = False
                lines, size, place, now = [], 0, index + 1, monotonic()
                given = None if given is None else []
                most = min(2 * most, RUN_TASKS_MAX, tasks_max) if now - began < RUN_S else max(1, most // 2)
                began = now
    except Exception as error:
        let_out(error)  # it may have come between a line and its size
        broken = error
    if stream.held:  # then there are no lines
        stream.insert_held()
    if lines:
        yield Run(when, lines, size, given, place)
    if broken is not None:
        raise broken


_COMPARABLE: tuple[set[type], ...] = ({int}, {str})
"""Priorities that are all of one of these types compare as their ranks do: UTF-8 keeps the order of characters."""


class SortWindow:
    """Hold tasks with priorities, as many as a group has; then sort them, and cut them into batches."""

    def __init__(self) -> None:
        self.tasks = self.size = 0
        self._found: dict[When, tuple[list[Priority], list[bytes], list[int]]] = {}

    def has_room(self, tasks: int, size: int, batch_tasks: int) -> bool:
        """Return whether a group has room for `tasks` more tasks of `size` bytes, in batches of `batch_tasks`."""
        return self.size + size <= GROUP_BYTES_MAX and self.tasks + tasks <= GROUP_BATCHES_MAX * batch_tasks

    def is_full(self, batch_tasks: int) -> bool:
        """Return whether the tasks fill a group, in batches of `batch_tasks`."""
        return self.size >= GROUP_BYTES_MAX or self.tasks >= GROUP_BATCHES_MAX * batch_tasks

    def add(
        self, when: When, priorities: list[Priority], lines: list[bytes], size: int, indices: Iterable[int] = ()
    ) -> None:
        """Add tasks of `size` bytes that are available at the same time, with their priorities.

        `indices`: where in the call they stand, if that is kept.
        """
        assert len(priorities) == len(lines), "each task here has a priority"
        found = self._found.get(when)
        if found is None:
            found = self._found[when] = ([], [], [])
        found[0].extend(priorities)
        found[1].extend(lines)
        found[2].extend(indices)
        self.tasks += len(lines)
        self.size += size

    def drain(self, batch_tasks: int) -> Iterator[Encoded]:
        """Yield all tasks in batches of at most `batch_tasks`, the most urgent first, and empty the window.

        Tasks of equal priority stay in the order in which they were added.
        """
        found = self._found
        self.tasks, self.size, self._found = 0, 0, {}
        for when, (priorities, lines, indices) in found.items():
            comparable: Sequence[Any] = priorities
            if set(map(type, priorities)) not in _COMPARABLE:
                comparable = list(map(text_of, priorities))
            places = sorted(range(len(lines)), key=comparable.__getitem__)
            first = 0
            while first < len(places):
                chosen = [lines[place] for place in places[first : first + batch_tasks]]
                content = b"".join(chosen)
                if len(content) > BATCH_BYTES_MAX and len(chosen) > 1:
                    ends = accumulate(map(len, chosen))
                    chosen = chosen[: max(1, sum(end <= BATCH_BYTES_MAX for end in ends))]
                    content = b"".join(chosen)
                batch = Encoded(when, [priorities[place] for place in places[first : first + len(chosen)]])
                batch.take(content, len(chosen))
                if indices:
                    batch.places = [indices[place] for place in places[first : first + len(chosen)]]
                first += len(chosen)
                yield batch


def _paced(runs: Iterator[Run], monotonic: Callable[[], float]) -> Iterator[Run | None]:
    """Yield the runs of a stream, and None each time that they took HELD_S to come. What the caller does meanwhile does
    not count.
    """
    waited_s = 0.0
    while True:
        began = monotonic()
        run = next(runs, None)
        waited_s += monotonic() - began
        if run is None:
            return
        yield run
        if waited_s > HELD_S:
            yield None
            waited_s = 0.0


def _hold(runs: Iterator[Run | None], held: list[Run | None]) -> None:
    """Move the beginning of a stream, of bounded size, into `held`."""
    tasks = size = 0
    for run in runs:
        held.append(run)
        if run is None:  # the stream is slow
            break
        tasks += len(run.lines)
        size += run.size
        if tasks >= HELD_MAX or size >= GROUP_BYTES_MAX:
            break


def batches_of(
    stream: TaskStream,
    store: Store,
    default: When,
    batch_tasks: int | None,
    total: int | None,
) -> Iterator[Encoded | None]:
    """Encode a stretch of a stream into batches of the size asked for, or of one that suits the job.

    None: the stream is slow. Publish what has come. It is not yielded if the size was asked for.

    Tasks with priorities get batches of their own. They are sorted within windows of at most a group, so that a batch
    holds a narrow range of priorities, in order.

    InvalidTask for a task with a key if the stream takes none, as for a named commit.

    When the stream breaks off with an error, the tasks before it come out first, then the error. After an interruption
    nothing comes out: it may have left a batch with other lines than it counts.
    """
    settings, monotonic = store.settings, store.clock.monotonic
    tasks_max = min(batch_tasks or settings.batch_tasks_max, settings.batch_tasks_max)
    stream.keyed = None
    stream.kinds.clear()
    runs = _runs(stream, settings.task_bytes_max, default, tasks_max, monotonic)
    held: list[Run | None] = []
    number = stream.number
    per_batch, least = tasks_max, FILE_TASKS_MIN if store.fs.shared else LOCAL_FILE_TASKS_MIN
    come: Iterator[Run | None] = runs
    filling: dict[When, Encoded] = {}
    window = SortWindow()
    broken: Exception | None = None
    if batch_tasks is None:
        come = _paced(runs, monotonic)
        try:
            _hold(come, held)
        except Exception as error:
            let_out(error)
            broken = error
        known = number + sum(len(run.lines) for run in held if run is not None)
        job = max(known, total or 0)
        per_batch = min(tasks_max, share(job, least))
        if LOCAL_FILE_TASKS_MIN <= per_batch < min(job, tasks_max):
            per_batch = -(-job // -(-job // per_batch))  # as many files of the same size, and no rest
    try:
        for run in chain(held, come):
            if run is None:
                yield from _rest(window, per_batch, filling)
                yield None
                continue
            when, lines, size, priorities, place = run
            if priorities is not None:
                if not window.has_room(len(lines), size, per_batch):
                    yield from window.drain(per_batch)
                places = range(place, place + len(lines)) if stream.keeps_places else ()
                window.add(when, priorities, lines, size, places)
                stream.kinds.add((when, True))
                number += len(lines)
                if window.is_full(per_batch):
                    yield from window.drain(per_batch)
                    if per_batch < tasks_max:
                        per_batch = max(per_batch, min(tasks_max, share(number, least)))
                continue
            target = filling.get(when)
            if target is not None and target.size + size > BATCH_BYTES_MAX:
                yield filling.pop(when)
                target = None
            first = 0
            while first < len(lines):
                if target is None:
                    if len(filling) == OPEN_BATCHES_MAX:
                        yield filling.pop(max(filling, key=lambda key: filling[key].tasks))
                    target = filling[when] = Encoded(when)
                    stream.kinds.add((when, False))
                more = lines[first : first + per_batch - target.tasks]
                target.take(b"".join(more), len(more))
                if stream.keeps_places:
                    target.places += range(place + first, place + first + len(more))
                first += len(more)
                if target.tasks >= per_batch:
                    yield filling.pop(when)
                    target = None
                    if per_batch < tasks_max:
                        per_batch = max(per_batch, min(tasks_max, share(number + first, least)))
            number += len(lines)
    except Exception as error:
        let_out(error)  # it may have come between a batch's lines and their number
        broken = error
    stream.number = number
    yield from _rest(window, per_batch, filling)
    if broken is not None:
        raise broken


def _rest(window: SortWindow, batch_tasks: int, filling: dict[When, Encoded]) -> Iterator[Encoded]:
    """Yield the batches left in a window, and then those that are being filled."""
    yield from window.drain(batch_tasks)
    yield from filling.values()
    filling.clear()


def moment(store: Store, when: When) -> int:
    """Return the time or delay in `when` as milliseconds since 1970 on the file server's clock."""
    absolute, ms = when
    return ms if absolute else min(store.clock.now_ms() + ms, MS_MAX)


def default_when(delay_s: float) -> When:
    """Return the availability of tasks that say nothing themselves."""
    delay = duration_ms(delay_s, "delay_s")
    return (False, delay) if delay else NOW


def groups_of(batches: Iterable[Encoded | None]) -> Iterator[list[Encoded]]:
    """Yield batches in groups of bounded size. A None ends a group, and so does an error with which the stream breaks
    off.
    """
    group: list[Encoded] = []
    size = 0
    broken: Exception | None = None
    try:
        for encoded in batches:
            if encoded is not None:
                group.append(encoded)
                size += encoded.size
            if group and (encoded is None or size >= GROUP_BYTES_MAX or len(group) >= GROUP_BATCHES_MAX):
                yield group
                group, size = [], 0
    except Exception as error:
        let_out(error)
        broken = error
    if group:
        yield group
    if broken is not None:
        raise broken
