"""What ends or extends a lease: complete, renew, release, fail, bury, cancel; and who may do it."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fsqueue import (
    InvalidArgument,
    InvalidTask,
    LeasedTask,
    LeaseExpired,
    LeaseLost,
    LockTimeout,
    Queue,
    StorageError,
    TaskNotFound,
)
from fsqueue.clock import Entropy, ManualClock
from fsqueue.filesystem import Filesystem
from fsqueue.format import movements, state_checks
from fsqueue.format.models import Used
from fsqueue.format.replay import ReplayState
from fsqueue.protocol.transitions import ERROR_CHARS_MAX, backoff_ms, shorten
from fsqueue.storage.journals import LOCK_TIMEOUT_S
from tests.support import (
    Crash,
    CrashingFilesystem,
    QueueFactory,
    base_of,
    crashes,
    full_state,
    insert_in_file,
    leftovers,
    log_files,
    raised,
    task_file_names,
)


def leased(q: Queue, *payloads: Any, lease_s: float = 600) -> list[LeasedTask]:
    """Tasks inserted together and leased together, in the order of the payloads."""
    q.insert_many(payloads, batch_tasks=len(payloads))
    tasks = q.lease(len(payloads), lease_s=lease_s)
    return sorted(tasks, key=lambda task: payloads.index(task.payload))


def taken_over(q: Queue, q2: Queue, clock: ManualClock) -> tuple[LeasedTask, LeasedTask]:
    """A lease that ran out, and the one that took its task over."""
    [old] = leased(q, "x", lease_s=10)
    clock.advance(11)
    [new] = q2.lease()
    assert new.id == old.id
    return old, new


# -- complete --------------------


def test_completed_is_completed_and_nothing_is_left_of_it(q: Queue) -> None:
    [task] = leased(q, "x")
    task.complete()
    assert q.status().as_dict() == {"inserted": 1, "waiting": 0, "delayed": 0, "leased": 0, "completed": 1, "dead": 0}
    assert q.lease() == []
    assert leftovers(q) == []


def test_a_result_is_kept(q: Queue) -> None:
    first, second = leased(q, "a", "b")
    first.complete({"n": [1, None]})
    second.complete(0)
    assert q.task(first.id).result == {"n": [1, None]}
    assert q.task(second.id).result == 0
    assert q.history(first.id)[-1].result == {"n": [1, None]}


def test_a_result_must_be_small_json(q: Queue) -> None:
    [task] = leased(q, "x")
    with pytest.raises(InvalidTask, match="which JSON does not have"):
        task.complete({1, 2})
    with pytest.raises(InvalidArgument, match="65,536 are kept"):
        task.complete("x" * 65_536)
    assert q.status().leased == 1
    task.complete("x" * 65_000)
    assert q.status().completed == 1


def test_completing_late_is_forgiven(q: Queue, clock: ManualClock) -> None:
    [task] = leased(q, "x", lease_s=10)
    clock.advance(1000)
    assert q.status().waiting == 1
    task.complete()
    assert q.status().completed == 1


def test_tasks_of_many_batches_are_completed_together(q: Queue) -> None:
    q.insert_many(range(30), batch_tasks=3)
    tasks = q.lease(30)
    q.complete(iter(tasks))
    assert q.status().completed == 30
    assert leftovers(q) == []
    q.complete([])


@pytest.mark.batched
def test_completing_many_of_one_batch_is_one_record(q: Queue) -> None:
    tasks = leased(q, *range(10))
    [log] = log_files(q)
    before = log.read_bytes().count(b"\n")
    q.complete(tasks[:7])
    assert log.read_bytes().count(b"\n") == before + 1


def test_of_those_handed_in_together_what_holds_is_done(q: Queue, q2: Queue, clock: ManualClock) -> None:
    old, new = taken_over(q, q2, clock)
    good = leased(q, 1, 2, 3)
    with pytest.raises(LeaseLost, match="Discard the result") as caught:
        q.complete([good[0], old, *good[1:]])
    assert caught.value.tasks == [old.id]
    assert "taken over by w2 on " in caught.value.reason
    assert q.status().completed == 3
    new.complete()
    assert q.status().completed == 4


# -- fencing --------------------


@pytest.mark.parametrize("verb", ["complete", "complete with result", "renew", "release", "fail", "bury"])
@pytest.mark.parametrize("warm", [True, False])
def test_only_the_latest_lease_can_act(q: Queue, q2: Queue, clock: ManualClock, verb: str, warm: bool) -> None:
    old, new = taken_over(q, q2, clock)
    if not warm:
        q.close()
    acts = {
        "complete": old.complete,
        "complete with result": lambda: old.complete(1),
        "renew": old.renew,
        "release": old.release,
        "fail": lambda: old.fail("oops"),
        "bury": lambda: old.bury("oops"),
    }
    with pytest.raises(LeaseLost) as caught:
        acts[verb]()
    assert type(caught.value) is LeaseLost
    assert caught.value.tasks == [old.id]
    assert "taken over by w2" in caught.value.reason
    assert q.status().leased == 1
    assert list(q.dead()) == []
    new.complete()
    assert q2.status().completed == 1


@pytest.mark.parametrize("verb", ["complete", "renew", "release", "fail", "bury"])
def test_a_lease_that_was_given_back_is_lost(q: Queue, verb: str) -> None:
    [task] = leased(q, "x")
    task.release()
    act = getattr(task, verb)
    with pytest.raises(LeaseLost, match="given back"):
        act("x") if verb in ("fail", "bury") else act()
    assert q.status().waiting == 1


@pytest.mark.parametrize("verb", ["renew", "release", "fail", "bury"])
def test_after_completion_nothing_can_be_done_to_it(q: Queue, verb: str) -> None:
    task, other = leased(q, "x", "y")
    task.complete()
    act = getattr(task, verb)
    with pytest.raises(LeaseLost, match=r"completed|finished"):
        act("x") if verb in ("fail", "bury") else act()
    assert q.status().completed == 1
    other.complete()


def test_what_another_completed_is_lost(q: Queue, q2: Queue, clock: ManualClock) -> None:
    old, new = taken_over(q, q2, clock)
    new.complete()
    for verb in (old.complete, old.release, lambda: old.complete(1)):
        with pytest.raises(LeaseLost, match=r"completed|finished"):
            verb()
    assert q.status().completed == 1
    [kept] = (base_of(q) / "history").glob("*/*")
    assert kept.read_bytes().count(b"\n") == 1, "the batch is not finished a second time"


@pytest.mark.parametrize("verb", ["complete", "renew", "release"])
def test_of_two_leases_of_one_task_the_error_names_the_lost_one(q: Queue, clock: ManualClock, verb: str) -> None:
    q.insert("x")
    [first] = q.lease(1, lease_s=10)
    clock.advance(20)
    [second] = q.lease(1, lease_s=10)
    with pytest.raises(LeaseLost) as lost:
        getattr(q, verb)([first, second])
    assert (lost.value.tokens, lost.value.tasks) == ([first.token], [second.id])
    assert first.id == second.id


def test_a_revoked_lease_is_lost(q: Queue) -> None:
    [task] = leased(q, "x")
    assert q.release_all() == 1
    with pytest.raises(LeaseLost):
        task.complete()
    assert q.status().waiting == 1


# -- renew --------------------


def test_renewing_counts_from_now(q: Queue, q2: Queue, clock: ManualClock) -> None:
    first, second = leased(q, "a", "b", lease_s=10)
    clock.advance(9)
    q.renew([first, second], 20)
    assert first.lease_until == second.lease_until == pytest.approx(clock.now_s + 20)
    clock.advance(19)
    assert q2.lease(2) == []
    first.renew()
    assert first.lease_until == pytest.approx(clock.now_s + 600)
    clock.advance(2)
    assert [task.id for task in q2.lease(2)] == [second.id]
    assert q.task(first.id).lease_until == pytest.approx(first.lease_until)


def test_renewing_may_shorten_a_lease(q: Queue, q2: Queue, clock: ManualClock) -> None:
    [task] = leased(q, "x", lease_s=600)
    task.renew(5)
    clock.advance(6)
    assert len(q2.lease()) == 1


def test_renewing_too_late_says_so(q: Queue, clock: ManualClock) -> None:
    [task] = leased(q, "x", lease_s=10)
    clock.advance(10)
    with pytest.raises(LeaseExpired, match="ran out before it was renewed") as caught:
        task.renew()
    assert caught.value.tasks == [task.id]
    assert "No worker has taken it over yet: a completion counts" in str(caught.value)
    assert "Discard" not in str(caught.value), "completing it below counts"
    task.complete()
    assert q.status().completed == 1


def test_of_those_renewed_together_what_is_in_time_is_renewed(q: Queue, q2: Queue, clock: ManualClock) -> None:
    late, early = leased(q, "late", "early", lease_s=10)
    early.renew(100)
    clock.advance(20)
    with pytest.raises(LeaseExpired) as caught:
        q.renew([late, early], 500)
    assert caught.value.tasks == [late.id]
    assert early.lease_until == pytest.approx(clock.now_s + 500)
    q2.lease()
    with pytest.raises(LeaseLost, match="taken over") as caught:
        q.renew([late, early], 500)
    assert type(caught.value) is LeaseLost
    assert "Nobody has taken" not in str(caught.value), "the log says that somebody has"


def test_a_lost_lease_does_not_get_the_end_of_a_later_one_of_its_task(q: Queue, q2: Queue, clock: ManualClock) -> None:
    old, new = taken_over(q, q2, clock)
    ended = old.lease_until
    with pytest.raises(LeaseLost, match="taken over") as caught:
        q.renew([old, new], 500)
    assert caught.value.tasks == [old.id]
    assert old.lease_until == ended
    assert new.lease_until == pytest.approx(clock.now_s + 500)


def test_of_leases_that_ran_out_it_is_said_which_were_taken_over(q: Queue, q2: Queue, clock: ManualClock) -> None:
    mine = leased(q, "one", "two", lease_s=10)
    clock.advance(20)
    [taken] = q2.lease()
    [left] = [task for task in mine if task.id != taken.id]
    with pytest.raises(LeaseLost) as caught:
        q.renew(mine, 500)
    assert type(caught.value) is LeaseLost
    first, _, second = str(caught.value).partition(" any more. ")
    assert taken.id in first
    assert "taken over" in first
    assert left.id in second
    assert "No worker has taken it over yet" in second
    assert caught.value.tasks == [taken.id, left.id]


# -- release, fail, bury --------------------


def test_released_is_there_again_at_once_or_later(q: Queue, q2: Queue, clock: ManualClock) -> None:
    now, later = leased(q, "now", "later")
    now.release()
    later.release(30)
    assert q.status().as_dict() == {"inserted": 2, "waiting": 1, "delayed": 1, "leased": 0, "completed": 0, "dead": 0}
    assert q.task(later.id).available_at == pytest.approx(clock.now_s + 30)
    assert [task.payload for task in q2.lease(2)] == ["now"]
    clock.advance(30)
    assert [task.payload for task in q2.lease(2)] == ["later"]


def test_many_are_released_together(q: Queue) -> None:
    q.insert_many(range(20))
    q.release(q.lease(20), 5)
    assert q.status().delayed == 20


def test_a_failed_task_comes_back_with_its_error(q: Queue, clock: ManualClock) -> None:
    [task] = leased(q, "x")
    task.fail(ValueError("bad input"), 7)
    info = q.task(task.id)
    assert (info.state, info.error, info.attempt) == ("delayed", "ValueError: bad input", 1)
    assert info.available_at == pytest.approx(clock.now_s + 7)
    clock.advance(7)
    assert q.lease()[0].attempt == 2


def test_out_of_attempts_a_failed_task_is_buried(queue_factory: QueueFactory, clock: ManualClock) -> None:
    q = Queue(queue_factory(max_attempts=2).path, clock=clock)
    insert_in_file(q, "x")
    q.lease()[0].fail("first", 0)
    assert q.status().dead == 0
    q.lease()[0].fail("second", 0)
    assert [(letter.reason, letter.attempt) for letter in q.dead()] == [("second", 2)]
    assert leftovers(q) == []


@pytest.mark.parametrize(("attempts", "least", "most"), [(1, 2, 2.5), (2, 3, 5), (3, 6, 10), (5, 15, 20), (99, 15, 20)])
def test_pauses_double_within_bounds_and_jitter(
    queue_factory: QueueFactory, attempts: int, least: float, most: float
) -> None:
    q = queue_factory(backoff_s=(2, 20), max_attempts=None)
    pauses = [backoff_ms(q.store, attempts) / 1000 for _ in range(200)]
    assert least <= min(pauses)
    assert max(pauses) <= most
    assert max(pauses) - min(pauses) > (most - least) / 2
    assert len(set(pauses)) > 100, "many that end together would all come back together"


def test_bounds_of_pauses_that_are_equal_leave_no_choice(queue_factory: QueueFactory) -> None:
    q = queue_factory(backoff_s=(2, 2), max_attempts=None)
    assert {backoff_ms(q.store, attempts) for attempts in (1, 2, 50) for _ in range(20)} == {2000}


def test_the_pause_after_a_failure_is_the_backoff(queue_factory: QueueFactory, clock: ManualClock) -> None:
    class Middle(Entropy):
        def random(self) -> float:
            return 0.5

    q = Queue(queue_factory(backoff_s=(3, 100), max_attempts=None).path, clock=clock, entropy=Middle())
    ref = q.insert("x")
    for pause in (3.375, 6, 12, 24, 48, 86, 87.5, 87.5):
        q.lease()[0].fail("oops")
        assert q.task(ref.id).available_at == pytest.approx(clock.now_s + pause, abs=0.002)
        clock.advance(pause + 0.01)


@pytest.mark.parametrize("delay_s", [-1, float("nan"), "1", 10**400])
def test_a_wrong_delay_is_refused_and_the_lease_goes_on(q: Queue, delay_s: Any) -> None:
    [task] = leased(q, "x")
    with pytest.raises(InvalidArgument, match="delay_s"):
        task.release(delay_s)
    with pytest.raises(InvalidArgument, match="delay_s"):
        task.fail("x", delay_s)
    with pytest.raises(InvalidArgument, match="lease_s"):
        task.renew(0)
    task.complete()


def test_buried_at_once(q: Queue) -> None:
    task, other = leased(q, "x", "y")
    task.bury(KeyError("no such file"))
    assert [(letter.id, letter.reason) for letter in q.dead()] == [(task.id, "'no such file'")]
    assert q.status().as_dict() == {"inserted": 2, "waiting": 0, "delayed": 0, "leased": 1, "completed": 0, "dead": 1}
    other.complete()
    assert leftovers(q) == []


@pytest.mark.parametrize("text", ["", "ü" * 10, "\ud800 lone", 'quote " \\ \n', "\x00"])
def test_errors_of_all_kinds_are_kept(q: Queue, text: str) -> None:
    [task] = leased(q, "x")
    task.fail(text, 0)
    kept = q.task(task.id).error
    assert kept == text.encode("utf-8", "backslashreplace").decode()


def test_long_errors_are_cut_in_the_middle() -> None:
    assert shorten("x" * ERROR_CHARS_MAX) == "x" * ERROR_CHARS_MAX
    cut = shorten("begin" + "x" * 50_000 + "end")
    assert len(cut) < ERROR_CHARS_MAX + 100
    assert cut.startswith("beginx")
    assert cut.endswith("xend")
    assert "characters left out" in cut


# -- as a context manager --------------------


def test_leaving_the_block_completes(q: Queue) -> None:
    with leased(q, "x")[0]:
        pass
    assert q.status().completed == 1


def test_an_error_in_the_block_fails_the_task_and_goes_on_its_way(q: Queue) -> None:
    [task] = leased(q, "x")
    with pytest.raises(ZeroDivisionError), task:
        1 / 0  # noqa: B018
    assert q.task(task.id).error == "ZeroDivisionError: division by zero"
    assert q.status().delayed == 1


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_being_told_to_stop_releases_uncharged(q: Queue, kind: type[BaseException]) -> None:
    [task] = leased(q, "x")
    with pytest.raises(kind), task:
        raise kind
    assert (q.task(task.id).state, q.task(task.id).attempt) == ("waiting", 0)


@pytest.mark.parametrize(
    ("verb", "state"), [("complete", "completed"), ("release", "waiting"), ("fail", "delayed"), ("bury", "dead")]
)
def test_what_the_block_dealt_with_itself_is_left_alone(q: Queue, verb: str, state: str) -> None:
    [task] = leased(q, "x")
    with task:
        getattr(task, verb)(*(["x"] if verb in ("fail", "bury") else []))
    assert q.task(task.id).state == state


def test_a_block_that_completes_in_a_group_is_left_alone(q: Queue) -> None:
    tasks = leased(q, "x", "y")
    with tasks[0]:
        q.complete(tasks)
    assert q.status().completed == 2


def test_a_lost_lease_within_the_block_is_not_failed_again(q: Queue, q2: Queue, clock: ManualClock) -> None:
    old, _new = taken_over(q, q2, clock)
    with pytest.raises(LeaseLost), old:
        old.renew()
    assert q.status().leased == 1


# -- attach --------------------


@pytest.mark.parametrize("verb", ["complete", "renew", "release", "fail", "bury"])
def test_another_process_can_act_on_a_lease_by_its_token(q: Queue, q2: Queue, clock: ManualClock, verb: str) -> None:
    task, other = leased(q, {"a": 1}, "y")
    clock.advance(5)
    mine = q2.attach(task.token)
    assert (mine.id, mine.payload, mine.attempt, mine.lease_until) == (task.id, {"a": 1}, 1, task.lease_until)
    assert mine.token == task.token
    getattr(mine, verb)(*(["x"] if verb in ("fail", "bury") else []))
    states = {"complete": "completed", "renew": "leased", "release": "waiting", "fail": "delayed", "bury": "dead"}
    assert q.task(task.id).state == states[verb]
    if verb == "release":
        assert [found.id for found in Queue(q.path, clock=clock).lease()] == [task.id], "its hint is not late"
    other.complete()


def test_attaching_to_what_is_no_lease(q: Queue, q2: Queue, clock: ManualClock) -> None:
    old, new = taken_over(q, q2, clock)
    for text in ("", "x", old.id, f"{old.id}@", f"{old.token}0"):
        with pytest.raises(InvalidArgument, match="not a token"):
            q.attach(text)
    with pytest.raises(LeaseLost, match="taken over by w2") as caught:
        q.attach(old.token)
    assert caught.value.tasks == [old.id]
    with pytest.raises(LeaseLost):
        q.attach(f"{new.batch}.7@{new.lease}")
    with pytest.raises(TaskNotFound):
        q.attach(f"{'0' * 32}.0@{new.lease}")
    new.complete()
    with pytest.raises(TaskNotFound):
        q.attach(new.token)


class Meanwhile(Filesystem):
    """Lets others do something before a file below a directory is read for the first time."""

    def __init__(self, root: str, directory: str, act: Callable[[], object]) -> None:
        super().__init__(root)
        self.directory, self.acts = directory, [act]

    def read_pieces(self, path: str) -> list[tuple[int, bytes]]:
        if f"/{self.directory}/" in path and self.acts:
            self.acts.pop()()
        return super().read_pieces(path)


@pytest.mark.parametrize("how", ["completed", "half completed", "purged"])
def test_a_task_that_ends_while_its_payload_is_looked_for_is_not_attached_to(q: Queue, how: str) -> None:
    """Its file is gone. That is no damage, and no lease holds any more."""
    insert_in_file(q, ["x"])
    [task] = q.lease()

    def ends() -> None:
        if how == "purged":
            Queue(q.path).purge()
            return
        fs = CrashingFilesystem(str(q.path), at=5 if how == "half completed" else 1000)
        with suppress(Crash):
            Queue(q.path, filesystem=fs, clock=q.store.clock).attach(task.token).complete()

    other = Queue(q.path, filesystem=Meanwhile(str(q.path), "queue", ends))
    with pytest.raises(LeaseLost if how == "half completed" else TaskNotFound) as caught:
        other.attach(task.token)
    if isinstance(caught.value, LeaseLost):
        assert caught.value.reason == "you have completed it already"
        assert (task_file_names(q), len(log_files(q))) == ([], 1), "the crash is between the two"


@pytest.mark.batched
def test_attaching_costs_what_is_alive_in_a_batch_not_its_past(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, done, given_back = leased(q, "x", "y", "z")
    done.complete()
    given_back.release()
    for _ in range(1000):
        mine.renew()
    [log] = log_files(q)
    assert log.stat().st_size > 100_000
    replayed: list[int] = []
    replay_pieces = ReplayState.replay_pieces

    def counting(state: ReplayState, pieces: Iterable[tuple[int, bytes]], offset: int) -> int:
        found = list(pieces)
        replayed.append(sum(len(piece) for _, piece in found))
        return replay_pieces(state, found, offset)

    monkeypatch.setattr(ReplayState, "replay_pieces", counting)
    attached = Queue(q.path, clock=q.store.clock).attach(mine.token)
    assert (attached.payload, attached.attempt, attached.lease_until) == ("x", 1, mine.lease_until)
    assert 0 < sum(replayed) < 20_000
    monkeypatch.undo()
    assert attached.version == q.task(mine.id).version
    with pytest.raises(LeaseLost, match=r"You have completed .* already"):
        q.attach(done.token)
    with pytest.raises(LeaseLost, match="given back"):
        q.attach(given_back.token)


def test_attaching_late_but_untaken(q: Queue, q2: Queue, clock: ManualClock) -> None:
    [task] = leased(q, "x", lease_s=1)
    clock.advance(100)
    q2.attach(task.token).complete()
    assert q.status().completed == 1


# -- cancel --------------------


def test_waiting_and_delayed_tasks_are_taken_out(q: Queue) -> None:
    waiting, delayed = insert_in_file(q, "w"), insert_in_file(q, "d", delay_s=50)
    assert q.cancel([waiting.id, delayed.id]) == 2
    assert q.status().inserted == 0
    assert q.task(waiting.id).state == q.task(delayed.id).state == "cancelled"
    assert q.lease() == []
    assert leftovers(q) == []


def test_what_is_leased_or_finished_is_left_alone(q: Queue) -> None:
    done = insert_in_file(q, "done").id
    q.lease()[0].complete()
    dead = insert_in_file(q, "dead").id
    q.lease()[0].bury("no")
    held = insert_in_file(q, "held").id
    [task] = q.lease()
    waiting = insert_in_file(q, "waiting").id
    assert q.cancel([done, dead, held, waiting, waiting]) == 1
    assert q.cancel([waiting]) == 0
    assert [q.task(one).state for one in (done, dead, held, waiting)] == ["completed", "dead", "leased", "cancelled"]
    task.complete()
    assert q.status().as_dict() == {"inserted": 3, "waiting": 0, "delayed": 0, "leased": 0, "completed": 2, "dead": 1}
    assert leftovers(q) == []


@pytest.mark.batched
def test_of_a_batch_some_are_cancelled(q: Queue) -> None:
    q.insert_many(list("abcdef"), batch_tasks=6)
    ids = {info.payload: info.id for info in q.tasks()}
    assert q.cancel([ids["b"], ids["e"]]) == 2
    assert sorted(task.payload for task in q.lease(9)) == ["a", "c", "d", "f"]
    assert q.status().inserted == 4


def test_a_task_whose_lease_ran_out_can_be_cancelled_and_its_late_worker_is_told(q: Queue, clock: ManualClock) -> None:
    [task] = leased(q, "x", lease_s=10)
    clock.advance(20)
    assert q.cancel(task.id) == 1
    with pytest.raises(LeaseLost, match=r"cancelled|finished"):
        task.complete()
    assert q.status().inserted == 0


def test_malformed_ids_are_refused_and_nothing_is_cancelled(q: Queue) -> None:
    ref = q.insert("x")
    with pytest.raises(InvalidArgument, match="not a task id"):
        q.cancel([ref.id, "nonsense"])
    assert q.status().waiting == 1
    assert q.cancel([]) == 0


def test_an_index_that_a_batch_does_not_have_is_not_cancelled(q: Queue) -> None:
    ref = q.insert("x")
    assert q.cancel([ref.id.replace(".0", ".7")]) == 0
    assert q.status().waiting == 1


# -- what else may come in between --------------------


def test_a_stuck_lock_is_reported_with_who_was_seen_last(q: Queue, clock: ManualClock) -> None:
    task, _other = leased(q, "x", "y")
    log = q.store.logs.get(task.batch)
    other = Queue(q.path, clock=clock)
    [path] = [path for path in log_files(q) if path.stem == task.batch]
    fd = other.store.fs.open_append(str(path))
    assert other.store.fs.try_lock(fd)
    with pytest.raises(LockTimeout, match=r"w1 on .*Nothing was done") as caught:
        task.complete()
    assert task.batch in str(caught.value)
    other.store.fs.close(fd)
    assert log.closed, "after an error nothing is believed"
    task.complete()
    assert q.status().completed == 1


@pytest.mark.once
def test_several_stuck_locks_are_waited_for_no_longer_than_one(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(4), batch_tasks=1)
    tasks = q.lease(4)
    other = Queue(q.path, clock=clock)
    stuck = []
    for path in log_files(q):
        if path.stem != tasks[0].batch:
            stuck.append(other.store.fs.open_append(str(path)))
            assert other.store.fs.try_lock(stuck[-1])
    assert len(stuck) == 3
    began = clock.monotonic()
    with pytest.raises(LockTimeout, match="Of 4 tasks this call has dealt with 1"):
        q.complete(tasks)
    assert LOCK_TIMEOUT_S <= clock.monotonic() - began < 1.5 * LOCK_TIMEOUT_S, "they share one time to wait"
    for fd in stuck:
        other.store.fs.close(fd)
    q.complete(tasks[1:])
    assert q.status().completed == 4


def test_a_file_gets_an_earlier_name_before_its_tasks_come_back(q: Queue, clock: ManualClock) -> None:
    [task] = leased(q, "x")
    [name] = task_file_names(q)
    assert name.available_at == task.until_ms
    task.release(30)
    [name] = task_file_names(q)
    assert name.available_at == round((clock.now_s + 30) * 1000)
    [log] = log_files(q)
    assert str(name).encode() in log.read_bytes(), "the log knows the new name before the file has it"


def test_releasing_within_the_millisecond_of_another_lease_moves_the_file(q: Queue, clock: ManualClock) -> None:
    """The same time appears in a name twice; a process that opens the log anew must know the latest name."""
    q.insert("x")
    for _ in range(3):
        [task] = q.lease()
        Queue(q.path, clock=clock).attach(task.token).release()
        assert task_file_names(q)[0].available_at <= clock.now_ms()
    assert len(Queue(q.path, clock=clock).lease()) == 1


# -- the file's name comes first -----------------------------------------------------------------------


def give_back(verb: str) -> Callable[[LeasedTask], object]:
    """What makes a leased task available earlier than its file's name promises."""
    return {
        "release": LeasedTask.release,
        "fail": lambda task: task.fail("no", delay_s=0),
        "renew": lambda task: task.renew(0.001),
        "release_all": lambda task: task.queue.release_all(),
    }[verb]


@pytest.mark.once
@pytest.mark.parametrize("verb", ["release", "fail", "renew", "release_all"])
@pytest.mark.parametrize("is_done", [False, True])
def test_empty_is_not_said_of_a_task_that_could_not_be_given_an_earlier_name(
    queue: Queue, clock: ManualClock, verb: str, is_done: bool
) -> None:
    """EIO for the renaming, be it done or not: then the task is still leased, and its holder is told."""
    fs = Filesystem(str(queue.path), shared=False)
    q, rename = Queue(queue.path, filesystem=fs, clock=clock), fs.rename
    [task] = leased(q, "x")

    def failing(source: str, target: str) -> bool:
        if is_done:
            rename(source, target)
        raise OSError(errno.EIO, os.strerror(errno.EIO), target)

    fs.rename = failing  # type: ignore[method-assign]
    error = raised(StorageError, lambda: give_back(verb)(task))
    fs.rename = rename  # type: ignore[method-assign]
    assert error or is_done
    if error:
        assert Queue(queue.path, clock=clock).status().leased == 1
        assert q.task(task.id).lease_until == task.lease_until
        give_back(verb)(task)
    clock.advance(1)
    assert [other.id for other in Queue(queue.path, clock=clock).lease()] == [task.id]


@pytest.mark.once
@pytest.mark.parametrize("verb", ["release", "fail", "renew"])
def test_a_crash_while_a_task_is_given_back_leaves_no_name_that_is_late(
    queue_factory: QueueFactory, clock: ManualClock, verb: str
) -> None:
    def build(number: int) -> Queue:
        made = Queue(queue_factory(f"q{number}", shards=1).path, clock=clock)
        made.insert("x")
        return made

    def act(worker: Queue) -> None:
        give_back(verb)(worker.lease()[0])

    for where, q in crashes(build, act, clock):
        clock.advance(1)
        waiting = q.status().waiting
        assert len(Queue(q.path, clock=clock).lease()) == waiting, where


@pytest.mark.once
def test_a_file_that_an_error_says_is_not_renamed_gets_an_earlier_name_all_the_same(
    queue: Queue, clock: ManualClock
) -> None:
    """The renaming of the lease was done, and reported failed: which name the file has is not known."""
    fs = Filesystem(str(queue.path), shared=False)
    q, rename = Queue(queue.path, filesystem=fs, clock=clock), fs.rename
    q.insert("x")

    def failing(source: str, target: str) -> bool:
        rename(source, target)
        raise OSError(errno.EIO, os.strerror(errno.EIO), target)

    fs.rename = failing  # type: ignore[method-assign]
    [task] = q.lease()
    fs.rename = rename  # type: ignore[method-assign]
    task.release()
    assert len(Queue(queue.path, clock=clock).lease()) == 1


@pytest.mark.once
def test_a_name_that_a_dead_process_recorded_and_did_not_give_is_not_believed(
    q: Queue, q2: Queue, clock: ManualClock
) -> None:
    """Its record says that the file has an early name already."""
    insert_in_file(q, "x")
    [task] = q.lease()
    fs = CrashingFilesystem(str(q.path), at=2)  # after the record, before the renaming
    with pytest.raises(Crash):
        Queue(q.path, filesystem=fs, clock=clock).attach(task.token).release()
    assert "rename" in fs.log[-1]
    fs.bury()
    task.release()
    assert [other.id for other in q2.lease()] == [task.id]


# -- what the process knows of its own completions (decision 26) -------------------------------


@pytest.mark.batched
@pytest.mark.parametrize("most", [1, 5], ids=["one", "many"])
def test_what_a_process_knows_of_its_completions_is_what_a_reader_finds(queue: Queue, most: int) -> None:
    queue.insert_many(range(8), batch_tasks=8)
    tasks = queue.lease(8)
    queue.release(tasks[6:])
    for begin in range(0, 5, most):
        queue.complete(tasks[begin : begin + most])

    [path] = log_files(queue)
    read = ReplayState()
    read.replay(path.read_bytes(), 0)
    [log] = queue.store.logs
    assert full_state(log.replay_state) == full_state(read)
    assert [task.payload for task in queue.lease(8)] == [6, 7]


@pytest.mark.batched
def test_completing_many_tasks_parses_no_record_of_its_own(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.insert_many(range(8), batch_tasks=8)
    tasks = queue.lease(8)
    parsed: list[bytes] = []
    parse = movements.parse
    monkeypatch.setattr(state_checks, "misread", lambda record, line: ())
    monkeypatch.setattr(movements, "parse", lambda line: (parsed.append(line), parse(line))[1])

    queue.complete(tasks[:7])

    assert parsed == []
    assert queue.status().completed == 7


@pytest.mark.batched
def test_completions_with_results_are_replayed_as_any_reader_does(queue: Queue) -> None:
    queue.insert_many(range(4), batch_tasks=4)
    tasks = queue.lease(4)

    queue.complete(tasks[:3], {tasks[1].id: {"n": 7}})

    [log] = queue.store.logs
    assert log.replay_state.results == {tasks[1].index: {"n": 7}}
    assert log.replay_state.remaining == 1


@pytest.mark.parametrize("keep_history", [True, False])
@pytest.mark.parametrize("kind", ["bulk", "single"])
def test_a_second_complete_changes_nothing(tmp_path: Path, kind: str, keep_history: bool) -> None:
    """What it is told depends on whether the batch lives still, and not on how its tasks were inserted."""
    clock = ManualClock(time.time())
    Queue.create(tmp_path / "q", keep_history=keep_history).close()
    queue = Queue(tmp_path / "q", clock=clock)
    if kind == "bulk":
        queue.insert_many([1, 2], batch_tasks=2)
    else:
        queue.insert(1)
        queue.insert(2)
    first, last = queue.lease(2)
    first.complete("result")
    first.complete("another")
    with pytest.raises(LeaseLost, match="already"):
        queue.attach(first.token)
    clock.advance(5)
    last.complete()
    queue.gc()
    with pytest.raises(LeaseLost, match="already" if keep_history else "no longer"):
        first.complete("another")
    with pytest.raises(TaskNotFound):
        queue.attach(first.token)
    assert queue.status().completed == 2
    if keep_history:
        assert [one.result for one in queue.tasks("completed") if one.id == first.id] == ["result"]


@pytest.mark.batched
def test_completions_with_results_act_at_once_as_a_reader_replays_them(queue_factory: QueueFactory) -> None:
    q = queue_factory()
    q.insert_many(range(9), batch_tasks=9)
    tasks = q.lease(9)
    tasks[1].used, tasks[2].took_s = Used(1_500, 2_048), 7.5
    q.complete(tasks[:7], {tasks[index].id: result for index, result in enumerate([{"y": [1, None]}, 0, "x", None])})
    log = q.store.logs.get(tasks[0].batch)
    assert log is not None
    known, replayed = log.replay_state, ReplayState()
    [path] = log_files(q)
    replayed.replay(path.read_bytes(), 0)
    assert known.results == {0: {"y": [1, None]}, 1: 0, 2: "x"}
    for name in ("state", "since", "version", "results", "took", "used", "remaining", "done", "touched", "at"):
        assert getattr(known, name) == getattr(replayed, name), name
    assert known.remaining == 2
