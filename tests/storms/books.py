"""Whether what processes of a storm wrote down, and what is in the queues, can both be so.

Effects of a call, as its process writes them down before it:

- `insert`: queues, and the numbers of the call's payloads; `keyed`: with keys, which may be taken; `loose`: into a
  queue that is purged and deleted meanwhile.
- `complete`, `bury`, `cancel`, `replace`: tasks, each with its birth: which call has inserted it, as which number.
  `seen`: a task that is replaced in an update with nothing else that can be found again. `forget`: letters that are
  thrown away. `drop`: tasks that are cancelled if they wait.
- `retry`: ids of letters; `again`: of completed tasks that are inserted again.
- `whole`: whether all of it happens, or nothing. By default it does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from fsqueue import Group, TaskInfo
from fsqueue.protocol import finishing
from tests.concurrency.books import check_drained, check_sound
from tests.storms.journal import DONE, REFUSED, UNKNOWN, Call, Read, read

Birth = tuple[str, int]
"""Which call has inserted a task, and as which number of its payloads."""

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
        births = {
            task: (by, number)
            for call in written.calls.values()
            for kind in ("complete", "bury", "cancel", "replace", "seen", "forget", "drop")
            for task, by, number, *_ in call.effects.get(kind, ())
        }
        self.tasks: dict[str, TaskInfo] = {}
        self.by_birth: dict[Birth, list[TaskInfo]] = defaultdict(list)
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


class Judge:
    """Compares what was written down with the truth."""

    def __init__(self, written: Read, truth: Truth) -> None:
        self.written, self.truth = written, truth
        self._gone = {(by, number) for _, by, number in self._named("forget")}
        """Births of letters that were thrown away, perhaps."""
        self._moved = self._ids("retry") | {task for task, *_ in self._named("forget")}
        self._changed_beside = {(by, number) for _, by, number in self._named("seen")}
        self.happened = [call for call in written.calls.values() if self._happened(call)]

    def wrong(self) -> Iterator[str]:
        """Yield all that is wrong."""
        for call in self.written.calls.values():
            yield from self._of_call(call)
        yield from self._of_births()
        yield from self._of_ends()
        yield from self._of_changes()

    def _ids(self, kind: str) -> set[str]:
        """Return the ids of tasks with which a call was to do this."""
        return {task for call in self.written.calls.values() for task in call.effects.get(kind, ())}

    def _named(self, kind: str) -> list[list[Any]]:
        """Return the tasks with which a call was to do this: the id, and the birth."""
        return [one[:3] for call in self.written.calls.values() for one in call.effects.get(kind, ())]

    def _evidence(self, call: Call) -> Iterator[tuple[str, bool | None]]:
        """Yield each effect that only this call can have had, and whether it is there; None if nobody can know."""
        for queue, number in call.effects.get("insert", ()):
            birth = call.name, number
            yield (
                f"insert of {number} into {queue}",
                birth in self.truth.by_birth or (None if birth in self._gone else False),
            )
        for kind, state in (("complete", "completed"), ("bury", "dead")):
            for task, *_ in call.effects.get(kind, ()):
                is_there = self.truth.is_ended(task, state, call.name)
                is_unknown = not is_there and (
                    (kind == "bury" and task in self._moved) or self._is_by_its_family(task, call.name)
                )
                yield f"{kind} {task}", None if is_unknown else is_there

    def _is_by_its_family(self, task: str, call: str) -> bool:
        """Return whether a task was completed by a child that was forked within a call, with its lease, or by a parent.

        A gateway breaks off, the client of one asks again, and is told that this lease has completed the task.
        """
        info = self.truth.tasks.get(task)
        if info is None or info.state != "completed":
            return False
        other = info.result["by"]
        return bool(other.startswith(f"{call}.child-") or call.startswith(f"{other}.child-"))

    def _happened(self, call: Call) -> bool:
        return any(is_there for _, is_there in self._evidence(call)) or any(
            (call.name, number) in self.truth.by_birth for _, number, _ in call.effects.get("keyed", ())
        )

    def _of_call(self, call: Call) -> Iterator[str]:
        """Yield what is wrong with a call: it was told to be done, or not, and is not so; or a half of it is there."""
        lost, happened = call.more.get("lost", ()), self._happened(call)
        missing = [
            what for what, is_there in self._evidence(call) if is_there is False and what.split()[-1] not in lost
        ]
        if call.told == DONE and missing:
            yield f"{call} is done, but not {missing}"
        if call.told == REFUSED and happened:
            yield f"{call} was refused, but has happened"
        if call.told == UNKNOWN and happened and missing and call.effects.get("whole", True):
            yield f"{call}: half of it has happened, and not {missing}"
        for task, *_ in call.effects.get("cancel", ()) if happened else ():
            if task not in self.truth.tasks or self.truth.tasks[task].state != "cancelled":
                yield f"{call} has happened, but {task} is not cancelled: {self.truth.tasks.get(task)}"

    def _of_births(self) -> Iterator[str]:
        """Yield which tasks are there twice, or were inserted by nobody."""
        again = self._ids("again")
        for (name, number), found in self.truth.by_birth.items():
            call = self.written.calls.get(name)
            meant = [one for kind in ("insert", "keyed", "loose") for one in call.effects.get(kind, ())] if call else []
            if len(found) > 1 + sum(info.id in again for info in found):
                yield f"task {number} of {call or name} is there {len(found)} times: {found}"
            if [found[0].queue, number] not in [one[:2] for one in meant]:
                yield f"task {number} of {call or name} was not inserted into {found[0].queue}: {found}"

    def _of_ends(self) -> Iterator[str]:
        """Yield which tasks were completed or cancelled by nobody, or cancelled twice."""
        dropped = {task for task, *_ in self._named("drop")}
        perhaps = {task for call in self.written.calls.values() for task in self._unknown_cancels(call)}
        cancelled = Counter(task for call in self.happened for task, *_ in call.effects.get("cancel", ()))
        for info in self.truth.tasks.values():
            call = self.written.calls.get(info.result["by"]) if info.state == "completed" else None
            if info.state == "completed" and (call is None or info.id not in _ids_in(call, "complete")):
                yield f"{info} was completed by {call}"
            if info.state == "cancelled" and not cancelled[info.id] and info.id not in dropped | perhaps:
                yield f"{info} was cancelled by nobody"
            if cancelled[info.id] > 1:
                yield f"{info} was cancelled {cancelled[info.id]} times"

    def _unknown_cancels(self, call: Call) -> Iterator[str]:
        """Yield what a call has cancelled, perhaps, of which nothing else can be known."""
        if not any(is_there is False for _, is_there in self._evidence(call)):
            yield from _ids_in(call, "cancel")

    def _of_changes(self) -> Iterator[str]:
        """Yield which tasks have not been replaced once by each call that has replaced them."""
        versions: dict[Birth, list[int]] = defaultdict(list)
        for call in self.happened:
            for _, by, number, version in call.effects.get("replace", ()):
                versions[by, number].append(version)
        for birth, found in self.truth.by_birth.items():
            last = found[0].payload["r"] if found[0].payload is not None else len(versions[birth])
            if sorted(versions[birth]) != list(range(1, last + 1)) and birth not in self._changed_beside:
                yield f"{found[0]} was replaced by {sorted(versions[birth])}"


def judge(group: Group, notes: Path) -> tuple[dict[str, int], list[str]]:
    """Return numbers, and what is wrong. The queues are drained, and nobody works."""
    counts: Counter[str] = Counter()
    for queue in list(group.queues(tasks_min=0)):
        if not queue.exists():  # a process was killed when it had made the directory: no task was ever in it
            continue
        completed, dead = check_drained(queue, staged_leftovers=STAGED_MAX)
        counts["completed"] += len(completed)
        counts["dead"] += len(dead)
        with mock.patch.object(finishing, "LINGER_MS", 0):
            check_sound(queue)
    wrong = [f"fsck of the group: {finding}" for finding in group.fsck()]
    written = read(notes)
    for _, more in written.each("applies"):  # a forked child has applied its copy, perhaps
        written.calls[more["call"]].told = UNKNOWN
    judge = Judge(written, Truth(group, written))
    wrong += [f"{who}: {what} {more}" for _, who, what, more in written.said if what in ODD and not _is_known(more)]
    wrong += [*_of_children(written), *judge.wrong()]
    for told in (DONE, REFUSED, UNKNOWN):
        counts[told] = sum(call.told == told for call in written.calls.values())
    counts["no payload"] = sum(1 for _ in written.each("no payload"))
    counts["happened"] = len(judge.happened)
    return dict(counts), wrong


def _ids_in(call: Call, kind: str) -> list[str]:
    return [task for task, *_ in call.effects.get(kind, ())]


def lies(notes: Path, ends: float) -> Iterator[str]:
    """Yield who has said "drained" before the end of the storm, while a task lived in each queue that was asked."""
    for at, who, what, more in read(notes).said:
        if what == "answer" and more["drained"] and at < ends:
            yield f"{who} said drained, {ends - at:.3f} s before the end: {more}"


def _of_children(written: Read) -> Iterator[str]:
    """Yield which forked children got something else than ForkedChild, or what their parents got."""
    for who, more in written.each("came back"):
        raised = more["raised"].partition(":")[0]
        if more["where"] == "alone" or raised in ("ForkedChild", ""):
            continue
        parent = written.calls[more["call"]]
        if raised != parent.more.get("error", "").partition(":")[0]:
            yield f"{who}, forked at {more['where']} within {parent}: it got {more['raised']}"
