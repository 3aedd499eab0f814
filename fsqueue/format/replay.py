"""The replay: from the records of a movement log to the state of each task (docs/format.md, "Movement logs").

Pure: no clock, no input or output. Every byte string is some valid state, any prefix too, and two
readers of the same bytes agree. A record that does not apply, or not to some of its tasks, is as
if it had never been written (for those tasks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fsqueue.clock import MS_MAX
from fsqueue.format import movements, names, sparse
from fsqueue.format.task_states import AVAILABLE, CANCELLED, COMPLETED, DEAD, LEASED, States

__all__ = ["AVAILABLE", "CANCELLED", "COMPLETED", "DEAD", "LEASED", "ReplayState"]

TIME_MAX = 10**14
AT_MAX = MS_MAX


class ReplayState(States):
    """The state of a batch's tasks after the records replayed so far."""

    def __init__(self) -> None:
        self.at = 0
        """The largest `at` so far: time does not run backwards in a log, unless a `clock` record sets it right."""
        self.gone = False
        self.damaged = 0
        """Lines that are no records: torn ones that were voided, or worse."""
        super().__init__()

    def replay(self, data: bytes, offset: int) -> int:
        """Replay the whole lines in `data`, which begins at `offset` of the log. Return how many bytes those are."""
        end = data.rfind(b"\n") + 1
        if end:
            at = offset
            for line in data[: end - 1].split(b"\n"):
                record = movements.parse(line)
                if record is not None:
                    self.apply(record, at)
                else:
                    self.damaged += 1
                at += len(line) + 1
        return end

    def replay_pieces(self, pieces: Iterable[sparse.Piece], begin: int) -> int:
        """Fold the whole lines in the pieces of a log from `begin` on; return the offset behind the last of them."""
        end = begin
        for offset, line, length in sparse.lines(pieces, begin):
            record = movements.parse(line)
            if record is not None:
                self.apply(record, offset)
            else:
                self.damaged += 1
            end = offset + length + 1
        return end

    def apply(self, record: dict[str, Any], offset: int) -> None:
        """Apply one parsed record that stands at `offset`."""
        handler = _HANDLERS.get(record["op"])
        if handler is None or self.gone or record["at"] > AT_MAX:
            return
        at = max(record["at"], self.at)
        try:
            applied = handler(self, record, at, offset)
        except (KeyError, TypeError, ValueError):
            applied = False  # a field is missing or of the wrong kind: checked before anything was changed
        if applied:
            self.at = at if record["op"] != "clock" else record["at"]
        for field in ("from", "name"):  # also of a record that does not apply: its author may have renamed all the same
            name = record.get(field)
            if type(name) is str and names.parse_task_file(name) is not None:
                self.mention(name)

    def _tasks(self, record: dict[str, Any]) -> list[int]:
        ranges = record["tasks"]
        if type(ranges) is not list:
            raise TypeError
        tasks: list[int] = []
        last = 0
        for start, end in ranges:
            if type(start) is not int or type(end) is not int or not last <= start < end <= self.count:
                raise ValueError
            tasks.extend(range(start, end))
            last = end
        return tasks


def _time(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= TIME_MAX:
        raise ValueError
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= names.BATCH_TASKS_MAX:
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
    if replay_state.count:
        return False
    replay_state.begin(_count(record["count"]), _time(record.get("available_at", 0)), offset)
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
    if "took" in record:
        replay_state.took.update({index: ms for index in done if (ms := movements.took_ms(record, index)) is not None})
    return bool(done)


def _release(replay_state: ReplayState, record: dict[str, Any], at: int, offset: int) -> bool:
    return bool(
        replay_state.give_back(
            _text(record["lease"]), replay_state._tasks(record), _time(record["available_at"]), offset
        )
    )


def _fail(replay_state: ReplayState, record: dict[str, Any], at: int, offset: int) -> bool:
    available_at, error = _time(record["available_at"]), _text(record["error"])
    return bool(
        replay_state.give_back(_text(record["lease"]), replay_state._tasks(record), available_at, offset, error)
    )


def _bury(replay_state: ReplayState, record: dict[str, Any], at: int, offset: int) -> bool:
    return bool(replay_state.bury(at, _lease_id(record), replay_state._tasks(record), _text(record["reason"]), offset))


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
    """Set the time right: the record's own `at` counts, though it is smaller than before."""
    tasks, since = replay_state._tasks(record), record["since"]
    if type(since) is not list or len(since) != len(tasks) or record["at"] >= replay_state.at:
        raise ValueError
    replay_state.reschedule(record["at"], dict(zip(tasks, map(_time, since), strict=True)))
    return True


def _finish(replay_state: ReplayState, record: dict[str, Any], at: int, offset: int) -> bool:
    if replay_state.left or not replay_state.count:
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
