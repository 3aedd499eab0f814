"""A second reading of docs/format.md, small and slow: what the bytes of a movement log say became of each task.

The judgement does not use the package's own replay: a fault in that would then be invisible.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

AVAILABLE, LEASED, COMPLETED, CANCELLED, DEAD = "available", "leased", "completed", "cancelled", "dead"
OUTCOMES = (COMPLETED, CANCELLED, DEAD)
SKIPPED = "skipped"
TASKS_MAX = 1024


class State:
    """What became of a task."""

    __slots__ = (
        "attempts",
        "born",
        "changes",
        "history",
        "lease",
        "leased_in",
        "outdated",
        "payload",
        "since",
        "state",
        "version",
    )

    def __init__(self, since: int, version: int, born: int = 0) -> None:
        self.born = born
        """When it was inserted into the log."""
        self.state, self.since, self.version = AVAILABLE, since, version
        self.lease: str | None = None
        self.attempts = 0
        self.history: list[tuple[str, str | None]] = []
        """Each record that changed it, with the lease it concerns."""
        self.changes: list[tuple[int, int]] = []
        """The offsets of these records, and when each was written (ms)."""
        self.leased_in: set[int] = set()
        """The versions in which a lease had it, be it in time or not."""
        self.payload: Any = None
        """What an update has put in the place of its payload, if one has."""
        self.outdated: str | None = None
        """The lease that had it while another one put a new payload there."""

    def note(self, op: str, lease: str | None, offset: int, at: int) -> None:
        """Note that a record has changed it."""
        self.history.append((op, lease))
        self.changes.append((offset, at))
        if self.state == LEASED:
            self.leased_in.add(offset)


class Acted(NamedTuple):
    """What a record of an update has done to a task. `by` is the lease; or the version that was seen, of a free one."""

    update: str
    op: str
    index: int
    by: str | int | None
    offset: int


class Kept(NamedTuple):
    """A record of an update, which acts at the `commit`."""

    record: dict[str, Any]
    offset: int
    at: int


class Replay:
    """A log, replayed. `records` are all lines that are records; `wrong` what should not be in a log."""

    def __init__(self, data: bytes) -> None:
        self.tasks: list[State] = []
        self.records: list[dict[str, Any]] = []
        self.counts: list[tuple[str, int, int]] = []
        self.ends: dict[tuple[int, str | None], int] = {}
        """When a lease ended: by task and lease."""
        self.finished = self.gone = False
        self.opened = self.sealed = self.takes = False
        self.payloads: dict[int, Any] = {}
        """Of tasks that are in the log."""
        self.keys: dict[int, str] = {}
        """Of those that have one."""
        self.priorities: dict[int, Any] = {}
        """Of those that have one."""
        self.prepared: dict[str, list[Kept]] = {}
        """The records of each update that wait for an outcome."""
        self.decided: list[tuple[str, str]] = []
        """The outcomes that were given to prepared records, by their updates."""
        self.files: dict[str, str] = {}
        """The decision file of each update that had prepared records."""
        self.acted_in_updates: list[Acted] = []
        self.handed: dict[tuple[int, str], Any] = {}
        """The payload that a task had when it was leased, by task and lease, if an update had replaced it before."""
        self.frozen: set[int] = set()
        """The tasks that prepared records name."""
        self.shared: set[int] = set()
        """Those of them on which updates only depend."""
        self._direct: tuple[str, list[Kept]] = "", []
        """Records of an update without a file, one directly behind the other."""
        self._inserts: set[str] = set()
        self.wrong: list[str] = []
        self._leases: set[str] = set()
        self._at = last = 0
        offset = 0
        for line in data.split(b"\n")[:-1]:
            record = self._parse(line)
            if record is None:
                if b"\0" in line:
                    self.wrong.append("bytes that nobody wrote")
            else:
                if self.gone:
                    self.wrong.append(f"a record after `gone`: {record['op']}")
                else:
                    self.records.append(record)
                    if record["op"] == "clock":
                        last = min(last, record["at"])
                    if record["at"] < last:
                        self.wrong.append(f"time runs backwards at {record['op']}")
                    last = max(last, record["at"])
                    self._apply(record, offset)
            offset += len(line) + 1

    @staticmethod
    def _parse(line: bytes) -> dict[str, Any] | None:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            return None
        return record if isinstance(record, dict) and "op" in record and isinstance(record.get("at"), int) else None

    @property
    def left(self) -> int:
        return sum(task.state not in (*OUTCOMES, SKIPPED) for task in self.tasks)

    def _apply(self, record: dict[str, Any], offset: int) -> None:
        op, at = record["op"], max(record["at"], self._at)
        update = record.get("update")
        direct, self._direct = self._direct, ("", [])
        if update is not None:
            if op == "commit" and direct[0] == update:
                self._commit_direct(direct[1], record, at)
            elif op in ("commit", "abort"):
                self._decide(update, record, at)
            elif op not in _RULES.keys() - {"lease", "revoke", "change"} | {"insert"}:
                pass
            elif "file" in record:
                self._prepare(update, Kept(record, offset, at))
            else:
                before = direct[1] if direct[0] == update else []
                self._direct = update, [*before, Kept(record, offset, at)]
            return
        if self.prepared and op in ("finish", "clock"):
            return
        lease = record.get("lease")
        changed = False
        if op == "open" and not self.opened:
            self.tasks = [State(record["available_at"], offset) for _ in range(record["count"])]
            self.opened = changed = True
            self.takes = "inserts" in record
        elif op == "insert":
            changed = self._insert(record, offset)
        elif op == "seal":
            changed = self.takes and not self.sealed and not self.finished
            self.sealed |= changed
        elif op == "move":
            changed = True  # nothing but the time of the log
        elif op == "gone":
            self.gone = True
        elif op == "finish":
            self.finished |= self.opened and not self.left
        elif op == "count" and self.finished:
            self.counts.append((record["file"], record["offset"], record["count"]))
        elif op == "clock":
            if record["at"] < self._at:
                self._at = record["at"]
                indices = [index for start, end in record["tasks"] for index in range(start, end)]
                for index, since in zip(indices, record["since"], strict=True):
                    if self.tasks[index].state not in OUTCOMES:
                        self.tasks[index].since = since
        elif op == "lease" and lease in self._leases:
            pass
        elif op in _RULES and op != "depends":
            indices = [index for start, end in record["tasks"] for index in range(start, end)]
            for place, index in enumerate(indices):
                task = self.tasks[index] if index < len(self.tasks) else None
                holder = task.lease if task is not None and task.state == LEASED else None
                if index in self.frozen and (op != "renew" or lease is None or holder != lease):
                    continue
                if task is not None and task.state not in (*OUTCOMES, SKIPPED) and _RULES[op](task, record, at, place):
                    task.version = offset
                    self._changed(task, op, lease, offset, at)
                    changed = True
                    if op == "change" and "priority" in record:
                        self.priorities[index] = record["priority"]
                    if op == "lease" and task.payload is not None:
                        self.handed[index, record["lease"]] = task.payload
                    if holder is not None and (task.state, task.lease) != (LEASED, holder):
                        self.ends[index, holder] = at
            if op == "lease" and changed:
                self._leases.add(lease or "")
        if changed:
            self._at = at

    # -- updates -----------------------------------------------------------------------------------

    def _indices(self, record: dict[str, Any]) -> list[int]:
        return [index for start, end in record["tasks"] for index in range(start, end)]

    def _changed(self, task: State, op: str, lease: str | None, offset: int, at: int) -> None:
        task.note(op, lease, offset, at)
        if op == "complete" and lease == task.outdated:
            self.wrong.append(f"the payload {task.payload!r} was completed by a lease that had another one")

    def _would_apply(self, kept: Kept) -> bool:
        """Whether a record that ends or extends leases applies to each of its tasks, none of which is frozen."""
        indices = self._indices(kept.record)
        for place, index in enumerate(indices):
            is_kept = index in self.frozen and (kept.record["op"] != "depends" or index not in self.shared)
            task = copy.copy(self.tasks[index]) if index < len(self.tasks) and not is_kept else None
            if task is None or task.state in (*OUTCOMES, SKIPPED):
                return False
            if not _RULES[kept.record["op"]](task, kept.record, kept.at, place):
                return False
        return True

    def _freeze(self, record: dict[str, Any]) -> None:
        self.frozen.update(self._indices(record))
        if record["op"] == "depends":
            self.shared.update(self._indices(record))

    def _prepare(self, update: str, kept: Kept) -> None:
        record = kept.record
        if any(one.record["file"] != record["file"] for one in self.prepared.get(update, ())):
            return
        if record["op"] == "insert":
            if not self._can_insert(record):
                return
            self._use_up(record, kept.offset)
        elif not self._would_apply(kept):
            return
        else:
            self._freeze(record)
        self.prepared.setdefault(update, []).append(kept)
        self.files[update] = record["file"]
        self._at = kept.at

    def _decide(self, update: str, record: dict[str, Any], at: int) -> None:
        held = self.prepared.get(update)
        if held is None or (record["op"] == "commit" and record.get("of") != len(held)):
            return
        del self.prepared[update]
        self.decided.append((update, record["op"]))
        self.frozen, self.shared = set(), set()
        for others in self.prepared.values():
            for kept in others:
                if kept.record["op"] != "insert":
                    self._freeze(kept.record)
        self._at = at
        for kept in held if record["op"] == "commit" else ():
            if kept.record["op"] == "insert":
                self._fill(kept.record, kept.offset)
            else:
                self._end(kept)

    def _commit_direct(self, held: list[Kept], record: dict[str, Any], at: int) -> None:
        if record.get("of") != len(held):
            return
        frozen, shared = set(self.frozen), set(self.shared)
        try:
            if not all(self._would_act(kept) for kept in held):
                return
        finally:
            self.frozen, self.shared = frozen, shared
        self._at = at
        for kept in held:
            if kept.record["op"] == "insert":
                self._fill(kept.record, kept.offset)
            else:
                self._end(kept)

    def _would_act(self, kept: Kept) -> bool:
        """Judge a record that is written with its `commit`. A second record of a task is void, so all are."""
        if kept.record["op"] != "insert":
            would = self._would_apply(kept)
            if would:
                self._freeze(kept.record)
            return would
        would = self._can_insert(kept.record)
        if would:
            self._use_up(kept.record, kept.offset)
        return would

    def _end(self, kept: Kept) -> None:
        """Let a record act that was judged before."""
        op, lease = kept.record["op"], kept.record.get("lease")
        for place, index in enumerate(self._indices(kept.record)):
            task = self.tasks[index]
            holder, since = task.lease if task.state == LEASED else None, task.since
            is_behind = op == "renew" and task.version > kept.offset
            if not (_only_renewed(task, kept) if op == "depends" else _RULES[op](task, kept.record, kept.at, place)):
                self.wrong.append(f"a prepared {op} does not act on task {index}, which was frozen for it")
            if is_behind:
                task.since = since
            if op != "depends":
                task.version = max(task.version, kept.offset) if op == "renew" else kept.offset
                self._changed(task, op, lease, kept.offset, kept.at)
            seen = kept.record["versions"][place] if "versions" in kept.record else kept.record.get("version")
            self.acted_in_updates.append(
                Acted(kept.record["update"], op, index, seen if lease is None else lease, kept.offset)
            )
            if holder is not None and (task.state, task.lease) != (LEASED, holder):
                self.ends[index, holder] = kept.at

    def _can_insert(self, record: dict[str, Any]) -> bool:
        is_free = len(self.tasks) <= record["first"] < TASKS_MAX and record["id"] not in self._inserts
        return is_free and self.takes and not self.sealed and not self.finished

    def _use_up(self, record: dict[str, Any], offset: int) -> None:
        while len(self.tasks) <= record["first"]:
            self.tasks.append(State(0, offset))
            self.tasks[-1].state = SKIPPED
        self._inserts.add(record["id"])

    def _fill(self, record: dict[str, Any], offset: int) -> None:
        """Put a task where its index was used up."""
        self.tasks[record["first"]] = State(record.get("available_at", 0), offset, record["at"])
        self._note(record)
        self.acted_in_updates.append(Acted(record["update"], "insert", record["first"], None, offset))

    def _insert(self, record: dict[str, Any], offset: int) -> bool:
        if not self._can_insert(record):
            return False
        while len(self.tasks) < record["first"]:
            self.tasks.append(State(0, offset))
            self.tasks[-1].state = SKIPPED
        self.tasks.append(State(record.get("available_at", 0), offset, record["at"]))
        self._note(record)
        self._inserts.add(record["id"])
        return True

    def _note(self, record: dict[str, Any]) -> None:
        self.payloads[record["first"]] = record["payload"]
        if "key" in record:
            self.keys[record["first"]] = record["key"]
        if record.get("priority") is not None:
            self.priorities[record["first"]] = record["priority"]

    def acted(self, index: int, op: str, lease: str) -> int:
        """How often a record of this kind by this lease changed the task."""
        return self.tasks[index].history.count((op, lease)) if index < len(self.tasks) else 0


def _free(task: State, at: int) -> bool:
    return task.state == AVAILABLE or task.since <= at


def _lease(task: State, record: dict[str, Any], at: int, place: int) -> bool:
    if task.since > at:
        return False
    task.state, task.lease, task.since = LEASED, record["lease"], record["until"]
    return True


def _holds(task: State, record: dict[str, Any]) -> bool:
    return task.state == LEASED and task.lease == record.get("lease")


def _renew(task: State, record: dict[str, Any], at: int, place: int) -> bool:
    if not _holds(task, record) or at >= task.since:
        return False
    task.since = record["until"]
    return True


def _complete(task: State, record: dict[str, Any], at: int, place: int) -> bool:
    if not _holds(task, record):
        return False
    task.state = COMPLETED
    return True


def _give_back(task: State, record: dict[str, Any], at: int, place: int) -> bool:
    if not _holds(task, record):
        return False
    task.state, task.since = AVAILABLE, record["available_at"]
    return True


def _revoke(task: State, record: dict[str, Any], at: int, place: int) -> bool:
    if task.state != LEASED or ("lease" in record and task.lease != record["lease"]):
        return False
    task.state, task.since = AVAILABLE, at
    return True


def _bury(task: State, record: dict[str, Any], at: int, place: int) -> bool:
    if not (_holds(task, record) if "lease" in record else _free(task, at)):
        return False
    task.state = DEAD
    return True


def _cancel(task: State, record: dict[str, Any], at: int, place: int) -> bool:
    if not (_holds(task, record) if "lease" in record else _free(task, at)):
        return False
    if "lease" not in record and record["versions"][place] != task.version:
        return False
    task.state = CANCELLED
    return True


def _replace(task: State, record: dict[str, Any], at: int, place: int) -> bool:
    if not (_holds(task, record) if "lease" in record else _free(task, at)):
        return False
    if "lease" not in record and record["version"] != task.version:
        return False
    task.payload = record["payload"]
    if "lease" not in record and task.state == LEASED:
        task.outdated = task.lease
    return True


def _change(task: State, record: dict[str, Any], at: int, place: int) -> bool:
    if not _free(task, at) or record["versions"][place] != task.version:
        return False
    if task.state == LEASED:
        task.state, task.since = AVAILABLE, at
    task.since = record.get("available_at", task.since)
    return True


def _depends(task: State, record: dict[str, Any], at: int, place: int) -> bool:
    return _holds(task, record) if "lease" in record else bool(record["versions"][place] == task.version)


def _only_renewed(task: State, kept: Kept) -> bool:
    """Return whether only renewals have changed a task since a prepared `depends` froze it.

    A renewal gives the task a new version. Comparing versions again at the `commit` would find fault with it.
    """
    changes = zip(task.history, task.changes, strict=True)
    return all(op == "renew" for (op, _), (offset, _) in changes if offset > kept.offset)


_RULES = {
    "lease": _lease,
    "renew": _renew,
    "complete": _complete,
    "release": _give_back,
    "fail": _give_back,
    "revoke": _revoke,
    "bury": _bury,
    "cancel": _cancel,
    "replace": _replace,
    "depends": _depends,
    "change": _change,
}


# -- decision files ------------------------------------------------------------------------------------------


def first_lines(data: bytes) -> dict[str, str]:
    """What the first line about each update says in a decision file."""
    first: dict[str, str] = {}
    for line in data.split(b"\n")[:-1]:
        try:
            record = orjson.loads(line)
        except ValueError:
            continue
        if record.get("op") == "gone":
            break
        if record.get("op") in ("commit", "abort"):
            first.setdefault(record["update"], record["op"])
    return first


def with_outcomes(data: bytes, outcomes: Mapping[str, str]) -> Replay:
    """A log as it will be once updates that are decided have their outcomes in it."""
    read = Replay(data)
    lines = [
        {"op": outcome, "at": 0, "update": update, "of": len(read.prepared[update])}
        for update, outcome in outcomes.items()
        if update in read.prepared
    ]
    whole = data[: data.rfind(b"\n") + 1]
    return Replay(whole + b"".join(orjson.dumps(line) + b"\n" for line in lines)) if lines else read
