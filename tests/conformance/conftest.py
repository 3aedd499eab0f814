"""A queue, and a group, of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.kinds import GROUPS, QUEUES


@pytest.fixture(params=QUEUES)
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """An empty queue, of one kind after the other."""
    with QUEUES[request.param](tmp_path) as made:
        yield made


@pytest.fixture(params=GROUPS)
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A group, of one kind after the other."""
    with GROUPS[request.param](tmp_path) as made:
        yield made
