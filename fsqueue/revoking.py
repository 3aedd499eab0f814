"""Leases that somebody else ends: taken away at once, or made to run out (docs/design.md, section 4.8)."""

from __future__ import annotations

from collections.abc import Callable

from fsqueue import moments
from fsqueue.clock import MARGIN_MS
from fsqueue.ledger import LEASED, Ledger
from fsqueue.movements import to_ranges
from fsqueue.names import Batch
from fsqueue.store import Store
from fsqueue.transitions import locked, name_earlier


def revoke(store: Store, batch: Batch, chosen: Callable[[Ledger, int], bool], wait_s: float) -> int:
    """End the leases of a batch's tasks for which `chosen(ledger, index)`; how many. LockTimeout if it stays busy."""
    try:
        with locked(store, batch, wait_s) as log:
            ledger = log.ledger
            at = moments.present(store, log)
            tasks = [index for index in range(ledger.count) if ledger.state[index] == LEASED and chosen(ledger, index)]
            if tasks:
                name_earlier(store, log, at, 0)
                log.note("revoke", at, tasks=to_ranges(tasks))
            return len(tasks)
    except FileNotFoundError:
        return 0


def expire(store: Store, batch: Batch, chosen: Callable[[Ledger, int], bool], wait_s: float) -> int:
    """Have leases run out now, on the tasks for which `chosen(ledger, index)`; how many. LockTimeout if it stays busy.

    By renewing each to an end that is past, for every clock's margin: whoever takes such a task over charges what is
    due for a lease that ran out, and until then its holder may still complete it.
    """
    try:
        with locked(store, batch, wait_s) as log:
            ledger, ended = log.ledger, 0
            at = moments.present(store, log)
            held: dict[str, list[int]] = {}
            for index in range(ledger.count):
                holder = ledger.holder[index]
                if holder and ledger.state[index] == LEASED and at < ledger.since[index] and chosen(ledger, index):
                    held.setdefault(holder.id, []).append(index)
            for lease, tasks in held.items():
                until = max(0, at - MARGIN_MS[1])
                name_earlier(store, log, at, until)
                log.note("renew", at, lease=lease, tasks=to_ranges(tasks), until=until)
                ended += len(tasks)
            return ended
    except FileNotFoundError:
        return 0
