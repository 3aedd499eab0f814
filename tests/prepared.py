"""Updates of two queues by hand: what is prepared in their logs, and what a decision file says."""

from __future__ import annotations

import os
from pathlib import Path

from fsqueue import Group, LeasedTask
from fsqueue.format import decisions, names
from fsqueue.format.decisions import LogName
from fsqueue.format.movements import UpdatePart
from fsqueue.format.names import Batch, DecisionFileName, UpdateId
from fsqueue.format.task_file import encode_task
from fsqueue.groups.queue import GroupQueue
from fsqueue.storage import listing
from tests import record_lines

U, V = UpdateId("0123456789abcdef"), UpdateId("f" * 16)
FILE = DecisionFileName("0193f0c2a4b97c31a2d5e8f001234567")
DAY_MS = 86_400_000


def add(queue: GroupQueue, batch: Batch, *lines: bytes) -> None:
    """Append records to a log, as any process may."""
    with Path(queue.store.layout.log(batch)).open("ab") as log:
        log.write(b"".join(lines))


class ByHand:
    """An update that completes the only task of the queue `first`, and inserts "new" into the queue `then`.

    Both have an open batch. `ago_ms`: how long ago it was prepared.
    """

    def __init__(self, directory: Path, *, ago_ms: int = 0, patience_ms: int = 5_000) -> None:
        self.group = Group.create(directory, shards=1, durability="none")
        self.first, self.then = self.group["first"], self.group["then"]
        self.first.insert("old")
        self.then.insert("made")
        (made,) = self.then.lease(1)
        made.complete()
        self.task: LeasedTask
        (self.task,) = self.first.lease(1)
        self.source = names.parse_task_id(self.task.id)[0]
        self.target = names.parse_task_id(made.id)[0]
        self.at = self.now() - ago_ms
        self.part = UpdatePart(U, FILE, patience_ms)

    def now(self) -> int:
        return self.first.store.clock.now_ms()

    def complete(self) -> bytes:
        return record_lines.complete(self.at, self.task.lease, [self.task.index], b'"done"', part=self.part)

    def insert(self, payload: object = "new") -> bytes:
        state = listing.read_replay_state(self.then.store, self.target)
        assert state is not None
        line = encode_task(payload, 1000)
        return record_lines.insert(self.at, "1" * 16, state.count, line, part=self.part)

    def prepare(self) -> None:
        add(self.first, self.source, self.complete())
        add(self.then, self.target, self.insert())

    def commit(self) -> bytes:
        return record_lines.commit(self.at, U, 1)

    def abort(self) -> bytes:
        return record_lines.abort(self.at, U)

    @property
    def file(self) -> Path:
        return Path(decisions.path_of(str(self.group.path), FILE))

    def logs(self) -> list[LogName]:
        each = ((self.first, self.source), (self.then, self.target))
        return [
            LogName(names.queue_directory(queue.name), queue.store.queue_state.directory, batch)
            for queue, batch in each
        ]

    def decide(self, *lines: bytes) -> None:
        """Make the decision file, and let it say this."""
        self.file.parent.mkdir(exist_ok=True)
        with self.file.open("ab") as file:
            if not os.path.getsize(self.file):
                file.write(decisions.opening(self.at, self.group.directory().state.id, {"pid": 1}))
            file.write(b"".join(lines))

    def says(self, what: str) -> None:
        """Let the decision file say `what`: "commit", "abort", "nothing", "retired", or be "absent"."""
        match what:
            case "commit":
                self.decide(decisions.commit(self.at, U, self.logs()))
            case "abort":
                self.decide(decisions.abort(self.at, U), decisions.commit(self.at, U, self.logs()))
            case "nothing":
                self.decide(decisions.abort(self.at, V))
            case "retired":
                self.decide(decisions.gone(self.at), decisions.commit(self.at, U, self.logs()))
            case "absent":
                self.file.parent.mkdir(exist_ok=True)
