"""What groups cost an NFS server: docs/benchmarks.md, "Calls to an NFS server", says how to repeat it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lab.conftest import NFS
from tests.lab.guests import Guest

pytestmark = pytest.mark.slow

CALLS_MAX = {
    "status": 59,
    "status again": 43,
    "is_drained": 45,
    "is_drained again": 29,
    "idle": 1,
    "one insert": 90,  # 65 to 77: how often ten lessees meet at one log depends on what else the machine does
}
"""Calls to an NFS 4.2 server: for each queue, for each second of a lessee that waits, for each of ten workers."""


@pytest.mark.thorough
@pytest.mark.skipif(NFS == "3", reason="the lock calls of NFS 3 are not counted by the mount")
def test_a_group_costs_few_calls_to_the_server(
    nfs: Guest, group_calls: Callable[[], dict[str, dict[str, float]]]
) -> None:
    found = group_calls()
    for what, each in found.items():
        print(f"{what}: {each['all']:.2f} calls: {each}")
    for what, most in CALLS_MAX.items():
        assert found[what]["all"] <= most, found[what]
