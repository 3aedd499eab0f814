"""A second reading of docs/format.md, small and slow: what the bytes of a movement log say became of each task.

The judgement does not use the package's own replay: a fault in that would then be invisible.
"""

from __future__ import annotations

from typing import Any

import orjson

AVAILABLE, LEASED, COMPLETED, CANCELLED, DEAD = "available", "leased", "completed", "cancelled", "dead"
OUTCOMES = (COMPLETED, CANCELLED, DEAD)
SKIPPED = "skipped"
TASKS_MAX = 1024


class State:
    """What became of a task."""

    __slots__ = ("attempts", "born", "history", "lease", "since", "state", "version")

    def __init__(self, since: int, version: int, born: int = 0) -> None:
        self.born = born
        """When it was inserted into the log."""
        self.state, self.since, self.version = AVAILABLE, since, version
        self.lease: str | None = None
        self.attempts = 0
        self.history: list[tuple[str, str | None]] = []
        """Each record that changed it, with the lease it concerns."""


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
        elif op in _RULES:
            indices = [index for start, end in record["tasks"] for index in range(start, end)]
            for place, index in enumerate(indices):
                task = self.tasks[index] if index < len(self.tasks) else None
                holder = task.lease if task is not None and task.state == LEASED else None
                if task is not None and task.state not in (*OUTCOMES, SKIPPED) and _RULES[op](task, record, at, place):
                    task.version = offset
                    task.history.append((op, lease))
                    changed = True
                    if holder is not None and (task.state, task.lease) != (LEASED, holder):
                        self.ends[index, holder] = at
            if op == "lease" and changed:
                self._leases.add(lease or "")
        if changed:
            self._at = at

    def _insert(self, record: dict[str, Any], offset: int) -> bool:
        is_free = len(self.tasks) <= record["first"] < TASKS_MAX and record["id"] not in self._inserts
        if not is_free or not self.takes or self.sealed or self.finished:
            return False
        while len(self.tasks) < record["first"]:
            self.tasks.append(State(0, offset))
            self.tasks[-1].state = SKIPPED
        self.tasks.append(State(record.get("available_at", 0), offset, record["at"]))
        self.payloads[record["first"]] = record["payload"]
        if "key" in record:
            self.keys[record["first"]] = record["key"]
        if record.get("priority") is not None:
            self.priorities[record["first"]] = record["priority"]
        self._inserts.add(record["id"])
        return True

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


_RULES = {
    "lease": _lease,
    "renew": _renew,
    "complete": _complete,
    "release": _give_back,
    "fail": _give_back,
    "revoke": _revoke,
    "bury": _bury,
    "cancel": _cancel,
}
