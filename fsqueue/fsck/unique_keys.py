"""Check that keys are unique: a living task with a key is the one that the key's file names (docs/format.md, "Keys").

Of two living tasks with one key the file names one at most. So a look at each task's own key finds both, in bounded
memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from fsqueue.format import keys as format_keys
from fsqueue.format import movements, names, sparse
from fsqueue.format.keys import KeyClaim
from fsqueue.format.names import Batch, Shard
from fsqueue.format.replay import ReplayState
from fsqueue.fsck.findings import Suspect, found
from fsqueue.fsck.repair import OPEN, WAIT_S
from fsqueue.interruptions import suppress
from fsqueue.storage import keys
from fsqueue.storage.store import Store

MARK = b'"key":'
"""What is in the line of each task with a key."""


class Keyed(NamedTuple):
    """A living task with a key: `insert` is the id of its record."""

    key: str
    batch: Batch
    place: int
    insert: str

    def is_named_by(self, claim: KeyClaim | None) -> bool:
        """Return whether a claim means this task."""
        return claim is not None and claim.batch == self.batch and claim.insert == self.insert


def check(store: Store, shard: Shard) -> Iterator[Suspect]:
    """Yield the tasks of a shard's batches that have a key, live, and are not named by the key's file.

    Tasks with keys are in logs: batches with their tasks in task files are not looked into.
    """
    layout = store.layout
    if all(names.parse_key_epoch(name) is None for name in store.fs.names(layout.base)):
        return
    batches = {
        name.batch
        for text in store.fs.names(f"{layout.tasks}/{shard}")
        if (name := names.parse_task_file(text)) is not None and name.inserted is not None
    }
    for batch in sorted(batches):
        for task in living(store, batch):
            path = _path(store, task.key)
            claim = _claim(store, task.key)
            if not task.is_named_by(claim):
                kind = "shared-key" if _lives(store, claim) else "unnamed-key"
                note = f"task {names.task_id(batch, task.place)}"
                yield Suspect(
                    found(store, kind, path, 1, note), partial(_again, store, task), partial(_name, store, task)
                )


def living(store: Store, batch: Batch) -> Iterator[Keyed]:
    """Yield the tasks of a batch that have keys and no outcome."""
    try:
        pieces = store.fs.read_pieces(store.layout.log(batch))
    except FileNotFoundError:
        return
    state = ReplayState()
    state.replay_pieces(pieces, 0)
    for offset, line, _ in sparse.lines(pieces, 0):
        record = movements.parse(line) if MARK in line and line.startswith(movements.INSERT) else None
        match record:
            case {"first": int(first), "id": str(identity), "key": str(key)} if not format_keys.fault(key):
                if state.places.get(first) == offset and state.state[first] in OPEN:
                    yield Keyed(key, batch, first, identity)


def _lives(store: Store, claim: KeyClaim | None) -> bool:
    """Return whether the task lives that a claim names."""
    return claim is not None and any(task.is_named_by(claim) for task in living(store, claim.batch))


def _again(store: Store, task: Keyed) -> bool:
    """Return whether the key's file still does not name a living task, under its lock: no process inserts meanwhile."""
    store.refresh(now=True)  # a key epoch may have begun
    with ExitStack() as stack:
        with suppress(FileNotFoundError, PermissionError):  # there is no file, or this user may only look
            stack.enter_context(keys.locked_existing(store, store.layout, _path(store, task.key), WAIT_S))
        return not task.is_named_by(_claim(store, task.key)) and _is_there(store, task)


def _path(store: Store, key: str) -> str:
    """Return the path of a key's file in the present epoch."""
    return store.layout.key(names.key_digest(key), store.queue_state.key_epochs.present)


def _claim(store: Store, key: str) -> KeyClaim | None:
    """Return the last claim of a key in the epochs that count."""
    layout, digest, epochs = store.layout, names.key_digest(key), store.queue_state.key_epochs
    claim = keys.read(store, layout.key(digest, epochs.present), key)
    if claim is None and epochs.earlier < epochs.present:
        claim = keys.read(store, layout.key(digest, epochs.earlier), key)
        return claim or keys.read(store, layout.key(digest, epochs.present), key)  # carried over meanwhile
    return claim


def _is_there(store: Store, task: Keyed) -> bool:
    return any((one.place, one.insert) == (task.place, task.insert) for one in living(store, task.batch))


def _name(store: Store, task: Keyed) -> None:
    """Name a task in its key's file, unless another task lives that the file names."""
    layout = store.layout
    with keys.locked(store, layout, task.key, WAIT_S) as key_file:
        claim = key_file.last(task.key) or keys.earlier(store, key_file, task.key, WAIT_S)
        if not task.is_named_by(claim) and _is_there(store, task) and not _lives(store, claim):
            key_file.add(KeyClaim(task.key, store.clock.now_ms(), task.batch, task.insert))
