"""Words of messages that several parts share."""

from __future__ import annotations

import pytest

from fsqueue.format.wording import duration


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (0.00042, "0.42 ms"), (0.9994, "999 ms"), (0.9996, "1 s"), (9.96, "9.96 s"), (59.4, "59.4 s"),
     (59.97, "1 min"), (300, "5 min"), (307, "5 min 07 s"), (599.6, "10 min"), (754, "13 min"), (3599.7, "1 h"),
     (7500, "2 h 05 min"), (86_399, "1 d"), (100_000, "1 d 4 h"), (1e6, "11 d 14 h"), (1e9, "11,574 d 2 h")],
)  # fmt: skip
def test_durations_for_people(seconds: float, said: str) -> None:
    assert duration(seconds) == said
