"""Lease tasks that the caller names, by the steps with which any task is leased (docs/design.md, section 4.5)."""

from __future__ import annotations

from collections.abc import Mapping

from fsqueue.format.names import Batch, TaskFileName
from fsqueue.format.task_states import Choice
from fsqueue.leased_task import LeasedTask
from fsqueue.protocol import transitions
from fsqueue.protocol.leasing import BUSY, BUSY_WAIT_S, FULL, LIMITED, UNDECIDED, Got, Leaser
from fsqueue.storage.locked_batch import LockedBatch


class NamedLeaser(Leaser):
    """Lease tasks by their ids from one queue. For one call: it remembers no batch. Not thread-safe."""

    _named: Mapping[Batch, list[int]]

    def lease_named(self, named: Mapping[Batch, list[int]], lease_ms: int | None) -> list[LeasedTask]:
        """Lease the tasks at some places of batches, and return those that could be leased. [] in a paused queue, or
        where its limits allow no more.

        Tasks are left out that are not available now: not due, held by a worker, ended, or not there. So are those of a
        batch that stays locked for `BUSY_WAIT_S`, or that an undecided update holds for as long. A task that must go
        alone is left out unless it is the only one that is named. Errors as of `lease`.
        """
        self.begin_look(now=True)
        if self.check_held_up():
            return []
        self._named = named
        n = sum(map(len, named.values()))
        held: list[LeasedTask] = []
        busy: dict[Batch, TaskFileName] = {}
        try:
            for batch in sorted(named):
                name = transitions.file_of_waiting(self.store, batch)
                got = self._from_head(name, n, n, lease_ms, n == 1) if name is not None else []
                if name is not None and (
                    (got is LIMITED and self._limits().give_back())
                    or (got is FULL and self._limits().give_back_of_batch())
                ):
                    got = self._from_head(name, n, n, lease_ms, n == 1)
                if got is LIMITED:
                    self._note_full(not held)
                    return held
                if got is FULL and not held:
                    self._note_full(True)
                if got in (BUSY, UNDECIDED) and name is not None:
                    busy[batch] = name
                if isinstance(got, list):
                    held += got
            while busy and (more := self._outwait(busy, n, n, lease_ms, n == 1, BUSY_WAIT_S)):
                held += more
            if not held:
                self._raise_unreadable()
        except BaseException:
            self._put_back(held)  # no caller will know of them
            raise
        finally:
            self._warn()
        return held

    def _from_head(self, name: TaskFileName, most: int, asked: int, lease_ms: int | None, solo: bool = True) -> Got:
        """Lease the named tasks of a batch: none is more urgent, and no selection is told what the batch has left."""
        return self._from_batch(name.batch, name, most, asked, lease_ms, solo)

    def _choose(self, locked: LockedBatch, at: int, most: int, solo: bool) -> Choice:
        """Choose among the named tasks. The limit does not matter, nor what is left: no other batch is compared."""
        self._next_head = None
        margin, attempts_max = self.store.clock.margin_ms, self.store.settings.max_attempts
        self._was_full = False
        is_by_field = self.store.queue_file.state.is_limited and self._limits().by_fields
        if not is_by_field or (locked.log.lines is None and locked.read_lines() is None):
            return locked.replay_state.choose_among(self._named[locked.batch], at, most, margin, attempts_max, solo)
        order = [index for index in self._named[locked.batch] if index < locked.replay_state.count]
        found = self._limits().with_room(locked, at, order)
        choice = locked.replay_state.choose_among(found, at, most, margin, attempts_max, solo)
        self._was_full = not choice[0] and not choice[1] and self._limits().saw_full
        return choice
