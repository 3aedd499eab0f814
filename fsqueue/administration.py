"""Rare verbs on a whole queue: create, purge, delete, release all (DESIGN section 4)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from fsqueue import inspection, jsonl, layout, names, transitions, upkeep
from fsqueue.clock import Clock, Entropy
from fsqueue.errors import LockTimeout, NotAQueue, QueueExists, QueueNotFound, UnsafeFilesystem
from fsqueue.filesystem import Filesystem, mount_of
from fsqueue.layout import Settings
from fsqueue.ledger import Ledger
from fsqueue.store import Store


def create(path: str, settings: Settings, *, exist_ok: bool, allow_unsafe: bool) -> None:
    """Make a queue: a complete `queue.jsonl` is written aside and linked to its name, which decides.

    A crash before the link leaves an empty directory, or one with a leftover that starts with
    `.new-`; creating again goes on from there.
    """
    fs = Filesystem(path, shared=mount_of(path).shared)
    clock, entropy = Clock(), Entropy()
    fs.make_root()
    present = [name for name in fs.names(path) if not name.startswith(".")]
    if "queue.jsonl" in present:
        layout.read_fate(fs.read(layout.settings_file(path)), path)
        if exist_ok:
            return
        raise QueueExists(
            f"There is a queue at {path} already. Open it with Queue(path), pass exist_ok=True, or choose another path."
        )
    if present:
        raise NotAQueue(
            f"{path} is not empty ({present[0]!r} is in it) and holds no queue. Choose a new path; nothing was changed."
        )
    if not allow_unsafe:
        check_locks(fs, f"{path}/.new-{entropy.hex16()}")
    fresh = f"{path}/.new-{entropy.hex16()}"
    fd = fs.create(fresh)
    try:
        fs.write_all(fd, layout.birth_record(settings, clock.now_ms()))
        fs.fsync(fd)
        fs.link(fresh, layout.settings_file(path))
    except FileExistsError:
        if not exist_ok:
            raise QueueExists(
                f"A queue was created at {path} just now by another process. Open it with Queue(path)."
            ) from None
    finally:
        fs.close(fd)
        fs.unlink(fresh)
    fs.sync_directory(path)
    fs.sync_directory(path.rpartition("/")[0] or "/")
    fs.overwrite(f"{path}/doorbell", entropy.bytes16())


def check_locks(fs: Filesystem, probe: str) -> None:
    """Refuse a filesystem without file locks, or on which two open files of one process do not exclude each other."""
    first = fs.create(probe)
    try:
        second = fs.look(probe, os.O_RDWR)
        try:
            excluded = fs.try_lock(first) and not fs.try_lock(second)
        finally:
            fs.close(second)
    finally:
        fs.close(first)
        fs.unlink(probe)
    if not excluded:
        mount = mount_of(probe)
        raise UnsafeFilesystem(
            f"Locks do not exclude on {mount.point} ({mount.kind}): two openings of one file could both lock it. "
            "Use another filesystem, or ask for the mount option that makes file locks work (Lustre: flock)."
        )


def purge(store: Store) -> None:
    """Begin the next generation: first in `queue.jsonl`, in place and synced, so that inserters who
    publish into the old tree read it there; then the old tree is renamed into the queue's trash.

    A crash in between leaves the old tree where it is; upkeep moves it.
    """
    store.refresh(now=True)
    old = store.fate
    with _settings(store) as fd:
        fate = layout.read_fate(store.fs.read_from(fd, 0), store.path)
        if fate.generation == old.generation:  # else somebody else purged just now: that was it
            jsonl.append(store.fs, fd, layout.generation_record(fate.generation + 1, store.clock.now_ms()), True)
    upkeep.to_trash(store, f"{store.path}/{old.directory}")
    store.refresh(now=True)
    store.ring()
    reap_later(store.fs, store.layout.trash)


def delete(store: Store, wait: bool) -> None:
    """Mark the queue as closed, then rename its directory into the trash beside it, to be reaped."""
    store.refresh(now=True)
    with _settings(store) as fd:
        jsonl.append(store.fs, fd, layout.closed_record(store.clock.now_ms()), True)
    store.close_logs()
    trash = layout.group_trash(store.path)
    fs = Filesystem(trash.rpartition("/")[0], shared=store.fs.shared)
    fs.make_directory(trash)
    name = store.path.rpartition("/")[2]
    if not fs.rename(store.path, f"{trash}/{name}-{store.entropy.hex16()}"):
        raise QueueNotFound(f"The queue {store.path} was deleted by another process just now.")
    if wait:
        upkeep.reap_trash(fs, trash)
    else:
        reap_later(fs, trash)


def reap_later(fs: Filesystem, trash: str) -> None:
    """Reap a trash in a thread that does not keep the process alive; what it leaves goes with the next reaping."""
    threading.Thread(target=upkeep.reap_trash, args=(fs, trash), name="fsqueue-reaper", daemon=True).start()


def _settings(store: Store) -> AbstractContextManager[int]:
    return jsonl.locked(store.fs, store.clock, store.entropy, store.layout.settings_file)


def release_all(store: Store, worker: str | None, host: str | None, slurm_job: str | None, offline: bool) -> int:
    """End the leases of matching workers in every batch at work. What stays busy is named after the rest is done."""
    store.refresh(now=True)
    wanted = {
        key: value for key, value in (("name", worker), ("host", host), ("slurm_job", slurm_job)) if value is not None
    }

    def chosen(ledger: Ledger, index: int) -> bool:
        holder = ledger.holder[index]
        info = (holder.worker if holder is not None else None) or {}
        return all(str(info.get(key)) == str(value) for key, value in wanted.items())

    released, busy = 0, []
    for shard in inspection.shards(store):
        for text in store.fs.names(f"{store.layout.logs}/{shard}"):
            batch = names.parse_log_file(text)
            ledger = inspection.read_ledger(store, batch) if batch else None
            if (
                batch is None
                or ledger is None
                or not any(lease_holds(ledger, index, chosen) for index in range(ledger.count))
            ):
                continue
            try:
                released += transitions.revoke(store, batch, chosen, 0.0 if offline else jsonl.LOCK_TIMEOUT_S)
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
    return ledger.holder[index] is not None and ledger.state[index] == 1 and chosen(ledger, index)
