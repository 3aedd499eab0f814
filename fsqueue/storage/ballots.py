"""Write and withdraw a commit's ballot (docs/design.md, section 4.3).

The ballot is a copy of the commit's proposal. Linking the ballot to the record's name decides the commit. Both are in
one directory, since BeeGFS before version 8 and some FUSE filesystems refuse a link between directories.
"""

from __future__ import annotations

from fsqueue.format.layout import Layout
from fsqueue.format.names import Uuid
from fsqueue.storage.store import Store


def cast(store: Store, layout: Layout, identity: Uuid, content: bytes) -> None:
    """Write the ballot of a proposal, complete and synced, before the proposal."""
    fs = store.fs
    fd = store.making_generation(lambda: fs.create(layout.ballot(identity)))
    try:
        fs.write_all(fd, content)
        if store.sync_inserts:
            fs.fsync(fd)
    finally:
        fs.close(fd)


def withdraw(store: Store, layout: Layout, identity: Uuid) -> None:
    """Remove a proposal and its ballot. Remove the ballot first: a late link then finds nothing to link.

    In the other order, a crash could leave the ballot alone. A client that was cut off could still link it, and no
    proposal would lead others to that decision.
    """
    store.fs.unlink(layout.ballot(identity))
    store.fs.unlink(layout.proposal(identity))
