"""Nodes on which attempts fail one after the other (docs/format.md, "Nodes"): of all workers of a queue there.

A small file for each such node, in the current generation: a line for each failure since the last success, which
removes it. What is said here is advice to workers, never a condition of the protocol: a worker that
cannot write it works on.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from fsqueue.cluster.identity import node_of
from fsqueue.errors import FsqueueError, InvalidArgument
from fsqueue.format import sparse
from fsqueue.format.names import is_node_file
from fsqueue.interruptions import let_out
from fsqueue.storage import journals
from fsqueue.storage.store import Store

logger = logging.getLogger("fsqueue")

WAIT_S = 2.0
"""Seconds to wait for a node's file that another process has locked."""
REASON_CHARS_MAX = 200
"""Maximum number of characters to keep of a failure's reason."""


@dataclass(frozen=True, slots=True)
class FailingNode:
    """A node and the failures in a row on it: how many, from when to when (Unix seconds), the last one's reason."""

    node: str
    failures: int
    since: float
    last: float
    after: int
    """From how many failures on the worker that failed last stops there."""
    reason: str

    @property
    def is_excluded(self) -> bool:
        """Return whether workers with the settings of the one that failed last take no task on the node."""
        return self.failures >= self.after

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, and whether it is excluded."""
        return asdict(self) | {"excluded": self.is_excluded}


class NodeFailures:
    """The failures in a row on this process's node: after `after` of them the node is excluded.

    The node is the one that Slurm names, else the host. All workers of the queue on it count together. Looking costs
    one stat; only failures, and the success that ends a streak, write. Errors of the filesystem are logged, not raised.
    InvalidArgument unless `after` is a whole number from 1.
    """

    def __init__(self, store: Store, after: int) -> None:
        if type(after) is not int or after < 1:
            raise InvalidArgument(f"exclude_after must be a whole number from 1, not {after!r}.")
        self.store, self._after = store, after
        self.node = node_of(store.worker)
        self._seen: tuple[tuple[int, ...], str | None] | None = None

    def failed(self, reason: str = "") -> None:
        """Count an attempt that has failed on this node."""
        store = self.store
        line = {
            "op": "failed",
            "at": store.clock.now_ms(),
            "node": self.node,
            "after": self._after,
            "reason": reason[-REASON_CHARS_MAX:],
        }
        path = store.layout.node(self.node)
        data = orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
        try:
            with store.locked(path, WAIT_S, openings_max=journals.ANEW) as file:  # a success may have just removed it
                file.append(data)
        except (OSError, FsqueueError) as error:
            let_out(error)
            logger.warning("a failure on %s was not counted for the node: %s", self.node, error)

    def succeeded(self) -> None:
        """Forget the failures: a task was completed on this node."""
        if self._state() is not None:
            admit(self.store, self.node)

    def excluded(self) -> str | None:
        """Return why this node takes no more tasks, in a sentence; None if it takes some."""
        state = self._state()
        if state is None:
            return None
        if self._seen is None or self._seen[0] != state:
            self._seen = state, self._read()
        return self._seen[1]

    def _state(self) -> tuple[int, ...] | None:
        """Return a stamp that changes with the node's file; None if there is none."""
        try:
            found = self.store.fs.stat(self.store.layout.node(self.node))
        except OSError as error:
            let_out(error)
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _read(self) -> str | None:
        found = read(self.store, self.store.layout.node(self.node))
        if found is None or found.failures < self._after:
            return None
        what = f"the last {found.failures} failed there" + (f" ({found.reason})" if found.reason else "")
        return (
            f"The node {self.node} takes no more tasks of {self.store.path}: {what}. "
            f"When it is well again: fsqueue workers {shlex.quote(self.store.path)} --admit {shlex.quote(self.node)}"
        )


def read(store: Store, path: str) -> FailingNode | None:
    """Return the failures in a row that a node's file has; None if the file is not there, or has none."""
    try:
        content = sparse.content_of(store.fs.read_pieces(path))
    except OSError as error:
        let_out(error)
        return None
    records = list(_records(content))
    if not records:
        return None
    last = records[-1]
    return FailingNode(
        last["node"], len(records), records[0]["at"] / 1000, last["at"] / 1000, last["after"], last["reason"]
    )


def _records(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the lines that make sense; others are void, and so is a torn one."""
    return (record for line in content.split(b"\n")[:-1] if (record := parse(line)) is not None)


def parse(line: bytes) -> dict[str, Any] | None:
    """Return the failure in a line; None if the line makes no sense."""
    try:
        record: dict[str, Any] = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    match record:
        case {"op": "failed", "at": int(), "node": str(), "after": int(), "reason": str()}:
            return record
    return None


def files(store: Store) -> list[str]:
    """Return the paths of the files of nodes."""
    return [f"{store.layout.nodes}/{name}" for name in store.fs.names(store.layout.nodes) if is_node_file(name)]


def failing(store: Store) -> list[FailingNode]:
    """Return the nodes on which the last attempt failed, by name."""
    store.refresh()
    return sorted((found for path in files(store) if (found := read(store, path))), key=lambda found: found.node)


def admit(store: Store, node: str) -> bool:
    """Forget the failures on a node: it takes tasks again. False if there were none, or it failed (logged)."""
    path = store.layout.node(node)
    try:
        with store.locked_existing(path, WAIT_S):
            return store.fs.unlink(path)
    except FileNotFoundError:
        return False
    except (OSError, FsqueueError) as error:
        let_out(error)
        logger.warning("the failures on %s are not forgotten: %s", node, error)
        return False


def forget(store: Store, age_s: float) -> None:
    """Forget the failures on nodes where the last one is older than `age_s`; what is damaged is left to fsck."""
    assert age_s >= 0, "failures would be forgotten before they come"
    for found in failing(store):
        if found.last < store.clock.now_ms() / 1000 - age_s:
            admit(store, found.node)
