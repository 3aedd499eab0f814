"""Collect garbage: leftovers of crashes, old history, and trash (docs/design.md, section 4.11).

All of it may run at any time, while others work, and may be stopped at any moment.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from fsqueue.errors import FULL, LockTimeout, StorageError
from fsqueue.filesystem import Filesystem, PassingOverStrays, result_paths, trees
from fsqueue.filesystem.open_directories import OpenDirectory
from fsqueue.format import names
from fsqueue.format.layout import is_doctor_directory
from fsqueue.format.models import GcReport
from fsqueue.format.names import Batch, Generation, TaskFileName
from fsqueue.format.replay import DEAD, ReplayState
from fsqueue.format.wording import counted
from fsqueue.interruptions import let_out, suppress
from fsqueue.protocol import deciding, finishing, transitions
from fsqueue.storage import (
    commits,
    deadletters,
    history,
    letter_files,
    listing,
    nodes,
    payloads,
    record_times,
    retrying,
    slots,
    staging,
)
from fsqueue.storage.decisions import OutOfGroup
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.store import Store
from fsqueue.upkeep import decision_files, doctorplaces, key_files, number_files, payload_erasure, trash
from fsqueue.upkeep.refusals import PASSED_OVER, Refusals

logger = logging.getLogger("fsqueue")

T = TypeVar("T")

STAGED_AGE_S = 86_400
"""A staged file is reaped a day after it was written, if no process has it locked and no record names it."""
ATTEMPT_AGE_S = 7 * STAGED_AGE_S
"""What was staged for a commit is reaped a week after its last file: its other parts may take days."""
PURGES_MAX = 9
"""Maximum number of times that one upkeep begins anew because the queue was purged."""
NODE_AGE_S = 7 * STAGED_AGE_S
"""The failures in a row on a node are forgotten a week after the last: they say nothing of today."""


@dataclass(frozen=True, slots=True)
class Keep:
    """What upkeep leaves. `history_days` None: all of the history. Days are whole, and of UTC."""

    history_days: int | None = None
    payload_days: int = payloads.PAYLOAD_DAYS
    payload_bytes: int = payloads.PAYLOAD_BYTES


def gc(store: Store, touch: bool = False, keep: Keep = Keep()) -> GcReport:
    """Go through a queue and mend what can be mended. Locked batches are left for the next time.

    The steps that make room come first. A step for which a full disk has no room is tried again at the end.
    """
    store.refresh(now=True)
    report = GcReport()
    with trees.count_removals() as removed:
        full = _collect_present(store, report, keep)
    report.inodes_given_back += removed.inodes
    report.bytes_given_back += removed.bytes
    if touch:
        report.touched = refresh(store) + decision_files.refresh(store)
    if full:
        raise full[0]
    return report


def _collect_present(store: Store, report: GcReport, keep: Keep) -> list[OSError]:
    """Mend what can be mended, as `_collect` does; begin anew if the queue is purged meanwhile.

    Of files that another host has purged a network mount says ESTALE, where a local disk says that they are missing.
    """
    for is_last in (False,) * PURGES_MAX + (True,):
        generation = store.queue_state.generation
        try:
            return _collect(store, report, keep)
        except OSError as error:
            if error.errno != errno.ESTALE or is_last:
                raise
            store.refresh(now=True)
            if store.queue_state.generation == generation:
                raise
    raise AssertionError("unreachable")


def _collect(store: Store, report: GcReport, keep: Keep) -> list[OSError]:
    """Mend what can be mended; return the errors of the steps for which there was no room."""
    generations(store, report)
    if keep.history_days is not None:
        _history(store, keep.history_days, report)
    payload_erasure.erase(store, report)
    _payloads(store, keep, report)
    report.trash_reaped = trash.reap_own(store.fs, store.path, store.queue_state.id)
    report.trash_reaped += reap_doctors(store.fs, store.path, store.clock.now_ms() / 1000)
    report.trash_reaped += reap_results(store)
    _staging(store, report)
    refused = Refusals()
    no_room = _give_back_letters(store, report, refused)
    nodes.forget(store, NODE_AGE_S)
    slots.forget(store)
    key_files.KeyCollector(store, report, refused).collect()
    report.decision_files_retired += decision_files.retire(store)
    report.number_files_retired += number_files.retire(store)
    full = _apply_decided(store, report)
    missed = bool(full)
    full += no_room
    begun = listing.shards_with_logs(store)  # a log that is made later is for the next upkeep
    for shard in listing.shards(store):
        full += _shard(store, shard, shard in begun, report, refused)
    refused.warn(lambda count: f"passed over {counted(count, 'file')} of {store.path}")
    if missed:  # the shards may have made room
        full += _apply_decided(store, report)
    return full


def _apply_decided(store: Store, report: GcReport) -> list[OSError]:
    """Publish what retries recorded and commits decided; return the error if there was no room.

    Before any batch is judged: a power loss may have put task files back into staging whose batches have logs.
    """
    try:
        report.retries_published += retrying.publish_pending(store)
        report.commits_applied += commits.apply_pending(store)
    except OSError as error:
        if error.errno not in FULL:
            raise
        return [error]
    return []


def _give_back_letters(store: Store, report: GcReport, refused: Refusals) -> list[OSError]:
    """Give back the room of dead letters that were settled; return the errors of files for which there was no room."""
    full = []

    def tried(give_back: Callable[[], int]) -> int:
        try:
            return give_back()
        except (LockTimeout, FileNotFoundError):
            return 0  # a file that is busy is for the next upkeep
        except OSError as error:
            let_out(error)
            if error.errno == errno.ESTALE:  # another host has replaced it
                return 0
            if error.errno in FULL:
                full.append(error)
            elif error.errno in PASSED_OVER:
                refused.add(error)
            else:
                raise
            return 0

    report.staged_reaped += tried(partial(reap_successors, store))
    for shard, size in deadletters.sizes(store).items():
        if size > letter_files.BLOCK_BYTES:  # else it holds nothing to give back
            report.bytes_given_back += tried(partial(deadletters.give_back, store, shard))
    return full


def refresh(store: Store) -> int:
    """Set the times of every file that the queue needs to now; returns how many those are.

    What is staged or proposed is left alone: its age tells whether its author lives. PermissionError if it may not be
    done to a single one.
    """
    layout, refused = store.layout, Refusals()
    files, directories, touched = [layout.settings_file, layout.doorbell], [layout.base], 0
    while directories:
        directory = directories.pop()
        for name, kind in store.fs.entries(directory):
            path = f"{directory}/{name}"
            if kind == "file" and names.parse_ballot_file(name) is None:
                files.append(path)
            elif kind == "directory" and path not in (layout.staging, layout.pending):
                directories.append(path)
        for path in files:
            try:
                store.fs.touch(path)
                touched += 1
            except FileNotFoundError:
                pass  # it has been dealt with meanwhile
            except PermissionError as error:
                refused.add(error)
        files = []
    if not touched and refused.first:
        raise next(iter(refused.first.values()))
    refused.warn(lambda count: f"could not set the times of {counted(count, 'file')} of {store.path}")
    return touched


def _shard(store: Store, shard: names.Shard, has_logs: bool, report: GcReport, refused: Refusals) -> list[OSError]:
    """Mend the batches of a shard. Return the errors of those for which there was no room."""
    full = []

    def known(directory: str, parse: Callable[[str], T | None]) -> list[T]:
        found = {text: parse(text) for text in store.fs.names(f"{directory}/{shard}")}
        report.stray += sum(name is None and not text.startswith(".nfs") for text, name in found.items())
        return [name for name in found.values() if name is not None]

    files: dict[str, TaskFileName] = {name.batch: name for name in known(store.layout.tasks, names.parse_task_file)}
    logs = known(store.layout.logs, names.parse_log_file) if has_logs else []
    with_logs = set(logs)
    anchors = [name.batch for name in files.values() if name.is_open and name.batch not in with_logs]
    for batch, look in [*((each, _look_at) for each in logs), *((each, _end_anchor) for each in anchors)]:
        try:
            look(store, batch, files, report)
        except LockTimeout:
            report.busy += 1
        except OSError as error:
            let_out(error)
            if error.errno == errno.ESTALE:  # another host has ended the batch
                continue
            if error.errno in FULL:
                full.append(error)
                continue
            if error.errno not in PASSED_OVER:
                raise
            logger.debug("batch %s of %s was passed over: %s", batch, store.path, error)
            refused.add(error)
            report.stray += 1
    return full


def _look_at(store: Store, batch: Batch, files: dict[str, TaskFileName], report: GcReport) -> None:
    """Mend a batch that has a log, if it needs that."""
    replay_state = listing.read_own_state(store, batch)
    if replay_state is not None and replay_state.prepared:
        _give_outcomes(store, batch)
        replay_state = listing.read_present_state(store, batch)
    at_work = replay_state is not None and replay_state.remaining and batch in files and not replay_state.done[DEAD]
    if (
        not at_work
        or is_late(replay_state, files[batch])
        or (replay_state and record_times.is_ahead(store, replay_state))
    ):
        mend(store, batch, files.get(batch), report)


def _give_outcomes(store: Store, batch: Batch) -> None:
    """Write the outcomes of updates into a log that lacks them; decide about those that are old. LockTimeout."""
    try:
        with LockedBatch(store, batch, finishing.WAIT_S) as locked:
            wanted = locked.undecided()
        deciding.decide(store, batch, wanted, finishing.WAIT_S)
    except FileNotFoundError:
        pass  # it has finished meanwhile
    except OutOfGroup as error:
        logger.warning("%s", error)


def _end_anchor(store: Store, batch: Batch, files: dict[str, TaskFileName], report: GcReport) -> None:
    """End a batch that takes inserts and has no log: the inserter that made it died before its first insert."""
    if _may_get_inserts(store, batch):
        return
    with suppress(FileNotFoundError), LockedBatch(store, batch, finishing.WAIT_S, create=True) as locked:
        locked.log.name = locked.log.name or files[batch]
        _end_empty(locked, report)


def _may_get_inserts(store: Store, batch: Batch) -> bool:
    """Return whether the inserter that made the batch may be about to insert its first task."""
    return names.birth_ms(batch) + finishing.LINGER_MS > store.clock.now_ms()


def _end_empty(locked: LockedBatch, report: GcReport) -> None:
    """End a batch that takes inserts and has got none. An inserter that was only slow takes another batch."""
    if not transitions.open_untouched(locked):
        finishing.retire(locked)
        return
    report.finished += finishing.finish(locked)


def is_late(replay_state: ReplayState | None, name: TaskFileName) -> bool:
    """Return whether a file's name promises a later time than the truth: a renaming failed, or its author died before
    it.
    """
    if replay_state is None or replay_state.prepared:  # what is prepared gives no time
        return False
    due = replay_state.next_time()
    return due is not None and due < name.available_at


def mend(store: Store, batch: Batch, name: TaskFileName | None, report: GcReport) -> None:
    """Mend one log with leftovers: unfinished finishing, missing letters, a file that is gone, or nothing in it."""
    with suppress(FileNotFoundError), LockedBatch(store, batch, finishing.WAIT_S) as locked:
        log, replay_state = locked.log, locked.replay_state
        log.name = log.name or name
        if name is None:
            log.lines, log.is_named_so = None, False  # what this process has read does not prove that it is there
        record_times.correct_time(locked)
        if replay_state.opened and not replay_state.remaining:
            if finishing.finish(locked):
                report.finished += 1
            elif replay_state.done[DEAD]:  # a task was inserted a moment ago, and the letters do not wait for that
                report.letters_added += finishing.write_missing_letters(locked)
        elif locked.read_lines() is None and not publish_again(locked):
            if not replay_state.opened:
                finishing.retire(locked)
                report.finished += 1
            else:
                report.finished += finishing.bury_lost(locked)
        elif not replay_state.opened and log.name is not None and log.name.is_open:
            if not _may_get_inserts(store, batch):
                _end_empty(locked, report)
        else:
            if replay_state.done[DEAD]:
                report.letters_added += finishing.write_missing_letters(locked)
            if name is not None and is_late(replay_state, name):
                target = name.at(replay_state.next_time() or 0)
                log.name = name
                locked.append_move(record_times.next_at(locked), name, target)
                report.renamed += locked.rename_task_file(target)
                store.doorbell.ring()


def publish_again(locked: LockedBatch) -> bool:
    """Publish a task file again that is in staging though a worker leased from it. Return whether there was one.

    A power loss leaves that, if it came before the inserter had synced the name.
    """
    store, log = locked.store, locked.log
    staged = [str(name) for name in staging.files(store, log.layout) if name.batch == log.batch]
    published = any(staging.publish_named(store, log.layout, name) for name in staged)
    if published:
        store.doorbell.ring()
    return published


def write_letters(store: Store) -> None:
    """Write the dead letters that are still missing, because the disk was full or a lock busy; best effort."""
    known: set[str] | None = None
    refused = Refusals()
    for batch in listing.with_logs(store):
        try:
            replay_state = listing.read_present_state(store, batch)
            if replay_state is None or not replay_state.done[DEAD]:
                continue
            known = known or deadletters.Ids(store).known()
            dead = (names.task_id(batch, index) for index, state in enumerate(replay_state.state) if state == DEAD)
            if not known.issuperset(dead):
                mend(store, batch, None, GcReport())
        except OSError as error:
            let_out(error)
            refused.add(error)
        except LockTimeout as error:
            logger.warning("dead letters of batch %s of %s are not written yet: %s", batch, store.path, error)
    refused.warn(
        lambda count: f"could not write the dead letters of {counted(count, 'batch', 'batches')} of {store.path} yet"
    )


def _staging(store: Store, report: GcReport) -> None:
    """Reap what dead writers staged, proposed or wrote as ballots.

    Where something else stands in a file's place, leave all that it may concern: fsck tells of it.
    """
    layout = store.layout
    for identity in commits.proposals(store, layout):
        with PassingOverStrays():
            if is_abandoned(store, layout.proposal(identity)):
                commits.end_proposal(store, layout, identity)
    for text in store.fs.names(layout.commits):
        with PassingOverStrays():
            reap_ballot(store, text)
    for text in store.fs.names(layout.staging):
        with PassingOverStrays():
            if names.parse_attempt(text) or names.is_gone(text):
                report.attempts_reaped += reap_attempt(store, text)
            else:
                report.staged_reaped += reap_staged(store, text)


def reap_ballot(store: Store, text: str) -> bool:
    """Remove a ballot whose author died before it proposed; one that lives is told, and can publish again."""
    identity = names.parse_ballot_file(text)
    if identity is None or not is_abandoned(store, store.layout.ballot(identity)):
        return False
    return not store.fs.exists(store.layout.proposal(identity)) and store.fs.unlink(store.layout.ballot(identity))


def reap_attempt(store: Store, text: str) -> bool:
    """Remove what was staged for a commit and not added to for a week, or applied, or what is left of that."""
    layout, attempt = store.layout, names.parse_attempt(text)
    path = f"{layout.staging}/{text}"
    try:
        if attempt is None:
            return names.is_gone(text) and commits.drop(store, path)
        return is_abandoned(store, path, ATTEMPT_AGE_S) and commits.reap(store, layout, *attempt)
    except (StorageError, FileNotFoundError) as error:  # a lock is busy, a record damaged, or another was faster
        logger.warning("%s is left as it is: %s", path, error)
        return False


def is_abandoned(store: Store, path: str, age_s: float = STAGED_AGE_S) -> bool:
    """Return whether a file is so old that only a writer that has it locked can still use it; False if it is gone."""
    try:
        return store.fs.stat(path).st_mtime <= store.clock.now_ms() / 1000 - age_s
    except OSError as error:
        let_out(error)
        return False


def reap_staged(store: Store, text: str) -> bool:
    """Reap an old staged file whose writer is dead: lock first, then look whether any record names it.

    Only task files, probes of the clock, and files that are to replace another are staged as files. A file with another
    name is not fsqueue's.
    """
    name, path = names.parse_task_file(text), f"{store.layout.staging}/{text}"
    if (name is None and not names.is_passing(text)) or not is_abandoned(store, path):
        return False
    try:
        fd = store.fs.look(path, os.O_RDWR)
    except OSError as error:
        let_out(error)
        return False
    with store.fs.closing(fd):
        if name is not None and listing.read_present_state(store, name.batch) is not None:
            return False  # it was published once: see `publish_again`
        if store.fs.try_lock(fd) and store.fs.same_file(fd, path) and text not in retrying.staged_names(store):
            return store.fs.unlink(path)
        return False


def reap_successors(store: Store) -> int:
    """Remove files that were to replace files of dead letters, and whose authors died a day ago; return how many."""
    return letter_files.reap_successors(store, lambda path: is_abandoned(store, path))


def generations(store: Store, report: GcReport) -> None:
    """Move earlier generations that a purge left in place into the trash.

    The look at `queue.jsonl` after the listing proves that they were listed in this queue, and not in its successor.
    """
    found = store.fs.names(store.path)
    store.refresh(now=True)
    for text in found:
        if (generation := over(store, text)) is not None:
            report.generations_trashed += trash.discard(store, store.path, generation)


def over(store: Store, name: str) -> Generation | None:
    """Return a generation of this queue that no process reads any more; None if the name is not that of one."""
    generation = names.parse_generation(name)
    if generation is None or generation[1] != store.queue_state.id or generation[0] >= store.queue_state.generation:
        return None
    return names.generation(*generation)


def reap_doctors(fs: Filesystem, directory: str, now_s: float) -> int:
    """Remove what killed doctors of this user left in `directory` a day ago; how many of their places and files went.

    What proves that is said in `doctorplaces.reap`.
    """
    found = [name for name in fs.names(directory) if is_doctor_directory(name)]
    if not found:
        return 0
    try:
        with OpenDirectory.at(directory) as held:
            return doctorplaces.reap(held, found, now_s)
    except OSError as error:
        let_out(error)
        logger.warning("what killed doctors left in %s could not be reaped: %s", directory, error)
        return 0


def reap_results(store: Store) -> int:
    """Remove what this user's killed workers left of results, on any host; how many private directories went."""
    try:
        return result_paths.reap(store.fs, store.layout.results, store.clock.now_ms() / 1000)
    except OSError as error:
        let_out(error)
        logger.warning("what killed workers left in %s could not be reaped: %s", store.layout.results, error)
        return 0


def _day_before(store: Store, days: int) -> str:
    """Return the day that was `days` days ago."""
    return time.strftime("%Y-%m-%d", time.gmtime(max(0, store.clock.now_ms() / 1000 - days * 86_400)))


def _payloads(store: Store, keep: Keep, report: GcReport) -> None:
    """Remove the task files of days that are too old, or that are too many bytes together with the later ones.

    Files are asked for their sizes only if they may be too many bytes by what their names tell.
    """
    today = _day_before(store, 0)
    days = keep.payload_days if keep.history_days is None else min(keep.payload_days, keep.history_days)
    oldest, size, there = _day_before(store, days), 0, payloads.days(store)
    going = [day for day in there if day < oldest]
    staying = [day for day in reversed(there) if day >= oldest]
    if sum(payloads.most_bytes_of(store, day) for day in staying) > keep.payload_bytes:
        for day in staying:
            size += payloads.bytes_of(store, day)
            if size > keep.payload_bytes and day < today:
                going.append(day)
    for day in going:
        report.payload_days_removed += trash.discard(store, store.layout.payload_days, day)


def _history(store: Store, keep_days: int, report: GcReport) -> None:
    oldest = _day_before(store, keep_days)
    for day in history.days(store):
        if day < oldest and trash.discard(store, store.layout.history_days, day):
            report.history_days_removed += 1
