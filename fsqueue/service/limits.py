"""The bounds of a gateway: what one client, and all together, can take of it."""

from __future__ import annotations

from dataclasses import dataclass

from fsqueue.verbs.fields import BODY_BYTES_MAX


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Bounds of a gateway. The defaults are for one process on a login node."""

    body_bytes_max: int = BODY_BYTES_MAX
    """The largest body that is held in memory. JSON Lines may be longer: they are read line by line."""
    line_bytes_max: int = BODY_BYTES_MAX
    """The longest line of JSON Lines."""
    head_s: float = 20.0
    """How long a client may take for the head of a request."""
    body_s: float = 30.0
    """How long a client may pause while it sends a body."""
    send_s: float = 60.0
    """How long a client may take for each part of an answer."""
    answer_s: float = 60.0
    """How long the filesystem may take for one verb, before the client is told to come again."""
    wait_s_max: float = 300.0
    """The longest time that a request may wait for tasks, or for the end of a queue."""
    verbs_max: int = 32
    """How many verbs are at work at a time, each in a thread."""
    backlog_max: int = 256
    """How many more requests may wait for such a thread."""
    streams_max: int = 32
    """How many answers and bodies of many lines are under way at a time, each with a thread."""
    lessees_max: int = 512
    """How many threads lease for requests that wait: one for each queue, worker and way to lease."""
    waiting_max: int = 4_096
    """How many requests may wait for tasks at a time."""
    followers_max: int = 256
    """How many streams of events are under way at a time."""
    open_queues_max: int = 64
    """How many queues stay open that no request uses at the moment."""
    connections_max: int = 8_192
    """How many connections may be open at a time. Half of the descriptors are kept for the files of the queues."""
