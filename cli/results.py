"""results: inputs beside outputs, as a table."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import click

import fsqueue
from fsqueue import wording

from .common import brief, duration, example, json_option, moment, queue_argument
from .conditions import Condition, all_of, where_option
from .printing import Bar, is_screen, print_json, print_table, say

ROWS_AT_ONCE = 1_000
"""How many of the results that were chosen are turned into columns together."""


@click.command(
    epilog=example(
        """fsqueue results Q results.csv
fsqueue results Q --where 'result.loss<0.1' --where payload.seed=7
fsqueue results Q best.parquet --where 'result.loss<0.1'
fsqueue results Q --failed"""
    )
)
@queue_argument
@click.argument("file", metavar="[FILE]", required=False, type=click.Path())
@where_option(fsqueue.Result._fields, "payload.seed=7, 'result.loss<0.1', state=dead, host~node1")
@click.option("--failed", is_flag=True, help="Only dead letters.")
@json_option
def results(queue: str, file: str | None, conditions: tuple[Condition, ...], failed: bool, as_json: bool) -> None:
    """Print the results of Q: what was put into each finished task beside what came out of it.

    FILE ends in .csv, .jsonl or .parquet. There each field of a payload and of a result is a column. A name that is
    taken gets the prefix "payload." or "result.". FILE is written under another name, and renamed when it is whole.

    Without FILE: a table on a terminal, elsewhere (and with --json) a JSON object for each task, with its payload and
    result as they are. Finished tasks are known while the history keeps them. Their payloads are known if they are
    not larger than the queue keeps ('fsqueue create --keep-payloads').
    """
    with fsqueue.Queue(queue) as q:
        condition = all_of(conditions)
        if file is not None:
            _write(q, file, condition, failed, as_json)
            return
        found = q.results(where=condition, failed=failed)
        if as_json or not is_screen(sys.stdout):
            for result in found:
                print_json(result.as_dict())
        else:
            print_table(_rows(found), (36, 9, 8, 19, 9, 12))


def _write(q: fsqueue.Queue, file: str, condition: Condition | None, failed: bool, as_json: bool) -> None:
    from .result_files import write

    found = q.result_columns(failed) if condition is None else _in_columns(q.results(condition, failed))
    known = q.status(exact=False)
    total = known.completed + known.dead
    with Bar("reading results", "tasks") as progress, Bar("writing", "tasks") as bar:
        rows, columns = write(
            file,
            found,
            lambda done: progress.show(min(done, total), total),
            lambda done: bar.show(done, total),
        )
    if as_json:
        print_json({"file": file, "rows": rows, "columns": columns})
    else:
        say(f"{file}: {wording.counted(rows, 'row')}, {wording.counted(columns, 'column')}")


def _in_columns(found: Iterator[fsqueue.Result]) -> Iterator[list[Sequence[Any]]]:
    while some := [*islice(found, ROWS_AT_ONCE)]:
        yield [*map(list, zip(*some, strict=True))]


def _rows(found: Iterator[fsqueue.Result]) -> Iterator[tuple[str, ...]]:
    heading = ("TASK", "STATE", "ATTEMPTS", "FINISHED", "TOOK", "HOST", "PAYLOAD -> RESULT")
    for result in found:
        if heading:
            yield heading
            heading = ()  # type: ignore[assignment]
        came = f"failed: {brief(result.error, 60)}" if result.state == "dead" else brief(result.result, 60)
        yield (
            result.id,
            result.state,
            str(result.attempts),
            moment(result.finished_at),
            "-" if result.took_s is None else duration(result.took_s),
            result.host or "-",
            f"{brief(result.payload, 60)} -> {came}",
        )
