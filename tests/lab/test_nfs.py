"""Two NFS clients with caches of their own: killed workers, a server that restarts, a client that is cut off."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests import tally
from tests.lab.conftest import NFS, SEED
from tests.lab.guests import Guest
from tests.lab.nfs import COMMANDS, POINTS, TASKS
from tests.levels import how_many

pytestmark = pytest.mark.slow
SCENARIOS = "tests.lab.nfs"
KIND = f"NFS {NFS}"


GATE_POINTS = ("completing, appended and not synced",)

CALLS_MAX = {"insert": 0.05, "single": 12, "loop": 6, "hundreds": 0.3}
"""Calls to an NFS 4.2 server for a task inserted in bulk; leased and completed singly, in the loop, by hundreds."""


@pytest.mark.thorough
@pytest.mark.skipif(NFS == "3", reason="the lock calls of NFS 3 are not counted by the mount")
def test_a_task_costs_few_calls_to_the_server(nfs: Guest, calls: Callable[[], dict[str, dict[str, float]]]) -> None:
    found = calls()
    for what, most in CALLS_MAX.items():
        print(f"{what}: {found[what]['all']:.3f} calls a task: {found[what]}")
        assert found[what]["all"] <= most, found[what]


@pytest.mark.thorough
@pytest.mark.parametrize("batch_tasks_max", [1024, 1])
def test_two_clients_drain_a_queue_while_workers_are_killed(nfs: Guest, batch_tasks_max: int) -> None:
    found = nfs.call(SCENARIOS, "play", seed=SEED, batch_tasks_max=batch_tasks_max, kills=24)
    tally.note(KIND, found)
    assert found["killed"] >= 2  # of those who were still at work
    assert found["completed"] + found["dead"] >= 120


@pytest.mark.parametrize("batch_tasks_max", [1024, pytest.param(1, marks=pytest.mark.thorough)])
def test_the_server_restarts_while_two_clients_drain_a_queue(nfs: Guest, batch_tasks_max: int) -> None:
    kills = how_many(12, 24)
    found = nfs.call(SCENARIOS, "play", seed=SEED + 1, batch_tasks_max=batch_tasks_max, kills=kills, restart=True)
    tally.note(KIND, found | {"server restarts": 1})
    assert found["completed"] + found["dead"] >= 120


@pytest.mark.thorough
def test_fsqueue_run_on_two_clients_one_of_them_killed(nfs: Guest) -> None:
    found = nfs.call(SCENARIOS, "drain_with_commands", seed=SEED)
    assert found["executed"] >= 60
    assert found["hosts"] == 2


@pytest.mark.thorough
@pytest.mark.parametrize("client", [1, 2])
def test_a_process_that_waits_keeps_no_log_of_a_finished_batch(nfs: Guest, client: int) -> None:
    """It would stay in the queue as `.nfs…`, for as long as the process waits."""
    found = nfs.call(SCENARIOS, "finished_beside_one_that_waits", client=client)
    tally.note(KIND, {"batches finished beside a process that waits": found["others"]})
    assert found["first"] == found["others"] == 20
    assert found["open"] > 4, "what is asked for must be possible"


@pytest.mark.thorough
def test_a_worker_that_stands_still_does_not_blind_its_host(nfs: Guest) -> None:
    """Of a file that a process has open for writing, an NFS client serves zeros where others have appended."""
    found = nfs.call(SCENARIOS, "seen_beside_one_who_stands_still")
    assert (found["before"]["leased"], found["before"]["waiting"]) == (3, 7)
    assert found["after"] == found["truth"]
    assert [found["after"][state] for state in ("waiting", "leased", "completed", "dead")] == [2, 3, 4, 1]
    assert found["moves"] == ["insert", "lease", "complete"]


@pytest.mark.thorough
def test_what_was_in_a_directory_that_another_client_removed_is_missing(nfs: Guest) -> None:
    """A client may know the removed directory for half a minute more, and then its server says "stale"."""
    found = nfs.call(SCENARIOS, "asked_of_a_directory_that_is_gone")
    assert found == {
        "rename": ["False"],
        "link": ["ENOENT"],
        "unlink": ["False"],
        "names": ["[]"],
        "create": ["ENOENT"],
        "look": ["ENOENT"],
        "make": ["ENOENT"],
        "remove": ["False"],
        "sync": ["ENOENT"],
    }


@pytest.mark.thorough
def test_a_copy_is_seen_as_one_by_the_server_and_by_each_client_and_a_queue_that_was_moved_is_none(nfs: Guest) -> None:
    """The clients do not know generations. A number that the server's disk gives again is not noticed by them."""
    found = nfs.call(SCENARIOS, "copies_seen")
    for name, is_known in (("by-client", False), ("by-server", True)):
        assert found[name] == [is_known, [False] * 3]
        assert found[f"{name} moved"] == [False] * 3
        assert found[f"{name} copied"] == [True] * 3
        assert found[f"{name} accepted"] == [False] * 3
        got_its_number = found[f"{name} got its number again"]
        assert found[f"{name} restored, seen by the server"] == (is_known or not got_its_number)


@pytest.mark.thorough
def test_a_killed_worker_s_task_is_had_by_the_other_client_when_its_lease_ends(nfs: Guest) -> None:
    found = nfs.call(SCENARIOS, "lease_of_a_killed_worker")
    assert not found["too_early"]
    assert found["attempt"] == 2
    assert found["completed"] == 1


@pytest.mark.thorough
def test_who_outlives_a_lease_can_do_nothing_once_the_other_client_has_it(nfs: Guest) -> None:
    found = nfs.call(SCENARIOS, "lease_taken_over")
    assert found["same"]
    assert len(found["refused"]) == 5
    assert (found["completed"], found["dead"], found["inserted"]) == (1, 0, 1)


def test_a_client_sees_at_once_what_it_looked_for_in_vain_before(nfs: Guest) -> None:
    found = nfs.call(SCENARIOS, "first_seen_late")
    assert found == {"before": [0, 0, 0], "mine": 0, "dead": 1, "status": 1}


@pytest.mark.thorough
def test_a_client_sees_at_once_a_group_that_it_looked_for_in_vain_before(nfs: Guest) -> None:
    found = nfs.call(SCENARIOS, "group_seen_late")
    assert found == {"before": "GroupNotFound", "drained": False, "got": ["payload"], "then": ["next"]}


@pytest.mark.thorough
def test_an_idle_worker_hears_of_what_the_other_client_inserts(nfs: Guest) -> None:
    assert nfs.call(SCENARIOS, "one_waits_for_the_other") == {"got": ["ring"]}


@pytest.mark.thorough
def test_what_is_inserted_after_the_other_client_s_purge_is_there(nfs: Guest) -> None:
    found = nfs.call(SCENARIOS, "purged_and_deleted_elsewhere")
    assert found["after"] >= 20
    assert found["missing"] == []
    assert found["lease_lost"]
    assert found["gone"]


def test_commands_say_that_the_server_does_not_answer_and_ctrl_c_ends_them(nfs: Guest) -> None:
    found = nfs.call(SCENARIOS, "silent")
    tally.note(KIND, {"client cut off": 1, "rounds": 1})
    for name in COMMANDS:
        one = found[name]
        assert "the file server (or a disk) does not answer, for 5 s now" in one["said"].splitlines()[0], name
        assert one["code"] == 130, name
        # A call may be answered, and the next one not. A thread writes the lines on that, so one may come last.
        end = "fsqueue: interrupted while the file server did not answer."
        silence = [line for line in one["rest"].splitlines() if not line.startswith(end)]
        assert len(one["rest"].splitlines()) == len(silence) + 1, f"{name}: {one['rest']}"
        assert all("the file server" in line and "answer" in line for line in silence), f"{name}: {one['rest']}"
    patient = found["patient"]
    assert "does not answer" in patient["said"]
    assert patient["rest"] in ("", "fsqueue: the file server answers again\n"), "unless it ended at once then"
    assert patient["code"] == 0
    assert re.search(r"waiting +5\b", patient["stdout"])
    assert (found["left"]["waiting"], found["left"]["inserted"]) == (5, 5)


@pytest.fixture(scope="module")
def after_the_cut(cut_off: Callable[[], dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """What became of each point at which a client was cut off."""
    found = cut_off()
    tally.note(KIND, {"client cut off": 1, "stopped": len(found), "rounds": len(found)})
    return found


@pytest.mark.skipif(NFS == "3", reason="a lock of a client cut off stays for good with NFS 3")
@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=[] if point in GATE_POINTS else pytest.mark.thorough) for point in POINTS]
)
def test_a_client_is_cut_off_and_comes_back(after_the_cut: dict[str, dict[str, Any]], point: str) -> None:
    found = after_the_cut[point]
    assert "wrong" not in found, found
    assert found["completed"] + found["dead"] >= TASKS
    assert found["told"] in ("done", "LeaseLost", "StorageError" if point.startswith("inserting") else "LeaseExpired")
    if point == "holding a lease":
        assert found["told"] == "LeaseLost"
