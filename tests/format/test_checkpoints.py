"""Checkpoints: who begins at one agrees with who reads all; and one that is not what it says is passed over."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsqueue.format import checkpoints, movements
from fsqueue.format.replay import AVAILABLE, CANCELLED, COMPLETED, DEAD, LEASED, ReplayState
from tests import record_lines
from tests.format.test_replay_properties import lines_of, logs
from tests.simulation.checkpoint_mutations import OF_THE_FORMAT
from tests.simulation.mutations import Mutation, applied

NAME = f"{0:013d}-{'ab' * 16}-8.jsonl"
OPEN = record_lines.record("open", 1, count=8, birth=1, available_at=0, name=NAME)
WORKER: dict[str, Any] = {"host": "h", "pid": 1}


class Log:
    """The bytes of a log, written as `storage.logs.Log` writes them."""

    def __init__(self) -> None:
        self.data = b""
        self.state = ReplayState()

    def write(self, line: bytes) -> None:
        self.state.replay(line, len(self.data))
        self.data += line

    def checkpoint(self) -> int:
        """Write one now; where it stands."""
        here, state = len(self.data), self.state
        line = checkpoints.record(state, state.at, state.damaged, state.stretch, here)
        assert line
        self.data += line
        state.begin_stretch(len(self.data), len(line))
        return here

    def move(self, op: str, at: int, **fields: Any) -> None:
        self.write(record_lines.record(op, at, **fields))

    def lease(self, at: int, lease: str, *tasks: int, until: int = 50, several: bool = False) -> None:
        self.move(
            "lease", at, lease=lease, tasks=movements.to_ranges(tasks), until=until, worker=WORKER, several=several
        )


@pytest.fixture(autouse=True)
def at_every_movement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "LEAST_BYTES", 0)
    monkeypatch.setattr(checkpoints, "SHARE", 0)


def whole(data: bytes) -> ReplayState:
    state = ReplayState()
    state.replay(data, 0)
    return state


def brief(data: bytes) -> ReplayState | None:
    """What a reader knows who begins at the last checkpoint; None if there is none that can be trusted."""
    found = checkpoints.last_trusted(lambda size, offset: data[offset : offset + size], len(data))
    state = ReplayState.from_checkpoint(found) if found is not None else None
    if found is None or state is None:
        return None
    assert not state.is_whole
    state.replay(data[found.end :], found.end)
    return state


def judged(state: ReplayState) -> dict[str, Any]:
    """All that later records are judged by."""
    alive = [index for index in range(state.count) if state.state[index] not in (COMPLETED, CANCELLED)]
    return {
        "restated": orjson.loads(orjson.dumps(checkpoints.restated(state))),
        "at": state.at,
        "state": bytes(state.state),
        "left": (state.remaining, list(state.done), state.finished, state.gone, list(state.counts), state.damaged),
        "ids": set(state.ids),
        "touched": set(state.touched),
        "alive": [
            (
                state.since[index],
                state.version[index],
                state.attempts[index],
                state.charged(index),
                index in state.solo,
                state.errors.get(index),
                state.payloads.get(index),
                [lease for lease in "abcd" if state.holds(index, lease)],
                None if (holder := state.holder[index]) is None else (holder.id, holder.at, holder.span, holder.worker),
            )
            for index in alive
        ],
        "stretch": (state.stretch.since, state.stretch.sum, state.stretch.due),
    }


def chosen(state: ReplayState, at: int) -> list[Any]:
    """Return what a worker is given by one call after the other, and when it looks again."""
    given: list[Any] = [state.next_time()]
    for number in range(3):
        tasks, spent, alone = state.choose(at, 2, 0, 2)
        given.append((tasks, spent, alone))
        if tasks:
            state.lease(at, f"new{number}", tasks, at + 10, None, False, 10**9 + number)
        for index in spent:
            state.apply(movements.record("bury", at, tasks=[[index, index + 1]], reason="spent"), 10**9)
        is_left = any(state.state[index] == AVAILABLE and state.since[index] <= at for index in range(state.count))
        assert not (is_left and state.exhausted(at))
        given.append((state.next_time(), state.exhausted(at)))
    return given


@pytest.mark.slow
@given(logs(), st.data())
def test_who_begins_at_a_checkpoint_agrees_with_who_reads_all(data: bytes, draw: st.DataObject) -> None:
    log, prefixes = Log(), []
    for line in lines_of(data):
        if line.startswith(checkpoints.MARK):
            continue
        log.write(line)
        if log.state.remaining and draw.draw(st.integers(0, 2)) == 0:
            log.checkpoint()
        prefixes.append((len(log.data), judged(log.state)))
    at = draw.draw(st.integers(0, 200))
    for end, knew in prefixes:
        known = whole(log.data[:end])
        assert known.disputed == []
        assert judged(known) == knew, "who has read along agrees with who reads all anew"
        restored = brief(log.data[:end])
        if restored is None:
            assert checkpoints.MARK not in log.data[:end]
            continue
        assert restored.disputed == []
        assert judged(restored) == knew
        assert chosen(restored, at) == chosen(known, at)


def busy() -> Log:
    """A log with a task in each state, and two checkpoints."""
    log = Log()
    log.write(OPEN)
    log.lease(2, "a", 0, 1, 2)
    log.lease(2, "b", 3)
    log.move("complete", 3, lease="a", tasks=[[0, 1]])
    log.checkpoint()
    log.move("fail", 4, lease="b", tasks=[[3, 4]], available_at=9, error="no luck")
    log.move("bury", 5, lease="a", tasks=[[1, 2]], reason="hopeless")
    log.move("cancel", 6, tasks=[[4, 5]], versions=[0])
    log.checkpoint()
    return log


def test_each_state_is_restated() -> None:
    log = busy()
    state = brief(log.data)
    assert state is not None
    assert list(state.state) == [COMPLETED, DEAD, LEASED, AVAILABLE, CANCELLED, AVAILABLE, AVAILABLE, AVAILABLE]
    assert (state.errors, state.attempts[3], state.since[3]) == ({1: "hopeless", 3: "no luck"}, 1, 9)
    assert state.holds(2, "a")
    assert not state.holds(0, "a")
    assert judged(state) == judged(whole(log.data)) == judged(log.state)


def test_a_task_that_must_go_alone() -> None:
    """Its worker died when it had leased it together with another."""
    log = Log()
    log.write(OPEN)
    log.lease(2, "a", 0, 1, until=10)
    log.lease(20, "b", 0, until=30)
    log.move("release", 21, lease="b", tasks=[[0, 1]], available_at=21)
    log.checkpoint()
    state = brief(log.data)
    assert state is not None
    assert state.solo == {0}
    assert state.choose(40, 8, 0, None) == whole(log.data).choose(40, 8, 0, None) == ([0], [], True)


def test_untouched_and_finished_tasks_cost_next_to_nothing() -> None:
    log = Log()
    log.move("open", 1, count=1024, birth=1, available_at=0, name=NAME.replace("-8.", "-1024."))
    log.checkpoint()
    log.lease(2, "a", *range(1000))
    log.move("complete", 3, lease="a", tasks=[[0, 1000]])
    here = log.checkpoint()
    assert len(log.data) - here < 350


def test_a_lease_id_that_has_ended_is_forgotten_by_all_alike() -> None:
    log = busy()
    for state in (whole(log.data), brief(log.data)):
        assert state is not None
        assert state.lease(9, "b", [3], 20, None, False, 10**6) == [3]
        assert state.lease(9, "a", [5], 20, None, False, 10**6) == []


# -- one that is not what it says ---------------------------------------------------------------------


def last_place(data: bytes) -> int:
    return data.rfind(b"\n" + checkpoints.MARK) + 1


def test_a_torn_one_is_passed_over() -> None:
    log = busy()
    first = log.data.find(b"\n" + checkpoints.MARK) + 1
    for end in range(last_place(log.data), len(log.data)):
        torn = log.data[:end]
        found = checkpoints.last_trusted(lambda size, offset, torn=torn: torn[offset : offset + size], len(torn))
        assert found is not None
        assert found.here == first
        closed = torn + movements.VOID
        state = brief(closed)
        assert state is not None
        assert judged(state) == judged(whole(closed))


def test_a_misplaced_one_is_passed_over() -> None:
    """It was written for another place: a client without a lock has written where the file ended before."""
    log = busy()
    line = log.data[last_place(log.data) :]
    other = record_lines.record("revoke", 7, tasks=[[2, 3]])
    for data in (log.data + other + line, log.data[: last_place(log.data)] + other + line, log.data + line):
        state = brief(data)
        assert state is not None
        assert judged(state) == judged(whole(data))
        assert whole(data).stretch.since < len(data)


def test_one_whose_records_were_overwritten_is_passed_over() -> None:
    """A and its checkpoint at X; then B, shorter than A, at the same X: the checkpoint is still where it says."""
    log = busy()
    before = len(log.data)
    log.lease(7, "c", 5, 6, until=999)
    log.checkpoint()
    stale = record_lines.record("move", 7)
    data = log.data[:before] + stale + log.data[before + len(stale) :]
    state, known = brief(data), whole(data)
    assert state is not None
    assert not known.holds(5, "c")
    assert not state.holds(5, "c")
    assert known.disputed == []
    assert judged(state) == judged(known)


@pytest.mark.parametrize("field", ["since", "here", "sum"])
def test_one_with_a_wrong_field_is_passed_over(field: str) -> None:
    log = busy()
    record = orjson.loads(log.data[last_place(log.data) :])
    for wrong in (record[field] + 1, -1, None, "x", 10**30):
        line = orjson.dumps(record | {field: wrong} if wrong != 10**30 else record | {field: 2**63}) + b"\n"
        data = log.data[: last_place(log.data)] + line
        state = brief(data)
        assert state is not None
        assert state.stretch.since < last_place(data)
        assert judged(state) == judged(whole(data))


def test_one_that_restates_something_else_is_disputed_by_who_knows_better() -> None:
    log = busy()
    record = orjson.loads(log.data[last_place(log.data) :])
    for change in (
        {"completed": []},
        {"cancelled": [[4, 5], [6, 7]]},
        {"touched": record["touched"][:-1]},
        {"names": []},
        {"damaged": 1},
        {"at": 7},
        {"available_at": 1},
        {"version": 5},
    ):
        data = log.data[: last_place(log.data)] + orjson.dumps(record | change) + b"\n"
        assert whole(data).disputed == [last_place(data)]


WRONG: list[dict[str, Any]] = [
    {"count": 0.5}, {"count": -1}, {"count": None}, {"completed": [[0, 9]]}, {"completed": [[2, 1]]},
    {"completed": [[0, 2]], "cancelled": [[1, 3]]}, {"completed": 5}, {"touched": [{"state": "x"}]}, {"touched": [5]},
    {"touched": {}}, {"leases": []}, {"leases": None}, {"leases": [{"lease": 5}]}, {"names": [5]}, {"names": 5},
    {"at": "x"}, {"damaged": None}, {"version": []}, {"count": 1025}, {"count": 10**12}, {"completed": [[0, 1]] * 9},
    {"completed": [[4, 5], [0, 1]]}, {"at": 10**13}, {"available_at": 10**14 + 1}, {"version": 10**6},
    {"damaged": 10**6}, {"names": ["../../etc/passwd"]}, {"names": [NAME] * 17},
]  # fmt: skip
IN_A_GROUP: list[dict[str, Any]] = [
    {"since": 10**14 + 1}, {"version": 2**63}, {"attempts": 2**63}, {"tasks": [[0, 1]] * 9},
]  # fmt: skip
IN_A_LEASE: list[dict[str, Any]] = [{"at": 10**13}, {"span": 10**14 + 1}, {"span": -1}]


@pytest.mark.parametrize("change", WRONG, ids=str)
def test_one_of_the_wrong_kind_is_no_beginning(change: dict[str, Any]) -> None:
    log = busy()
    record = orjson.loads(log.data[last_place(log.data) :])
    data = log.data[: last_place(log.data)] + orjson.dumps(record | change) + b"\n"
    assert ReplayState.from_checkpoint(checkpoints.Found(record | change, last_place(data), len(data))) is None
    whole(data)


@pytest.mark.parametrize(
    ("field", "change"), [("touched", one) for one in IN_A_GROUP] + [("leases", one) for one in IN_A_LEASE], ids=str
)
def test_an_entry_that_no_records_come_to_is_no_beginning(field: str, change: dict[str, Any]) -> None:
    log = busy()
    record = orjson.loads(log.data[last_place(log.data) :])
    record[field][0].update(change)
    data = log.data[: last_place(log.data)] + orjson.dumps(record) + b"\n"
    assert ReplayState.from_checkpoint(checkpoints.Found(record, last_place(data), len(data))) is None
    whole(data)


def test_an_available_task_that_a_lease_holds_is_no_beginning() -> None:
    log = busy()
    record = orjson.loads(log.data[last_place(log.data) :])
    next(entry for entry in record["touched"] if "lease" in entry and entry["state"] == "leased")["state"] = "available"
    found = checkpoints.Found(record, last_place(log.data), len(log.data))
    assert ReplayState.from_checkpoint(found) is None


@pytest.mark.parametrize(
    "change",
    [{"count": 1 << 33}, {"completed": [[0, 1024]] * 200_000}, {"names": [f"n{number}" for number in range(100_000)]}],
    ids=["count", "ranges", "names"],
)
def test_garbage_costs_no_more_than_its_length(change: dict[str, Any]) -> None:
    """Once a checkpoint with so many names took minutes, and one with so large a count all memory."""
    log = Log()
    log.write(record_lines.record("open", 1, count=1024, birth=1, available_at=0, name=NAME))
    log.lease(2, "a", 0)
    place = log.checkpoint()
    record = orjson.loads(log.data[place:]) | change
    found = checkpoints.Found(record, place, place + len(orjson.dumps(record)))
    tracemalloc.start()
    try:
        begun = time.thread_time()
        assert ReplayState.from_checkpoint(found) is None
        assert time.thread_time() - begun < 5
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_zeros_between_records_need_not_be_summed() -> None:
    """A power loss has left a hole: who has read it in pieces, and who has read all of it, have the same sum."""
    log = busy()
    hole = bytes(3000)
    begin = len(log.data)
    log.data += hole
    log.state.stretch.cover(hole)
    log.data += movements.VOID
    log.state.damaged += 1
    log.state.stretch.cover(movements.VOID)
    log.lease(8, "z", 6)
    log.checkpoint()
    log.move("move", 9)
    pieces = [(0, log.data[:begin]), (begin + len(hole), log.data[begin + len(hole) :])]
    known = ReplayState()
    known.replay_pieces(pieces, 0)
    state = brief(log.data)
    assert state is not None
    assert state.stretch.since > begin
    assert judged(known) == judged(state) == judged(log.state)


def test_the_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "WINDOWS", (64, 4096))
    log = busy()
    size = len(log.data)
    read: list[int] = []

    def reading(length: int, offset: int) -> bytes:
        read.append(length)
        return data[offset : offset + length]

    data = log.data
    assert checkpoints.last_trusted(reading, size, windows=checkpoints.WINDOWS) is not None
    data += b"x" * 5000 + b"\n"
    read.clear()
    assert checkpoints.last_trusted(reading, len(data), windows=checkpoints.WINDOWS) is None
    assert read == [64, 4096]
    line = log.data[last_place(log.data) :]
    data = log.data + 20 * line  # none of them stands where it says
    assert checkpoints.last_trusted(reading, len(data)) is None


def test_one_of_before_a_time_or_the_oldest_that_is_near() -> None:
    log = busy()
    second = last_place(log.data)
    log.lease(30, "c", 5)
    third = log.checkpoint()
    log.lease(40, "d", 6)
    fourth = log.checkpoint()

    def last(before_ms: int | None, window: int = 1 << 20) -> int | None:
        data = log.data
        found = checkpoints.last_trusted(
            lambda size, offset: data[offset : offset + size], len(data), before_ms, [window]
        )
        return None if found is None else found.here

    first = log.data.find(b"\n" + checkpoints.MARK) + 1
    assert [last(before_ms) for before_ms in (None, 41, 40, 30, 4)] == [fourth, fourth, third, second, first]
    assert last(3) is None, "all of it was read"
    assert last(3, len(log.data) - first - 10) > first, "the oldest of those that are near"


@pytest.mark.parametrize("mutation", OF_THE_FORMAT, ids=lambda mutation: mutation.name)
def test_these_tests_can_fail(mutation: Mutation) -> None:
    """A mutation of the code that no simulated story catches is caught here."""
    failed = []
    with applied(mutation):
        for test in (
            test_a_misplaced_one_is_passed_over,
            test_one_whose_records_were_overwritten_is_passed_over,
            test_a_task_that_must_go_alone,
            test_each_state_is_restated,
        ):
            try:
                test()
            except AssertionError:
                failed.append(test.__name__)
    assert failed
