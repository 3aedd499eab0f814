"""The Python interface at its edges: wrong use is InvalidArgument and changes nothing; what is shown is there."""

from __future__ import annotations

import dataclasses
import enum
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

import fsqueue
from fsqueue import InvalidArgument, InvalidResult, InvalidTask, NotAQueue, Queue, QueueNotFound, Task
from tests.conftest import QueueFactory

pytestmark = pytest.mark.once

# -- wrong use ----------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Callable[[Any], object], str]] = {
    "wait for a queue": (lambda q: fsqueue.wait(q), "list of queues"),
    "wait for a path": (lambda q: fsqueue.wait(str(q.path)), "list of queues"),
    "wait for none": (lambda q: fsqueue.wait(None), "list of queues"),  # type: ignore[arg-type]
    "wait for numbers": (lambda q: fsqueue.wait([5]), "not a queue's path"),  # type: ignore[list-item]
    "wait, telling a number": (lambda q: q.wait(0, poll=5), "function"),
    "publish none": (lambda q: q.commit("c").publish(None), "publish takes parts"),
    "results in a list": (lambda q: q.complete(q.lease(), results=[1]), "results must be a dict"),
    "results in place of the tasks": (lambda q: q.complete({q.lease()[0]: 7}), "not a dict"),
    "results in a text": (lambda q: q.complete(q.lease(), results="abc"), "results must be a dict"),
    "release all of an unset worker": (lambda q: q.release_all(worker=None), "worker must be text"),
    "release all of an empty host": (lambda q: q.release_all(host=""), "host must be text"),
    "release all of a number": (lambda q: q.release_all(slurm_job=5), "slurm_job must be text"),
    "a task delayed into the past": (lambda q: q.insert(1, delay_s=-1), "delay_s"),
    "tasks delayed into the past": (lambda q: q.insert_many([1], delay_s=-1), "delay_s"),
    "a Task delayed into the past": (lambda q: q.insert_many([Task(1, delay_s=-1)]), "number 1: delay_s"),
    "stage into the past": (lambda q: q.commit("c").stage([1], delay_s=-1), "delay_s"),
    "release into the past": (lambda q: q.release(q.lease(), delay_s=-1), "delay_s"),
    "fail into the past": (lambda q: q.lease()[0].fail("x", delay_s=-1), "delay_s"),
    "a result that is too long": (lambda q: q.lease()[0].complete("x" * 70_000), "Store it in a file"),
    "a result that is no JSON": (lambda q: q.complete(ts := q.lease(), results={ts[0].id: {1}}), "type builtins.set"),
    "a result of bytes": (lambda q: q.lease()[0].complete(b"x"), r"Give its text \(base64\), or store it"),
    "a payload that is no JSON": (lambda q: q.insert({1}), "make the whole payload bytes"),
    "cancel none": (lambda q: q.cancel(None), "Task ids are text"),
    "dead letters where a number": (lambda q: q.dead(where=5), "function"),
    "retry the letters of an unset variable": (lambda q: q.retry_dead(None), "ids must be task ids, not None"),
    "purge the letters of an unset variable": (lambda q: q.purge_dead(ids=None), "ids must be task ids, not None"),
    "retry completed tasks of an unset variable": (lambda q: q.retry_completed(None), "ids must be task ids, not None"),
    "retry completed tasks where a number": (lambda q: q.retry_completed(where=5), "function"),
    "retry where a number": (lambda q: q.retry_dead(where=5), "function"),
    "purge where a number": (lambda q: q.purge_dead(where=5), "function"),
    "check, telling a number": (lambda q: q.fsck(progress=5), "function"),
    "errors that are unknown": (lambda q: q.poll(errors="ignore"), "'record', 'raise'"),
    "an unknown state": (lambda q: q.tasks("done"), "'waiting', 'delayed'"),
    "asyncio with an unknown end": (lambda q: q.poll_async(until="empty"), "'drained', 'forever'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_is_one_error_and_changes_nothing(queue: Queue, name: str) -> None:
    call, said = WRONG[name]
    queue.insert_many(["a", "b"])
    [held] = queue.lease()
    with pytest.raises(InvalidArgument, match=said) as caught:
        call(queue)
    assert caught.value.exit_code == 2
    assert queue.status().inserted == 2
    assert queue.status().completed == 0
    held.complete()  # nobody has taken the lease away


def test_all_leases_are_released_where_that_is_asked_for(queue: Queue) -> None:
    queue.insert_many(range(3))
    queue.lease(3)
    assert queue.release_all() == 3


@pytest.mark.parametrize(
    "change", [{"bytes": None}, {"bytes": -1}, {"bytes": 2**70}, {"bytes": 1.5}, {"tasks": True}, {"first": None}]
)
def test_a_part_that_is_none_does_not_spoil_its_commit(queue: Queue, change: dict[str, Any]) -> None:
    commit = queue.commit("seed")
    part = commit.stage([1, 2])
    with pytest.raises(InvalidArgument, match="no part as `stage` returns them"):
        commit.publish([dataclasses.replace(part, **change)])
    assert commit.committed() is None
    assert commit.publish(part).tasks == 2
    assert queue.status().waiting == 2


def test_a_result_that_cannot_be_kept_is_an_invalid_argument_too() -> None:
    assert issubclass(InvalidResult, InvalidTask)
    assert issubclass(InvalidTask, InvalidArgument)


def test_what_queues_returns_is_what_wait_takes(queue_factory: QueueFactory, tmp_path: Path) -> None:
    one, two = queue_factory("group/a"), queue_factory("group/b")
    one.insert("x")
    with one.lease()[0]:
        pass
    assert [status.completed for status in fsqueue.wait(fsqueue.queues(tmp_path / "group"), 0)] == [1, 0]
    assert [status.completed for status in fsqueue.wait([two, one.path, f"fq://{two.path}"], 0)] == [0, 1, 0]
    with pytest.raises(QueueNotFound):
        fsqueue.wait([one, tmp_path / "nowhere"])


# -- where no queue can be ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("/dev/null", "is a device, pipe or socket"),
        ("/dev/null/below", "lies below something that is no directory"),
        ("file", "is a file"),
        ("dangling", "symbolic link that leads to no directory"),
        ("dangling/below", "below lies below /.*/dangling, a symbolic link that leads to no directory"),
        ("dangling/far/below", "lies below /.*/dangling, a symbolic link that leads to no directory"),
        ("loop/below", "lies below something that is no directory"),
        ("loop", "symbolic link that leads to no directory"),
        ("to file", "symbolic link that leads to no directory"),
        ("to empty", "symbolic link to an empty directory.*readlink -f"),
    ],
)
def test_no_queue_is_created_in_the_place_of_something_else(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    for link, target in {"dangling": "nowhere", "loop": "loop", "to file": "file", "to empty": "empty"}.items():
        (tmp_path / link).symlink_to(target)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(NotAQueue, match=said):
        Queue.create(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == before
    assert os.listdir(tmp_path / "empty") == []


def test_a_link_to_a_queue_opens_it(queue: Queue, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(queue.path)
    Queue.create(tmp_path / "link", exist_ok=True).insert("x")
    assert queue.status().waiting == 1


# -- payloads that would come back as others --------------------------------------------------------------------


class Color(enum.StrEnum):
    RED = "red"


class Named(dict[str, int]):
    pass


CHANGED: list[tuple[object, object, str]] = [
    ((1, 2), [1, 2], r"payload is of the type tuple"),
    ({"a": [1, {"b": (1,)}]}, {"a": [1, {"b": [1]}]}, r"payload\['a'\]\[1\]\['b'\] is of the type tuple"),
    (uuid.UUID(int=1), str(uuid.UUID(int=1)), "payload is of the type UUID"),
    ([Color.RED], ["red"], r"payload\[0\] is of the type Color"),
    (Named(a=1), {"a": 1}, "payload is of the type Named"),
    (bytearray(b"x"), b"x", "payload is of the type bytearray"),
    (memoryview(b"x"), b"x", "payload is of the type memoryview"),
]


@pytest.mark.parametrize(("payload", "back", "said"), CHANGED, ids=[said for _, _, said in CHANGED])
def test_what_would_come_back_changed_is_refused_when_asked(
    queue: Queue, payload: object, back: object, said: str
) -> None:
    queue.insert(payload)
    [task] = queue.lease()
    assert (task.payload, type(task.payload)) == (back, type(back))
    task.complete()
    with pytest.raises(InvalidTask, match=f"The task: {said}, and would not come back"):
        queue.insert(payload, strict=True)
    with pytest.raises(InvalidTask, match=f"Task number 3: {said}") as caught:
        queue.insert_many([1, 2, Task(payload)], strict=True, batch_tasks=1)
    assert (caught.value.index, caught.value.inserted, queue.status().waiting) == (2, 2, 2)
    with pytest.raises(InvalidTask, match=f"Task number 1: {said}") as caught:
        queue.insert_many([payload], strict=True, commit="seed")
    assert caught.value.inserted == 0
    with pytest.raises(InvalidTask, match=f"Task number 2: {said}") as caught:
        queue.commit("more").stage([1, payload], strict=True)
    assert caught.value.part.tasks == 1


def test_what_comes_back_as_it_went_in_passes(queue: Queue) -> None:
    payloads = [None, True, 1, 1.5, "é", b"\x00", [], {}, {"a": [1, {"b": None}]}, [[[[]]]]]
    for payload in payloads:
        queue.insert(payload, strict=True)
    assert queue.insert_many(payloads, strict=True) == len(payloads)
    assert queue.insert_many(payloads, strict=True, commit="seed") == len(payloads)
    back = sorted((repr(task.payload) for task in queue.lease(100)), key=str)
    assert back == sorted(map(repr, payloads * 3), key=str)


@pytest.mark.parametrize("payload", [{1: 2}, {"a": {(1, 2): 3}}, [object()], 1j])
def test_what_is_no_json_is_refused_either_way(queue: Queue, payload: object) -> None:
    for strict in (False, True):
        with pytest.raises(InvalidTask):
            queue.insert(payload, strict=strict)


def test_a_list_that_holds_itself_is_refused(queue: Queue) -> None:
    endless: list[object] = []
    endless.append(endless)
    for strict in (False, True):
        with pytest.raises(InvalidTask, match="nests deeper"):
            queue.insert(endless, strict=strict)


# -- what is shown ----------------------------------------------------------------------------------------------


def test_bytes_are_told_from_an_object_that_looks_like_them(queue_factory: QueueFactory) -> None:
    queue = queue_factory(max_attempts=1)
    for payload, shown in ((b"\x00\xff", {"b64": "AP8="}), ({"b64": "AP8="}, {"payload": {"b64": "AP8="}})):
        ref = queue.insert(payload)
        [task] = queue.lease()
        said: list[dict[str, Any]] = [queue.task(ref.id).as_dict()]
        task.fail("no")
        [letter] = queue.dead()
        assert letter.payload == payload
        said.append(letter.as_dict())
        for one in said:
            assert orjson.loads(orjson.dumps(one)) == one, "ready for JSON"
            assert {name: one[name] for name in ("payload", "b64") if name in one} == shown
        queue.purge_dead()


def test_queues_at_one_path_are_equal(queue_factory: QueueFactory) -> None:
    one, other = queue_factory("a"), queue_factory("b")
    assert one == Queue(one.path, worker="w") == Queue(f"fq://{one.path}")
    assert one != other
    assert one != one.path
    assert len({one, Queue(one.path), other}) == 2
    assert repr(one) == f"Queue({str(one.path)!r})"


def test_one_task_or_one_id_does_instead_of_a_list(queue_factory: QueueFactory) -> None:
    queue = queue_factory(backoff_s=[0, 0], max_attempts=1)
    assert queue.settings.backoff_s == (0, 0)
    queue.insert_many(range(4))
    one, two, three = queue.lease(3)
    queue.renew(one, 1000)
    queue.complete(one, results={one.id: "done"})
    queue.release(two)
    three.fail("no")
    [letter] = queue.dead()
    assert (queue.task(one.id).result, queue.cancel(two.id), queue.retry_dead(letter.id)) == ("done", 1, 1)
    assert queue.status().as_dict() | {"inserted": 0} == {
        "inserted": 0, "waiting": 2, "delayed": 0, "leased": 0, "completed": 1, "dead": 0
    }  # fmt: skip


def test_the_package_shows_its_public_names_and_no_others() -> None:
    assert dir(fsqueue) == sorted(fsqueue.__all__)
    assert len(set(fsqueue.__all__)) == len(fsqueue.__all__)
    assert all(getattr(fsqueue, name) is not None for name in dir(fsqueue))
    with pytest.raises(AttributeError, match="no attribute 'Quue'"):
        fsqueue.Quue  # type: ignore[attr-defined]  # noqa: B018
