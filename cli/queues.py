"""create, upgrade, purge, delete, gc: the queue as a whole."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import fsqueue
from fsqueue import wording
from fsqueue.filesystem import mountadvice
from fsqueue.upkeep.collect import PAYLOAD_BYTES, PAYLOAD_DAYS, Reaping, reap

from .common import (
    confirm,
    duration,
    example,
    json_option,
    optional_queue_argument,
    queue_argument,
    yes_option,
)
from .options import DURATION, renamed
from .printing import complain, done, hint, print_json, say

REAP_TRIES, REAP_PAUSE_S = 20, 0.5
DAY_S = 86_400
DEFAULTS = fsqueue.Settings()


def _payload_bytes(value: str) -> int | str:
    if value == "all":
        return value
    if not value.isdecimal():
        raise click.BadParameter(f"{value!r} is neither a whole number of bytes nor 'all'.")
    return int(value)


def _attempts(value: str) -> int | str:
    if value == "none":
        return value
    if not value.isdecimal() or not int(value):
        raise click.BadParameter(f"{value!r} is neither a whole number from 1 nor 'none'.")
    return int(value)


@click.command(
    epilog=example(
        """fsqueue create /scratch/me/tiles
fsqueue create /scratch/me/tiles --lease 1h --max-attempts 3"""
    )
)
@queue_argument
@click.option("--shards", type=int, help=f"Subdirectories that the task files spread over [{DEFAULTS.shards}].")
@renamed("--max-batch-tasks", "batch_tasks_max", former=["--batch-tasks-max"], type=int, metavar="N",
         help=f"Put no more tasks into one file [{DEFAULTS.batch_tasks_max}].")  # fmt: skip
@renamed("--max-task-bytes", "task_bytes_max", former=["--task-bytes-max"], type=int, metavar="BYTES",
         help=f"Largest task [{DEFAULTS.task_bytes_max >> 20} MiB].")  # fmt: skip
@click.option(
    "--max-attempts",
    type=_attempts,
    metavar="N",
    help=f"Attempts before a task becomes a dead letter, or 'none' [{DEFAULTS.max_attempts}].",
)
@renamed("--lease", "lease_s", former=["--lease-s"], type=DURATION, help="How long a lease holds unless renewed [10m].")
@renamed(
    "--backoff",
    "backoff_s",
    former=["--backoff-s"],
    type=(DURATION, DURATION),
    metavar="FIRST MOST",
    help="Pause after a failed attempt, doubling [1 1h].",
)
@click.option(
    "--durability", type=click.Choice(["none", "default", "strict"]), help="What is synced to disk [default: inserts]."
)
@click.option("--no-history", is_flag=True, help="Forget finished tasks at once.")
@click.option(
    "--keep-payloads",
    type=_payload_bytes,
    metavar="BYTES",
    help=f"Keep payloads of finished tasks up to this size, or 'all'; 0: none [{DEFAULTS.keep_payloads}].",
)
@click.option("--exist-ok", is_flag=True, help="Leave an existing queue as it is, and succeed.")
@click.option("--allow-unsafe", is_flag=True, help="Use it even on mounts that can't keep the promises.")
@json_option
def create(queue: str, no_history: bool, exist_ok: bool, allow_unsafe: bool, as_json: bool, **settings: Any) -> None:
    """Create the queue Q, a directory.

    'fsqueue set' changes --max-attempts, --lease, --backoff and --keep-payloads later. All else is fixed.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    if settings["max_attempts"] == "none":
        given["max_attempts"] = None
    if settings["keep_payloads"] == "all":
        given["keep_payloads"] = None
    if no_history:
        given["keep_history"] = False
    is_new = True
    try:
        q = fsqueue.Queue.create(queue, allow_unsafe=allow_unsafe, **given)
    except fsqueue.QueueExists:
        if not exist_ok:
            raise
        is_new = False
        q = fsqueue.Queue.create(queue, allow_unsafe=allow_unsafe, exist_ok=True, **given)
    with q:
        has = asdict(q.settings)
        others = {name: has[name] for name, value in given.items() if has[name] != value}
        if others:
            said = ", ".join(f"{name} is {_said(value)}, not {_said(given[name])}" for name, value in others.items())
            hint(f"warning: {q.path} was there already, and keeps its settings: {said}.")
        if is_new and (lost := mountadvice.volatile(str(q.path))):
            hint(f"warning: {q.path} is {lost}")
        with done():
            if as_json:
                print_json({"queue": str(q.path), "created": is_new, "settings": has})
            elif is_new:
                say(f"made the queue {q.path}: {_promises(q.settings)}")


@click.command(epilog=example("fsqueue upgrade /scratch/me/tiles --yes"))
@queue_argument
@yes_option
@json_option
def upgrade(queue: str, yes: bool, as_json: bool) -> None:
    """Raise the queue Q to the newest format. Its tasks, leases and history stay as they are.

    A queue that an older fsqueue has made works without this, as before. Afterwards a task that is inserted alone takes
    one append, and no file. An older fsqueue can't open the queue any more, and there is no way back. End all processes
    that use it with an older version first.
    """
    with fsqueue.Queue(queue) as q:
        if q.can_upgrade:
            confirm(
                f"Raise {q.path} to the newest format? An older fsqueue can't open it any more, and must not be at "
                "work in it now.",
                yes,
            )
        is_raised = q.upgrade()
        with done():
            if as_json:
                print_json({"queue": str(q.path), "upgraded": is_raised})
            elif is_raised:
                say(f"{q.path} has the newest format now. An older fsqueue can't open it any more.")
            else:
                say(f"{q.path} has the newest format already. Nothing was changed.")


@click.command(epilog=example("fsqueue purge /scratch/me/tiles --yes"))
@queue_argument
@yes_option
@json_option
def purge(queue: str, yes: bool, as_json: bool) -> None:
    """Drop all tasks of Q, leased ones and dead letters too, and begin to count from zero. The settings stay."""
    with fsqueue.Queue(queue) as q:
        lost = q.status()
        confirm(f"Drop {_inventory(lost)} of {q.path}?", yes)
        q.purge()
        _reap_in_background(q.path.absolute())
        with done():
            if as_json:
                print_json({"purged": str(q.path), **lost.as_dict()})


@click.command(epilog=example("fsqueue delete /scratch/me/tiles --yes"))
@queue_argument
@click.option("--wait", is_flag=True, help="Stay until all its files are gone.")
@yes_option
@json_option
def delete(queue: str, wait: bool, yes: bool, as_json: bool) -> None:
    """Delete the queue Q. It is gone at once; its files are removed in the background."""
    with fsqueue.Queue(queue) as q:
        lost = q.status()
        confirm(f"Delete the queue {q.path} with {_inventory(lost)}?", yes)
        parent = q.path.absolute().parent
        q.delete(wait=wait)
    if not wait:
        _reap_in_background(parent)
    with done():
        if as_json:
            print_json({"deleted": str(q.path), **lost.as_dict()})


@click.command(
    epilog=example(
        """fsqueue gc /scratch/me/tiles --keep-history 30d
fsqueue gc --trash /scratch/me"""
    )
)
@optional_queue_argument
@click.option("--touch", is_flag=True, help="Refresh its files, so that a scratch system does not purge them.")
@click.option("--keep-history", "history_s", type=DURATION, help="Drop history that is older; whole days, as 30d.")
@click.option(
    "--keep-payloads",
    "payload_s",
    type=DURATION,
    help=f"Drop files of payloads that are older; whole days [{PAYLOAD_DAYS}d].",
)
@click.option(
    "--payload-bytes",
    type=click.IntRange(min=0),
    metavar="BYTES",
    help=f"Keep no more of those than this, the latest days first; today's stay [{PAYLOAD_BYTES >> 30} GiB].",
)
@click.option("--history-days", type=click.IntRange(min=0), hidden=True)
@click.option("--trash", type=click.Path(path_type=Path), metavar="DIR", help="Only remove what was deleted from DIR.")
@json_option
def gc(
    queue: str | None,
    touch: bool,
    history_s: float | None,
    payload_s: float | None,
    payload_bytes: int | None,
    history_days: int | None,
    trash: Path | None,
    as_json: bool,
) -> None:
    """Clean up the queue Q: finish what crashed workers left half done, remove leftovers and trash.

    It is safe at any time, and never necessary for correctness.
    """
    if (queue is None) == (trash is None):
        raise click.UsageError("Name either a queue or --trash DIR.")
    if history_s is not None:
        if history_s % DAY_S:  # a plain 30 means seconds: gc would drop all but today's history
            raise click.UsageError("History is kept by whole days: write, for instance, --keep-history 30d.")
        history_days = int(history_s // DAY_S)
    if payload_s is not None and payload_s % DAY_S:
        raise click.UsageError("Payloads are kept by whole days: write, for instance, --keep-payloads 30d.")
    kept: dict[str, int] = {} if payload_s is None else {"payload_days": int(payload_s // DAY_S)}
    kept |= {} if payload_bytes is None else {"payload_bytes": payload_bytes}
    if queue is None and (touch or kept or history_days is not None):
        raise click.UsageError("--touch, --keep-history, --keep-payloads and --payload-bytes need a queue.")
    if queue is None:
        assert trash is not None
        reaping = _reap(trash)
        report: dict[str, Any] = {"reaped": reaping.removed}
        if as_json:
            report["left"] = reaping.left
        with done():
            for path, why in reaping.left.items() if not as_json else ():
                say(f"{path} was left alone: {why}.")
    else:
        with fsqueue.Queue(queue) as q:
            report = q.gc(touch=touch, history_days=history_days, **kept).as_dict()
    with done():
        if as_json:
            print_json(report)
        elif not any(report.values()):
            say("nothing was to be cleaned up")
        else:
            say(*_cleaned(report))


GC_LINES = {
    "finished": {
        "finished": ("batch", "batches"),
        "commits_applied": ("commit", ""),
        "retries_published": ("retry of dead letters", "retries of dead letters"),
        "letters_added": ("missing dead letter", ""),
        "renamed": ("batch under the time it is due", "batches under the time they are due"),
    },
    "removed": {
        "staged_reaped": ("file of an insert that died", "files of inserts that died"),
        "attempts_reaped": ("commit that was given up", "commits that were given up"),
        "keys_removed": ("file of a free key", "files of free keys"),
        "history_days_removed": ("day of history", "days of history"),
        "payload_days_removed": ("day of payloads", "days of payloads"),
        "generations_trashed": ("purged generation", ""),
        "trash_reaped": ("directory of the trash", "directories of the trash"),
        "reaped": ("deleted queue", ""),
    },
    "touched": {"touched": ("file", "")},
    "passed over": {"busy": ("busy batch", "busy batches")},
    "left alone": {"stray": ("stray file ('fsqueue fsck' tells more)", "stray files ('fsqueue fsck' tells more)")},
    "given back": {
        "inodes_given_back": ("file or directory", "files and directories"),
        "bytes_given_back": ("byte", ""),
    },
}
"""The lines that gc prints: the counts in each, with the noun for one, and for several if that is not one with an s."""


def _cleaned(report: dict[str, int]) -> Iterator[str]:
    """Return the lines that have counts other than 0."""
    for doing, counts in GC_LINES.items():
        found = [wording.counted(report[name], *nouns) for name, nouns in counts.items() if report.get(name)]
        if found:
            yield f"{doing:<12} {', '.join(found)}"


def _promises(settings: fsqueue.Settings) -> str:
    """Return the settings that a first user wants to know, in words."""
    attempts = settings.max_attempts
    tries = "any number of attempts" if attempts is None else wording.counted(attempts, "attempt")
    return f"a lease lasts {duration(settings.lease_s)} unless renewed, a task has {tries}"


def _said(value: object) -> str:
    """Return a setting as a user would type it."""
    if isinstance(value, tuple):
        return " ".join(map(_said, value))
    return "none" if value is None else f"{value:.12g}" if isinstance(value, float) else str(value)


def _inventory(status: fsqueue.Status) -> str:
    """Return in words which tasks would be lost."""
    return (
        f"{wording.counted(status.remaining, 'unfinished task')}, {status.leased:,} of them leased, and "
        f"{wording.counted(status.dead, 'dead letter')}"
    )


def _reap(directory: Path) -> Reaping:
    """Remove what deleted queues left in `directory`. Wait for a while if another process is removing the same."""
    reaping = reap(directory)
    for _ in range(REAP_TRIES):
        if not reaping.unfinished:
            break
        time.sleep(REAP_PAUSE_S)
        before, reaping = reaping.removed, reap(directory)
        reaping.removed += before
    return reaping


def _reap_in_background(directory: Path) -> None:
    """Start a process that removes what was purged or deleted in `directory`. It outlives this command."""
    try:
        subprocess.Popen(
            [sys.executable, "-P", "-m", __package__ or "fsqueue_cli", "gc", "--trash", str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        complain(f"its files stay until 'fsqueue gc --trash {directory}': {error}")
