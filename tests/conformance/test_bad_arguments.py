"""What is no argument of a verb is refused alike by every kind of queue, before anything is done."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fsqueue import LeasedTask, Status
from tests.conformance.kinds import GROUPS, IN_PYTHON, QUEUES

pytestmark = pytest.mark.once

NO_SECONDS = ("1", None, [], True, -1, -math.inf, math.inf, math.nan, 10**5_000, 1e300)
"""What is no duration."""
NO_LENGTH = (*NO_SECONDS[:1], *NO_SECONDS[2:], 0)
"""What is no duration of something that lasts, where None is a default."""
NO_COUNT = ("1", None, [], True, 1.0, 0, -1, -(10**5_000), math.nan, math.inf)
"""What is no number of things, of which there is at least one."""
NO_PRIORITY = ([], True, 1.5, math.nan, -(10**30), 10**30, "a" * 2_000)
NO_TEXT = (5, b"a", [], "", "\ud800", "a\udcff")
NO_IDS = (None, 5, 1.5, math.nan, "", "foo", [5], ["foo"], [None], {"foo": 1})
NOBODY = f"{'0' * 32}.0"
NO_FUNCTION = (5, "foo", [])
NO_LEASES = (None, 5, "foo", ["foo"], [None], {"foo": 1})


class Held(NamedTuple):
    """A queue with a task that is waiting, one that is leased, and one that is dead."""

    queue: Any
    task: LeasedTask


Call = Callable[[Held, Any], object]
"""What does something with a queue, or with its task, given one argument."""


def of(verb: str, name: str | None = None, **more: Any) -> Call:
    """Return what calls a verb of the queue, given one argument: the first one, or the one of a name."""

    def call(held: Held, value: Any) -> object:
        function = getattr(held.queue, verb)
        return function(value, **more) if name is None else function(**{**more, name: value})

    return call


def of_task(verb: str, name: str, *given: Any) -> Call:
    """Return what calls a verb of the leased task."""
    return lambda held, value: getattr(held.task, verb)(*given, **{name: value})


def of_leases(verb: str, name: str) -> Call:
    """Return what calls a verb of the queue for the leased task."""
    return lambda held, value: getattr(held.queue, verb)([held.task], **{name: value})


VERBS: dict[str, tuple[Call, tuple[Any, ...]]] = {
    "insert key": (of("insert", "key", payload=1), (5, b"a", [], "", "a" * 2_000, "\ud800")),
    "insert priority": (of("insert", "priority", payload=1), NO_PRIORITY),
    "insert delay_s": (of("insert", "delay_s", payload=1), NO_SECONDS),
    "insert available_at": (of("insert", "available_at", payload=1), ("1", [], True, -1, math.nan, math.inf)),
    "insert_many": (of("insert_many"), (None, 5, "foo", b"foo", {"foo": 1})),
    "insert_many delay_s": (of("insert_many", "delay_s", payloads=[1]), NO_SECONDS),
    "insert_many total": (of("insert_many", "total", payloads=[1]), ("1", [], True, 1.5, -1, math.nan)),
    "insert_many commit": (of("insert_many", "commit", payloads=[1]), (*NO_TEXT, "a" * 2_000)),
    "insert_many new_by": (of("insert_many", "new_by", payloads=[{"a": 1}]), (*NO_TEXT, "a" * 2_000)),
    "results latest_by": (of("results", "latest_by"), (*NO_TEXT, "a" * 2_000)),
    "results newest": (of("results", "newest"), (*NO_COUNT[:1], *NO_COUNT[2:], 1_001)),
    "results newest of each": (of("results", "newest", latest_by="run"), (1,)),
    "lease": (of("lease"), NO_COUNT),
    "lease lease_s": (of("lease", "lease_s"), NO_LENGTH),
    "lease wait_s": (of("lease", "wait_s"), NO_SECONDS),
    "lease up_to": (of("lease", "up_to"), NO_PRIORITY),
    "lease order": (of("lease", "order"), ("foo", "", None, 5, ["priority"], "\ud800")),
    "lease holder": (
        of("lease", "holder"),
        (5, "foo", {}, {"host": 5}, {"host": ""}, {"host": "a", "pid": -1}, {"host": "\ud800"}),
    ),
    "lease_by_id": (of("lease_by_id"), (*NO_IDS, "\ud800")),
    "results_of": (of("results_of"), (*NO_IDS, "\ud800")),
    "lease_by_id lease_s": (of("lease_by_id", "lease_s", ids=f"{'0' * 32}.0"), NO_LENGTH),
    "lease_by_id holder": (
        of("lease_by_id", "holder", ids=f"{'0' * 32}.0"), (5, "foo", {}, {"host": 5}, {"host": "a", "pid": -1})
    ),
    "poll lease_s": (of("poll", "lease_s"), NO_LENGTH),
    "poll prefetch": (of("poll", "prefetch"), NO_COUNT),
    "poll until": (of("poll", "until"), ("foo", None, 5)),
    "poll errors": (of("poll", "errors"), ("foo", None, 5)),
    "poll stop_after_failures": (of("poll", "stop_after_failures"), ("1", True, 1.5, -1, math.nan)),
    "attach": (of("attach"), (None, 5, "", "foo", [], "\ud800")),
    "attach unread": (of("attach", verify=False), (None, 5, "", "foo", [])),
    "complete": (of("complete"), NO_LEASES),
    "complete results": (of_leases("complete", "results"), (5, "foo", [1], {"foo": 1}, {5: 1})),
    "renew": (of("renew"), NO_LEASES),
    "renew lease_s": (of_leases("renew", "lease_s"), NO_LENGTH),
    "renew a task": (of_task("renew", "lease_s"), NO_LENGTH),
    "release": (of("release"), NO_LEASES),
    "release delay_s": (of_leases("release", "delay_s"), NO_SECONDS),
    "release a task": (of_task("release", "delay_s"), NO_SECONDS),
    "fail a task": (of_task("fail", "delay_s", "no"), NO_SECONDS[:1] + NO_SECONDS[2:]),
    "cancel": (of("cancel"), (*NO_IDS, "\ud800")),
    "change": (of("change", priority=1), (*NO_IDS, "\ud800")),
    "change priority": (of("change", "priority", ids=NOBODY), (*NO_PRIORITY, None)),
    "change no_priority": (of("change", "no_priority", ids=NOBODY, delay_s=1), (5, "foo", None)),
    "change both": (of("change", "priority", ids=NOBODY, no_priority=True), (1, "a")),
    "change delay_s": (of("change", "delay_s", ids=NOBODY), NO_SECONDS),
    "change available_at": (of("change", "available_at", ids=NOBODY), (*NO_SECONDS,)),
    "change two times": (of("change", "delay_s", ids=NOBODY, available_at=5), (1, 0)),
    "wait timeout_s": (of("wait", "timeout_s"), NO_SECONDS[:1] + NO_SECONDS[2:]),
    "wait poll": (of("wait", "poll", timeout_s=0), NO_FUNCTION),
    "peek": (of("peek"), NO_COUNT),
    "task": (of("task"), (None, 5, "", "foo", "../foo", [])),
    "find_by_key": (of("find_by_key"), (None, 5, "", b"a", [], "a" * 2000)),
    "history": (of("history"), (None, 5, "", "foo", "../foo", [])),
    "tasks": (of("tasks"), ("foo", "", 5, ["waiting"])),
    "results where": (of("results", "where"), NO_FUNCTION),
    "activity": (of("activity"), NO_LENGTH),
    "timeline window_s": (of("timeline", "window_s"), (*NO_SECONDS, 0)),
    "timeline pieces": (of("timeline", "pieces"), (*NO_COUNT, 1_001, 10**5_000)),
    "waiting_by_priority": (of("waiting_by_priority"), NO_COUNT),
    "admit_node": (of("admit_node"), (None, *NO_TEXT)),
    "dead where": (of("dead", "where"), NO_FUNCTION),
    "retry_dead": (of("retry_dead", "ids"), NO_IDS),
    "retry_dead where": (of("retry_dead", "where"), NO_FUNCTION),
    "purge_dead": (of("purge_dead", "ids"), NO_IDS),
    "purge_dead where": (of("purge_dead", "where"), NO_FUNCTION),
    "retry_completed": (of("retry_completed", "ids"), NO_IDS),
    "retry_completed where": (of("retry_completed", "where"), NO_FUNCTION),
    "release_all worker": (of("release_all", "worker"), (None, *NO_TEXT)),
    "release_all host": (of("release_all", "host"), (None, *NO_TEXT)),
    "release_all slurm_job": (of("release_all", "slurm_job"), (None, *NO_TEXT)),
    "release_all job": (of("release_all", "job"), (None, *NO_TEXT)),
    "change_settings limit": (of("change_settings", "limit"), (None, 4, "host", {"host": 0}, {"host": "4"}, {"": 1})),
    "change_settings lease_s": (of("change_settings", "lease_s"), (None, *NO_LENGTH)),
    "change_settings max_attempts": (
        of("change_settings", "max_attempts"), ("1", [], True, 1.5, 0, -1, math.nan, 10**30)
    ),
    "change_settings backoff_s": (
        of("change_settings", "backoff_s"), (None, 5, "foo", (1,), (1, 2, 3), (2, 1), (1, math.nan), (1, math.inf))
    ),
    "change_settings of what is fixed": (of("change_settings", "shards"), (2, 3)),
    "change_settings of what is none": (of("change_settings", "foo"), (1, None, math.nan, object())),
    "pause": (of("pause"), (5, b"a", [], "a" * 100_000, "\ud800", "a\udcff")),
}  # fmt: skip
"""The verbs, with what is none of an argument of theirs."""


OF_LEASES = {name for name in VERBS if name.endswith(" a task")} | {
    "complete", "complete results", "renew", "renew lease_s", "release", "release delay_s",
}  # fmt: skip
"""Those that take leased tasks, which no queue has that is not there."""
REFUSED = re.compile(r"Invalid(Argument|Task): .*[.)]$", re.DOTALL)


@contextmanager
def held_in(kind: str, home: Path) -> Iterator[Held]:
    with QUEUES[kind](home) as queue:
        queue.insert_many(range(3))
        dead, task = queue.lease(2)
        dead.bury("no")
        assert queue.status() == Status(waiting=1, leased=1, dead=1)
        yield Held(queue, task)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    """A plain queue: what it says, all say."""
    with held_in("plain", tmp_path_factory.mktemp("plain")) as made:
        yield made


@pytest.fixture(params=IN_PYTHON, scope="module")
def held(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    with held_in(request.param, tmp_path_factory.mktemp("held")) as made:
        yield made


@pytest.fixture(params=GROUPS, scope="module")
def without(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A group, of one kind after the other, without the queues that are asked for."""
    with GROUPS[request.param](tmp_path_factory.mktemp("without")) as group:
        yield group


def state_of(held: Held) -> tuple[Any, ...]:
    queue = held.queue
    seen = [queue.task(held.task.id), *queue.tasks("waiting"), *queue.tasks("dead")]
    return queue.status(), queue.settings, queue.paused, seen, held.task.done, held.task.until_ms


def said_to(call: Call, held: Held, value: Any) -> str:
    """Return what a call raises, in a line; or that it raises nothing."""
    try:
        found = call(held, value)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"returned {found!r:.100}"


def refusals(name: str, held: Held) -> list[str]:
    call, values = VERBS[name]
    return [said_to(call, held, value) for value in values]


@pytest.mark.parametrize("name", VERBS)
def test_a_bad_argument_is_refused_alike_and_nothing_is_done(plain: Held, held: Held, name: str) -> None:
    before = state_of(held)
    refused = refusals(name, held)
    assert [one for one in refused if not REFUSED.match(one)] == []
    assert refused == refusals(name, plain)
    assert state_of(held) == before


@pytest.mark.parametrize("name", [name for name in VERBS if name not in OF_LEASES])
def test_it_is_refused_by_a_queue_that_has_not_come_into_being(plain: Held, without: Any, name: str) -> None:
    absent = without[name.replace(" ", "-")]
    assert refusals(name, Held(absent, plain.task)) == refusals(name, plain)
    assert not absent.exists()


@pytest.mark.parametrize("verb", ["peek", "waiting_by_priority"])
def test_what_is_large_but_sound_is_taken(held: Held, verb: str) -> None:
    for number in (1_001, 1 << 70, 10**5_000):
        assert len(getattr(held.queue, verb)(number)) == 1
