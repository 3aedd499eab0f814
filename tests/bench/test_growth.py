"""scripts/soak-growth, small: it works a queue for days, measures each tenth, judges, and writes what it promises."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from benchmarks import growth

from fsqueue.clock import Clock


def made_up(**costs: list[float]) -> list[dict[str, Any]]:
    """Return tenths whose `status` takes `cpu_s` and `memory_mb`, with so many inodes, and verbs of so many µs."""
    return [
        {
            "day": place + 1,
            "movements": 100 * (place + 1),
            "inodes": costs.get("inodes", [500.0] * 10)[place],
            "usage": {"logs": [3, 1000]},
            "memory_mb": 80.0,
            "verbs": {"lease 1": {"calls": 5000, "tasks": 5000, "cpu_us": costs.get("cpu_us", [30.0] * 10)[place]}},
            "commands": {"status": {"cpu_s": costs.get("cpu_s", [0.1] * 10)[place], "memory_mb": 30.0, "read_mb": 9.0}},
        }
        for place in range(10)
    ]


def rising(tenths: list[dict[str, Any]]) -> list[str]:
    return [row.what for row in growth.rows(tenths) if not row.is_flat]


def test_what_rises_is_told_and_what_varies_is_not() -> None:
    assert rising(made_up()) == []
    assert rising(made_up(cpu_s=[0.1, 0.11, 0.1, 0.3, 0.1, 0.1, 0.11, 0.1, 0.11, 0.1])) == []
    assert rising(made_up(cpu_s=[0.1 + 0.01 * place for place in range(10)])) == ["`fsqueue status`"]
    assert rising(made_up(inodes=[500 + 20 * place for place in range(10)])) == ["files and directories"]
    assert rising(made_up(cpu_us=[30 + 2 * place for place in range(10)])) == ["lease 1"]


@pytest.mark.thorough
def test_a_small_soak_adds_up_and_writes_table_plot_and_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(growth, "COMMANDS", (("status",), ("gc", "--history-days", "2")))
    monkeypatch.setattr(growth, "HELD", 10)
    local_s = Clock.local_s
    file, docs, work = tmp_path / "run.json", tmp_path / "docs", tmp_path / "work"
    docs.mkdir()
    work.mkdir()
    page = docs / growth.DOC
    page.write_text(f"By hand.\n\n{growth.BEGIN}\n{growth.END}\n\nThe end.\n")
    small = ["--movements", "4000", "--days", "10", "--seed", "5", "--repeat", "1", "--dir", str(work)]
    code = growth.main([*small, "--json", str(file), "--docs", str(docs)])
    told = capsys.readouterr().err
    assert "seed 5" in told
    assert "day 10 of 10" in told
    assert code == (0 if "every cost is flat" in told else 1)
    assert list(work.iterdir()) == []  # it cleans up
    assert Clock.local_s is local_s  # and sets the clock back

    made = json.loads(file.read_text())
    assert made["seed"] == 5
    assert len(made["tenths"]) == 10
    last = made["tenths"][-1]
    assert last["movements"] >= 4000
    verbs = {verb for each in made["tenths"] for verb in each["verbs"]}
    assert {"lease 1", "lease many", "complete 1", "renew", "fail", "bury", "release", "gc"} <= verbs
    assert last["usage"]["history"][0] <= 3 * 64  # older days were given back
    text = page.read_text()
    assert text.startswith("By hand.\n")
    assert text.endswith("\nThe end.\n")
    assert "| `fsqueue status` |" in text
    ElementTree.parse(docs / growth.PLOT)

    # Table and plot can be made again without working a queue.
    before = text, (docs / growth.PLOT).read_bytes()
    growth.main(["--from", str(file), "--docs", str(docs)])
    assert (page.read_text(), (docs / growth.PLOT).read_bytes()) == before


@pytest.mark.parametrize(("arguments", "message"), [(["--days", "9"], "10 days"), (["--movements", "5"], "movement")])
def test_what_it_cannot_do_it_says(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        growth.main(arguments)
    assert message in capsys.readouterr().err


def test_a_queue_that_does_not_add_up_fails_the_soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "COMMANDS", ())
    monkeypatch.setattr(growth, "HELD", 10)
    day = growth.Soak.day

    def losing(soak: growth.Soak, movements: int) -> None:
        day(soak, movements)
        soak.done += 1

    monkeypatch.setattr(growth.Soak, "day", losing)
    with pytest.raises(RuntimeError, match="does not add up"):
        growth.run(str(tmp_path / "q"), 1000, 10, 5, lambda text: None)


def test_a_machine_that_slows_down_is_no_rise() -> None:
    tenths = made_up(
        cpu_s=[0.1 + 0.03 * place for place in range(10)], cpu_us=[30.0 + 3 * place for place in range(10)]
    )
    assert rising(tenths) == ["`fsqueue status`", "lease 1"]
    for place, each in enumerate(tenths):
        each["commands"][growth.START] = {"cpu_s": 0.1 + 0.03 * place, "memory_mb": 30.0, "read_mb": 9.0}
        each["verbs"][growth.BARE] = {"calls": 10, "tasks": 2000, "cpu_us": 10.0 + place}
    assert rising(tenths) == []
