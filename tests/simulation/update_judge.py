"""The judgement of atomic updates: all or nothing, as reported, decided once, seen together, in an order.

An update draws a new id for each try. What acted under an id, in all logs there ever were, must be all that one call of
`update` was to do, and nothing else. So it is found which try was whose.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from fsqueue import FsqueueError, LeasedTask, TaskInfo, UpdateConflict
from fsqueue.format.names import parse_task_id
from fsqueue.format.names import task_id as task_of
from tests.simulation import invariants, precedence, relays
from tests.simulation.disk import Directory, File
from tests.simulation.faults import GROUP
from tests.simulation.history import DONE, REFUSED, original
from tests.simulation.replay import Replay, first_lines
from tests.simulation.update_acts import Look, Operation, Told

if TYPE_CHECKING:
    from tests.simulation.stories import Story

NOT_DONE = "Nothing of the update has happened"
DONE_ALL_THE_SAME = "The update has happened"
FREE = ("waiting", "delayed")


class Log(NamedTuple):
    """A log that there ever was: its batch, its file, what it says, and whether it is of the present generation."""

    batch: str
    file: File
    read: Replay
    is_current: bool


Deed = tuple[str, Any, Any]
"""What an operation does, so that it can be found in a log: its kind, its task or payload, and its lease or version."""


@dataclass
class Tried:
    """A call of `update`, and under which ids it has acted."""

    told: Told
    needed: set[Deed]
    """What must have acted, if anything has."""
    optional: set[Deed]
    """Inserts with keys of which nobody was told what became, and what may have gone with a queue that ended."""
    gone: set[Deed] = field(default_factory=set)
    """What may have gone with a queue that ended meanwhile: nobody finds it any more."""
    has_lasted: bool = False
    """Whether it has acted, with more than what may have gone."""
    ids: list[str] = field(default_factory=list)
    """The ids under which this call, and no other, may have acted."""
    perhaps: list[str] = field(default_factory=list)
    """Those under which this one or another has, that was to do the same."""


def judge(story: Story) -> Iterator[str]:
    """What is wrong with the updates of a story at its end."""
    if not story.updates.told:
        return
    logs = [
        Log(batch, file, invariants.replayed(story, file), _is_current(story, file))
        for batch, files in story.world.disk.logs.items()
        for file in files
    ]
    tried = [_tried(story, told) for told in story.updates.told]
    acted = _acted(logs)
    yield from _all_or_nothing(acted, tried)
    yield from _back_again(logs)
    for one in tried:
        yield from _as_reported(story, one)
        yield from _conflicts(story, one.told, logs)
    yield from _outcomes(story, logs)
    if not story.power_lost:
        yield from _seen_together(story, tried)
        yield from _in_an_order(story, tried, logs)
    yield from _rest(story, logs)


def _is_current(story: Story, log: File) -> bool:
    """Whether a log is in the present generation of one of the queues."""
    movements = log.home.above
    base = movements.above if movements is not None else None
    return any(base is invariants.directory(story, invariants.generation(view)) for view in (story, story.beside()))


# -- all or nothing ------------------------------------------------------------------------------------------


def _generation_of(log: Log) -> tuple[Directory, int]:
    """The directory of the queue in which a log was made, and the generation."""
    movements = log.file.home.above
    assert movements is not None
    assert movements.above is not None
    queue = movements.above.above
    assert queue is not None
    return queue, int(movements.above.name.partition("-")[0])


def _deed(one: Operation) -> Deed:
    if one.task is None:
        return "insert", one.payload, None
    if one.kind == "replace":
        return "replace", one.new, None
    kind = "fail" if one.kind == "bury" else one.kind  # a failed attempt may be the last one
    return kind, one.task.id, one.task.lease if isinstance(one.task, LeasedTask) else one.task.version


def _acted(logs: list[Log]) -> dict[str, set[Deed]]:
    """What acted under each id."""
    found: dict[str, set[Deed]] = {}
    for log in logs:
        for one in log.read.acted_in_updates:
            if one.op == "insert":
                deed: Deed = "insert", log.read.payloads[one.index], None
            elif one.op == "replace":
                [payload] = [
                    record["payload"]
                    for record in log.read.records
                    if record["op"] == "replace"
                    and (record["update"], record["tasks"][0][0]) == (one.update, one.index)
                ]
                deed = "replace", payload, None
            else:
                kind = "fail" if one.op == "bury" else one.op
                deed = kind, task_of(log.batch, one.index), one.by  # type: ignore[arg-type]
            found.setdefault(one.update, set()).add(deed)
    return found


def _tried(story: Story, told: Told) -> Tried:
    needed, optional, gone = set[Deed](), set[Deed](), set[Deed]()
    for one in told.operations:
        has_gone = any(step >= told.call.begin for step, name in story.world.disk.ended if name == "qr"[one.place])
        if has_gone:
            gone.add(_deed(one))
        if has_gone or (one.key is not None and one.is_new is None):
            optional.add(_deed(one))
        elif one.key is None or one.is_new:
            needed.add(_deed(one))
    if all(kind == "depends" for kind, _, _ in needed):  # then there may be nothing to write
        optional |= needed
        needed = set()
    return Tried(told, needed, optional, gone)


def _all_or_nothing(acted: dict[str, set[Deed]], tried: list[Tried]) -> Iterator[str]:
    for update, deeds in acted.items():
        near = [one for one in tried if not deeds.isdisjoint(one.needed | one.optional)]
        whole = [one for one in near if one.needed <= deeds <= one.needed | one.optional]
        for one in whole:
            (one.ids if len(whole) == 1 else one.perhaps).append(update)
            one.has_lasted |= len(whole) == 1 and not deeds <= one.gone
        if whole:
            continue
        if not near:
            yield f"the update {update} has done what nobody asked for: {_shown(deeds)}"
            continue
        best = max(near, key=lambda one: len(deeds & one.needed))
        is_part = f", and not {_shown(best.needed - deeds)}" if best.needed - deeds else ""
        more = deeds - best.needed - best.optional
        yield f"{best.told.call}: as {update} it has done {_shown(deeds - more)}{is_part}" + (
            f", and what it was not to do: {_shown(more)}" if more else ""
        )


def _back_again(logs: list[Log]) -> Iterator[str]:
    """Which tasks were leased once more after an update had ended them that did more: their file is there, and the log
    is not that said so. A power loss may do that.
    """
    touched = Counter(update for log in logs for update in {one.update for one in log.read.acted_in_updates})
    ended = {
        (_generation_of(log), log.batch, one.index): log
        for log in logs
        for one in log.read.acted_in_updates
        if one.op in ("complete", "bury", "cancel") and touched[one.update] > 1
    }
    for log in logs:
        for record in log.read.records:
            if record["op"] == "lease":
                for begin, end in record["tasks"]:
                    for index in range(begin, end):
                        before = ended.get((_generation_of(log), log.batch, index))
                        if before is not None and before is not log:
                            yield f"{task_of(log.batch, index)} was ended by an update, and leased again"


def _shown(deeds: Collection[Deed]) -> str:
    return ", ".join(sorted(f"{kind} {what}" for kind, what, _ in deeds))


def _as_reported(story: Story, one: Tried) -> Iterator[str]:
    call, error = one.told.call, one.told.call.error
    if len(one.ids) > 1 and any(kind == "insert" for kind, _, _ in one.needed):
        yield f"{call}: it has happened {len(one.ids)} times"
    has_acted = bool(one.ids or one.perhaps)
    if call.outcome == DONE and one.needed and not has_acted and not _may_be_forgotten(story, one):
        yield f"{call}: it was reported done, and it was not"
    if call.outcome == REFUSED and isinstance(error, FsqueueError):
        if (isinstance(error, UpdateConflict) or NOT_DONE in str(error)) and one.has_lasted:
            yield f"{call}: it says that nothing has happened, and it has"
        if DONE_ALL_THE_SAME in str(error) and one.needed and not has_acted:
            yield f"{call}: it says that it has happened, and it has not"
        if isinstance(error, UpdateConflict) and error.busy and not (story.world.faults or story.world.disk.ends):
            yield f"{call}: nothing went wrong, and others were in the way for too long"


def _may_be_forgotten(story: Story, one: Tried) -> bool:
    """Whether a power loss may have taken what was reported: without inserts an update of one batch is not synced."""
    told = one.told
    batches = {each.task.id.partition(".")[0] for each in told.operations if each.task is not None}
    is_synced = len(batches) > 1 or len(batches) < len({each.task is None for each in told.operations})
    return told.call.end <= story.forgotten_until and not is_synced


# -- conflicts -----------------------------------------------------------------------------------------------


def _conflicts(story: Story, told: Told, logs: list[Log]) -> Iterator[str]:
    """A conflict is so: the lease had ended by then, or the task was not as it had been seen.

    So are those about tasks on which the update was only to depend. A lease that has ended, and a version that is over,
    do not come back: so what is so at the answer was so between the call and the answer.
    """
    error = told.call.error
    if not isinstance(error, UpdateConflict) or story.world.disk.ends or story.power_lost:
        return
    by_id = {one.task.id: one for one in told.operations if one.task is not None}
    if invariants.may_seem_away(story, told.call):
        return
    until_ms = (told.call.ended + story.skew_s) * 1000 + 1000
    for conflict in (*error.missing, *error.changed, *error.owned, *error.depends):
        one = by_id[conflict.id]
        batch, index = parse_task_id(conflict.id)
        reads = [log.read for log in logs if log.batch == batch and index < len(log.read.tasks)]
        if isinstance(one.task, LeasedTask):
            ends = [read.ends.get((index, one.task.lease), invariants.NEVER) for read in reads]
            is_late = one.kind == "renew" and conflict in error.owned
            if min(ends, default=0) > until_ms and not is_late:
                yield f"{told.call}: nobody had taken {conflict.id}: {conflict.reason}"
        elif isinstance(one.task, TaskInfo) and (one.task.state in FREE or one.kind == "depends"):
            version = one.task.version
            tasks = [read.tasks[index] for read in reads]
            changes = [at for task in tasks for offset, at in task.changes if offset > version]
            if one.kind == "replace" and any(version in task.leased_in for task in tasks):
                continue  # by a lease that has run out, and whose worker may still complete the task
            if min(changes, default=invariants.NEVER) > until_ms:
                yield f"{told.call}: {conflict.id} was as it had been seen: {conflict.reason}"


# -- one decision, and no rest -------------------------------------------------------------------------------


def _outcomes(story: Story, logs: list[Log]) -> Iterator[str]:
    """An update has one outcome in all logs: that of the first line in its decision file."""
    found: dict[str, set[str]] = {}
    for log in logs:
        for update_id, outcome in log.read.decided:
            found.setdefault(update_id, set()).add(outcome)
    said = dict(_said(story))
    for update_id, outcomes in found.items():
        if len(outcomes) > 1:
            yield f"the update {update_id} was both committed and aborted"
        if "commit" in outcomes and said.get(update_id, "commit") != "commit" and not story.power_lost:
            yield f"the update {update_id} was committed in a log, and its file says {said[update_id]}"
        if "abort" in outcomes and said.get(update_id) == "commit" and not story.power_lost:
            yield f"the update {update_id} was aborted in a log, and its file says commit"


def _said(story: Story) -> Iterator[tuple[str, str]]:
    """What the first line about each update says, in all decision files that ever were."""
    for file in story.world.disk.files:
        if bytes(file.data[:18]).startswith(b'{"op":"decisions"'):
            yield from story.world.disk.read_by(first_lines, file).items()


def _rest(story: Story, logs: list[Log]) -> Iterator[str]:
    """At the end nothing is prepared in a log that counts, and no decision file is left that names no deleted queue."""
    for log in logs:
        if log.read.prepared and log.is_current and log.file.links:
            yield f"at the end {sorted(log.read.prepared)} are prepared"
    if not story.world.disk.ends:
        for path, _ in invariants.files(story, f"{GROUP}/.updates"):
            if "/.nfs" not in path:
                yield f"upkeep left {path}"


# -- seen together -------------------------------------------------------------------------------------------


def _seen_together(story: Story, tried: list[Tried]) -> Iterator[str]:
    """Whoever has seen a part of an update sees the rest by any look that begins later, whoever looks."""
    ends = relays.ends_of_lives(story)
    for one in tried:
        if len(one.ids) != 1:
            continue
        seen_at = one.told.call.end if one.told.call.outcome == DONE else invariants.NEVER
        for look in story.updates.looks:
            is_later = one.told.call.begin < look.call.end < seen_at
            if is_later and any(_shows(story, look, each, ends) for each in one.told.operations):
                seen_at = look.call.end
        for look in story.updates.looks:
            if look.call.begin >= seen_at:
                for each in one.told.operations:
                    if _shows(story, look, each, ends) is False:
                        yield f"{one.told.call}: it was seen at {seen_at}, and {look.call} does not show {each}"


def _shows(story: Story, look: Look, one: Operation, ends: dict[Any, float]) -> bool | None:
    """Whether a look shows that an operation of an update that has happened was done; None: it does not tell."""
    if look.place != one.place or any(name == "qr"[one.place] for _, name in story.world.disk.ended):
        return None
    if one.task is None:
        if not look.is_all or one.key is not None:
            return None
        if any(info is not None and original(info.payload) == one.payload for info in look.tasks.values()):
            return True
        # A client may show an old listing: nothing inserted by others is seen for a while.
        is_judged = not story.scenario.shared and look.call.end <= ends.get(one.payload, math.inf)
        return False if is_judged else None
    identity = one.task.id
    if identity not in look.tasks and not look.is_all:
        return None
    info = look.tasks.get(identity)
    if one.kind == "replace":
        return None if info is None else {one.new: True, one.was: False}.get(info.payload)
    if one.kind in ("complete", "bury", "cancel"):
        is_old = look.is_all and info is None and story.scenario.shared
        return None if is_old else info is None or info.state not in (*FREE, "leased")
    return None


# -- in an order ---------------------------------------------------------------------------------------------


def _in_an_order(story: Story, tried: list[Tried], logs: list[Log]) -> Iterator[str]:
    """There is an order of all updates, ends of queues and other records, in which each update saw what it relied on.

    What an update does in a generation of a queue comes before the purge or deletion that ends this generation, and
    after the one before. A queue that was deleted goes on as the next one of its name.
    """
    events, reads = list[precedence.Event](), list[precedence.Event]()
    for log in logs:
        by_offset = {(one.index, one.offset): one.update for one in log.read.acted_in_updates if one.op != "depends"}
        for index, task in enumerate(log.read.tasks):
            offsets = {offset for offset, _ in task.changes} | {at for it, at in by_offset if it == index}
            events += [
                precedence.Event((log.batch, index), at, by_offset.get((index, at), f"{log.batch}@{at}"))
                for at in offsets
            ]
        reads += [
            precedence.Event((log.batch, one.index), one.offset, one.update)
            for one in log.read.acted_in_updates
            if one.op == "depends"
        ]
    spans = {one.ids[0]: (one.told.call.begin, one.told.call.end) for one in tried if len(one.ids) == 1}
    began: dict[tuple[Directory, int], int] = {}
    ended: dict[str, int] = {}
    for queue, fates in story.world.disk.fates():
        began[queue, 1] = ended.get(queue.name, 0)
        for generation, (step, word) in enumerate(fates, start=2):
            end = f"{queue.name} is {word} at {step}"
            began[queue, generation] = ended[queue.name] = step
            events.append(precedence.Event(queue.name, step, end))
            spans[end] = step, step
    for log in logs:
        queue, generation = _generation_of(log)
        reads += [
            precedence.Event(queue.name, began[queue, generation], one.update) for one in log.read.acted_in_updates
        ]
    circle = precedence.circle(events, reads, spans)
    if circle:
        yield f"there is no order of these in which each could happen: {' < '.join(circle)}"
