"""Single inserts from two NFS clients: killed processes, a server that restarts, and calls to the server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import tally
from tests.lab.conftest import NFS, SEED
from tests.lab.guests import Guest
from tests.lab.single_inserts import PURGES, TASKS

pytestmark = pytest.mark.slow
SCENARIOS = "tests.lab.single_inserts"
CALLS_MAX = {"insert one": 5, "lease 1 + complete": 12}
"""Calls to an NFS 4.2 server for a task that is inserted alone, and for its lease and completion. Those for a
notification come on top, once in 50 ms at most.
"""
NOTIFICATION = 4
"""Calls for a notification: to open, to look at, to write and to close the doorbell."""


@pytest.mark.skipif(NFS == "3", reason="the lock calls of NFS 3 are not counted by the mount")
def test_a_task_inserted_alone_costs_few_calls_to_the_server(
    nfs: Guest, single_calls: Callable[[], dict[str, dict[str, float]]]
) -> None:
    found = single_calls()
    for what, each in found.items():
        print(f"{what}: {each['all']:.3f} calls a task: {each}")
    for what, most in CALLS_MAX.items():
        opened = found[what].get("OPEN" if NFS == "4.0" else "OPEN_NOATTR", 0.0)
        assert found[what]["all"] - opened * NOTIFICATION <= most + 0.05, found[what]


@pytest.mark.parametrize("restart", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_two_clients_insert_singly_and_work_while_processes_are_killed(nfs: Guest, restart: bool) -> None:
    found = nfs.call(SCENARIOS, "play", seed=SEED, restart=restart)
    tally.note(f"NFS {NFS}", found | ({"server restarts": 1} if restart else {}))
    assert found["killed"] >= 2
    assert found["tasks"] >= found["inserted"] >= 300


@pytest.mark.thorough
def test_an_inserter_of_another_host_goes_on_with_the_batch_of_one_that_was_killed(nfs: Guest) -> None:
    found = nfs.call(SCENARIOS, "adopt")
    assert found["batches"] == 1
    assert found["inserted"] >= 2 * TASKS


@pytest.mark.thorough
def test_what_two_clients_insert_singly_after_a_purge_is_there(nfs: Guest) -> None:
    found = nfs.call(SCENARIOS, "purge", seed=SEED)
    tally.note(f"NFS {NFS}", {"purges": PURGES, **found})
    assert found["after"] >= 80
