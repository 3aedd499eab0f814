# ruff: noqa: E501
"""The judgement of order: what names promise, what bounds let through, and which task comes next when nobody interferes.

Ranks are read here from docs/format.md, "Priorities", not by the package's own code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote_to_bytes

import orjson

from fsqueue import LeasedTask
from fsqueue.protocol import leasing, selection
from tests.simulation import commit_acts, invariants
from tests.simulation.disk import File
from tests.simulation.history import Actor, Call, History
from tests.simulation.replay import LEASED, OUTCOMES, SKIPPED, Replay

if TYPE_CHECKING:
    from tests.simulation.stories import Story

PRIORITIES = (None, None, None, "a", "b", "b-%/", 3, -3, "ö" * 22 + "a", "ö" * 22 + "b")
"""What stories insert with. Two are alike in names, which have not room for all of them."""
LAST = b"\x01"
"""The rank of tasks without a priority."""
BATCHES_MOST = 32
"""No story leaves so many batches."""


def rank(priority: Any) -> bytes:
    """What a priority is compared by."""
    if priority is None:
        return LAST
    text = f"{priority + (1 << 63):016x}" if isinstance(priority, int) else priority
    return b"\0" + bytes(text.encode())


def promise(name: str) -> bytes:
    """The rank in a task file's name."""
    _, _, *priority = name[46 : -len(".jsonl")].split("-", 2)
    return b"\0" + unquote_to_bytes(priority[0]) if priority else LAST


def is_surely_within(name: str, bound: Any) -> bool:
    """Whether a batch of which nothing is leased has a task that is not less urgent than a bound."""
    promised, asked = promise(name), rank(bound)
    return promised == asked or (promised < asked and not asked.startswith(promised))  # else it may be cut


class Task(NamedTuple):
    """A task that has no outcome."""

    payload: Any
    rank: bytes
    free_at: int
    """From when it may be leased (ms)."""


def in_file(file: File) -> list[dict[str, Any]]:
    """The tasks in a task file."""
    lines = [orjson.loads(line) for line in bytes(file.data).split(b"\n")[:-1]]
    return [line for line in lines if "payload" in line]


def unfinished(name: str, file: File, log: Replay | None) -> dict[int, Task]:
    """The tasks behind a task file that have no outcome, by their indices, as the disk has them."""
    lines = in_file(file)
    found = {index: (line["payload"], line.get("priority")) for index, line in enumerate(lines)}
    if log is None or not log.opened:
        return {index: Task(payload, rank(given), int(name[:13])) for index, (payload, given) in found.items()}
    found = {index: (payload, log.priorities.get(index, given)) for index, (payload, given) in found.items()}
    found |= {index: (payload, log.priorities.get(index)) for index, payload in log.payloads.items()}
    return {
        index: Task(found[index][0], rank(found[index][1]), max(task.since, task.born) + (500 if task.state == LEASED else 0))
        for index, task in enumerate(log.tasks)
        if task.state not in (*OUTCOMES, SKIPPED) and index in found
    }  # fmt: skip


def published(story: Story, queue: str = "") -> Iterator[tuple[str, dict[int, Task]]]:
    """The names of the task files that are there, each with its tasks that have no outcome. `queue`: its path."""
    for path, file in invariants.files(story, f"{invariants.generation(story, queue)}/queue"):
        name = path.rpartition("/")[2]
        if not name.startswith("."):
            there = [log for log in story.world.disk.logs.get(name[14:46], ()) if log.links]
            yield name, unfinished(name, file, invariants.replayed(story, there[0]) if there else None)


def payloads_left(story: Story, queue: str) -> set[Any]:
    """The payloads of all tasks of the queue at a path that have no outcome."""
    return {task.payload for _, tasks in published(story, queue) for task in tasks.values()}


def staged(story: Story) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The names of the task files that are in staging, each with the tasks in it."""
    for path, file in invariants.files(story, f"{invariants.generation(story)}/staging"):
        name = path.rpartition("/")[2]
        if name[:13].isdigit() and name.endswith(".jsonl"):
            try:
                tasks = in_file(file)
            except orjson.JSONDecodeError:
                continue  # not synced: a power loss has torn it
            yield name, tasks


# -- what is promised ------------------------------------------------------------------------------------------


def late_promises(story: Story) -> Iterator[str]:
    """No name is less urgent than what its batch has, and where one has a priority, workers can know that.

    A power loss may keep an insert that was not reported, and lose the name that was given for it.
    """
    if not story.history.priorities:
        return
    reported = {payload for call in story.history.calls for payload in commit_acts.surely_inserted(call)}
    with_priority = []
    for name, tasks in published(story):
        judged = [task for task in tasks.values() if task.payload in reported or not story.power_lost]
        with_priority += [task.payload for task in judged if task.rank < LAST]
        best = min(judged, key=lambda task: task.rank, default=None)
        if best is not None and best.rank < promise(name):
            yield f"{name} is less urgent than {best.payload!r} in it, of rank {best.rank!r}"
    decided = {
        part.first for record, _ in commit_acts.records(story, invariants.generation(story)) for part in record.parts
    }
    for name, lines in staged(story):
        best = min(lines, key=lambda line: rank(line.get("priority")), default={})
        if rank(best.get("priority")) < promise(name):
            yield f"{name} in staging is less urgent than {best['payload']!r} in it"
        if rank(best.get("priority")) < LAST and (not story.power_lost or _first_of(story, best["payload"]) in decided):
            with_priority.append(best["payload"])
    if with_priority and not _is_marked(story):
        yield f"{with_priority[0]!r} has a priority, and `queue.jsonl` does not say that there are any"


def _first_of(story: Story, payload: Any) -> str:
    """The part of a commit that a payload was staged in."""
    return next((first for first, payloads in story.staged.payloads.items() if payload in payloads), "")


def _is_marked(story: Story) -> bool:
    found = invariants.directory(story, story.path)
    file = found.entries.get("queue.jsonl") if found is not None else None
    return isinstance(file, File) and b'{"op":"ordered"' in bytes(file.data)


def told(call: Call, history: History) -> Iterator[str]:
    """What was leased has the priority that it was inserted with, or that it was given since, and none is less urgent
    than was asked for.
    """
    bound = call.args.get("up_to")
    changes = [
        given
        for task_id in history.changed
        for given in history.changed[task_id]
        if "delay_s" not in given or len(given) > 1
    ]
    for task in call.result if call.verb == "lease" else [call.result]:
        given = history.priorities.get(task.payload)
        if changes and task.priority in [one.get("priority") for one in changes]:
            given = task.priority  # a retried task has another id, and the priority of the dead letter
        if task.priority != given:
            yield f"{call}: {task.payload!r} was inserted with the priority {given!r}, and has {task.priority!r}"
        if bound is not None and rank(given) > rank(bound):
            yield f"{call}: {task.payload!r} is less urgent than was asked for"


# -- the order -------------------------------------------------------------------------------------------------


def is_exact(story: Story) -> bool:
    """Whether a single worker keeps the order exactly: it knows all heads, and their names promise enough."""
    return bool(story.history.priorities) and not story.power_lost and selection.HEADS_MAX > 1


def drain(story: Story, last: Actor, idle_s: float) -> list[str]:
    """Lease one task after the other where nobody else works: each is the most urgent one that there is."""
    is_strict = story.settings.shards > 1 or leasing.OVERPROMISED_MAX < BATCHES_MOST
    way = "strict" if is_strict else story.rng.choice(("strict", "leases", "loop"))
    wrong: list[str] = []
    before = ""
    loop = last.do("poll", lambda q: q.poll()) if way == "loop" else None
    if loop is not None:
        loop._stop = lambda: True  # ends when nothing is left at the moment
    for _ in range(400):
        limit = int(story.world.now * 1000) - 1000
        there = [(name, tasks) for name, tasks in published(story) if int(name[:13]) <= limit]
        if loop is not None:
            task = last.next(loop)
            got = [] if task is None else [task]
        else:
            got = last.lease(1, strict=way == "strict")
        if got:
            wrong += _passed_over(story, got[0], there, before, limit)
            before = got[0].batch
            last.complete(got)
        elif loop is not None:
            loop = None
        elif last.plain("is_drained"):
            return wrong
        else:
            last.work(idle_s)
    return [*wrong, "the queue does not drain"]


def _passed_over(
    story: Story, got: LeasedTask, there: list[tuple[str, dict[int, Task]]], before: str, limit: int
) -> Iterator[str]:
    """The tasks that should have come before this one.

    Of equals: one of the batch at hand, then of the oldest. A batch that promises more than it has is looked into first,
    and what it has is taken, too, if nothing is more urgent.
    """
    mine = rank(got.priority)
    promised = min((promise(name) for name, _ in there if name[14:46] == got.batch), default=LAST)
    buried = {
        (batch, index)
        for batch, logs in story.world.disk.logs.items()
        for log in logs
        for index, task in enumerate(invariants.replayed(story, log).tasks)
        if task.state in OUTCOMES
    }
    for name, tasks in there:
        batch = name[14:46]
        has_order = any(task.rank < LAST for task in tasks.values())
        for index, task in tasks.items():
            if task.free_at > limit or (batch, index) in buried or (batch, index) == (got.batch, got.index):
                continue
            is_before = task.rank < mine
            if task.rank == mine and batch == got.batch:
                is_before = has_order and index < got.index
            elif task.rank == mine == promised and got.batch != before:
                is_before = batch in (before, min(batch, got.batch))
            if is_before:
                yield f"{got.payload!r} of rank {mine!r} was leased while {task.payload!r} of rank {task.rank!r} in {name} was there"


def has_free(tasks: dict[int, Task], limit: int, bound: Any) -> bool:
    """Whether one could be leased at `limit`, of those that are not less urgent than `bound`."""
    return any(task.free_at <= limit and (bound is None or task.rank <= rank(bound)) for task in tasks.values())
