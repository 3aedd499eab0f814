"""A process that meets prepared records of an update: what it asks, whom it waits for, what it then does.

The logs are written by the tests, as the updater would write them that has gone on, been stopped, or died.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group, LeasedTask, LeaseLost, LockTimeout, Queue, StorageError
from fsqueue.clock import Entropy, ManualClock
from fsqueue.format import movements, names, sparse
from fsqueue.format.decisions import LogName
from fsqueue.format.movements import Record, UpdatePart
from fsqueue.format.names import Batch, UpdateId
from fsqueue.storage import decisions, record_times
from fsqueue.storage.decisions import OutOfGroup, OwnDecisionFile, OwnDecisionFiles, Vote
from fsqueue.storage.locked_batch import LockedBatch
from tests import record_lines
from tests.support import Crash, crashes, full_state, insert_in_file

pytestmark = pytest.mark.once

U = UpdateId("a" * 16)
PATIENCE_S = 5.0
DECISIONS = ("commit", "abort", "none", "retired", "absent")


class Story:
    """A queue of a group, of which an updater has prepared something."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.clock = ManualClock()
        self.group = Group.create(path, **{"shards": 1, "durability": "none"} | settings)
        self.group["q"].insert("first")
        self.q = self.open()
        self.file: OwnDecisionFile = OwnDecisionFiles().present(
            self.group.directory(), self.clock, Entropy(), {"pid": 1}, True
        )
        self.part = UpdatePart(U, self.file.name, round(PATIENCE_S * 1000))

    def open(self) -> Queue:
        return Queue(self.group.path / "q", clock=self.clock)

    def leased(self, lease_s: float = 600) -> LeasedTask:
        [task] = self.q.lease(lease_s=lease_s)
        return task

    def prepare(self, batch: Batch, op: str, index: int, at: int | None = None, **fields: Any) -> None:
        """Append a prepared record about a task."""
        with LockedBatch(self.q.store, batch) as locked:
            at = record_times.next_at(locked) if at is None else at
            locked.append_record(op, at, tasks=[[index, index + 1]], **fields, **self.part.fields)
            assert U in locked.replay_state.prepared

    def prepare_end(self, task: LeasedTask, op: str = "complete", **fields: Any) -> None:
        self.prepare(task.batch, op, task.index, lease=task.lease, **fields)

    def prepare_insert(self, batch: Batch, at: int | None = None) -> None:
        """Append a prepared insert to the open batch."""
        with LockedBatch(self.q.store, batch) as locked:
            at = record_times.next_at(locked) if at is None else at
            line = b'{"payload":"inserted"}\n'
            record_lines.write(
                locked.log, record_lines.insert(at, "1" * 16, locked.replay_state.count, line, 0, self.part)
            )

    def decide(self, how: str, batch: Batch) -> None:
        """Decide about it, as the updater, a bystander or upkeep would; "none": nobody does."""
        generation = names.Generation(os.path.basename(self.q.store.layout.base))
        log = LogName(names.queue_directory("q"), generation, batch)
        if how == "commit":
            assert self.file.decide(Vote(U, [log]), self.clock, Entropy(), True).outcome == "commit"
        elif how == "abort":
            decisions.vote_against(self.group.directory(), self.file.name, U, self.clock, Entropy())
        elif how == "retired":
            with Path(self.file.path).open("ab") as file:
                file.write(b'{"op":"gone","at":1}\n')
        elif how == "absent":
            os.unlink(self.file.path)

    def said(self) -> list[str]:
        """What is in the decision file about the update."""
        lines = map(json.loads, Path(self.file.path).read_bytes().splitlines())
        return [line["op"] for line in lines if line.get("update") == U]

    def outcomes(self, batch: Batch) -> list[str]:
        """The outcomes in the log."""
        return [op for op in self.logged(batch) if op in ("commit", "abort")]

    def logged(self, batch: Batch) -> list[str]:
        """The kinds of records in the log."""
        with LockedBatch(self.q.store, batch) as locked:
            lines = sparse.lines(locked.store.fs.all_pieces(locked.log.fd), 0)
            return [record["op"] for _, line, _ in lines if (record := movements.parse(line)) is not None]


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path / "group")


# -- lease -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", DECISIONS)
def test_a_lease_that_finds_nothing_else_asks_for_the_decision(story: Story, how: str) -> None:
    task = story.leased()
    story.prepare_insert(task.batch)
    story.decide(how, task.batch)
    begun = story.clock.monotonic()
    got = [each.payload for each in story.open().lease(1)]
    assert got == (["inserted"] if how == "commit" else [])
    if how != "none":
        assert story.outcomes(task.batch) == ["commit" if how == "commit" else "abort"]
        assert story.clock.monotonic() == begun, "nobody was waited for"
        return
    assert story.said() == []
    assert story.outcomes(task.batch) == [], "it is young: the updater may be at work"
    story.clock.advance(PATIENCE_S)
    assert story.open().lease(1) == []
    assert (story.said(), story.outcomes(task.batch)) == (["abort"], ["abort"])


def test_what_else_is_in_the_batch_is_leased_at_once(story: Story) -> None:
    task = story.leased()
    story.q.insert("second")
    story.prepare_end(task)
    story.prepare_insert(task.batch)
    [other] = story.open().lease(5)
    assert (other.payload, story.said()) == ("second", [])
    other.complete()
    assert story.logged(task.batch).count("complete") == 2


@pytest.mark.parametrize("how", ["commit", "abort"])
def test_no_name_gets_later_while_an_outcome_may_make_a_task_available(story: Story, how: str) -> None:
    """Else no worker would look for that task before the lease of the batch's other one ends."""
    story.leased().complete()
    story.q.insert_many(["a", "b"], batch_tasks=2)
    task = story.leased(lease_s=600 if how == "commit" else 1)
    story.prepare_end(task, "release", available_at=0)
    [other] = story.open().lease(1)
    assert other.payload != task.payload
    story.decide(how, task.batch)
    story.clock.advance(2)
    [again] = story.open().lease(1)
    assert (again.payload, again.batch) == (task.payload, task.batch)


def test_what_a_process_keeps_of_a_log_is_what_another_one_reads(story: Story) -> None:
    """The verbs of the hot path change the state without a replay, also beside prepared records."""
    task, other = story.leased(), story.open()
    for number in range(4):
        story.q.insert(number)
    [second, third] = other.lease(2)
    story.prepare_end(task)
    story.prepare_insert(task.batch)
    second.complete()
    [fourth] = other.lease(1)
    third.release()
    story.decide("commit", task.batch)
    fourth.complete(1)
    while len(story.outcomes(task.batch)) < 1:
        assert other.lease(1)
    for q in (story.q, other):
        with LockedBatch(q.store, task.batch) as kept, story.open() as reader:
            state = full_state(kept.replay_state)
            kept.unlock()
            with LockedBatch(reader.store, task.batch) as fresh:
                assert full_state(fresh.replay_state) == state
    assert story.open().status().completed == 3


def test_an_idle_worker_looks_again_when_the_record_is_old(story: Story) -> None:
    """Without a notification: the process that would have sent it is dead."""
    task = story.leased(lease_s=30)
    story.prepare_end(task, "release", available_at=0)
    begun = story.clock.monotonic()
    [again] = story.open().lease(1, wait_s=600)
    assert (again.payload, again.attempt, story.said()) == ("first", 2, ["abort"])
    assert story.clock.monotonic() - begun < 40, "its lease has run out by then"


def test_a_completion_that_is_not_decided_holds_up_no_lessee(story: Story) -> None:
    """It makes no task available, whatever is decided: "nothing" is the answer, and it comes at once."""
    story.prepare_end(story.leased())
    begun = story.clock.monotonic()
    assert story.open().lease(1) == []
    assert story.clock.monotonic() == begun


def test_a_frozen_task_whose_lease_has_run_out_is_not_taken_before_the_decision(story: Story) -> None:
    [task] = story.q.lease(lease_s=1)
    story.prepare_end(task)
    story.clock.advance(2)
    assert story.open().lease(1) == []
    assert story.said() == []
    story.decide("commit", task.batch)
    assert story.open().lease(1) == []
    assert story.open().status().completed == 1


@pytest.mark.parametrize("ahead_s", [60, 30 * 86_400])
def test_a_record_of_a_clock_that_is_ahead_gets_old_too(story: Story, ahead_s: int) -> None:
    """By the reader's own clock, since it first met it: it keeps the log open."""
    task = story.leased()
    story.prepare_insert(task.batch, at=story.clock.now_ms() + ahead_s * 1000)
    other = story.open()
    assert other.lease(1) == []
    story.clock.advance(PATIENCE_S)
    assert other.lease(1) == []
    assert (story.said(), story.outcomes(task.batch)) == (["abort"], ["abort"])


def test_a_clock_is_corrected_only_when_nothing_is_prepared_any_more(story: Story) -> None:
    task = story.leased()
    ahead = story.clock.now_ms() + 30 * 86_400_000
    story.prepare(task.batch, "release", task.index, at=ahead, lease=task.lease, available_at=ahead)
    story.decide("commit", task.batch)
    os.utime(story.q.store.layout.log(task.batch), (story.clock.now_s, story.clock.now_s))
    story.q.insert("second")
    got = story.open().lease(2)
    logged = story.logged(task.batch)
    assert logged.index("commit") < logged.index("clock")
    assert {each.payload for each in got} == {"first", "second"}, "what was released for a month later is there now"
    assert all(each.until_ms <= story.clock.now_ms() + 86_400_000 for each in got)


# -- other verbs -----------------------------------------------------------------------------------------

VERBS: dict[str, Callable[[LeasedTask], object]] = {
    "complete": lambda task: task.complete(),
    "complete_many": lambda task: task.queue.complete([task]),
    "release": lambda task: task.release(),
    "fail": lambda task: task.fail("e"),
    "bury": lambda task: task.bury("r"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("how", DECISIONS)
def test_a_verb_waits_for_the_decision_about_its_task(story: Story, how: str, verb: str) -> None:
    task = story.leased()
    story.prepare_end(task)
    story.decide(how, task.batch)
    begun = story.clock.monotonic()
    if how == "commit":
        with pytest.raises(LeaseLost, match=r"completed|has finished"):
            VERBS[verb](task)
        assert story.q.status().completed == 1
        return
    VERBS[verb](task)
    waited = story.clock.monotonic() - begun
    if how == "none":
        assert PATIENCE_S - 0.01 <= waited < 10
        assert story.said() == ["abort"]
    else:
        assert waited == 0
    assert story.q.status().leased == 0


def test_a_verb_that_gives_up_says_so_and_has_done_nothing(story: Story) -> None:
    task = story.leased()
    story.part = story.part._replace(patience_ms=600_000)
    story.prepare_end(task)
    with pytest.raises(LockTimeout, match=r"update aaaaaaaaaaaaaaaa, which is not decided yet\. Nothing was done"):
        task.complete()
    assert story.said() == []
    story.decide("abort", task.batch)
    task.complete()
    assert story.q.status().completed == 1


def test_a_renewal_waits_for_nothing(story: Story) -> None:
    """Else the lease ends meanwhile, if the update is given up."""
    task = story.leased()
    story.prepare_end(task)
    before, begun = task.until_ms, story.clock.monotonic()
    story.clock.advance(1)
    task.renew(lease_s=3600)
    assert (task.until_ms > before, story.clock.monotonic() - begun, story.said()) == (True, 1, [])
    story.decide("abort", task.batch)
    task.complete()


@pytest.mark.parametrize("how", DECISIONS)
def test_a_cancellation_waits_for_the_decision(story: Story, how: str) -> None:
    task = story.leased()
    story.prepare_end(task, "release", available_at=0)
    story.decide(how, task.batch)
    assert story.open().cancel(task.id) == (1 if how == "commit" else 0)


@pytest.mark.parametrize("how", DECISIONS)
def test_release_all_counts_what_it_has_released(story: Story, how: str) -> None:
    task = story.leased()
    story.prepare_end(task)
    story.decide(how, task.batch)
    assert story.open().release_all() == (0 if how == "commit" else 1)


@pytest.mark.parametrize("how", ["commit", "abort"])
def test_a_batch_ends_when_the_last_update_is_decided(story: Story, how: str) -> None:
    task = story.leased()
    story.prepare_insert(task.batch)
    story.clock.advance(3)
    task.complete()
    assert story.logged(task.batch)[-1] == "complete", "a task may come"
    story.decide(how, task.batch)
    got = story.open().lease(1)
    assert len(got) == (1 if how == "commit" else 0)
    assert os.path.exists(story.q.store.layout.log(task.batch)) == (how == "commit")


def test_a_burial_that_is_committed_leaves_a_letter(story: Story) -> None:
    task = story.leased()
    story.prepare_end(task, "bury", reason="bad")
    story.decide("commit", task.batch)
    with pytest.raises(LeaseLost, match="has finished"):
        task.complete()
    assert [letter.reason for letter in story.q.dead()] == ["bad"]


# -- locks and errors ------------------------------------------------------------------------------------


def test_the_log_is_unlocked_while_the_decision_is_asked_for(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a decision file may wait for another host's lease on it; workers of the batch must not wait, too."""
    task = story.leased()
    story.prepare_end(task)
    real, asked = decisions.ask_all, []

    def ask(store: Any, *args: Any) -> Any:
        with LockedBatch(story.open().store, task.batch, 0):
            asked.append(args)
        return real(store, *args)

    monkeypatch.setattr(decisions, "ask_all", ask)
    story.decide("abort", task.batch)
    task.complete()
    assert len(asked) == 1


def test_a_queue_that_was_moved_out_of_its_group_is_refused(story: Story, tmp_path: Path) -> None:
    task = story.leased(lease_s=9_999)
    story.prepare_end(task)
    story.prepare_insert(task.batch)
    os.rename(story.q.path, tmp_path / "moved")
    moved = Queue(tmp_path / "moved", clock=story.clock)
    story.clock.advance(60)
    with pytest.raises(OutOfGroup, match="Move it back"):
        moved.lease(1)
    with pytest.raises(OutOfGroup, match="Nothing was done"):
        moved.attach(task.token).complete()


def test_a_decision_that_cannot_be_read_holds_up_no_other_batch_and_is_an_error_in_the_end(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = story.leased()
    story.prepare_insert(task.batch)
    insert_in_file(story.q, "elsewhere")

    def failing(*args: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    other = story.open()
    with monkeypatch.context() as patched:
        patched.setattr(decisions, "ask_all", failing)
        assert [each.payload for each in other.lease(2)] == ["elsewhere"]
        with pytest.raises(StorageError, match="Input/output error"):
            other.lease(1)
    story.decide("commit", task.batch)
    assert [each.payload for each in other.lease(1)] == ["inserted"]


@pytest.mark.parametrize("has_asked", [False, True])
@pytest.mark.parametrize("how", ["commit", "none"])
def test_whoever_dies_before_or_after_the_question_leaves_the_outcome_to_others(
    story: Story, monkeypatch: pytest.MonkeyPatch, how: str, has_asked: bool
) -> None:
    task = story.leased()
    story.prepare_insert(task.batch)
    story.decide(how, task.batch)
    story.clock.advance(2 * PATIENCE_S)
    real = decisions.ask_all

    def dying(*args: Any) -> Any:
        if has_asked:
            real(*args)
        raise Crash

    monkeypatch.setattr(decisions, "ask_all", dying)
    with pytest.raises(Crash):
        story.open().lease(1)
    monkeypatch.setattr(decisions, "ask_all", real)
    got = story.open().lease(1)
    assert [each.payload for each in got] == (["inserted"] if how == "commit" else [])
    assert story.said() == story.outcomes(task.batch) == ["commit" if how == "commit" else "abort"]


@pytest.mark.parametrize("how", ["commit", "abort"])
def test_whoever_dies_at_any_change_of_the_disk_leaves_a_whole_outcome_or_none(tmp_path: Path, how: str) -> None:
    stories: list[Story] = []

    def build(number: int) -> Queue:
        story = Story(tmp_path / f"group{number}")
        task = story.leased()
        story.prepare_end(task, "bury", reason="bad")
        story.prepare_insert(task.batch)
        story.decide(how, task.batch)
        story.batch = task.batch  # type: ignore[attr-defined]
        stories.append(story)
        return story.q

    for where, queue in crashes(build, lambda worker: worker.lease(1), ManualClock()):
        story = stories[-1]
        story.clock.advance(60)
        story.open().lease(1)
        queue.gc()
        status = story.open().status()
        expected = (1, 1) if how == "commit" else (0, 1)
        assert (status.dead, status.leased + status.waiting) == expected, where
        assert len([*queue.dead()]) == expected[0], where


# -- keys ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", DECISIONS)
def test_an_insert_with_the_key_of_a_prepared_one_waits_for_the_decision(
    story: Story, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = movements.insert

    def prepared(*args: Any) -> tuple[Record, bytes]:
        return real(*args[:6], part=story.part)

    with monkeypatch.context() as patched:
        patched.setattr(movements, "insert", prepared)
        one = story.q.insert("one", key="k")
    story.q = story.open()  # the other one takes it for inserted
    batch, index = names.parse_task_id(one.id)
    with LockedBatch(story.q.store, batch) as locked:
        assert len(locked.replay_state.prepared[U].records) == 1
        assert index == locked.replay_state.count - 1
    story.decide(how, batch)
    other = story.open().insert("two", key="k")
    assert (other.id == one.id) == (how == "commit"), "one living task a key, and none is lost"
    assert story.open().insert("three", key="k").id == other.id


def test_a_task_lives_while_its_completion_is_not_decided(story: Story) -> None:
    """Two pages that link to each other, each fetched and completed by an update, would else wait for each other."""
    story.leased().complete()
    one = story.q.insert("one", key="k")
    [task] = story.q.lease(1)
    story.prepare_end(task)
    begun = story.clock.monotonic()
    assert story.open().insert("two", key="k").id == one.id
    assert story.clock.monotonic() == begun
