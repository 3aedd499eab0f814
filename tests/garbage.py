"""What the garbage collector need not look through any more."""

from __future__ import annotations

import gc
import threading

_NOT_OF_TESTS = frozenset(threading.enumerate())
"""Threads that ran before the first test: the main one, and those of pytest-xdist."""
at_rest: set[threading.Thread] = set()
"""Threads of tests that wait for the next work, and hold nothing of the last one. Each adds and removes itself."""


def collect_and_keep() -> None:
    """Collect garbage, and keep what is left for good: then no later look goes through it.

    While a thread of a test runs, nothing is kept. What that thread holds is garbage when it has ended, and would have
    its files open as long as this process runs.
    """
    # First: what ends meanwhile is not collected yet.
    no_test_runs_on = (_NOT_OF_TESTS | at_rest).issuperset(threading.enumerate())
    gc.collect()
    if no_test_runs_on:
        gc.freeze()
