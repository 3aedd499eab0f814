"""The Spark data source beside Spark's own JSON: rates, ratios, and whether the figures to reach are reached.

Everything is done several times in turns, in one session, on the same rows; the best of each counts (other load can
only add), and in brackets the middle of the ratios within each round. Outputs are removed in the end: ext4 takes its
time to make files where many were removed within the last minute, and only one of the writers makes many.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
FIELDS = "tile: BIGINT, path: STRING, sum: STRING, x: DOUBLE"
Times = dict[str, list[float]]
"""Seconds, round by round, by what was done."""


def session(place: Path, cores: int) -> Any:
    """A session for throughput (the tests' is for starting quickly), in which fsqueue lies as where it is installed."""
    installed = place / "installed"
    installed.mkdir()
    (installed / "fsqueue").symlink_to(TOP / "fsqueue")
    (installed / "pyspark_fsqueue").symlink_to(TOP / "fsqueue/spark/pyspark_fsqueue")
    os.environ.update(PYTHONPATH=str(installed), PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{cores}]").appName("figures")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(place / "local"),
        "spark.sql.warehouse.dir": str(place / "warehouse"),
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def measured(times: Times, name: str, action: Callable[..., object], *arguments: object, **options: object) -> None:
    started = time.perf_counter()
    action(*arguments, **options)
    took = time.perf_counter() - started
    times.setdefault(name, []).append(took)
    print(f"{name}: {took:.2f} s", file=sys.stderr)


def measure(spark: Any, place: Path, rows: int, repeat: int, with_report: bool) -> Times:
    from pyspark.sql import functions as F

    from fsqueue import Queue
    from fsqueue import spark as jobs

    text = F.sha2(F.col("id").cast("string"), 256)
    made = spark.range(0, rows, 1, 4).select(
        F.col("id").alias("tile"), F.concat(F.lit("s3://bucket/volume/"), text).alias("path"), text.alias("sum"),
        (F.col("id") / 7).alias("x"),
    )  # fmt: skip
    made.write.parquet(str(place / "rows"))
    df = spark.read.parquet(str(place / "rows"))
    times: Times = {}
    spark.dataSource.register(floor(rows, 2))
    Queue.create(place / "warm")  # what a session does only once is not measured
    jobs.seed(df.limit(1000), str(place / "warm"))
    drop(spark.read.format("fsqueue").load(str(place / "warm")))
    for number in range(repeat):
        json_place, path = str(place / f"json-{number}"), str(place / f"q-{number}")
        other = f"{path}-other"
        measured(times, "write.json", df.write.json, json_place)
        Queue.create(path)
        measured(times, "seed", jobs.seed, df, path, commit="a")
        Queue.create(other)
        measured(times, "write", df.write.format("fsqueue").mode("append").option("commit", "a").save, other)
        measured(times, "a source that drops the rows", df.write.format("floor").mode("append").save)
        publish(place / f"p-{number}", df, times)
    schema = f"id STRING, state STRING, payload STRUCT<{FIELDS}>"
    for _ in range(repeat):
        measured(times, "read.json", drop, spark.read.schema(df.schema).json(json_place))
        measured(times, "read", drop, spark.read.format("fsqueue").schema(schema).load(path))
        measured(times, "read, payloads as text", drop, spark.read.format("fsqueue").load(path))
        measured(times, "a source that has the batches", drop, spark.read.format("floor").schema(schema).load())
    if with_report:
        work(Queue(path), rows)
        measured(times, "report", jobs.report, spark, path, str(place / "report"))
    return times


def floor(rows: int, partitions: int) -> type:
    """A data source in Python that does nothing: writing drops the rows, reading repeats one record batch."""
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceReader,
        InputPartition,
        WriterCommitMessage,
    )

    class Writer(DataSourceArrowWriter):
        def write(self, iterator: Any) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class Reader(DataSourceReader):
        def __init__(self, schema: Any) -> None:
            self.schema = schema

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(partitions)]

        def read(self, partition: InputPartition) -> Any:
            import pyarrow as pa

            from fsqueue.spark.columns import arrow_schema

            one = {"tile": 1234567, "path": "s3://bucket/volume/" + "0" * 64, "sum": "0" * 64, "x": 1 / 7}
            some = [{"id": "0" * 36 + ".123", "state": "waiting", "payload": one}] * 4096
            batch = pa.RecordBatch.from_pylist(some, schema=arrow_schema(self.schema))
            for start in range(0, rows // partitions, 4096):
                yield batch.slice(0, rows // partitions - start)

    class Floor(DataSource):
        @classmethod
        def name(cls) -> str:
            return "floor"

        def writer(self, schema: Any, overwrite: bool) -> Writer:
            return Writer()

        def reader(self, schema: Any) -> Reader:
            return Reader(schema)

    return Floor


def drop(df: Any) -> None:
    df.write.format("noop").mode("overwrite").save()


def publish(path: Path, df: Any, times: Times) -> None:
    """The commit alone: what is staged is published."""
    from fsqueue import Queue
    from fsqueue.spark import options
    from fsqueue.spark.writing import FsqueueWriter

    Queue.create(path)
    writer = FsqueueWriter(options.writing({"path": str(path), "commit": "a"}), df.schema, False)

    def stage(batches: Any) -> Any:
        import pyarrow as pa

        part = writer.write(batches).part
        assert part is not None
        yield pa.RecordBatch.from_pydict({"part": [json.dumps(part.as_dict())]})

    from fsqueue.format.models import CommitPart

    staged = df.mapInArrow(stage, "part STRING").collect()
    parts = [CommitPart(**json.loads(row[0])) for row in staged]
    measured(times, "publish", writer.commit_.publish, parts)


def work(queue: Any, most: int) -> None:
    """Make movements: half as many tasks are leased and completed one by one (the other half of `most` records)."""
    tasks = queue.poll(prefetch=1)
    for number, task in enumerate(tasks):
        task.complete()
        if number + 1 >= most // 2:
            break
    tasks.close()


KINDS = {
    "doubles": {"a": "id / 7", "b": "id * double(0.001)", "c": "cast(id as double)", "d": "sqrt(id)"},
    "timestamps": {
        "a": "timestamp_micros(1763737445123456 + id * 1000001)", "b": "timestamp_seconds(id * 31)",
        "c": "cast(timestamp_seconds(id * 31) as timestamp_ntz)",
        "d": "date_add(date'2026-11-21', cast(id % 9999 as int))",
    },
    "quoted text": {
        "a": "concat('say ', chr(34), id, chr(34), chr(10), sha2(cast(id as string), 256))",
        "b": "concat('C:', chr(92), 'dir', chr(92), id)",
    },
    "maps and arrays": {
        "a": "map('x', id, 'y', id + 1)", "b": "array(id, id + 1, id + 2)", "c": "array(cast(id as string), 'two')",
    },
    "nested structs": {
        "a": "named_struct('b', id, 'c', named_struct('d', cast(id as string), 'e', array(named_struct('f', id / 3))))",
    },
    "mixed": {
        "a": "id", "b": "id / 7", "c": "timestamp_micros(1763737445123456 + id)", "d": "concat(chr(34), id, chr(34))",
        "e": "map('x', id)", "f": "array(id / 3)", "g": "named_struct('a', id, 'b', cast(id as string))",
        "h": "id % 2 = 0",
    },
}  # fmt: skip
"""Columns by what is hard about them."""


def measure_types(spark: Any, place: Path, rows: int, repeat: int) -> Times:
    """Seeding and reading of hard types. `Times` has for each the seconds, and under "… cpu" those of processor."""
    from fsqueue import Queue
    from fsqueue import spark as jobs
    from fsqueue.spark import options, seeding

    times: Times = {}
    spark.dataSource.register(floor(rows, 2))

    def both(name: str, action: Callable[..., object], *arguments: object, **options: object) -> None:
        before = processor_s()
        measured(times, name, action, *arguments, **options)
        times.setdefault(f"{name} cpu", []).append(processor_s() - before)

    for number, (kind, columns) in enumerate(KINDS.items()):
        made = spark.range(0, rows, 1, 4).selectExpr(*(f"{how} AS {name}" for name, how in columns.items()))
        made.write.parquet(str(place / f"rows-{number}"))
        df = spark.read.parquet(str(place / f"rows-{number}"))
        fields = ", ".join(f"{field.name}: {field.dataType.simpleString()}" for field in df.schema)
        wanted = options.writing({"path": str(place)})
        lines = seeding.lines_of(df, wanted, seeding.payload_type(wanted, df.schema))
        dropping = lines.write.format("floor").mode("append").save
        dropping()
        paths = []
        Queue.create(place / f"warm-{number}")
        jobs.seed(df.limit(1000), str(place / f"warm-{number}"))
        df.limit(1000).write.json(str(place / f"warm-json-{number}"))
        for turn in range(repeat):
            json_place, path = str(place / f"json-{number}-{turn}"), str(place / f"q-{number}-{turn}")
            Queue.create(path)
            paths.append((json_place, path))
            turns: list[tuple[Any, ...]] = [
                (f"{kind}: write.json", df.write.json, json_place), (f"{kind}: seed", jobs.seed, df, path),
                (f"{kind}: a source that drops the lines", dropping),
            ]  # fmt: skip
            for one in turns if turn % 2 == 0 else reversed(turns):  # whoever is first bears what the other left
                both(*one)
        for turn, (json_place, path) in enumerate(paths):
            theirs = spark.read.schema(df.schema).json(json_place)
            ours = spark.read.format("fsqueue").schema(f"payload STRUCT<{fields}>").load(path)
            reads = [(f"{kind}: read.json", drop, theirs), (f"{kind}: read", drop, ours)]
            for read in reads if turn % 2 == 0 else reversed(reads):
                both(*read)
        print(types_table(times, rows), file=sys.stderr)
    for json_place, path in paths:
        both("count: read.json", spark.read.schema(df.schema).json(json_place).count)
        both("count: a column of names", spark.read.format("fsqueue").schema("state STRING").load(path).count)
        both("count: all columns", spark.read.format("fsqueue").load(path).count)
    return times


def processor_s() -> float:
    """Seconds of processor that this process and all below it have taken: Java and the Python workers."""
    parents, used = {}, {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        process = int(entry.parent.name)
        parents[process] = int(fields[1])
        used[process] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    ours = {os.getpid()}
    while more := {process for process, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(used.get(process, 0.0) for process in ours)


def types_table(times: Times, rows: int) -> str:
    lines = [
        "| what | against | rows/s | best of all | middle of the rounds | by processor | wanted |",
        "|---|---|---|---|---|---|---|",
    ]
    both = (("write.json", "seed"), ("write.json", "a source that drops the lines"), ("read.json", "read"))
    pairs = [(f"{kind}: {theirs}", f"{kind}: {ours}") for theirs, ours in both for kind in KINDS]
    pairs += [("count: read.json", f"count: {ours}") for ours in ("a column of names", "all columns")]
    for theirs, ours in pairs:
        if ours in times:
            best, middle = ratios(times, theirs, ours)
            _, processor = ratios(times, f"{theirs} cpu", f"{ours} cpu")
            rate = rows / min(times[ours])
            least = WANTED.get(ours if ours in WANTED else ours.partition(": ")[2])
            reached = "" if least is None else f"{least}: {'reached' if best >= least else 'not reached'}"
            against, measured_ones = theirs.partition(": ")[2], f"{best:.2f} | {middle:.2f} | {processor:.2f}"
            lines.append(f"| {ours} | {against} | {rate:,.0f} | {measured_ones} | {reached} |")
    return "\n".join(lines)


FIGURES = (
    ("seeding, against df.write.json", "write.json", "seed", 0.7),
    ("reading back, against spark.read.json with a schema", "read.json", "read", 1.0),
)
PUBLISH_S = 2.0
WANTED = {"seed": 0.7, "read": 1.0, "count: a column of names": 2.0}
"""The ratios to reach with each of the types."""


BESIDE = {
    "write.json": ("seed", "write", "a source that drops the rows"),
    "read.json": ("read", "read, payloads as text", "a source that has the batches"),
}
"""What is compared with what Spark's own does."""


def ratios(times: Times, theirs: str, ours: str) -> tuple[float, float]:
    """Of the best of each, and the middle one of the rounds."""
    within = (one / other for one, other in zip(times[theirs], times[ours], strict=True))
    return min(times[theirs]) / min(times[ours]), statistics.median(within)


def table(times: Times, rows: int) -> str:
    lines = ["| what | rows/s | against Spark's |", "|---|---|---|"]
    for theirs, others in BESIDE.items():
        lines.append(f"| `{theirs}` | {rows / min(times[theirs]):,.0f} | |")
        for ours in others:
            best, middle = ratios(times, theirs, ours)
            lines.append(f"| `{ours}` | {rows / min(times[ours]):,.0f} | {best:.2f} ({middle:.2f}) |")
    for what, theirs, ours, least in FIGURES:
        ratio, _ = ratios(times, theirs, ours)
        lines.append(f"| {what} | {ratio:.2f} | {least} wanted: {'reached' if ratio >= least else 'not reached'} |")
    wanted, publishing = PUBLISH_S * rows / 1_000_000, min(times["publish"])
    reached = "reached" if publishing < wanted else "not reached"
    lines.append(f"| commit of the staged tasks | {publishing:.2f} s | {wanted:.1f} s wanted: {reached} |")
    if "report" in times:
        lines.append(f"| `report` over {rows:,} movements | {min(times['report']):.1f} s | |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench-spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--dir", type=Path, default=None, help="where to work [the system's temporary directory]")
    parser.add_argument("--no-report", action="store_true", help="leave out the report, which takes longest")
    parser.add_argument("--json", action="store_true", help="print the seconds as JSON")
    parser.add_argument("--types", action="store_true", help="measure types that are hard to write, and nothing else")
    arguments = parser.parse_args()
    place = Path(tempfile.mkdtemp(dir=arguments.dir))
    try:
        spark = session(place, arguments.cores)
        if arguments.types:
            times = measure_types(spark, place, arguments.rows, arguments.repeat)
        else:
            times = measure(spark, place, arguments.rows, arguments.repeat, not arguments.no_report)
        spark.stop()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        if arguments.json:
            print(json.dumps(times))
        else:
            where = f"local[{arguments.cores}], Python {platform.python_version()}"
            print(f"{arguments.rows:,} rows, {where}, driver {peak} MB\n")
            print((types_table if arguments.types else table)(times, arguments.rows))
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
