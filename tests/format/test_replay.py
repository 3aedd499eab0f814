"""The replay, rule by rule (docs/format.md, "Movement logs")."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest

from fsqueue.format import movements, replay
from fsqueue.format.replay import AVAILABLE, CANCELLED, COMPLETED, DEAD, LEASED, ReplayState, is_well_formed
from tests import record_lines

NAME = "0000000000000-0193f0c2a4b97c31a2d5e8f001234567-3.jsonl"
LATER = "0000000000900-0193f0c2a4b97c31a2d5e8f001234567-3.jsonl"


class Tape:
    """A log being written, and the replay state that follows it."""

    def __init__(self, count: int = 3, at: int = 100, **fields: Any) -> None:
        self.replay_state = ReplayState()
        self.data = b""
        self.put("open", at, count=count, **fields)

    def raw(self, data: bytes) -> int:
        offset = len(self.data)
        self.data += data
        self.replay_state.replay(data, offset)
        return offset

    def put(self, op: str, at: int, **fields: Any) -> int:
        return self.raw(record_lines.record(op, at, **fields))

    def lease(self, at: int, lease: str, *tasks: int, until: int, **fields: Any) -> int:
        return self.put("lease", at, lease=lease, tasks=movements.to_ranges(tasks), until=until, **fields)

    def end(self, op: str, at: int, lease: str | None, *tasks: int, **fields: Any) -> int:
        return self.put(op, at, lease=lease, tasks=movements.to_ranges(tasks), **fields)

    @property
    def states(self) -> list[int]:
        return list(self.replay_state.state)


def test_an_empty_log_holds_nothing() -> None:
    replay_state = ReplayState()
    assert (replay_state.count, replay_state.remaining, replay_state.at, replay_state.gone, replay_state.finished) == (
        0,
        0,
        0,
        False,
        False,
    )
    assert replay_state.next_time() is None
    assert not replay_state.holds(0, "a")


def test_open_makes_all_tasks_available_from_its_time_on() -> None:
    tape = Tape(3, available_at=700)
    assert tape.states == [AVAILABLE] * 3
    assert tape.replay_state.next_time() == 700
    assert tape.replay_state.choose(699, 9, 0, None)[0] == []
    assert tape.replay_state.choose(700, 9, 0, None)[0] == [0, 1, 2]


def test_a_log_is_opened_once() -> None:
    tape = Tape(3)
    tape.lease(100, "a", 0, until=900)
    tape.put("open", 200, count=5)
    assert tape.replay_state.count == 3
    assert tape.states == [LEASED, AVAILABLE, AVAILABLE]


def test_a_lease_takes_what_is_free_and_nothing_else() -> None:
    tape = Tape(3)
    tape.lease(100, "a", 0, 1, until=900)
    tape.lease(200, "b", 0, 1, 2, until=900)
    assert [tape.replay_state.holds(index, "a") for index in range(3)] == [True, True, False]
    assert tape.replay_state.holds(2, "b")


def test_a_lease_may_take_a_task_at_the_very_end_of_another() -> None:
    tape = Tape(1)
    tape.lease(100, "a", 0, until=900)
    tape.lease(899, "b", 0, until=2000)
    assert tape.replay_state.holds(0, "a")
    tape.lease(900, "c", 0, until=2000)
    assert tape.replay_state.holds(0, "c")


def test_a_lease_id_acts_once() -> None:
    tape = Tape(2)
    tape.lease(100, "a", 0, until=900)
    tape.lease(150, "a", 1, until=900)
    assert tape.states == [LEASED, AVAILABLE]


def test_a_delayed_task_is_not_leased_before_its_time() -> None:
    tape = Tape(1, available_at=500)
    tape.lease(499, "a", 0, until=900)
    assert tape.states == [AVAILABLE]
    tape.lease(500, "b", 0, until=900)
    assert tape.states == [LEASED]


def test_completing_late_is_forgiven_while_nobody_took_the_task() -> None:
    tape = Tape(1)
    tape.lease(100, "a", 0, until=200)
    tape.end("complete", 5000, "a", 0, result={"n": 1})
    assert tape.states == [COMPLETED]
    assert tape.replay_state.results == {0: {"n": 1}}
    assert (tape.replay_state.remaining, tape.replay_state.done[COMPLETED], tape.replay_state.since[0]) == (0, 1, 5000)


@pytest.mark.parametrize("op", ["complete", "release", "fail", "bury", "renew"])
def test_a_lease_that_was_taken_over_does_nothing_any_more(op: str) -> None:
    tape = Tape(1)
    tape.lease(100, "a", 0, until=200)
    tape.lease(300, "b", 0, until=900)
    before = (tape.states, list(tape.replay_state.since), list(tape.replay_state.attempts), tape.replay_state.at)
    tape.end(op, 400, "a", 0, available_at=0, error="x", reason="x", until=5000)
    assert (tape.states, tape.replay_state.since, tape.replay_state.attempts, tape.replay_state.at) == before
    assert tape.replay_state.holds(0, "b")


def test_renew_must_come_before_the_end() -> None:
    tape = Tape(2)
    tape.lease(100, "a", 0, 1, until=200)
    tape.end("renew", 199, "a", 0, until=900)
    tape.end("renew", 200, "a", 1, until=900)
    assert tape.replay_state.since == [900, 200]


def test_release_puts_back_uncharged_and_fail_charges() -> None:
    tape = Tape(2)
    tape.lease(100, "a", 0, 1, until=900)
    tape.end("release", 150, "a", 0, available_at=300)
    tape.end("fail", 150, "a", 1, available_at=400, error="oops")
    assert tape.states == [AVAILABLE, AVAILABLE]
    assert tape.replay_state.since == [300, 400]
    assert tape.replay_state.attempts == [0, 1]
    assert tape.replay_state.errors == {1: "oops"}


def test_the_expiry_of_a_lease_of_one_is_charged_once() -> None:
    tape = Tape(1)
    tape.lease(100, "a", 0, until=200)
    assert tape.replay_state.charged(0) == 1
    assert tape.replay_state.attempts == [0]
    tape.lease(300, "b", 0, until=400)
    assert tape.replay_state.attempts == [1]
    assert tape.replay_state.charged(0) == 2
    tape.end("fail", 500, "b", 0, available_at=500, error="late")
    assert tape.replay_state.attempts == [2]
    assert tape.replay_state.charged(0) == 2


def test_the_expiry_of_a_lease_of_several_is_not_charged_but_its_tasks_go_alone() -> None:
    tape = Tape(3)
    tape.lease(100, "a", 0, 1, until=200)
    chosen, _spent, alone = tape.replay_state.choose(300, 9, 0, 5)
    assert (chosen, alone) == ([0], True)
    tape.lease(300, "b", 0, until=400)
    assert tape.replay_state.attempts == [0, 0, 0]
    assert 0 in tape.replay_state.solo
    tape.end("release", 350, "b", 0, available_at=350)
    again = ReplayState()
    again.replay(tape.data, 0)
    assert again.choose(350, 9, 0, 5)[2], "it stays alone also after it was given back"


def test_a_lease_of_one_that_was_part_of_a_larger_call_is_one_of_several() -> None:
    tape = Tape(1)
    tape.lease(100, "a", 0, until=200, several=True)
    assert tape.replay_state.charged(0) == 0
    assert tape.replay_state.choose(300, 9, 0, 1)[2]


def test_of_tasks_that_go_alone_others_in_the_call_are_spared() -> None:
    tape = Tape(3)
    tape.lease(100, "a", 0, 1, until=200)
    chosen, _spent, alone = tape.replay_state.choose(300, 9, 0, 5, solo=False)
    assert (chosen, alone) == ([2], False)
    tape.lease(300, "b", 2, until=900)
    assert tape.replay_state.choose(300, 9, 0, 5)[2]


def test_a_task_out_of_attempts_is_told_apart() -> None:
    tape = Tape(2)
    tape.lease(100, "a", 0, until=200)
    chosen, spent, _alone = tape.replay_state.choose(300, 9, 0, 1)
    assert (chosen, spent) == ([1], [0])
    assert Tape(2).replay_state.choose(300, 9, 0, None)[1] == []


def test_the_margin_after_a_lease_is_a_tenth_of_it_at_most() -> None:
    for length, margin, free_after in ((1000, 50, 50), (100, 50, 10), (5, 50, 0)):
        tape = Tape(1)
        tape.lease(100, "a", 0, until=100 + length)
        end = 100 + length + free_after
        assert tape.replay_state.choose(end - 1, 1, margin, None)[0] == []
        assert tape.replay_state.choose(end, 1, margin, None)[0] == [0]


def test_the_margin_is_kept_also_after_a_renewal() -> None:
    """A renewal to the same end makes the lease run out twice, as it were; the second must not count for the next."""
    tape = Tape(1)
    tape.lease(100, "a", 0, until=200)
    tape.end("renew", 100, "a", 0, until=200)
    assert tape.replay_state.choose(1000, 1, 50, None)[0] == [0]
    tape.lease(1000, "b", 0, until=2000)
    assert tape.replay_state.choose(2049, 1, 50, None)[0] == []
    assert tape.replay_state.choose(2050, 1, 50, None)[0] == [0]


def test_bury_by_the_holder_charges_and_ends() -> None:
    tape = Tape(2)
    tape.lease(100, "a", 0, until=900)
    tape.end("bury", 150, "a", 0, 1, reason="no")
    assert tape.states == [DEAD, AVAILABLE]
    assert tape.replay_state.attempts == [1, 0]
    assert tape.replay_state.errors == {0: "no"}


def test_bury_without_a_lease_acts_on_what_nobody_holds() -> None:
    tape = Tape(3)
    tape.lease(100, "a", 0, until=900)
    tape.lease(100, "b", 1, until=110)
    tape.end("bury", 150, None, 0, 1, 2, reason="no")
    assert tape.states == [LEASED, DEAD, DEAD]
    assert tape.replay_state.attempts == [0, 1, 0], "the lease that ran out is charged"


def test_cancel_names_the_version_that_was_seen() -> None:
    tape = Tape(3)
    opened = tape.replay_state.version[0]
    leased = tape.lease(100, "a", 1, until=900)
    tape.end("release", 110, "a", 1, available_at=110)
    tape.put("cancel", 120, tasks=[[0, 2]], versions=[opened, leased])
    assert tape.states == [CANCELLED, AVAILABLE, AVAILABLE]
    tape.put("cancel", 120, tasks=[[1, 3]], versions=[tape.replay_state.version[1], opened])
    assert tape.states == [CANCELLED] * 3
    assert tape.replay_state.done[CANCELLED] == 3


def test_cancel_leaves_what_is_held_or_names_no_version() -> None:
    tape = Tape(2)
    version = tape.lease(100, "a", 0, until=900)
    tape.put("cancel", 120, tasks=[[0, 1]], versions=[version])
    tape.put("cancel", 120, tasks=[[1, 2]])
    tape.put("cancel", 120, tasks=[[1, 2]], versions=[])
    assert tape.states == [LEASED, AVAILABLE]
    tape.end("cancel", 120, "a", 0)
    assert tape.states == [CANCELLED, AVAILABLE]


def test_revoke_ends_leases_uncharged() -> None:
    tape = Tape(3)
    tape.lease(100, "a", 0, until=200)
    tape.lease(100, "b", 1, until=900)
    tape.put("revoke", 300, tasks=[[0, 3]])
    assert tape.states == [AVAILABLE] * 3
    assert tape.replay_state.attempts == [0, 0, 0]
    assert tape.replay_state.since[:2] == [300, 300]
    tape.lease(300, "c", 0, until=900)
    tape.end("revoke", 310, "b", 0)
    assert tape.replay_state.holds(0, "c"), "a revoke that names a lease ends that one alone"


def test_replace_of_a_held_task_leaves_its_lease_alone() -> None:
    tape = Tape(2)
    tape.lease(100, "a", 0, until=900)
    tape.put("replace", 110, lease="a", tasks=[[0, 1]], payload={"new": 1})
    tape.put("replace", 110, tasks=[[1, 2]], version=0, payload=[2])
    assert tape.replay_state.payloads == {0: {"new": 1}, 1: [2]}
    assert tape.replay_state.holds(0, "a")
    assert tape.replay_state.choose(110, 9, 0, None)[0] == [1]


def test_replace_of_a_free_task_names_the_version_seen() -> None:
    tape = Tape(1)
    tape.lease(100, "a", 0, until=900)
    tape.put("replace", 110, tasks=[[0, 1]], version=tape.replay_state.version[0], payload=1)
    tape.end("release", 120, "a", 0, available_at=120)
    tape.put("replace", 130, tasks=[[0, 1]], version=0, payload=2)
    assert tape.replay_state.payloads == {}
    version = tape.put("replace", 130, tasks=[[0, 1]], version=tape.replay_state.version[0], payload=3)
    assert tape.replay_state.payloads == {0: 3}
    assert tape.replay_state.version == [version]


def test_the_version_is_the_offset_of_the_last_record_that_touched_the_task() -> None:
    tape = Tape(2)
    assert tape.replay_state.version == [0, 0]
    leased = tape.lease(100, "a", 1, until=900)
    assert tape.replay_state.version == [0, leased]
    tape.end("complete", 100, "x", 1)
    assert tape.replay_state.version == [0, leased]
    done = tape.end("complete", 100, "a", 1)
    assert tape.replay_state.version == [0, done]


def test_time_does_not_run_backwards_in_a_log() -> None:
    tape = Tape(2, at=1000)
    tape.lease(1000, "a", 0, until=1500)
    tape.lease(400, "b", 0, until=9000)
    assert tape.replay_state.holds(0, "a")
    tape.end("release", 1400, "a", 0, available_at=1400)
    tape.lease(400, "c", 0, until=9000)
    assert tape.replay_state.holds(0, "c"), "what was written later happened later, whatever its clock said"


def test_a_record_that_does_not_apply_does_not_move_the_time_either() -> None:
    tape = Tape(1)
    tape.lease(100, "a", 0, until=200)
    tape.end("complete", 9_000_000_000_000, "nobody", 0)
    tape.lease(9_000_000_000_000, "a", 0, until=9_000_000_000_001)
    assert tape.replay_state.at == 100
    assert tape.replay_state.holds(0, "a")


@pytest.mark.parametrize(
    "fields",
    [
        {"tasks": [[0, 9]]},
        {"tasks": [[1, 0]]},
        {"tasks": [[0, 0]]},
        {"tasks": [[-1, 1]]},
        {"tasks": [[1, 2], [0, 1]]},
        {"tasks": [[0, 2], [1, 3]]},
        {"tasks": [[0.0, 1]]},
        {"tasks": [[False, True]]},
        {"tasks": [[0]]},
        {"tasks": [[0, 1, 2]]},
        {"tasks": ["01"]},
        {"tasks": {"0": 1}},
        {"tasks": 0},
        {"tasks": None},
        {"until": -1},
        {"until": 1.5},
        {"until": "900"},
        {"until": None},
        {"until": 10**18},
        {"lease": 7},
        {"lease": None},
        {"lease": ["a"]},
    ],
)
def test_a_record_with_a_field_missing_or_wrong_is_void(fields: dict[str, Any]) -> None:
    tape = Tape(3)
    tape.put("lease", 200, **{"lease": "a", "tasks": [[0, 2]], "until": 900, **fields})
    assert tape.states == [AVAILABLE] * 3
    assert tape.replay_state.at == 100


@pytest.mark.parametrize("count", [0, -1, 1.0, True, "3", None, 1025, 999_999_999, 2**63])
def test_a_batch_has_no_impossible_size(count: Any) -> None:
    replay_state = ReplayState()
    replay_state.replay(orjson.dumps({"op": "open", "at": 1, "count": count}) + b"\n", 0)
    assert replay_state.count == 0


def test_an_operation_that_this_version_does_not_know_is_passed_over() -> None:
    tape = Tape(1)
    tape.put("teleport", 10**12, tasks=[[0, 1]])
    assert (tape.states, tape.replay_state.at) == ([AVAILABLE], 100)


def test_finish_needs_an_outcome_of_every_task() -> None:
    tape = Tape(2)
    tape.lease(100, "a", 0, 1, until=900)
    tape.end("complete", 110, "a", 0)
    tape.put("finish", 120)
    assert not tape.replay_state.finished
    tape.end("bury", 130, "a", 1, reason="no")
    tape.put("finish", 140)
    assert tape.replay_state.finished
    assert tape.replay_state.next_time() is None


def test_count_belongs_after_finish_and_acts_once() -> None:
    tape = Tape(1)
    tape.put("count", 100, file="07", offset=5, count=1)
    tape.lease(100, "a", 0, until=900)
    tape.end("complete", 110, "a", 0)
    tape.put("finish", 110)
    for _ in range(2):
        tape.put("count", 110, file="07", offset=5, count=1)
    tape.put("count", 110, file="07", offset=9, count=1)
    assert tape.replay_state.counts == [("07", 5, 1), ("07", 9, 1)]


def test_nothing_follows_gone() -> None:
    tape = Tape(1)
    tape.put("gone", 100)
    tape.lease(100, "a", 0, until=900)
    assert tape.replay_state.gone
    assert tape.states == [AVAILABLE]


def test_the_names_of_the_file_come_in_the_order_of_their_last_mention() -> None:
    tape = Tape(1, name=NAME)
    tape.put("move", 110, **{"from": NAME, "name": LATER})
    assert [*tape.replay_state.names] == [NAME, LATER]
    tape.put("move", 120, **{"from": LATER, "name": NAME})
    assert [*tape.replay_state.names] == [LATER, NAME]
    tape.put("move", 130, **{"from": "../../etc/passwd", "name": 7})
    tape.end("complete", 140, "nobody", 0, **{"from": NAME, "name": LATER})
    assert [*tape.replay_state.names] == [NAME, LATER], "no other text; but what a record says that does not apply"


def test_a_file_of_many_names_costs_no_more_for_each() -> None:
    """A batch whose tasks fail and return many times is renamed each time: 40,000 names took 20 s to replay once."""
    tape = Tape(1, name=NAME)
    begun = time.thread_time()
    for number in range(40_000):
        tape.replay_state.mention(f"{number:013d}{NAME[13:]}")
    assert time.thread_time() - begun < 2
    assert tape.replay_state.last_name() == f"{39_999:013d}{NAME[13:]}"


def test_a_torn_line_is_folded_when_it_is_whole() -> None:
    tape = Tape(1)
    record = record_lines.record("lease", 100, lease="a", tasks=[[0, 1]], until=900)
    start = len(tape.data)
    assert tape.replay_state.replay(record[:-1], start) == 0
    assert tape.states == [AVAILABLE]
    assert tape.replay_state.replay(record, start) == len(record)
    assert tape.states == [LEASED]


def test_what_is_leased_or_available_now_comes_before_what_returns_later() -> None:
    tape = Tape(3)
    tape.lease(100, "a", 0, until=2000)
    tape.lease(100, "b", 1, until=3000)
    assert not tape.replay_state.exhausted(100)
    tape.lease(100, "c", 2, until=4000)
    chosen, _spent, _alone = tape.replay_state.choose(100, 9, 0, None)
    assert chosen == []
    assert tape.replay_state.exhausted(100)
    assert tape.replay_state.next_time() == 2000
    tape.end("fail", 150, "b", 1, available_at=700, error="x")
    assert tape.replay_state.next_time() == 700
    tape.end("renew", 160, "a", 0, until=9000)
    tape.end("complete", 170, "b", 1)
    tape.lease(700, "d", 1, until=9999)
    assert tape.replay_state.next_time() == 4000


def test_its_attributes_are_in_slots() -> None:
    assert not hasattr(ReplayState(), "__dict__"), "with more than 30 attributes a look at one takes longer"


def test_a_run_of_tasks_is_chosen_around_those_that_others_took() -> None:
    replay_state = ReplayState()
    replay_state.replay(record_lines.record("open", 1, count=10, available_at=1), 0)
    replay_state.lease(2, "a", [1, 4], 99, None, False, 100)

    assert replay_state.choose(3, 3, 0, None)[0] == [0, 2, 3]
    assert replay_state.choose(3, 2, 0, None)[0] == [5, 6]
    assert replay_state.choose(3, 9, 0, None)[0] == [7, 8, 9]


# -- records that lack what they need ---------------------------------------------------------------------------------

WHOLE: list[dict[str, Any]] = [
    {"op": "open", "count": 2},
    {"op": "insert", "id": "a", "first": 0, "payload": None},
    {"op": "insert", "id": "a", "first": 0, "b64": "eA=="},
    {"op": "lease", "lease": "a", "tasks": [[0, 1]], "until": 5},
    {"op": "renew", "lease": "a", "tasks": [[0, 1]], "until": 5},
    {"op": "complete", "lease": "a", "tasks": [[0, 1]]},
    {"op": "release", "lease": "a", "tasks": [[0, 1]], "available_at": 5},
    {"op": "fail", "lease": "a", "tasks": [[0, 1]], "available_at": 5, "error": "no"},
    {"op": "bury", "tasks": [[0, 1]], "reason": "no"},
    {"op": "cancel", "tasks": [[0, 1]]},
    {"op": "revoke", "tasks": [[0, 1]]},
    {"op": "replace", "tasks": [[0, 1]], "payload": 1},
    {"op": "change", "tasks": [[0, 1]], "versions": [0]},
    {"op": "clock", "tasks": [[0, 1]], "since": [5]},
    {"op": "count", "file": "f", "offset": 0, "count": 1},
    {"op": "seal"},
    {"op": "move"},
    {"op": "finish"},
    {"op": "gone"},
]


@pytest.mark.parametrize("record", WHOLE, ids=lambda record: record["op"])
def test_a_record_is_well_formed_with_all_its_fields_and_not_without_one(record: dict[str, Any]) -> None:
    record = {**record, "at": 1}
    assert is_well_formed(record)
    assert is_well_formed({**record, "another": 1})
    for field in record.keys() - {"op", "at"}:
        assert not is_well_formed({key: value for key, value in record.items() if key != field}), field
        assert not is_well_formed({("x" + key if key == field else key): value for key, value in record.items()})
        if field not in ("payload", "b64", "since", "versions"):
            assert not is_well_formed({**record, field: {}}), field


def test_every_kind_of_record_that_acts_is_known() -> None:
    assert {record["op"] for record in WHOLE} == set(replay._HANDLERS)
    assert is_well_formed({"op": "of a later version", "at": 1})


def test_two_leases_of_one_id_may_end_at_the_same_time() -> None:
    """Behind a checkpoint nothing is known any more of the ids of leases that have ended. A log may repeat one."""
    tape = Tape()
    tape.lease(110, "a", 0, until=200)
    tape.replay_state.ids.clear()
    tape.lease(110, "a", 1, until=200)
    assert [holder and holder.id for holder in tape.replay_state.holder] == ["a", "a", None]
    assert sorted(tape.replay_state.choose(200, 3, 0, None)[0]) == [0, 1, 2]


def test_a_lease_of_tasks_in_a_row_gets_those_that_are_free() -> None:
    tape = Tape(4)
    tape.lease(110, "a", 1, until=300)
    tape.end("release", 120, "a", 1, available_at=200)
    tape.lease(130, "b", 0, 1, 2, until=300)
    assert tape.states == [LEASED, AVAILABLE, LEASED, AVAILABLE]
    tape.lease(200, "c", 0, 1, 2, 3, until=300)
    assert [holder and holder.id for holder in tape.replay_state.holder] == ["b", "c", "b", "c"]
    tape.end("complete", 210, "b", 0)
    tape.lease(300, "d", 0, 1, 2, 3, until=400)
    assert tape.states == [COMPLETED, LEASED, LEASED, LEASED]


def test_tasks_in_a_row_are_completed_by_the_lease_that_holds_them() -> None:
    tape = Tape(4)
    tape.lease(110, "a", 0, 1, until=300)
    tape.lease(110, "b", 2, 3, until=300)
    tape.end("complete", 120, "a", 0, 1, 2)
    assert tape.states == [COMPLETED, COMPLETED, LEASED, LEASED]
    tape.end("complete", 120, "a", 0, 1)
    tape.end("complete", 130, "b", 1, 2, 3)
    assert tape.replay_state.since == [120, 120, 130, 130]
    assert tape.replay_state.remaining == 0
