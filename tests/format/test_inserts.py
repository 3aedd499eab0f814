"""Tasks in the log: what an `insert` and a `seal` do, when they are void, and what checkpoints say of them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsqueue.format import checkpoints, movements, names, task_file
from fsqueue.format.replay import AVAILABLE, CANCELLED, COMPLETED, DEAD, LEASED, SKIPPED, ReplayState
from tests import record_lines
from tests.format import test_checkpoints as brief_readers
from tests.format.test_replay_properties import folded, json_or_none, lines_of, loose, noise, parts
from tests.support import full_state

BATCH = names.Batch("0193f0c2a4b97c31a2d5e8f001234567")
OPEN_NAME = str(names.open_batch_file(BATCH))
LINE = b'{"payload":"x"}\n'


class OpenTape:
    """The log of an open batch being written, and the replay state that follows it."""

    def __init__(self, **fields: Any) -> None:
        self.state = ReplayState()
        self.data = b""
        self.put("open", 100, **{"count": 0, "inserts": "boot", "name": OPEN_NAME} | fields)

    def raw(self, data: bytes) -> int:
        offset = len(self.data)
        self.data += data
        self.state.replay(data, offset)
        return offset

    def put(self, op: str, at: int, **fields: Any) -> int:
        return self.raw(record_lines.record(op, at, **fields))

    def insert(self, identity: str, first: Any, at: int = 101, available_at: int = 0, line: bytes = LINE) -> int:
        return self.raw(record_lines.insert(at, identity, first, line, available_at))

    def lease(self, at: int, lease: str, *tasks: int, until: int = 500) -> int:
        return self.put("lease", at, lease=lease, tasks=movements.to_ranges(tasks), until=until)

    @property
    def states(self) -> list[int]:
        return list(self.state.state)


@pytest.fixture
def tape() -> OpenTape:
    return OpenTape()


def test_an_open_batch_begins_without_tasks(tape: OpenTape) -> None:
    assert (tape.state.count, tape.state.remaining, tape.state.opened, tape.state.takes_inserts) == (0, 0, True, True)
    assert tape.state.inserted_at == 100
    assert tape.state.next_time() is None
    assert tape.state.choose(200, 1, 0, None) == ([], [], False)


def test_an_insert_adds_a_task_whose_version_is_its_offset(tape: OpenTape) -> None:
    offsets = [tape.insert("a", 0), tape.insert("b", 1, at=150)]
    assert tape.states == [AVAILABLE, AVAILABLE]
    assert tape.state.version == offsets
    assert tape.state.places == dict(enumerate(offsets))
    assert (tape.state.remaining, tape.state.inserted_at, tape.state.at) == (2, 150, 150)
    assert tape.state.choose(150, 5, 0, None) == ([0, 1], [], False)


def test_a_delayed_insert_is_leased_when_it_is_due(tape: OpenTape) -> None:
    tape.insert("a", 0, available_at=300)
    tape.insert("b", 1)
    assert tape.state.next_time() == 0
    assert tape.state.choose(200, 5, 0, None)[0] == [1]
    tape.lease(200, "l", 1)
    assert tape.state.next_time() == 300
    tape.lease(250, "early", 0)
    assert tape.states == [AVAILABLE, LEASED]
    assert tape.state.choose(300, 5, 0, None)[0] == [0]


@pytest.mark.parametrize(
    "void",
    [
        record_lines.insert(102, "a", 1, LINE),  # the id is known
        record_lines.insert(102, "b", 0, LINE),  # the index is taken
        record_lines.insert(102, "b", 1024, LINE),
        record_lines.insert(102, "b", -1, LINE),
        b'{"op":"insert","at":102,"id":"b","first":1}\n',
        b'{"op":"insert","at":102,"id":"b","payload":1}\n',
        b'{"op":"insert","at":102,"first":1,"payload":1}\n',
        b'{"op":"insert","at":102,"id":7,"first":1,"payload":1}\n',
        b'{"op":"insert","at":102,"id":"b","first":true,"payload":1}\n',
        b'{"op":"insert","at":102,"id":"b","first":"1","payload":1}\n',
        b'{"op":"insert","at":102,"id":"b","first":1.0,"payload":1}\n',
        b'{"op":"insert","at":102,"id":"b","first":null,"payload":1}\n',
        b'{"op":"insert","at":102,"id":"b","first":1,"available_at":-1,"payload":1}\n',
        b'{"op":"insert","at":102,"id":"b","first":1,"available_at":"1","payload":1}\n',
        b'{"op":"insert","at":102,"id":"b","first":1,"payload":1}~\n',
        b'{"op":"insert","id":"b","first":1,"payload":1}\n',
    ],
)
def test_an_insert_that_does_not_apply_is_as_if_never_written(tape: OpenTape, void: bytes) -> None:
    tape.insert("a", 0)
    before = full_state(tape.state) | {"places": dict(tape.state.places)}
    tape.raw(void)
    after = full_state(tape.state) | {"places": dict(tape.state.places)}
    before.pop("damaged"), after.pop("damaged")
    assert after == before


def test_an_insert_without_a_batch_that_takes_inserts_is_void() -> None:
    for record in (b"", record_lines.record("open", 1, count=2)):
        state = ReplayState()
        state.replay(record + record_lines.insert(2, "a", 2, LINE) + record_lines.insert(2, "a", 0, LINE), 0)
        assert state.count == (2 if record else 0)
        assert not state.places


@pytest.mark.parametrize("count", [1, 7, -1, None, "0", True, 0.0])
def test_an_open_with_inserts_has_no_tasks_of_its_own(count: object) -> None:
    state = ReplayState()
    state.replay(json.dumps({"op": "open", "at": 1, "count": count, "inserts": "boot"}).encode() + b"\n", 0)
    assert not state.opened
    assert state.inserts is None


@pytest.mark.parametrize("inserts", [7, True, [], {"boot": 1}])
def test_an_open_whose_inserts_are_no_text_is_void(inserts: object) -> None:
    state = ReplayState()
    state.replay(json.dumps({"op": "open", "at": 1, "count": 0, "inserts": inserts}).encode() + b"\n", 0)
    assert not state.opened


def test_an_open_without_inserts_has_tasks() -> None:
    state = ReplayState()
    state.replay(record_lines.record("open", 1, count=0), 0)
    assert not state.opened


def test_indices_that_an_insert_jumps_over_are_no_tasks(tape: OpenTape) -> None:
    tape.insert("a", 0)
    offset = tape.insert("d", 3)
    assert tape.states == [AVAILABLE, SKIPPED, SKIPPED, AVAILABLE]
    assert (tape.state.count, tape.state.remaining) == (4, 2)
    assert tape.state.places[3] == offset
    assert tape.state.choose(200, 9, 0, None)[0] == [0, 3]
    tape.insert("b", 1)  # late: it stays without effect
    tape.put("lease", 200, lease="l", tasks=[[0, 4]], until=500)
    assert tape.states == [LEASED, SKIPPED, SKIPPED, LEASED]
    version = list(tape.state.version)
    for record in (
        {"op": "bury", "tasks": [[1, 3]], "reason": "r"},
        {"op": "cancel", "tasks": [[1, 3]], "versions": version[1:3]},
        {"op": "revoke", "tasks": [[1, 3]]},
        {"op": "replace", "tasks": [[1, 2]], "version": version[1], "payload": 1},
        {"op": "complete", "tasks": [[1, 3]], "lease": "l"},
    ):
        tape.put(at=201, **record)
        assert tape.states == [LEASED, SKIPPED, SKIPPED, LEASED]
    tape.put("complete", 202, lease="l", tasks=[[0, 4]])
    assert tape.state.remaining == 0
    tape.put("finish", 203)
    assert tape.state.finished


def test_a_batch_takes_no_more_than_a_task_file_may_hold(tape: OpenTape) -> None:
    tape.insert("last", names.BATCH_TASKS_MAX - 1)
    tape.insert("beyond", names.BATCH_TASKS_MAX)
    assert (tape.state.count, tape.state.remaining) == (names.BATCH_TASKS_MAX, 1)


def test_after_a_seal_nothing_is_inserted(tape: OpenTape) -> None:
    tape.insert("a", 0)
    tape.put("seal", 110, here=len(tape.data), tasks=1)
    assert not tape.state.takes_inserts
    tape.insert("b", 1)
    tape.put("seal", 120)
    assert (tape.states, tape.state.at) == ([AVAILABLE], 110)
    tape.lease(130, "l", 0)
    tape.put("complete", 140, lease="l", tasks=[[0, 1]])
    tape.put("finish", 150)
    assert tape.state.finished


def test_after_a_finish_nothing_is_inserted_or_sealed(tape: OpenTape) -> None:
    tape.insert("a", 0)
    tape.put("finish", 110)  # a task is left: void
    tape.lease(120, "l", 0)
    tape.put("complete", 130, lease="l", tasks=[[0, 1]])
    tape.put("finish", 140)
    tape.insert("b", 1, at=150)
    tape.put("seal", 160)
    assert (tape.state.count, tape.state.sealed, tape.state.at) == (1, False, 140)


def test_a_batch_into_which_nothing_was_inserted_may_finish(tape: OpenTape) -> None:
    tape.put("finish", 110)
    assert tape.state.finished


def test_a_seal_of_a_batch_that_takes_no_inserts_is_void() -> None:
    state = ReplayState()
    state.replay(record_lines.record("open", 1, count=1) + record_lines.record("seal", 5), 0)
    assert (state.sealed, state.at) == (False, 1)


def test_a_task_is_forgotten_by_its_place_once_its_payload_is_not_needed(tape: OpenTape) -> None:
    for index in range(4):
        tape.insert(f"{index}", index)
    tape.lease(200, "l", 0, 1, 2)
    tape.put("complete", 201, lease="l", tasks=[[0, 1]])
    tape.put("bury", 202, lease="l", tasks=[[1, 2]], reason="r")
    tape.put("cancel", 203, tasks=[[3, 4]], versions=[tape.state.version[3]])
    assert tape.states == [COMPLETED, DEAD, LEASED, CANCELLED]
    assert tape.state.places.keys() == {1, 2}, "a dead task's payload is needed for its letter"


# -- random logs -------------------------------------------------------------------------------------

firsts = st.integers(-1, 2)
"""Where an insert's index stands beyond the count: gaps, and indices that are taken."""


def as_seen(state: ReplayState, record: dict[str, Any]) -> dict[str, Any]:
    """A record at a later time, with the versions that its tasks have now where it says "seen"."""
    seen = [
        state.version[index] for start, end in record.get("tasks", ()) for index in range(start, min(end, state.count))
    ]
    found = record | {"at": record["at"] + 90}
    if found.get("versions") == "seen":
        found["versions"] = seen
    if found.get("version") == "seen":
        found["version"] = seen[0] if seen else 0
    return found


@st.composite
def open_logs(draw: st.DrawFn, most: int = 30) -> bytes:
    """The log of an open batch: records that often apply, inserts of all kinds, seals."""
    tape = OpenTape()
    for number in range(draw(st.integers(0, most))):
        choice = draw(st.integers(0, 19))
        if choice < 8:
            identity = draw(st.sampled_from(["again", f"{number}", f"{number}"]))
            payload: Any = draw(st.none() | st.integers(0, 9) | st.text(max_size=3) | st.binary(max_size=3))
            first = max(0, tape.state.count + draw(firsts.filter(lambda step: step < 2) | firsts))
            later = draw(st.sampled_from([0, 0, 0, 90, 150]))
            tape.insert(identity, first, draw(st.integers(90, 140)), later, task_file.encode_task(payload, 10**6))
        elif choice == 8 and draw(st.booleans()):
            tape.put("seal", 100, here=len(tape.data), tasks=tape.state.count)
        elif choice == 9:
            tape.raw(draw(noise))
        else:
            record = as_seen(tape.state, draw(st.one_of(parts, parts, loose)))
            tape.raw(json.dumps(record).encode() + b"\n")
    return tape.data


def check(state: ReplayState) -> None:
    """What holds of every state of an open batch."""
    columns = (state.state, state.since, state.holder, state.attempts, state.version)
    assert {len(column) for column in columns} == {state.count}
    assert state.count <= names.BATCH_TASKS_MAX
    undecided = {index for index in range(state.count) if state.state[index] in (AVAILABLE, LEASED)}
    dead = {index for index in range(state.count) if state.state[index] == DEAD}
    assert state.remaining == len(undecided)
    assert state.remaining + sum(state.done) + state.state.count(SKIPPED) == state.count
    assert state.places.keys() == undecided | dead
    assert list(state.places) == sorted(state.places)
    state.next_time()
    state.exhausted(state.at)


@pytest.mark.slow
@given(open_logs())
def test_states_of_open_batches_are_consistent_after_every_record(data: bytes) -> None:
    state, done = ReplayState(), 0
    for line in lines_of(data):
        ends = {index: code for index, code in enumerate(state.state) if code in (COMPLETED, CANCELLED, DEAD, SKIPPED)}
        count, is_closed = state.count, not state.takes_inserts and state.opened
        done += state.replay(line, done)
        check(state)
        assert all(state.state[index] == code for index, code in ends.items())
        if is_closed:
            assert state.count == count


@pytest.mark.slow
@given(open_logs())
def test_every_place_is_that_of_the_insert_that_gave_the_index(data: bytes) -> None:
    state = folded(data)
    for index, offset in state.places.items():
        record = json_or_none(data[offset : data.index(b"\n", offset)])
        assert (record["op"], record["first"]) == ("insert", index)
        assert offset == 0 or data[offset - 1 : offset] == b"\n"


@pytest.mark.slow
@given(open_logs(), st.data())
def test_folding_an_open_batch_in_pieces_is_folding_at_once(data: bytes, draw: st.DataObject) -> None:
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=4)))
    state, done = ReplayState(), 0
    for cut in [*cuts, len(data)]:
        done += state.replay(data[done:cut], done)
    assert full_state(state) == full_state(folded(data))
    assert state.places == folded(data).places


@pytest.mark.slow
@given(open_logs(), st.data())
def test_an_insert_that_stands_there_twice_acts_once(data: bytes, draw: st.DataObject) -> None:
    lines = lines_of(data)
    place = draw.draw(st.integers(0, len(lines) - 1))
    head, line = b"".join(lines[:place]), lines[place]
    if not line.startswith(movements.INSERT):
        return
    once, twice = full_state(folded(head + line)), full_state(folded(head + line + line))
    assert once == twice


@pytest.fixture
def at_every_movement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "LEAST_BYTES", 0)
    monkeypatch.setattr(checkpoints, "SHARE", 0)


def judged(state: ReplayState) -> dict[str, Any]:
    """All that later records are judged by; of an index that is no task, nothing is."""
    found = brief_readers.judged(state)
    alive = [index for index in range(state.count) if state.state[index] not in (COMPLETED, CANCELLED)]
    found["alive"] = [what for index, what in zip(alive, found["alive"], strict=True) if state.state[index] != SKIPPED]
    found["inserts"] = (state.inserts, state.sealed, state.takes_inserts, state.inserted_at, dict(state.places))
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("at_every_movement")
@given(open_logs(), st.data())
def test_who_begins_at_a_checkpoint_of_an_open_batch_agrees_with_who_reads_all(
    data: bytes, draw: st.DataObject
) -> None:
    log, prefixes = brief_readers.Log(), []
    for line in lines_of(data):
        log.write(line)
        if log.state.remaining and draw.draw(st.integers(0, 2)) == 0:
            log.checkpoint()
        prefixes.append((len(log.data), judged(log.state)))
    at = draw.draw(st.integers(0, 300))
    for end, knew in prefixes:
        known = brief_readers.whole(log.data[:end])
        assert known.disputed == []
        assert judged(known) == knew, "who has read along agrees with who reads all anew"
        restored = brief_readers.brief(log.data[:end])
        if restored is None:
            assert checkpoints.MARK not in log.data[:end]
            continue
        assert restored.disputed == []
        assert judged(restored) == knew
        assert brief_readers.chosen(restored, at) == brief_readers.chosen(known, at)


def restated(tape: OpenTape) -> dict[str, Any]:
    return json.loads(json.dumps(checkpoints.restated(tape.state)))


def busy(tape: OpenTape) -> OpenTape:
    """A task in each state, and a gap."""
    for index in (0, 1, 2, 3, 5, 6):
        tape.insert(f"{index}", index, available_at=400 if index == 5 else 0)
    tape.lease(200, "l", 0, 1, 2)
    tape.put("complete", 201, lease="l", tasks=[[0, 1]])
    tape.put("bury", 202, lease="l", tasks=[[1, 2]], reason="r")
    tape.put("cancel", 203, tasks=[[3, 4]], versions=[tape.state.version[3]])
    return tape


@pytest.mark.parametrize(
    "change",
    [
        {"inserts": None},
        {"inserts": 7},
        {"inserted_at": -1},
        {"inserted": [[0, 9]]},
        {"inserted": [[2, 1]]},
        {"inserted": []},
        {"inserted": None},
        {"steps": []},
        {"steps": [1, 2, 3, 4, 5]},
        {"steps": [-1, 2, 3, 4]},
        {"steps": ["1", 2, 3, 4]},
        {"steps": None},
    ],
)
def test_a_checkpoint_that_does_not_say_where_its_tasks_are_is_passed_over(
    tape: OpenTape, change: dict[str, Any]
) -> None:
    busy(tape)
    record = {"at": 300, "damaged": 0, "here": len(tape.data)} | restated(tape)
    found = checkpoints.Found(record, len(tape.data), len(tape.data) + 10)
    assert (restored := ReplayState.from_checkpoint(found)) is not None
    assert restored.places == tape.state.places
    assert bytes(restored.state) == bytes(tape.state.state)
    assert ReplayState.from_checkpoint(found._replace(record=record | change)) is None


def test_after_a_checkpoint_an_id_of_before_is_not_known_but_its_index_is_taken(tape: OpenTape) -> None:
    """A record that lands late has the index of then: it is void, whatever its id."""
    tape.insert("a", 0)
    tape.state.begin_stretch(len(tape.data), 0)
    tape.insert("a", 0)
    assert tape.state.count == 1


# -- as the history keeps them ----------------------------------------------------------------------

payloads = st.one_of(
    st.none(),
    st.integers(0, 9),
    st.text(max_size=40),
    st.binary(max_size=40),
    st.integers(0, 2000).map(lambda size: "x" * size),
)


@given(payloads, st.sampled_from([0, 5, 10**12]), st.integers(0, 1023))
def test_cut_spares_the_payload_and_tells_how_many_bytes(payload: Any, available_at: int, first: int) -> None:
    line = record_lines.insert(10**12, "0123456789abcdef", first, task_file.encode_task(payload, 10**6), available_at)[
        :-1
    ]
    whole, short = json.loads(line), movements.cut(line, 0)
    record = json.loads(short)
    assert len(short) + record["cut"] == len(line)
    for field in ("payload", "b64"):
        whole.pop(field, None)
    assert {key: value for key, value in record.items() if key != "cut"} == whole
    assert len(short) <= len(line)


def test_cut_leaves_a_line_in_another_form_as_it_is() -> None:
    for line in (
        b'{"op": "insert", "at": 1, "id": "a", "first": 0, "payload": 1}',
        b'{"op":"insert","at":1,"first":0,"id":"a","payload":1}',
        b'{"op":"insert","at":1,"id":"a","first":0}',
        b'{"op":"insert","at":1,"id":"a-b","first":0,"payload":1}',
        b'{"op":"lease","at":1}',
    ):
        assert movements.cut(line, 0) == line


@pytest.mark.parametrize("size", range(1, 130))
def test_cut_of_payloads_of_each_size_up_to_three_digits(size: int) -> None:
    line = record_lines.insert(1, "a", 0, b'{"payload":' + b"1" * size + b"}\n")[:-1]
    short = movements.cut(line, 0)
    assert json.loads(short)["cut"] + len(short) == len(line)


@pytest.mark.parametrize("size", [1, 100, 1024])
def test_a_payload_that_is_short_enough_is_not_cut(size: int) -> None:
    line = record_lines.insert(1, "a", 0, b'{"payload":' + b"1" * size + b"}\n")[:-1]
    assert movements.cut(line, size) == movements.cut(line, None) == line
    longer = record_lines.insert(1, "a", 0, b'{"payload":' + b"1" * (size + movements.LINE_BYTES) + b"}\n")[:-1]
    assert b'"cut":' in movements.cut(longer, size)
    assert movements.cut(longer, None) == longer


def test_an_insert_of_bytes_reads_like_a_line_of_a_task_file() -> None:
    line = record_lines.insert(1, "a", 0, task_file.encode_task(b"\x00\xff", 1000))
    assert task_file.decode_task(line)["payload"] == b"\x00\xff"
    assert base64.b64encode(b"\x00\xff") in line
