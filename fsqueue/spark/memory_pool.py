"""Arrow's memory, while record batches come and go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa


@contextmanager
def system_pool() -> Iterator[None]:
    """Have Arrow take its memory from the C library for the length of a `with` block.

    Arrow's default pool gives the buffers of each record batch back to the kernel, and gets pages full of zeros for
    the next one. Those page faults took a quarter of a read's CPU time (docs/decisions/0029-the-way-through-arrow.md).
    """
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)
