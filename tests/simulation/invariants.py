# ruff: noqa: E501
"""The judgement: what must hold of everything that happened (docs/design.md, section 2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson

from fsqueue import LeasedTask, LeaseExpired, LeaseLost, Status, TaskNotFound
from fsqueue.format import checkpoints, replay
from fsqueue.format.names import parse_task_file, parse_token
from fsqueue.format.names import task_id as task_of
from fsqueue.protocol.leasing import BUSY_WAIT_S
from tests.simulation import claims, commit_acts, keyed_acts, order
from tests.simulation.disk import Directory, File
from tests.simulation.history import DONE, REFUSED, Call, original
from tests.simulation.nfs import STALE_S
from tests.simulation.replay import (
    AVAILABLE,
    CANCELLED,
    COMPLETED,
    DEAD,
    LEASED,
    OUTCOMES,
    SKIPPED,
    Replay,
    first_lines,
    with_outcomes,
)
from tests.simulation.world import NEVER

if TYPE_CHECKING:
    from tests.simulation.stories import Story

ENDS = {
    "complete": ("complete",),
    "release": ("release",),
    "fail": ("fail", "bury"),
    "bury": ("bury",),
    "renew": ("renew",),
}
"""The records by which a verb shows in the log."""
STATES = {
    replay.AVAILABLE: AVAILABLE,
    replay.LEASED: LEASED,
    replay.COMPLETED: COMPLETED,
    replay.CANCELLED: CANCELLED,
    replay.DEAD: DEAD,
    replay.SKIPPED: SKIPPED,
}
LONGEST_LEASE_S = 30.0
"""No act renews for longer."""
PURGED_S = 1.0
"""Seconds after a purge in which a lease may still hand out what was purged (docs/guarantees.md)."""
MOVED_S = 1.0
"""Seconds after a move in which a process that has the queue open may begin an insert there (docs/guarantees.md).

A client of a file server may believe for another `STALE_S` that the queue is in its place.
"""


class Truth:
    """What the disk says, read by the simulator itself."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.replays: dict[str, list[Replay]] = {
            batch: [replayed(story, file) for file in files] for batch, files in story.world.disk.logs.items()
        }
        self._generation = directory(story, generation(story))

    def counts(self, log: File) -> bool:
        """Whether a log was made in the current generation."""
        movements = log.home.above
        return movements is not None and movements.above is not None and movements.above is self._generation

    def of(self, task: LeasedTask) -> list[Replay]:
        return self.replays.get(task.batch, [])

    def outcomes(self, task_id: str) -> set[str]:
        """The outcomes of a task in the logs there were (of which a power loss may have taken one away)."""
        batch, _, text = task_id.rpartition(".")
        index = int(text)
        states = {one.tasks[index].state for one in self.replays.get(batch, ()) if index < len(one.tasks)}
        return states.intersection(OUTCOMES)

    def is_current(self, task_id: str) -> bool:
        """Whether it has a log in the current generation."""
        logs = self.story.world.disk.logs.get(task_id.rpartition(".")[0], ())
        return any(map(self.counts, logs))

    def completed(self) -> int:
        """How many tasks of the current generation were."""
        return sum(
            task.state == COMPLETED
            for batch, replays in self.replays.items()
            for one, file in zip(replays, self.story.world.disk.logs[batch], strict=True)
            if self.counts(file)
            for task in one.tasks
        )


def directory(story: Story, path: str) -> Directory | None:
    node: Any = story.world.disk.root
    for part in path.split("/")[1:]:
        node = node.entries.get(part) if isinstance(node, Directory) else None
    return node if isinstance(node, Directory) else None


def files(story: Story, path: str) -> Iterator[tuple[str, File]]:
    """All files below a path."""
    found = directory(story, path)
    for name, node in sorted(found.entries.items()) if found is not None else ():
        if isinstance(node, File):
            yield f"{path}/{name}", node
        else:
            yield from files(story, f"{path}/{name}")


def replayed(story: Story, log: File) -> Replay:
    """A movement log, by the simulator's own reading of it."""
    return story.world.disk.read_by(Replay, log)


def generation(story: Story, path: str = "") -> str:
    """The directory that `queue.jsonl` names now; that of the queue at `path`, if there is one."""
    path = path or story.path
    found = directory(story, path)
    file = found.entries.get("queue.jsonl") if found is not None else None
    return f"{path}/{story.world.disk.read_by(_generation, file) if isinstance(file, File) else '1-'}"


def _generation(data: bytes) -> str:
    number, identity = 1, ""
    for line in data.split(b"\n")[:-1]:
        try:
            record = orjson.loads(line)
        except ValueError:
            continue
        if record.get("op") == "generation" and record["generation"] > number:
            number = record["generation"]
        identity = identity or record.get("id", "")
    return f"{number}-{identity}"


# -- at the end --------------------------------------------------------------------------------------------


def judge(story: Story) -> list[str]:
    """Everything that is wrong with what happened."""
    wrong = list(story.history.wrong)
    wrong += story.world.overwritten
    truth = Truth(story)
    commit_acts.note_decided(story, generation(story))
    wrong += commit_acts.judge(story, generation(story))
    wrong += claims.judge_commits(story, generation(story))
    wrong += _logs(story, truth)
    for call in story.history.calls:
        wrong += _told(story, truth, call)
    wrong += _purged(story)
    wrong += _given_twice(story)
    wrong += _losses(story, truth)
    return wrong


def _logs(story: Story, truth: Truth) -> Iterator[str]:
    """Logs are appended to in order, end with `gone`, and no batch has two."""
    for batch, replays in truth.replays.items():
        for told, file in zip(replays, story.world.disk.logs[batch], strict=True):
            if not story.power_lost:
                yield from (f"log of {batch}: {text}" for text in told.wrong)
            if story.scenario.compare_clocks:  # whatever was done to the hosts' own clocks
                late = [one["op"] for one in told.records if one["at"] > story.world.now * 1000 + 1000]
                yield from (f"log of {batch}: {op} is of the future" for op in late)
            yield from (f"log of {batch}: {text}" for text in _restated(bytes(file.data), told))
            misled = file in story.world.voided_farewells and not told.left
            """By a farewell that was voided later; no harm is done where it was the last thing to be written."""
            if not (file.links or told.gone or misled or story.power_lost) and truth.counts(file):
                yield f"log of {batch}: it was unlinked without a farewell"
        logs = zip(replays, story.world.disk.logs[batch], strict=True)
        if sum(log.opened and truth.counts(file) for log, file in logs) > 1 and not story.power_lost:
            yield f"the batch {batch} began twice"
    for file, offset, meant in story.world.torn:
        start = offset + meant[: len(meant)].rfind(b"\n", 0, len(meant) - 1) + 1
        line = bytes(file.data)[start:].split(b"\n")[0]
        if line + b"\n" == meant[start - offset :] and b"\n" in bytes(file.data)[start:]:
            yield f"what was reported failed came to be after all: {line.decode()}"


def _restated(data: bytes, told: Replay) -> Iterator[str]:
    """Who begins at the last checkpoint that can be trusted knows what the log says of all that is alive."""
    if checkpoints.MARK not in data:
        return
    whole = replay.ReplayState()
    whole.replay(data, 0)
    yield from (f"the checkpoint at {here} restates something else" for here in whole.disputed)
    found = checkpoints.last_trusted(lambda size, offset: data[offset : offset + size], len(data))
    known = replay.ReplayState.from_checkpoint(found) if found is not None else None
    if found is None or known is None:
        return
    known.replay(data[found.end :], found.end)
    if checkpoints.restated(known) != checkpoints.restated(whole):
        yield "who begins at its last checkpoint reads another log"
    for index, task in enumerate(told.tasks):
        holder = known.holder[index]
        own: tuple[Any, ...] = STATES[known.state[index]], known.since[index], known.version[index]
        meant: tuple[Any, ...] = task.state, task.since, task.version
        if task.state == LEASED:
            own, meant = (*own, holder.id if holder else None), (*meant, task.lease)
        if (
            task.state in (AVAILABLE, LEASED)
            and told.takes
            and known.rank(index) != order.rank(told.priorities.get(index))
        ):
            yield f"who begins at its last checkpoint takes the rank of task {index} for {known.rank(index)!r}"
        if own[0] != meant[0] or (task.state in (AVAILABLE, LEASED) and own != meant):
            yield f"who begins at its last checkpoint takes task {index} for {own}: it is {meant}"


def _told(story: Story, truth: Truth, call: Call) -> Iterator[str]:
    """What a verb answered is what the log says."""
    if call.end <= story.forgotten_until:
        return
    if call.verb in ("lease", "next") and call.outcome == DONE and call.result:
        yield from order.told(call, story.history)
        given = call.result if call.verb == "lease" else [call.result]
        if len({task.id for task in given}) < len(given):
            yield f"{call}: it gave one task twice"
        for task in given:
            if not any(replay.acted(task.index, "lease", task.lease) for replay in truth.of(task)):
                yield f"{call}: no log knows of the lease of {task.id}"
            for one in [one for one in truth.of(task) if one.acted(task.index, "lease", task.lease)]:
                payload = one.handed.get((task.index, task.lease), original(call.payloads[task.id]))
                if payload != call.payloads[task.id]:
                    yield f"{call}: {task.id} has the payload {call.payloads[task.id]!r}, and an update gave it {payload!r}"
    if call.verb == "attach" and isinstance(call.error, TaskNotFound) and _is_held_after(story, truth, call):
        yield f"{call}: the lease held"
    if call.verb in ENDS and call.outcome in (DONE, REFUSED):
        lost = set(call.error.tasks) if isinstance(call.error, LeaseLost) else set()
        if call.outcome == REFUSED and not isinstance(call.error, LeaseLost):
            return
        for task in call.args["tasks"]:
            acted = any(replay.acted(task.index, op, task.lease) for replay in truth.of(task) for op in ENDS[call.verb])
            if not acted and task.id not in lost and not _may_be_astray(story, call):
                yield f"{call}: it was reported done, but no log says so of {task.id}"
            disk = story.world.disk
            went_with_it = any(call.begin <= step <= call.end for step, _ in disk.ends)
            went_with_it |= may_seem_away(story, call)
            ends = [one.ends.get((task.index, task.lease), NEVER) for one in truth.of(task)]
            # A renewal ends nothing: the lease that it prolonged may have been ended since, before the caller was told.
            ran_out = isinstance(call.error, LeaseExpired) and call.ended - call.began > LONGEST_LEASE_S
            renewed_in_vain = ran_out or (
                call.verb == "renew" and min(ends, default=NEVER) <= (call.ended + story.skew_s) * 1000
            )
            if acted and task.id in lost and not (went_with_it or renewed_in_vain or _repeated(story, call, task)):
                yield f"{call}: it was reported lost, but the log says it was done"
            in_time = isinstance(call.error, LeaseLost) and "ran out" not in call.error.reason
            ended_later = _ended_later(story, truth, call, task)
            # The error names tasks, not leases. A worker that was given one task twice hands in both leases. The error
            # may then mean the one that had ended, if the log says that the verb was done for the other.
            means_another = acted and any(
                one.id == task.id and not _ended_later(story, truth, call, one) for one in call.args["tasks"]
            )
            if task.id in lost and in_time and ended_later and not (means_another or disk.ends or went_with_it):
                yield f"{call}: it was reported lost, but nobody had taken it"


def _ended_later(story: Story, truth: Truth, call: Call, task: LeasedTask) -> bool:
    """Whether the logs of a task, if there are any, say that its lease held until the call had ended."""
    ends = [one.ends.get((task.index, task.lease), NEVER) for one in truth.of(task)]
    return min(ends, default=0) > (call.ended + story.skew_s) * 1000 + 1000


def _given_twice(story: Story) -> Iterator[str]:
    """An id is that of one task for ever."""
    tasks: dict[str, Any] = {}
    for payload, known in story.history.ids.items():
        for task_id in known:
            if tasks.setdefault(task_id, payload) != payload:
                yield f"the id {task_id} was given to {tasks[task_id]!r} and to {payload!r}"


def _purged(story: Story) -> Iterator[str]:
    """What was purged or deleted is neither leased, but in the second after that, nor reported done.

    A purge or deletion that did not end well may have taken its mark back. Nothing is known then.
    """
    if any(call.outcome != DONE and commit_acts.ends_the_generation(call) for call in story.history.calls):
        return
    if story.scenario.two_queues:
        return  # which of them it was that ended is not written down
    ends = sorted(step for step, how in story.world.disk.ends if how != "moved")
    inserted = {
        payload: call.end
        for call in (story.history.calls if ends else ())
        if call.verb == "insert" and call.outcome == DONE
        for payload in call.args["payloads"]
    }
    for call in story.history.calls if inserted else ():
        if call.outcome != DONE or call.verb not in ("lease", *ENDS):
            continue
        for task in call.result if call.verb == "lease" else call.args["tasks"]:
            ended = next((step for step in ends if step > inserted.get(original(task.payload), NEVER)), NEVER)
            if call.verb == "lease" and ended < NEVER:
                if call.began > story.world.disk.ended_at[ended] + PURGED_S:
                    yield f"{call}: {task.id} had been purged {call.began - story.world.disk.ended_at[ended]:.1f} s ago"
            elif ended < call.begin:
                yield f"{call}: it was reported done, but {task.id} had been purged"


def _is_held_after(story: Story, truth: Truth, call: Call) -> bool:
    """Whether the lease of a token, which was there before the call, held until it had ended."""
    batch, index, lease = parse_token(call.args["token"])
    after_ms = (call.ended + story.skew_s) * 1000 + 1000
    return not story.world.disk.ends and any(
        replay.acted(index, "lease", lease) and replay.ends.get((index, lease), NEVER) > after_ms
        for replay in truth.replays.get(batch, ())
    )


def _repeated(story: Story, call: Call, task: LeasedTask) -> bool:
    """Whether the same was asked for before; or of the same task by two leases at once, so that the error may mean the other."""
    return any(
        (other.verb in ENDS and other is not call and other.begin < call.end and (one.id, one.lease) == (task.id, task.lease))
        or (other is call and one.id == task.id and one.lease != task.lease)
        for other in story.history.calls
        for one in other.args.get("tasks", ())
    )  # fmt: skip


def _losses(story: Story, truth: Truth) -> Iterator[str]:
    """Every task whose insert was reported done is accounted for, and none was executed after it was reported done."""
    ids = {payload: set(known) for payload, known in story.history.ids.items()}
    settled = _settled(story)
    for payload, line in story.letters.items():
        ids.setdefault(payload, set()).update(line)
    yield from claims.judge(story, {payload for payload, known in ids.items() if known})
    yield from keyed_acts.judge(story, ids)
    yield from _kept(story, truth, ids)
    ended = max((step for step, _ in story.world.disk.ends), default=-1)
    for call in story.history.calls:
        if call.verb != "insert" or call.outcome != DONE or call.begin <= ended:
            continue  # what began before the queue was purged or deleted may have gone with it
        for payload in call.args["payloads"]:
            known = ids.get(payload, set())
            if not any(
                truth.outcomes(one) & {COMPLETED, CANCELLED} or settled.get(one) in ("dead", "purged") for one in known
            ) and not _went_along(story, call, payload):
                states = {one: (truth.outcomes(one), settled.get(one)) for one in known}
                yield f"{call}: the task {payload!r} is lost ({states or 'nobody ever saw it'})"
            unsettled = [
                one for one in known if settled.get(one, "retried" if not truth.is_current(one) else "") != "retried"
            ]
            if len(unsettled) > 1:
                yield f"the task {payload!r} was inserted once and is there as {sorted(unsettled)}"


def _went_along(story: Story, call: Call, payload: Any) -> bool:
    """Whether a plain insert has followed a queue that was moved away a moment ago, and the task is there, whole.

    "Whole": a process that opens the moved queue gets it, now or when a lease ends. An update follows only where a
    client believes what it remembers.
    """
    if not story.scenario.shared and any(call is shadow for told in story.updates.told for shadow in told.shadows):
        return False
    own = story.path.rpartition("/")[2]
    until_s = MOVED_S + (STALE_S if story.scenario.shared else 0.0)
    return any(
        lost.name == own and call.began <= lost.at + until_s and payload in order.payloads_left(story, lost.path)
        for lost in story.world.disk.lost
    )


def may_seem_away(story: Story, call: Call) -> bool:
    """Whether a queue was not in its place during a call, or a client of a file server may have believed so.

    A client may believe that a queue still is where it was, or that it has not come back.
    """
    disk = story.world.disk
    return disk.was_away(call.begin, call.end) or (
        story.scenario.shared and any(at <= call.ended and call.began <= at + STALE_S for at in disk.moved)
    )


def _may_be_astray(story: Story, call: Call) -> bool:
    """Whether a client of a file server may have believed that a queue is in its place which was moved away for good.

    What an update does there is decided in the group. The moved log may wait for the outcome for ever.
    """
    own = story.path.rpartition("/")[2]
    return story.scenario.shared and any(
        lost.name == own and call.ended >= lost.at and call.began <= lost.at + STALE_S for lost in story.world.disk.lost
    )


def _kept(story: Story, truth: Truth, ids: dict[Any, set[str]]) -> Iterator[str]:
    """What is kept of finished batches is theirs, and of no task that somebody may still execute."""
    place = generation(story)
    whose = {task_id: payload for payload, known in ids.items() for task_id in known}
    for path, file in files(story, f"{place}/payloads"):
        name = parse_task_file(path.rpartition("/")[2])
        if name is None:
            yield f"{path} is no task file"
            continue
        for index, line in enumerate(records(file)):
            task_id = task_of(name.batch, index)
            if task_id in whose and original(line.get("payload")) != whose[task_id]:
                yield f"the payload of {task_id} is {whose[task_id]!r}, and {line.get('payload')!r} is kept"
            if not truth.outcomes(task_id):
                yield f"the task file of {task_id} is kept as that of a finished batch, and it has no outcome"
    for path, file in files(story, f"{place}/history"):
        for line in records(file) if path.count(".") == 1 else ():
            for index, text in enumerate(str(line.get("tasks", "")).split("\n")[:-1]):
                task_id, kept = task_of(line["batch"], index), original(orjson.loads(text).get("payload"))
                if task_id in whose and kept != whose[task_id]:
                    yield f"the payload of {task_id} is {whose[task_id]!r}, and the history says {kept!r}"


def _settled(story: Story) -> dict[str, str]:
    """What the dead letters say of each id that they know, or that they gave back: dead, retried or purged."""
    found: dict[str, str] = {}
    given_back: dict[str, str] = {}
    place = generation(story)
    story.letters, ever_settled = _ever_said(story, directory(story, f"{place}/dead"))
    if not story.settings.keep_history:
        given_back.update(ever_settled)
    for path, file in files(story, place):
        part, name = path.split("/")[-2:]
        if path.endswith(".settled.jsonl"):
            for line in records(file):
                given_back.update(dict.fromkeys(line["ids"], line["op"]))
        elif part == "dead" and name.count(".") == 1:
            for line in records(file):
                if line.get("op") == "dead":
                    if line["id"] in found:
                        continue  # a repeat is void
                    found[line["id"]] = "dead"
                    if line["reason"].startswith("task file gone"):
                        story.history.wrong.append(f"the task file of {line['id']} was lost")
                    if line.get("payload") is None:
                        story.history.wrong.append(f"the letter of {line['id']} has no payload")
                elif line.get("op") in ("retried", "purged"):
                    found.update(dict.fromkeys(line["ids"], line["op"]))
    if story.settings.keep_history and (story.durable or not story.power_lost):
        back = [one for one in given_back if found.get(one) == "dead"]
        if back:
            story.history.wrong.append(f"letters that were settled and given back are there again: {sorted(back)}")
    return given_back | found


def records(file: File) -> Iterator[dict[str, Any]]:
    """The lines of a file that can be read."""
    for text in bytes(file.data).split(b"\n")[:-1]:
        with suppress(ValueError):
            yield orjson.loads(text)


def _ever_said(story: Story, place: Directory | None) -> tuple[dict[Any, set[str]], dict[str, str]]:
    """The ids of all letters that ever were in a directory, by their payloads; and how each was settled."""
    dead: dict[Any, set[str]] = {}
    settled: dict[str, str] = {}
    for file in story.world.disk.files:
        if file.home is place is not None:
            for line in records(file):
                if line.get("op") == "dead":
                    dead.setdefault(original(line.get("payload")), set()).add(line["id"])
                elif line.get("op") in ("retried", "purged"):
                    settled.update(dict.fromkeys(line["ids"], line["op"]))
    return dead, settled


def judge_status(story: Story, status: Status) -> Iterator[str]:
    """The counts of a drained queue in which nobody works."""
    truth = Truth(story)
    if not status.drained and not story.power_lost:  # which may leave a log to a task file that was not published yet
        yield f"the drained queue says {status}"
    completed = truth.completed()
    alive = sum(word == "dead" for word in _settled(story).values())
    if status.dead != alive:
        yield f"{alive} letters lie there, but the status says {status.dead}"
    if story.power_lost and not story.durable:
        if status.completed > completed + _completions_told(story):
            yield f"{completed} tasks were completed, but {status.completed} are counted"
    elif status.completed != completed:
        yield f"{completed} tasks were completed, but {status.completed} are counted"


def _completions_told(story: Story) -> int:
    return sum(len(call.args["tasks"]) for call in story.history.calls if call.verb == "complete")


def is_deleted(story: Story) -> bool:
    """Whether the queue was deleted, and nobody was told that there is one again."""
    ended = max((step for step, how in story.world.disk.ends if how != "purged"), default=-1)
    return ended >= 0 and not any(call.begin > ended and call.outcome == DONE for call in _creating(story))


def _creating(story: Story) -> list[Call]:
    return [call for call in story.history.calls if call.verb == "create"]


def late_hints(story: Story) -> Iterator[str]:
    """Where nothing went wrong, and after upkeep, no batch's earliest name promises a later time than the truth."""
    earliest: dict[str, str] = {}  # a power loss may have left a file with two names
    for path, _ in files(story, f"{generation(story)}/queue"):
        name = path.rpartition("/")[2]
        earliest[name[14:46]] = min(name, earliest.get(name[14:46], name))
    for name in earliest.values():
        logs = story.world.disk.logs.get(name[14:46], ())
        there = [replayed(story, log) for log in logs if log.links]
        due = [task.since for log in there for task in log.tasks if task.state in (AVAILABLE, LEASED)]
        if due and int(name[:13]) > min(due):
            yield f"{name} promises nothing before {int(name[:13])}, but there is something from {min(due)} on"


def judge_leftovers(story: Story) -> Iterator[str]:
    """After upkeep nothing lies about."""
    base = generation(story)
    for part in ("queue", "movements", "staging"):
        for path, _ in files(story, f"{base}/{part}"):
            if "/.nfs" not in path:
                yield f"upkeep left {path.removeprefix(story.path)}"
    yield from commit_acts.judge_leftovers(story, base)
    yield from keyed_acts.judge_leftovers(story, base)


# -- while it happens ------------------------------------------------------------------------------------------


def false_empty(story: Story, call: Call, process: object) -> Iterator[str]:
    """A `lease` that answered "empty": was there something that anybody could have leased, all the time?"""
    if may_seem_away(story, call):
        return
    base = generation(story)
    limit = int((call.began - story.skew_s) * 1000) - 1000
    yield from commit_acts.false_empty(story, call, base, limit)
    for path, file in files(story, f"{base}/queue"):
        shard = directory(story, path.rpartition("/")[0])
        name = path.rpartition("/")[2]
        if shard is None or name.startswith(".") or shard.since[name] > call.begin or int(name[:13]) > limit:
            continue
        batch = name[14:46]
        log = directory(story, f"{base}/movements/{path.split('/')[-2]}")
        found = log.entries.get(f"{batch}.jsonl") if log is not None else None
        if isinstance(found, File):
            was_locked = found.owner is not None or found.lost_at > call.begin
            if was_locked and call.ended - call.began >= BUSY_WAIT_S:
                continue  # somebody is, or was until just now, stopped with its lock, and that was waited for
        log = _decided(story, found, call.begin) if isinstance(found, File) else None
        tasks = order.unfinished(name, file, log)
        if log is not None and call.ended - call.began >= BUSY_WAIT_S:  # the decision about these was waited for
            tasks = {index: task for index, task in tasks.items() if index not in log.frozen}
        if not order.has_free(tasks, limit, call.args.get("up_to")):
            continue
        yield f'{call}: "empty", but {name} could be leased all the time'


def _decisions(story: Story, step: int) -> dict[str, str]:
    """What was decided before a step, about any update: `commit` or `abort`."""
    disk, found = story.world.disk, dict[str, str]()
    for file in disk.grown:
        if file.links and bytes(file.data[:18]).startswith(b'{"op":"decisions"'):
            found |= first_lines(disk.content_at(file, step))
    return found


def _decided(story: Story, log: File, step: int) -> Replay:
    """A movement log, with the outcomes of the updates that were decided before a step: a lessee asks for them."""
    read = replayed(story, log)
    return with_outcomes(bytes(log.data), _decisions(story, step)) if read.prepared else read


def false_drained(story: Story, call: Call) -> Iterator[str]:
    """A queue that was called drained: was a task left whose insert had been reported done before?

    A dead letter, or a completed task, that another process was retrying may have come back after the look: files that
    were written since that retry began do not count.
    """
    before = {
        payload
        for other in story.history.calls
        if other.end <= call.begin
        for payload in commit_acts.surely_inserted(other)
    }
    retries = [
        other
        for other in story.history.calls
        if other.verb in ("retry_dead", "retry_completed") and other.begin < call.end and other.end > call.begin
    ]
    base = generation(story)
    yield from commit_acts.false_drained(story, call, base)
    yield from _drained_beside_an_update(story, call, base)
    for path, file in files(story, f"{base}/queue"):
        name = path.rpartition("/")[2]
        if name.startswith(".") or any(file.mtime >= other.began for other in retries):
            continue
        lines = [orjson.loads(line) for line in bytes(file.data).split(b"\n")[:-1]]
        states = [replayed(story, log) for log in story.world.disk.logs.get(name[14:46], ())]
        payloads = {index: line["payload"] for index, line in enumerate(lines) if "payload" in line}
        for one in states:
            payloads.update(one.payloads)
        for index, payload in payloads.items():
            done = any(index < len(one.tasks) and one.tasks[index].state in OUTCOMES for one in states)
            if payload in before and not done:
                yield f'{call}: "drained", but the task {payload!r} is not done'


def _drained_beside_an_update(story: Story, call: Call, base: str) -> Iterator[str]:
    """A queue that was called drained: had an update a part of it that was not decided, all the time?

    Or was one decided before, and a task that it inserts is not done, though no log says yet that it is there?
    """
    disk = story.world.disk
    if disk.was_away(call.begin, call.end) or disk.lost:
        return
    for path, file in files(story, f"{base}/movements"):
        now = replayed(story, file) if file in disk.grown else None
        if now is None or not now.prepared:
            continue
        then, before = Replay(disk.content_at(file, call.begin)), _decisions(story, call.begin)
        open_all_the_time = (now.prepared.keys() & then.prepared.keys()) - _decisions(story, disk.step + 1).keys()
        for update in open_all_the_time:
            yield f'{call}: "drained", but the update {update} is not decided, and has a part in {path}'
        for update in now.prepared.keys() & then.prepared:
            if before.get(update) == "commit":
                for index in (one.record["first"] for one in now.prepared[update] if one.record["op"] == "insert"):
                    yield f'{call}: "drained", but {update} was committed, and has inserted task {index} of {path}'


def false_status(story: Story, call: Call) -> Iterator[str]:
    """The numbers of a status, against what had surely and what had perhaps happened by then."""
    status: Status = call.result
    surely = 0
    perhaps = 0.0
    done_surely: set[str] = set()
    done_perhaps: set[str] = set()
    cancelled = any(
        other.verb in ("cancel", "purge_dead") or commit_acts.ends_the_generation(other)
        for other in story.history.calls
    )
    for other in story.history.calls:
        if other.verb in ("insert", "commit"):
            perhaps += len(other.args["payloads"])
            surely += len(commit_acts.surely_inserted(other)) if other.end < call.begin else 0
        if other.verb == "retry_completed":
            perhaps += other.result.retried if other.outcome == DONE else math.inf
            surely += other.result.retried if other.outcome == DONE and other.end < call.begin else 0
        if other.verb == "complete":
            ids = {task.id for task in other.args["tasks"]}
            done_perhaps |= ids
            if other.outcome == DONE and other.end < call.begin:
                done_surely |= ids
    if not cancelled and not surely <= status.inserted <= perhaps:
        yield f"{call}: between {surely} and {perhaps} tasks were inserted"
    if not len(done_surely) <= status.completed <= len(done_perhaps) and not cancelled:
        yield f"{call}: between {len(done_surely)} and {len(done_perhaps)} tasks were completed"
