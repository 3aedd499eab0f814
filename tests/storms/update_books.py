"""Whether what workers wrote down in a storm of updates, and what is in the queues, can both be so."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from fsqueue import Group, TaskInfo
from fsqueue.protocol import finishing
from tests.concurrency.books import check_drained, check_sound
from tests.storms.journal import DONE, REFUSED, Call, Read, read

STAGED_MAX = 64
"""Staged files that killed inserts may leave."""


ODD = ("odd", "child", "turned", "swallowed")
"""What journals say that nobody expects: another error; a child that failed; an interruption that was lost."""


def _is_known(more: dict[str, Any]) -> bool:
    """Return whether the end of a block takes the place of what has interrupted it: it fails a task that has ended."""
    return more.get("kind") == "block" and more.get("into", "").startswith("LeaseLost")


class Truth:
    """What has become of each task, as the queues say.

    A process that is killed while it finishes a batch may take the payloads with it (docs/design.md, section 4.9): what
    task that was is known by the journals of those who have leased it, or looked it up.
    """

    def __init__(self, group: Group, written: Read) -> None:
        births = {task: (by, number) for call in written.calls.values() for task, by, number in _named(call)}
        self.tasks: dict[str, TaskInfo] = {}
        self.by_birth: dict[tuple[str, int], list[TaskInfo]] = defaultdict(list)
        for queue in group.queues(tasks_min=0):
            for state in ("completed", "dead", "cancelled"):
                for info in queue.tasks(state):
                    assert info.id not in self.tasks, f"{info.id} is there twice"
                    self.tasks[info.id] = info
                    payload = info.payload
                    birth = (payload["by"], payload["i"]) if payload is not None else births[info.id]
                    self.by_birth[birth].append(info)

    def is_ended(self, task: str, state: str, call: str) -> bool:
        """Return whether a call has ended a task so."""
        info = self.tasks.get(task)
        if info is None or info.state != state:
            return False
        if state == "completed":
            return bool(info.result["by"] == call)
        return state == "cancelled" or info.error == call


def _named(call: Call) -> Iterator[list[Any]]:
    """Yield the tasks that a call has named: the id, and by whom, and as which one of the call, it was inserted."""
    for kind in ("complete", "bury", "cancel", "replace"):
        yield from (one[:3] for one in call.effects.get(kind, ()))


def judge(group: Group, notes: Path) -> tuple[dict[str, int], list[str]]:
    """Return numbers, and what is wrong. The queues are drained, and nobody works."""
    wrong: list[str] = []
    counts: Counter[str] = Counter()
    queues = list(group.queues(tasks_min=0))
    for queue in queues:
        completed, dead = check_drained(queue, staged_leftovers=STAGED_MAX)
        counts["completed"] += len(completed)
        counts["dead"] += len(dead)
        with mock.patch.object(finishing, "LINGER_MS", 0):
            check_sound(queue)
    wrong += [f"fsck of the group: {finding}" for finding in group.fsck()]
    written = read(notes)
    truth = Truth(group, written)
    wrong += [f"{who}: {what} {more}" for _, who, what, more in written.said if what in ODD and not _is_known(more)]
    wrong += _of_children(written)
    retried = {task for call in written.calls.values() for task in call.effects.get("retry", ())}
    happened = [call for call in written.calls.values() if _happened(call, truth)]
    wrong += [problem for call in written.calls.values() for problem in _of_call(call, truth, retried)]
    wrong += _of_births(written, truth, happened)
    wrong += _of_changes(written, truth, happened)
    told = Counter(call.told for call in written.calls.values())
    counts.update({"done": told[DONE], "refused": told[REFUSED], "unknown": told["unknown"], "happened": len(happened)})
    return dict(counts), wrong


def _evidence(call: Call, truth: Truth) -> Iterator[tuple[str, bool]]:
    """Yield each effect that only this call can have had, and whether it is there."""
    for queue, number in call.effects.get("insert", ()):
        found = truth.by_birth.get((call.name, number), [])
        yield f"insert of {number} into {queue}", bool(found)
    for kind, state in (("complete", "completed"), ("bury", "dead")):
        for task, *_ in call.effects.get(kind, ()):
            yield f"{kind} {task}", truth.is_ended(task, state, call.name)


def _happened(call: Call, truth: Truth) -> bool:
    return any(is_there for _, is_there in _evidence(call, truth)) or any(
        (call.name, number) in truth.by_birth for _, number, _ in call.effects.get("keyed", ())
    )


def _of_call(call: Call, truth: Truth, retried: set[str]) -> Iterator[str]:
    """Yield what is wrong with a call: it was told to be done, or not, and is not so; or a half of it is there."""
    lost = set(call.more.get("lost", ()))
    missing = []
    for what, is_there in _evidence(call, truth):
        task = what.rpartition(" ")[2]
        if not is_there and not (what.startswith("bury") and task in retried) and task not in lost:
            missing.append(what)
    is_refused = call.told == REFUSED
    if call.told == DONE and not is_refused and missing:
        yield f"{call} is done, but not {missing}"
    if is_refused and _happened(call, truth):
        yield f"{call} was refused, but has happened"
    if call.effects.get("whole", True) and call.told not in (DONE, REFUSED) and missing and _happened(call, truth):
        yield f"{call}: half of it has happened, and not {missing}"
    if _happened(call, truth):
        for task, *_ in call.effects.get("cancel", ()):
            if task not in truth.tasks or truth.tasks[task].state != "cancelled":
                yield f"{call} has happened, but {task} is not cancelled: {truth.tasks.get(task)}"


def _of_births(written: Read, truth: Truth, happened: list[Call]) -> Iterator[str]:
    """Yield which tasks are there twice, or were inserted by nobody, or ended by nobody."""
    for (name, number), found in truth.by_birth.items():
        call = written.calls.get(name)
        meant = [*call.effects.get("insert", ()), *call.effects.get("keyed", ())] if call is not None else []
        if len(found) > 1:
            yield f"task {number} of {call or name} is there {len(found)} times: {found}"
        if [found[0].queue, number] not in [one[:2] for one in meant]:
            yield f"task {number} of {call or name} was not inserted into {found[0].queue}: {found}"
    for info in truth.tasks.values():
        if info.state == "completed":
            call = written.calls.get(info.result["by"])
            if call is None or info.id not in [task for task, *_ in call.effects.get("complete", ())]:
                yield f"{info} was completed by {call}"
    cancelled = Counter(task for call in happened for task, *_ in call.effects.get("cancel", ()))
    for task, times in cancelled.items():
        if times > 1:
            yield f"{task} was cancelled {times} times"
    for info in truth.tasks.values():
        if info.state == "cancelled" and not cancelled[info.id]:
            yield f"{info} was cancelled by nobody"


def _of_changes(written: Read, truth: Truth, happened: list[Call]) -> Iterator[str]:
    """Yield which tasks have not been replaced once by each call that has replaced them."""
    versions: dict[tuple[str, int], list[int]] = defaultdict(list)
    for call in happened:
        for _, by, number, version in call.effects.get("replace", ()):
            versions[by, number].append(version)
    for birth, found in truth.by_birth.items():
        last = found[0].payload["r"] if found[0].payload is not None else len(versions[birth])
        if sorted(versions[birth]) != list(range(1, last + 1)):
            yield f"{found[0]} was replaced by {sorted(versions[birth])}"


def _of_children(written: Read) -> Iterator[str]:
    """Yield which forked children got something else than ForkedChild, or what their parents got."""
    for who, more in written.each("came back"):
        raised = more["raised"].partition(":")[0]
        if more["where"] == "alone" or raised in ("ForkedChild", ""):
            continue
        parent = written.calls[more["call"]]
        if raised != parent.more.get("error", "").partition(":")[0]:
            yield f"{who}, forked at {more['where']} within {parent}: it got {more['raised']}"
