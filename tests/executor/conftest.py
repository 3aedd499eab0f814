"""What holds for all tests of executors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fsqueue.executor import pending_calls
from tests.waiting import until


@pytest.fixture(autouse=True)
def threads_end() -> Iterator[None]:
    """Wait until the thread of each executor has ended: it would go on beside the tests that follow in this process."""
    before = [*pending_calls._live.living()]  # tests of joblib leave theirs to the garbage collector
    yield
    made = [calls for calls in pending_calls._live.living() if calls not in before]
    threads = [calls._thread for calls in made if calls._thread is not None]
    until(lambda: not any(thread.is_alive() for thread in threads), "the threads of executors to end")
