"""Small parts of a write: carried to the driver, which stages them together. Their promises are those of large ones."""

from __future__ import annotations

import copy
import math
import os
from pathlib import Path
from typing import Any

import pytest

from fsqueue import CommitLost, InvalidArgument, Queue
from fsqueue.format.models import CommitPart
from fsqueue.protocol.encoding import NOW, Encoded, When
from fsqueue.storage import commits
from tests.support import QueueFactory, age_staging, leftovers

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'fsqueue-tasks[spark]'")

import pyarrow as pa
from pyspark.sql import SparkSession, types

from fsqueue.format.priority import rank_of
from fsqueue.spark import options, seed, writing
from fsqueue.spark.writing import FsqueueStreamWriter, FsqueueWriter, StagedOf, StagedPart
from tests.spark.drivers import rows, troubled

SCHEMA = types.StructType([types.StructField("n", types.LongType())])
LARGE = 2_000
"""A number of rows, of those below, that a message has no room for."""


def writer(queue: Queue, commit: str | None = "c", overwrite: bool = False, **given: str) -> FsqueueWriter:
    path = {"path": str(queue.path), **({} if commit is None else {"commit": commit}), **given}
    return FsqueueWriter(options.writing(path), SCHEMA, overwrite)


def written(driver: FsqueueWriter, *numbers: int) -> StagedPart:
    """Return the message of a Spark task that writes these rows in another process."""
    executor = copy.deepcopy(driver)  # which reopens the commit, as unpickling does
    batch = pa.record_batch({"n": pa.array(numbers, pa.int64())})
    return executor.write(iter([batch]))


def staged(queue: Queue) -> list[str]:
    return [path.name for path in Path(queue.store.layout.staging).rglob("*.jsonl")]


def numbers(queue: Queue) -> list[int]:
    return sorted(task.payload["n"] for task in Queue(queue.path).tasks())


def sizes(queue: Queue) -> list[int]:
    return sorted(int(path.stem.split("-")[2]) for path in queue.path.rglob("queue/*/*.jsonl"))


@pytest.mark.parametrize("name", ["", "a/b"])
def test_a_name_that_no_commit_can_have_is_refused_and_not_left_out(queue: Queue, name: str) -> None:
    """A user whose variable is not set, and who repeats the write, would insert all rows again."""
    with pytest.raises(InvalidArgument, match="cannot be a commit's name"):
        writer(queue, commit=name)


def test_many_small_parts_become_few_files(queue: Queue) -> None:
    driver = writer(queue)
    messages = [written(driver, n) for n in range(300)]
    assert not Path(queue.store.layout.staging).exists()  # no Spark task has written a file
    driver.commit(messages)
    assert numbers(queue) == list(range(300))
    # 32 tasks a file: as those of a bulk insert of 300 tasks over a network mount
    assert sizes(queue) == ([12] + [32] * 9 if queue.settings.batch_tasks_max > 1 else [1] * 300)
    assert os.listdir(queue.store.layout.staging) == []
    assert list(queue.fsck()) == []


def test_a_large_part_is_staged_and_counts_for_the_size_of_the_others_files(queue: Queue) -> None:
    driver = writer(queue)
    large = written(driver, *range(LARGE))
    assert isinstance(large.part, CommitPart)
    assert sum(int(name.split("-")[2].partition(".")[0]) for name in staged(queue)) == LARGE
    driver.commit([large, *(written(driver, n) for n in range(LARGE, LARGE + 100)), written(driver)])
    assert numbers(queue) == list(range(LARGE + 100))
    assert queue.settings.batch_tasks_max == 1 or sizes(queue).count(68) == 1  # of 2,100 tasks, 68 each


def test_what_was_overwritten_is_gone_and_small_parts_are_there(queue: Queue) -> None:
    queue.insert({"n": -1})
    driver = writer(queue, overwrite=True)
    driver.commit([written(driver, 1), written(driver, 2)])
    assert numbers(queue) == [1, 2]


def test_no_rows_at_all_are_a_commit_too(queue: Queue) -> None:
    driver = writer(queue)
    driver.commit([written(driver) for _ in range(3)])
    known = queue.commit("c").committed()
    assert known is not None
    assert known.tasks == 0


def test_other_rows_under_a_name_that_another_driver_has_published_are_an_error(queue: Queue) -> None:
    """Whether it was quicker, or had ended before. The number of the rows tells, however they are parted."""
    quick, same, other = writer(queue), writer(queue), writer(queue)
    quick.commit([written(quick, 1, 2)])
    same.commit([written(same, 1), written(same, 2)])
    late, late_other = writer(queue), writer(queue)
    late.commit([written(late, 2, 1)])
    for driver, given in ((other, (1,)), (late_other, (1, 2, 3))):
        with pytest.raises(InvalidArgument, match="The commit c was made before, with 2 tasks"):
            driver.commit([written(driver, *given)])
    assert numbers(queue) == [1, 2]


@pytest.mark.parametrize("partitions", [1, 4096, 100_000, 1_000_000])
def test_what_all_messages_carry_is_bounded(partitions: int) -> None:
    total = sum(map(writing.bytes_max, range(partitions)))
    assert total <= writing.TOTAL_BYTES * (1 + math.log(max(1, partitions / 4096)) + 0.001)
    assert writing.bytes_max(0) == writing.PART_BYTES_MAX


def test_a_part_just_above_what_a_message_carries_is_staged_whole(queue: Queue) -> None:
    commit = queue.commit("c")
    line = b'{"payload":"%s"}\n' % (b"x" * 1000)
    most = writing.bytes_max(100_000) // len(line)

    def batches(count: int) -> list[Encoded]:
        found = [Encoded(NOW) for _ in range(count)]
        for one in found:
            one.take(line, 1)
        return found

    assert most == 0
    assert isinstance(writing.carry_or_stage(commit, batches(1), 100_000), CommitPart)
    fitting = writing.PART_BYTES_MAX // len(line)
    assert isinstance(writing.carry_or_stage(commit, batches(fitting), 0), writing.SmallPart)
    found = writing.carry_or_stage(commit, batches(fitting + 1), 0)
    assert isinstance(found, CommitPart)
    assert found.tasks == fitting + 1


# -- how they are merged ---------------------------------------------------------------------------------------


def batch(count: int, when: When = NOW, payload: bytes = b"1") -> writing.SmallBatch:
    return writing.SmallBatch(when, False, count, b'{"payload":%s}\n' % payload * count)


def test_files_hold_no_more_tasks_than_asked_for() -> None:
    found = list(writing.merged([batch(3) for _ in range(5)], 7))
    assert [one.tasks for one in found] == [6, 6, 3]


def test_files_hold_no_more_bytes_than_a_batch() -> None:
    large = batch(1, payload=b'"%s"' % (b"x" * (writing.BATCH_BYTES_MAX // 3)))
    found = list(writing.merged([large] * 5, 1024))
    assert [one.tasks for one in found] == [2, 2, 1]


def test_tasks_of_different_times_are_in_different_files() -> None:
    soon, late = (False, 1000), (False, 2000)
    found = list(writing.merged([batch(1, soon), batch(2, late), batch(3, soon)], 1024))
    assert {one.when: one.tasks for one in found} == {soon: 4, late: 2}


def test_tasks_with_priorities_are_sorted_over_all_parts() -> None:
    def urgent(*priorities: Any) -> writing.SmallBatch:
        lines = [b'{"payload":1,"priority":%s}\n' % one for one in priorities]
        return writing.SmallBatch(NOW, True, len(lines), b"".join(lines))

    found = list(writing.merged([urgent(b"3", b"7"), batch(1), urgent(b"1", b"8"), urgent(b"2", b'"a"')], 3))
    firsts = [(one.rank, one.tasks) for one in found]
    assert firsts == [(rank_of(1), 3), (rank_of(7), 3), (rank_of(None), 1)]


def test_a_part_is_not_cut_unless_that_was_asked_for(queue_factory: QueueFactory) -> None:
    settings = queue_factory().settings
    most = settings.batch_tasks_max
    assert writing.tasks_per_file([batch(20), batch(3)], 0, settings, None) == min(most, 32)
    assert writing.tasks_per_file([batch(1)] * 3000, 0, settings, None) == min(most, 140)
    assert writing.tasks_per_file([batch(1)] * 3000, 0, settings, 5) == min(most, 5)


# -- what goes wrong -------------------------------------------------------------------------------------------


class DeadDriver(BaseException):
    pass


def dies(*_: object) -> None:
    raise DeadDriver


def test_small_parts_of_a_queue_that_was_purged_are_refused(queue: Queue) -> None:
    driver = writer(queue)
    messages = [written(driver, 1)]
    queue.purge()
    with pytest.raises(CommitLost, match=r"was purged.*Nothing of them is visible. Write them again"):
        driver.commit(messages)
    driver.abort(messages)
    assert numbers(queue) == []
    assert staged(queue) == []


def test_a_driver_that_dies_before_the_decision_has_inserted_nothing(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = writer(queue)
    messages = [written(driver, n) for n in range(3)]
    with monkeypatch.context() as patched:
        patched.setattr(commits, "decide", dies)
        with pytest.raises(DeadDriver):
            driver.commit(messages)
    assert numbers(queue) == []
    assert staged(queue) != []
    again = writer(queue)
    again.commit([written(again, n) for n in range(3)])
    assert numbers(queue) == [0, 1, 2]
    age_staging(queue, 8 * 86_400)
    queue.gc()
    assert staged(queue) == []


def test_a_driver_that_dies_after_the_decision_has_inserted_all(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = writer(queue)
    messages = [written(driver, n) for n in range(3)]
    with monkeypatch.context() as patched:
        patched.setattr(commits, "apply", dies)
        with pytest.raises(DeadDriver):
            driver.commit(messages)
    again = writer(queue)
    again.commit([written(again, n) for n in range(3)])
    assert numbers(queue) == [0, 1, 2]
    assert staged(queue) == []


def test_a_commit_that_fails_leaves_nothing_behind(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = writer(queue)
    messages = [written(driver, n) for n in range(3)]

    def fails(*_: object) -> None:
        raise OSError("no")

    with monkeypatch.context() as patched:
        patched.setattr(commits, "_prove", fails)
        with pytest.raises(Exception, match="Nothing of it is visible"):
            driver.commit(messages)
    driver.abort(messages)
    assert (numbers(queue), leftovers(queue)) == ([], [])


def test_a_micro_batch_that_fails_leaves_nothing_behind_and_can_be_repeated(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the driver's call knows the attempt in which it has staged small parts."""
    driver = FsqueueStreamWriter(options.writing({"path": str(queue.path)}), SCHEMA, False)
    line = Encoded(NOW)
    line.take(b'{"payload":{"n":1}}\n', 1)
    messages = [StagedOf(writing.carry_or_stage(queue.commit("any"), [line], 0), "query")]

    def fails(*_: object) -> None:
        raise OSError("no")

    with monkeypatch.context() as patched:
        patched.setattr(commits, "_prove", fails)
        with pytest.raises(Exception, match="Nothing of it is visible"):
            driver.commit(messages, 0)
    assert (numbers(queue), leftovers(queue)) == ([], [])
    for _ in range(2):
        driver.commit(messages, 0)
    assert numbers(queue) == [1]
    assert staged(queue) == []


def test_small_partitions_whose_tasks_are_tried_again_are_inserted_once(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    df = troubled(rows(spark, 40, 10), str(marks), "fails")
    report = seed(df, str(queue.path), commit="c", batch_tasks=64)
    assert len(os.listdir(marks)) == 20
    assert (report.rows, report.batches) == (40, 1 if queue.settings.batch_tasks_max > 1 else 40)
    assert numbers(queue) == list(range(40))
    assert os.listdir(queue.store.layout.staging) == []
