"""What a signal handler raises is told from an error, whatever the handler looks like. The look keeps nothing alive."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from fsqueue.interruptions import is_from_signal_handler, suppress

pytestmark = pytest.mark.once


def _plain(number: int, frame: FrameType | None) -> None:
    raise TimeoutError


def _packed(*given: Any) -> None:
    raise TimeoutError


def _in_a_cell(number: int, frame: FrameType | None) -> None:
    def uses() -> FrameType | None:
        return frame

    raise TimeoutError


def _that_calls(number: int, frame: FrameType | None) -> None:
    _plain(number, frame)


class _Object:
    def handle(self, number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    __call__ = handle


HANDLERS = [_plain, _packed, _in_a_cell, _that_calls, _Object().handle, _Object()]


@pytest.fixture(params=HANDLERS, ids=["plain", "packed", "in a cell", "that calls", "a method", "an object"])
def handler(request: pytest.FixtureRequest) -> Iterator[Callable[[int, FrameType | None], object]]:
    before = signal.signal(signal.SIGUSR1, request.param)
    yield request.param
    signal.signal(signal.SIGUSR1, before)


def _fails(*given: Any) -> None:
    """Fail as a function does that is called with many things, but not with its caller's frame."""
    raise TimeoutError(*given)


def test_what_a_handler_raises_is_an_interruption(handler: object) -> None:
    with pytest.raises(TimeoutError) as raised:
        signal.raise_signal(signal.SIGUSR1)
    assert is_from_signal_handler(raised.value)


def test_an_interruption_is_not_suppressed(handler: object) -> None:
    with pytest.raises(TimeoutError), suppress(OSError):
        signal.raise_signal(signal.SIGUSR1)


@pytest.mark.parametrize("given", [(), (1,), ((),), (_fails, [], {})])
def test_an_error_is_none(given: tuple[object, ...]) -> None:
    with pytest.raises(TimeoutError) as raised:
        _fails(*given)
    assert not is_from_signal_handler(raised.value)


def test_the_look_keeps_nothing_alive() -> None:
    """`f_locals` would keep a copy of what a frame's variables refer to."""
    closed = []

    def values() -> Iterator[int]:
        try:
            yield 1
        finally:
            closed.append(True)

    def uses() -> None:
        opened = values()
        next(opened)
        raise TimeoutError

    with pytest.raises(TimeoutError) as raised:
        uses()
    assert not is_from_signal_handler(raised.value)
    raised.traceback[-1].frame.raw.clear()
    assert closed == [True]
