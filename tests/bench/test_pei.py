"""scripts/pei, small: it writes page and plots, keeps what was written by hand, and fails if a claim does not hold."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from benchmarks import pei

from fsqueue.simulation import figures as simulation_figures

TOP = Path(__file__).resolve().parents[2]


@pytest.mark.thorough
def test_it_writes_tables_claims_and_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = tuple(replace(case, lag=min(case.lag, 500)) for case in simulation_figures.CASES)
    monkeypatch.setattr(
        pei.simulation_figures, "reproduce",
        lambda seed, runs, pops, tell, call=simulation_figures.reproduce: call(seed, runs, pops, small, tell),
    )  # fmt: skip
    page = tmp_path / pei.DOC
    page.write_text(f"By hand.\n\n{pei.BEGIN}\n{pei.END}\n\nThe end.\n")
    arguments = ["--seed", "5", "--runs", "1", "--pops", "200", "--docs", str(tmp_path)]
    code = pei.main(arguments)
    text = page.read_text()
    assert text.startswith("By hand.\n")
    assert text.endswith("\nThe end.\n")
    assert "`fsqueue simulate --figures --seed 5 --runs 1 --pops 200` prints the same numbers." in text
    assert code == (1 if "**does not hold**" in text else 0)
    assert ("this does not hold" in capsys.readouterr().err) == (code == 1)
    assert len(re.findall(r"^## Figure ", text, re.MULTILINE)) == 6
    for number in simulation_figures.TITLES:
        assert f"]({pei.drawing(number)})" in text
        drawn = " ".join(ElementTree.parse(tmp_path / pei.drawing(number)).getroot().itertext())
        assert f"Figure {number}: " in drawn
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    pei.main(arguments)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_page_without_marks_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / pei.DOC
    page.write_text("By hand.\n")
    with pytest.raises(RuntimeError, match="no place for the results"):
        pei.write(tmp_path, [], "")
    assert page.read_text() == "By hand.\n"


def test_the_page_is_what_the_script_writes() -> None:
    """The page in docs/ has every case, and names seed and command."""
    text = (TOP / "docs" / pei.DOC).read_text()
    assert f"`fsqueue simulate --figures --seed {pei.SEED} --runs {simulation_figures.RUNS} " in text
    assert "**does not hold**" not in text
    for number, (title, _) in simulation_figures.TITLES.items():
        assert f"## Figure {number}\n\n![Figure {number}]({pei.drawing(number)})\n\n{title}.\n" in text
        table = text.partition(f"## Figure {number}\n")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| .*\d \|$", table.partition("---:|\n")[2], re.MULTILINE)
        assert len(rows) == sum(case.figure == number for case in simulation_figures.CASES)
        assert (TOP / "docs" / pei.drawing(number)).exists()
