"""A queue, and a group, of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.kinds import GROUPS, IN_GATE, QUEUES
from tests.levels import thorough


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have a test of a queue, or of a group, run over every kind but those that its marks say lack something.

    The gate has some of these kinds, --all has each.
    """
    lacking = {kind for mark in metafunc.definition.iter_markers("lacks") for kind in mark.args[0]}
    for name, kinds in (("queue", QUEUES), ("group", GROUPS)):
        if name in metafunc.fixturenames:
            able = [kind for kind in kinds if kind not in lacking]
            metafunc.parametrize(name, [kind if kind in IN_GATE else thorough(kind) for kind in able], indirect=True)


@pytest.fixture
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """An empty queue, of one kind after the other."""
    with QUEUES[request.param](tmp_path) as made:
        yield made


@pytest.fixture
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A group, of one kind after the other."""
    with GROUPS[request.param](tmp_path) as made:
        yield made
