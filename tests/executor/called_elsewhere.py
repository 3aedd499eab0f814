"""A function that executors of the tests call, in another module than those of `called`."""

from __future__ import annotations

from typing import Any

import fsqueue


@fsqueue.task
def other(value: Any) -> Any:
    return value
