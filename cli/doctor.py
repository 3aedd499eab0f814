"""doctor: examines a mount, from one host or from two."""

from __future__ import annotations

import signal

import click

from fsqueue import Group
from fsqueue.doctor import Report, examine, join
from fsqueue.errors import UnsafeFilesystem
from fsqueue.format.wording import duration

from .common import TIMEOUT_EXIT, example, json_option, moment
from .options import DURATION
from .printing import CAUTION, ERROR, GOOD, Coloured, hint, passing, print_json, quoted, say, say_in_colours

MARKS = {
    "ok": Coloured("ok", GOOD),
    "warning": Coloured("WARNING", CAUTION),
    "unfit": Coloured("UNFIT", ERROR),
    "untried": Coloured("not tried", CAUTION),
}
WIDTHS = (28, 9)

SENTENCES = {
    "ok": "Fit for a queue.",
    "warning": "Fit for a queue, with what is said above.",
    "unfit": "NOT fit for a queue: locks, names or writing do not work as they must.",
}
ONE_HOST = (
    "Between two hosts NOTHING was shown: {why}. Run the command with --join on two hosts. "
    "Whether locks exclude between them is not known."
)


@click.command(
    epilog=example(
        """fsqueue doctor /scratch/me
fsqueue doctor /scratch/me --join                      # on one host, and then on another
fsqueue doctor /scratch/me --json | jq -r .verdict"""
    )
)
@click.argument("path", metavar="PATH")
@click.option("--join", "with_another", is_flag=True, help="Also test between two hosts: run the command on both.")
@click.option("--timeout", "timeout_s", type=DURATION, default=300.0, help="How long to wait for the other host [5m].")
@json_option
def doctor(path: str, with_another: bool, timeout_s: float, as_json: bool) -> None:
    """Examine the mount that holds PATH, a queue or any directory.

    The command takes some seconds, and leaves nothing behind.

    To test whether a lock on one host keeps the other host out, run the command with --join on both. The first waits
    for the second; both print the verdict.

    \b
    Exit codes:
      0    fit (perhaps with warnings)
      8    unfit
      124  with --join: only this host joined within --timeout, or the other one stopped answering
    """

    def progress(step: str) -> None:
        passing(f"{step} ...")

    def waiting() -> None:
        passing("")
        hint("Now type on another host:", "", f"    fsqueue doctor {quoted(path)} --join", "")
        progress(f"waiting for it, up to {duration(timeout_s)}")

    if Group.holding(path) is not None:  # named by the queue's name, which is not that of its directory
        path = str(Group.queue_at(path).path)
    before = signal.signal(signal.SIGTERM, _end)
    try:
        if with_another:
            report = join(path, timeout_s=timeout_s, progress=progress, waiting=waiting)
        else:
            report = examine(path, progress=progress)
    finally:
        signal.signal(signal.SIGTERM, before)
        passing("")
    if as_json:
        print_json(report.as_dict())
    else:
        _print(report, with_another)
    if report.verdict == "unfit":
        raise click.exceptions.Exit(UnsafeFilesystem.exit_code)
    if with_another and _why_untold(report):
        raise click.exceptions.Exit(TIMEOUT_EXIT)


def _end(*_: object) -> None:
    """Exit at SIGTERM, as from a batch system, and clean up on the way out."""
    raise SystemExit(143)


def _why_untold(report: Report) -> str:
    """Return why --join has shown nothing about two hosts; an empty text if it has."""
    if report.partner is None:
        return "the tests between two were not made"
    return "both ends ran on this host" if report.same_host else ""


def _print(report: Report, with_another: bool) -> None:
    say(f"{report.path} on {report.host}" + (f" and {report.partner}" if report.partner else ""))
    for finding in report.findings:
        _print_finding(finding.probe, finding.verdict, finding.seen)
        if finding.advice:
            say(f"{'':<{sum(WIDTHS) + 4}}-> {finding.advice}")
    for lock in report.stuck:
        _print_finding("stuck lock", "warning", str(lock))
        say(f"{'':<{sum(WIDTHS) + 4}}   {lock.path}, last written to {moment(lock.written)}")
    why = _why_untold(report) if with_another and report.verdict != "unfit" else ""
    say(ONE_HOST.format(why=why) if why else SENTENCES[report.verdict])


def _print_finding(probe: str, verdict: str, seen: str) -> None:
    mark = MARKS[verdict]
    say_in_colours(f"{probe:<{WIDTHS[0]}}  ", mark, f"{'':<{WIDTHS[1] - len(mark.text)}}  {seen}")
