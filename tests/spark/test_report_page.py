"""The page of a report, from plain numbers: what it says, and what a browser and a screen reader make of it.

tests/spark/test_jobs.py has Spark make one.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fsqueue.errors import FsqueueError
from fsqueue.format.layout import Settings
from fsqueue.spark.jobs import report as report_job
from fsqueue.spark.jobs.report_page import QueueReport, QueueSummary, page
from fsqueue.webpages import charts, rendering
from tests.browser import CONTRASTS, CUT, OVERLAPS, SMALLEST, Browser, why_not

T = 1_795_384_800.0
HOSTILE = '<img src=x onerror=alert(1)>"&\u202e' + "x" * 300
SETTINGS = {name: getattr(Settings(), name) for name in Settings.__dataclass_fields__}


def state(path: str = "/scratch/me/tiles", **states: int) -> QueueSummary:
    names = ("inserted", "waiting", "delayed", "leased", "completed", "dead")
    return QueueSummary(path, dict.fromkeys(names, 0) | states, SETTINGS)


def report(
    durations: Sequence[float] = (), points: Sequence[tuple[float, int]] = (), step: int = 1, **more: Any
) -> QueueReport:
    """Make a report as the job does, of completed tasks with these durations."""
    ordered = sorted(durations)
    quantiles = [ordered[int(part * (len(ordered) - 1))] for part in (0.5, 0.9, 0.99, 1)] if ordered else []
    bins = charts.bins_for(ordered[0], ordered[-1]) if ordered else None
    histogram = []
    if bins is not None:
        edges = [bins.edge(number) for number in range(bins.count + 1)]
        histogram = [(a, b, sum(1 for one in ordered if a <= one < b)) for a, b in pairwise(edges)]
    known: dict[str, Any] = {
        "out": "out", "attempts": {"complete": len(ordered)} if ordered else {}, "duration_s": quantiles,
        "wait_s": quantiles, "held_s": quantiles, "step_s": step, "throughput": list(points), "failures": [],
        "hosts": [], "durations": histogram, "is_log": bins is not None and bins.is_log, "queues": [state()],
        "queue_count": 1, "looked_at": T,
    }  # fmt: skip
    return QueueReport(**known | more)


def slow(number: int, **more: Any) -> dict[str, Any]:
    row = {"id": f"01a2005bae547ea098a98be69e8f6b60.{number}", "duration_s": 9e4 / (number + 1), "held_s": 1e5}
    rest = {"outcome": "complete", "attempts": 2, "worker": "node (process 1, Slurm job 4711_3)", "ended_at": T}
    return row | rest | more


CHANCE = random.Random(7)
FAILURE = {"reason": HOSTILE, "attempts": 1200, "outcome": "fail", "host": "node17.example.org", "example": "01a2.7"}
HOST = {"host": "node17", "attempts": 9, "completed": 8, "failed": 1, "expired": 0, "median_duration_s": None}
CASES = {
    "empty": report(),
    "one": report([15.2], [(T, 1)], slowest=[slow(1)]),
    "nothing takes time": report([0.0] * 5, [(T, 5)]),
    "equal": report([15 + CHANCE.random() for _ in range(100)], [(T + 5 * n, 3) for n in range(40)], 5),
    "all failed": report(attempts={"fail": 5000}, failures=[FAILURE] * 3, slowest=[slow(1, outcome="fail")]),
    "a million": report(
        [10 ** CHANCE.uniform(-3, 4) for _ in range(1000)],
        [(T + 900 * n, CHANCE.randrange(900_000)) for n in range(60)], 900,
        attempts={"complete": 1_000_000, "fail": 1200}, slowest=[slow(n) for n in range(20)], hosts=[HOST] * 20,
        failures=[FAILURE] * 20, queues=[state(inserted=1_000_000, completed=1_000_000)],
    ),
    "years": report([3e5, 1e6], [(T + 30 * 86_400 * n, n + 1) for n in range(70)], 30 * 86_400),
    "many queues": report(
        queues=[state(f"/scratch/me/{HOSTILE}{n}", waiting=n) for n in range(50)], queue_count=70,
        slowest=[slow(n, queue=f"tiles-{n}") for n in range(3)],
    ),
}  # fmt: skip


# -- what it says ------------------------------------------------------------------------------------------------


class Outline(HTMLParser):
    """The elements of a page, in order, each with its attributes and the text right in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), []))

    def handle_data(self, data: str) -> None:
        if self.found:
            self.found[-1][2].append(data)

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attrs, "".join(text).strip()) for name, attrs, text in self.found if name == tag]


@pytest.mark.parametrize("name", CASES)
def test_the_page_is_whole_and_has_names_for_all(name: str) -> None:
    text = page("/scratch/me/tiles", CASES[name])
    outline = Outline(text)
    tags = [tag for tag, *_ in outline.found]
    assert [attrs["lang"] for attrs, _ in outline.all("html")] == ["en"]
    assert [tags.count(landmark) for landmark in ("header", "main", "footer", "h1")] == [1] * 4
    assert [tag for tag in tags if re.fullmatch("h[1-6]", tag)] == ["h1"] + ["h2"] * 7
    assert tags.count("table") == tags.count("caption")
    assert all(attrs.get("scope") in ("col", "row") for attrs, _ in outline.all("th"))
    for attrs, _ in outline.all("svg"):
        assert attrs["role"] == "img"
        assert len(attrs["aria-label"] or "") > 20
    assert "2026-11-22 22:00:00 UTC" in text
    assert not {"script", "link", "img", "iframe"} & set(tags)
    assert not re.search(r"https?:|url\(|@import|\bsrc=|\bhref=|\bon\w+=(?!alert)", re.sub(r"&lt;img src=x", "", text))


def test_what_others_wrote_is_text() -> None:
    rows = {"failures": [FAILURE], "slowest": [slow(1, worker=HOSTILE)], "hosts": [HOST | {"host": HOSTILE}]}
    text = page(f"/scratch/{HOSTILE}", report(attempts={HOSTILE: 1}, **rows))
    assert "<img" not in text
    assert "<" not in Outline(text).all("h1")[0][1].replace(HOSTILE.replace("\u202e", r"\u202e"), "")
    assert text.count("&lt;img src=x onerror=alert(1)&gt;") >= 6


def test_what_others_wrote_hides_nothing_and_turns_no_text_around() -> None:
    hidden = "a\x00\x1b[31m\u202e\u2066\x85\udcff"
    rows = {"failures": [FAILURE | {"reason": hidden}], "slowest": [slow(1, worker=hidden)]}
    text = page(f"/scratch/{hidden}", report(attempts={hidden: 1}, hosts=[HOST | {"host": hidden}], **rows))
    shown = r"a\x00\x1b[31m\u202e\u2066\x85\udcff"
    assert text.count(shown) >= 7
    assert not re.search(r"[^\n -~\u2013]", text)
    text.encode()


def test_states_settings_quantiles_and_slowest_tasks_are_there() -> None:
    text = page("/scratch/me/tiles/", CASES["a million"])
    for said in (
        '<th scope="row">completed</th><td class="n">1,000,000</td>', ">lease s</th><td>600</td>", ">1 to 3,600</td>",
        '<th scope="row" role="rowheader">took</th>',
        ">90 %</th>", ">1 d 1 h</td>", "01a2005bae547ea098a98be69e8f6b60.19", "<h1>tiles</h1>", "Slurm job 4711_3",
    ):  # fmt: skip
        assert said in text, said
    many = page("/scratch/me", CASES["many queues"])
    assert "There are 20 more queues." in many
    assert "tiles-2" in many
    unkept = QueueSummary("/q", {"inserted": 5}, SETTINGS | {"keep_history": False})
    assert "the queue keeps no history" in page("/q", report(queues=[unkept]))


def test_without_jinja_a_report_says_so_before_it_does_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    rendering.environment.cache_clear()
    with pytest.raises(FsqueueError, match=r"Nothing was done. .* pip install 'fsqueue-tasks\[pages\]'"):
        report_job.report(None, str(tmp_path / "queue"), str(tmp_path / "out"))  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


# -- in a browser ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if reason := why_not():
        pytest.skip(reason)
    started = Browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
def test_in_a_browser(name: str, browser: Browser, tmp_path: Path) -> None:
    """On phones and on screens, by day and by night; also where the style changes, when labels have least room."""
    file = tmp_path / "report.html"
    file.write_text(page("/scratch/me/tiles", CASES[name]), encoding="utf-8")
    for width, dark in ((320, False), (420, False), (641, True), (1280, True)):
        browser.show(file, width, dark)
        assert browser.run("document.documentElement.scrollWidth") <= width
        shown, overlaps = browser.run(OVERLAPS)
        assert shown == (2 if CASES[name].throughput else 0)
        assert overlaps == []
        browser.run("document.querySelectorAll('details').forEach(one => one.open = true)")
        cut = browser.run(CUT)
        assert width not in (420, 320) or cut == []
        assert width < 1280 or "How many tasks are in which state, by queue" not in cut  # however long a name is
        assert browser.run(SMALLEST) > 11  # pixels: can be read
        text, bars = browser.run(CONTRASTS)
        assert text >= 4.5
        assert bars >= 3


def test_for_a_screen_reader(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page("/scratch/me/tiles", CASES["a million"]), encoding="utf-8")
    browser.show(file, 420)
    browser.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    nodes = browser.tree()
    names = {role: [node["name"] for node in nodes if node["role"] == role] for role in {n["role"] for n in nodes}}
    assert all(names[role] for role in ("banner", "main", "contentinfo"))
    assert len(names["heading"]) == 8
    pictures = names.get("image", names.get("img", []))
    assert [name.split(".")[0] for name in pictures] == [
        "Completed tasks over time",
        "Completed tasks by duration, on a logarithmic scale",
    ]
    assert "median" in pictures[1]
    assert len(names["table"]) == 9
    assert all(names["table"])
    assert {"state", "tasks", "took", "worker", "reason"} <= set(names["columnheader"])
    assert {"completed", "waiting", "took", "node17"} <= set(names["rowheader"])
    assert {"1 d 1 h", "node (process 1, Slurm job 4711_3)"} <= set(names["cell"])  # without the column's name twice
