"""results, retry: completed tasks and dead letters, their inputs beside their outputs; or inserted again."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

import click

import fsqueue
from fsqueue.format import wording
from fsqueue.views import outcomes

from .common import (
    UNKNOWN_EXIT,
    brief,
    confirm_at_terminal,
    example,
    ids_argument,
    json_option,
    moment,
    queue_argument,
    queue_at,
    say_unknown,
    words,
    yes_option,
)
from .conditions import Condition, all_of, in_words, where_option
from .dead import retry_letters
from .printing import Bar, complain, hint, is_screen, print_done, print_json, print_table, say

Columns = list[Sequence[Any]]
"""Results as `Queue.result_columns` yields them."""

ROWS_AT_ONCE = 1_000
"""Number of chosen results that are turned into columns together."""
HEADING = ("TASK", "STATE", "ATTEMPTS", "FINISHED", "TOOK", "HOST", "PAYLOAD -> RESULT")
SHOW_EVERY = 256
"""Number of tasks that are looked at between two steps of the bar."""
UNKEPT_EXIT = 1


@click.command(
    epilog=example(
        """fsqueue results Q results.csv
fsqueue results Q --where 'result.loss<0.1' --where payload.seed=7
fsqueue results Q best.parquet --where 'result.loss<0.1'
fsqueue results Q --dead"""
    )
)
@queue_argument
@click.argument("file", metavar="[FILE]", required=False, type=click.Path())
@where_option
@click.option("--dead", is_flag=True, help="Only dead letters.")
@json_option
def results(queue: str, file: str | None, conditions: tuple[Condition, ...], dead: bool, as_json: bool) -> None:
    """Print the results of Q: what was put into each finished task beside what came out of it.

    FILE ends in .csv, .jsonl or .parquet. There each field of a payload and of a result is a column. A name that is
    taken gets the prefix "payload." or "result.". FILE is written under another name, and renamed when it is whole;
    until then an older one stays. It must not lie in the directory of a queue. Standard error says what is missing.

    Without FILE: a table on a terminal, elsewhere (and with --json) a JSON object for each task, with its payload and
    result as they are. Finished tasks are known while the history keeps them. Their payloads are known if they are
    not larger than the queue keeps ('fsqueue create --keep-payloads').
    """
    with queue_at(queue) as q:
        condition = all_of(conditions)
        found = CountedResults(q, dead)
        if file is not None:
            _write(found, file, condition, as_json)
        else:
            found_now = found.results(condition)
            first = [*islice(found_now, 1)]
            if not first and not (as_json or dead or found.missing):
                more = " that meets the conditions" if condition is not None else ""
                hint(f"{q.path} has no finished task on record{more}")
            rows = chain(first, found_now)
            if as_json or not is_screen(sys.stdout):
                for result in rows:
                    print_json(result.as_dict())
            else:
                print_table(map(_row, rows), (36, 9, 8, 19, 9, 12), HEADING)
        if found.missing:
            are = "has no row: it is" if found.missing == 1 else "have no row: they are"
            complain(
                f"{wording.counted(found.missing, 'completed task')} of {q.path} {are} not in the history, which was "
                "not kept (create --no-history), was removed (gc --history-age), or is damaged ('fsqueue fsck' tells)."
            )


class CountedResults:
    """The results of a queue, counted as they are read."""

    def __init__(self, q: fsqueue.Queue, dead: bool) -> None:
        self._q, self._dead = q, dead
        self.total = 0
        """Number of finished tasks that the queue has counted, once they are asked for."""
        self.missing = 0
        """Number of completed tasks of those that were not among the results, once all are read."""

    def columns(self) -> Iterator[Columns]:
        """Yield what `Queue.result_columns` yields."""
        known = self._q.status(exact=False)
        self.total = known.completed + known.dead
        completed = 0
        for columns in self._q.result_columns(self._dead):
            completed += columns[_STATE].count("completed")
            yield columns
        if not self._dead:  # what ends meanwhile is counted by neither, or by the second alone
            self.missing = max(0, known.completed - completed)

    def results(self, condition: Condition | None) -> Iterator[fsqueue.Result]:
        """Yield those that meet a condition."""
        for columns in self.columns():
            yield from filter(condition, map(fsqueue.Result._make, zip(*columns, strict=True)))  # None: all are true


_STATE = fsqueue.Result._fields.index("state")


def _write(found: CountedResults, file: str, condition: Condition | None, as_json: bool) -> None:
    from .result_files import write

    try:
        with Bar("reading results", " tasks") as progress, Bar("writing", " tasks") as bar:
            rows, columns = write(
                file,
                found.columns() if condition is None else _in_columns(found.results(condition)),
                lambda done: progress.show(min(done, found.total), found.total),
                lambda done: bar.show(done, found.total),
            )
    except fsqueue.QueuePurged as error:
        raise fsqueue.QueuePurged(f"{error} Nothing was written: {file} is as it was.") from None
    if as_json:
        print_json({"file": file, "rows": rows, "columns": columns})
    else:
        say(f"{file}: {wording.counted(rows, 'row')}, {wording.counted(columns, 'column')}")


def _in_columns(found: Iterator[fsqueue.Result]) -> Iterator[Columns]:
    while some := [*islice(found, ROWS_AT_ONCE)]:
        yield [*map(list, zip(*some, strict=True))]


def _row(result: fsqueue.Result) -> tuple[str, ...]:
    came = f"given up: {brief(result.error, 60)}" if result.state == "dead" else brief(result.result, 60)
    return (
        result.id,
        result.state,
        str(result.attempts),
        moment(result.finished_at),
        "-" if result.took_s is None else wording.duration(result.took_s),
        result.host or "-",
        f"{brief(result.payload, 60)} -> {came}",
    )


@click.command(
    epilog=example(
        """fsqueue retry Q
fsqueue retry Q --where error~timeout
fsqueue retry Q --completed --where 'result.loss>0.5'"""
    )
)
@queue_argument
@ids_argument
@where_option
@click.option("--completed", is_flag=True, help="Completed tasks in place of dead letters; which ones must be said.")
@click.option("--all", "every", is_flag=True, help="With --completed: every completed task.")
@yes_option
@json_option
def retry(
    queue: str, ids: tuple[str, ...], conditions: tuple[Condition, ...], completed: bool, every: bool, yes: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Insert dead letters of Q again, the tasks that were given up, with new ids and all their attempts.

    Without TASKs and conditions, the command retries all dead letters. With TASKs ('-': from standard input) or
    conditions, it retries only these; with both, those of the TASKs that meet the conditions. On a terminal, it asks
    first.

    With --completed it inserts completed tasks again: those of the TASKs, those that meet the conditions, or with --all
    every one. 'fsqueue results Q --where ...' shows them first. Their payloads come from the history. Each is retried
    once: type an interrupted command again.

    'fsqueue show' of an old task tells the new one, and of a new one the old.

    Exit code 1: the payloads of some completed tasks are not kept. Exit code 13: there is no such task.
    """
    if not completed:
        if every:
            raise click.UsageError(
                "--all is for --completed. 'fsqueue retry Q' retries all dead letters, 'fsqueue retry Q --completed "
                "--all' every completed task."
            )
        retry_letters(queue, ids, conditions, yes, as_json)
        return
    if every == bool(ids or conditions):
        raise click.UsageError("Say which completed tasks: TASKs, --where, or else --all.")
    _retry_completed(queue, ids, conditions, yes, as_json)


def _retry_completed(
    queue: str, ids: tuple[str, ...], conditions: tuple[Condition, ...], yes: bool, as_json: bool
) -> None:
    chosen, holds = list(dict.fromkeys(words(ids))), all_of(conditions)
    with queue_at(queue) as q, Bar("retry", " tasks") as progress:
        which = in_words("completed task", chosen if ids else None, q.path, conditions)
        confirm_at_terminal(f"Execute {which} once more?", yes)
        total, looked_at = q.status(exact=False).completed, 0

        def where(result: fsqueue.Result) -> bool:
            nonlocal looked_at
            looked_at += 1
            if looked_at % SHOW_EVERY == 0:
                progress.show(min(looked_at, total), total)
            return holds is None or holds(result)

        found = q.retry_completed(chosen, where) if ids else q.retry_completed(where=where)
        unknown = outcomes.unknown(q.store, chosen)
        keeps_history, longest = q.settings.keep_history, q.settings.keep_payloads
    print_done(as_json, found.as_dict() | ({"unknown": unknown} if unknown else {}), found.retried)
    if not as_json:
        _say_left_out(found)
    if not keeps_history:
        complain("this queue forgets completed tasks at once (create --no-history): none can be retried")
    if found.unkept:
        kept = "" if longest is None else f", and payloads of up to {wording.counted(longest, 'byte')}"
        complain(
            f"{wording.counted(found.unkept, 'task')} cannot be retried: the payload is not kept. Insert them anew "
            f"from where they came from. This queue keeps payloads until 'fsqueue gc' removes them{kept}. "
            "'fsqueue set Q keep_payloads=BYTES' keeps longer ones of tasks that finish from then on"
        )
    say_unknown(unknown)
    if unknown or found.unkept:
        raise click.exceptions.Exit(UNKNOWN_EXIT if unknown else UNKEPT_EXIT)


def _say_left_out(found: fsqueue.RetryReport) -> None:
    """Tell which tasks were left out, as far as that needs no advice."""
    if found.repeated:
        complain(f"{wording.counted(found.repeated, 'task')} left out: retried before. 'fsqueue show' tells the new id")
    for task_id in found.unkept_ids:
        complain(f"{task_id}: its payload is not kept")
    if found.unkept > len(found.unkept_ids):
        complain(f"ids not shown: {found.unkept - len(found.unkept_ids):,}")
