"""Connect to a gateway."""

from __future__ import annotations

import os
import socket
from typing import Any

from fsqueue.arguments import worker_of
from fsqueue.client.addresses import LOOKS_LIKE, address_of
from fsqueue.client.remote_group import RemoteGroup
from fsqueue.client.remote_queue import RemoteQueue
from fsqueue.client.wire import NoGateway, NothingThere, Wire, check_token, not_a_gateway
from fsqueue.clock import duration_ms

ABOUT_BYTES_MAX = 64 << 10
"""Maximum number of bytes that are read of the first answer, which shows whether a gateway is there."""


TIMEOUT_S = (0.001, 2_000_000.0)
"""The shortest time that a request may take: a socket with none does not wait at all. And the longest for which a
socket waits, about: 23 days."""


def connect(
    url: str,
    token: str | None = None,
    *,
    worker: str | None = None,
    timeout_s: float = 90.0,
    patience_s: float = 600.0,
) -> RemoteGroup | RemoteQueue:
    """Return the group, or the queue, that a gateway serves (`fsqueue serve`).

    `url`: http://HOST:PORT, https://HOST:PORT or http+unix://SOCKET, with the socket's path percent-encoded; behind it
    /QUEUE for one queue of the group. If a proxy has the gateway below a path, that stands before: /PREFIX/ or
    /PREFIX/QUEUE. `token`: as `fsqueue serve` has shown it; otherwise that of the environment variable
    FSQUEUE_SERVE_TOKEN. `worker`: a name to appear under in histories. `timeout_s`: how long an answer may take.
    `patience_s`: how long what can be repeated without harm is repeated while the gateway is away. InvalidArgument,
    StorageError.
    """
    worker_of(worker)
    duration_ms(timeout_s, "timeout_s", TIMEOUT_S[0])
    duration_ms(patience_s, "patience_s")
    if token is not None:
        check_token("token", token)
    holder = _this_process(worker)
    wire = Wire(address_of(url), token, min(timeout_s, TIMEOUT_S[1]), patience_s)
    wire, about = _found(wire)
    name = wire.address.queue if wire.address.queue is not None else about["queue"]
    if name is None:
        return RemoteGroup(wire, holder)
    return RemoteQueue(wire, name, holder) if about["queue"] is not None else RemoteGroup(wire, holder)[name]


def _found(wire: Wire) -> tuple[Wire, Any]:
    """Return what a gateway says of itself, and the wire to it. NoGateway if there is none.

    The last segment of an address is a queue's name. If there is no gateway above it, it may belong to the prefix. It
    does so if the gateway says so of its prefix (`--root-path`).
    """
    below = wire.address.below
    try:
        about = _about(wire)
        if below is not None and below.prefix == about.get("root_path"):
            wire = wire.at(below)
        return wire, about
    except NoGateway:
        if below is None:
            raise
        try:
            wire = wire.at(below)
            return wire, _about(wire)
        except NoGateway:
            pass
        raise


def _about(wire: Wire) -> Any:
    try:
        about = wire.ask("GET", "", again=True, bytes_max=ABOUT_BYTES_MAX)
    except NothingThere:
        raise NoGateway(
            f"There is no gateway at {wire.address.url:.200}, but one that answers at another path. {LOOKS_LIKE}"
        ) from None
    if about.get("service") != "fsqueue":
        raise not_a_gateway(wire.address.host, about, "GET")
    return about


def _this_process(worker: str | None) -> dict[str, Any]:
    """Return what histories say of this process. The gateway cannot see whether it lives."""
    told: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid()}
    job = os.environ.get("SLURM_ARRAY_JOB_ID") or os.environ.get("SLURM_JOB_ID")
    told |= {} if worker is None else {"name": worker}
    if job and job.isprintable() and len(job) <= 200:
        told["slurm_job"] = job
        index = os.environ.get("SLURM_ARRAY_TASK_ID")
        told |= {"slurm_index": index} if index and index.isprintable() and len(index) <= 200 else {}
    return told
