"""Any bytes in any file of a queue are a value or a documented error, never another exception."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock
from zlib import crc32

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsqueue import FsqueueError, Queue
from fsqueue.clock import ManualClock
from fsqueue.errors import FormatTooNew, FormatTooOld, InvalidArgument, NotAQueue
from fsqueue.format import checkpoints, layout, movements, names, task_file
from fsqueue.format.replay import ReplayState
from fsqueue.storage import history, letter_files
from fsqueue.views import lease_holders
from tests.levels import how_many
from tests.support import base_of

QUICK = settings(max_examples=how_many(10, 150), deadline=None, suppress_health_check=list(HealthCheck))

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
    "from", "name", "versions", "priority",
]  # fmt: skip
OPS = [
    "open", "lease", "renew", "complete", "release", "fail", "bury", "cancel", "revoke", "replace", "change", "move",
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
        except (NotAQueue, FormatTooNew, FormatTooOld):
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

    @settings(max_examples=how_many(8, 60), deadline=None, suppress_health_check=list(HealthCheck))
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


ODD = st.sampled_from(
    [None, True, -1, 0, 1.5, 1e308, 10**13, 10**14 + 1, 2**63, 2**64 - 1, "", "x", "../../x", "\x1b[31m\n", [], {},
     [None], [[0, 1]], [[1, 0]], [[0, 2**40]], [2**63], {"a": 1}, {"host": 5, "pid": 2**63, "process": []}]
)  # fmt: skip
"""What a field may be that a stranger, or a broken disk, has written."""


@pytest.fixture(scope="module")
def lively(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A queue with records of most kinds: tasks in each state, letters settled and given back, commits, checkpoints."""
    q = Queue.create(
        tmp_path_factory.mktemp("lively") / "q", shards=2, durability="none", max_attempts=1, backoff_s=(0, 0)
    )
    with (
        mock.patch.object(checkpoints, "LEAST_BYTES", 400),
        mock.patch.object(checkpoints, "SHARE", 0),
        mock.patch.object(letter_files, "BLOCK_BYTES", 64),
    ):
        q.insert_many(({"n": number, "s": "x" * 50} for number in range(40)), batch_tasks=10)
        tasks = q.lease(30)
        q.complete(tasks[:12], results={tasks[0].id: {"a": [1]}})
        for task in tasks[12:16]:
            task.fail("broke")
        for task in tasks[16:20]:
            task.bury("bad")
        q.release(tasks[20:22])
        letters = [letter.id for letter in q.dead()]
        q.retry_dead(letters[:2])
        q.purge_dead(letters[2:5])
        for _ in range(3):
            q.renew(tasks[22:])
        q.insert(b"bytes", delay_s=1000)
        q.insert_many([1, 2], commit="c1")
        q.commit("c2").stage([5, 6])
    q.close()
    return q.path


@pytest.mark.slow
def test_any_field_of_any_record_of_any_kind(lively: Path, tmp_path: Path) -> None:
    numbers = itertools.count()

    @settings(max_examples=how_many(8, 40), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        path = Path(shutil.copytree(lively, tmp_path / f"q{next(numbers)}"))
        files = sorted(file for file in path.rglob("*") if file.suffix in (".json", ".jsonl"))
        damage(data.draw(st.sampled_from(files)), data)
        for act in data.draw(st.permutations(ACTS)):
            try:
                with Queue(path) as q:
                    act(q)
            except FsqueueError:
                pass
        with suppress(FsqueueError), Queue(path) as q:
            list(q.fsck(repair=True))
            q.status()
        shutil.rmtree(path)

    check()


def damage(file: Path, data: st.DataObject) -> None:
    """Put something odd in the place of a value in one line. The checkpoints behind it are made to be trusted still."""
    lines = file.read_bytes().split(b"\n")[:-1]
    number = data.draw(st.integers(0, len(lines) - 1))
    record = orjson.loads(lines[number])
    *way, last = data.draw(st.sampled_from(list(places(record))))
    inner = record
    for step in way:
        inner = inner[step]
    inner[last] = data.draw(ODD)
    lines[number] = orjson.dumps(record)
    content, since = b"", 0
    for line in lines:
        if line.startswith(checkpoints.MARK):
            fields = {"here": len(content), "since": since, "sum": crc32(content[since:])}
            rest = orjson.dumps({key: value for key, value in (orjson.loads(line) | fields).items() if key != "op"})
            content += checkpoints.MARK + rest[1:] + b"\n"
            since = len(content)
        else:
            content += line + b"\n"
    file.chmod(0o600)
    file.write_bytes(content)


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to all values within a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, each in inner:
        yield (*way, step)
        yield from places(each, (*way, step))


def work(q: Queue) -> None:
    for _ in range(3):
        for task in q.lease(3):
            task.complete()


def show(q: Queue) -> None:
    for task in itertools.islice(q.tasks(), 3):
        q.task(task.id)
        q.history(task.id)
        orjson.dumps(task.as_dict())


ACTS: list[Callable[[Queue], object]] = [
    work, show,
    lambda q: q.status(), lambda q: q.activity(), lambda q: q.usage(), lambda q: q.gc(),
    lambda q: list(lease_holders.workers(q.store)), lambda q: q.release_all(),
    lambda q: list(q.fsck()), lambda q: q.peek(5), lambda q: list(q.dead()), lambda q: q.retry_dead(),
    lambda q: q.retry_completed(),
    lambda q: q.purge_dead(), lambda q: q.is_drained(),
    lambda q: q.insert_many([1], commit="c1"), lambda q: q.commit("c2").publish([q.commit("c2").stage([7])]),
]  # fmt: skip
