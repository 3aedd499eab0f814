"""Record batches on their way: taken from Spark while those before them are still being written and synced.

A Spark task and its Python worker share a socket, which holds much less than a record batch. While the worker waits
for a sync, Spark would wait, too.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from fsqueue.filesystem.side_threads import SideThread

AHEAD_BYTES = 16 << 20
"""Bytes of record batches that the thread takes ahead; a sync of one group of files takes no longer."""


class _Taker(SideThread):
    """Takes record batches from an iterator. `changed` guards what both threads use."""

    def __init__(self, given: Iterator[pa.RecordBatch]) -> None:
        super().__init__("fsqueue-ahead")
        self.given = given
        self.changed = threading.Condition()
        self.ready: deque[pa.RecordBatch] = deque()
        self.size = 0
        self.error: BaseException | None = None
        self.is_done = self.is_stopped = False

    def run(self) -> None:
        try:
            for batch in self.given:
                with self.changed:
                    self.ready.append(batch)
                    self.size += batch.nbytes
                    self.changed.notify()
                    self.changed.wait_for(lambda: self.size < AHEAD_BYTES or self.is_stopped)
                    if self.is_stopped:
                        return
        except BaseException as error:  # raised where the batches are used
            self.error = error
        finally:
            with self.changed:
                self.is_done = True
                self.changed.notify()

    def next(self) -> pa.RecordBatch | None:
        """Return the next record batch; None at the end."""
        with self.changed:
            self.changed.wait_for(lambda: self.ready or self.is_done)
            if not self.ready:
                return None
            batch = self.ready.popleft()
            self.size -= batch.nbytes
            self.changed.notify()
            return batch

    def stop(self) -> None:
        """Have the thread end. It does not wait for that: Spark may take long to send what the thread waits for."""
        with self.changed:
            self.is_stopped = True
            self.changed.notify()


def ahead(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what an iterator yields, taken by a thread that is up to AHEAD_BYTES ahead. Its error comes in its place.

    Without a further thread, if the system has none to give, everything is taken one after the other.
    """
    taker = _Taker(given)
    try:
        taker.start()
    except OSError:
        yield from given
        return
    try:
        while (batch := taker.next()) is not None:
            yield batch
    finally:
        taker.stop()
    if taker.error is not None:
        raise taker.error


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
