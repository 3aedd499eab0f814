"""simulate: how far from the first is what a relaxed priority queue gives, by the model of a paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, get_args

import click

from fsqueue import simulation
from fsqueue.simulation import Distribution
from fsqueue.simulation import figures as simulation_figures
from fsqueue.simulation.figures import Claim, Figure

from .common import example, json_option
from .printing import Bar, complain, print_json, print_table, say

SEED_MAX = 2**31 - 1
COLUMN = 10
VERDICTS = {True: "holds", False: "DOES NOT HOLD", None: "not as worded"}
MODEL = ("nodes", "peeks", "lag", "concurrent", "strategy", "policy")
"""Options that `--figures` takes from the paper."""


def _count(flag: str, most: int, default: int, text: str, least: int = 1) -> Callable[[Any], Any]:
    kind = click.IntRange(min=least, max=most)
    return click.option(flag, type=kind, default=default, metavar="N", help=f"{text} [{default}].")


@click.command(
    epilog=example(
        "fsqueue simulate --nodes 20 --peeks 2 --lag 10000 --seed 1\n"
        "fsqueue simulate --nodes 100 --peeks 10 --concurrent 50 --policy better\n"
        "fsqueue simulate --figures --seed 1"
    )
)
@_count("--nodes", simulation.NODES_MAX, 20, "Nodes that the queue is spread over")
@_count("--peeks", simulation.PEEKS_MAX, 2, "Nodes that a client peeks at, drawn with replacement")
@_count("--lag", simulation.ELEMENTS_MAX, 10_000, "Elements that stay in the queue", least=0)
@_count("--concurrent", simulation.CONCURRENT_MAX, 1, "Clients that peek at the same time, then pop in turn")
@click.option("--strategy", type=click.Choice(get_args(simulation.Strategy)), default="pop",
              help="Peek before a pop, before an add, or never [pop].")  # fmt: skip
@click.option("--policy", type=click.Choice(get_args(simulation.Policy)), default="basic",
              help="better: put an element back that is worse than the second best peeked one [basic].")  # fmt: skip
@_count("--pops", simulation.ELEMENTS_MAX, simulation_figures.POPS, "Pops in a run")
@_count("--runs", simulation.RUNS_MAX, 1, "Runs, each with a new queue")
@click.option("--seed", type=click.IntRange(min=0, max=SEED_MAX), metavar="N",
              help="The same seed gives the same result [random; it is printed].")  # fmt: skip
@click.option("--figures", is_flag=True,
              help="Repeat the paper's figures 2 to 7, and check its claims (minutes). --runs is 10 here.")  # fmt: skip
@json_option
@click.pass_context
def simulate(
    ctx: click.Context, /, pops: int, runs: int, seed: int | None, figures: bool, as_json: bool, **model: Any
) -> None:
    """Simulate a relaxed priority queue on many nodes. It needs no queue, and touches no file.

    It prints the popped element index (PEI): how many better elements were in the queue when one was popped, 0 at best.
    The model is that of "A Scalable Relaxed Distributed Priority Queue", sections 4.1 to 4.3; docs/pei.md explains it,
    and shows the paper's figures.

    With --figures, the exit code is 1 if a claim of the paper does not hold.
    """
    typed = [name for name in MODEL if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    if figures and typed:
        raise click.UsageError(f"--figures has its own parameters, from the paper: leave out --{', --'.join(typed)}.")
    if seed is None:
        seed = Random().randint(0, SEED_MAX)
        complain(f"seed {seed}")
    if figures:
        if ctx.get_parameter_source("runs") is not click.core.ParameterSource.COMMANDLINE:
            runs = simulation_figures.RUNS
        _figures(seed, runs, pops, as_json)
        return
    with _progress(runs * pops) as tell:
        made = simulation.simulate(**model, pops=pops, runs=runs, seed=seed, tell=tell)
    if as_json:
        print_json({**model, "runs": runs, "seed": seed, **_as_json(made)})
        return
    first = f"{100 * made.share(0):.2f} % of the pops gave the first element"
    say(f"{made.pops:,} pops; the index of the popped element (PEI), 0 at best; {first}")
    print_table([_heading(()), _row((), made)], (COLUMN,) * 5)


def _figures(seed: int, runs: int, pops: int, as_json: bool) -> None:
    """Print all figures and claims; exit with 1 if a claim does not hold."""
    with _progress(len(simulation_figures.CASES) * runs * pops) as tell:
        made = simulation_figures.reproduce(seed, runs, pops, tell=tell)
    found = simulation_figures.claims(made)
    if as_json:
        shown = [_figure_as_json(figure) for figure in made]
        print_json({"seed": seed, "runs": runs, "pops": pops, "figures": shown, "claims": list(map(vars, found))})
    else:
        _say_figures(made, found)
    if any(claim.holds is False for claim in found):
        raise click.exceptions.Exit(1)


def _say_figures(made: list[Figure], found: list[Claim]) -> None:
    for figure in made:
        say(f"Figure {figure.number}: {figure.title}")
        rows = [_row((point.case.series, f"{point.case.x:,}"), point.distribution) for point in figure.points]
        print_table([_heading(("", figure.x_name)), *rows], (16, *(COLUMN,) * 6))
        for claim in found:
            if claim.figure == figure.number:
                say(f"  {VERDICTS[claim.holds]}: {claim.text} ({claim.measured})")
        say()


def _heading(labels: tuple[str, ...]) -> tuple[str, ...]:
    named = ("mean", "median", "p90", "p99", "greatest")
    return (*labels[:1], *(name.upper().rjust(COLUMN) for name in (*labels[1:], *named)))


def _row(labels: tuple[str, ...], made: Distribution) -> tuple[str, ...]:
    numbers = (f"{made.mean:,.2f}", *(f"{value:,}" for value in (made.median, made.p90, made.p99, made.greatest)))
    return (*labels[:1], *(text.rjust(COLUMN) for text in (*labels[1:], *numbers)))


def _as_json(made: Distribution) -> dict[str, Any]:
    return {**made.as_dict(), "counts": {str(index): count for index, count in made.counts.items()}}


def _figure_as_json(figure: Figure) -> dict[str, Any]:
    points = [{**vars(point.case), **point.distribution.as_dict()} for point in figure.points]
    return {"figure": figure.number, "title": figure.title, "x": figure.x_name, "points": points}


@contextmanager
def _progress(pops: int) -> Iterator[Callable[[int], object]]:
    """Draw a bar for a number of pops. Give a function that takes how many more were done."""
    done = 0

    def tell(more: int) -> None:
        nonlocal done
        done += more
        drawn.show(done, pops)

    with Bar("simulate", " pops", 0.0, is_scaled=True) as drawn:
        yield tell
