"""scripts/pei: repeat the figures of the paper on a relaxed priority queue, check its claims, write docs/pei.md.

The simulation is `fsqueue.simulation.figures`: `fsqueue simulate --figures --seed N` prints the same numbers. This adds
the plots and the page. Nothing depends on the machine or the time, so the same seed writes the same files.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from tqdm import tqdm

from benchmarks import plot, report
from fsqueue.simulation import figures as simulation_figures
from fsqueue.simulation.figures import Claim, Figure

DOC = "pei.md"
BEGIN, END = "<!-- figures: scripts/pei writes what follows -->", "<!-- end of the figures -->"
SEED = 1
VERDICTS = {True: "holds", False: "**does not hold**", None: "not as worded"}


def drawing(number: int) -> str:
    """Return the file name of a figure's plot."""
    return f"pei-figure-{number}.svg"


def markdown(figures: list[Figure], claims: list[Claim], seed: int, runs: int, pops: int) -> str:
    """Return the claims, and each figure as a plot and a table."""
    command = f"fsqueue simulate --figures --seed {seed} --runs {runs} --pops {pops}"
    parts = [
        f"Made with seed {seed}, {runs} runs of {pops:,} pops for each point.\n"
        f"`{command}` prints the same numbers.\n"
        f"`scripts/pei --seed {seed} --runs {runs} --pops {pops} --docs docs`\n"
        "makes tables and plots again.",
        "## The paper's claims",
        _claims(claims),
        *(part for figure in figures for part in _figure(figure)),
    ]
    return "\n\n".join(parts)


def _claims(claims: list[Claim]) -> str:
    rows = [[str(claim.figure), claim.text, claim.measured, VERDICTS[claim.holds]] for claim in claims]
    lines = ["| figure | claim | measured | |", "|---:|---|---|---|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _figure(figure: Figure) -> list[str]:
    several = len(figure.series()) > 1
    rows = [
        [
            *([point.case.series] if several else []),
            f"{point.case.x:,}",
            f"{point.distribution.mean:,.2f}",
            *(f"{value:,}" for value in (made.median, made.p90, made.p99)),
        ]
        for point in figure.points
        for made in [point.distribution]
    ]
    header = [*(["client"] if several else []), figure.x_name, *simulation_figures.MEASURES]
    return [
        f"## Figure {figure.number}",
        f"![Figure {figure.number}]({drawing(figure.number)})",
        f"{figure.title}.",
        report.table(header, rows),
    ]


def write(docs: Path, figures: list[Figure], body: str) -> list[Path]:
    """Put the results into the page, between its marks, and the plots beside it. Return what was written."""
    page = docs / DOC
    text = page.read_text(encoding="utf-8") if page.exists() else f"{BEGIN}\n{END}\n"
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise RuntimeError(f"{page} has no place for the results: it must have {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{after}", encoding="utf-8")
    written = [page]
    worst = max(point.distribution.p99 for figure in figures if figure.number in (6, 7) for point in figure.points)
    for figure in figures:
        path = docs / drawing(figure.number)
        path.write_text(plot.pei(figure, worst * 1.3 if figure.number in (6, 7) else None), encoding="utf-8")
        written.append(path)
    return written


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    made = argparse.ArgumentParser(
        prog="scripts/pei",
        description="Repeat the figures 2 to 7 of the paper on a relaxed priority queue, with its claims as checks.",
    )
    made.add_argument("--seed", type=int, default=SEED, metavar="N", help=f"of all that is random ({SEED})")
    made.add_argument(
        "--runs", type=int, default=simulation_figures.RUNS, metavar="N", help="runs for each point (%(default)s)"
    )
    made.add_argument(
        "--pops", type=int, default=simulation_figures.POPS, metavar="N", help="pops in a run (%(default)s)"
    )
    made.add_argument("--docs", metavar="DIR", help=f"write the tables into DIR/{DOC}, and the plots beside it")
    return made


def main(arguments: Iterable[str] | None = None) -> int:
    """Run; return the exit code: 1 if a claim does not hold."""
    options = parser().parse_args(None if arguments is None else list(arguments))
    pops = len(simulation_figures.CASES) * max(0, options.runs * options.pops)
    with tqdm(total=pops, unit=" pops", unit_scale=True, desc="pei", leave=False, disable=None) as bar:
        figures = simulation_figures.reproduce(options.seed, options.runs, options.pops, tell=bar.update)
    claims = simulation_figures.claims(figures)
    body = markdown(figures, claims, options.seed, options.runs, options.pops)
    if options.docs:
        for path in write(Path(options.docs), figures, body):
            print(f"pei: wrote {path}", file=sys.stderr)
    else:
        print(body)
    wrong = [claim for claim in claims if claim.holds is False]
    for claim in wrong:
        print(f"pei: figure {claim.figure}: this does not hold: {claim.text} ({claim.measured})", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
