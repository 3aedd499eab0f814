"""How a function gets a payload: by the table of docs/functions.md. And what sys.exit in it means."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fsqueue import InvalidArgument, Queue, Worker
from fsqueue.worker import handlers
from tests.waiting import PATIENCE_S
from tests.worker import tasks
from tests.worker.support import drained

TASK = handlers.TaskAtHand("id", 1, "q", lambda: False)


def one(tile):
    return ("one", tile)


def one_default(tile=5):
    return ("one_default", tile)


def fields(tile, zoom=1):
    return ("fields", tile, zoom)


def both(a, b):
    return ("both", a, b)


def three(a, b, c):
    return ("three", a, b, c)


def with_task(tile, zoom, task):
    return ("with_task", tile, zoom, task)


def item_and_task(item, task):
    return ("item_and_task", item, task)


def task_first(task, x):
    return ("task_first", task, x)


def only_task(task):
    return ("only_task", task)


def whole(payload):
    return ("whole", payload)


def whole_and(payload, context):
    return ("whole_and", payload, context)


def whole_last(tile=1, payload=None, task=None):
    return ("whole_last", tile, payload, task)


def named(*, tile, zoom=1):
    return ("named", tile, zoom)


def named_task(tile, *, task):
    return ("named_task", tile, task)


def placed(tile, /):
    return ("placed", tile)


def placed_two(tile, zoom, /):
    return ("placed_two", tile, zoom)


def rest(tile, **rest):
    return ("rest", tile, rest)


def stars(*args):
    return ("stars", args)


def switch(item, verbose=False):
    return ("switch", item, verbose)


@pytest.mark.parametrize(
    ("function", "payload", "expected"),
    [
        (one, {"tile": 1}, ("one", 1)),
        (one, {"tile": 1, "zoom": 2}, ("one", {"tile": 1, "zoom": 2})),
        (one, {"x": 1}, ("one", {"x": 1})),
        (one, {}, ("one", {})),
        (one, 7, ("one", 7)),
        (one_default, {}, ("one_default", {})),
        (fields, {"tile": 1}, ("fields", 1, 1)),
        (fields, {"zoom": 2, "tile": 1}, ("fields", 1, 2)),
        (fields, "text", ("fields", "text", 1)),
        (fields, {"other": 1}, ("fields", {"other": 1}, 1)),
        (both, {"a": 1, "b": 2}, ("both", 1, 2)),
        (both, {"x": 1}, ("both", {"x": 1}, TASK)),
        (both, 7, ("both", 7, TASK)),
        (three, {"a": 1, "b": 2, "c": 3}, ("three", 1, 2, 3)),
        (with_task, {"tile": 1, "zoom": 2}, ("with_task", 1, 2, TASK)),
        (item_and_task, {"item": 1}, ("item_and_task", 1, TASK)),
        (item_and_task, {"item": 1, "task": 2}, ("item_and_task", {"item": 1, "task": 2}, TASK)),
        (item_and_task, 7, ("item_and_task", 7, TASK)),
        (task_first, {"x": 1}, ("task_first", TASK, 1)),
        (only_task, {"task": 1}, ("only_task", {"task": 1})),
        (whole, {"payload": 1}, ("whole", {"payload": 1})),
        (whole_and, {"payload": 1, "context": 2}, ("whole_and", {"payload": 1, "context": 2}, TASK)),
        (whole_last, {"tile": 3}, ("whole_last", 1, {"tile": 3}, TASK)),
        (named, {"tile": 1}, ("named", 1, 1)),
        (named_task, {"tile": 1}, ("named_task", 1, TASK)),
        (named_task, [1], ("named_task", [1], TASK)),
        (placed, {"tile": 1}, ("placed", {"tile": 1})),
        (placed_two, {"tile": 1, "zoom": 2}, ("placed_two", {"tile": 1, "zoom": 2}, TASK)),
        (rest, {"tile": 1}, ("rest", 1, {})),
        (rest, {"tile": 1, "x": 2}, ("rest", {"tile": 1, "x": 2}, {})),
        (stars, {"args": 1}, ("stars", ({"args": 1},))),
        (switch, {"name": 1}, ("switch", {"name": 1}, False)),
        (switch, [1], ("switch", [1], False)),
    ],
)  # fmt: skip
def test_what_a_function_gets(function: Any, payload: Any, expected: Any) -> None:
    arguments, named = handlers.Way(function).arguments(payload, lambda: TASK)
    assert function(*arguments, **named) == expected


@pytest.mark.parametrize(
    ("function", "payload", "why"),
    [
        (
            fields,
            {"tile": 1, "zom": 2},
            "fields takes the fields tile, zoom (optional), and the payload has not just these.",
        ),
        (fields, {"zoom": 2}, "fields takes the fields tile, zoom (optional), and the payload has not just these."),
        (both, {"a": 1}, "both takes the fields a, b, and the payload has not just these."),
        (three, 7, "three takes the fields a, b, c, and the payload has no fields."),
        (named, {"x": 1}, "named takes the fields tile, zoom (optional), and the payload has not just these."),
        (named, {}, "has no fields"),
    ],
)
def test_a_payload_that_fits_no_rule_fails_its_task(function: Any, payload: Any, why: str) -> None:
    verb, reason, _ = handlers.execute(function, handlers.Way(function), payload, lambda: TASK)
    assert (verb, why in reason) == ("fail", True)
    assert "'payload', which gets the whole" in reason


def test_functions_without_arguments_are_refused() -> None:
    def nothing() -> None: ...
    def rest(**fields: Any) -> None: ...
    async def later(payload: Any) -> None: ...

    for function in (nothing, rest, later):
        with pytest.raises(InvalidArgument):
            handlers.Way(function)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("threads", [None, 1])
def test_fields_arrive_by_name_in_processes_and_threads(queue: Queue, threads: int | None) -> None:
    queue.insert_many([{"tile": 1}, {"tile": 2, "zoom": 3}])
    assert Worker(queue, tasks.fields, threads=threads).run() == drained(completed=2)
    assert sorted(task.result for task in queue.tasks("completed")) == [[1, 1], [2, 3]]


# -- sys.exit


@pytest.mark.parametrize("code", [0, None, False])
def test_a_function_that_exits_with_0_has_done_its_task(code: Any) -> None:
    assert handlers.call(sys.exit, [code]) == handlers.CallEnd("complete", None)


@pytest.mark.parametrize("code", [3, -1, True, "no input", "", 0.0])
def test_another_code_fails_the_task_and_is_named(code: Any) -> None:
    verb, reason, _ = handlers.call(sys.exit, [code])
    assert (verb, reason.partition("\n")[0]) == ("fail", f"SystemExit: {code}")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", [[], ["--threads", "1"]])
def test_a_program_s_main_completes_its_task_once(queue: Queue, tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "tool.py").write_text(
        "import sys\ndef main(payload):\n    open('ran', 'a').write('x')\n    sys.exit(0)\n"
    )
    queue.insert(1)
    command = [sys.executable, "-m", "fsqueue_cli", "run", str(queue.path), "--call", "tool:main", *options]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert ran.stderr.endswith("fsqueue: 1 completed\n")
    assert (tmp_path / "ran").read_text() == "x"
