"""Gateways for clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import fsqueue
from tests.gateways import Serve, gateways


@pytest.fixture
def group(tmp_path: Path) -> fsqueue.Group:
    """An empty group."""
    return fsqueue.Group.create(tmp_path / "group", shards=2)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """`serve(path)`: a gateway on a Unix socket, in a thread of this process; returns its address."""
    with gateways(tmp_path) as start:
        yield start
