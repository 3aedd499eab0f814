"""Apply the records of a movement log to the state of each task (docs/format.md, "Movement logs").

Pure: no clock, no input or output. Any bytes replay to a valid state, and any prefix of them. Two readers of the same
bytes get the same state, and so does the process that writes them. A record may apply to some of its tasks only, or to
none. It changes nothing for the others.

A record of an update applies to all of its tasks or to none. It is judged where it stands, and acts at the `commit` of
its update, where nothing is judged again: between the two its tasks are frozen, and the log's time cannot be corrected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from fsqueue.clock import MS_MAX
from fsqueue.format import checkpoints, movements, names, priority, sparse
from fsqueue.format.checkpoints import Stretch
from fsqueue.format.movements import Record
from fsqueue.format.priority import Priority
from fsqueue.format.task_states import AVAILABLE, CANCELLED, COMPLETED, DEAD, LEASED, SKIPPED, Prepared, States

__all__ = ["AVAILABLE", "CANCELLED", "COMPLETED", "DEAD", "LEASED", "SKIPPED", "ReplayState"]

PAYLOAD = ("payload", "b64", "cut")
"""An `insert` has one of these; `cut` in the history, which keeps no long payloads."""
AT_MAX = MS_MAX
"""A record with a later time than this does not apply."""
SUMMED_AT_ONCE = 64
"""The checksum of a stretch takes in this many lines at a time: one at a time would be slower."""


PATIENCE_MS = (5_000, 3_600_000)
"""A prepared record asks for no shorter and no longer patience than these, whatever it says."""
DEPENDS = "depends"
"""A record of an update that changes nothing. It freezes tasks as they are, and is void if they are not so."""
Records = Iterable[tuple[int, Record]]
"""Parsed records of a log, each with its offset."""


class ReplayState(States):
    """Hold the state of a batch's tasks after the records replayed so far."""

    __slots__ = ("acted", "at", "damaged", "disputed", "end", "gone", "is_updated", "is_whole", "run", "stretch")
    end: int
    """Offset at which the last record ends, of a log that was read as a whole or from a checkpoint on
    (`storage.logs`)."""

    def __init__(self) -> None:
        self.at = 0
        """The largest `at` so far. Time does not run backwards in a log, unless a `clock` record corrects it."""
        self.gone = False
        """True if the log was retired: no record applies any more."""
        self.damaged = 0
        """The number of lines that are no records: torn ones that a later append has voided, or damaged ones."""
        self.is_whole = True
        """True if all records of the log were replayed. Else the replay began at a checkpoint, which tells nothing of a
        completed or cancelled task but its outcome."""
        self.is_updated = False
        """True if an update has acted among the records that were replayed."""
        self.stretch = Stretch()
        self.disputed: list[int] = []
        """The offsets of checkpoints that contradict the records before them."""
        self.run: list[tuple[int, Record]] = []
        """Records of an update that has no decision file, with their offsets: the last records so far. They are judged
        at their `commit`, and void if another record comes first."""
        self.acted: list[tuple[int, Record]] = []
        """The records that acted at an update's last record, with their offsets: none, unless that was a `commit`."""
        super().__init__()

    def replay(self, data: bytes, offset: int) -> int:
        """Replay the whole lines in `data`, which begins at `offset` of the log. Return how many bytes they are."""
        end = data.rfind(b"\n") + 1
        if end:
            data, at = data[:end], offset
            if checkpoints.MARK in data:
                self.replay_pieces([(offset, data)], offset)
                return end
            for line in data[:-1].split(b"\n"):
                record = movements.parse(line)
                if record is not None:
                    self.apply(record, at)
                else:
                    self.damaged += 1
                at += len(line) + 1
            self.stretch.cover(data)
        return end

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

    def _accept_checkpoint(self, record: Record, here: int, end: int) -> bool:
        """Compare a checkpoint with the records before it. If it is sound, begin a stretch at its end and return True.

        Skip a checkpoint that says another offset than its own, or that restates other bytes. Either it was written
        over records, or records were written over the bytes that it restates. Add one that contradicts the records to
        `disputed`.
        """
        stretch, self.run = self.stretch, []  # a checkpoint is a record, too
        if (record.get("here"), record.get("since"), record.get("sum")) != (here, stretch.since, stretch.sum):
            return False
        if self.prepared or not checkpoints.agrees(self, self.at, self.damaged, record):
            self.disputed.append(here)
            return False
        self.begin_stretch(end, end - here)
        return True

    def checkpoint(self, here: int, anyway: bool = False) -> bytes:
        """Return the line of the checkpoint for the offset `here`; b"" if none is due.

        None is due if all tasks have outcomes, since the log ends soon. None is while anything is prepared, since it
        would hide that: the append of the last outcome writes it. Unless `anyway`, none is due if the line would be too
        long for the bytes written since the last checkpoint. It then is due at a later offset.
        """
        if not self.remaining or self.prepared:
            return b""
        assert here >= self.stretch.since, "a checkpoint stands before the one that it follows"
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
        self.stretch, self.run = Stretch(since, size), []
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

    def apply(self, record: Record, offset: int) -> bool:
        """Apply a record that stands at `offset`, or is about to be written there. Return whether it applies, to any of
        its tasks. One of an update that is not written yet, or has a decision file, may only act later.
        """
        op, at = record["op"], record["at"]
        handler = _HANDLERS.get(op) if not self.run and "update" not in record else self._in_update(record, offset)
        if handler is None or self.gone or at > AT_MAX:
            return False
        if at < self.at:
            at = self.at
        try:
            applied = handler(self, record, at, offset)
        except (KeyError, TypeError, ValueError):
            applied = False  # a field is missing or of the wrong kind: checked before anything was changed
        if applied:
            self.at = at if op != "clock" else record["at"]
        if "name" in record or "from" in record:  # also if it does not apply: its author may have renamed all the same
            self.take_in_names(record)
        return applied

    def take_in_names(self, record: Record) -> None:
        """Take in the names of the task file that a record mentions."""
        for name in (record.get("from"), record.get("name")):
            if type(name) is str and names.parse_task_file(name) is not None:
                self.mention(name)

    def apply_all(self, records: Records, inserts: dict[int, Record]) -> None:
        """Apply parsed records, each with its offset. Keep in `inserts` those that insert a task, by its index.

        It does what `apply` does with each. Most records of a log complete one task under the lease that holds it:
        those are applied here, with few calls.
        """
        apply, places = self.apply, self.places
        state, since, holder, version, leases = self.state, self.since, self.holder, self.version, self.leases
        results, discard, now, completed = self.results, self.touched.discard, self.at, 0
        frozen = self.frozen
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
                        and not self.run
                        and start not in frozen
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
                            _keep_work_of_one(self, record, start)
                        continue
                except (KeyError, TypeError, ValueError, IndexError):
                    pass  # several ranges, or a record that may not apply: nothing was changed
            self._have_completed(completed, now)
            apply(record, offset)
            now, completed = self.at, 0
            if "update" in record:
                inserts.update({each["first"]: each for _, each in self.acted if each["op"] == "insert"})
            elif record["op"] == "insert" and self.count and self.version[-1] == offset:
                inserts[self.count - 1] = record
            if state is not self.state:  # `open` begins with new lists
                frozen, places, results, discard = self.frozen, self.places, self.results, self.touched.discard
                state, since, holder, version, leases = self.state, self.since, self.holder, self.version, self.leases
        self._have_completed(completed, now)

    def effective(self, records: Records) -> Iterator[tuple[int, Record]]:
        """Apply records, and yield each one with its offset behind that, in the order in which they act.

        A record of an update is held back until the `commit` at which it acts. Those that do not act are left out, and
        so are `commit` and `abort`. Any other record is yielded, also if it is void.
        """
        for offset, record in records:
            self.apply(record, offset)
            if "update" not in record:
                yield offset, record
            else:
                yield from self.acted

    def _in_update(self, record: Record, offset: int) -> Handler | None:
        """Return the function that applies a record of an update, or one that ends a run of such records; None if it is
        void."""
        run, self.run, self.acted = self.run, [], []
        if "update" not in record:
            return _HANDLERS.get(record["op"])
        op, update = record["op"], names.parse_update(record["update"])
        if update is None:
            return None
        if op == "abort":
            return _abort
        goes_on = bool(run) and run[0][1]["update"] == update
        if op == "commit":
            return partial(_commit_run, run) if goes_on else _commit
        if op not in _IN_UPDATES:
            return None
        if "file" in record:
            return _prepare
        if update not in self.prepared:
            self.run = run if goes_on else []
            self.run.append((offset, record))
        return _held_back

    def _have_completed(self, tasks: int, at: int) -> None:
        """Count tasks that were completed, the last one at `at`; the log's time, if none was."""
        self.at = at
        self.remaining -= tasks
        self.done[COMPLETED] += tasks

    def _tasks(self, record: Record) -> list[int]:
        """Return the indices in a record's ranges. TypeError or ValueError if they are no ascending ranges of tasks."""
        ranges = record["tasks"]
        if type(ranges) is not list:
            raise TypeError
        if len(ranges) == 1:  # as in most cases: one task
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


def _lease_id(record: Record) -> str | None:
    lease = record.get("lease")
    return None if lease is None else _text(lease)


def _open(replay_state: ReplayState, record: Record, at: int, offset: int) -> bool:
    if replay_state.opened:
        return False
    inserts = record.get("inserts")
    count = _count(record["count"]) if inserts is None else _zero(record["count"])
    available_at, domain = _time(record.get("available_at", 0)), None if inserts is None else _text(inserts)
    replay_state.begin(count, available_at, offset)
    replay_state.opened, replay_state.inserts = True, domain
    replay_state.inserted_at = min(_time(record.get("birth", at)), at)
    return True


def _insert(replay_state: ReplayState, record: Record, at: int, offset: int) -> bool:
    identity, index, available_at, wanted = _inserted(record)
    return replay_state.insert(at, identity, index, available_at, offset, wanted)


def _inserted(record: Record) -> tuple[str, int, int, Priority | None]:
    """Return the id of an `insert`, the task's index, from when it is available (ms), and its priority."""
    identity, first, available_at = _text(record["id"]), record["first"], _time(record.get("available_at", 0))
    if type(first) is not int or record.keys().isdisjoint(PAYLOAD):
        raise ValueError
    given = record.get("priority")
    return identity, first, available_at, None if given is None or priority.fault(given) is not None else given


def _seal(replay_state: ReplayState, record: Record, at: int, offset: int) -> bool:
    """End the inserts. The record's other fields are for readers that begin at the end of the log."""
    if not replay_state.takes_inserts:
        return False
    replay_state.sealed = True
    return True


def _lease(replay_state: ReplayState, record: Record, at: int, offset: int) -> bool:
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


def _renew(replay_state: ReplayState, record: Record, at: int, offset: int) -> bool:
    """Extend what the lease holds and has not run out, frozen tasks too."""
    lease, tasks, until, renewed = _text(record["lease"]), replay_state._tasks(record), _time(record["until"]), False
    for index in replay_state.named_by(tasks, lease):
        if at < replay_state.since[index]:
            replay_state.since[index], replay_state.version[index] = until, offset
            renewed = True
    if renewed:
        replay_state._expects(until, replay_state.leases[lease])
    return renewed


def _complete(replay_state: ReplayState, record: Record, at: int, offset: int) -> bool:
    done = replay_state.held(replay_state._tasks(record), _text(record["lease"]))
    _complete_held(replay_state, record, at, offset, done)
    return bool(done)


def _complete_held(replay_state: ReplayState, record: Record, at: int, offset: int, done: list[int]) -> None:
    replay_state.complete(at, done, offset, record.get("result"))
    _keep_work(replay_state, record, done)


def _keep_work(replay_state: ReplayState, record: Record, done: list[int]) -> None:
    """Keep how long the work on completed tasks took, and what it used, as far as their record tells."""
    if "took" in record:
        replay_state.took.update({index: ms for index in done if (ms := movements.took_ms(record, index)) is not None})
    if "used" in record or replay_state.used:
        _note_used(replay_state, record, done)


def _keep_work_of_one(replay_state: ReplayState, record: Record, index: int) -> None:
    """Keep what `_keep_work` keeps, of a record that names one task alone, in one range."""
    took = record.get("took")
    if took is not None:
        if type(took) is list:
            took = took[0] if took else None
        if type(took) is int and 0 <= took <= movements.TIME_MAX:
            replay_state.took[index] = took
    given = record.get("used")
    used = movements.usage(given[0]) if type(given) is list and given else None
    if used is not None:
        replay_state.used[index] = used
    elif replay_state.used:
        replay_state.used.pop(index, None)


_OF_ONE = frozenset(("op", "at", "lease", "tasks", "result", "took", "used"))
"""The fields of a `complete` record that does nothing but complete: it names no task file."""


def _note_used(replay_state: ReplayState, record: Record, tasks: list[int]) -> None:
    """Take in what the attempts used that a record ends. Where it does not tell, forget what earlier ones used."""
    for index in tasks:
        used = movements.used(record, index)
        if used is not None:
            replay_state.used[index] = used
        else:
            replay_state.used.pop(index, None)


def _release(replay_state: ReplayState, record: Record, at: int, offset: int) -> bool:
    return bool(_give_back(replay_state, record, offset, None))


def _fail(replay_state: ReplayState, record: Record, at: int, offset: int) -> bool:
    failed = _give_back(replay_state, record, offset, _text(record["error"]))
    if "used" in record or replay_state.used:
        _note_used(replay_state, record, failed)
    return bool(failed)


def _give_back(replay_state: ReplayState, record: Record, offset: int, error: str | None) -> list[int]:
    """Release the tasks that the lease holds; with an `error` charge each an attempt. Return them."""
    lease, tasks, available_at = _text(record["lease"]), replay_state._tasks(record), _time(record["available_at"])
    returned = replay_state.held(tasks, lease)
    for index in returned:
        if error is not None:
            replay_state.attempts[index] += 1
            replay_state.errors[index] = error
        replay_state._return(index, available_at, offset)
        replay_state.ended.add((index, lease))
    return returned


def _bury(replay_state: ReplayState, record: Record, at: int, offset: int) -> bool:
    """Bury the tasks of a `bury` record: by their lease or, without one, if no lease holds them. Then the record may
    name the worker that made the last attempt.
    """
    lease, reason, worker = _lease_id(record), _text(record["reason"]), record.get("worker")
    buried = _held_or_free(replay_state, lease, replay_state._tasks(record), at)
    for index in buried:
        if lease is not None:
            replay_state.attempts[index] += 1
            replay_state.ended.add((index, lease))
        else:
            replay_state._expire(index)
            if type(worker) is dict:
                replay_state.blamed[index] = worker
        replay_state.errors[index] = reason
        replay_state.decide(index, DEAD, at, offset)
    if lease is not None and ("used" in record or replay_state.used):  # without one, the last attempt's counts
        _note_used(replay_state, record, buried)
    return bool(buried)


def _held_or_free(replay_state: ReplayState, lease: str | None, tasks: list[int], at: int) -> list[int]:
    """Return the tasks among `tasks` that a lease holds; without a lease, those that no lease holds at `at`."""
    if lease is not None:
        return replay_state.held(tasks, lease)
    return [index for index in tasks if replay_state.is_free(index, at)]


def _cancel(replay_state: ReplayState, record: Record, at: int, offset: int) -> bool:
    """Cancel tasks: by their lease or, given the version seen, if no lease holds them."""
    lease, tasks, versions = _lease_id(record), replay_state._tasks(record), record.get("versions")
    if versions is not None and (type(versions) is not list or len(versions) != len(tasks)):
        raise ValueError
    cancelled = _held_or_free(replay_state, lease, tasks, at)
    if lease is None:
        seen = {} if versions is None else dict(zip(tasks, versions, strict=True))
        cancelled = [index for index in cancelled if seen.get(index) == replay_state.version[index]]
    for index in cancelled:
        replay_state.decide(index, CANCELLED, at, offset)
    return bool(cancelled)


def _revoke(replay_state: ReplayState, record: Record, at: int, offset: int) -> bool:
    """End leases from outside, uncharged: without a `lease` whichever holds a task."""
    lease, tasks = _lease_id(record), replay_state._tasks(record)
    if lease is not None:
        revoked = replay_state.held(tasks, lease)
    else:
        frozen = replay_state.frozen
        revoked = [index for index in tasks if replay_state.state[index] == LEASED and index not in frozen]
    for index in revoked:
        replay_state._return(index, at, offset)
    return bool(revoked)


def _replace(replay_state: ReplayState, record: Record, at: int, offset: int) -> bool:
    """Give a task the new payload of a `replace` record. Its lease does that, and goes on; or the record names
    the version that its author saw, and the task is free.
    """
    lease, tasks, payload = _lease_id(record), replay_state._tasks(record), record["payload"]
    if len(tasks) != 1:
        raise ValueError
    [index] = tasks
    if not _held_or_free(replay_state, lease, tasks, at):
        return False
    if lease is None and record.get("version") != replay_state.version[index]:
        return False
    replay_state.payloads[index], replay_state.version[index] = payload, offset
    replay_state.touched.add(index)
    if replay_state.state[index] == AVAILABLE:
        replay_state._comes_back(index)
    return True


def _change(replay_state: ReplayState, record: Record, at: int, offset: int) -> bool:
    """Give tasks that no lease holds another priority, another time, or both, if they have the versions seen."""
    tasks, versions = replay_state._tasks(record), record["versions"]
    available_at = _time(record["available_at"]) if "available_at" in record else None
    given = record.get("priority")
    if type(versions) is not list or len(versions) != len(tasks):
        raise ValueError
    if given is not None and priority.fault(given) is not None:
        raise ValueError
    seen = zip(tasks, versions, strict=True)
    changed = [
        index for index, version in seen if version == replay_state.version[index] and replay_state.is_free(index, at)
    ]
    for index in changed:
        if "priority" in record:
            replay_state.prioritize(index, given)
        replay_state.change(index, at, available_at, offset)
    return bool(changed)


def _move(replay_state: ReplayState, record: Record, at: int, offset: int) -> bool:
    """Change nothing: only the names of a `move` count."""
    return True


def _clock(replay_state: ReplayState, record: Record, at: int, offset: int) -> bool:
    """Correct the time of the log: the record's own `at` counts, although it is smaller than the one before."""
    tasks, since = replay_state._tasks(record), record["since"]
    if replay_state.prepared:
        return False  # what was in time when it was judged must not be late when it acts
    if type(since) is not list or len(since) != len(tasks) or record["at"] >= replay_state.at:
        raise ValueError
    replay_state.reschedule(record["at"], dict(zip(tasks, map(_time, since), strict=True)))
    replay_state.inserted_at = min(replay_state.inserted_at, record["at"])
    return True


def _finish(replay_state: ReplayState, record: Record, at: int, offset: int) -> bool:
    if replay_state.remaining or not replay_state.opened or replay_state.prepared:
        return False
    replay_state.finished = True
    return True


def _counted(replay_state: ReplayState, record: Record, at: int, offset: int) -> bool:
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


def _gone(replay_state: ReplayState, record: Record, at: int, offset: int) -> bool:
    replay_state.gone = True
    return True


Handler = Callable[[ReplayState, Record, int, int], bool]
_HANDLERS: dict[str, Handler] = {
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
    "change": _change,
    "move": _move,
    "clock": _clock,
    "finish": _finish,
    "count": _counted,
    "gone": _gone,
}
"""The function that applies each kind of record. It returns whether the record applies. If a field is missing or wrong,
it raises KeyError, TypeError or ValueError before it changes anything.
"""


# -- updates --------------------------------------------------------------------------------------


def _held_back(replay_state: ReplayState, record: Record, at: int, offset: int) -> bool:
    """Change nothing: the record of an update is in `run`, and the update's `commit` judges it."""
    return False


def _prepare(replay_state: ReplayState, record: Record, at: int, offset: int) -> bool:
    """Judge a record of an update that a decision file decides. Keep it if it applies to all of its tasks."""
    update, file = record["update"], names.parse_decisions(record["file"])  # `_in_update` has parsed the update
    patience_ms = _time(record.get("patience", 0))
    if file is None:
        return False
    prepared = replay_state.prepared.get(update) or Prepared(update, file, PATIENCE_MS[0])
    if prepared.file != file or not _judge(replay_state, prepared, record, at, offset):
        return False
    prepared.patience_ms = max(prepared.patience_ms, min(patience_ms, PATIENCE_MS[1]))
    replay_state.prepared[update] = prepared
    return True


def _judge(replay_state: ReplayState, prepared: Prepared, record: Record, at: int, offset: int) -> bool:
    """Note a prepared record of an update, if it applies to all of its tasks at the place where it stands.
    Return whether it does.
    """
    op = record["op"]
    if op == "insert":
        identity, index, available_at, wanted = _inserted(record)
        if not replay_state.may_insert(identity, index):
            return False
        replay_state.reserve(identity, index, at, offset)
        prepared.verdicts.append((index, available_at, wanted))
    else:
        tasks = replay_state._tasks(record)
        if not tasks or not _IN_UPDATES[op](replay_state, record, at, tasks):
            return False
        replay_state.freeze(prepared, tasks, at if op == DEPENDS else None)
        prepared.verdicts.append(tasks)
    prepared.records.append((offset, at, record))
    return True


def _is_held(replay_state: ReplayState, record: Record, at: int, tasks: list[int]) -> bool:
    return replay_state.held(tasks, _text(record["lease"])) == tasks


def _may_renew(replay_state: ReplayState, record: Record, at: int, tasks: list[int]) -> bool:
    _time(record["until"])
    return _is_held(replay_state, record, at, tasks) and all(at < replay_state.since[index] for index in tasks)


def _may_return(replay_state: ReplayState, record: Record, at: int, tasks: list[int]) -> bool:
    _time(record["available_at"])
    if record["op"] == "fail":
        _text(record["error"])
    return _is_held(replay_state, record, at, tasks)


def _is_held_or_free(replay_state: ReplayState, record: Record, at: int, tasks: list[int]) -> bool:
    return _held_or_free(replay_state, _lease_id(record), tasks, at) == tasks


def _may_bury(replay_state: ReplayState, record: Record, at: int, tasks: list[int]) -> bool:
    _text(record["reason"])
    return _is_held_or_free(replay_state, record, at, tasks)


def _may_cancel(replay_state: ReplayState, record: Record, at: int, tasks: list[int]) -> bool:
    seen = [replay_state.version[index] for index in tasks]
    named = record.get("versions")
    if named is not None and (type(named) is not list or len(named) != len(tasks)):
        return False
    return _is_held_or_free(replay_state, record, at, tasks) and (_lease_id(record) is not None or named == seen)


def _may_replace(replay_state: ReplayState, record: Record, at: int, tasks: list[int]) -> bool:
    if len(tasks) != 1 or "payload" not in record or not _is_held_or_free(replay_state, record, at, tasks):
        return False
    return _lease_id(record) is not None or record.get("version") == replay_state.version[tasks[0]]


def _may_depend(replay_state: ReplayState, record: Record, at: int, tasks: list[int]) -> bool:
    lease, versions = _lease_id(record), record.get("versions")
    if not all(map(replay_state.may_share, tasks)):
        return False
    if lease is not None:
        return replay_state.named_by(tasks, lease) == tasks
    if not all(replay_state.state[index] in (AVAILABLE, LEASED) for index in tasks):
        return False
    return type(versions) is list and versions == [replay_state.version[index] for index in tasks]


_IN_UPDATES: dict[str, Callable[[ReplayState, Record, int, list[int]], bool]] = {
    "insert": lambda replay_state, record, at, tasks: True,
    "renew": _may_renew,
    "complete": _is_held,
    "release": _may_return,
    "fail": _may_return,
    "bury": _may_bury,
    "cancel": _may_cancel,
    "replace": _may_replace,
    DEPENDS: _may_depend,
}
"""The kinds of records that an update may have. The function returns whether the record applies to all of these tasks.
If a field is missing or wrong, it returns False, or raises KeyError, TypeError or ValueError. It changes nothing.
"""


def _commit(replay_state: ReplayState, record: Record, at: int, offset: int) -> bool:
    """Let the prepared records of an update act, if they are as many as the `commit` says."""
    prepared = replay_state.prepared.get(record["update"])
    if prepared is None or type(record["of"]) is not int or record["of"] != len(prepared.records):
        return False
    del replay_state.prepared[prepared.update]
    _act(replay_state, prepared)
    return True


def _commit_run(run: list[tuple[int, Record]], replay_state: ReplayState, record: Record, at: int, offset: int) -> bool:
    """Let the records of an update act that stand directly before its `commit`: all, or none if one does not apply."""
    update, of = names.parse_update(record["update"]), record["of"]
    if update is None or type(of) is not int or of != len(run):
        return False
    prepared, time = Prepared(update, None, 0), replay_state.at
    for offset_of_part, part in run:
        time = max(time, part["at"])
        try:
            applies = time <= AT_MAX and _judge(replay_state, prepared, part, time, offset_of_part)
        except (KeyError, TypeError, ValueError):
            applies = False
        if not applies:
            replay_state.thaw(prepared)
            replay_state.expect_again(prepared)
            return False
    _act(replay_state, prepared)
    return True


def _act(replay_state: ReplayState, prepared: Prepared) -> None:
    """Apply records of an update that were judged, in their order, each at its own time. Nothing is judged again.

    What a record needs to apply cannot have changed since, while its tasks were frozen.
    """
    replay_state.is_updated = True
    replay_state.thaw(prepared)
    for (offset, at, record), verdict in zip(prepared.records, prepared.verdicts, strict=True):
        op = record["op"]
        if isinstance(verdict, tuple):
            index, available_at, wanted = verdict
            replay_state.bring(at, index, available_at, offset, wanted)
        elif op == "complete":
            _complete_held(replay_state, record, at, offset, verdict)
        elif op == "renew":
            replay_state.extend(verdict, record["until"], offset)
        elif op != DEPENDS:
            _HANDLERS[op](replay_state, record, at, offset)
        replay_state.acted.append((offset, record))
    replay_state.expect_again(prepared)


def _abort(replay_state: ReplayState, record: Record, at: int, offset: int) -> bool:
    """Make the prepared records of an update void. The indices of its inserts have no task."""
    prepared = replay_state.prepared.pop(record["update"], None)
    if prepared is None:
        return False
    replay_state.thaw(prepared)
    replay_state.expect_again(prepared)
    return True


# -- the form of records --------------------------------------------------------------------------


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
    DEPENDS: {"tasks": _ranges},
    "change": {"tasks": _ranges, "versions": _any},
    "clock": {"tasks": _ranges, "since": _any},
    "count": {"file": _text, "offset": _whole, "count": _whole},
}
"""The fields that each kind of record needs to apply at all, and the check of each field's type."""


def is_well_formed(record: Record) -> bool:
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
