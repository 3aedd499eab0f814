"""The benchmarks of priorities and keys: their arithmetic on made-up rows, and all of them, small, on real queues."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from benchmarks import machine
from benchmarks.order import campaign, crowd, main, papers, plot, pops, report, steps
from benchmarks.order.figures import Rows, figures, share
from benchmarks.order.pops import Pop

from fsqueue import Queue
from fsqueue.format import names
from fsqueue.protocol import single_inserts
from tests.waiting import PATIENCE_S, until

Row = dict[str, Any]


def popped(*ranks: int) -> list[Pop]:
    return [Pop(f"b.{rank}", rank, moment, moment + 5) for moment, rank in enumerate(ranks)]


def test_the_pei_is_the_number_of_more_urgent_tasks_that_are_left() -> None:
    assert pops.indices([0, 1, 2, 3], 4) == [0, 0, 0, 0]
    assert pops.indices([3, 0, 2, 1], 4) == [3, 0, 1, 0]
    assert pops.indices([3, 0], 5) == [3, 0]


def test_the_logs_order_pops_and_writes_order_those_of_one_millisecond() -> None:
    early, late, next_ms = Pop("a.0", 0, 10, 20), Pop("b.0", 1, 30, 40), Pop("a.1", 2, 25, 50)
    at = {"a.0": 7, "b.0": 7, "a.1": 8}
    assert pops.in_order([next_ms, late, early], at) == [early, late, next_ms]
    with pytest.raises(KeyError):
        pops.in_order([early], {})


def test_held_is_what_was_leased_and_not_completed() -> None:
    found = [Pop("a", 0, 0, 10), Pop("b", 1, 5, 30), Pop("c", 2, 20, 25), Pop("d", 3, 40, 50)]
    assert pops.held_at(found) == [0, 1, 1, 0]


def test_what_workers_popped_is_judged() -> None:
    at = {f"b.{rank}": moment for moment, rank in enumerate((1, 0, 3, 2))}
    judged = pops.judge(popped(1, 0, 3, 2), at, 4)
    assert (judged["lost"], judged["twice"]) == (0, 0)
    assert judged["pei"]["mean"] == 0.5
    assert judged["pei_as_written"] == judged["pei"]
    assert judged["held"] == {"median": 1, "greatest": 3}
    half = pops.judge(popped(3, 0), at | {"b.3": 0, "b.0": 1}, 4, part=0.5)
    assert (half["lost"], half["pei"]["greatest"]) == (0, 3)
    assert pops.judge(popped(3), at, 4, part=0.5)["lost"] == 1
    assert pops.judge(popped(0, 0, 2), at, 4) == {"tasks": 3, "lost": 2, "twice": 1}


def test_leases_are_read_from_logs_and_from_the_history(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "q", allow_unsafe=True)
    queue.insert_many([{"n": 0}, {"n": 1}], batch_tasks=1)
    writes = steps.Writes(queue)
    before = crowd.clock()
    (first,) = queue.lease()
    moment = writes.moment
    assert before < moment < crowd.clock()
    first.complete()
    (second,) = queue.lease()
    assert writes.moment > moment
    found = pops.lease_times(str(queue.path))
    assert set(found) == {first.id, second.id}
    [lease] = [move.at for move in queue.history(first.id) if move.op == "lease"]
    assert found[first.id] / 1000 == pytest.approx(lease, abs=1)


# -- a crowd -------------------------------------------------------------------------------------


def answering(number: int, start: crowd.Start, is_over: crowd.IsOver) -> tuple[int, int, int]:
    return number, os.getpid(), start()


def breaking(start: crowd.Start, is_over: crowd.IsOver) -> None:
    start()
    raise ValueError("it broke")


def until_over(start: crowd.Start, is_over: crowd.IsOver) -> str:
    start()
    until(is_over, "the crowd to be over")
    return "over"


def dying(start: crowd.Start, is_over: crowd.IsOver) -> None:
    os._exit(1)


def test_a_crowd_begins_at_one_moment_in_processes_of_its_own() -> None:
    answers = crowd.run([partial(answering, number) for number in range(3)], 5)
    assert [number for number, _, _ in answers] == [0, 1, 2]
    assert len({pid for _, pid, _ in answers} | {os.getpid()}) == 4
    assert len({moment for _, _, moment in answers}) == 1


def test_a_crowd_ends_when_the_first_have_ended() -> None:
    assert crowd.run([partial(answering, 7), until_over, until_over], 5, until=1)[1:] == ["over", "over"]


def test_what_breaks_in_a_crowd_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(crowd.CrowdFailed, match="ValueError: it broke"):
        crowd.run([until_over, breaking], 5)
    with pytest.raises(crowd.CrowdFailed, match="without an answer"):
        crowd.run([dying], 5)
    monkeypatch.setattr(crowd, "GRACE_S", 0)
    with pytest.raises(crowd.CrowdFailed, match="in time"):
        crowd.run([until_over], 0.2)


def test_threads_return_in_their_order_and_their_first_error_is_raised() -> None:
    assert crowd.in_threads(3, lambda number: number * 2) == [0, 2, 4]
    with pytest.raises(ZeroDivisionError):
        crowd.in_threads(2, lambda number: 1 // number)


def test_rates_vary_as_those_of_ten_parts_of_the_time() -> None:
    steady = steps.rates(0, [(moment * 10, 2) for moment in range(1, 101)])
    assert (steady["tasks"], steady["seconds"]) == (200, 1e-6)
    assert steady["variation"] < 5
    assert steps.rates(0, [(10, 50), (100, 50)])["variation"] > 100
    assert steps.rates(5, []) == {"tasks": 0, "seconds": 1e-9, "variation": None}


# -- figures, tables, plots ----------------------------------------------------------------------


def working(way: str, priorities: bool, workers: int, rate: int) -> Row:
    return {"step": "work", "way": way, "priorities": priorities, "workers": workers, "tasks": rate, "seconds": 1.0}


def pei_row(step: str, median: int, **more: Any) -> Row:
    spread = {"median": median, "p90": 50, "p99": 60, "mean": 20.0, "greatest": 70, "share_of_first": 0.1, "pops": 9}
    if "simulated" in step:
        return {"step": step, "basic": spread, "better": spread, **more}
    measured = {"pei": spread, "pei_as_written": spread, "held": {"median": 3, "greatest": 8}}
    return {"step": step, "lost": 0, "twice": 0, "tasks": 100, **measured, **more}


def isolated(loaders: int, rate: int) -> Row:
    return {"step": "isolation", "loaders": loaders, "threads": 50, "tasks": rate, "seconds": 1.0}


ROWS = [
    {"step": "cores", "cores": 2},
    *(working("bulk", priorities, 1, rate) for priorities in (True, False) for rate in (700, 900, 1000)),
    working("single", True, 1, 200),
    working("single", False, 1, 1000),
    {**pei_row("strict", 0, way="bulk"), "pei": {"greatest": 0}},
    {**pei_row("strict", 0, way="single"), "pei": {"greatest": 2}},
    pei_row("simulated", 25, shards=64, workers=8),
    pei_row("pei", 28, shards=64, workers=8, way="bulk"),
    pei_row("pei", 29, shards=64, workers=8, way="single"),
    isolated(0, 1000),
    isolated(10, 100),
    {"step": "keys", "bytes": 200, "plain": 20.0, "keyed": 130.0, "repeat": 15.0},
    {"step": "syncs", **{key: {"median": 2, "greatest": 4} for key in ("plain", "first", "keyed")}},
]


def test_figures_are_judged_by_what_was_measured() -> None:
    judged = {figure.what: (figure.reached, figure.measured) for figure in figures(Rows(ROWS))}
    assert list(judged.values()) == [
        (True, "1.00 (900/s to 900/s)"),
        (False, "0.20 (200/s to 1,000/s)"),
        (True, "each pop the most urgent task"),
        (False, "passed over up to 2"),
        (True, "28 (simulation 25, held 3)"),
        (False, "29 (simulation 25, held 3)"),
        (True, "0 (in 4 queues, 400 tasks)"),
        (True, "0.55 of it (100/s, alone 1,000/s; its share is 0.18 of that: 11 processes, 2 cores)"),
        (False, "6.5 times (130 µs to 20 µs)"),
        (True, "4 at most, 2 in the median; 4 where it makes a directory"),
    ]


def test_nothing_is_judged_that_was_not_measured() -> None:
    assert {figure.reached for figure in figures(Rows([]))} == {None}
    some = [isolated(0, 1000), isolated(4, 900), {"step": "keys", "not_run": "it failed"}]
    assert {figure.reached for figure in figures(Rows(some))} == {None}


def test_a_worker_has_at_most_a_core() -> None:
    assert [share(loaders, 2) for loaders in (0, 1, 3)] == [1, 1, 0.5]


FACTS = {
    "date": "2000-01-01",
    "commit": "none",
    "cpu": "x",
    "cores": 2,
    "memory_gb": 1,
    "kernel": "k",
    "filesystem": "tmpfs",
    "mount_options": "rw",
    "python": "3",
    "versions": {"fsqueue": "1"},
    "in_memory": True,
}


def texts(svg: str) -> str:
    """Return the words in a picture, which must be well-formed."""
    return " ".join("".join(ElementTree.fromstring(svg).itertext()).split())


def test_tables_and_plots_of_nothing_are_still_whole() -> None:
    made = report.markdown(FACTS, [{"step": "fill", "way": "bulk", "not_run": "a|b"}])
    assert "tmpfs is memory" in made
    assert "- fill (way bulk): a/b" in made
    assert "## Throughput" not in made
    assert "no PEI" in texts(plot.pei(Rows([])))
    assert "none of them" in texts(plot.taskmaster(Rows([])))
    assert "not measured" in texts(plot.taskmaster(Rows(ROWS)))


def test_the_page_breaks_its_lines_and_says_which_table_a_paper_s_number_is_from() -> None:
    made = report.markdown(FACTS, ROWS)
    assert [line for line in made.splitlines() if len(line) > 100 and not line.startswith("|")] == []
    assert "| 64 | 8 | 28 / 50 / 60 | 3 | 29 / 50 / 60 | 3 | 25 / 50 / 60 | 25 / 50 / 60 |" in made
    single = {"step": "single", "workers": 50, "threads": 10, "busy_threads": 500, "tasks": 9, "seconds": 1.0}
    single |= {"operation": "insert", "variation": 1.5, "latency_us": {"insert": {"p50": 500.0}}}
    made = report.markdown(FACTS, [single])
    assert "table 1" in made
    assert "| insert | 50 × 10 (500) | 9 | 1.5 % | 0.5 | FIFO enqueue: 2,386 | 8.7 % |" in made
    assert papers.SINGLE_OPERATIONS["insert"] == ("FIFO enqueue", 2386, 8.7)


def test_the_page_knows_over_how_many_shards_single_inserts_go() -> None:
    assert f"at most {single_inserts.SPREAD + 1} shards" in " ".join(report.markdown(FACTS, ROWS).split())
    assert campaign.BATCHES_A_SHARD == 2  # the page says "two batches for each shard"
    for plan in (campaign.Plan([]), campaign.quick([])):  # "within one open batch": the first insert begins it
        assert 1 + 2 * plan.sync_sample + plan.sync_warmup <= names.BATCH_TASKS_MAX
    assert campaign.FULL_PART == 0.5  # "half of the tasks"


# -- all of it, small ----------------------------------------------------------------------------


def tiny(groups: list[str]) -> campaign.Plan:
    plan = campaign.quick(groups)
    plan.tasks = plan.single_tasks = 60
    plan.many_workers = 2
    plan.pei_tasks, plan.pei_shards, plan.pei_workers = 256, [64], [8]
    plan.nodes, plan.clients = [3], [2]
    plan.crowd, plan.bulk_crowd, plan.collision_crowd = (2, 2), (2, 1), (2, 2)
    plan.seconds = plan.point_seconds = 0.2
    plan.batches, plan.collisions = [2], [0.5]
    plan.loaders, plan.loader_threads = [0, 10], 1
    plan.work_tasks = 400
    plan.key_turns, plan.key_each, plan.sync_sample, plan.sync_warmup = 2, 5, 5, 5
    return plan


@pytest.mark.thorough
def test_a_run_measures_all_and_writes_json_page_and_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main, "quick", tiny)
    monkeypatch.setattr(papers, "CLUSTER_CLIENTS", 2)
    file, docs, work = tmp_path / "run.json", tmp_path / "docs", tmp_path / "work"
    work.mkdir()
    code = main.main([main.ALL, "--quick", "--dir", str(work), "--json", str(file), "--docs", str(docs)])
    said = capsys.readouterr().err
    assert code == 0, said
    assert list(work.iterdir()) == []  # it cleans up
    rows = json.loads(file.read_text())["rows"]
    assert [row for row in rows if "not_run" in row] == []
    measured = {row["step"] for row in rows}
    assert measured >= {"work", "fill", "strict", "keys", "syncs", "pei", "simulated", "figure 8", "cluster"}
    assert measured >= {"single", "bulk", "collisions", "isolation"}
    for row in rows:
        if row["step"] in ("pei", "figure 8", "strict"):
            assert (row["lost"], row["twice"]) == (0, 0)
    judged = {figure.what: figure for figure in figures(Rows(rows))}
    assert [what for what, figure in judged.items() if figure.reached is None] == []
    assert [figure.measured for what, figure in judged.items() if what.startswith("strict")] == [
        "each pop the most urgent task"
    ] * 2

    page = (docs / report.PAGE).read_text()
    assert page.count("## Figures to reach") == 1
    for name in (report.PEI_PLOT, report.TASKMASTER_PLOT):
        assert name in page
        ElementTree.parse(docs / name)

    # The tables can be made again without measuring, and what was written by hand around them stays.
    (docs / report.PAGE).write_text("# By hand\n\n" + page.partition("# Priorities, measured\n\n")[2] + "\nThe end.\n")
    assert main.main(["pei", "--from", str(file), "--docs", str(docs)]) == 0
    text = (docs / report.PAGE).read_text()
    assert text.startswith("# By hand\n")
    assert text.endswith("\nThe end.\n")
    assert text.count("## Figures to reach") == 1


def test_the_first_argument_of_the_command_names_what_is_measured() -> None:
    bench = machine.ROOT / "scripts" / "benchmarks"
    done = subprocess.run(
        [sys.executable, str(bench), "pei", "--help"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in campaign.GROUPS)
    done = subprocess.run([sys.executable, str(bench), "nothing"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode != 0
    assert "invalid choice: 'nothing'" in done.stderr
    assert "Traceback" not in done.stderr
