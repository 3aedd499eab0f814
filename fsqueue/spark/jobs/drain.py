"""Executors as workers, in rounds: lease and compute, write the results as Parquet, then complete what was written.

| crash after | what is left | what happens to it |
|---|---|---|
| the lease | leases | they run out, or the round that failed releases them |
| a round's results | results whose tasks are leased | the next drain into that directory completes them |
| some completions | the same, some of them completed | the same: it knows its own completions |

So a task's result is there before it counts as done, and `results` gives each task's once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fsqueue import administration
from fsqueue.errors import InvalidArgument, LeaseLost, said
from fsqueue.format import names
from fsqueue.format.models import AsDict
from fsqueue.format.replay import ReplayState
from fsqueue.format.results import encode_result
from fsqueue.interruptions import suppress
from fsqueue.leased_task import LeasedTask
from fsqueue.queue import Queue
from fsqueue.spark.jobs.output_directory import Place
from fsqueue.spark.options import directory
from fsqueue.spark.sessions import parallelism, register, spark_errors
from fsqueue.spark.views import payload
from fsqueue.views import outcomes

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

LEASED = "id STRING, token STRING, generation INT, attempt INT, payload STRING, payload_bytes BINARY"
COMPUTED = "id STRING, token STRING, generation INT, attempt INT, result STRING, error STRING, took_s DOUBLE"
SETTLED = "id STRING, token STRING, outcome STRING"
COMPLETED, FAILED, LOST = "completed", "failed", "lost"
"""The end of a task whose result was written. Lost: another worker has taken it over meanwhile."""
TASKS_PER_PARTITION = 10_000
ROWS_MAX = 1000
"""Maximum number of tasks to lease, compute and pass on at a time."""

Function = Callable[[Any], Any]


@dataclass(frozen=True)
class DrainReport(AsDict):
    """The result of a drain, in numbers of rounds and of tasks."""

    rounds: int
    completed: int
    failed: int
    lost: int


def drain(
    spark: SparkSession,
    path: str,
    out: str,
    work: Function | str,
    *,
    payload_schema: str | None = None,
    lease_s: float = 3600,
    partitions: int | None = None,
    partition_tasks: int = TASKS_PER_PARTITION,
    rounds_max: int | None = None,
) -> DrainReport:
    """Work on a queue's tasks until none is available, and write what comes out into the directory `out`.

    `work`: a function of the payload, whose result is JSON (an exception fails the attempt, and the task is tried again
    later); or an SQL expression over the columns id, attempt, payload (JSON text, or a struct of the fields in
    `payload_schema`) and payload_bytes. A round takes `partitions` x `partition_tasks` tasks for `lease_s` seconds: it
    has to end within. `results` reads what was written. A drain that died is gone on with by another one into the same
    directory. While one is at work there, another is refused: InvalidArgument.
    """
    register(spark)
    queue = Queue(directory(path))
    place = Place(out)
    job = _Drain(spark, str(queue.path), place, work, payload_schema, lease_s, partition_tasks)
    partitions = partitions or parallelism(spark)
    with spark_errors(), place.held():
        for number in sorted(set(place.whole("results")) - set(place.whole("settled"))):
            job.complete_round(number)
        rounds: float = math.inf if rounds_max is None else rounds_max
        while len(job.rounds) < rounds and job.round(max([0, *place.whole("results")]) + 1, partitions):
            pass
        return job.report()


def results(spark: SparkSession, out: str) -> DataFrame:
    """Return the results of a directory: id, attempt, result (JSON text, or the expression's own type), each task's
    once.
    """
    there = spark.read.parquet(f"{out}/results").where("error IS NULL")
    settled = spark.read.parquet(f"{out}/settled").where(f"outcome = '{COMPLETED}'").select("token")
    return there.join(settled, "token", "left_semi").select("id", "attempt", "result")


class _Drain:
    def __init__(
        self,
        spark: SparkSession,
        path: str,
        place: Place,
        work: Function | str,
        payload_schema: str | None,
        lease_s: float,
        most: int,
    ) -> None:
        if callable(work) and payload_schema is not None:
            raise InvalidArgument("payload_schema is for SQL expressions; a function gets the payload as it is.")
        self.spark, self.path, self.place = spark, path, place
        self.work, self.payload_schema = work, payload_schema
        self.lease_s, self.most = lease_s, most
        self.rounds: set[int] = set()

    def round(self, number: int, partitions: int) -> bool:
        """Lease, compute, write, complete; False if there was nothing to lease."""
        worker = f"spark-drain-{uuid4()}."
        table = f"{self.place.path}/results/round={number}"
        function = self.work if callable(self.work) else None
        lessee = Lessee(self.path, worker, self.lease_s, self.most, function)
        try:
            slots = self.spark.range(0, partitions, 1, partitions)
            df = slots.mapInArrow(lessee, LEASED if function is None else COMPUTED)
            if function is None:
                df = self._computed(df)
            df.write.mode("overwrite").parquet(table)
            leased: int = self.spark.read.parquet(table).count()
            self.complete_round(number)
        finally:  # what attempts leased that came to nothing
            released = release_leases(Queue(self.path), worker)
        return leased + released > 0

    def _computed(self, df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        if self.payload_schema is not None:
            df = df.withColumn("payload", F.from_json("payload", self.payload_schema))
        return df.select(
            "id",
            "token",
            "generation",
            "attempt",
            F.expr(str(self.work)).alias("result"),
            F.lit(None).cast("string").alias("error"),
            F.lit(None).cast("double").alias("took_s"),
        )

    def complete_round(self, number: int) -> None:
        """Complete what a round's table holds, fail what has an error in it, and write down what became of each."""
        df = self.spark.read.schema(COMPUTED.replace("result STRING, ", "")).parquet(
            f"{self.place.path}/results/round={number}"
        )
        settled = df.mapInArrow(Completer(self.path), SETTLED)
        settled.write.mode("overwrite").parquet(f"{self.place.path}/settled/round={number}")
        self.rounds.add(number)

    def report(self) -> DrainReport:
        """Return the sums of this drain's rounds; the last, empty one counts as none."""
        counts: dict[str, int] = {}
        rounds = 0
        for number in self.rounds:
            table = self.spark.read.schema(SETTLED).parquet(f"{self.place.path}/settled/round={number}")
            found = {row["outcome"]: row["count"] for row in table.groupBy("outcome").count().collect()}
            rounds += bool(found)
            for outcome, count in found.items():
                counts[outcome] = counts.get(outcome, 0) + count
        return DrainReport(rounds, *(counts.get(outcome, 0) for outcome in (COMPLETED, FAILED, LOST)))


def release_leases(queue: Queue, worker: str) -> int:
    """End the leases of all workers whose names begin so, uncharged; returns how many."""

    def is_theirs(replay_state: ReplayState, index: int) -> bool:
        holder = replay_state.holder[index]
        return holder is not None and str((holder.worker or {}).get("name", "")).startswith(worker)

    return administration.release(queue.store, is_theirs)


class Lessee:
    """Lease tasks in an executor and, if there is a function, apply it to them.

    If Spark repeats a task, the repeat takes over what the former attempts have leased. Otherwise it would find nothing
    to do, and the reason of their failure would never be reported. (A speculative copy takes it from its twin, too.)
    """

    def __init__(self, path: str, worker: str, lease_s: float, most: int, function: Function | None) -> None:
        self.path, self.worker = path, worker
        self.lease_s, self.most = lease_s, most
        self.function = function

    def __call__(self, slots: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for slot in slots:
            for _ in range(slot.num_rows):
                yield from self._slot(f"{self.worker}{context.partitionId()}.", context.attemptNumber())

    def _slot(self, worker: str, attempt: int) -> Iterator[pa.RecordBatch]:
        left = self.most
        with Queue(self.path, worker=f"{worker}{attempt}") as queue:
            if attempt:
                release_leases(queue, worker)
            while left > 0 and (tasks := queue.lease(min(left, ROWS_MAX), lease_s=self.lease_s)):
                left -= len(tasks)
                rows = [
                    (
                        *(task.id, task.token, task.generation, task.attempt),
                        *(payload(task.payload) if self.function is None else _apply(self.function, task.payload)),
                    )
                    for task in tasks
                ]
                yield _batch(LEASED if self.function is None else COMPUTED, rows)


def _apply(function: Function, value: Any) -> tuple[str | None, str | None, float]:
    """Return the result as JSON, or the error; and the seconds that it took."""
    began = time.perf_counter()
    try:
        result = encode_result(function(value), None)
        return result.decode(), None, time.perf_counter() - began
    except Exception as error:
        return None, said(error), time.perf_counter() - began


class Completer:
    """Completes or fails in an executor what was leased in another one."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Queue(self.path) as queue:
            for batch in batches:
                rows = batch.to_pylist()
                yield _batch(SETTLED, [row for part in (self._complete, self._fail) for row in part(queue, rows)])

    def _complete(self, queue: Queue, rows: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
        tasks = [_task(queue, row) for row in rows if row["error"] is None]
        lost: set[str] = set()
        try:
            queue.complete(tasks)
        except LeaseLost as error:
            lost = set(error.tokens)
        for task in tasks:
            is_lost = task.token in lost and not was_completed_by(queue, task)
            yield task.id, task.token, LOST if is_lost else COMPLETED

    def _fail(self, queue: Queue, rows: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
        for row in rows:
            if row["error"] is not None:
                task = _task(queue, row)
                with suppress(LeaseLost):  # taken over, or failed by a former attempt at this
                    task.fail(row["error"])
                yield task.id, task.token, FAILED


def _task(queue: Queue, row: dict[str, Any]) -> LeasedTask:
    batch, index, lease = names.parse_token(row["token"])
    task = LeasedTask(queue, batch, index, lease, None, row["attempt"], 0, 0, row["generation"])
    task.took_s = row["took_s"]
    return task


def was_completed_by(queue: Queue, task: LeasedTask) -> bool:
    """Return whether it was this very lease that completed the task: a former attempt to do so may have come so far."""
    return outcomes.is_completed_by(queue.store, task.token)


def _batch(schema: str, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    import pyarrow as pa

    kinds = {"STRING": pa.string(), "INT": pa.int32(), "BINARY": pa.binary(), "DOUBLE": pa.float64()}
    fields = [field.split() for field in schema.split(", ")]
    columns = list(zip(*rows, strict=True)) or [()] * len(fields)
    arrays = [pa.array(column, kinds[kind]) for column, (_, kind) in zip(columns, fields, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in fields])
