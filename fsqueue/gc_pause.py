"""Python's garbage collector, while many values are made at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pause the collector, which looks for cycles of references, for the length of a `with` block.

    The values of a record batch are thousands of lists and dictionaries without cycles. To search them again and again
    takes longer than to make them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
