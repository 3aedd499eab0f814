"""List workers, what they hold, and whether they are alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

import fsqueue
from fsqueue.errors import from_os_error
from fsqueue.format import wording
from fsqueue.views import lease_holders
from fsqueue.views.lease_holders import LeaseHolder

from .common import brief, example, json_option, match_option, moment, queues_argument
from .printing import hint, print_table, say
from .targets import Target, Targets, is_address

if TYPE_CHECKING:
    from .targets import AnyQueue

WIDTHS = (24, 12, 12, 6, 19, 10, 10)
HEADING = ("WORKER", "JOB", "NODE", "TASKS", "SINCE", "HEARTBEAT", "LEASE", "LIFE")


@click.command(
    epilog=example(
        """fsqueue workers Q
fsqueue workers /scratch/me/crawl --match '.*#fetch'        # of queues of a group
fsqueue workers Q --json | jq -r '.workers[] | select(.life == "dead") | .job'
fsqueue workers Q --release-dead       # after a crash: do not wait for the leases to run out
fsqueue workers Q --admit node17       # let an excluded node take tasks again"""
    )
)
@queues_argument
@match_option
@click.option("--release-dead", is_flag=True, help="End the leases of those proven dead, as if they ran out now.")
@click.option("--admit", metavar="NODE", multiple=True, help="Forget the failures in a row on NODE (repeatable).")
@json_option
def workers(
    queues: tuple[str, ...], match: str | None, release_dead: bool, admit: tuple[str, ...], as_json: bool
) -> None:
    """List the workers that hold tasks of Q: what, since when, last heartbeat, and whether they live.

    Q may be a group: then those of all its queues. Through a gateway, Slurm is not asked.

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
    if release_dead and (remote := [one for one in queues if is_address(one)]):
        raise click.UsageError(
            f"--release-dead asks this host and Slurm which workers are dead, and {remote[0]} is an address. Nothing "
            "was done. Type the command on a host that has mounted the filesystem."
        )
    targets = Targets(queues, match, as_json)
    rows: list[tuple[str, ...]] = []
    nodes: list[str] = []
    for target in targets:
        with target as q:
            found = _look(target, q, release_dead, admit, targets)
            now = q.store.clock.now_ms() / 1000
            of = (target.name,) * targets.is_several
            rows += [(*of, *_row(worker, now)) for worker in found.holders]
            nodes += [" ".join((*(f"{one}:" for one in of), _line(node))) for node in found.failing]
    if not as_json:
        if not (rows or nodes or release_dead or admit) and targets.named:
            hint(f"no worker holds a task of {targets.described}")
        more = ((20, *WIDTHS), ("QUEUE", *HEADING)) if targets.is_several else (WIDTHS, HEADING)
        print_table(rows, *more)
        if nodes:
            say(*nodes)
    targets.end()


class _Found(NamedTuple):
    """Who works at the tasks of a queue, and where attempts fail."""

    holders: list[LeaseHolder]
    failing: list[fsqueue.FailingNode]


def _look(target: Target, q: AnyQueue, release_dead: bool, admit: tuple[str, ...], targets: Targets) -> _Found:
    """Do what is to be done to a queue, print that, or all as JSON, and return what is seen then."""
    admitted = [node for node in admit if q.admit_node(node)]
    dead: list[LeaseHolder] = []
    released = 0
    if release_dead:
        assert isinstance(q, fsqueue.Queue)
        try:
            dead, released = lease_holders.release_dead(q.store)
        except OSError as error:
            raise from_os_error(error, "releasing what the dead hold") from error
    found = _Found(q.workers(), q.failing_nodes())
    refused = {node.node for node in found.failing}.intersection(admit).difference(admitted)  # a warning says why
    said: dict[str, Any] = {"workers": [worker.as_dict() for worker in found.holders]}
    said["nodes"] = [node.as_dict() for node in found.failing]
    lines = []
    for node in admit:
        other = "its failures could not be forgotten" if node in refused else "no failures are counted there"
        lines.append(f"{brief(node)}: {'takes tasks again' if node in admitted else other}")
    if release_dead:
        said |= {"released": released, "dead": [worker.as_dict() for worker in dead]}
        lines.append(f"released {wording.counted(released, 'task')} of {wording.counted(len(dead), 'dead worker')}")
    if admit:
        said["admitted"] = admitted
    target.print_done(said, *lines)
    if refused:  # nodes that could not be admitted
        targets.leave_with(1)
    return found


def _line(node: fsqueue.FailingNode) -> str:
    excluded = f", excluded from {node.after} on" if node.is_excluded else ""
    failed = wording.counted(node.failures, "attempt")
    when, why = moment(node.last), f" ({node.reason})" if node.reason else ""
    return brief(f"node {node.node}: {failed} in a row failed{excluded}; {when}{why}", 200)


def _row(worker: LeaseHolder, now: float) -> tuple[str, ...]:
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
