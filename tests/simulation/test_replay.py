"""The judge's own reading of a log, and the package's: of logs with records of updates they say the same."""

from __future__ import annotations

from random import Random
from typing import Any

import orjson
import pytest

from fsqueue.format import state_checks
from fsqueue.format.replay import ReplayState
from tests import record_lines
from tests.simulation import replay
from tests.simulation.invariants import STATES
from tests.simulation.replay import AVAILABLE, LEASED, Kept, Replay, State

pytestmark = pytest.mark.once

UPDATES = ("0123456789abcdef", "f" * 16)
FILES = ("0193f0c2a4b97c31a2d5e8f001234567", "0193f0c2a4b97c31a2d5e8f00123456f")


class Writer:
    """Writes a log of an open batch, of records that often apply."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.at, self.inserts, self.leases = 1000, 0, 0
        self.count = 0
        self.data = b""
        self._put("open", count=0, available_at=0, inserts="here")

    def _put(self, op: str, **fields: Any) -> None:
        self.data += record_lines.record(op, self.at, **fields)

    def _part(self, update: str) -> dict[str, Any]:
        file = FILES[UPDATES.index(update)] if self.rng.random() < 0.95 else self.rng.choice(FILES)
        return {"update": update, "file": file, "patience": 5000}

    def _tasks(self) -> list[list[int]]:
        count = max(1, len(Replay(self.data).tasks))  # a record that names more is void as a whole
        start = self.rng.randrange(count)
        return [[start, min(start + self.rng.choice((1, 1, 1, 2)), count)]]

    def _lease(self) -> str:
        return f"{self.rng.randint(1, max(self.leases, 1)):016x}"

    def _of_update(self, part: dict[str, Any]) -> None:
        rng = self.rng
        kinds = ("insert", "insert", "complete", "renew", "release", "fail", "bury", "cancel", "replace", "depends")
        match rng.choice(kinds):
            case "insert":
                self.insert(part)
            case "complete":
                self._put("complete", lease=self._lease(), tasks=self._tasks(), **part)
            case "renew":
                self._put("renew", lease=self._lease(), tasks=self._tasks(), until=self.at + rng.randint(0, 90), **part)
            case "release":
                self._put("release", lease=self._lease(), tasks=self._tasks(), available_at=self.at, **part)
            case "fail":
                self._put("fail", lease=self._lease(), tasks=self._tasks(), available_at=self.at, error="e", **part)
            case "bury":
                self._put("bury", lease=self._lease(), tasks=self._tasks(), reason="r", **part)
            case "cancel":
                tasks = self._tasks()
                self._put("cancel", tasks=tasks, **self._seen(tasks, "versions"), **part)
            case "depends":
                tasks = self._tasks()
                self._put("depends", tasks=tasks, **self._seen(tasks, "versions"), **part)
            case "replace":
                [[start, _]] = self._tasks()
                tasks = [[start, start + 1]]
                self._put("replace", tasks=tasks, payload=f"new{rng.random()}", **self._seen(tasks, "version"), **part)

    def _seen(self, tasks: list[list[int]], field: str) -> dict[str, Any]:
        """What such a record says of who may change the tasks: a lease; or the versions, which are right most times."""
        if self.rng.random() < 0.5:
            return {"lease": self._lease()}
        there = Replay(self.data).tasks
        [[start, end]] = tasks
        versions = [there[index].version if index < len(there) else 0 for index in range(start, end)]
        if self.rng.random() < 0.2:
            versions[-1] += 1
        return {field: versions if field == "versions" else versions[0]}

    def insert(self, part: dict[str, Any]) -> None:
        """Insert at the next index most times."""
        self.inserts += 1
        first = self.count + self.rng.choice((0, 0, 0, 0, 1, -1))
        line = {"op": "insert", "at": self.at, "id": f"{self.inserts:016x}", "first": max(first, 0), **part}
        self.data += orjson.dumps({**line, "payload": self.inserts}) + b"\n"
        self.count = max(self.count, first + 1)

    def step(self) -> None:
        rng = self.rng
        self.at += rng.choice((0, 1, 5, 40))
        update, luck = rng.choice(UPDATES), rng.random()
        if luck < 0.15:
            self.insert({})
        elif luck < 0.4:
            self.leases += 1
            fields = {"lease": f"{self.leases:016x}", "worker": {}, "until": self.at + rng.choice((20, 200))}
            self._put("lease", tasks=self._tasks(), **fields)
        elif luck < 0.6:
            self._of_update(self._part(update))
        elif luck < 0.7:
            self._put("commit", update=update, of=rng.choice((1, 1, 2, 3)))
        elif luck < 0.75:
            self._put("abort", update=update)
        elif luck < 0.87:
            number, update = rng.choice((1, 2)), f"{rng.getrandbits(64):016x}"
            for _ in range(number):
                self._of_update({"update": update})
            self._put("commit", update=update, of=rng.choice((number, number, number, 3)))
        elif luck < 0.89:
            self.data += b"~\n"
        elif luck < 0.9:
            self._put("seal")
        else:
            self._of_update({})


@pytest.mark.parametrize("first", [0, 1000])
def test_the_judge_and_the_package_read_the_same_in_a_log_with_updates(first: int) -> None:
    acted = 0
    for seed in range(first, first + 150):
        writer = Writer(seed)
        for _ in range(writer.rng.randint(3, 30)):
            writer.step()
        told, state = Replay(writer.data), ReplayState()
        state.replay(writer.data, 0)
        acted += len(told.decided)
        assert state.prepared.keys() == told.prepared.keys(), seed
        assert {index for index in range(state.count) if state.frozen.get(index)} == told.frozen, seed
        assert (state.shared.keys(), list(state_checks.broken(state))) == (told.shared, []), seed
        for index, task in enumerate(told.tasks):
            holder = state.holder[index]
            own = STATES[state.state[index]], state.version[index]
            assert own == (task.state, task.version), (seed, index)
            if task.state in (AVAILABLE, LEASED):
                assert state.since[index] == task.since, (seed, index)
                assert state.payloads.get(index) == task.payload, (seed, index)
            if task.state == LEASED:
                assert holder is not None
                assert holder.id == task.lease, (seed, index)
    assert acted > 20


@pytest.mark.parametrize("by", ["versions", "lease"])
def test_a_lease_may_be_renewed_while_an_update_depends_on_its_task(by: str) -> None:
    writer = Writer(0)
    writer.insert({})
    leased = len(writer.data)
    writer._put("lease", lease="l", tasks=[[0, 1]], worker={}, until=1100)
    seen = {"versions": [leased]} if by == "versions" else {"lease": "l"}
    writer._put("depends", tasks=[[0, 1]], **seen, update=UPDATES[0], file=FILES[0], patience=5000)
    renewed = len(writer.data)
    writer._put("renew", lease="l", tasks=[[0, 1]], until=1200)
    writer._put("commit", update=UPDATES[0], of=1)
    told = Replay(writer.data)
    assert (told.wrong, told.decided, told.tasks[0].version) == ([], [(UPDATES[0], "commit")], renewed)


def test_the_judge_tells_of_a_task_that_was_changed_while_an_update_depended_on_it() -> None:
    task = State(0, 0)
    kept = Kept({"op": "depends"}, 10, 1000)
    task.note("renew", "l", 20, 1000)
    assert replay._only_renewed(task, kept)
    task.note("release", "l", 30, 1000)
    assert not replay._only_renewed(task, kept)
