"""Results: what was put into each finished task beside what came out of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fsqueue import InvalidArgument, Queue, QueuePurged, Result
from fsqueue.clock import ManualClock
from fsqueue.format import names
from fsqueue.storage import payloads
from fsqueue.views import task_results
from fsqueue.views.finished import FinishedBatch
from tests.support import QueueFactory

AT = 1_800_000_000.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(AT)


@pytest.fixture
def q(queue_factory: QueueFactory, clock: ManualClock) -> Queue:
    return Queue(queue_factory(backoff_s=(0, 0), max_attempts=3).path, worker="me", clock=clock)


def work(q: Queue, clock: ManualClock, n: int = 100) -> None:
    """Each task takes three seconds; odd ones fail once; 9 is given up."""
    for _ in range(n):
        if not (tasks := q.lease()):
            break
        [task] = tasks
        clock.advance(3)
        if task.payload["x"] == 9:
            task.bury("no nines")
        elif task.payload["x"] % 2 and task.attempt == 1:
            task.fail("odd", 0)
        else:
            task.complete({"y": task.payload["x"] ** 2})


@pytest.mark.parametrize("whole", [1, 1 << 30])
def test_inputs_are_beside_outputs(q: Queue, clock: ManualClock, whole: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "WHOLE_BYTES", whole)
    q.insert_many([{"x": x} for x in (1, 2, 9)], batch_tasks=3)
    work(q, clock)
    found = {result.payload["x"]: result for result in q.results()}
    assert found.keys() == {1, 2, 9}
    assert [found[x].state for x in (1, 2, 9)] == ["completed", "completed", "dead"]
    assert [found[x].result for x in (1, 2, 9)] == [{"y": 1}, {"y": 4}, None]
    assert [found[x].error for x in (1, 2, 9)] == ["odd", None, "no nines"]
    assert [found[x].attempts for x in (1, 2, 9)] == [2, 1, 1]
    assert {found[x].worker for x in (1, 2, 9)} == {"me"}
    assert {found[x].host for x in (1, 2, 9)} == {q.store.worker["host"]}
    for result in found.values():
        assert result.inserted_at == pytest.approx(AT)
        assert result.finished_at is not None
        if result.state == "completed":
            assert result.took_s == pytest.approx(3)
            assert result.started_at == pytest.approx(result.finished_at - 3)
    assert [result.payload["x"] for result in q.results(dead=True)] == [9]


def test_a_batch_at_work_shows_what_is_completed(q: Queue, clock: ManualClock) -> None:
    q.insert_many([{"x": x} for x in (2, 4, 6, 8)], batch_tasks=4)
    work(q, clock, 2)
    done = {result.payload["x"]: result.result for result in q.results()}
    assert len(done) == 2
    assert all(result == {"y": x * x} for x, result in done.items())


@pytest.mark.batched
def test_single_inserts_have_their_own_times(q: Queue, clock: ManualClock) -> None:
    for x in (2, 4):
        q.insert({"x": x}, key=f"k{x}")
        clock.advance(5)
    work(q, clock)
    expected = [({"x": 2}, "k2", AT), ({"x": 4}, "k4", AT + 5)]
    assert sorted((result.payload["x"], result.key, result.inserted_at) for result in q.results()) == [
        (payload["x"], key, pytest.approx(at, abs=0.01)) for payload, key, at in expected
    ]
    clock.advance(10)
    q.gc()
    assert sorted((result.payload["x"], result.key, result.inserted_at) for result in q.results()) == [
        (payload["x"], key, pytest.approx(at, abs=0.01)) for payload, key, at in expected
    ]


def test_cancelled_and_waiting_tasks_have_no_result(q: Queue, clock: ManualClock) -> None:
    q.insert_many([{"x": x} for x in (2, 4)], batch_tasks=2)
    work(q, clock, 1)
    [left] = q.tasks()
    assert [result.payload["x"] for result in q.results()] == [2]
    q.cancel([left.id])
    assert [result.payload["x"] for result in q.results()] == [2]


def test_a_condition_chooses(q: Queue, clock: ManualClock) -> None:
    q.insert_many([{"x": x} for x in (2, 4, 6)], batch_tasks=3)
    work(q, clock)
    assert sorted(result.payload["x"] for result in q.results(lambda result: result.result["y"] > 4)) == [4, 6]
    with pytest.raises(InvalidArgument):
        q.results("y > 4")  # type: ignore[arg-type]


def test_a_payload_of_bytes_is_ready_for_json() -> None:
    result = Result("a" * 32 + ".0", "completed", 1, b"\xff", {"y": 1})
    assert result.as_dict()["b64"] == "/w=="
    assert "payload" not in result.as_dict()
    assert Result("a" * 32 + ".0", "completed", 1, "x").as_dict()["payload"] == "x"


def test_a_result_that_nests_and_a_record_that_names_versions_are_read_exactly(q: Queue, clock: ManualClock) -> None:
    """Such lines of the history are decoded record by record."""
    deep: object = 1
    for _ in range(150):
        deep = [deep]
    q.insert_many([{"x": 2}, {"x": 4}, {"x": 6}], batch_tasks=3)
    tasks = {task.payload["x"]: task for task in q.lease(3)}
    tasks[2].complete(deep)
    tasks[4].release()
    assert q.cancel([tasks[4].id]) == 1
    tasks[6].complete("six")
    assert {result.payload["x"]: result.result for result in q.results()} == {2: deep, 6: "six"}


@pytest.mark.batched  # with one task a batch a queue takes no keys
def test_columns_are_the_fields_of_results(q: Queue, clock: ManualClock) -> None:
    q.insert_many([{"x": x} for x in (1, 2, 9)], batch_tasks=3)
    q.insert({"x": 4}, key="k")
    work(q, clock)
    rows = [Result._make(row) for item in q.result_columns() for row in zip(*item, strict=True)]
    assert rows == [*q.results()]
    assert {row.payload["x"] for row in rows} == {1, 2, 4, 9}
    [letters] = q.result_columns(dead=True)
    assert [row.id for row in rows if row.state == "dead"] == letters[0]


def test_payloads_at_once_are_as_one_after_the_other() -> None:
    """Bytes, damaged lines, missing ones and replaced payloads among sound ones."""
    batch = names.parse_batch("01a215d3710a76d3b960cebcb6b873c0")
    assert batch is not None
    count = 5
    sound = [b'{"payload":{"x":1}}', b'{"payload":null,"key":"k"}', b'{"payload":[2],"priority":3}', b'{"payload":4}']
    records: list[tuple[int, Any]] = [(0, {"op": "open", "at": 5, "count": count})]
    for lines in (
        [*sound, b'{"payload":5}'], [*sound, b'{"b64":"/w=="}'], [*sound, b'{"b64":7}'], [*sound, b"torn"],
        [*sound, b"[]"], [*sound, b'{"key":"k"}'], sound, [], [*sound, b'{"payload":5}', b'{"payload":6}'],
        [b'{"payload":{"x":1,"y":[2]}}'] * count, [b'{"payload":{"x":1,"y":[2]}}'] * (count + 1),
    ):  # fmt: skip
        found = FinishedBatch(batch, records, lines, None)
        for indices in (range(count), [0, 3], [4], [1, 2, 4]):
            each = zip(*map(found.task, indices), strict=True)
            assert [*map(list, found.tasks(indices))] == [*map(list, each)]
    found.replay_state.payloads[2] = "new"
    for indices in (range(5), [1, 2]):
        assert found.tasks(indices)[0] == [found.task(index)[0] for index in indices]
    assert found.task(2)[0] == "new"


@pytest.mark.parametrize("at_end", [False, True])
def test_a_purge_meanwhile_is_an_error(q: Queue, clock: ManualClock, at_end: bool) -> None:
    q.insert_many([{"x": x} for x in range(4)], batch_tasks=1)
    work(q, clock)
    found = q.results()
    for _ in range(4 if at_end else 1):
        next(found)
    Queue(q.path, clock=clock).purge()
    if at_end:  # another call may find it out first
        q.insert({"x": 5})
    with pytest.raises(QueuePurged, match="while its results were being read"):
        list(found)


@pytest.mark.batched
def test_what_finishes_while_it_is_read_comes_once(q: Queue, clock: ManualClock) -> None:
    """A batch is read in its log, and then it is in the history."""
    other = Queue(q.path, clock=clock)
    looks: list[Iterator[Any]] = [q.results(), q.tasks("completed")]
    for found in looks:
        q.insert_many([{"x": 2}, {"x": 4}], batch_tasks=2)
        first, second = other.lease(2)
        before = {result.id for result in q.results()}
        first.complete()
        ids = [next(found).id]
        second.complete()
        ids += [one.id for one in found]
        assert sorted(ids) == sorted({first.id, *before})


@pytest.mark.batched
def test_many_dead_letters_come_some_at_a_time(q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_results, "LETTERS_AT_ONCE", 2)
    given = {q.insert({"x": x}, key=f"k{x}").id: f"k{x}" for x in range(5)}
    for task in q.lease(5):
        task.bury("no")
    found = list(q.results(dead=True))
    assert {result.id: result.key for result in found} == given
    assert [len(columns[0]) for columns in q.result_columns(dead=True)] == [2, 2, 1]
    assert {(result.attempts, result.started_at) for result in found} == {(1, None)}
    assert [result.finished_at for result in found] == [pytest.approx(AT)] * 5
