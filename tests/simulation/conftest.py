"""No world outlives the module that tells of it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.simulation import wiring


@pytest.fixture(scope="module", autouse=True)
def worlds_end(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing is left of any world. A later test of this process would meet its files: the package asks all queues that
    a process has open to let go of theirs, and a simulated process that is dead raises `Crash`.

    pytest keeps the world of a test that has failed.
    """
    yield
    gc.collect()
    assert request.session.testsfailed or not list(wiring.alive)
