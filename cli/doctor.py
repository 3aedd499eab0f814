"""doctor: examines a mount, from one host or from two."""

from __future__ import annotations

import sys

import click

from fsqueue.doctor import Report, examine
from fsqueue.errors import UnsafeFilesystem

from .common import example, json_option, moment, plain, print_json

MARKS = {"ok": "ok", "warning": "WARNING", "unfit": "UNFIT", "untried": "not tried"}
WIDTHS = (28, 9)

SENTENCES = {
    "ok": "Fit for a queue.",
    "warning": "Fit for a queue, with what is said above.",
    "unfit": "NOT fit for a queue: locks, names or writing do not work as they must.",
}


@click.command(
    epilog=example(
        """fsqueue doctor /scratch/me
fsqueue doctor /scratch/me --json | jq -r .verdict"""
    )
)
@click.argument("path", metavar="PATH")
@json_option
def doctor(path: str, as_json: bool) -> None:
    """Examine the mount that holds PATH: a queue, a directory, or a place where a queue could be.

    Takes some seconds, and leaves nothing behind.

    Exit codes: 0 fit (perhaps with warnings); 8 unfit.
    """

    def progress(step: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[K{step} ...", nl=False, err=True)

    try:
        report = examine(path, progress=progress)
    finally:
        if sys.stderr.isatty():
            click.echo("\r\x1b[K", nl=False, err=True)
    if as_json:
        print_json(report.as_dict())
    else:
        _print(report)
    if report.verdict == "unfit":
        raise click.exceptions.Exit(UnsafeFilesystem.exit_code)


def _print(report: Report) -> None:
    click.echo(f"{report.path} on {report.host}")
    if report.directory != report.path:
        click.echo(f"(it is not there; {report.directory} was examined)")
    for finding in report.findings:
        click.echo(f"{finding.probe:<{WIDTHS[0]}}  {MARKS[finding.verdict]:<{WIDTHS[1]}}  {plain(finding.seen)}")
        if finding.advice:
            click.echo(f"{'':<{sum(WIDTHS) + 4}}-> {plain(finding.advice)}")
    for lock in report.stuck:
        click.echo(f"{'stuck lock':<{WIDTHS[0]}}  {MARKS['warning']:<{WIDTHS[1]}}  {plain(str(lock))}")
        click.echo(f"{'':<{sum(WIDTHS) + 4}}   {lock.path}, last written {moment(lock.written)}")
    click.echo(SENTENCES[report.verdict])
