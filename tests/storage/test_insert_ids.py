"""Which task the `insert` record of an id has made: read once, or searched for in the whole log."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsqueue.filesystem import Filesystem
from fsqueue.format import movements, names
from fsqueue.format.layout import Layout
from fsqueue.format.replay import ReplayState
from fsqueue.storage import insert_ids
from fsqueue.storage.logs import Log
from tests import record_lines

BATCH = names.Batch("0193f0c2a4b97c31a2d5e8f001234567")
A, B, C, D = (letter * 16 for letter in "abcd")
OPEN = record_lines.record("open", 100, count=0, inserts="shared")
TASK = b'{"payload":1,"key":"k"}\n'


@pytest.fixture
def log(tmp_path: Path) -> Log:
    fs = Filesystem(str(tmp_path), shared=False)
    layout = Layout(str(tmp_path), "1", 1)
    fs.make_directory(layout.base)
    return Log(fs, layout, BATCH, fs.open_append(layout.log(BATCH)), False)


def written(log: Log, *records: bytes) -> None:
    """Append as another process, and catch up."""
    for record in records:
        log.fs.write_all(log.fd, record)
    log.catch_up()


def searched(log: Log, identity: str) -> tuple[int | None, bool]:
    """What a reader finds who reads the whole log."""
    state, pieces = ReplayState(), log.fs.all_pieces(log.fd)
    state.replay_pieces(pieces, 0)
    return insert_ids.find(state, pieces, identity)


def found(log: Log, identity: str) -> int | None:
    index = log.find_insert(identity)
    assert index == searched(log, identity)[0]
    return index


def test_a_task_is_found_as_the_log_grows_and_not_when_it_has_ended(log: Log) -> None:
    written(log, OPEN, record_lines.insert(100, A, 0, TASK))
    assert [found(log, one) for one in (A, B)] == [0, None]
    written(log, record_lines.insert(101, B, 1, TASK, 900), record_lines.lease(102, "l", [0], 900, "{}", False))
    assert [found(log, one) for one in (A, B)] == [0, 1]
    written(log, record_lines.complete(103, "l", [0]))
    assert [found(log, one) for one in (A, B)] == [None, 1]
    assert searched(log, A) == (None, True)
    assert searched(log, C) == (None, False)


def test_of_two_records_with_one_id_the_one_counts_that_has_made_a_task(log: Log) -> None:
    written(log, OPEN, record_lines.insert(100, B, 0, TASK), record_lines.insert(100, A, 0, TASK))
    assert found(log, A) is None  # its index was taken
    written(log, record_lines.insert(101, A, 1, TASK))
    assert found(log, A) == 1
    written(log, record_lines.insert(102, A, 2, TASK), record_lines.insert(102, C, 2, TASK))
    assert [found(log, one) for one in (A, B, C)] == [1, 0, 2]


def test_a_torn_record_that_was_voided_does_not_count(log: Log) -> None:
    torn = record_lines.insert(100, A, 0, TASK)[:-5]
    written(log, OPEN, torn)
    assert log.find_insert(A) is None
    written(log, movements.VOID, record_lines.insert(101, B, 0, TASK))
    assert [found(log, one) for one in (A, B)] == [None, 0]
    written(log, record_lines.insert(102, A, 1, TASK))
    assert found(log, A) == 1


def test_a_record_in_the_form_of_another_program_is_found_too(log: Log) -> None:
    other = b'{"at":100,"first":0,"payload":1,"op":"insert","id":"%s"}\n' % A.encode()
    written(log, OPEN, other, record_lines.insert(101, B, 1, TASK))
    assert [found(log, one) for one in (A, B)] == [0, 1]


def test_a_reader_who_begins_at_a_checkpoint_finds_what_lives(log: Log) -> None:
    written(log, OPEN, *(record_lines.insert(100, f"{number:016x}", number, TASK) for number in range(1000)))
    written(log, record_lines.lease(102, "l", [3], 900, "{}", False), record_lines.complete(103, "l", [3]))
    log.append_checkpoint()
    again = Log(log.fs, log.layout, BATCH, log.fs.open_append(log.path), False)
    again.catch_up()
    assert not again.replay_state.is_whole
    assert [again.find_insert(f"{number:016x}") for number in (0, 3, 999)] == [0, None, 999]


def test_a_prepared_record_is_no_task_before_its_commit_and_is_one_after_it(log: Log) -> None:
    """It was read before: what is judged once and for all would take the task for one that is not there."""
    part = movements.UpdatePart(names.UpdateId(D), names.DecisionFileName("e" * 32), 5_000)
    written(log, OPEN, record_lines.insert(100, A, 0, TASK, 0, part), record_lines.insert(100, B, 1, TASK, 0, part))
    assert [found(log, one) for one in (A, B)] == [None, None]
    assert [log.replay_state.prepared_insert(one) for one in (A, B, C)] == [D, D, None]
    written(log, record_lines.commit(101, part.update, 2))
    assert [found(log, one) for one in (A, B)] == [0, 1]
    assert log.replay_state.prepared_insert(A) is None


def test_a_prepared_record_that_was_aborted_is_no_task(log: Log) -> None:
    part = movements.UpdatePart(names.UpdateId(D), names.DecisionFileName("e" * 32), 5_000)
    written(log, OPEN, record_lines.insert(100, A, 0, TASK, 0, part), record_lines.abort(101, part.update))
    assert found(log, A) is None
    assert searched(log, A) == (None, True)
