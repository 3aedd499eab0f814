"""Reading queues as DataFrames: the same as what the queue's own verbs tell."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from fsqueue import Queue
from fsqueue.clock import ManualClock
from fsqueue.format.models import Used
from fsqueue.format.names import TAKES_INSERTS
from fsqueue.format.priority import LAST
from tests.support import QueueFactory, task_file_names

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'fsqueue-tasks[spark]'")

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceReader


def read(spark: SparkSession, queue: Queue | Path, view: str = "tasks", schema: str = "", **options: str) -> DataFrame:
    reader = spark.read.format("fsqueue").option("view", view).options(**options)
    return (reader.schema(schema) if schema else reader).load(str(getattr(queue, "path", queue)))


def used(queue: Queue) -> Queue:
    """A queue in which everything has happened: waiting, delayed, leased, failed, completed, buried, cancelled."""
    queue.insert_many([{"n": n, "text": f"ü {n}"} for n in range(40)], batch_tasks=8)
    queue.insert_many([{"n": 100 + n} for n in range(5)], delay_s=9000)
    queue.insert(b"\x00\xff")
    queue.insert("plain")
    tasks = queue.lease(12, lease_s=5000)
    queue.complete(tasks[:4])
    tasks[4].complete({"size": 1.5})
    tasks[5].fail(ValueError("no"), delay_s=0)
    tasks[6].bury("hopeless")
    tasks[7].release()
    queue.release_all()  # the leases of 8 to 11
    queue.lease(3, lease_s=5000)
    queue.lease(1, lease_s=0.001)
    waiting = next(task.id for task in queue.tasks("waiting") if task.version == 0)
    assert queue.cancel([waiting]) == 1
    return queue


@pytest.fixture
def busy(queue: Queue) -> Queue:
    return used(queue)


def as_rows(df: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in df.collect()]


def at(value: Any) -> float | None:
    return None if value is None else value.timestamp()


@pytest.mark.oldest
def test_tasks_are_those_of_the_queue(spark: SparkSession, busy: Queue) -> None:
    found = {row["id"]: row for row in as_rows(read(spark, busy))}
    known = {task.id: task for task in busy.tasks()}
    assert found.keys() == known.keys()
    for task_id, task in known.items():
        row = found[task_id]
        payload = row["payload_bytes"] if row["payload"] is None else orjson.loads(row["payload"])
        assert (payload, row["state"], row["attempt"], row["error"], row["version"]) == (
            task.payload, task.state, task.attempt, task.error, task.version,
        )  # fmt: skip
        worker = None if row["worker"] is None else orjson.loads(row["worker"])
        assert (at(row["since"]), at(row["available_at"]), at(row["lease_until"]), worker) == (
            task.since, task.available_at, task.lease_until, task.worker,
        )  # fmt: skip
    states = Counter(row["state"] for row in found.values())
    status = busy.status()
    assert states == {"waiting": status.waiting, "delayed": status.delayed, "leased": status.leased}
    for state in states:
        assert read(spark, busy, state=state).count() == states[state]


@pytest.mark.oldest
def test_payloads_can_be_parsed_on_the_way(spark: SparkSession, busy: Queue) -> None:
    kind = "payload STRUCT<n: INT, text: STRING, none: ARRAY<INT>>, id STRING"
    found = {row["id"]: row["payload"] for row in as_rows(read(spark, busy, schema=kind))}
    for task in busy.tasks():
        fields = task.payload if isinstance(task.payload, dict) else {}
        wanted = {"n": fields.get("n"), "text": fields.get("text"), "none": None}
        assert found[task.id] == (None if isinstance(task.payload, bytes) else wanted), task


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["INT", "ARRAY<STRING>", "STRUCT<n: STRUCT<a: INT>>"])
def test_payloads_that_do_not_fit_are_null_or_objects_of_nulls(spark: SparkSession, queue: Queue, kind: str) -> None:
    fitting: Any = {"INT": 5, "ARRAY<STRING>": ["a", None], "STRUCT<n: STRUCT<a: INT>>": {"n": {"a": 1}}}[kind]
    queue.insert_many([{"n": 1}, fitting, None, "text", fitting], batch_tasks=5)
    found = [row["payload"] for row in as_rows(read(spark, queue, schema=f"payload {kind}"))]
    unfit = {"n": None} if kind.startswith("STRUCT") else None
    assert sorted(found, key=str) == sorted([unfit, fitting, None, unfit, fitting], key=str)


def test_columns_that_are_not_asked_for_are_not_read(spark: SparkSession, busy: Queue) -> None:
    df = read(spark, busy, schema="state STRING, id STRING, queue STRING")
    assert df.columns == ["state", "id", "queue"]
    assert {tuple(row) for row in df.collect()} == {(task.state, task.id, "q") for task in busy.tasks()}


@pytest.mark.oldest
def test_tasks_of_batches_that_take_inserts(spark: SparkSession, queue_factory: QueueFactory) -> None:
    """Their payloads, states and times are in the log. The name of a sealed one's file tells how many there are."""
    clock = ManualClock(time.time() - 80)
    queue = Queue(queue_factory(shards=1, batch_tasks_max=4).path, clock=clock)
    payloads: list[Any] = [{"n": 0, "text": "ü"}, {"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}, b"\x00\xff", {"n": 6}]
    ids, born = [], []
    for payload in payloads:
        ids.append(queue.insert(payload, delay_s=9000 if payload == {"n": 6} else 0).id)
        born.append(clock.now_s)
        clock.advance(10)
    queue._inserter._make_batch(LAST)  # one that no task is in yet
    assert sorted(name.inserted or 0 for name in task_file_names(queue)) == [TAKES_INSERTS, TAKES_INSERTS, 4]
    [done, dead], [held] = queue.lease(2), queue.lease(1, lease_s=5000)
    assert [done.id, dead.id, held.id] == ids[:3]
    done.complete()
    dead.bury("no")

    tasks = {info.id: info for info in queue.tasks()}
    assert sorted(tasks) == sorted(ids[2:])
    found = {row["id"]: row for row in as_rows(read(spark, queue))}
    assert found.keys() == tasks.keys()
    for task_id, task in tasks.items():
        row = found[task_id]
        payload = row["payload_bytes"] if row["payload"] is None else orjson.loads(row["payload"])
        assert payload == task.payload == payloads[ids.index(task_id)]
        assert (row["state"], row["version"]) == (task.state, task.version)
        assert (at(row["since"]), at(row["available_at"])) == (task.since, task.available_at)
    counts = Counter(row["state"] for row in found.values())
    assert counts == {"leased": 1, "waiting": 3, "delayed": 1}
    assert Counter(row["state"] for row in as_rows(read(spark, queue, schema="state STRING"))) == counts
    states = {row["state"]: row["tasks"] for row in as_rows(read(spark, queue, "states")) if row["shard"]}
    assert states == {**counts, "completed": 1, "dead": 1}
    typed = as_rows(read(spark, queue, schema="id STRING, payload STRUCT<n: INT>"))
    assert {row["id"]: row["payload"] for row in typed} == {
        task_id: None if isinstance(payload, bytes) else {"n": payload["n"]}
        for task_id, payload in list(zip(ids, payloads, strict=True))[2:]
    }

    history = {row["id"]: at(row["inserted_at"]) for row in as_rows(read(spark, queue, "history"))}
    assert history == pytest.approx({ids[0]: born[0], ids[1]: born[1]}, abs=0.002)
    (letter,) = as_rows(read(spark, queue, "dead"))
    assert (letter["id"], letter["payload"]) == (ids[1], '{"n":1}')
    waits = {row["id"]: row["wait_s"] for row in as_rows(read(spark, queue, "attempts"))}
    assert waits == pytest.approx({task_id: clock.now_s - born[n] for n, task_id in enumerate(ids[:3])}, abs=0.01)
    inserts = [row for row in as_rows(read(spark, queue, "movements")) if row["op"] == "insert"]
    told = {f"{row['batch']}.{part['first']}": at(row["at"]) for row in inserts for part in row["tasks"]}
    assert told == pytest.approx(dict(zip(ids, born, strict=True)), abs=0.002)
    assert as_rows(read(spark, queue, "findings")) == []


def test_tasks_are_counted_by_the_names_of_their_files(spark: SparkSession, queue: Queue) -> None:
    """No file is opened where no column needs more: so what they hold may be anything."""
    queue.insert_many(range(40), batch_tasks=8)
    queue.insert_many(range(5), delay_s=9000)
    for path in queue.path.rglob("queue/*/*.jsonl"):
        path.write_bytes(b"")
    df = read(spark, queue, schema="state STRING, id STRING")
    assert Counter(row["state"] for row in as_rows(df)) == {"waiting": 40, "delayed": 5}
    assert df.select("id").distinct().count() == df.count() == 45
    states = read(spark, queue, "states")
    summed = states.groupBy("state").agg(F.sum("tasks").alias("n")).collect()
    assert {row["state"]: row["n"] for row in summed} == {"waiting": 40, "delayed": 5, "completed": 0}
    spark.sql(f"CREATE TEMPORARY VIEW names (state STRING) USING fsqueue OPTIONS (path '{queue.path}')")
    try:
        assert [tuple(row) for row in spark.sql("SELECT count(*) FROM names").collect()] == [(45,)]
    finally:
        spark.catalog.dropTempView("names")


def test_spark_does_not_tell_a_data_source_which_columns_it_will_use() -> None:
    """If this fails, a read can do without payloads that a query does not use: docs/spark-read.md, "Less is read"."""
    assert [name for name in dir(DataSourceReader) if "column" in name.lower() or "prune" in name.lower()] == []


def test_leases(spark: SparkSession, busy: Queue) -> None:
    found = as_rows(read(spark, busy, "leases"))
    in_time = {row["id"]: at(row["until"]) for row in found if row["in_time"]}
    assert in_time == {task.id: task.lease_until for task in busy.tasks("leased")}
    assert [row["in_time"] for row in found].count(False) == 1
    assert {row["host"] for row in found} == {busy.store.worker["host"]}
    assert {row["pid"] for row in found} == {busy.store.worker["pid"]}


def test_dead_letters(spark: SparkSession, busy: Queue) -> None:
    (row,) = as_rows(read(spark, busy, "dead"))
    (letter,) = busy.dead()
    assert (row["id"], row["reason"], at(row["at"]), row["attempt"]) == (letter.id, "hopeless", letter.at, 1)
    busy.retry_dead()
    assert as_rows(read(spark, busy, "dead")) == []


@pytest.mark.oldest
def test_history_and_tasks_together_are_everything(spark: SparkSession, busy: Queue) -> None:
    finished = {row["id"]: row for row in as_rows(read(spark, busy, "history"))}
    assert Counter(row["state"] for row in finished.values()) == {"completed": 5, "dead": 1, "cancelled": 1}
    for state in ("completed", "dead", "cancelled"):
        for task in busy.tasks(state):
            row = finished[task.id]
            assert (row["state"], row["error"], row["attempts"]) == (state, task.error, task.attempt)
            assert at(row["finished_at"]) == task.since
    assert [row["result"] for row in finished.values() if row["result"]] == ['{"size":1.5}']
    unfinished = {row["id"] for row in as_rows(read(spark, busy))}
    assert len(unfinished) + len(finished) == 47
    assert not unfinished & finished.keys()


def test_movements_are_the_records_of_logs_and_history(spark: SparkSession, busy: Queue) -> None:
    found = as_rows(read(spark, busy, "movements"))
    ops = Counter(row["op"] for row in found)
    assert (ops["fail"], ops["release"], ops["bury"], ops["cancel"], ops["revoke"] > 0) == (1, 1, 1, 1, True)
    assert ops["open"] == len({row["batch"] for row in found})
    by_task = {task.id for task in busy.tasks()} | {task.id for task in busy.tasks("completed")}
    some = next(iter(sorted(by_task)))
    batch, _, index = some.partition(".")
    known = [(move.op, move.at) for move in busy.history(some)[1:]]
    told = [
        (row["op"], at(row["at"]))
        for row in sorted(found, key=lambda row: row["version"])
        if row["batch"] == batch and any(part["first"] <= int(index) < part["end"] for part in row["tasks"] or ())
    ]
    assert [one for one in told if one in known] == known


@pytest.mark.oldest
def test_attempts_tell_how_each_lease_ended(spark: SparkSession, busy: Queue) -> None:
    found = as_rows(read(spark, busy, "attempts"))
    outcomes = Counter(row["outcome"] for row in found)
    assert outcomes == {
        "complete": 5, "fail": 1, "bury": 1, "release": 1, "revoke": 4, "open": 3, "expired": 1,
    }  # fmt: skip
    assert {row["error"] for row in found if row["outcome"] == "fail"} == {"ValueError: no"}
    assert all(row["wait_s"] >= 0 and (row["duration_s"] is None) == (row["outcome"] == "open") for row in found)


def test_attempts_and_history_tell_what_was_used(spark: SparkSession, queue: Queue) -> None:
    queue.insert_many(range(3))
    tasks = {task.payload: task for task in queue.lease(3)}
    tasks[0].used, tasks[1].used = Used(1500, 64), Used(250, 2**20)
    tasks[0].complete()
    tasks[1].bury("no")
    tasks[2].complete()
    expected = {tasks[0].id: (1.5, 65_536), tasks[1].id: (0.25, 2**30), tasks[2].id: (None, None)}
    for view in ("attempts", "history"):
        found = as_rows(read(spark, queue, view))
        assert {row["id"]: (row["cpu_s"], row["peak_memory_bytes"]) for row in found} == expected, view


def test_counters_and_findings(spark: SparkSession, busy: Queue) -> None:
    assert sum(row["completed"] for row in as_rows(read(spark, busy, "counters"))) <= 5
    assert as_rows(read(spark, busy, "findings")) == []
    Path(busy.store.layout.tasks, "stray").touch()
    victim = next(path for path in sorted(busy.path.rglob("queue/*/*.jsonl")))
    victim.write_bytes(b"{\n" * 8)
    kinds = {row["kind"] for row in as_rows(read(spark, busy, "findings"))}
    assert kinds == {finding.kind for finding in busy.fsck()} != set()


def test_commits(spark: SparkSession, queue: Queue) -> None:
    queue.insert_many(range(10), commit="a")
    queue.insert_many([], commit="b")
    (one, other) = sorted(as_rows(read(spark, queue, "commits")), key=lambda row: str(row["name"]))
    known = queue.commit("a").committed()
    assert known is not None
    assert (one["name"], at(one["at"]), one["tasks"], one["files"], one["bytes"]) == (
        "a", known.at, known.tasks, known.files, known.bytes,
    )  # fmt: skip
    assert (other["name"], other["tasks"]) == ("b", 0)


@pytest.mark.thorough
def test_all_of_a_drained_queue(spark: SparkSession, queue: Queue) -> None:
    queue.insert_many(range(3000))
    while tasks := queue.lease(500):
        queue.complete(tasks)
    assert as_rows(read(spark, queue)) == []
    assert read(spark, queue, "history").where("state = 'completed'").count() == 3000
    assert sum(row["completed"] for row in as_rows(read(spark, queue, "counters"))) == 3000
    assert read(spark, queue, "attempts").select("id").distinct().count() == 3000


@pytest.mark.oldest
def test_a_group_has_a_column_with_the_queue(spark: SparkSession, queue_factory: QueueFactory, tmp_path: Path) -> None:
    for name, count in (("a%20b", 3), ("c", 5)):
        queue_factory(name).insert_many(range(count))
    (tmp_path / "no-queue").mkdir()
    df = read(spark, tmp_path)
    assert df.columns[0] == "queue"
    assert {tuple(row) for row in df.groupBy("queue").count().collect()} == {("a b", 3), ("c", 5)}
    assert read(spark, tmp_path, "counters").count() == 0


@pytest.mark.thorough
def test_a_group_of_many_queues(spark: SparkSession, queue_factory: QueueFactory, tmp_path: Path) -> None:
    for number in range(70):
        queue_factory(f"q{number}", shards=1).insert(number)
    df = read(spark, tmp_path, schema="queue STRING, payload INT", partitions="3")
    assert df.rdd.getNumPartitions() == 3
    assert {tuple(row) for row in df.collect()} == {(f"q{number}", number) for number in range(70)}


def test_shards_and_partitions_by_option(spark: SparkSession, busy: Queue) -> None:
    everything = {row["id"] for row in as_rows(read(spark, busy))}
    for partitions, found in (("1", {1}), ("5", {3, 4, 5}), ("1000", set(range(6, 65)))):
        df = read(spark, busy, partitions=partitions)
        assert df.rdd.getNumPartitions() in found
        assert {row["id"] for row in as_rows(df)} == everything
    some = {row["id"] for row in as_rows(read(spark, busy, shards="00,01,02"))}
    assert some == {task_id for task_id in everything if busy.store.layout.shard(task_id.partition(".")[0]) < "03"}


@pytest.mark.oldest
def test_filters_are_pushed_down_on_request(spark: SparkSession, queue_factory: QueueFactory, tmp_path: Path) -> None:
    used(queue_factory("a"))
    used(queue_factory("b"))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        df = read(spark, tmp_path, pushdown="true", partitions="64").where("state = 'leased' AND queue = 'b'")
        assert {(row["queue"], row["state"]) for row in df.collect()} == {("b", "leased")}
        assert df.count() == Queue(tmp_path / "b").status().leased
        assert read(spark, tmp_path, pushdown="true").where("state IN ('waiting') AND attempt = 0").count() > 0
        assert read(spark, tmp_path, pushdown="true").where("queue = 'nowhere'").count() == 0
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_purge_between_planning_and_reading_is_an_error(spark: SparkSession, busy: Queue) -> None:
    df = read(spark, busy)
    partitions = df.rdd  # planned here
    busy.purge()
    with pytest.raises(PySparkException, match="was purged while it was being read"):
        spark.createDataFrame(partitions, df.schema).count()
    assert read(spark, busy).count() == 0


def test_what_was_committed_and_not_published_is_read(spark: SparkSession, queue: Queue) -> None:
    from fsqueue.storage import commits

    commit = queue.commit("c")
    part = commit.stage(range(10))
    apply = commits.apply
    try:
        commits.apply = lambda *arguments: None  # the driver dies here
        commit.publish([part])
    finally:
        commits.apply = apply
    assert read(spark, queue).count() == 10


def test_a_batch_with_a_damaged_line_is_read_but_for_that(spark: SparkSession, queue: Queue) -> None:
    queue.insert_many([{"n": n} for n in range(3)], batch_tasks=3)
    for path in queue.path.rglob("queue/*/*.jsonl"):
        path.write_bytes(path.read_bytes().replace(b'{"payload":{"n":1}}', b'{"payload":{"n":1]]'))
    assert sorted(str(row["payload"]) for row in as_rows(read(spark, queue))) == ["None", '{"n":0}', '{"n":2}']
    typed = [row["payload"] for row in as_rows(read(spark, queue, schema="payload STRUCT<n: INT>"))]
    assert sorted(map(str, typed)) == ["{'n': 0}", "{'n': 2}", "{'n': None}"]


def test_a_batch_with_what_is_no_text_is_read_but_for_that(spark: SparkSession, queue: Queue) -> None:
    queue.insert_many([{"n": n} for n in range(3)], batch_tasks=3)
    for path in queue.path.rglob("queue/*/*.jsonl"):
        path.write_bytes(path.read_bytes().replace(b'{"payload":{"n":1}}', b'{"payload":"\xff"}'))
    assert sorted(str(row["payload"]) for row in as_rows(read(spark, queue))) == ["None", '{"n":0}', '{"n":2}']


def test_tasks_are_read_while_workers_work(spark: SparkSession, queue: Queue) -> None:
    """What is read at any time are tasks that are there, each once."""
    queue.insert_many(range(20_000))
    tasks = queue.lease(3000)
    df = read(spark, queue, schema="id STRING, state STRING", partitions="8")
    found: list[Row] = []
    for number, row in enumerate(df.toLocalIterator()):
        found.append(row)
        if number % 500 == 0 and tasks:
            queue.complete(tasks[:200])
            tasks = tasks[200:]
    ids = [row["id"] for row in found]
    assert len(set(ids)) == len(ids)
    assert 17_000 <= len(ids) <= 20_000
    assert {task.id for task in queue.tasks("waiting")} <= set(ids)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"view": "everything"}, "`view` is one of tasks, leases"),
        ({"veiw": "tasks"}, "no option 'veiw'.*Did you mean 'view'"),
        ({"state": "done"}, "takes waiting, delayed and leased"),
        ({"partitions": "many"}, "`partitions` is a whole number"),
        ({"pushdown": "yes"}, "true or false"),
        ({"shards": "zz"}, "has no shard 'zz'"),
        ({"schema": "a INT"}, "has no column 'a'.*payload STRUCT"),
        ({"schema": "attempt STRING"}, "'attempt'.*is int"),
        ({"schema": "payload MAP<INT, INT>"}, "JSON has texts for keys: read them as STRING"),
        (
            {"schema": "worker STRUCT<host: STRING>"},
            "is string, not struct<host:string>: read it so, and use from_json",
        ),
        ({"schema": "since STRING"}, "not string: read it so, and cast it"),
    ],
)
def test_what_cannot_be_read_is_refused(spark: SparkSession, busy: Queue, options: dict[str, str], said: str) -> None:
    with pytest.raises(PySparkException, match=f"(?s){said}"):
        read(spark, busy, **options).collect()


def test_where_there_is_no_queue(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="There is no queue at"):
        read(spark, tmp_path / "nowhere").collect()
    with pytest.raises(PySparkException, match="Name the queue's directory"):
        spark.read.format("fsqueue").load().collect()
    assert not (tmp_path / "nowhere").exists()
