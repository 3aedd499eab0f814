"""Inserting with priorities: what lines, names and `queue.jsonl` say, and in which order they come to say it."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsqueue import InvalidTask, Queue, Task
from fsqueue.format import names, priority
from fsqueue.format.names import TaskFileName
from fsqueue.format.priority import LAST, Priority, rank_of
from fsqueue.protocol import encoding, single_inserts
from tests.concurrency.processes import children
from tests.concurrency.trapped import DieAt, trapped
from tests.levels import how_many
from tests.support import base_of, task_file_names

pytestmark = pytest.mark.once  # each test chooses how its tasks are batched

priorities = st.one_of(st.none(), st.text(max_size=3), st.integers(-3, 3))


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue.create(tmp_path / "q", shards=2)


def is_marked(queue: Queue) -> bool:
    return b'"op":"ordered"' in Path(queue.path, "queue.jsonl").read_bytes()


def inserts(queue: Queue) -> list[dict[str, Any]]:
    """The `insert` and `move` records of all logs."""
    found = []
    for path in sorted((base_of(queue) / "movements").glob("*/*.jsonl")):
        records = map(orjson.loads, path.read_bytes().splitlines())
        found += [record for record in records if record["op"] in ("insert", "move")]
    return found


def lines_of(queue: Queue) -> dict[TaskFileName, list[dict[str, Any]]]:
    """The tasks in the task files, by their names."""
    found = {}
    for path in (base_of(queue) / "queue").glob("*/*.jsonl"):
        name = names.parse_task_file(path.name)
        assert name is not None
        found[name] = list(map(orjson.loads, path.read_bytes().splitlines()))
    return found


def check_names(queue: Queue) -> None:
    """No task is more urgent than its file's name says."""
    by_batch = {name.batch: name for name in task_file_names(queue)}
    for path in (base_of(queue) / "movements").glob("*/*.jsonl"):
        for record in map(orjson.loads, path.read_bytes().splitlines()):
            if record["op"] == "insert":
                assert by_batch[names.Batch(path.stem)].rank <= rank_of(record.get("priority"))
    for name, lines in lines_of(queue).items():
        for line in lines if name.count else ():
            assert name.rank <= rank_of(line.get("priority"))


# -- what is no priority -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1.5, True, b"a", "\ud800", "é" * 513, 1 << 63, [1]])
def test_what_is_no_priority_is_refused(queue: Queue, value: Any) -> None:
    for insert in (
        lambda: queue.insert(1, priority=value),
        lambda: queue.insert(Task(1, priority=value)),
        lambda: queue.insert_many([Task(1, priority=value)]),
        lambda: queue.commit("c").stage([Task(1, priority=value)]),
    ):
        with pytest.raises(InvalidTask, match="priority"):
            insert()
    assert not is_marked(queue)
    assert queue.status().waiting == 0


# -- the mark ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("of_one_task", [False, True])
def test_lines_keep_what_was_given_and_names_promise_it(tmp_path: Path, of_one_task: bool) -> None:
    for value in ("", "a/é", 7, -(1 << 63)):
        queue = Queue.create(tmp_path / f"q{value!r}".replace("/", "-"), shards=1)
        queue.insert("none")
        assert not is_marked(queue)
        if of_one_task:
            queue.insert("x", priority=value)
        else:
            queue.insert_many([Task("x", priority=value)] * 2, batch_tasks=2)
        assert is_marked(queue)
        assert queue.store.queue_state.is_ordered
        assert {name.rank for name in task_file_names(queue)} >= {rank_of(value)}
        given = [line.get("priority") for lines in lines_of(queue).values() for line in lines if "payload" in line]
        given += [record.get("priority") for record in inserts(queue) if record["op"] == "insert"]
        assert [one for one in given if one is not None] == [value] * (1 if of_one_task else 2)
        check_names(queue)


def test_a_large_task_gets_a_file_whose_name_has_its_rank(queue: Queue) -> None:
    queue.insert("x" * single_inserts.TASK_BYTES_MAX, priority=3)
    [name] = task_file_names(queue)
    assert (name.count, name.rank) == (1, rank_of(3))


def test_the_mark_is_written_once(queue: Queue) -> None:
    other = Queue(queue.path)
    queue.insert(1, priority=1)
    other.insert(2, priority=2)
    queue.insert_many([Task(3, priority=3), Task(4)])
    assert Path(queue.path, "queue.jsonl").read_bytes().count(b"ordered") == 1
    assert queue.purge() is None
    queue.insert(1, priority=1)
    assert Path(queue.path, "queue.jsonl").read_bytes().count(b"ordered") == 1


WAYS: dict[str, Callable[[Queue], Any]] = {
    "insert": lambda queue: queue.insert(1, priority=5),
    "insert_many": lambda queue: queue.insert_many([Task(n, priority=n) for n in range(4)], batch_tasks=2),
    "commit": lambda queue: queue.insert_many([Task(n, priority=n) for n in range(4)], commit="c"),
    "overwrite": lambda queue: queue.commit("c").publish(
        [queue.commit("c").stage([Task(1, priority=5)])], overwrite=True
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_killed_at_every_step_nothing_urgent_is_visible_without_the_mark(tmp_path: Path, way: str) -> None:
    step, marked = 1, 0
    while True:
        queue = Queue.create(tmp_path / f"q{step}", shards=1, durability="none" if step % 2 else "strict")

        def live(queue: Queue = queue, step: int = step) -> None:
            trap = DieAt(step)
            mine = trapped(queue, trap)
            trap.armed = True
            WAYS[way](mine)

        with children((live,)) as [child]:
            status = child.wait()
        assert status in (0, -signal.SIGKILL), child.report()
        marked += is_marked(queue)
        if any(name.rank != LAST for name in task_file_names(queue)):
            assert is_marked(queue), f"step {step}"
        check_names(queue)
        if status == 0:
            break
        step += how_many(3, 1)
    assert step > 10
    assert marked > 1


# -- single inserts ----------------------------------------------------------------------------------


def test_a_name_only_becomes_more_urgent(queue: Queue) -> None:
    seen = []
    for value in (5, None, 7, 3, 3, 4, 1):
        queue.insert(value, priority=value)
        [name] = task_file_names(queue)
        seen.append(name.rank)
        check_names(queue)
    assert seen == [rank_of(value) for value in (5, 5, 5, 3, 3, 3, 1)]
    assert [record["op"] for record in inserts(queue)] == [
        *("insert", "insert", "insert", "move", "insert", "insert", "insert", "move", "insert")
    ]
    assert queue.status().waiting == 7


def test_another_process_sees_to_its_own_promise(queue: Queue) -> None:
    queue.insert(1)
    other = Queue(queue.path)
    other.insert(2, priority=9)
    queue.insert(3, priority=8)
    other.insert(4, priority=8)
    [name] = task_file_names(queue)
    assert name.rank == rank_of(8)
    assert [record["op"] for record in inserts(queue)] == ["insert", "move", "insert", "move", "insert", "insert"]


def test_a_promise_that_was_recorded_and_not_kept_is_kept_by_the_next(queue: Queue) -> None:
    """The process died between the two."""
    queue.insert(1, priority=5)
    [before] = (base_of(queue) / "queue").glob("*/*.jsonl")
    queue.insert(2, priority=3)
    [after] = (base_of(queue) / "queue").glob("*/*.jsonl")
    os.rename(after, before)
    Queue(queue.path).insert(3, priority=3)
    [name] = task_file_names(queue)
    assert name.rank == rank_of(3)
    check_names(queue)


def test_if_the_file_is_gone_the_task_goes_elsewhere(queue: Queue) -> None:
    queue.insert(1, priority=5)
    [path] = (base_of(queue) / "queue").glob("*/*.jsonl")
    path.unlink()
    queue.insert(2, priority=3)
    assert [name.rank for name in task_file_names(queue)] == [rank_of(3)]
    assert [task.payload for task in queue.lease(5)] == [2]


def test_an_inserter_killed_at_every_step_of_a_renaming(tmp_path: Path) -> None:
    step = 1
    while True:
        queue = Queue.create(tmp_path / f"q{step}", shards=1, durability="none" if step % 2 else "strict")
        queue.insert("first", priority=5)

        def live(queue: Queue = queue, step: int = step) -> None:
            trap = DieAt(step)
            mine = trapped(queue, trap)
            trap.armed = True
            mine.insert("urgent", priority=1)

        with children((live,)) as [child]:
            status = child.wait()
        assert status in (0, -signal.SIGKILL), child.report()
        check_names(queue)
        later = Queue(queue.path)
        later.insert("next", priority=1)
        check_names(queue)
        found = Counter(task.payload for task in later.lease(9))
        assert found["first"] == found["next"] == 1
        assert found["urgent"] <= 1
        if status == 0:
            assert found["urgent"] == 1
            return
        step += 1


@pytest.mark.parametrize("durability", ["none", "default", "strict"])
def test_a_renaming_is_synced_once_before_the_insert_is_reported(tmp_path: Path, durability: Any) -> None:
    steps: list[str] = []

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if step == "rename":
            steps.append("rename")
        if step == "fsync":
            path = os.readlink(f"/proc/self/fd/{args[0]}")
            steps.append("log" if path.endswith(".jsonl") else path.rpartition("/")[2])
        return call(*args)

    queue = trapped(Queue.create(tmp_path / "q", shards=1, durability=durability), trap)
    queue.insert(0, priority=5)
    steps.clear()
    queue.insert(1, priority=3)
    queue.insert(2, priority=3)
    if durability == "strict":  # each append is synced
        assert steps[:4] == ["log", "rename", "log", "00"]
        assert steps.count("00") == 1
    else:
        assert steps == (["rename"] if durability == "none" else ["rename", "00", "log", "log"])


# -- many --------------------------------------------------------------------------------------------


@settings(max_examples=how_many(10, 60), deadline=None)
@given(st.lists(st.tuples(priorities, st.sampled_from([0, 60])), max_size=60), st.sampled_from([None, 1, 3]))
def test_batches_are_sorted_and_named_by_their_most_urgent_task(
    tmp_path_factory: pytest.TempPathFactory, given_tasks: list[tuple[Any, int]], size: int | None
) -> None:
    queue = Queue.create(tmp_path_factory.mktemp("many") / "q", shards=1, durability="none")
    tasks = [Task(n, priority=value, delay_s=delay) for n, (value, delay) in enumerate(given_tasks)]
    batches = list(encoding.batches_of(encoding.TaskStream(tasks), queue.store, encoding.NOW, size, None))
    found = []
    for batch in batches:
        lines = [orjson.loads(line) for line in bytes(batch.content()).splitlines()]
        ranks = [(rank_of(line.get("priority")), line["payload"]) for line in lines]
        assert ranks == sorted(ranks)
        assert batch.rank == ranks[0][0]
        assert len({rank == LAST for rank, _ in ranks}) == 1
        assert len(lines) == batch.tasks <= (size or 1024)
        assert {tasks[line["payload"]].delay_s * 1000 for line in lines} == {batch.when[1]}
        found += [(line["payload"], line.get("priority")) for line in lines]
    assert sorted(found, key=lambda one: one[0]) == [(task.payload, task.priority) for task in tasks]
    queue.insert_many(tasks)
    check_names(queue)


def test_a_stream_is_sorted_within_windows_of_a_group(queue: Queue) -> None:
    """So memory is bounded, and a batch holds a narrow range."""
    batches = list(
        encoding.batches_of(
            encoding.TaskStream(Task(n, priority=-n) for n in range(2 * 64 * 10)), queue.store, encoding.NOW, 10, None
        )
    )
    ranks = [batch.rank for batch in batches]
    begins = [0] + [place for place in range(1, len(ranks)) if ranks[place] < ranks[place - 1]] + [len(ranks)]
    assert begins == [0, 64, 128, 129], "three windows"


def test_large_tasks_with_priorities_are_cut_into_bounded_batches(queue: Queue) -> None:
    large = [Task("x" * 300_000, priority=n % 3) for n in range(40)]
    batches = list(encoding.batches_of(encoding.TaskStream(large), queue.store, encoding.NOW, 100, None))
    assert sum(batch.tasks for batch in batches) == 40
    assert max(batch.size for batch in batches) <= encoding.BATCH_BYTES_MAX
    assert sum(batch.size for batch in batches[:9]) <= encoding.GROUP_BYTES_MAX


def test_what_came_before_a_bad_priority_is_inserted(queue: Queue) -> None:
    with pytest.raises(InvalidTask, match="Task number 6: a priority is") as caught:
        queue.insert_many([Task(n, priority=9 - n) for n in range(5)] + [Task(5, priority=1.5)])  # type: ignore[arg-type]
    assert (caught.value.index, caught.value.inserted) == (5, 5)
    assert queue.status().waiting == 5


def test_the_parts_of_a_commit_are_sorted_and_named(queue: Queue) -> None:
    commit = queue.commit("c")
    part = commit.stage([Task(n, priority=-n) for n in range(9)] + [Task("none")], batch_tasks=3)
    assert is_marked(queue)
    commit.publish(part)
    ranks = sorted(name.rank for name in task_file_names(queue))
    assert ranks == sorted([rank_of(-8), rank_of(-5), rank_of(-2), LAST])
    check_names(queue)


def test_subclasses_of_text_and_numbers_are_as_their_values(queue: Queue) -> None:
    import enum

    class Urgency(str, enum.Enum):  # noqa: UP042 - its str() is not its value
        HIGH = "a"

    class Level(enum.IntEnum):
        LOW = 9

    queue.insert_many([Task(1, priority=Urgency.HIGH), Task(2, priority="b")], batch_tasks=2)
    queue.insert_many([Task(3, priority=Level.LOW), Task(4, priority=10)], batch_tasks=2)
    assert sorted(name.rank for name in task_file_names(queue)) == sorted([rank_of(9), rank_of("a")])
    assert priority.rank_of(Urgency.HIGH) == rank_of("a")


class StrangeText(str):
    def __eq__(self, other: object) -> bool:
        return False

    def __lt__(self, other: str) -> bool:
        return True

    def __hash__(self) -> int:
        return 7

    def __len__(self) -> int:
        return 5000

    def encode(self, *args: Any) -> bytes:
        return b"\xff\n"


class StrangeNumber(int):
    def __lt__(self, other: int) -> bool:
        return False

    def __le__(self, other: int) -> bool:
        return False

    def __sub__(self, other: int) -> int:
        return 5

    def __format__(self, form: str) -> str:
        return "zz"


@pytest.mark.parametrize(("lower", "middle", "upper"), [
    ("a", StrangeText("b"), "c"), (3, StrangeNumber(4), 5),
])  # fmt: skip
@pytest.mark.parametrize("way", ["single", "many", "commit"])
def test_a_priority_is_what_a_subclass_holds_whatever_it_overrides(
    queue: Queue, lower: Priority, middle: Priority, upper: Priority, way: str
) -> None:
    tasks = [Task(number, priority=given) for number, given in enumerate((upper, middle, lower))]
    if way == "single":
        for task in tasks:
            queue.insert(task)
    else:
        queue.insert_many(tasks, commit="c" if way == "commit" else None)
    assert [task.payload for task in queue.lease(1, up_to=lower, strict=True)] == [2]
    assert [task.payload for task in queue.lease(3, up_to=middle, strict=True)] == [1]
    assert [task.payload for task in queue.lease(3, strict=True)] == [0]
    check_names(queue)
    assert list(queue.fsck()) == []


# -- dead letters ------------------------------------------------------------------------------------


@pytest.mark.parametrize("of_one_task", [False, True])
def test_a_dead_letter_keeps_the_priority_and_a_retry_inserts_with_it(queue: Queue, of_one_task: bool) -> None:
    given_priorities = ["b", "a", None, 7] if of_one_task else ["b", "a", "c"]
    if of_one_task:
        for value in given_priorities:
            queue.insert(value, priority=value)
    else:
        queue.insert_many([Task(value, priority=value) for value in given_priorities], batch_tasks=4)
    for task in queue.lease(9):
        task.bury("no")
    assert {letter.payload: letter.priority for letter in queue.dead()} == {value: value for value in given_priorities}
    assert queue.retry_dead() == len(given_priorities)
    retried = [lines for name, lines in lines_of(queue).items() if name.count]
    for lines in retried:
        ranks = [rank_of(line.get("priority")) for line in lines]
        assert ranks == sorted(ranks)
    assert Counter(line.get("priority") for lines in retried for line in lines) == Counter(given_priorities)
    check_names(queue)


# -- what fsck says ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_open", [False, True])
def test_a_name_that_promises_too_little_is_mended(queue: Queue, is_open: bool) -> None:
    if is_open:
        queue.insert(1, priority=4)
        queue.insert(2, priority=3)
    else:
        queue.insert_many([Task(1, priority=3), Task(2, priority=4)], batch_tasks=2)
    assert list(queue.fsck()) == []
    [path] = (base_of(queue) / "queue").glob("*/*.jsonl")
    [name] = task_file_names(queue)
    os.rename(path, path.with_name(str(name.ranked(rank_of(4)))))
    found = list(Queue(queue.path).fsck(repair=True))
    assert [(finding.kind, finding.repaired) for finding in found] == [("modest-name", True)]
    assert [name.rank for name in task_file_names(queue)] == [rank_of(3)]
    assert list(Queue(queue.path).fsck()) == []
