"""Choose the time of a record, and correct a log whose time is far ahead (docs/design.md, section 9).

`at` does not run backwards in a log. One record of a writer whose clock was a month ahead would therefore delay all
later ones: leases would end, and tasks whose attempts failed come back, a month late. If the file's own timestamp is
long before such an `at`, the `at` is wrong. The next writer then appends a `clock` record, which corrects the log's
time. It is in the log, so that all readers agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fsqueue.format import movements, names, sparse
from fsqueue.format.movements import to_ranges
from fsqueue.format.names import TaskFileName
from fsqueue.format.replay import AVAILABLE, LEASED, ReplayState
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.store import Store

FAR_MS = 15 * 60_000
"""A smaller difference between hosts' clocks is tolerated. A time that is further ahead is an error."""
RESCHEDULING = frozenset({"lease", "renew", "release", "fail", "revoke"})
"""Records that set the time at which a task becomes available, or at which its lease ends."""


def next_at(locked: LockedBatch) -> int:
    """Return the `at` of a record that is about to be appended: now, or the log's own time if that is later.

    If the log's time is far ahead, correct it first: this appends a `clock` record. Call it under the log's lock, with
    the log caught up, and before a record is replayed that is not written yet. OSError as from any append.
    """
    now, last = locked.store.clock.now_ms(), locked.replay_state.at
    if last <= now:
        return now
    if last - now > FAR_MS and correct_time(locked):
        return max(now, locked.replay_state.at)
    return last


def is_ahead(store: Store, replay_state: ReplayState) -> bool:
    """Return whether a log's time is ahead of the file server's by more than FAR_MS."""
    return replay_state.at > store.clock.now_ms() + FAR_MS


def is_of_the_future(store: Store, name: TaskFileName) -> bool:
    """Return whether an untouched task file has its birth and its due time from a clock that was far ahead."""
    born = names.birth_ms(name.batch)
    return name.available_at >= born > store.clock.now_ms() + FAR_MS


def correct_time(locked: LockedBatch, certain: bool = False) -> bool:
    """Append a `clock` record if a log's time is far ahead of the present and of the file's own timestamp. Return
    whether it was.

    Call it under the log's lock, with the log caught up. The file server stamps the file at each append. So a record
    far beyond the last timestamp was written by a wrong clock. If the timestamp agrees with the record, this host's
    clock may be the wrong one: then nothing is done, unless `certain`. Nor is anything done beside prepared records:
    what was in time when it was judged must not be late when it acts.
    """
    store, log = locked.store, locked.log
    now, last = store.clock.now_ms(), locked.replay_state.at
    if last <= now + FAR_MS or locked.replay_state.prepared:
        return False  # beside prepared records a correction is void: get them decided first
    if not certain:
        now = max(now, store.fs.fstat(log.fd).st_mtime_ns // 1_000_000)
        if last <= now + FAR_MS:
            return False
    times = shifted(store.fs.pieces(log.fd, 0), now)
    if times:  # they come earlier than the file's name says
        locked.name_earlier(last, min(times.values()))
    tasks = to_ranges([*times]) if times else []
    locked.append_record("clock", now, tasks=tasks, since=[times[index] for index in sorted(times)])
    return True


def shifted(log: Iterable[sparse.Piece], now: int) -> dict[int, int]:
    """Return new times for the open tasks whose times come from records later than `now`.

    The time is that at which the task becomes available, or its lease ends. If it was a minute after such a record, it
    is now a minute from `now`. Times from earlier records stay.
    """
    replay_state = ReplayState()
    written: dict[int, int] = {}
    parsed = ((offset, movements.parse(line)) for offset, line, _ in sparse.lines(log, 0))
    for offset, record in replay_state.effective((at, found) for at, found in parsed if found is not None):
        time = record["at"] if "update" in record else replay_state.at
        if record["op"] == "clock" and record["at"] == replay_state.at:
            written.update(dict.fromkeys(_tasks_of(record), replay_state.at))
        elif record["op"] == "insert" and record.get("available_at"):
            index = record.get("first")
            if type(index) is int and replay_state.places.get(index) == offset:
                written[index] = time
        elif record["op"] in RESCHEDULING:
            for index in _tasks_of(record):
                if index < replay_state.count and replay_state.version[index] == offset:
                    written[index] = time
        elif record["op"] == "change":  # it ends leases that have run out: their tasks are available from then on
            for index in _tasks_of(record):
                is_by_it = index < replay_state.count and replay_state.version[index] == offset
                if is_by_it and ("available_at" in record or replay_state.since[index] == time):
                    written[index] = time
    return {
        index: max(0, now + replay_state.since[index] - at)
        for index, at in written.items()
        if at > now
        and replay_state.state[index] in (AVAILABLE, LEASED)
        and replay_state.version[index] != replay_state.base_version
    }


def _tasks_of(record: dict[str, Any]) -> list[int]:
    """Return the tasks that a record names; none if its ranges are damaged."""
    try:
        return movements.from_ranges((start, min(end, names.BATCH_TASKS_MAX)) for start, end in record["tasks"])
    except (KeyError, TypeError, ValueError):
        return []
