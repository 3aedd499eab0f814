"""Records of updates: prepared ones and their outcomes, and updates in one write (docs/format.md, "Updates")."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fsqueue.format import checkpoints, movements, names, state_checks
from fsqueue.format.decisions import LogName
from fsqueue.format.movements import Record, UpdatePart
from fsqueue.format.priority import LAST
from fsqueue.format.replay import AVAILABLE, COMPLETED, LEASED, PATIENCE_MS, SKIPPED, ReplayState
from fsqueue.format.task_states import Lease, Prepared, Sharing, States
from tests import record_lines
from tests.format import test_checkpoints as brief_readers
from tests.format import test_replay_properties as plain_logs
from tests.format.test_inserts import LINE, OpenTape, as_seen, judged, open_logs
from tests.format.test_replay_properties import folded, json_or_none, lines_of, loose, parts
from tests.levels import how_many
from tests.support import full_state

U, V = names.UpdateId("0123456789abcdef"), names.UpdateId("f" * 16)
FILE, OTHER = names.DecisionFileName("0193f0c2a4b97c31a2d5e8f001234567"), names.DecisionFileName("e" * 32)
PREPARED, WHOLE = UpdatePart(U, FILE, 5_000), UpdatePart(U)
LOG = LogName(names.queue_directory("a/b ~@=+,"), names.generation(3, names.QueueId("a" * 16)), names.Batch("1" * 32))


class Tape(OpenTape):
    """The log of an open batch with four tasks, of which the lease `l` holds the first two."""

    def __init__(self) -> None:
        super().__init__()
        for index in range(4):
            self.insert(f"{index}", index)
        self.lease(200, "l", 0, 1)

    def prepare(self, op: str, *tasks: int, part: UpdatePart = PREPARED, at: int = 210, **fields: Any) -> int:
        return self.put(op, at, tasks=movements.to_ranges(tasks), **fields, **part.fields)

    def prepare_insert(self, first: int, at: int = 210, part: UpdatePart = PREPARED, later: int = 0) -> int:
        return self.raw(record_lines.insert(at, f"u{first}", first, LINE, later, part))

    def commit(self, of: int, at: int = 220, update: names.UpdateId = U) -> int:
        return self.raw(record_lines.commit(at, update, of))

    def abort(self, at: int = 220, update: names.UpdateId = U) -> int:
        return self.raw(record_lines.abort(at, update))


@pytest.fixture
def tape() -> Tape:
    return Tape()


# -- prepared, and then? -------------------------------------------------------------------------------


def test_a_prepared_record_changes_nothing_until_its_commit(tape: Tape) -> None:
    before = tape.state.version[0]
    offset = tape.prepare("complete", 0, lease="l", result=7)
    assert (tape.states[0], tape.state.version[0], tape.state.remaining) == (LEASED, before, 4)
    assert tape.state.frozen == {0: U}
    tape.commit(1)
    assert (tape.states[0], tape.state.version[0], tape.state.remaining) == (COMPLETED, offset, 3)
    assert (tape.state.since[0], tape.state.results, tape.state.at) == (210, {0: 7}, 220), "each at its own time"
    assert (tape.state.frozen, tape.state.prepared) == ({}, {})


def test_an_abort_makes_it_void(tape: Tape) -> None:
    tape.prepare("complete", 0, lease="l")
    tape.abort()
    assert (tape.states[0], tape.state.frozen, tape.state.prepared) == (LEASED, {}, {})
    tape.commit(1)
    assert tape.states[0] == LEASED, "the first outcome counts"
    tape.put("complete", 230, lease="l", tasks=[[0, 1]])
    assert tape.states[0] == COMPLETED


@pytest.mark.parametrize("of", [0, 1, 3, True, "2", None])
def test_a_commit_of_another_number_is_void_and_leaves_them_prepared(tape: Tape, of: Any) -> None:
    tape.prepare("complete", 0, lease="l")
    tape.prepare("release", 1, lease="l", available_at=210)
    tape.put("commit", 220, update=U, of=of)
    assert (tape.states[:2], sorted(tape.state.frozen)) == ([LEASED, LEASED], [0, 1])
    tape.commit(2)
    assert tape.states[:2] == [COMPLETED, AVAILABLE]


def test_a_record_that_does_not_apply_to_one_of_its_tasks_is_void_for_all(tape: Tape) -> None:
    tape.prepare("complete", 0, 1, 2, lease="l")
    assert (tape.state.prepared, tape.state.frozen) == ({}, {})
    tape.commit(1)
    assert tape.states[:3] == [LEASED, LEASED, AVAILABLE]


def test_a_record_that_names_another_file_is_void(tape: Tape) -> None:
    tape.prepare("complete", 0, lease="l")
    tape.prepare("complete", 1, lease="l", part=UpdatePart(U, OTHER, 5_000))
    assert sorted(tape.state.frozen) == [0]
    tape.commit(1)
    assert tape.states[:2] == [COMPLETED, LEASED]


@pytest.mark.parametrize(
    "change",
    [
        {"update": 7},
        {"update": "x"},
        {"update": None},
        {"file": 7},
        {"file": "../../etc/passwd"},
        {"file": None},
        {"patience": -1},
        {"patience": "5"},
        {"tasks": []},
        {"tasks": [[0, 9]]},
        {"op": "lease", "until": 900, "worker": {}},
        {"op": "revoke"},
        {"op": "open", "count": 1},
        {"op": "move"},
        {"op": "gone"},
    ],
)
def test_a_record_of_an_update_with_a_wrong_field_never_acts(tape: Tape, change: dict[str, Any]) -> None:
    before = full_state(tape.state)
    fields = {"op": "complete", "at": 210, "lease": "l", "tasks": [[0, 1]], **PREPARED.fields} | change
    tape.raw(json.dumps(fields).encode() + b"\n")
    tape.commit(1)
    tape.commit(0)
    assert full_state(tape.state) == before


@pytest.mark.parametrize(("said", "counts"), [(None, 5_000), (0, 5_000), (60_000, 60_000), (10**13, PATIENCE_MS[1])])
def test_patience_has_bounds(tape: Tape, said: int | None, counts: int) -> None:
    fields = {key: value for key, value in PREPARED.fields.items() if key != "patience"}
    tape.put("complete", 210, lease="l", tasks=[[0, 1]], patience=said, **fields)
    assert tape.state.prepared[U].patience_ms == counts
    assert (tape.state.prepared[U].file, tape.state.prepared[U].at) == (FILE, 210)


# -- frozen --------------------------------------------------------------------------------------------

OTHERS: list[Callable[[Tape], object]] = [
    lambda tape: tape.put("complete", 211, lease="l", tasks=[[0, 1]]),
    lambda tape: tape.put("release", 211, lease="l", tasks=[[0, 1]], available_at=211),
    lambda tape: tape.put("fail", 211, lease="l", tasks=[[0, 1]], available_at=211, error="e"),
    lambda tape: tape.put("bury", 211, lease="l", tasks=[[0, 1]], reason="r"),
    lambda tape: tape.put("bury", 900, tasks=[[0, 1]], reason="r"),
    lambda tape: tape.put("cancel", 211, lease="l", tasks=[[0, 1]]),
    lambda tape: tape.put("cancel", 900, tasks=[[0, 1]], versions=[tape.state.version[0]]),
    lambda tape: tape.put("replace", 211, lease="l", tasks=[[0, 1]], payload=1),
    lambda tape: tape.put("replace", 900, version=tape.state.version[0], tasks=[[0, 1]], payload=1),
    lambda tape: tape.put("revoke", 211, tasks=[[0, 1]]),
    lambda tape: tape.put("revoke", 211, lease="l", tasks=[[0, 1]]),
    lambda tape: tape.lease(900, "m", 0, until=999),
    lambda tape: tape.prepare("complete", 0, lease="l", part=UpdatePart(V, OTHER, 0)),
    lambda tape: tape.prepare("complete", 0, lease="l"),
    lambda tape: tape.prepare("release", 0, lease="l", available_at=900, part=UpdatePart(V, OTHER, 0)),
    lambda tape: tape.prepare("cancel", 0, versions=[tape.state.version[0]], at=900, part=UpdatePart(V, OTHER, 0)),
    lambda tape: tape.prepare("bury", 0, reason="r", at=900, part=UpdatePart(V, OTHER, 0)),
    lambda tape: tape.raw(
        record_lines.complete(211, "l", [0], part=UpdatePart(V)) + record_lines.commit(211, V, 1)
    ),
]  # fmt: skip


@pytest.mark.parametrize("act", OTHERS)
def test_no_other_record_changes_a_frozen_task(tape: Tape, act: Callable[[Tape], object]) -> None:
    tape.prepare("complete", 0, lease="l")
    before = tape.state.state[0], tape.state.since[0], tape.state.version[0], tape.state.attempts[0]
    act(tape)
    assert (tape.state.state[0], tape.state.since[0], tape.state.version[0], tape.state.attempts[0]) == before
    tape.commit(1, 999)
    assert tape.states[0] == COMPLETED


def test_the_other_tasks_of_a_record_are_changed(tape: Tape) -> None:
    tape.prepare("complete", 0, lease="l")
    tape.put("complete", 211, lease="l", tasks=[[0, 2]])
    assert tape.states[:2] == [LEASED, COMPLETED]
    tape.prepare("cancel", 2, versions=[tape.state.version[2]], part=UpdatePart(V, OTHER, 0))
    tape.lease(212, "m", 2, 3, until=900)
    assert tape.states[2:] == [AVAILABLE, LEASED]


def test_nobody_is_given_a_frozen_task_and_after_an_abort_it_is_given(tape: Tape) -> None:
    tape.prepare("complete", 0, lease="l")
    tape.prepare("cancel", 2, versions=[tape.state.version[2]])
    assert tape.state.choose(900, 9, 0, None, solo=False)[0] == [3]
    assert tape.state.choose(900, 9, 0, None)[0] == [1], "alone: its lease ran out"
    assert tape.state.choose_any(900, 9, 0, None, False, LAST, sorted)[0] == [3]
    assert tape.state.head(900, 0) is None
    assert not tape.state.exhausted(900), "the batch's file may get no later name"
    assert tape.state.next_time() == 0
    tape.abort(900)
    given = [index for _ in range(3) for index in tape.state.choose(900, 9, 0, None)[0]]
    assert {0, 2} <= set(given)


def test_a_task_that_is_the_only_one_left_is_found_again(tape: Tape) -> None:
    tape.lease(201, "m", 2, until=900)
    assert tape.state.choose(202, 1, 0, None)[0] == [3]  # the frontier passes it
    tape.prepare("replace", 3, version=tape.state.version[3], payload=1)
    assert tape.state.choose(210, 1, 0, None)[0] == []
    tape.commit(1)
    assert tape.state.choose(220, 1, 0, None)[0] == [3]
    assert tape.state.payloads == {3: 1}


def test_a_renewal_by_the_lease_acts_on_a_frozen_task(tape: Tape) -> None:
    tape.prepare("complete", 0, lease="l")
    offset = tape.put("renew", 215, lease="l", tasks=[[0, 1]], until=800)
    assert (tape.state.since[0], tape.state.version[0]) == (800, offset)
    tape.abort()
    assert tape.state.holds(0, "l")
    assert tape.state.choose(700, 9, 0, None, solo=False)[0] == [2, 3]
    assert tape.state.choose(700, 9, 0, None)[0] == [1]


@pytest.mark.parametrize("until", [300, 900])
def test_of_a_prepared_renewal_and_a_later_one_the_later_counts(tape: Tape, until: int) -> None:
    tape.prepare("renew", 0, 1, lease="l", until=600)
    tape.put("renew", 215, lease="l", tasks=[[0, 1]], until=until)
    tape.commit(1)
    assert tape.state.since[:2] == [until, 600]


def test_a_renewal_that_was_in_time_acts_though_its_commit_comes_late(tape: Tape) -> None:
    tape.prepare("renew", 0, lease="l", until=900, at=499)
    tape.commit(1, 600)
    assert tape.state.since[0] == 900, "it was judged where it stands"


def test_the_clock_is_not_corrected_beside_a_prepared_record(tape: Tape) -> None:
    """Else a renewal that was in time is late at its commit, and an update acts in part."""
    tape.prepare("renew", 0, lease="l", until=900, at=400)
    tape.put("clock", 100, tasks=[[0, 1]], since=[150])
    assert (tape.state.at, tape.state.since[0]) == (400, 500)
    tape.commit(1, 401)
    assert tape.state.since[0] == 900
    tape.put("clock", 100, tasks=[[0, 1]], since=[150])
    assert (tape.state.at, tape.state.since[0]) == (100, 150)


def test_a_batch_does_not_finish_beside_a_prepared_insert(tape: Tape) -> None:
    tape.put("complete", 205, lease="l", tasks=[[0, 2]])
    tape.put("cancel", 205, tasks=[[2, 4]], versions=tape.state.version[2:])
    tape.prepare_insert(4)
    assert tape.state.remaining == 0
    tape.put("finish", 215)
    assert not tape.state.finished
    tape.abort()
    tape.put("finish", 225)
    assert tape.state.finished


# -- tasks that an update only depends on --------------------------------------------------------------


def test_a_record_that_depends_on_tasks_freezes_them_and_changes_nothing(tape: Tape) -> None:
    before = full_state(tape.state)
    tape.prepare("depends", 0, lease="l")
    tape.prepare("depends", 2, versions=[tape.state.version[2]])
    assert tape.state.frozen == {0: U, 2: U}
    tape.put("complete", 211, lease="l", tasks=[[0, 1]])
    tape.lease(211, "m", 2, until=900)
    assert (tape.states[0], tape.states[2]) == (LEASED, AVAILABLE), "nothing changes what it depends on"
    tape.commit(2, at=212)
    after = full_state(tape.state)
    assert after | {"at": 0, "touched": 0} == before | {"at": 0, "touched": 0}
    assert tape.state.choose(213, 1, 0, None)[0] == [2]


@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_several_updates_depend_on_a_task_and_it_thaws_with_the_last(tape: Tape, outcome: str) -> None:
    for update in (U, V):
        tape.prepare("depends", 0, lease="l", part=UpdatePart(update, FILE, 5_000))
    tape.prepare("complete", 0, lease="l", part=UpdatePart(names.UpdateId("a" * 16), FILE, 0))
    assert list(tape.state.prepared) == [U, V], "one that changes the task is void"
    tape.commit(1) if outcome == "commit" else tape.abort()
    assert (tape.state.frozen, list(state_checks.broken(tape.state))) == ({0: V}, [])
    tape.put("complete", 221, lease="l", tasks=[[0, 1]])
    assert tape.states[0] == LEASED
    tape.commit(1, at=222, update=V)
    assert (tape.state.frozen, tape.state.shared) == ({}, {})
    tape.put("complete", 223, lease="l", tasks=[[0, 1]])
    assert tape.states[0] == COMPLETED


def test_none_depends_on_a_task_that_another_update_changes(tape: Tape) -> None:
    tape.prepare("complete", 0, lease="l")
    tape.prepare("depends", 0, 1, lease="l", part=UpdatePart(V, FILE, 5_000))
    assert list(tape.state.prepared) == [U]
    tape.prepare("depends", 0, lease="l")
    assert len(tape.state.prepared[U].records) == 1, "nor on one that it changes itself"


def test_a_lease_that_is_depended_on_is_renewed(tape: Tape) -> None:
    tape.prepare("depends", 0, lease="l")
    offset = tape.put("renew", 215, lease="l", tasks=[[0, 1]], until=800)
    tape.commit(1)
    assert (tape.state.since[0], tape.state.version[0]) == (800, offset)


@pytest.mark.parametrize(
    "fields",
    [
        {"lease": "other", "tasks": [[0, 1]]},
        {"lease": "l", "tasks": [[0, 3]]},
        {"versions": [0], "tasks": [[2, 3]]},
        {"versions": [], "tasks": [[2, 3]]},
        {"versions": None, "tasks": [[2, 3]]},
        {"tasks": [[2, 3]]},
        {"lease": 7, "tasks": [[0, 1]]},
        {"versions": [0], "tasks": [[4, 5]]},
    ],
)
@pytest.mark.parametrize("part", [PREPARED, WHOLE, None])
def test_a_condition_that_does_not_hold_is_void(tape: Tape, fields: dict[str, Any], part: UpdatePart | None) -> None:
    before = full_state(tape.state)
    tape.put("depends", 210, **fields, **(part.fields if part is not None else {}))
    if part is WHOLE:
        tape.raw(record_lines.complete(210, "l", [1], part=WHOLE))
        tape.commit(2, at=210)
    assert full_state(tape.state) == before
    assert (tape.state.frozen, tape.state.shared) == ({}, {})


def test_a_task_with_an_outcome_is_not_depended_on(tape: Tape) -> None:
    tape.put("complete", 205, lease="l", tasks=[[0, 1]])
    tape.prepare("depends", 0, versions=[tape.state.version[0]])
    assert tape.state.prepared == {}


# -- inserts -------------------------------------------------------------------------------------------


def test_a_prepared_insert_uses_its_index_up(tape: Tape) -> None:
    tape.prepare_insert(4)
    assert (tape.states[4], tape.state.count, tape.state.remaining) == (SKIPPED, 5, 4)
    tape.insert("late", 4)
    tape.insert("u4", 5)  # its id has acted
    assert tape.state.count == 5
    tape.abort()
    tape.insert("late", 4)
    assert (tape.states[4], tape.state.count) == (SKIPPED, 5)
    tape.insert("next", 5)
    assert tape.states[5] == AVAILABLE


@pytest.mark.parametrize("later", [0, 300])
def test_a_committed_insert_is_a_task_though_later_ones_were_leased_already(tape: Tape, later: int) -> None:
    offset = tape.prepare_insert(4, later=later)
    plain = tape.insert("plain", 5, at=211)
    tape.lease(212, "m", 2, 3, 5, until=900)
    assert tape.state.choose(213, 9, 0, None)[0] == []
    tape.commit(1)
    assert (tape.states[4], tape.state.places[4], tape.state.remaining) == (AVAILABLE, offset, 6)
    assert (tape.state.version[4], tape.state.since[4], tape.state.inserted_at) == (offset, later, 211)
    assert tape.state.next_time() == later
    assert tape.state.choose(max(221, later), 9, 0, None)[0] == [4]
    restated = checkpoints.restated(tape.state)
    assert restated["inserted"] == [[0, 6]]
    assert restated["steps"][-2:] == [offset - tape.state.places[3], plain - offset], "the places stand by index"


def test_a_committed_insert_with_a_priority_is_chosen_by_it(tape: Tape) -> None:
    line = b'{"payload":"x","priority":"a"}\n'
    tape.raw(record_lines.insert(210, "u4", 4, line, 0, PREPARED))
    assert tape.state.rank(4) == tape.state.rank(2), "it has no task to be ranked"
    tape.commit(1)
    assert tape.state.choose(220, 1, 0, None)[0] == [4]
    assert checkpoints.restated(tape.state)["priorities"] == [[4, "a"]]


def test_a_prepared_insert_acts_although_the_batch_was_sealed_meanwhile(tape: Tape) -> None:
    tape.prepare_insert(4)
    tape.put("seal", 215)
    tape.commit(1)
    assert (tape.states[4], tape.state.sealed) == (AVAILABLE, True)
    tape.prepare_insert(5, part=UpdatePart(V, FILE))
    assert V not in tape.state.prepared


# -- all in one write ----------------------------------------------------------------------------------


def test_an_update_in_one_write_acts_at_its_commit(tape: Tape) -> None:
    offset = tape.raw(record_lines.complete(210, "l", [0], part=WHOLE))
    assert (tape.states[0], tape.state.frozen, tape.state.prepared) == (LEASED, {}, {}), "it freezes nothing"
    insert = tape.prepare_insert(4, part=WHOLE)
    tape.commit(2, 210)
    assert (tape.states[0], tape.states[4]) == (COMPLETED, AVAILABLE)
    assert (tape.state.version[0], tape.state.places[4]) == (offset, insert)


BETWEEN = {
    "another record": record_lines.record("move", 210),
    "an unknown one": record_lines.record("bow", 210),
    "another update": record_lines.complete(210, "l", [1], part=UpdatePart(V)),
    "a prepared one": record_lines.complete(210, "l", [1], part=PREPARED),
    "its own abort": record_lines.abort(210, U),
}


@pytest.mark.parametrize("between", BETWEEN.values(), ids=list(BETWEEN))
@pytest.mark.parametrize("place", [1, 2])
def test_records_that_do_not_stand_directly_before_their_commit_are_void(
    tape: Tape, between: bytes, place: int
) -> None:
    lines = [record_lines.complete(210, "l", [0], part=WHOLE), record_lines.insert(210, "u4", 4, LINE, 0, WHOLE)]
    lines.insert(place, between)
    tape.raw(b"".join(lines) + record_lines.commit(210, U, 2))
    assert (tape.states[0], tape.state.count) == (LEASED, 4)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_commit_that_has_lost_one_of_its_records_is_void(tape: Tape, lost: int) -> None:
    """A power loss may keep a later page of a write, and lose one before it."""
    lines = [record_lines.complete(210, "l", [0], part=WHOLE), record_lines.insert(210, "u4", 4, LINE, 0, WHOLE)]
    lines[lost] = b"\0" * (len(lines[lost]) - 1) + b"\n"
    tape.raw(b"".join(lines) + record_lines.commit(210, U, 2))
    assert (tape.states[0], tape.state.count) == (LEASED, 4)


@pytest.mark.parametrize("written", range(3))
def test_of_a_write_that_was_cut_off_nothing_counts(tape: Tape, written: int) -> None:
    """A full disk, or a power loss, leaves a part of the lines; the next one voids the torn one, and goes on."""
    lines = [
        record_lines.complete(210, "l", [0], part=WHOLE),
        record_lines.insert(210, "u4", 4, LINE, 0, WHOLE),
        record_lines.commit(210, U, 2),
    ]
    tape.raw(b"".join(lines[:written]) + lines[written][:-9] + movements.VOID)
    assert (tape.states[0], tape.state.count, tape.state.frozen) == (LEASED, 4, {})
    tape.insert("next", 4, at=211)
    assert tape.states[4] == AVAILABLE, "the index was not used up"
    tape.put("complete", 212, lease="l", tasks=[[0, 1]])
    assert tape.states[0] == COMPLETED


def test_if_one_of_them_does_not_apply_none_does(tape: Tape) -> None:
    before = full_state(tape.state)
    tape.raw(
        record_lines.complete(210, "l", [0], part=WHOLE)
        + record_lines.complete(210, "other", [1], part=WHOLE)
        + record_lines.commit(210, U, 2)
    )
    assert full_state(tape.state) == before
    assert sorted(tape.state.choose(450, 9, 0, None)[0]) == [2, 3]
    tape.put("complete", 451, lease="l", tasks=[[0, 2]])
    assert tape.states[:2] == [COMPLETED, COMPLETED]


def test_a_checkpoint_between_them_ends_the_run(tape: Tape) -> None:
    """A reader that begins at the checkpoint does not see what stands before it."""
    tape.raw(record_lines.complete(210, "l", [0], part=WHOLE))
    line = checkpoints.record(tape.state, tape.state.at, 0, tape.state.stretch, len(tape.data))
    tape.raw(line)
    tape.commit(1, 210)
    assert tape.states[0] == LEASED


# -- checkpoints ---------------------------------------------------------------------------------------


def test_no_checkpoint_is_due_while_anything_is_prepared(tape: Tape) -> None:
    tape.prepare("complete", 0, lease="l")
    assert tape.state.checkpoint(10**6, anyway=True) == b""
    line = checkpoints.record(tape.state, tape.state.at, 0, tape.state.stretch, len(tape.data))
    here = tape.raw(line)
    assert tape.state.disputed == [here], "it hides that a task is frozen"
    tape.commit(1)
    assert tape.states[0] == COMPLETED
    assert tape.state.checkpoint(10**6, anyway=True)


# -- what readers of records take ------------------------------------------------------------------------


def test_records_are_effective_where_they_act() -> None:
    tape = Tape()
    begin = len(tape.data)
    void = tape.prepare("complete", 0, 3, lease="l")
    offsets = [tape.prepare("complete", 0, lease="l"), tape.prepare_insert(4)]
    tape.prepare("release", 1, lease="l", available_at=0, part=UpdatePart(V, FILE))
    plain = tape.lease(215, "m", 2, until=900)
    tape.commit(2)
    tape.abort(update=V)
    tape.commit(2)
    found = list(ReplayState().effective(records_of(tape.data)))
    assert [offset for offset, _ in found if offset >= begin] == [plain, *offsets]
    assert void not in [offset for offset, _ in found]
    inserts: dict[int, dict[str, Any]] = {}
    ReplayState().apply_all(records_of(tape.data), inserts)
    assert inserts[4]["first"] == 4


def records_of(data: bytes) -> list[tuple[int, dict[str, Any]]]:
    found, offset = [], 0
    for line in data.split(b"\n")[:-1]:
        record = movements.parse(line)
        if record is not None:
            found.append((offset, record))
        offset += len(line) + 1
    return found


def test_a_cut_insert_is_one_of_the_same_update() -> None:
    for part in (PREPARED, WHOLE, PREPARED._replace(beside=LOG)):
        line = record_lines.insert(1, "a", 0, b'{"payload":"%s"}\n' % (b"x" * 100), 7, part)[:-1]
        short = movements.cut(line, 0)
        record = json.loads(short)
        assert record.items() >= {"update": U, "available_at": 7, "first": 0}.items()
        assert "payload" not in record
        assert len(short) + record["cut"] == len(line)


def test_the_log_that_comes_first_stands_in_each_kind_of_record_and_is_read_back(tape: Tape) -> None:
    part = PREPARED._replace(beside=LOG)
    tape.prepare_insert(4, part=part)
    tape.raw(record_lines.complete(210, "l", [0], b"1", part=part))
    tape.prepare("release", 1, lease="l", available_at=0, part=part)
    prepared = tape.state.prepared[U]
    assert [record["beside"] for _, _, record in prepared.records] == [list(LOG)] * 3
    assert prepared.beside == LOG


@pytest.mark.parametrize("text", ["null", '"a"', '["a","0-b"]', f'["..","0-{"a" * 16}","{"1" * 32}"]'])
def test_what_names_no_log_is_passed_over(tape: Tape, text: str) -> None:
    fields = f'"update":"{U}","file":"{FILE}","patience":5000,"beside":{text}'
    tape.raw(f'{{"op":"complete","at":210,"lease":"l","tasks":[[0,1]],{fields}}}\n'.encode())
    assert tape.state.prepared[U].beside is None
    tape.commit(1)
    assert tape.state.state[0] == COMPLETED


# -- any records -----------------------------------------------------------------------------------------

updates, files = st.sampled_from([U, V]), st.sampled_from([FILE, FILE, OTHER])
outcomes = st.one_of(
    st.builds(record_lines.commit, st.integers(90, 200), updates, st.integers(0, 3)),
    st.builds(record_lines.abort, st.integers(90, 200), updates),
)
OF_UPDATES = ("renew", "complete", "release", "fail", "bury", "cancel", "replace")
dependent = st.one_of(
    plain_logs.records_of("depends", lease=plain_logs.lease_ids, tasks=plain_logs.tasks),
    plain_logs.records_of("depends", tasks=plain_logs.tasks, versions=st.just("seen")),
)


@st.composite
def one_record(draw: st.DrawFn, tape: OpenTape) -> dict[str, Any]:
    """A record that often applies: an insert, or one about tasks."""
    if draw(st.integers(0, 3)) == 0:
        first = max(0, tape.state.count + draw(st.integers(-1, 1)))
        line = record_lines.insert(draw(st.integers(90, 140)), draw(st.sampled_from("pqrst")), first, LINE)
        return json_or_none(line)
    return as_seen(tape.state, draw(st.one_of(parts, loose)))


@st.composite
def soups(draw: st.DrawFn, most: int = 16) -> bytes:
    """A log in which plain records, prepared ones, outcomes and updates in one write stand in any order."""
    tape = OpenTape()
    tape.raw(draw(open_logs(8))[len(tape.data) :])
    for _ in range(draw(st.integers(0, most))):
        choice = draw(st.integers(0, 9))
        if choice < 3:
            tape.raw(draw(outcomes))
            continue
        record = as_seen(tape.state, draw(dependent)) if choice == 9 else draw(one_record(tape))
        if choice == 9:
            record |= {"update": draw(updates), "file": draw(files)}
        if choice < 8 and (choice < 4 or record["op"] in OF_UPDATES or record["op"] == "insert"):
            record["update"] = draw(updates)
            if choice < 7:
                record["file"] = draw(files)
        tape.raw(json.dumps(record).encode() + b"\n")
        if choice == 7:
            tape.raw(record_lines.commit(record["at"], record.get("update", U), 1))
    return tape.data


def check(state: ReplayState) -> None:
    assert list(state_checks.broken(state)) == []
    for prepared in state.prepared.values():
        assert prepared.file is not None
        assert all(state.state[record["first"]] == SKIPPED for _, _, record in prepared.records if "first" in record)


@pytest.mark.slow
@given(soups(), st.data())
@settings(max_examples=how_many(10, 800))
def test_any_records_replay_and_in_pieces_as_at_once(data: bytes, draw: st.DataObject) -> None:
    state, done = ReplayState(), 0
    for line in lines_of(data):
        frozen = {index: (state.state[index], state.attempts[index]) for index in state.frozen}
        undecided = set(state.prepared)
        done += state.replay(line, done)
        check(state)
        if undecided <= set(state.prepared):
            assert all((state.state[index], state.attempts[index]) == was for index, was in frozen.items())
    assert full_state(state) == full_state(folded(data))
    cut = draw.draw(st.integers(0, len(data)))
    pieces, done = ReplayState(), 0
    for end in (cut, len(data)):
        done += pieces.replay(data[done:end], done)
    assert full_state(pieces) == full_state(state)
    assert (pieces.frozen, pieces.places, pieces.run) == (state.frozen, state.places, state.run)
    check(folded(data[:cut]))


@pytest.mark.slow
@given(soups())
@settings(max_examples=how_many(10, 800))
def test_what_readers_of_records_see_is_what_the_replay_comes_to(data: bytes) -> None:
    """All at once as one by one, and each task was changed last by a record that was effective."""
    records, state, inserts = records_of(data), ReplayState(), {}
    acted = dict(state.effective(records))
    for index in range(state.count):
        if state.state[index] != SKIPPED:
            assert state.version[index] in acted or state.version[index] == state.base_version
    at_once = ReplayState()
    at_once.apply_all(records, inserts)
    plain = folded(data)
    for one in (state, at_once):
        assert full_state(one) | {"damaged": 0} == full_state(plain) | {"damaged": 0}
        assert (one.frozen, one.places, one.touched) == (plain.frozen, plain.places, plain.touched)
    assert all(inserts[index]["first"] == index for index in plain.places)


@pytest.mark.slow
@given(open_logs(), st.data())
@settings(max_examples=how_many(10, 800))
def test_a_commit_acts_and_an_abort_is_as_if_nothing_was(data: bytes, draw: st.DataObject) -> None:
    tape = OpenTape()
    tape.raw(data[len(tape.data) :])
    assume(not tape.state.gone)
    record = draw.draw(one_record(tape).filter(lambda record: record["op"] in (*OF_UPDATES, "insert")))
    at = record["at"]
    offset = len(data)
    prepared = json.dumps(record | PREPARED.fields).encode() + b"\n"
    pad = b" " * (len(prepared) - len(json.dumps(record)) - 1)
    plain = folded(data + json.dumps(record).encode() + pad + b"\n")
    state = folded(data + prepared)
    applies = U in state.prepared
    tasks = movements.from_ranges(record.get("tasks", ()))
    changed = [index for index in tasks if index < plain.count and plain.version[index] == offset]
    if record["op"] == "insert":
        assert applies == (plain.places.get(record["first"]) == offset)
    else:
        assert applies == (changed == tasks), "it applies to all of its tasks, or not at all"
    committed = folded(data + prepared + record_lines.commit(at, U, 1))
    whole = json.dumps(record | WHOLE.fields).encode() + pad[: len(pad) - 1] + b"\n"
    at_once = folded(data + whole + record_lines.commit(at, U, 1))
    if applies:
        for one in (committed, at_once):
            assert full_state(one) == full_state(plain)
            assert one.places == plain.places
    aborted, before = folded(data + prepared + record_lines.abort(at, U)), folded(data)
    was, now = full_state(before), full_state(aborted)
    for field in ("state", "since", "holder", "attempts", "version"):
        now[field] = now[field][: before.count]
    for field in ("at", "count"):
        was.pop(field), now.pop(field)
    assert now == was
    due = draw.draw(st.integers(90, 300))
    if due >= aborted.at:
        assert sorted(aborted.choose(due, 9, 0, 3)[0]) == sorted(before.choose(due, 9, 0, 3)[0])


@pytest.fixture
def at_every_movement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "LEAST_BYTES", 0)
    monkeypatch.setattr(checkpoints, "SHARE", 0)


@pytest.mark.slow
@pytest.mark.usefixtures("at_every_movement")
@given(soups(), st.data())
@settings(max_examples=how_many(8, 600))
def test_who_begins_at_a_checkpoint_agrees_with_who_reads_all(data: bytes, draw: st.DataObject) -> None:
    log, prefixes = brief_readers.Log(), []
    for line in lines_of(data):
        log.write(line)
        if draw.draw(st.integers(0, 2)) == 0 and log.state.checkpoint(len(log.data), anyway=True):
            log.checkpoint()
        prefixes.append((len(log.data), judged(log.state)))
    at = draw.draw(st.integers(0, 300))
    for end, knew in prefixes:
        known, restored = brief_readers.whole(log.data[:end]), brief_readers.brief(log.data[:end])
        assert (known.disputed, judged(known)) == ([], knew)
        if restored is not None:
            assert (judged(restored), restored.frozen, list(restored.prepared)) == (
                knew, known.frozen, list(known.prepared),
            )  # fmt: skip
            assert brief_readers.chosen(restored, at) == brief_readers.chosen(known, at)


# -- the author's way, without a replay ------------------------------------------------------------------


def all_of(state: ReplayState) -> dict[str, Any]:
    """All that a state holds, the indexes that `choose` works with, too; leases by their ids."""

    def named(value: Any) -> Any:
        if isinstance(value, Lease):
            return value.id
        if isinstance(value, Sharing):
            return value.at, value.updates
        if isinstance(value, Prepared):
            records = [(*when, kept(record)) for *when, record in value.records]
            return value.update, value.file, value.patience_ms, records, value.tasks, value.verdicts
        if isinstance(value, (list, tuple)):
            return [named(each) for each in value]
        if isinstance(value, dict):
            return kept(value) if "op" in value else {key: named(each) for key, each in value.items()}
        return value

    return {name: named(getattr(state, name)) for name in (*States.__slots__, "at", "damaged", "gone", "run")}


def kept(record: dict[str, Any]) -> dict[str, Any]:
    """A record as its author keeps it: without what only the task's line tells."""
    return {name: value for name, value in record.items() if name not in ("payload", "b64", "key", "cut")}


def twins(tape: Tape) -> tuple[ReplayState, ReplayState]:
    """Two states that have replayed the tape."""
    return folded(tape.data), folded(tape.data)


def line_of(priority: int | str | None) -> bytes:
    more = {} if priority is None else {"priority": priority}
    return json.dumps({"payload": "x"} | more, separators=(",", ":")).encode() + b"\n"


def own(record: Record) -> tuple[Record, bytes]:
    return record, movements.encode(record)


@st.composite
def own_records(draw: st.DrawFn, state: ReplayState) -> tuple[Record, bytes]:
    """What a process may write next: a record, and its line."""
    at = state.at + draw(st.integers(0, 9))
    if state.prepared and draw(st.integers(0, 3)) == 0:
        update = draw(st.sampled_from(list(state.prepared)))
        of = draw(st.sampled_from([len(state.prepared[update].records), 9, None]))
        return own(movements.record("abort" if of is None else "commit", at, update=update, of=of))
    file, patience_ms = draw(st.none() | files), draw(st.sampled_from([0, 7_000, 10**9]))
    part = draw(st.sampled_from([None, UpdatePart(draw(updates), file, patience_ms)]))
    if draw(st.booleans()):
        lease, index = draw(st.sampled_from([*state.leases, "none"])), draw(st.integers(0, state.count))
        work = draw(st.sampled_from([{}, {"took": 4}, {"used": [[1, 2]]}])) | ({} if part is None else part.fields)
        if draw(st.booleans()):
            return movements.completion(at, lease, [index], b'{"r":1}', **work)
        return own(movements.record("complete", at, lease=lease, tasks=[[index, index + 1]], **work))
    index, priority = max(0, state.count + draw(st.integers(-1, 2))), draw(st.sampled_from([None, 5, "soon"]))
    identity, available_at = draw(st.sampled_from(["again", *"pqrst"])), draw(st.sampled_from([0, 90, 900]))
    return movements.insert(at, identity, index, line_of(priority), available_at, priority, part)


@pytest.mark.slow
@given(soups(), st.data())
@settings(max_examples=how_many(16, 1500))
def test_in_any_log_the_author_of_records_knows_what_its_readers_do(data: bytes, draw: st.DataObject) -> None:
    """Also of several updates, in one write or not, beside prepared records of others, and with outcomes between."""
    data = data[: data.rfind(b"\n") + 1]
    author, reader = folded(data), folded(data)
    for _ in range(draw.draw(st.integers(1, 6))):
        before = all_of(author)
        record, line = draw.draw(own_records(author))
        applies = author.apply(record, len(data))
        reader.replay(line, len(data))
        data += line
        assert all_of(author) == all_of(reader)
        assert applies or "update" in record or all_of(author) == before | {"run": author.run}, "it has said so"


@pytest.mark.parametrize("outcome", ["commit", "abort"])
@pytest.mark.parametrize("available_at", [0, 900])
@pytest.mark.parametrize("priority", [None, 5, "soon"])
@pytest.mark.parametrize("patience_ms", [0, 9_000, 10**9])
@pytest.mark.parametrize("work", [{}, {"took": 7, "used": [[1, 2]]}])
@pytest.mark.parametrize("file", [FILE, None])
def test_the_author_of_an_update_knows_what_its_readers_replay(
    tape: Tape, file: Any, work: Any, patience_ms: int, priority: int | str | None, available_at: int, outcome: str
) -> None:
    """Also once the outcome is there: its own, or another process's; and at a checkpoint."""
    author, reader = twins(tape)
    part, end = UpdatePart(U, file, patience_ms), len(tape.data)
    records = [own(movements.record("complete", 210, lease="l", tasks=[[0, 1]], **work, **part.fields))]
    for at, first in ((210, 4), (211, 6)):  # one index is left out
        records.append(movements.insert(at, f"u{first}", first, line_of(priority), available_at, priority, part))
    for record, line in records:
        assert author.apply(record, end) == (file is not None)
        author.stretch.append(line)
        reader.replay(line, end)
        end += len(line)
        assert all_of(author) == all_of(reader)
    if file is not None:
        assert (list(author.frozen), author.prepared[U].inserted) == ([0], [4, 6])
        assert author.checkpoint(end, anyway=True) == b"", "it would hide them"
    told = deepcopy(author)
    record, line = own(movements.record(outcome, 220, update=U, of=3 if outcome == "commit" else None))
    assert author.apply(record, end) == (outcome == "commit" or file is not None)
    author.stretch.append(line)
    for state in (told, reader):
        state.replay(line, end)
    end += len(line)
    assert all_of(author) == all_of(told) == all_of(reader)
    acted = [(place, kept(record)) for place, record in reader.acted]
    assert len(acted) == (3 if outcome == "commit" else 0)
    assert [(place, kept(each)) for place, each in author.acted] == acted
    assert (author.took, author.used) == (({0: 7}, {0: (1, 2)}) if acted and work else ({}, {}))
    [checkpoint] = {state.checkpoint(end, anyway=True) for state in (author, told, reader)}
    assert b'"check' in checkpoint
