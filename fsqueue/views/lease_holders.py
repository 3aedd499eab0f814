"""List the workers that hold tasks of a queue, and tell which are alive (docs/design.md, section 4.8).

What is known comes from the logs of the batches at work, and whether a worker lives from this host's process table and
from Slurm. Both can prove a death; where neither can, a worker counts as unknown, and its leases run out.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import orjson

from fsqueue.cluster import identity
from fsqueue.cluster.identity import job_of, node_of
from fsqueue.errors import LockTimeout
from fsqueue.forks import Late
from fsqueue.format import names
from fsqueue.format.replay import LEASED, ReplayState
from fsqueue.format.task_states import Lease
from fsqueue.format.wording import counted
from fsqueue.protocol import revoking
from fsqueue.storage import listing
from fsqueue.storage.store import Store

if TYPE_CHECKING:
    from fsqueue.cluster import slurm
else:
    slurm = Late("fsqueue.cluster.slurm")

ALIVE, DEAD, UNKNOWN = "alive", "dead", "unknown"


@dataclass(slots=True)
class LeaseHolder:
    """A worker that holds tasks. Times are Unix seconds on the file server's clock.

    `worker`: what it said of itself (docs/format.md, "Workers"). `since`: when the oldest of its leases was made;
    `heartbeat`: when it last leased or renewed one; `lease_until`: when the first of them runs out. `expired`: how many
    have run out already, and no other worker took them over.
    `life`: "alive", "dead" (proven) or "unknown"; `evidence`: why.
    """

    worker: dict[str, Any]
    since: float
    heartbeat: float
    lease_until: float
    tasks: list[str] = field(default_factory=list)
    """The ids of what it holds in time."""
    expired: int = 0
    life: str = UNKNOWN
    evidence: str = ""

    @property
    def key(self) -> bytes:
        """Return what tells it from other workers."""
        return _key(self.worker)

    @property
    def node(self) -> str:
        """Return the node that it is on."""
        return node_of(self.worker)

    @property
    def job(self) -> str | None:
        """Return its job as its scheduler writes it, if it is in one."""
        return job_of(self.worker)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, node and job among them."""
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        return own | {"node": self.node, "job": self.job}


def workers(store: Store, asks_slurm: bool = True) -> list[LeaseHolder]:
    """Return every worker that holds tasks, the oldest lease first.

    Read the logs of the batches at work, and ask Slurm once, unless told otherwise.
    """
    store.refresh(now=True)
    found: dict[bytes, LeaseHolder] = {}
    for batch in listing.with_logs(store):
        _add(store, batch, found)
    known = sorted(found.values(), key=lambda worker: worker.since)
    _judge(known, asks_slurm)
    return known


def dead(store: Store, asks_slurm: bool = True) -> list[LeaseHolder]:
    """Return the workers that hold tasks in time and are proven dead. OSError, QueueNotFound."""
    return [worker for worker in workers(store, asks_slurm) if worker.life == DEAD and worker.tasks]


def held_by_dead(store: Store, asks_slurm: bool = True) -> str | None:
    """Return what to type if workers hold tasks that are proven dead; None if none is. OSError, QueueNotFound.

    Nothing is released: a process that leased tasks may have handed their tokens on before it ended, and a command may
    outlive its worker. Only a person knows that their work is over. Where the fork server of a killed worker knows it,
    that ends the leases (docs/decisions/0042-leases-of-a-killed-worker.md).
    """
    return what_to_type(store, dead(store, asks_slurm))


def what_to_type(store: Store, dead: list[LeaseHolder]) -> str | None:
    """Return the command that ends the leases of dead workers, in a sentence; None if there are none."""
    if not dead:
        return None
    tasks = counted(sum(len(worker.tasks) for worker in dead), "task")
    return (
        f"{tasks} of {store.path} leased to {counted(len(dead), 'worker')} proven dead. To have them done before the "
        f"leases run out: fsqueue workers {shlex.quote(store.path)} --release-dead"
    )


def release_dead(store: Store) -> tuple[list[LeaseHolder], int]:
    """End the leases of workers that are proven dead, as if they ran out now: whose had not yet, and how many.

    So the tasks are available at once, and attempts are charged as for any lease that runs out. LockTimeout names
    batches that stayed busy, after the rest is done.
    """
    found = dead(store)
    wanted = {worker.key for worker in found}

    def chosen(replay_state: ReplayState, index: int) -> bool:
        holder = replay_state.holder[index]
        return holder is not None and _key(holder.worker) in wanted

    batches = sorted({names.parse_task_id(task)[0] for worker in found for task in worker.tasks})
    ended, busy = revoking.expire_in(store, batches, chosen)
    if busy:
        raise LockTimeout(
            f"Leases ended: {ended}. But {counted(len(busy), 'batch', 'batches')} stayed locked ({busy[0]}, ...): "
            "the processes that hold the locks are stopped or cut off. Repeat the command later."
        )
    return found, ended


def _key(worker: dict[str, Any] | None) -> bytes:
    return orjson.dumps(worker or {}, option=orjson.OPT_SORT_KEYS)


def _add(store: Store, batch: names.Batch, found: dict[bytes, LeaseHolder]) -> None:
    """Add the workers that hold tasks of a batch."""
    replay_state = listing.read_present_state(store, batch)
    held = list(_held(replay_state)) if replay_state is not None else []
    if replay_state is None or not held:
        return
    now = store.clock.now_ms()
    beats = listing.times_of_records(store, batch, {replay_state.version[index] for index, _ in held})
    for index, holder in held:
        until = replay_state.since[index]
        begun, beat = holder.at, max(holder.at, beats.get(replay_state.version[index], 0))
        worker = found.setdefault(_key(holder.worker), LeaseHolder(holder.worker or {}, begun / 1000, 0, until / 1000))
        worker.since = min(worker.since, begun / 1000)
        worker.heartbeat = max(worker.heartbeat, beat / 1000)
        worker.lease_until = min(worker.lease_until, until / 1000)
        if until > now:
            worker.tasks.append(names.task_id(batch, index))
        else:
            worker.expired += 1


def _held(replay_state: ReplayState) -> Iterator[tuple[int, Lease]]:
    for index in range(replay_state.count if replay_state.remaining else 0):
        holder = replay_state.holder[index]
        if holder is not None and replay_state.state[index] == LEASED:
            yield index, holder


# -- life ------------------------------------------------------------------------------------------------


def _judge(found: list[LeaseHolder], asks_slurm: bool) -> None:
    """Tell the living from the dead, as far as that can be told: first by this host's processes, then by Slurm."""
    undecided = []
    for worker in found:
        lives = identity.lives_here(worker.worker)
        if lives is None:
            undecided.append(worker)
        else:
            worker.life = ALIVE if lives else DEAD
            worker.evidence = f"process {worker.worker['pid']} of this host {'runs' if lives else 'is gone'}"
    # A shell may have outlived its allocation: only what a node's daemon has started ends with its job.
    in_jobs = [worker for worker in undecided if asks_slurm and worker.worker.get("slurm_node") is not None]
    for worker, lives in zip(in_jobs, slurm.alive([worker.worker for worker in in_jobs]), strict=True):
        if lives is not None:
            worker.life = ALIVE if lives else DEAD
            worker.evidence = f"Slurm job {worker.job} {'runs' if lives else 'does not run (any more)'}"
