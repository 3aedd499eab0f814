"""Count what became of attempts within some time: how many began, failed or ran out, and how long the work took.

It reads what `activity` reads, in the same bounds: of more files a random sample stands for all (docs/status.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from fsqueue.format.counting_replay import CountingReplay
from fsqueue.format.names import Batch
from fsqueue.format.replay import COMPLETED, DEAD, ReplayState
from fsqueue.storage import history, listing
from fsqueue.storage.store import Store
from fsqueue.views.activity import HISTORY_BYTES_MAX, LOGS_BYTES_MAX, LOGS_MAX, TASKS_MAX


@dataclass(slots=True)
class AttemptCounts:
    """Numbers of tasks of which something happened within a time. They are no integers if they stand for more.

    `leased`: attempts that began; `retried`: those of them that were not the task's first; `failed`: those that a
    worker reported as failed; `expired`: leases that another record found run out; `given_up`: tasks that became dead
    letters. `work_s`: numbers of completed tasks, by how long the work on them took in seconds.
    `share`: the part of the files that was read. `is_whole`: whether it reached back to the begin of the time.
    """

    leased: float = 0
    retried: float = 0
    failed: float = 0
    expired: float = 0
    given_up: float = 0
    work_s: dict[float, float] = field(default_factory=dict)
    share: float = 1.0
    is_whole: bool = True

    def add(self, part: AttemptCounts, scale: float) -> None:
        """Add the counts of a part of the files, each of which stands for `scale` files."""
        for name in ("leased", "retried", "failed", "expired", "given_up"):
            setattr(self, name, getattr(self, name) + scale * getattr(part, name))
        for seconds, tasks in part.work_s.items():
            self.work_s[seconds] = self.work_s.get(seconds, 0) + scale * tasks
        self.share = min(self.share, 1 / scale)
        self.is_whole = self.is_whole and part.is_whole


def count_attempts(store: Store, after_ms: int, until_ms: int) -> AttemptCounts:
    """Return what happened later than `after_ms` and not later than `until_ms`, on the file server's clock.

    It is a hint: what other hosts have just written may be seen later. OSError, QueueNotFound.
    """
    store.verify_place()
    while True:
        found = _Counting(store, after_ms, until_ms).count()
        if not store.verify_place():  # what is seen while a queue is purged does not matter
            return found


class _Counting:
    """One look. First it reads the logs, then the history: what finishes meanwhile is seen again, and not missed."""

    def __init__(self, store: Store, after_ms: int, until_ms: int) -> None:
        self.store, self.after_ms, self.until_ms = store, after_ms, until_ms
        self.read: set[Batch] = set()

    def count(self) -> AttemptCounts:
        """Return what both tell."""
        found = AttemptCounts()
        for part, scale in (self._logs(), self._history()):
            found.add(part, scale)
        return found

    def _logs(self) -> tuple[AttemptCounts, float]:
        """Return what the logs tell that were read, and how many logs each of them stands for."""
        store = self.store
        logs = store.entropy.shuffled(list(listing.with_logs_in(store, listing.shards(store))))
        part, size, tasks, looks = AttemptCounts(), 0, 0, 0
        for batch in logs[:LOGS_MAX]:
            if size >= LOGS_BYTES_MAX or tasks >= TASKS_MAX:
                break
            state, begun, read = listing.read_recent_state(store, batch, self.after_ms, CountingReplay)
            size, looks = size + read, looks + 1
            tasks += sum(len(lease.tasks) for lease in state.leases.values())
            part.is_whole = part.is_whole and begun <= self.after_ms
            if state.count:  # else it has just finished, and is in the history
                self.read.add(batch)
                self._add(part, state)
        return part, len(logs) / looks if looks else 1.0

    def _history(self) -> tuple[AttemptCounts, float]:
        """Return what the history tells that was read, and how many tasks each of its tasks stands for."""
        store, part = self.store, AttemptCounts()
        has_history = store.layout.history_days in listing.parts(store)
        kept = history.recent_files(store, self.after_ms) if has_history else {}
        lines: list[bytes] = []
        size = shards = 0
        for shard in store.entropy.shuffled(sorted(kept)):
            if size >= HISTORY_BYTES_MAX:
                break
            recent = history.recent(store, shard, kept[shard], self.after_ms, HISTORY_BYTES_MAX)
            size, shards = size + recent.bytes, shards + 1
            part.is_whole = part.is_whole and recent.since <= self.after_ms
            lines += (line for line in recent.lines if history.batch_named(line) not in self.read)
        whole = sum(map(history.tasks_named, lines))
        read = self._add_lines(part, store.entropy.shuffled(lines) if whole > TASKS_MAX else lines)
        return part, (len(kept) / shards if shards else 1.0) * (whole / read if read else 1.0)

    def _add_lines(self, part: AttemptCounts, lines: Sequence[bytes]) -> int:
        """Add what lines of the history tell, up to some number of tasks. Return how many tasks they have."""
        read = 0
        for line in lines:
            if read >= TASKS_MAX:
                break
            read += history.tasks_named(line)
            parsed = history.parse(line)
            if parsed is None or parsed[0] in self.read:
                continue
            self.read.add(parsed[0])  # a repeat of the line after a crash does not count
            self._add(part, history.replay(parsed[1], CountingReplay))
        return read

    def _add(self, part: AttemptCounts, state: ReplayState) -> None:
        assert isinstance(state, CountingReplay), "a log was replayed by another class than was asked for"
        part.leased += self._within(state.began)
        part.retried += self._within(state.retried)
        part.failed += self._within(state.failed)
        part.expired += self._within(state.expired)
        for index, outcome in enumerate(state.state):
            at, holder = state.since[index], state.holder[index]
            if outcome not in (COMPLETED, DEAD) or not self.after_ms < at <= self.until_ms:
                continue
            if outcome == DEAD:
                part.given_up += 1
            elif holder is not None:
                seconds = max(0, state.took.get(index, at - holder.at)) / 1000
                part.work_s[seconds] = part.work_s.get(seconds, 0) + 1

    def _within(self, times: Counter[int]) -> int:
        return sum(tasks for at, tasks in times.items() if self.after_ms < at <= self.until_ms)
