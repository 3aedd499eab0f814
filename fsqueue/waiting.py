"""Waiting for tasks, easy on the file server: a look at the doorbell instead of a listing (DESIGN section 6)."""

from __future__ import annotations

from collections.abc import Callable

from fsqueue.leasing import Leaser
from fsqueue.task import LeasedTask

BELL_S = (0.1, 6.0)
"""Shortest and longest pause between two readings of the doorbell."""
SWEEP_S = 600.0
"""After so long an idle worker lists everything although nobody rang (the bell is a hint)."""


class Vigil:
    """A lessee's looks at one queue, again and again: they cost little as long as nothing has changed. One thread's."""

    def __init__(self, leaser: Leaser, lease_ms: int, strict: bool = False) -> None:
        self._leaser, self._lease_ms, self._strict = leaser, lease_ms, strict
        self._idle = False
        """Whether the last look was in vain."""
        self._heard = b""
        self._swept = 0.0

    def look(self, n: int) -> list[LeasedTask]:
        """Up to `n` tasks. The first [] says that nothing was available; those after it, that nothing told of more.

        QueueNotFound if the queue was deleted meanwhile.
        """
        leaser, store = self._leaser, self._leaser.store
        if self._idle:
            now, ring = store.clock.monotonic(), store.heard()
            if not ring:
                leaser.begin(now=True)  # nobody ever rang; or the queue was deleted
            if ring == self._heard and now - self._swept <= SWEEP_S * (0.75 + store.entropy.random() / 2):
                due = leaser.selection.due(store.clock.now_ms())
                got = leaser.from_shards(due, n, self._lease_ms) if due else []
            else:
                self._heard, self._swept = ring, now
                got = leaser.lease(n, self._lease_ms, self._strict)
        else:
            got = leaser.lease(n, self._lease_ms, self._strict)
            if not got:
                self._heard = store.heard()  # and look again, for what came between the look and the bell
                got = leaser.lease(n, self._lease_ms, self._strict)
                self._swept = store.clock.monotonic()
        self._idle = not got
        return got

    def due_s(self) -> float:
        """In how many seconds something will be available that was seen and not available yet."""
        return (self._leaser.selection.earliest() - self._leaser.store.clock.now_ms()) / 1000 + 0.002


def wait(
    leaser: Leaser,
    n: int,
    lease_ms: int,
    wait_s: float,
    strict: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> list[LeasedTask]:
    """Like `Leaser.lease`, but waits up to `wait_s` seconds for tasks, or until `stop()`."""
    clock, random = leaser.store.clock, leaser.store.entropy.random
    deadline = clock.monotonic() + wait_s
    vigil = Vigil(leaser, lease_ms, strict)
    got = vigil.look(n)
    pause = BELL_S[0]
    while not got and clock.monotonic() < deadline and not stop():
        nap = pause * (0.75 + random() / 2)
        clock.sleep(max(0.001, min(nap, vigil.due_s(), deadline - clock.monotonic())))
        got = vigil.look(n)
        pause = min(pause * 1.3, BELL_S[1])
    return got
