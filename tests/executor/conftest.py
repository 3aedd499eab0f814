"""What holds for all tests of executors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fsqueue.executor import pending_calls
from tests.waiting import until


@pytest.fixture(autouse=True)
def threads_end() -> Iterator[None]:
    """Wait until the thread of each executor has ended: it would go on beside the tests that follow in this process."""
    yield
    wait_for_threads()


def wait_for_threads() -> None:
    """Wait until the threads of all executors of this process have ended."""
    threads = [calls._thread for calls in pending_calls._live.living() if calls._thread is not None]
    until(lambda: not any(thread.is_alive() for thread in threads), "the threads of executors to end")
