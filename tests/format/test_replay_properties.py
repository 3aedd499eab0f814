"""Properties of the replay: any bytes are a log, two readers agree, and a second, naive fold agrees with the first."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fsqueue.format import movements
from fsqueue.format.replay import AVAILABLE, CANCELLED, COMPLETED, DEAD, LEASED, ReplayState
from tests import record_lines
from tests.levels import how_many
from tests.support import full_state

pytestmark = pytest.mark.slow

OUTCOMES = (COMPLETED, CANCELLED, DEAD)
NAMES = [f"{time:013d}-{'ab' * 16}-3.jsonl" for time in (0, 50, 90)]

# -- logs --------------------------------------------------------------------------------------------

times = st.integers(0, 120)
lease_ids = st.sampled_from("abcd")
tasks = st.sets(st.integers(0, 3), min_size=1).map(
    lambda chosen: [list(pair) for pair in movements.to_ranges(sorted(chosen))]
)
untils = st.integers(0, 160)
names = st.sampled_from(NAMES)


def records_of(op: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"op": st.just(op), "at": times, **fields})


parts = st.one_of(
    records_of("lease", lease=lease_ids, tasks=tasks, until=untils, several=st.booleans()),
    records_of("lease", lease=lease_ids, tasks=tasks, until=untils, **{"from": names, "name": names}),
    records_of("renew", lease=lease_ids, tasks=tasks, until=untils),
    records_of("complete", lease=lease_ids, tasks=tasks),
    records_of("complete", lease=lease_ids, tasks=tasks, result=st.integers(0, 3)),
    records_of("release", lease=lease_ids, tasks=tasks, available_at=untils),
    records_of("fail", lease=lease_ids, tasks=tasks, available_at=untils, error=st.sampled_from(["e1", "e2"])),
    records_of("bury", lease=st.none() | lease_ids, tasks=tasks, reason=st.just("r")),
    records_of("cancel", lease=lease_ids, tasks=tasks),
    records_of("replace", lease=lease_ids, tasks=tasks, payload=st.integers(5, 9)),
)
loose = st.one_of(
    records_of("cancel", tasks=tasks, versions=st.just("seen")),
    records_of("replace", tasks=tasks, version=st.just("seen"), payload=st.integers(5, 9)),
    records_of("change", tasks=tasks, versions=st.just("seen"), available_at=untils),
    records_of("change", tasks=tasks, versions=st.just("seen"), priority=st.none() | st.integers(0, 3)),
    records_of("change", tasks=tasks, versions=st.just("seen"), available_at=untils, priority=st.just("p")),
    records_of("revoke", tasks=tasks),
    records_of("revoke", tasks=tasks, lease=lease_ids),
    records_of("move", **{"from": names, "name": names}),
    records_of("finish"),
    records_of("count", file=st.just("00"), offset=st.integers(0, 2), count=st.integers(1, 2)),
    records_of("open", count=st.integers(1, 4)),
)
records = st.one_of(parts, parts, loose)
openings = records_of("open", count=st.integers(1, 4), available_at=st.sampled_from([0, 0, 30]), name=names)
noise = st.one_of(
    st.sampled_from(
        [b"~\n", b"\n", b'{"op":"lease","at":5\n', b"[]\n", b'{"op":"gone"}\n', b'torn{"op":"gone","at":1}\n']
    ),
    st.binary(max_size=12).map(lambda junk: junk.replace(b"\n", b"") + b"~\n"),
)


@st.composite
def logs(draw: st.DrawFn, most: int = 25) -> bytes:
    """A log of records that often apply: what was seen is named as of then."""
    data = json.dumps(draw(openings)).encode() + b"\n"
    replay_state = ReplayState()
    replay_state.replay(data, 0)
    for _ in range(draw(st.integers(0, most))):
        if draw(st.integers(0, 9)) == 0:
            line = draw(noise)
        else:
            record = dict(draw(records))
            seen = [
                replay_state.version[index]
                for start, end in record.get("tasks", ())
                for index in range(start, end)
                if index < replay_state.count
            ]
            if record.get("versions") == "seen":
                record["versions"] = seen
            if record.get("version") == "seen":
                record["version"] = seen[0] if seen else 0
            line = json.dumps(record).encode() + b"\n"
        replay_state.replay(line, len(data))
        data += line
    return data


def folded(data: bytes) -> ReplayState:
    replay_state = ReplayState()
    replay_state.replay(data, 0)
    return replay_state


works = st.fixed_dictionaries(
    {},
    optional={"took": st.integers(-1, 9) | st.just([4]), "used": st.just([[5, 6]]), "name": names, "result": st.none()},
)


@given(logs(), st.data())
@settings(max_examples=how_many(16, 1500))
def test_all_at_once_is_as_one_after_the_other(data: bytes, more: st.DataObject) -> None:
    """What reads whole logs goes a faster way with most `complete` records."""
    parsed = [record for line in data.split(b"\n") if (record := movements.parse(line)) is not None]
    for record in parsed:
        if record["op"] == "complete":
            record |= more.draw(works)
            if more.draw(st.integers(0, 5)) == 0:
                record["tasks"] = more.draw(
                    st.sampled_from([[[0, 1, 2]], [[True, 1]], [["a", "b"]], {"ab": 1}, [[3, 9]], 7])
                )
        elif record["op"] in ("fail", "bury") and more.draw(st.booleans()):
            record["used"] = [[7, 8]]
    one, all_of_them = ReplayState(), ReplayState()
    for offset, record in enumerate(parsed):
        one.apply(record, offset)
    all_of_them.apply_all(enumerate(parsed), {})
    assert full_state(all_of_them) == full_state(one)
    assert (all_of_them.took, all_of_them.used, all_of_them.touched) == (one.took, one.used, one.touched)


def lines_of(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True) if b"\r" not in data else [line + b"\n" for line in data.split(b"\n")[:-1]]


def check(replay_state: ReplayState) -> None:
    """What holds of every state there is."""
    count = replay_state.count
    assert all(
        len(column) == count
        for column in (
            replay_state.state,
            replay_state.since,
            replay_state.holder,
            replay_state.attempts,
            replay_state.version,
        )
    )
    undecided = [index for index in range(count) if replay_state.state[index] in (AVAILABLE, LEASED)]
    assert replay_state.remaining == len(undecided)
    for outcome in OUTCOMES:
        assert replay_state.done[outcome] == list(replay_state.state).count(outcome)
    assert replay_state.remaining + sum(replay_state.done) == count
    for index in range(count):
        holders = [lease for lease in replay_state.leases if replay_state.holds(index, lease)]
        assert len(holders) == (1 if replay_state.state[index] == LEASED else 0)
        assert replay_state.attempts[index] >= 0
    if replay_state.finished:
        assert replay_state.remaining == 0
    replay_state.next_time()
    replay_state.exhausted(replay_state.at)


# -- any bytes ---------------------------------------------------------------------------------------


@given(st.binary(max_size=300))
def test_any_byte_string_is_a_valid_log(data: bytes) -> None:
    replay_state = ReplayState()
    used = replay_state.replay(data, 0)
    assert used == data.rfind(b"\n") + 1
    check(replay_state)


@given(logs(12), st.data())
def test_a_damaged_log_is_a_valid_log(data: bytes, draw: st.DataObject) -> None:
    damaged = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 6))):
        place = draw.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = draw.draw(st.sampled_from(b'\n"{}[],:0179aet\x00\xff'))
    replay_state = folded(bytes(damaged))
    check(replay_state)
    for at in (0, replay_state.at, 10**12):
        folded(bytes(damaged)).choose(at, 3, 50, 2)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**66) | st.floats() | st.sampled_from(["", "a", "lease", *NAMES]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["op", "at", "lease", "tasks"]), inner, max_size=3)
    ),
    max_leaves=6,
)
fields = [
    "at",
    "lease",
    "tasks",
    "until",
    "available_at",
    "error",
    "reason",
    "versions",
    "version",
    "payload",
    "id",
    "records",
    "count",
    "file",
]


@given(
    logs(8),
    st.lists(st.tuples(records, st.dictionaries(st.sampled_from(fields), values, min_size=1, max_size=2)), max_size=8),
)
def test_fields_of_the_wrong_kind_are_as_if_never_written(
    data: bytes, wrong: list[tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    for record, other in wrong:
        data += json.dumps({**record, **other}).encode() + b"\n"
    replay_state = folded(data)
    check(replay_state)
    replay_state.choose(10**12, 9, 50, 3)


@given(logs(), st.data())
def test_any_prefix_is_a_valid_log(data: bytes, draw: st.DataObject) -> None:
    prefix = data[: draw.draw(st.integers(0, len(data)))]
    replay_state = folded(prefix)
    check(replay_state)
    assert full_state(replay_state) == full_state(folded(prefix[: prefix.rfind(b"\n") + 1])), (
        "a torn tail changes nothing"
    )


@given(logs(), st.data())
def test_folding_in_pieces_is_folding_at_once(data: bytes, draw: st.DataObject) -> None:
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=4)))
    replay_state, done = ReplayState(), 0
    for cut in [*cuts, len(data)]:
        done += replay_state.replay(data[done:cut], done)
    assert done == len(data)
    assert full_state(replay_state) == full_state(folded(data))


@given(logs(), st.data())
def test_a_voided_torn_line_changes_nothing(data: bytes, draw: st.DataObject) -> None:
    lines = lines_of(data)
    place = draw.draw(st.integers(1, len(lines)))
    torn = draw.draw(st.sampled_from(lines))[:-1]
    torn = torn[: draw.draw(st.integers(1, max(1, len(torn))))]
    head, tail = b"".join(lines[:place]), b"".join(lines[place:])
    plain = folded(head + b"~" * (len(torn) + 1) + b"\n" + tail)
    voided = folded(head + torn + movements.VOID + tail)
    assert full_state(voided) == full_state(plain)


@given(logs(), st.data())
def test_a_record_that_stands_there_twice_acts_once(data: bytes, draw: st.DataObject) -> None:
    """Only the version of what a renewal or a replacement touched moves on: it is an offset."""
    lines = lines_of(data)
    place = draw.draw(st.integers(0, len(lines) - 1))
    head, line = b"".join(lines[:place]), lines[place]
    once, twice = folded(head + line), folded(head + line + line)
    state_once, state_twice = full_state(once), full_state(twice)
    if json_or_none(line).get("op") in ("renew", "replace"):
        state_once.pop("version"), state_twice.pop("version")
    state_once.pop("damaged"), state_twice.pop("damaged")
    assert state_once == state_twice


def json_or_none(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@given(logs())
def test_states_are_consistent_after_every_record(data: bytes) -> None:
    replay_state, done = ReplayState(), 0
    for line in lines_of(data):
        before, outcomes, latest = full_state(replay_state), list(replay_state.state), replay_state.at
        done += replay_state.replay(line, done)
        check(replay_state)
        assert replay_state.at >= latest
        for index, outcome in enumerate(outcomes):
            if outcome in OUTCOMES:
                assert replay_state.state[index] == outcome, (
                    f"an outcome is final, but {line!r} changed it after {before}"
                )


# -- a second opinion -----------------------------------------------------------------------------------


@dataclasses.dataclass
class OracleTask:
    state: str = "available"
    since: int = 0
    lease: str = ""
    attempts: int = 0
    solo: bool = False
    payload: Any = None
    version: int = 0
    priority: Any = None


class Oracle:
    """The rules of docs/format.md, "Movement logs", once more: slowly, a task at a time, from scratch."""

    def __init__(self) -> None:
        self.at = 0
        self.tasks: list[OracleTask] = []
        self.sizes: dict[str, tuple[int, bool]] = {}
        self.finished = False

    def free(self, task: OracleTask, at: int) -> bool:
        return task.state == "available" or (task.state == "leased" and task.since <= at)

    def expire(self, task: OracleTask) -> None:
        if task.state == "leased":
            size, several = self.sizes[task.lease]
            if size == 1 and not several:
                task.attempts += 1
            else:
                task.solo = True

    def read(self, data: bytes) -> Oracle:
        offset = 0
        for line in data.split(b"\n")[:-1]:
            record = json_or_none(line)
            if isinstance(record.get("op"), str) and isinstance(record.get("at"), int):
                self.apply(record, offset)
            offset += len(line) + 1
        return self

    def apply(self, record: dict[str, Any], offset: int) -> None:
        at = max(record["at"], self.at)
        chosen = [index for start, end in record.get("tasks", ()) for index in range(start, end)]
        if any(index >= len(self.tasks) for index in chosen):
            return
        if self.act(record["op"], record, at, offset, [self.tasks[index] for index in chosen]):
            self.at = at

    def act(self, op: str, record: dict[str, Any], at: int, offset: int, tasks: list[OracleTask]) -> bool:
        lease = record.get("lease")
        mine = [task for task in tasks if task.state == "leased" and task.lease == lease]
        match op:
            case "open":
                if not self.tasks:
                    since = record.get("available_at", 0)
                    self.tasks = [OracleTask(since=since, version=offset) for _ in range(record["count"])]
                    return True
            case "lease":
                if lease in self.sizes:
                    return False
                given = [task for task in tasks if self.free(task, at) and (task.state == "leased" or task.since <= at)]
                for task in given:
                    self.expire(task)
                    task.state, task.since, task.lease, task.version = "leased", record["until"], lease, offset
                if given:
                    self.sizes[lease] = len(given), record.get("several", False)
                return bool(given)
            case "renew":
                in_time = [task for task in mine if at < task.since]
                for task in in_time:
                    task.since, task.version = record["until"], offset
                return bool(in_time)
            case "complete":
                return self.settle(mine, "completed", at, offset)
            case "release" | "fail":
                for task in mine:
                    task.attempts += op == "fail"
                    task.state, task.since, task.version = "available", record["available_at"], offset
                return bool(mine)
            case "revoke":
                revoked = mine if lease is not None else [task for task in tasks if task.state == "leased"]
                for task in revoked:
                    task.state, task.since, task.version = "available", at, offset
                return bool(revoked)
            case "bury":
                if lease is None:
                    mine = [task for task in tasks if self.free(task, at)]
                    for task in mine:
                        self.expire(task)
                else:
                    for task in mine:
                        task.attempts += 1
                return self.settle(mine, "dead", at, offset)
            case "cancel":
                if lease is None:
                    versions = record.get("versions")
                    if versions is None or len(versions) != len(tasks):
                        return False
                    mine = [
                        task
                        for task, version in zip(tasks, versions, strict=True)
                        if self.free(task, at) and task.version == version
                    ]
                return self.settle(mine, "cancelled", at, offset)
            case "replace":
                if len(tasks) != 1:
                    return False
                if lease is None:
                    mine = [task for task in tasks if self.free(task, at) and task.version == record["version"]]
                for task in mine:
                    task.payload, task.version = record["payload"], offset
                return bool(mine)
            case "change":
                if len(record["versions"]) != len(tasks):
                    return False
                seen = zip(tasks, record["versions"], strict=True)
                mine = [task for task, version in seen if self.free(task, at) and task.version == version]
                for task in mine:
                    if task.state == "leased":
                        self.expire(task)
                        task.state, task.since = "available", at
                    task.since, task.version = record.get("available_at", task.since), offset
                    if "priority" in record:
                        task.priority = record["priority"]
                return bool(mine)
            case "move":
                return True
            case "finish":
                if self.tasks and all(task.state in ("completed", "dead", "cancelled") for task in self.tasks):
                    self.finished = True
                    return True
            case "count":
                return self.finished
        return False

    def settle(self, tasks: list[OracleTask], outcome: str, at: int, offset: int) -> bool:
        for task in tasks:
            task.state, task.since, task.version = outcome, at, offset
        return bool(tasks)


ORACLE_NAMES = {AVAILABLE: "available", LEASED: "leased", COMPLETED: "completed", CANCELLED: "cancelled", DEAD: "dead"}


@given(logs(40))
@settings(max_examples=how_many(12, 300))
def test_a_naive_fold_agrees(data: bytes) -> None:
    replay_state, oracle = folded(data), Oracle().read(data)
    assert replay_state.at == oracle.at
    assert replay_state.finished == oracle.finished
    for index, task in enumerate(oracle.tasks):
        holder = replay_state.holder[index]
        found = OracleTask(
            ORACLE_NAMES[replay_state.state[index]],
            replay_state.since[index],
            holder.id if holder is not None and replay_state.state[index] == LEASED else "",
            replay_state.attempts[index],
            index in replay_state.solo,
            replay_state.payloads.get(index),
            replay_state.version[index],
            replay_state.changed.get(index),
        )
        wanted = dataclasses.replace(task, lease=task.lease if task.state == "leased" else "")
        assert found == wanted, f"task {index}"
    assert replay_state.count == len(oracle.tasks)


# -- what may be leased -------------------------------------------------------------------------------------


def lone(replay_state: ReplayState, index: int) -> bool:
    """Whether a task must be leased alone: its lease of several ran out, now or before."""
    holder = replay_state.holder[index]
    several = replay_state.state[index] == LEASED and holder is not None and not holder.is_alone
    return index in replay_state.solo or several


def free_tasks(replay_state: ReplayState, at: int, margin: int) -> tuple[set[int], set[int]]:
    """The tasks that must be offered, and those that may be: for a while after a lease's end, either is right."""
    must, may = set(), set()
    for index in range(replay_state.count):
        since, holder = replay_state.since[index], replay_state.holder[index]
        if replay_state.state[index] == AVAILABLE and since <= at:
            must.add(index)
            may.add(index)
        elif replay_state.state[index] == LEASED and holder is not None:
            if since + margin <= at:
                must.add(index)
            if since + min(margin, holder.span // 10) <= at:
                may.add(index)
    return must, may


@given(
    logs(),
    st.integers(0, 60),
    st.integers(1, 5),
    st.sampled_from([0, 5, 50]),
    st.sampled_from([None, 1, 2]),
    st.booleans(),
)
@settings(max_examples=how_many(12, 300))
def test_choose_offers_what_is_free_by_definition(
    data: bytes, later: int, most: int, margin: int, attempts_max: int | None, solo: bool
) -> None:
    replay_state = folded(data)
    assume(replay_state.count)
    at = replay_state.at + later
    must, may = free_tasks(replay_state, at, margin)
    lonely = {index for index in range(replay_state.count) if lone(replay_state, index)}
    worn = {index for index in may if attempts_max is not None and replay_state.charged(index) >= attempts_max}
    worn -= {index for index in worn if replay_state.version[index] == replay_state.base_version}
    tasks, spent_tasks, alone = replay_state.choose(at, most, margin, attempts_max, solo)
    chosen, spent = set(tasks), set(spent_tasks)
    assert len(tasks) == len(chosen) <= most
    assert chosen <= may - worn
    assert spent <= worn
    if alone:
        assert solo
        assert len(chosen) == 1
        assert chosen <= lonely
    else:
        assert not chosen & lonely
        if len(chosen) < most:
            assert must & worn <= spent
            offered = must - worn - (set() if solo and not chosen else lonely)
            assert offered <= chosen
    given_out = replay_state.lease(at, "choice", sorted(chosen), at + 100, None, most > 1, 10**6)
    assert set(given_out) == chosen, "what was chosen can be leased"


@given(logs(), st.lists(st.tuples(st.integers(0, 40), st.integers(1, 3), st.booleans()), max_size=8))
def test_looking_again_and_again_loses_no_task(data: bytes, looks: list[tuple[int, int, bool]]) -> None:
    """`choose` uses up its indexes; after any number of leases, the next offers what a new reader would offer."""
    replay_state, at, offset = folded(data), 0, len(data)
    at = replay_state.at
    log = data
    for number, (later, most, solo) in enumerate(looks):
        at += later
        chosen, _, alone = replay_state.choose(at, most, 5, None, solo)
        must, may = free_tasks(folded(log), at, 5)
        assert set(chosen) <= may
        if not chosen:
            assert all(lone(replay_state, index) for index in must) if not solo else not must
            continue
        lease = f"look{number}"
        replay_state.lease(at, lease, chosen, at + 30, {}, most > 1 and not alone, offset)
        replay_state.at = at
        log += record_lines.lease(at, lease, chosen, at + 30, "{}", most > 1 and not alone)
        offset = len(log)
        assert full_state(replay_state) == full_state(folded(log))
    at += 10_000
    wanted = folded(log)
    assert replay_state.next_time() == wanted.next_time()
    assert sorted(replay_state.choose(at, 9, 5, None, False)[0]) == sorted(wanted.choose(at, 9, 5, None, False)[0])


@given(logs())
@settings(max_examples=how_many(12, 300))
def test_next_time_is_the_earliest_by_definition(data: bytes) -> None:
    replay_state = folded(data)
    open_tasks = [index for index in range(replay_state.count) if replay_state.state[index] in (AVAILABLE, LEASED)]
    earliest = min((replay_state.since[index] for index in open_tasks), default=None)
    assert replay_state.next_time() == earliest
    assert replay_state.next_time() == earliest, "asking changes nothing"


@given(logs(), st.integers(0, 100))
def test_what_is_exhausted_offers_nothing(data: bytes, later: int) -> None:
    replay_state = folded(data)
    at = replay_state.at + later
    replay_state.choose(at, 2, 0, None)
    if replay_state.exhausted(at):
        remaining = folded(data)
        taken = set(remaining.choose(at, 2, 0, None)[0])
        returned = {
            i for i in range(replay_state.count) if replay_state.state[i] == AVAILABLE and replay_state.since[i] <= at
        }
        assert returned <= taken
