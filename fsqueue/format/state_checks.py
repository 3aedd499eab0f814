"""Find out whether the state of a batch breaks an invariant of the design (docs/design.md, section 2).

Pure, as the states are. It is asked at the end of a critical section and after a replay, if FSQUEUE_CHECK is set.
"""

from __future__ import annotations

from collections.abc import Iterator

from fsqueue.format import movements
from fsqueue.format.movements import Record
from fsqueue.format.names import BATCH_TASKS_MAX, UpdateId
from fsqueue.format.task_states import AVAILABLE, LEASED, SKIPPED, Lease, States

TOUCHED_MOST = 100
"""Maximum number of touched tasks in a batch of which each is compared; of more only the counts are: a test that leases
1,000 tasks one by one would otherwise look at half a million."""


def misread(record: Record, line: bytes) -> Iterator[tuple[int, str]]:
    """Yield the number of an invariant, and a clause, if a reader of the line gets another record."""
    read, meant = movements.parse(line[:-1]), movements.parse(movements.encode(record)[:-1])
    if read is not None and "cut" in record:  # its payload is in the line alone
        read = {name: value for name, value in read.items() if name not in ("payload", "b64", "key")} | {"cut": 0}
    if read != meant:
        yield 6, f"the record {meant} has the line {line!r}"


def broken(states: States) -> Iterator[tuple[int, str]]:
    """Yield the number of each invariant that a state breaks, and a clause that says how."""
    counted = [states.state.count(code) for code in range(SKIPPED + 1)]
    # Invariant 6: each task is in one state, and the sums that a status adds up are those of the states.
    if states.remaining != counted[AVAILABLE] + counted[LEASED] or states.done[2:] != counted[2:SKIPPED]:
        sums = f"{states.remaining} tasks without an outcome and outcomes {states.done[2:]}"
        yield 6, f"{sums} are noted, of states {counted}"
    lengths = {len(states.state), len(states.since), len(states.holder), len(states.attempts), len(states.version)}
    if lengths != {states.count} or sum(counted) != states.count:
        yield 6, f"{states.count} tasks have {lengths} entries"
    # Invariant 8: what a process keeps of a batch is bounded by the length of a batch.
    if states.count > BATCH_TASKS_MAX:
        yield 8, f"the batch has {states.count} tasks, and {BATCH_TASKS_MAX} are the most"
    # Invariant 2: a frozen task is that of one update, which is prepared here, or of several that depend on it; it has
    # no outcome.
    named: dict[int, list[UpdateId]] = {}
    for update, prepared in states.prepared.items():
        for index in prepared.tasks:
            named.setdefault(index, []).append(update)
    frozen = {index: sorted(states.shared[index].updates if index in states.shared else [update])
              for index, update in states.frozen.items()}  # fmt: skip
    if {index: sorted(updates) for index, updates in named.items()} != frozen:
        yield 2, f"the tasks {sorted(states.frozen)} are frozen, and prepared records name {sorted(named)}"
    if any(states.frozen.get(index) not in sharing.updates for index, sharing in states.shared.items()):
        yield 2, f"updates depend on the tasks {sorted(states.shared)}, and others have frozen them"
    for index in states.frozen:
        if states.state[index] not in (AVAILABLE, LEASED):
            yield 2, f"task {index} is frozen, and has an outcome"
    if len(states.touched) <= TOUCHED_MOST:
        yield from _broken_tasks(states)


def _broken_tasks(states: States) -> Iterator[tuple[int, str]]:
    ready = {index for _, index in states._ready}
    returns = set(states._returns)
    fresh = set(states._order[states._frontier : states._end])
    ends: dict[Lease, int] = {}
    for until, _, lease in states._expiries:
        ends[lease] = max(until, ends.get(lease, until))
    for index, state in enumerate(states.state):
        holder, since = states.holder[index], states.since[index]
        is_frozen = index in states.frozen  # it is expected anew at the outcome
        if state == LEASED:
            # Invariant 2: a leased task has one lease, which is known by its id, and knows the task.
            if holder is None or states.leases.get(holder.id) is not holder or index not in holder.tasks:
                yield 2, f"task {index} is leased, and no one lease has it"
            # Invariant 7: the end of the lease is waited for, so the task comes back by itself.
            elif ends.get(holder, -1) < since and index not in ready and not is_frozen:
                yield 7, f"nothing waits for the end of the lease that holds task {index}"
        elif state == AVAILABLE:
            if holder is not None:
                yield 2, f"task {index} is available, and a lease has it"
            # Invariant 7: a process that chooses tasks from this state finds each that has no outcome.
            is_found = (since, index) in returns if index in states.touched else index in fresh
            if not is_found and index not in ready and not is_frozen:
                yield 7, f"no choice of tasks would find task {index}, which is available"
