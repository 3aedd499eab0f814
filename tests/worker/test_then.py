"""What is inserted in one step with a completion: by a handler that returns Then, and by a command with --then."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import Group, InvalidArgument, Queue, Task, Then, Worker
from fsqueue.errors import Conflict
from fsqueue.format.models import Used
from fsqueue.worker import child_messages, completion_updates, handlers, inserts
from fsqueue.worker.causes import Memory
from fsqueue.worker.inserts import INSERTS_BYTES_MAX, INSERTS_MAX
from tests.waiting import until
from tests.worker import tasks
from tests.worker.support import drained

pytestmark = pytest.mark.once


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group.create(tmp_path / "group", shards=2, durability="none")


def waiting(group: Group, name: str = "next") -> list[Any]:
    return [info.payload for info in group[name].tasks()]


def run(group: Group, script: str, payload: Any = 1, **options: Any) -> fsqueue.WorkerReport:
    """Run a shell's script for a task of `first`, and insert what it prints into `next`."""
    group["first"].insert(payload)
    return Worker(group["first"], command=["sh", "-c", script, "sh", "{}"], then="next", **options).run()


# -- handlers ---------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.parametrize("how", [{}, {"threads": 1}])
def test_what_a_handler_returns_is_inserted_with_its_result(group: Group, how: dict[str, Any]) -> None:
    group["first"].insert({"result": {"n": 1}, "inserts": [["next", [1]], ["other", None]]})
    group["first"].insert({"inserts": []})
    assert Worker(group["first"], tasks.follow, **how).run() == drained(completed=2)
    assert (waiting(group), waiting(group, "other")) == ([[1]], [None])
    assert sorted(str(one.result) for one in group["first"].results()) == ["None", "{'n': 1}"]


def test_priorities_delays_and_bytes_come_through(group: Group) -> None:
    group["first"].insert("later")
    Worker(group["first"], tasks.follow_with).run()
    (info,) = group["next"].tasks()
    assert (info.payload, info.priority, info.state) == (b"\xff", 3, "delayed")


def test_a_handler_of_a_queue_without_a_group_fails(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "queue", shards=2, durability="none", max_attempts=1)
    queue.insert({"inserts": [["next", 1]]})
    assert Worker(queue, tasks.follow, threads=1).run().buried == 1
    (letter,) = queue.dead()
    assert "is no queue of a group" in letter.reason


BAD_INSERTS: dict[str, tuple[Any, str, str]] = {
    "no list": (5, "fail", "must be a list of pairs"),
    "a text": ("ab", "fail", "must be a list of pairs"),
    "no pair": ([("next", 1), "ab"], "fail", "insert number 2 is no pair"),
    "no name": ([(7, 1)], "fail", "the name of a queue is a text"),
    "an empty name": ([("", 1)], "fail", "name"),
    "a long name": ([("x" * 256, 1)], "fail", "255"),
    "no JSON": ([("next", {1, 2})], "fail", "insert number 1 cannot be inserted"),
    "a bad key": ([("next", Task(1, key=""))], "fail", "the key is empty"),
    "a bad delay": ([("next", Task(1, delay_s=-1))], "fail", "delay_s"),
    "too large": ([("next", "x" * 65_536)], "bury", "65,536"),
    "too many": ([("next", 1)] * (INSERTS_MAX + 1), "bury", "9,999"),
    "too much": ([("next", "x" * 60_000)] * 140, "bury", "8,388,608"),
    "a bad list": (range(3), "fail", "is no pair"),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("bad", BAD_INSERTS)
def test_what_cannot_be_inserted_says_why(bad: str) -> None:
    given, verb, why = BAD_INSERTS[bad]
    told, text, _ = handlers.call(lambda: Then(None, given), [])
    assert told == verb
    assert why in text


SECRET = "pa55word"
"""A part of a payload, of an output or of a result. It must not be in a reason, which is kept longer."""


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "given",
    [
        SECRET,
        [SECRET],
        [(SECRET, SECRET, SECRET)],
        [([SECRET], 1)],
        [({SECRET: 1}, 1)],
        [(f"{SECRET}\0", 1)],
        [(SECRET * 40, 1)],
        [("next", {1: SECRET})],
        [("next", {SECRET: {1, 2}})],
        [("next", {SECRET: float("nan")})],
        [("next", f"{SECRET}\udcff")],
        [("next", Task(1, key=[SECRET]))],  # type: ignore[arg-type]
        [("next", Task(1, key=SECRET * 9_000))],
        [("next", Task(1, priority=[SECRET]))],  # type: ignore[list-item]
        [("next", Task(1, priority=SECRET * 900))],
        [("next", Task(1, delay_s=SECRET))],  # type: ignore[arg-type]
        [("next", Task(1, delay_s=-77_055_770))],
        [("next", Task(1, available_at=SECRET))],  # type: ignore[arg-type]
        [("next", Task(1, delay_s=77_055_770, available_at=77_055_770))],
        [("next", SECRET * 9_000)],
    ],
    ids=lambda given: f"{given!r:.50}",
)
def test_a_reason_quotes_nothing_of_what_was_to_be_inserted(given: Any) -> None:
    told, text, _ = handlers.call(lambda: Then(None, given), [])
    assert told in ("fail", "bury")
    assert "Nothing was inserted" in text or "Give each as" in text or "is a text, not" in text
    assert SECRET not in text
    assert "77055770" not in text.replace(",", "")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "printed",
    [
        f"{{\"{SECRET}\":1,\"{SECRET}\":2}}", f"{{\"a\":\"{SECRET}", SECRET, f"[\"{SECRET}\",987654321987654321987]",
        f"[\"{SECRET}\",1e999]", "[" * 3_000 + f"\"{SECRET}\"" + "]" * 3_000,
    ],
    ids=lambda printed: f"{printed:.30}",
)  # fmt: skip
def test_a_reason_quotes_nothing_of_an_output_or_a_result(group: Group, printed: str, tmp_path: Path) -> None:
    (tmp_path / "printed").write_text(printed)
    for to in ("", ">$FSQUEUE_RESULT"):
        run(group, f"cat {tmp_path}/printed {to}", stop_after_failures=1)
        found = [*group["first"].tasks(), *group["first"].tasks("dead")]
        assert to or found
        for info in found:
            assert to or "of its output" in (info.error or "")
            assert SECRET not in (info.error or "")
            assert "98765" not in (info.error or "")


@pytest.mark.parametrize("result", [[Then(1)], Then(Then(1)), (1, Then(1, [("next", 1)]))])
def test_a_then_inside_of_a_result_is_refused_and_not_kept_as_data(result: Any) -> None:
    told, text, _ = handlers.call(lambda: result, [])
    assert told == "bury"
    assert "is of the type fsqueue.then.Then" in text


def test_a_list_that_raises_fails_the_attempt() -> None:
    told, text, _ = handlers.call(lambda: Then(None, (1 / 0 for _ in "a")), [])  # type: ignore[arg-type]
    assert told == "fail"
    assert text.startswith("ZeroDivisionError")


def test_a_result_that_cannot_be_kept_is_given_up_and_nothing_is_inserted(group: Group) -> None:
    group["first"].insert({"result": "x" * 70_000, "inserts": [["next", 1]]})
    assert Worker(group["first"], tasks.follow, threads=1).run().buried == 1
    assert waiting(group) == []
    assert [letter.reason.partition(",")[0] for letter in group["first"].dead()] == ["its result cannot be kept"]


def test_tasks_come_through_a_message_between_processes_as_they_were() -> None:
    following = inserts.of_then(Then(None, [("a", {"x": "ü"}), ("b", Task(b"\0", "k", "p", 2))]))
    answer = child_messages.encode_answer("then", ({"r": 1}, following), 0.5, Used(1, 2))
    assert child_messages.decode_answer(answer) == ("then", ({"r": 1}, following), 0.5, Used(1, 2), Memory.ENOUGH)
    assert [one.task() for one in following.each] == [Task({"x": "ü"}), Task(b"\0", "k", "p", 2)]


@pytest.mark.parametrize("value", ["5", "[1]", "[1,5]", "[1,[5]]", '[1,[["a","b",true,"c"]]]', "null"])
def test_an_answer_with_anything_else_is_none(value: str) -> None:
    with pytest.raises(child_messages.Garbled):
        child_messages.decode_answer(b'["then",%s,0.5,1,2]' % value.encode())


# -- commands ---------------------------------------------------------------------------------------------------------


def test_each_line_that_a_command_prints_becomes_a_task(group: Group, capfd: pytest.CaptureFixture[str]) -> None:
    script = 'printf \'1\\n\\n{"a": [2]}\\r\\n"three"\'; echo note >&2; echo 7 >$FSQUEUE_RESULT'
    passed: list[bytes] = []
    report = run(group, script, keep_output=group.path.parent / "kept", pass_on=lambda ours, data: passed.append(data))
    assert report == drained(completed=1)
    assert waiting(group) == [1, {"a": [2]}, "three"]
    assert [one.result for one in group["first"].results()] == [7]
    assert b"".join(passed) == b"note\n", "what becomes tasks is not shown"
    (kept,) = (group.path.parent / "kept").iterdir()
    assert b'{"a": [2]}' in kept.read_bytes()


BAD_OUTPUT = {
    "echo 1; echo nope": ("failed", "line 2 of its output is not JSON"),
    'echo 1; echo \'{"a":1,"a":2}\'': ("failed", "line 2 of its output has a name twice"),
    "echo 1; echo 18446744073709551616": ("failed", "beyond 64 bits"),
    "echo 1; head -c 65537 /dev/zero | tr '\\0' 1": ("buried", "line 2 of its output takes 65,537 bytes"),
    "yes 1 | head -n 10000": ("buried", "more than 9,999 tasks"),
    "yes 1 | head -c 8388610": ("buried", "more than 8,388,608 bytes"),
    "echo 1; exit 3": ("failed", "exit status 3"),
    "echo 1; kill -9 $$": ("failed", "SIGKILL"),
    "echo 1; head -c 70000 /dev/zero >$FSQUEUE_RESULT": ("buried", "its result cannot be kept"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("script", BAD_OUTPUT)
def test_output_that_cannot_be_inserted_says_why(group: Group, script: str) -> None:
    verb, why = BAD_OUTPUT[script]
    report = run(group, script, stop_after_failures=1)
    assert waiting(group) == []
    assert report.buried == (verb == "buried")
    (info,) = [*group["first"].tasks(), *group["first"].tasks("dead")]
    assert why in (info.error or "")


def test_output_is_bounded_in_memory(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsqueue.worker.output import Stream

    largest = 0
    real = Stream._pass_on

    def pass_on(stream: Stream, chunk: bytes) -> None:
        nonlocal largest
        real(stream, chunk)
        largest = max(largest, len(stream.head))

    monkeypatch.setattr(Stream, "_pass_on", pass_on)
    run(group, "yes 1 | head -c 12000000")
    assert largest == INSERTS_BYTES_MAX + 1


def test_nothing_is_missing_while_output_cannot_be_passed_on(group: Group) -> None:
    """As long as the reader of a worker's own output stands still, the worker reads no pipe: but for this data."""
    stuck = threading.Event()
    script = "head -c 1100000 /dev/zero >&2; seq 1 300"
    worker = Worker(
        group["first"],
        command=["sh", "-c", script],
        then="next",
        pass_on=lambda ours, data: stuck.wait(),  # type: ignore[arg-type, return-value]
    )
    group["first"].insert(1)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        until(lambda: group["first"].status().completed, "the task to be completed")
        assert waiting(group) == list(range(1, 301))
    finally:
        stuck.set()
        thread.join()


def test_a_next_queue_must_make_sense(group: Group, tmp_path: Path) -> None:
    alone = Queue.create(tmp_path / "queue", shards=2, durability="none")
    for queue, options, why in (
        (alone, {"command": ["true"], "then": "next"}, "is no queue of a group"),
        (group["first"], {"command": ["true"], "then": ""}, "name"),
        (group["first"], {"handler": tasks.nothing, "then": "next"}, "fsqueue.Then"),
        (group["first"], {"command": ["true"], "then": "next", "result_from_stdout": True}, "--result-stdout"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            Worker(queue, **options)  # type: ignore[arg-type]


# -- reporting --------------------------------------------------------------------------------------------------------


class Done:
    """a completion, for `completion_updates`."""

    verb = "complete"

    def __init__(self, task: fsqueue.LeasedTask, following: inserts.Inserts) -> None:
        self.task, self.inserts = task, following
        self.result: Any = None


def leased(group: Group, count: int, next_: str = "next") -> list[Done]:
    group["first"].insert_many(range(count))
    found = group["first"].lease(count)
    return [Done(task, inserts.of_then(Then(None, [(next_, task.payload)]))) for task in found]


def test_of_several_completions_a_lost_lease_stops_only_its_own(group: Group) -> None:
    done = leased(group, 3)
    done[1].task.release()
    assert list(completion_updates.complete_and_insert(done)) == [done[1].task.token]
    assert sorted(waiting(group)) == [0, 2]
    assert group["first"].status().completed == 2


def test_to_tell_completions_again_inserts_nothing_again(group: Group) -> None:
    done = leased(group, 2)
    assert completion_updates.complete_and_insert(done) == {}
    assert completion_updates.complete_and_insert(done) == {}, "an earlier try has completed them"
    assert sorted(waiting(group)) == [0, 1]


def test_completions_are_told_together_as_far_as_an_update_goes(group: Group) -> None:
    done = leased(group, 70)
    assert [len(one) for one in completion_updates.grouped(done)] == [64, 6]
    assert [len(one) for one in completion_updates.grouped([done[0], done[0]])] == [1, 1], (
        "under two leases of one task"
    )
    many = inserts.of_then(Then(None, [("next", 1)] * 5000))
    assert [len(one) for one in completion_updates.grouped([Done(one.task, many) for one in done[:3]])] == [1, 1, 1]


BUSY = fsqueue.UpdateConflict("Others are in the way.", busy=[Conflict("insert", "next", "", "locked")])


@pytest.mark.parametrize("error", [fsqueue.StorageError("It is away."), BUSY])
def test_a_worker_tells_again_what_was_refused_for_the_moment(
    group: Group, monkeypatch: pytest.MonkeyPatch, error: fsqueue.FsqueueError
) -> None:
    monkeypatch.setattr("fsqueue.worker.settling.RETRY_S", (0.05, 0.05))
    real, errors = Group.update, [error] * 3

    def update(group: Group) -> Any:
        if errors:
            raise errors.pop()
        return real(group)

    monkeypatch.setattr(Group, "update", update)
    assert run(group, "echo 1") == drained(completed=1)
    assert waiting(group) == [1]
    assert errors == []


def test_a_command_that_has_completed_its_task_itself_inserts_nothing(group: Group) -> None:
    script = '"$0" -m cli complete "$FSQUEUE_QUEUE" "$FSQUEUE_TOKEN" >&2; echo 1'
    group["first"].insert(1)
    report = Worker(group["first"], command=["sh", "-c", script, sys.executable], then="next").run()
    assert report.completed == 1
    assert waiting(group) == []
