"""retry: completed tasks, inserted again from the payloads that the history keeps."""

from __future__ import annotations

import click

import fsqueue
from fsqueue import wording
from fsqueue.views import outcomes

from .common import example, ids_argument, json_option, queue_argument, queue_at, words
from .conditions import Condition, all_of, where_option
from .counts import UNKNOWN_EXIT, say_unknown
from .printing import Bar, complain, done, print_json, say

SHOW_EVERY = 256
"""How many tasks are looked at between two steps of the bar."""
UNKEPT_EXIT = 1
COMPLETED = "completed"
_INSTEAD = {
    "dead": "Of dead letters: 'fsqueue dead retry Q'.",
    "waiting": "They will be executed anyway.",
    "delayed": "They will be executed anyway.",
    "leased": "They are being executed.",
    "cancelled": "Insert them anew.",
}


@click.command(
    epilog=example(
        """fsqueue retry Q --state completed --where 'result.loss>0.5'
fsqueue retry Q --state completed --where host=node17 --json"""
    )
)
@queue_argument
@ids_argument
@click.option("--state", type=click.Choice([COMPLETED, *_INSTEAD]), required=True, metavar="completed",
              help="The state that they are in (for dead letters: 'fsqueue dead retry').")  # fmt: skip
@where_option(fsqueue.Result._fields, "'result.loss>0.5', payload.seed=7, host=node17, 'finished_at>1790000000'")
@click.option("--all", "each", is_flag=True, help="Every completed task.")
@json_option
def retry(
    queue: str, ids: tuple[str, ...], state: str, conditions: tuple[Condition, ...], each: bool, as_json: bool
) -> None:
    """Insert completed tasks of Q again, with new ids and all their attempts.

    Those that meet the conditions, or the TASKs that are named ('-': from standard input). With both, those of the
    TASKs that meet the conditions. 'fsqueue results Q --where ...' shows them first. Their payloads come from the
    history. Each is retried once: type an interrupted command again. 'fsqueue show' of an old one tells the new one.

    Exit code 1: the payloads of some are not kept. Exit code 3: there is no such task.
    """
    if state != COMPLETED:
        raise click.UsageError(f"Only completed tasks are retried here, not {state} ones. {_INSTEAD[state]}")
    if each == bool(ids or conditions):
        raise click.UsageError("Say which completed tasks: TASKs, --where, or else --all.")
    with queue_at(queue) as q, Bar("retry", "tasks") as progress:
        chosen, holds = list(dict.fromkeys(words(ids))), all_of(conditions)
        total, looked_at = q.status(exact=False).completed, 0

        def where(result: fsqueue.Result) -> bool:
            nonlocal looked_at
            looked_at += 1
            if looked_at % SHOW_EVERY == 0:
                progress.show(min(looked_at, total), total)
            return holds is None or holds(result)

        report = q.retry_completed(chosen, where) if ids else q.retry_completed(where=where)
        unknown = outcomes.unknown(q.store, chosen) if chosen else []
        keeps_history, longest = q.settings.keep_history, q.settings.keep_payloads
    with done():
        if as_json:
            print_json(report.as_dict() | ({"unknown": unknown} if unknown else {}))
        else:
            say(report.retried)
            _say_rest(report)
    if not keeps_history:
        complain("this queue keeps no history, so of completed tasks it knows only those of batches at work")
    if report.unkept:
        kept = "" if longest is None else f", and payloads of up to {wording.counted(longest, 'byte')}"
        complain(
            f"{wording.counted(report.unkept, 'task')} cannot be retried: the payload is not kept. Insert them anew "
            f"from where they came from. This queue keeps payloads until 'fsqueue gc' removes them{kept}. "
            "'fsqueue set Q keep_payloads=BYTES' keeps longer ones of tasks that finish from then on"
        )
    say_unknown(unknown)
    if unknown or report.unkept:
        raise click.exceptions.Exit(UNKNOWN_EXIT if unknown else UNKEPT_EXIT)


def _say_rest(report: fsqueue.RetryReport) -> None:
    """Tell which tasks were left out, as far as that needs no advice."""
    if report.repeated:
        complain(
            f"{wording.counted(report.repeated, 'task')} left out: retried before. 'fsqueue show' tells the new id"
        )
    for task_id in report.unkept_ids:
        complain(f"{task_id}: its payload is not kept")
    if report.unkept > len(report.unkept_ids):
        complain(f"ids not shown: {report.unkept - len(report.unkept_ids):,}")
