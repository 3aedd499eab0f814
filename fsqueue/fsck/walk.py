"""Check a queue, and repair it, while others work: every invariant that can be seen on disk (docs/fsck.md).

A first look yields suspects. A second look at each holds the lock that a process at work would hold, so a change under
way is not reported. Memory is bounded by the names of a shard. A repair counts once another look finds nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from fsqueue.errors import LockTimeout, StorageError
from fsqueue.filesystem import NOT_FILES
from fsqueue.format import names
from fsqueue.fsck import journal_checks, places, shard_checks, slot_checks, surplus
from fsqueue.fsck.findings import CheckedPlace, Finding, Suspect, guarded, no_access
from fsqueue.fsck.repair import Repair, StillHeld
from fsqueue.interruptions import let_out
from fsqueue.storage.store import Store

logger = logging.getLogger("fsqueue")

TRIES = 3
"""Maximum number of tries of a repair: what it meets may change under its hands."""

Progress = Callable[[int, int], object]
"""Called with the steps done and the steps there are."""


def fsck(store: Store, repair: bool, progress: Progress | None = None) -> Iterator[Finding]:
    """Yield what is wrong with a queue, as it is found; with `repair` each finding is mended before it is yielded.

    A purge meanwhile makes it begin anew, with the new generation.
    """
    while True:
        store.refresh(now=True)
        layout = store.layout
        barred: set[str] = set()
        for suspect in _suspects(store, Repair(store), progress):
            store.refresh(now=True)
            if store.layout is not layout:
                break
            finding = judge(store, suspect, repair)
            if finding is not None and finding.path not in barred:
                if finding.kind == "no-access":
                    barred.add(finding.path)  # other parts may meet it again
                yield finding
        else:
            store.refresh(now=True)
        if store.layout is layout:
            return


def fsck_part(store: Store, shards: Sequence[names.Shard], first: bool) -> Iterator[Finding]:
    """Yield what is wrong in some shards and, in the `first` part, in what belongs to none: to be checked by many at
    once.

    Nothing is mended. A purge meanwhile leaves nothing to find.
    """
    repair = Repair(store)
    if first:
        yield from _confirmed(store, _outside_shards(store, repair))
        yield from _confirmed(store, _surplus(store, repair))
        yield from _confirmed(store, _slots(store))
    for shard in shards:
        yield from _confirmed(store, shard_checks.ShardCheck(store, repair, shard).suspects())


def _confirmed(store: Store, suspects: Iterator[Suspect]) -> Iterator[Finding]:
    return (finding for suspect in suspects if (finding := judge(store, suspect, False)) is not None)


def _outside_shards(store: Store, repair: Repair) -> Iterator[Suspect]:
    yield from journal_checks.check_all(
        store, repair.quarantine, lambda kind: () if kind.in_queue is None else kind.in_queue(store)
    )
    yield from places.check(store, repair)


def _surplus(store: Store, repair: Repair) -> Iterator[Suspect]:
    return guarded(store, store.layout.completions, surplus.check(store, repair))


def _slots(store: Store) -> Iterator[Suspect]:
    return guarded(store, store.layout.limits, slot_checks.check(store))


def _suspects(store: Store, repair: Repair, progress: Progress | None) -> Iterator[Suspect]:
    shards = names.all_shards(store.layout.shards)
    yield from _outside_shards(store, repair)
    for done, shard in enumerate(shards):
        if progress is not None:
            progress(done, len(shards))
        yield from shard_checks.ShardCheck(store, repair, shard).suspects()
    yield from _surplus(store, repair)  # after missing bytes were put in their places
    yield from _slots(store)
    if progress is not None:
        progress(len(shards), len(shards))


def judge(place: CheckedPlace, suspect: Suspect, repair: bool) -> Finding | None:
    """Return the finding, if a second look confirms it; mended, if that is wanted and possible."""
    finding = suspect.finding
    try:
        if not suspect.confirm():
            return None
    except LockTimeout as error:
        logger.warning("%s was passed over: %s", finding.path, error)
        return None
    except OSError as error:
        let_out(error)
        if error.errno in NOT_FILES:
            return None  # something else has the place of a file that this depends on: `places` tells of it
        return no_access(place, f"{place.path}/{finding.path}", error).finding
    for _ in range(TRIES if repair else 0):
        try:
            suspect.mend()
        except FileNotFoundError:
            pass  # another process was faster
        except (OSError, StorageError, StillHeld) as error:
            let_out(error)
            finding.note = f"{finding.note}; not repaired: {error}" if finding.note else f"not repaired: {error}"
            break
        finding.repaired = not suspect.confirm()
        if finding.repaired:
            break
    return finding
