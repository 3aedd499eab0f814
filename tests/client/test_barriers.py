"""A barrier passes at a gateway: who leases there, and finds nothing, lets it."""

from __future__ import annotations

from pathlib import Path

import pytest

import fsqueue
from fsqueue import Group, RemoteGroup
from tests.gateways import gateways
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.once


def test_who_leases_at_a_gateway_lets_it_pass(tmp_path: Path) -> None:
    group = Group.create(tmp_path / "g")
    group["fetch"].insert(1)
    barrier = group.barrier("fetch", then=("report", 2))
    with gateways(tmp_path) as serve:
        served = fsqueue.connect(serve(group.path))
        assert isinstance(served, RemoteGroup)
        [task] = served["fetch"].lease()
        assert served["report"].lease() == []
        assert barrier.state == "waiting"
        task.complete()
        [task] = served["report"].lease(wait_s=PATIENCE_S)
        assert (task.payload, barrier.state) == (2, "fired")
