"""spark seed, audit, report, drain, requeue: jobs on a queue that run on Spark."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import click

from fsqueue.format import wording

from .common import (
    FINDINGS_EXIT,
    confirm_at_terminal,
    example,
    json_option,
    queue_argument,
    search_working_directory,
    yes_option,
)
from .options import DURATION, seconds_in
from .printing import print_done, print_json, print_table, say, table_lines

EXECUTORS_PYTHON = "spark.pyspark.python"
Connect = Callable[[], Any]
"""Returns the Spark session."""


def spark_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say where Spark runs; `command` gets a Connect. Within spark-submit, Spark's own tell."""

    @click.option("--master", metavar="URL", help="Where Spark runs [as configured; else local[*]].")
    @click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark. May be repeated.")
    @functools.wraps(command)
    def with_connect(master: str | None, conf: tuple[str, ...], **others: Any) -> None:
        command(connect=lambda: session(master, conf), **others)

    return with_connect


def session(master: str | None, conf: tuple[str, ...]) -> Any:
    """Return the Spark session, whose log is switched off."""
    settings = [setting.partition("=") for setting in conf]
    for key, sign, value in settings:
        if not sign or not key:
            raise click.BadParameter(f"{key!r} is not a setting: write --conf KEY=VALUE.")
        if key == EXECUTORS_PYTHON:  # only spark-submit reads the setting; a running driver takes the variable
            os.environ["PYSPARK_PYTHON"] = value
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        raise click.ClickException(
            "PySpark is not installed. To install it: pip install 'fsqueue-tasks[spark]'"
        ) from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("fsqueue")
    if master is not None:
        builder = builder.master(master)
    for key, _, value in settings:
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        raise click.ClickException(
            f"Spark does not start: {str(error).splitlines()[0]} It needs Java 17 or newer (JAVA_HOME)."
        ) from error
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _print_entry(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        say(os.path.join(os.path.dirname(os.path.abspath(__file__)), "submit.py"))
        ctx.exit()


@click.group(
    epilog=example(
        """fsqueue spark seed /scratch/me/tiles tiles.parquet --commit seed-2026-11
fsqueue spark report /scratch/me/tiles /scratch/me/tiles-report
fsqueue spark audit /scratch/me/tiles --master spark://head:7077
spark-submit --master yarn "$(fsqueue spark --entry)" audit /scratch/me/tiles"""
    )
)
@click.option(
    "--entry", is_flag=True, is_eager=True, expose_value=False, callback=_print_entry,
    help="Print the path of the Python file to give to spark-submit.",
)  # fmt: skip
def spark() -> None:
    """Run jobs on Spark, for queues too large for one machine. Needs the extra: pip install 'fsqueue-tasks[spark]'."""


@spark.command(
    epilog=example(
        """fsqueue spark seed /scratch/me/tiles tiles.parquet --commit seed-2026-11
fsqueue spark seed /scratch/me/tiles 'lists/*.csv' --format csv --option header=true --create"""
    )
)
@queue_argument
@click.argument("source", nargs=-1, required=True, metavar="SOURCE…")
@click.option(
    "--format", "form", default="parquet", show_default=True, help="What the sources are: parquet, json, csv, text, …"
)
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="An option of Spark's reader.")
@click.option("--commit", metavar="NAME", help="Insert under this name, once: repeating it adds nothing.")
@click.option("--payload", metavar="COLUMN", help="The column that is the payload [the whole row].")
@click.option("--delay", "delay_s", metavar="COLUMN|DURATION",
              help="How long until a task is available; a column holds seconds.")  # fmt: skip
@click.option(
    "--priority", metavar="COLUMN", help="The column of priorities, texts or whole numbers: smaller ones come first."
)
@click.option(
    "--key",
    metavar="COLUMN",
    help="The column of keys. Rows are inserted one by one, each unless a task with its key waits or is leased.",
)
@click.option("--create", is_flag=True, help="Create the queue if there is none.")
@spark_options
@json_option
def seed(
    queue: str, source: tuple[str, ...], form: str, options: tuple[str, ...], delay_s: str | None, create: bool,
    connect: Connect, as_json: bool, **named: Any,
) -> None:  # fmt: skip
    """Insert the rows of files (or of another source that Spark reads) into Q as tasks, all of them at one instant.

    With --key they are inserted one by one. After an error, repeat the command: it inserts the rest.
    """
    import fsqueue.spark as jobs

    reader = connect().read.format(form).options(**dict(option.partition("=")[::2] for option in options))
    rows = reader.load(list(source))
    if delay_s is not None and delay_s not in rows.columns and (seconds := seconds_in(delay_s)) is not None:
        delay_s = str(seconds)
    made = jobs.seed(rows, queue, delay_s=delay_s, if_exists="create" if create else "append", **named)
    tasks, files = wording.counted(made.rows, "task"), wording.counted(made.batches, "file")
    line = f"{tasks} in {files}, {made.bytes:,} bytes, as {made.commit}"
    if made.commit is None:
        whose = "its key was" if made.taken == 1 else "their keys were"
        taken = f"; {made.taken:,} not: {whose} taken" if made.taken else ""
        line = f"{tasks} {'was' if made.rows == 1 else 'were'} inserted{taken}"
    elif made.repeated:
        line = f"nothing to do: {made.commit} was committed before, with {tasks}"
    print_done(as_json, made.as_dict(), line)


@spark.command(epilog=example("fsqueue spark audit /scratch/me/tiles --master 'local[8]'"))
@queue_argument
@spark_options
@json_option
def audit(queue: str, connect: Connect, as_json: bool) -> None:
    """Check the queue Q, or all queues in the directory Q, as fsck does, while others work. Nothing is mended.

    Exit codes: 0 nothing was found; 10 there are findings ('fsqueue fsck' explains and mends them).
    """
    import fsqueue.spark as jobs

    found = jobs.audit(connect(), queue)
    if as_json:
        print_json(found.as_dict())
    else:
        say(", ".join(f"{count:,} {state}" for state, count in sorted(found.states.items())))
        for finding in found.findings:
            where = f"{finding['queue']}: " if "queue" in finding else ""
            say(f"{finding['kind']:<17} {where}{finding['path']} {finding['note'] or ''}".rstrip())
        say(wording.counted(sum(found.counts.values()), "finding") if found.counts else "nothing was found")
    if not found.is_sound:
        raise click.exceptions.Exit(FINDINGS_EXIT)


@spark.command(epilog=example("fsqueue spark report /scratch/me/tiles /scratch/me/tiles-report"))
@queue_argument
@click.argument("out", metavar="DIR")
@spark_options
@json_option
def report(queue: str, out: str, connect: Connect, as_json: bool) -> None:
    """Write into the new directory DIR what Q went through: durations, waiting times, failures, throughput.

    The tables are Parquet; DIR/report.html shows them. Q is a queue, or a directory of queues.
    """
    import fsqueue.spark as jobs

    made = jobs.report(connect(), queue, out)
    if as_json:
        print_json(made.as_dict())
        return
    print_table([(outcome, f"{count:,}") for outcome, count in made.attempts.items()], (12,))
    say(f"{made.out}/report.html")


@spark.command(
    epilog=example(
        """fsqueue spark drain /scratch/me/tiles /scratch/me/sizes --sql 'length(payload)'
fsqueue spark drain /scratch/me/tiles /scratch/me/areas --schema 'x DOUBLE, y DOUBLE' --sql 'payload.x * payload.y'
fsqueue spark drain /scratch/me/tiles /scratch/me/out --function mymodule:process"""
    )
)
@queue_argument
@click.argument("out", metavar="DIR")
@click.option("--sql", metavar="EXPRESSION", help="The result, over the columns id, attempt, payload (JSON text).")
@click.option("--schema", metavar="DDL", help="The payload's fields: then payload is a struct.")
@click.option("--function", metavar="MODULE:NAME", help="A function of the payload that returns the result.")
@click.option("--lease", "lease_s", type=DURATION, default=3600.0,
              help="How long a round may take [1h].")  # fmt: skip
@click.option("--max-rounds", "rounds", type=click.IntRange(min=1), metavar="N",
              help="Stop after N rounds, also if tasks are left.")  # fmt: skip
@spark_options
@json_option
def drain(
    queue: str, out: str, sql: str | None, schema: str | None, function: str | None, lease_s: float, rounds: int | None,
    connect: Connect, as_json: bool,
) -> None:  # fmt: skip
    """Work on the tasks of Q with Spark's executors, and write the results into DIR as Parquet.

    A task is completed after its result is written. Give either --sql or --function. To continue a drain
    that died, repeat the command.
    """
    if (sql is None) == (function is None):
        raise click.UsageError("Give either --sql EXPRESSION or --function MODULE:NAME.")
    import fsqueue.spark as jobs

    work: Any = sql if function is None else _function(function)
    made = jobs.drain(connect(), queue, out, work, payload_schema=schema, lease_s=lease_s, rounds_max=rounds).as_dict()
    print_done(as_json, made, *table_lines(((name, f"{count:,}") for name, count in made.items()), (12,)))


def _function(name: str) -> Callable[[Any], Any]:
    module, _, attribute = name.partition(":")
    from importlib import import_module

    search_working_directory()
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise click.BadParameter(f"{name!r} is not a MODULE:NAME that can be imported here: {error}.") from None
    if not callable(found):
        raise click.BadParameter(f"{name} is not a function.")
    return found  # type: ignore[no-any-return]


@spark.command(epilog=example("""fsqueue spark requeue /scratch/me/tiles --sql "reason LIKE '%timed out%'" --yes"""))
@queue_argument
@click.option("--sql", required=True, metavar="EXPRESSION",
              help="Which: a condition over the columns id, reason, at, attempt, payload, host.")  # fmt: skip
@yes_option
@spark_options
@json_option
def requeue(queue: str, sql: str, yes: bool, connect: Connect, as_json: bool) -> None:
    """Put the dead tasks of Q that match a condition back into Q, with new ids and no attempts used.

    On a terminal, the command asks first.
    """
    import fsqueue.spark as jobs

    confirm_at_terminal(f"Put the dead tasks of {queue} back for which {sql} holds?", yes)
    retried = jobs.requeue(connect(), queue, sql)
    line = f"{wording.counted(retried, 'task')} {'was' if retried == 1 else 'were'} put back"
    print_done(as_json, {"retried": retried}, line)
