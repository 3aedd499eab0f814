"""How often several queues are asked what they have, and what comes of it (docs/design.md, "Several queues")."""

from __future__ import annotations

import pytest

from fsqueue import LeasedTask, Queue, Task
from fsqueue.clock import ManualClock
from fsqueue.format.priority import Rank
from fsqueue.protocol.queue_watches import ASKING_SHARE, BELIEVED_S, Several, Watch
from tests.support import QueueFactory

pytestmark = pytest.mark.once

QUESTION_S = 0.001
"""What one question takes."""
ROUND_S = 3 * QUESTION_S
"""What it takes to ask all three queues."""


class Asked:
    """Three queues under one clock, by which a question takes some time; and who was asked."""

    def __init__(self, queue_factory: QueueFactory, patch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.queues = [Queue(queue_factory(name, shards=2).path, clock=self.clock) for name in "abc"]
        self.watches = [Watch(queue._leaser, None, may_go=True) for queue in self.queues]
        self.several = Several(self.watches)
        self.names: list[str] = []
        promise = Watch.promise

        def noted(watch: Watch, is_anew: bool = True) -> Rank | None:
            self.names.append(next(queue.path.name for queue in self.queues if queue.store is watch.store))
            self.clock.advance(QUESTION_S)
            return promise(watch, is_anew)

        patch.setattr(Watch, "promise", noted)

    def look(self, n: int = 1) -> tuple[list[object], str]:
        """Return the payloads that a look gave, and the names of the queues that it asked, sorted."""
        self.names.clear()
        got: list[LeasedTask] = self.several.look(n)
        return [task.payload for task in got], "".join(sorted(self.names))


@pytest.fixture
def asked(queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(queue_factory, monkeypatch)


def test_queues_that_have_tasks_take_turns_and_none_is_asked_again_meanwhile(asked: Asked) -> None:
    for queue in asked.queues:
        queue.insert_many([queue.path.name] * 10)
    looks = [asked.look() for _ in range(9)]
    assert [questions for _, questions in looks] == ["abc"] + [""] * 8
    assert [payload for got, _ in looks for payload in got] == list("abcabcabc")


def test_what_comes_into_another_queue_has_its_turn_once_all_are_asked_anew(asked: Asked) -> None:
    a, b, _ = asked.queues
    a.insert_many(["a"] * 10)
    assert asked.look() == (["a"], "abc")
    b.insert(Task("b", priority=1))
    assert asked.look() == (["a"], "")
    asked.clock.advance(ROUND_S / ASKING_SHARE + 0.0001)
    assert asked.look() == (["b"], "abc")


def test_no_answer_is_believed_for_long_though_a_question_takes_long(asked: Asked) -> None:
    a, b, _ = asked.queues
    a.insert_many(["a"] * 10)
    asked.clock.advance(1)
    promise = Watch.promise

    def slow(watch: Watch, is_anew: bool = True) -> Rank | None:
        asked.clock.advance(5)
        return promise(watch, is_anew)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Watch, "promise", slow)
        assert asked.look()[0] == ["a"]
    b.insert(Task("b", priority=1))
    asked.clock.advance(BELIEVED_S - 0.01)
    assert asked.look() == (["a"], "")
    asked.clock.advance(0.02)
    assert asked.look() == (["b"], "abc")


def test_all_are_asked_at_once_when_the_last_one_that_had_tasks_has_none(asked: Asked) -> None:
    a, b, c = asked.queues
    a.insert_many(["a"] * 2)
    assert asked.look() == (["a"], "abc")
    b.insert("b")
    c.insert(Task("c", priority=1))
    assert asked.look() == (["a"], "")
    got, questions = asked.look()
    assert got == ["c"]  # not that of whichever queue is looked at first
    assert set(questions) == set("abc")


def test_one_with_priorities_is_asked_after_each_task_that_it_gave(asked: Asked) -> None:
    a, b, _ = asked.queues
    a.insert_many([Task("a1", priority=1), Task("a4", priority=4), Task("a5", priority=5)])
    b.insert_many([Task("b2", priority=2), Task("b3", priority=3)])
    looks = [asked.look() for _ in range(5)]
    assert [payload for got, _ in looks for payload in got] == ["a1", "b2", "b3", "a4", "a5"]
    assert [questions for _, questions in looks][:3] == ["abc", "a", "b"]
    got, questions = asked.look()
    assert (got, set(questions)) == ([], set("abc"))


def test_a_queue_that_goes_while_it_is_believed_is_left_out_and_the_others_give(asked: Asked) -> None:
    a, b, c = asked.queues
    for queue in (a, b, c):
        queue.insert_many([queue.path.name] * 3)
    assert asked.look() == (["a"], "abc")
    Queue(b.path).delete()
    asked.clock.advance(BELIEVED_S / 20)  # still believed; and `queue.jsonl` is read after a second
    found = [payload for _ in range(9) for payload in asked.look()[0]]
    asked.clock.advance(2)
    found += [payload for _ in range(9) for payload in asked.look()[0]]
    assert [found.count(name) for name in "ac"] == [2, 3]
    assert asked.look(9)[0] == []
    assert asked.watches[1].is_gone


def test_a_queue_that_goes_after_it_gave_nothing_is_asked_once_more_and_left_out(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, _ = asked.queues
    a.insert(Task("a", priority=0))
    b.insert_many([Task(number, priority=number) for number in range(1, 5)])
    a_watch, take = asked.watches[0], Watch.take

    def deleted_meanwhile(watch: Watch, n: int, bound: Rank) -> list[LeasedTask]:
        if watch is not a_watch:
            return take(watch, min(n, 1), bound)  # a full look takes several turns
        Queue(a.path).delete()
        asked.clock.advance(2)
        return []

    monkeypatch.setattr(Watch, "take", deleted_meanwhile)
    asked.several.change(asked.watches[:2])
    got, questions = asked.look(4)
    assert got == [1, 2, 3, 4]
    assert questions.count("a") == 2
    assert a_watch.is_gone


def test_others_than_before_are_all_asked(asked: Asked) -> None:
    a, b, _ = asked.queues
    a.insert_many(["a"] * 5)
    assert asked.look() == (["a"], "abc")
    b.insert(Task("b", priority=1))
    asked.several.change(asked.watches[:2])
    assert asked.look() == (["b"], "ab")
