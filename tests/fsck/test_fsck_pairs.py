"""Two damages of one batch at once: mended together, nothing finished runs again, and nothing that waits is lost."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fsqueue import LeaseLost, Queue, Status, TaskNotFound
from fsqueue.clock import ManualClock
from tests.levels import how_many
from tests.support import base_of, drain

TASKS = 4
DONE_WHEN_BEGUN = {0}
NOW_S = time.time()


class Batch:
    """One batch of a queue with two shards, its files, and what may still be executed of it."""

    def __init__(self, queue: Queue, clock: ManualClock) -> None:
        self.queue = queue
        self.clock = clock
        self.base = base_of(queue)

    @property
    def file(self) -> Path:
        """The first of its task files."""
        return min((self.base / "queue").glob("*/*"), key=lambda path: (path.parent != self.home, path.name))

    @property
    def home(self) -> Path:
        [batch] = {path.name.split("-")[1] for path in (self.base / "queue").glob("*/*")}
        return self.base / "queue" / self.queue.store.layout.shard(batch)

    @property
    def log(self) -> Path | None:
        return next((self.base / "movements").glob("*/*"), None)

    def elsewhere(self, path: Path) -> Path:
        other = path.parent.with_name("01" if path.parent.name == "00" else "00") / path.name
        other.parent.mkdir(exist_ok=True)
        return other

    def readable(self) -> list[set[int]]:
        """The tasks that can be read in each of its task files."""
        return [set(sound_lines(path)) for path in (self.base / "queue").glob("*/*")]


def sound_lines(path: Path) -> Iterator[int]:
    for index, line in enumerate(path.read_bytes().split(b"\n")[:TASKS]):
        try:
            if json.loads(line)["payload"] == index:
                yield index
        except (ValueError, TypeError, KeyError):
            pass


def touched(batch: Batch) -> None:
    held = batch.queue.lease(2)
    batch.queue.complete(held[:1])
    batch.clock.advance(10_000)


def finished(batch: Batch) -> None:
    while held := batch.queue.lease(TASKS):
        batch.queue.complete(held)


def waiting(batch: Batch) -> set[int]:
    """Nothing was done with it."""
    return set(range(TASKS))


def begun(batch: Batch) -> set[int]:
    """One task is completed, one lease has run out."""
    touched(batch)
    return set(range(TASKS)) - DONE_WHEN_BEGUN


def returned(batch: Batch) -> set[int]:
    """It has finished, and its file came back."""
    path = batch.file
    content = path.read_bytes()
    finished(batch)
    path.write_bytes(content)
    return set()


def returned_with_its_log(batch: Batch) -> set[int]:
    """It has finished, and its file came back with the log as it was half-way."""
    touched(batch)
    assert batch.log is not None
    copies = {path: path.read_bytes() for path in (batch.file, batch.log)}
    finished(batch)
    for path, content in copies.items():
        path.write_bytes(content)
    return set()


def returned_and_begun_anew(batch: Batch) -> set[int]:
    """It has finished, its file came back, and somebody has leased from it."""
    returned(batch)
    assert len(batch.queue.lease(2)) == 2
    return set()


STATES: list[Callable[[Batch], set[int]]] = [waiting, begun, returned, returned_with_its_log, returned_and_begun_anew]

DAMAGES: dict[str, Callable[[Batch], object]] = {}


def damage(function: Callable[[Batch], object]) -> Callable[[Batch], object]:
    DAMAGES[function.__name__] = function
    return function


def edit(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


@damage
def nothing(batch: Batch) -> None:
    pass


@damage
def a_damaged_line(batch: Batch) -> None:
    edit(batch.file, lambda lines: [*lines[:2], b"X" + lines[2][1:], *lines[3:]])


@damage
def a_missing_line(batch: Batch) -> None:
    edit(batch.file, lambda lines: lines[: TASKS - 1])


@damage
def a_wrong_count(batch: Batch) -> None:
    batch.file.rename(batch.file.with_name(batch.file.name.replace(f"-{TASKS}.", f"-{TASKS - 1}.")))


@damage
def a_late_name(batch: Batch) -> None:
    late = f"{int(batch.clock.now_s * 1000) + 10**7:013}"
    batch.file.rename(batch.file.with_name(late + batch.file.name[13:]))


@damage
def a_second_name(batch: Batch) -> None:
    shutil.copy(batch.file, batch.file.with_name("0000000000001" + batch.file.name[13:]))


@damage
def a_damaged_copy(batch: Batch) -> None:
    copy = batch.file.with_name("0000000000002" + batch.file.name[13:])
    shutil.copy(batch.file, copy)
    edit(copy, lambda lines: [b"garbage\n", *lines[1:]])


@damage
def in_another_shard(batch: Batch) -> None:
    batch.file.rename(batch.elsewhere(batch.file))


@damage
def a_copy_in_another_shard(batch: Batch) -> None:
    shutil.copy(batch.file, batch.elsewhere(batch.file))


@damage
def a_log_in_another_shard(batch: Batch) -> None:
    if batch.log is not None:
        batch.log.rename(batch.elsewhere(batch.log))


@damage
def garbage_in_the_log(batch: Batch) -> None:
    if batch.log is not None:
        with batch.log.open("ab") as file:
            file.write(b"garbage\n{")


@damage
def an_empty_log(batch: Batch) -> None:
    """Somebody began to lease, and died."""
    path = batch.base / "movements" / batch.home.name / f"{batch.file.name.split('-')[1]}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


@damage
def a_damaged_history(batch: Batch) -> None:
    for path in (batch.base / "history").glob("*/*"):
        path.write_bytes(path.read_bytes()[:-20] + b"\xff" * 19 + b"\n")


@damage
def a_torn_history(batch: Batch) -> None:
    for path in (batch.base / "history").glob("*/*"):
        path.write_bytes(path.read_bytes()[:-20])


@damage
def a_counter_that_was_cut(batch: Batch) -> None:
    for path in (batch.base / "completions").glob("*"):
        path.write_bytes(path.read_bytes()[:1])


PAIRS = list(itertools.permutations(DAMAGES, 2))
EACH = 1 if int(os.environ.get("FSQUEUE_TEST_PAIRS", "0")) else how_many(36, 3)
"""In each state every 36th pair, and every third one in --all; FSQUEUE_TEST_PAIRS=1 for all of them."""


@pytest.fixture(scope="module")
def templates() -> Iterator[dict[str, tuple[Path, set[int], float]]]:
    """A queue in each state, to be copied: making one takes longer than to check it."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base, prefix="fsqueue-test-") as directory:
        found = {}
        for state in STATES:
            clock = ManualClock(NOW_S)
            path = Path(directory) / state.__name__
            Queue.create(path, shards=2, backoff_s=(0, 0), durability="none").close()
            queue = Queue(path, clock=clock)
            queue.insert_many(range(TASKS), batch_tasks=TASKS)
            may_run = state(Batch(queue, clock))
            queue.close()
            found[state.__name__] = path, may_run, clock.now_s
        yield found


@pytest.mark.parametrize("state", [state.__name__ for state in STATES])
def test_two_damages_at_once(templates: dict[str, tuple[Path, set[int], float]], tmp_path: Path, state: str) -> None:
    template, may_run, now_s = templates[state]
    wrong = []
    for first, second in PAIRS[STATES.index(globals()[state]) % EACH :: EACH]:
        path = template.with_name("q")
        shutil.copytree(template, path)
        problem = pair(Queue(path, clock=ManualClock(now_s)), first, second, may_run)
        if problem:
            wrong.append(f"{first}, then {second}: {problem}")
        shutil.rmtree(path)
    assert not wrong, "\n".join(wrong)


def pair(queue: Queue, first: str, second: str, may_run: set[int]) -> str:
    """Damage a queue twice, repair it, and drain it; return what is wrong then."""
    clock = queue.store.clock
    assert isinstance(clock, ManualClock)
    batch = Batch(queue, clock)
    DAMAGES[first](batch)
    DAMAGES[second](batch)
    could = [tasks & may_run for tasks in batch.readable()]
    best = [tasks for tasks in could if len(tasks) == max(map(len, could))]
    found = list(queue.fsck(repair=True))
    left = list(queue.fsck())
    executed = drain(queue, clock)
    ran = {int(task.rpartition(".")[2]) for task in executed}
    after = list(queue.fsck())
    queue.close()
    if not all(finding.repaired for finding in found) or left or after:
        return f"findings are left: {found}, {left}, {after}"
    if ran not in best or max(executed.values(), default=1) != 1:
        return f"executed {executed}, not one of {best}: {found}"
    return ""


def test_a_restored_file_with_a_damaged_line_is_not_executed_again(tmp_path: Path) -> None:
    """A backup brought back the file of a finished batch, and one line of it is damaged."""
    queue = Queue.create(tmp_path / "q")
    queue.insert_many(range(10), batch_tasks=10)
    batch = Batch(queue, ManualClock(NOW_S))
    path, content = batch.file, batch.file.read_bytes()
    finished(batch)
    path.write_bytes(content)
    edit(path, lambda lines: [*lines[:2], b"X" + lines[2][1:], *lines[3:]])
    assert [(finding.kind, finding.repaired) for finding in queue.fsck(repair=True)] == [("returned-file", True)]
    assert queue.lease(10) == []
    assert queue.status() == Status(completed=10)


def test_who_began_anew_on_a_returned_file_is_told(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "q")
    queue.insert_many(range(4), batch_tasks=4)
    returned(Batch(queue, ManualClock(NOW_S)))
    [again, other] = queue.lease(2)
    again.complete()
    assert [(finding.kind, finding.repaired) for finding in Queue(queue.path).fsck(repair=True)] == [
        ("returned-file", True)
    ]
    with pytest.raises(LeaseLost, match="the batch has finished"):
        other.complete()
    assert queue.lease(4) == []
    assert queue.status() == Status(completed=4)


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["gone", "unreadable"])
def test_who_holds_a_lease_on_a_damaged_file_may_complete_by_token(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    queue = Queue.create(tmp_path / "q")
    queue.insert_many(range(4), batch_tasks=4)
    tokens = [task.token for task in queue.lease(2)]
    change(Batch(queue, ManualClock(NOW_S)).file)
    assert not all(finding.repaired for finding in Queue(queue.path).fsck(repair=True)), "somebody holds tasks"
    other = Queue(queue.path)
    held = other.attach(tokens[0])
    with pytest.raises(TaskNotFound, match="payload"):
        _ = held.payload
    held.renew(60)
    held.complete("done")
    other.attach(tokens[1]).complete()
    assert queue.status() == Status(completed=2, dead=2)
    assert list(queue.fsck()) == []


def test_an_orphaned_log_with_something_in_it_is_kept_in_quarantine(tmp_path: Path) -> None:
    """Its first line is damaged, and its file is gone: what the others say may be needed."""
    queue = Queue.create(tmp_path / "q")
    queue.insert_many(range(4), batch_tasks=4)
    batch = Batch(queue, ManualClock(NOW_S))
    queue.lease(2)
    assert batch.log is not None
    edit(batch.log, lambda lines: [b"~\n", *lines[1:]])
    batch.file.unlink()
    os.utime(batch.log, (NOW_S - 3600, NOW_S - 3600))  # no process is about to lock it
    name, content = batch.log.name, batch.log.read_bytes()
    assert [(finding.kind, finding.repaired) for finding in Queue(queue.path).fsck(repair=True)] == [
        ("orphaned-log", True)
    ]
    [kept] = (queue.path / ".quarantine").rglob(name)
    assert kept.read_bytes() == content


@pytest.mark.parametrize("comes_after_s", [1, 9, None])
def test_a_new_log_without_a_batch_is_left_to_the_process_that_made_it(
    tmp_path: Path, comes_after_s: int | None
) -> None:
    """Its maker, on a busy host, removes it when its turn comes. If it has died, the log is found."""
    clock = ManualClock(NOW_S)
    Queue.create(tmp_path / "q", shards=1).close()
    queue = Queue(tmp_path / "q", clock=clock)
    queue.insert_many(range(2))
    queue.lease()
    log = Path(queue.store.logs.open("0" * 32, create=True).path)
    os.utime(log, (NOW_S, NOW_S))
    queue.close()

    def sleep(seconds: float) -> None:
        clock.advance(seconds)
        if comes_after_s is not None and clock.now_s >= NOW_S + comes_after_s:
            log.unlink(missing_ok=True)

    clock.sleep = sleep  # type: ignore[method-assign]
    found = [finding.kind for finding in queue.fsck()]
    assert found == (["orphaned-log"] if comes_after_s is None else [])
    assert clock.now_s <= NOW_S + 11
