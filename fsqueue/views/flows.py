"""How tasks flow between the queues of a group: which queue's tasks are completed by updates that insert into which.

Decision files name the logs that an update changes; those logs tell what it did in each. Both are read in bounds, and
nothing is locked. An update within one log has no decision file, and no flow. `gc` retires old decision files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from fsqueue.format import names
from fsqueue.format.decisions import LogName
from fsqueue.format.names import QueueDirectory, UpdateId
from fsqueue.storage import decisions, history
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.store import Store
from fsqueue.views import task_history

FILES_MAX = 4
"""Maximum number of decision files that are read, the latest ones. A process that applies updates has one at a time, of
1 MiB."""
ALIKE_MAX = 4
"""Maximum number of updates that are looked into, of those that change the same queues."""
LOGS_MAX = 64
"""Maximum number of logs that are read, ..."""
FINISHED_MAX = 16
"""... and of finished batches that are looked for in the history."""

Opened = Callable[[QueueDirectory], Store | None]
Logs = tuple[LogName, ...]


class Flow(NamedTuple):
    """Updates that complete tasks of `source` and insert into `target`: about how many of the latest ones."""

    source: str
    target: str
    updates: int


def flows(group: GroupDirectory, opened: Opened) -> list[Flow]:
    """Return the flows that the latest updates show, the most frequent first. OSError, StorageError.

    `opened`: the open queue of a directory; None if there is none.
    """
    latest = list(_latest(group))
    sets = Counter(_queues(logs) for _, logs in latest)
    chosen: dict[UpdateId, Logs] = {}
    taken: Counter[frozenset[QueueDirectory]] = Counter()
    for update, logs in latest:
        queues = _queues(logs)
        if len(queues) > 1 and taken[queues] < ALIKE_MAX:
            taken[queues] += 1
            chosen[update] = logs
    did = _what_they_did(chosen, opened)
    seen: Counter[frozenset[QueueDirectory]] = Counter()
    pairs: Counter[tuple[frozenset[QueueDirectory], QueueDirectory, QueueDirectory]] = Counter()
    for update, logs in chosen.items():
        ended, began = did.get((update, "complete"), set()), did.get((update, "insert"), set())
        edges = [(_queues(logs), a, b) for a in ended for b in began if a != b]
        seen[_queues(logs)] += bool(edges)
        pairs.update(edges)
    found: Counter[tuple[QueueDirectory, QueueDirectory]] = Counter()
    for (queues, a, b), number in pairs.items():  # what was looked into stands for all that change the same queues
        found[a, b] += max(1, round(sets[queues] * number / seen[queues]))
    return [Flow(_name(a), _name(b), n) for (a, b), n in sorted(found.items(), key=lambda item: (-item[1], item[0]))]


def _latest(group: GroupDirectory) -> Iterator[tuple[UpdateId, Logs]]:
    """Yield the updates of the latest decision files, the latest first, each with the logs that it changed."""
    for name in reversed(decisions.files(group)[-FILES_MAX:]):
        state = decisions.read(group, name)
        if state is not None:
            yield from reversed(state.commits.items())


def _what_they_did(chosen: dict[UpdateId, Logs], opened: Opened) -> dict[tuple[UpdateId, str], set[QueueDirectory]]:
    """Return in which queues each update completed tasks, or inserted some."""
    did: dict[tuple[UpdateId, str], set[QueueDirectory]] = {}
    logs = dict.fromkeys(log for of_one in chosen.values() for log in of_one)
    finished = 0
    for log in islice(logs, LOGS_MAX):
        store = opened(log.directory)
        if store is None or store.layout.directory != log.generation:
            continue
        records = task_history.records_of(store, log.batch)
        if not records and finished < FINISHED_MAX:
            finished += 1
            records = history.find(store, log.batch) or []
        for _, record in records:
            update = names.parse_update(record.get("update"))
            if update in chosen and record["op"] in ("complete", "insert"):
                did.setdefault((update, record["op"]), set()).add(log.directory)
    return did


def _queues(logs: Logs) -> frozenset[QueueDirectory]:
    return frozenset(log.directory for log in logs)


def _name(directory: QueueDirectory) -> str:
    return names.parse_queue_directory(directory) or directory
