"""Close files that are open only to save time, once the system has no descriptor left (docs/design.md, section 4.7).

What keeps such files open adds what closes them. The filesystem layer calls it after an open that was refused, and
tries that once more. So nothing is asked for as long as there are descriptors.
"""

from __future__ import annotations

import resource
from collections.abc import Callable

from fsqueue.errors import NO_DESCRIPTORS

_closers: list[Callable[[], object]] = []


def add(close: Callable[[], object]) -> None:
    """Add what closes idle files. Any thread may call it, in any section: it must open nothing, and wait for nobody."""
    _closers.append(close)


def make_room(error: OSError) -> bool:
    """Close idle files if a call was refused for want of descriptors. Return whether to make the call once more."""
    if error.errno not in NO_DESCRIPTORS:
        return False
    for close in _closers:
        close()
    return True


def share(part: int, most: int) -> int:
    """Return one in `part` of the descriptors that this process may have, or 2; `most` at most."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if limit == resource.RLIM_INFINITY else min(most, max(2, limit // part))
