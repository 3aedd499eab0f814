"""List workers, what they hold, and whether they are alive."""

from __future__ import annotations

from typing import Any

import click

from fsqueue.errors import from_os_error
from fsqueue.format import wording
from fsqueue.views import lease_holders as holders

from .common import brief, example, json_option, moment, queue_argument, queue_at
from .printing import or_hint, print_done, print_table, say

WIDTHS = (24, 12, 12, 6, 19, 10, 10)
HEADING = ("WORKER", "JOB", "NODE", "TASKS", "SINCE", "HEARTBEAT", "LEASE", "LIFE")


@click.command(
    epilog=example(
        """fsqueue workers Q
fsqueue workers Q --json | jq -r '.workers[] | select(.life == "dead") | .job'
fsqueue workers Q --release-dead       # after a crash: do not wait for the leases to run out
fsqueue workers Q --admit node17       # let an excluded node take tasks again"""
    )
)
@queue_argument
@click.option("--release-dead", is_flag=True, help="End the leases of those proven dead, as if they ran out now.")
@click.option("--admit", metavar="NODE", multiple=True, help="Forget the failures in a row on NODE (repeatable).")
@json_option
def workers(queue: str, release_dead: bool, admit: tuple[str, ...], as_json: bool) -> None:
    """List the workers that hold tasks of Q: what, since when, last heartbeat, and whether they live.

    A worker counts as dead only where that is proven: its process is gone from this very host (same boot), or its
    Slurm job does not run any more. Else it is 'unknown', and its leases run out by themselves. What a dead one held
    is available again at once with --release-dead. Attempts are charged as when a lease runs out: one for a task that
    was leased alone, none for tasks that were leased together. Those are then leased alone.

    If 'fsqueue run' alone is killed, its leases end without this command, when its commands have ended. They do not if
    all of its processes were killed, or if its command names a program that works elsewhere (srun, ssh, docker).

    Below the workers are the nodes on which attempts failed in a row. 'run --exclude-after N' takes no task on a node
    after N failures. Only the logs of the batches at work are read. Tasks that a script took with 'lease' have no
    process to check.
    """
    with queue_at(queue) as q:
        store = q.store
        admitted = [node for node in admit if q.admit_node(node)]
        try:
            dead, released = holders.release_dead(store) if release_dead else ([], 0)
        except OSError as error:
            raise from_os_error(error, "releasing what the dead hold") from error
        found = q.workers()
        failing = q.failing_nodes()
        now = store.clock.now_ms() / 1000
    refused = {node.node for node in failing}.intersection(admit).difference(admitted)  # a warning says why
    said: dict[str, Any] = {"workers": [worker.as_dict() for worker in found]}
    said["nodes"] = [node.as_dict() for node in failing]
    lines = []
    for node in admit:
        other = "its failures could not be forgotten" if node in refused else "no failures are counted there"
        lines.append(f"{brief(node)}: {'takes tasks again' if node in admitted else other}")
    if release_dead:
        said |= {"released": released, "dead": [worker.as_dict() for worker in dead]}
        lines.append(f"released {wording.counted(released, 'task')} of {wording.counted(len(dead), 'dead worker')}")
    if admit:
        said["admitted"] = admitted
    print_done(as_json, said, *lines)
    if not as_json:
        listed = found if lines else or_hint(found, f"no worker holds a task of {q.path}")
        print_table((_row(worker, now) for worker in listed), WIDTHS, HEADING)
        for node_found in failing:
            excluded = f", excluded from {node_found.after} on" if node_found.is_excluded else ""
            failed = wording.counted(node_found.failures, "attempt")
            when, why = moment(node_found.last), f" ({node_found.reason})" if node_found.reason else ""
            say(brief(f"node {node_found.node}: {failed} in a row failed{excluded}; {when}{why}", 200))
    if refused:  # nodes that could not be admitted
        raise click.exceptions.Exit(1)


def _row(worker: holders.LeaseHolder, now: float) -> tuple[str, ...]:
    who = worker.worker
    name = f"{who['name']}:" if "name" in who else ""
    left = worker.lease_until - now
    return (
        brief(f"{name}{who.get('host', '?')}:{who.get('pid', '?')}", 60),
        brief(worker.job or "-", 20),
        brief(worker.node, 20),
        f"{len(worker.tasks):,}" + (f"+{worker.expired:,}" if worker.expired else ""),
        moment(worker.since),
        f"{wording.duration(max(0.0, now - worker.heartbeat))} ago",
        f"{wording.duration(left)} left" if left > 0 else "ran out",
        brief(f"{worker.life} ({worker.evidence})" if worker.evidence else worker.life),
    )
