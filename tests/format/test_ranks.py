"""Choosing by rank: the most urgent available tasks first, whatever happened to them before."""

from __future__ import annotations

import copy
import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsqueue.format import checkpoints, keys, movements, priority, task_file
from fsqueue.format.checkpoints import Found
from fsqueue.format.names import TaskFileName
from fsqueue.format.priority import LAST, Priority, rank_of
from fsqueue.format.replay import AVAILABLE, ReplayState
from fsqueue.format.task_states import LEASED
from tests import record_lines
from tests.levels import how_many

BATCH = "ab" * 16
MARGIN = 5
PRIORITIES: list[Priority | None] = [None, 1, 2, 10, -3, "a", "b", ""]


class Tape:
    """A log of a batch, written as a process writes it, and the state of that process."""

    def __init__(self, priorities: list[Priority | None], in_log: bool) -> None:
        self.state, self.data, self.at = ReplayState(), b"", 1
        self.priorities: dict[int, Priority] = {}
        self.in_log = in_log
        name = TaskFileName(0, BATCH, 0 if in_log else len(priorities), "0", -1 if in_log else None)  # type: ignore[arg-type]
        inserts = "d" if in_log else None
        self.write("open", count=name.count, birth=1, available_at=0, name=str(name), inserts=inserts)
        for each in priorities:
            self.insert(each, 0)
        if not in_log:
            self.state.rank_tasks(self.priorities)

    def write(self, op: str, **fields: Any) -> None:
        line = record_lines.record(op, self.at, **fields)
        self.state.replay(line, len(self.data))
        self.data += line

    def insert(self, given: Priority | None, delay: int) -> None:
        index = self.state.count if self.in_log else len(self.priorities)
        if self.in_log:
            more: dict[str, Any] = {"priority": given} if given is not None else {}
            more |= {"available_at": self.at + delay} if delay else {}
            self.write("insert", id=f"i{index}", first=index, payload=index, **more)
        if given is not None:
            self.priorities[index] = given

    def anew(self) -> ReplayState:
        """What a process knows that replays all of it."""
        state = ReplayState()
        state.replay(self.data, 0)
        if not self.in_log:
            state.rank_tasks(self.priorities)
        return state

    def restored(self) -> ReplayState | None:
        """What a process knows that begins at a checkpoint at the end."""
        found = self._unranked()
        if found is not None and not self.in_log:
            found.rank_tasks(self.priorities)
        return found

    def _unranked(self) -> ReplayState | None:
        state = self.anew()
        line = checkpoints.record(state, state.at, 0, state.stretch, len(self.data))
        record = orjson.loads(line)
        assert checkpoints.agrees(self.anew(), state.at, 0, record)
        return ReplayState.from_checkpoint(Found(record, len(self.data), len(self.data) + len(line)))

    def skipped(self, known: ReplayState) -> ReplayState | None:
        """What a process knows that goes on from a checkpoint at the end, and knew an earlier state."""
        found = self.restored() if self.in_log else self._unranked()
        if found is not None and not self.in_log:
            found.take_over_ranks(known)
        return found

    def free(self, margin: int = MARGIN) -> list[int]:
        """The tasks that may be taken, by definition, in the order in which they should be."""
        state, found = self.state, []
        for index in range(state.count):
            holder = state.holder[index]
            if state.state[index] == AVAILABLE and state.since[index] <= self.at:
                found.append(index)
            elif state.state[index] == LEASED and holder is not None:
                found += [index] * (state.since[index] + min(margin, holder.span // 10) <= self.at)
        return sorted(found, key=lambda index: (rank_of(self.priorities.get(index)), index))

    def lonely(self, index: int) -> bool:
        holder = self.state.holder[index]
        expired = self.state.state[index] == LEASED and holder is not None and not holder.is_alone
        return index in self.state.solo or expired


def test_a_task_file_tells_the_priorities() -> None:
    lines = [
        b'{"payload":1}',
        b'{"payload":2,"priority":7}',
        b'{"payload":"\\"priority\\":3"}',
        b'{"payload":{"priority":3}}',
        b'{"payload":4,"priority":true}',
        b'{"payload":4,"priority":',
        b'{"payload":5,"priority":"x"}',
        b'["priority"]',
    ]
    assert priority.in_lines(lines) == {1: 7, 6: "x"}
    assert priority.ranks_in_lines(lines, range(len(lines) + 1)) == {1: rank_of(7), 6: rank_of("x")}


TEXTS = ['","priority":5}', ',"priority":"a"', "priority"]
WRITTEN = st.recursive(
    st.one_of(st.integers(0, 99), st.text(max_size=5), st.sampled_from(TEXTS)),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "priority"]), inner, max_size=2),
    max_leaves=4,
)


@given(
    st.lists(
        st.tuples(
            WRITTEN,
            st.one_of(st.none(), st.integers(priority.INT_MIN, priority.INT_MAX), st.integers(-2, 10**6), st.text()),
            st.sampled_from([None, "k", '"}']),
        ),
        max_size=5,
    ),
    st.booleans(),
)
@settings(max_examples=how_many(12, 300))
def test_ranks_are_read_as_parsing_would_read_them(tasks: list[tuple[Any, Any, Any]], spaced: bool) -> None:
    lines = []
    for payload, given_priority, key in tasks:
        line = task_file.encode_task(payload, 1 << 20, None, given_priority)[:-1]
        line = line if key is None else keys.with_key(line + b"\n", key)[:-1]
        lines.append(json.dumps(json.loads(line)).encode() if spaced else line)
    found = {index: rank_of(given) for index, given in priority.in_lines(lines).items()}
    assert priority.ranks_in_lines(lines, range(len(lines))) == found
    assert found == {index: rank_of(given) for index, (_, given, _) in enumerate(tasks) if given is not None}
    assert priority.ranks_in_lines(lines, range(1, len(lines))) == {i: rank for i, rank in found.items() if i}


@given(
    st.lists(st.sampled_from(PRIORITIES), min_size=1, max_size=8).filter(any),
    st.booleans(),
    st.lists(
        st.one_of(
            st.tuples(st.just("lease"), st.integers(1, 4), st.sampled_from([None, *PRIORITIES])),
            st.tuples(st.just("insert"), st.integers(0, 1), st.sampled_from(PRIORITIES)),
            st.tuples(st.sampled_from(["complete", "release", "fail", "renew"]), st.integers(0, 30), st.none()),
            st.tuples(st.just("wait"), st.integers(1, 40), st.none()),
        ),
        max_size=20,
    ),
    st.booleans(),
)
@settings(max_examples=how_many(12, 200))
def test_choose_takes_the_most_urgent(
    priorities: list[Priority | None], in_log: bool, steps: list[tuple[str, int, Any]], solo: bool
) -> None:
    tape = Tape(priorities, in_log)
    tape.state.rank_tasks(tape.priorities)  # also where no task in a log has a priority yet
    held: list[tuple[str, list[int]]] = []
    earlier = tape.anew()
    for number, (step, size, bound) in enumerate(steps):
        state = tape.state
        if number == len(steps) // 2:
            earlier = tape.anew()
            earlier.choose(tape.at, 0, MARGIN, None)
        if step == "wait":
            tape.at += size
        elif step == "insert":
            if in_log:
                tape.insert(bound, 10 * size)
        elif step == "lease":
            limit = rank_of(bound) if number % 2 else LAST
            free = [index for index in tape.free() if rank_of(tape.priorities.get(index)) <= limit]
            alone = [index for index in free if tape.lonely(index)]
            if solo and free and free[0] in alone:
                wanted = free[:1]
            else:
                wanted = [index for index in free if index not in alone][:size]
                if not wanted and solo:
                    wanted = alone[:1]
            others = {1: tape.anew(), 2: tape.restored(), 3: tape.skipped(copy.deepcopy(earlier))}
            tasks, spent, is_alone = state.choose(tape.at, size, MARGIN, None, solo, limit)
            assert (tasks, spent) == (wanted, [])
            for other in others.values():
                if other is not None and other.is_ranked:
                    assert other.choose(tape.at, size, MARGIN, None, solo, limit) == (tasks, spent, is_alone)
            rest = [index for index in tape.free() if index not in tasks]
            left = rank_of(tape.priorities.get(rest[0])) if rest else None
            assert state.head(tape.at, MARGIN) == left
            if tasks:
                lease = f"l{number}"
                several = size > 1 and not is_alone
                tape.write(
                    "lease", lease=lease, tasks=movements.to_ranges(sorted(tasks)), until=tape.at + 60, worker={},
                    several=several or None,
                )  # fmt: skip
                held.append((lease, tasks))
            waiting = any(state.state[i] == AVAILABLE and state.since[i] <= tape.at for i in range(state.count))
            assert not (waiting and state.exhausted(tape.at))
            assert state.exhausted(tape.at) or tape.free(0), "what is leased may run out"
        elif held:
            lease, tasks = held.pop()
            more: dict[str, Any] = {"tasks": movements.to_ranges(sorted(tasks)), "lease": lease}
            if step in ("release", "fail"):
                more["available_at"] = tape.at + size
            if step == "fail":
                more["error"] = "e"
            if step == "renew":
                more["until"] = tape.at + 60 + size
                held.append((lease, tasks))
            tape.write(step, **more)
        assert state.next_time() == tape.anew().next_time()


@given(st.lists(st.sampled_from(PRIORITIES), min_size=1, max_size=9), st.integers(0, 9), st.integers(0, 9))
def test_ranks_that_are_learned_late_count_from_then_on(
    priorities: list[Priority | None], before: int, back: int
) -> None:
    """A process that did not know of priorities has leased some in their order, and given one back."""
    state = ReplayState()
    state.begin(len(priorities), 0, 1)
    state.opened = True
    tasks, _, _ = state.choose(5, before, 0, None)
    if tasks:
        state.lease(5, "l", tasks, 50, None, True, 2)
    returned = tasks[back : back + 1]
    if returned:
        release = movements.record("release", 6, lease="l", tasks=movements.to_ranges(returned), available_at=6)
        assert state.apply(release, 3)
    state.rank_tasks(dict(enumerate(priorities)))
    left = sorted({*range(len(priorities))} - set(tasks) | set(returned), key=lambda i: (rank_of(priorities[i]), i))
    assert state.choose(7, 99, 0, None)[0] == left


@given(st.lists(st.sampled_from(PRIORITIES), min_size=1, max_size=9), st.sampled_from(PRIORITIES), st.integers(1, 9))
def test_at_random_all_are_chosen_that_are_urgent_enough(
    priorities: list[Priority | None], bound: Priority | None, most: int
) -> None:
    tape = Tape(priorities, True)
    tape.state.rank_tasks(tape.priorities)
    may = {index for index, given in enumerate(priorities) if rank_of(given) <= rank_of(bound)}
    found: list[int] = []
    for number in range(len(priorities)):
        tasks, spent, alone = tape.state.choose_any(
            9, most, 0, None, True, rank_of(bound), lambda tasks: [*tasks][::-1]
        )
        assert (spent, alone) == ([], False)
        assert len(tasks) == min(most, len(may) - len(found))
        if tasks:
            assert tape.state.lease(9, f"l{number}", sorted(tasks), 50, None, True, 9) == sorted(tasks)
        found += tasks
    assert set(found) == may
    assert len(found) == len(may)


def test_without_ranks_a_limit_lets_all_or_nothing_pass() -> None:
    state = ReplayState()
    state.begin(3, 0, 1)
    assert state.choose(5, 2, 0, None, True, rank_of("z")) == ([], [], False)
    assert state.head(5, 0) == LAST
    assert state.choose(5, 2, 0, None, True, LAST) == ([0, 1], [], False)


@pytest.mark.parametrize("several", [True, False])
def test_without_ranks_what_a_lease_leaves_that_ran_out_is_the_head(several: bool) -> None:
    """None would say that the batch has nothing: a worker would pass it over until it lists the shard again."""
    state = ReplayState()
    state.begin(2, 0, 1)
    state.opened = True
    assert state.choose(5, 2, MARGIN, None)[0] == [0, 1]
    state.lease(5, "l", [0, 1], 105, None, several, 2)
    assert state.head(104, MARGIN) is None
    assert state.choose(110, 2, MARGIN, None, True, rank_of("z"))[0] == []
    assert state.head(110, MARGIN) == LAST
    assert state.choose(110, 2, MARGIN, None, False, LAST)[0] == []
    assert state.head(110, MARGIN) == LAST
    assert state.choose(110, 2, MARGIN, None, True, LAST)[0] == [0]


@pytest.mark.parametrize(
    "wrong",
    [
        7, {}, [[0]], [[0, 1, 2]], [["0", 1]], [[0, None]], [[0, True]], [[0, 1.5]], [[0, "x" * 1025]], [[5, 1]],
        [[-1, 1]], [[1, 1], [0, 1]], [[0, 1], [0, 2]], [[0, 1 << 63]], [7], "ab",
    ],
)  # fmt: skip
def test_damaged_priorities_in_a_checkpoint_are_refused(wrong: Any) -> None:
    tape = Tape([1, None, 2], True)
    line = checkpoints.record(tape.state, 1, 0, tape.state.stretch, len(tape.data))
    record = orjson.loads(line)
    assert record["priorities"] == [[0, 1], [2, 2]]
    assert ReplayState.from_checkpoint(Found(record, len(tape.data), len(tape.data) + 9)) is not None
    damaged = Found(record | {"priorities": wrong}, len(tape.data), len(tape.data) + 9)
    assert ReplayState.from_checkpoint(damaged) is None
    assert not checkpoints.agrees(tape.state, 1, 0, damaged.record)


def test_a_checkpoint_of_a_batch_without_priorities_says_nothing_of_them() -> None:
    tape = Tape([None, None], True)
    assert "priorities" not in checkpoints.restated(tape.state)
    tape = Tape([1, 2], False)
    assert "priorities" not in checkpoints.restated(tape.state), "those of a task file stand in the file"
