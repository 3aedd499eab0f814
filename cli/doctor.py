"""doctor: examines a mount, from one host or from two."""

from __future__ import annotations

import signal

import click

from fsqueue.doctor import Report, examine, join
from fsqueue.errors import UnsafeFilesystem

from .common import duration, example, json_option, moment, seconds
from .printing import hint, passing, print_json, quoted, say

MARKS = {"ok": "ok", "warning": "WARNING", "unfit": "UNFIT", "untried": "not tried"}
WIDTHS = (28, 9)
TIMEOUT_EXIT = 124

SENTENCES = {
    "ok": "Fit for a queue.",
    "warning": "Fit for a queue, with what is said above.",
    "unfit": "NOT fit for a queue: locks, names or writing do not work as they must.",
}


@click.command(
    epilog=example(
        """fsqueue doctor /scratch/me
fsqueue doctor /scratch/me --join                      # on one host, and then on another
fsqueue doctor /scratch/me --json | jq -r .verdict"""
    )
)
@click.argument("path", metavar="PATH")
@click.option("--join", "with_another", is_flag=True, help="Then make the tests between two hosts: type it on both.")
@click.option("--timeout", "timeout_s", type=seconds, default=300.0, help="Seconds to wait for the other host [300].")
@json_option
def doctor(path: str, with_another: bool, timeout_s: float, as_json: bool) -> None:
    """Examine the mount that holds PATH: a queue, a directory, or a place where a queue could be.

    Takes some seconds, and leaves nothing behind.

    Whether locks exclude between hosts takes two of them: type the command with --join on both. The
    first waits for the second; both print the verdict.

    Exit codes: 0 fit (perhaps with warnings); 8 unfit; 124 --join, and no other host came or it fell silent.
    """

    def progress(step: str) -> None:
        passing(f"{step} ...")

    def waiting() -> None:
        passing("")
        hint("Now type on another host:", "", f"    fsqueue doctor {quoted(path)} --join", "")
        progress(f"waiting for it, up to {duration(timeout_s)}")

    signal.signal(signal.SIGTERM, _end)
    try:
        if with_another:
            report = join(path, timeout_s=timeout_s, progress=progress, waiting=waiting)
        else:
            report = examine(path, progress=progress)
    finally:
        passing("")
    if as_json:
        print_json(report.as_dict())
    else:
        _print(report)
    if report.verdict == "unfit":
        raise click.exceptions.Exit(UnsafeFilesystem.exit_code)
    if with_another and report.partner is None:
        raise click.exceptions.Exit(TIMEOUT_EXIT)


def _end(*_: object) -> None:
    """SIGTERM, as by a batch system: clean up on the way out."""
    raise SystemExit(143)


def _print(report: Report) -> None:
    say(f"{report.path} on {report.host}" + (f" and {report.partner}" if report.partner else ""))
    if report.directory != report.path:
        say(f"(it is not there; {report.directory} was examined)")
    for finding in report.findings:
        say(f"{finding.probe:<{WIDTHS[0]}}  {MARKS[finding.verdict]:<{WIDTHS[1]}}  {finding.seen}")
        if finding.advice:
            say(f"{'':<{sum(WIDTHS) + 4}}-> {finding.advice}")
    for lock in report.stuck:
        say(f"{'stuck lock':<{WIDTHS[0]}}  {MARKS['warning']:<{WIDTHS[1]}}  {lock}")
        say(f"{'':<{sum(WIDTHS) + 4}}   {lock.path}, last written to {moment(lock.written)}")
    say(SENTENCES[report.verdict])
