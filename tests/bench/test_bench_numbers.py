"""The benchmark's own arithmetic: percentiles, medians, judgements, figures. On made-up rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import spark_figures
from benchmarks import plot, report, steps
from benchmarks.campaign import judge_drain, judge_mixed
from benchmarks.figures import figures
from benchmarks.summary import Summary
from benchmarks.systems import BY_NAME, encode
from benchmarks.systems.floor import Floor, Sizes, Stop

Row = dict[str, Any]
FACTS: dict[str, Any] = {
    "date": "2000-01-01",
    "commit": "none",
    "cpu": "x",
    "cores": 1,
    "memory_gb": 1,
    "kernel": "k",
    "filesystem": "tmpfs",
    "mount_options": "rw",
    "python": "3",
    "versions": {},
    "in_memory": True,
}


def row(system: str, step: str, size: int, us: float, **more: Any) -> Row:
    return {"system": system, "step": step, "size": size, "round": 1, "tasks": 1000, "seconds": us / 1000, **more}


def test_payloads_are_of_the_size_that_is_claimed() -> None:
    assert {len(encode(steps.payload(number))) for number in (0, 999_999)} == {steps.PAYLOAD_BYTES}
    assert list(steps.stream(3, float("inf"), first=5)) == [steps.payload(number) for number in (5, 6, 7)]


def test_a_stream_ends_when_its_time_is_over() -> None:
    assert list(steps.stream(1000, 0.0)) == []


def test_percentiles_are_nearest_ranks() -> None:
    assert steps.percentiles([]) is None
    assert steps.percentiles([5000]) == {"p50": 5, "p90": 5, "p99": 5, "max": 5}
    hundred = steps.percentiles([number * 1000 for number in range(100, 0, -1)])
    assert hundred == {"p50": 50, "p90": 90, "p99": 99, "max": 100}


def test_medians_are_taken_of_the_rounds() -> None:
    summary = Summary([row("fsqueue", "lease_one", 100, us) for us in (30, 10, 20)])
    assert summary.task_us("fsqueue", "lease_one", 100) == pytest.approx(20)
    assert summary.rate("fsqueue", "lease_one", 100) == pytest.approx(50_000)
    assert summary.task_us("dirq", "lease_one", 100) is None


def test_figures_are_judged_by_what_was_measured() -> None:
    rows = [
        row("fsqueue", "lease_one", 10_000, 30),
        row("fsqueue", "lease_one", 1_000_000, 40),
        row("task-queue", "lease_one", 10_000, 2000),
        row("dirq", "lease_one", 10_000, 45),
        row("floor", "lease_one", 10_000, 12),
        row("floor", "lease_one", 1_000_000, 10),
    ]
    found = {figure.what: figure for figure in figures(Summary(rows))}
    assert found["lease 1 + complete, one process, against task-queue, 10,000 tasks"].reached is True
    assert found["lease 100 + complete, one process, against task-queue"].reached is None
    assert found["lease 1 + complete, one process, against dirq"].reached is False  # 1.5 times, not 2
    assert found["lease 1 + complete, one process, against huey"].reached is None
    floor = found["lease 1 + complete, against the bare system calls"]
    assert (floor.reached, floor.measured) == (False, "4.00 times (worst size: 1,000,000 tasks)")
    scale = found["lease 1 + complete in the largest queue against the smallest"]
    assert (scale.reached, scale.measured.partition(" ")[0]) == (False, "1.33")


def test_one_size_says_nothing_of_scale() -> None:
    found = figures(Summary([row("fsqueue", "lease_one", 10_000, 30)]))
    assert [figure.reached for figure in found if "largest" in figure.what] == [None, None]


def test_what_is_not_alive_is_judged_by_the_median_of_its_rounds() -> None:
    def look(case: str, command: str, cpu_s: float, memory_mb: float = 30, **more: Any) -> Row:
        shown = {"case": case, "command": command, "cpu_s": cpu_s, "memory_mb": memory_mb, "tasks": 10**7, **more}
        return {"system": "fsqueue", "step": "alive", "size": 10**7, "round": 1, "seconds": cpu_s, **shown}

    rows = [
        look("activity", "status --window 90s", 0.5, 62.8),
        look("activity", "--version", 0.1),
        look("activity", "status", 9),  # has another window
        *(look("stragglers", "status", cpu_s, log_bytes=125, restated_bytes=25) for cpu_s in (0.1, 0.2, 0.9)),
        look("stragglers, leased", "gc", 0.2, 42.0),
        look("renewed", "status", 0.1, fresh=True),
        look("renewed", "status", 0.14),
        look("renewed", "complete", 0.1, fresh=True),
        look("renewed", "complete", 0.16),
        look("renewed", "fsck", 0.1, fresh=True),
        look("renewed", "fsck", 2),  # it reads all that is there
        look("letters", "status", 0.5),
        look("letters", "status", 0.104, empty_cpu_s=0.1),
        look("long letters", "Queue.status", 0.9, plain_cpu_s=0.5),
        look("long letters", "Queue.dead", 1.1, plain_cpu_s=0.5),
    ]
    judged = {figure.what: (figure.reached, figure.measured) for figure in figures(Summary(rows))}
    assert judged["status, 10,000,000 tasks done in bulk in the window"] == (True, "0.50 s (0.10 s to start), 60 MiB")
    assert judged["stragglers, 1 in 1,024: status"] == (True, "0.20 s, 29 MiB")
    assert judged["stragglers, 1 in 1,024: peek"][0] is None
    assert judged["stragglers, leased, 1 in 1,024: gc"] == (False, "0.20 s, 40 MiB")
    assert judged["a batch renewed, for a day: each command, against a fresh queue"] == (
        False,
        "+60 ms (worst command: complete)",
    )
    assert judged["logs with checkpoints, against the same without"] == (True, "1.25 times (worst: stragglers)")
    assert judged["status with all dead letters purged, against an empty queue"] == (True, "+4.0 ms (100,000 letters)")
    assert judged["long dead letters: Queue.status, against reading their lines"] == (True, "1.80 times")
    assert judged["long dead letters: Queue.dead, against reading their lines"] == (False, "2.20 times")


def test_idle_workers_are_judged_by_median_and_99th_percentile() -> None:
    def idle(system: str, samples_ms: list[float]) -> Row:
        shown = {"case": "poll", "idle_s": 2.0, "samples_us": [round(one * 1000) for one in samples_ms]}
        return {"system": system, "step": "wake", "size": 60, "round": 1, **shown}

    rows = [idle("fsqueue", [3.0] * 98 + [130.0] * 2), idle("huey", [160.0, 20.0, 1700.0])]
    judged = {figure.what: (figure.reached, figure.measured) for figure in figures(Summary(rows))}
    what = "insert to start on one host, poll, idle for 2 s"
    assert judged[f"{what}: median"] == (True, "3.0 ms (of 100; huey: 160 ms)")
    assert judged[f"{what}: 99th percentile"] == (False, "130.0 ms (of 100; huey: 1,700 ms)")
    assert [one.reached for one in figures(Summary([])) if "insert to start" in one.what] == [None, None]


def answer(numbers: list[int], last: int, empty: int) -> Row:
    latency = {"lease": {"p50": 1.0, "max": 2.0}}
    return {"numbers": numbers, "begin": 0, "last_lease_asked": last, "empty_answered": empty, "latency_us": latency}


def test_an_empty_answer_is_false_if_a_later_call_got_a_task() -> None:
    judged = judge_drain([answer([0, 1, 2], 500, 900), answer([3], 100, 400)], 4)
    assert (judged["false_empties"], judged["lost"], judged["twice"]) == (1, 0, 0)
    assert judged["fairness"] == 3
    assert judge_drain([answer([0, 1], 500, 600), answer([2, 3], 400, 550)], 4)["false_empties"] == 0


def test_lost_and_repeated_tasks_are_counted() -> None:
    judged = judge_drain([answer([0, 1, 1], 5, 9), answer([], 0, 9)], 4)
    assert (judged["lost"], judged["twice"], judged["fairness"]) == (2, 1, None)
    producers = [{"tasks": 3, "begin": 0, "end": 10, "latency_us": {"insert": None}}]
    consumers = [
        {"numbers": [0, 2], "begin": 0, "end": 12, "empties": 1, "latency_us": {"lease": None, "complete": None}}
    ]
    assert judge_mixed(producers, consumers)["lost"] == 1


def test_the_floor_follows_a_trail_and_finishes_what_is_done(tmp_path: Path) -> None:
    counts = {"a": 3, "b": 2}
    bare = Floor(str(tmp_path / "floor"), Sizes())
    bare.create()
    bare.insert(list(counts.values()), sync=False)
    done = bare.walk(counts, [Stop("a", 1, 2), Stop("b", 1, 1), Stop("a", 1, 1)], joined=False)
    assert done == 4
    left = list((tmp_path / "floor" / "queue").rglob("*.jsonl"))
    assert len(left) == 1  # b has a task left
    assert (tmp_path / "floor" / "completions" / "00").stat().st_size == 3
    assert bare.delete() > 0
    assert not (tmp_path / "floor").exists()


def test_a_trail_is_cut_where_the_warm_up_ends() -> None:
    warm, rest = steps._split([Stop("a", 1, 3), Stop("b", 1, 5)], 4)
    assert warm == [Stop("a", 1, 3), Stop("b", 1, 1)]
    assert rest == [Stop("b", 1, 4)]
    assert steps._split([Stop("a", 100, 2)], 0) == ([], [Stop("a", 100, 2)])


def test_tables_and_plots_of_nothing_are_still_whole() -> None:
    assert "tmpfs is memory" in report.markdown(FACTS, [])
    assert "This run measured nothing" in texts(plot.costs(Summary([])))
    assert "This run measured no latencies" in texts(plot.latencies(Summary([]), 0))


def test_processor_time_stands_beside_fsqueue_s() -> None:
    rows = [
        row(name, "lease_one", 100, 40) | {"cpu_s": cpu_s, "tasks": 100}
        for name, cpu_s in (("fsqueue", 0.002), ("redis", 0.003))
    ]
    made = report.markdown(FACTS, rows)
    assert "### Processor time" in made
    assert "| Redis (LMOVE + LREM) | 30 (1.5×) |" in made
    assert "### Processor time" not in report.markdown(FACTS, [row("fsqueue", "lease_one", 100, 40)])


@pytest.mark.parametrize(
    ("value", "said"), [(None, "–"), (1234567, "1,230,000"), (101, "101"), (12.34, "12.3"), (0.5, "0.5")]
)
def test_numbers_have_three_digits(value: float | None, said: str) -> None:
    assert report.number(value) == said


def texts(svg: str) -> str:
    """Return the words in a picture, which must be well-formed."""
    return " ".join("".join(ElementTree.fromstring(svg).itertext()).split())


def test_plots_show_each_system_that_was_measured() -> None:
    spread = {"p50": 20.0, "p90": 30.0, "p99": 90.0, "max": 500.0}
    rows = [row(name, "lease_one", size, us) for name, us in (("fsqueue", 40), ("huey", 700)) for size in (100, 10_000)]
    for one in rows:
        one["latency_us"] = {"lease": spread, "complete": spread}
    shown = texts(plot.costs(Summary(rows)))
    assert BY_NAME["fsqueue"].title in shown
    assert BY_NAME["huey"].title in shown
    assert BY_NAME["dirq"].title not in shown
    assert "lease 1 + complete" in shown
    assert "not measured" in shown  # the other panels
    assert plot.costs(Summary(rows)) == plot.costs(Summary(rows)), "equal results give equal files"
    assert "Latency of lease 1 and complete at 10,000 tasks" in texts(plot.latencies(Summary(rows), 10_000))


def test_what_is_wanted_of_spark_stands_beside_what_was_measured() -> None:
    times = {}
    for name, seconds in {
        "doubles: write.json": [1.4, 3.0], "doubles: seed": [2.0, 4.0],
        "doubles: read.json": [1.0], "doubles: read": [1.1],
        "count: read.json": [2.1], "count: a column of names": [1.0],
    }.items():  # fmt: skip
        times |= {name: seconds, f"{name} cpu": seconds}
    _, _, *rows = spark_figures.types_table(times, 1000).splitlines()
    assert rows == [
        "| doubles: seed | write.json | 500 | 0.70 | 0.72 | 0.72 | 0.7: reached |",
        "| doubles: read | read.json | 909 | 0.91 | 0.91 | 0.91 | 1.0: not reached |",
        "| count: a column of names | read.json | 1,000 | 2.10 | 2.10 | 2.10 | 2.0: reached |",
    ]


@pytest.mark.parametrize("script", ["scripts/test", "scripts/bench-spark"])
def test_where_many_pythons_start_bytecode_is_kept(script: str) -> None:
    """Else each compiles all of fsqueue anew, which a benchmark would count as fsqueue's time."""
    lines = (Path(__file__).resolve().parents[2] / script).read_text().splitlines()
    assert "unset PYTHONDONTWRITEBYTECODE" in lines


def test_idle_workers_measured_apart_leave_the_rest_of_the_page_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(f"By hand.\n\n{report.BEGIN}\nthe queues\n{report.END}\n\nThe end.\n")
    row = {"system": "fsqueue", "step": "wake", "size": 60, "round": 1, "case": "poll", "idle_s": 2.0}
    report.write(tmp_path, FACTS, [{**row, "samples_us": [1500, 2500], "cpu_ms_a_s": 0.25}])
    text = page.read_text()
    assert "the queues" in text
    assert "| fsqueue, poll, idle for 2 s | 2 | 1.5 | 2.5 |" in text
    assert "idle for 2 s: median | under 20 ms" in text
    report.write(tmp_path, FACTS, [])
    assert "the queues" not in page.read_text()
    assert "| fsqueue, poll, idle for 2 s | 2 |" in page.read_text()
    assert "By hand." in page.read_text()
