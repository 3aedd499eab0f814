"""fsqueue.Retry and fsqueue.Bury in `with task:` mean what they mean in a worker's handler."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fsqueue import Bury, InvalidArgument, LeasedTask, Queue, Retry, Worker
from fsqueue.clock import PAUSE_S

By = Callable[[Queue, Exception], None]


def in_a_block(queue: Queue, error: Exception) -> None:
    [task] = queue.lease()
    with task:
        raise error


def in_a_handler(queue: Queue, error: Exception) -> None:
    def handler(payload: object) -> None:
        raise error

    Worker(queue, handler, threads=1, max_tasks=1).run()


both = pytest.mark.parametrize("by", [in_a_block, in_a_handler])


@both
def test_retry_puts_back_without_blame_for_so_long(queue: Queue, by: By) -> None:
    before = queue.store.clock.now_ms() / 1000
    task_id = queue.insert(1).id
    by(queue, Retry(500))
    task = queue.task(task_id)
    assert (task.state, task.attempt, task.error) == ("delayed", 0, None)
    assert task.available_at is not None
    assert 500 <= task.available_at - before < 560


@both
def test_retry_at_once(queue: Queue, by: By) -> None:
    queue.insert(1)
    by(queue, Retry(0))
    assert [(task.state, task.attempt) for task in queue.tasks()] == [("waiting", 0)]


@both
def test_retry_without_a_time_pauses(queue: Queue, by: By, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeasedTask, "_retries", 0)
    before = queue.store.clock.now_ms() / 1000
    task_id = queue.insert(1).id
    by(queue, Retry())
    available_at = queue.task(task_id).available_at
    assert available_at is not None
    assert 0.7 * PAUSE_S[0] <= available_at - before < 60


def test_pauses_grow_until_a_block_ends_well(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeasedTask, "_retries", 0)
    monkeypatch.setattr(queue.store.entropy, "random", lambda: 0.5)
    paused: list[float] = []
    monkeypatch.setattr(LeasedTask, "release", lambda task, delay_s=0: paused.append(delay_s))
    queue.insert_many(range(8))
    for number, task in enumerate(queue.lease(8)):
        with task:
            if number != 4:
                raise Retry
    assert paused == [1, 2, 4, 8, 1, 2, 4]


@both
@pytest.mark.parametrize(("words", "reason"), [(("no such tile",), "no such tile"), ((), "given up by its handler")])
def test_bury_gives_up_at_once(queue: Queue, by: By, words: tuple[str, ...], reason: str) -> None:
    queue.insert(1)
    by(queue, Bury(*words))
    assert [(letter.reason, letter.attempt) for letter in queue.dead()] == [(reason, 1)]


@both
def test_a_retry_after_no_time_at_all_fails_the_task(queue: Queue, by: By) -> None:
    task_id = queue.insert(1).id
    try:
        by(queue, Retry("soon"))  # type: ignore[arg-type]
    except Retry:
        assert by is in_a_block  # the mistake is the program's: it is not hidden
    assert "fsqueue.Retry: delay_s must be a number" in (queue.task(task_id).error or "")


def test_what_the_block_has_settled_is_not_touched(queue: Queue) -> None:
    queue.insert(1)
    [task] = queue.lease()
    with pytest.raises(Retry), task:
        task.complete()
        raise Retry(5)
    assert queue.status().completed == 1


def test_other_errors_go_on(queue: Queue) -> None:
    queue.insert(1)
    [task] = queue.lease()
    with pytest.raises(InvalidArgument), task:
        raise InvalidArgument("mine")
    assert [(one.attempt, one.error) for one in queue.tasks()] == [(1, "InvalidArgument: mine")]
