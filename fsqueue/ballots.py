"""A commit's ballot: the copy of its proposal that is linked to the record's name (docs/design.md, "named commit").

It lies in the directory in which it is decided. BeeGFS before version 8, and some FUSE filesystems, refuse a link from
one directory into another.
"""

from __future__ import annotations

from fsqueue.layout import Layout
from fsqueue.names import Uuid
from fsqueue.store import Store


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
    """Take back a proposal, or clear it up. The ballot goes first: a late link finds nothing to link then.

    The other way round, a crash would leave a ballot that a cut-off client may still link, without a proposal that
    leads to the decision.
    """
    store.fs.unlink(layout.ballot(identity))
    store.fs.unlink(layout.proposal(identity))
