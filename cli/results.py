"""results, retry: completed tasks and dead letters, their inputs beside their outputs; or inserted again."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click

import fsqueue
from fsqueue.format import wording

from .common import (
    brief,
    example,
    json_option,
    match_option,
    moment,
    queues_and_tasks_argument,
    yes_option,
)
from .conditions import Condition, Item, all_of, in_words, where_option
from .dead import retry_letters
from .options import OneScreen
from .printing import Bar, complain, hint, is_screen, print_json, print_table, say
from .targets import Target, Targets, is_address, unknown_in, with_tasks

if TYPE_CHECKING:
    from .targets import AnyQueue

Columns = list[Sequence[Any]]
"""Results as `Queue.result_columns` yields them."""

ROWS_AT_ONCE = 1_000
"""Number of chosen results that are turned into columns together."""
WIDTHS = (36, 9, 8, 19, 9, 12)
HEADING = ("TASK", "STATE", "ATTEMPTS", "FINISHED", "TOOK", "HOST", "PAYLOAD -> RESULT")
SHOW_EVERY = 256
"""Number of tasks that are looked at between two steps of the bar."""
UNKEPT_EXIT = 1
NEWEST_MAX = 1_000
"""Maximum number of newest results, as `Queue.results` has it."""


@click.command(
    cls=OneScreen,
    epilog=example(
        """fsqueue results Q results.csv
fsqueue results Q --where 'result.loss<0.1' --where payload.seed=7
fsqueue results Q best.parquet --where 'result.loss<0.1'
fsqueue results Q --dead
fsqueue results Q --newest 20                 # what ended last: it costs the same after millions of tasks
fsqueue results Q sweep.csv --latest-by run   # of each value of run only the newest version (insert --new-by run)
fsqueue results /scratch/me/crawl --match '.*#fetch' all.csv     # of queues of a group; a column has the queue"""
    ),
)
@click.argument("arguments", metavar="Q... [FILE]", nargs=-1, required=True)
@match_option
@where_option
@click.option("--dead", is_flag=True, help="Only dead letters.")
@click.option(
    "--latest-by",
    metavar="FIELD",
    help="Of the tasks with one value in this field of their payloads only the newest, if it has ended.",
)
@click.option(
    "--newest",
    type=click.IntRange(1, NEWEST_MAX),
    metavar="N",
    help="Only the N that ended last, the newest first. --where looks at these alone.",
)
@click.option("--inputs-of", metavar="TASK", help="Only what the join of TASK, a task of Q, waited for.")
@json_option
def results(
    arguments: tuple[str, ...], match: str | None, conditions: tuple[Condition, ...], dead: bool,
    latest_by: str | None, newest: int | None, inputs_of: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Print the results of Q: what was put into each finished task beside what came out of it.

    FILE ends in .csv, .jsonl or .parquet. There each field of a payload and of a result is a column. A name that is
    taken gets the prefix "payload." or "result.". FILE is written under another name, and renamed when it is whole;
    until then an older one stays. It must not lie in the directory of a queue. Standard error says what is missing.

    Without FILE: a table on a terminal, elsewhere (and with --json) a JSON object for each task, with its payload and
    result as they are. Finished tasks are known while the history keeps them. Their payloads are known if they are
    not larger than the queue keeps ('fsqueue create --keep-payloads').

    With --latest-by, tasks with the same value in FIELD are versions of each other ('fsqueue insert --new-by'). The
    newest is the one inserted last. If it waits or is leased, its value has no row: the result of an older version is
    not the present one. Tasks without a value in FIELD, and with a payload that is not kept, have no row either.

    With --newest, the command reads the ends of the files alone. Of a group, or of several queues, it prints the N
    newest of all.

    Q may be a group, or several queues: then the column "queue" of FILE has the path of each task's queue. A second
    Q needs a slash (./Q2), which tells it from FILE.
    """
    *queues, last = arguments
    file = last if queues and not _is_queue(last) else None
    if inputs_of is not None and (dead or latest_by is not None):
        raise click.UsageError("--inputs-of stands neither with --dead nor with --latest-by.")
    if newest is not None and (latest_by is not None or inputs_of is not None):
        raise click.UsageError("--newest stands neither with --latest-by nor with --inputs-of.")
    found = AllResults(
        Targets(arguments if file is None else queues, match, as_json),
        dead,
        all_of(conditions),
        latest_by,
        inputs_of,
        newest,
    )
    targets = found.targets
    if inputs_of is not None and targets.is_several:
        raise click.UsageError("--inputs-of is for one queue: that of TASK.")
    if file is not None:
        _write(found, file, as_json)
    else:
        rows = found.rows()
        first = [*islice(rows, 1)]
        if not first and targets.named and not (as_json or dead or found.missing):
            more = " that meets the conditions" if conditions else ""
            have = "has" if len(targets.named) == 1 else "have"
            hint(f"{targets.described} {have} no finished task on record{more}")
        rows = chain(first, rows)
        if as_json or not is_screen(sys.stdout):
            for target, result in rows:
                print_json(result.as_dict() if inputs_of is not None else target.as_dict(result.as_dict()))
        elif targets.is_several:
            print_table(((target.name, *_row(one)) for target, one in rows), (20, *WIDTHS), ("QUEUE", *HEADING))
        else:
            print_table((_row(one) for _, one in rows), WIDTHS, HEADING)
    for path, missing in found.missing.items():
        are = "has no row: it is" if missing == 1 else "have no row: they are"
        complain(
            f"{wording.counted(missing, 'completed task')} of {path} {are} not in the history, which was not kept "
            "(create --no-history), was removed (gc --history-days), or is damaged ('fsqueue fsck' tells)."
        )
    targets.end()


def _is_queue(argument: str) -> bool:
    """Return whether the last of several arguments is a queue, and no file for a table."""
    from .result_files import FORMATS

    ending = os.path.splitext(argument)[1].lower()
    return "/" in argument and ending not in FORMATS and (not ending or is_address(argument) or os.path.isdir(argument))


class AllResults:
    """The results of the queues that are meant, counted as they are read."""

    def __init__(
        self,
        targets: Targets,
        dead: bool,
        condition: Callable[[Item], bool] | None,
        latest_by: str | None,
        inputs_of: str | None = None,
        newest: int | None = None,
    ) -> None:
        self._inputs_of, self._newest = inputs_of, newest
        self.targets, self._dead, self._condition, self._latest_by = targets, dead, condition, latest_by
        self.total = 0
        """Number of finished tasks that the queues read so far have counted."""
        self.missing: dict[str, int] = {}
        """Number of completed tasks of a queue that were not among its results, by its path, once all are read."""

    def rows(self) -> Iterator[tuple[Target, fsqueue.Result]]:
        """Yield the results that meet the condition, each with its queue."""
        if self._newest is not None:
            yield from self._newest_rows(self._newest)
            return
        for target in self.targets:
            with target as q:
                for columns in self._columns_of(target, q):
                    each = map(fsqueue.Result._make, zip(*columns, strict=True))
                    yield from ((target, result) for result in filter(self._condition, each))  # None: all are true

    def columns(self) -> Iterator[Columns]:
        """Yield what `Queue.result_columns` yields; of several queues with one column more, the path of the queue."""
        if self._newest is not None:
            rows = [*self._newest_rows(self._newest)]
            self.total += len(rows)
            if rows:
                paths = [[target.path for target, _ in rows]] if self.targets.is_several else []
                yield [*map(list, zip(*(result for _, result in rows), strict=True)), *paths]
            return
        for target in self.targets:
            with target as q:
                found = self._columns_of(target, q)
                if self._condition is not None:
                    each = (fsqueue.Result._make(row) for columns in found for row in zip(*columns, strict=True))
                    found = _in_columns(filter(self._condition, each))
                for columns in found:
                    yield [*columns, [target.path] * len(columns[0])] if self.targets.is_several else columns

    def _newest_rows(self, count: int) -> Iterator[tuple[Target, fsqueue.Result]]:
        """Yield the newest results of all queues, newest first, as far as they meet the condition."""
        found: list[tuple[Target, fsqueue.Result]] = []
        for target in self.targets:
            with target as q:
                found += ((target, result) for result in q.results(dead=self._dead, newest=count))
            found.sort(key=lambda one: -(one[1].finished_at or 0))
            del found[count:]
        yield from ((target, result) for target, result in found if self._condition is None or self._condition(result))

    def _columns_of(self, target: Target, q: AnyQueue) -> Iterator[Columns]:
        if self._inputs_of is not None:
            yield from _in_columns(_inputs(target, q, self._inputs_of))
            return
        known = q.status(exact=False)
        self.total += known.completed + known.dead
        completed = 0
        is_local = isinstance(q, fsqueue.Queue)
        latest_by = self._latest_by
        for columns in (
            q.result_columns(self._dead, latest_by=latest_by)  # type: ignore[union-attr]
            if is_local
            else _in_columns(q.results(dead=self._dead, latest_by=latest_by))
        ):
            completed += columns[_STATE].count("completed")
            yield columns
        if (
            not self._dead and latest_by is None and known.completed > completed
        ):  # what ends meanwhile is counted by neither, or by one
            self.missing[target.path] = known.completed - completed


def _inputs(target: Target, q: AnyQueue, task: str) -> Iterator[fsqueue.Result]:
    """Yield what came of the tasks that the join of a task has waited for."""
    if isinstance(q, fsqueue.Queue) and not isinstance(q, fsqueue.GroupQueue):
        raise click.UsageError(f"{target.name} is no queue of a group: only tasks of such queues have inputs.")
    return q.inputs(task)


_STATE = fsqueue.Result._fields.index("state")


def _write(found: AllResults, file: str, as_json: bool) -> None:
    from .result_files import write

    try:
        with Bar("reading results", " tasks") as progress, Bar("writing", " tasks") as bar:
            rows, columns = write(
                file,
                found.columns(),
                lambda done: progress.show(min(done, found.total), found.total),
                lambda done: bar.show(done, found.total),
                with_queue=found.targets.is_several,
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
fsqueue retry /scratch/me/crawl --match '.*#fetch'          # of queues of a group
fsqueue retry Q --completed --where 'result.loss>0.5'"""
    )
)
@queues_and_tasks_argument
@match_option
@where_option
@click.option("--completed", is_flag=True, help="Completed tasks in place of dead letters; which ones must be said.")
@click.option("--all", "every", is_flag=True, help="With --completed: every completed task.")
@yes_option
@json_option
def retry(
    arguments: tuple[str, ...], match: str | None, conditions: tuple[Condition, ...], completed: bool, every: bool,
    yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Insert dead letters of Q again, the tasks that were given up, with new ids and all their attempts.

    Without TASKs and conditions, the command retries all dead letters. With TASKs ('-': from standard input) or
    conditions, it retries only these; with both, those of the TASKs that meet the conditions. On a terminal, it asks
    first.

    With --completed it inserts completed tasks again: those of the TASKs, those that meet the conditions, or with --all
    every one. 'fsqueue results Q --where ...' shows them first. Their payloads come from the history. Each is retried
    once: type an interrupted command again.

    'fsqueue show' of an old task tells the new one, and of a new one the old.

    Q may be a group: then of all its queues. A second Q needs a slash (./Q2), which tells it from a TASK.

    Exit code 1: the payloads of some completed tasks are not kept. Exit code 13: there is no such task.
    """
    if not completed:
        if every:
            raise click.UsageError(
                "--all is for --completed. 'fsqueue retry Q' retries all dead letters, 'fsqueue retry Q --completed "
                "--all' every completed task."
            )
        retry_letters(arguments, match, conditions, yes, as_json)
        return
    targets, chosen = with_tasks(arguments, match, as_json)
    if every == bool(chosen is not None or conditions):
        raise click.UsageError("Say which completed tasks: TASKs, --where, or else --all.")
    which = in_words("completed task", chosen, targets.described, conditions)
    targets.confirm_at_terminal(f"Execute {which} once more?", yes)
    _retry_completed(targets, chosen, conditions, as_json)


def _retry_completed(
    targets: Targets, chosen: list[str] | None, conditions: tuple[Condition, ...], as_json: bool
) -> None:
    for target in targets:
        with target as q:
            found = _retried(q, chosen, conditions)
            target.print_count("retried", found.retried, unknown_in(q, chosen or ()), found.as_dict())
            if not as_json:
                _say_left_out(found)
            if not q.settings.keep_history:
                complain(f"{target.path} forgets completed tasks at once (create --no-history): none can be retried")
            if found.unkept:
                _say_unkept(found, target, q.settings.keep_payloads)
                targets.leave_with(UNKEPT_EXIT)
    targets.end()


def _retried(q: AnyQueue, chosen: list[str] | None, conditions: tuple[Condition, ...]) -> fsqueue.RetryReport:
    """Retry completed tasks of a queue; on a terminal with a bar, if that takes long."""
    total, looked_at, holds = q.status(exact=False).completed, 0, all_of(conditions)
    with Bar("retry", " tasks") as progress:

        def where(result: fsqueue.Result) -> bool:
            nonlocal looked_at
            looked_at += 1
            if looked_at % SHOW_EVERY == 0:
                progress.show(min(looked_at, total), total)
            return holds is None or holds(result)

        return q.retry_completed(where=where) if chosen is None else q.retry_completed(chosen, where)


def _say_unkept(found: fsqueue.RetryReport, target: Target, longest: int | None) -> None:
    kept = "" if longest is None else f", and payloads of up to {wording.counted(longest, 'byte')}"
    complain(
        f"{wording.counted(found.unkept, 'task')} cannot be retried: the payload is not kept. Insert them anew from "
        f"where they came from. {target.path} keeps payloads until 'fsqueue gc' removes them{kept}. "
        "'fsqueue set Q keep_payloads=BYTES' keeps longer ones of tasks that finish from then on"
    )


def _say_left_out(found: fsqueue.RetryReport) -> None:
    """Tell which tasks were left out, as far as that needs no advice."""
    if found.repeated:
        complain(f"{wording.counted(found.repeated, 'task')} left out: retried before. 'fsqueue show' tells the new id")
    for task_id in found.unkept_ids:
        complain(f"{task_id}: its payload is not kept")
    if found.unkept > len(found.unkept_ids):
        complain(f"ids not shown: {found.unkept - len(found.unkept_ids):,}")
