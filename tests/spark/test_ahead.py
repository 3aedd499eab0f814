"""Record batches taken while those before them are being written."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql import types  # noqa: E402

from fsqueue import Queue  # noqa: E402
from fsqueue.errors import InvalidTask  # noqa: E402
from fsqueue.spark import options, reading, writing  # noqa: E402
from fsqueue.spark import record_batches as module  # noqa: E402
from fsqueue.spark.record_batches import ahead, system_pool  # noqa: E402
from tests.waiting import PATIENCE_S, until  # noqa: E402


def batch(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": [number] * 10})


def number_of(one: pa.RecordBatch) -> int:
    return int(one.column(0)[0].as_py())


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "fsqueue-ahead"]


def ended() -> None:
    until(lambda: not threads(), "the thread to end")


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
        assert all(event.wait(PATIENCE_S) for event in taken), number_of(one)


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
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

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


def test_a_write_takes_batches_ahead_and_a_read_leaves_no_pool_behind(tmp_path: Path) -> None:
    path, before = str(Queue.create(tmp_path / "q").path), pa.default_memory_pool().backend_name
    seen = []

    def given() -> Iterator[pa.RecordBatch]:
        seen.append((threading.current_thread().name, pa.default_memory_pool().backend_name))
        yield batch(7)

    kind = types.StructType().add("n", "long")
    writer = writing.FsqueueWriter(options.writing({"path": path}), kind, False)
    writer.commit([writer.write(given())])
    assert seen == [("fsqueue-ahead", "system")]
    reader = reading.FsqueueReader(options.reading({"path": path}), types.StructType().add("payload", kind))
    found = [one for partition in reader.partitions() for one in reader.read(partition)]
    assert [one.column(0).to_pylist() for one in found] == [[{"n": 7}] * 10]
    assert pa.default_memory_pool().backend_name == before


def test_planning_does_without_pandas() -> None:
    code = "import sys, fsqueue.spark.reading, fsqueue.spark.writing; print('pandas' in sys.modules)"
    top = Path(__file__).resolve().parents[2]
    found = subprocess.run([sys.executable, "-c", code], cwd=top, capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
