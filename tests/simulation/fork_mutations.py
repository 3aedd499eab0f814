"""Locks that a forked child would keep, since its parent only closes the file: broken on purpose."""

from __future__ import annotations

from tests.simulation.mutations import Mutation

MUTATIONS = [
    Mutation(
        "the lock of a staged file is closed, and not given back",
        "a child has the file open, too: its lock stays taken, and upkeep takes the file's inserter for alive",
        "fork",
        (("Staged.close", "store.fs.end_lock(fd)", ""),),
    ),
    Mutation(
        "a log that is dropped is closed, and not unlocked",
        "a child has the log open, too: nobody gets on with the batch as long as it lives",
        "fork",
        (("Log.discard", "if not inherited: ...", "if False: ..."),),
    ),
    Mutation(
        "the lock of a key's file is closed, and not given back",
        "a child has the file open, too: nobody inserts with the key as long as it lives",
        "keyed-fork",
        (("keys.locked", "fs.end_lock(fd)", ""),),
    ),
]
