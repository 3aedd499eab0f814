"""insert: tasks from lines, tables, options or the output of a command, as a stream."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import click

import fsqueue
from fsqueue.format import wording

from .common import example, json_option, moment, queue_argument
from .insert_input import Input, Producer, checked_command
from .insert_options import Asked
from .insert_source import Source
from .options import DURATION, AfterDashes
from .printing import complain, hint, print_done
from .targets import one_queue


class WithProducer(AfterDashes):
    """A command line in which a command may follow `--from --`."""

    usage = ("[OPTIONS]", "Q", "[FILE]...", "[--from -- COMMAND...]")
    only_with = "--from"


@click.command(
    cls=WithProducer,
    epilog=example(
        """seq 1000 | fsqueue insert Q
fsqueue insert Q --csv sweep.csv --text id   # a row is {"alpha":0.5,"steps":100,"id":"17"}
fsqueue insert Q tasks.jsonl --commit seed-2026-11   # all of it or nothing, and once, however often it is typed
fsqueue insert Q --task '{"tile": 7, "zoom": 2}'
fsqueue insert Q tasks.jsonl --delay 10m
fsqueue insert Q tasks.jsonl --priority due    # {"due":"2026-11-30","scan":7} comes before {"due":"2026-12-24",...}
fsqueue insert Q tasks.parquet   # also a directory of such files, as Spark writes them
find /data -name '*.tif' | fsqueue insert Q --lines
find /data -name '*.tif' -print0 | fsqueue insert Q -0
fsqueue insert Q tasks.jsonl --key scan   # {"scan":"s7",...} is not inserted while another task with this scan waits
fsqueue insert Q --csv sweep.csv --new-by run   # again and again, with the rows that were added and changed
fsqueue insert Q --lines --commit seed-2026-12 --from -- find /data -name '*.tif'   # nothing, if find fails
fsqueue insert http://localhost:8750/fetch tasks.jsonl --commit seed-2026-11    # through a gateway"""
    ),
)
@queue_argument
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(allow_dash=True))
@click.option("--lines", is_flag=True, help="Plain lines: each one is a task, its payload the line as a string.")
@click.option("-0", "--null", is_flag=True,
              help="Like --lines, but each item ends with NUL, as 'find -print0' writes them.")  # fmt: skip
@click.option("--csv", is_flag=True, help="A table: each row is a task, with a field for each name in the header.")
@click.option("--tsv", is_flag=True, help="A table whose cells are separated by tabs.")
@click.option("--delimiter", metavar="C", help="A table whose cells are separated by this character.")
@click.option("--text", metavar="COLUMN", multiple=True,
              help="Keep a column of a table as text, whatever is in it. Repeatable.")  # fmt: skip
@click.option("--text-all", is_flag=True, help="Keep all columns of a table as text.")
@click.option("--task", "given", metavar="JSON", multiple=True, help="Insert this task. Repeatable.")
@click.option("--delay", "delay_s", type=DURATION, default=0.0, help="How long until the tasks become available.")
@click.option("--batch-tasks", type=int, metavar="N", help="Tasks in each task file [grows with the input].")
@click.option(
    "--priority",
    metavar="FIELD",
    help="The field of each JSON object whose value, a text or a whole number, is the task's priority: smaller ones "
    "come first, tasks without the field last. All are of the kind of the first one.",
)
@click.option(
    "--key",
    metavar="FIELD",
    help="The field of each JSON object whose value, a text or a whole number, is the task's key. While a task with "
    "the key waits or is leased, no other with it is inserted.",
)
@click.option(
    "--new-by",
    metavar="FIELD",
    help="Insert only what is new or changed: no JSON object whose value in this field was inserted last with the same "
    "content, as long as that task waits, is leased, or was completed.",
)
@click.option(
    "--skip-bad", is_flag=True, help="Go on after a bad line: name it on standard error, and end with exit code 1."
)
@click.option(
    "--commit",
    metavar="NAME",
    help="Insert all at once, or nothing: under a name that makes repeating the command harmless.",
)
@click.option("--from", "from_command", is_flag=True,
              help="Insert what the command after '--' prints if it ends with exit code 0.")  # fmt: skip
@json_option
@click.pass_context
def insert(
    ctx: click.Context, /, queue: str, delay_s: float, batch_tasks: int | None, as_json: bool, **options: Any
) -> None:
    """Insert a task for each line of the FILEs, or of standard input, and print how many tasks were inserted.

    Each line is a JSON value, or with --lines a string. Empty lines are skipped. With -0 each item that ends with NUL
    (a zero byte) is a string.

    With --csv, --tsv or --delimiter the input is a table, and each row below the header is an object. The header names
    the fields. The first 10,000 rows decide the type of a column: numbers, if every cell is a number as JSON writes
    them, else text, exactly as it stands there. So '007', '+1', '1,000', 'nan' and numbers with more digits than a
    float holds are text. A number may be written in another way: '3.10' becomes 3.1. 'insert' says so of each column
    before it inserts the first such row. An empty cell is null. If a later cell in a column of numbers is no number,
    its row is a bad line. --text COLUMN makes a column text, and --text-all all of them.

    A FILE that is Parquet is read as such, and needs the extra 'fsqueue-tasks[arrow]'. Several such FILEs, or those of
    a directory, are one table.

    At a bad line (not JSON, NaN, an integer beyond 64 bits, a name twice in an object, a row with too few cells, larger
    than the queue allows) the command ends with exit code 2. The lines before it are inserted; the bad line and those
    after it are not. The message says where to go on: do not repeat the command, which would insert the first lines
    again. The same holds if the command is interrupted (exit code 130) or the disk is full (exit code 7). If an error
    of the queue or its filesystem comes before the first task is inserted, the command prints no number (with --json it
    prints 0). With --commit nothing is inserted in all these cases, and the command may be repeated.

    With --commit, the command inserts nothing if NAME was committed before: it reads no input and prints 0. A NAME
    may also have been committed with no tasks. If there are tasks now, the command ends with exit code 2: insert them
    under another name.

    Through a pipe, fsqueue cannot see how the program before the '|' ended. If that program dies half-way, what it has
    printed is committed. With --commit NAME --from, fsqueue runs the command after '--' itself. It inserts what the
    command prints only if the command ends with exit code 0. Else nothing is inserted, the exit code is 1, and NAME
    stays free. A signal to fsqueue ends the command, too.

    With --key, fsqueue prints how many tasks are new. Lines without the field, or with null in it, have no key. A task
    with a key may take 64 KiB: a longer line is a bad line. A queue with one task in each batch takes no keys. Each key
    makes a small file: for more than 100,000 tasks --commit is the better choice. If all lines have keys, a command
    that ended early may be repeated: a line is not inserted again while its task waits or is leased.

    With --new-by, lines with the same value in FIELD are versions of each other. A line is inserted unless the newest
    version, of those that wait, are leased or were completed, has the same content. fsqueue prints how many lines are
    new. An older version that waits stays: 'fsqueue cancel' ends it. Two lines of one input with one value and
    different content, a line without a value, and one that is longer than the payloads that the queue keeps
    ('fsqueue set Q keep_payloads=BYTES') are bad lines. The command may be repeated whenever it ended. A queue with
    --no-history is refused.
    """
    given = options | {"batch_tasks": batch_tasks}
    asked = Asked(**{name: given[name] for name in Asked._fields})
    producer = None
    if asked.from_command:
        producer = Producer(checked_command(ctx.meta.get("command", [])))
    asked.check()
    key = asked.key
    with one_queue(queue) as q:
        if not isinstance(q, fsqueue.Queue) and batch_tasks is not None:
            raise click.UsageError(
                f"--batch-tasks is about the queue's files, and {queue} is an address: its gateway chooses. Nothing "
                "was inserted. Leave it out."
            )
        more: dict[str, Any] = {} if batch_tasks is None else {"batch_tasks": batch_tasks}
        more |= {} if asked.new_by is None else {"new_by": asked.new_by}
        read = Input(q.settings.task_bytes_max)
        source = Source(read, asked, asked.format(read), producer)
        if asked.commit is not None:
            commit = _LocalCommit(q.commit(asked.commit), batch_tasks, delay_s) if isinstance(q, fsqueue.Queue) else (
                _RemoteCommit(q, asked.commit, delay_s))  # fmt: skip
            _insert_once(commit, source, asked.is_table, as_json)
            return
        source.check_files()
        count, handled = 0, 0
        failure: fsqueue.FsqueueError | None = None
        with source.interruptible():
            while not source.ended and failure is None:
                try:
                    # with --new-by, one call sees all lines: it compares them with each other
                    tasks = source.until_pause() if asked.new_by is None else source.until_end()
                    if not isinstance(q, fsqueue.Queue):  # a gateway does not wait for the first line for long
                        tasks = chain([*islice(tasks, 1)], tasks)
                    count += q.insert_many(tasks, delay_s=delay_s, **more)
                    handled = source.tasks
                except fsqueue.InvalidTask as error:  # the line read last; those before it are in
                    count += _new_of(error)
                    source.refuse_task(error)
                    handled = source.tasks
                except fsqueue.FsqueueError as error:
                    count += _new_of(error)
                    failure = error
    known: dict[str, Any] = (
        {}
        if key is None and asked.new_by is None
        else {"tasks": _handled_at(failure, handled) if failure is not None else source.tasks}
    )
    known |= {"respelled": source.respelled} if asked.is_table else {}
    lines = (count,) if count or failure is None else ()  # a 0 would look like a success of nothing
    print_done(as_json, {"inserted": count, "skipped": source.skipped, **known}, *lines)
    if source.tasks > count and failure is None and not (as_json or source.broken_off):
        were = f"{count:,} of {wording.counted(source.tasks, 'task')} were new"
        if key is not None:
            hint(f"{were}: the keys of the others were taken")
        elif asked.new_by is not None:
            hint(f"{were} or changed")
    source.hint_at_input()
    if failure is not None:
        source.conclude_failure(failure, count, _handled_at(failure, handled))
        raise failure
    source.conclude(count)
    source.hint_at_one_task()


def _new_of(error: fsqueue.FsqueueError) -> int:
    """Return how many tasks a call has inserted that ended with an error."""
    return (error.inserted if error.new is None else error.new) or 0


def _handled_at(error: fsqueue.FsqueueError, before: int) -> int | None:
    """Return how many tasks from the beginning of the input are in the queue, or had a key that was taken.

    `before`: that number before the call that ended with the error. None if it cannot be told.
    """
    if error.inserted is not None:
        return before + error.inserted
    return before if error.new is None else None


class _LocalCommit:
    """A commit of a queue on a filesystem: what was read is staged, and published at the end."""

    def __init__(self, commit: fsqueue.Commit, batch_tasks: int | None, delay_s: float) -> None:
        self._commit, self._batch_tasks, self._delay_s = commit, batch_tasks, delay_s
        self.name, self.committed = commit.name, commit.committed

    def insert(self, source: Source) -> fsqueue.CommitReport | None:
        """Insert the input, unless it is broken off: then return None."""
        parts = []
        try:
            while not source.ended:
                try:
                    staged = source.until_end()
                    parts.append(self._commit.stage(staged, batch_tasks=self._batch_tasks, delay_s=self._delay_s))
                except fsqueue.InvalidTask as error:
                    parts.append(error.part)
                    source.refuse_task(error)
        except fsqueue.FsqueueError:
            with suppress(fsqueue.FsqueueError):  # otherwise `gc` does it
                self._commit.discard()
            raise
        source.await_producer()  # nothing may be published before it is known how the producer ended
        if source.broken_off:
            self._commit.discard()
            return None
        return self._commit.publish(parts)


class _RemoteCommit:
    """A commit of a gateway's queue: one request.

    What was read is kept in a temporary file until it is known how the producer ended. A gateway would break off a
    request that pauses for long.
    """

    def __init__(self, queue: fsqueue.RemoteQueue, name: str, delay_s: float) -> None:
        self._queue, self.name, self._delay_s = queue, name, delay_s
        self._bytes_max = queue.settings.task_bytes_max

    def committed(self) -> fsqueue.CommitReport | None:
        """Return what was inserted under the name; None if nothing was decided yet."""
        return self._queue.committed(self.name)

    def insert(self, source: Source) -> fsqueue.CommitReport | None:
        """Insert the input, unless it is broken off: then return None."""
        from fsqueue.client.values import KeptTasks

        with tempfile.TemporaryFile() as file:
            kept = KeptTasks(file, self._bytes_max, self._delay_s)
            try:
                for payload in source.until_end():
                    try:
                        kept.add(payload)
                    except fsqueue.InvalidTask as error:
                        source.refuse_task(error)
                file.flush()
            except OSError as error:
                raise fsqueue.StorageFull(
                    f"The input could not be kept in {tempfile.gettempdir()}: {error.strerror}. Nothing was inserted. "
                    "Choose another directory: TMPDIR=DIR."
                ) from error
            source.await_producer()
            if source.broken_off:
                return None
            new = self._queue.insert_many(kept, commit=self.name, delay_s=self._delay_s, total=source.tasks)
        report = self.committed()
        if report is None:
            raise fsqueue.QueuePurged(
                f"The queue was purged after {wording.counted(new, 'task')} had been inserted: they are gone with it."
            )
        return replace(report, repeated=new < report.tasks)


def _insert_once(commit: _LocalCommit | _RemoteCommit, source: Source, is_table: bool, as_json: bool) -> None:
    """Insert the whole input under a name, unless it was committed before."""
    report = commit.committed()
    was_used_up = report is not None and not report.tasks
    if report is None:
        source.check_files()
        with source.interruptible():
            report = commit.insert(source)
            if report is not None:
                source.forget_signal()
    elif was_used_up:  # else the input is not read
        source.check_files()
        with source.interruptible():
            for _ in source.until_end():
                if source.producer is None:
                    break
            source.await_producer()
    is_repeated = report is not None and report.repeated
    is_used_up = report is not None and not report.tasks
    is_refused = is_repeated and is_used_up and source.tasks > 0
    count = 0 if report is None or is_repeated else report.tasks
    known: dict[str, Any] = {
        "inserted": count,
        "skipped": source.skipped,
        "commit": commit.name,
        "committed": None if report is None else report.tasks,
        "repeated": is_repeated,
        "refused": is_refused,
    }
    if source.producer is not None:
        known["producer_exit"] = source.producer.exit_code
    if is_table:
        known["respelled"] = source.respelled
    print_done(as_json, known, count)
    if report is None or (was_used_up and source.broken_off):
        source.hint_at_input()
        source.conclude_without(commit.name, was_used_up)
        return
    when = f"{commit.name} was committed on {moment(report.at)}, with {wording.counted(report.tasks, 'task')}"
    if is_refused:
        raise fsqueue.InvalidArgument(
            f"{when}, so the name is used up. The tasks of this input were not inserted: insert them under another "
            "name."
        )
    source.hint_at_input()
    if is_repeated:
        complain(f"{when}: nothing was added")
    if is_used_up:
        complain(f"the name {commit.name} is used up by a commit of no tasks: insert others under another name")
    if not is_repeated or is_used_up:
        source.conclude(count)
        source.hint_at_one_task()
