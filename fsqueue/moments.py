"""When a record is appended, and what is done about a log whose time is far ahead (docs/design.md, "Time").

`at` does not run backwards in a log. So one record whose writer's clock was a month ahead would hold up all that
follows: leases would end, and failed tasks come back, only once the right clock has got there. Such an `at` is not
believed if the file itself was stamped long before it. Then a `clock` record sets the log's time right, in the log, so
that all readers agree.
"""

from __future__ import annotations

from typing import Any

from fsqueue import movements, names
from fsqueue.ledger import AVAILABLE, LEASED, Ledger
from fsqueue.logs import Log
from fsqueue.movements import Range, to_ranges
from fsqueue.names import TaskFileName
from fsqueue.store import Store

FAR_MS = 15 * 60_000
"""Hosts whose clocks are apart by less are lived with. What is further ahead is an error."""
RESCHEDULING = frozenset({"lease", "renew", "release", "fail", "revoke", "commit"})
"""Records that say from when a task is available, or until when it is leased."""


def present(store: Store, log: Log) -> int:
    """Return the `at` of a record that is about to be appended: now, or the log's own time if that is later.

    Under the log's lock, caught up, and before anything is folded that is not written. OSError as from any append.
    """
    now, last = store.clock.now_ms(), log.ledger.at
    if last <= now:
        return now
    if last - now > FAR_MS and set_right(store, log):
        return max(now, log.ledger.at)
    return last


def is_ahead(store: Store, ledger: Ledger) -> bool:
    """Tell whether a log's time is further ahead of the file server's than clocks may be apart."""
    return ledger.at > store.clock.now_ms() + FAR_MS


def is_of_the_future(store: Store, name: TaskFileName) -> bool:
    """Tell whether an untouched task file was made, and so is due, by a clock that was far ahead."""
    born = names.birth_ms(name.batch)
    return name.available_at >= born > store.clock.now_ms() + FAR_MS


def set_right(store: Store, log: Log, certain: bool = False) -> bool:
    """Set a log's time right if it is far ahead of the present and of the file's own stamp; whether that was done.

    Under the log's lock, caught up. The file server stamps the file at each append. So a record far beyond the last
    stamp was written by a wrong clock. If the stamp agrees with the record, the clock that is wrong may be this
    host's: nothing is done then, unless `certain`.
    """
    now, last = store.clock.now_ms(), log.ledger.at
    if last <= now + FAR_MS:
        return False
    if not certain:
        now = max(now, store.fs.fstat(log.fd).st_mtime_ns // 1_000_000)
        if last <= now + FAR_MS:
            return False
    content = store.fs.read_from(log.fd, 0)[: log.end]
    times = shifted(content, now)
    log.note("clock", now, tasks=_ranges(sorted(times)), since=[times[index] for index in sorted(times)])
    return True


def shifted(content: bytes, now: int) -> dict[int, int]:
    """Return since when each open task whose time comes from records later than `now` is available, or leased until.

    What was due a minute after such a record is due a minute from now. What comes from earlier records stays.
    """
    ledger, offset = Ledger(), 0
    written: dict[int, int] = {}
    for line in content.split(b"\n")[:-1]:
        record = movements.parse(line)
        if record is not None:
            ledger.apply(record, offset)
            if record["op"] == "clock" and record["at"] == ledger.at:
                written.update(dict.fromkeys(_tasks_of(record), ledger.at))
            elif record["op"] in RESCHEDULING:
                for index in _tasks_of(record) or range(ledger.count):
                    if index < ledger.count and ledger.version[index] == offset:
                        written[index] = ledger.at
        offset += len(line) + 1
    return {
        index: max(0, now + ledger.since[index] - at)
        for index, at in written.items()
        if at > now and ledger.state[index] in (AVAILABLE, LEASED) and ledger.version[index] != ledger.base_version
    }


def _tasks_of(record: dict[str, Any]) -> list[int]:
    """Return the tasks that a record names, if they are ranges at all."""
    try:
        return movements.from_ranges((start, min(end, names.BATCH_TASKS_MAX)) for start, end in record["tasks"])
    except (KeyError, TypeError, ValueError):
        return []


def _ranges(tasks: list[int]) -> list[Range]:
    return to_ranges(tasks) if tasks else []
