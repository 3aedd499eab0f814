"""Replay the records of a movement log into the state of each task (docs/format.md, "Movement logs").

Pure: no clock, no input or output. Any bytes replay to a valid state, and any prefix of them. Two readers of the same
bytes get the same state. A record may apply to some of its tasks only, or to none. It changes nothing for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fsqueue.clock import MS_MAX
from fsqueue.format import checkpoints, movements, names, priority, sparse
from fsqueue.format.checkpoints import Stretch
from fsqueue.format.task_states import AVAILABLE, CANCELLED, COMPLETED, DEAD, LEASED, SKIPPED, States

__all__ = ["AVAILABLE", "CANCELLED", "COMPLETED", "DEAD", "LEASED", "SKIPPED", "ReplayState"]

PAYLOAD = ("payload", "b64", "cut")
"""An `insert` has one of these; `cut` in the history, which keeps no long payloads."""
AT_MAX = MS_MAX
"""A record with a later time than this does not apply."""
SUMMED_AT_ONCE = 64
"""The checksum of a stretch takes in this many lines at a time: one at a time would be slower."""


class ReplayState(States):
    """Hold the state of a batch's tasks after the records replayed so far."""

    __slots__ = ("at", "damaged", "disputed", "gone", "is_whole", "stretch")

    def __init__(self) -> None:
        self.at = 0
        """The largest `at` so far. Time does not run backwards in a log, unless a `clock` record corrects it."""
        self.gone = False
        """Whether the log was retired: no record applies any more."""
        self.damaged = 0
        """The number of lines that are no records: torn ones that a later append has voided, or damaged ones."""
        self.is_whole = True
        """Whether all records of the log were replayed. If not, the replay began at a checkpoint, which tells nothing
        of a completed or cancelled task but its outcome.
        """
        self.stretch = Stretch()
        self.disputed: list[int] = []
        """The offsets of checkpoints that contradict the records before them."""
        super().__init__()

    def replay(self, data: bytes, offset: int) -> int:
        """Replay the whole lines in `data`, which begins at `offset` of the log. Return how many bytes they are."""
        end = data.rfind(b"\n") + 1
        if end:
            if checkpoints.MARK in data:
                self.replay_pieces([(offset, data[:end])], offset)
            else:
                self.replay_own(data[:end], offset)
                self.stretch.cover(data[:end])
        return end

    def replay_own(self, data: bytes, offset: int) -> None:
        """Replay whole lines without a checkpoint among them. Leave the stretch alone: they may not be written yet."""
        at = offset
        for line in data[:-1].split(b"\n"):
            record = movements.parse(line)
            if record is not None:
                self.apply(record, at)
            else:
                self.damaged += 1
            at += len(line) + 1

    def replay_pieces(self, pieces: Iterable[sparse.Piece], begin: int) -> int:
        """Replay the whole lines in the pieces of a log from `begin` on. Return the offset where the last one ends."""
        end = begin
        for number, (offset, line, length) in enumerate(sparse.lines(pieces, begin)):
            end = offset + length + 1
            record = movements.parse(line)
            if record is None:
                self.damaged += 1
            elif line.startswith(checkpoints.MARK):
                if self._accept_checkpoint(record, offset, end):
                    continue
            else:
                self.apply(record, offset)
            self.stretch.append(line + b"\n")
            if number % SUMMED_AT_ONCE == 0:
                self.stretch.cover(b"")
        return end

    def _accept_checkpoint(self, record: dict[str, Any], here: int, end: int) -> bool:
        """Compare a checkpoint with the records before it. If it is sound, begin a stretch at its end and return True.

        Skip a checkpoint that says another offset than its own, or that restates other bytes. Either it was written
        over records, or records were written over the bytes that it restates. Add one that contradicts the records to
        `disputed`.
        """
        stretch = self.stretch
        if (record.get("here"), record.get("since"), record.get("sum")) != (here, stretch.since, stretch.sum):
            return False
        if not checkpoints.agrees(self, self.at, self.damaged, record):
            self.disputed.append(here)
            return False
        self.begin_stretch(end, end - here)
        return True

    def checkpoint(self, here: int, anyway: bool = False) -> bytes:
        """Return the line of the checkpoint for the offset `here`; b"" if none is due.

        None is due if all tasks have outcomes, since the log ends soon. Unless `anyway`, none is due if the line would
        be too long for the bytes written since the last checkpoint. It then is due at a later offset.
        """
        if not self.remaining:
            return b""
        line, stretch = checkpoints.record(self, self.at, self.damaged, self.stretch, here), self.stretch
        if anyway or checkpoints.SHARE * len(line) <= here - stretch.since:
            return line
        stretch.due = stretch.since + checkpoints.SHARE * len(line)
        return b""

    @property
    def is_misled(self) -> bool:
        """Return whether the last checkpoint, at which other readers would begin, contradicts the records."""
        return bool(self.disputed) and self.disputed[-1] >= self.stretch.since

    def begin_stretch(self, since: int, size: int) -> None:
        """Begin a stretch at `since`, where a checkpoint of `size` bytes ends. Forget the ids that it leaves out."""
        self.stretch = Stretch(since, size)
        self.ids = {holder.id for index in self.touched if (holder := self.holder[index]) is not None}
        self.insert_ids.clear()

    @classmethod
    def from_checkpoint(cls, found: checkpoints.Found) -> ReplayState | None:
        """Return the state that a checkpoint restates; None if a field of it is missing or wrong."""
        state = cls()
        try:
            checkpoints.restore(state, found)
            state.at = checkpoints.number(found.record["at"], AT_MAX)
            state.damaged = checkpoints.number(found.record["damaged"], found.here)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            return None
        state.is_whole = False
        state.stretch = Stretch(found.end, found.end - found.here)
        return state

    def apply(self, record: dict[str, Any], offset: int) -> None:
        """Apply one parsed record that stands at `offset`."""
        op, at = record["op"], record["at"]
        handler = _HANDLERS.get(op)
        if handler is None or self.gone or at > AT_MAX:
            return
        if at < self.at:
            at = self.at
        try:
            applied = handler(self, record, at, offset)
        except (KeyError, TypeError, ValueError):
            applied = False  # a field is missing or of the wrong kind: checked before anything was changed
        if applied:
            self.at = at if op != "clock" else record["at"]
        if "name" in record or "from" in record:  # also if it does not apply: its author may have renamed all the same
            for name in (record.get("from"), record.get("name")):
                if type(name) is str and names.parse_task_file(name) is not None:
                    self.mention(name)

    def apply_all(self, records: Iterable[tuple[int, dict[str, Any]]], inserts: dict[int, dict[str, Any]]) -> None:
        """Apply parsed records, each with its offset. Keep in `inserts` those that insert a task, by its index.

        It does what `apply` does with each. Most records of a log complete one task under the lease that holds it:
        those are applied here, with few calls.
        """
        apply, places = self.apply, self.places
        state, since, holder, version, leases = self.state, self.since, self.holder, self.version, self.leases
        results, discard, now, completed = self.results, self.touched.discard, self.at, 0
        for offset, record in records:
            if record["op"] == "complete" and now <= (at := record["at"]) <= AT_MAX:
                result, more = record.get("result"), len(record) - 4
                try:
                    ((start, end),) = record["tasks"]
                    if (
                        type(start) is int
                        and type(end) is int
                        and end == start + 1
                        and start >= 0
                        and state[start] == LEASED
                        and holder[start] is leases[record["lease"]]
                        and not self.gone
                        and (more == (result is not None) or record.keys() <= _OF_ONE)
                    ):
                        now = since[start] = at
                        state[start] = COMPLETED
                        version[start] = offset
                        completed += 1
                        discard(start)
                        if places:
                            self._forget_places([start])
                        if result is not None:
                            results[start] = result
                            more -= 1
                        if more or self.used:  # what an earlier attempt used is forgotten
                            _keep_work(self, record, [start])
                        continue
                except (KeyError, TypeError, ValueError, IndexError):
                    pass  # several ranges, or a record that may not apply: nothing was changed
            self._have_completed(completed, now)
            apply(record, offset)
            now, completed = self.at, 0
            if record["op"] == "insert" and self.count and self.version[-1] == offset:
                inserts[self.count - 1] = record
            if state is not self.state:  # `open` begins with new lists
                places, results, discard = self.places, self.results, self.touched.discard
                state, since, holder, version, leases = self.state, self.since, self.holder, self.version, self.leases
        self._have_completed(completed, now)

    def _have_completed(self, tasks: int, at: int) -> None:
        """Count tasks that were completed, the last one at `at`; the log's time, if none was."""
        self.at = at
        self.remaining -= tasks
        self.done[COMPLETED] += tasks

    def _tasks(self, record: dict[str, Any]) -> list[int]:
        """Return the indices in a record's ranges. TypeError or ValueError if they are no ascending ranges of tasks."""
        ranges = record["tasks"]
        if type(ranges) is not list:
            raise TypeError
        if len(ranges) == 1:  # as mostly: one task
            start, end = ranges[0]
            if type(start) is type(end) is int and end == start + 1 and 0 <= start < self.count:
                return [start]
        tasks: list[int] = []
        last = 0
        for start, end in ranges:
            if type(start) is not int or type(end) is not int or not last <= start < end <= self.count:
                raise ValueError
            tasks.extend(range(start, end))
            last = end
        return tasks


def _time(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= movements.TIME_MAX:
        raise ValueError
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= names.BATCH_TASKS_MAX:
        raise ValueError
    return value


def _zero(value: Any) -> int:
    if type(value) is not int or value:
        raise ValueError
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError
    return value


def _lease_id(record: dict[str, Any]) -> str | None:
    lease = record.get("lease")
    return None if lease is None else _text(lease)


def _open(replay_state: ReplayState, record: dict[str, Any], at: int, offset: int) -> bool:
    if replay_state.opened:
        return False
    inserts = record.get("inserts")
    count = _count(record["count"]) if inserts is None else _zero(record["count"])
    available_at, domain = _time(record.get("available_at", 0)), None if inserts is None else _text(inserts)
    replay_state.begin(count, available_at, offset)
    replay_state.opened, replay_state.inserts = True, domain
    replay_state.inserted_at = min(_time(record.get("birth", at)), at)
    return True


def _insert(replay_state: ReplayState, record: dict[str, Any], at: int, offset: int) -> bool:
    identity, first, available_at = _text(record["id"]), record["first"], _time(record.get("available_at", 0))
    if type(first) is not int or record.keys().isdisjoint(PAYLOAD):
        raise ValueError
    given = record.get("priority")
    wanted = None if given is None or priority.fault(given) is not None else given
    return replay_state.insert(at, identity, first, available_at, offset, wanted)


def _seal(replay_state: ReplayState, record: dict[str, Any], at: int, offset: int) -> bool:
    """End the inserts. The record's other fields are for readers that begin at the end of the log."""
    if not replay_state.takes_inserts:
        return False
    replay_state.sealed = True
    return True


def _lease(replay_state: ReplayState, record: dict[str, Any], at: int, offset: int) -> bool:
    worker = record.get("worker")
    given = replay_state.lease(
        at,
        _text(record["lease"]),
        replay_state._tasks(record),
        _time(record["until"]),
        worker if type(worker) is dict else None,
        record.get("several") is True,
        offset,
    )
    return bool(given)


def _renew(replay_state: ReplayState, record: dict[str, Any], at: int, offset: int) -> bool:
    return bool(
        replay_state.renew(at, _text(record["lease"]), replay_state._tasks(record), _time(record["until"]), offset)
    )


def _complete(replay_state: ReplayState, record: dict[str, Any], at: int, offset: int) -> bool:
    done = replay_state.complete(at, _text(record["lease"]), replay_state._tasks(record), offset, record.get("result"))
    _keep_work(replay_state, record, done)
    return bool(done)


def _keep_work(replay_state: ReplayState, record: dict[str, Any], done: list[int]) -> None:
    """Keep how long the work on completed tasks took, and what it used, as far as their record tells."""
    if "took" in record:
        replay_state.took.update({index: ms for index in done if (ms := movements.took_ms(record, index)) is not None})
    if "used" in record or replay_state.used:
        _note_used(replay_state, record, done)


_OF_ONE = frozenset(("op", "at", "lease", "tasks", "result", "took", "used"))
"""The fields of a `complete` record that does nothing but complete: it names no task file."""


def _note_used(replay_state: ReplayState, record: dict[str, Any], tasks: list[int]) -> None:
    """Take in what the attempts used that a record ends. Where it does not tell, forget what earlier ones used."""
    for index in tasks:
        used = movements.used(record, index)
        if used is not None:
            replay_state.used[index] = used
        else:
            replay_state.used.pop(index, None)


def _release(replay_state: ReplayState, record: dict[str, Any], at: int, offset: int) -> bool:
    return bool(
        replay_state.give_back(
            _text(record["lease"]), replay_state._tasks(record), _time(record["available_at"]), offset
        )
    )


def _fail(replay_state: ReplayState, record: dict[str, Any], at: int, offset: int) -> bool:
    available_at, error = _time(record["available_at"]), _text(record["error"])
    failed = replay_state.give_back(_text(record["lease"]), replay_state._tasks(record), available_at, offset, error)
    if "used" in record or replay_state.used:
        _note_used(replay_state, record, failed)
    return bool(failed)


def _bury(replay_state: ReplayState, record: dict[str, Any], at: int, offset: int) -> bool:
    lease, reason, worker = _lease_id(record), _text(record["reason"]), record.get("worker")
    holder = worker if type(worker) is dict else None
    buried = replay_state.bury(at, lease, replay_state._tasks(record), reason, offset, holder)
    if lease is not None and ("used" in record or replay_state.used):  # without one, the last attempt's counts
        _note_used(replay_state, record, buried)
    return bool(buried)


def _cancel(replay_state: ReplayState, record: dict[str, Any], at: int, offset: int) -> bool:
    tasks, versions = replay_state._tasks(record), record.get("versions")
    if versions is not None and (type(versions) is not list or len(versions) != len(tasks)):
        raise ValueError
    return bool(replay_state.cancel(at, _lease_id(record), tasks, versions, offset))


def _revoke(replay_state: ReplayState, record: dict[str, Any], at: int, offset: int) -> bool:
    return bool(replay_state.revoke(at, _lease_id(record), replay_state._tasks(record), offset))


def _replace(replay_state: ReplayState, record: dict[str, Any], at: int, offset: int) -> bool:
    tasks, payload = replay_state._tasks(record), record["payload"]
    if len(tasks) != 1:
        raise ValueError
    return replay_state.replace(at, _lease_id(record), tasks[0], record.get("version"), payload, offset)


def _move(replay_state: ReplayState, record: dict[str, Any], at: int, offset: int) -> bool:
    """Change nothing: only the names of a `move` count."""
    return True


def _clock(replay_state: ReplayState, record: dict[str, Any], at: int, offset: int) -> bool:
    """Correct the time of the log: the record's own `at` counts, although it is smaller than the one before."""
    tasks, since = replay_state._tasks(record), record["since"]
    if type(since) is not list or len(since) != len(tasks) or record["at"] >= replay_state.at:
        raise ValueError
    replay_state.reschedule(record["at"], dict(zip(tasks, map(_time, since), strict=True)))
    replay_state.inserted_at = min(replay_state.inserted_at, record["at"])
    return True


def _finish(replay_state: ReplayState, record: dict[str, Any], at: int, offset: int) -> bool:
    if replay_state.remaining or not replay_state.opened:
        return False
    replay_state.finished = True
    return True


def _counted(replay_state: ReplayState, record: dict[str, Any], at: int, offset: int) -> bool:
    if not replay_state.finished:
        return False
    offset_there = record["offset"]
    if type(offset_there) is not int or offset_there < 0:
        raise ValueError
    announced = (_text(record["file"]), offset_there, _count(record["count"]))
    if announced in replay_state.counts:
        return False
    replay_state.counts.append(announced)
    return True


def _gone(replay_state: ReplayState, record: dict[str, Any], at: int, offset: int) -> bool:
    replay_state.gone = True
    return True


_HANDLERS: dict[str, Callable[[ReplayState, dict[str, Any], int, int], bool]] = {
    "open": _open,
    "insert": _insert,
    "seal": _seal,
    "lease": _lease,
    "renew": _renew,
    "complete": _complete,
    "release": _release,
    "fail": _fail,
    "bury": _bury,
    "cancel": _cancel,
    "revoke": _revoke,
    "replace": _replace,
    "move": _move,
    "clock": _clock,
    "finish": _finish,
    "count": _counted,
    "gone": _gone,
}
"""The function that applies each kind of record. It returns whether the record applies. If a field is missing or wrong,
it raises KeyError, TypeError or ValueError before it changes anything.
"""


def _whole(value: Any) -> None:
    if type(value) is not int:
        raise TypeError


def _ranges(value: Any) -> None:
    if type(value) is not list or not all(type(start) is int and type(end) is int for start, end in value):
        raise TypeError


def _any(value: Any) -> None:
    pass


_NEEDED: dict[str, dict[str, Callable[[Any], object]]] = {
    "open": {"count": _whole},
    "insert": {"id": _text, "first": _whole},
    "lease": {"lease": _text, "tasks": _ranges, "until": _time},
    "renew": {"lease": _text, "tasks": _ranges, "until": _time},
    "complete": {"lease": _text, "tasks": _ranges},
    "release": {"lease": _text, "tasks": _ranges, "available_at": _time},
    "fail": {"lease": _text, "tasks": _ranges, "available_at": _time, "error": _text},
    "bury": {"tasks": _ranges, "reason": _text},
    "cancel": {"tasks": _ranges},
    "revoke": {"tasks": _ranges},
    "replace": {"tasks": _ranges, "payload": _any},
    "clock": {"tasks": _ranges, "since": _any},
    "count": {"file": _text, "offset": _whole, "count": _whole},
}
"""The fields that each kind of record needs to apply at all, and the check of each field's type."""


def is_well_formed(record: dict[str, Any]) -> bool:
    """Return whether a parsed record has the fields that its `op` needs; True if the `op` is not known.

    A well-formed record may still not apply: that depends on the records before it.
    """
    op = record["op"]
    try:
        for field, kind in _NEEDED.get(op, {}).items():
            kind(record[field])
    except (KeyError, TypeError, ValueError):
        return False
    return op != "insert" or not record.keys().isdisjoint(PAYLOAD)
