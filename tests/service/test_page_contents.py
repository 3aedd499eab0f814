"""When pages look at queues: often while something happens, ever more rarely while nothing does."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest

import fsqueue
from fsqueue.service import page_contents
from fsqueue.service.page_contents import Names, PageLooks
from tests.conftest import QueueFactory
from tests.support import calls
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.once


class Time:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Page:
    state: object = 0

    def signature(self) -> object:
        return self.state

    def calls(self) -> int:
        return 250


@pytest.mark.parametrize("batch_tasks", [None, 10])
def test_an_idle_page_costs_the_file_server_under_thirty_calls_a_minute(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, batch_tasks: int | None
) -> None:
    """A browser asks every ten seconds for a day. In the second half the calls are counted."""
    queue = queue_factory()
    queue.insert_many(range(1000), batch_tasks=batch_tasks)
    queue.lease()[0].complete()
    [task] = queue.lease()
    assert task
    time, hours = Time(), 24
    pages = PageLooks(time)
    with calls(monkeypatch) as counted:
        opened = fsqueue.Queue(queue.path)
        for second in range(0, hours * 3600, 10):
            if second == hours * 1800:
                counted.clear()
            time.now = 1000.0 + second
            before = counted.total()
            seen = pages.look("queue", lambda: page_contents.look_into(opened, "q"))
            assert counted.total() - before <= seen.shown.calls() + 100
    assert 0 < counted.total() / (hours * 30) < 30


def test_a_page_whose_queue_changes_is_looked_at_every_two_seconds() -> None:
    time, made = Time(), 0
    pages = PageLooks(time)

    def make() -> Page:
        nonlocal made
        made += 1
        return Page(made)

    for _ in range(100):
        pages.look("page", make)
        time.now += 1
    assert made == 50
    time.now += 1
    pages.look("other", make)
    assert made == 51


def test_what_takes_long_takes_a_fifth_of_the_time_at_most() -> None:
    time = Time()
    pages = PageLooks(time)
    states = iter(range(1000))

    def slow() -> Page:
        time.now += 10
        return Page(next(states))

    begin = time.now
    for _ in range(1000):
        pages.look("page", slow)
        time.now += 1
    assert next(states) <= (time.now - begin) / 50 + 2


def test_a_quiet_page_is_looked_at_ever_more_rarely_until_something_changes_or_somebody_asks() -> None:
    time, page = Time(), Page()
    pages = PageLooks(time)
    pauses = []
    for _ in range(20):
        seen = pages.look("page", lambda: Page(page.state))
        pauses.append(seen.pause_s())
        time.now += seen.pause_s()
    assert pauses == sorted(pauses)
    assert pauses[0] == page_contents.LEAST_S
    assert pauses[-1] == 600
    time.now -= pauses[-1] / 2
    assert pages.due_s("page") > 200
    assert pages.due_s("page", fresh=True) == 0
    page.state = 1
    assert pages.look("page", lambda: Page(page.state), fresh=True).pause_s() == page_contents.LEAST_S
    pages.forget()
    assert pages.due_s("page") == 0


def test_who_asks_at_once_shares_one_look() -> None:
    pages, begun, go = PageLooks(), threading.Event(), threading.Event()
    made: list[int] = []

    def slow() -> Page:
        begun.set()
        assert go.wait(PATIENCE_S)
        made.append(1)
        return Page()

    threads = [threading.Thread(target=pages.look, args=("page", slow)) for _ in range(5)]
    for thread in threads:
        thread.start()
    assert begun.wait(PATIENCE_S)
    go.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert made == [1]


def test_pages_are_remembered_up_to_a_bound() -> None:
    pages = PageLooks(Time())
    for number in range(page_contents.PAGES_MAX + 10):
        pages.look(number, Page)
    assert pages.last(9) is None
    assert pages.last(10) is not None


def test_a_look_that_fails_leaves_nothing_in_memory() -> None:
    """A client may ask for any number of queues and tasks that are not there."""
    pages = PageLooks(Time())

    def fails() -> Page:
        raise fsqueue.TaskNotFound("there is no such task")

    for number in range(10):
        with pytest.raises(fsqueue.TaskNotFound):
            pages.look(number, fails)
        pages.look("page", Page)
    pages.forget()
    assert len(pages._looking) == 0


def test_of_many_queues_those_of_the_table_are_looked_at(group: fsqueue.Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_contents, "WHOLE_MAX", 3)
    monkeypatch.setattr(page_contents, "ROWS", 2)
    for name in "abcde":
        group[name].insert(1)
    time = Time()
    names, looked = Names(group, time), []

    def look(name: str) -> page_contents.QueueLook:
        looked.append(name)
        return page_contents.QueueLook(name)

    page = page_contents.look_over(names, look, list, "", 1)
    assert (looked, page.is_whole, page.matching, [one.name for one in page.rows]) == (["c", "d"], False, 5, ["c", "d"])
    assert [one.name for one in page_contents.look_over(names, look, list, "", 99).rows] == ["e"]
    found = page_contents.look_over(names, look, list, "B", 0)
    assert (found.is_whole, found.matching, found.total) == (True, 1, 5)
    group["f"].insert(1)
    assert page_contents.look_over(names, look, list, "f", 0).matching == 0  # it is listed every two seconds at most
    time.now += 3
    assert page_contents.look_over(names, look, list, "f", 0).matching == 1


def test_stages_come_in_the_order_of_the_flow_and_what_leads_back_does_not_count() -> None:
    flows = [
        fsqueue.Flow("fetch", "parse", 9), fsqueue.Flow("parse", "index", 8), fsqueue.Flow("fetch", "index", 5),
        fsqueue.Flow("parse", "fetch", 2), fsqueue.Flow("other", "index", 1), fsqueue.Flow("index", "index", 1),
    ]  # fmt: skip
    assert page_contents.stages(flows) == [["fetch", "other"], ["parse"], ["index"]]
    assert page_contents.stages([]) == []
    loop = [fsqueue.Flow(f"{n}", f"{(n + 1) % 150}", 150 - n) for n in range(150)]
    assert [stage for [stage] in page_contents.stages(loop)] == [f"{n}" for n in range(150)]
