"""Fixtures of the tests of workers."""

from __future__ import annotations

import pytest


@pytest.fixture
def told() -> list[str]:
    """The sentences that a worker has said."""
    return []
