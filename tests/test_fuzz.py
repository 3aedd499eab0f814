"""Any bytes in any file of a queue are a value or a documented error, never another exception."""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsqueue import FsqueueError, Queue
from fsqueue.clock import ManualClock
from fsqueue.errors import FormatTooNew, InvalidArgument, NotAQueue
from fsqueue.format import layout, movements, names, task_file
from fsqueue.format.replay import ReplayState
from fsqueue.storage import history
from tests.support import base_of

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))

scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=20)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = [
    "op", "at", "lease", "tasks", "until", "count", "file", "offset", "id", "ids", "staged", "batch",
    "records", "payload", "b64", "reason", "available_at", "generation", "directory", "format", "settings",
    "from", "name",
]  # fmt: skip
OPS = [
    "open", "lease", "renew", "complete", "release", "fail", "bury", "cancel", "revoke", "replace", "move",
    "prepare", "commit", "abort", "insert", "finish", "count", "gone", "dead", "retried", "purged", "create",
    "generation",
]  # fmt: skip
objects = st.builds(
    lambda op, rest: {**rest, "op": op},
    st.sampled_from(OPS),
    st.dictionaries(st.sampled_from(FIELDS), values, max_size=9),
)
lines = st.one_of(st.binary(max_size=80), objects.map(orjson.dumps), values.map(orjson.dumps))
contents = st.lists(lines, max_size=6).map(b"\n".join) | st.binary(max_size=200)
nested = st.integers(1, 3000).map(lambda depth: b"[" * depth + b"]" * depth)


@QUICK
@given(st.text(max_size=300) | st.from_regex(r"[0-9]{13}-[0-9a-f]{32}-[0-9]{1,5}(-.*)?\.jsonl", fullmatch=True))
def test_names(text: str) -> None:
    name = names.parse_task_file(text)
    assert name is None or str(name) == text
    for parse in (names.parse_task_id, names.parse_token):
        with pytest.raises(InvalidArgument):
            parse(text)


@QUICK
@given(lines | nested)
def test_lines(line: bytes) -> None:
    record = movements.parse(line)
    assert record is None or movements.is_record(record)
    found = history.parse(line)
    assert found is None or isinstance(found[0], str)
    try:
        task_file.decode_task(line)
    except ValueError:
        pass


@QUICK
@given(st.integers(900, 1030))
def test_nesting_that_one_parser_bears_and_the_other_does_not(depth: int) -> None:
    line = b'{"batch":"x","count":1,"records":[{"op":"open","at":1,"x":' + b"[" * depth + b"]" * depth + b"}]}"
    history.parse(line)


@QUICK
@given(contents)
def test_logs(content: bytes) -> None:
    replay_state = ReplayState()
    replay_state.replay(content, 0)
    replay_state.next_time()


@QUICK
@given(contents)
def test_settings(content: bytes) -> None:
    first = layout.birth_record(layout.Settings(), "0" * 16, 1)
    for whole in (content, first + content, first + content + b"\n"):
        try:
            queue_state = layout.read_queue_state(whole, "q")
        except (NotAQueue, FormatTooNew):
            continue
        assert "/" not in queue_state.directory


PLACES = ["dead/00.jsonl", "history/2026-11-21/00.jsonl", "completions/00", "log", "file"]


@pytest.mark.parametrize("place", PLACES)
def test_garbage_in_any_file_of_a_queue(tmp_path: Path, place: str) -> None:
    sound = Queue.create(tmp_path / "sound", shards=1, durability="none")
    sound.insert("a")
    sound.lease()
    sound.close()
    numbers = itertools.count()

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(contents, st.booleans())
    def check(content: bytes, behind: bool) -> None:
        clock = ManualClock(time.time())
        queue = Queue(shutil.copytree(sound.path, tmp_path / f"q{next(numbers)}"), clock=clock)
        base = base_of(queue)
        [log], [file] = (base / "movements").glob("*/*"), (base / "queue").glob("*/*")
        path = {"log": log, "file": file}.get(place, base / place)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab" if behind else "wb") as damaged:
            damaged.write(content)
        for look in (
            queue.status,
            lambda: list(queue.tasks()),
            lambda: list(queue.tasks("completed")),
            lambda: list(queue.dead()),
            lambda: queue.peek(5),
            lambda: list(queue.fsck()),
        ):
            try:
                look()
            except FsqueueError:
                pass
        clock.advance(10_000)  # a repair leaves alone what somebody holds
        assert [finding for finding in queue.fsck(repair=True) if not finding.repaired] == []
        assert list(queue.fsck()) == []
        queue.close()

    check()
