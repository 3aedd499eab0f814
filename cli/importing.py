"""import: take tasks over, each once: those that `export` has printed (docs/decisions/0070-moves.md), and those of
another program's queue (docs/decisions/0063-import.md).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import click

import fsqueue
from fsqueue.format import wording

from .common import NOTHING_EXIT, example, json_option, moment, path_of, queue_argument
from .exporting import committed, insert_set
from .filequeue import FileQueue, FileQueueListing, FileQueueTask, Unusable
from .options import DURATION, OneScreen
from .printing import complain, hint, passing, print_done
from .targets import one_queue
from .task_lines import TaskLines

if TYPE_CHECKING:
    from .targets import AnyQueue

NAMED_MAX = 20
"""Maximum number of files, or leases, that are named one by one; the rest is counted."""
LOOK_S = 2.0
"""How often `--wait` looks again."""


class TakeoverReport(NamedTuple):
    """What became of a takeover. `tasks`: how many there are in the FileQueue; `taken`: how many of them the queue has,
    from this call or from an earlier one.
    """

    tasks: int
    inserted: int
    taken: int
    repeated: bool
    at: float | None


@click.command(
    name="import",
    cls=OneScreen,
    epilog=example(
        """fsqueue export Q >tasks.jsonl
fsqueue import Q2 tasks.jsonl                    # again: prints 0
ssh far 'fsqueue export Q' | fsqueue import Q2 -
fsqueue import --from-filequeue /scratch/me/old-queue /scratch/me/tiles    # stop its workers first
fsqueue import --from-filequeue fq:///scratch/me/old-queue /scratch/me/tiles --wait 2h    # waits for its leases
fsqueue import --from-filequeue /scratch/me/old-queue http://localhost:8750/tiles --json    # through a gateway"""
    ),
)
@click.option("--from-filequeue", "filequeue", metavar="DIR",
              help="In place of FILE: a FileQueue of python-task-queue (fq://DIR).")  # fmt: skip
@queue_argument
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(allow_dash=True))
@click.option("--wait", "wait_s", type=DURATION, default=0.0, help="How long to wait until no lease in DIR is alive.")
@click.option("--take-leased", is_flag=True,
              help="Take leased tasks, too, available at once: if no worker of DIR lives any more.")  # fmt: skip
@click.option("--skip-bad", is_flag=True,
              help="Leave out what is no task: name it on standard error, and end with exit code 1.")  # fmt: skip
@click.option("--commit", metavar="NAME",
              help="The name under which the tasks are inserted, once [made from the file, or from DIR].")  # fmt: skip
@json_option
@click.pass_context
def import_(
    ctx: click.Context, /, filequeue: str | None, queue: str, file: str | None, wait_s: float, take_leased: bool,
    skip_bad: bool, commit: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Insert tasks into the queue Q, each once, and print how many are new: those of FILE, or of a FileQueue.

    FILE has lines as 'fsqueue export' prints them, '-' is standard input. What counts is the payload (or "b64"), key,
    priority, and "available_at" if that is to come; attempts begin anew. At a bad line nothing is inserted. Without
    any line, as after an export that failed, the exit code is 3. Tasks without keys appear in Q at one instant, or not
    at all, then those with keys that are free. The command may be killed and repeated: the same lines are inserted
    once. A purge of Q forgets that.

    Of a FileQueue, DIR is only read. All of its tasks appear in Q at one instant, or none. The command may be killed
    and repeated, on any host, and typed twice at once: the tasks are inserted once. A task that was inserted with a
    delay keeps its time. Functions and classes become calls that 'fsqueue run Q --load MODULE' executes, and programs
    that use fsqueue.compat.taskqueue.

    If leases in DIR are alive, a worker may still execute their tasks. Then the command says which tasks these are,
    and until when, and inserts nothing (exit code 1). A FileQueue does not record which worker holds a lease. With
    --wait the command waits for their end before.

    If DIR has files that are no tasks, the command names them, and inserts nothing (exit code 1). With --skip-bad it
    inserts all others, and names what it has left out.

    DIR is taken over once. If other tasks are in it later, the command says so, and inserts nothing: it cannot know
    which of them Q has had. A purge of Q forgets that DIR was taken over.
    """
    if (file is None) == (filequeue is None):
        raise click.UsageError(
            "Say what to import, one of both: a FILE that 'fsqueue export' has printed ('-': standard input), or "
            "--from-filequeue DIR. Nothing was inserted."
        )
    if file is not None:
        for option, is_given in (("--wait", wait_s), ("--take-leased", take_leased), ("--skip-bad", skip_bad)):
            if is_given:
                raise click.UsageError(f"{option} is for --from-filequeue: leave it out. Nothing was inserted.")
        _import_lines(ctx, file, queue, commit, as_json)
        return
    assert filequeue is not None
    with FileQueue(filequeue) as source, one_queue(queue) as q:
        takeover = Takeover(
            source, q, source.identity() if commit is None else commit, take_leased=take_leased, skip_bad=skip_bad
        )
        until = time.monotonic() + wait_s
        look = source.look()
        while look.leased and not take_leased and (left_s := until - time.monotonic()) > 0:
            last = moment(look.leased[-1].at)
            passing(f"{wording.counted(len(look.leased), 'lease')} of {source.path}, until {last} at most")
            time.sleep(min(LOOK_S, left_s))
            look = source.look()
        found = takeover.run(look)
        passing("")
        counts = {
            "inserted": found.inserted,
            "tasks": found.tasks,
            "delayed": takeover.delayed,
            "skipped": len(takeover.bad),
            "duplicates": look.duplicates,
            "commit": takeover.name,
            "repeated": found.repeated,
            "filequeue": source.path,
            "counters": source.counters(),
        }
        print_done(as_json, counts, found.inserted)
        if found.repeated:
            complain(
                f"{source.path} was taken over on {moment(found.at or 0)}, with "
                f"{wording.counted(found.taken, 'task')}: nothing was added"
            )
            if found.taken < found.tasks:
                complain(
                    f"{wording.counted(found.tasks - found.taken, 'file')} of those here were left out then. If they "
                    "are mended, move them into a FileQueue of their own, and import that"
                )
                ctx.exit(1)
        if takeover.bad:
            takeover.tell_bad()
            ctx.exit(1)


def _import_lines(ctx: click.Context, file: str, queue: str, commit: str | None, as_json: bool) -> None:
    """Insert the tasks of a file of `export`."""
    with one_queue(queue) as q, TaskLines(file, q.settings.task_bytes_max) as lines:
        lines.check()
        name = f"import-{lines.digest}" if commit is None else commit
        try:
            found = insert_set(q, name, lines.read, lines.keyed > 0, lines.tasks - lines.keyed)
        except fsqueue.InvalidTask as error:
            where = f"line {lines.line:,} of {lines.name}"
            named = "" if where.lower() in str(error).lower() else f" It is {where}."
            raise type(error)(f"{error}{named}") from error
        done = {
            "inserted": found.new,
            "tasks": lines.tasks,
            "keyed": lines.keyed,
            "commit": name,
            "repeated": found.known is not None,
        }
        print_done(as_json, done, found.new)
        if found.is_whole and found.known is not None:
            complain(f"{lines.name} was imported on {moment(found.known.at)} under the name {name}: nothing was added")
        elif lines.tasks == 0:
            complain(
                f"{lines.name} has no task, so nothing was inserted. Did the command that was to print them fail? "
                "'fsqueue export' also prints nothing if no task is in the states, and meets the conditions, asked for"
            )
            ctx.exit(NOTHING_EXIT)
        elif found.known is None and found.new < lines.tasks:
            taken = wording.counted(lines.tasks - found.new, "task")
            hint(f"{taken} of {lines.tasks:,} left out: {path_of(q)} has their keys")


class Takeover:
    """The steps of a takeover; docs/decisions/0063-import.md says what a crash between any two leaves."""

    def __init__(self, source: FileQueue, queue: AnyQueue, name: str, *, take_leased: bool, skip_bad: bool) -> None:
        self.source, self.queue, self.name = source, queue, name
        self._take_leased, self._skip_bad = take_leased, skip_bad
        self._bytes_max = queue.settings.task_bytes_max
        self.bad: list[tuple[str, str]] = []
        """Files that are no tasks, and why."""
        self.delayed = 0
        self._last: FileQueueTask | None = None

    def run(self, look: FileQueueListing) -> TakeoverReport:
        """Insert what a look has found. Errors say that nothing was inserted."""
        tasks, marker = len(look.tasks), f"filequeue-set-{look.digest()}"
        if (known := committed(self.queue, self.name)) is not None:
            self._refuse_others(known, look, marker)
            return TakeoverReport(tasks, 0, known.tasks, True, known.at)
        self._refuse_leased(look)
        self.bad = [(name, "is not named as a task") for name in look.strays]
        self._refuse_bad()
        if not tasks:
            return TakeoverReport(0, 0, 0, False, None)
        self._mark(marker)
        try:
            new = self.queue.insert_many(self._tasks(look), commit=self.name, total=tasks)
        except fsqueue.InvalidTask as error:
            named = "" if self._last is None else f" The file is {self._last.name}."
            raise fsqueue.InvalidTask(f"{error}{named} Nothing was inserted.") from error
        if not new and (known := committed(self.queue, self.name)) is not None:  # another process was quicker
            self.bad = []
            return TakeoverReport(tasks, 0, known.tasks, True, known.at)
        return TakeoverReport(tasks, new, new, False, None)

    def _mark(self, marker: str) -> None:
        """Note durably which tasks are going to be inserted: a later call compares its own with these."""
        if isinstance(self.queue, fsqueue.Queue):
            self.queue.commit(marker).publish([])
        else:
            self.queue.insert_many([], commit=marker)

    def _refuse_others(self, known: fsqueue.CommitReport, look: FileQueueListing, marker: str) -> None:
        """Raise an error if the directory was taken over when it had other tasks than now."""
        if not look.tasks or (committed(self.queue, marker) is not None and known.tasks <= len(look.tasks)):
            return
        raise fsqueue.FsqueueError(
            f"{self.source.path} was taken over on {moment(known.at)}, with {wording.counted(known.tasks, 'task')}, "
            f"under the name {known.name}. Since then it has changed, or it is another directory: "
            f"{wording.counted(len(look.tasks), 'task')} are here now. Nothing was inserted. If none of them was in it "
            "then: --commit NAME inserts them all, under another name."
        )

    def _refuse_leased(self, look: FileQueueListing) -> None:
        if not look.leased or self._take_leased:
            return
        shown = []
        for entry in look.leased[-NAMED_MAX:]:
            try:
                called = self.source.payload(entry, self._bytes_max)["call"]
            except Unusable as error:
                called = f"a file that {error}"
            shown.append(f"{entry.id} ({called}) until {moment(entry.at)}")
        more = len(look.leased) - len(shown)
        raise fsqueue.FsqueueError(
            f"{wording.counted(len(look.leased), 'lease')} of {self.source.path} "
            f"{'is' if len(look.leased) == 1 else 'are'} alive: {'; '.join(shown)}"
            f"{f'; and {more:,} more, which end sooner' if more else ''}. A FileQueue does not record by which worker. "
            "Nothing was inserted. End its workers, and wait for the leases (--wait TIME). If no worker lives any "
            "more: --take-leased"
        )

    def _tasks(self, look: FileQueueListing) -> Iterator[fsqueue.Task]:
        """Yield the tasks, in the order of their times. At the end, raise an error if anything is in the way."""
        for entry in sorted(look.tasks.values(), key=lambda one: (one.at, one.id)):
            try:
                payload = self.source.payload(entry, self._bytes_max)
            except Unusable as error:
                self.bad.append((entry.name, str(error)))
                continue
            self._last = entry
            if look.is_delayed(entry) and entry not in look.leased:
                self.delayed += 1
                yield fsqueue.Task(payload, available_at=entry.at)
            else:
                yield fsqueue.Task(payload)
        self._refuse_bad()
        now = self.source.look()
        if {one.name for one in now.tasks.values()} != {one.name for one in look.tasks.values()}:
            raise self.source.changed()

    def _refuse_bad(self) -> None:
        if self.bad and not self._skip_bad:
            self.tell_bad()
            raise fsqueue.FsqueueError(
                f"{wording.counted(len(self.bad), 'file')} in {self.source.path}/queue "
                f"{'is no task' if len(self.bad) == 1 else 'are no tasks'}. Nothing was inserted. Move them away, or "
                "leave them out: --skip-bad"
            )

    def tell_bad(self) -> None:
        """Name the files that are no tasks on standard error."""
        for name, why in self.bad[:NAMED_MAX]:
            complain(f"{name!r} {why}")
        if len(self.bad) > NAMED_MAX:
            complain(f"{len(self.bad) - NAMED_MAX:,} more files are no tasks")
