"""Record batches taken while those before them are being written."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

pa = pytest.importorskip("pyarrow")

from fsqueue.errors import InvalidTask  # noqa: E402
from fsqueue.spark import ahead as module  # noqa: E402
from fsqueue.spark.ahead import ahead  # noqa: E402
from fsqueue.spark.memory_pool import system_pool  # noqa: E402

WAIT_S = 30.0


def batch(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": [number] * 10})


def number_of(one: pa.RecordBatch) -> int:
    return int(one.column(0)[0].as_py())


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "fsqueue-ahead"]


def ended() -> None:
    for one in threads():
        one.join(WAIT_S)
    assert not threads()


def test_all_batches_come_in_order() -> None:
    assert [number_of(one) for one in ahead(batch(number) for number in range(100))] == list(range(100))
    assert list(ahead(iter(()))) == []
    ended()


def test_batches_are_taken_while_the_one_before_is_in_use() -> None:
    taken = [threading.Event() for _ in range(5)]

    def given() -> Iterator[pa.RecordBatch]:
        for number in range(5):
            taken[number].set()
            yield batch(number)

    for one in ahead(given()):
        assert all(event.wait(WAIT_S) for event in taken), number_of(one)


def test_no_more_is_taken_than_there_is_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AHEAD_BYTES", 2 * batch(0).nbytes)
    taken = []

    def given() -> Iterator[pa.RecordBatch]:
        for number in range(20):
            taken.append(number)
            yield batch(number)

    for number, _ in enumerate(ahead(given())):
        assert len(taken) <= number + 4
    assert len(taken) == 20
    ended()


def test_an_error_comes_after_the_batches_before_it() -> None:
    def given() -> Iterator[pa.RecordBatch]:
        yield batch(0)
        yield batch(1)
        raise InvalidTask("bad")

    wanted = ahead(given())
    assert [number_of(next(wanted)), number_of(next(wanted))] == [0, 1]
    with pytest.raises(InvalidTask, match="bad"):
        next(wanted)
    ended()


def test_the_thread_ends_when_no_more_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AHEAD_BYTES", 1)
    wanted = ahead(batch(number) for number in range(20))
    assert number_of(next(wanted)) == 0
    wanted.close()  # type: ignore[attr-defined]
    ended()


def test_without_another_thread_everything_is_taken_by_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module._Taker, "start", refuse)
    assert [number_of(one) for one in ahead(batch(number) for number in range(3))] == [0, 1, 2]


def test_arrow_takes_its_memory_elsewhere_for_a_while() -> None:
    before = pa.default_memory_pool().backend_name
    with system_pool():
        assert pa.default_memory_pool().backend_name == "system"
    assert pa.default_memory_pool().backend_name == before
    with pytest.raises(InvalidTask), system_pool():
        raise InvalidTask("bad")
    assert pa.default_memory_pool().backend_name == before
