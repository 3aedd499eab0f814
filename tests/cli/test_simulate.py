"""simulate: prints what fsqueue.simulation returns, names its seed, and says with its exit code whether claims hold."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fsqueue import simulation
from fsqueue.simulation import figures as simulation_figures
from fsqueue.simulation.figures import Claim, Figure
from tests.cli.conftest import Run
from tests.cli.terminal import Terminal

SMALL = ("--lag", 100, "--pops", 500)


def test_the_table_shows_the_distribution(fsqueue_cli: Run) -> None:
    result = fsqueue_cli("simulate", *SMALL, "--seed", 4)
    made = simulation.simulate(lag=100, pops=500, seed=4)
    heading, names, values = result.stdout.splitlines()
    assert heading.startswith("500 pops; the index of the popped element (PEI), 0 at best; ")
    assert heading.endswith(f"{100 * made.share(0):.2f} % of the pops gave the first element")
    assert names.split() == ["MEAN", "MEDIAN", "P90", "P99", "GREATEST"]
    assert values.split() == [f"{made.mean:.2f}", *map(str, (made.median, made.p90, made.p99, made.greatest))]
    assert result.stderr == ""


def test_json_has_parameters_figures_and_all_counts(fsqueue_cli: Run) -> None:
    options = ("--nodes", 30, "--peeks", 5, "--concurrent", 10, "--policy", "better", "--runs", 2, "--seed", 4)
    shown = json.loads(fsqueue_cli("simulate", *SMALL, *options, "--json").stdout)
    made = simulation.simulate(30, 5, 100, 500, policy="better", concurrent=10, runs=2, seed=4)
    given = {"nodes": 30, "peeks": 5, "lag": 100, "concurrent": 10, "strategy": "pop", "policy": "better"}
    counts = {str(index): count for index, count in made.counts.items()}
    assert shown == {**given, "runs": 2, "seed": 4, **made.as_dict(), "counts": counts}
    assert shown["pops"] == 1000


@pytest.mark.parametrize("strategy", ["pop", "add", "none"])
def test_each_strategy(fsqueue_cli: Run, strategy: Any) -> None:
    shown = json.loads(fsqueue_cli("simulate", *SMALL, "--strategy", strategy, "--seed", 4, "--json").stdout)
    assert shown["mean"] == simulation.simulate(lag=100, pops=500, strategy=strategy, seed=4).mean


def test_a_seed_that_was_drawn_is_named_and_gives_the_same_again(fsqueue_cli: Run) -> None:
    first = fsqueue_cli("simulate", *SMALL)
    said = re.fullmatch(r"fsqueue: seed (\d+)\n", first.stderr)
    assert said is not None
    assert fsqueue_cli("simulate", *SMALL, "--seed", said[1]).stdout == first.stdout
    shown = json.loads(fsqueue_cli("simulate", *SMALL, "--json").stdout)
    assert isinstance(shown["seed"], int)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nodes", 0], "0 is not in the range 1<=x<=100000"),
        (["--nodes", "many"], "'many' is not a valid integer"),
        (["--peeks", 0], "is not in the range"),
        (["--lag", -1], "is not in the range 0<=x<=10000000"),
        (["--pops", 0], "is not in the range"),
        (["--runs", 0], "is not in the range"),
        (["--concurrent", 1.5], "'1.5' is not a valid integer"),
        (["--seed", -1], "is not in the range"),
        (["--strategy", "push"], "'push' is not one of 'pop', 'add', 'none'"),
        (["--policy", "best"], "'best' is not one of 'basic', 'better'"),
        (["Q"], "unexpected extra argument (Q)"),
        (["--figures", "--lag", 5, "--nodes", 2], "leave out --nodes, --lag."),
        (["--lag", 10_000_000], "lag and pops must not be more than 10,000,000 together"),
        (["--policy", "better", "--strategy", "none"], 'Use the strategy "pop", or the policy "basic"'),
    ],
)
def test_what_makes_no_sense_is_refused(
    fsqueue_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = fsqueue_cli("simulate", "--seed", 1, *arguments, code=2)
    assert result.stdout == ""
    assert said in " ".join(result.stderr.split())
    assert list(tmp_path.iterdir()) == []


# -- figures ------------------------------------------------------------------------------------------------

FEW = tuple(replace(case, lag=500) for case in simulation_figures.CASES if case.figure == 2 or case.x in (1, 20))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool | None], list[list[Figure]]]:
    """Have a few cases simulated only, and one claim made up."""
    reproduce = simulation_figures.reproduce

    def prepare(holds: bool | None) -> list[list[Figure]]:
        made: list[list[Figure]] = []

        def short(seed: int, runs: int, pops: int, tell: Any) -> list[Figure]:
            made.append(reproduce(seed, runs, pops, FEW, tell))
            return made[-1]

        monkeypatch.setattr(simulation_figures, "reproduce", short)
        monkeypatch.setattr(simulation_figures, "claims", lambda figures: [Claim(5, "it falls", "by half", holds)])
        return made

    return prepare


Few = Callable[[bool | None], list[list[Figure]]]


@pytest.mark.parametrize(
    ("holds", "code", "verdict"), [(True, 0, "holds"), (None, 0, "not as worded"), (False, 1, "DOES NOT HOLD")]
)
def test_the_exit_code_of_figures_says_whether_the_claims_hold(
    fsqueue_cli: Run, few: Few, holds: bool | None, code: int, verdict: str
) -> None:
    made = few(holds)
    shown = fsqueue_cli("simulate", "--figures", "--seed", 3, "--runs", 1, "--pops", 20, code=code).stdout
    assert f"\n  {verdict}: it falls (by half)\n" in shown
    numbers = [figure.number for figure in made[0]]
    assert numbers == [2, 4, 5, 6, 7]
    assert re.findall(r"^Figure (\d): ", shown, re.MULTILINE) == list(map(str, numbers))
    for point in made[0][2].points:
        assert re.search(rf"^peek before pop +{point.case.x} +{point.distribution.mean:,.2f} ", shown, re.MULTILINE)
    as_json = json.loads(
        fsqueue_cli("simulate", "--figures", "--json", "--seed", 3, "--runs", 1, "--pops", 20, code=code).stdout
    )
    assert as_json["claims"] == [{"figure": 5, "text": "it falls", "measured": "by half", "holds": holds}]
    assert (as_json["seed"], as_json["runs"], as_json["pops"]) == (3, 1, 20)
    assert [figure["figure"] for figure in as_json["figures"]] == numbers
    first = made[0][0].points[0].distribution.as_dict()
    assert {name: as_json["figures"][0]["points"][0][name] for name in first} == first


def test_figures_take_ten_runs_unless_told_otherwise(fsqueue_cli: Run, few: Few) -> None:
    made = few(True)
    fsqueue_cli("simulate", "--figures", "--seed", 3, "--pops", 1)
    assert {point.distribution.pops for figure in made[0] for point in figure.points} == {simulation_figures.RUNS}


def test_a_bar_is_drawn_on_a_terminal() -> None:
    terminal = Terminal("simulate", "--lag", 1000, "--pops", 20_000, "--seed", 1)
    try:
        code, screen = terminal.end()
    finally:
        terminal.close()
    assert code == 0
    assert b"simulate:" in terminal.raw
    assert "20,000 pops" in screen
    assert "simulate:" not in screen, "the bar goes when the work is done"
