"""Why a queue stands still, and what to do about it: sentences for somebody who has not read the documentation."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import fsqueue
from fsqueue.format.wording import counted, duration
from fsqueue.service.page_contents import QueueLook
from fsqueue.service.taskstore import HOLDER
from fsqueue.webpages.charts import moment

Kind = Literal["stands still", "problem", "note"]
KINDS: tuple[Kind, ...] = ("stands still", "problem", "note")
SILENT_SHARE = 0.5
"""A worker that has not renewed its lease for this part of the lease is called silent: workers renew far more often."""


@dataclass(frozen=True, slots=True)
class Action:
    """A button: what it is called, what it does (`service.actions`), and to what."""

    label: str
    verb: str
    fields: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence on one queue. `command`: what to type, if the page cannot do it."""

    kind: Kind
    queue: str
    says: str
    action: Action | None = None
    command: str = ""


def verdict(look: QueueLook) -> str:
    """Return in a few words how a queue is."""
    status = look.status
    if look.error:
        return "cannot be read"
    if not status.inserted:
        return "empty"
    if look.paused is not None and status.remaining:
        return "paused"
    if status.drained:
        return "done, with dead letters" if status.dead else "done"
    if any(notice.kind == "stands still" for notice in notices(look, "")):
        return "stands still"
    if status.delayed == status.remaining:
        return "waits for its time"
    return "at work"


def notices(look: QueueLook, path: str) -> list[Notice]:
    """Return what somebody should know of a queue, the gravest first. `path`: how the queue is typed in a command."""
    return sorted(_notices(look, path), key=lambda notice: KINDS.index(notice.kind))


def _notices(look: QueueLook, path: str) -> Iterator[Notice]:
    name, status = look.name, look.status
    if look.error:
        yield Notice("problem", name, f"It cannot be read: {look.error}")
        return
    if look.paused is not None:
        kind: Kind = "stands still" if status.remaining else "note"
        verb = "waits" if status.remaining == 1 else "wait"
        waiting = f" {counted(status.remaining, 'task')} {verb}." if status.remaining else ""
        yield Notice(kind, name, f"It is paused {_paused(look.paused)}.{waiting}", Action("Resume", "resume"))
    elif look.activity is not None and look.activity.is_idle(status) and look.has_clients:
        yield Notice(
            "note",
            name,
            f"{counted(status.waiting, 'task')} could be claimed. Clients of taskstore use this gateway, and are seen "
            "only while they have a claim. No worker is there.",
        )
    elif look.activity is not None and look.activity.is_idle(status):
        yield Notice(
            "stands still",
            name,
            f"{counted(status.waiting, 'task')} could be worked on, and no worker is there. Start one:",
            command=f"fsqueue run {shlex.quote(path)} -- COMMAND",
        )
    yield from _of_workers(look)
    yield from _of_nodes(look)
    yield from _of_failures(look)


def _is_worked(look: QueueLook) -> bool:
    return look.activity is not None and look.activity.is_worked


def _of_workers(look: QueueLook) -> Iterator[Notice]:
    now = look.activity.at if look.activity is not None else 0.0
    silent: dict[str, list[fsqueue.LeaseHolder]] = {}
    for worker in look.workers:
        if worker.tasks and is_silent(worker, now):
            silent.setdefault(_host(worker.worker), []).append(worker)
    held = sum(len(worker.tasks) for worker in look.workers)
    lost = sum(len(worker.tasks) for workers in silent.values() for worker in workers)
    # Work that waits goes to other workers. If only silent ones are left, all that is left waits for them.
    kind: Kind = "stands still" if held == lost and not look.status.waiting else "problem"
    for host, workers in silent.items():
        yield _of_silent(kind, look.name, host, workers, now)
    expired = sum(worker.expired for worker in look.workers)
    if expired:
        yield Notice(
            "note",
            look.name,
            f"The leases of {counted(expired, 'task')} have run out: a worker has died, or was cut off. The next "
            "worker that looks takes them.",
        )


def _of_silent(kind: Kind, queue: str, host: str, workers: list[fsqueue.LeaseHolder], now: float) -> Notice:
    """Return a notice on the workers of one host that are dead, or have not been heard of."""
    tasks = counted(sum(len(worker.tasks) for worker in workers), "task")
    subject = f"The worker {who(workers[0].worker)}" if len(workers) == 1 else f"{len(workers):,} workers on {host}"
    is_one = len(workers) == 1
    if all(worker.life == "dead" for worker in workers):
        fate = f"{'is' if is_one else 'are'} dead ({workers[0].evidence}{'' if is_one else ', …'})"
    else:
        heard = max(worker.heartbeat for worker in workers)
        fate = (
            f"{'has' if is_one else 'have'} given no sign of life for {duration(max(0.0, now - heard))}. Perhaps the "
        )
        fate += "node is down"
    left = max(worker.lease_until for worker in workers) - now
    return Notice(
        kind,
        queue,
        f"{subject} {fate}. {'It holds' if is_one else 'They hold'} {tasks}. Other workers get them when the leases "
        f"run out, in {duration(max(0.0, left))}, or at once if you release them.",
        Action(f"Release what {cut(host, 60)} holds", "release", {"host": host}),
    )


def _of_nodes(look: QueueLook) -> Iterator[Notice]:
    """Yield a notice on each node on which attempts fail one after the other."""
    is_still = not look.status.leased and not _is_worked(look)
    for found in look.failing[:NODES_MAX]:
        node, why = cut(found.node, 60), f" The last error: {reason(found.reason)}." if found.reason else ""
        if not found.is_excluded:
            yield Notice("note", look.name, f"{_latest(found)} on the node {node}.{why}")
            continue
        yield Notice(
            "stands still" if is_still else "problem",
            look.name,
            f"The node {node} takes no more tasks. {_latest(found)} there.{why} "
            "Mend the node, or the program. Workers on other nodes go on.",
            Action(f"Let {node} take tasks again", "admit-node", {"node": found.node}),
        )
    if len(look.failing) > NODES_MAX:
        yield Notice(
            "problem", look.name, f"The latest attempts failed on {len(look.failing) - NODES_MAX:,} more nodes."
        )


def _latest(found: fsqueue.FailingNode) -> str:
    if found.failures == 1:
        return "The latest attempt failed"
    return f"The latest {counted(found.failures, 'attempt')} failed"


def is_silent(worker: fsqueue.LeaseHolder, now: float) -> bool:
    """Return whether a worker is dead, or may be: it lets its lease run down.

    A client of taskstore is not: it gives no sign of life, and its lease names the gateway's host, not its own.
    """
    if str(worker.worker.get("name", "")).startswith(HOLDER):
        return False
    lease_s = worker.lease_until - worker.heartbeat
    return worker.life == "dead" or (worker.life != "alive" and now - worker.heartbeat > SILENT_SHARE * lease_s)


def _of_failures(look: QueueLook) -> Iterator[Notice]:
    status, settings = look.status, look.settings
    dead = max(look.failures, key=lambda failure: failure.dead, default=None)
    if status.dead:
        limit = settings.max_attempts if settings is not None else None
        tried = f" A task is given up after {counted(limit, 'failed attempt')}." if limit is not None else ""
        often = f" Most often: {reason(dead.reason)}." if dead is not None and dead.dead else ""
        verb = "was" if status.dead == 1 else "were"
        yield Notice(
            "stands still" if status.drained else "problem",
            look.name,
            f"{counted(status.dead, 'task')} {verb} given up, and nothing comes of them until somebody retries "
            f"them.{tried}{often}",
            Action("Retry all that were given up", "retry-dead"),
        )
    again = max(look.failures, key=lambda failure: failure.retrying, default=None)
    if again is not None and again.retrying:
        retrying = sum(failure.retrying for failure in look.failures)
        is_all = status.delayed == status.remaining
        yield Notice(
            "problem" if is_all else "note",
            look.name,
            f"{counted(retrying, 'task')} {'comes' if retrying == 1 else 'come'} back after a failed attempt and "
            f"a pause. Most often: {reason(again.reason)}.",
        )
    elif status.remaining and status.delayed == status.remaining:
        yield Notice("note", look.name, f"All {counted(status.delayed, 'task')} that are left wait for their time.")


REASON_CHARS_MAX = 160
NODES_MAX = 20
"""Maximum number of failing nodes of a queue that are named."""


def reason(text: str) -> str:
    """Return a reason in quotation marks, cut."""
    return f"“{cut(text, REASON_CHARS_MAX)}”"


def cut(text: str, chars_max: int) -> str:
    """Return a text, cut if it is too long."""
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def who(worker: dict[str, Any] | None) -> str:
    """Return a worker in a few words."""
    if not worker:
        return "(unknown)"
    name = f"{cut(str(worker['name']), 60)} on " if "name" in worker else ""
    process = f" (process {worker['pid']})" if "pid" in worker else ""
    return f"{name}{cut(_host(worker), 60)}{process}"


def _host(worker: dict[str, Any]) -> str:
    return str(worker.get("host", "?"))


def _paused(pause: fsqueue.Pause) -> str:
    by = f" by {pause.by.get('user', '?')} on {pause.by.get('host', '?')}" if pause.by else ""
    return f"since {moment(pause.since)}{by}" + (f": {reason(pause.reason)}" if pause.reason else "")
