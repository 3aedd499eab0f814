"""fsck: check the files of a queue, explain each finding, and repair it where asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import click

import fsqueue
from fsqueue.format import wording
from fsqueue.fsck import fsck_lost
from fsqueue.views import copy_warnings

from . import process
from .common import FINDINGS_EXIT, example, group_at, json_option, path_of, queue_argument, queue_at
from .printing import CAUTION, ERROR, Bar, Coloured, complain, print_json, say, say_in_colours


@click.command(
    epilog=example(
        """fsqueue fsck /scratch/me/tiles
fsqueue fsck /scratch/me/tiles --repair
fsqueue fsck /scratch/me/tiles --accept-copy        # after a backup was restored, and that was meant
fsqueue fsck /scratch/me/tiles --json | jq -r 'select(.repaired == false) | .path'"""
    )
)
@queue_argument
@click.option("--repair", is_flag=True, help="Repair what can be repaired.")
@click.option("--accept-copy", is_flag=True,
              help="Have the directory count as the queue's own from now on; of a group, for each queue.")  # fmt: skip
@json_option
def fsck(queue: str, repair: bool, accept_copy: bool, as_json: bool) -> None:
    """Check all files of the queue Q, or of the group Q and all its queues, while others go on working.

    Each finding is explained. An unfinished step of a living process is not a finding. --repair finishes what crashes
    left half done, and moves unusable files into Q/.quarantine; it removes nothing that may be needed.
    With --json each finding is a line.

    A queue that may be a copy, as after a restored backup, has a warning before its findings. It is no finding.
    --accept-copy ends that warning, and then checks.

    Exit codes: 0 no findings, or all were repaired; 10 some findings were not repaired.
    """
    counts: Counter[str] = Counter()
    left = 0
    explained: set[str] = set()
    named: set[str] = set()
    is_warned = False
    for q, finding in _findings(queue, repair):
        if finding is None:
            is_warned = q is None or _look_for_copy(q, accept_copy, as_json) or is_warned
            continue
        if isinstance(q, fsqueue.GroupQueue) and q.name not in named and not as_json:
            named.add(q.name)
            say(f"{q.name}:")
        counts[finding.gravity] += 1
        left += not finding.repaired
        if as_json:
            of = {"queue": path_of(q)} if isinstance(q, fsqueue.GroupQueue) else {}
            print_json(finding.as_dict() | of)
        else:
            _show(finding, repair, finding.kind not in explained)
        explained.add(finding.kind)
    if not as_json:
        _sum_up(counts, left, repair, is_warned)
    if left:
        raise click.exceptions.Exit(FINDINGS_EXIT)


def _findings(path: str, repair: bool) -> Iterator[tuple[fsqueue.Queue | None, fsqueue.Finding | None]]:
    """Yield each queue, then what is wrong with it. What is wrong with other files comes first, without a queue.

    (None, None) stands for what was named, and is no queue of the group.
    """
    is_lost = False
    with process.question_to(path):
        for finding in fsck_lost(path, repair):
            yield None, finding
            is_lost = is_lost or not finding.repaired
    if is_lost:
        return  # it cannot be opened
    group = group_at(path)
    if group is not None:
        yield from ((None, finding) for finding in group.fsck(repair=repair))
    lost: list[fsqueue.QueueFileLost] = []
    for found in [queue_at(path)] if group is None else _there(group, lost):
        if found is None:
            yield None, None
            continue
        with found as q:
            yield q, None
            with Bar("fsck") as progress:
                yield from ((q, finding) for finding in q.fsck(repair=repair, progress=progress.show))
    for error in lost:  # a finding of the group tells of the same; the error names the command
        complain(str(error))


def _there(group: fsqueue.Group, lost: list[fsqueue.QueueFileLost]) -> Iterator[fsqueue.Queue | None]:
    """Yield each queue that a group's directory has. Name strays, and yield None for each.

    Queues whose own file is gone are left out, too: their errors are added to `lost`.
    """
    for queue in group.queues(tasks_min=0):
        try:
            if queue.exists():
                yield queue
        except fsqueue.NotAQueue as error:
            complain(str(error))
            yield None
        except fsqueue.QueueFileLost as error:
            lost.append(error)


def _show(finding: fsqueue.Finding, repair: bool, explain: bool) -> None:
    """Show a finding on a line, and, the first time, what its kind means."""
    tasks = f" ({wording.counted(finding.tasks, 'task')})" if finding.tasks else ""
    note = f": {finding.note}" if finding.note else ""
    state = "" if not repair else " [repaired]" if finding.repaired else " [NOT repaired]"
    kind = Coloured(finding.kind, ERROR if finding.gravity == "damage" else CAUTION)
    say_in_colours(kind, f"{'':<{17 - len(finding.kind)}} {finding.path}{tasks}{note}{state}")
    if explain:
        say(f"    {finding.meaning}", f"    --repair {finding.repair}.")


def _look_for_copy(q: fsqueue.Queue, accepts: bool, as_json: bool) -> bool:
    """Warn if a queue may be a copy, or have it accepted. Return whether a warning was given."""
    path = path_of(q)
    if accepts and q.accept_copy():
        if as_json:
            print_json({"accepted": path})
        else:
            say(f"accepted: the directory of {path} counts as the queue's own from now on")
    elif q.is_copy():
        text = copy_warnings.of_queue(path)
        if as_json:
            print_json({"warning": "copy", "queue": path, "note": text})
        else:
            say(f"warning: {text}")
        return True
    return False


def _sum_up(counts: Counter[str], left: int, repair: bool, is_warned: bool) -> None:
    total = sum(counts.values())
    if not total:
        say("nothing else was found" if is_warned else "nothing was found: all is as it should be")
        return
    kinds = ", ".join(f"{count:,} {gravity}" for gravity, count in counts.most_common())
    if repair:
        say(f"{wording.counted(total, 'finding')} ({kinds}); {total - left:,} repaired, {left:,} not")
    else:
        say(f"{wording.counted(total, 'finding')} ({kinds}); 'fsqueue fsck --repair' mends what can be mended")
