"""Check named commits: decided and not published, proposed or staged by dead processes, damaged records."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fsqueue.filesystem import PassingOverStrays
from fsqueue.format import names
from fsqueue.format.names import Uuid
from fsqueue.fsck.findings import Suspect, found
from fsqueue.fsck.repair import WAIT_S, Repair
from fsqueue.interruptions import let_out
from fsqueue.storage import commits
from fsqueue.storage.store import Store
from fsqueue.upkeep import collect

GRACE_S = 2.0
"""Seconds that a file which no process has locked may take before it counts as left behind."""


def check(store: Store, repair: Repair) -> Iterator[Suspect]:
    """Check proposals, then attempts, then records."""
    fs, layout = store.fs, store.layout
    for identity in commits.proposals(store, layout):
        with PassingOverStrays():  # `places` tells of them; what they may hide is not given up
            yield from _proposal(store, identity)
    for name in fs.names(layout.commits):
        ballot = names.parse_ballot_file(name)
        if ballot is not None and collect.is_abandoned(store, layout.ballot(ballot)):
            path, mend = layout.ballot(ballot), partial(collect.reap_ballot, store, name)
            yield Suspect(found(store, "stale-proposal", path), partial(_has_no_proposal, store, ballot), mend)
    for name, kind in fs.entries(layout.staging):
        if kind == "directory" and is_attempt(name):
            yield from _attempt(store, name)
    for name, kind in fs.entries(layout.commits):
        commit = names.parse_record_file(name)
        if kind == "file" and commit is not None:
            path = f"{layout.commits}/{name}"
            is_damaged = partial(_is_damaged, store, path, commit)
            if is_damaged():
                yield Suspect(found(store, "damaged-record", path), is_damaged, partial(repair.quarantine.move, path))


def is_attempt(name: str) -> bool:
    """Return whether a directory in `staging/` belongs to a commit."""
    return names.parse_attempt(name) is not None or names.is_gone(name)


def _proposal(store: Store, identity: Uuid) -> Iterator[Suspect]:
    layout = store.layout
    path, mend = layout.proposal(identity), partial(commits.end_proposal, store, layout, identity)
    record = commits.proposed(store, layout, identity)
    if record is not None and commits.is_decided(store, layout, record):
        yield Suspect(
            found(store, "pending-commit", path, record.total("tasks"), record.name),
            partial(_stays_pending, store, record),
            mend,
        )
    elif collect.is_abandoned(store, path):
        yield Suspect(found(store, "stale-proposal", path), partial(collect.is_abandoned, store, path), mend)


def _stays_pending(store: Store, record: commits.Record) -> bool:
    """Return whether no process is publishing a decided commit. One that does has the proposal locked."""
    store.clock.sleep(GRACE_S)
    try:
        with store.locked_existing(store.layout.proposal(record.id), WAIT_S):
            return commits.is_decided(store, store.layout, record)
    except FileNotFoundError:
        return False


def _has_no_proposal(store: Store, identity: Uuid) -> bool:
    return collect.is_abandoned(store, store.layout.ballot(identity)) and not store.fs.exists(
        store.layout.proposal(identity)
    )


def _attempt(store: Store, name: str) -> Iterator[Suspect]:
    path = f"{store.layout.staging}/{name}"
    age_s = GRACE_S if names.is_gone(name) else collect.ATTEMPT_AGE_S  # it changes while it is removed

    def is_left() -> bool:
        if age_s == GRACE_S:
            store.clock.sleep(GRACE_S)
        return collect.is_abandoned(store, path, age_s)

    if collect.is_abandoned(store, path, age_s):
        yield Suspect(found(store, "staged-attempt", path), is_left, partial(collect.reap_attempt, store, name))


def _is_damaged(store: Store, path: str, commit: str) -> bool:
    try:
        record = commits.parse(store.fs.read(path))
    except OSError as error:
        let_out(error)
        return False  # gone, or what it is instead of a file was told by its name
    return record is None or record.name != commit
