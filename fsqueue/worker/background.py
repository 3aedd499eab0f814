"""Threads beside the loop of a worker. If one dies of anything unexpected, the worker ends."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from fsqueue import forks
from fsqueue.errors import said
from fsqueue.filesystem.side_threads import SideThread

logger = logging.getLogger("fsqueue")


def end_in_child(depth: int) -> None:
    """End this process at once unless `forks.depth` is still `depth`: user code has forked, and this is its child.

    It has none of its parent's other threads, and no business with its tasks. So nothing is flushed, and no handler of
    the exit is called: these would act for the parent.
    """
    if forks.depth != depth:
        os._exit(0)


Died = Callable[[str, BaseException], object]
"""How the loop is told that a thread has died: its name, and what it died of. Called in that thread."""


class BackgroundThread(SideThread):
    """Run `work`, and tell `died` if it raises: the loop would otherwise wait for ever for its answer."""

    def __init__(self, name: str, died: Died, work: Callable[[], object] | None = None) -> None:
        super().__init__(f"fsqueue-{name}")
        self._died, self._work = died, work or self.work

    def run(self) -> None:
        depth = forks.depth
        try:
            self._work()
        except BaseException as error:  # also SystemExit, and what is no Exception
            end_in_child(depth)
            self._died(self.name, error)

    def work(self) -> None:
        """Do the work of the thread."""
        raise NotImplementedError


def obituary(name: str, error: BaseException) -> RuntimeError:
    """Return the error that tells the worker's user which thread died of what; log where it happened."""
    logger.debug("the thread %s of a worker died", name, exc_info=error)
    told = RuntimeError(
        f"the worker's thread {name} died ({said(error)}); what the worker held was put back, or "
        "comes back when its leases end"
    )
    told.__cause__ = error
    return told
