"""Rare verbs on a whole queue: create, purge, delete, release all (DESIGN section 4)."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fsqueue import inspection, jsonl, layout, names, overwriting, revoking, upkeep
from fsqueue.clock import Clock, Entropy
from fsqueue.errors import FULL, FsqueueError, LockTimeout, NotAQueue, QueueExists, UnsafeFilesystem
from fsqueue.filesystem import Filesystem, Mount, mount_of
from fsqueue.identity import job_of
from fsqueue.layout import Fate, Settings
from fsqueue.ledger import LEASED, Ledger
from fsqueue.store import Store, discard


def create(path: str, settings: Settings, *, exist_ok: bool, allow_unsafe: bool) -> None:
    """Make a queue: a complete `queue.jsonl` is written aside and linked to its name, which decides.

    A crash before the link leaves an empty directory, or one with a leftover that starts with
    `.new-`; creating again goes on from there. A deleted queue that is still in place is moved away.
    """
    mount = mount_of(path)
    fs = Filesystem(path, shared=mount.shared)
    clock, entropy = Clock(), Entropy()
    try:
        is_new = not fs.exists(path)
        fs.make_root()
    except (FileExistsError, NotADirectoryError):
        raise NotAQueue(f"{path} is a file, or lies below one. Choose another path; nothing was changed.") from None
    if "queue.jsonl" in fs.names(path) and layout.read_fate(fs.read(layout.settings_file(path)), path).closed:
        move_away(fs, path, clock, entropy)
        fs.make_root()
    present = [name for name in fs.names(path) if not layout.is_passing(name)]
    if "queue.jsonl" in present:
        if exist_ok:
            _sync_name(fs, path)
            return
        raise QueueExists(
            f"There is a queue at {path} already. Use it as it is (exist_ok=True, --exist-ok), or choose another path."
        )
    if present:
        raise NotAQueue(
            f"{path} is not empty ({present[0]!r} is in it) and holds no queue. Choose a new path; nothing was changed."
        )
    if not allow_unsafe:
        try:
            check(fs, mount, path, clock, entropy)
        except UnsafeFilesystem:
            if is_new:
                fs.remove_directory(path)
            raise
    fresh = f"{path}/.new-{entropy.hex16()}"
    fd = fs.create(fresh)
    try:
        fs.write_all(fd, layout.birth_record(settings, entropy.hex16(), clock.now_ms()))
        fs.fsync(fd)
        fs.link(fresh, layout.settings_file(path))
    except FileExistsError:
        if not exist_ok:
            raise QueueExists(
                f"Another process created a queue at {path} just now. Open it with Queue(path)."
            ) from None
    finally:
        fs.close(fd)
        fs.unlink(fresh)
    _sync_name(fs, path)


def _sync_name(fs: Filesystem, path: str) -> None:
    """Make durable that there is a queue; whoever created it may not have come so far."""
    fs.sync_directory(path)
    try:
        fs.sync_directory(path.rpartition("/")[0] or "/")
    except PermissionError:
        pass  # the directory that holds the queue is another's matter


def check(fs: Filesystem, mount: Mount, directory: str, clock: Clock, entropy: Entropy) -> None:
    """Refuse a mount that is known to be unfit, or on which one of the quick probes fails."""
    from fsqueue.doctor import mountadvice, probes, verdicts

    findings = [mountadvice.about(mount)]
    if findings[0].verdict != verdicts.UNFIT:
        findings += probes.quick(probes.Bench(fs, f"{directory}/.new-", clock, entropy))
    unfit = [finding for finding in findings if finding.verdict == verdicts.UNFIT]
    if unfit:
        what = " ".join(f"{finding.probe.capitalize()}: {finding.seen} {finding.advice}" for finding in unfit)
        raise UnsafeFilesystem(
            f"{mount.point} ({mount.kind}) cannot keep a queue's promises. {what} No queue was created; "
            f"'fsqueue doctor {directory}' tells more. To create it all the same: allow_unsafe=True, --allow-unsafe."
        )


def purge(store: Store) -> None:
    """Begin the next generation: first in `queue.jsonl`, in place and synced, so that inserters who
    publish into the old tree read it there; then the old tree is renamed into the queue's trash.

    A crash in between leaves the old tree where it is; upkeep moves it.
    """
    store.refresh(now=True)
    old, fs = store.fate, store.fs
    with _settings(fs, store.path, store.clock, store.entropy) as (fd, fate):
        if fate == old:  # else somebody else purged or deleted it just now
            begun = fate.generation + 1
            overwriting.clear(store, f"{store.path}/{names.generation(begun, fate.id)}")
            jsonl.append(fs, fd, layout.generation_record(begun, store.clock.now_ms()), True)
    try:
        upkeep.to_trash(store, f"{store.path}/{old.directory}")
    except OSError as error:  # it is purged all the same
        upkeep.logger.warning("what was purged from %s is still there (%s); 'fsqueue gc' moves it", store.path, error)
    store.refresh(now=True)
    store.ring()
    reap_later(fs, store.layout.trash)


def delete(store: Store, wait: bool) -> None:
    """Mark the queue as closed, then rename its directory into the trash beside it, to be reaped.

    A crash after the mark leaves a directory that counts as deleted, and that opening or creating a
    queue there moves away. Deleting must work on a full disk, too: there the mark may be missing, but
    nobody can insert anything either.
    """
    store.refresh(now=True)
    outside, trash = outside_of(store.fs, store.path)
    if not outside.may_move(store.path):  # before the mark: else it would be deleted, and stay where it is
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), outside.root)
    try:
        with _settings(store.fs, store.path, store.clock, store.entropy) as (fd, fate):
            if fate.id == store.fate.id and not fate.closed:
                jsonl.append(store.fs, fd, layout.closed_record(store.clock.now_ms()), True)
    except OSError as error:
        if error.errno not in FULL:
            raise
    store.close_logs()
    move_away(store.fs, store.path, store.clock, store.entropy, store.fate.id)
    if wait:
        upkeep.reap_trash(outside, trash)
    else:
        reap_later(outside, trash)


def finish_deletion(path: str) -> None:
    """Move a closed queue away that its deleter left in place; if we may not, it stays closed."""
    try:
        move_away(Filesystem(path, shared=mount_of(path).shared), path, Clock(), Entropy())
    except (OSError, FsqueueError) as error:
        upkeep.logger.info("the deleted queue %s is still in place: %s", path, error)


def outside_of(fs: Filesystem, path: str) -> tuple[Filesystem, str]:
    """The directory that holds a queue, and the trash in it."""
    trash = layout.group_trash(path)
    return Filesystem(trash.rpartition("/")[0] or "/", shared=fs.shared), trash


def move_away(fs: Filesystem, path: str, clock: Clock, entropy: Entropy, queue_id: str | None = None) -> None:
    """Rename a closed queue's directory into the trash beside it, or that of the queue with this id (a full disk may
    have no room for the mark). Under the lock of its `queue.jsonl`: else it might be another's that was created since.
    """
    outside, trash = outside_of(fs, path)
    try:
        with _settings(fs, path, clock, entropy) as (_, fate):
            if fate.closed or fate.id == queue_id:
                discard(outside, path, trash, entropy)
    except FileNotFoundError:
        pass  # somebody else did


def reap_later(fs: Filesystem, trash: str) -> None:
    """Reap a trash in a thread that does not keep the process alive; what it leaves goes with the next reaping."""
    threading.Thread(target=upkeep.reap_trash, args=(fs, trash), name="fsqueue-reaper", daemon=True).start()


@contextmanager
def _settings(fs: Filesystem, path: str, clock: Clock, entropy: Entropy) -> Iterator[tuple[int, Fate]]:
    """`queue.jsonl`, locked, and what it says now; FileNotFoundError if there is none."""
    with jsonl.held(fs, clock, entropy, layout.settings_file(path), flags=os.O_APPEND) as fd:
        yield fd, layout.read_fate(fs.read_from(fd, 0), path)


def release_all(store: Store, worker: str | None, host: str | None, slurm_job: str | None, offline: bool) -> int:
    """End the leases of matching workers: on a host or Slurm's node, in a Slurm job or an element of an array."""

    def chosen(ledger: Ledger, index: int) -> bool:
        holder = ledger.holder[index]
        info = (holder.worker if holder is not None else None) or {}
        return (
            (worker is None or str(info.get("name")) == worker)
            and (host is None or host in (str(info.get("host")), str(info.get("slurm_node"))))
            and (slurm_job is None or slurm_job in (str(info.get("slurm_job")), job_of(info)))
        )

    return release(store, chosen, offline)


def release(store: Store, chosen: Callable[[Ledger, int], bool], offline: bool = False) -> int:
    """End the chosen leases in every batch at work. What stays busy is named after the rest is done."""
    store.refresh(now=True)
    released, busy = 0, []
    for shard in inspection.shards(store):
        for batch in inspection.logs(store, shard):
            ledger = inspection.read_ledger(store, batch)
            if ledger is None or not any(lease_holds(ledger, index, chosen) for index in range(ledger.count)):
                continue
            try:
                released += revoking.revoke(store, batch, chosen, 0.0 if offline else jsonl.LOCK_TIMEOUT_S)
            except LockTimeout:
                busy.append(batch)
    store.ring()
    if busy:
        what = (
            "somebody is working on them, so do it without 'offline'"
            if offline
            else "their lock holders are stopped or cut off; repeat later"
        )
        raise LockTimeout(
            f"{released} leases were released, but {len(busy)} batches stayed locked ({busy[0]}, ...): {what}."
        )
    return released


def lease_holds(ledger: Ledger, index: int, chosen: Callable[[Ledger, int], bool]) -> bool:
    """Whether a task is leased, in time or not, by somebody chosen."""
    return ledger.holder[index] is not None and ledger.state[index] == LEASED and chosen(ledger, index)
