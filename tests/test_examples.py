"""The programs in examples/, run as their first lines say. (That on Spark: tests/spark/test_pipeline.py.)"""

from __future__ import annotations

import email
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fsqueue import Group
from tests.house.source import TOP
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.once


def run(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOP / "examples" / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)


def test_a_generator_task_inserts_the_next_hundred_as_it_completes(tmp_path: Path) -> None:
    said = run("generator.py", tmp_path / "squares", 500).stdout
    assert said == f"500 numbers, the sum of their squares is {sum(n * n for n in range(500))}\n"
    queue = Group(tmp_path / "squares")["squares"]
    assert queue.status().completed == 505
    logs = {info.id.partition(".")[0] for info in queue.tasks("completed")}
    assert len(logs) < 5, "what several tasks have inserted is in one log; a slow process begins further ones"


def test_the_converter_gives_up_what_cannot_be_converted_with_the_reason(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(5):
        (texts / f"{number}.txt").write_text("a < b\n" * number)
    (texts / "bad.txt").write_bytes(b"\xff")
    first, second = run("converter.py", texts, tmp_path / "group").stdout.splitlines()
    assert first == "5 pages with 15 lines"
    assert second.startswith("given up after 3 attempts: bad.txt: UnicodeDecodeError")
    assert "a &lt; b" in (tmp_path / "pages/1.html").read_text()


def test_a_crawler_visits_each_page_once_with_workers_killed(tmp_path: Path) -> None:
    """Each page links to itself, to the next one, back to the first, and some to one that is not there."""
    site, count = tmp_path / "site", 24
    site.mkdir()
    for number in range(count):
        to = [number, (number + 1) % count, number * 7 % count, 0]
        links = "".join(f' <a href="{each}.html">x</a>' for each in to) + (' <a href="lost.html">x</a>' * (number % 2))
        (site / f"{number}.html").write_text(f"page{links}")
    done = run("crawler.py", site, "0.html", tmp_path / "crawl", "--workers", 2, "--kill", 2)
    words = sum(len(path.read_text().split()) for path in site.iterdir())
    assert done.stdout == f"{count} pages with {words} words\nbroken links: lost.html\n"
    assert done.stderr.splitlines()[-1] == "killed 2 workers"
    group = Group(tmp_path / "crawl")
    indexed = sorted(one.result["page"] for one in group["index"].results())
    assert indexed == sorted(path.name for path in site.iterdir())
    assert group["fetch"].status().inserted == group["extract"].status().inserted + 1 == count + 1
    assert len({task.key for task in group["fetch"].tasks("delayed")}) == count + 1


def test_map_reduce_counts_as_a_plain_computation_does_with_workers_killed(tmp_path: Path) -> None:
    sources = Path(email.__file__).parent
    finished = run("mapreduce.py", sources, tmp_path / "words", "--workers", 3, "--kill", 2)
    assert finished.stderr.splitlines()[-1] == "killed 2 workers"
    sys.path.insert(0, str(TOP / "examples"))
    try:
        import mapreduce  # type: ignore[import-not-found, unused-ignore]
    finally:
        sys.path.pop(0)
    plain = mapreduce.count(map(str, sources.rglob("*.py")))
    totals: Counter[str] = Counter()
    for task in Group(tmp_path / "words")["totals"].tasks():
        totals.update(task.payload)
    assert totals == plain
    assert finished.stdout.split()[1] == plain.most_common(1)[0][0]
