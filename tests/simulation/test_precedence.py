"""Whether there is an order: of histories that are written by hand."""

from __future__ import annotations

import pytest

from tests.simulation.precedence import Event, circle

pytestmark = pytest.mark.once


def events(text: str) -> list[Event]:
    """`x1u`: the task x, at the offset 1, by u."""
    return [Event(one[0], int(one[1]), one[2]) for one in text.split()]


@pytest.mark.parametrize(
    ("changes", "reads", "spans"),
    [
        ("x1u x2v y1u y2v", "", {}),
        ("x1u y1v", "y1u", {}),  # u relied on what v had made
        ("x1u y1v", "y0u x1v", {}),  # v on what u made, u on what was there before v
        ("x1u x2v", "", {"u": (0, 9), "v": (3, 5)}),
        ("x1u x2u x3v", "x1u", {}),  # what it relies on it changes itself
    ],
)
def test_there_is_an_order(changes: str, reads: str, spans: dict[str, tuple[int, int]]) -> None:
    assert circle(events(changes), events(reads), spans) == []


@pytest.mark.parametrize(
    ("changes", "reads", "spans"),
    [
        ("x1u x2v y1v y2u", "", {}),  # two updates of two tasks, in opposite order
        ("x1u y1v", "y0u x0v", {}),  # each relied on what the other has changed
        ("x1u x2v", "", {"u": (5, 9), "v": (1, 4)}),  # v had ended before u began
        ("x1v", "x0u", {"u": (5, 9), "v": (1, 4)}),  # u relied on what v, which had ended, has changed
        ("x1u x2l y1l y2w z1w z2u", "", {}),  # through a record of a log that changes two tasks
    ],
)
def test_there_is_no_order(changes: str, reads: str, spans: dict[str, tuple[int, int]]) -> None:
    found = circle(events(changes), events(reads), spans)
    assert found
    assert found[0] == found[-1]
