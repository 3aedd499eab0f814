"""workers: who holds what, and who lives."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from fsqueue import Queue
from fsqueue.storage import nodes
from fsqueue.storage.nodes import NodeFailures
from tests.cli.conftest import Run, Spawn
from tests.prepared import ByHand
from tests.waiting import PATIENCE_S, until
from tests.worker.support import stopped

pytestmark = pytest.mark.once


def kill_with_fork_server(pid: int) -> None:
    """Kill a worker, and its fork server before it: then nothing ends its leases."""

    def servers() -> list[int]:
        return [int(server) for server in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    until(servers, "its fork server")
    stopped(pid)  # else it starts another one
    for server in servers():
        os.kill(server, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)


def test_nobody(fsqueue_cli: Run, queue: Queue) -> None:
    said = fsqueue_cli("workers", queue.path)
    assert (said.stdout, said.stderr) == ("", f"no worker holds a task of {queue.path}\n")
    assert json.loads(fsqueue_cli("workers", queue.path, "--json").output) == {
        "queue": str(queue.path),
        "workers": [],
        "nodes": [],
    }


def test_a_link_in_place_of_the_decision_files_is_told_in_a_sentence(fsqueue_cli: Run, tmp_path: Path) -> None:
    update = ByHand(tmp_path / "group")
    update.prepare()
    (update.group.path / ".updates").symlink_to(tmp_path)
    said = fsqueue_cli("workers", update.first.path, code=1).stderr
    assert "Something is in the way while reading who holds tasks" in said


def test_a_table_for_people(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many(range(3))
    q = Queue(queue.path, worker="me")
    q.lease(2, lease_s=3 * 86_400)
    head, row = fsqueue_cli("workers", queue.path).output.splitlines()
    assert head.split() == ["WORKER", "JOB", "NODE", "TASKS", "SINCE", "HEARTBEAT", "LEASE", "LIFE"]
    assert row.startswith("me:")
    assert " 2 " in row
    assert "3 d left" in row
    assert "alive (process" in row


def test_the_node_and_the_job_of_a_worker_are_those_of_slurm(
    fsqueue_cli: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.insert(1)
    with monkeypatch.context() as patch:
        for name, value in (("SLURM_ARRAY_JOB_ID", "7"), ("SLURM_ARRAY_TASK_ID", "3"), ("SLURMD_NODENAME", "n1")):
            patch.setenv(name, value)
        [task] = Queue(queue.path).lease()
    [told] = json.loads(fsqueue_cli("workers", queue.path, "--json").output)["workers"]
    assert (told["job"], told["node"], told["tasks"], told["expired"]) == ("7_3", "n1", [task.id], 0)
    assert told["lease_until"] == pytest.approx(task.lease_until)
    [_, row] = fsqueue_cli("workers", queue.path).output.splitlines()
    assert row.split()[1:4] == ["7_3", "n1", "1"]


def test_killed_runners_are_released_and_the_living_are_not(fsqueue_cli: Run, queue: Queue, spawn: Spawn) -> None:
    queue.insert_many(range(2))
    for _ in range(2):
        spawn("run", queue.path, "--", "sleep", "600")
    while queue.status().leased < 2:
        pass
    killed, living = json.loads(fsqueue_cli("workers", queue.path, "--json").output)["workers"]
    assert (killed["life"], living["life"]) == ("alive", "alive")
    kill_with_fork_server(killed["worker"]["pid"])
    report = until(
        lambda: (
            (said := json.loads(fsqueue_cli("workers", queue.path, "--release-dead", "--json").output))["released"]
            and said
        ),
        "its death to be proven",
    )
    assert [worker["worker"]["pid"] for worker in report["dead"]] == [killed["worker"]["pid"]]
    assert queue.status().leased == 1
    assert fsqueue_cli("workers", queue.path, "--release-dead").output.startswith("released 0 tasks of 0 dead workers")


def test_what_lease_took_for_a_script_is_not_released(fsqueue_cli: Run, queue: Queue, spawn: Spawn) -> None:
    queue.insert("x")
    leasing = spawn("lease", queue.path, "--tokens")
    token = leasing.communicate()[0].strip()
    [worker] = json.loads(fsqueue_cli("workers", queue.path, "--json").output)["workers"]
    assert worker["life"] == "unknown"
    assert json.loads(fsqueue_cli("workers", queue.path, "--release-dead", "--json").output)["released"] == 0
    fsqueue_cli("complete", queue.path, token)


def test_an_excluded_node_is_shown_and_admitted(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert("x")
    streak = NodeFailures(queue.store, 2)
    streak.failed("no \x1b[2Jdevice")
    streak.failed("no \x1b[2Jdevice")
    said = fsqueue_cli("workers", queue.path).output
    assert f"node {streak.node}: 2 attempts in a row failed, excluded from 2 on" in said
    assert "\x1b" not in said
    [node] = json.loads(fsqueue_cli("workers", queue.path, "--json").output)["nodes"]
    assert (node["node"], node["failures"], node["excluded"]) == (streak.node, 2, True)
    assert fsqueue_cli("workers", queue.path, "--admit", streak.node).output == f"{streak.node}: takes tasks again\n"
    assert streak.excluded() is None
    assert "no failures" in fsqueue_cli("workers", queue.path, "--admit", streak.node).output


def test_a_node_whose_failures_cannot_be_forgotten_is_an_error(
    fsqueue_cli: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.insert("x")
    NodeFailures(queue.store, 1).failed("no device")
    [node] = [found.node for found in nodes.failing(queue.store)]
    command = ("workers", queue.path, "--admit", node, "--admit", "other")
    with monkeypatch.context() as patch, Queue(queue.path).store.locked_existing(queue.store.layout.node(node), 1):
        patch.setattr(nodes, "WAIT_S", 0.01)
        told = json.loads(fsqueue_cli(*command, "--json", code=1).stdout)
        assert (told["admitted"], [found["node"] for found in told["nodes"]]) == ([], [node])
        said = fsqueue_cli(*command, code=1).stdout
        assert f"{node}: its failures could not be forgotten\nother: no failures are counted there\n" in said
    assert json.loads(fsqueue_cli(*command, "--json").stdout)["admitted"] == [node]


def test_where_only_leased_tasks_are_left_it_is_said_that_their_worker_is_dead(
    fsqueue_cli: Run, queue: Queue, spawn: Spawn
) -> None:
    queue.insert("x")
    killed = spawn("run", queue.path, "--", "sleep", "600")
    until(lambda: queue.status().leased, "the worker to lease")
    assert "proven dead" not in fsqueue_cli("status", queue.path).stdout
    idle = spawn("run", queue.path, "--log-json", "--", "true")
    kill_with_fork_server(killed.pid)
    killed.wait()
    to_type = f"fsqueue workers {queue.path} --release-dead"
    said = f"1 task of {queue.path} leased to 1 worker proven dead. To have them done before the leases run out: "
    assert f"{said}{to_type}\n" in fsqueue_cli("status", queue.path).stdout
    assert said in fsqueue_cli("wait", queue.path, "--timeout", "0.1", code=124).stderr
    assert idle.stderr is not None
    event = json.loads(idle.stderr.readline())
    assert (event["event"], event["text"]) == ("dead-workers", said + to_type)
    fsqueue_cli("workers", queue.path, "--release-dead")
    assert idle.wait(PATIENCE_S) == 0
    assert queue.status().completed == 1


def test_a_lease_that_was_ended_for_a_dead_worker_is_no_renewal(
    fsqueue_cli: Run, queue: Queue, spawn: Spawn, tmp_path: Path
) -> None:
    task_id = queue.insert("x").id
    killed = spawn("run", queue.path, "--", "sh", "-c", f"touch {tmp_path}/begun; exec sleep 600")
    until((tmp_path / "begun").exists, "the command")
    killed.kill()
    killed.wait()
    until(lambda: queue.status().waiting, "its fork server to end the lease")
    shown = fsqueue_cli("show", queue.path, task_id).stdout
    assert "  released, its worker was proven dead (lease " in shown
    assert "renew" not in shown
