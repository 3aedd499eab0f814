"""Fixtures of the tests of workers."""

from __future__ import annotations

import pytest

from fsqueue.worker.loop import Loop


@pytest.fixture
def told() -> list[str]:
    """The sentences that a worker has said."""
    return []


@pytest.fixture
def renews_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers renew long leases often. A short lease may run out when the machine is slow, and the test with it."""
    monkeypatch.setattr(Loop, "_renewal_s", lambda loop: 0.2)
