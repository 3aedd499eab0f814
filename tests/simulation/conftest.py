"""No world outlives the module that tells of it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.simulation import wiring
from tests.waiting import until


@pytest.fixture(scope="module", autouse=True)
def worlds_end(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing is left of any world. A later test of this process would meet its files: the package asks all queues that
    a process has open to let go of theirs, and a simulated process that is dead raises `Crash`.

    pytest keeps the world of a test that has failed.
    """
    yield
    if not request.session.testsfailed:
        until(_no_world_is_left, "each world of this module has ended")


def _no_world_is_left() -> bool:
    """Return whether all worlds have ended: a thread that ends, and a finalizer, may keep one for moments."""
    gc.collect()
    return not list(wiring.alive)
