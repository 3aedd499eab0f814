"""Results: what functions return and what commands write becomes JSON by the rules of docs/functions.md."""

from __future__ import annotations

import datetime
import enum
import os
import signal
import uuid
from collections import Counter, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from types import FrameType
from typing import Any

import numpy as np
import orjson
import pytest

from fsqueue import InvalidResult, InvalidTask, Queue
from fsqueue.errors import said, text_of
from fsqueue.format.nesting import NESTING_MAX
from fsqueue.format.results import RESULT_BYTES_MAX, decode_result, encode_result

pytestmark = pytest.mark.once
Point = namedtuple("Point", "x y")


class Kind(enum.Enum):
    TILE = "tile"


@dataclass
class Fit:
    loss: float
    best: Any = None
    _steps: list[int] = field(default_factory=list)


class Broken:
    @property
    def __dataclass_fields__(self) -> Any:
        raise ValueError("no fields")


NAN, INF = float("nan"), float("inf")
KEPT: list[tuple[Any, Any]] = [
    ({"a": [1, 0.5, "x", None, True]}, {"a": [1, 0.5, "x", None, True]}),
    (NAN, "NaN"),
    ({"loss": NAN, "range": [-INF, INF]}, {"loss": "NaN", "range": ["-Infinity", "Infinity"]}),
    (np.float64(0.5), 0.5),
    (np.float32("nan"), "NaN"),
    (np.float32(0.25), 0.25),
    (np.longdouble(0.5), 0.5),
    (np.int64(-7), -7),
    (np.uint64(2**64 - 1), 2**64 - 1),
    (np.bool_(True), True),
    (np.str_("tile"), "tile"),
    (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    ({"spectrum": np.array([0.5, np.nan, -np.inf])}, {"spectrum": [0.5, "NaN", "-Infinity"]}),
    (np.array(["a", "b"]), ["a", "b"]),
    (np.array([1, None, NAN], dtype=object), [1, None, "NaN"]),
    (np.datetime64("2026-11-25"), "2026-11-25"),
    (np.array(["2026-11-25T10:00:00"], dtype="datetime64[ns]"), ["2026-11-25T10:00:00.000000000"]),
    (Fit(NAN, np.int64(3), [1]), {"loss": "NaN", "best": 3, "_steps": [1]}),
    ([Fit(0.5, Fit(1.0))], [{"loss": 0.5, "best": {"loss": 1.0, "best": None, "_steps": []}, "_steps": []}]),
    (datetime.date(2026, 11, 25), "2026-11-25"),
    (datetime.datetime(2026, 11, 25, 10, tzinfo=datetime.UTC), "2026-11-25T10:00:00+00:00"),
    (datetime.time(10, 30), "10:30:00"),
    (Path("/scratch/tile.png"), "/scratch/tile.png"),
    (PurePosixPath("a/b"), "a/b"),
    (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    (Kind.TILE, "tile"),
    ((1, Point(NAN, 2)), [1, ["NaN", 2]]),
    ({1: "a", 0.5: "b", np.int64(7): "c"}, {"1": "a", "0.5": "b", "7": "c"}),
    ({datetime.date(2026, 11, 25): 1, Path("a"): 2, Kind.TILE: 3}, {"2026-11-25": 1, "a": 2, "tile": 3}),
    (Counter({3: 2}), {"3": 2}),
]
REFUSED: list[tuple[Any, str]] = [
    ({"model": object()}, r"The result\['model'\] is of the type builtins.object, which JSON does not have\. Store it"),
    ([{1, 2}], r"The result\[0\] is of the type builtins.set"),
    ({"a": [b"bytes"]}, r"The result\['a'\]\[0\] is of the type builtins.bytes.*base64"),
    (1j, "type builtins.complex"),
    (np.complex128(1j), "NumPy's type complex128"),
    (np.timedelta64(1, "s"), "NumPy's type timedelta64"),
    ([2**64], r"The result\[0\] is an integer beyond 64 bits"),
    ({1: "a", "1": "b"}, "has two keys that are written as '1'"),
    ({(1, 2): "a"}, r"has the key \(1, 2\), of the type tuple"),
    ({True: "a"}, "has the key True, of the type bool"),
    (Fit, "is of the type builtins.type"),
    ("x" * RESULT_BYTES_MAX, "takes 65,538 bytes; 65,536 are kept"),
    ([np.nan] * RESULT_BYTES_MAX, "has more than 65,536 values"),
    (np.full(10**6, np.nan), "has more than 65,536 values"),
    ("\ud800", "surrogates"),
    (Broken(), "cannot be written as JSON: ValueError: no fields"),
]


@pytest.mark.parametrize(("value", "kept"), KEPT, ids=repr)
def test_what_a_function_returns_is_kept_by_rules(value: Any, kept: Any) -> None:
    assert orjson.loads(encode_result(value)) == kept


@pytest.mark.parametrize(("value", "why"), REFUSED, ids=[why[:20] for _, why in REFUSED])
def test_what_has_no_rule_is_refused_with_its_place(value: Any, why: str) -> None:
    with pytest.raises(InvalidTask, match=why):
        encode_result(value)


@pytest.mark.parametrize("leaf", [1, NAN])
def test_a_result_may_nest_as_deep_as_a_payload(leaf: float) -> None:
    def nested(levels: int) -> Any:
        value: Any = leaf
        for _ in range(levels):
            value = [value]
        return value

    encode_result(nested(NESTING_MAX))
    with pytest.raises(InvalidTask, match="nests deeper"):
        encode_result(nested(NESTING_MAX + 1))


def test_a_result_that_contains_itself_is_refused() -> None:
    itself: list[Any] = [NAN]
    itself += [itself, itself]
    with pytest.raises(InvalidTask, match="nests deeper"):
        encode_result(itself)


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (b'{"loss": NaN, "epochs": 90}\n', {"loss": "NaN", "epochs": 90}),
        (b"[Infinity, -Infinity]", ["Infinity", "-Infinity"]),
        (b'{"NaN": "a NaN, \\"-Infinity\\"", "b": NaN}', {"NaN": 'a NaN, "-Infinity"', "b": "NaN"}),
        (b"NaN\n", "NaN"),
        (b"3 NaN were found\n", "3 NaN were found"),
        (b"nan\n", "nan"),
    ],
)
def test_a_command_may_write_nan_as_a_function_may_return_it(written: bytes, kept: Any) -> None:
    assert decode_result(written) == kept


def test_what_is_wrong_beside_a_nan_is_still_wrong() -> None:
    for written in (b'{"a": NaN, "a": 1}', b"[NaN, 18446744073709551616]"):
        with pytest.raises(InvalidTask, match="The result has"):
            decode_result(written)


def test_a_task_completed_by_hand_keeps_the_same(queue: Queue) -> None:
    queue.insert(1)
    [task] = queue.lease()
    task.complete({"loss": np.float32("nan"), "file": Path("/a")})
    assert queue.task(task.id).result == {"loss": "NaN", "file": "/a"}


def test_a_block_that_completes_with_a_bad_result_is_not_repeated(queue: Queue) -> None:
    queue.insert(1)
    [task] = queue.lease()
    with pytest.raises(InvalidResult), task:
        task.complete({"model": object()})
    [letter] = queue.dead()
    assert letter.reason.startswith("its result cannot be kept, and its work is not repeated: The result['model']")


class TimeIsUp(Exception):
    """What a caller's alarm raises."""


class Alarm:
    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise TimeIsUp

    def one(self, number: int, frame: FrameType | None) -> None:
        raise TimeIsUp


def once(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise TimeIsUp


def any_of(*given: Any) -> None:
    once(*given[-2:])


class Slow:
    """The alarm comes while its text, or its fields, are asked for."""

    @property
    def __dataclass_fields__(self) -> Any:
        return str(self)

    def __str__(self) -> str:
        os.kill(os.getpid(), signal.SIGUSR1)
        raise ValueError("no alarm came")


class SlowError(Exception):
    __str__ = Slow.__str__


@pytest.mark.parametrize(
    "handler", [Alarm(), Alarm().one, once, partial(any_of, "more")], ids=["object", "method", "once", "variable"]
)
@pytest.mark.parametrize(
    "act",
    [lambda: encode_result({"a": Slow()}), lambda: text_of(Slow()), lambda: said(SlowError())],
    ids=["encode_result", "text_of", "said"],
)
def test_what_a_signal_handler_raises_meanwhile_goes_on(handler: Callable[..., Any], act: Callable[[], Any]) -> None:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(TimeIsUp):
            act()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_alarm_while_a_result_is_encoded_leaves_the_task_leased(queue: Queue) -> None:
    queue.insert("a")
    task = queue.lease()[0]
    before = signal.signal(signal.SIGUSR1, once)
    try:
        with pytest.raises(TimeIsUp):
            task.complete(Slow())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert queue.status().leased == 1
    task.complete("done")
