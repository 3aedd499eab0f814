"""Begin an insert anew if what it needed has gone (docs/design.md, section 4.2).

A purge, a new epoch of keys, or a cleaner of scratch space has removed it. Nothing of the insert is in the queue then,
unless its caller knows better.
"""

from __future__ import annotations

from fsqueue.filesystem import is_gone
from fsqueue.format.layout import KeyEpochs, Layout
from fsqueue.storage.store import Store

TRIES = 20
"""Maximum number of times that an insert begins anew. A purge, a new epoch, a cleaner, and a batch that another process
has filled, sealed or locked each take one. More of them in a row are a fault, and the caller must hear of it."""


def is_overtaken(store: Store, error: OSError, layout: Layout, epochs: KeyEpochs | None = None) -> bool:
    """Read `queue.jsonl` again after an error. Return whether the generation of `layout`, or `epochs`, has ended.

    False if a file is missing all the same. Any other error is raised: of ESTALE in a generation that goes on it is not
    known what was done.
    """
    if not is_gone(error):
        raise error
    store.refresh(now=True)
    if store.layout is not layout or epochs not in (None, store.queue_state.key_epochs):
        return True
    if not isinstance(error, FileNotFoundError):
        raise error
    return False
