"""The assertions of the numbered invariants: each fires when its invariant is broken, and none is asked unswitched."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fsqueue import Queue
from fsqueue.checks import CHECK, INVARIANTS, InvariantBroken
from fsqueue.format.names import BATCH_TASKS_MAX
from fsqueue.format.replay import ReplayState
from fsqueue.format.task_states import AVAILABLE, COMPLETED
from fsqueue.leased_task import LeasedTask
from fsqueue.protocol import insertion, transitions
from fsqueue.storage import staging
from fsqueue.storage.locked_batch import LockedBatch

pytestmark = pytest.mark.once

TOP = Path(__file__).parents[1]


@contextmanager
def fires(number: int) -> Iterator[None]:
    with pytest.raises(InvariantBroken, match=re.escape(f"Invariant {number} ({INVARIANTS[number]}) does not hold")):
        yield


@pytest.fixture
def leased(queue: Queue) -> LeasedTask:
    """One leased task of a batch with others that wait."""
    queue.insert_many(range(4), batch_tasks=4)
    [task] = queue.lease()
    return task


def test_the_invariants_are_those_of_the_design() -> None:
    section = (TOP / "docs/design.md").read_text().partition("## 2. Invariants\n")[2].partition("\n## 3.")[0]
    assert dict(re.findall(r"^(\d)\. \*(.+?)\*:", section, re.MULTILINE)) == {
        str(number): name.capitalize() for number, name in INVARIANTS.items()
    }


def test_tests_check_them_also_in_the_processes_that_they_start() -> None:
    assert CHECK
    command = [sys.executable, "-c", "from fsqueue import checks; print(checks.CHECK)"]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout == "True\n"


# -- the state of a batch: at the end of a critical section, and after a replay ------------------------------------


def two_holders(state: ReplayState) -> None:
    """A second lease takes the task, and the first still counts as known by the same id."""
    state.leases = dict.fromkeys(state.leases, state.holder[0].__class__("other", 1, 2, None))  # type: ignore[union-attr]


def a_lease_without_its_task(state: ReplayState) -> None:
    state.holder[0].tasks.clear()  # type: ignore[union-attr]


def an_available_task_with_a_holder(state: ReplayState) -> None:
    state.holder[3] = state.holder[0]


def a_completion_that_is_not_counted(state: ReplayState) -> None:
    state.state[2] = COMPLETED


def a_completion_that_is_counted_twice(state: ReplayState) -> None:
    state.done[COMPLETED] += 1


def a_task_too_many(state: ReplayState) -> None:
    state.state.append(AVAILABLE)
    state.remaining += 1


def a_lease_whose_end_nobody_waits_for(state: ReplayState) -> None:
    state._expiries.clear()


def a_task_that_is_passed_over(state: ReplayState) -> None:
    state._frontier = state._end


def a_returned_task_that_is_forgotten(state: ReplayState) -> None:
    state._return(0, 1, 99)
    state._returns.clear()


def a_batch_without_bound(state: ReplayState) -> None:
    more = BATCH_TASKS_MAX
    state.state += bytes((COMPLETED,)) * more
    for entries in (state.since, state.attempts, state.version):
        entries += [0] * more
    state.holder += [None] * more
    state.count += more
    state.done[COMPLETED] += more


BROKEN: dict[Callable[[ReplayState], None], int] = {
    two_holders: 2,
    a_lease_without_its_task: 2,
    an_available_task_with_a_holder: 2,
    a_completion_that_is_not_counted: 6,
    a_completion_that_is_counted_twice: 6,
    a_task_too_many: 6,
    a_lease_whose_end_nobody_waits_for: 7,
    a_task_that_is_passed_over: 7,
    a_returned_task_that_is_forgotten: 7,
    a_batch_without_bound: 8,
}


@pytest.mark.batched
@pytest.mark.parametrize("forge", BROKEN)
def test_a_forged_state_is_noticed_at_the_end_of_a_critical_section(
    queue: Queue, leased: LeasedTask, forge: Callable[[ReplayState], None]
) -> None:
    with fires(BROKEN[forge]), LockedBatch(queue.store, leased.batch) as locked:
        forge(locked.replay_state)
    leased.complete()  # the section was left as if it had died there: the log is read anew, and counts
    assert [task.payload for task in queue.lease(9)] == [1, 2, 3]


@pytest.mark.batched
def test_it_is_noticed_before_another_process_gets_the_lock(queue: Queue, leased: LeasedTask) -> None:
    with LockedBatch(queue.store, leased.batch) as locked:
        a_lease_without_its_task(locked.replay_state)
        with fires(2):
            locked.unlock()
        locked.drop()


@pytest.mark.batched
@pytest.mark.parametrize("whole", [False, True])
def test_a_wrong_replay_is_noticed(
    queue: Queue, leased: LeasedTask, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    apply = ReplayState.apply

    def forget_the_end(state: ReplayState, record: dict[str, object], offset: int) -> None:
        apply(state, record, offset)
        if record["op"] == "lease":
            state._expiries.clear()

    other = Queue(queue.path)
    if not whole:
        monkeypatch.setattr(ReplayState, "apply", forget_the_end)
        with fires(7):
            other.lease()
    else:
        with fires(7), LockedBatch(other.store, leased.batch) as locked:
            monkeypatch.setattr(ReplayState, "apply", forget_the_end)
            locked.log.recall(again=True)


@pytest.mark.batched
def test_a_name_that_promises_too_late_a_time_is_noticed(queue: Queue, leased: LeasedTask) -> None:
    name = queue.store.logs.get(leased.batch).name  # type: ignore[union-attr]
    assert name is not None
    with fires(5), LockedBatch(queue.store, leased.batch) as locked:
        locked.log.name, locked.log.is_named_so = name.at(queue.store.clock.now_ms() + 60_000), True


# -- single steps --------------------------------------------------------------------------------------------------


@pytest.mark.batched
def test_a_task_file_that_is_removed_too_early_is_noticed(queue: Queue, leased: LeasedTask) -> None:
    with fires(1), LockedBatch(queue.store, leased.batch) as locked:
        locked.remove_task_file()
    assert queue.status().remaining == 4


@pytest.mark.batched
def test_a_task_file_that_is_renamed_away_too_early_is_noticed(queue: Queue, leased: LeasedTask) -> None:
    with fires(1), LockedBatch(queue.store, leased.batch) as locked:
        assert locked.log.name is not None
        locked.move_task_file_away(locked.log.name, "a", "b")
    assert queue.status().remaining == 4


@pytest.mark.batched
def test_a_completion_by_another_than_the_latest_lease_is_noticed(
    queue: Queue, leased: LeasedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = queue.attach(leased.token)
    leased.release()
    queue.lease()
    with monkeypatch.context() as patch, fires(3):
        patch.setattr(ReplayState, "named_by", lambda state, tasks, lease: tasks)
        queue.renew([other])
    with fires(3), LockedBatch(queue.store, other.batch) as locked:
        transitions.completion(locked, other, locked.replay_state.at)
    assert queue.status().completed == 0


def test_a_file_that_is_published_before_it_is_synced_is_noticed(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insertion.staging, "sync", lambda store, staged: None)
    with fires(4):
        queue.insert_many(range(3))
    assert queue.status().inserted == 0
    assert staging.files(queue.store, queue.store.layout) == []


# -- switched off --------------------------------------------------------------------------------------------------

UNSWITCHED = """
import sys
from fsqueue import Queue, checks
from fsqueue.format import state_checks
from fsqueue.protocol import transitions
from fsqueue.storage import locked_batch

def asked(*args):
    raise SystemExit("an invariant was checked")

assert not checks.CHECK
checks.hold = checks.refuse = state_checks.broken = asked
transitions.check_fenced = locked_batch.LockedBatch._check_over = locked_batch.LockedBatch.check_invariants = asked
queue = Queue.create(sys.argv[1], keep_payloads=None)
queue.insert("one")
queue.insert_many([*range(5), "x" * 20_000])
for task in queue.lease(2):
    task.renew()
    task.release()
for task in queue.poll():
    with task:
        pass
print(queue.status().completed)
"""


@pytest.mark.parametrize("said", [None, "", "0"])
def test_without_the_switch_nothing_is_asked(tmp_path: Path, said: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "FSQUEUE_CHECK"}
    environment |= {} if said is None else {"FSQUEUE_CHECK": said}
    command = [sys.executable, "-c", UNSWITCHED, str(tmp_path / "q")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr


ASKS = re.compile(r"\bchecks\.(hold|refuse)\(|\b_?check_(over|fenced|invariants)\(")


def test_every_check_stands_behind_the_switch() -> None:
    """Else it would be evaluated without it. Functions that only check are called behind it."""
    found = 0
    for path in (TOP / "fsqueue").rglob("*.py"):
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            if "def " not in line and ASKS.search(line):
                before = "\n".join(lines[max(0, number - 12) : number])
                assert "if CHECK:" in before or re.search("def _?check", before), f"{path}:{number + 1}"
                found += 1
    assert found >= 10
