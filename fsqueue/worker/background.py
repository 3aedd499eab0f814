"""Threads beside the loop of a worker. If one dies of anything unexpected, the worker ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from fsqueue.errors import said

logger = logging.getLogger("fsqueue")

Died = Callable[[str, BaseException], object]
"""How the loop is told that a thread has died: its name, and what it died of. Called in that thread."""


class BackgroundThread(threading.Thread):
    """Run `work`, and tell `died` if it raises: the loop would otherwise wait for ever for its answer."""

    def __init__(self, name: str, died: Died) -> None:
        super().__init__(name=f"fsqueue-{name}", daemon=True)
        self._died = died

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # also SystemExit, and what is no Exception
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
